/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: canonical tensors as rules and the numbers of a Hugging Face config.  Built-in ones
 * come from models/; any checkpoint's listing is compressed into the same kind of rules.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

/* NAME of the command line and the file below models/.  The plain name is the logical model in
 * BF16; what a quantized checkpoint holds has a suffix. */
static const struct {
	const char *name, *file;
} model_files[] = {
	{"llama-3-70b", "models/llama-3-70b"},
	{"qwen3-32b", "models/qwen3-32b"},
	{"qwen3-30b-a3b", "models/qwen3-30b-a3b"},
	{"qwen3-235b-a22b", "models/qwen3-235b-a22b"},
	{"deepseek-v3", "models/deepseek-v3-bf16"},
	{"kimi-k2", "models/kimi-k2-bf16"},
	{"glm-4.5", "models/glm-4.5"},
	{"glm-4.6", "models/glm-4.6"},
	{"gpt-oss-120b", "models/gpt-oss-120b-bf16"},
	{"llama-3-70b-fp8-block", "models/llama-3-70b-fp8block"},
	{"qwen3-32b-fp8", "models/qwen3-32b-fp8"},
	{"qwen3-30b-a3b-fp8", "models/qwen3-30b-a3b-fp8"},
	{"qwen3-235b-a22b-fp8", "models/qwen3-235b-a22b-fp8"},
	{"deepseek-v3-fp8", "models/deepseek-v3"},
	{"kimi-k2-fp8", "models/kimi-k2"},
	{"kimi-k2-int4", "models/kimi-k2-thinking-int4"},
	{"glm-4.5-fp8-block", "models/glm-4.5-fp8-block"},
	{"glm-4.5-fp8-channel", "models/glm-4.5-fp8-channel"},
	{"gpt-oss-120b-mxfp4", "models/gpt-oss-120b"},
};

static const char *const names_list[] = {"llama-3-70b",
					 "qwen3-32b",
					 "qwen3-30b-a3b",
					 "qwen3-235b-a22b",
					 "deepseek-v3",
					 "kimi-k2",
					 "glm-4.5",
					 "glm-4.6",
					 "gpt-oss-120b",
					 "llama-3-70b-fp8-block",
					 "qwen3-32b-fp8",
					 "qwen3-30b-a3b-fp8",
					 "qwen3-235b-a22b-fp8",
					 "deepseek-v3-fp8",
					 "kimi-k2-fp8",
					 "kimi-k2-int4",
					 "glm-4.5-fp8-block",
					 "glm-4.5-fp8-channel",
					 "gpt-oss-120b-mxfp4",
					 NULL};

static_assert(ARRAY_SIZE(names_list) == ARRAY_SIZE(model_files) + 1, "one name per file");

const char *const *model_names(void)
{
	return names_list;
}

const char *model_name(const struct model *model)
{
	return model->name;
}

uint32_t model_tensor_count(const struct model *model)
{
	return model->tensor_count;
}

const struct tensor_rule *model_tensor(const struct model *model, uint32_t index)
{
	return &model->tensors[index];
}

void model_free(struct model *model)
{
	if (model == NULL)
		return;
	arena_release(&model->arena);
	mem_free(model);
}

int64_t model_number(const struct model *model, const char *key, int64_t fallback)
{
	return json_integer(model->config, key, fallback);
}

bool model_has(const struct model *model, const char *name, int32_t layer)
{
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *rule = &model->tensors[i];
		if ((rule->layer_lo < 0 || (rule->layer_lo <= layer && layer < rule->layer_hi)) &&
		    strcmp(rule->name, name) == 0)
			return true;
	}
	return false;
}

bool model_is_alias(const struct tensor_rule *rule)
{
	return strcmp(rule->name, "model.layers.{L}.embed_tokens.weight") == 0 ||
	       strcmp(rule->name, "model.layers.{L}.shared_head.head.weight") == 0;
}

uint32_t model_experts(const struct tensor_rule *rule)
{
	if (rule->expert_lo >= 0)
		return (uint32_t)(rule->expert_hi - rule->expert_lo);
	return strstr(rule->name, ".experts.") != NULL ? (uint32_t)rule->dim[0] : 0;
}

static bool ends_with(const char *text, const char *end)
{
	size_t count = strlen(text), end_count = strlen(end);
	return count >= end_count && strcmp(text + count - end_count, end) == 0;
}

/* Buffers that some checkpoints carry and every loader skips. */
static bool is_skipped(const char *name)
{
	return ends_with(name, ".rotary_emb.inv_freq");
}

int model_config(const struct model *model, struct writer *out, struct ws_error *err)
{
	struct json_writer json = {.out = out, .pretty = true};
	json_put_value(&json, NULL, model->config);
	if (out->failed)
		return ws_fail(err, -ENOMEM, "out of memory for the config");
	return 0;
}

int model_new(struct model **model_out, const char *name, const void *config, size_t bytes,
	      struct ws_error *err)
{
	static const struct json_limits limits = {
		.bytes_max = 8u << 20, .depth_max = 32, .node_count_max = 1u << 20};
	struct model *model = mem_alloc(sizeof(*model));
	*model_out = model;
	if (model == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for model '%s'", name);
	model->name = arena_copy(&model->arena, name, strlen(name));
	if (model->name == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for model '%s'", name);
	int rc = json_parse(&model->arena, config, bytes, &limits, &model->config, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "the config of model '%s'", name);
	if (model->config->type != JSON_OBJECT)
		return ws_fail(err, -EBADMSG, "the config of model '%s' isn't an object", name);
	return 0;
}

/* Number of layers by the config; by the tensors where the config says nothing. */
static void count_layers(struct model *model)
{
	int32_t most = 0;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		most = MAX(most, model->tensors[i].layer_hi);
	int64_t count = model_number(model, "num_hidden_layers", most);
	model->layer_count = count < 0 || count > most ? most : (int32_t)count;
}

static int read_tensors(struct model *model, const struct json *tensors, struct ws_error *err)
{
	model->tensors = arena_array(&model->arena, tensors->count, sizeof(*model->tensors));
	if (model->tensors == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for model '%s'", model->name);
	for (const struct json *it = tensors->first; it != NULL; it = it->next) {
		const char *name = json_text(it, "name", "");
		const struct json *layers = json_get(it, "layers"),
				  *experts = json_get(it, "experts");
		struct tensor_rule *rule = &model->tensors[model->tensor_count];
		if (is_skipped(name))
			continue;
		*rule = (struct tensor_rule){.name = arena_copy(&model->arena, name, strlen(name)),
					     .dtype = ws_dtype_parse(json_text(it, "dtype", "")),
					     .layer_lo = -1,
					     .layer_hi = -1,
					     .expert_lo = -1,
					     .expert_hi = -1};
		if (rule->name == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for model '%s'", model->name);
		for (const struct json *d = json_get(it, "shape")->first; d != NULL; d = d->next)
			rule->dim[rule->dim_count++] = (uint64_t)d->integer;
		if (layers != NULL) {
			rule->layer_lo = (int32_t)json_at(layers, 0)->integer;
			rule->layer_hi = (int32_t)json_at(layers, 1)->integer;
		}
		if (experts != NULL) {
			rule->expert_lo = (int32_t)json_at(experts, 0)->integer;
			rule->expert_hi = (int32_t)json_at(experts, 1)->integer;
		}
		model->tensor_count++;
	}
	return 0;
}

/* The config of the logical model: without the quantization of the file it was cast from. */
static bool put_config(struct writer *out, const struct json *file)
{
	struct json_writer json = {.out = out};
	bool plain = strcmp(json_text(file, "checkpoint", ""), "BF16") == 0;
	json_begin_object(&json, NULL);
	for (const struct json *it = json_get(file, "config")->first; it != NULL; it = it->next) {
		if (!plain || strcmp(it->key, "quantization_config") != 0)
			json_put_value(&json, it->key, it);
	}
	json_end_object(&json);
	return !out->failed;
}

static int read_builtin(struct model **model_out, const char *name, const char *text,
			struct ws_error *err)
{
	static const struct json_limits limits = {
		.bytes_max = 1u << 20, .depth_max = 16, .node_count_max = 1u << 16};
	struct arena arena = {0};
	struct writer config = WRITER_INIT(1u << 20);
	const struct json *file;
	int rc = json_parse(&arena, text, strlen(text), &limits, &file, err);
	if (rc == 0 && !put_config(&config, file))
		rc = ws_fail(err, -ENOMEM, "out of memory for model '%s'", name);
	if (rc == 0)
		rc = model_new(model_out, name, config.bytes, config.count, err);
	if (rc == 0)
		rc = read_tensors(*model_out, json_get(file, "tensors"), err);
	if (rc == 0)
		count_layers(*model_out);
	writer_release(&config);
	arena_release(&arena);
	return rc;
}

int model_builtin(struct model **model_out, const char *name, struct ws_error *err)
{
	char list[480];
	int used = 0; /* the names fit: there is a test */
	*model_out = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(model_files); i++) {
		if (strcmp(model_files[i].name, name) != 0) {
			used += snprintf(list + used, sizeof(list) - (size_t)used, "%s%s",
					 i > 0 ? ", " : "", model_files[i].name);
			continue;
		}
		const struct builtin_file *file = builtin_files;
		while (strcmp(file->name, model_files[i].file) != 0)
			file++;
		int rc = read_builtin(model_out, name, file->text, err);
		if (rc != 0) {
			model_free(*model_out);
			*model_out = NULL;
		}
		return rc;
	}
	return ws_fail(err, -ENOENT, "no model is named '%s'; there are %s", name, list);
}

/* One tensor of a checkpoint, its numbers taken out of its name. */
struct entry {
	const char *rule; /* with {L} and {E} */
	int32_t layer, expert;
	const struct tensor_listing *listing;
};

static int compare_entries(const void *left, const void *right)
{
	const struct entry *a = left, *b = right;
	int order = strcmp(a->rule, b->rule);
	if (order != 0)
		return order;
	if (a->layer != b->layer)
		return a->layer < b->layer ? -1 : 1;
	return a->expert < b->expert ? -1 : a->expert > b->expert;
}

static bool same_shape(const struct tensor_rule *rule, const struct tensor_listing *listing)
{
	return rule->dtype == listing->dtype && rule->dim_count == listing->dim_count &&
	       memcmp(rule->dim, listing->dim, rule->dim_count * sizeof(rule->dim[0])) == 0;
}

/* Goes through entries in order: first runs of experts at one layer, then the same run at
 * following layers. */
static void compress(struct model *model, const struct entry *entries, uint32_t count)
{
	for (uint32_t i = 0; i < count;) {
		const struct entry *first = &entries[i];
		struct tensor_rule run = {.name = first->rule,
					  .dtype = first->listing->dtype,
					  .dim_count = first->listing->dim_count,
					  .layer_lo = first->layer,
					  .layer_hi = first->layer < 0 ? -1 : first->layer + 1,
					  .expert_lo = first->expert,
					  .expert_hi = first->expert < 0 ? -1 : first->expert + 1};
		memcpy(run.dim, first->listing->dim, sizeof(run.dim));
		for (i++;
		     i < count && strcmp(entries[i].rule, run.name) == 0 &&
		     entries[i].layer == first->layer && run.expert_hi >= 0 &&
		     entries[i].expert == run.expert_hi && same_shape(&run, entries[i].listing);
		     i++)
			run.expert_hi++;
		uint32_t r = model->tensor_count;
		while (r > 0 && strcmp(model->tensors[r - 1].name, run.name) == 0) {
			struct tensor_rule *rule = &model->tensors[--r];
			if (rule->layer_hi == run.layer_lo && run.layer_lo >= 0 &&
			    rule->expert_lo == run.expert_lo && rule->expert_hi == run.expert_hi &&
			    same_shape(rule, first->listing)) {
				rule->layer_hi = run.layer_hi;
				r = UINT32_MAX;
				break;
			}
		}
		if (r != UINT32_MAX)
			model->tensors[model->tensor_count++] = run;
	}
}

static int read_listing(struct model *model, const struct tensor_listing *tensors, uint32_t count,
			struct entry *entries, struct ws_error *err)
{
	uint32_t kept = 0;
	assert(model != NULL);
	for (uint32_t i = 0; i < count; i++) {
		const struct tensor_listing *listing = &tensors[i];
		char name[NAME_BYTES_MAX];
		if (is_skipped(listing->name))
			continue;
		if (strlen(listing->name) + 16 > sizeof(name) || strchr(listing->name, '{') != NULL)
			return ws_fail(err, -EINVAL,
				       "tensor name '%.80s' is too long or has a brace",
				       listing->name);
		if (listing->dtype == WS_NONE || listing->dim_count < 1 ||
		    listing->dim_count > BOX_DIM_MAX)
			return ws_fail(
				err, -ENOTSUP,
				"tensor '%s': weightsync moves tensors of 1 to %d dims and known dtypes",
				listing->name, BOX_DIM_MAX);
		snprintf(name, sizeof(name), "%s", listing->name);
		struct entry *entry = &entries[kept++];
		entry->listing = listing;
		entry->layer = take_number(name, sizeof(name), "layers.", "{L}");
		entry->expert = take_number(name, sizeof(name), "experts.", "{E}");
		entry->rule = arena_copy(&model->arena, name, strlen(name));
		if (entry->rule == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for %u tensors", count);
	}
	qsort(entries, kept, sizeof(*entries), compare_entries);
	model->tensors = arena_array(&model->arena, kept, sizeof(*model->tensors));
	if (model->tensors == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u tensors", count);
	compress(model, entries, kept);
	count_layers(model);
	return 0;
}

int model_from_tensors(struct model **model_out, const char *name, const void *config_json,
		       size_t bytes, const struct tensor_listing *tensors, uint32_t count,
		       struct ws_error *err)
{
	struct entry *entries = mem_alloc(count * sizeof(*entries));
	*model_out = NULL;
	if (entries == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u tensors", count);
	int rc = model_new(model_out, name, config_json, bytes, err);
	if (rc == 0)
		rc = read_listing(*model_out, tensors, count, entries, err);
	mem_free(entries);
	if (rc != 0) {
		model_free(*model_out);
		*model_out = NULL;
	}
	return rc;
}
