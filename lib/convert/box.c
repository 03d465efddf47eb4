/* SPDX-License-Identifier: Apache-2.0 */
/* The normal form of a move, for the host's rows and for the GPU's tiles. */
#include "lib/convert/box.h"

static bool has_blocks(const struct move *move)
{
	return move->kind == MOVE_MAXIMA || move->kind == MOVE_QUANTIZE ||
	       move->kind == MOVE_DEQUANTIZE || move->kind == MOVE_QUANTIZE_WHOLE;
}

/* A dim that lies in one block has none of its own: its place goes into the table's address. */
static void set_blocks(struct box *box, const struct move *move, uint32_t d)
{
	const struct blocks *blocks = move->blocks;
	struct box_dim *dim = &box->dims[d];
	uint64_t first = blocks->first[d] / blocks->each[d];
	uint64_t last = (blocks->first[d] + dim->extent - 1) / blocks->each[d];
	bool is_dequantize = move->kind == MOVE_DEQUANTIZE;
	int64_t entry_bytes =
		(int64_t)ws_dtype_bytes(is_dequantize ? blocks->quant->scale : WS_U32);
	box->table += (int64_t)first * blocks->stride[d] * entry_bytes;
	if (first == last || blocks->stride[d] == 0)
		return;
	dim->each = blocks->each[d];
	dim->first = blocks->first[d] - first * blocks->each[d];
	dim->entry_stride = blocks->stride[d] * entry_bytes;
}

static uint64_t stride_size(int64_t stride)
{
	return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* Elements don't depend on each other, so the dims may go in any order. */
static void sort_dims(struct box *box)
{
	struct box_dim *dims = box->dims;
	for (uint32_t i = 1; i < box->dim_count; i++) {
		struct box_dim dim = dims[i];
		uint32_t j = i;
		for (; j > 0 && stride_size(dims[j - 1].dst_stride) < stride_size(dim.dst_stride);
		     j--)
			dims[j] = dims[j - 1];
		dims[j] = dim;
	}
}

/* Whether the outer dim continues where the inner one ends, with one block at a time. */
static bool dims_merge(const struct box_dim *outer, const struct box_dim *inner)
{
	int64_t extent = (int64_t)inner->extent;
	return outer->src_stride == inner->src_stride * extent &&
	       outer->dst_stride == inner->dst_stride * extent && inner->each == UINT64_MAX;
}

/* Drops dims of extent 1 and merges what can be. */
static void merge_dims(struct box *box)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < box->dim_count; i++) {
		struct box_dim dim = box->dims[i];
		struct box_dim *outer = kept > 0 ? &box->dims[kept - 1] : NULL;
		if (dim.extent == 1)
			continue;
		if (outer == NULL || !dims_merge(outer, &dim)) {
			box->dims[kept++] = dim;
			continue;
		}
		outer->src_stride = dim.src_stride;
		outer->dst_stride = dim.dst_stride;
		if (outer->each != UINT64_MAX)
			outer->each *= dim.extent;
		outer->first *= dim.extent;
		outer->extent *= dim.extent;
	}
	box->dim_count = kept;
}

void box_make(struct box *box, const struct move *move)
{
	/* Maxima walk over the source alone. */
	bool reads = move->kind == MOVE_MAXIMA;
	box->src = move->src;
	box->dst = reads ? (uint8_t *)(uintptr_t)move->src : move->dst;
	box->table = has_blocks(move) ? move->blocks->table : box->dst;
	box->dim_count = move->dim_count;
	for (uint32_t d = 0; d < move->dim_count; d++) {
		box->dims[d] = (struct box_dim){
			.extent = move->extent[d],
			.src_stride = move->src_stride[d],
			.dst_stride = reads ? move->src_stride[d] : move->dst_stride[d],
			.each = UINT64_MAX,
		};
		if (has_blocks(move))
			set_blocks(box, move, d);
	}
	sort_dims(box);
	merge_dims(box);
}
