/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: the one global order of units, about a layer each: what has no layer first (an
 * embedding is the largest bucket: nothing should wait for its forwards at the end), then the
 * layers, those of all pipeline stages in step, or the last stage's would come late everywhere.
 * Units that meet in one param of either side (q_a and kv_a, the experts of a stack) form a group,
 * and a group is never torn apart: what an engine reloads by one param must be whole when its
 * bucket is.
 *
 * Only the layers planned are ordered and cut, into kinds; a kind is a bucket in each layer
 * that is alike.
 */
#include <stdio.h>

#include "planner/plan_internal.h"

enum phase { PHASE_EMBED = 0, PHASE_REST, PHASE_LAYER };

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

static void groups_join(uint32_t *parent, uint32_t x, uint32_t y)
{
	uint32_t a = group_of(parent, x), b = group_of(parent, y);

	if (a != b)
		parent[MAX(a, b)] = MIN(a, b);
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
	groups_join(grouping->parent, grouping->first, visit->unit);
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
	/* A weight without its scale is worth nothing, and a scale is of all weights under it. */
	for (uint32_t i = 0; i < planning->unit_count; i++) {
		if (planning->unit_geometry[i] == NONE)
			continue;
		uint32_t weight = scales_weight(planning, i);
		if (weight != NONE)
			groups_join(parent, i, weight);
		groups_join(parent, i, scales_fellow(planning, i));
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
static const char *bucket_name(struct planning *planning, const struct bucket_kind *kind,
			       int32_t layer)
{
	struct arena *arena = &planning->plan->arena;
	int32_t own_layer, expert;
	const struct family *family =
		match_unit(planning, planning->order[kind->unit_first], &own_layer, &expert);
	struct tensor_rule rule = {.name = family->key};
	char name[256];

	tensor_name(&rule, own_layer == kind->layer ? layer : own_layer, expert, name,
		    sizeof(name));
	size_t bytes = strlen(name);
	if (kind->phase == PHASE_LAYER) {
		const char *at = strstr(family->key, "{L}");
		char number[16];
		int digits = snprintf(number, sizeof(number), "%" PRId32, layer);
		if (at != NULL)
			bytes = MIN(bytes, (size_t)(at - family->key) + (size_t)digits);
		if (kind->part > 0)
			return arena_text(arena, "%.*s part %" PRIu32, (int)bytes, name,
					  kind->part + 1);
	} else if (bytes > sizeof(".weight") &&
		   strcmp(name + bytes + 1 - sizeof(".weight"), ".weight") == 0) {
		bytes -= sizeof(".weight") - 1;
	}
	return arena_text(arena, "%.*s", (int)bytes, name);
}

static uint64_t unit_bytes(const struct planning *planning, uint32_t unit)
{
	return planning_geometry(planning, planning->unit_geometry[unit])->bytes *
	       planning->plan->fed_replicas;
}

/* The end of the group that begins at a place, and its bytes. */
static uint32_t group_end(const struct planning *planning, const struct place_in_order *places,
			  uint32_t at, uint64_t *bytes_out)
{
	uint32_t end = at;

	for (*bytes_out = 0; end < planning->ordered_count && places[end].group == places[at].group;
	     end++)
		*bytes_out += unit_bytes(planning, places[end].unit);
	return end;
}

/* The end of what has the same phase and layer as a place, and its bytes. */
static uint32_t layer_end(const struct planning *planning, const struct place_in_order *places,
			  uint32_t at, uint64_t *bytes_out)
{
	uint32_t end = at;

	for (*bytes_out = 0;
	     end < planning->ordered_count && places[end].phase == places[at].phase &&
	     places[end].layer == places[at].layer;
	     end++)
		*bytes_out += unit_bytes(planning, places[end].unit);
	return end;
}

/* Without a stated size a layer stays whole, but a model without layers doesn't. */
static uint64_t bucket_aim(const struct planning *planning, uint32_t phase)
{
	uint64_t aim = planning->plan->input.rules.bucket_bytes, total = 0;

	if (aim != 0)
		return aim;
	if (phase == PHASE_LAYER)
		return UINT64_MAX;
	for (size_t g = 0; g < planning->geometries.count; g++) {
		const struct geometry *geometry = planning_geometry(planning, (uint32_t)g);
		total += geometry->bytes * geometry->unit_count;
	}
	return MAX(1, total * planning->plan->fed_replicas / 4);
}

/* Cuts one layer into as many kinds of about equal bytes as the aim asks for, between groups
 * only. */
static int layer_cut(struct planning *planning, const struct place_in_order *places, uint32_t first,
		     uint32_t end, uint64_t bytes, struct vec *kinds)
{
	uint64_t aim = bucket_aim(planning, places[first].phase), before = 0, group_bytes;
	uint64_t parts = bytes / aim + (bytes % aim != 0);
	struct bucket_kind *kind = NULL;
	uint64_t slot = 0;
	uint32_t part = 0;

	for (uint32_t at = first, next; at < end; at = next) {
		next = group_end(planning, places, at, &group_bytes);
		/* A group goes where its middle is. */
		uint64_t mine = parts < 2 ? 0 : (before + group_bytes / 2) / (bytes / parts + 1);
		if (kind == NULL || mine > slot) {
			slot = mine;
			kind = vec_add(kinds, sizeof(*kind));
			if (kind == NULL)
				return -ENOMEM;
			*kind = (struct bucket_kind){
				.unit_first = at,
				.phase = places[first].phase,
				.layer = places[first].layer,
				.part = part++,
				.bucket_count = layers_alike(planning, places[first].layer)};
		}
		kind->unit_count += next - at;
		kind->bytes += group_bytes;
		before += group_bytes;
	}
	return 0;
}

static int bucket_add(struct planning *planning, struct vec *buckets, uint32_t index, int32_t layer)
{
	const struct bucket_kind *kind = &planning->plan->kinds[index];
	struct unit_bucket *bucket = vec_add(buckets, sizeof(*bucket));

	if (bucket == NULL)
		return -ENOMEM;
	*bucket = (struct unit_bucket){.kind = index,
				       .unit_count = kind->unit_count,
				       .layer = layer,
				       .bytes = kind->bytes,
				       .name = bucket_name(planning, kind, layer)};
	return bucket->name == NULL ? -ENOMEM : 0;
}

/* By layer: the least number of layers that a trainer holding it has before it. */
static void steps_find(const struct planning *planning, uint32_t *steps, bool *held)
{
	const struct manifest *manifest = planning->sides[SIDE_TRAINER].manifest;
	int32_t count = planning->plan->layer_count;

	for (int32_t l = 0; l < count; l++)
		steps[l] = (uint32_t)count;
	for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
		uint32_t step = 0;
		memset(held, 0, (size_t)count * sizeof(*held));
		for (uint32_t r = 0; r < manifest_rule_count(manifest); r++) {
			const int32_t *layers;
			uint32_t n = manifest_layers(manifest, r, rank, &layers);
			for (uint32_t i = 0; i < n; i++)
				if (layers[i] >= 0 && layers[i] < count)
					held[layers[i]] = true;
		}
		for (int32_t l = 0; l < count; l++)
			if (held[l]) {
				steps[l] = MIN(steps[l], step);
				step++;
			}
	}
}

/* The layers by step, those of one step ascending. */
static int32_t *layers_in_step(struct planning *planning)
{
	size_t count = (size_t)planning->plan->layer_count;
	uint32_t *steps = arena_array(&planning->arena, count, sizeof(*steps));
	bool *held = arena_array(&planning->arena, count, sizeof(*held));
	uint32_t *at = arena_array(&planning->arena, count + 2, sizeof(*at));
	int32_t *layers = arena_array(&planning->arena, count, sizeof(*layers));

	if (steps == NULL || held == NULL || at == NULL || layers == NULL)
		return NULL;
	steps_find(planning, steps, held);
	for (size_t l = 0; l < count; l++)
		at[steps[l] + 1]++;
	for (size_t s = 1; s <= count; s++)
		at[s] += at[s - 1];
	for (size_t l = 0; l < count; l++)
		layers[at[steps[l]]++] = (int32_t)l;
	return layers;
}

/* All buckets in their order: a layer's come from the kinds of the layer that it is like. */
static int buckets_list(struct planning *planning, struct vec *buckets)
{
	const struct plan *plan = planning->plan;
	uint32_t *first = arena_array(&planning->arena, (size_t)plan->layer_count, sizeof(*first));
	const int32_t *layers = layers_in_step(planning);
	int rc = first == NULL || layers == NULL ? -ENOMEM : 0;

	for (uint32_t k = plan->kind_count; rc == 0 && k > 0; k--)
		if (plan->kinds[k - 1].phase == PHASE_LAYER)
			first[plan->kinds[k - 1].layer] = k; /* one more than the index */
	for (uint32_t k = 0; rc == 0 && k < plan->kind_count; k++)
		if (plan->kinds[k].phase != PHASE_LAYER)
			rc = bucket_add(planning, buckets, k, -1);
	for (int32_t i = 0; rc == 0 && i < plan->layer_count; i++) {
		int32_t like = planning->layer_like[layers[i]];
		for (uint32_t k = first[like]; rc == 0 && k > 0 && k <= plan->kind_count; k++) {
			const struct bucket_kind *kind = &plan->kinds[k - 1];
			if (kind->phase != PHASE_LAYER || kind->layer != like)
				break;
			rc = bucket_add(planning, buckets, k - 1, layers[i]);
		}
	}
	return rc;
}

static void *keep(struct plan *plan, struct vec *list, size_t bytes_each)
{
	void *kept = arena_array(&plan->arena, list->count, bytes_each);

	if (kept != NULL && list->count > 0)
		memcpy(kept, list->items, list->count * bytes_each);
	return kept;
}

static int buckets_make(struct planning *planning, const struct place_in_order *places,
			struct vec *kinds, struct vec *buckets)
{
	struct plan *plan = planning->plan;

	for (uint32_t at = 0, end; at < planning->ordered_count; at = end) {
		uint64_t bytes;
		end = layer_end(planning, places, at, &bytes);
		if (layer_cut(planning, places, at, end, bytes, kinds) != 0)
			return -ENOMEM;
	}
	plan->kind_count = (uint32_t)kinds->count;
	plan->kinds = keep(plan, kinds, sizeof(*plan->kinds));
	if (plan->kinds == NULL || buckets_list(planning, buckets) != 0)
		return -ENOMEM;
	plan->bucket_count = (uint32_t)buckets->count;
	plan->buckets = keep(plan, buckets, sizeof(*plan->buckets));
	return plan->buckets == NULL ? -ENOMEM : 0;
}

int bucket_make(struct planning *planning, struct ws_error *err)
{
	struct vec kinds = {0}, buckets = {0};
	uint32_t *parent = mem_alloc((size_t)planning->unit_count * sizeof(*parent));
	int rc = parent == NULL ? plan_no_memory(err) : groups_make(planning, parent, err);

	if (rc == 0) {
		const struct place_in_order *places = order_make(planning, parent);
		if (places == NULL || buckets_make(planning, places, &kinds, &buckets) != 0)
			rc = plan_no_memory(err);
	}
	vec_release(&kinds);
	vec_release(&buckets);
	mem_free(parent);
	return rc;
}
