/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of rollout_side share.
 *
 *   rollout.c  open, add, start, close, and what callers may ask
 *   describe.c the same again with another manifest, while the side lives
 *   step.c     the caller's step: runs the hook that the I/O thread has handed over
 *   io.c       the I/O thread's loop: hub, engine and hooks -> version.c -> what is to be done
 *   wire.c     roster -> plan -> fence -> answers to pair requests -> program (I/O thread)
 *   forward.c  what this rank sends on to other rollouts (I/O thread)
 *   arena.c    where bytes land: the spare arena or the engine's memory, the ring, place rows
 *   receive.c  the plan's receives as the engine's program
 *   post.c     post steps: when they are due (I/O thread), and the thread that runs them
 *   version.c  the state machine (pure)
 *   verify.c   digests of params
 *
 * Caller and I/O thread share one slot for the hook that is due (its state says whose turn it is)
 * and a few atomics.  Everything below "I/O thread" belongs to that thread from start until it
 * is joined, everything below "caller" to the caller.
 */
#ifndef ROLLOUT_INTERNAL_H
#define ROLLOUT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/base/base.h"
#include "lib/cuda/cuda.h"
#include "lib/engine/devices.h"
#include "lib/engine/engine.h"
#include "lib/hub/host.h"
#include "lib/hub/hub.h"
#include "lib/link/link.h"
#include "planner/planner.h"
#include "planner/source.h"
#include "rollout_side/version.h"
#include "rollout_side/ws_rollout.h"

#define SLOTS_MAX	   ((uint32_t)ARRAY_SIZE(((struct pair_frame *)0)->slot_offset))
#define ROLLOUT_NAME_BYTES 64

/* ---------------------------------------------------------------- wire.c */
enum wire_state {
	WIRE_NONE = 0, /* no peers; a roster must come */
	WIRE_FENCING,  /* the peers of before are being closed */
	WIRE_PAIRING,  /* requests are answered */
	WIRE_WIRED,
	WIRE_FAILED /* it was told to the hub, which ends the run */
};

/* One sender to me. */
struct pair {
	uint32_t member;	  /* index in the roster */
	uint64_t id, incarnation; /* of the sender */
	bool forwards;		  /* it is a rollout */
	const struct plan_pair *plan;
	struct engine_peer *peer; /* NULL before its request came */
	uint32_t op_id_base;	  /* my op ids of its ops begin here */
	uint32_t receive_base;	  /* its first counter among my receives */
	uint32_t credit_base;	  /* its op ids of my credits begin here */
	uint64_t ring_offset;	  /* of its slots in my ring */
	uint64_t *needs;	  /* bits: params that it writes directly */
	const void *request;	  /* a copy, where it came before the fence was done */
	uint32_t request_bytes;
	bool answered;
};

/* One rollout that I forward to. */
struct forward {
	uint32_t member; /* index in the roster */
	const struct plan_pair *plan;
	struct engine_peer *peer;
	uint32_t digest_base; /* its first counter among my digests */
	bool answered;
	uint32_t op_id_base, receive_base;
	const struct place_row *rows; /* in the wire's arena */
	uint32_t row_count;
	uint64_t ready_attempt; /* the last ready heard */
};

/* Which calls of post steps wait for a receive: list[first[r]..first[r + 1]), a call perhaps more
 * than once; needs[call]: how often it is listed. */
struct post_program {
	uint32_t *first, *list, *needs;
};

struct wire {
	enum wire_state state;
	uint64_t generation;
	bool engine_made;
	bool written;		 /* some attempt was armed: writes of an aborted one may come */
	bool quiet_said;	 /* what I write to others with is closed */
	uint64_t fence_until_ns; /* peers that can't be heard are given up then */
	struct rules rules;
	struct arena arena;	   /* pairs, program; of this generation */
	struct arena arena_before; /* what the engine still borrows of the one before */
	struct pair *pairs;
	struct forward *forwards;
	uint32_t pair_count, forward_count;
	uint32_t answered_count;  /* of both */
	bool next_gone;		  /* those that I forward to were dropped */
	uint32_t *send_param;	  /* by send: for error texts */
	uint32_t *pair_of_member; /* UINT32_MAX: none */
	uint32_t member_count;
	struct engine_program program;
	struct post_program posts;
	uint64_t op_id_count;
	uint64_t ring_bytes;	  /* that this plan needs */
	uint64_t bytes_forwarded; /* in an update */
};

/* ---------------------------------------------------------------- the hook slot */
enum slot_state { SLOT_EMPTY = 0, SLOT_POSTED, SLOT_CLAIMED, SLOT_DONE };

struct hook_slot {
	_Atomic int state; /* enum slot_state */
	enum hook hook;
	uint64_t version;
	bool serving_old;
	struct ws_error why;
	struct ws_rollout_report report; /* HOOK_RESUME: as far as the I/O thread knows it */
	int rc;
	struct ws_error err;
	uint64_t copy_ns, reload_ns, param_digest; /* HOOK_RELOAD */
};

/* ---------------------------------------------------------------- describe.c */

/* What a manifest makes of this rank: constant while the I/O thread runs. */
struct description {
	char *manifest; /* owned copy of my side's text */
	size_t manifest_bytes;
	struct arena arena; /* all below */
	struct rank_params params;
	struct ws_memory *memories;  /* the engine's, by param; base NULL: not given */
	struct ws_memory *targets;   /* where bytes land, by param */
	struct memory_place *places; /* by param, of targets */
	bool *added;		     /* by ws_rollout_add, since this manifest was given */
	bool *staged; /* by param: it lands in spare memory in both modes, its step makes memories[]
		       */
	struct rank_steps steps;
	struct ws_memory *made;	    /* the engine's, by made; of a staged param: its memories[] */
	struct ws_memory *made_now; /* where steps write: spare in double, else made */
	bool *made_added;
};

/* The caller asks to be let out of the run between two updates, the I/O thread answers. */
enum describe_state { DESCRIBE_NONE = 0, DESCRIBE_ASKED, DESCRIBE_BUSY, DESCRIBE_GRANTED };

/* ---------------------------------------------------------------- post.c */
struct post_step {
	char *name; /* owned */
	int (*function)(void *arg, const struct ws_post *post, struct ws_error *err);
	void *arg;
};

struct posts; /* the calls and their thread */

struct ws_rollout {
	/* constant after start */
	char *hub_text; /* owned */
	struct run_key key;
	uint32_t replica, rank, world;
	bool inplace, want_digest;
	char name[ROLLOUT_NAME_BYTES]; /* "rollout 1.0" */
	char host[HOST_TEXT_BYTES];
	struct devices devices;
	struct ws_rollout_hooks hooks;
	void *hook_arg;
	struct description own;
	struct ws_memory place;	     /* where the params lie; base and bytes are not used */
	struct ws_memory spare;	     /* owned; what lands in double, in place what is staged */
	struct ws_memory made_spare; /* owned; double: what post steps make */
	struct cuda_queue queue;     /* owned; double, on a GPU: copies spare memory out */
	void *stream;		     /* the engine's, or NULL */
	struct post_step steps[WS_POST_STEPS_MAX];
	uint32_t step_count, post_ms;

	/* shared */
	struct hook_slot slot;
	_Atomic bool stop, poisoned, hub_lost, wired_once, over_set;
	_Atomic int describe; /* enum describe_state */
	_Atomic uint64_t last_step_ns, live_version;
	struct ws_error over;		  /* published by over_set */
	struct ws_error hub_why;	  /* of hub_lost; written before it */
	_Atomic uint32_t verified_serial; /* odd while the caller writes the three */
	_Atomic uint64_t verified_version, verified_bytes, verified_different;
	int wake_fd; /* owned eventfd: the I/O thread is to look */
	int step_fd; /* owned eventfd: step has something to do */

	/* caller */
	bool serving, whole;	   /* whole: no update is writing the engine's memory */
	bool describing;	   /* between ws_rollout_describe and its end: no I/O thread */
	bool landing_kept;	   /* describing: all lies where it did before */
	struct description before; /* describing: what is registered */
	struct ws_rollout_report last;

	/* I/O thread */
	struct posts *posts; /* owned; NULL: there are no calls */
	bool abort_waits;    /* on_abort isn't handed over before the step that runs is back */
	struct version_action abort_action;
	pthread_t thread;
	bool thread_started;
	struct member *member;
	struct engine *engine;
	struct plan_source source;
	struct ws_memory ring; /* owned */
	uint32_t ring_region;  /* UINT32_MAX: none */
	bool landing_registered;
	struct wire wire;
	struct version version;
	bool is_over;
	bool describe_said; /* to the hub */
	uint32_t verified_seen;
	uint64_t said_ns, rails_ns; /* when state and rails were last looked at for the hub */
	uint64_t begin_ns, ready_ns, landed_ns, pause_ns; /* of the attempt */
	uint64_t copy_ns, reload_ns, param_digest;
	uint64_t bytes_from_rollouts; /* of the attempt */
	char nic_trouble[256];	      /* at its begin */
};

/* rollout.c */
int io_start(struct ws_rollout *rollout, struct ws_error *err);

/* describe.c */
int description_make(struct description *out, struct plan_source *source, const char *manifest,
		     size_t bytes, uint32_t rank, uint32_t world, struct ws_error *err);
void description_release(struct description *description);
int description_complete(const struct ws_rollout *rollout, struct ws_error *err);
/* By the index of ws_rollout_param: params, then what is derived. */
uint32_t description_count(const struct description *own);
const char *description_name(const struct description *own, uint32_t index);
const struct ws_memory *description_memory(const struct description *own, uint32_t index);

/* io.c */
void *rollout_io_main(void *arg);
void fd_wake(int fd);
/* Hands actions out; what they lead to is settled before it returns. */
void actions_apply(struct ws_rollout *rollout, const struct version_actions *actions);

/* wire.c */
void rollout_wire_roster(struct ws_rollout *rollout, const struct member_event *event);
void rollout_wire_quiet(struct ws_rollout *rollout, uint64_t generation);
void rollout_wire_pair(struct ws_rollout *rollout, const struct member_event *event);
void rollout_wire_step(struct ws_rollout *rollout);
void rollout_wire_close(struct ws_rollout *rollout, uint64_t until_ns);
/* Forgets the pairs; who wrote to me is fenced by the next wiring, or now if something may still
 * be under way. */
int rollout_wire_suspend(struct ws_rollout *rollout, struct ws_error *err);
void rollout_wire_release(struct ws_rollout *rollout);
const char *rollout_wire_member_name(const struct ws_rollout *rollout, uint32_t member,
				     char *text_out);
/* The pair that a receive belongs to. */
const struct pair *rollout_wire_pair_of_receive(const struct ws_rollout *rollout, uint32_t receive);

/* forward.c */
/* A forward of bucket b waits behind the gate of the receives of bucket b that feed it. */
static inline uint32_t forward_gate(uint32_t bucket)
{
	return bucket + 1;
}
int forwards_make(struct ws_rollout *rollout, const struct member_event *event,
		  struct ws_error *err);
int forwards_ask(struct ws_rollout *rollout, struct ws_error *err);
int forward_answer(struct ws_rollout *rollout, const struct member_event *event,
		   struct ws_error *err);
/* Adds sends, digests and gates to the program. */
int forwards_program(struct ws_rollout *rollout, struct ws_error *err);
void forwards_armed(struct ws_rollout *rollout);
void forward_ready(struct ws_rollout *rollout, const struct member_event *event);
void forwards_next_gone(struct ws_rollout *rollout);
/* Why forwards aren't done: "forwards to rollout 1.0, which isn't ready"; false if they are. */
bool forwards_missing(const struct ws_rollout *rollout, char *text_out, size_t bytes);
uint32_t forward_member_of_peer(const struct ws_rollout *rollout, const struct engine_peer *peer);
const char *forward_param_of_op(const struct ws_rollout *rollout, const struct engine_peer *peer,
				uint32_t op_id);

/* arena.c */
int landing_open(struct ws_rollout *rollout, struct ws_error *err);	/* spare memory, targets */
int landing_register(struct ws_rollout *rollout, struct ws_error *err); /* with the engine */
/* Params of before lie no more where they did; what lands there belongs to `before`. */
void landing_drop(struct ws_rollout *rollout, const struct description *before);
int ring_fit(struct ws_rollout *rollout, struct ws_error *err); /* wire.ring_bytes */
void landing_close(struct ws_rollout *rollout);
/* Zeroes what no canonical tensor covers in the engine's memory. */
int padding_zero(struct ws_rollout *rollout, struct ws_error *err);
/* Spare memory into the engine's own. */
int landing_copy_out(struct ws_rollout *rollout, struct ws_error *err);
/* Where the params lie that a pair writes to, as few rows as a progression allows. */
int place_rows(const struct ws_rollout *rollout, const uint64_t *needs, struct arena *arena,
	       struct place_row **rows_out, uint32_t *count_out);

/* receive.c */
/* Bases, ring offsets and needs of all pairs, from the plan. */
int receive_lay_out(struct ws_rollout *rollout, struct ws_error *err);
int receive_program(struct ws_rollout *rollout, struct ws_error *err);
/* "got 41 of 42 ops of bucket 'model.layers.7' from trainer 3"; false if nothing is missing. */
bool receive_missing(const struct ws_rollout *rollout, char *text_out, size_t bytes);
/* "has all ops, and waits for GPU 0 to unpack them"; false if it doesn't. */
bool receive_unpacks(const struct ws_rollout *rollout, char *text_out, size_t bytes);

/* post.c.  Between posts_open and posts_close, by the I/O thread unless said; all of them do
 * nothing where no step is called on this rank. */
/* By the caller, before there is an I/O thread. */
int posts_open(struct ws_rollout *rollout, struct ws_error *err);
/* By the caller, after it has ended: waits for the call that runs as long as it may take, and on a
 * GPU for what it has queued (cuda_stream_settle).  No memory of the GPU is freed before. */
void posts_stop(struct ws_rollout *rollout);
/* The same, and frees all; false: it isn't back after as
 * long as it may take, so its thread now owns what it was given: description and spare memory. */
bool posts_close(struct ws_rollout *rollout);
/* What receives the calls wait for, in the wire's arena. */
int posts_program(struct ws_rollout *rollout, struct ws_error *err);
void posts_arm(struct ws_rollout *rollout);
void posts_landed(struct ws_rollout *rollout, uint32_t receive);
void posts_cancel(struct ws_rollout *rollout);
/* No call is with the thread. */
bool posts_idle(const struct ws_rollout *rollout);
/* All of the attempt's are back, and went well. */
bool posts_done(const struct ws_rollout *rollout);
/* Once per attempt: -errno and a sentence for a call that failed, or that isn't back in time. */
int posts_look(struct ws_rollout *rollout, struct ws_error *why);
/* "runs post step 'x' of 'param'"; false if none runs. */
bool posts_waits(const struct ws_rollout *rollout, char *text_out, size_t bytes);
void posts_report(const struct ws_rollout *rollout, struct ws_rollout_report *report);

/* verify.c */
int param_digest(const struct ws_rollout *rollout, uint32_t index, uint64_t *digest_out,
		 struct ws_error *err);
int params_digest(const struct ws_rollout *rollout, uint64_t *digest_out, struct ws_error *err);

#endif
