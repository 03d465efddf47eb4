/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes in canonical coordinates: volume, order, intersection, difference; and lists of them.
 */
#include <stdio.h>

#include "planner/plan_internal.h"

uint64_t box_volume(const struct box *box)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < box->dim_count; d++)
		volume *= box->extent[d];
	return volume;
}

int box_compare(const struct box *a, const struct box *b)
{
	if (a->dim_count != b->dim_count)
		return a->dim_count < b->dim_count ? -1 : 1;
	for (uint32_t d = 0; d < a->dim_count; d++)
		if (a->offset[d] != b->offset[d])
			return a->offset[d] < b->offset[d] ? -1 : 1;
	for (uint32_t d = 0; d < a->dim_count; d++)
		if (a->extent[d] != b->extent[d])
			return a->extent[d] < b->extent[d] ? -1 : 1;
	return 0;
}

bool box_intersect(const struct box *a, const struct box *b, struct box *out)
{
	if (a->dim_count != b->dim_count)
		return false;
	out->dim_count = a->dim_count;
	for (uint32_t d = 0; d < a->dim_count; d++) {
		uint64_t lo = MAX(a->offset[d], b->offset[d]);
		uint64_t hi = MIN(a->offset[d] + a->extent[d], b->offset[d] + b->extent[d]);
		if (lo >= hi)
			return false;
		out->offset[d] = lo;
		out->extent[d] = hi - lo;
	}
	return true;
}

/*
 * Dim by dim: what lies before and behind the hole is cut off whole, and the rest goes on.
 *
 *   +-----------+
 *   |     0     |
 *   +---+---+---+
 *   | 2 | / | 3 |     the hole is /
 *   +---+---+---+
 *   |     1     |
 *   +-----------+
 */
uint32_t box_subtract(const struct box *from, const struct box *hole, struct box *out)
{
	struct box rest = *from;
	uint32_t count = 0;

	for (uint32_t d = 0; d < from->dim_count; d++) {
		uint64_t end = rest.offset[d] + rest.extent[d];
		uint64_t hole_end = MIN(hole->offset[d] + hole->extent[d], end);
		uint64_t hole_begin = MAX(hole->offset[d], rest.offset[d]);
		if (rest.offset[d] < hole_begin) {
			out[count] = rest;
			out[count++].extent[d] = hole_begin - rest.offset[d];
		}
		if (hole_end < end) {
			out[count] = rest;
			out[count].offset[d] = hole_end;
			out[count++].extent[d] = end - hole_end;
		}
		rest.offset[d] = hole_begin;
		rest.extent[d] = hole_end - hole_begin;
	}
	return count;
}

int boxes_add(struct vec *boxes, const struct box *box)
{
	struct box *added = vec_add(boxes, sizeof(*added));

	if (added == NULL)
		return -ENOMEM;
	*added = *box;
	return 0;
}

const char *box_text(const struct box *box, char *out, size_t bytes)
{
	size_t used = (size_t)snprintf(out, bytes, "[");

	for (uint32_t d = 0; d < box->dim_count && used < bytes; d++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%" PRIu64 ":%" PRIu64,
					 d == 0 ? "" : ", ", box->offset[d],
					 box->offset[d] + box->extent[d]);
	if (used < bytes)
		snprintf(out + used, bytes - used, "]");
	return out;
}
