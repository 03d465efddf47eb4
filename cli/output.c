/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a person or a script sees: sentences and a progress line on stderr, results on stdout.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"

void say(const char *format, ...)
{
	/* One write: lines of several ranks must not mix. */
	char line[1024];
	va_list args;
	va_start(args, format);
	int length = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (length < 0)
		return;
	error_drop_repeats(line);
	size_t used = MIN(strlen(line), sizeof(line) - 2);
	line[used++] = '\n';
	line[used] = '\0';
	fputs(line, stderr);
}

int say_failure(const struct ws_error *err)
{
	say("weightsync: %s", err->text);
	return EXIT_FAILED;
}

int say_usage(const struct command *command, const char *format, ...)
{
	char text[512];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "weightsync: %s; see weightsync %s --help\n", text, command->name);
	return EXIT_USAGE;
}

int put_stdout(const struct writer *text)
{
	if (text->failed) {
		fprintf(stderr, "weightsync: out of memory while writing the result\n");
		return EXIT_FAILED;
	}
	if (fwrite(text->bytes, 1, text->count, stdout) != text->count || fflush(stdout) != 0) {
		fprintf(stderr, "weightsync: cannot write the result: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	return EXIT_OK;
}

static uint32_t columns_of(int fd, uint32_t otherwise)
{
	struct winsize size;
	if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		return otherwise;
	return MIN(MAX(size.ws_col, 40u), 120u);
}

uint32_t stdout_columns(uint32_t otherwise)
{
	return columns_of(STDOUT_FILENO, otherwise);
}

void put_folded(struct writer *out, const char *text, uint32_t indent, uint32_t columns)
{
	uint32_t column = indent;

	for (const char *at = text; *at != '\0';) {
		uint32_t length = (uint32_t)strcspn(at, " ");
		if (column > indent && column + 1 + length > columns) {
			write_format(out, "\n%*s", (int)indent, "");
			column = indent;
		} else if (column > indent) {
			write_format(out, " ");
			column++;
		}
		write_bytes(out, at, length);
		column += length;
		at += length;
		at += strspn(at, " ");
	}
	write_format(out, "\n");
}

#define KIND_COLUMN_MAX	 12
#define WHERE_COLUMN_MAX 56
#define SENTENCE_COLUMN	 6 /* where it stands below kind and place */

/* In a terminal that isn't wide enough for a table. */
static void say_finding_folded(const struct finding *finding, uint32_t columns)
{
	struct writer out = WRITER_INIT(64u << 10);
	write_format(&out, "  %s  %s\n%*s", finding->kind, finding->where, SENTENCE_COLUMN, "");
	put_folded(&out, finding->text, SENTENCE_COLUMN, columns);
	fwrite(out.bytes, 1, out.count, stderr);
	writer_release(&out);
}

void say_findings(const struct findings *findings)
{
	size_t kind = 0, where = 0, text = 0;
	uint32_t told = 0, columns = columns_of(STDERR_FILENO, UINT32_MAX);
	for (const struct finding *it = findings->first; it != NULL; it = it->next) {
		kind = MAX(kind, MIN(strlen(it->kind), KIND_COLUMN_MAX));
		where = MAX(where, MIN(strlen(it->where), WHERE_COLUMN_MAX));
		text = MAX(text, strlen(it->text));
	}
	bool folded = 2 + kind + 2 + where + 2 + text > columns;
	for (const struct finding *it = findings->first; it != NULL; it = it->next) {
		if (folded)
			say_finding_folded(it, columns);
		else
			fprintf(stderr, "  %-*s  %-*s  %s\n", (int)kind, it->kind, (int)where,
				it->where, it->text);
		if (it->alike > 0)
			fprintf(stderr, "  %-*s  %-*s  .. and %u more alike\n", (int)kind, it->kind,
				folded ? 0 : (int)where, "", it->alike);
		told += 1 + it->alike;
	}
	if (findings->count > told)
		fprintf(stderr, "  .. and %u more\n", findings->count - told);
}

int put_findings(const struct findings *findings)
{
	struct writer out = WRITER_INIT(16u << 20);
	struct json_writer writer = {.out = &out}, *json = &writer;
	json_begin_object(json, NULL);
	json_put_bool(json, "ok", false);
	json_put_u64(json, "count", findings->count);
	json_begin_array(json, "findings");
	for (const struct finding *it = findings->first; it != NULL; it = it->next) {
		json_begin_object(json, NULL);
		json_put_text(json, "kind", it->kind);
		json_put_text(json, "where", it->where);
		json_put_text(json, "text", it->text);
		json_put_u64(json, "alike", it->alike);
		json_end_object(json);
	}
	json_end_array(json);
	json_end_object(json);
	write_bytes(&out, "\n", 1);
	int status = put_stdout(&out);
	writer_release(&out);
	return status;
}

void progress_line_start(struct progress_line *line)
{
	*line = (struct progress_line){.started_ns = clock_ns()};
}

void progress_line_say(struct progress_line *line, const char *format, ...)
{
	uint64_t now = clock_ns();
	if (!isatty(STDERR_FILENO) || now - line->started_ns < 1000000000u ||
	    now - line->last_ns < 100000000u)
		return;
	va_list args;
	va_start(args, format);
	fputs("\r\033[K", stderr);
	vfprintf(stderr, format, args);
	fflush(stderr);
	va_end(args);
	line->last_ns = now;
	line->shown = true;
}

void progress_line_end(struct progress_line *line)
{
	if (line->shown)
		fputs("\r\033[K", stderr);
	line->shown = false;
}

const char *format_bytes(uint64_t bytes, char *out, size_t room)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
	double value = (double)bytes;
	size_t unit = 0;
	for (; value >= 1000.0 && unit + 1 < ARRAY_SIZE(units); unit++)
		value /= 1000.0;
	snprintf(out, room, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
	return out;
}
