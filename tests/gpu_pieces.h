/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory that is mapped piece by piece, as PyTorch's expandable segments and the allocators of
 * engines that sleep have it: one range of addresses over many allocations.  By the driver's own
 * functions; their types are cuda.h's, which a build without nvcc hasn't.
 */
#ifndef TESTS_GPU_PIECES_H
#define TESTS_GPU_PIECES_H

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "tests/test.h"

#define PIECE_BYTES ((size_t)2 << 20)

/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc. */
struct gpu_location {
	int type; /* 1: a GPU */
	int device;
};

struct gpu_allocation {
	int type; /* 1: pinned */
	int handle_types;
	struct gpu_location location;
	void *win32;
	uint8_t flags[8];
};

struct gpu_access {
	struct gpu_location location;
	int flags; /* 3: read and write */
};

/* bytes is a multiple of PIECE_BYTES.  A context of the GPU must be current.  Stays until the
 * process ends. */
static inline void *gpu_pieces_make(int device, size_t bytes)
{
	int (*reserve)(uint64_t * at, size_t bytes, size_t align, uint64_t wish, uint64_t flags);
	int (*create)(uint64_t * handle, size_t bytes, const struct gpu_allocation *wanted,
		      uint64_t flags);
	int (*map)(uint64_t at, size_t bytes, size_t offset, uint64_t handle, uint64_t flags);
	int (*allow)(uint64_t at, size_t bytes, const struct gpu_access *access, size_t count);
	const struct gpu_location location = {1, device};
	const struct gpu_allocation wanted = {.type = 1, .location = location};
	const struct gpu_access access = {location, 3};
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	uint64_t at = 0;

	ck_assert_ptr_nonnull(driver);
	*(void **)&reserve = dlsym(driver, "cuMemAddressReserve");
	*(void **)&create = dlsym(driver, "cuMemCreate");
	*(void **)&map = dlsym(driver, "cuMemMap");
	*(void **)&allow = dlsym(driver, "cuMemSetAccess");
	ck_assert_int_eq(reserve(&at, bytes, PIECE_BYTES, 0, 0), 0);
	for (size_t done = 0; done < bytes; done += PIECE_BYTES) {
		uint64_t handle = 0;
		ck_assert_int_eq(create(&handle, PIECE_BYTES, &wanted, 0), 0);
		ck_assert_int_eq(map(at + done, PIECE_BYTES, 0, handle, 0), 0);
	}
	ck_assert_int_eq(allow(at, bytes, &access, 1), 0);
	return (void *)(uintptr_t)at; /* NOLINT(performance-no-int-to-ptr) */
}

#endif
