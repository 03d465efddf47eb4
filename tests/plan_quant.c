/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of targets that are quantized on the way: who sends the codes, who the scales, what is
 * refused.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/plan_digests.h"
#include "tests/plan_pair.h"
#include "tests/test.h"

#define W(shape) "{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":" shape "}"
#define PARAM(x) "\"params\":[{\"p\":\"w\",\"x\":" x "}]"
#define WHOLE	 PARAM("[\"t\",\"w\"]")

#define FP8_SCHEME                                                                             \
	"\"schemes\":{\"fp8-block\":{\"kind\":\"block\",\"block\":[128,128],\"fmt\":\"e4m3\"," \
	"\"scale\":\"f32\"}},"
#define FP8_WHOLE                                                                       \
	FP8_SCHEME "\"params\":[{\"p\":\"w\",\"q\":\"fp8-block\",\"dtype\":\"f8e4m3\"," \
		   "\"scale\":\"w_scale_inv\",\"x\":[\"t\",\"w\"]}]"

#define EXPERTS "{\"name\":\"w{E}\",\"dtype\":\"bf16\",\"shape\":[128,1536],\"experts\":[0,4]}"
#define EXPERTS_HELD(as)                                                                      \
	"\"experts\":{\"axis\":\"n\"},\"params\":[{\"p\":\"w{E}\",\"each\":{\"E\":\"n\"}," as \
	"\"x\":[\"t\",\"w{E}\"]}]"

/* Rows of 3 trainers end inside blocks: 0:200, 200:400, 400:600 under blocks of 128. */
START_TEST(codes_come_from_every_holder_and_each_scale_from_one)
{
	struct pair_world pair;
	uint64_t scale_bytes = 0;
	uint32_t bucket = UINT32_MAX;

	pair_open(&pair, W("[600,256]"), 3, PARAM("[\"s\",[\"t\",\"w\"],0,\"n\"]"), 2, FP8_WHOLE);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	ck_assert_uint_eq(plan_totals(all)->boxes, 6);
	ck_assert_uint_eq(plan_totals(all)->scale_bytes, 2 * 5 * 2 * 4);
	ck_assert_uint_eq(plan_totals(all)->bytes, 2 * (600 * 256 + 5 * 2 * 4));
	ck_assert_uint_eq(plan_bucket_count(all), 1);
	plan_free(all);
	struct plan *plan = pair_plan(&pair, 3);
	ck_ok(plan_check(plan, &pair.findings, &pair.err), pair.err);
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	while (plan_next_receive(plan, &cursor, &copy)) {
		ck_assert(bucket == UINT32_MAX || copy.bucket == bucket);
		bucket = copy.bucket;
		ck_assert(copy.gather);
		for (uint32_t i = 0; i < copy.part_count; i++) {
			const struct plan_part *part = &copy.parts[i];
			bool scale = part->kind == PART_SCALES;
			ck_assert(scale || part->kind == PART_CODES);
			ck_assert_int_eq(part->to, scale ? WS_F32 : WS_F8_E4M3);
			ck_assert_uint_eq(part->dst_param, scale ? 1 : 0);
			/* what scales are made of lies in the sender's table of its own blocks */
			ck_assert(!scale || part->from == WS_U32);
			scale_bytes += scale ? part->extent[0] * 4 : 0;
		}
	}
	ck_assert_uint_eq(scale_bytes, 5 * 2 * 4);
	plan_free(plan);
	pair_close(&pair);
}
END_TEST

/* What the first send of trainer 0 is cut into. */
static struct plan_copy first_copy(struct pair_world *pair, uint64_t op_bytes, bool *whole_out)
{
	struct plan_cursor cursor = {0};
	struct plan_copy copy, first;
	bool scales = false;

	pair->input.rules.op_bytes = op_bytes;
	pair->input.rules.bucket_bytes = 1u << 30; /* one bucket */
	struct plan *plan = pair_plan(pair, 0);
	ck_ok(plan_check(plan, &pair->findings, &pair->err), pair->err);
	ck_assert(plan_next_send(plan, &cursor, &first));
	*whole_out = first.parts[0].whole;
	cursor = (struct plan_cursor){0};
	while (plan_next_send(plan, &cursor, &copy))
		for (uint32_t i = 0; i < copy.part_count; i++) {
			bool scale = copy.parts[i].kind == PART_SCALES;
			ck_assert(scale || !scales);
			scales = scales || scale;
		}
	ck_assert(scales);
	ck_assert_uint_eq(first.op_count, ws_op_count(first.bytes, first.op_bytes));
	plan_free(plan);
	return first;
}

/* Five rows of blocks, of 192 KiB each; and four weights of one, that share a copy. */
START_TEST(no_op_tears_a_whole_block_and_scales_come_last)
{
	struct pair_world pair;
	bool whole;

	pair_open(&pair, W("[600,1536]"), 1, WHOLE, 1, FP8_WHOLE);
	struct plan_copy copy = first_copy(&pair, 512u << 10, &whole);
	ck_assert(whole && copy.op_bytes == 2 * 128 * 1536 && copy.op_count == 3);
	copy = first_copy(&pair, 256u << 10, &whole);
	ck_assert(whole && copy.op_bytes == 128 * 1536 && copy.op_count == 5);
	/* One row of blocks is more than an op. */
	copy = first_copy(&pair, 128u << 10, &whole);
	ck_assert(whole && copy.op_bytes == 128u << 10 && copy.op_count == 8);
	pair_close(&pair);

	pair_open(&pair, W("[600,1536]"), 3, PARAM("[\"s\",[\"t\",\"w\"],0,\"n\"]"), 1, FP8_WHOLE);
	copy = first_copy(&pair, 256u << 10, &whole);
	ck_assert(!whole && copy.op_bytes == 256u << 10);
	pair_close(&pair);

	pair_open(&pair, EXPERTS, 1, EXPERTS_HELD(""), 1,
		  FP8_SCHEME EXPERTS_HELD("\"q\":\"fp8-block\",\"dtype\":\"f8e4m3\","
					  "\"scale\":\"w{E}_scale_inv\","));
	copy = first_copy(&pair, 256u << 10, &whole);
	ck_assert_uint_gt(copy.part_count, 4);
	ck_assert(whole && copy.op_bytes == 128 * 1536);
	pair_close(&pair);
}
END_TEST

START_TEST(codes_are_made_of_floats_only)
{
	struct pair_world pair;
	const char *codes = "\"params\":[{\"p\":\"w\",\"dtype\":\"f8e4m3\",\"x\":[\"t\",\"w\"]}]";

	pair_open(&pair, W("[256,256]"), 1, codes, 1, FP8_WHOLE);
	ck_assert_str_eq(pair_refused(&pair, "quant"),
			 "'w_scale_inv' comes out of quantizing f32, bf16 or f16, and the "
			 "trainer's weight is f8e4m3");
	pair_close(&pair);
}
END_TEST

/* Each tensor under a scale must be of floats, not only the one that it is called after. */
START_TEST(all_weights_under_one_scale_are_floats)
{
	struct pair_world pair;
	const char *tensors = W("[64,8]") ",{\"name\":\"v\",\"dtype\":\"f8e4m3\",\"shape\":[64,8]}";
	const char *held = "\"params\":[{\"p\":\"v\",\"x\":[\"t\",\"v\"]},"
			   "{\"p\":\"w\",\"x\":[\"t\",\"w\"]}]";
	const char *fused = "\"schemes\":{\"t\":{\"kind\":\"tensor\",\"fmt\":\"e4m3\"}},"
			    "\"params\":[{\"p\":\"wv\",\"q\":\"t\",\"dtype\":\"f8e4m3\",\"x\":"
			    "[\"c\",0,[\"t\",\"w\"],[\"t\",\"v\"]]}]";

	pair_open(&pair, tensors, 1, held, 1, fused);
	ck_assert_ptr_nonnull(strstr(pair_refused(&pair, "quant"),
				     "comes out of quantizing f32, bf16 or f16, and the trainer's "
				     "weight is f8e4m3"));
	pair_close(&pair);
}
END_TEST

/*
 * Who sends codes of one weight, and holds nothing of another under the same scale, is told that
 * one's maximum: trainer 0 has w, trainer 1 has v.
 */
START_TEST(who_holds_one_weight_is_told_of_the_other_under_its_scale)
{
	struct pair_world pair;
	const char *tensors = W("[64,8]") ",{\"name\":\"v\",\"dtype\":\"bf16\",\"shape\":[64,8]}";
	const char *held = "\"rows\":[{\"t\":\"w\",\"rank\":0,\"goff\":[0,0],\"lshape\":[64,8]},"
			   "{\"t\":\"v\",\"rank\":1,\"goff\":[0,0],\"lshape\":[64,8]}]";
	const char *fused = "\"schemes\":{\"t\":{\"kind\":\"tensor\",\"fmt\":\"e4m3\"}},"
			    "\"params\":[{\"p\":\"wv\",\"q\":\"t\",\"dtype\":\"f8e4m3\",\"x\":"
			    "[\"c\",0,[\"t\",\"w\"],[\"t\",\"v\"]]}]";

	pair_open(&pair, tensors, 2, held, 1, fused);
	for (uint32_t self = 0; self < 2; self++) {
		struct plan *plan = pair_plan(&pair, self);
		struct plan_cursor cursor = {0};
		struct plan_copy copy;
		struct plan_local local;
		ck_ok(plan_check(plan, &pair.findings, &pair.err), pair.err);
		ck_assert_uint_eq(plan_tables_bytes(plan), 4);
		ck_assert(plan_next_local(plan, &cursor, &local));
		ck_assert(!plan_next_local(plan, &cursor, &local));
		cursor = (struct plan_cursor){0};
		ck_assert(plan_next_receive(plan, &cursor, &copy));
		ck_assert_uint_eq(copy.sender, 1 - self);
		ck_assert_int_eq(copy.parts[0].kind, PART_MAXIMA);
		ck_assert_uint_eq(copy.bytes, 4);
		plan_free(plan);
	}
	pair_close(&pair);
}
END_TEST

/* A scale that a rank without its block would send is seen. */
START_TEST(a_scale_from_who_holds_nothing_of_its_block_is_seen)
{
	struct pair_world pair;

	pair_open(&pair, W("[600,256]"), 3, PARAM("[\"s\",[\"t\",\"w\"],0,\"n\"]"), 1, FP8_WHOLE);
	struct plan *plan = pair_plan(&pair, 3);
	uint32_t met = 0;
	for (size_t i = 0; i < plan_stored_count(plan); i++) {
		struct stored_copy *copy = plan_stored_copy(plan, i);
		for (uint32_t p = 0; p < copy->part_count; p++) {
			struct plan_part *part = plan_stored_part(plan, copy, p);
			if (part->kind != PART_SCALES)
				continue;
			/* to another block at both ends */
			uint64_t src = part->src_offset, dst = part->dst_offset;
			part->src_offset = part->dst_offset = (src + 24) % 40;
			digests_renew(plan);
			pair.findings = (struct findings){.arena = &pair.arena};
			ck_fails(plan_check(plan, &pair.findings, &pair.err), -EINVAL, pair.err);
			part->src_offset = src;
			part->dst_offset = dst;
			met++;
		}
	}
	ck_assert_uint_eq(met, 3);
	plan_free(plan);
	pair_close(&pair);
}
END_TEST

/* Its first element would be in block 2^64 / 128, and its last one in the first. */
START_TEST(a_grid_that_begins_below_zero_is_rejected)
{
	struct pair_world pair;
	uint32_t met = 0;

	pair_open(&pair, W("[100,256]"), 1, WHOLE, 1, FP8_WHOLE);
	struct plan *plan = pair_plan(&pair, 0);
	for (size_t i = 0; i < plan->parts.count; i++) {
		struct plan_part *part = (struct plan_part *)plan->parts.items + i;
		for (uint32_t d = 0; part->kind == PART_CODES && d < part->dim_count; d++) {
			const struct plan_blocks *kept = part->blocks;
			struct plan_blocks wrong = *kept;
			wrong.first[d] = 1 - part->extent[d];
			wrong.stride[d] = 1;
			part->blocks = &wrong;
			digests_renew(plan);
			ck_fails(plan_check(plan, &pair.findings, &pair.err), -EINVAL, pair.err);
			part->blocks = kept;
			met++;
		}
	}
	ck_assert_uint_gt(met, 1);
	digests_renew(plan);
	pair.findings = (struct findings){.arena = &pair.arena};
	ck_ok(plan_check(plan, &pair.findings, &pair.err), pair.err);
	plan_free(plan);
	pair_close(&pair);
}
END_TEST

#define SCHEME(kind) "\"schemes\":{\"q\":{\"kind\":" kind ",\"fmt\":\"e4m3\",\"scale\":\"f32\"}},"
#define CODES(x)     "\"params\":[{\"p\":\"w\",\"q\":\"q\",\"dtype\":\"f8e4m3\",\"x\":" x "}]"

/* The scale of a row is that of all its columns, wanted or not. */
START_TEST(a_block_that_trainers_hold_a_part_of_is_missing)
{
	struct pair_world pair;

	pair_open(&pair, W("[64,256]"), 1, PARAM("[\"r\",[\"t\",\"w\"],1,0,100]"), 1,
		  SCHEME("\"channel\"") CODES("[\"r\",[\"t\",\"w\"],1,0,100]"));
	ck_assert_str_eq(pair_refused(&pair, "missing"),
			 "rollout rank 0's 'w' needs [0:64, 100:256] of 'w', which no trainer "
			 "rank holds");
	pair_close(&pair);
}
END_TEST

/* 64 rows a rank tear a block of 128; of 32 they don't, and shards of 103 rows tell each other. */
START_TEST(a_smaller_block_plans_where_a_larger_one_is_torn)
{
	static const char *const blocks[] = {"\"block\",\"block\":[128,128]",
					     "\"block\",\"block\":[32,32]"};
	const char *rows = "[\"s\",[\"t\",\"w\"],0,\"n\"]";
	struct pair_world pair;
	char target[512], whole[1024];

	snprintf(target, sizeof(target), SCHEME("%s") CODES("%s"), blocks[0], rows);
	snprintf(whole, sizeof(whole),
		 "{\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"hand\","
		 "\"model\":\"hand\",\"world\":8,\"tensors\":[" W(
			 "[512,256]") "],"
				      "\"meshes\":{\"m\":{\"axes\":[[\"n\",8]]}},%s}",
		 target);
	struct manifest *torn = NULL;
	struct ws_error err;
	ck_fails(manifest_parse(&torn, whole, strlen(whole), NULL, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, "the largest size of axis 'n' that works is 4, not 8") !=
			      NULL,
		      "%s", err.text);
	snprintf(target, sizeof(target), SCHEME("%s") CODES("%s"), blocks[1], rows);
	pair_open(&pair, W("[512,256]"), 5,
		  PARAM("[\"s\",[\"t\",\"w\"],0,\"n\",{\"mode\":\"chunk\"}]"), 8, target);
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_ok(plan_check(all, &pair.findings, &pair.err), pair.err);
	/* each of four borders tears a row of 8 blocks, and either side tells the other */
	ck_assert_uint_eq(plan_totals(all)->maxima_pairs, 2 * 4);
	ck_assert_uint_eq(plan_totals(all)->maxima_bytes, 2 * 4 * 8 * 4);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_quant");
	TCase *quant = tcase_create("quantized");

	tcase_set_timeout(quant, 60);
	tcase_add_test(quant, a_grid_that_begins_below_zero_is_rejected);
	tcase_add_test(quant, codes_come_from_every_holder_and_each_scale_from_one);
	tcase_add_test(quant, no_op_tears_a_whole_block_and_scales_come_last);
	tcase_add_test(quant, codes_are_made_of_floats_only);
	tcase_add_test(quant, all_weights_under_one_scale_are_floats);
	tcase_add_test(quant, who_holds_one_weight_is_told_of_the_other_under_its_scale);
	tcase_add_test(quant, a_scale_from_who_holds_nothing_of_its_block_is_seen);
	tcase_add_test(quant, a_block_that_trainers_hold_a_part_of_is_missing);
	tcase_add_test(quant, a_smaller_block_plans_where_a_larger_one_is_torn);
	suite_add_tcase(tests, quant);
	return tests;
}
