/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between queue.c and copy.cu: the copies of one launch.
 */
#ifndef CUDA_COPY_H
#define CUDA_COPY_H

#include "lib/cuda/cuda.h"

#define COPIES_MAX	 96u	     /* a launch's parameters have 4 KiB */
#define COPY_CHUNK_BYTES (64u << 10) /* what a block takes at a time; a multiple of 16 */

struct copies {
	struct cuda_copy list[COPIES_MAX];
	uint32_t chunk_end[COPIES_MAX]; /* how many chunks the copies up to this one have */
	uint32_t count;			/* > 0 */
};

#ifdef __cplusplus
extern "C" {
#endif

int copies_launch(const struct copies *copies, int device, struct CUstream_st *stream,
		  struct ws_error *err);

#ifdef __cplusplus
}
#endif

#endif
