/* SPDX-License-Identifier: Apache-2.0 */
/* Members with NICs of their own: what trainers and rollouts have in common is what counts. */
#include <stdio.h>

#include "tests/plan_pair.h"
#include "tests/test.h"

#define TENSOR	 "{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":[4000,500]}"
#define PARAM(x) "\"params\":[{\"p\":\"w\",\"x\":" x "}]"
#define WHOLE	 PARAM("[\"t\",\"w\"]")

/* Three trainers that all hold 4 MB, a rollout that wants them, and who sends how much. */
struct rails_case {
	struct {
		uint32_t count;
		struct nic_speed rail[2]; /* subnet, Mb/s */
	} member[4];
	uint64_t bytes[3];
};

static const struct rails_case cases[] = {
	/* The rollout is in the first subnet only: of two NICs one counts, and who isn't there
	 * sends nothing. */
	{{{2, {{1, 400}, {2, 400}}}, {1, {{1, 400}}}, {1, {{2, 400}}}, {1, {{1, 800}}}},
	 {2000000, 2000000, 0}},
	{{{2, {{1, 400}, {2, 400}}}, {1, {{1, 400}}}, {1, {{2, 400}}}, {2, {{1, 800}, {2, 800}}}},
	 {2000000, 1000000, 1000000}},
	/* What no rollout can take doesn't count. */
	{{{1, {{1, 100}}}, {1, {{2, 900}}}, {1, {{1, 100}}}, {2, {{1, 400}, {2, 200}}}},
	 {1000000, 2000000, 1000000}},
	/* Two of one subnet. */
	{{{2, {{1, 200}, {1, 200}}}, {1, {{1, 200}}}, {1, {{1, 200}}}, {1, {{1, 400}}}},
	 {2000000, 1000000, 1000000}},
	/* Without speeds NICs are counted; a rollout of unknown speed takes all. */
	{{{2, {{1, 0}, {2, 400}}}, {1, {{1, 400}}}, {1, {{2, 400}}}, {2, {{1, 400}, {2, 400}}}},
	 {2000000, 1000000, 1000000}},
	{{{1, {{1, 600}}}, {1, {{1, 300}}}, {1, {{1, 300}}}, {1, {{1, 0}}}},
	 {2000000, 1000000, 1000000}},
	/* One that stays on its host reaches nobody else. */
	{{{2, {{0, 0}, {1, 400}}}, {1, {{1, 400}}}, {1, {{1, 800}}}, {2, {{0, 0}, {1, 9999}}}},
	 {1000000, 1000000, 2000000}},
	/* Nobody reaches it: all alike, and the wiring will say so. */
	{{{1, {{1, 400}}}, {1, {{1, 800}}}, {1, {{1, 400}}}, {1, {{2, 400}}}},
	 {1333333, 1333333, 1333333}},
};

static void places_make(const struct rails_case *wanted, struct place places[4])
{
	for (uint32_t m = 0; m < 4; m++) {
		places[m] = (struct place){.nic_count = wanted->member[m].count,
					   .rails = wanted->member[m].rail,
					   .rail_count = wanted->member[m].count};
		snprintf(places[m].host, sizeof(places[m].host), "host %u", m);
	}
}

START_TEST(what_both_ends_have_in_common_counts)
{
	const struct rails_case *wanted = &cases[_i];
	const struct nic_speed other = {3, 400};
	struct place places[4];
	struct pair_world pair;
	uint64_t sent[3] = {0};

	places_make(wanted, places);
	pair_open(&pair, TENSOR, 3, WHOLE, 1, WHOLE);
	pair.input.places = places;
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	for (uint32_t i = 0; i < plan_send_pair_count(all); i++)
		sent[plan_send_pair(all, i)->sender] += plan_send_pair(all, i)->bytes;
	/* A row more or less. */
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_msg(sent[i] + 1000 >= wanted->bytes[i] &&
				      sent[i] <= wanted->bytes[i] + 1000,
			      "trainer %u sends %llu", i, (unsigned long long)sent[i]);
	ck_assert_uint_eq(sent[0] + sent[1] + sent[2], 4000000);
	ck_assert(wanted->bytes[2] != 0 || sent[2] == 0);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	uint64_t digest = plan_digest(all);
	plan_free(all);
	/* Other rails are another plan: both ends must notice. */
	places[3].rails = &other;
	places[3].rail_count = 1;
	all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_ne(plan_digest(all), digest);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_rails");
	TCase *rails = tcase_create("rails");

	tcase_add_loop_test(rails, what_both_ends_have_in_common_counts, 0, (int)ARRAY_SIZE(cases));
	suite_add_tcase(tests, rails);
	return tests;
}
