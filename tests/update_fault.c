/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong in an update of the real sides: lost, repeated, stale, changed and failed
 * writes, engines that don't step, replicas that leave, callers that stop.  After each the old
 * weights are whole or refused, the sentence names who and what, and the next version goes live.
 * Killed and stopped processes are in faults.sh.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/update_world.h"

static const struct world_options two_to_two = {
	.trainer_layout = "fsdp2",
	.trainer_mesh = "dp=2",
	.rollout_layout = "vllm",
	.rollout_mesh = "tp=2",
	.trainers = 2,
	.replicas = 1,
	.replica_ranks = 2,
	.phase_ms = 3000,
};

/* One write of trainer 1 misbehaves in the second version. */
struct bad_write {
	const char *rule, *says;
	bool digests, inplace;
};

static const struct bad_write bad_writes[] = {
	{"drop", "ops of bucket 'model.", .digests = false},
	{"drop", "ops of bucket 'model.", .inplace = true},
	{"fail", "failed", .digests = false},
	{"fail", "failed", .inplace = true},
	{"dup", "had arrived before", .digests = false},
	{"stale", "fence broken", .digests = false},
	{"corrupt", "changed on the way", .digests = true},
	{"corrupt", "changed on the way", .digests = true, .inplace = true},
};

START_TEST(a_bad_write_never_goes_live_is_named_and_the_next_version_is_whole)
{
	const struct bad_write *bad = &bad_writes[_i];
	struct world_options options = two_to_two;
	char device[128];

	options.digests = bad->digests;
	options.inplace = bad->inplace;
	/* Past the first version's ops, in the middle of the second's. */
	uint64_t ops = world_member_ops(&options, 1);
	snprintf(device, sizeof(device), "%s_nth=%llu:fabric:tcp/127.0.0.1", bad->rule,
		 (unsigned long long)(ops + ops / 2));
	options.fault_device = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, bad->says);
	world_errors_have(world, "version 2");
	world_push_good(world, 3, false);
	world_close(world);
}
END_TEST

static const struct world_options two_replicas = {
	.trainer_layout = "fsdp2",
	.trainer_mesh = "dp=2",
	.rollout_layout = "vllm",
	.rollout_mesh = "tp=2",
	.trainers = 2,
	.replicas = 2,
	.replica_ranks = 2,
	.phase_ms = 1500,
};

/* Pushes; replica 1 isn't in the end live, and the report says why. */
static void push_without_replica_1(struct world *world, uint64_t version, const char *says)
{
	world_push(world, version, PATIENCE_MS, false);
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		const struct trainer *trainer = &world->trainer[i];
		ck_assert_msg(trainer->rc == 0, "%s", trainer->err.text);
		ck_assert_uint_ge(trainer->report.replica_count, 1);
		ck_assert(trainer->report.replicas[0].live);
		for (uint32_t r = 1; r < trainer->report.replica_count; r++) {
			ck_assert(!trainer->report.replicas[r].live);
			ck_assert_msg(strstr(trainer->report.replicas[r].text, says) != NULL, "%s",
				      trainer->report.replicas[r].text);
		}
	}
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_uint_eq(atomic_load(&world->loop[i].resumed), version);
}

/* A dropped rank joins again by itself; the push that finds it back in the run reaches it. */
static void push_until_all_live(struct world *world, uint64_t version)
{
	for (uint64_t until_ns = deadline_in_ms(PATIENCE_MS); clock_ns() < until_ns;) {
		world_push(world, version++, PATIENCE_MS, false);
		ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
		const struct ws_report *report = &world->trainer[0].report;
		uint32_t live = 0;
		for (uint32_t r = 0; r < report->replica_count; r++)
			live += report->replicas[r].live;
		if (live == world->options.replicas)
			return;
		sleep_ns(200000000u);
	}
	ck_abort_msg("replica 1 never came back: %s", world->trainer[0].report.replicas[1].text);
}

START_TEST(an_engine_that_never_steps_is_dropped_and_named_and_comes_back)
{
	struct world_options options = two_replicas;

	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	atomic_store(&world->loop[3].silent, true);
	push_without_replica_1(world, 2, "hasn't called ws_rollout_step");
	atomic_store(&world->loop[3].silent, false);
	push_until_all_live(world, 3);
	ck_assert_uint_ge(atomic_load(&world->loop[3].aborted), 1);
	world_close(world);
}
END_TEST

START_TEST(a_failed_reload_poisons_only_its_replica_which_comes_back)
{
	struct world_options options = two_replicas;

	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	atomic_store(&world->loop[2].fail_reload, 1);
	push_without_replica_1(world, 2, "derived weights can't be made");
	push_until_all_live(world, 3);
	world_close(world);
}
END_TEST

START_TEST(a_replica_that_leaves_is_missed_and_one_that_returns_gets_the_next_version)
{
	struct world *world = world_open(&two_replicas);

	world_push_good(world, 1, false);
	loop_stop(&world->loop[2]);
	loop_stop(&world->loop[3]);
	push_without_replica_1(world, 2, "");
	loop_start(&world->loop[2]);
	loop_start(&world->loop[3]);
	push_until_all_live(world, 3);
	world_close(world);
}
END_TEST

/* Whether all ranks may still say what they found in a version. */
static int verdict_of(const struct world *world, uint64_t version, struct ws_error *err)
{
	uint64_t bytes, different;
	uint32_t ranks;

	return ws_trainer_verified(world->trainer[0].trainer, version, &ranks, &bytes, &different,
				   err);
}

START_TEST(a_verdict_that_lacks_a_replica_is_whole_when_the_version_is_pushed_again)
{
	struct world *world = world_open(&two_replicas);
	struct ws_error err = {0};

	world_push_good(world, 1, false);
	ck_assert_int_eq(verdict_of(world, 1, &err), 0);
	atomic_store(&world->loop[2].fail_reload, 1);
	push_without_replica_1(world, 2, "derived weights can't be made");
	ck_assert_int_eq(verdict_of(world, 2, &err), -ECONNRESET);
	ck_assert_ptr_nonnull(strstr(err.text, "derived weights can't be made"));
	ck_until(atomic_load(&world->loop[3].resumed) == 2, {
		sleep_ns(200000000u);
		world_push(world, 2, PATIENCE_MS, false);
	});
	ck_assert_msg(verdict_of(world, 2, &err) == 0, "%s", err.text);
	world_close(world);
}
END_TEST

/* One forward of rollout 0.0 misbehaves in the second version: the replica behind it goes, it
 * stays. */
static const struct bad_write bad_forwards[] = {
	{"fail", "the forward of param '", .inplace = false},
	{"fail", "the forward of param '", .inplace = true},
	{"drop", "from rollout 0.0", .inplace = false},
};

START_TEST(a_bad_forward_drops_the_replica_that_it_was_for)
{
	struct world_options options = two_replicas;
	char device[128];

	options.fanout = "replica";
	options.inplace = bad_forwards[_i].inplace;
	uint64_t ops = world_member_ops(&options, options.trainers);
	snprintf(device, sizeof(device), "%s_nth=%llu:fabric:tcp/127.0.0.1", bad_forwards[_i].rule,
		 (unsigned long long)(ops + ops / 2));
	options.rollout_fault_device = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	push_without_replica_1(world, 2, bad_forwards[_i].says);
	push_until_all_live(world, 3);
	world_close(world);
}
END_TEST

/* The middle one of three is never ready: the one before lands without it, the one behind can't. */
START_TEST(who_forwards_doesnt_wait_for_a_replica_that_was_dropped)
{
	struct world_options options = two_replicas;

	options.replicas = 3;
	options.fanout = "replica";
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	atomic_store(&world->loop[3].silent, true);
	push_without_replica_1(world, 2, "rollout 1.1");
	atomic_store(&world->loop[3].silent, false);
	push_until_all_live(world, 3);
	world_close(world);
}
END_TEST

START_TEST(a_push_that_others_dont_join_ends_at_its_deadline)
{
	struct world *world = world_open(&two_to_two);
	struct ws_error err = {0};
	struct ws_report report;

	world_push_good(world, 1, false);
	uint64_t start = clock_ns();
	ck_assert_int_lt(ws_trainer_push(world->trainer[0].trainer, 2, 800, &report, &err), 0);
	ck_assert_int_eq(err.code, -ETIMEDOUT);
	ck_assert_msg(strstr(err.text, "version 2") != NULL, "%s", err.text);
	ck_assert_uint_lt(clock_ns() - start, UINT64_C(30000000000));
	ck_assert(!report.replicas[0].live);
	ck_assert_uint_eq(report.replicas[0].live_version, 1);
	/* Trainer 1 was never asked; both are in step again with the next version. */
	for (uint64_t version = 3; version < 6; version++) {
		world_push(world, version, PATIENCE_MS, false);
		if (world->trainer[0].rc == 0 && world->trainer[1].rc == 0)
			break;
	}
	ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
	world_close(world);
}
END_TEST

static void *cancel_main(void *arg)
{
	sleep_ns(300000000u);
	ws_trainer_cancel(arg);
	return NULL;
}

START_TEST(cancel_ends_a_blocked_push_at_once)
{
	struct world *world = world_open(&two_to_two);
	struct ws_error err = {0};
	pthread_t thread;
	uint64_t start = clock_ns();

	ck_assert_int_eq(pthread_create(&thread, NULL, cancel_main, world->trainer[1].trainer), 0);
	ck_fails(ws_trainer_push(world->trainer[1].trainer, 1, 60000, NULL, &err), -ECANCELED, err);
	ck_assert_uint_lt(clock_ns() - start, UINT64_C(30000000000));
	pthread_join(thread, NULL);
	world_close(world);
}
END_TEST

/* Opening needs a few hundred allocations; each of them fails once. */
START_TEST(an_open_whose_nth_allocation_fails_says_so_and_leaks_nothing)
{
	struct world *world = world_open(&two_to_two);
	struct ws_rollout_options rollout = {
		.hub = "tcp://127.0.0.1:9",
		.key_file = world->key_file,
		.rank = 1,
		.world = 2,
		.manifest = (const char *)world->rollout_text.bytes,
		.manifest_bytes = world->rollout_text.count,
		.nics = &(const char *){"127.0.0.1"},
		.nic_count = 1,
	};
	struct ws_trainer_options trainer = {
		.hub = "tcp://127.0.0.1:9",
		.key_file = world->key_file,
		.rank = 1,
		.world = 2,
		.manifest = (const char *)world->trainer_text.bytes,
		.manifest_bytes = world->trainer_text.count,
		.nics = rollout.nics,
		.nic_count = 1,
	};
	struct ws_rollout *opened_rollout = NULL;
	struct ws_trainer *opened_trainer = NULL;
	struct ws_error err = {0};
	int64_t n = 0;
	int rc = -ENOMEM;

	/* Whose threads allocate too must be gone first. */
	for (uint32_t i = world->options.trainers; i-- > 0;) {
		ws_trainer_close(world->trainer[i].trainer);
		world->trainer[i].trainer = NULL;
	}
	for (uint32_t i = 0; i < world->loop_count; i++)
		loop_stop(&world->loop[i]);
	uint64_t live = mem_live_count();
	for (n = 0; rc == -ENOMEM && n < 20000; n++) {
		mem_fail_nth(n);
		rc = _i == 0 ? ws_trainer_open(&opened_trainer, &trainer, &err)
			     : ws_rollout_open(&opened_rollout, &rollout, NULL, NULL, &err);
		mem_fail_nth(-1);
		if (rc != 0)
			ck_assert_uint_eq(mem_live_count(), live);
	}
	ck_assert_msg(rc == 0, "after %lld allocations: %d: %s", (long long)n, rc, err.text);
	ck_assert_int_gt(n, 10);
	ws_trainer_close(opened_trainer);
	ws_rollout_close(opened_rollout);
	ck_assert_uint_eq(mem_live_count(), live);
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *faults = suite_create("update_fault");
	TCase *writes = tcase_create("writes");

	tcase_add_loop_test(writes,
			    a_bad_write_never_goes_live_is_named_and_the_next_version_is_whole, 0,
			    (int)ARRAY_SIZE(bad_writes));
	tcase_set_timeout(writes, 90);
	suite_add_tcase(faults, writes);
	TCase *members = tcase_create("members");
	tcase_add_loop_test(members, an_engine_that_never_steps_is_dropped_and_named_and_comes_back,
			    0, 2);
	tcase_add_loop_test(members, a_failed_reload_poisons_only_its_replica_which_comes_back, 0,
			    2);
	tcase_add_test(members,
		       a_replica_that_leaves_is_missed_and_one_that_returns_gets_the_next_version);
	tcase_add_test(members,
		       a_verdict_that_lacks_a_replica_is_whole_when_the_version_is_pushed_again);
	tcase_add_loop_test(members, a_bad_forward_drops_the_replica_that_it_was_for, 0, 3);
	tcase_add_test(members, who_forwards_doesnt_wait_for_a_replica_that_was_dropped);
	tcase_add_test(members, a_push_that_others_dont_join_ends_at_its_deadline);
	tcase_add_test(members, cancel_ends_a_blocked_push_at_once);
	tcase_add_loop_test(members, an_open_whose_nth_allocation_fails_says_so_and_leaks_nothing,
			    0, 2);
	tcase_set_timeout(members, 90);
	suite_add_tcase(faults, members);
	return faults;
}
