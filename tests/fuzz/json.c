/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: JSON text.  What is accepted must come out of the writer as text that is
 * accepted again and comes out the same, plain and pretty.
 */
#include "lib/base/base.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static const struct json_limits limits = {
	.bytes_max = 64u << 20, .depth_max = 64, .node_count_max = 1u << 20};

static void must(bool condition)
{
	if (!condition)
		abort();
}

/* Writes json, reads that, and writes it again. */
static void check_round(const struct json *json, bool pretty)
{
	struct writer first = WRITER_INIT(1u << 30), second = WRITER_INIT(1u << 30);
	struct json_writer first_json = {.out = &first, .pretty = pretty};
	struct json_writer second_json = {.out = &second, .pretty = pretty};
	struct arena arena = {0};
	const struct json *again = NULL;
	json_put_value(&first_json, NULL, json);
	must(!first.failed);
	must(json_parse(&arena, first.bytes, first.count, &limits, &again, NULL) == 0);
	json_put_value(&second_json, NULL, again);
	must(first.count == second.count && memcmp(first.bytes, second.bytes, first.count) == 0);
	arena_release(&arena);
	writer_release(&first);
	writer_release(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	struct arena arena = {0};
	struct ws_error err = {0};
	const struct json *json = NULL;
	int rc = json_parse(&arena, bytes, count, &limits, &json, &err);
	if (rc == 0) {
		check_round(json, false);
		check_round(json, true);
	} else {
		must(rc == err.code && err.text[0] != '\0' && json == NULL);
	}
	arena_release(&arena);
	must(mem_live_count() == 0);
	return 0;
}
