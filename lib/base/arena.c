/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas: a chain of blocks from mem_alloc, handed out front to back and freed as one.
 * Blocks double up to a limit, so that a small arena stays small and a large one needs few.
 */
#include "lib/base/base.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define ARENA_ALIGN	16
#define BLOCK_BYTES_MIN 1024
#define BLOCK_BYTES_MAX ((size_t)1 << 20)

struct arena_block {
	struct arena_block *next;
	size_t room, used;
	_Alignas(ARENA_ALIGN) uint8_t bytes[];
};

static void *take(struct arena *arena, struct arena_block *block, size_t bytes)
{
	void *memory = block->bytes + block->used;
	block->used += bytes;
	arena->used += bytes;
	return memory;
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
	struct arena_block *newest = arena->blocks;
	if (bytes > SIZE_MAX / 2)
		return NULL;
	bytes = align_up(MAX(bytes, 1), ARENA_ALIGN);
	if (newest != NULL && bytes <= newest->room - newest->used)
		return take(arena, newest, bytes);
	size_t room = BLOCK_BYTES_MIN;
	if (newest != NULL)
		room = MIN(newest->room * 2, BLOCK_BYTES_MAX);
	bool alone = bytes > room / 4;
	if (alone)
		room = newest == NULL ? MAX(bytes, room) : bytes;
	struct arena_block *block = mem_alloc(sizeof(*block) + room);
	if (block == NULL)
		return NULL;
	block->room = room;
	if (alone && newest != NULL) {
		/* A large piece has a block of its own, behind the newest, which still has room. */
		block->next = newest->next;
		newest->next = block;
	} else {
		block->next = newest;
		arena->blocks = block;
	}
	return take(arena, block, bytes);
}

void *arena_array(struct arena *arena, size_t count, size_t bytes_each)
{
	size_t bytes = 0;
	if (__builtin_mul_overflow(count, bytes_each, &bytes))
		return NULL;
	return arena_alloc(arena, bytes);
}

char *arena_text(struct arena *arena, const char *format, ...)
{
	va_list args, again;
	va_start(args, format);
	va_copy(again, args);
	int count = vsnprintf(NULL, 0, format, args);
	va_end(args);
	char *text = count < 0 ? NULL : arena_alloc(arena, (size_t)count + 1);
	if (text != NULL)
		vsnprintf(text, (size_t)count + 1, format, again);
	va_end(again);
	return text;
}

char *arena_copy(struct arena *arena, const void *bytes, size_t count)
{
	if (count == SIZE_MAX)
		return NULL;
	char *copy = arena_alloc(arena, count + 1);
	if (copy != NULL && count > 0)
		memcpy(copy, bytes, count);
	return copy;
}

void arena_release(struct arena *arena)
{
	struct arena_block *block = arena->blocks;
	while (block != NULL) {
		struct arena_block *next = block->next;
		mem_free(block);
		block = next;
	}
	*arena = (struct arena){0};
}
