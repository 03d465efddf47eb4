/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random quantized jobs, written by hand: two small weights in shards of any kind over two axes of
 * trainers, and what rollouts want of them, by any scheme; limits so small that every shape
 * of copy occurs.
 */
#ifndef SHARDS_WORLD_H
#define SHARDS_WORLD_H

#include "planner/planner.h"

struct shards_world {
	struct arena arena;
	uint64_t state;
	struct manifest *manifests[2];
	struct place places[64];
	uint32_t replicas[3];
	struct plan_input input;
	uint32_t a, b; /* ranks of trainers' axes */
	uint32_t ranks, block[2];
	struct ws_error err;
};

/* The same seed gives the same job. */
void shards_open(struct shards_world *shards, uint32_t seed);
/* Checks that nothing of our own door's memory is left. */
void shards_close(struct shards_world *shards);

#endif
