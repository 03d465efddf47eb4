/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies become sends: local addresses from the params, remote ones from the rollouts' rows, ring
 * slots and the trainers' inboxes, op ids by adding the receivers' bases.
 */
#include <errno.h>
#include <string.h>

#include "trainer_side/program.h"

/* ---------------------------------------------------------------- one send */

static int remote_direct(const struct ws_trainer *trainer, const struct pair *pair,
			 const struct plan_part *part, struct send *send, struct ws_error *err)
{
	char name[64];

	if (!place_find(pair->rows, pair->row_count, part->dst_param, &send->remote_region,
			&send->remote_offset))
		return ws_fail(err, -EPROTO, "%s didn't say where its param %u lies",
			       trainer_wire_member_name(trainer, pair->member, name),
			       part->dst_param);
	send->remote_offset += part->dst_offset;
	return 0;
}

static int gather_make(struct ws_trainer *trainer, const struct plan_copy *copy, struct send *send,
		       struct ws_error *err)
{
	struct gather_move *moves =
		arena_array(&trainer->wire.arena, copy->part_count, sizeof(*moves));

	if (moves == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the moves of a copy");
	for (uint32_t i = 0; i < copy->part_count; i++) {
		const struct plan_part *part = &copy->parts[i];
		struct move *move = &moves[i].move;
		int64_t stride = (int64_t)ws_dtype_bytes(part->to);
		int rc = quantize_part(trainer, part, move, err);
		if (rc != 0)
			return rc;
		moves[i].wire_offset = part->wire_offset;
		move->dim_count = part->dim_count;
		move->from = part->from;
		move->to = part->to;
		for (uint32_t d = part->dim_count; d-- > 0;) {
			move->extent[d] = part->extent[d];
			move->src_stride[d] = part->src_stride[d];
			move->dst_stride[d] = stride;
			stride *= (int64_t)part->extent[d];
		}
		if (part->whole && whole_can(trainer, &moves[i], copy->op_bytes))
			move->kind = MOVE_QUANTIZE_WHOLE;
	}
	send->moves = moves;
	send->move_count = copy->part_count;
	return 0;
}

/* What its parts wait for: nothing, where they find what they need. */
static uint32_t gate_of(const struct plan_copy *copy, const struct send *send)
{
	for (uint32_t i = 0; i < send->move_count; i++)
		switch (copy->parts[i].kind) {
		case PART_CAST:
			break;
		case PART_CODES:
			if (send->moves[i].move.kind == MOVE_QUANTIZE_WHOLE)
				break;
			return gate_raised(copy->bucket);
		case PART_SCALES:
			return gate_raised(copy->bucket);
		case PART_MAXIMA:
			return gate_found(copy->bucket);
		}
	return 0;
}

static int send_make(struct ws_trainer *trainer, const struct plan_copy *copy, struct send *send,
		     struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	struct pair *pair = &wire->pairs[wire->pair_of_member[copy->receiver]];

	*send = (struct send){
		.peer = pair->peer,
		.bytes = copy->bytes,
		.op_bytes = copy->op_bytes,
		.first_op_id = (uint32_t)(pair->op_id_base + copy->first_op),
		.credit_op_id = UINT32_MAX,
		.counter = pair->digest_base + copy->counter,
		.bucket = copy->bucket,
	};
	int rc = 0;
	if (copy->gather) {
		rc = gather_make(trainer, copy, send, err);
	} else {
		const struct plan_part *part = &copy->parts[0];
		send->local =
			(const uint8_t *)trainer->memories[part->src_param].base + part->src_offset;
		send->local_region = trainer->places[part->src_param].region;
	}
	if (rc == 0)
		send->gate = gate_of(copy, send);
	if (rc == 0 && copy->parts[0].kind == PART_MAXIMA) {
		send->remote_region = pair->ring_region;
		send->remote_offset = pair->slot_offset[0] + copy->inbox_offset;
		return 0;
	}
	if (rc != 0 || copy->ring < 0)
		return rc != 0 ? rc : remote_direct(trainer, pair, &copy->parts[0], send, err);
	uint64_t ring = (uint64_t)copy->ring;
	uint32_t slot_count = plan_slot_count(trainer->source.plan);
	send->remote_region = pair->ring_region;
	send->remote_offset = pair->slot_offset[ring % slot_count];
	if (ring >= slot_count)
		send->credit_op_id = (uint32_t)(pair->credit_base + ring - slot_count);
	return 0;
}

/* ---------------------------------------------------------------- digests */

static int digests_make(struct ws_trainer *trainer, const struct send *sends, uint32_t send_count,
			struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	uint32_t count = 0;

	if (!wire->rules.wire_digests)
		return 0;
	for (uint32_t i = 0; i < wire->pair_count; i++)
		count += wire->pairs[i].plan->counter_count;
	struct send_digest *digests = arena_array(&wire->arena, count, sizeof(*digests));
	if (digests == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u digests", count);
	for (uint32_t i = 0; i < wire->pair_count; i++) {
		const struct pair *pair = &wire->pairs[i];
		for (uint32_t c = 0; c < pair->plan->counter_count; c++)
			digests[pair->digest_base + c] = (struct send_digest){
				.peer = pair->peer,
				.op_id = (uint32_t)(pair->op_id_base + pair->plan->data_op_count +
						    c),
				.remote_receive = pair->receive_base + c,
			};
	}
	for (uint32_t i = 0; i < send_count; i++)
		digests[sends[i].counter].send_count++;
	wire->program.digests = digests;
	wire->program.digest_count = count;
	return 0;
}

/* ---------------------------------------------------------------- all */

int program_make(struct ws_trainer *trainer, struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	const struct plan *plan = trainer->source.plan;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	struct whole whole;
	uint32_t count = 0;

	int rc = quantize_make(trainer, err);
	if (rc != 0)
		return rc;
	while (plan_next_send(plan, &cursor, &copy))
		count++;
	struct send *sends = arena_array(&wire->arena, count, sizeof(*sends));
	wire->send_bucket = arena_array(&wire->arena, count, sizeof(*wire->send_bucket));
	wire->send_param = arena_array(&wire->arena, count, sizeof(*wire->send_param));
	if (sends == NULL || wire->send_bucket == NULL || wire->send_param == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a program of %u sends", count);
	rc = whole_begin(&whole, wire, err);
	cursor = (struct plan_cursor){0};
	for (uint32_t i = 0; rc == 0 && i < count && plan_next_send(plan, &cursor, &copy); i++) {
		rc = send_make(trainer, &copy, &sends[i], err);
		if (rc == 0)
			whole_send(&whole, wire, &copy, &sends[i]);
		wire->send_bucket[i] = copy.bucket;
		wire->send_param[i] = copy.parts[0].src_param;
	}
	whole_end(&whole, wire);
	if (rc != 0)
		return rc;
	wire->program.sends = sends;
	wire->program.send_count = count;
	rc = digests_make(trainer, sends, count, err);
	return rc != 0 ? rc : receives_program(trainer, err);
}
