/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which layers are alike: every rank of both sides has the same rules at them, with the same
 * experts.  Forms don't depend on the layer, so what is planned for one of them is true for all,
 * but for the numbers of params, which move by whole layers.
 *
 * A tensor whose name fixes its layer, or has none, may be read by params of another layer; such
 * layers are only like themselves.
 */
#include "planner/plan_internal.h"

struct alike {
	struct planning *planning;
	uint64_t *sign; /* by layer: of who has which rule there */
	bool *single;	/* by layer: like no other */
	struct ws_error *err;
};

static int32_t layers_end(const struct planning *planning)
{
	const struct family *families = planning->families.items;
	int32_t end = 0;

	for (size_t i = 0; i < planning->families.count; i++)
		end = MAX(end, families[i].layer_hi);
	for (int s = 0; s < 2; s++) {
		const struct side_index *side = &planning->sides[s];
		for (uint32_t i = 0; i < manifest_rule_count(side->manifest); i++)
			for (uint32_t rank = 0; rank < side->world; rank++) {
				const int32_t *layers;
				uint32_t count = manifest_layers(side->manifest, i, rank, &layers);
				if (count > 0)
					end = MAX(end, layers[count - 1] + 1);
			}
	}
	return end;
}

/* The experts of a rank's rule at a layer. */
static uint64_t experts_sign(const struct side_index *side, uint32_t rule, uint32_t rank,
			     int32_t layer)
{
	const int32_t *experts;
	uint32_t count = manifest_experts(side->manifest, rule, rank, layer, &experts);

	return count == 0 ? 0 : digest_bytes(experts, count * sizeof(*experts), count);
}

static void sign_rule(struct alike *alike, enum side which, uint32_t rule, uint32_t rank,
		      const int32_t *layers, uint32_t count)
{
	const struct side_index *side = &alike->planning->sides[which];
	const struct param_rule *view = manifest_rule(side->manifest, rule);
	bool has_experts = view->each_expert || view->stacks_experts;
	uint64_t key = mix64(((uint64_t)rule << 33 | (uint64_t)which << 32 | rank) + 1);

	for (uint32_t i = 0; i < count; i++) {
		uint64_t sign = key;
		if (has_experts)
			sign += experts_sign(side, rule, rank, layers[i]);
		alike->sign[layers[i]] = mix64(alike->sign[layers[i]] * 31 + sign);
	}
}

/* A form whose pieces aren't of their param's own layer. */
static void find_single(struct alike *alike, const struct side_index *side, const struct form *form,
			const int32_t *layers, uint32_t count)
{
	for (uint32_t i = 0; i < form->piece_count; i++) {
		int32_t layer = side->tensors[form->pieces[i].tensor].layer;
		if (layer == FROM_PARAM || (layer < 0 && layers[0] < 0))
			continue;
		if (layer >= 0)
			alike->single[layer] = true;
		for (uint32_t l = 0; l < count; l++)
			if (layers[l] >= 0)
				alike->single[layers[l]] = true;
	}
}

static int sign_rank(struct alike *alike, enum side which, uint32_t rank)
{
	struct plan *plan = alike->planning->plan;
	const struct side_index *side = &alike->planning->sides[which];

	for (uint32_t i = 0; i < manifest_rule_count(side->manifest); i++) {
		const struct form *form = NULL;
		const int32_t *layers;
		uint32_t count = manifest_layers(side->manifest, i, rank, &layers);
		if (count == 0)
			continue;
		int rc = manifest_form(side->manifest, i, rank, &form, alike->err);
		if (rc != 0)
			return rc;
		if (form == NULL)
			continue;
		find_single(alike, side, form, layers, count);
		if (layers[0] < 0)
			continue;
		sign_rule(alike, which, i, rank, layers, count);
		uint32_t *places =
			plan->layer_place[which] + (size_t)i * (uint32_t)plan->layer_count;
		for (uint32_t l = 0; l < count; l++)
			places[layers[l]] = l;
	}
	return 0;
}

static int classes_make(struct alike *alike)
{
	struct planning *planning = alike->planning;
	struct idmap map = {0};
	int rc = 0;

	for (int32_t layer = 0; rc == 0 && layer < planning->plan->layer_count; layer++) {
		uint32_t first = NONE;
		if (!alike->single[layer])
			first = idmap_get(&map, alike->sign[layer]);
		if (first == NONE) {
			first = (uint32_t)layer;
			rc = alike->single[layer] ? 0 : idmap_put(&map, alike->sign[layer], first);
		}
		planning->layer_like[layer] = (int32_t)first;
		planning->layer_alike[first]++;
	}
	idmap_release(&map);
	return rc;
}

int layers_make(struct planning *planning, struct ws_error *err)
{
	struct plan *plan = planning->plan;
	struct alike alike = {.planning = planning, .err = err};
	int32_t end = layers_end(planning);
	size_t count = (size_t)end;
	int rc = 0;

	plan->layer_count = end;
	for (int s = 0; s < 2; s++) {
		uint64_t rules = manifest_rule_count(planning->sides[s].manifest);
		if (rules * count > PLACES_MAX)
			return ws_fail(err, -ENOSPC,
				       "the %s's %" PRIu64 " rules over %" PRId32
				       " layers are more than the planner's limit of %u",
				       planning->sides[s].who, rules, end, PLACES_MAX);
		plan->layer_place[s] = arena_array(&plan->arena, rules * count, sizeof(uint32_t));
		if (plan->layer_place[s] == NULL)
			return plan_no_memory(err);
	}
	planning->layer_like = arena_array(&planning->arena, count, sizeof(int32_t));
	planning->layer_alike = arena_array(&planning->arena, count, sizeof(uint32_t));
	alike.sign = arena_array(&planning->arena, count, sizeof(uint64_t));
	alike.single = arena_array(&planning->arena, count, sizeof(bool));
	if (planning->layer_like == NULL || planning->layer_alike == NULL || alike.sign == NULL ||
	    alike.single == NULL)
		return plan_no_memory(err);
	for (int s = 0; s < 2; s++)
		for (uint32_t rank = 0; rc == 0 && rank < planning->sides[s].world; rank++)
			rc = sign_rank(&alike, (enum side)s, rank);
	if (rc == 0 && classes_make(&alike) != 0)
		rc = plan_no_memory(err);
	return rc;
}

uint32_t layers_alike(const struct planning *planning, int32_t layer)
{
	return layer < 0 ? 1 : planning->layer_alike[layer];
}

bool layers_planned(const struct planning *planning, int32_t layer)
{
	return layer < 0 || planning->layer_like[layer] == layer;
}
