/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a plan: the same from every compiler and for every order in which a manifest's
 * lists are written, and another one for any other meaning.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/plan_pair.h"
#include "tests/plan_world.h"
#include "tests/test.h"

#define SEEDS  24
#define DIGEST UINT64_C(0x3642df78feb6bf19)

/* Over everything that both ends of any pair compare. */
static uint64_t all_digests(const struct plan *all)
{
	uint64_t chain = plan_digest(all);

	for (uint32_t i = 0; i < plan_send_pair_count(all); i++) {
		const struct plan_pair *pair = plan_send_pair(all, i);
		const uint64_t words[] = {chain, pair->sender, pair->receiver, pair->digest};
		chain = digest_bytes(words, sizeof(words), 0);
	}
	return chain;
}

/* ---- Orders. */

static void put_shuffled(struct json_writer *out, struct gen *gen, const struct json *list)
{
	struct arena arena = {0};
	const struct json **entries = arena_array(&arena, list->count, sizeof(*entries));
	uint32_t count = 0;

	for (const struct json *it = list->first; it != NULL; it = it->next)
		entries[count++] = it;
	json_begin_array(out, list->key);
	for (; count > 0; count--) {
		uint32_t at = gen_below(gen, count);
		json_put_value(out, NULL, entries[at]);
		entries[at] = entries[count - 1];
	}
	json_end_array(out);
	arena_release(&arena);
}

static struct manifest *parse_shuffled(struct world *world, enum gen_side side)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	static const char *const lists[] = {"tensors", "params", "rows", "casts"};
	const char *text = gen_manifest(&world->gen, side);
	struct writer out = WRITER_INIT(16u << 20);
	struct json_writer json = {.out = &out};
	struct manifest *manifest = NULL;
	const struct json *object;

	ck_ok(json_parse(&world->arena, text, strlen(text), &limits, &object, &world->err),
	      world->err);
	json_begin_object(&json, NULL);
	for (const struct json *it = object->first; it != NULL; it = it->next) {
		bool list = false;
		for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
			list = list || strcmp(it->key, lists[i]) == 0;
		if (list)
			put_shuffled(&json, &world->gen, it);
		else
			json_put_value(&json, it->key, it);
	}
	json_end_object(&json);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &world->err), world->err);
	writer_release(&out);
	return manifest;
}

START_TEST(the_order_of_lists_is_no_meaning)
{
	struct world world;
	struct plan *plan;

	world_open(&world, (uint32_t)_i);
	struct manifest *trainer = parse_shuffled(&world, GEN_TRAINER);
	struct manifest *rollout = parse_shuffled(&world, GEN_ROLLOUT);
	ck_assert_uint_eq(manifest_digest(trainer), manifest_digest(world.input.trainer));
	ck_assert_uint_eq(manifest_digest(rollout), manifest_digest(world.input.rollout));
	uint64_t digest = all_digests(world.all);
	world.input.trainer = trainer;
	world.input.rollout = rollout;
	ck_ok(plan_make(&plan, &world.input, PLAN_ALL, NULL, &world.err), world.err);
	ck_assert_uint_eq(all_digests(plan), digest);
	plan_free(plan);
	manifest_free(trainer);
	manifest_free(rollout);
	world_close(&world);
}
END_TEST

/* ---- Compilers: the same value in all of them, and until the planner's version changes. */

#define TENSORS                                                                                \
	"{\"name\":\"m.layers.{L}.a\",\"dtype\":\"f32\",\"shape\":[96,200],\"layers\":[0,5]}," \
	"{\"name\":\"m.layers.{L}.experts.{E}.w\",\"dtype\":\"bf16\",\"shape\":[64,48],"       \
	"\"layers\":[0,5],\"experts\":[0,6]},{\"name\":\"head\",\"dtype\":\"bf16\",\"shape\":[100,48]}"
#define LAYERS "\"layers\":{\"all\":[0,5]},\"experts\":{\"axis\":\"n\"},"
#define PARAMS(a, dtype, head)                                                                  \
	LAYERS "\"params\":[{\"p\":\"l.{L}.a\",\"each\":{\"L\":\"all\"}," dtype "\"x\":" a "}," \
	       "{\"p\":\"l.{L}.w\",\"each\":{\"L\":\"all\"},\"x\":[\"k\",\"E\",[\"t\","         \
	       "\"m.layers.{L}.experts.{E}.w\"]]},{\"p\":\"head\",\"x\":" head "}]"

START_TEST(a_plan_has_the_digest_that_it_always_had)
{
	struct pair_world pair;
	struct place places[11];

	pair_open(&pair, TENSORS, 3,
		  PARAMS("[\"s\",[\"t\",\"m.layers.{L}.a\"],1,\"n\",{\"mode\":\"chunk\"}]", "",
			 "[\"t\",\"head\"]"),
		  4,
		  "\"casts\":[\"f32:bf16\"]," PARAMS("[\"s\",[\"t\",\"m.layers.{L}.a\"],0,\"n\"]",
						     "\"dtype\":\"bf16\",", "[\"t\",\"head\"]"));
	memset(places, 0, sizeof(places));
	for (uint32_t i = 0; i < ARRAY_SIZE(places); i++) {
		places[i].host[0] = (char)('a' + i / 4);
		places[i].nic_count = 1;
		places[i].mbps = 100000 + 50000 * (i % 2);
	}
	pair.replicas[1] = 1;
	pair.input.replica_count = 2;
	pair.input.places = places;
	pair.input.rules.run_bytes_min = 512;
	pair.input.rules.pack_bytes_max = 4096;
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	ck_assert_msg(all_digests(all) == DIGEST,
		      "the plan's digests are 0x%016" PRIx64
		      ": if planning was changed on purpose, raise PLANNER_VERSION and put it here",
		      all_digests(all));
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* ---- Manifests with one other number or word. */

/* Adds one to the nth number of a text, if there are so many; notes which digits they were. */
static bool change_number(char *text, uint32_t nth)
{
	bool quoted = false;

	for (char *at = text; *at != '\0'; at++) {
		if (*at == '"')
			quoted = !quoted;
		bool digit = !quoted && *at >= '0' && *at <= '9';
		if (!digit || (at > text && at[-1] >= '0' && at[-1] <= '9'))
			continue;
		if (nth-- > 0)
			continue;
		char *last = at;
		while (last[1] >= '0' && last[1] <= '9')
			last++;
		*last = *last == '9' ? '8' : (char)(*last + 1);
		return true;
	}
	return false;
}

/* Puts another of its kind for the nth word of a text that a manifest gives a meaning. */
static bool change_word(char *text, uint32_t nth)
{
	/* As long as what they stand for, so that the text needn't move; spaces may follow. */
	static const char *const words[][2] = {
		{"\"f32\"", "\"f16\""},		{"\"f16\"", "\"f32\""},
		{"\"bf16\"", "\"f16\" "},	{"\"even\"", "\"rep\" "},
		{"\"chunk\"", "\"even\" "},	{"\"trainer\"", "\"rollout\""},
		{"\"rollout\"", "\"trainer\""}, {"[\"s\"", "[\"z\""},
		{"[\"t\"", "[\"x\""},		{"[\"c\"", "[\"g\""},
	};

	for (char *at = text; *at != '\0'; at++) {
		for (size_t w = 0; w < ARRAY_SIZE(words); w++) {
			size_t length = strlen(words[w][0]);
			if (strlen(words[w][1]) != length ||
			    strncmp(at, words[w][0], length) != 0 || nth-- > 0)
				continue;
			memcpy(at, words[w][1], length);
			return true;
		}
	}
	return false;
}

typedef bool change_fn(char *text, uint32_t nth);

/* The plan was made of what was meant, and is checked against what a member has. */
START_TEST(a_manifest_with_another_number_or_word_is_seen)
{
	change_fn *change = _i % 2 == 0 ? change_number : change_word;
	struct world world;

	world_open(&world, (uint32_t)_i / 2);
	for (int side = 0; side < 2; side++) {
		const char *text = gen_manifest(&world.gen, (enum gen_side)side);
		const struct manifest **input =
			side == GEN_TRAINER ? &world.all->input.trainer : &world.all->input.rollout;
		const struct manifest *own = *input;
		uint32_t parsed = 0, changed = 0;
		for (uint32_t n = 0;; n++) {
			char *other = mem_copy_text(text);
			struct manifest *manifest = NULL;
			bool more = change(other, n);
			if (more && manifest_parse(&manifest, other, strlen(other), NULL,
						   &world.err) == 0) {
				*input = manifest;
				ck_assert_msg(plan_check(world.all, NULL, &world.err) == -EINVAL,
					      "number or word %" PRIu32 " of side %d", n, side);
				*input = own;
				parsed++;
			}
			manifest_free(manifest);
			mem_free(other);
			if (!more)
				break;
			changed++;
		}
		ck_assert_uint_gt(change == change_number ? parsed : changed, 0);
	}
	world_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_digest");
	TCase *digest = tcase_create("digest");

	tcase_set_timeout(digest, 120);
	tcase_add_loop_test(digest, the_order_of_lists_is_no_meaning, 0, SEEDS);
	tcase_add_test(digest, a_plan_has_the_digest_that_it_always_had);
	tcase_add_loop_test(digest, a_manifest_with_another_number_or_word_is_seen, 0, SEEDS);
	suite_add_tcase(tests, digest);
	return tests;
}
