/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub and its members over real sockets: start, wiring, pushes, who is refused and why, how
 * a run ends.  Deaths are in hub_fault.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/hub/hub_frames.h"
#include "lib/hub/member_inside.h"
#include "tests/hub_world.h"
#include "tests/test.h"

static bool actor_is_over(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->is_over;
}

static bool everybody_is_over(const struct world *world, const void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < world->count; i++)
		if (world->actor[i].member != NULL && !world->actor[i].is_over)
			return false;
	return true;
}

static bool all_are_wired_or_over(const struct world *world, const void *arg)
{
	for (uint32_t i = 0; i < world->count; i++)
		if (world->actor[i].is_over)
			return true;
	return all_are_wired(world, arg);
}

static void names(const struct ws_error *err, const char *part)
{
	ck_assert_msg(strstr(err->text, part) != NULL, "'%s' isn't in: %s", part, err->text);
}

START_TEST(two_replicas_take_three_versions)
{
	struct world world;
	world_open(&world, 2, 2, 2, &(struct hub_options){.min_replicas = 2, .barrier = _i == 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	for (uint32_t i = 0; i < world.count; i++) {
		ck_assert_uint_eq(world.actor[i].generation, 1);
		ck_assert_uint_eq(world.actor[i].self, i);
		ck_assert(world.actor[i].quiet_seen);
	}
	for (uint64_t version = 1; version <= 3; version++)
		push_ok(&world, version);
	struct replica_view views[4];
	ck_assert_uint_eq(member_replicas(world.actor[0].member, views, 4), 2);
	ck_assert_uint_eq(views[1].replica, 1);
	ck_assert_uint_eq(views[1].attempt, 3);
	ck_assert(views[1].in);
	world_close(&world);
}
END_TEST

static uint64_t still_ns(void *arg)
{
	return *(const uint64_t *)arg;
}

static bool push_ended_or_many_turns(const struct world *world, const void *arg)
{
	uint32_t *turns = *(uint32_t *const *)arg;
	return push_ended(world, NULL) || ++*turns == PATIENCE_MS;
}

/* Nothing on an update's way waits for a beat, a gap between frames or a turn of somebody's loop.
 */
START_TEST(an_update_goes_live_while_the_clock_stands_still)
{
	struct world world;
	uint32_t turns = 0, *counted = &turns;
	world_open(&world, 2, 2, 2, &(struct hub_options){.min_replicas = 2});
	for (uint32_t i = 2; i < world.count && _i == 1; i++) {
		actor_kill(&world.actor[i]);
		world.actor[i].inplace = true;
		actor_open(&world, &world.actor[i], NULL);
	}
	ck_assert(world_run(&world, all_are_wired, NULL));
	world_run_ms(&world, 3 * HUB_BEAT_MS);
	uint64_t now_ns = clock_ns();
	clock_set(still_ns, &now_ns);
	world_push(&world, 1);
	(void)world_run(&world, push_ended_or_many_turns, &counted);
	clock_set(NULL, NULL);
	ck_assert_uint_lt(turns, PATIENCE_MS);
	ck_assert_int_eq(push_error(&world, 0)->code, 0);
	ck_assert_uint_eq(world.actor[2].live, 1);
	world_close(&world);
}
END_TEST

START_TEST(an_inplace_replica_begins_when_all_trainers_push)
{
	struct world world;
	world_open(&world, 2, 2, 1, &(struct hub_options){.min_replicas = 2});
	actor_kill(&world.actor[3]);
	world.actor[3].inplace = true;
	actor_open(&world, &world.actor[3], NULL);
	ck_assert(world_run(&world, all_are_wired, NULL));
	actor_push(&world.actor[0], 1);
	ck_assert(world_run(&world, rollout_has_begun, &world.actor[2]));
	world_run_ms(&world, 100);
	ck_assert_uint_eq(world.actor[3].begin_count, 0);
	push_ok(&world, 1);
	ck_assert_uint_eq(world.actor[3].begin_count, 1);
	ck_assert_uint_eq(world.actor[2].begin_count, 1);
	world_close(&world);
}
END_TEST

START_TEST(a_late_replica_comes_in_between_attempts)
{
	struct world world;
	world_open(&world, 1, 2, 2, &(struct hub_options){.min_replicas = 1});
	actor_kill(world_rollout(&world, 1, 0));
	actor_kill(world_rollout(&world, 1, 1));
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 1);
	actor_open(&world, world_rollout(&world, 1, 0), NULL);
	world_run_ms(&world, 100);
	push_ok_but(&world, 2, world_rollout(&world, 1, 0)); /* half a replica isn't one */
	actor_open(&world, world_rollout(&world, 1, 1), NULL);
	ck_assert(world_run(&world, all_are_wired, NULL));
	ck_assert_uint_eq(world.actor[0].roster_replicas, 2);
	push_ok(&world, 3);
	world_close(&world);
}
END_TEST

START_TEST(versions_that_differ_abort_and_are_both_named)
{
	struct world world;
	world_open(&world, 2, 1, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 6);
	actor_push(&world.actor[0], 7);
	actor_push(&world.actor[1], 8);
	world.actor[1].mute = true; /* as a side does that hears another version than its own */
	ck_assert(world_run(&world, push_ended, NULL));
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(push_error(&world, i)->code, -EINVAL);
		names(push_error(&world, i), "version 7");
		names(push_error(&world, i), "version 8");
	}
	ck_assert_uint_eq(world.actor[2].live, 6);
	world.actor[1].mute = false;
	push_ok(&world, 9);
	world_close(&world);
}
END_TEST

static bool rollout_has_aborted(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->abort_count == 1;
}

START_TEST(a_trainer_that_does_not_push_is_named)
{
	struct world world;
	world_open(&world, 2, 1, 1, &(struct hub_options){.min_replicas = 1, .phase_ms = 1500});
	ck_assert(world_run(&world, all_are_wired, NULL));
	actor_push(&world.actor[0], 1);
	ck_assert(world_run(&world, push_ended, NULL));
	ck_assert_int_eq(push_error(&world, 0)->code, -ETIMEDOUT);
	names(push_error(&world, 0), "trainer 1");
	ck_assert(world_run(&world, rollout_has_aborted, &world.actor[2]));
	names(&world.actor[2].abort, "trainer 1");
	push_ok(&world, 1);
	world_close(&world);
}
END_TEST

/* ---- who is refused */
#define OTHER "{\n  \"side\": \"rollout\",\n  \"tp\": 3\n}\n"

static bool actor_has_a_seat(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->member->hub_heard;
}

START_TEST(another_manifest_is_refused_with_its_place)
{
	struct world world;
	world_open(&world, 1, 1, 2, &(struct hub_options){.min_replicas = 1});
	struct actor *odd = world_rollout(&world, 0, 1);
	struct ws_error err = {0};
	if (_i == 0) { /* before the start: nothing can come of this run */
		actor_kill(odd);
		/* The others' is its side's first. */
		ck_assert(world_run(&world, actor_has_a_seat, world_rollout(&world, 0, 0)));
	} else {
		ck_assert(world_run(&world, all_are_wired, NULL));
		push_ok(&world, 1);
		actor_kill(odd);
	}
	actor_open(&world, odd, OTHER);
	ck_assert(world_run(&world, actor_is_over, odd));
	ck_assert_int_eq(odd->over.code, -ESTALE);
	names(&odd->over, "rollout 0.1");
	names(&odd->over, "line 2");
	names(&odd->over, "tp");
	if (_i == 0) {
		ck_assert(world_run(&world, everybody_is_over, NULL));
		names(&world.actor[0].over, "rollout 0.1");
		ck_fails(hub_failed(world.hub, &err), -ESTALE, err);
	} else {
		ck_assert(!world.actor[0].is_over);
		ck_assert_int_eq(hub_failed(world.hub, &err), 0);
	}
	world_close(&world);
}
END_TEST

START_TEST(a_taken_rank_is_refused)
{
	struct world world;
	world_open(&world, 1, 1, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	struct actor *second = &world.actor[world.count++];
	second->role = _i == 0 ? ROLE_TRAINER : ROLE_ROLLOUT;
	actor_open(&world, second, NULL);
	ck_assert(world_run(&world, actor_is_over, second));
	names(&second->over, _i == 0 ? "trainer 0 is taken" : "rollout 0.0 is taken");
	actor_kill(second);
	push_ok(&world, 1);
	ck_assert_uint_eq(world.actor[0].drop_count + world.actor[1].drop_count, 0);
	world_close(&world);
}
END_TEST

START_TEST(another_world_is_refused_with_both_numbers)
{
	struct world world;
	world_open(&world, 1, 1, 1, &(struct hub_options){.min_replicas = 1});
	struct actor *odd = &world.actor[_i];
	actor_kill(odd);
	world.trainers = world.replica_ranks = 3; /* what the next one says */
	actor_open(&world, odd, NULL);
	ck_assert(world_run(&world, actor_is_over, odd));
	ck_assert_int_eq(odd->over.code, -EINVAL);
	names(&odd->over, _i == 0 ? "3 trainers" : "3 ranks in a replica");
	names(&odd->over, "for 1");
	world_close(&world);
}
END_TEST

START_TEST(a_wrong_key_and_a_dead_hub_are_told_apart)
{
	struct world world;
	struct ws_error err = {0};
	struct run_key right;
	world_open(&world, 1, 1, 1, &(struct hub_options){.min_replicas = 1});
	right = world.key;
	if (_i == 0)
		ck_ok(run_key_make(&world.key, &err), err);
	else
		world_hub_kill(&world);
	actor_kill(&world.actor[1]);
	struct member_options options = {.endpoint = world.endpoint,
					 .key = &world.key,
					 .role = ROLE_ROLLOUT,
					 .world = 1,
					 .manifest = "{}",
					 .manifest_bytes = 2,
					 .join_ms = _i == 0 ? PATIENCE_MS : 500};
	ck_ok(member_open(&world.actor[1].member, &options, &err), err);
	ck_assert(world_run(&world, actor_is_over, &world.actor[1]));
	if (_i == 0) {
		ck_assert_int_ne(world.actor[1].over.code, -ETIMEDOUT);
		names(&world.actor[1].over, "key");
	} else {
		ck_assert_int_eq(world.actor[1].over.code, -ETIMEDOUT);
		names(&world.actor[1].over, world.endpoint);
	}
	world.key = right;
	world_close(&world);
}
END_TEST

START_TEST(who_is_missing_at_the_start_is_named)
{
	struct world world;
	struct ws_error err = {0};
	world_open(&world, 2, 1, 2, &(struct hub_options){.min_replicas = 1, .join_ms = 2000});
	actor_kill(&world.actor[1]);
	actor_kill(&world.actor[3]);
	ck_assert(world_run(&world, everybody_is_over, NULL));
	for (uint32_t i = 0; i < 4; i += 2) {
		ck_assert_int_eq(world.actor[i].over.code, -ETIMEDOUT);
		names(&world.actor[i].over, "trainer 1, rollout 0.1");
	}
	ck_fails(hub_failed(world.hub, &err), -ETIMEDOUT, err);
	world_close(&world);
}
END_TEST

static uint64_t cpu_ms(void)
{
	struct timespec used;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * 1000u + (uint64_t)used.tv_nsec / 1000000u;
}

/* Wired and idle; or given up, which its owner may see much later. */
START_TEST(a_hub_that_has_nothing_to_say_rests)
{
	const struct timespec pause = {.tv_nsec = 300000000};
	struct world world;
	world_open(&world, 1, 1, 1, &(struct hub_options){.min_replicas = 1, .join_ms = 500});
	if (_i == 1)
		actor_kill(&world.actor[1]);
	ck_assert(world_run(&world, _i == 1 ? everybody_is_over : all_are_wired, NULL));
	uint64_t before_ms = cpu_ms();
	nanosleep(&pause, NULL);
	ck_assert_uint_lt(cpu_ms() - before_ms, 100);
	ck_assert_int_eq(hub_failed(world.hub, NULL), _i == 1 ? -ETIMEDOUT : 0);
	world_close(&world);
}
END_TEST

/* It hears nothing more: not even that the hub has gone. */
START_TEST(a_member_whose_run_is_over_rests)
{
	const struct timespec pause = {.tv_nsec = 50000000};
	struct world world;
	world_open(&world, 1, 1, 1, &(struct hub_options){.min_replicas = 1, .join_ms = 500});
	actor_kill(&world.actor[1]);
	ck_assert(world_run(&world, everybody_is_over, NULL));
	world_hub_kill(&world);
	nanosleep(&pause, NULL);
	uint64_t until_ns = deadline_in_ms(100);
	member_wait(world.actor[0].member, NULL, 0, until_ns);
	ck_assert_uint_ge(clock_ns(), until_ns);
	world_close(&world);
}
END_TEST

START_TEST(frames_of_nonsense_disturb_nobody)
{
	struct world world;
	struct link *link;
	struct ws_error err = {0};
	uint8_t noise[300];
	world_open(&world, 1, 1, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	ck_ok(link_dial(&link, world.endpoint, &world.key, &err), err);
	for (uint32_t i = 0; i < 400; i++) {
		struct frame frame = {
			.kind = (uint16_t)(1 + i % 14),
			.hub_incarnation = i % 3,
			.member = member_id(i % 2 ? ROLE_TRAINER : ROLE_ROLLOUT, 0, i % 5),
			.incarnation = 1 + i % 2,
			.body = noise,
			.body_bytes = i % sizeof(noise)};
		ck_ok(random_bytes(noise, sizeof(noise), &err), err);
		link_send(link, &frame, NULL);
		while (link_receive(link, &frame, NULL) != LINK_NOTHING)
			;
		world_run_ms(&world, 1);
	}
	push_ok(&world, 1);
	ck_assert(!world.actor[0].was_dropped && !world.actor[1].was_dropped);
	link_close(link);
	world_close(&world);
}
END_TEST

/* ---- how a run ends */
START_TEST(a_normal_end_is_told_from_a_hub_that_goes)
{
	struct world world;
	world_open(&world, 2, 1, 2, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 1);
	if (_i == 3) { /* the last push fails */
		world.actor[1].mute = true;
		actor_push(&world.actor[0], 7);
		actor_push(&world.actor[1], 8);
		ck_assert(world_run(&world, push_ended, NULL));
	}
	if (_i == 0 || _i == 3) { /* all trainers leave: the hub itself stays */
		for (uint32_t i = 0; i < 2; i++) {
			member_close(world.actor[i].member);
			world.actor[i].member = NULL;
		}
		ck_assert(world_run(&world, everybody_is_over, NULL));
		ck_assert_int_eq(world.actor[2].over.code, _i == 0 ? 0 : -EINVAL);
		ck_assert_int_eq(world.actor[3].over.code, _i == 0 ? 0 : -EINVAL);
		ck_assert_int_eq(hub_failed(world.hub, NULL), 0); /* it gave nothing up */
	} else {
		world_hub_close_beside(&world, _i == 1);
		ck_assert(world_run(&world, everybody_is_over, NULL));
		for (uint32_t i = _i == 1; i < world.count; i++)
			ck_assert_int_eq(world.actor[i].over.code, _i == 1 ? 0 : -ESTALE);
	}
	world_close(&world);
}
END_TEST

START_TEST(a_plan_that_cannot_be_ends_the_run_for_all)
{
	struct world world;
	struct ws_error why = {.code = -EINVAL, .text = "tensor 'a' isn't covered"};
	world_open(&world, 1, 1, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	member_say_failure(world.actor[0].member, FAILURE_PLAN, 0, UINT32_MAX, &why);
	ck_assert(world_run(&world, everybody_is_over, NULL));
	ck_assert_int_eq(world.actor[1].over.code, -EINVAL);
	names(&world.actor[1].over, "trainer 0: tensor 'a' isn't covered");
	world_close(&world);
}
END_TEST

/* The asking blocks, so the members must go on in the hub's thread's time: they are quick. */
START_TEST(status_tells_who_is_there_and_what_they_do)
{
	struct world world;
	struct ws_error err = {0};
	struct writer out = WRITER_INIT(1 << 20);
	struct arena arena = {0};
	const struct json *status;
	const struct json_limits limits = JSON_LIMITS_MANIFEST;
	world_open(&world, 1, 1, 2, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 4);
	member_say_verified(world.actor[1].member, 4, 100, 0);
	member_say_verified(world.actor[2].member, 4, 50, 3);
	uint32_t ranks = 0;
	uint64_t bytes = 0, different = 0;
	ck_until(ranks == 2, {
		world_run_ms(&world, 2);
		member_verified(world.actor[0].member, 4, &ranks, &bytes, &different);
	});
	ck_assert_uint_eq(bytes, 150);
	ck_assert_uint_eq(different, 3);
	ck_ok(hub_ask_status(world.endpoint, &world.key, 10000, &out, &err), err);
	ck_ok(json_parse(&arena, out.bytes, out.count, &limits, &status, &err), err);
	ck_assert_int_eq(json_integer(status, "generation", 0), 1);
	ck_assert_int_eq(json_integer(status, "version", 0), 4);
	ck_assert_str_eq(json_text(status, "state", ""), "idle");
	const struct json *members = json_get(status, "members");
	ck_assert_uint_eq(members->count, 3);
	ck_assert_str_eq(json_text(json_at(members, 2), "name", ""), "rollout 0.1");
	ck_assert_str_eq(json_text(json_at(members, 2), "state", ""), "resumed");
	ck_assert_int_eq(json_integer(json_at(members, 2), "version", 0), 4);
	ck_assert_int_eq(json_integer(json_at(members, 0), "bytes_sent", 0), 1000);
	ck_assert_str_eq(json_text(json_at(members, 1), "nics_chosen", ""),
			 "ipc host (no other is here)");
	arena_release(&arena);
	writer_release(&out);
	world_close(&world);
	struct writer none = WRITER_INIT(1 << 10);
	ck_fails(hub_ask_status(world.endpoint, &world.key, 300, &none, &err), -ETIMEDOUT, err);
	writer_release(&none);
}
END_TEST

START_TEST(every_failed_allocation_of_opening_is_clean)
{
	struct ws_error err = {0};
	struct run_key key;
	ck_ok(run_key_make(&key, &err), err);
	struct hub_options wanted = {.endpoint = "tcp://127.0.0.1:*",
				     .key = &key,
				     .trainer_count = 1,
				     .replica_ranks = 1,
				     .min_replicas = 1};
	struct member_options options = {.endpoint = "tcp://127.0.0.1:9",
					 .key = &key,
					 .role = ROLE_TRAINER,
					 .world = 1,
					 .manifest = "{}",
					 .manifest_bytes = 2};
	uint64_t before = mem_live_count();
	for (uint32_t both = 0; both < 2; both++) {
		int rc = -ENOMEM;
		for (int64_t n = 0; rc != 0; n++) {
			struct hub *hub = NULL;
			struct member *member = NULL;
			ck_assert_int_lt(n, 100);
			mem_fail_nth(n);
			rc = both == 0 ? hub_open(&hub, &wanted, &err)
				       : member_open(&member, &options, &err);
			mem_fail_nth(-1);
			ck_assert_msg(rc == 0 || rc == -ENOMEM, "%d: %s", rc, err.text);
			hub_close(hub);
			member_close(member);
			ck_assert_uint_eq(mem_live_count(), before);
		}
	}
}
END_TEST

/* The nth allocation of hub and members together fails: the run goes on, or ends by a sentence. */
START_TEST(a_failed_allocation_delays_or_is_named)
{
	struct world world;
	uint64_t before = mem_live_count();
	world_open(&world, 1, 1, 2, &(struct hub_options){.min_replicas = 1});
	mem_fail_nth(2 * _i);
	ck_assert(world_run(&world, all_are_wired_or_over, NULL));
	bool over = false;
	for (uint32_t i = 0; i < world.count; i++) {
		over = over || world.actor[i].is_over;
		ck_assert(!world.actor[i].is_over || world.actor[i].over.code == -ENOMEM);
	}
	if (!over)
		push_ok(&world, 1);
	mem_fail_nth(-1);
	world_close(&world);
	ck_assert_uint_eq(mem_live_count(), before);
}
END_TEST

Suite *suite(void)
{
	Suite *hub = suite_create("hub");
	TCase *good = tcase_create("good");
	TCase *refused = tcase_create("refused");
	TCase *ends = tcase_create("ends");
	tcase_set_timeout(good, 60);
	tcase_set_timeout(refused, 60);
	tcase_set_timeout(ends, 60);
	tcase_add_loop_test(good, two_replicas_take_three_versions, 0, 2);
	tcase_add_loop_test(good, an_update_goes_live_while_the_clock_stands_still, 0, 2);
	tcase_add_test(good, an_inplace_replica_begins_when_all_trainers_push);
	tcase_add_test(good, a_late_replica_comes_in_between_attempts);
	tcase_add_test(good, versions_that_differ_abort_and_are_both_named);
	tcase_add_test(good, a_trainer_that_does_not_push_is_named);
	tcase_add_test(good, status_tells_who_is_there_and_what_they_do);
	tcase_add_loop_test(refused, another_manifest_is_refused_with_its_place, 0, 2);
	tcase_add_loop_test(refused, a_taken_rank_is_refused, 0, 2);
	tcase_add_loop_test(refused, another_world_is_refused_with_both_numbers, 0, 2);
	tcase_add_loop_test(refused, a_wrong_key_and_a_dead_hub_are_told_apart, 0, 2);
	tcase_add_test(refused, who_is_missing_at_the_start_is_named);
	tcase_add_loop_test(refused, a_hub_that_has_nothing_to_say_rests, 0, 2);
	tcase_add_test(refused, a_member_whose_run_is_over_rests);
	tcase_add_test(refused, frames_of_nonsense_disturb_nobody);
	tcase_add_loop_test(ends, a_normal_end_is_told_from_a_hub_that_goes, 0, 4);
	tcase_add_test(ends, a_plan_that_cannot_be_ends_the_run_for_all);
	tcase_add_test(ends, every_failed_allocation_of_opening_is_clean);
	tcase_add_loop_test(ends, a_failed_allocation_delays_or_is_named, 0, 12);
	suite_add_tcase(hub, good);
	suite_add_tcase(hub, refused);
	suite_add_tcase(hub, ends);
	return hub;
}
