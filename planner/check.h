/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the checker (check*.c, follow.c, account.c).  It shares no arithmetic with what
 * plans: it reads forms element by element (by lines where that is the same), keeps an account
 * of bytes, and looks at every layer that a plan takes for alike.
 */
#ifndef CHECK_H
#define CHECK_H

#include "planner/plan_internal.h"

/* A box inside a piece of a param, in steps of the piece: written once. */
struct claim {
	uint32_t param, piece;
	struct box box;
};

struct account {
	struct vec claims; /* of struct claim, as they came; neighbours joined */
};

/* Elements [lo, hi) of a param. */
struct interval {
	uint64_t lo, hi;
};

/* Where a piece of a form lies: its elements are within [lo, hi]. */
struct reach {
	uint64_t lo, hi;
	uint64_t hi_max; /* the highest hi of the reaches up to this one */
	uint32_t piece;
};

/* A rank's params, without their names. */
struct peer {
	bool known;
	const struct manifest *manifest;
	uint32_t rank, count;
	struct param *params;
	const struct reach **reach; /* by param, by lo; NULL: not asked yet */
	uint32_t *kind;		    /* by param: the kind whose copies touch it + 1, or 0 */
	uint32_t *each;		    /* by param: how many params of its rule a layer has */
};

/* Which tensor a piece is of: its rule, and the layer and expert that its name needs. */
struct spot_tensor {
	const struct tensor_rule *rule;
	int32_t layer, expert;
};

/* A param of one rank, for asking which canonical element an element is. */
struct spot_param {
	const struct peer *peer;
	const struct param *param;
	const struct reach *reach;
	uint32_t piece;			 /* met last: tried first */
	const struct spot_tensor *names; /* by slot, where that isn't the param's; or NULL */
};

/* ---- follow.c */
/*
 * Follows a part from its first element to its last: each source element must be the canonical
 * element that the target's is.  Writes what the target gets into account (NULL: no account).
 * 0, -ENOMEM, or 1 with a sentence in why.
 */
int account_part(struct account *account, const struct plan_part *part, struct spot_param *source,
		 struct spot_param *target, char *why, size_t why_bytes);

struct spot_tensor spot_tensor(const struct spot_param *spot, const struct piece *piece);
/* Whether a piece is of that tensor. */
bool account_same_tensor(const struct spot_param *spot, const struct piece *piece,
			 const struct spot_tensor *other);
/* The piece that has an element, or NULL. */
const struct piece *account_find(struct spot_param *spot, uint64_t x);
/* The same, and at which of the piece's steps. */
const struct piece *account_place(struct spot_param *spot, uint64_t x, uint64_t *at);

/* Fills as many reaches as the form has pieces, by lo. */
void account_reach(const struct form *form, struct reach *list);

/* ---- account.c */
/* Adds a claim, joined to the last one where it goes on along one dim; account may be NULL. */
int account_add(struct account *account, const struct claim *claim);
/* What is wrong with a receiver's account, or NULL: the first claim or piece that it is about.
 * Only params that some kind touches are looked at. */
const char *account_fault(struct account *account, const struct peer *mine, struct claim *at_out);

/* The first claim of `inside` that isn't wholly among those of `of`, which are disjoint; or NULL.
 * Sorts `of`. */
const struct claim *account_uncovered(const struct account *inside, struct account *of);

/* Whether two pieces of a form share a local element: 0 or 1, -ENOMEM.  match.c asks it too. */
int account_form_overlaps(const struct form *form);

/* What a form covers, as stretches of local elements with gaps between them; list is empty, and
 * the caller's to release. */
int account_form_stretches(const struct form *form, struct vec *list);

/* A list of boxes. */
struct box_node {
	struct box box;
	uint32_t next; /* index + 1, or 0 */
};

struct tables_view;

struct checking {
	const struct plan *plan;
	struct findings *findings;
	struct ws_error *err;
	struct arena arena;	    /* lives as long as the peers */
	struct peer *peers[2];	    /* by rank of one side; of one replica */
	struct idmap reach_map;	    /* by form's address: index in reaches */
	struct vec reaches;	    /* of const struct reach * */
	struct idmap forms;	    /* rule and form id: the form was looked at */
	uint32_t *quantized;	    /* by trainers' tensor: rollouts' of that name, met last, + 1 */
	struct tables_view *tables; /* by trainer; made when asked for */
	struct vec boxes;	    /* of struct box_node: blocks that are needed */
	/* of the member at hand */
	struct account written;
	struct account fed, forwarded; /* of written: what feeds; and what is sent on */
};

/* ---- check.c */
/* The same elements the other way round: what is written becomes what is read. */
struct plan_part check_mirrored(const struct plan_part *part);
bool check_is_float(enum ws_dtype dtype);
/* Whether the part's box, from this offset on by these strides, stays within so many bytes. */
bool check_inside(const struct plan_part *part, uint64_t offset, const int64_t *stride,
		  enum ws_dtype dtype, uint64_t bytes);
/* The first of the pairs by receiver that isn't of a lower one. */
uint32_t check_first_received(const struct plan *plan, uint32_t member);

/* ---- check_peers.c */
/* The rank's params; NULL and an error. */
struct peer *check_peer(struct checking *checking, enum side side, uint32_t rank);
/* The param's name, for a sentence. */
const char *check_param_name(struct checking *checking, const struct peer *peer, uint32_t param);
enum side check_side(const struct plan *plan, uint32_t member, uint32_t *rank_out);
/* What a member's params are of. */
struct peer *check_member_peer(struct checking *checking, uint32_t member);
/* Turns a spot to a param. */
int check_spot(struct checking *checking, struct spot_param *spot, struct peer *peer,
	       uint32_t param);

/* ---- check_tables.c */
/* A table of maxima: what it is of, and what of it is needed. */
struct table_view {
	const struct quant_scheme *scheme;
	uint64_t each[BOX_DIM_MAX]; /* elements under one scale, by the tensor's dims */
	uint32_t kind;
	uint64_t end;	/* the entry behind its last, in its bucket */
	uint32_t lead;	/* the rollouts' tensor that its scale is called after */
	uint64_t key;	/* of the scale */
	uint32_t group; /* the first of the tables under its scale, which follow each other */
	uint32_t needs; /* of the first: blocks that its trainer sends codes or scales of: the first
			 * of checking->boxes + 1, or 0 */
};

/* All of a bucket's. */
struct kind_view {
	struct param param;
	struct form form; /* a piece is a table or several under one scale, an element a block;
			   * its slot is the (first) table */
	struct spot_param spot; /* of all that; no param without tables */
};

/* Params of a rank in a row: those of one rule and layer. */
struct param_run {
	uint32_t first, rule, each;
	int32_t layer;
};

struct tables_view {
	bool known;
	uint32_t rank, table_count; /* tables that were looked at */
	struct peer peer;	    /* its manifest and rank; a neighbour's params aren't listed */
	struct param *params;	    /* by table: what it is of */
	struct piece *pieces;	    /* by table */
	struct spot_tensor *names;  /* by table */
	struct spot_tensor *leads;  /* by table: what its scale is called after */
	struct table_view *tables;
	struct kind_view *kinds;
	uint32_t *rule_of;    /* by tensor: its rule of params + 1 at this rank; NONE: several */
	struct idmap by_key;  /* of a scale: its first table; those of several tensors, or all */
	bool by_key_is_whole; /* made when asked for */
};

/* NULL where nothing of the trainer's is quantized.  Faults are findings, and -EINVAL. */
int check_tables(struct checking *checking, uint32_t trainer, struct tables_view **out);
/* The first table under the scale of this key; NONE.  -ENOMEM. */
int check_table_find(struct tables_view *view, uint64_t key, uint32_t *table_out);
/* Which of the tables from this first one on, which are under one scale, is of the tensor; NONE. */
uint32_t check_table_member(const struct tables_view *view, uint32_t first,
			    const struct spot_tensor *name);

/* ---- check_maxima.c */
/* What of a copy from a trainer is followed. */
struct maxima_part {
	struct checking *checking;
	struct tables_view *from, *to; /* of trainers; else NULL */
	uint32_t kind;
};

/* Whether the part, which was followed, takes each code by the maximum of its block; what that
 * needs is noted.  0, 1 and a sentence, -ENOMEM. */
int check_codes(const struct maxima_part *at, const struct stored_copy *copy,
		const struct plan_part *part, struct spot_param *source, const char **why);
/* Whether the param's box raises the entries of its own blocks: which table's, and with which
 * elements.  NULL, or what is wrong. */
const char *check_local_blocks(const struct maxima_part *at, const struct plan_part *part,
			       const struct plan_blocks *blocks, struct spot_param *source,
			       uint32_t *table_out, struct box *elements_out);
/* A scale as its sender makes it: the table of its weight, in the scale's name. */
struct made_scale {
	uint32_t table; /* the first under it */
	struct param param;
	struct form form;
	struct piece piece;
	struct reach reach;
	struct spot_param spot; /* of all that */
};

/* Fills made for the scale that the part brings.  NULL, or what is wrong. */
const char *check_scale_source(const struct maxima_part *at, const struct plan_part *part,
			       struct spot_param *target, struct made_scale *made);
/* Notes what the part, which has been followed from made, needs.  -ENOMEM. */
int check_scale_need(const struct maxima_part *at, const struct plan_part *part,
		     const struct made_scale *made);
/* Whether each of the part's maxima comes to the entry of its own block; what comes goes into
 * account (or NULL), by the kind's tables.  0, 1 and a sentence, -ENOMEM. */
int check_maxima_part(const struct maxima_part *at, const struct plan_part *part,
		      struct account *account, char *why, size_t why_bytes);

/* ---- check_told.c */
/* For each code and scale that the trainer sends: it has found, or was told, the maxima of all
 * of the block.  And what it tells, it has found. */
int check_trainer(struct checking *checking, uint32_t trainer);

/* ---- check_loops.c */
/* Every number of the plan that isn't in a part: copies' in their segments, instances', counters',
 * sums. */
int check_numbers(struct checking *checking);
/* What was found true of the layers planned is true of all: their params are the same but for
 * the layer, and together the kinds' buckets reach every param, once. */
int check_loops(struct checking *checking);

/* ---- check_walk.c */
/* Whether the lists by which a walk finds pairs have all of the member's, each once. */
int check_lists(struct checking *checking);
/* What a walk of the planned member's part yields: all of each pair, and nothing outside. */
int check_walk(struct checking *checking);

#endif
