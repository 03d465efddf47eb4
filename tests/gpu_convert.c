/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of moves on a real GPU against convert_move, bit by bit.
 */
#include <errno.h>
#include <string.h>

#include "tests/gpu_arena_world.h"

static struct ws_error error;

/* ---------------------------------------------------------------- moves of any kind */
/* A move on the GPU's copies of its memory. */
struct twin {
	struct boxed boxed;
	struct move move;
	struct blocks blocks;
	size_t src, dst, table;
	uint64_t seed;
};

static void twin_make(struct twin *twin, struct gpu_arena *arena, uint64_t seed)
{
	struct boxed *boxed = &twin->boxed;
	const struct move *move = &boxed->move;
	boxed_make(boxed, seed);
	twin->seed = seed;
	/* Everything in it begins at its byte 1. */
	twin->src = arena_put(arena, boxed->src, boxed->src_bytes, seed % 3 == 0 ? 0 : 15);
	twin->dst = arena_put(arena, boxed->dst, boxed->dst_bytes, seed % 5 == 0 ? 0 : 15);
	twin->table = arena_put(arena, boxed->table, boxed->table_bytes, 15);
	twin->move = *move;
	twin->move.src = arena->gpu + twin->src + ((const uint8_t *)move->src - boxed->src);
	twin->move.dst = arena->gpu + twin->dst + ((uint8_t *)move->dst - boxed->dst);
	twin->blocks = boxed->blocks;
	twin->blocks.table = arena->gpu + twin->table + 1;
	if (move->blocks != NULL)
		twin->move.blocks = &twin->blocks;
}

static bool raises_odd_addresses(const struct move *move)
{
	uintptr_t all = (uintptr_t)move->dst;
	for (uint32_t d = 0; d < move->dim_count; d++)
		all |= (uintptr_t)move->dst_stride[d];
	return move->kind == MOVE_RAISE && all % 4 != 0;
}

/* Moves of so many seeds in one batch; those with more elements are left out. */
static void compare_moves(uint64_t first_seed, uint32_t count, uint64_t element_max)
{
	struct gpu_arena arena;
	struct twin *twins = mem_alloc(count * sizeof(*twins));
	uint32_t used = 0, kinds = 0;
	ck_assert_ptr_nonnull(twins);
	arena_open(&arena, count);
	for (uint32_t i = 0; i < count; i++) {
		struct twin *twin = &twins[used];
		size_t before = arena.used;
		twin_make(twin, &arena, first_seed + i);
		if (raises_odd_addresses(&twin->move))
			ck_fails(device_batch_add(arena.batch, &twin->move, &error), -EINVAL,
				 error);
		bool torn =
			twin->move.kind == MOVE_QUANTIZE_WHOLE && !device_can_whole(&twin->move);
		if (torn && move_element_count(&twin->move) > 0)
			ck_fails(device_batch_add(arena.batch, &twin->move, &error), -ENOTSUP,
				 error);
		if (raises_odd_addresses(&twin->move) || torn ||
		    move_element_count(&twin->move) > element_max) {
			boxed_release(&twin->boxed);
			arena.used = before;
			continue;
		}
		arena_add(&arena, &twin->move);
		kinds |= 1u << twin->move.kind;
		used++;
	}
	arena_upload(&arena);
	arena_run(&arena);
	arena_download(&arena);
	must((kinds & 0x3f) == 0x3f && used > count / 2, "%u of %u moves, kinds %x", used, count,
	     kinds);
	for (uint32_t i = 0; i < used; i++) {
		struct boxed *boxed = &twins[i].boxed;
		convert_move(&boxed->move);
		arena_compare(&arena, twins[i].src, boxed->src, boxed->src_bytes, "src",
			      twins[i].seed);
		arena_compare(&arena, twins[i].dst, boxed->dst, boxed->dst_bytes, "dst",
			      twins[i].seed);
		arena_compare(&arena, twins[i].table, boxed->table, boxed->table_bytes, "table",
			      twins[i].seed);
		boxed_release(boxed);
	}
	mem_free(twins);
	arena_close(&arena);
}

START_TEST(any_move_gives_the_bits_of_the_host)
{
	compare_moves((uint64_t)_i * 300, 300, UINT64_MAX);
}
END_TEST

START_TEST(thousands_of_moves_in_one_batch_give_the_bits_of_the_host)
{
	compare_moves(100000, 8000, 3000);
}
END_TEST

/* All casts of a row, its maximum, and its codes under some schemes and maxima. */
static void compare_row(struct gpu_arena *arena, const void *src, enum ws_dtype from, size_t count,
			uint64_t seed)
{
	static const enum ws_dtype to[] = {WS_F32, WS_BF16, WS_F16, WS_U32, WS_F8_E4M3};
	static const uint32_t maxima[] = {0x43e00000, 0x3f812345, 0x7f7fffff, 0,
					  0x00000007, 0x7f800000, 0x7fc00000, 0x47600000};
	struct quant quant = quant_random(seed);
	uint32_t table[2] = {maxima[seed % ARRAY_SIZE(maxima)], 0};
	uint8_t *want = mem_alloc(count * 4);
	struct blocks blocks = {.quant = &quant, .each = {UINT64_MAX}};
	ck_assert_ptr_nonnull(want);
	size_t src_at = arena_put(arena, src, count * ws_dtype_bytes(from), 0);
	size_t table_at = arena_put(arena, table, sizeof(table), 0), dst_at[ARRAY_SIZE(to)];
	for (size_t i = 0; i < ARRAY_SIZE(to); i++)
		dst_at[i] = arena_put(arena, want, count * 4, 0);
	for (int host = 0; host < 2; host++) {
		uint8_t *base = host ? arena->host : arena->gpu;
		if (host) {
			arena_upload(arena);
			arena_run(arena);
			arena_download(arena);
		}
		for (size_t i = 0; i < ARRAY_SIZE(to); i++) {
			struct move move = {.kind = i == 3   ? MOVE_MAXIMA
						    : i == 4 ? MOVE_QUANTIZE
							     : MOVE_CAST,
					    .blocks = i < 3 ? NULL : &blocks,
					    .src = base + src_at,
					    .dst = base + dst_at[i],
					    .dim_count = 1,
					    .extent = {count},
					    .from = from,
					    .to = i == 4 ? quant.code : to[i]};
			blocks.table = base + table_at + (i == 3 ? 4 : 0);
			move.src_stride[0] = (int64_t)ws_dtype_bytes(from);
			move.dst_stride[0] = (int64_t)ws_dtype_bytes(move.to);
			if (host)
				convert_move(&move);
			else
				arena_add(arena, &move);
		}
	}
	arena_compare(arena, src_at, arena->host + src_at, arena->used - src_at, "row", seed);
	mem_free(want);
}

START_TEST(every_narrow_float_is_converted_alike)
{
	static uint16_t narrow[65536];
	struct gpu_arena arena;
	for (uint32_t i = 0; i < ARRAY_SIZE(narrow); i++)
		narrow[i] = (uint16_t)i;
	arena_open(&arena, 16);
	for (uint64_t seed = 0; seed < (arena_is_watched() ? 3 : 24); seed++) {
		arena.used = 0;
		compare_row(&arena, narrow, WS_BF16, ARRAY_SIZE(narrow), seed);
		compare_row(&arena, narrow, WS_F16, ARRAY_SIZE(narrow), seed);
	}
	arena_close(&arena);
}
END_TEST

/* Around every bf16, and around its half way to the next: where codes and casts are decided. */
START_TEST(f32_around_every_narrow_value_is_converted_alike)
{
	static uint32_t wide[6 * 65536];
	struct gpu_arena arena;
	for (uint32_t i = 0; i < ARRAY_SIZE(wide); i++)
		wide[i] = i / 6 * 0x10000 + i % 3 - 1 + i / 3 % 2 * 0x8000;
	arena_open(&arena, 16);
	for (uint64_t seed = 0; seed < (arena_is_watched() ? 3 : 24); seed++) {
		arena.used = 0;
		compare_row(&arena, wide, WS_F32, ARRAY_SIZE(wide), seed);
	}
	arena_close(&arena);
}
END_TEST

/* ---------------------------------------------------------------- the batch itself */
START_TEST(a_batch_can_be_launched_again_and_is_full_at_its_room)
{
	struct gpu_arena arena;
	uint64_t value = 1;
	arena_open(&arena, 3);
	size_t from = arena_put(&arena, &value, 8, 0), to = arena_put(&arena, &value, 8, 0);
	struct move move = {.src = arena.gpu + from, .from = WS_I64, .to = WS_I64};
	for (uint32_t i = 0; i < 3; i++) {
		move.dst = arena.gpu + to + 16 * i;
		arena.used = to + 16 * i + 16;
		arena_add(&arena, &move);
	}
	ck_fails(device_batch_add(arena.batch, &move, &error), -ENOSPC, error);
	for (value = 5; value < 8; value++) {
		memcpy(arena.host + from, &value, 8);
		arena_upload(&arena);
		ck_ok(device_batch_launch(arena.batch, arena.stream, &error), error);
		ck_ok(cuda_stream_wait(arena.stream, &error), error);
		ck_assert_int_eq(device_batch_done(arena.batch, &error), 0);
		arena_download(&arena);
		for (uint32_t i = 0; i < 3; i++)
			arena_compare(&arena, to + 16 * i, &value, 8, "copy", value);
	}
	device_batch_clear(arena.batch);
	arena_run(&arena);
	move.extent[0] = 0;
	move.dim_count = 1;
	arena_add(&arena, &move);
	move.to = WS_F32;
	ck_fails(device_batch_add(arena.batch, &move, &error), -EINVAL, error);
	arena_close(&arena);
}
END_TEST

#define LARGE ((UINT64_C(1) << 31) + 4096) /* elements, which are cut in two */

START_TEST(a_box_of_more_than_two_to_the_31_elements_is_cut)
{
	static const uint64_t places[] = {0, LARGE / 2 - 64, LARGE - 128};
	struct quant quant = {.code = WS_F8_E4M3, .scale = WS_F32, .reciprocal = true};
	uint8_t want[128], got[128], scale[4];
	uint16_t values[128];
	uint32_t maximum = 0;
	void *src, *dst;
	struct gpu_arena arena;
	if (cuda_alloc(0, LARGE * 2, &src, &error) != 0 || cuda_alloc(0, LARGE, &dst, &error) != 0)
		ck_abort_msg("6.5 GB of a GPU's memory are needed: %s", error.text);
	arena_open(&arena, 4);
	size_t table = arena_put(&arena, &maximum, 4, 0);
	arena_upload(&arena);
	ck_ok(cuda_fill(src, 0, LARGE * 2, NULL, &error), error);
	for (uint32_t i = 0; i < 3; i++) {
		floats_fill(values, 128, WS_BF16, 4);
		gpu_put((uint16_t *)src + places[i], values, sizeof(values));
	}
	struct blocks blocks = {.quant = &quant, .table = arena.gpu + table, .each = {UINT64_MAX}};
	struct move move = {.kind = MOVE_MAXIMA,
			    .blocks = &blocks,
			    .src = src,
			    .dst = dst,
			    .dim_count = 1,
			    .extent = {LARGE},
			    .src_stride = {2},
			    .dst_stride = {1},
			    .from = WS_BF16,
			    .to = WS_F8_E4M3};
	arena_add(&arena, &move);
	arena_run(&arena);
	move.kind = MOVE_QUANTIZE;
	arena_add(&arena, &move);
	arena_run(&arena);
	blocks.table = &maximum;
	move.src = values;
	move.dst = want;
	move.extent[0] = 128;
	move.kind = MOVE_MAXIMA;
	convert_move(&move);
	move.kind = MOVE_QUANTIZE;
	convert_move(&move);
	gpu_get(scale, arena.gpu + table, 4);
	ck_assert_mem_eq(scale, &maximum, 4);
	for (uint32_t i = 0; i < 3; i++) {
		gpu_get(got, (uint8_t *)dst + places[i], sizeof(got));
		ck_assert_mem_eq(got, want, sizeof(want));
	}
	arena_close(&arena);
	cuda_free(0, src);
	cuda_free(0, dst);
}
END_TEST

/* Two blocks longer than a task can be, of which the box has an end and a beginning: cut between
 * them, what is left lies in one block. */
START_TEST(a_box_at_the_edge_of_blocks_of_2_to_the_33_elements_is_cut_once)
{
	enum { COUNT = 1000, BEFORE = 300 };
	const uint64_t each = UINT64_C(1) << 33;
	struct quant quant = {.code = WS_F8_E4M3, .scale = WS_F32, .reciprocal = true};
	struct blocks blocks = {.quant = &quant,
				.each = {each},
				.first = {(uint64_t)_i * each + each - BEFORE},
				.stride = {1}};
	uint16_t values[COUNT];
	uint32_t table[3] = {0};
	uint8_t codes[COUNT] = {0};
	struct gpu_arena arena;
	arena_open(&arena, 4);
	floats_fill(values, COUNT, WS_BF16, 7 + (uint64_t)_i);
	size_t from = arena_put(&arena, values, sizeof(values), 0);
	size_t maxima = arena_put(&arena, table, sizeof(table), 4);
	size_t to = arena_put(&arena, codes, sizeof(codes), 1);
	arena_upload(&arena);
	struct move move = {.kind = MOVE_MAXIMA,
			    .blocks = &blocks,
			    .dim_count = 1,
			    .extent = {COUNT},
			    .src_stride = {2},
			    .dst_stride = {1},
			    .from = WS_BF16,
			    .to = WS_F8_E4M3};
	for (int pass = 0; pass < 2; pass++) {
		move.kind = pass == 0 ? MOVE_MAXIMA : MOVE_QUANTIZE;
		blocks.table = arena.gpu + maxima;
		move.src = arena.gpu + from;
		move.dst = arena.gpu + to;
		arena_add(&arena, &move);
		arena_run(&arena);
		blocks.table = table;
		move.src = values;
		move.dst = codes;
		convert_move(&move);
	}
	arena_download(&arena);
	arena_compare(&arena, maxima, table, sizeof(table), "maxima", (uint64_t)_i);
	arena_compare(&arena, to, codes, sizeof(codes), "codes", (uint64_t)_i);
	arena_close(&arena);
}
END_TEST

Suite *suite(void)
{
	if (!gpus_are_there(1))
		return NULL;
	Suite *s = suite_create("moves on a GPU");
	TCase *tcase = tcase_create("against the host");
	tcase_set_timeout(tcase, 300);
	suite_add_tcase(s, tcase);
	tcase_add_loop_test(tcase, any_move_gives_the_bits_of_the_host, 0,
			    arena_is_watched() ? 1 : 8);
	tcase_add_test(tcase, thousands_of_moves_in_one_batch_give_the_bits_of_the_host);
	tcase_add_test(tcase, every_narrow_float_is_converted_alike);
	tcase_add_test(tcase, f32_around_every_narrow_value_is_converted_alike);
	tcase_add_test(tcase, a_batch_can_be_launched_again_and_is_full_at_its_room);
	tcase_add_loop_test(tcase, a_box_at_the_edge_of_blocks_of_2_to_the_33_elements_is_cut_once,
			    0, 2);
	if (!arena_is_watched())
		tcase_add_test(tcase, a_box_of_more_than_two_to_the_31_elements_is_cut);
	return s;
}
