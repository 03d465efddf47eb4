/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The params of a manifest that is being made from a preset of the layout and the model's family:
 * a param whose tensors the model doesn't have is left out, one that has some of them only is a
 * finding, and so is a tensor that no param reads.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define PARAM_TENSOR_MAX 64 /* `t` nodes of a preset's param */

static void put_dtype(struct make *make, const struct json *own)
{
	if (own != NULL)
		json_put_value(&make->json, "dtype", own);
	else if (make->options->dtype != NULL)
		json_put_text(&make->json, "dtype", make->options->dtype);
}

void make_put_dtype(struct make *make)
{
	put_dtype(make, NULL);
}

/* Marks what a param reads, and the scale that goes with it; -1: a rule without {L}. */
static void mark_read(struct make *make, const char *name, int32_t layer)
{
	size_t bytes = strlen(name);
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		const struct tensor_rule *rule = &make->model->tensors[i];
		bool scale = make->quantized_file && strncmp(rule->name, name, bytes) == 0 &&
			     strcmp(rule->name + bytes, make->scale_suffix) == 0;
		if (strcmp(rule->name, name) != 0 && !scale)
			continue;
		if (rule->layer_lo < 0)
			make->read[i][0] = 1;
		else if (rule->layer_lo <= layer && layer < rule->layer_hi)
			make->read[i][layer + 1] = 1;
	}
}

/* One param of a preset against the model. */
struct preset_param {
	const struct json *json;
	const char *names[PARAM_TENSOR_MAX];
	uint32_t name_count;
	bool tied;	 /* its lm_head is the embedding */
	uint8_t *member; /* by layer: all of its tensors are there */
	uint32_t layer_count, set_count;
};

static const char *tensor_of(const struct preset_param *param, const char *name)
{
	return param->tied && strcmp(name, "lm_head.weight") == 0 ? "model.embed_tokens.weight"
								  : name;
}

/* How many of a param's tensors a layer (-1: none) has. */
static uint32_t tensors_there(const struct make *make, const struct preset_param *param,
			      int32_t layer)
{
	uint32_t there = 0;
	for (uint32_t i = 0; i < param->name_count; i++)
		there += model_has(make->model, tensor_of(param, param->names[i]), layer) ? 1u : 0u;
	return there;
}

static void say_partly(struct make *make, const struct preset_param *param, int32_t layer)
{
	for (uint32_t i = 0; i < param->name_count; i++) {
		if (model_has(make->model, tensor_of(param, param->names[i]), layer))
			continue;
		findings_add(
			&make->found, "tensor", json_text(param->json, "p", ""),
			"layout '%s' needs '%s' beside the others it is made of, and the model has none%s",
			make->options->layout, param->names[i], layer < 0 ? "" : " at some layer");
		return;
	}
}

/* Finds the layers where the param is; false where it is nowhere. */
static bool match(struct make *make, struct preset_param *param)
{
	const char *set = json_text(json_get(param->json, "each"), "L", NULL);
	if (set == NULL) {
		uint32_t there = tensors_there(make, param, -1);
		if (there > 0 && there < param->name_count)
			say_partly(make, param, -1);
		for (uint32_t i = 0; i < param->name_count && there == param->name_count; i++)
			mark_read(make, tensor_of(param, param->names[i]), -1);
		return there == param->name_count;
	}
	bool said = false;
	for (int32_t layer = 0; layer < make->layer_end; layer++) {
		if (!make_in_set(make, set, layer))
			continue;
		uint32_t there = tensors_there(make, param, layer);
		param->set_count++;
		if (there > 0 && there < param->name_count && !said) {
			say_partly(make, param, layer);
			said = true;
		}
		if (there < param->name_count)
			continue;
		param->member[layer] = 1;
		param->layer_count++;
		for (uint32_t i = 0; i < param->name_count; i++)
			mark_read(make, param->names[i], layer);
	}
	return param->layer_count > 0;
}

static void put_each(struct make *make, const struct preset_param *param)
{
	const struct json *each = json_get(param->json, "each"), *e = json_get(each, "E");
	if (each == NULL)
		return;
	json_begin_object(&make->json, "each");
	if (param->layer_count == param->set_count)
		json_put_value(&make->json, "L", json_get(each, "L"));
	else
		make_put_ranges(&make->json, "L", param->member, make->layer_end);
	if (e != NULL)
		json_put_value(&make->json, "E", e);
	json_end_object(&make->json);
}

/* An expression with the tied head's tensor in it; as deep as the preset, which is ours. */
static void put_expr(struct make *make, const struct preset_param *param, const struct json *x)
{
	if (x->type != JSON_ARRAY) {
		if (x->type == JSON_STRING && strcmp(x->text, "@expert_shard_dim") == 0)
			json_put_integer(&make->json, x->key, make->ranks.expert_shard_dim);
		else if (x->type == JSON_STRING)
			json_put_text(&make->json, x->key, tensor_of(param, x->text));
		else
			json_put_value(&make->json, x->key, x);
		return;
	}
	json_begin_array(&make->json, x->key);
	for (const struct json *it = x->first; it != NULL; it = it->next)
		put_expr(make, param, it);
	json_end_array(&make->json);
}

/* All of a param's tensors are quantized, or none is. */
static bool is_quantized(const struct make *make, const struct preset_param *param)
{
	bool all = param->name_count > 0;
	for (uint32_t i = 0; i < param->name_count; i++)
		all = all && make_is_quantized(make, param->names[i]);
	return all;
}

/* Megatron's copy of the embedding stands where the MTP layers are. */
static void put_stage(struct make *make, const char *stage)
{
	if (stage != NULL && strcmp(stage, "mtp") == 0)
		json_put_integer(&make->json, "stage", make->ranks.mtp_stage);
	else if (stage != NULL)
		json_put_text(&make->json, "stage", stage);
}

static void put_param(struct make *make, const struct preset_param *param, const char *stage)
{
	static const char *const kept[] = {"kind", "model", "derived", "post"};
	struct json_writer *json = &make->json;
	const char *name = json_text(param->json, "p", "");
	char scale[NAME_BYTES_MAX];
	json_begin_object(json, NULL);
	json_put_text(json, "p", name);
	put_each(make, param);
	json_put_value(json, "mesh", json_get(param->json, "mesh"));
	put_expr(make, param, json_get(param->json, "x"));
	put_stage(make, stage);
	if (is_quantized(make, param)) {
		snprintf(scale, sizeof(scale), "%s%s", name, make->scale_suffix);
		json_put_text(json, "dtype", "f8e4m3");
		json_put_text(json, "q", make->quant);
		json_put_text(json, "scale", scale);
	} else {
		put_dtype(make, json_get(param->json, "dtype"));
	}
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
		const struct json *value = json_get(param->json, kept[i]);
		if (value != NULL)
			json_put_value(json, kept[i], value);
	}
	json_end_object(json);
}

/* A param may be there only "when" an option is set, or "unless" it is. */
static bool is_wanted(const struct make *make, const struct json *json)
{
	bool fused = make->ranks.fuse_shared;
	const char *when = json_text(json, "when", NULL), *unless = json_text(json, "unless", NULL);
	return (when == NULL || (strcmp(when, "fuse_shared") == 0 && fused)) &&
	       (unless == NULL || strcmp(unless, "fuse_shared") != 0 || !fused);
}

static int put_preset_param(struct make *make, const struct json *json)
{
	struct preset_param param = {.json = json};
	if (!is_wanted(make, json))
		return 0;
	const char *stage = json_text(json, "stage", NULL);
	bool pipeline = make->ranks.stage_count > 1;
	bool megatron = strcmp(make->options->layout, "megatron") == 0;
	param.member = arena_array(&make->arena, (size_t)make->layer_end + 1, 1);
	if (param.member == NULL)
		return -ENOMEM;
	param.name_count = expr_tensor_names(json_get(json, "x"), param.names, PARAM_TENSOR_MAX);
	bool head = strcmp(param.names[0], "lm_head.weight") == 0;
	/* Megatron's first stage is its own head; a last stage holds a copy. */
	param.tied = head && make->tied && (!megatron || pipeline);
	if (!match(make, &param))
		return 0;
	put_param(make, &param, stage);
	/* The stage that runs an MTP layer has the embedding too. */
	if (megatron && make->ranks.mtp_stage > 0 &&
	    strcmp(param.names[0], "model.embed_tokens.weight") == 0 &&
	    make->layer_end > make->model->layer_count)
		put_param(make, &param, "mtp");
	return 0;
}

static void check_read(struct make *make)
{
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		const struct tensor_rule *rule = &make->model->tensors[i];
		int32_t lo = MAX(rule->layer_lo, -1);
		int32_t hi = rule->layer_lo < 0 ? 0 : MIN(rule->layer_hi, make->layer_end);
		if (model_is_alias(rule))
			continue;
		for (int32_t layer = lo; layer < hi; layer++) {
			if (make->read[i][layer + 1])
				continue;
			findings_add(&make->found, "unread", rule->name,
				     "no param of layout '%s' reads it%s", make->options->layout,
				     layer < 0 ? "" : ", at one layer at least");
			break;
		}
	}
}

const struct builtin_file *preset_find(const struct model *model, const char *layout)
{
	const char *type = json_text(model->config, "model_type", "");
	const char *families[] = {type, "gqa"};
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		if (strstr(model->tensors[i].name, ".kv_b_proj.") != NULL)
			families[1] = "mla";
	}
	for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
		char name[96];
		snprintf(name, sizeof(name), "presets/%.32s-%.32s", layout, families[i]);
		for (const struct builtin_file *file = builtin_files; file->name != NULL; file++) {
			if (strcmp(file->name, name) == 0)
				return file;
		}
	}
	return NULL;
}

int make_preset(struct make *make, struct ws_error *err)
{
	static const struct json_limits limits = {
		.bytes_max = 1u << 20, .depth_max = 32, .node_count_max = 1u << 16};
	const struct builtin_file *file = preset_find(make->model, make->options->layout);
	if (file == NULL)
		return ws_fail(err, -EINVAL, "layout '%s' has no preset for such a model",
			       make->options->layout);
	int rc = json_parse(&make->arena, file->text, strlen(file->text), &limits, &make->preset,
			    err);
	if (rc != 0)
		return rc;
	for (const struct json *it = json_get(make->preset, "params")->first; it != NULL;
	     it = it->next) {
		if (put_preset_param(make, it) != 0)
			return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	}
	check_read(make);
	return 0;
}

/* "x" of an entry says whose layers it has; it isn't written. */
static int put_derived(struct make *make, const struct json *json)
{
	static const char *const kept[] = {"mesh", "from", "makes"};
	struct preset_param param = {.json = json};
	param.member = arena_array(&make->arena, (size_t)make->layer_end + 1, 1);
	if (param.member == NULL)
		return -ENOMEM;
	param.name_count = expr_tensor_names(json_get(json, "x"), param.names, PARAM_TENSOR_MAX);
	if (!match(make, &param))
		return 0;
	json_begin_object(&make->json, NULL);
	json_put_text(&make->json, "post", json_text(json, "post", ""));
	put_each(make, &param);
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		json_put_value(&make->json, kept[i], json_get(json, kept[i]));
	json_end_object(&make->json);
	return 0;
}

int make_preset_derived(struct make *make, struct ws_error *err)
{
	const struct json *list = json_get(make->preset, "derived");
	if (list == NULL)
		findings_add(&make->found, "derived", make->options->layout,
			     "no post step is known for this layout of such a model: vllm's and "
			     "sglang's of MLA have one");
	json_begin_array(&make->json, "derived");
	for (const struct json *it = list == NULL ? NULL : list->first; it != NULL; it = it->next) {
		if (put_derived(make, it) != 0)
			return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	}
	json_end_array(&make->json);
	return 0;
}
