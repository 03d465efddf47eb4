/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies by the hundred in one kernel.  A cudaMemcpyAsync for each of 18,432 pieces of 3 MiB
 * reached 299 GB/s over NVLink, one kernel 371 of the 394 that a single big copy does (measured on
 * 2 x H200, bench/README.md).
 */
#include "lib/cuda/copy.h"

#define THREADS		     512u /* of a block */
#define BLOCKS_PER_PROCESSOR 2u

/* Elements of T, by all threads of a block; four loads in flight before the first store. */
template <typename T> static __device__ void elements_copy(T *to, const T *from, uint32_t count)
{
	uint32_t i = threadIdx.x;

	for (; i + 3 * THREADS < count; i += 4 * THREADS) {
		T a = from[i], b = from[i + THREADS], c = from[i + 2 * THREADS],
		  d = from[i + 3 * THREADS];
		to[i] = a;
		to[i + THREADS] = b;
		to[i + 2 * THREADS] = c;
		to[i + 3 * THREADS] = d;
	}
	for (; i < count; i += THREADS)
		to[i] = from[i];
}

template <typename T>
static __device__ void aligned_copy(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	uint32_t head = (uint32_t)(-(uintptr_t)to & (sizeof(T) - 1));

	head = head < bytes ? head : bytes;
	uint32_t count = (bytes - head) / (uint32_t)sizeof(T);
	uint32_t tail = head + count * (uint32_t)sizeof(T);
	if (threadIdx.x < head)
		to[threadIdx.x] = from[threadIdx.x];
	elements_copy((T *)(to + head), (const T *)(from + head), count);
	if (threadIdx.x < bytes - tail)
		to[tail + threadIdx.x] = from[tail + threadIdx.x];
}

static __device__ void chunk_copy(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	uintptr_t apart = (uintptr_t)to ^ (uintptr_t)from;

	if ((apart & 15) == 0)
		aligned_copy<uint4>(to, from, bytes);
	else if ((apart & 3) == 0)
		aligned_copy<uint32_t>(to, from, bytes);
	else
		aligned_copy<uint8_t>(to, from, bytes);
}

static __global__ void __launch_bounds__(THREADS)
	copies_kernel(const __grid_constant__ struct copies copies)
{
	uint32_t total = copies.chunk_end[copies.count - 1];

	for (uint32_t chunk = blockIdx.x; chunk < total; chunk += gridDim.x) {
		uint32_t low = 0, high = copies.count - 1;
		while (low < high) {
			uint32_t middle = (low + high) / 2;
			if (copies.chunk_end[middle] > chunk)
				high = middle;
			else
				low = middle + 1;
		}
		const struct cuda_copy *copy = &copies.list[low];
		uint64_t first = low == 0 ? 0 : copies.chunk_end[low - 1];
		uint64_t at = (chunk - first) * COPY_CHUNK_BYTES, rest = copy->bytes - at;
		chunk_copy((uint8_t *)copy->to + at, (const uint8_t *)copy->from + at,
			   rest < COPY_CHUNK_BYTES ? (uint32_t)rest : COPY_CHUNK_BYTES);
	}
}

int copies_launch(const struct copies *copies, int device, struct CUstream_st *stream,
		  struct ws_error *err)
{
	uint32_t chunks = copies->chunk_end[copies->count - 1], block_max;
	void *arguments[] = {(void *)copies};
	int processors;

	if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) !=
	    cudaSuccess)
		return cuda_launched("ask a GPU for its size", err);
	block_max = (uint32_t)processors * BLOCKS_PER_PROCESSOR;
	(void)cudaLaunchKernel((const void *)copies_kernel,
			       dim3(chunks < block_max ? chunks : block_max), dim3(THREADS),
			       arguments, 0, stream);
	return cuda_launched("copy in a GPU", err);
}
