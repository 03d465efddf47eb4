/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/engine's ring of offloaded sources where it is smaller than what one request reads: whoever
 * waits for room gets it.  (A whole exchange with rings is in engine_local.c.)
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine/engine.h"
#include "tests/test.h"

#define RING_BYTES  ((uint64_t)16384)
#define PIECE_BYTES (RING_BYTES / 4) /* the largest that comes into it */
#define PIECES	    16u

static struct ws_error error;

/* As when who was to get what it makes has been dropped: nobody waits for it but the attempt. */
START_TEST(a_local_that_no_send_waits_for_is_done_in_a_ring_that_is_smaller)
{
	const struct device device = {.transport = "loop", .name = "net/alone"};
	const struct engine_options options = {.devices = &device,
					       .device_count = 1,
					       .op_bytes = 4096,
					       .staging_bytes = 8192,
					       .ring_bytes = RING_BYTES};
	static uint8_t sources[PIECES][PIECE_BYTES], targets[PIECES][PIECE_BYTES];
	struct move moves[PIECES];
	struct engine_progress progress;
	struct engine_event event = {0};
	struct engine *engine;

	ck_ok(engine_open(&engine, &options, &error), error);
	for (uint32_t i = 0; i < PIECES; i++) {
		memset(sources[i], (int)i + 1, PIECE_BYTES);
		moves[i] = (struct move){.src = sources[i],
					 .dst = targets[i],
					 .dim_count = 1,
					 .extent = {PIECE_BYTES},
					 .src_stride = {1},
					 .dst_stride = {1},
					 .from = WS_U8,
					 .to = WS_U8};
	}
	const struct local local = {.moves = moves, .move_count = PIECES};
	const struct engine_program program = {.locals = &local, .local_count = 1};
	ck_ok(engine_set_program(engine, &program, &error), error);
	for (uint64_t attempt = 1; attempt <= 2; attempt++) {
		memset(targets, 0, sizeof(targets));
		ck_ok(engine_arm(engine, attempt, &error), error);
		ck_until(engine_step(engine, &event, 1) == 1, sched_yield());
		ck_assert_int_eq(event.kind, ENGINE_SENDS_DONE);
		ck_assert_int_eq(memcmp(targets, sources, sizeof(sources)), 0);
		engine_progress(engine, &progress);
		ck_assert_uint_le(progress.ring_high_bytes, RING_BYTES);
		engine_end(engine);
	}
	engine_close(engine);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("engine_offload");
	TCase *tc = tcase_create("ring");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_local_that_no_send_waits_for_is_done_in_a_ring_that_is_smaller);
	suite_add_tcase(s, tc);
	return s;
}
