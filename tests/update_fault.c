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

static void errors_have(const struct world *world, const char *text)
{
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		const struct trainer *trainer = &world->trainer[i];
		ck_assert_int_lt(trainer->rc, 0);
		ck_assert_msg(strstr(trainer->err.text, text) != NULL,
			      "trainer %u, without '%s': %s", i, text, trainer->err.text);
	}
}

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
	uint64_t ops = world_trainer_ops(&options, 1);
	snprintf(device, sizeof(device), "%s_nth=%llu:fabric:tcp/127.0.0.1", bad->rule,
		 (unsigned long long)(ops + ops / 2));
	options.fault_device = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	world_push(world, 2, 20000, false);
	errors_have(world, bad->says);
	errors_have(world, "version 2");
	world_push_good(world, 3, false);
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
	return faults;
}
