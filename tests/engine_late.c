/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine whose staging, and a ring of offloaded sources, lie on a made GPU, over ipc to another
 * one in this process: whatever the GPU is late with, what is told as landed has landed, and all of
 * it does.
 */
#include "tests/made_gpu.h"

#include "lib/engine/engine_internal.h"

#define OP_BYTES 4096u
#define SENDS	 60u
#define OPS_MAX	 3u
#define MOVES	 4u /* of a send: each a quarter of it */
#define ROOM	 ((uint64_t)OPS_MAX * OP_BYTES)

static struct ws_error error;

struct world {
	struct engine *engines[2];
	struct engine_peer *peers[2];
	struct ws_memory memory; /* the receiver's region 1 */
	uint8_t source[SENDS * ROOM];
	struct gather_move moves[SENDS][MOVES];
	struct send sends[SENDS];
	struct receive receives[SENDS];
	struct op_range ranges[SENDS];
	uint32_t received, sends_done;
};

static void connect(struct world *world)
{
	struct writer out[4] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20), WRITER_INIT(1 << 20),
				WRITER_INIT(1 << 20)};

	for (int i = 0; i < 2; i++) {
		ck_ok(engine_peer_open(world->engines[i], "other", &world->peers[i], &out[i],
				       &error),
		      error);
		engine_regions_encode(world->engines[i], &out[2 + i]);
	}
	for (int i = 0; i < 2; i++) {
		const struct writer *address = &out[1 - i], *regions = &out[3 - i];
		ck_ok(engine_peer_connect(world->engines[i], world->peers[i], address->bytes,
					  address->count, &error),
		      error);
		ck_ok(engine_peer_regions(world->engines[i], world->peers[i], regions->bytes,
					  regions->count, &error),
		      error);
	}
	for (int i = 0; i < 4; i++)
		writer_release(&out[i]);
}

/* Quarters of a send come from the source in the other order. */
static void send_make(struct world *world, uint32_t index)
{
	uint64_t part = (1 + draw(OPS_MAX)) * OP_BYTES / MOVES, bytes = MOVES * part;
	uint32_t ops = (uint32_t)engine_op_count(bytes, OP_BYTES);

	for (uint32_t i = 0; i < MOVES; i++)
		world->moves[index][i] = (struct gather_move){
			.move = {.src = world->source + index * ROOM + (MOVES - 1 - i) * part,
				 .dim_count = 1,
				 .extent = {part},
				 .src_stride = {1},
				 .dst_stride = {1},
				 .from = WS_U8,
				 .to = WS_U8},
			.wire_offset = i * part};
	world->sends[index] = (struct send){.peer = world->peers[0],
					    .bytes = bytes,
					    .first_op_id = index * OPS_MAX,
					    .moves = world->moves[index],
					    .move_count = MOVES,
					    .remote_region = 1,
					    .remote_offset = index * ROOM,
					    .credit_op_id = NONE,
					    .bucket = index / 8};
	world->receives[index] = (struct receive){.peer = world->peers[1],
						  .op_count = ops,
						  .bytes = bytes,
						  .digest_op_id = NONE,
						  .credit_op_id = NONE};
	world->ranges[index] =
		(struct op_range){.first_op_id = index * OPS_MAX, .count = ops, .receive = index};
}

static void wire(struct world *world)
{
	connect(world);
	for (uint32_t i = 0; i < SENDS; i++)
		send_make(world, i);
	const struct engine_program sender = {.sends = world->sends, .send_count = SENDS};
	const struct engine_program receiver = {.receives = world->receives,
						.receive_count = SENDS,
						.ranges = world->ranges,
						.range_count = SENDS,
						.op_id_count = SENDS * OPS_MAX};
	ck_ok(engine_set_program(world->engines[0], &sender, &error), error);
	ck_ok(engine_set_program(world->engines[1], &receiver, &error), error);
}

static void world_open(struct world *world, int seed)
{
	/* None, smaller than a bucket, for all. */
	static const uint64_t rings[] = {0, 65536, 1 << 20};
	const struct device device = {.transport = "ipc", .name = "host"};
	uint32_t region;

	random_state = (uint64_t)seed;
	for (int i = 0; i < 2; i++) {
		const struct engine_options options = {.devices = &device,
						       .device_count = 1,
						       .op_bytes = OP_BYTES,
						       .staging_bytes = (1 + draw(40)) * OP_BYTES,
						       .ring_bytes = i == 0 ? rings[seed % 3] : 0,
						       .place = i == 0 ? WS_CUDA : WS_HOST};
		ck_ok(engine_open(&world->engines[i], &options, &error), error);
	}
	world->memory = (struct ws_memory){.place = WS_CUDA, .device = seed % 2};
	ck_ok(ws_memory_alloc(&world->memory, SENDS * ROOM, &error), error);
	ck_ok(engine_region_add(world->engines[1], &world->memory, MR_TARGET, &region, &error),
	      error);
	wire(world);
}

static void landed_check(const struct world *world, uint32_t index)
{
	const uint8_t *landed = (const uint8_t *)world->memory.base + index * ROOM;
	uint64_t part = world->sends[index].bytes / MOVES;

	for (uint32_t i = 0; i < MOVES; i++)
		ck_assert_msg(memcmp(landed + i * part, world->moves[index][i].move.src, part) == 0,
			      "send %u is told before it has landed", index);
}

static void world_step(struct world *world)
{
	struct engine_event events[16];

	for (int i = 0; i < 2; i++) {
		int count = engine_step(world->engines[i], events, (int)ARRAY_SIZE(events));
		for (int e = 0; e < count; e++) {
			if (events[e].kind == ENGINE_RECEIVE_DONE)
				landed_check(world, events[e].receive);
			else
				ck_assert_int_eq(events[e].kind, ENGINE_SENDS_DONE);
			world->received += events[e].kind == ENGINE_RECEIVE_DONE;
			world->sends_done += events[e].kind == ENGINE_SENDS_DONE && i == 0;
		}
	}
}

static void update(struct world *world, uint64_t attempt)
{
	for (size_t i = 0; i < sizeof(world->source); i++)
		world->source[i] = (uint8_t)mix64(i ^ attempt << 32);
	world->received = world->sends_done = 0;
	for (int i = 0; i < 2; i++)
		ck_ok(engine_arm(world->engines[i], attempt, &error), error);
	engine_peer_ready(world->engines[0], world->peers[0]);
	ck_until(world->received == SENDS && world->sends_done == 1, world_step(world));
	for (uint32_t i = 0; i < SENDS; i++)
		landed_check(world, i);
	for (int i = 0; i < 2; i++)
		engine_end(world->engines[i]);
}

/* 0: all is closed. */
static int fence(struct world *world, int end)
{
	struct engine_event events[16];
	bool closed;
	int rc = engine_fence(world->engines[end], &closed, &error);

	ck_assert_msg(rc == 0 || rc == -EAGAIN, "%d: %s", rc, error.text);
	for (int i = 0; i < 2; i++)
		(void)engine_step(world->engines[i], events, (int)ARRAY_SIZE(events));
	return rc;
}

/* At any moment; the sender goes on for a while.  Nothing lands after the receiver's fence. */
static void break_off(struct world *world, uint64_t attempt)
{
	uint8_t *landed = world->memory.base;

	world->received = world->sends_done = 0;
	for (int i = 0; i < 2; i++)
		ck_ok(engine_arm(world->engines[i], attempt, &error), error);
	engine_peer_ready(world->engines[0], world->peers[0]);
	for (uint64_t steps = draw(300); steps > 0; steps--)
		world_step(world);
	engine_end(world->engines[1]);
	engine_peer_quiet(world->engines[0], world->peers[0]);
	ck_until(fence(world, 1) == 0, (void)0);
	memset(landed, 0x77, SENDS * ROOM);
	ck_until(fence(world, 0) == 0, (void)0);
	uint64_t kept = 0;
	while (kept < SENDS * ROOM && landed[kept] == 0x77)
		kept++;
	ck_assert_msg(kept == SENDS * ROOM, "byte %llu has landed after the fence",
		      (unsigned long long)kept);
	wire(world);
}

START_TEST(what_is_told_as_landed_has_landed_and_all_of_it_does)
{
	struct world *world = calloc(1, sizeof(*world));

	world_open(world, _i);
	for (uint64_t attempt = 1; attempt <= 6; attempt++)
		if (attempt % 3 == 0)
			break_off(world, attempt);
		else
			update(world, attempt);
	for (int i = 0; i < 2; i++)
		engine_close(world->engines[i]);
	ws_memory_free(&world->memory);
	free(world);
}
END_TEST

/* Nobody has taken the events of its failures before. */
START_TEST(what_is_told_after_a_fence_names_nothing_that_is_gone)
{
	struct world *world = calloc(1, sizeof(*world));
	struct engine_event events[64];
	uint32_t failed = 0;
	bool closed;
	int count;

	world_open(world, 0);
	for (int i = 0; i < 2; i++)
		ck_ok(engine_arm(world->engines[i], 1, &error), error);
	engine_peer_ready(world->engines[0], world->peers[0]);
	copies_wait = true;
	ck_until(world->engines[0]->nics[0].in_flight > 0,
		 (void)engine_step(world->engines[0], events, 0));
	gpu_fails = true;
	ck_until(world->engines[0]->nics[0].in_flight == 0,
		 (void)engine_step(world->engines[0], events, 0));
	engine_peer_quiet(world->engines[0], world->peers[0]);
	ck_until(engine_fence(world->engines[0], &closed, &error) == 0,
		 engine_step(world->engines[0], events, 0));
	while ((count = engine_step(world->engines[0], events, (int)ARRAY_SIZE(events))) > 0)
		for (int i = 0; i < count; i++) {
			failed += events[i].kind == ENGINE_OP_FAILED;
			ck_assert(events[i].peer == NULL && events[i].reason == NULL);
		}
	ck_assert_uint_gt(failed, 0);
	for (int i = 0; i < 2; i++)
		engine_close(world->engines[i]);
	ws_memory_free(&world->memory);
	free(world);
}
END_TEST

/* Its own NIC's trouble comes before ops that fail for it: no peer is to blame. */
START_TEST(who_waits_for_a_gpu_hears_that_it_failed_or_hangs_and_that_no_peer_did)
{
	struct world *world = calloc(1, sizeof(*world));
	static const char *const reasons[] = {"the made GPU has a fault", "hasn't done in 0.1 s"};
	struct engine_event event = {0};
	char text[256];

	world_open(world, 3 * _i);
	for (int i = 0; i < 2; i++)
		ck_ok(engine_arm(world->engines[i], 1, &error), error);
	engine_peer_ready(world->engines[0], world->peers[0]);
	copies_wait = true;
	ck_until(world->engines[0]->nics[0].in_flight > 0,
		 (void)engine_step(world->engines[0], &event, 0));
	cuda_stuck_after(100);
	gpu_fails = _i == 0;
	ck_until(event.kind != 0, (void)engine_step(world->engines[0], &event, 1));
	while (event.kind == ENGINE_GPU_FAILED) /* what was gathered since */
		ck_until(engine_step(world->engines[0], &event, 1) == 1, (void)0);
	ck_assert_int_eq(event.kind, ENGINE_NIC_LOST);
	ck_assert(!engine_nic_is_in_use(world->engines[0], 0));
	engine_rails_text(world->engines[0], text, sizeof(text));
	ck_assert_msg(strstr(text, reasons[_i]) != NULL, "%s", text);
	for (int i = 0; i < 2; i++)
		engine_close(world->engines[i]);
	ws_memory_free(&world->memory);
	free(world);
}
END_TEST

/* What it was given to gather, or to bring into the ring. */
START_TEST(a_gpu_that_somebody_gave_up_is_waited_for_by_nobody)
{
	struct world *world = calloc(1, sizeof(*world));
	struct engine_event event = {0};

	world_open(world, 1 + _i);
	for (int i = 0; i < 2; i++)
		ck_ok(engine_arm(world->engines[i], 1, &error), error);
	engine_peer_ready(world->engines[0], world->peers[0]);
	gpu_waits = true;
	for (int i = 0; i < 100; i++)
		(void)engine_step(world->engines[0], &event, 0);
	cuda_stuck(0, NULL);
	ck_until(event.kind != 0, (void)engine_step(world->engines[0], &event, 1));
	ck_assert_int_eq(event.kind, ENGINE_GPU_FAILED);
	ck_assert_ptr_nonnull(strstr(event.reason, "GPU 0 hasn't done in 60 s"));
	for (int i = 0; i < 2; i++)
		engine_close(world->engines[i]);
	ws_memory_free(&world->memory);
	free(world);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("engine_late");
	TCase *tc = tcase_create("made GPUs");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, what_is_told_as_landed_has_landed_and_all_of_it_does, 0, 30);
	tcase_add_test(tc, what_is_told_after_a_fence_names_nothing_that_is_gone);
	tcase_add_loop_test(
		tc, who_waits_for_a_gpu_hears_that_it_failed_or_hangs_and_that_no_peer_did, 0, 2);
	tcase_add_loop_test(tc, a_gpu_that_somebody_gave_up_is_waited_for_by_nobody, 0, 3);
	suite_add_tcase(s, tc);
	return s;
}
