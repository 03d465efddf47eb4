/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the checker (check.c, account.c).  It shares no code with what plans: it reads
 * forms element by element (by lines where that is the same), and keeps an account of bytes.
 */
#ifndef CHECK_H
#define CHECK_H

#include "planner/plan_internal.h"

/* Bytes [lo, hi) of a param. */
struct interval {
	uint32_t param;
	uint64_t lo, hi;
};

struct account {
	struct vec list; /* of struct interval, as they came; neighbours joined */
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

int account_add(struct account *account, uint32_t param, uint64_t lo, uint64_t hi);
/* Sorts and joins; *twice_out is an interval that was written twice, else its hi is 0. */
void account_close(struct account *account, struct interval *twice_out);
/* Adds all that the form's pieces cover. */
int account_form(struct account *account, uint32_t param, const struct param *of);

/*
 * Follows a part from its first element to its last: each source element must be the canonical
 * element that the target's is.  Writes what the target gets into account (NULL: no account).
 * 0, -ENOMEM, or 1 with a sentence in why.
 */
int account_part(struct account *account, const struct plan_part *part, struct spot_param *source,
		 struct spot_param *target, char *why, size_t why_bytes);

#endif
