/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What trainers tell each other before they quantize.  A block's scale needs the maximum over all
 * of the block; who sends codes or scales of it may hold a part of it only.  So for each unit:
 *
 *   needs   which blocks each trainer sends codes or scales of (boxes.c notes them while it deals)
 *   shares  for each cell of such a block that this trainer doesn't hold, one who does tells it the
 *           maxima of the blocks that the cell touches
 *   locals  the boxes in which the planned trainer finds maxima: of blocks that it needs, or tells
 *
 * Units under one scale have one table, and are one here: a need of one of them, under the name of
 * the lead, is of them all.  Units that follow each other with the same holders and the same needs
 * (the experts of a layer) are one, too: what holds for the first is repeated with the step of
 * their tables.
 */
#include "planner/plan_internal.h"

/* Units in a row with the same holders and needs. */
struct stretch {
	struct planning *planning;
	uint32_t kind, unit, count;
	struct vec needs;  /* of struct share: by rank, disjoint and in order */
	struct vec next;   /* the same of the unit at hand */
	struct vec boxes;  /* of struct box: scratch */
	struct vec found;  /* of struct share: of this stretch */
	struct vec shares; /* of struct share: of the kind */
	struct ws_error *err;
};

int maxima_need(struct planning *planning, uint32_t unit, uint32_t rank, const struct box *blocks)
{
	uint32_t *last = &planning->need_last[rank];

	unit = scales_lead(planning, unit);
	if (*last > 0 && *last <= planning->needs.count) {
		const struct share *before = (struct share *)planning->needs.items + *last - 1;
		if (before->receiver == rank && before->unit == unit &&
		    box_compare(&before->blocks, blocks) == 0)
			return 0;
	}
	struct share *need = vec_add(&planning->needs, sizeof(*need));
	if (need == NULL)
		return -ENOMEM;
	*need = (struct share){rank, rank, unit, 1, *blocks};
	*last = (uint32_t)planning->needs.count;
	return 0;
}

static int share_order(const void *a, const void *b)
{
	const struct share *x = a, *y = b;

	if (x->sender != y->sender)
		return x->sender < y->sender ? -1 : 1;
	if (x->receiver != y->receiver)
		return x->receiver < y->receiver ? -1 : 1;
	if (x->unit != y->unit)
		return x->unit < y->unit ? -1 : 1;
	return box_compare(&x->blocks, &y->blocks);
}

/* By unit first. */
static int need_order(const void *a, const void *b)
{
	const struct share *x = a, *y = b;

	return x->unit != y->unit ? (x->unit < y->unit ? -1 : 1) : share_order(a, b);
}

/* What each sends each, of the sorted ones of one unit, united. */
static int shares_unite(struct stretch *stretch, const struct share *list, size_t count,
			struct vec *out)
{
	for (size_t i = 0, end; i < count; i = end) {
		stretch->boxes.count = 0;
		for (end = i; end < count && list[end].sender == list[i].sender &&
			      list[end].receiver == list[i].receiver;
		     end++)
			if (boxes_add(&stretch->boxes, &list[end].blocks) != 0)
				return -ENOMEM;
		if (boxes_unite(&stretch->boxes) != 0)
			return -ENOMEM;
		for (size_t b = 0; b < stretch->boxes.count; b++) {
			struct share *share = vec_add(out, sizeof(*share));
			if (share == NULL)
				return -ENOMEM;
			*share = list[i];
			share->blocks = ((const struct box *)stretch->boxes.items)[b];
		}
	}
	return 0;
}

/* ---- Of one stretch. */

static const struct geometry *geometry_of(const struct planning *planning, uint32_t unit)
{
	return planning_geometry(planning, planning->unit_geometry[unit]);
}

/* Whether one box of the trainer's holds all of this one. */
static bool holds(const struct stretch *stretch, const struct geometry *geometry, uint32_t rank,
		  const struct box *box)
{
	const struct pattern *pattern =
		side_pattern(&stretch->planning->sides[SIDE_TRAINER], geometry->source_pattern);
	uint32_t lo = 0, hi = pattern->entry_count;
	struct box common;

	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		if (pattern->entries[middle].rank < rank)
			lo = middle + 1;
		else
			hi = middle;
	}
	for (; lo < pattern->entry_count && pattern->entries[lo].rank == rank; lo++)
		if (box_intersect(&pattern->entries[lo].box, box, &common) &&
		    box_compare(&common, box) == 0)
			return true;
	return false;
}

/* Which of the cell's holders tells this trainer: neighbours ask neighbours. */
static uint32_t teller(const struct stretch *stretch, const struct cell *cell, uint32_t receiver)
{
	const struct plan *plan = stretch->planning->plan;
	const struct holder_set *set = planning_set(stretch->planning, cell->set);

	return set->ranks[(uint64_t)receiver * set->count / plan->trainer_count];
}

/* What others tell the trainer of a unit about one box of blocks that it needs. */
static int need_shares(struct stretch *stretch, uint32_t unit, const struct share *need)
{
	const struct plan *plan = stretch->planning->plan;
	const struct geometry *geometry = geometry_of(stretch->planning, unit);
	struct box region = grid_elements(&geometry->grid, &need->blocks), common;

	for (uint32_t c = 0; c < geometry->cell_count; c++) {
		const struct cell *cell = &geometry->cells[c];
		if (cell->box.offset[0] >= region.offset[0] + region.extent[0])
			break;
		if (!box_intersect(&cell->box, &region, &common) ||
		    holds(stretch, geometry, need->receiver, &common))
			continue;
		uint32_t sender = teller(stretch, cell, need->receiver);
		if (plan->self != PLAN_ALL && plan->self != sender && plan->self != need->receiver)
			continue;
		struct share *share = vec_add(&stretch->found, sizeof(*share));
		if (share == NULL)
			return -ENOMEM;
		*share = (struct share){.sender = sender,
					.receiver = need->receiver,
					.unit = stretch->unit,
					.unit_count = stretch->count,
					.blocks = grid_touched(&geometry->grid, &common)};
	}
	return 0;
}

/* The blocks whose maxima the planned trainer finds: what it needs or tells. */
static int local_blocks(struct stretch *stretch)
{
	const struct vec *lists[] = {&stretch->needs, &stretch->found};
	uint32_t self = stretch->planning->plan->self;

	stretch->boxes.count = 0;
	for (size_t l = 0; l < ARRAY_SIZE(lists); l++)
		for (size_t i = 0; i < lists[l]->count; i++) {
			const struct share *share = (const struct share *)lists[l]->items + i;
			if (share->sender == self &&
			    boxes_add(&stretch->boxes, &share->blocks) != 0)
				return -ENOMEM;
		}
	return boxes_unite(&stretch->boxes);
}

static int local_add(struct stretch *stretch, const struct grid *grid,
		     const struct plan_table *table, const struct holding *holding,
		     const struct box *box)
{
	struct plan *plan = stretch->planning->plan;
	struct stored_local *stored = vec_add(&plan->locals, sizeof(*stored));
	uint64_t bytes = ws_dtype_bytes(holding->dtype);
	uint64_t place = holding->piece->place;

	if (stored == NULL)
		return -ENOMEM;
	*stored = (struct stored_local){.rule = holding->rule, .each = holding->each};
	struct plan_local *local = &stored->local;
	local->param = holding->param;
	local->from = holding->dtype;
	local->dim_count = box->dim_count;
	local->blocks = table_blocks(grid, table, box);
	for (uint32_t d = 0; d < box->dim_count; d++) {
		local->extent[d] = box->extent[d];
		local->src_stride[d] = holding->piece->stride[d] * (int64_t)bytes;
		place += (box->offset[d] - holding->piece->offset[d]) *
			 (uint64_t)holding->piece->stride[d];
	}
	local->src_offset = place * bytes;
	plan->kinds[stretch->kind].local_count++;
	return 0;
}

/* The planned trainer's boxes of a unit, each once, as far as they are in its blocks. */
static int own_locals(struct stretch *stretch, uint32_t unit)
{
	struct planning *planning = stretch->planning;
	const struct box *blocks = stretch->boxes.items;
	const struct grid *grid = &geometry_of(planning, unit)->grid;
	uint32_t self = planning->plan->self, count;
	const struct plan_table *table;
	const struct holding *list;
	int rc = table_of_unit(planning, self, unit, &table, stretch->err);

	if (rc == 0)
		rc = match_holdings(planning, SIDE_TRAINER, self, unit, &list, &count,
				    stretch->err);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		struct box whole = {.dim_count = list[i].piece->dim_count}, common;
		bool again = false;
		memcpy(whole.offset, list[i].piece->offset, sizeof(whole.offset));
		memcpy(whole.extent, list[i].piece->extent, sizeof(whole.extent));
		for (uint32_t j = 0; j < i && !again; j++)
			again = memcmp(list[j].piece->offset, whole.offset,
				       whole.dim_count * sizeof(uint64_t)) == 0 &&
				memcmp(list[j].piece->extent, whole.extent,
				       whole.dim_count * sizeof(uint64_t)) == 0;
		for (size_t b = 0; rc == 0 && !again && b < stretch->boxes.count; b++) {
			struct box region = grid_elements(grid, &blocks[b]);
			if (box_intersect(&whole, &region, &common) &&
			    local_add(stretch, grid, table, &list[i], &common) != 0)
				rc = plan_no_memory(stretch->err);
		}
	}
	return rc;
}

/* The same of all units under its scale. */
static int unit_locals(struct stretch *stretch, uint32_t lead)
{
	uint32_t unit = lead;
	int rc;

	do {
		rc = own_locals(stretch, unit);
		unit = scales_fellow(stretch->planning, unit);
	} while (rc == 0 && unit != lead);
	return rc;
}

/* All that follows from the stretch; it is empty then. */
static int stretch_end(struct stretch *stretch)
{
	struct planning *planning = stretch->planning;
	const struct plan *plan = planning->plan;
	const struct share *needs = stretch->needs.items;
	uint32_t unit = stretch->unit;
	int rc = 0;

	stretch->found.count = 0;
	do {
		for (size_t i = 0; rc == 0 && i < stretch->needs.count; i++)
			rc = need_shares(stretch, unit, &needs[i]);
		unit = scales_fellow(planning, unit);
	} while (unit != stretch->unit);
	if (stretch->found.count > 0)
		qsort(stretch->found.items, stretch->found.count, sizeof(struct share),
		      share_order);
	if (rc == 0)
		rc = shares_unite(stretch, stretch->found.items, stretch->found.count,
				  &stretch->shares);
	if (rc == 0 && plan->self != PLAN_ALL)
		rc = local_blocks(stretch);
	if (rc != 0)
		return plan_no_memory(stretch->err);
	for (uint32_t u = 0; rc == 0 && plan->self != PLAN_ALL && u < stretch->count; u++)
		if (stretch->boxes.count > 0)
			rc = unit_locals(stretch, stretch->unit + u);
	stretch->needs.count = stretch->count = 0;
	return rc;
}

/* ---- Of a kind. */

/* Whether another unit has the same holders and grid. */
static bool same_holders(const struct planning *planning, uint32_t a, uint32_t b)
{
	const uint32_t *patterns = planning->sides[SIDE_TRAINER].unit_pattern;
	uint32_t x = a, y = b;

	do {
		if (patterns[x] != patterns[y] ||
		    memcmp(&geometry_of(planning, x)->grid, &geometry_of(planning, y)->grid,
			   sizeof(struct grid)) != 0)
			return false;
		x = scales_fellow(planning, x);
		y = scales_fellow(planning, y);
	} while (x != a && y != b);
	return x == a && y == b;
}

/* Whether the unit at hand goes on where the stretch ends. */
static bool goes_on(const struct stretch *stretch, uint32_t unit)
{
	const struct share *a = stretch->needs.items, *b = stretch->next.items;

	if (stretch->count == 0 || unit != stretch->unit + stretch->count ||
	    stretch->needs.count != stretch->next.count ||
	    !same_holders(stretch->planning, stretch->unit, unit))
		return false;
	for (size_t i = 0; i < stretch->needs.count; i++)
		if (a[i].receiver != b[i].receiver || box_compare(&a[i].blocks, &b[i].blocks) != 0)
			return false;
	return true;
}

static int stretches_walk(struct stretch *stretch)
{
	struct planning *planning = stretch->planning;
	const struct share *needs = planning->needs.items;
	size_t count = planning->needs.count;
	int rc = 0;

	qsort(planning->needs.items, count, sizeof(*needs), need_order);
	for (size_t i = 0, end; rc == 0 && i < count; i = end) {
		uint32_t unit = needs[i].unit;
		for (end = i; end < count && needs[end].unit == unit; end++)
			;
		stretch->next.count = 0;
		if (shares_unite(stretch, &needs[i], end - i, &stretch->next) != 0)
			return plan_no_memory(stretch->err);
		if (goes_on(stretch, unit)) {
			stretch->count++;
			continue;
		}
		rc = stretch_end(stretch);
		struct vec swap = stretch->needs;
		stretch->needs = stretch->next;
		stretch->next = swap;
		stretch->unit = unit;
		stretch->count = 1;
	}
	return rc == 0 ? stretch_end(stretch) : rc;
}

/* ---- Shares become boxes of tables. */

static bool same_boxes(const struct share *a, const struct share *b, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (box_compare(&a[i].blocks, &b[i].blocks) != 0)
			return false;
	return true;
}

/* The end of the shares of one pair that begin with the same unit. */
static size_t group_end(const struct share *shares, size_t count, size_t first)
{
	size_t end = first;

	while (end < count && shares[end].sender == shares[first].sender &&
	       shares[end].receiver == shares[first].receiver &&
	       shares[end].unit == shares[first].unit)
		end++;
	return end;
}

/*
 * A pair's stretches that go on where the one before ends are one, whatever else divided them: so
 * both ends, and a plan of all, come to the same.
 */
static void shares_join(struct stretch *stretch)
{
	struct share *shares = stretch->shares.items;
	size_t count = stretch->shares.count, kept = 0, last = 0;

	if (count > 0)
		qsort(shares, count, sizeof(*shares), share_order);
	for (size_t i = 0, end; i < count; i = end) {
		end = group_end(shares, count, i);
		struct share *before = &shares[last];
		bool joins = kept > 0 && kept - last == end - i &&
			     before->sender == shares[i].sender &&
			     before->receiver == shares[i].receiver &&
			     before->unit + before->unit_count == shares[i].unit &&
			     same_holders(stretch->planning, before->unit, shares[i].unit) &&
			     same_boxes(before, &shares[i], end - i);
		uint32_t more = shares[i].unit_count;
		if (!joins) {
			last = kept;
			memmove(&shares[kept], &shares[i], (end - i) * sizeof(*shares));
			kept += end - i;
		}
		for (size_t k = last; joins && k < kept; k++)
			shares[k].unit_count += more;
	}
	stretch->shares.count = kept;
}

/* A box of a table in bytes of the bucket's tables; returns its offset. */
static uint64_t table_side(const struct plan_table *table, const struct box *blocks,
			   int64_t *stride_out)
{
	const struct piece piece = table_piece(table);
	uint64_t bytes = ws_dtype_bytes(WS_U32), entry = piece.place;

	for (uint32_t d = 0; d < blocks->dim_count; d++) {
		entry += (blocks->offset[d] - piece.offset[d]) * (uint64_t)piece.stride[d];
		stride_out[d] = piece.stride[d] * (int64_t)bytes;
	}
	return entry * bytes;
}

/* The dim of units in front of the box', where there is room for it. */
static void part_repeats(struct plan_part *part, uint32_t count, int64_t src_step, int64_t dst_step)
{
	uint32_t d = part->dim_count++;

	part->extent[d] = count;
	part->src_stride[d] = src_step;
	part->dst_stride[d] = dst_step;
}

/* Units [unit, unit + count) of a share. */
static int share_put(struct stretch *stretch, const struct share *share, uint32_t unit,
		     uint32_t count)
{
	struct planning *planning = stretch->planning;
	const struct plan_table *from, *to;
	struct raw *raw = vec_add(&planning->raws, sizeof(*raw));
	int rc = raw == NULL ? plan_no_memory(stretch->err)
			     : table_of_unit(planning, share->sender, unit, &from, stretch->err);

	if (rc == 0)
		rc = table_of_unit(planning, share->receiver, unit, &to, stretch->err);
	if (rc != 0)
		return rc;
	*raw = (struct raw){.sender = share->sender, .receiver = share->receiver};
	struct plan_part *part = &raw->part;
	part->kind = PART_MAXIMA;
	part->from = part->to = WS_U32;
	part->dim_count = share->blocks.dim_count;
	memcpy(part->extent, share->blocks.extent, sizeof(part->extent));
	part->src_offset = table_side(from, &share->blocks, part->src_stride);
	part->dst_offset = table_side(to, &share->blocks, part->dst_stride);
	/* Units in a row with the same holders have tables of the same size in a row. */
	int64_t entry = (int64_t)ws_dtype_bytes(WS_U32);
	if (count > 1)
		part_repeats(part, count, (int64_t)box_volume(from->blocks) * entry,
			     (int64_t)box_volume(to->blocks) * entry);
	raw->bytes = box_volume(&share->blocks) * count * (uint64_t)entry;
	shape_normalize(raw, NULL);
	planning->plan->totals.maxima_bytes +=
		raw->bytes * planning->plan->kinds[stretch->kind].bucket_count;
	return 0;
}

static int shares_put(struct stretch *stretch)
{
	const struct share *shares = stretch->shares.items;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < stretch->shares.count; i++) {
		const struct share *share = &shares[i];
		uint32_t together = share->unit_count;
		if (share->blocks.dim_count == BOX_DIM_MAX)
			together = 1; /* no dim is left for units */
		for (uint32_t u = 0; rc == 0 && u < share->unit_count; u += together)
			rc = share_put(stretch, share, share->unit + u, together);
	}
	return rc;
}

int maxima_of_kind(struct planning *planning, uint32_t kind, struct ws_error *err)
{
	struct plan *plan = planning->plan;
	struct stretch stretch = {.planning = planning, .kind = kind, .err = err};
	int rc = 0;

	planning->raws.count = 0;
	plan->kinds[kind].local_first = plan->locals.count;
	if (planning->needs.count > 0)
		rc = stretches_walk(&stretch);
	if (rc == 0) {
		shares_join(&stretch);
		rc = shares_put(&stretch);
	}
	vec_release(&stretch.needs);
	vec_release(&stretch.next);
	vec_release(&stretch.boxes);
	vec_release(&stretch.found);
	vec_release(&stretch.shares);
	return rc;
}
