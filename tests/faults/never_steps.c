/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rollout rank whose engine is wired and then never calls ws_rollout_step: what the hub does
 * about it is tested by faults.py.  Built against the installed form of the library.
 *
 * usage: never_steps HUB KEY MANIFEST REPLICA RANK WORLD TRANSPORT NIC
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rollout_side/ws_rollout.h"

static char *read_text(const char *path, size_t *bytes_out)
{
	FILE *file = fopen(path, "rb");
	char *text = calloc(1, 1 << 20);

	if (file == NULL || text == NULL)
		exit(2);
	*bytes_out = fread(text, 1, 1 << 20, file);
	fclose(file);
	return text;
}

static int add_params(struct ws_rollout *rollout, struct ws_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < ws_rollout_param_count(rollout); i++) {
		const char *name;
		enum ws_dtype dtype;
		struct ws_memory memory = {.place = WS_HOST};
		if (ws_rollout_param(rollout, i, &name, &dtype, &memory.bytes) != 0)
			exit(2);
		if (memory.bytes == 0)
			continue;
		memory.base = calloc(1, memory.bytes);
		if (memory.base == NULL)
			exit(2);
		rc = ws_rollout_add(rollout, name, &memory, err);
	}
	return rc;
}

int main(int argc, char **argv)
{
	struct ws_error err = {0};
	struct ws_rollout *rollout = NULL;
	struct ws_rollout_hooks hooks = {0};

	if (argc != 9)
		return 2;
	struct ws_rollout_options options = {
		.hub = argv[1],
		.key_file = argv[2],
		.replica = (uint32_t)atoi(argv[4]),
		.rank = (uint32_t)atoi(argv[5]),
		.world = (uint32_t)atoi(argv[6]),
		.transport = argv[7],
		.nics = (const char *const *)&argv[8],
		.nic_count = 1,
	};
	options.manifest = read_text(argv[3], &options.manifest_bytes);
	int rc = ws_rollout_open(&rollout, &options, &hooks, NULL, &err);
	if (rc == 0)
		rc = add_params(rollout, &err);
	if (rc == 0)
		rc = ws_rollout_start(rollout, 30000, &err);
	fprintf(stderr, "never_steps: %s\n", rc == 0 ? "wired" : err.text);
	if (rc != 0)
		return 1;
	for (;;)
		pause();
}
