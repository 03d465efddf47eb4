/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between gen.c, which makes random layouts, and gen_oracle.c, which says what they mean.
 */
#ifndef GEN_TREE_H
#define GEN_TREE_H

#include "tests/gen.h"

struct gen_tensor {
	const char *name;
	enum ws_dtype dtype;
	uint32_t dim_count;
	uint64_t dim[4];
	bool layered, expert;
	uint64_t volume, base; /* first id of its first layer and expert */
};

enum op {
	T,
	EVEN,
	CHUNK,
	REP,
	CONCAT,
	GROUP,
	PAD,
	STACK,
	PERMUTE,
	FLAT,
	RANGE,
	SWAP,
	ONE, /* a stack of one: a new dim */
	ZERO,
};

struct node {
	enum op op;
	uint32_t tensor, dim, unit, lo, hi, groups;
	uint32_t perm[3], perm_count;
	const char *axis;
	uint32_t child_count;
	struct node *child[4];
};

struct gen_param {
	const char *name;
	struct node *x;
	enum ws_dtype dtype;
	bool layered, each_expert;
	const char *mesh;
	int stage; /* of one without layers: -1 any, 0 first, 1 last */
};

struct gen_layout {
	uint32_t pp, dp, tp, ep, etp;
	bool round_robin;
	uint32_t each; /* slots of each ep rank under a map; 0: no map */
	int32_t *map;  /* by layer, then slot */
	uint32_t param_count;
	struct gen_param params[64];
};

#endif
