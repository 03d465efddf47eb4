/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of a manifest's lists doesn't mean anything: tensors, params, rows and casts are read
 * in one order however they were written, so that the numbers of params and every digest are the
 * same.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

/* Any order will do that tells values apart.  Recursion is as deep as json_parse lets values nest.
 */
static int compare_json(const struct json *a, const struct json *b)
{
	const struct json *x = a->first, *y = b->first;

	if (a->type != b->type)
		return a->type < b->type ? -1 : 1;
	if (a->type == JSON_STRING)
		return strcmp(a->text, b->text);
	if (a->type == JSON_NUMBER)
		return a->number < b->number ? -1 : a->number > b->number;
	for (; x != NULL && y != NULL; x = x->next, y = y->next) {
		int order = a->type == JSON_OBJECT ? strcmp(x->key, y->key) : 0;
		if (order == 0)
			order = compare_json(x, y);
		if (order != 0)
			return order;
	}
	return x != NULL ? 1 : y != NULL ? -1 : 0;
}

/* What an entry is about: a param's or a row's name, a tensor's, or a cast itself. */
static const char *entry_key(const struct json *entry)
{
	static const char *const keys[] = {"p", "name", "t"};

	if (entry->type == JSON_STRING)
		return entry->text;
	for (size_t i = 0; entry->type == JSON_OBJECT && i < ARRAY_SIZE(keys); i++) {
		const char *text = json_text(entry, keys[i], NULL);
		if (text != NULL)
			return text;
	}
	return NULL;
}

const char *parse_where(const struct json *entry, const char *list, uint32_t index, char *room,
			size_t bytes)
{
	const char *key = entry_key(entry);

	if (key != NULL)
		return key;
	snprintf(room, bytes, "%s[%" PRIu32 "]", list, index);
	return room;
}

static int entry_order(const void *a, const void *b)
{
	const struct json *x = a, *y = b;
	int order = strcmp(entry_key(x), entry_key(y));

	if (order != 0)
		return order;
	int64_t p = json_integer(x, "rank", 0), q = json_integer(y, "rank", 0);
	if (p != q)
		return p < q ? -1 : 1;
	return compare_json(x, y);
}

const struct json *parse_order(struct parse *parse, const struct json *list)
{
	uint32_t count = 0;

	if (list == NULL || list->type != JSON_ARRAY || list->count < 2)
		return list;
	/* What has no name is a finding by its place in the list. */
	for (const struct json *it = list->first; it != NULL; it = it->next)
		if (entry_key(it) == NULL)
			return list;
	struct json *sorted = arena_alloc(&parse->arena, sizeof(*sorted));
	struct json *entries = arena_array(&parse->arena, list->count, sizeof(*entries));
	if (sorted == NULL || entries == NULL) {
		parse->out_of_memory = true;
		return NULL;
	}
	for (const struct json *it = list->first; it != NULL; it = it->next)
		entries[count++] = *it;
	qsort(entries, count, sizeof(*entries), entry_order);
	for (uint32_t i = 0; i < count; i++)
		entries[i].next = i + 1 < count ? &entries[i + 1] : NULL;
	*sorted = *list;
	sorted->first = entries;
	return sorted;
}
