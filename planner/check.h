/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the checker (check.c, account.c).  It shares no code with what plans: it reads
 * forms element by element (by lines where that is the same), and keeps an account of bytes.
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

struct peer {
	bool known;
	struct rank_params params;
};

/* A param of one rank, for asking which canonical element an element is. */
struct spot_param {
	const struct manifest *manifest;
	uint32_t rank;
	const struct param *param;
	uint32_t piece; /* met last: tried first */
};

/*
 * Follows a part from its first element to its last: each source element must be the canonical
 * element that the target's is.  Writes what the target gets into account (NULL: no account).
 * 0, -ENOMEM, or 1 with a sentence in why.
 */
int account_part(struct account *account, const struct plan_part *part, struct spot_param *source,
		 struct spot_param *target, char *why, size_t why_bytes);

/* What is wrong with a receiver's account, or NULL: the first claim or piece that it is about. */
const char *account_fault(struct account *account, const struct rank_params *mine,
			  struct claim *at_out);

/* The first claim of `inside` that isn't wholly among those of `of`, which are disjoint; or NULL.
 * Sorts `of`. */
const struct claim *account_uncovered(const struct account *inside, struct account *of);

/* Whether two pieces of a form share a local element: 0 or 1, -ENOMEM.  match.c asks it too. */
int account_form_overlaps(const struct form *form);

/* What a form covers, as stretches of local elements with gaps between them; list is empty, and
 * the caller's to release. */
int account_form_stretches(const struct form *form, struct vec *list);

#endif
