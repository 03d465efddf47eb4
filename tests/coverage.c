/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every layout of every model, all layers and all experts: a plan from each trainer layout to
 * each engine, in six shapes of meshes each.  plan_make proves that the whole target is covered
 * exactly once; the checker, which shares nothing with it, proves every member's part again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

#define SHAPES 6

struct layout_shapes {
	const char *layout;
	const char *mesh[SHAPES]; /* "@4": four numbers of layers that add up to the model's */
};

static const struct layout_shapes trainers[] = {
	{"fsdp2", {"dp=3", "dp=2,tp=2", "rep=2,dp=2", "dp=7", "rep=2,dp=2,tp=4", "dp=5,stacked=1"}},
	{"zero3", {"dp=3", "dp=4", "dp=7", "rep=2,dp=2", "dp=5,stacked=1", "dp=6"}},
	{"veomni",
	 {"dp=4", "dp=4,ep=2,by_expert=1", "dp=8,ep=4,fused=1", "dp=4,tp=2,ep=4", "rep=2,dp=2",
	  "pp=2,dp=4,ep=2,stages=@2"}},
	{"torchtitan",
	 {"dp=4", "dp=4,tp=2,ep=4", "dp=8,ep=8", "rep=2,dp=2", "pp=3,dp=2,stages=@3", "dp=8,ep=2"}},
	{"megatron",
	 {"tp=1", "tp=2,ep=2,etp=1", "tp=4,cp=2,ep=8,etp=1", "pp=2,tp=2,first=20,ep=2,etp=1",
	  "pp=2,vpp=2,tp=2,stages=@4", "tp=4,dp=2,ep=4,etp=2"}},
};

static const struct layout_shapes engines[] = {
	{"vllm",
	 {"tp=2", "tp=4", "tp=8", "dp=2,tp=2,ep=4", "pp=3,tp=2", "pp=2,tp=4,ep=4,stages=@2"}},
	{"sglang",
	 {"tp=2", "tp=4,dp=2,ep=2", "tp=8,dp=4,ep=8,moe_dense_tp=1,shared_tp=1,dp_lm_head=1",
	  "pp=3,tp=2", "tp=4,ep=4,fuse_shared=1", "tp=8"}},
	{"trtllm", {"tp=2", "tp=4,ep=2", "tp=8,ep=8", "pp=3,tp=2", "tp=4,attention_dp=1", "tp=1"}},
};

static const struct {
	const char *name;
	int32_t layers;
	bool mtp, one_shared;
	const char *without; /* layouts that have no preset for it */
} models[] = {
	{"llama-3-70b", 80, false, false, ""},
	{"qwen3-32b", 64, false, false, ""},
	{"qwen3-30b-a3b", 48, false, false, ""},
	{"qwen3-235b-a22b", 94, false, false, ""},
	{"deepseek-v3", 61, true, true, ""},
	{"kimi-k2", 61, false, true, ""},
	{"glm-4.5", 92, true, true, ""},
	{"glm-4.6", 92, true, true, ""},
	{"gpt-oss-120b", 36, false, false, "veomni torchtitan trtllm"},
	{"gpt-oss-120b-mxfp4", 36, false, false, "veomni torchtitan megatron trtllm"},
};

/* The mesh's text for this model: layers dealt unevenly, one less on each next stage. */
static void mesh_text(const char *mesh, int32_t layers, bool no_fusion, bool no_mtp, char *out,
		      size_t bytes)
{
	const char *at = strchr(mesh, '@'), *fused = strstr(mesh, ",fuse_shared=1");
	int32_t count = 0, left = layers;
	if (at == NULL) {
		size_t kept = fused != NULL && no_fusion ? (size_t)(fused - mesh) : strlen(mesh);
		snprintf(out, bytes, "%.*s%s", (int)kept, mesh, no_mtp ? ",mtp=none" : "");
		return;
	}
	ck_assert_int_eq(sscanf(at, "@%" SCNd32, &count), 1);
	size_t used = (size_t)snprintf(out, bytes, "%.*s", (int)(at - mesh), mesh);
	for (int32_t i = 0; i < count; i++) {
		int32_t mine = i + 1 == count ? left : layers / count + 1 - i % 2;
		used += (size_t)snprintf(out + used, bytes - used, "%s%" PRId32, i > 0 ? ":" : "",
					 mine);
		left -= mine;
	}
	snprintf(out + used, bytes - used, "%s", no_mtp ? ",mtp=none" : "");
}

static struct manifest *make(const struct model *model, enum side side, const char *layout,
			     const char *mesh, const char *quant)
{
	struct manifest_options options = {
		.side = side, .layout = layout, .mesh = mesh, .quant = quant};
	struct writer out = WRITER_INIT(16 << 20);
	struct ws_error err = {0};
	struct manifest *manifest;
	int rc = manifest_make(model, &options, &out, NULL, &err);
	ck_assert_msg(rc == 0, "%s %s %s: %s", model_name(model), layout, mesh, err.text);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	writer_release(&out);
	return manifest;
}

static void check_pair(const struct model *model, const char *trainer, const char *trainer_mesh,
		       const char *engine, const char *engine_mesh, const char *quant)
{
	static const uint32_t replicas[] = {0};
	struct manifest *source = make(model, SIDE_TRAINER, trainer, trainer_mesh, NULL);
	struct manifest *target = make(model, SIDE_ROLLOUT, engine, engine_mesh, quant);
	struct plan_input input = {.trainer = source,
				   .rollout = target,
				   .replicas = replicas,
				   .replica_count = 1,
				   .rules = RULES_DEFAULT};
	struct plan *plan;
	struct ws_error err = {0};
	int rc = plan_make(&plan, &input, PLAN_ALL, NULL, &err);
	if (rc == 0)
		rc = plan_check(plan, NULL, &err);
	ck_assert_msg(rc == 0, "%s: %s %s to %s %s: %s", model_name(model), trainer, trainer_mesh,
		      engine, engine_mesh, err.text);
	plan_free(plan);
	manifest_free(source);
	manifest_free(target);
}

static void check_layouts(const struct model *model, uint32_t m, uint32_t shape)
{
	for (uint32_t t = 0; t < ARRAY_SIZE(trainers); t++) {
		bool titan = strcmp(trainers[t].layout, "torchtitan") == 0;
		char from[256], to[256];
		if (strstr(models[m].without, trainers[t].layout) != NULL)
			continue;
		mesh_text(trainers[t].mesh[shape], models[m].layers, true, false, from,
			  sizeof(from));
		for (uint32_t e = 0; e < ARRAY_SIZE(engines); e++) {
			bool turn = (t + e + shape) % ARRAY_SIZE(engines) == 0;
			if (strstr(models[m].without, engines[e].layout) != NULL ||
			    (SANITIZED && !turn))
				continue;
			mesh_text(engines[e].mesh[shape], models[m].layers, !models[m].one_shared,
				  titan && models[m].mtp, to, sizeof(to));
			check_pair(model, trainers[t].layout, from, engines[e].layout, to, NULL);
		}
	}
}

START_TEST(every_layout_covers_every_engine_exactly_once)
{
	uint32_t m = (uint32_t)_i / SHAPES;
	struct ws_error err = {0};
	struct model *model;
	ck_ok(model_builtin(&model, models[m].name, &err), err);
	check_layouts(model, m, (uint32_t)_i % SHAPES);
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* ---- Quantized targets: every scale too.  Meshes at which no block of any model is torn. */

static const struct layout_shapes whole_blocks[] = {
	{"vllm", {"tp=2", "tp=2,ep=2", "dp=2,tp=2,ep=4", "pp=3,tp=2", "tp=1", "tp=4,ep=4"}},
	{"sglang",
	 {"tp=2", "tp=4,dp=2,ep=4", "tp=8,dp=4,ep=8,moe_dense_tp=1,shared_tp=1,dp_lm_head=1",
	  "pp=3,tp=2", "tp=2,fuse_shared=1", "tp=4,ep=4"}},
	{"trtllm",
	 {"tp=2", "tp=4,ep=4", "tp=2,ep=2", "pp=3,tp=2", "tp=4,ep=4,attention_dp=1", "tp=1"}},
};

#define WHOLE_MODELS 8 /* the first ones of models[] */

START_TEST(every_scale_is_covered_exactly_once)
{
	uint32_t m = (uint32_t)_i / SHAPES, shape = (uint32_t)_i % SHAPES;
	struct ws_error err = {0};
	struct model *model;
	ck_ok(model_builtin(&model, models[m].name, &err), err);
	for (uint32_t e = 0; e < ARRAY_SIZE(whole_blocks); e++) {
		const struct layout_shapes *trainer = &trainers[(e + shape) % ARRAY_SIZE(trainers)];
		bool titan = strcmp(trainer->layout, "torchtitan") == 0;
		char from[256], to[256];
		mesh_text(trainer->mesh[shape], models[m].layers, true, false, from, sizeof(from));
		mesh_text(whole_blocks[e].mesh[shape], models[m].layers, !models[m].one_shared,
			  titan && models[m].mtp, to, sizeof(to));
		check_pair(model, trainer->layout, from, whole_blocks[e].layout, to, "fp8-block");
		mesh_text(engines[e].mesh[shape], models[m].layers, !models[m].one_shared,
			  titan && models[m].mtp, to, sizeof(to));
		if ((e + shape) % 3 == 0)
			check_pair(model, trainer->layout, from, engines[e].layout, to,
				   "fp8-channel");
	}
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static const char *const files[] = {
	"kimi-k2-fp8",	       "deepseek-v3-fp8",	"qwen3-32b-fp8",     "qwen3-30b-a3b-fp8",
	"qwen3-235b-a22b-fp8", "llama-3-70b-fp8-block", "glm-4.5-fp8-block", "glm-4.5-fp8-channel"};

START_TEST(files_that_are_quantized_are_copied_with_their_scales)
{
	uint32_t f = (uint32_t)_i / SHAPES, shape = (uint32_t)_i % SHAPES;
	struct ws_error err = {0};
	struct model *model;
	uint32_t m = 0;
	while (strncmp(models[m].name, files[f], strlen(models[m].name)) != 0)
		m++;
	ck_ok(model_builtin(&model, files[f], &err), err);
	for (uint32_t e = 0; e < ARRAY_SIZE(whole_blocks); e++) {
		const struct layout_shapes *trainer = &trainers[(e + shape) % 2];
		char to[256];
		/* Tensor parallelism of a trainer would tear blocks: flat shards then. */
		if (strstr(trainer->mesh[shape], "tp=") != NULL)
			trainer = &trainers[1];
		mesh_text(whole_blocks[e].mesh[shape], models[m].layers, !models[m].one_shared,
			  false, to, sizeof(to));
		check_pair(model, trainer->layout, trainer->mesh[shape], whole_blocks[e].layout, to,
			   NULL);
	}
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("coverage");
	TCase *tc = tcase_create("presets");
	tcase_set_timeout(tc, 300);
	tcase_add_loop_test(tc, every_layout_covers_every_engine_exactly_once, 0,
			    ARRAY_SIZE(models) * SHAPES);
	tcase_add_loop_test(tc, every_scale_is_covered_exactly_once, 0, WHOLE_MODELS * SHAPES);
	tcase_add_loop_test(tc, files_that_are_quantized_are_copied_with_their_scales, 0,
			    ARRAY_SIZE(files) * SHAPES);
	suite_add_tcase(s, tc);
	return s;
}
