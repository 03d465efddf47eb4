/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's few functions, found by name in its library (NCCL 2: nccl.h says what they take).
 */
#include "bench/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "lib/base/base.h"

#define NCCL_UINT8 1 /* ncclUint8 */
#define RANKS	   2
#define LOOK_MS	   20u
#define ABORT_MS   10000u /* how long what is told to give up may take */

struct nccl {
	void *library; /* owned */
	void *comm;    /* owned */
	int (*get_unique_id)(struct nccl_id *id);
	int (*comm_init_rank)(void **comm, int ranks, struct nccl_id id, int rank);
	int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm,
			 struct CUstream_st *stream);
	int (*comm_destroy)(void *comm);
	int (*comm_abort)(void *comm);
	const char *(*get_error_string)(int result);
	/* What the thread is given, and its answer. */
	int (*work)(void *arg, struct ws_error *err);
	void *arg;
	int rc;
	struct ws_error error;
	bool given_up, hangs;
};

static int nccl_fail(const struct nccl *nccl, int result, const char *doing, struct ws_error *err)
{
	return ws_fail(err, -EIO, "NCCL cannot %s: %s", doing, nccl->get_error_string(result));
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
	if (!library_find(nccl->library, "ncclGetUniqueId", &nccl->get_unique_id) ||
	    !library_find(nccl->library, "ncclCommInitRank", &nccl->comm_init_rank) ||
	    !library_find(nccl->library, "ncclBroadcast", &nccl->broadcast) ||
	    !library_find(nccl->library, "ncclCommDestroy", &nccl->comm_destroy) ||
	    !library_find(nccl->library, "ncclCommAbort", &nccl->comm_abort) ||
	    !library_find(nccl->library, "ncclGetErrorString", &nccl->get_error_string)) {
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

/* ---------------------------------------------------------------- a thread that may hang */

static void *work(void *arg)
{
	struct nccl *nccl = arg;

	nccl->rc = nccl->work(nccl->arg, &nccl->error);
	return NULL;
}

static bool has_gone(int peer)
{
	struct pollfd fd = {.fd = peer, .events = 0};

	return poll(&fd, 1, 0) == 1 && (fd.revents & (POLLHUP | POLLERR)) != 0;
}

/* True: the thread has ended, and is joined.  peer -1: only time counts. */
static bool thread_ends(pthread_t thread, int peer, uint64_t until_ns)
{
	while (clock_ns() < until_ns && !has_gone(peer)) {
		uint64_t look_ns = MIN(until_ns, deadline_in_ms(LOOK_MS));
		const struct timespec look = {.tv_sec = (time_t)(look_ns / 1000000000),
					      .tv_nsec = (long)(look_ns % 1000000000)};
		if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &look) == 0)
			return true;
	}
	return false;
}

int nccl_do(struct nccl *nccl, int (*what)(void *arg, struct ws_error *err), void *arg, int peer,
	    uint32_t wait_ms, struct ws_error *err)
{
	pthread_t thread;

	nccl->work = what;
	nccl->arg = arg;
	if (nccl->given_up)
		return ws_fail(err, -ECONNRESET, "NCCL was given up before");
	int rc = pthread_create(&thread, NULL, work, nccl);
	if (rc != 0)
		return ws_fail(err, -rc, "cannot start a thread for NCCL: %s", strerror(rc));
	if (thread_ends(thread, peer, deadline_in_ms(wait_ms)))
		return nccl->rc == 0 ? 0 : ws_fail(err, nccl->rc, "%s", nccl->error.text);
	rc = has_gone(peer)
		     ? ws_fail(err, -ECONNRESET,
			       "the other process of the bench has gone while NCCL waited for it")
		     : ws_fail(err, -ETIMEDOUT,
			       "NCCL waited %u s for the other process in vain; measure without "
			       "it by --alone",
			       wait_ms / 1000);
	nccl->given_up = true;
	if (nccl->comm != NULL)
		(void)nccl->comm_abort(nccl->comm);
	nccl->hangs = !thread_ends(thread, -1, deadline_in_ms(ABORT_MS));
	if (nccl->hangs)
		pthread_detach(thread);
	nccl->comm = NULL; /* abort has freed it */
	return rc;
}

bool nccl_hangs(const struct nccl *nccl)
{
	return nccl != NULL && nccl->hangs;
}

/* ---------------------------------------------------------------- NCCL's calls */

int nccl_join(struct nccl *nccl, const struct nccl_id *id, int rank, struct ws_error *err)
{
	int result = nccl->comm_init_rank(&nccl->comm, RANKS, *id, rank);

	return result == 0 ? 0 : nccl_fail(nccl, result, "join two processes", err);
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
