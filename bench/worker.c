/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: what the channel says, in turn.  Each state has one frame that may come. */
#include "bench/worker.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"

#define CLIENT_MS_MAX 600000 /* how long a listener waits for its client */

struct worker {
	struct channel channel;
	const struct bench_nics *nics;
	struct setup setup;
	struct end end;
	const struct contender *contenders[CONTENDERS_MAX];
	void *states[CONTENDERS_MAX]; /* owned */
};

static const struct {
	const char *name;
	const struct contender *contender;
} all[] = {
	{"weightsync", &contender_engine},	{"fi_writemsg", &contender_fabric},
	{"fi_writemsg shm", &contender_fabric}, {"memcpy", &contender_memcpy},
	{"ib_write_bw", &contender_perftest},	{"ib_write_lat", &contender_perftest},
};

const struct contender *contender_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		if (strcmp(all[i].name, name) == 0)
			return all[i].contender;
	return NULL;
}

void outcome_latency(struct outcome *outcome, double *samples, uint32_t count)
{
	(void)spread_of(samples, count);
	outcome->p50_us = spread_quantile(samples, count, 0.50);
	outcome->p99_us = spread_quantile(samples, count, 0.99);
}

static int setup_take(struct worker *worker, struct ws_error *err)
{
	struct setup *setup = &worker->setup;
	struct contest *contest = &setup->contest;
	if (worker->channel.bytes != sizeof(*setup))
		return ws_fail(err, -EPROTO, "the other end is another build of weightsync");
	memcpy(setup, worker->channel.frame, sizeof(*setup));
	if (setup->setup_bytes != sizeof(*setup) ||
	    strncmp(setup->magic, WORKER_MAGIC, sizeof(setup->magic)) != 0)
		return ws_fail(err, -EPROTO, "the other end is another version of weightsync");
	if (contest->contender_count == 0 || contest->contender_count > CONTENDERS_MAX ||
	    contest->senders - 1 >= WORKERS_MAX || contest->receivers - 1 >= WORKERS_MAX ||
	    setup->index >= WORKERS_MAX || contest->op_bytes - 1 >= UINT32_MAX ||
	    contest->op_count == 0 || contest->op_count > 1u << 24 || contest->memory > MEMORY_2M ||
	    contest->nics.count > NICS_MAX)
		return ws_fail(err, -EPROTO, "the other end asks for what can't be");
	contest->host[sizeof(contest->host) - 1] = 0;
	for (uint32_t i = 0; i < NICS_MAX; i++)
		contest->nics.names[i][NIC_NAME_MAX - 1] = 0;
	for (uint32_t i = 0; i < contest->contender_count; i++) {
		contest->contenders[i][CONTENDER_NAME_MAX - 1] = 0;
		worker->contenders[i] = contender_find(contest->contenders[i]);
		if (worker->contenders[i] == NULL)
			return ws_fail(err, -EPROTO, "nothing is called '%s' here",
				       contest->contenders[i]);
	}
	worker->end = (struct end){.contest = contest,
				   .nics = worker->nics,
				   .index = setup->index,
				   .receives = setup->receives};
	return 0;
}

/* What out has gained since `at` gets its length in front. */
static void length_put(struct writer *out, size_t at)
{
	if (out->failed)
		return;
	struct writer length = writer_fixed(out->bytes + at, 4);
	write_u32(&length, (uint32_t)(out->count - at - 4));
}

static int addresses_say(struct worker *worker, struct ws_error *err)
{
	struct writer out = WRITER_INIT(CHANNEL_FRAME_BYTES_MAX);
	int rc = 0;
	for (uint32_t i = 0; i < worker->setup.contest.contender_count; i++)
		for (uint32_t k = 0; rc == 0 && k < end_peer_count(&worker->end); k++) {
			size_t at = out.count;
			write_u32(&out, 0);
			if (worker->contenders[i]->address != NULL)
				rc = worker->contenders[i]->address(worker->states[i], k, &out,
								    err);
			length_put(&out, at);
		}
	if (rc == 0 && out.failed)
		rc = ws_fail(err, -ENOSPC, "the addresses of %u peers don't fit a frame",
			     end_peer_count(&worker->end));
	if (rc == 0)
		rc = channel_say(&worker->channel, 'a', out.bytes, out.count, err);
	writer_release(&out);
	return rc;
}

static int worker_open(struct worker *worker, struct ws_error *err)
{
	struct end *end = &worker->end;
	int rc = channel_expect(&worker->channel, 'o', err);
	if (rc == 0)
		rc = setup_take(worker, err);
	if (rc == 0)
		rc = bench_memory_alloc(&end->memory, contest_window(end->contest),
					end->contest->memory, err);
	if (rc == 0)
		end->page_bytes = bench_memory_page_bytes(&end->memory);
	for (uint32_t i = 0; rc == 0 && i < end->contest->contender_count; i++)
		rc = worker->contenders[i]->open(&worker->states[i], end, err);
	return rc == 0 ? addresses_say(worker, err) : rc;
}

static int worker_connect(struct worker *worker, struct ws_error *err)
{
	int rc = channel_expect(&worker->channel, 'c', err);
	struct reader in = reader_make(worker->channel.frame, worker->channel.bytes);
	for (uint32_t i = 0; i < worker->setup.contest.contender_count; i++)
		for (uint32_t k = 0; rc == 0 && k < end_peer_count(&worker->end); k++) {
			size_t count = read_u32(&in);
			const void *bytes = read_bytes(&in, count);
			if (in.failed)
				return ws_fail(err, -EPROTO, "the peers' addresses are cut short");
			if (worker->contenders[i]->connect != NULL)
				rc = worker->contenders[i]->connect(worker->states[i], k, bytes,
								    count, err);
		}
	return rc == 0 ? channel_say(&worker->channel, 'k', NULL, 0, err) : rc;
}

static int worker_turn(struct worker *worker, struct ws_error *err)
{
	struct channel *channel = &worker->channel;
	struct outcome outcome = {.page_bytes = worker->end.page_bytes};
	uint8_t which = channel->bytes == 1 ? channel->frame[0] : UINT8_MAX;
	if (which >= worker->setup.contest.contender_count)
		return ws_fail(err, -EPROTO, "the other end names no contender");
	const struct contender *contender = worker->contenders[which];
	int rc = contender->arm != NULL ? contender->arm(worker->states[which], err) : 0;
	if (rc == 0)
		rc = channel_say(channel, 'r', NULL, 0, err);
	if (rc == 0)
		rc = channel_expect(channel, 'g', err);
	if (rc == 0)
		rc = contender->run(worker->states[which], &outcome, err);
	return rc == 0 ? channel_say(channel, 'd', &outcome, sizeof(outcome), err) : rc;
}

/* Ends when the channel says q, or ends. */
static int worker_serve(struct worker *worker, struct ws_error *err)
{
	int rc = worker_open(worker, err);
	if (rc == 0)
		rc = worker_connect(worker, err);
	while (rc == 0) {
		char tag;
		rc = channel_hear(&worker->channel, &tag, err);
		if (rc != 0 || tag == 'q')
			return rc;
		rc = tag == 't' ? worker_turn(worker, err)
				: ws_fail(err, -EPROTO, "the other end said '%c'", tag);
	}
	return rc;
}

void worker_run(int fd, const struct bench_nics *nics)
{
	struct worker worker = {.nics = nics};
	struct ws_error err = {0};
	int rc = channel_open(&worker.channel, fd, "the other end", &err);
	if (rc == 0)
		rc = worker_serve(&worker, &err);
	if (rc != 0 && worker.channel.frame != NULL)
		channel_say_error(&worker.channel, &err);
	for (uint32_t i = 0; i < CONTENDERS_MAX; i++)
		if (worker.contenders[i] != NULL)
			worker.contenders[i]->close(worker.states[i]);
	bench_memory_free(&worker.end.memory, worker.setup.contest.memory);
	channel_close(&worker.channel);
}

/* ------------------------------------------------------------------------------ listener */

static bool has_gone(int client)
{
	char byte;
	ssize_t got = recv(client, &byte, 1, MSG_DONTWAIT);
	return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

static bool children_live(void)
{
	pid_t ended;
	do
		ended = waitpid(-1, NULL, WNOHANG);
	while (ended > 0);
	return ended == 0;
}

/* Forks a worker per connection while the client's own lasts.  A client whose host vanished says
 * nothing of its end: then the workers end by their channels' deadlines, and none comes. */
static int session_serve(int listener, int client, const struct bench_nics *nics,
			 struct ws_error *err)
{
	uint64_t deadline = deadline_in_ms(CHANNEL_WAIT_MS);
	while (!has_gone(client)) {
		struct ws_error none;
		int fd;
		if (children_live())
			deadline = deadline_in_ms(CHANNEL_WAIT_MS);
		if (clock_ns() > deadline)
			return ws_fail(err, -ETIMEDOUT,
				       "the client asked for nothing for %d s; is its host up?",
				       CHANNEL_WAIT_MS / 1000);
		if (channel_accept(listener, 100, &fd, &none) != 0)
			continue;
		if (fork() == 0) {
			/* Even one that hangs in a driver ends with its listener. */
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(client);
			close(listener);
			worker_run(fd, nics);
			_exit(0);
		}
		close(fd);
	}
	return 0;
}

/* The first connection is the client's own: while it lasts there may be others. */
int worker_listen(const char *where, const struct bench_nics *nics, struct ws_error *err)
{
	int listener, client = -1;
	int rc = channel_listen(where, &listener, err);
	if (rc == 0)
		rc = channel_accept(listener, CLIENT_MS_MAX, &client, err);
	if (rc == 0)
		rc = session_serve(listener, client, nics, err);
	uint64_t deadline = deadline_in_ms(RUN_MS_MAX + CHANNEL_WAIT_MS);
	while (children_live() && clock_ns() < deadline)
		sleep_ns(10000000);
	if (client >= 0)
		close(client);
	if (listener >= 0)
		close(listener);
	return rc;
}
