/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes with an affine place.  A box has one contiguous range per canonical dim; an operation
 * of the expression language cuts, moves or stretches it along one dim of its output.  After
 * `fl` several canonical dims share an output dim, like the digits of a mixed-radix number: a
 * cut then takes a partial head row, the full rows and a partial tail row.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

int views_add(struct views *views, const struct view *view, struct ws_error *err)
{
	if (views->count == views->room) {
		if (views->room >= PIECE_COUNT_MAX)
			return ws_fail(err, -ENOSPC, "the expression has more than %u pieces",
				       PIECE_COUNT_MAX);
		uint32_t room = views->room == 0 ? 8 : views->room * 2;
		struct view *list =
			mem_grow(views->list, views->room * sizeof(*list), room * sizeof(*list));
		if (list == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for %u pieces", room);
		views->list = list;
		views->room = room;
	}
	views->list[views->count++] = *view;
	return 0;
}

void views_release(struct views *views)
{
	mem_free(views->list);
	*views = (struct views){0};
}

/* The canonical dims that move along an output dim, the largest step first. */
struct digits {
	uint32_t count;
	uint32_t dim[BOX_DIM_MAX];
};

static struct digits digits_of(const struct view *view, uint32_t dim)
{
	struct digits digits = {0};
	for (uint32_t d = 0; d < view->dim_count; d++) {
		if (view->to[d] != dim || view->extent[d] <= 1)
			continue;
		uint32_t at = digits.count++;
		for (; at > 0 && view->step[digits.dim[at - 1]] < view->step[d]; at--)
			digits.dim[at] = digits.dim[at - 1];
		digits.dim[at] = d;
	}
	return digits;
}

static uint64_t reach_of(const struct view *view, const struct digits *digits, uint32_t from)
{
	uint64_t reach = 0;
	for (uint32_t i = from; i < digits->count; i++)
		reach += (view->extent[digits->dim[i]] - 1) * view->step[digits->dim[i]];
	return reach;
}

void view_reach(const struct view *view, uint32_t dim, uint64_t *first_out, uint64_t *last_out)
{
	struct digits digits = digits_of(view, dim);
	*first_out = view->at[dim];
	*last_out = view->at[dim] + reach_of(view, &digits, 0);
}

/* Keeps [from, to) of one canonical dim. */
static struct view narrowed(const struct view *view, uint32_t d, uint64_t from, uint64_t to)
{
	struct view part = *view;
	part.offset[d] += from;
	part.extent[d] = to - from;
	part.at[part.to[d]] += from * part.step[d];
	return part;
}

static int emit(const struct view *view, uint32_t dim, const struct span *span, struct views *out,
		struct ws_error *err)
{
	struct view moved = *view;
	moved.at[dim] = (view->at[dim] - span->lo) * span->scale + span->shift;
	for (uint32_t d = 0; d < moved.dim_count; d++) {
		if (moved.to[d] == dim)
			moved.step[d] *= span->scale;
	}
	return views_add(out, &moved, err);
}

/* How many i >= 0, below count, have base + i * step < limit. */
static uint64_t count_below(uint64_t base, uint64_t step, uint64_t count, uint64_t limit)
{
	if (base >= limit)
		return 0;
	return MIN(count, (limit - 1 - base) / step + 1);
}

/* Digit `level` and those below it are still whole. */
static int cut_digit(const struct view *view, uint32_t dim, const struct digits *digits,
		     uint32_t level, const struct span *span, struct views *out,
		     struct ws_error *err)
{
	uint64_t base = view->at[dim];
	if (level == digits->count) {
		if (base < span->lo || base >= span->hi)
			return 0;
		return emit(view, dim, span, out, err);
	}
	uint32_t d = digits->dim[level];
	uint64_t step = view->step[d], extent = view->extent[d];
	uint64_t reach = reach_of(view, digits, level + 1);
	/* Rows first..last touch the span; of these full_first..full_last lie wholly inside. */
	uint64_t first = count_below(base + reach, step, extent, span->lo);
	uint64_t last = count_below(base, step, extent, span->hi);
	uint64_t full_first = MAX(first, count_below(base, step, extent, span->lo));
	uint64_t full_last = MIN(last, count_below(base + reach, step, extent, span->hi));
	if (first >= last)
		return 0;
	if (full_first >= full_last)
		full_first = full_last = last;
	if (last - first - (full_last - full_first) > PIECE_COUNT_MAX)
		return ws_fail(err, -ENOSPC, "a cut makes more than %u pieces", PIECE_COUNT_MAX);
	for (uint64_t i = first; i < last; i++) {
		struct view part;
		int rc;
		if (i == full_first && full_first < full_last) {
			part = narrowed(view, d, full_first, full_last);
			rc = emit(&part, dim, span, out, err);
			i = full_last - 1;
		} else {
			part = narrowed(view, d, i, i + 1);
			rc = cut_digit(&part, dim, digits, level + 1, span, out, err);
		}
		if (rc != 0)
			return rc;
	}
	return 0;
}

int views_cut(const struct view *view, uint32_t dim, const struct span *span, struct views *out,
	      struct ws_error *err)
{
	struct digits digits = digits_of(view, dim);
	return cut_digit(view, dim, &digits, 0, span, out, err);
}

uint64_t shape_elements(const struct shape *shape)
{
	uint64_t product = 1;
	bool empty = false, over = false;
	for (uint32_t d = 0; d < shape->dim_count; d++) {
		empty = empty || shape->dim[d] == 0;
		over = over || __builtin_mul_overflow(product, shape->dim[d], &product);
	}
	if (empty)
		return 0;
	return over ? UINT64_MAX : product;
}

/* Orders pieces so that those that can merge along `dim` stand side by side; dim BOX_DIM_MAX:
 * the final order. */
static int compare_along(const void *left, const void *right, void *arg)
{
	const struct piece *a = left, *b = right;
	uint32_t dim = *(const uint32_t *)arg;
	if (a->tensor != b->tensor)
		return a->tensor < b->tensor ? -1 : 1;
	if (a->slot != b->slot)
		return a->slot < b->slot ? -1 : 1;
	for (uint32_t d = 0; d < a->dim_count; d++) {
		if (d == dim)
			continue;
		if (a->offset[d] != b->offset[d])
			return a->offset[d] < b->offset[d] ? -1 : 1;
		if (a->extent[d] != b->extent[d])
			return a->extent[d] < b->extent[d] ? -1 : 1;
	}
	if (dim < a->dim_count && a->offset[dim] != b->offset[dim])
		return a->offset[dim] < b->offset[dim] ? -1 : 1;
	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	return 0;
}

/* Joins b to a where b continues a's canonical range and its arithmetic progression. */
static bool joined(struct piece *a, const struct piece *b, uint32_t dim)
{
	if (a->tensor != b->tensor || a->slot != b->slot || b->place <= a->place ||
	    b->offset[dim] != a->offset[dim] + a->extent[dim])
		return false;
	for (uint32_t d = 0; d < a->dim_count; d++) {
		if (d != dim && (a->offset[d] != b->offset[d] || a->extent[d] != b->extent[d] ||
				 (a->extent[d] > 1 && a->stride[d] != b->stride[d])))
			return false;
	}
	uint64_t apart = b->place - a->place;
	if (apart % a->extent[dim] != 0)
		return false;
	int64_t stride = (int64_t)(apart / a->extent[dim]);
	if ((a->extent[dim] > 1 && a->stride[dim] != stride) ||
	    (b->extent[dim] > 1 && b->stride[dim] != stride))
		return false;
	a->stride[dim] = stride;
	a->extent[dim] += b->extent[dim];
	return true;
}

uint32_t pieces_merge(struct piece *pieces, uint32_t count)
{
	uint32_t dim_max = 0;
	for (uint32_t i = 0; i < count; i++)
		dim_max = MAX(dim_max, pieces[i].dim_count);
	for (uint32_t left = dim_max; left > 0 && count > 1; left--) {
		uint32_t dim = left - 1, kept = 0;
		qsort_r(pieces, count, sizeof(*pieces), compare_along, &dim);
		for (uint32_t i = 1; i < count; i++) {
			if (pieces[i].dim_count <= dim || !joined(&pieces[kept], &pieces[i], dim))
				pieces[++kept] = pieces[i];
		}
		count = kept + 1;
	}
	if (count > 1) {
		uint32_t dim = BOX_DIM_MAX;
		qsort_r(pieces, count, sizeof(*pieces), compare_along, &dim);
	}
	return count;
}

int views_lower(const struct views *views, const struct shape *shape, struct arena *arena,
		struct form *form, struct ws_error *err)
{
	struct piece *scratch = mem_alloc(views->count * sizeof(*scratch));
	if (scratch == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u pieces", views->count);
	uint64_t stride[LOCAL_DIM_MAX], elements = 1;
	for (uint32_t d = shape->dim_count; d > 0; d--) {
		stride[d - 1] = elements;
		elements *= shape->dim[d - 1];
	}
	uint64_t covered = 0;
	for (uint32_t i = 0; i < views->count; i++) {
		const struct view *view = &views->list[i];
		struct piece *piece = &scratch[i];
		uint64_t volume = 1;
		*piece = (struct piece){
			.tensor = view->tensor, .slot = view->slot, .dim_count = view->dim_count};
		for (uint32_t j = 0; j < shape->dim_count; j++)
			piece->place += view->at[j] * stride[j];
		for (uint32_t d = 0; d < view->dim_count; d++) {
			piece->offset[d] = view->offset[d];
			piece->extent[d] = view->extent[d];
			piece->stride[d] = (int64_t)(view->step[d] * stride[view->to[d]]);
			volume *= view->extent[d];
		}
		covered += volume;
	}
	uint32_t count = pieces_merge(scratch, views->count);
	struct piece *pieces =
		(struct piece *)(void *)arena_copy(arena, scratch, count * sizeof(*pieces));
	mem_free(scratch);
	if (pieces == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u pieces", count);
	form->dim_count = shape->dim_count;
	memcpy(form->dim, shape->dim, sizeof(form->dim));
	form->element_count = elements;
	form->covered_count = covered;
	form->piece_count = count;
	form->pieces = pieces;
	return 0;
}
