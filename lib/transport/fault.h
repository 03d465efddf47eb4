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
	uint64_t down_nth, down_polls, gone_nth, silent_nth;
};

/* Whether the NIC, or its port, works. */
struct port {
	uint64_t traffic;    /* ops and immediates so far */
	uint64_t polls_left; /* until it is up again; 0: no such time */
	uint32_t mends_seen; /* when it went down, or silent */
	bool down, gone, silent, news;
};

/* One op or immediate more: does the port go down with it, or the NIC? */
void port_traffic(struct port *port, const struct rules *rules);
/* One poll more; true: it went down or up. */
bool port_poll(struct port *port, const struct rules *rules);
/* It is up, and nothing gets through. */
bool port_is_silent(const struct port *port);
/* A NIC of these rules is gone, and can't be opened yet. */
bool port_is_kept_away(const struct rules *rules);
/* The count bytes at text: "seed=3,drop=0.01,dup_nth=5", or nothing. */
int rules_parse(struct rules *rules, const char *text, size_t count, struct ws_error *err);
bool rules_have(const struct rules *rules, enum rule rule);
uint64_t rules_random(struct rules *rules);
bool rules_chance(struct rules *rules, enum rule rule); /* without its nth */
/* Draws what happens to the next op. */
void rules_decide(struct rules *rules, bool does_out[RULE_COUNT]);

#endif
