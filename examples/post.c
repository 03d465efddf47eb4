/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An inference worker with a post step of its own: a kernel wants the sum of each row of a weight
 * beside the weight, and weightsync calls for it as soon as a new version of that has landed.
 *
 *	usage: post HUB KEYFILE MANIFEST
 *
 * The only rank of replica 0.  MANIFEST derives what the step makes:
 *
 *	"derived": [{"post": "row_sums", "each": {"L": "all"}, "mesh": "dense",
 *		"from": ["model.layers.{L}.self_attn.o_proj.weight"],
 *		"makes": [{"p": "o_proj_sums.{L}", "dtype": "f32", "shape": [256]}]}]
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "rollout_side/ws_rollout.h"

static struct ws_error err;
static struct ws_memory memory[4096];
static uint32_t count;

/* Of BF16 rows, in host memory.  Nothing reads what is made before the version is live. */
static int row_sums(void *arg, const struct ws_post *post, struct ws_error *error)
{
	const struct ws_post_param *weight = &post->params[0], *made = &post->made[0];
	const uint16_t *at = weight->memory.base;
	float *sums = made->memory.base;

	(void)arg;
	if (weight->dtype != WS_BF16 || weight->dim_count != 2 || made->dim[0] != weight->dim[0])
		return ws_fail(error, -EINVAL, "'%s' isn't a BF16 matrix of %llu rows",
			       weight->name, (unsigned long long)made->dim[0]);
	for (uint64_t row = 0; row < weight->dim[0] && !ws_post_cancelled(post); row++) {
		sums[row] = 0;
		for (uint64_t i = 0; i < weight->dim[1]; i++) {
			uint32_t bits = (uint32_t)*at++ << 16;
			float value;
			memcpy(&value, &bits, sizeof(value));
			sums[row] += value;
		}
	}
	return 0;
}

static int on_resume(void *arg, uint64_t version, struct ws_error *error)
{
	(void)arg, (void)error;
	printf("version %llu: the first row of the last weight sums up to %a\n",
	       (unsigned long long)version, (double)*(const float *)memory[count - 1].base);
	return 0;
}

/* What is derived comes behind the params. */
static int add_params(struct ws_rollout *rollout)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		const char *name;
		enum ws_dtype dtype;
		uint64_t bytes;
		rc = ws_rollout_param(rollout, i, &name, &dtype, &bytes);
		if (rc == 0)
			rc = ws_memory_alloc(&memory[i], bytes, &err);
		memory[i].bytes = bytes;
		if (rc == 0)
			rc = ws_rollout_add(rollout, name, &memory[i], &err);
	}
	return rc;
}

int main(int argc, char **argv)
{
	static char text[1 << 20];
	struct ws_rollout *rollout = NULL;

	if (argc != 4) {
		fprintf(stderr, "usage: post HUB KEYFILE MANIFEST\n");
		return 2;
	}
	FILE *file = fopen(argv[3], "r");
	if (file == NULL) {
		fprintf(stderr, "post: cannot open '%s': %s\n", argv[3], strerror(errno));
		return 1;
	}
	struct ws_rollout_options options = {
		.hub = argv[1], .key_file = argv[2], .world = 1, .manifest = text};
	struct ws_rollout_hooks hooks = {.on_resume = on_resume};
	options.manifest_bytes = fread(text, 1, sizeof(text), file);
	fclose(file);
	int rc = ws_rollout_open(&rollout, &options, &hooks, NULL, &err);
	if (rc == 0 && (count = ws_rollout_param_count(rollout)) > 4096)
		rc = ws_fail(&err, -ENOSPC, "%u params are more than this example holds", count);
	if (rc == 0)
		rc = add_params(rollout);
	if (rc == 0)
		rc = ws_rollout_on_post(rollout, "row_sums", row_sums, NULL, &err);
	if (rc == 0)
		rc = ws_rollout_start(rollout, 60000, &err);
	while (rc == 0) {
		poll(&(struct pollfd){.fd = ws_rollout_fd(rollout), .events = POLLIN}, 1, 100);
		rc = ws_rollout_step(rollout, &err);
	}
	if (rc != -ECANCELED)
		fprintf(stderr, "post: %s\n", err.text);
	ws_rollout_close(rollout);
	for (uint32_t i = 0; i < count && i < 4096; i++)
		ws_memory_free(&memory[i]);
	return rc == -ECANCELED ? 0 : 1;
}
