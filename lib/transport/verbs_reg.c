/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that an RDMA device reaches: host memory by pinning it, a GPU's as a dma-buf, or, where
 * the kernel has nvidia_peermem, like host memory.  Pinned pages count against RLIMIT_MEMLOCK,
 * which is looked at first: the kernel says only that there is no memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/cuda/cuda.h"
#include "lib/transport/verbs.h"

/*
 * A device without relaxed ordering ignores it: it is an optional flag.  The completion of a write
 * still comes after its bytes.  A source is pinned for writing, too, though no NIC does: else a
 * page that its process writes to later could become another one behind the NIC's back.
 */
static unsigned int access_of(enum mr_use use)
{
	unsigned int mine = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;

	return use == MR_TARGET ? mine | IBV_ACCESS_REMOTE_WRITE : mine;
}

#define CAP_IPC_LOCK_BIT 14

/* A line of /proc/self/status: "VmPin:	       8 kB", "CapEff:	000001ffffffffff". */
static uint64_t status_number(const char *status, const char *key, int base)
{
	const char *line = strstr(status, key);

	return line != NULL ? strtoull(line + strlen(key), NULL, base) : 0;
}

struct allowance {
	bool unlimited; /* by limit or by capability */
	uint64_t limit_bytes, pinned_bytes;
};

static struct allowance allowance_read(void)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
	struct allowance allowance = {0};
	void *status;
	size_t count;

	getrlimit(RLIMIT_MEMLOCK, &limit);
	allowance.limit_bytes = limit.rlim_cur;
	allowance.unlimited = limit.rlim_cur == RLIM_INFINITY;
	if (file_read("/proc/self/status", 1 << 16, &status, &count, NULL) != 0)
		return allowance;
	allowance.pinned_bytes = 1024 * status_number(status, "\nVmPin:", 10);
	if ((status_number(status, "\nCapEff:", 16) >> CAP_IPC_LOCK_BIT & 1) != 0)
		allowance.unlimited = true;
	mem_free(status);
	return allowance;
}

static int memlock_fail(const struct nic *nic, uint64_t bytes, const struct allowance *allowance,
			struct ws_error *err)
{
	return ws_fail(
		err, -ENOSPC,
		"%s can't pin %llu bytes: this process has pinned %llu and may pin %llu; raise "
		"`ulimit -l` (memlock) or run with CAP_IPC_LOCK",
		nic->name, (unsigned long long)bytes, (unsigned long long)allowance->pinned_bytes,
		(unsigned long long)allowance->limit_bytes);
}

static int host_reg(struct verbs *verbs, const struct ws_memory *memory, unsigned int access,
		    struct ibv_mr **mr_out, struct ws_error *err)
{
	const struct allowance allowance = allowance_read();
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t first = (uint64_t)(uintptr_t)memory->base & ~(page - 1);
	uint64_t pinned = align_up((uint64_t)(uintptr_t)memory->base + memory->bytes - first, page);

	if (!allowance.unlimited && allowance.pinned_bytes + pinned > allowance.limit_bytes)
		return memlock_fail(&verbs->nic, pinned, &allowance, err);
	*mr_out = ibv_reg_mr(verbs->pd, memory->base, memory->bytes, access);
	if (*mr_out != NULL)
		return 0;
	/* In a user namespace the capability may be worth nothing. */
	if (errno == ENOMEM && allowance.limit_bytes < allowance.pinned_bytes + pinned)
		return memlock_fail(&verbs->nic, pinned, &allowance, err);
	return ws_fail(err, errno == ENOMEM ? -ENOSPC : -EINVAL, "%s can't register %zu bytes: %s",
		       verbs->nic.name, memory->bytes, strerror(errno));
}

/* As a dma-buf where CUDA and the kernel can, else by nvidia_peermem. */
static int gpu_reg(struct verbs *verbs, const struct ws_memory *memory, unsigned int access,
		   struct ibv_mr **mr_out, const char **path_out, struct ws_error *err)
{
	uint64_t offset;
	int fd;

	int rc = cuda_dmabuf_open(memory, &fd, &offset, err);
	if (rc == 0) {
		*mr_out = ibv_reg_dmabuf_mr(verbs->pd, offset, memory->bytes,
					    (uint64_t)(uintptr_t)memory->base, fd, (int)access);
		int error = errno;
		close(fd); /* the registration holds the buffer */
		*path_out = "dma-buf";
		if (*mr_out != NULL)
			return 0;
		ws_fail(err, -ENOTSUP, "%s", strerror(error));
	}
	if (!cuda_built_in())
		return rc;
	*mr_out = ibv_reg_mr(verbs->pd, memory->base, memory->bytes, access);
	*path_out = "peermem";
	if (*mr_out != NULL)
		return 0;
	return ws_fail_in(
		err, -ENOTSUP,
		"%s can't register %zu bytes of GPU %d, neither by nvidia_peermem (%s; is "
		"the module loaded?) nor as a dma-buf",
		verbs->nic.name, memory->bytes, memory->device, strerror(errno));
}

int verbs_reg(struct nic *nic, const struct ws_memory *memory, enum mr_use use, struct mr *mr,
	      struct ws_error *err)
{
	struct verbs *verbs = verbs_of(nic);
	const char *path = "host";

	memset(mr, 0, sizeof(*mr));
	if (memory->base == NULL || memory->bytes == 0)
		return ws_fail(err, -EINVAL, "cannot register 0 bytes on %s", nic->name);
	struct verbs_mr *own = mem_alloc(sizeof(*own));
	if (own == NULL)
		return ws_fail(err, -ENOMEM, "no memory for one more registration on %s",
			       nic->name);
	int rc = memory->place == WS_HOST
			 ? host_reg(verbs, memory, access_of(use), &own->mr, err)
			 : gpu_reg(verbs, memory, access_of(use), &own->mr, &path, err);
	if (rc != 0) {
		mem_free(own);
		return rc;
	}
	own->next = verbs->mrs;
	if (own->next != NULL)
		own->next->previous = own;
	verbs->mrs = own;
	mr->memory = *memory;
	mr->key = use == MR_TARGET ? own->mr->rkey ^ (uint32_t)verbs->options.key : 0;
	mr->base = (uint64_t)(uintptr_t)memory->base + (uint64_t)verbs->options.past;
	mr->local = own;
	mr->path = path;
	return 0;
}

void verbs_dereg(struct nic *nic, struct mr *mr)
{
	struct verbs *verbs = verbs_of(nic);
	struct verbs_mr *own = mr->local;

	if (own != NULL) {
		if (own->previous != NULL)
			own->previous->next = own->next;
		else
			verbs->mrs = own->next;
		if (own->next != NULL)
			own->next->previous = own->previous;
		ibv_dereg_mr(own->mr);
		mem_free(own);
	}
	memset(mr, 0, sizeof(*mr));
}
