/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's side: made, given its params, started and closed.  Pushes are in push.c; all that
 * talks to hub and NICs runs on the I/O thread (io.c), which the caller reaches by the mailbox.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/hub/host.h"
#include "trainer_side/mailbox.h"
#include "trainer_side/trainer_internal.h"

/* ---------------------------------------------------------------- open */

static int options_check(const struct ws_trainer_options *options, struct ws_error *err)
{
	if (options->hub == NULL || options->key_file == NULL || options->manifest == NULL)
		return ws_fail(err, -EINVAL, "a trainer needs a hub, a key file and a manifest");
	if (options->rank >= options->world)
		return ws_fail(err, -EINVAL, "trainer rank %u isn't below the world of %u",
			       options->rank, options->world);
	if (options->hub_here && options->rank != 0)
		return ws_fail(err, -EINVAL, "only trainer 0 runs the hub, this is trainer %u",
			       options->rank);
	if (options->hub_here && options->replica_ranks == 0)
		return ws_fail(err, -EINVAL, "who runs the hub says how many ranks a replica has");
	return 0;
}

static int rules_of_options(const struct ws_trainer_options *options, struct rules *rules_out,
			    struct ws_error *err)
{
	*rules_out = (struct rules)RULES_DEFAULT;
	if (options->op_bytes != 0)
		rules_out->op_bytes = options->op_bytes;
	if (options->staging_bytes != 0)
		rules_out->staging_bytes = options->staging_bytes;
	if (options->recv_staging_bytes != 0)
		rules_out->recv_staging_bytes = options->recv_staging_bytes;
	if (options->run_bytes_min != 0)
		rules_out->run_bytes_min = options->run_bytes_min;
	rules_out->bucket_bytes = options->bucket_bytes;
	rules_out->wire_digests = options->wire_digests;
	rules_out->barrier = options->barrier;
	int rc = options->fanout == NULL ? 0
					 : fanout_parse(options->fanout, &rules_out->fanout, err);
	return rc != 0 ? rc : rules_check(rules_out, err);
}

/* Who writes to rollouts, as the hub needs to know it. */
static const enum hub_forward forwards[] = {
	[FANOUT_NONE] = HUB_FORWARD_NONE,
	[FANOUT_NODE] = HUB_FORWARD_INSIDE,
	[FANOUT_REPLICA] = HUB_FORWARD_CHAIN,
};

static int hub_start(struct ws_trainer *trainer, const struct ws_trainer_options *options,
		     struct ws_error *err)
{
	struct writer bytes = WRITER_INIT(4096);
	struct rules rules;

	int rc = rules_of_options(options, &rules, err);
	if (rc != 0)
		return rc;
	rules_encode(&rules, &bytes);
	if (bytes.failed) {
		writer_release(&bytes);
		return ws_fail(err, -ENOMEM, "no memory for the run's rules");
	}
	struct hub_options hub = {
		.endpoint = options->hub,
		.key = &trainer->key,
		.trainer_count = options->world,
		.replica_ranks = options->replica_ranks,
		.min_replicas = MAX(options->min_replicas, 1u),
		.rules = bytes.bytes,
		.rules_bytes = (uint32_t)bytes.count,
		.barrier = options->barrier,
		.forward = forwards[rules.fanout],
		.join_ms = options->join_ms,
		.lost_ms = options->lost_ms,
		.phase_ms = options->phase_ms,
	};
	rc = hub_open(&trainer->hub, &hub, err);
	writer_release(&bytes);
	return rc;
}

/* My params, from my own manifest. */
static int params_make(struct ws_trainer *trainer, struct ws_error *err)
{
	struct plan_source *source = &trainer->source;

	int rc = plan_source_take(source, SIDE_TRAINER, trainer->manifest, trainer->manifest_bytes,
				  err);
	if (rc != 0)
		return rc;
	if (manifest_world(source->manifest[SIDE_TRAINER]) != trainer->world)
		return ws_fail(err, -EINVAL, "the manifest is for %u trainers, not for %u",
			       manifest_world(source->manifest[SIDE_TRAINER]), trainer->world);
	rc = manifest_params(source->manifest[SIDE_TRAINER], trainer->rank, &trainer->arena,
			     &trainer->params, err);
	if (rc != 0)
		return rc;
	uint32_t count = trainer->params.count;
	trainer->memories = arena_array(&trainer->arena, count, sizeof(*trainer->memories));
	trainer->places = arena_array(&trainer->arena, count, sizeof(*trainer->places));
	trainer->added = arena_array(&trainer->arena, count, sizeof(*trainer->added));
	if (trainer->memories == NULL || trainer->places == NULL || trainer->added == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u params", count);
	return 0;
}

static int parts_open(struct ws_trainer *trainer, const struct ws_trainer_options *options,
		      struct ws_error *err)
{
	const struct devices_wanted wanted = {.transport = options->transport,
					      .provider = options->provider,
					      .nics = options->nics,
					      .nic_count = options->nic_count,
					      .gpu = options->gpu,
					      .local_rank = options->local_rank,
					      .local_ranks = options->local_ranks};

	trainer->rank = options->rank;
	trainer->world = options->world;
	trainer->staging_bytes = options->staging_bytes;
	trainer->ring_bytes = options->offload_bytes;
	trainer->offload_device = options->offload_bytes > 0 ? options->offload_device : -1;
	trainer->manifest_bytes = options->manifest_bytes;
	trainer->manifest = mem_alloc(options->manifest_bytes + 1);
	trainer->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	trainer->reply_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	trainer->verified = mem_alloc(sizeof(*trainer->verified));
	if (trainer->manifest == NULL || trainer->verified == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a trainer's manifest");
	if (trainer->wake_fd < 0 || trainer->reply_fd < 0)
		return ws_fail(err, -ENOSPC, "no eventfd for a trainer: %s", strerror(errno));
	memcpy(trainer->manifest, options->manifest, options->manifest_bytes);
	int rc = params_make(trainer, err);
	if (rc == 0)
		rc = run_key_read(&trainer->key, options->key_file, err);
	if (rc == 0)
		rc = devices_find(&trainer->devices, &wanted, err);
	if (rc == 0 && options->hub_here)
		rc = hub_start(trainer, options, err);
	if (rc != 0)
		return rc;
	trainer->hub_text =
		mem_copy_text(trainer->hub != NULL ? hub_endpoint(trainer->hub) : options->hub);
	return trainer->hub_text != NULL ? 0 : ws_fail(err, -ENOMEM, "no memory for a name");
}

int ws_trainer_open(struct ws_trainer **trainer_out, const struct ws_trainer_options *options,
		    struct ws_error *err)
{
	*trainer_out = NULL;
	int rc = options_check(options, err);
	if (rc != 0)
		return rc;
	struct ws_trainer *trainer = mem_alloc(sizeof(*trainer));
	if (trainer == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a trainer");
	trainer->inbox_region = UINT32_MAX;
	trainer->wake_fd = -1;
	trainer->reply_fd = -1;
	rc = parts_open(trainer, options, err);
	if (rc != 0) {
		ws_trainer_close(trainer);
		return rc;
	}
	*trainer_out = trainer;
	return 0;
}

void ws_trainer_close(struct ws_trainer *trainer)
{
	if (trainer == NULL)
		return;
	if (trainer->thread_started) {
		atomic_store(&trainer->stop, true);
		mailbox_wake(trainer->wake_fd);
		pthread_join(trainer->thread, NULL);
	}
	hub_left_by(trainer->hub, trainer->member);
	member_close(trainer->member);
	engine_close(trainer->engine);
	memories_unpin(&trainer->pins);
	trainer_wire_release(trainer);
	hub_close(trainer->hub);
	plan_source_release(&trainer->source);
	arena_release(&trainer->arena);
	run_key_wipe(&trainer->key);
	if (trainer->wake_fd >= 0)
		close(trainer->wake_fd);
	if (trainer->reply_fd >= 0)
		close(trainer->reply_fd);
	mem_free(trainer->hub_text);
	mem_free(trainer->verified);
	mem_free(trainer->manifest);
	mem_free(trainer);
}

const char *ws_trainer_hub(const struct ws_trainer *trainer)
{
	return trainer->hub_text;
}

const char *ws_trainer_nics(const struct ws_trainer *trainer)
{
	return trainer->devices.choice;
}

const char *ws_trainer_core(const struct ws_trainer *trainer)
{
	return trainer->devices.core.why;
}

/* ---------------------------------------------------------------- params */

uint32_t ws_trainer_param_count(const struct ws_trainer *trainer)
{
	return trainer->params.count;
}

int ws_trainer_param(const struct ws_trainer *trainer, uint32_t index, const char **name_out,
		     enum ws_dtype *dtype_out, uint64_t *bytes_out)
{
	if (index >= trainer->params.count)
		return -EINVAL;
	const struct param *param = &trainer->params.params[index];
	*name_out = param->name;
	*dtype_out = param->dtype;
	*bytes_out = param->bytes;
	return 0;
}

int ws_trainer_add(struct ws_trainer *trainer, const char *param, const struct ws_memory *memory,
		   struct ws_error *err)
{
	int64_t index = rank_params_find(&trainer->params, param);

	if (trainer->thread_started)
		return ws_fail(err, -EINVAL, "params are added before start");
	if (index < 0)
		return ws_fail(err, -EINVAL,
			       "trainer %u has no param '%s' (it has %u, the first is '%s')",
			       trainer->rank, param, trainer->params.count,
			       trainer->params.count > 0 ? trainer->params.params[0].name : "");
	if (trainer->added[index])
		return ws_fail(err, -EINVAL, "param '%s' was added already", param);
	if (memory->bytes != trainer->params.params[index].bytes)
		return ws_fail(err, -EINVAL, "param '%s' has %llu bytes on trainer %u, not %llu",
			       param, (unsigned long long)trainer->params.params[index].bytes,
			       trainer->rank, (unsigned long long)memory->bytes);
	trainer->memories[index] = *memory;
	trainer->added[index] = true;
	return 0;
}

/* ---------------------------------------------------------------- start */

static int member_start(struct ws_trainer *trainer, uint32_t deadline_ms, struct ws_error *err)
{
	char host[HOST_TEXT_BYTES];

	host_identity(trainer->devices.inside, host);
	struct member_options options = {
		.endpoint = trainer->hub_text,
		.key = &trainer->key,
		.role = ROLE_TRAINER,
		.rank = trainer->rank,
		.world = trainer->world,
		.host = host,
		.nics = trainer->devices.choice,
		.rails = {.nic_count = trainer->devices.count},
		.manifest = trainer->manifest,
		.manifest_bytes = (uint32_t)trainer->manifest_bytes,
		.manifest_digest = manifest_digest(trainer->source.manifest[SIDE_TRAINER]),
		.join_ms = deadline_ms,
	};
	options.rails.count = trainer->devices.count;
	memcpy(options.rails.rail, trainer->devices.rail, sizeof(options.rails.rail));
	return member_open(&trainer->member, &options, err);
}

int ws_trainer_start(struct ws_trainer *trainer, uint32_t deadline_ms, struct ws_error *err)
{
	if (trainer->thread_started)
		return ws_fail(err, -EINVAL, "the trainer was started already");
	for (uint32_t i = 0; i < trainer->params.count; i++)
		if (!trainer->added[i] && trainer->params.params[i].bytes > 0)
			return ws_fail(err, -EINVAL, "param '%s' of trainer %u was never added",
				       trainer->params.params[i].name, trainer->rank);
	if (trainer->offload_device >= 0 && trainer->pins.bases == NULL) {
		int rc = memories_pin(trainer->memories, trainer->params.count,
				      trainer->offload_device, &trainer->pins, err);
		if (rc != 0) {
			memories_unpin(&trainer->pins);
			return rc;
		}
	}
	if (trainer->member == NULL) {
		int rc = member_start(trainer, deadline_ms, err);
		if (rc != 0)
			return rc;
	}
	int rc =
		thread_start(&trainer->thread, trainer->devices.core.cpu, trainer_io_main, trainer);
	if (rc != 0)
		return ws_fail(err, -ENOSPC, "no thread for the I/O of trainer %u: %s",
			       trainer->rank, strerror(rc));
	trainer->thread_started = true;
	struct request request = {.kind = REQUEST_START,
				  .deadline_ns = deadline_in_ms(deadline_ms)};
	return mailbox_ask(trainer, &request, err);
}
