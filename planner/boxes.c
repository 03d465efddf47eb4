/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the atoms of a kind's units to the boxes of the planned member: which holder sends
 * which rows, and where they lie in both ranks' params.
 */
#include "planner/plan_internal.h"

/* One atom of one unit on its way to one taker of one replica. */
struct delivery {
	struct planning *planning;
	const struct bucket_kind *kind;
	const struct geometry *geometry;
	const struct want *want;
	const struct atom *atom;
	const struct holder *taker;
	const struct holding *target; /* the taker's */
	struct plan_family *family;
	uint32_t unit, replica;
	uint32_t replicas; /* that are alike and planned as one */
	struct ws_error *err;
};

static void part_side(const struct piece *piece, const struct box *box, enum ws_dtype dtype,
		      uint64_t *offset_out, int64_t *stride_out)
{
	int64_t bytes = (int64_t)ws_dtype_bytes(dtype);
	int64_t place = (int64_t)piece->place;

	for (uint32_t d = 0; d < box->dim_count; d++) {
		place += (int64_t)(box->offset[d] - piece->offset[d]) * piece->stride[d];
		stride_out[d] = piece->stride[d] * bytes;
	}
	*offset_out = (uint64_t)(place * bytes);
}

bool box_dense(const struct box *box, const struct piece *piece)
{
	uint64_t want = 1;

	for (uint32_t d = box->dim_count; d > 0; d--) {
		if (box->extent[d - 1] == 1)
			continue;
		if (piece->stride[d - 1] < 0 || (uint64_t)piece->stride[d - 1] != want)
			return false;
		want *= box->extent[d - 1];
	}
	return true;
}

int boxes_begin(struct planning *planning)
{
	struct plan *plan = planning->plan;
	const struct family *families = planning->families.items;

	plan->family_count = (uint32_t)planning->families.count;
	plan->families = arena_array(&plan->arena, plan->family_count, sizeof(*plan->families));
	for (uint32_t i = 0; plan->families != NULL && i < plan->family_count; i++) {
		const char *name = families[i].key;
		plan->families[i].name = arena_copy(&plan->arena, name, strlen(name));
		if (plan->families[i].name == NULL)
			return -ENOMEM;
	}
	return plan->families == NULL ? -ENOMEM : 0;
}

void boxes_end(struct plan *plan)
{
	struct plan_totals *totals = &plan->totals;

	for (uint32_t i = 0; i < plan->family_count; i++)
		for (uint32_t k = 0; k < ARRAY_SIZE(totals->class_count); k++) {
			totals->boxes += plan->families[i].boxes[k];
			totals->runs += plan->families[i].runs[k];
			totals->class_count[k] += plan->families[i].boxes[k];
		}
}

/* Counted by box, before it is cut for balance or merged: the numbers of layouts.md 5.2. */
static void count_box(const struct delivery *delivery, const struct piece *source)
{
	const struct box *box = &delivery->atom->box;
	uint64_t times = (uint64_t)delivery->kind->bucket_count * delivery->replicas;
	bool source_dense = box_dense(box, source);
	bool target_dense = box_dense(box, delivery->want->piece);
	uint32_t class = (source_dense ? 0u : 1u) + (target_dense ? 0u : 2u);
	struct plan_family *family = delivery->family;
	uint64_t rows = 1;

	for (uint32_t d = 0; class != 0 && d + 1 < box->dim_count; d++)
		rows *= box->extent[d];
	uint64_t run = delivery->atom->bytes / rows;
	family->boxes[class] += times;
	family->runs[class] += rows * times;
	family->bytes[class] += delivery->atom->bytes * times;
	if (family->run_min == 0 || run < family->run_min)
		family->run_min = run;
}

void boxes_count(struct plan *plan, const struct raw *raw, uint64_t layers)
{
	uint64_t bytes = raw->bytes * layers;

	plan->sent[raw->sender] += bytes;
	plan->received[raw->receiver] += bytes;
	plan->totals.bytes += bytes;
	if (raw->sender < plan->trainer_count)
		plan->from_trainers[raw->receiver] += bytes;
	else
		plan->totals.forward_bytes += bytes;
}

/* What becomes of the box on the way; then its shape. */
static int part_kind(struct planning *planning, const struct ends *ends, const struct box *box,
		     struct raw *raw)
{
	const struct manifest *manifest = planning->plan->input.rollout;
	struct plan_part *part = &raw->part;

	if (ends->scale)
		part->kind = PART_SCALES;
	else if (part->from != part->to && manifest_rule(manifest, ends->target->rule)->quant)
		part->kind = PART_CODES;
	if (part->kind != PART_CAST)
		part->scheme = manifest_scheme(manifest, ends->target->rule);
	if (part->kind != PART_CODES) {
		shape_normalize(raw, NULL);
		return 0;
	}
	part->whole = grid_is_whole(&ends->geometry->grid, box);
	struct plan_blocks blocks = table_blocks(&ends->geometry->grid, ends->table, box);
	shape_normalize(raw, &blocks);
	part->blocks = blocks_keep(planning, &blocks);
	return part->blocks == NULL ? -ENOMEM : 0;
}

int boxes_put(struct planning *planning, const struct ends *ends, const struct box *box,
	      uint64_t layers, struct ws_error *err)
{
	const struct holding *source = ends->source, *target = ends->target;
	struct raw *raw = vec_add(&planning->raws, sizeof(*raw));

	if (raw == NULL)
		return plan_no_memory(err);
	raw->sender = ends->sender;
	raw->receiver = ends->receiver;
	raw->part = (struct plan_part){.src_param = source->param,
				       .dst_param = target->param,
				       .dim_count = box->dim_count,
				       .from = source->dtype,
				       .to = target->dtype};
	raw->rules = (struct part_rules){source->rule, target->rule, source->each, target->each};
	memcpy(raw->part.extent, box->extent, box->dim_count * sizeof(uint64_t));
	part_side(source->piece, box, source->dtype, &raw->part.src_offset, raw->part.src_stride);
	part_side(target->piece, box, target->dtype, &raw->part.dst_offset, raw->part.dst_stride);
	raw->bytes = box_volume(box) * ws_dtype_bytes(target->dtype);
	if (part_kind(planning, ends, box, raw) != 0)
		return plan_no_memory(err);
	boxes_count(planning->plan, raw, layers);
	return 0;
}

/* The weight that the delivery is about, or whose scale; NONE where it isn't quantized. */
static uint32_t quantized_unit(const struct delivery *delivery)
{
	if (delivery->geometry->derived)
		return scales_weight(delivery->planning, delivery->unit);
	return delivery->geometry->scheme != NULL &&
			       delivery->want->dtype == delivery->geometry->scheme->code
		       ? delivery->unit
		       : NONE;
}

/* A box for one replica; where replicas are alike it counts for the others too. */
static int raw_add(const struct delivery *delivery, const struct box *box, uint32_t holder,
		   bool first)
{
	struct planning *planning = delivery->planning;
	struct plan *plan = planning->plan;
	const struct holder *from =
		&delivery->geometry->cells[delivery->atom->cell].holders[holder];
	uint32_t weight = quantized_unit(delivery), count;
	const struct holding *source;
	int rc = match_holdings(planning, SIDE_TRAINER, from->rank,
				weight != NONE ? weight : delivery->unit, &source, &count,
				delivery->err);
	struct ends ends = {
		.sender = from->rank,
		.receiver = member_of_rollout(plan, delivery->replica, delivery->taker->rank),
		.target = delivery->target,
		.scale = delivery->geometry->derived,
		.geometry = delivery->geometry};

	if (rc == 0 && weight != NONE)
		rc = table_of_unit(planning, from->rank, weight, &ends.table, delivery->err);
	if (rc != 0)
		return rc;
	/* A scale is read from the table. */
	struct holding made = source[from->nth];
	struct piece entries;
	ends.source = &source[from->nth];
	if (ends.scale) {
		entries = table_piece(ends.table);
		made.piece = &entries;
		made.dtype = WS_U32;
		ends.source = &made;
	}
	rc = boxes_put(planning, &ends, box, delivery->kind->bucket_count, delivery->err);
	if (rc != 0)
		return rc;
	struct raw raw = ((struct raw *)planning->raws.items)[planning->raws.count - 1];
	for (uint32_t r = 1; r < delivery->replicas; r++) {
		raw.receiver += plan->rollout_count;
		boxes_count(plan, &raw, delivery->kind->bucket_count);
	}
	if (delivery->geometry->scale)
		plan->totals.scale_bytes +=
			raw.bytes * delivery->kind->bucket_count * delivery->replicas;
	else if (first)
		count_box(delivery, ends.source->piece);
	return 0;
}

/* A box that a holder sends: what it needs for that, and the box itself, as far as the planned
 * member is concerned. */
static int give(const struct delivery *delivery, const struct box *box, uint32_t holder, bool first)
{
	struct planning *planning = delivery->planning;
	const struct plan *plan = planning->plan;
	const struct geometry *geometry = delivery->geometry;
	uint32_t rank = geometry->cells[delivery->atom->cell].holders[holder].rank;
	bool all = plan->self == PLAN_ALL, trains = plan->self < plan->trainer_count;
	bool mine = !trains || rank == plan->self;
	uint32_t weight = all || trains ? quantized_unit(delivery) : NONE;
	int rc = 0;

	if (weight != NONE && (mine || delivery->atom->near)) {
		struct box blocks = geometry->derived ? *box : grid_touched(&geometry->grid, box);
		if (maxima_need(planning, weight, rank, &blocks) != 0)
			rc = plan_no_memory(delivery->err);
	}
	return rc == 0 && mine ? raw_add(delivery, box, holder, first) : rc;
}

/*
 * Deals the atom's rows over the holders whose intervals it touches.  A box too small for a run of
 * its own goes whole to who has its middle.
 */
static int deal_rows(const struct delivery *delivery, const struct holder_set *set,
		     uint64_t position)
{
	const struct plan *plan = delivery->planning->plan;
	const struct box *whole = &delivery->atom->box;
	uint64_t bytes = delivery->atom->bytes, rows = 1, done = 0;
	uint32_t dim = 0, low = 0, high = set->count;

	while (dim < whole->dim_count && whole->extent[dim] == 1)
		dim++;
	if (bytes >= plan->input.rules.run_bytes_min && dim < whole->dim_count)
		rows = whole->extent[dim];
	uint64_t row_bytes = bytes / rows;
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;
		if (set->end[middle - 1] <= position)
			low = middle;
		else
			high = middle;
	}
	for (uint32_t k = low; done < rows && k < set->count; k++) {
		uint32_t i = set->at[k];
		uint64_t reach = set->end[k] > position ? set->end[k] - position : 0;
		uint64_t end = reach >= bytes ? rows : (reach + row_bytes / 2) / row_bytes;
		if (end <= done)
			continue;
		struct box box = *whole;
		if (rows > 1) {
			box.offset[dim] += done;
			box.extent[dim] = end - done;
		}
		int rc = give(delivery, &box, i, done == 0);
		if (rc != 0)
			return rc;
		done = end;
	}
	return 0;
}

/* What one taker of a want gets, as far as the planned member is concerned with it. */
static int taker_boxes(struct delivery *delivery)
{
	struct planning *planning = delivery->planning;
	const struct want *want = delivery->want;
	uint32_t rank = delivery->taker->rank, count;
	int rc = match_holdings(planning, SIDE_ROLLOUT, rank, delivery->unit, &delivery->target,
				&count, delivery->err);

	delivery->target += delivery->taker->nth;
	for (uint32_t a = 0; rc == 0 && a < want->atom_count; a++) {
		delivery->atom = &delivery->geometry->atoms[want->atom_first + a];
		struct holder_set *set = planning_set(planning, delivery->atom->set);
		bool concerned = set->mine || delivery->atom->near;
		if (set->count == 1 && concerned)
			rc = give(delivery, &delivery->atom->box, 0, true);
		if (set->count == 1 || !(set->mine || set->near))
			continue;
		if (concerned)
			rc = deal_rows(delivery, set,
				       delivery->replica * set->line + set->base[rank] +
					       set->running[rank]);
		set->running[rank] += delivery->atom->bytes;
	}
	return rc;
}

/* All takers of all wants of a unit, or the planned member alone. */
static int unit_boxes(struct delivery *delivery)
{
	const struct plan *plan = delivery->planning->plan;
	bool one = plan->self != PLAN_ALL && plan->self >= plan->trainer_count;
	uint32_t self = one ? (plan->self - plan->trainer_count) % plan->rollout_count : 0;
	const struct geometry *geometry = delivery->geometry;

	for (uint32_t w = 0; w < geometry->want_count; w++) {
		delivery->want = &geometry->wants[w];
		for (uint32_t t = 0; t < delivery->want->taker_count; t++) {
			delivery->taker = &delivery->want->takers[t];
			if (one && delivery->taker->rank != self)
				continue;
			int rc = taker_boxes(delivery);
			if (rc != 0)
				return rc;
		}
	}
	return 0;
}

static void lines_rewind(struct planning *planning)
{
	const uint32_t *lines = planning->lines.items;

	for (size_t i = 0; i < planning->lines.count; i++) {
		struct holder_set *set = planning_set(planning, lines[i]);
		if (set->count > 1)
			memset(set->running, 0,
			       planning->plan->rollout_count * sizeof(*set->running));
	}
}

/* Whether what one replica gets, each gets: nothing is dealt, and nothing forwarded. */
static bool replicas_alike(const struct planning *planning)
{
	const uint32_t *lines = planning->lines.items;

	for (size_t i = 0; i < planning->lines.count; i++)
		if (planning_set(planning, lines[i])->count > 1)
			return false;
	return planning->plan->input.rules.fanout == FANOUT_NONE;
}

static int replica_boxes(struct delivery *delivery)
{
	struct planning *planning = delivery->planning;
	const struct bucket_kind *kind = delivery->kind;
	const struct family *families = planning->families.items;
	int rc = 0;

	lines_rewind(planning);
	for (uint32_t i = 0; rc == 0 && i < kind->unit_count; i++) {
		int32_t layer, expert;
		delivery->unit = planning->order[kind->unit_first + i];
		const struct family *family = match_unit(planning, delivery->unit, &layer, &expert);
		delivery->family = &planning->plan->families[family - families];
		delivery->geometry =
			planning_geometry(planning, planning->unit_geometry[delivery->unit]);
		rc = unit_boxes(delivery);
	}
	return rc;
}

int boxes_of_kind(struct planning *planning, struct bucket_kind *kind, struct ws_error *err)
{
	const struct plan *plan = planning->plan;
	struct delivery delivery = {.planning = planning, .kind = kind, .replicas = 1, .err = err};
	uint32_t lo = 0, hi = plan->fed_replicas;
	int rc = balance_lines(planning, kind, err);

	planning->raws.count = planning->needs.count = 0;
	kind->replicas_alike = replicas_alike(planning);
	if (plan->self != PLAN_ALL && plan->self >= plan->trainer_count) {
		lo = (plan->self - plan->trainer_count) / plan->rollout_count;
		hi = MIN(hi, lo + 1);
	} else if (kind->replicas_alike) {
		delivery.replicas = hi;
		hi = 1;
	}
	for (uint32_t replica = lo; rc == 0 && replica < hi; replica++) {
		delivery.replica = replica;
		rc = replica_boxes(&delivery);
	}
	for (uint32_t i = 0; rc == 0 && i < kind->unit_count; i++)
		rc = fanout_of_unit(planning, kind, planning->order[kind->unit_first + i], err);
	return rc;
}
