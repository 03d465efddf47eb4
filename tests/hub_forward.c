/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub where rollouts write to rollouts and trainers to trainers: who hears whose ready, and
 * what is dropped with a replica that others get their bytes from.
 */
#include <errno.h>
#include <string.h>

#include "lib/hub/hub_frames.h"
#include "tests/hub_world.h"
#include "tests/test.h"

START_TEST(each_replica_hears_the_ready_of_the_next_one_only)
{
	struct world world;
	world_open(&world, 1, 3, 2,
		   &(struct hub_options){.min_replicas = 3, .forward = HUB_FORWARD_CHAIN});
	ck_assert(world_run(&world, all_are_wired, NULL));
	for (uint64_t version = 1; version <= 2; version++)
		push_ok(&world, version);
	for (uint32_t i = 1; i < world.count; i++)
		for (uint32_t k = 1; k < world.count; k++)
			ck_assert_uint_eq(world.actor[i].ready[k], k == i + 2 ? 2 : 0);
	for (uint32_t i = 1; i < world.count; i++)
		ck_assert(!world.actor[i].next_gone);
	world_close(&world);
}
END_TEST

/* Of two ranks per replica, behind one trainer. */
static bool all_have_heard_their_fellow(const struct world *world, const void *arg)
{
	(void)arg;
	for (uint32_t i = 1; i < world->count; i++)
		if (world->actor[i].ready[((i - 1) ^ 1) + 1] == 0)
			return false;
	return true;
}

START_TEST(ranks_of_a_replica_hear_each_others_ready)
{
	struct world world;
	world_open(&world, 1, 2, 2,
		   &(struct hub_options){.min_replicas = 2, .forward = HUB_FORWARD_INSIDE});
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 1);
	/* Nobody waits for these: the last may still be under way. */
	ck_assert(world_run(&world, all_have_heard_their_fellow, NULL));
	for (uint32_t i = 1; i < world.count; i++)
		for (uint32_t k = 1; k < world.count; k++) {
			bool same = k != i && (k - 1) / 2 == (i - 1) / 2;
			ck_assert_uint_eq(world.actor[i].ready[k], same ? 1 : 0);
		}
	world_close(&world);
}
END_TEST

START_TEST(trainers_hear_each_others_ready_in_each_attempt)
{
	struct world world;
	world_open(&world, 3, 1, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	for (uint64_t version = 1; version <= 3; version++) {
		push_ok(&world, version);
		for (uint32_t i = 0; i < 3; i++)
			for (uint32_t k = 0; k < 3; k++)
				ck_assert_uint_eq(world.actor[i].ready[k], k == i ? 0 : version);
		ck_assert_uint_eq(world.actor[3].ready[0], 0);
	}
	world_close(&world);
}
END_TEST

static bool two_have_joined(const struct world *world, const void *arg)
{
	(void)arg;
	return world->actor[0].joined == 1 && world->actor[1].joined == 1;
}

static bool rollout_is_ready_and_two_have_joined(const struct world *world, const void *arg)
{
	return world->actor[3].state == RANK_READY && two_have_joined(world, arg);
}

/* Trainer 2 doesn't push: the others know of each other only, and wait for it; one comes late. */
START_TEST(a_trainer_that_has_not_joined_is_not_ready_and_is_waited_for)
{
	struct world world;
	world_open(&world, 3, 1, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	actor_push(&world.actor[0], 1);
	actor_push(&world.actor[1], 1);
	ck_assert(world_run(&world, rollout_is_ready_and_two_have_joined, NULL));
	world_run_ms(&world, 300);
	ck_assert_uint_eq(world.actor[0].ready[1], 1);
	ck_assert_uint_eq(world.actor[1].ready[0], 1);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_uint_eq(world.actor[i].ready[2], 0);
		ck_assert_uint_eq(world.actor[i].written[3], 0);
	}
	actor_push(&world.actor[2], 1);
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_msg(push_error(&world, 0)->code == 0, "%s", push_error(&world, 0)->text);
	ck_assert_uint_eq(world.actor[0].ready[2], 1);
	ck_assert_uint_eq(world.actor[2].ready[0], 1);
	world_close(&world);
}
END_TEST

/* Both stand still.  Who waits for another is named only where all do, and what for. */
START_TEST(a_trainer_that_stands_still_is_named_before_one_that_waits_for_it)
{
	struct world world;
	world_open(&world, 2, 1, 1, &(struct hub_options){.min_replicas = 1, .phase_ms = 1500});
	ck_assert(world_run(&world, all_are_wired, NULL));
	for (uint32_t i = 0; i < 2; i++)
		world.actor[i].mute = true;
	member_say_waiting(world.actor[0].member, "got 0 of 1 ops of maxima from trainer 1");
	if (_i == 1)
		member_say_waiting(world.actor[1].member, "has maxima for trainer 0");
	/* The rollout begins to wait for them when both have stood still for a while. */
	world.actor[2].frozen = true;
	world_push(&world, 1);
	ck_assert(world_run(&world, two_have_joined, NULL));
	world_run_ms(&world, 500);
	world.actor[2].frozen = false;
	ck_assert(world_run(&world, push_ended, NULL));
	for (uint32_t i = 0; i < 2; i++) {
		const char *text = push_error(&world, i)->text;
		const char *says = _i == 1 ? "trainer 0 hasn't sent all of version 1"
					   : "trainer 1 hasn't sent all of version 1";
		ck_assert_msg(strstr(text, says) != NULL, "%s", text);
		ck_assert_msg(_i == 0 || strstr(text, "s: it got 0 of 1 ops of maxima from "
						      "trainer 1; rollout 0.0 waits") != NULL,
			      "%s", text);
	}
	world_close(&world);
}
END_TEST

static bool next_is_gone(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->next_gone;
}

/* Replica 1 dies before it has anything: 2 can't land, 0 needn't wait for it. */
START_TEST(who_waits_for_a_dropped_replica_is_dropped_and_named)
{
	struct world world;
	world_open(&world, 1, 3, 1,
		   &(struct hub_options){
			   .min_replicas = 1, .forward = HUB_FORWARD_CHAIN, .lost_ms = 1000});
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 1);
	struct actor *first = world_rollout(&world, 0, 0), *middle = world_rollout(&world, 1, 0),
		     *last = world_rollout(&world, 2, 0);
	middle->no_step = true;
	world_push(&world, 2);
	ck_assert(world_run(&world, rollout_has_begun, last));
	actor_kill(middle);
	ck_assert(world_run(&world, next_is_gone, first));
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_msg(world.actor[0].push_error.code == 0, "%s", world.actor[0].push_error.text);
	ck_assert_uint_eq(first->live, 2);
	ck_assert_uint_eq(last->drop_count, 1);
	ck_assert_uint_eq(last->live, 1);
	ck_assert_msg(strstr(last->dropped.text,
			     "replica 2 gets its weights from replica 1: rollout 1.0") != NULL,
		      "%s", last->dropped.text);
	/* Replica 2 comes back by itself, behind replica 0 now. */
	last->all_wired = first->all_wired = false;
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok_but(&world, 3, middle);
	ck_assert_uint_eq(last->live, 3);
	ck_assert_uint_eq(first->ready[last->self], 3);
	world_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("hub_forward");
	TCase *forward = tcase_create("forward");

	tcase_add_test(forward, each_replica_hears_the_ready_of_the_next_one_only);
	tcase_add_test(forward, ranks_of_a_replica_hear_each_others_ready);
	tcase_add_test(forward, trainers_hear_each_others_ready_in_each_attempt);
	tcase_add_test(forward, a_trainer_that_has_not_joined_is_not_ready_and_is_waited_for);
	tcase_add_loop_test(
		forward, a_trainer_that_stands_still_is_named_before_one_that_waits_for_it, 0, 2);
	tcase_add_test(forward, who_waits_for_a_dropped_replica_is_dropped_and_named);
	tcase_set_timeout(forward, 60);
	suite_add_tcase(tests, forward);
	return tests;
}
