/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that weights live in, and the element types they have.
 */
#ifndef WS_MEMORY_H
#define WS_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "lib/ws_error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types, named as in safetensors headers. */
enum ws_dtype {
	WS_NONE = 0,
	WS_BOOL,
	WS_U8,
	WS_I8,
	WS_F8_E5M2,
	WS_F8_E4M3,
	WS_F8_E8M0,
	WS_U16,
	WS_I16,
	WS_F16,
	WS_BF16,
	WS_U32,
	WS_I32,
	WS_F32,
	WS_U64,
	WS_I64,
	WS_F64,
	WS_DTYPE_COUNT
};

/* Bytes of one element; 0 for WS_NONE. */
WS_API size_t ws_dtype_bytes(enum ws_dtype dtype);

/* "bf16", "f32", "f8e4m3", ...: the lower-case name that manifests use. */
WS_API const char *ws_dtype_name(enum ws_dtype dtype);

/* Reads a manifest's ("bf16") or a safetensors header's ("BF16") spelling; WS_NONE if unknown. */
WS_API enum ws_dtype ws_dtype_parse(const char *name);

enum ws_place { WS_HOST = 0, WS_CUDA };

/* A borrowed stretch of memory: the owner keeps it mapped, and page-locked if it is, while
 * weightsync has it registered. */
struct ws_memory {
	void *base;
	size_t bytes;
	enum ws_place place;
	int device; /* CUDA ordinal; 0 for host memory */
};

/*
 * Allocates zeroed memory that every transport can register: a shared memfd mapping for the
 * host (the first 256 keep a file descriptor each; later ones are slower to reach from other
 * processes of this host), cudaMalloc for a GPU.  place and device choose; bytes is rounded up to a
 * page, which on a GPU has 2 MiB from that size on.  (Who calls cudaMalloc himself should do so,
 * too: else other processes have the memory in small pages, and NVLink is 10 to 20 % slower.)
 * -ENOTSUP where CUDA isn't built in, -ENOMEM; -ETIMEDOUT on a GPU that didn't do in a minute what
 * this process gave it.  Not for the data path.
 */
WS_API int ws_memory_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err);

/* Frees what ws_memory_alloc made, but not on such a GPU, and zeroes *memory.  Harmless on zeroed
 * memory. */
WS_API void ws_memory_free(struct ws_memory *memory);

#ifdef __cplusplus
}
#endif

#endif
