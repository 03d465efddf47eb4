/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of copies: what one sender sends one receiver in one bucket.  Boxes that lie in one
 * piece at the target are written straight into the param; those that don't go by runs when these
 * are large, else through the receiver's ring; small ones share a ring copy.  Both ends run this
 * over the same boxes in the same order, and the digest covers all that it decides.
 */
#include "planner/plan_internal.h"

static uint64_t magnitude(int64_t stride)
{
	return stride < 0 ? (uint64_t)0 - (uint64_t)stride : (uint64_t)stride;
}

static bool dense(const int64_t *stride, const struct plan_part *part, uint64_t element_bytes)
{
	uint64_t want = element_bytes;

	for (uint32_t d = part->dim_count; d > 0; d--) {
		if (part->extent[d - 1] == 1)
			continue;
		if (stride[d - 1] < 0 || (uint64_t)stride[d - 1] != want)
			return false;
		want *= part->extent[d - 1];
	}
	return true;
}

#define SWAP(type, a, b)         \
	do {                     \
		type kept = (a); \
		(a) = (b);       \
		(b) = kept;      \
	} while (0)

static void swap_dims(struct plan_part *part, struct plan_blocks *blocks, uint32_t a, uint32_t b)
{
	SWAP(uint64_t, part->extent[a], part->extent[b]);
	SWAP(int64_t, part->src_stride[a], part->src_stride[b]);
	SWAP(int64_t, part->dst_stride[a], part->dst_stride[b]);
	if (blocks == NULL)
		return;
	SWAP(uint64_t, blocks->each[a], blocks->each[b]);
	SWAP(uint64_t, blocks->first[a], blocks->first[b]);
	SWAP(int64_t, blocks->stride[a], blocks->stride[b]);
}

/* Whether all of a dim lies in one block: only then can it go up in the dim outside it. */
static bool undivided(const struct plan_part *part, const struct plan_blocks *blocks, uint32_t d)
{
	return blocks == NULL || blocks->stride[d] == 0 ||
	       blocks->first[d] + part->extent[d] <= blocks->each[d];
}

/* The outer dim's steps become as many as the inner one has elements. */
static void merge_blocks(struct plan_blocks *blocks, uint32_t outer, uint64_t inner_extent)
{
	if (blocks == NULL)
		return;
	blocks->each[outer] *= inner_extent;
	blocks->first[outer] *= inner_extent;
}

/* Dims that aren't there any more; and one that is in one block is so whatever its offset. */
static void clear_blocks(const struct plan_part *part, struct plan_blocks *blocks)
{
	for (uint32_t d = 0; blocks != NULL && d < BOX_DIM_MAX; d++) {
		if (d < part->dim_count && !undivided(part, blocks, d))
			continue;
		blocks->each[d] = d < part->dim_count ? part->extent[d] : 0;
		blocks->first[d] = 0;
		blocks->stride[d] = 0;
	}
}

void shape_normalize(struct raw *raw, struct plan_blocks *blocks)
{
	struct plan_part *part = &raw->part;
	uint32_t count = 0, merged = 0;
	int64_t from_bytes = (int64_t)ws_dtype_bytes(part->from),
		to_bytes = (int64_t)ws_dtype_bytes(part->to);

	for (uint32_t d = 0; d < part->dim_count; d++)
		if (part->extent[d] > 1)
			swap_dims(part, blocks, count++, d);
	for (uint32_t i = 1; i < count; i++)
		for (uint32_t j = i;
		     j > 0 && magnitude(part->dst_stride[j]) > magnitude(part->dst_stride[j - 1]);
		     j--)
			swap_dims(part, blocks, j, j - 1);
	for (uint32_t d = 1; d < count; d++) {
		int64_t extent = (int64_t)part->extent[d];
		if (part->src_stride[merged] == part->src_stride[d] * extent &&
		    part->dst_stride[merged] == part->dst_stride[d] * extent &&
		    undivided(part, blocks, d)) {
			merge_blocks(blocks, merged, part->extent[d]);
			part->extent[merged] *= part->extent[d];
			part->src_stride[merged] = part->src_stride[d];
			part->dst_stride[merged] = part->dst_stride[d];
		} else {
			swap_dims(part, blocks, ++merged, d);
		}
	}
	part->dim_count = count == 0 ? 1 : merged + 1;
	if (count == 0) {
		part->extent[0] = 1;
		part->src_stride[0] = from_bytes;
		part->dst_stride[0] = to_bytes;
	}
	for (uint32_t d = part->dim_count; d < BOX_DIM_MAX; d++) {
		part->extent[d] = 0;
		part->src_stride[d] = part->dst_stride[d] = 0;
	}
	clear_blocks(part, blocks);
	raw->cast = part->from != part->to || part->kind == PART_SCALES;
	raw->source_dense = dense(part->src_stride, part, (uint64_t)from_bytes);
	raw->target_dense = dense(part->dst_stride, part, (uint64_t)to_bytes);
}

static bool straight(const struct raw *raw)
{
	return raw->source_dense && raw->target_dense && !raw->cast;
}

/* The innermost dims that lie in one piece at the target: their number, *bytes_out together. */
static uint32_t target_run(const struct plan_part *part, uint64_t *bytes_out)
{
	uint64_t bytes = ws_dtype_bytes(part->to);
	uint32_t dims = 0;

	for (uint32_t d = part->dim_count; d > 0; d--) {
		if (part->dst_stride[d - 1] < 0 || (uint64_t)part->dst_stride[d - 1] != bytes)
			break;
		bytes *= part->extent[d - 1];
		dims++;
	}
	*bytes_out = bytes;
	return dims;
}

/* Adjacent straight boxes become one. */
static int box_add(struct planning *planning, const struct raw *raw)
{
	size_t count = planning->shaped.count;
	struct raw *last = count == 0 ? NULL : (struct raw *)planning->shaped.items + count - 1;
	const struct plan_part *part = &raw->part;

	if (last != NULL && straight(raw) && straight(last) &&
	    last->part.src_param == part->src_param && last->part.dst_param == part->dst_param &&
	    last->part.dst_offset + last->bytes == part->dst_offset &&
	    last->part.src_offset + last->bytes == part->src_offset && last->part.to == part->to) {
		last->part.extent[0] += part->extent[0];
		last->part.src_stride[0] = last->part.dst_stride[0] =
			(int64_t)ws_dtype_bytes(part->to);
		last->bytes += raw->bytes;
		return 0;
	}
	struct raw *added = vec_add(&planning->shaped, sizeof(*added));
	if (added == NULL)
		return -ENOMEM;
	*added = *raw;
	return 0;
}

/* Scales come last: where codes are made of whole blocks, their maxima have been found then. */
static int merge_boxes(struct planning *planning, const struct raw *const *raws, uint32_t count)
{
	int rc = 0;

	planning->shaped.count = 0;
	for (int scales = 0; scales < 2; scales++)
		for (uint32_t i = 0; rc == 0 && i < count; i++)
			if ((raws[i]->part.kind == PART_SCALES) == (scales == 1))
				rc = box_add(planning, raws[i]);
	return rc;
}

/* ---- Emitting. */
struct emit {
	struct planning *planning;
	struct segment *segment;
};

static int keep_part(struct planning *planning, const struct raw *raw)
{
	struct plan_part *part = vec_add(&planning->plan->parts, sizeof(*part));
	struct part_rules *rules = vec_add(&planning->plan->part_rules, sizeof(*rules));

	if (part == NULL || rules == NULL)
		return -ENOMEM;
	*part = raw->part;
	*rules = raw->rules;
	return 0;
}

/* At how many steps of a dim a part may be cut, if it has whole blocks. */
static uint64_t block_rows(const struct plan_part *part, uint32_t dim)
{
	if (!part->whole)
		return 1;
	return part->blocks->stride[dim] == 0 ? part->extent[dim] : part->blocks->each[dim];
}

/* As many rows of whole blocks as an op has room for. */
static uint64_t rows_op_bytes(const struct raw *raw, uint64_t op_bytes)
{
	uint64_t step = raw->bytes / raw->part.extent[0] * block_rows(&raw->part, 0);
	uint64_t times = op_bytes / step;

	while (times * step % WIRE_ALIGN != 0) /* at most 15 times */
		times--;
	return times > 0 ? times * step : op_bytes;
}

/* The first part of whole blocks in the copy that ops of this size tear, or NULL. */
static const struct raw *first_torn(const struct raw *raws, uint32_t count, uint64_t op_bytes)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t begin = raws[i].part.wire_offset, last = begin + raws[i].bytes - 1;
		if (raws[i].part.whole && begin / op_bytes != last / op_bytes)
			return &raws[i];
	}
	return NULL;
}

/* Less than the rules' where no whole block is torn then: one part by rows of blocks, several by
 * ending where the first was torn, which does for parts alike. */
static uint64_t op_bytes_of(const struct raw *raws, uint32_t count, uint64_t op_bytes)
{
	const struct raw *torn = first_torn(raws, count, op_bytes);

	if (torn == NULL)
		return op_bytes;
	if (count == 1)
		return rows_op_bytes(torn, op_bytes);
	uint64_t less = torn->part.wire_offset % op_bytes;
	return less > 0 && first_torn(raws, count, less) == NULL ? less : op_bytes;
}

/* Numbers the copies, counts them and keeps them. */
static int emit_copy(struct emit *emit, struct stored_copy *copy, const struct raw *raws)
{
	struct planning *planning = emit->planning;
	struct plan *plan = planning->plan;
	struct segment *segment = emit->segment;
	copy->op_bytes = op_bytes_of(raws, copy->part_count, plan->input.rules.op_bytes);
	uint64_t ops = ws_op_count(copy->bytes, copy->op_bytes);
	uint64_t bytes = copy->bytes * copy->repeat;
	bool ring = copy->ring >= 0;

	if (ops > UINT32_MAX || ops * copy->repeat + segment->op_count > UINT32_MAX)
		return -E2BIG;
	copy->first_op = (uint32_t)segment->op_count;
	copy->op_count = (uint32_t)ops;
	copy->counter = segment->counter_count - (!ring && segment->direct_op_count > 0);
	segment->op_count += ops * copy->repeat;
	segment->bytes += bytes;
	segment->copy_count++;
	segment->copy_total += copy->repeat;
	segment->counter_count = copy->counter + (ring ? copy->repeat : 1);
	if (ring) {
		segment->ring_count += copy->repeat;
	} else {
		segment->direct_op_count += copy->op_count * copy->repeat;
		segment->direct_bytes += bytes;
		segment->direct_gather_bytes += copy->gather ? bytes : 0;
	}
	copy->part_first = plan->parts.count;
	struct stored_copy *stored = vec_add(&plan->copies, sizeof(*stored));
	if (stored == NULL)
		return -ENOMEM;
	*stored = *copy;
	for (uint32_t i = 0; i < copy->part_count; i++) {
		segment->of_tables = segment->of_tables || raws[i].part.kind != PART_CAST;
		if (keep_part(planning, &raws[i]) != 0)
			return -ENOMEM;
	}
	return 0;
}

static int emit_direct(struct emit *emit, const struct raw *raw)
{
	struct stored_copy copy = {.bytes = raw->bytes,
				   .repeat = MAX(1, raw->repeat),
				   .src_step = raw->src_step,
				   .dst_step = raw->dst_step,
				   .gather = !raw->source_dense || raw->cast,
				   .ring = -1,
				   .turn = raw->turn,
				   .part_count = 1};

	return emit_copy(emit, &copy, raw);
}

/* The raw is the first of several alike, each `step` steps of a dim of `whole` further.  part_dim:
 * which dim of the raw's that is, or NONE. */
static int raw_repeat(struct planning *planning, struct raw *raw, const struct raw *whole,
		      uint32_t dim, uint32_t part_dim, uint64_t count, uint64_t step)
{
	const struct plan_blocks *blocks = whole->part.blocks;

	raw->repeat = (uint32_t)count;
	if (count == 1)
		return 0;
	raw->src_step = (int64_t)step * whole->part.src_stride[dim];
	raw->dst_step = (int64_t)step * whole->part.dst_stride[dim];
	if (blocks == NULL || blocks->stride[dim] == 0)
		return 0;
	struct block_turn *turn = arena_alloc(&planning->plan->arena, sizeof(*turn));
	if (turn == NULL)
		return -ENOMEM;
	*turn = (struct block_turn){.each = blocks->each[dim],
				    .first = raw->part.blocks->first[dim],
				    .step = step,
				    .stride = blocks->stride[dim],
				    .dim = part_dim};
	raw->turn = turn;
	return 0;
}

/* Moves a part by so many steps along a dim. */
static int part_shift(struct planning *planning, struct plan_part *part, uint32_t dim,
		      uint64_t steps)
{
	part->src_offset += steps * (uint64_t)part->src_stride[dim];
	part->dst_offset += steps * (uint64_t)part->dst_stride[dim];
	if (part->blocks == NULL || steps == 0)
		return 0;
	struct plan_blocks blocks = *part->blocks;
	blocks_shift(&blocks, dim, steps);
	part->blocks = blocks_keep(planning, &blocks);
	return part->blocks == NULL ? -ENOMEM : 0;
}

/* One run of a box: what is outside its innermost dims is at `at`, and dim `along` repeats. */
static int run_make(struct planning *planning, const struct raw *raw, uint32_t along,
		    const uint64_t *at, struct raw *run)
{
	*run = *raw;
	run->part.whole = false;
	for (uint32_t d = 0; d < along; d++) {
		if (part_shift(planning, &run->part, d, at[d]) != 0)
			return -ENOMEM;
		run->part.extent[d] = 1;
	}
	run->part.extent[along] = 1;
	if (raw_repeat(planning, run, raw, along, NONE, raw->part.extent[along], 1) != 0)
		return -ENOMEM;
	if (raw->part.blocks == NULL) {
		shape_normalize(run, NULL);
		return 0;
	}
	struct plan_blocks blocks = *run->part.blocks;
	shape_normalize(run, &blocks);
	run->part.blocks = blocks_keep(planning, &blocks);
	return run->part.blocks == NULL ? -ENOMEM : 0;
}

/* A box whose innermost `dims` dims lie in one piece at the target: one copy per such run, those
 * along the dim outside of them as one that repeats. */
static int emit_runs(struct emit *emit, const struct raw *raw, uint32_t dims, uint64_t run_bytes)
{
	uint32_t along = raw->part.dim_count - dims - 1;
	uint64_t at[BOX_DIM_MAX] = {0};
	bool more = true;

	if (raw->part.extent[along] > UINT32_MAX)
		return -E2BIG;
	/* Ends: at[] counts through the extents outside. */
	while (more) {
		struct raw run;
		int rc = run_make(emit->planning, raw, along, at, &run);
		run.bytes = run_bytes;
		if (rc == 0)
			rc = emit_direct(emit, &run);
		if (rc != 0)
			return rc;
		more = false;
		for (uint32_t d = along; d > 0 && !more; d--) {
			more = ++at[d - 1] < raw->part.extent[d - 1];
			if (!more)
				at[d - 1] = 0;
		}
	}
	return 0;
}

static uint64_t part_bytes(const struct plan_part *part)
{
	uint64_t bytes = ws_dtype_bytes(part->to);

	for (uint32_t d = 0; d < part->dim_count; d++)
		bytes *= part->extent[d];
	return bytes;
}

/* Cuts a part that is larger than a slot along its outermost dim that can be cut, and adds all. */
static int ring_add(struct planning *planning, const struct raw *raw, uint32_t dim)
{
	uint64_t slot_bytes = planning->plan->slot_bytes, bytes = part_bytes(&raw->part);

	if (bytes <= slot_bytes) {
		struct raw *added = vec_add(&planning->ring, sizeof(*added));
		if (added == NULL)
			return -ENOMEM;
		*added = *raw;
		added->bytes = bytes;
		return 0;
	}
	/* The recursion is at most BOX_DIM_MAX deep: one element fits into any slot. */
	uint64_t rows = raw->part.extent[dim], row_bytes = bytes / rows;
	uint64_t step = MAX(1, slot_bytes / row_bytes), block = block_rows(&raw->part, dim);
	assert(block > 0);
	if (step > block)
		step -= step % block;
	for (uint64_t at = 0, times; at < rows; at += step * times) {
		struct raw cut = *raw;
		cut.part.extent[dim] = MIN(step, rows - at);
		cut.part.whole = raw->part.whole && step % block == 0;
		if (part_shift(planning, &cut.part, dim, at) != 0)
			return -ENOMEM;
		/* Pieces alike are one that repeats, unless they are cut again. */
		times = row_bytes > slot_bytes || rows - at < step ? 1 : (rows - at) / step;
		times = MIN(times, UINT32_MAX);
		int rc = raw_repeat(planning, &cut, raw, dim, dim, times, step);
		if (rc == 0)
			rc = ring_add(planning, &cut, dim + 1);
		if (rc != 0)
			return rc;
	}
	return 0;
}

static bool part_gathers(const struct plan_part *part)
{
	return part->from != part->to || part->kind == PART_SCALES ||
	       !dense(part->src_stride, part, ws_dtype_bytes(part->from));
}

/* Fills ring copies with the parts in their order, as many as a slot holds; a part that repeats
 * fills slots of its own. */
static int emit_ring(struct emit *emit)
{
	struct planning *planning = emit->planning;
	struct raw *raws = planning->ring.items;
	size_t count = planning->ring.count;

	for (size_t i = 0, end; i < count; i = end) {
		uint64_t used = 0;
		for (end = i; end < count; end++) {
			uint64_t offset = (used + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN;
			bool alone = raws[i].repeat > 1 || raws[end].repeat > 1;
			if (end > i &&
			    (alone || offset + raws[end].bytes > planning->plan->slot_bytes))
				break;
			raws[end].part.wire_offset = offset;
			used = offset + raws[end].bytes;
		}
		struct stored_copy copy = {.bytes = used,
					   .repeat = MAX(1, raws[i].repeat),
					   .src_step = raws[i].src_step,
					   .dst_step = raws[i].dst_step,
					   .turn = raws[i].turn,
					   .ring = (int32_t)emit->segment->ring_count,
					   .part_count = (uint32_t)(end - i)};
		if ((uint64_t)emit->segment->ring_count + copy.repeat > INT32_MAX)
			return -E2BIG;
		copy.gather = copy.part_count > 1 || part_gathers(&raws[i].part);
		int rc = emit_copy(emit, &copy, &raws[i]);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Sends what goes straight; what goes through the ring is left in planning->ring. */
static int emit_straight(struct emit *emit)
{
	struct planning *planning = emit->planning;
	const struct rules *rules = &planning->plan->input.rules;
	const struct raw *raws = planning->shaped.items;
	size_t count = planning->shaped.count, small = 0;
	bool forwards = raws[0].sender >= planning->plan->trainer_count;
	int rc = 0;

	planning->ring.count = 0;
	for (size_t i = 0; i < count; i++)
		small += raws[i].bytes < rules->pack_bytes_max;
	for (size_t i = 0; rc == 0 && i < count; i++) {
		uint64_t run_bytes;
		uint32_t dims = target_run(&raws[i].part, &run_bytes);
		bool packs = raws[i].bytes < rules->pack_bytes_max && small >= 2 && !forwards;
		if (packs || (!raws[i].target_dense && run_bytes < rules->run_bytes_min))
			rc = ring_add(planning, &raws[i], 0);
		else if (raws[i].target_dense)
			rc = emit_direct(emit, &raws[i]);
		else
			rc = emit_runs(emit, &raws[i], dims, run_bytes);
	}
	return rc;
}

/* Maxima: all of a bucket in one copy, in the order of the receiver's tables. */
static int emit_inbox(struct emit *emit)
{
	struct raw *raws = emit->planning->shaped.items;
	size_t count = emit->planning->shaped.count;
	struct stored_copy copy = {
		.repeat = 1, .ring = -1, .gather = true, .part_count = (uint32_t)count};

	for (size_t i = 0; i < count; i++) {
		raws[i].part.wire_offset = align_up(copy.bytes, WIRE_ALIGN);
		copy.bytes = raws[i].part.wire_offset + raws[i].bytes;
	}
	return emit_copy(emit, &copy, raws);
}

int shape_segment(struct planning *planning, uint32_t kind, const struct raw *const *raws,
		  uint32_t count, struct segment *segment_out, struct ws_error *err)
{
	struct emit emit = {.planning = planning, .segment = segment_out};

	*segment_out = (struct segment){.kind = kind, .copy_first = planning->plan->copies.count};
	if (merge_boxes(planning, raws, count) != 0)
		return plan_no_memory(err);
	bool maxima = raws[0]->part.kind == PART_MAXIMA;
	int rc = maxima ? emit_inbox(&emit) : emit_straight(&emit);
	if (rc == 0 && !maxima)
		rc = emit_ring(&emit);
	if (rc == -E2BIG)
		return ws_fail(err, -ENOSPC, "a copy has more than 2^32 ops: raise op_bytes");
	if (rc != 0)
		return plan_no_memory(err);
	segment_out->digest = plan_segment_digest(planning->plan, segment_out);
	return 0;
}
