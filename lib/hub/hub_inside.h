/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the hub's end share.
 *
 *   hub.c      thread, life, frames that come
 *   hub_say.c  frames that go: what is due to whom
 *   hub_manifest.c  the manifests' texts
 *   status.c   the answer to `weightsync status`, and its asking
 */
#ifndef HUB_INSIDE_H
#define HUB_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/hub/progress.h"

/* The sending side of a seat; same numbers as progress->seats. */
struct seat_io {
	uint64_t route; /* the connection its last frame came by; 0: none */
	uint64_t next_beat_ns, beat_digest, over_ns;
	uint64_t roster_generation, roster_ns; /* last sent, and when it is due again */
	uint64_t ready_attempt;		       /* heard; acknowledged by beats */
	uint64_t ready_ns;		       /* when it was last passed on */
	struct writer ready;		       /* its body */
};

struct manifest_text {
	enum member_role role;
	void *text; /* owned */
	uint32_t bytes;
	uint64_t digest;
};

struct hub {
	struct link *link; /* owned; the thread's */
	struct progress progress;
	struct seat_io *io; /* owned */
	uint32_t io_count;
	struct manifest_text *manifests; /* owned */
	uint32_t manifest_count;
	void *rules; /* owned */
	uint32_t rules_bytes;
	struct replica_view *views;    /* owned */
	struct roster_member *members; /* owned; room for a roster */
	struct writer out;
	uint64_t said_ns, saying_ns; /* when all that was due had been said, and how long it took */
	uint64_t malformed_count;

	pthread_t thread;
	bool has_thread;
	uint64_t leaver, leaver_incarnation; /* a member that has left; 0: none.  Set before stop */
	atomic_bool stop;
	atomic_bool dies;      /* tests: end as a killed process does, without goodbye */
	int wake_fd;	       /* eventfd: stop was set */
	pthread_mutex_t mutex; /* over failed */
	struct ws_error failed;
};

/* hub_manifest.c.  NULL: no such text is kept. */
const struct manifest_text *hub_manifest(const struct hub *hub, enum member_role role,
					 uint64_t digest);
/* 0: it is one that may join; -EAGAIN: its text is needed; else err says what is wrong with it. */
int hub_manifest_take(struct hub *hub, const struct join *join, struct ws_error *err);
void hub_manifests_release(struct hub *hub);
/* Seats that progress made since the last call; false without memory. */
bool hub_io_grow(struct hub *hub);
/* What hub->out holds; a frame that can't be sent now is repeated like one that is lost. */
int hub_send(struct hub *hub, enum hub_frame kind, uint64_t member, uint64_t incarnation,
	     uint64_t route);
void hub_send_over(struct hub *hub, const struct frame *to, const struct ws_error *error);
/* To a process that sits nowhere: join, with the manifest's text or without. */
void hub_send_hello(struct hub *hub, const struct frame *to, bool need_manifest);
/* All that is due. */
void hub_say(struct hub *hub, uint64_t now_ns);
void hub_say_over(struct hub *hub, uint64_t now_ns);
void hub_status(const struct hub *hub, struct writer *json_out);

#endif
