/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantization in manifests that are being made: `--quant` names a scheme for the linear weights
 * of a rollout, "fp8-block:64" one of other blocks than 128 x 128; a checkpoint that is quantized
 * already brings its scheme and its scales along.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define BLOCK_SIDE     128
#define BLOCK_SIDE_MAX 65536

static const struct made_scheme {
	const char *name, *kind, *suffix;
	bool block, pow2;
} schemes[] = {{"fp8-block", "block", "_scale_inv", true, false},
	       {"fp8-block-ue8m0", "block", "_scale_inv", true, true},
	       {"fp8-channel", "channel", "_scale", false, false},
	       {"fp8-tensor", "tensor", "_scale", false, false}};

/* Up to a colon. */
static const struct made_scheme *scheme_named(const char *name)
{
	size_t bytes = strcspn(name, ":");
	for (size_t i = 0; i < ARRAY_SIZE(schemes); i++) {
		if (strlen(schemes[i].name) == bytes && memcmp(schemes[i].name, name, bytes) == 0)
			return &schemes[i];
	}
	return NULL;
}

static const char *read_side(const char *at, uint64_t *side_out)
{
	*side_out = 0;
	for (; isdigit((unsigned char)*at) && *side_out <= BLOCK_SIDE_MAX; at++)
		*side_out = *side_out * 10 + (uint64_t)(*at - '0');
	return at;
}

/* What stands behind the colon: "64", "64x128" (rows, columns), or nothing. */
static bool read_block(const char *name, uint64_t block_out[2])
{
	const char *at = strchr(name, ':');
	block_out[0] = block_out[1] = BLOCK_SIDE;
	if (at == NULL)
		return true;
	at = read_side(at + 1, &block_out[0]);
	block_out[1] = block_out[0];
	if (*at == 'x')
		at = read_side(at + 1, &block_out[1]);
	for (uint32_t d = 0; d < 2; d++)
		if (block_out[d] == 0 || block_out[d] > BLOCK_SIDE_MAX)
			return false;
	return *at == '\0';
}

/* Qwen's FP8 files have BF16 scales, DeepSeek's and Kimi's F32 (layouts facts 1.3); those of
 * channels are GLM's [U]. */
static const char *usual_scale(const struct make *make, const struct made_scheme *scheme)
{
	const char *type = json_text(make->model->config, "model_type", "");
	if (scheme->pow2)
		return "ue8m0";
	if (strcmp(scheme->kind, "channel") == 0)
		return "bf16";
	return scheme->block && strncmp(type, "qwen", 4) == 0 ? "bf16" : "f32";
}

/* The scale of an FP8 weight that the model lists, and the scheme that it is of; NULL: none. */
static const struct tensor_rule *listed_scale(const struct model *model,
					      const struct tensor_rule *weight,
					      const struct made_scheme **scheme_out)
{
	size_t bytes = strlen(weight->name);
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *scale = &model->tensors[i];
		const char *suffix = scale->name + bytes;
		if (strncmp(scale->name, weight->name, bytes) != 0)
			continue;
		if (strcmp(suffix, "_scale_inv") == 0)
			*scheme_out = scheme_named("fp8-block");
		else if (strcmp(suffix, "_scale") == 0)
			*scheme_out =
				scheme_named(scale->dim_count == 2 ? "fp8-channel" : "fp8-tensor");
		else
			continue;
		return scale;
	}
	return NULL;
}

/* What a quantized checkpoint is quantized by, from the first FP8 weight with a scale; NULL: it
 * isn't. */
static const struct made_scheme *file_scheme(const struct model *model, const char **scale_out)
{
	const struct made_scheme *scheme = NULL;
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *weight = &model->tensors[i], *scale;
		if (weight->dtype != WS_F8_E4M3)
			continue;
		scale = listed_scale(model, weight, &scheme);
		if (scale == NULL)
			continue;
		*scale_out = ws_dtype_name(scale->dtype);
		return scheme;
	}
	return NULL;
}

/* Layer and expert -1: without. */
static const struct tensor_rule *rule_at(const struct model *model, const char *name, int32_t layer,
					 int32_t expert)
{
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *rule = &model->tensors[i];
		if (rule->layer_lo <= layer && layer < MAX(rule->layer_hi, rule->layer_lo + 1) &&
		    rule->expert_lo <= expert &&
		    expert < MAX(rule->expert_hi, rule->expert_lo + 1) &&
		    strcmp(rule->name, name) == 0)
			return rule;
	}
	return NULL;
}

/* Of each layer, and of each expert. */
static void check_scale(struct make *make, const struct tensor_rule *weight, const char *suffix)
{
	char name[NAME_BYTES_MAX];
	int32_t layer = weight->layer_lo, expert;
	const struct tensor_rule *scale;
	snprintf(name, sizeof(name), "%s%s", weight->name, suffix);
	do {
		expert = weight->expert_lo;
		while ((scale = rule_at(make->model, name, layer, expert)) != NULL &&
		       scale->expert_hi < weight->expert_hi)
			expert = scale->expert_hi;
	} while (scale != NULL && ++layer < weight->layer_hi);
	if (scale != NULL)
		return;
	tensor_name(weight, layer, expert, name, sizeof(name));
	findings_add(&make->found, "scale", name,
		     "it is %s, and model '%s' has no '%s%s': its file, or the index, isn't whole",
		     ws_dtype_name(weight->dtype), make->model->name, name, suffix);
}

static void put_scheme(struct json_writer *json, const char *name, const struct made_scheme *scheme,
		       const uint64_t block[2], const char *scale)
{
	json_begin_object(json, "schemes");
	json_begin_object(json, name);
	json_put_text(json, "kind", scheme->kind);
	if (scheme->block) {
		json_begin_array(json, "block");
		json_put_integer(json, NULL, (int64_t)block[0]);
		json_put_integer(json, NULL, (int64_t)block[1]);
		json_end_array(json);
	}
	json_put_text(json, "fmt", "e4m3");
	json_put_text(json, "scale", scale);
	json_put_text(json, "suffix", scheme->suffix);
	json_put_number(json, "eps", 1e-4, -1);
	json_put_bool(json, "pow2", scheme->pow2);
	json_put_bool(json, "recip", true);
	json_end_object(json);
	json_end_object(json);
}

void make_put_scheme(struct make *make)
{
	const char *wanted = make->options->quant, *scale = NULL;
	uint64_t block[2] = {BLOCK_SIDE, BLOCK_SIDE};
	const struct made_scheme *scheme = file_scheme(make->model, &scale);
	make->quantized_file = scheme != NULL;
	for (uint32_t i = 0; scheme != NULL && i < make->model->tensor_count; i++)
		if (make->model->tensors[i].dtype == WS_F8_E4M3)
			check_scale(make, &make->model->tensors[i], scheme->suffix);
	if (scheme != NULL && wanted != NULL) {
		findings_add(&make->found, "quant", wanted,
			     "model '%s' is quantized already, by '%s': leave --quant away",
			     make->model->name, scheme->name);
		wanted = NULL;
	}
	if (wanted != NULL) {
		scheme = scheme_named(wanted);
		if (scheme == NULL)
			return findings_add(&make->found, "quant", wanted,
					    "no scheme has this name; there are fp8-block, "
					    "fp8-block-ue8m0, fp8-channel and fp8-tensor");
		if (!scheme->block && wanted[strlen(scheme->name)] != '\0')
			return findings_add(&make->found, "quant", wanted,
					    "'%s' has no blocks, so nothing stands behind it",
					    scheme->name);
		if (!read_block(wanted, block))
			return findings_add(&make->found, "quant", wanted,
					    "behind the colon stands the side of a block, or its "
					    "rows and columns, 1 to %d: fp8-block:64, "
					    "fp8-block:64x128",
					    BLOCK_SIDE_MAX);
		if (make->options->side == SIDE_TRAINER)
			findings_add(&make->found, "quant", wanted,
				     "trainers hold what isn't quantized yet: --quant is for the "
				     "rollout's side");
		scale = usual_scale(make, scheme);
	}
	/* A rule per tensor has a rule for each scale of the file. */
	if (scheme == NULL || make->ranks.source != FROM_PRESET)
		return;
	make->quant = wanted != NULL ? wanted : scheme->name;
	make->scale_suffix = scheme->suffix;
	put_scheme(&make->json, make->quant, scheme, block, scale);
}

/* Linear weights are quantized; router, embedding, head, norms, biases and eh_proj aren't. */
static bool is_linear(const char *name)
{
	return strstr(name, "_proj") != NULL && strstr(name, ".weight") != NULL &&
	       strstr(name, "eh_proj") == NULL;
}

bool make_is_quantized(const struct make *make, const char *tensor)
{
	char scale[NAME_BYTES_MAX];
	if (make->quant == NULL || !make->quantized_file)
		return make->quant != NULL && is_linear(tensor);
	snprintf(scale, sizeof(scale), "%s%s", tensor, make->scale_suffix);
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		if (strcmp(make->model->tensors[i].name, scale) == 0)
			return true;
	}
	return false;
}
