/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails of one engine: shares by speed, pairing by subnet, and NICs that go out of use and come
 * back, over loop.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/transport/tables.h"
#include "tests/ends_world.h"
#include "tests/test.h"

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

/* As a side does, turn by turn. */
static void mend_until(struct ends *ends, struct end *end, uint32_t count)
{
	uint64_t until_ns = deadline_in_ms(PATIENCE_MS);
	while (nics_in_use(end->engine) != count) {
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
	ck_assert(second == 0 || (first == 0 && nics_in_use(ends->to.engine) == 1));
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
	end_says(end->engine, gone ? "' is lost: " : "' is down: its port is down by rule");
	end_says(end->engine, "; running on 1 of 2 NICs");
	for (int i = 0; i < 100; i++) {
		end_step(&ends.from);
		end_step(&ends.to);
	}
	ck_assert_uint_eq(end->lost, 1);
	engine_rails_mend(end->engine); /* not in an attempt */
	ck_assert_uint_eq(nics_in_use(end->engine), 1);
	runs_on_one_rail(&ends);
	fault_mend();
	mend_until(&ends, end, 2);
	ends_run_on_both(&ends);
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
	uint64_t until_ns = deadline_in_ms(PATIENCE_MS);
	while (ends.from.engine->nics[1].why.code != -EINVAL) {
		ck_assert_uint_lt(clock_ns(), until_ns);
		engine_rails_mend(ends.from.engine);
		sleep_ns(1000000);
	}
	end_says(ends.from.engine, "has a NIC 'a1' already; running on 1 of 2 NICs");
	/* What doesn't fit is cut, not left out. */
	memset(ends.from.engine->nics[1].why.text, 'x', sizeof(err.text) - 1);
	end_says(ends.from.engine, "x; running on 1 of 2 NICs");
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
