/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models and presets: the built-in models are whole, a checkpoint's names compress into the same
 * rules, scaled models stay what they were, and each preset's ranks together hold every element
 * of the model, for every family and several meshes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

/* Elements and bytes of models/ (without rotary_emb.inv_freq), as published or cast to BF16. */
static const struct {
	const char *name;
	uint64_t tensors, bytes;
} totals[] = {
	{"llama-3-70b", 723, 141107412992},
	{"qwen3-32b", 707, 65524246528},
	{"qwen3-30b-a3b", 18867, 61064245248},
	{"qwen3-235b-a22b", 36945, 470187269120},
	{"deepseek-v3", 46183, 1368979721216},
	{"kimi-k2", 69975, 2052816510976},
	{"glm-4.5", 44691, 716675611392},
	{"glm-4.6", 44689, 713571826432},
	{"gpt-oss-120b", 615, 233658313344},
	{"qwen3-32b-fp8", 1155, 34322434048},
	{"qwen3-30b-a3b-fp8", 37491, 31170895872},
	{"qwen3-235b-a22b-fp8", 73417, 236416915456},
	{"deepseek-v3-fp8", 91991, 688574839360},
	{"kimi-k2-fp8", 139644 - 61, 1029173256720 - 61 * 112},
	{"kimi-k2-int4", 208276 - 61, 594205920512 - 61 * 256},
	{"gpt-oss-120b-mxfp4", 687, 65248815744},
};

#define PRESET_MODELS 8 /* the first ones have presets */

static struct model *builtin(const char *name)
{
	struct ws_error err = {0};
	struct model *model;
	ck_ok(model_builtin(&model, name, &err), err);
	return model;
}

static uint64_t rule_count_of(const struct tensor_rule *rule)
{
	uint64_t layers = rule->layer_lo < 0 ? 1 : (uint64_t)(rule->layer_hi - rule->layer_lo);
	return layers * (rule->expert_lo < 0 ? 1 : (uint64_t)(rule->expert_hi - rule->expert_lo));
}

static uint64_t elements_of(const struct tensor_rule *rule)
{
	uint64_t elements = 1;
	for (uint32_t d = 0; d < rule->dim_count; d++)
		elements *= rule->dim[d];
	return elements;
}

static uint64_t bytes_of(const struct model *model)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < model_tensor_count(model); i++) {
		const struct tensor_rule *rule = model_tensor(model, i);
		bytes += rule_count_of(rule) * elements_of(rule) * ws_dtype_bytes(rule->dtype);
	}
	return bytes;
}

START_TEST(a_built_in_model_has_the_published_bytes)
{
	struct model *model = builtin(totals[_i].name);
	uint64_t tensors = 0;
	for (uint32_t i = 0; i < model_tensor_count(model); i++)
		tensors += rule_count_of(model_tensor(model, i));
	ck_assert_uint_eq(tensors, totals[_i].tensors);
	ck_assert_uint_eq(bytes_of(model), totals[_i].bytes);
	ck_assert_str_eq(model_name(model), totals[_i].name);
	model_free(model);
}
END_TEST

START_TEST(every_listed_model_opens_and_an_unknown_one_lists_them)
{
	struct ws_error err = {0};
	struct model *model;
	for (const char *const *name = model_names(); *name != NULL; name++)
		model_free(builtin(*name));
	ck_fails(model_builtin(&model, "qwen4", &err), -ENOENT, err);
	ck_assert_ptr_null(model);
	for (const char *const *name = model_names(); *name != NULL; name++)
		ck_assert_msg(strstr(err.text, *name) != NULL, "%s", err.text);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* ---- Compressing a checkpoint's names. */

static uint32_t expand(const struct model *model, struct arena *arena, struct tensor_listing **out)
{
	uint64_t total = 0;
	uint32_t count = 0;
	for (uint32_t i = 0; i < model_tensor_count(model); i++)
		total += rule_count_of(model_tensor(model, i));
	struct tensor_listing *list = arena_array(arena, total, sizeof(*list));
	for (uint32_t i = 0; i < model_tensor_count(model); i++) {
		const struct tensor_rule *rule = model_tensor(model, i);
		for (int32_t l = MAX(rule->layer_lo, 0); l < MAX(rule->layer_hi, 1); l++) {
			for (int32_t e = MAX(rule->expert_lo, 0); e < MAX(rule->expert_hi, 1);
			     e++) {
				char name[256];
				tensor_name(rule, l, e, name, sizeof(name));
				list[count].name = arena_text(arena, "%s", name);
				list[count].dtype = rule->dtype;
				list[count].dim_count = rule->dim_count;
				memcpy(list[count++].dim, rule->dim, sizeof(rule->dim));
			}
		}
	}
	/* In no order at all. */
	for (uint32_t i = count; i > 1; i--) {
		uint32_t with = (uint32_t)(mix64(i) % i);
		struct tensor_listing last = list[i - 1];
		list[i - 1] = list[with];
		list[with] = last;
	}
	*out = list;
	return count;
}

static bool same_rule(const struct tensor_rule *a, const struct tensor_rule *b)
{
	return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype &&
	       a->dim_count == b->dim_count && a->layer_lo == b->layer_lo &&
	       a->layer_hi == b->layer_hi && a->expert_lo == b->expert_lo &&
	       a->expert_hi == b->expert_hi &&
	       memcmp(a->dim, b->dim, a->dim_count * sizeof(a->dim[0])) == 0;
}

static struct model *compressed(const struct model *model)
{
	struct arena arena = {0};
	struct writer config = WRITER_INIT(1 << 20);
	struct tensor_listing *list;
	struct ws_error err = {0};
	struct model *again;
	uint32_t count = expand(model, &arena, &list);
	ck_ok(model_config(model, &config, &err), err);
	ck_ok(model_from_tensors(&again, model_name(model), config.bytes, config.count, list, count,
				 &err),
	      err);
	arena_release(&arena);
	writer_release(&config);
	return again;
}

static void same_models(const struct model *a, const struct model *b)
{
	ck_assert_uint_eq(model_tensor_count(a), model_tensor_count(b));
	for (uint32_t i = 0; i < model_tensor_count(a); i++) {
		uint32_t j = 0;
		while (j < model_tensor_count(b) &&
		       !same_rule(model_tensor(a, i), model_tensor(b, j)))
			j++;
		ck_assert_msg(j < model_tensor_count(b), "%s", model_tensor(a, i)->name);
	}
}

START_TEST(names_of_a_checkpoint_compress_into_the_same_rules)
{
	struct model *model = builtin(totals[_i].name), *again = compressed(model);
	same_models(model, again);
	model_free(model);
	model_free(again);
}
END_TEST

START_TEST(layers_that_differ_become_several_rules_and_junk_is_dropped)
{
	static const struct tensor_listing list[] = {
		{"model.layers.0.mlp.up_proj.weight", WS_BF16, 2, {8, 4}},
		{"model.layers.1.mlp.up_proj.weight", WS_BF16, 2, {8, 4}},
		{"model.layers.2.mlp.up_proj.weight", WS_BF16, 2, {16, 4}},
		{"model.layers.3.mlp.up_proj.weight", WS_F32, 2, {16, 4}},
		{"model.layers.5.mlp.up_proj.weight", WS_F32, 2, {16, 4}},
		{"model.layers.01.mlp.up_proj.weight", WS_F32, 2, {16, 4}},
		{"model.layers.0.self_attn.rotary_emb.inv_freq", WS_F32, 1, {4}},
	};
	static const struct tensor_rule want[] = {
		{"model.layers.{L}.mlp.up_proj.weight", WS_BF16, 2, {8, 4}, 0, 2, -1, -1},
		{"model.layers.{L}.mlp.up_proj.weight", WS_BF16, 2, {16, 4}, 2, 3, -1, -1},
		{"model.layers.{L}.mlp.up_proj.weight", WS_F32, 2, {16, 4}, 3, 4, -1, -1},
		{"model.layers.{L}.mlp.up_proj.weight", WS_F32, 2, {16, 4}, 5, 6, -1, -1},
		{"model.layers.01.mlp.up_proj.weight", WS_F32, 2, {16, 4}, -1, -1, -1, -1},
	};
	struct ws_error err = {0};
	struct model *model;
	ck_ok(model_from_tensors(&model, "m", "{}", 2, list, ARRAY_SIZE(list), &err), err);
	ck_assert_uint_eq(model_tensor_count(model), ARRAY_SIZE(want));
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		uint32_t j = 0;
		while (j < ARRAY_SIZE(want) && !same_rule(&want[i], model_tensor(model, j)))
			j++;
		ck_assert_uint_lt(j, ARRAY_SIZE(want));
	}
	model_free(model);
}
END_TEST

/* ---- Manifests. */

static struct manifest *make(const struct model *model, enum side side, const char *layout,
			     const char *mesh)
{
	struct manifest_options options = {.side = side, .layout = layout, .mesh = mesh};
	struct writer out = WRITER_INIT(64 << 20);
	struct ws_error err = {0};
	struct manifest *manifest;
	int rc = manifest_make(model, &options, &out, NULL, &err);
	ck_assert_msg(rc == 0, "%s %s %s: %s", model_name(model), layout, mesh, err.text);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	writer_release(&out);
	return manifest;
}

/* Boxes of one tensor that some rank holds, each once. */
struct held {
	uint32_t count, room;
	struct piece *boxes;
	uint64_t volume;
};

static void hold(struct held *held, const struct piece *piece)
{
	uint64_t volume = 1;
	for (uint32_t i = 0; i < held->count; i++) {
		if (memcmp(held->boxes[i].offset, piece->offset, sizeof(piece->offset)) == 0 &&
		    memcmp(held->boxes[i].extent, piece->extent, sizeof(piece->extent)) == 0)
			return;
	}
	if (held->count == held->room) {
		uint32_t room = held->room * 2 + 16;
		held->boxes =
			mem_grow(held->boxes, held->room * sizeof(*piece), room * sizeof(*piece));
		held->room = room;
	}
	held->boxes[held->count++] = *piece;
	for (uint32_t d = 0; d < piece->dim_count; d++)
		volume *= piece->extent[d];
	held->volume += volume;
}

/* Pieces are sorted by tensor: the first ones of a stack tell. */
static bool reads(const struct form *form, uint32_t tensor)
{
	uint32_t low = 0, high = form->piece_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (form->pieces[middle].tensor < tensor)
			low = middle + 1;
		else
			high = middle;
	}
	return low < form->piece_count && form->pieces[low].tensor == tensor;
}

/* The boxes of a tensor at a layer and expert, over all ranks. */
static uint64_t held_volume(const struct manifest *manifest, uint32_t tensor, int32_t layer,
			    int32_t expert)
{
	struct held held = {0};
	struct ws_error err = {0};
	for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
		for (uint32_t rule = 0; rule < manifest_rule_count(manifest); rule++) {
			const struct form *form;
			const int32_t *layers, *experts;
			uint32_t count = manifest_layers(manifest, rule, rank, &layers), i = 0;
			while (i < count && layers[i] >= 0 && layers[i] != layer)
				i++;
			if (i == count)
				continue;
			ck_ok(manifest_form(manifest, rule, rank, &form, &err), err);
			if (!reads(form, tensor))
				continue;
			uint32_t expert_count =
				manifest_experts(manifest, rule, rank, layers[i], &experts);
			bool each = manifest_rule(manifest, rule)->each_expert, mine = false;
			for (uint32_t e = 0; e < expert_count; e++)
				mine = mine || experts[e] == expert;
			for (uint32_t p = 0; p < form->piece_count; p++) {
				const struct piece *piece = &form->pieces[p];
				bool right = piece->slot >= 0 ? experts[piece->slot] == expert
							      : !each || mine;
				if (piece->tensor == tensor && right)
					hold(&held, piece);
			}
		}
	}
	mem_free(held.boxes);
	return held.volume;
}

static bool is_alias(const char *name)
{
	return strcmp(name, "model.layers.{L}.embed_tokens.weight") == 0 ||
	       strcmp(name, "model.layers.{L}.shared_head.head.weight") == 0;
}

static void check_coverage(const struct manifest *manifest, bool aliases)
{
	for (uint32_t i = 0; i < manifest_tensor_count(manifest); i++) {
		const struct tensor_rule *rule = manifest_tensor(manifest, i);
		if (!aliases && is_alias(rule->name))
			continue;
		/* First and last layer, first, middle and last expert. */
		int32_t layers[] = {rule->layer_lo, rule->layer_hi - 1};
		int32_t experts[] = {rule->expert_lo, (rule->expert_lo + rule->expert_hi) / 2,
				     rule->expert_hi - 1};
		size_t layer_count = rule->layer_lo < 0 || layers[0] == layers[1] ? 1 : 2;
		size_t expert_count = rule->expert_lo < 0 ? 1 : ARRAY_SIZE(experts);
		for (size_t n = 0; n < layer_count * expert_count; n++) {
			int32_t layer = layers[n % layer_count], expert = experts[n / layer_count];
			if (rule->layer_lo < 0)
				layer = -1;
			if (rule->expert_lo < 0)
				expert = -1;
			uint64_t volume = held_volume(manifest, i, layer, expert);
			ck_assert_msg(volume == elements_of(rule),
				      "%s at layer %d, expert %d: %" PRIu64 " of %" PRIu64,
				      rule->name, layer, expert, volume, elements_of(rule));
		}
	}
}

static const struct {
	const char *layout, *mesh;
	enum side side;
} meshes[] = {
	{"fsdp2", "dp=3", SIDE_TRAINER},
	{"fsdp2", "dp=2,tp=2", SIDE_TRAINER},
	{"fsdp2", "rep=2,dp=2,tp=4", SIDE_TRAINER},
	{"megatron", "tp=1", SIDE_TRAINER},
	{"megatron", "tp=2", SIDE_TRAINER},
	{"megatron", "tp=4,dp=2", SIDE_TRAINER},
	{"megatron", "tp=2,ep=4,etp=1", SIDE_TRAINER},
	{"megatron", "tp=2,cp=2,ep=2", SIDE_TRAINER},
	{"megatron", "pp=2,first=2,tp=2,ep=2,etp=2,order=tp-cp-ep-dp-pp", SIDE_TRAINER},
	{"megatron", "pp=2,last=3,tp=2", SIDE_TRAINER},
	{"vllm", "tp=1", SIDE_ROLLOUT},
	{"vllm", "tp=2", SIDE_ROLLOUT},
	{"vllm", "tp=4", SIDE_ROLLOUT},
	{"vllm", "tp=8", SIDE_ROLLOUT}, /* more than the 4 kv heads of qwen3-30b */
	{"vllm", "tp=2,ep=2", SIDE_ROLLOUT},
	{"vllm", "dp=2,tp=2,ep=4", SIDE_ROLLOUT},
	{"vllm", "dp=2,tp=2,ep=2", SIDE_ROLLOUT},
	{"vllm", "dp=4,tp=2,ep=2,round_robin=1", SIDE_ROLLOUT},
	{"vllm", "pp=3,tp=2", SIDE_ROLLOUT},
	{"sglang", "tp=1", SIDE_ROLLOUT},
	{"sglang", "tp=4", SIDE_ROLLOUT},
	{"sglang", "tp=4,dp=2,ep=2", SIDE_ROLLOUT},
	{"sglang", "tp=8,dp=4,ep=8,moe_dense_tp=1,shared_tp=1,dp_lm_head=1", SIDE_ROLLOUT},
	{"sglang", "pp=3,tp=2,ep=2", SIDE_ROLLOUT},
};

static void check_params(const struct manifest *manifest)
{
	for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
		struct arena arena = {0};
		struct rank_params params;
		struct ws_error err = {0};
		ck_ok(manifest_params(manifest, rank, &arena, &params, &err), err);
		for (uint32_t i = 0; i < params.count; i += 1 + params.count / 50)
			ck_assert_int_eq(rank_params_find(&params, params.params[i].name), i);
		ck_assert_int_eq(rank_params_find(&params, "nosuch"), -1);
		arena_release(&arena);
	}
}

START_TEST(the_ranks_of_every_preset_hold_every_element)
{
	for (uint32_t m = 0; m < PRESET_MODELS; m++) {
		struct model *model = builtin(totals[m].name);
		struct manifest *manifest =
			make(model, meshes[_i].side, meshes[_i].layout, meshes[_i].mesh);
		check_coverage(manifest, strcmp(meshes[_i].layout, "fsdp2") == 0);
		check_params(manifest);
		manifest_free(manifest);
		model_free(model);
	}
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* ---- The 24 presets as they came, one per layout and model. */

static const struct json *find_param(const struct json *params, const char *name)
{
	for (const struct json *it = params->first; it != NULL; it = it->next) {
		if (strcmp(json_text(it, "p", ""), name) == 0)
			return it;
	}
	return NULL;
}

static void same_json(const struct json *a, const struct json *b, const char *where)
{
	struct writer left = WRITER_INIT(1 << 20), right = WRITER_INIT(1 << 20);
	struct json_writer a_json = {.out = &left}, b_json = {.out = &right};
	ck_assert_msg((a == NULL) == (b == NULL), "%s", where);
	if (a == NULL)
		return;
	json_put_value(&a_json, NULL, a);
	json_put_value(&b_json, NULL, b);
	ck_assert_msg(left.count == right.count && memcmp(left.bytes, right.bytes, left.count) == 0,
		      "%s: %.*s, not %.*s", where, (int)right.count, (char *)right.bytes,
		      (int)left.count, (char *)left.bytes);
	writer_release(&left);
	writer_release(&right);
}

static void check_preset(const struct json *golden, struct arena *arena)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	static const char *const keys[] = {"x", "mesh", "dtype", "kind", "model", "derived"};
	const char *layout = json_text(golden, "layout", "");
	struct model *model = builtin(json_text(golden, "model", ""));
	struct manifest_options options = {.layout = layout, .mesh = "tp=1"};
	struct writer out = WRITER_INIT(16 << 20);
	struct ws_error err = {0};
	const struct json *made;
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	ck_ok(json_parse(arena, out.bytes, out.count, &limits, &made, &err), err);
	const struct json *params = json_get(made, "params");
	uint32_t expected = 0;
	for (const struct json *it = json_get(golden, "params")->first; it != NULL; it = it->next) {
		const char *name = json_text(it, "p", "");
		const char *set = json_text(json_get(it, "each"), "L", NULL);
		const struct json *got = find_param(params, name);
		/* A param over an empty set doesn't exist. */
		if (set != NULL && json_get(json_get(made, "layers"), set)->count == 0) {
			ck_assert_ptr_null(got);
			continue;
		}
		ck_assert_msg(got != NULL, "%s %s: no %s", layout, model_name(model), name);
		for (size_t k = 0; k < ARRAY_SIZE(keys); k++)
			same_json(json_get(it, keys[k]), json_get(got, keys[k]), name);
		same_json(json_get(it, "each"), json_get(got, "each"), name);
		expected++;
	}
	ck_assert_uint_eq(params->count, expected);
	writer_release(&out);
	model_free(model);
}

START_TEST(the_merged_presets_say_what_the_24_said)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	struct arena arena = {0};
	struct ws_error err = {0};
	const struct json *all;
	void *bytes;
	size_t count;
	ck_ok(file_read("tests/golden/presets.json", 8u << 20, &bytes, &count, &err), err);
	ck_ok(json_parse(&arena, bytes, count, &limits, &all, &err), err);
	ck_assert_uint_eq(all->count, 24);
	for (const struct json *it = all->first; it != NULL; it = it->next)
		check_preset(it, &arena);
	mem_free(bytes);
	arena_release(&arena);
}
END_TEST

/* ---- Scaled models. */

static const uint64_t scales[] = {64, 1024, 8192};

/* 1 dense, 2 experts, 4 MTP: which kinds of layers a model has. */
static uint32_t kinds_of(const struct model *model)
{
	uint32_t kinds = 0;
	for (uint32_t i = 0; i < model_tensor_count(model); i++) {
		const char *name = model_tensor(model, i)->name;
		kinds |= strstr(name, ".mlp.down_proj.") != NULL ? 1 : 0;
		kinds |= strstr(name, ".experts.") != NULL ? 2 : 0;
		kinds |= strstr(name, ".eh_proj.") != NULL ? 4 : 0;
	}
	return kinds;
}

static void check_scaled(const struct model *model, uint64_t denominator)
{
	struct ws_error err = {0};
	struct model *scaled, *twin;
	ck_ok(model_scale(&scaled, model, 1, denominator, &err), err);
	double share = (double)bytes_of(scaled) / ((double)bytes_of(model) / (double)denominator);
	ck_assert_msg(share > 0.5 && share < 2, "%s: %.2f of its share of 1/%" PRIu64,
		      model_name(scaled), share, denominator);
	ck_assert_uint_eq(kinds_of(model), kinds_of(scaled));
	/* Its own config and tensors say the same: scaling it by 1 checks every shape. */
	ck_ok(model_scale(&twin, scaled, 1, 1, &err), err);
	same_models(scaled, twin);
	model_free(twin);
	twin = compressed(scaled);
	same_models(scaled, twin);
	model_free(twin);
	/* And the same inputs give the same model. */
	ck_ok(model_scale(&twin, model, 1, denominator, &err), err);
	same_models(scaled, twin);
	model_free(twin);
	model_free(scaled);
}

START_TEST(a_scaled_model_has_its_share_of_bytes_and_every_kind_of_layer)
{
	for (size_t m = 0; m < ARRAY_SIZE(totals); m++) {
		struct model *model = builtin(totals[m].name);
		check_scaled(model, scales[_i]);
		model_free(model);
	}
}
END_TEST

START_TEST(presets_expand_for_scaled_models)
{
	static const struct {
		const char *layout, *mesh;
		enum side side;
	} wanted[] = {{"fsdp2", "dp=3", SIDE_TRAINER},
		      {"fsdp2", "dp=2,tp=2", SIDE_TRAINER},
		      {"megatron", "tp=2", SIDE_TRAINER},
		      {"megatron", "tp=2,ep=2", SIDE_TRAINER},
		      {"megatron", "tp=2,pp=2,first=1,ep=2", SIDE_TRAINER},
		      {"vllm", "tp=2", SIDE_ROLLOUT},
		      {"vllm", "tp=2,ep=2", SIDE_ROLLOUT},
		      {"vllm", "pp=2,tp=2", SIDE_ROLLOUT},
		      {"sglang", "tp=2,ep=2", SIDE_ROLLOUT},
		      {"sglang", "tp=4,dp=2", SIDE_ROLLOUT}};
	for (uint32_t m = 0; m < PRESET_MODELS; m++) {
		struct model *model = builtin(totals[m].name), *scaled;
		struct ws_error err = {0};
		ck_ok(model_scale(&scaled, model, 1, scales[_i], &err), err);
		for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
			struct manifest *manifest =
				make(scaled, wanted[i].side, wanted[i].layout, wanted[i].mesh);
			check_coverage(manifest, strcmp(wanted[i].layout, "fsdp2") == 0);
			manifest_free(manifest);
		}
		model_free(scaled);
		model_free(model);
	}
}
END_TEST

START_TEST(widths_that_blocks_cut_are_multiples_of_256)
{
	struct model *model = builtin(totals[_i].name), *scaled;
	struct ws_error err = {0};
	ck_ok(model_scale(&scaled, model, 1, 8192, &err), err);
	for (uint32_t i = 0; i < model_tensor_count(scaled); i++) {
		const struct tensor_rule *rule = model_tensor(scaled, i);
		bool linear = strstr(rule->name, "_proj.weight") != NULL && rule->dim_count == 2;
		/* 512 latent rows and 64 for RoPE; kv heads may be 2 of 64 or 128. */
		bool odd = strstr(rule->name, "kv_a_proj") != NULL;
		for (uint32_t d = 0; linear && d < 2; d++)
			ck_assert_msg(rule->dim[d] % 128 == 0 || (odd && d == 0), "%s: %" PRIu64,
				      rule->name, rule->dim[d]);
	}
	model_free(scaled);
	model_free(model);
}
END_TEST

START_TEST(what_cannot_be_scaled_is_said)
{
	static const struct tensor_listing list[] = {
		{"model.layers.0.mixer.weight", WS_BF16, 2, {8, 4}}};
	struct model *model = builtin("llama-3-70b"), *scaled;
	struct ws_error err = {0};
	ck_fails(model_scale(&scaled, model, 3, 2, &err), -EINVAL, err);
	ck_fails(model_scale(&scaled, model, 0, 2, &err), -EINVAL, err);
	model_free(model);
	ck_ok(model_from_tensors(&model, "m", "{}", 2, list, 1, &err), err);
	ck_fails(model_scale(&scaled, model, 1, 2, &err), -ENOTSUP, err);
	ck_assert(strstr(err.text, "model.layers.{L}.mixer.weight") != NULL);
	ck_assert_ptr_null(scaled);
	model_free(model);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("model");
	TCase *tc = tcase_create("models");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_built_in_model_has_the_published_bytes, 0, ARRAY_SIZE(totals));
	tcase_add_test(tc, every_listed_model_opens_and_an_unknown_one_lists_them);
	tcase_add_loop_test(tc, names_of_a_checkpoint_compress_into_the_same_rules, 0, 5);
	tcase_add_test(tc, layers_that_differ_become_several_rules_and_junk_is_dropped);
	suite_add_tcase(s, tc);
	tc = tcase_create("presets");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, the_merged_presets_say_what_the_24_said);
	tcase_add_loop_test(tc, the_ranks_of_every_preset_hold_every_element, 0,
			    ARRAY_SIZE(meshes));
	suite_add_tcase(s, tc);
	tc = tcase_create("scale");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_scaled_model_has_its_share_of_bytes_and_every_kind_of_layer, 0,
			    ARRAY_SIZE(scales));
	tcase_add_loop_test(tc, presets_expand_for_scaled_models, 0, ARRAY_SIZE(scales));
	tcase_add_loop_test(tc, widths_that_blocks_cut_are_multiples_of_256, 0, PRESET_MODELS);
	tcase_add_test(tc, what_cannot_be_scaled_is_said);
	suite_add_tcase(s, tc);
	return s;
}
