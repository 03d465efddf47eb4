/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests that can't be: every fault is a finding with its place, no failed allocation is
 * overlooked, and what the public check tells.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "planner/ws_manifest.h"
#include "tests/manifest_text.h"

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
	{"\"kind\":\"buffer\"", "\"knid\":\"buffer\"", "key", "b.{L}.bias", "unknown key 'knid'"},
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
	if (faults[_i].kind[0] == '\0') { /* looks odd, is right */
		ck_assert_int_eq(rc, 0);
	} else {
		ck_assert_int_eq(rc, -EINVAL);
		ck_assert_ptr_null(manifest);
		ck_assert_msg(find(&findings, faults[_i].kind, faults[_i].where, faults[_i].text) !=
				      NULL,
			      "%s", err.text);
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
		uint64_t rc = work(&err);
		ck_assert_msg(rc == ENOMEM, "allocation %" PRIu64 " of %" PRIu64, n, count);
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
	Suite *s = suite_create("manifest faults");
	TCase *tc = tcase_create("faults");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, every_fault_is_a_finding, 0, ARRAY_SIZE(faults));
	tcase_add_test(tc, all_faults_are_found_at_once);
	tcase_add_test(tc, what_is_no_json_is_refused_with_its_place);
	tcase_add_loop_test(tc, a_map_that_cannot_be_is_refused, 0, ARRAY_SIZE(bad_maps));
	tcase_add_test(tc, no_failed_allocation_leaks_or_is_overlooked);
	tcase_add_test(tc, the_public_check_tells_findings_digest_and_bytes);
	suite_add_tcase(s, tc);
	return s;
}
