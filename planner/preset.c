/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests from a layout's name, a mesh and a model.  FSDP2 is generated, one rule per tensor;
 * the other layouts expand a preset of their family: a param whose tensors the model doesn't
 * have is left out, one that has some of them only is a finding, and so is a tensor that no
 * param reads.  What was written is parsed again, so that a manifest that can't be is never
 * handed out.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define PARAM_TENSOR_MAX 64 /* `t` nodes of a preset's param */

struct make {
	const struct model *model;
	const struct manifest_options *options;
	struct arena arena;
	struct findings found;
	struct ranks ranks;
	struct json_writer json;
	uint8_t **read; /* by tensor and layer (index layer + 1): some param reads it */
	int32_t layer_end;
	bool tied; /* the model has no lm_head of its own */
};

enum kind { KIND_DENSE = 1, KIND_MOE = 2, KIND_MTP = 4 };

/* What a layer is, by the tensors it has. */
static uint32_t layer_kind(const struct make *make, int32_t layer)
{
	uint32_t kind = layer >= make->model->layer_count ? KIND_MTP : 0;
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		const struct tensor_rule *rule = &make->model->tensors[i];
		if (rule->layer_lo <= layer && layer < rule->layer_hi &&
		    (rule->expert_lo >= 0 || strstr(rule->name, ".experts.") != NULL))
			return kind | KIND_MOE;
	}
	return kind | KIND_DENSE;
}

static bool in_set(const struct make *make, const char *set, int32_t layer)
{
	uint32_t kind = layer_kind(make, layer);
	if (strcmp(set, "all") == 0)
		return true;
	return (strcmp(set, "dense") == 0 && (kind & KIND_DENSE) != 0) ||
	       (strcmp(set, "moe") == 0 && (kind & KIND_MOE) != 0) ||
	       (strcmp(set, "mtp") == 0 && (kind & KIND_MTP) != 0);
}

/* Marks what a param reads; -1: a rule without {L}. */
static void mark_read(struct make *make, const char *name, int32_t layer)
{
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		const struct tensor_rule *rule = &make->model->tensors[i];
		if (strcmp(rule->name, name) != 0)
			continue;
		if (rule->layer_lo < 0)
			make->read[i][0] = 1;
		else if (rule->layer_lo <= layer && layer < rule->layer_hi)
			make->read[i][layer + 1] = 1;
	}
}

static void put_ranges(struct json_writer *json, const char *key, const uint8_t *member,
		       int32_t end)
{
	json_begin_array(json, key);
	for (int32_t layer = 0; layer < end; layer++) {
		if (!member[layer])
			continue;
		json_begin_array(json, NULL);
		json_put_integer(json, NULL, layer);
		while (layer < end && member[layer])
			layer++;
		json_put_integer(json, NULL, layer);
		json_end_array(json);
	}
	json_end_array(json);
}

/* ---- The parts of a manifest other than its params. */

static void put_tensors(struct make *make)
{
	struct json_writer *json = &make->json;
	json_begin_array(json, "tensors");
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		const struct tensor_rule *rule = &make->model->tensors[i];
		json_begin_object(json, NULL);
		json_put_text(json, "name", rule->name);
		json_put_text(json, "dtype", ws_dtype_name(rule->dtype));
		json_begin_array(json, "shape");
		for (uint32_t d = 0; d < rule->dim_count; d++)
			json_put_u64(json, NULL, rule->dim[d]);
		json_end_array(json);
		if (rule->layer_lo >= 0) {
			json_begin_array(json, "layers");
			json_put_integer(json, NULL, rule->layer_lo);
			json_put_integer(json, NULL, rule->layer_hi);
			json_end_array(json);
		}
		if (rule->expert_lo >= 0) {
			json_begin_array(json, "experts");
			json_put_integer(json, NULL, rule->expert_lo);
			json_put_integer(json, NULL, rule->expert_hi);
			json_end_array(json);
		}
		json_end_object(json);
	}
	json_end_array(json);
}

static void put_ranks(struct make *make)
{
	struct json_writer *json = &make->json;
	const struct ranks *ranks = &make->ranks;
	json_begin_object(json, "meshes");
	for (uint32_t m = 0; m < ranks->mesh_count; m++) {
		json_begin_object(json, ranks->mesh[m].name);
		json_begin_array(json, "axes");
		for (uint32_t i = 0; i < ranks->mesh[m].axis_count; i++) {
			json_begin_array(json, NULL);
			json_put_text(json, NULL, ranks->mesh[m].axis[i].name);
			json_put_integer(json, NULL, ranks->mesh[m].axis[i].size);
			json_end_array(json);
		}
		json_end_array(json);
		json_end_object(json);
	}
	json_end_object(json);
	json_begin_object(json, "axes");
	for (uint32_t b = 0; b < ranks->binding_count; b++) {
		const struct ranks_binding *binding = &ranks->binding[b];
		if (binding->part_count == 0)
			json_put_integer(json, binding->name, 1);
		else if (binding->part_count == 1)
			json_put_text(json, binding->name, binding->part[0]);
		if (binding->part_count < 2)
			continue;
		json_begin_array(json, binding->name);
		for (uint32_t i = 0; i < binding->part_count; i++)
			json_put_text(json, NULL, binding->part[i]);
		json_end_array(json);
	}
	json_end_object(json);
	if (ranks->stage_count > 1) {
		json_begin_object(json, "stages");
		json_put_text(json, "axis", "pp");
		json_begin_array(json, "of");
		for (uint32_t i = 0; i < ranks->layer_count; i++)
			json_put_integer(json, NULL, ranks->layer_stage[i]);
		json_end_array(json);
		json_end_object(json);
	}
	json_begin_object(json, "experts");
	json_put_text(json, "axis", "ep");
	json_put_text(json, "place", ranks->round_robin ? "round_robin" : "linear");
	json_end_object(json);
}

static int put_sets(struct make *make)
{
	static const char *const sets[] = {"all", "dense", "moe", "mtp"};
	uint8_t *member = arena_array(&make->arena, (size_t)make->layer_end + 1, 1);
	if (member == NULL)
		return -ENOMEM;
	json_begin_object(&make->json, "layers");
	for (size_t s = 0; s < ARRAY_SIZE(sets); s++) {
		for (int32_t layer = 0; layer < make->layer_end; layer++)
			member[layer] = in_set(make, sets[s], layer);
		put_ranges(&make->json, sets[s], member, make->layer_end);
	}
	json_end_object(&make->json);
	return 0;
}

static void put_sym(struct make *make)
{
	const struct model *model = make->model;
	int64_t heads = model_number(model, "num_attention_heads", 1);
	int64_t hidden = model_number(model, "hidden_size", 0);
	json_begin_object(&make->json, "sym");
	json_put_integer(&make->json, "num_hidden_layers", model->layer_count);
	json_put_integer(&make->json, "num_attention_heads", heads);
	json_put_integer(&make->json, "num_key_value_heads",
			 model_number(model, "num_key_value_heads", heads));
	json_put_integer(&make->json, "head_dim",
			 model_number(model, "head_dim", heads > 0 ? hidden / heads : 0));
	json_put_integer(&make->json, "vocab_div", 128);
	json_end_object(&make->json);
}

/* "f32:bf16,bf16:f16" */
static void put_casts(struct make *make)
{
	char text[256], *rest = text;
	if (make->options->casts == NULL)
		return;
	if (strlen(make->options->casts) >= sizeof(text))
		return findings_add(&make->found, "cast", "casts", "the text is too long");
	strcpy(text, make->options->casts);
	json_begin_array(&make->json, "casts");
	for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ","))
		json_put_text(&make->json, NULL, item);
	json_end_array(&make->json);
}

static void put_scheme(struct make *make)
{
	static const struct {
		const char *name, *kind;
		int64_t block[2]; /* 0: no blocks */
	} schemes[] = {{"fp8-block", "block", {128, 128}},
		       {"fp8-channel", "channel", {0, 0}},
		       {"fp8-tensor", "tensor", {0, 0}}};
	struct json_writer *json = &make->json;
	const char *quant = make->options->quant;
	size_t i = 0;
	if (quant == NULL)
		return;
	while (i < ARRAY_SIZE(schemes) && strcmp(schemes[i].name, quant) != 0)
		i++;
	if (i == ARRAY_SIZE(schemes))
		return findings_add(&make->found, "quant", quant,
				    "there are fp8-block, fp8-channel and fp8-tensor");
	if (make->options->side == SIDE_TRAINER)
		findings_add(&make->found, "quant", quant, "trainers hold unquantized params");
	json_begin_object(json, "schemes");
	json_begin_object(json, quant);
	json_put_text(json, "kind", schemes[i].kind);
	if (schemes[i].block[0] > 0) {
		json_begin_array(json, "block");
		json_put_integer(json, NULL, schemes[i].block[0]);
		json_put_integer(json, NULL, schemes[i].block[1]);
		json_end_array(json);
	}
	json_put_text(json, "fmt", "e4m3");
	json_put_text(json, "scale", "f32");
	json_put_number(json, "eps", 1e-4, -1);
	json_put_bool(json, "pow2", false);
	json_put_bool(json, "recip", true);
	json_end_object(json);
	json_end_object(json);
}

/* ---- FSDP2. */

static bool has_part(const char *name, const char *const *parts)
{
	for (uint32_t i = 0; parts[i] != NULL; i++) {
		if (strstr(name, parts[i]) != NULL)
			return true;
	}
	return false;
}

/* The dim that tensor parallelism cuts, -1 for none: by Hugging Face's names. */
static int tp_dim(const struct tensor_rule *rule)
{
	static const char *const columns[] = {
		".q_proj.",  ".k_proj.",	  ".v_proj.",	 ".gate_proj.",
		".up_proj.", ".q_b_proj.",	  ".kv_b_proj.", "embed_tokens.",
		"lm_head.",  "shared_head.head.", NULL};
	static const char *const rows[] = {".o_proj.", ".down_proj.", NULL};
	if (has_part(rule->name, columns))
		return 0;
	return rule->dim_count == 2 && has_part(rule->name, rows) ? 1 : -1;
}

static void put_dtype(struct make *make, const struct json *own)
{
	if (own != NULL)
		json_put_value(&make->json, "dtype", own);
	else if (make->options->dtype != NULL)
		json_put_text(&make->json, "dtype", make->options->dtype);
}

static void put_fsdp2_param(struct make *make, const struct tensor_rule *rule)
{
	struct json_writer *json = &make->json;
	bool tp = false;
	for (uint32_t i = 0; i < make->ranks.mesh[0].axis_count; i++)
		tp = tp || strcmp(make->ranks.mesh[0].axis[i].name, "tp") == 0;
	int dim = tp ? tp_dim(rule) : -1;
	json_begin_object(json, NULL);
	json_put_text(json, "p", rule->name);
	if (rule->layer_lo >= 0) {
		json_begin_object(json, "each");
		json_begin_array(json, "L");
		json_put_integer(json, NULL, rule->layer_lo);
		json_put_integer(json, NULL, rule->layer_hi);
		json_end_array(json);
		if (rule->expert_lo >= 0)
			json_put_text(json, "E", "ep");
		json_end_object(json);
	}
	/* Tensor parallel first, FSDP inside, though dp stands left in the mesh. */
	json_begin_array(json, "x");
	json_put_text(json, NULL, "s");
	if (dim >= 0) {
		json_begin_array(json, NULL);
		json_put_text(json, NULL, "s");
	}
	json_begin_array(json, NULL);
	json_put_text(json, NULL, "t");
	json_put_text(json, NULL, rule->name);
	json_end_array(json);
	if (dim >= 0) {
		json_put_integer(json, NULL, dim);
		json_put_text(json, NULL, "tp");
		json_end_array(json);
	}
	json_put_integer(json, NULL, 0);
	json_put_text(json, NULL, "dp");
	json_begin_object(json, NULL);
	json_put_text(json, "mode", "chunk");
	json_end_object(json);
	json_end_array(json);
	put_dtype(make, NULL);
	json_end_object(json);
}

/* ---- Presets. */

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
		if (!in_set(make, set, layer))
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
		put_ranges(&make->json, "L", param->member, make->layer_end);
	if (e != NULL)
		json_put_value(&make->json, "E", e);
	json_end_object(&make->json);
}

/* An expression with the tied head's tensor in it; as deep as the preset, which is ours. */
static void put_expr(struct make *make, const struct preset_param *param, const struct json *x)
{
	if (x->type != JSON_ARRAY) {
		if (x->type == JSON_STRING)
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

/* Linear weights are quantized; router, embedding, head, norms, biases and eh_proj aren't. */
static bool is_quantized(const struct preset_param *param)
{
	for (uint32_t i = 0; i < param->name_count; i++) {
		const char *name = param->names[i];
		if (strstr(name, "_proj") == NULL || strstr(name, ".weight") == NULL ||
		    strstr(name, "eh_proj") != NULL)
			return false;
	}
	return true;
}

static void put_param(struct make *make, const struct preset_param *param, const char *stage)
{
	static const char *const kept[] = {"kind", "model", "derived"};
	struct json_writer *json = &make->json;
	const char *name = json_text(param->json, "p", "");
	char scale[NAME_BYTES_MAX];
	json_begin_object(json, NULL);
	json_put_text(json, "p", name);
	put_each(make, param);
	json_put_value(json, "mesh", json_get(param->json, "mesh"));
	put_expr(make, param, json_get(param->json, "x"));
	if (stage != NULL)
		json_put_text(json, "stage", stage);
	if (make->options->quant != NULL && is_quantized(param)) {
		snprintf(scale, sizeof(scale), "%s_scale_inv", name);
		json_put_text(json, "dtype", "f8e4m3");
		json_put_text(json, "q", make->options->quant);
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

static int put_preset_param(struct make *make, const struct json *json)
{
	struct preset_param param = {.json = json};
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
	/* Its last stage also has the embedding where it runs an MTP layer. */
	if (megatron && pipeline && strcmp(param.names[0], "model.embed_tokens.weight") == 0 &&
	    make->layer_end > make->model->layer_count)
		put_param(make, &param, "last");
	return 0;
}

static void check_read(struct make *make)
{
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		const struct tensor_rule *rule = &make->model->tensors[i];
		int32_t lo = MAX(rule->layer_lo, -1), hi = rule->layer_lo < 0 ? 0 : rule->layer_hi;
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

static int put_preset(struct make *make, struct ws_error *err)
{
	static const struct json_limits limits = {
		.bytes_max = 1u << 20, .depth_max = 32, .node_count_max = 1u << 16};
	const struct builtin_file *file = builtin_files;
	const struct json *preset;
	char name[64];
	const char *family = "gqa";
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		if (strstr(make->model->tensors[i].name, ".kv_b_proj.") != NULL)
			family = "mla";
	}
	snprintf(name, sizeof(name), "presets/%s-%s", make->options->layout, family);
	while (file->name != NULL && strcmp(file->name, name) != 0)
		file++;
	if (file->name == NULL)
		return ws_fail(err, -EINVAL, "there is no preset '%s'", name);
	int rc = json_parse(&make->arena, file->text, strlen(file->text), &limits, &preset, err);
	if (rc != 0)
		return rc;
	for (const struct json *it = json_get(preset, "params")->first; it != NULL; it = it->next) {
		if (put_preset_param(make, it) != 0)
			return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	}
	check_read(make);
	return 0;
}

/* ---- All of it. */

static int make_begin(struct make *make, struct ws_error *err)
{
	const struct model *model = make->model;
	make->read = arena_array(&make->arena, model->tensor_count, sizeof(uint8_t *));
	make->layer_end = model->layer_count;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		make->layer_end = MAX(make->layer_end, model->tensors[i].layer_hi);
	for (uint32_t i = 0; make->read != NULL && i < model->tensor_count; i++) {
		make->read[i] = arena_array(&make->arena, (size_t)make->layer_end + 1, 1);
		if (make->read[i] == NULL)
			make->read = NULL;
	}
	if (make->read == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	make->tied = !model_has(model, "lm_head.weight", -1);
	if (make->options->dtype != NULL && ws_dtype_parse(make->options->dtype) == WS_NONE)
		findings_add(&make->found, "dtype", "dtype", "'%s' is no dtype; a good one is f32",
			     make->options->dtype);
	return layout_ranks(model, make->options->layout, make->options->mesh, &make->arena,
			    &make->ranks, &make->found, err);
}

static int make_text(struct make *make, struct ws_error *err)
{
	struct json_writer *json = &make->json;
	int rc = 0;
	json_begin_object(json, NULL);
	json_put_integer(json, "ws_manifest", 1);
	json_put_text(json, "side", make->options->side == SIDE_TRAINER ? "trainer" : "rollout");
	json_put_text(json, "framework", make->options->layout);
	json_put_text(json, "model", make->model->name);
	json_put_integer(json, "world", make->ranks.world);
	put_sym(make);
	put_tensors(make);
	put_ranks(make);
	if (put_sets(make) != 0)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	put_casts(make);
	put_scheme(make);
	json_begin_array(json, "params");
	if (strcmp(make->options->layout, "fsdp2") == 0) {
		for (uint32_t i = 0; i < make->model->tensor_count; i++)
			put_fsdp2_param(make, &make->model->tensors[i]);
	} else {
		rc = put_preset(make, err);
	}
	json_end_array(json);
	json_end_object(json);
	write_bytes(json->out, "\n", 1);
	return rc;
}

int manifest_make(const struct model *model, const struct manifest_options *options,
		  struct writer *out, struct findings *findings, struct ws_error *err)
{
	struct make make = {
		.model = model, .options = options, .json = {.out = out, .pretty = true}};
	make.found.arena = &make.arena;
	size_t start = out->count;
	int rc = make_begin(&make, err);
	if (rc == 0 && make.found.count == 0)
		rc = make_text(&make, err);
	if (rc == 0 && out->failed)
		rc = ws_fail(err, -ENOMEM, "out of memory for the manifest");
	if (rc == 0 && make.found.count == 0) {
		struct manifest *manifest;
		rc = manifest_parse(&manifest, out->bytes + start, out->count - start, &make.found,
				    err);
		manifest_free(manifest);
		rc = make.found.count > 0 ? 0 : rc;
	}
	for (const struct finding *it = make.found.first; findings != NULL && it != NULL;
	     it = it->next)
		findings_add(findings, it->kind, it->where, "%s", it->text);
	if (rc == 0)
		rc = findings_fail(&make.found, -EINVAL, err);
	arena_release(&make.arena);
	return rc;
}
