/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the atoms of a bucket's units to the boxes of the planned member: which holder sends
 * which rows, and where they lie in both ranks' params.
 */
#include "planner/plan_internal.h"

/* One atom of one unit on its way to one replica. */
struct delivery {
	struct planning *planning;
	const struct geometry *geometry;
	const struct atom *atom;
	uint32_t unit, replica;
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

void boxes_count(struct plan *plan, const struct raw *raw)
{
	plan->sent[raw->sender] += raw->bytes;
	plan->received[raw->receiver] += raw->bytes;
	plan->totals.bytes += raw->bytes;
	if (raw->sender < plan->trainer_count)
		plan->from_trainers[raw->receiver] += raw->bytes;
	else
		plan->totals.forward_bytes += raw->bytes;
}

/* Counted by box, before it is cut for balance or merged: the numbers of layouts.md 5.2. */
static void count_box(struct plan_totals *totals, const struct box *box, const struct piece *source,
		      const struct piece *target)
{
	bool source_dense = box_dense(box, source), target_dense = box_dense(box, target);
	uint64_t rows = 1;

	for (uint32_t d = 0; d + 1 < box->dim_count; d++)
		rows *= box->extent[d];
	totals->boxes++;
	totals->runs += source_dense && target_dense ? 1 : rows;
	totals->class_count[(source_dense ? 0 : 1) + (target_dense ? 0 : 2)]++;
}

int boxes_put(struct planning *planning, const struct ends *ends, const struct box *box,
	      struct ws_error *err)
{
	struct plan *plan = planning->plan;
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
	memcpy(raw->part.extent, box->extent, box->dim_count * sizeof(uint64_t));
	part_side(source->piece, box, source->dtype, &raw->part.src_offset, raw->part.src_stride);
	part_side(target->piece, box, target->dtype, &raw->part.dst_offset, raw->part.dst_stride);
	raw->bytes = box_volume(box) * ws_dtype_bytes(target->dtype);
	shape_normalize(raw);
	boxes_count(plan, raw);
	return 0;
}

static int raw_add(const struct delivery *delivery, const struct box *box, uint32_t holder,
		   bool first)
{
	struct planning *planning = delivery->planning;
	const struct plan *plan = planning->plan;
	const struct atom *atom = delivery->atom;
	const struct holder *from = &delivery->geometry->cells[atom->cell].holders[holder];
	const struct holding *source, *target;
	uint32_t count;
	int rc = match_holdings(planning, SIDE_TRAINER, from->rank, delivery->unit, &source, &count,
				delivery->err);

	if (rc == 0)
		rc = match_holdings(planning, SIDE_ROLLOUT, atom->target, delivery->unit, &target,
				    &count, delivery->err);
	if (rc != 0)
		return rc;
	const struct ends ends = {
		.sender = from->rank,
		.receiver = member_of_rollout(plan, delivery->replica, atom->target),
		.source = source + from->nth,
		.target = target + atom->nth,
	};
	rc = boxes_put(planning, &ends, box, delivery->err);
	if (rc == 0 && first)
		count_box(&planning->plan->totals, &atom->box, ends.source->piece,
			  ends.target->piece);
	return rc;
}

/*
 * Deals the atom's rows over the holders whose intervals it touches, and keeps those parts that
 * the planned member sends or receives.  A box too small for a run of its own goes whole to who has
 * its middle.
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
	for (uint32_t i = low; done < rows && i < set->count; i++) {
		uint64_t reach = set->end[i] > position ? set->end[i] - position : 0;
		uint64_t end = reach >= bytes ? rows : (reach + row_bytes / 2) / row_bytes;
		if (end <= done)
			continue;
		bool mine = plan->self == PLAN_ALL || plan->self >= plan->trainer_count ||
			    set->ranks[i] == plan->self;
		struct box box = *whole;
		if (rows > 1) {
			box.offset[dim] += done;
			box.extent[dim] = end - done;
		}
		int rc = mine ? raw_add(delivery, &box, i, done == 0) : 0;
		if (rc != 0)
			return rc;
		done = end;
	}
	return 0;
}

static int flow_boxes(struct delivery *delivery, const struct flow *flow)
{
	struct planning *planning = delivery->planning;
	const struct holder_set *set = planning_set(planning, flow->set);
	uint64_t position = 0;
	int rc = 0;

	if (set->count > 1)
		position = delivery->replica * set->total + set->base[flow->target] +
			   set->running[flow->target];
	for (uint32_t a = 0; rc == 0 && a < flow->atom_count; a++) {
		delivery->atom = &delivery->geometry->atoms[flow->atom_first + a];
		if (set->count == 1)
			rc = raw_add(delivery, &delivery->atom->box, 0, true);
		else
			rc = deal_rows(delivery, set, position + delivery->atom->before);
	}
	return rc;
}

int boxes_of_unit(struct planning *planning, uint32_t unit, struct ws_error *err)
{
	const struct plan *plan = planning->plan;
	const struct geometry *geometry =
		planning_geometry(planning, planning->unit_geometry[unit]);
	struct delivery delivery = {
		.planning = planning, .geometry = geometry, .unit = unit, .err = err};
	uint32_t lo = 0, hi = plan->fed_replicas;

	if (plan->self != PLAN_ALL && plan->self >= plan->trainer_count) {
		lo = (plan->self - plan->trainer_count) / plan->rollout_count;
		hi = MIN(hi, lo + 1);
	}
	for (uint32_t replica = lo; replica < hi; replica++) {
		delivery.replica = replica;
		for (uint32_t f = 0; f < geometry->own_count; f++) {
			int rc = flow_boxes(&delivery, &geometry->flows[geometry->own[f]]);
			if (rc != 0)
				return rc;
		}
	}
	for (uint32_t f = 0; f < geometry->own_count; f++) {
		const struct flow *flow = &geometry->flows[geometry->own[f]];
		struct holder_set *set = planning_set(planning, flow->set);
		if (set->count > 1)
			set->running[flow->target] += flow->bytes;
	}
	return 0;
}
