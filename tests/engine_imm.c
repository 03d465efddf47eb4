/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/engine/imm.c by itself: which arrivals count, and what a missing one is called.
 */
#include <errno.h>
#include <stdlib.h>

#include "lib/engine/engine_internal.h"
#include "tests/test.h"

#define PEER ((struct engine_peer *)1)

static const struct receive receives[] = {{.peer = PEER, .op_count = 5},
					  {.peer = PEER, .op_count = 3}};
/* Receive 0 has two ranges; ids 10 to 19 are nobody's. */
static const struct op_range ranges[] = {{.first_op_id = 0, .count = 4, .receive = 0},
					 {.first_op_id = 4, .count = 3, .receive = 1},
					 {.first_op_id = 7, .count = 1, .receive = 0},
					 {.first_op_id = 8, .count = 2, .receive = OP_IS_CREDIT},
					 {.first_op_id = 20, .count = 1, .receive = OP_IS_CREDIT}};

static struct engine_program program_make(void)
{
	return (struct engine_program){.receives = receives,
				       .receive_count = ARRAY_SIZE(receives),
				       .ranges = ranges,
				       .range_count = ARRAY_SIZE(ranges),
				       .op_id_count = 30};
}

static struct imm imm_open(uint64_t attempt)
{
	struct imm imm = {0};
	struct ws_error err;
	struct engine_program program = program_make();
	ck_ok(imm_set(&imm, &program, &err), err);
	if (attempt != 0)
		imm_arm(&imm, attempt);
	return imm;
}

static enum imm_verdict take(struct imm *imm, uint64_t attempt, uint32_t op_id)
{
	uint32_t receive;
	return imm_take(imm, imm_make(attempt, op_id), &receive);
}

START_TEST(a_counter_is_reached_by_its_last_op_in_any_order)
{
	struct imm imm = imm_open(300);
	uint32_t order[] = {0, 1, 2, 3, 7}, receive;
	srand((unsigned)_i);
	for (uint32_t i = 5; i > 1; i--) {
		uint32_t k = (uint32_t)rand() % i, swap = order[i - 1];
		order[i - 1] = order[k];
		order[k] = swap;
	}
	for (uint32_t i = 0; i < 5; i++) {
		uint32_t first;
		ck_assert_uint_eq(imm_missing(&imm, 0, &first), 5 - i);
		for (uint32_t k = i; k < 5; k++)
			ck_assert_uint_le(first, order[k]);
		enum imm_verdict verdict = imm_take(&imm, imm_make(300, order[i]), &receive);
		ck_assert_int_eq(verdict, i == 4 ? IMM_REACHED : IMM_COUNTED);
		ck_assert_uint_eq(receive, 0);
	}
	ck_assert_uint_eq(imm_missing(&imm, 0, &receive), 0);
	ck_assert_uint_eq(receive, NONE);
	ck_assert_uint_eq(imm_missing(&imm, 1, &receive), 3);
	ck_assert_uint_eq(receive, 4);
	imm_release(&imm);
}
END_TEST

START_TEST(a_duplicate_never_stands_in_for_a_missing_op)
{
	struct imm imm = imm_open(1);
	uint32_t first;
	ck_assert_int_eq(take(&imm, 1, 4), IMM_COUNTED);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(take(&imm, 1, 4), IMM_DUPLICATE);
	ck_assert_int_eq(take(&imm, 1, 5), IMM_COUNTED);
	ck_assert_uint_eq(imm_missing(&imm, 1, &first), 1);
	ck_assert_uint_eq(first, 6);
	ck_assert_int_eq(take(&imm, 1, 6), IMM_REACHED);
	ck_assert_int_eq(take(&imm, 1, 6), IMM_DUPLICATE);
	imm_release(&imm);
}
END_TEST

START_TEST(another_attempt_an_unknown_id_and_no_attempt_are_told_apart)
{
	struct imm imm = imm_open(0);
	ck_assert_int_eq(take(&imm, 7, 0), IMM_NO_ATTEMPT);
	imm_arm(&imm, 7);
	ck_assert_int_eq(take(&imm, 6, 0), IMM_STALE);
	ck_assert_int_eq(take(&imm, 7 + 255, 0), IMM_STALE);
	ck_assert_int_eq(take(&imm, 7, 10), IMM_UNKNOWN);
	ck_assert_int_eq(take(&imm, 7, 29), IMM_UNKNOWN);
	ck_assert_int_eq(take(&imm, 7, OP_ID_MAX), IMM_UNKNOWN);
	ck_assert_int_eq(take(&imm, 7, 0), IMM_COUNTED);
	imm_end(&imm);
	ck_assert_int_eq(take(&imm, 7, 1), IMM_NO_ATTEMPT);
	imm_arm(&imm, 8);
	ck_assert_int_eq(take(&imm, 8, 0), IMM_COUNTED);
	imm_release(&imm);
}
END_TEST

START_TEST(credits_are_remembered_one_by_one)
{
	struct imm imm = imm_open(2);
	ck_assert(!imm_has(&imm, 9));
	ck_assert_int_eq(take(&imm, 2, 9), IMM_CREDIT);
	ck_assert(imm_has(&imm, 9));
	ck_assert(!imm_has(&imm, 8));
	ck_assert(!imm_has(&imm, UINT32_MAX));
	ck_assert_int_eq(take(&imm, 2, 9), IMM_DUPLICATE);
	imm_arm(&imm, 3);
	ck_assert(!imm_has(&imm, 9));
	imm_release(&imm);
}
END_TEST

static void refused(struct engine_program program, int code)
{
	struct imm imm = {0};
	struct ws_error err;
	ck_fails(imm_set(&imm, &program, &err), code, err);
	ck_assert_ptr_null(imm.seen);
}

START_TEST(ranges_that_do_not_fit_are_refused)
{
	struct op_range bad[ARRAY_SIZE(ranges)];
	for (uint32_t i = 0; i < 5; i++) {
		struct engine_program program = program_make();
		for (uint32_t k = 0; k < ARRAY_SIZE(ranges); k++)
			bad[k] = ranges[k];
		program.ranges = bad;
		if (i == 0)
			bad[1].first_op_id = 3;
		else if (i == 1)
			bad[1].count = 0;
		else if (i == 2)
			bad[4].count = 11;
		else if (i == 3)
			bad[2].receive = 2;
		else
			bad[0].count = 3;
		refused(program, -EINVAL);
	}
	struct engine_program program = program_make();
	program.op_id_count = OP_ID_MAX + 2;
	refused(program, -ENOSPC);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine_imm");
	TCase *cases = tcase_create("imm");
	tcase_add_loop_test(cases, a_counter_is_reached_by_its_last_op_in_any_order, 0, 20);
	tcase_add_test(cases, a_duplicate_never_stands_in_for_a_missing_op);
	tcase_add_test(cases, another_attempt_an_unknown_id_and_no_attempt_are_told_apart);
	tcase_add_test(cases, credits_are_remembered_one_by_one);
	tcase_add_test(cases, ranges_that_do_not_fit_are_refused);
	suite_add_tcase(tests, cases);
	return tests;
}
