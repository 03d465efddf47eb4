/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Framed, encrypted, authenticated messages between members and the hub: ZeroMQ with CURVE.
 * The hub's end is one ROUTER, a member's a DEALER.  A frame is a fixed header and a body;
 * nothing here knows what the bodies mean.  No frame is assumed to arrive: a ROUTER drops what
 * it accepted when a connection resets, so whoever needs an answer asks again (lib/hub does).
 *
 * Only clients that hold the run's key file get past the ZAP handler; CURVE alone would let
 * anybody in.  A socket monitor tells a wrong key (handshake failed) from a dead hub.
 *
 * Threads: a link belongs to one thread, which calls link_receive or link_wait often: they also
 * let members in and dial again.  It may be handed over by what orders memory, as pthread_create.
 */
#ifndef LINK_H
#define LINK_H

#include "lib/base/base.h"

#define LINK_BODY_BYTES_MAX (64u << 20)
#define LINK_CLIENTS_MAX    4096

/* ---- keys.c: the run's key file: one CURVE key pair for the hub and one for the members. */
struct run_key {
	char hub_public[41], hub_secret[41], member_public[41], member_secret[41]; /* Z85 */
	char run_id[17]; /* hex; names the run in frames and messages; not secret */
};

int run_key_make(struct run_key *key, struct ws_error *err);
/* Writes path with mode 0600; never over an existing file (-EEXIST). */
int run_key_write(const struct run_key *key, const char *path, struct ws_error *err);
/* -EACCES if group or others may read it; -EBADMSG if it isn't a key file. */
int run_key_read(struct run_key *key, const char *path, struct ws_error *err);
void run_key_wipe(struct run_key *key);

/* ---- frames */
struct frame {
	uint16_t kind;		  /* the sender's own numbering; 0 is never sent */
	uint64_t hub_incarnation; /* the hub's, or the newest one the member has seen */
	uint64_t member;	  /* which member sends, or is meant; a number lib/hub gives */
	uint64_t incarnation;	  /* that member's process */
	uint64_t sequence;	  /* rises by one per frame of this link; set by link_send */
	const void *body;	  /* link_send: borrowed during the call.  link_receive: valid
				   * until the next link_receive on this link; not aligned */
	uint32_t body_bytes;
	uint64_t route; /* hub only: which connection it came from / goes to */
};

enum link_event {
	LINK_NOTHING = 0,
	LINK_FRAME,	   /* *frame_out is filled */
	LINK_CONNECTED,	   /* member: the handshake with the hub succeeded */
	LINK_DISCONNECTED, /* member: the connection is gone; it is retried */
	LINK_REFUSED,	   /* the handshake failed: wrong key on one side */
	LINK_MALFORMED	   /* a frame that isn't one was dropped; err says from where */
};

struct link;

/* Hub's end: binds to endpoint, "tcp://127.0.0.1:7000" or port "*"; link_endpoint tells. */
int link_listen(struct link **link_out, const char *endpoint, const struct run_key *key,
		struct ws_error *err);
/* Member's end: never blocks; CONNECTED or REFUSED follows. */
int link_dial(struct link **link_out, const char *endpoint, const struct run_key *key,
	      struct ws_error *err);
void link_close(struct link *link); /* NULL too; lingers at most 200 ms for queued frames */

const char *link_endpoint(const struct link *link);

/* Queues a frame; never blocks.  -EAGAIN: the queue is full (say it again later), -ECONNRESET:
 * the route is gone, -ENOSPC: body too long. */
int link_send(struct link *link, const struct frame *frame, struct ws_error *err);

/* The next thing that happened; never blocks.  err may be NULL; it explains REFUSED and MALFORMED.
 */
enum link_event link_receive(struct link *link, struct frame *frame_out, struct ws_error *err);

/* Waits until link_receive may yield something, one of LINK_FDS_MAX fds is readable, or until_ns.
 * link NULL: for the fds alone. */
#define LINK_FDS_MAX 64
void link_wait(struct link *link, const int *fds, int fd_count, uint64_t until_ns);

#endif
