/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources that lie in the host's memory while a GPU does the stage thread's work: they are copied
 * into a ring of its memory (ring.h), and locals and gathers read them there.  Copies are queued
 * and looked at on the engine's thread, on a stream of their own, and a request goes to the stage
 * thread when what it reads has arrived.
 *
 * Without a GPU the ring lies in the host's memory: slower than nothing, but all of this is tested.
 */
#include <errno.h>
#include <string.h>

#include "lib/cuda/cuda.h"
#include "lib/engine/engine_internal.h"
#include "lib/engine/ring.h"

#define LOADS_MAX     64u /* under way */
#define LOADS_AT_ONCE 16u /* in one launch: PCIe has something to do while the next is made */
_Static_assert(LOADS_MAX <= CUDA_MARKS_MAX, "each has a mark, if they are launched one by one");

struct load {
	uint32_t item;
	uint64_t mark, begun_ns;
};

struct offload {
	struct ring ring;
	struct ws_memory memory; /* owned */
	struct cuda_queue queue; /* on a GPU; with its error, which is for ever */
	bool told;		 /* ... that error, in this attempt */
	bool wanted;		 /* in this step a gather was refused, */
	bool local_wanted;	 /* a local was */
	uint64_t loaded_ns;	 /* when something last was */
	uint32_t first, count;
	struct load loads[LOADS_MAX];
};

int offload_open(struct engine *engine, const struct engine_options *options, struct ws_error *err)
{
	uint64_t bytes = options->ring_bytes & ~(uint64_t)4095;
	if (options->ring_bytes == 0)
		return 0;
	struct offload *offload = mem_alloc(sizeof(*offload));
	if (offload == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the books of a ring");
	engine->offload = offload;
	offload->memory = (struct ws_memory){.place = options->place, .device = options->device};
	int rc = ws_memory_alloc(&offload->memory, MAX(bytes, (uint64_t)4096), err);
	if (rc == 0 && options->place == WS_CUDA)
		rc = cuda_queue_open(&offload->queue, options->device, err);
	offload->ring.memory = offload->memory.base;
	offload->ring.bytes = MAX(bytes, (uint64_t)4096);
	return rc == 0 ? 0 : ws_fail_in(err, rc, "no ring for parameters of the host");
}

void offload_close(struct engine *engine)
{
	struct offload *offload = engine->offload;
	if (offload == NULL)
		return;
	cuda_queue_close(&offload->queue);
	ring_release(&offload->ring);
	ws_memory_free(&offload->memory);
	mem_free(offload);
	engine->offload = NULL;
}

const struct ring *offload_ring(const struct engine *engine)
{
	return engine->offload != NULL ? &engine->offload->ring : NULL;
}

/* ---------------------------------------------------------------------------- uses */

/* What a request reads, box by box: the same each time it is asked. */
struct walk {
	struct ring *ring;
	uint32_t bucket;
	bool local;
	void (*visit)(struct walk *walk, uint32_t item);
	bool ready;
};

static int walk_take(void *arg, const struct move *move)
{
	struct walk *walk = arg;
	const struct ring_use use = ring_use_of(move);
	uint32_t item = ring_find(walk->ring, &use);
	if (item != RING_NONE)
		walk->visit(walk, item);
	return 0;
}

static void walk_op(struct engine *engine, struct walk *walk, uint32_t index, uint32_t op)
{
	const struct send *send = &engine->program.given.sends[index];
	uint64_t op_bytes = engine_op_bytes(engine, send->op_bytes), from = op * op_bytes;
	walk->ring = &engine->offload->ring;
	walk->bucket = send->bucket;
	(void)cut_boxes(send->moves, send->move_count, from,
			from + cut_op_bytes(send->bytes, op_bytes, op),
			engine_block_memory(engine, 0), walk_take, walk);
}

static void walk_local(struct engine *engine, struct walk *walk, uint32_t index)
{
	const struct local *local = &engine->program.given.locals[index];
	walk->ring = &engine->offload->ring;
	walk->bucket = local->bucket;
	walk->local = true;
	for (uint32_t i = 0; i < local->move_count; i++)
		(void)walk_take(walk, &local->moves[i]);
}

static bool is_counted(const struct walk *walk, uint32_t item)
{
	return walk->ring->items[item].bucket == walk->bucket;
}

static void count_use(struct walk *walk, uint32_t item)
{
	struct ring_item *of = &walk->ring->items[item];
	if (is_counted(walk, item) && walk->local)
		of->locals++;
	else if (is_counted(walk, item))
		of->gathers++;
}

static void look(struct walk *walk, uint32_t item)
{
	walk->ready = walk->ready && ring_is_ready(walk->ring, item);
}

static void take(struct walk *walk, uint32_t item)
{
	ring_take(walk->ring, item);
}

static void put(struct walk *walk, uint32_t item)
{
	ring_put(walk->ring, item, is_counted(walk, item));
}

static void skip(struct walk *walk, uint32_t item)
{
	if (is_counted(walk, item))
		ring_skip(walk->ring, item);
}

/* ------------------------------------------------------------------------- program */

/* Where CUDA doesn't know how far memory was page-locked at once, nothing is joined.  False: it
 * goes over the end of that, so it can't be copied, and is read where it is. */
static bool allocation_find(const struct engine *engine, struct ring_use *use)
{
	use->allocation = NULL;
	if (engine->offload->memory.place == WS_HOST)
		return true;
	const struct cuda_range range = cuda_range_of(use->from);
	use->allocation = range.base != NULL ? range.base : use->from;
	return range.base == NULL || cuda_range_has(&range, use->from, use->bytes);
}

struct collect {
	const struct engine *engine;
	struct ring_use *uses;
	uint32_t count, bucket;
	uint64_t turn; /* bytes that the reader has read in the bucket */
};

static void collect_turn(struct collect *collect, uint32_t bucket)
{
	if (collect->bucket != bucket)
		collect->turn = 0;
	collect->bucket = bucket;
}

/* Sources alone: what lies in the tables is where it is needed. */
static void collect_use(struct collect *collect, const struct move *move, bool local, uint64_t turn,
			uint64_t turn_end)
{
	const struct engine *engine = collect->engine;
	const struct engine_program *given = &engine->program.given;
	struct ring_use use = ring_use_of(move);
	if (use.bytes == 0 || use.bytes > ring_item_bytes_max(&engine->offload->ring) ||
	    (uintptr_t)use.from - (uintptr_t)given->tables < given->tables_bytes ||
	    !allocation_find(engine, &use))
		return;
	use.bucket = collect->bucket;
	use.local = local;
	use.turn = turn;
	use.turn_end = turn_end;
	collect->uses[collect->count++] = use;
}

static void collect_locals(struct collect *collect)
{
	const struct engine_program *given = &collect->engine->program.given;
	for (uint32_t i = 0; i < given->local_count; i++) {
		const struct local *local = &given->locals[i];
		collect_turn(collect, local->bucket);
		for (uint32_t k = 0; k < local->move_count; k++) {
			uint64_t begin = collect->turn;
			collect->turn += ring_use_of(&local->moves[k]).bytes;
			collect_use(collect, &local->moves[k], true, begin, collect->turn);
		}
	}
}

/* All that one peer gets, from its first send on. */
static void collect_peer(struct collect *collect, uint32_t first)
{
	const struct program *program = &collect->engine->program;
	collect->turn = 0;
	for (uint32_t i = first; i != NONE; i = program->sends[i].next) {
		const struct send *send = &program->given.sends[i];
		collect_turn(collect, send->bucket);
		for (uint32_t k = 0; send->local == NULL && k < send->move_count; k++) {
			const struct gather_move *gather = &send->moves[k];
			uint64_t begin = collect->turn + gather->wire_offset;
			uint64_t bytes =
				move_element_count(&gather->move) * ws_dtype_bytes(gather->move.to);
			collect_use(collect, &gather->move, false, begin, begin + bytes);
		}
		collect->turn += send->bytes;
	}
}

static uint32_t uses_collect(const struct engine *engine, struct ring_use *uses)
{
	const struct engine_program *given = &engine->program.given;
	struct collect collect = {.engine = engine, .uses = uses};
	collect_locals(&collect);
	for (uint32_t i = 0; i < given->send_count; i++)
		if (given->sends[i].peer->first_send == i)
			collect_peer(&collect, i);
	return collect.count;
}

int offload_set(struct engine *engine, struct ws_error *err)
{
	const struct engine_program *given = &engine->program.given;
	uint64_t room = 0;
	if (engine->offload == NULL)
		return 0;
	for (uint32_t i = 0; i < given->local_count; i++)
		room += given->locals[i].move_count;
	for (uint32_t i = 0; i < given->send_count; i++)
		room += given->sends[i].move_count;
	struct ring_use *uses = mem_alloc(room * sizeof(*uses));
	if (uses == NULL || room > UINT32_MAX) {
		mem_free(uses);
		return ws_fail(err, -ENOMEM, "no memory for %llu sources",
			       (unsigned long long)room);
	}
	int rc = ring_make(&engine->offload->ring, uses, uses_collect(engine, uses), err);
	mem_free(uses);
	struct walk walk = {.visit = count_use};
	for (uint32_t i = 0; rc == 0 && i < given->local_count; i++)
		walk_local(engine, &walk, i);
	walk.local = false;
	for (uint32_t i = 0; rc == 0 && i < given->send_count; i++)
		for (uint32_t op = 0;
		     given->sends[i].local == NULL && op < engine->program.sends[i].op_count; op++)
			walk_op(engine, &walk, i, op);
	return rc;
}

/* ------------------------------------------------------------------------- attempt */

void offload_arm(struct engine *engine)
{
	if (engine->offload == NULL)
		return;
	/* Copies of an attempt before may still be under way: those of this one are behind them. */
	engine->offload->count = 0;
	engine->offload->told = engine->offload->wanted = engine->offload->local_wanted = false;
	ring_arm(&engine->offload->ring);
}

bool offload_take_local(struct engine *engine, uint32_t index)
{
	struct walk walk = {.visit = look, .ready = true};
	if (engine->offload == NULL)
		return true;
	walk_local(engine, &walk, index);
	walk.visit = take;
	if (walk.ready)
		walk_local(engine, &walk, index);
	engine->offload->local_wanted = !walk.ready;
	return walk.ready;
}

bool offload_take_op(struct engine *engine, uint32_t index, uint32_t op)
{
	struct walk walk = {.visit = look, .ready = true};
	if (engine->offload == NULL)
		return true;
	walk_op(engine, &walk, index, op);
	walk.visit = take;
	if (walk.ready)
		walk_op(engine, &walk, index, op);
	engine->offload->wanted |= !walk.ready;
	return walk.ready;
}

void offload_put(struct engine *engine, const struct stage_request *request)
{
	struct walk walk = {.visit = put};
	if (engine->offload == NULL)
		return;
	if (request->kind == STAGE_LOCAL)
		walk_local(engine, &walk, request->index);
	else if (request->kind == STAGE_GATHER)
		walk_op(engine, &walk, request->index, request->op);
}

void offload_skip(struct engine *engine, const struct engine_peer *peer)
{
	struct walk walk = {.visit = skip};
	uint32_t op = peer->op;
	if (engine->offload == NULL)
		return;
	for (uint32_t i = peer->send; i != NONE; i = engine->program.sends[i].next) {
		for (; engine->program.given.sends[i].local == NULL &&
		       op < engine->program.sends[i].op_count;
		     op++)
			walk_op(engine, &walk, i, op);
		op = 0;
	}
}

/* --------------------------------------------------------------------------- loads */

static void offload_fail(struct engine *engine)
{
	struct offload *offload = engine->offload;
	if (offload->told || engine_event_room(engine) == 0)
		return;
	offload->told = true;
	engine_emit(engine, &(struct engine_event){.kind = ENGINE_GPU_FAILED,
						   .nic = NONE,
						   .status = -EIO,
						   .reason = offload->queue.error.text});
}

/* Whether the copy is done; the host's was done at once.  Only one that isn't can be late: nobody
 * may have looked for long. */
static bool load_is_done(struct engine *engine, const struct load *load)
{
	struct cuda_queue *queue = &engine->offload->queue;
	if (engine->offload->memory.place == WS_HOST)
		return true;
	if (queue->error.code != 0)
		return false;
	int passed = cuda_queue_passed(queue, load->mark);
	if (passed == 0 &&
	    (engine->now_ns - load->begun_ns > cuda_stuck_ns() || cuda_is_given_up(queue->device)))
		cuda_stuck(queue->device, &queue->error);
	return passed == 1;
}

void offload_turn(struct engine *engine)
{
	struct offload *offload = engine->offload;
	if (offload == NULL)
		return;
	if (offload->queue.error.code != 0) /* of an attempt before, too: it stays */
		offload_fail(engine);
	while (offload->count > 0 && load_is_done(engine, &offload->loads[offload->first])) {
		struct load load = offload->loads[offload->first];
		offload->first = (offload->first + 1) % LOADS_MAX;
		offload->count--;
		ring_loaded(&offload->ring, load.item);
		engine->progress.load_bytes += offload->ring.items[load.item].bytes;
		/* One after the other: its time begins when the one before it was done. */
		engine->progress.load_ns += engine->now_ns - MAX(load.begun_ns, offload->loaded_ns);
		offload->loaded_ns = engine->now_ns;
		engine->moved = true;
	}
}

/* What was given places is copied at once, and is there at once. */
static int loads_begin(struct offload *offload, const struct cuda_copy *copies, uint32_t count)
{
	uint64_t mark;
	if (count == 0)
		return 0;
	for (uint32_t i = 0; i < count && offload->memory.place == WS_HOST; i++)
		memcpy(copies[i].to, copies[i].from, copies[i].bytes);
	if (offload->memory.place == WS_HOST)
		return 0;
	int rc = cuda_queue_copy(&offload->queue, copies, count);
	if (rc == 0)
		rc = cuda_queue_mark(&offload->queue, &mark);
	for (uint32_t i = offload->count - count; rc == 0 && i < offload->count; i++)
		offload->loads[(offload->first + i) % LOADS_MAX].mark = mark;
	return rc;
}

/* Whether some peer would take what waits for a local that was refused: what isn't ready yet, or
 * waits for others' maxima, is no reason to read a source twice.  Or nobody is to get anything any
 * more (who was may have been dropped): then only locals are left. */
static bool local_holds_up(const struct engine *engine)
{
	const struct program *program = &engine->program;
	for (uint32_t i = 0; i < program->active_count; i++) {
		const struct engine_peer *peer = program->active[i];
		if (peer->ready && peer->send != NONE &&
		    program->gates[program->given.sends[peer->send].gate].locals_left > 0)
			return true;
	}
	return program->active_count == 0;
}

/* Attempts that were broken off may have left copies under way, and their marks. */
static bool may_load(struct offload *offload)
{
	struct cuda_queue *queue = &offload->queue;
	if (offload->count == LOADS_MAX || queue->error.code != 0)
		return false;
	return queue->marked - queue->passed < CUDA_MARKS_MAX ||
	       cuda_queue_passed(queue, queue->passed + 1) == 1;
}

/* Some of those that may be under way; false: no more can be now. */
static bool loads_next(struct engine *engine, bool gives_way)
{
	struct offload *offload = engine->offload;
	struct cuda_copy copies[LOADS_AT_ONCE];
	uint32_t count = 0;
	while (count < LOADS_AT_ONCE && offload->count < LOADS_MAX) {
		uint8_t *place;
		uint32_t index = ring_load(&offload->ring, gives_way, &place);
		if (index == RING_NONE)
			break;
		const struct ring_item *item = &offload->ring.items[index];
		offload->loads[(offload->first + offload->count++) % LOADS_MAX] =
			(struct load){.item = index, .begun_ns = engine->now_ns};
		copies[count++] = (struct cuda_copy){
			.to = place, .from = item->from, .bytes = item->bytes, .is_far = true};
	}
	engine->moved |= count > 0;
	if (loads_begin(offload, copies, count) != 0)
		offload_fail(engine);
	return count == LOADS_AT_ONCE;
}

void offload_load(struct engine *engine)
{
	struct offload *offload = engine->offload;
	if (offload == NULL)
		return;
	bool gives_way = ring_is_idle(&offload->ring) &&
			 (offload->wanted || (offload->local_wanted && local_holds_up(engine)));
	while (may_load(offload) && loads_next(engine, gives_way))
		;
	offload->wanted = offload->local_wanted = false;
	engine->progress.ring_high_bytes = offload->ring.high_bytes;
}

bool offload_is_loading(const struct engine *engine)
{
	return engine->imm.armed && engine->offload != NULL && engine->offload->count > 0;
}
