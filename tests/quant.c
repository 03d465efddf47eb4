/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantized params: each value of a scale lies where its block lies in the weight, for every
 * layout and scheme; a cut that tears a block is refused with the largest size that doesn't; and
 * what "schemes" can't say.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

static struct manifest *make(const char *name, const char *layout, const char *mesh,
			     const char *quant, struct findings *findings)
{
	struct manifest_options options = {
		.side = SIDE_ROLLOUT, .layout = layout, .mesh = mesh, .quant = quant};
	struct writer out = WRITER_INIT(4 << 20);
	struct ws_error err = {0};
	struct manifest *manifest = NULL;
	struct model *model;
	ck_ok(model_builtin(&model, name, &err), err);
	int rc = manifest_make(model, &options, &out, findings, &err);
	ck_assert_msg(rc == 0 || findings != NULL, "%s", err.text);
	if (rc == 0)
		ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	model_free(model);
	writer_release(&out);
	return manifest;
}

/* ---- Where scales lie. */

static const struct {
	const char *model, *layout, *mesh, *quant;
} cases[] = {
	{"kimi-k2", "vllm", "tp=8", "fp8-block"},
	{"kimi-k2", "vllm", "tp=16,ep=16", "fp8-block"},
	{"kimi-k2", "sglang", "tp=16,dp=8,ep=16,moe_dense_tp=1", "fp8-block"},
	{"deepseek-v3", "vllm", "pp=2,tp=4,ep=2", "fp8-block"},
	{"qwen3-30b-a3b", "vllm", "tp=2", "fp8-block"},
	{"qwen3-32b", "sglang", "tp=8", "fp8-block"},
	{"llama-3-70b", "vllm", "tp=16", "fp8-block"},
	{"glm-4.5", "vllm", "dp=2,tp=2,ep=4", "fp8-block"},
	{"kimi-k2", "vllm", "tp=8", "fp8-channel"},
	{"glm-4.5", "sglang", "tp=8,ep=4", "fp8-channel"},
	{"deepseek-v3", "trtllm", "tp=4,ep=2", "fp8-block"},
	{"kimi-k2", "sglang", "tp=8,fuse_shared=1", "fp8-block"},
	/* files that bring their scales along */
	{"kimi-k2-fp8", "vllm", "tp=8", NULL},
	{"deepseek-v3-fp8", "trtllm", "tp=8,ep=8", NULL},
	{"qwen3-32b-fp8", "vllm", "tp=8", NULL},
	{"glm-4.5-fp8-block", "sglang", "tp=4", NULL},
};

#define NO_ELEMENT UINT64_MAX

/* The canonical element (as a flat index of its tensor) at a local element of the form, and which
 * tensor and slot. */
static uint64_t element_at(const struct manifest *manifest, const struct form *form, uint64_t local,
			   uint32_t *tensor, int32_t *slot)
{
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *p = &form->pieces[i];
		const struct tensor_rule *rule = manifest_tensor(manifest, p->tensor);
		uint64_t left = local - p->place, flat = 0;
		bool in = local >= p->place;
		/* strides here descend with the dims */
		for (uint32_t d = 0; d < p->dim_count && in; d++) {
			uint64_t stride = (uint64_t)p->stride[d];
			uint64_t at = p->extent[d] == 1 ? 0 : left / stride;
			in = at < p->extent[d];
			left -= at * stride;
			flat = flat * rule->dim[d] + p->offset[d] + at;
		}
		if (in && left == 0) {
			*tensor = p->tensor;
			*slot = p->slot;
			return flat;
		}
	}
	return NO_ELEMENT;
}

/* Every scale value: the weight's element at the same place times the block is in its block. */
static void check_values(const struct manifest *manifest, uint32_t scale, uint32_t rank)
{
	const struct param_rule *rule = manifest_rule(manifest, scale);
	const struct quant_scheme *scheme = manifest_scheme(manifest, scale);
	const struct form *weight, *form;
	struct ws_error err = {0};
	ck_ok(manifest_form(manifest, rule->weight_rule, rank, &weight, &err), err);
	ck_ok(manifest_form(manifest, scale, rank, &form, &err), err);
	if (form == NULL)
		return;
	uint32_t n = form->dim_count;
	uint64_t rows = form->dim[n - 2], columns = form->dim[n - 1];
	uint64_t row_block = scheme->block[0], column_block = scheme->block[1];
	ck_assert_uint_eq(form->covered_count, form->element_count);
	ck_assert_uint_eq(n, weight->dim_count);
	ck_assert_uint_eq(rows, (weight->dim[n - 2] + row_block - 1) / row_block);
	if (column_block > 0)
		ck_assert_uint_eq(columns, (weight->dim[n - 1] + column_block - 1) / column_block);
	else
		ck_assert_uint_eq(columns, 1);
	for (uint64_t i = 0; i < form->element_count; i += 1 + form->element_count / 3000) {
		uint64_t row = i / columns % rows, column = i % columns, stack = i / columns / rows;
		uint64_t local =
			(stack * weight->dim[n - 2] + row * row_block) * weight->dim[n - 1] +
			column * column_block;
		uint32_t tensor = UINT32_MAX, of = UINT32_MAX;
		int32_t slot = -1, of_slot = -1;
		uint64_t value = element_at(manifest, form, i, &tensor, &slot);
		uint64_t element = element_at(manifest, weight, local, &of, &of_slot);
		ck_assert(value != NO_ELEMENT && element != NO_ELEMENT);
		const struct tensor_rule *scales = manifest_tensor(manifest, tensor);
		const struct tensor_rule *weights = manifest_tensor(manifest, of);
		ck_assert(scales->is_scale && scales->weight_tensor == of);
		ck_assert_int_eq(slot, of_slot);
		uint64_t block = element / weights->dim[1] / row_block * scales->dim[1];
		if (column_block > 0)
			block += element % weights->dim[1] / column_block;
		ck_assert_uint_eq(value, block);
	}
}

START_TEST(each_value_lies_where_its_block_does)
{
	struct manifest *manifest =
		make(cases[_i].model, cases[_i].layout, cases[_i].mesh, cases[_i].quant, NULL);
	bool qwen = strncmp(cases[_i].model, "qwen3", 5) == 0;
	bool block = cases[_i].quant == NULL || strcmp(cases[_i].quant, "fp8-block") == 0;
	uint32_t scales = 0, weights = 0;
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++) {
		const struct param_rule *rule = manifest_rule(manifest, i);
		weights += rule->quant != NULL && !rule->is_scale;
		if (!rule->is_scale)
			continue;
		const struct param_rule *weight = manifest_rule(manifest, rule->weight_rule);
		ck_assert_uint_eq(rule->weight_rule, i - 1);
		ck_assert_int_eq(weight->dtype, WS_F8_E4M3);
		ck_assert_int_eq(rule->dtype, block && !qwen ? WS_F32 : WS_BF16);
		ck_assert_int_eq(strncmp(rule->name, weight->name, strlen(weight->name)), 0);
		ck_assert_str_eq(rule->name + strlen(weight->name),
				 block ? "_scale_inv" : "_scale");
		for (uint32_t rank = 0; rank < manifest_world(manifest); rank += 3)
			check_values(manifest, i, rank);
		scales++;
	}
	ck_assert_uint_gt(scales, 3);
	ck_assert_uint_eq(scales, weights);
	manifest_free(manifest);
}
END_TEST

START_TEST(a_ragged_last_block_has_a_value_of_its_own)
{
	struct manifest *manifest = make("kimi-k2", "vllm", "tp=8", "fp8-block", NULL);
	struct ws_error err = {0};
	const struct form *form;
	uint32_t found = 0;
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++) {
		if (strstr(manifest_rule(manifest, i)->name, "fused_qkv_a_proj.weight_scale") ==
		    NULL)
			continue;
		/* 1536 rows of q_a are 12 blocks, 576 of kv_a are 5 */
		ck_ok(manifest_form(manifest, i, 3, &form, &err), err);
		ck_assert_uint_eq(form->dim[0], 17);
		ck_assert_uint_eq(form->dim[1], 56);
		found++;
	}
	ck_assert_uint_eq(found, 1);
	manifest_free(manifest);
}
END_TEST

START_TEST(per_tensor_a_fused_param_has_one_scale_and_a_stack_one_for_each_expert)
{
	static const struct {
		const char *name;
		uint32_t dim_count;
		uint64_t dim[2];
	} want[] = {{"self_attn.qkv_proj.weight_scale", 1, {1, 0}},
		    {"self_attn.o_proj.weight_scale", 1, {1, 0}},
		    {"mlp.experts.w13_weight_scale", 2, {64, 1}},
		    {"mlp.experts.w2_weight_scale", 2, {64, 1}}};
	struct manifest *manifest = make("qwen3-30b-a3b", "vllm", "tp=4,ep=2", "fp8-tensor", NULL);
	struct ws_error err = {0};
	const struct form *form;
	for (size_t w = 0; w < ARRAY_SIZE(want); w++) {
		uint32_t i = 0;
		while (i < manifest_rule_count(manifest) &&
		       strstr(manifest_rule(manifest, i)->name, want[w].name) == NULL)
			i++;
		ck_assert_uint_lt(i, manifest_rule_count(manifest));
		ck_ok(manifest_form(manifest, i, 1, &form, &err), err);
		ck_assert_uint_eq(form->dim_count, want[w].dim_count);
		for (uint32_t d = 0; d < form->dim_count; d++)
			ck_assert_uint_eq(form->dim[d], want[w].dim[d]);
		ck_assert_uint_eq(form->covered_count, form->element_count);
	}
	manifest_free(manifest);
}
END_TEST

/* ---- The largest tensor parallelism with whole blocks (layouts.md 3.4). */

static const struct {
	const char *model, *layout, *mesh, *param, *axis;
	uint32_t asked, works; /* 0: all do */
	uint32_t block;	       /* that works as it is; 0: none from 16 on */
} largest[] = {
	{"llama-3-70b", "vllm", "tp=64", "gate_up_proj", "dense_tp", 64, 32, 64},
	{"llama-3-70b", "vllm", "tp=64", "qkv_proj", "attn_tp", 64, 0, 0},
	{"qwen3-32b", "vllm", "tp=64", "gate_up_proj", "dense_tp", 64, 8, 16},
	{"qwen3-30b-a3b", "vllm", "tp=32", "w13_weight", "moe_tp", 32, 2, 0},
	{"qwen3-235b-a22b", "vllm", "tp=64", "w2_weight", "moe_tp", 64, 4, 0},
	{"glm-4.5", "vllm", "tp=32", "w2_weight", "moe_tp", 32, 4, 16},
	{"glm-4.5", "vllm", "tp=8", "shared_experts.down_proj", "shared_tp", 8, 4, 64},
	{"deepseek-v3", "vllm", "tp=32", "w13_weight", "moe_tp", 32, 16, 64},
	{"deepseek-v3", "vllm", "tp=32", "mlp.down_proj", "dense_tp", 32, 16, 64},
	{"kimi-k2", "vllm", "tp=64", "mlp.gate_up_proj", "dense_tp", 64, 16, 32},
	{"kimi-k2", "vllm", "tp=64", "q_b_proj", "attn_tp", 64, 32, 64},
	{"kimi-k2", "vllm", "tp=64", "o_proj", "attn_tp", 64, 0, 0},
};

START_TEST(a_torn_block_is_refused_with_the_largest_size_and_block_that_work)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	char text[128];
	uint32_t found = 0;
	struct manifest *manifest = make(largest[_i].model, largest[_i].layout, largest[_i].mesh,
					 "fp8-block", &findings);
	ck_assert_ptr_null(manifest);
	snprintf(text, sizeof(text), "the largest size of axis '%s' that works is %u, not %u",
		 largest[_i].axis, largest[_i].works, largest[_i].asked);
	for (const struct finding *it = findings.first; it != NULL; it = it->next) {
		ck_assert_str_eq(it->kind, "block");
		if (strstr(it->where, largest[_i].param) == NULL)
			continue;
		found++;
		ck_assert_msg(strstr(it->text, text) != NULL, "%s", it->text);
		const char *advice = strstr(it->text, "; or declare blocks of ");
		uint32_t block = 0;
		if (advice != NULL)
			sscanf(advice, "; or declare blocks of %u", &block);
		ck_assert_msg(block == largest[_i].block, "%s", it->text);
	}
	ck_assert_uint_eq(found, largest[_i].works == 0 ? 0 : 1);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* ---- A block of another size, by name. */

/* Kimi-K2 at TP 32 was served with blocks of 64 (layouts.md 3.4). */
START_TEST(a_declared_smaller_block_is_planned_where_the_usual_one_is_torn)
{
	static const char *const torn[] = {"fp8-block", "fp8-block:128", "fp8-block:64x128"};
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	const struct form *form;
	for (size_t i = 0; i < ARRAY_SIZE(torn); i++)
		ck_assert_ptr_null(make("kimi-k2", "vllm", "tp=32", torn[i], &findings));
	for (const struct finding *it = findings.first; it != NULL; it = it->next)
		ck_assert_str_eq(it->kind, "block");
	struct manifest *manifest = make("kimi-k2", "vllm", "tp=32", "fp8-block:64", NULL);
	ck_assert_str_eq(manifest_quant(manifest), "fp8-block:64");
	uint32_t i = 0;
	while (strstr(manifest_rule(manifest, i)->name, "experts.w13_weight_scale_inv") == NULL)
		i++;
	ck_ok(manifest_form(manifest, i, 31, &form, &err), err);
	ck_assert_uint_eq(form->dim[1], 2);
	ck_assert_uint_eq(form->dim[2], 7168 / 64);
	manifest_free(manifest);
	manifest = make("kimi-k2", "vllm", "tp=2", "fp8-block-ue8m0:64x256", NULL);
	ck_assert_uint_eq(manifest_scheme(manifest, i)->block[0], 64);
	ck_assert_uint_eq(manifest_scheme(manifest, i)->block[1], 256);
	manifest_free(manifest);
	arena_release(&arena);
}
END_TEST

static const struct {
	const char *name, *why;
} misnamed[] = {
	{"fp8-block:", "behind the colon stands the side of a block"},
	{"fp8-block:0", "behind the colon"},
	{"fp8-block:64x", "behind the colon"},
	{"fp8-block:64x64x64", "behind the colon"},
	{"fp8-block:-64", "behind the colon"},
	{"fp8-block:65537", "behind the colon"},
	{"fp8-block:18446744073709551680", "behind the colon"},
	{"", "no scheme has this name"},
	{"fp8-block64", "there are fp8-block, "},
	{"fp8:64", "there are fp8-block, "},
	{":64", "there are fp8-block, "},
	{"fp8-tensor:64", "'fp8-tensor' has no blocks"},
	{"fp8-channel:", "'fp8-channel' has no blocks"},
};

START_TEST(a_block_that_is_misnamed_is_refused)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	ck_assert_ptr_null(make("qwen3-30b-a3b", "vllm", "tp=2", misnamed[_i].name, &findings));
	ck_assert_uint_eq(findings.count, 1);
	ck_assert_str_eq(findings.first->kind, "quant");
	ck_assert_msg(strstr(findings.first->text, misnamed[_i].why) != NULL, "%s",
		      findings.first->text);
	arena_release(&arena);
}
END_TEST

START_TEST(a_model_that_is_quantized_already_is_not_quantized_anew)
{
	static const char *const names[] = {"qwen3-30b-a3b-fp8", "glm-4.5-fp8-channel"};
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	ck_assert_ptr_null(make(names[_i], "vllm", "tp=2", "fp8-block", &findings));
	ck_assert_uint_eq(findings.count, 1);
	ck_assert_ptr_nonnull(strstr(findings.first->text, "leave --quant away"));
	arena_release(&arena);
}
END_TEST

/* ---- Schemes and params that can't be. */

#define MANIFEST(scheme, tensors, param)                                                     \
	"{\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"f\",\"model\":\"m\","       \
	"\"world\":2,\"meshes\":{\"m\":{\"axes\":[[\"tp\",2]]}},\"schemes\":{\"q\":{" scheme \
	"}},\"tensors\":[{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":[576,256]},"           \
	"{\"name\":\"v\",\"dtype\":\"bf16\",\"shape\":[64,256]}" tensors                     \
	"],\"params\":[{\"p\":\"w\"," param "}]}"

#define BLOCK  "\"kind\":\"block\",\"block\":[128,128],\"fmt\":\"e4m3\""
#define TENSOR "\"kind\":\"tensor\",\"fmt\":\"e4m3\""
#define FUSED  "\"q\":\"q\",\"x\":[\"c\",0,[\"t\",\"w\"],[\"t\",\"v\"]]"
#define SPLIT1 "\"q\":\"q\",\"x\":[\"s\",[\"t\",\"w\"],1,\"tp\"]"

static const struct {
	const char *text, *kind, *why; /* why NULL: it can be */
} manifests[] = {
	{MANIFEST(BLOCK, "", SPLIT1), NULL, NULL},
	{MANIFEST(BLOCK ",\"scale\":\"ue8m0\",\"pow2\":true", "", SPLIT1), NULL, NULL},
	{MANIFEST(BLOCK ",\"scale\":\"ue8m0\"", "", SPLIT1), "quant", "needs \"pow2\": true"},
	{MANIFEST(BLOCK ",\"eps\":0,\"recip\":false", "", SPLIT1), NULL, NULL},
	{MANIFEST(BLOCK ",\"eps\":-1e-4", "", SPLIT1), "quant", "\"eps\" must be a number from 0"},
	{MANIFEST(BLOCK ",\"eps\":1e39", "", SPLIT1), "quant", "that an f32 holds"},
	{MANIFEST(BLOCK ",\"eps\":1e-36,\"recip\":true", "", SPLIT1), "quant",
	 "1 / scale is finite"},
	{MANIFEST(BLOCK ",\"eps\":1e-36,\"recip\":false", "", SPLIT1), NULL, NULL},
	{MANIFEST(BLOCK ",\"eps\":2e-36,\"recip\":true", "", SPLIT1), NULL, NULL},
	{MANIFEST(BLOCK ",\"eps\":0,\"recip\":true", "", SPLIT1), NULL, NULL},
	{MANIFEST(BLOCK ",\"eps\":\"1e-4\"", "", SPLIT1), "quant", "\"eps\" must be a number"},
	{MANIFEST(BLOCK ",\"pow2\":1", "", SPLIT1), "quant", "\"pow2\" must be true or false"},
	{MANIFEST(BLOCK ",\"recip\":\"yes\"", "", SPLIT1), "quant", "\"recip\" must be true"},
	{MANIFEST("\"kind\":\"row\",\"fmt\":\"e4m3\"", "", SPLIT1), "quant", "not 'row'"},
	{MANIFEST("\"kind\":\"block\",\"block\":[128,128]", "", SPLIT1), "quant", "\"fmt\" must"},
	{MANIFEST(BLOCK ",\"scale\":\"f8e4m3\"", "", SPLIT1), "quant", "\"scale\" must be"},
	{MANIFEST("\"kind\":\"block\",\"block\":[128],\"fmt\":\"e4m3\"", "", SPLIT1), "quant",
	 "two integers"},
	{MANIFEST("\"kind\":\"channel\",\"block\":[128,128],\"fmt\":\"e4m3\"", "", SPLIT1), "quant",
	 "goes with kind"},
	{MANIFEST(BLOCK, "", SPLIT1 ",\"dtype\":\"bf16\""), "quant",
	 "gives f8e4m3, and its dtype is bf16"},
	{MANIFEST(BLOCK, "", "\"scale\":\"s\",\"x\":[\"t\",\"w\"]"), "quant", "no \"q\""},
	{MANIFEST(BLOCK, "", SPLIT1 ",\"scale\":\"s{x}\""), "name", "must begin {L}"},
	{MANIFEST(BLOCK, "", SPLIT1 ",\"scale\":\"w\""), "name", "has two params"},
	{MANIFEST(BLOCK, "", "\"q\":\"q\",\"x\":[\"s\",[\"t\",\"w\"],0,\"tp\"]"), "block",
	 "[0, 288) of dim 0 of 'w' tears a block of 128; the largest size of axis 'tp' that "
	 "works is 1, not 2"},
	{MANIFEST(BLOCK, "",
		  "\"q\":\"q\",\"x\":[\"s\",[\"t\",\"w\"],0,\"tp\",{\"mode\":\"chunk\","
		  "\"unit\":128}]"),
	 NULL, NULL},
	{MANIFEST(BLOCK, "", "\"q\":\"q\",\"x\":[\"c\",0,[\"t\",\"w\"],[\"t\",\"v\"]]"), "block",
	 "in front of 'v' lie 576"},
	{MANIFEST(BLOCK, "", "\"q\":\"q\",\"x\":[\"c\",0,[\"t\",\"v\"],[\"t\",\"w\"]]"), "block",
	 "in front of 'w' lie 64"},
	{MANIFEST(BLOCK, "", "\"q\":\"q\",\"x\":[\"fl\",[\"t\",\"w\"]]"), "block",
	 "rows of 'w' don't lie side by side"},
	{MANIFEST(BLOCK, "", "\"q\":\"q\",\"x\":[\"x\",[\"t\",\"w\"],[1,0]]"), NULL, NULL},
	{MANIFEST(BLOCK, ",{\"name\":\"w_scale_inv\",\"dtype\":\"f32\",\"shape\":[5,2]}", SPLIT1),
	 NULL, NULL},
	{MANIFEST(BLOCK, ",{\"name\":\"w_scale_inv\",\"dtype\":\"f32\",\"shape\":[4,2]}", SPLIT1),
	 "quant", "isn't the scale that scheme 'q' gives 'w'"},
	{MANIFEST("\"kind\":\"channel\",\"fmt\":\"e4m3\",\"scale\":\"bf16\"", "", SPLIT1), NULL,
	 NULL},
	{MANIFEST("\"kind\":\"tensor\",\"fmt\":\"e5m2\"", "",
		  "\"q\":\"q\",\"x\":[\"s\",[\"fl\",[\"t\",\"w\"]],0,\"tp\"]"),
	 NULL, NULL},
	{MANIFEST(TENSOR, "", FUSED), NULL, NULL},
	{MANIFEST(TENSOR, "", FUSED "},{\"p\":\"u\",\"q\":\"q\",\"x\":[\"t\",\"v\"]"), "quant",
	 "'v' is under one scale with other tensors here than elsewhere"},
	{MANIFEST(TENSOR, ",{\"name\":\"u\",\"dtype\":\"bf16\",\"shape\":[64,256]}",
		  FUSED "},{\"p\":\"u\",\"q\":\"q\",\"x\":[\"c\",0,[\"t\",\"u\"],[\"t\",\"w\"],"
			"[\"t\",\"v\"]]"),
	 "quant", "is under one scale with other tensors here than elsewhere"},
	{MANIFEST(TENSOR,
		  ",{\"name\":\"l.{L}\",\"dtype\":\"bf16\",\"shape\":[64,256],\"layers\":[0,2]}",
		  "\"x\":[\"t\",\"w\"]},{\"p\":\"l.{L}\",\"each\":{\"L\":[0,2]},\"q\":\"q\","
		  "\"x\":[\"c\",0,[\"t\",\"l.{L}\"],[\"t\",\"v\"]]"),
	 "quant", "have one scale, and not the same layers and experts"},
};

START_TEST(schemes_are_checked_while_reading)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	struct manifest *manifest;
	const char *text = manifests[_i].text, *why = manifests[_i].why;
	int rc = manifest_parse(&manifest, text, strlen(text), &findings, &err);
	ck_assert_msg(rc == (why == NULL ? 0 : -EINVAL), "%s", err.text);
	if (why == NULL) {
		ck_assert_uint_eq(manifest_rule_count(manifest), 2);
		ck_assert(manifest_rule(manifest, 1)->is_scale);
	} else {
		for (const struct finding *it = findings.first; it != NULL; it = it->next)
			ck_assert_str_eq(it->kind, manifests[_i].kind);
		ck_assert_msg(strstr(findings.first->text, why) != NULL, "%s",
			      findings.first->text);
	}
	manifest_free(manifest);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(scales_that_are_listed_are_each_tensors_own)
{
	static const char text[] =
		MANIFEST(TENSOR,
			 ",{\"name\":\"w_scale\",\"dtype\":\"f32\",\"shape\":[1]},"
			 "{\"name\":\"v_scale\",\"dtype\":\"f32\",\"shape\":[1]}",
			 FUSED);
	struct ws_error err = {0};
	struct manifest *manifest;
	const struct form *form;
	ck_ok(manifest_parse(&manifest, text, strlen(text), NULL, &err), err);
	ck_ok(manifest_form(manifest, 1, 0, &form, &err), err);
	ck_assert_uint_eq(form->dim[0], 2);
	for (uint32_t i = 0; i < manifest_tensor_count(manifest); i++) {
		ck_assert_uint_eq(manifest_tensor_fellow(manifest, i), i);
		ck_assert_uint_eq(manifest_tensor_lead(manifest, i), i);
	}
	manifest_free(manifest);
}
END_TEST

/* Every allocation of making and reading a quantized manifest with a map fails once. */
static const char *const schemes[] = {"fp8-block", "fp8-tensor"};

START_TEST(any_allocation_may_fail)
{
	struct writer map = WRITER_INIT(1 << 20);
	struct manifest_options options = {
		.side = SIDE_ROLLOUT, .layout = "vllm", .mesh = "tp=2,ep=2", .quant = schemes[_i]};
	struct ws_error err = {0};
	struct model *model;
	int rc = -ENOMEM;
	write_format(&map, "[");
	for (uint32_t i = 0; i < 48 * 128; i++)
		write_format(&map, "%s%u%s",
			     i == 0	    ? "["
			     : i % 128 == 0 ? ",["
					    : ",",
			     i % 128, i % 128 == 127 ? "]" : "");
	write_format(&map, "]");
	options.eplb = (const char *)map.bytes;
	options.eplb_bytes = map.count;
	ck_ok(model_builtin(&model, "qwen3-30b-a3b", &err), err);
	uint64_t live = mem_live_count();
	int64_t n = 0;
	for (; rc != 0 && n < 10000; n++) {
		struct writer out = WRITER_INIT(4 << 20);
		struct manifest *manifest = NULL;
		mem_fail_nth(n);
		rc = manifest_make(model, &options, &out, NULL, &err);
		if (rc == 0)
			rc = manifest_parse(&manifest, out.bytes, out.count, NULL, &err);
		mem_fail_nth(-1);
		ck_assert_msg(rc == 0 || rc == -ENOMEM, "%" PRId64 ": %d: %s", n, rc, err.text);
		manifest_free(manifest);
		writer_release(&out);
		ck_assert_uint_eq(mem_live_count(), live);
	}
	ck_assert_int_eq(rc, 0);
	ck_assert_int_gt(n, 50);
	model_free(model);
	writer_release(&map);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("quant");
	TCase *tc = tcase_create("scales");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, each_value_lies_where_its_block_does, 0, ARRAY_SIZE(cases));
	tcase_add_test(tc, a_ragged_last_block_has_a_value_of_its_own);
	tcase_add_test(tc, per_tensor_a_fused_param_has_one_scale_and_a_stack_one_for_each_expert);
	tcase_add_loop_test(tc, a_torn_block_is_refused_with_the_largest_size_and_block_that_work,
			    0, ARRAY_SIZE(largest));
	tcase_add_test(tc, a_declared_smaller_block_is_planned_where_the_usual_one_is_torn);
	tcase_add_loop_test(tc, a_block_that_is_misnamed_is_refused, 0, ARRAY_SIZE(misnamed));
	tcase_add_loop_test(tc, a_model_that_is_quantized_already_is_not_quantized_anew, 0, 2);
	tcase_add_loop_test(tc, schemes_are_checked_while_reading, 0, ARRAY_SIZE(manifests));
	tcase_add_test(tc, scales_that_are_listed_are_each_tensors_own);
	tcase_add_loop_test(tc, any_allocation_may_fail, 0, ARRAY_SIZE(schemes));
	suite_add_tcase(s, tc);
	return s;
}
