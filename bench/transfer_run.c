/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One contest among its workers: processes of this host, receivers on another one behind a
 * listener, or threads over `loop`, which lives inside one process.  Addresses are passed on
 * between them, then all ends of one contender move, in turns.  The clock of a turn runs from "all
 * are armed" to "all have ended".
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/transfer.h"
#include "bench/worker.h"

struct player {
	struct channel channel;
	char name[24];
	pid_t pid; /* 0: none */
	pthread_t thread;
	bool has_thread;
	int fd; /* a thread's end */
	const struct bench_nics *nics;
};

struct game {
	const struct contest *contest;
	struct player players[2 * WORKERS_MAX]; /* the senders, then the receivers */
	uint32_t count;
};

static bool receives(const struct game *game, uint32_t index)
{
	return index >= game->contest->senders;
}

/* ------------------------------------------------------------------------------- start */

static void *thread_main(void *arg)
{
	struct player *player = arg;
	worker_run(player->fd, player->nics);
	return NULL;
}

/* A worker of this host has the other end of a socket pair. */
static int local_start(struct game *game, uint32_t index, const struct bench_nics *nics,
		       int *fd_out, struct ws_error *err)
{
	struct player *player = &game->players[index];
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
		return ws_fail(err, -EIO, "cannot make a socket pair: %s", strerror(errno));
	*fd_out = fds[0];
	if (strcmp(nics->transport, "loop") == 0) {
		player->fd = fds[1];
		player->nics = nics;
		player->has_thread =
			pthread_create(&player->thread, NULL, thread_main, player) == 0;
		if (player->has_thread)
			return 0;
		close(fds[1]);
		return ws_fail(err, -ENOMEM, "cannot start a thread for %s", player->name);
	}
	fflush(NULL);
	player->pid = fork();
	if (player->pid == 0) {
		/* The end of one worker must be seen by its own channel alone. */
		for (uint32_t i = 0; i < index; i++)
			close(game->players[i].channel.fd);
		close(fds[0]);
		worker_run(fds[1], nics);
		_exit(0);
	}
	close(fds[1]);
	return player->pid > 0
		       ? 0
		       : ws_fail(err, -EIO, "cannot start %s: %s", player->name, strerror(errno));
}

static int player_start(struct game *game, uint32_t index, const struct bench_nics *nics,
			const char *peer, struct ws_error *err)
{
	struct player *player = &game->players[index];
	struct setup setup = {.setup_bytes = sizeof(setup),
			      .receives = receives(game, index),
			      .contest = *game->contest};
	int fd = -1;
	setup.index = setup.receives ? index - game->contest->senders : index;
	snprintf(setup.magic, sizeof(setup.magic), "%s", WORKER_MAGIC);
	snprintf(player->name, sizeof(player->name), "%s %u",
		 setup.receives ? "receiver" : "sender", setup.index);
	int rc = setup.receives && peer != NULL ? channel_connect(peer, &fd, err)
						: local_start(game, index, nics, &fd, err);
	if (fd >= 0) {
		struct ws_error *told = rc == 0 ? err : NULL;
		int opened = channel_open(&player->channel, fd, player->name, told);
		rc = rc == 0 ? opened : rc;
	}
	return rc == 0 ? channel_say(&player->channel, 'o', &setup, sizeof(setup), err) : rc;
}

static void game_end(struct game *game, bool failed)
{
	for (uint32_t i = 0; i < game->count; i++) {
		struct player *player = &game->players[i];
		if (player->channel.frame != NULL && !failed)
			(void)channel_say(&player->channel, 'q', NULL, 0, NULL);
		channel_close(&player->channel);
		if (player->pid > 0 && failed)
			kill(player->pid, SIGKILL);
	}
	uint64_t deadline = deadline_in_ms(CHANNEL_WAIT_MS);
	for (uint32_t i = 0; i < game->count; i++) {
		if (game->players[i].pid > 0)
			(void)child_reap(game->players[i].pid, deadline);
		if (game->players[i].has_thread)
			pthread_join(game->players[i].thread, NULL);
	}
	mem_free(game);
}

/* --------------------------------------------------------------------------- addresses */

/* Entry of this contender and peer in what a player said. */
static const void *address_find(const struct channel *channel, uint32_t entry, size_t *count_out)
{
	struct reader in = reader_make(channel->frame, channel->bytes);
	const void *bytes = NULL;
	for (uint32_t i = 0; i <= entry; i++) {
		*count_out = read_u32(&in);
		bytes = read_bytes(&in, *count_out);
	}
	return in.failed ? NULL : bytes;
}

/* What all others of the other role have for this one. */
static int connect_say(struct game *game, uint32_t index, struct ws_error *err)
{
	const struct contest *contest = game->contest;
	bool mine = receives(game, index);
	uint32_t first = mine ? 0 : contest->senders;
	uint32_t peers = mine ? contest->senders : contest->receivers;
	uint32_t theirs = mine ? contest->receivers : contest->senders;
	uint32_t me = mine ? index - contest->senders : index;
	struct writer out = WRITER_INIT(CHANNEL_FRAME_BYTES_MAX);
	int rc = 0;
	for (uint32_t c = 0; c < contest->contender_count; c++)
		for (uint32_t k = 0; rc == 0 && k < peers; k++) {
			size_t count = 0;
			const struct channel *channel = &game->players[first + k].channel;
			const void *bytes = address_find(channel, c * theirs + me, &count);
			if (bytes == NULL)
				rc = ws_fail(err, -EPROTO, "%s said too few addresses",
					     channel->name);
			write_u32(&out, (uint32_t)count);
			if (rc == 0)
				write_bytes(&out, bytes, count);
		}
	if (rc == 0 && out.failed)
		rc = ws_fail(err, -ENOSPC, "the addresses of %u peers don't fit a frame", peers);
	if (rc == 0)
		rc = channel_say(&game->players[index].channel, 'c', out.bytes, out.count, err);
	writer_release(&out);
	return rc;
}

static int expect_all(struct game *game, char tag, struct ws_error *err)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < game->count; i++)
		rc = channel_expect(&game->players[i].channel, tag, err);
	return rc;
}

static int game_start(struct game *game, const struct bench_nics *nics, const char *peer,
		      struct ws_error *err)
{
	int rc = 0;
	for (uint32_t i = 0; i < ARRAY_SIZE(game->players); i++)
		game->players[i].channel = (struct channel)CHANNEL_INIT;
	while (rc == 0 && game->count < game->contest->senders + game->contest->receivers)
		rc = player_start(game, game->count++, nics, peer, err);
	if (rc == 0)
		rc = expect_all(game, 'a', err);
	for (uint32_t i = 0; rc == 0 && i < game->count; i++)
		rc = connect_say(game, i, err);
	return rc == 0 ? expect_all(game, 'k', err) : rc;
}

/* ------------------------------------------------------------------------------- turns */

static int outcomes_hear(struct game *game, struct outcome *outcomes, struct ws_error *err)
{
	int rc = expect_all(game, 'd', err);
	for (uint32_t i = 0; rc == 0 && i < game->count; i++) {
		const struct channel *channel = &game->players[i].channel;
		if (channel->bytes != sizeof(outcomes[i]))
			return ws_fail(err, -EPROTO, "%s said no outcome", channel->name);
		memcpy(&outcomes[i], channel->frame, sizeof(outcomes[i]));
	}
	return rc;
}

static int turn_play(struct game *game, uint8_t contender, uint64_t *ns_out,
		     struct outcome *outcomes, struct ws_error *err)
{
	int rc = 0;
	/* Receivers first: whoever is armed may be written to. */
	for (uint32_t i = game->count; rc == 0 && i-- > 0;) {
		struct channel *channel = &game->players[i].channel;
		rc = channel_say(channel, 't', &contender, 1, err);
		if (rc == 0)
			rc = channel_expect(channel, 'r', err);
	}
	uint64_t begin = clock_ns();
	for (uint32_t i = game->count; rc == 0 && i-- > 0;)
		rc = channel_say(&game->players[i].channel, 'g', NULL, 0, err);
	if (rc == 0)
		rc = outcomes_hear(game, outcomes, err);
	*ns_out = clock_ns() - begin;
	return rc;
}

static void turn_count(const struct game *game, uint32_t contender, uint64_t ns, uint32_t round,
		       const struct outcome *outcomes, struct score *score)
{
	struct rounds *rounds = &score->rounds[contender];
	uint64_t own_ns = outcomes[0].ns;
	rounds->gbytes[round] =
		(double)contest_bytes(game->contest) / (double)(own_ns != 0 ? own_ns : ns);
	rounds->p50_us[round] = outcomes[0].p50_us;
	rounds->p99_us[round] = outcomes[0].p99_us;
	score->page_bytes = outcomes[0].page_bytes;
	for (uint32_t i = 0; contender == 0 && i < game->contest->senders; i++)
		for (uint32_t k = 0; k < MIN(outcomes[i].nic_count, NICS_MAX); k++)
			score->nic_bytes[k] += outcomes[i].bytes[k];
}

/* Who goes first changes from round to round. */
static int game_play(struct game *game, struct score *score, struct ws_error *err)
{
	struct outcome outcomes[2 * WORKERS_MAX] = {0};
	uint32_t contenders = game->contest->contender_count;
	int rc = 0;
	for (uint32_t round = 0; round <= score->round_count && rc == 0; round++)
		for (uint32_t k = 0; k < contenders && rc == 0; k++) {
			uint32_t contender = (round + k) % contenders;
			uint64_t ns;
			rc = turn_play(game, (uint8_t)contender, &ns, outcomes, err);
			if (rc == 0 && round > 0)
				turn_count(game, contender, ns, round - 1, outcomes, score);
		}
	return rc;
}

int transfer_run(const struct contest *contest, const struct bench_nics *nics, const char *peer,
		 struct score *score, struct ws_error *err)
{
	struct game *game = mem_alloc(sizeof(*game));
	if (game == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u workers",
			       contest->senders + contest->receivers);
	game->contest = score->contest = contest;
	int rc = game_start(game, nics, peer, err);
	if (rc == 0)
		rc = game_play(game, score, err);
	game_end(game, rc != 0);
	return rc;
}
