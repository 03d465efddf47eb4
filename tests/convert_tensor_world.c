/* SPDX-License-Identifier: Apache-2.0 */
/* See convert_tensor_world.h. */
#include "tests/convert_tensor_world.h"

#include <string.h>

#include "lib/base/safetensors.h"

/* Of dtype, rows and columns; block and quant as the seed has it. */
static void tensor_open(struct tensor *tensor, uint64_t seed)
{
	/* By block, by channel, the whole, other blocks. */
	uint64_t blocks[][2] = {
		{128, 128}, {1, tensor->columns}, {tensor->rows, tensor->columns}, {64, 32}};
	tensor->quant = quant_random(seed);
	memcpy(tensor->block, blocks[mix64(seed + 0x7e50) / 64 % 4], sizeof(tensor->block));
	tensor->grid[0] = (tensor->rows + tensor->block[0] - 1) / tensor->block[0];
	tensor->grid[1] = (tensor->columns + tensor->block[1] - 1) / tensor->block[1];
	uint64_t count = tensor->rows * tensor->columns;
	uint64_t entries = tensor->grid[0] * tensor->grid[1];
	tensor->floats = mem_alloc(count * 4);
	tensor->codes = mem_alloc(count);
	tensor->scales = mem_alloc(entries * 4);
	tensor->table = mem_alloc(entries * 4);
	ck_assert(tensor->floats != NULL && tensor->codes != NULL);
	tensor->values = mem_alloc(count * 2);
	ck_assert(tensor->scales != NULL && tensor->table != NULL && tensor->values != NULL);
	tensor->carry_out = NULL;
}

void tensor_make(struct tensor *tensor, uint64_t seed)
{
	static const enum ws_dtype dtypes[] = {WS_BF16, WS_F32, WS_F16};
	static const uint64_t shapes[][2] = {
		{576, 320}, {128, 128}, {129, 257}, {6, 640}, {200, 72}};
	uint64_t x = mix64(seed + 0x7e50);
	tensor->dtype = dtypes[x % 7 % 3];
	tensor->rows = shapes[x / 8 % 5][0];
	tensor->columns = shapes[x / 8 % 5][1];
	tensor_open(tensor, seed);
	floats_fill(tensor->floats, tensor->rows * tensor->columns, tensor->dtype, seed);
	/* A block of zeros. */
	size_t bytes = ws_dtype_bytes(tensor->dtype);
	uint64_t rows = x / 256 % 2 == 0 ? MIN(tensor->block[0], tensor->rows) : 0;
	for (uint64_t i = 0; i < rows; i++)
		memset(tensor->floats + i * tensor->columns * bytes, 0,
		       MIN(tensor->block[1], tensor->columns) * bytes);
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

static void carry_out(const struct tensor *tensor, const struct move *move)
{
	if (tensor->carry_out != NULL)
		tensor->carry_out(move);
	else
		convert_move(move);
}

void move_part(const struct tensor *tensor, enum move_kind kind, const struct part *part,
	       uint32_t *table)
{
	size_t bytes = ws_dtype_bytes(tensor->dtype);
	uint64_t at = part->row * tensor->columns + part->column;
	struct blocks blocks = {.quant = &tensor->quant,
				.table = table,
				.each = {tensor->block[0], tensor->block[1]},
				.first = {part->row, part->column},
				.stride = {(int64_t)tensor->grid[1], 1}};
	carry_out(tensor,
		  &(struct move){
			  .kind = kind,
			  .blocks = &blocks,
			  .src = tensor->floats + at * bytes,
			  .dst = tensor->codes + at,
			  .dim_count = 2,
			  .extent = {part->rows, part->columns},
			  .src_stride = {(int64_t)(tensor->columns * bytes), (int64_t)bytes},
			  .dst_stride = {(int64_t)tensor->columns, 1},
			  .from = tensor->dtype,
			  .to = tensor->quant.code,
		  });
}

void move_raise(const struct tensor *tensor, uint32_t *table, const uint32_t *other)
{
	carry_out(tensor, &(struct move){.kind = MOVE_RAISE,
					 .src = other,
					 .dst = table,
					 .dim_count = 1,
					 .extent = {tensor->grid[0] * tensor->grid[1]},
					 .src_stride = {4},
					 .dst_stride = {4},
					 .from = WS_U32,
					 .to = WS_U32});
}

void move_scales(const struct tensor *tensor, const uint32_t *table)
{
	struct blocks blocks = {.quant = &tensor->quant};
	carry_out(tensor, &(struct move){
				  .kind = MOVE_SCALE,
				  .blocks = &blocks,
				  .src = table,
				  .dst = tensor->scales,
				  .dim_count = 1,
				  .extent = {tensor->grid[0] * tensor->grid[1]},
				  .src_stride = {4},
				  .dst_stride = {(int64_t)ws_dtype_bytes(tensor->quant.scale)},
				  .from = WS_U32,
				  .to = tensor->quant.scale,
			  });
}

void move_values(const struct tensor *tensor)
{
	struct blocks blocks = {.quant = &tensor->quant,
				.table = tensor->scales,
				.each = {tensor->block[0], tensor->block[1]},
				.stride = {(int64_t)tensor->grid[1], 1}};
	carry_out(tensor, &(struct move){
				  .kind = MOVE_DEQUANTIZE,
				  .blocks = &blocks,
				  .src = tensor->codes,
				  .dst = tensor->values,
				  .dim_count = 2,
				  .extent = {tensor->rows, tensor->columns},
				  .src_stride = {(int64_t)tensor->columns, 1},
				  .dst_stride = {(int64_t)tensor->columns * 2, 2},
				  .from = tensor->quant.code,
				  .to = WS_BF16,
			  });
}

void tensor_quantize(struct tensor *tensor)
{
	const struct part whole = {.rows = tensor->rows, .columns = tensor->columns};
	memset(tensor->table, 0, tensor->grid[0] * tensor->grid[1] * 4);
	move_part(tensor, MOVE_MAXIMA, &whole, tensor->table);
	move_scales(tensor, tensor->table);
	move_part(tensor, MOVE_QUANTIZE, &whole, tensor->table);
	move_values(tensor);
}

/* ---------------------------------------------------------------- for the reference */
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

void tensor_write(const char *folder, FILE *list, uint64_t number, const struct tensor *tensor)
{
	const struct quant *quant = &tensor->quant;
	uint64_t count = tensor->rows * tensor->columns;
	uint64_t entries = tensor->grid[0] * tensor->grid[1];
	fprintf(list, "%llu %s %llu %llu %llu %llu %s %s %08x %d %d\n", (unsigned long long)number,
		ws_dtype_name(tensor->dtype), (unsigned long long)tensor->rows,
		(unsigned long long)tensor->columns, (unsigned long long)tensor->block[0],
		(unsigned long long)tensor->block[1], ws_dtype_name(quant->code),
		ws_dtype_name(quant->scale), bits_of(quant->eps), quant->pow2, quant->reciprocal);
	write_file(folder, number, "floats", tensor->floats, count * ws_dtype_bytes(tensor->dtype));
	write_file(folder, number, "scales", tensor->scales,
		   entries * ws_dtype_bytes(quant->scale));
	write_file(folder, number, "codes", tensor->codes, count);
	write_file(folder, number, "values", tensor->values, count * 2);
}

/* Each matrix as F32 and as BF16, each in the scheme of its number. */
static uint64_t weights_write(const char *folder, FILE *list, uint64_t number, const char *path)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint = {0};
	ck_ok(checkpoint_open(&checkpoint, path, &err), err);
	for (uint32_t i = 0; i < checkpoint.tensor_count * 2; i++) {
		const struct st_tensor *weight = &checkpoint.tensors[i / 2];
		if (weight->dtype != WS_F32 || weight->dim_count < 2)
			continue;
		struct tensor tensor = {.dtype = i % 2 == 0 ? WS_F32 : WS_BF16,
					.rows = weight->dim[0],
					.columns = weight->bytes / 4 / weight->dim[0]};
		tensor_open(&tensor, number);
		uint8_t *wide = mem_alloc(weight->bytes);
		ck_assert_ptr_nonnull(wide);
		ck_ok(checkpoint_read(&checkpoint, weight, 0, wide, weight->bytes, &err), err);
		convert_move(&(struct move){
			.src = wide,
			.dst = tensor.floats,
			.dim_count = 1,
			.extent = {weight->bytes / 4},
			.src_stride = {4},
			.dst_stride = {(int64_t)ws_dtype_bytes(tensor.dtype)},
			.from = WS_F32,
			.to = tensor.dtype,
		});
		tensor_quantize(&tensor);
		tensor_write(folder, list, number++, &tensor);
		mem_free(wide);
		tensor_release(&tensor);
	}
	checkpoint_close(&checkpoint);
	return number;
}

void tensors_write(const char *folder, const char *checkpoint)
{
	char path[512];
	uint64_t number = 0;
	snprintf(path, sizeof(path), "%s/tensors.txt", folder);
	FILE *list = fopen(path, "w");
	ck_assert_msg(list != NULL, "%s", path);
	for (; number < 300; number++) {
		struct tensor tensor;
		tensor_make(&tensor, number);
		tensor_quantize(&tensor);
		tensor_write(folder, list, number, &tensor);
		tensor_release(&tensor);
	}
	if (checkpoint != NULL)
		number = weights_write(folder, list, number, checkpoint);
	ck_assert_uint_gt(number, checkpoint != NULL ? 300 : 299);
	ck_assert_int_eq(fclose(list), 0);
}
