/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for whole blocks: a block of threads holds a block of elements in its registers, finds
 * their maximum, and writes it and the codes.  What limits it is the number of instructions, so
 * nothing is asked for each element that can be asked once.
 */
#include "lib/convert/kernels.cuh"
#include "lib/cuda/cuda.h"

/* A block of elements: rows of units. */
struct whole {
	const uint8_t *src;
	uint8_t *dst, *maximum;
	uint32_t rows, columns;
	int64_t src_stride, dst_stride; /* of a row */
};

static __device__ struct whole whole_at(const struct task &task, uint32_t tile)
{
	struct whole whole = {task.src, task.dst, task.table, 1, 1, 0, 0};

	for (uint32_t d = 0; d < task.dim_count; d++) {
		const struct task_dim &dim = task.dims[d];
		uint32_t each = dim.each == 0 ? dim.extent : dim.each;
		uint32_t rest = tile / dim.blocks, block = tile - rest * dim.blocks;
		uint32_t length = MIN(each, dim.extent - block * each);
		whole.src += (int64_t)block * each * dim.src_stride;
		whole.dst += (int64_t)block * each * dim.dst_stride;
		whole.maximum += block * dim.entry_stride;
		if (d == 0)
			whole.columns = length / TASK_UNIT;
		if (d > 0 && each > 1) {
			whole.rows = length;
			whole.src_stride = dim.src_stride;
			whole.dst_stride = dim.dst_stride;
		}
		tile = rest;
	}
	return whole;
}

/* A thread's way through a block: every 256th unit. */
struct way {
	int64_t at, step,
		wrap; /* bytes from the block's beginning; to the next; if that is behind a row */
	uint32_t row, row_step, column, column_step;
};

static __device__ struct way way_of(const struct whole &whole, int64_t stride, uint32_t unit_bytes)
{
	struct way way;

	if (__popc(whole.columns) == 1) {
		uint32_t bits = 31 - __clz((int)whole.columns);
		way.row = threadIdx.x >> bits;
		way.row_step = TASK_THREADS >> bits;
	} else {
		way.row = threadIdx.x / whole.columns;
		way.row_step = TASK_THREADS / whole.columns;
	}
	way.column = threadIdx.x - way.row * whole.columns;
	way.column_step = TASK_THREADS - way.row_step * whole.columns;
	way.at = way.row * stride + way.column * unit_bytes;
	way.step = way.row_step * stride + way.column_step * unit_bytes;
	way.wrap = stride - (int64_t)whole.columns * unit_bytes;
	return way;
}

static __device__ void way_next(struct way *way, const struct whole &whole)
{
	way->row += way->row_step;
	way->at += way->step;
	if (way->column_step == 0)
		return;
	way->column += way->column_step;
	if (way->column >= whole.columns) {
		way->column -= whole.columns;
		way->row++;
		way->at += way->wrap;
	}
}

/* The largest of all threads' sizes. */
template <int BYTES> static __device__ uint32_t largest_of_block(uint32_t size)
{
	__shared__ uint32_t sizes[TASK_THREADS / 32];

	if constexpr (BYTES == 2)
		size = MAX(size >> 16, size & 0xffff);
	size = __reduce_max_sync(ALL_LANES, size);
	if (threadIdx.x % 32 == 0)
		sizes[threadIdx.x / 32] = size;
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < TASK_THREADS / 32; i++)
		size = MAX(size, sizes[i]);
	return size;
}

/* What all elements of a block are divided by. */
struct divisor {
	float reciprocal;   /* as it is rounded */
	bool multiplies;    /* with it, and that is all */
	float scale, raise; /* else: values are raised by a power of two, as the scale has been */
};

/* A zero counts as infinity, by which all is zero or NaN, as it is times 0. */
static __device__ struct divisor divisor_of(const struct quant &quant, uint32_t maximum)
{
	float scale = scale_value(&quant, scale_of_maximum(&quant, maximum));
	float raise = scale < 0x1p-64F ? 0x1p100F : scale > 0x1p64F ? 0x1p-64F : 1.0F;

	if (scale == 0 || !isfinite(scale))
		return {scale == 0 ? 0 : 1.0F / scale, true, scale, 1.0F};
	if (quant.reciprocal)
		return {1.0F / scale, true, scale, 1.0F};
	return {1.0F / (scale * raise), false, scale * raise, raise};
}

/*
 * x / scale, rounded once: the product with the reciprocal, corrected twice by what is left.  No
 * maximum exceeds the largest code, and the raised scale is neither tiny nor huge, so whatever
 * becomes a code other than 0 is exact; of the rest only the sign counts.
 */
static __device__ float quotient(float x, const struct divisor &by)
{
	x *= by.raise;
	float q = x * by.reciprocal;
	q = fmaf(fmaf(-by.scale, q, x), by.reciprocal, q);
	q = fmaf(fmaf(-by.scale, q, x), by.reciprocal, q);
	return copysignf(q, x);
}

static __device__ void divide(float *x, const struct divisor &by)
{
	if (by.multiplies)
#pragma unroll
		for (uint32_t j = 0; j < TASK_UNIT; j++)
			x[j] *= by.reciprocal;
	else
#pragma unroll
		for (uint32_t j = 0; j < TASK_UNIT; j++)
			x[j] = quotient(x[j], by);
}

template <int BYTES>
static __device__ void load(const struct whole &whole, uint32_t words[][2 * BYTES])
{
	struct way way = way_of(whole, whole.src_stride, TASK_UNIT * BYTES);

#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		const uint4 *src = (const uint4 *)(whole.src + way.at);
#pragma unroll
		for (uint32_t part = 0; part < BYTES / 2; part++)
			((uint4 *)words[i])[part] =
				way.row < whole.rows ? __ldg(src + part) : (uint4){0, 0, 0, 0};
		way_next(&way, whole);
	}
}

template <int BYTES>
static __device__ void store(const struct task &task, const struct whole &whole,
			     const struct divisor &by, uint32_t words[][2 * BYTES])
{
	struct way way = way_of(whole, whole.dst_stride, TASK_UNIT);

#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		float x[TASK_UNIT];
		uint32_t codes[2];
		values_of<TASK_UNIT>(task.from, words[i], x);
		divide(x, by);
		codes_of<TASK_UNIT>(task.quant.code, x, codes);
		if (way.row < whole.rows)
			*(uint2 *)(whole.dst + way.at) = {codes[0], codes[1]};
		way_next(&way, whole);
	}
}

template <int BYTES>
static __global__ void __launch_bounds__(TASK_THREADS, 8 / BYTES)
	whole_blocks(const struct task_list list)
{
	__shared__ struct task task;
	__shared__ struct whole shared;
	uint32_t words[TASK_PASSES][2 * BYTES], size = 0;

	if (threadIdx.x < 32) {
		task_fetch(list, &task);
		if (threadIdx.x == 0)
			shared = whole_at(task, blockIdx.x - task.first_tile);
	}
	__syncthreads();
	struct whole whole = shared;
	load<BYTES>(whole, words);
#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++)
#pragma unroll
		for (uint32_t j = 0; j < 2 * BYTES; j++)
			size = raise_size<BYTES>(size, words[i][j]);
	uint32_t maximum = maximum_of(task.from, largest_of_block<BYTES>(size));
	if (threadIdx.x == 0)
		*(uint32_t *)whole.maximum = maximum;
	store<BYTES>(task, whole, divisor_of(task.quant, maximum), words);
}

int whole_launch(const struct task_list *list, uint32_t element_bytes, struct CUstream_st *stream,
		 struct ws_error *err)
{
	if (element_bytes == 2)
		whole_blocks<2><<<list->tile_count, TASK_THREADS, 0, stream>>>(*list);
	else
		whole_blocks<4><<<list->tile_count, TASK_THREADS, 0, stream>>>(*list);
	return cuda_launched("start quantizing whole blocks", err);
}
