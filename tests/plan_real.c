/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of real models at full size: one member's part, balance over duplicates, buckets, reports
 * and the public check.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "planner/source.h"
#include "planner/ws_plan.h"
#include "tests/plan_pair.h"
#include "tests/test.h"

#define FSDP_DENSE "fsdp2", "dp=3"

static const struct {
	const char *trainer_mesh, *rollout_layout, *rollout_mesh, *quant;
	uint32_t replicas;
} kimi_cases[] = {
	{"tp=8,cp=4,pp=8,ep=32,etp=1,last=5", "sglang",
	 "tp=16,dp=8,ep=16,moe_dense_tp=1,dp_lm_head=1", "fp8-block", 8},
	{"tp=8,cp=4,pp=8,ep=32,etp=1,last=5", "sglang",
	 "tp=32,dp=32,ep=32,moe_dense_tp=1,shared_tp=1,dp_lm_head=1", NULL, 4},
	{"tp=8,cp=4,pp=8,ep=8,etp=4,last=5", "vllm", "tp=16,ep=16", NULL, 8},
};

/* One sender's and one receiver's part, walked to its end. */
START_TEST(kimi_k2_members_pass_the_check)
{
	struct pair_world pair;

	pair_open_quant(&pair, "kimi-k2", 1, "megatron", kimi_cases[_i].trainer_mesh,
			kimi_cases[_i].rollout_layout, kimi_cases[_i].rollout_mesh,
			kimi_cases[_i].quant, kimi_cases[_i].replicas);
	static const uint32_t members[] = {37, 256 + 5};
	for (size_t i = 0; i < ARRAY_SIZE(members); i++) {
		struct plan *plan = pair_plan(&pair, members[i]);
		ck_ok(plan_check(plan, &pair.findings, &pair.err), pair.err);
		plan_free(plan);
	}
	pair_close(&pair);
}
END_TEST

/* Every byte is held by equally many ranks: the best possible is an even share. */
static const struct {
	const char *model, *trainer, *trainer_mesh, *rollout, *rollout_mesh;
	uint32_t replicas;
} even_cases[] = {
	{"qwen3-30b-a3b", "fsdp2", "rep=2,dp=2", "vllm", "tp=1", 2},
	{"qwen3-30b-a3b", "fsdp2", "rep=4,dp=3", "vllm", "tp=2", 1},
	{"llama-3-70b", "megatron", "tp=2,dp=4", "vllm", "tp=4", 3},
	{"qwen3-32b", "fsdp2", "rep=8,dp=1", "vllm", "tp=2", 1},
	{"llama-3-70b", "fsdp2", "dp=2,tp=2", "sglang", "tp=4", 1},
};

START_TEST(duplicates_are_dealt_evenly)
{
	struct pair_world pair;

	pair_open_model(&pair, even_cases[_i].model, even_cases[_i].trainer,
			even_cases[_i].trainer_mesh, even_cases[_i].rollout,
			even_cases[_i].rollout_mesh, even_cases[_i].replicas);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	const struct plan_totals *totals = plan_totals(all);
	ck_assert_msg((double)totals->send_max <= 1.02 * (double)totals->send_mean,
		      "%" PRIu64 " above %" PRIu64, totals->send_max, totals->send_mean);
	ck_assert_uint_eq(totals->receive_min, totals->receive_max);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

START_TEST(buckets_are_embeddings_and_head_then_layers)
{
	struct pair_world pair;

	pair_open_model(&pair, "qwen3-30b-a3b", "fsdp2", "dp=3", "vllm", "tp=2", 2);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_bucket_count(all), 50);
	ck_assert_str_eq(plan_bucket_name(all, 0), "model.embed_tokens");
	ck_assert_str_eq(plan_bucket_name(all, 1), "lm_head");
	ck_assert_str_eq(plan_bucket_name(all, 2), "model.layers.0");
	ck_assert_str_eq(plan_bucket_name(all, 49), "model.layers.47");
	plan_free(all);
	/* a layer in parts: attention apart from the experts, never a stack torn */
	pair.input.rules.bucket_bytes = 64u << 20;
	all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_gt(plan_bucket_count(all), 100);
	ck_assert_str_eq(plan_bucket_name(all, 4), "model.layers.0 part 2");
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

START_TEST(layers_of_all_stages_are_sent_in_step)
{
	struct pair_world pair;

	pair_open_model(&pair, "qwen3-30b-a3b", "megatron", "tp=1,pp=2", "vllm", "tp=2", 1);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_str_eq(plan_bucket_name(all, 2), "model.layers.0");
	ck_assert_str_eq(plan_bucket_name(all, 3), "model.layers.24");
	ck_assert_str_eq(plan_bucket_name(all, 4), "model.layers.1");
	ck_assert_str_eq(plan_bucket_name(all, 49), "model.layers.47");
	plan_free(all);
	pair_close(&pair);
}
END_TEST

START_TEST(reports_hold_what_programs_and_people_look_for)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	static const char *const keys[] = {"total_bytes", "boxes",   "runs",
					   "copies",	  "ops",     "classes",
					   "buckets",	  "members", "senders_idle"};
	struct pair_world pair;
	struct writer out = WRITER_INIT(1u << 20);
	struct json_writer writer = {.out = &out};
	const struct json *json;

	pair_open_model(&pair, "llama-3-70b", FSDP_DENSE, "vllm", "tp=2", 2);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	plan_report_json(all, 0.25, NULL, &writer);
	ck_ok(json_parse(&pair.arena, out.bytes, out.count, &limits, &json, &pair.err), pair.err);
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		ck_assert_msg(json_integer(json, keys[i], -1) >= 0, "no %s", keys[i]);
	ck_assert_int_eq(json_integer(json, "total_bytes", 0), (int64_t)plan_totals(all)->bytes);
	ck_assert_int_gt(json_integer(json_get(json, "senders"), "bytes_max", 0), 0);
	ck_assert_int_gt(json_integer(json_get(json, "receivers"), "bytes_mean", 0), 0);
	ck_assert_uint_eq(strlen(json_text(json, "digest", "")), 16);
	writer_reset(&out);
	plan_report_text(all, 0.25, &out);
	write_u8(&out, 0);
	ck_assert_ptr_nonnull(strstr((const char *)out.bytes, "model.layers.79"));
	writer_release(&out);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

static char *manifest_text(const char *name, enum side side, const char *layout, const char *mesh,
			   size_t *count)
{
	struct model *model;
	struct ws_error err = {0};
	struct writer out = WRITER_INIT(16u << 20);
	struct manifest_options options = {.side = side, .layout = layout, .mesh = mesh};

	ck_ok(model_builtin(&model, name, &err), err);
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	model_free(model);
	*count = out.count;
	return (char *)out.bytes;
}

START_TEST(the_public_check_gives_totals_or_findings)
{
	size_t trainer_bytes, rollout_bytes;
	char *trainer = manifest_text("qwen3-32b", SIDE_TRAINER, "fsdp2", "dp=4", &trainer_bytes);
	char *rollout = manifest_text("qwen3-32b", SIDE_ROLLOUT, "vllm", "tp=2", &rollout_bytes);
	const char *kind, *where, *text;
	struct ws_plan_totals totals;
	struct ws_plan *plan;
	struct ws_error err = {0};

	ck_ok(ws_plan_check(&plan, trainer, trainer_bytes, rollout, rollout_bytes, 2, &err), err);
	ck_assert_uint_eq(ws_plan_finding_count(plan), 0);
	ws_plan_totals(plan, &totals);
	ck_assert_uint_eq(totals.trainer_count, 4);
	ck_assert_uint_eq(totals.replica_rank_count, 2);
	ck_assert_uint_eq(totals.bytes, 4 * totals.receive_bytes_mean);
	ws_plan_free(plan);
	ck_ok(ws_plan_check(&plan, trainer, trainer_bytes, rollout, rollout_bytes / 2, 1, &err),
	      err);
	ck_assert_uint_ge(ws_plan_finding_count(plan), 1);
	ck_assert(ws_plan_finding(plan, 0, &kind, &where, &text));
	ck_assert(!ws_plan_finding(plan, 1000, &kind, &where, &text));
	ws_plan_totals(plan, &totals);
	ck_assert_uint_eq(totals.bytes, 0);
	ws_plan_free(plan);
	ws_plan_free(NULL);
	ck_fails(ws_plan_check(&plan, trainer, trainer_bytes, rollout, rollout_bytes, 0, &err), -22,
		 err);
	mem_free(trainer);
	mem_free(rollout);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* What a hub says of members goes by its roster, what is planned by the manifests. */
START_TEST(a_roster_of_another_size_than_the_manifests_is_refused)
{
	size_t trainer_bytes, rollout_bytes;
	char *trainer = manifest_text("qwen3-32b", SIDE_TRAINER, "fsdp2", "dp=4", &trainer_bytes);
	char *rollout = manifest_text("qwen3-32b", SIDE_ROLLOUT, "vllm", "tp=2", &rollout_bytes);
	static const struct place places[8] = {{.host = "a"}};
	const uint32_t replicas[] = {0, 1};
	struct plan_source source = {0};
	struct ws_error err = {0};
	const struct plan_input input = {
		.replicas = replicas, .replica_count = 2, .places = places, .rules = RULES_DEFAULT};

	ck_ok(plan_source_take(&source, SIDE_TRAINER, trainer, trainer_bytes, &err), err);
	ck_ok(plan_source_take(&source, SIDE_ROLLOUT, rollout, rollout_bytes, &err), err);
	ck_fails(plan_source_make(&source, &input, 7, 0, &err), -EPROTO, err);
	ck_assert_ptr_nonnull(strstr(err.text, "has 7 members, and by the manifests 4 trainers and "
					       "2 replicas of 2 ranks"));
	ck_ok(plan_source_make(&source, &input, 8, 0, &err), err);
	plan_source_release(&source);
	mem_free(trainer);
	mem_free(rollout);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_real");
	TCase *real = tcase_create("real models");

	tcase_set_timeout(real, 120);
	tcase_add_loop_test(real, kimi_k2_members_pass_the_check, 0, (int)ARRAY_SIZE(kimi_cases));
	tcase_add_loop_test(real, duplicates_are_dealt_evenly, 0, (int)ARRAY_SIZE(even_cases));
	tcase_add_test(real, buckets_are_embeddings_and_head_then_layers);
	tcase_add_test(real, layers_of_all_stages_are_sent_in_step);
	tcase_add_test(real, reports_hold_what_programs_and_people_look_for);
	tcase_add_test(real, a_roster_of_another_size_than_the_manifests_is_refused);
	tcase_add_test(real, the_public_check_gives_totals_or_findings);
	suite_add_tcase(tests, real);
	return tests;
}
