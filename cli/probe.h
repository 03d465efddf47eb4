/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pairwise probe: every rank writes to every other over every rail that joins them.  It looks
 * at content and immediates, latency and bandwidth one pair at a time, then all at once, then all
 * into one.  Every rank runs it, and every rank comes to the same results.
 */
#ifndef PROBE_H
#define PROBE_H

#include "cli/doctor.h"
#include "cli/meeting.h"

#define PROBE_RANKS_MAX MEETING_RANKS_MAX

struct probe_options {
	const struct launch *launch;
	const struct devices *devices;
	const char *hub, *key_file; /* NULL: ranks of one host */
	uint32_t start_ms, step_ms;
};

struct probe;

/* What it finds goes to doctor, with the findings of all ranks; NULL when out of memory.  Blocks;
 * every wait has a deadline. */
struct probe *probe_run(struct doctor *doctor, const struct probe_options *options);
void probe_free(struct probe *probe); /* NULL too */
/* Whether rank 0 knows what this rank knows, so that it alone has to tell. */
bool probe_has_met(const struct probe *probe);
uint32_t probe_world(const struct probe *probe);
void probe_put_table(const struct probe *probe, struct writer *out);
void probe_put_json(const struct probe *probe, struct writer *out);

#endif
