/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of scales that are made on the way.  Their source isn't memory of a param: it is what
 * quantizing makes of a weight, one value per block.  So a scale is followed from the
 * canonical scale as a whole, and its sender must hold a part of each of its blocks.
 */
#include "planner/check.h"

const char *check_scale_source(const struct plan_part *part, struct spot_param *target,
			       struct made_scale *made)
{
	const struct piece *piece =
		account_find(target, part->dst_offset / ws_dtype_bytes(part->to));
	uint64_t count = 1;

	if (piece == NULL)
		return "it brings a scale where there is padding";
	const struct tensor_rule *scale = manifest_tensor(target->peer->manifest, piece->tensor);
	if (!scale->is_scale)
		return "it brings a scale where there is none";
	*made = (struct made_scale){.piece = {.tensor = piece->tensor,
					      .slot = piece->slot,
					      .dim_count = scale->dim_count}};
	for (uint32_t d = scale->dim_count; d > 0; d--) {
		made->piece.extent[d - 1] = scale->dim[d - 1];
		made->piece.stride[d - 1] = (int64_t)count;
		count *= scale->dim[d - 1];
	}
	made->form = (struct form){.dim_count = 1,
				   .dim = {count},
				   .element_count = count,
				   .covered_count = count,
				   .piece_count = 1,
				   .pieces = &made->piece};
	account_reach(&made->form, &made->reach);
	/* Layer and expert are the target's: the holder is compared with them. */
	made->param = *target->param;
	made->param.form = &made->form;
	made->param.bytes = count * ws_dtype_bytes(part->from);
	made->spot = (struct spot_param){
		.peer = target->peer, .param = &made->param, .reach = &made->reach};
	return NULL;
}

/* The first and the last block of the part, as places in the canonical scale. */
static void corners(const struct plan_part *part, const struct piece *whole, uint64_t *lo,
		    uint64_t *hi)
{
	uint64_t bytes = ws_dtype_bytes(part->to);
	uint64_t first = part->src_offset / bytes, last = first;

	for (uint32_t d = 0; d < part->dim_count; d++)
		last += (part->extent[d] - 1) * ((uint64_t)part->src_stride[d] / bytes);
	for (uint32_t d = 0; d < whole->dim_count; d++) {
		lo[d] = first / (uint64_t)whole->stride[d] % whole->extent[d];
		hi[d] = last / (uint64_t)whole->stride[d] % whole->extent[d];
	}
}

/* Whether a box of the weight reaches from block lo to block hi, dim by dim. */
static bool reaches(const struct piece *piece, const struct quant_scheme *scheme,
		    const struct tensor_rule *weight, const uint64_t *lo, const uint64_t *hi)
{
	if (scheme->kind == SCHEME_TENSOR)
		return true;
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		uint64_t block = 1;
		if (d + 2 >= weight->dim_count)
			block = scheme->block[d + 2 - weight->dim_count];
		if (block == 0)
			block = weight->dim[d];
		if (piece->offset[d] >= (lo[d] + 1) * block ||
		    piece->offset[d] + piece->extent[d] <= hi[d] * block)
			return false;
	}
	return true;
}

const char *check_scale_holder(const struct plan_part *part, const struct made_scale *made,
			       struct spot_param *source)
{
	const struct manifest *manifest = made->spot.peer->manifest;
	const struct quant_scheme *scheme = manifest_scheme(manifest, made->param.rule);
	struct spot_tensor weight = spot_tensor(&made->spot, &made->piece);
	uint64_t lo[BOX_DIM_MAX] = {0}, hi[BOX_DIM_MAX] = {0};

	weight.rule = manifest_tensor(manifest, weight.rule->weight_tensor);
	corners(part, &made->piece, lo, hi);
	for (uint32_t i = 0; i < source->param->form->piece_count; i++) {
		const struct piece *piece = &source->param->form->pieces[i];
		if (account_same_tensor(source, piece, &weight) &&
		    reaches(piece, scheme, weight.rule, lo, hi))
			return NULL;
	}
	return "its sender holds no part of a block whose scale it sends";
}
