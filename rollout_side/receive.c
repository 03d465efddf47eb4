/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rollout rank expects, as the engine's program: thresholds per counter, moves out of ring
 * slots, credits; and what of it is missing, by tensor.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rollout_side/rollout_internal.h"

/* ---------------------------------------------------------------- bases, ring, needs */

static uint32_t slots_of(const struct plan *plan, const struct plan_pair *pair)
{
	return MIN(plan_slot_count(plan), pair->ring_count);
}

int receive_lay_out(struct ws_rollout *rollout, struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	const struct plan *plan = rollout->source.plan;
	uint64_t ops = 0, receives = 0, ring = 0;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;

	for (uint32_t i = 0; i < wire->pair_count; i++) {
		struct pair *pair = &wire->pairs[i];
		pair->op_id_base = (uint32_t)ops;
		pair->receive_base = (uint32_t)receives;
		pair->ring_offset = ring;
		pair->needs = arena_array(&wire->arena, rollout->own.params.count / 64 + 1,
					  sizeof(*pair->needs));
		if (pair->needs == NULL)
			return ws_fail(err, -ENOMEM, "no memory for %u pairs", wire->pair_count);
		ops += pair->plan->op_count;
		receives += pair->plan->counter_count;
		ring += slots_of(plan, pair->plan) * plan_slot_bytes(plan);
		if (ops > OP_ID_MAX + UINT64_C(1))
			return ws_fail(
				err, -ENOSPC,
				"would receive more than %u ops; choose larger ops than %llu "
				"bytes",
				OP_ID_MAX + 1, (unsigned long long)wire->rules.op_bytes);
	}
	wire->op_id_count = ops;
	wire->ring_bytes = ring;
	wire->program.receive_count = (uint32_t)receives;
	while (plan_next_receive(plan, &cursor, &copy)) {
		struct pair *pair = &wire->pairs[wire->pair_of_member[copy.sender]];
		uint32_t param = copy.parts[0].dst_param;
		if (copy.ring < 0)
			pair->needs[param / 64] |= UINT64_C(1) << (param % 64);
	}
	return 0;
}

/* ---------------------------------------------------------------- the program */

struct builder {
	struct ws_rollout *rollout;
	struct receive *receives;
	struct op_range *ranges;
	uint32_t range_count;
	uint32_t *spans_left;
};

static uint8_t *landing_of(const struct ws_rollout *rollout, const struct pair *pair,
			   const struct plan_copy *copy)
{
	const struct plan *plan = rollout->source.plan;

	if (copy->ring < 0)
		return (uint8_t *)rollout->own.targets[copy->parts[0].dst_param].base +
		       copy->parts[0].dst_offset;
	uint64_t slot = (uint64_t)copy->ring % plan_slot_count(plan);
	return (uint8_t *)rollout->ring.base + pair->ring_offset + slot * plan_slot_bytes(plan);
}

/* Out of a slot, part by part, to where the params want it. */
static int scatter_make(struct builder *builder, const struct plan_copy *copy, const uint8_t *slot,
			struct receive *receive)
{
	struct ws_rollout *rollout = builder->rollout;
	struct move *moves = arena_array(&rollout->wire.arena, copy->part_count, sizeof(*moves));

	if (moves == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < copy->part_count; i++) {
		const struct plan_part *part = &copy->parts[i];
		struct move *move = &moves[i];
		int64_t stride = (int64_t)ws_dtype_bytes(part->to);
		move->src = slot + part->wire_offset;
		move->dst =
			(uint8_t *)rollout->own.targets[part->dst_param].base + part->dst_offset;
		move->dim_count = part->dim_count;
		move->from = part->to;
		move->to = part->to;
		for (uint32_t d = part->dim_count; d-- > 0;) {
			move->extent[d] = part->extent[d];
			move->src_stride[d] = stride;
			move->dst_stride[d] = part->dst_stride[d];
			stride *= (int64_t)part->extent[d];
		}
	}
	receive->moves = moves;
	receive->move_count = copy->part_count;
	return 0;
}

static void range_put(struct builder *builder, uint32_t first, uint32_t count, uint32_t receive)
{
	if (builder->range_count > 0) {
		struct op_range *last = &builder->ranges[builder->range_count - 1];
		if (last->receive == receive && last->first_op_id + last->count == first) {
			last->count += count;
			return;
		}
	}
	builder->ranges[builder->range_count++] =
		(struct op_range){.first_op_id = first, .count = count, .receive = receive};
}

static int copy_put(struct builder *builder, const struct pair *pair, const struct plan_copy *copy)
{
	uint32_t index = pair->receive_base + copy->counter;
	struct receive *receive = &builder->receives[index];
	uint32_t first = (uint32_t)(pair->op_id_base + copy->first_op);
	const uint8_t *landing = landing_of(builder->rollout, pair, copy);

	range_put(builder, first, copy->op_count, index);
	if (builder->spans_left != NULL) {
		uint32_t at = receive->span_count - builder->spans_left[index]--;
		((struct span *)(uintptr_t)receive->spans)[at] = (struct span){
			.memory = landing,
			.bytes = copy->bytes,
			.op_bytes = copy->op_bytes,
			.first_op_id = first,
		};
	}
	if (copy->ring < 0)
		return 0;
	if ((uint64_t)copy->ring < pair->plan->credit_count)
		receive->credit_op_id = (uint32_t)(pair->credit_base + (uint64_t)copy->ring);
	return scatter_make(builder, copy, landing, receive);
}

/* What a receive holds back: the forwards of its bucket, if it brings of their bytes. */
static uint32_t gate_of(const struct wire *wire, const struct plan_pair *pair, uint32_t counter)
{
	return pair->feeds && wire->forward_count > 0 ? forward_gate(pair->counters[counter].bucket)
						      : 0;
}

/* Counters of all pairs, and the ops of their digests behind each pair's data ops. */
static void receives_init(struct builder *builder)
{
	struct wire *wire = &builder->rollout->wire;

	for (uint32_t i = 0; i < wire->pair_count; i++) {
		const struct pair *pair = &wire->pairs[i];
		for (uint32_t c = 0; c < pair->plan->counter_count; c++) {
			uint32_t digest =
				(uint32_t)(pair->op_id_base + pair->plan->data_op_count + c);
			builder->receives[pair->receive_base + c] = (struct receive){
				.peer = pair->peer,
				.op_count = pair->plan->counters[c].op_count,
				.bytes = pair->plan->counters[c].bytes,
				.digest_op_id = wire->rules.wire_digests ? digest : UINT32_MAX,
				.credit_op_id = UINT32_MAX,
				.tag = pair->plan->counters[c].bucket,
				.gate = gate_of(wire, pair->plan, c),
			};
		}
	}
}

/* Room for each counter's spans; only digests look at them. */
static int spans_make(struct builder *builder)
{
	struct wire *wire = &builder->rollout->wire;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	uint32_t total = 0;

	if (!wire->rules.wire_digests)
		return 0;
	while (plan_next_receive(builder->rollout->source.plan, &cursor, &copy)) {
		const struct pair *pair = &wire->pairs[wire->pair_of_member[copy.sender]];
		builder->receives[pair->receive_base + copy.counter].span_count++;
		total++;
	}
	struct span *spans = arena_array(&wire->arena, total, sizeof(*spans));
	builder->spans_left = arena_array(&wire->arena, wire->program.receive_count,
					  sizeof(*builder->spans_left));
	if (spans == NULL || builder->spans_left == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < wire->program.receive_count; i++) {
		builder->receives[i].spans = spans;
		builder->spans_left[i] = builder->receives[i].span_count;
		spans += builder->receives[i].span_count;
	}
	return 0;
}

static int copies_put(struct builder *builder)
{
	struct wire *wire = &builder->rollout->wire;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	bool more = plan_next_receive(builder->rollout->source.plan, &cursor, &copy);
	int rc = 0;

	for (uint32_t i = 0; i < wire->pair_count; i++) {
		const struct pair *pair = &wire->pairs[i];
		while (rc == 0 && more && copy.sender == pair->member) {
			rc = copy_put(builder, pair, &copy);
			more = plan_next_receive(builder->rollout->source.plan, &cursor, &copy);
		}
		for (uint32_t c = 0; wire->rules.wire_digests && c < pair->plan->counter_count; c++)
			range_put(builder,
				  (uint32_t)(pair->op_id_base + pair->plan->data_op_count + c), 1,
				  pair->receive_base + c);
	}
	return rc;
}

int receive_program(struct ws_rollout *rollout, struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	uint32_t count = wire->program.receive_count, ranges = count;

	while (plan_next_receive(rollout->source.plan, &cursor, &copy))
		ranges++;
	struct builder builder = {
		.rollout = rollout,
		.receives = arena_array(&wire->arena, count, sizeof(*builder.receives)),
		.ranges = arena_array(&wire->arena, ranges, sizeof(*builder.ranges)),
	};
	int rc = builder.receives == NULL || builder.ranges == NULL ? -ENOMEM : 0;
	if (rc == 0) {
		receives_init(&builder);
		rc = spans_make(&builder);
	}
	if (rc == 0)
		rc = copies_put(&builder);
	if (rc != 0)
		return ws_fail(err, rc, "no memory for a program of %u receives", count);
	wire->program.receives = builder.receives;
	wire->program.ranges = builder.ranges;
	wire->program.range_count = builder.range_count;
	wire->program.op_id_count = (uint32_t)wire->op_id_count;
	return 0;
}

/* ---------------------------------------------------------------- what is missing */

bool receive_unpacks(const struct ws_rollout *rollout, char *text_out, size_t bytes)
{
	struct engine_progress progress;
	char place[16];

	engine_progress(rollout->engine, &progress);
	if (progress.receives_done == progress.receive_count)
		return false;
	snprintf(text_out, bytes, "has all ops, and waits for %s to unpack them",
		 memory_place(&rollout->place, place));
	return true;
}

bool receive_missing(const struct ws_rollout *rollout, char *text_out, size_t bytes)
{
	const struct wire *wire = &rollout->wire;
	char name[ROLLOUT_NAME_BYTES];

	for (uint32_t i = 0; i < wire->program.receive_count; i++) {
		uint32_t first, missing = engine_receive_missing(rollout->engine, i, &first);
		const struct pair *pair = rollout_wire_pair_of_receive(rollout, i);
		if (missing == 0 || pair == NULL)
			continue;
		const struct receive *receive = &wire->program.receives[i];
		snprintf(text_out, bytes, "got %u of %u ops of bucket '%s' from %s",
			 receive->op_count - missing, receive->op_count,
			 plan_bucket_name(rollout->source.plan, receive->tag),
			 rollout_wire_member_name(rollout, pair->member, name));
		return true;
	}
	return false;
}
