/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts and meshes: what can't be is said, stages are those of each framework, and what the
 * options change.
 */
#include <errno.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

static const struct {
	const char *model, *layout, *mesh;
	const char *text; /* what the finding says */
} bad_meshes[] = {
	{"llama-3-70b", "fsdp3", "dp=2", "there are fsdp2, zero3, veomni, torchtitan"},
	{"llama-3-70b", "fsdp2", "dp", "a good one is"},
	{"llama-3-70b", "fsdp2", "dp=0", "a number from 1 to 65536"},
	{"llama-3-70b", "fsdp2", "dp=2,dp=2", "stands twice"},
	{"llama-3-70b", "fsdp2", "tp=2", "it needs dp="},
	{"llama-3-70b", "fsdp2", "dp=2,ep=2", "no mesh key 'ep'"},
	{"llama-3-70b", "fsdp2", "dp=65536,tp=2", "more than 65536 ranks"},
	{"llama-3-70b", "vllm", "tp=3", "don't divide by 3"},
	{"llama-3-70b", "vllm", "tp=128", "64 attention heads don't divide by 128"},
	{"qwen3-30b-a3b", "vllm", "tp=2,ep=3", "ep=3 doesn't divide the 2 ranks"},
	{"llama-3-70b", "vllm", "tp=2,pp=81", "more than 80 layers"},
	{"deepseek-v3", "megatron", "tp=2,pp=2", "61 layers don't divide by 2 stages"},
	{"deepseek-v3", "megatron", "tp=2,pp=2,stages=30:30", "has 60 layers, the model 61"},
	{"deepseek-v3", "megatron", "tp=2,pp=2,stages=30", "2 numbers like 8:8:5"},
	{"deepseek-v3", "megatron", "tp=1,dp=3,ep=2", "doesn't divide the 3 ranks"},
	{"deepseek-v3", "megatron", "tp=1,order=dp-tp", "tp-cp-ep-dp-pp"},
	{"deepseek-v3", "sglang", "tp=4,dp=3", "must each divide tp=4"},
	{"deepseek-v3", "sglang", "tp=4,moe_dense_tp=2", "1 or tp"},
	{"gpt-oss-120b-mxfp4", "megatron", "tp=1", "no param of layout 'megatron' reads it"},
	{"kimi-k2-int4", "vllm", "tp=1", "no param of layout 'vllm' reads it"},
	{"kimi-k2", "vllm", "dp=4,ep=4,round_robin=1", "for models with grouped top-k"},
	{"kimi-k2", "sglang", "tp=5,ep=5", "384 experts don't divide by ep=5"},
	{"qwen3-30b-a3b", "sglang", "tp=2,fuse_shared=1", "models with one shared expert"},
	{"qwen3-30b-a3b", "sglang", "tp=2,dp_lm_head=2", "'dp_lm_head=' is 1 or not there"},
	{"qwen3-30b-a3b", "trtllm", "tp=4,ep=3", "ep=3 doesn't divide tp=4"},
	{"gpt-oss-120b", "trtllm", "tp=2", "no param of layout 'trtllm' reads it"},
	{"qwen3-30b-a3b", "torchtitan", "tp=2", "it needs dp="},
	{"qwen3-30b-a3b", "torchtitan", "dp=3,ep=2", "ep=2 doesn't divide the 3 ranks"},
	{"qwen3-30b-a3b", "veomni", "dp=9,ep=3", "128 experts don't divide by ep=3"},
	{"qwen3-30b-a3b", "zero3", "dp=2,tp=2", "no mesh key 'tp'"},
	{"deepseek-v3", "megatron", "pp=4,mtp=4", "\"none\" or a stage from 0 to 3"},
	{"deepseek-v3", "megatron", "pp=3,count_loss=2", "count_loss= are 1 or not there"},
};

START_TEST(a_mesh_that_cannot_be_is_said)
{
	struct manifest_options options = {.layout = bad_meshes[_i].layout,
					   .mesh = bad_meshes[_i].mesh};
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct model *model;
	bool said = false;
	ck_ok(model_builtin(&model, bad_meshes[_i].model, &err), err);
	ck_fails(manifest_make(model, &options, &out, &findings, &err), -EINVAL, err);
	for (const struct finding *it = findings.first; it != NULL; it = it->next)
		said = said || strstr(it->text, bad_meshes[_i].text) != NULL;
	ck_assert_msg(said, "%s", err.text);
	model_free(model);
	writer_release(&out);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static const struct {
	const char *model, *layout, *mesh;
	uint32_t world;
	const char *stages; /* layers of each stage */
} stage_cases[] = {
	{"kimi-k2", "megatron", "tp=8,cp=4,pp=8,ep=32,etp=1,last=5", 256, "8 8 8 8 8 8 8 5 "},
	{"kimi-k2", "vllm", "pp=4", 4, "15 15 16 15 "},
	{"kimi-k2", "vllm", "pp=3", 3, "20 21 20 "},
	{"llama-3-70b", "vllm", "pp=6", 6, "13 13 13 14 14 13 "},
	{"kimi-k2", "sglang", "pp=3", 3, "20 20 21 "},
	{"kimi-k2", "vllm", "pp=3,stages=1:30:30", 3, "1 30 30 "},
	{"glm-4.5", "megatron", "pp=4,tp=2", 8, "23 23 23 24 "}, /* and the MTP layer */
	{"qwen3-32b", "megatron", "pp=2,vpp=2,tp=1", 2, "32 32 "},
	{"deepseek-v3", "megatron", "tp=2,ep=4,pp=1", 4 * 2, "62 "},
	/* 61 layers, embedding and loss: 63 in 3 entries; the MTP layer where it is told */
	{"deepseek-v3", "megatron", "pp=3,count_embedding=1,count_loss=1", 3, "20 21 21 "},
	{"deepseek-v3", "megatron", "pp=3,count_embedding=1,count_loss=1,mtp=1", 3, "20 22 20 "},
	{"deepseek-v3", "megatron", "pp=2,vpp=2,stages=15:16:15:15", 2, "30 32 "},
	{"deepseek-v3", "megatron", "pp=2,stages=30:31,mtp=none", 2, "30 31 "},
	{"kimi-k2", "trtllm", "pp=4", 4, "16 15 15 15 "},
	{"kimi-k2", "veomni", "pp=2,dp=2,stages=31:30", 4, "31 30 "},
};

START_TEST(stages_are_those_of_the_framework)
{
	struct manifest_options options = {.layout = stage_cases[_i].layout,
					   .mesh = stage_cases[_i].mesh};
	struct writer out = WRITER_INIT(1 << 20), got = WRITER_INIT(1 << 12);
	struct ws_error err = {0};
	struct model *model;
	struct manifest *manifest;
	ck_ok(model_builtin(&model, stage_cases[_i].model, &err), err);
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	ck_assert_uint_eq(manifest_world(manifest), stage_cases[_i].world);
	uint32_t rule = 0, last = 0;
	while (strstr(manifest_rule(manifest, rule)->name, "o_proj") == NULL &&
	       strstr(manifest_rule(manifest, rule)->name, "linear_proj") == NULL)
		rule++;
	/* Stages are the slowest axis here: a change of first layer is the next stage. */
	for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
		const int32_t *layers;
		uint32_t count = manifest_layers(manifest, rule, rank, &layers);
		if (rank > 0 && (uint32_t)layers[0] == last)
			continue;
		last = (uint32_t)layers[0];
		write_format(&got, "%u ", count);
	}
	write_u8(&got, 0);
	ck_assert_str_eq((char *)got.bytes, stage_cases[_i].stages);
	manifest_free(manifest);
	model_free(model);
	writer_release(&out);
	writer_release(&got);
}
END_TEST

START_TEST(virtual_stages_interleave)
{
	struct manifest_options options = {.layout = "megatron", .mesh = "pp=2,vpp=2"};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct model *model;
	struct manifest *manifest;
	const int32_t *layers;
	ck_ok(model_builtin(&model, "qwen3-32b", &err), err);
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	uint32_t rule = 0;
	while (!manifest_rule(manifest, rule)->each_layer)
		rule++;
	/* Chunk v of stage p begins at v * 32 + p * 16. */
	ck_assert_uint_eq(manifest_layers(manifest, rule, 1, &layers), 32);
	ck_assert_int_eq(layers[0], 16);
	ck_assert_int_eq(layers[16], 48);
	manifest_free(manifest);
	model_free(model);
	writer_release(&out);
}
END_TEST

START_TEST(options_change_dtype_casts_and_quantization)
{
	struct manifest_options trainer = {.layout = "fsdp2", .mesh = "dp=2", .dtype = "f32"};
	struct manifest_options rollout = {.side = SIDE_ROLLOUT,
					   .layout = "vllm",
					   .mesh = "tp=2",
					   .casts = "f32:bf16,bf16:f16",
					   .quant = "fp8-block"};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct model *model;
	struct manifest *manifest;
	ck_ok(model_builtin(&model, "glm-4.5", &err), err);
	ck_ok(manifest_make(model, &trainer, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++)
		ck_assert_int_eq(manifest_rule(manifest, i)->dtype, WS_F32);
	ck_assert(!manifest_casts(manifest, WS_F32, WS_BF16));
	manifest_free(manifest);
	writer_reset(&out);
	ck_ok(manifest_make(model, &rollout, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	ck_assert(manifest_casts(manifest, WS_F32, WS_BF16) &&
		  manifest_casts(manifest, WS_BF16, WS_F16));
	ck_assert(!manifest_casts(manifest, WS_BF16, WS_F32));
	ck_assert_str_eq(manifest_quant(manifest), "fp8-block");
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++) {
		const struct param_rule *rule = manifest_rule(manifest, i);
		bool quantized = rule->quant != NULL && !rule->is_scale;
		ck_assert_int_eq(quantized, rule->dtype == WS_F8_E4M3);
		if (strstr(rule->name, "w13") != NULL || strstr(rule->name, "o_proj") != NULL)
			ck_assert(quantized || rule->is_scale);
		if (strstr(rule->name, "mlp.gate.") != NULL || strstr(rule->name, "norm") != NULL ||
		    strstr(rule->name, "embed") != NULL || strstr(rule->name, "bias") != NULL)
			ck_assert(!quantized);
	}
	manifest_free(manifest);
	model_free(model);
	writer_release(&out);
}
END_TEST

START_TEST(tied_embeddings_are_read_from_the_embedding)
{
	static const struct tensor_listing list[] = {
		{"model.embed_tokens.weight", WS_BF16, 2, {1024, 256}},
		{"model.norm.weight", WS_BF16, 1, {256}},
		{"model.layers.0.self_attn.q_proj.weight", WS_BF16, 2, {256, 256}},
		{"model.layers.0.self_attn.k_proj.weight", WS_BF16, 2, {256, 256}},
		{"model.layers.0.self_attn.v_proj.weight", WS_BF16, 2, {256, 256}},
	};
	static const char config[] = "{\"num_hidden_layers\":1,\"num_attention_heads\":2,"
				     "\"hidden_size\":256,\"tie_word_embeddings\":true}";
	static const char *const layouts[] = {"vllm", "sglang", "megatron", "fsdp2"};
	for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
		struct manifest_options options = {.layout = layouts[i],
						   .mesh = i == 3 ? "dp=2" : "tp=2"};
		struct writer out = WRITER_INIT(1 << 20);
		struct ws_error err = {0};
		struct model *model;
		struct manifest *manifest;
		uint32_t heads = 0;
		ck_ok(model_from_tensors(&model, "m", config, sizeof(config) - 1, list,
					 ARRAY_SIZE(list), &err),
		      err);
		ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
		ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
		for (uint32_t r = 0; r < manifest_rule_count(manifest); r++)
			heads += strcmp(manifest_rule(manifest, r)->name, "lm_head.weight") == 0 ||
				 strcmp(manifest_rule(manifest, r)->name, "output_layer.weight") ==
					 0;
		ck_assert_uint_eq(heads, i < 2 ? 1 : 0);
		manifest_free(manifest);
		model_free(model);
		/* Neither there nor tied: a checkpoint that lost it. */
		static const char untied[] = "{\"tie_word_embeddings\":false}";
		ck_ok(model_from_tensors(&model, "m", untied, sizeof(untied) - 1, list,
					 ARRAY_SIZE(list), &err),
		      err);
		int rc = manifest_make(model, &options, &out, NULL, &err);
		ck_assert_int_eq(rc, i == 3 ? 0 : -EINVAL);
		ck_assert(rc == 0 || strstr(err.text, "lm_head.weight: ") != NULL);
		model_free(model);
		writer_release(&out);
	}
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("layout");
	TCase *tc = tcase_create("layouts");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_mesh_that_cannot_be_is_said, 0, ARRAY_SIZE(bad_meshes));
	tcase_add_loop_test(tc, stages_are_those_of_the_framework, 0, ARRAY_SIZE(stage_cases));
	tcase_add_test(tc, virtual_stages_interleave);
	tcase_add_test(tc, options_change_dtype_casts_and_quantization);
	tcase_add_test(tc, tied_embeddings_are_read_from_the_embedding);
	suite_add_tcase(s, tc);
	return s;
}
