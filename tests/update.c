/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates from end to end: real trainers, real rollouts, a real hub, libfabric's tcp on loopback,
 * small models with real names, every byte of every rank compared.
 */
#include <string.h>

#include "tests/test.h"
#include "tests/update_world.h"

static const struct world_options three_to_two = {
	.trainer_layout = "fsdp2",
	.trainer_mesh = "dp=3",
	.rollout_layout = "vllm",
	.rollout_mesh = "tp=2",
	.trainers = 3,
	.replicas = 1,
	.replica_ranks = 2,
};

START_TEST(every_byte_goes_live_in_each_mode)
{
	struct world_options options = three_to_two;

	options.inplace = (_i & 1) != 0;
	options.digests = (_i & 2) != 0;
	if ((_i & 4) != 0) {
		options.nic_count = 2;
		options.trainer_nics[0] = options.rollout_nics[0] = "127.0.0.1";
		options.trainer_nics[1] = options.rollout_nics[1] = "127.0.0.2";
	}
	struct world *world = world_open(&options);
	for (uint64_t version = 1; version <= 2; version++)
		world_push_good(world, version, false);
	for (uint32_t i = 0; i < world->loop_count; i++) {
		const struct engine_loop *loop = &world->loop[i];
		ck_assert_uint_eq(loop->begun, 2);
		ck_assert_uint_eq(loop->reloaded, 2);
		ck_assert_uint_eq(loop->paused, options.inplace ? 0 : 2);
		ck_assert_uint_ge(loop->checked_bytes, 4 * loop->params.bytes);
	}
	for (uint32_t i = 0; i < options.trainers && options.nic_count == 2; i++)
		for (uint32_t n = 0; n < 2; n++)
			ck_assert_uint_gt(world->trainer[i].report.nic_bytes[n], 0);
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *update = suite_create("update");
	TCase *modes = tcase_create("modes");

	tcase_add_loop_test(modes, every_byte_goes_live_in_each_mode, 0, 8);
	tcase_set_timeout(modes, 60);
	suite_add_tcase(update, modes);
	return update;
}
