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
} jobs[] = {
	{"dtensor", "dtensor_fsdp2", "fsdp2", "dp=3", "f32", true},
	{"dtensor", "dtensor_hsdp", "fsdp2", "rep=2,dp=3", "f32", true},
	{"dtensor", "dtensor_tp", "fsdp2", "dp=2,tp=2", "f32", false},
	{"megatron", "megatron_tp_pp", "megatron", "tp=2,pp=2", NULL, false},
};

START_TEST(a_dump_means_what_its_layout_means)
{
	struct model *model = tiny_model();
	struct manifest *imported = import_dump(model, jobs[_i].from, jobs[_i].dump);
	struct manifest *made = make_layout(model, jobs[_i].layout, jobs[_i].mesh, jobs[_i].dtype);
	ck_assert_uint_eq(manifest_world(imported), manifest_world(made));
	for (uint32_t rank = 0; rank < manifest_world(made); rank++)
		same_pieces(imported, made, rank, jobs[_i].dtype != NULL);
	if (jobs[_i].same_digest)
		ck_assert_uint_eq(manifest_digest(imported), manifest_digest(made));
	manifest_free(imported);
	manifest_free(made);
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
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

static const char *const valued[] = {"dtensor_fsdp2", "dtensor_hsdp", "dtensor_tp", "dtensor_ep"};

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

Suite *suite(void)
{
	Suite *s = suite_create("import");
	TCase *t = tcase_create("import");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_dump_means_what_its_layout_means, 0, ARRAY_SIZE(jobs));
	tcase_add_loop_test(t, every_rank_of_pytorch_held_what_the_manifest_says, 0,
			    ARRAY_SIZE(valued));
	suite_add_tcase(s, t);
	return s;
}
