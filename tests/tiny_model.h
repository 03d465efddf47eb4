/* SPDX-License-Identifier: Apache-2.0 */
/* The small model of tests/dumps (config.json there), for tests and fuzzers of importers. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <assert.h>
#include <string.h>

#include "planner/planner.h"

static const struct {
	const char *before, *behind; /* the layer's number; behind NULL: it has none */
	uint64_t dim[2];
	bool experts;
} tiny_tensors[] = {
	{"model.embed_tokens.weight", NULL, {1000, 40}, false},
	{"model.norm.weight", NULL, {40}, false},
	{"lm_head.weight", NULL, {1000, 40}, false},
	{"model.layers.", ".input_layernorm.weight", {40}, false},
	{"model.layers.", ".post_attention_layernorm.weight", {40}, false},
	{"model.layers.", ".self_attn.q_proj.weight", {64, 40}, false},
	{"model.layers.", ".self_attn.k_proj.weight", {32, 40}, false},
	{"model.layers.", ".self_attn.v_proj.weight", {32, 40}, false},
	{"model.layers.", ".self_attn.o_proj.weight", {40, 64}, false},
	{"model.layers.", ".self_attn.q_norm.weight", {16}, false},
	{"model.layers.", ".self_attn.k_norm.weight", {16}, false},
	{"model.layers.", ".mlp.gate.weight", {8, 40}, false},
	{"model.layers.", ".gate_proj.weight", {24, 40}, true},
	{"model.layers.", ".up_proj.weight", {24, 40}, true},
	{"model.layers.", ".down_proj.weight", {40, 24}, true},
};

/* Run in the root of the tree.  The caller frees it. */
static inline struct model *tiny_model(void)
{
	struct tensor_listing list[256];
	struct arena arena = {0};
	struct model *model;
	void *config;
	size_t bytes;
	uint32_t count = 0;
	for (size_t i = 0; i < ARRAY_SIZE(tiny_tensors); i++) {
		const char *before = tiny_tensors[i].before, *behind = tiny_tensors[i].behind;
		const uint64_t *dim = tiny_tensors[i].dim;
		for (int l = 0; l < (behind != NULL ? 4 : 1); l++) {
			for (int e = 0; e < (tiny_tensors[i].experts ? 8 : 1); e++) {
				const char *name = before;
				if (tiny_tensors[i].experts)
					name = arena_text(&arena, "%s%d.mlp.experts.%d%s", before,
							  l, e, behind);
				else if (behind != NULL)
					name = arena_text(&arena, "%s%d%s", before, l, behind);
				assert(name != NULL);
				list[count++] =
					(struct tensor_listing){.name = name,
								.dtype = WS_BF16,
								.dim_count = dim[1] == 0 ? 1 : 2,
								.dim = {dim[0], dim[1]}};
			}
		}
	}
	int rc = file_read("tests/dumps/config.json", 1u << 16, &config, &bytes, NULL);
	assert(rc == 0);
	rc = model_from_tensors(&model, "tiny", config, bytes, list, count, NULL);
	assert(rc == 0);
	mem_free(config);
	arena_release(&arena);
	return model;
}

#endif
