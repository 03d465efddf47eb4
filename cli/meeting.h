/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that tell each other everything, round by round: each gives some bytes, and all get
 * everybody's.  A star over lib/link, rank 0 in its middle; a round is also a barrier.
 *
 * A frame may be lost when a connection resets: a member repeats its part until the round is
 * answered, and rank 0 answers the last round again.  A round that rank 0 gives up ends everywhere.
 */
#ifndef MEETING_H
#define MEETING_H

#include "cli/cli.h"

#define MEETING_RANKS_MAX 64

struct meeting;

/* hub and key_file NULL: in the job's folder, ranks of one host.  Blocks until until_ns at most,
 * and for a member not until rank 0 has answered: the first round does that. */
int meeting_open(struct meeting **meeting_out, const struct launch *launch, const char *hub,
		 const char *key_file, uint64_t until_ns, struct ws_error *err);
void meeting_close(struct meeting *meeting); /* NULL too */

/* parts_out[rank] reads what that rank gave; valid until the next round.  -ETIMEDOUT names who is
 * missing (rank 0) or that rank 0 is; -ECANCELED: rank 0 gave the round up, in its words; -EPROTO.
 */
int meeting_share(struct meeting *meeting, const struct writer *mine, struct reader *parts_out,
		  uint64_t until_ns, struct ws_error *err);

#endif
