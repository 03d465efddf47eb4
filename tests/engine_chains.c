/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops reach a NIC several at a time, and it may take fewer than it is given: all arrive once, in
 * their peer's order, and nothing is left over.  A transport that counts, and takes what a seed
 * says, stands between the engine and loop.
 */
#include <errno.h>
#include <string.h>

#include "tests/ends_world.h"
#include "tests/test.h"

static struct {
	const struct transport *inner;
	uint64_t random; /* 0: it takes all that is offered */
	uint32_t calls, ops, longest, refused, last_op_id[NICS_TWO];
	const struct nic *nics[NICS_TWO];
	bool lost;
} seen;

static int counted_post(struct nic *nic, const struct op *ops, int count)
{
	int some = count, taken = 0;

	if (seen.lost)
		return -ENODEV;
	if (seen.random != 0) {
		seen.random = mix64(seen.random);
		some = (int)(seen.random % (uint64_t)(count + 1));
	}
	if (some > 0)
		taken = seen.inner->post(nic, ops, some);
	seen.calls++;
	seen.ops += (uint32_t)taken;
	seen.longest = MAX(seen.longest, (uint32_t)count);
	seen.refused += taken < count;
	/* One peer's ops come in the order of its sends. */
	uint32_t *last = &seen.last_op_id[nic == seen.nics[1]];
	for (int i = 0; i < taken; i++) {
		uint32_t op_id = ops[i].imm & OP_ID_MAX;
		ck_assert_msg(*last == UINT32_MAX || op_id > *last, "op %u after %u", op_id, *last);
		*last = op_id;
	}
	return taken;
}

static void count_posts(struct ends *ends, struct transport *counting, uint64_t random)
{
	memset(&seen, 0, sizeof(seen));
	seen.inner = ends->from.engine->nics[0].nic->transport;
	seen.random = random;
	*counting = *seen.inner;
	counting->post = counted_post;
	for (uint32_t i = 0; i < NICS_TWO; i++) {
		ends->from.engine->nics[i].nic->transport = counting;
		seen.nics[i] = ends->from.engine->nics[i].nic;
		seen.last_op_id[i] = UINT32_MAX;
	}
}

static void nothing_is_left(const struct engine *engine)
{
	uint32_t used = 0;
	for (uint32_t i = 0; i < engine->slot_count; i++)
		used += engine->slots[i].used;
	ck_assert_uint_eq(used, 0);
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		ck_assert_uint_eq(engine->nics[i].queued, 0);
		ck_assert_uint_eq(engine->nics[i].in_flight, 0);
		ck_assert_uint_eq(engine->nics[i].in_flight_bytes, 0);
	}
}

static const struct device from[] = {{"loop", "net/a0"}, {"loop", "net/a1"}};
static const struct device to[] = {{"loop", "net/b0"}, {"loop", "net/b1"}};

START_TEST(ops_are_handed_over_in_chains)
{
	struct transport counting;
	struct ends ends;

	ends_open(&ends, from, to, 16);
	count_posts(&ends, &counting, 0);
	ends_update(&ends);
	ck_assert_uint_eq(seen.ops, OPS);
	ck_assert_uint_eq(seen.longest, 16);
	ck_assert_msg(seen.calls <= OPS / 2, "%u ops in %u calls", seen.ops, seen.calls);
	nothing_is_left(ends.from.engine);
	ends_close(&ends);
}
END_TEST

/* _i: the seed of how many it takes. */
START_TEST(a_nic_may_take_fewer_than_it_is_given)
{
	struct transport counting;
	struct ends ends;

	ends_open(&ends, from, to, 1 + (uint32_t)_i % 16);
	count_posts(&ends, &counting, mix64((uint64_t)_i + 1));
	ends_update(&ends);
	ck_assert_uint_eq(seen.ops, OPS);
	ck_assert_uint_gt(seen.refused, 0);
	nothing_is_left(ends.from.engine);
	ends_close(&ends);
}
END_TEST

/* _i: the attempt ends, the peer is dropped, or the NIC turns out to be lost. */
START_TEST(what_was_not_handed_over_is_given_up)
{
	struct transport counting;
	struct ends ends;

	ends_open(&ends, from, to, 16);
	count_posts(&ends, &counting, 7);
	ends_arm(&ends);
	while (ends.from.engine->nics[0].queued == 0)
		end_step(&ends.from);
	if (_i == 0) {
		engine_end(ends.from.engine);
	} else if (_i == 1) {
		engine_peer_drop(ends.from.engine, ends.from.peer);
		end_step(&ends.from);
	} else {
		seen.lost = true;
		end_step(&ends.from);
		ck_assert_uint_ge(ends.from.lost, 1);
		engine_end(ends.from.engine);
	}
	ck_assert_uint_eq(ends.from.engine->nics[0].queued, 0);
	uint32_t given = seen.ops;
	for (int i = 0; i < 100; i++) {
		end_step(&ends.from);
		end_step(&ends.to);
	}
	ck_assert_uint_eq(seen.ops, given);
	ends_fence(&ends);
	nothing_is_left(ends.from.engine);
	ends_close(&ends);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("engine_chains");
	TCase *tcase = tcase_create("chains");
	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, ops_are_handed_over_in_chains);
	tcase_add_loop_test(tcase, a_nic_may_take_fewer_than_it_is_given, 0, 20);
	tcase_add_loop_test(tcase, what_was_not_handed_over_is_given_up, 0, 3);
	suite_add_tcase(suite, tcase);
	return suite;
}
