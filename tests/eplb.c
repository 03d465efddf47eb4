/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps of experts to slots: each slot gets its expert's bytes, also where an expert stands several
 * times; a map's number alone changes nothing; another map changes the plan only where it differs.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

#define EXPERTS 128
#define LAYERS	48
#define SLOTS	144

/* Every expert, then 16 redundant ones, shuffled: layer by layer another order. */
static void map_fill(int32_t map[LAYERS][SLOTS], uint32_t seed)
{
	for (uint32_t l = 0; l < LAYERS; l++) {
		for (int32_t s = 0; s < SLOTS; s++)
			map[l][s] = s < EXPERTS ? s
						: (int32_t)(mix64(seed + l * 1000u + (uint32_t)s) %
							    EXPERTS);
		for (uint32_t s = SLOTS; s > 1; s--) {
			uint32_t with = (uint32_t)(mix64(seed * 7 + l * SLOTS + s) % s);
			int32_t last = map[l][s - 1];
			map[l][s - 1] = map[l][with];
			map[l][with] = last;
		}
	}
}

static void map_print(struct writer *out, int32_t map[LAYERS][SLOTS], int version)
{
	write_format(out, "{\"map_version\":%d,\"physical_to_logical_map\":[", version);
	for (uint32_t l = 0; l < LAYERS; l++) {
		write_format(out, "%s[", l == 0 ? "" : ",");
		for (uint32_t s = 0; s < SLOTS; s++)
			write_format(out, "%s%" PRId32, s == 0 ? "" : ",", map[l][s]);
		write_format(out, "]");
	}
	write_format(out, "]}");
}

struct made {
	struct manifest *manifest;
	struct ws_error err;
	int rc;
};

static struct made make(enum side side, const char *layout, const char *mesh, const void *eplb,
			size_t bytes)
{
	struct manifest_options options = {
		.side = side, .layout = layout, .mesh = mesh, .eplb = eplb, .eplb_bytes = bytes};
	struct writer out = WRITER_INIT(16 << 20);
	struct model *model;
	struct made made = {0};
	ck_ok(model_builtin(&model, "qwen3-30b-a3b", &made.err), made.err);
	made.rc = manifest_make(model, &options, &out, NULL, &made.err);
	if (made.rc == 0)
		ck_ok(manifest_parse(&made.manifest, out.bytes, out.count, NULL, &made.err),
		      made.err);
	model_free(model);
	writer_release(&out);
	return made;
}

static struct manifest *rollout(const char *layout, const char *mesh, int32_t map[LAYERS][SLOTS],
				int version)
{
	struct writer text = WRITER_INIT(1 << 20);
	map_print(&text, map, version);
	struct made made = make(SIDE_ROLLOUT, layout, mesh, text.bytes, text.count);
	ck_assert_msg(made.rc == 0, "%s", made.err.text);
	writer_release(&text);
	return made.manifest;
}

static const struct {
	const char *layout, *mesh;
	uint32_t ep, rank_per_ep;
} engines[] = {{"vllm", "tp=8,ep=8", 8, 1},
	       {"vllm", "dp=2,tp=2,ep=4", 4, 1},
	       {"vllm", "tp=4,ep=2", 2, 2},
	       {"sglang", "tp=8,dp=4,ep=8", 8, 1},
	       {"sglang", "tp=4,ep=2", 2, 2}};

START_TEST(each_slot_has_its_expert)
{
	static int32_t map[LAYERS][SLOTS];
	map_fill(map, 11);
	struct manifest *manifest = rollout(engines[_i].layout, engines[_i].mesh, map, 3);
	uint32_t each = SLOTS / engines[_i].ep, rules = 0;
	ck_assert_int_eq(manifest_map_version(manifest), 3);
	for (uint32_t r = 0; r < manifest_rule_count(manifest); r++) {
		if (!manifest_rule(manifest, r)->stacks_experts)
			continue;
		rules++;
		for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
			uint32_t first = rank / engines[_i].rank_per_ep * each;
			struct ws_error err;
			const struct form *form;
			ck_ok(manifest_form(manifest, r, rank, &form, &err), err);
			ck_assert_uint_eq(form->dim[0], each);
			ck_assert_uint_eq(form->covered_count, form->element_count);
			for (int32_t l = 0; l < LAYERS; l++) {
				const int32_t *experts;
				ck_assert_uint_eq(manifest_experts(manifest, r, rank, l, &experts),
						  each);
				ck_assert_int_eq(
					memcmp(experts, &map[l][first], each * sizeof(*experts)),
					0);
			}
		}
	}
	ck_assert_uint_eq(rules, 2);
	manifest_free(manifest);
}
END_TEST

static struct plan_input input_of(const struct manifest *trainer, const struct manifest *rollout)
{
	static const uint32_t replicas[] = {0};
	return (struct plan_input){.trainer = trainer,
				   .rollout = rollout,
				   .replicas = replicas,
				   .replica_count = 1,
				   .rules = RULES_DEFAULT};
}

START_TEST(redundant_slots_are_written_like_any_other)
{
	static int32_t map[LAYERS][SLOTS];
	map_fill(map, 5);
	struct made trainer = make(SIDE_TRAINER, "megatron", "tp=2,ep=4,etp=1", NULL, 0);
	struct manifest *target = rollout(engines[_i].layout, engines[_i].mesh, map, 12);
	struct plan_input input = input_of(trainer.manifest, target);
	struct plan *plan;
	struct ws_error err;
	uint64_t bytes = 0;
	ck_ok(plan_make(&plan, &input, PLAN_ALL, NULL, &err), err);
	ck_ok(plan_check(plan, NULL, &err), err);
	for (uint32_t rank = 0; rank < manifest_world(target); rank++) {
		struct arena arena = {0};
		struct rank_params params;
		ck_ok(manifest_params(target, rank, &arena, &params, &err), err);
		bytes += params.bytes;
		arena_release(&arena);
	}
	ck_assert_uint_eq(plan_totals(plan)->bytes, bytes);
	struct writer report = WRITER_INIT(1 << 20);
	struct json_writer json = {.out = &report};
	plan_report_json(plan, 0, NULL, &json);
	write_u8(&report, 0);
	ck_assert_ptr_nonnull(strstr((const char *)report.bytes, "\"map_version\":12,"));
	writer_release(&report);
	plan_free(plan);
	manifest_free(target);
	manifest_free(trainer.manifest);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(only_the_map_itself_counts_in_the_digest)
{
	static int32_t map[LAYERS][SLOTS];
	map_fill(map, 2);
	struct manifest *one = rollout("vllm", "tp=8,ep=8", map, 1);
	struct manifest *two = rollout("vllm", "tp=8,ep=8", map, 2);
	ck_assert_uint_eq(manifest_digest(one), manifest_digest(two));
	ck_assert_int_eq(manifest_map_version(two), 2);
	manifest_free(two);
	int32_t first = map[7][3];
	map[7][3] = map[7][70];
	map[7][70] = first;
	two = rollout("vllm", "tp=8,ep=8", map, 1);
	ck_assert_uint_ne(manifest_digest(one), manifest_digest(two));
	manifest_free(one);
	manifest_free(two);
	struct made linear = make(SIDE_ROLLOUT, "vllm", "tp=8,ep=8", NULL, 0);
	ck_assert_int_eq(manifest_map_version(linear.manifest), -1);
	manifest_free(linear.manifest);
}
END_TEST

/* What a rank receives in each bucket, whatever its numbers in the pair. */
static void bucket_hashes(const struct plan *plan, uint64_t *hashes)
{
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	while (plan_next_receive(plan, &cursor, &copy)) {
		uint64_t *hash = &hashes[copy.bucket];
		*hash = mix64(*hash + copy.sender);
		for (uint32_t i = 0; i < copy.part_count; i++)
			*hash = mix64(*hash ^ digest_bytes(&copy.parts[i], sizeof(copy.parts[i]),
							   copy.bytes));
	}
}

static const char *const trainers[] = {"tp=2,ep=4,etp=1", "tp=2,dp=4,ep=4,etp=1",
				       "tp=2,dp=8,ep=2,etp=1"};

START_TEST(another_map_changes_the_plan_only_where_it_differs)
{
	static int32_t map[LAYERS][SLOTS];
	static uint64_t before[64], after[64];
	uint32_t changed = 0, buckets = 0, layer_changed = 0;
	map_fill(map, 2);
	struct made trainer = make(SIDE_TRAINER, "megatron", trainers[_i], NULL, 0);
	struct manifest *one = rollout("vllm", "tp=8,ep=8", map, 1);
	int32_t first = map[7][3];
	map[7][3] = map[7][70];
	map[7][70] = first;
	struct manifest *two = rollout("vllm", "tp=8,ep=8", map, 2);
	for (uint32_t rank = 0; rank < 8; rank++) {
		struct plan_input a = input_of(trainer.manifest, one);
		struct plan_input b = input_of(trainer.manifest, two);
		struct plan *old, *new;
		struct ws_error err;
		ck_ok(plan_make(&old, &a, manifest_world(trainer.manifest) + rank, NULL, &err),
		      err);
		ck_ok(plan_make(&new, &b, manifest_world(trainer.manifest) + rank, NULL, &err),
		      err);
		buckets = plan_bucket_count(old);
		ck_assert_uint_eq(buckets, plan_bucket_count(new));
		ck_assert_uint_le(buckets, ARRAY_SIZE(before));
		memset(before, 0, sizeof(before));
		memset(after, 0, sizeof(after));
		bucket_hashes(old, before);
		bucket_hashes(new, after);
		for (uint32_t i = 0; i < buckets; i++) {
			bool differs = before[i] != after[i];
			changed += differs;
			layer_changed +=
				differs && strcmp(plan_bucket_name(old, i), "model.layers.7") == 0;
		}
		plan_free(old);
		plan_free(new);
	}
	/* Two ranks swap an expert in layer 7: with redundant copies, up to two more are dealt
	 * anew there; nothing else moves. */
	ck_assert_uint_ge(changed, 2);
	ck_assert_uint_le(changed, 4);
	ck_assert_uint_eq(changed, layer_changed);
	manifest_free(one);
	manifest_free(two);
	manifest_free(trainer.manifest);
}
END_TEST

static const struct {
	enum side side;
	const char *mesh, *text, *why;
} bad_maps[] = {
	{SIDE_ROLLOUT, "tp=2,ep=2", "{\"physical_to_logical_map\":3}", "expected {"},
	{SIDE_ROLLOUT, "tp=2,ep=2", "[1,2", "line 1"},
	{SIDE_ROLLOUT, "tp=2,ep=2", "[[0,1],[0,1]]", "it has 2 rows; the model has 48 layers"},
	{SIDE_ROLLOUT, "tp=2,ep=2", "ROWS 127", "127 slots don't divide by the 2 ranks of ep"},
	{SIDE_ROLLOUT, "tp=2,ep=2", "ROWS 126", "puts expert 126 of layer 0 nowhere"},
	{SIDE_ROLLOUT, "tp=2,ep=2", "ROWS 130", "has expert 128 at layer 0"},
	{SIDE_TRAINER, "tp=2,ep=2", "ROWS 128", "maps are an engine's"},
};

START_TEST(a_map_that_cannot_be_is_said)
{
	struct writer text = WRITER_INIT(1 << 20);
	uint32_t slots = 0;
	if (sscanf(bad_maps[_i].text, "ROWS %u", &slots) == 1) {
		write_format(&text, "[");
		for (uint32_t l = 0; l < LAYERS; l++) {
			for (uint32_t s = 0; s < slots; s++)
				write_format(&text, "%s%u", s > 0 ? "," : l > 0 ? ",[" : "[", s);
			write_format(&text, "]");
		}
		write_format(&text, "]");
	} else {
		write_format(&text, "%s", bad_maps[_i].text);
	}
	struct made made =
		make(bad_maps[_i].side, bad_maps[_i].side == SIDE_TRAINER ? "megatron" : "vllm",
		     bad_maps[_i].mesh, text.bytes, text.count);
	ck_assert_int_eq(made.rc, -EINVAL);
	ck_assert_msg(strstr(made.err.text, bad_maps[_i].why) != NULL, "%s", made.err.text);
	writer_release(&text);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("eplb");
	TCase *tc = tcase_create("maps");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, each_slot_has_its_expert, 0, ARRAY_SIZE(engines));
	tcase_add_loop_test(tc, redundant_slots_are_written_like_any_other, 0, ARRAY_SIZE(engines));
	tcase_add_loop_test(tc, a_map_that_cannot_be_is_said, 0, ARRAY_SIZE(bad_maps));
	tcase_add_test(tc, only_the_map_itself_counts_in_the_digest);
	tcase_add_loop_test(tc, another_map_changes_the_plan_only_where_it_differs, 0,
			    ARRAY_SIZE(trainers));
	suite_add_tcase(s, tc);
	return s;
}
