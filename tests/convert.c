/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Box copies against an element-by-element copy, and casts against independent arithmetic:
 * exact rational rounding in double, and the compiler's own _Float16 where it has one.
 */
#include "lib/convert/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/convert_world.h"

#define CANARY 0xa5

/* ---------------------------------------------------------------- casts, one at a time */
static uint32_t cast(enum ws_dtype from, enum ws_dtype to, uint32_t bits)
{
	return move_one(MOVE_CAST, NULL, from, to, bits);
}

/* A narrow float's value from its fields, by the definition of IEEE 754. */
static double value_of(uint32_t bits, int exponent_bits, int fraction_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
	int exponent = (int)(bits >> fraction_bits) & top;
	double fraction = bits & ((1u << fraction_bits) - 1);
	double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
	if (exponent == top)
		return fraction == 0 ? sign * INFINITY : NAN;
	if (exponent == 0)
		return sign * ldexp(fraction, 1 - bias - fraction_bits);
	return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/* Rounds to the narrow float by scaling to units of its last place, with rint's ties to even. */
static uint32_t round_to(double value, int exponent_bits, int fraction_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
	uint32_t sign = (signbit(value) ? 1u : 0) << (exponent_bits + fraction_bits);
	double size = fabs(value);
	int exponent = 0;
	if (isinf(size) || size == 0)
		return sign | (size == 0 ? 0 : (uint32_t)top << fraction_bits);
	frexp(size, &exponent); /* size = f * 2^exponent, f in [0.5, 1) */
	int place = MAX(exponent - 1, 1 - bias) - fraction_bits;
	uint64_t units = (uint64_t)rint(ldexp(size, -place));
	/* Adding the exponent's field lets a carry out of the fraction raise it. */
	uint64_t field = (uint64_t)(MAX(exponent - 1, 1 - bias) + bias - 1);
	uint64_t result = (field << fraction_bits) + units;
	return sign | (uint32_t)MIN(result, (uint64_t)top << fraction_bits);
}

START_TEST(every_bf16_and_f16_goes_to_f32_and_back)
{
	for (uint32_t i = 0; i < 65536; i++) {
		uint32_t b = cast(WS_BF16, WS_F32, i), h = cast(WS_F16, WS_F32, i);
		double want_b = value_of(i, 8, 7), want_h = value_of(i, 5, 10);
		must(isnan(want_b) ? isnan(float_of(b)) : bits_of((float)want_b) == b, "%04x", i);
		must(isnan(want_h) ? isnan(float_of(h)) : bits_of((float)want_h) == h, "%04x", i);
		/* A NaN keeps its sign and payload but becomes quiet. */
		must(cast(WS_F32, WS_BF16, b) == (isnan(want_b) ? i | 0x40 : i), "%04x", i);
		must(cast(WS_F32, WS_F16, h) == (isnan(want_h) ? i | 0x200 : i), "%04x", i);
		must(!isnan(want_b) || (b & 0x400000) != 0, "%04x", i);
		must(!isnan(want_h) || (h & 0x400000) != 0, "%04x", i);
		/* The same dtype is a bit copy. */
		must(cast(WS_BF16, WS_BF16, i) == i && cast(WS_F16, WS_F16, i) == i, "%04x", i);
	}
}
END_TEST

static void check_f32(uint32_t bits)
{
	float value = float_of(bits);
	uint32_t b = cast(WS_F32, WS_BF16, bits), h = cast(WS_F32, WS_F16, bits);
	if (isnan(value)) {
		must(b == (bits >> 16 | 0x40), "%08x", bits);
		must(h == ((bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff)), "%08x", bits);
		return;
	}
	must(b == round_to(value, 8, 7), "%08x gives %04x", bits, b);
	must(h == round_to(value, 5, 10), "%08x gives %04x", bits, h);
#ifdef __FLT16_MANT_DIG__
	_Float16 theirs = (_Float16)value;
	uint16_t theirs_bits;
	memcpy(&theirs_bits, &theirs, sizeof(theirs_bits));
	must(h == theirs_bits, "%08x gives %04x", bits, h);
#endif
}

/* Around every narrow value, and half way to the next: where rounding is decided. */
START_TEST(f32_rounds_to_nearest_even_around_every_narrow_value)
{
	for (uint32_t i = (uint32_t)_i; i < 65536; i += 4) {
		uint32_t b = cast(WS_BF16, WS_F32, i), h = cast(WS_F16, WS_F32, i);
		for (uint32_t d = 0; d < 3; d++) {
			check_f32(b + d - 1);
			check_f32(b + 0x8000 + d - 1);
			check_f32(h + d - 1);
			check_f32(h + 0x1000 + d - 1);
			/* Half way between two subnormals of f16. */
			if (i < 2048)
				check_f32(bits_of(ldexpf((float)i + 0.5f, -24)) + d - 1);
		}
	}
}
END_TEST

START_TEST(f32_rounds_to_nearest_even_anywhere)
{
	for (uint32_t i = 0; i < 250000; i++)
		check_f32((uint32_t)mix64((uint64_t)_i * 250000 + i + 1));
}
END_TEST

START_TEST(edges_are_as_written_down)
{
	static const struct {
		uint32_t f32;
		uint16_t bf16, f16;
	} edges[] = {
		{0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000}, /* zeroes */
		{0x7f800000, 0x7f80, 0x7c00}, {0xff800000, 0xff80, 0xfc00}, /* infinities */
		{0x7f7fffff, 0x7f80, 0x7c00}, /* the largest f32 overflows both */
		{0x477fefff, 0x4780, 0x7bff}, /* just below 65520 is 65504 */
		{0x477ff000, 0x4780, 0x7c00}, /* 65520 is infinite */
		{0x33000000, 0x3300, 0x0000}, /* half of the smallest f16: to even, 0 */
		{0x33000001, 0x3300, 0x0001}, /* a little more */
		{0x387fc000, 0x3880, 0x03ff}, /* the largest subnormal f16 */
		{0x387fe000, 0x3880, 0x0400}, /* half way up to the smallest normal */
		{0x3f808000, 0x3f80, 0x3c04}, /* 1 + 2^-8: to even, down */
		{0x3f818000, 0x3f82, 0x3c0c}, /* 1 + 3 * 2^-8: to even, up */
		{0x7f800001, 0x7fc0, 0x7e00}, /* a signalling NaN */
		{0xffffffff, 0xffff, 0xffff}, {0x00000001, 0x0000, 0x0000},
	};
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++) {
		ck_assert_uint_eq(cast(WS_F32, WS_BF16, edges[i].f32), edges[i].bf16);
		ck_assert_uint_eq(cast(WS_F32, WS_F16, edges[i].f32), edges[i].f16);
	}
}
END_TEST

START_TEST(bf16_and_f16_round_once)
{
	for (uint32_t i = 0; i < 65536; i++) {
		uint32_t h = cast(WS_BF16, WS_F16, i), b = cast(WS_F16, WS_BF16, i);
		double from_b = value_of(i, 8, 7), from_h = value_of(i, 5, 10);
		must(isnan(from_b) ? isnan(value_of(h, 5, 10)) : h == round_to(from_b, 5, 10),
		     "%04x", i);
		must(isnan(from_h) ? isnan(value_of(b, 8, 7)) : b == round_to(from_h, 8, 7), "%04x",
		     i);
	}
}
END_TEST

START_TEST(only_these_dtypes_can_be_converted)
{
	for (int from = WS_NONE; from < WS_DTYPE_COUNT; from++) {
		for (int to = WS_NONE; to < WS_DTYPE_COUNT; to++) {
			bool floats = (from == WS_F32 || from == WS_BF16 || from == WS_F16) &&
				      (to == WS_F32 || to == WS_BF16 || to == WS_F16);
			bool want = floats || (from == to && from != WS_NONE);
			struct move move = {.from = (enum ws_dtype)from, .to = (enum ws_dtype)to};
			ck_assert(convert_can(&move) == want);
		}
	}
}
END_TEST

/* ---------------------------------------------------------------- boxes */
/* Element by element, each by a move of its own without dims; order is never visible, but that
 * codes come after their blocks' maxima. */
static void move_slowly(const struct move *move)
{
	uint64_t count = move_element_count(move);
	if (move->kind == MOVE_QUANTIZE_WHOLE) {
		struct move half = *move;
		half.kind = MOVE_MAXIMA;
		move_slowly(&half);
		half.kind = MOVE_QUANTIZE;
		move_slowly(&half);
		return;
	}
	for (uint64_t i = 0; i < count; i++) {
		uint64_t rest = i;
		struct move one = *move;
		struct blocks blocks = {0};
		int64_t entry = 0;
		one.dim_count = 0;
		for (uint32_t d = move->dim_count; d-- > 0;) {
			int64_t at = (int64_t)(rest % move->extent[d]);
			rest /= move->extent[d];
			one.src = (const uint8_t *)one.src + at * move->src_stride[d];
			one.dst = (uint8_t *)one.dst + at * move->dst_stride[d];
			if (move->blocks != NULL)
				entry += (int64_t)((move->blocks->first[d] + (uint64_t)at) /
						   move->blocks->each[d]) *
					 move->blocks->stride[d];
		}
		if (move->blocks != NULL) {
			bool is_scale = move->kind == MOVE_DEQUANTIZE;
			enum ws_dtype dtype = is_scale ? move->blocks->quant->scale : WS_U32;
			blocks.quant = move->blocks->quant;
			blocks.table = (uint8_t *)move->blocks->table +
				       entry * (int64_t)ws_dtype_bytes(dtype);
			one.blocks = &blocks;
		}
		convert_move(&one);
	}
}

START_TEST(any_box_equals_its_elements_one_by_one)
{
	for (int round = 0; round < 60; round++) {
		struct boxed fast, slow;
		size_t bytes;
		uint64_t seed = (uint64_t)_i * 60 + (uint64_t)round;
		boxed_make(&fast, seed);
		boxed_make(&slow, seed);
		uint64_t allocations = mem_alloc_count();
		convert_move(&fast.move);
		ck_assert_uint_eq(mem_alloc_count(), allocations);
		move_slowly(&slow.move);
		uint8_t *written = boxed_written(&fast, &bytes);
		must(memcmp(written, boxed_written(&slow, &bytes), bytes) == 0 &&
			     memcmp(fast.table, slow.table, fast.table_bytes) == 0,
		     "seed %llu, kind %d, %s to %s", (unsigned long long)seed, fast.move.kind,
		     ws_dtype_name(fast.move.from), ws_dtype_name(fast.move.to));
		boxed_release(&fast);
		boxed_release(&slow);
	}
}
END_TEST

START_TEST(a_transposition_is_a_box)
{
	uint16_t src[6] = {1, 2, 3, 4, 5, 6}, dst[6] = {0};
	static const uint16_t want[6] = {1, 4, 2, 5, 3, 6};
	struct move move = {.src = src,
			    .dst = dst,
			    .dim_count = 2,
			    .extent = {2, 3},
			    .src_stride = {6, 2},
			    .dst_stride = {2, 4},
			    .from = WS_U16,
			    .to = WS_U16};
	convert_move(&move);
	ck_assert_mem_eq(dst, want, sizeof(want));
}
END_TEST

START_TEST(nothing_and_one_element_are_boxes)
{
	uint8_t src = 7, dst = CANARY;
	struct move move = {.src = &src,
			    .dst = &dst,
			    .dim_count = 2,
			    .extent = {1u << 30, 0},
			    .from = WS_U8,
			    .to = WS_U8};
	ck_assert_uint_eq(move_element_count(&move), 0);
	convert_move(&move);
	ck_assert_uint_eq(dst, CANARY);
	move.dim_count = 0;
	ck_assert_uint_eq(move_element_count(&move), 1);
	convert_move(&move);
	ck_assert_uint_eq(dst, 7);
}
END_TEST

START_TEST(the_data_path_allocates_nothing)
{
	static float src[3000];
	static uint16_t dst[3000];
	struct move move = {.src = src,
			    .dst = dst,
			    .dim_count = 2,
			    .extent = {30, 100},
			    .src_stride = {400, 4},
			    .dst_stride = {2, 60},
			    .from = WS_F32,
			    .to = WS_BF16};
	mem_forbid();
	convert_move(&move);
	mem_allow();
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("convert");
	TCase *tcase = tcase_create("convert");
	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, every_bf16_and_f16_goes_to_f32_and_back);
	tcase_add_loop_test(tcase, f32_rounds_to_nearest_even_around_every_narrow_value, 0, 4);
	tcase_add_loop_test(tcase, f32_rounds_to_nearest_even_anywhere, 0, 4);
	tcase_add_test(tcase, edges_are_as_written_down);
	tcase_add_test(tcase, bf16_and_f16_round_once);
	tcase_add_test(tcase, only_these_dtypes_can_be_converted);
	tcase_add_loop_test(tcase, any_box_equals_its_elements_one_by_one, 0, 20);
	tcase_add_test(tcase, a_transposition_is_a_box);
	tcase_add_test(tcase, nothing_and_one_element_are_boxes);
	tcase_add_test(tcase, the_data_path_allocates_nothing);
	suite_add_tcase(all, tcase);
	return all;
}
