/* SPDX-License-Identifier: Apache-2.0 */
/* Whole tensors of two dims: their maxima, scales, codes and values, by lib/convert. */
#ifndef CONVERT_TENSOR_WORLD_H
#define CONVERT_TENSOR_WORLD_H

#include "tests/convert_world.h"

struct tensor {
	struct quant quant;
	enum ws_dtype dtype;
	uint64_t rows, columns, block[2], grid[2];
	uint8_t *floats, *codes, *scales; /* owned, row by row */
	uint32_t *table;		  /* owned: maxima of the grid */
};

/* Shape, dtype, blocks, scheme and elements are the seed's choice. */
void tensor_make(struct tensor *tensor, uint64_t seed);
void tensor_release(struct tensor *tensor);
void tensor_quantize(struct tensor *tensor);

/* A box of a tensor. */
struct part {
	uint64_t row, column, rows, columns;
};

/* MAXIMA: into a table of the tensor's grid.  QUANTIZE: by that, into the tensor's codes. */
void move_part(struct tensor *tensor, enum move_kind kind, const struct part *part,
	       uint32_t *table);
/* The tensor's scales by such a table. */
void move_scales(struct tensor *tensor, const uint32_t *table);

/* For convert_reference.py: tensors in many schemes, and in some the weights of a checkpoint
 * (NULL: none); N.floats, N.scales, N.codes, N.values (bf16) and a line of tensors.txt each. */
void tensors_write(const char *folder, const char *checkpoint);

#endif
