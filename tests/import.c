/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Importers: what real PyTorch and real Megatron dumped of themselves (tests/dumps, made once by
 * the scripts there) means what --layout makes of the same job, and the elements that PyTorch's
 * ranks really held are those that the manifest says.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/import_model.h"

static struct manifest *import_dump(const struct model *model, const char *from, const char *name)
{
	char path[128];
	void *text = NULL;
	size_t bytes = 0;
	struct ws_error err = {0};
	snprintf(path, sizeof(path), "tests/dumps/%s.json", name);
	ck_ok(file_read(path, 1u << 20, &text, &bytes, &err), err);
	struct manifest *manifest = import_good(model, from, text, bytes);
	mem_free(text);
	return manifest;
}

static const struct {
	const char *from, *dump, *layout, *mesh, *dtype;
	bool same_digest;
	bool other_padding;
} jobs[] = {
	{"dtensor", "dtensor_fsdp2", "fsdp2", "dp=3", "f32", true, false},
	{"dtensor", "dtensor_hsdp", "fsdp2", "rep=2,dp=3", "f32", true, false},
	{"dtensor", "dtensor_tp", "fsdp2", "dp=2,tp=2", "f32", false, false},
	{"megatron", "megatron_tp_pp", "megatron", "tp=2,pp=2", NULL, false, false},
	/* Its vocabulary is padded to a multiple of 192, a layout's is to one of 256. */
	{"megatron", "megatron_ep", "megatron", "tp=2,dp=2,ep=2,etp=1", NULL, false, true},
	{"megatron", "megatron_vpp", "megatron", "dp=2,pp=2,vpp=2,ep=2", NULL, false, false},
};

START_TEST(a_dump_means_what_its_layout_means)
{
	struct model *model = tiny_model();
	struct manifest *imported = import_dump(model, jobs[_i].from, jobs[_i].dump);
	struct manifest *made = make_layout(model, jobs[_i].layout, jobs[_i].mesh, jobs[_i].dtype);
	ck_assert_uint_eq(manifest_world(imported), manifest_world(made));
	for (uint32_t rank = 0; rank < manifest_world(made); rank++)
		same_pieces(imported, made, rank, jobs[_i].dtype != NULL, !jobs[_i].other_padding);
	if (jobs[_i].same_digest)
		ck_assert_uint_eq(manifest_digest(imported), manifest_digest(made));
	manifest_free(imported);
	manifest_free(made);
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* Every `find` becomes `with`; in the arena. */
static const char *change_all(struct arena *arena, const char *text, const char *find,
			      const char *with)
{
	struct writer out = WRITER_INIT(1u << 20);
	uint32_t count = 0;
	for (const char *at = strstr(text, find); at != NULL; at = strstr(text, find), count++) {
		write_bytes(&out, text, (size_t)(at - text));
		write_bytes(&out, with, strlen(with));
		text = at + strlen(find);
	}
	ck_assert_uint_gt(count, 0);
	write_bytes(&out, text, strlen(text) + 1);
	const char *copy = arena_copy(arena, out.bytes, out.count);
	ck_assert_ptr_nonnull(copy);
	writer_release(&out);
	return copy;
}

#define FC1_ROWS                                                                                                       \
	"\", \"shape\": [24, 40], \"dtype\": \"torch.bfloat16\", \"expert\": false, \"tensor_model_parallel\": true, " \
	"\"partition_dim\": 0, \"partition_stride\": "
#define EXPERT(part) "[\"t\",\"model.layers.{L}.mlp.experts.{E}." part "_proj.weight\"]"

START_TEST(a_name_of_ones_own_is_cut_as_its_attributes_say)
{
	struct model *model = tiny_model();
	struct arena arena = {0};
	struct ws_error err = {0};
	void *good;
	size_t bytes;
	ck_ok(file_read("tests/dumps/megatron_tp_pp.json", 1u << 20, &good, &bytes, &err), err);
	const char *text = change_all(&arena, good, "linear_fc1.weight" FC1_ROWS "1",
				      "fused.weight" FC1_ROWS "2");
	text = change_all(
		&arena, text, "{\"ws_dump\"",
		"{\"names\": {\"decoder.layers.{L}.mlp.experts.local_experts.{e}.fused.weight\": "
		"[\"c\",0," EXPERT("gate") "," EXPERT("up") "]}, \"ws_dump\"");
	struct manifest *imported = import_good(model, "megatron", text, strlen(text));
	struct manifest *made = make_layout(model, "megatron", "tp=2,pp=2", NULL);
	for (uint32_t rank = 0; rank < 4; rank++)
		same_pieces(imported, made, rank, false, true);
	manifest_free(imported);
	manifest_free(made);
	model_free(model);
	mem_free(good);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(padding_of_the_vocabulary_follows_from_its_rows)
{
	struct model *model = tiny_model();
	struct manifest *manifest = import_dump(model, "megatron", "megatron_ep");
	static const uint64_t rows[] = {576, 424}; /* of 1000, on tp 0 and 1, in 576 each */
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct arena arena = {0};
		struct rank_params params;
		struct ws_error err = {0};
		ck_ok(manifest_params(manifest, rank, &arena, &params, &err), err);
		int64_t index = rank_params_find(&params, "output_layer.weight");
		ck_assert_int_ge(index, 0);
		const struct form *form = params.params[index].form;
		ck_assert_uint_eq(form->dim[0], 576);
		ck_assert_uint_eq(form->piece_count, 1);
		ck_assert_uint_eq(form->pieces[0].offset[0], 576 * (rank % 2));
		ck_assert_uint_eq(form->pieces[0].extent[0], rows[rank % 2]);
		arena_release(&arena);
	}
	manifest_free(manifest);
	model_free(model);
}
END_TEST

/* The number that make_dtensor.py wrote into the first element of a canonical tensor. */
static uint64_t first_value(const struct tensor_rule *tensor, int32_t expert)
{
	uint64_t elements = tensor->dim[0] * (tensor->dim_count > 1 ? tensor->dim[1] : 1);
	uint64_t e = (uint64_t)MAX(expert, 0);
	if (strstr(tensor->name, "gate_proj") != NULL)
		return 2 * e * elements;
	if (strstr(tensor->name, "up_proj") != NULL)
		return (2 * e + 1) * elements;
	return e * elements;
}

/* The first, the last and the sum of what a param holds. */
static void add_values(const struct manifest *manifest, uint32_t rank, const struct param *param,
		       uint64_t *values)
{
	const struct form *form = param->form;
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *piece = &form->pieces[i];
		const struct tensor_rule *tensor = manifest_tensor(manifest, piece->tensor);
		uint64_t first =
			first_value(tensor, param_expert(manifest, rank, param, piece->slot));
		uint64_t columns = piece->dim_count > 1 ? piece->extent[1] : 1;
		uint64_t pitch = piece->dim_count > 1 ? tensor->dim[1] : 1;
		for (uint64_t n = 0; n < piece->extent[0] * columns; n++) {
			uint64_t row = n / columns, column = n % columns;
			uint64_t place = piece->place + row * (uint64_t)piece->stride[0];
			uint64_t value = first + (piece->offset[0] + row) * pitch;
			if (piece->dim_count > 1) {
				place += column * (uint64_t)piece->stride[1];
				value += piece->offset[1] + column;
			}
			values[0] = place == 0 ? value : values[0];
			values[1] = place == form->element_count - 1 ? value : values[1];
			values[2] += value;
		}
	}
}

static const char *const valued[] = {"dtensor_fsdp2", "dtensor_hsdp", "dtensor_tp", "dtensor_ep",
				     "dtensor_pp"};

START_TEST(every_rank_of_pytorch_held_what_the_manifest_says)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	struct model *model = tiny_model();
	struct manifest *manifest = import_dump(model, "dtensor", valued[_i]);
	struct arena arena = {0};
	struct ws_error err = {0};
	const struct json *json;
	char path[128];
	void *text;
	size_t bytes;
	uint32_t rank = 0;
	snprintf(path, sizeof(path), "tests/dumps/%s_values.json", valued[_i]);
	ck_ok(file_read(path, 1u << 20, &text, &bytes, &err), err);
	ck_ok(json_parse(&arena, text, bytes, &limits, &json, &err), err);
	ck_assert_uint_eq(json_get(json, "ranks")->count, manifest_world(manifest));
	for (const struct json *it = json_get(json, "ranks")->first; it != NULL; it = it->next) {
		struct rank_params params;
		ck_ok(manifest_params(manifest, rank, &arena, &params, &err), err);
		ck_assert_uint_eq(params.count, it->count);
		for (const struct json *held = it->first; held != NULL; held = held->next) {
			uint64_t values[3] = {0};
			int64_t index = rank_params_find(&params, held->key);
			ck_assert_msg(index >= 0, "rank %u has no '%s'", rank, held->key);
			add_values(manifest, rank, &params.params[index], values);
			ck_assert_uint_eq(params.params[index].form->element_count > 0,
					  held->count > 0);
			for (uint32_t v = 0; v < held->count; v++)
				ck_assert_msg(values[v] == (uint64_t)json_at(held, v)->integer,
					      "'%s' at rank %u: value %u", held->key, rank, v);
		}
		rank++;
	}
	mem_free(text);
	arena_release(&arena);
	manifest_free(manifest);
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static void put_grid(struct json_writer *json, const char *first, uint32_t outer,
		     const char *second, uint32_t inner)
{
	json_begin_object(json, NULL);
	json_begin_array(json, "dims");
	json_put_text(json, NULL, first);
	if (second != NULL)
		json_put_text(json, NULL, second);
	json_end_array(json);
	json_begin_array(json, "ranks");
	for (uint32_t rank = 0; rank < outer * inner; rank++) {
		if (second != NULL && rank % inner == 0)
			json_begin_array(json, NULL);
		json_put_integer(json, NULL, rank);
		if (second != NULL && rank % inner == inner - 1)
			json_end_array(json);
	}
	json_end_array(json);
	json_end_object(json);
}

/* torchtitan's own names and shapes (those of one rank), placed by hand: FSDP over all ranks,
 * experts dealt over 32 and FSDP inside over 8. */
static void put_titan(const struct manifest *whole, struct json_writer *json)
{
	struct arena arena = {0};
	struct rank_params params;
	struct ws_error err = {0};
	ck_ok(manifest_params(whole, 0, &arena, &params, &err), err);
	json_begin_object(json, NULL);
	json_put_text(json, "ws_dump", "dtensor");
	json_put_text(json, "framework", "torchtitan");
	json_put_integer(json, "world", 256);
	json_begin_array(json, "meshes");
	put_grid(json, "dp", 256, NULL, 1);
	put_grid(json, "efsdp", 8, "ep", 32);
	json_end_array(json);
	json_begin_array(json, "params");
	for (uint32_t i = 0; i < params.count; i++) {
		const struct param *param = &params.params[i];
		bool experts = strstr(param->name, ".experts.") != NULL;
		json_begin_object(json, NULL);
		json_put_text(json, "name", param->name);
		json_put_text(json, "dtype", ws_dtype_name(param->dtype));
		json_begin_array(json, "shape");
		for (uint32_t d = 0; d < param->form->dim_count; d++)
			json_put_u64(json, NULL, param->form->dim[d]);
		json_end_array(json);
		if (strstr(param->name, "expert_bias") == NULL) {
			json_put_integer(json, "mesh", experts);
			json_begin_array(json, "placements");
			if (experts)
				json_put_text(json, NULL, "_StridedShard(dim=0, sf=32)");
			json_put_text(json, NULL, "Shard(dim=0)");
			json_end_array(json);
		}
		json_end_object(json);
	}
	json_end_array(json);
	json_end_object(json);
	arena_release(&arena);
}

START_TEST(experts_dealt_over_32_ranks_and_cut_over_8_leave_64_of_256_empty)
{
	struct writer text = WRITER_INIT(16u << 20);
	struct json_writer json = {.out = &text};
	struct ws_error err = {0};
	struct model *model;
	uint32_t empty = 0;
	ck_ok(model_builtin(&model, "kimi-k2", &err), err);
	struct manifest *whole = make_layout(model, "torchtitan", "dp=1", NULL);
	put_titan(whole, &json);
	struct manifest *imported = import_good(model, "dtensor", text.bytes, text.count);
	struct manifest *made = make_layout(model, "torchtitan", "dp=256,ep=32", NULL);
	for (uint32_t rank = 0; rank < 256; rank += 1 + rank % 3)
		same_pieces(imported, made, rank, true, true);
	for (uint32_t rank = 0; rank < 256; rank++) {
		struct arena arena = {0};
		struct rank_params params;
		ck_ok(manifest_params(imported, rank, &arena, &params, &err), err);
		int64_t index = rank_params_find(&params, "layers.9.moe.experts.w2");
		ck_assert_int_ge(index, 0);
		empty += params.params[index].bytes == 0;
		arena_release(&arena);
	}
	ck_assert_uint_eq(empty, 64);
	manifest_free(whole);
	manifest_free(imported);
	manifest_free(made);
	model_free(model);
	writer_release(&text);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("import");
	TCase *t = tcase_create("import");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_dump_means_what_its_layout_means, 0, ARRAY_SIZE(jobs));
	tcase_add_test(t, experts_dealt_over_32_ranks_and_cut_over_8_leave_64_of_256_empty);
	tcase_add_test(t, a_name_of_ones_own_is_cut_as_its_attributes_say);
	tcase_add_test(t, padding_of_the_vocabulary_follows_from_its_rows);
	tcase_add_loop_test(t, every_rank_of_pytorch_held_what_the_manifest_says, 0,
			    ARRAY_SIZE(valued));
	suite_add_tcase(s, t);
	return s;
}
