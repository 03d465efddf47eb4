/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The normal form of a move: dims by falling step of the writes, neighbours that lie end to end
 * merged, so that rows are as long and as sequential as they can be.  Private to lib/convert.
 */
#ifndef BOX_H
#define BOX_H

#include "lib/convert/convert.h"

struct box_dim {
	uint64_t extent; /* 2 or more */
	int64_t src_stride, dst_stride;
	uint64_t each, first; /* as of struct blocks, first < each; all in one: UINT64_MAX, 0 */
	int64_t entry_stride; /* bytes */
};

struct box {
	const uint8_t *src;
	uint8_t *dst;	/* MAXIMA: src, too, with its strides */
	uint8_t *table; /* the entry of element 0 */
	uint32_t dim_count;
	struct box_dim dims[MOVE_DIM_MAX];
};

/* Of a move that convert_can and that has elements. */
void box_make(struct box *box, const struct move *move);

#endif
