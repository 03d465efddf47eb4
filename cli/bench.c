/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync bench: ratios against baselines measured in the same run. */
#include <string.h>

#include "bench/measure.h"
#include "cli/cli.h"

static int bench_run(const struct command *command, int argc, char **argv)
{
	struct bench_options wanted = {.out = stdout};
	const char *what = NULL;
	uint32_t count = 0;
	struct option_spec options[] = {
		{"provider", 0, OPTION_TEXT, &wanted.provider, "NAME",
		 "libfabric's provider (default tcp)"},
		{"nic", 0, OPTION_TEXT, &wanted.source, "A",
		 "address or device (default 127.0.0.1)"},
		{"op-bytes", 0, OPTION_BYTES, &wanted.op_bytes, "SIZE",
		 "bytes of a write (default 1M)"},
		{"depth", 0, OPTION_COUNT, &wanted.depth, "N", "writes in flight (default 16)"},
		{"bytes", 0, OPTION_BYTES, &wanted.total_bytes, "SIZE",
		 "moved in each turn (default 1G)"},
		{"rounds", 0, OPTION_COUNT, &wanted.rounds, "N",
		 "turns of each side (default and least 7)"},
		{"json", 0, OPTION_FLAG, &wanted.json, NULL, "one object"},
	};
	struct ws_error err = {0};

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, &what, 1, &count);
	if (status >= 0)
		return status;
	int (*bench)(const struct bench_options *, struct ws_error *) = NULL;
	if (count == 1 && strcmp(what, "transfer") == 0)
		bench = bench_transfer;
	else if (count == 1 && strcmp(what, "plan") == 0)
		bench = bench_plan;
	if (bench == NULL)
		return say_usage(command, "the benchmarks there are: transfer, plan");
	if (bench(&wanted, &err) != 0)
		return say_failure(&err);
	if (fflush(stdout) != 0)
		return say_failure(&(struct ws_error){.text = "cannot write the result"});
	return EXIT_OK;
}

const struct command command_bench = {
	.name = "bench",
	.summary = "Measures the product against a baseline, in turns, in one run",
	.usage = "transfer|plan [--op-bytes SIZE] [--depth N] [--rounds N] [--json]",
	.more = "transfer: the engine against bare fi_writemsg of the same provider, op size and depth.\n"
		"plan: time and memory from manifests to a checked plan, 32 to 2,048 trainer ranks.\n",
	.run = bench_run,
};
