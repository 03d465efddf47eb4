/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to transfer*.c: transfer.c chooses NICs and rows, transfer_run.c plays one contest among
 * its workers, transfer_report.c says what came out.
 */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "bench/contest.h"
#include "bench/measure.h"

/* Of one contender, per round. */
struct rounds {
	double gbytes[BENCH_ROUNDS_MAX]; /* GB/s */
	double p50_us[BENCH_ROUNDS_MAX], p99_us[BENCH_ROUNDS_MAX];
};

struct score {
	const struct contest *contest;
	uint32_t round_count;
	struct rounds rounds[CONTENDERS_MAX];
	uint64_t nic_bytes[NICS_MAX]; /* of the product, all rounds and senders */
	uint32_t page_bytes;	      /* of the first sender's memory */
};

/* Plays round_count rounds and one more, first, that isn't counted.  peer is where the receivers
 * are ("host:port"), or NULL. */
int transfer_run(const struct contest *contest, const struct bench_nics *nics, const char *peer,
		 struct score *score, struct ws_error *err);

/* The table's head; a row of it, or of JSON. */
void transfer_head(const struct bench_options *options, const struct bench_nics *nics,
		   struct writer *out);
void transfer_report(const struct bench_options *options, const struct bench_nics *nics,
		     struct score *score, struct writer *out);

#endif
