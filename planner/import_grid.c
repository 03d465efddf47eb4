/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that a framework lists (a DeviceMesh, a process group) as axes of a manifest's mesh:
 * the number of a rank must grow by one fixed step along each axis, as it does wherever groups
 * are made from a shape.  A sub-mesh gets the axes that it leaves out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/import.h"

/* Where a walk through nested lists of ranks stands. */
struct grid_walk {
	struct import *import;
	struct grid *grid;
	const char *where;
	int64_t base;
	bool good;
};

static int64_t first_rank(const struct json *ranks)
{
	while (ranks != NULL && ranks->type == JSON_ARRAY)
		ranks = ranks->first;
	return ranks != NULL && ranks->is_integer ? ranks->integer : -1;
}

/* Sizes and steps, from the first lists of each depth. */
static bool read_axes(struct grid_walk *walk, const struct json *ranks)
{
	struct grid *grid = walk->grid;
	for (uint32_t i = 0; i < grid->axis_count; i++, ranks = ranks->first) {
		int64_t step = 1;
		if (ranks == NULL || ranks->type != JSON_ARRAY || ranks->count == 0)
			return false;
		if (ranks->count > 1)
			step = first_rank(ranks->first->next) - walk->base;
		if (step < 1 || step >= walk->import->world || ranks->count > walk->import->world)
			return ranks->count == 1 &&
			       (grid->axis[i].size = 1, grid->axis[i].stride = 1);
		grid->axis[i].size = ranks->count;
		grid->axis[i].stride = (uint32_t)step;
	}
	return true;
}

/* Recurses at most GRID_AXIS_MAX deep. */
static bool check_ranks(const struct grid_walk *walk, const struct json *ranks, uint32_t depth,
			int64_t rank)
{
	const struct grid *grid = walk->grid;
	if (depth == grid->axis_count)
		return ranks->is_integer && ranks->integer == rank;
	if (ranks->type != JSON_ARRAY || ranks->count != grid->axis[depth].size)
		return false;
	for (const struct json *it = ranks->first; it != NULL; it = it->next) {
		if (!check_ranks(walk, it, depth + 1, rank))
			return false;
		rank += grid->axis[depth].stride;
	}
	return true;
}

bool grid_read(struct import *import, const struct json *ranks, struct grid *grid,
	       const char *where)
{
	struct grid_walk walk = {
		.import = import, .grid = grid, .where = where, .base = first_rank(ranks)};
	if (ranks == NULL || walk.base < 0 || !read_axes(&walk, ranks) ||
	    !check_ranks(&walk, ranks, 0, walk.base)) {
		findings_add(&import->found, "mesh", where,
			     "its ranks must be %u nested list%s in which a rank's number grows "
			     "by one fixed step along each axis, below \"world\" (%" PRIu32 ")",
			     grid->axis_count, grid->axis_count == 1 ? "" : "s", import->world);
		return false;
	}
	return true;
}

static void add_rest(struct import *import, struct grid *grid, uint32_t size, uint32_t stride)
{
	char name[16];
	snprintf(name, sizeof(name), "rest%u", stride);
	const char *copy = arena_copy(&import->arena, name, strlen(name));
	import->out_of_memory = import->out_of_memory || copy == NULL;
	grid->axis[grid->axis_count++] =
		(struct grid_axis){.name = copy, .size = size, .stride = stride};
}

bool grid_fit(struct import *import, struct grid *grid, const char *where)
{
	struct grid fitted = {.name = grid->name};
	uint32_t left = import->world;
	bool used[GRID_AXIS_MAX + 1] = {0};
	for (uint32_t n = 0; n < grid->axis_count; n++) {
		uint32_t best = UINT32_MAX;
		for (uint32_t i = 0; i < grid->axis_count; i++) {
			if (!used[i] &&
			    (best == UINT32_MAX || grid->axis[i].stride > grid->axis[best].stride))
				best = i;
		}
		const struct grid_axis *axis = &grid->axis[best];
		uint64_t span = (uint64_t)axis->size * axis->stride;
		used[best] = true;
		if (axis->size > 1 && (span > left || left % span != 0)) {
			findings_add(
				&import->found, "mesh", where,
				"axis '%s' of %u ranks in steps of %u doesn't factor the world "
				"of %u ranks beside the other axes",
				axis->name, axis->size, axis->stride, import->world);
			return false;
		}
		if (axis->size > 1 && left > span)
			add_rest(import, &fitted, (uint32_t)(left / span), (uint32_t)span);
		fitted.axis[fitted.axis_count++] = *axis;
		left = axis->size > 1 ? axis->stride : left;
	}
	if (left > 1)
		add_rest(import, &fitted, left, 1);
	*grid = fitted;
	return true;
}
