/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rollout's process of `bench update`: an engine that does nothing but hold weights on a GPU,
 * and the receiving end of the baselines.  Does what it is told, and answers when it is done.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#include "bench/update.h"

struct peer_state {
	struct update_rank rank;
	struct ws_rollout *rollout; /* owned */
};

static int peer_start(struct peer_state *peer, const char *hub, struct ws_error *err)
{
	const struct update_job *job = peer->rank.job;
	const struct ws_rollout_options options = {
		.hub = hub,
		.key_file = job->key_path,
		.world = 1,
		.manifest = (const char *)job->text[SIDE_ROLLOUT].bytes,
		.manifest_bytes = job->text[SIDE_ROLLOUT].count,
		.transport = "ipc",
		.buffers = WS_INPLACE,
	};
	const struct ws_rollout_hooks hooks = {0};
	const struct rank_params *params = &peer->rank.params[SIDE_ROLLOUT];

	int rc = ws_rollout_open(&peer->rollout, &options, &hooks, NULL, err);
	for (uint32_t i = 0; rc == 0 && i < params->count; i++) {
		const struct ws_memory memory = update_param(&peer->rank, SIDE_ROLLOUT, i);
		if (memory.bytes > 0)
			rc = ws_rollout_add(peer->rollout, params->params[i].name, &memory, err);
	}
	return rc == 0 ? ws_rollout_start(peer->rollout, UPDATE_WAIT_MS, err) : rc;
}

static int peer_push(struct peer_state *peer, uint64_t version, struct ws_error *err)
{
	struct pollfd fd = {.fd = ws_rollout_fd(peer->rollout), .events = POLLIN};
	uint64_t until = deadline_in_ms(UPDATE_WAIT_MS);
	int rc = 0;

	while (rc == 0 && (ws_rollout_version(peer->rollout) != version ||
			   !ws_rollout_serving(peer->rollout))) {
		if (clock_ns() > until)
			return ws_fail(err, -ETIMEDOUT, "version %llu isn't live after %u s",
				       (unsigned long long)version, UPDATE_WAIT_MS / 1000);
		(void)poll(&fd, 1, 100);
		rc = ws_rollout_step(peer->rollout, err);
	}
	return rc;
}

static int peer_verify(struct peer_state *peer, uint64_t *different_out, struct ws_error *err)
{
	struct update_rank *rank = &peer->rank;
	int rc = memory_zero(&rank->count, 0, sizeof(uint64_t), err);

	if (rc == 0)
		rc = cuda_use(rank->device, err);
	for (uint32_t i = 0; rc == 0 && i < rank->run_count; i++)
		rc = differ_launch((uint8_t *)rank->source.base + rank->runs[i].from,
				   (uint8_t *)rank->target.base + rank->runs[i].to,
				   rank->runs[i].bytes, rank->count.base, rank->queue.stream, err);
	if (rc == 0)
		rc = update_weights_verify(rank, err);
	if (rc == 0)
		rc = update_queue_wait(rank, err);
	if (rc == 0)
		rc = memory_read(&rank->count, 0, different_out, sizeof(uint64_t), err);
	return rc;
}

static int peer_join(struct peer_state *peer, const struct nccl_id *id, struct ws_error *err)
{
	struct update_rank *rank = &peer->rank;
	int rc = nccl_load(&rank->nccl, rank->job->options->nccl, err);

	return rc == 0 ? update_join(rank, id, 1, err) : rc;
}

static int peer_do(struct peer_state *peer, const struct update_message *told,
		   struct update_message *answer, struct ws_error *err)
{
	switch (told->word) {
	case UPDATE_START:
		return peer_start(peer, told->text, err);
	case UPDATE_CLEAR:
		return memory_zero(&peer->rank.target, 0, peer->rank.target.bytes, err);
	case UPDATE_PUSH:
		return peer_push(peer, told->value, err);
	case UPDATE_VERIFY:
		return peer_verify(peer, &answer->value, err);
	case UPDATE_SHARE:
		return cuda_share_make(&peer->rank.target, &answer->share, err);
	case UPDATE_NCCL:
		return peer_join(peer, &told->id, err);
	case UPDATE_BUCKETS:
	case UPDATE_TENSORS:
		return update_broadcast(&peer->rank, SIDE_ROLLOUT, told->word == UPDATE_BUCKETS,
					err);
	case UPDATE_END:
		return 0;
	}
	return ws_fail(err, -EPROTO, "nobody says %d here", (int)told->word);
}

void update_peer(const struct update_job *job, int socket)
{
	struct peer_state peer = {.rank = {.job = job, .socket = socket}};
	struct update_message told = {0}, answer = {0};
	struct ws_error err = {0};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int rc = update_rank_open(&peer.rank, SIDE_ROLLOUT, &err);
	do {
		answer.rc = rc;
		if (rc != 0)
			snprintf(answer.text, sizeof(answer.text), "%.*s",
				 (int)sizeof(answer.text) - 1, err.text);
		if (update_say(socket, &answer, &err) != 0 || told.word == UPDATE_END ||
		    update_hear(socket, &told, &err) != 0)
			break;
		answer = (struct update_message){.word = told.word};
		rc = peer_do(&peer, &told, &answer, &err);
	} while (true);
	if (nccl_hangs(peer.rank.nccl))
		_exit(1);
	ws_rollout_close(peer.rollout);
	update_rank_close(&peer.rank);
	_exit(0);
}
