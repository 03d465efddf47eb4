/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between queue.c and who carries copies out: the copies of one launch.
 */
#ifndef CUDA_COPY_H
#define CUDA_COPY_H

#include "lib/cuda/cuda.h"

#define COPIES_MAX	 96u	     /* a launch's parameters have 4 KiB */
#define COPY_CHUNK_BYTES (64u << 10) /* what a block takes at a time; a multiple of 16 */

/*
 * From here on a copy engine is faster between GPUs: it takes 5 us for each launch and 1 us for
 * each copy, however small, and has 395 GB/s over NVLink; the kernel 365 (2 x H200,
 * bench/README.md).  Within a GPU the kernel is, at any size.
 */
#define COPY_ENGINE_BYTES (512u << 10)
#define COPY_SMALL_FEW	  16u /* so few that are smaller go with them (queue.c) */

struct copies {
	struct cuda_copy list[COPIES_MAX];
	uint32_t chunk_end[COPIES_MAX]; /* how many chunks the copies up to this one have */
	uint32_t count;			/* > 0 */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Behind those that are there.  False: no room. */
static inline bool copies_add(struct copies *copies, const struct cuda_copy *copy)
{
	uint64_t chunks = copies->count > 0 ? copies->chunk_end[copies->count - 1] : 0;

	chunks += (copy->bytes + COPY_CHUNK_BYTES - 1) / COPY_CHUNK_BYTES;
	if (copies->count == COPIES_MAX || chunks > UINT32_MAX)
		return false;
	copies->chunk_end[copies->count] = (uint32_t)chunks;
	copies->list[copies->count++] = *copy;
	return true;
}

/* copy.cu: by a kernel, all multiprocessors of the GPU. */
int copies_launch(const struct copies *copies, int device, struct CUstream_st *stream,
		  struct ws_error *err);
/* runtime.c: by a copy engine, beside which kernels go on; chunk_end isn't looked at. */
int copies_by_engine(const struct copies *copies, struct CUstream_st *stream, struct ws_error *err);

#ifdef __cplusplus
}
#endif

#endif
