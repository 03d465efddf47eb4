/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How bytes travel: the NICs of one rank, its connections to other members, and the program of
 * one update.  Knows regions, copies, ops, immediates and counters; nothing of tensors.
 *
 *   sends     wait for a credit (or for nothing), gather into staging (or not), write, op by op
 *   receives  count immediates against a threshold, check a digest (or not), scatter out of a
 *             ring slot (or not), give a credit (or not)
 *   locals    work on my own memory that sends wait for: no bytes travel
 *
 * Life: engine_open; regions; peers (open, connect); engine_set_program; then per attempt:
 * engine_arm, engine_peer_ready for each receiver that may be written to, engine_step until
 * engine_progress says done, engine_end.  A new wiring: engine_fence until 0, then peers again.
 *
 * Threads: all calls from one thread (the side's I/O thread).  Locals, gathering, scattering and
 * hashing run on the engine's own stage thread, joined by two single-producer rings.  After
 * engine_arm nothing allocates, locks or blocks.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <string.h>

#include "lib/base/base.h"
#include "lib/convert/convert.h"
#include "lib/transport/transport.h"
#include "lib/ws_nic.h"

#define ENGINE_PEERS_MAX   8192
#define ENGINE_REGIONS_MAX 4096

/* The same for planner and engine: how many ops a copy is cut into. */
static inline uint64_t engine_op_count(uint64_t bytes, uint64_t op_bytes)
{
	return (bytes + op_bytes - 1) / op_bytes;
}

/* imm = low 8 bits of the attempt << 24 | op id. */
#define OP_ID_MAX 0xffffffu
static inline uint32_t imm_make(uint64_t attempt, uint32_t op_id)
{
	return (uint32_t)(attempt & 0xff) << 24 | op_id;
}

struct engine;
struct engine_peer;
struct CUstream_st; /* what CUDA's header calls cudaStream_t */

/* A NIC to open; one rank's may be of different transports. */
struct device {
	const char *transport, *name; /* as nic_open takes them: "fabric", "tcp/127.0.0.1" */
};

struct engine_options {
	const struct device *devices; /* one per NIC */
	uint32_t device_count;
	uint64_t op_bytes;	/* multiple of 4096 */
	uint64_t staging_bytes; /* gather staging: blocks of op_bytes; 0 for a side that never
				   gathers */
	uint32_t depth;		/* ops in flight per NIC; 0: 16, with place WS_CUDA 256 */
	bool wire_digests;	/* hash every op and send each counter's sum */
	enum ws_place place;	/* WS_CUDA: what the stage thread does, a GPU does: sources, targets
				   and tables lie where it reaches them, and staging on it */
	int device;		/* which GPU */
	struct CUstream_st *stream; /* of it: where that is queued, borrowed until close; NULL: one
				       of the engine's own */
	uint64_t ring_bytes;	    /* sources lie in the host's memory, stay as they are during an
				       attempt, and are copied into a ring of so many bytes, from where
				       locals and gathers read them; 0: they are read where they are */
};

/* Opens NICs, allocates and registers staging, starts the stage thread.  -ENOSPC when op_bytes
 * is above a NIC's limit, with both numbers. */
int engine_open(struct engine **engine_out, const struct engine_options *options,
		struct ws_error *err);
/* Stops the thread, closes all.  Without a fence: only for the end of the process or after one. */
void engine_close(struct engine *engine);

/* ---- rails.c: NICs that go out of use (lost, or their port is down) and come back. */
struct nic_speed engine_rail_of(const struct nic *nic);
/* Those in use, in order; returns how many. */
uint32_t engine_rails(const struct engine *engine, struct nic_speed rails_out[NICS_MAX]);
/* "NIC 'rxe2 port 1' is down: port 1 is down; running on 1 of 2 NICs", with the middle cut short
 * where it is longer; empty when all are in use.  bytes: 64 and more. */
void engine_rails_text(const struct engine *engine, char *text_out, size_t bytes);
/* And what last happened to those in use: "NIC 'rxe1 port 1': its GID changed from 1 (..) to ..".
 * True: not all are in use. */
bool engine_rails_news(const struct engine *engine, char *text_out, size_t bytes);
/* Rises when another wiring is wanted: a rail that was left out is to be tried again, or one
 * couldn't be connected and is to be left out by both ends. */
uint64_t engine_rewires(const struct engine *engine);
bool engine_nic_is_in_use(const struct engine *engine, uint32_t index);
/*
 * Takes NICs into use again: one whose port has been up for a while, and a lost one that could be
 * opened and registered anew, which is tried now and then.  The next peers have rails over them.
 * Cheap where nothing is due, else as slow as opening a NIC; not in an attempt.
 */
void engine_rails_mend(struct engine *engine);

uint32_t engine_nic_count(const struct engine *engine);
const struct nic *engine_nic(const struct engine *engine, uint32_t index);
/* In the present attempt, or the last one. */
uint64_t engine_nic_bytes_sent(const struct engine *engine, uint32_t index);
/* What reports say of all NICs; returns how many. */
uint32_t engine_nics(const struct engine *engine, struct ws_nic nics_out[WS_NICS_MAX]);

/* ---- region.c: memory registered on every NIC.  Region 0 is the engine's own: staging, digests,
 * and a page that credits name.  The memory is borrowed until drop.  A NIC that can't reach this
 * kind of memory (-ENOTSUP) joins no peer, if another NIC can and there are no peers yet. */
int engine_region_add(struct engine *engine, const struct ws_memory *memory, enum mr_use use,
		      uint32_t *region_out, struct ws_error *err);
void engine_region_drop(struct engine *engine, uint32_t region);
/* All regions with their bytes and, per NIC, key and base: what a peer decodes in
 * engine_peer_regions. */
void engine_regions_encode(const struct engine *engine, struct writer *out);

/* ---- connections.  One engine_peer per other member, over all NICs. */
/* name is for errors: "rollout 1.0"; copied.  The address (per NIC: subnet, protocol, transport
 * address) is written to out; it goes to that member only. */
int engine_peer_open(struct engine *engine, const char *name, struct engine_peer **peer_out,
		     struct writer *address_out, struct ws_error *err);
/* Pairs rails by subnet and protocol (several alike: in order, round robin) and connects.  Where
 * one pairs that stays inside the host, no other does.  Halves that pair with nothing are closed.
 * Where one rail can't be connected and others can, engine_rewires rises; a second one is an error,
 * -ETIMEDOUT or -ECONNRESET, and the next wiring leaves both out.
 * -ENODEV with both lists when no rail pairs; -EPROTO when only the protocol differs, naming both.
 */
int engine_peer_connect(struct engine *engine, struct engine_peer *peer, const void *address,
			size_t bytes, struct ws_error *err);
/* The peer's regions, from its engine_regions_encode.  Writes are checked against them. */
int engine_peer_regions(struct engine *engine, struct engine_peer *peer, const void *regions,
			size_t bytes, struct ws_error *err);
uint32_t engine_peer_region_count(const struct engine_peer *peer);

/*
 * The fence, for every peer at once.  Call repeatedly, with engine_step in between, until it
 * returns 0: then every op has been reported, nothing that peers wrote earlier can land, queued
 * completions have been dropped, and all peers are gone.  -EAGAIN before, and where some
 * of it is mine err says what.  engine_peer_quiet notes that a peer said its half is closed;
 * engine_peer_abandon that it can't be heard any more.  senders_closed_out becomes true when all
 * that I send with is closed, and the stage thread has let go: the side then says quiet to all. The
 * side gives the deadline by abandoning.  -ETIMEDOUT: never, a GPU was given up (cuda_stuck); other
 * errors: a transport's, and the next call may find an end.
 */
int engine_fence(struct engine *engine, bool *senders_closed_out, struct ws_error *err);
void engine_peer_quiet(struct engine *engine, struct engine_peer *peer);
void engine_peer_abandon(struct engine *engine, struct engine_peer *peer);

/*
 * The same for all peers of a wiring that ends, by who may write to me over each: a member's number
 * and incarnation, which a side that is written to notes after engine_peer_open.  Whoever has no
 * writer is quiet at once; one that isn't present any more (NULL: all are) can't be heard.  The
 * others end when all have said quiet, or are given up.
 */
void engine_peer_writer(struct engine_peer *peer, uint64_t member, uint64_t incarnation);
void engine_peers_retire(struct engine *engine,
			 bool (*present)(const void *arg, uint64_t member, uint64_t incarnation),
			 const void *arg);
void engine_peers_quiet(struct engine *engine);
void engine_peers_abandon(struct engine *engine);
/* The fence at a side's end: retires all and waits; at until_ns those that aren't heard are given
 * up, which takes a little longer.  Blocks.  False: it isn't done. */
bool engine_peers_close(struct engine *engine, uint64_t until_ns);

/* ---- program.c: one update's sends and receives.  Arrays are borrowed until the next
 * engine_set_program; a side may change remote_region/remote_offset between attempts. */
struct gather_move {
	struct move move;     /* of any kind but MAXIMA and RAISE.  dst is ignored; its dst_stride[]
				 is row-major contiguous in `to` elements */
	uint64_t wire_offset; /* where its first byte goes in the copy; multiple of 16 */
};

/* Whether ops of such size, in a copy where the move's first byte is at wire_offset, cut a block of
 * what it quantizes; a code is a byte. */
bool cut_tears_block(const struct move *move, uint64_t wire_offset, uint64_t op_bytes);

struct send {
	struct engine_peer *peer;
	uint64_t bytes;	      /* > 0; cut into engine_op_count ops */
	uint64_t op_bytes;    /* of each but the last; 0: the engine's, which is the most.  Multiple
			       * of 16.  What quantizes whole blocks is cut between blocks */
	uint32_t first_op_id; /* at the receiver, its base added */
	const void *local;    /* NULL: gathered by moves */
	uint32_t local_region;
	const struct gather_move
		*moves; /* cover [0, bytes) but for gaps of padding below 16 bytes */
	uint32_t move_count;
	uint32_t remote_region; /* index in the peer's regions */
	uint64_t remote_offset;
	uint32_t credit_op_id; /* my op id that must have arrived first; UINT32_MAX: none */
	uint32_t counter;      /* index in digests: which sum its ops add to; ignored without */
	uint32_t gate;	       /* waits until it is open; 0: for nothing */
	uint32_t bucket; /* by which sources come into the ring, ascending; without: ignored */
};

/* With wire_digests: the sum of xxh3_64(op bytes, seed = op id) over the data ops of one counter
 * of a receiver, sent as one 8-byte op when all its sends were hashed. */
struct send_digest {
	struct engine_peer *peer;
	uint32_t send_count;	 /* how many sends feed it */
	uint32_t op_id;		 /* at the receiver */
	uint32_t remote_receive; /* receive index there: lands at byte 8 * that, in its region 0 */
};

/* Where a counter's ops land, for digests: first_op_id.. in this memory. */
struct span {
	const void *memory;
	uint64_t bytes;
	uint64_t op_bytes; /* as in the send */
	uint32_t first_op_id;
};

struct receive {
	struct engine_peer *peer; /* the sender */
	uint32_t op_count;	  /* the counter's threshold; the digest's op included */
	uint64_t bytes;		  /* of its data ops, for progress */
	const struct span *spans; /* where they land; only digests look there */
	uint32_t span_count;
	uint32_t digest_op_id;	  /* UINT32_MAX: no digest */
	const struct move *moves; /* scatter, when all is there; of any kind; may be none */
	uint32_t move_count;
	uint32_t credit_op_id; /* the peer's op id to write back then; UINT32_MAX: none */
	uint32_t tag;	       /* the side's: comes back in events (which bucket) */
	uint32_t gate; /* that it holds shut until it is done; 0: none.  What is sent behind the
			  gate may be read from where the receive lands */
};

/* Which op ids (mine, as a receiver) feed which counter: receive index, or CREDIT. */
struct op_range {
	uint32_t first_op_id, count; /* ascending, without overlap */
	uint32_t receive;	     /* index in receives, or OP_IS_CREDIT */
};
#define OP_IS_CREDIT UINT32_MAX

/* Moves that are done at the beginning of an attempt, whether or not a peer is ready: one local
 * after the other, but on a GPU those of one launch in no order, so none may read what another
 * writes. */
struct local {
	const struct move *moves; /* of any kind: MAXIMA above all */
	uint32_t move_count;
	uint32_t gates[2]; /* that it holds shut until it is done; 0: none */
	uint32_t bucket;   /* as a send's */
};

struct engine_program {
	const struct send *sends; /* in the order to process; per peer this order holds */
	uint32_t send_count;
	const struct send_digest *digests; /* with wire_digests; else 0 */
	uint32_t digest_count;
	const struct receive *receives;
	uint32_t receive_count;
	const struct op_range *ranges;
	uint32_t range_count;
	uint32_t op_id_count; /* op ids are below it */
	uint32_t gate_count;  /* gates are numbered from 1 to this */
	const struct local *locals;
	uint32_t local_count;
	/* Where MAXIMA and RAISE raise and QUANTIZE looks: every attempt begins with zeroes there.
	 * Borrowed likewise; only the stage thread touches it while an attempt is open. */
	void *tables;
	uint64_t tables_bytes;
};

/* Sizes everything that an attempt needs.  Before any attempt or between two. */
int engine_set_program(struct engine *engine, const struct engine_program *program,
		       struct ws_error *err);

/* Begins an attempt: bitmap and counters cleared; my memory may be written from now on.  Immediates
 * of this attempt count; of any other: ENGINE_STRAY.  May block: until the stage thread has let go
 * of the attempt before. */
int engine_arm(struct engine *engine, uint64_t attempt, struct ws_error *err);
/* The peer said ready for this attempt: sends to it may start. */
void engine_peer_ready(struct engine *engine, struct engine_peer *peer);
/* What isn't sent to the peer yet is given up: nothing more is posted to it, its sends count as
 * done, its failures aren't told.  Until the fence. */
void engine_peer_drop(struct engine *engine, struct engine_peer *peer);
/* Ends the attempt here: no further post; strays are reported again as such.  The stage thread may
 * still be at the piece that it is in, a GPU's at a few launches: until the fence. */
void engine_end(struct engine *engine);

enum engine_event_kind {
	ENGINE_RECEIVE_DONE = 1, /* counter reached, digest right, scattered: receive index */
	ENGINE_SENDS_DONE, /* every send's ops were SENT, or given up: parameters may change as far
			      as I am concerned */
	ENGINE_OP_FAILED,  /* a FAILED op: peer, nic, status, op id at the receiver */
	ENGINE_STRAY,	   /* an immediate of another attempt, repeated, or unknown */
	ENGINE_DIGEST_WRONG, /* receive index, got, want */
	ENGINE_GPU_FAILED, /* what the stage thread gave the GPU came to nothing, or what NICs wrote
			    * can't be flushed: status, reason; nothing of this attempt goes on,
			    * nor of a later one */
	ENGINE_NIC_LOST	   /* nic, status: lost, or down (-ENETDOWN), and some peer was to be
			    * reached over it; nothing more is posted to it */
};

enum stray_kind { STRAY_STALE, STRAY_DUPLICATE, STRAY_UNKNOWN, STRAY_NO_ATTEMPT };

struct engine_event {
	enum engine_event_kind kind;
	struct engine_peer *peer; /* where known, or NULL */
	uint32_t nic;
	int status;
	const char *reason; /* the fabric's words for the status, while peers are open; or NULL */
	uint32_t op_id;
	enum stray_kind stray;
	uint32_t imm;
	uint32_t receive;
	uint64_t got, want;
};

/* "of another attempt": which write it was, for a sentence. */
const char *engine_stray_text(enum stray_kind kind);
/* Why an op failed, for a sentence. */
static inline const char *engine_op_reason(const struct engine_event *event)
{
	return event->reason != NULL ? event->reason : strerror(-event->status);
}

/* Polls NICs and the stage thread, posts what can be posted; writes up to count events.  Never
 * blocks; returns how many events. */
int engine_step(struct engine *engine, struct engine_event *events_out, int count);

/* Waits until engine_step may have something to do, fd (or -1) or fd2 is readable, or until_ns.
 * Spins for spin_ns after the last progress, then blocks on the NICs' fds; NICs without one are
 * polled with short sleeps. */
void engine_wait(struct engine *engine, int fd, int fd2, uint64_t until_ns);
/* For a side that waits elsewhere (its link): the fds to wait for, count <= NICS_MAX + 1, and for
 * how long at most: 0 where a step has something to do at once. */
int engine_wait_fds(struct engine *engine, int *fds_out, int count_max, uint64_t *most_ns_out);

struct engine_progress {
	uint32_t sends_done, send_count, receives_done, receive_count;
	bool all_sent; /* ENGINE_SENDS_DONE was told, or there is nothing to send */
	uint64_t bytes_sent, bytes_received;
	uint64_t staging_high_bytes; /* most staging in use at once */
	uint64_t gather_ns;	     /* stage thread's time with CAST, and with hashing */
	uint64_t quantize_ns;	     /* and with locals and moves of other kinds */
	uint64_t gated_ns;	     /* in which some gate was held shut by receives alone */
	/* Into the ring: bytes, the time in which something was under way; most of it in use. */
	uint64_t load_bytes, load_ns, ring_high_bytes;
};
void engine_progress(const struct engine *engine, struct engine_progress *progress_out);
/* A receive that isn't complete: how many ops of it are missing, and the first missing op id. */
uint32_t engine_receive_missing(const struct engine *engine, uint32_t receive,
				uint32_t *first_op_id_out);

#endif
