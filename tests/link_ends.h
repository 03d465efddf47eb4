/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hub and members of lib/link over real sockets on 127.0.0.1, turned by one thread.  Shared by
 * the programs link and link_door.
 */
#ifndef LINK_ENDS_H
#define LINK_ENDS_H

#include "lib/link/link_inside.h"
#include "tests/test.h"

/* One end and what it has seen. */
struct end {
	struct link *link;
	uint32_t frames, connected, disconnected, refused, malformed;
	struct frame frame; /* the last; its body only until the next turn */
	struct ws_error err;
};

extern struct run_key ends_key; /* of the run; made by ends_setup, a checked fixture */

void ends_setup(void);
void turn(struct end *end);
void turn_for_ms(struct end *a, struct end *b, uint64_t ms);
void listen_here(struct end *hub);
void dial_to(struct end *member, const struct end *hub, const struct run_key *with);
void meet(struct end *hub, struct end *member); /* both, until the member is connected */
void part(struct end *hub, struct end *member);
void send_now(struct end *from, struct end *to, const struct frame *frame); /* until it is there */
/* Sends a member's frame, so that the hub has a route back. */
uint64_t route_of(struct end *hub, struct end *member);

/* Turns both ends until the condition holds. */
#define turn_until(a, b, condition) ck_until(condition, (turn(a), turn(b)))

#endif
