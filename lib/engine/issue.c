/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one step of an attempt sends.  One FIFO of sends per peer, peers served in turns, so that
 * one that waits for its ready or for a credit holds up nobody else.  NICs get what they are dealt
 * when all is dealt.  An op of a gathered send takes a staging block, goes to the stage
 * thread, and is posted from the block, which is free again when the op is reported.  Nothing is
 * gathered that couldn't be posted at once, so a full staging always empties.
 */
#include <string.h>

#include "lib/engine/engine_internal.h"

/* -------------------------------------------------------------------------- sends */

/* One that is free. */
static struct block *block_take(struct engine *engine, uint32_t *index_out)
{
	*index_out = engine->block_free;
	struct block *block = &engine->blocks[*index_out];
	engine->block_free = block->next;
	engine->blocks_used++;
	engine->progress.staging_high_bytes =
		MAX(engine->progress.staging_high_bytes, engine->blocks_used * engine->op_bytes);
	return block;
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
	uint64_t op_bytes = engine_op_bytes(engine, send->op_bytes), offset = op * op_bytes;
	const struct post post = {
		.kind = kind,
		.peer = peer,
		.index = index,
		.op_id = send->first_op_id + op,
		.block = block,
		.local = kind == OP_DIRECT ? (const uint8_t *)send->local + offset
					   : engine_block_memory(engine, block),
		.local_region = kind == OP_DIRECT ? send->local_region : engine->staging_region,
		.remote_region = send->remote_region,
		.remote_offset = send->remote_offset + offset,
		.bytes = cut_op_bytes(send->bytes, op_bytes, op),
	};
	/* An offset that wrapped can't be inside. */
	if (post.remote_offset < offset)
		return post_op(
			engine,
			&(struct post){.peer = peer, .op_id = post.op_id, .bytes = UINT64_MAX});
	return post_op(engine, &post);
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
	if (engine->wire_digests && stage_room(engine->stage) == 0)
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
	if (send == NULL || send->local != NULL || stage_room(engine->stage) == 0)
		return false;
	if (engine->block_free == NONE || peer->blocks >= engine->block_limit)
		return false;
	if (!offload_take_op(engine, peer->send, peer->op))
		return false;
	struct block *block = block_take(engine, &index);
	*block = (struct block){.next = NONE, .send = peer->send, .op = peer->op, .peer = peer};
	peer->blocks++;
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
			program_staged_free(engine, peer);
			offload_skip(engine, peer);
			peer->send = NONE;
		}
		if (peer->send == NONE && peer->gathering == 0 && peer->staged_first == NONE)
			program->active[i] = program->active[--program->active_count];
		else
			i++;
	}
}

static void limits_set(struct engine *engine)
{
	const struct program *program = &engine->program;
	uint32_t writing = 0, limit = 0;
	/* Who isn't ready yet has its share already: the first one may stand still by then. */
	for (uint32_t i = 0; i < program->active_count; i++)
		writing += !program->active[i]->broken;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		limit = MAX(limit, engine->nics[i].limit);
	engine->rail_limit = MAX(2, limit / MAX(1, writing));
	engine->block_limit = MAX(1, engine->block_count / MAX(1, writing));
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

static void issue_checks(struct engine *engine)
{
	struct due *due = &engine->program.checks;
	while (due_has(due) && stage_room(engine->stage) > 0) {
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
	limits_set(engine);
	post_flush(engine); /* a rail that still refuses is dealt nothing more */
	offload_turn(engine);
	locals_issue(engine);
	issue_checks(engine);
	issue_credits(engine);
	issue_digests(engine);
	issue_sends(engine);
	post_flush(engine);
	active_tidy(engine);
	offload_load(engine);

	struct program *program = &engine->program;
	if (!program->sends_done_told && engine->progress.sends_done == program->given.send_count &&
	    program->digests_sent == program->given.digest_count &&
	    program->locals_done == program->given.local_count && engine_event_room(engine) > 0) {
		program->sends_done_told = engine->progress.all_sent = true;
		engine_emit(engine, &(struct engine_event){.kind = ENGINE_SENDS_DONE, .nic = NONE});
	}
}
