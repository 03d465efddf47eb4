/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that are quantized, one after the other: what a job does that quantizes tensor by tensor
 * and then broadcasts, and what an update's codes and scales must be.  The second is computed from
 * the rollout's own copy of the weights, in two passes over a whole tensor at once, where updates
 * take whole blocks in one pass, cut by ops.
 */
#include <errno.h>

#include "bench/update.h"
#include "lib/convert/device.h"

/* Of one weight at a time: codes, scales, maxima.  All weights' in the same place. */
struct fp8_scratch {
	struct ws_memory memory; /* owned */
	uint64_t scales, maxima; /* where they begin */
};

struct update_fp8 {
	struct fp8_scratch scratch;
	struct device_batch *passes[2]; /* owned; of the comparison: maxima, then codes */
	struct device_batch **whole;	/* owned; of the baseline: by weight, */
	struct device_batch **scale;	/* and by the first weight of its shape */
	uint32_t *shape;		/* owned; which weight that is */
};

static uint64_t entries_of(const struct weight *weight)
{
	return weight->grid[0] * weight->grid[1];
}

static uint64_t codes_bytes(const struct weight *weight)
{
	return weight->extent[0] * weight->extent[1];
}

static uint64_t scales_bytes(const struct weight *weight)
{
	return entries_of(weight) * ws_dtype_bytes(weight->quant.scale);
}

static int scratch_make(struct update_rank *rank, struct fp8_scratch *scratch, struct ws_error *err)
{
	uint64_t codes = 0, scales = 0, entries = 0;

	for (uint32_t i = 0; i < rank->weight_count; i++) {
		codes = MAX(codes, codes_bytes(&rank->weights[i]));
		scales = MAX(scales, scales_bytes(&rank->weights[i]));
		entries = MAX(entries, entries_of(&rank->weights[i]));
	}
	scratch->scales = align_up(codes, 256);
	scratch->maxima = scratch->scales + align_up(scales, 256);
	scratch->memory = (struct ws_memory){.place = WS_CUDA, .device = rank->device};
	return ws_memory_alloc(&scratch->memory, scratch->maxima + entries * sizeof(uint32_t), err);
}

static int fp8_make(struct update_rank *rank, struct ws_error *err)
{
	if (rank->fp8 != NULL)
		return 0;
	rank->fp8 = mem_alloc(sizeof(*rank->fp8));
	if (rank->fp8 == NULL)
		return ws_fail(err, -ENOMEM, "no memory to quantize tensor by tensor");
	return scratch_make(rank, &rank->fp8->scratch, err);
}

static void batches_close(struct device_batch **batches, uint32_t count)
{
	for (uint32_t i = 0; batches != NULL && i < count; i++)
		device_batch_close(batches[i]);
	mem_free(batches);
}

void update_fp8_close(struct update_rank *rank)
{
	struct update_fp8 *fp8 = rank->fp8;

	if (fp8 == NULL)
		return;
	batches_close(fp8->whole, rank->weight_count);
	batches_close(fp8->scale, rank->weight_count);
	for (uint32_t i = 0; i < ARRAY_SIZE(fp8->passes); i++)
		device_batch_close(fp8->passes[i]);
	mem_free(fp8->shape);
	ws_memory_free(&fp8->scratch.memory);
	mem_free(fp8);
	rank->fp8 = NULL;
}

/* ---------------------------------------------------------------- moves */

static uint8_t *scratch_at(const struct update_rank *rank, uint64_t offset)
{
	return (uint8_t *)rank->fp8->scratch.memory.base + offset;
}

/* A kind of move of all of a weight, between the trainer's memory and the scratch. */
static int weight_add(const struct update_rank *rank, const struct weight *weight,
		      enum move_kind kind, struct device_batch *batch, struct ws_error *err)
{
	const struct blocks blocks = {.quant = &weight->quant,
				      .table = scratch_at(rank, rank->fp8->scratch.maxima),
				      .each = {weight->each[0], weight->each[1]},
				      .stride = {(int64_t)weight->grid[1], 1}};
	int64_t each = (int64_t)ws_dtype_bytes(weight->dtype), columns = (int64_t)weight->extent[1];
	const struct move move = {.kind = kind,
				  .blocks = &blocks,
				  .src = (const uint8_t *)rank->source.base + weight->from,
				  .dst = scratch_at(rank, 0),
				  .dim_count = 2,
				  .extent = {weight->extent[0], weight->extent[1]},
				  .src_stride = {columns * each, each},
				  .dst_stride = {columns, 1},
				  .from = weight->dtype,
				  .to = weight->quant.code};

	return device_batch_add(batch, &move, err);
}

static int scales_add(const struct update_rank *rank, const struct weight *weight,
		      struct device_batch *batch, struct ws_error *err)
{
	const struct blocks blocks = {.quant = &weight->quant};
	const struct move move = {.kind = MOVE_SCALE,
				  .blocks = &blocks,
				  .src = scratch_at(rank, rank->fp8->scratch.maxima),
				  .dst = scratch_at(rank, rank->fp8->scratch.scales),
				  .dim_count = 1,
				  .extent = {entries_of(weight)},
				  .src_stride = {sizeof(uint32_t)},
				  .dst_stride = {(int64_t)ws_dtype_bytes(weight->quant.scale)},
				  .from = WS_U32,
				  .to = weight->quant.scale};

	return device_batch_add(batch, &move, err);
}

static int maxima_zero(const struct update_rank *rank, const struct weight *weight,
		       struct ws_error *err)
{
	return cuda_fill(scratch_at(rank, rank->fp8->scratch.maxima), 0,
			 entries_of(weight) * sizeof(uint32_t), rank->queue.stream, err);
}

/* ---------------------------------------------------------------- the comparison */

static int weight_verify(struct update_rank *rank, const struct weight *weight,
			 struct ws_error *err)
{
	struct device_batch **passes = rank->fp8->passes;
	struct CUstream_st *stream = rank->queue.stream;
	uint8_t *target = rank->target.base;

	for (uint32_t i = 0; i < ARRAY_SIZE(rank->fp8->passes); i++)
		device_batch_clear(passes[i]);
	int rc = maxima_zero(rank, weight, err);
	if (rc == 0)
		rc = weight_add(rank, weight, MOVE_MAXIMA, passes[0], err);
	if (rc == 0)
		rc = device_batch_launch(passes[0], stream, err);
	if (rc == 0)
		rc = weight_add(rank, weight, MOVE_QUANTIZE, passes[1], err);
	if (rc == 0)
		rc = scales_add(rank, weight, passes[1], err);
	if (rc == 0)
		rc = device_batch_launch(passes[1], stream, err);
	if (rc == 0)
		rc = differ_launch(scratch_at(rank, 0), target + weight->codes, codes_bytes(weight),
				   rank->count.base, stream, err);
	if (rc == 0)
		rc = differ_launch(scratch_at(rank, rank->fp8->scratch.scales),
				   target + weight->scales, scales_bytes(weight), rank->count.base,
				   stream, err);
	/* The batches are used again. */
	return rc == 0 ? update_queue_wait(rank, err) : rc;
}

int update_weights_verify(struct update_rank *rank, struct ws_error *err)
{
	int rc = rank->weight_count > 0 ? fp8_make(rank, err) : 0;

	for (uint32_t i = 0; rc == 0 && i < ARRAY_SIZE(rank->fp8->passes) && rank->weight_count > 0;
	     i++)
		if (rank->fp8->passes[i] == NULL)
			rc = device_batch_open(&rank->fp8->passes[i], rank->device, 64, err);
	for (uint32_t i = 0; rc == 0 && i < rank->weight_count; i++)
		rc = weight_verify(rank, &rank->weights[i], err);
	return rc;
}

/* ---------------------------------------------------------------- the baseline */

static bool same_shape(const struct weight *a, const struct weight *b)
{
	return entries_of(a) == entries_of(b) && a->quant.scale == b->quant.scale &&
	       a->quant.code == b->quant.code && a->quant.eps == b->quant.eps &&
	       a->quant.pow2 == b->quant.pow2;
}

/* The batches are made once, so that a turn's kernels are launched without anything before them. */
static int baseline_make(struct update_rank *rank, struct ws_error *err)
{
	int rc = fp8_make(rank, err);
	struct update_fp8 *fp8 = rank->fp8;
	uint32_t count = rank->weight_count;

	if (rc != 0 || fp8->shape != NULL)
		return rc;
	fp8->whole = mem_alloc(count * sizeof(struct device_batch *));
	fp8->scale = mem_alloc(count * sizeof(struct device_batch *));
	fp8->shape = mem_alloc(count * sizeof(*fp8->shape));
	if (fp8->whole == NULL || fp8->scale == NULL || fp8->shape == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the kernels of %u tensors", count);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		const struct weight *weight = &rank->weights[i];
		uint32_t same = 0;
		while (!same_shape(&rank->weights[same], weight))
			same++;
		fp8->shape[i] = same;
		rc = device_batch_open(&fp8->whole[i], rank->device, 4, err);
		if (rc == 0)
			rc = weight_add(rank, weight, MOVE_QUANTIZE_WHOLE, fp8->whole[i], err);
		if (rc == 0 && same == i)
			rc = device_batch_open(&fp8->scale[i], rank->device, 4, err);
		if (rc == 0 && same == i)
			rc = scales_add(rank, weight, fp8->scale[i], err);
	}
	return rc;
}

static int weight_quantize(struct update_rank *rank, uint32_t index, struct ws_error *err)
{
	struct update_fp8 *fp8 = rank->fp8;
	int rc = maxima_zero(rank, &rank->weights[index], err);

	if (rc == 0)
		rc = device_batch_launch(fp8->whole[index], rank->queue.stream, err);
	if (rc == 0)
		rc = device_batch_launch(fp8->scale[fp8->shape[index]], rank->queue.stream, err);
	return rc;
}

/* One end: the trainer's memory is the scratch, the rollout's is where they belong. */
int update_weights_broadcast(struct update_rank *rank, enum side side, struct ws_error *err)
{
	int rc = side == SIDE_TRAINER ? baseline_make(rank, err) : 0;

	for (uint32_t i = 0; rc == 0 && i < rank->weight_count; i++) {
		const struct weight *weight = &rank->weights[i];
		uint8_t *codes = side == SIDE_TRAINER
					 ? scratch_at(rank, 0)
					 : (uint8_t *)rank->target.base + weight->codes;
		uint8_t *scales = side == SIDE_TRAINER
					  ? scratch_at(rank, rank->fp8->scratch.scales)
					  : (uint8_t *)rank->target.base + weight->scales;
		if (side == SIDE_TRAINER)
			rc = weight_quantize(rank, i, err);
		if (rc == 0)
			rc = nccl_broadcast(rank->nccl, codes, codes_bytes(weight),
					    rank->queue.stream, err);
		if (rc == 0)
			rc = nccl_broadcast(rank->nccl, scales, scales_bytes(weight),
					    rank->queue.stream, err);
	}
	return rc;
}
