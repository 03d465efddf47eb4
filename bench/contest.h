/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `bench transfer` lets contend: the same bytes, cut the same way, from the same senders to
 * the same receivers, by the product and by what it is measured against.
 *
 *   contend_engine.c    the product: lib/engine over any transport
 *   contend_fabric.c    fi_writemsg in a loop and nothing else
 *   contend_memcpy.c    each sender copies its bytes inside its own memory
 *   contend_perftest.c  ib_write_bw or ib_write_lat, as programs
 *
 * A contender has an end in each process (worker.c), all ends of one contender move at a time.
 */
#ifndef CONTEST_H
#define CONTEST_H

#include "bench/window.h"
#include "lib/base/base.h"
#include "lib/transport/transport.h"

#define CONTENDERS_MAX	   4
#define CONTENDER_NAME_MAX 24
#define WORKERS_MAX	   64	       /* senders, and receivers */
#define WINDOW_BYTES	   (64u << 20) /* memory at each end; the ops go around it */
#define RUN_MS_MAX	   60000

/* Of one host; the other end of a contest may have others. */
struct bench_nics {
	char transport[16], provider[64];
	char names[NICS_MAX][NIC_NAME_MAX]; /* whole devices */
	uint32_t count;
};

/* One row of the report.  Goes to every worker as it is: all are of the same version. */
struct contest {
	char what[16]; /* "stream" */
	char contenders[CONTENDERS_MAX][CONTENDER_NAME_MAX];
	uint32_t contender_count;
	uint32_t senders, receivers;
	bool latency; /* one op in flight, there and back, between one sender and one receiver */
	uint64_t op_bytes;
	uint32_t op_count; /* from each sender to each receiver */
	uint32_t depth;	   /* ops in flight */
	enum bench_memory memory;
	char host[64];		/* of the receivers, where it is another; else empty */
	struct bench_nics nics; /* of the senders */
};

/* One process's part in a contest. */
struct end {
	const struct contest *contest; /* borrowed, as the next two */
	const struct bench_nics *nics;
	uint32_t index; /* among the senders, or the receivers */
	bool receives;
	struct ws_memory memory; /* owned by the worker */
	uint32_t page_bytes;	 /* what the kernel gave for it */
};

static inline uint32_t end_peer_count(const struct end *end)
{
	return end->receives ? end->contest->senders : end->contest->receivers;
}

/* Where op i of this sender is read, and where it lands at any receiver: every sender goes around
 * a part of its own of the receiver's window. */
static inline uint64_t contest_window(const struct contest *contest)
{
	uint64_t ops = MIN(WINDOW_BYTES / contest->op_bytes, contest->op_count);
	return contest->op_bytes * MAX(ops, 2 * contest->senders);
}

static inline uint64_t contest_local(const struct contest *contest, uint64_t i)
{
	return i % (contest_window(contest) / contest->op_bytes) * contest->op_bytes;
}

static inline uint64_t contest_remote(const struct contest *contest, uint32_t sender, uint64_t i)
{
	uint64_t each = contest_window(contest) / contest->op_bytes / contest->senders;
	return (sender * each + i % each) * contest->op_bytes;
}

static inline uint64_t contest_bytes(const struct contest *contest)
{
	return (uint64_t)contest->senders * contest->receivers * contest->op_count *
	       contest->op_bytes;
}

/* Of one end and turn. */
struct outcome {
	uint64_t ns;		  /* by a clock of its own; 0: the whole turn's counts */
	double p50_us, p99_us;	  /* latency: half of there and back */
	uint64_t bytes[NICS_MAX]; /* by NIC, as far as it knows */
	uint32_t nic_count;
	uint32_t page_bytes;
};

struct contender {
	/* State is NULL or half made on failure; close takes both. */
	int (*open)(void **state_out, const struct end *end, struct ws_error *err);
	void (*close)(void *state);
	/* My half of the connection to this peer, and its half.  NULL, as arm may be: nothing to
	 * do. */
	int (*address)(void *state, uint32_t peer, struct writer *out, struct ws_error *err);
	int (*connect)(void *state, uint32_t peer, const void *bytes, size_t count,
		       struct ws_error *err);
	/* Afterwards the other ends may begin. */
	int (*arm)(void *state, struct ws_error *err);
	/* All ends are armed.  A sender returns when its ops have ended, a receiver when all have
	 * come. */
	int (*run)(void *state, struct outcome *outcome, struct ws_error *err);
};

/* Sorts samples, microseconds of half a round each.  worker.c */
void outcome_latency(struct outcome *outcome, double *samples, uint32_t count);

/* By name; NULL if there is none. */
const struct contender *contender_find(const char *name);

extern const struct contender contender_engine, contender_fabric, contender_memcpy,
	contender_perftest;

#endif
