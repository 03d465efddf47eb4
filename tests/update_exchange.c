/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong while trainers write to trainers.  No rollout is ready as long as its engine
 * doesn't step, so nothing but maxima is written then: the exchange stands by itself.  After each
 * fault the next version is whole (and update_quant.c has what goes well).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/update_world.h"

static const struct world_options three_to_two = {
	.scale = 48000,
	.trainer_layout = "fsdp2",
	.trainer_mesh = "dp=3",
	.rollout_layout = "vllm",
	.rollout_mesh = "tp=2",
	.quant = "fp8-block",
	.trainers = 3,
	.replicas = 1,
	.replica_ranks = 2,
	.phase_ms = 3000,
};

static void engines_halt(struct world *world, bool halt)
{
	for (uint32_t i = 0; i < world->loop_count; i++)
		atomic_store(&world->loop[i].silent, halt);
}

static void *engines_go_on_later(void *arg)
{
	sleep_ns(1000000000u);
	engines_halt(arg, false);
	return NULL;
}

/* One write of maxima of trainer 1 misbehaves in the second version. */
static const struct bad_write {
	const char *rule, *says;
	bool digests;
} bad_writes[] = {
	{"fail", "the write of maxima of param '", false},
	{"dup", "had arrived before, from trainer 1", false},
	{"corrupt", "maxima of bucket '", true},
	{"drop", "ops of maxima of bucket '", false},
};

START_TEST(bad_maxima_abort_the_attempt_and_are_named)
{
	const struct bad_write *bad = &bad_writes[_i];
	struct world_options options = three_to_two;
	bool comes_late = strcmp(bad->rule, "drop") == 0;
	char device[128];
	pthread_t waker;

	options.digests = bad->digests;
	uint64_t ops = world_member_ops(&options, 1), maxima = world_exchange_ops(&options, 1);
	ck_assert_uint_gt(maxima, 0);
	snprintf(device, sizeof(device), "%s_nth=%llu:fabric:tcp/127.0.0.1", bad->rule,
		 (unsigned long long)(ops + (maxima + 1) / 2));
	options.fault_device = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	engines_halt(world, true);
	if (comes_late) /* nobody notices before rollouts wait for what was made of it */
		ck_assert_int_eq(pthread_create(&waker, NULL, engines_go_on_later, world), 0);
	world_push(world, 2, PATIENCE_MS, false);
	if (comes_late)
		pthread_join(waker, NULL);
	engines_halt(world, false);
	world_errors_have(world, bad->says);
	world_errors_have(world, "version 2");
	world_push_good(world, 3, false);
	world_push_good(world, 4, false);
	world_close(world);
}
END_TEST

/* The maxima are there, nothing else is; params are given back, and written over. */
START_TEST(a_push_that_ends_in_mid_exchange_leaves_nothing_behind)
{
	struct world_options options = three_to_two;

	if (_i == 1) {
		options.transport = "ipc";
		options.nic_count = 1;
		options.trainer_nics[0] = options.rollout_nics[0] = "host";
	}
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	engines_halt(world, true);
	world_push(world, 2, 700, false);
	for (uint32_t i = 0; i < options.trainers; i++)
		world_fill(&world->trainer[i], 77);
	engines_halt(world, false);
	world_errors_have(world, "cannot push version 2");
	world_push_good(world, 3, true);
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("update_exchange");
	TCase *wrong = tcase_create("wrong");

	tcase_set_timeout(wrong, 120);
	tcase_add_loop_test(wrong, bad_maxima_abort_the_attempt_and_are_named, 0,
			    (int)ARRAY_SIZE(bad_writes));
	tcase_add_loop_test(wrong, a_push_that_ends_in_mid_exchange_leaves_nothing_behind, 0, 2);
	suite_add_tcase(tests, wrong);
	return tests;
}
