/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt of a program: armed, ended, and what comes in it: reports, immediates, results of the
 * stage thread.  What goes out is issue.c's.
 */
#include <errno.h>

#include "lib/engine/engine_internal.h"

void program_block_free(struct engine *engine, uint32_t block)
{
	engine->blocks[block].peer->blocks--;
	engine->blocks_used--;
	/* The host's caches may still have it.  On a GPU who was free first comes next, so that
	 * neighbours are neighbours on the wire, too, and a copy engine takes them as one. */
	if (engine->staging.place == WS_HOST || engine->block_free == NONE) {
		engine->blocks[block].next = engine->block_free;
		engine->block_free = block;
	} else {
		engine->blocks[block].next = NONE;
		engine->blocks[engine->block_free_last].next = block;
	}
	if (engine->blocks[block].next == NONE)
		engine->block_free_last = block;
}

void program_staged_free(struct engine *engine, struct engine_peer *peer)
{
	while (peer->staged_first != NONE) {
		uint32_t block = peer->staged_first;
		peer->staged_first = engine->blocks[block].next;
		program_block_free(engine, block);
	}
	peer->staged_last = NONE;
}

static void due_put(struct due *due, uint32_t index)
{
	due->index[due->tail++] = index;
}

/* ---------------------------------------------------------------------- what came */

static bool send_is_done(const struct engine *engine, const struct send_state *state)
{
	return state->sent == state->op_count &&
	       (!engine->wire_digests || state->hashed == state->op_count);
}

static void send_went_on(struct engine *engine, uint32_t index)
{
	engine->progress.sends_done += send_is_done(engine, &engine->program.sends[index]);
}

static void receive_finish(struct engine *engine, uint32_t index)
{
	const struct receive *receive = &engine->program.given.receives[index];
	engine->progress.receives_done++;
	gate_received(engine, receive->gate);
	engine->progress.bytes_received += receive->bytes;
	if (receive->credit_op_id != NONE)
		due_put(&engine->program.credits, index);
	engine_emit(engine, &(struct engine_event){.kind = ENGINE_RECEIVE_DONE,
						   .peer = receive->peer,
						   .nic = NONE,
						   .receive = index});
}

const char *engine_stray_text(enum stray_kind kind)
{
	static const char *const texts[] = {[STRAY_STALE] = "of another attempt",
					    [STRAY_DUPLICATE] = "that had arrived before",
					    [STRAY_UNKNOWN] = "that nobody was to send",
					    [STRAY_NO_ATTEMPT] = "while no update is open"};
	return texts[kind];
}

static void stray_report(struct engine *engine, uint32_t nic, const struct event *event,
			 enum imm_verdict verdict, uint32_t receive)
{
	static const enum stray_kind kinds[] = {[IMM_STALE] = STRAY_STALE,
						[IMM_DUPLICATE] = STRAY_DUPLICATE,
						[IMM_UNKNOWN] = STRAY_UNKNOWN,
						[IMM_NO_ATTEMPT] = STRAY_NO_ATTEMPT};
	struct engine_peer *peer = peer_of(engine, nic, event->peer);
	if (peer == NULL && receive != NONE)
		peer = engine->program.given.receives[receive].peer;
	engine_emit(engine, &(struct engine_event){.kind = ENGINE_STRAY,
						   .peer = peer,
						   .nic = nic,
						   .op_id = event->imm & OP_ID_MAX,
						   .stray = kinds[verdict],
						   .imm = event->imm,
						   .receive = receive});
}

void program_arrived(struct engine *engine, uint32_t nic, const struct event *event)
{
	uint32_t receive;
	enum imm_verdict verdict = imm_take(&engine->imm, event->imm, &receive);
	switch (verdict) {
	case IMM_COUNTED:
	case IMM_CREDIT:
		return;
	case IMM_REACHED:
		break;
	case IMM_STALE:
	case IMM_DUPLICATE:
	case IMM_UNKNOWN:
	case IMM_NO_ATTEMPT:
		stray_report(engine, nic, event, verdict, receive);
		return;
	}
	const struct receive *given = &engine->program.given.receives[receive];
	if (engine->flushed_gpus != 0 && regions_flush(engine) != 0) {
		engine_emit(engine, &(struct engine_event){.kind = ENGINE_GPU_FAILED,
							   .nic = NONE,
							   .status = -EIO,
							   .reason = engine->no_flush.text});
		return;
	}
	if (given->digest_op_id != NONE || given->move_count > 0)
		due_put(&engine->program.checks, receive);
	else
		receive_finish(engine, receive);
}

void program_reported(struct engine *engine, uint32_t nic, const struct event *event)
{
	struct op_slot slot;
	if (!post_reported(engine, event->id, &slot))
		return;
	if (slot.kind == OP_GATHERED)
		program_block_free(engine, slot.block);
	if (event->kind == EVENT_FAILED) {
		rail_op_failed(engine, nic, &slot, event);
		return;
	}
	engine->nics[nic].bytes_sent += slot.bytes;
	slot.peer->rails[nic].sent_ns = engine->now_ns;
	if (slot.serial != engine->serial || slot.peer->dropped)
		return;
	switch (slot.kind) {
	case OP_DIRECT:
	case OP_GATHERED:
		engine->progress.bytes_sent += slot.bytes;
		engine->program.sends[slot.index].sent++;
		send_went_on(engine, slot.index);
		break;
	case OP_DIGEST:
		engine->program.digests[slot.index].sent = true;
		engine->program.digests_sent++;
		break;
	case OP_CREDIT:
		break;
	}
}

static void staged_op(struct engine *engine, const struct stage_result *result)
{
	const struct stage_request *request = &result->request;
	const struct send *send = &engine->program.given.sends[request->index];
	struct engine_peer *peer = send->peer;
	if (engine->program.sends[request->index].quantizes)
		engine->progress.quantize_ns += result->ns;
	else
		engine->progress.gather_ns += result->ns;
	if (request->kind == STAGE_GATHER) {
		peer->gathering--;
		struct block *last =
			peer->staged_last == NONE ? NULL : &engine->blocks[peer->staged_last];
		engine->blocks[request->block].next = NONE;
		if (last != NULL)
			last->next = request->block;
		else
			peer->staged_first = request->block;
		peer->staged_last = request->block;
	}
	if (!engine->wire_digests || peer->dropped)
		return;
	struct digest_state *digest = &engine->program.digests[send->counter];
	digest->sum += result->got;
	if (--digest->op_left == 0)
		due_put(&engine->program.ready_digests, send->counter);
	engine->program.sends[request->index].hashed++;
	send_went_on(engine, request->index);
}

static void staged_receive(struct engine *engine, const struct stage_result *result)
{
	uint32_t index = result->request.index;
	if (result->done && !result->wrong) {
		receive_finish(engine, index);
		return;
	}
	engine_emit(engine,
		    &(struct engine_event){.kind = ENGINE_DIGEST_WRONG,
					   .peer = engine->program.given.receives[index].peer,
					   .nic = NONE,
					   .receive = index,
					   .got = result->got,
					   .want = result->want});
}

void program_staged(struct engine *engine, const struct stage_result *result)
{
	const struct stage_request *request = &result->request;
	if (result->failed && request->serial == engine->serial)
		engine_emit(engine,
			    &(struct engine_event){.kind = ENGINE_GPU_FAILED,
						   .nic = NONE,
						   .status = -EIO,
						   .reason = stage_gpu_reason(engine->stage)});
	if (request->serial != engine->serial || result->failed) {
		/* The attempt has ended, or is about to: only the block matters. */
		if (request->kind == STAGE_GATHER)
			program_block_free(engine, request->block);
		return;
	}
	offload_put(engine, request);
	switch (request->kind) {
	case STAGE_GATHER:
	case STAGE_HASH:
		staged_op(engine, result);
		break;
	case STAGE_RECEIVE:
		staged_receive(engine, result);
		break;
	case STAGE_LOCAL:
		local_staged(engine, result);
		break;
	}
}

/* ------------------------------------------------------------------------- attempt */

void program_settle(struct engine *engine)
{
	struct stage_result result;
	stage_wait(engine->stage);
	/* Bounded by the ring: nothing new was put. */
	while (stage_take(engine->stage, &result))
		program_staged(engine, &result);
}

int engine_arm(struct engine *engine, uint64_t attempt, struct ws_error *err)
{
	struct program *program = &engine->program;
	if (!program->set || engine->imm.armed || engine->fencing)
		return ws_fail(err, -EINVAL, "attempt %llu can't begin: %s",
			       (unsigned long long)attempt,
			       engine->imm.armed ? "another one hasn't ended"
			       : engine->fencing ? "a fence hasn't ended"
						 : "no program was set since the last wiring");
	uint32_t out = rail_out_of_use(engine);
	if (out != NONE)
		return ws_fail(err, -EIO, "NIC '%s' has gone out of use since the wiring",
			       engine_nic(engine, out)->name);
	program_settle(engine);
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		engine->nics[i].bytes_sent = 0;
		engine->nics[i].was_out = engine->nics[i].out;
	}
	uint64_t high = engine->blocks_used * engine->op_bytes;
	engine->progress = (struct engine_progress){.send_count = program->given.send_count,
						    .receive_count = program->given.receive_count,
						    .all_sent = program->given.send_count == 0 &&
								program->given.local_count == 0,
						    .staging_high_bytes = high};
	program->active_count = 0;
	for (uint32_t i = 0; i < engine->peer_count; i++) {
		struct engine_peer *peer = engine->peers[i];
		peer->ready = peer->broken = peer->dropped = false;
		peer->send = peer->first_send;
		peer->op = peer->gathering = 0;
		peer->staged_first = peer->staged_last = NONE;
		if (peer->send != NONE)
			program->active[program->active_count++] = peer;
	}
	for (uint32_t i = 0; i < program->given.send_count; i++)
		program->sends[i].sent = program->sends[i].hashed = 0;
	for (uint32_t i = 0; i < program->given.digest_count; i++) {
		program->digests[i].sum = 0;
		program->digests[i].sent = false;
		program->digests[i].op_left = program->digests[i].op_count;
	}
	program->checks.head = program->checks.tail = 0;
	program->credits.head = program->credits.tail = 0;
	program->ready_digests.head = program->ready_digests.tail = 0;
	program->turn = program->digests_sent = 0;
	program->sends_done_told = false;
	stage_drop(engine->stage, ++engine->serial);
	locals_arm(engine);
	offload_arm(engine);
	imm_arm(&engine->imm, attempt);
	engine->moved = true;
	return 0;
}

void engine_peer_ready(struct engine *engine, struct engine_peer *peer)
{
	peer->ready = engine->imm.armed;
	engine->moved = true;
}

void engine_peer_drop(struct engine *engine, struct engine_peer *peer)
{
	struct program *program = &engine->program;
	if (!engine->imm.armed || peer->dropped)
		return;
	peer->dropped = peer->broken = true;
	for (uint32_t i = 0; i < program->given.send_count; i++) {
		const struct send_state *state = &program->sends[i];
		engine->progress.sends_done +=
			program->given.sends[i].peer == peer && !send_is_done(engine, state);
	}
	for (uint32_t i = 0; i < program->given.digest_count; i++)
		program->digests_sent +=
			program->given.digests[i].peer == peer && !program->digests[i].sent;
	engine->moved = true;
}

/* What is queued for the caller of an attempt that is over must not look like the next one's. */
static void events_tidy(struct engine *engine)
{
	uint32_t kept = engine->event_head;
	for (uint32_t i = engine->event_head; i != engine->event_tail; i++) {
		const struct engine_event *event = &engine->events[i % EVENT_ROOM];
		if (event->kind == ENGINE_OP_FAILED || event->kind == ENGINE_STRAY ||
		    event->kind == ENGINE_NIC_LOST)
			engine->events[kept++ % EVENT_ROOM] = *event;
	}
	engine->event_tail = kept;
}

void engine_end(struct engine *engine)
{
	if (!engine->imm.armed)
		return;
	imm_end(&engine->imm);
	post_end(engine);
	doubts_end(engine);
	stage_drop(engine->stage, ++engine->serial);
	for (uint32_t i = 0; i < engine->program.active_count; i++)
		program_staged_free(engine, engine->program.active[i]);
	engine->program.active_count = 0;
	events_tidy(engine);
}

uint32_t engine_receive_missing(const struct engine *engine, uint32_t receive,
				uint32_t *first_op_id_out)
{
	return imm_missing(&engine->imm, receive, first_op_id_out);
}

void engine_progress(const struct engine *engine, struct engine_progress *progress_out)
{
	*progress_out = engine->progress;
}
