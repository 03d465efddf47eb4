/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that a real GPU quantizes, by shards and at once, against the host, bit by bit.  With
 * WS_CONVERT_OUT a folder, only writes what the GPU made of tensors there, for convert_reference.py
 * and gpu_reference.py.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/convert_tensor_world.h"
#include "tests/gpu_arena_world.h"

static struct ws_error error;
static struct gpu_arena arena; /* of the test */

/* ---------------------------------------------------------------- tensors */
static void add(const struct move *move)
{
	arena_add(&arena, move);
}

/* The same tensor with the GPU's addresses: its moves are added to the arena's batch. */
struct tensor_twin {
	struct tensor host, gpu;
	size_t codes, scales, table, values;
};

static void tensor_twin_make(struct tensor_twin *twin, uint64_t seed)
{
	struct tensor *host = &twin->host;
	tensor_make(host, seed);
	uint64_t count = host->rows * host->columns, entries = host->grid[0] * host->grid[1];
	size_t floats = arena_put(&arena, host->floats, count * ws_dtype_bytes(host->dtype), 0);
	twin->codes = arena_put(&arena, host->codes, count, 0);
	twin->scales = arena_put(&arena, host->scales, entries * 4, 0);
	twin->table = arena_put(&arena, host->table, SHARDS * entries * 4, 0);
	twin->values = arena_put(&arena, host->values, count * 2, 0);
	memset(arena.host + twin->table, 0, SHARDS * entries * 4);
	twin->gpu = *host;
	twin->gpu.carry_out = add;
	twin->gpu.floats = arena.gpu + floats;
	twin->gpu.codes = arena.gpu + twin->codes;
	twin->gpu.scales = arena.gpu + twin->scales;
	twin->gpu.table = (uint32_t *)(void *)(arena.gpu + twin->table);
	twin->gpu.values = (uint16_t *)(void *)(arena.gpu + twin->values);
}

static void compare_tensor(const struct tensor_twin *twin, uint64_t seed)
{
	struct tensor host = twin->host;
	uint64_t count = host.rows * host.columns, entries = host.grid[0] * host.grid[1];
	tensor_quantize(&host);
	arena_compare(&arena, twin->scales, host.scales, entries * ws_dtype_bytes(host.quant.scale),
		      "scales", seed);
	arena_compare(&arena, twin->codes, host.codes, count, "codes", seed);
}

START_TEST(sixteen_shards_make_the_maxima_scales_and_codes_of_the_whole)
{
	struct tensor_twin twin;
	struct part parts[3];
	uint64_t seed = (uint64_t)_i;
	arena_open(&arena, SHARDS * SHARDS);
	tensor_twin_make(&twin, seed);
	struct tensor *gpu = &twin.gpu;
	uint64_t entries = gpu->grid[0] * gpu->grid[1];
	arena_upload(&arena);
	for (uint64_t shard = 0; shard < SHARDS; shard++) {
		uint32_t count = cut_shard(gpu, (uint32_t)_i % 3, shard, parts);
		for (uint32_t k = 0; k < count; k++)
			move_part(gpu, MOVE_MAXIMA, &parts[k], gpu->table + shard * entries);
	}
	arena_run(&arena);
	/* Everybody hears of all others at once, some of them raised meanwhile. */
	for (uint64_t i = 0; i < SHARDS * SHARDS; i++) {
		if (i / SHARDS != i % SHARDS)
			move_raise(gpu, gpu->table + i / SHARDS * entries,
				   gpu->table + i % SHARDS * entries);
	}
	arena_run(&arena);
	for (uint64_t shard = 0; shard < SHARDS; shard++) {
		uint32_t count = cut_shard(gpu, (uint32_t)_i % 3, shard, parts);
		for (uint32_t k = 0; k < count; k++)
			move_part(gpu, MOVE_QUANTIZE, &parts[k], gpu->table + shard * entries);
	}
	move_scales(gpu, gpu->table);
	arena_run(&arena);
	move_values(gpu);
	arena_run(&arena);
	arena_download(&arena);
	compare_tensor(&twin, seed);
	for (uint64_t shard = 0; shard < SHARDS; shard++)
		arena_compare(&arena, twin.table + shard * entries * 4, twin.host.table,
			      entries * 4, "maxima", seed);
	arena_compare(&arena, twin.values, twin.host.values, gpu->rows * gpu->columns * 2, "values",
		      seed);
	tensor_release(&twin.host);
	arena_close(&arena);
}
END_TEST

static const struct tensor *whole;
static bool whole_is_added;

/* What can't be done at once is only refused where that is so. */
static void add_whole(const struct move *move)
{
	int rc = device_batch_add(arena.batch, move, &error);
	uint64_t rows = MIN(whole->block[0], whole->rows);
	uint64_t columns = MIN(whole->block[1], whole->columns);
	whole_is_added = whole->columns % 8 == 0 && rows * columns <= 16384;
	must(rc == (whole_is_added ? 0 : -ENOTSUP), "%d: %s", rc, error.text);
	must(device_can_whole(move) == whole_is_added, "%d", rc);
}

static bool quantize_whole(const struct tensor *gpu)
{
	const struct part all = {.rows = gpu->rows, .columns = gpu->columns};
	struct tensor once = *gpu;
	whole = gpu;
	once.carry_out = add_whole;
	move_part(&once, MOVE_QUANTIZE_WHOLE, &all, gpu->table);
	return whole_is_added;
}

START_TEST(blocks_that_are_whole_are_quantized_at_once)
{
	static struct tensor_twin twins[60];
	bool done[ARRAY_SIZE(twins)];
	arena_open(&arena, ARRAY_SIZE(twins));
	for (uint32_t i = 0; i < ARRAY_SIZE(twins); i++) {
		tensor_twin_make(&twins[i], (uint64_t)_i * ARRAY_SIZE(twins) + i);
		done[i] = quantize_whole(&twins[i].gpu);
	}
	arena_upload(&arena);
	arena_run(&arena);
	for (uint32_t i = 0; i < ARRAY_SIZE(twins); i++)
		if (done[i])
			move_scales(&twins[i].gpu, twins[i].gpu.table);
	arena_run(&arena);
	arena_download(&arena);
	for (uint32_t i = 0; i < ARRAY_SIZE(twins); i++) {
		if (done[i])
			compare_tensor(&twins[i], (uint64_t)_i * ARRAY_SIZE(twins) + i);
		tensor_release(&twins[i].host);
	}
	arena_close(&arena);
}
END_TEST

#define EXPERTS	 6u
#define ROWS	 576u
#define COLUMNS	 640u
#define ELEMENTS (EXPERTS * ROWS * COLUMNS)

/* A move and what it borrows. */
struct expert_move {
	struct move move;
	struct blocks blocks;
};

/* The last block of a column, or of a row, may be shorter. */
static const uint32_t block_sizes[][2] = {{128, 128}, {96, 80}, {64, 200}, {1, 640}};

/* Experts of a stack, as an engine has them: its other half lies between them. */
struct experts {
	size_t floats, codes, table, scales; /* in the arena */
	uint32_t block[2], grid[2], entries;
};

static void experts_put(struct experts *experts, int block, uint64_t seed)
{
	uint8_t *zeros = mem_alloc(2 * ELEMENTS);
	uint16_t *values = mem_alloc(2 * ELEMENTS);
	ck_assert(zeros != NULL && values != NULL);
	memset(zeros, 0, 2 * ELEMENTS);
	floats_fill(values, ELEMENTS, WS_BF16, seed);
	memcpy(experts->block, block_sizes[block], sizeof(experts->block));
	experts->grid[0] = (ROWS + experts->block[0] - 1) / experts->block[0];
	experts->grid[1] = (COLUMNS + experts->block[1] - 1) / experts->block[1];
	experts->entries = experts->grid[0] * experts->grid[1];
	experts->floats = arena_put(&arena, values, 2 * ELEMENTS, 0);
	experts->codes = arena_put(&arena, zeros, 2 * ELEMENTS, 0);
	experts->table = arena_put(&arena, zeros, EXPERTS * experts->entries * 4, 0);
	experts->scales = arena_put(&arena, zeros, 2 * EXPERTS * experts->entries * 4, 0);
	mem_free(zeros);
	mem_free(values);
}

/* Maxima, codes, scales. */
static void expert_moves(const struct experts *experts, uint8_t *base, struct expert_move moves[3])
{
	static const struct quant quant = {
		.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4F, .reciprocal = true};
	int64_t entries = experts->entries;
	struct blocks blocks = {.quant = &quant,
				.table = base + experts->table,
				.each = {1, experts->block[0], experts->block[1]},
				.stride = {entries, experts->grid[1], 1}};
	struct move move = {.kind = MOVE_MAXIMA,
			    .src = base + experts->floats,
			    .dst = base + experts->codes,
			    .dim_count = 3,
			    .extent = {EXPERTS, ROWS, COLUMNS},
			    .src_stride = {ROWS * COLUMNS * 2, COLUMNS * 2, 2},
			    .dst_stride = {2 * ROWS * COLUMNS, COLUMNS, 1},
			    .from = WS_BF16,
			    .to = WS_F8_E4M3};
	for (uint32_t i = 0; i < 2; i++)
		moves[i] = (struct expert_move){.move = move, .blocks = blocks};
	moves[1].move.kind = MOVE_QUANTIZE;
	moves[2] = (struct expert_move){.blocks = blocks,
					.move = {.kind = MOVE_SCALE,
						 .src = base + experts->table,
						 .dst = base + experts->scales,
						 .dim_count = 2,
						 .extent = {EXPERTS, experts->entries},
						 .src_stride = {entries * 4, 4},
						 .dst_stride = {2 * entries * 4, 4},
						 .from = WS_U32,
						 .to = WS_F32}};
	for (uint32_t i = 0; i < 3; i++)
		moves[i].move.blocks = &moves[i].blocks;
}

START_TEST(stacked_experts_are_quantized_at_once_and_in_two_passes)
{
	struct experts experts;
	struct expert_move gpu[3], host[3];
	uint64_t seed = 4 + (uint64_t)_i;
	arena_open(&arena, 4);
	experts_put(&experts, _i / 2, seed);
	arena_upload(&arena);
	expert_moves(&experts, arena.gpu, gpu);
	expert_moves(&experts, arena.host, host);
	for (uint32_t i = 0; i < 3; i++)
		convert_move(&host[i].move);
	if (_i % 2 == 0) {
		gpu[1].move.kind = MOVE_QUANTIZE_WHOLE;
	} else {
		arena_add(&arena, &gpu[0].move);
		arena_run(&arena);
	}
	arena_add(&arena, &gpu[1].move);
	arena_run(&arena);
	arena_add(&arena, &gpu[2].move);
	arena_run(&arena);
	arena_download(&arena);
	arena_compare(&arena, 0, arena.host, arena.used, "experts", seed);
	arena_close(&arena);
}
END_TEST

/* ---------------------------------------------------------------- for the references */
START_TEST(tensors_and_what_the_gpu_made_of_them_are_written)
{
	const char *folder = getenv("WS_CONVERT_OUT");
	char path[512];
	snprintf(path, sizeof(path), "%s/tensors.txt", folder);
	FILE *list = fopen(path, "w");
	ck_assert_msg(list != NULL, "%s", path);
	arena_open(&arena, 4);
	for (uint64_t seed = 0; seed < 300; seed++) {
		struct tensor_twin twin;
		arena.used = 0;
		tensor_twin_make(&twin, seed);
		const struct tensor *host = &twin.host, *gpu = &twin.gpu;
		const struct part all = {.rows = host->rows, .columns = host->columns};
		uint64_t count = host->rows * host->columns;
		arena_upload(&arena);
		if (!quantize_whole(gpu)) {
			move_part(gpu, MOVE_MAXIMA, &all, gpu->table);
			arena_run(&arena);
			move_part(gpu, MOVE_QUANTIZE, &all, gpu->table);
		}
		arena_run(&arena);
		move_scales(gpu, gpu->table);
		arena_run(&arena);
		move_values(gpu);
		arena_run(&arena);
		arena_download(&arena);
		memcpy(host->scales, arena.back + twin.scales, host->grid[0] * host->grid[1] * 4);
		memcpy(host->codes, arena.back + twin.codes, count);
		memcpy(host->values, arena.back + twin.values, count * 2);
		tensor_write(folder, list, seed, host);
		tensor_release(&twin.host);
	}
	ck_assert_int_eq(fclose(list), 0);
	arena_close(&arena);
}
END_TEST

Suite *suite(void)
{
	if (!gpus_are_there(1))
		return NULL;
	Suite *s = suite_create("quantization on a GPU");
	TCase *tcase = tcase_create("against the host");
	tcase_set_timeout(tcase, 300);
	suite_add_tcase(s, tcase);
	if (getenv("WS_CONVERT_OUT") != NULL) {
		tcase_add_test(tcase, tensors_and_what_the_gpu_made_of_them_are_written);
		return s;
	}
	tcase_add_loop_test(tcase, sixteen_shards_make_the_maxima_scales_and_codes_of_the_whole, 0,
			    arena_is_watched() ? 6 : 30);
	tcase_add_loop_test(tcase, blocks_that_are_whole_are_quantized_at_once, 0,
			    arena_is_watched() ? 1 : 5);
	tcase_add_loop_test(tcase, stacked_experts_are_quantized_at_once_and_in_two_passes, 0,
			    2 * ARRAY_SIZE(block_sizes));
	return s;
}
