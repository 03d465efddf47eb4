/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/engine when nothing goes wrong: every byte lands, over loop in any order and over libfabric
 * tcp, with one NIC and several, attempt after attempt and wiring after wiring; and what is
 * refused before anything is sent.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/engine_world.h"
#include "tests/test.h"

static struct world loop_world(int seed)
{
	return (struct world){.transport = "loop",
			      .sender_count = 1 + (uint32_t)seed % SIDE_MAX,
			      .receiver_count = 1 + (uint32_t)seed / 3 % SIDE_MAX,
			      .nic_count = 1 + (uint32_t)seed / 2 % 3,
			      .op_bytes = seed % 4 == 3 ? 8192 : 4096,
			      .staging_bytes = seed % 2 == 0 ? 8192 : 65536,
			      .digests = seed / 2 % 2 == 1,
			      .seed = (uint32_t)seed};
}

START_TEST(every_byte_lands_in_any_order)
{
	struct world wanted = loop_world(_i);
	struct world *world = world_open(&wanted);
	for (uint64_t attempt = 255; attempt < 258; attempt++)
		world_update(world, attempt);
	world_close(world);
}
END_TEST

/* A NIC that takes as many as it likes of the ops that it is handed, often none. */
static uint32_t picks, most;

static int picky_post(struct nic *nic, const struct op *ops, int count)
{
	int some = (int)(mix64(picks++) % 5);
	most = MAX(most, (uint32_t)count);
	return some == 0 ? 0 : transport_find("loop")->post(nic, ops, MIN(count, some));
}

static void make_picky(struct engine *engine, uint32_t number)
{
	static struct transport picky;
	(void)number;
	picky = *transport_find("loop");
	picky.post = picky_post;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		engine->nics[i].nic->transport = &picky;
}

START_TEST(ops_go_together_and_those_not_taken_once_more)
{
	struct world wanted = loop_world(_i);
	wanted.op_bytes = 4096;
	wanted.opened = make_picky;
	struct world *world = world_open(&wanted);
	for (uint64_t attempt = 1; attempt < 4; attempt++)
		world_update(world, attempt);
	if (world->nic_count == 1)
		ck_assert_uint_gt(most, 1);
	world_close(world);
}
END_TEST

/* A NIC over which ops to one peer are taken, and nothing is heard of them any more. */
static const struct peer *mute;

static int mute_post(struct nic *nic, const struct op *ops, int count)
{
	(void)count;
	return ops->peer == mute ? 1 : transport_find("loop")->post(nic, ops, 1);
}

static void make_mute(struct engine *engine, uint32_t number)
{
	static struct transport transport;
	transport = *transport_find("loop");
	transport.post = mute_post;
	engine->nics[0].nic->transport = &transport;
	engine->nics[0].limit = number < 100 ? 6 : engine->nics[0].limit;
}

static bool has_all(const struct world *world, uint32_t receiver)
{
	for (uint32_t i = 0; i < world->sender_count * RECEIVES; i++)
		if (world->receivers[receiver].done[i] == 0)
			return false;
	return true;
}

START_TEST(who_is_ready_first_and_stands_still_holds_up_nobody)
{
	struct world wanted = loop_world(_i);
	wanted.sender_count = 1;
	wanted.receiver_count = 3;
	wanted.nic_count = 1;
	wanted.op_bytes = 4096;
	wanted.staging_bytes = _i % 2 == 0 ? 1 << 20 : 3 * 4096; /* for all, or a block for each */
	wanted.opened = make_mute;
	struct world *world = world_open(&wanted);
	struct side *sender = &world->senders[0];
	world_arm(world, 1);
	mute = sender->peers[0]->rails[0].peer;
	sender->peers[1]->ready = sender->peers[2]->ready = false;
	world_settle(world);
	for (uint32_t r = 1; r < 3; r++)
		engine_peer_ready(sender->engine, sender->peers[r]);
	ck_until(has_all(world, 1) && has_all(world, 2), world_step(world));
	engine_peer_abandon(world->receivers[0].engine, world->receivers[0].peers[0]);
	world_close(world);
}
END_TEST

START_TEST(a_new_wiring_works_like_the_first)
{
	struct world wanted = loop_world(_i);
	struct world *world = world_open(&wanted);
	world_update(world, 1);
	/* One is given up in the middle. */
	world_arm(world, 2);
	for (int i = 0; i < _i; i++)
		world_step(world);
	world_fence(world);
	world_connect(world);
	world_update(world, 3);
	world_close(world);
}
END_TEST

START_TEST(every_byte_lands_over_tcp)
{
	struct world wanted = loop_world(_i);
	wanted.transport = "fabric";
	wanted.nic_count = 1 + (uint32_t)_i % 2;
	struct world *world = world_open(&wanted);
	world_update(world, 7);
	if (wanted.nic_count == 2) {
		ck_assert_uint_gt(engine_nic_bytes_sent(world->senders[0].engine, 0), 0);
		ck_assert_uint_gt(engine_nic_bytes_sent(world->senders[0].engine, 1), 0);
	}
	world_update(world, 8);
	world_fence(world);
	world_connect(world);
	world_update(world, 9);
	world_close(world);
}
END_TEST

START_TEST(nobody_is_written_to_before_it_is_ready)
{
	struct world wanted = loop_world(8);
	struct world *world = world_open(&wanted);
	ck_assert_uint_eq(world->receiver_count, 3);
	world_arm(world, 1);
	for (uint32_t s = 0; s < world->sender_count; s++)
		world->senders[s].peers[1]->ready = false;
	world_settle(world);
	for (uint32_t i = 0; i < world->sender_count * RECEIVES; i++) {
		uint32_t first;
		ck_assert_uint_eq(world->receivers[0].done[i], 1);
		ck_assert_uint_eq(world->receivers[2].done[i], 1);
		ck_assert_uint_eq(engine_receive_missing(world->receivers[1].engine, i, &first),
				  world->receivers[1].receives[i].op_count);
	}
	for (uint32_t s = 0; s < world->sender_count; s++)
		engine_peer_ready(world->senders[s].engine, world->senders[s].peers[1]);
	ck_until(world_is_done(world), world_step(world));
	world_verify(world);
	world_close(world);
}
END_TEST

/* Three NICs there and one here: peers meet them in turn. */
START_TEST(uneven_rails_are_paired_alike_at_both_ends)
{
	struct ws_error err;
	const struct device many[] = {{"loop", "net/a0"}, {"loop", "net/a1"}, {"loop", "net/a2"}};
	const struct device one[] = {{"loop", "net/b0"}, {"loop", "net/b1"}, {"loop", "net/b2"}};
	struct engine_options options = {.devices = many, .device_count = 3, .op_bytes = 4096};
	struct world *world = mem_alloc(sizeof(*world));
	ck_ok(engine_open(&world->receivers[0].engine, &options, &err), err);
	options.device_count = 1;
	for (uint32_t s = 0; s < SIDE_MAX; s++) {
		options.devices = &one[s];
		ck_ok(engine_open(&world->senders[s].engine, &options, &err), err);
		ck_ok(pair_connect(world, s, 0, &err), err);
		const struct engine_peer *there = world->receivers[0].peers[s];
		ck_assert_uint_eq(world->senders[s].peers[0]->rails[0].remote_nic, s);
		for (uint32_t i = 0; i < 3; i++)
			ck_assert_int_eq(there->rails[i].paired, i == s);
		ck_assert_uint_eq(there->rails[s].remote_nic, 0);
	}
	world_close(world);
}
END_TEST

START_TEST(no_common_subnet_is_an_error_with_both_lists)
{
	struct ws_error err;
	const struct device here = {"loop", "east/a"}, there = {"loop", "west/b"};
	struct engine_options options = {.devices = &here, .device_count = 1, .op_bytes = 4096};
	struct world *world = mem_alloc(sizeof(*world));
	ck_ok(engine_open(&world->senders[0].engine, &options, &err), err);
	options.devices = &there;
	ck_ok(engine_open(&world->receivers[0].engine, &options, &err), err);
	ck_fails(pair_connect(world, 0, 0, &err), -ENODEV, err);
	ck_assert_ptr_nonnull(strstr(err.text, "east"));
	ck_assert_ptr_nonnull(strstr(err.text, "west"));
	world_close(world);
}
END_TEST

/* Neither the address nor the regions of a peer are believed: cut short, grown, or flipped. */
START_TEST(nonsense_from_a_peer_is_refused_and_never_crashes)
{
	struct world wanted = loop_world(1);
	struct world *world = world_open(&wanted);
	struct engine *engine = world->senders[0].engine;
	struct writer address = WRITER_INIT(1 << 20), regions = WRITER_INIT(1 << 20);
	struct engine_peer *mine, *theirs;
	struct ws_error err;
	ck_ok(engine_peer_open(world->receivers[0].engine, "x", &theirs, &address, &err), err);
	engine_regions_encode(world->receivers[0].engine, &regions);
	struct writer unused = WRITER_INIT(1 << 20);
	ck_ok(engine_peer_open(engine, "liar", &mine, &unused, &err), err);
	for (size_t count = 0; count < address.count; count++) {
		ck_fails(engine_peer_connect(engine, mine, address.bytes, count, &err), -EPROTO,
			 err);
		ck_assert_ptr_nonnull(strstr(err.text, "liar"));
	}
	for (size_t count = 0; count < regions.count; count++)
		ck_fails(engine_peer_regions(engine, mine, regions.bytes, count, &err), -EPROTO,
			 err);
	for (size_t at = 0; at < 8; at++)
		for (uint8_t bit = 0; bit < 8; bit++) {
			uint8_t copy[4096];
			ck_assert_uint_le(regions.count, sizeof(copy));
			memcpy(copy, regions.bytes, regions.count);
			copy[at] ^= (uint8_t)(1u << bit);
			ck_fails(engine_peer_regions(engine, mine, copy, regions.count, &err),
				 -EPROTO, err);
		}
	ck_ok(engine_peer_regions(engine, mine, regions.bytes, regions.count, &err), err);
	ck_assert_uint_eq(engine_peer_region_count(mine), 2);
	writer_release(&address);
	writer_release(&regions);
	writer_release(&unused);
	world_close(world);
}
END_TEST

/* remote_offset may change between attempts; whatever it says, nothing leaves the region. */
START_TEST(a_write_outside_the_peers_region_is_never_posted)
{
	static const uint64_t offsets[] = {UINT64_MAX, UINT64_MAX - 4096, 1u << 30};
	struct world wanted = loop_world(0);
	struct world *world = world_open(&wanted);
	struct side *sender = &world->senders[0];
	struct send *send = &sender->sends[0];
	if (_i == 3)
		send->remote_region = 77;
	else if (_i == 4)
		send->remote_offset = world->receivers[0].memory.bytes - send->bytes + 1;
	else
		send->remote_offset = offsets[_i];
	world_arm(world, 1);
	world_settle(world);
	ck_assert_uint_eq(sender->failed, 1);
	ck_assert_int_eq(sender->last.status, -EPROTO);
	ck_assert_ptr_eq(sender->last.peer, sender->peers[0]);
	ck_assert_uint_ge(sender->last.op_id, send->first_op_id);
	ck_assert_uint_eq(sender->sends_done, 0);
	for (uint32_t i = 0; i < RECEIVES; i++)
		ck_assert_uint_eq(world->receivers[0].done[i], 0);
	world_close(world);
}
END_TEST

START_TEST(wrong_options_are_refused_with_a_sentence)
{
	static const struct {
		uint64_t op_bytes, staging_bytes;
		uint32_t device_count;
		int code;
	} cases[] = {{4095, 0, 1, -EINVAL}, {0, 0, 1, -EINVAL},	    {8192, 4096, 1, -EINVAL},
		     {4096, 0, 0, -EINVAL}, {4096, 0, 17, -EINVAL}, {1u << 30, 0, 1, -ENOSPC}};
	const struct device device = {"loop", "net/a"};
	for (uint32_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct ws_error err;
		struct engine *engine;
		const struct engine_options options = {.devices = &device,
						       .device_count = cases[i].device_count,
						       .op_bytes = cases[i].op_bytes,
						       .staging_bytes = cases[i].staging_bytes};
		ck_fails(engine_open(&engine, &options, &err), cases[i].code, err);
		ck_assert_ptr_null(engine);
		ck_assert_uint_gt(strlen(err.text), 20);
	}
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine");
	TCase *cases = tcase_create("loop");
	tcase_set_timeout(cases, 60);
	tcase_add_loop_test(cases, every_byte_lands_in_any_order, 0, 36);
	tcase_add_loop_test(cases, ops_go_together_and_those_not_taken_once_more, 0, 12);
	tcase_add_loop_test(cases, who_is_ready_first_and_stands_still_holds_up_nobody, 0, 4);
	tcase_add_loop_test(cases, a_new_wiring_works_like_the_first, 0, 36);
	tcase_add_test(cases, nobody_is_written_to_before_it_is_ready);
	tcase_add_test(cases, uneven_rails_are_paired_alike_at_both_ends);
	tcase_add_test(cases, no_common_subnet_is_an_error_with_both_lists);
	tcase_add_test(cases, nonsense_from_a_peer_is_refused_and_never_crashes);
	tcase_add_loop_test(cases, a_write_outside_the_peers_region_is_never_posted, 0, 5);
	tcase_add_test(cases, wrong_options_are_refused_with_a_sentence);
	suite_add_tcase(tests, cases);
	TCase *tcp = tcase_create("tcp");
	tcase_set_timeout(tcp, 120);
	tcase_add_loop_test(tcp, every_byte_lands_over_tcp, 0, 4);
	suite_add_tcase(tests, tcp);
	return tests;
}
