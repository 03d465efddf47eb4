/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both processes of `bench update` have: both sides' params of one rank each, memory on a GPU
 * filled alike, and the baselines' ends.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/update.h"

/* A length that no tensor has a whole number of: all hold different bytes. */
#define PATTERN_BYTES ((size_t)(64 << 20) + 2 * 7919)

/* ---------------------------------------------------------------- messages */

int update_say(int socket, const struct update_message *message, struct ws_error *err)
{
	if (write(socket, message, sizeof(*message)) != (ssize_t)sizeof(*message))
		return ws_fail(err, -ECONNRESET, "the other process of the bench has gone");
	return 0;
}

int update_hear(int socket, struct update_message *message_out, struct ws_error *err)
{
	struct pollfd fd = {.fd = socket, .events = POLLIN};

	if (poll(&fd, 1, (int)UPDATE_WAIT_MS) != 1)
		return ws_fail(err, -ETIMEDOUT,
			       "the other process of the bench said nothing for %u s",
			       UPDATE_WAIT_MS / 1000);
	if (read(socket, message_out, sizeof(*message_out)) != (ssize_t)sizeof(*message_out))
		return ws_fail(err, -ECONNRESET, "the other process of the bench has gone");
	if (message_out->rc != 0)
		return ws_fail(err, message_out->rc, "the other process: %s", message_out->text);
	return 0;
}

/* ---------------------------------------------------------------- params */

struct ws_memory update_param(const struct update_rank *rank, enum side side, uint32_t index)
{
	const struct ws_memory *memory = side == SIDE_ROLLOUT	   ? &rank->target
					 : rank->host.base != NULL ? &rank->host
								   : &rank->source;
	const struct param *param = &rank->params[side].params[index];

	return (struct ws_memory){.base = (uint8_t *)memory->base + param->arena_offset,
				  .bytes = param->bytes,
				  .place = memory->place,
				  .device = memory->device};
}

/* ---------------------------------------------------------------- memory */

/* Weights as they are: bfloat16 of either sign, 2^-14 to 2^-2. */
static int source_fill(struct update_rank *rank, struct ws_error *err)
{
	uint16_t *pattern = mem_alloc(PATTERN_BYTES);
	uint64_t all = rank->source.bytes;
	int rc = 0;

	if (pattern == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a pattern");
	for (size_t i = 0; i < PATTERN_BYTES / sizeof(*pattern); i++) {
		uint64_t random = mix64(i + 1);
		pattern[i] = (uint16_t)((random & 0x807f) | (113 + (random >> 20) % 12) << 7);
	}
	for (uint64_t at = 0; rc == 0 && at < all; at += PATTERN_BYTES)
		rc = cuda_copy((uint8_t *)rank->source.base + at, pattern,
			       MIN(all - at, PATTERN_BYTES), rank->queue.stream, err);
	if (rc == 0)
		rc = cuda_stream_wait(rank->queue.stream, err);
	mem_free(pattern);
	return rc;
}

/* Page-locked by the trainer's side, when it has it. */
static int source_offload(struct update_rank *rank, struct ws_error *err)
{
	int rc = ws_memory_alloc(&rank->host, rank->source.bytes, err);

	if (rc == 0)
		rc = cuda_copy(rank->host.base, rank->source.base, rank->source.bytes,
			       rank->queue.stream, err);
	return rc == 0 ? cuda_stream_wait(rank->queue.stream, err) : rc;
}

static int gpu_memory(struct update_rank *rank, uint64_t bytes, struct ws_memory *memory_out,
		      struct ws_error *err)
{
	*memory_out = (struct ws_memory){.place = WS_CUDA, .device = rank->device};
	return ws_memory_alloc(memory_out, MAX(bytes, (uint64_t)1), err);
}

int update_rank_open(struct update_rank *rank, enum side side, struct ws_error *err)
{
	int rc = 0, count = cuda_device_count(err);

	if (count == 0)
		return err->code;
	rank->device = side == SIDE_TRAINER || count == 1 ? 0 : 1;
	for (int i = 0; rc == 0 && i < 2; i++)
		rc = manifest_params(rank->job->manifest[i], 0, &rank->arena, &rank->params[i],
				     err);
	if (rc == 0)
		rc = update_runs_make(rank, err);
	if (rc == 0)
		rc = cuda_queue_open(&rank->queue, rank->device, err);
	if (rc == 0)
		rc = gpu_memory(rank, rank->params[SIDE_TRAINER].arena_bytes, &rank->source, err);
	if (rc == 0)
		rc = source_fill(rank, err);
	if (rc == 0 && side == SIDE_TRAINER && rank->job->options->offload)
		rc = source_offload(rank, err);
	if (rc == 0 && side == SIDE_ROLLOUT)
		rc = gpu_memory(rank, rank->params[SIDE_ROLLOUT].arena_bytes, &rank->target, err);
	if (rc == 0 && side == SIDE_ROLLOUT)
		rc = gpu_memory(rank, sizeof(uint64_t), &rank->count, err);
	return rc == 0 ? cuda_use(rank->device, err) : rc;
}

void update_rank_close(struct update_rank *rank)
{
	nccl_close(rank->nccl);
	update_fp8_close(rank);
	cuda_queue_close(&rank->queue);
	ws_memory_free(&rank->source);
	ws_memory_free(&rank->host);
	ws_memory_free(&rank->target);
	ws_memory_free(&rank->bucket);
	ws_memory_free(&rank->count);
	arena_release(&rank->arena);
}

/* ---------------------------------------------------------------- NCCL */

struct joining {
	struct update_rank *rank;
	struct nccl_id id;
	int number;
};

/* What these threads are given is the caller's, who may go away when they hang: they take a copy.
 */
static int join(void *arg, struct ws_error *err)
{
	const struct joining joining = *(const struct joining *)arg;
	int rc = cuda_use(joining.rank->device, err);

	return rc == 0 ? nccl_join(joining.rank->nccl, &joining.id, joining.number, err) : rc;
}

int update_join(struct update_rank *rank, const struct nccl_id *id, int number,
		struct ws_error *err)
{
	struct joining joining = {.rank = rank, .id = *id, .number = number};

	return nccl_do(rank->nccl, join, &joining, rank->socket, UPDATE_WAIT_MS, err);
}

int update_queue_wait(struct update_rank *rank, struct ws_error *err)
{
	return cuda_stream_wait(rank->queue.stream, err);
}

/* Copies runs between their place in one side's memory and the bucket. */
static int bucket_copy(struct update_rank *rank, enum side side, uint32_t first, uint32_t end,
		       struct ws_error *err)
{
	struct cuda_copy copies[64];
	uint32_t count = 0;
	uint64_t at = 0;
	int rc = 0;

	for (uint32_t i = first; rc == 0 && i < end; i++) {
		const struct run *run = &rank->runs[i];
		uint8_t *packed = (uint8_t *)rank->bucket.base + at;
		uint8_t *place = side == SIDE_TRAINER ? (uint8_t *)rank->source.base + run->from
						      : (uint8_t *)rank->target.base + run->to;
		copies[count++] = (struct cuda_copy){.to = side == SIDE_TRAINER ? packed : place,
						     .from = side == SIDE_TRAINER ? place : packed,
						     .bytes = run->bytes};
		at += align_up(run->bytes, 16);
		if (count == ARRAY_SIZE(copies) || i + 1 == end) {
			rc = cuda_queue_copy(&rank->queue, copies, count);
			count = 0;
		}
	}
	return rc == 0 ? 0 : ws_fail(err, -EIO, "%s", rank->queue.error.text);
}

/* As many runs as a bucket holds, from first on; at least one. */
static uint32_t bucket_end(const struct update_rank *rank, uint32_t first, uint64_t *bytes_out)
{
	uint64_t bytes = 0;
	uint32_t i = first;

	while (i < rank->run_count &&
	       (i == first || bytes + align_up(rank->runs[i].bytes, 16) <= UPDATE_BUCKET_BYTES))
		bytes += align_up(rank->runs[i++].bytes, 16);
	*bytes_out = bytes;
	return i;
}

static int broadcast_buckets(struct update_rank *rank, enum side side, struct ws_error *err)
{
	uint64_t bytes, most = 0;
	int rc = 0;

	for (uint32_t i = 0; rank->bucket.bytes == 0 && i < rank->run_count;
	     i = bucket_end(rank, i, &bytes))
		most = MAX(most, rank->runs[i].bytes);
	if (rank->bucket.bytes == 0)
		rc = gpu_memory(rank, MAX(most, UPDATE_BUCKET_BYTES), &rank->bucket, err);
	for (uint32_t i = 0; rc == 0 && i < rank->run_count;) {
		uint32_t end = bucket_end(rank, i, &bytes);
		if (side == SIDE_TRAINER)
			rc = bucket_copy(rank, side, i, end, err);
		if (rc == 0)
			rc = nccl_broadcast(rank->nccl, rank->bucket.base, bytes,
					    rank->queue.stream, err);
		if (rc == 0 && side == SIDE_ROLLOUT)
			rc = bucket_copy(rank, side, i, end, err);
		i = end;
	}
	return rc;
}

static int broadcast_runs(struct update_rank *rank, enum side side, struct ws_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < rank->run_count; i++) {
		const struct run *run = &rank->runs[i];
		uint8_t *at = side == SIDE_TRAINER ? (uint8_t *)rank->source.base + run->from
						   : (uint8_t *)rank->target.base + run->to;
		rc = nccl_broadcast(rank->nccl, at, run->bytes, rank->queue.stream, err);
	}
	return rc;
}

struct broadcast {
	struct update_rank *rank;
	enum side side;
	bool buckets;
};

/* On a thread of its own: NCCL may wait for the other end in any of its calls. */
static int broadcast(void *arg, struct ws_error *err)
{
	const struct broadcast wanted = *(const struct broadcast *)arg;
	struct update_rank *rank = wanted.rank;
	int rc = cuda_use(rank->device, err);

	if (rc == 0 && wanted.buckets)
		rc = broadcast_buckets(rank, wanted.side, err);
	else if (rc == 0)
		rc = broadcast_runs(rank, wanted.side, err);
	if (rc == 0)
		rc = update_weights_broadcast(rank, wanted.side, err);
	return rc == 0 ? update_queue_wait(rank, err) : rc;
}

int update_broadcast(struct update_rank *rank, enum side side, bool buckets, struct ws_error *err)
{
	struct broadcast wanted = {.rank = rank, .side = side, .buckets = buckets};

	return nccl_do(rank->nccl, broadcast, &wanted, rank->socket, UPDATE_WAIT_MS, err);
}
