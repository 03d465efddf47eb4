/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A quantized update carried out in memory, member by member, as plans say: maxima are found, told
 * and raised, then codes, scales and casts are written; all by lib/convert's moves.
 */
#ifndef MAXIMA_WORLD_H
#define MAXIMA_WORLD_H

#include "planner/plan_internal.h"
#include "tests/quant_world.h"

struct maxima_whole {
	char name[256];
	struct whole whole;
};

struct maxima_world {
	struct plan_input input; /* the caller's */
	uint32_t trainers, ranks, members;
	struct plan **plans; /* by member; owned */
	struct plan *all;    /* owned */
	struct arena arena;
	struct rank_params *params; /* by member */
	uint8_t ***memory;	    /* by member, by param */
	uint8_t **tables;	    /* by trainer */
	struct maxima_whole *wholes;
	uint32_t whole_count;
	uint64_t random;
	uint64_t told_bytes; /* between trainers, of parts */
	struct ws_error err;
};

/* Plans for every member and all, each checked.  Values follow from the seed. */
void maxima_open(struct maxima_world *world, const struct plan_input *input, uint64_t seed);
/* Carries the update out. */
void maxima_run(struct maxima_world *world);
/* Every rollout's memory is that of the whole tensors, quantized in one place. */
void maxima_compare(struct maxima_world *world);
/* Nobody is told what it sends no code and no scale of; both ends of each pair agree. */
void maxima_lean(struct maxima_world *world);
void maxima_close(struct maxima_world *world);

#endif
