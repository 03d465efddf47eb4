/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where members meet: the hub's end and the members' end of the control plane.
 *
 *   hub.c       sockets and thread of the hub: feeds progress.c, sends what it says
 *   progress.c  pure: members x events -> actions, per replica (facts: update_model.pml)
 *   member.c    a member's end: joins, beats, repeats what must arrive, yields events
 *   pair.c      the frame that one sender and one receiver exchange while wiring
 *
 * No frame is assumed to arrive.  Frames that carry data (join, roster, pair, ready) are repeated
 * until answered; beats, every HUB_BEAT_MS both ways, repeat state and decision, idempotently.
 * Every frame carries the hub's incarnation: a member that has seen a newer hub refuses an older
 * one's frames, and the hub counts only reports that name itself.
 *
 * The hub knows no tensor: manifests and rules are opaque bytes with digests.
 */
#ifndef HUB_H
#define HUB_H

#include "lib/base/base.h"
#include "lib/link/link.h"

#define HUB_BEAT_MS	 100
#define HUB_MEMBERS_MAX	 4096
#define HUB_REPLICAS_MAX 1024

enum member_role { ROLE_TRAINER = 1, ROLE_ROLLOUT };

/* A rollout rank's state in its current attempt, in order (the spin model's). */
enum rank_state {
	RANK_IDLE = 0, /* no attempt open here, or aborted */
	RANK_READY,    /* memory may be written */
	RANK_LANDED,   /* every byte is there, scattered, digests right */
	RANK_PAUSED,
	RANK_COMMITTED, /* commit received: copying, reloading */
	RANK_LIVE,	/* reloaded, still paused */
	RANK_RESUMED,	/* serves the version */
	RANK_BAD /* on_reload failed, or its memory was written when it must not be: poisoned */
};

/* The hub's word to a replica, and what the trainers see of it. */
enum replica_word { WORD_NONE = 0, WORD_BEGIN, WORD_PAUSE, WORD_COMMIT, WORD_RESUME, WORD_ABORT };

/* ------------------------------------------------------------------------------------------
 * hub.c
 */
struct hub;
struct member; /* one process's end, below */

/* Which rollouts write to rollouts; trainers write to all, also to each other.  Who may write to a
 * rank hears its ready, and says quiet before the rank closes what was written to it with. */
enum hub_forward {
	HUB_FORWARD_NONE = 0,
	HUB_FORWARD_INSIDE, /* the ranks of a replica to each other */
	HUB_FORWARD_CHAIN   /* each rank to the same one of the next replica in the roster */
};

struct hub_options {
	const char *endpoint; /* "tcp://127.0.0.1:7000"; port may be "*" */
	const struct run_key *key;
	uint32_t trainer_count; /* the trainers' world */
	uint32_t replica_ranks; /* ranks of one replica */
	uint32_t min_replicas;	/* whole replicas needed to start and to call a push done; >= 1 */
	const void *rules;	/* opaque; copied; sent with every roster */
	uint32_t rules_bytes;
	bool barrier; /* pause no replica before all have landed */
	enum hub_forward forward;
	uint32_t join_ms;  /* deadline for the first wiring; 0: 60 s */
	uint32_t lost_ms;  /* silence after which a member is lost; 0: 5 s */
	uint32_t phase_ms; /* a rank's deadline for ready, landed.., each; 0: 60 s */
};

/* Binds and starts the hub's thread.  The incarnation is taken from the clock, so that a
 * restarted hub's is higher. */
int hub_open(struct hub **hub_out, const struct hub_options *options, struct ws_error *err);
/* A trainer of the process that is about to close the hub leaves, and so the hub knows it: what the
 * member says itself when it is closed may come too late.  Both may be NULL. */
void hub_left_by(struct hub *hub, const struct member *member);
/* Tells members goodbye, stops the thread.  They end with code 0, "the run ended", when the first
 * wiring was done, no attempt is open, the last one didn't fail and a trainer has left; else with
 * -ESTALE or the last push's error (never -ECONNRESET or -ECANCELED, which a side's caller takes
 * for a hub that may come back and for its own wish).  A hub whose trainers have all left says so
 * at once. */
void hub_close(struct hub *hub);
const char *hub_endpoint(const struct hub *hub);
/* Non-zero once the hub has given the run up (join deadline, manifests that differ, ...). */
int hub_failed(struct hub *hub, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * member.c
 */

/* The NICs of a member that are in use, in order, and how many it has.  Where something else is
 * said than the roster has, members are wired anew between two attempts. */
struct member_rails {
	uint32_t count, nic_count;
	uint64_t rewires; /* rises when a rail between two members is to be tried again, or left out
			   */
	struct nic_speed rail[NICS_MAX];
};

/* One line of the roster.  Index in the roster: trainers 0..T-1, then the replicas in ascending
 * order, each by rank: the planner's member index. */
struct roster_member {
	enum member_role role;
	uint32_t rank;	  /* trainer rank, or rank in its replica */
	uint32_t replica; /* rollouts */
	uint64_t id;	  /* the frames' member number: role, replica and rank packed */
	uint64_t incarnation;
	char host[64];
	bool inplace;
	struct member_rails rails; /* as they were when the generation was made */
};

struct member_options {
	const char *endpoint;
	const struct run_key *key;
	enum member_role role;
	uint32_t rank, replica;
	uint32_t world;	  /* trainers, or ranks of a replica: must equal the hub's */
	const char *host; /* equal on one host: hostname and boot id */
	const char *nics; /* which and why, for status; may be NULL; borrowed until close */
	struct member_rails rails; /* said at first */
	bool inplace;
	const void *manifest; /* JSON text of my side; borrowed until close */
	uint32_t manifest_bytes;
	uint64_t manifest_digest; /* manifest_digest() */
	uint32_t join_ms;	  /* 0: 60 s */
};

enum member_event_kind {
	MEMBER_NOTHING = 0,
	MEMBER_ROSTER, /* a new wiring: generation, roster, manifests, rules; peers of before must
			  be fenced */
	MEMBER_QUIET,  /* every sender in the roster has closed its old sending halves for
			  generation */
	MEMBER_PAIR,   /* a pair frame for generation from member `from` (request or answer) */
	MEMBER_ALL_WIRED, /* every member of the generation is wired */
	MEMBER_READY,	  /* who writes to it: member `from` is ready for attempt, a rollout with
			   * body.  At a rollout it may come before its own BEGIN of that attempt */
	MEMBER_NEXT_GONE, /* rollouts in a chain: the replica that mine writes to was dropped */
	MEMBER_WORD, /* rollouts: the hub's word to my replica, once my said state allows it: BEGIN,
		      * PAUSE (I said LANDED), COMMIT (PAUSED), RESUME (LIVE), ABORT; trainers:
		      * BEGIN */
	MEMBER_REPLICAS,  /* trainers: some replica's state changed; see member_replicas */
	MEMBER_DROPPED,	  /* this incarnation was dropped: text says why; rejoin makes a new one.
			   * Also the answer to member_say_describe */
	MEMBER_HUB_LOST,  /* no frame of the hub for lost_ms; it may come back */
	MEMBER_HUB_FOUND, /* ... and it did */
	MEMBER_OVER	  /* final: refused (wrong key, manifests differ, rank taken, world differs,
			   * goodbye,       run given up): code and text; nothing follows */
};

struct member_event {
	enum member_event_kind kind;
	uint64_t generation, attempt, version;
	enum replica_word word;
	uint32_t from;	  /* index in the roster */
	bool answer;	  /* PAIR: it answers mine */
	const void *body; /* PAIR, READY: valid until the next member_step */
	uint32_t body_bytes;
	/* ROSTER; valid until the next ROSTER event: */
	const struct roster_member *roster;
	uint32_t roster_count, trainer_count, self; /* self: my index */
	const uint32_t *replicas;		    /* ids of the replicas in it, ascending */
	uint32_t replica_count;
	const void *trainer_manifest, *rollout_manifest, *rules;
	uint32_t trainer_manifest_bytes, rollout_manifest_bytes, rules_bytes;
	struct ws_error error; /* DROPPED, OVER, HUB_LOST, WORD_ABORT: code and sentence */
};

/* For a ROSTER event: whether that process is in it. */
bool roster_has(const void *roster_event, uint64_t id, uint64_t incarnation);

int member_open(struct member **member_out, const struct member_options *options,
		struct ws_error *err);
void member_close(struct member *member); /* says leave, lingers shortly */

/* The next event; sends and repeats what is due.  Never blocks.  Call until MEMBER_NOTHING. */
void member_step(struct member *member, struct member_event *event_out);
/* Waits until member_step may yield something or one of fds is readable or until_ns. */
void member_wait(struct member *member, const int *fds, int fd_count, uint64_t until_ns);

/* ---- what a member says.  Kept and repeated by beats until it changes; sent at once. */
/* My old sending halves are closed for this generation / my pairs of it are all connected. */
void member_say_quiet(struct member *member, uint64_t generation);
void member_say_wired(struct member *member, uint64_t generation);
/* Trainers: I want this version pushed (0: nothing), I have joined this attempt, all my ops of it
 * have been reported.  A want begins when version changes from 0 or from another version, and is
 * spent on the first BEGIN that follows, whichever version it has (one of another version ends in
 * an abort that names both); so say 0 when a push has ended.  A trainer that begins to push when
 * BEGIN is already known and that attempt isn't over says version and attempt in one call. */
void member_say_push(struct member *member, uint64_t version, uint64_t attempt_joined,
		     uint64_t attempt_sent, uint64_t bytes_sent);
/* Rollouts: my state in attempt; the version that is live here (0: none); when step was last
 * called; received bytes. */
void member_say_state(struct member *member, enum rank_state state, uint64_t attempt,
		      uint64_t live_version, uint64_t last_step_ns, uint64_t bytes_received);
/* The NICs in use now; trouble names those that aren't and why ("NIC 'rxe2 port 1' is down: ..."),
 * and what last happened to the others; empty: nothing.  degraded: some NIC or rail isn't in use,
 * so trouble goes into the reports of pushes.  In beats.  Where a member with NICs has none in use,
 * a trainer's pushes wait, a rollout's replica is out. */
#define MEMBER_TROUBLE_BYTES 256
void member_say_rails(struct member *member, const struct member_rails *rails, const char *trouble,
		      bool degraded);
/* Rollouts: how many of the bytes received came from other rollouts.  In beats. */
void member_say_forwarded(struct member *member, uint64_t bytes_from_rollouts);
/* What this rank waits for ("got 41 of 42 ops of ..."), for the sentence of a deadline; empty:
 * nothing.  In beats. */
#define MEMBER_WAITS_BYTES 192
void member_say_waiting(struct member *member, const char *text);
/* Rollouts: what a check of a version found; in beats, shown by status and by member_verified. */
void member_say_verified(struct member *member, uint64_t version, uint64_t bytes,
			 uint64_t different_bytes);
/* My memory may be written to in this attempt.  Rollouts: with a body for who writes (buffer set,
 * renewed keys), repeated until each one's beat acknowledged it.  Trainers: only where others write
 * to them, when they are armed; without a body, in beats. */
int member_say_ready(struct member *member, uint64_t attempt, const void *body, uint32_t bytes,
		     struct ws_error *err);
/* A pair frame to another member (index in the roster); requests are repeated until the answer
 * came, answers whenever the request is repeated.  -ENOMEM. */
int member_say_pair(struct member *member, uint64_t generation, uint32_t to, bool answer,
		    const void *body, uint32_t bytes, struct ws_error *err);

enum failure_kind {
	FAILURE_OP = 1,	  /* an op to `about` failed: drops its replica (a trainer: aborts) */
	FAILURE_ATTEMPT,  /* my NIC, a count, a digest, a write nobody expected: aborts the attempt
			   */
	FAILURE_POISONED, /* after commit: my replica is stopped, dropped and named */
	FAILURE_PLAN	  /* the inputs can't be planned: ends the run */
};
/* Kept until the hub acknowledged it.  attempt 0: while wiring (before any was done it then ends
 * the run, a later one goes on without me).  about: index in the roster, or UINT32_MAX. */
void member_say_failure(struct member *member, enum failure_kind kind, uint64_t attempt,
			uint32_t about, const struct ws_error *error);
/* After DROPPED: joins again as a new incarnation, with state IDLE; a roster follows. */
int member_rejoin(struct member *member, struct ws_error *err);

/*
 * Describing again.  A calm rank says that it wants to (false: that it doesn't any more); the hub
 * answers between two attempts with DROPPED, or begins an attempt first, which then goes on as
 * ever.  After DROPPED, member_describe gives the new manifest (borrowed until close) and joins
 * with it, at the next member_step.  All ranks of a replica describe the same manifests one after
 * the other.  Attempts wait up to phase_ms, from the first rank on, until all replicas have the
 * same one; then the one that most whole replicas have counts, and the others wait outside.
 */
void member_say_describe(struct member *member, bool describes);
int member_describe(struct member *member, const void *manifest, uint32_t manifest_bytes,
		    uint64_t manifest_digest, struct ws_error *err);

/* Trainers: what the hub says of each replica in the roster; count entries at most. */
struct replica_view {
	uint32_t replica;
	bool in; /* still in the roster */
	enum replica_word word;
	enum rank_state slowest; /* of its ranks */
	uint64_t attempt, live_version;
	uint64_t bytes, from_rollouts; /* received by its ranks in attempt; of them: forwards */
	struct ws_error error;	       /* why it was dropped or aborted */
};
uint32_t member_replicas(const struct member *member, struct replica_view *views_out,
			 uint32_t count);
/* Trainers: the sums over the rollout ranks whose last check was of this version. */
void member_verified(const struct member *member, uint64_t version, uint32_t *ranks_out,
		     uint64_t *bytes_out, uint64_t *different_out);
/* Trainers: whose NICs are out of use and why, "trainer 0: NIC ..."; empty: nobody's. */
const char *member_trouble(const struct member *member);
/* Whether that attempt is over; err says why it was aborted, or that fewer than min_replicas went
 * live (code 0: neither).  For an attempt that isn't over, or hasn't begun (UINT64_MAX), err says
 * what the hub is waiting for (-EAGAIN; 0: nothing). */
bool member_attempt_over(const struct member *member, uint64_t attempt, struct ws_error *err);

/* ---- asking: `weightsync status`.  Connects as nobody in particular, asks, writes JSON. */
int hub_ask_status(const char *endpoint, const struct run_key *key, uint32_t deadline_ms,
		   struct writer *json_out, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * pair.c: the body of a PAIR frame.  T asks, R answers; both give address and regions.
 */
#define BUFFER_SETS_MAX 2

/* Where consecutively numbered params lie, in one buffer set: param first + i at offset + i * step
 * of region.  Compressed over progressions. */
struct place_row {
	uint32_t set, first_param, param_count, region;
	uint64_t offset;
	int64_t step;
};

struct pair_frame {
	uint64_t pair_digest[2]; /* T sends to R; R sends to T (0: no such pair) */
	uint64_t plan_digest;
	const void *address, *regions; /* engine's encodings; borrowed */
	uint32_t address_bytes, regions_bytes;
	uint32_t op_id_base;   /* for the other, writing to me */
	uint32_t receive_base; /* the other's first counter is my receive number .. (digests) */
	/* R: where the other's slots lie; a trainer: where its maxima land, at slot 0 */
	uint32_t ring_region;
	uint64_t slot_offset[8];
	uint32_t slot_count;
	const struct place_row *rows; /* R: only the params that T writes to */
	uint32_t row_count;
};

/* Where a param lies in buffer set 0, by rows ascending by first_param; false: they don't say.
 * Rows may cover params that nobody asked for. */
bool place_find(const struct place_row *rows, uint32_t count, uint32_t param, uint32_t *region_out,
		uint64_t *offset_out);

/* What my own plan says of a pair, to hold the other's frame against. */
struct pair_plan {
	const char *with; /* the other, for a sentence */
	uint64_t plan_digest, pair_digest;
	uint64_t op_count, op_id_max; /* ops of mine to it; the highest id that an op may have */
};

/* -ESTALE: the other has another plan; -EPROTO: it gave ids that are too high. */
int pair_check(const struct pair_frame *frame, const struct pair_plan *mine, struct ws_error *err);
/* member_say_pair of a frame.  -ENOMEM. */
int pair_say(struct member *member, uint64_t generation, uint32_t to, bool answer,
	     const struct pair_frame *frame, struct ws_error *err);

int pair_encode(const struct pair_frame *pair, struct writer *out);
/* Rows go to arena; address and regions point into bytes.  -EPROTO names what is wrong. */
int pair_decode(struct pair_frame *pair_out, struct arena *arena, const void *bytes, size_t count,
		struct ws_error *err);

#endif
