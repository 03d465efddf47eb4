/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scaled models: their share of the bytes, each kind of layer, a config that their tensors agree
 * with, and layouts that still fit.
 */
#include <errno.h>

#include "tests/model_text.h"

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
	Suite *s = suite_create("scale");
	TCase *tc = tcase_create("scale");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_scaled_model_has_its_share_of_bytes_and_every_kind_of_layer, 0,
			    ARRAY_SIZE(scales));
	tcase_add_loop_test(tc, presets_expand_for_scaled_models, 0, ARRAY_SIZE(scales));
	tcase_add_loop_test(tc, widths_that_blocks_cut_are_multiples_of_256, 0, PRESET_MODELS);
	tcase_add_test(tc, what_cannot_be_scaled_is_said);
	suite_add_tcase(s, tc);
	return s;
}
