/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process's (over `loop`: one thread's) part in a contest, told what to do over a channel:
 *
 *   o  setup                     opens memory and contenders; says a with an address per contender
 *                                and peer
 *   c  addresses of the peers    connects; says k
 *   t  contender                 arms it; says r
 *   g                            runs it; says d with the outcome
 *
 * The channel's end, or an error, is the worker's end.  Whoever speaks to a remote one speaks to a
 * listener first, which forks a worker per connection.
 */
#ifndef WORKER_H
#define WORKER_H

#include "bench/channel.h"
#include "bench/contest.h"

#define WORKER_MAGIC "weightsync bench " WS_VERSION

struct setup {
	char magic[32];
	uint32_t setup_bytes; /* of this struct: another build may have another */
	uint32_t index;
	bool receives;
	struct contest contest;
};

/* Addresses in a frame: for each contender, for each peer, a u32 length and as many bytes. */

/* Takes the fd; returns when the channel ends. */
void worker_run(int fd, const struct bench_nics *nics);

/* Serves workers at "host:port" to one client: returns when that client has gone, or has asked for
 * nothing for CHANNEL_WAIT_MS. */
int worker_listen(const char *where, const struct bench_nics *nics, struct ws_error *err);

#endif
