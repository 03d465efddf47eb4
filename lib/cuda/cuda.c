/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ws_memory_alloc and ws_memory_free: the host's memory or a GPU's.
 */
#include "lib/cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PAGE_BYTES 4096

static void device_free(const struct ws_memory *memory)
{
	int before = cuda_current();

	cuda_free(memory->device, memory->base);
	cuda_leave(before);
}

void ws_memory_free(struct ws_memory *memory)
{
	if (memory == NULL)
		return;
	if (memory->base != NULL && memory->place == WS_HOST)
		host_free(memory);
	if (memory->base != NULL && memory->place == WS_CUDA)
		device_free(memory);
	*memory = (struct ws_memory){0};
}

static int device_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	size_t whole = (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);

	if (whole < bytes)
		return ws_fail(err, -ENOMEM, "no %zu bytes on GPU %d", bytes, memory->device);
	int before = cuda_current();
	int rc = cuda_alloc(memory->device, whole, &memory->base, err);
	if (rc == 0) {
		memory->bytes = whole;
		rc = cuda_fill(memory->base, 0, whole, NULL, err);
	}
	if (rc == 0)
		rc = cuda_stream_wait(NULL, err);
	if (rc != 0)
		ws_memory_free(memory);
	cuda_leave(before);
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

const char *cuda_kind_name(enum cuda_kind kind)
{
	switch (kind) {
	case CUDA_UNKNOWN:
		return "pageable host memory";
	case CUDA_PINNED:
		return "pinned host memory";
	case CUDA_PLAIN:
		return "memory of cudaMalloc";
	case CUDA_VMM:
		return "memory mapped piece by piece (VMM, expandable segments)";
	case CUDA_POOLED:
		return "memory of a pool (cudaMallocAsync)";
	case CUDA_MANAGED:
		return "managed memory";
	}
	return "memory of an unknown kind";
}

int memory_zero(const struct ws_memory *memory, uint64_t offset, uint64_t bytes,
		struct ws_error *err)
{
	uint8_t *at = (uint8_t *)memory->base + offset;
	int before = -1;

	if (memory->place == WS_HOST) {
		memset(at, 0, bytes);
		return 0;
	}
	before = cuda_current();
	int rc = cuda_use(memory->device, err);
	if (rc == 0)
		rc = cuda_fill(at, 0, bytes, NULL, err);
	if (rc == 0)
		rc = cuda_stream_wait(NULL, err);
	cuda_leave(before);
	return rc;
}

int memory_read(const struct ws_memory *memory, uint64_t offset, void *to, uint64_t bytes,
		struct ws_error *err)
{
	const uint8_t *at = (const uint8_t *)memory->base + offset;
	int before = -1;

	if (memory->place == WS_HOST) {
		memcpy(to, at, bytes);
		return 0;
	}
	before = cuda_current();
	int rc = cuda_use(memory->device, err);
	if (rc == 0)
		rc = cuda_copy(to, at, bytes, NULL, err);
	if (rc == 0)
		rc = cuda_stream_wait(NULL, err);
	cuda_leave(before);
	return rc;
}

const char *memory_place(const struct ws_memory *memory, char text_out[16])
{
	if (memory->place == WS_HOST)
		snprintf(text_out, 16, "the host");
	else
		snprintf(text_out, 16, "GPU %d", memory->device);
	return text_out;
}
