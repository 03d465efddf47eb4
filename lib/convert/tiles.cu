/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for moves of every kind: a block of threads carries out a tile.  A thread stays in its
 * column, or in its row, so that from one unit to the next its addresses grow by the same steps.
 */
#include "lib/convert/kernels.cuh"
#include "lib/cuda/cuda.h"

#define BATCH 4 /* units of a thread whose loads are under way together */

/* ---------------------------------------------------------------- a thread's way */
struct unit {
	const uint8_t *src;
	uint8_t *dst, *entry; /* of the table */
	bool is_there;	      /* false: outside of the box */
};

struct walk {
	struct unit unit;
	uint32_t passes;	/* the same for all threads */
	uint32_t at, step, end; /* in the dim that is walked: rows or columns */
	int64_t src_step, dst_step, entry_step;
	uint32_t each, in_block, block_step; /* elements of that dim; each 0: one block */
};

/* On to element i of a dim. */
static __device__ void go(struct unit *unit, const struct task_dim &dim, uint32_t i)
{
	unit->src += i * dim.src_stride;
	unit->dst += i * dim.dst_stride;
	if (dim.each != 0)
		unit->entry += (dim.first + i) / dim.each * dim.entry_stride;
}

static __device__ struct walk walk_begin(const struct task &task, uint32_t tile)
{
	uint32_t rest = tile / task.strips, strip = tile - rest * task.strips;
	uint32_t plane = rest / task.bands, band = rest - plane * task.bands;
	bool down = task.row_step != 0;
	uint32_t bits = down ? task.width_bits : TASK_THREADS_BITS;
	uint32_t first_row = down ? band * task.row_step * TASK_PASSES : band;
	uint32_t first_column = down ? strip << bits : strip * TASK_TILE_UNITS;
	uint32_t row = first_row + (threadIdx.x >> bits);
	uint32_t column = first_column + (threadIdx.x & ((1u << bits) - 1));
	struct walk walk = {{task.src, task.dst, task.table, false}};

	go(&walk.unit, task.dims[0], column * task.unit);
	if (task.dim_count > 1)
		go(&walk.unit, task.dims[1], row);
	for (uint32_t d = 2; d < task.dim_count; d++) {
		uint32_t next = plane / task.dims[d].extent;
		go(&walk.unit, task.dims[d], plane - next * task.dims[d].extent);
		plane = next;
	}
	const struct task_dim &dim = task.dims[down];
	uint32_t left = down ? task.rows - first_row : task.columns - first_column;
	walk.at = down ? row : column;
	walk.step = down ? task.row_step : TASK_THREADS;
	walk.end = !down ? task.columns : column < task.columns ? task.rows : 0;
	walk.passes = MIN((left + walk.step - 1) / walk.step, TASK_PASSES);
	walk.block_step = down ? walk.step : walk.step * task.unit;
	walk.src_step = walk.block_step * dim.src_stride;
	walk.dst_step = walk.block_step * dim.dst_stride;
	walk.entry_step = dim.entry_stride;
	walk.each = dim.each;
	if (dim.each != 0)
		walk.in_block = (dim.first + (down ? row : column * task.unit)) % dim.each;
	return walk;
}

/* The unit where the walk is, and on to the next. */
static __device__ struct unit walk_next(struct walk *walk)
{
	struct unit unit = walk->unit;

	unit.is_there = walk->at < walk->end;
	walk->at += walk->step;
	walk->unit.src += walk->src_step;
	walk->unit.dst += walk->dst_step;
	walk->in_block += walk->block_step;
	if (walk->each != 0 && walk->in_block >= walk->each) {
		uint32_t blocks = walk->in_block / walk->each;
		walk->unit.entry += blocks * walk->entry_step;
		walk->in_block -= blocks * walk->each;
	}
	return unit;
}

/* ---------------------------------------------------------------- loads and stores */
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

/* As it lies in memory: words side by side, or one element in the low bits of words[0]. */
template <int N> struct raw {
	uint32_t words[N];
};

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
static __device__ void each_unit(const struct task &task, uint32_t tile, Each each)
{
	struct walk walk = walk_begin(task, tile);

#pragma unroll 1
	for (uint32_t pass = 0; pass < walk.passes; pass += BATCH) {
		struct unit units[BATCH];
		struct raw<N> raws[BATCH];
#pragma unroll
		for (uint32_t i = 0; i < BATCH; i++) {
			units[i] = walk_next(&walk);
			raws[i] = load<N>(task, units[i]);
		}
#pragma unroll
		for (uint32_t i = 0; i < BATCH; i++)
			each(units[i], raws[i]);
	}
}

/* ---------------------------------------------------------------- casts */
/* By the hardware, but for the payload of a NaN. */
static __device__ uint16_t half_of_f32(uint32_t bits)
{
	uint16_t value;

	if ((bits & F32_ABS) > F32_INFINITY)
		return f16_of_f32(bits);
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value) : "r"(bits));
	return value;
}

template <int N>
static __device__ void store_floats(const struct task &task, const struct unit &unit,
				    const float *x)
{
	uint32_t bits[N];

#pragma unroll
	for (uint32_t j = 0; j < N; j++)
		bits[j] = bits_of_f32(x[j]);
	if (!unit.is_there)
		return;
	if (task.to == WS_BF16)
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			bits[j] = bf16_of_f32(bits[j]);
	else if (task.to == WS_F16)
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			bits[j] = half_of_f32(bits[j]);
	if constexpr (N == 1) {
		store_element(unit.dst, bits[0], task.to == WS_F32 ? 4 : 2, task.is_aligned);
	} else if (task.to == WS_F32) {
		((uint4 *)unit.dst)[0] = {bits[0], bits[1], bits[2], bits[3]};
		((uint4 *)unit.dst)[1] = {bits[4], bits[5], bits[6], bits[7]};
	} else {
		*(uint4 *)unit.dst = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16,
				      bits[4] | bits[5] << 16, bits[6] | bits[7] << 16};
	}
}

template <int N> static __device__ void cast(const struct task &task, uint32_t tile)
{
	each_unit<N>(task, tile, [&](const struct unit &unit, const struct raw<N> &raw) {
		float x[N];
		values_of<N>(task.from, raw.words, x);
#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			if (x[j] != x[j])
				x[j] = f32_of_bits(bits_of_f32(x[j]) | F32_QUIET);
		store_floats<N>(task, unit, x);
	});
}

/* ---------------------------------------------------------------- maxima */
/* Lanes with the same entry raise it once. */
static __device__ void raise(uint8_t *entry, uint32_t maximum)
{
	uint32_t peers = __match_any_sync(ALL_LANES, (unsigned long long)entry);
	uint32_t largest = __reduce_max_sync(peers, maximum);

	if (largest > 0 && threadIdx.x % 32 == (uint32_t)__ffs((int)peers) - 1)
		atomicMax((uint32_t *)entry, largest);
}

template <int N, int BYTES> static __device__ void maxima(const struct task &task, uint32_t tile)
{
	uint8_t *held = task.table;
	uint32_t size = 0;

	each_unit<N>(task, tile, [&](const struct unit &unit, const struct raw<N> &raw) {
		uint8_t *entry = unit.is_there ? unit.entry : held;
		if (__any_sync(ALL_LANES, entry != held)) {
			raise(held, maximum_of(task.from, size));
			size = 0;
		}
		held = entry;
#pragma unroll
		for (uint32_t j = 0; j < (N * BYTES + 3) / 4; j++)
			size = raise_size<BYTES>(size, raw.words[j]);
	});
	raise(held, maximum_of(task.from, size));
}

/* ---------------------------------------------------------------- codes */
template <int N> static __device__ void quantize(const struct task &task, uint32_t tile)
{
	const uint8_t *held = NULL;
	float by = 0;

	each_unit<N>(task, tile, [&](const struct unit &unit, const struct raw<N> &raw) {
		uint32_t codes[2];
		float x[N];
		if (!unit.is_there)
			return;
		if (unit.entry != held) {
			held = unit.entry;
			by = scale_divisor(&task.quant, *(const uint32_t *)held);
		}
		values_of<N>(task.from, raw.words, x);
		if (task.quant.reciprocal)
#pragma unroll
			for (uint32_t j = 0; j < N; j++)
				x[j] *= by;
		else
#pragma unroll
			for (uint32_t j = 0; j < N; j++)
				x[j] /= by;
		codes_of<N>(task.to, x, codes);
		if constexpr (N == 1)
			*unit.dst = (uint8_t)codes[0];
		else
			*(uint2 *)unit.dst = {codes[0], codes[1]};
	});
}

/* Where an f32 has the bits of an e4m3 it is 2^120 times too small, subnormal or not. */
static __device__ float value_of_code(enum ws_dtype from, uint8_t code)
{
	uint32_t size = (uint32_t)(code & 0x7f) << (23 - E4M3_FRACTION);

	if (from == WS_F8_E5M2)
		return f32_of_bits(f32_of_half((uint16_t)(code << 8)));
	float value = (code & 0x7f) == F8_NAN ? f32_of_bits(F32_NAN) : f32_of_bits(size) * 0x1p120F;
	return (code & 0x80) != 0 ? -value : value;
}

template <int N> static __device__ void dequantize(const struct task &task, uint32_t tile)
{
	const uint8_t *held = NULL;
	float by = 0;

	each_unit<N>(task, tile, [&](const struct unit &unit, const struct raw<N> &raw) {
		float x[N];
		if (unit.is_there && unit.entry != held) {
			held = unit.entry;
			by = scale_value(&task.quant, scale_load(&task.quant, held));
		}
#pragma unroll
		for (uint32_t j = 0; j < N; j++) {
			x[j] = by *
			       value_of_code(task.from, (uint8_t)(raw.words[j / 4] >> j % 4 * 8));
			x[j] = x[j] != x[j] ? f32_of_bits(F32_NAN) : x[j];
		}
		store_floats<N>(task, unit, x);
	});
}

/* ---------------------------------------------------------------- words */
static __device__ void copy(const struct task &task, uint32_t tile)
{
	struct walk walk = walk_begin(task, tile);
	struct unit units[TASK_PASSES];
	uint4 words[TASK_PASSES];

#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++) {
		units[i] = walk_next(&walk);
		if (units[i].is_there)
			words[i] = __ldg((const uint4 *)units[i].src);
	}
#pragma unroll
	for (uint32_t i = 0; i < TASK_PASSES; i++)
		if (units[i].is_there)
			*(uint4 *)units[i].dst = words[i];
}

/* Less than 16 bytes. */
static __device__ void copy_word(const struct task &task, const struct unit &unit)
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

static __device__ void each_word(const struct task &task, uint32_t tile)
{
	struct walk walk = walk_begin(task, tile);

#pragma unroll 4
	for (uint32_t i = 0; i < walk.passes; i++) {
		struct unit unit = walk_next(&walk);
		if (!unit.is_there)
			continue;
		if (task.kind == MOVE_CAST) {
			copy_word(task, unit);
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
template <int N> static __device__ void any_units(const struct task &task, uint32_t tile)
{
	switch (task.kind) {
	case MOVE_MAXIMA:
		return task.from_bytes == 4 ? maxima<N, 4>(task, tile) : maxima<N, 2>(task, tile);
	case MOVE_QUANTIZE:
		return quantize<N>(task, tile);
	case MOVE_DEQUANTIZE:
		return dequantize<N>(task, tile);
	default:
		return cast<N>(task, tile);
	}
}

static __global__ void __launch_bounds__(TASK_THREADS, 4) tiles(const struct task_list list)
{
	__shared__ struct task task;

	if (threadIdx.x < 32)
		task_fetch(list, &task);
	__syncthreads();
	uint32_t tile = blockIdx.x - task.first_tile;

	if (!task.is_words)
		task.unit == 1 ? any_units<1>(task, tile) : any_units<TASK_UNIT>(task, tile);
	else if (task.from_bytes == 16)
		copy(task, tile);
	else
		each_word(task, tile);
}

int tiles_launch(const struct task_list *list, struct CUstream_st *stream, struct ws_error *err)
{
	tiles<<<list->tile_count, TASK_THREADS, 0, stream>>>(*list);
	return cuda_launched("start moves", err);
}
