/* SPDX-License-Identifier: Apache-2.0 */
/* Each fault rule does what it says, to the op it names, and to no other. */
#include "tests/transport_pair.h"

#define OPS   10
#define NTH   4 /* the op the rules name, from 1 */
#define BYTES 256

static struct pair pair;
static uint32_t imm_counts[OPS];
static int sent_counts[OPS], failed_counts[OPS];
static int failed_status;

static void rules_open(const char *rules)
{
	char sender[128];
	const char *devices[2] = {sender, ":loop:net/b"};

	snprintf(sender, sizeof(sender), "%s:loop:net/a?seed=3", rules);
	memset(imm_counts, 0, sizeof(imm_counts));
	memset(sent_counts, 0, sizeof(sent_counts));
	memset(failed_counts, 0, sizeof(failed_counts));
	pair_open(&pair, "fault", devices, OPS * BYTES);
	fill(pair.memory[0].base, OPS * BYTES, 1);
}

static void poll_counting(int at)
{
	struct event events[8];
	int got = pair.nics[at]->transport->poll(pair.nics[at], events, 8);

	for (int i = 0; i < got; i++) {
		ck_assert_ptr_eq(events[i].peer, pair.peers[at]);
		switch (events[i].kind) {
		case EVENT_SENT:
			sent_counts[events[i].id]++;
			break;
		case EVENT_FAILED:
			failed_counts[events[i].id]++;
			failed_status = events[i].status;
			break;
		case EVENT_IMM:
			imm_counts[events[i].imm]++;
			break;
		case EVENT_NIC:
			ck_abort_msg("%s", pair.nics[at]->trouble);
		}
	}
}

/* Posts all ops one by one, each followed by so many polls that nothing is under way any more. */
static void run(void)
{
	for (uint32_t i = 0; i < OPS; i++) {
		struct op op = op_make(&pair, 0, i * BYTES, BYTES, i);
		ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
		for (int j = 0; j < 300; j++) {
			poll_counting(0);
			poll_counting(1);
		}
	}
}

static bool bytes_arrived(uint32_t op)
{
	return memcmp((uint8_t *)pair.memory[0].base + op * BYTES,
		      (uint8_t *)pair.memory[1].base + op * BYTES, BYTES) == 0;
}

/* All but the named op are as if there were no rule. */
static void check_others(void)
{
	for (uint32_t i = 0; i < OPS; i++) {
		if (i == NTH - 1)
			continue;
		ck_assert_int_eq(sent_counts[i], 1);
		ck_assert_int_eq(failed_counts[i], 0);
		ck_assert_uint_eq(imm_counts[i], 1);
		ck_assert(bytes_arrived(i));
	}
}

START_TEST(without_rules_nothing_happens)
{
	rules_open("");
	run();
	check_others();
	ck_assert_uint_eq(imm_counts[NTH - 1], 1);
	pair_close(&pair);
}
END_TEST

START_TEST(a_dropped_op_is_sent_and_never_arrives)
{
	rules_open("drop_nth=4");
	run();
	check_others();
	ck_assert_int_eq(sent_counts[NTH - 1], 1);
	ck_assert_uint_eq(imm_counts[NTH - 1], 0);
	ck_assert(!bytes_arrived(NTH - 1));
	pair_close(&pair);
}
END_TEST

START_TEST(a_failed_op_is_reported_once_and_never_arrives)
{
	rules_open("fail_nth=4");
	run();
	check_others();
	ck_assert_int_eq(sent_counts[NTH - 1], 0);
	ck_assert_int_eq(failed_counts[NTH - 1], 1);
	ck_assert_int_eq(failed_status, -EIO);
	ck_assert_uint_eq(imm_counts[NTH - 1], 0);
	pair_close(&pair);
}
END_TEST

START_TEST(a_doubled_imm_comes_twice_and_is_sent_once)
{
	rules_open("dup_nth=4");
	run();
	check_others();
	ck_assert_int_eq(sent_counts[NTH - 1], 1);
	ck_assert_uint_eq(imm_counts[NTH - 1], 2);
	ck_assert(bytes_arrived(NTH - 1));
	pair_close(&pair);
}
END_TEST

START_TEST(a_stale_imm_is_an_older_one)
{
	uint32_t older = 0;

	rules_open("stale_nth=4");
	run();
	for (uint32_t i = 0; i < OPS; i++) {
		ck_assert_int_eq(sent_counts[i], 1);
		ck_assert(imm_counts[i] == 1 || (imm_counts[i] == 2 && i < NTH - 1));
		older += imm_counts[i] == 2;
	}
	ck_assert_uint_eq(older, 1);
	pair_close(&pair);
}
END_TEST

START_TEST(a_lost_completion_comes_only_with_the_peers_end)
{
	rules_open("lost_nth=4");
	run();
	check_others();
	ck_assert_uint_eq(imm_counts[NTH - 1], 1);
	ck_assert(bytes_arrived(NTH - 1));
	ck_assert_int_eq(sent_counts[NTH - 1] + failed_counts[NTH - 1], 0);
	int rc = -EAGAIN;
	for (int i = 0; i < 100 && rc == -EAGAIN; i++) {
		rc = pair.nics[0]->transport->peer_close(pair.nics[0], pair.peers[0], false, false);
		if (rc == -EAGAIN)
			poll_counting(0);
	}
	ck_assert_int_eq(rc, 0);
	ck_assert_int_eq(failed_counts[NTH - 1], 1);
	ck_assert_int_eq(failed_status, -ECANCELED);
	pair_close(&pair);
}
END_TEST

START_TEST(a_corrupt_op_differs_in_one_byte_and_leaves_the_source_alone)
{
	uint8_t before[OPS * BYTES];
	int different = 0;

	rules_open("corrupt_nth=4");
	memcpy(before, pair.memory[0].base, sizeof(before));
	run();
	check_others();
	ck_assert_uint_eq(imm_counts[NTH - 1], 1);
	ck_assert_int_eq(memcmp(before, pair.memory[0].base, sizeof(before)), 0);
	for (size_t i = 0; i < sizeof(before); i++)
		different += before[i] != ((uint8_t *)pair.memory[1].base)[i];
	ck_assert_int_eq(different, 1);
	ck_assert(!bytes_arrived(NTH - 1));
	pair_close(&pair);
}
END_TEST

START_TEST(of_a_cut_op_only_the_first_half_lands)
{
	rules_open("cut_nth=4");
	run();
	check_others();
	ck_assert_uint_eq(imm_counts[NTH - 1], 1);
	const uint8_t *at = (uint8_t *)pair.memory[1].base + (NTH - 1) * BYTES;
	ck_assert_int_eq(memcmp(at, (uint8_t *)pair.memory[0].base + (NTH - 1) * BYTES, BYTES / 2),
			 0);
	for (int i = BYTES / 2; i < BYTES; i++)
		ck_assert_uint_eq(at[i], 0);
	pair_close(&pair);
}
END_TEST

START_TEST(delay_holds_reports_back_and_loses_none)
{
	struct op ops[OPS];
	int polls = 0;

	rules_open("delay=1,seed=9");
	for (uint32_t i = 0; i < OPS; i++)
		ops[i] = op_make(&pair, 0, i * BYTES, BYTES, i);
	ck_assert_int_eq(pair.nics[0]->wait_fd, -1);
	ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], ops, OPS), OPS);
	for (int done = 0; done < OPS && polls < 1000; polls++) {
		poll_counting(0);
		poll_counting(1);
		done = 0;
		for (int i = 0; i < OPS; i++)
			done += sent_counts[i] == 1 && imm_counts[i] == 1;
	}
	ck_assert_int_lt(polls, 1000);
	ck_assert_int_gt(polls, 16);
	pair_close(&pair);
}
END_TEST

/* By chance: counted over many ops, the same for the same seed. */
static uint32_t dropped_of_1000(const char *rules)
{
	uint32_t arrived = 0;

	rules_open(rules);
	for (uint32_t i = 0; i < 1000; i++) {
		struct op op = op_make(&pair, 0, 0, 16, 0);
		post(&pair, 0, &op);
	}
	await(&pair, 0, 1000, 0);
	poll_idle(&pair, 5);
	arrived = (uint32_t)pair.imms[1];
	pair_close(&pair);
	return 1000 - arrived;
}

START_TEST(chances_follow_the_seed)
{
	uint32_t dropped = dropped_of_1000("drop=0.1,seed=4");

	ck_assert_uint_gt(dropped, 50);
	ck_assert_uint_lt(dropped, 150);
	ck_assert_uint_eq(dropped_of_1000("drop=0.1,seed=4"), dropped);
	ck_assert_uint_ne(dropped_of_1000("drop=0.1,seed=5"), dropped);
}
END_TEST

START_TEST(any_mix_reports_every_op_once)
{
	char rules[160];

	snprintf(rules, sizeof(rules),
		 "seed=%d,drop=0.1,dup=0.1,fail=0.1,delay=0.3,stale=0.1,corrupt=0.1,cut=0.1,"
		 "lost=0.02",
		 _i + 1);
	rules_open(rules);
	for (uint32_t i = 0; i < 60; i++) {
		struct op op = op_make(&pair, 0, 0, BYTES, i);
		post(&pair, 0, &op);
	}
	poll_idle(&pair, 2);
	close_peer(&pair, 0, false);
	ck_assert_uint_eq(pair.sent[0] + pair.failed[0], 60);
	close_peer(&pair, 1, true);
	poll_idle(&pair, 1);
	ck_assert_uint_eq(pair.sent[0] + pair.failed[0], 60);
	pair_close(&pair);
}
END_TEST

START_TEST(bad_rules_are_refused_by_name)
{
	static const char *const bad[][2] = {
		{"drip=1:loop:net/a", "drip"},	       {"drop:loop:net/a", "drop"},
		{"drop=2:loop:net/a", "drop"},	       {"drop=x:loop:net/a", "drop"},
		{"drop_nth=0:loop:net/a", "drop_nth"}, {"seed=:loop:net/a", "seed"},
		{"drop=1,,:loop:net/a", "has no"},     {"loop:net/a", "fault device"},
		{":pigeon:net/a", "pigeon"},	       {":loop:net", "net"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct nic *nic;
		int rc = nic_open(&nic, "fault", bad[i][0], &err);
		ck_assert_msg(rc == -EINVAL || rc == -ENODEV, "'%s': %d", bad[i][0], rc);
		ck_assert_msg(strstr(err.text, bad[i][1]) != NULL, "%s", err.text);
		ck_assert_ptr_null(nic);
	}
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("transport_fault");
	TCase *tests = tcase_create("fault");

	tcase_set_timeout(tests, 60);
	tcase_add_test(tests, without_rules_nothing_happens);
	tcase_add_test(tests, a_dropped_op_is_sent_and_never_arrives);
	tcase_add_test(tests, a_failed_op_is_reported_once_and_never_arrives);
	tcase_add_test(tests, a_doubled_imm_comes_twice_and_is_sent_once);
	tcase_add_test(tests, a_stale_imm_is_an_older_one);
	tcase_add_test(tests, a_lost_completion_comes_only_with_the_peers_end);
	tcase_add_test(tests, a_corrupt_op_differs_in_one_byte_and_leaves_the_source_alone);
	tcase_add_test(tests, of_a_cut_op_only_the_first_half_lands);
	tcase_add_test(tests, delay_holds_reports_back_and_loses_none);
	tcase_add_test(tests, chances_follow_the_seed);
	tcase_add_loop_test(tests, any_mix_reports_every_op_once, 0, 20);
	tcase_add_test(tests, bad_rules_are_refused_by_name);
	suite_add_tcase(all, tests);
	return all;
}
