/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strict scan that stands before cJSON, which accepts much that JSON forbids.  One pass,
 * no recursion, no allocation: time and memory are bounded by the input alone.
 */
#include "lib/base/json_scan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* cJSON copies a number into 64 bytes, and reads a longer one as two values. */
#define NUMBER_BYTES_MAX 60

struct scan {
	const uint8_t *at, *end;
	const struct json_limits *limits;
	uint32_t node_count, depth;
	uint32_t member_count;			 /* of the outermost object */
	uint64_t is_object[JSON_DEPTH_MAX / 64]; /* a bit for each open container */
	const char *fault;			 /* static; what is wrong at `at` */
	int code;
};

enum step {
	STEP_BAD,   /* fault is set */
	STEP_VALUE, /* a value must follow */
	STEP_ENDED  /* a value has just ended */
};

static bool bad(struct scan *scan, const char *fault)
{
	scan->fault = fault;
	scan->code = -EBADMSG;
	return false;
}

size_t utf8_bytes(const uint8_t *at, const uint8_t *end)
{
	uint8_t lead = at[0];
	if (lead < 0x80)
		return 1;
	size_t count = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
	if (lead < 0xc2 || lead > 0xf4 || (size_t)(end - at) < count)
		return 0;
	for (size_t i = 1; i < count; i++)
		if ((at[i] & 0xc0) != 0x80)
			return 0;
	/* Overlong forms, UTF-16 surrogates and what lies beyond U+10FFFF. */
	if ((lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f) ||
	    (lead == 0xf0 && at[1] < 0x90) || (lead == 0xf4 && at[1] > 0x8f))
		return 0;
	return count;
}

static int hex_value(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The UTF-16 unit of \uXXXX at `at`, or -1. */
static int32_t hex_unit(const uint8_t *at, const uint8_t *end)
{
	int32_t unit = 0;
	if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
		return -1;
	for (int i = 2; i < 6; i++) {
		int digit = hex_value(at[i]);
		if (digit < 0)
			return -1;
		unit = unit * 16 + digit;
	}
	return unit;
}

static bool scan_unicode_escape(struct scan *scan)
{
	int32_t unit = hex_unit(scan->at, scan->end);
	if (unit < 0)
		return bad(scan, "\\u needs four hexadecimal digits");
	if (unit == 0)
		return bad(scan, "a string holds a NUL (\\u0000)");
	if (unit >= 0xdc00 && unit <= 0xdfff)
		return bad(scan, "half of a surrogate pair");
	if (unit >= 0xd800 && unit <= 0xdbff) {
		int32_t low = hex_unit(scan->at + 6, scan->end);
		if (low < 0xdc00 || low > 0xdfff)
			return bad(scan, "half of a surrogate pair");
		scan->at += 6;
	}
	scan->at += 6;
	return true;
}

static bool scan_escape(struct scan *scan)
{
	if (scan->end - scan->at < 2)
		return bad(scan, "the text ends inside a string");
	uint8_t c = scan->at[1];
	if (c == 'u')
		return scan_unicode_escape(scan);
	if (c == '\0' || strchr("\"\\/bfnrt", c) == NULL)
		return bad(scan, "JSON has no such escape");
	scan->at += 2;
	return true;
}

static bool scan_string(struct scan *scan)
{
	if (scan->at == scan->end || *scan->at != '"')
		return bad(scan, "a string must stand here");
	scan->at++;
	while (scan->at < scan->end) {
		uint8_t c = *scan->at;
		if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
			scan->at++;
			continue;
		}
		if (c == '"') {
			scan->at++;
			return true;
		}
		if (c < 0x20)
			return bad(scan, "a string holds a control byte");
		if (c == '\\') {
			if (!scan_escape(scan))
				return false;
			continue;
		}
		size_t count = utf8_bytes(scan->at, scan->end);
		if (count == 0)
			return bad(scan, "the text isn't valid UTF-8");
		scan->at += count;
	}
	return bad(scan, "the text ends inside a string");
}

/* What is wrong with the whole number is said where it begins. */
static bool bad_number(struct scan *scan, const uint8_t *from, const char *fault)
{
	scan->at = from;
	return bad(scan, fault);
}

static bool scan_digits(struct scan *scan)
{
	const uint8_t *from = scan->at;
	while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
		scan->at++;
	return scan->at > from || bad(scan, "a digit must stand here");
}

static bool scan_number(struct scan *scan)
{
	const uint8_t *from = scan->at;
	if (*scan->at == '-')
		scan->at++;
	const uint8_t *first = scan->at;
	if (!scan_digits(scan))
		return false;
	if (*first == '0' && scan->at > first + 1)
		return bad_number(scan, from, "a number begins with a needless 0");
	if (scan->at < scan->end && *scan->at == '.') {
		scan->at++;
		if (!scan_digits(scan))
			return false;
	}
	if (scan->at < scan->end && (*scan->at | 0x20) == 'e') {
		scan->at++;
		if (scan->at < scan->end && (*scan->at == '+' || *scan->at == '-'))
			scan->at++;
		if (!scan_digits(scan))
			return false;
	}
	if (scan->at - from > NUMBER_BYTES_MAX)
		return bad_number(scan, from, "a number has more than 60 characters");
	return true;
}

static bool scan_literal(struct scan *scan)
{
	static const char *const literals[] = {"true", "false", "null"};
	for (size_t i = 0; i < ARRAY_SIZE(literals); i++) {
		size_t count = strlen(literals[i]);
		if ((size_t)(scan->end - scan->at) >= count &&
		    memcmp(scan->at, literals[i], count) == 0) {
			scan->at += count;
			return true;
		}
	}
	return bad(scan, "no JSON value begins like this");
}

static bool is_white(uint8_t c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_white(struct scan *scan)
{
	while (scan->at < scan->end && is_white(*scan->at))
		scan->at++;
}

/* A member's name and its colon. */
static bool scan_key(struct scan *scan)
{
	if (scan->depth == 1)
		scan->member_count++;
	skip_white(scan);
	if (!scan_string(scan))
		return false;
	skip_white(scan);
	if (scan->at == scan->end || *scan->at != ':')
		return bad(scan, "':' must stand here");
	scan->at++;
	return true;
}

static bool in_object(const struct scan *scan)
{
	uint32_t top = scan->depth - 1;
	return (scan->is_object[top / 64] >> (top % 64) & 1) != 0;
}

static enum step scan_open(struct scan *scan, bool object)
{
	if (scan->depth == scan->limits->depth_max) {
		bad(scan, "too deeply nested");
		scan->code = -ENOSPC;
		return STEP_BAD;
	}
	uint64_t bit = (uint64_t)1 << (scan->depth % 64);
	uint64_t *word = &scan->is_object[scan->depth / 64];
	*word = object ? *word | bit : *word & ~bit;
	scan->depth++;
	scan->at++;
	skip_white(scan);
	if (scan->at < scan->end && *scan->at == (object ? '}' : ']')) {
		scan->at++;
		scan->depth--;
		return STEP_ENDED;
	}
	if (object && !scan_key(scan))
		return STEP_BAD;
	return STEP_VALUE;
}

static enum step scan_value(struct scan *scan)
{
	skip_white(scan);
	if (scan->at == scan->end) {
		bad(scan, "the text ends where a value must stand");
		return STEP_BAD;
	}
	if (scan->node_count == scan->limits->node_count_max) {
		bad(scan, "too many values");
		scan->code = -ENOSPC;
		return STEP_BAD;
	}
	scan->node_count++;
	uint8_t c = *scan->at;
	if (c == '{' || c == '[')
		return scan_open(scan, c == '{');
	bool good = c == '"'				 ? scan_string(scan)
		    : c == '-' || (c >= '0' && c <= '9') ? scan_number(scan)
							 : scan_literal(scan);
	return good ? STEP_ENDED : STEP_BAD;
}

/* What follows a value inside an array or object. */
static enum step scan_after(struct scan *scan)
{
	bool object = in_object(scan);
	skip_white(scan);
	if (scan->at < scan->end && *scan->at == ',') {
		scan->at++;
		return !object || scan_key(scan) ? STEP_VALUE : STEP_BAD;
	}
	if (scan->at < scan->end && *scan->at == (object ? '}' : ']')) {
		scan->at++;
		scan->depth--;
		return STEP_ENDED;
	}
	bad(scan, object ? "',' or '}' must stand here" : "',' or ']' must stand here");
	return STEP_BAD;
}

static bool scan_text(struct scan *scan)
{
	enum step step = STEP_VALUE;
	/* Each turn moves `at` on, so the text's length bounds it. */
	while (step == STEP_VALUE || (step == STEP_ENDED && scan->depth > 0))
		step = step == STEP_VALUE ? scan_value(scan) : scan_after(scan);
	if (step == STEP_BAD)
		return false;
	skip_white(scan);
	return scan->at == scan->end || bad(scan, "something follows the value");
}

int json_fail_at(const void *bytes, const void *at, int code, const char *what,
		 struct ws_error *err)
{
	size_t line = 1, column = 1;
	for (const uint8_t *c = bytes; c < (const uint8_t *)at; c++) {
		column++;
		if (*c == '\n') {
			line++;
			column = 1;
		}
	}
	return ws_fail(err, code, "line %zu, column %zu: %s", line, column, what);
}

int json_scan(const void *bytes, size_t count, const struct json_limits *limits,
	      uint32_t *member_count_out, struct ws_error *err)
{
	assert(limits->depth_max <= JSON_DEPTH_MAX);
	if (count > limits->bytes_max)
		return ws_fail(err, -ENOSPC, "JSON of %zu bytes, and the limit is %zu", count,
			       limits->bytes_max);
	if (count == 0)
		return ws_fail(err, -EBADMSG, "line 1, column 1: the text is empty");
	struct scan scan = {.at = bytes, .end = (const uint8_t *)bytes + count, .limits = limits};
	if (!scan_text(&scan))
		return json_fail_at(bytes, scan.at, scan.code, scan.fault, err);
	*member_count_out = scan.member_count;
	return 0;
}

const uint8_t *json_skip_string(const uint8_t *at)
{
	at++;
	while (*at != '"')
		at += *at == '\\' ? 2 : 1;
	return at + 1;
}

/* Scanned text is balanced, so that only commas and brackets outside of strings count. */
static const uint8_t *skip_value(const uint8_t *at, const uint8_t *end)
{
	uint32_t depth = 0;
	while (at < end) {
		switch (*at) {
		case '"':
			at = json_skip_string(at);
			continue;
		case '{':
		case '[':
			depth++;
			break;
		case '}':
		case ']':
			if (depth == 0)
				return at;
			depth--;
			break;
		case ',':
			if (depth == 0)
				return at;
			break;
		}
		at++;
	}
	return at;
}

struct json_walk json_walk_make(struct json_slice object)
{
	return (struct json_walk){.at = object.at + 1, .end = object.at + object.count};
}

bool json_walk_next(struct json_walk *walk, struct json_slice *key_out,
		    struct json_slice *value_out)
{
	while (walk->at < walk->end && *walk->at != '"' && *walk->at != '}')
		walk->at++;
	if (walk->at >= walk->end || *walk->at == '}')
		return false;
	const uint8_t *key_end = json_skip_string(walk->at);
	*key_out = (struct json_slice){walk->at, (size_t)(key_end - walk->at)};
	const uint8_t *value = key_end;
	while (*value == ':' || is_white(*value))
		value++;
	walk->at = skip_value(value, walk->end);
	const uint8_t *value_end = walk->at;
	while (is_white(value_end[-1]))
		value_end--;
	*value_out = (struct json_slice){value, (size_t)(value_end - value)};
	return true;
}

/* The escape at *at as UTF-8 into out; moves *at behind it.  Returns how many bytes. */
static size_t unescape(const uint8_t **at, const uint8_t *end, char *out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	if ((*at)[1] != 'u') {
		*out = to[strchr(from, (*at)[1]) - from];
		*at += 2;
		return 1;
	}
	uint32_t code = (uint32_t)hex_unit(*at, end);
	*at += 6;
	if (code >= 0xd800 && code <= 0xdbff) {
		uint32_t low = (uint32_t)hex_unit(*at, end);
		code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
		*at += 6;
	}
	if (code < 0x80) {
		out[0] = (char)code;
		return 1;
	}
	size_t count = code >= 0x10000 ? 4 : code >= 0x800 ? 3 : 2;
	for (size_t i = count - 1; i > 0; i--) {
		out[i] = (char)(0x80 | (code & 0x3f));
		code >>= 6;
	}
	static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
	out[0] = (char)(lead[count] | code);
	return count;
}

char *json_slice_text(struct arena *arena, struct json_slice string)
{
	/* Unescaped text is never longer than what it was written as. */
	char *text = arena_alloc(arena, string.count - 1);
	if (text == NULL)
		return NULL;
	const uint8_t *at = string.at + 1, *end = string.at + string.count - 1;
	char *out = text;
	while (at < end) {
		if (*at == '\\')
			out += unescape(&at, end, out);
		else
			*out++ = (char)*at++;
	}
	*out = '\0';
	return text;
}
