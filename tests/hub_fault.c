/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deaths, stops and failures over real sockets: what is dropped, what is aborted, what goes on,
 * and that the next version goes live with everybody back.
 */
#include <errno.h>
#include <string.h>

#include "tests/hub_world.h"
#include "tests/test.h"

#define LOST_MS 1000

static void names(const struct ws_error *err, const char *part)
{
	ck_assert_msg(strstr(err->text, part) != NULL, "'%s' isn't in: %s", part, err->text);
}

static bool actor_is_over(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->is_over;
}

static bool rollout_is_ready(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->state == RANK_READY;
}

static bool rollout_is_paused(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->state == RANK_PAUSED;
}

static bool rollout_is_live(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->state == RANK_LIVE;
}

static bool rollout_serves_2(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->live == 2;
}

static bool actor_was_dropped(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->was_dropped;
}

static bool actor_has_no_hub(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->hub_lost;
}

static bool rollout_has_aborted(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->abort_count == 1;
}

static bool first_push_ended(const struct world *world, const void *arg)
{
	(void)arg;
	return world->actor[0].want == 0;
}

static bool view_of(const struct world *world, uint32_t replica, struct replica_view *view_out)
{
	struct replica_view views[4];
	uint32_t count = member_replicas(world->actor[0].member, views, 4);
	for (uint32_t i = 0; i < count; i++) {
		*view_out = views[i];
		if (views[i].replica == replica)
			return true;
	}
	return false;
}

/* Two trainers and two replicas of two, wired, serving version 1. */
static void world_of_six(struct world *world, const struct hub_options *options)
{
	world_open(world, 2, 2, 2, options);
	ck_assert(world_run(world, all_are_wired, NULL));
	push_ok(world, 1);
}

/* The hub's begin may reach the rollouts before it reaches trainer 0. */
static bool trainer_0_has_joined(const struct world *world, const void *arg)
{
	const struct actor *rollout = arg;
	return world->actor[0].joined == rollout->attempt;
}

/* Trainer 1 writes nothing, so that the attempt stays in the middle. */
static void begin_and_stay(struct world *world, uint64_t version)
{
	world->actor[1].mute = true;
	world_push(world, version);
	for (uint32_t i = world->trainers; i < world->count; i++)
		ck_assert(world_run(world, rollout_is_ready, &world->actor[i]));
	ck_assert(world_run(world, trainer_0_has_joined, &world->actor[world->trainers]));
}

START_TEST(a_lost_rollout_takes_only_its_replica)
{
	struct world world;
	struct replica_view view;
	world_of_six(&world, &(struct hub_options){.min_replicas = 1, .lost_ms = LOST_MS});
	struct actor *victim = world_rollout(&world, (uint32_t)_i, (uint32_t)_i);
	begin_and_stay(&world, 2);
	actor_kill(victim);
	world_run_ms(&world, 20);
	world.actor[1].mute = false;
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_int_eq(push_error(&world, 0)->code, 0);
	ck_assert_int_eq(push_error(&world, 1)->code, 0);
	ck_assert_uint_eq(world_rollout(&world, 1 - victim->replica, 0)->live, 2);
	ck_assert_uint_eq(world_rollout(&world, 1 - victim->replica, 1)->live, 2);
	/* Its fellow rank is told, keeps its old weights and joins again. */
	struct actor *fellow = world_rollout(&world, victim->replica, 1 - victim->rank);
	ck_assert(world_run(&world, actor_was_dropped, fellow));
	names(&fellow->dropped, victim->rank == 0 ? ".0" : ".1");
	names(&fellow->dropped, "not heard");
	ck_assert_uint_eq(fellow->live, 1);
	if (view_of(&world, victim->replica, &view))
		ck_assert(!view.in);
	actor_open(&world, victim, NULL);
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 3);
	world_close(&world);
}
END_TEST

START_TEST(too_few_replicas_fail_the_push_and_say_why)
{
	struct world world;
	world_of_six(&world, &(struct hub_options){.min_replicas = 2, .lost_ms = LOST_MS});
	begin_and_stay(&world, 2);
	actor_kill(world_rollout(&world, 1, 0));
	world.actor[1].mute = false;
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_int_ne(push_error(&world, 0)->code, 0);
	names(push_error(&world, 0), "rollout 1.0");
	names(push_error(&world, 0), "1 of at least 2");
	ck_assert_uint_eq(world_rollout(&world, 0, 0)->live, 2);
	/* The next begin waits for the replica. */
	world_push(&world, 3);
	actor_open(&world, world_rollout(&world, 1, 0), NULL);
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_msg(push_error(&world, 0)->code == 0, "%s", push_error(&world, 0)->text);
	ck_assert_uint_eq(world_rollout(&world, 1, 0)->live, 3);
	world_close(&world);
}
END_TEST

START_TEST(a_lost_trainer_aborts_everywhere)
{
	struct world world;
	world_of_six(&world, &(struct hub_options){.min_replicas = 2, .lost_ms = LOST_MS});
	begin_and_stay(&world, 2);
	if (_i == 0) {
		actor_kill(&world.actor[1]);
	} else { /* says goodbye */
		member_close(world.actor[1].member);
		world.actor[1].member = NULL;
	}
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_int_eq(push_error(&world, 0)->code, -ECONNRESET);
	names(push_error(&world, 0), "trainer 1");
	for (uint32_t i = 2; i < world.count; i++) {
		ck_assert(world_run(&world, rollout_has_aborted, &world.actor[i]));
		ck_assert_uint_eq(world.actor[i].live, 1);
		ck_assert(!world.actor[i].was_dropped);
	}
	actor_open(&world, &world.actor[1], NULL);
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 2);
	world_close(&world);
}
END_TEST

/* Like SIGSTOP past the deadline, then SIGCONT. */
START_TEST(a_stopped_member_is_dropped_and_comes_back)
{
	struct world world;
	world_of_six(&world, &(struct hub_options){.min_replicas = 1, .lost_ms = LOST_MS});
	begin_and_stay(&world, 2);
	struct actor *stopped = _i == 0 ? &world.actor[1] : world_rollout(&world, 1, 1);
	stopped->frozen = true;
	world.actor[1].mute = false;
	ck_assert(world_run(&world, first_push_ended, NULL));
	ck_assert_int_eq(push_error(&world, 0)->code, _i == 0 ? -ECONNRESET : 0);
	stopped->frozen = false;
	stopped->want = 0; /* what it pushed is lost */
	stopped->over_attempt = stopped->joined;
	ck_assert(world_run(&world, actor_was_dropped, stopped));
	names(&stopped->dropped, "not heard");
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 3);
	world_close(&world);
}
END_TEST

START_TEST(an_engine_that_never_steps_is_named)
{
	struct world world;
	world_open(&world, 1, 2, 1, &(struct hub_options){.min_replicas = 1, .phase_ms = 2500});
	world.actor[2].no_step = true;
	ck_assert(world_run(&world, all_are_wired, NULL));
	world_push(&world, 1);
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_int_eq(push_error(&world, 0)->code, 0);
	ck_assert_uint_eq(world.actor[1].live, 1);
	ck_assert(world_run(&world, actor_was_dropped, &world.actor[2]));
	names(&world.actor[2].dropped, "rollout 1.0");
	names(&world.actor[2].dropped, "ws_rollout_step");
	world_close(&world);
}
END_TEST

START_TEST(a_failed_reload_drops_its_replica_only)
{
	struct world world;
	world_of_six(&world, &(struct hub_options){.min_replicas = 1});
	world_rollout(&world, 0, 1)->bad_reload = true;
	world_push(&world, 2);
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_int_eq(push_error(&world, 0)->code, 0);
	ck_assert_uint_eq(world_rollout(&world, 1, 0)->live, 2);
	ck_assert(world_run(&world, actor_was_dropped, world_rollout(&world, 0, 0)));
	names(&world_rollout(&world, 0, 0)->dropped, "rollout 0.1");
	world_rollout(&world, 0, 1)->bad_reload = false;
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 3);
	world_close(&world);
}
END_TEST

/* 0: an op to a rollout; 1: an op to a trainer; 2: something of its own. */
START_TEST(a_failure_said_drops_or_aborts)
{
	struct world world;
	struct ws_error why = {.code = -EIO, .text = "the NIC said no"};
	world_of_six(&world, &(struct hub_options){.min_replicas = 1});
	begin_and_stay(&world, 2);
	member_say_failure(world.actor[0].member, _i == 2 ? FAILURE_ATTEMPT : FAILURE_OP,
			   world.actor[0].joined, _i == 0 ? 4 : 1, &why);
	if (_i == 0) {
		ck_assert(world_run(&world, actor_was_dropped, world_rollout(&world, 1, 1)));
		names(&world_rollout(&world, 1, 1)->dropped, "trainer 0: the NIC said no");
		world.actor[1].mute = false;
		ck_assert(world_run(&world, push_ended, NULL));
		ck_assert_int_eq(push_error(&world, 0)->code, 0);
		ck_assert_uint_eq(world_rollout(&world, 0, 0)->live, 2);
	} else {
		ck_assert(world_run(&world, push_ended, NULL));
		ck_assert_int_eq(push_error(&world, 0)->code, -EIO);
		names(push_error(&world, 1), "trainer 0: the NIC said no");
		ck_assert_uint_eq(world_rollout(&world, 0, 0)->live, 1);
	}
	world.actor[1].mute = false;
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 3);
	world_close(&world);
}
END_TEST

/* A rollout leaves in mid attempt, the push fails for want of replicas, the trainers give up. */
START_TEST(a_run_that_fails_tells_everybody)
{
	struct world world;
	world_of_six(&world, &(struct hub_options){.min_replicas = 2});
	begin_and_stay(&world, 2);
	member_close(world.actor[3].member);
	world.actor[3].member = NULL;
	world.actor[1].mute = false;
	ck_assert(world_run(&world, push_ended, NULL));
	names(push_error(&world, 0), "rollout 0.1 left");
	member_close(world.actor[1].member);
	world.actor[1].member = NULL;
	world_hub_close_beside(&world, true);
	for (uint32_t i = 2; i < world.count; i++) {
		if (i == 3)
			continue;
		ck_assert(world_run(&world, actor_is_over, &world.actor[i]));
		ck_assert_int_eq(world.actor[i].over.code, -ESTALE);
		names(&world.actor[i].over, "rollout 0.1 left");
	}
	world_close(&world);
}
END_TEST

/* A replica that can't be wired any more comes back again and again, but not at the cost of the
 * others' pushes. */
START_TEST(a_replica_that_cannot_wire_starves_nobody)
{
	struct world world;
	world_of_six(&world, &(struct hub_options){.min_replicas = 1, .lost_ms = LOST_MS});
	struct actor *bad = world_rollout(&world, 1, 0);
	actor_kill(bad);
	bad->cannot_wire = true;
	ck_assert(world_run(&world, actor_was_dropped, world_rollout(&world, 1, 1)));
	actor_open(&world, bad, NULL);
	ck_assert(world_run(&world, actor_was_dropped, bad));
	names(&bad->dropped, "rollout 1.0: no rail");
	for (uint64_t version = 2; version < 40; version++) {
		world_push(&world, version);
		ck_assert(world_run(&world, push_ended, NULL));
		ck_assert_msg(push_error(&world, 0)->code == 0, "%s", push_error(&world, 0)->text);
		ck_assert_uint_eq(world_rollout(&world, 0, 1)->live, version);
	}
	ck_assert_uint_lt(bad->drop_count, 4);
	world_close(&world);
}
END_TEST

START_TEST(a_hub_that_is_started_again_goes_on)
{
	struct world world;
	world_of_six(&world, &(struct hub_options){.min_replicas = 2, .lost_ms = LOST_MS});
	if (_i == 1)
		begin_and_stay(&world, 2);
	uint64_t attempt = world.actor[0].joined, generation = world.actor[0].generation;
	world_hub_kill(&world);
	ck_assert(world_run(&world, actor_has_no_hub, &world.actor[3]));
	world_hub(&world);
	for (uint32_t i = 0; i < world.count; i++)
		world.actor[i].all_wired = false;
	ck_assert(world_run(&world, all_are_wired, NULL));
	ck_assert_uint_gt(world.actor[0].generation, generation);
	ck_assert_uint_eq(world.actor[3].hub_found_count, 1);
	if (_i == 1) { /* aborted: nobody had committed */
		ck_assert(world_run(&world, push_ended, NULL));
		ck_assert_int_eq(push_error(&world, 0)->code, -ECONNRESET);
		names(push_error(&world, 0), "restarted");
		ck_assert_uint_eq(world_rollout(&world, 0, 0)->live, 1);
		ck_assert_uint_eq(world_rollout(&world, 0, 0)->abort_count, 1);
	}
	world.actor[1].mute = false;
	push_ok(&world, 2);
	ck_assert_uint_gt(world.actor[0].joined, attempt);
	for (uint32_t i = 0; i < world.count; i++)
		ck_assert_uint_eq(world.actor[i].drop_count, 0);
	world_close(&world);
}
END_TEST

/* All have paused; one rank hears commit, the other doesn't before the hub dies. */
START_TEST(in_doubt_what_one_rank_committed_is_committed)
{
	struct world world;
	world_open(&world, 1, 1, 2, &(struct hub_options){.min_replicas = 1, .lost_ms = LOST_MS});
	struct actor *first = world_rollout(&world, 0, 0), *second = world_rollout(&world, 0, 1);
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 1);
	second->deaf_at = RANK_PAUSED;
	world_push(&world, 2);
	ck_assert(world_run(&world, rollout_is_paused, second));
	/* Commit and live came to the first; the second is deaf since it has paused. */
	ck_assert(world_run(&world, rollout_is_live, first));
	ck_assert_int_eq(second->state, RANK_PAUSED);
	ck_assert_uint_eq(first->live, 1);
	world_hub_kill(&world);
	world_member_forget_hub(second);
	world_hub(&world);
	ck_assert(world_run(&world, rollout_serves_2, first));
	ck_assert(world_run(&world, rollout_serves_2, second));
	ck_assert_uint_eq(first->drop_count + second->drop_count, 0);
	world.actor[0].all_wired = false;
	ck_assert(world_run(&world, all_are_wired, NULL));
	ck_assert(world_run(&world, push_ended, NULL));
	push_ok(&world, 3);
	world_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *hub = suite_create("hub_fault");
	TCase *deaths = tcase_create("deaths");
	TCase *restarts = tcase_create("restarts");
	tcase_set_timeout(deaths, 60);
	tcase_set_timeout(restarts, 60);
	tcase_add_loop_test(deaths, a_lost_rollout_takes_only_its_replica, 0, 2);
	tcase_add_test(deaths, too_few_replicas_fail_the_push_and_say_why);
	tcase_add_loop_test(deaths, a_lost_trainer_aborts_everywhere, 0, 2);
	tcase_add_loop_test(deaths, a_stopped_member_is_dropped_and_comes_back, 0, 2);
	tcase_add_test(deaths, an_engine_that_never_steps_is_named);
	tcase_add_test(deaths, a_failed_reload_drops_its_replica_only);
	tcase_add_loop_test(deaths, a_failure_said_drops_or_aborts, 0, 3);
	tcase_add_loop_test(deaths, a_run_that_fails_tells_everybody, 0, 2);
	tcase_add_test(deaths, a_replica_that_cannot_wire_starves_nobody);
	tcase_add_loop_test(restarts, a_hub_that_is_started_again_goes_on, 0, 2);
	tcase_add_test(restarts, in_doubt_what_one_rank_committed_is_committed);
	suite_add_tcase(hub, deaths);
	suite_add_tcase(hub, restarts);
	return hub;
}
