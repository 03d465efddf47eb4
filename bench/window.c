/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for benchmarks, and the kernel's word on its pages. */
#include "bench/window.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((size_t)2 << 20)

static const char *const names[] = {
	[MEMORY_SHARED] = "shared", [MEMORY_4K] = "4k", [MEMORY_2M] = "2m"};

const char *bench_memory_name(enum bench_memory kind)
{
	return names[kind];
}

int bench_memory_parse(const char *name, enum bench_memory *kind_out, struct ws_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strcmp(names[i], name) == 0) {
			*kind_out = (enum bench_memory)i;
			return 0;
		}
	return ws_fail(err, -EINVAL,
		       "no memory is of the kind '%s'; choose shared (a memfd), 4k or 2m", name);
}

/* Begins at a huge page, so that all of it can be such. */
static int pages_alloc(struct ws_memory *memory, size_t bytes, int advice, struct ws_error *err)
{
	size_t whole = align_up(bytes, HUGE_BYTES), room = whole + HUGE_BYTES;
	uint8_t *all = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		return ws_fail(err, -ENOMEM, "cannot map %zu bytes: %s", room, strerror(errno));
	uint8_t *base = (uint8_t *)align_up((uintptr_t)all, HUGE_BYTES);
	size_t before = (size_t)(base - all), behind = room - before - whole;
	if (before > 0)
		munmap(all, before);
	if (behind > 0)
		munmap(base + whole, behind);
	/* A wish: what came is read from smaps. */
	madvise(base, whole, advice);
	memory->base = base;
	memory->bytes = bytes;
	return 0;
}

int bench_memory_alloc(struct ws_memory *memory, size_t bytes, enum bench_memory kind,
		       struct ws_error *err)
{
	int rc = 0;
	*memory = (struct ws_memory){.place = WS_HOST};
	switch (kind) {
	case MEMORY_SHARED:
		rc = ws_memory_alloc(memory, bytes, err);
		break;
	case MEMORY_4K:
		rc = pages_alloc(memory, bytes, MADV_NOHUGEPAGE, err);
		break;
	case MEMORY_2M:
		rc = pages_alloc(memory, bytes, MADV_HUGEPAGE, err);
		break;
	}
	if (rc == 0)
		memset(memory->base, 1, memory->bytes);
	return rc;
}

void bench_memory_free(struct ws_memory *memory, enum bench_memory kind)
{
	if (kind == MEMORY_SHARED)
		ws_memory_free(memory);
	else if (memory->base != NULL)
		munmap(memory->base, align_up(memory->bytes, HUGE_BYTES));
	*memory = (struct ws_memory){0};
}

uint32_t bench_memory_page_bytes(const struct ws_memory *memory)
{
	char line[256], kind[32];
	unsigned long from = 0, to = 0;
	uint64_t kib, huge_bytes = 0;
	uintptr_t base = (uintptr_t)memory->base;
	FILE *file = fopen("/proc/self/smaps", "re");
	/* Ends with the file. */
	while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			continue;
		if (sscanf(line, "%31[A-Za-z]: %lu kB", kind, &kib) == 2 && from <= base &&
		    base < to &&
		    (strcmp(kind, "AnonHugePages") == 0 || strcmp(kind, "ShmemPmdMapped") == 0))
			huge_bytes += kib << 10;
	}
	if (file != NULL)
		fclose(file);
	return huge_bytes > memory->bytes / 2 ? (uint32_t)HUGE_BYTES
					      : (uint32_t)sysconf(_SC_PAGESIZE);
}
