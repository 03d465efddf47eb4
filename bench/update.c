/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole updates of a model between two GPUs of one host, from the trainer's call until the version
 * is live, beside what a job does without weightsync: NCCL's broadcast, tensor by tensor into the
 * engine's stacked tensors, or in buckets that are packed and unpacked; and beside one copy of as
 * many bytes, which is all that NVLink can do.  In turns; each update's bytes are compared where
 * they lie, codes and scales with what two passes over whole tensors give.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/update.h"
#include "lib/link/link.h"

/* Of NCCL's the last where a scheme quantizes, else the other two. */
enum contender {
	UPDATE,
	PEER_COPY,
	H2D_COPY,
	NCCL_BUCKETS,
	NCCL_TENSORS,
	NCCL_QUANTIZED,
	CONTENDER_COUNT
};

#define SHAPE		   "qwen3-30b-a3b"
#define MANIFEST_BYTES_MAX (64u << 20)

static const char *const contenders[] = {"whole update", "one peer copy", "one h2d copy",
					 "nccl buckets", "nccl tensors",  "quantize, nccl"};

struct bench {
	struct update_job job;
	struct update_rank rank;
	struct ws_trainer *trainer; /* owned */
	pid_t child;
	struct cuda_share share; /* of the rollout's memory */
	void *mapped;		 /* ... and where it is here */
	uint64_t version, bytes;
	uint64_t left[2]; /* of the trainer's GPU: after the turns that don't count, and at the end
			   */
	double seconds[CONTENDER_COUNT][BENCH_ROUNDS_MAX];
	struct ws_report report; /* of the last update */
};

/* ---------------------------------------------------------------- the job */

/* Of a model; or, without one, the file that is named. */
static int manifest_write(const struct bench_options *options, const struct model *model,
			  enum side side, struct writer *text, struct findings *findings,
			  struct ws_error *err)
{
	const struct manifest_options wanted = {
		.side = side,
		.layout = side == SIDE_TRAINER ? "fsdp2" : "vllm",
		.mesh = side == SIDE_TRAINER ? "dp=1" : "tp=1",
		.quant = side == SIDE_ROLLOUT ? options->quant : NULL,
	};
	size_t bytes = 0;
	void *read = NULL;

	if (model != NULL)
		return manifest_make(model, &wanted, text, findings, err);
	int rc = file_read(options->manifests[side], MANIFEST_BYTES_MAX, &read, &bytes, err);
	if (rc == 0)
		write_bytes(text, read, bytes);
	mem_free(read);
	return rc;
}

static int manifest_have(struct bench *bench, const struct model *model, enum side side,
			 struct ws_error *err)
{
	struct writer *text = &bench->job.text[side];
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};

	*text = (struct writer)WRITER_INIT(MANIFEST_BYTES_MAX);
	int rc = manifest_write(bench->job.options, model, side, text, &findings, err);
	if (rc == 0)
		rc = manifest_parse(&bench->job.manifest[side], text->bytes, text->count, &findings,
				    err);
	arena_release(&arena);
	return rc;
}

static int job_make(struct bench *bench, struct ws_error *err)
{
	const struct bench_options *options = bench->job.options;
	struct model *whole = NULL, *model = NULL;
	bool named = options->manifests[SIDE_TRAINER] != NULL;
	struct run_key key;
	int rc = 0;

	if (named != (options->manifests[SIDE_ROLLOUT] != NULL) ||
	    (named && (options->shape != NULL || options->quant != NULL || options->scale != 0)))
		return ws_fail(
			err, -EINVAL,
			"a bench of manifests needs both, --trainer and --rollout, and takes no "
			"--shape, --scale or --quant");
	if (!named)
		rc = model_builtin(&whole, options->shape != NULL ? options->shape : SHAPE, err);
	if (rc == 0 && !named)
		rc = model_scale(&model, whole, 1, MAX(options->scale, 1u), err);
	for (int side = 0; rc == 0 && side < 2; side++)
		rc = manifest_have(bench, model, (enum side)side, err);
	model_free(model);
	model_free(whole);
	if (rc != 0)
		return rc;
	snprintf(bench->job.folder, sizeof(bench->job.folder), "/tmp/weightsync-bench-XXXXXX");
	if (mkdtemp(bench->job.folder) == NULL) {
		bench->job.folder[0] = '\0';
		return ws_fail(err, -EIO, "cannot make a folder in /tmp: %s", strerror(errno));
	}
	snprintf(bench->job.key_path, sizeof(bench->job.key_path), "%s/key", bench->job.folder);
	rc = run_key_make(&key, err);
	return rc == 0 ? run_key_write(&key, bench->job.key_path, err) : rc;
}

static void job_release(struct update_job *job)
{
	for (int side = 0; side < 2; side++) {
		manifest_free(job->manifest[side]);
		writer_release(&job->text[side]);
	}
	if (job->folder[0] != '\0') {
		unlink(job->key_path);
		rmdir(job->folder);
	}
}

/* ---------------------------------------------------------------- both processes */

static int tell(struct bench *bench, enum update_word word, struct ws_error *err)
{
	return update_say(bench->rank.socket, &(struct update_message){.word = word}, err);
}

static int answer(struct bench *bench, struct update_message *message, struct ws_error *err)
{
	struct update_message ignored;

	return update_hear(bench->rank.socket, message != NULL ? message : &ignored, err);
}

static int child_start(struct bench *bench, struct ws_error *err)
{
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
		return ws_fail(err, -errno, "cannot make a pair of sockets: %s", strerror(errno));
	fflush(NULL);
	bench->child = fork();
	if (bench->child == 0) {
		close(sockets[0]);
		update_peer(&bench->job, sockets[1]);
	}
	close(sockets[1]);
	bench->rank.socket = sockets[0];
	if (bench->child < 0)
		return ws_fail(err, -errno, "cannot fork: %s", strerror(errno));
	return 0;
}

static int trainer_start(struct bench *bench, struct ws_error *err)
{
	const struct update_job *job = &bench->job;
	const struct rank_params *params = &bench->rank.params[SIDE_TRAINER];
	const struct ws_trainer_options options = {
		.hub = "tcp://127.0.0.1:*",
		.hub_here = true,
		.key_file = job->key_path,
		.world = 1,
		.manifest = (const char *)job->text[SIDE_TRAINER].bytes,
		.manifest_bytes = job->text[SIDE_TRAINER].count,
		.transport = "ipc",
		.replica_ranks = 1,
		.op_bytes = job->options->op_bytes,
		.staging_bytes = job->options->staging_bytes,
		.offload_bytes = job->options->offload ? UPDATE_RING_BYTES : 0,
		.offload_device = bench->rank.device,
	};
	struct update_message start = {.word = UPDATE_START};

	int rc = ws_trainer_open(&bench->trainer, &options, err);
	for (uint32_t i = 0; rc == 0 && i < params->count; i++) {
		const struct ws_memory memory = update_param(&bench->rank, SIDE_TRAINER, i);
		if (memory.bytes > 0)
			rc = ws_trainer_add(bench->trainer, params->params[i].name, &memory, err);
	}
	if (rc != 0)
		return rc;
	snprintf(start.text, sizeof(start.text), "%s", ws_trainer_hub(bench->trainer));
	rc = update_say(bench->rank.socket, &start, err);
	if (rc == 0)
		rc = ws_trainer_start(bench->trainer, UPDATE_WAIT_MS, err);
	return rc == 0 ? answer(bench, NULL, err) : rc;
}

static int peer_map(struct bench *bench, struct ws_error *err)
{
	struct update_message said;

	int rc = tell(bench, UPDATE_SHARE, err);
	if (rc == 0)
		rc = answer(bench, &said, err);
	if (rc != 0)
		return rc;
	bench->share = said.share;
	return cuda_share_open(&bench->share, bench->rank.device, &bench->mapped, err);
}

/* Loud where NCCL isn't: its rows are left out. */
static int nccl_start(struct bench *bench, struct ws_error *err)
{
	struct update_message join = {.word = UPDATE_NCCL};
	struct update_rank *rank = &bench->rank;
	struct ws_error why = {0};

	if (bench->job.options->alone)
		return 0;
	if (nccl_load(&rank->nccl, bench->job.options->nccl, &why) != 0) {
		fprintf(stderr, "weightsync: %s; its rows are left out\n", why.text);
		return 0;
	}
	int rc = nccl_id_make(rank->nccl, &join.id, err);
	if (rc == 0)
		rc = update_say(rank->socket, &join, err);
	if (rc == 0)
		rc = update_join(rank, &join.id, 0, err);
	return rc == 0 ? answer(bench, NULL, err) : rc;
}

/* ---------------------------------------------------------------- turns */

static int turn_update(struct bench *bench, double *seconds, struct ws_error *err)
{
	struct update_message push = {.word = UPDATE_PUSH, .value = ++bench->version}, said;

	int rc = tell(bench, UPDATE_CLEAR, err);
	if (rc == 0)
		rc = answer(bench, NULL, err);
	if (rc == 0)
		rc = update_say(bench->rank.socket, &push, err);
	if (rc == 0)
		rc = ws_trainer_push(bench->trainer, bench->version, UPDATE_WAIT_MS, &bench->report,
				     err);
	*seconds = (double)bench->report.total_ns / 1e9;
	if (rc == 0)
		rc = answer(bench, NULL, err);
	if (rc == 0)
		rc = tell(bench, UPDATE_VERIFY, err);
	if (rc == 0)
		rc = answer(bench, &said, err);
	if (rc == 0 && said.value != 0)
		rc = ws_fail(err, -EIO, "%" PRIu64 " bytes of version %" PRIu64 " differ",
			     said.value, bench->version);
	return rc;
}

static int turn_copy(struct bench *bench, double *seconds, struct ws_error *err)
{
	struct update_rank *rank = &bench->rank;
	uint64_t bytes = MIN(bench->bytes, rank->source.bytes);

	int rc = cuda_use(rank->device, err);
	uint64_t begin = clock_ns();
	if (rc == 0)
		rc = cuda_copy(bench->mapped, rank->source.base, bytes, rank->queue.stream, err);
	if (rc == 0)
		rc = update_queue_wait(rank, err);
	*seconds = (double)(clock_ns() - begin) / 1e9;
	return rc;
}

/* All of the trainer's params, onto its own GPU: what lies there is the same. */
static int turn_h2d(struct bench *bench, double *seconds, struct ws_error *err)
{
	struct update_rank *rank = &bench->rank;

	int rc = cuda_use(rank->device, err);
	uint64_t begin = clock_ns();
	if (rc == 0)
		rc = cuda_copy(rank->source.base, rank->host.base,
			       rank->params[SIDE_TRAINER].arena_bytes, rank->queue.stream, err);
	if (rc == 0)
		rc = update_queue_wait(rank, err);
	*seconds = (double)(clock_ns() - begin) / 1e9;
	return rc;
}

static int turn_broadcast(struct bench *bench, bool buckets, double *seconds, struct ws_error *err)
{
	int rc = tell(bench, buckets ? UPDATE_BUCKETS : UPDATE_TENSORS, err);
	uint64_t begin = clock_ns();

	if (rc == 0)
		rc = update_broadcast(&bench->rank, SIDE_TRAINER, buckets, err);
	if (rc == 0)
		rc = answer(bench, NULL, err);
	*seconds = (double)(clock_ns() - begin) / 1e9;
	return rc;
}

static bool takes_part(const struct bench *bench, enum contender contender)
{
	bool quantizes = bench->rank.weight_count > 0;

	switch (contender) {
	case UPDATE:
		return true;
	case PEER_COPY:
		return !bench->job.options->alone;
	case H2D_COPY:
		return !bench->job.options->alone && bench->job.options->offload;
	case NCCL_BUCKETS:
	case NCCL_TENSORS:
		return bench->rank.nccl != NULL && !quantizes;
	case NCCL_QUANTIZED:
		return bench->rank.nccl != NULL && quantizes;
	case CONTENDER_COUNT:
		break;
	}
	return false;
}

static int turn(struct bench *bench, enum contender contender, double *seconds,
		struct ws_error *err)
{
	switch (contender) {
	case UPDATE:
		return turn_update(bench, seconds, err);
	case PEER_COPY:
		return turn_copy(bench, seconds, err);
	case H2D_COPY:
		return turn_h2d(bench, seconds, err);
	case NCCL_BUCKETS:
	case NCCL_TENSORS:
	case NCCL_QUANTIZED:
		return turn_broadcast(bench, contender == NCCL_BUCKETS, seconds, err);
	case CONTENDER_COUNT:
		break;
	}
	return -EINVAL;
}

/* Each contender once without being counted: pages are mapped, connections made. */
static int turns(struct bench *bench, uint32_t rounds, struct ws_error *err)
{
	int rc = 0;

	for (uint32_t round = 0; rc == 0 && round <= rounds; round++) {
		for (uint32_t c = 0; rc == 0 && c < CONTENDER_COUNT; c++) {
			double seconds = 0;
			if (!takes_part(bench, (enum contender)c))
				continue;
			rc = turn(bench, (enum contender)c, &seconds, err);
			if (round > 0)
				bench->seconds[c][round - 1] = seconds;
		}
		if (rc == 0)
			rc = cuda_memory_left(bench->rank.device, &bench->left[round > 0], err);
	}
	return rc;
}

/* ---------------------------------------------------------------- the report */

static void report_row(struct bench *bench, enum contender contender, uint32_t rounds)
{
	const struct bench_options *options = bench->job.options;
	double ratios[BENCH_ROUNDS_MAX], seconds[BENCH_ROUNDS_MAX];

	for (uint32_t i = 0; i < rounds; i++) {
		seconds[i] = bench->seconds[contender][i];
		ratios[i] = seconds[i] / bench->seconds[UPDATE][i];
	}
	struct spread time = spread_of(seconds, rounds), ratio = spread_of(ratios, rounds);
	uint64_t bytes =
		contender == H2D_COPY ? bench->rank.params[SIDE_TRAINER].arena_bytes : bench->bytes;
	double rate = (double)bytes / time.median / 1e9;
	if (options->json)
		fprintf(options->out,
			"{\"bench\":\"update\",\"contender\":\"%s\",\"bytes\":%" PRIu64
			",\"bytes_compared\":%s,\"gpu_bytes_grown\":%" PRId64
			",\"seconds\":%.6f,\"seconds_min\":%.6f,\"seconds_max\":%.6f,"
			"\"gb_per_s\":%.3f,\"update_is_faster_by\":%.4f,\"min\":%.4f,"
			"\"max\":%.4f}\n",
			contenders[contender], bytes, contender == UPDATE ? "true" : "false",
			(int64_t)(bench->left[0] - bench->left[1]), time.median, time.min, time.max,
			rate, ratio.median, ratio.min, ratio.max);
	else
		fprintf(options->out, "%-14s  %8.4f  %8.4f  %8.4f  %7.1f  %6.3f  %6.3f  %6.3f\n",
			contenders[contender], time.median, time.min, time.max, rate, ratio.median,
			ratio.min, ratio.max);
}

static void report_phases(const struct bench *bench)
{
	const struct ws_report *last = &bench->report;

	fprintf(bench->job.options->out,
		"last update: begin %.4f  stage %.4f  quantize %.4f  write %.4f  landed %.4f  "
		"pause %.4f  reload %.4f  h2d %.4f s; staging at most %.1f MiB, ring %.1f MiB\n",
		(double)last->begin_ns / 1e9, (double)last->stage_ns / 1e9,
		(double)last->quantize_ns / 1e9, (double)last->write_ns / 1e9,
		(double)last->landed_ns / 1e9, (double)last->pause_ns / 1e9,
		(double)last->reload_ns / 1e9, (double)last->h2d_ns / 1e9,
		(double)last->staging_high_bytes / 1048576,
		(double)last->offload_high_bytes / 1048576);
}

static void report(struct bench *bench, uint32_t rounds)
{
	const struct bench_options *options = bench->job.options;

	if (!options->json)
		fprintf(options->out,
			"%u tensors, %.2f GB of the rollout's; GPU %d to GPU %d; each update's "
			"bytes compared: all equal\n%-14s  %8s  %8s  %8s  %7s  %6s  %6s  %6s\n",
			bench->rank.params[SIDE_TRAINER].count, (double)bench->bytes / 1e9,
			bench->rank.device, cuda_device_count(NULL) > 1 ? 1 : 0, "", "seconds",
			"least", "most", "GB/s", "ratio", "least", "most");
	for (uint32_t c = 0; c < CONTENDER_COUNT; c++)
		if (takes_part(bench, (enum contender)c))
			report_row(bench, (enum contender)c, rounds);
	if (!options->json)
		report_phases(bench);
}

static void bench_close(struct bench *bench)
{
	struct ws_error ignored;

	/* Whatever is freed waits for the GPU, which waits for ever: the process's end frees it. */
	if (nccl_hangs(bench->rank.nccl)) {
		kill(bench->child, SIGKILL);
		job_release(&bench->job);
		return;
	}
	if (bench->child > 0)
		(void)tell(bench, UPDATE_END, &ignored);
	ws_trainer_close(bench->trainer);
	cuda_share_close(&bench->share, bench->rank.device, bench->mapped);
	update_rank_close(&bench->rank);
	if (bench->rank.socket > 0)
		close(bench->rank.socket);
	if (bench->child > 0)
		(void)child_reap(bench->child, deadline_in_ms(UPDATE_END_MS));
	job_release(&bench->job);
	mem_free(bench);
}

int bench_update(const struct bench_options *options, struct ws_error *err)
{
	struct bench *bench = mem_alloc(sizeof(*bench));
	uint32_t rounds = MIN(MAX(options->rounds, (uint32_t)BENCH_ROUNDS_MIN), BENCH_ROUNDS_MAX);

	if (bench == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a bench");
	bench->job.options = options;
	bench->rank.job = &bench->job;
	int rc = job_make(bench, err);
	if (rc == 0)
		rc = child_start(bench, err);
	if (rc == 0)
		rc = update_rank_open(&bench->rank, SIDE_TRAINER, err);
	if (rc == 0)
		rc = answer(bench, NULL, err); /* it is there, too */
	bench->bytes = rc == 0 ? bench->rank.params[SIDE_ROLLOUT].bytes : 0;
	if (rc == 0)
		rc = trainer_start(bench, err);
	if (rc == 0)
		rc = peer_map(bench, err);
	if (rc == 0)
		rc = nccl_start(bench, err);
	if (rc == 0)
		rc = turns(bench, rounds, err);
	if (rc == 0)
		report(bench, rounds);
	bench_close(bench);
	return rc;
}
