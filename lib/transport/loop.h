/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to loop*.c: nets of NICs inside this process, and their clocks.
 */
#ifndef LOOP_H
#define LOOP_H

#include <pthread.h>

#include "lib/transport/transport.h"

#define NONE UINT32_MAX

struct net {
	struct net *next;
	char name[48];
	pthread_mutex_t lock;
	uint64_t random;   /* the generator's state */
	uint64_t serial;   /* of the last NIC, peer or key made */
	uint64_t now_ns;   /* its clock: moves from one op's end on a line to the next */
	struct loop *nics; /* borrowed */
};

struct slot {
	struct op op;	       /* peer is the sender's half */
	uint32_t next, before; /* in its peer's list, or the free list */
	int status;	       /* 0, or what FAILED says */
	bool landed;	       /* or failed */
	uint64_t due_ns;       /* when its last byte has left the line; 0: at once */
	bool imm_due, end_due;
};

struct peer {
	struct loop *loop;  /* the NIC this half belongs to */
	struct peer *other; /* the other half, while both exist */
	struct peer *next;  /* of the same NIC */
	uint64_t serial;
	uint32_t first, last; /* slots with ops from here to other */
	uint32_t unreported;
	bool connected, closing;
};

struct loop {
	struct nic nic; /* first */
	struct net *net;
	struct loop *next; /* of the same net */
	char name[48];
	uint64_t serial;
	uint64_t free_ns;   /* its line has sent all that was posted */
	bool told;	    /* its last poll yielded ends: more may be posted now */
	struct peer *peers; /* owned */
	struct slot *slots; /* owned; LOOP_SLOTS */
	uint32_t free_first, unreported;
	struct mr **mrs; /* owned array of the callers' */
	uint32_t mr_count;
};

/* What "net/name?seed=7&mbps=1000" says. */
struct loop_device {
	char net[48], name[48];
	uint64_t seed, mbps;
};

int loop_device_parse(struct loop_device *out, const char *device, struct ws_error *err);

/* Enters loop, whose name is set; the net is made by its first NIC. */
int net_join(struct loop *loop, const struct loop_device *device, struct ws_error *err);
void net_leave(struct loop *loop);
/* Serials are a net's own; this tells nets apart in addresses. */
uint64_t net_digest(const struct net *net);
bool net_coin(struct net *net);
/* When bytes that are posted now have left the NIC's line. */
uint64_t net_line_take(struct loop *loop, uint64_t bytes);
/* Moves the clock on, if nothing is due that hasn't been reported. */
void net_time_pass(struct net *net);

#endif
