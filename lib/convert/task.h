/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device.c makes of a move for the kernels.  A box is cut into tiles of some
 * 2,000 units (8 elements, or one word of a copy) that lie side by side or below each other, so
 * that thousands of small moves and one large one keep a GPU equally busy.  Private to lib/convert.
 */
#ifndef TASK_H
#define TASK_H

#include "lib/convert/convert.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TASK_THREADS_BITS 8
#define TASK_THREADS	  (1u << TASK_THREADS_BITS)
#define TASK_PASSES	  8u /* of each thread through a tile */
#define TASK_TILE_UNITS	  (TASK_THREADS * TASK_PASSES)
#define TASK_UNIT	  8u /* elements, but for copies, RAISE and SCALE */

struct task_dim {
	int64_t src_stride, dst_stride; /* bytes */
	int64_t entry_stride;		/* bytes, of the table */
	uint32_t extent;		/* elements, or words of a copy */
	uint32_t each, first;		/* as of struct box_dim; each 0: all in one block */
	uint32_t blocks; /* whole: how many blocks lie in it, each as long but the last */
};

struct task {
	const uint8_t *src;
	uint8_t *dst, *table;
	enum move_kind kind;
	enum ws_dtype from, to;
	struct quant quant;
	uint32_t unit; /* elements: TASK_UNIT, all aligned for the widest loads and stores, or 1 */
	uint32_t from_bytes; /* of an element, or of a copy's word: 16 or less */
	bool is_words;	     /* copies, RAISE, SCALE */
	bool is_aligned;     /* elements to their sizes */
	/* dims[0] is the innermost, dims[1] the longest of the others. */
	uint32_t dim_count; /* at least 1 */
	struct task_dim dims[MOVE_DIM_MAX];
	/* The tiles of a plane of the first two dims: strips of columns by bands of rows; a column
	 * is a unit.  Not of whole blocks, which are tiles themselves. */
	uint32_t first_tile; /* of the list */
	uint32_t columns, rows, strips, bands;
	uint32_t width_bits; /* threads side by side in a row */
	uint32_t row_step;   /* from a thread's pass to its next; 0: it goes on in its row */
};

/* The tasks of one launch. */
struct task_list {
	const struct task *tasks;   /* both in the GPU's memory */
	const uint32_t *first_tile; /* once more, for the search */
	uint32_t count, tile_count;
};

struct CUstream_st;

/* tiles.cu and whole.cu; absent.c where CUDA isn't built in.  For the thread's current GPU.  Whole
 * blocks: all of elements of 2 bytes, or all of 4. */
int tiles_launch(const struct task_list *list, struct CUstream_st *stream, struct ws_error *err);
int whole_launch(const struct task_list *list, uint32_t element_bytes, struct CUstream_st *stream,
		 struct ws_error *err);

#ifdef __cplusplus
}
#endif

#endif
