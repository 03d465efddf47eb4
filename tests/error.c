/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences of failed calls, and lists of findings. */
#include "lib/base/base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"

START_TEST(a_failure_returns_its_code_and_says_why)
{
	struct ws_error err = {0};
	ck_assert_int_eq(ws_fail(&err, -ENODEV, "no NIC is named '%s'", "eth7"), -ENODEV);
	ck_assert_int_eq(err.code, -ENODEV);
	ck_assert_str_eq(err.text, "no NIC is named 'eth7'");
	ck_assert_int_eq(ws_fail(NULL, -EINVAL, "nobody reads this"), -EINVAL);
	ck_assert_int_eq(ws_fail_in(NULL, -EINVAL, "nor this"), -EINVAL);
}
END_TEST

START_TEST(what_the_caller_did_stands_in_front)
{
	struct ws_error err = {0};
	ws_fail(&err, -EIO, "the NIC is gone");
	ck_assert_int_eq(ws_fail_in(&err, -EIO, "cannot push version %d", 7), -EIO);
	ck_assert_str_eq(err.text, "cannot push version 7: the NIC is gone");
}
END_TEST

START_TEST(an_error_may_be_its_own_argument)
{
	struct ws_error err = {0};
	ws_fail(&err, -EIO, "inner");
	ws_fail(&err, -EIO, "outer (%s)", err.text);
	ck_assert_str_eq(err.text, "outer (inner)");
}
END_TEST

START_TEST(a_long_sentence_is_cut_and_ends)
{
	struct ws_error err;
	char text[2000];
	memset(&err, 'x', sizeof(err));
	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	ws_fail(&err, -EIO, "%s", text);
	ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
	ws_fail_in(&err, -EIO, "front");
	ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
	ck_assert_int_eq(strncmp(err.text, "front: yyy", 10), 0);
	ws_fail_in(&err, -EIO, "%s", text);
	ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
}
END_TEST

/* _i blanks in front move where the limit cuts the two, three and four byte characters. */
START_TEST(a_cut_never_halves_a_character)
{
	struct ws_error err = {0};
	char text[1200];
	size_t at = 0;
	for (; at < (size_t)_i; at++)
		text[at] = ' ';
	while (at + 10 < sizeof(text)) {
		memcpy(text + at, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9);
		at += 9;
	}
	text[at] = '\0';
	ws_fail(&err, -EIO, "%s", text);
	/* What was kept is a beginning of the text, and what follows begins a character. */
	size_t count = strlen(err.text);
	ck_assert_uint_ge(count, sizeof(err.text) - 4);
	ck_assert_int_eq(strncmp(err.text, text, count), 0);
	ck_assert_int_ne((uint8_t)text[count] & 0xc0, 0x80);
}
END_TEST

START_TEST(a_name_from_outside_cannot_forge_a_line)
{
	struct ws_error err = {0};
	ws_fail(&err, -EPROTO, "peer '%s' is gone", "x\nweightsync: all is well\x1b[2J\x7f");
	ck_assert_str_eq(err.text, "peer 'x?weightsync: all is well?[2J?' is gone");
}
END_TEST

static const struct {
	const char *said, *heard;
} repeats[] = {
	{"rollout 0.1: rollout 0.1: rollout 0.1 is taken by another",
	 "rollout 0.1 is taken by another"},
	{"weightsync: trainer 0: trainer 0's write failed", "weightsync: trainer 0's write failed"},
	{"rollout 0.1: rollout 0.12 is taken", "rollout 0.1: rollout 0.12 is taken"},
	{"rollout 0.1: rollout 0.1.2 is taken", "rollout 0.1: rollout 0.1.2 is taken"},
	{"trainer 1: rollout 0.1: trainer 1 is late", "trainer 1: rollout 0.1: trainer 1 is late"},
	{"a: a: a", "a"},
	{"dtype: dtypes differ", "dtype: dtypes differ"},
	{": : x", ": : x"},
	{"", ""},
};

START_TEST(a_name_is_not_said_twice_in_a_row)
{
	struct ws_error err = {0};
	ws_fail(&err, -EIO, "%s", repeats[_i].said);
	ck_assert_str_eq(err.text, repeats[_i].heard);
	ws_fail(&err, -EIO, "rollout 1.0's write failed");
	ws_fail_in(&err, -EIO, "rollout %u.%u", 1, 0);
	ws_fail_in(&err, -EIO, "rollout %u.%u", 1, 0);
	ck_assert_str_eq(err.text, "rollout 1.0's write failed");
}
END_TEST

START_TEST(findings_are_kept_in_order_and_counted)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	ck_assert_int_eq(findings_fail(&findings, -EINVAL, &err), 0);
	findings_add(&findings, "missing", "model.embed", "rows %d to %d are missing", 3, 4);
	ck_assert_int_eq(findings_fail(&findings, -EINVAL, &err), -EINVAL);
	ck_assert_str_eq(err.text, "rows 3 to 4 are missing");
	findings_add(&findings, "doubled", "model.head", "byte 7 is written twice");
	findings_fail(&findings, -EINVAL, &err);
	ck_assert_str_eq(err.text, "rows 3 to 4 are missing (and 1 more finding)");
	for (uint32_t i = 2; i < 3000; i++)
		findings_add(&findings, "shape", "x", "finding %c%c%c", 'a' + i % 26,
			     'a' + i / 26 % 26, 'a' + i / 676);
	ck_assert_int_eq(findings_fail(&findings, -EINVAL, &err), -EINVAL);
	ck_assert_str_eq(err.text, "rows 3 to 4 are missing (and 2999 more findings)");
	uint32_t kept = 0;
	for (const struct finding *each = findings.first; each != NULL; each = each->next)
		kept++;
	ck_assert_uint_eq(kept, FINDINGS_KEPT_MAX);
	ck_assert_uint_eq(findings.count, 3000);
	ck_assert_str_eq(findings.first->next->kind, "doubled");
	ck_assert_str_eq(findings.first->next->where, "model.head");
	arena_release(&arena);
}
END_TEST

START_TEST(findings_that_differ_in_numbers_are_folded)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena}, others = {.arena = &arena};
	findings_add(&findings, "missing", "model.norm", "it is missing");
	for (uint32_t i = 0; i < 5000; i++)
		findings_add(&findings, "missing", "expert", "row %u of expert %u", i % 7, i);
	findings_add(&findings, "doubled", "expert", "row %u of expert %u", 1, 1);
	ck_assert_uint_eq(findings.count, 5002);
	ck_assert_uint_eq(findings.kept, 2 + FINDINGS_ALIKE_KEPT_MAX);
	const struct finding *it = findings.first->next;
	ck_assert_str_eq(it->text, "row 0 of expert 0");
	ck_assert_uint_eq(it->alike, 0);
	ck_assert_uint_eq(it->next->next->alike, 5000 - FINDINGS_ALIKE_KEPT_MAX);
	ck_assert_str_eq(findings.last->kind, "doubled");
	/* Handed on to a list that has some of them already. */
	findings_add(&others, "missing", "expert", "row %u of expert %u", 3, 9);
	findings_merge(&others, &findings);
	ck_assert_uint_eq(others.count, 5003);
	ck_assert_uint_eq(others.kept, 2 + FINDINGS_ALIKE_KEPT_MAX);
	uint32_t told = 0;
	for (it = others.first; it != NULL; it = it->next)
		told += 1 + it->alike;
	ck_assert_uint_eq(told, 5003);
	arena_release(&arena);
}
END_TEST

START_TEST(a_check_without_memory_still_fails)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	mem_fail_nth(0);
	findings_add(&findings, "missing", "a", "b");
	mem_fail_nth(-1);
	ck_assert_int_eq(findings_fail(&findings, -EINVAL, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "1 finding"));
	arena_release(&arena);
}
END_TEST

START_TEST(dtypes_have_two_spellings_and_a_size)
{
	static const size_t bytes[WS_DTYPE_COUNT] = {0, 1, 1, 1, 1, 1, 1, 2, 2,
						     2, 2, 4, 4, 4, 8, 8, 8};
	for (int i = WS_NONE; i < WS_DTYPE_COUNT; i++) {
		enum ws_dtype dtype = (enum ws_dtype)i;
		ck_assert_uint_eq(ws_dtype_bytes(dtype), bytes[i]);
		ck_assert(i == WS_NONE || ws_dtype_parse(ws_dtype_name(dtype)) == dtype);
	}
	ck_assert(ws_dtype_parse("BF16") == WS_BF16 && ws_dtype_parse("F8_E4M3") == WS_F8_E4M3);
	ck_assert(ws_dtype_parse("Bf16") == WS_NONE && ws_dtype_parse("") == WS_NONE);
	ck_assert(ws_dtype_parse("none") == WS_NONE && ws_dtype_parse(NULL) == WS_NONE);
	ck_assert_uint_eq(ws_dtype_bytes(WS_DTYPE_COUNT), 0);
	ck_assert_str_eq(ws_dtype_name((enum ws_dtype)1000), "none");
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("error");
	TCase *tcase = tcase_create("error");
	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, a_failure_returns_its_code_and_says_why);
	tcase_add_test(tcase, what_the_caller_did_stands_in_front);
	tcase_add_test(tcase, an_error_may_be_its_own_argument);
	tcase_add_test(tcase, a_long_sentence_is_cut_and_ends);
	tcase_add_loop_test(tcase, a_cut_never_halves_a_character, 0, 9);
	tcase_add_test(tcase, a_name_from_outside_cannot_forge_a_line);
	tcase_add_loop_test(tcase, a_name_is_not_said_twice_in_a_row, 0, ARRAY_SIZE(repeats));
	tcase_add_test(tcase, findings_are_kept_in_order_and_counted);
	tcase_add_test(tcase, findings_that_differ_in_numbers_are_folded);
	tcase_add_test(tcase, a_check_without_memory_still_fails);
	tcase_add_test(tcase, dtypes_have_two_spellings_and_a_size);
	suite_add_tcase(all, tcase);
	return all;
}
