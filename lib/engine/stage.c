/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage thread: does locals, gathers ops into staging blocks, hashes, scatters out of ring
 * slots.  It is joined to the engine's thread by two single-producer rings; each side sleeps on an
 * eventfd that the other writes only if it wasn't written since the sleeper last looked.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/engine/engine_internal.h"

static void eventfd_tell(int fd, _Atomic bool *told)
{
	uint64_t one = 1;
	if (!atomic_exchange_explicit(told, true, memory_order_acq_rel)) {
		ssize_t n = write(fd, &one, sizeof(one));
		(void)n; /* can't fail: the counter is read before it is told again */
	}
}

static bool eventfd_clear(int fd)
{
	uint64_t value;
	return read(fd, &value, sizeof(value)) == (ssize_t)sizeof(value);
}

/* ---------------------------------------------------------------- on the stage thread */

bool stage_is_live(const struct stage *stage, uint32_t serial)
{
	return atomic_load_explicit(&stage->serial, memory_order_relaxed) == serial;
}

static void do_send_op(const struct engine *engine, struct stage_result *result)
{
	const struct stage_request *request = &result->request;
	const struct send *send = &engine->program.given.sends[request->index];
	uint64_t op_bytes = engine_op_bytes(engine, send->op_bytes), from = request->op * op_bytes;
	uint64_t bytes = cut_op_bytes(send->bytes, op_bytes, request->op);
	const uint8_t *memory = (const uint8_t *)send->local + from;
	if (request->kind == STAGE_GATHER) {
		uint8_t *block = engine_block_memory(engine, request->block);
		cut_gather(send->moves, send->move_count, from, from + bytes, block,
			   offload_ring(engine));
		memory = block;
	}
	if (engine->wire_digests)
		result->got = digest_bytes(memory, bytes, send->first_op_id + request->op);
	result->done = true;
}

/* True if all were done: none after the attempt has ended. */
static bool do_moves(const struct stage *stage, uint32_t serial, const struct move *moves,
		     uint32_t count)
{
	const struct ring *ring = offload_ring(stage->engine);
	for (uint32_t i = 0; i < count && stage_is_live(stage, serial); i++) {
		struct move move = moves[i];
		if (ring != NULL)
			move.src = ring_source(ring, &moves[i]);
		convert_move(&move);
	}
	return stage_is_live(stage, serial);
}

static void do_receive(const struct engine *engine, const struct stage *stage,
		       struct stage_result *result)
{
	uint32_t index = result->request.index, serial = result->request.serial;
	const struct receive *receive = &engine->program.given.receives[index];
	if (!imm_is_whole(&engine->imm, index))
		return;
	if (receive->digest_op_id != NONE) {
		memcpy(&result->want, (const uint8_t *)engine->own.base + 8 * (uint64_t)index, 8);
		result->got = cut_digest(receive->spans, receive->span_count, engine->op_bytes,
					 &stage->serial, serial);
		result->wrong = result->got != result->want;
	}
	result->done =
		do_moves(stage, serial, receive->moves, result->wrong ? 0 : receive->move_count);
}

static void do_local(const struct engine *engine, const struct stage *stage,
		     struct stage_result *result)
{
	const struct local *local = &engine->program.given.locals[result->request.index];
	result->done = do_moves(stage, result->request.serial, local->moves, local->move_count);
}

static void do_request(struct stage *stage, const struct stage_request *request,
		       struct stage_result *result)
{
	*result = (struct stage_result){.request = *request};
	if (!stage_is_live(stage, request->serial))
		return;
	uint64_t begin = clock_ns();
	switch (request->kind) {
	case STAGE_GATHER:
	case STAGE_HASH:
		do_send_op(stage->engine, result);
		break;
	case STAGE_RECEIVE:
		do_receive(stage->engine, stage, result);
		break;
	case STAGE_LOCAL:
		do_local(stage->engine, stage, result);
		break;
	}
	result->ns = clock_ns() - begin;
}

void stage_tell(struct stage *stage)
{
	eventfd_tell(stage->done_fd, &stage->done_told);
}

/* One request; false: there is none. */
static bool stage_turn(struct stage *stage)
{
	uint32_t head = atomic_load_explicit(&stage->request_head.at, memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(&stage->request_tail.at, memory_order_acquire);
	if (head == tail)
		return false;
	uint32_t result_tail = atomic_load_explicit(&stage->result_tail.at, memory_order_relaxed);
	do_request(stage, &stage->requests[head % STAGE_ROOM],
		   &stage->results[result_tail % STAGE_ROOM]);
	atomic_store_explicit(&stage->request_head.at, head + 1, memory_order_release);
	atomic_store_explicit(&stage->result_tail.at, result_tail + 1, memory_order_release);
	stage_tell(stage);
	return true;
}

static void *stage_main(void *arg)
{
	struct stage *stage = arg;
	mem_forbid();
	/* Ends by stop; sleeps in read() while there is nothing to do. */
	while (!atomic_load_explicit(&stage->stop, memory_order_acquire)) {
		if (stage->gpu != NULL ? stage_gpu_turn(stage) : stage_turn(stage))
			continue;
		eventfd_clear(stage->wake_fd);
		atomic_exchange_explicit(&stage->wake_told, false, memory_order_acq_rel);
	}
	mem_allow();
	return NULL;
}

/* --------------------------------------------------------------- on the engine's thread */

void stage_put(struct stage *stage, const struct stage_request *request)
{
	uint32_t tail = atomic_load_explicit(&stage->request_tail.at, memory_order_relaxed);
	stage->requests[tail % STAGE_ROOM] = *request;
	atomic_store_explicit(&stage->request_tail.at, tail + 1, memory_order_release);
	stage->outstanding++;
	eventfd_tell(stage->wake_fd, &stage->wake_told);
}

bool stage_take(struct stage *stage, struct stage_result *result_out)
{
	uint32_t head = atomic_load_explicit(&stage->result_head.at, memory_order_relaxed);
	if (head == atomic_load_explicit(&stage->result_tail.at, memory_order_acquire))
		return false;
	*result_out = stage->results[head % STAGE_ROOM];
	atomic_store_explicit(&stage->result_head.at, head + 1, memory_order_release);
	stage->outstanding--;
	return true;
}

void stage_heard(struct stage *stage)
{
	bool told = atomic_exchange_explicit(&stage->done_told, false, memory_order_acq_rel);
	/* The thread may be between its exchange and its write: then I owe the eventfd a read. */
	if (told || stage->done_owed)
		stage->done_owed = !eventfd_clear(stage->done_fd);
}

void stage_drop(struct stage *stage, uint32_t serial)
{
	atomic_store_explicit(&stage->serial, serial, memory_order_relaxed);
}

void stage_wait(struct stage *stage)
{
	/* Bounded: what is queued is dropped at once, and a piece is one op or one move, or a few
	 * launches of a GPU, which is given up when it is stuck. */
	for (;;) {
		uint32_t head = atomic_load_explicit(&stage->result_head.at, memory_order_relaxed);
		uint32_t tail = atomic_load_explicit(&stage->result_tail.at, memory_order_acquire);
		if (tail - head == stage->outstanding)
			return;
		struct pollfd fd = {.fd = stage->done_fd, .events = POLLIN};
		poll(&fd, 1, 1);
		stage_heard(stage);
	}
}

int stage_thread_open(struct engine *engine, struct CUstream_st *stream, struct ws_error *err)
{
	struct stage *stage = mem_alloc(sizeof(*stage));
	if (stage == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the stage thread's rings");
	engine->stage = stage;
	stage->engine = engine;
	stage->wake_fd = eventfd(0, EFD_CLOEXEC);
	stage->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (stage->wake_fd < 0 || stage->done_fd < 0)
		return ws_fail(err, -errno, "cannot make an eventfd for the stage thread: %s",
			       strerror(errno));
	int rc = engine->staging.place == WS_CUDA
			 ? stage_gpu_open(stage, engine->staging.device, stream, err)
			 : 0;
	if (rc != 0)
		return rc;
	rc = thread_start(&stage->thread, -1, stage_main, stage);
	if (rc != 0)
		return ws_fail(err, -rc, "cannot start the stage thread: %s", strerror(rc));
	stage->started = true;
	return 0;
}

void stage_thread_close(struct engine *engine)
{
	struct stage *stage = engine->stage;
	if (stage == NULL)
		return;
	if (stage->started) {
		atomic_fetch_add_explicit(&stage->serial, 1, memory_order_relaxed);
		atomic_store_explicit(&stage->stop, true, memory_order_release);
		uint64_t one = 1;
		ssize_t n = write(stage->wake_fd, &one, sizeof(one));
		(void)n;
		pthread_join(stage->thread, NULL);
	}
	stage_gpu_close(stage);
	if (stage->wake_fd >= 0)
		close(stage->wake_fd);
	if (stage->done_fd >= 0)
		close(stage->done_fd);
	mem_free(stage);
	engine->stage = NULL;
}
