/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only door to malloc.  It counts what lives, can make the nth allocation fail, and
 * refuses to allocate in a thread that has forbidden it: the data path's promise, asserted.
 */
#include "lib/base/base.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t fail_countdown = -1; /* -1: none */
static _Atomic uint64_t live_count;
static _Atomic uint64_t alloc_count;
static _Thread_local uint32_t forbidden;

/* Counts one allocation; true when it is the one that a test wants to fail. */
static bool must_fail(void)
{
	assert(forbidden == 0);
	atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
	int64_t n = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
	while (n >= 0)
		if (atomic_compare_exchange_weak_explicit(
			    &fail_countdown, &n, n - 1, memory_order_relaxed, memory_order_relaxed))
			return n == 0;
	return false;
}

void *mem_alloc(size_t bytes)
{
	if (must_fail())
		return NULL;
	void *memory = calloc(1, MAX(bytes, 1));
	if (memory != NULL)
		atomic_fetch_add_explicit(&live_count, 1, memory_order_relaxed);
	return memory;
}

void *mem_grow(void *old, size_t old_bytes, size_t new_bytes)
{
	if (old == NULL)
		return mem_alloc(new_bytes);
	if (must_fail())
		return NULL;
	uint8_t *memory = realloc(old, MAX(new_bytes, 1));
	if (memory != NULL && new_bytes > old_bytes)
		memset(memory + old_bytes, 0, new_bytes - old_bytes);
	return memory;
}

void mem_free(void *memory)
{
	if (memory == NULL)
		return;
	atomic_fetch_sub_explicit(&live_count, 1, memory_order_relaxed);
	free(memory);
}

char *mem_copy_text(const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *copy = mem_alloc(bytes);
	if (copy != NULL)
		memcpy(copy, text, bytes);
	return copy;
}

void mem_fail_nth(int64_t n)
{
	atomic_store(&fail_countdown, n < 0 ? -1 : n);
}

uint64_t mem_live_count(void)
{
	return atomic_load(&live_count);
}

uint64_t mem_alloc_count(void)
{
	return atomic_load(&alloc_count);
}

void mem_forbid(void)
{
	forbidden++;
}

void mem_allow(void)
{
	assert(forbidden > 0);
	forbidden--;
}
