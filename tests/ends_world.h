/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sender and one receiver with two NICs each, and a program of one send, stepped by one thread.
 * Shared by engine_rails.c, engine_silent.c and engine_chains.c.
 */
#ifndef ENDS_WORLD_H
#define ENDS_WORLD_H

#include "lib/engine/engine_internal.h"

#define OP_BYTES  4096u
#define OPS	  2000u
#define BYTES	  ((uint64_t)OPS * OP_BYTES)
#define STEPS_MAX 400000
#define NICS_TWO  2

struct end {
	struct engine *engine;
	struct engine_peer *peer;
	struct ws_memory memory;
	uint32_t lost, failed, done;
	struct engine_event lost_event;
};

struct ends {
	struct end from, to;
	struct send send;
	struct receive receive;
	struct op_range range;
	uint64_t attempt;
};

void end_open(struct end *end, const struct device *devices, uint32_t count, uint32_t depth);
/* Also after a fence. */
void ends_connect(struct ends *ends);
void ends_open(struct ends *ends, const struct device *from, const struct device *to,
	       uint32_t depth);
void end_step(struct end *end);
/* With other bytes each time. */
void ends_arm(struct ends *ends);
/* True: all has landed.  False: a NIC was lost. */
bool ends_run(struct ends *ends);
/* An attempt whose bytes all arrive. */
void ends_update(struct ends *ends);
void ends_fence(struct ends *ends);
void ends_close(struct ends *ends);

/* engine_rails_text has these words. */
void end_says(const struct engine *engine, const char *says);
uint32_t nics_in_use(const struct engine *engine);
/* After a new wiring; and nothing is said of any NIC. */
void ends_run_on_both(struct ends *ends);

#endif
