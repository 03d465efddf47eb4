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
/*
 * Work on a thread of its own, since NCCL waits for the other rank without an end: until it is
 * done, the other process has gone (peer is a socket to it), or time is over.  Then NCCL is told to
 * give up, and is good for nothing any more; what still hangs in it afterwards is left behind, with
 * what it works on (nccl_hangs): free none of that, but end the process.
 */
int nccl_do(struct nccl *nccl, int (*work)(void *arg, struct ws_error *err), void *arg, int peer,
	    uint32_t wait_ms, struct ws_error *err);
bool nccl_hangs(const struct nccl *nccl); /* NULL, too */

/* Until both ranks are there: on the thread of nccl_do. */
int nccl_join(struct nccl *nccl, const struct nccl_id *id, int rank, struct ws_error *err);
/* Queued on the stream, or waits until it can be; the same memory at both ends of rank 0. */
int nccl_broadcast(const struct nccl *nccl, void *memory, size_t bytes, struct CUstream_st *stream,
		   struct ws_error *err);
/* NULL too; not for one that hangs. */
void nccl_close(struct nccl *nccl);

#endif
