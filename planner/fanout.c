/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fan-out: what rollouts pass on, so that trainers needn't write it again.
 *
 * node: what several ranks of a host hold alike is cut by rows among them before anything is
 * planned, so that geometry, balance and buckets see each slice once, at the rank that gets it
 * from trainers; that rank then forwards it to the others.
 *
 *     held alike by 4 ranks        what trainers write        forwards
 *     +---+ +---+ +---+ +---+      +---+                      0 -> 1 2 3
 *     |   | |   | |   | |   |      +---+ +---+                1 -> 0 2 3
 *     |   | |   | |   | |   |  ->        +---+ +---+      +   2 -> 0 1 3
 *     |   | |   | |   | |   |                  +---+ +---+    3 -> 0 1 2
 *     +---+ +---+ +---+ +---+                        +---+
 *
 * replica: trainers write to the first replica only; each rank passes its params, as they lie in
 * memory, to the same rank of the next replica.
 *
 * Only what lies in one piece at each holder is forwarded: a forward is a plain write out of the
 * memory where the bytes have landed, without staging or ring.
 */
#include "planner/check.h"

/* ---- Nodes: ranks that share a host in every replica, numbered by their lowest rank. */
static bool share_host(const struct plan *plan, uint32_t a, uint32_t b)
{
	const struct place *places = plan->input.places;

	for (uint32_t r = 0; r < plan->input.replica_count; r++)
		if (strcmp(places[member_of_rollout(plan, r, a)].host,
			   places[member_of_rollout(plan, r, b)].host) != 0)
			return false;
	return true;
}

static uint64_t hosts_digest(const struct plan *plan, uint32_t rank)
{
	uint64_t digest = 0;

	for (uint32_t r = 0; r < plan->input.replica_count; r++) {
		const char *host = plan->input.places[member_of_rollout(plan, r, rank)].host;
		digest = digest_bytes(host, strlen(host), digest);
	}
	return digest;
}

static int nodes_make(struct planning *planning)
{
	const struct plan *plan = planning->plan;
	uint32_t *node = arena_array(&planning->arena, plan->rollout_count, sizeof(*node));
	struct idmap firsts = {0};
	int rc = node == NULL ? -ENOMEM : 0;

	for (uint32_t rank = 0; rc == 0 && rank < plan->rollout_count; rank++) {
		node[rank] = rank;
		if (plan->input.places == NULL)
			continue;
		uint64_t digest = hosts_digest(plan, rank);
		uint32_t first = idmap_get(&firsts, digest);
		if (first == NONE)
			rc = idmap_put(&firsts, digest, rank);
		else if (share_host(plan, first, rank))
			node[rank] = first;
	}
	idmap_release(&firsts);
	planning->node = node;
	return rc;
}

/* ---- Groups: entries of one pattern that ranks of one node hold alike. */
struct group {
	uint32_t pattern, first, count; /* of spread.members */
	uint64_t bytes;			/* of one unit */
	uint64_t units;
};

struct spread {
	struct planning *planning;
	const struct pattern *pattern;
	struct vec groups;    /* of struct group */
	struct vec members;   /* of uint32_t: entries of the group's pattern, by rank */
	struct vec sorted;    /* of uint32_t: the entries of the pattern at hand */
	uint64_t *unit_count; /* by pattern; owned */
	uint64_t *loads;      /* by rank: bytes from trainers, over all units; in the arena */
	uint64_t *scratch;    /* 3 by rank; in the arena */
};

static void spread_release(struct spread *spread)
{
	vec_release(&spread->groups);
	vec_release(&spread->members);
	vec_release(&spread->sorted);
	mem_free(spread->unit_count);
}

static uint64_t entry_bytes(const struct entry *entry)
{
	return box_volume(&entry->box) * ws_dtype_bytes(entry->dtype);
}

/* By node and box. */
static int same_box(const struct spread *spread, uint32_t a, uint32_t b)
{
	const struct entry *x = &spread->pattern->entries[a], *y = &spread->pattern->entries[b];
	const uint32_t *node = spread->planning->node;

	if (node[x->rank] != node[y->rank])
		return node[x->rank] < node[y->rank] ? -1 : 1;
	if (x->dtype != y->dtype)
		return x->dtype < y->dtype ? -1 : 1;
	if (x->dense != y->dense)
		return x->dense ? -1 : 1;
	return box_compare(&x->box, &y->box);
}

/* The second of the same box at one rank is another group's. */
static int alike(const struct spread *spread, uint32_t a, uint32_t b)
{
	const struct entry *x = &spread->pattern->entries[a], *y = &spread->pattern->entries[b];
	int order = same_box(spread, a, b);

	if (order != 0)
		return order;
	return x->again < y->again ? -1 : x->again > y->again;
}

static int alike_order(const void *a, const void *b, void *arg)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	int order = alike(arg, x, y);

	return order != 0 ? order : x < y ? -1 : x > y;
}

/* Sorts the entries: each box of a node together, and then by rank; a rank's second one of a box
 * behind all first ones.  Entries come by rank. */
static void entries_sort(struct spread *spread, const struct pattern *pattern)
{
	uint32_t *sorted = spread->sorted.items;

	if (sorted == NULL)
		return; /* nobody holds any of it */
	qsort_r(sorted, pattern->entry_count, sizeof(*sorted), alike_order, spread);
	for (uint32_t i = 1; i < pattern->entry_count; i++) {
		const struct entry *before = &pattern->entries[sorted[i - 1]];
		struct entry *entry = &pattern->entries[sorted[i]];
		if (entry->rank == before->rank && same_box(spread, sorted[i - 1], sorted[i]) == 0)
			entry->again = before->again + 1;
	}
	qsort_r(sorted, pattern->entry_count, sizeof(*sorted), alike_order, spread);
}

static int group_add(struct spread *spread, uint32_t index, const uint32_t *entries, uint32_t count)
{
	struct group *group = vec_add(&spread->groups, sizeof(*group));

	if (group == NULL)
		return -ENOMEM;
	*group = (struct group){.pattern = index,
				.first = (uint32_t)spread->members.count,
				.count = count,
				.bytes = entry_bytes(&spread->pattern->entries[entries[0]]),
				.units = spread->unit_count[index]};
	for (uint32_t i = 0; i < count; i++) {
		uint32_t *member = vec_add(&spread->members, sizeof(*member));
		if (member == NULL)
			return -ENOMEM;
		*member = entries[i];
	}
	return 0;
}

/* Finds the groups of a pattern; what is in none counts for its rank at once. */
static int groups_of_pattern(struct spread *spread, uint32_t index)
{
	struct pattern *pattern = side_pattern(&spread->planning->sides[SIDE_ROLLOUT], index);

	spread->pattern = pattern;
	spread->sorted.count = 0;
	for (uint32_t i = 0; i < pattern->entry_count; i++) {
		uint32_t *entry = vec_add(&spread->sorted, sizeof(*entry));
		if (entry == NULL)
			return -ENOMEM;
		*entry = i;
	}
	const uint32_t *sorted = spread->sorted.items;
	entries_sort(spread, pattern);
	for (uint32_t i = 0, end; i < pattern->entry_count; i = end) {
		const struct entry *entry = &pattern->entries[sorted[i]];
		for (end = i + 1; end < pattern->entry_count; end++)
			if (alike(spread, sorted[i], sorted[end]) != 0)
				break;
		if (end - i > 1 && entry->dense) {
			int rc = group_add(spread, index, sorted + i, end - i);
			if (rc != 0)
				return rc;
			continue;
		}
		for (uint32_t k = i; k < end; k++)
			spread->loads[pattern->entries[sorted[k]].rank] +=
				entry_bytes(entry) * spread->unit_count[index];
	}
	return 0;
}

/* ---- Dealing: who of a group gets which rows from trainers. */

/* Those with the least freedom first, then the largest: small ones even out what is left. */
static int group_order(const void *a, const void *b)
{
	const struct group *x = a, *y = b;
	uint64_t p = x->bytes * x->units, q = y->bytes * y->units;

	if (x->count != y->count)
		return x->count < y->count ? -1 : 1;
	if (p != q)
		return p > q ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* The members in the order of their loads. */
static void members_order(const struct spread *spread, const struct pattern *pattern,
			  uint32_t *members, uint32_t count)
{
	for (uint32_t i = 1; i < count; i++) {
		uint32_t member = members[i], at = i;
		uint64_t load = spread->loads[pattern->entries[member].rank];
		for (; at > 0 && spread->loads[pattern->entries[members[at - 1]].rank] > load; at--)
			members[at] = members[at - 1];
		members[at] = member;
	}
}

/* floor(whole * part / total) */
static uint64_t share_of(uint64_t whole, uint64_t part, uint64_t total)
{
	__extension__ unsigned __int128 product = (unsigned __int128)whole * part;

	return (uint64_t)(product / total);
}

/* Blocks of a scale aren't torn between members. */
static uint64_t rows_together(enum ws_dtype dtype)
{
	return dtype == WS_F8_E4M3 || dtype == WS_F8_E5M2 ? 128 : 1;
}

/* The dim to cut along: the outermost that has rows. */
static uint32_t cut_dim(const struct box *box)
{
	uint32_t dim = 0;

	while (dim + 1 < box->dim_count && box->extent[dim] == 1)
		dim++;
	return dim;
}

/* Cuts the group's box: what each member gets from trainers becomes its slice, maybe empty. */
static void group_deal(struct spread *spread, const struct group *group)
{
	const struct plan *plan = spread->planning->plan;
	struct pattern *pattern =
		side_pattern(&spread->planning->sides[SIDE_ROLLOUT], group->pattern);
	uint32_t *members = (uint32_t *)spread->members.items + group->first;
	const struct entry *any = &pattern->entries[members[0]];
	uint32_t dim = cut_dim(&any->box);
	uint64_t rows = any->box.extent[dim], row_bytes = group->bytes / rows;
	uint64_t together = rows_together(any->dtype), total = group->bytes * group->units;
	uint64_t *loads = spread->scratch, *weights = loads + plan->rollout_count,
		 *shares = weights + plan->rollout_count;
	uint64_t given = 0, done = 0;

	members_order(spread, pattern, members, group->count);
	uint64_t pieces = MIN(group->bytes / plan->input.rules.run_bytes_min, rows / together);
	uint32_t count = (uint32_t)MIN(MAX(pieces, 1), group->count);
	for (uint32_t i = 0; i < count; i++) {
		loads[i] = spread->loads[pattern->entries[members[i]].rank];
		weights[i] = 1;
	}
	balance_fill(loads, weights, count, total, shares);
	for (uint32_t i = 0; i < group->count; i++) {
		struct entry *entry = &pattern->entries[members[i]];
		given += i < count ? shares[i] : 0;
		uint64_t end =
			given == total ? rows : share_of(rows / together, given, total) * together;
		entry->shared = true;
		entry->slice = entry->box;
		entry->slice.offset[dim] += done;
		entry->slice.extent[dim] = end - done;
		spread->loads[entry->rank] += (end - done) * row_bytes * group->units;
		done = end;
	}
}

/* ---- What of it becomes forwards, and what trainers still write. */
static int group_forwards(struct spread *spread, const struct group *group, struct vec *forwards)
{
	const struct pattern *pattern =
		side_pattern(&spread->planning->sides[SIDE_ROLLOUT], group->pattern);
	const uint32_t *members = (const uint32_t *)spread->members.items + group->first;

	for (uint32_t i = 0; i < group->count; i++) {
		const struct entry *from = &pattern->entries[members[i]];
		for (uint32_t k = 0; k < group->count; k++) {
			const struct entry *to = &pattern->entries[members[k]];
			if (k == i || box_volume(&from->slice) == 0)
				continue;
			struct forward *forward = vec_add(forwards, sizeof(*forward));
			if (forward == NULL)
				return -ENOMEM;
			*forward = (struct forward){.box = from->slice,
						    .from = {from->rank, from->nth},
						    .to = {to->rank, to->nth}};
		}
	}
	return 0;
}

/* Entries become their slices; empty ones go. */
static void entries_slice(struct pattern *pattern)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < pattern->entry_count; i++) {
		struct entry *entry = &pattern->entries[count];
		*entry = pattern->entries[i];
		if (entry->shared)
			entry->box = entry->slice;
		count += box_volume(&entry->box) > 0;
	}
	pattern->entry_count = count;
}

static int forwards_make(struct spread *spread)
{
	struct planning *planning = spread->planning;
	struct side_index *side = &planning->sides[SIDE_ROLLOUT];
	const struct group *groups = spread->groups.items;

	for (size_t g = 0; g < spread->groups.count;) {
		struct pattern *pattern = side_pattern(side, groups[g].pattern);
		pattern->forward_first = planning->forwards.count;
		for (uint32_t index = groups[g].pattern;
		     g < spread->groups.count && groups[g].pattern == index; g++)
			if (group_forwards(spread, &groups[g], &planning->forwards) != 0)
				return -ENOMEM;
		pattern->forward_count =
			(uint32_t)(planning->forwards.count - pattern->forward_first);
	}
	for (size_t p = 0; p < side->patterns.count; p++)
		entries_slice(side_pattern(side, (uint32_t)p));
	return 0;
}

static int pattern_order(const void *a, const void *b)
{
	const struct group *x = a, *y = b;

	if (x->pattern != y->pattern)
		return x->pattern < y->pattern ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

static int spread_make(struct spread *spread)
{
	struct planning *planning = spread->planning;
	const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
	uint32_t ranks = planning->plan->rollout_count;
	int rc = 0;

	spread->unit_count = mem_alloc(side->patterns.count * sizeof(uint64_t));
	spread->loads = arena_array(&planning->arena, ranks, sizeof(uint64_t));
	spread->scratch = arena_array(&planning->arena, ranks, 3 * sizeof(uint64_t));
	if (spread->unit_count == NULL || spread->loads == NULL || spread->scratch == NULL)
		return -ENOMEM;
	for (uint32_t unit = 0; unit < planning->unit_count; unit++)
		if (side->unit_pattern[unit] != NONE) {
			int32_t layer, expert;
			match_unit(planning, unit, &layer, &expert);
			spread->unit_count[side->unit_pattern[unit]] +=
				layers_alike(planning, layer);
		}
	for (size_t p = 0; rc == 0 && p < side->patterns.count; p++)
		rc = groups_of_pattern(spread, (uint32_t)p);
	if (rc != 0 || spread->groups.count == 0)
		return rc;
	struct group *groups = spread->groups.items;
	qsort(groups, spread->groups.count, sizeof(*groups), group_order);
	for (size_t g = 0; g < spread->groups.count; g++)
		group_deal(spread, &groups[g]);
	qsort(groups, spread->groups.count, sizeof(*groups), pattern_order);
	return forwards_make(spread);
}

int fanout_make(struct planning *planning, struct ws_error *err)
{
	struct spread spread = {.planning = planning};
	int rc = 0;

	switch (planning->plan->input.rules.fanout) {
	case FANOUT_NONE:
	case FANOUT_REPLICA:
		return 0;
	case FANOUT_NODE:
		rc = nodes_make(planning);
		if (rc == 0)
			rc = spread_make(&spread);
		break;
	}
	spread_release(&spread);
	return rc == 0 ? 0 : plan_no_memory(err);
}

/* ---- Forwards of a unit. */

static bool concerns(const struct plan *plan, uint32_t sender, uint32_t receiver)
{
	return plan->self == PLAN_ALL || plan->self == sender || plan->self == receiver;
}

static int forward_put(struct planning *planning, const struct forward *forward,
		       const struct bucket_kind *kind, uint32_t unit, uint32_t replica,
		       struct ws_error *err)
{
	const struct holding *from, *to;
	uint32_t count;
	struct ends ends = {
		.sender = member_of_rollout(planning->plan, replica, forward->from.rank),
		.receiver = member_of_rollout(planning->plan, replica, forward->to.rank)};

	if (!concerns(planning->plan, ends.sender, ends.receiver))
		return 0;
	int rc = match_holdings(planning, SIDE_ROLLOUT, forward->from.rank, unit, &from, &count,
				err);
	if (rc == 0)
		rc = match_holdings(planning, SIDE_ROLLOUT, forward->to.rank, unit, &to, &count,
				    err);
	if (rc != 0)
		return rc;
	ends.source = from + forward->from.nth;
	ends.target = to + forward->to.nth;
	return boxes_put(planning, &ends, &forward->box, kind->bucket_count, err);
}

/* One stretch of a param, on its way down the chain. */
static int stretch_put(struct planning *planning, const struct bucket_kind *kind,
		       const struct holding *holding, uint32_t rank, const struct interval *stretch,
		       struct ws_error *err)
{
	const struct plan *plan = planning->plan;
	int64_t bytes = (int64_t)ws_dtype_bytes(holding->dtype);

	for (uint32_t replica = 1; replica < plan->input.replica_count; replica++) {
		uint32_t sender = member_of_rollout(plan, replica - 1, rank);
		uint32_t receiver = member_of_rollout(plan, replica, rank);
		if (!concerns(plan, sender, receiver))
			continue;
		struct raw *raw = vec_add(&planning->raws, sizeof(*raw));
		if (raw == NULL)
			return plan_no_memory(err);
		raw->sender = sender;
		raw->receiver = receiver;
		raw->part = (struct plan_part){
			.src_param = holding->param,
			.dst_param = holding->param,
			.dim_count = 1,
			.extent[0] = stretch->hi - stretch->lo,
			.src_offset = stretch->lo * (uint64_t)bytes,
			.dst_offset = stretch->lo * (uint64_t)bytes,
			.src_stride[0] = bytes,
			.dst_stride[0] = bytes,
			.from = holding->dtype,
			.to = holding->dtype,
		};
		raw->bytes = (stretch->hi - stretch->lo) * (uint64_t)bytes;
		raw->source_dense = raw->target_dense = true;
		raw->rules = (struct part_rules){holding->rule, holding->rule, holding->each,
						 holding->each};
		boxes_count(planning->plan, raw, kind->bucket_count);
	}
	return 0;
}

/* The params that begin with this unit at the rank. */
static int chain_put(struct planning *planning, const struct bucket_kind *kind, uint32_t rank,
		     uint32_t unit, struct ws_error *err)
{
	const struct holding *holdings;
	uint32_t count;
	int rc = match_holdings(planning, SIDE_ROLLOUT, rank, unit, &holdings, &count, err);

	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		if (holdings[i].begins == NULL)
			continue;
		struct vec stretches = {0};
		if (account_form_stretches(holdings[i].begins, &stretches) != 0)
			rc = plan_no_memory(err);
		const struct interval *list = stretches.items;
		for (size_t s = 0; rc == 0 && s < stretches.count; s++)
			rc = stretch_put(planning, kind, &holdings[i], rank, &list[s], err);
		vec_release(&stretches);
	}
	return rc;
}

int fanout_of_unit(struct planning *planning, const struct bucket_kind *kind, uint32_t unit,
		   struct ws_error *err)
{
	const struct plan *plan = planning->plan;
	bool all = plan->self == PLAN_ALL;
	int rc = 0;

	if (!all && plan->self < plan->trainer_count)
		return 0;
	uint32_t own = all ? 0 : (plan->self - plan->trainer_count) % plan->rollout_count;
	uint32_t replica = all ? 0 : (plan->self - plan->trainer_count) / plan->rollout_count;
	switch (plan->input.rules.fanout) {
	case FANOUT_NONE:
		break;
	case FANOUT_NODE: {
		const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
		const struct pattern *pattern = side_pattern(side, side->unit_pattern[unit]);
		const struct forward *forwards =
			(const struct forward *)planning->forwards.items + pattern->forward_first;
		for (uint32_t r = replica; r < (all ? plan->input.replica_count : replica + 1); r++)
			for (uint32_t i = 0; rc == 0 && i < pattern->forward_count; i++)
				rc = forward_put(planning, &forwards[i], kind, unit, r, err);
		break;
	}
	case FANOUT_REPLICA:
		for (uint32_t rank = own; rc == 0 && rank < (all ? plan->rollout_count : own + 1);
		     rank++)
			rc = chain_put(planning, kind, rank, unit, err);
		break;
	}
	return rc;
}

bool fanout_feeds(const struct plan *plan, uint32_t sender)
{
	switch (plan->input.rules.fanout) {
	case FANOUT_NONE:
		return false;
	case FANOUT_NODE:
		return sender < plan->trainer_count;
	case FANOUT_REPLICA:
		return true;
	}
	return false;
}
