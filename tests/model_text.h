/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of models share: the built-in ones, their names put in and compressed again, and
 * whether the ranks of a manifest together hold every element. */
#ifndef MODEL_TEXT_H
#define MODEL_TEXT_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

/* Elements and bytes of models/ (without rotary_emb.inv_freq), as published or cast to BF16. */
static const struct {
	const char *name;
	uint64_t tensors, bytes;
} totals[] = {
	{"llama-3-70b", 723, 141107412992},
	{"qwen3-32b", 707, 65524246528},
	{"qwen3-30b-a3b", 18867, 61064245248},
	{"qwen3-235b-a22b", 36945, 470187269120},
	{"deepseek-v3", 46183, 1368979721216},
	{"kimi-k2", 69975, 2052816510976},
	{"glm-4.5", 44691, 716675611392},
	{"glm-4.6", 44689, 713571826432},
	{"gpt-oss-120b", 615, 233658313344},
	{"qwen3-32b-fp8", 1155, 34322434048},
	{"qwen3-30b-a3b-fp8", 37491, 31170895872},
	{"qwen3-235b-a22b-fp8", 73417, 236416915456},
	{"deepseek-v3-fp8", 91991, 688574839360},
	{"kimi-k2-fp8", 139644 - 61, 1029173256720 - 61 * 112},
	{"kimi-k2-int4", 208276 - 61, 594205920512 - 61 * 256},
	{"gpt-oss-120b-mxfp4", 687, 65248815744},
};

#define PRESET_MODELS 8 /* the first ones have presets */

static inline struct model *builtin(const char *name)
{
	struct ws_error err = {0};
	struct model *model;
	ck_ok(model_builtin(&model, name, &err), err);
	return model;
}

static inline uint64_t rule_count_of(const struct tensor_rule *rule)
{
	uint64_t layers = rule->layer_lo < 0 ? 1 : (uint64_t)(rule->layer_hi - rule->layer_lo);
	return layers * (rule->expert_lo < 0 ? 1 : (uint64_t)(rule->expert_hi - rule->expert_lo));
}

static inline uint64_t elements_of(const struct tensor_rule *rule)
{
	uint64_t elements = 1;
	for (uint32_t d = 0; d < rule->dim_count; d++)
		elements *= rule->dim[d];
	return elements;
}

static inline uint64_t bytes_of(const struct model *model)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < model_tensor_count(model); i++) {
		const struct tensor_rule *rule = model_tensor(model, i);
		bytes += rule_count_of(rule) * elements_of(rule) * ws_dtype_bytes(rule->dtype);
	}
	return bytes;
}

/* ---- Compressing a checkpoint's names. */

static inline uint32_t expand(const struct model *model, struct arena *arena,
			      struct tensor_listing **out)
{
	uint64_t total = 0;
	uint32_t count = 0;
	for (uint32_t i = 0; i < model_tensor_count(model); i++)
		total += rule_count_of(model_tensor(model, i));
	struct tensor_listing *list = arena_array(arena, total, sizeof(*list));
	for (uint32_t i = 0; i < model_tensor_count(model); i++) {
		const struct tensor_rule *rule = model_tensor(model, i);
		for (int32_t l = MAX(rule->layer_lo, 0); l < MAX(rule->layer_hi, 1); l++) {
			for (int32_t e = MAX(rule->expert_lo, 0); e < MAX(rule->expert_hi, 1);
			     e++) {
				char name[256];
				tensor_name(rule, l, e, name, sizeof(name));
				list[count].name = arena_text(arena, "%s", name);
				list[count].dtype = rule->dtype;
				list[count].dim_count = rule->dim_count;
				memcpy(list[count++].dim, rule->dim, sizeof(rule->dim));
			}
		}
	}
	/* In no order at all. */
	for (uint32_t i = count; i > 1; i--) {
		uint32_t with = (uint32_t)(mix64(i) % i);
		struct tensor_listing last = list[i - 1];
		list[i - 1] = list[with];
		list[with] = last;
	}
	*out = list;
	return count;
}

static inline bool same_rule(const struct tensor_rule *a, const struct tensor_rule *b)
{
	return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype &&
	       a->dim_count == b->dim_count && a->layer_lo == b->layer_lo &&
	       a->layer_hi == b->layer_hi && a->expert_lo == b->expert_lo &&
	       a->expert_hi == b->expert_hi &&
	       memcmp(a->dim, b->dim, a->dim_count * sizeof(a->dim[0])) == 0;
}

static inline struct model *compressed(const struct model *model)
{
	struct arena arena = {0};
	struct writer config = WRITER_INIT(1 << 20);
	struct tensor_listing *list;
	struct ws_error err = {0};
	struct model *again;
	uint32_t count = expand(model, &arena, &list);
	ck_ok(model_config(model, &config, &err), err);
	ck_ok(model_from_tensors(&again, model_name(model), config.bytes, config.count, list, count,
				 &err),
	      err);
	arena_release(&arena);
	writer_release(&config);
	return again;
}

static inline void same_models(const struct model *a, const struct model *b)
{
	ck_assert_uint_eq(model_tensor_count(a), model_tensor_count(b));
	for (uint32_t i = 0; i < model_tensor_count(a); i++) {
		uint32_t j = 0;
		while (j < model_tensor_count(b) &&
		       !same_rule(model_tensor(a, i), model_tensor(b, j)))
			j++;
		ck_assert_msg(j < model_tensor_count(b), "%s", model_tensor(a, i)->name);
	}
}

/* ---- Manifests. */

static inline struct manifest *make(const struct model *model, enum side side, const char *layout,
				    const char *mesh)
{
	struct manifest_options options = {.side = side, .layout = layout, .mesh = mesh};
	struct writer out = WRITER_INIT(64 << 20);
	struct ws_error err = {0};
	struct manifest *manifest;
	int rc = manifest_make(model, &options, &out, NULL, &err);
	ck_assert_msg(rc == 0, "%s %s %s: %s", model_name(model), layout, mesh, err.text);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	writer_release(&out);
	return manifest;
}

/* Boxes of one tensor that some rank holds, each once. */
struct held {
	uint32_t count, room;
	struct piece *boxes;
	uint64_t volume;
};

static inline void hold(struct held *held, const struct piece *piece)
{
	uint64_t volume = 1;
	for (uint32_t i = 0; i < held->count; i++) {
		if (memcmp(held->boxes[i].offset, piece->offset, sizeof(piece->offset)) == 0 &&
		    memcmp(held->boxes[i].extent, piece->extent, sizeof(piece->extent)) == 0)
			return;
	}
	if (held->count == held->room) {
		uint32_t room = held->room * 2 + 16;
		held->boxes =
			mem_grow(held->boxes, held->room * sizeof(*piece), room * sizeof(*piece));
		held->room = room;
	}
	held->boxes[held->count++] = *piece;
	for (uint32_t d = 0; d < piece->dim_count; d++)
		volume *= piece->extent[d];
	held->volume += volume;
}

/* Pieces are sorted by tensor: the first ones of a stack tell. */
static inline bool reads(const struct form *form, uint32_t tensor)
{
	uint32_t low = 0, high = form->piece_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (form->pieces[middle].tensor < tensor)
			low = middle + 1;
		else
			high = middle;
	}
	return low < form->piece_count && form->pieces[low].tensor == tensor;
}

/* The boxes of a tensor at a layer and expert, over all ranks. */
static inline uint64_t held_volume(const struct manifest *manifest, uint32_t tensor, int32_t layer,
				   int32_t expert)
{
	struct held held = {0};
	struct ws_error err = {0};
	for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
		for (uint32_t rule = 0; rule < manifest_rule_count(manifest); rule++) {
			const struct form *form;
			const int32_t *layers, *experts;
			uint32_t count = manifest_layers(manifest, rule, rank, &layers), i = 0;
			while (i < count && layers[i] >= 0 && layers[i] != layer)
				i++;
			if (i == count)
				continue;
			ck_ok(manifest_form(manifest, rule, rank, &form, &err), err);
			if (!reads(form, tensor))
				continue;
			uint32_t expert_count =
				manifest_experts(manifest, rule, rank, layers[i], &experts);
			bool each = manifest_rule(manifest, rule)->each_expert, mine = false;
			for (uint32_t e = 0; e < expert_count; e++)
				mine = mine || experts[e] == expert;
			for (uint32_t p = 0; p < form->piece_count; p++) {
				const struct piece *piece = &form->pieces[p];
				bool right = piece->slot >= 0 ? experts[piece->slot] == expert
							      : !each || mine;
				if (piece->tensor == tensor && right)
					hold(&held, piece);
			}
		}
	}
	mem_free(held.boxes);
	return held.volume;
}

static inline bool is_alias(const char *name)
{
	return strcmp(name, "model.layers.{L}.embed_tokens.weight") == 0 ||
	       strcmp(name, "model.layers.{L}.shared_head.head.weight") == 0;
}

static inline void check_coverage(const struct manifest *manifest, bool aliases)
{
	for (uint32_t i = 0; i < manifest_tensor_count(manifest); i++) {
		const struct tensor_rule *rule = manifest_tensor(manifest, i);
		if (!aliases && is_alias(rule->name))
			continue;
		/* First and last layer, first, middle and last expert. */
		int32_t layers[] = {rule->layer_lo, rule->layer_hi - 1};
		int32_t experts[] = {rule->expert_lo, (rule->expert_lo + rule->expert_hi) / 2,
				     rule->expert_hi - 1};
		size_t layer_count = rule->layer_lo < 0 || layers[0] == layers[1] ? 1 : 2;
		size_t expert_count = rule->expert_lo < 0 ? 1 : ARRAY_SIZE(experts);
		for (size_t n = 0; n < layer_count * expert_count; n++) {
			int32_t layer = layers[n % layer_count], expert = experts[n / layer_count];
			if (rule->layer_lo < 0)
				layer = -1;
			if (rule->expert_lo < 0)
				expert = -1;
			uint64_t volume = held_volume(manifest, i, layer, expert);
			ck_assert_msg(volume == elements_of(rule),
				      "%s at layer %d, expert %d: %" PRIu64 " of %" PRIu64,
				      rule->name, layer, expert, volume, elements_of(rule));
		}
	}
}

#endif
