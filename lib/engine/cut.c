/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting a packed copy into ops.  A gather's moves write one stream in row-major order; an op is
 * a byte range of it.  The part of a move that lies in the range is a run of elements in
 * row-major order, which is cut into a few boxes:
 *
 *	. . # # #      the head of a row,
 *	# # # # #      whole rows,
 *	# # . . .      the tail of a row
 */
#include <errno.h>
#include <string.h>

#include "lib/engine/engine_internal.h"

int cut_check(const struct gather_move *moves, uint32_t count, uint64_t bytes, struct ws_error *err)
{
	uint64_t end = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct move *move = &moves[i].move;
		if (move->kind == MOVE_MAXIMA || move->kind == MOVE_RAISE)
			return ws_fail(err, -EINVAL, "move %u raises maxima: nothing to gather", i);
		if (!convert_can(move))
			return ws_fail(err, -EINVAL,
				       "move %u can't turn %s into %s in %u dimensions", i,
				       ws_dtype_name(move->from), ws_dtype_name(move->to),
				       move->dim_count);
		uint64_t move_bytes = move_element_count(move) * ws_dtype_bytes(move->to);
		uint64_t offset = moves[i].wire_offset;
		if (offset % 16 != 0 || offset < end || offset > bytes ||
		    move_bytes > bytes - offset)
			return ws_fail(
				err, -EINVAL,
				"move %u puts %llu bytes at %llu of a copy of %llu; offsets ascend "
				"in steps of 16 and stay inside",
				i, (unsigned long long)move_bytes, (unsigned long long)offset,
				(unsigned long long)bytes);
		end = offset + move_bytes;
	}
	return 0;
}

bool cut_tears_block(const struct move *move, uint64_t wire_offset, uint64_t op_bytes)
{
	uint64_t end = wire_offset + move_element_count(move);
	for (uint64_t at = (wire_offset / op_bytes + 1) * op_bytes; at < end; at += op_bytes)
		if (!convert_ends_block(move, at - wire_offset))
			return true;
	return false;
}

/* How many elements of whole rows below dimension d: the product of the extents behind it. */
static uint64_t inner_count(const struct move *move, uint32_t d)
{
	uint64_t count = 1;
	for (uint32_t i = d + 1; i < move->dim_count; i++)
		count *= move->extent[i];
	return count;
}

/* A part of a move, and its place in the grid of blocks. */
struct box {
	struct move move;
	struct blocks blocks; /* if move.blocks isn't NULL, it is these */
};

/* The largest box of whole rows that begins at element from and ends at or before to; returns
 * its element count.  Each dimension is visited at most twice over a whole run. */
static uint64_t box_at(const struct move *move, uint64_t from, uint64_t to, struct box *box_out)
{
	uint32_t d = 0;
	uint64_t inner = inner_count(move, 0);
	while (d + 1 < move->dim_count && (from % inner != 0 || inner > to - from)) {
		d++;
		inner = inner_count(move, d);
	}
	box_out->move = *move;
	if (move->blocks != NULL) {
		box_out->blocks = *move->blocks;
		box_out->move.blocks = &box_out->blocks;
	}
	const uint8_t *src = move->src;
	uint64_t rest = from;
	for (uint32_t i = 0; i < move->dim_count; i++) {
		uint64_t below = inner_count(move, i);
		uint64_t at = rest / below;
		rest %= below;
		src += (int64_t)at * move->src_stride[i];
		if (move->blocks != NULL)
			box_out->blocks.first[i] += at;
		if (i < d)
			box_out->move.extent[i] = 1;
		else if (i == d)
			box_out->move.extent[i] = MIN(move->extent[i] - at, (to - from) / inner);
	}
	box_out->move.src = src;
	return box_out->move.extent[d] * inner;
}

/* Elements [from, to) of a move, in row-major order, to dst. */
static int run_boxes(const struct move *move, uint64_t from, uint64_t to, uint8_t *dst,
		     cut_take *take, void *arg)
{
	int64_t to_bytes = (int64_t)ws_dtype_bytes(move->to);
	int rc = 0;
	if (move->dim_count == 0) {
		struct move one = *move;
		one.dst = dst;
		return take(arg, &one);
	}
	while (rc == 0 && from < to) {
		struct box box;
		uint64_t count = box_at(move, from, to, &box);
		int64_t stride = to_bytes;
		for (uint32_t i = move->dim_count; i-- > 0;) {
			box.move.dst_stride[i] = stride;
			stride *= (int64_t)box.move.extent[i];
		}
		box.move.dst = dst;
		rc = take(arg, &box.move);
		dst += count * (uint64_t)to_bytes;
		from += count;
	}
	return rc;
}

/* The first move that ends behind byte `from` of the stream, or begins there or later. */
static uint32_t move_find(const struct gather_move *moves, uint32_t count, uint64_t from)
{
	uint32_t low = 0, high = count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (moves[middle].wire_offset <= from)
			low = middle + 1;
		else
			high = middle;
	}
	return low > 0 ? low - 1 : 0;
}

int cut_boxes(const struct gather_move *moves, uint32_t count, uint64_t from, uint64_t to,
	      uint8_t *dst, cut_take *take, void *arg)
{
	int rc = 0;
	for (uint32_t i = move_find(moves, count, from);
	     rc == 0 && i < count && moves[i].wire_offset < to; i++) {
		const struct move *move = &moves[i].move;
		uint64_t offset = moves[i].wire_offset, to_bytes = ws_dtype_bytes(move->to);
		uint64_t begin = MAX(offset, from);
		uint64_t end = MIN(offset + move_element_count(move) * to_bytes, to);
		if (begin < end)
			rc = run_boxes(move, (begin - offset) / to_bytes, (end - offset) / to_bytes,
				       dst + (begin - from), take, arg);
	}
	return rc;
}

/* Boxes come in the order of dst: what lies between two of them is padding. */
struct gathering {
	uint8_t *at;
	const struct ring *ring;
};

static int gather_take(void *arg, const struct move *box)
{
	struct gathering *gathering = arg;
	uint8_t *begin = box->dst;
	struct move move = *box;
	memset(gathering->at, 0, (size_t)(begin - gathering->at));
	if (gathering->ring != NULL)
		move.src = ring_source(gathering->ring, box);
	convert_move(&move);
	gathering->at = begin + move_element_count(box) * ws_dtype_bytes(box->to);
	return 0;
}

void cut_gather(const struct gather_move *moves, uint32_t count, uint64_t from, uint64_t to,
		uint8_t *dst, const struct ring *ring)
{
	struct gathering gathering = {.at = dst, .ring = ring};
	(void)cut_boxes(moves, count, from, to, dst, gather_take, &gathering);
	memset(gathering.at, 0, (size_t)(dst + (to - from) - gathering.at));
}

uint64_t cut_digest(const struct span *spans, uint32_t count, uint64_t op_bytes,
		    const _Atomic uint32_t *stop, uint32_t serial)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t each = spans[i].op_bytes != 0 ? spans[i].op_bytes : op_bytes;
		uint64_t ops = engine_op_count(spans[i].bytes, each);
		for (uint32_t k = 0; k < ops; k++) {
			if (atomic_load_explicit(stop, memory_order_relaxed) != serial)
				return sum;
			sum += digest_bytes((const uint8_t *)spans[i].memory + k * each,
					    cut_op_bytes(spans[i].bytes, each, k),
					    spans[i].first_op_id + k);
		}
	}
	return sum;
}
