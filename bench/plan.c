/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long planning takes and how much memory: manifests read, plan made and checked, all pairs
 * digested; for all ranks together and for one rank's own part; for the jobs that have a budget and
 * from 32 to 2,048 trainer ranks.  Each row runs in a process of its own, so that its peak
 * of memory is its own.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"
#include "bench/plan_jobs.h"

#define JOB_REPLICAS_MAX 64

enum part { PART_ALL, PART_TRAINER, PART_ROLLOUT };

static const char *const part_names[] = {"all", "trainer", "rollout"};

struct outcome {
	double read_seconds, plan_seconds, check_seconds;
	double cpu_seconds; /* what the process used, whatever else the machine did meanwhile */
	uint64_t boxes, rss_bytes;
	uint32_t trainers, rollouts;
	struct ws_error err;
};

#define MEGATRON(pp, last, dp, ep) "tp=8,pp=" #pp ",last=" #last ",dp=" #dp ",ep=" #ep ",etp=1"
#define VLLM			   .rollout = "vllm", .rollout_mesh = "tp=16,ep=16"
#define KIMI			   .model = "kimi-k2"
#define MEGATRON_TO_SGLANG                                                                         \
	KIMI, .trainer = "megatron", .trainer_mesh = "tp=8,cp=4,pp=8,ep=32,etp=1,last=5",          \
	      .rollout = "sglang", .rollout_mesh = "tp=16,dp=8,ep=16,moe_dense_tp=1,dp_lm_head=1", \
	      .replicas = 8
#define FSDP2_TO_SGLANG                                                                    \
	KIMI, .experts = JOB_STACKED_EXPERT, .expert_ranks = 32, .fsdp_ranks = 8,          \
	      .rollout = "sglang",                                                         \
	      .rollout_mesh = "tp=32,dp=32,ep=32,moe_dense_tp=1,shared_tp=1,dp_lm_head=1", \
	      .replicas = 4

static const struct plan_job jobs[] = {
	{"megatron tp8 cp4 pp8 ep32 to sglang 8x16", MEGATRON_TO_SGLANG},
	{"fsdp2 ep32 x efsdp8 to sglang 4x32", FSDP2_TO_SGLANG},
	{"megatron tp8 cp4 pp8 ep32 to sglang 8x16, fp8-block", MEGATRON_TO_SGLANG,
	 .quant = "fp8-block"},
	{"fsdp2 ep32 x efsdp8 to sglang 4x32, fp8-block", FSDP2_TO_SGLANG, .quant = "fp8-block"},
	{"megatron 32", KIMI, .trainer = "megatron", .trainer_mesh = MEGATRON(4, 13, 1, 8), VLLM,
	 .replicas = 1},
	{"megatron 64", KIMI, .trainer = "megatron", .trainer_mesh = MEGATRON(4, 13, 2, 16), VLLM,
	 .replicas = 2},
	{"megatron 128", KIMI, .trainer = "megatron", .trainer_mesh = MEGATRON(4, 13, 4, 32), VLLM,
	 .replicas = 4},
	{"megatron 256", KIMI, .trainer = "megatron", .trainer_mesh = MEGATRON(8, 5, 4, 32), VLLM,
	 .replicas = 8},
	{"megatron 512", KIMI, .trainer = "megatron", .trainer_mesh = MEGATRON(8, 5, 8, 32), VLLM,
	 .replicas = 16},
	{"megatron 1024", KIMI, .trainer = "megatron", .trainer_mesh = MEGATRON(8, 5, 16, 32), VLLM,
	 .replicas = 32},
	{"megatron 2048", KIMI, .trainer = "megatron", .trainer_mesh = MEGATRON(8, 5, 32, 32), VLLM,
	 .replicas = 64},
};

static double lap(uint64_t *from)
{
	uint64_t now = clock_ns();
	double seconds = (double)(now - *from) / 1e9;

	*from = now;
	return seconds;
}

static double seconds_of(const struct timeval *time)
{
	return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

static int plan_timed(const struct plan_input *input, enum part part, struct outcome *out)
{
	struct plan *plan = NULL;
	uint32_t self = PLAN_ALL;
	uint64_t at = clock_ns();

	out->trainers = manifest_world(input->trainer);
	out->rollouts = manifest_world(input->rollout) * input->replica_count;
	/* One in the middle: neither side's first rank is like the others. */
	if (part == PART_TRAINER)
		self = out->trainers / 2;
	else if (part == PART_ROLLOUT)
		self = out->trainers + out->rollouts / 2;
	int rc = plan_make(&plan, input, self, NULL, &out->err);
	out->plan_seconds = lap(&at);
	if (rc == 0)
		rc = plan_check(plan, NULL, &out->err);
	out->check_seconds = lap(&at);
	if (rc == 0)
		out->boxes = plan_totals(plan)->boxes;
	plan_free(plan);
	return rc;
}

/* Everything from two texts to a checked plan. */
static int job_timed(const struct writer *texts, uint32_t replica_count, enum part part,
		     struct outcome *out)
{
	uint32_t replicas[JOB_REPLICAS_MAX];
	struct manifest *sides[2] = {0};
	struct plan_input input = {
		.replicas = replicas, .replica_count = replica_count, .rules = RULES_DEFAULT};
	uint64_t at = clock_ns();
	int rc = 0;

	for (uint32_t i = 0; i < replica_count; i++)
		replicas[i] = i;
	for (int s = 0; rc == 0 && s < 2; s++)
		rc = manifest_parse(&sides[s], texts[s].bytes, texts[s].count, NULL, &out->err);
	out->read_seconds = lap(&at);
	input.trainer = sides[SIDE_TRAINER];
	input.rollout = sides[SIDE_ROLLOUT];
	/* Op ids are 24 bits wide: what a rank gets in the largest jobs needs larger ops. */
	input.rules.op_bytes = 4u << 20;
	if (rc == 0)
		rc = plan_timed(&input, part, out);
	manifest_free(sides[0]);
	manifest_free(sides[1]);
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	out->cpu_seconds = seconds_of(&usage.ru_utime) + seconds_of(&usage.ru_stime);
	out->rss_bytes = (uint64_t)usage.ru_maxrss * 1024;
	return rc;
}

/* The row in a process of its own; what it found comes back through a pipe. */
static int job_forked(const struct writer *texts, uint32_t replicas, enum part part,
		      struct outcome *out, struct ws_error *err)
{
	int ends[2], status = 0;

	memset(out, 0, sizeof(*out));
	if (pipe(ends) != 0)
		return ws_fail(err, -EIO, "cannot make a pipe: %s", strerror(errno));
	pid_t child = fork();
	if (child == 0) {
		out->err.code = job_timed(texts, replicas, part, out);
		ssize_t wrote = write(ends[1], out, sizeof(*out));
		_exit(wrote == (ssize_t)sizeof(*out) ? 0 : 1);
	}
	close(ends[1]);
	ssize_t got = child < 0 ? -1 : read(ends[0], out, sizeof(*out));
	close(ends[0]);
	if (child > 0)
		waitpid(child, &status, 0);
	if (got != (ssize_t)sizeof(*out))
		return ws_fail(err, -EIO, "a planning process ended without a result");
	return out->err.code == 0 ? 0 : ws_fail(err, out->err.code, "%s", out->err.text);
}

static void put_row(const struct bench_options *options, const struct plan_job *job, enum part part,
		    const struct outcome *row)
{
	double seconds = row->read_seconds + row->plan_seconds + row->check_seconds;
	double per_box = row->boxes == 0 ? 0 : seconds * 1e9 / (double)row->boxes;

	if (options->json)
		fprintf(options->out,
			"{\"bench\":\"plan\",\"job\":\"%s\",\"trainers\":%" PRIu32
			",\"rollouts\":%" PRIu32
			",\"part\":\"%s\",\"seconds\":%.6f,\"cpu_seconds\":%.6f,"
			"\"read_seconds\":%.6f,"
			"\"plan_seconds\":%.6f,\"check_seconds\":%.6f,\"boxes\":%" PRIu64
			",\"ns_per_box\":%.3f,\"rss_bytes\":%" PRIu64 "}\n",
			job->name, row->trainers, row->rollouts, part_names[part], seconds,
			row->cpu_seconds, row->read_seconds, row->plan_seconds, row->check_seconds,
			row->boxes, per_box, row->rss_bytes);
	else
		fprintf(options->out,
			"%-42s %5" PRIu32 " -> %-5" PRIu32
			" %-8s %7.3f s, cpu %.3f (read %.3f plan %.3f check %.3f) %10" PRIu64
			" boxes %8.1f ns each %4" PRIu64 " MiB\n",
			job->name, row->trainers, row->rollouts, part_names[part], seconds,
			row->cpu_seconds, row->read_seconds, row->plan_seconds, row->check_seconds,
			row->boxes, per_box, row->rss_bytes >> 20);
	fflush(options->out);
}

int bench_plan(const struct bench_options *options, struct ws_error *err)
{
	int rc = 0;

	for (size_t j = 0; rc == 0 && j < ARRAY_SIZE(jobs); j++) {
		struct writer texts[2] = {WRITER_INIT(16u << 20), WRITER_INIT(16u << 20)};
		for (int s = 0; rc == 0 && s < 2; s++)
			rc = plan_job_manifest(&jobs[j], (enum side)s, &texts[s], NULL, err);
		for (int part = PART_ALL; rc == 0 && part <= PART_ROLLOUT; part++) {
			struct outcome row;
			rc = job_forked(texts, jobs[j].replicas, (enum part)part, &row, err);
			if (rc == 0)
				put_row(options, &jobs[j], (enum part)part, &row);
		}
		writer_release(&texts[0]);
		writer_release(&texts[1]);
	}
	return rc;
}
