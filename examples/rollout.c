/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An inference worker's loop with weightsync in it: open, add buffers, start; then step.
 *
 *	usage: rollout HUB KEYFILE MANIFEST REPLICA RANK WORLD
 *
 * It "generates" by looking at the first byte of its first weight, until the run ends.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout_side/ws_rollout.h"

static struct ws_error err;

static int fail(void)
{
	fprintf(stderr, "rollout: %s\n", err.text);
	return 1;
}

static int on_pause(void *arg, uint64_t version, struct ws_error *error)
{
	(void)arg, (void)version, (void)error;
	return 0; /* between two steps nothing runs: we are paused.  Return -EAGAIN while requests
		     run */
}

static int on_resume(void *arg, uint64_t version, struct ws_error *error)
{
	const struct ws_memory *first = arg;
	(void)error;
	printf("version %llu: the first weight begins with %u\n", (unsigned long long)version,
	       *(const unsigned char *)first->base);
	return 0;
}

/* The manifest's text, of at most 1 MiB. */
static int read_file(struct ws_rollout_options *options, const char *path)
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

static int add_params(struct ws_rollout *rollout, struct ws_memory *memory, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const char *name;
		enum ws_dtype dtype;
		uint64_t bytes;
		if (ws_rollout_param(rollout, i, &name, &dtype, &bytes) != 0 || bytes == 0)
			continue;
		if (ws_memory_alloc(&memory[i], bytes, &err) != 0)
			return -1;
		memory[i].bytes = bytes;
		if (ws_rollout_add(rollout, name, &memory[i], &err) != 0)
			return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct ws_memory memory[4096];
	struct ws_rollout_hooks hooks = {.on_pause = on_pause, .on_resume = on_resume};
	struct ws_rollout *rollout = NULL;

	if (argc != 7) {
		fprintf(stderr, "usage: rollout HUB KEYFILE MANIFEST REPLICA RANK WORLD\n");
		return 2;
	}
	struct ws_rollout_options options = {.hub = argv[1],
					     .key_file = argv[2],
					     .replica = (uint32_t)atoi(argv[4]),
					     .rank = (uint32_t)atoi(argv[5]),
					     .world = (uint32_t)atoi(argv[6])};
	if (read_file(&options, argv[3]) != 0 ||
	    ws_rollout_open(&rollout, &options, &hooks, memory, &err) != 0)
		return fail();
	uint32_t count = ws_rollout_param_count(rollout);
	if (count > 4096)
		ws_fail(&err, -ENOSPC, "%u params are more than this example holds", count);
	if (count > 4096 || add_params(rollout, memory, count) != 0 ||
	    ws_rollout_start(rollout, 60000, &err) != 0)
		return fail();
	for (int rc = 0; rc != -ECANCELED;) {
		/* generate(), while ws_rollout_serving(rollout); samples carry
		 * ws_rollout_version(rollout) */
		poll(&(struct pollfd){.fd = ws_rollout_fd(rollout), .events = POLLIN}, 1, 100);
		rc = ws_rollout_step(rollout, &err);
		if (rc != 0 && rc != -ECANCELED)
			return fail();
	}
	ws_rollout_close(rollout);
	for (uint32_t i = 0; i < count; i++)
		ws_memory_free(&memory[i]);
	return 0;
}
