/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Post steps of update_world.c's engines: "sums" hashes each of its params, "swap" turns the bits
 * of a staged one and is 16 bytes longer; so what they have made tells whether their params were
 * whole, and of the right version.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/post_text.h"
#include "tests/test.h"
#include "tests/update_world.h"

#define TURN 0x5a

/* ---------------------------------------------------------------- the steps */

static void sums_make(const struct ws_post *post)
{
	uint64_t *sums = post->made[0].memory.base;

	memset(sums, 0, post->made[0].memory.bytes);
	for (uint32_t i = 0; i < post->param_count; i++)
		sums[i] =
			digest_bytes(post->params[i].memory.base, post->params[i].memory.bytes, 0);
}

static void swap_make(const struct ws_post *post)
{
	for (uint32_t i = 0; i < post->made_count; i++) {
		const uint8_t *from = post->params[i].memory.base;
		uint8_t *to = post->made[i].memory.base;
		for (size_t b = 0; b < post->params[i].memory.bytes; b++)
			to[b] = from[b] ^ TURN;
		memset(to + post->params[i].memory.bytes, TAIL_FILL, TAIL);
	}
}

/* What is made isn't live: double, it isn't the engine's; in place, the engine has stopped. */
static void look_at_memory(struct engine_loop *loop, const struct ws_post *post)
{
	bool inplace = loop->world->options.inplace;

	for (uint32_t i = 0; i < post->made_count; i++)
		for (uint32_t m = 0; m < loop->steps.made_count; m++)
			if (strcmp(loop->steps.made[m].name, post->made[i].name) == 0 &&
			    (post->made[i].memory.base == loop_made(loop, m)->base) != inplace)
				loop_fault(loop, "'%s' is made in the wrong memory",
					   post->made[i].name);
	if (inplace && loop->begun == 0)
		loop_fault(loop, "a step runs before on_begin");
}

/* As long as the test wants; ETIMEDOUT that isn't wanted ends it, too. */
static bool linger(struct engine_loop *loop, const struct ws_post *post, bool heeds)
{
	for (uint64_t until = deadline_in_ms(60000); clock_ns() < until; sleep_ns(1000000)) {
		bool cancelled = ws_post_cancelled(post);
		if (cancelled)
			atomic_store(&loop->post_cancelled, true);
		if (atomic_load(&loop->post_release) || (cancelled && heeds))
			return cancelled;
	}
	return false;
}

static int post_run(void *arg, const struct ws_post *post, struct ws_error *err)
{
	struct engine_loop *loop = arg;
	enum post_act act = (enum post_act)atomic_exchange(&loop->post_act, POST_WELL);
	int rc = 0;

	if (atomic_fetch_add(&loop->post_inside, 1) != 0)
		loop_fault(loop, "two steps run at once");
	atomic_fetch_add(&loop->post_calls, 1);
	look_at_memory(loop, post);
	if (ws_post_cancelled(post))
		loop_fault(loop, "a step begins for a version that is given up");
	if (act == POST_FAIL)
		rc = ws_fail(err, -EIO, "the kernel has no such layout");
	else if (act == POST_MUTE)
		rc = -ENODATA;
	else if (act == POST_LINGER || act == POST_STUCK)
		rc = linger(loop, post, act == POST_LINGER) ? -ECANCELED : 0;
	if (rc == 0 && loop->twins != NULL)
		rc = loop_gpu_step(loop, post, act == POST_HANG, err);
	else if (rc == 0 && strcmp(post->step, "sums") == 0)
		sums_make(post);
	else if (rc == 0)
		swap_make(post);
	atomic_store(&loop->post_version, post->version);
	atomic_fetch_sub(&loop->post_inside, 1);
	return rc;
}

/* ---------------------------------------------------------------- the world's part */

void loop_posts_make(struct engine_loop *loop)
{
	struct ws_error err = {0};

	ck_ok(manifest_steps(loop->manifest, loop->rank, &loop->params, &loop->arena, &loop->steps,
			     &err),
	      err);
	if (loop->steps.call_count == 0)
		return;
	loop->made = arena_array(&loop->arena, loop->steps.made_count, sizeof(*loop->made));
	ck_assert_ptr_nonnull(loop->made);
	for (uint32_t m = 0; m < loop->steps.made_count; m++) {
		const struct step_made *made = &loop->steps.made[m];
		bool staged = m >= loop->steps.derived_count;
		uint64_t bytes =
			staged ? loop->params.params[made->param].bytes + TAIL : made->bytes;
		loop->made[m] = (struct ws_memory){.base = arena_alloc(&loop->arena, bytes),
						   .bytes = bytes};
		ck_assert_ptr_nonnull(loop->made[m].base);
		if (staged)
			loop->where[made->param] = loop->made[m];
	}
}

void loop_posts_add(struct engine_loop *loop)
{
	struct ws_error err = {0};

	for (uint32_t m = 0; m < loop->steps.derived_count; m++)
		ck_ok(ws_rollout_add(loop->rollout, loop->steps.made[m].name, loop_made(loop, m),
				     &err),
		      err);
	if (loop->steps.call_count == 0)
		return;
	ck_ok(ws_rollout_on_post(loop->rollout, "sums", post_run, loop, &err), err);
	ck_ok(ws_rollout_on_post(loop->rollout, "swap", post_run, loop, &err), err);
}

bool loop_is_staged(const struct engine_loop *loop, uint32_t param)
{
	for (uint32_t m = loop->steps.derived_count; m < loop->steps.made_count; m++)
		if (loop->steps.made[m].param == param)
			return true;
	return false;
}

/* On a GPU a step copies. */
static uint64_t sum_of(const struct engine_loop *loop, const uint8_t *bytes, uint64_t count)
{
	uint64_t first;

	memcpy(&first, bytes, sizeof(first));
	return loop->twins != NULL ? first : digest_bytes(bytes, count, 0);
}

static void call_check(struct engine_loop *loop, const struct step_call *call, uint64_t version)
{
	const uint8_t turn = loop->twins != NULL ? 0 : TURN;

	for (uint32_t i = 0; i < call->from_count; i++) {
		const struct param *param = &loop->params.params[call->from[i]];
		const uint8_t *want = loop->expected + param->arena_offset;
		bool derived = call->made_first < loop->steps.derived_count, right = true;
		const void *made = loop->made[call->made_first + (derived ? 0 : i)].base;
		if (derived)
			right = ((const uint64_t *)made)[i] == sum_of(loop, want, param->bytes);
		for (uint64_t b = 0; !derived && right && b < param->bytes + TAIL; b++)
			right = ((const uint8_t *)made)[b] ==
				(b < param->bytes ? want[b] ^ turn : TAIL_FILL);
		if (!right)
			loop_fault(loop, "version %llu: step '%s' has made something else of '%s'",
				   (unsigned long long)version, call->step, param->name);
	}
}

void loop_posts_check(struct engine_loop *loop, uint64_t version)
{
	for (uint32_t i = 0; i < loop->steps.call_count; i++)
		call_check(loop, &loop->steps.calls[i], version);
}
