/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-phase maxima: what trainers find, tell and raise gives the codes and scales of the whole
 * tensor, for random layouts and for those of frameworks; and nothing more is told than that
 * takes.
 */
#include <errno.h>
#include <string.h>

#include "tests/maxima_world.h"
#include "tests/plan_pair.h"
#include "tests/shards_world.h"
#include "tests/test.h"

#define SEEDS 120

/* ---- Random layouts. */

START_TEST(shards_of_any_kind_give_the_codes_of_the_whole)
{
	struct shards_world shards;
	struct maxima_world world;

	shards_open(&shards, (uint32_t)_i);
	maxima_open(&world, &shards.input, (uint32_t)_i);
	maxima_run(&world);
	maxima_compare(&world);
	maxima_lean(&world);
	maxima_close(&world);
	shards_close(&shards);
}
END_TEST

/* Every allocation of planning and checking fails once, with a sentence and without a leak. */
START_TEST(any_allocation_may_fail)
{
	struct shards_world shards;
	struct ws_error err;

	shards_open(&shards, (uint32_t)_i);
	uint32_t members[] = {0, shards.a * shards.b, PLAN_ALL};
	for (size_t m = 0; m < ARRAY_SIZE(members); m++) {
		/* Manifests remember their forms. */
		struct plan *first;
		ck_ok(plan_make(&first, &shards.input, members[m], NULL, &err), err);
		ck_ok(plan_check(first, NULL, &err), err);
		plan_free(first);
		uint64_t live = mem_live_count();
		int rc = -ENOMEM;
		for (int64_t n = 0; rc != 0; n++) {
			struct plan *plan = NULL;
			ck_assert_int_lt(n, 20000);
			mem_fail_nth(n);
			rc = plan_make(&plan, &shards.input, members[m], NULL, &err);
			if (rc == 0)
				rc = plan_check(plan, NULL, &err);
			mem_fail_nth(-1);
			plan_free(plan);
			if (rc != 0 && rc != -ENOMEM)
				ck_abort_msg("allocation %d of member %u: %s", (int)n, members[m],
					     err.text);
			if (mem_live_count() != live)
				ck_abort_msg("allocation %d leaks", (int)n);
		}
	}
	shards_close(&shards);
}
END_TEST

/* ---- Layouts of frameworks, models scaled down. */
static const struct real_job {
	const char *model, *trainer, *trainer_mesh, *rollout, *rollout_mesh, *quant;
	uint32_t replicas, scale;
	bool tells; /* somebody must tell somebody something */
} real_jobs[] = {
	{"qwen3-30b-a3b", "fsdp2", "dp=3", "vllm", "tp=2", "fp8-block", 1, 16000, true},
	{"qwen3-30b-a3b", "fsdp2", "rep=2,dp=3", "sglang", "tp=2,ep=2", "fp8-block", 2, 16000,
	 true},
	{"qwen3-30b-a3b", "fsdp2", "rep=2,dp=3", "vllm", "tp=2", "fp8-block", 1, 8192, true},
	{"qwen3-30b-a3b", "fsdp2", "dp=3,stacked=1", "vllm", "tp=2,ep=2", "fp8-channel", 1, 16000,
	 false},
	{"qwen3-30b-a3b", "zero3", "dp=3", "vllm", "tp=2", "fp8-block", 1, 16000, true},
	{"qwen3-30b-a3b", "zero3", "dp=5", "sglang", "tp=2,ep=2", "fp8-channel", 1, 16000, true},
	{"qwen3-30b-a3b", "megatron", "tp=2", "vllm", "tp=2", "fp8-block", 1, 16000, false},
	{"qwen3-30b-a3b", "megatron", "tp=2,dp=2,ep=2,etp=1", "vllm", "tp=2", "fp8-channel", 2,
	 16000, true},
	{"qwen3-30b-a3b", "fsdp2", "dp=2,tp=2", "vllm", "tp=2", "fp8-tensor", 1, 16000, true},
	{"kimi-k2", "fsdp2", "dp=3", "sglang", "tp=2,ep=2", "fp8-block", 1, 400000, true},
	{"kimi-k2", "veomni", "dp=4,ep=2", "vllm", "tp=2", "fp8-block", 1, 400000, true},
	{"kimi-k2", "megatron", "tp=2,pp=2,ep=2,etp=1", "sglang", "tp=2,dp=2,ep=2",
	 "fp8-block-ue8m0", 1, 400000, false},
	{"kimi-k2", "zero3", "dp=3,stacked=1", "vllm", "tp=2,ep=2", "fp8-tensor", 2, 400000, true},
	{"kimi-k2", "megatron", "tp=2,pp=2,ep=2,etp=1", "sglang", "tp=2,fuse_shared=1",
	 "fp8-tensor", 1, 400000, true},
	{"qwen3-30b-a3b", "veomni", "dp=4,ep=2", "sglang", "tp=2,ep=2", "fp8-tensor", 2, 16000,
	 true},
	{"kimi-k2", "fsdp2", "dp=3", "vllm", "tp=4", "fp8-block:64", 1, 262144, true},
};

START_TEST(shards_of_frameworks_give_the_codes_of_the_whole)
{
	const struct real_job *job = &real_jobs[_i];
	struct pair_world pair;
	struct maxima_world world;

	pair_open_quant(&pair, job->model, job->scale, job->trainer, job->trainer_mesh,
			job->rollout, job->rollout_mesh, job->quant, job->replicas);
	maxima_open(&world, &pair.input, (uint32_t)_i);
	maxima_run(&world);
	maxima_compare(&world);
	maxima_lean(&world);
	ck_assert_int_eq(world.told_bytes > 0, job->tells);
	ck_assert_uint_eq(plan_totals(world.all)->maxima_bytes, world.told_bytes);
	maxima_close(&world);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_maxima");
	TCase *random = tcase_create("random layouts"), *real = tcase_create("frameworks");

	tcase_set_timeout(random, 120);
	tcase_add_loop_test(random, shards_of_any_kind_give_the_codes_of_the_whole, 0, SEEDS);
	tcase_add_loop_test(random, any_allocation_may_fail, 0, 6);
	suite_add_tcase(tests, random);
	tcase_set_timeout(real, 300);
	tcase_add_loop_test(real, shards_of_frameworks_give_the_codes_of_the_whole, 0,
			    (int)ARRAY_SIZE(real_jobs));
	suite_add_tcase(tests, real);
	return tests;
}
