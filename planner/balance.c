/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Balance: how the bytes of each holder set are dealt over its holders.
 *
 * Each holder gets a share of all bytes that only this set can send.  The shares come from
 * water-filling set by set until nothing moves: the sum of squared loads falls with each step,
 * and where it is least the busiest is as low as can be.
 *
 * In each bucket the set's bytes lie on one line, in the order replica, target rank, unit, and
 * each holder gets an interval of it as long as its share says.  So only a box that straddles a
 * border is cut, a member finds its own boxes from running sums alone, every holder works in
 * every bucket and serves few targets in it, and buckets of layers alike are dealt alike.
 * Where trainers share hosts with rollouts, holders stand on the line beside targets of their own
 * host, so that as few bytes as can be cross a NIC; who sends how much is the same.
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

	for (size_t g = 0; g < planning->geometries.count; g++) {
		const struct geometry *geometry = planning_geometry(planning, (uint32_t)g);
		for (uint32_t w = 0; w < geometry->want_count; w++) {
			const struct want *want = &geometry->wants[w];
			uint64_t times = (uint64_t)geometry->unit_count * want->taker_count;
			for (uint32_t a = 0; a < want->atom_count; a++) {
				const struct atom *atom = &geometry->atoms[want->atom_first + a];
				planning_set(planning, atom->set)->total += atom->bytes * times;
			}
		}
	}
	for (size_t s = 0; s < planning->sets.count; s++) {
		struct holder_set *set = planning_set(planning, (uint32_t)s);
		if (set->count == 1) {
			loads[set->ranks[0]] += set->total * replicas;
			continue;
		}
		set->share = arena_array(&planning->arena, set->count, sizeof(uint64_t));
		if (set->share == NULL)
			return -ENOMEM;
	}
	return 0;
}

/* Deals one set anew around what its holders send for others; true if a share changed. */
static bool deal(struct planning *planning, struct holder_set *set, uint64_t *loads,
		 const uint64_t *weights, uint64_t *scratch)
{
	uint64_t *around = scratch, *weight = scratch + set->count,
		 *share = scratch + 2 * set->count;
	uint64_t heaviest = 0;
	bool changed = false;

	for (uint32_t i = 0; i < set->count; i++)
		heaviest = MAX(heaviest, weights[set->ranks[i]]);
	for (uint32_t i = 0; i < set->count; i++) {
		loads[set->ranks[i]] -= set->share[i];
		around[i] = loads[set->ranks[i]];
		/* Where none of them reaches a rollout, all alike don't. */
		weight[i] = heaviest != 0 ? weights[set->ranks[i]] : 1;
	}
	balance_fill(around, weight, set->count, set->total * planning->plan->fed_replicas, share);
	for (uint32_t i = 0; i < set->count; i++) {
		changed = changed || share[i] != set->share[i];
		set->share[i] = share[i];
		loads[set->ranks[i]] += share[i];
	}
	return changed;
}

/* Keeps the hosts' numbers where they matter. */
static int hosts_make(struct planning *planning)
{
	const struct plan *plan = planning->plan;
	uint32_t *hosts;
	bool shared = false;

	if (plan->input.places == NULL)
		return 0;
	hosts = arena_array(&planning->arena, plan->member_count, sizeof(*hosts));
	if (hosts == NULL || places_hosts(plan, &planning->arena, hosts) != 0)
		return -ENOMEM;
	for (uint32_t m = plan->trainer_count; m < plan->member_count; m++)
		shared = shared || hosts[m] < plan->trainer_count;
	planning->hosts = shared ? hosts : NULL;
	return 0;
}

int balance_make(struct planning *planning, struct ws_error *err)
{
	const struct plan *plan = planning->plan;
	size_t trainers = plan->trainer_count;
	uint64_t *loads = arena_array(&planning->arena, trainers, sizeof(*loads));
	uint64_t *weights = arena_array(&planning->arena, trainers, sizeof(*weights));
	uint64_t *scratch = arena_array(&planning->arena, trainers, 3 * sizeof(*scratch));
	bool changed = true;

	if (loads == NULL || weights == NULL || scratch == NULL ||
	    sums_make(planning, loads) != 0 || hosts_make(planning) != 0)
		return plan_no_memory(err);
	places_weights(plan, weights);
	for (uint32_t pass = 0; changed && pass < PASSES_MAX; pass++) {
		changed = false;
		for (size_t s = 0; s < planning->sets.count; s++) {
			struct holder_set *set = planning_set(planning, (uint32_t)s);
			if (set->count > 1 && deal(planning, set, loads, weights, scratch))
				changed = true;
		}
	}
	return 0;
}

/* ---- The lines of a kind. */

static bool set_has(const struct holder_set *set, uint32_t rank)
{
	uint32_t lo = 0, hi = set->count;

	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		if (set->ranks[middle] < rank)
			lo = middle + 1;
		else
			hi = middle;
	}
	return lo < set->count && set->ranks[lo] == rank;
}

/* A set met first in this kind: what it was in the one before is forgotten. */
static int line_begin(struct planning *planning, struct holder_set *set, uint32_t index)
{
	const struct plan *plan = planning->plan;
	size_t ranks = plan->rollout_count;
	uint32_t *line = vec_add(&planning->lines, sizeof(*line));

	if (line == NULL)
		return -ENOMEM;
	*line = index;
	set->in_line = true;
	set->mine = plan->self >= plan->trainer_count || set_has(set, plan->self);
	set->near = false;
	if (set->count == 1)
		return 0;
	if (set->base == NULL) {
		set->base = arena_array(&planning->arena, ranks, sizeof(uint64_t));
		set->running = arena_array(&planning->arena, ranks, sizeof(uint64_t));
		set->end = arena_array(&planning->arena, set->count, sizeof(uint64_t));
		set->at = arena_array(&planning->arena, set->count, sizeof(uint32_t));
		if (set->base == NULL || set->running == NULL || set->end == NULL ||
		    set->at == NULL)
			return -ENOMEM;
	}
	memset(set->base, 0, ranks * sizeof(uint64_t));
	memset(set->running, 0, ranks * sizeof(uint64_t));
	return 0;
}

static int line_of_unit(struct planning *planning, const struct geometry *geometry)
{
	for (uint32_t w = 0; w < geometry->want_count; w++) {
		const struct want *want = &geometry->wants[w];
		for (uint32_t a = 0; a < want->atom_count; a++) {
			const struct atom *atom = &geometry->atoms[want->atom_first + a];
			struct holder_set *set = planning_set(planning, atom->set);
			if (!set->in_line && line_begin(planning, set, atom->set) != 0)
				return -ENOMEM;
			set->near = set->near || atom->near;
			for (uint32_t t = 0; set->count > 1 && t < want->taker_count; t++)
				set->base[want->takers[t].rank] += atom->bytes;
		}
	}
	return 0;
}

/* The host of the rollout whose bytes lie there. */
static uint32_t host_at(const struct planning *planning, const struct holder_set *set,
			uint64_t position)
{
	const struct plan *plan = planning->plan;
	uint32_t replica = (uint32_t)MIN(position / set->line, plan->fed_replicas - 1u);
	uint32_t lo = 0, hi = plan->rollout_count;

	position -= replica * set->line;
	while (hi - lo > 1) {
		uint32_t middle = (lo + hi) / 2;
		if (set->base[middle] <= position)
			lo = middle;
		else
			hi = middle;
	}
	return planning->hosts[member_of_rollout(plan, replica, lo)];
}

/* Where on the line the last bytes for a host begin; 0 where it gets none, or the first. */
static uint64_t host_last(const struct planning *planning, const struct holder_set *set,
			  uint32_t host)
{
	const struct plan *plan = planning->plan;
	uint64_t last = 0;

	for (uint32_t replica = 0; replica < plan->fed_replicas; replica++)
		for (uint32_t r = 0; r < plan->rollout_count; r++)
			if (planning->hosts[member_of_rollout(plan, replica, r)] == host)
				last = replica * set->line + set->base[r];
	return last;
}

/*
 * Who has the interval from here on: a holder whose middle would lie in bytes for its own host;
 * else one that has no such bytes ahead; else the first.  at[0..k) have theirs, the rest wait.
 */
static uint32_t line_next(const struct planning *planning, const struct holder_set *set, uint32_t k,
			  const uint64_t *length, const uint64_t *last, uint64_t position)
{
	uint32_t chosen = k;
	bool idle = false;

	for (uint32_t w = k; w < set->count; w++) {
		uint32_t i = set->at[w];
		uint32_t host = planning->hosts[set->ranks[i]];
		if (host_at(planning, set, position + length[i] / 2) == host)
			return w;
		if (!idle && last[i] <= position) {
			idle = true;
			chosen = w;
		}
	}
	return chosen;
}

/* Holders beside targets of their own host; the others keep their order. */
static int line_by_host(struct planning *planning, struct holder_set *set, const uint64_t *length)
{
	uint64_t *last = mem_alloc(set->count * sizeof(*last));
	uint64_t position = 0;

	if (last == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < set->count; i++)
		last[i] = host_last(planning, set, planning->hosts[set->ranks[i]]);
	for (uint32_t k = 0; k < set->count; k++) {
		uint32_t w = line_next(planning, set, k, length, last, position);
		uint32_t chosen = set->at[w];
		memmove(&set->at[k + 1], &set->at[k], (w - k) * sizeof(*set->at));
		set->at[k] = chosen;
		position += length[chosen];
	}
	mem_free(last);
	return 0;
}

/* Bytes per rank become bytes before it; shares become intervals. */
static int line_end(struct planning *planning, struct holder_set *set)
{
	const struct plan *plan = planning->plan;
	uint64_t before = 0, given = 0;
	int rc = 0;

	for (uint32_t r = 0; r < plan->rollout_count; r++) {
		uint64_t bytes = set->base[r];
		set->base[r] = before;
		before += bytes;
	}
	set->line = before;
	wide whole = (wide)set->total * plan->fed_replicas;
	wide line = (wide)before * plan->fed_replicas;
	for (uint32_t i = 0; i < set->count; i++) {
		set->at[i] = i;
		set->end[i] = (uint64_t)(line * set->share[i] / whole);
	}
	if (planning->hosts != NULL && before != 0)
		rc = line_by_host(planning, set, set->end);
	for (uint32_t k = 0; k < set->count; k++) {
		given += set->share[set->at[k]];
		set->end[k] = (uint64_t)(line * given / whole);
	}
	return rc;
}

int balance_lines(struct planning *planning, const struct bucket_kind *kind, struct ws_error *err)
{
	const uint32_t *lines = planning->lines.items;

	for (size_t i = 0; i < planning->lines.count; i++)
		planning_set(planning, lines[i])->in_line = false;
	planning->lines.count = 0;
	for (uint32_t i = 0; i < kind->unit_count; i++) {
		uint32_t unit = planning->order[kind->unit_first + i];
		const struct geometry *geometry =
			planning_geometry(planning, planning->unit_geometry[unit]);
		if (line_of_unit(planning, geometry) != 0)
			return plan_no_memory(err);
	}
	lines = planning->lines.items;
	for (size_t i = 0; i < planning->lines.count; i++) {
		struct holder_set *set = planning_set(planning, lines[i]);
		if (set->count > 1 && line_end(planning, set) != 0)
			return plan_no_memory(err);
	}
	return 0;
}
