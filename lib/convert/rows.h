/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What host.c makes of a move, row by row, and who carries a row out: the plain C of this folder,
 * or the vectors of a level.  Private to lib/convert.
 */
#ifndef ROWS_H
#define ROWS_H

#include "lib/convert/convert.h"

#define BLOCKS_MAX 512 /* of a row at once: their scales lie on the stack */

/* The innermost dim of a move in normal form. */
struct row {
	const struct move *move; /* kind, from, to, blocks->quant */
	const uint8_t *src;
	uint8_t *dst;
	uint64_t count;
	int64_t src_stride, dst_stride;
	/* Element i is in block (first + i) / each, first < each, whose entry lies entry_stride
	 * bytes behind that of the block before. */
	uint8_t *entry;
	uint64_t each, first;
	int64_t entry_stride;
};

static inline uint64_t row_block_count(const struct row *row)
{
	return row->count == 0 ? 0 : (row->first + row->count - 1) / row->each + 1;
}

/* How many elements from element 0 on are in its block. */
static inline uint64_t row_run(const struct row *row)
{
	return MIN(row->count, row->each - row->first);
}

/* By count elements; a block that ends there is left behind. */
static inline void row_advance(struct row *row, uint64_t count)
{
	uint64_t at = row->first + count;
	row->src += (int64_t)count * row->src_stride;
	row->dst += (int64_t)count * row->dst_stride;
	row->entry += (int64_t)(at / row->each) * row->entry_stride;
	row->first = at % row->each;
	row->count -= count;
}

/*
 * One row each.  divisors and scales are those of the row's blocks, in order.
 */
struct rows {
	void (*cast)(const struct row *row); /* from != to */
	void (*maxima)(const struct row *row);
	void (*quantize)(const struct row *row, const float *divisors);
	void (*dequantize)(const struct row *row, const float *scales);
};

extern const struct rows rows_c;

#endif
