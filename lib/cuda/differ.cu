/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes of two stretches of memory differ, counted where they lie.
 */
#include "lib/cuda/cuda.h"

#define THREADS 512u
#define BLOCKS	264u

static __global__ void __launch_bounds__(THREADS)
	differ_kernel(const uint8_t *a, const uint8_t *b, uint64_t bytes, unsigned long long *count)
{
	uint64_t words = ((uintptr_t)a & 15) == 0 && ((uintptr_t)b & 15) == 0 ? bytes / 16 : 0;
	uint64_t at = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
	uint64_t step = (uint64_t)gridDim.x * THREADS;
	unsigned long long own = 0;

	for (uint64_t i = at; i < words; i += step) {
		const uint4 x = ((const uint4 *)a)[i], y = ((const uint4 *)b)[i];
		if (x.x == y.x && x.y == y.y && x.z == y.z && x.w == y.w)
			continue;
		for (uint64_t k = 16 * i; k < 16 * i + 16; k++)
			own += a[k] != b[k];
	}
	for (uint64_t i = 16 * words + at; i < bytes; i += step)
		own += a[i] != b[i];
	if (own > 0)
		atomicAdd(count, own);
}

int differ_launch(const void *a, const void *b, uint64_t bytes, uint64_t *count,
		  struct CUstream_st *stream, struct ws_error *err)
{
	void *arguments[] = {(void *)&a, (void *)&b, (void *)&bytes, (void *)&count};

	(void)cudaLaunchKernel((const void *)differ_kernel, dim3(BLOCKS), dim3(THREADS), arguments,
			       0, stream);
	return cuda_launched("compare memory in a GPU", err);
}
