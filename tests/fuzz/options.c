/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the command line.  The input is split at its NULs into argv; what is taken must be
 * in its option's range and be an operand or a text of argv's, what is refused must end with 2.
 */
#include "cli/cli.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_MAX     64
#define OPERANDS_MAX 3

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Sentences and help go to where the fuzzer's own words don't: they must be made, not read. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	stdout = stderr = fopen("/dev/null", "w");
	return stdout == NULL;
}

static bool is_inside(const char *text, const char *bytes, size_t count)
{
	return text >= bytes && text <= bytes + count;
}

static void lists_check(const char *text)
{
	struct arena arena = {0};
	const char **items = NULL;
	uint32_t count = 0, commas = 0;

	for (const char *at = text; *at != '\0'; at++)
		commas += *at == ',';
	assert(split_list(&arena, text, &items, &count) == 0 && count == commas + 1);
	for (uint32_t i = 0; i < count; i++)
		assert(strchr(items[i], ',') == NULL);
	arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	static const struct command command = {"fuzz", "tries", "[options] A B C", "More.\n", NULL};
	bool flag = false;
	const char *text = NULL, *operands[OPERANDS_MAX] = {0};
	uint32_t number = 0, ms = 0, operand_count = 0;
	uint64_t big = 0, size = 0;
	const struct option_spec options[] = {
		{"flag", 'f', OPTION_FLAG, &flag, NULL, "a flag"},
		{"text", 'o', OPTION_TEXT, &text, "TEXT", "a text"},
		{"count", 0, OPTION_COUNT, &number, "N", "a count"},
		{"big", 0, OPTION_U64, &big, "N", "a big count"},
		{"size", 's', OPTION_BYTES, &size, "BYTES", "a size"},
		{"time", 0, OPTION_MS, &ms, "TIME", "a time"},
	};
	char *copy = malloc(count + 1), *args[ARGS_MAX + 1] = {"fuzz"};
	int arg_count = 1;

	assert(copy != NULL);
	memcpy(copy, bytes, count);
	copy[count] = '\0';
	for (size_t at = 0; at < count && arg_count < ARGS_MAX; at += strlen(copy + at) + 1)
		args[arg_count++] = copy + at;
	int rc = options_parse(&command, options, ARRAY_SIZE(options), arg_count, args, operands,
			       OPERANDS_MAX, &operand_count);
	assert(rc == -1 || rc == EXIT_OK || rc == EXIT_USAGE);
	if (rc == -1) {
		assert(operand_count <= OPERANDS_MAX);
		for (uint32_t i = 0; i < operand_count; i++)
			assert(is_inside(operands[i], copy, count));
		if (text != NULL) {
			assert(is_inside(text, copy, count));
			lists_check(text);
		}
	}
	free(copy);
	return 0;
}
