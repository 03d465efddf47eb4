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
	const char *nics = NULL;
	struct arena arena = {0};
	struct option_spec options[] = {
		{"transport", 0, OPTION_TEXT, &wanted.transport, "NAME",
		 "fabric (default), verbs, ipc or loop"},
		{"provider", 0, OPTION_TEXT, &wanted.provider, "NAME",
		 "libfabric's provider (default tcp)"},
		{"nics", 0, OPTION_TEXT, &nics, "A,B,..",
		 "addresses or devices (default: 127.0.0.1 of tcp, all of verbs)"},
		{"what", 0, OPTION_TEXT, &wanted.what, "ROW",
		 "latency, stream, small, mesh or incast; of convert amax, quantize, both, whole, cast or "
		 "dequantize; of copies engine, .. (default: all)"},
		{"op-bytes", 0, OPTION_BYTES, &wanted.op_bytes, "SIZE",
		 "bytes of a write (default: each row's)"},
		{"depth", 0, OPTION_COUNT, &wanted.depth, "N", "writes in flight (default 16)"},
		{"bytes", 0, OPTION_BYTES, &wanted.total_bytes, "SIZE",
		 "moved in each turn, at most (default 1G)"},
		{"rounds", 0, OPTION_COUNT, &wanted.rounds, "N",
		 "turns of each, at least 7 (default 7; of overhead 200)"},
		{"memory", 0, OPTION_TEXT, &wanted.memory, "KIND",
		 "shared (a memfd, the default), 4k or 2m (the heap's, by page)"},
		{"senders", 0, OPTION_COUNT, &wanted.senders, "N",
		 "of mesh (default 2); of overhead: trainers"},
		{"receivers", 0, OPTION_COUNT, &wanted.receivers, "N",
		 "of mesh (default 2); of overhead: rollouts"},
		{"listen", 0, OPTION_TEXT, &wanted.listen, "HOST:PORT",
		 "be the receivers of another host's bench, once"},
		{"peer", 0, OPTION_TEXT, &wanted.peer, "HOST:PORT",
		 "the receivers are there, where --listen runs"},
		{"gpu", 0, OPTION_TEXT, &wanted.gpu, "N",
		 "convert: on this GPU, against a copy within it"},
		{"shape", 0, OPTION_TEXT, &wanted.shape, "MODEL",
		 "update: whose tensors (default qwen3-30b-a3b)"},
		{"scale", 0, OPTION_COUNT, &wanted.scale, "N", "update: an N-th of its bytes"},
		{"quant", 0, OPTION_TEXT, &wanted.quant, "SCHEME",
		 "update: the rollout's, as fp8-block"},
		{"trainer", 0, OPTION_TEXT, &wanted.manifests[SIDE_TRAINER], "FILE",
		 "update: a manifest of one rank, instead of a model"},
		{"rollout", 0, OPTION_TEXT, &wanted.manifests[SIDE_ROLLOUT], "FILE",
		 "update: the other side's"},
		{"staging-bytes", 0, OPTION_BYTES, &wanted.staging_bytes, "SIZE",
		 "update: the trainer's (default up to 512M)"},
		{"offload", 0, OPTION_FLAG, &wanted.offload, NULL,
		 "update: the trainer's params lie in the host's memory"},
		{"nccl", 0, OPTION_TEXT, &wanted.nccl, "FILE",
		 "update: NCCL's library (default: the loader's libnccl.so.2)"},
		{"alone", 0, OPTION_FLAG, &wanted.alone, NULL, "without baselines"},
		{"json", 0, OPTION_FLAG, &wanted.json, NULL, "one object per row"},
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
	else if (count == 1 && strcmp(what, "convert") == 0)
		bench = wanted.gpu != NULL ? bench_convert_gpu : bench_convert;
	else if (count == 1 && strcmp(what, "copies") == 0)
		bench = bench_copies;
	else if (count == 1 && strcmp(what, "update") == 0)
		bench = bench_update;
	else if (count == 1 && strcmp(what, "overhead") == 0)
		bench = bench_overhead;
	if (bench == NULL)
		return say_usage(
			command,
			"the benchmarks there are: transfer, plan, convert, copies, update, overhead");
	if (wanted.rounds != 0 &&
	    (wanted.rounds < BENCH_ROUNDS_MIN || wanted.rounds > BENCH_ROUNDS_MAX))
		return say_usage(command, "--rounds %u can't be: choose %d to %d", wanted.rounds,
				 BENCH_ROUNDS_MIN, BENCH_ROUNDS_MAX);
	const char **list = NULL;
	if (nics != NULL && split_list(&arena, nics, &list, &wanted.nic_count) != 0)
		return say_failure(&(struct ws_error){.text = "no memory for the list of NICs"});
	wanted.nics = list;
	int rc = bench(&wanted, &err);
	arena_release(&arena);
	if (rc != 0)
		return say_failure(&err);
	if (fflush(stdout) != 0)
		return say_failure(&(struct ws_error){.text = "cannot write the result"});
	return EXIT_OK;
}

const struct command command_bench = {
	.name = "bench",
	.summary = "Measures the product against a baseline, in turns, in one run",
	.usage =
		"transfer|plan|convert|copies|update|overhead [--transport NAME] [--what ROW] [--op-bytes SIZE] [--json]",
	.more = "transfer: the engine against bare fi_writemsg (fabric), memcpy and libfabric's shm (ipc),\n"
		"  ib_write_bw (verbs, between two hosts: start one with --listen, the other with --peer).\n"
		"plan: time and memory from manifests to a checked plan, 32 to 2,048 trainer ranks.\n"
		"convert: weights to FP8 and back on one core, by AVX-512, AVX2 and plain C, against memcpy.\n"
		"copies: from one GPU to another, and from its host, by call, copy engine and kernel.\n"
		"update: a model from one GPU to another, against one copy of its bytes and NCCL's broadcasts.\n"
		"overhead: updates of a few bytes within this host, by phase, against bare TCP round trips.\n",
	.run = bench_run,
};
