/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to fault*.c: the rules by which a NIC misbehaves, and the draws they need.
 */
#ifndef FAULT_H
#define FAULT_H

#include "lib/base/base.h"

enum rule { DROP, DUP, FAIL, DELAY, LOST, STALE, CORRUPT, CUT, RULE_COUNT };

struct rules {
	uint64_t random; /* the generator's state */
	double chance[RULE_COUNT];
	uint64_t nth[RULE_COUNT]; /* counted from 1; 0: none */
	uint64_t op_count;	  /* ops decided so far */
	/* Of the NIC as a whole; ops and immediates are counted, from 1; 0: none. */
	uint64_t down_nth, down_polls, gone_nth;
};

/* The count bytes at text: "seed=3,drop=0.01,dup_nth=5", or nothing. */
int rules_parse(struct rules *rules, const char *text, size_t count, struct ws_error *err);
bool rules_have(const struct rules *rules, enum rule rule);
uint64_t rules_random(struct rules *rules);
bool rules_chance(struct rules *rules, enum rule rule); /* without its nth */
/* Draws what happens to the next op. */
void rules_decide(struct rules *rules, bool does_out[RULE_COUNT]);

#endif
