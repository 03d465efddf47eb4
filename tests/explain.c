/* SPDX-License-Identifier: Apache-2.0 */
/* A param in words and as JSON: the whole text, for each kind of piece there is. */
#include <errno.h>

#include "tests/import_model.h"

static const struct {
	const char *layout, *mesh, *param;
	uint32_t rank;
	const char *words;
} explained[] = {
	{"fsdp2", "dp=3", "model.layers.2.self_attn.o_proj.weight", 1,
	 "model.layers.2.self_attn.o_proj.weight\n"
	 "  rank 1 of the trainer: bf16 [14, 64], 1792 bytes; at dp 1 of 3\n"
	 "  at [0, 0]: rows 14 to 27, all 64 columns of model.layers.2.self_attn.o_proj.weight [40, 64]\n"
	 "      1792 bytes from byte 0, contiguous\n"},
	{"fsdp2", "dp=41", "model.norm.weight", 40,
	 "model.norm.weight\n"
	 "  rank 40 of the trainer: bf16 [0], 0 bytes; at dp 40 of 41\n"
	 "  nothing: this rank's shard is empty\n"},
	{"megatron", "tp=2", "decoder.layers.1.self_attention.linear_qkv.weight", 1,
	 "decoder.layers.1.self_attention.linear_qkv.weight\n"
	 "  rank 1 of the trainer: bf16 [64, 40], 5120 bytes; at tp 1 of 2\n"
	 "  at [0, 0]: rows 32 to 63, all 40 columns of model.layers.1.self_attn.q_proj.weight [64, 40]\n"
	 "      2560 bytes from byte 0, contiguous\n"
	 "  at [32, 0]: rows 16 to 31, all 40 columns of model.layers.1.self_attn.k_proj.weight [32, 40]\n"
	 "      1280 bytes from byte 2560, contiguous\n"
	 "  at [48, 0]: rows 16 to 31, all 40 columns of model.layers.1.self_attn.v_proj.weight [32, 40]\n"
	 "      1280 bytes from byte 3840, contiguous\n"},
	{"megatron", "tp=2", "output_layer.weight", 1,
	 "output_layer.weight\n"
	 "  rank 1 of the trainer: bf16 [512, 40], 41.0 kB; at tp 1 of 2\n"
	 "  at [0, 0]: rows 512 to 999, all 40 columns of lm_head.weight [1000, 40]\n"
	 "      39.0 kB from byte 0, contiguous\n"
	 "  zero fill: 1920 bytes that no tensor covers: bytes 39040 to 40959\n"},
	{"megatron", "tp=2,ep=2,etp=1", "decoder.layers.3.mlp.experts.linear_fc2.weight3", 1,
	 "decoder.layers.3.mlp.experts.linear_fc2.weight3\n"
	 "  rank 1 of the trainer: bf16 [40, 24], 1920 bytes; at etp 0 of 1; experts by ep 1 of 2\n"
	 "  at [0, 0]: all 40 rows, all 24 columns of model.layers.3.mlp.experts.7.down_proj.weight [40, 24]\n"
	 "      1920 bytes from byte 0, contiguous\n"},
};

START_TEST(a_param_is_told_in_words)
{
	struct model *model = tiny_model();
	struct manifest *manifest =
		make_layout(model, explained[_i].layout, explained[_i].mesh, NULL);
	struct writer out = WRITER_INIT(1u << 20);
	struct ws_error err = {0};
	ck_ok(manifest_explain(manifest, explained[_i].param, explained[_i].rank, false, &out,
			       &err),
	      err);
	write_u8(&out, 0);
	ck_assert_str_eq((const char *)out.bytes, explained[_i].words);
	writer_release(&out);
	manifest_free(manifest);
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* A stack whose inner dim is cut, and a transposed tensor: strided pieces. */
static const char strided[] =
	"{\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"hand\",\"model\":\"hand\",\"world\":2,"
	"\"meshes\":{\"m\":{\"axes\":[[\"n\",2]]}},"
	"\"tensors\":[{\"name\":\"a\",\"dtype\":\"f32\",\"shape\":[4,6]},"
	"{\"name\":\"b\",\"dtype\":\"f32\",\"shape\":[4,2]}],"
	"\"params\":[{\"p\":\"ab\",\"post\":\"repack\",\"x\":[\"c\",1,[\"t\",\"a\"],[\"t\",\"b\"]]},"
	"{\"p\":\"at\",\"x\":[\"x\",[\"s\",[\"t\",\"a\"],0,\"n\"],[1,0]]}],"
	"\"derived\":[{\"post\":\"sums\",\"from\":[\"ab\",\"at\"],"
	"\"makes\":[{\"p\":\"s\",\"dtype\":\"f32\",\"shape\":[4,2]}]}]}";

static const struct {
	const char *param;
	const char *words, *json;
} strides[] = {
	{"ab",
	 "ab\n  rank 1 of the rollout: f32 [4, 8], 128 bytes\n"
	 "  staged: it doesn't land in the engine's own memory, but becomes it by post step repack\n"
	 "  at [0, 0]: all 4 rows, all 6 columns of a [4, 6]\n"
	 "      96 bytes from byte 0, strided: 4 runs of 24 bytes, one every 32 bytes\n"
	 "  at [0, 6]: all 4 rows, all 2 columns of b [4, 2]\n"
	 "      32 bytes from byte 24, strided: 4 runs of 8 bytes, one every 32 bytes\n",
	 "{\"param\":\"ab\",\"rank\":1,\"dtype\":\"f32\",\"shape\":[4,8],\"bytes\":128,\"inplace\":false,"
	 "\"post\":\"repack\",\"zero_bytes\":0,\"pieces\":["
	 "{\"tensor\":\"a\",\"tensor_shape\":[4,6],\"offset\":[0,0],\"extent\":[4,6],\"byte\":0,"
	 "\"bytes\":96,\"strides\":[8,1],\"runs\":4,\"run_bytes\":24},"
	 "{\"tensor\":\"b\",\"tensor_shape\":[4,2],\"offset\":[0,0],\"extent\":[4,2],\"byte\":24,"
	 "\"bytes\":32,\"strides\":[8,1],\"runs\":4,\"run_bytes\":8}]}\n"},
	{"at",
	 "at\n  rank 1 of the rollout: f32 [6, 2], 48 bytes; at n 1 of 2\n"
	 "  at [0, 0]: rows 2 to 3, all 6 columns of a [4, 6]\n"
	 "      48 bytes from byte 0, strided: 12 runs of 4 bytes\n",
	 "{\"param\":\"at\",\"rank\":1,\"dtype\":\"f32\",\"shape\":[6,2],\"bytes\":48,\"inplace\":true,"
	 "\"zero_bytes\":0,\"pieces\":[{\"tensor\":\"a\",\"tensor_shape\":[4,6],\"offset\":[2,0],"
	 "\"extent\":[2,6],\"byte\":0,\"bytes\":48,\"strides\":[1,2],\"runs\":12,\"run_bytes\":4}]}\n"},
	{"s",
	 "s\n  rank 1 of the rollout: f32 [4, 2], 32 bytes\n  made by post step sums of ab, at\n",
	 "{\"derived\":\"s\",\"rank\":1,\"dtype\":\"f32\",\"shape\":[4,2],\"bytes\":32,"
	 "\"post\":\"sums\",\"from\":[\"ab\",\"at\"]}\n"},
};

START_TEST(strided_pieces_are_told_as_runs_and_what_is_derived_by_its_step)
{
	struct manifest *manifest;
	struct ws_error err = {0};
	ck_ok(manifest_parse(&manifest, strided, strlen(strided), NULL, &err), err);
	for (int as_json = 0; as_json < 2; as_json++) {
		struct writer out = WRITER_INIT(1u << 20);
		ck_ok(manifest_explain(manifest, strides[_i].param, 1, as_json == 1, &out, &err),
		      err);
		write_u8(&out, 0);
		ck_assert_str_eq((const char *)out.bytes,
				 as_json == 1 ? strides[_i].json : strides[_i].words);
		writer_release(&out);
	}
	manifest_free(manifest);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(a_scale_says_which_weights_are_under_it)
{
	static const char text[] =
		"{\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"f\",\"model\":\"m\","
		"\"world\":1,\"schemes\":{\"q\":{\"kind\":\"tensor\",\"fmt\":\"e4m3\"}},"
		"\"meshes\":{\"m\":{\"axes\":[[\"tp\",1]]}},"
		"\"tensors\":[{\"name\":\"a\",\"dtype\":\"bf16\",\"shape\":[4,8]},"
		"{\"name\":\"b\",\"dtype\":\"bf16\",\"shape\":[2,8]}],"
		"\"params\":[{\"p\":\"ab\",\"q\":\"q\",\"x\":[\"c\",0,[\"t\",\"b\"],"
		"[\"t\",\"a\"]]}]}";
	static const char *const want[] = {"ab_scale\n  rank 0 of the rollout: f32 [1], 4 bytes\n"
					   "  at [0]: all 1 elements of a_scale [1]\n"
					   "      under it: a\n      under it: b\n"
					   "      4 bytes from byte 0, contiguous\n",
					   "{\"tensor\":\"a_scale\",\"weights\":[\"a\",\"b\"],"};
	struct manifest *manifest;
	struct ws_error err = {0};
	ck_ok(manifest_parse(&manifest, text, strlen(text), NULL, &err), err);
	for (int as_json = 0; as_json < 2; as_json++) {
		struct writer out = WRITER_INIT(1u << 20);
		ck_ok(manifest_explain(manifest, "ab_scale", 0, as_json == 1, &out, &err), err);
		write_u8(&out, 0);
		ck_assert_msg(strstr((const char *)out.bytes, want[as_json]) != NULL, "%s",
			      (const char *)out.bytes);
		writer_release(&out);
	}
	manifest_free(manifest);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(what_is_not_there_is_said_with_what_is)
{
	struct model *model = tiny_model();
	struct manifest *manifest = make_layout(model, "megatron", "pp=2", NULL);
	struct writer out = WRITER_INIT(1u << 20);
	struct ws_error err = {0};
	ck_fails(manifest_explain(manifest, "output_layer.weight", 0, false, &out, &err), -ENOENT,
		 err);
	ck_assert_str_eq(err.text,
			 "rank 0 has no 'output_layer.weight'; the first that has it is rank 1");
	ck_fails(manifest_explain(manifest, "output_layer.wheight", 1, false, &out, &err), -ENOENT,
		 err);
	ck_assert_str_eq(err.text, "no rank has a param 'output_layer.wheight'; did you mean "
				   "'output_layer.weight'?");
	ck_fails(manifest_explain(manifest, "output_layer.weight", 2, false, &out, &err), -EINVAL,
		 err);
	ck_assert_str_eq(err.text, "there is no rank 2; the manifest has ranks 0 to 1");
	writer_release(&out);
	manifest_free(manifest);
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("explain");
	TCase *t = tcase_create("explain");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_param_is_told_in_words, 0, ARRAY_SIZE(explained));
	tcase_add_loop_test(t, strided_pieces_are_told_as_runs_and_what_is_derived_by_its_step, 0,
			    ARRAY_SIZE(strides));
	tcase_add_test(t, a_scale_says_which_weights_are_under_it);
	tcase_add_test(t, what_is_not_there_is_said_with_what_is);
	suite_add_tcase(s, t);
	return s;
}
