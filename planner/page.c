/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightsync plan --html: one page that stands alone.  page/page.html is its frame; where that
 * says <!-- NAME --> the page's style, data, script or text is put.  All that comes from outside
 * (names in manifests, hosts) stands in the data, where no '<' is left, and in escaped text.
 */
#include "planner/describe.h"
#include "planner/page_internal.h"

/* In the order they run. */
static const char *const scripts[] = {
	"page/data.js", "page/colors.js",   "page/chart.js",  "page/matrix.js",
	"page/bars.js", "page/timeline.js", "page/tables.js", "page/main.js",
};

static const char *file_text(const char *name)
{
	const struct builtin_file *file = builtin_files;

	while (strcmp(file->name, name) != 0)
		file++; /* it is there: the build embeds it */
	return file->text;
}

static void put_file(struct writer *out, const char *name)
{
	write_bytes(out, file_text(name), strlen(file_text(name)));
}

static void put_escaped(struct writer *out, const char *text)
{
	for (; *text != '\0'; text++)
		switch (*text) {
		case '<':
			write_format(out, "&lt;");
			break;
		case '>':
			write_format(out, "&gt;");
			break;
		case '&':
			write_format(out, "&amp;");
			break;
		case '"':
			write_format(out, "&quot;");
			break;
		default:
			write_u8(out, (uint8_t)*text);
		}
}

/* In JSON '<' stands only in texts, where it may be spelled so. */
static void put_data(struct writer *out, const struct page *page)
{
	struct writer text = WRITER_INIT(256u << 20);
	struct json_writer json = {.out = &text};

	if (page_data(page, &json) != 0)
		out->failed = true;
	for (size_t i = 0; !out->failed && i < text.count; i++)
		if (text.bytes[i] == '<')
			write_format(out, "\\u003c");
		else
			write_u8(out, text.bytes[i]);
	writer_release(&text);
}

/* For browsers without JavaScript. */
static void put_text(struct writer *out, const struct page *page)
{
	struct writer text = WRITER_INIT(64u << 20);

	if (page->all != NULL)
		plan_report_text(page->all, page->plan_seconds, &text);
	for (const struct finding *at = page->findings->first; at != NULL; at = at->next)
		write_format(&text, "%s  %s: %s\n", at->kind, at->where, at->text);
	write_u8(&text, 0);
	if (text.failed)
		out->failed = true;
	else
		put_escaped(out, (const char *)text.bytes);
	writer_release(&text);
}

static void put_part(struct writer *out, const struct page *page, const char *name, size_t bytes)
{
	const struct manifest *known = page->rollout != NULL ? page->rollout : page->trainer;

	if (strncmp(name, "style", bytes) == 0) {
		put_file(out, "page/page.css");
	} else if (strncmp(name, "data", bytes) == 0) {
		put_data(out, page);
	} else if (strncmp(name, "text", bytes) == 0) {
		put_text(out, page);
	} else if (strncmp(name, "title", bytes) == 0) {
		put_escaped(out, known != NULL ? manifest_model(known) : "refused");
	} else {
		assert(strncmp(name, "script", bytes) == 0);
		for (size_t i = 0; i < ARRAY_SIZE(scripts); i++)
			put_file(out, scripts[i]);
	}
}

int page_write(const struct page *page, struct writer *out)
{
	const char *at = file_text("page/page.html");

	for (const char *mark; (mark = strstr(at, "<!-- ")) != NULL;) {
		const char *name = mark + strlen("<!-- "), *end = strstr(name, " -->");
		write_bytes(out, at, (size_t)(mark - at));
		put_part(out, page, name, (size_t)(end - name));
		at = end + strlen(" -->");
	}
	write_bytes(out, at, strlen(at));
	return out->failed ? -ENOMEM : 0;
}
