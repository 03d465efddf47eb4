/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NICs of two members are joined: those of one network that understand each other, inside a
 * host only what stays inside it, and none that can't reach what was registered.  NICs of `loop`
 * play the other kinds: what they say of themselves is changed before anything is registered.
 */
#include <errno.h>
#include <string.h>

#include "tests/engine_world.h"
#include "tests/test.h"

static const struct world two_nics = {.transport = "loop",
				      .sender_count = 2,
				      .receiver_count = 2,
				      .nic_count = 2,
				      .op_bytes = 4096,
				      .staging_bytes = 65536,
				      .seed = 5};

static uint64_t bytes_over(const struct world *world, uint32_t nic)
{
	uint64_t bytes = 0;
	for (uint32_t s = 0; s < world->sender_count; s++)
		bytes += engine_nic_bytes_sent(world->senders[s].engine, nic);
	return bytes;
}

/* How many peers a side is joined with over a NIC, and whether the other halves are closed. */
static uint32_t joined(const struct side *side, uint32_t nic)
{
	struct ws_nic nics[WS_NICS_MAX];
	engine_nics(side->engine, nics);
	for (uint32_t p = 0; p < side->engine->peer_count; p++) {
		const struct rail *rail = &side->engine->peers[p]->rails[nic];
		ck_assert_int_eq(rail->paired, rail->peer != NULL);
	}
	return nics[nic].peer_count;
}

START_TEST(nics_of_two_transports_share_an_update)
{
	struct world wanted = two_nics;
	wanted.transport = "mixed";
	struct world *world = world_open(&wanted);
	uint64_t attempt = 1;
	/* libfabric takes nothing while it connects, and loop needs no more time than that. */
	ck_until(bytes_over(world, 0) > 0 && bytes_over(world, 1) > 0,
		 world_update(world, attempt++));
	world_fence(world);
	world_connect(world);
	world_update(world, attempt);
	world_close(world);
}
END_TEST

/* ---------------------------------------------------------------- inside a host */

/* NIC 0 joins what is on one host, and sender 1 and receiver 1 are on another one. */
static void two_hosts(struct engine *engine, uint32_t number)
{
	struct nic *nic = engine->nics[0].nic;
	nic->same_host = true;
	strcpy(nic->subnet, number % 100 == 0 ? "host a" : "host b");
}

START_TEST(a_peer_on_this_host_is_written_to_over_nothing_else)
{
	struct world wanted = two_nics;
	wanted.opened = two_hosts;
	struct world *world = world_open(&wanted);
	for (uint32_t s = 0; s < 2; s++)
		for (uint32_t i = 0; i < 2; i++) {
			/* One of its two peers is on its host. */
			ck_assert_uint_eq(joined(&world->senders[s], i), 1);
			ck_assert_uint_eq(joined(&world->receivers[s], i), 1);
			const struct engine_peer *peer = world->senders[s].peers[i];
			ck_assert_int_eq(peer->rails[0].paired, s == i);
			ck_assert_int_eq(peer->rails[1].paired, s != i);
		}
	world_update(world, 1);
	ck_assert_uint_gt(bytes_over(world, 0), 0);
	ck_assert_uint_gt(bytes_over(world, 1), 0);
	world_fence(world);
	world_connect(world);
	world_update(world, 2);
	world_close(world);
}
END_TEST

static int slow_closes;

/* Takes its time, as a fabric does that has to be polled for it. */
static int slow_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon)
{
	static int asked;
	if (slow_closes > 0 && ++asked % 4 != 0)
		return -EAGAIN;
	slow_closes -= slow_closes > 0 ? 1 : 0;
	return transport_find("loop")->peer_close(nic, peer, quiet, abandon);
}

static void two_hosts_slow(struct engine *engine, uint32_t number)
{
	static struct transport slow;
	slow = *transport_find("loop");
	slow.peer_close = slow_close;
	two_hosts(engine, number);
	engine->nics[1].nic->transport = &slow;
}

START_TEST(a_half_that_nobody_needs_is_closed_as_soon_as_that_goes)
{
	struct world wanted = two_nics;
	wanted.opened = two_hosts_slow;
	slow_closes = 1000;
	struct world *world = world_open(&wanted);
	bool spare = true;
	ck_assert(world->senders[0].engine->has_spare);
	if (_i == 0) { /* else an update goes over the others meanwhile */
		for (int i = 0; i < 100 && spare; i++) {
			world_step(world);
			spare = world->senders[0].engine->has_spare ||
				world->receivers[1].engine->has_spare;
		}
		ck_assert(!spare);
	}
	world_update(world, 1);
	ck_assert_uint_eq(joined(&world->senders[0], 1), 1);
	world_fence(world);
	world_connect(world);
	world_fence(world); /* while they are still open */
	world_connect(world);
	world_update(world, 2);
	slow_closes = 0;
	world_close(world);
}
END_TEST

/* ---------------------------------------------------------------- protocols */

/* Receivers have NICs that don't understand the senders', first or both. */
static void one_other(struct engine *engine, uint32_t number)
{
	engine->nics[0].nic->protocol += number >= 100 ? 1 : 0;
}

static void both_other(struct engine *engine, uint32_t number)
{
	engine->nics[0].nic->protocol += number >= 100 ? 1 : 0;
	engine->nics[1].nic->protocol += number >= 100 ? 1 : 0;
}

START_TEST(one_subnet_with_two_protocols_is_two_networks)
{
	struct world wanted = two_nics;
	wanted.opened = one_other;
	struct world *world = world_open(&wanted);
	/* The senders have two NICs of it, the receivers one. */
	for (uint32_t r = 0; r < 2; r++) {
		ck_assert_uint_eq(joined(&world->receivers[r], 0), 0);
		ck_assert_uint_eq(joined(&world->receivers[r], 1), 2);
	}
	world_update(world, 1);
	world_close(world);
}
END_TEST

START_TEST(nics_that_dont_understand_each_other_are_named)
{
	struct world wanted = two_nics, *world = mem_alloc(sizeof(*world));
	struct ws_error err;
	wanted.opened = both_other;
	*world = wanted;
	ck_ok(side_open(world, &world->senders[0], false, 0, &err), err);
	ck_ok(side_open(world, &world->receivers[0], false, 100, &err), err);
	ck_fails(pair_connect(world, 0, 0, &err), -EPROTO, err);
	ck_assert_msg(strstr(err.text, "m0.0") != NULL && strstr(err.text, "m100.0") != NULL, "%s",
		      err.text);
	ck_assert_ptr_nonnull(strstr(err.text, "same transport"));
	world_close(world);
}
END_TEST

/* ---------------------------------------------------------------- memory */

static int blind_reg(struct nic *nic, const struct ws_memory *memory, enum mr_use use,
		     struct mr *mr, struct ws_error *err)
{
	if (memory->bytes > SIDE_MAX * DIRECT_MAX)
		return ws_fail(err, -ENOTSUP, "%s can't reach this kind of memory", nic->name);
	return transport_find("loop")->reg(nic, memory, use, mr, err);
}

static struct transport blind;

/* NIC 0, of one host, can't reach what a sender sends. */
static void blind_inside(struct engine *engine, uint32_t number)
{
	(void)number;
	two_hosts(engine, 0);
	engine->nics[0].nic->transport = &blind;
}

static void blind_everywhere(struct engine *engine, uint32_t number)
{
	engine->nics[0].nic->transport = engine->nics[1].nic->transport = &blind;
	(void)number;
}

START_TEST(a_nic_that_cant_reach_a_memory_is_left_out_and_says_so)
{
	struct world wanted = two_nics;
	struct ws_nic nics[WS_NICS_MAX];
	blind = *transport_find("loop");
	blind.reg = blind_reg;
	wanted.opened = blind_inside;
	/* Staging is memory of its own kind: it is in all NICs' reach. */
	wanted.staging_bytes = 4096;
	struct world *world = world_open(&wanted);
	world_update(world, 1);
	ck_assert_uint_eq(bytes_over(world, 0), 0);
	ck_assert_uint_eq(engine_nics(world->senders[0].engine, nics), 2);
	ck_assert_uint_eq(nics[0].peer_count, 0);
	ck_assert_uint_eq(nics[1].peer_count, 2);
	ck_assert_ptr_nonnull(strstr(nics[0].trouble, "can't reach all memory"));
	ck_assert_str_eq(nics[1].trouble, "");
	world_close(world);
}
END_TEST

START_TEST(memory_that_no_nic_reaches_is_refused)
{
	struct world wanted = two_nics, *world = mem_alloc(sizeof(*world));
	struct ws_memory memory = {.place = WS_HOST};
	struct ws_error err;
	uint32_t region;
	blind = *transport_find("loop");
	wanted.opened = blind_everywhere;
	*world = wanted;
	ck_ok(side_open(world, &world->senders[0], false, 0, &err), err);
	blind.reg = blind_reg;
	ck_ok(ws_memory_alloc(&memory, 1 << 20, &err), err);
	ck_fails(engine_region_add(world->senders[0].engine, &memory, MR_TARGET, &region, &err),
		 -ENOTSUP, err);
	ck_assert_ptr_nonnull(strstr(err.text, "can't reach"));
	ws_memory_free(&memory);
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine_pairs");
	TCase *cases = tcase_create("pairs");
	tcase_set_timeout(cases, 60);
	tcase_add_test(cases, nics_of_two_transports_share_an_update);
	tcase_add_test(cases, a_peer_on_this_host_is_written_to_over_nothing_else);
	tcase_add_loop_test(cases, a_half_that_nobody_needs_is_closed_as_soon_as_that_goes, 0, 2);
	tcase_add_test(cases, one_subnet_with_two_protocols_is_two_networks);
	tcase_add_test(cases, nics_that_dont_understand_each_other_are_named);
	tcase_add_test(cases, a_nic_that_cant_reach_a_memory_is_left_out_and_says_so);
	tcase_add_test(cases, memory_that_no_nic_reaches_is_refused);
	suite_add_tcase(tests, cases);
	return tests;
}
