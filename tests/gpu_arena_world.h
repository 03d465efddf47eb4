/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the host and a GPU have once each, at the same offsets, and a batch of moves on it.
 */
#ifndef GPU_ARENA_WORLD_H
#define GPU_ARENA_WORLD_H

#include "lib/convert/device.h"
#include "tests/convert_world.h"
#include "tests/gpu.h"

struct gpu_arena {
	uint8_t *host, *gpu, *back; /* owned; back: the GPU's after the batch */
	size_t used;
	struct device_batch *batch;
	struct CUstream_st *stream;
};

/* Under compute-sanitizer (WS_GPU_FEW), where all takes long: fewer of the same. */
bool arena_is_watched(void);

void arena_open(struct gpu_arena *arena, uint32_t move_max);
void arena_close(struct gpu_arena *arena);

/* A copy in the arena, whose address is this much more than a multiple of 16; returns the offset.
 */
size_t arena_put(struct gpu_arena *arena, const void *bytes, size_t count, size_t odd);
void arena_upload(struct gpu_arena *arena);
void arena_add(struct gpu_arena *arena, const struct move *move);
/* Carries out all that was added, and forgets it. */
void arena_run(struct gpu_arena *arena);
void arena_download(struct gpu_arena *arena);
/* The bytes that came back from an offset on are these. */
void arena_compare(const struct gpu_arena *arena, size_t at, const void *want, size_t count,
		   const char *what, uint64_t seed);

#endif
