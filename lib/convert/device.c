/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of moves for a GPU: what is decided once per move, on the host.  A move becomes a task
 * whose box is in normal form and cut into tiles; the kernels only walk over tiles.
 */
#include "lib/convert/device.h"

#include <errno.h>
#include <string.h>

#include "lib/convert/box.h"
#include "lib/convert/task.h"
#include "lib/cuda/copy.h"

#define TASK_COUNT_MAX (1u << 31)	/* elements of a task, or words: all fits into 32 bits */
#define TILE_COUNT_MAX ((1u << 31) - 1) /* of a batch: what a grid can have */

/* One kernel each: moves in tiles, and whole blocks of elements of 2 bytes and of 4. */
enum { TILED, WHOLE_2, WHOLE_4, TABLES };

/* The tasks of one kernel: in page-locked memory as they are made, and on the GPU. */
struct table {
	struct task *tasks, *device_tasks;
	uint32_t *first_tile, *device_first_tile;
	uint32_t count, uploaded;
};

struct device_batch {
	int device;
	uint32_t move_max; /* of each table */
	struct table tables[TABLES];
	struct CUevent_st *done;
	void *pinned, *memory; /* owned; all tables lie in them */
};

/* ---------------------------------------------------------------- a move as a task */
static uint64_t box_count(const struct box *box)
{
	uint64_t count = 1;
	for (uint32_t d = 0; d < box->dim_count; d++)
		count *= box->dims[d].extent;
	return count;
}

/* The largest power of two, up to 16, of which the addresses of all rows are multiples. */
static uint32_t alignment_of(const struct box *box, bool src, bool dst)
{
	uint64_t all = 16;
	all |= src ? (uint64_t)(uintptr_t)box->src : 0;
	all |= dst ? (uint64_t)(uintptr_t)box->dst : 0;
	for (uint32_t d = 0; d + 1 < box->dim_count; d++) {
		all |= src ? (uint64_t)box->dims[d].src_stride : 0;
		all |= dst ? (uint64_t)box->dims[d].dst_stride : 0;
	}
	return (uint32_t)(all & (0 - all));
}

static bool is_multiple(int64_t stride, uint32_t bytes)
{
	return stride % (int64_t)bytes == 0;
}

/* A copy moves the largest words that all its addresses and rows are multiples of. */
static uint32_t widen(struct box *box, uint32_t bytes)
{
	struct box_dim *inner = &box->dims[box->dim_count - 1];
	uint64_t row_bytes = inner->extent * bytes;
	if (inner->src_stride != (int64_t)bytes || inner->dst_stride != (int64_t)bytes)
		return bytes;
	uint32_t word = alignment_of(box, true, true);
	while (row_bytes % word != 0)
		word /= 2;
	inner->extent = row_bytes / word;
	inner->src_stride = inner->dst_stride = word;
	return word;
}

/* Whether every unit of 8 elements can be loaded and stored at once, and lies in one block. */
static bool is_wide(const struct box *box, uint32_t from_bytes, uint32_t to_bytes)
{
	const struct box_dim *inner = &box->dims[box->dim_count - 1];
	return inner->src_stride == (int64_t)from_bytes && inner->dst_stride == (int64_t)to_bytes &&
	       inner->extent % TASK_UNIT == 0 &&
	       alignment_of(box, true, false) >= MIN(TASK_UNIT * from_bytes, 16) &&
	       alignment_of(box, false, true) >= MIN(TASK_UNIT * to_bytes, 16) &&
	       (inner->each == UINT64_MAX ||
		(inner->each % TASK_UNIT == 0 && inner->first % TASK_UNIT == 0));
}

static bool is_aligned(const struct box *box, uint32_t from_bytes, uint32_t to_bytes)
{
	const struct box_dim *inner = &box->dims[box->dim_count - 1];
	return alignment_of(box, true, false) >= from_bytes &&
	       alignment_of(box, false, true) >= to_bytes &&
	       is_multiple(inner->src_stride, from_bytes) &&
	       is_multiple(inner->dst_stride, to_bytes);
}

static bool is_words(const struct move *move)
{
	return (move->kind == MOVE_CAST && move->from == move->to) || move->kind == MOVE_RAISE ||
	       move->kind == MOVE_SCALE;
}

static void swap_dims(struct task_dim *a, struct task_dim *b)
{
	struct task_dim dim = *a;
	*a = *b;
	*b = dim;
}

static void task_make(struct task *task, const struct move *move, const struct box *box,
		      uint32_t from_bytes)
{
	/* Maxima have no other side, and both sides of a copy move the same words. */
	bool one_size = move->kind == MOVE_MAXIMA || move->from == move->to;
	uint32_t to_bytes = one_size ? from_bytes : (uint32_t)ws_dtype_bytes(move->to);
	*task = (struct task){
		.src = box->src,
		.dst = box->dst,
		.table = box->table,
		.kind = move->kind,
		.from = move->from,
		.to = move->to,
		.unit = !is_words(move) && is_wide(box, from_bytes, to_bytes) ? TASK_UNIT : 1,
		.from_bytes = from_bytes,
		.is_words = is_words(move),
		.is_aligned = is_aligned(box, from_bytes, to_bytes),
		.dim_count = box->dim_count,
	};
	if (move->blocks != NULL && move->blocks->quant != NULL) /* maxima need none */
		task->quant = *move->blocks->quant;
	for (uint32_t d = 0; d < box->dim_count; d++) {
		const struct box_dim *dim = &box->dims[box->dim_count - 1 - d];
		bool one_block = dim->each == UINT64_MAX;
		task->dims[d] = (struct task_dim){
			.src_stride = dim->src_stride,
			.dst_stride = dim->dst_stride,
			.entry_stride = dim->entry_stride,
			.extent = (uint32_t)dim->extent,
			.each = one_block ? 0 : (uint32_t)dim->each,
			.first = one_block ? 0 : (uint32_t)dim->first,
		};
		if (d > 1 && task->dims[d].extent > task->dims[1].extent)
			swap_dims(&task->dims[d], &task->dims[1]);
	}
}

/* ---------------------------------------------------------------- a task's tiles */
static uint64_t ceiling(uint64_t value, uint64_t by)
{
	return (value + by - 1) / by;
}

/* As many threads side by side as a row has use for: at most an eighth of them idle, unless a
 * row is shorter than 16. */
static uint32_t width_bits_of(uint32_t columns)
{
	uint32_t bits = TASK_THREADS_BITS;
	while (bits > 4 && ceiling(columns, 1u << bits) * (1u << bits) - columns > columns / 8)
		bits--;
	while (bits > 0 && 1u << (bits - 1) >= columns)
		bits--;
	return bits;
}

/* A tile is a band of rows as wide as a thread's step is, or a long piece of one row: whichever
 * needs fewer tiles.  Returns how many. */
static uint64_t tiles_cut(struct task *task)
{
	uint64_t planes = 1;
	for (uint32_t d = 2; d < task->dim_count; d++)
		planes *= task->dims[d].extent;
	task->rows = task->dim_count > 1 ? task->dims[1].extent : 1;
	task->columns = (uint32_t)ceiling(task->dims[0].extent, task->unit);
	task->width_bits = width_bits_of(task->columns);
	task->row_step = TASK_THREADS >> task->width_bits;
	task->strips = (uint32_t)ceiling(task->columns, 1u << task->width_bits);
	task->bands = (uint32_t)ceiling(task->rows, (uint64_t)task->row_step * TASK_PASSES);
	uint64_t strips = ceiling(task->columns, TASK_TILE_UNITS);
	if ((uint64_t)task->bands * task->strips > task->rows * strips) {
		task->row_step = 0;
		task->strips = (uint32_t)strips;
		task->bands = task->rows;
	}
	return planes * task->bands * task->strips;
}

/* A tile is a block; returns 0 if the kernel can't hold one. */
static uint64_t blocks_cut(struct task *task)
{
	uint64_t blocks = 1, units = 1;
	uint32_t long_dims = 0;
	if (task->unit != TASK_UNIT || task->dims[0].src_stride == 0)
		return 0;
	for (uint32_t d = 0; d < task->dim_count; d++) {
		struct task_dim *dim = &task->dims[d];
		uint32_t each = dim->each == 0 ? dim->extent : MIN(dim->each, dim->extent);
		if (dim->first != 0)
			return 0;
		dim->blocks = (uint32_t)ceiling(dim->extent, each);
		blocks *= dim->blocks;
		units *= d == 0 ? each / TASK_UNIT : each;
		long_dims += d > 0 && each > 1;
	}
	return units <= TASK_TILE_UNITS && long_dims <= 1 ? blocks : 0;
}

/* ---------------------------------------------------------------- adding */
/* The part of a box from element `at` of dim d on goes into rest. */
static void box_cut(struct box *box, uint32_t d, uint64_t at, struct box *rest)
{
	struct box_dim *dim = &rest->dims[d];
	*rest = *box;
	box->dims[d].extent = at;
	dim->extent -= at;
	rest->src += (int64_t)at * dim->src_stride;
	rest->dst += (int64_t)at * dim->dst_stride;
	if (dim->each == UINT64_MAX)
		return;
	rest->table += (int64_t)((dim->first + at) / dim->each) * dim->entry_stride;
	dim->first = (dim->first + at) % dim->each;
}

/* Where a box that is too large for a task is cut: half way, at the end of a block if blocks stay
 * whole.  False: it needn't be, or can't. */
static bool cut_find(const struct box *box, bool is_whole, uint32_t *dim_out, uint64_t *at_out)
{
	for (uint32_t d = 0; box_count(box) > TASK_COUNT_MAX && d < box->dim_count; d++) {
		const struct box_dim *dim = &box->dims[d];
		uint64_t at = dim->extent / 2;
		if (is_whole)
			at = dim->each == UINT64_MAX ? 0 : at - at % dim->each;
		*dim_out = d;
		*at_out = at;
		if (at > 0)
			return true;
	}
	return false;
}

static int table_full(const struct device_batch *batch, struct ws_error *err)
{
	return ws_fail(err, -ENOSPC, "a batch for GPU %d has room for %u moves, and is full",
		       batch->device, batch->move_max);
}

/* Blocks that are longer than a task can be: the box ends with the first one. */
static bool long_block_find(const struct box *box, uint32_t *dim_out, uint64_t *at_out)
{
	for (uint32_t d = 0; d < box->dim_count; d++) {
		const struct box_dim *dim = &box->dims[d];
		if (dim->each == UINT64_MAX || dim->each <= TASK_COUNT_MAX)
			continue;
		*dim_out = d;
		*at_out = dim->each - dim->first;
		return true;
	}
	return false;
}

/* Recurses only for boxes beyond TASK_COUNT_MAX, which it halves each time. */
static int box_add(struct device_batch *batch, struct table *table, const struct move *move,
		   struct box *box, uint32_t from_bytes, struct ws_error *err)
{
	bool is_whole = table != &batch->tables[TILED];
	struct box rest;
	uint64_t at;
	uint32_t d;

	/* Of what was cut off, more dims lie in one block than before. */
	for (uint32_t i = 0; i < box->dim_count; i++)
		if (box->dims[i].first + box->dims[i].extent <= box->dims[i].each)
			box->dims[i].each = UINT64_MAX;
	if (cut_find(box, is_whole, &d, &at) || long_block_find(box, &d, &at)) {
		box_cut(box, d, at, &rest);
		int rc = box_add(batch, table, move, box, from_bytes, err);
		return rc != 0 ? rc : box_add(batch, table, move, &rest, from_bytes, err);
	}
	if (table->count == batch->move_max)
		return table_full(batch, err);
	struct task *task = &table->tasks[table->count];
	task_make(task, move, box, from_bytes);
	uint64_t tiles = is_whole ? blocks_cut(task) : tiles_cut(task);
	if (tiles == 0)
		return ws_fail(err, -ENOTSUP,
			       "blocks are torn, too large, or not aligned, to be quantized at "
			       "once: find their maxima first");
	if (tiles > TILE_COUNT_MAX - table->first_tile[table->count])
		return table_full(batch, err);
	task->first_tile = table->first_tile[table->count];
	table->first_tile[table->count + 1] = table->first_tile[table->count] + (uint32_t)tiles;
	table->count++;
	return 0;
}

/* All parts of a move, or none. */
static int move_add(struct device_batch *batch, struct table *table, const struct move *move,
		    struct ws_error *err)
{
	uint32_t from_bytes = (uint32_t)ws_dtype_bytes(move->from), before = table->count;
	struct box box;

	if (move_element_count(move) == 0)
		return 0;
	box_make(&box, move);
	if (box.dim_count == 0)
		box.dims[box.dim_count++] = (struct box_dim){
			.extent = 1,
			.src_stride = from_bytes,
			.dst_stride = move->kind == MOVE_MAXIMA ? from_bytes
								: (int64_t)ws_dtype_bytes(move->to),
			.each = UINT64_MAX,
		};
	if (move->kind == MOVE_CAST && move->from == move->to)
		from_bytes = widen(&box, from_bytes);
	int rc = box_add(batch, table, move, &box, from_bytes, err);
	if (rc != 0)
		table->count = before;
	return rc;
}

/* Maxima are raised and read as whole words. */
static bool maxima_are_aligned(const struct move *move)
{
	bool reads = move->kind == MOVE_MAXIMA || move->kind == MOVE_QUANTIZE ||
		     move->kind == MOVE_QUANTIZE_WHOLE;
	uint64_t all = reads ? (uint64_t)(uintptr_t)move->blocks->table : 0;
	if (move->kind == MOVE_RAISE) {
		all = (uint64_t)(uintptr_t)move->dst;
		for (uint32_t d = 0; d < move->dim_count; d++)
			all |= (uint64_t)move->dst_stride[d];
	}
	return all % sizeof(uint32_t) == 0;
}

static int cannot(const struct device_batch *batch, const struct move *move, struct ws_error *err)
{
	return ws_fail(err, -EINVAL, "GPU %d can't do a move of kind %d from %s to %s",
		       batch->device, (int)move->kind, ws_dtype_name(move->from),
		       ws_dtype_name(move->to));
}

int device_batch_add(struct device_batch *batch, const struct move *move, struct ws_error *err)
{
	uint32_t table = TILED;
	if (!convert_can(move))
		return cannot(batch, move, err);
	if (!maxima_are_aligned(move))
		return ws_fail(err, -EINVAL, "maxima on GPU %d aren't aligned to 4 bytes",
			       batch->device);
	if (move->kind == MOVE_QUANTIZE_WHOLE)
		table = move->from == WS_F32 ? WHOLE_4 : WHOLE_2;
	return move_add(batch, &batch->tables[table], move, err);
}

bool device_can_whole(const struct move *move)
{
	uint64_t count = move_element_count(move);
	struct box box;
	struct task task;

	if (count < TASK_UNIT || count > TASK_COUNT_MAX || !convert_can(move))
		return false;
	box_make(&box, move);
	task_make(&task, move, &box, (uint32_t)ws_dtype_bytes(move->from));
	return blocks_cut(&task) > 0;
}

/* ---------------------------------------------------------------- launching */
static struct task_list list_of(const struct table *table)
{
	return (struct task_list){
		.tasks = table->device_tasks,
		.first_tile = table->device_first_tile,
		.count = table->count,
		.tile_count = table->first_tile[table->count],
	};
}

/* What was added since the last launch: there is room for all tables'. */
static void table_upload(struct table *table, struct copies *copies)
{
	uint32_t from = table->uploaded, count = table->count - from;
	if (count == 0)
		return;
	(void)copies_add(copies, &(struct cuda_copy){.to = &table->device_tasks[from],
						     .from = &table->tasks[from],
						     .bytes = count * sizeof(table->tasks[0])});
	(void)copies_add(copies,
			 &(struct cuda_copy){.to = &table->device_first_tile[from],
					     .from = &table->first_tile[from],
					     .bytes = (count + 1) * sizeof(table->first_tile[0])});
	table->uploaded = table->count;
}

/* By a kernel that reads the host's memory: a copy engine may be at work on large ones, and these
 * would wait behind them. */
static int tables_upload(struct device_batch *batch, struct CUstream_st *stream,
			 struct ws_error *err)
{
	struct copies copies;
	copies.count = 0;
	for (uint32_t i = 0; i < TABLES; i++)
		table_upload(&batch->tables[i], &copies);
	return copies.count == 0 ? 0 : copies_launch(&copies, batch->device, stream, err);
}

int device_batch_launch(struct device_batch *batch, struct CUstream_st *stream,
			struct ws_error *err)
{
	int rc = cuda_use(batch->device, err);
	if (rc != 0)
		return rc;
	rc = tables_upload(batch, stream, err);
	for (uint32_t i = 0; rc == 0 && i < TABLES; i++) {
		struct task_list list = list_of(&batch->tables[i]);
		if (list.tile_count == 0)
			continue;
		rc = i == TILED ? tiles_launch(&list, stream, err)
				: whole_launch(&list, i == WHOLE_2 ? 2 : 4, stream, err);
	}
	/* Behind what was launched, too, where not all could be. */
	int recorded = cuda_event_record(batch->done, stream, rc == 0 ? err : NULL);
	return rc != 0 ? rc : recorded;
}

int device_batch_done(struct device_batch *batch, struct ws_error *err)
{
	return cuda_event_done(batch->done, err);
}

void device_batch_clear(struct device_batch *batch)
{
	for (uint32_t i = 0; i < TABLES; i++)
		batch->tables[i].count = batch->tables[i].uploaded = 0;
}

/* ---------------------------------------------------------------- opening */
void device_batch_close(struct device_batch *batch)
{
	if (batch == NULL)
		return;
	if (batch->done != NULL) /* on whosever stream: the frees would wait for ever */
		(void)cuda_event_settle(batch->done, batch->device, NULL);
	cuda_free(batch->device, batch->memory);
	cuda_pinned_free(batch->pinned);
	cuda_event_close(batch->done);
	mem_free(batch);
}

static void table_place(struct table *table, uint32_t move_max, uint8_t *pinned, uint8_t *memory,
			size_t tasks)
{
	size_t first_tile = tasks + move_max * sizeof(struct task);
	table->tasks = (struct task *)(void *)(pinned + tasks);
	table->device_tasks = (struct task *)(void *)(memory + tasks);
	table->first_tile = (uint32_t *)(void *)(pinned + first_tile);
	table->device_first_tile = (uint32_t *)(void *)(memory + first_tile);
	table->first_tile[0] = 0;
}

int device_batch_open(struct device_batch **batch_out, int device, uint32_t move_max,
		      struct ws_error *err)
{
	size_t table_bytes = align_up(
		move_max * sizeof(struct task) + (move_max + (size_t)1) * sizeof(uint32_t), 256);
	*batch_out = NULL;
	struct device_batch *batch = mem_alloc(sizeof(*batch));
	if (batch == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a batch of GPU %d", device);
	batch->device = device;
	batch->move_max = move_max;
	int rc = cuda_event_open(device, false, &batch->done, err);
	if (rc == 0)
		rc = cuda_pinned_alloc(TABLES * table_bytes, &batch->pinned, err);
	if (rc == 0)
		rc = cuda_alloc(device, TABLES * table_bytes, &batch->memory, err);
	if (rc != 0) {
		device_batch_close(batch);
		return rc;
	}
	for (uint32_t i = 0; i < TABLES; i++)
		table_place(&batch->tables[i], move_max, batch->pinned, batch->memory,
			    i * table_bytes);
	*batch_out = batch;
	return 0;
}
