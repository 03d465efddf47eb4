/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to oracle*.c: a manifest as the oracle reads it, for one rank, straight from its JSON.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "cli/roles.h"

#define TREE_DIM_MAX   6
#define NAME_MAX_BYTES 512

/* One node of an expression for one layer and one expert list; shapes are known. */
struct tree {
	char op[3];
	uint32_t dim;
	uint64_t a, b, c; /* s: first row; r: lo; g: groups; il: outer a b; k: nothing */
	uint32_t perm[TREE_DIM_MAX];
	uint32_t dim_count;
	uint64_t shape[TREE_DIM_MAX];
	bool zeros;			/* z away from coordinate 0 */
	const struct st_tensor *tensor; /* t */
	int32_t expert;			/* whose it is; -1: its name has none */
	uint64_t hash;			/* of its name */
	enum ws_dtype trained;		/* dtype at the trainer */
	uint8_t *data; /* owned: the tensor in the trainer's dtype, read when first needed */
	float *scales; /* owned: if the param is quantized, one per block, as they are stored */
	struct tree *listed; /* or the tensor of the checkpoint that holds them */
	uint32_t child_count;
	struct tree **child;
};

/* Where an expression is evaluated. */
struct spot {
	const struct json *manifest, *param;
	bool is_scale; /* the name is that of the param's scale */
	uint32_t rank;
	int32_t layer, expert;
	const int32_t *experts; /* for `k`: the rank's list */
	uint32_t expert_count;
};

struct reading { /* of manifests; one per oracle */
	struct arena *arena;
	const struct checkpoint *checkpoint;
	const struct json *trainer;
};

/* ---- oracle_read.c */
/* Coordinate and size of an axis for this param's mesh. */
int spot_axis(const struct spot *spot, const char *name, uint32_t *index_out, uint32_t *size_out,
	      struct ws_error *err);
/* A number, "$symbol" or "$symbol*axis". */
int spot_number(const struct spot *spot, const struct json *json, uint64_t *value_out,
		struct ws_error *err);
/* Name with {L}, {L-nl}, {E}, {e} put in. */
void spot_name(const struct spot *spot, const char *pattern, int32_t expert, int32_t slot,
	       char *out, size_t bytes);
/* Whether a rule's name, with numbers for {L} and {E}, is this name. */
bool name_matches(const char *pattern, const char *name);
/* Finds which param entry, layer and expert a local name stands for at this rank. */
int spot_find(const struct reading *reading, const struct json *manifest, uint32_t rank,
	      const char *name, struct spot *spot_out, struct ws_error *err);
/* The dtype in which the trainer holds a canonical tensor. */
enum ws_dtype trained_dtype(const struct reading *reading, const char *tensor,
			    enum ws_dtype stored);

/* ---- oracle_tree.c */
/* A whole tensor of the checkpoint; its data isn't read yet. */
int tree_leaf(const struct reading *reading, const char *name, struct tree *leaf_out,
	      struct ws_error *err);
int tree_make(const struct reading *reading, const struct spot *spot, const struct json *expression,
	      int32_t expert, struct tree **tree_out, struct ws_error *err);
void tree_release(struct tree *tree); /* data only; nodes are in the arena */
/* Which canonical element stands at index of the node: NULL for a zero. */
struct tree *tree_locate(struct tree *tree, const uint64_t *index, uint64_t *element_out);

/* ---- oracle_quant.c */
/* How a param is quantized, as the manifest's "schemes" says. */
struct scheme {
	enum ws_dtype code, scale;
	bool whole;	   /* one scale for a tensor, or for all of an expert that a param fuses */
	uint64_t block[2]; /* rows and columns under one scale; 0: all */
	float eps;
	bool pow2, reciprocal;
	const char *suffix; /* of a canonical scale's name */
	double values[128]; /* of the codes without a sign */
};

/* The scheme that the spot's param has in "q". */
int oracle_find(const struct spot *spot, struct scheme *scheme_out, struct ws_error *err);
/* How many elements of a dim of a canonical tensor lie under one scale. */
uint64_t oracle_each(const struct scheme *scheme, const struct tree *leaf, uint32_t dim);
/* In which of the tensor's blocks, counted row-major, an element lies. */
uint64_t oracle_block(const struct scheme *scheme, const struct tree *leaf, uint64_t element);
/* Fills leaf->scales from leaf->data, as if the tensor were alone. */
int oracle_scales(const struct scheme *scheme, struct tree *leaf, uint64_t version,
		  struct ws_error *err);
/* A scale as it is stored. */
uint32_t oracle_scale_bits(const struct scheme *scheme, float scale);
uint8_t oracle_code(const struct scheme *scheme, const struct tree *leaf, uint64_t element,
		    uint64_t version);
/* Of f32, bf16 or f16 bits; every one of them is an f32. */
float oracle_value(enum ws_dtype dtype, uint32_t bits);
/* What a code and its scale mean, as BF16. */
uint16_t oracle_decode(const struct scheme *scheme, uint32_t code, float scale);

/* ---- oracle_derived.c */
/* One thing that a post step makes; from is empty where there is none. */
struct derived {
	char from[NAME_MAX_BYTES]; /* the param that it is made of */
	bool is_value;		   /* else of keys */
	bool turned;		   /* rows of the param are its last dim */
	uint64_t keys, values;	   /* rows of a head */
};

int derived_find(const struct json *manifest, const char *name, struct derived *derived_out,
		 struct ws_error *err);
/* Returns how many dims it has. */
uint32_t derived_shape(const struct derived *derived, const struct tree *from, uint64_t *shape_out);
/* Where in the param its element is from. */
void derived_place(const struct derived *derived, const uint64_t *index, uint64_t *below);

#endif
