/* SPDX-License-Identifier: Apache-2.0 */
/* `bench transfer`: over which NICs, which rows, and against what. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/transfer.h"
#include "bench/worker.h"
#include "lib/engine/engine.h"

#define SMALL_OPS_MAX	16384u
#define LATENCY_OPS_MAX 1000u
#define LATENCY_OPS_MIN 10u

struct row {
	const char *what;
	uint64_t op_bytes;
	uint32_t senders, receivers;
};

static const struct row rows[] = {
	{"latency", 4u << 10, 1, 1}, {"latency", 1u << 20, 1, 1}, {"stream", 1u << 20, 1, 1},
	{"small", 1u << 10, 1, 1},   {"small", 4u << 10, 1, 1},	  {"small", 16u << 10, 1, 1},
	{"small", 64u << 10, 1, 1},  {"mesh", 1u << 20, 2, 2},	  {"incast", 1u << 20, 4, 1},
};

static int options_fill(struct bench_options *options, struct ws_error *err)
{
	enum bench_memory memory;
	bool known = options->what == NULL;
	if (options->transport == NULL)
		options->transport = "fabric";
	if (options->provider != NULL && strcmp(options->transport, "fabric") != 0)
		return ws_fail(err, -EINVAL,
			       "provider '%s' is one of libfabric's: choose transport fabric for "
			       "it, not '%s'",
			       options->provider, options->transport);
	if (options->provider == NULL)
		options->provider = "tcp";
	if (options->memory == NULL)
		options->memory = "shared";
	if (options->depth == 0)
		options->depth = 16;
	if (options->total_bytes == 0)
		options->total_bytes = 1u << 30;
	if (options->rounds == 0)
		options->rounds = BENCH_ROUNDS_MIN;
	options->senders = options->senders == 0 ? 2 : options->senders;
	options->receivers = options->receivers == 0 ? 2 : options->receivers;
	if (transport_find(options->transport) == NULL || strcmp(options->transport, "fault") == 0)
		return ws_fail(err, -ENODEV,
			       "transport '%s' can't be measured; choose fabric, verbs, ipc or "
			       "loop",
			       options->transport);
	for (size_t i = 0; i < ARRAY_SIZE(rows) && !known; i++)
		known = strcmp(rows[i].what, options->what) == 0;
	if (!known)
		return ws_fail(err, -EINVAL,
			       "no row is called '%s'; choose latency, stream, small, mesh or "
			       "incast",
			       options->what);
	if (options->op_bytes != 0 && (options->op_bytes < 64 || options->op_bytes > 1u << 30))
		return ws_fail(err, -EINVAL, "ops of %llu bytes can't be; choose 64 bytes to 1 GiB",
			       (unsigned long long)options->op_bytes);
	if (options->senders > WORKERS_MAX || options->receivers > WORKERS_MAX)
		return ws_fail(err, -EINVAL, "more than %d processes of one side can't be",
			       WORKERS_MAX);
	return bench_memory_parse(options->memory, &memory, err);
}

/* ------------------------------------------------------------------------------- NICs */

static int nic_put(struct bench_nics *nics, const char *name, struct ws_error *err)
{
	bool bare = strcmp(nics->transport, "fabric") == 0 && strchr(name, '/') == NULL;
	if (nics->count == NICS_MAX)
		return ws_fail(err, -EINVAL, "more than %d NICs are named", NICS_MAX);
	int n = snprintf(nics->names[nics->count++], NIC_NAME_MAX, "%s%s%s",
			 bare ? nics->provider : "", bare ? "/" : "", name);
	return n < NIC_NAME_MAX ? 0 : ws_fail(err, -EINVAL, "the NIC name '%s' is too long", name);
}

/* Of this host, all that nobody has a reason to skip. */
static int nics_of_host(struct bench_nics *nics, struct ws_error *err)
{
	struct arena arena = {0};
	struct nic_info *infos;
	uint32_t count = 0;
	int rc = nics_list(&arena, nics->transport, nics->provider, &infos, &count, err);
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		if (infos[i].skipped[0] == 0)
			rc = nic_put(nics, infos[i].device, err);
	if (rc == 0 && nics->count == 0)
		rc = ws_fail(err, -ENODEV,
			     "transport '%s' has no NIC on this host that is used unasked: %s; "
			     "name one; `weightsync nics` lists what there is",
			     nics->transport, count > 0 ? infos[0].skipped : "it offers none");
	arena_release(&arena);
	return rc;
}

/* Nothing is opened here: the workers fork first. */
static int nics_choose(const struct bench_options *options, struct bench_nics *nics,
		       struct ws_error *err)
{
	int rc = 0;
	*nics = (struct bench_nics){0};
	snprintf(nics->transport, sizeof(nics->transport), "%s", options->transport);
	snprintf(nics->provider, sizeof(nics->provider), "%s", options->provider);
	for (uint32_t i = 0; rc == 0 && i < options->nic_count; i++)
		rc = nic_put(nics, options->nics[i], err);
	if (rc != 0 || nics->count > 0)
		return rc;
	if (strcmp(options->transport, "ipc") == 0)
		return nic_put(nics, "host", err);
	if (strcmp(options->transport, "loop") == 0)
		return nic_put(nics, "net", err);
	if (strcmp(options->transport, "verbs") == 0)
		return nics_of_host(nics, err);
	if (strcmp(options->provider, "tcp") == 0)
		return nic_put(nics, "127.0.0.1", err);
	if (strcmp(options->provider, "shm") == 0)
		return nic_put(nics, "shm", err);
	return nics_of_host(nics, err);
}

/* ------------------------------------------------------------------------------- rows */

static void contender_put(struct contest *contest, const char *name)
{
	snprintf(contest->contenders[contest->contender_count++], CONTENDER_NAME_MAX, "%s", name);
}

/* The product, and what bounds it. */
static void contenders_put(const struct bench_options *options, struct contest *contest)
{
	contender_put(contest, "weightsync");
	if (options->alone)
		return;
	if (strcmp(options->transport, "fabric") == 0)
		contender_put(contest, "fi_writemsg");
	if (strcmp(options->transport, "ipc") == 0 || strcmp(options->transport, "loop") == 0)
		contender_put(contest, "memcpy");
	if (strcmp(options->transport, "ipc") == 0)
		contender_put(contest, "fi_writemsg shm");
	/* perftest joins two hosts, one process at each. */
	if (strcmp(options->transport, "verbs") == 0 && options->peer != NULL &&
	    contest->senders * contest->receivers == 1)
		contender_put(contest, contest->latency ? "ib_write_lat" : "ib_write_bw");
}

static struct contest contest_make(const struct bench_options *options,
				   const struct bench_nics *nics, const struct row *row)
{
	struct contest contest = {.senders = row->senders,
				  .receivers = row->receivers,
				  .latency = strcmp(row->what, "latency") == 0,
				  .op_bytes = options->op_bytes != 0 ? options->op_bytes
								     : row->op_bytes,
				  .depth = options->depth,
				  .nics = *nics};
	snprintf(contest.what, sizeof(contest.what), "%s", row->what);
	if (strcmp(row->what, "mesh") == 0) {
		contest.senders = options->senders;
		contest.receivers = options->receivers;
	}
	uint64_t ops =
		options->total_bytes / contest.op_bytes / contest.senders / contest.receivers;
	uint64_t ops_max = contest.latency ? LATENCY_OPS_MAX : OP_ID_MAX / contest.senders;
	if (strcmp(row->what, "small") == 0)
		ops_max = SMALL_OPS_MAX;
	ops = MAX(ops, contest.latency ? LATENCY_OPS_MIN : 1);
	contest.op_count = (uint32_t)MIN(ops, ops_max);
	(void)bench_memory_parse(options->memory, &contest.memory, NULL);
	if (options->peer != NULL)
		snprintf(contest.host, sizeof(contest.host), "%.*s",
			 (int)strcspn(options->peer, ":"), options->peer);
	contenders_put(options, &contest);
	return contest;
}

static int flush(struct writer *out, FILE *to, struct ws_error *err)
{
	bool good = !out->failed && fwrite(out->bytes, 1, out->count, to) == out->count &&
		    fflush(to) == 0;
	writer_reset(out);
	return good ? 0 : ws_fail(err, -EIO, "the result of the bench can't be written");
}

static int rows_run(const struct bench_options *options, const struct bench_nics *nics,
		    struct score *score, struct writer *out, struct ws_error *err)
{
	const char *last = "";
	int rc = 0;
	if (!options->json) {
		transfer_head(options, nics, out);
		rc = flush(out, options->out, err);
	}
	for (size_t i = 0; i < ARRAY_SIZE(rows) && rc == 0; i++) {
		/* With a size of one's own the rows of one kind are all alike. */
		bool again = options->op_bytes != 0 && strcmp(rows[i].what, last) == 0;
		if (again || (options->what != NULL && strcmp(options->what, rows[i].what) != 0))
			continue;
		last = rows[i].what;
		struct contest contest = contest_make(options, nics, &rows[i]);
		memset(score, 0, sizeof(*score));
		score->round_count = options->rounds;
		rc = transfer_run(&contest, nics, options->peer, score, err);
		if (rc == 0) {
			transfer_report(options, nics, score, out);
			rc = flush(out, options->out, err);
		}
	}
	return rc;
}

int bench_transfer(const struct bench_options *given, struct ws_error *err)
{
	struct bench_options options = *given;
	struct bench_nics nics;
	struct writer out = WRITER_INIT(1u << 16);
	int session = -1;
	int rc = options_fill(&options, err);
	if (rc == 0)
		rc = nics_choose(&options, &nics, err);
	if (rc != 0)
		return rc;
	if (options.listen != NULL)
		return worker_listen(options.listen, &nics, err);
	/* While it lasts the listener serves receivers. */
	if (options.peer != NULL)
		rc = channel_connect(options.peer, &session, err);
	struct score *score = mem_alloc(sizeof(*score));
	if (rc == 0)
		rc = score != NULL ? rows_run(&options, &nics, score, &out, err)
				   : ws_fail(err, -ENOMEM, "no memory for the bench's numbers");
	mem_free(score);
	writer_release(&out);
	if (session >= 0)
		close(session);
	return rc;
}
