/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan with one wrong number doesn't pass the check, whatever number it is: every field that a
 * walk reads is changed, one at a time.  (Not where copies and parts are stored: what stands there
 * is what counts.)
 */
#include <errno.h>
#include <string.h>

#include "tests/plan_world.h"
#include "tests/plan_wrong.h"
#include "tests/test.h"

#define SEEDS 24
#define TURNS 40

static void copy_fields(struct fields *fields, struct plan *plan, struct stored_copy *copy,
			uint32_t part)
{
	size_t at = copy->part_first + part;

	FIELD(fields, copy, bytes);
	FIELD(fields, copy, op_bytes);
	FIELD(fields, copy, part_count);
	FIELD(fields, copy, repeat);
	FIELD(fields, copy, src_step);
	FIELD(fields, copy, dst_step);
	FIELD(fields, copy, first_op);
	FIELD(fields, copy, op_count);
	FIELD(fields, copy, counter);
	FIELD(fields, copy, ring);
	FIELD(fields, copy, gather);
	part_fields(fields, (struct plan_part *)plan->parts.items + at,
		    (struct part_rules *)plan->part_rules.items + at);
}

static void segment_fields(struct fields *fields, struct segment *segment)
{
	FIELD(fields, segment, kind);
	FIELD(fields, segment, copy_count);
	FIELD(fields, segment, copy_total);
	FIELD(fields, segment, counter_count);
	FIELD(fields, segment, ring_count);
	FIELD(fields, segment, direct_op_count);
	FIELD(fields, segment, direct_bytes);
	FIELD(fields, segment, direct_gather_bytes);
	FIELD(fields, segment, bytes);
	FIELD(fields, segment, op_count);
	FIELD(fields, segment, of_tables);
	FIELD(fields, segment, digest);
}

static void pair_fields(struct fields *fields, struct pair_state *state, uint32_t instance_index,
			uint32_t counter_index)
{
	struct plan_pair *pair = &state->pair;
	struct instance *instance = &state->instances[instance_index];
	struct plan_counter *counter = (struct plan_counter *)pair->counters + counter_index;

	FIELD(fields, pair, sender);
	FIELD(fields, pair, receiver);
	FIELD(fields, pair, feeds);
	FIELD(fields, pair, bytes);
	FIELD(fields, pair, data_op_count);
	FIELD(fields, pair, op_count);
	FIELD(fields, pair, counter_count);
	FIELD(fields, pair, ring_count);
	FIELD(fields, pair, credit_count);
	FIELD(fields, pair, digest);
	FIELD(fields, instance, bucket);
	FIELD(fields, instance, segment);
	FIELD(fields, instance, counter_base);
	FIELD(fields, instance, ring_base);
	FIELD(fields, instance, op_base);
	FIELD(fields, state, instance_count);
	FIELD(fields, state, counter_total);
	FIELD(fields, counter, bucket);
	FIELD(fields, counter, op_count);
	FIELD(fields, counter, ring);
	FIELD(fields, counter, bytes);
	FIELD(fields, counter, gather_bytes);
}

/* The fields of some pair, one of its copies and one of that copy's parts. */
static void fields_choose(struct fields *fields, struct gen *gen, struct plan *plan)
{
	struct pair_state *state =
		plan_pair_state(plan, gen_below(gen, (uint32_t)plan->pairs.count));
	uint32_t instance = gen_below(gen, state->instance_count);
	struct segment *segment = plan_segment(plan, state->instances[instance].segment);
	size_t index = segment->copy_first + gen_below(gen, segment->copy_count);
	struct stored_copy *copy = plan_stored_copy(plan, index);
	struct unit_bucket *bucket = &plan->buckets[state->instances[instance].bucket];

	fields->count = 0;
	copy_fields(fields, plan, copy, gen_below(gen, copy->part_count));
	segment_fields(fields, segment);
	pair_fields(fields, state, instance, gen_below(gen, state->pair.counter_count));
	FIELD(fields, bucket, kind);
	FIELD(fields, bucket, layer);
	FIELD(fields, plan, digest);
	FIELD(fields, plan, slot_bytes);
	FIELD(fields, plan, receive_count);
	FIELD(fields, plan, send_count);
	if (plan->send_count > 0)
		FIELD(fields, plan, send_first);
}

static struct plan *a_plan_with_copies(struct world *world, uint32_t from)
{
	for (uint32_t i = 0; i < world->members; i++) {
		struct plan *plan = world->plans[(from + i) % world->members];
		if (plan_stored_count(plan) > 0)
			return plan;
	}
	return NULL;
}

START_TEST(a_plan_with_one_wrong_field_is_rejected)
{
	struct world world;
	struct fields fields;

	world_open(&world, (uint32_t)_i);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		struct plan *plan =
			a_plan_with_copies(&world, gen_below(&world.gen, world.members));
		if (turn % 8 == 0)
			plan = world.all;
		ck_assert(plan != NULL);
		fields_choose(&fields, &world.gen, plan);
		const struct field *field = &fields.list[gen_below(&world.gen, fields.count)];
		uint8_t before[8];
		memcpy(before, field->at, field->bytes);
		ck_ok(plan_check(plan, NULL, &world.err), world.err);
		field_change(field, 1);
		ck_assert_msg(plan_check(plan, NULL, &world.err) == -EINVAL,
			      "turn %u: '%s' may be one more at member %u", turn, field->name,
			      plan->self);
		memcpy(field->at, before, field->bytes);
	}
	world_close(&world);
}
END_TEST

/* The stored plan is right then: only who reads it as a side does can tell. */
START_TEST(a_pair_that_a_walk_would_miss_or_meet_twice_is_rejected)
{
	struct world world;
	uint32_t met = 0;

	world_open(&world, (uint32_t)_i);
	for (uint32_t m = 0; m < world.members; m++) {
		struct plan *plan = world.plans[m];
		if (plan->send_count < 2)
			continue;
		uint32_t before = plan->send_order[1];
		plan->send_order[1] = plan->send_order[0];
		ck_fails(plan_check(plan, NULL, &world.err), -EINVAL, world.err);
		plan->send_order[1] = before;
		plan->send_count--;
		ck_fails(plan_check(plan, NULL, &world.err), -EINVAL, world.err);
		plan->send_count++;
		ck_ok(plan_check(plan, NULL, &world.err), world.err);
		met++;
	}
	ck_assert_uint_gt(met, 0);
	world_close(&world);
}
END_TEST

static bool is_tied(const struct world *world, uint32_t member, uint32_t param)
{
	const struct rank_params *params = &world->params[member];

	return param < params->count && strcmp(params->params[param].name, "model.tied") == 0;
}

/* A part of a receiver's plan that is wrong from the start, digests and all. */
START_TEST(a_part_planned_wrong_is_rejected_by_what_it_would_write)
{
	struct world world;
	struct fields fields;

	world_open(&world, (uint32_t)_i);
	world_params(&world);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		uint32_t member =
			world.trainers + gen_below(&world.gen, world.members - world.trainers);
		struct plan *plan = a_plan_with_copies(&world, member);
		if (plan->self < world.trainers)
			continue;
		size_t index = gen_below(&world.gen, (uint32_t)plan_stored_count(plan));
		struct stored_copy *copy = plan_stored_copy(plan, index);
		uint32_t part_index = gen_below(&world.gen, copy->part_count);
		struct plan_part *part = plan_stored_part(plan, copy, part_index);
		fields.count = 0;
		copy_fields(&fields, plan, copy, part_index);
		const struct field *field = &fields.list[gen_below(&world.gen, fields.count)];
		uint8_t before[8];
		memcpy(before, field->at, field->bytes);
		field_change(field, 1);
		digests_renew(plan);
		int rc = plan_check(plan, NULL, &world.err);
		bool stride_of_one = false;
		for (uint32_t d = 0; d < part->dim_count && d < BOX_DIM_MAX; d++)
			stride_of_one = stride_of_one || (part->extent[d] == 1 &&
							  (field->at == &part->src_stride[d] ||
							   field->at == &part->dst_stride[d]));
		/* Another param with the same weights is as good. */
		bool tied = field->at == &part->src_param;
		for (uint32_t m = 0; tied && m < world.trainers; m++)
			tied = is_tied(&world, m, part->src_param - 1) ||
			       is_tied(&world, m, part->src_param);
		ck_assert_msg(rc == -EINVAL || stride_of_one || tied, "turn %u: '%s' passed", turn,
			      field->name);
		memcpy(field->at, before, field->bytes);
		digests_renew(plan);
		ck_ok(plan_check(plan, NULL, &world.err), world.err);
	}
	world_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_mutations");
	TCase *random = tcase_create("random layouts");

	tcase_set_timeout(random, 120);
	tcase_add_loop_test(random, a_plan_with_one_wrong_field_is_rejected, 0, SEEDS);
	tcase_add_loop_test(random, a_pair_that_a_walk_would_miss_or_meet_twice_is_rejected, 0, 4);
	tcase_add_loop_test(random, a_part_planned_wrong_is_rejected_by_what_it_would_write, 0,
			    SEEDS);
	suite_add_tcase(tests, random);
	return tests;
}
