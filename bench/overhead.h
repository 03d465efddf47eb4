/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench overhead`: what an update costs besides its bytes.
 *
 *   overhead.c         the rows, the turns and the report
 *   overhead_member.c  one process each: a trainer or a rollout, and its end of the baseline
 *
 * A member is told what to do over a channel:
 *
 *   o  the hub's address   meets the others; says k once it is wired.  Trainer 0 runs the hub and
 *                          has said h with its address before
 *   u  version             a rollout says r and steps until it is live, a trainer pushes it; says
 *                          d, trainer 0 with struct overhead_times
 *   s                      plays its end of the star; says d, trainer 0 with nanoseconds
 *   q                      ends
 */
#ifndef OVERHEAD_H
#define OVERHEAD_H

#include "bench/channel.h"

#define OVERHEAD_MEMBERS_MAX 64
#define OVERHEAD_WAIT_MS     30000u
/* Between the hub and the others an update needs so many ways there and back: want and over,
 * BEGIN, the ready that is passed on, PAUSE, COMMIT, RESUME. */
#define OVERHEAD_STAR_TRIPS 6
#define OVERHEAD_STAR_BYTES 512 /* about a beat */

struct overhead_job {
	uint32_t trainers, rollouts; /* members: the trainers, then the ranks of one replica */
	bool inplace;
	char folder[64], key_path[96];
	int star[OVERHEAD_MEMBERS_MAX][2]; /* by member from 1 on: trainer 0's end of TCP, its own
					    */
};

/* Of one update, in seconds, as trainer 0 saw it. */
struct overhead_times {
	double begin, transfer, pause, reload, total;
};

/* The end of the process. */
_Noreturn void overhead_member(const struct overhead_job *job, uint32_t member, int fd);

#endif
