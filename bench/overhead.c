/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an update costs besides its bytes: updates of a few bytes within this host over ipc, by
 * trainers and rollouts that are a process each, in turns with a star of TCP connections between
 * the same processes, around which bare bytes go as often as an update needs the hub.
 */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/measure.h"
#include "bench/overhead.h"
#include "lib/link/link.h"

#define ROUNDS_DEFAULT 200
#define REST_NS	       UINT64_C(5000000) /* between turns: an update begins with nothing under way */

struct player {
	struct channel channel;
	char name[16];
	pid_t pid; /* 0: none */
};

enum phase { BEGIN, TRANSFER, PAUSE, RELOAD, TOTAL, STAR, PHASE_COUNT };

static const char *const phases[] = {"begin", "transfer", "pause", "reload", "total", "star"};

struct game {
	struct overhead_job job;
	struct player players[OVERHEAD_MEMBERS_MAX];
	uint32_t count; /* of them */
	uint64_t version;
	double seconds[PHASE_COUNT][BENCH_ROUNDS_MAX];
};

/* ------------------------------------------------------------------------------- start */

/* Both ends of one TCP connection of this host. */
static int tcp_pair(int fds_out[2], struct ws_error *err)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t room = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	bool good = listener >= 0 && bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 &&
		    listen(listener, 1) == 0 &&
		    getsockname(listener, (struct sockaddr *)&at, &room) == 0;

	fds_out[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	good = good && fds_out[1] >= 0 &&
	       connect(fds_out[1], (struct sockaddr *)&at, sizeof(at)) == 0;
	fds_out[0] = good ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
	int error = errno;
	if (listener >= 0)
		close(listener);
	if (fds_out[0] < 0)
		return ws_fail(err, -error, "cannot make a TCP connection within this host: %s",
			       strerror(error));
	for (int i = 0; i < 2; i++)
		(void)setsockopt(fds_out[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return 0;
}

static int job_make(struct overhead_job *job, struct ws_error *err)
{
	struct run_key key;
	int rc = 0;

	for (uint32_t i = 0; i < OVERHEAD_MEMBERS_MAX; i++)
		job->star[i][0] = job->star[i][1] = -1;
	snprintf(job->folder, sizeof(job->folder), "/tmp/weightsync-bench-XXXXXX");
	if (mkdtemp(job->folder) == NULL) {
		job->folder[0] = '\0';
		return ws_fail(err, -EIO, "cannot make a folder in /tmp: %s", strerror(errno));
	}
	snprintf(job->key_path, sizeof(job->key_path), "%s/key", job->folder);
	for (uint32_t i = 1; rc == 0 && i < job->trainers + job->rollouts; i++)
		rc = tcp_pair(job->star[i], err);
	if (rc == 0)
		rc = run_key_make(&key, err);
	return rc == 0 ? run_key_write(&key, job->key_path, err) : rc;
}

static void job_release(struct overhead_job *job)
{
	for (uint32_t i = 0; i < OVERHEAD_MEMBERS_MAX; i++)
		for (uint32_t end = 0; end < 2; end++)
			if (job->star[i][end] >= 0)
				close(job->star[i][end]);
	if (job->folder[0] != '\0') {
		unlink(job->key_path);
		rmdir(job->folder);
	}
}

static int player_start(struct game *game, uint32_t number, struct ws_error *err)
{
	struct player *player = &game->players[number];
	bool trains = number < game->job.trainers;
	int fds[2];

	snprintf(player->name, sizeof(player->name), "%s %u", trains ? "trainer" : "rollout",
		 trains ? number : number - game->job.trainers);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
		return ws_fail(err, -errno, "cannot make a pair of sockets: %s", strerror(errno));
	fflush(NULL);
	player->pid = fork();
	if (player->pid == 0) {
		close(fds[0]);
		overhead_member(&game->job, number, fds[1]);
	}
	int error = errno;
	close(fds[1]);
	int rc = channel_open(&player->channel, fds[0], player->name, err);
	if (player->pid >= 0)
		return rc;
	player->pid = 0;
	return ws_fail(err, -error, "cannot start %s: %s", player->name, strerror(error));
}

/* From all but the first so many, in whatever order: who fails says so before the others give up.
 */
static int expect_from(struct game *game, uint32_t first, char tag, struct ws_error *err)
{
	struct pollfd fds[OVERHEAD_MEMBERS_MAX];
	int rc = 0;

	for (uint32_t i = 0; i < game->count; i++)
		fds[i] = (struct pollfd){.fd = i < first ? -1 : game->players[i].channel.fd,
					 .events = POLLIN};
	for (uint32_t left = game->count - first; rc == 0 && left > 0;) { /* some, or the end */
		if (poll(fds, game->count, CHANNEL_WAIT_MS) <= 0)
			return ws_fail(err, -ETIMEDOUT, "nobody said anything for %d s",
				       CHANNEL_WAIT_MS / 1000);
		for (uint32_t i = first; rc == 0 && i < game->count; i++) {
			if (fds[i].revents == 0)
				continue;
			rc = channel_expect(&game->players[i].channel, tag, err);
			fds[i].fd = -1;
			left--;
		}
	}
	return rc;
}

static int game_start(struct game *game, struct ws_error *err)
{
	const struct overhead_job *job = &game->job;
	struct channel *first = &game->players[0].channel;
	char hub[256] = "";
	int rc = 0;

	while (rc == 0 && game->count < job->trainers + job->rollouts)
		rc = player_start(game, game->count++, err);
	if (rc == 0)
		rc = channel_expect(first, 'h', err);
	if (rc == 0)
		snprintf(hub, sizeof(hub), "%.*s", (int)first->bytes, (const char *)first->frame);
	for (uint32_t i = 0; rc == 0 && i < game->count; i++)
		rc = channel_say(&game->players[i].channel, 'o', hub, sizeof(hub), err);
	return rc == 0 ? expect_from(game, 0, 'k', err) : rc;
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
	for (uint32_t i = 0; i < game->count; i++)
		if (game->players[i].pid > 0)
			(void)child_reap(game->players[i].pid, deadline_in_ms(CHANNEL_WAIT_MS));
	job_release(&game->job);
}

/* ------------------------------------------------------------------------------- turns */

/* Rollouts step before a trainer pushes. */
static int update_play(struct game *game, struct overhead_times *times_out, struct ws_error *err)
{
	uint8_t version[8];
	struct writer out = writer_fixed(version, sizeof(version));
	uint32_t trainers = game->job.trainers;
	const struct channel *first = &game->players[0].channel;
	int rc = 0;

	write_u64(&out, ++game->version);
	for (uint32_t i = trainers; rc == 0 && i < game->count; i++)
		rc = channel_say(&game->players[i].channel, 'u', version, sizeof(version), err);
	if (rc == 0)
		rc = expect_from(game, trainers, 'r', err);
	for (uint32_t i = 0; rc == 0 && i < trainers; i++)
		rc = channel_say(&game->players[i].channel, 'u', version, sizeof(version), err);
	if (rc == 0)
		rc = expect_from(game, 0, 'd', err);
	if (rc == 0)
		memcpy(times_out, first->frame, sizeof(*times_out));
	return rc;
}

static int star_play(struct game *game, double *seconds_out, struct ws_error *err)
{
	int rc = 0;

	/* The hub of the star last: its clock begins when all others wait for it. */
	for (uint32_t i = game->count; rc == 0 && i-- > 0;)
		rc = channel_say(&game->players[i].channel, 's', NULL, 0, err);
	if (rc == 0)
		rc = expect_from(game, 0, 'd', err);
	if (rc == 0)
		memcpy(seconds_out, game->players[0].channel.frame, sizeof(*seconds_out));
	return rc;
}

/* The first turns aren't counted: pages are mapped in them. */
static int game_play(struct game *game, uint32_t rounds, struct ws_error *err)
{
	struct overhead_times times = {0};
	double star = 0;
	int rc = 0;

	for (uint32_t round = 0; rc == 0 && round <= rounds; round++) {
		sleep_ns(REST_NS);
		rc = update_play(game, &times, err);
		sleep_ns(REST_NS);
		if (rc == 0)
			rc = star_play(game, &star, err);
		if (round == 0)
			continue;
		const double seconds[PHASE_COUNT] = {times.begin,  times.transfer, times.pause,
						     times.reload, times.total,	   star};
		for (int phase = 0; phase < PHASE_COUNT; phase++)
			game->seconds[phase][round - 1] = seconds[phase];
	}
	return rc;
}

/* ------------------------------------------------------------------------------- the report */

static void report(struct game *game, const struct bench_options *options, uint32_t rounds)
{
	const struct overhead_job *job = &game->job;
	double ratios[BENCH_ROUNDS_MAX], p50[PHASE_COUNT], p99[PHASE_COUNT];
	const char *buffers = job->inplace ? "inplace" : "double";

	for (uint32_t i = 0; i < rounds; i++)
		ratios[i] = game->seconds[TOTAL][i] / game->seconds[STAR][i];
	struct spread ratio = spread_of(ratios, rounds);
	for (int phase = 0; phase < PHASE_COUNT; phase++) {
		(void)spread_of(game->seconds[phase], rounds);
		p50[phase] = 1e6 * spread_quantile(game->seconds[phase], rounds, 0.50);
		p99[phase] = 1e6 * spread_quantile(game->seconds[phase], rounds, 0.99);
	}
	if (options->json) {
		fprintf(options->out,
			"{\"bench\":\"overhead\",\"trainers\":%u,\"rollouts\":%u,\"buffers\":\"%s\"",
			job->trainers, job->rollouts, buffers);
		for (int phase = 0; phase < PHASE_COUNT; phase++)
			fprintf(options->out, ",\"%s_p50_us\":%.1f,\"%s_p99_us\":%.1f",
				phases[phase], p50[phase], phases[phase], p99[phase]);
		fprintf(options->out, ",\"ratio\":%.3f,\"ratio_min\":%.3f,\"ratio_max\":%.3f}\n",
			ratio.median, ratio.min, ratio.max);
		return;
	}
	fprintf(options->out, "%2u + %-2u %-8s", job->trainers, job->rollouts, buffers);
	for (int phase = 0; phase < PHASE_COUNT; phase++)
		fprintf(options->out, "  %6.0f %6.0f", p50[phase], p99[phase]);
	fprintf(options->out, "  %5.2f (%.2f to %.2f)\n", ratio.median, ratio.min, ratio.max);
}

static void head_print(const struct bench_options *options, uint32_t rounds)
{
	if (options->json)
		return;
	fprintf(options->out,
		"updates of 128 bytes per pair over ipc, us from push to live: median and 99 %% of %u; star: %d "
		"bare TCP trips\nthere and back between the same processes; ratio: an update by the "
		"star of its turn\n\n%-17s",
		rounds, OVERHEAD_STAR_TRIPS, "trainers+rollouts");
	for (int phase = 0; phase < PHASE_COUNT; phase++)
		fprintf(options->out, phase == BEGIN ? "%12s" : "%15s", phases[phase]);
	fprintf(options->out, "  ratio\n");
}

static int row_play(const struct bench_options *options, uint32_t trainers, uint32_t rollouts,
		    bool inplace, struct ws_error *err)
{
	uint32_t rounds = options->rounds == 0 ? ROUNDS_DEFAULT : options->rounds;
	struct game *game = mem_alloc(sizeof(*game));

	if (game == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u turns", rounds);
	game->job = (struct overhead_job){
		.trainers = trainers, .rollouts = rollouts, .inplace = inplace};
	for (uint32_t i = 0; i < OVERHEAD_MEMBERS_MAX; i++)
		game->players[i].channel = (struct channel)CHANNEL_INIT;
	int rc = job_make(&game->job, err);
	if (rc == 0)
		rc = game_start(game, err);
	if (rc == 0)
		rc = game_play(game, rounds, err);
	game_end(game, rc != 0);
	if (rc == 0)
		report(game, options, rounds);
	mem_free(game);
	return rc;
}

int bench_overhead(const struct bench_options *options, struct ws_error *err)
{
	uint32_t rounds = options->rounds == 0 ? ROUNDS_DEFAULT : options->rounds;
	bool given = options->senders != 0 || options->receivers != 0;
	int rc = 0;

	uint32_t trainers = MAX(options->senders, 1u), rollouts = MAX(options->receivers, 1u);
	if (trainers > 32 || rollouts > 32)
		return ws_fail(err, -EINVAL, "%u trainers and %u rollouts: choose 32 at most",
			       trainers, rollouts);
	head_print(options, rounds);
	for (uint32_t row = 0; rc == 0 && row < (given ? 2u : 4u); row++) {
		bool four = !given && row >= 2;
		rc = row_play(options, four ? 4 : trainers, four ? 4 : rollouts, row % 2 == 0, err);
	}
	return rc;
}
