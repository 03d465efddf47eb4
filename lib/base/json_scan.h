/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to lib/base: the strict scan of JSON text, which allocates nothing, and a walk over
 * the members of an object that has passed it, for files too large to build a tree of.
 */
#ifndef JSON_SCAN_H
#define JSON_SCAN_H

#include "lib/base/base.h"

#define JSON_DEPTH_MAX 512 /* no json_limits may ask for more */

/* Bytes of the UTF-8 character at `at` (RFC 3629: not overlong, no surrogate), 0 if it's none. */
size_t utf8_bytes(const uint8_t *at, const uint8_t *end);

/* The scan that json.h's json_parse promises, duplicate keys aside; how many members the value
 * has if it is an object.  -EBADMSG, -ENOSPC. */
int json_scan(const void *bytes, size_t count, const struct json_limits *limits,
	      uint32_t *member_count_out, struct ws_error *err);

/* Writes the sentence with the line and column of `at`. */
int json_fail_at(const void *bytes, const void *at, int code, const char *what,
		 struct ws_error *err);

struct json_slice {
	const uint8_t *at; /* borrowed; a string's slice includes its quotes */
	size_t count;
};

struct json_walk {
	const uint8_t *at, *end;
};

/* object: the slice of an object inside text that json_scan accepted. */
struct json_walk json_walk_make(struct json_slice object);
/* The next member in the order written; false at the end. */
bool json_walk_next(struct json_walk *walk, struct json_slice *key_out,
		    struct json_slice *value_out);

/* A string's slice without quotes and escapes, in the arena; NULL when out of memory. */
char *json_slice_text(struct arena *arena, struct json_slice string);

/* The end of the string whose opening quote is at `at`, in scanned text: behind its quote. */
const uint8_t *json_skip_string(const uint8_t *at);

#endif
