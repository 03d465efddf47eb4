/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates into a GPU whose engine gives its stream: unpacking, post steps and the copy after commit
 * are on it, behind what the engine has put there, and before what it puts there next.  Without
 * one they wait for none of the engine's.  And a side is closed while a step's kernel hangs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu_hang.h"
#include "tests/post_text.h"
#include "tests/update_world.h"

#define STUCK_MS 6000 /* after post_ms, of which a world makes more */
#define BOUND_MS 30000
#define LOOK_MS	 500 /* within which an update would have gone live */

/* All of it through few slots: everything is packed, and unpacked on the GPU. */
static const struct world_options packed = {
	.trainer_layout = "fsdp2",
	.trainer_mesh = "dp=2",
	.rollout_layout = "vllm",
	.rollout_mesh = "tp=1",
	.trainers = 2,
	.replicas = 1,
	.replica_ranks = 1,
	.transport = "ipc",
	.trainer_nics = {"host"},
	.rollout_nics = {"host"},
	.nic_count = 1,
	.op_bytes = 4096,
	.staging_bytes = 16u << 10,
	.recv_staging_bytes = 128u << 10,
	.run_bytes_min = 64u << 20,
	.staged = "model.layers.{L}.mlp.down_proj.weight",
	.derived = SUMS,
	.on_gpu = true,
};

static struct ws_error error;

static void *push_main(void *arg)
{
	world_push(arg, 2, PATIENCE_MS, false);
	return NULL;
}

/* The engine's own work: a copy of all its params, queued on its stream. */
static void params_copy(const struct engine_loop *loop, const struct ws_memory *to,
			struct CUstream_st *stream)
{
	for (uint32_t i = 0; i < loop->params.count; i++)
		ck_ok(cuda_copy((uint8_t *)to->base + loop->params.params[i].arena_offset,
				loop_param(loop, i)->base, loop->params.params[i].bytes, stream,
				&error),
		      error);
}

static void copy_is_of(struct engine_loop *loop, const struct ws_memory *copy, uint64_t version)
{
	uint8_t *got = malloc(copy->bytes);

	ck_assert_ptr_nonnull(got);
	ck_ok(memory_read(copy, 0, got, loop->params.arena_bytes, &error), error);
	bytes_expect(loop, version);
	for (uint32_t i = 0; i < loop->params.count; i++) {
		const struct param *param = &loop->params.params[i];
		ck_assert_msg(memcmp(got + param->arena_offset,
				     loop->expected + param->arena_offset, param->bytes) == 0,
			      "'%s' isn't version %llu's", param->name,
			      (unsigned long long)version);
	}
	free(got);
}

/* Closes what hang_open opened; nothing of it is under way. */
static void hang_close(struct hang *hang)
{
	cuda_stream_close(hang->stream);
	cuda_pinned_free((void *)(uintptr_t)hang->go);
}

START_TEST(updates_with_and_without_a_stream_bring_every_byte)
{
	struct world_options options = packed;
	struct hang hang;

	hang_open(&hang);
	options.inplace = (_i & 1) != 0;
	options.stream = _i < 2 ? hang.stream : NULL;
	options.in_pieces = _i == 4;
	struct world *world = world_open(&options);
	for (uint64_t version = 1; version <= 3; version++)
		world_push_good(world, version, version == 3);
	struct engine_loop *loop = &world->loop[0];
	ck_assert_uint_gt(loop_last(loop)->ring_bytes, 0);
	ck_assert_uint_eq(atomic_load(&loop->post_calls), 3 * loop->steps.call_count);
	world_close(world);
	hang_close(&hang);
}
END_TEST

/*
 * The engine's stream hangs, with a copy of its params behind: nothing goes live meanwhile.  Once
 * it is let go the copy has the old bytes, since what came later was behind it, and one that is
 * queued when the update has ended has the new ones.  In place, params may be written beside the
 * stream (a direct write), and engines that copy them then haven't stopped.
 */
START_TEST(an_update_is_behind_what_the_engine_has_queued)
{
	struct world_options options = packed;
	struct ws_memory before = {.place = WS_CUDA}, after = before;
	struct hang hang;
	pthread_t pusher;

	hang_open(&hang);
	options.inplace = _i == 1;
	options.stream = hang.stream;
	options.staged = NULL; /* what is compared is all params as they landed */
	struct world *world = world_open(&options);
	struct engine_loop *loop = &world->loop[0];
	ck_ok(ws_memory_alloc(&before, loop->params.arena_bytes, &error), error);
	ck_ok(ws_memory_alloc(&after, loop->params.arena_bytes, &error), error);
	world_push_good(world, 1, false);
	hang_begin(&hang, hang.stream);
	params_copy(loop, &before, hang.stream);
	ck_assert_int_eq(pthread_create(&pusher, NULL, push_main, world), 0);
	sleep_ns(LOOK_MS * UINT64_C(1000000));
	ck_assert_int_eq(cuda_stream_done(hang.stream, &error), -EAGAIN);
	ck_assert_uint_eq(atomic_load(&loop->resumed), 1);
	*hang.go = 1;
	pthread_join(pusher, NULL);
	ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
	ck_assert_uint_eq(atomic_load(&loop->resumed), 2);
	params_copy(loop, &after, hang.stream);
	ck_ok(cuda_stream_settle(hang.stream, 0, &error), error);
	if (!options.inplace)
		copy_is_of(loop, &before, 1);
	copy_is_of(loop, &after, 2);
	world_close(world);
	ws_memory_free(&before);
	ws_memory_free(&after);
	hang_close(&hang);
}
END_TEST

/* The other way round: weightsync's own streams wait for none of the engine's. */
START_TEST(without_a_stream_an_update_waits_for_none)
{
	struct world_options options = packed;
	struct hang hang;
	pthread_t pusher;

	hang_open(&hang);
	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	struct engine_loop *loop = &world->loop[0];
	world_push_good(world, 1, false);
	hang_begin(&hang, hang.stream);
	uint64_t until_ns = deadline_in_ms(BOUND_MS);
	ck_assert_int_eq(pthread_create(&pusher, NULL, push_main, world), 0);
	while (atomic_load(&loop->resumed) < 2 && clock_ns() < until_ns)
		sleep_ns(1000000);
	int hung = cuda_stream_done(hang.stream, &error);
	uint64_t resumed = atomic_load(&loop->resumed);
	*hang.go = 1;
	pthread_join(pusher, NULL);
	ck_assert_int_eq(hung, -EAGAIN);
	ck_assert_uint_eq(resumed, 2);
	ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
	world_close(world);
	hang_close(&hang);
}
END_TEST

/* What a step has queued is waited for before anything goes live, though the step came back. */
START_TEST(a_version_has_not_landed_before_what_its_steps_queued_is_done)
{
	struct world_options options = packed;
	struct hang hang;
	pthread_t pusher;

	hang_open(&hang);
	options.inplace = (_i & 1) != 0;
	options.stream = _i < 2 ? hang.stream : NULL;
	options.go = hang.go;
	struct world *world = world_open(&options);
	struct engine_loop *loop = &world->loop[0];
	world_push_good(world, 1, false);
	atomic_store(&loop->post_act, POST_HANG);
	ck_assert_int_eq(pthread_create(&pusher, NULL, push_main, world), 0);
	for (uint64_t until_ns = deadline_in_ms(BOUND_MS);
	     atomic_load(&loop->post_version) < 2 && clock_ns() < until_ns;)
		sleep_ns(1000000);
	sleep_ns(LOOK_MS * UINT64_C(1000000));
	ck_assert_uint_eq(atomic_load(&loop->post_version), 2);
	ck_assert_uint_eq(atomic_load(&loop->resumed), 1);
	*hang.go = 1;
	pthread_join(pusher, NULL);
	ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
	ck_assert_uint_eq(atomic_load(&loop->resumed), 2);
	world_close(world);
	hang_close(&hang);
}
END_TEST

/* The version is given up after post_ms; the side, and the trainers that write there, are closed
 * though the kernel still runs: the GPU is given up, and what lies there stays. */
START_TEST(a_side_is_closed_while_what_a_step_queued_hangs)
{
	struct world_options options = packed;
	struct hang hang;

	hang_open(&hang);
	options.inplace = (_i & 1) != 0;
	options.stream = _i < 2 ? hang.stream : NULL;
	options.go = hang.go;
	options.post_ms = 1000;
	struct world *world = world_open(&options);
	struct engine_loop *loop = &world->loop[0];
	world_push_good(world, 1, false);
	cuda_stuck_after(STUCK_MS);
	atomic_store(&loop->post_act, POST_HANG);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, "isn't back");
	uint64_t until_ns = deadline_in_ms(BOUND_MS);
	loop_stop(loop);
	ck_assert_msg(clock_ns() < until_ns, "somebody has waited for the kernel");
	ck_assert(cuda_is_given_up(0));
	world_close(world);
	*hang.go = 1; /* before the process ends, which might wait for it */
}
END_TEST

Suite *suite(void)
{
	if (!gpus_are_there(1))
		return NULL;
	/* More streams than this share queues of the hardware, and wait for one another. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	Suite *s = suite_create("gpu_stream");
	TCase *tc = tcase_create("gpu");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, updates_with_and_without_a_stream_bring_every_byte, 0, 5);
	tcase_add_loop_test(tc, an_update_is_behind_what_the_engine_has_queued, 0, 2);
	tcase_add_loop_test(tc, without_a_stream_an_update_waits_for_none, 0, 2);
	tcase_add_loop_test(tc, a_version_has_not_landed_before_what_its_steps_queued_is_done, 0,
			    4);
	tcase_add_loop_test(tc, a_side_is_closed_while_what_a_step_queued_hangs, 0, 4);
	suite_add_tcase(s, tc);
	return s;
}
