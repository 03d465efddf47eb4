/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The books of a ring of memory in which sources lie while a GPU reads them: parameters that are
 * offloaded to the host cross PCIe once, bucket after bucket, however often they are read.
 *
 * An item is a stretch of sources.  Items are loaded in one order, that in which they are read,
 * each into a place of its own, and leave when all that is counted as a use of them is done: places
 * are free again in that order, too.  Whoever reads an item that has
 * left, or never had a place, reads the source itself: the ring saves time, and nothing depends on
 * it.
 *
 * No copies are made here, and no clock is read.  Thread: the engine's, but for ring_source.
 */
#ifndef ENGINE_RING_H
#define ENGINE_RING_H

#include "lib/convert/convert.h"

#define RING_NONE UINT32_MAX

enum ring_state {
	RING_AHEAD,   /* it will be loaded */
	RING_LOADING, /* it has a place */
	RING_THERE,
	RING_GONE /* the source itself is read */
};

struct ring_item {
	const uint8_t *from;	/* borrowed */
	const void *allocation; /* as its first use's */
	uint64_t bytes;
	uint32_t bucket;	  /* the first that needs it */
	uint64_t turn, turn_end;  /* in it: as its uses' */
	uint32_t index;		  /* by address */
	uint32_t locals, gathers; /* uses that are counted: its own bucket's */
	/* of the attempt */
	enum ring_state state;
	uint64_t place;		/* while it has one: where the ring's bytes before it end */
	uint32_t left, in_work; /* uses to come, those in work included; in work */
};

/* Where something is read, while the ring is made. */
struct ring_use {
	const uint8_t *from;
	uint64_t bytes;
	uint32_t bucket;
	bool local;
	uint64_t turn, turn_end; /* in the bucket: which bytes these are of what one reader reads */
	const void *allocation;	 /* that it lies in: what is compared, never looked at */
};

struct ring {
	uint8_t *memory;	 /* borrowed; page aligned */
	uint64_t bytes;		 /* a multiple of 256 */
	struct ring_item *items; /* owned; in the order of loading */
	uint32_t *by_from;	 /* owned; their indices by address: no two overlap */
	uint32_t count;
	/* of the attempt */
	uint32_t first, next; /* those between may have places; next is the next to be loaded */
	uint64_t head, tail;  /* the bytes between are taken; they count on and on */
	uint32_t loading;     /* items */
	uint32_t in_work;     /* uses of all items that have a place */
	uint64_t high_bytes;
};

/*
 * Makes the items of all uses (sorts them in place): what overlaps is one item; neighbours that
 * touch, in one allocation, and that are read one right after the other are joined while they are
 * small.  Nothing is counted yet.  -ENOMEM.
 */
int ring_make(struct ring *ring, struct ring_use *uses, uint32_t count, struct ws_error *err);
void ring_release(struct ring *ring); /* keeps memory and bytes */
/* The largest that a use may be to get an item of its own. */
uint64_t ring_item_bytes_max(const struct ring *ring);

/* What a move reads, from its lowest address to its highest. */
struct ring_use ring_use_of(const struct move *move);
/* The item that has all of it; RING_NONE. */
uint32_t ring_find(const struct ring *ring, const struct ring_use *use);

void ring_arm(struct ring *ring);
/*
 * The next item to be loaded, which has a place from now on; RING_NONE: there is no room now, or
 * nothing more to load.  gives_way (the ring was idle before): for want of room the oldest leaves,
 * and is read at its source from then on.
 */
uint32_t ring_load(struct ring *ring, bool gives_way, uint8_t **place_out);
/* Nothing is under way: if something waits for what isn't ready, the ring must give way, or all may
 * wait for what one peer doesn't take, or for a bucket that is larger than the ring. */
static inline bool ring_is_idle(const struct ring *ring)
{
	return ring->loading == 0 && ring->in_work == 0;
}
void ring_loaded(struct ring *ring, uint32_t item);

/* A use may begin: the item is there, or its source is to be read. */
static inline bool ring_is_ready(const struct ring *ring, uint32_t item)
{
	return item == RING_NONE || ring->items[item].state == RING_THERE ||
	       ring->items[item].state == RING_GONE;
}
void ring_take(struct ring *ring, uint32_t item);
void ring_put(struct ring *ring, uint32_t item, bool counted);
/* A counted use that will never be. */
void ring_skip(struct ring *ring, uint32_t item);

/* For whoever has taken the use, on any thread: where it reads. */
const void *ring_source(const struct ring *ring, const struct move *move);

#endif
