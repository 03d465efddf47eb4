/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's few functions, found by name in its library (NCCL 2: nccl.h says what they take).
 */
#include "bench/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "lib/base/base.h"

#define NCCL_UINT8 1 /* ncclUint8 */
#define RANKS	   2

struct nccl {
	void *library; /* owned */
	void *comm;    /* owned */
	int (*get_unique_id)(struct nccl_id *id);
	int (*comm_init_rank)(void **comm, int ranks, struct nccl_id id, int rank);
	int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm,
			 struct CUstream_st *stream);
	int (*comm_destroy)(void *comm);
	const char *(*get_error_string)(int result);
	/* What the joining thread is given, and its answer. */
	struct nccl_id id;
	int rank, device, rc;
	struct ws_error error;
};

static int nccl_fail(const struct nccl *nccl, int result, const char *doing, struct ws_error *err)
{
	return ws_fail(err, -EIO, "NCCL cannot %s: %s", doing, nccl->get_error_string(result));
}

/* A function pointer has another type than dlsym's answer: it is stored as one. */
static bool find(const struct nccl *nccl, const char *name, void *function_out)
{
	void *function = dlsym(nccl->library, name);

	*(void **)function_out = function;
	return function != NULL;
}

int nccl_load(struct nccl **nccl_out, const char *path, struct ws_error *err)
{
	struct nccl *nccl = mem_alloc(sizeof(*nccl));

	*nccl_out = NULL;
	if (nccl == NULL)
		return ws_fail(err, -ENOMEM, "no memory for NCCL's functions");
	nccl->library = dlopen(path != NULL ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	if (nccl->library == NULL) {
		ws_fail(err, -ENOENT, "NCCL isn't here: %s; name its libnccl.so.2 by --nccl",
			dlerror());
		nccl_close(nccl);
		return -ENOENT;
	}
	if (!find(nccl, "ncclGetUniqueId", &nccl->get_unique_id) ||
	    !find(nccl, "ncclCommInitRank", &nccl->comm_init_rank) ||
	    !find(nccl, "ncclBroadcast", &nccl->broadcast) ||
	    !find(nccl, "ncclCommDestroy", &nccl->comm_destroy) ||
	    !find(nccl, "ncclGetErrorString", &nccl->get_error_string)) {
		nccl_close(nccl);
		return ws_fail(err, -ENOENT, "'%s' lacks functions of NCCL 2",
			       path != NULL ? path : "libnccl.so.2");
	}
	*nccl_out = nccl;
	return 0;
}

int nccl_id_make(const struct nccl *nccl, struct nccl_id *id_out, struct ws_error *err)
{
	int result = nccl->get_unique_id(id_out);

	return result == 0 ? 0 : nccl_fail(nccl, result, "make an id", err);
}

static void *join(void *arg)
{
	struct nccl *nccl = arg;

	nccl->rc = cuda_use(nccl->device, &nccl->error);
	if (nccl->rc != 0)
		return NULL;
	int result = nccl->comm_init_rank(&nccl->comm, RANKS, nccl->id, nccl->rank);
	if (result != 0)
		nccl->rc = nccl_fail(nccl, result, "join two processes", &nccl->error);
	return NULL;
}

/* NCCL itself waits for ever for a rank that doesn't come. */
int nccl_join(struct nccl **nccl, const struct nccl_id *id, int rank, int device, uint32_t wait_ms,
	      struct ws_error *err)
{
	uint64_t until_ns = deadline_in_ms(wait_ms);
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
				       .tv_nsec = (long)(until_ns % 1000000000)};
	struct nccl *joining = *nccl;
	pthread_t thread;

	joining->id = *id;
	joining->rank = rank;
	joining->device = device;
	int rc = pthread_create(&thread, NULL, join, joining);
	if (rc != 0)
		return ws_fail(err, -rc, "cannot start a thread to join NCCL's ranks: %s",
			       strerror(rc));
	if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) != 0) {
		pthread_detach(thread);
		*nccl = NULL;
		return ws_fail(err, -ETIMEDOUT,
			       "NCCL's rank %d waited %u s for the other process in vain; measure "
			       "without it by --alone",
			       rank, wait_ms / 1000);
	}
	return joining->rc == 0 ? 0 : ws_fail(err, joining->rc, "%s", joining->error.text);
}

int nccl_broadcast(const struct nccl *nccl, void *memory, size_t bytes, struct CUstream_st *stream,
		   struct ws_error *err)
{
	int result = nccl->broadcast(memory, memory, bytes, NCCL_UINT8, 0, nccl->comm, stream);

	return result == 0 ? 0 : nccl_fail(nccl, result, "broadcast", err);
}

void nccl_close(struct nccl *nccl)
{
	if (nccl == NULL)
		return;
	if (nccl->comm != NULL)
		(void)nccl->comm_destroy(nccl->comm);
	if (nccl->library != NULL)
		dlclose(nccl->library);
	mem_free(nccl);
}
