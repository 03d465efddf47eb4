/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates from end to end: real trainers, real rollouts, a real hub, libfabric's tcp on loopback,
 * small models with real names, every byte of every rank compared.
 */
#include <errno.h>
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
			ck_assert_uint_gt(world->trainer[i].report.nics[n].bytes_sent, 0);
	world_close(world);
}
END_TEST

START_TEST(params_may_change_once_they_are_released)
{
	struct world_options options = three_to_two;

	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	for (uint64_t version = 1; version <= 3; version++)
		world_push_good(world, version, true); /* scribbles between released and end */
	world_close(world);
}
END_TEST

/* Row-parallel weights cut by 3 and by 2 are strided on both sides: packed, through a ring of few
 * slots with credits, and unpacked. */
START_TEST(a_small_ring_and_small_staging_carry_strided_weights)
{
	struct world_options options = {
		.trainer_layout = "megatron",
		.trainer_mesh = "tp=2",
		.rollout_layout = "vllm",
		.rollout_mesh = "tp=4",
		.trainers = 2,
		.replicas = 1,
		.replica_ranks = 4,
		.scale = 4000, /* four heads */
		.op_bytes = 16u << 10,
		.staging_bytes = 64u << 10,
		.recv_staging_bytes = 256u << 10,
		.run_bytes_min = 64u << 20,
		.digests = _i == 1,
	};
	struct world *world = world_open(&options);
	bool ring = false;

	world_push_good(world, 1, false);
	world_push_good(world, 2, false);
	for (uint32_t i = 0; i < options.trainers; i++) {
		ck_assert_uint_gt(world->trainer[i].report.staging_high_bytes, 0);
		ck_assert_uint_le(world->trainer[i].report.staging_high_bytes,
				  options.staging_bytes);
	}
	for (uint32_t i = 0; i < world->loop_count; i++) {
		const struct ws_rollout_report report = *loop_last(&world->loop[i]);
		ck_assert_uint_eq(report.version, 2);
		ck_assert_uint_le(report.ring_bytes, options.recv_staging_bytes);
		ring = ring || report.ring_bytes > 0;
	}
	ck_assert(ring);
	world_close(world);
}
END_TEST

START_TEST(two_replicas_of_experts_go_live_with_and_without_the_barrier)
{
	struct world_options options = {
		.model = "qwen3-30b-a3b",
		.scale = 3000,
		.trainer_layout = "fsdp2",
		.trainer_mesh = "dp=2",
		.rollout_layout = "vllm",
		.rollout_mesh = "tp=2",
		.trainers = 2,
		.replicas = 2,
		.replica_ranks = 2,
		.min_replicas = 2,
		.barrier = _i == 1,
	};
	struct world *world = world_open(&options);

	atomic_store(&world->loop[3].put_off, 5); /* -EAGAIN of on_pause: asked again */
	world_push_good(world, 7, false);
	ck_assert_uint_eq(atomic_load(&world->loop[3].put_off), 0);
	world_push_good(world, 7, false); /* the same version again: a new attempt */
	world_push_good(world, 9, false);
	world_close(world);
}
END_TEST

/* Norms and, with one expert group, all else that isn't split is held alike by the ranks of a host.
 */
START_TEST(what_rollouts_forward_goes_live_in_each_mode)
{
	bool chain = (_i & 1) != 0, inplace = (_i & 2) != 0;
	struct world_options options = {
		.model = "qwen3-30b-a3b",
		.scale = 16000,
		.trainer_layout = "fsdp2",
		.trainer_mesh = "dp=2",
		.rollout_layout = "vllm",
		.rollout_mesh = chain ? "tp=2" : "dp=2,ep=2",
		.trainers = 2,
		.replicas = chain ? 3 : 2,
		.replica_ranks = 2,
		.min_replicas = chain ? 3 : 2,
		.fanout = chain ? "replica" : "node",
		.inplace = inplace,
		.digests = !inplace,
		.op_bytes = 16u << 10,
		.run_bytes_min = 4096,
	};
	struct world *world = world_open(&options);

	for (uint64_t version = 1; version <= 2; version++)
		world_push_good(world, version, version == 2);
	uint64_t forwarded = 0, received = 0;
	for (uint32_t i = 0; i < world->loop_count; i++) {
		const struct ws_rollout_report report = *loop_last(&world->loop[i]);
		ck_assert_uint_gt(report.bytes, 0);
		ck_assert_uint_le(report.bytes_from_rollouts, report.bytes);
		forwarded += report.bytes_forwarded;
		received += report.bytes_from_rollouts;
		bool ends = i / 2 == 0, last = i / 2 == 2;
		if (chain)
			ck_assert_uint_eq(report.bytes_from_rollouts, ends ? 0 : report.bytes);
		ck_assert(chain && last ? report.bytes_forwarded == 0 : report.bytes_forwarded > 0);
	}
	ck_assert_uint_gt(forwarded, 0);
	ck_assert_uint_eq(forwarded, received);
	world_close(world);
}
END_TEST

START_TEST(a_failed_hook_ends_the_attempt_everywhere_and_the_next_version_goes_live)
{
	struct world_options options = three_to_two;

	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	atomic_store(&world->loop[1].fail_begin, 1);
	world_push(world, 2, PATIENCE_MS, false);
	for (uint32_t i = 0; i < options.trainers; i++) {
		const struct trainer *trainer = &world->trainer[i];
		ck_assert_int_lt(trainer->rc, 0);
		ck_assert_ptr_nonnull(strstr(trainer->err.text, "version 2"));
		ck_assert_msg(strstr(trainer->err.text, "the engine is out of order") != NULL, "%s",
			      trainer->err.text);
		ck_assert_ptr_nonnull(strstr(trainer->err.text, "rollout 0.1"));
		ck_assert(!trainer->report.replicas[0].live);
	}
	world_push_good(world, 3, false);
	/* Old weights were looked at by on_abort, where they are still there. */
	ck_assert_uint_ge(atomic_load(&world->loop[0].aborted), 1);
	world_close(world);
}
END_TEST

START_TEST(trainers_that_push_different_versions_are_both_told)
{
	struct world *world = world_open(&three_to_two);
	struct ws_error err[3] = {0};

	for (uint32_t i = 0; i < 3; i++)
		ck_ok(ws_trainer_push_begin(world->trainer[i].trainer, i == 2 ? 6 : 5, 10000,
					    &err[i]),
		      err[i]);
	for (uint32_t i = 0; i < 3; i++) {
		int rc = ws_trainer_push_end(world->trainer[i].trainer, NULL, &err[i]);
		ck_assert_int_lt(rc, 0);
		ck_assert_msg(strstr(err[i].text, "5") != NULL && strstr(err[i].text, "6") != NULL,
			      "%s", err[i].text);
	}
	world_push_good(world, 7, false);
	world_close(world);
}
END_TEST

START_TEST(wrong_calls_are_refused_with_what_was_expected)
{
	struct world *world = world_open(&three_to_two);
	struct ws_trainer *trainer = world->trainer[0].trainer;
	struct ws_memory memory = {.base = &memory, .bytes = 1};
	struct ws_error err = {0};

	ck_fails(ws_trainer_add(trainer, "no.such.param", &memory, &err), -EINVAL, err);
	ck_fails(ws_trainer_push_released(trainer, &err), -EINVAL, err);
	ck_fails(ws_trainer_push_begin(trainer, 0, 1000, &err), -EINVAL, err);
	world_push_good(world, 5, false);
	ck_fails(ws_trainer_push_begin(trainer, 4, 1000, &err), -EINVAL, err);
	ck_assert_ptr_nonnull(strstr(err.text, "5"));
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *update = suite_create("update");
	TCase *modes = tcase_create("modes");

	tcase_add_loop_test(modes, every_byte_goes_live_in_each_mode, 0, 8);
	tcase_add_loop_test(modes, params_may_change_once_they_are_released, 0, 2);
	tcase_add_loop_test(modes, a_small_ring_and_small_staging_carry_strided_weights, 0, 2);
	tcase_add_loop_test(modes, two_replicas_of_experts_go_live_with_and_without_the_barrier, 0,
			    2);
	tcase_add_loop_test(modes, what_rollouts_forward_goes_live_in_each_mode, 0, 4);
	tcase_add_loop_test(
		modes, a_failed_hook_ends_the_attempt_everywhere_and_the_next_version_goes_live, 0,
		2);
	tcase_add_test(modes, trainers_that_push_different_versions_are_both_told);
	tcase_add_test(modes, wrong_calls_are_refused_with_what_was_expected);
	tcase_set_timeout(modes, 60);
	suite_add_tcase(update, modes);
	return update;
}
