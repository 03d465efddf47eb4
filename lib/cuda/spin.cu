/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that hangs until it is let go, for tests: whoever waits for a GPU must have a deadline.
 */
#include "lib/cuda/cuda.h"

static __device__ uint64_t now_ns(void)
{
	uint64_t ns;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
	return ns;
}

static __global__ void spin_kernel(const volatile uint32_t *go, uint64_t ns)
{
	uint64_t begin = now_ns();

	while (*go == 0 && now_ns() - begin < ns)
		;
}

int spin_launch(const volatile uint32_t *go, uint32_t ms, struct CUstream_st *stream,
		struct ws_error *err)
{
	uint64_t ns = ms * UINT64_C(1000000);
	void *arguments[] = {(void *)&go, (void *)&ns};

	(void)cudaLaunchKernel((const void *)spin_kernel, dim3(1), dim3(1), arguments, 0, stream);
	return cuda_launched("hang a GPU", err);
}
