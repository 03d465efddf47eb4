/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends how much to whom, packed for the page: a column for each sender, a row for each
 * receiver.  Numbers are varints, the whole is base64:
 *
 *   count of values, the values in the order of how often they occur,
 *   then cells row by row: 2 value, or 2 value + 1 and how many more cells have it
 *
 * Value 0 is "nothing".  Where that would make the page too large, neighbouring ranks share a
 * cell, which holds their sum.
 */
#include "planner/page_internal.h"

#define CELLS_MAX (1u << 20)

struct matrix {
	uint32_t columns, row_first, rows; /* members */
	uint32_t column_bin, row_bin;	   /* members to a cell */
	uint32_t wide, high;		   /* cells */
	uint64_t *cells;		   /* owned; row by row */
	struct value *values;		   /* owned; by frequency */
	struct value **by_bytes;	   /* owned; the same, ascending */
	uint32_t value_count;
};

struct value {
	uint64_t bytes;
	uint32_t cell_count, index;
};

static void matrix_release(struct matrix *matrix)
{
	mem_free(matrix->cells);
	mem_free(matrix->values);
	mem_free(matrix->by_bytes);
	matrix->cells = NULL;
	matrix->values = NULL;
	matrix->by_bytes = NULL;
}

/* Any member may send and receive: trainers do the one, rollouts the other, and more of them
 * both where bytes are forwarded.  Maxima among trainers aren't shown. */
static struct matrix matrix_of(const struct plan *all)
{
	uint32_t columns = all->trainer_count, row_first = all->trainer_count;

	for (uint32_t i = 0; i < plan_send_pair_count(all); i++) {
		const struct plan_pair *pair = plan_send_pair(all, i);
		columns = MAX(columns, pair->sender + 1);
		if (!pair_tells(all, pair))
			row_first = MIN(row_first, pair->receiver);
	}
	return (struct matrix){.columns = columns,
			       .row_first = row_first,
			       .rows = all->member_count - row_first,
			       .column_bin = 1,
			       .row_bin = 1};
}

static void matrix_coarsen(struct matrix *matrix)
{
	if (matrix->columns / matrix->column_bin >= matrix->rows / matrix->row_bin)
		matrix->column_bin *= 2;
	else
		matrix->row_bin *= 2;
}

static int matrix_fill(struct matrix *matrix, const struct plan *all)
{
	for (;; matrix_coarsen(matrix)) {
		matrix->wide = (matrix->columns - 1) / matrix->column_bin + 1;
		matrix->high = (matrix->rows - 1) / matrix->row_bin + 1;
		if ((uint64_t)matrix->wide * matrix->high <= CELLS_MAX)
			break;
	}
	matrix->cells = mem_alloc((size_t)matrix->wide * matrix->high * sizeof(uint64_t));
	if (matrix->cells == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < plan_send_pair_count(all); i++) {
		const struct plan_pair *pair = plan_send_pair(all, i);
		if (pair_tells(all, pair))
			continue;
		uint32_t row = (pair->receiver - matrix->row_first) / matrix->row_bin;
		matrix->cells[(size_t)row * matrix->wide + pair->sender / matrix->column_bin] +=
			pair->bytes;
	}
	return 0;
}

static int compare_bytes(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return (left > right) - (left < right);
}

/* Nothing first, then what occurs most often, then the smaller. */
static int compare_frequency(const void *a, const void *b)
{
	const struct value *left = a, *right = b;

	if ((left->bytes == 0) != (right->bytes == 0))
		return left->bytes == 0 ? -1 : 1;
	if (left->cell_count != right->cell_count)
		return left->cell_count > right->cell_count ? -1 : 1;
	return (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

static int compare_value(const void *a, const void *b)
{
	const struct value *const *left = a, *const *right = b;

	return compare_bytes(&(*left)->bytes, &(*right)->bytes);
}

static int matrix_count_values(struct matrix *matrix)
{
	size_t count = (size_t)matrix->wide * matrix->high;
	uint64_t *sorted = mem_alloc(count * sizeof(*sorted));

	matrix->values = mem_alloc((count + 1) * sizeof(*matrix->values));
	matrix->by_bytes = mem_alloc((count + 1) * sizeof(struct value *));
	if (sorted == NULL || matrix->values == NULL || matrix->by_bytes == NULL) {
		mem_free(sorted);
		return -ENOMEM;
	}
	memcpy(sorted, matrix->cells, count * sizeof(*sorted));
	qsort(sorted, count, sizeof(*sorted), compare_bytes);
	matrix->value_count = 1; /* nothing, even where each pair has something */
	for (size_t i = 0; i < count; i++) {
		struct value *last = &matrix->values[matrix->value_count - 1];
		if (sorted[i] != last->bytes)
			*(last = &matrix->values[matrix->value_count++]) =
				(struct value){.bytes = sorted[i]};
		last->cell_count++;
	}
	mem_free(sorted);
	qsort(matrix->values, matrix->value_count, sizeof(*matrix->values), compare_frequency);
	for (uint32_t i = 0; i < matrix->value_count; i++) {
		matrix->values[i].index = i;
		matrix->by_bytes[i] = &matrix->values[i];
	}
	qsort(matrix->by_bytes, matrix->value_count, sizeof(struct value *), compare_value);
	return 0;
}

static uint64_t value_index(const struct matrix *matrix, uint64_t bytes)
{
	struct value wanted = {.bytes = bytes};
	struct value *key = &wanted;
	struct value **found = bsearch(&key, matrix->by_bytes, matrix->value_count,
				       sizeof(struct value *), compare_value);

	return (*found)->index;
}

static void matrix_encode(const struct matrix *matrix, struct writer *out)
{
	size_t count = (size_t)matrix->wide * matrix->high;

	page_varint(out, matrix->value_count);
	for (uint32_t i = 0; i < matrix->value_count; i++)
		page_varint(out, matrix->values[i].bytes);
	for (size_t i = 0, run; i < count; i += run) {
		uint64_t index = value_index(matrix, matrix->cells[i]);
		for (run = 1; i + run < count && matrix->cells[i + run] == matrix->cells[i];)
			run++;
		page_varint(out, index << 1 | (run > 1));
		if (run > 1)
			page_varint(out, run - 1);
	}
}

static int matrix_put(const struct matrix *matrix, const struct writer *packed,
		      struct json_writer *json)
{
	json_begin_object(json, "matrix");
	json_put_u64(json, "columns", matrix->columns);
	json_put_u64(json, "row_first", matrix->row_first);
	json_put_u64(json, "rows", matrix->rows);
	json_put_u64(json, "column_bin", matrix->column_bin);
	json_put_u64(json, "row_bin", matrix->row_bin);
	int rc = page_base64(packed, "cells", json);
	json_end_object(json);
	return rc;
}

int page_matrix(const struct plan *all, struct json_writer *json)
{
	struct matrix matrix = matrix_of(all);
	struct writer packed = WRITER_INIT(64u << 20);
	int rc;

	for (;; matrix_coarsen(&matrix)) {
		rc = matrix_fill(&matrix, all);
		if (rc == 0)
			rc = matrix_count_values(&matrix);
		if (rc != 0)
			break;
		writer_reset(&packed);
		matrix_encode(&matrix, &packed);
		if (packed.count <= MATRIX_BYTES_MAX / 4 * 3)
			break;
		matrix_release(&matrix);
	}
	if (rc == 0)
		rc = matrix_put(&matrix, &packed, json);
	writer_release(&packed);
	matrix_release(&matrix);
	return rc;
}
