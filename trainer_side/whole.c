/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that are read once.  Where I have all elements of a block, its maximum is found while its
 * codes are made, so no local need find it before, if nothing reads it earlier: scales are made of
 * it behind codes that went to the same peer in the same bucket, since a peer's sends are gathered
 * in their order.  What is told to other trainers, or read by codes of a torn block, is found
 * first.
 */
#include <errno.h>

#include "lib/convert/device.h"
#include "trainer_side/program.h"

bool whole_can(const struct ws_trainer *trainer, const struct gather_move *gather,
	       uint64_t op_bytes)
{
	struct move whole = gather->move;

	whole.kind = MOVE_QUANTIZE_WHOLE;
	if (trainer->place.place == WS_CUDA && !device_can_whole(&whole))
		return false;
	return !cut_tears_block(&whole, gather->wire_offset, op_bytes);
}

/* ---------------------------------------------------------------- entries of the tables */

/* Those that a move finds or reads, by their numbers. */
struct entries {
	int64_t at;
	uint32_t dim_count;
	uint64_t count[MOVE_DIM_MAX], done[MOVE_DIM_MAX];
	int64_t stride[MOVE_DIM_MAX];
};

static struct entries entries_of(const struct wire *wire, const struct move *move)
{
	const struct blocks *blocks = move->blocks;
	bool by_blocks = move->kind != MOVE_SCALE && move->kind != MOVE_CAST;
	const uint8_t *first = by_blocks ? blocks->table : move->src;
	int64_t each = sizeof(uint32_t);
	struct entries entries = {.at = (first - (const uint8_t *)wire->program.tables) / each,
				  .dim_count = move->dim_count};

	for (uint32_t d = 0; d < move->dim_count; d++) {
		entries.count[d] = move->extent[d];
		entries.stride[d] = by_blocks ? blocks->stride[d] : move->src_stride[d] / each;
		if (!by_blocks)
			continue;
		uint64_t begin = blocks->first[d] / blocks->each[d];
		uint64_t last = (blocks->first[d] + move->extent[d] - 1) / blocks->each[d];
		entries.at += (int64_t)begin * blocks->stride[d];
		entries.count[d] = blocks->stride[d] == 0 ? 1 : last - begin + 1;
	}
	return entries;
}

/* False behind the last. */
static bool entries_next(struct entries *entries)
{
	for (uint32_t d = entries->dim_count; d-- > 0;) {
		entries->at += entries->stride[d];
		if (++entries->done[d] < entries->count[d])
			return true;
		entries->at -= (int64_t)entries->count[d] * entries->stride[d];
		entries->done[d] = 0;
	}
	return false;
}

/* ---------------------------------------------------------------- what must be found first */

#define FOUND_FIRST UINT32_MAX

int whole_begin(struct whole *whole, const struct wire *wire, struct ws_error *err)
{
	size_t count = wire->program.tables_bytes / sizeof(uint32_t);

	*whole = (struct whole){.bucket = UINT32_MAX};
	whole->found_in = mem_alloc(count * sizeof(*whole->found_in));
	if (whole->found_in == NULL)
		return ws_fail(err, -ENOMEM, "no memory for where %zu maxima are found", count);
	return 0;
}

void whole_send(struct whole *whole, const struct wire *wire, const struct plan_copy *copy,
		const struct send *send)
{
	if (copy->bucket != whole->bucket || copy->receiver != whole->receiver)
		whole->turn++;
	whole->bucket = copy->bucket;
	whole->receiver = copy->receiver;
	for (uint32_t i = 0; copy->gather && i < copy->part_count; i++) {
		const struct move *move = &send->moves[i].move;
		if (copy->parts[i].kind == PART_CAST)
			continue;
		struct entries entries = entries_of(wire, move);
		do {
			uint32_t *found_in = &whole->found_in[entries.at];
			bool is_found = move->kind == MOVE_QUANTIZE_WHOLE ||
					(move->kind == MOVE_SCALE && *found_in == whole->turn);
			if (*found_in != FOUND_FIRST)
				*found_in = is_found ? whole->turn : FOUND_FIRST;
		} while (entries_next(&entries));
	}
}

static bool is_needed(const struct whole *whole, const struct wire *wire, const struct local *local)
{
	for (uint32_t i = 0; i < local->move_count; i++) {
		struct entries entries = entries_of(wire, &local->moves[i]);
		do {
			if (whole->found_in[entries.at] == FOUND_FIRST)
				return true;
		} while (entries_next(&entries));
	}
	return false;
}

void whole_end(struct whole *whole, struct wire *wire)
{
	struct local *locals = (struct local *)(uintptr_t)wire->program.locals; /* mine */
	uint32_t kept = 0;

	if (whole->found_in == NULL)
		return;
	for (uint32_t i = 0; i < wire->program.local_count; i++)
		if (is_needed(whole, wire, &locals[i]))
			locals[kept++] = locals[i];
	wire->program.local_count = kept;
	mem_free(whole->found_in);
}
