/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmarks: each compares the product with a baseline in one run, in turns, so that whatever
 * else the machine does hits both; what counts is the ratio of each turn.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdio.h>

#include "lib/base/base.h"

#define BENCH_ROUNDS_MIN 7
#define BENCH_ROUNDS_MAX 1000

struct spread {
	double median, min, max;
};

/* Sorts values. */
struct spread spread_of(double *values, uint32_t count);

struct bench_options {
	const char *transport; /* NULL: "fabric", the only one that has a baseline here */
	const char *provider;  /* NULL: "tcp" */
	const char *source;    /* NULL: "127.0.0.1"; address, interface or domain of the provider */
	uint64_t op_bytes;     /* 0: 1 MiB */
	uint32_t depth;	       /* ops in flight; 0: 16 */
	uint64_t total_bytes;  /* moved by each side in each round; 0: 1 GiB */
	uint32_t rounds;       /* 0: 7, which is also the least */
	bool json;
	FILE *out;
};

/*
 * The engine against bare fi_writemsg of the same provider, op size, depth and completion flags,
 * between two processes, in turns.  Prints one JSON object or a line for people.  Forks: the
 * caller has no other thread yet.  Blocks; every wait in it has a deadline.
 */
int bench_transfer(const struct bench_options *options, struct ws_error *err);

/*
 * Planning: time and memory of whole plans and of one rank's part, from manifests' text to a
 * checked plan.  No baseline: what counts are the budgets of README.md and how cost grows.
 * Forks for each row; the caller has no other thread yet.
 */
int bench_plan(const struct bench_options *options, struct ws_error *err);

#endif
