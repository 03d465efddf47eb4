/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What copies to another GPU, or from page-locked memory, come to, by how they are made: a call for
 * each, batches for a copy engine, launches of lib/cuda's kernel; against one copy of all bytes, in
 * turns.  What lib/cuda/copy.h and lib/transport/ipc_gpu.c choose by.
 */
#include <errno.h>
#include <string.h>

#include "bench/measure.h"
#include "lib/cuda/copy.h"
#include "lib/cuda/cuda.h"

#define KIB	    UINT64_C(1024)
#define MIB	    (1024 * KIB)
#define TOTAL_BYTES (8192 * MIB)
#define WORDS	    (MIB / 8) /* of the pattern, which is repeated */

enum how { HOW_CALLS, HOW_ENGINE, HOW_KERNEL };

static const struct row {
	const char *name;
	enum how how;
	bool from_host;
	uint64_t piece_bytes;
	uint32_t pieces; /* of a launch */
} rows[] = {
	{"calls", HOW_CALLS, false, 1 * MIB, 1},
	{"calls", HOW_CALLS, false, 4 * MIB, 1},
	{"calls", HOW_CALLS, false, 16 * MIB, 1},
	{"engine", HOW_ENGINE, false, 256 * KIB, 96},
	{"engine", HOW_ENGINE, false, 512 * KIB, 96},
	{"engine", HOW_ENGINE, false, 1 * MIB, 48},
	{"engine", HOW_ENGINE, false, 1 * MIB, 96},
	{"engine", HOW_ENGINE, false, 3 * MIB, 16},
	{"engine", HOW_ENGINE, false, 3 * MIB, 64},
	{"engine", HOW_ENGINE, false, 48 * MIB, 1},
	{"engine", HOW_ENGINE, false, 192 * MIB, 1},
	{"kernel", HOW_KERNEL, false, 64 * KIB, 96},
	{"kernel", HOW_KERNEL, false, 256 * KIB, 96},
	{"kernel", HOW_KERNEL, false, 1 * MIB, 96},
	{"host calls", HOW_CALLS, true, 1 * MIB, 1},
	{"host engine", HOW_ENGINE, true, 1 * MIB, 64},
	{"host kernel", HOW_KERNEL, true, 1 * MIB, 64},
};

struct job {
	const struct bench_options *options;
	const struct row *row; /* that is measured now */
	int from, to;	       /* GPUs; the work is given to the first */
	uint32_t rounds;
	uint64_t bytes;		      /* of a turn: whole launches of every row */
	uint8_t *source, *host, *out; /* host: page-locked, made when the first row wants it */
	uint64_t *differing;	      /* the GPU's */
	struct CUstream_st *stream;
	struct CUevent_st *begin, *end, *mark;
};

static const uint8_t *source_of(const struct job *job)
{
	return job->row->from_host ? job->host : job->source;
}

/* ---------------------------------------------------------------- turns */

static int launch(const struct job *job, uint64_t at, struct ws_error *err)
{
	const struct row *row = job->row;
	struct copies copies = {.count = 0};
	uint64_t end = MIN(at + row->pieces * row->piece_bytes, job->bytes);

	for (; at < end; at += row->piece_bytes)
		(void)copies_add(&copies,
				 &(struct cuda_copy){.to = job->out + at,
						     .from = source_of(job) + at,
						     .bytes = MIN(row->piece_bytes, end - at),
						     .is_far = true});
	switch (row->how) {
	case HOW_ENGINE:
		return copies_by_engine(&copies, job->stream, err);
	case HOW_KERNEL:
		return copies_launch(&copies, job->from, job->stream, err);
	case HOW_CALLS:
		break;
	}
	return cuda_copy(copies.list[0].to, copies.list[0].from, copies.list[0].bytes, job->stream,
			 err);
}

/* With a mark behind each launch, as the product has. */
static int launch_all(const struct job *job, struct ws_error *err)
{
	const struct row *row = job->row;
	uint64_t each = row->pieces * row->piece_bytes;
	int rc = 0;

	for (uint64_t at = 0; rc == 0 && at < job->bytes; at += each) {
		rc = launch(job, at, err);
		if (rc == 0 && row->how != HOW_CALLS)
			rc = cuda_event_record(job->mark, job->stream, err);
	}
	return rc;
}

/* Nanoseconds of the row's copies, or of one copy. */
static int turn(void *arg, bool by_row, double *ns_out, struct ws_error *err)
{
	const struct job *job = arg;
	uint64_t ns = 0;
	int rc = cuda_event_record(job->begin, job->stream, err);

	if (rc == 0)
		rc = by_row ? launch_all(job, err)
			    : cuda_copy(job->out, source_of(job), job->bytes, job->stream, err);
	if (rc == 0)
		rc = cuda_event_record(job->end, job->stream, err);
	if (rc == 0)
		rc = cuda_stream_wait(job->stream, err);
	if (rc == 0)
		rc = cuda_event_ns(job->begin, job->end, &ns, err);
	*ns_out = (double)ns;
	return rc;
}

/* Into zeroed memory, then every byte is compared. */
static int check(struct job *job, struct ws_error *err)
{
	uint64_t differing = 0;
	double ns;

	int rc = cuda_fill(job->out, 0, job->bytes, job->stream, err);
	if (rc == 0)
		rc = cuda_fill(job->differing, 0, sizeof(differing), job->stream, err);
	if (rc == 0)
		rc = turn(job, true, &ns, err);
	if (rc == 0)
		rc = differ_launch(job->source, job->out, job->bytes, job->differing, job->stream,
				   err);
	if (rc == 0)
		rc = cuda_copy(&differing, job->differing, sizeof(differing), job->stream, err);
	if (rc == 0)
		rc = cuda_stream_wait(job->stream, err);
	if (rc == 0 && differing > 0)
		rc = ws_fail(err, -EIO, "row '%s': %llu of %llu bytes differ from the source's",
			     job->row->name, (unsigned long long)differing,
			     (unsigned long long)job->bytes);
	return rc;
}

static void print(const struct job *job, const struct turns *turns)
{
	const struct row *row = job->row;
	const struct spread *ratio = &turns->ratio;
	double bytes = (double)job->bytes;

	if (job->options->json)
		fprintf(job->options->out,
			"{\"row\":\"%s\",\"piece_bytes\":%llu,\"pieces\":%u,\"bytes\":%.0f,"
			"\"ms\":%.3f,\"gb_per_s\":%.1f,\"copy_gb_per_s\":%.1f,\"ratio\":%.3f,"
			"\"least\":%.3f,\"most\":%.3f}\n",
			row->name, (unsigned long long)row->piece_bytes, row->pieces, bytes,
			turns->product_ns * 1e-6, bytes / turns->product_ns,
			bytes / turns->baseline_ns, ratio->median, ratio->min, ratio->max);
	else
		fprintf(job->options->out,
			"%-12s  %3u x %6llu KiB  %8.2f  %6.1f  %6.1f  %6.3f  %6.3f  %6.3f\n",
			row->name, row->pieces, (unsigned long long)(row->piece_bytes / KIB),
			turns->product_ns * 1e-6, bytes / turns->product_ns,
			bytes / turns->baseline_ns, ratio->median, ratio->min, ratio->max);
	fflush(job->options->out);
}

static int measure(struct job *job, const struct row *row, struct ws_error *err)
{
	struct turns turns;

	job->row = row;
	int rc = check(job, err);
	if (rc == 0)
		rc = turns_play(job->rounds, turn, job, &turns, err);
	if (rc == 0)
		print(job, &turns);
	return rc;
}

/* ---------------------------------------------------------------- memory */

static int fill(const struct job *job, struct ws_error *err)
{
	uint64_t *pattern = mem_alloc(WORDS * sizeof(*pattern));
	int rc = 0;

	if (pattern == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a pattern");
	/* Another one in each MiB, so that a piece in another's place is seen. */
	for (uint64_t at = 0; rc == 0 && at < job->bytes; at += MIB) {
		for (uint64_t i = 0; i < WORDS; i++)
			pattern[i] = mix64(at + i + 1);
		rc = cuda_copy(job->source + at, pattern, MIN(MIB, job->bytes - at), job->stream,
			       err);
		if (rc == 0)
			rc = cuda_stream_wait(job->stream, err);
	}
	mem_free(pattern);
	return rc;
}

static int host_make(struct job *job, struct ws_error *err)
{
	void *base = NULL;

	if (job->host != NULL)
		return 0;
	int rc = cuda_pinned_alloc(job->bytes, &base, err);
	job->host = base;
	if (rc == 0)
		rc = cuda_copy(job->host, job->source, job->bytes, job->stream, err);
	return rc != 0 ? rc : cuda_stream_wait(job->stream, err);
}

static int job_open(struct job *job, struct ws_error *err)
{
	const struct bench_options *options = job->options;
	struct ws_error why = {0};
	int count = cuda_device_count(&why);
	if (count == 0)
		return ws_fail(err, -ENODEV, "bench copies wants a GPU, better two: %s", why.text);
	job->to = count > 1 ? 1 : 0;
	job->rounds = MIN(MAX(options->rounds, BENCH_ROUNDS_MIN), BENCH_ROUNDS_MAX);
	job->bytes = options->total_bytes == 0 ? TOTAL_BYTES : MAX(options->total_bytes, MIB);
	int rc = gpu_room(job->to, job->bytes, &job->out, err);
	if (rc == 0)
		rc = gpu_room(job->from, job->bytes, &job->source, err);
	if (rc == 0)
		rc = gpu_room(job->from, sizeof(*job->differing), &job->differing, err);
	if (rc == 0 && job->to != job->from)
		rc = cuda_reach(job->from, job->out, err);
	if (rc == 0)
		rc = cuda_stream_open(job->from, &job->stream, err);
	if (rc == 0)
		rc = cuda_event_open(job->from, true, &job->begin, err);
	if (rc == 0)
		rc = cuda_event_open(job->from, true, &job->end, err);
	if (rc == 0)
		rc = cuda_event_open(job->from, false, &job->mark, err);
	return rc != 0 ? rc : fill(job, err);
}

static void job_close(struct job *job)
{
	cuda_event_close(job->begin);
	cuda_event_close(job->end);
	cuda_event_close(job->mark);
	cuda_stream_close(job->stream);
	cuda_pinned_free(job->host);
	cuda_free(job->from, job->source);
	cuda_free(job->from, job->differing);
	cuda_free(job->to, job->out);
}

static int what_check(const char *what, struct ws_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		if (what == NULL || strcmp(what, rows[i].name) == 0)
			return 0;
	return ws_fail(err, -EINVAL,
		       "no row of bench copies is '%s': choose calls, engine, kernel, 'host "
		       "calls', 'host engine' or 'host kernel'",
		       what);
}

int bench_copies(const struct bench_options *options, struct ws_error *err)
{
	struct job job = {.options = options};
	int rc = what_check(options->what, err);
	if (rc != 0)
		return rc;
	rc = job_open(&job, err);

	if (rc == 0 && !options->json)
		fprintf(options->out,
			"%.2f GB from GPU %d, or its host, to GPU %d; every byte compared\n"
			"%-12s  %16s  %8s  %6s  %6s  %6s  %6s  %6s\n",
			(double)job.bytes * 1e-9, job.from, job.to, "", "launches of", "ms", "GB/s",
			"copy", "ratio", "least", "most");
	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(rows); i++) {
		if (options->what != NULL && strcmp(options->what, rows[i].name) != 0)
			continue;
		if (rows[i].from_host)
			rc = host_make(&job, err);
		if (rc == 0)
			rc = measure(&job, &rows[i], err);
	}
	job_close(&job);
	return rc;
}
