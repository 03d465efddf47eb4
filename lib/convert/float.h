/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The narrow floats as bits: each value of them is an f32 exactly, and an f32 becomes one of them
 * by one rounding to nearest even.  Inline, since they are the inner loop of the reference.
 */
#ifndef FLOAT_H
#define FLOAT_H

#include "lib/base/base.h"

/* What the host and kernels share: the same source, so the same bits. */
#ifdef __CUDACC__
#define ON_BOTH __host__ __device__ static inline
#else
#define ON_BOTH static inline
#endif

#define F32_ABS	     0x7fffffffu
#define F32_INFINITY 0x7f800000u
#define F32_QUIET    0x00400000u
#define F32_NAN	     0x7fc00000u

/* What codes saturate at, as a value and as a code. */
#define E4M3_MAX      448.0F
#define E4M3_LARGEST  0x7eu
#define E4M3_FRACTION 3u /* bits */
#define E4M3_BIAS     7u
#define E5M2_MAX      57344.0F
#define E5M2_LARGEST  0x7bu
#define E5M2_FRACTION 2u
#define E5M2_BIAS     15u
#define F8_NAN	      0x7fu
#define F16_FRACTION  10u
#define F16_BIAS      15u

/* A finite value of sign 0 with this many bits of fraction. */
ON_BOTH uint32_t f32_of_narrow(uint32_t value, uint32_t fraction_bits, uint32_t bias)
{
	uint32_t exponent = value >> fraction_bits, fraction = value & ((1u << fraction_bits) - 1);
	if (exponent != 0)
		return (exponent + 127 - bias) << 23 | fraction << (23 - fraction_bits);
	if (fraction == 0)
		return 0;
	/* Subnormal: fraction units of 2^(1 - bias - fraction_bits), a normal number in f32. */
	uint32_t top = 31 - (uint32_t)__builtin_clz(fraction);
	return (top + 128 - bias - fraction_bits) << 23 | (fraction << (23 - top) & 0x7fffff);
}

/* Of sign 0 and no NaN; what overflows is at or above the first value behind the largest. */
ON_BOTH uint32_t narrow_of_f32(uint32_t value, uint32_t fraction_bits, uint32_t bias)
{
	/* Half a unit less one, plus the last bit that is kept: a carry may raise the exponent. */
	uint32_t drop = 23 - fraction_bits, exponent = value >> 23;
	if (exponent + bias > 127)
		return (value - ((127 - bias) << 23) + (1u << (drop - 1)) - 1 +
			(value >> drop & 1)) >>
		       drop;
	/* Subnormal: in units of 2^(1 - bias - fraction_bits). */
	uint32_t fraction = (value & 0x7fffff) | 0x800000;
	drop += 128 - bias - exponent;
	if (drop > 24) /* less than half of the smallest */
		return 0;
	uint32_t units = fraction >> drop, rest = fraction & ((1u << drop) - 1);
	uint32_t half = 1u << (drop - 1);
	return units + (rest > half || (rest == half && (units & 1) != 0));
}

ON_BOTH uint32_t f32_of_bf16(uint16_t value)
{
	uint32_t bits = (uint32_t)value << 16;
	return (bits & F32_ABS) > F32_INFINITY ? bits | F32_QUIET : bits;
}

ON_BOTH uint16_t bf16_of_f32(uint32_t bits)
{
	if ((bits & F32_ABS) > F32_INFINITY)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

ON_BOTH uint32_t f32_of_f16(uint16_t value)
{
	uint32_t sign = (uint32_t)(value & 0x8000) << 16, fraction = value & 0x3ff;
	if ((value & 0x7c00) == 0x7c00)
		return sign | F32_INFINITY | fraction << 13 | (fraction != 0 ? F32_QUIET : 0);
	return sign | f32_of_narrow(value & 0x7fff, F16_FRACTION, F16_BIAS);
}

ON_BOTH uint16_t f16_of_f32(uint32_t bits)
{
	uint32_t sign = bits >> 16 & 0x8000, value = bits & F32_ABS;
	if (value > F32_INFINITY)
		return (uint16_t)(sign | 0x7e00 | (value >> 13 & 0x3ff));
	return (uint16_t)(sign | MIN(narrow_of_f32(value, F16_FRACTION, F16_BIAS), 0x7c00));
}

ON_BOTH uint8_t e4m3_of_f32(uint32_t bits)
{
	uint32_t value = bits & F32_ABS;
	if (value > F32_INFINITY)
		return F8_NAN;
	return (uint8_t)((bits >> 24 & 0x80) |
			 MIN(narrow_of_f32(value, E4M3_FRACTION, E4M3_BIAS), E4M3_LARGEST));
}

ON_BOTH uint8_t e5m2_of_f32(uint32_t bits)
{
	uint32_t value = bits & F32_ABS;
	if (value > F32_INFINITY)
		return F8_NAN;
	return (uint8_t)((bits >> 24 & 0x80) |
			 MIN(narrow_of_f32(value, E5M2_FRACTION, E5M2_BIAS), E5M2_LARGEST));
}

ON_BOTH uint32_t f32_of_e4m3(uint8_t code)
{
	uint32_t sign = (uint32_t)(code & 0x80) << 24, value = code & 0x7f;
	return sign | (value == F8_NAN ? F32_NAN : f32_of_narrow(value, E4M3_FRACTION, E4M3_BIAS));
}

/* An e5m2 is the upper half of an f16. */
ON_BOTH uint32_t f32_of_e5m2(uint8_t code)
{
	return f32_of_f16((uint16_t)(code << 8));
}

ON_BOTH float f32_of_bits(uint32_t bits)
{
	float value;
	__builtin_memcpy(&value, &bits, sizeof(value));
	return value;
}

ON_BOTH uint32_t bits_of_f32(float value)
{
	uint32_t bits;
	__builtin_memcpy(&bits, &value, sizeof(bits));
	return bits;
}

#endif
