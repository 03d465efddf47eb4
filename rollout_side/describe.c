/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a manifest makes of this rank, and how a living side gets another one (the engine moved
 * experts).  Between ws_rollout_describe and its end no I/O thread runs: everything belongs to
 * the caller.  NICs, regions and connections stay; the next wiring fences and plans as ever.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "rollout_side/rollout_internal.h"

#define POLL_MS 200u

/* ---------------------------------------------------------------- a description */

int description_make(struct description *out, struct plan_source *source, const char *manifest,
		     size_t bytes, uint32_t rank, uint32_t world, struct ws_error *err)
{
	out->manifest = mem_alloc(bytes + 1);
	if (out->manifest == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a rollout's manifest");
	memcpy(out->manifest, manifest, bytes);
	out->manifest_bytes = bytes;
	int rc = plan_source_take(source, SIDE_ROLLOUT, out->manifest, bytes, err);
	if (rc != 0)
		return rc;
	const struct manifest *parsed = source->manifest[SIDE_ROLLOUT];
	if (manifest_world(parsed) != world)
		return ws_fail(err, -EINVAL, "the manifest is for replicas of %u ranks, not of %u",
			       manifest_world(parsed), world);
	rc = manifest_params(parsed, rank, &out->arena, &out->params, err);
	if (rc != 0)
		return rc;
	rc = manifest_steps(parsed, rank, &out->params, &out->arena, &out->steps, err);
	if (rc != 0)
		return rc;
	uint32_t count = out->params.count, made = out->steps.made_count;
	out->memories = arena_array(&out->arena, count, sizeof(*out->memories));
	out->targets = arena_array(&out->arena, count, sizeof(*out->targets));
	out->places = arena_array(&out->arena, count, sizeof(*out->places));
	out->added = arena_array(&out->arena, count, sizeof(*out->added));
	out->staged = arena_array(&out->arena, count, sizeof(*out->staged));
	out->made = arena_array(&out->arena, made, sizeof(*out->made));
	out->made_now = arena_array(&out->arena, made, sizeof(*out->made_now));
	out->made_added = arena_array(&out->arena, made, sizeof(*out->made_added));
	if (out->memories == NULL || out->targets == NULL || out->places == NULL ||
	    out->added == NULL || out->staged == NULL || out->made == NULL ||
	    out->made_now == NULL || out->made_added == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u params", count);
	for (uint32_t i = out->steps.derived_count; i < made; i++)
		out->staged[out->steps.made[i].param] = true;
	return 0;
}

void description_release(struct description *description)
{
	arena_release(&description->arena);
	mem_free(description->manifest);
	memset(description, 0, sizeof(*description));
}

uint32_t description_count(const struct description *own)
{
	return own->params.count + own->steps.derived_count;
}

const char *description_name(const struct description *own, uint32_t index)
{
	return index < own->params.count ? own->params.params[index].name
					 : own->steps.made[index - own->params.count].name;
}

const struct ws_memory *description_memory(const struct description *own, uint32_t index)
{
	return index < own->params.count ? &own->memories[index]
					 : &own->made[index - own->params.count];
}

static bool has_step(const struct ws_rollout *rollout, const char *name)
{
	for (uint32_t i = 0; i < rollout->step_count; i++)
		if (strcmp(rollout->steps[i].name, name) == 0)
			return true;
	return false;
}

int description_complete(const struct ws_rollout *rollout, struct ws_error *err)
{
	const struct description *own = &rollout->own;

	for (uint32_t i = 0; i < description_count(own); i++)
		if (description_memory(own, i)->base == NULL &&
		    (i >= own->params.count || own->params.params[i].bytes > 0))
			return ws_fail(err, -EINVAL, "param '%s' of %s was never added",
				       description_name(own, i), rollout->name);
	for (uint32_t i = 0; i < own->steps.call_count; i++)
		if (!has_step(rollout, own->steps.calls[i].step))
			return ws_fail(
				err, -EINVAL,
				"the manifest of %s has a post step '%s', and none of that name "
				"was given: ws_rollout_on_post",
				rollout->name, own->steps.calls[i].step);
	return 0;
}

/* A param of the same name and size lies where it did, unless it is added again. */
static void memories_keep(struct description *own, const struct description *before)
{
	for (uint32_t i = 0; i < own->params.count; i++) {
		const struct param *param = &own->params.params[i];
		int64_t at = rank_params_find(&before->params, param->name);
		if (at >= 0 && before->params.params[at].bytes == param->bytes &&
		    before->staged[at] == own->staged[i])
			own->memories[i] = before->memories[at];
	}
	for (uint32_t i = 0; i < own->steps.derived_count; i++)
		for (uint32_t b = 0; b < before->steps.derived_count; b++)
			if (before->steps.made[b].bytes == own->steps.made[i].bytes &&
			    strcmp(before->steps.made[b].name, own->steps.made[i].name) == 0)
				own->made[i] = before->made[b];
}

/* Whether the params are the same ones in the same order: then all lies where it did.  What steps
 * make is laid out anew. */
static bool landing_keep(struct description *own, const struct description *before)
{
	uint32_t count = own->params.count;

	if (before->params.count != count || own->steps.made_count > 0 ||
	    before->steps.made_count > 0)
		return false;
	for (uint32_t i = 0; i < count; i++)
		if (own->params.params[i].bytes != before->params.params[i].bytes ||
		    strcmp(own->params.params[i].name, before->params.params[i].name) != 0)
			return false;
	for (uint32_t i = 0; i < count; i++) {
		own->targets[i] = before->targets[i];
		own->places[i] = before->places[i];
	}
	return true;
}

/* ---------------------------------------------------------------- out of the run, and back */

/* Asks the I/O thread, which asks the hub.  0: it has ended, and nothing is written here. */
static int run_leave(struct ws_rollout *rollout, uint64_t until_ns, struct ws_error *err)
{
	struct pollfd fd = {.fd = rollout->step_fd, .events = POLLIN};
	int state = DESCRIBE_ASKED, asked = DESCRIBE_ASKED;
	uint64_t dropped, now;

	atomic_store(&rollout->describe, DESCRIBE_ASKED);
	fd_wake(rollout->wake_fd);
	while (state == DESCRIBE_ASKED && !atomic_load(&rollout->over_set) &&
	       (now = clock_ns()) < until_ns) {
		(void)poll(&fd, 1, (int)MIN((until_ns - now) / 1000000u + 1, POLL_MS));
		(void)!read(rollout->step_fd, &dropped, sizeof(dropped));
		state = atomic_load(&rollout->describe);
	}
	/* A hook may have been handed over meanwhile. */
	fd_wake(rollout->step_fd);
	if (atomic_compare_exchange_strong(&rollout->describe, &asked, DESCRIBE_NONE)) {
		fd_wake(rollout->wake_fd);
		if (atomic_load_explicit(&rollout->over_set, memory_order_acquire))
			return ws_fail(err, rollout->over.code == 0 ? -ECANCELED : -EIO, "%s: %s",
				       rollout->name, rollout->over.text);
		return ws_fail(err, -ETIMEDOUT,
			       "%s can't describe itself again yet: %s; try again later",
			       rollout->name,
			       atomic_load(&rollout->hub_lost) ? "the hub isn't heard"
							       : "an update is open elsewhere");
	}
	if (asked == DESCRIBE_BUSY) {
		atomic_store(&rollout->describe, DESCRIBE_NONE);
		return ws_fail(err, -EBUSY,
			       "%s can't describe itself again during an update: go on stepping",
			       rollout->name);
	}
	pthread_join(rollout->thread, NULL);
	rollout->thread_started = false;
	(void)posts_close(rollout); /* none runs between two updates */
	return rollout_wire_suspend(rollout, err);
}

/* Nothing has changed: the side goes on as what it was, as after any drop. */
static void run_return(struct ws_rollout *rollout, struct ws_error *err)
{
	struct ws_error why = {0};

	int rc = member_rejoin(rollout->member, &why);
	if (rc == 0)
		rc = io_start(rollout, &why);
	if (rc != 0)
		*err = why;
}

/* Whether the trainers' weights cover it, before anybody is told. */
static int plan_try(struct ws_rollout *rollout, struct plan_source *fresh, struct ws_error *err)
{
	struct plan_source *source = &rollout->source;
	struct plan_input input = {
		.replicas = &rollout->replica, .replica_count = 1, .rules = rollout->wire.rules};

	if (source->manifest[SIDE_TRAINER] == NULL)
		return 0;
	/* A rank's memory has room for one plan. */
	plan_free(source->plan);
	source->plan = NULL;
	fresh->manifest[SIDE_TRAINER] = source->manifest[SIDE_TRAINER];
	uint32_t self = manifest_world(source->manifest[SIDE_TRAINER]) + rollout->rank;
	int rc = plan_source_make(fresh, &input, 0, self, err);
	fresh->manifest[SIDE_TRAINER] = NULL;
	plan_free(fresh->plan);
	fresh->plan = NULL;
	return rc;
}

static void description_take(struct ws_rollout *rollout, struct description *next,
			     struct plan_source *fresh)
{
	struct plan_source *source = &rollout->source;

	memories_keep(next, &rollout->own);
	rollout->landing_kept =
		landing_keep(next, rollout->describing ? &rollout->before : &rollout->own);
	if (rollout->describing)
		description_release(&rollout->own);
	else
		rollout->before = rollout->own;
	rollout->own = *next;
	plan_free(source->plan);
	source->plan = NULL;
	manifest_free(source->manifest[SIDE_ROLLOUT]);
	source->manifest[SIDE_ROLLOUT] = fresh->manifest[SIDE_ROLLOUT];
	source->text_digest[SIDE_ROLLOUT] = fresh->text_digest[SIDE_ROLLOUT];
	rollout->describing = true;
	rollout->serving = false;
	atomic_store(&rollout->live_version, 0);
	version_describe(&rollout->version);
}

int ws_rollout_describe(struct ws_rollout *rollout, const char *manifest, size_t bytes,
			uint32_t deadline_ms, struct ws_error *err)
{
	struct description next = {0};
	struct plan_source fresh = {0};
	struct ws_error own_err = {0};

	if (err == NULL)
		err = &own_err;
	if (!rollout->thread_started && !rollout->describing)
		return ws_fail(err, -EINVAL, "%s hasn't been started", rollout->name);
	int rc = description_make(&next, &fresh, manifest, bytes, rollout->rank, rollout->world,
				  err);
	bool leaves = rc == 0 && !rollout->describing;
	if (leaves)
		rc = run_leave(rollout, deadline_in_ms(deadline_ms), err);
	if (rc == 0)
		rc = plan_try(rollout, &fresh, err);
	if (rc == 0)
		rc = member_describe(rollout->member, next.manifest, (uint32_t)bytes,
				     manifest_digest(fresh.manifest[SIDE_ROLLOUT]), err);
	if (rc == 0) {
		description_take(rollout, &next, &fresh);
		return 0;
	}
	if (leaves && !rollout->thread_started)
		run_return(rollout, err);
	description_release(&next);
	plan_source_release(&fresh);
	return rc;
}

int ws_rollout_describe_end(struct ws_rollout *rollout, struct ws_error *err)
{
	if (!rollout->describing)
		return ws_fail(err, -EINVAL, "%s isn't describing itself again", rollout->name);
	int rc = description_complete(rollout, err);
	if (rc == 0 && !rollout->landing_kept) {
		landing_drop(rollout, &rollout->before);
		rc = landing_open(rollout, err);
	}
	if (rc == 0)
		rc = padding_zero(rollout, err);
	if (rc == 0)
		rc = io_start(rollout, err);
	if (rc != 0)
		return rc;
	rollout->describing = false;
	description_release(&rollout->before);
	return 0;
}
