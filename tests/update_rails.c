/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates of the real sides over two NICs per rank, of which one or both go out of use in the
 * middle: that version is aborted everywhere and the old weights stay, the next one runs on the
 * rest and says so, and later ones on all again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/transport/tables.h"
#include "tests/test.h"
#include "tests/update_world.h"

#define FIRST  ":fabric:tcp/127.0.0.1"
#define SECOND ":fabric:tcp/127.0.0.2"

static const struct world_options two_by_two = {
	.trainer_layout = "fsdp2",
	.trainer_mesh = "dp=2",
	.rollout_layout = "vllm",
	.rollout_mesh = "tp=2",
	.trainers = 2,
	.replicas = 1,
	.replica_ranks = 2,
	.phase_ms = 5000,
	.transport = "fault",
	.op_bytes = 16u << 10,
	.nic_count = 2,
	.trainer_nics = {FIRST, SECOND},
	.rollout_nics = {FIRST, SECOND},
};

static void reports_name(const struct world *world, const char *who)
{
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		const char *text = world->trainer[i].report.nic_trouble;
		ck_assert_msg(strncmp(text, who, strlen(who)) == 0 &&
				      strstr(text, "running on 1 of 2 NICs") != NULL,
			      "trainer %u: %s", i, text);
	}
}

/* Of the last push: nobody says otherwise, and each NIC of a trainer sent something. */
static bool all_nics_ran(const struct world *world)
{
	bool ran = world->trainer[0].report.nic_trouble[0] == '\0';

	for (uint32_t i = 0; i < world->options.trainers; i++)
		for (uint32_t n = 0; n < 2; n++) {
			const struct ws_nic *nic = &world->trainer[i].report.nics[n];
			ran = ran && !nic->down && nic->bytes_sent > 0;
		}
	return ran;
}

/* Pushes until a version has run on all NICs. */
static void push_until_back(struct world *world, uint64_t version)
{
	uint64_t until_ns = deadline_in_ms(PATIENCE_MS);
	do {
		ck_assert_msg(clock_ns() < until_ns, "%s", world->trainer[0].report.nic_trouble);
		sleep_ns(100000000);
		world_push_good(world, version++, false);
	} while (!all_nics_ran(world));
	for (uint32_t i = 0; i < world->loop_count; i++) {
		const struct ws_rollout_report report = *loop_last(&world->loop[i]);
		ck_assert_str_eq(report.nic_trouble, "");
	}
}

/* Each NIC carries about half of a rank's traffic, so this is in the second version. */
static uint64_t in_second(const struct world_options *options)
{
	uint64_t ops = world_member_ops(options, 1);
	return ops / 2 + ops / 4;
}

struct case_of {
	bool rollout, inplace;
	const char *rule, *says;
};

static const struct case_of cases[] = {
	{false, false, "down_nth=%llu", "is down: its port is down by rule"},
	{true, true, "down_nth=%llu", "is down: its port is down by rule"},
	{false, true, "gone_nth=%llu", "is lost: "},
	{true, false, "gone_nth=%llu", "is lost: "},
};

START_TEST(one_of_two_nics_goes_out_of_use_and_comes_back)
{
	const struct case_of *wanted = &cases[_i];
	const char *who = wanted->rollout ? "rollout 0.0: NIC 'fault(" : "trainer 1: NIC 'fault(";
	struct world_options options = two_by_two;
	char rule[64], device[128];

	options.inplace = wanted->inplace;
	snprintf(rule, sizeof(rule), wanted->rule, (unsigned long long)in_second(&options));
	snprintf(device, sizeof(device), "%s%s", rule, SECOND);
	const char **own = wanted->rollout ? options.rollout_own_nics : options.trainer_own_nics;
	own[0] = FIRST;
	own[1] = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	ck_assert_str_eq(world->trainer[0].report.nic_trouble, "");
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, who);
	world_errors_have(world, wanted->says);
	reports_name(world, who);
	/* In place who was written to is poisoned; who wasn't ready yet needn't be. */
	uint32_t old = 0;
	for (uint32_t i = 0; i < world->loop_count; i++)
		old += ws_rollout_version(world->loop[i].rollout) == 1;
	ck_assert(wanted->inplace ? old < world->loop_count : old == world->loop_count);
	world_push_good(world, 3, false);
	reports_name(world, who);
	if (!wanted->rollout) {
		ck_assert(world->trainer[1].report.nics[1].down);
		ck_assert_uint_eq(world->trainer[1].report.nics[1].bytes_sent, 0);
		ck_assert_uint_gt(world->trainer[1].report.nics[0].bytes_sent, 0);
	} else {
		const struct ws_rollout_report report = *loop_last(&world->loop[0]);
		ck_assert_ptr_nonnull(strstr(report.nic_trouble, wanted->says));
		ck_assert(report.nics[1].down);
	}
	fault_mend();
	push_until_back(world, 4);
	world_close(world);
}
END_TEST

/* _i: of a trainer or of a rollout. */
START_TEST(without_any_nic_versions_fail_in_time_and_go_on_when_a_port_is_up)
{
	const char *who = _i == 0 ? "trainer 1" : "rollout 0.0";
	struct world_options options = two_by_two;
	char devices[2][128], says[64];

	unsigned long long nth = in_second(&options);
	snprintf(devices[0], sizeof(devices[0]), "down_nth=%llu%s", nth, FIRST);
	snprintf(devices[1], sizeof(devices[1]), "down_nth=%llu%s", nth, SECOND);
	const char **own = _i == 0 ? options.trainer_own_nics : options.rollout_own_nics;
	own[0] = devices[0];
	own[1] = devices[1];
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	uint64_t version = 1;
	snprintf(says, sizeof(says), "%s has no NIC in use: NIC 'fault(", who);
	/* The second goes down one version later, if the first ended this one before. */
	do {
		world_push(world, ++version, 2000, false);
		world_errors_have(world, who);
		ck_assert_uint_lt(version, 6);
	} while (strstr(world->trainer[0].err.text, says) == NULL);
	world_errors_have(world, says);
	for (uint32_t i = 0; i < options.trainers; i++)
		ck_assert_int_eq(world->trainer[i].rc, -ETIMEDOUT);
	fault_mend();
	push_until_back(world, ++version);
	world_close(world);
}
END_TEST

/* A trainer's rail swallows everything, and its port stays up. */
START_TEST(a_silent_rail_costs_a_version_is_left_out_and_comes_back)
{
	struct world_options options = two_by_two;
	char device[128];

	snprintf(device, sizeof(device), "silent_nth=%llu%s",
		 (unsigned long long)in_second(&options), SECOND);
	options.trainer_own_nics[0] = FIRST;
	options.trainer_own_nics[1] = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	/* It is found out for each rollout to which something is under way: for both, at last. */
	uint64_t version = 1;
	for (bool good = false; !good; good = world->trainer[0].rc == 0) {
		world_push(world, ++version, PATIENCE_MS, false);
		if (world->trainer[0].rc != 0)
			world_errors_have(world,
					  "NIC 'fault(tcp 127.0.0.2)' failed: no answer, by rule");
		ck_assert_uint_le(version, 4);
	}
	ck_assert_uint_ge(version, 3);
	for (uint32_t i = 0; i < options.trainers; i++) {
		const char *text = world->trainer[i].report.nic_trouble;
		ck_assert_msg(strstr(text, "trainer 1: NIC 'fault(tcp 127.0.0.2)' left out to "
					   "'rollout 0.") == text,
			      "trainer %u: %s", i, text);
		ck_assert_ptr_nonnull(strstr(text, ": no answer, by rule"));
	}
	fault_mend();
	push_until_back(world, version + 1);
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("update_rails");
	TCase *tcase = tcase_create("rails");
	tcase_set_timeout(tcase, 300);
	tcase_add_loop_test(tcase, one_of_two_nics_goes_out_of_use_and_comes_back, 0,
			    (int)ARRAY_SIZE(cases));
	tcase_add_loop_test(
		tcase, without_any_nic_versions_fail_in_time_and_go_on_when_a_port_is_up, 0, 2);
	tcase_add_test(tcase, a_silent_rail_costs_a_version_is_left_out_and_comes_back);
	suite_add_tcase(suite, tcase);
	return suite;
}
