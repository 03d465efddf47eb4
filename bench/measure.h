/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmarks: each compares the product with a baseline in one run, in turns, so that whatever
 * else the machine does hits both; what counts is the ratio of each turn.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdio.h>
#include <sys/types.h>

#include "lib/base/base.h"

#define BENCH_ROUNDS_MIN 7
#define BENCH_ROUNDS_MAX 1000

struct spread {
	double median, min, max;
};

/* Sorts values. */
struct spread spread_of(double *values, uint32_t count);
/* The value that this share (0 to 1) of count sorted ones doesn't exceed. */
double spread_quantile(const double *sorted, uint32_t count, double share);

/* Nanoseconds, medians; what counts is the spread of each turn's baseline by product. */
struct turns {
	double product_ns, baseline_ns;
	struct spread ratio;
};

/* rounds turns of the product and of its baseline; who goes first changes. */
int turns_play(uint32_t rounds,
	       int (*play)(void *arg, bool product, double *ns_out, struct ws_error *err),
	       void *arg, struct turns *turns_out, struct ws_error *err);

/* GPU memory, where *base_out is any pointer; the caller's, to be freed by cuda_free. */
int gpu_room(int device, uint64_t bytes, void *base_out, struct ws_error *err);

/* Waits for a child's end, and kills it when time is up; its status is waitpid's, or -1 where it
 * doesn't end even so. */
int child_reap(pid_t child, uint64_t until_ns);

struct bench_options {
	const char *transport;	 /* NULL: "fabric" */
	const char *provider;	 /* NULL: "tcp" */
	const char *const *nics; /* as run's --nics; none: what bench_transfer says */
	uint32_t nic_count;
	const char *what;     /* one kind of row; NULL: all */
	const char *memory;   /* NULL: "shared" */
	const char *listen;   /* "host:port": serve the receivers of another host's bench there */
	const char *peer;     /* "host:port": the receivers are there */
	uint64_t op_bytes;    /* 0: each row's own */
	uint32_t depth;	      /* ops in flight; 0: 16 */
	uint64_t total_bytes; /* moved by each side in each round, at most; 0: 1 GiB */
	uint32_t rounds;      /* 0: the default; else BENCH_ROUNDS_MIN to _MAX */
	uint32_t senders, receivers; /* of mesh; 0: 2.  Of overhead; 0: 1 and 1, then 4 and 4 */
	const char *gpu;	     /* of convert: on this GPU, by number; NULL: on a core */
	bool alone;		     /* without baselines */
	/* update: a built-in model (NULL: qwen3-30b-a3b), a scale-th of it (0: all), the rollout's
	 * scheme or NULL, the trainer's staging, and NCCL's library (NULL: the loader's) */
	const char *shape, *quant, *nccl;
	const char *manifests[2]; /* by enum side: files of one rank each, instead of a model */
	uint32_t scale;
	uint64_t staging_bytes;
	bool offload; /* update: the trainer's params lie in the host's memory */
	bool json;
	FILE *out;
};

/*
 * The engine over a transport against what bounds it: fabric against bare fi_writemsg of the same
 * provider, op size, depth and completion flags; ipc and loop against memcpy of the same bytes, ipc
 * beside libfabric's shm too; verbs, between two hosts, against ib_write_bw.  In turns.  Prints one
 * JSON object per row, or a table for people.  Without NICs named: fabric's tcp uses 127.0.0.1,
 * verbs every port that isn't skipped.  Forks: the caller has no other thread yet.  Blocks; every
 * wait in it has a deadline.
 */
int bench_transfer(const struct bench_options *options, struct ws_error *err);

/*
 * Planning: time and memory of whole plans and of one rank's part, from manifests' text to a
 * checked plan.  No baseline: what counts are the budgets of README.md and how cost grows.
 * Forks for each row; the caller has no other thread yet.
 */
int bench_plan(const struct bench_options *options, struct ws_error *err);

/*
 * Converting on one core, by every level that it has: the maxima of BF16 weights, their codes, both
 * (in two passes over all, and of whole blocks at once), a cast from F32 and the way back, against
 * memcpy of as many bytes as the weights have in BF16.  In turns.
 */
int bench_convert(const struct bench_options *options, struct ws_error *err);

/*
 * The same on a GPU (options->gpu): whole blocks at once, in two passes, and copies, of 18,432
 * experts in a batch and of one large tensor, against one copy within the GPU that reads and writes
 * as many bytes.  In turns; codes, maxima and copies are compared with the host's.
 */
int bench_convert_gpu(const struct bench_options *options, struct ws_error *err);

/*
 * Copies from GPU 0 to GPU 1 (within it, where there is one), and from page-locked memory: by a
 * call each, by a copy engine and by a kernel, in pieces and launches of many sizes, against one
 * copy of all.  In turns; every byte is compared.
 */
int bench_copies(const struct bench_options *options, struct ws_error *err);

/*
 * Whole updates of a model from one GPU to another (or to the same, where there is one), beside one
 * copy of as many bytes and NCCL's broadcasts.  Forks, before it opens CUDA.
 */
int bench_update(const struct bench_options *options, struct ws_error *err);

/*
 * Updates of a few bytes within this host: what an update costs besides them, by phase, against as
 * many bare TCP round trips as it needs.  In turns.  Forks; the caller has no other thread yet.
 */
int bench_overhead(const struct bench_options *options, struct ws_error *err);

#endif
