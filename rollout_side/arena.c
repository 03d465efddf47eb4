/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes land: in double mode a spare arena, laid out by each param's arena_offset, whose
 * bytes are copied into the engine's memory after commit; in place the engine's memory itself.
 * Either way a trainer is told by place rows; it needn't know which mode it writes for.
 */
#include <errno.h>
#include <string.h>

#include "rollout_side/rollout_internal.h"

#define COPY_BATCH	64u
#define COPY_OUT_MS	60000u		    /* on a GPU, until it is taken for stuck */
#define WINDOW_ELEMENTS (UINT64_C(8) << 20) /* looked at at once for padding: 1 MiB of bits */

/* ---------------------------------------------------------------- memory */

/* The engine works where the params lie: it is made anew when they have moved elsewhere. */
static int params_place(struct ws_rollout *rollout, struct ws_error *err)
{
	const struct ws_memory before = rollout->place;

	int rc = memories_place(rollout->own.memories, rollout->own.params.count, &rollout->place,
				err);
	if (rollout->place.place != before.place || rollout->place.device != before.device)
		rollout->wire.engine_made = false;
	return rc;
}

int landing_open(struct ws_rollout *rollout, struct ws_error *err)
{
	for (uint32_t i = 0; i < rollout->own.params.count; i++)
		rollout->own.targets[i] = rollout->own.memories[i];
	int rc = params_place(rollout, err);
	if (rc != 0 || rollout->inplace || rollout->own.params.arena_bytes == 0)
		return rc;
	rollout->spare = rollout->place;
	if (rollout->place.place == WS_CUDA)
		rc = cuda_queue_open(&rollout->queue, rollout->place.device, err);
	if (rc == 0)
		rc = ws_memory_alloc(&rollout->spare, rollout->own.params.arena_bytes, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "%s's spare memory for %llu bytes of weights",
				  rollout->name, (unsigned long long)rollout->own.params.bytes);
	for (uint32_t i = 0; i < rollout->own.params.count; i++) {
		const struct param *param = &rollout->own.params.params[i];
		rollout->own.targets[i] = (struct ws_memory){
			.base = (uint8_t *)rollout->spare.base + param->arena_offset,
			.bytes = param->bytes,
			.place = rollout->place.place,
			.device = rollout->place.device,
		};
	}
	return 0;
}

int landing_register(struct ws_rollout *rollout, struct ws_error *err)
{
	uint32_t region;
	int rc;

	rollout->landing_registered = true;
	if (rollout->spare.bytes == 0)
		return memories_add(rollout->engine, rollout->own.targets,
				    rollout->own.params.count, rollout->own.places, err);
	rc = engine_region_add(rollout->engine, &rollout->spare, &region, err);
	for (uint32_t i = 0; rc == 0 && i < rollout->own.params.count; i++)
		rollout->own.places[i] = (struct memory_place){
			.region = region,
			.offset = rollout->own.params.params[i].arena_offset,
		};
	return rc;
}

void landing_drop(struct ws_rollout *rollout, const struct description *before)
{
	for (uint32_t i = 0; rollout->landing_registered && i < before->params.count; i++)
		if (before->params.params[i].bytes > 0)
			engine_region_drop(rollout->engine, before->places[i].region);
	rollout->landing_registered = false;
	cuda_queue_close(&rollout->queue);
	ws_memory_free(&rollout->spare);
}

int ring_fit(struct ws_rollout *rollout, struct ws_error *err)
{
	/* What is unpacked lies where it is unpacked to. */
	if (rollout->ring.bytes == 0)
		rollout->ring = rollout->place;
	int rc = memory_fit(rollout->engine, &rollout->ring, &rollout->ring_region,
			    rollout->wire.ring_bytes, err);

	return rc != 0 ? ws_fail_in(err, rc, "%s's receive ring", rollout->name) : 0;
}

void landing_close(struct ws_rollout *rollout)
{
	ws_memory_free(&rollout->ring);
	cuda_queue_close(&rollout->queue);
	ws_memory_free(&rollout->spare);
}

/* By as few launches as it takes, and then it is waited for. */
static int gpu_copy_out(struct ws_rollout *rollout, struct ws_error *err)
{
	struct cuda_queue *queue = &rollout->queue;
	struct cuda_copy copies[COPY_BATCH];
	uint64_t until = deadline_in_ms(COPY_OUT_MS), mark;
	uint32_t count = 0;
	int rc = 0, passed = 0, before = cuda_current();

	for (uint32_t i = 0; rc == 0 && i < rollout->own.params.count; i++) {
		copies[count++] = (struct cuda_copy){.to = rollout->own.memories[i].base,
						     .from = rollout->own.targets[i].base,
						     .bytes = rollout->own.memories[i].bytes};
		if (count == COPY_BATCH || i + 1 == rollout->own.params.count) {
			rc = cuda_queue_copy(queue, copies, count);
			count = 0;
		}
	}
	if (rc == 0)
		rc = cuda_queue_mark(queue, &mark);
	while (rc == 0 && passed == 0 && clock_ns() < until)
		passed = cuda_queue_passed(queue, mark);
	cuda_leave(before); /* this is the engine's own thread */
	if (rc != 0 || passed < 0)
		return ws_fail(err, -EIO, "%s can't copy its new weights on GPU %d: %s",
			       rollout->name, queue->device, queue->error.text);
	if (passed == 0)
		return ws_fail(err, -ETIMEDOUT,
			       "%s's GPU %d hasn't copied the new weights in %u ms", rollout->name,
			       queue->device, COPY_OUT_MS);
	return 0;
}

int landing_copy_out(struct ws_rollout *rollout, struct ws_error *err)
{
	if (rollout->inplace)
		return 0;
	if (rollout->spare.place == WS_CUDA)
		return gpu_copy_out(rollout, err);
	for (uint32_t i = 0; i < rollout->own.params.count; i++)
		if (rollout->own.memories[i].bytes > 0)
			memcpy(rollout->own.memories[i].base, rollout->own.targets[i].base,
			       rollout->own.memories[i].bytes);
	return 0;
}

/* ---------------------------------------------------------------- place rows */

static bool needs_has(const uint64_t *needs, uint32_t param)
{
	return (needs[param / 64] >> (param % 64) & 1) != 0;
}

/* Whether the row can go on to param at this place, over params nobody asked for. */
static bool row_takes(struct place_row *row, uint32_t param, const struct memory_place *place)
{
	int64_t ahead = (int64_t)(param - row->first_param);
	int64_t bytes = (int64_t)place->offset - (int64_t)row->offset;

	if (place->region != row->region)
		return false;
	if (row->param_count == 1) {
		if (bytes % ahead != 0)
			return false;
		row->step = bytes / ahead;
	} else if (bytes != row->step * ahead) {
		return false;
	}
	row->param_count = (uint32_t)ahead + 1;
	return true;
}

int place_rows(const struct ws_rollout *rollout, const uint64_t *needs, struct arena *arena,
	       struct place_row **rows_out, uint32_t *count_out)
{
	uint32_t room = 0, count = 0;

	for (uint32_t i = 0; i < rollout->own.params.count; i++)
		room += needs_has(needs, i) ? 1 : 0;
	struct place_row *rows = arena_array(arena, room, sizeof(*rows));
	if (rows == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < rollout->own.params.count; i++) {
		const struct memory_place *place = &rollout->own.places[i];
		if (!needs_has(needs, i) || (count > 0 && row_takes(&rows[count - 1], i, place)))
			continue;
		rows[count++] = (struct place_row){
			.first_param = i,
			.param_count = 1,
			.region = place->region,
			.offset = place->offset,
		};
	}
	*rows_out = rows;
	*count_out = count;
	return 0;
}

/* ---------------------------------------------------------------- padding */

static void bits_set(uint64_t *bits, uint64_t from, uint64_t to)
{
	for (uint64_t i = from; i < to;) {
		if (i % 64 == 0 && to - i >= 64) {
			bits[i / 64] = UINT64_MAX;
			i += 64;
		} else {
			bits[i / 64] |= UINT64_C(1) << (i % 64);
			i++;
		}
	}
}

/* Marks what of a run of local elements lies in the window. */
static void run_mark(uint64_t *bits, uint64_t window, uint64_t from, uint64_t count)
{
	uint64_t to = from + count, end = window + WINDOW_ELEMENTS;

	if (to <= window || from >= end)
		return;
	bits_set(bits, MAX(from, window) - window, MIN(to, end) - window);
}

/* Walks a piece's innermost runs: those of its last dim where that has stride 1, else elements. */
static void piece_mark(const struct piece *piece, uint64_t *bits, uint64_t window)
{
	uint64_t index[BOX_DIM_MAX] = {0};
	uint32_t dims = piece->dim_count;
	bool runs = dims > 0 && piece->stride[dims - 1] == 1;
	uint64_t run = runs ? piece->extent[dims - 1] : 1;

	if (runs)
		dims--;
	/* Rows that follow each other are one run. */
	while (dims > 0 && runs && piece->stride[dims - 1] == (int64_t)run) {
		run *= piece->extent[dims - 1];
		dims--;
	}
	for (;;) {
		int64_t at = (int64_t)piece->place;
		for (uint32_t d = 0; d < dims; d++)
			at += (int64_t)index[d] * piece->stride[d];
		run_mark(bits, window, (uint64_t)at, run);
		uint32_t d = dims;
		while (d > 0 && ++index[d - 1] == piece->extent[d - 1])
			index[--d] = 0;
		if (d == 0)
			return;
	}
}

static int window_zero(const struct ws_memory *memory, size_t element, const uint64_t *bits,
		       uint64_t window, uint64_t count, struct ws_error *err)
{
	int rc = 0;

	for (uint64_t i = 0; rc == 0 && i < count;) {
		uint64_t from = i;
		if (bits[i / 64] == UINT64_MAX && i % 64 == 0) {
			i += 64;
			continue;
		}
		while (i < count && (bits[i / 64] >> (i % 64) & 1) == 0)
			i++;
		if (i > from)
			rc = memory_zero(memory, (window + from) * element, (i - from) * element,
					 err);
		else
			i++;
	}
	return rc;
}

static int param_padding_zero(const struct param *param, const struct ws_memory *memory,
			      uint64_t *bits, struct ws_error *err)
{
	const struct form *form = param->form;
	size_t element = ws_dtype_bytes(param->dtype);
	int rc = 0;

	for (uint64_t window = 0; rc == 0 && window < form->element_count;
	     window += WINDOW_ELEMENTS) {
		memset(bits, 0, WINDOW_ELEMENTS / 8);
		for (uint32_t i = 0; i < form->piece_count; i++)
			piece_mark(&form->pieces[i], bits, window);
		rc = window_zero(memory, element, bits, window,
				 MIN(WINDOW_ELEMENTS, form->element_count - window), err);
	}
	return rc;
}

int padding_zero(struct ws_rollout *rollout, struct ws_error *err)
{
	uint64_t *bits = NULL;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < rollout->own.params.count; i++) {
		const struct param *param = &rollout->own.params.params[i];
		if (param->bytes == 0 || param->form->covered_count == param->form->element_count)
			continue;
		if (bits == NULL)
			bits = mem_alloc(WINDOW_ELEMENTS / 8);
		if (bits == NULL)
			return ws_fail(err, -ENOMEM, "no memory to look for padding");
		rc = param_padding_zero(param, &rollout->own.memories[i], bits, err);
		if (rc == 0 && rollout->spare.bytes > 0)
			rc = param_padding_zero(param, &rollout->own.targets[i], bits, err);
	}
	mem_free(bits);
	return rc;
}
