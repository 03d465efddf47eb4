/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The union of boxes, as disjoint boxes that depend on the union only: dim 0 is cut wherever the
 * cross-section changes, and each cross-section is united likewise.  So two members that come
 * to the same blocks by different ways write them down alike.
 */
#include "planner/plan_internal.h"

/* What is still to be united lies one list behind the other. */
struct uniting {
	struct vec work; /* of struct box */
	struct vec out;	 /* of struct box */
};

static int number_order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Where a box begins or ends along the dim, ascending. */
static uint64_t *cuts_make(const struct box *boxes, size_t count, uint32_t dim)
{
	uint64_t *cuts = mem_alloc(2 * count * sizeof(*cuts));

	for (size_t i = 0; cuts != NULL && i < count; i++) {
		cuts[2 * i] = boxes[i].offset[dim];
		cuts[2 * i + 1] = boxes[i].offset[dim] + boxes[i].extent[dim];
	}
	if (cuts != NULL)
		qsort(cuts, 2 * count, sizeof(*cuts), number_order);
	return cuts;
}

/* Whether the cross-sections in out[a..b) and out[b..] are the same. */
static bool same_sections(const struct vec *out, size_t a, size_t b, uint32_t dim)
{
	const struct box *x = (const struct box *)out->items + a;
	const struct box *y = (const struct box *)out->items + b;

	if (out->count - b != b - a)
		return false;
	for (size_t i = 0; i < b - a; i++)
		for (uint32_t d = dim + 1; d < x[i].dim_count; d++)
			if (x[i].offset[d] != y[i].offset[d] || x[i].extent[d] != y[i].extent[d])
				return false;
	return true;
}

/* Adds those of the boxes that span [lo, hi) of the dim behind all others. */
static int slab_collect(struct uniting *all, size_t first, size_t count, uint32_t dim, uint64_t lo,
			uint64_t hi)
{
	for (size_t i = first; i < first + count; i++) {
		const struct box box = ((const struct box *)all->work.items)[i];
		if (box.offset[dim] <= lo && box.offset[dim] + box.extent[dim] >= hi &&
		    boxes_add(&all->work, &box) != 0)
			return -ENOMEM;
	}
	return 0;
}

/* Lays what is behind `from` in out into [lo, hi) of the dim; or lets what is behind `before`, the
 * same in the slab in front, reach up to hi.  Returns where the last slab's begins. */
static size_t slab_place(struct vec *out, size_t before, size_t from, uint32_t dim, uint64_t lo,
			 uint64_t hi)
{
	struct box *boxes = out->items;

	if (from > before && boxes[before].offset[dim] + boxes[before].extent[dim] == lo &&
	    same_sections(out, before, from, dim)) {
		for (size_t i = before; i < from; i++)
			boxes[i].extent[dim] = hi - boxes[i].offset[dim];
		out->count = from;
		return before;
	}
	for (size_t i = from; i < out->count; i++) {
		boxes[i].offset[dim] = lo;
		boxes[i].extent[dim] = hi - lo;
	}
	return from;
}

/* At most BOX_DIM_MAX deep.  Dims before `dim` are the caller's to set. */
static int unite(struct uniting *all, size_t first, size_t count, uint32_t dim)
{
	const struct box one = ((const struct box *)all->work.items)[first];

	if (count == 1 || dim == one.dim_count)
		return boxes_add(&all->out, &one);
	uint64_t *cuts = cuts_make((const struct box *)all->work.items + first, count, dim);
	size_t last = all->out.count;
	int rc = cuts == NULL ? -ENOMEM : 0;
	for (size_t c = 1; rc == 0 && c < 2 * count; c++) {
		size_t slab = all->work.count, out = all->out.count;
		if (cuts[c] == cuts[c - 1])
			continue;
		rc = slab_collect(all, first, count, dim, cuts[c - 1], cuts[c]);
		if (rc == 0 && all->work.count > slab) {
			rc = unite(all, slab, all->work.count - slab, dim + 1);
			last = slab_place(&all->out, last, out, dim, cuts[c - 1], cuts[c]);
		}
		all->work.count = slab;
	}
	mem_free(cuts);
	return rc;
}

int boxes_unite(struct vec *boxes)
{
	struct uniting all = {0};
	int rc = 0;

	if (boxes->count < 2)
		return 0;
	for (size_t i = 0; rc == 0 && i < boxes->count; i++)
		rc = boxes_add(&all.work, (const struct box *)boxes->items + i);
	if (rc == 0)
		rc = unite(&all, 0, boxes->count, 0);
	boxes->count = 0;
	for (size_t i = 0; rc == 0 && i < all.out.count; i++)
		rc = boxes_add(boxes, (const struct box *)all.out.items + i);
	vec_release(&all.work);
	vec_release(&all.out);
	return rc;
}
