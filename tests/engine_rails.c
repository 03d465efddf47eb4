/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails of one engine: shares by speed, pairing by subnet, and NICs that go out of use and come
 * back.  One sender and one receiver, stepped by one thread, over loop.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/engine/engine_internal.h"
#include "lib/transport/tables.h"
#include "tests/test.h"

#define OP_BYTES  4096u
#define OPS	  2000u
#define BYTES	  ((uint64_t)OPS * OP_BYTES)
#define STEPS_MAX 400000
#define WAIT_MS	  20000u
#define NICS_TWO  2

struct end {
	struct engine *engine;
	struct engine_peer *peer;
	struct ws_memory memory;
	uint32_t lost, failed, done;
	struct engine_event lost_event;
};

struct ends {
	struct end from, to;
	struct send send;
	struct receive receive;
	struct op_range range;
	struct span span;
	uint64_t attempt;
};

static void end_open(struct end *end, const struct device *devices, uint32_t depth, bool gathers)
{
	struct ws_error err;
	uint32_t region;
	const struct engine_options options = {.devices = devices,
					       .device_count = NICS_TWO,
					       .op_bytes = OP_BYTES,
					       .depth = depth,
					       .staging_bytes = gathers ? 16 * OP_BYTES : 0};
	ck_ok(engine_open(&end->engine, &options, &err), err);
	end->memory = (struct ws_memory){.place = WS_HOST};
	ck_ok(ws_memory_alloc(&end->memory, BYTES, &err), err);
	ck_ok(engine_region_add(end->engine, &end->memory, &region, &err), err);
	ck_assert_uint_eq(region, 1);
}

static void half_open(struct end *end, struct writer *address, struct writer *regions)
{
	struct ws_error err;
	ck_ok(engine_peer_open(end->engine, "the other", &end->peer, address, &err), err);
	engine_regions_encode(end->engine, regions);
}

static void half_connect(struct end *end, const struct writer *address,
			 const struct writer *regions)
{
	struct ws_error err;
	ck_ok(engine_peer_connect(end->engine, end->peer, address->bytes, address->count, &err),
	      err);
	ck_ok(engine_peer_regions(end->engine, end->peer, regions->bytes, regions->count, &err),
	      err);
}

static void ends_connect(struct ends *ends)
{
	struct writer out[4] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20), WRITER_INIT(1 << 20),
				WRITER_INIT(1 << 20)};
	struct ws_error err;

	half_open(&ends->from, &out[0], &out[1]);
	half_open(&ends->to, &out[2], &out[3]);
	half_connect(&ends->from, &out[2], &out[3]);
	half_connect(&ends->to, &out[0], &out[1]);
	for (int i = 0; i < 4; i++)
		writer_release(&out[i]);
	ends->send = (struct send){.peer = ends->from.peer,
				   .bytes = BYTES,
				   .local = ends->from.memory.base,
				   .local_region = 1,
				   .remote_region = 1,
				   .credit_op_id = NONE};
	ends->receive = (struct receive){.peer = ends->to.peer,
					 .op_count = OPS,
					 .bytes = BYTES,
					 .digest_op_id = NONE,
					 .credit_op_id = NONE};
	ends->range = (struct op_range){.count = OPS};
	const struct engine_program sends = {.sends = &ends->send, .send_count = 1};
	const struct engine_program receives = {.receives = &ends->receive,
						.receive_count = 1,
						.ranges = &ends->range,
						.range_count = 1,
						.op_id_count = OPS};
	ck_ok(engine_set_program(ends->from.engine, &sends, &err), err);
	ck_ok(engine_set_program(ends->to.engine, &receives, &err), err);
}

static void ends_open(struct ends *ends, const struct device *from, const struct device *to,
		      uint32_t depth)
{
	memset(ends, 0, sizeof(*ends));
	end_open(&ends->from, from, depth, false);
	end_open(&ends->to, to, depth, false);
	ends_connect(ends);
}

static void end_step(struct end *end)
{
	struct engine_event events[16];
	int count = engine_step(end->engine, events, (int)ARRAY_SIZE(events));
	for (int i = 0; i < count; i++) {
		if (events[i].kind == ENGINE_NIC_LOST) {
			end->lost++;
			end->lost_event = events[i];
		}
		end->failed += events[i].kind == ENGINE_OP_FAILED;
		end->done += events[i].kind == ENGINE_RECEIVE_DONE;
		ck_assert_int_ne(events[i].kind, ENGINE_STRAY);
	}
}

static void ends_arm(struct ends *ends)
{
	struct ws_error err;
	uint8_t *bytes = ends->from.memory.base;
	ends->attempt++;
	for (uint64_t i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)mix64(ends->attempt << 32 | i);
	ends->from.lost = ends->from.failed = ends->to.lost = ends->to.done = 0;
	ck_ok(engine_arm(ends->from.engine, ends->attempt, &err), err);
	ck_ok(engine_arm(ends->to.engine, ends->attempt, &err), err);
	engine_peer_ready(ends->from.engine, ends->from.peer);
}

/* True: all has landed.  False: a NIC was lost. */
static bool ends_run(struct ends *ends)
{
	struct engine_progress progress = {0};
	for (int i = 0; i < STEPS_MAX; i++) {
		end_step(&ends->from);
		end_step(&ends->to);
		engine_progress(ends->from.engine, &progress);
		if (ends->from.lost + ends->to.lost > 0)
			return false;
		if (ends->to.done == 1 && progress.all_sent)
			return true;
	}
	ck_abort_msg("%u sent, %u landed", progress.sends_done, ends->to.done);
}

static void ends_update(struct ends *ends)
{
	ends_arm(ends);
	ck_assert(ends_run(ends));
	ck_assert_mem_eq(ends->from.memory.base, ends->to.memory.base, BYTES);
	engine_end(ends->from.engine);
	engine_end(ends->to.engine);
}

static void ends_fence(struct ends *ends)
{
	struct ws_error err;
	int rc = -EAGAIN, other = -EAGAIN;
	bool closed;
	for (int i = 0; i < STEPS_MAX && (rc == -EAGAIN || other == -EAGAIN); i++) {
		rc = rc == 0 ? 0 : engine_fence(ends->from.engine, &closed, &err);
		other = other == 0 ? 0 : engine_fence(ends->to.engine, &closed, &err);
		end_step(&ends->from);
		end_step(&ends->to);
	}
	ck_ok(rc, err);
	ck_ok(other, err);
}

static void ends_close(struct ends *ends)
{
	ends_fence(ends);
	engine_close(ends->from.engine);
	engine_close(ends->to.engine);
	ws_memory_free(&ends->from.memory);
	ws_memory_free(&ends->to.memory);
	ck_assert_uint_eq(mem_live_count(), 0);
}

/* ------------------------------------------------------------------------------ shares */

struct shares {
	uint32_t mbps[NICS_TWO];
	uint32_t depth;
	double first, off; /* the first's share, and by how much it may differ */
};

static const struct shares shares[] = {
	{{400000, 400000}, 16, 1.0 / 2, 0.05}, {{200000, 100000}, 16, 2.0 / 3, 0.10},
	{{100000, 200000}, 16, 1.0 / 3, 0.10}, {{400000, 400000}, 1, 1.0 / 2, 0.05},
	{{100000, 200000}, 4, 1.0 / 3, 0.10},  {{0, 0}, 1, 1.0 / 2, 0.05},
};
#define SEEDS 5

START_TEST(each_rail_carries_its_share_of_the_speed)
{
	const struct shares *wanted = &shares[_i / SEEDS];
	char names[NICS_TWO][64];
	struct device from[NICS_TWO];
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct ends ends;

	for (uint32_t i = 0; i < NICS_TWO; i++) {
		snprintf(names[i], sizeof(names[i]), "net/a%u?seed=%d&mbps=%u", i, 1 + _i % SEEDS,
			 wanted->mbps[i]);
		from[i] = (struct device){"loop", names[i]};
	}
	ends_open(&ends, from, to, wanted->depth);
	for (int update = 0; update < 2; update++) {
		ends_update(&ends);
		double first = (double)engine_nic_bytes_sent(ends.from.engine, 0) / BYTES;
		double off = first / wanted->first - 1;
		ck_assert_msg(off > -wanted->off && off < wanted->off,
			      "%u and %u Mb/s: the first carried %.3f", wanted->mbps[0],
			      wanted->mbps[1], first);
	}
	ends_close(&ends);
}
END_TEST

START_TEST(rails_that_are_not_cross_connected_pair_by_subnet)
{
	const struct device from[] = {{"loop", "east/a0"}, {"loop", "west/a1"}};
	const struct device to[] = {{"loop", "west/b0"}, {"loop", "east/b1"}};
	struct ends ends;

	ends_open(&ends, from, to, 0);
	ck_assert_uint_eq(ends.from.peer->rails[0].remote_nic, 1);
	ck_assert_uint_eq(ends.from.peer->rails[1].remote_nic, 0);
	ends_update(&ends);
	for (uint32_t i = 0; i < NICS_TWO; i++)
		ck_assert_uint_gt(engine_nic_bytes_sent(ends.from.engine, i), BYTES / 4);
	ends_close(&ends);
}
END_TEST

/* ------------------------------------------------------------------- out of use, and back */

static void text_has(const struct engine *engine, const char *says)
{
	char text[256];
	engine_rails_text(engine, text, sizeof(text));
	ck_assert_msg(strstr(text, says) != NULL, "without '%s': %s", says, text);
}

static uint32_t in_use(const struct engine *engine)
{
	struct nic_speed rails[NICS_MAX];
	return engine_rails(engine, rails);
}

/* As a side does, turn by turn. */
static void mend_until(struct ends *ends, struct end *end, uint32_t count)
{
	uint64_t until_ns = deadline_in_ms(WAIT_MS);
	while (in_use(end->engine) != count) {
		ck_assert_uint_lt(clock_ns(), until_ns);
		end_step(&ends->from);
		end_step(&ends->to);
		engine_rails_mend(end->engine);
		sleep_ns(1000000);
	}
}

static void runs_on_one_rail(struct ends *ends)
{
	ends_fence(ends);
	ends_connect(ends);
	ends_update(ends);
	/* With one NIC there, either of two here leads to it. */
	uint64_t first = engine_nic_bytes_sent(ends->from.engine, 0);
	uint64_t second = engine_nic_bytes_sent(ends->from.engine, 1);
	ck_assert_uint_eq(first + second, BYTES);
	ck_assert(second == 0 || (first == 0 && in_use(ends->to.engine) == 1));
}

static void runs_on_both_rails(struct ends *ends)
{
	char text[256];
	ends_fence(ends);
	ends_connect(ends);
	ends_update(ends);
	for (uint32_t i = 0; i < NICS_TWO; i++)
		ck_assert_uint_gt(engine_nic_bytes_sent(ends->from.engine, i), 0);
	engine_rails_text(ends->from.engine, text, sizeof(text));
	ck_assert_str_eq(text, "");
	engine_rails_text(ends->to.engine, text, sizeof(text));
	ck_assert_str_eq(text, "");
}

/* _i: at whose end, and whether the port goes down or the NIC. */
START_TEST(a_nic_that_goes_out_of_use_is_told_once_left_out_and_comes_back)
{
	bool at_sender = (_i & 1) == 0, gone = (_i & 2) != 0;
	const char *rule = gone ? "gone_nth=1500" : "down_nth=1500";
	char name[128], news[256];
	struct device from[] = {{"loop", "net/a0"}, {"loop", "net/a1"}};
	struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct ends ends;

	snprintf(name, sizeof(name), "%s:loop:net/%s", rule, at_sender ? "a1" : "b1");
	*(at_sender ? &from[1] : &to[1]) = (struct device){"fault", name};
	ends_open(&ends, from, to, 0);
	struct end *end = at_sender ? &ends.from : &ends.to;
	ends_update(&ends);
	ends_arm(&ends);
	ck_assert(!ends_run(&ends));
	ck_assert_uint_eq(end->lost, 1);
	ck_assert_uint_eq(end->lost_event.nic, 1);
	ck_assert_int_eq(end->lost_event.status, gone ? -ENODEV : -ENETDOWN);
	text_has(end->engine, gone ? "' is lost: " : "' is down: its port is down by rule");
	text_has(end->engine, "; running on 1 of 2 NICs");
	for (int i = 0; i < 100; i++) {
		end_step(&ends.from);
		end_step(&ends.to);
	}
	ck_assert_uint_eq(end->lost, 1);
	engine_rails_mend(end->engine); /* not in an attempt */
	ck_assert_uint_eq(in_use(end->engine), 1);
	runs_on_one_rail(&ends);
	fault_mend();
	mend_until(&ends, end, 2);
	runs_on_both_rails(&ends);
	/* A port keeps what happened to it; a NIC that was opened again is new. */
	engine_rails_news(end->engine, news, sizeof(news));
	ck_assert_int_eq(strstr(news, "NIC '") == NULL, gone);
	ends_close(&ends);
}
END_TEST

START_TEST(a_nic_that_cannot_be_opened_again_is_tried_again)
{
	const struct device from[] = {{"loop", "net/a0"}, {"fault", "gone_nth=1500:loop:net/a1"}};
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct ends ends;
	struct ws_error err;
	struct nic *rival;

	ends_open(&ends, from, to, 0);
	ends_update(&ends);
	ends_arm(&ends);
	ck_assert(!ends_run(&ends));
	ends_fence(&ends);
	fault_mend();
	ck_ok(nic_open(&rival, "loop", "net/a1", &err), err);
	uint64_t until_ns = deadline_in_ms(WAIT_MS);
	while (ends.from.engine->nics[1].why.code != -EINVAL) {
		ck_assert_uint_lt(clock_ns(), until_ns);
		engine_rails_mend(ends.from.engine);
		sleep_ns(1000000);
	}
	text_has(ends.from.engine, "has a NIC 'a1' already; running on 1 of 2 NICs");
	/* What doesn't fit is cut, not left out. */
	memset(ends.from.engine->nics[1].why.text, 'x', sizeof(err.text) - 1);
	text_has(ends.from.engine, "x; running on 1 of 2 NICs");
	nic_close(rival);
	mend_until(&ends, &ends.from, 2);
	ends_connect(&ends);
	ends_update(&ends);
	ck_assert_uint_gt(engine_nic_bytes_sent(ends.from.engine, 1), 0);
	ends_close(&ends);
}
END_TEST

START_TEST(no_attempt_begins_on_a_rail_that_is_out_of_use)
{
	const struct device from[] = {{"loop", "net/a0"},
				      {"fault", "down_nth=1100,down_polls=10:loop:net/a1"}};
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct ends ends;
	struct ws_error err;

	ends_open(&ends, from, to, 0);
	for (bool whole = true; whole;) {
		ends_arm(&ends);
		whole = ends_run(&ends);
		engine_end(ends.from.engine);
		engine_end(ends.to.engine);
		ck_assert_uint_lt(ends.attempt, 5);
	}
	ck_fails(engine_arm(ends.from.engine, 9, &err), -EIO, err);
	ck_assert_ptr_nonnull(strstr(err.text, "a1"));
	ends_close(&ends);
}
END_TEST

START_TEST(a_nic_that_flaps_stays_out_longer_each_time)
{
	const struct device from[] = {{"loop", "net/a0"}, {"loop", "net/a1"}};
	const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};
	struct ends ends;
	uint64_t before_ns = 0;

	ends_open(&ends, from, to, 0);
	struct engine_nic *nic = &ends.from.engine->nics[1];
	for (int i = 0; i < 12; i++) {
		rail_out(ends.from.engine, 1, false, -ENETDOWN);
		ck_assert(nic->wait_ns >= 2 * before_ns || nic->wait_ns == before_ns);
		ck_assert_uint_le(nic->wait_ns, UINT64_C(32000000000));
		before_ns = nic->wait_ns;
		nic->since_ns -= nic->wait_ns;
		engine_rails_mend(ends.from.engine);
		ck_assert(!nic->out);
	}
	ck_assert_uint_eq(before_ns, UINT64_C(32000000000));
	nic->since_ns -= UINT64_C(61000000000); /* in use for a minute: as good as new */
	rail_out(ends.from.engine, 1, false, -ENETDOWN);
	ck_assert_uint_le(nic->wait_ns, UINT64_C(1000000000));
	ends_close(&ends);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("engine_rails");
	TCase *tcase = tcase_create("shares");
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, each_rail_carries_its_share_of_the_speed, 0,
			    (int)ARRAY_SIZE(shares) * SEEDS);
	tcase_add_test(tcase, rails_that_are_not_cross_connected_pair_by_subnet);
	suite_add_tcase(suite, tcase);
	tcase = tcase_create("life");
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, a_nic_that_goes_out_of_use_is_told_once_left_out_and_comes_back,
			    0, 4);
	tcase_add_test(tcase, a_nic_that_cannot_be_opened_again_is_tried_again);
	tcase_add_test(tcase, no_attempt_begins_on_a_rail_that_is_out_of_use);
	tcase_add_test(tcase, a_nic_that_flaps_stays_out_longer_each_time);
	suite_add_tcase(suite, tcase);
	return suite;
}
