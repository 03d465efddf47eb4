/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member of `bench overhead`: an engine or a trainer with one small tensor, as an application has
 * it, and one end of a star of TCP connections, around which bare bytes go as often as the hub's.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/overhead.h"
#include "rollout_side/ws_rollout.h"
#include "trainer_side/ws_trainer.h"

struct member {
	const struct overhead_job *job;
	uint32_t number;
	bool trains;
	char manifest[512];
	struct ws_memory memory;    /* owned */
	struct ws_trainer *trainer; /* owned, as all below; one of the two */
	struct ws_rollout *rollout;
	struct channel channel;
};

/* One tensor, cut over the ranks of a side; each trainer has 128 bytes for each rollout. */
static void manifest_write(struct member *member)
{
	const struct overhead_job *job = member->job;
	uint32_t world = member->trains ? job->trainers : job->rollouts;

	snprintf(member->manifest, sizeof(member->manifest),
		 "{\"ws_manifest\":1,\"side\":\"%s\",\"framework\":\"bench\",\"model\":\"small\","
		 "\"world\":%u,"
		 "\"tensors\":[{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":[%u,64]}],"
		 "\"meshes\":{\"dense\":{\"axes\":[[\"dp\",%u]]}},"
		 "\"params\":[{\"p\":\"w\",\"mesh\":\"dense\","
		 "\"x\":[\"s\",[\"t\",\"w\"],0,\"dp\"]}]}",
		 member->trains ? "trainer" : "rollout", world, job->trainers * job->rollouts,
		 world);
}

/* Of so many bytes; the allocation is of whole pages. */
static int memory_make(struct member *member, uint64_t bytes, struct ws_memory *param_out,
		       struct ws_error *err)
{
	int rc = ws_memory_alloc(&member->memory, bytes, err);

	*param_out = member->memory;
	param_out->bytes = bytes;
	return rc;
}

static int trainer_open(struct member *member, const char *hub, struct ws_error *err)
{
	const struct ws_trainer_options options = {
		.hub = hub,
		.hub_here = member->number == 0,
		.key_file = member->job->key_path,
		.rank = member->number,
		.world = member->job->trainers,
		.manifest = member->manifest,
		.manifest_bytes = strlen(member->manifest),
		.transport = "ipc",
		.replica_ranks = member->job->rollouts,
	};
	struct ws_memory param;
	const char *name;
	enum ws_dtype dtype;
	uint64_t bytes;

	int rc = ws_trainer_open(&member->trainer, &options, err);
	if (rc == 0)
		rc = ws_trainer_param(member->trainer, 0, &name, &dtype, &bytes);
	if (rc == 0)
		rc = memory_make(member, bytes, &param, err);
	return rc == 0 ? ws_trainer_add(member->trainer, name, &param, err) : rc;
}

static int rollout_open(struct member *member, const char *hub, struct ws_error *err)
{
	const struct ws_rollout_options options = {
		.hub = hub,
		.key_file = member->job->key_path,
		.rank = member->number - member->job->trainers,
		.world = member->job->rollouts,
		.manifest = member->manifest,
		.manifest_bytes = strlen(member->manifest),
		.transport = "ipc",
		.buffers = member->job->inplace ? WS_INPLACE : WS_DOUBLE,
	};
	const struct ws_rollout_hooks hooks = {0};
	struct ws_memory param;
	const char *name;
	enum ws_dtype dtype;
	uint64_t bytes;

	int rc = ws_rollout_open(&member->rollout, &options, &hooks, NULL, err);
	if (rc == 0)
		rc = ws_rollout_param(member->rollout, 0, &name, &dtype, &bytes);
	if (rc == 0)
		rc = memory_make(member, bytes, &param, err);
	return rc == 0 ? ws_rollout_add(member->rollout, name, &param, err) : rc;
}

/* ------------------------------------------------------------------------------- an update */

static int push(struct member *member, uint64_t version, struct ws_error *err)
{
	struct ws_report report;

	int rc = ws_trainer_push(member->trainer, version, OVERHEAD_WAIT_MS, &report, err);
	if (rc != 0)
		return rc;
	const struct overhead_times times = {
		.begin = (double)report.begin_ns / 1e9,
		.transfer = (double)(report.landed_ns - report.begin_ns) / 1e9,
		.pause = (double)report.pause_ns / 1e9,
		.reload = (double)report.reload_ns / 1e9,
		.total = (double)report.total_ns / 1e9,
	};
	return channel_say(&member->channel, 'd', &times, sizeof(times), err);
}

static int serve(struct member *member, uint64_t version, struct ws_error *err)
{
	struct ws_rollout *rollout = member->rollout;
	struct pollfd fd = {.fd = ws_rollout_fd(rollout), .events = POLLIN};
	uint64_t until = deadline_in_ms(OVERHEAD_WAIT_MS);

	int rc = channel_say(&member->channel, 'r', NULL, 0, err);
	while (rc == 0 &&
	       (ws_rollout_version(rollout) != version || !ws_rollout_serving(rollout))) {
		if (clock_ns() > until)
			return ws_fail(err, -ETIMEDOUT, "version %llu isn't live after %u s",
				       (unsigned long long)version, OVERHEAD_WAIT_MS / 1000);
		(void)poll(&fd, 1, 100);
		rc = ws_rollout_step(rollout, err);
	}
	return rc == 0 ? channel_say(&member->channel, 'd', NULL, 0, err) : rc;
}

/* ------------------------------------------------------------------------------- the star */

static int star_pass(int fd, bool sends, struct ws_error *err)
{
	uint8_t bytes[OVERHEAD_STAR_BYTES] = {0};
	ssize_t moved = sends ? send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL)
			      : recv(fd, bytes, sizeof(bytes), MSG_WAITALL);

	if (moved != (ssize_t)sizeof(bytes))
		return ws_fail(err, -ECONNRESET, "the star broke: %s", strerror(errno));
	return 0;
}

static int star_play(struct member *member, struct ws_error *err)
{
	const struct overhead_job *job = member->job;
	uint32_t members = job->trainers + job->rollouts;
	bool is_hub = member->number == 0;
	uint64_t begin = clock_ns();
	int rc = 0;

	for (uint32_t trip = 0; rc == 0 && trip < OVERHEAD_STAR_TRIPS; trip++) {
		for (uint32_t way = 0; rc == 0 && !is_hub && way < 2; way++)
			rc = star_pass(job->star[member->number][1], way == 1, err);
		for (uint32_t i = 1; rc == 0 && is_hub && i < members; i++)
			rc = star_pass(job->star[i][0], true, err);
		for (uint32_t i = 1; rc == 0 && is_hub && i < members; i++)
			rc = star_pass(job->star[i][0], false, err);
	}
	double seconds = (double)(clock_ns() - begin) / 1e9;
	return rc == 0 ? channel_say(&member->channel, 'd', &seconds, sizeof(seconds), err) : rc;
}

/* ------------------------------------------------------------------------------- the process */

static int meet(struct member *member, struct ws_error *err)
{
	const char *hub = (const char *)member->channel.frame;
	int rc = 0;

	if (!member->trains)
		rc = rollout_open(member, hub, err);
	else if (member->trainer == NULL)
		rc = trainer_open(member, hub, err);
	if (rc == 0)
		rc = member->trains ? ws_trainer_start(member->trainer, OVERHEAD_WAIT_MS, err)
				    : ws_rollout_start(member->rollout, OVERHEAD_WAIT_MS, err);
	return rc == 0 ? channel_say(&member->channel, 'k', NULL, 0, err) : rc;
}

static int hub_say(struct member *member, struct ws_error *err)
{
	int rc = trainer_open(member, "tcp://127.0.0.1:*", err);
	if (rc != 0)
		return rc;
	const char *hub = ws_trainer_hub(member->trainer);
	return channel_say(&member->channel, 'h', hub, strlen(hub) + 1, err);
}

static int do_as_told(struct member *member, char tag, struct ws_error *err)
{
	struct reader in = reader_make(member->channel.frame, member->channel.bytes);

	switch (tag) {
	case 'o':
		return meet(member, err);
	case 'u':
		return member->trains ? push(member, read_u64(&in), err)
				      : serve(member, read_u64(&in), err);
	case 's':
		return star_play(member, err);
	}
	return ws_fail(err, -EPROTO, "nobody says '%c' here", tag);
}

void overhead_member(const struct overhead_job *job, uint32_t number, int fd)
{
	struct member member = {.job = job, .number = number, .trains = number < job->trainers};
	struct ws_error err = {0};
	char tag = 'o';

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	manifest_write(&member);
	int rc = channel_open(&member.channel, fd, "the bench", &err);
	if (rc == 0 && number == 0)
		rc = hub_say(&member, &err);
	while (rc == 0 && tag != 'q') { /* the channel has a deadline */
		rc = channel_hear(&member.channel, &tag, &err);
		if (rc == 0 && tag != 'q')
			rc = do_as_told(&member, tag, &err);
	}
	if (rc != 0 && member.channel.frame != NULL)
		channel_say_error(&member.channel, &err);
	ws_trainer_close(member.trainer);
	ws_rollout_close(member.rollout);
	ws_memory_free(&member.memory);
	channel_close(&member.channel);
	_exit(0);
}
