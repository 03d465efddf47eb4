/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of lib/engine share.  engine.h has the contract and the thread rules; the only
 * things that two threads touch are the rings and flags of struct stage, and the counters of
 * struct imm (released by the poller, acquired by the stage thread).
 *
 *   engine.c   open, close, step, wait           program.c  one attempt: armed, what comes, ended
 *   issue.c    what an attempt sends             post.c     ops in flight, dealt over rails
 *   local.c    gates, and what holds them first  region.c   memory on every NIC
 *   peer.c     connections, rails                fence.c    the end of a wiring
 *   rails.c    the life of a NIC             doubt.c    rails that fail while their ports are up
 *   imm.c      bitmap and counters (no engine)   cut.c      byte ranges of a gather (no engine)
 *   stage.c    the thread that gathers, hashes and scatters; stage_gpu.c: by a GPU
 *   offload.c  sources of the host that a GPU reads; ring.c: their places in it (no engine)
 */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/engine/engine.h"
#include "lib/engine/ring.h"

#define NONE	      UINT32_MAX
#define EVENT_ROOM    512    /* engine events not yet taken; a power of two */
#define POLL_BATCH    64     /* transport events taken at once */
#define STAGE_ROOM    1024u  /* requests with the stage thread; a power of two */
#define DIGESTS_MAX   65536u /* receives, and digests to send, of one program */
#define DEPTH_DEFAULT 16u
#define DEPTH_GPU     256u
/* A NIC that is in use, a rail that has carried bytes, for so long is as good as new. */
#define CALM_NS UINT64_C(60000000000)

/* Region 0: where digests land (8 bytes per receive), a page that credits name, the digests that
 * I send, then the staging blocks. */
#define CREDIT_OFFSET	(8u * (uint64_t)DIGESTS_MAX)
#define OUTGOING_OFFSET (CREDIT_OFFSET + 4096u)
#define STAGING_OFFSET	(OUTGOING_OFFSET + 8u * (uint64_t)DIGESTS_MAX)
_Static_assert(STAGING_OFFSET % 4096 == 0, "staging blocks are page aligned");

/* ---------------------------------------------------------------------------- imm.c */
struct imm_counter {
	_Atomic uint32_t arrived; /* first arrivals only */
	uint32_t threshold;
};

struct imm {
	uint64_t *seen; /* owned; one bit per op id */
	uint32_t op_id_count;
	const struct op_range *ranges; /* borrowed from the program */
	uint32_t range_count;
	struct imm_counter *counters; /* owned; one per receive */
	uint32_t counter_count;
	uint64_t attempt;
	bool armed;
};

enum imm_verdict {
	IMM_COUNTED,
	IMM_REACHED, /* this one completed the counter */
	IMM_CREDIT,
	IMM_STALE,
	IMM_DUPLICATE,
	IMM_UNKNOWN,
	IMM_NO_ATTEMPT
};

/* Takes the program's ranges, checks them against the thresholds; -EINVAL says what is wrong. */
int imm_set(struct imm *imm, const struct engine_program *program, struct ws_error *err);
void imm_arm(struct imm *imm, uint64_t attempt);
void imm_end(struct imm *imm);
void imm_release(struct imm *imm);
/* One arrival.  *receive_out is NONE where no receive is known. */
enum imm_verdict imm_take(struct imm *imm, uint32_t value, uint32_t *receive_out);
bool imm_has(const struct imm *imm, uint32_t op_id);
/* The counter is reached; on the stage thread: and its bytes can be read. */
bool imm_is_whole(const struct imm *imm, uint32_t receive);
uint32_t imm_missing(const struct imm *imm, uint32_t receive, uint32_t *first_op_id_out);

/* ---------------------------------------------------------------------------- cut.c */
/* Bytes of op index k of a copy. */
static inline uint64_t cut_op_bytes(uint64_t bytes, uint64_t op_bytes, uint32_t k)
{
	return MIN(op_bytes, bytes - k * op_bytes);
}

/* -EINVAL unless moves ascend by wire offset, are 16-aligned, inside bytes, and can be done. */
int cut_check(const struct gather_move *moves, uint32_t count, uint64_t bytes,
	      struct ws_error *err);
/* Gathers bytes [from, to) of the packed stream to dst; padding becomes zero.  from is a multiple
 * of 16, so is to unless it is the stream's end.  ring: where sources are looked for first; or
 * NULL.
 */
void cut_gather(const struct gather_move *moves, uint32_t count, uint64_t from, uint64_t to,
		uint8_t *dst, const struct ring *ring);
/* The same, and each box is handed to take; what lies between them isn't touched.  Ends with the
 * first take that isn't 0, and returns that. */
typedef int cut_take(void *arg, const struct move *box);
int cut_boxes(const struct gather_move *moves, uint32_t count, uint64_t from, uint64_t to,
	      uint8_t *dst, cut_take *take, void *arg);
/* Sum of xxh3_64(op bytes, seed = op id) over all ops of the spans; ends early when *stop !=
 * serial. */
uint64_t cut_digest(const struct span *spans, uint32_t count, uint64_t op_bytes,
		    const _Atomic uint32_t *stop, uint32_t serial);

/* -------------------------------------------------------------------------- stage.c */
enum stage_kind { STAGE_GATHER, STAGE_HASH, STAGE_RECEIVE, STAGE_LOCAL };

struct stage_request {
	enum stage_kind kind;
	uint32_t serial; /* of the attempt; another than stage.serial: do nothing */
	uint32_t index;	 /* send, receive or local */
	uint32_t op;	 /* GATHER, HASH: op index in the send */
	uint32_t block;	 /* GATHER */
};

struct stage_result {
	struct stage_request request;
	bool done;	    /* false: dropped, the attempt ended */
	bool wrong;	    /* RECEIVE: the digest differs */
	bool failed;	    /* the GPU has */
	uint64_t got, want; /* got: the op's hash, or the sum over the spans */
	uint64_t ns;
};

/* One end of a ring, apart from what the other thread writes. */
struct ring_end {
	_Atomic uint32_t at; /* counts up and wraps; modulo STAGE_ROOM it is an index */
	uint8_t apart[60];
};

/* Two single-producer rings; requests never outnumber STAGE_ROOM, so results always fit. */
struct stage {
	struct engine *engine; /* borrowed; what a request names is constant during an attempt */
	struct stage_gpu *gpu; /* owned; NULL: the thread moves by itself */
	pthread_t thread;
	int wake_fd, done_fd;	 /* eventfds: work for the thread; results for the engine */
	_Atomic uint32_t serial; /* of the attempt whose requests are to be done */
	bool started;
	_Atomic bool stop;
	_Atomic bool wake_told, done_told; /* the eventfd was written since its reader looked */
	bool done_owed;			   /* told, but the write had not come when I read */
	uint32_t outstanding;		   /* engine's side only */
	struct ring_end request_head, request_tail, result_head, result_tail;
	struct stage_request requests[STAGE_ROOM];
	struct stage_result results[STAGE_ROOM];
};

/* stage_gpu.c.  On the stage thread but for open and close. */
struct stage_gpu;
/* stream: the caller's, or NULL for one of its own. */
int stage_gpu_open(struct stage *stage, int device, struct CUstream_st *stream,
		   struct ws_error *err);
void stage_gpu_close(struct stage *stage);
/* Takes what requests there are and tells what is done; false: there is nothing to do. */
bool stage_gpu_turn(struct stage *stage);
/* On the engine's thread, while nothing is with the stage thread: in front of all that comes.
 * Doesn't wait; an error comes with the next result. */
void stage_gpu_zero(struct stage *stage, void *at, uint64_t bytes);
/* Why it failed, for ever. */
const char *stage_gpu_reason(const struct stage *stage);
bool stage_is_live(const struct stage *stage, uint32_t serial);
void stage_tell(struct stage *stage);

int stage_thread_open(struct engine *engine, struct CUstream_st *stream, struct ws_error *err);
void stage_thread_close(struct engine *engine);
static inline uint32_t stage_room(const struct stage *stage)
{
	return STAGE_ROOM - stage->outstanding;
}
void stage_put(struct stage *stage, const struct stage_request *request); /* needs room */
bool stage_take(struct stage *stage, struct stage_result *result_out);
/* Makes the thread drop requests of another serial, but for the piece that it is in. */
void stage_drop(struct stage *stage, uint32_t serial);
/* Waits until all results are there to be taken. */
void stage_wait(struct stage *stage);
/* Clears the readable state of done_fd before results are taken. */
void stage_heard(struct stage *stage);

/* ------------------------------------------------------------------- regions, peers */
struct region {
	struct ws_memory memory; /* borrowed; bytes 0: a hole */
	enum mr_use use;
	uint32_t registered; /* the first so many NICs were asked */
	struct mr mrs[];     /* one per NIC; zeroes where it is gone or can't reach it */
};

struct remote_key {
	uint64_t key, base;
};

/* My NIC's half of a connection, at the index of my NIC. */
struct rail {
	struct peer *peer;   /* the transport's; NULL: never opened, or closed */
	uint32_t remote_nic; /* if paired */
	bool paired;
	bool spare;	  /* pairs with nothing: to be closed as soon as that goes */
	bool failed;	  /* in this wiring: it or an op over it */
	uint64_t sent_ns; /* when an op over it was last reported as SENT; 0: never */
	uint64_t mute_ns; /* if it failed: since then nothing came back */
	uint64_t doubted; /* as my address has it: the life of the NIC to leave out; 0: none */
	uint32_t in_flight;
	uint32_t refused_step; /* the NIC took nothing more for it in this step */
};

struct engine_peer {
	char *name;			 /* owned */
	uint32_t ordinal;		 /* which of my peers: spreads uneven rails */
	uint64_t remote_lives[NICS_MAX]; /* of its NICs, from its address; 0: out of use */
	bool quiet, abandoned;
	uint64_t writer, writer_incarnation; /* the member that writes to me by it; 0: nobody */
	uint32_t address_nic_count;	     /* as in its address; 0: not connected */
	uint32_t remote_nic_count;	     /* as in its regions; 0: none came */
	uint32_t remote_region_count;
	size_t remote_bytes_room, remote_keys_room;
	uint64_t *remote_bytes;		/* owned; per region */
	struct remote_key *remote_keys; /* owned; [region * remote_nic_count + nic] */

	/* of the program */
	uint32_t first_send, last_send; /* NONE: nothing to send */
	/* of the attempt */
	bool ready, broken;		    /* broken: an op failed; no more are posted to it */
	bool dropped;			    /* given up, and broken for that */
	uint32_t send, op;		    /* next to issue */
	uint32_t gathering;		    /* blocks with the stage thread */
	uint32_t blocks;		    /* all that it holds, also of attempts before */
	uint32_t staged_first, staged_last; /* blocks to post */
	struct rail rails[NICS_MAX];
};

/* ------------------------------------------------------------------------- rails.c */
/* It is lost (poll or post said status), or else down: the side is told. */
void rail_out(struct engine *engine, uint32_t nic, bool lost, int status);
/* A NIC that some peer is to be reached over and that isn't in use; NONE. */
uint32_t rail_out_of_use(const struct engine *engine);
/* The last thing that went wrong with it; empty: nothing. */
const char *rail_trouble(const struct engine *engine, uint32_t nic);
/* Closes a lost NIC, with all that it had. */
void rail_give_up(struct engine *engine, uint32_t nic);

/* ------------------------------------------------------------------------- doubt.c */
#define DOUBTS_MAX 256

enum doubt_state {
	DOUBT_NONE,
	DOUBT_NOTED,  /* the next wiring is to leave the rail out */
	DOUBT_STANDS, /* since since_ns it is left out */
	DOUBT_OVER    /* since then it may be used; kept to know it when it fails again */
};

/* Of the rail from one of my NICs to a peer of this name. */
struct doubt {
	enum doubt_state state;
	uint32_t nic;
	uint32_t times; /* that it failed again */
	uint64_t to;	/* the life of the peer's NIC */
	uint64_t since_ns;
	char peer_name[48], reason[64];
};

/* An op to the peer over the NIC failed, which was posted at since_ns. */
void doubt_note(struct engine *engine, struct engine_peer *peer, uint32_t nic, uint64_t since_ns,
		const char *reason);
/* The attempt is over: what hasn't been answered for long will never be, or is told too late; and
 * what nothing speaks for shares the doubt of its NIC's other rails. */
void doubts_end(struct engine *engine);
/* The rail can't be connected: it isn't used, and both ends are to know. */
void doubt_unreachable(struct engine *engine, struct engine_peer *peer, uint32_t nic,
		       const char *reason);
/* The life of the NIC that the next wiring with the peer is to leave out; 0: none. */
uint64_t doubt_of(struct engine *engine, const struct engine_peer *peer, uint32_t nic);
/* The peer is connected: what was left out is so from now on. */
void doubts_settle(struct engine *engine, const struct engine_peer *peer);
/* Ends those whose time is over; not in an attempt. */
void doubts_mend(struct engine *engine, uint64_t now_ns);
/* The NIC was out of use and is back. */
void doubts_forget(struct engine *engine, uint32_t nic);
/* "left out to 'rollout 0.0' (and 1 more) for 8 s: transport retry counter exceeded", or empty. */
void doubts_text(const struct engine *engine, uint32_t nic, char *text_out, size_t bytes);

/* Every region on a NIC that was opened anew; its place in regions, when it is gone. */
int regions_register(struct engine *engine, uint32_t nic, struct ws_error *err);
void regions_forget(struct engine *engine, uint32_t nic);
/* How a NIC reaches the memory that was given: "memfd, process_vm_writev". */
void regions_paths(const struct engine *engine, uint32_t nic, char *text_out, size_t bytes);
/* All of them on all NICs, after pages were replaced: no NIC may go on with the old ones. */
int regions_renew(struct engine *engine, struct ws_error *err);
int region_open_own(struct engine *engine, const struct engine_options *options,
		    struct ws_error *err);
void region_free_all(struct engine *engine); /* after all NICs are closed */
/* A receive's writes have all come: what is launched on any GPU from now on reads them (cuda.h has
 * the rule). */
int regions_flush(struct engine *engine);
/* NULL for none or a hole. */
struct region *region_find(const struct engine *engine, uint32_t region);
/* Whether a NIC is there and has all regions; no peer is joined over another. */
bool nic_reaches_all(const struct engine *engine, uint32_t nic);
void peer_free(struct engine_peer *peer);
/* Goes on closing what engine_peer_connect had no use for. */
void peer_close_spare(struct engine *engine);
/* Which of mine a transport's peer belongs to, NULL for none.  Walks: for errors only. */
struct engine_peer *peer_of(const struct engine *engine, uint32_t nic, const struct peer *peer);

/* --------------------------------------------------------------------------- post.c */
enum op_kind { OP_DIRECT, OP_GATHERED, OP_DIGEST, OP_CREDIT };

/* One op from the moment it has a NIC until it is reported. */
struct op_slot {
	uint32_t generation; /* with the slot's index: the op's id */
	uint32_t next_free;
	enum op_kind kind;
	bool used;
	uint32_t serial; /* of the attempt */
	uint32_t nic, index, op_id, block;
	uint64_t bytes, posted_ns;
	struct engine_peer *peer;
};

struct engine_nic {
	char *transport, *device; /* owned; to open it again */
	struct nic *nic;	  /* owned; NULL: lost, and closed */
	struct nic was;		  /* what it said of itself, when it is closed */
	uint64_t life;		  /* another one each time it is back; not 0 */
	bool out;		  /* not in use: nothing is posted or connected over it */
	bool lost;		  /* and for that: nothing is polled either */
	bool was_out;		  /* in this attempt, or the last one */
	uint32_t doublings;	  /* of wait_ns, when it goes out the next time */
	uint64_t since_ns;	  /* in use, or out, or down, or that it was last tried to open */
	uint64_t wait_ns;	  /* from then on, until it comes back */
	struct ws_error why;	  /* why it can't be opened */
	struct op *queue;	  /* owned; of limit ops: dealt to it, not yet handed over */
	uint32_t queued;
	uint32_t limit; /* ops in flight */
	uint32_t in_flight;
	uint64_t in_flight_bytes;
	uint64_t bytes_sent; /* in the attempt */
};

/* Its peer gets no more in this attempt, the side is told, and the rail isn't trusted. */
void rail_op_failed(struct engine *engine, uint32_t nic, const struct op_slot *slot,
		    const struct event *event);

struct post {
	enum op_kind kind;
	struct engine_peer *peer;
	uint32_t index; /* send, digest or receive */
	uint32_t op_id, block;
	const void *local;
	uint32_t local_region, remote_region;
	uint64_t remote_offset, bytes;
};

int post_open(struct engine *engine, uint32_t depth, struct ws_error *err);
void post_close(struct engine *engine);
/* 1: it has a NIC, which gets it with post_flush.  0: no rail takes it now.  Negative: the peer is
 * broken and an event says so: -EPROTO outside the peer's region, -ENETDOWN no rail is left. */
int post_op(struct engine *engine, const struct post *post);
/* Hands over what NICs were dealt; what they don't take now is kept for the next time. */
void post_flush(struct engine *engine);
/* The attempt is over: what NICs haven't been handed they never get. */
void post_end(struct engine *engine);
/* SENT or FAILED came; false for an id that isn't in flight. */
bool post_reported(struct engine *engine, uint64_t id, struct op_slot *slot_out);
/* Releases what a closed rail (all of the NIC's where peer is NULL) never reported. */
void post_forget(struct engine *engine, uint32_t nic, const struct engine_peer *peer);
bool post_has_room(const struct engine *engine); /* some NIC may take one more */

/* ------------------------------------------------------------------------ program.c */
struct block {
	uint32_t next; /* in the free list, or in its peer's list to post */
	uint32_t send, op;
	struct engine_peer *peer; /* whose it is, until it is free */
};

struct send_state {
	uint32_t next; /* the peer's next send */
	uint32_t op_count, sent, hashed;
	bool quantizes; /* some move of it is of another kind than CAST */
};

struct digest_state {
	uint64_t sum;
	uint32_t op_count; /* of all its sends */
	uint32_t op_left;
	bool sent;
};

/* Sends wait behind it for locals and receives. */
struct gate {
	uint32_t local_count, receive_count; /* of the program */
	uint32_t locals_left, receives_left; /* of the attempt */
};

/* Indices in the order they became due; each enters at most once an attempt. */
struct due {
	uint32_t *index; /* owned */
	uint32_t head, tail;
};

struct program {
	bool set;
	struct engine_program given;  /* arrays borrowed */
	struct send_state *sends;     /* owned */
	struct digest_state *digests; /* owned */
	struct gate *gates;	      /* owned; by number, the first isn't used */
	struct due checks;	      /* receives for the stage thread */
	struct due credits;	      /* receives whose credit is to be written */
	struct due ready_digests;
	struct engine_peer **active; /* owned; peers with something left to issue */
	uint32_t active_count, active_room, turn;
	uint32_t digests_sent;
	uint32_t locals_put, locals_done; /* put: with the stage thread, or done */
	uint32_t gated;			  /* gates that receives alone hold shut, */
	uint64_t gated_since_ns;	  /* and since when there is one */
	bool sends_done_told;
};

void program_release(struct engine *engine);
void program_arrived(struct engine *engine, uint32_t nic, const struct event *event);
void program_reported(struct engine *engine, uint32_t nic, const struct event *event);
void program_staged(struct engine *engine, const struct stage_result *result);
/* No attempt is open: waits until the stage thread has let go of the last one. */
void program_settle(struct engine *engine);
void program_block_free(struct engine *engine, uint32_t block);
void program_staged_free(struct engine *engine, struct engine_peer *peer); /* all blocks to post */
/* issue.c.  Posts what may be posted now, and gives the stage thread its work. */
void program_issue(struct engine *engine);

/* --------------------------------------------------------------------------- local.c */
/* Zeroes the tables, shuts the gates; nothing is with the stage thread. */
void locals_arm(struct engine *engine);
/* Gives the stage thread the next ones. */
void locals_issue(struct engine *engine);
void local_staged(struct engine *engine, const struct stage_result *result);
void gate_received(struct engine *engine, uint32_t gate); /* a receive that held it is done */
bool gate_is_open(const struct engine *engine, uint32_t gate);

/* ------------------------------------------------------------------------ offload.c */
int offload_open(struct engine *engine, const struct engine_options *options, struct ws_error *err);
void offload_close(struct engine *engine); /* nothing is with the stage thread */
/* Of the program that was taken. */
int offload_set(struct engine *engine, struct ws_error *err);
void offload_arm(struct engine *engine);
/* Whether what is to be read is there: then it stays until offload_put. */
bool offload_take_local(struct engine *engine, uint32_t index);
bool offload_take_op(struct engine *engine, uint32_t index, uint32_t op);
void offload_put(struct engine *engine, const struct stage_request *request);
/* What isn't issued to the peer never will be. */
void offload_skip(struct engine *engine, const struct engine_peer *peer);
void offload_turn(struct engine *engine); /* what has been loaded */
void offload_load(struct engine *engine); /* what is to be, after all was issued that can be */
/* In an attempt: nobody waits for what one that was broken off has left under way. */
bool offload_is_loading(const struct engine *engine);
/* NULL: there is none. */
const struct ring *offload_ring(const struct engine *engine);

/* -------------------------------------------------------------------------- engine */
struct engine {
	struct engine_nic nics[NICS_MAX];
	struct doubt doubts[DOUBTS_MAX];
	uint32_t doubt_count; /* places of doubts used so far */
	uint64_t rewires;
	uint64_t lives; /* of NICs so far; begins at random, so no other engine has the same */
	uint64_t op_bytes;
	uint64_t spin_ns;
	uint32_t nic_count;
	bool wire_digests;

	bool fencing;
	bool pages_moved; /* by a peer_close: regions_renew is due */
	bool has_spare;	  /* halves of connections that pair with nothing are still being closed */
	bool refused;	  /* in this step a NIC took nothing for some rail: ask again soon */
	bool moved;	  /* the last step did something */
	uint64_t moved_ns;
	uint64_t now_ns;      /* of this step */
	uint32_t idle_count;  /* waits since anything moved */
	uint32_t step;	      /* counts calls of engine_step, from 1 */
	uint32_t rail_limit;  /* ops in flight of one rail, for this step: a peer that stands
			       * still must not take a NIC's whole depth, */
	uint32_t block_limit; /* nor, with what it holds of blocks, all of staging */
	uint32_t serial;      /* of attempts, mine: +1 at each arm and each end */

	struct region **regions;  /* owned */
	struct ws_memory own;	  /* owned; region 0 */
	struct ws_memory staging; /* owned on a GPU, else the end of own: the blocks */
	uint32_t staging_region;
	struct engine_peer **peers; /* owned */
	struct op_slot *slots;	    /* owned */
	struct block *blocks;	    /* owned */
	struct stage *stage;	    /* owned */
	struct offload *offload;    /* owned; NULL: sources are read where they are */
	uint32_t region_count, region_room;
	uint64_t flushed_gpus;	  /* bit per GPU: what NICs wrote is seen after a flush only */
	struct ws_error no_flush; /* why one failed */
	uint32_t peer_count, peer_room, peer_ordinal;
	uint32_t slot_count, slot_free;
	uint32_t block_count, block_free, block_free_last, blocks_used;

	uint32_t event_head, event_tail;
	struct engine_event events[EVENT_ROOM];
	struct imm imm;
	struct program program;
	struct engine_progress progress;
};

static inline uint32_t engine_event_room(const struct engine *engine)
{
	return EVENT_ROOM - (engine->event_tail - engine->event_head);
}
void engine_emit(struct engine *engine, const struct engine_event *event);

/* Of a send or a span that may have its own. */
static inline uint64_t engine_op_bytes(const struct engine *engine, uint64_t own)
{
	return own != 0 ? own : engine->op_bytes;
}

static inline uint8_t *engine_block_memory(const struct engine *engine, uint32_t block)
{
	return (uint8_t *)engine->staging.base + block * engine->op_bytes;
}

#endif
