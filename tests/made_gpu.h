/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs made of the host's memory, in the place of lib/cuda's runtime (a test that includes this has
 * all functions of it that its part of lib calls).  What is queued on a stream is done bit by bit
 * when somebody looks at it, and within a launch in any order: so the books of what a GPU has been
 * given are held against every delay that one may have, also where there is none.  What CUDA itself
 * does, only GPUs show (gpu_*.c).
 */
#ifndef TESTS_MADE_GPU_H
#define TESTS_MADE_GPU_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/convert/device.h"
#include "lib/cuda/copy.h"
#include "tests/test.h"

#define JOBS_MAX       32768u
#define BATCH_MAX      4096u
#define HOST_PARTS_MAX 128u

struct job {
	struct cuda_copy copy;
	const struct move *move; /* if it is one; the batch's */
};

struct CUstream_st {
	struct job jobs[JOBS_MAX];
	uint32_t launch[JOBS_MAX]; /* that a job belongs to */
	uint64_t done, queued;	   /* jobs; they count on and on */
	uint32_t launches;
};

struct CUevent_st {
	struct CUstream_st *stream;
	uint64_t at; /* done when so many jobs are */
};

static _Atomic uint64_t random_state;
static uint32_t launches, jobs, jobs_done; /* of all streams */
/* It has had a fault; it does nothing now; it copies nothing now. */
static _Atomic bool gpu_fails, gpu_waits, copies_wait;

static _Atomic(struct CUstream_st *) stream_waits; /* it alone does nothing now */
/* What happens while a copy is waited for. */
static void (*copy_meanwhile)(void);

/* Stretches of the host's memory, each page-locked at once or not at all; what lies in none is the
 * GPU's, as far as anybody asks. */
static struct cuda_range host_parts[HOST_PARTS_MAX];
static uint32_t host_part_count, host_asked;

/* What no other process can map, as memory of a pool or mapped piece by piece. */
static const void *unshared;

static pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t draw(uint64_t below)
{
	return mix64(atomic_fetch_add(&random_state, 1) ^ UINT64_C(1) << 40) % below;
}

static void stream_goes_on(struct CUstream_st *stream, uint64_t most)
{
	bool waits = gpu_waits || stream == stream_waits;
	for (; !gpu_fails && !waits && most > 0 && stream->done < stream->queued; most--) {
		uint64_t first = stream->done, end = first;
		if (copies_wait && stream->jobs[first % JOBS_MAX].move == NULL)
			return;
		stream->done++;
		while (end < stream->queued &&
		       stream->launch[end % JOBS_MAX] == stream->launch[first % JOBS_MAX])
			end++;
		struct job *other = &stream->jobs[(first + draw(end - first)) % JOBS_MAX];
		struct job job = *other;
		*other = stream->jobs[first % JOBS_MAX];
		if (job.move != NULL)
			convert_move(job.move);
		else
			memcpy(job.copy.to, job.copy.from, job.copy.bytes);
		jobs_done++;
	}
}

/* Nothing is read or written any more. */
static inline bool gpu_rests(void)
{
	pthread_mutex_lock(&gpu_lock);
	bool rests = jobs_done == jobs;
	pthread_mutex_unlock(&gpu_lock);
	return rests;
}

/* Somebody looks: some of it may have been done meanwhile.  Whether the first so many jobs are. */
static bool gpu_has_done(struct CUstream_st *stream, const uint64_t *count)
{
	pthread_mutex_lock(&gpu_lock);
	stream_goes_on(stream, draw(4) == 0 ? draw(40) : draw(3));
	bool done = stream->done >= (count != NULL ? *count : stream->queued);
	pthread_mutex_unlock(&gpu_lock);
	return done;
}

static int fault(struct ws_error *error)
{
	return gpu_fails ? ws_fail(error, -EIO, "the made GPU has a fault") : 0;
}

static const struct cuda_range *host_part(const void *at)
{
	for (uint32_t i = 0; i < host_part_count; i++)
		if (cuda_range_has(&host_parts[i], at, 1))
			return &host_parts[i];
	return NULL;
}

static int jobs_launch(struct CUstream_st *stream, const struct job *list, uint32_t count,
		       struct ws_error *error)
{
	pthread_mutex_lock(&gpu_lock);
	ck_assert_uint_le(stream->queued - stream->done + count, JOBS_MAX);
	for (uint32_t i = 0; i < count; i++, stream->queued++) {
		stream->jobs[stream->queued % JOBS_MAX] = list[i];
		stream->launch[stream->queued % JOBS_MAX] = stream->launches;
	}
	stream->launches++;
	launches++;
	jobs += count;
	pthread_mutex_unlock(&gpu_lock);
	return fault(error);
}

int copies_launch(const struct copies *copies, int device, struct CUstream_st *stream,
		  struct ws_error *error)
{
	struct job list[COPIES_MAX];

	(void)device;
	for (uint32_t i = 0; i < copies->count; i++) {
		const struct cuda_copy *copy = &copies->list[i];
		const struct cuda_range *part = host_part(copy->from);
		ck_assert_msg(part == NULL || (part->kind == CUDA_PINNED &&
					       cuda_range_has(part, copy->from, copy->bytes)),
			      "a kernel reads what isn't page-locked at once");
		list[i] = (struct job){.copy = *copy};
	}
	return jobs_launch(stream, list, copies->count, error);
}

int copies_by_engine(const struct copies *copies, struct CUstream_st *stream,
		     struct ws_error *error)
{
	return copies_launch(copies, 0, stream, error);
}

/* Where an end may be pageable: waits for what is before it.  Beyond the end of a page-lock it is
 * refused, as CUDA does. */
int cuda_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *error)
{
	const struct cuda_range *part = host_part(src);

	if (part != NULL && part->kind == CUDA_PINNED && !cuda_range_has(part, src, bytes))
		return ws_fail(error, -EIO, "a copy goes over the end of a page-lock");
	if (copy_meanwhile != NULL)
		copy_meanwhile();
	pthread_mutex_lock(&gpu_lock);
	stream_goes_on(stream, JOBS_MAX);
	memcpy(dst, src, bytes);
	pthread_mutex_unlock(&gpu_lock);
	return fault(error);
}

int cuda_fill(void *dst, uint8_t value, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *error)
{
	(void)stream;
	memset(dst, value, bytes);
	return fault(error);
}

int cuda_stream_open(int device, struct CUstream_st **stream_out, struct ws_error *error)
{
	(void)device;
	*stream_out = calloc(1, sizeof(**stream_out));
	return fault(error);
}

void cuda_stream_close(struct CUstream_st *stream)
{
	free(stream);
}

int cuda_stream_done(struct CUstream_st *stream, struct ws_error *error)
{
	bool done = gpu_has_done(stream, NULL);

	return gpu_fails ? fault(error) : done ? 0 : -EAGAIN;
}

int cuda_event_open(int device, bool timed, struct CUevent_st **event_out, struct ws_error *error)
{
	(void)device;
	(void)timed;
	*event_out = calloc(1, sizeof(**event_out));
	return fault(error);
}

void cuda_event_close(struct CUevent_st *event)
{
	free(event);
}

int cuda_event_record(struct CUevent_st *event, struct CUstream_st *stream, struct ws_error *error)
{
	pthread_mutex_lock(&gpu_lock);
	*event = (struct CUevent_st){.stream = stream, .at = stream->queued};
	pthread_mutex_unlock(&gpu_lock);
	return fault(error);
}

int cuda_event_done(struct CUevent_st *event, struct ws_error *error)
{
	bool done = event->stream == NULL || gpu_has_done(event->stream, &event->at);

	return gpu_fails ? fault(error) : done ? 0 : -EAGAIN;
}

bool cuda_built_in(void)
{
	return true;
}

int cuda_use(int device, struct ws_error *error)
{
	return cuda_is_given_up(device) ? cuda_stuck(device, error) : 0;
}

int cuda_current(void)
{
	return 0;
}

void cuda_leave(int before)
{
	(void)before;
}

int cuda_alloc(int device, size_t bytes, void **base_out, struct ws_error *error)
{
	(void)device;
	*base_out = calloc(1, bytes);
	return fault(error);
}

void cuda_free(int device, void *base)
{
	(void)device;
	free(base);
}

struct cuda_range cuda_range_of(const void *at)
{
	const struct cuda_range *part = host_part(at);

	host_asked += part != NULL;
	return part != NULL && part->kind == CUDA_PINNED ? *part
							 : (struct cuda_range){.device = -1};
}

uint64_t cuda_gpu_id(int device)
{
	return (uint64_t)device + 1;
}

int cuda_share_make(const struct ws_memory *memory, struct cuda_share *share_out,
		    struct ws_error *error)
{
	*share_out =
		(struct cuda_share){.bytes = memory->bytes, .gpu = cuda_gpu_id(memory->device)};
	if (memory->base == unshared)
		return ws_fail(error, -ENOTSUP, "a made GPU's memory that can't be mapped");
	return fault(error);
}

int cuda_memory_check(const struct ws_memory *memory, struct ws_error *error)
{
	(void)memory;
	return fault(error);
}

int cuda_share_open(const struct cuda_share *share, int device, void **base_out,
		    struct ws_error *error)
{
	(void)share;
	(void)device;
	*base_out = NULL;
	return ws_fail(error, -EINVAL, "this process made it");
}

void cuda_share_close(const struct cuda_share *share, int device, void *base)
{
	(void)share;
	(void)device;
	(void)base;
}

int cuda_reach(int device, const void *at, struct ws_error *error)
{
	(void)device;
	(void)at;
	return fault(error);
}

int cuda_dmabuf_open(const struct ws_memory *memory, int *fd_out, uint64_t *offset_out,
		     struct ws_error *error)
{
	(void)memory;
	*fd_out = -1;
	*offset_out = 0;
	return ws_fail(error, -ENOTSUP, "a made GPU makes no dma-buf");
}

int cuda_flush_wanted(int device, bool *wanted_out, struct ws_error *error)
{
	(void)device;
	*wanted_out = false;
	return fault(error);
}

int cuda_flush(int device, struct ws_error *error)
{
	(void)device;
	return fault(error);
}

int cuda_pin(void *base, size_t bytes, struct ws_error *error)
{
	(void)base;
	(void)bytes;
	return fault(error);
}

void cuda_unpin(void *base)
{
	(void)base;
}

int cuda_pinned_alloc(size_t bytes, void **base_out, struct ws_error *error)
{
	return cuda_alloc(0, bytes, base_out, error);
}

void cuda_pinned_free(void *base)
{
	free(base);
}

int cuda_device_count(struct ws_error *reason_out)
{
	(void)reason_out;
	return 1;
}

int cuda_stream_wait(struct CUstream_st *stream, struct ws_error *error)
{
	pthread_mutex_lock(&gpu_lock);
	stream_goes_on(stream, JOBS_MAX);
	pthread_mutex_unlock(&gpu_lock);
	return fault(error);
}

int spin_launch(const volatile uint32_t *go, uint32_t ms, struct CUstream_st *stream,
		struct ws_error *error)
{
	(void)go;
	(void)ms;
	(void)stream;
	return ws_fail(error, -ENOTSUP, "a made GPU waits by gpu_waits");
}

/* ---------------------------------------------------------------- batches of moves */

struct device_batch {
	struct CUevent_st done;
	uint32_t count, move_max;
	struct job jobs[BATCH_MAX];
	struct move moves[BATCH_MAX];
	struct blocks blocks[BATCH_MAX];
	struct quant quants[BATCH_MAX];
};

int device_batch_open(struct device_batch **batch_out, int device, uint32_t move_max,
		      struct ws_error *error)
{
	(void)device;
	*batch_out = calloc(1, sizeof(**batch_out));
	(*batch_out)->move_max = move_max;
	ck_assert_uint_le(move_max, BATCH_MAX);
	return fault(error);
}

void device_batch_close(struct device_batch *batch)
{
	free(batch);
}

/* Some it can't: their maxima are found first. */
bool device_can_whole(const struct move *move)
{
	return draw(3) > 0 && move_element_count(move) > 0;
}

int device_batch_add(struct device_batch *batch, const struct move *move, struct ws_error *error)
{
	uint32_t at = batch->count;

	/* Full at any time, but not empty. */
	if (at == batch->move_max || (at > 0 && draw(50) == 0))
		return ws_fail(error, -ENOSPC, "full");
	batch->moves[at] = *move;
	batch->jobs[at] = (struct job){.move = &batch->moves[at]};
	if (move->blocks != NULL) {
		batch->blocks[at] = *move->blocks;
		batch->moves[at].blocks = &batch->blocks[at];
		if (move->blocks->quant != NULL) { /* maxima need none */
			batch->quants[at] = *move->blocks->quant;
			batch->blocks[at].quant = &batch->quants[at];
		}
	}
	batch->count++;
	return 0;
}

int device_batch_launch(struct device_batch *batch, struct CUstream_st *stream,
			struct ws_error *error)
{
	int rc = jobs_launch(stream, batch->jobs, batch->count, error);

	if (rc != 0)
		return rc;
	return cuda_event_record(&batch->done, stream, error);
}

int device_batch_done(struct device_batch *batch, struct ws_error *error)
{
	return cuda_event_done(&batch->done, error);
}

void device_batch_clear(struct device_batch *batch)
{
	/* None may be under way, but what never ends. */
	ck_assert(cuda_event_done(&batch->done, NULL) != -EAGAIN || cuda_is_given_up(-1));
	batch->count = 0;
}

#endif
