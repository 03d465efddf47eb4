/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table per command parses its options and prints its help.  getopt_long does the work.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define OPTIONS_MAX 64
#define HELP_COLUMN 30

/* A number with an optional unit; *unit_out is what follows the digits. */
static int parse_number(const char *text, uint64_t *value_out, const char **unit_out)
{
	char *end = NULL;
	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno != 0)
		return -EINVAL;
	*value_out = value;
	*unit_out = end;
	return 0;
}

int parse_bytes(const char *text, uint64_t *bytes_out, struct ws_error *err)
{
	static const char units[] = "KMGT";
	const char *unit = NULL;
	uint64_t value = 0;
	unsigned shift = 0;

	if (parse_number(text, &value, &unit) != 0)
		goto fail;
	if (*unit != '\0') {
		const char *found = strchr(units, toupper((unsigned char)*unit));
		if (found == NULL || unit[1] != '\0')
			goto fail;
		shift = 10u * (unsigned)(found - units + 1);
	}
	if (shift != 0 && value > UINT64_MAX >> shift)
		goto fail;
	*bytes_out = value << shift;
	return 0;
fail:
	return ws_fail(err, -EINVAL, "'%s' is not a size; good ones are 4096, 64K, 64M, 2G", text);
}

int parse_ms(const char *text, uint32_t *ms_out, struct ws_error *err)
{
	const char *unit = NULL;
	uint64_t value = 0;
	uint64_t scale = 1000;

	if (parse_number(text, &value, &unit) != 0)
		goto fail;
	if (strcmp(unit, "ms") == 0)
		scale = 1;
	else if (strcmp(unit, "m") == 0)
		scale = 60000;
	else if (strcmp(unit, "s") != 0)
		goto fail;
	if (value > UINT32_MAX / scale)
		goto fail;
	*ms_out = (uint32_t)(value * scale);
	return 0;
fail:
	return ws_fail(err, -EINVAL, "'%s' is not a time; good ones are 500ms, 5s, 2m", text);
}

int split_list(struct arena *arena, const char *text, const char ***items_out, uint32_t *count_out)
{
	uint32_t count = 1;
	for (const char *at = text; *at != '\0'; at++)
		count += *at == ',';
	const char **items = arena_array(arena, count, sizeof(*items));
	char *copy = arena_copy(arena, text, strlen(text));
	if (items == NULL || copy == NULL)
		return -ENOMEM;
	char *rest = copy;
	for (uint32_t i = 0; i < count; i++)
		items[i] = strsep(&rest, ",");
	*items_out = items;
	*count_out = count;
	return 0;
}

static void put_option(struct writer *out, const struct option_spec *option, uint32_t columns)
{
	char left[64];
	char letter[] = {'-', option->letter, ',', ' ', '\0'};
	int length = snprintf(left, sizeof(left), "  %s--%s%s%s", option->letter ? letter : "    ",
			      option->name, option->argument ? " " : "",
			      option->argument ? option->argument : "");
	if (length >= HELP_COLUMN)
		write_format(out, "%s\n%*s", left, HELP_COLUMN, "");
	else
		write_format(out, "%-*s", HELP_COLUMN, left);
	put_folded(out, option->help, HELP_COLUMN, columns);
}

static void put_usage(struct writer *out, const struct command *command, uint32_t columns)
{
	char form[256];

	for (const char *at = command->usage, *end; *at != '\0';
	     at = *end == '\n' ? end + 1 : end) {
		end = at + strcspn(at, "\n");
		snprintf(form, sizeof(form), "%.*s", (int)(end - at), at);
		write_format(out, "%s weightsync %s ", at == command->usage ? "usage:" : "      ",
			     command->name);
		put_folded(out, form,
			   (uint32_t)strlen("usage: weightsync  ") +
				   (uint32_t)strlen(command->name),
			   columns);
	}
}

static int put_help(const struct command *command, const struct option_spec *options,
		    uint32_t count)
{
	static const struct option_spec help = {.name = "help", .letter = 'h', .help = "this text"};
	struct writer out = WRITER_INIT(1u << 20);
	uint32_t columns = stdout_columns(100);

	put_usage(&out, command, columns);
	write_format(&out, "\n%s.\n\n", command->summary);
	for (uint32_t i = 0; i < count; i++)
		put_option(&out, &options[i], columns);
	put_option(&out, &help, columns);
	if (command->more != NULL)
		write_format(&out, "\n%s", command->more);
	int status = put_stdout(&out);
	writer_release(&out);
	return status;
}

static int take_count(const char *text, uint64_t max, uint64_t *value_out, struct ws_error *err)
{
	const char *unit = NULL;
	if (parse_number(text, value_out, &unit) != 0 || *unit != '\0' || *value_out > max)
		return ws_fail(err, -EINVAL, "'%s' is not a whole number from 0 to %" PRIu64, text,
			       max);
	return 0;
}

static int take(const struct option_spec *option, const char *text, struct ws_error *err)
{
	uint64_t value = 0;
	int rc = 0;
	switch (option->kind) {
	case OPTION_FLAG:
		*(bool *)option->value = true;
		break;
	case OPTION_TEXT:
		*(const char **)option->value = text;
		break;
	case OPTION_COUNT:
		rc = take_count(text, UINT32_MAX, &value, err);
		if (rc == 0)
			*(uint32_t *)option->value = (uint32_t)value;
		break;
	case OPTION_U64:
		rc = take_count(text, UINT64_MAX, option->value, err);
		break;
	case OPTION_BYTES:
		rc = parse_bytes(text, option->value, err);
		break;
	case OPTION_MS:
		rc = parse_ms(text, option->value, err);
		break;
	}
	return rc;
}

/* getopt's own tables out of ours. */
static void make_tables(const struct option_spec *options, uint32_t count, struct option *longs,
			char *shorts)
{
	size_t used = strlen(shorts);
	for (uint32_t i = 0; i < count; i++) {
		bool argument = options[i].kind != OPTION_FLAG;
		longs[i] = (struct option){.name = options[i].name,
					   .has_arg = argument ? required_argument : no_argument,
					   .val = 256 + (int)i};
		if (options[i].letter != 0) {
			shorts[used++] = options[i].letter;
			if (argument)
				shorts[used++] = ':';
		}
	}
	longs[count] = (struct option){.name = "help", .val = 'h'};
}

int options_parse(const struct command *command, const struct option_spec *options, uint32_t count,
		  int argc, char **argv, const char **operands_out, uint32_t operand_max,
		  uint32_t *operand_count)
{
	struct option longs[OPTIONS_MAX + 2] = {{0}};
	char shorts[2 * OPTIONS_MAX + 8] = ":h";
	struct ws_error err = {0};

	make_tables(options, count, longs, shorts);
	optind = 0; /* glibc: starts afresh, in the middle of no old argv */
	opterr = 0;
	for (int found; (found = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
		const char *given = argv[optind - 1];
		if (found == 'h')
			return put_help(command, options, count);
		if (found == '?' && optopt > 0 && optopt < 256)
			return say_usage(command, "there is no option '-%c', or it takes no value",
					 optopt);
		if (found == '?')
			return say_usage(command, "there is no option '%s', or it takes no value",
					 given);
		if (found == ':')
			return say_usage(command, "option '%s' needs a value", given);
		uint32_t index = found >= 256 ? (uint32_t)found - 256 : 0;
		while (found < 256 && options[index].letter != found)
			index++;
		if (take(&options[index], optarg, &err) != 0)
			return say_usage(command, "option '--%s': %s", options[index].name,
					 err.text);
	}
	uint32_t operands = (uint32_t)(argc - optind);
	if (operands > operand_max)
		return say_usage(command, "'%s' is one argument too many",
				 argv[optind + (int)operand_max]);
	for (uint32_t i = 0; i < operands; i++)
		operands_out[i] = argv[optind + (int)i];
	if (operand_count != NULL)
		*operand_count = operands;
	return -1;
}
