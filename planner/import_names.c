/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dumped name means: wrappers of modules are taken off, the layer and the expert taken
 * out, and what is left is a canonical tensor, a name of the dump's own table, or one of those
 * that frameworks are known for.
 */
#include <stdio.h>
#include <string.h>

#include "planner/import.h"

#define TENSORS_READ_MAX 256 /* `t` nodes of one expression */

bool import_ignores(const struct import *import, const char *name)
{
	static const char *const ends[] = {"inv_freq", "_extra_state", "local_tokens_per_expert",
					   NULL};
	size_t bytes = strlen(name);
	for (uint32_t i = 0; ends[i] != NULL; i++) {
		size_t end = strlen(ends[i]);
		if (bytes >= end && strcmp(name + bytes - end, ends[i]) == 0)
			return true;
	}
	return strcmp(name, "lm_head.weight") == 0 && !model_has(import->model, name, -1);
}

static void drop(char *name, const char *part)
{
	size_t bytes = strlen(part);
	for (char *at = strstr(name, part); at != NULL; at = strstr(at, part)) {
		if (at == name || at[-1] == '.')
			memmove(at, at + bytes, strlen(at + bytes) + 1);
		else
			at += bytes;
	}
}

static const char *keep(struct import *import, const char *text)
{
	const char *copy = arena_copy(&import->arena, text, strlen(text));
	import->out_of_memory = import->out_of_memory || copy == NULL;
	return copy;
}

const char *import_name(struct import *import, const char *name)
{
	static const char *const wrappers[] = {"_orig_mod.", "_checkpoint_wrapped_module.",
					       "_fsdp_wrapped_module.", NULL};
	char text[NAME_BYTES_MAX];
	snprintf(text, sizeof(text), "%s", name);
	for (uint32_t i = 0; wrappers[i] != NULL; i++)
		drop(text, wrappers[i]);
	while (strncmp(text, "module.", 7) == 0)
		memmove(text, text + 7, strlen(text + 7) + 1);
	return keep(import, text);
}

const char *import_template(struct import *import, const char *name, int32_t *layer_out,
			    int32_t *expert_out)
{
	char text[NAME_BYTES_MAX + 16];
	snprintf(text, NAME_BYTES_MAX, "%s", name);
	*layer_out = take_number(text, sizeof(text), "layers.", "{L}");
	*expert_out = take_number(text, sizeof(text), "experts.", "{E}");
	return keep(import, text);
}

bool import_has(const struct import *import, const struct json *x, int32_t layer)
{
	const char *names[TENSORS_READ_MAX];
	uint32_t count = expr_tensor_names(x, names, TENSORS_READ_MAX);
	for (uint32_t i = 0; i < count; i++) {
		if (!model_has(import->model, names[i], layer))
			return false;
	}
	return count > 0;
}

bool import_reads(const struct json *x, const char *tensor)
{
	const char *names[TENSORS_READ_MAX];
	uint32_t count = expr_tensor_names(x, names, TENSORS_READ_MAX);
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(names[i], tensor) == 0)
			return true;
	}
	return false;
}

uint32_t import_experts(const struct import *import, const struct json *x, int32_t layer)
{
	for (uint32_t i = 0; i < import->model->tensor_count; i++) {
		const struct tensor_rule *rule = &import->model->tensors[i];
		if (rule->expert_lo >= 0 && rule->layer_lo <= layer &&
		    (layer < rule->layer_hi || rule->layer_hi < 0) && import_reads(x, rule->name))
			return (uint32_t)(rule->expert_hi - rule->expert_lo);
	}
	return 0;
}

uint32_t import_first_tensor(const struct import *import, const struct json *x)
{
	const char *name[1];
	uint32_t index = 0;
	if (expr_tensor_names(x, name, 1) == 0)
		return 0;
	while (index < import->model->tensor_count &&
	       strcmp(import->model->tensors[index].name, name[0]) != 0)
		index++;
	return index;
}

/* Two lists of params: names that transformers and torchtitan use beside those of torchtitan's
 * preset for such a model. */
static const struct json *known_params(struct import *import, uint32_t which)
{
	static const struct json_limits limits = {
		.bytes_max = 1u << 20, .depth_max = 32, .node_count_max = 1u << 16};
	const struct builtin_file *file = builtin_files;
	const struct json *json = NULL;
	if (import->known[which] != NULL)
		return import->known[which];
	while (which == 0 && file->name != NULL && strcmp(file->name, "presets/import-names") != 0)
		file++;
	if (which == 1)
		file = preset_find(import->model, "torchtitan");
	if (file == NULL || file->name == NULL)
		return NULL;
	if (json_parse(&import->arena, file->text, strlen(file->text), &limits, &json, NULL) != 0)
		import->out_of_memory = true;
	else
		import->known[which] = json_get(json, "params");
	return import->known[which];
}

/* An expression without its splits; as deep as the preset, which is ours. */
static const struct json *strip(struct import *import, const struct json *x)
{
	const struct json *items[16];
	uint32_t count = 0;
	if (x == NULL || x->type != JSON_ARRAY || x->count > ARRAY_SIZE(items))
		return x;
	if (x->first->type == JSON_STRING && strcmp(x->first->text, "s") == 0)
		return strip(import, x->first->next);
	for (const struct json *it = x->first; it != NULL; it = it->next)
		items[count++] = strip(import, it);
	return import_list(import, count, items);
}

const struct json *import_whole(struct import *import, const char *template, int32_t layer)
{
	if (model_has(import->model, template, layer)) {
		const struct json *items[] = {import_word(import, "t"),
					      import_word(import, template)};
		return import_list(import, 2, items);
	}
	const struct json *own = json_get(json_get(import->dump, "names"), template);
	if (own != NULL)
		return import_has(import, own, layer) ? own : NULL;
	for (uint32_t which = 0; which < ARRAY_SIZE(import->known); which++) {
		const struct json *params = known_params(import, which);
		const struct json *it = params == NULL ? NULL : params->first;
		while (it != NULL && strcmp(json_text(it, "p", ""), template) != 0)
			it = it->next;
		if (it != NULL && import_has(import, json_get(it, "x"), layer))
			return strip(import, json_get(it, "x"));
	}
	return NULL;
}

void import_unknown(struct import *import, const char *name, const char *template)
{
	struct nearest nearest = {.name = template};
	const struct json *own = json_get(import->dump, "names");
	bool looks = import->found.count < NEAREST_FINDINGS_MAX;
	for (uint32_t i = 0; i < import->model->tensor_count && looks; i++)
		nearest_try(&nearest, import->model->tensors[i].name);
	bool object = looks && own != NULL && own->type == JSON_OBJECT;
	for (const struct json *it = object ? own->first : NULL; it != NULL; it = it->next)
		nearest_try(&nearest, it->key);
	for (uint32_t which = 0; which < ARRAY_SIZE(import->known); which++) {
		const struct json *params = looks ? known_params(import, which) : NULL;
		for (const struct json *it = params == NULL ? NULL : params->first; it != NULL;
		     it = it->next)
			nearest_try(&nearest, json_text(it, "p", ""));
	}
	if (nearest.best != NULL && strcmp(nearest.best, template) == 0)
		findings_add(&import->found, "name", name,
			     "model '%s' doesn't have all tensors that it is made of",
			     import->model->name);
	else if (nearest.best != NULL)
		findings_add(&import->found, "name", name,
			     "model '%s' has no such tensor; did you mean '%s'?",
			     import->model->name, nearest.best);
	else
		findings_add(&import->found, "name", name,
			     "model '%s' has no such tensor; say what '%s' is made of in the "
			     "dump's \"names\"",
			     import->model->name, template);
}

/* ---- Expressions as the JSON that they are written in. */

static struct json *new_json(struct import *import, enum json_type type)
{
	struct json *json = import_alloc(import, 1, sizeof(*json));
	if (json != NULL)
		json->type = type;
	return json;
}

const struct json *import_word(struct import *import, const char *text)
{
	struct json *json = new_json(import, JSON_STRING);
	if (json != NULL)
		json->text = text;
	return json;
}

static const struct json *integer_json(struct import *import, int64_t value)
{
	struct json *json = new_json(import, JSON_NUMBER);
	if (json != NULL) {
		json->is_integer = true;
		json->integer = value;
		json->number = (double)value;
	}
	return json;
}

/* The items are copied: a node may stand in several lists. */
const struct json *import_list(struct import *import, uint32_t count,
			       const struct json *const *items)
{
	struct json *list = new_json(import, JSON_ARRAY), *last = NULL;
	for (uint32_t i = 0; i < count && list != NULL; i++) {
		struct json *item = new_json(import, JSON_NULL);
		if (item == NULL || items[i] == NULL)
			return NULL;
		*item = *items[i];
		item->next = NULL;
		item->key = NULL;
		if (last == NULL)
			list->first = item;
		else
			last->next = item;
		last = item;
		list->count++;
	}
	return list;
}

const struct json *import_split(struct import *import, const struct json *x, uint32_t dim,
				const char *axis, bool chunk)
{
	struct json *how = new_json(import, JSON_OBJECT), *mode = new_json(import, JSON_STRING);
	if (how == NULL || mode == NULL)
		return NULL;
	mode->key = "mode";
	mode->text = "chunk";
	how->first = mode;
	how->count = 1;
	const struct json *items[] = {import_word(import, "s"), x, integer_json(import, dim),
				      import_word(import, axis), how};
	return import_list(import, chunk ? 5 : 4, items);
}
