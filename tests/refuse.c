/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refusal before harm: one run lists every fault of two manifests, each with its cause, and a
 * manifest that contradicts itself is refused while it is read.
 */
#include <errno.h>
#include <string.h>

#include "planner/planner.h"
#include "planner/ws_plan.h"
#include "tests/test.h"

#define MANIFEST(side, more, tensors, params)                                                  \
	"{\"ws_manifest\":1,\"side\":\"" side "\",\"framework\":\"hand\",\"model\":\"hand\""   \
	",\"world\":1,\"meshes\":{\"m\":{\"axes\":[[\"n\",1]]}}," more "\"tensors\":[" tensors \
	"],\"params\":[" params "]}"
#define TENSOR(name, dtype, shape) \
	"{\"name\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":" shape "}"
#define LAYERS(name, shape)                                                           \
	"{\"name\":\"model.layers.{L}." name "\",\"dtype\":\"bf16\",\"shape\":" shape \
	",\"layers\":[0,2]}"
#define WHOLE(name, more) "{\"p\":\"" name "\"," more "\"x\":[\"t\",\"" name "\"]}"
#define EACH(name)                        \
	"{\"p\":\"model.layers.{L}." name \
	"\",\"each\":{\"L\":[0,2]},\"x\":[\"t\",\"model.layers.{L}." name "\"]}"
#define BIAS "moe.gate.e_score_correction_bias"

static const char faulty_trainer[] = MANIFEST(
	"trainer", "",
	TENSOR("a", "bf16", "[8,4]") "," TENSOR("c", "f16", "[4,4]") "," TENSOR(
		BIAS, "f32",
		"[8]") "," TENSOR("embed", "bf16",
				  "[192,4]") "," TENSOR("d", "bf16",
							"[4]") "," LAYERS("q_prj.weight", "[4,4]"),
	"{\"p\":\"a\",\"x\":[\"r\",[\"t\",\"a\"],0,0,7]}," WHOLE("c", "") "," WHOLE(
		BIAS, "") "," WHOLE("embed", "") "," WHOLE("d", "") "," EACH("q_prj.weight"));
static const char faulty_rollout[] = MANIFEST(
	"rollout", "\"casts\":[\"f32:bf16\"],",
	TENSOR("a", "bf16", "[8,4]") "," TENSOR("c", "bf16", "[4,4]") "," TENSOR(
		BIAS, "f32",
		"[8]") "," TENSOR("embed", "bf16",
				  "[150,4]") "," TENSOR("d", "bf16",
							"[4]") "," LAYERS("q_proj.weight", "[4,4]"),
	WHOLE("a", "") "," WHOLE("c", "") "," WHOLE(BIAS, "\"dtype\":\"bf16\",") "," WHOLE(
		"embed", "") "," WHOLE("d", "") "," EACH("q_proj.weight"));

static const struct {
	const char *kind, *where, *text;
} faults[] = {
	{"missing", "a", "needs [7:8, 0:4] of 'a', which no trainer rank holds"},
	{"missing", "model.layers.0.q_proj.weight", "which no trainer rank holds"},
	{"dtype", "c", "is bf16 and the trainer's 'c' is f16: declare the cast f16:bf16"},
	{"shape", "embed", "[192, 4] in the trainer's manifest and [150, 4] in the rollout's"},
	{"padding", "embed", "the trainer's manifest lists it with 192 rows, 42 of them padding"},
	{"name", "model.layers.{L}.q_proj.weight", "did it mean 'model.layers.{L}.q_prj.weight'?"},
	{"router", BIAS, "is f32 and the rollout's '" BIAS "' bf16: a router's bias chooses other"},
};

START_TEST(one_run_lists_every_fault)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct manifest *trainer, *rollout;
	struct plan *plan;
	struct ws_error err = {0};
	uint32_t replica = 0;
	ck_ok(manifest_parse(&trainer, faulty_trainer, strlen(faulty_trainer), NULL, &err), err);
	ck_ok(manifest_parse(&rollout, faulty_rollout, strlen(faulty_rollout), NULL, &err), err);
	struct plan_input input = {.trainer = trainer,
				   .rollout = rollout,
				   .replicas = &replica,
				   .replica_count = 1,
				   .rules = RULES_DEFAULT};
	ck_fails(plan_make(&plan, &input, PLAN_ALL, &findings, &err), -EINVAL, err);
	for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
		const struct finding *it = findings.first;
		while (it != NULL && (strcmp(it->kind, faults[i].kind) != 0 ||
				      strcmp(it->where, faults[i].where) != 0))
			it = it->next;
		ck_assert_msg(it != NULL, "no %s of %s", faults[i].kind, faults[i].where);
		ck_assert_msg(strstr(it->text, faults[i].text) != NULL, "%s", it->text);
	}
	for (const struct finding *it = findings.first; it != NULL; it = it->next)
		ck_assert_str_ne(it->where, "d");
	manifest_free(trainer);
	manifest_free(rollout);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static void count_progress(void *arg, uint32_t checked, uint32_t members)
{
	uint32_t *told = arg;
	ck_assert_uint_eq(members, 3);
	ck_assert_uint_eq(checked, ++*told);
}

START_TEST(a_check_of_all_tells_how_far_it_is)
{
	static const char source[] =
		MANIFEST("trainer", "", TENSOR("a", "bf16", "[8,4]"), WHOLE("a", ""));
	static const char target[] =
		MANIFEST("rollout", "", TENSOR("a", "bf16", "[8,4]"), WHOLE("a", ""));
	const uint32_t replicas[] = {0, 1, 2};
	struct manifest *trainer, *rollout;
	struct plan *plan;
	struct ws_error err = {0};
	uint32_t told = 0;
	ck_ok(manifest_parse(&trainer, source, strlen(source), NULL, &err), err);
	ck_ok(manifest_parse(&rollout, target, strlen(target), NULL, &err), err);
	struct plan_input input = {.trainer = trainer,
				   .rollout = rollout,
				   .replicas = replicas,
				   .replica_count = 3,
				   .rules = RULES_DEFAULT,
				   .progress = count_progress,
				   .progress_arg = &told};
	ck_ok(plan_make(&plan, &input, PLAN_ALL, NULL, &err), err);
	ck_ok(plan_check(plan, NULL, &err), err);
	ck_assert_uint_eq(told, 3);
	plan_free(plan);
	manifest_free(trainer);
	manifest_free(rollout);
}
END_TEST

/* ---- One manifest that isn't what it says. */

#define GATE_UP                                       \
	TENSOR("m.gate_proj.weight", "bf16", "[4,4]") \
	"," TENSOR("m.up_proj.weight", "bf16", "[4,4]")
#define PART(name) "[\"t\",\"m." name "_proj.weight\"]"
#define FUSED(name, more, first, second) \
	"{\"p\":\"" name "\"," more "\"x\":[\"c\",0," PART(first) "," PART(second) "]}"

static const struct {
	const char *params, *kind, *text; /* kind NULL: it is good */
} declared[] = {
	{FUSED("w13_weight", "", "gate", "up"), NULL, NULL},
	{FUSED("w13_weight", "", "up", "gate"), "order",
	 "has up rows, then gate rows, and its name says gate rows, then up rows"},
	{FUSED("w13_weight", "\"order\":\"w31\",", "up", "gate"), NULL, NULL},
	{FUSED("w13_weight", "\"order\":\"w31\",", "gate", "up"), "order",
	 "\"order\" says up rows"},
	{FUSED("w13_weight", "\"order\":\"31\",", "gate", "up"), "order", "must be \"w13\""},
	{FUSED("w3_w1_weight", "", "up", "gate"), NULL, NULL},
	{FUSED("w3_w1_weight", "", "gate", "up"), "order", "its name says up rows"},
	{FUSED("mlp.linear_fc1.weight", "", "up", "gate"), "order", "its name says gate rows"},
	{FUSED("fused", "", "up", "gate"), NULL, NULL},
	{WHOLE("m.up_proj.weight", "\"mode\":\"staged\",\"post\":\"repack\","), NULL, NULL},
	{WHOLE("m.up_proj.weight", "\"mode\":\"staged\","), "post", "no \"post\" step is declared"},
	{"{\"p\":\"w\",\"x\":[\"t\",\"m.up_prj.weight\"]}", "tensor",
	 "did you mean 'm.up_proj.weight'?"},
	{"{\"p\":\"w\",\"x\":[\"t\",\"quite.another.thing\"]}", "tensor",
	 "\"tensors\" has no 'quite.another.thing'"},
};

START_TEST(a_manifest_that_contradicts_itself_is_refused)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct manifest *manifest;
	struct ws_error err = {0};
	const char *text =
		arena_text(&arena, MANIFEST("rollout", "", GATE_UP, "%s"), declared[_i].params);
	int rc = manifest_parse(&manifest, text, strlen(text), &findings, &err);
	ck_assert_int_eq(rc, declared[_i].kind == NULL ? 0 : -EINVAL);
	if (declared[_i].kind != NULL) {
		ck_assert_uint_eq(findings.count, 1);
		ck_assert_str_eq(findings.first->kind, declared[_i].kind);
		ck_assert_msg(strstr(findings.first->text, declared[_i].text) != NULL, "%s",
			      findings.first->text);
	}
	manifest_free(manifest);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* ---- Both at once. */

#define SCHEME                                                                                         \
	"\"schemes\":{\"q\":{\"kind\":\"block\",\"block\":[4,4],\"fmt\":\"e4m3\",\"scale\":\"f32\"}}," \
	"\"casts\":[\"f32:bf16\"],"

static const char claiming_trainer[] = MANIFEST(
	"trainer", "",
	GATE_UP "," TENSOR("a.weight", "bf16", "[8,4]") "," TENSOR("t", "bf16", "[4,8]"),
	FUSED("w13_weight", "", "up", "gate") "," WHOLE("t", "") "," WHOLE("a.weight", ""));
static const char claiming_rollout[] = MANIFEST(
	"rollout", SCHEME,
	GATE_UP "," TENSOR("a.weight", "bf16", "[8,4]") "," TENSOR(
		"a.weigth", "bf16", "[8,4]") "," TENSOR("t", "bf16", "[4,8]"),
	WHOLE("m.up_proj.weight", "\"mode\":\"staged\",") "," WHOLE("a.weigth", "") "," WHOLE(
		"a.weight",
		"\"dtype\":\"f32\",") ",{\"p\":\"t\",\"dtype\":\"f8e4m3\",\"q\":\"q\",\"x\":"
				      "[\"r\",[\"t\",\"t\"],1,2,8]}");

START_TEST(one_run_lists_the_faults_of_both_manifests_and_of_the_pair)
{
	static const char *const kinds[] = {"order", "post", "block", "dtype", "missing", "name"};
	const char *kind, *where, *text;
	struct ws_plan *check;
	struct ws_error err = {0};
	ck_ok(ws_plan_check(&check, claiming_trainer, strlen(claiming_trainer), claiming_rollout,
			    strlen(claiming_rollout), 1, &err),
	      err);
	for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
		uint32_t i = 0;
		while (ws_plan_finding(check, i, &kind, &where, &text) &&
		       strcmp(kind, kinds[k]) != 0)
			i++;
		ck_assert_msg(i < ws_plan_finding_count(check), "no '%s'", kinds[k]);
		if (strcmp(kind, "name") == 0)
			ck_assert_ptr_nonnull(strstr(text, "did it mean 'a.weight'?"));
	}
	ck_assert_uint_eq(ws_plan_finding_count(check), ARRAY_SIZE(kinds));
	ws_plan_free(check);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("refuse");
	TCase *t = tcase_create("refuse");
	tcase_set_timeout(t, 30);
	tcase_add_test(t, one_run_lists_every_fault);
	tcase_add_test(t, a_check_of_all_tells_how_far_it_is);
	tcase_add_loop_test(t, a_manifest_that_contradicts_itself_is_refused, 0,
			    ARRAY_SIZE(declared));
	tcase_add_test(t, one_run_lists_the_faults_of_both_manifests_and_of_the_pair);
	suite_add_tcase(s, t);
	return s;
}
