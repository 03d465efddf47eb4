/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of two dims and the shards that ranks hold of them: maxima, scales, codes and values. */
#ifndef CONVERT_TENSOR_WORLD_H
#define CONVERT_TENSOR_WORLD_H

#include <stdio.h>

#include "tests/convert_world.h"

struct tensor {
	struct quant quant;
	enum ws_dtype dtype;
	uint64_t rows, columns, block[2], grid[2];
	/* Owned, row by row; a copy of the struct may have addresses of a GPU. */
	uint8_t *floats, *codes, *scales;
	uint32_t *table;  /* maxima of the grid */
	uint16_t *values; /* what the codes stand for, as bf16 */
	/* Who does the tensor's moves, or adds them to a batch; NULL: convert_move. */
	void (*carry_out)(const struct move *move);
};

/* Shape, dtype, blocks, scheme and elements are the seed's choice. */
void tensor_make(struct tensor *tensor, uint64_t seed);
void tensor_release(struct tensor *tensor);

/* A box of a tensor. */
struct part {
	uint64_t row, column, rows, columns;
};

#define SHARDS 16

/* What one of SHARDS holds: rows (FSDP), columns (row-parallel), or a flat range (ZeRO-3), which
 * is the tail of a row, whole rows, and the head of a row. */
uint32_t cut_shard(const struct tensor *tensor, uint32_t cut, uint64_t shard, struct part parts[3]);

/* MAXIMA: into a table of the tensor's grid.  QUANTIZE: by that, into the tensor's codes. */
void move_part(const struct tensor *tensor, enum move_kind kind, const struct part *part,
	       uint32_t *table);
/* One such table raises another. */
void move_raise(const struct tensor *tensor, uint32_t *table, const uint32_t *other);
/* The tensor's scales by such a table. */
void move_scales(const struct tensor *tensor, const uint32_t *table);
void move_values(const struct tensor *tensor);

/* All of it, by the host. */
void tensor_quantize(struct tensor *tensor);

/* For convert_reference.py and gpu_reference.py: files N.floats, N.scales, N.codes and N.values,
 * and a line in the list. */
void tensor_write(const char *folder, FILE *list, uint64_t number, const struct tensor *tensor);
/* Tensors in many schemes, and in some the weights of a checkpoint (NULL: none); the list is
 * tensors.txt. */
void tensors_write(const char *folder, const char *checkpoint);

#endif
