/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows by vectors, written once for every width: avx2.c and avx512.c say what a vector and its
 * operations are (VECTOR, LANES, v_bits, v_*) and include this.  Taken are rows that are
 * contiguous on both sides; what is left of a block behind its last whole vector, and every
 * other row, goes to the plain C.
 */
#include "lib/convert/float.h"

/* Bytes of a float. */
#define WIDTH(dtype) ((dtype) == WS_F32 ? 4u : 2u)

static bool is_contiguous(const struct row *row)
{
	const struct move *move = row->move;
	size_t dst_dtype_bytes = ws_dtype_bytes(move->kind == MOVE_MAXIMA ? move->from : move->to);
	return row->count >= LANES && row->src_stride == (int64_t)ws_dtype_bytes(move->from) &&
	       row->dst_stride == (int64_t)dst_dtype_bytes;
}

/* Where x is a NaN. */
VECTOR v_bits v_if_nan(v_bits x, v_bits then, v_bits otherwise)
{
	return v_if_above(v_and(x, v_set(F32_ABS)), v_set(F32_INFINITY), then, otherwise);
}

VECTOR v_bits v_load_float(const uint8_t *src, enum ws_dtype from)
{
	if (from == WS_F32)
		return v_load_32(src);
	return from == WS_F16 ? v_load_f16(src) : v_shift_left(v_load_16(src), 16);
}

VECTOR v_bits v_bf16_of_f32(v_bits x)
{
	v_bits odd = v_and(v_shift_right(x, 16), v_set(1));
	v_bits rounded = v_add(v_add(x, v_set(0x7fff)), odd);
	return v_shift_right(v_if_nan(x, v_or(x, v_set(F32_QUIET)), rounded), 16);
}

VECTOR void v_store_float(uint8_t *dst, v_bits x, enum ws_dtype to)
{
	if (to == WS_F32)
		v_store_32(dst, x);
	else if (to == WS_F16)
		v_store_f16(dst, x);
	else
		v_store_16(dst, v_bf16_of_f32(x));
}

/*
 * The code in the lowest byte of each lane, whatever in the others.  A value of exponent e is
 * rounded to a multiple of 2^(e - fraction_bits) by adding a number of which this is the unit in
 * the last place; that number's own last bits are the code's exponent, so that the sum's are the
 * code.  Below the smallest normal code e stays, and what comes out is a subnormal.
 */
VECTOR v_bits v_code_of_f32(v_bits x, enum ws_dtype code)
{
	bool e4m3 = code == WS_F8_E4M3;
	uint32_t fraction_bits = e4m3 ? E4M3_FRACTION : E5M2_FRACTION;
	uint32_t least = 128 - (e4m3 ? E4M3_BIAS : E5M2_BIAS), drop = 23 - fraction_bits;
	uint32_t largest = bits_of_f32(e4m3 ? E4M3_MAX : E5M2_MAX);
	v_bits size = v_min(v_and(x, v_set(F32_ABS)), v_set(largest));
	v_bits exponent = v_max(v_and(size, v_set(F32_INFINITY)), v_set(least << 23));
	v_bits units = v_add(exponent, v_set((drop << 23) - (least << fraction_bits)));
	v_bits sum = v_add_float(size, v_add(units, v_shift_right(exponent, drop)));
	v_bits sign = v_and(v_shift_right(x, 24), v_set(0x80));
	return v_if_nan(x, v_set(F8_NAN), v_or(sum, sign));
}

/* A code's fraction and exponent are put where an f32 has its own, which is a power of two off:
 * exact, for subnormals too. */
VECTOR v_bits v_f32_of_code(v_bits code, enum ws_dtype from)
{
	bool e4m3 = from == WS_F8_E4M3;
	uint32_t drop = 23 - (e4m3 ? E4M3_FRACTION : E5M2_FRACTION);
	uint32_t bias = e4m3 ? E4M3_BIAS : E5M2_BIAS, finite = e4m3 ? E4M3_LARGEST : E5M2_LARGEST;
	v_bits size = v_and(code, v_set(0x7f));
	v_bits sign = v_shift_left(v_and(code, v_set(0x80)), 24);
	v_bits value = v_multiply(v_shift_left(size, drop), v_set((254 - bias) << 23));
	/* Behind the largest finite code: e5m2 has infinity, then NaN. */
	v_bits infinity = v_set(e4m3 ? F32_NAN : F32_INFINITY);
	value = v_if_above(size, v_set(finite), infinity, value);
	value = v_if_above(size, v_set(finite + 1), v_set(F32_NAN), value);
	return v_or(value, sign);
}

/* The bits of the largest of |x|, NaNs as they are, among elements of a multiple of LANES; the
 * narrow floats are in the order of their bits, too. */
VECTOR uint32_t v_maximum(const uint8_t *src, uint64_t count, enum ws_dtype from)
{
	v_bits most = v_set(0);
	if (from == WS_F32) {
		for (uint64_t i = 0; i < count; i += LANES)
			most = v_max(most, v_and(v_load_32(src + i * 4), v_set(F32_ABS)));
		return v_largest(most);
	}
	uint64_t pairs = count - count % (2 * LANES);
	for (uint64_t i = 0; i < pairs; i += 2 * LANES)
		most = v_max_16(most, v_and(v_load_32(src + i * 2), v_set(0x7fff7fff)));
	if (pairs < count)
		most = v_max_16(most, v_and(v_load_16(src + pairs * 2), v_set(0x7fff)));
	uint16_t largest = v_largest_16(most);
	return from == WS_BF16 ? f32_of_bf16(largest) : f32_of_f16(largest);
}

/* ---------------------------------------------------------------- rows */
/* Elements [from, to) of a row's first block. */
static struct row row_part(const struct row *row, uint64_t from, uint64_t to)
{
	struct row part = *row;
	row_advance(&part, from);
	part.count = to - from;
	return part;
}

VECTOR void cast_vectors(const struct row *row, enum ws_dtype from, enum ws_dtype to)
{
	uint64_t whole = row->count - row->count % LANES;
	for (uint64_t i = 0; i < whole; i += LANES) {
		v_bits x = v_load_float(row->src + i * WIDTH(from), from);
		/* A NaN becomes quiet. */
		if (from == WS_BF16 && to == WS_F32)
			x = v_if_nan(x, v_or(x, v_set(F32_QUIET)), x);
		v_store_float(row->dst + i * WIDTH(to), x, to);
	}
	struct row rest = row_part(row, whole, row->count);
	rows_c.cast(&rest);
}

VECTOR void maxima_vectors(const struct row *given, enum ws_dtype from)
{
	struct row row = *given;
	while (row.count > 0) {
		uint64_t run = row_run(&row), whole = run - run % LANES;
		row_raise(&row, v_maximum(row.src, whole, from));
		if (whole < run) {
			struct row rest = row_part(&row, whole, run);
			rows_c.maxima(&rest);
		}
		row_advance(&row, run);
	}
}

VECTOR void quantize_vectors(const struct row *given, const float *divisors, enum ws_dtype from,
			     enum ws_dtype code, bool reciprocal)
{
	struct row row = *given;
	while (row.count > 0) {
		uint64_t run = row_run(&row), whole = run - run % LANES;
		v_bits by = v_set(bits_of_f32(*divisors));
		for (uint64_t i = 0; i < whole; i += LANES) {
			v_bits x = v_load_float(row.src + i * WIDTH(from), from);
			x = reciprocal ? v_multiply(x, by) : v_divide(x, by);
			v_store_8(row.dst + i, v_code_of_f32(x, code));
		}
		if (whole < run) {
			struct row rest = row_part(&row, whole, run);
			rows_c.quantize(&rest, divisors);
		}
		row_advance(&row, run);
		divisors++;
	}
}

VECTOR void dequantize_vectors(const struct row *given, const float *scales, enum ws_dtype code,
			       enum ws_dtype to)
{
	struct row row = *given;
	while (row.count > 0) {
		uint64_t run = row_run(&row), whole = run - run % LANES;
		v_bits by = v_set(bits_of_f32(*scales));
		for (uint64_t i = 0; i < whole; i += LANES) {
			v_bits x = v_multiply(v_f32_of_code(v_load_8(row.src + i), code), by);
			v_store_float(row.dst + i * WIDTH(to), v_if_nan(x, v_set(F32_NAN), x), to);
		}
		if (whole < run) {
			struct row rest = row_part(&row, whole, run);
			rows_c.dequantize(&rest, scales);
		}
		row_advance(&row, run);
		scales++;
	}
}

/* ---------------------------------------------------------------- one loop for each dtype */
VECTOR_ROW cast_row(const struct row *row)
{
	enum ws_dtype from = row->move->from, to = row->move->to;
	if (!is_contiguous(row))
		rows_c.cast(row);
	else if (from == WS_F32 && to == WS_BF16)
		cast_vectors(row, WS_F32, WS_BF16);
	else if (from == WS_F32)
		cast_vectors(row, WS_F32, WS_F16);
	else if (from == WS_BF16 && to == WS_F32)
		cast_vectors(row, WS_BF16, WS_F32);
	else if (from == WS_BF16)
		cast_vectors(row, WS_BF16, WS_F16);
	else if (to == WS_F32)
		cast_vectors(row, WS_F16, WS_F32);
	else
		cast_vectors(row, WS_F16, WS_BF16);
}

VECTOR_ROW maxima_row(const struct row *row)
{
	if (!is_contiguous(row))
		rows_c.maxima(row);
	else if (row->move->from == WS_F32)
		maxima_vectors(row, WS_F32);
	else if (row->move->from == WS_BF16)
		maxima_vectors(row, WS_BF16);
	else
		maxima_vectors(row, WS_F16);
}

VECTOR void quantize_from(const struct row *row, const float *divisors, enum ws_dtype from)
{
	bool reciprocal = row->move->blocks->quant->reciprocal;
	if (row->move->to == WS_F8_E5M2)
		quantize_vectors(row, divisors, from, WS_F8_E5M2, reciprocal);
	else if (reciprocal)
		quantize_vectors(row, divisors, from, WS_F8_E4M3, true);
	else
		quantize_vectors(row, divisors, from, WS_F8_E4M3, false);
}

VECTOR_ROW quantize_row(const struct row *row, const float *divisors)
{
	if (!is_contiguous(row))
		rows_c.quantize(row, divisors);
	else if (row->move->from == WS_F32)
		quantize_from(row, divisors, WS_F32);
	else if (row->move->from == WS_BF16)
		quantize_from(row, divisors, WS_BF16);
	else
		quantize_from(row, divisors, WS_F16);
}

VECTOR void dequantize_to(const struct row *row, const float *scales, enum ws_dtype to)
{
	if (row->move->from == WS_F8_E4M3)
		dequantize_vectors(row, scales, WS_F8_E4M3, to);
	else
		dequantize_vectors(row, scales, WS_F8_E5M2, to);
}

VECTOR_ROW dequantize_row(const struct row *row, const float *scales)
{
	if (!is_contiguous(row))
		rows_c.dequantize(row, scales);
	else if (row->move->to == WS_F32)
		dequantize_to(row, scales, WS_F32);
	else if (row->move->to == WS_BF16)
		dequantize_to(row, scales, WS_BF16);
	else
		dequantize_to(row, scales, WS_F16);
}
