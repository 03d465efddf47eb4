/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a member's end share.
 *
 *   member.c      life, waiting, and which event is next
 *   member_hear.c frames of the hub
 *   member_say.c  what the member says, and what of it is due
 */
#ifndef MEMBER_INSIDE_H
#define MEMBER_INSIDE_H

#include "lib/hub/hub_frames.h"

/* A pair frame I said, kept for the generation. */
struct pair_out {
	uint32_t to;
	bool answer, done; /* done: the answer came; answers: nothing is due */
	uint32_t body_bytes;
	uint64_t next_ns, interval_ns;
	void *body; /* owned */
};

struct member {
	struct link *link; /* owned */
	struct member_options options;
	char host[64], endpoint[256];
	uint64_t id, incarnation, hub_seen; /* hub_seen: newest hub's incarnation (rhub) */
	uint64_t history;		    /* of manifests; see struct join */

	/* life */
	uint64_t opened_ns, heard_ns, stepped_ns;
	uint64_t next_beat_ns, next_join_ns;
	uint64_t next_change_ns; /* when a beat may go that isn't due by time */
	struct ws_error over, dropped_error;

	/* what the hub said last */
	struct beat_down down;
	struct replica_view *views; /* owned; of the roster's replicas */
	uint32_t view_count, view_room;
	uint64_t quiet_told, wired_told, next_gone_told;
	enum replica_word word_told;
	uint64_t word_told_attempt, begun;
	uint64_t armed_attempt;			 /* trainers: the one that armed_told is of */
	uint8_t armed_told[HUB_MEMBERS_MAX / 8]; /* whose ready was yielded */

	/* roster */
	struct arena roster_arena;
	struct roster roster;
	uint32_t self;
	void *manifest[2], *rules; /* owned */
	uint32_t manifest_bytes[2], rules_bytes;

	/* what I say */
	struct beat_up up;
	uint64_t want_joined; /* said joined when the present want began */
	uint64_t last_step_ns;
	struct pair_out *pairs; /* owned */
	uint32_t pair_count, pair_room;
	uint8_t pair_in[2][HUB_MEMBERS_MAX /
			   8]; /* requests, answers already yielded, by roster index */
	struct writer ready;   /* the body for ready_attempt */
	uint64_t ready_attempt, ready_next_ns;
	struct writer out; /* frames being built */

	/* flags, together so that nothing is padded; _due: an event to be yielded */
	bool connected, hub_heard, hub_lost, found_due;
	bool was_in;   /* a roster came for this incarnation */
	bool admitted; /* ... or for an earlier one */
	bool dropped, dropped_due;
	bool is_over, over_due;
	bool views_due;
	bool dirty;
};

/* member_say.c */
void member_send_due(struct member *member, uint64_t now_ns);
uint64_t member_next_due(const struct member *member);
void member_send_empty(struct member *member, enum hub_frame kind);
void member_pairs_clear(struct member *member);
void member_renew(struct member *member, uint64_t above);
/* member_hear.c: true when *event_out is to be yielded. */
bool member_hear(struct member *member, const struct frame *frame, uint64_t now_ns,
		 struct member_event *event_out);

#endif
