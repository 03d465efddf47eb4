/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maxima, codes and values in plain C: what convert.h says of struct quant, and the oracle
 * of the vectors and of CUDA.  The order of the operations is part of the contract, so nothing
 * here may be contracted or reassociated.
 */
#include <string.h>

#include "lib/convert/rows.h"
#include "lib/convert/scale.h"

#define ROW_CHUNK 512 /* elements that are held as f32 on the stack */

/* ---------------------------------------------------------------- rows as f32 */
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
	} else if (from == WS_F16) {
		for (size_t i = 0; i < count; i++, src += stride) {
			memcpy(&narrow, src, sizeof(narrow));
			row[i] = f32_of_f16(narrow);
		}
	} else {
		for (size_t i = 0; i < count; i++, src += stride)
			row[i] = from == WS_F8_E4M3 ? f32_of_e4m3(*src) : f32_of_e5m2(*src);
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
	} else if (to == WS_F16) {
		for (size_t i = 0; i < count; i++, dst += stride) {
			narrow = f16_of_f32(row[i]);
			memcpy(dst, &narrow, sizeof(narrow));
		}
	} else {
		for (size_t i = 0; i < count; i++, dst += stride)
			*dst = to == WS_F8_E4M3 ? e4m3_of_f32(row[i]) : e5m2_of_f32(row[i]);
	}
}

static void cast_row(const struct row *given)
{
	struct row row = *given;
	uint32_t values[ROW_CHUNK];
	while (row.count > 0) {
		size_t n = (size_t)MIN(row.count, ROW_CHUNK);
		load_row(row.src, row.src_stride, n, row.move->from, values);
		store_row(row.dst, row.dst_stride, n, row.move->to, values);
		row_advance(&row, n);
	}
}

static void maxima_row(const struct row *given)
{
	struct row row = *given;
	uint32_t values[ROW_CHUNK];
	while (row.count > 0) {
		size_t n = (size_t)MIN(row_run(&row), ROW_CHUNK);
		load_row(row.src, row.src_stride, n, row.move->from, values);
		uint32_t size = 0;
		for (size_t i = 0; i < n; i++)
			size = MAX(size, values[i] & F32_ABS);
		row_raise(&row, size);
		row_advance(&row, n);
	}
}

static void quantize_row(const struct row *given, const float *divisors)
{
	struct row row = *given;
	bool reciprocal = row.move->blocks->quant->reciprocal;
	uint32_t values[ROW_CHUNK];
	while (row.count > 0) {
		size_t n = (size_t)MIN(row_run(&row), ROW_CHUNK);
		load_row(row.src, row.src_stride, n, row.move->from, values);
		float by = *divisors;
		for (size_t i = 0; i < n; i++) {
			float x = f32_of_bits(values[i]);
			values[i] = bits_of_f32(reciprocal ? x * by : x / by);
		}
		store_row(row.dst, row.dst_stride, n, row.move->to, values);
		row_advance(&row, n);
		if (row.first == 0)
			divisors++;
	}
}

static void dequantize_row(const struct row *given, const float *scales)
{
	struct row row = *given;
	uint32_t values[ROW_CHUNK];
	while (row.count > 0) {
		size_t n = (size_t)MIN(row_run(&row), ROW_CHUNK);
		load_row(row.src, row.src_stride, n, row.move->from, values);
		float by = *scales;
		for (size_t i = 0; i < n; i++) {
			float value = f32_of_bits(values[i]) * by;
			values[i] = value != value ? F32_NAN : bits_of_f32(value);
		}
		store_row(row.dst, row.dst_stride, n, row.move->to, values);
		row_advance(&row, n);
		if (row.first == 0)
			scales++;
	}
}

static bool is_here(void)
{
	return true;
}

const struct rows rows_c = {
	.is_here = is_here,
	.cast = cast_row,
	.maxima = maxima_row,
	.quantize = quantize_row,
	.dequantize = dequantize_row,
};
