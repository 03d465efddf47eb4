/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offloaded sources that touch, but were page-locked one by one: CUDA refuses a copy over the end
 * of what was locked at once, so they come into the ring's memory in as many copies.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/engine/engine.h"
#include "tests/gpu.h"

#define PARTS	   3u
#define PART_BYTES ((size_t)1 << 20)
#define BYTES	   (PARTS * PART_BYTES)

static struct ws_error error;

/* What is locked at once: all parts, or each. */
static void parts_pin(uint8_t *memory, bool apart)
{
	for (uint32_t i = 0; i < (apart ? PARTS : 1); i++)
		ck_ok(cuda_pin(memory + i * PART_BYTES, apart ? PART_BYTES : BYTES, &error), error);
}

static void parts_unpin(uint8_t *memory, bool apart)
{
	for (uint32_t i = 0; i < (apart ? PARTS : 1); i++)
		cuda_unpin(memory + i * PART_BYTES);
}

static uint8_t *noise_make(void)
{
	uint8_t *memory = aligned_alloc(4096, BYTES);

	ck_assert_ptr_nonnull(memory);
	for (size_t i = 0; i < BYTES; i++)
		memory[i] = (uint8_t)mix64(i);
	return memory;
}

/* Without it lib/engine joins nothing: slower, and as right. */
START_TEST(cuda_knows_how_far_memory_was_page_locked_at_once)
{
	bool apart = _i == 1;
	uint8_t *memory = noise_make();
	void *allocated;

	ck_ok(cuda_use(0, &error), error);
	parts_pin(memory, apart);
	for (uint32_t i = 0; i < PARTS; i++) {
		const struct cuda_range range = cuda_range_of(memory + i * PART_BYTES + 12345);
		ck_assert_int_eq(range.kind, CUDA_PINNED);
		ck_assert_ptr_eq(range.base, memory + (apart ? i * PART_BYTES : 0));
		ck_assert_uint_eq(range.bytes, apart ? PART_BYTES : BYTES);
	}
	parts_unpin(memory, apart);
	free(memory);
	ck_ok(cuda_pinned_alloc(BYTES, &allocated, &error), error);
	const struct cuda_range range = cuda_range_of((uint8_t *)allocated + 12345);
	ck_assert_int_eq(range.kind, CUDA_PINNED);
	ck_assert_ptr_eq(range.base, allocated);
	cuda_pinned_free(allocated);
}
END_TEST

static struct move bytes_move(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	return (struct move){.kind = MOVE_CAST,
			     .src = from,
			     .dst = to,
			     .dim_count = 1,
			     .extent = {bytes},
			     .src_stride = {1},
			     .dst_stride = {1},
			     .from = WS_U8,
			     .to = WS_U8};
}

/* An attempt of one local, which reads all of it. */
static void attempt_run(struct engine *engine, uint64_t attempt)
{
	uint64_t until_ns = deadline_in_ms(PATIENCE_MS);
	struct engine_event events[4];

	ck_ok(engine_arm(engine, attempt, &error), error);
	for (bool done = false; !done;) {
		int count = engine_step(engine, events, (int)ARRAY_SIZE(events));
		ck_assert_msg(clock_ns() < until_ns, "it never ends");
		for (int i = 0; i < count; i++) {
			ck_assert_msg(events[i].kind == ENGINE_SENDS_DONE, "event %d: %s",
				      (int)events[i].kind,
				      events[i].reason != NULL ? events[i].reason : "");
			done = true;
		}
	}
	engine_end(engine);
}

/* At last as one source, which lies in all parts: no copy can bring it, so it is read in place. */
START_TEST(sources_that_touch_come_through_the_ring_however_they_were_page_locked)
{
	const struct device device = {.transport = "ipc", .name = "host"};
	const struct engine_options options = {.devices = &device,
					       .device_count = 1,
					       .op_bytes = 65536,
					       .staging_bytes = 1 << 20,
					       .ring_bytes = 16 << 20,
					       .place = WS_CUDA};
	const uint32_t count = _i < 2 ? PARTS : 1;
	struct ws_memory to = {.place = WS_CUDA};
	uint8_t *memory = noise_make(), *got = malloc(BYTES);
	struct engine_progress progress;
	struct move moves[PARTS];
	struct engine *engine;

	ck_assert_ptr_nonnull(got);
	ck_ok(cuda_use(0, &error), error);
	parts_pin(memory, _i > 0);
	ck_ok(ws_memory_alloc(&to, BYTES, &error), error);
	ck_ok(engine_open(&engine, &options, &error), error);
	for (uint32_t i = 0; i < count; i++)
		moves[i] = bytes_move((uint8_t *)to.base + i * PART_BYTES, memory + i * PART_BYTES,
				      BYTES / count);
	const struct local local = {.moves = moves, .move_count = count};
	const struct engine_program program = {.locals = &local, .local_count = 1};
	ck_ok(engine_set_program(engine, &program, &error), error);
	for (uint64_t attempt = 1; attempt <= 2; attempt++) {
		ck_ok(memory_zero(&to, 0, BYTES, &error), error);
		attempt_run(engine, attempt);
		ck_ok(memory_read(&to, 0, got, BYTES, &error), error);
		ck_assert_int_eq(memcmp(got, memory, BYTES), 0);
		engine_progress(engine, &progress);
		ck_assert_uint_eq(progress.load_bytes, _i < 2 ? BYTES : 0);
	}
	engine_close(engine);
	ws_memory_free(&to);
	parts_unpin(memory, _i > 0);
	free(memory);
	free(got);
}
END_TEST

Suite *suite(void)
{
	if (!gpus_are_there(1))
		return NULL;
	Suite *s = suite_create("gpu_offload");
	TCase *tc = tcase_create("gpu");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, cuda_knows_how_far_memory_was_page_locked_at_once, 0, 2);
	tcase_add_loop_test(
		tc, sources_that_touch_come_through_the_ring_however_they_were_page_locked, 0, 3);
	suite_add_tcase(s, tc);
	return s;
}
