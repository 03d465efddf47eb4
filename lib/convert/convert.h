/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving elements between layouts, and what may happen to them on the way: one primitive, a
 * strided box, that copies, casts, quantizes and dequantizes.  host.c and quant.c are plain C:
 * the reference that every faster version must match bit for bit.
 */
#ifndef CONVERT_H
#define CONVERT_H

#include "lib/base/base.h"

#define MOVE_DIM_MAX 6

enum move_kind {
	MOVE_CAST = 0, /* dst = src, cast */
	MOVE_MAXIMA,   /* raises blocks->table by |src|; dst, dst_stride and to aren't looked at */
	MOVE_RAISE,    /* boxes of maxima (WS_U32): dst = the larger of dst and src */
	MOVE_QUANTIZE, /* dst = codes of src, by the maxima in blocks->table */
	MOVE_SCALE,    /* src: a box of maxima (WS_U32), dst: their scales */
	MOVE_DEQUANTIZE,    /* src: codes, dst: floats, by the scales in blocks->table */
	MOVE_QUANTIZE_WHOLE /* MAXIMA and QUANTIZE at once, of blocks all of whose elements the box
			     * has: src is read once.  Their entries in blocks->table are 0, or
			     * these very maxima, before */
};

/*
 * How a block of elements becomes codes with one scale.  All arithmetic is IEEE f32, rounded to
 * nearest even, subnormals included:
 *
 *	maximum	the largest |x|, as the bits of an f32, which are in the order of the values;
 *		a NaN is 0x7fc00000, the largest of all, whatever its payload
 *	s	max(maximum, eps) / the largest code; if pow2 or if scale is F8_E8M0 the next power
 *		of two that isn't below; then rounded to `scale`.  This is the scale that is stored
 *		and the one that codes are made with.  The scale of a NaN is NaN (0x7fc00000, bf16
 *		0x7fc0, e8m0 0xff), of an infinity infinite; e8m0 has no infinity: NaN; and no zero:
 *		2^-127
 *	code	x * (1 / s) if reciprocal, else x / s, rounded to the code's dtype; beyond its
 *		largest finite value, and for infinity, that value.  Every NaN is code 0x7f.
 *		An s of 0 counts as infinity: the codes of a block of zeros are zeros without an eps
 *	value	code * s, rounded to the float's dtype; every NaN is positive and quiet without
 *		a payload (0x7fc00000, bf16 0x7fc0, f16 0x7e00)
 */
struct quant {
	enum ws_dtype code;  /* F8_E4M3 (largest 448, no infinity) or F8_E5M2 (57344) */
	enum ws_dtype scale; /* F32, BF16, F8_E8M0 */
	float eps;	     /* >= 0 */
	bool pow2, reciprocal;
};

/*
 * Which block an element of a move is in: element i of dim d is in block (first[d] + i) / each[d]
 * of that dim, and the entry of blocks b0, b1, .. is the table's at the sum of b * stride[d].
 */
struct blocks {
	const struct quant *quant; /* borrowed as long as the move; MAXIMA needs none */
	void *table;		   /* uint32_t maxima, but of DEQUANTIZE: scales of quant->scale */
	uint64_t each[MOVE_DIM_MAX]; /* >= 1; where all is under one scale: the extent or more */
	uint64_t first[MOVE_DIM_MAX];
	int64_t stride[MOVE_DIM_MAX]; /* in entries */
};

/*
 * A box of elements.  extent[] counts elements; strides are in bytes and may be any, but two
 * elements of dst never share a byte.  dim_count 0 is one element.  An extent of 0 moves nothing.
 * src and dst don't overlap.  No address needs an alignment.
 *
 * CAST: from and to are equal (any dtype: a copy of bits), or both among F32, BF16, F16: rounds to
 * nearest even; a NaN stays a NaN (quiet, its payload's top bits kept); F16 overflows to infinity.
 */
struct move {
	enum move_kind kind;
	const struct blocks *blocks; /* borrowed; NULL for CAST and RAISE; SCALE: quant only */
	const void *src;
	void *dst;
	uint32_t dim_count;
	uint64_t extent[MOVE_DIM_MAX];
	int64_t src_stride[MOVE_DIM_MAX], dst_stride[MOVE_DIM_MAX];
	enum ws_dtype from, to;
};

/* True if convert_move can do it: looks at kind, dim_count, from, to and blocks->quant alone. */
bool convert_can(const struct move *move);

/* Does one move.  Host memory.  Thread: any; moves that raise the same maxima, one at a time.
 * Allocates nothing. */
void convert_move(const struct move *move);

/* Whether the first so many elements of a quantizing move, row by row in the order of its dims, are
 * whole blocks, if all of them are: where a QUANTIZE_WHOLE may be cut. */
bool convert_ends_block(const struct move *move, uint64_t count);

uint64_t move_element_count(const struct move *move);

/* By what the elements are moved.  All levels give the same bits; the highest that this CPU has is
 * used, unless a test or a bench sets another. */
enum convert_level { CONVERT_C = 0, CONVERT_AVX2, CONVERT_AVX512 };
#define CONVERT_LEVEL_COUNT 3

const char *convert_level_name(enum convert_level level); /* "c", "avx2", "avx512" */
/* False if this CPU lacks it: nothing changes.  No other thread moves anything meanwhile. */
bool convert_level_set(enum convert_level level);

#endif
