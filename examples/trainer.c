/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's step loop with weightsync in it: open, add params, start; then train and push.
 *
 *	usage: trainer HUB KEYFILE MANIFEST RANK WORLD REPLICA_RANKS STEPS
 *
 * HUB is where rank 0 makes the run's hub, tcp://127.0.0.1:7000.  "Training" fills params with the
 * step's number.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer_side/ws_trainer.h"

static struct ws_error err;

static int fail(void)
{
	fprintf(stderr, "trainer: %s\n", err.text);
	return 1;
}

/* The manifest's text, of at most 1 MiB. */
static int read_file(struct ws_trainer_options *options, const char *path)
{
	static char text[1 << 20];
	FILE *file = fopen(path, "r");
	if (file == NULL)
		return ws_fail(&err, -errno, "cannot open '%s': %s", path, strerror(errno));
	options->manifest = text;
	options->manifest_bytes = fread(text, 1, sizeof(text), file);
	fclose(file);
	return options->manifest_bytes < sizeof(text)
		       ? 0
		       : ws_fail(&err, -ENOSPC, "'%s' is longer than this example reads", path);
}

/* Every param in memory of its own, as a framework has them. */
static int add_params(struct ws_trainer *trainer, struct ws_memory *memory, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const char *name;
		enum ws_dtype dtype;
		uint64_t bytes;
		if (ws_trainer_param(trainer, i, &name, &dtype, &bytes) != 0 || bytes == 0)
			continue;
		if (ws_memory_alloc(&memory[i], bytes, &err) != 0)
			return -1;
		memory[i].bytes = bytes;
		if (ws_trainer_add(trainer, name, &memory[i], &err) != 0)
			return -1;
	}
	return 0;
}

static void train(struct ws_memory *memory, uint32_t count, int step)
{
	for (uint32_t i = 0; i < count; i++)
		if (memory[i].base != NULL)
			memset(memory[i].base, step, memory[i].bytes);
}

int main(int argc, char **argv)
{
	struct ws_trainer *trainer = NULL;
	struct ws_report report;

	if (argc != 8) {
		fprintf(stderr,
			"usage: trainer HUB KEYFILE MANIFEST RANK WORLD REPLICA_RANKS STEPS\n");
		return 2;
	}
	struct ws_trainer_options options = {.hub = argv[1],
					     .key_file = argv[2],
					     .rank = (uint32_t)atoi(argv[4]),
					     .world = (uint32_t)atoi(argv[5]),
					     .hub_here = atoi(argv[4]) == 0,
					     .replica_ranks = (uint32_t)atoi(argv[6])};
	if (read_file(&options, argv[3]) != 0 || ws_trainer_open(&trainer, &options, &err) != 0)
		return fail();
	uint32_t count = ws_trainer_param_count(trainer);
	struct ws_memory *memory = calloc(count, sizeof(*memory));
	if (memory == NULL || add_params(trainer, memory, count) != 0 ||
	    ws_trainer_start(trainer, 60000, &err) != 0)
		return fail();
	for (int step = 1; step <= atoi(argv[7]); step++) {
		train(memory, count, step);
		if (ws_trainer_push(trainer, (uint64_t)step, 60000, &report, &err) != 0)
			return fail();
		if (options.rank == 0)
			printf("step %d: version %d is live after %.3f s\n", step, step,
			       (double)report.total_ns / 1e9);
	}
	ws_trainer_close(trainer);
	for (uint32_t i = 0; i < count; i++)
		ws_memory_free(&memory[i]);
	free(memory);
	return 0;
}
