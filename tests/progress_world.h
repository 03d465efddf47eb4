/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of a run around the real progress.c: trainers and rollout ranks as in
 * update_model.pml, a network that loses, delays and reorders frames, processes that die, stop
 * and come back, a hub that is started anew.  One seed, one schedule.  The first broken property
 * is kept as a sentence.
 */
#ifndef PROGRESS_WORLD_H
#define PROGRESS_WORLD_H

#include "lib/hub/progress.h"

#define TRAINERS	2
#define RANKS_EACH_MAX	2
#define REPLICAS_MAX	2
#define RANKS_MAX_MODEL (RANKS_EACH_MAX * REPLICAS_MAX)
#define PROCESSES	(TRAINERS + RANKS_MAX_MODEL)
#define FLIGHT_MAX	4 /* frames under way, per member and direction */
#define STEP_NS		20000000u
#define LOST_NS		1000000000u
#define PHASE_NS	8000000000u

/* A rule that is taken away, to see that the properties notice. */
enum mutant {
	MUTANT_NONE = 0,
	MUTANT_COMMIT_EARLY, /* hub commits when any rank has landed, ranks go along */
	MUTANT_RESUME_EARLY, /* hub resumes when any rank is live */
	MUTANT_ABORT_LATE,   /* hub aborts what has committed, ranks go along */
	MUTANT_LANDED_LIE,   /* a rank says landed before every byte is there */
	MUTANT_NO_PAUSE,     /* a rank says paused and goes on serving */
	MUTANT_DROP_SERVES,  /* a dropped rank that is live serves what it has (DROP_RULE 0) */
	MUTANT_DOUBT_ABORT,  /* a new hub aborts what may have committed */
	MUTANT_NO_DROP,	     /* a hub that lost a rank takes its next incarnation as the same one */
	MUTANT_MAPS_MIX,     /* a hub that doesn't look at manifests */
	MUTANT_RAILS_STALE,  /* a hub that keeps a roster when NICs went or came */
	MUTANT_READY_EARLY,  /* a hub that calls trainers ready at once */
	MUTANT_READY_STALE,  /* a trainer that takes readies of one attempt for the next one's */
	MUTANT_COUNT
};

struct up_frame {
	bool used, is_join;
	uint64_t hub, incarnation, map, history;
	struct beat_up beat;
};

struct down_frame {
	bool used, is_roster, is_hello;
	uint64_t hub, incarnation, generation, map;
	struct beat_down beat;
};

struct process {
	uint64_t id;
	bool trains, inplace;
	uint64_t back_ns, frozen_ns; /* dead, stopped until */
	uint64_t incarnation, hub;
	bool joined, was_in;
	uint64_t down_sequence;
	struct beat_up up; /* what it says: state, attempt, want, joined, .. */
	struct beat_down down;
	uint64_t begun, tried; /* trainer: last goal it pushed; begun: as in member.c */
	uint64_t want_joined, joined_hub, joined_as; /* joined_as: my incarnation then */
	struct ws_error result;			     /* trainer: of its last push */
	/* trainer, where they exchange: the attempt that it is armed for; whose maxima are here and
	 * of which version; who has mine, and whose ready was heard, in heard_attempt */
	uint64_t armed, inbox[TRAINERS], heard_attempt;
	uint32_t maxima, given, heard;
	/* rollout: the truth */
	uint64_t version, current, live[TRAINERS], spare[TRAINERS];
	uint32_t bits;
	bool serving;
	uint64_t live_attempt;		   /* highest that this seat reached live in */
	uint64_t aborted, committed;	   /* highest attempts by the hub's word */
	uint64_t map, history, roster_map; /* its manifest; those before; the roster's */
	struct up_frame up_flight[FLIGHT_MAX];
	struct down_frame down_flight[FLIGHT_MAX];
};

struct model {
	uint64_t random, now_ns, hub_incarnation;
	uint32_t ranks_each, replicas, process_count;
	bool faults, barrier, inplace, chain; /* chain: replica 0 forwards to replica 1 */
	bool exchange; /* trainers write to each other before they write to rollouts */
	enum mutant mutant;
	struct progress progress;
	struct process process[PROCESSES];
	uint64_t goal;				     /* version that trainers push; 0: none yet */
	uint64_t map;				     /* the manifest that every rank is to have */
	uint64_t generation, attempt;		     /* of the hub, last seen */
	struct member_rails roster_rails[PROCESSES]; /* as the generation's roster has them */
	uint32_t fault_count, hub_count, pushes_ok, described;
	char broken[512]; /* the first property that failed */
};

void model_open(struct model *model, uint64_t seed, enum mutant mutant);
void model_close(struct model *model);
void model_step(struct model *model);
/* No more faults; lets everything come to rest. */
void model_calm(struct model *model);
bool model_trainers_idle(const struct model *model);
/* Every trainer pushes a new version; true if it ended well and every rank serves it. */
bool model_last_push(struct model *model);

/* ---- among progress_world.c, progress_exchange_world.c and progress_fault_world.c */
uint64_t model_draw(struct model *model);
bool model_chance(struct model *model, uint32_t in_1000);
void model_broke(struct model *model, const char *what);
/* So many of a process' two NICs are in use. */
void process_rails(struct process *process, uint32_t count);
bool process_is_down(const struct model *model, const struct process *process);
/* It joins the attempt: from now on others may write to it. */
void trainer_join(struct model *model, struct process *trainer, uint64_t attempt);
void armed_hear(struct model *model, struct process *trainer);
bool maxima_are_here(struct model *model, const struct process *trainer);
void maxima_write(struct model *model, struct process *trainer);
void model_hub_start(struct model *model);
void model_fault_step(struct model *model);
void model_mutant_step(struct model *model);

#endif
