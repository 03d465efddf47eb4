/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of trainer_side share.
 *
 *   trainer.c  open, add, start, close: the caller's side of everything but a push
 *   request.c  what callers ask of a push, and the answers
 *   push.c     the state of one push (I/O thread)
 *   wire.c     roster -> plan -> peers -> pair frames -> program (I/O thread)
 *   program.c  the plan's copies as the engine's sends; quantize.c: by what weights are quantized
 *   receive.c  what others write to a trainer: credits, maxima of blocks (I/O thread)
 *   io.c       the I/O thread's loop
 *
 * The caller and the I/O thread share one mailbox: the caller fills `request` and raises `asked`,
 * the thread answers into `reply` and raises `answered`; whoever may write is said by the two
 * numbers alone.  Everything else below "I/O thread" belongs to it from start until it is joined.
 */
#ifndef TRAINER_INTERNAL_H
#define TRAINER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/base/base.h"
#include "lib/engine/devices.h"
#include "lib/engine/engine.h"
#include "lib/hub/hub.h"
#include "lib/link/link.h"
#include "planner/planner.h"
#include "planner/source.h"
#include "trainer_side/ws_trainer.h"

#define SLOTS_MAX ((uint32_t)ARRAY_SIZE(((struct pair_frame *)0)->slot_offset))

#define MEMBER_NAME_BYTES_MAX 64
#define STAGING_GPU_BYTES     (UINT64_C(512) << 20) /* at most, unless it is told otherwise */

/* The body of a rollout's ready: which buffer set may be written. */
#define READY_BODY_BYTES 4u

/* ---------------------------------------------------------------- wire.c */
enum wire_state {
	WIRE_NONE = 0, /* no peers; a roster must come */
	WIRE_FENCING,  /* the peers of before are being closed */
	WIRE_PAIRING,  /* pair frames are under way */
	WIRE_WIRED,
	WIRE_CLOSED, /* a push died here: everything is closed before the hub asks */
	WIRE_FAILED  /* it was told to the hub; everything is closed */
};

/* One receiver of mine. */
struct pair {
	uint32_t member; /* index in the roster */
	uint32_t rank;	 /* in its replica */
	const struct plan_pair *plan;
	struct engine_peer *peer;
	uint32_t credit_base; /* my op ids of its credits begin here */
	uint32_t digest_base; /* its first counter among my digests */
	bool answered;
	uint32_t op_id_base, receive_base, ring_region, slot_count;
	uint64_t slot_offset[8];
	const struct place_row *rows; /* in the wire's arena */
	uint32_t row_count;
	uint64_t ready_attempt; /* the last ready heard */
};

/* One trainer that writes to me. */
struct source {
	uint32_t member;	  /* index in the roster */
	uint64_t id, incarnation; /* of it */
	const struct plan_pair *plan;
	struct engine_peer *peer; /* NULL before its request came */
	uint32_t op_id_base;	  /* my op ids of its ops begin here */
	uint32_t receive_base;	  /* its first counter among my receives */
	uint64_t inbox_offset;	  /* of its stretch */
	const void *request;	  /* a copy, where it came before the fence was done */
	uint32_t request_bytes;
	bool answered;
};

struct wire {
	enum wire_state state;
	uint64_t generation;
	bool engine_made; /* rules and engine agree, params are registered */
	bool quiet_said;
	uint64_t fence_until_ns; /* who can't be heard is given up then */
	struct rules rules;
	struct arena arena;	   /* pairs, rows, program; of this generation */
	struct arena arena_before; /* what the engine still borrows of the one before */
	struct pair *pairs;
	struct source *sources;
	uint32_t pair_count, source_count;
	uint32_t answered_count; /* of both */
	uint32_t credit_count;	 /* my first op ids */
	uint64_t inbox_bytes;	 /* that this plan needs */
	uint32_t replica_count;
	uint32_t *pair_of_member; /* UINT32_MAX: none */
	uint32_t member_count;
	struct engine_program program;
	struct recipe *recipes;	    /* quantize.c's; in the arena */
	struct replica_view *views; /* room for replica_count */
	uint32_t *send_bucket;	    /* by send: for error texts */
	uint32_t *send_param;	    /* by send: my first param in it */
};

/* ---------------------------------------------------------------- push.c */
enum push_state {
	PUSH_NONE = 0,
	PUSH_ASKED,   /* the hub was asked, or is to be */
	PUSH_JOINED,  /* its attempt began: writing */
	PUSH_CLOSING, /* it died here before release: my senders are being closed */
	PUSH_DOUBT,   /* I was dropped: whether it went live the next roster's views say */
	PUSH_OVER     /* its outcome is known */
};

struct push {
	enum push_state state;
	uint64_t version, attempt, deadline_ns;
	uint64_t close_ns; /* CLOSING: it doesn't wait any longer for its senders */
	bool released, live;
	bool sent;		   /* every op of mine is reported */
	bool over_heard;	   /* the hub ended the attempt */
	bool other_version;	   /* the hub began another one than mine: wait for its abort */
	bool dropped;		   /* before the end was heard */
	uint64_t doubt_generation; /* the wiring whose views are of before */
	struct ws_error why;	   /* code 0: it went well so far */
	uint64_t start_ns, ready_ns, sent_ns, landed_ns, paused_ns;
	uint32_t last_landed; /* replica */
	struct ws_report report;
};

enum request_kind { REQUEST_NONE = 0, REQUEST_START, REQUEST_BEGIN, REQUEST_RELEASED, REQUEST_END };

struct request {
	enum request_kind kind;
	uint64_t version, deadline_ns;
};

/* What rollouts verified, for ws_trainer_verified; serial is odd while the I/O thread writes. */
struct verified {
	_Atomic uint64_t wanted; /* version; the caller's word */
	_Atomic uint32_t serial;
	_Atomic uint64_t version;
	_Atomic uint32_t ranks;
	_Atomic uint64_t bytes, different;
	/* Why a replica was dropped, or the run ended, written before the version of the last push
	 * that it belongs to: then it stays until the caller's next push. */
	struct ws_error gone;
	_Atomic uint64_t gone_version;
};

struct ws_trainer {
	/* constant after start */
	char *hub_text; /* owned */
	char *manifest; /* owned copy of my side's text */
	size_t manifest_bytes;
	struct run_key key;
	uint32_t rank, world;
	uint64_t staging_bytes; /* 0: as the rules say */
	uint64_t ring_bytes;	/* 0: params are read where they are */
	int offload_device;	/* the GPU that does the work; -1: it is done where params lie */
	struct pins pins;	/* owned; of offloaded params */
	struct devices devices;
	struct arena arena; /* params */
	struct rank_params params;
	struct ws_memory *memories; /* by param; in the arena */
	bool *added;
	struct hub *hub; /* owned; rank 0 with hub_here */

	/* the mailbox */
	struct request request;
	struct ws_error reply;
	_Atomic uint32_t asked, answered;
	_Atomic bool cancelled, stop;
	int wake_fd, reply_fd;	   /* owned eventfds; -1: none */
	bool stuck;		   /* the I/O thread once didn't answer: no further calls */
	struct verified *verified; /* owned */
	uint64_t push_deadline_ns; /* the caller's: of the push that it began */

	/* I/O thread */
	pthread_t thread;
	bool thread_started;
	struct member *member;
	struct engine *engine;
	struct plan_source source;
	struct memory_place *places; /* by param; in the arena */
	struct ws_memory place;	 /* where the work is done: with my params, or the GPU; no memory */
	struct ws_memory tables; /* owned; there, too */
	struct ws_memory inbox;	 /* owned; where maxima of others land */
	uint32_t inbox_region;	 /* UINT32_MAX: none */
	struct wire wire;
	struct push push;
	struct ws_error over; /* code or text: the run ended for me */
	bool is_over, hub_lost, all_wired;
	uint64_t rails_ns;		       /* when the engine's rails were last looked at */
	uint64_t begun_attempt, begun_version; /* the hub's last begin */
	uint64_t waits_ns;		       /* when it was last said what is waited for */
	uint64_t ended_attempt, version_live;  /* of my pushes that have ended */
};

/* io.c */
void *trainer_io_main(void *arg);

/* wire.c */
void trainer_wire_roster(struct ws_trainer *trainer, const struct member_event *event);
void trainer_wire_pair(struct ws_trainer *trainer, const struct member_event *event);
/* Who writes to me has closed what it wrote with before. */
void trainer_wire_quiet(struct ws_trainer *trainer, uint64_t generation);
/* Goes on with the fence; called in each turn of the loop. */
void trainer_wire_step(struct ws_trainer *trainer);
/* Begins to close all peers; trainer_wire_step goes on, and a later roster takes over. */
void trainer_wire_shut(struct ws_trainer *trainer);
/* Closes all peers as far as it goes until until_ns; for the end. */
void trainer_wire_close(struct ws_trainer *trainer, uint64_t until_ns);
void trainer_wire_release(struct ws_trainer *trainer);
/* "rollout 1.0"; text_out of 64 bytes. */
const char *trainer_wire_member_name(const struct ws_trainer *trainer, uint32_t member,
				     char *text_out);

/* receive.c */
/* Who writes to me, and where: behind the credits of the pairs. */
int sources_make(struct ws_trainer *trainer, const struct member_event *event,
		 struct ws_error *err);
/* As large as this plan needs it. */
int inbox_fit(struct ws_trainer *trainer, struct ws_error *err);
int source_request(struct ws_trainer *trainer, const struct member_event *event,
		   struct ws_error *err);
/* Those whose requests came before the fence was done. */
int sources_answer(struct ws_trainer *trainer, struct ws_error *err);
/* Adds receives and op ids to the program. */
int receives_program(struct ws_trainer *trainer, struct ws_error *err);
const struct source *source_of_receive(const struct ws_trainer *trainer, uint32_t receive);
/* "got 3 of 4 ops of maxima of bucket 'model.layers.7' from trainer 3"; false if none is missing.
 */
bool sources_missing(const struct ws_trainer *trainer, char *text_out, size_t bytes);

/* request.c */
void push_request(struct ws_trainer *trainer); /* looks at the mailbox */

/* push.c */
void push_begin(struct ws_trainer *trainer, uint64_t version, uint64_t deadline_ns);
void push_begun(struct ws_trainer *trainer); /* the hub began an attempt */
void push_ready(struct ws_trainer *trainer, const struct member_event *event);
void push_sent(struct ws_trainer *trainer);   /* the engine: all sends are done */
void push_fenced(struct ws_trainer *trainer); /* every op there was is reported */
/* ... or never will be: -ETIMEDOUT, a GPU was given up. */
void push_unfenced(struct ws_trainer *trainer, const struct ws_error *why);
/* ... or isn't yet, for what is said. */
void push_closing(struct ws_trainer *trainer, const struct ws_error *waits);
/* It can't go on here, whatever the hub says: what isn't released is closed first. */
void push_failed(struct ws_trainer *trainer, const struct ws_error *why);
/* This incarnation was dropped; the others may have brought the version to its end. */
void push_dropped(struct ws_trainer *trainer, const struct ws_error *why);
void push_look(struct ws_trainer *trainer); /* what the hub says of the replicas, and the end */
void push_replica_gone(struct ws_trainer *trainer); /* for who waits for its verdict */
void push_step(struct ws_trainer *trainer);	    /* deadlines, replicas' states, answers */

#endif
