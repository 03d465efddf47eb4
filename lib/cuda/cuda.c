/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ws_memory_alloc and ws_memory_free.  Host memory is a shared mapping of a memfd rather than
 * malloc, so that a peer process on this host can map the same pages.
 */
#include "lib/cuda/cuda.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Below it a huge page would mostly be waste. */
#define HUGE_BYTES_MIN ((size_t)4 << 20)

bool cuda_built_in(void)
{
	return false;
}

static int host_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	if (bytes > PTRDIFF_MAX - page_bytes)
		return ws_fail(err, -ENOMEM, "%zu bytes are more than an address space holds",
			       bytes);
	size_t rounded = (bytes + (bytes == 0) + page_bytes - 1) & ~(page_bytes - 1);
	int fd = memfd_create("weightsync", MFD_CLOEXEC);
	if (fd < 0)
		return ws_fail(err, errno == EMFILE || errno == ENFILE ? -ENOSPC : -ENOMEM,
			       "cannot make a memory file of %zu bytes: %s", rounded,
			       strerror(errno));
	if (ftruncate(fd, (off_t)rounded) != 0) {
		int error = errno;
		close(fd);
		return ws_fail(err, -ENOMEM, "cannot get %zu bytes of shared memory: %s", rounded,
			       strerror(error));
	}
	void *base = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int error = errno;
	/* The mapping keeps the file alive. */
	close(fd);
	if (base == MAP_FAILED)
		return ws_fail(err, -ENOMEM, "cannot map %zu bytes of shared memory: %s", rounded,
			       strerror(error));
	/* A hint: where the kernel has no huge pages for shared memory, small ones do. */
	if (rounded >= HUGE_BYTES_MIN)
		madvise(base, rounded, MADV_HUGEPAGE);
	memory->base = base;
	memory->bytes = rounded;
	return 0;
}

int ws_memory_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	memory->base = NULL;
	memory->bytes = 0;
	switch (memory->place) {
	case WS_HOST:
		return host_alloc(memory, bytes, err);
	case WS_CUDA:
		return ws_fail(err, -ENOTSUP,
			       "no memory on GPU %d: CUDA is not built in, use host memory",
			       memory->device);
	}
	return ws_fail(err, -EINVAL, "memory place %d is unknown", (int)memory->place);
}

void ws_memory_free(struct ws_memory *memory)
{
	if (memory == NULL)
		return;
	if (memory->base != NULL && memory->place == WS_HOST)
		munmap(memory->base, memory->bytes);
	*memory = (struct ws_memory){0};
}
