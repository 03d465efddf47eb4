/* SPDX-License-Identifier: Apache-2.0 */
/* What is special to loop: its nets, its shuffling, and many NICs in one thread. */
#include <pthread.h>

#include "tests/transport_pair.h"

#define MANY 60

static const char *const devices[2] = {"net/a?seed=11", "net/b"};

/* The order in which MANY immediates arrive, from a net with this seed. */
static void order_record(uint64_t seed, uint32_t order[MANY])
{
	char first[32];
	const char *const seeded[2] = {first, "net/b"};
	struct event events[4];
	struct pair pair;
	int got = 0;

	snprintf(first, sizeof(first), "net/a?seed=%llu", (unsigned long long)seed);
	pair_open(&pair, "loop", seeded, 4096);
	for (uint32_t i = 0; i < MANY; i++) {
		struct op op = op_make(&pair, 0, 0, 16, i);
		ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
	}
	for (int polls = 0; polls < 1000 && got < MANY; polls++) {
		int count = pair.nics[1]->transport->poll(pair.nics[1], events, 4);
		for (int i = 0; i < count; i++)
			order[got++] = events[i].imm;
		poll_one(&pair, 0);
	}
	ck_assert_int_eq(got, MANY);
	pair_close(&pair);
}

START_TEST(arrivals_are_shuffled_the_same_way_for_a_seed)
{
	uint32_t first[MANY], again[MANY], other[MANY];
	int inversions = 0;

	order_record((uint64_t)_i + 1, first);
	order_record((uint64_t)_i + 1, again);
	order_record((uint64_t)_i + 100, other);
	ck_assert_int_eq(memcmp(first, again, sizeof(first)), 0);
	ck_assert_int_ne(memcmp(first, other, sizeof(first)), 0);
	for (int i = 1; i < MANY; i++)
		inversions += first[i] < first[i - 1];
	ck_assert_int_gt(inversions, MANY / 6);
}
END_TEST

/* Neither a SENT first nor an IMM first may be leaned on: both happen. */
START_TEST(a_sent_may_come_before_its_imm_and_after)
{
	int sent_first = 0, imm_first = 0;
	struct pair pair;

	pair_open(&pair, "loop", devices, 4096);
	for (uint32_t i = 0; i < 200; i++) {
		struct op op = op_make(&pair, 0, 0, 16, i);
		uint64_t sent = pair.sent[0], imms = pair.imms[1];
		ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
		while (pair.sent[0] == sent && pair.imms[1] == imms)
			poll_both(&pair);
		sent_first += pair.imms[1] == imms;
		imm_first += pair.sent[0] == sent;
		await(&pair, 0, sent + 1, imms + 1);
	}
	ck_assert_int_gt(sent_first, 20);
	ck_assert_int_gt(imm_first, 20);
	pair_close(&pair);
}
END_TEST

START_TEST(nothing_lands_without_a_poll)
{
	struct pair pair;

	pair_open(&pair, "loop", devices, 4096);
	fill(pair.memory[0].base, 4096, 1);
	struct op op = op_make(&pair, 0, 0, 4096, 1);
	ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
	ck_assert(is_filled(&pair.memory[1], 0));
	await(&pair, 0, 1, 1);
	ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 4096), 0);
	pair_close(&pair);
}
END_TEST

/* Its slots are held until the immediates were taken: a receiver can't be overrun. */
START_TEST(a_receiver_that_doesnt_poll_holds_its_sender_up)
{
	struct pair pair;
	uint32_t posted = 0;

	pair_open(&pair, "loop", devices, 4096);
	for (int i = 0; i < 10000; i++) {
		struct op op = op_make(&pair, 0, 0, 16, posted);
		posted += (uint32_t)pair.nics[0]->transport->post(pair.nics[0], &op, 1);
		poll_one(&pair, 0);
	}
	ck_assert_uint_lt(posted, 1000);
	await(&pair, 0, posted, posted);
	pair_close(&pair);
}
END_TEST

START_TEST(nets_are_apart_and_end_with_their_last_nic)
{
	struct nic *nics[3];
	struct address address;
	struct peer *mine, *theirs;

	ck_ok(nic_open(&nics[0], "loop", "net/a?seed=3", &err), err);
	ck_ok(nic_open(&nics[1], "loop", "other/a", &err), err);
	ck_fails(nic_open(&nics[2], "loop", "net/a", &err), -EINVAL, err);
	ck_assert_ptr_nonnull(strstr(err.text, "already"));
	ck_assert_str_ne(nics[0]->subnet, nics[1]->subnet);
	/* An address of another net is refused. */
	ck_ok(nics[1]->transport->peer_open(nics[1], &theirs, &address, &err), err);
	ck_ok(nics[0]->transport->peer_open(nics[0], &mine, &address, &err), err);
	ck_fails(nics[1]->transport->peer_connect(nics[1], theirs, &address, &err), -EPROTO, err);
	ck_assert_ptr_nonnull(strstr(err.text, "another net"));
	nic_close(nics[0]);
	nic_close(nics[1]);
	ck_assert_uint_eq(mem_live_count(), 0);
	/* The name is free again. */
	ck_ok(nic_open(&nics[0], "loop", "net/a", &err), err);
	nic_close(nics[0]);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* N senders and M receivers in one thread: every byte and every immediate arrives. */
START_TEST(ops_to_a_peer_that_is_gone_fail)
{
	struct pair pair;

	pair_open(&pair, "loop", devices, 4096);
	for (uint32_t i = 0; i < 10; i++) {
		struct op op = op_make(&pair, 0, 0, 16, i);
		ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
	}
	nic_close(pair.nics[1]);
	pair.nics[1] = NULL;
	pair.mrs[1].memory.base = NULL;
	struct op op = op_make(&pair, 0, 0, 16, 10);
	ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
	for (int i = 0; i < 1000 && pair.failed[0] < 11; i++)
		poll_one(&pair, 0);
	ck_assert_uint_eq(pair.failed[0], 11);
	ck_assert_int_eq(pair.last_status, -ECONNRESET);
	pair_close(&pair);
}
END_TEST

START_TEST(many_nics_share_one_thread)
{
	enum { SENDERS = 5, RECEIVERS = 4, OPS = 20, BYTES = 512 };
	struct nic *senders[SENDERS], *receivers[RECEIVERS];
	struct peer *out[SENDERS][RECEIVERS], *in[SENDERS][RECEIVERS];
	static uint8_t from[SENDERS][RECEIVERS * OPS * BYTES], to[RECEIVERS][SENDERS * OPS * BYTES];
	struct mr from_mrs[SENDERS], to_mrs[RECEIVERS];
	struct address mine, theirs;
	struct event events[16];
	uint32_t imms = 0, posted = 0;
	char device[32];

	for (int i = 0; i < SENDERS; i++) {
		snprintf(device, sizeof(device), "net/s%d?seed=%d", i, _i + 1);
		ck_ok(nic_open(&senders[i], "loop", device, &err), err);
		struct ws_memory memory = {.base = from[i], .bytes = sizeof(from[i])};
		fill(from[i], sizeof(from[i]), (uint64_t)i);
		ck_ok(senders[i]->transport->reg(senders[i], &memory, MR_TARGET, &from_mrs[i],
						 &err),
		      err);
	}
	for (int j = 0; j < RECEIVERS; j++) {
		snprintf(device, sizeof(device), "net/r%d", j);
		ck_ok(nic_open(&receivers[j], "loop", device, &err), err);
		struct ws_memory memory = {.base = to[j], .bytes = sizeof(to[j])};
		ck_ok(receivers[j]->transport->reg(receivers[j], &memory, MR_TARGET, &to_mrs[j],
						   &err),
		      err);
	}
	for (int i = 0; i < SENDERS; i++)
		for (int j = 0; j < RECEIVERS; j++) {
			const struct transport *loop = senders[i]->transport;
			ck_ok(loop->peer_open(senders[i], &out[i][j], &mine, &err), err);
			ck_ok(loop->peer_open(receivers[j], &in[i][j], &theirs, &err), err);
			ck_ok(loop->peer_connect(senders[i], out[i][j], &theirs, &err), err);
			ck_ok(loop->peer_connect(receivers[j], in[i][j], &mine, &err), err);
		}
	for (int polls = 0; polls < 100000 && imms < SENDERS * RECEIVERS * OPS; polls++) {
		int i = (int)(posted / (RECEIVERS * OPS)), rest = (int)(posted % (RECEIVERS * OPS));
		int j = rest / OPS, k = rest % OPS;
		if (i < SENDERS) {
			struct op op = {.peer = out[i][j],
					.local = from[i] + (j * OPS + k) * BYTES,
					.local_mr = &from_mrs[i],
					.remote = to_mrs[j].base + (uint64_t)(i * OPS + k) * BYTES,
					.remote_key = to_mrs[j].key,
					.bytes = BYTES,
					.imm = (uint32_t)(i * OPS + k)};
			posted += (uint32_t)senders[i]->transport->post(senders[i], &op, 1);
		}
		for (int n = 0; n < SENDERS; n++) {
			int got = senders[n]->transport->poll(senders[n], events, 16);
			for (int e = 0; e < got; e++)
				ck_assert_int_eq(events[e].kind, EVENT_SENT);
		}
		for (int n = 0; n < RECEIVERS; n++) {
			int got = receivers[n]->transport->poll(receivers[n], events, 16);
			for (int e = 0; e < got; e++, imms++)
				ck_assert_ptr_eq(events[e].peer, in[events[e].imm / OPS][n]);
		}
	}
	ck_assert_uint_eq(imms, SENDERS * RECEIVERS * OPS);
	for (int i = 0; i < SENDERS; i++)
		for (int j = 0; j < RECEIVERS; j++)
			ck_assert_int_eq(memcmp(from[i] + j * OPS * BYTES, to[j] + i * OPS * BYTES,
						OPS * BYTES),
					 0);
	for (int i = 0; i < SENDERS; i++)
		nic_close(senders[i]);
	for (int j = 0; j < RECEIVERS; j++)
		nic_close(receivers[j]);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

#define THREAD_OPS 500

static struct pair shared;

/* The receiving side, in a thread of its own: the imm says that the op's 8 bytes are there. */
static void *receiver(void *arg)
{
	struct nic *nic = shared.nics[1];
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	uintptr_t wrong = 0;
	struct event events[8];
	int got = 0;

	(void)arg;
	while (got < THREAD_OPS && clock_ns() < deadline) {
		int count = nic->transport->poll(nic, events, 8);
		for (int i = 0; i < count; i++, got++) {
			uint64_t value;
			memcpy(&value, (uint8_t *)shared.memory[1].base + 8 * events[i].imm, 8);
			wrong += value != mix64(events[i].imm + 1);
		}
	}
	return (void *)(wrong + (uintptr_t)(THREAD_OPS - got));
}

START_TEST(each_nic_may_have_a_thread)
{
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	uint32_t posted = 0;
	pthread_t thread;
	void *wrong;

	pair_open(&shared, "loop", devices, 8 * THREAD_OPS);
	for (uint64_t i = 0; i < THREAD_OPS; i++)
		((uint64_t *)shared.memory[0].base)[i] = mix64(i + 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, receiver, NULL), 0);
	while (shared.sent[0] < THREAD_OPS && clock_ns() < deadline) {
		struct op op = op_make(&shared, 0, 8 * posted, 8, posted);
		if (posted < THREAD_OPS)
			posted += (uint32_t)shared.nics[0]->transport->post(shared.nics[0], &op, 1);
		poll_one(&shared, 0);
	}
	ck_assert_int_eq(pthread_join(thread, &wrong), 0);
	ck_assert_ptr_null(wrong);
	ck_assert_uint_eq(shared.sent[0], THREAD_OPS);
	pair_close(&shared);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("transport_loop");
	TCase *tests = tcase_create("loop");

	tcase_set_timeout(tests, 60);
	tcase_add_loop_test(tests, arrivals_are_shuffled_the_same_way_for_a_seed, 0, 10);
	tcase_add_test(tests, a_sent_may_come_before_its_imm_and_after);
	tcase_add_test(tests, nothing_lands_without_a_poll);
	tcase_add_test(tests, a_receiver_that_doesnt_poll_holds_its_sender_up);
	tcase_add_test(tests, nets_are_apart_and_end_with_their_last_nic);
	tcase_add_test(tests, ops_to_a_peer_that_is_gone_fail);
	tcase_add_loop_test(tests, many_nics_share_one_thread, 0, 10);
	tcase_add_test(tests, each_nic_may_have_a_thread);
	suite_add_tcase(all, tests);
	return all;
}
