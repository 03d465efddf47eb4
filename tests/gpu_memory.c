/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/cuda on a real GPU: allocations and what CUDA says of them, batched copies at every
 * alignment, marks, and memory that another process maps.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/base.h"
#include "tests/gpu.h"
#include "tests/gpu_pieces.h"

#define WAIT_NS (UINT64_C(20) * 1000000000)

static struct ws_error error;

static struct ws_memory gpu_memory(size_t bytes)
{
	struct ws_memory memory = {.place = WS_CUDA};
	ck_ok(ws_memory_alloc(&memory, bytes, &error), error);
	return memory;
}

static uint8_t *noise(size_t bytes, uint32_t seed)
{
	uint8_t *memory = malloc(bytes);
	ck_assert_ptr_nonnull(memory);
	for (size_t i = 0; i < bytes; i++) {
		seed = seed * 1664525u + 1013904223u;
		memory[i] = (uint8_t)(seed >> 24);
	}
	return memory;
}

static void wait_for(struct cuda_queue *queue)
{
	uint64_t mark, end_ns = clock_ns() + WAIT_NS;
	ck_assert_int_eq(cuda_queue_mark(queue, &mark), 0);
	int passed = 0;
	while ((passed = cuda_queue_passed(queue, mark)) == 0)
		ck_assert_msg(clock_ns() < end_ns, "the GPU takes more than 20 s");
	ck_assert_msg(passed == 1, "%s", queue->error.text);
}

START_TEST(new_memory_is_zero_and_known_for_what_it_is)
{
	struct ws_memory memory = gpu_memory(100000);
	uint8_t *host = noise(memory.bytes, 1);
	gpu_get(host, memory.base, memory.bytes);
	for (size_t i = 0; i < memory.bytes; i++)
		ck_assert_uint_eq(host[i], 0);
	struct cuda_range range = cuda_range_of((uint8_t *)memory.base + 5000);
	ck_assert_int_eq(range.kind, CUDA_PLAIN);
	ck_assert_int_eq(range.device, 0);
	ck_assert_ptr_eq(range.base, memory.base);
	ck_assert_uint_ge(range.bytes, 100000);
	ck_assert_int_eq(cuda_range_of(host).kind, CUDA_UNKNOWN);
	ws_memory_free(&memory);
	ck_assert_int_eq(cuda_range_of((void *)(uintptr_t)4096).kind, CUDA_UNKNOWN);
	free(host);
}
END_TEST

START_TEST(a_gpu_that_is_not_there_is_an_error_that_names_it)
{
	struct ws_memory memory = {.place = WS_CUDA, .device = 99};
	ck_fails(ws_memory_alloc(&memory, 4096, &error), -ENODEV, error);
	ck_assert_ptr_nonnull(strstr(error.text, "GPU 99"));
	memory.device = 0;
	ck_fails(ws_memory_alloc(&memory, (size_t)1 << 50, &error), -ENOMEM, error);
	/* What failed isn't left for the next call. */
	ck_ok(ws_memory_alloc(&memory, 4096, &error), error);
	ws_memory_free(&memory);
}
END_TEST

/* Hundreds of copies at random offsets and lengths: what isn't copied to stays as it was. */
START_TEST(every_byte_of_many_copies_lands)
{
	enum { BYTES = 24 << 20, COPIES = 300, ROOM = BYTES / COPIES };
	struct ws_memory from = gpu_memory(BYTES), to = gpu_memory(BYTES);
	uint8_t *source = noise(BYTES, (uint32_t)_i + 1), *want = noise(BYTES, (uint32_t)_i + 77);
	uint8_t *got = malloc(BYTES);
	static struct cuda_copy copies[COPIES];
	struct cuda_queue queue;

	ck_ok(cuda_queue_open(&queue, 0, &error), error);
	gpu_put(from.base, source, BYTES);
	gpu_put(to.base, want, BYTES);
	srand((unsigned)_i);
	for (uint32_t i = 0; i < COPIES; i++) {
		size_t lead = (size_t)rand() % 40, at = (size_t)i * ROOM + lead;
		size_t bytes =
			rand() % 4 == 0 ? (size_t)rand() % 20 : (size_t)rand() % (ROOM - lead);
		size_t source_at = (size_t)rand() % (BYTES - bytes);
		copies[i] = (struct cuda_copy){.to = (uint8_t *)to.base + at,
					       .from = (uint8_t *)from.base + source_at,
					       .bytes = bytes};
		memcpy(want + at, source + source_at, bytes);
	}
	ck_assert_int_eq(cuda_queue_copy(&queue, copies, COPIES), 0);
	wait_for(&queue);
	gpu_get(got, to.base, BYTES);
	ck_assert_int_eq(memcmp(got, want, BYTES), 0);
	cuda_queue_close(&queue);
	ws_memory_free(&from);
	ws_memory_free(&to);
	free(source);
	free(want);
	free(got);
}
END_TEST

/* In pieces; with a pageable one behind them, and between them. */
START_TEST(host_memory_is_copied_however_it_was_page_locked)
{
	enum { PARTS = 3, PART_BYTES = 1 << 20, BYTES = PARTS * PART_BYTES, SKEW = 100 };
	const uint32_t pageable = PARTS - (uint32_t)_i;
	uint8_t *memory = aligned_alloc(4096, BYTES), *got = malloc(BYTES);
	struct ws_memory to = gpu_memory(BYTES);
	const struct cuda_copy copy = {
		.to = to.base, .from = memory + SKEW, .bytes = BYTES - SKEW, .is_far = true};
	struct cuda_queue queue;

	ck_assert(memory != NULL && got != NULL);
	ck_ok(cuda_use(0, &error), error);
	for (size_t i = 0; i < BYTES; i++)
		memory[i] = (uint8_t)mix64(i);
	for (uint32_t i = 0; i < PARTS; i++)
		if (i != pageable)
			ck_ok(cuda_pin(memory + i * PART_BYTES, PART_BYTES, &error), error);
	ck_ok(cuda_queue_open(&queue, 0, &error), error);
	ck_assert_msg(cuda_queue_copy_host(&queue, &copy) == 0, "%s", queue.error.text);
	wait_for(&queue);
	ck_ok(memory_read(&to, 0, got, copy.bytes, &error), error);
	ck_assert_int_eq(memcmp(got, copy.from, copy.bytes), 0);
	cuda_queue_close(&queue);
	for (uint32_t i = 0; i < PARTS; i++)
		if (i != pageable)
			cuda_unpin(memory + i * PART_BYTES);
	ws_memory_free(&to);
	free(memory);
	free(got);
}
END_TEST

START_TEST(marks_pass_in_order_and_run_out_with_eagain)
{
	enum { MARKS = CUDA_MARKS_MAX, BYTES = 64 << 20 };
	struct ws_memory from = gpu_memory(BYTES), to = gpu_memory(BYTES);
	const struct cuda_copy copy = {.to = to.base, .from = from.base, .bytes = BYTES};
	struct cuda_queue queue;
	uint64_t marks[MARKS], one_more;

	ck_ok(cuda_queue_open(&queue, 0, &error), error);
	for (uint32_t turn = 0; turn < 3; turn++) {
		uint64_t end_ns = clock_ns() + WAIT_NS;
		for (uint32_t i = 0; i < MARKS; i++) {
			ck_assert_int_eq(cuda_queue_copy(&queue, &copy, 1), 0);
			ck_assert_int_eq(cuda_queue_mark(&queue, &marks[i]), 0);
		}
		int rc = cuda_queue_mark(&queue, &one_more);
		ck_assert(rc == -EAGAIN || rc == 0);
		while (cuda_queue_passed(&queue, marks[MARKS - 1]) == 0)
			ck_assert(clock_ns() < end_ns);
		for (uint32_t i = 0; i < MARKS; i++)
			ck_assert_int_eq(cuda_queue_passed(&queue, marks[i]), 1);
		wait_for(&queue);
	}
	cuda_queue_close(&queue);
	ws_memory_free(&from);
	ws_memory_free(&to);
}
END_TEST

/* A copy from where nothing is: the queue says so, and for ever. */
START_TEST(a_fault_of_the_gpu_is_an_error_and_stays_one)
{
	struct ws_memory to = gpu_memory(4096);
	const struct cuda_copy bad = {
		.to = to.base, .from = (const void *)(uintptr_t)4096, .bytes = 4096};
	struct cuda_queue queue;
	uint64_t mark = 0, end_ns = clock_ns() + WAIT_NS;
	int passed = 0;

	ck_ok(cuda_queue_open(&queue, 0, &error), error);
	ck_assert_int_eq(cuda_queue_copy(&queue, &bad, 1), 0);
	ck_assert_int_eq(cuda_queue_mark(&queue, &mark), 0);
	while ((passed = cuda_queue_passed(&queue, mark)) == 0)
		ck_assert(clock_ns() < end_ns);
	ck_assert_int_eq(passed, -EIO);
	ck_assert_ptr_nonnull(strstr(queue.error.text, "illegal"));
	ck_assert_int_eq(cuda_queue_copy(&queue, &bad, 1), -EIO);
	cuda_queue_close(&queue);
}
END_TEST

/* ---------------------------------------------------------------- two processes */

struct told {
	struct cuda_share share;
	uint32_t seed;
};

static void whole_write(int fd, const void *bytes, size_t count)
{
	ck_assert_int_eq(write(fd, bytes, count), (ssize_t)count);
}

/* The child owns the memory; it waits until I have written, and exits 0 if all is there. */
static void owner(int to_parent, int from_parent)
{
	enum { BYTES = 3 << 20 };
	struct ws_memory memory = {.place = WS_CUDA}, part;
	struct ws_error failure;
	struct told told = {.seed = 9};
	char done;

	if (ws_memory_alloc(&memory, BYTES, &failure) != 0)
		_exit(2);
	part = memory;
	part.base = (uint8_t *)memory.base + 4096;
	part.bytes = BYTES - 4096;
	if (cuda_share_make(&part, &told.share, &failure) != 0)
		_exit(3);
	if (write(to_parent, &told, sizeof(told)) != (ssize_t)sizeof(told) ||
	    read(from_parent, &done, 1) != 1)
		_exit(4);
	uint8_t *got = malloc(BYTES), *want = noise(BYTES - 4096, told.seed);
	if (cuda_copy(got, memory.base, BYTES, NULL, &failure) != 0 ||
	    cuda_stream_wait(NULL, &failure) != 0)
		_exit(5);
	for (size_t i = 0; i < 4096; i++)
		if (got[i] != 0)
			_exit(6);
	_exit(memcmp(got + 4096, want, BYTES - 4096) == 0 ? 0 : 7);
}

START_TEST(another_process_writes_into_shared_memory)
{
	int up[2], down[2], status;
	struct told told;
	void *base;

	ck_assert_int_eq(pipe(up), 0);
	ck_assert_int_eq(pipe(down), 0);
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0)
		owner(up[1], down[0]);
	ck_assert_int_eq(read(up[0], &told, sizeof(told)), (ssize_t)sizeof(told));
	ck_ok(cuda_share_open(&told.share, 0, &base, &error), error);
	uint8_t *bytes = noise(told.share.bytes, told.seed);
	gpu_put(base, bytes, told.share.bytes);
	cuda_share_close(&told.share, 0, base);
	whole_write(down[1], "", 1);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the owner ended with %x",
		      (unsigned)status);
	/* The owner is gone, and its memory with it. */
	ck_assert_int_ne(cuda_share_open(&told.share, 0, &base, &error), 0);
	free(bytes);
}
END_TEST

START_TEST(what_cannot_be_shared_is_named)
{
	struct ws_memory memory = gpu_memory(8192), wrong = memory;
	struct cuda_share share;
	void *base;

	wrong.bytes = (size_t)1 << 40;
	ck_fails(cuda_share_make(&wrong, &share, &error), -EINVAL, error);
	wrong = (struct ws_memory){.base = &share, .bytes = 8, .place = WS_CUDA};
	ck_fails(cuda_share_make(&wrong, &share, &error), -EINVAL, error);
	ck_assert_ptr_nonnull(strstr(error.text, "pageable host memory"));
	ck_ok(cuda_share_make(&memory, &share, &error), error);
	ck_assert_int_ne(cuda_share_open(&share, 0, &base, &error), 0);
	ws_memory_free(&memory);
	/* It is the GPU's, and can be read from, over all its pieces. */
	ck_ok(cuda_use(0, &error), error);
	memory.base = gpu_pieces_make(0, memory.bytes = 3 * PIECE_BYTES);
	ck_assert_int_eq(cuda_range_of(memory.base).kind, CUDA_VMM);
	ck_fails(cuda_share_make(&memory, &share, &error), -ENOTSUP, error);
	ck_assert_ptr_nonnull(strstr(error.text, "mapped piece by piece"));
	ck_ok(cuda_memory_check(&memory, &error), error);
	memory.bytes += 1;
	ck_fails(cuda_memory_check(&memory, &error), -EINVAL, error);
	wrong = (struct ws_memory){.base = &share, .bytes = 8, .place = WS_CUDA};
	ck_fails(cuda_memory_check(&wrong, &error), -EINVAL, error);
}
END_TEST

/* As lib/engine uses it: what a GPU asks for, it can do. */
START_TEST(what_nics_wrote_is_ordered_or_can_be_flushed)
{
	struct ws_error err;
	bool wanted = false;
	int rc = cuda_flush_wanted(0, &wanted, &err);

	ck_assert_msg(rc == 0 || rc == -ENOTSUP, "%s", err.text);
	if (rc == 0 && wanted)
		ck_ok(cuda_flush(0, &err), err);
}
END_TEST

Suite *suite(void)
{
	if (!gpus_are_there(1))
		return NULL;
	Suite *s = suite_create("gpu_memory");
	TCase *tc = tcase_create("gpu"), *faults = tcase_create("faults");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, new_memory_is_zero_and_known_for_what_it_is);
	tcase_add_test(tc, a_gpu_that_is_not_there_is_an_error_that_names_it);
	tcase_add_loop_test(tc, every_byte_of_many_copies_lands, 0, 4);
	tcase_add_loop_test(tc, host_memory_is_copied_however_it_was_page_locked, 0, 3);
	tcase_add_test(tc, marks_pass_in_order_and_run_out_with_eagain);
	tcase_add_test(tc, another_process_writes_into_shared_memory);
	tcase_add_test(tc, what_cannot_be_shared_is_named);
	tcase_add_test(tc, what_nics_wrote_is_ordered_or_can_be_flushed);
	suite_add_tcase(s, tc);
	/* On its own, for compute-sanitizer to leave out. */
	tcase_set_tags(faults, "fault");
	tcase_set_timeout(faults, 120);
	tcase_add_test(faults, a_fault_of_the_gpu_is_an_error_and_stays_one);
	suite_add_tcase(s, faults);
	return s;
}
