/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of one GPU, and marks in it: events, used over and over.
 */
#include <errno.h>

#include "lib/cuda/copy.h"

int cuda_queue_open_on(struct cuda_queue *queue, int device, struct CUstream_st *stream,
		       struct ws_error *err)
{
	int before = cuda_current();

	*queue =
		(struct cuda_queue){.device = device, .stream = stream, .borrowed = stream != NULL};
	int rc = queue->borrowed ? 0 : cuda_stream_open(device, &queue->stream, err);
	for (uint32_t i = 0; rc == 0 && i < CUDA_MARKS_MAX; i++)
		rc = cuda_event_open(device, false, &queue->events[i], err);
	if (rc != 0)
		cuda_queue_close(queue);
	cuda_leave(before);
	return rc;
}

int cuda_queue_open(struct cuda_queue *queue, int device, struct ws_error *err)
{
	return cuda_queue_open_on(queue, device, NULL, err);
}

void cuda_queue_close(struct cuda_queue *queue)
{
	if (queue->stream == NULL)
		return;
	int before = cuda_current();
	if (cuda_use(queue->device, NULL) == 0)
		(void)cuda_stream_settle(queue->stream, queue->device, NULL);
	if (!queue->borrowed)
		cuda_stream_close(queue->stream);
	for (uint32_t i = 0; i < CUDA_MARKS_MAX; i++)
		cuda_event_close(queue->events[i]);
	cuda_leave(before);
	*queue = (struct cuda_queue){0};
}

/* Every call below leaves its error in the queue, where it stays. */
static int queue_enter(struct cuda_queue *queue)
{
	if (queue->error.code != 0 || cuda_use(queue->device, &queue->error) != 0)
		return -EIO;
	return 0;
}

/* From how many bytes on a copy engine takes those that are far.  A few small ones are done sooner
 * by it than a kernel is launched for them, behind the large ones. */
static uint64_t engine_bytes(const struct cuda_copy *list, uint32_t count)
{
	uint32_t small = 0;

	for (uint32_t i = 0; i < count; i++)
		small += list[i].is_far && list[i].bytes < COPY_ENGINE_BYTES;
	return small <= COPY_SMALL_FEW ? 1 : COPY_ENGINE_BYTES;
}

static int queue_launch(struct cuda_queue *queue, struct copies *copies, bool by_engine)
{
	int rc = 0;

	if (copies->count > 0 && by_engine)
		rc = copies_by_engine(copies, queue->stream, &queue->error);
	else if (copies->count > 0)
		rc = copies_launch(copies, queue->device, queue->stream, &queue->error);
	copies->count = 0;
	return rc;
}

/* Those of the list that a copy engine takes, or those that the kernel does. */
static int queue_part(struct cuda_queue *queue, const struct cuda_copy *list, uint32_t count,
		      bool by_engine)
{
	uint64_t from_bytes = engine_bytes(list, count);
	struct copies copies;
	int rc = 0;

	copies.count = 0;
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		bool for_engine = list[i].is_far && list[i].bytes >= from_bytes;
		if (list[i].bytes == 0 || for_engine != by_engine || copies_add(&copies, &list[i]))
			continue;
		rc = queue_launch(queue, &copies, by_engine);
		(void)copies_add(&copies, &list[i]);
	}
	return rc == 0 ? queue_launch(queue, &copies, by_engine) : rc;
}

int cuda_queue_copy(struct cuda_queue *queue, const struct cuda_copy *list, uint32_t count)
{
	int rc = queue_enter(queue);

	if (rc == 0)
		rc = queue_part(queue, list, count, true);
	return rc == 0 ? queue_part(queue, list, count, false) : rc;
}

/* How much of it doesn't go over the end of what was page-locked at once. */
static uint64_t copied_at_once(const void *at, uint64_t bytes)
{
	const struct cuda_range range = cuda_range_of(at);

	if (range.base == NULL || cuda_range_has(&range, at, bytes))
		return bytes;
	return (uintptr_t)range.base + range.bytes - (uintptr_t)at;
}

int cuda_queue_copy_host(struct cuda_queue *queue, const struct cuda_copy *copy)
{
	int rc = queue_enter(queue);

	for (uint64_t done = 0, bytes; rc == 0 && done < copy->bytes; done += bytes) {
		const uint8_t *from = (const uint8_t *)copy->from + done;
		bytes = copied_at_once(from, copy->bytes - done);
		rc = cuda_copy((uint8_t *)copy->to + done, from, bytes, queue->stream,
			       &queue->error);
	}
	return rc;
}

int cuda_queue_mark(struct cuda_queue *queue, uint64_t *mark_out)
{
	int rc = queue_enter(queue);

	*mark_out = 0;
	if (rc == 0 && queue->marked - queue->passed == CUDA_MARKS_MAX)
		rc = cuda_queue_passed(queue, queue->passed + 1);
	if (rc < 0)
		return rc;
	if (queue->marked - queue->passed == CUDA_MARKS_MAX)
		return -EAGAIN;
	rc = cuda_event_record(queue->events[(queue->marked + 1) % CUDA_MARKS_MAX], queue->stream,
			       &queue->error);
	if (rc == 0)
		*mark_out = ++queue->marked;
	return rc;
}

int cuda_queue_passed(struct cuda_queue *queue, uint64_t mark)
{
	struct ws_error error = {0};

	/* What was queued before the error may still be writing. */
	if (queue->error.code != 0)
		return cuda_stream_done(queue->stream, NULL) == -EAGAIN ? 0 : -EIO;
	if (mark <= queue->passed)
		return 1;
	int rc = cuda_event_done(queue->events[mark % CUDA_MARKS_MAX], &error);
	if (rc == -EAGAIN)
		return 0;
	if (rc != 0) {
		queue->error = error;
		return -EIO;
	}
	queue->passed = mark;
	return 1;
}
