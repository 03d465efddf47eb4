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

/* A block of threads has one tile: its first warp copies the task to shared memory. */
static __device__ void task_fetch(const struct task_list &list, struct task *task)
{
	uint32_t found = task_of(list, blockIdx.x);

	for (uint32_t i = threadIdx.x; i < sizeof(*task) / 4; i += 32)
		((uint32_t *)task)[i] = ((const uint32_t *)&list.tasks[found])[i];
	__syncwarp();
}

/* By the hardware, but for the payload of a NaN. */
static __device__ uint32_t f32_of_half(uint16_t value)
{
	uint32_t bits;

	if ((value & 0x7c00) == 0x7c00)
		return f32_of_f16(value);
	asm("cvt.f32.f16 %0, %1;" : "=r"(bits) : "h"(value));
	return bits;
}

/* ---------------------------------------------------------------- sizes */
/* Of two halves each: |x| of the 2-byte floats is in the order of unsigned integers. */
static __device__ uint32_t larger_halves(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ >= 900
	uint32_t both;
	asm("max.u16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
	return both;
#else
	return MAX(a & 0xffff0000, b & 0xffff0000) | MAX(a & 0xffff, b & 0xffff);
#endif
}

/* The larger of a size so far and of a word's elements, as they lie in memory. */
template <int BYTES> static __device__ uint32_t raise_size(uint32_t size, uint32_t word)
{
	if constexpr (BYTES == 4)
		return MAX(size, word & F32_ABS);
	else
		return larger_halves(size, word & 0x7fff7fff);
}

/* Such a size as a maximum. */
static __device__ uint32_t maximum_of(enum ws_dtype from, uint32_t size)
{
	uint32_t half = MAX(size >> 16, size & 0xffff);
	uint32_t bits = from == WS_F32	  ? size
			: from == WS_BF16 ? half << 16
					  : f32_of_half((uint16_t)half);

	return bits > F32_INFINITY ? F32_NAN : bits;
}

/* ---------------------------------------------------------------- codes */
/* What lies in words, as values.  The dtype is asked once, not for each element. */
template <int N>
static __device__ void values_of(enum ws_dtype from, const uint32_t *words, float *x)
{
	if (from == WS_F32)
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			x[j] = f32_of_bits(words[j]);
	else if (from == WS_BF16)
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			x[j] = f32_of_bits(j % 2 == 0 ? words[j / 2] << 16
						      : words[j / 2] & 0xffff0000);
	else
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			x[j] = f32_of_bits(f32_of_half((uint16_t)(words[j / 2] >> j % 2 * 16)));
}

/* Codes of N values of one block, which take the place of the values' words. */
template <int N>
static __device__ void codes_of(enum ws_dtype code, const float *x, uint32_t *words)
{
#if __CUDA_ARCH__ >= 890
	uint16_t pairs[(N + 1) / 2];
#pragma unroll
	for (uint32_t j = 0; j < N; j += 2) {
		float next = j + 1 < N ? x[j + 1] : 0;
		if (code == WS_F8_E4M3)
			asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
			    : "=h"(pairs[j / 2])
			    : "f"(next), "f"(x[j]));
		else
			asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
			    : "=h"(pairs[j / 2])
			    : "f"(next), "f"(x[j]));
	}
#pragma unroll
	for (uint32_t j = 0; j < N; j += 4)
		words[j / 4] = N == 1 ? pairs[0] : pairs[j / 2] | (uint32_t)pairs[j / 2 + 1] << 16;
#else
#pragma unroll
	for (uint32_t j = 0; j < N; j++) {
		uint32_t bits = bits_of_f32(x[j]);
		uint32_t one = code == WS_F8_E4M3 ? e4m3_of_f32(bits) : e5m2_of_f32(bits);
		words[j / 4] = j % 4 == 0 ? one : words[j / 4] | one << j % 4 * 8;
	}
#endif
}

#endif
