/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members whose NICs go out of use and come back, over real sockets: who is wired anew, who is
 * left out or waited for, and what is said of it.
 */
#include <errno.h>
#include <string.h>

#include "lib/hub/hub_frames.h"
#include "tests/hub_world.h"
#include "tests/test.h"

static void rails_say(struct actor *actor, uint32_t count, const char *trouble)
{
	struct member_rails rails = {.count = count, .nic_count = 2};
	for (uint32_t i = 0; i < count; i++)
		rails.rail[i] = (struct nic_speed){.subnet = 7 + i, .mbps = 1000};
	member_say_rails(actor->member, &rails, trouble, count < 2 && trouble[0] != '\0');
}

struct wanted {
	uint32_t of, count;
};

/* Everybody has a roster in which a member has so many NICs, and is wired by it. */
static bool has_rails(const struct world *world, const void *arg)
{
	const struct wanted *wanted = arg;
	for (uint32_t i = 0; i < world->count; i++)
		if (world->actor[i].rail_count[wanted->of] != wanted->count)
			return false;
	return all_are_wired(world, NULL);
}

static bool is_dropped(const struct world *world, const void *arg)
{
	(void)world;
	return ((const struct actor *)arg)->drop_count > 0;
}

static bool third_has_begun(const struct world *world, const void *arg)
{
	(void)arg;
	return world->actor[0].begun_version == 3;
}

static bool trainers_waits_say(const struct world *world, const void *arg)
{
	struct ws_error waits = {0};
	(void)member_attempt_over(world->actor[0].member, UINT64_MAX, &waits);
	return strstr(waits.text, arg) != NULL;
}

static bool trainers_hear(const struct world *world, const void *arg)
{
	for (uint32_t i = 0; i < world->trainers; i++)
		if (strcmp(member_trouble(world->actor[i].member), arg) != 0)
			return false;
	return true;
}

START_TEST(other_nics_are_another_wiring_between_attempts)
{
	struct world world;
	world_open(&world, 2, 1, 2, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 1);
	struct actor *actor = &world.actor[_i];
	uint64_t generation = world.actor[0].generation;
	rails_say(actor, 2, "");
	ck_assert(world_run(&world, has_rails, &(struct wanted){(uint32_t)_i, 2}));
	rails_say(actor, 1, "NIC 'b' is down");
	ck_assert(world_run(&world, has_rails, &(struct wanted){(uint32_t)_i, 1}));
	ck_assert_uint_ge(world.actor[0].generation, generation + 2);
	ck_assert_uint_eq(actor->drop_count, 0);
	push_ok(&world, 2);
	/* Not while one is open. */
	generation = world.actor[0].generation;
	actor_push(&world.actor[0], 3);
	ck_assert(world_run(&world, third_has_begun, NULL));
	rails_say(actor, 2, "");
	world_run_ms(&world, 300);
	ck_assert_uint_eq(world.actor[0].generation, generation);
	push_ok(&world, 3);
	ck_assert(world_run(&world, has_rails, &(struct wanted){(uint32_t)_i, 2}));
	ck_assert_uint_gt(world.actor[0].generation, generation);
	/* Of NICs in use: it is no trouble of the run. */
	rails_say(actor, 2, "NIC 'b': its GID changed");
	world_run_ms(&world, 300);
	ck_assert(trainers_hear(&world, ""));
	world_close(&world);
}
END_TEST

/* It is said in reports while it lasts, and costs no wiring: only its end does. */
START_TEST(a_rail_that_returns_is_another_wiring)
{
	struct member_rails rails = {
		.count = 2, .nic_count = 2, .rail = {{.subnet = 7}, {.subnet = 8}}};
	const char *trouble = "NIC 'b' left out to 'rollout 0.0' for 1 s: no answer";
	struct world world;
	world_open(&world, 2, 1, 2, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	struct actor *actor = &world.actor[_i];
	member_say_rails(actor->member, &rails, "", false);
	ck_assert(world_run(&world, has_rails, &(struct wanted){(uint32_t)_i, 2}));
	push_ok(&world, 1);
	uint64_t generation = world.actor[0].generation;
	member_say_rails(actor->member, &rails, trouble, true);
	world_run_ms(&world, 300);
	ck_assert_uint_eq(world.actor[0].generation, generation);
	ck_assert_ptr_nonnull(strstr(member_trouble(world.actor[0].member), trouble));
	push_ok(&world, 2);
	rails.rewires++;
	member_say_rails(actor->member, &rails, "", false);
	ck_assert(world_run(&world, trainers_hear, ""));
	push_ok(&world, 3);
	ck_assert_uint_gt(world.actor[0].generation, generation);
	ck_assert_uint_eq(actor->drop_count, 0);
	world_close(&world);
}
END_TEST

START_TEST(a_rollout_without_nics_is_out_until_it_has_one)
{
	struct world world;
	world_open(&world, 1, 2, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	push_ok(&world, 1);
	struct actor *actor = world_rollout(&world, 1, 0);
	rails_say(actor, 0, "NIC 'b' is down; running on 0 of 2 NICs");
	ck_assert(world_run(&world, is_dropped, actor));
	ck_assert_msg(strstr(actor->dropped.text,
			     "rollout 1.0 has no NIC in use: NIC 'b' is down") != NULL,
		      "%s", actor->dropped.text);
	ck_assert(world_run(&world, trainers_hear,
			    "rollout 1.0: NIC 'b' is down; running on 0 of 2 NICs"));
	push_ok_but(&world, 2, actor);
	rails_say(actor, 1, "");
	ck_assert(world_run(&world, trainers_hear, ""));
	ck_assert(world_run(&world, has_rails, &(struct wanted){2, 1}));
	ck_assert_uint_eq(world.actor[0].roster_replicas, 2);
	push_ok(&world, 3);
	world_close(&world);
}
END_TEST

START_TEST(a_trainer_without_nics_is_waited_for_by_name)
{
	struct world world;
	world_open(&world, 2, 1, 1, &(struct hub_options){.min_replicas = 1});
	ck_assert(world_run(&world, all_are_wired, NULL));
	if (_i == 1)
		push_ok(&world, 1);
	rails_say(&world.actor[1], 0, "NIC 'a' is lost: gone; running on 0 of 1 NICs");
	rails_say(&world.actor[0], 1, "NIC 'c' is down; running on 1 of 2 NICs");
	ck_assert(world_run(&world, trainers_hear,
			    "trainer 0 (and 1 other): NIC 'c' is down; running on 1 of 2 NICs"));
	actor_push(&world.actor[0], 2);
	ck_assert(world_run(&world, trainers_waits_say,
			    "trainer 1 has no NIC in use: NIC 'a' is lost: gone"));
	ck_assert_uint_eq(world.actor[2].begin_count, (uint32_t)_i);
	ck_assert_uint_eq(world.actor[1].drop_count, 0);
	rails_say(&world.actor[1], 2, "");
	push_ok(&world, 2);
	ck_assert_uint_eq(world.actor[0].rail_count[1], 2);
	world_close(&world);
}
END_TEST

START_TEST(a_beat_with_more_rails_than_nics_is_refused)
{
	static const struct {
		uint32_t nic_count, count;
		bool good;
	} cases[] = {{0, 0, true},  {1, 0, true},   {16, 16, true},
		     {1, 2, false}, {17, 1, false}, {255, 16, false}};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct beat_up beat = {.sequence = 1, .trouble = "NIC 'b' is down"}, back;
		struct writer out = WRITER_INIT(65536);
		struct ws_error err;
		beat.rails.nic_count = cases[i].nic_count;
		beat.rails.count = cases[i].count;
		beat.rails.rewires = i % 2;
		beat.degraded = i % 2 != 0;
		for (uint32_t r = 0; r < cases[i].count; r++)
			beat.rails.rail[r] = (struct nic_speed){mix64(r), 100 * r};
		beat_up_encode(&beat, &out);
		int rc = beat_up_decode(&back, out.bytes, out.count, &err);
		ck_assert_int_eq(rc, cases[i].good ? 0 : -EPROTO);
		if (rc == 0)
			ck_assert(rails_same(&beat.rails, &back.rails) &&
				  beat.degraded == back.degraded);
		if (rc == 0)
			ck_assert_str_eq(back.trouble, beat.trouble);
		for (size_t cut = 0; cut < out.count && rc == 0; cut++)
			ck_assert_int_eq(beat_up_decode(&back, out.bytes, cut, &err), -EPROTO);
		writer_release(&out);
	}
}
END_TEST

Suite *suite(void)
{
	Suite *hub = suite_create("hub_rails");
	TCase *rails = tcase_create("rails");
	tcase_set_timeout(rails, 120);
	tcase_add_loop_test(rails, other_nics_are_another_wiring_between_attempts, 0, 4);
	tcase_add_loop_test(rails, a_rail_that_returns_is_another_wiring, 0, 3);
	tcase_add_test(rails, a_rollout_without_nics_is_out_until_it_has_one);
	tcase_add_loop_test(rails, a_trainer_without_nics_is_waited_for_by_name, 0, 2);
	tcase_add_test(rails, a_beat_with_more_rails_than_nics_is_refused);
	suite_add_tcase(hub, rails);
	return hub;
}
