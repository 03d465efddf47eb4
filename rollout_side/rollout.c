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
	engine_close(rollout->engine);
	rollout_wire_release(rollout);
	landing_close(rollout);
	plan_source_release(&rollout->source);
	description_release(&rollout->own);
	description_release(&rollout->before);
	run_key_wipe(&rollout->key);
	if (rollout->wake_fd >= 0)
		close(rollout->wake_fd);
	if (rollout->step_fd >= 0)
		close(rollout->step_fd);
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
	return rollout->own.params.count;
}

int ws_rollout_param(const struct ws_rollout *rollout, uint32_t index, const char **name_out,
		     enum ws_dtype *dtype_out, uint64_t *bytes_out)
{
	if (index >= rollout->own.params.count)
		return -EINVAL;
	const struct param *param = &rollout->own.params.params[index];
	*name_out = param->name;
	*dtype_out = param->dtype;
	*bytes_out = param->bytes;
	return 0;
}

int ws_rollout_add(struct ws_rollout *rollout, const char *param, const struct ws_memory *memory,
		   struct ws_error *err)
{
	int64_t index = rank_params_find(&rollout->own.params, param);

	if (rollout->thread_started)
		return ws_fail(err, -EINVAL,
			       "buffers are added before start, or while describing again");
	if (index < 0)
		return ws_fail(err, -EINVAL, "%s has no param '%s' (it has %u, the first is '%s')",
			       rollout->name, param, rollout->own.params.count,
			       rollout->own.params.count > 0 ? rollout->own.params.params[0].name
							     : "");
	if (rollout->own.added[index])
		return ws_fail(err, -EINVAL, "param '%s' was added already", param);
	if (memory->bytes != rollout->own.params.params[index].bytes)
		return ws_fail(err, -EINVAL, "param '%s' has %llu bytes on %s, not %llu", param,
			       (unsigned long long)rollout->own.params.params[index].bytes,
			       rollout->name, (unsigned long long)memory->bytes);
	if (memory->place == WS_CUDA && !cuda_built_in())
		return ws_fail(err, -ENOTSUP, "param '%s' lies on a GPU; CUDA isn't built in",
			       param);
	/* In place it is registered: elsewhere, and all is registered anew. */
	if (rollout->inplace && rollout->own.memories[index].base != memory->base)
		rollout->landing_kept = false;
	rollout->own.memories[index] = *memory;
	rollout->own.added[index] = true;
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
	int rc =
		thread_start(&rollout->thread, rollout->devices.core.cpu, rollout_io_main, rollout);
	if (rc != 0)
		return ws_fail(err, -ENOSPC, "no thread for the I/O of %s: %s", rollout->name,
			       strerror(rc));
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
	return wait_wired(rollout, deadline_in_ms(deadline_ms), err);
}
