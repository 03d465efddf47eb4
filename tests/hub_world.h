/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run in one process for tests of lib/hub: a real hub with its thread and sockets, and members
 * that behave as the sides do, but move no bytes.  Its time is that of even_clock.h.
 */
#ifndef HUB_WORLD_H
#define HUB_WORLD_H

#include <pthread.h>

#include "lib/hub/hub.h"

#define WORLD_MEMBERS_MAX 12

struct actor {
	struct member *member; /* NULL: dead */
	enum member_role role;
	uint32_t rank, replica;
	bool frozen;		 /* isn't stepped: a stopped process */
	enum rank_state deaf_at; /* rollout: hears nothing from that state on, but beats */
	bool deaf;
	bool no_step;	    /* rollout: its engine never calls step: stays where it is */
	bool mute;	    /* trainer: joins, but writes nothing */
	bool keeps_dropped; /* doesn't join again by itself */
	bool inplace, bad_reload, cannot_wire;

	/* what it has seen */
	uint64_t generation;
	uint32_t self, roster_count, trainer_count;
	uint64_t roster_id[WORLD_MEMBERS_MAX];
	uint32_t rail_count[WORLD_MEMBERS_MAX]; /* by roster index: NICs in use */
	uint32_t roster_replicas;
	uint32_t requests, answers;
	bool quiet_seen, all_wired;
	bool is_over, was_dropped, hub_lost;
	uint32_t drop_count, hub_lost_count, hub_found_count;
	struct ws_error over, dropped, abort;

	/* rollout */
	enum rank_state state;
	uint64_t attempt, version, live, served[2]; /* versions that were live before and now */
	uint32_t begin_count, abort_count;
	uint64_t forwarded; /* attempt whose bytes the next replica has from here */
	bool next_gone;
	/* trainer */
	uint64_t want, joined, sent, over_attempt, begun, begun_version;
	struct ws_error push_error;
	uint64_t ready[WORLD_MEMBERS_MAX];
	uint64_t written[WORLD_MEMBERS_MAX]; /* by roster index: attempt whose bytes are there */
};

struct world {
	struct run_key key;
	struct hub *hub;
	struct hub_options options;
	char endpoint[128];
	struct actor actor[WORLD_MEMBERS_MAX];
	uint32_t count, trainers, replica_ranks;
	pthread_t closer; /* of the hub */
	bool has_closer;
};

/* trainers, then replicas of so many ranks; the hub too. */
void world_open(struct world *world, uint32_t trainers, uint32_t replicas, uint32_t replica_ranks,
		const struct hub_options *options);
void world_close(struct world *world);
void world_hub(struct world *world); /* starts it (again), at the same place */
/* (Re)starts a member; NULL manifest: its side's usual one. */
void actor_open(struct world *world, struct actor *actor, const char *manifest);
/* Dies without a goodbye, as by SIGKILL: its frames end. */
void actor_kill(struct actor *actor);
struct actor *world_rollout(struct world *world, uint32_t replica, uint32_t rank);

/* Runs everybody until done(world, arg) or PATIENCE_MS; true when done. */
bool world_run(struct world *world, bool (*done)(const struct world *world, const void *arg),
	       const void *arg);
void world_run_ms(struct world *world, uint64_t ms);

/* Frequent ends of a run. */
bool all_are_wired(const struct world *world, const void *arg);
bool push_ended(const struct world *world, const void *arg); /* every living trainer's */
void world_push(struct world *world, uint64_t version);	     /* all trainers want it */

void actor_push(struct actor *actor, uint64_t version); /* one does */
bool rollout_has_begun(const struct world *world, const void *actor);
const struct ws_error *push_error(const struct world *world, uint32_t trainer);
/* A push that must end well everywhere; _but: there is one rank that takes no part. */
void push_ok(struct world *world, uint64_t version);
void push_ok_but(struct world *world, uint64_t version, const struct actor *absent);
/* The hub's process dies: no goodbye, its port is free. */
void world_hub_kill(struct world *world);
/* Frames of the hub that waited for a deaf member are lost; it hears again. */
void world_member_forget_hub(struct actor *actor);
/* Closes the hub in a thread beside the members'; trainer 0 leaves with it, or not. */
void world_hub_close_beside(struct world *world, bool leaves);

#endif
