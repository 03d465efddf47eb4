/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random model with both its manifests, and every member's plan of it.
 */
#ifndef PLAN_WORLD_H
#define PLAN_WORLD_H

#include "planner/plan_internal.h"
#include "tests/gen.h"

#define POISON 0xee

struct world {
	struct gen gen;
	struct manifest *manifests[2];
	struct plan_input input;
	uint32_t replicas[3];
	struct place *places; /* trainers apart, rollout ranks by up to four on a host */
	uint32_t trainers, ranks, members;
	struct plan **plans; /* by member; owned */
	struct plan *all;
	struct arena arena;
	struct rank_params *params; /* by member */
	uint8_t ***memory;	    /* by member, by param */
	struct ws_error err;
};

/* Fan-out by the seed: none, node, replica in turn. */
void world_open(struct world *world, uint32_t seed);
/* Checks that nothing of our own door's memory is left. */
void world_close(struct world *world);
/* All but that check, for a world beside another one. */
void world_release(struct world *world);
/* Lists every member's params. */
void world_params(struct world *world);
/* The same, and gives each memory: poison, or the ids' values at trainers. */
void world_memory(struct world *world);

#endif
