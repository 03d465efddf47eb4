/* SPDX-License-Identifier: Apache-2.0 */
/* The door to malloc, arenas, and the memory that weights live in. */
#include "lib/base/base.h"
#include "lib/cuda/cuda.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"

static bool is_zero(const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (bytes[i] != 0)
			return false;
	return true;
}

START_TEST(memory_is_zeroed_also_when_it_grows)
{
	uint8_t *bytes = mem_alloc(100);
	ck_assert(is_zero(bytes, 100));
	memset(bytes, 7, 100);
	bytes = mem_grow(bytes, 100, 100000);
	ck_assert(bytes[0] == 7 && bytes[99] == 7 && is_zero(bytes + 100, 99900));
	bytes = mem_grow(bytes, 100000, 10);
	ck_assert(bytes[9] == 7);
	ck_assert_uint_eq(mem_live_count(), 1);
	mem_free(bytes);
	mem_free(NULL);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(nothing_asked_gives_something_to_free)
{
	void *nothing = mem_alloc(0), *grown = mem_grow(NULL, 0, 0);
	ck_assert(nothing != NULL && grown != NULL && nothing != grown);
	mem_free(nothing);
	mem_free(grown);
	char *text = mem_copy_text("");
	ck_assert_str_eq(text, "");
	mem_free(text);
}
END_TEST

START_TEST(the_nth_allocation_fails_once)
{
	mem_fail_nth(_i);
	for (int i = 0; i < 5; i++) {
		void *memory = mem_alloc(8);
		ck_assert((memory == NULL) == (i == _i));
		mem_free(memory);
	}
	mem_fail_nth(0);
	mem_fail_nth(-1);
	void *memory = mem_alloc(8);
	ck_assert_ptr_nonnull(memory);
	mem_fail_nth(0);
	ck_assert_ptr_null(mem_grow(memory, 8, 16));
	memset(memory, 1, 8); /* the old one is still there */
	mem_free(memory);
}
END_TEST

static void *allocate_1000(void *failed)
{
	for (int i = 0; i < 1000; i++) {
		void *memory = mem_alloc(8);
		if (memory == NULL)
			(*(int *)failed)++;
		mem_free(memory);
	}
	return NULL;
}

START_TEST(among_threads_exactly_one_allocation_fails)
{
	pthread_t threads[4];
	int failed[4] = {0};
	uint64_t before = mem_alloc_count();
	mem_fail_nth(1500);
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, allocate_1000, &failed[i]), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ck_assert_int_eq(failed[0] + failed[1] + failed[2] + failed[3], 1);
	ck_assert_uint_eq(mem_alloc_count() - before, 4000);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(a_thread_that_forbade_it_cannot_allocate)
{
	fclose(stderr); /* the assertion's own sentence is expected here */
	mem_forbid();
	if (_i == 0)
		mem_alloc(1);
	else
		mem_grow(NULL, 0, 1);
}
END_TEST

START_TEST(only_that_thread_and_only_until_it_allows)
{
	pthread_t thread;
	int failed = 0;
	void *memory = mem_alloc(1);
	mem_forbid();
	mem_forbid();
	mem_free(memory); /* to free is no allocation */
	ck_assert_int_eq(pthread_create(&thread, NULL, allocate_1000, &failed), 0);
	pthread_join(thread, NULL);
	mem_allow();
	mem_allow();
	mem_free(mem_alloc(1));
	ck_assert_int_eq(failed, 0);
}
END_TEST

START_TEST(arena_pieces_are_zeroed_aligned_and_apart)
{
	struct arena arena = {0};
	uint8_t *pieces[2000];
	size_t counts[2000];
	uint64_t x = (uint64_t)_i;
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
		x = mix64(x + i + 1);
		counts[i] = x % 50 == 0 ? x % 100000 : x % 300;
		pieces[i] = arena_alloc(&arena, counts[i]);
		ck_assert_ptr_nonnull(pieces[i]);
		ck_assert_uint_eq((uintptr_t)pieces[i] % 16, 0);
		ck_assert(is_zero(pieces[i], counts[i]));
		memset(pieces[i], (int)(i % 255 + 1), counts[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++)
		for (size_t j = 0; j < counts[i]; j++)
			if (pieces[i][j] != i % 255 + 1)
				ck_abort_msg("piece %zu is torn at %zu", i, j);
	ck_assert_uint_lt(mem_live_count(), 300);
	arena_release(&arena);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(an_arena_refuses_what_overflows)
{
	struct arena arena = {0};
	ck_assert_ptr_null(arena_array(&arena, SIZE_MAX / 2, 3));
	ck_assert_ptr_null(arena_array(&arena, SIZE_MAX, SIZE_MAX));
	ck_assert_ptr_null(arena_alloc(&arena, SIZE_MAX));
	ck_assert_ptr_null(arena_copy(&arena, "", SIZE_MAX));
	ck_assert_ptr_nonnull(arena_array(&arena, 0, 8));
	mem_fail_nth(0);
	ck_assert_ptr_null(arena_alloc(&arena, 1000000));
	ck_assert_ptr_nonnull(arena_alloc(&arena, 1000000));
	arena_release(&arena);
}
END_TEST

START_TEST(arena_texts_end_with_NUL)
{
	struct arena arena = {0};
	ck_assert_str_eq(arena_text(&arena, "%s-%d", "tensor", 17), "tensor-17");
	char *copy = arena_copy(&arena, "abcdef", 3);
	ck_assert_str_eq(copy, "abc");
	ck_assert_str_eq(arena_copy(&arena, NULL, 0), "");
	char *text = arena_text(&arena, "%05000d", 1);
	ck_assert_uint_eq(strlen(text), 5000);
	arena_release(&arena);
}
END_TEST

START_TEST(host_memory_is_zeroed_and_whole_pages)
{
	static const size_t asked[] = {0, 1, 4096, 4097, (5u << 20) + 1};
	struct ws_memory memory = {0};
	struct ws_error err = {0};
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	ck_ok(ws_memory_alloc(&memory, asked[_i], &err), err);
	ck_assert_uint_ge(memory.bytes, MAX(asked[_i], 1));
	ck_assert_uint_lt(memory.bytes, asked[_i] + page_bytes + (asked[_i] == 0));
	ck_assert_uint_eq(memory.bytes % page_bytes, 0);
	ck_assert(is_zero(memory.base, memory.bytes));
	memset(memory.base, 1, memory.bytes);
	ws_memory_free(&memory);
	ck_assert(memory.base == NULL && memory.bytes == 0);
	ws_memory_free(&memory);
	ws_memory_free(NULL);
}
END_TEST

START_TEST(host_memory_is_shared_with_a_child)
{
	struct ws_memory memory = {0};
	struct ws_error err = {0};
	ck_ok(ws_memory_alloc(&memory, 4096, &err), err);
	volatile uint8_t *bytes = memory.base;
	pid_t pid = fork();
	if (pid == 0) {
		bytes[5] = 99;
		_exit(0);
	}
	int status = -1;
	ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
	ck_assert_uint_eq(bytes[5], 99);
	ws_memory_free(&memory);
}
END_TEST

START_TEST(what_cannot_be_had_is_a_sentence)
{
	struct ws_memory memory = {.place = WS_CUDA, .device = 999};
	struct ws_error err = {0};
	int code = cuda_built_in() ? -ENODEV : -ENOTSUP;
	ck_fails(ws_memory_alloc(&memory, 4096, &err), code, err);
	ck_assert_ptr_nonnull(strstr(err.text, "GPU 999"));
	ck_assert(cuda_built_in() || strstr(err.text, "not built in") != NULL);
	ck_assert_ptr_null(memory.base);
	memory = (struct ws_memory){0};
	ck_fails(ws_memory_alloc(&memory, SIZE_MAX, &err), -ENOMEM, err);
	ck_fails(ws_memory_alloc(&memory, (size_t)1 << 60, &err), -ENOMEM, err);
	ck_assert_ptr_null(memory.base);
}
END_TEST

START_TEST(the_first_so_many_allocations_are_found_by_their_addresses)
{
	static struct ws_memory memories[MEMORY_FILED_MAX + 1];
	struct memory_files files;
	struct ws_error err;

	for (uint32_t i = 0; i <= MEMORY_FILED_MAX; i++) {
		ck_ok(ws_memory_alloc(&memories[i], 8192, &err), err);
		bool kept = memory_files((uint8_t *)memories[i].base + 100, 8092, &files);
		ck_assert(kept == (i < MEMORY_FILED_MAX));
		if (!kept)
			continue;
		ck_assert_uint_eq(files.offset, 100);
		ck_assert_uint_eq(files.count, 1);
		ck_assert_uint_eq(files.files[0].bytes, 8192);
		ck_assert(!memory_files((uint8_t *)memories[i].base + 100, 8093, &files));
	}
	/* One that is freed makes room for the next. */
	ws_memory_free(&memories[7]);
	ck_ok(ws_memory_alloc(&memories[7], 1, &err), err);
	ck_assert(memory_files(memories[7].base, 1, &files));
	for (uint32_t i = 0; i <= MEMORY_FILED_MAX; i++)
		ws_memory_free(&memories[i]);
}
END_TEST

/* Without a GPU: what closes behind one asks no more than this. */
START_TEST(a_gpu_that_is_given_up_is_so_for_ever_and_no_other_is)
{
	struct ws_error err;

	ck_assert_uint_eq(cuda_stuck_ns(), CUDA_STUCK_MS * UINT64_C(1000000));
	ck_assert(!cuda_is_given_up(3) && !cuda_is_given_up(-1));
	cuda_stuck_after(250);
	ck_fails(cuda_stuck(3, &err), -ETIMEDOUT, err);
	ck_assert_ptr_nonnull(strstr(err.text, "GPU 3 hasn't done in 0.25 s"));
	ck_assert(cuda_is_given_up(3) && cuda_is_given_up(-1));
	ck_assert(!cuda_is_given_up(0) && !cuda_is_given_up(2));
	cuda_stuck(0, NULL);
	ck_assert(cuda_is_given_up(3) && cuda_is_given_up(0));
	/* Nothing of it is asked for or freed any more, and nothing is said twice. */
	struct ws_memory memory = {.place = WS_CUDA, .device = 3};
	int rc = ws_memory_alloc(&memory, 4096, &err);
	ck_assert_int_eq(rc, cuda_built_in() ? -ETIMEDOUT : -ENOTSUP);
	memory = (struct ws_memory){.base = &memory, .place = WS_CUDA, .device = 3};
	ws_memory_free(&memory);
	ck_assert_ptr_null(memory.base);
	cuda_share_close(&(struct cuda_share){0}, 3, &memory);
}
END_TEST

START_TEST(a_range_has_what_lies_inside_it_to_the_last_byte)
{
	static uint8_t memory[300];
	const struct cuda_range range = {.kind = CUDA_PINNED, .base = memory + 100, .bytes = 100};
	const struct cuda_range unknown = {.kind = CUDA_PINNED};

	ck_assert(cuda_range_has(&range, memory + 100, 100));
	ck_assert(cuda_range_has(&range, memory + 199, 1));
	ck_assert(!cuda_range_has(&range, memory + 199, 2));
	ck_assert(!cuda_range_has(&range, memory + 99, 1));
	ck_assert(!cuda_range_has(&range, memory + 201, 0));
	ck_assert(!cuda_range_has(&range, memory + 100, UINT64_MAX));
	ck_assert(!cuda_range_has(&unknown, memory, 1));
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("mem");
	TCase *tcase = tcase_create("mem");
	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, memory_is_zeroed_also_when_it_grows);
	tcase_add_test(tcase, nothing_asked_gives_something_to_free);
	tcase_add_loop_test(tcase, the_nth_allocation_fails_once, 0, 5);
	tcase_add_test(tcase, among_threads_exactly_one_allocation_fails);
	tcase_add_loop_test_raise_signal(tcase, a_thread_that_forbade_it_cannot_allocate, SIGABRT,
					 0, 2);
	tcase_add_test(tcase, only_that_thread_and_only_until_it_allows);
	tcase_add_loop_test(tcase, arena_pieces_are_zeroed_aligned_and_apart, 0, 5);
	tcase_add_test(tcase, an_arena_refuses_what_overflows);
	tcase_add_test(tcase, arena_texts_end_with_NUL);
	tcase_add_loop_test(tcase, host_memory_is_zeroed_and_whole_pages, 0, 5);
	tcase_add_test(tcase, host_memory_is_shared_with_a_child);
	tcase_add_test(tcase, what_cannot_be_had_is_a_sentence);
	tcase_add_test(tcase, the_first_so_many_allocations_are_found_by_their_addresses);
	tcase_add_test(tcase, a_gpu_that_is_given_up_is_so_for_ever_and_no_other_is);
	tcase_add_test(tcase, a_range_has_what_lies_inside_it_to_the_last_byte);
	suite_add_tcase(all, tcase);
	return all;
}
