/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units: the canonical tensors of both manifests, one of one layer and expert each, numbered
 * family by family.  A family is all tensors of one name, whichever side names them.
 */
#include <ctype.h>
#include <stdio.h>

#include "planner/check.h"

#define NUMBER_DIGITS_MAX 9

static bool is_number(const char *text, size_t bytes)
{
	if (bytes == 0 || bytes > NUMBER_DIGITS_MAX)
		return false;
	for (size_t i = 0; i < bytes; i++)
		if (!isdigit((unsigned char)text[i]))
			return false;
	return bytes == 1 || text[0] != '0';
}

/*
 * The name with its first two numbers read as layer and expert where it has no {L} or {E}:
 * an explicit row's "model.layers.3.x" is the unit that a rule's "model.layers.{L}.x" means.
 */
static char *name_key(struct arena *arena, const struct tensor_rule *rule,
		      struct tensor_place *place)
{
	bool has_layer = strstr(rule->name, "{L}") != NULL;
	bool has_expert = strstr(rule->name, "{E}") != NULL;
	size_t bytes = strlen(rule->name);
	char *key = arena_alloc(arena, bytes + 2 * sizeof("{L}"));

	place->layer = has_layer ? FROM_PARAM : -1;
	place->expert = has_expert ? FROM_PARAM : -1;
	if (key == NULL)
		return NULL;
	char *out = key;
	for (const char *at = rule->name; at <= rule->name + bytes;) {
		size_t part = strcspn(at, ".");
		if (is_number(at, part) && (!has_layer || !has_expert)) {
			int32_t number = (int32_t)strtol(at, NULL, 10);
			*out++ = '{';
			*out++ = has_layer ? 'E' : 'L';
			*out++ = '}';
			if (has_layer)
				place->expert = number;
			else
				place->layer = number;
			has_expert = has_expert || has_layer;
			has_layer = true;
		} else {
			memcpy(out, at, part);
			out += part;
		}
		*out++ = at[part];
		at += part + 1;
	}
	return key;
}

static struct family *family_find(struct planning *planning, const char *key, uint32_t *index_out)
{
	struct family *families = planning->families.items;
	uint64_t hash = digest_bytes(key, strlen(key), 0);
	uint32_t index;

	/* Ends: there are finitely many families. */
	while ((index = idmap_get(&planning->family_map, hash)) != NONE) {
		*index_out = index;
		if (strcmp(families[index].key, key) == 0)
			return &families[index];
		hash++;
	}
	struct family *family = vec_add(&planning->families, sizeof(*family));
	*index_out = (uint32_t)planning->families.count - 1;
	if (family == NULL || idmap_put(&planning->family_map, hash, *index_out) != 0)
		return NULL;
	*family = (struct family){.key = key,
				  .layer_lo = INT32_MAX,
				  .layer_hi = INT32_MIN,
				  .expert_lo = INT32_MAX,
				  .expert_hi = INT32_MIN};
	return family;
}

/* The range of layers (or experts) that a rule spans, also where its name fixes one or has none. */
static void place_range(int32_t fixed, int32_t rule_lo, int32_t rule_hi, int32_t *lo, int32_t *hi)
{
	*lo = fixed == FROM_PARAM ? rule_lo : fixed;
	*hi = fixed == FROM_PARAM ? rule_hi : fixed + 1;
}

static int families_make(struct planning *planning, struct side_index *side, struct ws_error *err)
{
	uint32_t count = manifest_tensor_count(side->manifest);

	side->tensors = arena_array(&planning->arena, count, sizeof(*side->tensors));
	if (side->tensors == NULL)
		return plan_no_memory(err);
	for (uint32_t i = 0; i < count; i++) {
		const struct tensor_rule *rule = manifest_tensor(side->manifest, i);
		struct tensor_place *place = &side->tensors[i];
		const char *key = name_key(&planning->arena, rule, place);
		struct family *family =
			key == NULL ? NULL : family_find(planning, key, &place->family);
		int32_t lo, hi;
		if (family == NULL)
			return plan_no_memory(err);
		place_range(place->layer, rule->layer_lo, rule->layer_hi, &lo, &hi);
		family->layer_lo = MIN(family->layer_lo, lo);
		family->layer_hi = MAX(family->layer_hi, hi);
		place_range(place->expert, rule->expert_lo, rule->expert_hi, &lo, &hi);
		family->expert_lo = MIN(family->expert_lo, lo);
		family->expert_hi = MAX(family->expert_hi, hi);
	}
	return 0;
}

static int units_number(struct planning *planning, struct ws_error *err)
{
	struct family *families = planning->families.items;
	uint64_t count = 0;

	for (size_t i = 0; i < planning->families.count; i++) {
		struct family *family = &families[i];
		int64_t layers = MAX(0, (int64_t)family->layer_hi - family->layer_lo);
		int64_t experts = MAX(0, (int64_t)family->expert_hi - family->expert_lo);
		family->unit_first = (uint32_t)count;
		if (layers > UNITS_MAX || experts > UNITS_MAX)
			count = UNITS_MAX + 1ull;
		else
			count += (uint64_t)layers * (uint64_t)experts;
		if (count > UNITS_MAX)
			return ws_fail(err, -ENOSPC,
				       "'%s' spans more layers and experts than the planner's "
				       "limit of %u tensors",
				       family->key, UNITS_MAX);
	}
	planning->unit_count = (uint32_t)count;
	return 0;
}

/* NONE where the layer or the expert is beyond what the family's rules span. */
uint32_t match_family_unit(const struct family *family, int32_t layer, int32_t expert)
{
	if (layer < family->layer_lo || layer >= family->layer_hi || expert < family->expert_lo ||
	    expert >= family->expert_hi)
		return NONE;
	uint32_t experts = (uint32_t)(family->expert_hi - family->expert_lo);
	return family->unit_first + (uint32_t)(layer - family->layer_lo) * experts +
	       (uint32_t)(expert - family->expert_lo);
}

uint32_t match_unit_of(const struct planning *planning, const struct side_index *side,
		       uint32_t tensor, int32_t layer, int32_t expert)
{
	const struct tensor_place *place = &side->tensors[tensor];
	const struct family *families = planning->families.items;

	return match_family_unit(&families[place->family],
				 place->layer == FROM_PARAM ? layer : place->layer,
				 place->expert == FROM_PARAM ? expert : place->expert);
}

const struct family *match_unit(const struct planning *planning, uint32_t unit, int32_t *layer,
				int32_t *expert)
{
	const struct family *families = planning->families.items;
	size_t lo = 0, hi = planning->families.count;

	while (hi - lo > 1) {
		size_t middle = (lo + hi) / 2;
		if (families[middle].unit_first <= unit)
			lo = middle;
		else
			hi = middle;
	}
	uint32_t experts = (uint32_t)(families[lo].expert_hi - families[lo].expert_lo);
	uint32_t index = unit - families[lo].unit_first;
	*layer = families[lo].layer_lo + (int32_t)(index / experts);
	*expert = families[lo].expert_lo + (int32_t)(index % experts);
	return &families[lo];
}

const char *match_unit_name(const struct planning *planning, uint32_t unit, char *out, size_t bytes)
{
	int32_t layer, expert;
	const struct family *family = match_unit(planning, unit, &layer, &expert);
	struct tensor_rule rule = {.name = family->key};

	tensor_name(&rule, layer, expert, out, bytes);
	return out;
}

/* Notes that this tensor is the units that it names; none may be another one, too. */
static int unit_tensors_put(const struct side_index *side, const struct family *family,
			    uint32_t tensor, struct ws_error *err)
{
	const struct tensor_rule *rule = manifest_tensor(side->manifest, tensor);
	const struct tensor_place *place = &side->tensors[tensor];
	int32_t layer_lo, layer_hi, expert_lo, expert_hi;

	place_range(place->layer, rule->layer_lo, rule->layer_hi, &layer_lo, &layer_hi);
	place_range(place->expert, rule->expert_lo, rule->expert_hi, &expert_lo, &expert_hi);
	for (int32_t layer = layer_lo; layer < layer_hi; layer++)
		for (int32_t expert = expert_lo; expert < expert_hi; expert++) {
			uint32_t *at = &side->unit_tensor[match_family_unit(family, layer, expert)];
			if (*at != NONE)
				return ws_fail(
					err, -EINVAL,
					"the %s's \"tensors\" has one twice, as '%s' and as "
					"'%s'",
					manifest_side(side->manifest) == SIDE_TRAINER ? "trainer"
										      : "rollout",
					manifest_tensor(side->manifest, *at)->name, rule->name);
			*at = tensor;
		}
	return 0;
}

/* Which rule names each unit on this side. */
static int unit_tensors_make(struct planning *planning, struct side_index *side,
			     struct ws_error *err)
{
	const struct family *families = planning->families.items;
	uint32_t count = manifest_tensor_count(side->manifest);

	side->unit_tensor = arena_array(&planning->arena, planning->unit_count, sizeof(uint32_t));
	side->unit_pattern = arena_array(&planning->arena, planning->unit_count, sizeof(uint32_t));
	side->ranks = arena_array(&planning->arena, side->world, sizeof(*side->ranks));
	if (side->unit_tensor == NULL || side->unit_pattern == NULL || side->ranks == NULL)
		return plan_no_memory(err);
	memset(side->unit_tensor, 0xff, planning->unit_count * sizeof(uint32_t));
	memset(side->unit_pattern, 0xff, planning->unit_count * sizeof(uint32_t));
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		rc = unit_tensors_put(side, &families[side->tensors[i].family], i, err);
	return rc;
}

int match_units(struct planning *planning, struct ws_error *err)
{
	struct side_index *sides = planning->sides;
	int rc = 0;

	for (int s = 0; rc == 0 && s < 2; s++)
		rc = families_make(planning, &sides[s], err);
	if (rc == 0)
		rc = units_number(planning, err);
	for (int s = 0; rc == 0 && s < 2; s++)
		rc = unit_tensors_make(planning, &sides[s], err);
	return rc;
}
