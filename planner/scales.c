/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scales of targets that are quantized on the way.  No trainer holds a scale: it comes out of the
 * weight, once the maxima of a block are known to all who hold a part of it.  So each of them may
 * send it, and one does: a trainer's box of a weight is, for its scale, the box of all blocks
 * that it touches, and geometry.c gives each element to the first that has it.
 */
#include "planner/plan_internal.h"

uint32_t scales_weight(const struct planning *planning, uint32_t unit)
{
	const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
	uint32_t tensor = side->unit_tensor[unit];
	int32_t layer, expert;

	if (tensor == NONE || !manifest_tensor(side->manifest, tensor)->is_scale)
		return NONE;
	match_unit(planning, unit, &layer, &expert);
	return match_unit_of(planning, side, manifest_tensor(side->manifest, tensor)->weight_tensor,
			     layer, expert);
}

/* A unit of the same layer and expert, of another tensor of the rollout's. */
static uint32_t unit_beside(const struct planning *planning, uint32_t unit, uint32_t tensor)
{
	const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
	int32_t layer, expert;

	match_unit(planning, unit, &layer, &expert);
	return match_unit_of(planning, side, tensor, layer, expert);
}

uint32_t scales_lead(const struct planning *planning, uint32_t unit)
{
	const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
	uint32_t tensor = side->unit_tensor[unit];
	uint32_t lead = tensor == NONE ? NONE : manifest_tensor_lead(side->manifest, tensor);

	return lead == tensor ? unit : unit_beside(planning, unit, lead);
}

uint32_t scales_fellow(const struct planning *planning, uint32_t unit)
{
	const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
	uint32_t tensor = side->unit_tensor[unit];
	uint32_t fellow = tensor == NONE ? NONE : manifest_tensor_fellow(side->manifest, tensor);

	return fellow == tensor ? unit : unit_beside(planning, unit, fellow);
}

/* The whole canonical scale, row-major: what a derived source is read from. */
static const struct piece *scale_piece(struct planning *planning, const struct tensor_rule *scale)
{
	struct piece *piece = arena_alloc(&planning->arena, sizeof(*piece));
	int64_t stride = 1;

	if (piece == NULL)
		return NULL;
	piece->dim_count = scale->dim_count;
	for (uint32_t d = scale->dim_count; d > 0; d--) {
		piece->extent[d - 1] = scale->dim[d - 1];
		piece->stride[d - 1] = stride;
		stride *= (int64_t)scale->dim[d - 1];
	}
	return piece;
}

static bool quantizable(enum ws_dtype dtype)
{
	return dtype == WS_F32 || dtype == WS_BF16 || dtype == WS_F16;
}

static int pattern_derive(struct planning *planning, uint32_t unit, uint32_t weight_pattern)
{
	struct side_index *source = &planning->sides[SIDE_TRAINER];
	const struct side_index *target = &planning->sides[SIDE_ROLLOUT];
	const struct tensor_rule *scale =
		manifest_tensor(target->manifest, target->unit_tensor[unit]);
	const struct grid grid =
		grid_make(manifest_tensor_scheme(target->manifest, scale->weight_tensor),
			  manifest_tensor(target->manifest, scale->weight_tensor));
	struct pattern *derived = vec_add(&source->patterns, sizeof(*derived));
	const struct pattern *weight = side_pattern(source, weight_pattern);
	struct entry *entries =
		arena_array(&planning->arena, weight->entry_count, sizeof(*entries));
	const struct piece *piece = scale_piece(planning, scale);

	if (derived == NULL || entries == NULL || piece == NULL)
		return -ENOMEM;
	*derived = (struct pattern){.unit = unit,
				    .entry_count = weight->entry_count,
				    .entry_room = weight->entry_count,
				    .entries = entries,
				    .derived = true};
	for (uint32_t i = 0; i < weight->entry_count; i++) {
		entries[i] = weight->entries[i];
		entries[i].box = grid_touched(&grid, &weight->entries[i].box);
		entries[i].piece = piece;
		entries[i].dtype = scale->dtype;
	}
	return 0;
}

/* All weights under a scale must be such that it can be made of them; each pattern is looked at
 * once. */
static int weights_check(struct planning *planning, struct idmap *seen, uint32_t scale,
			 uint32_t weight)
{
	const struct side_index *source = &planning->sides[SIDE_TRAINER];
	uint32_t unit = weight;
	char name[256];

	do {
		uint32_t index = source->unit_pattern[unit];
		bool known = index == NONE || idmap_get(seen, index) != NONE;
		if (!known && idmap_put(seen, index, 0) != 0)
			return -ENOMEM;
		const struct pattern *pattern = known ? NULL : side_pattern(source, index);
		for (uint32_t i = 0; pattern != NULL && i < pattern->entry_count; i++) {
			if (quantizable(pattern->entries[i].dtype))
				continue;
			match_unit_name(planning, scale, name, sizeof(name));
			findings_add(planning->findings, "quant", name,
				     "'%s' comes out of quantizing f32, bf16 or f16, and the "
				     "trainer's weight is %s",
				     name, ws_dtype_name(pattern->entries[i].dtype));
			break;
		}
		unit = scales_fellow(planning, unit);
	} while (unit != weight);
	return 0;
}

int scales_make(struct planning *planning, struct ws_error *err)
{
	struct side_index *source = &planning->sides[SIDE_TRAINER];
	const struct side_index *target = &planning->sides[SIDE_ROLLOUT];
	struct idmap map = {0}, seen = {0};
	int rc = 0;

	if (manifest_quant(target->manifest) == NULL)
		return 0;
	for (uint32_t unit = 0; rc == 0 && unit < planning->unit_count; unit++) {
		if (target->unit_pattern[unit] == NONE || source->unit_pattern[unit] != NONE)
			continue;
		uint32_t weight = scales_weight(planning, unit);
		uint32_t pattern = weight == NONE ? NONE : source->unit_pattern[weight];
		if (pattern == NONE)
			continue;
		uint64_t key = (uint64_t)pattern << 32 | target->unit_tensor[unit];
		uint32_t derived = idmap_get(&map, key);
		if (derived == NONE) {
			derived = (uint32_t)source->patterns.count;
			rc = pattern_derive(planning, unit, pattern);
			if (rc == 0)
				rc = idmap_put(&map, key, derived);
		}
		if (rc == 0)
			rc = weights_check(planning, &seen, unit, weight);
		source->unit_pattern[unit] = derived;
	}
	idmap_release(&map);
	idmap_release(&seen);
	return rc == 0 ? 0 : plan_no_memory(err);
}
