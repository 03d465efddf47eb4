/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where maxima lie.  A trainer has a table for each weight that it holds a part of and that is
 * quantized on the way: an entry per block, row-major over the smallest box of blocks that all its
 * boxes of the weight lie in.  Weights under one scale (fused.c) share the place of their one
 * entry. Tables of a bucket lie one behind the other, by unit, and buckets too; so offsets inside a
 * bucket are the same in all layers alike, and equal tables of units that follow each other (the
 * experts of a layer) are equally far apart.
 */
#include "planner/plan_internal.h"

struct grid grid_make(const struct quant_scheme *scheme, const struct tensor_rule *weight)
{
	struct grid grid = {.dim_count = weight->dim_count, .one = scheme->kind == SCHEME_TENSOR};

	for (uint32_t d = 0; d < weight->dim_count; d++) {
		uint64_t block =
			d + 2 < weight->dim_count ? 1 : scheme->block[d + 2 - weight->dim_count];
		grid.dim[d] = weight->dim[d];
		grid.each[d] = block == 0 || grid.one ? weight->dim[d] : block;
	}
	return grid;
}

struct box grid_touched(const struct grid *grid, const struct box *box)
{
	struct box blocks = {.dim_count = grid->one ? 1 : grid->dim_count};

	if (grid->one)
		blocks.extent[0] = 1;
	for (uint32_t d = 0; !grid->one && d < grid->dim_count; d++) {
		blocks.offset[d] = box->offset[d] / grid->each[d];
		blocks.extent[d] = (box->offset[d] + box->extent[d] - 1) / grid->each[d] + 1 -
				   blocks.offset[d];
	}
	return blocks;
}

bool grid_is_whole(const struct grid *grid, const struct box *box)
{
	if (grid->one)
		return false;
	for (uint32_t d = 0; d < grid->dim_count; d++) {
		uint64_t end = box->offset[d] + box->extent[d];
		if (box->offset[d] % grid->each[d] != 0 ||
		    (end % grid->each[d] != 0 && end != grid->dim[d]))
			return false;
	}
	return true;
}

struct box grid_elements(const struct grid *grid, const struct box *blocks)
{
	struct box box = {.dim_count = grid->dim_count};

	for (uint32_t d = 0; d < grid->dim_count; d++) {
		uint64_t end = grid->dim[d];
		if (!grid->one) {
			box.offset[d] = blocks->offset[d] * grid->each[d];
			end = MIN(end, (blocks->offset[d] + blocks->extent[d]) * grid->each[d]);
		}
		box.extent[d] = end - box.offset[d];
	}
	return box;
}

/* What the rank touches of a quantized unit, or NULL. */
static const struct box *touched_by(const struct geometry *geometry, uint32_t rank)
{
	uint32_t lo = 0, hi = geometry->touched_count;

	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		if (geometry->touched[middle].rank < rank)
			lo = middle + 1;
		else
			hi = middle;
	}
	return lo < geometry->touched_count && geometry->touched[lo].rank == rank
		       ? &geometry->touched[lo].blocks
		       : NULL;
}

/* The geometry of the weight that this one is about, or of whose scale; NULL where it isn't
 * quantized on the way. */
static const struct geometry *quantized_of(const struct planning *planning,
					   const struct geometry *geometry)
{
	if (geometry->scheme != NULL)
		return geometry;
	if (!geometry->derived)
		return NULL; /* a scale that trainers hold is copied */
	return planning_geometry(planning,
				 planning->unit_geometry[scales_weight(planning, geometry->unit)]);
}

/* The blocks of a unit that a trainer has a table of; NULL: it has none. */
static const struct box *blocks_of(const struct planning *planning, uint32_t unit, uint32_t rank)
{
	uint32_t index = planning->unit_geometry[unit];

	if (index == NONE || planning->unit_kind[unit] == NONE)
		return NULL;
	return touched_by(planning_geometry(planning, index), rank);
}

static void flag_near(struct planning *planning, struct geometry *geometry)
{
	const struct geometry *weight = quantized_of(planning, geometry);
	const struct box *mine = weight == NULL ? NULL : touched_by(weight, planning->plan->self);
	struct box common;

	if (weight != NULL && weight->grid.one)
		return; /* flag_fellows */
	for (uint32_t i = 0; mine != NULL && i < geometry->atom_count; i++) {
		struct atom *atom = &geometry->atoms[i];
		struct box blocks =
			geometry->derived ? atom->box : grid_touched(&weight->grid, &atom->box);
		atom->near = box_intersect(&blocks, mine, &common);
	}
}

/* The unit whose table a unit of the layers planned has, if there is one scale for all of it, or if
 * it is that scale; else NONE. */
static uint32_t one_of(const struct planning *planning, uint32_t unit)
{
	if (planning->unit_kind[unit] == NONE)
		return NONE;
	const struct geometry *weight =
		quantized_of(planning, planning_geometry(planning, planning->unit_geometry[unit]));
	if (weight == NULL || !weight->grid.one)
		return NONE;
	uint32_t scaled = scales_weight(planning, unit);
	return scales_lead(planning, scaled == NONE ? unit : scaled);
}

/* What is under one scale with something that the planned trainer holds is near, all of it. */
static int flag_fellows(struct planning *planning)
{
	bool *mine = arena_array(&planning->arena, planning->unit_count, sizeof(*mine));

	if (mine == NULL)
		return -ENOMEM;
	for (uint32_t unit = 0; unit < planning->unit_count; unit++) {
		uint32_t lead = one_of(planning, unit);
		if (lead != NONE && blocks_of(planning, unit, planning->plan->self) != NULL)
			mine[lead] = true;
	}
	for (uint32_t unit = 0; unit < planning->unit_count; unit++) {
		uint32_t lead = one_of(planning, unit);
		if (lead == NONE || !mine[lead])
			continue;
		struct geometry *geometry =
			planning_geometry(planning, planning->unit_geometry[unit]);
		for (uint32_t i = 0; i < geometry->atom_count; i++)
			geometry->atoms[i].near = true;
	}
	return 0;
}

int tables_begin(struct planning *planning)
{
	struct plan *plan = planning->plan;
	bool any = false;

	for (size_t g = 0; g < planning->geometries.count; g++)
		any = any || planning_geometry(planning, (uint32_t)g)->scheme != NULL;
	if (!any)
		return 0;
	plan->tables = arena_array(&plan->arena, plan->trainer_count, sizeof(*plan->tables));
	planning->need_last = arena_array(&planning->arena, plan->trainer_count, sizeof(uint32_t));
	planning->unit_kind = arena_array(&planning->arena, planning->unit_count, sizeof(uint32_t));
	if (plan->tables == NULL || planning->need_last == NULL || planning->unit_kind == NULL)
		return -ENOMEM;
	memset(planning->unit_kind, 0xff, planning->unit_count * sizeof(uint32_t));
	for (uint32_t k = 0; k < plan->kind_count; k++) {
		const struct bucket_kind *kind = &plan->kinds[k];
		for (uint32_t i = 0; i < kind->unit_count; i++)
			planning->unit_kind[planning->order[kind->unit_first + i]] = k;
	}
	for (size_t g = 0; plan->self < plan->trainer_count && g < planning->geometries.count; g++)
		flag_near(planning, planning_geometry(planning, (uint32_t)g));
	return plan->self < plan->trainer_count ? flag_fellows(planning) : 0;
}

/* Which tables are one. */
static int lead_order(const void *a, const void *b)
{
	const struct plan_table *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return x->lead < y->lead ? -1 : x->lead > y->lead;
}

static int table_order(const void *a, const void *b)
{
	const struct plan_table *x = a, *y = b;
	int order = lead_order(a, b);

	return order != 0 ? order : x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* Lays the tables of each kind one behind the other, and the buckets. */
static int tables_lay(struct planning *planning, struct trainer_tables *tables)
{
	struct plan *plan = planning->plan;
	uint64_t *kinds = mem_alloc(plan->kind_count * sizeof(*kinds)), at = 0;

	tables->bucket = arena_array(&plan->arena, plan->bucket_count + 1ull, sizeof(uint64_t));
	if (kinds == NULL || tables->bucket == NULL) {
		mem_free(kinds);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < tables->count; i++) {
		struct plan_table *table = &tables->list[i];
		if (i > 0 && lead_order(&table[-1], table) == 0) {
			table->first = table[-1].first;
			continue;
		}
		table->first = kinds[table->kind];
		kinds[table->kind] += box_volume(table->blocks);
	}
	for (uint32_t b = 0; b < plan->bucket_count; b++) {
		tables->bucket[b] = at;
		at += kinds[plan->buckets[b].kind] * ws_dtype_bytes(WS_U32);
	}
	tables->bucket[plan->bucket_count] = at;
	mem_free(kinds);
	return 0;
}

/* By unit, as its holdings are; then by kind. */
static int tables_list(struct planning *planning, uint32_t rank, struct trainer_tables *tables)
{
	struct vec *holdings = &planning->sides[SIDE_TRAINER].ranks[rank].list;
	struct holding *list = holdings->items;

	for (size_t i = 0; i < holdings->count; i++)
		tables->count += (i == 0 || list[i].unit != list[i - 1].unit) &&
				 blocks_of(planning, list[i].unit, rank) != NULL;
	tables->list = arena_array(&planning->plan->arena, tables->count, sizeof(*tables->list));
	if (tables->list == NULL)
		return -ENOMEM;
	uint32_t count = 0;
	for (size_t i = 0; i < holdings->count; i++) {
		if (i > 0 && list[i].unit == list[i - 1].unit)
			continue;
		const struct box *blocks = blocks_of(planning, list[i].unit, rank);
		if (blocks == NULL)
			continue;
		tables->list[count++] =
			(struct plan_table){.kind = planning->unit_kind[list[i].unit],
					    .lead = scales_lead(planning, list[i].unit),
					    .unit = list[i].unit,
					    .param = list[i].param,
					    .piece = list[i].piece,
					    .blocks = blocks};
	}
	if (count > 0)
		qsort(tables->list, count, sizeof(*tables->list), table_order);
	return 0;
}

static int tables_of(struct planning *planning, uint32_t rank, const struct trainer_tables **out,
		     struct ws_error *err)
{
	struct trainer_tables *tables = &planning->plan->tables[rank];
	const struct holding *holdings;
	uint32_t count;

	*out = tables;
	if (tables->known)
		return 0;
	int rc = match_holdings(planning, SIDE_TRAINER, rank, 0, &holdings, &count, err);
	if (rc != 0)
		return rc;
	if (tables_list(planning, rank, tables) != 0 || tables_lay(planning, tables) != 0)
		return plan_no_memory(err);
	tables->known = true;
	return 0;
}

int table_of_unit(struct planning *planning, uint32_t rank, uint32_t unit,
		  const struct plan_table **out, struct ws_error *err)
{
	const struct plan_table key = {.kind = planning->unit_kind[unit],
				       .lead = scales_lead(planning, unit)};
	const struct trainer_tables *tables;
	int rc = tables_of(planning, rank, &tables, err);

	*out = rc != 0 ? NULL : bsearch(&key, tables->list, tables->count, sizeof(key), lead_order);
	return rc;
}

struct piece table_piece(const struct plan_table *table)
{
	struct piece piece = {.dim_count = table->blocks->dim_count, .place = table->first};
	int64_t stride = 1;

	for (uint32_t d = piece.dim_count; d > 0; d--) {
		piece.offset[d - 1] = table->blocks->offset[d - 1];
		piece.extent[d - 1] = table->blocks->extent[d - 1];
		piece.stride[d - 1] = stride;
		stride *= (int64_t)piece.extent[d - 1];
	}
	return piece;
}

struct plan_blocks table_blocks(const struct grid *grid, const struct plan_table *table,
				const struct box *box)
{
	const struct piece piece = table_piece(table);
	struct plan_blocks blocks = {0};
	uint64_t entry = piece.place;

	for (uint32_t d = 0; d < grid->dim_count; d++) {
		uint64_t block = box->offset[d] / grid->each[d];
		blocks.each[d] = grid->each[d];
		blocks.first[d] = box->offset[d] % grid->each[d];
		if (grid->one)
			continue;
		blocks.stride[d] = piece.stride[d];
		entry += (block - piece.offset[d]) * (uint64_t)piece.stride[d];
	}
	blocks.table_offset = entry * ws_dtype_bytes(WS_U32);
	return blocks;
}

void blocks_shift(struct plan_blocks *blocks, uint32_t dim, uint64_t elements)
{
	uint64_t at = blocks->first[dim] + elements;

	blocks->table_offset +=
		at / blocks->each[dim] * (uint64_t)blocks->stride[dim] * ws_dtype_bytes(WS_U32);
	blocks->first[dim] = at % blocks->each[dim];
}

const struct plan_blocks *blocks_keep(struct planning *planning, const struct plan_blocks *blocks)
{
	uint64_t digest = digest_bytes(blocks, sizeof(*blocks), 0);
	uint32_t index;

	/* Ends: there are finitely many that are kept. */
	while ((index = idmap_get(&planning->blocks_map, digest)) != NONE) {
		const struct plan_blocks *kept =
			((const struct plan_blocks **)planning->blocks.items)[index];
		if (memcmp(kept, blocks, sizeof(*kept)) == 0)
			return kept;
		digest++;
	}
	struct plan_blocks *kept = arena_alloc(&planning->plan->arena, sizeof(*kept));
	const struct plan_blocks **slot = vec_add(&planning->blocks, sizeof(*slot));
	if (kept == NULL || slot == NULL ||
	    idmap_put(&planning->blocks_map, digest, (uint32_t)planning->blocks.count - 1) != 0)
		return NULL;
	*kept = *blocks;
	*slot = kept;
	return kept;
}
