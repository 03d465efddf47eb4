/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rollout's side: made, given its buffers, started and closed.  Hooks run in step.c; all that
 * talks to hub and NICs runs on the I/O thread (io.c).
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rollout_side/rollout_internal.h"

#define POST_MS_DEFAULT 30000u
/* After the deadline, for the I/O thread, which gives up then and knows what is missing. */
#define LAST_WORD_NS 1000000000u

/* ---------------------------------------------------------------- open */

static int options_check(const struct ws_rollout_options *options, struct ws_error *err)
{
	if (options->hub == NULL || options->key_file == NULL || options->manifest == NULL)
		return ws_fail(err, -EINVAL, "a rollout needs a hub, a key file and a manifest");
	if (options->rank >= options->world)
		return ws_fail(err, -EINVAL,
			       "rollout rank %u isn't below its replica's world of %u",
			       options->rank, options->world);
	if (options->host != NULL &&
	    (options->host[0] == '\0' || strlen(options->host) >= HOST_TEXT_BYTES))
		return ws_fail(err, -EINVAL, "a host's name has 1 to %d characters",
			       HOST_TEXT_BYTES - 1);
	if (options->buffers != WS_DOUBLE && options->buffers != WS_INPLACE)
		return ws_fail(err, -EINVAL, "buffers are WS_DOUBLE or WS_INPLACE, not %d",
			       (int)options->buffers);
	return 0;
}

static int parts_open(struct ws_rollout *rollout, const struct ws_rollout_options *options,
		      struct ws_error *err)
{
	const struct devices_wanted wanted = {.transport = options->transport,
					      .provider = options->provider,
					      .nics = options->nics,
					      .nic_count = options->nic_count,
					      .gpu = options->gpu,
					      .local_rank = options->local_rank,
					      .local_ranks = options->local_ranks};

	rollout->replica = options->replica;
	rollout->rank = options->rank;
	rollout->world = options->world;
	rollout->inplace = options->buffers == WS_INPLACE;
	rollout->want_digest = options->param_digest;
	rollout->stream = options->stream;
	rollout->post_ms = options->post_ms != 0 ? options->post_ms : POST_MS_DEFAULT;
	if (options->host != NULL)
		snprintf(rollout->host, sizeof(rollout->host), "%s", options->host);
	snprintf(rollout->name, sizeof(rollout->name), "rollout %u.%u", options->replica,
		 options->rank);
	version_init(&rollout->version, rollout->inplace);
	rollout->hub_text = mem_copy_text(options->hub);
	rollout->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rollout->step_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (rollout->hub_text == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a rollout");
	if (rollout->wake_fd < 0 || rollout->step_fd < 0)
		return ws_fail(err, -ENOSPC, "no eventfd for a rollout: %s", strerror(errno));
	int rc = description_make(&rollout->own, &rollout->source, options->manifest,
				  options->manifest_bytes, options->rank, options->world, err);
	if (rc == 0)
		rc = run_key_read(&rollout->key, options->key_file, err);
	if (rc == 0)
		rc = devices_find(&rollout->devices, &wanted, err);
	return rc;
}

int ws_rollout_open(struct ws_rollout **rollout_out, const struct ws_rollout_options *options,
		    const struct ws_rollout_hooks *hooks, void *arg, struct ws_error *err)
{
	*rollout_out = NULL;
	int rc = options_check(options, err);
	if (rc != 0)
		return rc;
	struct ws_rollout *rollout = mem_alloc(sizeof(*rollout));
	if (rollout == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a rollout");
	rollout->wake_fd = -1;
	rollout->step_fd = -1;
	rollout->ring_region = UINT32_MAX;
	rollout->whole = true;
	if (hooks != NULL)
		rollout->hooks = *hooks;
	rollout->hook_arg = arg;
	rc = parts_open(rollout, options, err);
	if (rc != 0) {
		ws_rollout_close(rollout);
		return rc;
	}
	*rollout_out = rollout;
	return 0;
}

void ws_rollout_close(struct ws_rollout *rollout)
{
	if (rollout == NULL)
		return;
	if (rollout->thread_started) {
		atomic_store(&rollout->stop, true);
		fd_wake(rollout->wake_fd);
		pthread_join(rollout->thread, NULL);
	} else if (rollout->describing) {
		rollout_wire_close(rollout, clock_ns());
	}
	member_close(rollout->member);
	posts_stop(rollout);
	engine_close(rollout->engine);
	rollout_wire_release(rollout);
	/* Left by now, if a step hangs, and nothing is registered that its thread may free. */
	(void)posts_close(rollout);
	landing_close(rollout);
	plan_source_release(&rollout->source);
	description_release(&rollout->own);
	description_release(&rollout->before);
	run_key_wipe(&rollout->key);
	if (rollout->wake_fd >= 0)
		close(rollout->wake_fd);
	if (rollout->step_fd >= 0)
		close(rollout->step_fd);
	for (uint32_t i = 0; i < rollout->step_count; i++)
		mem_free(rollout->steps[i].name);
	mem_free(rollout->hub_text);
	mem_free(rollout);
}

const char *ws_rollout_nics(const struct ws_rollout *rollout)
{
	return rollout->devices.choice;
}

const char *ws_rollout_core(const struct ws_rollout *rollout)
{
	return rollout->devices.core.why;
}

/* ---------------------------------------------------------------- params */

uint32_t ws_rollout_param_count(const struct ws_rollout *rollout)
{
	return description_count(&rollout->own);
}

int ws_rollout_param(const struct ws_rollout *rollout, uint32_t index, const char **name_out,
		     enum ws_dtype *dtype_out, uint64_t *bytes_out)
{
	const struct description *own = &rollout->own;

	if (index >= description_count(own))
		return -EINVAL;
	*name_out = description_name(own, index);
	if (index < own->params.count) {
		*dtype_out = own->params.params[index].dtype;
		*bytes_out = own->params.params[index].bytes;
	} else {
		*dtype_out = own->steps.made[index - own->params.count].dtype;
		*bytes_out = own->steps.made[index - own->params.count].bytes;
	}
	return 0;
}

static int no_such_param(const struct ws_rollout *rollout, const char *name, struct ws_error *err)
{
	uint32_t count = description_count(&rollout->own);

	return ws_fail(err, -EINVAL, "%s has no param '%s' (it has %u, the first is '%s')",
		       rollout->name, name, count,
		       count > 0 ? description_name(&rollout->own, 0) : "");
}

/* What is derived; params are found faster. */
static int64_t derived_find(const struct description *own, const char *name)
{
	for (uint32_t i = 0; i < own->steps.derived_count; i++)
		if (strcmp(own->steps.made[i].name, name) == 0)
			return i;
	return -1;
}

static int memory_check(const struct ws_rollout *rollout, const char *name, bool added,
			const struct ws_memory *memory, uint64_t bytes, bool any_size,
			struct ws_error *err)
{
	if (rollout->thread_started)
		return ws_fail(err, -EINVAL,
			       "buffers are added before start, or while describing again");
	if (added)
		return ws_fail(err, -EINVAL, "param '%s' was added already", name);
	if (any_size ? memory->bytes == 0 : memory->bytes != bytes)
		return ws_fail(err, -EINVAL, "param '%s' has %llu bytes on %s, not %llu", name,
			       (unsigned long long)bytes, rollout->name,
			       (unsigned long long)memory->bytes);
	if (memory->place == WS_CUDA && !cuda_built_in())
		return ws_fail(err, -ENOTSUP, "param '%s' lies on a GPU; CUDA isn't built in",
			       name);
	return 0;
}

static int derived_add(struct ws_rollout *rollout, const char *name, const struct ws_memory *memory,
		       struct ws_error *err)
{
	struct description *own = &rollout->own;
	int64_t index = derived_find(own, name);

	if (index < 0)
		return no_such_param(rollout, name, err);
	int rc = memory_check(rollout, name, own->made_added[index], memory,
			      own->steps.made[index].bytes, false, err);
	if (rc != 0)
		return rc;
	own->made[index] = *memory;
	own->made_added[index] = true;
	return 0;
}

int ws_rollout_add(struct ws_rollout *rollout, const char *param, const struct ws_memory *memory,
		   struct ws_error *err)
{
	struct description *own = &rollout->own;
	int64_t index = rank_params_find(&own->params, param);

	if (index < 0)
		return derived_add(rollout, param, memory, err);
	int rc = memory_check(rollout, param, own->added[index], memory,
			      own->params.params[index].bytes, own->staged[index], err);
	if (rc != 0)
		return rc;
	/* In place it is registered: elsewhere, and all is registered anew. */
	if (rollout->inplace && own->memories[index].base != memory->base)
		rollout->landing_kept = false;
	own->memories[index] = *memory;
	own->added[index] = true;
	return 0;
}

int ws_rollout_on_post(struct ws_rollout *rollout, const char *step,
		       int (*function)(void *arg, const struct ws_post *post, struct ws_error *err),
		       void *arg, struct ws_error *err)
{
	if (rollout->thread_started)
		return ws_fail(err, -EINVAL,
			       "post steps are given before start, or while describing again");
	if (step == NULL || step[0] == '\0' || function == NULL)
		return ws_fail(err, -EINVAL, "a post step has a name and a function");
	for (uint32_t i = 0; i < rollout->step_count; i++)
		if (strcmp(rollout->steps[i].name, step) == 0)
			return ws_fail(err, -EINVAL, "post step '%s' was given already", step);
	if (rollout->step_count == WS_POST_STEPS_MAX)
		return ws_fail(err, -ENOSPC, "there are %d post steps already", WS_POST_STEPS_MAX);
	char *name = mem_copy_text(step);
	if (name == NULL)
		return ws_fail(err, -ENOMEM, "no memory for post step '%s'", step);
	rollout->steps[rollout->step_count++] =
		(struct post_step){.name = name, .function = function, .arg = arg};
	return 0;
}

/* ---------------------------------------------------------------- start */

static int member_start(struct ws_rollout *rollout, uint32_t deadline_ms, struct ws_error *err)
{
	if (rollout->host[0] == '\0')
		host_identity(rollout->devices.inside, rollout->host);
	struct member_options options = {
		.endpoint = rollout->hub_text,
		.key = &rollout->key,
		.role = ROLE_ROLLOUT,
		.rank = rollout->rank,
		.replica = rollout->replica,
		.world = rollout->world,
		.host = rollout->host,
		.nics = rollout->devices.choice,
		.rails = {.nic_count = rollout->devices.count},
		.inplace = rollout->inplace,
		.manifest = rollout->own.manifest,
		.manifest_bytes = (uint32_t)rollout->own.manifest_bytes,
		.manifest_digest = manifest_digest(rollout->source.manifest[SIDE_ROLLOUT]),
		.join_ms = deadline_ms,
	};
	options.rails.count = rollout->devices.count;
	memcpy(options.rails.rail, rollout->devices.rail, sizeof(options.rails.rail));
	return member_open(&rollout->member, &options, err);
}

static int wait_wired(struct ws_rollout *rollout, uint64_t until_ns, struct ws_error *err)
{
	struct pollfd fd = {.fd = rollout->step_fd, .events = POLLIN};
	uint64_t dropped;

	for (;;) {
		if (atomic_load_explicit(&rollout->over_set, memory_order_acquire))
			return ws_fail(err,
				       rollout->over.code == 0 ? -ECANCELED : rollout->over.code,
				       "%s: %s", rollout->name, rollout->over.text);
		if (atomic_load_explicit(&rollout->wired_once, memory_order_acquire))
			break;
		uint64_t now = clock_ns();
		if (now >= until_ns)
			return ws_fail(err, -ETIMEDOUT,
				       "%s wasn't wired in time; are the hub at '%s' and all "
				       "trainers up?",
				       rollout->name, rollout->hub_text);
		(void)poll(&fd, 1, (int)MIN((until_ns - now) / 1000000u + 1, 200u));
		(void)!read(rollout->step_fd, &dropped, sizeof(dropped));
	}
	/* A hook may have been handed over meanwhile. */
	fd_wake(rollout->step_fd);
	return 0;
}

int io_start(struct ws_rollout *rollout, struct ws_error *err)
{
	atomic_store(&rollout->describe, DESCRIBE_NONE);
	rollout->describe_said = false;
	atomic_store(&rollout->last_step_ns, clock_ns());
	int rc = posts_open(rollout, err);
	if (rc != 0)
		return rc;
	rc = thread_start(&rollout->thread, rollout->devices.core.cpu, rollout_io_main, rollout);
	if (rc != 0) {
		(void)posts_close(rollout);
		return ws_fail(err, -ENOSPC, "no thread for the I/O of %s: %s", rollout->name,
			       strerror(rc));
	}
	rollout->thread_started = true;
	return 0;
}

int ws_rollout_start(struct ws_rollout *rollout, uint32_t deadline_ms, struct ws_error *err)
{
	if (rollout->thread_started)
		return ws_fail(err, -EINVAL, "%s was started already", rollout->name);
	if (rollout->describing)
		return ws_fail(err, -EINVAL, "%s is describing again: end that", rollout->name);
	int rc = description_complete(rollout, err);
	if (rc == 0)
		rc = padding_zero(rollout, err);
	if (rc == 0 && rollout->spare.bytes == 0)
		rc = landing_open(rollout, err);
	if (rc == 0 && rollout->member == NULL)
		rc = member_start(rollout, deadline_ms, err);
	if (rc == 0)
		rc = io_start(rollout, err);
	if (rc != 0)
		return rc;
	return wait_wired(rollout, deadline_in_ms(deadline_ms) + LAST_WORD_NS, err);
}
