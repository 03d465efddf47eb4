/* SPDX-License-Identifier: Apache-2.0 */
/* See tensor_world.h. */
#include "tests/tensor_world.h"

#include <string.h>

void tensor_make(struct tensor *tensor, uint64_t seed)
{
	static const enum ws_dtype dtypes[] = {WS_BF16, WS_F32, WS_F16};
	static const uint64_t shapes[][2] = {
		{576, 320}, {128, 128}, {129, 257}, {6, 640}, {200, 72}};
	uint64_t x = mix64(seed + 0x7e50);
	memset(tensor, 0, sizeof(*tensor));
	tensor->quant = quant_random(seed);
	tensor->dtype = dtypes[x % 7 % 3];
	tensor->rows = shapes[x / 8 % 5][0];
	tensor->columns = shapes[x / 8 % 5][1];
	/* By block, by channel, the whole, other blocks. */
	uint64_t blocks[][2] = {
		{128, 128}, {1, tensor->columns}, {tensor->rows, tensor->columns}, {64, 32}};
	memcpy(tensor->block, blocks[x / 64 % 4], sizeof(tensor->block));
	tensor->grid[0] = (tensor->rows + tensor->block[0] - 1) / tensor->block[0];
	tensor->grid[1] = (tensor->columns + tensor->block[1] - 1) / tensor->block[1];
	uint64_t count = tensor->rows * tensor->columns,
		 entries = tensor->grid[0] * tensor->grid[1];
	tensor->floats = mem_alloc(count * 4);
	tensor->codes = mem_alloc(count);
	tensor->scales = mem_alloc(entries * 4);
	tensor->table = mem_alloc(entries * 4);
	tensor->values = mem_alloc(count * 2);
	ck_assert_ptr_nonnull(tensor->values);
	ck_assert(tensor->floats != NULL && tensor->codes != NULL);
	ck_assert(tensor->scales != NULL && tensor->table != NULL);
	floats_fill(tensor->floats, count, tensor->dtype, seed);
	/* A block of zeros, one of them negative. */
	if (x / 256 % 2 == 0)
		for (uint64_t i = 0; i < MIN(tensor->block[0], tensor->rows); i++)
			memset(tensor->floats + i * tensor->columns * ws_dtype_bytes(tensor->dtype),
			       0,
			       MIN(tensor->block[1], tensor->columns) *
				       ws_dtype_bytes(tensor->dtype));
}

void tensor_release(struct tensor *tensor)
{
	mem_free(tensor->floats);
	mem_free(tensor->codes);
	mem_free(tensor->scales);
	mem_free(tensor->table);
	mem_free(tensor->values);
}

uint32_t cut_shard(const struct tensor *tensor, uint32_t cut, uint64_t shard, struct part parts[3])
{
	uint64_t all = cut == 0	  ? tensor->rows
		       : cut == 1 ? tensor->columns
				  : tensor->rows * tensor->columns;
	uint64_t from = all * shard / SHARDS, to = all * (shard + 1) / SHARDS;
	uint32_t count = 0;
	if (cut == 0)
		parts[count++] = (struct part){from, 0, to - from, tensor->columns};
	if (cut == 1)
		parts[count++] = (struct part){0, from, tensor->rows, to - from};
	while (cut == 2 && from < to) {
		uint64_t row = from / tensor->columns, column = from % tensor->columns;
		uint64_t rows = column == 0 ? MAX((to - from) / tensor->columns, 1) : 1;
		uint64_t columns = MIN(tensor->columns - column, to - from);
		parts[count++] = (struct part){row, column, rows, columns};
		from += rows * columns;
	}
	return count;
}

void part_move(const struct tensor *tensor, enum move_kind kind, const struct part *part,
	       uint32_t *table, struct tensor_move *out)
{
	size_t bytes = ws_dtype_bytes(tensor->dtype);
	uint64_t at = part->row * tensor->columns + part->column;
	*out = (struct tensor_move){.blocks = {.quant = &tensor->quant,
					       .table = table,
					       .each = {tensor->block[0], tensor->block[1]},
					       .first = {part->row, part->column},
					       .stride = {(int64_t)tensor->grid[1], 1}}};
	out->move = (struct move){
		.kind = kind,
		.blocks = &out->blocks,
		.src = tensor->floats + at * bytes,
		.dst = tensor->codes + at,
		.dim_count = 2,
		.extent = {part->rows, part->columns},
		.src_stride = {(int64_t)(tensor->columns * bytes), (int64_t)bytes},
		.dst_stride = {(int64_t)tensor->columns, 1},
		.from = tensor->dtype,
		.to = tensor->quant.code,
	};
}

static void grid_move(const struct tensor *tensor, const void *src, void *dst, enum ws_dtype to,
		      struct move *move)
{
	*move = (struct move){.src = src,
			      .dst = dst,
			      .dim_count = 1,
			      .extent = {tensor->grid[0] * tensor->grid[1]},
			      .src_stride = {4},
			      .dst_stride = {(int64_t)ws_dtype_bytes(to)},
			      .from = WS_U32,
			      .to = to};
}

void raise_move(const struct tensor *tensor, uint32_t *table, const uint32_t *partial,
		struct tensor_move *out)
{
	grid_move(tensor, partial, table, WS_U32, &out->move);
	out->move.kind = MOVE_RAISE;
}

void scales_move(const struct tensor *tensor, const uint32_t *table, struct tensor_move *out)
{
	grid_move(tensor, table, tensor->scales, tensor->quant.scale, &out->move);
	out->blocks = (struct blocks){.quant = &tensor->quant};
	out->move.kind = MOVE_SCALE;
	out->move.blocks = &out->blocks;
}

void values_move(const struct tensor *tensor, struct tensor_move *out)
{
	out->blocks = (struct blocks){.quant = &tensor->quant,
				      .table = tensor->scales,
				      .each = {tensor->block[0], tensor->block[1]},
				      .stride = {(int64_t)tensor->grid[1], 1}};
	out->move = (struct move){
		.kind = MOVE_DEQUANTIZE,
		.blocks = &out->blocks,
		.src = tensor->codes,
		.dst = tensor->values,
		.dim_count = 2,
		.extent = {tensor->rows, tensor->columns},
		.src_stride = {(int64_t)tensor->columns, 1},
		.dst_stride = {(int64_t)tensor->columns * 2, 2},
		.from = tensor->quant.code,
		.to = WS_BF16,
	};
}

void tensor_quantize(struct tensor *tensor)
{
	const struct part whole = {.rows = tensor->rows, .columns = tensor->columns};
	struct tensor_move one;
	memset(tensor->table, 0, tensor->grid[0] * tensor->grid[1] * 4);
	part_move(tensor, MOVE_MAXIMA, &whole, tensor->table, &one);
	convert_move(&one.move);
	scales_move(tensor, tensor->table, &one);
	convert_move(&one.move);
	part_move(tensor, MOVE_QUANTIZE, &whole, tensor->table, &one);
	convert_move(&one.move);
	values_move(tensor, &one);
	convert_move(&one.move);
}

static void write_file(const char *folder, uint64_t seed, const char *kind, const void *bytes,
		       size_t count)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%llu.%s", folder, (unsigned long long)seed, kind);
	FILE *file = fopen(path, "wb");
	ck_assert_msg(file != NULL, "%s", path);
	ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
	ck_assert_int_eq(fclose(file), 0);
}

void tensor_write(const struct tensor *tensor, uint64_t seed, const char *folder, FILE *list)
{
	const struct quant *quant = &tensor->quant;
	uint64_t count = tensor->rows * tensor->columns;
	uint64_t entries = tensor->grid[0] * tensor->grid[1];
	fprintf(list, "%llu %s %llu %llu %llu %llu %s %s %08x %d %d\n", (unsigned long long)seed,
		ws_dtype_name(tensor->dtype), (unsigned long long)tensor->rows,
		(unsigned long long)tensor->columns, (unsigned long long)tensor->block[0],
		(unsigned long long)tensor->block[1], ws_dtype_name(quant->code),
		ws_dtype_name(quant->scale), bits_of(quant->eps), quant->pow2, quant->reciprocal);
	write_file(folder, seed, "floats", tensor->floats, count * ws_dtype_bytes(tensor->dtype));
	write_file(folder, seed, "scales", tensor->scales, entries * ws_dtype_bytes(quant->scale));
	write_file(folder, seed, "codes", tensor->codes, count);
	write_file(folder, seed, "values", tensor->values, count * 2);
}
