/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of update_world.c whose params lie on a GPU: each has a twin there of the host's memory,
 * which is what the tests compare.  Post steps queue copies on the stream that they are given, and
 * don't wait for them.
 */
#include <errno.h>
#include <string.h>

#include "lib/cuda/cuda.h"
#include "tests/gpu_hang.h"
#include "tests/gpu_pieces.h"
#include "tests/update_world.h"

const struct ws_memory *loop_param(const struct engine_loop *loop, uint32_t param)
{
	return loop->twins != NULL ? &loop->twins[param] : &loop->where[param];
}

const struct ws_memory *loop_made(const struct engine_loop *loop, uint32_t made)
{
	return loop->twins != NULL ? &loop->twins[loop->params.count + made] : &loop->made[made];
}

static struct ws_memory twin_of(const struct engine_loop *loop, const struct ws_memory *host)
{
	struct ws_memory twin = {.place = WS_CUDA};
	struct ws_error err = {0};

	if (host->bytes > 0 && loop->world->options.in_pieces)
		twin.base = gpu_pieces_make(0, align_up(host->bytes, PIECE_BYTES));
	else if (host->bytes > 0)
		ck_ok(ws_memory_alloc(&twin, host->bytes, &err), err);
	twin.bytes = host->bytes;
	return twin;
}

/* What is made of a staged param is the engine's memory of it: one twin, in both places. */
void loop_gpu_make(struct engine_loop *loop)
{
	uint32_t params = loop->params.count, derived = loop->steps.derived_count;

	loop->twins =
		arena_array(&loop->arena, params + loop->steps.made_count, sizeof(*loop->twins));
	ck_assert_ptr_nonnull(loop->twins);
	for (uint32_t i = 0; i < params; i++)
		loop->twins[i] = twin_of(loop, &loop->where[i]);
	for (uint32_t m = 0; m < loop->steps.made_count; m++)
		loop->twins[params + m] = m < derived ? twin_of(loop, &loop->made[m])
						      : loop->twins[loop->steps.made[m].param];
}

void loop_gpu_release(struct engine_loop *loop)
{
	uint32_t own = loop->twins != NULL ? loop->params.count + loop->steps.derived_count : 0;

	for (uint32_t i = 0; i < own && !loop->world->options.in_pieces; i++)
		ws_memory_free(&loop->twins[i]);
}

/* As any stream sees it; of a GPU that was given up, as it was seen last. */
static void twin_read(struct engine_loop *loop, const struct ws_memory *twin, void *host)
{
	struct ws_error err = {0};

	if (twin->bytes > 0 && memory_read(twin, 0, host, twin->bytes, &err) != 0 &&
	    !cuda_is_given_up(twin->device))
		loop_fault(loop, "its memory can't be read: %s", err.text);
}

void loop_gpu_read(struct engine_loop *loop)
{
	for (uint32_t i = 0; i < loop->params.count; i++)
		twin_read(loop, loop_param(loop, i), loop->where[i].base);
	for (uint32_t m = 0; m < loop->steps.made_count; m++)
		twin_read(loop, loop_made(loop, m), loop->made[m].base);
}

static int swap_queue(const struct ws_post *post, struct ws_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < post->made_count; i++) {
		const struct ws_memory *from = &post->params[i].memory, *to = &post->made[i].memory;
		rc = cuda_copy(to->base, from->base, from->bytes, post->stream, err);
		if (rc == 0)
			rc = cuda_fill((uint8_t *)to->base + from->bytes, TAIL_FILL, TAIL,
				       post->stream, err);
	}
	return rc;
}

static int sums_queue(const struct ws_post *post, struct ws_error *err)
{
	const struct ws_memory *to = &post->made[0].memory;
	int rc = cuda_fill(to->base, 0, to->bytes, post->stream, err);

	for (uint32_t i = 0; rc == 0 && i < post->param_count; i++)
		rc = cuda_copy((uint64_t *)to->base + i, post->params[i].memory.base,
			       sizeof(uint64_t), post->stream, err);
	return rc;
}

int loop_gpu_step(struct engine_loop *loop, const struct ws_post *post, bool hangs,
		  struct ws_error *err)
{
	const struct world_options *options = &loop->world->options;

	if (post->stream == NULL || (options->stream != NULL && post->stream != options->stream))
		loop_fault(loop, "step '%s' is given another stream than the engine's", post->step);
	int rc = hangs ? spin_launch(options->go, HANG_MS, post->stream, err) : 0;
	if (rc != 0)
		return rc;
	return strcmp(post->step, "sums") == 0 ? sums_queue(post, err) : swap_queue(post, err);
}
