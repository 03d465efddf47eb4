/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/engine when something goes wrong: each failure is seen, once, by name; then a fence, a new
 * wiring and a higher attempt, which succeeds.  And the nth allocation.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/engine_world.h"
#include "tests/test.h"

static struct world *faulty_open(const char *rules, int seed, bool digests)
{
	struct world wanted = {.transport = "loop",
			       .sender_count = 2,
			       .receiver_count = 2,
			       .nic_count = 1,
			       .op_bytes = 4096,
			       .staging_bytes = 16384,
			       .digests = digests,
			       .seed = (uint32_t)seed,
			       .rules = rules};
	return world_open(&wanted);
}

static void steps(struct world *world, int count)
{
	for (int i = 0; i < count; i++)
		world_step(world);
}

/* Who of the receivers saw something; NULL if none did. */
static struct side *receiver_with_stray(struct world *world)
{
	for (uint32_t r = 0; r < world->receiver_count; r++)
		if (world->receivers[r].strays > 0)
			return &world->receivers[r];
	return NULL;
}

/* The fault is past: everything works again, over the same engines. */
static void recover_with(struct world *world, uint64_t attempt)
{
	world_fence(world);
	world_connect(world);
	world_update(world, attempt);
}

static void recover(struct world *world, uint64_t attempt)
{
	recover_with(world, attempt);
	world_close(world);
}

START_TEST(a_failed_op_is_reported_once)
{
	char rules[64];
	snprintf(rules, sizeof(rules), "fail_nth=%d", 1 + _i);
	struct world *world = faulty_open(rules, _i, _i % 2 == 1);
	struct side *sender = &world->senders[0];
	world_arm(world, 1);
	world_settle(world);
	ck_assert_uint_eq(sender->failed, 1);
	ck_assert_int_eq(sender->last.status, -EIO);
	ck_assert_uint_eq(sender->last.nic, 0);
	ck_assert(sender->last.peer == sender->peers[0] || sender->last.peer == sender->peers[1]);
	ck_assert_uint_eq(sender->sends_done, 0);
	/* The other sender isn't held up, and that op is among what the receiver misses. */
	ck_assert_uint_eq(world->senders[1].sends_done, 1);
	struct side *receiver = &world->receivers[sender->last.peer == sender->peers[0] ? 0 : 1];
	bool named = false;
	for (uint32_t i = 0; i < RECEIVES; i++) {
		uint32_t first = 0, missing = engine_receive_missing(receiver->engine, i, &first);
		const struct op_range *range = &receiver->ranges[i];
		ck_assert_uint_eq(receiver->done[i], missing == 0);
		if (sender->last.op_id - range->first_op_id < range->count)
			named = missing > 0 && first <= sender->last.op_id;
	}
	ck_assert(named);
	recover(world, 2);
}
END_TEST

START_TEST(a_peer_whose_op_failed_gets_no_more)
{
	struct world *world = faulty_open("fail=1", 3, false);
	struct side *sender = &world->senders[0];
	uint64_t ops = 0;
	for (uint32_t i = 0; i < sender->program.send_count; i++)
		if (sender->sends[i].credit_op_id == NONE)
			ops += engine_op_count(sender->sends[i].bytes, world->op_bytes);
	world_arm(world, 1);
	world_settle(world);
	ck_assert_uint_ge(sender->failed, 2);
	ck_assert_uint_le(sender->failed, DEPTH_DEFAULT);
	ck_assert_uint_gt(ops, DEPTH_DEFAULT);
	ck_assert_uint_eq(sender->sends_done, 0);
	world_close(world);
}
END_TEST

START_TEST(a_dropped_op_leaves_a_receive_incomplete_and_is_named)
{
	char rules[64];
	snprintf(rules, sizeof(rules), "drop_nth=%d", 1 + _i);
	struct world *world = faulty_open(rules, _i, false);
	uint32_t incomplete = 0, one_missing = 0;
	world_arm(world, 1);
	world_settle(world);
	for (uint32_t r = 0; r < 2; r++)
		for (uint32_t i = 0; i < 2 * RECEIVES; i++) {
			struct side *side = &world->receivers[r];
			uint32_t first, missing = engine_receive_missing(side->engine, i, &first);
			ck_assert_uint_eq(side->done[i], missing == 0);
			incomplete += missing > 0;
			one_missing += missing == 1;
			if (missing > 0)
				ck_assert_uint_lt(first - side->ranges[i].first_op_id,
						  side->ranges[i].count);
		}
	ck_assert_uint_gt(incomplete, 0);
	ck_assert_uint_gt(one_missing, 0);
	ck_assert_uint_eq(world->senders[0].failed, 0);
	recover(world, 2);
}
END_TEST

START_TEST(a_lost_completion_holds_its_sender_until_the_fence)
{
	char rules[64];
	snprintf(rules, sizeof(rules), "lost_nth=%d", 1 + _i);
	struct world *world = faulty_open(rules, _i, true);
	world_arm(world, 1);
	world_settle(world);
	ck_assert_uint_eq(world->senders[0].sends_done, 0);
	ck_assert_uint_eq(world->senders[0].failed, 0);
	ck_assert_uint_eq(world->senders[1].sends_done, 1);
	recover(world, 2);
}
END_TEST

START_TEST(a_repeated_immediate_is_a_stray)
{
	char rules[64];
	snprintf(rules, sizeof(rules), "dup_nth=%d", 1 + _i);
	struct world *world = faulty_open(rules, _i, false);
	world_arm(world, 300);
	ck_until(receiver_with_stray(world) != NULL, world_step(world));
	/* A credit that is repeated is seen by nobody here: sender 0 sends only data. */
	struct side *side = receiver_with_stray(world);
	ck_assert_uint_eq(side->strays, 1);
	ck_assert_int_eq(side->last.kind, ENGINE_STRAY);
	ck_assert_int_eq(side->last.stray, STRAY_DUPLICATE);
	ck_assert_ptr_eq(side->last.peer, side->peers[0]);
	ck_assert_uint_eq(side->last.imm >> 24, 300 & 0xff);
	recover(world, 301);
}
END_TEST

/* The last bad one that it saw is of attempt 1. */
static bool is_stale(const struct side *side)
{
	return side->strays > 0 && side->last.kind == ENGINE_STRAY &&
	       side->last.stray == STRAY_STALE && side->last.imm >> 24 == 1;
}

START_TEST(an_immediate_of_an_attempt_that_is_over_is_a_stray)
{
	struct world *world = faulty_open("stale=1", 5, false);
	/* What the rule repeats in the first attempt are duplicates of it. */
	world_arm(world, 1);
	world_settle(world);
	world_end(world);
	world_arm(world, 2);
	ck_until(is_stale(&world->receivers[0]) || is_stale(&world->receivers[1]),
		 world_step(world));
	world_close(world);
}
END_TEST

START_TEST(an_immediate_without_an_attempt_is_a_stray)
{
	struct world *world = faulty_open("", 5, false);
	struct side *receiver = &world->receivers[0];
	world_arm(world, 1);
	engine_end(receiver->engine);
	ck_until(receiver->strays > 0, world_step(world));
	ck_assert_int_eq(receiver->last.stray, STRAY_NO_ATTEMPT);
	ck_assert_ptr_nonnull(receiver->last.peer);
	recover(world, 2);
}
END_TEST

START_TEST(a_changed_byte_makes_the_digest_wrong)
{
	char rules[64];
	snprintf(rules, sizeof(rules), _i % 2 == 0 ? "corrupt_nth=%d" : "cut_nth=%d", 1 + _i);
	struct world *world = faulty_open(rules, _i, true);
	world_arm(world, 1);
	ck_until(world->receivers[0].wrong + world->receivers[1].wrong > 0, world_step(world));
	struct side *side = &world->receivers[world->receivers[0].wrong > 0 ? 0 : 1];
	ck_assert_int_eq(side->last.kind, ENGINE_DIGEST_WRONG);
	ck_assert_ptr_eq(side->last.peer, side->peers[0]);
	ck_assert(side->last.got != side->last.want);
	ck_assert_uint_lt(side->last.receive, RECEIVES);
	world_settle(world);
	ck_assert_uint_eq(side->wrong, 1);
	ck_assert_uint_eq(side->done[side->last.receive], 0);
	recover(world, 2);
}
END_TEST

START_TEST(delays_change_nothing)
{
	char rules[64];
	snprintf(rules, sizeof(rules), "seed=%d,delay=0.4", 1 + _i);
	struct world *world = faulty_open(rules, _i, _i % 2 == 0);
	world_update(world, 1);
	recover(world, 2);
}
END_TEST

/* A sender's process dies in the middle: its peers give it up, and another takes its place. */
START_TEST(a_sender_that_is_gone_can_be_fenced)
{
	struct world wanted = {.transport = _i % 2 == 0 ? "loop" : "fabric",
			       .sender_count = 2,
			       .receiver_count = 2,
			       .nic_count = 1,
			       .op_bytes = 4096,
			       .staging_bytes = 16384,
			       .seed = (uint32_t)_i};
	struct world *world = world_open(&wanted);
	struct side *dead = &world->senders[0];
	struct ws_error err;
	uint32_t region;
	world_update(world, 1);
	world_arm(world, 2);
	steps(world, _i);
	engine_close(dead->engine);
	dead->engine = NULL;
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);
	bool open[3] = {true, true, true}, closed;
	struct side *others[3] = {&world->senders[1], &world->receivers[0], &world->receivers[1]};
	for (int turn = 0; (open[0] || open[1] || open[2]) && clock_ns() < deadline; turn++) {
		for (int i = 0; i < 3; i++) {
			struct engine_event events[16];
			if (!open[i])
				continue;
			for (int k = 0; k < 2; k++) {
				if (i > 0 && k == 0 && turn > 10)
					engine_peer_abandon(others[i]->engine, others[i]->peers[k]);
				else if (turn > 10)
					engine_peer_quiet(others[i]->engine, others[i]->peers[k]);
			}
			int rc = engine_fence(others[i]->engine, &closed, &err);
			if (rc != -EAGAIN)
				ck_ok(rc, err);
			open[i] = rc == -EAGAIN;
			engine_step(others[i]->engine, events, ARRAY_SIZE(events));
			engine_wait(others[i]->engine, -1, -1, clock_ns() + 1000000);
		}
	}
	ck_assert(!open[0] && !open[1] && !open[2]);
	ck_ok(side_open(world, dead, false, 77, &err), err);
	ck_ok(engine_region_add(dead->engine, &dead->memory, MR_TARGET, &region, &err), err);
	world_connect(world);
	world_update(world, 3);
	world_close(world);
}
END_TEST

/* --------------------------------------------------------------------------- a lost NIC */

static int lost_post(struct nic *nic, const struct op *ops, int count)
{
	(void)nic, (void)ops, (void)count;
	return -ENODEV;
}

static int lost_poll(struct nic *nic, struct event *events_out, int count)
{
	(void)nic, (void)events_out, (void)count;
	return -ENODEV;
}

static struct transport lost_transport;

/* From now on the NIC answers as one whose device is gone. */
static void nic_break(struct side *side, uint32_t index)
{
	struct nic *nic = side->engine->nics[index].nic;
	lost_transport = *nic->transport;
	lost_transport.post = lost_post;
	lost_transport.poll = lost_poll;
	nic->transport = &lost_transport;
}

START_TEST(a_lost_nic_is_reported_once_and_left_out_of_the_next_wiring)
{
	struct world wanted = {.transport = "loop",
			       .sender_count = 2,
			       .receiver_count = 2,
			       .nic_count = 2,
			       .op_bytes = 4096,
			       .staging_bytes = 16384,
			       .digests = _i % 2 == 1,
			       .seed = (uint32_t)_i};
	struct world *world = world_open(&wanted);
	struct side *side = _i / 2 % 2 == 0 ? &world->senders[0] : &world->receivers[0];
	world_update(world, 1);
	world_arm(world, 2);
	steps(world, _i);
	nic_break(side, 1);
	world_settle(world);
	ck_assert_uint_eq(side->lost, 1);
	ck_assert_uint_eq(side->failed, 0);
	recover_with(world, 3);
	ck_assert_uint_eq(engine_nic_bytes_sent(side->engine, 1), 0);
	world_close(world);
}
END_TEST

START_TEST(without_any_nic_a_send_fails_by_name)
{
	struct world *world = faulty_open("", 2, false);
	struct side *side = &world->senders[0];
	world_arm(world, 1);
	nic_break(side, 0);
	world_settle(world);
	ck_assert_uint_eq(side->lost, 1);
	ck_assert_uint_eq(side->failed, 2); /* one op of each peer */
	ck_assert_int_eq(side->last.status, -ENETDOWN);
	ck_assert_ptr_nonnull(side->last.peer);
	world_close(world);
}
END_TEST

/* ------------------------------------------------------------------ the nth allocation */

static int pair_program(struct world *world, uint8_t *bytes, struct ws_error *err)
{
	struct side *sender = &world->senders[0], *receiver = &world->receivers[0];
	const struct gather_move gather = {.move = {.src = bytes,
						    .dim_count = 1,
						    .extent = {64},
						    .src_stride = {1},
						    .from = WS_U8,
						    .to = WS_U8}};
	const struct send send = {.peer = sender->peers[0],
				  .bytes = 64,
				  .moves = &gather,
				  .move_count = 1,
				  .credit_op_id = NONE};
	const struct receive receive = {.peer = receiver->peers[0],
					.op_count = 1,
					.digest_op_id = NONE,
					.credit_op_id = NONE};
	const struct op_range range = {.count = 1};
	const struct engine_program sends = {.sends = &send, .send_count = 1};
	const struct engine_program receives = {.receives = &receive,
						.receive_count = 1,
						.ranges = &range,
						.range_count = 1,
						.op_id_count = 1};
	int rc = engine_set_program(sender->engine, &sends, err);
	return rc == 0 ? engine_set_program(receiver->engine, &receives, err) : rc;
}

static int life(struct world *world, struct ws_error *err)
{
	static uint8_t bytes[2][4096];
	int rc = 0;
	for (uint32_t i = 0; i < 2 && rc == 0; i++) {
		struct side *side = i == 0 ? &world->senders[0] : &world->receivers[0];
		struct ws_memory memory = {.base = bytes[i], .bytes = sizeof(bytes[i])};
		uint32_t region;
		rc = side_open(world, side, false, i, err);
		if (rc == 0)
			rc = engine_region_add(side->engine, &memory, MR_TARGET, &region, err);
	}
	if (rc == 0)
		rc = pair_connect(world, 0, 0, err);
	return rc == 0 ? pair_program(world, bytes[0], err) : rc;
}

START_TEST(every_allocation_may_fail)
{
	uint64_t before = mem_live_count();
	int rc = -ENOMEM;
	int64_t n = 0;
	for (; rc != 0 && n < 1000; n++) {
		struct world world = {.transport = _i == 0 ? "loop" : "fabric",
				      .nic_count = 2,
				      .op_bytes = 4096,
				      .staging_bytes = 65536};
		struct ws_error err = {0};
		mem_fail_nth(n);
		rc = life(&world, &err);
		mem_fail_nth(-1);
		if (rc != 0) {
			ck_assert_msg(rc == -ENOMEM && err.code == rc, "%d: %d: %s", (int)n, rc,
				      err.text);
			ck_assert_uint_gt(strlen(err.text), 10);
		}
		engine_close(world.senders[0].engine);
		engine_close(world.receivers[0].engine);
		ck_assert_uint_eq(mem_live_count(), before);
	}
	ck_assert_int_eq(rc, 0);
	ck_assert_int_gt(n, 15);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine_fault");
	TCase *cases = tcase_create("fault");
	tcase_set_timeout(cases, 120);
	tcase_add_loop_test(cases, a_failed_op_is_reported_once, 0, 12);
	tcase_add_test(cases, a_peer_whose_op_failed_gets_no_more);
	tcase_add_loop_test(cases, a_dropped_op_leaves_a_receive_incomplete_and_is_named, 0, 8);
	tcase_add_loop_test(cases, a_lost_completion_holds_its_sender_until_the_fence, 0, 8);
	tcase_add_loop_test(cases, a_repeated_immediate_is_a_stray, 0, 8);
	tcase_add_test(cases, an_immediate_of_an_attempt_that_is_over_is_a_stray);
	tcase_add_test(cases, an_immediate_without_an_attempt_is_a_stray);
	tcase_add_loop_test(cases, a_changed_byte_makes_the_digest_wrong, 0, 10);
	tcase_add_loop_test(cases, delays_change_nothing, 0, 4);
	tcase_add_loop_test(cases, a_sender_that_is_gone_can_be_fenced, 0, 6);
	tcase_add_loop_test(cases, a_lost_nic_is_reported_once_and_left_out_of_the_next_wiring, 0,
			    8);
	tcase_add_test(cases, without_any_nic_a_send_fails_by_name);
	tcase_add_loop_test(cases, every_allocation_may_fail, 0, 2);
	suite_add_tcase(tests, cases);
	return tests;
}
