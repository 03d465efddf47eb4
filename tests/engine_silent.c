/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails over which nothing gets through while their ports say up: both ends leave them out for a
 * while, say so, and try them again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/transport/tables.h"
#include "tests/ends_world.h"
#include "tests/test.h"

/* Until an op fails; then the next wiring. */
static void fails(struct ends *ends)
{
	ends_arm(ends);
	for (int i = 0; i < STEPS_MAX && ends->from.failed == 0; i++) {
		end_step(&ends->from);
		end_step(&ends->to);
	}
	ck_assert_uint_gt(ends->from.failed, 0);
	ck_assert_uint_eq(ends->from.lost, 0);
	ends_fence(ends);
	ends_connect(ends);
}

static void pairs(const struct ends *ends, bool first, bool second)
{
	const struct rail *from = ends->from.peer->rails, *to = ends->to.peer->rails;
	ck_assert(from[0].paired == first && from[1].paired == second);
	ck_assert(to[0].paired == first && to[1].paired == second);
}

/* The doubt about the rail of NIC 1, set back in time. */
static struct doubt *time_passes(struct ends *ends, uint64_t seconds)
{
	struct doubt *doubt = &ends->from.engine->doubts[0];
	for (; doubt->nic != 1; doubt++)
		ck_assert(doubt < &ends->from.engine->doubts[1]);
	doubt->since_ns -= seconds * 1000000000u;
	engine_rails_mend(ends->from.engine);
	return doubt;
}

static void silent_open(struct ends *ends)
{
	const struct device from[] = {{"fault", ":loop:net/a0"},
				      {"fault", "silent_nth=1500:loop:net/a1"}};
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	ends_open(ends, from, to, 0);
	ends_update(ends);
}

START_TEST(a_silent_rail_is_left_out_by_both_ends_and_named_and_comes_back)
{
	struct ws_nic nics[WS_NICS_MAX];
	struct ends ends;
	char text[256];

	silent_open(&ends);
	pairs(&ends, true, true);
	fails(&ends);
	pairs(&ends, true, false);
	end_says(ends.from.engine, "a1)' left out to 'the other' for 8 s: no answer, by rule");
	ck_assert(engine_rails_news(ends.from.engine, text, sizeof(text)));
	ck_assert_uint_eq(nics_in_use(ends.from.engine), 2);
	ends_update(&ends);
	ck_assert_uint_eq(engine_nic_bytes_sent(ends.from.engine, 0), BYTES);
	engine_nics(ends.from.engine, nics);
	ck_assert_str_eq(nics[1].trouble, "left out to 'the other' for 8 s: no answer, by rule");
	ck_assert_str_eq(nics[0].trouble, "");
	/* Not before its time, nor in an attempt. */
	ends_arm(&ends);
	ck_assert_int_eq(time_passes(&ends, 8)->state, DOUBT_STANDS);
	ck_assert(ends_run(&ends));
	engine_end(ends.from.engine);
	engine_end(ends.to.engine);
	ck_assert_uint_eq(engine_rewires(ends.from.engine), 0);
	ck_assert_int_eq(time_passes(&ends, 0)->state, DOUBT_OVER);
	ck_assert_uint_eq(engine_rewires(ends.from.engine), 1);
	ends_fence(&ends);
	ends_connect(&ends);
	pairs(&ends, true, true);
	fails(&ends);
	pairs(&ends, true, false);
	end_says(ends.from.engine, "for 32 s: ");
	fault_mend();
	time_passes(&ends, 32);
	ends_run_on_both(&ends);
	ends_close(&ends);
}
END_TEST

/* Nobody waits for it: what failed was over the NIC as it was before.  _i: of this end. */
START_TEST(a_nic_that_went_out_and_is_back_is_not_left_out_any_more)
{
	struct ends ends;

	silent_open(&ends);
	fails(&ends);
	pairs(&ends, true, false);
	fault_mend();
	struct engine *engine = _i == 0 ? ends.from.engine : ends.to.engine;
	rail_out(engine, 1, false, -ENETDOWN);
	engine->nics[1].since_ns -= 60 * UINT64_C(1000000000);
	engine_rails_mend(engine);
	ck_assert(engine_nic_is_in_use(engine, 1));
	ends_fence(&ends);
	ends_connect(&ends);
	pairs(&ends, true, true);
	ends_run_on_both(&ends);
	ends_close(&ends);
}
END_TEST

static uint32_t connects_in_vain;

static int connect_in_vain(struct nic *nic, struct peer *peer, const struct address *address,
			   struct ws_error *err)
{
	(void)peer;
	(void)address;
	connects_in_vain++;
	return ws_fail(err, -ETIMEDOUT, "%s is deaf", nic->name);
}

/* _i: one can't, or none. */
START_TEST(a_rail_that_cannot_be_connected_is_left_out_by_both_ends)
{
	const struct device from[] = {{"loop", "net/a0"}, {"loop", "net/a1"}};
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct writer out[2] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20)};
	struct transport deaf;
	struct ws_error err;
	struct ends ends;

	ends_open(&ends, from, to, 0);
	ends_fence(&ends);
	struct engine_nic *nics = ends.from.engine->nics;
	const struct transport *whole = nics[1].nic->transport;
	deaf = *whole;
	deaf.peer_connect = connect_in_vain;
	nics[1].nic->transport = &deaf;
	if (_i == 0) {
		ends_connect(&ends);
		ck_assert(!ends.from.peer->rails[1].paired && ends.to.peer->rails[1].paired);
	} else {
		nics[0].nic->transport = &deaf;
		ck_ok(engine_peer_open(ends.from.engine, "the other", &ends.from.peer, &out[0],
				       &err),
		      err);
		ck_ok(engine_peer_open(ends.to.engine, "the other", &ends.to.peer, &out[1], &err),
		      err);
		ck_fails(engine_peer_connect(ends.from.engine, ends.from.peer, out[1].bytes,
					     out[1].count, &err),
			 -ETIMEDOUT, err);
		ck_assert_ptr_nonnull(strstr(err.text, "cannot connect 'loop "));
		nics[0].nic->transport = whole;
	}
	ck_assert_uint_eq(engine_rewires(ends.from.engine), 1 + (unsigned)_i);
	ends_fence(&ends);
	ends_connect(&ends);
	/* Where none could be, both are tried. */
	ck_assert(ends.from.peer->rails[0].paired && !ends.from.peer->rails[1].paired);
	ck_assert(ends.to.peer->rails[1].paired == (_i == 1));
	ends_fence(&ends);
	ends_connect(&ends);
	pairs(&ends, true, false);
	end_says(ends.from.engine, "left out to 'the other' for 8 s: Connection timed out");
	nics[1].nic->transport = whole;
	time_passes(&ends, 8);
	ends_run_on_both(&ends);
	writer_release(&out[0]);
	writer_release(&out[1]);
	ends_close(&ends);
}
END_TEST

/* Each rail that isn't answered takes two seconds in earnest; the next wiring uses what is left. */
START_TEST(a_peer_is_given_up_at_its_second_rail_that_cannot_be_connected)
{
	const struct device from[] = {{"loop", "net/a0"}, {"loop", "net/a1"}, {"loop", "net/a2"}};
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}, {"loop", "net/b2"}};
	struct writer out[2] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20)};
	struct ends ends = {0};
	struct transport deaf;
	struct ws_error err;

	end_open(&ends.from, from, 3, 0);
	end_open(&ends.to, to, 3, 0);
	deaf = *ends.from.engine->nics[0].nic->transport;
	deaf.peer_connect = connect_in_vain;
	for (int i = 0; i < 2; i++)
		ends.from.engine->nics[i].nic->transport = &deaf;
	connects_in_vain = 0;
	ck_ok(engine_peer_open(ends.from.engine, "the other", &ends.from.peer, &out[0], &err), err);
	ck_ok(engine_peer_open(ends.to.engine, "the other", &ends.to.peer, &out[1], &err), err);
	ck_fails(engine_peer_connect(ends.from.engine, ends.from.peer, out[1].bytes, out[1].count,
				     &err),
		 -ETIMEDOUT, err);
	ck_assert(!ends.from.peer->rails[2].paired);
	ck_assert_uint_eq(connects_in_vain, 2);
	ends_fence(&ends);
	ends_connect(&ends);
	ck_assert_uint_eq(connects_in_vain, 2);
	ck_assert(ends.from.peer->rails[2].paired && ends.to.peer->rails[2].paired);
	ends_update(&ends);
	writer_release(&out[0]);
	writer_release(&out[1]);
	ends_close(&ends);
}
END_TEST

START_TEST(a_peer_that_was_killed_is_not_held_against_the_nic)
{
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct ends ends;

	silent_open(&ends);
	fails(&ends);
	pairs(&ends, true, false);
	ends_fence(&ends);
	engine_close(ends.to.engine);
	ws_memory_free(&ends.to.memory);
	end_open(&ends.to, to, NICS_TWO, 0);
	fault_mend();
	ends_run_on_both(&ends);
	pairs(&ends, true, true);
	ck_assert_int_eq(ends.from.engine->doubts[0].state, DOUBT_NONE);
	ends_close(&ends);
}
END_TEST

/* _i: the other is in a subnet of its own, or fails too. */
START_TEST(a_rail_that_fails_is_used_where_no_other_works)
{
	const struct device from[] = {
		{"fault", _i == 0 ? ":loop:elsewhere/a0" : "silent_nth=1500:loop:net/a0"},
		{"fault", _i == 0 ? "silent_nth=2500:loop:net/a1" : "silent_nth=1500:loop:net/a1"}};
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct ends ends;

	ends_open(&ends, from, to, 0);
	ends_update(&ends);
	for (int i = 0; i < 3; i++)
		fails(&ends);
	ck_assert(ends.from.peer->rails[1].paired);
	fault_mend();
	ends_update(&ends);
	ends_close(&ends);
}
END_TEST

static uint64_t still_ns(void *arg)
{
	return *(const uint64_t *)arg;
}

/* Ops of the second NIC aren't answered when an attempt ends, those of the first are. */
START_TEST(what_is_not_answered_for_long_when_an_attempt_ends_is_left_out_too)
{
	static char names[4][2] = {"a", "b", "c", "d"};
	struct engine *engine = mem_alloc(sizeof(*engine));
	struct op_slot slots[5] = {0};
	struct engine_peer peers[4];
	uint64_t now = clock_ns(), second = 1000000000u;

	clock_set(still_ns, &now);
	engine->nic_count = NICS_TWO;
	engine->slots = slots;
	engine->slot_count = 5;
	for (uint32_t i = 0; i < 4; i++) {
		peers[i] = (struct engine_peer){.name = names[i], .remote_lives = {1 + i, 1 + i}};
		peers[i].rails[0].paired = peers[i].rails[1].paired = true;
		slots[i] = (struct op_slot){
			.used = true, .nic = 1, .peer = &peers[i], .posted_ns = now - 3 * second};
	}
	peers[1].rails[1].sent_ns = now - second / 2; /* it goes on */
	slots[2].posted_ns = now - second / 2;	      /* not for long */
	slots[4] = slots[3];			      /* nothing is answered: it is the peer */
	slots[4].nic = 0;
	doubts_end(engine);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(doubt_of(engine, &peers[i], 1), i == 0 ? 1 : 0);
	ck_assert_uint_eq(doubt_of(engine, &peers[3], 0), 0);
	peers[0].rails[1] = (struct rail){0};
	doubts_settle(engine, &peers[0]);
	char text[256];
	doubts_text(engine, 1, text, sizeof(text));
	ck_assert_str_eq(text, "left out to 'a' for 8 s: no answer for 3.0 s");
	clock_set(NULL, NULL);
	mem_free(engine);
}
END_TEST

/* Each of a NIC's peers would cost a version to find out what one has shown. */
START_TEST(a_nic_over_which_nothing_came_since_one_rail_failed_is_left_out_to_all)
{
	static char names[4][2] = {"a", "b", "c", "d"};
	struct engine *engine = mem_alloc(sizeof(*engine));
	uint64_t now = clock_ns(), second = 1000000000u;
	struct engine_peer peers[4], *known[4];

	engine->nic_count = NICS_TWO;
	engine->peers = known;
	engine->peer_count = 4;
	for (uint32_t i = 0; i < 4; i++) {
		peers[i] = (struct engine_peer){.name = names[i], .remote_lives = {1 + i, 1 + i}};
		peers[i].rails[0].paired = peers[i].rails[1].paired = true;
		known[i] = &peers[i];
	}
	peers[1].rails[1].sent_ns = now - 2 * second; /* it goes on */
	peers[2].rails[1].sent_ns = now - 9 * second; /* idle */
	peers[3].rails[0].paired = false;	      /* there is no other */
	doubts_end(engine);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(doubt_of(engine, &peers[i], 1), 0);
	doubt_note(engine, &peers[0], 1, now - 3 * second, "no answer");
	doubts_end(engine);
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert_uint_eq(doubt_of(engine, &peers[i], 1), i % 2 == 0 ? 1 + i : 0);
		ck_assert_uint_eq(doubt_of(engine, &peers[i], 0), 0);
	}
	ck_assert_str_eq(engine->doubts[1].reason, "mute since it failed to 'a'");
	mem_free(engine);
}
END_TEST

START_TEST(a_rail_that_fails_again_is_left_out_longer_up_to_a_bound)
{
	static const uint64_t seconds[] = {8, 32, 128, 512, 2048, 2048};
	struct engine *engine = mem_alloc(sizeof(*engine));
	struct engine_peer peer = {.name = (char[]){"the other"}, .remote_lives = {7, 7}};
	char text[256], says[32];

	engine->nic_count = NICS_TWO;
	peer.rails[0].paired = true;
	for (size_t i = 0; i < ARRAY_SIZE(seconds); i++) {
		peer.rails[1] = (struct rail){.paired = true};
		doubt_note(engine, &peer, 1, 0, "no answer");
		ck_assert_uint_eq(doubt_of(engine, &peer, 1), 7);
		ck_assert_uint_eq(doubt_of(engine, &peer, 0), 0);
		peer.rails[1] = (struct rail){0}; /* of the next wiring */
		doubts_settle(engine, &peer);
		doubts_text(engine, 1, text, sizeof(text));
		snprintf(says, sizeof(says), " for %u s: no answer", (unsigned)seconds[i]);
		ck_assert_msg(strstr(text, says) != NULL, "%s", text);
		doubts_mend(engine, clock_ns() + seconds[i] * 1000000000u);
		ck_assert_uint_eq(doubt_of(engine, &peer, 1), 0);
		ck_assert_uint_eq(engine->rewires, i + 1);
	}
	/* It has carried bytes for a minute: as good as new. */
	peer.rails[1] = (struct rail){.paired = true};
	peer.rails[1].sent_ns = engine->doubts[0].since_ns + UINT64_C(61000000000);
	doubt_note(engine, &peer, 1, 0, "no answer");
	ck_assert_uint_eq(engine->doubts[0].times, 0);
	mem_free(engine);
}
END_TEST

/* So many at once aren't the rails' fault; what is noted stays. */
START_TEST(doubts_are_bounded)
{
	struct engine *engine = mem_alloc(sizeof(*engine));
	char name[32], text[256];

	engine->nic_count = NICS_TWO;
	for (uint32_t i = 0; i < 4 * DOUBTS_MAX; i++) {
		uint32_t number = i % (2 * DOUBTS_MAX);
		struct engine_peer peer = {.name = name, .remote_lives = {1 + number, 1 + number}};
		bool fits = number < DOUBTS_MAX;
		snprintf(name, sizeof(name), "rollout %u", number);
		if (i == number) {
			peer.rails[0].paired = peer.rails[1].paired = true;
			doubt_note(engine, &peer, 1, 0, "no answer");
		}
		ck_assert_uint_eq(doubt_of(engine, &peer, 1), fits ? 1 + number : 0);
		if (i != number) /* the next wiring */
			doubts_settle(engine, &peer);
	}
	doubts_text(engine, 1, text, sizeof(text));
	ck_assert_str_eq(text, "left out to 'rollout 0' (and 255 more) for 8 s: no answer");
	doubts_forget(engine, 1);
	doubts_text(engine, 1, text, sizeof(text));
	ck_assert_str_eq(text, "");
	mem_free(engine);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("engine_silent");
	TCase *tcase = tcase_create("silent");
	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, a_silent_rail_is_left_out_by_both_ends_and_named_and_comes_back);
	tcase_add_loop_test(tcase, a_nic_that_went_out_and_is_back_is_not_left_out_any_more, 0, 2);
	tcase_add_loop_test(tcase, a_rail_that_cannot_be_connected_is_left_out_by_both_ends, 0, 2);
	tcase_add_test(tcase, a_peer_is_given_up_at_its_second_rail_that_cannot_be_connected);
	tcase_add_test(tcase, a_peer_that_was_killed_is_not_held_against_the_nic);
	tcase_add_loop_test(tcase, a_rail_that_fails_is_used_where_no_other_works, 0, 2);
	tcase_add_test(tcase, what_is_not_answered_for_long_when_an_attempt_ends_is_left_out_too);
	tcase_add_test(tcase,
		       a_nic_over_which_nothing_came_since_one_rail_failed_is_left_out_to_all);
	tcase_add_test(tcase, a_rail_that_fails_again_is_left_out_longer_up_to_a_bound);
	tcase_add_test(tcase, doubts_are_bounded);
	suite_add_tcase(suite, tcase);
	return suite;
}
