/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA knows of an address, and how a GPU's memory is shared with a NIC (dma-buf) or with
 * another process (CUDA IPC).  The driver's own functions are asked for by name, so that nothing is
 * linked against a library which only machines with a GPU have.
 */
#include "lib/cuda/cuda.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(((struct cuda_share *)0)->handle),
	       "a share holds CUDA's handle");

/* ---------------------------------------------------------------- the current GPU */

/* A function of the driver as of this version of CUDA; NULL: it has none. */
static void *driver_function(const char *name, unsigned int version)
{
	enum cudaDriverEntryPointQueryResult found;
	void *function = NULL;

	if (cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found) !=
		    cudaSuccess ||
	    found != cudaDriverEntryPointSuccess)
		return NULL;
	return function;
}

/* Making a GPU current puts a context on it, of hundreds of MiB. */
static bool has_context(int device)
{
	PFN_cuDevicePrimaryCtxGetState_v7000 ask;
	unsigned int flags;
	int active = 0;

	*(void **)&ask = driver_function("cuDevicePrimaryCtxGetState", 7000);
	return ask == NULL || ask(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

void cuda_leave(int before)
{
	if (before >= 0 && has_context(before))
		(void)cudaSetDevice(before);
	/* What went wrong has been told: the next caller's error is to be its own. */
	(void)cudaGetLastError();
}

/* Makes a GPU the thread's current one until cuda_leave(before); not one that was given up. */
static cudaError_t gpu_enter(int device, int *before_out)
{
	if (cuda_is_given_up(device))
		return cudaErrorLaunchTimeout;
	cudaError_t error = cudaGetDevice(before_out);

	return error != cudaSuccess ? error : cudaSetDevice(device);
}

static int gpu_fail(int device, const char *what, cudaError_t error, struct ws_error *err)
{
	return ws_fail(err, -ENODEV, "GPU %d %s: CUDA says '%s'", device, what,
		       cudaGetErrorString(error));
}

/* ---------------------------------------------------------------- what NICs wrote */

int cuda_flush_wanted(int device, bool *wanted_out, struct ws_error *err)
{
	int ordering = 0, options = 0;

	*wanted_out = false;
	cudaError_t error =
		cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, device);
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions,
					       device);
	if (error != cudaSuccess) {
		(void)cudaGetLastError();
		return gpu_fail(device, "doesn't say how it orders what NICs write", error, err);
	}
	*wanted_out = ordering < (int)cudaGPUDirectRDMAWritesOrderingOwner;
	if (*wanted_out && (options & (int)cudaFlushGPUDirectRDMAWritesOptionHost) == 0)
		return ws_fail(err, -ENOTSUP,
			       "GPU %d neither orders what NICs write into it nor can be told to; "
			       "use host memory for what NICs write",
			       device);
	return 0;
}

int cuda_flush(int device, struct ws_error *err)
{
	int before;
	cudaError_t error = gpu_enter(device, &before);

	if (error == cudaSuccess) {
		error = cudaDeviceFlushGPUDirectRDMAWrites(
			cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
			cudaFlushGPUDirectRDMAWritesToOwner);
		cuda_leave(before);
	}
	return error == cudaSuccess ? 0
				    : gpu_fail(device, "can't flush what NICs wrote", error, err);
}

/* ---------------------------------------------------------------- what an address is */

static bool pointer_says(CUpointer_attribute attribute, const void *at, void *value_out)
{
	PFN_cuPointerGetAttribute_v4000 ask;

	*(void **)&ask = driver_function("cuPointerGetAttribute", 4000);
	return ask != NULL && ask(value_out, attribute, (CUdeviceptr)(uintptr_t)at) == CUDA_SUCCESS;
}

static enum cuda_kind device_kind(const void *at)
{
	CUmemoryPool pool = NULL;
	unsigned int plain = 0;

	if (pointer_says(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at, &pool) && pool != NULL)
		return CUDA_POOLED;
	if (pointer_says(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at, &plain) && plain != 0)
		return CUDA_PLAIN;
	return CUDA_VMM;
}

struct cuda_range cuda_range_of(const void *at)
{
	struct cuda_range range = {.device = -1};
	struct cudaPointerAttributes attributes;
	CUdeviceptr base = 0;

	if (cudaPointerGetAttributes(&attributes, at) != cudaSuccess) {
		(void)cudaGetLastError();
		return range;
	}
	switch (attributes.type) {
	case cudaMemoryTypeUnregistered:
		return range;
	case cudaMemoryTypeHost:
		range.kind = CUDA_PINNED;
		break;
	case cudaMemoryTypeDevice:
		range.kind = device_kind(at);
		range.device = attributes.device;
		break;
	case cudaMemoryTypeManaged:
		range.kind = CUDA_MANAGED;
		break;
	}
	if (pointer_says(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at, &base) &&
	    pointer_says(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at, &range.bytes))
		range.base = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
	return range;
}

static int device_check(const struct ws_memory *memory, const struct cuda_range *range,
			struct ws_error *err)
{
	if (range->device == memory->device)
		return 0;
	return ws_fail(err, -EINVAL, "%zu bytes at %p are said to be GPU %d's, but they are %s%s",
		       memory->bytes, memory->base, memory->device,
		       range->device >= 0 ? "another GPU's: " : "", cuda_kind_name(range->kind));
}

int cuda_memory_check(const struct ws_memory *memory, struct ws_error *err)
{
	const uint8_t *last = (const uint8_t *)memory->base + memory->bytes - 1;
	const struct cuda_range ends[2] = {cuda_range_of(memory->base), cuda_range_of(last)};

	int rc = device_check(memory, &ends[0], err);
	return rc != 0 ? rc : device_check(memory, &ends[1], err);
}

static int allocation_check(const struct ws_memory *memory, const struct cuda_range *range,
			    struct ws_error *err)
{
	if (cuda_range_has(range, memory->base, memory->bytes))
		return 0;
	return ws_fail(err, -EINVAL, "%zu bytes at %p of GPU %d aren't inside one allocation",
		       memory->bytes, memory->base, memory->device);
}

/* ---------------------------------------------------------------- for NICs */

int cuda_dmabuf_open(const struct ws_memory *memory, int *fd_out, uint64_t *offset_out,
		     struct ws_error *err)
{
	const struct cuda_range range = cuda_range_of(memory->base);
	PFN_cuMemGetHandleForAddressRange_v11070 handle_of;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t at = (uint64_t)(uintptr_t)memory->base, begin = at / page * page;
	uint64_t end = (at + memory->bytes + page - 1) / page * page;
	int before;

	*fd_out = -1;
	*offset_out = at - begin;
	int rc = cuda_memory_check(memory, err);
	if (rc == 0 && range.kind != CUDA_VMM)
		rc = allocation_check(memory, &range, err);
	if (rc != 0)
		return rc;
	*(void **)&handle_of = driver_function("cuMemGetHandleForAddressRange", 11070);
	if (handle_of == NULL)
		return ws_fail(err, -ENOTSUP,
			       "GPU %d: the driver makes no dma-buf: it is older than CUDA 11.7",
			       memory->device);
	cudaError_t error = gpu_enter(memory->device, &before);
	if (error != cudaSuccess)
		return gpu_fail(memory->device, "can't be used", error, err);
	CUresult result = handle_of(fd_out, (CUdeviceptr)begin, end - begin,
				    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	cuda_leave(before);
	if (result != CUDA_SUCCESS) {
		*fd_out = -1;
		return ws_fail(err, -ENOTSUP,
			       "GPU %d: the driver makes no dma-buf of %zu bytes of %s (error %d); "
			       "it needs the open kernel modules and Linux 5.12",
			       memory->device, memory->bytes, cuda_kind_name(range.kind),
			       (int)result);
	}
	return 0;
}

/* ---------------------------------------------------------------- for other processes */

int cuda_share_make(const struct ws_memory *memory, struct cuda_share *share_out,
		    struct ws_error *err)
{
	const struct cuda_range range = cuda_range_of(memory->base);
	cudaIpcMemHandle_t handle;
	int before;

	*share_out = (struct cuda_share){0};
	int rc = device_check(memory, &range, err);
	if (rc != 0)
		return rc;
	if (range.kind != CUDA_PLAIN)
		return ws_fail(err, -ENOTSUP,
			       "%zu bytes at %p of GPU %d are %s, which other processes can't map; "
			       "allocate by cudaMalloc (PyTorch: expandable_segments:False), or "
			       "receive into weightsync's own buffers instead of in place",
			       memory->bytes, memory->base, memory->device,
			       cuda_kind_name(range.kind));
	rc = allocation_check(memory, &range, err);
	if (rc != 0)
		return rc;
	cudaError_t error = gpu_enter(memory->device, &before);
	if (error == cudaSuccess) {
		error = cudaIpcGetMemHandle(&handle, range.base);
		cuda_leave(before);
	}
	if (error != cudaSuccess)
		return gpu_fail(memory->device, "can't share its memory", error, err);
	memcpy(share_out->handle, &handle, sizeof(handle));
	share_out->offset = (uint64_t)((uintptr_t)memory->base - (uintptr_t)range.base);
	share_out->bytes = memory->bytes;
	share_out->gpu = cuda_gpu_id(memory->device);
	return 0;
}

uint64_t cuda_gpu_id(int device)
{
	int domain, bus, slot;

	if (cudaDeviceGetAttribute(&domain, cudaDevAttrPciDomainId, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&slot, cudaDevAttrPciDeviceId, device) != cudaSuccess) {
		(void)cudaGetLastError();
		return 0;
	}
	return UINT64_C(1) << 63 | (uint64_t)domain << 32 | (uint64_t)bus << 16 | (uint64_t)slot;
}

static int open_code(cudaError_t error)
{
	if (error == cudaErrorPeerAccessUnsupported || error == cudaErrorMapBufferObjectFailed)
		return -EACCES;
	/* What CUDA answers to a process that opens its own handle. */
	return error == cudaErrorDeviceUninitialized ? -EINVAL : -ENOENT;
}

int cuda_share_open(const struct cuda_share *share, int device, void **base_out,
		    struct ws_error *err)
{
	cudaIpcMemHandle_t handle;
	void *base = NULL;
	int before;

	*base_out = NULL;
	memcpy(&handle, share->handle, sizeof(handle));
	cudaError_t error = gpu_enter(device, &before);
	if (error != cudaSuccess)
		return gpu_fail(device, "can't be used", error, err);
	error = cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
	cuda_leave(before);
	if (error != cudaSuccess)
		return ws_fail(err, open_code(error),
			       "GPU %d can't map %" PRIu64
			       " bytes of another process's GPU: CUDA says '%s'",
			       device, share->bytes, cudaGetErrorString(error));
	*base_out = (uint8_t *)base + share->offset;
	return 0;
}

int cuda_reach(int device, const void *at, struct ws_error *err)
{
	int there = cuda_range_of(at).device, before;

	if (there < 0)
		return ws_fail(err, -ENOENT, "no GPU of this process has memory at %p", at);
	if (there == device)
		return 0;
	cudaError_t error = gpu_enter(device, &before);
	if (error == cudaSuccess) {
		error = cudaDeviceEnablePeerAccess(there, 0);
		cuda_leave(before);
	}
	if (error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled)
		return 0;
	return ws_fail(err, -EACCES, "GPU %d can't reach the memory of GPU %d: CUDA says '%s'",
		       device, there, cudaGetErrorString(error));
}

void cuda_share_close(const struct cuda_share *share, int device, void *base)
{
	int before;

	if (base == NULL || gpu_enter(device, &before) != cudaSuccess)
		return;
	(void)cudaIpcCloseMemHandle((uint8_t *)base - share->offset);
	cuda_leave(before);
}
