/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensors with a scheme each, the shards that ranks hold of them, and their moves. */
#ifndef TENSOR_WORLD_H
#define TENSOR_WORLD_H

#include <stdio.h>

#include "tests/convert_world.h"

struct tensor {
	struct quant quant;
	enum ws_dtype dtype;
	uint64_t rows, columns, block[2], grid[2];
	/* Row by row; a copy of the struct may point into a GPU's memory. */
	uint8_t *floats, *codes, *scales;
	uint32_t *table;  /* maxima of the grid */
	uint16_t *values; /* what the codes stand for, as bf16 */
};

void tensor_make(struct tensor *tensor, uint64_t seed); /* owns all its memory */
void tensor_release(struct tensor *tensor);

struct part {
	uint64_t row, column, rows, columns;
};

#define SHARDS 16

/* What one of SHARDS holds: rows (FSDP), columns (row-parallel), or a flat range (ZeRO-3), which
 * is the tail of a row, whole rows, and the head of a row. */
uint32_t cut_shard(const struct tensor *tensor, uint32_t cut, uint64_t shard, struct part parts[3]);

/* A move and what it borrows; it borrows the tensor, too. */
struct tensor_move {
	struct move move;
	struct blocks blocks;
};

/* A box of the tensor: its maxima into a table of the tensor's grid, or its codes by that. */
void part_move(const struct tensor *tensor, enum move_kind kind, const struct part *part,
	       uint32_t *table, struct tensor_move *out);
void raise_move(const struct tensor *tensor, uint32_t *table, const uint32_t *partial,
		struct tensor_move *out);
void scales_move(const struct tensor *tensor, const uint32_t *table, struct tensor_move *out);
void values_move(const struct tensor *tensor, struct tensor_move *out);

/* Table, scales, codes and values, by the host. */
void tensor_quantize(struct tensor *tensor);

/* For convert_reference.py and gpu_reference.py: one line in the list, and a file of each kind. */
void tensor_write(const struct tensor *tensor, uint64_t seed, const char *folder, FILE *list);

#endif
