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
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/cuda/copy.h"
#include "tests/test.h"

#define JOBS_MAX 8192u

struct CUstream_st {
	struct cuda_copy jobs[JOBS_MAX];
	uint32_t launch[JOBS_MAX]; /* that a job belongs to */
	uint64_t done, queued;	   /* jobs; they count on and on */
	uint32_t launches;
};

struct CUevent_st {
	struct CUstream_st *stream;
	uint64_t at; /* done when so many jobs are */
};

static uint64_t random_state;
static uint32_t launches, jobs;	  /* of all streams */
static bool gpu_fails, gpu_waits; /* it has had a fault; it does nothing now */

static uint64_t draw(uint64_t below)
{
	random_state = mix64(random_state + 1);
	return random_state % below;
}

static void stream_goes_on(struct CUstream_st *stream, uint64_t most)
{
	for (; !gpu_fails && !gpu_waits && most > 0 && stream->done < stream->queued; most--) {
		uint64_t first = stream->done++, end = first;
		while (end < stream->queued &&
		       stream->launch[end % JOBS_MAX] == stream->launch[first % JOBS_MAX])
			end++;
		struct cuda_copy *other = &stream->jobs[(first + draw(end - first)) % JOBS_MAX];
		struct cuda_copy job = *other;
		*other = stream->jobs[first % JOBS_MAX];
		memcpy(job.to, job.from, job.bytes);
	}
}

static int fault(struct ws_error *error)
{
	return gpu_fails ? ws_fail(error, -EIO, "the made GPU has a fault") : 0;
}

int copies_launch(const struct copies *copies, int device, struct CUstream_st *stream,
		  struct ws_error *error)
{
	(void)device;
	ck_assert_uint_le(stream->queued - stream->done + copies->count, JOBS_MAX);
	for (uint32_t i = 0; i < copies->count; i++, stream->queued++) {
		stream->jobs[stream->queued % JOBS_MAX] = copies->list[i];
		stream->launch[stream->queued % JOBS_MAX] = stream->launches;
	}
	stream->launches++;
	launches++;
	jobs += copies->count;
	return fault(error);
}

int copies_by_engine(const struct copies *copies, struct CUstream_st *stream,
		     struct ws_error *error)
{
	return copies_launch(copies, 0, stream, error);
}

/* Where an end may be pageable: waits for what is before it. */
int cuda_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *error)
{
	stream_goes_on(stream, JOBS_MAX);
	memcpy(dst, src, bytes);
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
	stream_goes_on(stream, draw(40));
	if (gpu_fails)
		return fault(error);
	return stream->done == stream->queued ? 0 : -EAGAIN;
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
	*event = (struct CUevent_st){.stream = stream, .at = stream->queued};
	return fault(error);
}

int cuda_event_done(struct CUevent_st *event, struct ws_error *error)
{
	if (event->stream != NULL)
		stream_goes_on(event->stream, draw(40));
	if (gpu_fails)
		return fault(error);
	return event->stream == NULL || event->stream->done >= event->at ? 0 : -EAGAIN;
}

bool cuda_built_in(void)
{
	return true;
}

int cuda_use(int device, struct ws_error *error)
{
	(void)device;
	(void)error;
	return 0;
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
	(void)at;
	return (struct cuda_range){.device = -1};
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

#endif
