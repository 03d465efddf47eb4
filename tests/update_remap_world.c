/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of update_world.c that move experts and describe themselves again; see the header. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/update_world.h"

/* Params of the same name and size stay where they are; the others get new memory. */
static void params_move(struct engine_loop *loop, const struct remap *remap)
{
	struct ws_memory *where =
		arena_array(&loop->arena, remap->params.count, sizeof(*loop->where));
	struct ws_error err = {0};

	ck_assert_ptr_nonnull(where);
	for (uint32_t i = 0; i < remap->params.count; i++) {
		const struct param *param = &remap->params.params[i];
		int64_t at = rank_params_find(&loop->params, param->name);
		where[i] = (struct ws_memory){.base = remap->memory + param->arena_offset,
					      .bytes = param->bytes};
		if (at >= 0 && loop->params.params[at].bytes == param->bytes)
			where[i] = loop->where[at];
		else if (ws_rollout_add(loop->rollout, param->name, &where[i], &err) != 0)
			loop_fault(loop, "%s", err.text);
	}
	loop->where = where;
	loop->params = remap->params;
	loop->manifest = remap->manifest;
}

int loop_describe(struct engine_loop *loop)
{
	const struct remap *remap = loop->remap;
	struct ws_memory none = {0};

	int rc = ws_rollout_describe(loop->rollout, (const char *)remap->text.bytes,
				     remap->text.count, 5000, &loop->err);
	if (rc == -EBUSY)
		atomic_fetch_add(&loop->busy, 1);
	if (rc == -EBUSY || rc == -ETIMEDOUT)
		return 0;
	if (rc == -EINVAL) {
		snprintf(loop->refused_text, sizeof(loop->refused_text), "%s", loop->err.text);
		atomic_store(&loop->remaps, false);
		return 0;
	}
	if (rc != 0)
		return rc;
	if (ws_rollout_version(loop->rollout) != 0 || ws_rollout_serving(loop->rollout))
		loop_fault(loop, "serves what nobody knows");
	if (ws_rollout_add(loop->rollout, "no.such.param", &none, NULL) != -EINVAL ||
	    ws_rollout_step(loop->rollout, NULL) != 0)
		loop_fault(loop, "isn't as a side is that describes itself again");
	if (atomic_load(&loop->dies)) {
		atomic_store(&loop->remaps, false);
		return -ECANCELED;
	}
	params_move(loop, remap);
	rc = ws_rollout_describe_end(loop->rollout, &loop->err);
	atomic_fetch_add(&loop->described, 1);
	atomic_store(&loop->remaps, false);
	return rc;
}

void loop_remap_release(struct engine_loop *loop)
{
	while (loop->remap != NULL) {
		struct remap *remap = loop->remap;
		loop->remap = remap->before;
		writer_release(&remap->text);
		manifest_free(remap->manifest);
		free(remap->memory);
		free(remap);
	}
}

/* The world's manifest of the rollouts, with another value for "experts". */
static void experts_write(const struct world *world, const char *experts, struct writer *out)
{
	const char *text = (const char *)world->rollout_text.bytes, *key = "\"experts\": {";
	const char *end = text + world->rollout_text.count;
	const char *at = memmem(text, world->rollout_text.count, key, strlen(key));

	ck_assert_ptr_nonnull(at);
	*out = (struct writer)WRITER_INIT(16u << 20);
	write_bytes(out, text, (size_t)(at - text) + strlen(key) - 1);
	write_bytes(out, experts, strlen(experts));
	while (*at != '}')
		at++;
	write_bytes(out, at + 1, (size_t)(end - at) - 1);
}

void loop_remap_text(struct engine_loop *loop, const void *text, size_t bytes)
{
	struct remap *remap = calloc(1, sizeof(*remap));
	struct ws_error err = {0};

	ck_assert(remap != NULL && !atomic_load(&loop->remaps));
	remap->before = loop->remap;
	remap->text = (struct writer)WRITER_INIT(16u << 20);
	write_bytes(&remap->text, text, bytes);
	ck_ok(manifest_parse(&remap->manifest, remap->text.bytes, remap->text.count, NULL, &err),
	      err);
	ck_ok(manifest_params(remap->manifest, loop->rank, &loop->arena, &remap->params, &err),
	      err);
	ck_assert_uint_le(remap->params.arena_bytes, 4 * loop->params.arena_bytes);
	remap->memory = world_memory_make(remap->params.arena_bytes);
	memset(remap->memory, 0xa5, remap->params.arena_bytes);
	loop->remap = remap;
	atomic_store(&loop->remaps, true);
}

void loop_remap(struct engine_loop *loop, const char *experts)
{
	struct writer text;

	experts_write(loop->world, experts, &text);
	loop_remap_text(loop, text.bytes, text.count);
	writer_release(&text);
}

void loop_await_remap(struct engine_loop *loop)
{
	uint64_t until_ns = deadline_in_ms(PATIENCE_MS);

	while (atomic_load(&loop->remaps)) {
		ck_assert_msg(clock_ns() < until_ns, "rollout %u.%u doesn't describe itself again",
			      loop->replica, loop->rank);
		sleep_ns(2000000);
	}
}
