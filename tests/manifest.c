/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests: what a good one answers, how ranks, layers and experts share what is alike, and that
 * the digest is of the meaning.
 */
#include <errno.h>
#include <string.h>

#include "tests/manifest_text.h"

static bool names_are(const struct rank_params *params, const char *names)
{
	struct writer out = WRITER_INIT(1 << 16);
	for (uint32_t i = 0; i < params->count; i++)
		write_format(&out, "%s ", params->params[i].name);
	write_u8(&out, 0);
	bool same = strcmp((char *)out.bytes, names) == 0;
	if (!same)
		printf("%s\n", (char *)out.bytes);
	writer_release(&out);
	return same;
}

START_TEST(ranks_hold_what_their_stage_and_coordinates_say)
{
	struct manifest *manifest = parse(GOOD);
	struct arena arena = {0};
	struct rank_params params;
	struct ws_error err = {0};
	ck_ok(manifest_params(manifest, 0, &arena, &params, &err), err);
	ck_assert(names_are(&params, "b.0.norm b.1.norm b.0.up b.1.up emb "));
	/* 20 rows, padded to a multiple of 8 * 4, in 4 parts: 8 rows of 8, 2 bytes each. */
	ck_assert_uint_eq(params.params[4].bytes, 128);
	ck_assert_uint_eq(params.params[3].bytes, 8 * 8 * 2);
	ck_assert_uint_eq(params.bytes, 128 + 2 * 16 + 2 * 128);
	ck_assert_uint_eq(params.arena_bytes, 5 * 256);
	ck_assert_uint_eq(params.params[2].arena_offset, 512);
	/* Rank 2 has rows 16..24 of 20, rank 3 none. */
	const struct form *form;
	ck_ok(manifest_form(manifest, 5, 2, &form, &err), err);
	ck_assert_uint_eq(form->covered_count, 4 * 8);
	ck_ok(manifest_form(manifest, 5, 3, &form, &err), err);
	ck_assert_uint_eq(form->covered_count, 0);
	ck_assert_uint_eq(form->element_count, 64);
	ck_ok(manifest_form(manifest, 5, 4, &form, &err), err);
	ck_assert_ptr_null(form);
	/* 6 experts on 4 coordinates: 2, 2, 1, 1. */
	ck_ok(manifest_params(manifest, 5, &arena, &params, &err), err);
	ck_assert(names_are(
		&params,
		"b.2.bias b.3.bias b.4.bias b.2.e.0 b.2.e.1 b.3.e.0 b.3.e.1 b.4.e.0 b.4.e.1 "
		"b.2.norm b.3.norm b.4.norm b.2.w b.3.w b.4.w head mtp.0.h "));
	ck_assert_int_eq(params.params[0].dtype, WS_F32);
	ck_assert_int_eq(params.params[4].expert, 3);
	ck_assert_int_eq(params.params[4].slot, 1);
	ck_assert_int_eq(param_expert(manifest, 5, &params.params[12], 1), 3);
	ck_assert_int_eq(param_expert(manifest, 5, &params.params[4], -1), 3);
	ck_ok(manifest_params(manifest, 7, &arena, &params, &err), err);
	ck_assert_int_eq(rank_params_find(&params, "b.4.e.1"), -1);
	ck_assert_int_eq(rank_params_find(&params, "b.4.e.0"), 5);
	ck_assert_int_eq(params.params[5].expert, 5);
	arena_release(&arena);
	manifest_free(manifest);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(rules_say_how_params_land)
{
	struct manifest *manifest = parse(GOOD);
	ck_assert_uint_eq(manifest_rule_count(manifest), 8); /* not the one over an empty set */
	ck_assert_int_eq(manifest_side(manifest), SIDE_ROLLOUT);
	ck_assert_uint_eq(manifest_world(manifest), 8);
	ck_assert_ptr_null(manifest_quant(manifest));
	const struct param_rule *stack = manifest_rule(manifest, 4);
	ck_assert(stack->stacks_experts && stack->each_layer && !stack->each_expert);
	ck_assert_str_eq(stack->post, "shuffle");
	ck_assert(!stack->inplace && manifest_rule(manifest, 5)->inplace);
	ck_assert(manifest_rule(manifest, 1)->each_expert);
	manifest_free(manifest);
}
END_TEST

START_TEST(forms_are_shared_by_ranks_layers_and_experts)
{
	struct manifest *manifest = parse(GOOD);
	const struct form *a, *b;
	struct ws_error err = {0};
	/* b.{L}.up depends on tp alone: ranks 0 and 2 have the same. */
	ck_ok(manifest_form(manifest, 3, 0, &a, &err), err);
	ck_ok(manifest_form(manifest, 3, 2, &b, &err), err);
	ck_assert_ptr_eq(a, b);
	ck_ok(manifest_form(manifest, 3, 1, &b, &err), err);
	ck_assert_ptr_ne(a, b);
	ck_assert_uint_ne(a->id, b->id);
	/* Stacks of equal count are one form, whatever the experts are. */
	ck_ok(manifest_form(manifest, 4, 4, &a, &err), err);
	ck_ok(manifest_form(manifest, 4, 5, &b, &err), err);
	ck_assert_ptr_eq(a, b);
	ck_ok(manifest_form(manifest, 4, 6, &b, &err), err);
	ck_assert_ptr_ne(a, b);
	manifest_free(manifest);
}
END_TEST

START_TEST(a_large_layout_is_evaluated_once_per_coordinate)
{
	struct manifest_options options = {.layout = "fsdp2", .mesh = "dp=256"};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct model *model;
	ck_ok(model_builtin(&model, "kimi-k2", &err), err);
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	struct manifest *manifest;
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	uint64_t before = mem_alloc_count();
	for (uint32_t rank = 0; rank < 256; rank++) {
		for (uint32_t rule = 0; rule < manifest_rule_count(manifest); rule++) {
			const struct form *form;
			ck_ok(manifest_form(manifest, rule, rank, &form, &err), err);
			ck_assert_uint_lt(form->id, 256);
		}
	}
	uint64_t made = mem_alloc_count() - before;
	before = mem_alloc_count();
	for (uint32_t rank = 0; rank < 256; rank++) {
		for (uint32_t rule = 0; rule < manifest_rule_count(manifest); rule++) {
			const struct form *form;
			ck_ok(manifest_form(manifest, rule, rank, &form, &err), err);
		}
	}
	ck_assert_uint_eq(mem_alloc_count(), before);
	ck_assert_uint_lt(made, 256 * 23 * 4);
	manifest_free(manifest);
	model_free(model);
	writer_release(&out);
}
END_TEST

/* Sums of what no machine has would wrap, and an arena by them be small. */
START_TEST(a_rank_that_would_have_more_than_2_to_the_60_bytes_is_refused)
{
	struct writer text = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct arena arena = {0};
	struct rank_params params;
	write_format(&text, "{" HEAD ",\"tensors\":[{\"name\":\"w\",\"dtype\":\"f64\",\"shape\":"
			    "[268435456,268435456]}]," MESHES ",\"params\":[");
	for (int i = 0; i < 40; i++)
		write_format(&text, "%s{\"p\":\"p%02d\",\"mesh\":\"dense\",\"x\":[\"t\",\"w\"]}",
			     i == 0 ? "" : ",", i);
	write_format(&text, "]}%c", 0);
	struct manifest *manifest = parse((const char *)text.bytes);
	ck_fails(manifest_params(manifest, 0, &arena, &params, &err), -ENOSPC, err);
	ck_assert(strstr(err.text, "rank 0's params up to 'p02'") != NULL);
	manifest_free(manifest);
	arena_release(&arena);
	writer_release(&text);
}
END_TEST

/* ---- Digest. */

static const struct {
	const char *from, *to;
	bool same;
} digests[] = {
	{"\"world\":8", "\"world\" :\n 8", true},
	{HEAD,
	 "\"model\":\"m\",\"world\":8,\"side\":\"rollout\",\"ws_manifest\":1,\"framework\":\"f\"",
	 true},
	{"\"world\":8", "\"world\":8,\"note\":\"mine\"", true},
	{"\"head\":\"tp\"", "\"head\":[\"tp\"]", true},
	{"\"layers\":{\"all\":[0,5]", "\"layers\":{\"all\":[[0,2],[2,5]]", true},
	{"\"dtype\":\"bf16\",\"shape\":[20,8]", "\"dtype\":\"BF16\",\"shape\":[20,8]", true},
	{"\"each\":{\"L\":\"mtp\"}", "\"each\":{\"L\":[4,5]}", true},
	{"\"head\":\"tp\"", "\"head\":\"dp\"", false},
	{"\"model\":\"m\"", "\"model\":\"n\"", false},
	{"\"side\":\"rollout\"", "\"side\":\"trainer\"", false},
	{"\"post\":\"shuffle\"", "\"post\":\"other\"", false},
	{"\"shape\":[16,8]", "\"shape\":[16,9]", false},
	{"\"of\":[0,0,1,1,1]", "\"of\":[0,1,1,1,1]", false},
	{EXPERTS, "\"experts\":{\"axis\":\"ep\",\"place\":\"round_robin\"}", false},
	{SYM, SYM ",\"casts\":[\"f32:bf16\"]", false},
	{"0,\"head\"]", "1,\"head\"]", false},
	{"\"stage\":\"last\"", "\"stage\":\"first\"", false},
};

START_TEST(the_digest_is_of_the_meaning)
{
	struct manifest *good = parse(GOOD);
	char *text = changed(digests[_i].from, digests[_i].to);
	struct manifest *other = parse(text);
	ck_assert_int_eq(manifest_digest(good) == manifest_digest(other), digests[_i].same);
	manifest_free(good);
	manifest_free(other);
	mem_free(text);
}
END_TEST

/* The same lists of experts, one layer later. */
START_TEST(the_digest_knows_at_which_layer_a_map_begins)
{
#define LISTS "\"map\":[" PLAIN ",[[5,4],[3,2],[1,0],[0,0]]," PLAIN "," PLAIN "]}"
	char *from_1 = changed(EXPERTS, "\"experts\":{\"axis\":\"ep\",\"map_layers\":[1,5]," LISTS);
	char *from_2 = changed(EXPERTS, "\"experts\":{\"axis\":\"ep\",\"map_layers\":[2,6]," LISTS);
	struct manifest *one = parse(from_1), *two = parse(from_2);
	const int32_t *experts, *later;
	ck_assert_uint_eq(manifest_experts(one, 4, 0, 2, &experts), 2);
	ck_assert_uint_eq(manifest_experts(two, 4, 0, 2, &later), 2);
	ck_assert_int_ne(experts[0], later[0]);
	ck_assert_uint_ne(manifest_digest(one), manifest_digest(two));
	manifest_free(one);
	manifest_free(two);
	mem_free(from_1);
	mem_free(from_2);
}
END_TEST

/* ---- Meshes, experts, layers. */

START_TEST(order_lists_axes_slowest_first)
{
	char *text = changed("[\"tp\",2]]}", "[\"tp\",2]],\"order\":[\"pp\",\"tp\",\"dp\"]}");
	struct manifest *manifest = parse(text), *good = parse(GOOD);
	const struct form *a, *b;
	struct ws_error err = {0};
	for (uint32_t rank = 0; rank < 4; rank++) {
		ck_ok(manifest_form(good, 3, rank % 2 * 2 + rank / 2, &a, &err), err);
		ck_ok(manifest_form(manifest, 3, rank, &b, &err), err);
		ck_assert_uint_eq(a->pieces[0].offset[0], b->pieces[0].offset[0]);
		ck_assert_uint_eq(b->pieces[0].offset[0], rank / 2 * 8);
	}
	manifest_free(manifest);
	manifest_free(good);
	mem_free(text);
}
END_TEST

START_TEST(round_robin_deals_experts_in_turn)
{
	char *text = changed(EXPERTS, "\"experts\":{\"axis\":\"ep\",\"place\":\"round_robin\"}");
	struct manifest *manifest = parse(text);
	const int32_t *experts;
	ck_assert_uint_eq(manifest_experts(manifest, 4, 5, 2, &experts), 2);
	ck_assert(experts[0] == 1 && experts[1] == 5);
	ck_assert_uint_eq(manifest_experts(manifest, 4, 7, 2, &experts), 1);
	ck_assert_int_eq(experts[0], 3);
	manifest_free(manifest);
	mem_free(text);
}
END_TEST

START_TEST(a_map_places_experts_by_layer)
{
	char *text = changed(EXPERTS, MAP(PLAIN, "[[5,4],[3,2],[1,0],[0,0]]", PLAIN));
	struct manifest *manifest = parse(text);
	struct arena arena = {0};
	struct rank_params params;
	struct ws_error err = {0};
	const int32_t *experts;
	ck_assert_uint_eq(manifest_experts(manifest, 4, 7, 2, &experts), 2);
	ck_assert(experts[0] == 0 && experts[1] == 3);
	ck_assert_uint_eq(manifest_experts(manifest, 4, 7, 3, &experts), 2);
	ck_assert(experts[0] == 0 && experts[1] == 0);
	ck_ok(manifest_params(manifest, 4, &arena, &params, &err), err);
	int64_t at = rank_params_find(&params, "b.3.e.0");
	ck_assert_int_ge(at, 0);
	ck_assert_int_eq(params.params[at].expert, 5);
	arena_release(&arena);
	manifest_free(manifest);
	mem_free(text);
}
END_TEST

START_TEST(an_expert_twice_needs_names_by_slot)
{
	struct ws_error err = {0};
	struct manifest *manifest;
	char *text = changed("b.{L}.e.{e}", "b.{L}.e.{E}");
	manifest = parse(text);
	manifest_free(manifest);
	char *at = strstr(text, EXPERTS);
	struct writer out = WRITER_INIT(1 << 16);
	write_format(&out, "%.*s%s%s", (int)(at - text), text,
		     MAP(PLAIN, "[[0,1],[2,3],[4,5],[2,2]]", PLAIN), at + strlen(EXPERTS));
	ck_fails(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), -EINVAL, err);
	ck_assert(strstr(err.text, "expert 2 is twice at coordinate 3") != NULL);
	writer_release(&out);
	mem_free(text);
}
END_TEST

START_TEST(layers_with_other_shapes_become_rules_of_their_own)
{
	static const char text[] =
		"{\"ws_manifest\":1,\"side\":\"trainer\",\"framework\":\"f\",\"model\":\"m\",\"world\":2,"
		"\"tensors\":[{\"name\":\"{L}.a\",\"dtype\":\"bf16\",\"shape\":[4],\"layers\":[0,2]},"
		"{\"name\":\"{L}.a\",\"dtype\":\"bf16\",\"shape\":[8],\"layers\":[2,3]}],"
		"\"meshes\":{\"d\":{\"axes\":[[\"dp\",2]]}},\"params\":["
		"{\"p\":\"{L}.p\",\"each\":{\"L\":[0,3]},\"x\":[\"s\",[\"t\",\"{L}.a\"],0,\"dp\"]}]}";
	struct manifest *manifest = parse(text);
	struct arena arena = {0};
	struct rank_params params;
	struct ws_error err = {0};
	ck_assert_uint_eq(manifest_rule_count(manifest), 2);
	ck_ok(manifest_params(manifest, 1, &arena, &params, &err), err);
	ck_assert(names_are(&params, "0.p 1.p 2.p "));
	ck_assert_uint_eq(params.params[1].bytes, 4);
	ck_assert_uint_eq(params.params[2].bytes, 8);
	arena_release(&arena);
	manifest_free(manifest);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("manifest");
	TCase *tc = tcase_create("rules");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, ranks_hold_what_their_stage_and_coordinates_say);
	tcase_add_test(tc, rules_say_how_params_land);
	tcase_add_test(tc, forms_are_shared_by_ranks_layers_and_experts);
	tcase_add_test(tc, a_large_layout_is_evaluated_once_per_coordinate);
	tcase_add_test(tc, a_rank_that_would_have_more_than_2_to_the_60_bytes_is_refused);
	tcase_add_test(tc, the_digest_knows_at_which_layer_a_map_begins);
	tcase_add_test(tc, order_lists_axes_slowest_first);
	tcase_add_test(tc, round_robin_deals_experts_in_turn);
	tcase_add_test(tc, a_map_places_experts_by_layer);
	tcase_add_test(tc, an_expert_twice_needs_names_by_slot);
	tcase_add_test(tc, layers_with_other_shapes_become_rules_of_their_own);
	tcase_add_loop_test(tc, the_digest_is_of_the_meaning, 0, ARRAY_SIZE(digests));
	suite_add_tcase(s, tc);
	return s;
}
