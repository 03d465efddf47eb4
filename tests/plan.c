/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small plans made by hand: each shape of copy, what is refused and in which words, dealing over
 * holders, members and rules.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/plan_pair.h"
#include "tests/test.h"

/* One copy's looks: "direct 4096", "direct gather 64", "ring 2 gather 96". */
static void looks(struct pair_world *pair, uint32_t self, char *out, size_t bytes)
{
	struct plan *plan = pair_plan(pair, self);
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	struct writer text = writer_fixed(out, bytes - 1);

	ck_ok(plan_check(plan, &pair->findings, &pair->err), pair->err);
	while (self == 0 ? plan_next_send(plan, &cursor, &copy)
			 : plan_next_receive(plan, &cursor, &copy)) {
		if (text.count > 0)
			write_format(&text, ", ");
		if (copy.ring >= 0)
			write_format(&text, "ring %" PRIu32, copy.part_count);
		else
			write_format(&text, "direct");
		write_format(&text, "%s %" PRIu64, copy.gather ? " gather" : "", copy.bytes);
	}
	ck_assert(!text.failed);
	out[text.count] = '\0';
	plan_free(plan);
}

#define W(shape) "{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":" shape "}"
#define PARAM(x) "\"params\":[{\"p\":\"w\",\"x\":" x "}]"
#define WHOLE	 PARAM("[\"t\",\"w\"]")

static void expect(struct pair_world *pair, const char *want)
{
	char have[2048];

	looks(pair, 0, have, sizeof(have));
	ck_assert_str_eq(have, want);
	looks(pair, manifest_world(pair->manifests[SIDE_TRAINER]), have, sizeof(have));
	ck_assert_str_eq(have, want);
}

START_TEST(whole_to_whole_is_one_direct_copy)
{
	struct pair_world pair;

	pair_open(&pair, W("[300,100]"), 1, WHOLE, 1, WHOLE);
	expect(&pair, "direct 60000");
	pair_close(&pair);
}
END_TEST

START_TEST(a_strided_source_is_gathered_straight_into_the_param)
{
	struct pair_world pair;

	pair_open(&pair, W("[300,100]"), 1, WHOLE, 2, PARAM("[\"s\",[\"t\",\"w\"],1,\"n\"]"));
	char have[256];
	looks(&pair, 0, have, sizeof(have));
	ck_assert_str_eq(have, "direct gather 30000, direct gather 30000");
	looks(&pair, 1, have, sizeof(have));
	ck_assert_str_eq(have, "direct gather 30000");
	pair_close(&pair);
}
END_TEST

/* Columns arrive whole at a param that holds them between others. */
START_TEST(a_strided_target_gets_long_runs_one_by_one_and_short_ones_through_the_ring)
{
	struct pair_world pair;

	char have[256];

	pair_open(&pair, W("[3,100000]"), 2, PARAM("[\"s\",[\"t\",\"w\"],1,\"n\"]"), 1, WHOLE);
	looks(&pair, 0, have, sizeof(have));
	ck_assert_str_eq(have, "direct 100000, direct 100000, direct 100000");
	pair.input.rules.run_bytes_min = 100001;
	looks(&pair, 0, have, sizeof(have));
	ck_assert_str_eq(have, "ring 1 300000");
	looks(&pair, 2, have, sizeof(have));
	ck_assert_str_eq(have, "ring 1 300000, ring 1 300000");
	pair_close(&pair);
}
END_TEST

START_TEST(adjacent_runs_are_one_copy)
{
	struct pair_world pair;
	/* two params' rows meet in one target param, and each piece is whole at both ends */
	const char *tensors = "{\"name\":\"a\",\"dtype\":\"bf16\",\"shape\":[50,10]},"
			      "{\"name\":\"b\",\"dtype\":\"bf16\",\"shape\":[70,10]}";
	const char *both = PARAM("[\"c\",0,[\"t\",\"a\"],[\"t\",\"b\"]]");

	pair_open(&pair, tensors, 1, both, 1, both);
	expect(&pair, "direct 2400");
	pair_close(&pair);
}
END_TEST

START_TEST(both_strided_is_packed_and_unpacked)
{
	struct pair_world pair;

	/* row-parallel, 3 against 2: neither side's slice is the other's */
	pair_open(&pair, W("[8,600]"), 3, PARAM("[\"s\",[\"t\",\"w\"],1,\"n\"]"), 2,
		  PARAM("[\"s\",[\"t\",\"w\"],1,\"n\"]"));
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	const struct plan_totals *totals = plan_totals(all);
	ck_assert_uint_eq(totals->boxes, 4);
	ck_assert_uint_eq(totals->class_count[2], 2); /* 0 and 2: whole at their source */
	ck_assert_uint_eq(totals->class_count[3], 2); /* rank 1 is cut in the middle */
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	struct plan *plan = pair_plan(&pair, 1);
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	for (int i = 0; i < 2; i++) {
		ck_assert(plan_next_send(plan, &cursor, &copy));
		ck_assert(copy.gather && copy.ring == 0);
		ck_assert_uint_eq(copy.bytes, 8 * 100 * 2);
	}
	ck_assert(!plan_next_send(plan, &cursor, &copy));
	plan_free(plan);
	pair_close(&pair);
}
END_TEST

START_TEST(two_small_copies_share_one_and_a_single_one_stays)
{
	struct pair_world pair;
	const char *tensors = "{\"name\":\"a\",\"dtype\":\"bf16\",\"shape\":[5]},"
			      "{\"name\":\"b\",\"dtype\":\"bf16\",\"shape\":[7]},"
			      "{\"name\":\"big\",\"dtype\":\"bf16\",\"shape\":[1000,1000]}";
	const char *apart =
		"\"params\":[{\"p\":\"a\",\"x\":[\"t\",\"a\"]},{\"p\":\"big\",\"x\":[\"t\",\"big\"]},"
		"{\"p\":\"b\",\"x\":[\"t\",\"b\"]}]";

	pair_open(&pair, tensors, 1, apart, 1, apart);
	/* one bucket for all; the second part begins at the next multiple of 16 */
	pair.input.rules.bucket_bytes = 1u << 30;
	expect(&pair, "direct 2000000, ring 2 gather 30");
	pair.input.rules.pack_bytes_max = 12;
	expect(&pair, "direct 10, direct 14, direct 2000000");
	pair_close(&pair);
}
END_TEST

START_TEST(a_declared_cast_is_gathered)
{
	struct pair_world pair;

	pair_open(&pair, W("[300,100]"), 1,
		  "\"params\":[{\"p\":\"w\",\"dtype\":\"f32\",\"x\":[\"t\",\"w\"]}]", 1,
		  "\"casts\":[\"f32:bf16\"]," WHOLE);
	expect(&pair, "direct gather 60000");
	pair_close(&pair);
}
END_TEST

START_TEST(a_ring_copy_fits_its_slot_and_waits_for_credit)
{
	struct pair_world pair;
	uint32_t copies = 0;

	pair_open(&pair, W("[1000,100]"), 2, PARAM("[\"s\",[\"t\",\"w\"],1,\"n\"]"), 1, WHOLE);
	pair.input.rules.recv_staging_bytes = 2 * 2 * 8192 + 5000;
	pair.input.rules.op_bytes = 4096;
	pair.input.rules.wire_digests = true;
	struct plan *plan = pair_plan(&pair, 2);
	ck_assert_uint_eq(plan_slot_bytes(plan), 8192);
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	while (plan_next_receive(plan, &cursor, &copy)) {
		ck_assert_uint_le(copy.bytes, 8192);
		ck_assert_int_eq(copy.ring, copies % 13);
		copies++;
	}
	const struct plan_pair *wire = plan_receive_pair(plan, 0);
	ck_assert_uint_eq(copies, 26); /* 81 rows of 100 bytes fit into a slot */
	ck_assert_uint_eq(wire->ring_count, 13);
	ck_assert_uint_eq(wire->credit_count, 11);
	ck_assert_uint_eq(wire->counter_count, 13);
	ck_assert_uint_eq(wire->op_count, wire->data_op_count + 13);
	ck_assert_uint_eq(wire->counters[0].op_count, 3);
	ck_ok(plan_check(plan, &pair.findings, &pair.err), pair.err);
	plan_free(plan);
	pair_close(&pair);
}
END_TEST

START_TEST(empty_shards_and_idle_members_are_nothing_special)
{
	struct pair_world pair;

	pair_open(&pair, W("[3,8]"), 5, PARAM("[\"s\",[\"t\",\"w\"],0,\"n\",{\"mode\":\"chunk\"}]"),
		  7, PARAM("[\"s\",[\"t\",\"w\"],0,\"n\",{\"mode\":\"chunk\"}]"));
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->bytes, 48);
	ck_assert_uint_eq(plan_totals(all)->senders_idle, 2);
	ck_assert_uint_eq(plan_totals(all)->receive_min, 0);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	struct plan *idle = pair_plan(&pair, 4);
	ck_assert_uint_eq(plan_send_pair_count(idle), 0);
	plan_free(idle);
	pair_close(&pair);
}
END_TEST

START_TEST(an_expert_twice_on_one_rank_is_sent_twice)
{
	struct pair_world pair;
	const char *tensors =
		"{\"name\":\"m.layers.{L}.experts.{E}.w\",\"dtype\":\"bf16\",\"shape\":[4,6],"
		"\"layers\":[0,2],\"experts\":[0,3]}";
	const char *params =
		"\"layers\":{\"all\":[0,2]},\"params\":[{\"p\":\"m.layers.{L}.w\",\"each\":{\"L\":\"all\"},"
		"\"x\":[\"k\",\"E\",[\"t\",\"m.layers.{L}.experts.{E}.w\"]]}]";
	char source[512], target[512];
	struct writer out = writer_fixed(source, sizeof(source));

	write_format(&out, "\"experts\":{\"axis\":\"n\"},%s%c", params, 0);
	out = writer_fixed(target, sizeof(target));
	/* by layer, by rank: expert 0 is twice on rank 0 of layer 0, and elsewhere at layer 1 */
	write_format(
		&out,
		"\"experts\":{\"axis\":\"n\",\"map_layers\":[0,2],\"map\":[[[0,0,1],[2]],[[2,1,0],[0]]]},%s%c",
		params, 0);
	pair_open(&pair, tensors, 3, source, 2, target);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->boxes, 8);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

START_TEST(ranks_without_experts_hold_an_empty_stack)
{
	struct pair_world pair;
	const char *tensors =
		"{\"name\":\"m.layers.{L}.experts.{E}.w\",\"dtype\":\"bf16\",\"shape\":[4,6],"
		"\"layers\":[0,2],\"experts\":[0,2]}";
	const char *params =
		"\"experts\":{\"axis\":\"n\"},\"layers\":{\"all\":[0,2]},\"params\":[{\"p\":"
		"\"m.layers.{L}.w\",\"each\":{\"L\":\"all\"},"
		"\"x\":[\"k\",\"E\",[\"t\",\"m.layers.{L}.experts.{E}.w\"]]}]";

	pair_open(&pair, tensors, 4, params, 3, params);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->bytes, 2 * 2 * 48);
	ck_assert_uint_eq(plan_totals(all)->senders_idle, 2);
	ck_assert_uint_eq(plan_totals(all)->receive_min, 0);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* Rows of an unknown framework name layers by number; the other side has rules. */
START_TEST(explicit_rows_meet_rules)
{
	struct pair_world pair;
	const char *tensors =
		"{\"name\":\"m.layers.{L}.w\",\"dtype\":\"bf16\",\"shape\":[9,6],\"layers\":[0,2]}";
	const char *rows =
		"\"rows\":["
		"{\"t\":\"m.layers.0.w\",\"rank\":0,\"p\":\"a\",\"dtype\":\"bf16\",\"goff\":[0,0],\"lshape\":[4,6]},"
		"{\"t\":\"m.layers.0.w\",\"rank\":1,\"p\":\"a\",\"dtype\":\"bf16\",\"goff\":[4,0],\"lshape\":[5,6]},"
		"{\"t\":\"m.layers.1.w\",\"rank\":1,\"p\":\"b\",\"dtype\":\"bf16\",\"goff\":[0,0],\"lshape\":[9,6]}]";
	const char *rules =
		"\"layers\":{\"all\":[0,2]},\"params\":[{\"p\":\"m.layers.{L}.w\",\"each\":{\"L\":"
		"\"all\"},\"x\":[\"s\",[\"t\",\"m.layers.{L}.w\"],1,\"n\"]}]";

	pair_open(&pair, tensors, 2, rows, 2, rules);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->bytes, 2 * 9 * 6 * 2);
	ck_assert_uint_eq(plan_totals(all)->boxes, 6);
	ck_assert_uint_eq(plan_bucket_count(all), 2);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* Every member's part is walked by the check, tables and all: in each layer of a loop. */
START_TEST(what_a_quantized_target_needs_lies_inside_the_trainers_tables)
{
	struct pair_world pair;
	const char *tensors =
		"{\"name\":\"m.{L}.w\",\"dtype\":\"bf16\",\"shape\":[576,256],\"layers\":[0,3]}";
	const char *rows =
		"\"layers\":{\"all\":[0,3]},\"params\":[{\"p\":\"m.{L}.w\",\"each\":{\"L\":"
		"\"all\"},\"x\":[\"s\",[\"t\",\"m.{L}.w\"],0,\"n\"]}]";
	const char *fp8 =
		"\"schemes\":{\"b\":{\"kind\":\"block\",\"block\":[128,128],\"fmt\":\"e4m3\",\"scale\":\"f32\"}},"
		"\"layers\":{\"all\":[0,3]},\"params\":[{\"p\":\"m.{L}.w\",\"each\":{\"L\":\"all\"},"
		"\"q\":\"b\",\"dtype\":\"f8e4m3\",\"scale\":\"m.{L}.s\",\"x\":[\"t\",\"m.{L}.w\"]}]";

	pair_open(&pair, tensors, 3, rows, 2, fp8);
	for (uint32_t m = 0; m < 5; m++) {
		struct plan *plan = pair_plan(&pair, m);
		/* 192 rows begin in block 0, in the middle of 1, and at 3: two rows of blocks each
		 */
		ck_assert_uint_eq(plan_tables_bytes(plan), m < 3 ? 3 * 2 * 2 * 4 : 0);
		ck_ok(plan_check(plan, &pair.findings, &pair.err), pair.err);
		plan_free(plan);
	}
	pair_close(&pair);
}
END_TEST

/* Three trainers hold all of it: each sends a third, by rows. */
START_TEST(duplicates_share_the_load_and_a_faster_nic_takes_more)
{
	struct pair_world pair;
	struct place places[4] = {{.host = "a", .nic_count = 1, .mbps = 400000},
				  {.host = "b", .nic_count = 1, .mbps = 400000},
				  {.host = "c", .nic_count = 1, .mbps = 800000},
				  {.host = "d", .nic_count = 1, .mbps = 400000}};

	pair_open(&pair, W("[4000,500]"), 3, WHOLE, 1, WHOLE);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	uint64_t digest = plan_digest(all);
	ck_assert_uint_eq(plan_totals(all)->send_max, 1334000);
	ck_assert_uint_ge(plan_totals(all)->send_min, 1333000);
	plan_free(all);
	pair.input.places = places;
	all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_ne(plan_digest(all), digest);
	ck_assert_uint_eq(plan_send_pair(all, 0)->bytes, 1000000);
	ck_assert_uint_eq(plan_send_pair(all, 1)->bytes, 1000000);
	ck_assert_uint_eq(plan_send_pair(all, 2)->bytes, 2000000);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* One param holds all, others parts of it: what overlaps is sent once. */
START_TEST(sources_that_overlap_in_part_cover_each_element_once)
{
	struct pair_world pair;

	pair_open(
		&pair, W("[10,6]"), 2,
		"\"params\":[{\"p\":\"a\",\"x\":[\"r\",[\"t\",\"w\"],0,0,7]},{\"p\":\"b\",\"x\":[\"r\",[\"t\",\"w\"],0,3,10]},"
		"{\"p\":\"c\",\"x\":[\"s\",[\"t\",\"w\"],1,\"n\"]}]",
		1, WHOLE);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->bytes, 120);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* ---- What is refused. */
START_TEST(missing_rows_are_named)
{
	struct pair_world pair;

	pair_open(&pair, W("[10,6]"), 1, PARAM("[\"r\",[\"t\",\"w\"],0,0,7]"), 2,
		  PARAM("[\"s\",[\"t\",\"w\"],0,\"n\"]"));
	ck_assert_str_eq(
		pair_refused(&pair, "missing"),
		"rollout rank 1's 'w' needs [7:10, 0:6] of 'w', which no trainer rank holds");
	pair_close(&pair);
}
END_TEST

START_TEST(a_tensor_that_only_the_target_has_is_missing_and_the_other_way_round_is_fine)
{
	struct pair_world pair;
	const char *two = W("[10,6]") ",{\"name\":\"v\",\"dtype\":\"bf16\",\"shape\":[4]}";
	const char *both =
		"\"params\":[{\"p\":\"w\",\"x\":[\"t\",\"w\"]},{\"p\":\"v\",\"x\":[\"t\",\"v\"]}]";

	pair_open(&pair, two, 1, WHOLE, 1, both);
	ck_assert_ptr_nonnull(strstr(pair_refused(&pair, "missing"), "needs [0:4] of 'v'"));
	pair_close(&pair);
	pair_open(&pair, two, 1, both, 1, WHOLE);
	plan_free(pair_plan(&pair, PLAN_ALL));
	pair_close(&pair);
}
END_TEST

START_TEST(an_undeclared_cast_and_one_that_cannot_be_are_refused)
{
	struct pair_world pair;
	const char *f32 = "\"params\":[{\"p\":\"w\",\"dtype\":\"f32\",\"x\":[\"t\",\"w\"]}]";
	const char *fp8 = "\"params\":[{\"p\":\"w\",\"dtype\":\"f8e4m3\",\"x\":[\"t\",\"w\"]}]";

	pair_open(&pair, W("[10,6]"), 1, f32, 1, WHOLE);
	ck_assert_str_eq(
		pair_refused(&pair, "dtype"),
		"rollout rank 0's 'w' is bf16 and the trainer's 'w' is f32: declare the cast f32:bf16 in "
		"the rollout's manifest");
	pair_close(&pair);
	/* No cast is asked for that would be refused then. */
	pair_open(&pair, W("[10,6]"), 1, WHOLE, 1, fp8);
	ck_assert_str_eq(
		pair_refused(&pair, "dtype"),
		"rollout rank 0's 'w' is f8e4m3 and the trainer's 'w' is bf16: only f32, "
		"bf16 and f16 are cast to each other, and FP8 is made by a scheme (--quant "
		"of the rollout's manifest)");
	pair_close(&pair);
}
END_TEST

/* The two manifests come from different files: here from different texts. */
static void swap_target(struct pair_world *pair, const char *text)
{
	manifest_free(pair->manifests[SIDE_ROLLOUT]);
	pair->manifests[SIDE_ROLLOUT] = NULL;
	ck_ok(manifest_parse(&pair->manifests[SIDE_ROLLOUT], text, strlen(text), &pair->findings,
			     &pair->err),
	      pair->err);
	pair->input.rollout = pair->manifests[SIDE_ROLLOUT];
}

#define TARGET(model, shape)                                                                \
	"{\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"hand\",\"model\":\"" model \
	"\",\"world\":1,\"tensors\":[" W(                                                   \
		shape) "],\"meshes\":{\"m\":{\"axes\":[[\"n\",1]]}}," WHOLE "}"

START_TEST(another_shape_and_another_model_are_refused)
{
	struct pair_world pair;

	pair_open(&pair, W("[10,6]"), 1, WHOLE, 1, WHOLE);
	swap_target(&pair, TARGET("hand", "[12,5]"));
	ck_assert_str_eq(pair_refused(&pair, "shape"),
			 "'w' is [10, 6] in the trainer's manifest and [12, 5] in the "
			 "rollout's: make both from one model");
	pair_close(&pair);
	pair_open(&pair, W("[10,6]"), 1, WHOLE, 1, WHOLE);
	swap_target(&pair, TARGET("other", "[10,6]"));
	ck_assert_ptr_nonnull(strstr(pair_refused(&pair, "model"), "'other'"));
	pair_close(&pair);
}
END_TEST

/* Else what follows from tensors' names (which weights are under one scale) is said twice, too. */
START_TEST(a_tensor_that_is_listed_twice_is_refused)
{
	struct pair_world pair;
	struct plan *plan;

	pair_open(&pair,
		  "{\"name\":\"x.{L}.w\",\"dtype\":\"bf16\",\"shape\":[4,4],\"layers\":[0,2]},"
		  "{\"name\":\"x.1.w\",\"dtype\":\"bf16\",\"shape\":[4,4]}",
		  1, PARAM("[\"t\",\"x.1.w\"]"), 1, PARAM("[\"t\",\"x.1.w\"]"));
	ck_fails(plan_make(&plan, &pair.input, PLAN_ALL, &pair.findings, &pair.err), -EINVAL,
		 pair.err);
	ck_assert_str_eq(pair.err.text,
			 "the trainer's \"tensors\" has one twice, as 'x.1.w' and as 'x.{L}.w'");
	pair_close(&pair);
}
END_TEST

START_TEST(a_ring_too_small_and_too_many_ops_are_refused)
{
	struct pair_world pair;

	pair_open(&pair, W("[10,6]"), 3, WHOLE, 1, WHOLE);
	pair.input.rules.recv_staging_bytes = 20000;
	ck_assert_str_eq(
		pair_refused(&pair, "ring"),
		"the rollouts' staging ring is too small: 24576 bytes are the least for 3 trainers, not 20000");
	pair_close(&pair);
	/* 2^24 ops of 4 KiB are 64 GiB */
	pair_open(&pair, W("[200000,200000]"), 1, WHOLE, 1, WHOLE);
	pair.input.rules.op_bytes = 4096;
	ck_assert_ptr_nonnull(strstr(pair_refused(&pair, "ops"), "raise op_bytes"));
	pair_close(&pair);
}
END_TEST

START_TEST(a_wrong_roster_or_member_is_refused)
{
	struct pair_world pair;
	struct plan *plan;
	char name[96];

	pair_open(&pair, W("[10,6]"), 2, WHOLE, 2, WHOLE);
	pair.replicas[0] = 4;
	pair.replicas[1] = 4;
	pair.input.replica_count = 2;
	ck_fails(plan_make(&plan, &pair.input, PLAN_ALL, NULL, &pair.err), -EINVAL, pair.err);
	pair.replicas[1] = 7;
	ck_fails(plan_make(&plan, &pair.input, 6, NULL, &pair.err), -EINVAL, pair.err);
	ck_ok(plan_make(&plan, &pair.input, 5, NULL, &pair.err), pair.err);
	ck_assert_uint_eq(plan_member_count(plan), 6);
	ck_assert_str_eq(plan_member_name(plan, 1, name, sizeof(name)), "trainer 1");
	ck_assert_str_eq(plan_member_name(plan, 4, name, sizeof(name)),
			 "rollout 7.0 (replica 7, rank 0)");
	plan_free(plan);
	pair.input.replica_count = 0;
	ck_fails(plan_make(&plan, &pair.input, PLAN_ALL, NULL, &pair.err), -EINVAL, pair.err);
	pair.input.replica_count = 1;
	pair.input.trainer = pair.input.rollout;
	ck_fails(plan_make(&plan, &pair.input, PLAN_ALL, NULL, &pair.err), -EINVAL, pair.err);
	plan_free(NULL);
	pair_close(&pair);
}
END_TEST

START_TEST(rules_survive_the_wire_and_bad_ones_do_not)
{
	struct rules rules = RULES_DEFAULT, other;
	struct ws_error err = {0};
	uint8_t bytes[128];
	struct writer out = writer_fixed(bytes, sizeof(bytes));

	rules.barrier = true;
	rules.bucket_bytes = 12345;
	ck_ok(rules_check(&rules, &err), err);
	rules_encode(&rules, &out);
	ck_assert(!out.failed);
	ck_ok(rules_decode(&other, bytes, out.count, &err), err);
	ck_assert_uint_eq(other.bucket_bytes, 12345);
	ck_assert(other.barrier && !other.wire_digests);
	ck_assert_uint_eq(other.staging_bytes, 64u << 20);
	for (size_t count = 0; count < out.count; count++)
		ck_fails(rules_decode(&other, bytes, count, &err), -EPROTO, err);
	rules.op_bytes = 5000;
	ck_fails(rules_check(&rules, &err), -EINVAL, err);
	rules = (struct rules)RULES_DEFAULT;
	rules.staging_bytes = (1u << 20) + 1;
	ck_fails(rules_check(&rules, &err), -EINVAL, err);
	rules = (struct rules)RULES_DEFAULT;
	rules.planner_version++;
	ck_fails(rules_check(&rules, &err), -EINVAL, err);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan");
	TCase *shapes = tcase_create("shapes"), *refused = tcase_create("refused");

	tcase_set_timeout(shapes, 60);
	tcase_set_timeout(refused, 60);
	tcase_add_test(shapes, whole_to_whole_is_one_direct_copy);
	tcase_add_test(shapes, a_strided_source_is_gathered_straight_into_the_param);
	tcase_add_test(shapes,
		       a_strided_target_gets_long_runs_one_by_one_and_short_ones_through_the_ring);
	tcase_add_test(shapes, adjacent_runs_are_one_copy);
	tcase_add_test(shapes, both_strided_is_packed_and_unpacked);
	tcase_add_test(shapes, two_small_copies_share_one_and_a_single_one_stays);
	tcase_add_test(shapes, a_declared_cast_is_gathered);
	tcase_add_test(shapes, a_ring_copy_fits_its_slot_and_waits_for_credit);
	tcase_add_test(shapes, empty_shards_and_idle_members_are_nothing_special);
	tcase_add_test(shapes, an_expert_twice_on_one_rank_is_sent_twice);
	tcase_add_test(shapes, ranks_without_experts_hold_an_empty_stack);
	tcase_add_test(shapes, explicit_rows_meet_rules);
	tcase_add_test(shapes, what_a_quantized_target_needs_lies_inside_the_trainers_tables);
	tcase_add_test(shapes, duplicates_share_the_load_and_a_faster_nic_takes_more);
	tcase_add_test(shapes, sources_that_overlap_in_part_cover_each_element_once);
	tcase_add_test(refused, missing_rows_are_named);
	tcase_add_test(
		refused,
		a_tensor_that_only_the_target_has_is_missing_and_the_other_way_round_is_fine);
	tcase_add_test(refused, an_undeclared_cast_and_one_that_cannot_be_are_refused);
	tcase_add_test(refused, another_shape_and_another_model_are_refused);
	tcase_add_test(refused, a_tensor_that_is_listed_twice_is_refused);
	tcase_add_test(refused, a_ring_too_small_and_too_many_ops_are_refused);
	tcase_add_test(refused, a_wrong_roster_or_member_is_refused);
	tcase_add_test(refused, rules_survive_the_wire_and_bad_ones_do_not);
	suite_add_tcase(tests, shapes);
	suite_add_tcase(tests, refused);
	return tests;
}
