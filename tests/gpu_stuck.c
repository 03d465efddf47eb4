/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing behind a GPU that hangs: a kernel runs until the test lets it go, and whoever closes what
 * it may use gives the GPU up after a short time and leaves all of it, instead of waiting.
 */
#include <errno.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/convert/device.h"
#include "lib/engine/engine.h"
#include "tests/gpu_hang.h"

#define STUCK_MS 500
#define BOUND_MS 20000 /* far from that, and from HANG_MS */

static struct ws_error error;
static uint64_t until_ns;

static void hang_set(struct hang *hang)
{
	hang_open(hang);
	cuda_stuck_after(STUCK_MS);
}

static void hang_now(const struct hang *hang)
{
	hang_begin(hang, hang->stream);
	until_ns = deadline_in_ms(BOUND_MS);
}

/* All is closed, and the kernel still runs. */
static void hang_end(const struct hang *hang)
{
	struct ws_memory memory = {.place = WS_CUDA};

	ck_assert_msg(clock_ns() < until_ns, "somebody has waited for the kernel");
	ck_assert_int_eq(cuda_stream_done(hang->stream, &error), -EAGAIN);
	ck_assert(cuda_is_given_up(0));
	ck_fails(ws_memory_alloc(&memory, 4096, &error), -ETIMEDOUT, error);
	ck_assert_ptr_nonnull(strstr(error.text, "GPU 0 hasn't done in 0.5 s"));
	ck_assert_ptr_nonnull(strstr(error.text, "given up"));
	*hang->go = 1; /* before the process ends, which may wait for it */
	while (cuda_stream_done(hang->stream, &error) == -EAGAIN)
		ck_assert(clock_ns() < until_ns);
}

START_TEST(a_settled_stream_is_waited_for_and_nothing_is_given_up)
{
	struct ws_memory memory = {.place = WS_CUDA};
	struct cuda_queue queue;
	struct hang hang;

	hang_set(&hang);
	ck_ok(ws_memory_alloc(&memory, 1 << 20, &error), error);
	ck_ok(cuda_queue_open_on(&queue, 0, hang.stream, &error), error);
	ck_ok(spin_launch(hang.go, STUCK_MS / 5, hang.stream, &error), error);
	cuda_queue_close(&queue);
	ck_assert_int_eq(cuda_stream_done(hang.stream, &error), 0);
	ck_assert(!cuda_is_given_up(0));
	ws_memory_free(&memory);
	cuda_stream_close(hang.stream);
	cuda_pinned_free((void *)(uintptr_t)hang.go);
}
END_TEST

START_TEST(a_queue_is_closed_while_its_kernel_hangs)
{
	struct ws_memory memory = {.place = WS_CUDA};
	struct cuda_queue queue;
	struct hang hang;
	uint64_t mark;

	hang_set(&hang);
	ck_ok(ws_memory_alloc(&memory, 1 << 20, &error), error);
	ck_ok(cuda_queue_open_on(&queue, 0, _i == 0 ? NULL : hang.stream, &error), error);
	hang_now(&hang);
	if (_i == 0) /* and on the queue's own */
		hang_begin(&hang, queue.stream);
	ck_assert_int_eq(cuda_queue_mark(&queue, &mark), 0);
	ck_assert_int_eq(cuda_queue_passed(&queue, mark), 0);
	cuda_queue_close(&queue);
	ws_memory_free(&memory);
	/* It stays readable: the kernel looks at it. */
	cuda_pinned_free((void *)(uintptr_t)hang.go);
	hang_end(&hang);
}
END_TEST

START_TEST(a_batch_is_closed_while_what_is_before_it_hangs)
{
	struct device_batch *batch;
	struct hang hang;

	hang_set(&hang);
	ck_ok(device_batch_open(&batch, 0, 16, &error), error);
	hang_now(&hang);
	ck_ok(device_batch_launch(batch, hang.stream, &error), error);
	ck_assert_int_eq(device_batch_done(batch, &error), -EAGAIN);
	device_batch_close(batch);
	hang_end(&hang);
}
END_TEST

/* With staging, a ring for offloaded params, and ipc's stream; what hangs is its side's stream, or
 * another one of ours. */
START_TEST(an_engine_is_closed_while_a_stream_hangs)
{
	const struct device device = {.transport = "ipc", .name = "host"};
	struct ws_memory memory = {.place = WS_CUDA};
	struct engine *engine;
	struct hang hang;
	uint32_t region;

	hang_set(&hang);
	const struct engine_options options = {.devices = &device,
					       .device_count = 1,
					       .op_bytes = 65536,
					       .staging_bytes = 1 << 20,
					       .ring_bytes = 1 << 20,
					       .place = WS_CUDA,
					       .stream = _i == 0 ? hang.stream : NULL};
	ck_ok(engine_open(&engine, &options, &error), error);
	ck_ok(ws_memory_alloc(&memory, 1 << 20, &error), error);
	ck_ok(engine_region_add(engine, &memory, MR_TARGET, &region, &error), error);
	hang_now(&hang);
	engine_close(engine);
	ws_memory_free(&memory);
	hang_end(&hang);
}
END_TEST

Suite *suite(void)
{
	if (!gpus_are_there(1))
		return NULL;
	Suite *s = suite_create("gpu_stuck");
	TCase *tc = tcase_create("gpu");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, a_settled_stream_is_waited_for_and_nothing_is_given_up);
	tcase_add_loop_test(tc, a_queue_is_closed_while_its_kernel_hangs, 0, 2);
	tcase_add_test(tc, a_batch_is_closed_while_what_is_before_it_hangs);
	tcase_add_loop_test(tc, an_engine_is_closed_while_a_stream_hangs, 0, 2);
	suite_add_tcase(s, tc);
	return s;
}
