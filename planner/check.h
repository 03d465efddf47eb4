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

/* A param of one rank, for asking which canonical element an element is. */
struct spot_param {
	const struct peer *peer;
	const struct param *param;
	const struct reach *reach;
	uint32_t piece; /* met last: tried first */
};

/* ---- follow.c */
/*
 * Follows a part from its first element to its last: each source element must be the canonical
 * element that the target's is.  Writes what the target gets into account (NULL: no account).
 * 0, -ENOMEM, or 1 with a sentence in why.
 */
int account_part(struct account *account, const struct plan_part *part, struct spot_param *source,
		 struct spot_param *target, char *why, size_t why_bytes);

/* Which tensor a piece is of: its rule, and the layer and expert that its name needs. */
struct spot_tensor {
	const struct tensor_rule *rule;
	int32_t layer, expert;
};

struct spot_tensor spot_tensor(const struct spot_param *spot, const struct piece *piece);
/* Whether a piece is of that tensor. */
bool account_same_tensor(const struct spot_param *spot, const struct piece *piece,
			 const struct spot_tensor *other);
/* The piece that has an element, or NULL. */
const struct piece *account_find(struct spot_param *spot, uint64_t x);

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

struct checking {
	const struct plan *plan;
	struct findings *findings;
	struct ws_error *err;
	struct arena arena;	/* lives as long as the peers */
	struct peer *peers[2];	/* by rank of one side; of one replica */
	struct idmap reach_map; /* by form's address: index in reaches */
	struct vec reaches;	/* of const struct reach * */
	struct idmap forms;	/* rule and form id: the form was looked at */
	/* of the member at hand */
	struct account written;
	struct account fed, forwarded; /* of written: what feeds; and what is sent on */
};

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

/* ---- check_scales.c */
/* A scale as its sender makes it: the whole canonical scale, row-major. */
struct made_scale {
	struct param param;
	struct form form;
	struct piece piece;
	struct reach reach;
	struct spot_param spot; /* of all that */
};

/* Fills made for the scale that the part brings.  NULL, or what is wrong. */
const char *check_scale_source(const struct plan_part *part, struct spot_param *target,
			       struct made_scale *made);
/* Whether the source's param has a part of each block whose scale the part brings; the part has
 * been followed from made.  NULL, or what is wrong. */
const char *check_scale_holder(const struct plan_part *part, const struct made_scale *made,
			       struct spot_param *source);

/* ---- check_loops.c */
/* Every number of the plan that isn't in a part: copies' in their segments, instances', counters',
 * sums. */
int check_numbers(struct checking *checking);
/* What was found true of the layers planned is true of all: their params are the same but for
 * the layer, and together the kinds' buckets reach every param, once. */
int check_loops(struct checking *checking);

#endif
