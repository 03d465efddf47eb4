/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for whole blocks.  A block's elements are read once, into shared memory: the loads of
 * the next blocks are under way while one is worked on.  Each thread reads back only what it has
 * loaded itself, so nobody waits for a block but for its maximum.
 */
#include <cuda_pipeline.h>

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
		uint32_t rest = tile / dim.blocks;
		uint32_t block = tile - rest * dim.blocks, left = dim.extent - block * each;
		whole.src += (int64_t)block * each * dim.src_stride;
		whole.dst += (int64_t)block * each * dim.dst_stride;
		whole.scale += block * dim.entry_stride;
		if (d == 0)
			whole.columns = MIN(each, left) / TASK_UNIT;
		if (d > 0 && each > 1) {
			whole.rows = MIN(each, left);
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

/* Where pass i of this thread keeps its 16 bytes, or its first 16. */
static __device__ uint4 *kept(uint8_t *stage, uint32_t i)
{
	return (uint4 *)stage + i * TASK_THREADS + threadIdx.x;
}

template <int BYTES>
static __device__ void whole_load(const struct task &task, uint32_t tile, uint8_t *stage)
{
	struct whole whole = whole_at(task, tile);
	struct steps steps = steps_of(whole);

#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		bool there = steps.row < whole.rows;
		const uint8_t *src = there ? whole.src + steps.row * whole.src_stride +
						     steps.column * TASK_UNIT * BYTES
					   : whole.src;
		for (uint32_t part = 0; part < BYTES / 2; part++)
			__pipeline_memcpy_async(kept(stage, i * BYTES / 2 + part), src + part * 16,
						16, there ? 0 : 16);
		step(&steps, whole);
	}
}

template <int BYTES>
static __device__ void floats_kept(enum ws_dtype from, uint8_t *stage, uint32_t i, uint32_t *floats)
{
	struct raw<TASK_UNIT> raw;

#pragma unroll
	for (uint32_t part = 0; part < BYTES / 2; part++)
		((uint4 *)raw.words)[part] = *kept(stage, i * BYTES / 2 + part);
	floats_of<TASK_UNIT>(from, raw, floats);
}

/* The largest of all threads' sizes; the room is another one in the next call. */
static __device__ uint32_t largest_of_block(uint32_t size, uint32_t *room)
{
	uint32_t largest = 0;

	size = __reduce_max_sync(ALL_LANES, size);
	if (threadIdx.x % 32 == 0)
		room[threadIdx.x / 32] = size;
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < TASK_THREADS / 32; i++)
		largest = MAX(largest, room[i]);
	return largest;
}

template <int BYTES>
static __device__ void whole_quantize(const struct task &task, uint32_t tile, uint8_t *stage,
				      uint32_t *room)
{
	struct whole whole = whole_at(task, tile);
	struct steps steps = steps_of(whole);
	uint32_t largest = 0, floats[TASK_UNIT];

#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		floats_kept<BYTES>(task.from, stage, i, floats);
#pragma unroll
		for (uint32_t j = 0; j < TASK_UNIT; j++)
			largest = MAX(largest, floats[j] & F32_ABS);
	}
	largest = largest_of_block(largest, room);
	float by = scale_divisor(&task.quant, largest);
	if (threadIdx.x == 0)
		scale_store(&task.quant, scale_of_maximum(&task.quant, largest), whole.scale);
#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		floats_kept<BYTES>(task.from, stage, i, floats);
		if (steps.row < whole.rows)
			*(uint2 *)(whole.dst + steps.row * whole.dst_stride +
				   steps.column *
					   TASK_UNIT) = {four_codes_of(task.quant, floats, by),
							 four_codes_of(task.quant, floats + 4, by)};
		step(&steps, whole);
	}
}

template <int STAGES>
static __global__ void __launch_bounds__(TASK_THREADS, 2)
	whole_tiles(const struct task_list list, uint32_t stage_bytes)
{
	extern __shared__ uint4 stages[];
	__shared__ uint32_t rooms[2][TASK_THREADS / 32];
	uint32_t ahead[STAGES]; /* whose tasks they are: ahead[0] of the tile in work */
	uint32_t next = blockIdx.x, load = 0;

	for (uint32_t turn = 0;; turn++) {
		uint32_t tile = blockIdx.x + (turn - (STAGES - 1)) * gridDim.x;
#pragma unroll
		for (int i = 0; i + 1 < STAGES; i++)
			ahead[i] = ahead[i + 1];
		if (next < list.tile_count) {
			uint32_t found = ahead[STAGES - 1] = task_of(list, next);
			const struct task &task = list.tasks[found];
			uint8_t *stage = (uint8_t *)stages + load * stage_bytes;
			if (task.from == WS_F32)
				whole_load<4>(task, next - list.first_tile[found], stage);
			else
				whole_load<2>(task, next - list.first_tile[found], stage);
		}
		__pipeline_commit();
		next += gridDim.x;
		load = load + 1 == STAGES ? 0 : load + 1;
		if (turn + 1 < STAGES)
			continue;
		if (tile >= list.tile_count)
			break;
		__pipeline_wait_prior(STAGES - 1);
		/* The next to be loaded is the oldest. */
		const struct task &task = list.tasks[ahead[0]];
		uint8_t *stage = (uint8_t *)stages + load * stage_bytes;
		uint32_t *room = rooms[turn % 2];
		tile -= list.first_tile[ahead[0]];
		if (task.from == WS_F32)
			whole_quantize<4>(task, tile, stage, room);
		else
			whole_quantize<2>(task, tile, stage, room);
	}
}

/* ---------------------------------------------------------------- launches */
static uint32_t stage_bytes(bool has_f32)
{
	return TASK_TILE_UNITS * TASK_UNIT * (has_f32 ? 4 : 2);
}

static const void *kernel_of(uint32_t stages)
{
	return stages == 3 ? (const void *)whole_tiles<3> : (const void *)whole_tiles<2>;
}

/* How many blocks of threads fill the GPU; 0: its shared memory is too small. */
static uint32_t fill(const struct cudaDeviceProp *gpu, uint32_t stages, uint32_t bytes)
{
	const void *kernel = kernel_of(stages);
	int each = 0;

	if (stages * bytes + 1024 > gpu->sharedMemPerBlockOptin ||
	    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
				 (int)gpu->sharedMemPerBlockOptin - 1024) != cudaSuccess ||
	    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, TASK_THREADS,
							  stages * bytes) != cudaSuccess)
		return 0;
	return (uint32_t)(each * gpu->multiProcessorCount);
}

int whole_fill(bool has_f32, struct whole_grid *grid_out, struct ws_error *err)
{
	struct cudaDeviceProp gpu;
	int device = 0;

	*grid_out = {};
	if (cudaGetDevice(&device) == cudaSuccess &&
	    cudaGetDeviceProperties(&gpu, device) == cudaSuccess)
		for (uint32_t stages = 3; stages >= 2 && grid_out->block_count == 0; stages--)
			*grid_out = {fill(&gpu, stages, stage_bytes(has_f32)), stages,
				     stage_bytes(has_f32)};
	return cuda_launched("find how much of a GPU the kernels fill", err);
}

int whole_launch(const struct whole_grid *grid, const struct task_list *list,
		 struct CUstream_st *stream, struct ws_error *err)
{
	uint32_t blocks = MIN(grid->block_count, list->tile_count);
	uint32_t bytes = grid->stages * grid->stage_bytes;

	if (grid->stages == 3)
		whole_tiles<3><<<blocks, TASK_THREADS, bytes, stream>>>(*list, grid->stage_bytes);
	else
		whole_tiles<2><<<blocks, TASK_THREADS, bytes, stream>>>(*list, grid->stage_bytes);
	return cuda_launched("start quantizing whole blocks", err);
}
