/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport contract, the same for all: limits, delivery, refusals, and waiting, with both
 * ends in this process, two NICs, one thread.  contract_close.c has the fence.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/libfabric.h"
#include "lib/transport/verbs.h"
#include "tests/contract_kinds.h"

START_TEST(a_nic_states_its_limits)
{
	struct pair pair;

	open_kind(&pair, _i, 4096);
	for (int i = 0; i < 2; i++) {
		const struct nic *nic = pair.nics[i];
		ck_assert_uint_ge(nic->op_bytes_max, 1u << 20);
		ck_assert_uint_ge(nic->ops_in_flight_max, 16);
		ck_assert_uint_ge(nic->imm_bytes, 4);
		ck_assert_uint_ne(nic->protocol, 0);
		ck_assert_str_ne(nic->name, "");
		ck_assert_str_ne(nic->subnet, "");
		ck_assert_str_eq(nic->transport->name, kinds[_i % kind_count].transport);
		ck_assert_int_eq(nic->wait_fd < 0, kinds[_i % kind_count].polled);
	}
	ck_assert_uint_eq(pair.nics[0]->protocol, pair.nics[1]->protocol);
	ck_assert_str_eq(pair.nics[0]->subnet, pair.nics[1]->subnet);
	pair_close(&pair);
}
END_TEST

static void check_imm(struct pair *pair, int at, const struct event *event)
{
	ck_assert_ptr_eq(event->peer, pair->peers[at]);
	/* Visible now, not later: this is what the immediate promises. */
	ck_assert_int_eq(memcmp(pair->memory[0].base, pair->memory[1].base, pair->memory[0].bytes),
			 0);
}

START_TEST(every_size_arrives_whole_before_its_imm)
{
	static const uint64_t sizes[] = {
		0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (4 << 20) - 1, 4 << 20};
	static const uint32_t imms[] = {0, UINT32_MAX, 0x80000000, 7, 1};
	struct pair pair;

	open_kind(&pair, _i, 4 << 20);
	pair.on_imm = check_imm;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint64_t offset = (pair.memory[0].bytes - sizes[i]) / 2;
		if (sizes[i] > pair.nics[0]->op_bytes_max)
			continue;
		fill((uint8_t *)pair.memory[0].base + offset, sizes[i], i);
		struct op op = op_make(&pair, 0, offset, sizes[i], imms[i % ARRAY_SIZE(imms)]);
		uint64_t before = pair.imms[1];
		post(&pair, 0, &op);
		await(&pair, 0, i + 1, before + 1);
		ck_assert_uint_eq(pair.last_imm.imm, op.imm);
	}
	ck_assert_uint_eq(pair.failed[0], 0);
	ck_assert_uint_eq(pair.imms[0], 0);
	pair_close(&pair);
}
END_TEST

START_TEST(a_placed_op_moves_nothing_but_its_imm)
{
	struct pair pair;

	open_kind(&pair, _i, 4096);
	fill(pair.memory[0].base, 4096, 1);
	struct op op = op_make(&pair, 0, 0, 4096, 9);
	op.placed = true;
	op.local = NULL;
	op.local_mr = NULL;
	post(&pair, 0, &op);
	await(&pair, 0, 1, 1);
	ck_assert_uint_eq(pair.sent[0], 1);
	ck_assert_uint_eq(pair.last_imm.imm, 9);
	ck_assert_uint_eq(((uint8_t *)pair.memory[1].base)[0], 0);
	pair_close(&pair);
}
END_TEST

#define MANY 3000

static void count_imm(struct pair *pair, int at, const struct event *event)
{
	ck_assert_int_eq(at, 1);
	ck_assert_uint_lt(event->imm, MANY);
	ck_assert_msg(pair->seen[event->imm]++ == 0, "imm %u came twice", event->imm);
}

START_TEST(beyond_the_limit_post_takes_fewer_and_each_op_ends_once)
{
	struct pair pair;
	struct op *ops = calloc(MANY, sizeof(*ops));
	int posted = 0;
	bool was_full = false;

	open_kind(&pair, _i, 256 * 1024);
	pair.seen = calloc(MANY, 1);
	pair.on_imm = count_imm;
	fill(pair.memory[0].base, pair.memory[0].bytes, (uint64_t)_i);
	for (uint32_t i = 0; i < MANY; i++)
		ops[i] = op_make(&pair, 0, 64 * (i % 4096), 64, i);
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	while (posted < MANY) {
		ck_assert(clock_ns() < deadline);
		int taken =
			pair.nics[0]->transport->post(pair.nics[0], &ops[posted], MANY - posted);
		ck_assert_int_ge(taken, 0);
		posted += taken;
		uint64_t unreported = (uint64_t)posted - pair.sent[0] - pair.failed[0];
		ck_assert_uint_le(unreported, pair.nics[0]->ops_in_flight_max);
		was_full = was_full || posted < MANY;
		poll_both(&pair);
	}
	ck_assert(was_full);
	await(&pair, 0, MANY, MANY);
	poll_idle(&pair, 20);
	ck_assert_uint_eq(pair.sent[0], MANY);
	ck_assert_uint_eq(pair.failed[0], 0);
	ck_assert_uint_eq(pair.imms[1], MANY);
	ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 64 * MANY), 0);
	free(pair.seen);
	free(ops);
	pair_close(&pair);
}
END_TEST

START_TEST(bytes_flow_both_ways_at_once)
{
	enum { EACH = 200, BYTES = 8192 };
	struct pair pair;
	uint64_t posted[2] = {0};

	/* The first half of each region goes out, the second comes in. */
	open_kind(&pair, _i, 2 * EACH * BYTES);
	for (int i = 0; i < 2; i++)
		fill((uint8_t *)pair.memory[i].base + i * EACH * BYTES, EACH * BYTES, (uint64_t)i);
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	while (posted[0] < EACH || posted[1] < EACH) {
		ck_assert(clock_ns() < deadline);
		for (int i = 0; i < 2; i++) {
			if (posted[i] == EACH)
				continue;
			uint64_t offset = ((uint64_t)i * EACH + posted[i]) * BYTES;
			struct op op = op_make(&pair, i, offset, BYTES, (uint32_t)posted[i]);
			int taken = pair.nics[i]->transport->post(pair.nics[i], &op, 1);
			ck_assert_int_ge(taken, 0);
			posted[i] += (uint64_t)taken;
		}
		poll_both(&pair);
	}
	await(&pair, 0, EACH, EACH);
	await(&pair, 1, EACH, EACH);
	ck_assert_uint_eq(pair.failed[0] + pair.failed[1], 0);
	ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 2 * EACH * BYTES), 0);
	pair_close(&pair);
}
END_TEST

/* The one by which the NIC itself knows a source; 0 where it doesn't. */
static uint64_t key_of(const struct mr *source, const struct nic *nic)
{
	if (strcmp(nic->transport->name, "fabric") == 0)
		return fi_mr_key(source->local);
	if (strcmp(nic->transport->name, "verbs") == 0)
		return ((const struct verbs_mr *)source->local)->mr->rkey;
	return 0;
}

/* which: 0 a wrong key, 1 beyond the end, 2 across the end, 3 far away, 4 deregistered, 5 a source,
 * 6 a source whose key somebody has got out of its process. */
START_TEST(a_write_that_isnt_allowed_never_lands)
{
	int which = _i / kind_count;
	struct pair pair;
	uint8_t guard[8192];

	open_kind(&pair, _i, sizeof(guard));
	pair.nics[1]->transport->dereg(pair.nics[1], &pair.mrs[1]);
	struct ws_memory half = {.base = pair.memory[1].base, .bytes = 4096};
	ck_ok(pair.nics[1]->transport->reg(pair.nics[1], &half, MR_TARGET, &pair.mrs[1], &err),
	      err);
	fill(pair.memory[0].base, pair.memory[0].bytes, 3);
	memset(guard, 0, sizeof(guard));
	struct op op = op_make(&pair, 0, 0, 4096, 1);
	switch (which) {
	case 0:
		op.remote_key ^= 0x5a5a;
		break;
	case 1:
		op.remote += 4096;
		break;
	case 2:
		op.remote += 1;
		break;
	case 3:
		op.remote += UINT64_C(1) << 40;
		break;
	case 4:
		pair.nics[1]->transport->dereg(pair.nics[1], &pair.mrs[1]);
		break;
	case 5:
	case 6:
		pair.nics[1]->transport->dereg(pair.nics[1], &pair.mrs[1]);
		ck_ok(pair.nics[1]->transport->reg(pair.nics[1], &half, MR_SOURCE, &pair.mrs[1],
						   &err),
		      err);
		ck_assert_uint_eq(pair.mrs[1].key, 0);
		op.remote_key = which == 5 ? 0 : key_of(&pair.mrs[1], pair.nics[1]);
		break;
	}
	post(&pair, 0, &op);
	await(&pair, 0, 1, 0);
	poll_idle(&pair, 20);
	ck_assert_uint_eq(pair.imms[1], 0);
	if (!kinds[_i % kind_count].unchecked) {
		ck_assert_uint_eq(pair.failed[0], 1);
		ck_assert_uint_eq(pair.sent[0], 0);
	}
	ck_assert_int_eq(memcmp(pair.memory[1].base, guard, sizeof(guard)), 0);
	pair_close(&pair);
}
END_TEST

START_TEST(a_source_is_sent_from)
{
	struct pair pair;

	open_kind(&pair, _i, 4096);
	const struct transport *transport = pair.nics[0]->transport;
	transport->dereg(pair.nics[0], &pair.mrs[0]);
	ck_ok(transport->reg(pair.nics[0], &pair.memory[0], MR_SOURCE, &pair.mrs[0], &err), err);
	fill(pair.memory[0].base, pair.memory[0].bytes, 5);
	struct op op = op_make(&pair, 0, 0, 4096, 9);
	post(&pair, 0, &op);
	await(&pair, 0, 1, 1);
	ck_assert_uint_eq(pair.failed[0], 0);
	ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 4096), 0);
	pair_close(&pair);
}
END_TEST

static bool has_two_rails(const struct kind *kind)
{
	return kind->rails[1][0] != NULL;
}

/* Two ranks with two NICs each: every region is registered on both, ops alternate. */
START_TEST(two_nics_per_rank_share_the_work)
{
	enum { OPS = 200, BYTES = 4096 };
	const struct kind *kind = &kinds[_i];
	struct pair rails[2];

	open_kind(&rails[0], _i, OPS * BYTES);
	pair_open_in(&rails[1], kind->transport, kind->rails[1], 4096, kind->allocated);
	for (int i = 0; i < 2; i++) {
		struct nic *nic = rails[1].nics[i];
		nic->transport->dereg(nic, &rails[1].mrs[i]);
		memory_drop(&rails[1].memory[i], kind->allocated);
		rails[1].memory[i] = rails[0].memory[i];
		ck_ok(nic->transport->reg(nic, &rails[1].memory[i], MR_TARGET, &rails[1].mrs[i],
					  &err),
		      err);
	}
	fill(rails[0].memory[0].base, OPS * BYTES, 1);
	for (uint32_t i = 0; i < OPS; i++) {
		struct op op = op_make(&rails[i % 2], 0, i * BYTES, BYTES, i);
		post(&rails[i % 2], 0, &op);
	}
	for (int i = 0; i < 2; i++) {
		await(&rails[i], 0, OPS / 2, OPS / 2);
		ck_assert_uint_eq(rails[i].sent[0], OPS / 2);
		ck_assert_uint_eq(rails[i].imms[1], OPS / 2);
	}
	ck_assert_int_eq(memcmp(rails[0].memory[0].base, rails[0].memory[1].base, OPS * BYTES), 0);
	for (int i = 0; i < 2; i++) {
		struct nic *nic = rails[1].nics[i];
		nic->transport->dereg(nic, &rails[1].mrs[i]);
		nic_close(nic);
	}
	pair_close(&rails[0]);
}
END_TEST

START_TEST(an_address_nobody_makes_is_refused)
{
	struct pair pair;
	struct address good, bad;
	struct peer *peer;

	open_kind(&pair, _i, 4096);
	const struct transport *transport = pair.nics[0]->transport;
	ck_ok(transport->peer_open(pair.nics[0], &peer, &good, &err), err);
	memset(&bad, 0xff, sizeof(bad));
	ck_fails(transport->peer_connect(pair.nics[0], peer, &bad, &err), -EPROTO, err);
	bad.count = 0;
	ck_fails(transport->peer_connect(pair.nics[0], peer, &bad, &err), -EPROTO, err);
	for (uint16_t i = 0; i < good.count; i++) { /* cut short */
		bad = good;
		bad.count = i;
		ck_fails(transport->peer_connect(pair.nics[0], peer, &bad, &err), -EPROTO, err);
	}
	bad = good;
	bad.count++; /* too long */
	ck_fails(transport->peer_connect(pair.nics[0], peer, &bad, &err), -EPROTO, err);
	bad = good;
	bad.bytes[0] ^= 1;
	ck_fails(transport->peer_connect(pair.nics[0], peer, &bad, &err), -EPROTO, err);
	/* The sentence names the NIC; fault's comes from the one it wraps. */
	char name[NIC_NAME_MAX];
	if (sscanf(pair.nics[0]->name, "fault(%95[^)]", name) != 1)
		snprintf(name, sizeof(name), "%s", pair.nics[0]->name);
	ck_assert_ptr_nonnull(strstr(err.text, name));
	pair_close(&pair);
}
END_TEST

START_TEST(bad_devices_and_memory_are_refused_with_a_sentence)
{
	static const char *const bad[] = {"",
					  "x",
					  "/",
					  "net/",
					  "/a",
					  "tcp/",
					  "tcp/999.1.2.3",
					  "nosuchprovider/127.0.0.1",
					  "net/a?seed=",
					  "net/a?x=1"};
	struct pair pair;
	struct nic *nic;
	struct mr mr;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		memset(&err, 0, sizeof(err));
		if (strcmp(kinds[_i % kind_count].transport, "loop") == 0 &&
		    (strncmp(bad[i], "tcp/9", 5) == 0 || strncmp(bad[i], "nosuch", 6) == 0))
			continue;
		int rc = nic_open(&nic, kinds[_i % kind_count].transport, bad[i], &err);
		ck_assert_msg(rc == -EINVAL || rc == -ENODEV, "'%s': %d", bad[i], rc);
		ck_assert_ptr_null(nic);
		ck_assert_str_ne(err.text, "");
	}
	ck_fails(nic_open(&nic, "pigeon", "a/b", &err), -ENODEV, err);
	open_kind(&pair, _i, 4096);
	struct ws_memory gpu = {.base = &mr, .bytes = 8, .place = WS_CUDA};
	if (!pair.nics[0]->gpu_memory)
		ck_fails(pair.nics[0]->transport->reg(pair.nics[0], &gpu, MR_TARGET, &mr, &err),
			 -ENOTSUP, err);
	struct ws_memory none = {0};
	ck_fails(pair.nics[0]->transport->reg(pair.nics[0], &none, MR_TARGET, &mr, &err), -EINVAL,
		 err);
	pair_close(&pair);
}
END_TEST

static bool has_wait_fd(const struct kind *kind)
{
	return !kind->polled;
}

/* A blocked waiter must be woken by a delivery: no event may hide behind the fd. */
START_TEST(the_wait_fd_never_sleeps_over_an_event)
{
	struct pair pair;

	open_kind(&pair, _i, 1 << 20);
	for (uint32_t i = 0; i < 300; i++) {
		uint64_t bytes = i % 3 == 0 ? 0 : i % 3 == 1 ? 777 : 1 << 20;
		struct op op = op_make(&pair, (int)(i & 1), 0, bytes, i);
		uint64_t deadline = deadline_in_ms(DEADLINE_MS), imms = pair.imms[0] + pair.imms[1];
		post(&pair, (int)(i & 1), &op);
		while (pair.imms[0] + pair.imms[1] == imms) {
			ck_assert(clock_ns() < deadline);
			struct pollfd fds[2];
			for (int j = 0; j < 2; j++)
				fds[j] = (struct pollfd){.fd = pair.nics[j]->wait_fd,
							 .events = POLLIN};
			if (poll_both(&pair) == 0)
				ck_assert_msg(poll(fds, 2, DEADLINE_MS) > 0, "asleep at op %u", i);
		}
	}
	pair_close(&pair);
}
END_TEST

START_TEST(the_data_path_allocates_nothing)
{
	struct pair pair;

	open_kind(&pair, _i, 1 << 20);
	uint64_t before = mem_alloc_count();
	for (uint32_t i = 0; i < 100; i++) {
		struct op op = op_make(&pair, 0, 0, 4096, i);
		post(&pair, 0, &op);
	}
	await(&pair, 0, 100, 100);
	ck_assert_uint_eq(mem_alloc_count(), before);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("contract");
	TCase *tests = tcase_create("contract");

	kinds_find();
	tcase_set_timeout(tests, 60);
	kinds_add(tests, a_nic_states_its_limits, any_kind, 1);
	kinds_add(tests, every_size_arrives_whole_before_its_imm, any_kind, 1);
	kinds_add(tests, a_placed_op_moves_nothing_but_its_imm, any_kind, 1);
	kinds_add(tests, beyond_the_limit_post_takes_fewer_and_each_op_ends_once, any_kind, 1);
	kinds_add(tests, bytes_flow_both_ways_at_once, any_kind, 1);
	kinds_add(tests, a_source_is_sent_from, any_kind, 1);
	kinds_add(tests, a_write_that_isnt_allowed_never_lands, any_kind, 7);
	kinds_add(tests, two_nics_per_rank_share_the_work, has_two_rails, 1);
	kinds_add(tests, an_address_nobody_makes_is_refused, any_kind, 1);
	kinds_add(tests, bad_devices_and_memory_are_refused_with_a_sentence, any_kind, 1);
	kinds_add(tests, the_wait_fd_never_sleeps_over_an_event, has_wait_fd, 1);
	kinds_add(tests, the_data_path_allocates_nothing, any_kind, 1);
	suite_add_tcase(all, tests);
	return all;
}
