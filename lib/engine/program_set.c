/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking a program: everything that it names is checked once here, and everything that an
 * attempt needs is allocated here, so that program.c neither checks nor allocates.
 */
#include <errno.h>

#include "lib/engine/engine_internal.h"

void program_release(struct engine *engine)
{
	struct program *program = &engine->program;
	mem_free(program->sends);
	mem_free(program->digests);
	mem_free(program->gates);
	mem_free(program->checks.index);
	mem_free(program->credits.index);
	mem_free(program->ready_digests.index);
	mem_free(program->active);
	*program = (struct program){0};
	imm_release(&engine->imm);
	for (uint32_t i = 0; i < engine->peer_count; i++)
		engine->peers[i]->first_send = engine->peers[i]->last_send = NONE;
}

/* ------------------------------------------------------------------- moves and tables */

/* The steps from index a to b of one dim, added to the range of a box's offsets; false: too far. */
static bool range_add(int64_t *low, int64_t *high, uint64_t a, uint64_t b, int64_t stride)
{
	int64_t from, to;
	return !__builtin_mul_overflow(a, stride, &from) &&
	       !__builtin_mul_overflow(b, stride, &to) &&
	       !__builtin_add_overflow(*low, MIN(from, to), low) &&
	       !__builtin_add_overflow(*high, MAX(from, to), high);
}

/* Whether bytes [at + low, at + high + 4) lie in the program's tables. */
static bool is_in_tables(const struct engine_program *given, const void *at, int64_t low,
			 int64_t high)
{
	uintptr_t base = (uintptr_t)given->tables, from = (uintptr_t)at;
	int64_t bytes = (int64_t)given->tables_bytes, begin, end;
	return !__builtin_sub_overflow(from, base, &begin) &&
	       !__builtin_add_overflow(begin, high, &end) &&
	       !__builtin_add_overflow(begin, low, &begin) && begin >= 0 &&
	       end <= bytes - (int64_t)sizeof(uint32_t);
}

/* What raises the tables, or looks there, does so inside. */
static bool tables_hold(const struct engine_program *given, const struct move *move)
{
	const struct blocks *blocks = move->blocks;
	int64_t low = 0, high = 0, each = sizeof(uint32_t);

	if (move_element_count(move) == 0)
		return true;
	switch (move->kind) {
	case MOVE_CAST:
	case MOVE_SCALE:
	case MOVE_DEQUANTIZE:
		return true;
	case MOVE_RAISE:
		for (uint32_t d = 0; d < move->dim_count; d++)
			if (!range_add(&low, &high, 0, move->extent[d] - 1, move->dst_stride[d]))
				return false;
		return is_in_tables(given, move->dst, low, high);
	case MOVE_MAXIMA:
	case MOVE_QUANTIZE:
	case MOVE_QUANTIZE_WHOLE:
		break;
	}
	for (uint32_t d = 0; d < move->dim_count; d++) {
		uint64_t last;
		if (blocks->each[d] == 0 ||
		    __builtin_add_overflow(blocks->first[d], move->extent[d] - 1, &last) ||
		    !range_add(&low, &high, blocks->first[d] / blocks->each[d],
			       last / blocks->each[d], blocks->stride[d]))
			return false;
	}
	return !__builtin_mul_overflow(low, each, &low) &&
	       !__builtin_mul_overflow(high, each, &high) &&
	       is_in_tables(given, blocks->table, low, high);
}

static int tables_check(const struct engine_program *given, const struct move *move, uint32_t index,
			struct ws_error *err)
{
	if (tables_hold(given, move))
		return 0;
	return ws_fail(err, -EINVAL, "move %u is to look outside the %llu bytes of the tables",
		       index, (unsigned long long)given->tables_bytes);
}

/* Of a local or a receive. */
static int moves_check(const struct engine_program *given, const struct move *moves, uint32_t count,
		       struct ws_error *err)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		rc = convert_can(&moves[i])
			     ? tables_check(given, &moves[i], i, err)
			     : ws_fail(err, -EINVAL,
				       "move %u can't turn %s into %s in %u dimensions", i,
				       ws_dtype_name(moves[i].from), ws_dtype_name(moves[i].to),
				       moves[i].dim_count);
	return rc;
}

/* Every move of a send, and whether one of them does more than cast. */
static int gather_check(const struct engine *engine, const struct send *send, bool *quantizes_out,
			struct ws_error *err)
{
	uint64_t op_bytes = engine_op_bytes(engine, send->op_bytes);
	int rc = cut_check(send->moves, send->move_count, send->bytes, err);
	for (uint32_t i = 0; rc == 0 && i < send->move_count; i++) {
		const struct move *move = &send->moves[i].move;
		rc = tables_check(&engine->program.given, move, i, err);
		if (rc == 0 && move->kind == MOVE_QUANTIZE_WHOLE &&
		    cut_tears_block(move, send->moves[i].wire_offset, op_bytes))
			rc = ws_fail(err, -EINVAL,
				     "move %u quantizes whole blocks, and ops of %llu bytes tear "
				     "one",
				     i, (unsigned long long)op_bytes);
		*quantizes_out |= move->kind != MOVE_CAST;
	}
	return rc;
}

/* ------------------------------------------------------------------------------- sends */

static int local_check(struct engine *engine, const struct send *send, uint32_t index,
		       struct ws_error *err)
{
	if (send->local == NULL) {
		if (engine->block_count == 0)
			return ws_fail(err, -EINVAL,
				       "send %u is gathered, but the engine has no staging", index);
		int rc = gather_check(engine, send, &engine->program.sends[index].quantizes, err);
		return rc == 0 ? 0 : ws_fail_in(err, rc, "send %u", index);
	}
	const struct region *region = region_find(engine, send->local_region);
	uintptr_t at = (uintptr_t)send->local;
	uintptr_t base = region == NULL ? 0 : (uintptr_t)region->memory.base;
	if (region == NULL || at < base || at - base > region->memory.bytes ||
	    send->bytes > region->memory.bytes - (at - base))
		return ws_fail(err, -EINVAL, "send %u of %llu bytes isn't inside its region %u",
			       index, (unsigned long long)send->bytes, send->local_region);
	return 0;
}

static int send_take(struct engine *engine, uint32_t index, struct ws_error *err)
{
	struct program *program = &engine->program;
	const struct send *send = &program->given.sends[index];
	uint64_t op_bytes = engine_op_bytes(engine, send->op_bytes);
	uint64_t ops = engine_op_count(send->bytes, op_bytes);
	if (op_bytes > engine->op_bytes || op_bytes % 16 != 0)
		return ws_fail(err, -EINVAL,
			       "send %u has ops of %llu bytes: no multiple of 16, or above %llu",
			       index, (unsigned long long)op_bytes,
			       (unsigned long long)engine->op_bytes);
	if (send->peer == NULL || send->bytes == 0 || ops > OP_ID_MAX ||
	    send->first_op_id + ops > (uint64_t)OP_ID_MAX + 1)
		return ws_fail(
			err, -EINVAL,
			"send %u has no peer, no bytes, or op ids above %u: %llu bytes are %llu "
			"ops from id %u",
			index, OP_ID_MAX, (unsigned long long)send->bytes, (unsigned long long)ops,
			send->first_op_id);
	if (send->gate > program->given.gate_count)
		return ws_fail(err, -EINVAL, "send %u waits behind gate %u, but there are %u",
			       index, send->gate, program->given.gate_count);
	int rc = local_check(engine, send, index, err);
	if (rc != 0)
		return rc;
	program->sends[index].op_count = (uint32_t)ops;
	program->sends[index].next = NONE;
	if (send->peer->last_send == NONE) {
		send->peer->first_send = index;
		program->active_room++;
	} else {
		program->sends[send->peer->last_send].next = index;
	}
	send->peer->last_send = index;
	if (!engine->wire_digests)
		return 0;
	if (send->counter >= program->given.digest_count ||
	    program->given.digests[send->counter].peer != send->peer)
		return ws_fail(err, -EINVAL,
			       "send %u adds to digest %u, which isn't one of its peer's", index,
			       send->counter);
	program->digests[send->counter].op_count += (uint32_t)ops;
	program->digests[send->counter].op_left++; /* counts sends until the check below */
	return 0;
}

static int digests_check(struct engine *engine, struct ws_error *err)
{
	const struct engine_program *given = &engine->program.given;
	for (uint32_t i = 0; i < given->digest_count; i++) {
		const struct send_digest *digest = &given->digests[i];
		uint32_t fed = engine->program.digests[i].op_left;
		if (digest->remote_receive >= DIGESTS_MAX)
			return ws_fail(err, -ENOSPC,
				       "digest %u is for receive %u; there is room for %u", i,
				       digest->remote_receive, DIGESTS_MAX);
		if (fed == 0 || fed != digest->send_count || digest->op_id > OP_ID_MAX)
			return ws_fail(err, -EINVAL, "digest %u expects %u sends, but %u feed it",
				       i, digest->send_count, fed);
	}
	return 0;
}

static int receives_check(struct engine *engine, struct ws_error *err)
{
	const struct engine_program *given = &engine->program.given;

	for (uint32_t i = 0; i < given->receive_count; i++) {
		const struct receive *receive = &given->receives[i];
		if (receive->peer == NULL ||
		    (receive->credit_op_id != NONE && receive->credit_op_id > OP_ID_MAX))
			return ws_fail(err, -EINVAL,
				       "receive %u has no peer, or a credit's op id above %u", i,
				       OP_ID_MAX);
		if (receive->gate > given->gate_count)
			return ws_fail(err, -EINVAL,
				       "receive %u holds gate %u shut, but there are %u", i,
				       receive->gate, given->gate_count);
		engine->program.gates[receive->gate].receive_count++;
		int rc = moves_check(given, receive->moves, receive->move_count, err);
		if (rc != 0)
			return ws_fail_in(err, rc, "receive %u", i);
	}
	return 0;
}

static int locals_check(struct engine *engine, struct ws_error *err)
{
	const struct engine_program *given = &engine->program.given;

	if ((uintptr_t)given->tables % sizeof(uint32_t) != 0 ||
	    given->tables_bytes > (given->tables == NULL ? 0 : INT64_MAX))
		return ws_fail(err, -EINVAL, "%llu bytes of tables at %p can't be",
			       (unsigned long long)given->tables_bytes, given->tables);
	for (uint32_t i = 0; i < given->local_count; i++) {
		const struct local *local = &given->locals[i];
		for (uint32_t k = 0; k < ARRAY_SIZE(local->gates); k++) {
			if (local->gates[k] > given->gate_count)
				return ws_fail(err, -EINVAL,
					       "local %u holds gate %u shut, but there are %u", i,
					       local->gates[k], given->gate_count);
			engine->program.gates[local->gates[k]].local_count++;
		}
		int rc = moves_check(given, local->moves, local->move_count, err);
		if (rc != 0)
			return ws_fail_in(err, rc, "local %u", i);
	}
	return 0;
}

static int program_allocate(struct engine *engine, struct ws_error *err)
{
	struct program *program = &engine->program;
	const struct engine_program *given = &program->given;
	program->sends = mem_alloc(given->send_count * sizeof(*program->sends));
	program->digests = mem_alloc(given->digest_count * sizeof(*program->digests));
	program->gates = mem_alloc((given->gate_count + (size_t)1) * sizeof(*program->gates));
	program->checks.index = mem_alloc(given->receive_count * sizeof(uint32_t));
	program->credits.index = mem_alloc(given->receive_count * sizeof(uint32_t));
	program->ready_digests.index = mem_alloc(given->digest_count * sizeof(uint32_t));
	if (program->sends == NULL || program->digests == NULL || program->gates == NULL ||
	    program->checks.index == NULL || program->credits.index == NULL ||
	    program->ready_digests.index == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a program of %u sends and %u receives",
			       given->send_count, given->receive_count);
	return 0;
}

int engine_set_program(struct engine *engine, const struct engine_program *given,
		       struct ws_error *err)
{
	struct program *program = &engine->program;
	if (engine->imm.armed)
		return ws_fail(err, -EINVAL, "a program can't change while an attempt is open");
	if (given->receive_count > DIGESTS_MAX || given->digest_count > DIGESTS_MAX)
		return ws_fail(err, -ENOSPC,
			       "%u receives and %u digests are above the limit %u of each",
			       given->receive_count, given->digest_count, DIGESTS_MAX);
	program_settle(engine);
	program_release(engine);
	program->given = *given;
	int rc = program_allocate(engine, err);
	if (rc == 0)
		rc = locals_check(engine, err);
	for (uint32_t i = 0; i < given->send_count && rc == 0; i++)
		rc = send_take(engine, i, err);
	if (rc == 0)
		rc = digests_check(engine, err);
	if (rc == 0)
		rc = receives_check(engine, err);
	if (rc == 0)
		rc = offload_set(engine, err);
	if (rc == 0)
		rc = imm_set(&engine->imm, given, err);
	if (rc == 0) {
		program->active = mem_alloc(program->active_room * sizeof(struct engine_peer *));
		if (program->active == NULL)
			rc = ws_fail(err, -ENOMEM, "no memory for a list of %u peers",
				     program->active_room);
	}
	if (rc != 0) {
		program_release(engine);
		return rc;
	}
	program->set = true;
	return 0;
}
