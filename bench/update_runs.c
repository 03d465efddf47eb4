/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of the trainer's are which of the rollout's, and which of its weights become which
 * codes and scales: from the two manifests alone, without the planner's plan.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/update.h"

/* Whether it is one run of elements, in the canonical tensor and in its place alike. */
static bool is_run(const struct tensor_rule *rule, const struct piece *piece, uint64_t *from_out)
{
	int64_t stride = 1, canonical = 1;
	uint64_t from = 0;
	bool cut = false;

	for (uint32_t d = piece->dim_count; d-- > 0;) {
		if (piece->extent[d] > 1 && (piece->stride[d] != stride || cut))
			return false;
		cut = cut || piece->extent[d] != rule->dim[d];
		from += piece->offset[d] * (uint64_t)canonical;
		stride *= (int64_t)piece->extent[d];
		canonical *= (int64_t)rule->dim[d];
	}
	*from_out = from;
	return true;
}

static uint64_t elements_of(const struct piece *piece)
{
	uint64_t count = 1;

	for (uint32_t d = 0; d < piece->dim_count; d++)
		count *= piece->extent[d];
	return count;
}

/* ---------------------------------------------------------------- what the trainer holds */

/* A canonical tensor that lies whole in its memory. */
struct held {
	const char *name;
	uint64_t at;
	enum ws_dtype dtype;
};

struct held_list {
	struct held *all; /* in the arena; by name */
	uint32_t count;
};

static int by_name(const void *a, const void *b)
{
	const struct held *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int held_add(struct update_rank *rank, struct held_list *list, const struct param *param,
		    const struct piece *piece, struct ws_error *err)
{
	const struct manifest *manifest = rank->job->manifest[SIDE_TRAINER];
	const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
	uint64_t from, count = 1;
	char name[512];

	for (uint32_t d = 0; d < rule->dim_count; d++)
		count *= rule->dim[d];
	if (!is_run(rule, piece, &from) || elements_of(piece) != count)
		return 0; /* whoever asks for it isn't served */
	int length = tensor_name(rule, param->layer, param_expert(manifest, 0, param, piece->slot),
				 name, sizeof(name));
	char *kept = arena_alloc(&rank->arena, (size_t)length + 1);
	if (kept == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a tensor's name");
	memcpy(kept, name, (size_t)length + 1);
	list->all[list->count++] = (struct held){.name = kept,
						 .at = param->arena_offset +
						       piece->place * ws_dtype_bytes(param->dtype),
						 .dtype = param->dtype};
	return 0;
}

static int held_make(struct update_rank *rank, struct held_list *list, struct ws_error *err)
{
	const struct rank_params *trainer = &rank->params[SIDE_TRAINER];
	uint32_t count = 0;
	int rc = 0;

	for (uint32_t i = 0; i < trainer->count; i++)
		count += trainer->params[i].form->piece_count;
	list->all = arena_array(&rank->arena, count, sizeof(*list->all));
	if (list->all == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u tensors", count);
	for (uint32_t i = 0; rc == 0 && i < trainer->count; i++)
		for (uint32_t p = 0; rc == 0 && p < trainer->params[i].form->piece_count; p++)
			rc = held_add(rank, list, &trainer->params[i],
				      &trainer->params[i].form->pieces[p], err);
	qsort(list->all, list->count, sizeof(*list->all), by_name);
	return rc;
}

static const struct held *held_find(const struct update_rank *rank, const struct held_list *list,
				    const struct param *param, const struct piece *piece,
				    struct ws_error *err)
{
	const struct manifest *manifest = rank->job->manifest[SIDE_ROLLOUT];
	char name[512];
	const struct held key = {.name = name};

	tensor_name(manifest_tensor(manifest, piece->tensor), param->layer,
		    param_expert(manifest, 0, param, piece->slot), name, sizeof(name));
	const struct held *held =
		bsearch(&key, list->all, list->count, sizeof(*list->all), by_name);
	if (held == NULL)
		ws_fail(err, -ENOTSUP,
			"'%s' can't be compared: the trainer doesn't have '%s' whole", param->name,
			name);
	return held;
}

/* ---------------------------------------------------------------- as it is */

static int run_make(struct update_rank *rank, const struct held_list *list,
		    const struct param *param, const struct piece *piece, struct ws_error *err)
{
	const struct manifest *manifest = rank->job->manifest[SIDE_ROLLOUT];
	const struct held *source = held_find(rank, list, param, piece, err);
	uint64_t each = ws_dtype_bytes(param->dtype), from;

	if (source == NULL)
		return err->code;
	if (source->dtype != param->dtype ||
	    !is_run(manifest_tensor(manifest, piece->tensor), piece, &from))
		return ws_fail(err, -ENOTSUP, "'%s' isn't one run of bytes in '%s'", source->name,
			       param->name);
	rank->runs[rank->run_count++] =
		(struct run){.from = source->at + from * each,
			     .to = param->arena_offset + piece->place * each,
			     .bytes = elements_of(piece) * each};
	return 0;
}

/* ---------------------------------------------------------------- quantized */

/* Of the scales that go with a weight's piece. */
static int scales_find(const struct update_rank *rank, const struct param *weight,
		       const struct piece *of, const struct param **param_out,
		       const struct piece **piece_out, struct ws_error *err)
{
	const struct manifest *manifest = rank->job->manifest[SIDE_ROLLOUT];
	const struct rank_params *rollout = &rank->params[SIDE_ROLLOUT];

	for (uint32_t i = 0; i < rollout->count; i++) {
		const struct param *param = &rollout->params[i];
		const struct param_rule *rule = manifest_rule(manifest, param->rule);
		if (!rule->is_scale || rule->weight_rule != weight->rule ||
		    param->layer != weight->layer || param->expert != weight->expert)
			continue;
		for (uint32_t p = 0; p < param->form->piece_count; p++) {
			const struct piece *piece = &param->form->pieces[p];
			if (piece->slot != of->slot ||
			    manifest_tensor(manifest, piece->tensor)->weight_tensor != of->tensor)
				continue;
			*param_out = param;
			*piece_out = piece;
			return 0;
		}
	}
	return ws_fail(err, -ENOTSUP, "'%s' has no scales", weight->name);
}

static struct quant quant_of(const struct quant_scheme *scheme)
{
	return (struct quant){.code = scheme->code,
			      .scale = scheme->scale,
			      .eps = (float)scheme->eps,
			      .pow2 = scheme->pow2,
			      .reciprocal = scheme->reciprocal};
}

static int weight_make(struct update_rank *rank, const struct held_list *list,
		       const struct param *param, const struct piece *piece, struct ws_error *err)
{
	const struct manifest *manifest = rank->job->manifest[SIDE_ROLLOUT];
	const struct quant_scheme *scheme = manifest_scheme(manifest, param->rule);
	const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
	const struct held *source = held_find(rank, list, param, piece, err);
	const struct param *scales = NULL;
	const struct piece *scale_piece = NULL;
	uint64_t from, scale_from;

	int rc = source == NULL ? err->code
				: scales_find(rank, param, piece, &scales, &scale_piece, err);
	if (rc != 0 || scale_piece == NULL)
		return rc;
	const struct tensor_rule *scale_rule = manifest_tensor(manifest, scale_piece->tensor);
	if (scheme->kind == SCHEME_TENSOR || rule->dim_count != 2 || scale_rule->dim_count != 2 ||
	    !is_run(rule, piece, &from) || !is_run(scale_rule, scale_piece, &scale_from) ||
	    elements_of(piece) != rule->dim[0] * rule->dim[1] ||
	    elements_of(scale_piece) != scale_rule->dim[0] * scale_rule->dim[1])
		return ws_fail(err, -ENOTSUP,
			       "'%s' can't be compared: the bench knows matrices that lie whole in "
			       "'%s', quantized by block or channel",
			       source->name, param->name);
	rank->weights[rank->weight_count++] = (struct weight){
		.from = source->at,
		.codes = param->arena_offset + piece->place,
		.scales = scales->arena_offset + scale_piece->place * ws_dtype_bytes(scheme->scale),
		.extent = {rule->dim[0], rule->dim[1]},
		.grid = {scale_rule->dim[0], scale_rule->dim[1]},
		.each = {MAX(scheme->block[0], (uint64_t)1),
			 scheme->block[1] == 0 ? rule->dim[1] : scheme->block[1]},
		.dtype = source->dtype,
		.quant = quant_of(scheme)};
	return 0;
}

/* ---------------------------------------------------------------- all */

static int by_from(const void *a, const void *b)
{
	const struct run *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

int update_runs_make(struct update_rank *rank, struct ws_error *err)
{
	const struct manifest *manifest = rank->job->manifest[SIDE_ROLLOUT];
	const struct rank_params *rollout = &rank->params[SIDE_ROLLOUT];
	struct held_list held = {0};
	uint32_t count = 0;
	int rc = held_make(rank, &held, err);

	for (uint32_t i = 0; i < rollout->count; i++)
		count += rollout->params[i].form->piece_count;
	rank->runs = arena_array(&rank->arena, count, sizeof(*rank->runs));
	rank->weights = arena_array(&rank->arena, count, sizeof(*rank->weights));
	if (rc == 0 && (rank->runs == NULL || rank->weights == NULL))
		return ws_fail(err, -ENOMEM, "no memory for %u runs", count);
	for (uint32_t i = 0; rc == 0 && i < rollout->count; i++) {
		const struct param *param = &rollout->params[i];
		bool quantized = manifest_scheme(manifest, param->rule) != NULL;
		if (manifest_rule(manifest, param->rule)->is_scale)
			continue; /* with their weights */
		for (uint32_t p = 0; rc == 0 && p < param->form->piece_count; p++)
			rc = quantized
				     ? weight_make(rank, &held, param, &param->form->pieces[p], err)
				     : run_make(rank, &held, param, &param->form->pieces[p], err);
	}
	qsort(rank->runs, rank->run_count, sizeof(*rank->runs), by_from);
	return rc;
}
