/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan with one wrong number doesn't pass the check, whatever number it is.
 */
#include <errno.h>
#include <string.h>

#include "tests/plan_world.h"
#include "tests/test.h"

#define SEEDS 48

/* ---- P12: one wrong number, and the check says so. */
#define MUTATIONS 23

static bool mutate(struct plan *plan, uint32_t which, size_t index)
{
	struct stored_copy *stored = plan_stored_copy(plan, index);
	struct plan_copy *copy = &stored->copy;
	struct plan_part *part = plan_stored_part(plan, stored, copy->part_count - 1);
	uint32_t last = part->dim_count - 1;

	switch (which) {
	case 0:
		copy->bucket++;
		return true;
	case 1:
		copy->sender++;
		return true;
	case 2:
		copy->receiver++;
		return true;
	case 3:
		copy->bytes += 1;
		return true;
	case 4:
		copy->first_op++;
		return true;
	case 5:
		copy->op_count++;
		return true;
	case 6:
		copy->counter++;
		return true;
	case 7:
		copy->gather = !copy->gather;
		return true;
	case 8:
		copy->ring++;
		return true;
	case 9:
		copy->ring = copy->ring < 0 ? 0 : -1;
		return true;
	case 10:
		copy->part_count--;
		return true;
	case 11:
		part->src_param++;
		return true;
	case 12:
		part->dst_param++;
		return true;
	case 13:
		part->src_offset += ws_dtype_bytes(part->from);
		return true;
	case 14:
		part->dst_offset += ws_dtype_bytes(part->to);
		return true;
	case 15:
		part->src_offset += 1;
		return true;
	case 16:
		part->extent[0]++;
		return true;
	case 17:
		if (part->extent[last] == 1)
			return false;
		part->extent[last]--;
		return true;
	case 18:
		if (part->extent[last] == 1)
			return false; /* a stride that nothing walks along */
		part->src_stride[last] += (int64_t)ws_dtype_bytes(part->from);
		return true;
	case 19:
		if (part->extent[last] == 1)
			return false;
		part->dst_stride[last] += (int64_t)ws_dtype_bytes(part->to);
		return true;
	case 20:
		part->from = part->from == WS_U32 ? WS_I32 : WS_U32;
		return true;
	case 21:
		part->to = part->to == WS_U32 ? WS_I32 : WS_U32;
		return true;
	default:
		part->wire_offset += 16;
		return true;
	}
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

static bool is_tied(const struct world *world, uint32_t member, uint32_t param)
{
	const struct rank_params *params = &world->params[member];

	return param < params->count && strcmp(params->params[param].name, "model.tied") == 0;
}

START_TEST(a_plan_with_one_wrong_field_is_rejected)
{
	struct world world;

	world_open(&world, (uint32_t)_i);
	world_params(&world);
	for (uint32_t turn = 0; turn < 12; turn++) {
		uint32_t which = ((uint32_t)_i * 12 + turn) % MUTATIONS;
		struct plan *plan =
			a_plan_with_copies(&world, gen_below(&world.gen, world.members));
		ck_assert(plan != NULL);
		size_t index = gen_below(&world.gen, (uint32_t)plan_stored_count(plan));
		struct stored_copy *stored = plan_stored_copy(plan, index);
		struct stored_copy copy = *stored;
		struct plan_part *last = plan_stored_part(plan, stored, copy.copy.part_count - 1);
		struct plan_part part = *last;
		ck_ok(plan_check(plan, NULL, &world.err), world.err);
		if (!mutate(plan, which, index))
			continue;
		/* Another param with the same weights is as good: only the pair digest tells. */
		if ((which == 11 && is_tied(&world, stored->copy.sender, last->src_param)) ||
		    (which == 12 && plan->self < world.trainers &&
		     is_tied(&world, stored->copy.receiver, last->dst_param))) {
			*last = part;
			continue;
		}
		ck_assert_msg(plan_check(plan, NULL, &world.err) == -EINVAL,
			      "mutation %u of copy %zu passed", which, index);
		*stored = copy;
		*last = part;
	}
	world_close(&world);
}
END_TEST

START_TEST(a_receivers_plan_that_lost_a_copy_or_a_threshold_is_rejected)
{
	struct world world;

	world_open(&world, (uint32_t)_i);
	struct plan *plan = a_plan_with_copies(&world, world.trainers);
	ck_assert(plan->self >= world.trainers);
	plan->receives.count--;
	ck_assert_int_eq(plan_check(plan, NULL, &world.err), -EINVAL);
	plan->receives.count++;
	struct pair_state *state = plan_pair_state(plan, 0);
	((struct plan_counter *)state->counters.items)[0].op_count++;
	ck_assert_int_eq(plan_check(plan, NULL, &world.err), -EINVAL);
	((struct plan_counter *)state->counters.items)[0].op_count--;
	state->pair.data_op_count--;
	ck_assert_int_eq(plan_check(plan, NULL, &world.err), -EINVAL);
	state->pair.data_op_count++;
	state->pair.credit_count++;
	ck_assert_int_eq(plan_check(plan, NULL, &world.err), -EINVAL);
	state->pair.credit_count--;
	ck_ok(plan_check(plan, NULL, &world.err), world.err);
	world_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_mutations");
	TCase *random = tcase_create("random layouts");

	tcase_set_timeout(random, 120);
	tcase_add_loop_test(random, a_plan_with_one_wrong_field_is_rejected, 0, SEEDS);
	tcase_add_loop_test(random, a_receivers_plan_that_lost_a_copy_or_a_threshold_is_rejected, 0,
			    SEEDS);
	suite_add_tcase(tests, random);
	return tests;
}
