/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walking a box: a move in normal form is carried out row by row.
 */
#include "lib/convert/convert.h"

#include <assert.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

#include "lib/convert/box.h"
#include "lib/convert/rows.h"
#include "lib/convert/scale.h"

/* Arithmetic is IEEE's, whatever the program that we live in has set: PyTorch can flush subnormals,
 * and threads inherit that.  On x86 it is all done by SSE and wider; fesetenv would set the x87's
 * environment as well, which takes longer than a small move. */
#ifdef __x86_64__
typedef unsigned environment;

static environment environment_enter(void)
{
	environment theirs = _mm_getcsr();
	_mm_setcsr(0x1f80); /* to nearest, nothing flushed, no traps */
	return theirs;
}

static void environment_leave(environment theirs)
{
	_mm_setcsr(theirs);
}
#else
typedef fenv_t environment;

static environment environment_enter(void)
{
	environment theirs;
	fegetenv(&theirs);
	fesetenv(FE_DFL_ENV);
	return theirs;
}

static void environment_leave(environment theirs)
{
	fesetenv(&theirs);
}
#endif

/* Of a source that is read twice: what a core's own cache keeps, codes included. */
#define CACHED_BYTES (512u << 10)

/* A move on its way. */
struct walk {
	const struct move *move;
	const struct rows *rows;
	struct box box; /* src and dst advance */
	uint64_t at[MOVE_DIM_MAX];
	/* Divisors, or scales, of the blocks from this entry on: rows below each other share them.
	 */
	const uint8_t *factors_of;
	uint64_t factor_count;
	float factors[BLOCKS_MAX];
};

/* ---------------------------------------------------------------- what can be done */
static bool is_float(enum ws_dtype dtype)
{
	return dtype == WS_F32 || dtype == WS_BF16 || dtype == WS_F16;
}

static bool quant_can(const struct quant *quant)
{
	return (quant->code == WS_F8_E4M3 || quant->code == WS_F8_E5M2) &&
	       (quant->scale == WS_F32 || quant->scale == WS_BF16 || quant->scale == WS_F8_E8M0) &&
	       quant->eps >= 0;
}

bool convert_can(const struct move *move)
{
	enum ws_dtype from = move->from, to = move->to;
	const struct quant *quant = move->blocks == NULL ? NULL : move->blocks->quant;
	bool has_scheme = quant != NULL && quant_can(quant);
	if (move->dim_count > MOVE_DIM_MAX)
		return false;
	switch (move->kind) {
	case MOVE_CAST:
		return from == to ? ws_dtype_bytes(from) > 0 : is_float(from) && is_float(to);
	case MOVE_MAXIMA:
		return is_float(from) && move->blocks != NULL;
	case MOVE_RAISE:
		return from == WS_U32 && to == WS_U32;
	case MOVE_QUANTIZE:
	case MOVE_QUANTIZE_WHOLE:
		return has_scheme && is_float(from) && to == quant->code;
	case MOVE_SCALE:
		return has_scheme && from == WS_U32 && to == quant->scale;
	case MOVE_DEQUANTIZE:
		return has_scheme && from == quant->code && is_float(to);
	}
	return false;
}

uint64_t move_element_count(const struct move *move)
{
	uint64_t count = 1;
	for (uint32_t i = 0; i < move->dim_count; i++)
		count *= move->extent[i];
	return count;
}

/* ---------------------------------------------------------------- rows */
/* A constant size turns memcpy into one load and one store. */
static void copy_row(const struct row *row)
{
	const uint8_t *src = row->src;
	uint8_t *dst = row->dst;
	int64_t src_stride = row->src_stride, dst_stride = row->dst_stride;
	size_t bytes = ws_dtype_bytes(row->move->from);
	if (src_stride == (int64_t)bytes && dst_stride == (int64_t)bytes) {
		memcpy(dst, src, (size_t)row->count * bytes);
		return;
	}
	if (bytes == 1) {
		for (uint64_t i = 0; i < row->count; i++, src += src_stride, dst += dst_stride)
			*dst = *src;
	} else if (bytes == 2) {
		for (uint64_t i = 0; i < row->count; i++, src += src_stride, dst += dst_stride)
			memcpy(dst, src, 2);
	} else if (bytes == 4) {
		for (uint64_t i = 0; i < row->count; i++, src += src_stride, dst += dst_stride)
			memcpy(dst, src, 4);
	} else {
		assert(bytes == 8);
		for (uint64_t i = 0; i < row->count; i++, src += src_stride, dst += dst_stride)
			memcpy(dst, src, 8);
	}
}

static void raise_row(const struct row *row)
{
	const uint8_t *src = row->src;
	uint8_t *dst = row->dst;
	for (uint64_t i = 0; i < row->count; i++, src += row->src_stride, dst += row->dst_stride) {
		uint32_t theirs, mine;
		memcpy(&theirs, src, sizeof(theirs));
		memcpy(&mine, dst, sizeof(mine));
		if (theirs > mine)
			memcpy(dst, &theirs, sizeof(theirs));
	}
}

static void scale_row(const struct row *row)
{
	const struct quant *quant = row->move->blocks->quant;
	const uint8_t *src = row->src;
	uint8_t *dst = row->dst;
	for (uint64_t i = 0; i < row->count; i++, src += row->src_stride, dst += row->dst_stride) {
		uint32_t maximum;
		memcpy(&maximum, src, sizeof(maximum));
		scale_store(quant, scale_of_maximum(quant, maximum), dst);
	}
}

/* The divisors or scales of a row's blocks, unless those of the row above are the same. */
static void find_factors(struct walk *walk, const struct row *row)
{
	const struct quant *quant = walk->move->blocks->quant;
	const uint8_t *entry = row->entry;
	uint64_t count = row_block_count(row);
	if (walk->factors_of == entry && walk->factor_count >= count)
		return;
	walk->factors_of = entry;
	walk->factor_count = count;
	for (uint64_t i = 0; i < count; i++, entry += row->entry_stride) {
		if (walk->move->kind == MOVE_DEQUANTIZE) {
			walk->factors[i] = scale_value(quant, scale_load(quant, entry));
		} else {
			uint32_t maximum;
			memcpy(&maximum, entry, sizeof(maximum));
			walk->factors[i] = scale_divisor(quant, maximum);
		}
	}
}

/* As much of a row at once as its factors find room for. */
static void factor_row(struct walk *walk, const struct row *given)
{
	struct row rest = *given;
	while (rest.count > 0) {
		struct row row = rest;
		uint64_t run = row_run(&row);
		if (row.count > run)
			row.count = MIN(row.count, run + (BLOCKS_MAX - 1) * row.each);
		find_factors(walk, &row);
		if (walk->move->kind == MOVE_QUANTIZE)
			walk->rows->quantize(&row, walk->factors);
		else
			walk->rows->dequantize(&row, walk->factors);
		row_advance(&rest, row.count);
	}
}

static void move_row(struct walk *walk, const struct row *row)
{
	const struct move *move = walk->move;
	switch (move->kind) {
	case MOVE_CAST:
		if (move->from == move->to)
			copy_row(row);
		else
			walk->rows->cast(row);
		return;
	case MOVE_MAXIMA:
		walk->rows->maxima(row);
		return;
	case MOVE_RAISE:
		raise_row(row);
		return;
	case MOVE_SCALE:
		scale_row(row);
		return;
	case MOVE_QUANTIZE:
	case MOVE_DEQUANTIZE:
		factor_row(walk, row);
		return;
	case MOVE_QUANTIZE_WHOLE: /* is two others */
		return;
	}
}

/* The row at which the walk is; its dim is the last one. */
static struct row row_at(const struct walk *walk)
{
	struct row row = {
		.move = walk->move,
		.src = walk->box.src,
		.dst = walk->box.dst,
		.count = 1,
		.entry = walk->box.table,
		.each = UINT64_MAX,
	};
	for (uint32_t d = 0; d < walk->box.dim_count; d++) {
		const struct box_dim *dim = &walk->box.dims[d];
		row.entry += (int64_t)((dim->first + walk->at[d]) / dim->each) * dim->entry_stride;
	}
	if (walk->box.dim_count > 0) {
		const struct box_dim *inner = &walk->box.dims[walk->box.dim_count - 1];
		row.count = inner->extent;
		row.src_stride = inner->src_stride;
		row.dst_stride = inner->dst_stride;
		row.each = inner->each;
		row.first = inner->first;
		row.entry_stride = inner->entry_stride;
	}
	return row;
}

/* An odometer over all dims but the innermost; false after the last row. */
static bool walk_next(struct walk *walk)
{
	for (uint32_t d = walk->box.dim_count > 0 ? walk->box.dim_count - 1 : 0; d-- > 0;) {
		const struct box_dim *dim = &walk->box.dims[d];
		walk->box.src += dim->src_stride;
		walk->box.dst += dim->dst_stride;
		if (++walk->at[d] < dim->extent)
			return true;
		walk->box.src -= dim->src_stride * (int64_t)dim->extent;
		walk->box.dst -= dim->dst_stride * (int64_t)dim->extent;
		walk->at[d] = 0;
	}
	return false;
}

static void walk_all(const struct move *move)
{
	struct walk walk;
	struct row row;
	walk.move = move;
	walk.rows = rows_best();
	walk.factors_of = NULL;
	walk.factor_count = 0;
	memset(walk.at, 0, sizeof(walk.at));
	box_make(&walk.box, move);
	do {
		row = row_at(&walk);
		move_row(&walk, &row);
	} while (walk_next(&walk));
}

/* ---------------------------------------------------------------- whole blocks */
/* Elements of a dim under one entry. */
static uint64_t each_of(const struct blocks *blocks, uint32_t d)
{
	return blocks->stride[d] == 0 ? UINT64_MAX : blocks->each[d];
}

/* From element `at` of dim d on, the first of a block. */
static void move_begin(struct move *move, struct blocks *blocks, uint32_t d, uint64_t at)
{
	move->src = (const uint8_t *)move->src + (int64_t)at * move->src_stride[d];
	move->dst = (uint8_t *)move->dst + (int64_t)at * move->dst_stride[d];
	move->extent[d] -= at;
	blocks->first[d] += at;
}

/* The outermost dim that has several blocks, and the end of about half of them; false: none. */
static bool middle_find(const struct move *move, uint32_t *dim_out, uint64_t *at_out)
{
	for (uint32_t d = 0; d < move->dim_count; d++) {
		uint64_t each = each_of(move->blocks, d);
		uint64_t begin = move->blocks->first[d] / each;
		uint64_t end = (move->blocks->first[d] + move->extent[d] - 1) / each + 1;
		*dim_out = d;
		*at_out = (begin + end) / 2 * each - move->blocks->first[d];
		if (end - begin > 1)
			return true;
	}
	return false;
}

/* As many blocks at once as the cache keeps until their codes are made.  Halves what are more: each
 * half has half the blocks, so it is at most 64 deep. */
static void quantize_whole(const struct move *move)
{
	uint64_t at, bytes = move_element_count(move) * ws_dtype_bytes(move->from);
	struct blocks blocks = *move->blocks;
	struct move part = *move;
	uint32_t d;
	part.blocks = &blocks;
	if (bytes > CACHED_BYTES && middle_find(move, &d, &at)) {
		part.extent[d] = at;
		quantize_whole(&part);
		part.extent[d] = move->extent[d];
		move_begin(&part, &blocks, d, at);
		quantize_whole(&part);
		return;
	}
	part.kind = MOVE_MAXIMA;
	walk_all(&part);
	part.kind = MOVE_QUANTIZE;
	walk_all(&part);
}

bool convert_ends_block(const struct move *move, uint64_t count)
{
	uint64_t below = move_element_count(move), rest = count % below;
	for (uint32_t d = 0; d < move->dim_count && rest > 0; d++) {
		uint64_t each = each_of(move->blocks, d);
		below /= move->extent[d];
		uint64_t at = rest / below;
		rest %= below;
		/* Row `at` of this dim is cut itself, or else begins behind the cut. */
		if (rest > 0 ? each > 1 && move->extent[d] > 1
			     : (move->blocks->first[d] + at) % each != 0)
			return false;
	}
	return true;
}

void convert_move(const struct move *move)
{
	assert(convert_can(move));
	if (move_element_count(move) == 0)
		return;
	environment theirs = environment_enter();
	if (move->kind == MOVE_QUANTIZE_WHOLE)
		quantize_whole(move);
	else
		walk_all(move);
	environment_leave(theirs);
}
