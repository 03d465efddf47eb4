/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving elements between layouts: gather, scatter and cast in one primitive, a strided box
 * copy.  host.c is plain C: the reference that every faster version must match bit for bit.
 */
#ifndef CONVERT_H
#define CONVERT_H

#include "lib/base/base.h"

#define MOVE_DIM_MAX 6

/*
 * Copies a box of elements.  extent[] counts elements; strides are in bytes and may be any,
 * but two elements of dst never share a byte.  dim_count 0 is one element.  An extent of 0
 * moves nothing.  src and dst don't overlap.
 *
 * from and to are equal (any dtype), or both among F32, BF16, F16: the cast rounds to nearest
 * even; a NaN stays a NaN (quiet, its payload's top bits kept); F16 overflows to infinity.
 */
struct move {
	const void *src;
	void *dst;
	uint32_t dim_count;
	uint64_t extent[MOVE_DIM_MAX];
	int64_t src_stride[MOVE_DIM_MAX], dst_stride[MOVE_DIM_MAX];
	enum ws_dtype from, to;
};

/* True if convert_move can do it. */
bool convert_can(enum ws_dtype from, enum ws_dtype to);

/* Does one move.  Host memory.  Thread: any.  Allocates nothing. */
void convert_move(const struct move *move);

uint64_t move_element_count(const struct move *move);

#endif
