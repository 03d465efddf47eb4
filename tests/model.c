/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models and presets: the built-in models are whole, a checkpoint's names compress into the same
 * rules, and each preset's ranks together hold every element of the model, for every family and
 * several meshes.
 */
#include <errno.h>

#include "tests/model_text.h"

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
		{"model.layers.{L}.mlp.up_proj.weight", WS_BF16, 2, {8, 4}, 0, 2, -1, -1, false, 0},
		{"model.layers.{L}.mlp.up_proj.weight",
		 WS_BF16,
		 2,
		 {16, 4},
		 2,
		 3,
		 -1,
		 -1,
		 false,
		 0},
		{"model.layers.{L}.mlp.up_proj.weight", WS_F32, 2, {16, 4}, 3, 4, -1, -1, false, 0},
		{"model.layers.{L}.mlp.up_proj.weight", WS_F32, 2, {16, 4}, 5, 6, -1, -1, false, 0},
		{"model.layers.01.mlp.up_proj.weight",
		 WS_F32,
		 2,
		 {16, 4},
		 -1,
		 -1,
		 -1,
		 -1,
		 false,
		 0},
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
	{"vllm", "dp=4,tp=2,ep=2", SIDE_ROLLOUT},
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
	return s;
}
