/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that break a plan on purpose, as if the planner had made it so. */
#ifndef PLAN_DIGESTS_H
#define PLAN_DIGESTS_H

#include "planner/plan_internal.h"

static inline size_t plan_stored_count(const struct plan *plan)
{
	return plan->copies.count;
}

static inline struct stored_copy *plan_stored_copy(struct plan *plan, size_t index)
{
	return (struct stored_copy *)plan->copies.items + index;
}

static inline struct plan_part *plan_stored_part(struct plan *plan, const struct stored_copy *copy,
						 uint32_t part)
{
	return (struct plan_part *)plan->parts.items + copy->part_first + part;
}

/* Takes the plan's digests anew: they say nothing of what is wrong then. */
static inline void digests_renew(struct plan *plan)
{
	for (uint32_t i = 0; i < plan->segments.count; i++)
		plan_segment(plan, i)->digest = plan_segment_digest(plan, plan_segment(plan, i));
	for (uint32_t i = 0; i < plan->pairs.count; i++)
		plan_pair_state(plan, i)->pair.digest =
			plan_pair_digest(plan, plan_pair_state(plan, i));
}

#endif
