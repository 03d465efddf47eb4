/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided box copies and casts in plain C: the oracle of every faster version.  A box is
 * first put into a normal form (dims by falling step of the writes, neighbours that lie
 * end to end merged), so that the inner row is as long and as sequential as it can be.
 */
#include "lib/convert/convert.h"

#include <assert.h>
#include <string.h>

#define ROW_CHUNK 512 /* elements that a cast holds as f32 on the stack */

#define F32_ABS	     0x7fffffffu
#define F32_INFINITY 0x7f800000u
#define F32_QUIET    0x00400000u

static bool is_float(enum ws_dtype dtype)
{
	return dtype == WS_F32 || dtype == WS_BF16 || dtype == WS_F16;
}

bool convert_can(enum ws_dtype from, enum ws_dtype to)
{
	return from == to ? ws_dtype_bytes(from) > 0 : is_float(from) && is_float(to);
}

uint64_t move_element_count(const struct move *move)
{
	uint64_t count = 1;
	for (uint32_t i = 0; i < move->dim_count; i++)
		count *= move->extent[i];
	return count;
}

/* The value of each narrow type as the bits of an f32, which holds all of them exactly. */
static uint32_t f32_of_bf16(uint16_t value)
{
	uint32_t bits = (uint32_t)value << 16;
	return (bits & F32_ABS) > F32_INFINITY ? bits | F32_QUIET : bits;
}

static uint32_t f32_of_f16(uint16_t value)
{
	uint32_t sign = (uint32_t)(value & 0x8000) << 16;
	uint32_t exponent = value >> 10 & 0x1f, fraction = value & 0x3ff;
	if (exponent == 0x1f)
		return sign | F32_INFINITY | fraction << 13 | (fraction != 0 ? F32_QUIET : 0);
	if (exponent != 0)
		return sign | (exponent + 112) << 23 | fraction << 13;
	if (fraction == 0)
		return sign;
	/* Subnormal: fraction units of 2^-24, which f32 has as a normal number. */
	uint32_t top = 31 - (uint32_t)__builtin_clz(fraction);
	return sign | (top + 103) << 23 | (fraction << (23 - top) & 0x7fffff);
}

/* Rounding to nearest even: half a unit less one, plus the last bit that is kept. */
static uint16_t bf16_of_f32(uint32_t bits)
{
	if ((bits & F32_ABS) > F32_INFINITY)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t f16_of_f32(uint32_t bits)
{
	uint32_t sign = bits >> 16 & 0x8000, value = bits & F32_ABS;
	if (value > F32_INFINITY)
		return (uint16_t)(sign | 0x7e00 | (value >> 13 & 0x3ff));
	/* 65520 lies half way between the largest f16 and the next power of two. */
	if (value >= 0x477ff000)
		return (uint16_t)(sign | 0x7c00);
	if (value >= 0x38800000) /* 2^-14, the smallest normal f16 */
		return (uint16_t)(sign | (value - 0x38000000 + 0xfff + (value >> 13 & 1)) >> 13);
	if (value <= 0x33000000) /* 2^-25, half of the smallest subnormal */
		return (uint16_t)sign;
	uint32_t fraction = (value & 0x7fffff) | 0x800000, shift = 126 - (value >> 23);
	uint32_t units = fraction >> shift, rest = fraction & ((1u << shift) - 1);
	uint32_t half = 1u << (shift - 1);
	if (rest > half || (rest == half && (units & 1) != 0))
		units++;
	return (uint16_t)(sign | units);
}

static void load_row(const uint8_t *src, int64_t stride, size_t count, enum ws_dtype from,
		     uint32_t *row)
{
	uint16_t narrow = 0;
	if (from == WS_F32) {
		for (size_t i = 0; i < count; i++, src += stride)
			memcpy(&row[i], src, sizeof(row[i]));
	} else if (from == WS_BF16) {
		for (size_t i = 0; i < count; i++, src += stride) {
			memcpy(&narrow, src, sizeof(narrow));
			row[i] = f32_of_bf16(narrow);
		}
	} else {
		for (size_t i = 0; i < count; i++, src += stride) {
			memcpy(&narrow, src, sizeof(narrow));
			row[i] = f32_of_f16(narrow);
		}
	}
}

static void store_row(uint8_t *dst, int64_t stride, size_t count, enum ws_dtype to,
		      const uint32_t *row)
{
	uint16_t narrow = 0;
	if (to == WS_F32) {
		for (size_t i = 0; i < count; i++, dst += stride)
			memcpy(dst, &row[i], sizeof(row[i]));
	} else if (to == WS_BF16) {
		for (size_t i = 0; i < count; i++, dst += stride) {
			narrow = bf16_of_f32(row[i]);
			memcpy(dst, &narrow, sizeof(narrow));
		}
	} else {
		for (size_t i = 0; i < count; i++, dst += stride) {
			narrow = f16_of_f32(row[i]);
			memcpy(dst, &narrow, sizeof(narrow));
		}
	}
}

static void cast_row(const struct move *move, const uint8_t *src, uint8_t *dst, uint64_t count,
		     int64_t src_stride, int64_t dst_stride)
{
	uint32_t row[ROW_CHUNK];
	while (count > 0) {
		size_t n = (size_t)MIN(count, ROW_CHUNK);
		load_row(src, src_stride, n, move->from, row);
		store_row(dst, dst_stride, n, move->to, row);
		src += (int64_t)n * src_stride;
		dst += (int64_t)n * dst_stride;
		count -= n;
	}
}

/* A constant size turns memcpy into one load and one store. */
static void copy_row(const uint8_t *src, uint8_t *dst, uint64_t count, int64_t src_stride,
		     int64_t dst_stride, size_t bytes)
{
	if (src_stride == (int64_t)bytes && dst_stride == (int64_t)bytes) {
		memcpy(dst, src, (size_t)count * bytes);
		return;
	}
	if (bytes == 1) {
		for (uint64_t i = 0; i < count; i++, src += src_stride, dst += dst_stride)
			*dst = *src;
	} else if (bytes == 2) {
		for (uint64_t i = 0; i < count; i++, src += src_stride, dst += dst_stride)
			memcpy(dst, src, 2);
	} else if (bytes == 4) {
		for (uint64_t i = 0; i < count; i++, src += src_stride, dst += dst_stride)
			memcpy(dst, src, 4);
	} else {
		assert(bytes == 8);
		for (uint64_t i = 0; i < count; i++, src += src_stride, dst += dst_stride)
			memcpy(dst, src, 8);
	}
}

static uint64_t stride_size(int64_t stride)
{
	return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

static void swap_dims(struct move *move, uint32_t a, uint32_t b)
{
	uint64_t extent = move->extent[a];
	int64_t src_stride = move->src_stride[a], dst_stride = move->dst_stride[a];
	move->extent[a] = move->extent[b];
	move->src_stride[a] = move->src_stride[b];
	move->dst_stride[a] = move->dst_stride[b];
	move->extent[b] = extent;
	move->src_stride[b] = src_stride;
	move->dst_stride[b] = dst_stride;
}

/* Elements don't depend on each other, so the dims may go in any order. */
static void sort_dims(struct move *move)
{
	for (uint32_t i = 1; i < move->dim_count; i++)
		for (uint32_t j = i; j > 0 && stride_size(move->dst_stride[j - 1]) <
						      stride_size(move->dst_stride[j]);
		     j--)
			swap_dims(move, j - 1, j);
}

/* Drops dims of extent 1 and merges an outer dim that continues where the inner one ends. */
static void merge_dims(struct move *move)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < move->dim_count; i++) {
		if (move->extent[i] == 1)
			continue;
		int64_t extent = (int64_t)move->extent[i];
		if (kept > 0 && move->src_stride[kept - 1] == move->src_stride[i] * extent &&
		    move->dst_stride[kept - 1] == move->dst_stride[i] * extent) {
			move->extent[kept - 1] *= move->extent[i];
			move->src_stride[kept - 1] = move->src_stride[i];
			move->dst_stride[kept - 1] = move->dst_stride[i];
			continue;
		}
		swap_dims(move, kept, i);
		kept++;
	}
	move->dim_count = kept;
}

static void move_row(const struct move *move, const uint8_t *src, uint8_t *dst)
{
	size_t bytes = ws_dtype_bytes(move->from);
	uint64_t count = 1;
	int64_t src_stride = (int64_t)bytes, dst_stride = (int64_t)ws_dtype_bytes(move->to);
	if (move->dim_count > 0) {
		uint32_t last = move->dim_count - 1;
		count = move->extent[last];
		src_stride = move->src_stride[last];
		dst_stride = move->dst_stride[last];
	}
	if (move->from == move->to)
		copy_row(src, dst, count, src_stride, dst_stride, bytes);
	else
		cast_row(move, src, dst, count, src_stride, dst_stride);
}

void convert_move(const struct move *given)
{
	assert(convert_can(given->from, given->to) && given->dim_count <= MOVE_DIM_MAX);
	if (move_element_count(given) == 0)
		return;
	struct move move = *given;
	sort_dims(&move);
	merge_dims(&move);
	uint32_t outer = move.dim_count > 0 ? move.dim_count - 1 : 0;
	uint64_t at[MOVE_DIM_MAX] = {0};
	const uint8_t *src = move.src;
	uint8_t *dst = move.dst;
	/* An odometer over all dims but the innermost: each turn moves one row. */
	while (true) {
		move_row(&move, src, dst);
		uint32_t dim = outer;
		while (dim > 0) {
			dim--;
			src += move.src_stride[dim];
			dst += move.dst_stride[dim];
			if (++at[dim] < move.extent[dim])
				break;
			src -= move.src_stride[dim] * (int64_t)move.extent[dim];
			dst -= move.dst_stride[dim] * (int64_t)move.extent[dim];
			at[dim] = 0;
			if (dim == 0)
				return;
		}
		if (outer == 0)
			return;
	}
}
