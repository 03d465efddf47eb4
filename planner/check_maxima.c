/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of what is quantized on the way.  Each code must be made by the maximum of its own
 * block and each scale of that of its own; maxima told must come to the same block's entry.  The
 * blocks that a trainer sends codes or scales of are noted: check_told.c proves that it knows them.
 */
#include <stdio.h>

#include "planner/check.h"

/* ---- What blocks a box has. */

/* Where a part lies in its tensor and in a table. */
struct met {
	uint32_t table;
	bool exact; /* the elements are all of that box */
	struct box elements, blocks;
};

/* What is compared dim by dim. */
struct comparing {
	const struct plan_part *part;
	const struct plan_blocks *blocks;
	const struct piece *piece, *table; /* of the source, and of the table */
	const struct table_view *view;
	bool one; /* scale for all */
	struct met *met;
};

/* The dim of the piece that goes by this stride, and isn't used yet. */
static uint32_t dim_along(const struct comparing *at, int64_t stride)
{
	for (uint32_t c = 0; c < at->piece->dim_count; c++)
		if (at->piece->stride[c] == stride && at->piece->extent[c] > 1)
			return at->met->elements.extent[c] == 1 ? c : BOX_DIM_MAX;
	return BOX_DIM_MAX;
}

static bool divided(const struct comparing *at, uint32_t c)
{
	const struct box *elements = &at->met->elements;
	uint64_t last = elements->offset[c] + elements->extent[c] - 1;

	return !at->one && elements->offset[c] / at->view->each[c] != last / at->view->each[c];
}

/*
 * A dim of the part as dims of the tensor, the fastest first: only the slowest may cross borders of
 * blocks, and then where the part says.  One that goes on in the next takes all of the piece's; it
 * may begin in the middle of it, `lead` elements from where the slowest's step begins.
 */
static bool dim_fits(const struct comparing *at, uint32_t d)
{
	const struct plan_blocks *blocks = at->blocks;
	struct box *elements = &at->met->elements;
	int64_t bytes = (int64_t)ws_dtype_bytes(at->part->from);
	int64_t stride = at->part->src_stride[d] / bytes;
	uint64_t left = at->part->extent[d], unit = 1, lead = 0;
	bool constant = blocks->stride[d] == 0 ||
			(left <= blocks->each[d] && blocks->first[d] <= blocks->each[d] - left);

	if (left == 0 || at->part->src_stride[d] % bytes != 0)
		return false;
	for (uint32_t used = 0; left > 1 && used < at->piece->dim_count; used++) {
		uint32_t c = dim_along(at, stride);
		if (c == BOX_DIM_MAX)
			return false;
		uint64_t whole = at->piece->extent[c], from = elements->offset[c];
		uint64_t before = from - at->piece->offset[c];
		if (left <= whole - before) {
			uint64_t each = at->view->each[c];
			elements->extent[c] = left;
			return divided(at, c)
				       ? blocks->each[d] == each * unit &&
						 blocks->first[d] == from % each * unit + lead &&
						 blocks->stride[d] == at->table->stride[c]
				       : constant;
		}
		at->met->exact = at->met->exact && before == 0 && left % whole == 0;
		elements->offset[c] = at->piece->offset[c];
		elements->extent[c] = whole;
		if (divided(at, c))
			return false;
		lead += before * unit;
		left = (before + left - 1) / whole + 1;
		unit *= whole;
		stride *= (int64_t)whole;
	}
	return left == 1 && constant;
}

static void blocks_of(const struct comparing *at)
{
	const struct box *elements = &at->met->elements;
	struct box *blocks = &at->met->blocks;

	*blocks = (struct box){.dim_count = at->table->dim_count, .extent[0] = 1};
	for (uint32_t d = 0; !at->one && d < elements->dim_count; d++) {
		uint64_t last = elements->offset[d] + elements->extent[d] - 1;
		blocks->offset[d] = elements->offset[d] / at->view->each[d];
		blocks->extent[d] = last / at->view->each[d] + 1 - blocks->offset[d];
	}
}

/* Whether the part's elements are those of the blocks that it says; where both lie. */
static const char *follow_blocks(const struct maxima_part *where, const struct plan_part *part,
				 const struct plan_blocks *blocks, struct spot_param *source,
				 struct met *met)
{
	struct spot_param *spot = &where->from->kinds[where->kind].spot;
	uint64_t steps[BOX_DIM_MAX], entry[BOX_DIM_MAX], bytes = ws_dtype_bytes(part->from);
	const struct piece *piece = account_place(source, part->src_offset / bytes, steps), *table;

	if (piece == NULL || spot->param == NULL || blocks->table_offset % 4 != 0 ||
	    part->src_offset % bytes != 0)
		return "it is quantized by maxima of nothing";
	table = account_place(spot, blocks->table_offset / 4, entry);
	const struct spot_tensor tensor = spot_tensor(source, piece);
	met->table = table == NULL
			     ? NONE
			     : check_table_member(where->from, (uint32_t)table->slot, &tensor);
	if (met->table == NONE)
		return "it is quantized by maxima of another tensor";
	struct comparing at = {.part = part,
			       .blocks = blocks,
			       .piece = piece,
			       .table = table,
			       .view = &where->from->tables[met->table],
			       .met = met};
	at.one = at.view->scheme->kind == SCHEME_TENSOR;
	met->exact = true;
	met->elements.dim_count = piece->dim_count;
	for (uint32_t c = 0; c < piece->dim_count; c++) {
		met->elements.offset[c] = piece->offset[c] + steps[c];
		met->elements.extent[c] = 1;
		if (!at.one &&
		    met->elements.offset[c] / at.view->each[c] != table->offset[c] + entry[c])
			return "its first code is made by the maximum of another block";
	}
	for (uint32_t d = 0; d < part->dim_count; d++)
		if (blocks->each[d] == 0 || !dim_fits(&at, d))
			return "a code is made by the maximum of another block";
	blocks_of(&at);
	for (uint32_t d = 0; d < table->dim_count; d++)
		if (met->blocks.offset[d] < table->offset[d] ||
		    met->blocks.offset[d] + met->blocks.extent[d] >
			    table->offset[d] + table->extent[d])
			return "a code is made by the maximum of nothing";
	return NULL;
}

/* Whether the part has all elements of its blocks.  What is under one scale for all may have
 * fellows. */
static bool is_whole(const struct maxima_part *at, const struct met *met)
{
	const struct table_view *view = &at->from->tables[met->table];
	const struct tensor_rule *rule = at->from->names[met->table].rule;
	const struct box *box = &met->elements;

	for (uint32_t d = 0; d < box->dim_count; d++) {
		uint64_t end = box->offset[d] + box->extent[d];
		if (box->offset[d] % view->each[d] != 0 ||
		    (end % view->each[d] != 0 && end < rule->dim[d]))
			return false;
	}
	return met->exact && view->scheme->kind != SCHEME_TENSOR;
}

/* ---- What is needed. */

static bool box_inside(const struct box *box, const struct box *of)
{
	for (uint32_t d = 0; d < box->dim_count; d++)
		if (box->offset[d] < of->offset[d] ||
		    box->offset[d] + box->extent[d] > of->offset[d] + of->extent[d])
			return false;
	return true;
}

/* Lets a box reach over another one that is the same but along one dim, and touches it. */
static bool box_join(struct box *box, const struct box *other)
{
	uint32_t along = BOX_DIM_MAX;

	for (uint32_t d = 0; d < box->dim_count; d++) {
		if (box->offset[d] == other->offset[d] && box->extent[d] == other->extent[d])
			continue;
		if (along != BOX_DIM_MAX)
			return false;
		along = d;
	}
	if (along == BOX_DIM_MAX)
		return true;
	uint64_t end = box->offset[along] + box->extent[along];
	uint64_t other_end = other->offset[along] + other->extent[along];
	if (other->offset[along] > end || box->offset[along] > other_end)
		return false;
	box->offset[along] = MIN(box->offset[along], other->offset[along]);
	box->extent[along] = MAX(end, other_end) - box->offset[along];
	return true;
}

static int need_add(struct checking *checking, struct table_view *table, const struct box *blocks)
{
	struct box_node *nodes = checking->boxes.items;

	for (uint32_t i = table->needs; i != 0; i = nodes[i - 1].next)
		if (box_inside(blocks, &nodes[i - 1].box) || box_join(&nodes[i - 1].box, blocks))
			return 0;
	struct box_node *node = vec_add(&checking->boxes, sizeof(*node));
	if (node == NULL)
		return -ENOMEM;
	*node = (struct box_node){*blocks, table->needs};
	table->needs = (uint32_t)checking->boxes.count;
	return 0;
}

int check_codes(const struct maxima_part *at, const struct stored_copy *copy,
		const struct plan_part *part, struct spot_param *source, const char **why)
{
	struct plan_part moved = *part;
	int rc = 0;

	*why = "it is quantized by maxima that nobody keeps";
	if (at->from == NULL || part->blocks == NULL)
		return 1;
	for (uint32_t r = 0; rc == 0 && r < copy->repeat; r++) {
		struct plan_blocks blocks = *part->blocks;
		struct met met;
		if (copy->turn != NULL &&
		    (copy->turn->each == 0 ||
		     (copy->turn->dim >= part->dim_count && copy->turn->dim != NONE)))
			return 1;
		if (copy->turn != NULL)
			plan_blocks_turn(&blocks, copy->turn, r);
		*why = follow_blocks(at, &moved, &blocks, source, &met);
		if (*why != NULL)
			return 1;
		struct table_view *table = &at->from->tables[met.table];
		*why = "its scheme isn't its target's";
		if (table->scheme != part->scheme)
			return 1;
		*why = "a block of which it has a part is to be whole";
		if (part->whole && !is_whole(at, &met))
			return 1;
		rc = need_add(at->checking, &at->from->tables[table->group], &met.blocks);
		moved.src_offset += (uint64_t)copy->src_step;
	}
	return rc;
}

const char *check_local_blocks(const struct maxima_part *at, const struct plan_part *part,
			       const struct plan_blocks *blocks, struct spot_param *source,
			       uint32_t *table_out, struct box *elements_out)
{
	struct met met;
	const char *fault = follow_blocks(at, part, blocks, source, &met);
	if (fault == NULL && !met.exact)
		fault = "it isn't a box of its tensor";
	if (fault == NULL) {
		*table_out = met.table;
		*elements_out = met.elements;
	}
	return fault;
}

/* ---- Scales. */

const char *check_scale_source(const struct maxima_part *at, const struct plan_part *part,
			       struct spot_param *target, struct made_scale *made)
{
	const struct piece *piece =
		account_find(target, part->dst_offset / ws_dtype_bytes(part->to));
	struct spot_param *spot = at->from == NULL ? NULL : &at->from->kinds[at->kind].spot;

	if (piece == NULL)
		return "it brings a scale where there is padding";
	const struct manifest *manifest = target->peer->manifest;
	struct spot_tensor weight = spot_tensor(target, piece);
	if (!weight.rule->is_scale)
		return "it brings a scale where there is none";
	weight.rule = manifest_tensor(manifest, weight.rule->weight_tensor);
	if (spot == NULL || spot->param == NULL || part->src_offset % 4 != 0)
		return "its scales are made of maxima that nobody keeps";
	const struct piece *table = account_find(spot, part->src_offset / 4);
	if (table == NULL || !account_same_tensor(spot, table, &weight))
		return "its sender holds no part of a block whose scale it sends";
	made->table = (uint32_t)table->slot;
	if (at->from->tables[made->table].scheme != part->scheme)
		return "its scheme isn't its target's";
	made->piece = *table;
	made->piece.tensor = piece->tensor;
	made->piece.slot = piece->slot;
	made->form = (struct form){.dim_count = 1,
				   .dim = {at->from->kinds[at->kind].form.element_count},
				   .element_count = at->from->kinds[at->kind].form.element_count,
				   .piece_count = 1,
				   .pieces = &made->piece};
	account_reach(&made->form, &made->reach);
	made->param = *target->param; /* its layer and expert */
	made->param.form = &made->form;
	made->spot = (struct spot_param){
		.peer = target->peer, .param = &made->param, .reach = &made->reach};
	return NULL;
}

int check_scale_need(const struct maxima_part *at, const struct plan_part *part,
		     const struct made_scale *made)
{
	const struct piece *table = &made->piece;
	uint64_t first = part->src_offset / 4 - table->place, last = first;
	struct box blocks = {.dim_count = table->dim_count};

	for (uint32_t d = 0; d < part->dim_count; d++)
		last += (part->extent[d] - 1) * ((uint64_t)part->src_stride[d] / 4);
	for (uint32_t d = 0; d < table->dim_count; d++) {
		uint64_t lo = first / (uint64_t)table->stride[d] % table->extent[d];
		uint64_t hi = last / (uint64_t)table->stride[d] % table->extent[d];
		blocks.offset[d] = table->offset[d] + lo;
		blocks.extent[d] = hi - lo + 1;
	}
	return need_add(at->checking, &at->from->tables[made->table], &blocks);
}

/* ---- Maxima. */

int check_maxima_part(const struct maxima_part *at, const struct plan_part *part,
		      struct account *account, char *why, size_t why_bytes)
{
	struct spot_param *from = at->from == NULL ? NULL : &at->from->kinds[at->kind].spot;
	struct spot_param *to = at->to == NULL ? NULL : &at->to->kinds[at->kind].spot;
	bool plain = part->src_param == 0 && part->dst_param == 0 && part->scheme == NULL &&
		     part->blocks == NULL && part->from == WS_U32 && part->to == WS_U32 &&
		     part->dim_count > 0 && part->dim_count <= BOX_DIM_MAX;

	for (uint32_t d = 0; plain && d < part->dim_count; d++)
		plain = part->extent[d] > 0 && from != NULL && from->param != NULL &&
			part->extent[d] <= from->param->form->element_count;
	if (!plain || to == NULL || to->param == NULL) {
		snprintf(why, why_bytes, "it isn't of maxima that both keep");
		return 1;
	}
	return account_part(account, part, from, to, why, why_bytes);
}
