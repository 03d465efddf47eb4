/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of what a trainer knows before it quantizes.  For all that it needs: the elements of
 * those blocks lie in boxes that it has looked through itself, or in boxes of those who told it of
 * these blocks.  What it tells others, it has found in all that it holds of them.  A plan of
 * all has no locals: there a trainer is taken to look through all that it holds, as each proves of
 * itself.
 */
#include <stdio.h>

#include "planner/check.h"

/* Boxes of one table: elements that were looked through, or blocks that were told (of the first
 * under the scale). */
struct known_box {
	uint32_t table, teller;
	struct box box;
};

struct told {
	struct checking *checking;
	struct tables_view *view;
	struct peer *self; /* the planned trainer; NULL in a plan of all */
	struct vec found;  /* of struct known_box: elements, by locals */
	struct vec told;   /* of struct known_box: blocks, by others */
	struct vec tells;  /* of struct known_box: blocks, to others */
	struct vec boxes;  /* of struct box: what covers a region */
	struct vec work;   /* of struct box: covers()'s */
};

static void told_release(struct told *told)
{
	vec_release(&told->found);
	vec_release(&told->told);
	vec_release(&told->tells);
	vec_release(&told->boxes);
	vec_release(&told->work);
}

static int known_order(const void *a, const void *b)
{
	const struct known_box *x = a, *y = b;

	return x->table < y->table ? -1 : x->table > y->table;
}

static void known_sort(struct vec *list)
{
	if (list->count > 0)
		qsort(list->items, list->count, sizeof(struct known_box), known_order);
}

/* The first of a table, in a sorted list. */
static size_t known_first(const struct vec *list, uint32_t table)
{
	const struct known_box *items = list->items;
	size_t lo = 0, hi = list->count;

	while (lo < hi) {
		size_t middle = (lo + hi) / 2;
		if (items[middle].table < table)
			lo = middle + 1;
		else
			hi = middle;
	}
	return lo;
}

/* ---- Regions. */

/* The elements of blocks of a tensor under the table's scale. */
static struct box region_of(const struct table_view *mine, const struct tensor_rule *rule,
			    const struct box *blocks)
{
	struct box region = {.dim_count = rule->dim_count};

	for (uint32_t d = 0; d < rule->dim_count; d++) {
		uint64_t end = rule->dim[d];
		if (mine->scheme->kind != SCHEME_TENSOR) {
			region.offset[d] = blocks->offset[d] * mine->each[d];
			end = MIN(end, region.offset[d] + blocks->extent[d] * mine->each[d]);
		}
		region.extent[d] = end - region.offset[d];
	}
	return region;
}

static bool meets(const struct box *a, const struct box *b)
{
	for (uint32_t d = 0; d < a->dim_count; d++)
		if (a->offset[d] >= b->offset[d] + b->extent[d] ||
		    b->offset[d] >= a->offset[d] + a->extent[d])
			return false;
	return true;
}

/*
 * Whether the boxes work[first..] cover the region from dim `dim` on: slab by slab, each from where
 * the last ended to where the next box begins or ends.  At most BOX_DIM_MAX deep.
 */
static int covers(struct vec *work, size_t first, const struct box *region, uint32_t dim)
{
	size_t end = work->count;

	if (end == first || dim == region->dim_count)
		return end > first;
	uint64_t at = region->offset[dim], stop = at + region->extent[dim];
	while (at < stop) {
		uint64_t next = stop;
		for (size_t i = first; i < end; i++) {
			const struct box box = ((const struct box *)work->items)[i];
			uint64_t box_end = box.offset[dim] + box.extent[dim];
			if (box.offset[dim] > at)
				next = MIN(next, box.offset[dim]);
			if (box.offset[dim] > at || box_end <= at)
				continue;
			next = MIN(next, box_end);
			if (boxes_add(work, &box) != 0)
				return -ENOMEM;
		}
		int rc = covers(work, end, region, dim + 1);
		work->count = end;
		if (rc != 1)
			return rc;
		at = next;
	}
	return 1;
}

static int boxes_cover(struct told *told, const struct box *region)
{
	told->work.count = 0;
	for (size_t i = 0; i < told->boxes.count; i++) {
		const struct box *box = (const struct box *)told->boxes.items + i;
		if (meets(box, region) && boxes_add(&told->work, box) != 0)
			return -ENOMEM;
	}
	return covers(&told->work, 0, region, 0);
}

/* Adds what of a piece lies in the region. */
static int piece_add(struct vec *boxes, const struct piece *piece, const struct box *region)
{
	struct box box = {.dim_count = piece->dim_count};

	memcpy(box.offset, piece->offset, sizeof(box.offset));
	memcpy(box.extent, piece->extent, sizeof(box.extent));
	if (!meets(&box, region))
		return 0;
	for (uint32_t d = 0; d < box.dim_count; d++) {
		uint64_t end =
			MIN(box.offset[d] + box.extent[d], region->offset[d] + region->extent[d]);
		box.offset[d] = MAX(box.offset[d], region->offset[d]);
		box.extent[d] = end - box.offset[d];
	}
	return boxes_add(boxes, &box);
}

/* Whether a second param of this rank may have pieces of the tensor: it stands in several rules. */
static bool in_several_rules(const struct tables_view *view, uint32_t tensor)
{
	return view->rule_of[tensor] == NONE;
}

/* The pieces of a table's tensor in all params of a rank. */
static int holdings_search(struct checking *checking, struct vec *boxes,
			   const struct tables_view *view, uint32_t table, const struct box *region)
{
	const struct peer *peer = check_peer(checking, SIDE_TRAINER, view->rank);
	struct spot_param spot = {.peer = peer};
	int rc = 0;

	if (peer == NULL)
		return checking->err->code;
	for (uint32_t p = 0; rc == 0 && p < peer->count; p++) {
		spot.param = &peer->params[p];
		const struct form *form = spot.param->form;
		for (uint32_t i = 0; rc == 0 && i < form->piece_count; i++)
			if (form->pieces[i].tensor == view->pieces[table].tensor &&
			    account_same_tensor(&spot, &form->pieces[i], &view->names[table]))
				rc = piece_add(boxes, &form->pieces[i], region);
	}
	return rc;
}

/* What the rank holds of the table's tensor, inside the region. */
static int holdings_add(struct checking *checking, struct vec *boxes,
			const struct tables_view *view, uint32_t table, const struct box *region)
{
	const struct plan_table *claim = &checking->plan->tables[view->rank].list[table];
	const struct form *form = view->params[table].form;
	uint32_t piece = (uint32_t)(claim->piece - form->pieces), first = piece;
	int rc = 0;

	if (in_several_rules(view, claim->piece->tensor))
		return holdings_search(checking, boxes, view, table, region);
	/* Pieces are sorted by tensor and slot. */
	while (first > 0 && form->pieces[first - 1].tensor == claim->piece->tensor &&
	       form->pieces[first - 1].slot == claim->piece->slot)
		first--;
	for (uint32_t i = first; rc == 0 && i < form->piece_count; i++) {
		if (form->pieces[i].tensor != claim->piece->tensor ||
		    form->pieces[i].slot != claim->piece->slot)
			break;
		rc = piece_add(boxes, &form->pieces[i], region);
	}
	return rc;
}

/* The same of another rank's, which must have a table of the tensor to tell anything. */
static int teller_add(struct told *told, uint32_t teller, const struct table_view *mine,
		      const struct spot_tensor *name, const struct box *blocks)
{
	struct tables_view *view;
	uint32_t other;
	int rc = check_tables(told->checking, teller, &view);

	if (rc != 0 || view == NULL)
		return rc;
	rc = check_table_find(view, mine->key, &other);
	if (rc == 0 && other != NONE)
		other = check_table_member(view, other, name);
	if (rc != 0 || other == NONE)
		return rc;
	struct box region = region_of(mine, name->rule, blocks);
	return holdings_add(told->checking, &told->boxes, view, other, &region);
}

/* ---- What goes in and out. */

/* A claim to blocks of one of the kind's tables, counted from where the table begins. */
static int known_add(struct vec *list, const struct tables_view *view, uint32_t kind,
		     const struct claim *claim, uint32_t teller)
{
	struct known_box *known = vec_add(list, sizeof(*known));

	if (known == NULL)
		return -ENOMEM;
	*known = (struct known_box){
		.table = (uint32_t)view->kinds[kind].form.pieces[claim->piece].slot,
		.teller = teller,
		.box = claim->box};
	for (uint32_t d = 0; d < claim->box.dim_count; d++)
		known->box.offset[d] += view->pieces[known->table].offset[d];
	return 0;
}

/* All maxima between the trainer and others: what comes, or what goes. */
static int pair_walk(struct told *told, const struct pair_state *state, bool receives)
{
	struct checking *checking = told->checking;
	const struct plan *plan = checking->plan;
	uint32_t sender = state->pair.sender, receiver = state->pair.receiver;
	struct account account = {0};
	struct maxima_part at = {.checking = checking};
	char why[256];
	int rc = check_tables(checking, receives ? sender : receiver, &at.from);

	at.to = told->view;
	for (uint32_t k = 0; rc == 0 && k < plan->kind_count; k++) {
		if (state->segments[k] == 0)
			continue;
		const struct segment *segment = plan_segment(plan, state->segments[k] - 1);
		const struct stored_copy *copy =
			(const struct stored_copy *)plan->copies.items + segment->copy_first;
		at.kind = k;
		account.claims.count = 0;
		for (uint32_t p = 0; rc == 0 && p < copy->part_count; p++) {
			struct plan_part part =
				((const struct plan_part *)plan->parts.items)[copy->part_first + p];
			if (!receives)
				part = check_mirrored(&part);
			rc = check_maxima_part(&at, &part, &account, why, sizeof(why));
		}
		for (size_t i = 0; rc == 0 && i < account.claims.count; i++) {
			const struct claim *claim = (const struct claim *)account.claims.items + i;
			rc = known_add(receives ? &told->told : &told->tells, told->view, k, claim,
				       sender);
		}
	}
	vec_release(&account.claims);
	return rc == 1 ? 0 : rc; /* a part that is wrong has been told already */
}

/* NULL, or what is wrong with a local. */
static const char *local_fault(struct told *told, const struct stored_local *stored, uint32_t kind,
			       struct known_box *known)
{
	const struct plan_local *local = &stored->local;
	struct peer *peer = told->self;
	struct spot_param source = {0};
	struct maxima_part at = {.checking = told->checking, .from = told->view, .kind = kind};
	struct plan_part part = {.dim_count = local->dim_count,
				 .src_offset = local->src_offset,
				 .from = local->from};

	if (local->param >= peer->count || local->dim_count == 0 || local->dim_count > BOX_DIM_MAX)
		return "it is of no param";
	const struct param *param = &peer->params[local->param];
	if (stored->rule != param->rule || stored->each != peer->each[local->param])
		return "its rule isn't that of its param";
	if (local->from != param->dtype || !check_is_float(local->from))
		return "its dtype isn't the param's";
	if (peer->kind[local->param] != 0 && peer->kind[local->param] != kind + 1)
		return "its param has copies in another bucket";
	peer->kind[local->param] = kind + 1;
	memcpy(part.extent, local->extent, sizeof(part.extent));
	memcpy(part.src_stride, local->src_stride, sizeof(part.src_stride));
	if (check_spot(told->checking, &source, peer, local->param) != 0)
		return "there is no memory to check it";
	return check_local_blocks(&at, &part, &local->blocks, &source, &known->table, &known->box);
}

static int locals_walk(struct told *told)
{
	struct checking *checking = told->checking;
	const struct plan *plan = checking->plan;
	const struct stored_local *locals = plan->locals.items;
	size_t next = 0;

	for (uint32_t k = 0; k < plan->kind_count; k++) {
		const struct bucket_kind *kind = &plan->kinds[k];
		const char *fault = NULL;
		if (kind->local_count > 0 && kind->local_first != next)
			fault = "a bucket's locals don't follow those of the one before";
		if (kind->local_count > plan->locals.count - next)
			fault = "there are fewer locals than buckets have";
		for (uint32_t i = 0; fault == NULL && i < kind->local_count; i++) {
			struct known_box *known = vec_add(&told->found, sizeof(*known));
			if (known == NULL)
				return -ENOMEM;
			fault = local_fault(told, &locals[next + i], k, known);
		}
		next += fault == NULL ? kind->local_count : 0;
		if (fault == NULL && k + 1 == plan->kind_count && next != plan->locals.count)
			fault = "a local is of no bucket";
		if (fault == NULL)
			continue;
		findings_add(checking->findings, "locals", "plan",
			     "a box in which maxima are found is planned wrong: %s", fault);
		return 0;
	}
	return 0;
}

/* ---- The proof. */

static void tell(struct told *told, const struct spot_tensor *tensor, const struct box *region,
		 const char *what)
{
	char name[512], member[96], box[160];

	tensor_name(tensor->rule, tensor->layer, tensor->expert, name, sizeof(name));
	plan_member_name(told->checking->plan, told->view->rank, member, sizeof(member));
	findings_add(told->checking->findings, "maxima", name, "%s %s of %s of '%s'", member, what,
		     box_text(region, box, sizeof(box)), name);
}

/* What the trainer itself knows of a table's elements inside the region. */
static int own_add(struct told *told, uint32_t table, const struct box *region)
{
	const struct known_box *found = told->found.items;

	if (told->self == NULL)
		return holdings_add(told->checking, &told->boxes, told->view, table, region);
	for (size_t i = known_first(&told->found, table);
	     i < told->found.count && found[i].table == table; i++)
		if (boxes_add(&told->boxes, &found[i].box) != 0)
			return -ENOMEM;
	return 0;
}

/* Whether a block of one of the tensors under a scale is known whole: 0 or 1, -ENOMEM. */
static int knows(struct told *told, uint32_t first, const struct spot_tensor *name,
		 const struct box *blocks)
{
	const struct table_view *mine = &told->view->tables[first];
	const struct known_box *list = told->told.items;
	const struct box region = region_of(mine, name->rule, blocks);
	uint32_t table = check_table_member(told->view, first, name);
	int rc = 0;

	told->boxes.count = 0;
	if (table != NONE)
		rc = own_add(told, table, &region);
	for (size_t i = known_first(&told->told, first);
	     rc == 0 && i < told->told.count && list[i].table == first; i++)
		rc = teller_add(told, list[i].teller, mine, name, &list[i].box);
	if (rc == 0)
		rc = boxes_cover(told, &region);
	if (rc == 0)
		tell(told, name, &region, "doesn't learn the maxima of all");
	return rc;
}

/* Each block that is needed is known whole, of all tensors that are under its scale. */
static int check_needs(struct told *told, uint32_t first)
{
	const struct manifest *rollout = told->checking->plan->input.rollout;
	const struct box_node *nodes = told->checking->boxes.items;
	const struct table_view *mine = &told->view->tables[first];
	struct spot_tensor name = told->view->leads[first];
	uint32_t tensor = mine->lead;
	int rc = 1;

	for (uint32_t n = mine->needs; rc == 1 && n != 0; n = nodes[n - 1].next)
		do {
			name.rule = manifest_tensor(rollout, tensor);
			rc = knows(told, first, &name, &nodes[n - 1].box);
			tensor = manifest_tensor_fellow(rollout, tensor);
		} while (rc == 1 && tensor != mine->lead);
	return MIN(rc, 0);
}

/* What is told of a table is found: all that the trainer holds of it. */
static int tells_found(struct told *told, uint32_t table, const struct box *blocks)
{
	const struct spot_tensor *name = &told->view->names[table];
	const struct box region = region_of(&told->view->tables[table], name->rule, blocks);
	struct vec held = {0};

	told->boxes.count = 0;
	int rc = holdings_add(told->checking, &held, told->view, table, &region);
	if (rc == 0)
		rc = own_add(told, table, &region);
	for (size_t h = 0; rc == 0 && h < held.count; h++) {
		const struct box *box = (const struct box *)held.items + h;
		int covered = boxes_cover(told, box);
		rc = MIN(covered, 0);
		if (covered != 0)
			continue;
		tell(told, name, box, "tells maxima that it hasn't found,");
		break;
	}
	vec_release(&held);
	return rc;
}

static int check_tells(struct told *told)
{
	const struct known_box *tells = told->tells.items;
	const struct tables_view *view = told->view;
	int rc = 0;

	for (size_t i = 0; i < told->tells.count; i++) {
		uint32_t first = tells[i].table;
		for (uint32_t t = first; rc == 0 && t < view->table_count; t++) {
			if (view->tables[t].group != first)
				break;
			rc = tells_found(told, t, &tells[i].box);
		}
	}
	return rc;
}

static int trainer_walk(struct told *told)
{
	const struct plan *plan = told->checking->plan;
	uint32_t rank = told->view->rank;
	int rc = 0;

	for (uint32_t i = check_first_received(plan, rank); rc == 0 && i < plan->receive_count;
	     i++) {
		const struct pair_state *state = plan_pair_state(plan, plan->by_receiver[i]);
		if (state->pair.receiver != rank)
			break;
		rc = pair_walk(told, state, true);
	}
	for (uint32_t i = 0; rc == 0 && plan->self == rank && i < plan->pairs.count; i++) {
		const struct pair_state *state = plan_pair_state(plan, i);
		if (state->pair.sender == rank && state->pair.receiver < plan->trainer_count)
			rc = pair_walk(told, state, false);
	}
	if (rc == 0 && plan->self == rank)
		rc = locals_walk(told);
	known_sort(&told->found);
	known_sort(&told->told);
	for (uint32_t t = 0; rc == 0 && t < plan->tables[rank].count; t++)
		rc = check_needs(told, t);
	return rc == 0 && plan->self == rank ? check_tells(told) : rc;
}

int check_trainer(struct checking *checking, uint32_t trainer)
{
	struct told told = {.checking = checking};
	int rc = check_tables(checking, trainer, &told.view);

	if (rc != 0 || told.view == NULL)
		return rc;
	if (checking->plan->self == trainer) {
		told.self = check_peer(checking, SIDE_TRAINER, trainer);
		if (told.self == NULL)
			return checking->err->code;
	}
	rc = trainer_walk(&told);
	told_release(&told);
	return rc == -ENOMEM ? plan_no_memory(checking->err) : rc;
}
