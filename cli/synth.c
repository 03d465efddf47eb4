/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightsync synth: a small checkpoint with a real model's names and kinds of shapes: sharded
 * safetensors files, model.safetensors.index.json, config.json.
 *
 * Element i of a tensor is a function of the seed, the tensor's name and i: finite, with signs,
 * exponents and mantissas that all differ, so that a misplaced row can't go unseen.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

#define SHARD_COUNT    3
#define CHUNK_ELEMENTS 65536

struct synth {
	struct arena arena;
	struct st_tensor *tensors;
	uint32_t count;
	uint64_t bytes, seed;
	const char *folder;
};

/* Exponents of about 2^-9 .. 2^-2, as weights have. */
static void fill(enum ws_dtype dtype, uint64_t hash, uint64_t first, uint64_t count, void *out)
{
	uint16_t *halves = out;
	uint32_t *words = out;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t bits = mix64(hash ^ (first + i) * 0x9e3779b97f4a7c15ULL);
		uint32_t exponent = 118 + (uint32_t)(bits >> 40 & 7);
		if (dtype == WS_F32)
			words[i] = (uint32_t)(bits & 1) << 31 | exponent << 23 |
				   (uint32_t)(bits >> 8 & 0x7fffff);
		else
			halves[i] =
				(uint16_t)((bits & 1) << 15 | exponent << 7 | (bits >> 8 & 0x7f));
	}
}

static uint32_t range_count(int32_t lo, int32_t hi)
{
	return lo < 0 ? 1 : (uint32_t)(hi - lo);
}

/* All tensors of the model, by rule, layer, expert. */
static int list_tensors(struct synth *synth, const struct model *model, struct ws_error *err)
{
	uint64_t total = 0;
	for (uint32_t r = 0; r < model_tensor_count(model); r++) {
		const struct tensor_rule *rule = model_tensor(model, r);
		total += (uint64_t)range_count(rule->layer_lo, rule->layer_hi) *
			 range_count(rule->expert_lo, rule->expert_hi);
	}
	synth->tensors = arena_array(&synth->arena, total, sizeof(*synth->tensors));
	if (synth->tensors == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %llu tensors",
			       (unsigned long long)total);
	for (uint32_t r = 0; r < model_tensor_count(model); r++) {
		const struct tensor_rule *rule = model_tensor(model, r);
		if (rule->dtype != WS_BF16 && rule->dtype != WS_F32)
			return ws_fail(err, -ENOTSUP, "'%s' is %s: synth makes bf16 and f32 only",
				       rule->name, ws_dtype_name(rule->dtype));
		uint32_t layers = range_count(rule->layer_lo, rule->layer_hi);
		uint32_t experts = range_count(rule->expert_lo, rule->expert_hi);
		for (uint32_t i = 0; i < layers * experts; i++) {
			struct st_tensor *tensor = &synth->tensors[synth->count++];
			char name[512];
			tensor_name(
				rule,
				rule->layer_lo < 0 ? -1 : rule->layer_lo + (int32_t)(i / experts),
				rule->expert_lo < 0 ? -1 : rule->expert_lo + (int32_t)(i % experts),
				name, sizeof(name));
			tensor->name = arena_copy(&synth->arena, name, strlen(name));
			if (tensor->name == NULL)
				return ws_fail(err, -ENOMEM, "no memory for the names");
			tensor->dtype = rule->dtype;
			tensor->dim_count = rule->dim_count;
			tensor->bytes = ws_dtype_bytes(rule->dtype);
			for (uint32_t d = 0; d < rule->dim_count; d++) {
				tensor->dim[d] = rule->dim[d];
				tensor->bytes *= rule->dim[d];
			}
			synth->bytes += tensor->bytes;
		}
	}
	return 0;
}

static int write_data(struct st_writer *file, const struct synth *synth,
		      const struct st_tensor *tensor, struct ws_error *err)
{
	static uint32_t chunk[CHUNK_ELEMENTS];
	uint64_t each = ws_dtype_bytes(tensor->dtype), count = tensor->bytes / each;
	uint64_t hash = digest_bytes(tensor->name, strlen(tensor->name), synth->seed);
	for (uint64_t done = 0; done < count;) {
		uint64_t now = MIN(count - done, (uint64_t)CHUNK_ELEMENTS);
		fill(tensor->dtype, hash, done, now, chunk);
		int rc = st_writer_add(file, chunk, now * each, err);
		if (rc != 0)
			return rc;
		done += now;
	}
	return 0;
}

static int write_shard(const struct synth *synth, const char *name, uint32_t first, uint32_t count,
		       struct progress_line *line, struct ws_error *err)
{
	struct st_writer file = ST_WRITER_INIT;
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", synth->folder, name);
	int rc = st_writer_begin(&file, path, &synth->tensors[first], count, err);
	for (uint32_t i = first; rc == 0 && i < first + count; i++) {
		rc = write_data(&file, synth, &synth->tensors[i], err);
		progress_line_say(line, "writing tensor %u of %u", i + 1, synth->count);
	}
	if (rc == 0)
		rc = st_writer_end(&file, err);
	st_writer_close(&file);
	return rc;
}

/* Shards of about equal bytes, and the index that names them. */
static int write_shards(const struct synth *synth, struct ws_error *err)
{
	struct writer index = WRITER_INIT(1u << 30);
	struct json_writer json = {.out = &index, .pretty = true};
	struct progress_line line;
	char name[64];
	uint32_t at = 0;
	int rc = 0;

	progress_line_start(&line);
	json_begin_object(&json, NULL);
	json_begin_object(&json, "metadata");
	json_put_u64(&json, "total_size", synth->bytes);
	json_end_object(&json);
	json_begin_object(&json, "weight_map");
	for (uint32_t shard = 0; rc == 0 && shard < SHARD_COUNT; shard++) {
		uint64_t bytes = 0;
		uint32_t first = at;
		snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", shard + 1,
			 SHARD_COUNT);
		for (; at < synth->count &&
		       (shard + 1 == SHARD_COUNT || bytes < synth->bytes / SHARD_COUNT);
		     at++) {
			bytes += synth->tensors[at].bytes;
			json_put_text(&json, synth->tensors[at].name, name);
		}
		rc = write_shard(synth, name, first, at - first, &line, err);
	}
	progress_line_end(&line);
	json_end_object(&json);
	json_end_object(&json);
	snprintf(name, sizeof(name), "model.safetensors.index.json");
	char path[4096];
	snprintf(path, sizeof(path), "%s/%s", synth->folder, name);
	if (rc == 0 && index.failed)
		rc = ws_fail(err, -ENOMEM, "no memory for the index");
	if (rc == 0)
		rc = file_write(path, index.bytes, index.count, 0644, err);
	writer_release(&index);
	return rc;
}

static int write_config(const struct synth *synth, const struct model *model, struct ws_error *err)
{
	struct writer config = WRITER_INIT(4u << 20);
	char path[4096];

	snprintf(path, sizeof(path), "%s/config.json", synth->folder);
	int rc = model_config(model, &config, err);
	if (rc == 0)
		rc = file_write(path, config.bytes, config.count, 0644, err);
	writer_release(&config);
	return rc;
}

int synth_write(const struct model *model, const char *folder, uint64_t seed, uint32_t *count_out,
		uint64_t *bytes_out, struct ws_error *err)
{
	struct synth synth = {.seed = seed, .folder = folder};

	int rc = list_tensors(&synth, model, err);
	if (rc == 0 && mkdir(folder, 0755) != 0 && errno != EEXIST)
		rc = ws_fail(err, -errno, "cannot make '%s': %s", folder, strerror(errno));
	if (rc == 0)
		rc = write_shards(&synth, err);
	if (rc == 0)
		rc = write_config(&synth, model, err);
	*count_out = synth.count;
	*bytes_out = synth.bytes;
	arena_release(&synth.arena);
	return rc;
}

/* "1/64" */
static int parse_scale(const char *text, uint64_t *numerator, uint64_t *denominator)
{
	char rest = '\0';
	unsigned long long a = 0, b = 1;
	int count = sscanf(text, "%llu/%llu%c", &a, &b, &rest);
	if ((count != 2 && !(count == 1 && strchr(text, '/') == NULL)) || a == 0 || b == 0 || a > b)
		return -EINVAL;
	*numerator = a;
	*denominator = b;
	return 0;
}

static int synth_run(const struct command *command, int argc, char **argv)
{
	const char *name = NULL, *scale = "1", *folder = NULL;
	uint64_t numerator = 1, denominator = 1, seed = 1, bytes = 0;
	uint32_t count = 0;
	struct option_spec options[] = {
		{"model", 0, OPTION_TEXT, &name, "NAME",
		 "a built-in model: qwen3-30b-a3b, llama-3-70b, .."},
		{"scale", 0, OPTION_TEXT, &scale, "A/B",
		 "share of the bytes: 1/64 (default 1: all)"},
		{"seed", 0, OPTION_U64, &seed, "N", "other contents (default 1)"},
		{"output", 'o', OPTION_TEXT, &folder, "DIR",
		 "where to write it; made if it isn't there"},
	};
	struct ws_error err = {0};
	struct model *model = NULL, *small = NULL;
	char size[32];

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (name == NULL || folder == NULL)
		return say_usage(command, "--model and -o are needed");
	if (parse_scale(scale, &numerator, &denominator) != 0)
		return say_usage(
			command,
			"option '--scale': '%s' is not a share of at most 1; a good one is 1/64",
			scale);
	int rc = model_builtin(&model, name, &err);
	if (rc == 0)
		rc = model_scale(&small, model, numerator, denominator, &err);
	if (rc == 0)
		rc = synth_write(small, folder, seed, &count, &bytes, &err);
	if (rc == 0)
		say("%s: %u tensors, %s", folder, count, format_bytes(bytes, size, sizeof(size)));
	model_free(small);
	model_free(model);
	return rc == 0 ? EXIT_OK : say_failure(&err);
}

const struct command command_synth = {
	.name = "synth",
	.summary = "Makes a small checkpoint with a real model's names and shapes",
	.usage = "--model NAME [--scale A/B] -o DIR",
	.more = "Layers go first (each kind is kept), then experts, vocabulary rows and widths.\n",
	.run = synth_run,
};
