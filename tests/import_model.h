/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of importers do with the small model. */
#ifndef IMPORT_MODEL_H
#define IMPORT_MODEL_H

#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/tiny_model.h"

/* Imports a dump's text; a refusal fails the test with its sentence. */
static inline struct manifest *import_good(const struct model *model, const char *from,
					   const void *text, size_t bytes)
{
	struct import_options options = {.side = SIDE_TRAINER, .from = from};
	struct writer out = WRITER_INIT(64u << 20);
	struct manifest *manifest;
	struct ws_error err = {0};
	ck_ok(manifest_import(model, &options, text, bytes, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	writer_release(&out);
	return manifest;
}

static inline struct manifest *make_layout(const struct model *model, const char *layout,
					   const char *mesh, const char *dtype)
{
	struct manifest_options options = {
		.side = SIDE_TRAINER, .layout = layout, .mesh = mesh, .dtype = dtype};
	struct writer out = WRITER_INIT(64u << 20);
	struct manifest *manifest;
	struct ws_error err = {0};
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	writer_release(&out);
	return manifest;
}

/* As Transformer Engine's params are called, for those of Megatron's own modules, and for "fused",
 * which is nobody's. */
static inline const char *engine_name(const char *name, char *out, size_t room)
{
	const char *experts = strstr(name, ".local_experts.");
	const char *norm = strstr(name, ".input_layernorm.weight");
	unsigned expert;
	char kind;
	if (experts != NULL &&
	    sscanf(experts, ".local_experts.%u.linear_fc%c.weight", &expert, &kind) == 2)
		snprintf(out, room, "%.*s.linear_fc%c.weight%u", (int)(experts - name), name, kind,
			 expert);
	else if (experts != NULL && sscanf(experts, ".local_experts.%u.fused.", &expert) == 1)
		snprintf(out, room, "%.*s.linear_fc1.weight%u", (int)(experts - name), name,
			 expert);
	else if (norm != NULL && strncmp(name, "decoder.", 8) == 0)
		snprintf(out, room, "%.*s.self_attention.linear_qkv.layer_norm_weight",
			 (int)(norm - name), name);
	else
		return name;
	return out;
}

/* Both hold the same elements at the same places of the same params, but for vocabularies where
 * their padding isn't the same. */
static inline void same_pieces(const struct manifest *mine, const struct manifest *theirs,
			       uint32_t rank, bool same_dtypes, bool same_padding)
{
	struct arena arena = {0};
	struct rank_params a, b;
	struct ws_error err = {0};
	ck_ok(manifest_params(mine, rank, &arena, &a, &err), err);
	ck_ok(manifest_params(theirs, rank, &arena, &b, &err), err);
	ck_assert_uint_eq(a.count, b.count);
	for (uint32_t i = 0; i < a.count; i++) {
		char name[256];
		int64_t at =
			rank_params_find(&b, engine_name(a.params[i].name, name, sizeof(name)));
		ck_assert_msg(at >= 0, "rank %u has no %s", rank, a.params[i].name);
		const struct param *x = &a.params[i], *y = &b.params[at];
		if (!same_padding && (strstr(x->name, "word_embeddings") != NULL ||
				      strstr(x->name, "output_layer") != NULL))
			continue;
		ck_assert(!same_dtypes || x->dtype == y->dtype);
		ck_assert_uint_eq(x->form->element_count, y->form->element_count);
		ck_assert_uint_eq(x->form->piece_count, y->form->piece_count);
		for (uint32_t p = 0; p < x->form->piece_count; p++) {
			const struct piece *v = &x->form->pieces[p], *w = &y->form->pieces[p];
			char v_name[256], w_name[256];
			tensor_name(manifest_tensor(mine, v->tensor), x->layer,
				    param_expert(mine, rank, x, v->slot), v_name, sizeof(v_name));
			tensor_name(manifest_tensor(theirs, w->tensor), y->layer,
				    param_expert(theirs, rank, y, w->slot), w_name, sizeof(w_name));
			ck_assert_str_eq(v_name, w_name);
			ck_assert_uint_eq(v->place, w->place);
			ck_assert_int_eq(memcmp(v->offset, w->offset, sizeof(v->offset)), 0);
			ck_assert_int_eq(memcmp(v->extent, w->extent, sizeof(v->extent)), 0);
			for (uint32_t d = 0; d < v->dim_count; d++)
				ck_assert(v->extent[d] == 1 || v->stride[d] == w->stride[d]);
		}
	}
	arena_release(&arena);
}

#endif
