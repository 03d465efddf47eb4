/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON in: the strict scan of json_scan.c, then cJSON (this is its only home), then a tree of
 * our own in an arena.  cJSON forgets how a number was written, so integers are read from the
 * text once more, in step with the tree: both have the same order.
 */
#include "lib/base/json_scan.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define INTEGER_MAX (((int64_t)1 << 53) - 1)

/* cJSON writes a global error pointer in every parse. */
static pthread_mutex_t cjson_lock = PTHREAD_MUTEX_INITIALIZER;

struct build {
	struct arena *arena;
	const uint8_t *bytes, *at, *end; /* the text, and up to where its numbers were read */
	struct ws_error *err;
};

static int no_memory(struct build *build)
{
	return ws_fail(build->err, -ENOMEM, "out of memory for JSON of %zu bytes",
		       (size_t)(build->end - build->bytes));
}

/* Moves on to the next number of the text and behind it; returns where it begins. */
static const uint8_t *next_number(struct build *build)
{
	const uint8_t *at = build->at;
	while (at < build->end && *at != '-' && (*at < '0' || *at > '9'))
		at = *at == '"' ? json_skip_string(at) : at + 1;
	const uint8_t *from = at;
	while (at < build->end && *at != '\0' && strchr("+-.0123456789eE", *at) != NULL)
		at++;
	build->at = at;
	return from;
}

/* An integer has no fraction, no exponent, isn't -0, and fits a double exactly. */
static bool read_integer(const uint8_t *from, const uint8_t *end, int64_t *integer_out)
{
	bool negative = *from == '-';
	int64_t value = 0;
	for (const uint8_t *at = from + (negative ? 1 : 0); at < end; at++) {
		if (*at < '0' || *at > '9')
			return false;
		value = value * 10 + (*at - '0');
		if (value > INTEGER_MAX)
			return false;
	}
	if (negative && value == 0)
		return false;
	*integer_out = negative ? -value : value;
	return true;
}

static int build_number(struct build *build, const cJSON *item, struct json *json)
{
	const uint8_t *from = next_number(build);
	json->type = JSON_NUMBER;
	json->number = item->valuedouble;
	json->is_integer = read_integer(from, build->at, &json->integer);
	if (!isfinite(json->number))
		return json_fail_at(build->bytes, from, -EBADMSG, "a number beyond every double",
				    build->err);
	return 0;
}

static int compare_keys(const void *a, const void *b)
{
	const char *const *left = a, *const *right = b;
	return strcmp(*left, *right);
}

/* Sorting finds equal names in less than quadratic time, whatever the names. */
static int check_keys(struct build *build, const struct json *object)
{
	if (object->count < 2)
		return 0;
	const char **keys = mem_alloc(object->count * sizeof(keys[0]));
	if (keys == NULL)
		return no_memory(build);
	uint32_t count = 0;
	for (const struct json *child = object->first; child != NULL; child = child->next)
		keys[count++] = child->key;
	qsort(keys, count, sizeof(keys[0]), compare_keys);
	int rc = 0;
	for (uint32_t i = 1; i < count && rc == 0; i++)
		if (strcmp(keys[i - 1], keys[i]) == 0)
			rc = ws_fail(build->err, -EBADMSG, "an object has the key '%.200s' twice",
				     keys[i]);
	mem_free(keys);
	return rc;
}

static int build_text(struct build *build, const char *from, const char **text_out)
{
	*text_out = arena_copy(build->arena, from, strlen(from));
	return *text_out == NULL ? no_memory(build) : 0;
}

/* One value and all below it; the scan has bounded how deep it can be. */
static int build_value(struct build *build, const cJSON *item, struct json *json)
{
	switch (item->type & 0xff) {
	case cJSON_Number:
		return build_number(build, item, json);
	case cJSON_String:
		json->type = JSON_STRING;
		return build_text(build, item->valuestring, &json->text);
	case cJSON_True:
		json->type = JSON_TRUE;
		return 0;
	case cJSON_False:
		json->type = JSON_FALSE;
		return 0;
	case cJSON_NULL:
		return 0;
	}
	json->type = (item->type & 0xff) == cJSON_Object ? JSON_OBJECT : JSON_ARRAY;
	const struct json **link = &json->first;
	for (const cJSON *each = item->child; each != NULL; each = each->next) {
		struct json *child = arena_alloc(build->arena, sizeof(*child));
		if (child == NULL)
			return no_memory(build);
		int rc = each->string == NULL ? 0 : build_text(build, each->string, &child->key);
		if (rc == 0)
			rc = build_value(build, each, child);
		if (rc != 0)
			return rc;
		*link = child;
		link = &child->next;
		json->count++;
	}
	return json->type == JSON_OBJECT ? check_keys(build, json) : 0;
}

int json_parse(struct arena *arena, const void *bytes, size_t count,
	       const struct json_limits *limits, const struct json **json_out, struct ws_error *err)
{
	struct build build = {.arena = arena,
			      .bytes = bytes,
			      .at = bytes,
			      .end = (const uint8_t *)bytes + count,
			      .err = err};
	uint32_t member_count = 0;
	*json_out = NULL;
	int rc = json_scan(bytes, count, limits, &member_count, err);
	if (rc != 0)
		return rc;
	struct json *json = arena_alloc(arena, sizeof(*json));
	if (json == NULL)
		return no_memory(&build);
	pthread_mutex_lock(&cjson_lock);
	cJSON *tree = cJSON_ParseWithLengthOpts(bytes, count, NULL, false);
	pthread_mutex_unlock(&cjson_lock);
	/* The scan has accepted the text, so that only memory can be missing. */
	if (tree == NULL)
		return no_memory(&build);
	rc = build_value(&build, tree, json);
	cJSON_Delete(tree);
	if (rc == 0)
		*json_out = json;
	return rc;
}

void json_use_mem(bool yes)
{
	cJSON_Hooks hooks = {.malloc_fn = mem_alloc, .free_fn = mem_free};
	cJSON_InitHooks(yes ? &hooks : NULL);
}

const struct json *json_get(const struct json *object, const char *key)
{
	if (object == NULL || object->type != JSON_OBJECT)
		return NULL;
	const struct json *child = object->first;
	while (child != NULL && strcmp(child->key, key) != 0)
		child = child->next;
	return child;
}

const struct json *json_at(const struct json *array, uint32_t index)
{
	if (array == NULL || array->type != JSON_ARRAY || index >= array->count)
		return NULL;
	const struct json *child = array->first;
	for (uint32_t i = 0; i < index; i++)
		child = child->next;
	return child;
}

const char *json_text(const struct json *object, const char *key, const char *fallback)
{
	const struct json *json = json_get(object, key);
	return json != NULL && json->type == JSON_STRING ? json->text : fallback;
}

int64_t json_integer(const struct json *object, const char *key, int64_t fallback)
{
	const struct json *json = json_get(object, key);
	return json != NULL && json->is_integer ? json->integer : fallback;
}

bool json_true(const struct json *object, const char *key)
{
	const struct json *json = json_get(object, key);
	return json != NULL && json->type == JSON_TRUE;
}
