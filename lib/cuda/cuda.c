/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ws_memory_alloc and ws_memory_free: the host's memory or a GPU's.
 */
#include "lib/cuda/cuda.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PAGE_BYTES     ((size_t)4096)
#define GPU_PAGE_BYTES ((size_t)2 << 20)
#define SPIN_US	       100
#define GPUS_MAX       64 /* bits of given_up */

static _Atomic uint32_t stuck_ms = CUDA_STUCK_MS;
static _Atomic uint64_t given_up;

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

uint64_t cuda_stuck_ns(void)
{
	return atomic_load_explicit(&stuck_ms, memory_order_relaxed) * UINT64_C(1000000);
}

void cuda_stuck_after(uint32_t ms)
{
	atomic_store(&stuck_ms, ms);
}

int cuda_stuck(int device, struct ws_error *err)
{
	atomic_fetch_or(&given_up, UINT64_C(1) << device % GPUS_MAX);
	return ws_fail(
		err, -ETIMEDOUT,
		"GPU %d hasn't done in %g s what it was given: it is stuck, or others keep it busy; "
		"it is given up with all its memory: start this process again",
		device, (double)cuda_stuck_ns() / 1e9);
}

bool cuda_is_given_up(int device)
{
	uint64_t all = atomic_load_explicit(&given_up, memory_order_relaxed);

	return device < 0 ? all != 0 : (all >> device % GPUS_MAX & 1) != 0;
}

/* lib/base stands on the same floor, and so does its clock. */
static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Between two looks: sleeps only where it takes long. */
static void pause_after(uint64_t ns)
{
	const struct timespec pause = {.tv_nsec = SPIN_US * 1000};

	if (ns < SPIN_US * 1000)
		sched_yield();
	else
		nanosleep(&pause, NULL);
}

/* The clock is read before each look: this process may be stopped meanwhile. */
int cuda_event_settle(struct CUevent_st *event, int device, struct ws_error *err)
{
	uint64_t begin = now_ns(), ns = 0;

	for (;; pause_after(ns)) {
		ns = now_ns() - begin;
		int rc = cuda_event_done(event, err);
		if (rc != -EAGAIN)
			return rc;
		if (ns >= cuda_stuck_ns() || cuda_is_given_up(device))
			return cuda_stuck(device, err);
	}
}

int cuda_stream_settle(struct CUstream_st *stream, int device, struct ws_error *err)
{
	struct CUevent_st *event;

	int rc = cuda_event_open(device, false, &event, err);
	if (rc == 0)
		rc = cuda_event_record(event, stream, err);
	if (rc == 0)
		rc = cuda_event_settle(event, device, err);
	cuda_event_close(event);
	return rc;
}

/* On a stream of its own, which waits for nothing that the process computes.  from NULL: zeroes. */
static int gpu_copy(int device, void *to, const void *from, uint64_t bytes, struct ws_error *err)
{
	struct CUstream_st *stream = NULL;
	int before = cuda_current();

	int rc = cuda_stream_open(device, &stream, err);
	if (rc == 0 && from == NULL)
		rc = cuda_fill(to, 0, bytes, stream, err);
	else if (rc == 0)
		rc = cuda_copy(to, from, bytes, stream, err);
	if (rc == 0)
		rc = cuda_stream_settle(stream, device, err);
	cuda_stream_close(stream);
	cuda_leave(before);
	return rc;
}

int memory_zero(const struct ws_memory *memory, uint64_t offset, uint64_t bytes,
		struct ws_error *err)
{
	uint8_t *at = (uint8_t *)memory->base + offset;

	if (memory->place == WS_CUDA)
		return gpu_copy(memory->device, at, NULL, bytes, err);
	memset(at, 0, bytes);
	return 0;
}

int memory_read(const struct ws_memory *memory, uint64_t offset, void *to, uint64_t bytes,
		struct ws_error *err)
{
	const uint8_t *at = (const uint8_t *)memory->base + offset;

	if (memory->place == WS_CUDA)
		return gpu_copy(memory->device, to, at, bytes, err);
	memcpy(to, at, bytes);
	return 0;
}

static int device_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	/* From 2 MiB on so that another process that maps it has it in large pages, too: in others
	 * a copy engine writes 305 to 350 GB/s over NVLink instead of 394 (bench/README.md). */
	size_t page = bytes < GPU_PAGE_BYTES ? PAGE_BYTES : GPU_PAGE_BYTES;
	size_t whole = (bytes + page - 1) & ~(page - 1);

	if (whole < bytes)
		return ws_fail(err, -ENOMEM, "no %zu bytes on GPU %d", bytes, memory->device);
	int before = cuda_current();
	int rc = cuda_alloc(memory->device, whole, &memory->base, err);
	if (rc == 0) {
		memory->bytes = whole;
		rc = memory_zero(memory, 0, whole, err);
	}
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

const char *memory_place(const struct ws_memory *memory, char text_out[16])
{
	if (memory->place == WS_HOST)
		snprintf(text_out, 16, "the host");
	else
		snprintf(text_out, 16, "GPU %d", memory->device);
	return text_out;
}
