/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: the one global order of units, about a layer each: what has no layer and is an
 * embedding first, the layers, then the rest.  Units that meet in one param of either side (q_a
 * and kv_a, the experts of a stack) form a group, and a group is never torn apart: what an
 * engine reloads by one param must be whole when its bucket is.
 */
#include <stdio.h>

#include "planner/plan_internal.h"

enum phase { PHASE_EMBED = 0, PHASE_LAYER, PHASE_REST };

struct place_in_order {
	uint32_t unit, group;
	uint32_t phase;
	int32_t layer;
};

struct grouping {
	struct planning *planning;
	uint32_t *parent; /* by unit: union-find; the root is the lowest */
	uint32_t first;	  /* unit of the param at hand */
};

static uint32_t group_of(uint32_t *parent, uint32_t unit)
{
	while (parent[unit] != unit) {
		parent[unit] = parent[parent[unit]];
		unit = parent[unit];
	}
	return unit;
}

static int group_visit(void *arg, const struct visit *visit)
{
	struct grouping *grouping = arg;

	if (visit->param_begins) {
		grouping->first = visit->unit;
		return 0;
	}
	if (visit->unit == grouping->first)
		return 0;
	uint32_t a = group_of(grouping->parent, grouping->first);
	uint32_t b = group_of(grouping->parent, visit->unit);
	if (a != b)
		grouping->parent[MAX(a, b)] = MIN(a, b);
	return 0;
}

static int groups_make(struct planning *planning, uint32_t *parent, struct ws_error *err)
{
	struct grouping grouping = {.planning = planning, .parent = parent};

	for (uint32_t i = 0; i < planning->unit_count; i++)
		parent[i] = i;
	for (int side = 0; side < 2; side++)
		for (uint32_t rank = 0; rank < planning->sides[side].world; rank++) {
			int rc = match_walk(planning, (enum side)side, rank, group_visit, &grouping,
					    err);
			if (rc != 0)
				return rc;
		}
	return 0;
}

static void unit_phase(const struct planning *planning, uint32_t unit, uint32_t *phase,
		       int32_t *layer)
{
	int32_t expert;
	const struct family *family = match_unit(planning, unit, layer, &expert);

	if (*layer >= 0)
		*phase = PHASE_LAYER;
	else
		*phase = strstr(family->key, "embed") != NULL ? PHASE_EMBED : PHASE_REST;
}

static bool earlier(const struct place_in_order *a, const struct place_in_order *b)
{
	return a->phase != b->phase ? a->phase < b->phase : a->layer < b->layer;
}

static int place_order(const void *a, const void *b)
{
	const struct place_in_order *x = a, *y = b;

	if (x->phase != y->phase)
		return x->phase < y->phase ? -1 : 1;
	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	return x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* All units that a target holds, each at the place of its group's earliest. */
static struct place_in_order *order_make(struct planning *planning, uint32_t *parent)
{
	struct place_in_order *list =
		arena_array(&planning->arena, planning->unit_count, sizeof(*list));
	struct place_in_order *groups =
		arena_array(&planning->arena, planning->unit_count, sizeof(*groups));
	uint32_t count = 0;

	planning->order = arena_array(&planning->arena, planning->unit_count, sizeof(uint32_t));
	if (list == NULL || groups == NULL || planning->order == NULL)
		return NULL;
	for (uint32_t unit = 0; unit < planning->unit_count; unit++) {
		if (planning->unit_geometry[unit] == NONE)
			continue;
		struct place_in_order *place = &list[count++];
		place->unit = unit;
		place->group = group_of(parent, unit);
		unit_phase(planning, unit, &place->phase, &place->layer);
		struct place_in_order *group = &groups[place->group];
		if (group->unit == 0 || earlier(place, group)) {
			*group = *place;
			group->unit = 1; /* taken */
		}
	}
	for (uint32_t i = 0; i < count; i++) {
		list[i].phase = groups[list[i].group].phase;
		list[i].layer = groups[list[i].group].layer;
	}
	qsort(list, count, sizeof(*list), place_order);
	for (uint32_t i = 0; i < count; i++)
		planning->order[i] = list[i].unit;
	planning->ordered_count = count;
	return list;
}

/* "model.layers.7", "model.layers.7 part 2", "model.embed_tokens", "model.norm" */
static const char *bucket_name(struct planning *planning, const struct place_in_order *place,
			       uint32_t part)
{
	struct arena *arena = &planning->plan->arena;
	char name[256];

	match_unit_name(planning, place->unit, name, sizeof(name));
	size_t bytes = strlen(name);
	if (place->phase == PHASE_LAYER) {
		int32_t layer, expert;
		const struct family *family = match_unit(planning, place->unit, &layer, &expert);
		const char *at = strstr(family->key, "{L}");
		char number[16];
		int digits = snprintf(number, sizeof(number), "%" PRId32, layer);
		if (at != NULL)
			bytes = MIN(bytes, (size_t)(at - family->key) + (size_t)digits);
	} else if (bytes > sizeof(".weight") &&
		   strcmp(name + bytes + 1 - sizeof(".weight"), ".weight") == 0) {
		bytes -= sizeof(".weight") - 1;
	}
	if (part == 0)
		return arena_text(arena, "%.*s", (int)bytes, name);
	return arena_text(arena, "%.*s part %" PRIu32, (int)bytes, name, part + 1);
}

static uint64_t unit_bytes(const struct planning *planning, uint32_t unit)
{
	return planning_geometry(planning, planning->unit_geometry[unit])->bytes *
	       planning->plan->fed_replicas;
}

static uint64_t group_bytes(const struct planning *planning, const struct place_in_order *places,
			    uint32_t at)
{
	uint64_t bytes = 0;

	for (uint32_t i = at; i < planning->ordered_count && places[i].group == places[at].group;
	     i++)
		bytes += unit_bytes(planning, places[i].unit);
	return bytes;
}

/* Cuts the order where the layer changes or the bucket has its bytes, between groups only. */
static int buckets_cut(struct planning *planning, const struct place_in_order *places,
		       struct vec *buckets)
{
	struct plan *plan = planning->plan;
	uint64_t total = 0;
	uint32_t part = 0;

	for (uint32_t i = 0; i < planning->ordered_count; i++)
		total += unit_bytes(planning, places[i].unit);
	for (uint32_t i = 0; i < planning->ordered_count; i++) {
		const struct place_in_order *place = &places[i];
		struct unit_bucket *bucket = NULL;
		bool next = i == 0 || place->phase != places[i - 1].phase ||
			    place->layer != places[i - 1].layer;
		part = next ? 0 : part;
		if (!next) {
			/* Without a stated size a layer stays whole, but a model without layers
			 * doesn't. */
			uint64_t aim = plan->input.rules.bucket_bytes;
			if (aim == 0)
				aim = place->phase == PHASE_LAYER ? UINT64_MAX : total / 4;
			bucket = (struct unit_bucket *)buckets->items + buckets->count - 1;
			if (place->group != places[i - 1].group &&
			    bucket->bytes + group_bytes(planning, places, i) > aim) {
				next = true;
				part++;
			}
		}
		if (next) {
			bucket = vec_add(buckets, sizeof(*bucket));
			if (bucket == NULL)
				return -ENOMEM;
			bucket->unit_first = i;
			bucket->name = bucket_name(planning, place,
						   place->phase == PHASE_LAYER ? part : 0);
			if (bucket->name == NULL)
				return -ENOMEM;
		}
		bucket->unit_count++;
		bucket->bytes += unit_bytes(planning, place->unit);
	}
	return 0;
}

int bucket_make(struct planning *planning, struct ws_error *err)
{
	struct plan *plan = planning->plan;
	struct vec buckets = {0};
	uint32_t *parent = mem_alloc((size_t)planning->unit_count * sizeof(*parent));
	int rc = parent == NULL ? plan_no_memory(err) : groups_make(planning, parent, err);

	if (rc == 0) {
		const struct place_in_order *places = order_make(planning, parent);
		if (places == NULL || buckets_cut(planning, places, &buckets) != 0)
			rc = plan_no_memory(err);
	}
	if (rc == 0) {
		plan->bucket_count = (uint32_t)buckets.count;
		plan->buckets = arena_array(&plan->arena, buckets.count, sizeof(*plan->buckets));
		if (plan->buckets == NULL)
			rc = plan_no_memory(err);
		else if (buckets.count > 0)
			memcpy(plan->buckets, buckets.items,
			       buckets.count * sizeof(*plan->buckets));
	}
	vec_release(&buckets);
	mem_free(parent);
	return rc;
}
