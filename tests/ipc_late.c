/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc's books of what a GPU has been given (ipc_gpu.c), with made GPUs: immediates, reports and the
 * fence must never be ahead of the bytes.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/ipc.h"
#include "tests/made_gpu.h"
#include "tests/transport_pair.h"

#define BLOCK  4096u
#define BLOCKS 256u
#define BYTES  ((size_t)BLOCK * BLOCKS)
#define OPS    BLOCKS

/* ---------------------------------------------------------------- two ends of one process */

/* An op's number is its immediate and its id: where its bytes come from and go to. */
struct plan {
	uint32_t from[OPS], to[OPS], bytes[OPS];
};

struct world {
	struct pair pair;
	struct plan plan;
	uint8_t *want; /* as the receiver's memory is to be in the end */
	uint32_t posted, reported, failed, arrived;
	bool seen[OPS], told[OPS];
};

static uint8_t *memory_of(const struct world *world, int end)
{
	return world->pair.memory[end].base;
}

/* Blocks in stretches that go on at both ends, at one, or at none; some aren't whole. */
static void plan_make(struct plan *plan)
{
	for (uint32_t i = 0; i < OPS; i++) {
		plan->from[i] = plan->to[i] = i;
		plan->bytes[i] = draw(10) == 0 ? (uint32_t)draw(BLOCK + 1) : BLOCK;
		if (draw(5) > 0)
			continue;
		uint32_t other = (uint32_t)draw(i + 1);
		plan->to[i] = plan->to[other];
		plan->to[other] = i;
	}
}

static void world_open_between(struct world *world, enum ws_place from, enum ws_place to, int seed)
{
	static const char *const devices[2] = {"host", "host"};
	struct pair *pair = &world->pair;

	random_state = (uint64_t)seed;
	memset(world, 0, sizeof(*world));
	pair->allocated = true;
	for (int i = 0; i < 2; i++) {
		/* Within one GPU by a kernel, else by a copy engine. */
		pair->memory[i] =
			(struct ws_memory){.place = i == 0 ? from : to, .device = i * (seed % 2)};
		ck_ok(nic_open(&pair->nics[i], "ipc", devices[i], &err), err);
		ck_ok(ws_memory_alloc(&pair->memory[i], BYTES, &err), err);
		/* What is only sent from needn't be anything that others could map. */
		unshared = i == 0 ? pair->memory[i].base : NULL;
		ck_ok(pair->nics[i]->transport->reg(pair->nics[i], &pair->memory[i],
						    i == 0 ? MR_SOURCE : MR_TARGET, &pair->mrs[i],
						    &err),
		      err);
	}
	pair_connect(pair);
	plan_make(&world->plan);
	world->want = calloc(1, BYTES);
	for (size_t i = 0; i < BYTES; i++)
		memory_of(world, 0)[i] = (uint8_t)(1 + mix64(i) % 255);
	for (uint32_t i = 0; i < OPS; i++)
		memcpy(world->want + (size_t)world->plan.to[i] * BLOCK,
		       memory_of(world, 0) + (size_t)world->plan.from[i] * BLOCK,
		       world->plan.bytes[i]);
}

static void world_open(struct world *world, int seed)
{
	world_open_between(world, WS_CUDA, WS_CUDA, seed);
}

static void world_close(struct world *world)
{
	free(world->want);
	pair_close(&world->pair);
}

static void some_post(struct world *world)
{
	const struct pair *pair = &world->pair;
	struct op ops[32];
	int count = 0;

	for (uint32_t i = world->posted, most = (uint32_t)draw(32); i < OPS && most > 0;
	     i++, most--)
		ops[count++] = (struct op){
			.peer = pair->peers[0],
			.local = memory_of(world, 0) + (size_t)world->plan.from[i] * BLOCK,
			.local_mr = &pair->mrs[0],
			.remote = pair->mrs[1].base + (size_t)world->plan.to[i] * BLOCK,
			.remote_key = pair->mrs[1].key,
			.bytes = world->plan.bytes[i],
			.id = i,
			.imm = i};
	if (count == 0) /* a post of nothing would launch, too */
		return;
	int taken = pair->nics[0]->transport->post(pair->nics[0], ops, count);
	ck_assert_int_ge(taken, 0);
	world->posted += (uint32_t)taken;
}

/* What was reported is the sender's again: it writes there at once. */
static void sender_poll(struct world *world)
{
	struct event events[16];
	int count = world->pair.nics[0]->transport->poll(world->pair.nics[0], events,
							 (int)ARRAY_SIZE(events));

	for (int i = 0; i < count; i++) {
		if (events[i].kind != EVENT_SENT && events[i].kind != EVENT_FAILED)
			continue;
		uint32_t op = (uint32_t)events[i].id;
		ck_assert(op < world->posted && !world->told[op]);
		world->told[op] = true;
		world->reported++;
		world->failed += events[i].kind == EVENT_FAILED;
		memset(memory_of(world, 0) + (size_t)world->plan.from[op] * BLOCK, 0, BLOCK);
	}
}

static void receiver_poll(struct world *world)
{
	struct event events[16];
	int count = world->pair.nics[1]->transport->poll(world->pair.nics[1], events,
							 (int)ARRAY_SIZE(events));

	for (int i = 0; i < count; i++) {
		if (events[i].kind != EVENT_IMM)
			continue;
		uint32_t op = events[i].imm;
		size_t at = (size_t)world->plan.to[op] * BLOCK;
		ck_assert(!world->seen[op]);
		ck_assert_msg(memcmp(memory_of(world, 1) + at, world->want + at,
				     world->plan.bytes[op]) == 0,
			      "op %u is told before its bytes are there", op);
		world->seen[op] = true;
		world->arrived++;
	}
}

static void world_turn(struct world *world)
{
	if (draw(3) == 0)
		some_post(world);
	if (draw(2) == 0)
		sender_poll(world);
	if (draw(2) == 0)
		receiver_poll(world);
}

/* ---------------------------------------------------------------- the tests */

START_TEST(every_byte_is_there_when_its_immediate_is_and_is_read_before_its_report)
{
	struct world world;

	world_open(&world, _i);
	ck_until(world.reported == OPS && world.arrived == OPS, world_turn(&world));
	ck_assert_uint_eq(world.failed, 0);
	ck_assert_int_eq(memcmp(memory_of(&world, 1), world.want, BYTES), 0);
	world_close(&world);
}
END_TEST

/* What is posted while two launches are under way waits for one of them, and goes on as one. */
START_TEST(what_is_posted_meanwhile_becomes_few_copies)
{
	struct world world;

	world_open(&world, _i);
	for (uint32_t i = 0; i < OPS; i++) {
		world.plan.from[i] = world.plan.to[i] = i;
		world.plan.bytes[i] = BLOCK;
	}
	memcpy(world.want, memory_of(&world, 0), BYTES);
	gpu_waits = true;
	for (int turn = 0; turn < 1000; turn++)
		world_turn(&world);
	ck_assert_uint_eq(world.posted, OPS);
	ck_assert_uint_eq(world.reported + world.arrived, 0);
	ck_assert_uint_le(launches, 5);
	ck_assert_uint_le(jobs, 5);
	gpu_waits = false;
	ck_until(world.reported == OPS && world.arrived == OPS, world_turn(&world));
	ck_assert_int_eq(memcmp(memory_of(&world, 1), world.want, BYTES), 0);
	world_close(&world);
}
END_TEST

/* From the host's memory, which was page-locked piece by piece, and in part not at all. */
START_TEST(host_memory_is_read_piece_by_piece_as_it_was_page_locked)
{
	struct world world;

	world_open_between(&world, WS_HOST, WS_CUDA, _i);
	for (size_t at = 0, bytes; at < BYTES; at += bytes) {
		bytes = BYTES / 64 + draw(8 * BLOCK);
		if (at + bytes > BYTES || _i == 0)
			bytes = BYTES - at;
		host_parts[host_part_count++] = (struct cuda_range){
			.kind = _i == 0 || draw(3) > 0 ? CUDA_PINNED : CUDA_UNKNOWN,
			.device = -1,
			.base = memory_of(&world, 0) + at,
			.bytes = bytes};
	}
	ck_until(world.reported == OPS && world.arrived == OPS - world.failed, world_turn(&world));
	ck_assert_uint_eq(world.failed, 0);
	ck_assert_int_eq(memcmp(memory_of(&world, 1), world.want, BYTES), 0);
	/* CUDA is asked once for what was page-locked at once. */
	ck_assert(_i > 0 || host_asked == 1);
	world_close(&world);
}
END_TEST

static int receiver_fences(struct world *world)
{
	struct nic *nic = world->pair.nics[1];
	int rc = nic->transport->peer_close(nic, world->pair.peers[1], false, false);

	if (rc == -EAGAIN) {
		if (draw(2) == 0)
			some_post(world);
		if (draw(2) == 0)
			sender_poll(world);
	}
	return rc;
}

START_TEST(nothing_lands_after_the_receiver_has_closed)
{
	struct world world;
	uint8_t *ones = malloc(BYTES);

	world_open(&world, _i);
	for (uint64_t turns = 1 + draw(200); turns > 0; turns--)
		world_turn(&world);
	ck_until(receiver_fences(&world) == 0, (void)0);
	memset(ones, 0x77, BYTES);
	memcpy(memory_of(&world, 1), ones, BYTES);
	/* The sender hears of it with its next ops, and reports each once. */
	ck_until(world.posted == OPS && world.reported == OPS, {
		some_post(&world);
		sender_poll(&world);
	});
	ck_assert_int_eq(memcmp(memory_of(&world, 1), ones, BYTES), 0);
	world_close(&world);
	free(ones);
}
END_TEST

/* Its sender stands still, with writes that a GPU has and others that it is to get. */
START_TEST(a_fence_that_queued_writes_hold_up_says_so_and_is_done_when_they_end)
{
	struct world world;
	int rc = -EAGAIN;

	world_open(&world, _i);
	copies_wait = true;
	ck_until(world.posted > OPS / 2, world_turn(&world));
	struct nic *nic = world.pair.nics[1];
	ck_until(rc != -EAGAIN, {
		rc = nic->transport->peer_close(nic, world.pair.peers[1], false, true);
		sleep_ns(1000000);
	});
	ck_assert_int_eq(rc, -ENOSPC);
	ck_assert_ptr_nonnull(strstr(nic->trouble, "can't be kept from ending it"));
	copies_wait = false;
	ck_until(nic->transport->peer_close(nic, world.pair.peers[1], false, true) == 0,
		 sender_poll(&world));
	ck_until(world.reported == world.posted, sender_poll(&world));
	world_close(&world);
}
END_TEST

static const uint8_t *moves;
static uint64_t moves_after;

/* A fence of another NIC in the receiver's process gives its memory other pages. */
static void pages_move(void)
{
	if (moves_after-- == 0)
		ck_assert_int_eq(ipc_revoke((uintptr_t)moves, BYTES), 0);
}

START_TEST(nothing_is_told_that_a_gpu_wrote_into_pages_that_are_gone)
{
	struct world world;

	world_open_between(&world, WS_CUDA, WS_HOST, _i);
	moves = memory_of(&world, 1);
	moves_after = draw(OPS / 2);
	copy_meanwhile = pages_move;
	ck_until(world.reported == OPS && world.arrived == OPS - world.failed, world_turn(&world));
	ck_assert_uint_ge(world.failed, 1);
	ck_assert_uint_ge(world.arrived, 1); /* what came later found the new ones */
	world_close(&world);
}
END_TEST

START_TEST(after_a_fault_each_op_is_reported_once_and_none_waits)
{
	struct world world;

	world_open(&world, _i);
	for (uint64_t turns = draw(100); turns > 0; turns--)
		world_turn(&world);
	gpu_fails = true;
	ck_until(world.reported == OPS && world.arrived == OPS - world.failed, world_turn(&world));
	world_close(&world);
}
END_TEST

static bool nobody_blocks_on(const struct nic *nic)
{
	struct pollfd fd = {.fd = nic->wait_fd, .events = POLLIN};

	return poll(&fd, 1, 0) != 0;
}

/* What it was given may end all the same. */
START_TEST(a_gpu_that_hangs_takes_its_nic_down_and_nobody_polls_for_it_any_more)
{
	struct world world;

	world_open(&world, _i);
	struct nic *nic = world.pair.nics[0];
	cuda_stuck_after(100);
	copies_wait = true;
	ck_until(world.posted > OPS / 2, world_turn(&world));
	ck_assert(nobody_blocks_on(nic));
	ck_until(nic->down, sender_poll(&world));
	ck_assert_ptr_nonnull(strstr(nic->trouble, "GPU 0 hasn't done in 0.1 s"));
	ck_until(!nobody_blocks_on(nic), sender_poll(&world));
	ck_assert_uint_eq(world.reported, 0);
	ck_assert_int_eq(nic->transport->peer_close(nic, world.pair.peers[0], true, false),
			 -ETIMEDOUT);
	copies_wait = false;
	ck_until(nic->transport->peer_close(nic, world.pair.peers[0], true, false) == 0,
		 sender_poll(&world));
	ck_assert_uint_eq(world.reported, world.posted);
	world_close(&world);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("ipc_late");
	TCase *tc = tcase_create("made GPUs");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(
		tc, every_byte_is_there_when_its_immediate_is_and_is_read_before_its_report, 0, 40);
	tcase_add_loop_test(tc, what_is_posted_meanwhile_becomes_few_copies, 0, 4);
	tcase_add_loop_test(tc, host_memory_is_read_piece_by_piece_as_it_was_page_locked, 0, 20);
	tcase_add_loop_test(tc, nothing_lands_after_the_receiver_has_closed, 0, 40);
	tcase_add_test(tc, a_fence_that_queued_writes_hold_up_says_so_and_is_done_when_they_end);
	tcase_add_loop_test(tc, nothing_is_told_that_a_gpu_wrote_into_pages_that_are_gone, 0, 4);
	tcase_add_loop_test(tc, after_a_fault_each_op_is_reported_once_and_none_waits, 0, 20);
	tcase_add_loop_test(
		tc, a_gpu_that_hangs_takes_its_nic_down_and_nobody_polls_for_it_any_more, 0, 4);
	suite_add_tcase(s, tc);
	return s;
}
