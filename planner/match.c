/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching: each side's holdings of a unit become a pattern that equal units share.  A walk
 * through what a rank holds is arithmetic over the manifest's forms; nothing is searched.
 */
#include <stdio.h>

#include "planner/check.h"

/* What one rule's param contributes: each piece of its form at one layer and expert. */
struct walk {
	struct planning *planning;
	const struct side_index *side;
	visit_fn *visit;
	void *arg;
	struct ws_error *err;
	uint32_t rank, rule, each, param;
	struct vec hashes; /* of uint64_t: by piece of the form at hand */
};

/* Whether the whole piece lies row after row. */
static bool piece_dense(const struct piece *piece)
{
	struct box box = {.dim_count = piece->dim_count};

	memcpy(box.extent, piece->extent, piece->dim_count * sizeof(uint64_t));
	return box_dense(&box, piece);
}

static int walk_hashes(struct walk *walk, const struct form *form, enum ws_dtype dtype)
{
	walk->hashes.count = 0;
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *piece = &form->pieces[i];
		uint64_t *hash = vec_add(&walk->hashes, sizeof(*hash));
		if (hash == NULL)
			return plan_no_memory(walk->err);
		*hash = mix64(((uint64_t)dtype << 8 | piece->dim_count) + 0x9e3779b97f4a7c15ull);
		for (uint32_t d = 0; d < piece->dim_count; d++) {
			*hash = mix64(*hash * 31 + piece->offset[d]);
			*hash = mix64(*hash * 37 + piece->extent[d]);
			*hash = mix64(*hash * 41 + (uint64_t)piece->stride[d]);
		}
	}
	return 0;
}

static int walk_param(struct walk *walk, struct param *param)
{
	const struct manifest *manifest = walk->side->manifest;
	const struct family *families = walk->planning->families.items;
	const int32_t *experts = NULL;
	uint32_t expert_count = 0;
	struct visit visit = {.rank = walk->rank,
			      .rule = walk->rule,
			      .each = walk->each,
			      .param = walk->param,
			      .dtype = param->dtype,
			      .form = param->form};

	for (uint32_t i = 0; i < param->form->piece_count; i++) {
		const struct piece *piece = &param->form->pieces[i];
		const struct tensor_place *place = &walk->side->tensors[piece->tensor];
		int32_t layer = place->layer == FROM_PARAM ? param->layer : place->layer;
		int32_t expert = place->expert;
		if (piece->slot >= 0 && experts == NULL)
			expert_count = manifest_experts(manifest, param->rule, walk->rank,
							param->layer, &experts);
		if (expert == FROM_PARAM && piece->slot < 0)
			expert = param->expert;
		else if (expert == FROM_PARAM)
			expert = (uint32_t)piece->slot < expert_count ? experts[piece->slot] : -1;
		visit.unit = match_family_unit(&families[place->family], layer, expert);
		if (visit.unit == NONE)
			return ws_fail(walk->err, -EINVAL,
				       "the %s's '%s' at rank %" PRIu32 " reads layer %" PRId32
				       ", expert %" PRId32
				       " of '%s', which its manifest doesn't have",
				       walk->side->who, manifest_rule(manifest, param->rule)->name,
				       walk->rank, layer, expert, families[place->family].key);
		visit.param_begins = i == 0;
		visit.piece = piece;
		visit.box_hash = ((const uint64_t *)walk->hashes.items)[i];
		int rc = walk->visit(walk->arg, &visit);
		if (rc != 0)
			return rc == -ENOMEM ? plan_no_memory(walk->err) : rc;
	}
	walk->param++;
	return 0;
}

static int walk_rule(struct walk *walk, uint32_t index)
{
	const struct manifest *manifest = walk->side->manifest;
	const struct param_rule *rule = manifest_rule(manifest, index);
	const struct form *form = NULL;
	const int32_t *layers = NULL, *experts = NULL;
	uint32_t layer_count = manifest_layers(manifest, index, walk->rank, &layers);
	int rc = 0;

	if (layer_count > 0)
		rc = manifest_form(manifest, index, walk->rank, &form, walk->err);
	if (rc != 0 || form == NULL)
		return rc;
	rc = walk_hashes(walk, form, rule->dtype);
	walk->rule = index;
	for (uint32_t l = 0; rc == 0 && l < layer_count; l++) {
		struct param param = {.rule = index,
				      .layer = layers[l],
				      .expert = -1,
				      .slot = -1,
				      .dtype = rule->dtype,
				      .form = form};
		walk->each = 1;
		if (rule->each_expert)
			walk->each =
				manifest_experts(manifest, index, walk->rank, layers[l], &experts);
		if (!layers_planned(walk->planning, layers[l])) {
			walk->param += walk->each;
			continue;
		}
		for (uint32_t e = 0; rc == 0 && e < walk->each; e++) {
			if (rule->each_expert) {
				param.expert = experts[e];
				param.slot = (int32_t)e;
			}
			rc = walk_param(walk, &param);
		}
	}
	return rc;
}

int match_walk(struct planning *planning, enum side side, uint32_t rank, visit_fn *visit, void *arg,
	       struct ws_error *err)
{
	struct walk walk = {.planning = planning,
			    .side = &planning->sides[side],
			    .visit = visit,
			    .arg = arg,
			    .err = err,
			    .rank = rank};
	uint32_t count = manifest_rule_count(walk.side->manifest);
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < count; i++)
		rc = walk_rule(&walk, i);
	vec_release(&walk.hashes);
	return rc;
}

/* First walk: a hash per unit of who holds what; equal hashes are one pattern. */
struct hash_walk {
	uint64_t *hash;	 /* by unit */
	uint32_t *count; /* by unit: holdings */
};

static int hash_visit(void *arg, const struct visit *visit)
{
	struct hash_walk *walk = arg;

	walk->hash[visit->unit] =
		mix64(walk->hash[visit->unit] * 0x9e3779b97f4a7c15ull + visit->box_hash +
		      (uint64_t)visit->rank * 0xff51afd7ed558ccdull + 1);
	walk->count[visit->unit]++;
	return 0;
}

static int entry_visit(void *arg, const struct visit *visit)
{
	struct side_index *side = arg;
	uint32_t index = side->unit_pattern[visit->unit];
	struct pattern *pattern = side_pattern(side, index);
	const struct piece *piece = visit->piece;

	if (pattern->unit != visit->unit)
		return 0;
	struct entry *entry = &pattern->entries[pattern->entry_count];
	*entry = (struct entry){.piece = piece,
				.rule = visit->rule,
				.rank = visit->rank,
				.dtype = visit->dtype,
				.dense = piece_dense(piece),
				.box.dim_count = piece->dim_count};
	memcpy(entry->box.offset, piece->offset, piece->dim_count * sizeof(uint64_t));
	memcpy(entry->box.extent, piece->extent, piece->dim_count * sizeof(uint64_t));
	if (pattern->entry_count > 0 && entry[-1].rank == visit->rank)
		entry->nth = entry[-1].nth + 1;
	pattern->entry_count++;
	return 0;
}

static int patterns_number(struct planning *planning, struct side_index *side,
			   const struct hash_walk *walk)
{
	struct idmap map = {0};
	int rc = 0;

	for (uint32_t unit = 0; rc == 0 && unit < planning->unit_count; unit++) {
		if (walk->count[unit] == 0)
			continue;
		uint32_t index = idmap_get(&map, walk->hash[unit]);
		if (index == NONE) {
			index = (uint32_t)side->patterns.count;
			struct pattern *pattern = vec_add(&side->patterns, sizeof(*pattern));
			rc = pattern == NULL ? -ENOMEM : idmap_put(&map, walk->hash[unit], index);
			if (rc != 0)
				break;
			pattern->unit = unit;
			pattern->entry_room = walk->count[unit];
			pattern->entries = arena_array(&planning->arena, walk->count[unit],
						       sizeof(struct entry));
			rc = pattern->entries == NULL ? -ENOMEM : 0;
		}
		side->unit_pattern[unit] = index;
	}
	idmap_release(&map);
	return rc;
}

static int patterns_make(struct planning *planning, enum side which, struct ws_error *err)
{
	struct side_index *side = &planning->sides[which];
	struct hash_walk walk = {
		.hash = mem_alloc((size_t)planning->unit_count * sizeof(uint64_t)),
		.count = mem_alloc((size_t)planning->unit_count * sizeof(uint32_t)),
	};
	int rc = walk.hash == NULL || walk.count == NULL ? plan_no_memory(err) : 0;

	for (uint32_t rank = 0; rc == 0 && rank < side->world; rank++)
		rc = match_walk(planning, which, rank, hash_visit, &walk, err);
	if (rc == 0 && patterns_number(planning, side, &walk) != 0)
		rc = plan_no_memory(err);
	for (uint32_t rank = 0; rc == 0 && rank < side->world; rank++)
		rc = match_walk(planning, which, rank, entry_visit, side, err);
	mem_free(walk.hash);
	mem_free(walk.count);
	return rc;
}

static void shape_text(const struct tensor_rule *rule, char *out, size_t bytes)
{
	size_t used = (size_t)snprintf(out, bytes, "[");

	for (uint32_t d = 0; d < rule->dim_count && used < bytes; d++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%" PRIu64, d == 0 ? "" : ", ",
					 rule->dim[d]);
	if (used < bytes)
		snprintf(out + used, bytes - used, "]");
}

/* Where both manifests name a tensor that the target holds, they must agree on its shape. */
static void check_shapes(struct planning *planning)
{
	const struct side_index *source = &planning->sides[SIDE_TRAINER];
	const struct side_index *target = &planning->sides[SIDE_ROLLOUT];
	uint32_t told_source = NONE, told_target = NONE;

	for (uint32_t unit = 0; unit < planning->unit_count; unit++) {
		uint32_t s = source->unit_tensor[unit], t = target->unit_tensor[unit];
		if (s == NONE || t == NONE || target->unit_pattern[unit] == NONE)
			continue;
		if (s == told_source && t == told_target)
			continue;
		const struct tensor_rule *a = manifest_tensor(source->manifest, s);
		const struct tensor_rule *b = manifest_tensor(target->manifest, t);
		if (a->dim_count == b->dim_count &&
		    memcmp(a->dim, b->dim, a->dim_count * sizeof(a->dim[0])) == 0)
			continue;
		char name[256], have[128], want[128];
		shape_text(a, have, sizeof(have));
		shape_text(b, want, sizeof(want));
		match_unit_name(planning, unit, name, sizeof(name));
		findings_add(planning->findings, "shape", name,
			     "'%s' is %s in the trainer's manifest and %s in "
			     "the rollout's: make both from one model",
			     name, have, want);
		told_source = s;
		told_target = t;
	}
}

static int holding_order(const void *a, const void *b)
{
	const struct holding *x = a, *y = b;

	if (x->unit != y->unit)
		return x->unit < y->unit ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static int holding_visit(void *arg, const struct visit *visit)
{
	struct vec *list = arg;
	struct holding *holding = vec_add(list, sizeof(*holding));

	if (holding == NULL)
		return -ENOMEM;
	*holding = (struct holding){.unit = visit->unit,
				    .order = (uint32_t)list->count,
				    .param = visit->param,
				    .rule = visit->rule,
				    .each = visit->each,
				    .dtype = visit->dtype,
				    .piece = visit->piece,
				    .begins = visit->param_begins ? visit->form : NULL};
	return 0;
}

int match_holdings(struct planning *planning, enum side side, uint32_t rank, uint32_t unit,
		   const struct holding **first_out, uint32_t *count_out, struct ws_error *err)
{
	struct rank_holdings *known = &planning->sides[side].ranks[rank];

	if (!known->known) {
		int rc = match_walk(planning, side, rank, holding_visit, &known->list, err);
		if (rc != 0)
			return rc;
		if (known->list.count > 0)
			qsort(known->list.items, known->list.count, sizeof(struct holding),
			      holding_order);
		known->known = true;
	}
	const struct holding *list = known->list.items;
	size_t lo = 0, hi = known->list.count;
	while (lo < hi) {
		size_t middle = (lo + hi) / 2;
		if (list[middle].unit < unit)
			lo = middle + 1;
		else
			hi = middle;
	}
	*first_out = list + lo;
	for (*count_out = 0; lo < known->list.count && list[lo].unit == unit; lo++)
		++*count_out;
	return 0;
}

/* Two pieces on one place of a target param would write it twice.  Each form is looked at once. */
static int check_overlaps(struct planning *planning, struct ws_error *err)
{
	const struct manifest *manifest = planning->sides[SIDE_ROLLOUT].manifest;
	uint64_t rules = manifest_rule_count(manifest);
	struct idmap met = {0};
	int rc = 0;

	for (uint64_t i = 0; rc == 0 && i < rules * planning->sides[SIDE_ROLLOUT].world; i++) {
		uint32_t rule = (uint32_t)(i % rules), rank = (uint32_t)(i / rules);
		const struct form *form = NULL;
		const int32_t *layers;
		if (manifest_layers(manifest, rule, rank, &layers) == 0)
			continue;
		rc = manifest_form(manifest, rule, rank, &form, err);
		uint64_t key = form == NULL ? 0 : (uint64_t)rule << 32 | form->id;
		if (rc != 0 || form == NULL || idmap_get(&met, key) != NONE)
			continue;
		int overlaps = account_form_overlaps(form);
		if (overlaps == 1)
			findings_add(
				planning->findings, "doubled", manifest_rule(manifest, rule)->name,
				"two pieces of '%s' at rollout rank %" PRIu32 " share elements",
				manifest_rule(manifest, rule)->name, rank);
		if (overlaps < 0 || idmap_put(&met, key, 0) != 0)
			rc = plan_no_memory(err);
	}
	idmap_release(&met);
	return rc;
}

int match_make(struct planning *planning, struct ws_error *err)
{
	int rc = 0;

	for (int s = 0; rc == 0 && s < 2; s++)
		rc = patterns_make(planning, (enum side)s, err);
	if (rc != 0)
		return rc;
	check_shapes(planning);
	return check_overlaps(planning, err);
}
