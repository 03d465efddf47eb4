/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rollout rank of a job: an engine that does nothing but hold weights.  Each version that goes
 * live is compared with the oracle (--verify), written to a file (--dump) or told to a command
 * (--on-reload).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "cli/roles.h"

#define HUB_GONE_MS 30000 /* a hub that doesn't come back by then is gone for good */
#define ARGV_MAX    64

extern char **environ;

struct holder {
	struct job *job;
	struct ws_rollout *rollout;
	struct rank_memory memory;
	struct post_tools *tools;
	struct oracle *oracle; /* NULL without --verify */
	struct sent sent;      /* what it passed on */
	uint64_t live;	       /* the version that was resumed last */
	uint64_t seen;	       /* the version that is live here, 0: none */
	uint64_t digest;       /* of its bytes, with --verify */
	int status;
};

/* A param, or what is derived of some. */
struct held {
	const char *name;
	enum ws_dtype dtype;
	const void *memory; /* at the host */
	uint64_t bytes;
	uint32_t dim_count;
	const uint64_t *dim;
};

static uint32_t held_count(const struct rank_memory *memory)
{
	return memory->params.count + memory->steps.derived_count;
}

static struct held held_at(const struct rank_memory *memory, uint32_t index)
{
	if (index < memory->params.count) {
		const struct param *param = &memory->params.params[index];
		return (struct held){.name = param->name,
				     .dtype = param->dtype,
				     .memory = param_bytes(memory, index),
				     .bytes = param->bytes,
				     .dim_count = param->form->dim_count,
				     .dim = param->form->dim};
	}
	index -= memory->params.count;
	const struct step_made *made = &memory->steps.made[index];
	return (struct held){.name = made->name,
			     .dtype = made->dtype,
			     .memory = derived_bytes(memory, index),
			     .bytes = made->bytes,
			     .dim_count = made->dim_count,
			     .dim = made->dim};
}

/* Of all params together.  The engine is paused inside a hook, so the bytes are still. */
static int weights_digest(const struct holder *holder, uint64_t *digest_out, struct ws_error *err)
{
	uint64_t all = 0;
	int rc = rank_memory_get(&holder->memory, err);
	for (uint32_t i = 0; rc == 0 && i < held_count(&holder->memory); i++) {
		struct held held = held_at(&holder->memory, i);
		all ^= digest_bytes(held.memory, held.bytes,
				    digest_bytes(held.name, strlen(held.name), 0));
	}
	*digest_out = all;
	return rc;
}

/* Starts CMD with the version in its environment; argv is split at blanks, no shell. */
static int start_command(const struct holder *holder, const char *text, uint64_t version,
			 pid_t *pid_out, struct ws_error *err)
{
	struct arena arena = {0};
	char *argv[ARGV_MAX + 1] = {0};
	char *envp[512] = {0};
	char *rest = arena_copy(&arena, text, strlen(text)), *word;
	size_t count = 0, env_count = 0;
	uint64_t digest;

	int rc = weights_digest(holder, &digest, err);
	if (rc != 0)
		return rc;
	while (rest != NULL && count < ARGV_MAX && (word = strsep(&rest, " ")) != NULL)
		if (*word != '\0')
			argv[count++] = word;
	for (char **at = environ; *at != NULL && env_count < ARRAY_SIZE(envp) - 5; at++)
		envp[env_count++] = *at;
	envp[env_count++] = arena_text(&arena, "WEIGHTSYNC_VERSION=%" PRIu64, version);
	envp[env_count++] = arena_text(&arena, "WEIGHTSYNC_DIGEST=%016" PRIx64, digest);
	envp[env_count++] = arena_text(&arena, "WEIGHTSYNC_REPLICA=%u", holder->job->replica);
	envp[env_count++] = arena_text(&arena, "WEIGHTSYNC_RANK=%u", holder->job->rank);
	rc = count == 0 ? ENOENT : posix_spawnp(pid_out, argv[0], NULL, NULL, argv, envp);
	if (rc != 0)
		ws_fail(err, -rc, "cannot start '%s': %s", text, strerror(rc));
	arena_release(&arena);
	return -rc;
}

static int run_command(const struct holder *holder, const char *text, uint64_t version,
		       struct ws_error *err)
{
	pid_t pid = -1;
	int state = 0;
	uint64_t until = deadline_in_ms(holder->job->reload_ms);

	int rc = start_command(holder, text, version, &pid, err);
	if (rc != 0)
		return rc;
	for (;;) {
		pid_t ended = waitpid(pid, &state, WNOHANG);
		if (ended == pid)
			break;
		if (ended < 0)
			return ws_fail(err, -errno, "cannot wait for '%s': %s", text,
				       strerror(errno));
		if (clock_ns() > until || stop_asked()) {
			kill(pid, SIGKILL);
			waitpid(pid, &state, 0);
			return ws_fail(err, -ETIMEDOUT,
				       "'%s' hadn't ended after %u ms and was killed", text,
				       holder->job->reload_ms);
		}
		sleep_ns(2000000);
	}
	if (WIFSIGNALED(state))
		return ws_fail(err, -EIO, "'%s' was ended by signal %d", text, WTERMSIG(state));
	if (WEXITSTATUS(state) != 0)
		return ws_fail(err, -EIO, "'%s' ended with status %d", text, WEXITSTATUS(state));
	return 0;
}

/* What --verbose says of an update. */
static void say_progress(const struct holder *holder, uint64_t version, const char *what)
{
	if (holder->job->verbose)
		say("weightsync: rollout %u.%u: version %" PRIu64 " %s", holder->job->replica,
		    holder->job->rank, version, what);
}

static int on_begin(void *arg, uint64_t version, struct ws_error *err)
{
	(void)err;
	say_progress(arg, version, "begins");
	return 0;
}

static int on_pause(void *arg, uint64_t version, struct ws_error *err)
{
	(void)err;
	say_progress(arg, version, "has landed");
	return 0;
}

static int on_reload(void *arg, uint64_t version, struct ws_error *err)
{
	const struct holder *holder = arg;
	const char *wanted = holder->job->on_reload;
	if (wanted == NULL)
		return 0;
	return run_command(holder, wanted + strlen("exec:"), version, err);
}

static void on_abort(void *arg, uint64_t version, bool serving_old, const struct ws_error *why)
{
	struct holder *holder = arg;
	struct ws_error err = {0};
	uint64_t digest;
	say("weightsync: rollout %u.%u: version %" PRIu64 " was aborted, %s: %s",
	    holder->job->replica, holder->job->rank, version,
	    serving_old ? "the old weights stay" : "the memory is poisoned until a later version",
	    why->text);
	if (!serving_old)
		holder->live = holder->seen = 0;
	if (holder->oracle == NULL || holder->seen == 0)
		return;
	/* They were compared with the oracle when they went live; now nothing may have moved. */
	if (weights_digest(holder, &digest, &err) != 0) {
		holder->status = say_failure(&err);
	} else if (digest != holder->digest) {
		say("weightsync: rollout %u.%u: version %" PRIu64
		    " has changed under an update that was aborted",
		    holder->job->replica, holder->job->rank, holder->seen);
		holder->status = EXIT_DIFFERENT;
	} else {
		say_progress(holder, holder->seen, "is whole");
	}
}

/* What weights_digest has brought to the host. */
static int verify_version(struct holder *holder, uint64_t version, struct ws_error *err)
{
	uint64_t verified = 0, different = 0, contents = holder->job->change ? version : 0;
	struct ws_error first = {0};
	for (uint32_t i = 0; i < held_count(&holder->memory); i++) {
		struct held held = held_at(&holder->memory, i);
		uint64_t bytes = 0, bad = 0;
		int rc = oracle_compare(holder->oracle, held.name, held.dtype, held.memory,
					held.bytes, contents, &bytes, &bad,
					first.code == 0 ? &first : NULL, err);
		if (rc != 0)
			return ws_fail_in(err, rc, "cannot verify version %" PRIu64, version);
		verified += bytes;
		different += bad;
	}
	if (different != 0) {
		say("weightsync: rollout %u.%u: version %" PRIu64 ": %" PRIu64
		    " bytes differ; first: %s",
		    holder->job->replica, holder->job->rank, version, different, first.text);
		holder->status = EXIT_DIFFERENT;
	}
	ws_rollout_say_verified(holder->rollout, version, verified, different);
	return 0;
}

/* {dump}.safetensors; with several ranks each writes its own: r0-1.FILE */
static int dump_version(const struct holder *holder, struct ws_error *err)
{
	const struct rank_memory *memory = &holder->memory;
	struct st_writer file = ST_WRITER_INIT;
	struct arena arena = {0};
	char path[4096];

	snprintf(path, sizeof(path), "%s", holder->job->dump);
	if (holder->job->world > 1) {
		const char *slash = strrchr(holder->job->dump, '/');
		int folder = slash == NULL ? 0 : (int)(slash - holder->job->dump) + 1;
		snprintf(path, sizeof(path), "%.*srank%u.%s", folder, holder->job->dump,
			 holder->job->rank, holder->job->dump + folder);
	}
	uint32_t count = held_count(memory);
	struct st_tensor *tensors = arena_array(&arena, count, sizeof(*tensors));
	if (tensors == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the dump's header");
	for (uint32_t i = 0; i < count; i++) {
		struct held held = held_at(memory, i);
		tensors[i] = (struct st_tensor){.name = held.name,
						.dtype = held.dtype,
						.dim_count = held.dim_count,
						.bytes = held.bytes};
		for (uint32_t d = 0; d < held.dim_count; d++)
			tensors[i].dim[d] = held.dim[d];
	}
	int rc = rank_memory_get(memory, err);
	if (rc == 0)
		rc = st_writer_begin(&file, path, tensors, count, err);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		struct held held = held_at(memory, i);
		rc = st_writer_add(&file, held.memory, held.bytes, err);
	}
	if (rc == 0)
		rc = st_writer_end(&file, err);
	st_writer_close(&file);
	arena_release(&arena);
	return rc;
}

static int on_resume(void *arg, uint64_t version, struct ws_error *err)
{
	struct holder *holder = arg;
	(void)err;
	holder->live = version;
	return 0;
}

/* Once, what --verbose says of how writes come here. */
static void say_memory(const struct holder *holder, const struct ws_rollout_report *report)
{
	if (!holder->job->verbose || holder->seen != 0)
		return;
	for (uint32_t i = 0; i < report->nic_count; i++)
		if (report->nics[i].memory[0] != '\0')
			say("weightsync: rollout %u.%u: memory is reached by %s over %s",
			    holder->job->replica, holder->job->rank, report->nics[i].memory,
			    report->nics[i].name);
}

/* A version is live: the engine would serve it; this one looks at it.  Not in the hook, whose time
 * is the update's. */
static int look(struct holder *holder, struct ws_error *err)
{
	uint64_t version = holder->live;
	struct ws_rollout_report report;
	int rc = 0;
	ws_rollout_last(holder->rollout, &report);
	say_memory(holder, &report);
	sent_add(&holder->sent, report.nics, report.nic_count);
	holder->seen = version;
	if (holder->oracle != NULL) {
		rc = weights_digest(holder, &holder->digest, err);
		if (rc == 0)
			rc = verify_version(holder, version, err);
	}
	if (rc == 0 && holder->job->dump != NULL)
		rc = dump_version(holder, err);
	if (rc == 0 && holder->job->verbose && report.post_count > 0)
		say("weightsync: rollout %u.%u: %" PRIu32 " post steps took %.3f s",
		    holder->job->replica, holder->job->rank, report.post_count,
		    (double)report.post_ns / 1e9);
	if (rc == 0)
		say_progress(holder, version, "is live");
	return rc;
}

static int open_rollout(struct holder *holder, struct ws_error *err)
{
	struct job *job = holder->job;
	char host[64] = "", who[32];
	if (job->ranks_per_node != 0)
		snprintf(host, sizeof(host), "node-%u-%u", job->replica,
			 job->rank / job->ranks_per_node);
	struct ws_rollout_options options = {
		.hub = job->hub,
		.key_file = job->key_file,
		.replica = job->replica,
		.rank = job->rank,
		.world = job->world,
		.manifest = job->rollout_text,
		.manifest_bytes = job->rollout_bytes,
		.transport = job->transport,
		.provider = job->provider,
		.nics = job->nics,
		.nic_count = job->nic_count,
		.gpu = job->gpu,
		.local_rank = job->launch.local_rank,
		.local_ranks = job->launch.local_ranks,
		.host = host[0] != '\0' ? host : job->host,
		.buffers = job->inplace ? WS_INPLACE : WS_DOUBLE,
	};
	/* on_begin waits for a step of the engine; nobody else needs that in double mode. */
	struct ws_rollout_hooks hooks = {.on_begin = job->verbose ? on_begin : NULL,
					 .on_pause = on_pause,
					 .on_reload = on_reload,
					 .on_resume = on_resume,
					 .on_abort = on_abort};

	int rc = rank_memory_make(&holder->memory, job->rollout, job->rank, job->rollout_memory,
				  &job->launch, err);
	if (rc == 0 && job->verify)
		rc = oracle_open(&holder->oracle, job->trainer_text, job->trainer_bytes,
				 job->rollout_text, job->rollout_bytes, job->rank, &job->checkpoint,
				 err);
	if (rc == 0)
		rc = ws_rollout_open(&holder->rollout, &options, &hooks, holder, err);
	if (rc == 0) {
		snprintf(who, sizeof(who), "rollout %u.%u", job->replica, job->rank);
		say_nics(who, ws_rollout_nics(holder->rollout));
		if (job->verbose)
			say_core(who, ws_rollout_core(holder->rollout));
	}
	for (uint32_t i = 0; rc == 0 && i < held_count(&holder->memory); i++) {
		uint32_t params = holder->memory.params.count;
		struct ws_memory at = i < params ? param_memory(&holder->memory, i)
						 : derived_memory(&holder->memory, i - params);
		if (at.bytes > 0)
			rc = ws_rollout_add(holder->rollout, held_at(&holder->memory, i).name, &at,
					    err);
	}
	if (rc == 0)
		rc = post_tools_open(&holder->tools, holder->rollout, &holder->memory, err);
	if (rc == 0) {
		end_on_signal(who);
		rc = ws_rollout_start(holder->rollout, job->start_ms, err);
		end_on_signal(NULL);
	}
	return rc;
}

/* Says once that the hub is silent, once that it is heard again; false: it was silent too long. */
static bool hub_watch(const struct holder *holder, bool silent, uint64_t *gone_until)
{
	const struct job *job = holder->job;
	if (silent && *gone_until == 0) {
		*gone_until = deadline_in_ms(HUB_GONE_MS);
		say("weightsync: rollout %u.%u: the hub at '%s' is silent; waiting %u s for it",
		    job->replica, job->rank, job->hub, HUB_GONE_MS / 1000);
	} else if (!silent && *gone_until != 0) {
		*gone_until = 0;
		say("weightsync: rollout %u.%u: the hub at '%s' is back", job->replica, job->rank,
		    job->hub);
	}
	return !silent || clock_ns() < *gone_until;
}

/* The engine's loop.  0: the run ended normally. */
static int step_until_over(struct holder *holder, struct ws_error *err)
{
	uint64_t gone_until = 0;
	for (;;) {
		struct pollfd fd = {.fd = ws_rollout_fd(holder->rollout), .events = POLLIN};
		if (poll(&fd, 1, 50) < 0 && errno != EINTR)
			return ws_fail(err, -errno, "cannot wait: %s", strerror(errno));
		if (stop_asked())
			return ws_fail(err, -ECANCELED, "stopped by a signal");
		int rc = ws_rollout_step(holder->rollout, err);
		if (rc == -ECANCELED)
			return 0;
		if (rc != 0 && rc != -ECONNRESET)
			return rc;
		if (!hub_watch(holder, rc != 0, &gone_until))
			return ws_fail(err, rc,
				       "the hub at '%s' was silent for %u s: start the run again",
				       holder->job->hub, HUB_GONE_MS / 1000);
		if (holder->live != holder->seen && (rc = look(holder, err)) != 0)
			return rc;
	}
}

int rollout_role(struct job *job)
{
	struct holder holder = {.job = job};
	struct ws_error err = {0};
	char who[32];

	int rc = open_rollout(&holder, &err);
	if (rc == 0)
		rc = step_until_over(&holder, &err);
	if (rc != 0) {
		ws_fail_in(&err, rc, "rollout %u.%u", job->replica, job->rank);
		say_failure(&err);
		holder.status = holder.status != EXIT_OK ? holder.status : EXIT_FAILED;
	}
	snprintf(who, sizeof(who), "rollout %u.%u", job->replica, job->rank);
	say_sent(who, &holder.sent);
	ws_rollout_close(holder.rollout);
	post_tools_close(holder.tools);
	oracle_close(holder.oracle);
	rank_memory_release(&holder.memory);
	return holder.status;
}
