/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests: what a good one answers, that every fault of a bad one becomes a finding, that
 * explicit rows mean what the rules they were made of mean, and that the digest is of the
 * meaning.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "planner/ws_manifest.h"
#include "tests/test.h"

/* A small MoE of 2 dense, 2 expert layers and an MTP one, on 2 stages of 4 ranks. */
#define HEAD \
	"\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"f\",\"model\":\"m\",\"world\":8"
#define SYM "\"sym\":{\"num_hidden_layers\":4,\"vocab_div\":8}"
#define TENSORS                                                                             \
	"\"tensors\":[{\"name\":\"embed\",\"dtype\":\"bf16\",\"shape\":[20,8]},"            \
	"{\"name\":\"l.{L}.norm\",\"dtype\":\"bf16\",\"shape\":[8],\"layers\":[0,5]},"      \
	"{\"name\":\"l.{L}.up\",\"dtype\":\"bf16\",\"shape\":[16,8],\"layers\":[0,2]},"     \
	"{\"name\":\"l.{L}.bias\",\"dtype\":\"f32\",\"shape\":[6],\"layers\":[2,5]},"       \
	"{\"name\":\"l.{L}.e.{E}.up\",\"dtype\":\"bf16\",\"shape\":[4,8],\"layers\":[2,5]," \
	"\"experts\":[0,6]},"                                                               \
	"{\"name\":\"l.{L}.h\",\"dtype\":\"bf16\",\"shape\":[8],\"layers\":[4,5]}]"
#define MESHES                                                                 \
	"\"meshes\":{\"dense\":{\"axes\":[[\"pp\",2],[\"dp\",2],[\"tp\",2]]}," \
	"\"expert\":{\"axes\":[[\"pp\",2],[\"ep\",4]]}}"
#define AXES "\"axes\":{\"all\":[\"dp\",\"tp\"],\"one\":1,\"head\":\"tp\"}"
#define SETS \
	"\"layers\":{\"all\":[0,5],\"dense\":[0,2],\"moe\":[[2,4],[4,5]],\"mtp\":[4,5],\"no\":[]}"
#define STAGES	"\"stages\":{\"axis\":\"pp\",\"of\":[0,0,1,1,1]}"
#define EXPERTS "\"experts\":{\"axis\":\"ep\"}"
#define PARAMS                                                                                   \
	"\"params\":["                                                                           \
	"{\"p\":\"emb\",\"mesh\":\"dense\",\"stage\":\"first\","                                 \
	"\"x\":[\"s\",[\"p\",[\"t\",\"embed\"],0,\"$vocab_div*all\"],0,\"all\"]},"               \
	"{\"p\":\"head\",\"mesh\":\"dense\",\"stage\":\"last\",\"x\":[\"t\",\"embed\"]},"        \
	"{\"p\":\"b.{L}.norm\",\"mesh\":\"dense\",\"each\":{\"L\":\"all\"},"                     \
	"\"x\":[\"t\",\"l.{L}.norm\"]},"                                                         \
	"{\"p\":\"b.{L}.up\",\"mesh\":\"dense\",\"each\":{\"L\":\"dense\"},"                     \
	"\"x\":[\"s\",[\"t\",\"l.{L}.up\"],0,\"head\"]},"                                        \
	"{\"p\":\"b.{L}.bias\",\"mesh\":\"dense\",\"each\":{\"L\":\"moe\"},\"kind\":\"buffer\"," \
	"\"x\":[\"t\",\"l.{L}.bias\"]},"                                                         \
	"{\"p\":\"b.{L}.w\",\"mesh\":\"expert\",\"each\":{\"L\":\"moe\"},\"post\":\"shuffle\","  \
	"\"x\":[\"k\",\"E\",[\"t\",\"l.{L}.e.{E}.up\"]]},"                                       \
	"{\"p\":\"b.{L}.e.{e}\",\"mesh\":\"expert\",\"each\":{\"L\":\"moe\",\"E\":\"ep\"},"      \
	"\"x\":[\"t\",\"l.{L}.e.{E}.up\"]},"                                                     \
	"{\"p\":\"mtp.{L-nl}.h\",\"mesh\":\"dense\",\"each\":{\"L\":\"mtp\"},"                   \
	"\"model\":\"draft\",\"x\":[\"t\",\"l.{L}.h\"]},"                                        \
	"{\"p\":\"nowhere.{L}\",\"mesh\":\"dense\",\"each\":{\"L\":\"no\"},"                     \
	"\"x\":[\"t\",\"not there\"]}]"
#define GOOD                                                                             \
	"{" HEAD "," SYM "," TENSORS "," MESHES "," AXES "," SETS "," STAGES "," EXPERTS \
	"," PARAMS "}"

static struct manifest *parse(const char *text)
{
	struct ws_error err = {0};
	struct manifest *manifest;
	ck_ok(manifest_parse(&manifest, text, strlen(text), NULL, &err), err);
	return manifest;
}

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
	ck_assert(names_are(&params, "emb b.0.norm b.1.norm b.0.up b.1.up "));
	/* 20 rows, padded to a multiple of 8 * 4, in 4 parts: 8 rows of 8, 2 bytes each. */
	ck_assert_uint_eq(params.params[0].bytes, 128);
	ck_assert_uint_eq(params.params[3].bytes, 8 * 8 * 2);
	ck_assert_uint_eq(params.bytes, 128 + 2 * 16 + 2 * 128);
	ck_assert_uint_eq(params.arena_bytes, 5 * 256);
	ck_assert_uint_eq(params.params[2].arena_offset, 512);
	/* Rank 2 has rows 16..24 of 20, rank 3 none. */
	const struct form *form;
	ck_ok(manifest_form(manifest, 0, 2, &form, &err), err);
	ck_assert_uint_eq(form->covered_count, 4 * 8);
	ck_ok(manifest_form(manifest, 0, 3, &form, &err), err);
	ck_assert_uint_eq(form->covered_count, 0);
	ck_assert_uint_eq(form->element_count, 64);
	ck_ok(manifest_form(manifest, 0, 4, &form, &err), err);
	ck_assert_ptr_null(form);
	/* 6 experts on 4 coordinates: 2, 2, 1, 1. */
	ck_ok(manifest_params(manifest, 5, &arena, &params, &err), err);
	ck_assert(names_are(&params,
			    "head b.2.norm b.3.norm b.4.norm b.2.bias b.3.bias b.4.bias "
			    "b.2.w b.3.w b.4.w b.2.e.0 b.2.e.1 b.3.e.0 b.3.e.1 b.4.e.0 b.4.e.1 "
			    "mtp.0.h "));
	ck_assert_int_eq(params.params[4].dtype, WS_F32);
	ck_assert_int_eq(params.params[11].expert, 3);
	ck_assert_int_eq(params.params[11].slot, 1);
	ck_assert_int_eq(param_expert(manifest, 5, &params.params[7], 1), 3);
	ck_assert_int_eq(param_expert(manifest, 5, &params.params[11], -1), 3);
	ck_ok(manifest_params(manifest, 7, &arena, &params, &err), err);
	ck_assert_int_eq(rank_params_find(&params, "b.4.e.1"), -1);
	ck_assert_int_eq(rank_params_find(&params, "b.4.e.0"), 12);
	ck_assert_int_eq(params.params[12].expert, 5);
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
	const struct param_rule *stack = manifest_rule(manifest, 5);
	ck_assert(stack->stacks_experts && stack->each_layer && !stack->each_expert);
	ck_assert_str_eq(stack->post, "shuffle");
	ck_assert(!stack->inplace && manifest_rule(manifest, 0)->inplace);
	ck_assert(manifest_rule(manifest, 6)->each_expert);
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
	ck_ok(manifest_form(manifest, 5, 4, &a, &err), err);
	ck_ok(manifest_form(manifest, 5, 5, &b, &err), err);
	ck_assert_ptr_eq(a, b);
	ck_ok(manifest_form(manifest, 5, 6, &b, &err), err);
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

/* ---- Faults. */

static const struct {
	const char *from, *to; /* a part of GOOD, and what stands there instead */
	const char *kind, *where, *text;
} faults[] = {
	{"\"ws_manifest\":1", "\"ws_manifest\":2", "version", "ws_manifest", "version 1"},
	{"\"side\":\"rollout\"", "\"side\":\"both\"", "key", "side", "\"trainer\" or \"rollout\""},
	{"\"world\":8", "\"world\":0", "key", "world", "1 to 65536"},
	{"\"world\":8", "\"world\":8,\"wrold\":8", "key", "manifest", "unknown key 'wrold'"},
	{"\"world\":8", "\"world\":16", "mesh", "dense", "make 8 ranks, and the world has 16"},
	{"\"model\":\"m\",", "", "key", "manifest", "\"framework\" and \"model\""},
	{"\"name\":\"embed\",\"dtype\":\"bf16\"", "\"name\":\"embed\",\"dtype\":\"b16\"", "dtype",
	 "embed", "'b16' is no dtype"},
	{"\"shape\":[20,8]", "\"shape\":[20,0]", "shape", "embed", "integers from 1 on"},
	{"\"shape\":[20,8]", "\"shape\":[2,2,2,2,2]", "shape", "embed", "1 to 4 dims"},
	{"\"shape\":[20,8]", "\"shape\":[268435456,268435457]", "shape", "embed", "2^56"},
	{"\"shape\":[8],\"layers\":[0,5]}", "\"shape\":[8]}", "tensor", "l.{L}.norm",
	 "go together"},
	{"\"name\":\"l.{L}.up\"", "\"name\":\"l.{L}.norm\"", "tensor", "l.{L}.norm",
	 "listed twice"},
	{"\"name\":\"l.{L}.up\"", "\"name\":\"l.{L}.{K}up\"", "tensor", "l.{L}.{K}up",
	 "{L} or {E}"},
	{"[\"tp\",2]]}", "[\"dp\",2]]}", "mesh", "dense", "'dp' is listed twice"},
	{"\"one\":1", "\"one\":2", "axis", "one", "must be 1"},
	{"\"head\":\"tp\"", "\"head\":\"cp\"", "axis", "head", "'cp', which no mesh declares"},
	{"\"one\":1", "\"tp\":1", "axis", "tp", "axis of a mesh and bound"},
	{"\"dense\":[0,2]", "\"dense\":[2,0]", "range", "dense", "[first, behind the last]"},
	{"\"moe\":[[2,4],[4,5]]", "\"moe\":[[2,4],[3,5]]", "layers", "moe",
	 "ascend without overlap"},
	{"\"of\":[0,0,1,1,1]", "\"of\":[0,0,1,1,2]", "stage", "stages", "layer 4"},
	{"\"of\":[0,0,1,1,1]", "\"of\":[0,0,1,1]", "stage", "b.{L}.norm", "layer 4 no stage"},
	{"\"axis\":\"pp\"", "\"axis\":\"xp\"", "stage", "xp", "no mesh declares"},
	{"[\"pp\",2],[\"ep\",4]", "[\"ep\",4],[\"pp\",2]", "stage", "pp", "different coordinates"},
	{"\"stage\":\"last\"", "\"stage\":\"middle\"", "stage", "head", "\"first\", \"last\""},
	{"\"L\":\"mtp\"", "\"L\":\"mtp2\"", "layers", "mtp.{L-nl}.h", "no set 'mtp2'"},
	{"\"E\":\"ep\"", "\"E\":\"tp\"", "experts", "b.{L}.e.{e}", "must be 'ep'"},
	{"b.{L}.e.{e}", "b.{L}.e", "name", "b.{L}.e", "needs {E} or {e}"},
	{"\"p\":\"b.{L}.up\"", "\"p\":\"b.0.up\"", "name", "b.0.up", "rank 0 has two params"},
	{"\"p\":\"b.{L}.up\"", "\"p\":\"b.{L}.norm\"", "name", "b.0.norm", "rank 0 has two params"},
	{"\"p\":\"b.{L}.up\"", "\"p\":\"b.1.norm{L}\"", "", "", ""},
	{"\"p\":\"emb\"", "\"p\":\"emb{E}\"", "name", "emb{E}", "needs its each"},
	{"\"p\":\"emb\"", "\"p\":\"emb{x}\"", "name", "emb{x}", "a brace must begin"},
	{"\"p\":\"emb\",", "", "key", "params[0]", "\"p\", its name, is missing"},
	{"\"p\":\"emb\",\"mesh\":\"dense\"", "\"p\":\"emb\",\"mesh\":\"sparse\"", "mesh", "emb",
	 "no 'sparse'"},
	{"\"p\":\"emb\",\"mesh\":\"dense\"", "\"p\":\"emb\"", "mesh", "emb", "it needs \"mesh\""},
	{"\"kind\":\"buffer\"", "\"knid\":\"buffer\"", "key", "params[4]", "unknown key 'knid'"},
	{"\"kind\":\"buffer\"", "\"kind\":\"cache\"", "key", "b.{L}.bias",
	 "\"param\" or \"buffer\""},
	{"\"kind\":\"buffer\"", "\"q\":\"fp8\"", "quant", "b.{L}.bias", "\"schemes\" has no 'fp8'"},
	{"\"kind\":\"buffer\"", "\"dtype\":\"f99\"", "dtype", "b.{L}.bias", "'f99' is no dtype"},
	{"[\"t\",\"l.{L}.bias\"]", "[\"t\",\"l.{L}.up\"]", "tensor", "b.{L}.bias",
	 "no 'l.{L}.up' at layer 2"},
	{"[\"t\",\"l.{L}.bias\"]", "[\"t\",\"l.{L}.e.{E}.up\"]", "experts", "b.{L}.bias",
	 "needs each.E or a `k`"},
	{"0,\"head\"]", "0,\"ep\"]", "axis", "b.{L}.up", "mesh 'dense' declares no axis 'ep'"},
	{"0,\"head\"]", "1,\"all\"]", "", "", ""},
	{"\"shape\":[16,8]", "\"shape\":[15,8]", "rule", "b.{L}.up",
	 "15 rows of dim 0 don't divide by 2"},
	{"\"$vocab_div*all\"", "\"$vocab*all\"", "symbol", "emb", "'$vocab'"},
	{"\"$vocab_div*all\"", "\"$vocab_div*any\"", "axis", "emb", "no axis 'any'"},
	{"\"num_hidden_layers\":4,", "", "symbol", "mtp.{L-nl}.h", "num_hidden_layers"},
	{EXPERTS, "\"experts\":{\"axis\":\"ep\",\"place\":\"random\"}", "experts", "experts",
	 "linear"},
	{EXPERTS, "\"experts\":{\"axis\":\"pp\"}", "experts", "b.{L}.e.{e}", "each.E must be 'pp'"},
};

/* GOOD with one part in place of another. */
static char *changed(const char *from, const char *to)
{
	const char *at = strstr(GOOD, from);
	ck_assert_ptr_nonnull(at);
	size_t room = strlen(GOOD) + strlen(to) + 1;
	char *text = mem_alloc(room);
	snprintf(text, room, "%.*s%s%s", (int)(at - GOOD), GOOD, to, at + strlen(from));
	return text;
}

static const struct finding *find(const struct findings *findings, const char *kind,
				  const char *where, const char *text)
{
	const struct finding *it = findings->first;
	while (it != NULL && (strcmp(it->kind, kind) != 0 || strcmp(it->where, where) != 0 ||
			      strstr(it->text, text) == NULL))
		it = it->next;
	return it;
}

START_TEST(every_fault_is_a_finding)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	struct manifest *manifest;
	char *text = changed(faults[_i].from, faults[_i].to);
	int rc = manifest_parse(&manifest, text, strlen(text), &findings, &err);
	for (const struct finding *it = findings.first; it != NULL; it = it->next)
		printf("%d: %s %s: %s\n", _i, it->kind, it->where, it->text);
	if (faults[_i].kind[0] == '\0') { /* looks odd, is right */
		ck_assert_int_eq(rc, 0);
	} else {
		ck_assert_int_eq(rc, -EINVAL);
		ck_assert_ptr_null(manifest);
		ck_assert_ptr_nonnull(
			find(&findings, faults[_i].kind, faults[_i].where, faults[_i].text));
		ck_assert_str_ne(err.text, "");
	}
	manifest_free(manifest);
	mem_free(text);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(all_faults_are_found_at_once)
{
	static const char text[] =
		"{\"ws_manifest\":1,\"side\":\"trainer\",\"framework\":\"f\",\"model\":\"m\",\"world\":3,"
		"\"tensors\":[{\"name\":\"a\",\"dtype\":\"bf16\",\"shape\":[4]}],\"colour\":\"red\","
		"\"meshes\":{\"d\":{\"axes\":[[\"dp\",3]]}},\"params\":["
		"{\"p\":\"a\",\"x\":[\"s\",[\"t\",\"a\"],0,\"dp\"]},"
		"{\"p\":\"b\",\"x\":[\"t\",\"b\"]},{\"p\":\"c\",\"x\":[\"s\",[\"t\",\"a\"],0,\"tp\"]}]}";
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	struct manifest *manifest;
	ck_fails(manifest_parse(&manifest, text, sizeof(text) - 1, &findings, &err), -EINVAL, err);
	ck_assert_uint_eq(findings.count, 4);
	ck_assert_ptr_nonnull(find(&findings, "key", "manifest", "'colour'"));
	ck_assert_ptr_nonnull(find(&findings, "rule", "a", "4 rows of dim 0 don't divide by 3"));
	ck_assert_ptr_nonnull(find(&findings, "tensor", "b", "no 'b'"));
	ck_assert_ptr_nonnull(find(&findings, "axis", "c", "no axis 'tp'"));
	arena_release(&arena);
}
END_TEST

START_TEST(what_is_no_json_is_refused_with_its_place)
{
	struct ws_error err = {0};
	struct manifest *manifest;
	ck_fails(manifest_parse(&manifest, "{\"a\":1,}", 8, NULL, &err), -EBADMSG, err);
	ck_assert(strstr(err.text, "line 1") != NULL);
	ck_fails(manifest_parse(&manifest, "[]", 2, NULL, &err), -EINVAL, err);
	ck_fails(manifest_parse(&manifest, "", 0, NULL, &err), -EBADMSG, err);
	ck_fails(manifest_parse(&manifest, "{}", 2, NULL, &err), -EINVAL, err);
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
	ck_assert_uint_eq(manifest_experts(manifest, 5, 5, 2, &experts), 2);
	ck_assert(experts[0] == 1 && experts[1] == 5);
	ck_assert_uint_eq(manifest_experts(manifest, 5, 7, 2, &experts), 1);
	ck_assert_int_eq(experts[0], 3);
	manifest_free(manifest);
	mem_free(text);
}
END_TEST

#define MAP(l2, l3, l4) \
	"\"experts\":{\"axis\":\"ep\",\"map_layers\":[2,5],\"map\":[" l2 "," l3 "," l4 "]}"
#define PLAIN "[[0,1],[2,3],[4,5],[0,3]]"

START_TEST(a_map_places_experts_by_layer)
{
	char *text = changed(EXPERTS, MAP(PLAIN, "[[5,4],[3,2],[1,0],[0,0]]", PLAIN));
	struct manifest *manifest = parse(text);
	struct arena arena = {0};
	struct rank_params params;
	struct ws_error err = {0};
	const int32_t *experts;
	ck_assert_uint_eq(manifest_experts(manifest, 5, 7, 2, &experts), 2);
	ck_assert(experts[0] == 0 && experts[1] == 3);
	ck_assert_uint_eq(manifest_experts(manifest, 5, 7, 3, &experts), 2);
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

static const struct {
	const char *map, *text;
} bad_maps[] = {
	{MAP(PLAIN, "[[0,1],[2,3],[4,4],[0,3]]", PLAIN), "puts expert 5 of layer 3 nowhere"},
	{MAP(PLAIN, "[[0,1],[2,3],[4,5],[0,6]]", PLAIN), "has expert 6 at layer 3"},
	{MAP(PLAIN, "[[0,1],[2,3],[4,5],[3]]", PLAIN), "as many experts as at the first layer"},
	{MAP(PLAIN, "[[0,1],[2,3],[4,5]]", PLAIN), "expected 4 lists"},
	{MAP(PLAIN, "[[0,1],[2,3],[4,5],[0,-3]]", PLAIN), "integer from 0 on"},
	{"\"experts\":{\"axis\":\"ep\",\"map_layers\":[2,4],\"map\":[" PLAIN "," PLAIN "]}",
	 "has no layer 4"},
	{"\"experts\":{\"axis\":\"ep\",\"map_layers\":[2,5],\"map\":[" PLAIN "]}", "has 1 layers"},
	{"\"experts\":{\"axis\":\"ep\",\"map\":[" PLAIN "]}", "\"map_layers\""},
};

START_TEST(a_map_that_cannot_be_is_refused)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	struct manifest *manifest;
	char *text = changed(EXPERTS, bad_maps[_i].map);
	ck_fails(manifest_parse(&manifest, text, strlen(text), &findings, &err), -EINVAL, err);
	bool said = false;
	for (const struct finding *it = findings.first; it != NULL; it = it->next)
		said = said || strstr(it->text, bad_maps[_i].text) != NULL;
	ck_assert_msg(said, "%s", err.text);
	arena_release(&arena);
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

/* ---- Rows. */

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

#define ROWS(rows)                                                          \
	"{" HEAD ","                                                        \
	"\"tensors\":[{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":[8,8]}," \
	"{\"name\":\"layers.{L}.v\",\"dtype\":\"bf16\",\"shape\":[8],\"layers\":[0,4]}]," rows "}"

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

/* ---- Layouts and meshes. */

static const struct {
	const char *model, *layout, *mesh;
	const char *text; /* what the finding says */
} bad_meshes[] = {
	{"llama-3-70b", "fsdp3", "dp=2", "there are fsdp2, megatron, vllm, sglang"},
	{"llama-3-70b", "fsdp2", "dp", "a good one is"},
	{"llama-3-70b", "fsdp2", "dp=0", "a number from 1 to 65536"},
	{"llama-3-70b", "fsdp2", "dp=2,dp=2", "stands twice"},
	{"llama-3-70b", "fsdp2", "tp=2", "it needs dp="},
	{"llama-3-70b", "fsdp2", "dp=2,ep=2", "no mesh key 'ep'"},
	{"llama-3-70b", "fsdp2", "dp=65536,tp=2", "more than 65536 ranks"},
	{"llama-3-70b", "vllm", "tp=3", "don't divide by 3"},
	{"llama-3-70b", "vllm", "tp=128", "64 attention heads don't divide by 128"},
	{"qwen3-30b-a3b", "vllm", "tp=2,ep=3", "ep=3 doesn't divide the 2 ranks"},
	{"llama-3-70b", "vllm", "tp=2,pp=81", "more than 80 layers"},
	{"deepseek-v3", "megatron", "tp=2,pp=2", "61 layers don't divide by 2 stages"},
	{"deepseek-v3", "megatron", "tp=2,pp=2,stages=30:30", "has 60 layers, the model 61"},
	{"deepseek-v3", "megatron", "tp=2,pp=2,stages=30", "2 numbers like 8:8:5"},
	{"deepseek-v3", "megatron", "tp=1,dp=3,ep=2", "doesn't divide the 3 ranks"},
	{"deepseek-v3", "megatron", "tp=1,order=dp-tp", "tp-cp-ep-dp-pp"},
	{"deepseek-v3", "sglang", "tp=4,dp=3", "must each divide tp=4"},
	{"deepseek-v3", "sglang", "tp=4,moe_dense_tp=2", "1 or tp"},
	{"gpt-oss-120b", "vllm", "tp=1", "no param of layout 'vllm' reads it"},
};

START_TEST(a_mesh_that_cannot_be_is_said)
{
	struct manifest_options options = {.layout = bad_meshes[_i].layout,
					   .mesh = bad_meshes[_i].mesh};
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct model *model;
	bool said = false;
	ck_ok(model_builtin(&model, bad_meshes[_i].model, &err), err);
	ck_fails(manifest_make(model, &options, &out, &findings, &err), -EINVAL, err);
	for (const struct finding *it = findings.first; it != NULL; it = it->next)
		said = said || strstr(it->text, bad_meshes[_i].text) != NULL;
	ck_assert_msg(said, "%s", err.text);
	model_free(model);
	writer_release(&out);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static const struct {
	const char *model, *layout, *mesh;
	uint32_t world;
	const char *stages; /* layers of each stage */
} stage_cases[] = {
	{"kimi-k2", "megatron", "tp=8,cp=4,pp=8,ep=32,etp=1,last=5", 256, "8 8 8 8 8 8 8 5 "},
	{"kimi-k2", "vllm", "pp=4", 4, "15 15 16 15 "},
	{"kimi-k2", "vllm", "pp=3", 3, "20 21 20 "},
	{"llama-3-70b", "vllm", "pp=6", 6, "13 13 13 14 14 13 "},
	{"kimi-k2", "sglang", "pp=3", 3, "20 20 21 "},
	{"kimi-k2", "vllm", "pp=3,stages=1:30:30", 3, "1 30 30 "},
	{"glm-4.5", "megatron", "pp=4,tp=2", 8, "23 23 23 24 "}, /* and the MTP layer */
	{"qwen3-32b", "megatron", "pp=2,vpp=2,tp=1", 2, "32 32 "},
	{"deepseek-v3", "megatron", "tp=2,ep=4,pp=1", 4 * 2, "62 "},
};

START_TEST(stages_are_those_of_the_framework)
{
	struct manifest_options options = {.layout = stage_cases[_i].layout,
					   .mesh = stage_cases[_i].mesh};
	struct writer out = WRITER_INIT(1 << 20), got = WRITER_INIT(1 << 12);
	struct ws_error err = {0};
	struct model *model;
	struct manifest *manifest;
	ck_ok(model_builtin(&model, stage_cases[_i].model, &err), err);
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	ck_assert_uint_eq(manifest_world(manifest), stage_cases[_i].world);
	uint32_t rule = 0, last = 0;
	while (strstr(manifest_rule(manifest, rule)->name, "o_proj") == NULL &&
	       strstr(manifest_rule(manifest, rule)->name, "linear_proj") == NULL)
		rule++;
	/* Stages are the slowest axis here: a change of first layer is the next stage. */
	for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
		const int32_t *layers;
		uint32_t count = manifest_layers(manifest, rule, rank, &layers);
		if (rank > 0 && (uint32_t)layers[0] == last)
			continue;
		last = (uint32_t)layers[0];
		write_format(&got, "%u ", count);
	}
	write_u8(&got, 0);
	ck_assert_str_eq((char *)got.bytes, stage_cases[_i].stages);
	manifest_free(manifest);
	model_free(model);
	writer_release(&out);
	writer_release(&got);
}
END_TEST

START_TEST(virtual_stages_interleave)
{
	struct manifest_options options = {.layout = "megatron", .mesh = "pp=2,vpp=2"};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct model *model;
	struct manifest *manifest;
	const int32_t *layers;
	ck_ok(model_builtin(&model, "qwen3-32b", &err), err);
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	uint32_t rule = 0;
	while (!manifest_rule(manifest, rule)->each_layer)
		rule++;
	/* Chunk v of stage p begins at v * 32 + p * 16. */
	ck_assert_uint_eq(manifest_layers(manifest, rule, 1, &layers), 32);
	ck_assert_int_eq(layers[0], 16);
	ck_assert_int_eq(layers[16], 48);
	manifest_free(manifest);
	model_free(model);
	writer_release(&out);
}
END_TEST

START_TEST(options_change_dtype_casts_and_quantization)
{
	struct manifest_options trainer = {.layout = "fsdp2", .mesh = "dp=2", .dtype = "f32"};
	struct manifest_options rollout = {.side = SIDE_ROLLOUT,
					   .layout = "vllm",
					   .mesh = "tp=2",
					   .casts = "f32:bf16,bf16:f16",
					   .quant = "fp8-block"};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct model *model;
	struct manifest *manifest;
	ck_ok(model_builtin(&model, "glm-4.5", &err), err);
	ck_ok(manifest_make(model, &trainer, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++)
		ck_assert_int_eq(manifest_rule(manifest, i)->dtype, WS_F32);
	ck_assert(!manifest_casts(manifest, WS_F32, WS_BF16));
	manifest_free(manifest);
	writer_reset(&out);
	ck_ok(manifest_make(model, &rollout, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	ck_assert(manifest_casts(manifest, WS_F32, WS_BF16) &&
		  manifest_casts(manifest, WS_BF16, WS_F16));
	ck_assert(!manifest_casts(manifest, WS_BF16, WS_F32));
	ck_assert_str_eq(manifest_quant(manifest), "fp8-block");
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++) {
		const struct param_rule *rule = manifest_rule(manifest, i);
		bool quantized = rule->quant != NULL;
		ck_assert_int_eq(quantized, rule->dtype == WS_F8_E4M3);
		if (strstr(rule->name, "w13") != NULL || strstr(rule->name, "o_proj") != NULL)
			ck_assert(quantized);
		if (strstr(rule->name, "mlp.gate.") != NULL || strstr(rule->name, "norm") != NULL ||
		    strstr(rule->name, "embed") != NULL || strstr(rule->name, "bias") != NULL)
			ck_assert(!quantized);
	}
	manifest_free(manifest);
	model_free(model);
	writer_release(&out);
}
END_TEST

START_TEST(tied_embeddings_are_read_from_the_embedding)
{
	static const struct tensor_listing list[] = {
		{"model.embed_tokens.weight", WS_BF16, 2, {1024, 256}},
		{"model.norm.weight", WS_BF16, 1, {256}},
		{"model.layers.0.self_attn.q_proj.weight", WS_BF16, 2, {256, 256}},
		{"model.layers.0.self_attn.k_proj.weight", WS_BF16, 2, {256, 256}},
		{"model.layers.0.self_attn.v_proj.weight", WS_BF16, 2, {256, 256}},
	};
	static const char config[] = "{\"num_hidden_layers\":1,\"num_attention_heads\":2,"
				     "\"hidden_size\":256,\"tie_word_embeddings\":true}";
	static const char *const layouts[] = {"vllm", "sglang", "megatron", "fsdp2"};
	for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
		struct manifest_options options = {.layout = layouts[i],
						   .mesh = i == 3 ? "dp=2" : "tp=2"};
		struct writer out = WRITER_INIT(1 << 20);
		struct ws_error err = {0};
		struct model *model;
		struct manifest *manifest;
		uint32_t heads = 0;
		ck_ok(model_from_tensors(&model, "m", config, sizeof(config) - 1, list,
					 ARRAY_SIZE(list), &err),
		      err);
		ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
		ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
		for (uint32_t r = 0; r < manifest_rule_count(manifest); r++)
			heads += strcmp(manifest_rule(manifest, r)->name, "lm_head.weight") == 0 ||
				 strcmp(manifest_rule(manifest, r)->name, "output_layer.weight") ==
					 0;
		ck_assert_uint_eq(heads, i < 2 ? 1 : 0);
		manifest_free(manifest);
		model_free(model);
		writer_release(&out);
	}
}
END_TEST

/* ---- Memory, and the public call. */

static uint64_t work(struct ws_error *err)
{
	static const char rows[] =
		ROWS("\"rows\":[{\"t\":\"layers.0.v\",\"rank\":0,\"goff\":[0],\"lshape\":[8]},"
		     "{\"t\":\"layers.1.v\",\"rank\":0,\"goff\":[0],\"lshape\":[8]}]");
	struct manifest *manifest = NULL;
	struct model *model = NULL, *scaled = NULL;
	struct manifest_options options = {.layout = "vllm", .mesh = "tp=2,ep=2"};
	struct writer out = WRITER_INIT(1 << 20);
	struct arena arena = {0};
	struct rank_params params;
	int rc = manifest_parse(&manifest, GOOD, strlen(GOOD), NULL, err);
	if (rc == 0)
		rc = manifest_params(manifest, 5, &arena, &params, err);
	manifest_free(manifest);
	manifest = NULL;
	if (rc == 0)
		rc = manifest_parse(&manifest, rows, sizeof(rows) - 1, NULL, err);
	manifest_free(manifest);
	if (rc == 0)
		rc = model_builtin(&model, "qwen3-30b-a3b", err);
	if (rc == 0)
		rc = model_scale(&scaled, model, 1, 8192, err);
	if (rc == 0)
		rc = manifest_make(scaled, &options, &out, NULL, err);
	model_free(model);
	model_free(scaled);
	arena_release(&arena);
	writer_release(&out);
	ck_assert(rc == 0 || rc == -ENOMEM);
	return (uint64_t)-rc;
}

START_TEST(no_failed_allocation_leaks_or_is_overlooked)
{
	struct ws_error err = {0};
	uint64_t before = mem_alloc_count();
	ck_assert_uint_eq(work(&err), 0);
	uint64_t count = mem_alloc_count() - before;
	for (uint64_t n = 0; n < count; n++) {
		err = (struct ws_error){0};
		mem_fail_nth((int64_t)n);
		ck_assert_uint_eq(work(&err), ENOMEM);
		mem_fail_nth(-1);
		ck_assert_msg(err.text[0] != '\0', "allocation %" PRIu64 " of %" PRIu64, n, count);
		ck_assert_uint_eq(mem_live_count(), 0);
	}
	ck_assert_uint_gt(count, 50);
}
END_TEST

START_TEST(the_public_check_tells_findings_digest_and_bytes)
{
	struct ws_error err = {0};
	struct ws_manifest *manifest;
	const char *kind, *where, *text;
	uint32_t params;
	uint64_t bytes;
	ck_ok(ws_manifest_check(&manifest, GOOD, strlen(GOOD), &err), err);
	ck_assert_uint_eq(ws_manifest_finding_count(manifest), 0);
	ck_assert_uint_eq(ws_manifest_world(manifest), 8);
	struct manifest *same = parse(GOOD);
	ck_assert_uint_eq(ws_manifest_digest(manifest), manifest_digest(same));
	manifest_free(same);
	ck_ok(ws_manifest_rank(manifest, 0, &params, &bytes, &err), err);
	ck_assert_uint_eq(params, 5);
	ck_assert_uint_eq(bytes, 128 + 2 * 16 + 2 * 128);
	ck_fails(ws_manifest_rank(manifest, 8, NULL, NULL, &err), -EINVAL, err);
	ws_manifest_free(manifest);
	char *bad = changed("\"kind\":\"buffer\"", "\"knid\":\"buffer\"");
	ck_ok(ws_manifest_check(&manifest, bad, strlen(bad), &err), err);
	ck_assert_uint_eq(ws_manifest_finding_count(manifest), 1);
	ck_assert(ws_manifest_finding(manifest, 0, &kind, &where, &text));
	ck_assert_str_eq(kind, "key");
	ck_assert(!ws_manifest_finding(manifest, 1, &kind, &where, &text));
	ck_assert_uint_eq(ws_manifest_digest(manifest), 0);
	ck_fails(ws_manifest_rank(manifest, 0, NULL, NULL, &err), -EINVAL, err);
	ws_manifest_free(manifest);
	ws_manifest_free(NULL);
	mem_free(bad);
	ck_fails(ws_manifest_check(&manifest, "{", 1, &err), -EBADMSG, err);
	ck_assert_ptr_null(manifest);
	ck_assert_uint_eq(mem_live_count(), 0);
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
	tcase_add_test(tc, order_lists_axes_slowest_first);
	tcase_add_test(tc, round_robin_deals_experts_in_turn);
	tcase_add_test(tc, a_map_places_experts_by_layer);
	tcase_add_test(tc, an_expert_twice_needs_names_by_slot);
	tcase_add_test(tc, layers_with_other_shapes_become_rules_of_their_own);
	tcase_add_loop_test(tc, the_digest_is_of_the_meaning, 0, ARRAY_SIZE(digests));
	suite_add_tcase(s, tc);
	tc = tcase_create("faults");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, every_fault_is_a_finding, 0, ARRAY_SIZE(faults));
	tcase_add_test(tc, all_faults_are_found_at_once);
	tcase_add_test(tc, what_is_no_json_is_refused_with_its_place);
	tcase_add_loop_test(tc, a_map_that_cannot_be_is_refused, 0, ARRAY_SIZE(bad_maps));
	tcase_add_test(tc, no_failed_allocation_leaks_or_is_overlooked);
	tcase_add_test(tc, the_public_check_tells_findings_digest_and_bytes);
	suite_add_tcase(s, tc);
	tc = tcase_create("rows");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, rows_mean_what_the_rules_meant, 0, ARRAY_SIZE(row_sources));
	tcase_add_loop_test(tc, rows_are_checked_exactly, 0, ARRAY_SIZE(row_cases));
	tcase_add_test(tc, rows_stand_beside_params);
	suite_add_tcase(s, tc);
	tc = tcase_create("layouts");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_mesh_that_cannot_be_is_said, 0, ARRAY_SIZE(bad_meshes));
	tcase_add_loop_test(tc, stages_are_those_of_the_framework, 0, ARRAY_SIZE(stage_cases));
	tcase_add_test(tc, virtual_stages_interleave);
	tcase_add_test(tc, options_change_dtype_casts_and_quantization);
	tcase_add_test(tc, tied_embeddings_are_read_from_the_embedding);
	suite_add_tcase(s, tc);
	return s;
}
