/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plans of tests/golden/kimi_k2_plans.json, made by an independent program that knows no
 * manifests: Kimi-K2 from 256 trainers in five layouts to 128 rollout ranks in five.  Bytes, boxes,
 * runs, classes, what a receiver gets, scales, and all that again by family.
 */
#include <inttypes.h>
#include <string.h>

#include "bench/plan_jobs.h"
#include "tests/test.h"

#define CHECKED_BOXES_MAX 100000000

#define MEGATRON_A "tp=8,cp=4,pp=8,ep=32,etp=1,last=5"
#define MEGATRON_B "tp=8,cp=4,pp=8,ep=8,etp=4,last=5"
#define SGLANG_16  "tp=16,dp=8,ep=16,moe_dense_tp=1,dp_lm_head=1"
#define SGLANG_32  "tp=32,dp=32,ep=32,moe_dense_tp=1,shared_tp=1,dp_lm_head=1"
#define SGLANG_128 "tp=128,dp=128,ep=128,moe_dense_tp=1,shared_tp=1,dp_lm_head=1"

#define FROM_MEGATRON(mesh_text)     .trainer = "megatron", .trainer_mesh = mesh_text
#define FROM_STACKED(kind, ep, fsdp) .experts = kind, .expert_ranks = ep, .fsdp_ranks = fsdp
#define FROM_MODULES		     .trainer = "fsdp2", .trainer_mesh = "dp=256"
#define TO(layout, mesh_text, count) .rollout = layout, .rollout_mesh = mesh_text, .replicas = count
#define FP8			     .model = "kimi-k2", .quant = "fp8-block"

/* In the file's order. */
static const struct plan_job jobs[] = {
	{FP8, FROM_MEGATRON(MEGATRON_A), TO("sglang", SGLANG_16, 8)},
	{FP8, FROM_MEGATRON(MEGATRON_A), TO("vllm", "tp=16", 8)},
	{FP8, FROM_MEGATRON(MEGATRON_A), TO("sglang", SGLANG_32, 4)},
	{FP8, FROM_MEGATRON(MEGATRON_B), TO("sglang", SGLANG_16, 8)},
	{FP8, FROM_MEGATRON(MEGATRON_B), TO("vllm", "tp=16,ep=16", 8)},
	{FP8, FROM_MEGATRON(MEGATRON_B), TO("sglang", SGLANG_128, 1)},
	{FP8, FROM_STACKED(JOB_STACKED_EXPERT, 32, 8), TO("sglang", SGLANG_16, 8)},
	{FP8, FROM_STACKED(JOB_STACKED_EXPERT, 32, 8), TO("vllm", "tp=16", 8)},
	{FP8, FROM_STACKED(JOB_STACKED_EXPERT, 32, 8), TO("sglang", SGLANG_128, 1)},
	{FP8, FROM_STACKED(JOB_STACKED_ROWS, 8, 32), TO("sglang", SGLANG_16, 8)},
	{FP8, FROM_STACKED(JOB_STACKED_ROWS, 8, 32), TO("vllm", "tp=16,ep=16", 8)},
	{FP8, FROM_STACKED(JOB_STACKED_ROWS, 8, 32), TO("sglang", SGLANG_128, 1)},
	{.model = "kimi-k2", FROM_MODULES, TO("sglang", SGLANG_16, 8)},
	{.model = "kimi-k2", FROM_MODULES, TO("vllm", "tp=16,ep=16", 8)},
	{.model = "kimi-k2", FROM_MODULES, TO("sglang", SGLANG_128, 1)},
};

/* The file's short names; each is in the tensor's. */
static const struct {
	const char *name, *tensor;
} families[] = {
	{"q_a", "q_a_proj."},
	{"kv_a", "kv_a_proj_with_mqa."},
	{"q_b", "q_b_proj."},
	{"kv_b", "kv_b_proj."},
	{"o", "o_proj."},
	{"ln", "input_layernorm."},
	{"ln", "post_attention_layernorm."},
	{"qln", "q_a_layernorm."},
	{"kvln", "kv_a_layernorm."},
	{"dg", "}.mlp.gate_proj."},
	{"du", "}.mlp.up_proj."},
	{"dd", "}.mlp.down_proj."},
	{"router", "mlp.gate.weight"},
	{"rbias", "e_score_correction_bias"},
	{"sg", "shared_experts.gate_proj."},
	{"su", "shared_experts.up_proj."},
	{"sd", "shared_experts.down_proj."},
	{"eg", "experts.{E}.gate_proj."},
	{"eu", "experts.{E}.up_proj."},
	{"ed", "experts.{E}.down_proj."},
	{"embed", "embed_tokens."},
	{"head", "lm_head."},
	{"norm", "model.norm."},
};

struct golden_world {
	struct arena arena;
	const struct json *golden;
	struct manifest *manifests[2];
	struct plan *plan;
	struct ws_error err;
};

static void golden_read(struct golden_world *world, uint32_t index)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	const struct json *json;
	size_t count;
	void *bytes;

	ck_ok(file_read("tests/golden/kimi_k2_plans.json", 1u << 20, &bytes, &count, &world->err),
	      world->err);
	ck_ok(json_parse(&world->arena, bytes, count, &limits, &json, &world->err), world->err);
	mem_free(bytes);
	ck_assert_uint_eq(json->count, ARRAY_SIZE(jobs));
	world->golden = json_at(json, index);
}

static void golden_open(struct golden_world *world, uint32_t index)
{
	const struct plan_job *job = &jobs[index];
	struct plan_input input = {.replica_count = job->replicas, .rules = RULES_DEFAULT};

	memset(world, 0, sizeof(*world));
	golden_read(world, index);
	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(16u << 20);
		ck_ok(plan_job_manifest(job, (enum side)side, &out, NULL, &world->err), world->err);
		ck_ok(manifest_parse(&world->manifests[side], out.bytes, out.count, NULL,
				     &world->err),
		      world->err);
		writer_release(&out);
	}
	uint32_t *replicas = arena_array(&world->arena, job->replicas, sizeof(*replicas));
	for (uint32_t i = 0; i < job->replicas; i++)
		replicas[i] = i;
	input.replicas = replicas;
	input.trainer = world->manifests[SIDE_TRAINER];
	input.rollout = world->manifests[SIDE_ROLLOUT];
	/* 256 senders share a ring; what is cut doesn't change what is counted. */
	input.rules.op_bytes = 4u << 20;
	input.rules.recv_staging_bytes = 1u << 30;
	ck_ok(plan_make(&world->plan, &input, PLAN_ALL, NULL, &world->err), world->err);
}

static void golden_close(struct golden_world *world)
{
	plan_free(world->plan);
	manifest_free(world->manifests[0]);
	manifest_free(world->manifests[1]);
	arena_release(&world->arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}

static uint64_t number(const struct json *json, const char *key)
{
	const struct json *value = json_get(json, key);

	ck_assert_msg(value != NULL && value->type == JSON_NUMBER, "no '%s'", key);
	return (uint64_t)value->number;
}

/* A class's boxes, runs and bytes over all families; a class that isn't there is empty. */
static void compare_class(const struct golden_world *world, uint32_t class, const char *name)
{
	const struct json *golden = json_get(json_get(world->golden, "classes"), name);
	uint64_t boxes = 0, runs = 0, bytes = 0;

	for (uint32_t i = 0; i < plan_family_count(world->plan); i++) {
		const struct plan_family *family = plan_family(world->plan, i);
		boxes += family->boxes[class];
		runs += family->runs[class];
		bytes += family->bytes[class];
	}
	ck_assert_uint_eq(boxes, golden == NULL ? 0 : number(golden, "boxes"));
	ck_assert_uint_eq(runs, golden == NULL ? 0 : number(golden, "runs"));
	ck_assert_uint_eq(bytes, golden == NULL ? 0 : number(golden, "bytes"));
}

static void compare_family(const struct golden_world *world, const char *name)
{
	static const char *const kinds[4] = {"both", "dst", "src", "none"};
	const struct json *golden = json_get(json_get(world->golden, "fam"), name);
	uint64_t boxes = 0, runs = 0, bytes = 0, run_min = UINT64_MAX;
	const char *kind = "";

	ck_assert_msg(golden != NULL, "no family '%s'", name);
	for (uint32_t i = 0; i < plan_family_count(world->plan); i++) {
		const struct plan_family *family = plan_family(world->plan, i);
		bool mine = false;
		for (size_t f = 0; f < ARRAY_SIZE(families); f++)
			mine = mine || (strcmp(families[f].name, name) == 0 &&
					strstr(family->name, families[f].tensor) != NULL);
		for (uint32_t k = 0; mine && k < 4; k++) {
			boxes += family->boxes[k];
			runs += family->runs[k];
			bytes += family->bytes[k];
			if (family->boxes[k] == 0)
				continue;
			ck_assert_msg(kind[0] == '\0' || kind == kinds[k], "'%s' is of two kinds",
				      name);
			kind = kinds[k];
			run_min = MIN(run_min, family->run_min);
		}
	}
	ck_assert_msg(boxes == number(golden, "boxes"), "%s: %" PRIu64 " boxes", name, boxes);
	ck_assert_msg(runs == number(golden, "runs"), "%s: %" PRIu64 " runs", name, runs);
	ck_assert_msg(bytes == number(golden, "bytes"), "%s: %" PRIu64 " bytes", name, bytes);
	ck_assert_msg(run_min == number(golden, "min_run"), "%s: %" PRIu64, name, run_min);
	ck_assert_str_eq(kind, json_text(golden, "kind", "?"));
}

START_TEST(kimi_k2_has_the_golden_numbers_and_passes_the_check)
{
	struct golden_world world;

	golden_open(&world, (uint32_t)_i);
	const struct plan_totals *totals = plan_totals(world.plan);
	uint64_t scales = number(world.golden, "scale_bytes");
	ck_assert_uint_eq(totals->bytes - totals->scale_bytes, number(world.golden, "total_bytes"));
	ck_assert_uint_eq(totals->scale_bytes, scales);
	ck_assert_uint_eq(totals->boxes, number(world.golden, "boxes"));
	ck_assert_uint_eq(totals->runs, number(world.golden, "runs"));
	compare_class(&world, 0, "both");
	compare_class(&world, 1, "dst");
	compare_class(&world, 2, "src");
	compare_class(&world, 3, "none");
	const struct json *dst = json_get(world.golden, "dst");
	ck_assert_uint_eq(totals->receive_min, number(dst, "min") + scales / 128);
	ck_assert_uint_eq(totals->receive_max, number(dst, "max") + scales / 128);
	for (size_t f = 0; f < ARRAY_SIZE(families); f++)
		compare_family(&world, families[f].name);
	/* The file spreads each box evenly over its holders; the planner evens out their sums too.
	 */
	const struct json *src = json_get(world.golden, "src");
	ck_assert_uint_le(totals->send_max, number(src, "max") + number(src, "max") / 50);
	/* The two of 160 million boxes are checked by a third that is like them, in half the time.
	 */
	if (totals->boxes < CHECKED_BOXES_MAX)
		ck_ok(plan_check(world.plan, NULL, &world.err), world.err);
	golden_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_golden");
	TCase *golden = tcase_create("kimi-k2");

	tcase_set_timeout(golden, 300);
	tcase_add_loop_test(golden, kimi_k2_has_the_golden_numbers_and_passes_the_check, 0,
			    (int)ARRAY_SIZE(jobs));
	suite_add_tcase(tests, golden);
	return tests;
}
