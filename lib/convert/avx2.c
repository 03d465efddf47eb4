/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 8 lanes for vectors.h: AVX2, with F16C, which all have that have AVX2. */
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#include "lib/convert/rows.h"

#define LANES	   8
#define TARGET	   target("avx2,f16c")
#define VECTOR	   static inline __attribute__((TARGET, always_inline))
#define VECTOR_ROW static __attribute__((TARGET)) void

typedef __m256i v_bits;

VECTOR v_bits v_set(uint32_t x)
{
	return _mm256_set1_epi32((int)x);
}

VECTOR v_bits v_and(v_bits a, v_bits b)
{
	return _mm256_and_si256(a, b);
}

VECTOR v_bits v_or(v_bits a, v_bits b)
{
	return _mm256_or_si256(a, b);
}

VECTOR v_bits v_add(v_bits a, v_bits b)
{
	return _mm256_add_epi32(a, b);
}

VECTOR v_bits v_shift_left(v_bits a, uint32_t by)
{
	return _mm256_slli_epi32(a, (int)by);
}

VECTOR v_bits v_shift_right(v_bits a, uint32_t by)
{
	return _mm256_srli_epi32(a, (int)by);
}

VECTOR v_bits v_min(v_bits a, v_bits b)
{
	return _mm256_min_epu32(a, b);
}

VECTOR v_bits v_max(v_bits a, v_bits b)
{
	return _mm256_max_epu32(a, b);
}

VECTOR v_bits v_max_16(v_bits a, v_bits b)
{
	return _mm256_max_epu16(a, b);
}

/* Where a is above b: both below 2^31. */
VECTOR v_bits v_if_above(v_bits a, v_bits b, v_bits then, v_bits otherwise)
{
	return _mm256_blendv_epi8(otherwise, then, _mm256_cmpgt_epi32(a, b));
}

VECTOR v_bits v_add_float(v_bits a, v_bits b)
{
	__m256 sum = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
	return _mm256_castps_si256(sum);
}

VECTOR v_bits v_multiply(v_bits a, v_bits b)
{
	__m256 product = _mm256_mul_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
	return _mm256_castps_si256(product);
}

VECTOR v_bits v_divide(v_bits a, v_bits b)
{
	__m256 quotient = _mm256_div_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
	return _mm256_castps_si256(quotient);
}

VECTOR uint32_t v_largest(v_bits x)
{
	__m128i four = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
	four = _mm_max_epu32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
	four = _mm_max_epu32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(2, 3, 0, 1)));
	return (uint32_t)_mm_cvtsi128_si32(four);
}

/* The one instruction for it finds the least of eight. */
VECTOR uint16_t v_largest_16(v_bits x)
{
	__m128i eight = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
	__m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi32(-1)));
	return (uint16_t)~_mm_cvtsi128_si32(least);
}

VECTOR v_bits v_load_32(const uint8_t *src)
{
	return _mm256_loadu_si256((const __m256i *)src);
}

VECTOR v_bits v_load_16(const uint8_t *src)
{
	return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)src));
}

VECTOR v_bits v_load_8(const uint8_t *src)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)src));
}

VECTOR v_bits v_load_f16(const uint8_t *src)
{
	return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src)));
}

VECTOR void v_store_32(uint8_t *dst, v_bits x)
{
	_mm256_storeu_si256((__m256i *)dst, x);
}

VECTOR void v_store_16(uint8_t *dst, v_bits x)
{
	__m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
	_mm_storeu_si128((__m128i *)dst, _mm_packus_epi32(low, high));
}

/* The lowest byte of each lane. */
VECTOR void v_store_8(uint8_t *dst, v_bits x)
{
	x = v_and(x, v_set(0xff));
	__m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
	__m128i eight = _mm_packus_epi32(low, high);
	_mm_storel_epi64((__m128i *)dst, _mm_packus_epi16(eight, eight));
}

VECTOR void v_store_f16(uint8_t *dst, v_bits x)
{
	__m128i half = _mm256_cvtps_ph(_mm256_castsi256_ps(x), _MM_FROUND_TO_NEAREST_INT);
	_mm_storeu_si128((__m128i *)dst, half);
}

#include "lib/convert/vectors.h"

/* What __builtin_cpu_supports knows depends on the compiler: F16C not with all. */
static bool is_here(void)
{
	unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
	return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
	       (ecx & bit_F16C) != 0;
}

const struct rows rows_avx2 = {
	.is_here = is_here,
	.cast = cast_row,
	.maxima = maxima_row,
	.quantize = quantize_row,
	.dequantize = dequantize_row,
};
#endif
