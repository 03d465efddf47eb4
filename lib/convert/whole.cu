/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for whole blocks: a block of threads holds a block of elements in its registers, finds
 * their maximum, and writes codes and scale.  What limits it is the number of instructions, so
 * nothing is asked for each element that can be asked once.
 */
#include "lib/convert/kernels.cuh"
#include "lib/cuda/cuda.h"

struct whole {
	const uint8_t *src;
	uint8_t *dst, *scale;
	uint32_t rows, columns; /* columns in units */
	int64_t src_stride, dst_stride;
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
		whole.scale += block * dim.entry_stride;
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

/* A thread's units of a block: every 256th, in rows of whole.columns. */
struct steps {
	uint32_t row, column, row_step, column_step;
};

static __device__ struct steps steps_of(const struct whole &whole)
{
	struct steps steps;

	steps.row = threadIdx.x / whole.columns;
	steps.column = threadIdx.x - steps.row * whole.columns;
	steps.row_step = TASK_THREADS / whole.columns;
	steps.column_step = TASK_THREADS - steps.row_step * whole.columns;
	return steps;
}

static __device__ void step(struct steps *steps, const struct whole &whole)
{
	steps->row += steps->row_step;
	steps->column += steps->column_step;
	if (steps->column >= whole.columns) {
		steps->column -= whole.columns;
		steps->row++;
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
	struct steps steps = steps_of(whole);

#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		const uint8_t *src =
			whole.src + steps.row * whole.src_stride + steps.column * TASK_UNIT * BYTES;
#pragma unroll
		for (uint32_t part = 0; part < BYTES / 2; part++)
			((uint4 *)words[i])[part] = steps.row < whole.rows
							    ? __ldcs((const uint4 *)src + part)
							    : (uint4){0, 0, 0, 0};
		step(&steps, whole);
	}
}

template <int BYTES>
static __global__ void __launch_bounds__(TASK_THREADS, 8 / BYTES)
	whole_blocks(const struct task_list list)
{
	__shared__ struct task task;
	uint32_t words[TASK_PASSES][2 * BYTES], size = 0;
	uint32_t tile = task_fetch(list, &task);
	struct whole whole = whole_at(task, tile);

	load<BYTES>(whole, words);
#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++)
#pragma unroll
		for (uint32_t j = 0; j < 2 * BYTES; j++)
			size = raise_size<BYTES>(size, words[i][j]);
	uint32_t maximum = maximum_of(task.from, largest_of_block<BYTES>(size));
	struct divisor by = divisor_of(task.quant, maximum);
	if (threadIdx.x == 0)
		scale_store(&task.quant, scale_of_maximum(&task.quant, maximum), whole.scale);
	struct steps steps = steps_of(whole);
#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		float x[TASK_UNIT];
		uint32_t codes[2];
		values_of<TASK_UNIT>(task.from, words[i], x);
		divide(x, by);
		codes_of<TASK_UNIT>(task.quant.code, x, codes);
		if (steps.row < whole.rows)
			*(uint2 *)(whole.dst + steps.row * whole.dst_stride +
				   steps.column * TASK_UNIT) = {codes[0], codes[1]};
		step(&steps, whole);
	}
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
