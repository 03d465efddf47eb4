/* SPDX-License-Identifier: Apache-2.0 */
/* See convert_world.h. */
#include "tests/convert_world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CANARY 0xa5

float float_of(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

uint32_t bits_of(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

uint32_t move_one(enum move_kind kind, const struct blocks *blocks, enum ws_dtype from,
		  enum ws_dtype to, uint32_t bits)
{
	uint32_t result = 0;
	struct move move = {.kind = kind,
			    .blocks = blocks,
			    .src = &bits,
			    .dst = &result,
			    .from = from,
			    .to = to};
	convert_move(&move);
	return result;
}

/* ---------------------------------------------------------------- floats */
/* The bits of an f32; the least significant digits of x decide. */
static uint32_t hard_f32(uint64_t x, uint32_t temper)
{
	static const uint32_t specials[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000,
					    0x7f800001, 0xffc12345, 0x7fffffff, 0x00000001,
					    0x807fffff, 0x00800000, 0x7f7fffff, 0xff7fffff};
	uint32_t sign = (uint32_t)(x >> 60) << 31;
	if (temper == 3)
		return (uint32_t)x;
	if (temper == 1 && x % 97 == 0)
		return specials[x / 97 % ARRAY_SIZE(specials)];
	/* Half way between two codes of e4m3, subnormal ones too, or beside it. */
	if (temper == 2) {
		int exponent = (int)(x / 7 % 17) - 9;
		double half = exponent < -6 ? ((double)(x >> 20 & 7) + 0.5) * 0x1p-9
					    : ldexp(8.5 + (double)(x >> 20 & 7), exponent - 3);
		return (bits_of((float)half) + (uint32_t)(x % 3) - 1) | sign;
	}
	/* The sum of four looks like a bell. */
	int sum = (int)(x & 0xffff) + (int)(x >> 16 & 0xffff) + (int)(x >> 32 & 0xffff) +
		  (int)(x >> 48 & 0xffff) - 131070;
	return bits_of((float)sum * 0x1p-22F);
}

void floats_fill(void *memory, size_t count, enum ws_dtype dtype, uint64_t seed)
{
	uint32_t temper = (uint32_t)(mix64(seed) % 4);
	uint8_t *at = memory;
	size_t bytes = ws_dtype_bytes(dtype);
	for (size_t i = 0; i < count; i++, at += bytes) {
		uint32_t bits = hard_f32(mix64(seed * 0x9e3779b97f4a7c15ULL + i), temper);
		/* Any bits stay any bits in the narrow floats. */
		if (dtype != WS_F32 && temper != 3)
			bits = move_one(MOVE_CAST, NULL, WS_F32, dtype, bits);
		memcpy(at, &bits, bytes);
	}
}

struct quant quant_random(uint64_t seed)
{
	static const enum ws_dtype scales[] = {WS_F32, WS_BF16, WS_F8_E8M0};
	static const float epsilons[] = {1e-4F, 0, 1e-10F, 1.5F, 1e-44F, 3e38F};
	uint64_t x = mix64(seed ^ 0x5ca1e);
	return (struct quant){
		.code = x % 4 == 0 ? WS_F8_E5M2 : WS_F8_E4M3,
		.scale = scales[x / 4 % ARRAY_SIZE(scales)],
		.eps = epsilons[x / 16 % ARRAY_SIZE(epsilons)],
		.pow2 = (x >> 20 & 1) != 0,
		.reciprocal = (x >> 21 & 1) != 0,
	};
}

/* ---------------------------------------------------------------- moves */
static void choose_dtypes(struct boxed *boxed, uint64_t x)
{
	static const enum ws_dtype floats[] = {WS_F32, WS_BF16, WS_F16};
	static const enum ws_dtype copies[] = {WS_U8, WS_BF16, WS_F32, WS_I64};
	struct move *move = &boxed->move;
	enum ws_dtype one = floats[x % 3], other = floats[x / 3 % 3];
	move->kind = (enum move_kind)(x / 9 % 7);
	switch (move->kind) {
	case MOVE_CAST:
		move->from = x / 54 % 3 == 0 ? copies[x / 1024 % ARRAY_SIZE(copies)] : one;
		move->to = x / 54 % 3 == 0 ? move->from : other;
		break;
	case MOVE_MAXIMA:
		move->from = one;
		move->to = WS_U32;
		break;
	case MOVE_RAISE:
		move->from = move->to = WS_U32;
		break;
	case MOVE_QUANTIZE:
	case MOVE_QUANTIZE_WHOLE:
		move->from = one;
		move->to = boxed->quant.code;
		break;
	case MOVE_SCALE:
		move->from = WS_U32;
		move->to = boxed->quant.scale;
		break;
	case MOVE_DEQUANTIZE:
		move->from = boxed->quant.code;
		move->to = one;
		break;
	}
}

/* Strides of a permuted, padded, perhaps reversed layout; *start_out is where element 0 lies. */
static size_t random_strides(uint64_t *x, const struct move *move, int64_t *stride,
			     size_t bytes_each, bool dense, size_t *start_out)
{
	uint32_t order[MOVE_DIM_MAX];
	size_t step = bytes_each, start = 0;
	for (uint32_t i = 0; i < move->dim_count; i++) {
		*x = mix64(*x + 1);
		uint32_t j = (uint32_t)(*x % (i + 1));
		order[i] = order[j];
		order[j] = i;
	}
	for (uint32_t i = 0; i < move->dim_count; i++) {
		uint32_t dim = dense ? move->dim_count - 1 - i : order[i];
		*x = mix64(*x + 1);
		if (!dense)
			step += *x % 3 * (*x % 7);
		stride[dim] = (int64_t)step;
		size_t span = step * (size_t)(move->extent[dim] - (move->extent[dim] > 0));
		if (!dense && *x >> 32 & 1) {
			stride[dim] = -stride[dim];
			start += span;
		}
		step *= MAX((size_t)move->extent[dim], 1);
	}
	*start_out = start;
	return step + bytes_each;
}

/* A grid of blocks as a larger tensor has it; returns its count of entries. */
static size_t random_blocks(uint64_t *x, const struct move *move, struct blocks *blocks)
{
	static const uint64_t sizes[] = {128, 128, 128, 32, 1, 100, 7, 1000};
	size_t entries = 1;
	for (uint32_t d = move->dim_count; d-- > 0;) {
		*x = mix64(*x + 1);
		blocks->each[d] = sizes[*x / 5 % ARRAY_SIZE(sizes)];
		blocks->first[d] = *x / 64 % (2 * blocks->each[d]);
		blocks->stride[d] = (int64_t)entries;
		if (*x >> 40 & 1)
			entries *= (blocks->first[d] + move->extent[d]) / blocks->each[d] + 1;
		else /* all in one block, as the columns of a channel are */
			blocks->each[d] = 2 * blocks->each[d] + move->extent[d];
	}
	return entries;
}

/* Maxima of the elements, or others that do not fit them. */
static void fill_table(struct boxed *boxed, uint64_t seed, size_t entries)
{
	const struct quant *quant = &boxed->quant;
	memset(boxed->table, 0, boxed->table_bytes);
	if (boxed->move.kind == MOVE_QUANTIZE_WHOLE)
		return;
	if (boxed->move.kind == MOVE_QUANTIZE && seed % 4 != 0) {
		struct move maxima = boxed->move;
		maxima.kind = MOVE_MAXIMA;
		convert_move(&maxima);
		return;
	}
	uint8_t *at = boxed->blocks.table;
	for (size_t i = 0; i < entries; i++) {
		uint32_t bits;
		floats_fill(&bits, 1, WS_F32, seed + i);
		bits &= 0x7fffffff;
		if (boxed->move.kind == MOVE_DEQUANTIZE) {
			size_t bytes = ws_dtype_bytes(quant->scale);
			bits = quant->scale == WS_F32 ? bits : bits >> (32 - 8 * bytes);
			memcpy(at + i * bytes, &bits, bytes);
		} else {
			bits = bits > 0x7f800000 ? 0x7fc00000 : bits;
			memcpy(at + i * 4, &bits, 4);
		}
	}
}

void boxed_make(struct boxed *boxed, uint64_t seed)
{
	uint64_t x = mix64(seed + 0xb0ced);
	struct move *move = &boxed->move;
	memset(boxed, 0, sizeof(*boxed));
	boxed->quant = quant_random(seed);
	choose_dtypes(boxed, x);
	x = mix64(x);
	move->dim_count = (uint32_t)(x % 8 % (MOVE_DIM_MAX + 1));
	for (uint32_t i = 0; i < move->dim_count; i++) {
		x = mix64(x + 1);
		move->extent[i] = x % 40 == 0 ? 0 : x % (move->dim_count < 3 ? 700 : 6) + 1;
		if (i + 1 == move->dim_count && x % 3 == 0)
			move->extent[i] = x % 400 + 1;
		if (i + 2 == move->dim_count && move->dim_count == 2)
			move->extent[i] = x % 150 + 1;
	}
	size_t src_start = 0, dst_start = 0;
	boxed->src_bytes = 1 + random_strides(&x, move, move->src_stride,
					      ws_dtype_bytes(move->from), x % 3 != 0, &src_start);
	boxed->dst_bytes = 1 + random_strides(&x, move, move->dst_stride, ws_dtype_bytes(move->to),
					      x % 5 != 0, &dst_start);
	if (move->dim_count > 0 && x % 11 == 0)
		move->src_stride[x % move->dim_count] = 0; /* broadcast */
	size_t entries = random_blocks(&x, move, &boxed->blocks);
	boxed->table_bytes = 1 + 4 * entries;
	boxed->src = mem_alloc(boxed->src_bytes);
	boxed->dst = mem_alloc(boxed->dst_bytes);
	boxed->table = mem_alloc(boxed->table_bytes);
	ck_assert(boxed->src != NULL && boxed->dst != NULL && boxed->table != NULL);
	if (move->from == WS_F32 || move->from == WS_BF16 || move->from == WS_F16)
		floats_fill(boxed->src + 1, (boxed->src_bytes - 1) / ws_dtype_bytes(move->from),
			    move->from, seed);
	else
		for (size_t i = 0; i < boxed->src_bytes; i++)
			boxed->src[i] = (uint8_t)mix64(x + i);
	memset(boxed->dst, CANARY, boxed->dst_bytes);
	move->src = boxed->src + 1 + src_start;
	move->dst = boxed->dst + 1 + dst_start;
	boxed->blocks.quant = &boxed->quant;
	boxed->blocks.table = boxed->table + 1;
	if (move->kind != MOVE_CAST && move->kind != MOVE_RAISE)
		move->blocks = &boxed->blocks;
	fill_table(boxed, seed, entries);
}

void boxed_release(struct boxed *boxed)
{
	mem_free(boxed->src);
	mem_free(boxed->dst);
	mem_free(boxed->table);
}

uint8_t *boxed_written(struct boxed *boxed, size_t *bytes_out)
{
	bool table = boxed->move.kind == MOVE_MAXIMA;
	*bytes_out = table ? boxed->table_bytes : boxed->dst_bytes;
	return table ? boxed->table : boxed->dst;
}

/* ---------------------------------------------------------------- levels */
static enum convert_level level_tested;

/* Does it by the plain C and by the level, each from the same beginning. */
static void compare_levels(const struct move *move, void *written, size_t bytes, const char *what,
			   uint64_t seed)
{
	uint8_t *before = mem_alloc(bytes), *plain = mem_alloc(bytes);
	ck_assert(before != NULL && plain != NULL);
	memcpy(before, written, bytes);
	ck_assert(convert_level_set(CONVERT_C));
	convert_move(move);
	memcpy(plain, written, bytes);
	memcpy(written, before, bytes);
	ck_assert(convert_level_set(level_tested));
	convert_move(move);
	for (size_t i = 0; i < bytes; i++)
		must(plain[i] == ((uint8_t *)written)[i],
		     "%s: seed %llu, kind %d, %s to %s, byte %zu of %zu: %02x, plain %02x", what,
		     (unsigned long long)seed, move->kind, ws_dtype_name(move->from),
		     ws_dtype_name(move->to), i, bytes, ((uint8_t *)written)[i], plain[i]);
	mem_free(before);
	mem_free(plain);
}

START_TEST(any_move_gives_the_bits_of_the_plain_c)
{
	for (uint64_t round = 0; round < 60; round++) {
		struct boxed boxed;
		uint64_t seed = (uint64_t)_i * 60 + round;
		size_t bytes;
		ck_assert(convert_level_set(CONVERT_C));
		boxed_make(&boxed, seed);
		uint8_t *written = boxed_written(&boxed, &bytes);
		compare_levels(&boxed.move, written, bytes, "box", seed);
		boxed_release(&boxed);
	}
}
END_TEST

/* One row: all casts of it, its maximum, its codes under divisors of every kind. */
static void compare_row(const void *src, enum ws_dtype from, size_t count, uint64_t seed)
{
	static const enum ws_dtype floats[] = {WS_F32, WS_BF16, WS_F16};
	static const uint32_t maxima[] = {0x43e00000, 0x3f812345, 0x7f7fffff, 0,
					  0x00000007, 0x7f800000, 0x7fc00000, 0x47600000};
	struct quant quant = quant_random(seed);
	uint32_t table = maxima[seed % ARRAY_SIZE(maxima)];
	struct blocks blocks = {.quant = &quant, .table = &table, .each = {UINT64_MAX}};
	struct move move = {.src = src, .dim_count = 1, .extent = {count}, .from = from};
	move.src_stride[0] = (int64_t)ws_dtype_bytes(from);
	move.dst = mem_alloc(count * 4);
	for (size_t i = 0; i < ARRAY_SIZE(floats); i++) {
		move.to = floats[i];
		move.dst_stride[0] = (int64_t)ws_dtype_bytes(move.to);
		compare_levels(&move, move.dst, count * 4, "row", seed);
	}
	move.blocks = &blocks;
	move.kind = MOVE_QUANTIZE;
	move.to = quant.code;
	move.dst_stride[0] = 1;
	compare_levels(&move, move.dst, count, "row", seed);
	move.kind = MOVE_MAXIMA;
	table = 0;
	compare_levels(&move, &table, sizeof(table), "row", seed);
	mem_free(move.dst);
}

START_TEST(every_narrow_float_and_code_is_converted_alike)
{
	static uint16_t narrow[65536];
	static uint8_t codes[256];
	static float values[256];
	for (uint32_t i = 0; i < ARRAY_SIZE(narrow); i++)
		narrow[i] = (uint16_t)i;
	for (uint64_t seed = 0; seed < 24; seed++) {
		compare_row(narrow, WS_BF16, ARRAY_SIZE(narrow), seed);
		compare_row(narrow, WS_F16, ARRAY_SIZE(narrow), seed);
	}
	for (uint32_t i = 0; i < ARRAY_SIZE(codes); i++)
		codes[i] = (uint8_t)i;
	for (uint32_t i = 0; i < 64; i++) {
		static const enum ws_dtype floats[] = {WS_F32, WS_BF16, WS_F16};
		struct quant quant = {.code = i % 2 == 0 ? WS_F8_E4M3 : WS_F8_E5M2,
				      .scale = WS_F32};
		uint32_t scale = i < 8 ? i << 28 | 0x00400001 : (uint32_t)mix64(i);
		struct blocks blocks = {.quant = &quant, .table = &scale, .each = {UINT64_MAX}};
		struct move move = {.kind = MOVE_DEQUANTIZE,
				    .blocks = &blocks,
				    .src = codes,
				    .dst = values,
				    .dim_count = 1,
				    .extent = {256},
				    .src_stride = {1},
				    .from = quant.code,
				    .to = floats[i % 3]};
		move.dst_stride[0] = (int64_t)ws_dtype_bytes(move.to);
		compare_levels(&move, values, sizeof(values), "codes", i);
	}
}
END_TEST

/* Around every bf16, and around its half way to the next: where codes and casts are decided. */
START_TEST(f32_around_every_narrow_value_is_converted_alike)
{
	static uint32_t wide[6 * 8192];
	for (uint32_t i = 0; i < ARRAY_SIZE(wide); i++)
		wide[i] = ((uint32_t)_i * 8192 + i / 6) * 0x10000 + i % 3 - 1 + i / 3 % 2 * 0x8000;
	for (uint64_t seed = 0; seed < 8; seed++)
		compare_row(wide, WS_F32, ARRAY_SIZE(wide), seed + 8 * (uint64_t)_i);
}
END_TEST

Suite *level_suite(enum convert_level level)
{
	if (!convert_level_set(level)) {
		printf("this CPU has no %s\n", convert_level_name(level));
		return NULL;
	}
	level_tested = level;
	Suite *s = suite_create(convert_level_name(level));
	TCase *tcase = tcase_create("against the plain C");
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, any_move_gives_the_bits_of_the_plain_c, 0, 20);
	tcase_add_test(tcase, every_narrow_float_and_code_is_converted_alike);
	tcase_add_loop_test(tcase, f32_around_every_narrow_value_is_converted_alike, 0, 8);
	suite_add_tcase(s, tcase);
	return s;
}
