/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL as a baseline: loaded when it is asked for, so nothing of it is needed to build.  Two
 * processes, a GPU each; rank 0 broadcasts.
 */
#ifndef NCCL_H
#define NCCL_H

#include "lib/cuda/cuda.h"

#define NCCL_ID_BYTES 128

struct nccl_id {
	char bytes[NCCL_ID_BYTES]; /* as ncclUniqueId, which travels to the other process */
};

struct nccl;

/* path: of libnccl.so.2, or NULL for the loader's.  -ENOENT where it isn't. */
int nccl_load(struct nccl **nccl_out, const char *path, struct ws_error *err);
int nccl_id_make(const struct nccl *nccl, struct nccl_id *id_out, struct ws_error *err);
/* Blocks until both ranks call it.  -ETIMEDOUT: the other one didn't; *nccl is NULL then, for good
 * in the hands of a thread that hangs in it. */
int nccl_join(struct nccl **nccl, const struct nccl_id *id, int rank, int device, uint32_t wait_ms,
	      struct ws_error *err);
/* Queued on the stream; the same memory at both ends of rank 0. */
int nccl_broadcast(const struct nccl *nccl, void *memory, size_t bytes, struct CUstream_st *stream,
		   struct ws_error *err);
/* NULL too. */
void nccl_close(struct nccl *nccl);

#endif
