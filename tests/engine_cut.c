/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/engine/cut.c by itself: any byte range of a packed copy equals that range of the whole,
 * made element by element.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine/engine_internal.h"
#include "tests/test.h"

#define MOVES_MAX 5
#define TABLE_MAX 100000u

static const struct quant quant = {.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4f};

/* A random copy: its moves, the source that they read, and the packed bytes by a naive walk. */
struct copy {
	struct gather_move moves[MOVES_MAX];
	struct blocks blocks[MOVES_MAX];
	uint32_t count;
	uint64_t bytes;
	uint8_t *src, *packed;
	uint32_t *table; /* of maxima */
};

static uint64_t random_below(uint64_t bound)
{
	return (uint64_t)rand() % bound;
}

/* One element at a time, so that it shares nothing with cut.c but what convert_move does to it. */
static void pack_naively(const struct move *move, uint8_t *out)
{
	uint64_t count = move_element_count(move);
	for (uint64_t e = 0; e < count; e++) {
		uint64_t rest = e;
		int64_t offset = 0, entry = 0;
		for (uint32_t d = move->dim_count; d-- > 0;) {
			uint64_t at = rest % move->extent[d];
			const struct blocks *blocks = move->blocks;
			offset += (int64_t)at * move->src_stride[d];
			if (blocks != NULL)
				entry += (int64_t)((blocks->first[d] + at) / blocks->each[d]) *
					 blocks->stride[d];
			rest /= move->extent[d];
		}
		struct blocks block = {.quant = &quant};
		if (move->blocks != NULL)
			block.table = (uint32_t *)move->blocks->table + entry;
		const struct move one = {.kind = move->kind,
					 .blocks = move->blocks != NULL ? &block : NULL,
					 .src = (const uint8_t *)move->src + offset,
					 .dst = out + e * ws_dtype_bytes(move->to),
					 .from = move->from,
					 .to = move->to};
		convert_move(&one);
	}
}

/* A grid of blocks over the box, which begins anywhere in it. */
static void quantize(struct copy *copy, struct move *move)
{
	struct blocks *blocks = &copy->blocks[copy->count - 1];
	int64_t stride = 1;

	*blocks = (struct blocks){.quant = &quant, .table = copy->table};
	for (uint32_t d = 0; d < move->dim_count; d++) {
		blocks->each[d] = 1 + random_below(5);
		blocks->first[d] = random_below(12);
		blocks->stride[d] = stride;
		stride *= (int64_t)((blocks->first[d] + move->extent[d]) / blocks->each[d] + 1);
	}
	ck_assert_int_le(stride, TABLE_MAX);
	move->kind = MOVE_QUANTIZE;
	move->blocks = blocks;
	move->to = quant.code;
}

static void move_make(struct copy *copy, uint64_t src_bytes)
{
	static const enum ws_dtype pairs[][2] = {{WS_F32, WS_BF16}, {WS_BF16, WS_BF16},
						 {WS_F32, WS_F32},  {WS_U8, WS_U8},
						 {WS_BF16, WS_F32}, {WS_F64, WS_F64}};
	const enum ws_dtype *pair = pairs[random_below(ARRAY_SIZE(pairs))];
	struct gather_move *gather = &copy->moves[copy->count++];
	struct move *move = &gather->move;
	uint64_t element = ws_dtype_bytes(pair[0]), reach = element;
	*move = (struct move){.src = copy->src, .from = pair[0], .to = pair[1]};
	move->dim_count = (uint32_t)random_below(5);
	for (uint32_t d = move->dim_count; d-- > 0;) {
		move->extent[d] = 1 + random_below(9);
		move->src_stride[d] = (int64_t)(reach + element * random_below(3));
		reach += (move->extent[d] - 1) * (uint64_t)move->src_stride[d];
	}
	ck_assert_uint_le(reach, src_bytes);
	if (pair[0] != pair[1] && random_below(2) == 0)
		quantize(copy, move);
	gather->wire_offset = align_up(copy->bytes, 16);
	copy->bytes = gather->wire_offset + move_element_count(move) * ws_dtype_bytes(move->to);
}

/* The moves point into it, so it stays where it is. */
static void copy_make(struct copy *copy, int seed)
{
	uint64_t src_bytes = 4u << 20;
	*copy = (struct copy){.src = mem_alloc(src_bytes),
			      .table = mem_alloc(TABLE_MAX * sizeof(uint32_t))};
	srand((unsigned)seed);
	for (uint32_t i = 0; i < TABLE_MAX; i++)
		copy->table[i] = MIN((uint32_t)rand() * 2u & 0x7fffffffu, 0x7fc00000u);
	for (uint64_t i = 0; i < src_bytes; i++)
		copy->src[i] = (uint8_t)rand();
	uint64_t count = 1 + random_below(MOVES_MAX);
	while (copy->count < count)
		move_make(copy, src_bytes);
	copy->packed = mem_alloc(copy->bytes);
	for (uint32_t i = 0; i < copy->count; i++)
		pack_naively(&copy->moves[i].move, copy->packed + copy->moves[i].wire_offset);
}

START_TEST(every_range_of_a_gather_equals_that_range_of_the_whole)
{
	struct copy copy;
	copy_make(&copy, _i);
	struct ws_error err;
	ck_ok(cut_check(copy.moves, copy.count, copy.bytes, &err), err);
	/* Exactly sized, so that asan sees a byte too many; filled, so that padding must be
	 * written. */
	for (int turn = 0; turn < 40; turn++) {
		uint64_t from = 16 * random_below((copy.bytes + 15) / 16);
		uint64_t to = turn == 0 ? copy.bytes : from + 16 * (1 + random_below(40));
		from = turn == 0 ? 0 : from;
		to = MIN(to, copy.bytes);
		uint8_t *out = mem_alloc(to - from);
		memset(out, 0xee, to - from);
		cut_gather(copy.moves, copy.count, from, to, out, NULL);
		ck_assert_msg(memcmp(out, copy.packed + from, to - from) == 0,
			      "range %llu..%llu differs", (unsigned long long)from,
			      (unsigned long long)to);
		mem_free(out);
	}
	mem_free(copy.src);
	mem_free(copy.table);
	mem_free(copy.packed);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* As the GPU has it: boxes are kept, and carried out in another order. */
#define BOXES_MAX 4096u

struct boxes {
	struct move moves[BOXES_MAX];
	struct blocks blocks[BOXES_MAX];
	uint32_t count, limit;
};

static int box_keep(void *arg, const struct move *box)
{
	struct boxes *boxes = arg;
	if (boxes->count == boxes->limit)
		return -ENOSPC;
	struct move *kept = &boxes->moves[boxes->count];
	*kept = *box;
	if (box->blocks != NULL) {
		boxes->blocks[boxes->count] = *box->blocks;
		kept->blocks = &boxes->blocks[boxes->count];
	}
	boxes->count++;
	return 0;
}

/* Fills what the boxes write with ones, in a map; no byte twice, none outside. */
static void boxes_mark(const struct boxes *boxes, const uint8_t *out, uint64_t bytes, uint8_t *map)
{
	for (uint32_t i = 0; i < boxes->count; i++) {
		const struct move *box = &boxes->moves[i];
		uint64_t at = (uint64_t)((const uint8_t *)box->dst - out);
		uint64_t end = at + move_element_count(box) * ws_dtype_bytes(box->to);
		ck_assert_uint_le(end, bytes);
		for (; at < end; at++)
			ck_assert_uint_eq(map[at]++, 0);
	}
}

START_TEST(boxes_of_a_range_write_it_in_any_order_and_leave_its_padding)
{
	struct boxes *boxes = mem_alloc(sizeof(*boxes));
	struct copy copy;
	copy_make(&copy, _i);
	for (int turn = 0; turn < 20; turn++) {
		uint64_t from = 16 * random_below((copy.bytes + 15) / 16);
		uint64_t to = MIN(copy.bytes, from + 16 * (1 + random_below(40)));
		uint8_t *out = mem_alloc(to - from), *map = mem_alloc(to - from);
		*boxes = (struct boxes){.limit = BOXES_MAX};
		ck_assert_int_eq(cut_boxes(copy.moves, copy.count, from, to, out, box_keep, boxes),
				 0);
		boxes_mark(boxes, out, to - from, map);
		memset(out, 0xee, to - from);
		for (uint32_t i = boxes->count; i-- > 0;)
			convert_move(&boxes->moves[i]);
		for (uint64_t i = 0; i < to - from; i++)
			ck_assert_uint_eq(out[i], map[i] != 0 ? copy.packed[from + i] : 0xee);
		/* What can't be taken ends it. */
		uint32_t count = boxes->count;
		*boxes = (struct boxes){.limit = count / 2};
		ck_assert_int_eq(cut_boxes(copy.moves, copy.count, from, to, out, box_keep, boxes),
				 count > 0 ? -ENOSPC : 0);
		ck_assert_uint_eq(boxes->count, count / 2);
		mem_free(out);
		mem_free(map);
	}
	mem_free(copy.src);
	mem_free(copy.table);
	mem_free(copy.packed);
	mem_free(boxes);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(ops_cover_a_copy_and_nothing_more)
{
	static const uint64_t sizes[] = {1, 4095, 4096, 4097, 8191, 8192, 8193, 1234567};
	for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint64_t count = engine_op_count(sizes[i], 4096), sum = 0;
		for (uint32_t k = 0; k < count; k++) {
			uint64_t bytes = cut_op_bytes(sizes[i], 4096, k);
			ck_assert(bytes > 0 && bytes <= 4096);
			sum += bytes;
		}
		ck_assert_uint_eq(sum, sizes[i]);
	}
	ck_assert_uint_eq(engine_op_count(0, 4096), 0);
}
END_TEST

START_TEST(moves_out_of_order_or_out_of_bounds_are_refused)
{
	struct move move = {
		.dim_count = 1, .extent = {8}, .src_stride = {4}, .from = WS_F32, .to = WS_F32};
	struct gather_move moves[2] = {{.move = move}, {.move = move, .wire_offset = 32}};
	struct ws_error err;
	ck_ok(cut_check(moves, 2, 64, &err), err);
	ck_fails(cut_check(moves, 2, 63, &err), -EINVAL, err);
	moves[1].wire_offset = 16;
	ck_fails(cut_check(moves, 2, 64, &err), -EINVAL, err);
	moves[1].wire_offset = 40;
	ck_fails(cut_check(moves, 2, 128, &err), -EINVAL, err);
	moves[1].wire_offset = UINT64_MAX - 15;
	ck_fails(cut_check(moves, 2, 64, &err), -EINVAL, err);
	moves[1] = (struct gather_move){.move = move, .wire_offset = 32};
	moves[1].move.to = WS_U8;
	ck_fails(cut_check(moves, 2, 64, &err), -EINVAL, err);
	moves[1].move = move;
	moves[1].move.dim_count = MOVE_DIM_MAX + 1;
	ck_fails(cut_check(moves, 2, 64, &err), -EINVAL, err);
}
END_TEST

START_TEST(a_digest_is_the_sum_over_ops_and_ends_when_the_attempt_does)
{
	uint8_t bytes[10000];
	_Atomic uint32_t serial = 7;
	uint64_t sum = 0;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 31);
	const struct span spans[] = {{.memory = bytes, .bytes = 9000, .first_op_id = 5},
				     {.memory = bytes + 9000, .bytes = 1000, .first_op_id = 100}};
	sum += digest_bytes(bytes, 4096, 5) + digest_bytes(bytes + 4096, 4096, 6);
	sum += digest_bytes(bytes + 8192, 808, 7) + digest_bytes(bytes + 9000, 1000, 100);
	ck_assert_uint_eq(cut_digest(spans, 2, 4096, &serial, 7), sum);
	ck_assert_uint_eq(cut_digest(spans, 2, 4096, &serial, 6), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine_cut");
	TCase *cases = tcase_create("cut");
	tcase_set_timeout(cases, 60);
	tcase_add_loop_test(cases, every_range_of_a_gather_equals_that_range_of_the_whole, 0, 40);
	tcase_add_loop_test(cases, boxes_of_a_range_write_it_in_any_order_and_leave_its_padding, 0,
			    20);
	tcase_add_test(cases, ops_cover_a_copy_and_nothing_more);
	tcase_add_test(cases, moves_out_of_order_or_out_of_bounds_are_refused);
	tcase_add_test(cases, a_digest_is_the_sum_over_ops_and_ends_when_the_attempt_does);
	suite_add_tcase(tests, cases);
	return tests;
}
