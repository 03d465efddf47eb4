/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sentence of a failed call, and the list of findings of a check.  A sentence is built
 * aside first, so that the old one may be among its arguments, and is always a single line:
 * names that came from a file or a peer can't forge a second one.
 */
#include "lib/base/base.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static_assert(sizeof(struct ws_error) == WS_ERROR_BYTES, "struct ws_error is part of the ABI");

/* Control bytes become '?', and a UTF-8 character that the limit cut in two is dropped. */
static void make_one_line(char *text, size_t room)
{
	size_t count = strlen(text);
	if (count + 1 == room) {
		size_t start = count;
		while (start > 0 && count - start < 3 && ((uint8_t)text[start - 1] & 0xc0) == 0x80)
			start--;
		if (start > 0 && (uint8_t)text[start - 1] >= 0xc0) {
			uint8_t lead = (uint8_t)text[start - 1];
			size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
			if (count - start + 1 < want)
				text[start - 1] = '\0';
		}
	}
	for (char *at = text; *at != '\0'; at++)
		if ((uint8_t)*at < 0x20 || *at == 0x7f)
			*at = '?';
}

/* Whether the text begins with these bytes, and no longer name does. */
static bool begins_with(const char *text, const char *name, size_t bytes)
{
	char next;
	if (strncmp(text, name, bytes) != 0)
		return false;
	next = text[bytes];
	return !isalnum((unsigned char)next) && next != '_' && next != '-' && next != '/' &&
	       (next != '.' || !isalnum((unsigned char)text[bytes + 1]));
}

void error_drop_repeats(char *text)
{
	char *part = text;
	for (char *end = strstr(part, ": "); end != NULL; end = strstr(part, ": ")) {
		size_t bytes = (size_t)(end - part);
		if (bytes > 0 && begins_with(end + 2, part, bytes))
			memmove(part, end + 2, strlen(end + 2) + 1);
		else
			part = end + 2;
	}
}

int ws_fail(struct ws_error *err, int code, const char *format, ...)
{
	if (err == NULL)
		return code;
	char text[sizeof(err->text)];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	make_one_line(text, sizeof(text));
	error_drop_repeats(text);
	memcpy(err->text, text, sizeof(text));
	err->code = code;
	return code;
}

int ws_fail_in(struct ws_error *err, int code, const char *format, ...)
{
	if (err == NULL)
		return code;
	char text[sizeof(err->text)];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	size_t used = strlen(text);
	const char *parts[] = {": ", err->text};
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		size_t count = strnlen(parts[i], sizeof(text) - 1 - used);
		memcpy(text + used, parts[i], count);
		used += count;
	}
	text[used] = '\0';
	make_one_line(text, sizeof(text));
	error_drop_repeats(text);
	memcpy(err->text, text, sizeof(text));
	err->code = code;
	return code;
}

/* Numbers don't count: all experts' findings of one kind have the same words. */
static uint64_t hash_words(uint64_t hash, const char *text)
{
	for (const char *at = text; *at != '\0'; at++) {
		bool digit = *at >= '0' && *at <= '9';
		if (!digit || at == text || at[-1] < '0' || at[-1] > '9')
			hash = mix64(hash * 31 + (digit ? '#' : (uint8_t)*at));
	}
	return mix64(hash + 1);
}

/* The last kept one of these words, or NULL. */
static struct finding *last_alike(const struct findings *findings, uint64_t words,
				  uint32_t *count_out)
{
	struct finding *last = NULL;
	*count_out = 0;
	for (struct finding *it = findings->first; it != NULL; it = it->next) {
		if (it->words != words)
			continue;
		last = it;
		++*count_out;
	}
	return last;
}

static void keep(struct findings *findings, const char *kind, const char *where, const char *text)
{
	uint64_t words = hash_words(hash_words(hash_words(0, kind), where), text);
	uint32_t alike_count;
	struct finding *alike = last_alike(findings, words, &alike_count);
	bool enough = alike_count == FINDINGS_ALIKE_KEPT_MAX ||
		      (alike != NULL && strcmp(alike->text, text) == 0 &&
		       strcmp(alike->where, where) == 0);
	findings->count++;
	if (enough)
		alike->alike++;
	if (enough || findings->kept == FINDINGS_KEPT_MAX)
		return;
	struct finding *finding = arena_alloc(findings->arena, sizeof(*finding));
	if (finding == NULL)
		return;
	*finding = (struct finding){
		.kind = kind,
		.where = arena_copy(findings->arena, where, strlen(where)),
		.text = arena_copy(findings->arena, text, strlen(text)),
		.words = words,
	};
	/* Out of memory: the finding still counts, and the check still fails. */
	if (finding->where == NULL || finding->text == NULL)
		return;
	if (findings->last == NULL)
		findings->first = finding;
	else
		findings->last->next = finding;
	findings->last = finding;
	findings->kept++;
}

void findings_add(struct findings *findings, const char *kind, const char *where,
		  const char *format, ...)
{
	char text[1024];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	make_one_line(text, sizeof(text));
	keep(findings, kind, where, text);
}

void findings_merge(struct findings *findings, const struct findings *others)
{
	uint32_t told = 0;
	for (const struct finding *it = others->first; it != NULL; it = it->next) {
		uint32_t alike_count;
		keep(findings, it->kind, it->where, it->text);
		struct finding *alike = last_alike(findings, it->words, &alike_count);
		if (alike != NULL)
			alike->alike += it->alike;
		findings->count += it->alike;
		told += 1 + it->alike;
	}
	findings->count += others->count - told;
}

int findings_fail(const struct findings *findings, int code, struct ws_error *err)
{
	if (findings->count == 0)
		return 0;
	if (findings->first == NULL)
		return ws_fail(err, code, "%u findings, and no memory to tell them",
			       findings->count);
	if (findings->count == 1)
		return ws_fail(err, code, "%s", findings->first->text);
	return ws_fail(err, code, "%.440s (and %u more finding%s)", findings->first->text,
		       findings->count - 1, findings->count == 2 ? "" : "s");
}
