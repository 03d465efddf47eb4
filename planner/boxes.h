/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the planning half is made of: growing arrays, maps that answer equality only, boxes in
 * canonical coordinates.
 */
#ifndef BOXES_H
#define BOXES_H

#include "planner/planner.h"

/* ---- vec.c: growing arrays and a map from 64 bits to a number. */
struct vec {
	void *items; /* owned */
	size_t count, room;
};

/* One more zeroed item behind the others; NULL when out of memory. */
void *vec_add(struct vec *vec, size_t bytes_each);
void vec_release(struct vec *vec);

struct idmap {
	uint64_t *keys;	  /* owned */
	uint32_t *values; /* owned; value + 1, 0 where free */
	size_t room, count;
};

/* The value of the key, or NONE. */
uint32_t idmap_get(const struct idmap *map, uint64_t key);
/* The key must not be there yet.  -ENOMEM. */
int idmap_put(struct idmap *map, uint64_t key, uint32_t value);
void idmap_release(struct idmap *map);

/* ---- Boxes in canonical coordinates. */
struct box {
	uint32_t dim_count;
	uint64_t offset[BOX_DIM_MAX], extent[BOX_DIM_MAX];
};

uint64_t box_volume(const struct box *box);
int box_compare(const struct box *a, const struct box *b);
bool box_intersect(const struct box *a, const struct box *b, struct box *out);
/* What of `from` isn't in `hole` (they intersect): up to 2 * BOX_DIM_MAX boxes. */
uint32_t box_subtract(const struct box *from, const struct box *hole, struct box *out);
/* A copy behind the others; not of one of them.  -ENOMEM. */
int boxes_add(struct vec *boxes, const struct box *box);
/* Rewrites boxes of one dim count as the disjoint boxes of their union: the same for the same
 * union, in order.  -ENOMEM. */
int boxes_unite(struct vec *boxes);
/* "[0:64, 128:256]" */
const char *box_text(const struct box *box, char *out, size_t bytes);

#endif
