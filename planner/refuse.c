/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of two manifests together that have a cause worth saying, beside the bytes that they
 * leave missing: a name that only the rollout has, padding rows listed as a tensor's own, and a
 * router's bias that would lose its f32.
 */
#include <inttypes.h>
#include <stdio.h>

#include "planner/plan_internal.h"

#define PADDING_UNIT 64 /* every framework pads its vocabulary to a multiple of this */

/* What each side has of a family. */
struct sighting {
	const struct tensor_rule *tensor[2]; /* the first of each side, or NULL */
	bool wanted;			     /* some rollout rank holds some of it */
};

static struct sighting *see(struct planning *planning)
{
	struct sighting *seen =
		arena_array(&planning->arena, planning->families.count + 1, sizeof(*seen));
	for (int s = 0; s < 2 && seen != NULL; s++) {
		const struct side_index *side = &planning->sides[s];
		for (uint32_t t = 0; t < manifest_tensor_count(side->manifest); t++) {
			struct sighting *it = &seen[side->tensors[t].family];
			if (it->tensor[s] == NULL)
				it->tensor[s] = manifest_tensor(side->manifest, t);
		}
	}
	for (uint32_t unit = 0; unit < planning->unit_count && seen != NULL; unit++) {
		const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
		if (side->unit_tensor[unit] != NONE && side->unit_pattern[unit] != NONE)
			seen[side->tensors[side->unit_tensor[unit]].family].wanted = true;
	}
	return seen;
}

static void check_name(struct planning *planning, const struct sighting *seen, uint32_t family)
{
	const struct family *families = planning->families.items;
	struct nearest nearest = {.name = families[family].key};
	bool looks = planning->findings->count < NEAREST_FINDINGS_MAX;
	for (size_t i = 0; i < planning->families.count && looks; i++) {
		if (seen[i].tensor[SIDE_TRAINER] != NULL && seen[i].tensor[SIDE_ROLLOUT] == NULL)
			nearest_try(&nearest, families[i].key);
	}
	/* If nothing is near that the rollout hasn't, something that both have. */
	looks = looks && nearest.best == NULL;
	for (size_t i = 0; i < planning->families.count && looks; i++) {
		if (seen[i].tensor[SIDE_TRAINER] != NULL)
			nearest_try(&nearest, families[i].key);
	}
	findings_add(planning->findings, "name", families[family].key,
		     "the rollout's manifest has this tensor, and the trainer's has none of this "
		     "name%s%s%s",
		     nearest.best != NULL ? "; did it mean '" : "",
		     nearest.best != NULL ? nearest.best : "", nearest.best != NULL ? "'?" : "");
}

/* Rows beyond the vocabulary are nobody's: they are a `p` in the expression of who pads. */
static void check_padding(struct planning *planning, const struct sighting *it, const char *key)
{
	const struct tensor_rule *a = it->tensor[SIDE_TRAINER], *b = it->tensor[SIDE_ROLLOUT];
	uint64_t more = MAX(a->dim[0], b->dim[0]), less = MIN(a->dim[0], b->dim[0]);
	bool alike = a->dim_count == b->dim_count && more != less;
	for (uint32_t d = 1; alike && d < a->dim_count; d++)
		alike = a->dim[d] == b->dim[d];
	if (!alike || more % PADDING_UNIT != 0 || more - less > more / 4)
		return;
	findings_add(planning->findings, "padding", key,
		     "the %s's manifest lists it with %" PRIu64 " rows, %" PRIu64
		     " of them padding that no checkpoint has: list %" PRIu64
		     " rows, and put [\"p\", .., 0, multiple] into the expression of the param",
		     a->dim[0] == more ? "trainer" : "rollout", more, more - less, less);
}

/* ---- The router's bias: rounded to bf16 it chooses other experts. */

static bool is_router_bias(const char *key)
{
	return strstr(key, ".e_score_correction_bias") != NULL;
}

/* The dtype in which a side holds a family, and the param's name; WS_NONE: it doesn't. */
static enum ws_dtype held_as(const struct side_index *side, uint32_t family, const char **name_out)
{
	for (uint32_t r = 0; r < manifest_rule_count(side->manifest); r++) {
		const struct param_rule *rule = manifest_rule(side->manifest, r);
		for (uint32_t rank = 0; rank < side->world; rank++) {
			const struct form *form = NULL;
			const int32_t *layers;
			if (manifest_layers(side->manifest, r, rank, &layers) == 0)
				continue;
			if (manifest_form(side->manifest, r, rank, &form, NULL) != 0 ||
			    form == NULL)
				break;
			for (uint32_t p = 0; p < form->piece_count; p++) {
				*name_out = rule->name;
				if (side->tensors[form->pieces[p].tensor].family == family)
					return rule->dtype;
			}
			break; /* what it is made of is the same at every rank */
		}
	}
	return WS_NONE;
}

static void check_router(struct planning *planning, uint32_t family, const char *key)
{
	const char *mine = "", *theirs = "";
	enum ws_dtype from = held_as(&planning->sides[SIDE_TRAINER], family, &mine);
	enum ws_dtype to = held_as(&planning->sides[SIDE_ROLLOUT], family, &theirs);
	if (from != WS_F32 || to == WS_F32 || to == WS_NONE)
		return;
	findings_add(planning->findings, "router", key,
		     "the trainer's '%s' is f32 and the rollout's '%s' %s: a router's bias chooses "
		     "other experts when it is rounded; make it f32 on both sides",
		     mine, theirs, ws_dtype_name(to));
}

int refuse(struct planning *planning, struct ws_error *err)
{
	const struct family *families = planning->families.items;
	const struct sighting *seen = see(planning);
	if (seen == NULL)
		return plan_no_memory(err);
	for (uint32_t i = 0; i < planning->families.count; i++) {
		const struct tensor_rule *source = seen[i].tensor[SIDE_TRAINER];
		const struct tensor_rule *target = seen[i].tensor[SIDE_ROLLOUT];
		if (!seen[i].wanted || target == NULL || target->is_scale)
			continue;
		if (source == NULL)
			check_name(planning, seen, i);
		else
			check_padding(planning, &seen[i], families[i].key);
		if (source != NULL && is_router_bias(families[i].key))
			check_router(planning, i, families[i].key);
	}
	return 0;
}
