/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converting weights on one core, at every level that it has, against memcpy of the same bytes, in
 * turns.  The weights are experts of Qwen3-30B-A3B, a move each, as many as make up the bytes:
 * more than a cache holds, unless --bytes says otherwise.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "bench/experts.h"
#include "bench/measure.h"
#include "lib/convert/convert.h"

#define BYTES_DEFAULT (128ull << 20)
#define CONTENDERS    (CONVERT_LEVEL_COUNT + 1) /* memcpy last */

enum what { WHAT_MAXIMA, WHAT_QUANTIZE, WHAT_TWO_PASSES, WHAT_WHOLE, WHAT_CAST, WHAT_DEQUANTIZE };

static const struct row {
	const char *name, *counted;
} rows[] = {
	[WHAT_MAXIMA] = {"amax", "bf16 read"},
	[WHAT_QUANTIZE] = {"quantize", "bf16 read"},
	[WHAT_TWO_PASSES] = {"both", "bf16 read"},
	[WHAT_WHOLE] = {"whole", "bf16 read"},
	[WHAT_CAST] = {"cast", "bf16 written"},
	[WHAT_DEQUANTIZE] = {"dequantize", "bf16 written"},
};

struct job {
	const struct bench_options *options;
	uint32_t tensor_count;
	uint32_t rounds;
	/* Owned; tensor after tensor. */
	float *wide;
	uint16_t *bf16, *copy;
	uint8_t *codes;
	uint32_t *maxima;
	float *scales;
};

/* ---------------------------------------------------------------- the work */
/* Rows of a tensor, with dst of each kind. */
static void move_rows(const struct job *job, enum move_kind kind, uint64_t tensor, uint64_t row,
		      uint64_t row_count)
{
	static const struct quant quant = {
		.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4F, .reciprocal = true};
	bool dequantizes = kind == MOVE_DEQUANTIZE;
	uint64_t at = tensor * ELEMENTS + row * COLUMNS;
	uint64_t entry = tensor * ENTRIES;
	struct blocks blocks = {.quant = &quant,
				.table = job->maxima + entry,
				.each = {BLOCK, BLOCK},
				.first = {row, 0},
				.stride = {GRID_COLUMNS, 1}};
	struct move move = {.kind = kind,
			    .blocks = &blocks,
			    .src = job->bf16 + at,
			    .dst = job->codes + at,
			    .dim_count = 2,
			    .extent = {row_count, COLUMNS},
			    .src_stride = {2 * COLUMNS, 2},
			    .dst_stride = {COLUMNS, 1},
			    .from = WS_BF16,
			    .to = WS_F8_E4M3};
	if (dequantizes || kind == MOVE_CAST) {
		int64_t bytes = dequantizes ? 1 : 4;
		blocks.table = job->scales + entry;
		move.src = dequantizes ? (const void *)(job->codes + at) : job->wide + at;
		move.dst = job->copy + at;
		move.src_stride[0] = bytes * COLUMNS;
		move.src_stride[1] = bytes;
		move.dst_stride[0] = 2 * COLUMNS;
		move.dst_stride[1] = 2;
		move.from = dequantizes ? WS_F8_E4M3 : WS_F32;
		move.to = WS_BF16;
	} else if (kind == MOVE_SCALE) {
		move.src = job->maxima + entry + row / BLOCK * GRID_COLUMNS;
		move.dst = job->scales + entry + row / BLOCK * GRID_COLUMNS;
		move.dim_count = 1;
		move.extent[0] = row_count / BLOCK * GRID_COLUMNS;
		move.src_stride[0] = move.dst_stride[0] = 4;
		move.from = WS_U32;
		move.to = WS_F32;
	}
	convert_move(&move);
}

static void move_all(const struct job *job, enum move_kind kind)
{
	for (uint32_t i = 0; i < job->tensor_count; i++)
		move_rows(job, kind, i, 0, ROWS);
}

static void do_work(const struct job *job, enum what what)
{
	switch (what) {
	case WHAT_MAXIMA:
		move_all(job, MOVE_MAXIMA);
		return;
	case WHAT_QUANTIZE:
		move_all(job, MOVE_QUANTIZE);
		return;
	case WHAT_TWO_PASSES:
		move_all(job, MOVE_MAXIMA);
		move_all(job, MOVE_SCALE);
		move_all(job, MOVE_QUANTIZE);
		return;
	case WHAT_WHOLE:
		move_all(job, MOVE_QUANTIZE_WHOLE);
		move_all(job, MOVE_SCALE);
		return;
	case WHAT_CAST:
		move_all(job, MOVE_CAST);
		return;
	case WHAT_DEQUANTIZE:
		move_all(job, MOVE_DEQUANTIZE);
		return;
	}
}

/* ---------------------------------------------------------------- measuring */
static uint64_t counted_bytes(const struct job *job)
{
	return job->tensor_count * ELEMENTS * 2;
}

/* Of this thread, which never waits: what else runs on the core doesn't count. */
static uint64_t core_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* GB/s of a turn; 0: this CPU lacks the level. */
static double play(const struct job *job, enum what what, uint32_t contender)
{
	bool copies = contender == CONVERT_LEVEL_COUNT;
	if (!copies && !convert_level_set((enum convert_level)contender))
		return 0;
	uint64_t bytes = counted_bytes(job), begin = core_ns();
	if (copies)
		memcpy(job->copy, job->bf16, bytes);
	else
		do_work(job, what);
	return (double)bytes / (double)(core_ns() - begin);
}

static void print_row(const struct job *job, enum what what, uint32_t level, struct spread speed,
		      struct spread copy, struct spread ratio)
{
	const char *name = convert_level_name((enum convert_level)level);
	FILE *out = job->options->out;
	if (job->options->json)
		fprintf(out,
			"{\"bench\":\"convert\",\"what\":\"%s\",\"level\":\"%s\",\"counted\":\"%s\","
			"\"bytes\":%llu,\"gbytes_per_s\":%.3f,\"gbytes_per_s_min\":%.3f,"
			"\"gbytes_per_s_max\":%.3f,\"memcpy_gbytes_per_s\":%.3f,\"ratio\":%.3f,"
			"\"ratio_min\":%.3f,\"ratio_max\":%.3f}\n",
			rows[what].name, name, rows[what].counted,
			(unsigned long long)counted_bytes(job), speed.median, speed.min, speed.max,
			copy.median, ratio.median, ratio.min, ratio.max);
	else
		fprintf(out, "%-10s  %-6s  %7.2f  %7.2f  %6.3f  %6.3f  %6.3f  %s\n",
			rows[what].name, name, speed.median, copy.median, ratio.median, ratio.min,
			ratio.max, rows[what].counted);
	fflush(out);
}

/* The first turn isn't counted; who goes first changes. */
static void measure(const struct job *job, enum what what)
{
	static double speeds[CONTENDERS][BENCH_ROUNDS_MAX], ratios[BENCH_ROUNDS_MAX];
	for (uint32_t round = 0; round <= job->rounds; round++)
		for (uint32_t i = 0; i < CONTENDERS; i++) {
			uint32_t contender = (round + i) % CONTENDERS;
			double speed = play(job, what, contender);
			if (round > 0)
				speeds[contender][round - 1] = speed;
		}
	double *copies = speeds[CONVERT_LEVEL_COUNT];
	for (uint32_t level = CONVERT_LEVEL_COUNT; level-- > 0;) {
		double turns[BENCH_ROUNDS_MAX];
		if (speeds[level][0] == 0)
			continue;
		for (uint32_t i = 0; i < job->rounds; i++)
			ratios[i] = speeds[level][i] / copies[i];
		memcpy(turns, copies, job->rounds * sizeof(*turns));
		struct spread speed = spread_of(speeds[level], job->rounds);
		struct spread copy = spread_of(turns, job->rounds);
		print_row(job, what, level, speed, copy, spread_of(ratios, job->rounds));
	}
}

static void job_close(struct job *job)
{
	mem_free(job->wide);
	mem_free(job->bf16);
	mem_free(job->copy);
	mem_free(job->codes);
	mem_free(job->maxima);
	mem_free(job->scales);
}

static void fill(struct job *job)
{
	uint64_t count = job->tensor_count * ELEMENTS;
	for (uint64_t i = 0; i < count; i++)
		job->wide[i] = expert_weight(i);
	memset(job->maxima, 0, job->tensor_count * ENTRIES * sizeof(*job->maxima));
	memset(job->codes, 0, count);
	do_work(job, WHAT_CAST);
	memcpy(job->bf16, job->copy, count * sizeof(*job->bf16));
	do_work(job, WHAT_TWO_PASSES);
}

static int job_open(struct job *job, struct ws_error *err)
{
	uint64_t bytes = job->options->total_bytes;
	uint64_t tensor_bytes = ELEMENTS * sizeof(*job->bf16);
	job->tensor_count = (uint32_t)MAX((bytes == 0 ? BYTES_DEFAULT : bytes) / tensor_bytes, 1);
	job->rounds = MIN(MAX(job->options->rounds, BENCH_ROUNDS_MIN), BENCH_ROUNDS_MAX);
	uint64_t count = job->tensor_count * ELEMENTS, entries = job->tensor_count * ENTRIES;
	job->wide = mem_alloc(count * sizeof(*job->wide));
	job->bf16 = mem_alloc(count * sizeof(*job->bf16));
	job->copy = mem_alloc(count * sizeof(*job->copy));
	job->codes = mem_alloc(count);
	job->maxima = mem_alloc(entries * sizeof(*job->maxima));
	job->scales = mem_alloc(entries * sizeof(*job->scales));
	if (job->wide == NULL || job->bf16 == NULL || job->copy == NULL || job->codes == NULL ||
	    job->maxima == NULL || job->scales == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u tensors of %llu bytes",
			       job->tensor_count, (unsigned long long)tensor_bytes);
	fill(job);
	return 0;
}

int bench_convert(const struct bench_options *options, struct ws_error *err)
{
	struct job job = {.options = options};
	bool known = options->what == NULL;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		known = known || strcmp(options->what, rows[i].name) == 0;
	if (!known)
		return ws_fail(err, -EINVAL,
			       "no row of bench convert is '%s': choose amax, quantize, both, "
			       "whole, cast or dequantize",
			       options->what);
	int rc = job_open(&job, err);
	if (rc == 0 && !options->json)
		fprintf(options->out, "%-10s  %-6s  %7s  %7s  %6s  %6s  %6s  counted\n", "",
			"level", "GB/s", "memcpy", "ratio", "least", "most");
	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(rows); i++)
		if (options->what == NULL || strcmp(options->what, rows[i].name) == 0)
			measure(&job, (enum what)i);
	job_close(&job);
	return rc;
}
