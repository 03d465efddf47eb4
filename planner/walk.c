/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a plan.  A copy is stored once for all layers that are alike; a walk repeats it bucket
 * by bucket and moves its numbers: ops, counters and ring copies by what the pair had before,
 * params by whole layers.
 */
#include "planner/plan_internal.h"

uint64_t plan_digest(const struct plan *plan)
{
	return plan->digest;
}

const struct plan_totals *plan_totals(const struct plan *plan)
{
	return &plan->totals;
}

uint32_t plan_family_count(const struct plan *plan)
{
	return plan->family_count;
}

const struct plan_family *plan_family(const struct plan *plan, uint32_t index)
{
	return &plan->families[index];
}

uint32_t plan_bucket_count(const struct plan *plan)
{
	return plan->bucket_count;
}

const char *plan_bucket_name(const struct plan *plan, uint32_t bucket)
{
	return plan->buckets[bucket].name;
}

struct pair_state *plan_pair_state(const struct plan *plan, uint32_t index)
{
	return (struct pair_state *)plan->pairs.items + index;
}

struct segment *plan_segment(const struct plan *plan, uint32_t index)
{
	return (struct segment *)plan->segments.items + index;
}

uint32_t plan_send_pair_count(const struct plan *plan)
{
	return plan->send_count;
}

const struct plan_pair *plan_send_pair(const struct plan *plan, uint32_t index)
{
	return &plan_pair_state(plan, plan->send_first + index)->pair;
}

uint32_t plan_receive_pair_count(const struct plan *plan)
{
	return plan->receive_count;
}

const struct plan_pair *plan_receive_pair(const struct plan *plan, uint32_t index)
{
	return &plan_pair_state(plan, plan->by_receiver[index])->pair;
}

uint32_t plan_slot_count(const struct plan *plan)
{
	(void)plan;
	return RING_SLOTS;
}

uint64_t plan_slot_bytes(const struct plan *plan)
{
	return plan->slot_bytes;
}

static uint64_t part_digest(const struct plan_part *part, const struct part_rules *rules,
			    uint64_t seed)
{
	uint64_t words[8 + 6 * BOX_DIM_MAX], count = 0;

	words[count++] = (uint64_t)part->src_param << 32 | part->dst_param;
	words[count++] = (uint64_t)rules->src_rule << 32 | rules->dst_rule;
	words[count++] = (uint64_t)rules->src_each << 32 | rules->dst_each;
	words[count++] = (uint64_t)part->dim_count << 32 | (uint64_t)part->from << 16 |
			 (uint64_t)part->to << 8 | (uint64_t)part->whole << 7 | part->kind;
	words[count++] = part->src_offset;
	words[count++] = part->dst_offset;
	words[count++] = part->wire_offset;
	for (uint32_t d = 0; d < MIN(part->dim_count, BOX_DIM_MAX); d++) {
		words[count++] = part->extent[d];
		words[count++] = (uint64_t)part->src_stride[d];
		words[count++] = (uint64_t)part->dst_stride[d];
		if (part->blocks == NULL)
			continue;
		words[count++] = part->blocks->each[d];
		words[count++] = part->blocks->first[d];
		words[count++] = (uint64_t)part->blocks->stride[d];
	}
	if (part->blocks != NULL)
		words[count++] = part->blocks->table_offset;
	return digest_bytes(words, count * sizeof(*words), seed);
}

static uint64_t turn_digest(const struct block_turn *turn, uint64_t seed)
{
	const uint64_t words[] = {turn->each, turn->first, turn->step, (uint64_t)turn->stride,
				  turn->dim};

	return digest_bytes(words, sizeof(words), seed);
}

/* Where a trainer's maxima of a bucket begin among all, and behind the last one where they end; 0
 * for others. */
static uint64_t tables_at(const struct plan *plan, uint32_t member, uint32_t bucket)
{
	bool known = plan->tables != NULL && member < plan->trainer_count &&
		     plan->tables[member].known && bucket <= plan->bucket_count;

	return known ? plan->tables[member].bucket[bucket] : 0;
}

uint64_t plan_segment_digest(const struct plan *plan, const struct segment *segment)
{
	const struct stored_copy *copy =
		(const struct stored_copy *)plan->copies.items + segment->copy_first;
	uint64_t chain = segment->kind;

	for (uint32_t i = 0; i < segment->copy_count; i++, copy++) {
		const uint64_t words[] = {copy->bytes,
					  copy->op_bytes,
					  copy->repeat,
					  (uint64_t)copy->src_step,
					  (uint64_t)copy->dst_step,
					  (uint64_t)copy->first_op << 32 | copy->op_count,
					  (uint64_t)copy->counter << 32 | copy->part_count,
					  (uint64_t)(uint32_t)copy->ring << 1 | copy->gather};
		chain = digest_bytes(words, sizeof(words), chain);
		if (copy->turn != NULL)
			chain = turn_digest(copy->turn, chain);
		for (uint32_t p = 0; p < copy->part_count; p++) {
			size_t at = copy->part_first + p;
			chain = part_digest((const struct plan_part *)plan->parts.items + at,
					    (const struct part_rules *)plan->part_rules.items + at,
					    chain);
		}
	}
	return chain;
}

uint64_t plan_pair_digest(const struct plan *plan, const struct pair_state *state)
{
	const struct plan_pair *pair = &state->pair;
	uint64_t chain = plan->digest;

	for (uint32_t i = 0; i < state->instance_count; i++) {
		const struct instance *instance = &state->instances[i];
		const struct segment *segment = plan_segment(plan, instance->segment);
		/* Who needs nothing of a trainer's tables may not know them. */
		uint64_t sender = 0, receiver = 0;
		if (segment->of_tables) {
			sender = tables_at(plan, pair->sender, instance->bucket);
			receiver = tables_at(plan, pair->receiver, instance->bucket);
		}
		const uint64_t words[] = {segment->digest, instance->bucket, sender, receiver};
		chain = digest_bytes(words, sizeof(words), chain);
	}
	const uint64_t words[] = {(uint64_t)pair->feeds << 32 | pair->sender,
				  pair->receiver,
				  pair->bytes,
				  pair->data_op_count,
				  pair->op_count,
				  state->counter_total,
				  pair->ring_count,
				  pair->credit_count,
				  pair->inbox_bytes,
				  RING_SLOTS,
				  plan->slot_bytes};
	return digest_bytes(words, sizeof(words), chain);
}

/* Where the maxima of a bucket begin, at both ends. */
struct tables_base {
	uint64_t sender, receiver;
};

static void part_tables(struct plan_part *part, struct plan_blocks *blocks,
			const struct tables_base *base)
{
	switch (part->kind) {
	case PART_CAST:
		return;
	case PART_CODES:
		*blocks = *part->blocks;
		blocks->table_offset += base->sender;
		part->blocks = blocks;
		return;
	case PART_SCALES:
		part->src_offset += base->sender;
		return;
	case PART_MAXIMA:
		part->src_offset += base->sender;
		part->dst_offset += base->receiver;
		return;
	}
}

/* Puts the parts of a copy into the plan's scratch, with their params of this layer. */
static void parts_move(const struct plan *plan, const struct stored_copy *stored, enum side source,
		       int32_t from, int32_t to, const struct tables_base *base)
{
	const struct plan_part *parts =
		(const struct plan_part *)plan->parts.items + stored->part_first;
	const struct part_rules *rules =
		(const struct part_rules *)plan->part_rules.items + stored->part_first;

	for (uint32_t i = 0; i < stored->part_count; i++) {
		struct plan_part *part = &plan->scratch[i];
		*part = parts[i];
		part_tables(part, &plan->scratch_blocks[i], base);
		if (from == to || part->kind == PART_MAXIMA)
			continue;
		part->src_param = layers_move(plan, source, rules[i].src_rule, rules[i].src_each,
					      part->src_param, from, to);
		part->dst_param = layers_move(plan, SIDE_ROLLOUT, rules[i].dst_rule,
					      rules[i].dst_each, part->dst_param, from, to);
	}
}

void plan_blocks_turn(struct plan_blocks *blocks, const struct block_turn *turn,
		      uint32_t repetition)
{
	uint64_t at = turn->first + repetition * turn->step;

	blocks->table_offset += at / turn->each * (uint64_t)turn->stride * ws_dtype_bytes(WS_U32);
	if (turn->dim != NONE)
		blocks->first[turn->dim] = at % turn->each;
}

/* The copy as it is in the bucket of an instance; its parts are the plan's scratch. */
static void copy_at(const struct plan *plan, const struct pair_state *state,
		    const struct instance *instance, uint32_t index, uint32_t repetition,
		    struct plan_copy *copy_out)
{
	const struct segment *segment = plan_segment(plan, instance->segment);
	const struct stored_copy *stored =
		(const struct stored_copy *)plan->copies.items + segment->copy_first + index;

	*copy_out = (struct plan_copy){.bucket = instance->bucket,
				       .sender = state->pair.sender,
				       .receiver = state->pair.receiver,
				       .bytes = stored->bytes,
				       .op_bytes = stored->op_bytes,
				       .first_op = instance->op_base + stored->first_op +
						   (uint64_t)repetition * stored->op_count,
				       .op_count = stored->op_count,
				       .counter = instance->counter_base + stored->counter +
						  (stored->ring < 0 ? 0 : repetition),
				       .gather = stored->gather,
				       .inbox_offset = instance->inbox_base,
				       .ring = stored->ring < 0 ? -1
								: (int64_t)instance->ring_base +
									  stored->ring + repetition,
				       .part_count = stored->part_count,
				       .parts = plan->scratch};
	const struct tables_base base = {
		.sender = tables_at(plan, state->pair.sender, instance->bucket),
		.receiver = tables_at(plan, state->pair.receiver, instance->bucket)};
	parts_move(plan, stored,
		   state->pair.sender < plan->trainer_count ? SIDE_TRAINER : SIDE_ROLLOUT,
		   plan->kinds[segment->kind].layer, plan->buckets[instance->bucket].layer, &base);
	plan->scratch[0].src_offset += repetition * (uint64_t)stored->src_step;
	plan->scratch[0].dst_offset += repetition * (uint64_t)stored->dst_step;
	if (stored->turn != NULL)
		plan_blocks_turn(&plan->scratch_blocks[0], stored->turn, repetition);
}

/* Takes the next copy of an instance; false when it has no more. */
static bool next_of(const struct plan *plan, const struct pair_state *state,
		    const struct instance *instance, struct plan_cursor *cursor,
		    struct plan_copy *copy_out)
{
	const struct segment *segment = plan_segment(plan, instance->segment);
	const struct stored_copy *copies =
		(const struct stored_copy *)plan->copies.items + segment->copy_first;

	if (cursor->copy == segment->copy_count)
		return false;
	copy_at(plan, state, instance, cursor->copy, cursor->repetition, copy_out);
	if (++cursor->repetition == copies[cursor->copy].repeat) {
		cursor->repetition = 0;
		cursor->copy++;
	}
	return true;
}

/* The pair's segment in a bucket, or NULL. */
static const struct instance *instance_find(const struct pair_state *state, uint32_t bucket)
{
	uint32_t lo = 0, hi = state->instance_count;

	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		if (state->instances[middle].bucket < bucket)
			lo = middle + 1;
		else
			hi = middle;
	}
	return lo < state->instance_count && state->instances[lo].bucket == bucket
		       ? &state->instances[lo]
		       : NULL;
}

bool plan_next_send(const struct plan *plan, struct plan_cursor *cursor, struct plan_copy *copy_out)
{
	if (plan->self == PLAN_ALL)
		return false;
	for (; cursor->bucket < plan->bucket_count; cursor->bucket++, cursor->pair = 0)
		for (; cursor->pair < plan->send_count; cursor->pair++, cursor->copy = 0) {
			const struct pair_state *state =
				plan_pair_state(plan, plan->send_order[cursor->pair]);
			const struct instance *instance = instance_find(state, cursor->bucket);
			if (instance != NULL && next_of(plan, state, instance, cursor, copy_out))
				return true;
		}
	return false;
}

bool plan_next_receive(const struct plan *plan, struct plan_cursor *cursor,
		       struct plan_copy *copy_out)
{
	if (plan->self == PLAN_ALL)
		return false;
	for (; cursor->pair < plan->receive_count; cursor->pair++, cursor->instance = 0) {
		const struct pair_state *state =
			plan_pair_state(plan, plan->by_receiver[cursor->pair]);
		for (; cursor->instance < state->instance_count;
		     cursor->instance++, cursor->copy = 0)
			if (next_of(plan, state, &state->instances[cursor->instance], cursor,
				    copy_out))
				return true;
	}
	return false;
}

bool plan_next_local(const struct plan *plan, struct plan_cursor *cursor,
		     struct plan_local *local_out)
{
	for (; cursor->bucket < plan->bucket_count; cursor->bucket++, cursor->copy = 0) {
		const struct unit_bucket *bucket = &plan->buckets[cursor->bucket];
		const struct bucket_kind *kind = &plan->kinds[bucket->kind];
		if (cursor->copy == kind->local_count)
			continue;
		const struct stored_local *stored =
			(const struct stored_local *)plan->locals.items + kind->local_first +
			cursor->copy++;
		*local_out = stored->local;
		local_out->bucket = cursor->bucket;
		local_out->blocks.table_offset += tables_at(plan, plan->self, cursor->bucket);
		if (bucket->layer != kind->layer)
			local_out->param =
				layers_move(plan, SIDE_TRAINER, stored->rule, stored->each,
					    stored->local.param, kind->layer, bucket->layer);
		return true;
	}
	return false;
}

uint64_t plan_tables_bytes(const struct plan *plan)
{
	return plan->self == PLAN_ALL ? 0 : tables_at(plan, plan->self, plan->bucket_count);
}
