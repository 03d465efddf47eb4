/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A framework's own metadata as a manifest: a reader makes grids of ranks and rules of alike
 * params, and what stands in the manifest after all is read back and held against every shape
 * that the dump has, the whole ones as a job of one rank.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/import.h"

void *import_alloc(struct import *import, size_t count, size_t bytes_each)
{
	void *memory = arena_array(&import->arena, count, bytes_each);
	import->out_of_memory = import->out_of_memory || memory == NULL;
	return memory;
}

const char *import_text(struct import *import, const struct json *object, const char *key,
			const char *where)
{
	const char *text = json_text(object, key, NULL);
	if (text != NULL && text[0] != '\0' && strlen(text) < NAME_BYTES_MAX)
		return text;
	findings_add(&import->found, "dump", where, "\"%s\" must be a text of 1 to %d bytes", key,
		     NAME_BYTES_MAX - 1);
	return NULL;
}

bool import_shape(struct import *import, const struct json *shape, const char *where)
{
	bool good = shape != NULL && shape->type == JSON_ARRAY && shape->count <= LOCAL_DIM_MAX &&
		    shape->count > 0;
	for (const struct json *it = good ? shape->first : NULL; it != NULL; it = it->next)
		good = good && it->is_integer && it->integer >= 0;
	if (!good)
		findings_add(&import->found, "dump", where,
			     "a shape must be a list of 1 to %d integers from 0 on", LOCAL_DIM_MAX);
	return good;
}

enum ws_dtype import_dtype(struct import *import, const struct json *json, const char *where)
{
	static const struct {
		const char *torch;
		enum ws_dtype dtype;
	} names[] = {
		{"bfloat16", WS_BF16},		{"float32", WS_F32}, {"float16", WS_F16},
		{"float8_e4m3fn", WS_F8_E4M3},	{"uint8", WS_U8},    {"int8", WS_I8},
		{"float8_e5m2", WS_F8_E5M2},	{"int32", WS_I32},   {"int64", WS_I64},
		{"float8_e8m0fnu", WS_F8_E8M0}, {"float64", WS_F64}, {"bool", WS_BOOL},
	};
	const char *text = json_text(json, "dtype", "");
	const char *name = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (strcmp(names[i].torch, name) == 0)
			return names[i].dtype;
	}
	enum ws_dtype dtype = ws_dtype_parse(name);
	if (dtype == WS_NONE)
		findings_add(&import->found, "dtype", where,
			     "'%s' is no dtype; a good one is torch.bfloat16", text);
	return dtype;
}

struct import_rule *import_rule(struct import *import, const char *name, uint64_t key)
{
	struct import_rule **end = &import->rules;
	key = digest_bytes(name, strlen(name), key);
	for (; *end != NULL; end = &(*end)->next) {
		if ((*end)->key == key && strcmp((*end)->name, name) == 0)
			return *end;
	}
	if (import->rule_count == IMPORT_RULE_MAX) {
		findings_add(&import->found, "dump", name,
			     "its params differ in more than %d ways beside layer and expert",
			     IMPORT_RULE_MAX);
		return NULL;
	}
	struct import_rule *rule = import_alloc(import, 1, sizeof(*rule));
	if (rule == NULL)
		return NULL;
	*rule = (struct import_rule){.name = name, .key = key, .number = import->rule_count};
	rule->layers = import_alloc(import, import->layer_end + 1, sizeof(*rule->layers));
	if (rule->layers == NULL)
		return NULL;
	import->rule_count++;
	*end = rule;
	return rule;
}

void import_count(struct import *import, struct import_rule *rule, int32_t layer)
{
	if (layer >= 0 && (uint32_t)layer < import->layer_end)
		rule->layers[layer]++;
	rule->layers[import->layer_end] += layer < 0 ? 1 : 0;
}

void import_claim(struct import *import, struct import_claims *claims, const char *name,
		  uint32_t rank, const struct json *shape)
{
	struct import_claim *claim = import_alloc(import, 1, sizeof(*claim));
	if (claim == NULL)
		return;
	*claim = (struct import_claim){.name = name, .rank = rank, .shape = shape};
	if (claims->last != NULL)
		claims->last->next = claim;
	else
		claims->first = claim;
	claims->last = claim;
}

/* ---- Writing. */

static void put_meshes(const struct import *import, struct json_writer *json, bool whole)
{
	json_begin_object(json, "meshes");
	for (uint32_t g = 0; g < import->grid_count; g++) {
		const struct grid *grid = &import->grids[g];
		json_begin_object(json, grid->name);
		json_begin_array(json, "axes");
		for (uint32_t i = 0; i < grid->axis_count; i++) {
			json_begin_array(json, NULL);
			json_put_text(json, NULL, grid->axis[i].name);
			json_put_integer(json, NULL, whole ? 1 : grid->axis[i].size);
			json_end_array(json);
		}
		json_end_array(json);
		json_end_object(json);
	}
	json_end_object(json);
}

static void put_placement(const struct import *import, struct json_writer *json)
{
	if (import->stage_count > 1) {
		json_begin_object(json, "stages");
		json_put_text(json, "axis", "pp");
		json_begin_array(json, "of");
		for (uint32_t i = 0; i < import->layer_end; i++)
			json_put_integer(json, NULL,
					 import->stage_of[i] == UINT32_MAX ? import->stage_count - 1
									   : import->stage_of[i]);
		json_end_array(json);
		json_end_object(json);
	}
	if (import->ep == NULL)
		return;
	json_begin_object(json, "experts");
	json_put_text(json, "axis", import->ep);
	json_end_object(json);
}

static void put_each(const struct import *import, struct json_writer *json,
		     const struct import_rule *rule, uint8_t *member, bool whole)
{
	if (!rule->each_layer && !rule->each_expert)
		return;
	json_begin_object(json, "each");
	for (uint32_t i = 0; i < import->layer_end; i++)
		member[i] = rule->layers[i] > 0;
	if (rule->each_layer)
		make_put_ranges(json, "L", member, (int32_t)import->layer_end);
	if (rule->each_expert)
		json_put_text(json, "E", import->ep != NULL && !whole ? import->ep : "all");
	json_end_object(json);
}

static void put_param(const struct import *import, struct json_writer *json,
		      const struct import_rule *rule, int64_t stage, uint8_t *member, bool whole)
{
	static const char *const kept[] = {"kind", "model", "derived"};
	json_begin_object(json, NULL);
	json_put_text(json, "p", rule->name);
	put_each(import, json, rule, member, whole);
	json_put_text(json, "mesh", import->grids[rule->grid].name);
	json_put_value(json, "x", whole ? rule->whole : rule->x);
	json_put_text(json, "dtype", ws_dtype_name(rule->dtype));
	if (stage >= 0 && !whole)
		json_put_integer(json, "stage", stage);
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
		const struct json *value = json_get(rule->preset, kept[i]);
		if (value != NULL)
			json_put_value(json, kept[i], value);
	}
	json_end_object(json);
}

static void put_rule(const struct import *import, struct json_writer *json,
		     const struct import_rule *rule, uint8_t *member, bool whole)
{
	uint32_t stages = 0;
	for (uint32_t s = 0; rule->stages != NULL && s < import->stage_count; s++)
		stages += rule->stages[s];
	if (rule->each_layer || whole || import->stage_count < 2 || stages == import->stage_count)
		return put_param(import, json, rule, -1, member, whole);
	for (uint32_t s = 0; s < import->stage_count; s++) {
		if (rule->stages[s])
			put_param(import, json, rule, s, member, whole);
	}
}

/* By their order; of equal ones the first seen. */
static int compare_rules(const void *left, const void *right)
{
	const struct import_rule *a = *(const struct import_rule *const *)left;
	const struct import_rule *b = *(const struct import_rule *const *)right;
	if (a->order != b->order)
		return a->order < b->order ? -1 : 1;
	return a->number < b->number ? -1 : 1;
}

static void put_params(struct import *import, struct json_writer *json, bool whole)
{
	uint8_t *member = import_alloc(import, import->layer_end + 1, 1);
	const struct import_rule **sorted =
		import_alloc(import, import->rule_count, sizeof(struct import_rule *));
	if (member == NULL || sorted == NULL)
		return;
	for (const struct import_rule *it = import->rules; it != NULL; it = it->next)
		sorted[it->number] = it;
	qsort(sorted, import->rule_count, sizeof(struct import_rule *), compare_rules);
	json_begin_array(json, "params");
	for (uint32_t i = 0; i < import->rule_count; i++)
		put_rule(import, json, sorted[i], member, whole);
	json_end_array(json);
}

static void write_manifest(struct import *import, struct writer *out, bool whole)
{
	struct json_writer writer = {.out = out, .pretty = true}, *json = &writer;
	json_begin_object(json, NULL);
	json_put_integer(json, "ws_manifest", 1);
	json_put_text(json, "side", import->options->side == SIDE_TRAINER ? "trainer" : "rollout");
	json_put_text(
		json, "framework",
		json_text(import->dump, "framework",
			  strcmp(import->options->from, "dtensor") == 0 ? "fsdp2" : "megatron"));
	json_put_text(json, "model", import->model->name);
	json_put_integer(json, "world", whole ? 1 : import->world);
	make_put_sym(json, import->model, import->vocab_div);
	make_put_tensors(json, import->model);
	put_meshes(import, json, whole);
	if (!whole)
		put_placement(import, json);
	make_put_casts(json, import->options->casts, &import->found);
	put_params(import, json, whole);
	json_end_object(json);
	write_bytes(out, "\n", 1);
}

/* ---- Reading back. */

static const char *shape_text(const uint64_t *dim, uint32_t count, char *out, size_t room)
{
	size_t used = (size_t)snprintf(out, room, "[");
	for (uint32_t d = 0; d < count && used < room; d++)
		used += (size_t)snprintf(out + used, room - used, "%s%llu", d == 0 ? "" : ", ",
					 (unsigned long long)dim[d]);
	if (used < room)
		snprintf(out + used, room - used, "]");
	return out;
}

static void check_claim(struct import *import, const struct import_claim *claim,
			const struct rank_params *params, uint8_t *seen, bool whole)
{
	int64_t index = rank_params_find(params, claim->name);
	uint64_t dim[LOCAL_DIM_MAX];
	char said[128], made[128];
	uint32_t count = 0;
	if (index < 0)
		return findings_add(&import->found, "missing", claim->name,
				    "the dump has it at rank %u, where none of its rules puts it",
				    claim->rank);
	if (seen[index] < 2 && ++seen[index] == 2)
		findings_add(&import->found, "doubled", claim->name,
			     "the dump has it twice at rank %u", claim->rank);
	const struct form *form = params->params[index].form;
	for (const struct json *it = claim->shape->first; it != NULL; it = it->next)
		dim[count++] = (uint64_t)it->integer;
	if (count == form->dim_count && memcmp(dim, form->dim, count * sizeof(dim[0])) == 0)
		return;
	shape_text(dim, count, said, sizeof(said));
	shape_text(form->dim, form->dim_count, made, sizeof(made));
	if (whole)
		findings_add(&import->found, "shape", claim->name,
			     "it is %s in the dump, and %s in model '%s'", said, made,
			     import->model->name);
	else
		findings_add(&import->found, "shape", claim->name,
			     "at rank %u it is %s in the dump, and %s by what the dump says of its "
			     "partition",
			     claim->rank, said, made);
}

/* A rank whose params were all dumped has no others. */
static void check_complete(struct import *import, uint32_t rank, const struct rank_params *params,
			   const uint8_t *seen)
{
	for (uint32_t i = 0; i < params->count; i++) {
		if (!seen[i])
			findings_add(&import->found, "missing", params->params[i].name,
				     "rank %u should have it, as other ranks do, and the dump has "
				     "none there",
				     rank);
	}
}

static int check_claims(struct import *import, const struct manifest *manifest, bool whole,
			struct ws_error *err)
{
	const struct import_claim *it = whole ? import->wholes.first : import->parts.first, *end;
	int rc = 0;
	for (; it != NULL && rc == 0; it = end) {
		struct arena arena = {0};
		struct rank_params params = {0};
		for (end = it; end != NULL && end->rank == it->rank;)
			end = end->next;
		rc = manifest_params(manifest, it->rank, &arena, &params, err);
		uint8_t *seen = rc != 0 ? NULL : arena_alloc(&arena, params.count + 1);
		if (rc == 0 && seen == NULL)
			rc = ws_fail(err, -ENOMEM, "out of memory for the params of rank %u",
				     it->rank);
		for (const struct import_claim *at = it; at != end && seen != NULL; at = at->next)
			check_claim(import, at, &params, seen, whole);
		if (seen != NULL && import->complete && !whole)
			check_complete(import, it->rank, &params, seen);
		arena_release(&arena);
	}
	return rc;
}

static int read_back(struct import *import, struct writer *out, bool whole, struct ws_error *err)
{
	struct manifest *manifest = NULL;
	size_t start = out->count;
	write_manifest(import, out, whole);
	if (import->out_of_memory || out->failed)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	int rc = manifest_parse(&manifest, out->bytes + start, out->count - start, &import->found,
				err);
	if (rc == 0)
		rc = check_claims(import, manifest, whole, err);
	manifest_free(manifest);
	return import->found.count > 0 ? 0 : rc;
}

/* ---- Before and after. */

static void read_head(struct import *import)
{
	const struct json *dump = import->dump;
	int64_t world = json_integer(dump, "world", 0);
	const struct model *model = import->model;
	if (strcmp(json_text(dump, "ws_dump", ""), import->options->from) != 0)
		findings_add(&import->found, "dump", "ws_dump", "it must be \"%s\", as --from says",
			     import->options->from);
	if (world < 1 || world > RANKS_MAX)
		findings_add(&import->found, "dump", "world", "it must be from 1 to %d ranks",
			     RANKS_MAX);
	else
		import->world = (uint32_t)world;
	import->layer_end = (uint32_t)model->layer_count;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		import->layer_end =
			MAX(import->layer_end, (uint32_t)MAX(model->tensors[i].layer_hi, 0));
	import->vocab_div = 128;
}

/* Each tensor that the model has must be in some param; MTP layers may be left out. */
static void check_read(struct import *import)
{
	const struct model *model = import->model;
	for (uint32_t t = 0; t < model->tensor_count; t++) {
		const struct tensor_rule *tensor = &model->tensors[t];
		int32_t lo = MAX(tensor->layer_lo, -1), missing = -2;
		int32_t hi = tensor->layer_lo < 0 ? 0 : MIN(tensor->layer_hi, model->layer_count);
		if (model_is_alias(tensor))
			continue;
		for (int32_t layer = lo; layer < hi && missing == -2; layer++) {
			bool read = false;
			for (const struct import_rule *it = import->rules; it != NULL && !read;
			     it = it->next)
				read = it->layers[layer < 0 ? import->layer_end : (uint32_t)layer] >
					       0 &&
				       it->whole != NULL && import_reads(it->whole, tensor->name);
			missing = read ? -2 : layer;
		}
		if (missing >= 0)
			findings_add(&import->found, "missing", tensor->name,
				     "no param of the dump holds it at layer %d", missing);
		else if (missing == -1)
			findings_add(&import->found, "missing", tensor->name,
				     "no param of the dump holds it");
	}
}

static void read_dump(struct import *import)
{
	read_head(import);
	if (import->found.count > 0)
		return;
	if (strcmp(import->options->from, "dtensor") == 0)
		import_dtensor(import);
	else
		import_megatron(import);
	if (!import->out_of_memory && import->rules != NULL)
		check_read(import);
}

int manifest_import(const struct model *model, const struct import_options *options,
		    const void *dump, size_t bytes, struct writer *out, struct findings *findings,
		    struct ws_error *err)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	struct import import = {.model = model, .options = options};
	struct writer whole = WRITER_INIT(64u << 20);
	import.found.arena = &import.arena;
	if (strcmp(options->from, "dtensor") != 0 && strcmp(options->from, "megatron") != 0)
		return ws_fail(err, -EINVAL,
			       "there is no dump '%s'; there are dtensor and megatron",
			       options->from);
	int rc = json_parse(&import.arena, dump, bytes, &limits, &import.dump, err);
	if (rc == 0)
		read_dump(&import);
	if (rc == 0 && import.out_of_memory)
		rc = ws_fail(err, -ENOMEM, "out of memory for the dump");
	if (rc == 0 && import.found.count == 0 && import.wholes.first != NULL)
		rc = read_back(&import, &whole, true, err);
	if (rc == 0 && import.found.count == 0)
		rc = read_back(&import, out, false, err);
	if (findings != NULL)
		findings_merge(findings, &import.found);
	if (rc == 0 && import.found.count > 0)
		rc = report_first(&import.found, err);
	writer_release(&whole);
	arena_release(&import.arena);
	return rc;
}
