/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt of a program.  Sends: one FIFO per peer, peers served in turns, so that one that
 * waits for its ready or for a credit holds up nobody else.  An op of a gathered send takes a
 * staging block, goes to the stage thread, and is posted from the block, which is free again when
 * the op is reported.  Nothing is gathered that couldn't be posted at once, so a full staging
 * always empties.
 */
#include <errno.h>
#include <string.h>

#include "lib/engine/engine_internal.h"

/* ------------------------------------------------------------------------ issuing */

static struct block *block_take(struct engine *engine, uint32_t *index_out)
{
	if (engine->block_free == NONE)
		return NULL;
	*index_out = engine->block_free;
	struct block *block = &engine->blocks[*index_out];
	engine->block_free = block->next;
	engine->blocks_used++;
	engine->progress.staging_high_bytes =
		MAX(engine->progress.staging_high_bytes, engine->blocks_used * engine->op_bytes);
	return block;
}

void program_block_free(struct engine *engine, uint32_t block)
{
	engine->blocks[block].next = engine->block_free;
	engine->block_free = block;
	engine->blocks_used--;
}

static void staged_free(struct engine *engine, struct engine_peer *peer)
{
	while (peer->staged_first != NONE) {
		uint32_t block = peer->staged_first;
		peer->staged_first = engine->blocks[block].next;
		program_block_free(engine, block);
	}
	peer->staged_last = NONE;
}

/* The send that the peer's next op belongs to, NULL where there is none or it must wait. */
static const struct send *send_next(const struct engine *engine, const struct engine_peer *peer)
{
	if (peer->send == NONE)
		return NULL;
	const struct send *send = &engine->program.given.sends[peer->send];
	if (send->credit_op_id != NONE && !imm_has(&engine->imm, send->credit_op_id))
		return NULL;
	if (!gate_is_open(engine, send->gate))
		return NULL;
	return send;
}

static void send_advance(struct engine *engine, struct engine_peer *peer)
{
	const struct send_state *state = &engine->program.sends[peer->send];
	if (++peer->op < state->op_count)
		return;
	peer->op = 0;
	peer->send = state->next;
}

static int data_post(struct engine *engine, struct engine_peer *peer, enum op_kind kind,
		     uint32_t index, uint32_t op, uint32_t block)
{
	const struct send *send = &engine->program.given.sends[index];
	uint64_t offset = op * engine->op_bytes;
	const struct post post = {
		.kind = kind,
		.peer = peer,
		.index = index,
		.op_id = send->first_op_id + op,
		.block = block,
		.local = kind == OP_DIRECT ? (const uint8_t *)send->local + offset
					   : engine_block_memory(engine, block),
		.local_region = kind == OP_DIRECT ? send->local_region : 0,
		.remote_region = send->remote_region,
		.remote_offset = send->remote_offset + offset,
		.bytes = cut_op_bytes(send->bytes, engine->op_bytes, op),
	};
	/* An offset that wrapped can't be inside. */
	if (post.remote_offset < offset)
		return post_op(
			engine,
			&(struct post){.peer = peer, .op_id = post.op_id, .bytes = UINT64_MAX});
	int taken = post_op(engine, &post);
	if (taken == 1 && engine->program.first_post_ns == 0)
		engine->program.first_post_ns = engine->now_ns;
	return taken;
}

/* Each of these three tries one op of the peer; true if it went on. */
static bool issue_staged(struct engine *engine, struct engine_peer *peer)
{
	uint32_t index = peer->staged_first;
	if (index == NONE || !post_has_room(engine))
		return false;
	struct block *block = &engine->blocks[index];
	uint32_t next = block->next;
	if (data_post(engine, peer, OP_GATHERED, block->send, block->op, index) != 1)
		return false;
	peer->staged_first = next;
	if (next == NONE)
		peer->staged_last = NONE;
	return true;
}

static bool issue_direct(struct engine *engine, struct engine_peer *peer)
{
	const struct send *send = send_next(engine, peer);
	if (send == NULL || send->local == NULL || !post_has_room(engine))
		return false;
	if (engine->wire_digests && !stage_has_room(engine->stage))
		return false;
	if (data_post(engine, peer, OP_DIRECT, peer->send, peer->op, NONE) != 1)
		return false;
	if (engine->wire_digests)
		stage_put(engine->stage, &(struct stage_request){.kind = STAGE_HASH,
								 .serial = engine->serial,
								 .index = peer->send,
								 .op = peer->op});
	send_advance(engine, peer);
	return true;
}

static bool issue_gather(struct engine *engine, struct engine_peer *peer)
{
	const struct send *send = send_next(engine, peer);
	uint32_t index;
	if (send == NULL || send->local != NULL || !stage_has_room(engine->stage))
		return false;
	struct block *block = block_take(engine, &index);
	if (block == NULL)
		return false;
	*block = (struct block){.next = NONE, .send = peer->send, .op = peer->op};
	peer->gathering++;
	stage_put(engine->stage, &(struct stage_request){.kind = STAGE_GATHER,
							 .serial = engine->serial,
							 .index = peer->send,
							 .op = peer->op,
							 .block = index});
	send_advance(engine, peer);
	return true;
}

/* Takes peers off the list that have nothing left to issue. */
static void active_tidy(struct engine *engine)
{
	struct program *program = &engine->program;
	for (uint32_t i = 0; i < program->active_count;) {
		struct engine_peer *peer = program->active[i];
		if (peer->broken) {
			staged_free(engine, peer);
			peer->send = NONE;
		}
		if (peer->send == NONE && peer->gathering == 0 && peer->staged_first == NONE)
			program->active[i] = program->active[--program->active_count];
		else
			i++;
	}
}

static void rail_limit_set(struct engine *engine)
{
	const struct program *program = &engine->program;
	uint32_t writing = 0, limit = 0;
	for (uint32_t i = 0; i < program->active_count; i++)
		writing += program->active[i]->ready && !program->active[i]->broken;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		limit = MAX(limit, engine->nics[i].limit);
	engine->rail_limit = MAX(2, limit / MAX(1, writing));
}

static void issue_sends(struct engine *engine)
{
	struct program *program = &engine->program;
	/* Bounded: every turn but the last takes room of a NIC, a block or the stage ring. */
	for (bool any = true; any;) {
		any = false;
		for (uint32_t i = 0; i < program->active_count; i++) {
			struct engine_peer *peer =
				program->active[(program->turn + i) % program->active_count];
			if (!peer->ready || peer->broken)
				continue;
			if (engine_event_room(engine) < 2 + engine->nic_count)
				return;
			bool went_on = issue_staged(engine, peer);
			if (!peer->broken)
				went_on |= issue_direct(engine, peer);
			if (!peer->broken)
				went_on |= issue_gather(engine, peer);
			any |= went_on;
		}
		program->turn++;
		engine->moved |= any;
	}
}

/* ------------------------------------------------------------ digests and credits */

static bool due_has(const struct due *due)
{
	return due->head < due->tail;
}

static void due_put(struct due *due, uint32_t index)
{
	due->index[due->tail++] = index;
}

static void issue_checks(struct engine *engine)
{
	struct due *due = &engine->program.checks;
	while (due_has(due) && stage_has_room(engine->stage)) {
		stage_put(engine->stage, &(struct stage_request){.kind = STAGE_RECEIVE,
								 .serial = engine->serial,
								 .index = due->index[due->head++]});
		engine->moved = true;
	}
}

static void issue_credits(struct engine *engine)
{
	struct due *due = &engine->program.credits;
	while (due_has(due) && engine_event_room(engine) >= 2 + engine->nic_count) {
		uint32_t index = due->index[due->head];
		const struct receive *receive = &engine->program.given.receives[index];
		if (!receive->peer->broken &&
		    post_op(engine, &(struct post){.kind = OP_CREDIT,
						   .peer = receive->peer,
						   .index = index,
						   .op_id = receive->credit_op_id,
						   .remote_offset = CREDIT_OFFSET}) == 0)
			return;
		due->head++;
		engine->moved = true;
	}
}

static void issue_digests(struct engine *engine)
{
	struct due *due = &engine->program.ready_digests;
	while (due_has(due) && engine_event_room(engine) >= 2 + engine->nic_count) {
		uint32_t index = due->index[due->head];
		const struct send_digest *digest = &engine->program.given.digests[index];
		uint8_t *value =
			(uint8_t *)engine->own.base + OUTGOING_OFFSET + 8 * (uint64_t)index;
		memcpy(value, &engine->program.digests[index].sum, 8);
		if (!digest->peer->broken &&
		    post_op(engine,
			    &(struct post){.kind = OP_DIGEST,
					   .peer = digest->peer,
					   .index = index,
					   .op_id = digest->op_id,
					   .local = value,
					   .remote_offset = 8 * (uint64_t)digest->remote_receive,
					   .bytes = 8}) == 0)
			return;
		due->head++;
		engine->moved = true;
	}
}

void program_issue(struct engine *engine)
{
	rail_limit_set(engine);
	locals_issue(engine);
	issue_checks(engine);
	issue_credits(engine);
	issue_digests(engine);
	issue_sends(engine);
	active_tidy(engine);

	struct program *program = &engine->program;
	if (!program->sends_done_told && engine->progress.sends_done == program->given.send_count &&
	    program->digests_sent == program->given.digest_count &&
	    program->locals_done == program->given.local_count && engine_event_room(engine) > 0) {
		program->sends_done_told = engine->progress.all_sent = true;
		engine_emit(engine, &(struct engine_event){.kind = ENGINE_SENDS_DONE, .nic = NONE});
	}
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
	case IMM_REACHED:
		if (engine->progress.first_imm_ns == 0)
			engine->progress.first_imm_ns = engine->now_ns;
		engine->progress.last_imm_ns = engine->now_ns;
		break;
	case IMM_CREDIT:
		return;
	case IMM_STALE:
	case IMM_DUPLICATE:
	case IMM_UNKNOWN:
	case IMM_NO_ATTEMPT:
		stray_report(engine, nic, event, verdict, receive);
		return;
	}
	if (verdict != IMM_REACHED)
		return;
	const struct receive *given = &engine->program.given.receives[receive];
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
		engine->progress.post_ns = engine->now_ns - engine->program.first_post_ns;
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
	if (request->serial != engine->serial) {
		/* The attempt has ended: only the block matters. */
		if (request->kind == STAGE_GATHER)
			program_block_free(engine, request->block);
		return;
	}
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
	program->first_post_ns = 0;
	engine->serial++;
	stage_cancel(engine->stage, engine->serial);
	locals_arm(engine);
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
	struct stage_result result;
	if (!engine->imm.armed)
		return;
	imm_end(&engine->imm);
	doubts_end(engine);
	engine->serial++;
	stage_cancel(engine->stage, engine->serial);
	/* Bounded by the ring: nothing new was put. */
	while (stage_take(engine->stage, &result))
		program_staged(engine, &result);
	for (uint32_t i = 0; i < engine->program.active_count; i++)
		staged_free(engine, engine->program.active[i]);
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
