/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing arrays, and a map from 64-bit keys to numbers.  The map answers questions of
 * equality only: nothing ever walks it, so its order can't leak into a plan.
 */
#include "planner/plan_internal.h"

void *vec_add(struct vec *vec, size_t bytes_each)
{
	if (vec->count == vec->room) {
		size_t room = vec->room == 0 ? 16 : vec->room * 2;
		if (room > SIZE_MAX / bytes_each)
			return NULL;
		void *items = mem_grow(vec->items, vec->room * bytes_each, room * bytes_each);
		if (items == NULL)
			return NULL;
		vec->items = items;
		vec->room = room;
	}
	void *item = (char *)vec->items + vec->count * bytes_each;
	memset(item, 0, bytes_each);
	vec->count++;
	return item;
}

void vec_release(struct vec *vec)
{
	mem_free(vec->items);
	*vec = (struct vec){0};
}

static size_t idmap_slot(const struct idmap *map, uint64_t key)
{
	size_t slot = (size_t)mix64(key) & (map->room - 1);

	/* Ends: at most 3/4 of the slots are taken. */
	while (map->values[slot] != 0 && map->keys[slot] != key)
		slot = (slot + 1) & (map->room - 1);
	return slot;
}

uint32_t idmap_get(const struct idmap *map, uint64_t key)
{
	if (map->room == 0)
		return NONE;
	return map->values[idmap_slot(map, key)] - 1;
}

static int idmap_grow(struct idmap *map)
{
	size_t room = map->room == 0 ? 64 : map->room * 2;
	struct idmap wider = {.room = room, .count = map->count};

	wider.keys = mem_alloc(room * sizeof(*wider.keys));
	wider.values = mem_alloc(room * sizeof(*wider.values));
	if (wider.keys == NULL || wider.values == NULL) {
		idmap_release(&wider);
		return -ENOMEM;
	}
	for (size_t i = 0; i < map->room; i++) {
		if (map->values[i] == 0)
			continue;
		size_t slot = idmap_slot(&wider, map->keys[i]);
		wider.keys[slot] = map->keys[i];
		wider.values[slot] = map->values[i];
	}
	idmap_release(map);
	*map = wider;
	return 0;
}

int idmap_put(struct idmap *map, uint64_t key, uint32_t value)
{
	if (map->count * 4 >= map->room * 3) {
		int rc = idmap_grow(map);
		if (rc != 0)
			return rc;
	}
	size_t slot = idmap_slot(map, key);
	map->keys[slot] = key;
	map->values[slot] = value + 1;
	map->count++;
	return 0;
}

void idmap_release(struct idmap *map)
{
	mem_free(map->keys);
	mem_free(map->values);
	*map = (struct idmap){0};
}
