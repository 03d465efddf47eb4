/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole updates through engines of one process, stepped by one thread: every sender writes to
 * every receiver a direct copy, a gathered and cast one, and rounds through a ring of two slots
 * with credits, which the receiver scatters.  Shared by engine.c and engine_fault.c.
 */
#ifndef ENGINE_WORLD_H
#define ENGINE_WORLD_H

#include "lib/engine/engine_internal.h"

#define SIDE_MAX   3
#define ROUNDS	   5
#define SLOTS	   2
#define RECEIVES   (1 + ROUNDS) /* per sender, at a receiver */
#define SENDS	   (2 + ROUNDS) /* per receiver, at a sender */
#define PAIRS_MAX  (SIDE_MAX * SIDE_MAX)
#define DIRECT_MAX 20000u

/* What one sender writes to one receiver. */
struct pair {
	uint64_t direct_bytes, gather_bytes, ring_bytes;
	uint32_t rows, columns;	 /* of the gathered f32 matrix, and of each round's u16 one */
	uint8_t *direct, *bytes; /* sources; bytes: 100 of them, packed behind the matrix */
	float *matrix;		 /* row stride 2 * columns + 1 */
	uint16_t *rounds;	 /* ROUNDS matrices, row stride columns + 3 */
	uint16_t *landed;	 /* where rounds are scattered to, row stride columns + 1 */
	struct gather_move gather[2], ring[ROUNDS];
	struct move scatter[ROUNDS];
	struct span spans[2 + ROUNDS];
	uint64_t offset; /* of the pair's part of the receiver's region */
};

struct side {
	struct engine *engine;
	struct engine_peer *peers[SIDE_MAX]; /* the other side's members */
	struct ws_memory memory;	     /* region 1 */
	struct send sends[SIDE_MAX * SENDS];
	struct send_digest digests[SIDE_MAX * RECEIVES];
	struct receive receives[SIDE_MAX * RECEIVES];
	struct op_range ranges[SIDE_MAX * RECEIVES];
	struct engine_program program;
	uint32_t done[SIDE_MAX * RECEIVES]; /* RECEIVE_DONE per receive */
	uint32_t sends_done, strays, failed, wrong, lost;
	struct engine_event last; /* of the bad ones */
};

struct world {
	const char *transport; /* "mixed": fabric and loop in turn */
	uint32_t sender_count, receiver_count, nic_count;
	uint64_t op_bytes, staging_bytes;
	bool digests;
	uint32_t seed;
	const char *rules; /* of `fault` on the first sender's NICs */
	/* Where NICs are to be others than they are: before anything is registered.  Receivers'
	 * numbers begin at 100. */
	void (*opened)(struct engine *engine, uint32_t number);
	struct side senders[SIDE_MAX], receivers[SIDE_MAX];
	struct pair pairs[PAIRS_MAX];
};

/* Opens engines, wires every pair, sets the programs; what isn't given in wanted is made. */
struct world *world_open(const struct world *wanted);
void world_close(struct world *world); /* and nothing of ours is left allocated */
void world_connect(struct world *world);
void world_arm(struct world *world, uint64_t attempt); /* new data; all are ready */
void world_step(struct world *world);
/* Steps until nothing is under way any more: what could go on has. */
void world_settle(struct world *world);
bool world_is_done(const struct world *world);
void world_verify(struct world *world);
void world_end(struct world *world);
/* One whole attempt, with all that must hold at its end. */
void world_update(struct world *world, uint64_t attempt);
/* Both sides, as the protocol does: senders first, then quiet, then all. */
void world_fence(struct world *world);

int side_open(struct world *world, struct side *side, bool faulty, uint32_t number,
	      struct ws_error *err);
int pair_connect(struct world *world, uint32_t s, uint32_t r, struct ws_error *err);

#endif
