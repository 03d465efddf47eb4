/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expression language against tests/golden/layouts.json: every case, every rank, element by
 * element, and every expression that must be refused.  The vectors come from an oracle that
 * compares the language with independent emulators of the frameworks.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

struct golden {
	struct arena arena;
	const struct json *json;
};

static void golden_open(struct golden *golden)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	struct ws_error err = {0};
	void *bytes;
	size_t count;
	ck_ok(file_read("tests/golden/layouts.json", 8u << 20, &bytes, &count, &err), err);
	ck_ok(json_parse(&golden->arena, bytes, count, &limits, &golden->json, &err), err);
	mem_free(bytes);
}

/* "e2.g" is expert 2 of the rule "e{E}.g". */
static bool expert_of(const char *name, int32_t *expert, char *rule, size_t bytes)
{
	if (name[0] != 'e' || name[1] < '0' || name[1] > '9' || name[2] != '.')
		return false;
	*expert = name[1] - '0';
	snprintf(rule, bytes, "e{E}%s", name + 2);
	return true;
}

static void put_tensors(struct json_writer *json, const struct json *canonical)
{
	char rule[64];
	int32_t expert;
	json_begin_array(json, "tensors");
	for (const struct json *it = canonical->first; it != NULL; it = it->next) {
		bool experts = expert_of(it->key, &expert, rule, sizeof(rule));
		if (experts && expert != 0)
			continue;
		json_begin_object(json, NULL);
		json_put_text(json, "name", experts ? rule : it->key);
		json_put_text(json, "dtype", "u32");
		json_put_value(json, "shape", json_get(it, "shape"));
		if (experts) {
			json_begin_array(json, "experts");
			json_put_integer(json, NULL, 0);
			json_put_integer(json, NULL, 4);
			json_end_array(json);
		}
		json_end_object(json);
	}
	json_end_array(json);
}

/* A manifest whose mesh has the axes of coord and whose one param is x; returns the rank. */
static uint32_t put_manifest(struct writer *out, const struct json *canonical,
			     const struct json *coord, const struct json *x)
{
	struct json_writer json = {.out = out};
	uint32_t world = 1, rank = 0;
	for (const struct json *it = coord->first; it != NULL; it = it->next) {
		uint32_t index = (uint32_t)json_at(it, 0)->integer;
		uint32_t size = (uint32_t)json_at(it, 1)->integer;
		rank = rank * size + index;
		world *= size;
	}
	json_begin_object(&json, NULL);
	json_put_integer(&json, "ws_manifest", 1);
	json_put_text(&json, "side", "rollout");
	json_put_text(&json, "framework", "golden");
	json_put_text(&json, "model", "golden");
	json_put_integer(&json, "world", world);
	put_tensors(&json, canonical);
	json_begin_object(&json, "meshes");
	json_begin_object(&json, "m");
	json_begin_array(&json, "axes");
	for (const struct json *it = coord->first; it != NULL; it = it->next) {
		json_begin_array(&json, NULL);
		json_put_text(&json, NULL, it->key);
		json_put_value(&json, NULL, json_at(it, 1));
		json_end_array(&json);
	}
	json_end_array(&json);
	json_end_object(&json);
	json_end_object(&json);
	if (json_get(coord, "ep") != NULL) {
		json_begin_object(&json, "experts");
		json_put_text(&json, "axis", "ep");
		json_end_object(&json);
	}
	json_begin_array(&json, "params");
	json_begin_object(&json, NULL);
	json_put_text(&json, "p", "param");
	json_put_value(&json, "x", x);
	json_end_object(&json);
	json_end_array(&json);
	json_end_object(&json);
	ck_assert(!out->failed);
	return rank;
}

/* The element ids of a form, as the golden file counts them. */
static void fill_ids(const struct manifest *manifest, uint32_t rank, const struct form *form,
		     const struct json *canonical, int64_t *ids)
{
	const int32_t *experts;
	uint32_t expert_count = manifest_experts(manifest, 0, rank, -1, &experts);
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *piece = &form->pieces[i];
		const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
		char name[64];
		ck_assert_int_lt(piece->slot, (int32_t)expert_count);
		tensor_name(rule, -1, piece->slot < 0 ? -1 : experts[piece->slot], name,
			    sizeof(name));
		int64_t base = json_get(json_get(canonical, name), "base")->integer;
		uint64_t index[BOX_DIM_MAX] = {0}, volume = 1;
		for (uint32_t d = 0; d < piece->dim_count; d++)
			volume *= piece->extent[d];
		for (uint64_t n = 0; n < volume; n++) {
			uint64_t id = 0, place = piece->place, left = n;
			for (uint32_t d = piece->dim_count; d > 0; d--) {
				index[d - 1] = left % piece->extent[d - 1];
				left /= piece->extent[d - 1];
			}
			for (uint32_t d = 0; d < piece->dim_count; d++) {
				id = id * rule->dim[d] + piece->offset[d] + index[d];
				place += index[d] * (uint64_t)piece->stride[d];
			}
			ck_assert_uint_lt(place, form->element_count);
			ck_assert_int_eq(ids[place], 0); /* no element twice */
			ids[place] = base + (int64_t)id;
		}
	}
}

static void check_case(const char *name, const struct json *canonical, const struct json *x,
		       const struct json *instance)
{
	struct writer out = WRITER_INIT(1 << 20);
	struct manifest *manifest;
	const struct form *form;
	struct ws_error err = {0};
	const struct json *shape = json_get(instance, "shape");
	const struct json *elements = json_get(instance, "elements");
	uint32_t rank = put_manifest(&out, canonical, json_get(instance, "coord"), x);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	ck_ok(manifest_form(manifest, 0, rank, &form, &err), err);
	ck_assert_uint_eq(form->dim_count, shape->count);
	for (uint32_t d = 0; d < form->dim_count; d++)
		ck_assert_uint_eq(form->dim[d], (uint64_t)json_at(shape, d)->integer);
	ck_assert_uint_eq(form->element_count, elements->count);
	int64_t *ids = mem_alloc(form->element_count * sizeof(*ids));
	fill_ids(manifest, rank, form, canonical, ids);
	uint64_t place = 0, covered = 0;
	for (const struct json *it = elements->first; it != NULL; it = it->next, place++) {
		ck_assert_msg(ids[place] == it->integer,
			      "%s at rank %u: element %" PRIu64 " is %" PRId64 ", not %" PRId64,
			      name, rank, place, ids[place], it->integer);
		covered += ids[place] != 0;
	}
	ck_assert_uint_eq(covered, form->covered_count);
	mem_free(ids);
	manifest_free(manifest);
	writer_release(&out);
}

START_TEST(every_case_gives_the_golden_elements)
{
	struct golden golden = {0};
	uint32_t count = 0;
	golden_open(&golden);
	const struct json *expressions = json_get(golden.json, "expressions");
	for (const struct json *it = json_get(golden.json, "cases")->first; it != NULL;
	     it = it->next) {
		const struct json *x = json_get(expressions, it->key);
		if (x->type == JSON_STRING)
			continue; /* prose; see below */
		for (const struct json *i = it->first; i != NULL; i = i->next, count++)
			check_case(it->key, json_get(golden.json, "canonical"), x, i);
	}
	ck_assert_uint_eq(count, 234);
	arena_release(&golden.arena);
}
END_TEST

START_TEST(what_the_cases_leave_open_gives_the_golden_elements)
{
	struct golden golden = {0};
	golden_open(&golden);
	const struct json *more = json_get(golden.json, "more");
	ck_assert_uint_eq(more->count, 14);
	for (const struct json *it = more->first; it != NULL; it = it->next)
		check_case(json_text(it, "name", ""), json_get(golden.json, "canonical"),
			   json_get(it, "x"), it);
	arena_release(&golden.arena);
}
END_TEST

START_TEST(what_cannot_be_is_refused_with_a_sentence)
{
	struct golden golden = {0};
	golden_open(&golden);
	const struct json *refuse = json_get(golden.json, "refuse");
	ck_assert_uint_eq(refuse->count, 12);
	for (const struct json *it = refuse->first; it != NULL; it = it->next) {
		struct writer out = WRITER_INIT(1 << 20);
		struct manifest *manifest;
		struct ws_error err = {0};
		put_manifest(&out, json_get(golden.json, "canonical"), json_get(it, "coord"),
			     json_get(it, "x"));
		int rc = manifest_parse(&manifest, out.bytes, out.count, NULL, &err);
		ck_assert_msg(rc == -EINVAL, "not refused: %s", json_text(it, "why", ""));
		ck_assert_ptr_null(manifest);
		ck_assert_str_ne(err.text, "");
		writer_release(&out);
	}
	arena_release(&golden.arena);
}
END_TEST

/*
 * The two MLA layouts stack heads, which no node does: an engine derives them from kv_b_proj.
 * Each head is a range (and a transpose) of it, so each is evaluated as a param of its own and
 * their elements, one after the other, must be the golden stack.
 */
static void check_heads(const struct json *golden, const char *name, const char *head_format,
			int start, int end)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	const struct json *stack = json_at(json_get(json_get(golden, "cases"), name), 0);
	const struct json *shape = json_get(stack, "shape");
	const struct json *want = json_get(stack, "elements")->first;
	for (int head = 0; head < json_at(shape, 0)->integer; head++) {
		struct arena arena = {0};
		struct writer out = WRITER_INIT(1 << 20);
		struct manifest *manifest;
		const struct form *form;
		const struct json *x, *coord;
		struct ws_error err = {0};
		char text[256];
		snprintf(text, sizeof(text), head_format, 5 * head + start, 5 * head + end);
		ck_ok(json_parse(&arena, text, strlen(text), &limits, &x, &err), err);
		ck_ok(json_parse(&arena, "{}", 2, &limits, &coord, &err), err);
		put_manifest(&out, json_get(golden, "mla"), coord, x);
		ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
		ck_ok(manifest_form(manifest, 0, 0, &form, &err), err);
		ck_assert_uint_eq(form->dim[0], (uint64_t)json_at(shape, 1)->integer);
		ck_assert_uint_eq(form->dim[1], (uint64_t)json_at(shape, 2)->integer);
		int64_t *ids = mem_alloc(form->element_count * sizeof(*ids));
		fill_ids(manifest, 0, form, json_get(golden, "mla"), ids);
		for (uint64_t i = 0; i < form->element_count; i++, want = want->next)
			ck_assert_int_eq(ids[i], want->integer);
		mem_free(ids);
		manifest_free(manifest);
		writer_release(&out);
		arena_release(&arena);
	}
	ck_assert_ptr_null(want);
}

START_TEST(mla_heads_are_ranges_of_kv_b)
{
	struct golden golden = {0};
	golden_open(&golden);
	check_heads(golden.json, "mla.w_uk_t", "[\"r\",[\"t\",\"kvb\"],0,%d,%d]", 0, 3);
	check_heads(golden.json, "mla.w_uv_contig", "[\"x\",[\"r\",[\"t\",\"kvb\"],0,%d,%d],[1,0]]",
		    3, 5);
	arena_release(&golden.arena);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("golden");
	TCase *tc = tcase_create("layouts");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, every_case_gives_the_golden_elements);
	tcase_add_test(tc, what_the_cases_leave_open_gives_the_golden_elements);
	tcase_add_test(tc, what_cannot_be_is_refused_with_a_sentence);
	tcase_add_test(tc, mla_heads_are_ranges_of_kv_b);
	suite_add_tcase(s, tc);
	return s;
}
