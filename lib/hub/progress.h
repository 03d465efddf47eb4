/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the hub decides.  Pure: events in (join, beat, leave, time), and out what it repeats to
 * each member (beat_down) until it hears the answer.  No socket, no thread, no clock.
 *
 *   roster.c    who is there: joins, losses, wiring generations
 *   progress.c  attempts: begin .. resume, abort, drop, in doubt; one word per replica
 *   failure.c   failures that are said, ranks that are poisoned, deadlines
 *   rails.c     NICs that go out of use and come back
 *   forward.c   rollouts that write to rollouts
 *   describe.c  replicas that come back with another manifest
 *   say.c       what a member is told: beat_down, roster, sentences
 *
 * It mirrors update_model.pml (HUBINC 1, STRICT_JOIN 1, BEGIN_RESUMES 1, DROP_RULE 1); the
 * model's name for a field stands beside it.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "lib/hub/hub_frames.h"

/* Where a member sits: trainer ranks, then each replica's ranks in the order first heard of. */
struct seat {
	uint64_t id;
	uint64_t joined; /* incarnation whose join was taken; 0: nobody sits here */
	bool heard;	 /* a beat of it has named this hub; with joined: hsi */
	uint64_t in;	 /* incarnation in the roster, 0: out (hi) */
	uint64_t out;	 /* highest dropped (hx) */
	struct ws_error out_error;
	uint64_t rival;	      /* another incarnation that wants to sit here */
	uint32_t rival_beats; /* of the one that sits, since */
	uint64_t rival_ns;
	uint64_t heard_ns;	 /* last frame */
	uint64_t moved_ns;	 /* state or bytes last changed */
	uint64_t failure_serial; /* done */
	bool left;		 /* said goodbye */
	uint32_t roster_index;	 /* in the present roster; valid while roster[roster_index] is this
				    seat */
	struct member_rails rails; /* as in the present roster; valid like roster_index */
	struct join info;	   /* manifest is NULL */
	struct beat_up up;	   /* last heard (hs, hsa) */
};

struct replica {
	uint32_t id;
	enum replica_word word; /* hc */
	uint64_t attempt;	/* hka */
	uint64_t word_ns;	/* since when */
	uint64_t first_ns;	/* when this hub first heard one of its ranks */
	bool decided;		/* no longer in doubt */
	bool in_attempt;	/* takes part in the attempt that is open or was last */
	bool waits_trainers;	/* inplace: begin only when all trainers want the version */
	bool went_live;		/* ... and all its ranks said live in it */
	uint32_t wiring_fails;	/* in a row: it is admitted again later each time */
	uint64_t retry_ns;
	uint64_t describe_ns;  /* since when it describes itself again; 0: it is in */
	struct ws_error error; /* why it was dropped or aborted */
};

struct progress_options {
	uint64_t incarnation;
	uint32_t trainer_count, replica_ranks, min_replicas;
	bool barrier;
	enum hub_forward forward;
	uint64_t join_ns, lost_ns, phase_ns;
};

struct progress {
	struct progress_options options;
	uint64_t opened_ns, now_ns, tick_ns;
	bool changed;		    /* something was decided: to be said; the owner clears it */
	bool news;		    /* trainers' views are otherwise; the owner clears it, too */
	struct ws_error last_error; /* why somebody was last dropped or something aborted */
	struct ws_error ended;	    /* the run was given up, or ended (code 0 and is_ended) */
	bool is_ended, gave_up;	    /* gave up: it wasn't the trainers who ended it */

	struct seat *seats;	  /* owned */
	struct replica *replicas; /* owned; those ever heard of */
	uint32_t replica_count;

	/* wiring */
	uint64_t generation, wiring_ns;
	uint64_t generation_heard;    /* a former hub's: mine are above */
	bool rewire, quiet, wired;    /* quiet, wired: every member of the generation said so */
	bool wired_once;	      /* some generation was */
	uint32_t *roster;	      /* owned; seat numbers in roster order */
	uint64_t *roster_incarnation; /* owned */
	uint32_t *roster_replicas;    /* owned; ascending ids */
	uint32_t roster_count, roster_replica_count;
	uint64_t manifest_digest; /* of the rollouts in the roster */

	/* attempts */
	uint64_t attempt, attempt_generation, version, begin_ns; /* ha, hv */
	uint64_t attempt_heard;	   /* a former hub's: mine are above */
	uint64_t live_version_max; /* highest that was heard live */
	bool over;
	uint64_t want_ns; /* since when some trainer waits for a begin; 0: none does */
	struct ws_error attempt_error;
	struct ws_error waits; /* for whom the next step waits; code 0: for nobody */
	/* Whose NICs are out of use and why: "trainer 0 (and 2 others): NIC ..."; or empty */
	char trouble[MEMBER_TROUBLE_BYTES];
	uint64_t view_serial;
	uint64_t down_sequence;
};

int progress_init(struct progress *progress, const struct progress_options *options,
		  uint64_t now_ns, struct ws_error *err);
void progress_release(struct progress *progress);

enum join_verdict { JOIN_TAKEN, JOIN_LATER, JOIN_DROPPED, JOIN_REFUSED };

/* LATER: say nothing, it will ask again.  DROPPED: that incarnation is out, say so (the seat's
 * beat_down does).  REFUSED: OVER with err.  seat_out is set but when REFUSED for its numbers. */
enum join_verdict progress_join(struct progress *progress, const struct join *join,
				uint64_t incarnation, uint64_t now_ns, uint32_t *seat_out,
				struct ws_error *err);
/* A beat that names this hub.  False: nobody of that incarnation sits there; it must join. */
bool progress_hear(struct progress *progress, uint64_t id, uint64_t incarnation,
		   const struct beat_up *beat, uint64_t now_ns);
void progress_leave(struct progress *progress, uint64_t id, uint64_t incarnation, uint64_t now_ns);
/* Time passes: losses, deadlines, decisions. */
void progress_tick(struct progress *progress, uint64_t now_ns);
/* The run is given up with this sentence; everyone gets OVER. */
void progress_end(struct progress *progress, const struct ws_error *error);

/* With which sentence (code 0: all is well) a hub that closes now says goodbye. */
void progress_goodbye(const struct progress *progress, struct ws_error *end_out);

/* ---- say.c */
/* Seat number of a member, or UINT32_MAX. */
uint32_t progress_seat(const struct progress *progress, uint64_t id);
uint32_t progress_seat_count(const struct progress *progress);
/* views: room for roster_replica_count. */
void progress_beat_down(struct progress *progress, uint32_t seat, struct replica_view *views,
			struct beat_down *beat_out);
void progress_view(const struct progress *progress, uint32_t replica_id,
		   struct replica_view *view_out);
/* Whether the member at that seat should be sent the present roster (again). */
bool progress_owes_roster(const struct progress *progress, uint32_t seat);
void progress_roster_member(const struct progress *progress, uint32_t index,
			    struct roster_member *out);
/* Roster index of a seat that is in as that incarnation, or UINT32_MAX. */
uint32_t progress_roster_index(const struct progress *progress, uint32_t seat);
/* Who is missing, or what is waited for; -EAGAIN, or 0 with an empty text. */
int progress_waits_for(const struct progress *progress, struct ws_error *err);

/* ---- rails.c */
/* Whether a member has NICs, but none of them is in use. */
bool rails_are_gone(const struct seat *seat);
/* The roster's rails aren't those that members have now: a new wiring, and without replicas that
 * have none. */
void rails_tick(struct progress *progress);
/* Which trainer's (or also rollout's) NICs are all gone; false: nobody's. */
bool rails_wait_for(const struct progress *progress, bool replicas, struct ws_error *err);
/* Writes progress->trouble. */
void rails_trouble(struct progress *progress);

/* ---- forward.c */
/* Which rollouts write to this one: so many seats from *first_out on, itself perhaps among them. */
uint32_t forward_writers(const struct progress *progress, uint32_t seat, uint32_t *first_out);
/* Whether the replica behind this rollout's in the chain is out of the roster it was wired in. */
bool forward_next_gone(const struct progress *progress, uint32_t seat);
/* Whether a replica waits for one before it in the chain that hasn't landed. */
bool forward_awaits(const struct progress *progress, uint32_t index);
/* A replica was dropped: so is the next one, if it still waits for its bytes. */
void forward_drop(struct progress *progress, uint32_t index, const struct ws_error *why);

/* ---- describe.c: a run has one target manifest at a time. */
/* -ESTALE: it isn't what another rank of its replica described in its place. */
int describe_check(const struct progress *progress, const struct join *join, struct ws_error *err);
bool replica_is_alike(const struct progress *progress, uint32_t index);
uint64_t replica_digest(const struct progress *progress, uint32_t index);
/* One of its ranks describes itself again. */
void replica_describes(struct progress *progress, uint32_t index);
void describe_tick(struct progress *progress);
/* Whether wiring and begin wait for replicas that are describing; phase_ns at most. */
bool describe_is_awaited(const struct progress *progress);
/* The manifest that most whole replicas have; the run's own as long as no other has more. */
uint64_t describe_choose(const struct progress *progress, uint32_t *whole_out);
void describe_drop_others(struct progress *progress);
/* Whose manifest keeps a replica out; false: nobody's. */
bool describe_waits_for(const struct progress *progress, struct ws_error *err);

/* ---- shared by roster.c, progress.c, failure.c and say.c */
static inline uint32_t replica_seat(const struct progress *progress, uint32_t replica_index,
				    uint32_t rank)
{
	return progress->options.trainer_count + replica_index * progress->options.replica_ranks +
	       rank;
}
static inline bool seat_is_heard(const struct seat *seat)
{
	return seat->joined != 0 && seat->heard;
}
/* And isn't told to join again. */
static inline bool seat_is_there(const struct seat *seat)
{
	return seat_is_heard(seat) && seat->joined > seat->out;
}
static inline struct seat *replica_rank(const struct progress *progress, uint32_t replica_index,
					uint32_t rank)
{
	return &progress->seats[replica_seat(progress, replica_index, rank)];
}
/* HEARD: and it is the one in the roster. */
static inline bool seat_is_in(const struct seat *seat)
{
	return seat->in != 0 && seat->joined == seat->in && seat->heard;
}
bool replica_is_in(const struct progress *progress, uint32_t index);
bool replica_is_joinable(const struct progress *progress, uint32_t index);
/* Its rank couldn't be wired: the others must get their time between its tries. */
void replica_put_off(struct progress *progress, uint32_t seat);
void replica_admit(struct progress *progress, uint32_t index);
void replica_drop(struct progress *progress, uint32_t index, const struct ws_error *why);
/* A member is lost: its replica is dropped, or the trainer and with it the attempt. */
void seat_lose(struct progress *progress, uint32_t seat, const struct ws_error *why);
/* The same, but nothing is wrong: it is no error that `status` shows. */
void seat_release(struct progress *progress, uint32_t seat, const struct ws_error *why);
void attempt_abort(struct progress *progress, const struct ws_error *why);
bool attempt_is_open(const struct progress *progress);
bool trainer_has_joined(const struct progress *progress, const struct seat *seat);
bool all_trainers_joined(const struct progress *progress);
/* AT: heard in the replica's attempt in that state or beyond it. */
bool rank_is_at(const struct progress *progress, uint32_t index, uint32_t rank,
		enum rank_state state);
/* A rank that is poisoned, or that gave up what its replica has committed, ends the replica. */
bool replica_broken(struct progress *progress, uint32_t index);
/* A rank that doesn't come to the state its word asks for in time takes its replica out. */
void replica_late(struct progress *progress, uint32_t index, enum rank_state want);
/* Whom an open attempt waits for: "rollout 0.1 isn't landed; it got 41 of 42 ops .."; err stays as
 * it is where nobody is named. */
void attempt_waits_for(const struct progress *progress, struct ws_error *err);
/* Whether every trainer has heard the last attempt's end, and all there is of the replicas. */
bool trainers_know(const struct progress *progress);
/* "; ws_rollout_step was called 41 s ago", for the end of a sentence about a rollout rank. */
void step_text(const struct progress *progress, const struct seat *seat, char text_out[80]);
void attempts_tick(struct progress *progress);
void failure_hear(struct progress *progress, uint32_t seat);

#endif
