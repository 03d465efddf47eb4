/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON out, streaming: what it writes is always valid JSON, whatever the strings hold and
 * whatever the locale says a decimal point is.
 */
#include "lib/base/json_scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_literal(struct json_writer *json, const char *text)
{
	write_bytes(json->out, text, strlen(text));
}

static void put_indent(struct json_writer *json)
{
	put_literal(json, "\n");
	for (uint32_t i = 0; i < json->depth; i++)
		put_literal(json, "  ");
}

static bool is_broken(const struct json_writer *json)
{
	return json->depth >= 64 || (json->broken >> json->depth & 1) != 0;
}

static void put_escaped(struct json_writer *json, const char *text)
{
	const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
	put_literal(json, "\"");
	while (at < end) {
		const uint8_t *from = at;
		size_t count = 1;
		while (at < end && *at >= 0x20 && *at != '"' && *at != '\\') {
			count = utf8_bytes(at, end);
			if (count == 0)
				break;
			at += count;
		}
		write_bytes(json->out, from, (size_t)(at - from));
		if (at == end)
			break;
		if (count == 0)
			put_literal(json, "\xef\xbf\xbd");
		else if (*at == '"' || *at == '\\')
			write_format(json->out, "\\%c", *at);
		else
			write_format(json->out, "\\u%04x", *at);
		at++;
	}
	put_literal(json, "\"");
}

/* What stands before a value: comma, line, key.  Inside an array, scalars share a line. */
static void put_before(struct json_writer *json, const char *key, bool container)
{
	bool newline = json->pretty && json->depth > 0 && (key != NULL || container);
	if (json->need_comma)
		put_literal(json, json->pretty && !newline ? ", " : ",");
	if (newline) {
		put_indent(json);
		if (json->depth < 64)
			json->broken |= (uint64_t)1 << json->depth;
	}
	if (key != NULL) {
		put_escaped(json, key);
		put_literal(json, json->pretty ? ": " : ":");
	}
	json->need_comma = true;
}

static void begin(struct json_writer *json, const char *key, const char *open)
{
	put_before(json, key, true);
	put_literal(json, open);
	json->depth++;
	json->need_comma = false;
	if (json->depth < 64)
		json->broken &= ~((uint64_t)1 << json->depth);
}

static void end(struct json_writer *json, const char *close)
{
	bool newline = json->pretty && json->need_comma && is_broken(json);
	json->depth--;
	if (newline)
		put_indent(json);
	put_literal(json, close);
	json->need_comma = true;
}

void json_begin_object(struct json_writer *json, const char *key)
{
	begin(json, key, "{");
}

void json_end_object(struct json_writer *json)
{
	end(json, "}");
}

void json_begin_array(struct json_writer *json, const char *key)
{
	begin(json, key, "[");
}

void json_end_array(struct json_writer *json)
{
	end(json, "]");
}

void json_put_text(struct json_writer *json, const char *key, const char *value)
{
	put_before(json, key, false);
	put_escaped(json, value);
}

void json_put_integer(struct json_writer *json, const char *key, int64_t value)
{
	put_before(json, key, false);
	write_format(json->out, "%lld", (long long)value);
}

void json_put_u64(struct json_writer *json, const char *key, uint64_t value)
{
	put_before(json, key, false);
	write_format(json->out, "%llu", (unsigned long long)value);
}

/* printf writes the locale's decimal point; JSON has only '.'. */
static void put_decimal(struct json_writer *json, const char *text)
{
	bool in_point = false;
	for (const char *at = text; *at != '\0'; at++) {
		bool plain = strchr("+-0123456789eE", *at) != NULL;
		if (plain || !in_point)
			write_bytes(json->out, plain ? at : ".", 1);
		in_point = !plain;
	}
}

void json_put_number(struct json_writer *json, const char *key, double value, int decimals)
{
	char text[512];
	if (!isfinite(value)) {
		json_put_null(json, key);
		return;
	}
	put_before(json, key, false);
	if (decimals >= 0)
		snprintf(text, sizeof(text), "%.*f", MIN(decimals, 100), value);
	else
		for (int digits = 15; digits == 15 || (digits <= 17 && strtod(text, NULL) != value);
		     digits++)
			snprintf(text, sizeof(text), "%.*g", digits, value);
	put_decimal(json, text);
}

void json_put_bool(struct json_writer *json, const char *key, bool value)
{
	put_before(json, key, false);
	put_literal(json, value ? "true" : "false");
}

void json_put_null(struct json_writer *json, const char *key)
{
	put_before(json, key, false);
	put_literal(json, "null");
}

void json_put_value(struct json_writer *json, const char *key, const struct json *value)
{
	switch (value->type) {
	case JSON_NULL:
		json_put_null(json, key);
		return;
	case JSON_FALSE:
	case JSON_TRUE:
		json_put_bool(json, key, value->type == JSON_TRUE);
		return;
	case JSON_NUMBER:
		if (value->is_integer)
			json_put_integer(json, key, value->integer);
		else
			json_put_number(json, key, value->number, -1);
		return;
	case JSON_STRING:
		json_put_text(json, key, value->text);
		return;
	case JSON_ARRAY:
	case JSON_OBJECT:
		break;
	}
	bool object = value->type == JSON_OBJECT;
	begin(json, key, object ? "{" : "[");
	for (const struct json *child = value->first; child != NULL; child = child->next)
		json_put_value(json, child->key, child);
	end(json, object ? "}" : "]");
}
