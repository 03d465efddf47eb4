/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu_arena_world.h. */
#include "tests/gpu_arena_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)256 << 20)
#define WAIT_NS	    (UINT64_C(60) * 1000000000)

static struct ws_error error;

bool arena_is_watched(void)
{
	return getenv("WS_GPU_FEW") != NULL;
}

void arena_open(struct gpu_arena *arena, uint32_t move_max)
{
	void *gpu = NULL;
	ck_ok(cuda_alloc(0, ARENA_BYTES, &gpu, &error), error);
	ck_ok(cuda_stream_open(0, &arena->stream, &error), error);
	ck_ok(device_batch_open(&arena->batch, 0, move_max, &error), error);
	arena->host = mem_alloc(ARENA_BYTES);
	arena->back = mem_alloc(ARENA_BYTES);
	ck_assert(arena->host != NULL && arena->back != NULL);
	arena->gpu = gpu;
	arena->used = 0;
}

void arena_close(struct gpu_arena *arena)
{
	device_batch_close(arena->batch);
	cuda_stream_close(arena->stream);
	cuda_free(0, arena->gpu);
	mem_free(arena->host);
	mem_free(arena->back);
}

/* A copy in the arena, whose address is this much more than a multiple of 16; returns the offset.
 */
size_t arena_put(struct gpu_arena *arena, const void *bytes, size_t count, size_t odd)
{
	size_t at = align_up(arena->used, 16) + odd;
	must(at + count <= ARENA_BYTES, "the arena is full");
	memcpy(arena->host + at, bytes, count);
	arena->used = at + count;
	return at;
}

void arena_upload(struct gpu_arena *arena)
{
	gpu_put(arena->gpu, arena->host, arena->used);
}

void arena_run(struct gpu_arena *arena)
{
	uint64_t end_ns = clock_ns() + WAIT_NS;
	int rc;
	ck_ok(device_batch_launch(arena->batch, arena->stream, &error), error);
	while ((rc = device_batch_done(arena->batch, &error)) == -EAGAIN)
		ck_assert_msg(clock_ns() < end_ns, "the GPU takes more than 60 s");
	ck_ok(rc, error);
	device_batch_clear(arena->batch);
}

void arena_download(struct gpu_arena *arena)
{
	gpu_get(arena->back, arena->gpu, arena->used);
}

void arena_compare(const struct gpu_arena *arena, size_t at, const void *want, size_t count,
		   const char *what, uint64_t seed)
{
	const uint8_t *ours = arena->back + at, *bytes = want;
	for (size_t i = 0; i < count; i++)
		must(ours[i] == bytes[i],
		     "%s of seed %llu: byte %zu of %zu is %02x, the host's %02x", what,
		     (unsigned long long)seed, i, count, ours[i], bytes[i]);
}

void arena_add(struct gpu_arena *arena, const struct move *move)
{
	ck_ok(device_batch_add(arena->batch, move, &error), error);
}
