/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items of sources, their places in the ring, and their uses.
 */
#include "lib/engine/ring.h"

#include <errno.h>
#include <stdlib.h>

#define JOINED_BYTES_MAX (UINT64_C(8) << 20) /* a copy of so many bytes is as fast as any */
#define PLACE_ALIGN	 256u
#define ITEMS_MIN	 4u  /* that fit: so one is loaded while others are read */
#define TURN_GAP	 64u /* padding between what is read one right after the other */

uint64_t ring_item_bytes_max(const struct ring *ring)
{
	return ring->bytes / ITEMS_MIN;
}

struct ring_use ring_use_of(const struct move *move)
{
	int64_t low = 0, high = (int64_t)ws_dtype_bytes(move->from);

	for (uint32_t d = 0; d < move->dim_count; d++) {
		int64_t reach = ((int64_t)move->extent[d] - 1) * move->src_stride[d];
		if (move->extent[d] == 0)
			return (struct ring_use){.from = move->src};
		low += MIN(reach, 0);
		high += MAX(reach, 0);
	}
	return (struct ring_use){.from = (const uint8_t *)move->src + low,
				 .bytes = (uint64_t)(high - low)};
}

/* ---------------------------------------------------------------- making items */

static int use_by_from(const void *a, const void *b)
{
	const struct ring_use *x = a, *y = b;
	uintptr_t from = (uintptr_t)x->from, other = (uintptr_t)y->from;

	if (from != other)
		return from < other ? -1 : 1;
	return y->local - x->local;
}

/* In a bucket those that locals read come first: they open its gate. */
static int item_by_order(const void *a, const void *b)
{
	const struct ring_item *x = a, *y = b;

	if (x->bucket != y->bucket)
		return x->bucket < y->bucket ? -1 : 1;
	if ((x->locals > 0) != (y->locals > 0))
		return x->locals > 0 ? -1 : 1;
	if (x->turn != y->turn)
		return x->turn < y->turn ? -1 : 1;
	uintptr_t from = (uintptr_t)x->from, other = (uintptr_t)y->from;
	return from < other ? -1 : from > other;
}

/* Only what is read together: a part that is read much later would keep the place of the whole.
 * Not over a gap, which isn't page-locked where params were locked one by one, nor over the end of
 * an allocation: CUDA refuses a copy of two of them, or of both kinds of memory. */
static bool joins(const struct ring *ring, const struct ring_item *item, const struct ring_use *use)
{
	uint64_t offset = (uint64_t)(use->from - item->from), end = offset + use->bytes;

	if (offset < item->bytes)
		return true;
	return offset == item->bytes && use->allocation == item->allocation &&
	       use->bucket == item->bucket && use->local == (item->locals > 0) &&
	       use->turn >= item->turn_end && use->turn - item->turn_end <= TURN_GAP &&
	       end <= MIN(JOINED_BYTES_MAX, ring_item_bytes_max(ring));
}

/* Turns of locals and of peers aren't of one kind: the locals' count. */
static bool is_sooner(const struct ring_use *use, const struct ring_item *item)
{
	if (use->bucket != item->bucket)
		return use->bucket < item->bucket;
	if (use->local != (item->locals > 0))
		return use->local;
	return use->turn < item->turn;
}

static void item_add(struct ring *ring, const struct ring_use *use)
{
	struct ring_item *last = &ring->items[ring->count - (ring->count > 0)];

	if (ring->count > 0 && joins(ring, last, use)) {
		last->bytes = MAX(last->bytes, (uint64_t)(use->from - last->from) + use->bytes);
		if (is_sooner(use, last))
			last->turn = use->turn;
		last->turn_end = MAX(last->turn_end, use->turn_end);
		last->bucket = MIN(last->bucket, use->bucket);
		last->locals |= use->local;
		return;
	}
	ring->items[ring->count++] = (struct ring_item){.from = use->from,
							.allocation = use->allocation,
							.bytes = use->bytes,
							.bucket = use->bucket,
							.turn = use->turn,
							.turn_end = use->turn_end,
							.locals = use->local};
}

int ring_make(struct ring *ring, struct ring_use *uses, uint32_t count, struct ws_error *err)
{
	ring_release(ring);
	ring->items = mem_alloc(count * sizeof(*ring->items));
	ring->by_from = mem_alloc(count * sizeof(*ring->by_from));
	if (ring->items == NULL || ring->by_from == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the books of %u offloaded sources",
			       count);
	qsort(uses, count, sizeof(*uses), use_by_from);
	for (uint32_t i = 0; i < count; i++)
		item_add(ring, &uses[i]);
	for (uint32_t i = 0; i < ring->count; i++)
		ring->items[i].index = i;
	qsort(ring->items, ring->count, sizeof(*ring->items), item_by_order);
	for (uint32_t i = 0; i < ring->count; i++) {
		ring->by_from[ring->items[i].index] = i;
		ring->items[i].locals = 0;
	}
	return 0;
}

void ring_release(struct ring *ring)
{
	mem_free(ring->items);
	mem_free(ring->by_from);
	*ring = (struct ring){.memory = ring->memory, .bytes = ring->bytes};
}

uint32_t ring_find(const struct ring *ring, const struct ring_use *use)
{
	uint32_t low = 0, high = ring->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if ((uintptr_t)ring->items[ring->by_from[middle]].from <= (uintptr_t)use->from)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return RING_NONE;
	uint32_t found = ring->by_from[low - 1];
	const struct ring_item *item = &ring->items[found];
	uint64_t offset = (uint64_t)((uintptr_t)use->from - (uintptr_t)item->from);
	return offset <= item->bytes && use->bytes <= item->bytes - offset ? found : RING_NONE;
}

/* ---------------------------------------------------------------- an attempt */

void ring_arm(struct ring *ring)
{
	for (uint32_t i = 0; i < ring->count; i++) {
		struct ring_item *item = &ring->items[i];
		item->left = item->locals + item->gathers;
		item->in_work = 0;
		item->state = item->left > 0 && item->bytes <= ring_item_bytes_max(ring)
				      ? RING_AHEAD
				      : RING_GONE;
	}
	ring->first = ring->next = ring->loading = ring->in_work = 0;
	ring->head = ring->tail = ring->high_bytes = 0;
}

/* The oldest places that nobody has any more are free. */
static void head_advance(struct ring *ring)
{
	while (ring->first < ring->next && ring->items[ring->first].state == RING_GONE)
		ring->first++;
	ring->head = ring->first < ring->next ? ring->items[ring->first].place : ring->tail;
}

static void item_leave(struct ring *ring, struct ring_item *item)
{
	item->state = RING_GONE;
	head_advance(ring);
}

/* As aligned as the source: who reads rows in units of 16 bytes still can. */
static uint64_t place_align(uint64_t at, const uint8_t *from)
{
	return at + (((uintptr_t)from - at) & (PLACE_ALIGN - 1));
}

/* Where an item would go, in one piece.  False: there is no room. */
static bool place_find(const struct ring *ring, const struct ring_item *item, uint64_t *place_out)
{
	uint64_t at = place_align(ring->tail, item->from);

	if (at % ring->bytes + item->bytes > ring->bytes)
		at = place_align(at + ring->bytes - at % ring->bytes, item->from);
	*place_out = at;
	return at + item->bytes - ring->head <= ring->bytes;
}

/* Nobody is at it: the ring is idle but for what has just begun to be loaded. */
static bool oldest_leaves(struct ring *ring)
{
	struct ring_item *oldest = &ring->items[ring->first];

	if (oldest->state != RING_THERE)
		return false;
	item_leave(ring, oldest);
	return true;
}

static uint8_t *item_place(struct ring *ring, struct ring_item *item, uint64_t place)
{
	item->place = place;
	item->state = RING_LOADING;
	ring->loading++;
	ring->next++;
	ring->tail = place + item->bytes;
	head_advance(ring);
	ring->high_bytes = MAX(ring->high_bytes, ring->tail - ring->head);
	return ring->memory + place % ring->bytes;
}

uint32_t ring_load(struct ring *ring, bool gives_way, uint8_t **place_out)
{
	while (ring->next < ring->count) {
		uint32_t index = ring->next;
		struct ring_item *item = &ring->items[index];
		uint64_t place;
		if (item->state == RING_GONE || item->left == 0) {
			item->state = RING_GONE;
			ring->next++;
			head_advance(ring);
		} else if (place_find(ring, item, &place)) {
			*place_out = item_place(ring, item, place);
			return index;
		} else if (!gives_way || !oldest_leaves(ring)) {
			return RING_NONE;
		}
	}
	return RING_NONE;
}

void ring_loaded(struct ring *ring, uint32_t index)
{
	struct ring_item *item = &ring->items[index];

	item->state = RING_THERE;
	ring->loading--;
	if (item->left == 0)
		item_leave(ring, item);
}

void ring_take(struct ring *ring, uint32_t index)
{
	if (index == RING_NONE || ring->items[index].state != RING_THERE)
		return;
	ring->items[index].in_work++;
	ring->in_work++;
}

void ring_put(struct ring *ring, uint32_t index, bool counted)
{
	if (index == RING_NONE)
		return;
	struct ring_item *item = &ring->items[index];
	item->left -= counted;
	if (item->state != RING_THERE)
		return;
	item->in_work--;
	ring->in_work--;
	if (item->left == 0 && item->in_work == 0)
		item_leave(ring, item);
}

void ring_skip(struct ring *ring, uint32_t index)
{
	if (index == RING_NONE)
		return;
	struct ring_item *item = &ring->items[index];
	item->left--;
	if (item->state == RING_THERE && item->left == 0 && item->in_work == 0)
		item_leave(ring, item);
}

const void *ring_source(const struct ring *ring, const struct move *move)
{
	const struct ring_use use = ring_use_of(move);
	uint32_t found = ring->count > 0 ? ring_find(ring, &use) : RING_NONE;

	if (found == RING_NONE || ring->items[found].state != RING_THERE)
		return move->src;
	const struct ring_item *item = &ring->items[found];
	return ring->memory + item->place % ring->bytes + ((const uint8_t *)move->src - item->from);
}
