/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What host.c makes of a move, row by row, and who carries a row out: the plain C of this folder,
 * or the vectors of a level.  Private to lib/convert.
 */
#ifndef ROWS_H
#define ROWS_H

#include <string.h>

#include "lib/convert/convert.h"
#include "lib/convert/float.h"

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

/* By count elements; blocks that end there are left behind. */
static inline void row_advance(struct row *row, uint64_t count)
{
	uint64_t at = row->first + count;
	row->src += (int64_t)count * row->src_stride;
	row->dst += (int64_t)count * row->dst_stride;
	row->count -= count;
	row->first = at;
	if (at >= row->each) {
		row->entry += (int64_t)(at / row->each) * row->entry_stride;
		row->first = at % row->each;
	}
}

/* Raises the maximum of the row's first block. */
static inline void row_raise(const struct row *row, uint32_t size)
{
	uint32_t maximum;
	memcpy(&maximum, row->entry, sizeof(maximum));
	if (size > F32_INFINITY)
		size = F32_NAN;
	if (size > maximum)
		memcpy(row->entry, &size, sizeof(size));
}

/*
 * One row each.  divisors and scales are those of the row's blocks, in order.
 */
struct rows {
	bool (*is_here)(void);		     /* whether this CPU can */
	void (*cast)(const struct row *row); /* from != to */
	void (*maxima)(const struct row *row);
	void (*quantize)(const struct row *row, const float *divisors);
	void (*dequantize)(const struct row *row, const float *scales);
};

extern const struct rows rows_c, rows_avx2, rows_avx512;

/* level.c: those of this CPU, or of the level that was set. */
const struct rows *rows_best(void);

#endif
