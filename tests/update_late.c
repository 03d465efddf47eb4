/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates by the real sides whose work a made GPU does: trainers' that are offloaded, through a
 * ring or not, and rollouts' whose memory is its own.
 */
#include <time.h>

#include "tests/made_gpu.h"

#include "lib/engine/engine_internal.h"
#include "tests/update_world.h"
#include "trainer_side/trainer_internal.h"

#define STUCK_MS 500

static const struct world_options kinds[] = {
	{.trainer_layout = "fsdp2",
	 .trainer_mesh = "dp=3",
	 .rollout_layout = "vllm",
	 .rollout_mesh = "tp=2",
	 .quant = "fp8-block",
	 .trainers = 3,
	 .replicas = 1,
	 .replica_ranks = 2,
	 .ring_bytes = 256u << 10},
	{.model = "qwen3-30b-a3b",
	 .scale = 64000,
	 .trainer_layout = "megatron",
	 .trainer_mesh = "pp=2",
	 .rollout_layout = "sglang",
	 .rollout_mesh = "tp=2,ep=2",
	 .quant = "fp8-block-ue8m0",
	 .op_bytes = 1u << 20,
	 .staging_bytes = 4u << 20,
	 .trainers = 2,
	 .replicas = 1,
	 .replica_ranks = 2,
	 .on_gpu = true},
	{.trainer_layout = "zero3",
	 .trainer_mesh = "dp=3",
	 .rollout_layout = "vllm",
	 .rollout_mesh = "tp=2",
	 .dtype = "f32",
	 .quant = "fp8-channel",
	 .trainers = 3,
	 .replicas = 2,
	 .replica_ranks = 2,
	 .min_replicas = 2,
	 .fanout = "replica",
	 .inplace = true,
	 .on_gpu = true,
	 .ring_bytes = 64u << 10},
	{.model = "qwen3-30b-a3b",
	 .scale = 64000,
	 .trainer_layout = "megatron",
	 .trainer_mesh = "tp=2",
	 .rollout_layout = "sglang",
	 .rollout_mesh = "tp=2,ep=2",
	 .dtype = "f32",
	 .quant = "fp8-tensor",
	 .trainers = 2,
	 .replicas = 1,
	 .replica_ranks = 2,
	 .on_gpu = true},
	{.trainer_layout = "fsdp2",
	 .trainer_mesh = "dp=2",
	 .rollout_layout = "vllm",
	 .rollout_mesh = "tp=2",
	 .dtype = "f32",
	 .op_bytes = 16384,
	 .trainers = 2,
	 .replicas = 1,
	 .replica_ranks = 2,
	 .ring_bytes = 20000},
};

static struct world_options options_made(int seed)
{
	struct world_options options = kinds[(size_t)seed % ARRAY_SIZE(kinds)];

	random_state = (uint64_t)seed << 32;
	options.offloaded = true;
	options.scale = options.scale == 0 ? 64000 : options.scale;
	options.transport = "ipc";
	options.nic_count = 1;
	options.trainer_nics[0] = options.rollout_nics[0] = "host";
	return options;
}

static struct world *world_made(int seed)
{
	struct world_options options = options_made(seed);

	return world_open(&options);
}

START_TEST(codes_and_scales_of_the_whole_tensors_go_live)
{
	struct world *world = world_made(_i);

	for (uint64_t version = 1; version <= 3; version++)
		world_push_good(world, version, version > 1);
	world_close(world);
}
END_TEST

/* Of a GPU a trainer may take more than the host's 64 MiB, but no more than it gathers. */
START_TEST(little_is_gathered_through_little_staging)
{
	struct world *world = world_made(0);

	world_push_good(world, 1, false);
	for (uint32_t i = 0; i < kinds[0].trainers; i++) {
		const struct engine *engine = world->trainer[i].trainer->engine;
		ck_assert_int_eq(engine->staging.place, WS_CUDA);
		ck_assert_uint_eq(engine->staging.bytes, 64u << 20);
	}
	world_close(world);
}
END_TEST

static bool pushes_differ(const struct world *world)
{
	for (uint32_t i = 0; i < world->options.trainers; i++)
		if (strstr(world->trainer[i].err.text, "while another trainer began") == NULL)
			return false;
	return true;
}

/* Who is late to leave a push that was broken off may hold another version against the next. */
static uint64_t push_again(struct world *world, uint64_t version, bool split)
{
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);

	world_push(world, version, PATIENCE_MS, split);
	while (world->trainer[0].rc == -EINVAL && pushes_differ(world) && clock_ns() < deadline)
		world_push(world, ++version, PATIENCE_MS, split);
	world_is_live(world, version);
	return version;
}

/* At any moment, some before they have begun. */
START_TEST(after_pushes_that_were_broken_off_every_byte_goes_live)
{
	struct world *world = world_made(_i);
	uint64_t version = 1;

	for (int turn = 0; turn < 6; turn++)
		if (draw(3) > 0)
			world_push(world, version++, 1 + (uint32_t)draw(20), turn % 2 == 0);
		else
			version = push_again(world, version, turn % 2 == 0) + 1;
	push_again(world, version, false);
	world_close(world);
}
END_TEST

/* Whoever has nothing to do takes no time, however the machine is loaded. */
static void trainers_rest(const struct world *world)
{
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		struct timespec before, after;
		clockid_t clock;
		ck_assert_int_eq(pthread_getcpuclockid(world->trainer[i].trainer->thread, &clock),
				 0);
		clock_gettime(clock, &before);
		sleep_ns(100000000);
		clock_gettime(clock, &after);
		int64_t ns = (after.tv_sec - before.tv_sec) * INT64_C(1000000000) + after.tv_nsec -
			     before.tv_nsec;
		ck_assert_msg(ns < 50000000, "the I/O thread of trainer %u took %lld us of 100 ms",
			      i, (long long)ns / 1000);
	}
}

/* All that it was given, or what is to be copied alone: into the ring, or by ipc. */
START_TEST(who_waits_for_a_gpu_that_hangs_hears_of_it_before_its_deadline)
{
	static const int seeds[] = {1, 2, 1};
	struct world *world = world_made(seeds[_i]);

	world_push_good(world, 1, false);
	cuda_stuck_after(STUCK_MS);
	gpu_waits = _i == 0;
	copies_wait = _i > 0;
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);
	world_push(world, 2, PATIENCE_MS, false);
	ck_assert(clock_ns() < deadline);
	world_errors_have(world, "GPU 0 hasn't done in 0.5 s what it was given");
	trainers_rest(world);
	world_close(world);
}
END_TEST

/* It may be busy with others' work, and isn't given up yet. */
START_TEST(a_push_that_a_gpu_holds_up_ends_soon_after_its_deadline_and_the_next_goes_well)
{
	struct world *world = world_made(1);

	world_push_good(world, 1, false);
	gpu_waits = _i == 0;
	copies_wait = _i > 0;
	world_push(world, 2, SANITIZED ? 4000 : 1000, false);
	world_errors_have(world, _i == 0 ? "even now GPU 0 hasn't done" : "by GPU 0 haven't ended");
	world_errors_have(world, "params may still be read");
	gpu_waits = copies_wait = false;
	ck_until(gpu_rests(), sleep_ns(1000000)); /* it still reads the params */
	world_push_good(world, 3, false);
	world_close(world);
}
END_TEST

/* The engine's own stream, on which its kernels run: what has landed is unpacked behind them. */
START_TEST(who_waits_for_a_rollout_whose_stream_hangs_hears_which_and_why)
{
	struct world_options options = options_made(1);
	struct CUstream_st *stream;

	ck_ok(cuda_stream_open(0, &stream, NULL), (struct ws_error){0});
	options.stream = stream;
	options.run_bytes_min = 1u << 20;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	stream_waits = stream;
	world_push(world, 2, SANITIZED ? 6000 : 2000, false);
	world_errors_have(world, "rollout 0.0 isn't landed; it has all ops, and waits for GPU 0");
	stream_waits = NULL;
	world_push_good(world, 3, false);
	world_close(world);
	cuda_stream_close(stream);
}
END_TEST

START_TEST(a_fault_of_a_gpu_ends_the_push_with_its_reason)
{
	struct world *world = world_made(0);

	world_push_good(world, 1, false);
	gpu_fails = true;
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, "the made GPU has a fault");
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("update_late");
	TCase *tc = tcase_create("made GPU");

	tcase_set_timeout(tc, 240);
	tcase_add_loop_test(tc, codes_and_scales_of_the_whole_tensors_go_live, 0,
			    SANITIZED ? 2 : 5);
	tcase_add_test(tc, little_is_gathered_through_little_staging);
	tcase_add_loop_test(tc, after_pushes_that_were_broken_off_every_byte_goes_live, 0,
			    SANITIZED ? 1 : 2);
	tcase_add_loop_test(tc, who_waits_for_a_gpu_that_hangs_hears_of_it_before_its_deadline, 0,
			    3);
	tcase_add_loop_test(
		tc, a_push_that_a_gpu_holds_up_ends_soon_after_its_deadline_and_the_next_goes_well,
		0, 2);
	tcase_add_test(tc, who_waits_for_a_rollout_whose_stream_hangs_hears_which_and_why);
	tcase_add_test(tc, a_fault_of_a_gpu_ends_the_push_with_its_reason);
	suite_add_tcase(s, tc);
	return s;
}
