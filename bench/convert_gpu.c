/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of moves on a GPU against one device-to-device copy that reads and writes as many bytes,
 * in turns.  The weights are Qwen3-30B-A3B's experts, a move each, or a few of them as one tensor.
 * Codes, maxima or copies are compared with the host's, for the first and the last expert; scales
 * are not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/experts.h"
#include "bench/measure.h"
#include "lib/convert/device.h"
#include "lib/cuda/cuda.h"

#define EXPERTS	      18432u
#define EXPERTS_ALONE 1024u /* of a tensor that is one move */
#define PATTERN	      16u   /* experts that are filled one by one; the others are copies of them */
#define TURN_BYTES    (UINT64_C(40) << 30)

enum what { WHAT_BLOCKS, WHAT_AMAX, WHAT_TWO_PASSES, WHAT_COPY };

static const struct row {
	const char *name;
	enum what what;
	bool alone; /* one tensor */
	bool divides;
} rows[] = {
	{"quantize", WHAT_BLOCKS, false, false},
	{"quantize", WHAT_BLOCKS, true, false},
	{"quantize x/s", WHAT_BLOCKS, false, true},
	{"amax", WHAT_AMAX, false, false},
	{"two passes", WHAT_TWO_PASSES, false, false},
	{"two passes", WHAT_TWO_PASSES, true, false},
	{"copy", WHAT_COPY, false, false},
	{"copy", WHAT_COPY, true, false},
};

struct job {
	const struct bench_options *options;
	const struct row *row; /* that is measured now */
	int device;
	uint32_t experts, alone, rounds;
	uint8_t *bf16, *out; /* on the GPU; out: the codes, or copies */
	uint32_t *maxima;
	float *scales;
	uint16_t *pattern; /* on the host */
	struct device_batch *first, *second;
	struct CUstream_st *stream;
	struct CUevent_st *begin, *end;
};

/* ---------------------------------------------------------------- the work */
/* Experts from one on, as one tensor. */
static void set_move(const struct job *job, const struct row *row, enum move_kind kind,
		     uint64_t expert, uint64_t count, struct blocks *blocks, struct move *move)
{
	static const struct quant quants[2] = {
		{.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4F, .reciprocal = true},
		{.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4F}};
	bool copies = kind == MOVE_CAST;
	*blocks = (struct blocks){.quant = &quants[row->divides],
				  .table = job->maxima + expert * ENTRIES,
				  .each = {BLOCK, BLOCK},
				  .stride = {GRID_COLUMNS, 1}};
	*move = (struct move){.kind = kind,
			      .blocks = copies ? NULL : blocks,
			      .src = job->bf16 + expert * ELEMENTS * 2,
			      .dst = job->out + expert * ELEMENTS * (copies ? 2 : 1),
			      .dim_count = 2,
			      .extent = {count * ROWS, COLUMNS},
			      .src_stride = {2 * COLUMNS, 2},
			      .dst_stride = {copies ? 2 * COLUMNS : COLUMNS, copies ? 2 : 1},
			      .from = WS_BF16,
			      .to = copies ? WS_BF16 : WS_F8_E4M3};
}

static int add_scales(struct job *job, const struct blocks *blocks, uint64_t expert, uint64_t count,
		      struct ws_error *err)
{
	return device_batch_add(job->second,
				&(struct move){.kind = MOVE_SCALE,
					       .blocks = blocks,
					       .src = job->maxima + expert * ENTRIES,
					       .dst = job->scales + expert * ENTRIES,
					       .dim_count = 1,
					       .extent = {count * ENTRIES},
					       .src_stride = {4},
					       .dst_stride = {4},
					       .from = WS_U32,
					       .to = WS_F32},
				err);
}

static int add_expert(struct job *job, const struct row *row, uint64_t expert, uint64_t count,
		      struct ws_error *err)
{
	struct blocks blocks;
	struct move move;
	int rc = 0;

	if (row->what == WHAT_COPY) {
		set_move(job, row, MOVE_CAST, expert, count, &blocks, &move);
		return device_batch_add(job->first, &move, err);
	}
	if (row->what == WHAT_BLOCKS) {
		set_move(job, row, MOVE_QUANTIZE_WHOLE, expert, count, &blocks, &move);
		rc = device_batch_add(job->first, &move, err);
		return rc != 0 ? rc : add_scales(job, &blocks, expert, count, err);
	}
	set_move(job, row, MOVE_MAXIMA, expert, count, &blocks, &move);
	rc = device_batch_add(job->first, &move, err);
	if (rc != 0 || row->what == WHAT_AMAX)
		return rc;
	set_move(job, row, MOVE_QUANTIZE, expert, count, &blocks, &move);
	rc = device_batch_add(job->second, &move, err);
	return rc != 0 ? rc : add_scales(job, &blocks, expert, count, err);
}

static uint64_t experts_of(const struct job *job, const struct row *row)
{
	return row->alone ? job->alone : job->experts;
}

static int fill_batches(struct job *job, struct ws_error *err)
{
	const struct row *row = job->row;
	uint64_t count = experts_of(job, row), each = row->alone ? count : 1;
	int rc = 0;

	device_batch_clear(job->first);
	device_batch_clear(job->second);
	for (uint64_t expert = 0; rc == 0 && expert < count; expert += each)
		rc = add_expert(job, row, expert, each, err);
	return rc;
}

/* Read and written; in two passes the weights are read twice, which counts once. */
static uint64_t bytes_of(const struct job *job, const struct row *row)
{
	uint64_t count = experts_of(job, row), elements = count * ELEMENTS;
	switch (row->what) {
	case WHAT_AMAX:
		return 2 * elements + 4 * count * ENTRIES;
	case WHAT_BLOCKS:
	case WHAT_TWO_PASSES:
		return 3 * elements + 4 * count * ENTRIES;
	case WHAT_COPY:
		break;
	}
	return 4 * elements;
}

/* ---------------------------------------------------------------- turns */
static int work_once(struct job *job, struct ws_error *err)
{
	const struct row *row = job->row;
	uint64_t entries = experts_of(job, row) * ENTRIES;
	bool has_maxima = row->what == WHAT_AMAX || row->what == WHAT_TWO_PASSES;
	int rc = 0;

	if (has_maxima)
		rc = cuda_fill(job->maxima, 0, entries * 4, job->stream, err);
	if (rc == 0)
		rc = device_batch_launch(job->first, job->stream, err);
	if (rc == 0 && (row->what == WHAT_TWO_PASSES || row->what == WHAT_BLOCKS))
		rc = device_batch_launch(job->second, job->stream, err);
	return rc;
}

/* Nanoseconds of one; product: the batches, else one copy of half as many bytes. */
static int turn(void *arg, bool product, double *ns_out, struct ws_error *err)
{
	struct job *job = arg;
	uint64_t bytes = bytes_of(job, job->row), ns = 0;
	uint32_t times = (uint32_t)MIN(MAX(TURN_BYTES / bytes, 1), 64);
	int rc = cuda_event_record(job->begin, job->stream, err);

	for (uint32_t i = 0; rc == 0 && i < times; i++)
		rc = product ? work_once(job, err)
			     : cuda_copy(job->out, job->bf16, bytes / 2, job->stream, err);
	if (rc == 0)
		rc = cuda_event_record(job->end, job->stream, err);
	if (rc == 0)
		rc = cuda_stream_wait(job->stream, err);
	if (rc == 0)
		rc = cuda_event_ns(job->begin, job->end, &ns, err);
	*ns_out = (double)ns / times;
	return rc;
}

static void print(const struct job *job, const struct turns *turns)
{
	const struct row *row = job->row;
	const struct spread *ratio = &turns->ratio;
	double bytes = (double)bytes_of(job, row);
	uint64_t count = row->alone ? 1 : job->experts;

	if (job->options->json)
		fprintf(job->options->out,
			"{\"row\":\"%s\",\"tensors\":%llu,\"bytes\":%.0f,\"ms\":%.3f,"
			"\"gb_per_s\":%.0f,\"copy_gb_per_s\":%.0f,\"ratio\":%.3f,\"least\":%.3f,"
			"\"most\":%.3f}\n",
			row->name, (unsigned long long)count, bytes, turns->product_ns * 1e-6,
			bytes / turns->product_ns, bytes / turns->baseline_ns, ratio->median,
			ratio->min, ratio->max);
	else
		fprintf(job->options->out,
			"%-12s  %7llu  %7.2f  %8.3f  %6.0f  %6.0f  %6.3f  %6.3f  %6.3f\n",
			row->name, (unsigned long long)count, bytes * 1e-9,
			turns->product_ns * 1e-6, bytes / turns->product_ns,
			bytes / turns->baseline_ns, ratio->median, ratio->min, ratio->max);
	fflush(job->options->out);
}

/* ---------------------------------------------------------------- what came out */
static int differ(const struct row *row, const char *what, uint64_t expert, struct ws_error *err)
{
	return ws_fail(err, -EIO, "row '%s': the %s of expert %llu aren't the host's", row->name,
		       what, (unsigned long long)expert);
}

static int check_expert(struct job *job, const struct row *row, uint64_t expert, uint8_t *room,
			struct ws_error *err)
{
	uint8_t *codes = room, *got = room + ELEMENTS * 2;
	bool copies = row->what == WHAT_COPY;
	uint64_t bytes = ELEMENTS * (copies ? 2 : 1);
	static uint32_t maxima[ENTRIES];
	struct blocks blocks;
	struct move move;

	memset(maxima, 0, sizeof(maxima));
	set_move(job, row, MOVE_MAXIMA, expert, 1, &blocks, &move);
	blocks.table = maxima;
	move.src = job->pattern + expert % PATTERN * ELEMENTS;
	convert_move(&move);
	set_move(job, row, copies ? MOVE_CAST : MOVE_QUANTIZE, expert, 1, &blocks, &move);
	blocks.table = maxima;
	move.src = job->pattern + expert % PATTERN * ELEMENTS;
	move.dst = codes;
	convert_move(&move);
	if (row->what == WHAT_AMAX) {
		memcpy(codes, maxima, sizeof(maxima));
		bytes = sizeof(maxima);
	}
	const void *from = row->what == WHAT_AMAX ? (void *)(job->maxima + expert * ENTRIES)
						  : (void *)(job->out + expert * bytes);
	int rc = cuda_copy(got, from, bytes, job->stream, err);
	if (rc == 0)
		rc = cuda_stream_wait(job->stream, err);
	if (rc == 0 && memcmp(got, codes, bytes) != 0)
		rc = differ(row, row->what == WHAT_AMAX ? "maxima" : "codes", expert, err);
	return rc;
}

/* After the product's last turn. */
static int check(struct job *job, struct ws_error *err)
{
	const struct row *row = job->row;
	uint8_t *room = mem_alloc(ELEMENTS * 4);
	uint64_t last = experts_of(job, row) - 1;
	double ns;

	if (room == NULL)
		return ws_fail(err, -ENOMEM, "no memory for an expert");
	int rc = turn(job, true, &ns, err);
	if (rc == 0)
		rc = check_expert(job, row, 0, room, err);
	if (rc == 0)
		rc = check_expert(job, row, last, room, err);
	mem_free(room);
	return rc;
}

static int measure(struct job *job, const struct row *row, struct ws_error *err)
{
	struct turns turns;

	job->row = row;
	int rc = fill_batches(job, err);
	if (rc == 0)
		rc = check(job, err);
	if (rc == 0)
		rc = turns_play(job->rounds, turn, job, &turns, err);
	if (rc == 0)
		print(job, &turns);
	return rc;
}

/* ---------------------------------------------------------------- memory */
static int fill_weights(struct job *job, struct ws_error *err)
{
	uint64_t bytes = ELEMENTS * 2, filled = PATTERN;
	int rc = 0;

	for (uint64_t i = 0; i < PATTERN * ELEMENTS; i++) {
		float value = expert_weight(i);
		uint32_t bits;
		memcpy(&bits, &value, sizeof(bits));
		job->pattern[i] = (uint16_t)(bits >> 16);
	}
	rc = cuda_copy(job->bf16, job->pattern, PATTERN * bytes, job->stream, err);
	for (; rc == 0 && filled < job->experts; filled *= 2)
		rc = cuda_copy(job->bf16 + filled * bytes, job->bf16,
			       MIN(filled, job->experts - filled) * bytes, job->stream, err);
	return rc != 0 ? rc : cuda_stream_wait(job->stream, err);
}

static int job_open(struct job *job, struct ws_error *err)
{
	const struct bench_options *options = job->options;
	uint64_t bytes = options->total_bytes == 0 ? UINT64_MAX : options->total_bytes;
	job->experts = (uint32_t)MIN(MAX(bytes / (ELEMENTS * 2), PATTERN), EXPERTS);
	job->alone = MIN(job->experts, EXPERTS_ALONE);
	job->rounds = MIN(MAX(options->rounds, BENCH_ROUNDS_MIN), BENCH_ROUNDS_MAX);
	uint64_t entries = job->experts * ENTRIES, elements = job->experts * ELEMENTS;
	job->pattern = mem_alloc(PATTERN * ELEMENTS * 2);
	if (job->pattern == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u experts", PATTERN);
	/* Copies of all experts, or a copy of half of what is read and written. */
	int rc = gpu_room(job->device, elements * 2, &job->bf16, err);
	if (rc == 0)
		rc = gpu_room(job->device, elements * 2, &job->out, err);
	if (rc == 0)
		rc = gpu_room(job->device, entries * 4, &job->maxima, err);
	if (rc == 0)
		rc = gpu_room(job->device, entries * 4, &job->scales, err);
	if (rc == 0)
		rc = device_batch_open(&job->first, job->device, job->experts, err);
	if (rc == 0)
		rc = device_batch_open(&job->second, job->device, 2 * job->experts, err);
	if (rc == 0)
		rc = cuda_stream_open(job->device, &job->stream, err);
	if (rc == 0)
		rc = cuda_event_open(job->device, true, &job->begin, err);
	if (rc == 0)
		rc = cuda_event_open(job->device, true, &job->end, err);
	return rc != 0 ? rc : fill_weights(job, err);
}

static void job_close(struct job *job)
{
	device_batch_close(job->first);
	device_batch_close(job->second);
	cuda_event_close(job->begin);
	cuda_event_close(job->end);
	cuda_stream_close(job->stream);
	cuda_free(job->device, job->bf16);
	cuda_free(job->device, job->out);
	cuda_free(job->device, job->maxima);
	cuda_free(job->device, job->scales);
	mem_free(job->pattern);
}

static int options_check(const struct bench_options *options, struct ws_error *err)
{
	bool known = options->what == NULL;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		known = known || strcmp(options->what, rows[i].name) == 0;
	if (!known)
		return ws_fail(err, -EINVAL,
			       "no row of bench convert --gpu is '%s': choose quantize, 'quantize "
			       "x/s', amax, 'two passes' or copy",
			       options->what);
	if (options->gpu[0] == 0 || options->gpu[strspn(options->gpu, "0123456789")] != 0)
		return ws_fail(err, -EINVAL, "'%s' is no GPU's number: 0 is the first one",
			       options->gpu);
	return 0;
}

int bench_convert_gpu(const struct bench_options *options, struct ws_error *err)
{
	int rc = options_check(options, err);
	if (rc != 0)
		return rc;
	struct job job = {.options = options, .device = (int)strtol(options->gpu, NULL, 10)};
	rc = job_open(&job, err);

	if (rc == 0 && !options->json)
		fprintf(options->out, "%-12s  %7s  %7s  %8s  %6s  %6s  %6s  %6s  %6s\n", "",
			"tensors", "GB", "ms", "GB/s", "copy", "ratio", "least", "most");
	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(rows); i++)
		if (options->what == NULL || strcmp(options->what, rows[i].name) == 0)
			rc = measure(&job, &rows[i], err);
	job_close(&job);
	return rc;
}
