/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that hang a GPU's stream: a kernel that runs until it is let go. */
#ifndef TESTS_GPU_HANG_H
#define TESTS_GPU_HANG_H

#include "tests/gpu.h"

#define HANG_MS 60000 /* the kernel's own end, if nothing else helps */

struct hang {
	struct CUstream_st *stream;
	volatile uint32_t *go; /* page-locked; not 0: the kernel ends */
};

static inline void hang_begin(const struct hang *hang, struct CUstream_st *stream)
{
	struct ws_error error = {0};
	ck_ok(spin_launch(hang->go, HANG_MS, stream, &error), error);
}

/* The kernel has run once then: the first launch of one may wait for the GPU. */
static inline void hang_open(struct hang *hang)
{
	struct ws_error error = {0};
	void *go;
	ck_ok(cuda_stream_open(0, &hang->stream, &error), error);
	ck_ok(cuda_pinned_alloc(sizeof(*hang->go), &go, &error), error);
	hang->go = go;
	*hang->go = 1;
	hang_begin(hang, hang->stream);
	ck_ok(cuda_stream_settle(hang->stream, 0, &error), error);
	*hang->go = 0;
}

#endif
