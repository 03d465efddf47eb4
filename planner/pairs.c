/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs: each one's segments laid out bucket by bucket, its counters and its digest, and in which
 * order they are walked.
 */
#include "planner/plan_internal.h"

struct pair_state *pairs_find(struct planning *planning, uint32_t sender, uint32_t receiver)
{
	struct plan *plan = planning->plan;
	uint64_t key = (uint64_t)sender << 32 | receiver;
	uint32_t index = idmap_get(&planning->pair_map, key);

	if (index != NONE)
		return plan_pair_state(plan, index);
	struct pair_state *state = vec_add(&plan->pairs, sizeof(*state));
	if (state == NULL ||
	    idmap_put(&planning->pair_map, key, (uint32_t)plan->pairs.count - 1) != 0)
		return NULL;
	state->pair.sender = sender;
	state->pair.receiver = receiver;
	state->pair.feeds = receiver >= plan->trainer_count && fanout_feeds(plan, sender);
	state->segments = arena_array(&plan->arena, plan->kind_count, sizeof(uint32_t));
	return state->segments == NULL ? NULL : state;
}

static int pair_order(const void *a, const void *b)
{
	const struct plan_pair *x = &((const struct pair_state *)a)->pair;
	const struct plan_pair *y = &((const struct pair_state *)b)->pair;

	if (x->sender != y->sender)
		return x->sender < y->sender ? -1 : 1;
	return x->receiver < y->receiver ? -1 : x->receiver > y->receiver;
}

static int by_receiver_order(const void *a, const void *b, void *arg)
{
	const struct pair_state *pairs = arg;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	if (pairs[i].pair.receiver != pairs[j].pair.receiver)
		return pairs[i].pair.receiver < pairs[j].pair.receiver ? -1 : 1;
	return i < j ? -1 : i > j;
}

/* How many rows a segment's counters take. */
static uint32_t counter_rows(const struct plan *plan, const struct segment *segment)
{
	uint32_t direct = segment->direct_op_count > 0;

	return plan->self != PLAN_ALL ? segment->counter_count : direct + (segment->ring_count > 0);
}

/* The rows of a segment's counters in one bucket; returns the place behind them. */
static struct plan_counter *counters_fill(const struct plan *plan, const struct segment *segment,
					  const struct instance *instance, struct plan_counter *row)
{
	const struct stored_copy *copies =
		(const struct stored_copy *)plan->copies.items + segment->copy_first;
	uint32_t digests = plan->input.rules.wire_digests ? 1 : 0;
	struct plan_counter all = {.bucket = instance->bucket, .ring = instance->ring_base};

	if (segment->direct_op_count > 0)
		*row++ = (struct plan_counter){.bucket = instance->bucket,
					       .ring = -1,
					       .op_count = segment->direct_op_count + digests,
					       .bytes = segment->direct_bytes,
					       .gather_bytes = segment->direct_gather_bytes};
	for (uint32_t i = 0; i < segment->copy_count; i++) {
		const struct stored_copy *copy = &copies[i];
		struct plan_counter one = {.bucket = instance->bucket,
					   .ring = (int64_t)instance->ring_base + copy->ring,
					   .op_count = copy->op_count + digests,
					   .bytes = copy->bytes,
					   .gather_bytes = copy->gather ? copy->bytes : 0};
		if (copy->ring < 0)
			continue;
		all.op_count += one.op_count * copy->repeat;
		all.bytes += one.bytes * copy->repeat;
		all.gather_bytes += one.gather_bytes * copy->repeat;
		for (uint32_t r = 0; plan->self != PLAN_ALL && r < copy->repeat; r++, one.ring++)
			*row++ = one;
	}
	if (plan->self == PLAN_ALL && segment->ring_count > 0)
		*row++ = all;
	return row;
}

/* Counts the pair's buckets and the rows of its counters, and makes room for them. */
static int pair_room(struct plan *plan, struct pair_state *state)
{
	uint64_t rows = 0;

	for (uint32_t b = 0; b < plan->bucket_count; b++) {
		uint32_t index = state->segments[plan->buckets[b].kind];
		if (index == 0)
			continue;
		state->instance_count++;
		rows += counter_rows(plan, plan_segment(plan, index - 1));
	}
	if (rows > UINT32_MAX)
		return -ENOMEM;
	state->pair.counter_count = (uint32_t)rows;
	state->pair.counters = arena_array(&plan->arena, rows, sizeof(struct plan_counter));
	state->instances =
		arena_array(&plan->arena, state->instance_count, sizeof(struct instance));
	return state->pair.counters == NULL || state->instances == NULL ? -ENOMEM : 0;
}

/* Lays the pair's segments out, bucket by bucket. */
static int pair_lay(struct plan *plan, struct pair_state *state)
{
	struct plan_pair *pair = &state->pair;

	if (pair_room(plan, state) != 0)
		return -ENOMEM;
	struct plan_counter *row = (struct plan_counter *)pair->counters;
	struct instance *instance = state->instances;
	for (uint32_t b = 0; b < plan->bucket_count; b++) {
		uint32_t index = state->segments[plan->buckets[b].kind];
		if (index == 0)
			continue;
		const struct segment *segment = plan_segment(plan, index - 1);
		*instance = (struct instance){.bucket = b,
					      .segment = index - 1,
					      .counter_base = state->counter_total,
					      .ring_base = pair->ring_count,
					      .op_base = pair->data_op_count,
					      .inbox_base = pair->inbox_bytes};
		row = counters_fill(plan, segment, instance++, row);
		pair->bytes += segment->bytes;
		pair->data_op_count += segment->op_count;
		pair->ring_count += segment->ring_count;
		state->counter_total += segment->counter_count;
		if (pair->receiver < plan->trainer_count)
			pair->inbox_bytes += align_up(segment->bytes, WIRE_ALIGN);
		else
			plan->totals.copies += segment->copy_total;
	}
	pair->op_count = pair->data_op_count;
	if (plan->input.rules.wire_digests)
		pair->op_count += state->counter_total;
	if (pair->ring_count > RING_SLOTS)
		pair->credit_count = pair->ring_count - RING_SLOTS;
	pair->digest = plan_pair_digest(plan, state);
	return 0;
}

/* Op ids are 24 bits wide at each receiver, and credits come back to the sender the same way. */
int pairs_end(struct planning *planning, struct ws_error *err)
{
	struct plan *plan = planning->plan;
	struct pair_state *pairs = plan->pairs.items;
	uint64_t *ops = arena_array(&planning->arena, plan->member_count, sizeof(*ops));
	char name[96];

	if (ops == NULL)
		return plan_no_memory(err);
	if (plan->pairs.count > 0)
		qsort(pairs, plan->pairs.count, sizeof(*pairs), pair_order);
	for (size_t i = 0; i < plan->pairs.count; i++) {
		struct plan_pair *pair = &pairs[i].pair;
		if (pair_lay(plan, &pairs[i]) != 0)
			return plan_no_memory(err);
		ops[pair->receiver] += pair->op_count;
		ops[pair->sender] += pair->credit_count;
		if (pair->receiver < plan->trainer_count)
			plan->totals.maxima_pairs++;
		else
			plan->totals.ops += pair->op_count;
	}
	for (uint32_t i = 0; i < plan->member_count; i++)
		if (ops[i] >= OPS_MAX) {
			plan_member_name(plan, i, name, sizeof(name));
			findings_add(planning->findings, "ops", name,
				     "%s would receive %" PRIu64 " ops, and an imm "
				     "tells %u apart: too many ops, raise op_bytes",
				     name, ops[i], OPS_MAX - 1);
		}
	return 0;
}

/* A sender's place in its walk over the targets, which it starts at its own index; over trainers
 * first, since they wait for its maxima. */
static uint32_t turn(const struct plan *plan, const struct plan_pair *pair)
{
	uint32_t trainers = plan->trainer_count, targets = plan->member_count - trainers;

	if (pair->receiver < trainers)
		return (pair->receiver + trainers - pair->sender) % trainers;
	return trainers + (pair->receiver - trainers + targets - pair->sender % targets) % targets;
}

static int turn_order(const void *a, const void *b, void *arg)
{
	const struct plan *plan = arg;
	uint32_t x = turn(plan, &plan_pair_state(plan, *(const uint32_t *)a)->pair);
	uint32_t y = turn(plan, &plan_pair_state(plan, *(const uint32_t *)b)->pair);

	return x < y ? -1 : x > y;
}

/* What self sends and receives among the pairs, and where a walk puts a copy's parts. */
int pairs_index(struct plan *plan)
{
	const struct pair_state *pairs = plan->pairs.items;
	const struct stored_copy *copies = plan->copies.items;
	uint32_t count = (uint32_t)plan->pairs.count, parts = 1;

	plan->by_receiver = arena_array(&plan->arena, count, sizeof(uint32_t));
	plan->send_order = arena_array(&plan->arena, count, sizeof(uint32_t));
	for (size_t i = 0; i < plan->copies.count; i++)
		parts = MAX(parts, copies[i].part_count);
	plan->scratch = arena_array(&plan->arena, parts, sizeof(*plan->scratch));
	plan->scratch_blocks = arena_array(&plan->arena, parts, sizeof(*plan->scratch_blocks));
	if (plan->scratch_blocks == NULL || plan->by_receiver == NULL || plan->send_order == NULL ||
	    plan->scratch == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		if (plan->self == PLAN_ALL || pairs[i].pair.receiver == plan->self)
			plan->by_receiver[plan->receive_count++] = i;
		if (plan->self != PLAN_ALL && pairs[i].pair.sender != plan->self)
			continue;
		if (plan->send_count == 0)
			plan->send_first = i;
		plan->send_order[plan->send_count++] = i;
	}
	qsort_r(plan->by_receiver, plan->receive_count, sizeof(uint32_t), by_receiver_order,
		plan->pairs.items);
	if (plan->self != PLAN_ALL)
		qsort_r(plan->send_order, plan->send_count, sizeof(uint32_t), turn_order, plan);
	return 0;
}
