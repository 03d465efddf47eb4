/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to import*.c: a framework's own metadata while it becomes a manifest.  A reader
 * (import_dtensor.c, import_megatron.c) fills grids, rules and claims from its dump; import.c
 * writes the manifest from grids and rules, reads it back, and holds the claims against it.
 */
#ifndef IMPORT_H
#define IMPORT_H

#include "planner/describe.h"

#define GRID_AXIS_MAX	8
#define GRID_COUNT_MAX	256
#define IMPORT_RULE_MAX 4096

/* A factorization of the ranks 0 to world - 1: coordinate = rank / stride % size. */
struct grid {
	const char *name;
	uint32_t axis_count; /* of the dump; grid_fit orders them, slowest first, and adds those
				that the dump leaves out, over which everything replicates */
	struct grid_axis {
		const char *name;
		uint32_t size, stride;
	} axis[2 * GRID_AXIS_MAX + 3]; /* a pipeline's too */
};

/* Params of one name that are alike. */
struct import_rule {
	struct import_rule *next;
	const char *name;	   /* in the manifest, with {L}, {L-nl}, {E}, {e} */
	uint64_t key;		   /* equal keys: one rule */
	uint32_t number, order;	   /* as seen; among the rules written */
	const struct json *x;	   /* the expression */
	const struct json *whole;  /* the same without its splits */
	const struct json *preset; /* its param in a preset, some members of which are kept */
	uint32_t grid;
	enum ws_dtype dtype;
	bool each_layer, each_expert;
	uint32_t *layers; /* by layer: how many params the dump has of it; last, without one */
	uint8_t *stages;  /* of one without layers, by stage; NULL: on every stage */
};

/* What the dump says of one param, to hold against the manifest that was made. */
struct import_claim {
	struct import_claim *next;
	const char *name; /* as the manifest's */
	uint32_t rank;	  /* claims of one rank stand together */
	const struct json *shape;
};

struct import_claims {
	struct import_claim *first, *last;
};

struct import {
	const struct model *model;
	const struct import_options *options;
	const struct json *dump;
	const struct json *known[2]; /* params of frameworks; read when asked for */
	struct arena arena;
	struct findings found;
	bool out_of_memory;
	uint32_t world, layer_end;
	struct grid *grids;
	uint32_t grid_count;
	struct import_rule *rules;
	uint32_t rule_count;
	struct import_claims wholes; /* shapes of all of a param; rank 0 */
	struct import_claims parts;  /* shapes at a rank */
	bool complete;		     /* a rank with claims has no other params */
	uint32_t stage_count;	     /* 0: no pipeline */
	uint32_t *stage_of;	     /* by layer; UINT32_MAX: no stage has it */
	const char *ep; /* the axis that experts are dealt over; NULL: every rank has all */
	uint64_t vocab_div;
};

/* import_dtensor.c, import_megatron.c: what `--from` names. */
void import_dtensor(struct import *import);
void import_megatron(struct import *import);

/* ---- import.c */
void *import_alloc(struct import *import, size_t count, size_t bytes_each);
/* Copies a member that must be a text of at most NAME_BYTES_MAX; NULL and a finding else. */
const char *import_text(struct import *import, const struct json *object, const char *key,
			const char *where);
/* A list of 1 to LOCAL_DIM_MAX integers from 0 on. */
bool import_shape(struct import *import, const struct json *shape, const char *where);
/* "torch.bfloat16", "bf16"; WS_NONE and a finding else. */
enum ws_dtype import_dtype(struct import *import, const struct json *json, const char *where);
/* The rule of a key: made empty when new (x is NULL).  NULL out of memory or too many. */
struct import_rule *import_rule(struct import *import, const char *name, uint64_t key);
/* Counts one param of a rule at a layer (-1: none). */
void import_count(struct import *import, struct import_rule *rule, int32_t layer);
void import_claim(struct import *import, struct import_claims *claims, const char *name,
		  uint32_t rank, const struct json *shape);

/* ---- import_names.c: what a name means. */
/* Whether the dump lists it, and the model has no such weight: buffers of no weight, tied heads. */
bool import_ignores(const struct import *import, const char *name);
/* The name without wrappers of modules. */
const char *import_name(struct import *import, const char *name);
/* That name with its layer and expert taken out (-1: it has none). */
const char *import_template(struct import *import, const char *name, int32_t *layer_out,
			    int32_t *expert_out);
/* The whole tensor that it stands for, as an expression: a canonical tensor, what the dump's own
 * "names" say, or what is known of the framework.  NULL: unknown. */
const struct json *import_whole(struct import *import, const char *template, int32_t layer);
/* Whether the model has every tensor of an expression at a layer. */
bool import_has(const struct import *import, const struct json *x, int32_t layer);
bool import_reads(const struct json *x, const char *tensor);
/* How many experts the tensors of an expression have at a layer. */
uint32_t import_experts(const struct import *import, const struct json *x, int32_t layer);
/* The index of the first tensor that an expression reads. */
uint32_t import_first_tensor(const struct import *import, const struct json *x);
void import_unknown(struct import *import, const char *name, const char *template);
/* Expressions: ["s", x, dim, "axis"], with {"mode": "chunk"} where chunk. */
const struct json *import_split(struct import *import, const struct json *x, uint32_t dim,
				const char *axis, bool chunk);
const struct json *import_list(struct import *import, uint32_t count,
			       const struct json *const *items);
const struct json *import_word(struct import *import, const char *text);

/* ---- import_grid.c */
/* Ranks as nested lists, one depth per axis name; NULL and findings where they are no grid. */
bool grid_read(struct import *import, const struct json *ranks, struct grid *grid,
	       const char *where);
/* Orders the axes and fills the gaps; false and a finding where they don't factor the world. */
bool grid_fit(struct import *import, struct grid *grid, const char *where);

#endif
