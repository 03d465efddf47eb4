/* SPDX-License-Identifier: Apache-2.0 */
/* Whole tensors, quantized; see the header. */
#include "tests/quant_world.h"

#include "tests/test.h"

struct quant quant_of(const struct quant_scheme *scheme)
{
	return (struct quant){.code = scheme->code,
			      .scale = scheme->scale,
			      .eps = (float)scheme->eps,
			      .pow2 = scheme->pow2,
			      .reciprocal = scheme->reciprocal};
}

void whole_open(struct whole *whole, const struct tensor_rule *rule, enum ws_dtype trained,
		const struct quant_scheme *scheme)
{
	int64_t entries = 1;

	*whole = (struct whole){.rule = rule,
				.trained = trained,
				.element_count = 1,
				.is_quantized = scheme != NULL};
	for (uint32_t d = rule->dim_count; d-- > 0;) {
		uint64_t dim = rule->dim[d], each = 0;
		if (scheme != NULL && d + 2 >= rule->dim_count)
			each = scheme->block[d + 2 - rule->dim_count];
		else if (scheme != NULL)
			each = 1;
		each = each == 0 ? dim : each;
		whole->blocks.each[d] = each;
		whole->blocks.stride[d] = entries;
		entries *= (int64_t)((dim + each - 1) / each);
		whole->element_count *= dim;
	}
	whole->data = mem_alloc(whole->element_count * ws_dtype_bytes(trained));
	whole->table = mem_alloc((size_t)entries * sizeof(uint32_t));
	ck_assert(whole->data != NULL && whole->table != NULL);
	whole->blocks.table = whole->table;
	if (scheme != NULL)
		whole->quant = quant_of(scheme);
}

/* The tensor's strides in bytes. */
static void strides(const struct whole *whole, int64_t *stride_out)
{
	int64_t below = (int64_t)ws_dtype_bytes(whole->trained);

	for (uint32_t d = whole->rule->dim_count; d-- > 0;) {
		stride_out[d] = below;
		below *= (int64_t)whole->rule->dim[d];
	}
}

void whole_find_maxima(struct whole *whole)
{
	struct move move = {.kind = MOVE_MAXIMA,
			    .blocks = &whole->blocks,
			    .src = whole->data,
			    .dim_count = whole->rule->dim_count,
			    .from = whole->trained,
			    .to = whole->trained};

	for (uint32_t d = 0; d < move.dim_count; d++)
		move.extent[d] = whole->rule->dim[d];
	strides(whole, move.src_stride);
	convert_move(&move);
}

uint32_t whole_fellows(const struct manifest *manifest, uint32_t rank, const struct param *param,
		       const struct piece *piece, const struct tensor_rule *list[FELLOWS_MAX])
{
	const struct param_rule *rule = manifest_rule(manifest, param->rule);
	const struct quant_scheme *scheme = manifest_scheme(manifest, param->rule);
	const struct tensor_rule *own = manifest_tensor(manifest, piece->tensor);
	const struct form *form = param->form;
	struct ws_error err;
	uint32_t count = 1;

	list[0] = own->is_scale ? manifest_tensor(manifest, own->weight_tensor) : own;
	if (scheme == NULL || scheme->kind != SCHEME_TENSOR)
		return 1;
	if (rule->is_scale)
		ck_ok(manifest_form(manifest, rule->weight_rule, rank, &form, &err), err);
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct tensor_rule *other = manifest_tensor(manifest, form->pieces[i].tensor);
		uint32_t at = 0;
		while (at < count && list[at] != other)
			at++;
		if (form->pieces[i].slot != piece->slot || at < count)
			continue;
		ck_assert_uint_lt(count, FELLOWS_MAX);
		list[count++] = other;
	}
	return count;
}

void whole_share(struct whole *a, struct whole *b)
{
	a->table[0] = b->table[0] = MAX(a->table[0], b->table[0]);
}

void whole_put(const struct whole *whole, enum ws_dtype dtype, const struct piece *piece,
	       bool is_scale, uint8_t *memory)
{
	struct blocks blocks = whole->blocks;
	struct move move = {.kind = is_scale		  ? MOVE_SCALE
				    : whole->is_quantized ? MOVE_QUANTIZE
							  : MOVE_CAST,
			    .blocks = whole->is_quantized ? &blocks : NULL,
			    .src = is_scale ? (const void *)whole->table : whole->data,
			    .dst = memory + piece->place * ws_dtype_bytes(dtype),
			    .dim_count = piece->dim_count,
			    .from = is_scale ? WS_U32 : whole->trained,
			    .to = dtype};

	blocks.quant = &whole->quant;
	strides(whole, move.src_stride);
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		if (is_scale)
			move.src_stride[d] = blocks.stride[d] * (int64_t)sizeof(uint32_t);
		else
			blocks.first[d] = piece->offset[d];
		move.extent[d] = piece->extent[d];
		move.src =
			(const uint8_t *)move.src + (int64_t)piece->offset[d] * move.src_stride[d];
		move.dst_stride[d] = piece->stride[d] * (int64_t)ws_dtype_bytes(dtype);
	}
	convert_move(&move);
}

void whole_close(struct whole *whole)
{
	mem_free(whole->data);
	mem_free(whole->table);
}
