/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a block's maximum to its scale: what convert.h says of struct quant, for the host and for
 * kernels.  The order of the operations is part of the contract, so nothing here may be contracted
 * or reassociated.
 */
#ifndef SCALE_H
#define SCALE_H

#include "lib/convert/convert.h"
#include "lib/convert/float.h"

#define BF16_NAN     0x7fc0u
#define E8M0_NAN     0xffu
#define F32_FRACTION 0x7fffffu

ON_BOTH float largest_code(enum ws_dtype code)
{
	return code == WS_F8_E4M3 ? E4M3_MAX : E5M2_MAX;
}

/* The next power of two that isn't below; of a subnormal too, whose bits are a plain integer. */
ON_BOTH uint32_t power_of_two(uint32_t bits)
{
	if (bits > F32_FRACTION)
		return (bits + F32_FRACTION) & ~F32_FRACTION;
	return bits <= 1 ? bits : 1u << (32 - __builtin_clz(bits - 1));
}

/* A maximum's scale as it is stored in quant->scale, in the low bits. */
ON_BOTH uint32_t scale_of_maximum(const struct quant *quant, uint32_t maximum)
{
	if (maximum > F32_INFINITY)
		return quant->scale == WS_F32	 ? F32_NAN
		       : quant->scale == WS_BF16 ? BF16_NAN
						 : E8M0_NAN;
	float largest = f32_of_bits(maximum);
	uint32_t bits = bits_of_f32(MAX(largest, quant->eps) / largest_code(quant->code));
	if (quant->pow2 || quant->scale == WS_F8_E8M0)
		bits = power_of_two(bits);
	if (quant->scale == WS_F32)
		return bits;
	/* The exponent alone, of which 0 is the f32 subnormal 2^-127, and infinity is NaN. */
	return quant->scale == WS_BF16 ? bf16_of_f32(bits) : bits >> 23;
}

/* What is stored, as a value. */
ON_BOTH float scale_value(const struct quant *quant, uint32_t stored)
{
	if (quant->scale == WS_F32)
		return f32_of_bits(stored);
	if (quant->scale == WS_BF16)
		return f32_of_bits(f32_of_bf16((uint16_t)stored));
	return f32_of_bits(stored == E8M0_NAN ? F32_NAN : stored == 0 ? 0x00400000 : stored << 23);
}

ON_BOTH uint32_t scale_load(const struct quant *quant, const uint8_t *entry)
{
	uint32_t wide;
	uint16_t narrow;
	if (quant->scale == WS_F8_E8M0)
		return *entry;
	if (quant->scale == WS_F32) {
		memcpy(&wide, entry, sizeof(wide));
		return wide;
	}
	memcpy(&narrow, entry, sizeof(narrow));
	return narrow;
}

ON_BOTH void scale_store(const struct quant *quant, uint32_t stored, uint8_t *entry)
{
	uint16_t narrow = (uint16_t)stored;
	if (quant->scale == WS_F8_E8M0)
		*entry = (uint8_t)stored;
	else if (quant->scale == WS_BF16)
		memcpy(entry, &narrow, sizeof(narrow));
	else
		memcpy(entry, &stored, sizeof(stored));
}

/* What the elements of its block are divided by, or multiplied with if quant->reciprocal. */
ON_BOTH float scale_divisor(const struct quant *quant, uint32_t maximum)
{
	float scale = scale_value(quant, scale_of_maximum(quant, maximum));
	if (scale == 0)
		scale = f32_of_bits(F32_INFINITY);
	return quant->reciprocal ? 1.0F / scale : scale;
}

#endif
