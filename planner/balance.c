/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Balance: how the bytes of each holder set are dealt over its holders.
 *
 * All flows of a set lie on one line of bytes, in the order replica, target rank, unit.  Each
 * holder gets one interval of it, so only a box that straddles a border is cut, and a member
 * finds its own boxes from running sums alone.  Targets come before units in that order: each
 * holder serves few targets and works in every bucket.
 *
 * The intervals' lengths come from water-filling set by set until nothing moves: the sum of
 * squared loads falls with each step, and where it is least the busiest is as low as can be.
 */
#include "planner/plan_internal.h"

#define PASSES_MAX 64

__extension__ typedef unsigned __int128 wide; /* a number, not a struct */

/* Bytes that fit under the level, which is in units of 2^-32 bytes per weight. */
static wide fits(const uint64_t *loads, const uint64_t *weights, uint32_t count, wide level)
{
	wide sum = 0;

	for (uint32_t i = 0; i < count; i++) {
		wide height = (level * weights[i]) >> 32;
		if (height > loads[i])
			sum += height - loads[i];
	}
	return sum;
}

void balance_fill(const uint64_t *loads, const uint64_t *weights, uint32_t count, uint64_t total,
		  uint64_t *shares_out)
{
	wide low = 0, high = 1;
	uint64_t given = 0;

	/* Ends: a level of 2^96 holds more than 2^64 bytes at any weight. */
	while (fits(loads, weights, count, high) <= total)
		high *= 2;
	while (high - low > 1) {
		wide middle = low + (high - low) / 2;
		if (fits(loads, weights, count, middle) <= total)
			low = middle;
		else
			high = middle;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint64_t height = (uint64_t)((low * weights[i]) >> 32);
		shares_out[i] = height > loads[i] ? height - loads[i] : 0;
		given += shares_out[i];
	}
	/* The rest is less than what one more step of the level would give. */
	for (uint32_t i = 0; given < total; i = (i + 1) % count) {
		uint64_t height = (uint64_t)((high * weights[i]) >> 32);
		uint64_t more =
			height > loads[i] + shares_out[i] ? height - loads[i] - shares_out[i] : 0;
		more = MIN(more, total - given);
		shares_out[i] += more;
		given += more;
	}
}

/* What each set must send, and the single holders' loads. */
static int sums_make(struct planning *planning, uint64_t *loads)
{
	const struct plan *plan = planning->plan;
	uint32_t replicas = plan->fed_replicas;

	for (size_t s = 0; s < planning->sets.count; s++) {
		struct holder_set *set = planning_set(planning, (uint32_t)s);
		if (set->count < 2)
			continue;
		set->base = arena_array(&planning->arena, plan->rollout_count, sizeof(uint64_t));
		set->running = arena_array(&planning->arena, plan->rollout_count, sizeof(uint64_t));
		set->end = arena_array(&planning->arena, set->count, sizeof(uint64_t));
		if (set->base == NULL || set->running == NULL || set->end == NULL)
			return -ENOMEM;
	}
	for (size_t g = 0; g < planning->geometries.count; g++) {
		const struct geometry *geometry = planning_geometry(planning, (uint32_t)g);
		for (uint32_t f = 0; f < geometry->flow_count; f++) {
			const struct flow *flow = &geometry->flows[f];
			struct holder_set *set = planning_set(planning, flow->set);
			uint64_t bytes = flow->bytes * geometry->unit_count;
			set->total += bytes;
			if (set->count == 1)
				loads[set->ranks[0]] += bytes * replicas;
			else
				set->base[flow->target] += bytes;
		}
	}
	for (size_t s = 0; s < planning->sets.count; s++) {
		struct holder_set *set = planning_set(planning, (uint32_t)s);
		uint64_t before = 0;
		for (uint32_t r = 0; set->count > 1 && r < plan->rollout_count; r++) {
			uint64_t bytes = set->base[r];
			set->base[r] = before;
			before += bytes;
		}
	}
	return 0;
}

/* Deals one set anew around what its holders send for others; true if a share changed. */
static bool deal(struct planning *planning, struct holder_set *set, uint64_t *loads,
		 const uint64_t *weights, uint64_t *scratch)
{
	uint64_t *around = scratch, *weight = scratch + set->count,
		 *share = scratch + 2 * set->count;
	bool changed = false;

	for (uint32_t i = 0; i < set->count; i++) {
		loads[set->ranks[i]] -= set->end[i];
		around[i] = loads[set->ranks[i]];
		weight[i] = weights[set->ranks[i]];
	}
	balance_fill(around, weight, set->count, set->total * planning->plan->fed_replicas, share);
	for (uint32_t i = 0; i < set->count; i++) {
		changed = changed || share[i] != set->end[i];
		set->end[i] = share[i];
		loads[set->ranks[i]] += share[i];
	}
	return changed;
}

int balance_make(struct planning *planning, struct ws_error *err)
{
	const struct plan *plan = planning->plan;
	size_t trainers = plan->trainer_count;
	uint64_t *loads = arena_array(&planning->arena, trainers, sizeof(*loads));
	uint64_t *weights = arena_array(&planning->arena, trainers, sizeof(*weights));
	uint64_t *scratch = arena_array(&planning->arena, trainers, 3 * sizeof(*scratch));
	bool changed = true;

	if (loads == NULL || weights == NULL || scratch == NULL || sums_make(planning, loads) != 0)
		return plan_no_memory(err);
	places_weights(plan, weights);
	/* Until the last step `end` holds shares, not borders. */
	for (uint32_t pass = 0; changed && pass < PASSES_MAX; pass++) {
		changed = false;
		for (size_t s = 0; s < planning->sets.count; s++) {
			struct holder_set *set = planning_set(planning, (uint32_t)s);
			if (set->count > 1 && deal(planning, set, loads, weights, scratch))
				changed = true;
		}
	}
	for (size_t s = 0; s < planning->sets.count; s++) {
		struct holder_set *set = planning_set(planning, (uint32_t)s);
		for (uint32_t i = 1; set->count > 1 && i < set->count; i++)
			set->end[i] += set->end[i - 1];
	}
	return 0;
}
