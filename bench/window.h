/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a benchmark moves, of the kind that is asked for, and in what pages it came. */
#ifndef WINDOW_H
#define WINDOW_H

#include "lib/base/base.h"

enum bench_memory {
	MEMORY_SHARED, /* ws_memory_alloc: a memfd that others can map */
	MEMORY_4K,     /* as the heap has it, in small pages */
	MEMORY_2M      /* as the heap has it, in huge pages as far as the kernel has some */
};

/* "shared", "4k", "2m". */
const char *bench_memory_name(enum bench_memory kind);
int bench_memory_parse(const char *name, enum bench_memory *kind_out, struct ws_error *err);

/* Every page of it has been written to. */
int bench_memory_alloc(struct ws_memory *memory, size_t bytes, enum bench_memory kind,
		       struct ws_error *err);
void bench_memory_free(struct ws_memory *memory, enum bench_memory kind);

/* 2 MiB where most of the memory is mapped so, else the machine's page. */
uint32_t bench_memory_page_bytes(const struct ws_memory *memory);

#endif
