/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests from a layout's name, a mesh and a model: everything but the params, which preset.c
 * writes.  What was written is parsed again, so that a manifest that can't be is never handed
 * out.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

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

bool make_in_set(const struct make *make, const char *set, int32_t layer)
{
	uint32_t kind = layer_kind(make, layer);
	if (strcmp(set, "all") == 0)
		return true;
	return (strcmp(set, "dense") == 0 && (kind & KIND_DENSE) != 0) ||
	       (strcmp(set, "moe") == 0 && (kind & KIND_MOE) != 0) ||
	       (strcmp(set, "mtp") == 0 && (kind & KIND_MTP) != 0);
}

void make_put_ranges(struct json_writer *json, const char *key, const uint8_t *member, int32_t end)
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

void make_put_tensors(struct json_writer *json, const struct model *model)
{
	json_begin_array(json, "tensors");
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *rule = &model->tensors[i];
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
	if (make->options->eplb != NULL)
		make_put_eplb(make);
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
			member[layer] = make_in_set(make, sets[s], layer);
		make_put_ranges(&make->json, sets[s], member, make->layer_end);
	}
	json_end_object(&make->json);
	return 0;
}

/* A symbol that presets of some families use; left out where the model has none. */
static void put_symbol(struct json_writer *json, const char *name, int64_t value)
{
	if (value > 0)
		json_put_integer(json, name, value);
}

/* A config's number as a factor: no product of two overflows. */
static int64_t factor(const struct model *model, const char *key, int64_t fallback)
{
	return MIN(MAX(model_number(model, key, fallback), 0), INT32_MAX);
}

void make_put_sym(struct json_writer *json, const struct model *model, uint64_t vocab_div)
{
	int64_t heads = factor(model, "num_attention_heads", 1);
	int64_t hidden = factor(model, "hidden_size", 0);
	int64_t head_dim = factor(model, "head_dim", heads > 0 ? hidden / heads : 0);
	int64_t nope = factor(model, "qk_nope_head_dim", 0);
	int64_t value = factor(model, "v_head_dim", 0);
	int64_t inner = factor(model, "intermediate_size", 0);
	int64_t expert_rows = factor(model, "moe_intermediate_size", inner);
	json_begin_object(json, "sym");
	json_put_integer(json, "num_hidden_layers", model->layer_count);
	json_put_integer(json, "num_attention_heads", heads);
	json_put_integer(json, "num_key_value_heads", factor(model, "num_key_value_heads", heads));
	json_put_integer(json, "head_dim", head_dim);
	json_put_u64(json, "vocab_div", vocab_div);
	json_put_integer(json, "one", 1);
	put_symbol(json, "rope_half", head_dim / 2);
	put_symbol(json, "expert_rows", expert_rows);
	put_symbol(json, "expert_rows_2", 2 * expert_rows);
	put_symbol(json, "kv_b_rows", nope + value);
	put_symbol(json, "qk_nope_head_dim", nope);
	put_symbol(json, "v_head_dim", value);
	put_symbol(json, "kv_lora_rank", factor(model, "kv_lora_rank", 0));
	put_symbol(json, "kv_half_rows", nope == value ? nope : 0);
	put_symbol(json, "kv_b_half", heads * nope);
	put_symbol(json, "kv_b_all", heads * (nope + value));
	json_end_object(json);
}

/* "f32:bf16,bf16:f16" */
void make_put_casts(struct json_writer *json, const char *casts, struct findings *found)
{
	char text[256], *rest = text;
	if (casts == NULL)
		return;
	if (strlen(casts) >= sizeof(text))
		return findings_add(found, "cast", "casts", "the text is too long");
	snprintf(text, sizeof(text), "%s", casts);
	json_begin_array(json, "casts");
	for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ","))
		json_put_text(json, NULL, item);
	json_end_array(json);
}

static int make_begin(struct make *make, struct ws_error *err)
{
	const struct model *model = make->model;
	int rc = layout_ranks(model, make->options->layout, make->options->mesh, &make->arena,
			      &make->ranks, &make->found, err);
	make->read = arena_array(&make->arena, model->tensor_count, sizeof(uint8_t *));
	make->layer_end = model->layer_count;
	for (uint32_t i = 0; i < model->tensor_count && !make->ranks.no_mtp; i++)
		make->layer_end = MAX(make->layer_end, model->tensors[i].layer_hi);
	for (uint32_t i = 0; make->read != NULL && i < model->tensor_count; i++) {
		make->read[i] = arena_array(&make->arena, (size_t)make->layer_end + 1, 1);
		if (make->read[i] == NULL)
			make->read = NULL;
	}
	if (make->read == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	make->tied = !model_has(model, "lm_head.weight", -1);
	const struct json *tie = json_get(model->config, "tie_word_embeddings");
	if (make->ranks.source == FROM_PRESET && make->tied && tie != NULL &&
	    tie->type == JSON_FALSE)
		findings_add(
			&make->found, "tensor", "lm_head.weight",
			"the model has no head, and its config doesn't tie it to the embedding");
	if (make->options->dtype != NULL && ws_dtype_parse(make->options->dtype) == WS_NONE)
		findings_add(&make->found, "dtype", "dtype", "'%s' is no dtype; a good one is f32",
			     make->options->dtype);
	return rc;
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
	make_put_sym(json, make->model, 128);
	make_put_tensors(json, make->model);
	put_ranks(make);
	if (put_sets(make) != 0)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	make_put_casts(json, make->options->casts, &make->found);
	make_put_scheme(make);
	json_begin_array(json, "params");
	if (make->ranks.source == FROM_PRESET)
		rc = make_preset(make, err);
	else
		make_generated(make);
	json_end_array(json);
	if (rc == 0 && make->options->derived)
		rc = make_preset_derived(make, err);
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
	if (findings != NULL)
		findings_merge(findings, &make.found);
	if (rc == 0 && make.found.count > 0)
		rc = report_first(&make.found, err);
	arena_release(&make.arena);
	return rc;
}
