/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What post steps make, as manifests say it: which calls a rank has, with which params at which
 * layers, in which form; what can't be; and what the layouts of MLA derive.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/manifest_text.h"

#define DERIVED(entries) "\"world\":8,\"derived\":[" entries "]"
#define UPS                                                                                     \
	"{\"post\":\"turn\",\"each\":{\"L\":\"dense\"},\"mesh\":\"dense\","                     \
	"\"from\":[\"b.{L}.up\",\"b.{L}.norm\"],\"makes\":[{\"p\":\"t.{L}\",\"dtype\":\"f32\"," \
	"\"shape\":[\"$vocab_div/head\",3,\"$vocab_div*all\"]},"                                \
	"{\"p\":\"u.{L}\",\"dtype\":\"u8\",\"shape\":[5]}]}"
#define HEADS                                                                        \
	"{\"post\":\"sum\",\"mesh\":\"dense\",\"from\":[\"emb\"],\"note\":\"once\"," \
	"\"makes\":[{\"p\":\"sums\",\"dtype\":\"u64\",\"shape\":[1]}]}"

struct world {
	struct arena arena;
	struct manifest *manifest;
	struct rank_params params;
	struct rank_steps steps;
};

static void world_make(struct world *world, const char *text, uint32_t rank)
{
	struct ws_error err = {0};

	*world = (struct world){.manifest = parse(text)};
	ck_ok(manifest_params(world->manifest, rank, &world->arena, &world->params, &err), err);
	ck_ok(manifest_steps(world->manifest, rank, &world->params, &world->arena, &world->steps,
			     &err),
	      err);
}

static void world_free(struct world *world)
{
	manifest_free(world->manifest);
	arena_release(&world->arena);
}

static const char *from_name(const struct world *world, uint32_t call, uint32_t index)
{
	ck_assert_uint_lt(index, world->steps.calls[call].from_count);
	return world->params.params[world->steps.calls[call].from[index]].name;
}

/* ---------------------------------------------------------------- what can be */

START_TEST(a_rank_has_the_calls_of_its_own_layers)
{
	char *text = changed("\"world\":8", DERIVED(UPS "," HEADS));
	struct world world;

	/* Of the first stage: two dense layers and the embedding, no experts. */
	world_make(&world, text, 1);
	const struct rank_steps *steps = &world.steps;
	ck_assert_uint_eq(steps->call_count, 3);
	ck_assert_uint_eq(steps->derived_count, 5);
	ck_assert_uint_eq(steps->made_count, 5);
	for (uint32_t i = 0; i < 2; i++) {
		const struct step_call *call = &steps->calls[i];
		ck_assert_str_eq(call->step, "turn");
		ck_assert_int_eq(call->layer, (int)i);
		ck_assert_int_eq(call->expert, -1);
		ck_assert_uint_eq(call->from_count, 2);
		ck_assert_uint_eq(call->made_count, 2);
		ck_assert_uint_eq(call->made_first, 2 * i);
	}
	ck_assert_str_eq(from_name(&world, 1, 0), "b.1.up");
	ck_assert_str_eq(from_name(&world, 1, 1), "b.1.norm");
	ck_assert_str_eq(from_name(&world, 2, 0), "emb");
	const struct step_made *made = &steps->made[2];
	ck_assert_str_eq(made->name, "t.1");
	ck_assert_int_eq(made->dtype, WS_F32);
	ck_assert_uint_eq(made->dim_count, 3);
	ck_assert_uint_eq(made->dim[0], 4);
	ck_assert_uint_eq(made->dim[2], 32);
	ck_assert_uint_eq(made->bytes, 4 * 3 * 32 * 4);
	ck_assert_uint_eq(made->param, UINT32_MAX);
	ck_assert_str_eq(steps->made[4].name, "sums");
	world_free(&world);
	mem_free(text);
}
END_TEST

START_TEST(a_staged_param_becomes_its_own_memory_by_its_step)
{
	struct world world;

	/* Of the second stage: a stack of experts at each of three layers. */
	world_make(&world, GOOD, 4);
	ck_assert_uint_eq(world.steps.call_count, 3);
	ck_assert_uint_eq(world.steps.derived_count, 0);
	for (uint32_t i = 0; i < 3; i++) {
		const struct step_call *call = &world.steps.calls[i];
		const struct step_made *made = &world.steps.made[call->made_first];
		ck_assert_str_eq(call->step, "shuffle");
		ck_assert_int_eq(call->layer, (int)i + 2);
		ck_assert_uint_eq(call->from_count, 1);
		ck_assert_uint_eq(call->made_count, 1);
		ck_assert_uint_eq(made->param, call->from[0]);
		ck_assert_str_eq(made->name, from_name(&world, i, 0));
		ck_assert_int_eq(made->dtype, WS_NONE);
	}
	world_free(&world);
	/* In place it lands where it belongs, and the step makes nothing of its own. */
	char *text = changed("\"post\":\"shuffle\"", "\"post\":\"shuffle\",\"mode\":\"inplace\"");
	world_make(&world, text, 4);
	ck_assert_uint_eq(world.steps.call_count, 3);
	ck_assert_uint_eq(world.steps.made_count, 0);
	world_free(&world);
	mem_free(text);
}
END_TEST

START_TEST(what_is_derived_is_part_of_the_digest)
{
	static const char *const others[] = {"\"turn\"",
					     "\"turn2\"",
					     "\"b.{L}.norm\"],",
					     "\"b.{L}.up\"],",
					     "\"t.{L}\"",
					     "\"x.{L}\"",
					     "\"f32\",\"shape\":[\"$v",
					     "\"u32\",\"shape\":[\"$v",
					     "[5]",
					     "[6]",
					     "\"L\":\"dense\"},\"mesh\":\"dense\",\"from\"",
					     "\"L\":[0,1]},\"mesh\":\"dense\",\"from\""};
	char *text = changed("\"world\":8", DERIVED(UPS));
	struct manifest *first = parse(text), *good = parse(GOOD);

	ck_assert_uint_ne(manifest_digest(first), manifest_digest(good));
	manifest_free(good);
	for (size_t i = 0; i < ARRAY_SIZE(others); i += 2) {
		char other[8192];
		const char *at = strstr(text, others[i]);
		ck_assert_ptr_nonnull(at);
		snprintf(other, sizeof(other), "%.*s%s%s", (int)(at - text), text, others[i + 1],
			 at + strlen(others[i]));
		struct manifest *it = parse(other);
		ck_assert_uint_ne(manifest_digest(first), manifest_digest(it));
		manifest_free(it);
	}
	manifest_free(first);
	mem_free(text);
}
END_TEST

static const struct mla {
	const char *layout, *mesh, *quant, *step, *first;
	uint64_t heads, dim[2][2];
} mlas[] = {
	{"vllm", "tp=4", NULL, "vllm_mla_absorb", "W_UK_T", 32, {{128, 512}, {512, 128}}},
	{"vllm",
	 "tp=8,pp=2",
	 "fp8-block",
	 "vllm_mla_absorb",
	 "W_UK_T",
	 16,
	 {{128, 512}, {512, 128}}},
	{"sglang",
	 "tp=8,dp=4,ep=8",
	 "fp8-block",
	 "sglang_mla_absorb",
	 "w_kc",
	 64,
	 {{512, 128}, {128, 512}}},
};

START_TEST(layouts_of_mla_derive_what_their_engines_absorb)
{
	const struct mla *mla = &mlas[_i];
	struct writer text = WRITER_INIT(1u << 20);
	struct manifest_options options = {.side = SIDE_ROLLOUT,
					   .layout = mla->layout,
					   .mesh = mla->mesh,
					   .quant = mla->quant,
					   .derived = true};
	struct ws_error err = {0};
	struct model *model;
	struct world world;

	ck_ok(model_builtin(&model, "deepseek-v3", &err), err);
	ck_ok(manifest_make(model, &options, &text, NULL, &err), err);
	write_bytes(&text, "", 1);
	world_make(&world, (const char *)text.bytes, 0);
	bool stages = strstr(mla->mesh, "pp=2") != NULL;
	ck_assert_uint_eq(world.steps.call_count, stages ? 31 : 62);
	for (uint32_t i = 0; i < world.steps.call_count; i++) {
		const struct step_call *call = &world.steps.calls[i];
		ck_assert_str_eq(call->step, mla->step);
		ck_assert_uint_eq(call->from_count, mla->quant != NULL ? 2 : 1);
		ck_assert_ptr_nonnull(strstr(from_name(&world, i, 0), ".kv_b_proj.weight"));
		if (mla->quant != NULL)
			ck_assert_ptr_nonnull(strstr(from_name(&world, i, 1), "_scale_inv"));
		for (uint32_t m = 0; m < 2; m++) {
			const struct step_made *made = &world.steps.made[call->made_first + m];
			ck_assert_int_eq(made->dtype, WS_BF16);
			ck_assert_uint_eq(made->dim[0], mla->heads);
			ck_assert_uint_eq(made->dim[1], mla->dim[m][0]);
			ck_assert_uint_eq(made->dim[2], mla->dim[m][1]);
		}
		ck_assert_ptr_nonnull(strstr(world.steps.made[call->made_first].name, mla->first));
	}
	world_free(&world);
	model_free(model);
	writer_release(&text);
}
END_TEST

START_TEST(layouts_that_derive_nothing_say_so)
{
	struct writer text = WRITER_INIT(1u << 20);
	struct manifest_options options = {
		.side = SIDE_ROLLOUT, .layout = "vllm", .mesh = "tp=2", .derived = true};
	struct ws_error err = {0};
	struct model *model;

	ck_ok(model_builtin(&model, "qwen3-32b", &err), err);
	ck_fails(manifest_make(model, &options, &text, NULL, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "no post step is known") != NULL, "%s", err.text);
	model_free(model);
	writer_release(&text);
}
END_TEST

/* ---------------------------------------------------------------- what can't be */

#define MADE(made)                                                          \
	"{\"post\":\"turn\",\"each\":{\"L\":\"dense\"},\"mesh\":\"dense\"," \
	"\"from\":[\"b.{L}.up\"],\"makes\":[" made "]}"
#define ONE(p) "{\"p\":\"" p "\",\"dtype\":\"f32\",\"shape\":[3]}"

static const struct fault {
	const char *entries, *kind, *where, *text;
} faults[] = {
	{"7", "json", "derived[0]", "expected an object"},
	{"{\"pots\":\"turn\"}", "key", "derived[0]", "unknown key 'pots'"},
	{"{\"from\":[]}", "key", "derived[0]", "\"post\", the step"},
	{"{\"post\":\"turn\",\"from\":[\"emb\"]}", "mesh", "derived[0]", "it needs \"mesh\""},
	{"{\"post\":\"turn\",\"mesh\":\"thin\"}", "mesh", "derived[0]", "no 'thin'"},
	{"{\"post\":\"turn\",\"mesh\":\"dense\",\"from\":[\"emb\"]}", "derived", "derived[0]",
	 "\"makes\" must list 1 to 16"},
	{"{\"post\":\"turn\",\"mesh\":\"dense\",\"makes\":[" ONE("a") "]}", "derived", "derived[0]",
	 "\"from\" must list 1 to 16"},
	{"{\"post\":\"turn\",\"mesh\":\"dense\",\"from\":[\"emb\",\"embed\"],\"makes\":[" ONE(
		 "a") "]}",
	 "derived", "derived[0]", "names 'embed', and \"params\" has none such"},
	{"{\"post\":\"turn\",\"each\":{\"L\":\"all\"},\"mesh\":\"dense\",\"from\":[\"b.{L}.up\"],"
	 "\"makes\":[" ONE("a{L}") "]}",
	 "derived", "derived[0]", "none such at one of its layers"},
	{"{\"post\":\"turn\",\"each\":{\"L\":\"moe\",\"E\":\"ep\"},\"mesh\":\"expert\","
	 "\"from\":[\"b.{L}.e.{e}\"],\"makes\":[" ONE("a{L}") "]}",
	 "experts", "derived[0]", "leave each.E away"},
	{"{\"post\":\"turn\",\"each\":{\"L\":\"moe\"},\"mesh\":\"expert\",\"from\":[\"b.{L}.e.{e}\"],"
	 "\"makes\":[" ONE("a{L}") "]}",
	 "derived", "derived[0]", "which is a param of each expert"},
	{MADE("{\"dtype\":\"f32\",\"shape\":[3]}"), "key", "derived[0]", "\"p\", a name"},
	{MADE(ONE("t")), "name", "t", "{L} in its name and each.L go together"},
	{MADE(ONE("t{L}{E}")), "name", "t{L}{E}", "no other mark"},
	{MADE(ONE("b.{L}.norm")), "name", "b.{L}.norm", "of that name already"},
	{MADE(ONE("t{L}") "," ONE("t{L}")), "name", "t{L}", "of that name already"},
	{MADE(ONE("t{L}")) "," MADE(ONE("t{L}")), "name", "t{L}", "of that name already"},
	{MADE("{\"p\":\"t{L}\",\"shape\":[3]}"), "dtype", "t{L}", "'' is no dtype"},
	{MADE("{\"p\":\"t{L}\",\"dtype\":\"f32\"}"), "shape", "t{L}", "1 to 6 dims"},
	{MADE("{\"p\":\"t{L}\",\"dtype\":\"f32\",\"shape\":[0]}"), "expr", "t{L}", "from 1 on"},
	{MADE("{\"p\":\"t{L}\",\"dtype\":\"f32\",\"shape\":[268435456,268435457]}"), "shape",
	 "t{L}", "2^56"},
	{MADE("{\"p\":\"t{L}\",\"dtype\":\"f32\",\"shape\":[\"$vocab_div/three\"]}"), "axis",
	 "t{L}", "'three'"},
	{MADE("{\"p\":\"t{L}\",\"dtype\":\"f32\",\"shape\":[\"$num_hidden_layers/pp\","
	      "\"$vocab_div/all\",\"$layers\"]}"),
	 "symbol", "t{L}", "'$layers'"},
};

START_TEST(what_can_t_be_derived_is_a_finding)
{
	const struct fault *fault = &faults[_i];
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct manifest *manifest;
	struct ws_error err = {0};
	char part[2048];

	snprintf(part, sizeof(part), "\"world\":8,\"derived\":[%s]", fault->entries);
	char *text = changed("\"world\":8", part);
	ck_fails(manifest_parse(&manifest, text, strlen(text), &findings, &err), -EINVAL, err);
	const struct finding *it = findings.first;
	while (it != NULL &&
	       (strcmp(it->kind, fault->kind) != 0 || strcmp(it->where, fault->where) != 0 ||
		strstr(it->text, fault->text) == NULL))
		it = it->next;
	ck_assert_msg(it != NULL, "%s", err.text);
	mem_free(text);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

#define EMB "\"emb\",\"emb\",\"emb\","

/* What an entry with faults had read isn't the next one's. */
START_TEST(faults_in_all_entries_are_findings)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct manifest *manifest;
	struct ws_error err = {0};
	struct writer part = WRITER_INIT(1u << 20);

	for (int i = 0; i < 256; i++)
		write_format(
			&part,
			"%s{\"post\":\"turn\",\"mesh\":\"dense\",\"from\":[" EMB EMB EMB EMB EMB
			"\"emb\"]}",
			i == 0 ? "\"world\":8,\"derived\":[" : ",");
	write_bytes(&part, "]", 2);
	char *text = changed("\"world\":8", (const char *)part.bytes);
	ck_fails(manifest_parse(&manifest, text, strlen(text), &findings, &err), -EINVAL, err);
	ck_assert_uint_eq(findings.count, 256);
	mem_free(text);
	writer_release(&part);
	arena_release(&arena);
}
END_TEST

START_TEST(a_symbol_that_doesn_t_divide_is_a_finding)
{
	char *text = changed("\"vocab_div\":8", "\"vocab_div\":7");
	char *at = strstr(text, "\"world\":8"), more[8192];
	struct manifest *manifest;
	struct ws_error err = {0};

	snprintf(more, sizeof(more), "%.*s%s%s", (int)(at - text), text, DERIVED(UPS),
		 at + strlen("\"world\":8"));
	ck_fails(manifest_parse(&manifest, more, strlen(more), NULL, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "'$vocab_div/head': 7 doesn't divide by 2") != NULL, "%s",
		      err.text);
	mem_free(text);
}
END_TEST

START_TEST(a_trainer_derives_nothing)
{
	char *text =
		changed("\"rollout\",\"framework\"", "\"trainer\",\"derived\":[],\"framework\"");
	struct manifest *manifest;
	struct ws_error err = {0};

	ck_fails(manifest_parse(&manifest, text, strlen(text), NULL, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "only a rollout derives") != NULL, "%s", err.text);
	mem_free(text);
}
END_TEST

/* The embedding is on the first stage, the head on the last. */
START_TEST(a_rank_with_some_of_the_params_only_can_t_derive)
{
	char *text =
		changed("\"world\":8",
			DERIVED("{\"post\":\"sum\",\"mesh\":\"dense\",\"from\":[\"emb\",\"head\"],"
				"\"makes\":[" ONE("a") "]}"));
	struct manifest *manifest = parse(text);
	struct rank_params params;
	struct rank_steps steps;
	struct arena arena = {0};
	struct ws_error err = {0};

	ck_ok(manifest_params(manifest, 0, &arena, &params, &err), err);
	ck_fails(manifest_steps(manifest, 0, &params, &arena, &steps, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "'emb' and 'head', and rank 0") != NULL, "%s", err.text);
	manifest_free(manifest);
	arena_release(&arena);
	mem_free(text);
}
END_TEST

START_TEST(no_failed_allocation_is_overlooked)
{
	char *text = changed("\"world\":8", DERIVED(UPS "," HEADS));
	int rc = -ENOMEM;

	for (int64_t nth = 1; rc != 0; nth++) {
		struct manifest *manifest = NULL;
		struct rank_params params;
		struct rank_steps steps;
		struct arena arena = {0};
		struct ws_error err = {0};
		ck_assert_int_lt(nth, 1000);
		mem_fail_nth(nth);
		rc = manifest_parse(&manifest, text, strlen(text), NULL, &err);
		if (rc == 0)
			rc = manifest_params(manifest, 1, &arena, &params, &err);
		if (rc == 0)
			rc = manifest_steps(manifest, 1, &params, &arena, &steps, &err);
		mem_fail_nth(0);
		ck_assert_msg(rc == 0 || rc == -ENOMEM, "%d: %s", rc, err.text);
		manifest_free(manifest);
		arena_release(&arena);
		ck_assert_uint_eq(mem_live_count(), 1); /* text */
	}
	mem_free(text);
}
END_TEST

Suite *suite(void)
{
	Suite *derived = suite_create("derived");
	TCase *tc = tcase_create("derived");

	tcase_add_test(tc, a_rank_has_the_calls_of_its_own_layers);
	tcase_add_test(tc, a_staged_param_becomes_its_own_memory_by_its_step);
	tcase_add_test(tc, what_is_derived_is_part_of_the_digest);
	tcase_add_loop_test(tc, layouts_of_mla_derive_what_their_engines_absorb, 0,
			    (int)ARRAY_SIZE(mlas));
	tcase_add_test(tc, layouts_that_derive_nothing_say_so);
	tcase_add_test(tc, faults_in_all_entries_are_findings);
	tcase_add_loop_test(tc, what_can_t_be_derived_is_a_finding, 0, (int)ARRAY_SIZE(faults));
	tcase_add_test(tc, a_symbol_that_doesn_t_divide_is_a_finding);
	tcase_add_test(tc, a_trainer_derives_nothing);
	tcase_add_test(tc, a_rank_with_some_of_the_params_only_can_t_derive);
	tcase_add_test(tc, no_failed_allocation_is_overlooked);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(derived, tc);
	return derived;
}
