/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Post steps in updates by the real sides: they are given whole params of the right version, write
 * what isn't live, hold up landing and nothing else; and what happens when one fails, is late,
 * never comes back, or its version is given up.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/post_text.h"
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
	.staged = "model.layers.{L}.mlp.down_proj.weight",
	.derived = SUMS,
};

/* Waits until a step is there. */
static void await_step(struct engine_loop *loop)
{
	for (uint64_t until = deadline_in_ms(PATIENCE_MS); atomic_load(&loop->post_inside) == 0;) {
		ck_assert_msg(clock_ns() < until, "no step comes");
		sleep_ns(1000000);
	}
}

static void *push_main(void *arg)
{
	world_push(arg, 2, PATIENCE_MS, false);
	return NULL;
}

/* ---------------------------------------------------------------- what goes well */

START_TEST(steps_see_whole_params_and_write_what_isn_t_live)
{
	struct world_options options = two_to_two;

	options.inplace = (_i & 1) != 0;
	options.quant = _i >= 2 ? "fp8-block" : NULL;
	/* All of it through few slots, with small ops and digests. */
	if (_i == 3) {
		options.op_bytes = 4096;
		options.staging_bytes = 16u << 10;
		options.recv_staging_bytes = 128u << 10;
		options.run_bytes_min = 64u << 20;
		options.digests = true;
	}
	struct world *world = world_open(&options);
	for (uint64_t version = 1; version <= 3; version++)
		world_push_good(world, version, version == 3);
	for (uint32_t i = 0; i < world->loop_count; i++) {
		struct engine_loop *loop = &world->loop[i];
		const struct ws_rollout_report *report = loop_last(loop);
		ck_assert_uint_gt(loop->steps.call_count, 2);
		ck_assert_uint_lt(loop->steps.derived_count, loop->steps.made_count);
		ck_assert_uint_eq(atomic_load(&loop->post_calls), 3 * loop->steps.call_count);
		ck_assert_uint_eq(report->post_count, loop->steps.call_count);
		ck_assert_uint_gt(report->post_ns, 0);
	}
	world_close(world);
}
END_TEST

/* What one rank has landed another one passes on, while its steps read it. */
START_TEST(steps_and_forwards_read_the_same_params)
{
	struct world_options options = two_to_two;

	options.replicas = options.min_replicas = 2;
	options.fanout = "replica";
	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	for (uint64_t version = 1; version <= 2; version++)
		world_push_good(world, version, false);
	ck_assert_uint_gt(loop_last(&world->loop[2])->bytes_from_rollouts, 0);
	world_close(world);
}
END_TEST

/* Steps run one after the other while the last of them is held up, and nothing goes live. */
START_TEST(a_version_has_not_landed_before_its_steps_are_back)
{
	struct world_options options = two_to_two;
	pthread_t pusher;

	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	struct engine_loop *loop = &world->loop[1];
	world_push_good(world, 1, false);
	uint64_t paused = loop->paused, reloaded = loop->reloaded;
	atomic_store(&loop->post_act, POST_STUCK);
	ck_assert_int_eq(pthread_create(&pusher, NULL, push_main, world), 0);
	await_step(loop);
	sleep_ns(200000000);
	ck_assert_uint_eq(atomic_load(&loop->resumed), 1);
	atomic_store(&loop->post_release, true);
	pthread_join(pusher, NULL);
	ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
	(void)loop_last(loop);
	ck_assert_uint_eq(loop->paused, paused + (options.inplace ? 0 : 1));
	ck_assert_uint_eq(loop->reloaded, reloaded + 1);
	world_close(world);
}
END_TEST

/* ---------------------------------------------------------------- what doesn't */

START_TEST(a_step_that_fails_aborts_its_version_with_who_which_and_why)
{
	struct world_options options = two_to_two;

	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	struct engine_loop *loop = &world->loop[1];
	world_push_good(world, 1, false);
	uint32_t before = atomic_load(&loop->post_calls);
	atomic_store(&loop->post_act, _i == 1 ? POST_MUTE : POST_FAIL);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, "rollout 0.1: post step 's");
	world_errors_have(world, _i == 1 ? "returned -61 and said nothing"
					 : "(version 2): the kernel has no such layout");
	/* No other began after it; old weights were looked at by on_abort, in double mode. */
	ck_assert_uint_le(atomic_load(&loop->post_calls) - before, loop->steps.call_count);
	ck_assert_uint_eq(atomic_load(&loop->resumed), 1);
	world_push_good(world, 3, false);
	ck_assert_uint_ge(atomic_load(&loop->aborted), 1);
	world_close(world);
}
END_TEST

/* It ends as soon as it is told to; the next version finds it gone. */
START_TEST(a_step_that_is_late_is_said_and_its_version_given_up)
{
	struct world_options options = two_to_two;

	options.inplace = _i == 1;
	options.post_ms = 1000;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	atomic_store(&world->loop[0].post_act, POST_LINGER);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, "rollout 0.0: post step 's");
	world_errors_have(world, "isn't back after");
	world_errors_have(world, "ms (version 2)");
	world_push_good(world, 3, false);
	ck_assert(atomic_load(&world->loop[0].post_cancelled));
	world_close(world);
}
END_TEST

/* One that doesn't heed: on_abort waits for it, its replica stays outside, and the other goes on.
 */
START_TEST(a_step_that_never_comes_back_holds_up_its_own_replica_only)
{
	struct world_options options = two_to_two;

	options.replicas = 2;
	options.post_ms = 1000;
	options.phase_ms = 1500;
	struct world *world = world_open(&options);
	struct engine_loop *stuck = &world->loop[3];
	world_push_good(world, 1, false);
	atomic_store(&stuck->post_act, POST_STUCK);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, "rollout 1.1: post step 's");
	uint64_t aborted = atomic_load(&stuck->aborted);
	world_push(world, 3, PATIENCE_MS, false);
	ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
	ck_assert_uint_eq(atomic_load(&world->loop[0].resumed), 3);
	ck_assert_uint_eq(atomic_load(&stuck->aborted), aborted);
	ck_assert_uint_eq(atomic_load(&stuck->resumed), 1);
	ck_assert_uint_eq(atomic_load(&stuck->post_inside), 1);
	atomic_store(&stuck->post_release, true);
	for (uint64_t until = deadline_in_ms(PATIENCE_MS), v = 4; atomic_load(&stuck->resumed) < 4;
	     v++) {
		ck_assert_msg(clock_ns() < until, "its replica doesn't come back");
		world_push(world, v, PATIENCE_MS, false);
	}
	ck_assert_uint_gt(atomic_load(&stuck->aborted), aborted);
	world_close(world);
}
END_TEST

/* A write of trainer 1 fails while a step runs: it is told, and no further one begins. */
START_TEST(a_version_that_is_aborted_elsewhere_ends_its_steps)
{
	struct world_options options = two_to_two;
	char device[128];

	options.inplace = _i == 1;
	uint64_t last = 2 * world_member_ops(&options, 1);
	snprintf(device, sizeof(device), "fail_nth=%llu:fabric:tcp/127.0.0.1",
		 (unsigned long long)last);
	options.fault_device = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	for (uint32_t i = 0; i < 2; i++)
		atomic_store(&world->loop[i].post_act, POST_LINGER);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, "failed");
	for (uint32_t i = 0; i < 2; i++)
		atomic_store(&world->loop[i].post_act, POST_WELL);
	world_push_good(world, 3, false);
	world_close(world);
}
END_TEST

/* Closing waits for it as long as it may take, and leaves it its memory. */
START_TEST(a_side_is_closed_while_a_step_hangs)
{
	struct world_options options = two_to_two;

	options.inplace = _i == 1;
	options.post_ms = 1000;
	struct world *world = world_open(&options);
	struct engine_loop *loop = &world->loop[0];
	world_push_good(world, 1, false);
	atomic_store(&loop->post_act, POST_STUCK);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, "isn't back");
	loop_stop(loop);
	ck_assert_uint_eq(atomic_load(&loop->post_inside), 1);
	atomic_store(&loop->post_release, true);
	for (uint64_t until = deadline_in_ms(PATIENCE_MS); atomic_load(&loop->post_inside) > 0;) {
		ck_assert(clock_ns() < until);
		sleep_ns(1000000);
	}
	sleep_ns(50000000); /* its thread frees what was left to it */
	world_close(world);
}
END_TEST

START_TEST(a_side_that_describes_itself_again_has_its_steps)
{
	struct world_options options = two_to_two;

	options.staged = NULL; /* its memory is added once in this world */
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	for (uint32_t i = 0; i < 2; i++)
		loop_remap_text(&world->loop[i], world->rollout_text.bytes,
				world->rollout_text.count);
	for (uint32_t i = 0; i < 2; i++)
		loop_await_remap(&world->loop[i]);
	world_push_good(world, 2, false);
	world_push_good(world, 3, false);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_uint_eq(atomic_load(&world->loop[i].post_calls),
				  3 * world->loop[i].steps.call_count);
	world_close(world);
}
END_TEST

/* ---------------------------------------------------------------- wrong calls */

static int no_step(void *arg, const struct ws_post *post, struct ws_error *err)
{
	(void)arg;
	(void)post;
	(void)err;
	return 0;
}

START_TEST(a_side_starts_with_all_steps_and_their_memory_or_says_what_is_missing)
{
	struct world *world = world_open(&two_to_two);
	struct engine_loop *loop = &world->loop[0];
	struct ws_error err = {0};

	ck_fails(ws_rollout_on_post(loop->rollout, "late", no_step, NULL, &err), -EINVAL, err);
	loop_stop(loop);
	struct ws_rollout_options options = {
		.hub = ws_trainer_hub(world->trainer[0].trainer),
		.key_file = world->key_file,
		.world = 2,
		.manifest = (const char *)world->rollout_text.bytes,
		.manifest_bytes = world->rollout_text.count,
		.stream = &options, /* never looked at: the params lie in host memory */
	};
	ck_ok(ws_rollout_open(&loop->rollout, &options, NULL, NULL, &err), err);
	struct ws_rollout *rollout = loop->rollout;
	for (uint32_t i = 0; i < loop->params.count; i++)
		ck_ok(ws_rollout_add(rollout, loop->params.params[i].name, &loop->where[i], &err),
		      err);
	ck_fails(ws_rollout_start(rollout, 1000, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "'sums.0'") != NULL, "%s", err.text);
	struct ws_memory small = {.base = &err, .bytes = 8};
	ck_fails(ws_rollout_add(rollout, "sums.0", &small, &err), -EINVAL, err);
	ck_assert_uint_eq(ws_rollout_param_count(rollout),
			  loop->params.count + loop->steps.derived_count);
	for (uint32_t m = 0; m < loop->steps.derived_count; m++) {
		const char *name;
		enum ws_dtype dtype;
		uint64_t bytes;
		ck_assert_int_eq(
			ws_rollout_param(rollout, loop->params.count + m, &name, &dtype, &bytes),
			0);
		ck_assert_uint_eq(bytes, 64);
		ck_assert_int_eq(dtype, WS_U64);
		ck_ok(ws_rollout_add(rollout, name, &loop->made[m], &err), err);
	}
	ck_fails(ws_rollout_start(rollout, 1000, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "post step 'sums'") != NULL, "%s", err.text);
	ck_ok(ws_rollout_on_post(rollout, "sums", no_step, NULL, &err), err);
	ck_fails(ws_rollout_on_post(rollout, "sums", no_step, NULL, &err), -EINVAL, err);
	ck_fails(ws_rollout_on_post(rollout, "", no_step, NULL, &err), -EINVAL, err);
	ck_ok(ws_rollout_on_post(rollout, "swap", no_step, NULL, &err), err);
	ck_fails(ws_rollout_start(rollout, 1000, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "stream") != NULL, "%s", err.text);
	for (int i = 2; i < WS_POST_STEPS_MAX; i++) {
		char name[16];
		snprintf(name, sizeof(name), "step %d", i);
		ck_ok(ws_rollout_on_post(rollout, name, no_step, NULL, &err), err);
	}
	ck_fails(ws_rollout_on_post(rollout, "one more", no_step, NULL, &err), -ENOSPC, err);
	ws_rollout_close(rollout);
	loop->rollout = NULL;
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("update_post");
	TCase *well = tcase_create("well"), *badly = tcase_create("badly");

	tcase_add_loop_test(well, steps_see_whole_params_and_write_what_isn_t_live, 0, 4);
	tcase_add_loop_test(well, steps_and_forwards_read_the_same_params, 0, 2);
	tcase_add_loop_test(well, a_version_has_not_landed_before_its_steps_are_back, 0, 2);
	tcase_add_test(well, a_side_that_describes_itself_again_has_its_steps);
	tcase_set_timeout(well, 300);
	suite_add_tcase(tests, well);
	tcase_add_loop_test(badly, a_step_that_fails_aborts_its_version_with_who_which_and_why, 0,
			    2);
	tcase_add_loop_test(badly, a_step_that_is_late_is_said_and_its_version_given_up, 0, 2);
	tcase_add_test(badly, a_step_that_never_comes_back_holds_up_its_own_replica_only);
	tcase_add_loop_test(badly, a_version_that_is_aborted_elsewhere_ends_its_steps, 0, 2);
	tcase_add_loop_test(badly, a_side_is_closed_while_a_step_hangs, 0, 2);
	tcase_add_test(badly,
		       a_side_starts_with_all_steps_and_their_memory_or_says_what_is_missing);
	tcase_set_timeout(badly, 300);
	suite_add_tcase(tests, badly);
	return tests;
}
