/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 lanes for vectors.h: AVX-512 F, BW, VL and DQ, which all that have BW have. */
#ifdef __x86_64__
#include <immintrin.h>

#include "lib/convert/rows.h"

#define LANES	   16
#define TARGET	   target("avx512f,avx512bw,avx512vl,avx512dq")
#define VECTOR	   static inline __attribute__((TARGET, always_inline))
#define VECTOR_ROW static __attribute__((TARGET)) void

typedef __m512i v_bits;

VECTOR v_bits v_set(uint32_t x)
{
	return _mm512_set1_epi32((int)x);
}

VECTOR v_bits v_and(v_bits a, v_bits b)
{
	return _mm512_and_si512(a, b);
}

VECTOR v_bits v_or(v_bits a, v_bits b)
{
	return _mm512_or_si512(a, b);
}

VECTOR v_bits v_add(v_bits a, v_bits b)
{
	return _mm512_add_epi32(a, b);
}

VECTOR v_bits v_shift_left(v_bits a, uint32_t by)
{
	return _mm512_slli_epi32(a, by);
}

VECTOR v_bits v_shift_right(v_bits a, uint32_t by)
{
	return _mm512_srli_epi32(a, by);
}

VECTOR v_bits v_min(v_bits a, v_bits b)
{
	return _mm512_min_epu32(a, b);
}

VECTOR v_bits v_max(v_bits a, v_bits b)
{
	return _mm512_max_epu32(a, b);
}

VECTOR v_bits v_max_16(v_bits a, v_bits b)
{
	return _mm512_max_epu16(a, b);
}

/* Where a is above b: both below 2^31. */
VECTOR v_bits v_if_above(v_bits a, v_bits b, v_bits then, v_bits otherwise)
{
	return _mm512_mask_mov_epi32(otherwise, _mm512_cmpgt_epi32_mask(a, b), then);
}

VECTOR v_bits v_add_float(v_bits a, v_bits b)
{
	__m512 sum = _mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
	return _mm512_castps_si512(sum);
}

VECTOR v_bits v_multiply(v_bits a, v_bits b)
{
	__m512 product = _mm512_mul_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
	return _mm512_castps_si512(product);
}

VECTOR v_bits v_divide(v_bits a, v_bits b)
{
	__m512 quotient = _mm512_div_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
	return _mm512_castps_si512(quotient);
}

VECTOR uint32_t v_largest(v_bits x)
{
	return _mm512_reduce_max_epu32(x);
}

/* The one instruction for it finds the least of eight. */
VECTOR uint16_t v_largest_16(v_bits x)
{
	__m256i four = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
	__m128i eight =
		_mm_max_epu16(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
	__m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi32(-1)));
	return (uint16_t)~_mm_cvtsi128_si32(least);
}

VECTOR v_bits v_load_32(const uint8_t *src)
{
	return _mm512_loadu_si512(src);
}

VECTOR v_bits v_load_16(const uint8_t *src)
{
	return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)src));
}

VECTOR v_bits v_load_8(const uint8_t *src)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)src));
}

VECTOR v_bits v_load_f16(const uint8_t *src)
{
	__m512 x = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)src));
	return _mm512_castps_si512(x);
}

VECTOR void v_store_32(uint8_t *dst, v_bits x)
{
	_mm512_storeu_si512(dst, x);
}

VECTOR void v_store_16(uint8_t *dst, v_bits x)
{
	_mm256_storeu_si256((__m256i *)dst, _mm512_cvtepi32_epi16(x));
}

/* The lowest byte of each lane. */
VECTOR void v_store_8(uint8_t *dst, v_bits x)
{
	_mm_storeu_si128((__m128i *)dst, _mm512_cvtepi32_epi8(x));
}

VECTOR void v_store_f16(uint8_t *dst, v_bits x)
{
	__m256i half = _mm512_cvtps_ph(_mm512_castsi512_ps(x),
				       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	_mm256_storeu_si256((__m256i *)dst, half);
}

#include "lib/convert/vectors.h"

static bool is_here(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const struct rows rows_avx512 = {
	.is_here = is_here,
	.cast = cast_row,
	.maxima = maxima_row,
	.quantize = quantize_row,
	.dequantize = dequantize_row,
};
#endif
