/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a manifest's meaning: of what was parsed, written out again in one fixed way,
 * so that neither white space, key order, names of axes and sets nor notes count.
 */
#include <errno.h>
#include <string.h>

#include "planner/describe.h"

static void put_text(struct digest *digest, const char *text)
{
	if (text == NULL)
		text = "\1"; /* no name holds a control byte alone */
	digest_add(digest, text, strlen(text) + 1);
}

static void put(struct digest *digest, uint64_t value)
{
	uint8_t bytes[8];
	for (uint32_t i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(value >> (8 * i));
	digest_add(digest, bytes, sizeof(bytes));
}

/* No axis and one bound to 1 mean the same. */
static void put_axis(struct digest *digest, const struct axis *axis)
{
	put(digest, axis == NULL ? 0 : axis->part_count);
	for (uint32_t i = 0; axis != NULL && i < axis->part_count; i++) {
		put(digest, axis->part_divisor[i]);
		put(digest, axis->part_size[i]);
	}
}

/* Recurses at most EXPR_DEPTH_MAX deep. */
static void put_expr(struct digest *digest, const struct expr *expr)
{
	put(digest, (uint64_t)expr->op);
	put(digest, (uint64_t)expr->mode);
	put(digest, expr->dim);
	put(digest, expr->a);
	put(digest, expr->b);
	put(digest, expr->c);
	put_axis(digest, expr->axis);
	put(digest, expr->op == OP_T ? expr->tensor : 0);
	put(digest, expr->perm_count);
	for (uint32_t i = 0; i < expr->perm_count; i++)
		put(digest, expr->perm[i]);
	put(digest, expr->child_count);
	for (uint32_t i = 0; i < expr->child_count; i++)
		put_expr(digest, expr->child[i]);
}

static void put_form(struct digest *digest, const struct form *form)
{
	put(digest, form->dim_count);
	for (uint32_t d = 0; d < form->dim_count; d++)
		put(digest, form->dim[d]);
	put(digest, form->piece_count);
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *piece = &form->pieces[i];
		put(digest, piece->tensor);
		put(digest, (uint64_t)(int64_t)piece->slot);
		put(digest, piece->place);
		for (uint32_t d = 0; d < piece->dim_count; d++) {
			put(digest, piece->offset[d]);
			put(digest, piece->extent[d]);
			put(digest, (uint64_t)piece->stride[d]);
		}
	}
}

static void put_rule(struct digest *digest, const struct rule *rule)
{
	put_text(digest, rule->view.name);
	put(digest, (uint64_t)rule->view.dtype);
	put(digest, (uint64_t)rule->view.inplace << 3 | (uint64_t)rule->view.each_layer << 2 |
			    (uint64_t)rule->view.each_expert << 1 | rule->view.stacks_experts);
	put_text(digest, rule->view.post);
	put_text(digest, rule->view.quant);
	put(digest, rule->view.is_scale ? rule->view.weight_rule : UINT64_MAX);
	put_text(digest, rule->scale);
	put_text(digest, rule->kind);
	put_text(digest, rule->part_of);
	put(digest, (uint64_t)(int64_t)rule->stage);
	put(digest, rule->layer_count);
	for (uint32_t i = 0; i < rule->layer_count; i++)
		put(digest, (uint64_t)(int64_t)rule->layers[i]);
	put_axis(digest, rule->expert_axis);
	put(digest, rule->expr != NULL);
	if (rule->expr != NULL)
		put_expr(digest, rule->expr);
	if (rule->rows != NULL)
		put(digest, rule->rows->count);
	for (uint32_t i = 0; rule->rows != NULL && i < rule->rows->count; i++) {
		put(digest, rule->rows->ranks[i]);
		put_form(digest, rule->rows->forms[i]);
		put(digest, rule->rows->expert_count[i]);
		for (uint32_t e = 0; e < rule->rows->expert_count[i]; e++)
			put(digest, (uint64_t)(int64_t)
					    rule->rows->experts[rule->rows->expert_first[i] + e]);
	}
}

static void put_lists(struct digest *digest, const struct manifest *manifest)
{
	const struct expert_map *map = manifest->map;
	put_axis(digest, manifest->stage_axis);
	put(digest, manifest->stage_layer_count);
	for (uint32_t i = 0; i < manifest->stage_layer_count; i++)
		put(digest, manifest->stage_of[i]);
	put(digest, manifest->round_robin);
	put(digest, map == NULL ? 0 : map->coordinate_count);
	if (map != NULL)
		put(digest, (uint64_t)map->layers.lo);
	for (uint32_t c = 0; map != NULL && c < map->coordinate_count; c++)
		put(digest, map->counts[c]);
	for (size_t i = 0;
	     map != NULL && i < (size_t)map->total * (size_t)(map->layers.hi - map->layers.lo); i++)
		put(digest, (uint64_t)map->list[i]);
	put(digest, manifest->cast_count);
	for (uint32_t i = 0; i < manifest->cast_count; i++)
		put(digest, (uint64_t)manifest->casts[i][0] << 8 | (uint64_t)manifest->casts[i][1]);
	put(digest, manifest->scheme_count);
	for (uint32_t i = 0; i < manifest->scheme_count; i++) {
		const struct quant_scheme *scheme = &manifest->schemes[i];
		put_text(digest, scheme->name);
		put_text(digest, scheme->suffix);
		put(digest, (uint64_t)scheme->kind);
		put(digest, (uint64_t)scheme->code << 8 | (uint64_t)scheme->scale);
		put(digest, scheme->block[0]);
		put(digest, scheme->block[1]);
		digest_add(digest, &scheme->eps, sizeof(scheme->eps));
		put(digest, (uint64_t)scheme->pow2 << 1 | scheme->reciprocal);
	}
}

static void put_derived(struct digest *digest, const struct derived_rule *rule)
{
	put_text(digest, rule->step);
	put(digest, rule->layer_count);
	for (uint32_t i = 0; i < rule->layer_count; i++)
		put(digest, (uint64_t)(int64_t)rule->layers[i]);
	put(digest, rule->from_count);
	for (uint32_t i = 0; i < rule->from_count; i++)
		put_text(digest, rule->from[i]);
	put(digest, rule->made_count);
	for (uint32_t i = 0; i < rule->made_count; i++) {
		const struct step_made *made = &rule->made[i];
		put_text(digest, made->name);
		put(digest, (uint64_t)made->dtype);
		put(digest, made->dim_count);
		for (uint32_t d = 0; d < made->dim_count; d++)
			put(digest, made->dim[d]);
	}
}

int manifest_digest_make(struct manifest *manifest, struct ws_error *err)
{
	struct digest digest = {0};
	int rc = digest_open(&digest, 1, err);
	if (rc != 0)
		return rc;
	put(&digest, (uint64_t)manifest->side);
	put_text(&digest, manifest->framework);
	put_text(&digest, manifest->model);
	put(&digest, manifest->world);
	put(&digest, (uint64_t)(int64_t)manifest->layer_base);
	put(&digest, manifest->tensor_count);
	for (uint32_t i = 0; i < manifest->tensor_count; i++) {
		const struct tensor_rule *rule = &manifest->tensors[i];
		put_text(&digest, rule->name);
		put(&digest, (uint64_t)rule->dtype);
		put(&digest, rule->dim_count);
		for (uint32_t d = 0; d < rule->dim_count; d++)
			put(&digest, rule->dim[d]);
		put(&digest, (uint64_t)(int64_t)rule->layer_lo);
		put(&digest, (uint64_t)(int64_t)rule->layer_hi);
		put(&digest, (uint64_t)(int64_t)rule->expert_lo);
		put(&digest, (uint64_t)(int64_t)rule->expert_hi);
		put(&digest, rule->is_scale ? rule->weight_tensor : UINT64_MAX);
	}
	put_lists(&digest, manifest);
	put(&digest, manifest->rule_count);
	for (uint32_t i = 0; i < manifest->rule_count; i++)
		put_rule(&digest, &manifest->rules[i]);
	for (uint32_t i = 0; i < manifest->derived_count; i++)
		put_derived(&digest, &manifest->derived[i]);
	manifest->digest = digest_end(&digest);
	digest_close(&digest);
	return 0;
}
