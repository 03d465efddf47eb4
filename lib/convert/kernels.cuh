/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels share.  The arithmetic is float.h's and scale.h's, the host's own source, or an
 * instruction that gives the same bits; nothing flushes subnormals or contracts (see the Makefile's
 * flags).
 */
#ifndef KERNELS_CUH
#define KERNELS_CUH

#include "lib/convert/scale.h"
#include "lib/convert/task.h"

#define ALL_LANES 0xffffffffu

/* Which task has this tile: a search by all lanes of a warp, 32 steps at once. */
static __device__ uint32_t task_of(const struct task_list &list, uint32_t tile)
{
	uint32_t lane = threadIdx.x % 32, found = 0, step = 1;

	while (step * 32 < list.count)
		step *= 32;
	for (; step > 0; step /= 32) {
		uint32_t i = found + (lane + 1) * step;
		bool behind = i < list.count && list.first_tile[i] <= tile;
		found += (uint32_t)__popc(__ballot_sync(ALL_LANES, behind)) * step;
	}
	return found;
}

/* As it lies in memory: words side by side, or one element in the low bits of words[0]. */
template <int N> struct raw {
	uint32_t words[N];
};

/* By the hardware where it gives the host's bits: its NaNs don't keep the payload. */
static __device__ uint32_t f32_of_half(uint16_t value)
{
	uint32_t bits;

	if ((value & 0x7c00) == 0x7c00)
		return f32_of_f16(value);
	asm("cvt.f32.f16 %0, %1;" : "=r"(bits) : "h"(value));
	return bits;
}

/* What lies in memory as the bits of f32; a signalling NaN of a bf16 stays one. */
template <int N>
static __device__ void floats_of(enum ws_dtype from, const struct raw<N> &raw, uint32_t *floats)
{
#pragma unroll
	for (uint32_t j = 0; j < N; j++) {
		if (from == WS_F32)
			floats[j] = raw.words[j];
		else if (from == WS_BF16)
			floats[j] =
				j % 2 == 0 ? raw.words[j / 2] << 16 : raw.words[j / 2] & 0xffff0000;
		else
			floats[j] = f32_of_half((uint16_t)(raw.words[j / 2] >> j % 2 * 16));
	}
}

/* Two codes, the first in the low byte. */
static __device__ uint32_t codes_of(enum ws_dtype code, float low, float high)
{
#if __CUDA_ARCH__ >= 890
	uint16_t codes;
	if (code == WS_F8_E4M3)
		asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
	else
		asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
	return codes;
#else
	uint32_t a = bits_of_f32(low), b = bits_of_f32(high);
	return code == WS_F8_E4M3 ? e4m3_of_f32(a) | (uint32_t)e4m3_of_f32(b) << 8
				  : e5m2_of_f32(a) | (uint32_t)e5m2_of_f32(b) << 8;
#endif
}

static __device__ float quotient(const struct quant &quant, uint32_t bits, float by)
{
	return quant.reciprocal ? f32_of_bits(bits) * by : f32_of_bits(bits) / by;
}

static __device__ uint32_t four_codes_of(const struct quant &quant, const uint32_t *floats,
					 float by)
{
	return codes_of(quant.code, quotient(quant, floats[0], by),
			quotient(quant, floats[1], by)) |
	       codes_of(quant.code, quotient(quant, floats[2], by), quotient(quant, floats[3], by))
		       << 16;
}

#endif
