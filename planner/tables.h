/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantizing on the way: the grids of blocks, the tables in which trainers keep maxima, and what
 * they tell each other.
 */
#ifndef TABLES_H
#define TABLES_H

#include "planner/boxes.h"

struct planning;
struct geometry;

/* How a scheme cuts a weight: elements of each dim under one scale.  Compared byte by byte: it has
 * no gaps. */
struct grid {
	uint32_t dim_count; /* of the weight; blocks have as many, or 1 where `one` is */
	uint32_t one;	    /* 1: one scale for all */
	uint64_t each[BOX_DIM_MAX], dim[BOX_DIM_MAX];
};

/* The blocks that a rank's boxes of a unit touch, as one box. */
struct touched {
	uint32_t rank;
	struct box blocks;
};

/* A trainer's maxima of one unit: row-major over the blocks that its boxes touch.  Units under one
 * scale have their entry in common. */
struct plan_table {
	uint64_t first;		   /* entry, from where those of the bucket begin */
	uint32_t kind, lead, unit; /* lead: of the units under the scale */
	uint32_t param;		   /* and its piece: what it is of, at the layer planned */
	const struct piece *piece;
	const struct box *blocks;
};

/* All of a trainer's; those of a bucket lie together, bucket after bucket. */
struct trainer_tables {
	bool known;
	struct plan_table *list; /* by kind, lead, unit */
	uint32_t count;
	uint64_t *bucket; /* by bucket: where its begin, in bytes; and the end of all */
};

struct stored_local {
	struct plan_local local; /* of the layer planned */
	uint32_t rule, each;
};

/* What repeating moves in the blocks of a copy: by `step` elements along one dim. */
struct block_turn {
	uint64_t each, first, step;
	int64_t stride;
	uint32_t dim; /* the part's, or NONE where it has no such dim */
};

/* Maxima on their way from one trainer to another, of units in a row that are alike.  Of blocks
 * that a trainer sends codes or scales of: from itself to itself, and of one unit. */
struct share {
	uint32_t sender, receiver;
	uint32_t unit, unit_count;
	struct box blocks;
};

/* ---- tables.c */
struct grid grid_make(const struct quant_scheme *scheme, const struct tensor_rule *weight);
/* The blocks that a box of the weight touches, and the elements of blocks. */
struct box grid_touched(const struct grid *grid, const struct box *box);
struct box grid_elements(const struct grid *grid, const struct box *blocks);
/* Whether the box has all elements of the blocks that it touches.  Where one scale is for all,
 * other weights may be under it, too: false. */
bool grid_is_whole(const struct grid *grid, const struct box *box);
/* Numbers the units by kind; flags what is near the planned trainer. */
int tables_begin(struct planning *planning);
/* The trainer's table of a unit that it holds, or of another one under the same scale. */
int table_of_unit(struct planning *planning, uint32_t rank, uint32_t unit,
		  const struct plan_table **out, struct ws_error *err);
/* The table's blocks as a box whose elements are entries. */
struct piece table_piece(const struct plan_table *table);
/* The grid of a box of the unit in such a table, by the box' dims. */
struct plan_blocks table_blocks(const struct grid *grid, const struct plan_table *table,
				const struct box *box);
/* The same blocks kept, once for all that have them; NULL when out of memory. */
const struct plan_blocks *blocks_keep(struct planning *planning, const struct plan_blocks *blocks);
/* Moves a box' blocks by some elements along a dim. */
void blocks_shift(struct plan_blocks *blocks, uint32_t dim, uint64_t elements);

/* ---- maxima.c */
/* A trainer sends codes of this box, or scales of these blocks, of a weight. */
int maxima_need(struct planning *planning, uint32_t unit, uint32_t rank, const struct box *blocks);
/* Puts what trainers send each other of the kind into planning->raws, and the planned one's locals
 * into the plan. */
int maxima_of_kind(struct planning *planning, uint32_t kind, struct ws_error *err);

#endif
