/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for moves of every kind.  A grid that fills the GPU once walks over the tiles of all
 * tasks; a thread keeps its column through a tile.
 */
#include "lib/convert/kernels.cuh"
#include "lib/cuda/cuda.h"

#define BATCH 4 /* units of a thread whose loads are under way together */

/* ---------------------------------------------------------------- units */
/* Where a thread works in a tile, and in how many passes. */
struct place {
	uint32_t row, column, passes;
};

static __device__ struct place place_of(const struct task &task, uint32_t tile)
{
	uint32_t band = tile / task.strips, strip = tile - band * task.strips;
	uint32_t width = 1u << task.width_bits;
	uint32_t side = threadIdx.x & (width - 1), below = threadIdx.x >> task.width_bits;

	if (task.row_step == 0) {
		uint32_t first = strip * TASK_TILE_UNITS;
		uint32_t left = (task.columns - first + TASK_THREADS - 1) / TASK_THREADS;
		return {band, first + threadIdx.x, MIN(left, TASK_PASSES)};
	}
	uint32_t first = band * task.row_step * TASK_PASSES;
	uint32_t left = (task.rows - first + task.row_step - 1) / task.row_step;
	return {first + below, strip * width + side, MIN(left, TASK_PASSES)};
}

struct unit {
	const uint8_t *src;
	uint8_t *dst, *entry;
	bool is_there; /* false: outside of the box */
};

static __device__ uint32_t block_of(const struct task_dim &dim, uint32_t i)
{
	return dim.each == 0 ? 0 : (dim.first + i) / dim.each;
}

static __device__ struct unit unit_at(const struct task &task, uint32_t row, uint32_t column)
{
	struct unit unit = {task.src, task.dst, task.table, false};
	uint32_t at = column * task.unit;

	if (row >= task.rows || column >= task.columns)
		return unit;
	unit.is_there = true;
	for (uint32_t d = 0;;) {
		const struct task_dim &dim = task.dims[d];
		unit.src += at * dim.src_stride;
		unit.dst += at * dim.dst_stride;
		unit.entry += block_of(dim, at) * dim.entry_stride;
		if (++d == task.dim_count)
			return unit;
		/* What is left of the row's number goes on to the next dim. */
		at = row;
		if (d + 1 < task.dim_count) {
			row = at / task.dims[d].extent;
			at -= row * task.dims[d].extent;
		}
	}
}

static __device__ uint32_t load_element(const uint8_t *src, uint32_t bytes, bool is_aligned)
{
	uint32_t value = src[0];

	if (is_aligned && bytes == 4)
		return *(const uint32_t *)src;
	if (is_aligned && bytes == 2)
		return *(const uint16_t *)src;
	for (uint32_t i = 1; i < bytes; i++)
		value |= (uint32_t)src[i] << 8 * i;
	return value;
}

static __device__ void store_element(uint8_t *dst, uint32_t value, uint32_t bytes, bool is_aligned)
{
	if (is_aligned && bytes == 4)
		*(uint32_t *)dst = value;
	else if (is_aligned && bytes == 2)
		*(uint16_t *)dst = (uint16_t)value;
	else
		for (uint32_t i = 0; i < bytes; i++)
			dst[i] = (uint8_t)(value >> 8 * i);
}

template <int N>
static __device__ struct raw<N> load(const struct task &task, const struct unit &unit) {
	struct raw<N> raw = {
	};

	if (!unit.is_there)
		return raw;
	if constexpr (N == 1) {
		raw.words[0] = load_element(unit.src, task.from_bytes, task.is_aligned);
	} else if (task.from_bytes == 1) {
		*(uint2 *)raw.words = __ldcs((const uint2 *)unit.src);
	} else {
		((uint4 *)raw.words)[0] = __ldcs((const uint4 *)unit.src);
		if (task.from_bytes == 4)
			((uint4 *)raw.words)[1] = __ldcs((const uint4 *)unit.src + 1);
	}
	return raw;
}

/* Calls each(unit, raw) in all threads alike, also for units outside of the box. */
template <int N, class Each>
static __device__ void each_unit(const struct task &task, struct place place, Each each)
{
#pragma unroll 1
	for (uint32_t pass = 0; pass < place.passes; pass += BATCH) {
		struct unit units[BATCH];
		struct raw<N> raws[BATCH];
#pragma unroll
		for (uint32_t i = 0; i < BATCH; i++) {
			units[i] = unit_at(task, place.row, place.column);
			raws[i] = load<N>(task, units[i]);
			place.row += task.row_step;
			place.column += task.column_step;
		}
#pragma unroll
		for (uint32_t i = 0; i < BATCH; i++)
			each(units[i], raws[i]);
	}
}

/* ---------------------------------------------------------------- floats */
/* By the hardware, but for the payload of a NaN. */
static __device__ uint16_t half_of_f32(uint32_t bits)
{
	uint16_t value;

	if ((bits & F32_ABS) > F32_INFINITY)
		return f16_of_f32(bits);
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value) : "r"(bits));
	return value;
}

/* Its bits where an f32 has them are 2^120 times too small, subnormal or not. */
static __device__ uint32_t f32_of_code(uint8_t code)
{
	uint32_t size = (uint32_t)(code & 0x7f) << (23 - E4M3_FRACTION);
	float value = f32_of_bits(size) * 0x1p120F;

	if ((code & 0x7f) == F8_NAN)
		value = f32_of_bits(F32_NAN);
	return bits_of_f32(value) | (uint32_t)(code & 0x80) << 24;
}

template <int N>
static __device__ void store_floats(const struct task &task, const struct unit &unit,
				    const uint32_t *floats)
{
	uint32_t halves[N];

	if (!unit.is_there)
		return;
	if (task.to == WS_F32) {
		if constexpr (N == 1) {
			store_element(unit.dst, floats[0], 4, task.is_aligned);
		} else {
			((uint4 *)unit.dst)[0] = {floats[0], floats[1], floats[2], floats[3]};
			((uint4 *)unit.dst)[1] = {floats[4], floats[5], floats[6], floats[7]};
		}
		return;
	}
#pragma unroll
	for (uint32_t j = 0; j < N; j++)
		halves[j] = task.to == WS_BF16 ? bf16_of_f32(floats[j]) : half_of_f32(floats[j]);
	if constexpr (N == 1)
		store_element(unit.dst, halves[0], 2, task.is_aligned);
	else
		*(uint4 *)unit.dst = {halves[0] | halves[1] << 16, halves[2] | halves[3] << 16,
				      halves[4] | halves[5] << 16, halves[6] | halves[7] << 16};
}

template <int N> static __device__ void cast(const struct task &task, struct place place)
{
	each_unit<N>(task, place, [&](const struct unit &unit, const struct raw<N> &raw) {
		uint32_t floats[N];
		floats_of<N>(task.from, raw, floats);
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			if ((floats[j] & F32_ABS) > F32_INFINITY)
				floats[j] |= F32_QUIET;
		store_floats<N>(task, unit, floats);
	});
}

/* ---------------------------------------------------------------- maxima */
/* Lanes with the same entry raise it once. */
static __device__ void raise(uint8_t *entry, uint32_t size)
{
	uint32_t peers = __match_any_sync(ALL_LANES, (unsigned long long)entry);
	uint32_t largest = __reduce_max_sync(peers, size);

	if (largest > 0 && threadIdx.x % 32 == (uint32_t)__ffs((int)peers) - 1)
		atomicMax((uint32_t *)entry, largest > F32_INFINITY ? F32_NAN : largest);
}

template <int N> static __device__ void maxima(const struct task &task, struct place place)
{
	uint8_t *held = task.table;
	uint32_t largest = 0;

	each_unit<N>(task, place, [&](const struct unit &unit, const struct raw<N> &raw) {
		uint8_t *entry = unit.is_there ? unit.entry : held;
		uint32_t floats[N];
		if (__any_sync(ALL_LANES, entry != held)) {
			raise(held, largest);
			largest = 0;
		}
		held = entry;
		floats_of<N>(task.from, raw, floats);
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			largest = MAX(largest, floats[j] & F32_ABS);
	});
	raise(held, largest);
}

/* ---------------------------------------------------------------- codes */
template <int N> static __device__ void quantize(const struct task &task, struct place place)
{
	const uint8_t *held = NULL;
	float by = 0;

	each_unit<N>(task, place, [&](const struct unit &unit, const struct raw<N> &raw) {
		uint32_t floats[N];
		if (!unit.is_there)
			return;
		if (unit.entry != held) {
			held = unit.entry;
			by = scale_divisor(&task.quant, *(const uint32_t *)held);
		}
		floats_of<N>(task.from, raw, floats);
		if constexpr (N == 1)
			*unit.dst =
				(uint8_t)codes_of(task.to, quotient(task.quant, floats[0], by), 0);
		else
			*(uint2 *)unit.dst = {four_codes_of(task.quant, floats, by),
					      four_codes_of(task.quant, floats + 4, by)};
	});
}

template <int N> static __device__ void dequantize(const struct task &task, struct place place)
{
	const uint8_t *held = NULL;
	float by = 0;

	each_unit<N>(task, place, [&](const struct unit &unit, const struct raw<N> &raw) {
		uint32_t floats[N];
		if (unit.is_there && unit.entry != held) {
			held = unit.entry;
			by = scale_value(&task.quant, scale_load(&task.quant, held));
		}
#pragma unroll
		for (uint32_t j = 0; j < N; j++) {
			uint8_t code = (uint8_t)(raw.words[j / 4] >> j % 4 * 8);
			uint32_t bits = task.from == WS_F8_E4M3
						? f32_of_code(code)
						: f32_of_half((uint16_t)(code << 8));
			float value = f32_of_bits(bits) * by;
			floats[j] = value != value ? F32_NAN : bits_of_f32(value);
		}
		store_floats<N>(task, unit, floats);
	});
}

/* ---------------------------------------------------------------- words */
static __device__ void copy(const struct task &task, struct place place)
{
	struct unit units[TASK_PASSES];
	uint4 words[TASK_PASSES];

#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		units[i] = unit_at(task, place.row + i * task.row_step,
				   place.column + i * task.column_step);
		if (units[i].is_there)
			words[i] = __ldcs((const uint4 *)units[i].src);
	}
#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++)
		if (units[i].is_there)
			*(uint4 *)units[i].dst = words[i];
}

/* Less than 16 bytes a word; also RAISE and SCALE, one maximum a unit. */
static __device__ void copy_narrow(const struct task &task, const struct unit &unit)
{
	if (!task.is_aligned)
		for (uint32_t i = 0; i < task.from_bytes; i++)
			unit.dst[i] = unit.src[i];
	else if (task.from_bytes == 8)
		*(uint2 *)unit.dst = *(const uint2 *)unit.src;
	else
		store_element(unit.dst, load_element(unit.src, task.from_bytes, true),
			      task.from_bytes, true);
}

static __device__ void each_word(const struct task &task, struct place place)
{
#pragma unroll 4
	for (uint32_t i = 0; i < place.passes; i++) {
		struct unit unit = unit_at(task, place.row + i * task.row_step,
					   place.column + i * task.column_step);
		if (!unit.is_there)
			continue;
		if (task.kind == MOVE_CAST) {
			copy_narrow(task, unit);
			continue;
		}
		uint32_t maximum = load_element(unit.src, 4, task.is_aligned);
		if (task.kind == MOVE_RAISE)
			atomicMax((uint32_t *)unit.dst, maximum);
		else
			scale_store(&task.quant, scale_of_maximum(&task.quant, maximum), unit.dst);
	}
}

/* ---------------------------------------------------------------- tiles of any kind */
template <int N> static __device__ void any_units(const struct task &task, struct place place)
{
	switch (task.kind) {
	case MOVE_MAXIMA:
		return maxima<N>(task, place);
	case MOVE_QUANTIZE:
		return quantize<N>(task, place);
	case MOVE_DEQUANTIZE:
		return dequantize<N>(task, place);
	default:
		return cast<N>(task, place);
	}
}

static __global__ void __launch_bounds__(TASK_THREADS, 3) tiles(const struct task_list list)
{
	for (uint32_t tile = blockIdx.x; tile < list.tile_count; tile += gridDim.x) {
		uint32_t i = task_of(list, tile);
		const struct task &task = list.tasks[i];
		struct place place = place_of(task, tile - list.first_tile[i]);
		if (!task.is_words)
			task.unit == 1 ? any_units<1>(task, place)
				       : any_units<TASK_UNIT>(task, place);
		else if (task.from_bytes == 16)
			copy(task, place);
		else
			each_word(task, place);
	}
}

/* ---------------------------------------------------------------- launches */
int tiles_fill(uint32_t *block_count_out, struct ws_error *err)
{
	struct cudaDeviceProp gpu;
	int device = 0, each = 0;

	*block_count_out = 0;
	if (cudaGetDevice(&device) == cudaSuccess &&
	    cudaGetDeviceProperties(&gpu, device) == cudaSuccess &&
	    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, tiles, TASK_THREADS, 0) ==
		    cudaSuccess)
		*block_count_out = (uint32_t)(each * gpu.multiProcessorCount);
	return cuda_launched("find how much of a GPU the kernels fill", err);
}

int tiles_launch(uint32_t block_count, const struct task_list *list, struct CUstream_st *stream,
		 struct ws_error *err)
{
	tiles<<<MIN(block_count, list->tile_count), TASK_THREADS, 0, stream>>>(*list);
	return cuda_launched("start moves", err);
}
