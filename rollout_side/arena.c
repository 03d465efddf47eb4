/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes land: in double mode a spare arena, laid out by each param's arena_offset, whose
 * bytes are copied into the engine's memory after commit; in place the engine's memory itself, but
 * for params that a post step has to make the engine's own of.  Either way a trainer is told by
 * place rows; it needn't know which mode it writes for.  What steps make is spare in double mode
 * likewise.
 */
#include <errno.h>
#include <string.h>

#include "rollout_side/rollout_internal.h"

#define COPY_BATCH	64u
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

static void spare_free(struct ws_rollout *rollout)
{
	cuda_queue_close(&rollout->queue);
	ws_memory_free(&rollout->spare);
	ws_memory_free(&rollout->made_spare);
}

static struct ws_memory spare_part(const struct ws_memory *spare, uint64_t offset, uint64_t bytes)
{
	return (struct ws_memory){.base = (uint8_t *)spare->base + offset,
				  .bytes = bytes,
				  .place = spare->place,
				  .device = spare->device};
}

static int spare_alloc(struct ws_rollout *rollout, struct ws_memory *spare, uint64_t bytes,
		       const char *what, struct ws_error *err)
{
	if (bytes == 0)
		return 0;
	*spare = rollout->place;
	int rc = ws_memory_alloc(spare, bytes, err);
	return rc == 0 ? 0
		       : ws_fail_in(err, rc, "%s's spare memory for %llu bytes of %s",
				    rollout->name, (unsigned long long)bytes, what);
}

/* Where params land: in double all in spare memory, in place those that are staged. */
static int targets_open(struct ws_rollout *rollout, struct ws_error *err)
{
	const struct description *own = &rollout->own;
	uint64_t staged = 0;

	for (uint32_t i = 0; i < own->params.count; i++)
		if (own->staged[i])
			staged += align_up(own->params.params[i].bytes, ARENA_ALIGN);
	int rc = spare_alloc(rollout, &rollout->spare,
			     rollout->inplace ? staged : own->params.arena_bytes, "weights", err);
	staged = 0;
	for (uint32_t i = 0; rc == 0 && i < own->params.count; i++) {
		const struct param *param = &own->params.params[i];
		if (!rollout->inplace) {
			own->targets[i] =
				spare_part(&rollout->spare, param->arena_offset, param->bytes);
		} else if (own->staged[i]) {
			own->targets[i] = spare_part(&rollout->spare, staged, param->bytes);
			staged += align_up(param->bytes, ARENA_ALIGN);
		} else {
			own->targets[i] = own->memories[i];
		}
	}
	return rc;
}

/* Where post steps write. */
static int made_open(struct ws_rollout *rollout, struct ws_error *err)
{
	const struct description *own = &rollout->own;
	const struct rank_steps *steps = &own->steps;
	uint64_t bytes = 0;
	int rc = 0;

	for (uint32_t i = 0; i < steps->made_count; i++) {
		if (i >= steps->derived_count)
			own->made[i] = own->memories[steps->made[i].param];
		own->made_now[i] = own->made[i];
		bytes += align_up(own->made[i].bytes, ARENA_ALIGN);
		if (own->made[i].bytes > 0 && (own->made[i].place != rollout->place.place ||
					       own->made[i].device != rollout->place.device))
			return ws_fail(
				err, -ENOTSUP,
				"'%s' doesn't lie where the params of %s do, which it is made "
				"of",
				steps->made[i].name, rollout->name);
	}
	if (!rollout->inplace)
		rc = spare_alloc(rollout, &rollout->made_spare, bytes, "what post steps make", err);
	bytes = 0;
	for (uint32_t i = 0; rc == 0 && !rollout->inplace && i < steps->made_count; i++) {
		own->made_now[i] = spare_part(&rollout->made_spare, bytes, own->made[i].bytes);
		bytes += align_up(own->made[i].bytes, ARENA_ALIGN);
	}
	return rc;
}

int landing_open(struct ws_rollout *rollout, struct ws_error *err)
{
	int rc = params_place(rollout, err);
	if (rc == 0 && rollout->stream != NULL && rollout->place.place != WS_CUDA)
		return ws_fail(err, -EINVAL,
			       "%s was given a stream, and its params lie in the host's memory",
			       rollout->name);
	if (rc == 0)
		rc = targets_open(rollout, err);
	if (rc == 0)
		rc = made_open(rollout, err);
	if (rc == 0 && !rollout->inplace && rollout->place.place == WS_CUDA)
		rc = cuda_queue_open_on(&rollout->queue, rollout->place.device, rollout->stream,
					err);
	if (rc != 0)
		spare_free(rollout);
	return rc;
}

int landing_register(struct ws_rollout *rollout, struct ws_error *err)
{
	uint32_t region;
	int rc;

	rollout->landing_registered = true;
	if (rollout->inplace || rollout->spare.bytes == 0)
		return memories_add(rollout->engine, rollout->own.targets,
				    rollout->own.params.count, MR_TARGET, rollout->own.places, err);
	rc = engine_region_add(rollout->engine, &rollout->spare, MR_TARGET, &region, err);
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
	spare_free(rollout);
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
	spare_free(rollout);
}

/* What goes live in double mode: params where they landed, then what steps have made. */
static uint32_t live_count(const struct description *own)
{
	return own->params.count + own->steps.made_count;
}

static struct cuda_copy live_copy(const struct description *own, uint32_t index)
{
	bool landed = index < own->params.count;
	uint32_t made = landed ? 0 : index - own->params.count;
	const struct ws_memory *to = landed ? &own->memories[index] : &own->made[made];
	const struct ws_memory *from = landed ? &own->targets[index] : &own->made_now[made];
	bool is_made = landed && own->staged[index];

	return (struct cuda_copy){
		.to = to->base, .from = from->base, .bytes = is_made ? 0 : to->bytes};
}

/* By as few launches as it takes, and then it is waited for. */
static int gpu_copy_out(struct ws_rollout *rollout, struct ws_error *err)
{
	struct cuda_queue *queue = &rollout->queue;
	struct cuda_copy copies[COPY_BATCH];
	uint64_t until = clock_ns() + cuda_stuck_ns(), mark;
	uint32_t count = 0;
	int rc = 0, passed = 0, before = cuda_current();

	for (uint32_t i = 0; rc == 0 && i < live_count(&rollout->own); i++) {
		copies[count++] = live_copy(&rollout->own, i);
		if (count == COPY_BATCH || i + 1 == live_count(&rollout->own)) {
			rc = cuda_queue_copy(queue, copies, count);
			count = 0;
		}
	}
	if (rc == 0)
		rc = cuda_queue_mark(queue, &mark);
	/* The clock first: this process may be stopped in between. */
	for (bool late = false; rc == 0 && passed == 0 && !late;) {
		late = clock_ns() >= until || cuda_is_given_up(queue->device);
		passed = cuda_queue_passed(queue, mark);
	}
	cuda_leave(before); /* this is the engine's own thread */
	if (rc != 0 || passed < 0)
		return ws_fail(err, -EIO, "%s can't copy its new weights on GPU %d: %s",
			       rollout->name, queue->device, queue->error.text);
	if (passed == 0)
		return ws_fail_in(err, cuda_stuck(queue->device, err), "%s's new weights",
				  rollout->name);
	return 0;
}

int landing_copy_out(struct ws_rollout *rollout, struct ws_error *err)
{
	if (rollout->inplace)
		return 0;
	if (rollout->place.place == WS_CUDA)
		return gpu_copy_out(rollout, err);
	for (uint32_t i = 0; i < live_count(&rollout->own); i++) {
		struct cuda_copy copy = live_copy(&rollout->own, i);
		if (copy.bytes > 0)
			memcpy(copy.to, copy.from, copy.bytes);
	}
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
		/* A staged param's own memory is of another form. */
		if (!rollout->own.staged[i])
			rc = param_padding_zero(param, &rollout->own.memories[i], bits, err);
		if (rc == 0 && rollout->spare.bytes > 0)
			rc = param_padding_zero(param, &rollout->own.targets[i], bits, err);
	}
	mem_free(bits);
	return rc;
}
