/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random models with two random layouts each, from a seed: the manifests' JSON, and what every
 * element of every param must be.  The oracle materialises whole arrays of element ids, node by
 * node, and shares nothing with planner/.
 */
#ifndef GEN_H
#define GEN_H

#include "lib/base/base.h"

enum gen_side { GEN_TRAINER = 0, GEN_ROLLOUT };

struct gen {
	struct arena arena;   /* owns all of it */
	struct arena scratch; /* of the last gen_ids */
	uint64_t random;
	bool casts; /* trainer's floats are f32, the rollout's bf16 */
	int32_t layer_count, expert_count;
	uint32_t tensor_count;
	struct gen_tensor *tensors;
	struct gen_layout *layouts[2];
	uint64_t id_count; /* ids run from 1 to this */
};

/* The same seed gives the same manifests. */
void gen_open(struct gen *gen, uint32_t seed);
void gen_close(struct gen *gen);
uint32_t gen_below(struct gen *gen, uint32_t limit);
/* The manifest's JSON text, in the arena. */
const char *gen_manifest(struct gen *gen, enum gen_side side);
/*
 * Ids of a param's elements at a rank, row-major; 0 is zero fill.  NULL where the layout gives the
 * rank no such param.  They live until the next call.
 */
const uint32_t *gen_ids(struct gen *gen, enum gen_side side, uint32_t rank, const char *name,
			uint64_t *count_out, enum ws_dtype *dtype_out);
/* How many params the layout gives a rank. */
uint32_t gen_param_count(struct gen *gen, enum gen_side side, uint32_t rank);
/* The bytes of the element with this id; id 0 is zero.  Exact under the casts that are declared. */
void gen_value(uint32_t id, enum ws_dtype dtype, void *out);

#endif
