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
	bool is_whole;	     /* QUANTIZE of whole blocks: the table is where the scales go */
	uint32_t dim_count;  /* at least 1; dims[0] is the innermost */
	struct task_dim dims[MOVE_DIM_MAX];
	/* The tiles: strips of columns by bands of rows; a column is a unit.  whole: blocks. */
	uint32_t rows, columns, strips;
	uint32_t width_bits; /* threads side by side in a row */
	uint32_t row_step,
		column_step; /* from one pass of a thread to its next; one of them is 0 */
};

/* The tasks of one launch.  Task i has the tiles from first_tile[i] to first_tile[i + 1]. */
struct task_list {
	const struct task *tasks;   /* all three in the GPU's memory */
	const uint32_t *first_tile; /* count + 1 */
	uint32_t count, tile_count;
};

struct CUstream_st;

/* How whole blocks are held in a GPU's shared memory. */
struct whole_grid {
	uint32_t block_count; /* of threads, which fill the GPU; 0: they don't fit */
	uint32_t stages, stage_bytes;
};

/* tiles.cu and whole.cu; absent.c where CUDA isn't built in.  For the thread's current GPU. */
int tiles_fill(uint32_t *block_count_out, struct ws_error *err);
int tiles_launch(uint32_t block_count, const struct task_list *list, struct CUstream_st *stream,
		 struct ws_error *err);
int whole_fill(bool has_f32, struct whole_grid *grid_out, struct ws_error *err);
int whole_launch(const struct whole_grid *grid, const struct task_list *list,
		 struct CUstream_st *stream, struct ws_error *err);

#ifdef __cplusplus
}
#endif

#endif
