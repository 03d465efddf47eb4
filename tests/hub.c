/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub and its members over real sockets: start, wiring, pushes, and what dies or is bad.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/hub_world.h"
#include "tests/test.h"

static bool all_serve(const struct world *world, uint64_t version)
{
	for (uint32_t i = world->trainers; i < world->count; i++)
		if (world->actor[i].member != NULL && world->actor[i].live != version)
			return false;
	return true;
}

static const struct ws_error *push_error(const struct world *world, uint32_t trainer)
{
	return &world->actor[trainer].push_error;
}

static void push_ok(struct world *world, uint64_t version)
{
	world_push(world, version);
	ck_assert_msg(world_run(world, push_ended, NULL), "version %llu didn't end",
		      (unsigned long long)version);
	for (uint32_t i = 0; i < world->trainers; i++)
		ck_assert_msg(push_error(world, i)->code == 0, "trainer %u: %s", i,
			      push_error(world, i)->text);
	ck_assert(all_serve(world, version));
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
	ck_assert_uint_eq(views[1].live_version, 3);
	ck_assert(views[1].in);
	world_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *hub = suite_create("hub");
	TCase *good = tcase_create("good");
	tcase_set_timeout(good, 60);
	tcase_add_loop_test(good, two_replicas_take_three_versions, 0, 2);
	suite_add_tcase(hub, good);
	return hub;
}
