/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One param of a Megatron dump: its name with global numbers, what it is made of, and whether its
 * partition attributes say the same.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/import_megatron.h"

#define VOCAB_ROWS_MAX (1ll << 40)

/* The preset of such a model, then the others: Megatron's own modules name a norm like another
 * family's. */
bool megatron_presets(struct megatron *dump)
{
	static const struct json_limits limits = {
		.bytes_max = 1u << 20, .depth_max = 32, .node_count_max = 1u << 16};
	static const char prefix[] = "presets/megatron-";
	struct import *import = dump->import;
	const struct builtin_file *own = preset_find(import->model, "megatron");
	for (uint32_t pass = 0; pass < 2; pass++) {
		for (const struct builtin_file *it = builtin_files; it->name != NULL; it++) {
			const struct json *json = NULL;
			if (strncmp(it->name, prefix, sizeof(prefix) - 1) != 0 ||
			    (it == own) != (pass == 0) ||
			    dump->preset_count == ARRAY_SIZE(dump->presets))
				continue;
			if (json_parse(&import->arena, it->text, strlen(it->text), &limits, &json,
				       NULL) != 0)
				return !(import->out_of_memory = true);
			dump->presets[dump->preset_count++] = json_get(json, "params");
		}
	}
	return true;
}

/* The last stage's head where the model has none of its own: the embedding. */
static const struct json *tie(struct import *import, const struct json *x)
{
	const struct json *items[16];
	uint32_t count = 0;
	if (x->type == JSON_STRING && strcmp(x->text, "lm_head.weight") == 0 &&
	    !model_has(import->model, x->text, -1))
		return import_word(import, "model.embed_tokens.weight");
	if (x->type != JSON_ARRAY || x->count > ARRAY_SIZE(items))
		return x;
	for (const struct json *it = x->first; it != NULL; it = it->next)
		items[count++] = tie(import, it);
	return import_list(import, count, items);
}

/* A param as dumped, its name in pieces. */
struct megatron_param {
	const char *name; /* as dumped, without wrappers */
	char template[NAME_BYTES_MAX + 32];
	char known[NAME_BYTES_MAX + 32]; /* the same as presets spell it */
	int32_t layer, expert;		 /* global layer; local expert */
	const struct json *json, *shape;
	bool parallel, of_expert;
	int64_t dim, stride;
};

static void replace(char *text, size_t room, const char *part, const char *with)
{
	size_t from = strlen(part), to = strlen(with);
	char *at = strstr(text, part);
	if (at == NULL || strlen(text) + to - from >= room)
		return;
	memmove(at + to, at + from, strlen(at + from) + 1);
	for (size_t i = 0; i < to; i++)
		at[i] = with[i];
}

/* "...experts.linear_fc1.weight12" -> "...weight{e}", 12. */
static int32_t take_expert(char *text, size_t room)
{
	size_t bytes = strlen(text), digits = 0;
	int32_t expert = take_number(text, room, "local_experts.", "{e}");
	if (expert >= 0 || strstr(text, ".experts.") == NULL)
		return expert;
	while (digits < 6 && digits < bytes && isdigit((unsigned char)text[bytes - digits - 1]))
		digits++;
	if (digits == 0 || bytes - digits + 4 > room)
		return -1;
	expert = (int32_t)strtol(text + bytes - digits, NULL, 10);
	snprintf(text + bytes - digits, 4, "{e}");
	return expert;
}

/* Global numbers for local ones; false and a finding where a chunk has no such layer. */
static bool take_numbers(const struct megatron *dump, struct megatron_param *param)
{
	struct import *import = dump->import;
	size_t room = sizeof(param->template);
	snprintf(param->template, NAME_BYTES_MAX, "%s", param->name);
	param->layer = -1;
	if (strncmp(param->template, "mtp.layers.", 11) == 0) {
		int32_t depth = take_number(param->template, room, "layers.", "{L-nl}");
		param->layer = depth < 0 ? -1 : import->model->layer_count + depth;
		replace(param->template, room, "mtp.layers.{L-nl}.transformer_layer.",
			"decoder.layers.{L}.");
		replace(param->template, room, "mtp.layers.{L-nl}.mtp_model_layer.",
			"decoder.layers.{L}.");
	} else {
		int32_t local = take_number(param->template, room, "layers.", "{L}");
		const struct json *global =
			local < 0 ? NULL : json_at(dump->layers, (uint32_t)local);
		param->layer = global == NULL ? -1 : (int32_t)global->integer;
		if (local >= 0 && global == NULL) {
			findings_add(
				&import->found, "stage", param->name,
				"it is local layer %d, and its chunk at rank %u lists %u layers",
				local, dump->rank, dump->layers->count);
			return false;
		}
	}
	param->expert = take_expert(param->template, room);
	memcpy(param->known, param->template, sizeof(param->known));
	replace(param->known, room, ".local_experts.{e}.linear_fc1.weight",
		".linear_fc1.weight{e}");
	replace(param->known, room, ".local_experts.{e}.linear_fc2.weight",
		".linear_fc2.weight{e}");
	return true;
}

/* The name in the manifest of this rank's param. */
static const char *global_name(const struct megatron *dump, const struct megatron_param *param)
{
	char text[NAME_BYTES_MAX + 64], number[16];
	snprintf(text, sizeof(text), "%s", param->template);
	snprintf(number, sizeof(number), "%d", param->layer);
	replace(text, sizeof(text), "{L}", number);
	snprintf(number, sizeof(number), "%d", param->layer - dump->import->model->layer_count);
	replace(text, sizeof(text), "{L-nl}", number);
	snprintf(number, sizeof(number), "%d", param->expert);
	replace(text, sizeof(text), "{e}", number);
	const char *copy = arena_copy(&dump->import->arena, text, strlen(text));
	dump->import->out_of_memory = dump->import->out_of_memory || copy == NULL;
	return copy;
}

/* The preset's param whose tensors the model has, and its place among all. */
static const struct json *find_preset(const struct megatron *dump,
				      const struct megatron_param *param, const struct json **x_out,
				      uint32_t *order_out)
{
	*order_out = 0;
	for (uint32_t i = 0; i < dump->preset_count; i++) {
		for (const struct json *it = dump->presets[i]->first; it != NULL;
		     it = it->next, ++*order_out) {
			if (strcmp(json_text(it, "p", ""), param->known) != 0)
				continue;
			*x_out = tie(dump->import, json_get(it, "x"));
			if (*x_out != NULL && import_has(dump->import, *x_out, param->layer))
				return it;
		}
	}
	return NULL;
}

/* The dim that tensor parallelism cuts in an expression; -1: none.  As deep as the preset. */
static int64_t cut_dim(const struct json *x)
{
	if (x->type != JSON_ARRAY || x->first == NULL)
		return -1;
	const struct json *axis = json_at(x, 3);
	if (x->first->type == JSON_STRING && strcmp(x->first->text, "s") == 0 && axis != NULL &&
	    axis->type == JSON_STRING &&
	    (strcmp(axis->text, "tp") == 0 || strcmp(axis->text, "etp") == 0))
		return json_at(x, 2)->integer;
	for (const struct json *it = x->first; it != NULL; it = it->next) {
		int64_t dim = cut_dim(it);
		if (dim >= 0)
			return dim;
	}
	return -1;
}

/* What attributes say against what the preset does.  Missing marks are left to the shape: grouped
 * expert weights often have none. */
static void check_attributes(const struct megatron *dump, const struct megatron_param *param,
			     const struct import_rule *rule)
{
	struct findings *found = &dump->import->found;
	int64_t cut = cut_dim(rule->x);
	bool fused = strcmp(rule->x->first->text, "c") == 0;
	int64_t parts = fused ? (int64_t)rule->x->count - 2 : 1;
	const char *mode = json_text(param->json, "parallel_mode", "");
	if (param->parallel && cut < 0)
		findings_add(found, "partition", param->name,
			     "rank %u has it as tensor_model_parallel, and Megatron's own is whole "
			     "on every tensor-parallel rank",
			     dump->rank);
	else if (param->parallel && param->dim != cut)
		findings_add(found, "partition", param->name,
			     "rank %u has partition_dim %lld, and Megatron's own is cut along dim "
			     "%lld",
			     dump->rank, (long long)param->dim, (long long)cut);
	else if (param->parallel && param->stride != 1 && param->stride != parts)
		findings_add(found, "partition", param->name,
			     "rank %u has partition_stride %lld, and it is made of %lld part%s",
			     dump->rank, (long long)param->stride, (long long)parts,
			     parts == 1 ? "" : "s");
	if ((strcmp(mode, "column") == 0 && cut != 0) || (strcmp(mode, "row") == 0 && cut != 1))
		findings_add(found, "partition", param->name,
			     "rank %u has parallel_mode '%s', and Megatron's own isn't", dump->rank,
			     mode);
	if (param->of_expert && rule->grid == 0)
		findings_add(found, "partition", param->name,
			     "rank %u has it as an expert's, and Megatron's own isn't", dump->rank);
}

/* A name of the dump's own table: its parts are cut one by one where the stride says so. */
static const struct json *cut_by_attributes(struct import *import,
					    const struct megatron_param *param,
					    const struct json *whole)
{
	const char *axis = param->of_expert ? "etp" : "tp";
	const struct json *items[GROUP_PART_MAX];
	uint32_t count = 0;
	if (!param->parallel)
		return whole;
	if (param->stride <= 1)
		return import_split(import, whole, (uint32_t)param->dim, axis, false);
	if (whole->type != JSON_ARRAY || whole->count != param->stride + 2 ||
	    whole->count > GROUP_PART_MAX || strcmp(whole->first->text, "c") != 0) {
		findings_add(
			&import->found, "partition", param->name,
			"partition_stride %lld needs [\"c\", dim, part, ..] of as many parts in "
			"the dump's \"names\"",
			(long long)param->stride);
		return NULL;
	}
	for (const struct json *it = whole->first; it != NULL; it = it->next, count++)
		items[count] =
			count < 2 ? it
				  : import_split(import, it, (uint32_t)param->dim, axis, false);
	return import_list(import, count, items);
}

/* Padded vocabulary: its divisor is Megatron's default where that gives these rows. */
static void find_padding(const struct megatron *dump, const struct megatron_param *param)
{
	struct import *import = dump->import;
	const struct model *model = import->model;
	uint64_t tp = MAX(dump->axes[MEGATRON_TP].size, 1), vocabulary = 0;
	int64_t rows = param->shape->first->integer;
	if (strcmp(param->known, "embedding.word_embeddings.weight") != 0 &&
	    strcmp(param->known, "output_layer.weight") != 0)
		return;
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		if (strcmp(model->tensors[i].name, "model.embed_tokens.weight") == 0)
			vocabulary = model->tensors[i].dim[0];
	}
	if (rows < 1 || rows > VOCAB_ROWS_MAX)
		return;
	uint64_t by_128 = (vocabulary + 128 * tp - 1) / (128 * tp) * 128;
	import->vocab_div = by_128 == (uint64_t)rows ? 128 : (uint64_t)rows;
}

/* Fills a new rule; false where nobody knows the name. */
static bool make_rule(struct megatron *dump, const struct megatron_param *param,
		      struct import_rule *rule)
{
	struct import *import = dump->import;
	const struct json *x = NULL;
	const struct json *preset = find_preset(dump, param, &x, &rule->order);
	rule->preset = preset;
	rule->grid = preset == NULL ? param->of_expert
				    : strcmp(json_text(preset, "mesh", ""), "expert") == 0;
	if (preset == NULL) {
		const struct json *own = json_get(json_get(import->dump, "names"), param->template);
		if (own == NULL || !import_has(import, own, param->layer))
			return false;
		x = cut_by_attributes(import, param, own);
	}
	if (rule->grid >= import->grid_count) {
		findings_add(&import->found, "mesh", param->name,
			     "it is an expert's, and \"groups\" has neither ep nor etp nor edp");
		x = NULL;
	}
	rule->x = rule->whole = x;
	return true;
}

static void say_unknown(const struct megatron *dump, const struct megatron_param *param)
{
	struct nearest nearest = {.name = param->template};
	bool looks = dump->import->found.count < NEAREST_FINDINGS_MAX;
	for (uint32_t i = 0; i < dump->preset_count && looks; i++) {
		for (const struct json *it = dump->presets[i]->first; it != NULL; it = it->next)
			nearest_try(&nearest, json_text(it, "p", ""));
	}
	if (nearest.best != NULL && strcmp(nearest.best, param->template) != 0)
		findings_add(&dump->import->found, "name", param->name,
			     "Megatron has no such param; did you mean '%s'?", nearest.best);
	else if (nearest.best != NULL)
		findings_add(&dump->import->found, "name", param->name,
			     "model '%s' doesn't have all tensors that it is made of",
			     dump->import->model->name);
	else
		findings_add(&dump->import->found, "name", param->name,
			     "Megatron has no such param; say what '%s' is made of in the dump's "
			     "\"names\"",
			     param->template);
}

void megatron_param(struct megatron *dump, const struct json *json)
{
	struct import *import = dump->import;
	struct megatron_param param = {.json = json, .shape = json_get(json, "shape")};
	const char *name = import_text(import, json, "name", dump->where);
	if (name == NULL || import_ignores(import, name))
		return;
	param.name = import_name(import, name);
	enum ws_dtype dtype = import_dtype(import, json, name);
	param.parallel = json_true(json, "tensor_model_parallel");
	param.of_expert = json_true(json, "expert");
	param.dim = json_integer(json, "partition_dim", -1);
	param.stride = json_integer(json, "partition_stride", 1);
	if (param.name == NULL || dtype == WS_NONE || !import_shape(import, param.shape, name))
		return;
	if (param.parallel && (param.dim < 0 || param.dim >= param.shape->count))
		return findings_add(&import->found, "partition", name,
				    "tensor_model_parallel needs partition_dim below %u",
				    param.shape->count);
	if (!take_numbers(dump, &param))
		return;
	/* Megatron marks an expert's params only where ep > 1. */
	param.of_expert = param.of_expert || param.expert >= 0;
	const char *template = arena_copy(&import->arena, param.template, strlen(param.template));
	struct import_rule *rule =
		template == NULL ? NULL : import_rule(import, template, (uint64_t)dtype);
	if (rule == NULL)
		return;
	if (rule->x == NULL) {
		if (!make_rule(dump, &param, rule))
			return say_unknown(dump, &param);
		rule->dtype = dtype;
		rule->each_layer = param.layer >= 0;
		rule->each_expert = param.expert >= 0;
		rule->stages = import_alloc(import, import->stage_count, 1);
	}
	if (rule->x == NULL || rule->stages == NULL)
		return;
	if (!import_has(import, rule->x, param.layer))
		return say_unknown(dump, &param);
	if (rule->preset != NULL)
		check_attributes(dump, &param, rule);
	if (param.layer >= 0 && param.layer < (int32_t)import->layer_end)
		import->stage_of[param.layer] = dump->stage;
	rule->stages[dump->stage] = 1;
	find_padding(dump, &param);
	import_count(import, rule, param.layer);
	import_claim(import, &import->parts, global_name(dump, &param), dump->rank, param.shape);
}
