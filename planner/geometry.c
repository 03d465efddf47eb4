/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry: for each pair of patterns that meet in a unit, once.  The trainers' boxes become
 * disjoint cells, each with the set of ranks that hold all of it; each target box is cut by
 * the cells into atoms, and their volumes prove that it is covered exactly once.
 */
#include <stdio.h>

#include "planner/plan_internal.h"

/* What exists while one geometry is made. */
struct making {
	struct planning *planning;
	struct geometry *geometry;
	struct vec cells;    /* of struct cell */
	struct vec ends;     /* of uint64_t: the highest end on dim 0 of cells[0..i] */
	struct vec wants;    /* of struct want */
	struct vec atoms;    /* of struct atom */
	struct vec holders;  /* of struct holder */
	struct vec boxes[2]; /* of struct box: what is left to place, this round and the next */
	const struct entry **sorted; /* owned */
	enum ws_dtype wanted;
	bool bad_cast;
};

static void making_release(struct making *making)
{
	vec_release(&making->cells);
	vec_release(&making->ends);
	vec_release(&making->wants);
	vec_release(&making->atoms);
	vec_release(&making->holders);
	vec_release(&making->boxes[0]);
	vec_release(&making->boxes[1]);
	mem_free(making->sorted);
}

/* The set of these ranks (ascending), made when new. */
static int set_intern(struct planning *planning, const struct holder *holders, uint32_t count,
		      uint32_t *index_out)
{
	uint64_t hash = mix64(count + 1ull);
	uint32_t index;

	for (uint32_t i = 0; i < count; i++)
		hash = mix64(hash * 31 + holders[i].rank);
	/* Ends: there are finitely many sets. */
	while ((index = idmap_get(&planning->set_map, hash)) != NONE) {
		const struct holder_set *set = planning_set(planning, index);
		bool same = set->count == count;
		for (uint32_t i = 0; same && i < count; i++)
			same = set->ranks[i] == holders[i].rank;
		*index_out = index;
		if (same)
			return 0;
		hash++;
	}
	uint32_t *ranks = arena_array(&planning->arena, count, sizeof(*ranks));
	struct holder_set *set = vec_add(&planning->sets, sizeof(*set));
	*index_out = (uint32_t)planning->sets.count - 1;
	if (ranks == NULL || set == NULL || idmap_put(&planning->set_map, hash, *index_out) != 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++)
		ranks[i] = holders[i].rank;
	*set = (struct holder_set){.count = count, .ranks = ranks};
	return 0;
}

static uint64_t box_end(const struct box *box)
{
	return box->dim_count == 0 ? 1 : box->offset[0] + box->extent[0];
}

static uint64_t box_begin(const struct box *box)
{
	return box->dim_count == 0 ? 0 : box->offset[0];
}

static int cell_add(struct making *making, const struct cell *like, const struct box *box)
{
	uint64_t before = 0;
	struct cell *cell = vec_add(&making->cells, sizeof(*cell));

	if (making->ends.count > 0)
		before = ((uint64_t *)making->ends.items)[making->ends.count - 1];
	uint64_t *end = vec_add(&making->ends, sizeof(*end));
	if (cell == NULL || end == NULL)
		return -ENOMEM;
	*cell = *like;
	cell->box = *box;
	*end = MAX(before, box_end(box));
	return 0;
}

/* Takes one cell out of all boxes that are left. */
static int boxes_subtract(struct making *making, const struct box *hole)
{
	struct box pieces[2 * BOX_DIM_MAX], common;
	const struct box *boxes = making->boxes[0].items;

	making->boxes[1].count = 0;
	for (size_t i = 0; i < making->boxes[0].count; i++) {
		uint32_t count = 1;
		if (box_intersect(&boxes[i], hole, &common))
			count = box_subtract(&boxes[i], hole, pieces);
		else
			pieces[0] = boxes[i];
		for (uint32_t p = 0; p < count; p++)
			if (boxes_add(&making->boxes[1], &pieces[p]) != 0)
				return -ENOMEM;
	}
	struct vec swap = making->boxes[0];
	making->boxes[0] = making->boxes[1];
	making->boxes[1] = swap;
	return 0;
}

/* What of the box no cell covers yet goes to boxes[0]. */
static int boxes_uncovered(struct making *making, const struct box *box)
{
	const struct cell *cells = making->cells.items;
	const uint64_t *ends = making->ends.items;
	struct box common;

	assert(making->cells.count == 0 || ends != NULL);
	making->boxes[0].count = 0;
	if (boxes_add(&making->boxes[0], box) != 0)
		return -ENOMEM;
	for (size_t i = making->cells.count; i > 0 && ends[i - 1] > box_begin(box); i--) {
		if (!box_intersect(&cells[i - 1].box, box, &common))
			continue;
		int rc = boxes_subtract(making, &cells[i - 1].box);
		if (rc != 0 || making->boxes[0].count == 0)
			return rc;
	}
	return 0;
}

/* Those that need no cast come first, so that they win where boxes overlap. */
static int entry_order(const void *a, const void *b, void *arg)
{
	const struct entry *x = *(const struct entry *const *)a,
			   *y = *(const struct entry *const *)b;
	enum ws_dtype wanted = ((const struct making *)arg)->wanted;

	if (x->dtype != y->dtype) {
		if (x->dtype == wanted || y->dtype == wanted)
			return x->dtype == wanted ? -1 : 1;
		return x->dtype < y->dtype ? -1 : 1;
	}
	int order = box_compare(&x->box, &y->box);
	if (order != 0)
		return order;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->nth < y->nth ? -1 : x->nth > y->nth;
}

static const struct holder *holders_keep(struct making *making)
{
	size_t count = making->holders.count;
	struct holder *holders = arena_array(&making->planning->arena, count, sizeof(*holders));

	if (holders != NULL)
		memcpy(holders, making->holders.items, count * sizeof(*holders));
	return holders;
}

/* Entries [first, end) are of one box: its holders, and a cell for what is uncovered of it. */
static int cells_of_box(struct making *making, size_t first, size_t end)
{
	struct planning *planning = making->planning;
	const struct entry *entry = making->sorted[first];
	struct cell cell = {.dtype = entry->dtype, .piece = entry->piece};
	int rc = boxes_uncovered(making, &entry->box);

	if (rc != 0 || making->boxes[0].count == 0)
		return rc;
	making->holders.count = 0;
	for (size_t i = first; i < end; i++) {
		if (i > first && making->sorted[i]->rank == making->sorted[i - 1]->rank)
			continue;
		struct holder *holder = vec_add(&making->holders, sizeof(*holder));
		if (holder == NULL)
			return -ENOMEM;
		*holder = (struct holder){making->sorted[i]->rank, making->sorted[i]->nth};
	}
	cell.holders = holders_keep(making);
	rc = set_intern(planning, making->holders.items, (uint32_t)making->holders.count,
			&cell.set);
	if (rc != 0 || cell.holders == NULL)
		return -ENOMEM;
	for (size_t i = 0; rc == 0 && i < making->boxes[0].count; i++)
		rc = cell_add(making, &cell, (const struct box *)making->boxes[0].items + i);
	return rc;
}

static int cell_order(const void *a, const void *b)
{
	return box_compare(&((const struct cell *)a)->box, &((const struct cell *)b)->box);
}

/* The pattern's entries, equal boxes side by side. */
static int entries_sort(struct making *making, const struct pattern *pattern)
{
	mem_free(making->sorted);
	making->sorted = mem_alloc(pattern->entry_count * sizeof(void *));
	if (making->sorted == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < pattern->entry_count; i++)
		making->sorted[i] = &pattern->entries[i];
	qsort_r(making->sorted, pattern->entry_count, sizeof(void *), entry_order, making);
	return 0;
}

static int cells_make(struct making *making, const struct pattern *source)
{
	int rc = entries_sort(making, source);

	for (size_t i = 0, end; rc == 0 && i < source->entry_count; i = end) {
		const struct entry *entry = making->sorted[i];
		for (end = i + 1; end < source->entry_count; end++)
			if (making->sorted[end]->dtype != entry->dtype ||
			    box_compare(&making->sorted[end]->box, &entry->box) != 0)
				break;
		rc = cells_of_box(making, i, end);
	}
	if (rc != 0)
		return rc;
	struct cell *cells = making->cells.items;
	uint64_t *ends = making->ends.items, highest = 0;
	if (making->cells.count > 0)
		qsort(cells, making->cells.count, sizeof(*cells), cell_order);
	for (size_t i = 0; i < making->cells.count; i++)
		ends[i] = highest = MAX(highest, box_end(&cells[i].box));
	return 0;
}

/* "rollout rank 1's 'model.norm.weight'" */
static int target_text(struct planning *planning, uint32_t unit, uint32_t rank, uint32_t nth,
		       char *out, size_t bytes, struct ws_error *err)
{
	const struct side_index *side = &planning->sides[SIDE_ROLLOUT];
	struct arena arena = {0};
	struct rank_params params = {0};
	const struct holding *holdings;
	uint32_t count;
	int rc = match_holdings(planning, SIDE_ROLLOUT, rank, unit, &holdings, &count, err);

	if (rc == 0)
		rc = manifest_params(side->manifest, rank, &arena, &params, err);
	if (rc == 0)
		snprintf(out, bytes, "rollout rank %" PRIu32 "'s '%s'", rank,
			 params.params[holdings[nth].param].name);
	arena_release(&arena);
	return rc;
}

/* How many more units share the fault: "" or " (and 47 more tensors alike)". */
static const char *alike_text(const struct geometry *geometry, char *out, size_t bytes)
{
	out[0] = '\0';
	if (geometry->unit_count > 1)
		snprintf(out, bytes, " (and of %" PRIu32 " more tensor%s alike)",
			 geometry->unit_count - 1, geometry->unit_count == 2 ? "" : "s");
	return out;
}

static int tell_missing(struct making *making, const struct entry *entry, struct ws_error *err)
{
	struct planning *planning = making->planning;
	char name[256], target[512], box[160], alike[64];
	int rc = boxes_uncovered(making, &entry->box);

	if (rc != 0)
		return plan_no_memory(err);
	assert(making->boxes[0].count > 0);
	rc = target_text(planning, making->geometry->unit, entry->rank, entry->nth, target,
			 sizeof(target), err);
	if (rc != 0)
		return rc;
	match_unit_name(planning, making->geometry->unit, name, sizeof(name));
	findings_add(planning->findings, "missing", name,
		     "%s needs %s of '%s'%s, which no trainer rank holds", target,
		     box_text(making->boxes[0].items, box, sizeof(box)), name,
		     alike_text(making->geometry, alike, sizeof(alike)));
	return 0;
}

/* The casts that lib/convert does; floor 2 may not ask it. */
static bool castable(enum ws_dtype from, enum ws_dtype to)
{
	return (from == WS_F32 || from == WS_BF16 || from == WS_F16) &&
	       (to == WS_F32 || to == WS_BF16 || to == WS_F16);
}

/* Whether the target's scheme makes its codes of such a source. */
static bool quantizes(const struct planning *planning, enum ws_dtype from,
		      const struct entry *entry)
{
	const struct manifest *manifest = planning->sides[SIDE_ROLLOUT].manifest;
	const struct quant_scheme *scheme = manifest_scheme(manifest, entry->rule);

	return scheme != NULL && !manifest_rule(manifest, entry->rule)->is_scale &&
	       entry->dtype == scheme->code && castable(from, WS_F32);
}

static int check_dtype(struct making *making, enum ws_dtype from, const struct entry *entry,
		       struct ws_error *err)
{
	struct planning *planning = making->planning;
	char name[256], target[512], alike[64];

	if (from == entry->dtype || making->bad_cast || quantizes(planning, from, entry))
		return 0;
	bool can = castable(from, entry->dtype);
	if (can && manifest_casts(planning->sides[SIDE_ROLLOUT].manifest, from, entry->dtype))
		return 0;
	making->bad_cast = true; /* once a geometry */
	int rc = target_text(planning, making->geometry->unit, entry->rank, entry->nth, target,
			     sizeof(target), err);
	if (rc != 0)
		return rc;
	match_unit_name(planning, making->geometry->unit, name, sizeof(name));
	const char *have = ws_dtype_name(from), *want = ws_dtype_name(entry->dtype);
	alike_text(making->geometry, alike, sizeof(alike));
	if (!can)
		findings_add(planning->findings, "dtype", name,
			     "%s is %s and the trainer's '%s'%s is %s: only "
			     "f32, bf16 and f16 are cast to each other, and FP8 is made by a "
			     "scheme (--quant of the rollout's manifest)",
			     target, want, name, alike, have);
	else
		findings_add(planning->findings, "dtype", name,
			     "%s is %s and the trainer's '%s'%s is %s: declare "
			     "the cast %s:%s in the rollout's manifest",
			     target, want, name, alike, have, have, want);
	return 0;
}

/* A block's scale is that of all its elements: trainers must hold them, wanted or not. */
static int check_blocks(struct making *making, const struct want *want, const struct entry *entry,
			struct ws_error *err)
{
	const struct grid *grid = &making->geometry->grid;
	const struct box touched = grid_touched(grid, &want->box);
	struct entry whole = *entry;
	struct box common;
	uint64_t covered = 0;

	whole.box = grid_elements(grid, &touched);
	const struct cell *cells = making->cells.items;
	for (size_t i = making->cells.count; i > 0; i--)
		if (box_intersect(&cells[i - 1].box, &whole.box, &common))
			covered += box_volume(&common);
	return covered == box_volume(&whole.box) ? 0 : tell_missing(making, &whole, err);
}

/* What of the want comes out of which cell. */
static int want_fill(struct making *making, struct want *want, const struct entry *entry,
		     struct ws_error *err)
{
	const struct cell *cells = making->cells.items;
	const uint64_t *ends = making->ends.items;
	size_t lo = 0, hi = making->cells.count;
	uint64_t covered = 0;
	struct box common;

	while (lo < hi) {
		size_t middle = (lo + hi) / 2;
		if (ends[middle] <= box_begin(&want->box))
			lo = middle + 1;
		else
			hi = middle;
	}
	for (; lo < making->cells.count && box_begin(&cells[lo].box) < box_end(&want->box); lo++) {
		if (!box_intersect(&cells[lo].box, &want->box, &common))
			continue;
		struct atom *atom = vec_add(&making->atoms, sizeof(*atom));
		if (atom == NULL)
			return plan_no_memory(err);
		uint64_t volume = box_volume(&common);
		covered += volume;
		*atom = (struct atom){.box = common,
				      .cell = (uint32_t)lo,
				      .set = cells[lo].set,
				      .bytes = volume * ws_dtype_bytes(want->dtype)};
		want->atom_count++;
		int rc = check_dtype(making, cells[lo].dtype, entry, err);
		if (rc != 0)
			return rc;
	}
	making->geometry->bytes += covered * ws_dtype_bytes(want->dtype) * want->taker_count;
	if (covered != box_volume(&want->box))
		return tell_missing(making, entry, err);
	return making->geometry->scheme == NULL ? 0 : check_blocks(making, want, entry, err);
}

static bool same_strides(const struct piece *a, const struct piece *b)
{
	return memcmp(a->stride, b->stride, a->dim_count * sizeof(a->stride[0])) == 0;
}

/* Entries of one box, and alike in strides, are one want of several takers. */
static int wants_make(struct making *making, const struct pattern *target, struct ws_error *err)
{
	int rc = entries_sort(making, target) != 0 ? plan_no_memory(err) : 0;

	for (size_t i = 0, end; rc == 0 && i < target->entry_count; i = end) {
		const struct entry *entry = making->sorted[i];
		making->holders.count = 0;
		for (end = i; end < target->entry_count; end++) {
			const struct entry *other = making->sorted[end];
			if (other->dtype != entry->dtype ||
			    box_compare(&other->box, &entry->box) != 0 ||
			    !same_strides(other->piece, entry->piece))
				break;
			struct holder *taker = vec_add(&making->holders, sizeof(*taker));
			if (taker == NULL)
				return plan_no_memory(err);
			*taker = (struct holder){other->rank, other->nth};
		}
		struct want *want = vec_add(&making->wants, sizeof(*want));
		const struct holder *takers = holders_keep(making);
		if (want == NULL || takers == NULL)
			return plan_no_memory(err);
		*want = (struct want){.box = entry->box,
				      .dtype = entry->dtype,
				      .takers = takers,
				      .taker_count = (uint32_t)making->holders.count,
				      .atom_first = (uint32_t)making->atoms.count,
				      .piece = entry->piece};
		rc = want_fill(making, want, entry, err);
	}
	return rc;
}

static void *keep(struct planning *planning, const struct vec *list, size_t bytes_each)
{
	void *kept = arena_array(&planning->arena, list->count, bytes_each);

	if (kept != NULL && list->count > 0)
		memcpy(kept, list->items, list->count * bytes_each);
	return kept;
}

/* The scheme by which trainers' floats become the unit's codes at rollouts, or NULL. */
static const struct quant_scheme *unit_scheme(const struct planning *planning, uint32_t unit,
					      struct grid *grid)
{
	const struct side_index *sides = planning->sides, *target = &sides[SIDE_ROLLOUT];
	uint32_t tensor = target->unit_tensor[unit];
	uint32_t source = sides[SIDE_TRAINER].unit_pattern[unit];
	const struct quant_scheme *scheme =
		tensor == NONE ? NULL : manifest_tensor_scheme(target->manifest, tensor);

	memset(grid, 0, sizeof(*grid));
	if (scheme == NULL || source == NONE)
		return NULL;
	const struct pattern *wants = side_pattern(target, target->unit_pattern[unit]);
	const struct pattern *holds = side_pattern(&sides[SIDE_TRAINER], source);
	bool codes = false, floats = false;
	for (uint32_t i = 0; !codes && i < wants->entry_count; i++)
		codes = wants->entries[i].dtype == scheme->code;
	for (uint32_t i = 0; !floats && i < holds->entry_count; i++)
		floats = castable(holds->entries[i].dtype, WS_F32);
	if (!codes || !floats)
		return NULL;
	*grid = grid_make(scheme, manifest_tensor(target->manifest, tensor));
	return scheme;
}

/* What each trainer touches: its boxes lie side by side in the pattern. */
static int touched_make(struct planning *planning, struct geometry *geometry,
			const struct pattern *source)
{
	geometry->touched = arena_array(&planning->plan->arena, source->entry_count,
					sizeof(*geometry->touched));
	if (geometry->touched == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < source->entry_count; i++) {
		const struct entry *entry = &source->entries[i];
		const struct box blocks = grid_touched(&geometry->grid, &entry->box);
		struct touched *last = &geometry->touched[geometry->touched_count];
		if (!castable(entry->dtype, WS_F32))
			continue;
		if (geometry->touched_count == 0 || last[-1].rank != entry->rank) {
			*last = (struct touched){entry->rank, blocks};
			geometry->touched_count++;
			continue;
		}
		for (uint32_t d = 0; d < blocks.dim_count; d++) {
			struct box *all = &last[-1].blocks;
			uint64_t end = MAX(all->offset[d] + all->extent[d],
					   blocks.offset[d] + blocks.extent[d]);
			all->offset[d] = MIN(all->offset[d], blocks.offset[d]);
			all->extent[d] = end - all->offset[d];
		}
	}
	return 0;
}

static int geometry_fill(struct planning *planning, struct geometry *geometry, struct ws_error *err)
{
	static const struct pattern nobody;
	const struct pattern *source = &nobody, *target;
	struct making making = {.planning = planning, .geometry = geometry};
	int rc = 0;

	target = side_pattern(&planning->sides[SIDE_ROLLOUT], geometry->target_pattern);
	geometry->scale = scales_weight(planning, geometry->unit) != NONE;
	geometry->derived =
		geometry->source_pattern != NONE &&
		side_pattern(&planning->sides[SIDE_TRAINER], geometry->source_pattern)->derived;
	if (geometry->source_pattern != NONE)
		source = side_pattern(&planning->sides[SIDE_TRAINER], geometry->source_pattern);
	making.wanted = target->entries[0].dtype;
	geometry->scheme = unit_scheme(planning, geometry->unit, &geometry->grid);
	if (cells_make(&making, source) != 0 ||
	    (geometry->scheme != NULL && touched_make(planning, geometry, source) != 0))
		rc = plan_no_memory(err);
	if (rc == 0)
		rc = wants_make(&making, target, err);
	geometry->cell_count = (uint32_t)making.cells.count;
	geometry->want_count = (uint32_t)making.wants.count;
	geometry->atom_count = (uint32_t)making.atoms.count;
	geometry->cells = keep(planning, &making.cells, sizeof(struct cell));
	geometry->wants = keep(planning, &making.wants, sizeof(struct want));
	geometry->atoms = keep(planning, &making.atoms, sizeof(struct atom));
	if (rc == 0 &&
	    (geometry->cells == NULL || geometry->wants == NULL || geometry->atoms == NULL))
		rc = plan_no_memory(err);
	making_release(&making);
	return rc;
}

int geometry_make(struct planning *planning, struct ws_error *err)
{
	const struct side_index *sides = planning->sides;
	struct idmap map = {0};
	int rc = 0;

	planning->unit_geometry =
		arena_array(&planning->arena, planning->unit_count, sizeof(uint32_t));
	if (planning->unit_geometry == NULL)
		return plan_no_memory(err);
	for (uint32_t unit = 0; rc == 0 && unit < planning->unit_count; unit++) {
		uint32_t source = sides[SIDE_TRAINER].unit_pattern[unit];
		uint32_t target = sides[SIDE_ROLLOUT].unit_pattern[unit];
		planning->unit_geometry[unit] = NONE;
		if (target == NONE)
			continue;
		uint64_t key = (uint64_t)source << 32 | target;
		struct grid grid;
		if (unit_scheme(planning, unit, &grid) != NULL)
			key = digest_bytes(&grid, sizeof(grid), key);
		uint32_t index = idmap_get(&map, key);
		if (index == NONE) {
			index = (uint32_t)planning->geometries.count;
			struct geometry *geometry =
				vec_add(&planning->geometries, sizeof(*geometry));
			if (geometry == NULL || idmap_put(&map, key, index) != 0) {
				rc = plan_no_memory(err);
				break;
			}
			*geometry = (struct geometry){
				.source_pattern = source, .target_pattern = target, .unit = unit};
		}
		int32_t layer, expert;
		match_unit(planning, unit, &layer, &expert);
		planning_geometry(planning, index)->unit_count += layers_alike(planning, layer);
		planning->unit_geometry[unit] = index;
	}
	for (size_t i = 0; rc == 0 && i < planning->geometries.count; i++)
		rc = geometry_fill(planning, planning_geometry(planning, (uint32_t)i), err);
	idmap_release(&map);
	return rc;
}
