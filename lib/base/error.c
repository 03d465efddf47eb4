/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sentence of a failed call, and the list of findings of a check.  A sentence is built
 * aside first, so that the old one may be among its arguments, and is always a single line:
 * names that came from a file or a peer can't forge a second one.
 */
#include "lib/base/base.h"

#include <assert.h>
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
	memcpy(err->text, text, sizeof(text));
	err->code = code;
	return code;
}

static char *arena_format(struct arena *arena, const char *format, va_list args)
{
	char text[1024];
	vsnprintf(text, sizeof(text), format, args);
	make_one_line(text, sizeof(text));
	return arena_copy(arena, text, strlen(text));
}

void findings_add(struct findings *findings, const char *kind, const char *where,
		  const char *format, ...)
{
	findings->count++;
	if (findings->count > FINDINGS_KEPT_MAX)
		return;
	struct finding *finding = arena_alloc(findings->arena, sizeof(*finding));
	char *place = arena_copy(findings->arena, where, strlen(where));
	va_list args;
	va_start(args, format);
	char *text = arena_format(findings->arena, format, args);
	va_end(args);
	/* Out of memory: the finding still counts, and the check still fails. */
	if (finding == NULL || place == NULL || text == NULL)
		return;
	*finding = (struct finding){.kind = kind, .where = place, .text = text};
	if (findings->last == NULL)
		findings->first = finding;
	else
		findings->last->next = finding;
	findings->last = finding;
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
