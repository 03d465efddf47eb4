/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ws_memory_alloc and ws_memory_free: the host's memory or a GPU's.
 */
#include "lib/cuda/cuda.h"

#include <errno.h>

#define PAGE_BYTES 4096

int cuda_dmabuf_open(const struct ws_memory *memory, int *fd_out, uint64_t *offset_out,
		     struct ws_error *err)
{
	*fd_out = -1;
	*offset_out = 0;
	return ws_fail(err, -ENOTSUP,
		       "memory on GPU %d can't be reached as a dma-buf: that is not built in",
		       memory->device);
}

void ws_memory_free(struct ws_memory *memory)
{
	if (memory == NULL)
		return;
	if (memory->base != NULL && memory->place == WS_HOST)
		host_free(memory);
	if (memory->base != NULL && memory->place == WS_CUDA)
		cuda_free(memory->device, memory->base);
	*memory = (struct ws_memory){0};
}

static int device_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	size_t whole = (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);

	if (whole < bytes)
		return ws_fail(err, -ENOMEM, "no %zu bytes on GPU %d", bytes, memory->device);
	int rc = cuda_alloc(memory->device, whole, &memory->base, err);
	if (rc != 0)
		return rc;
	memory->bytes = whole;
	rc = cuda_fill(memory->base, 0, whole, NULL, err);
	if (rc == 0)
		rc = cuda_stream_wait(NULL, err);
	if (rc != 0)
		ws_memory_free(memory);
	return rc;
}

int ws_memory_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	memory->base = NULL;
	memory->bytes = 0;
	switch (memory->place) {
	case WS_HOST:
		return host_alloc(memory, bytes, err);
	case WS_CUDA:
		return device_alloc(memory, bytes, err);
	}
	return ws_fail(err, -EINVAL, "memory place %d is unknown", (int)memory->place);
}
