/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines in two processes over ipc.  The sender is stopped in the very middle of a write,
 * given up, fenced, continued: nothing lands, every region has other keys, and the next update,
 * from a new sender, is whole.
 */

#include "lib/engine/devices.h"
#include "lib/engine/engine.h"
#include "tests/ipc_ends.h"

#define BYTES	  ((size_t)4 << 20)
#define OP_BYTES  ((size_t)1 << 20)
#define OPS	  ((uint32_t)(BYTES / OP_BYTES))
#define FRAME_MAX 65536

static struct ws_error err;

/* One rank: an engine with an ipc NIC, and one peer. */
struct rank {
	struct engine *engine;
	struct engine_peer *peer;
	struct ws_memory memory;
	uint32_t region;
	bool received, sent;
};

static int rank_open(struct rank *rank)
{
	const struct device device = {.transport = "ipc", .name = "host"};
	const struct engine_options options = {
		.devices = &device, .device_count = 1, .op_bytes = OP_BYTES};

	*rank = (struct rank){0};
	int rc = engine_open(&rank->engine, &options, &err);
	if (rc == 0)
		rc = ws_memory_alloc(&rank->memory, BYTES, &err);
	if (rc == 0)
		rc = engine_region_add(rank->engine, &rank->memory, MR_TARGET, &rank->region, &err);
	return rc;
}

static void rank_close(struct rank *rank)
{
	engine_close(rank->engine);
	ws_memory_free(&rank->memory);
}

static bool frame_put(int socket, const struct writer *frame)
{
	return !frame->failed && write(socket, frame->bytes, frame->count) == (ssize_t)frame->count;
}

/* Tells the other its address and regions, and takes its. */
static int rank_connect(struct rank *rank, int socket)
{
	static uint8_t bytes[2][FRAME_MAX];
	struct writer address = writer_fixed(bytes[0], FRAME_MAX);
	struct writer regions = writer_fixed(bytes[1], FRAME_MAX);

	int rc = engine_peer_open(rank->engine, "the other", &rank->peer, &address, &err);
	engine_regions_encode(rank->engine, &regions);
	if (rc != 0 || !frame_put(socket, &address) || !frame_put(socket, &regions))
		return rc != 0 ? rc : -EIO;
	ssize_t count = read(socket, bytes[0], FRAME_MAX);
	rc = engine_peer_connect(rank->engine, rank->peer, bytes[0], (size_t)count, &err);
	count = read(socket, bytes[1], FRAME_MAX);
	return rc != 0 ? rc
		       : engine_peer_regions(rank->engine, rank->peer, bytes[1], (size_t)count,
					     &err);
}

static void rank_step(struct rank *rank)
{
	struct engine_event events[16];

	int count = engine_step(rank->engine, events, 16);
	for (int i = 0; i < count; i++) {
		rank->received |= events[i].kind == ENGINE_RECEIVE_DONE;
		rank->sent |= events[i].kind == ENGINE_SENDS_DONE;
	}
	engine_wait(rank->engine, -1, -1, deadline_in_ms(5));
}

/* All of its memory, to the same place of the other's. */
static int sender_arm(struct rank *rank, uint64_t attempt)
{
	static struct send send;
	struct engine_program program = {.sends = &send, .send_count = 1};

	send = (struct send){
		.peer = rank->peer,
		.bytes = BYTES,
		.local = rank->memory.base,
		.local_region = rank->region,
		.remote_region = 1,
		.credit_op_id = UINT32_MAX,
	};
	int rc = engine_set_program(rank->engine, &program, &err);
	if (rc == 0)
		rc = engine_arm(rank->engine, attempt, &err);
	engine_peer_ready(rank->engine, rank->peer);
	return rc;
}

static int receiver_arm(struct rank *rank, uint64_t attempt)
{
	static const struct op_range range = {.count = OPS};
	static struct receive receive;
	struct engine_program program = {.receives = &receive,
					 .receive_count = 1,
					 .ranges = &range,
					 .range_count = 1,
					 .op_id_count = OPS};

	receive = (struct receive){.peer = rank->peer,
				   .op_count = OPS,
				   .bytes = BYTES,
				   .digest_op_id = UINT32_MAX,
				   .credit_op_id = UINT32_MAX};
	int rc = engine_set_program(rank->engine, &program, &err);
	return rc != 0 ? rc : engine_arm(rank->engine, attempt, &err);
}

static void sender(int socket, const void *arg)
{
	const bool *stops = arg;
	struct rank rank;
	char byte;

	MUST(rank_open(&rank) == 0);
	MUST(rank_connect(&rank, socket) == 0);
	memset(rank.memory.base, *stops ? 0xaa : 0xbb, BYTES);
	if (*stops)
		trap_lay((uint8_t *)rank.memory.base + OP_BYTES + OP_BYTES / 2);
	MUST(read(socket, &byte, 1) == 1); /* ready */
	MUST(sender_arm(&rank, *stops ? 1 : 2) == 0);
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);
	while (*stops ? !trap_was_met : !rank.sent) {
		MUST(clock_ns() < deadline);
		rank_step(&rank);
	}
	for (int i = 0; i < 10; i++) /* would write more, if it could */
		rank_step(&rank);
	MUST(read(socket, &byte, 1) >= 0); /* until the other has all */
}

static void fence(struct rank *rank)
{
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);
	bool closed;
	int rc;

	engine_peer_abandon(rank->engine, rank->peer);
	while ((rc = engine_fence(rank->engine, &closed, &err)) == -EAGAIN) {
		ck_assert(clock_ns() < deadline);
		rank_step(rank);
	}
	ck_ok(rc, err);
}

static bool all_are(const struct rank *rank, uint8_t value)
{
	const uint8_t *bytes = rank->memory.base;

	return bytes[0] == value && memcmp(bytes, bytes + 1, BYTES - 1) == 0;
}

static void next_update(struct rank *rank, struct child *child)
{
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);

	ck_ok(rank_connect(rank, child->socket), err);
	ck_ok(receiver_arm(rank, 2), err);
	ck_assert_int_eq(write(child->socket, "", 1), 1);
	while (!rank->received) {
		ck_assert(clock_ns() < deadline);
		rank_step(rank);
	}
	ck_assert(all_are(rank, 0xbb));
	ck_assert_int_eq(write(child->socket, "", 1), 1);
	ck_assert_int_eq(child_wait(child), 0);
	fence(rank);
}

START_TEST(a_sender_stopped_in_mid_write_is_fenced_and_the_next_update_is_whole)
{
	/* Both before this process has threads: thread sanitizer wants it so. */
	bool stops = true, goes_on = false;
	struct child child = child_start(sender, &stops), next = child_start(sender, &goes_on);
	struct rank rank;
	uint8_t keys[2][FRAME_MAX];
	struct writer before = writer_fixed(keys[0], FRAME_MAX);
	struct writer after = writer_fixed(keys[1], FRAME_MAX);

	ck_ok(rank_open(&rank), err);
	ck_ok(rank_connect(&rank, child.socket), err);
	ck_ok(receiver_arm(&rank, 1), err);
	engine_regions_encode(rank.engine, &before);
	ck_assert_int_eq(write(child.socket, "", 1), 1);
	child_await_stop(&child);
	ck_assert_ptr_nonnull(memchr(rank.memory.base, 0xaa, BYTES));
	fence(&rank);
	engine_regions_encode(rank.engine, &after);
	ck_assert_uint_eq(before.count, after.count);
	ck_assert_int_ne(memcmp(keys[0], keys[1], after.count), 0);
	memset(rank.memory.base, 0xee, BYTES);
	kill(child.pid, SIGCONT);
	ck_assert_int_eq(write(child.socket, "", 1), 1);
	ck_assert_int_eq(child_wait(&child), 0);
	ck_assert(all_are(&rank, 0xee));
	next_update(&rank, &next);
	rank_close(&rank);
}
END_TEST

/* The kernel lays them side by side: a region over two of them could only be written by a call, and
 * by no GPU.  Two params of one allocation are one region. */
START_TEST(params_of_several_allocations_are_each_mapped)
{
	const struct device device = {.transport = "ipc", .name = "host"};
	const struct engine_options options = {
		.devices = &device, .device_count = 1, .op_bytes = OP_BYTES};
	struct ws_memory memories[9], params[10];
	struct memory_place places[10];
	struct ws_nic nics[WS_NICS_MAX];
	struct engine *engine;
	uint32_t touching = 0;

	ck_ok(engine_open(&engine, &options, &err), err);
	for (uint32_t i = 0; i < 9; i++) {
		memories[i] = (struct ws_memory){.place = WS_HOST};
		ck_ok(ws_memory_alloc(&memories[i], 65536, &err), err);
		params[i] = memories[i];
		for (uint32_t k = 0; k < i; k++)
			touching += (uint8_t *)memories[i].base + 65536 == memories[k].base;
	}
	ck_assert_uint_gt(touching, 0);
	params[0].bytes = 32768;
	params[9] = (struct ws_memory){.base = (uint8_t *)params[0].base + 32768, .bytes = 32768};
	ck_ok(memories_add(engine, params, 10, MR_TARGET, places, &err), err);
	ck_assert_uint_eq(places[9].region, places[0].region);
	ck_assert_uint_eq(places[9].offset, 32768);
	for (uint32_t i = 0; i < 9; i++)
		for (uint32_t k = 0; k < i; k++)
			ck_assert_uint_ne(places[i].region, places[k].region);
	ck_assert_uint_eq(engine_nics(engine, nics), 1);
	ck_assert_str_eq(nics[0].memory, "memfd");
	engine_close(engine);
	for (uint32_t i = 0; i < 9; i++)
		ws_memory_free(&memories[i]);
}
END_TEST

/* A peer that heard of it could write there. */
START_TEST(nobody_hears_of_what_is_only_sent_from)
{
	static const struct device device = {.transport = "ipc", .name = "host"};
	struct engine_options options = {.devices = &device, .device_count = 1, .op_bytes = 4096};
	struct ws_memory memory[2] = {{.place = WS_HOST}, {.place = WS_HOST}};
	struct memory_place places[2];
	struct engine *engine;

	ck_ok(engine_open(&engine, &options, &err), err);
	for (uint32_t i = 0; i < 2; i++) {
		ck_ok(ws_memory_alloc(&memory[i], 4096, &err), err);
		ck_ok(memories_add(engine, &memory[i], 1, i == 0 ? MR_SOURCE : MR_TARGET,
				   &places[i], &err),
		      err);
	}
	struct writer regions = WRITER_INIT(4096);
	engine_regions_encode(engine, &regions);
	struct reader in = reader_make(regions.bytes, regions.count);
	ck_assert_uint_eq(read_u32(&in), 1);
	ck_assert_uint_eq(read_u32(&in), 3);
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t bytes = read_u64(&in), key = read_u64(&in), base = read_u64(&in);
		bool source = i == places[0].region;
		ck_assert(source ? bytes == 0 && key == 0 && base == 0
				 : bytes > 0 && key != 0 && base != 0);
	}
	engine_close(engine);
	writer_release(&regions);
	for (uint32_t i = 0; i < 2; i++)
		ws_memory_free(&memory[i]);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("engine_ipc");
	TCase *tests = tcase_create("engine_ipc");

	tcase_set_timeout(tests, 60);
	tcase_add_test(tests, nobody_hears_of_what_is_only_sent_from);
	tcase_add_test(tests, params_of_several_allocations_are_each_mapped);
	tcase_add_test(tests, a_sender_stopped_in_mid_write_is_fenced_and_the_next_update_is_whole);
	suite_add_tcase(all, tests);
	return all;
}
