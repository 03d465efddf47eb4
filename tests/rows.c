/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explicit rows: they mean what the rules meant of which they were made, come back as few rules,
 * and are checked exactly.
 */
#include <errno.h>
#include <string.h>

#include "tests/manifest_text.h"

static void put_list(struct json_writer *json, const char *key, const uint64_t *list,
		     uint32_t count)
{
	json_begin_array(json, key);
	for (uint32_t i = 0; i < count; i++)
		json_put_u64(json, NULL, list[i]);
	json_end_array(json);
}

/* Writes a manifest's params as rows: a stranger's view of the same layout. */
static void put_rows(const struct manifest *manifest, struct json_writer *json)
{
	struct ws_error err = {0};
	json_begin_array(json, "rows");
	for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
		struct arena arena = {0};
		struct rank_params params;
		ck_ok(manifest_params(manifest, rank, &arena, &params, &err), err);
		for (uint32_t i = 0; i < params.count; i++) {
			const struct param *param = &params.params[i];
			for (uint32_t p = 0; p < param->form->piece_count; p++) {
				const struct piece *piece = &param->form->pieces[p];
				uint64_t stride[BOX_DIM_MAX];
				char name[256];
				const struct tensor_rule *rule =
					manifest_tensor(manifest, piece->tensor);
				tensor_name(rule, param->layer,
					    param_expert(manifest, rank, param, piece->slot), name,
					    sizeof(name));
				for (uint32_t d = 0; d < piece->dim_count; d++)
					stride[d] = MAX((uint64_t)piece->stride[d], 1);
				json_begin_object(json, NULL);
				json_put_text(json, "t", name);
				json_put_text(json, "p", param->name);
				json_put_integer(json, "rank", rank);
				json_put_text(json, "dtype", ws_dtype_name(param->dtype));
				put_list(json, "goff", piece->offset, piece->dim_count);
				put_list(json, "lshape", piece->extent, piece->dim_count);
				put_list(json, "lstride", stride, piece->dim_count);
				json_put_u64(json, "loff", piece->place);
				json_end_object(json);
			}
		}
		arena_release(&arena);
	}
	json_end_array(json);
}

/* The same params, by name, hold the same elements at the same places. */
static void same_params(const struct manifest *rules, const struct manifest *rows, uint32_t rank)
{
	struct arena arena = {0};
	struct rank_params a, b;
	struct ws_error err = {0};
	uint32_t with_pieces = 0;
	ck_ok(manifest_params(rules, rank, &arena, &a, &err), err);
	ck_ok(manifest_params(rows, rank, &arena, &b, &err), err);
	for (uint32_t i = 0; i < a.count; i++) {
		const struct param *mine = &a.params[i];
		int64_t at = rank_params_find(&b, mine->name);
		if (mine->form->piece_count == 0)
			continue;
		with_pieces++;
		ck_assert_msg(at >= 0, "rank %u has no %s", rank, mine->name);
		const struct param *other = &b.params[at];
		ck_assert_int_eq(mine->dtype, other->dtype);
		ck_assert_uint_eq(mine->form->piece_count, other->form->piece_count);
		for (uint32_t p = 0; p < mine->form->piece_count; p++) {
			const struct piece *x = &mine->form->pieces[p],
					   *y = &other->form->pieces[p];
			char x_name[256], y_name[256];
			tensor_name(manifest_tensor(rules, x->tensor), mine->layer,
				    param_expert(rules, rank, mine, x->slot), x_name,
				    sizeof(x_name));
			tensor_name(manifest_tensor(rows, y->tensor), other->layer,
				    param_expert(rows, rank, other, y->slot), y_name,
				    sizeof(y_name));
			ck_assert_str_eq(x_name, y_name);
			ck_assert_uint_eq(x->place, y->place);
			ck_assert_int_eq(memcmp(x->offset, y->offset, sizeof(x->offset)), 0);
			ck_assert_int_eq(memcmp(x->extent, y->extent, sizeof(x->extent)), 0);
			for (uint32_t d = 0; d < x->dim_count; d++)
				ck_assert(x->extent[d] == 1 || x->stride[d] == y->stride[d]);
		}
	}
	ck_assert_uint_eq(with_pieces, b.count);
	arena_release(&arena);
}

static const struct {
	const char *model, *layout, *mesh;
	uint32_t rules_max; /* rows are compressed again to about as few */
} row_sources[] = {
	{"qwen3-30b-a3b", "fsdp2", "dp=3", 16},
	{"qwen3-30b-a3b", "megatron", "tp=2,ep=2,etp=1", 40},
	{"deepseek-v3", "vllm", "tp=2,ep=2", 60},
	{"glm-4.5", "megatron", "tp=2,pp=2,first=2", 64},
	{"llama-3-70b", "sglang", "tp=2", 20},
};

START_TEST(rows_mean_what_the_rules_meant)
{
	struct manifest_options options = {.layout = row_sources[_i].layout,
					   .mesh = row_sources[_i].mesh};
	struct writer text = WRITER_INIT(64 << 20), out = WRITER_INIT(64 << 20);
	struct json_writer json = {.out = &out};
	struct ws_error err = {0};
	struct model *whole, *model;
	struct arena arena = {0};
	const struct json *parsed;
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	ck_ok(model_builtin(&whole, row_sources[_i].model, &err), err);
	ck_ok(model_scale(&model, whole, 1, 4096, &err), err);
	ck_ok(manifest_make(model, &options, &text, NULL, &err), err);
	struct manifest *rules, *rows;
	ck_ok(manifest_parse(&rules, text.bytes, text.count, NULL, &err), err);
	ck_ok(json_parse(&arena, text.bytes, text.count, &limits, &parsed, &err), err);
	json_begin_object(&json, NULL);
	for (const char *const *key = (const char *const[]){"ws_manifest", "side", "framework",
							    "model", "world", "tensors", NULL};
	     *key != NULL; key++)
		json_put_value(&json, *key, json_get(parsed, *key));
	put_rows(rules, &json);
	json_end_object(&json);
	ck_assert(!out.failed);
	ck_ok(manifest_parse(&rows, out.bytes, out.count, NULL, &err), err);
	for (uint32_t rank = 0; rank < manifest_world(rules); rank++)
		same_params(rules, rows, rank);
	ck_assert_uint_le(manifest_rule_count(rows), row_sources[_i].rules_max);
	manifest_free(rules);
	manifest_free(rows);
	model_free(whole);
	model_free(model);
	writer_release(&text);
	writer_release(&out);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static const struct {
	const char *text, *error; /* NULL: good */
} row_cases[] = {
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[8,8]}]"), NULL},
	/* columns of one matrix, side by side */
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[8,4],\"lstride\":[8,1]},"
	      "{\"t\":\"w\",\"rank\":0,\"goff\":[0,4],\"lshape\":[8,4],\"lstride\":[8,1],\"loff\":4}]"),
	 NULL},
	/* the same with one column of both */
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[8,5],\"lstride\":[8,1]},"
	      "{\"t\":\"w\",\"rank\":0,\"goff\":[0,4],\"lshape\":[8,4],\"lstride\":[8,1],\"loff\":4}]"),
	 "two of its rows hold local element 4"},
	/* strides that meet: (i, j) at 2i + j */
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[2,3],\"lstride\":[2,1]}]"),
	 "two of its rows hold local element 2"},
	/* not nested, yet apart: 2i + 3j for i, j < 2 */
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[2,2],\"lstride\":[2,3]}]"),
	 NULL},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,1],\"lshape\":[8,8]}]"),
	 "dim 1: 8 elements from 1 on pass the tensor's 8"},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":8,\"goff\":[0,0],\"lshape\":[8,8]}]"), "below 8"},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0],\"lshape\":[8,8]}]"),
	 "\"goff\" must have 2"},
	{ROWS("\"rows\":[{\"t\":\"x\",\"rank\":0,\"goff\":[0,0],\"lshape\":[8,8]}]"), "no 'x'"},
	{ROWS("\"rows\":[{\"t\":\"layers.4.v\",\"rank\":0,\"goff\":[0],\"lshape\":[8]}]"),
	 "no 'layers.4.v'"},
	{ROWS("\"rows\":[{\"t\":\"layers.0.v\",\"p\":\"x\",\"rank\":0,\"goff\":[0],\"lshape\":[8]},"
	      "{\"t\":\"layers.1.v\",\"p\":\"x\",\"rank\":0,\"goff\":[0],\"lshape\":[8],\"loff\":8}]"),
	 "a param has one layer"},
	/* stages that count from 0 again: one name, two layers, two ranks */
	{ROWS("\"rows\":[{\"t\":\"layers.0.v\",\"p\":\"x\",\"rank\":0,\"goff\":[0],\"lshape\":[8]},"
	      "{\"t\":\"layers.1.v\",\"p\":\"x\",\"rank\":1,\"goff\":[0],\"lshape\":[8]}]"),
	 NULL},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[4,8]},"
	      "{\"t\":\"w\",\"rank\":0,\"goff\":[4,0],\"lshape\":[4,8],\"loff\":32,\"dtype\":\"f32\"}]"),
	 "different dtypes"},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[4,8],\"lstride\":[0,1]}]"),
	 "\"lstride\" must be integers from 1 on"},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[4,8],"
	      "\"loff\":9007199254740991}]"),
	 NULL},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[4,8],"
	      "\"lstride\":[9007199254740991,9007199254740991]}]"),
	 "lead too far"},
	{ROWS("\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[0,8]}]"), NULL},
	{ROWS("\"rows\":{}"), "expected a list of rows"},
	{ROWS("\"note\":\"nothing\""), "neither \"params\" nor \"rows\""},
};

START_TEST(rows_are_checked_exactly)
{
	struct ws_error err = {0};
	struct manifest *manifest;
	int rc = manifest_parse(&manifest, row_cases[_i].text, strlen(row_cases[_i].text), NULL,
				&err);
	if (row_cases[_i].error == NULL)
		ck_assert_msg(rc == 0, "%s", err.text);
	else
		ck_assert_msg(rc == -EINVAL && strstr(err.text, row_cases[_i].error) != NULL,
			      "%d: %s", rc, err.text);
	manifest_free(manifest);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(rows_stand_beside_params)
{
	struct writer out = WRITER_INIT(1 << 16);
	struct ws_error err = {0};
	struct arena arena = {0};
	struct rank_params params;
	write_format(&out,
		     "%.*s,\"rows\":[{\"t\":\"embed\",\"p\":\"more\",\"rank\":3,\"goff\":[2,0],"
		     "\"lshape\":[3,8]}]}",
		     (int)strlen(GOOD) - 1, GOOD);
	struct manifest *manifest;
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	ck_ok(manifest_params(manifest, 3, &arena, &params, &err), err);
	ck_assert_int_eq(rank_params_find(&params, "more"), params.count - 1);
	ck_assert_uint_eq(params.params[params.count - 1].bytes, 48);
	ck_assert_uint_eq(params.params[params.count - 1].form->dim_count, 2);
	ck_ok(manifest_params(manifest, 2, &arena, &params, &err), err);
	ck_assert_int_eq(rank_params_find(&params, "more"), -1);
	arena_release(&arena);
	manifest_free(manifest);
	writer_release(&out);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("rows");
	TCase *tc = tcase_create("rows");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, rows_mean_what_the_rules_meant, 0, ARRAY_SIZE(row_sources));
	tcase_add_loop_test(tc, rows_are_checked_exactly, 0, ARRAY_SIZE(row_cases));
	tcase_add_test(tc, rows_stand_beside_params);
	suite_add_tcase(s, tc);
	return s;
}
