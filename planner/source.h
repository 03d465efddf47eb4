/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan from what a wiring brings: two manifests as text and the rest of the input.  Manifests
 * are parsed once and kept while their text stays the same; there is never more than one plan.
 */
#ifndef PLANNER_SOURCE_H
#define PLANNER_SOURCE_H

#include "planner/planner.h"

struct plan_source {
	struct manifest *manifest[2]; /* owned; by enum side */
	uint64_t text_digest[2];
	struct plan *plan; /* owned; of the last plan_source_make */
	uint32_t self;	   /* in it */
};

/* Takes a side's manifest.  The plan goes when the text is another one.  -EINVAL when the text
 * is of the other side, and what manifest_parse says. */
int plan_source_take(struct plan_source *source, enum side side, const void *text, size_t bytes,
		     struct ws_error *err);
/* Makes self's part and checks it by the checker; input's manifests are ignored.  The first
 * finding and the number of the others are in err.  roster_count: of the members that input's
 * places are of, which came from elsewhere than the manifests; 0 without places. */
int plan_source_make(struct plan_source *source, const struct plan_input *input,
		     uint32_t roster_count, uint32_t self, struct ws_error *err);
/* What its name says; also for a zeroed one. */
void plan_source_release(struct plan_source *source);

#endif
