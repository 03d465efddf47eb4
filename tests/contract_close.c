/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport contract's fence, the same for all: what is reported and what can't land any more
 * when a peer or a NIC is closed, from whichever end, in mid write.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/contract_kinds.h"

/* The sender first; where it can't end the connection alone it says quiet, and hears it. */
static void close_both(struct pair *pair, int i)
{
	if (!kinds[i % kind_count].together) {
		close_peer(pair, 0, false);
		close_peer(pair, 1, true);
		return;
	}
	for (int at = 0; at < 2; at++)
		ck_assert_int_eq(pair->nics[at]->transport->peer_close(
					 pair->nics[at], pair->peers[at], false, false),
				 -EAGAIN);
	close_peer(pair, 1, true);
	close_peer(pair, 0, true);
}

START_TEST(a_closed_peers_ops_are_all_reported_and_none_lands_later)
{
	enum { OPS = 16, BYTES = 1 << 20 };
	struct pair pair;
	int posted = 0;

	open_kind(&pair, _i, OPS * BYTES);
	fill(pair.memory[0].base, pair.memory[0].bytes, 3);
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	while (posted < OPS) {
		ck_assert(clock_ns() < deadline);
		struct op op = op_make(&pair, 0, (uint64_t)posted * BYTES, BYTES, (uint32_t)posted);
		int taken = pair.nics[0]->transport->post(pair.nics[0], &op, 1);
		ck_assert_int_ge(taken, 0);
		posted += taken;
		if (taken == 0)
			poll_both(&pair);
	}
	if (kinds[_i % kind_count].settled)
		await(&pair, 0, OPS, OPS);
	/* The receiver closes too; what has landed by now is all that ever will. */
	close_both(&pair, _i);
	ck_assert_uint_eq(pair.sent[0] + pair.failed[0], OPS);
	uint64_t imms = pair.imms[1];
	memset(pair.memory[1].base, 0xee, pair.memory[1].bytes);
	poll_idle(&pair, 50);
	ck_assert_uint_eq(pair.imms[1], imms);
	ck_assert(is_filled(&pair.memory[1], 0xee));
	ck_assert_uint_eq(pair.sent[0] + pair.failed[0], OPS);
	/* A new connection of the same NICs works. */
	pair_connect(&pair);
	struct op op = op_make(&pair, 0, 0, BYTES, 77);
	uint64_t reports = pair.sent[0] + pair.failed[0];
	imms = pair.imms[1];
	post(&pair, 0, &op);
	await(&pair, 0, reports + 1, imms + 1);
	ck_assert_uint_eq(pair.last_imm.imm, 77);
	ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, BYTES), 0);
	pair_close(&pair);
}
END_TEST

/* Where only settled connections may be closed, a receiver could do it only with its sender. */
static bool closes_in_mid_receive(const struct kind *kind)
{
	return !kind->settled || kind->together;
}

/* The receiver closes first, in mid receive, with nobody having said quiet.  Where it can't end the
 * connection alone it gives its end of it up. */
START_TEST(a_receiver_can_close_in_mid_receive)
{
	enum { OPS = 16, BYTES = 1 << 20 };
	const struct kind *kind = &kinds[_i % kind_count];
	struct pair pair;

	open_kind(&pair, _i, OPS * BYTES);
	fill(pair.memory[0].base, pair.memory[0].bytes, 3);
	for (uint32_t i = 0; i < OPS; i++) {
		struct op op = op_make(&pair, 0, i * BYTES, BYTES, i);
		post(&pair, 0, &op);
	}
	if (kind->together)
		ck_assert_int_eq(pair.nics[1]->transport->peer_close(pair.nics[1], pair.peers[1],
								     false, true),
				 -EBUSY);
	else
		close_peer(&pair, 1, false);
	memset(pair.memory[1].base, 0xee, pair.memory[1].bytes);
	if (!kind->together)
		await(&pair, 0, OPS, 0);
	poll_idle(&pair, 20);
	ck_assert(is_filled(&pair.memory[1], 0xee));
	if (kind->together) { /* nobody answers any more: closing ends the ops */
		close_peer(&pair, 0, true);
		ck_assert_uint_eq(pair.sent[0] + pair.failed[0], OPS);
		pair_close(&pair);
		shm_tidy();
		return;
	}
	/* Later ops to a peer that is gone fail, one report each. */
	struct op op = op_make(&pair, 0, 0, BYTES, OPS);
	uint64_t sent = pair.sent[0];
	post(&pair, 0, &op);
	await(&pair, 0, OPS + 1, 0);
	ck_assert_uint_eq(pair.sent[0], sent);
	ck_assert_int_eq(pair.last_status, -ECONNRESET);
	close_peer(&pair, 0, true);
	pair_close(&pair);
}
END_TEST

START_TEST(closing_one_peer_leaves_the_others_alone)
{
	struct pair first, second;

	open_kind(&first, _i, 4096);
	second = first;
	pair_connect(&second);
	for (uint32_t i = 0; i < 3; i++) {
		struct op op = op_make(&first, 0, 0, 64, i);
		post(&first, 0, &op);
		op = op_make(&second, 0, 0, 64, 10 + i);
		post(&first, 0, &op);
	}
	await(&first, 0, 6, 6);
	close_both(&first, _i);
	struct op op = op_make(&second, 0, 0, 64, 99);
	post(&first, 0, &op);
	await(&first, 0, 7, 7);
	ck_assert_uint_eq(first.last_imm.imm, 99);
	ck_assert_ptr_eq(first.last_imm.peer, second.peers[1]);
	ck_assert_uint_eq(first.failed[0], 0);
	pair_close(&first);
}
END_TEST

START_TEST(close_takes_a_nic_in_any_state)
{
	const struct transport *transport = transport_find(kinds[_i % kind_count].transport);
	struct nic *zeroed = calloc(1, transport->nic_size);
	struct pair pair;
	struct nic *nic;

	transport->close(zeroed);
	free(zeroed);
	nic_close(NULL);
	/* Connected, with ops in flight and unread events. */
	open_kind(&pair, _i, 1 << 20);
	for (uint32_t i = 0; i < 8; i++) {
		struct op op = op_make(&pair, 0, 0, 1 << 20, i);
		pair.nics[0]->transport->post(pair.nics[0], &op, 1);
		poll_one(&pair, 1);
	}
	nic_close(pair.nics[1]);
	pair.nics[1] = NULL;
	pair.mrs[1].memory.base = NULL;
	pair_close(&pair);
	/* With a peer that was opened only. */
	ck_ok(nic_open(&nic, kinds[_i % kind_count].transport, kinds[_i].rails[0][0], &err), err);
	struct address address;
	struct peer *peer;
	ck_ok(transport->peer_open(nic, &peer, &address, &err), err);
	nic_close(nic);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("contract_close");
	TCase *tests = tcase_create("contract_close");

	kinds_find();
	tcase_set_timeout(tests, 60);
	kinds_add(tests, a_closed_peers_ops_are_all_reported_and_none_lands_later, any_kind, 3);
	kinds_add(tests, a_receiver_can_close_in_mid_receive, closes_in_mid_receive, 3);
	kinds_add(tests, closing_one_peer_leaves_the_others_alone, any_kind, 1);
	kinds_add(tests, close_takes_a_nic_in_any_state, any_kind, 1);
	suite_add_tcase(all, tests);
	return all;
}
