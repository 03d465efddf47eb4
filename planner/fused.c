/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which weights are under one scale.  Per tensor, an engine has one scale for a param however many
 * tensors it fuses (qkv_proj, gate_up_proj), and in a stack one for each expert (w13): that of the
 * largest of them.  So those tensors have one canonical scale, called after the first.  Scales
 * that the manifest lists are their own tensors' (a checkpoint that is quantized already).
 */
#include <errno.h>
#include <stdlib.h>

#include "planner/boxes.h"
#include "planner/describe.h"

/* A tensor that an expression names. */
struct named {
	uint32_t tensor;
	bool of_expert;
};

static int named_add(struct vec *list, const struct expr *expr)
{
	for (uint32_t i = 0; i < expr->child_count; i++)
		if (named_add(list, expr->child[i]) != 0)
			return -ENOMEM;
	if (expr->op != OP_T)
		return 0;
	struct named *named = vec_add(list, sizeof(*named));
	if (named == NULL)
		return -ENOMEM;
	*named = (struct named){expr->tensor, expr->rule->expert_lo >= 0};
	return 0;
}

static int named_order(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	if (x->of_expert != y->of_expert)
		return x->of_expert ? 1 : -1;
	return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Each once. */
static size_t named_unite(struct named *list, size_t count)
{
	size_t kept = 0;

	if (count > 0)
		qsort(list, count, sizeof(*list), named_order);
	for (size_t i = 0; i < count; i++)
		if (kept == 0 || list[kept - 1].tensor != list[i].tensor)
			list[kept++] = list[i];
	return kept;
}

/* Gives a tensor the scale that it has with those that follow it in the ring. */
static bool scale_one(struct parse *parse, const struct quant_scheme *scheme, const char *where,
		      uint32_t tensor, uint32_t lead, uint32_t next)
{
	struct manifest *manifest = parse->manifest;
	const struct tensor_rule *rule = &manifest->tensors[tensor], *of = &manifest->tensors[lead];
	uint32_t *scale = &manifest->scale_of[tensor];

	if (*scale == UINT32_MAX) {
		*scale = tensor == lead ? scale_tensor(parse, scheme, where, tensor)
					: manifest->scale_of[lead];
		manifest->tensor_scheme[tensor] = scheme;
		manifest->fellow[tensor] = next;
	}
	if (manifest->tensor_scheme[tensor] != scheme) {
		findings_add(&parse->found, "quant", where,
			     "'%s' is quantized by '%s' here and by '%s' elsewhere", rule->name,
			     scheme->name, manifest->tensor_scheme[tensor]->name);
		return false;
	}
	if (manifest->fellow[tensor] != next) {
		findings_add(&parse->found, "quant", where,
			     "'%s' is under one scale with other tensors here than elsewhere",
			     rule->name);
		return false;
	}
	if (rule->layer_lo != of->layer_lo || rule->layer_hi != of->layer_hi ||
	    rule->expert_lo != of->expert_lo || rule->expert_hi != of->expert_hi) {
		findings_add(&parse->found, "quant", where,
			     "'%s' and '%s' have one scale, and not the same layers and experts",
			     of->name, rule->name);
		return false;
	}
	return *scale != UINT32_MAX;
}

/* Tensors of one param, or of one expert of it. */
static bool scale_all(struct parse *parse, const struct quant_scheme *scheme, const char *where,
		      const struct named *list, size_t count)
{
	bool one = scheme->kind == SCHEME_TENSOR;

	for (size_t i = 0; one && i < count; i++)
		one = scale_listed(parse->manifest, scheme, list[i].tensor) == UINT32_MAX;
	for (size_t i = 0; i < count; i++) {
		uint32_t tensor = list[i].tensor;
		uint32_t lead = one ? list[0].tensor : tensor;
		uint32_t next = one ? list[(i + 1) % count].tensor : tensor;
		if (!scale_one(parse, scheme, where, tensor, lead, next))
			return false;
	}
	return true;
}

bool scale_tensors(struct parse *parse, const struct quant_scheme *scheme, const char *where,
		   const struct expr *expr)
{
	struct vec named = {0};
	bool scaled = named_add(&named, expr) == 0;

	parse->out_of_memory = parse->out_of_memory || !scaled;
	struct named *list = named.items;
	size_t count = scaled && list != NULL ? named_unite(list, named.count) : 0;
	for (size_t i = 0, end; scaled && i < count; i = end) {
		for (end = i; end < count && list[end].of_expert == list[i].of_expert; end++)
			;
		scaled = scale_all(parse, scheme, where, list + i, end - i);
	}
	vec_release(&named);
	return scaled;
}
