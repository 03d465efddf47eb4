/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates that quantize on the way, by the real sides: trainers tell each other maxima, rollouts
 * get codes and scales that are those of the whole tensors, bit by bit; and what happens when a
 * write goes wrong, of maxima among them.
 */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/update_world.h"
#include "trainer_side/trainer_internal.h"

static const struct world_options kinds[] = {
	{.trainer_layout = "fsdp2",
	 .trainer_mesh = "dp=3",
	 .rollout_layout = "vllm",
	 .rollout_mesh = "tp=2",
	 .quant = "fp8-block",
	 .trainers = 3,
	 .replicas = 1,
	 .replica_ranks = 2},
	{.trainer_layout = "zero3",
	 .trainer_mesh = "dp=3",
	 .rollout_layout = "vllm",
	 .rollout_mesh = "tp=2",
	 .dtype = "f32",
	 .quant = "fp8-block-ue8m0",
	 .trainers = 3,
	 .replicas = 1,
	 .replica_ranks = 2,
	 .inplace = true},
	{.trainer_layout = "megatron",
	 .trainer_mesh = "tp=2",
	 .rollout_layout = "vllm",
	 .rollout_mesh = "tp=2",
	 .quant = "fp8-channel",
	 .trainers = 2,
	 .replicas = 1,
	 .replica_ranks = 2,
	 .digests = true},
	{.model = "qwen3-30b-a3b",
	 .scale = 16000,
	 .trainer_layout = "megatron",
	 .trainer_mesh = "tp=2",
	 .rollout_layout = "sglang",
	 .rollout_mesh = "tp=2,ep=2",
	 .dtype = "f32",
	 .quant = "fp8-tensor",
	 .trainers = 2,
	 .replicas = 1,
	 .replica_ranks = 2},
	{.trainer_layout = "fsdp2",
	 .trainer_mesh = "dp=3",
	 .rollout_layout = "vllm",
	 .rollout_mesh = "tp=2",
	 .quant = "fp8-block",
	 .trainers = 3,
	 .replicas = 2,
	 .replica_ranks = 2,
	 .min_replicas = 2,
	 .fanout = "replica",
	 .digests = true},
};

START_TEST(codes_and_scales_of_the_whole_tensors_go_live)
{
	struct world *world = world_open(&kinds[_i]);

	for (uint64_t version = 1; version <= 3; version++)
		world_push_good(world, version, version > 1);
	uint64_t quantize = 0, exchange = 0;
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		quantize += world->trainer[i].report.quantize_ns;
		exchange += world->trainer[i].report.exchange_ns;
	}
	ck_assert_uint_gt(quantize, 0);
	ck_assert_uint_gt(exchange, 0);
	world_close(world);
}
END_TEST

/* What of its program a trainer does in one pass, and what before. */
struct passes {
	uint32_t planned, locals, once, twice;
};

static struct passes passes_of(const struct ws_trainer *trainer)
{
	const struct engine_program *program = &trainer->wire.program;
	struct passes passes = {.locals = program->local_count};
	struct plan_cursor cursor = {0};
	struct plan_local local;

	while (plan_next_local(trainer->source.plan, &cursor, &local))
		passes.planned++;
	for (uint32_t i = 0; i < program->send_count; i++)
		for (uint32_t k = 0; k < program->sends[i].move_count; k++) {
			enum move_kind kind = program->sends[i].moves[k].move.kind;
			passes.once += kind == MOVE_QUANTIZE_WHOLE;
			passes.twice += kind == MOVE_QUANTIZE;
		}
	return passes;
}

/* One trainer has all blocks whole, and so has each of two pipeline stages, or of two replicas with
 * half of the experts each; where a scale is for a row, of which rollouts have half each, or ops
 * tear blocks, some are; and none under one scale for all. */
static const struct once {
	const char *layout, *mesh, *quant;
	uint64_t op_bytes;
	uint32_t trainers;
	bool once, twice;
} onces[] = {
	{"fsdp2", "dp=1", "fp8-block", 1u << 20, 1, true, false},
	{"megatron", "pp=2", "fp8-block-ue8m0", 1u << 20, 2, true, false},
	{"fsdp2", "dp=1", "fp8-channel", 8192, 1, true, true},
	{"megatron", "dp=2,ep=2", "fp8-block", 1u << 20, 2, true, false},
	{"fsdp2", "dp=1", "fp8-tensor", 1u << 20, 1, false, true},
};

START_TEST(blocks_that_a_trainer_has_whole_are_read_once)
{
	const struct once *once = &onces[_i];
	struct world_options options = {.model = "qwen3-30b-a3b",
					.scale = 8192,
					.trainer_layout = once->layout,
					.trainer_mesh = once->mesh,
					.rollout_layout = "vllm",
					.rollout_mesh = "tp=2",
					.quant = once->quant,
					.op_bytes = once->op_bytes,
					.staging_bytes = 4u << 20,
					.trainers = once->trainers,
					.replicas = 1,
					.replica_ranks = 2,
					.digests = _i % 2 == 1};
	struct world *world = world_open(&options);
	struct passes all = {0};
	world_push_good(world, 1, false);
	world_push_good(world, 2, true);
	for (uint32_t i = 0; i < options.trainers; i++) {
		struct passes passes = passes_of(world->trainer[i].trainer);
		all.planned += passes.planned;
		all.locals += passes.locals;
		all.once += passes.once;
		all.twice += passes.twice;
	}
	ck_assert_int_eq(all.once > 0, once->once);
	ck_assert_int_eq(all.twice > 0, once->twice);
	ck_assert_int_eq(all.locals > 0, once->twice);
	ck_assert_int_eq(all.locals < all.planned, once->once);
	world_close(world);
}
END_TEST

/* As offloaded params do, but in the host's memory: whatever is gathered, cast or quantized comes
 * through the ring once if that has room for a bucket or two, and is right if it hasn't. */
static const struct rings {
	uint32_t kind;
	uint64_t bytes;
	bool once;
} rings[] = {
	{0, 64u << 20, true},  {1, 64u << 20, true},   {4, 64u << 20, true},
	{0, 64u << 10, false}, {2, 128u << 10, false},
};

START_TEST(offloaded_params_come_through_a_ring)
{
	struct world_options options = kinds[rings[_i].kind];

	options.ring_bytes = rings[_i].bytes;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	world_push_good(world, 2, true);
	for (uint32_t i = 0; i < options.trainers; i++) {
		const struct ws_report *report = &world->trainer[i].report;
		ck_assert_uint_gt(report->h2d_bytes, 0);
		ck_assert_uint_gt(report->offload_high_bytes, 0);
		ck_assert_uint_le(report->offload_high_bytes, options.ring_bytes);
		if (rings[_i].once)
			ck_assert_uint_le(report->h2d_bytes, world->trainer[i].params.arena_bytes);
	}
	world_close(world);
}
END_TEST

/* Little room at both ends: codes are cut into many ops, and go through slots with credits. */
START_TEST(a_small_ring_and_small_staging_carry_codes)
{
	struct world_options options = kinds[0];

	options.op_bytes = 4096;
	options.staging_bytes = 16u << 10;
	options.recv_staging_bytes = 128u << 10;
	options.run_bytes_min = 64u << 20;
	options.digests = _i == 1;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	world_push_good(world, 2, true);
	for (uint32_t i = 0; i < options.trainers; i++)
		ck_assert_uint_le(world->trainer[i].report.staging_high_bytes,
				  options.staging_bytes);
	world_close(world);
}
END_TEST

/* One write of trainer 1 misbehaves in the second version, at each share of it. */
static const struct bad_write {
	const char *rule, *says;
	bool digests, inplace;
} bad_writes[] = {
	{"drop", "version 2", .digests = false},
	{"fail", "failed", .inplace = true},
	{"dup", "had arrived before", .digests = false},
	{"stale", "fence broken", .inplace = true},
	{"corrupt", "changed on the way", .digests = true},
};
#define SHARES 2

START_TEST(a_bad_write_of_maxima_or_codes_never_goes_live)
{
	const struct bad_write *bad = &bad_writes[_i / SHARES];
	struct world_options options = kinds[0];
	char device[128];

	options.digests = bad->digests;
	options.inplace = bad->inplace;
	options.phase_ms = 3000;
	uint64_t ops = world_member_ops(&options, 1);
	snprintf(device, sizeof(device), "%s_nth=%llu:fabric:tcp/127.0.0.1", bad->rule,
		 (unsigned long long)(ops + 2 + ops * (uint64_t)(_i % SHARES) / SHARES));
	options.fault_device = device;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	world_push(world, 2, PATIENCE_MS, false);
	world_errors_have(world, bad->says);
	world_push_good(world, 3, false);
	world_close(world);
}
END_TEST

/* Replica 1 is never ready: what is for it waits behind gates that open, and is given up. */
START_TEST(a_replica_that_is_dropped_holds_up_no_maxima)
{
	struct world_options options = kinds[0];

	options.replicas = 2;
	options.phase_ms = 1500;
	options.inplace = true;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	atomic_store(&world->loop[3].silent, true);
	world_push(world, 2, PATIENCE_MS, true);
	for (uint32_t i = 0; i < options.trainers; i++)
		ck_assert_msg(world->trainer[i].rc == 0, "%s", world->trainer[i].err.text);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_uint_eq(atomic_load(&world->loop[i].resumed), 2);
	ck_assert_uint_eq(atomic_load(&world->loop[3].resumed), 1);
	atomic_store(&world->loop[3].silent, false);
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("update_quant");
	TCase *updates = tcase_create("updates"), *faults = tcase_create("faults");

	tcase_add_loop_test(updates, codes_and_scales_of_the_whole_tensors_go_live, 0,
			    (int)ARRAY_SIZE(kinds));
	tcase_add_loop_test(updates, blocks_that_a_trainer_has_whole_are_read_once, 0,
			    ARRAY_SIZE(onces));
	tcase_add_loop_test(updates, a_small_ring_and_small_staging_carry_codes, 0, 2);
	tcase_add_loop_test(updates, offloaded_params_come_through_a_ring, 0,
			    (int)ARRAY_SIZE(rings));
	tcase_set_timeout(updates, 120);
	suite_add_tcase(tests, updates);
	tcase_add_loop_test(faults, a_bad_write_of_maxima_or_codes_never_goes_live, 0,
			    SHARES * (int)ARRAY_SIZE(bad_writes));
	tcase_add_test(faults, a_replica_that_is_dropped_holds_up_no_maxima);
	tcase_set_timeout(faults, 120);
	suite_add_tcase(tests, faults);
	return tests;
}
