/* SPDX-License-Identifier: Apache-2.0 */
/* What a world's params hold: at trainers, and what engines must find after an update. */
#include <string.h>

#include "tests/quant_world.h"
#include "tests/test.h"
#include "tests/update_world.h"

static uint8_t byte_of(uint64_t tensor, uint64_t element, uint64_t version, uint32_t k)
{
	uint64_t hash = mix64(tensor + element * UINT64_C(0x9e3779b97f4a7c15) + version * 131071);

	/* The top byte keeps bits that make no NaN of it, so that casts stay exact in any test. */
	return (uint8_t)(hash >> (8 * (k % 4)) & 0x3f);
}

static void piece_fill(const struct manifest *manifest, uint32_t rank, const struct param *param,
		       const struct piece *piece, uint8_t *memory, uint64_t version)
{
	const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
	size_t bytes = ws_dtype_bytes(param->dtype);
	uint64_t index[BOX_DIM_MAX] = {0};
	char name[256];

	int32_t expert = param_expert(manifest, rank, param, piece->slot);
	tensor_name(rule, param->layer, expert, name, sizeof(name));
	uint64_t tensor = digest_bytes(name, strlen(name), 0);
	for (;;) {
		int64_t at = (int64_t)piece->place;
		uint64_t element = 0;
		for (uint32_t d = 0; d < piece->dim_count; d++) {
			at += (int64_t)index[d] * piece->stride[d];
			element = element * rule->dim[d] + piece->offset[d] + index[d];
		}
		for (uint32_t k = 0; k < bytes; k++)
			memory[(uint64_t)at * bytes + k] = byte_of(tensor, element, version, k);
		uint32_t d = piece->dim_count;
		while (d > 0 && ++index[d - 1] == piece->extent[d - 1])
			index[--d] = 0;
		if (d == 0)
			return;
	}
}

/* A whole tensor as a trainer holds it, and what its blocks' maxima are. */
static void whole_make(const struct world *world, struct whole *whole,
		       const struct tensor_rule *rule, const struct quant_scheme *scheme,
		       uint64_t tensor, uint64_t version)
{
	const char *dtype = world->options.dtype;

	whole_open(whole, rule, dtype != NULL ? ws_dtype_parse(dtype) : rule->dtype, scheme);
	size_t bytes = ws_dtype_bytes(whole->trained);
	for (uint64_t element = 0; element < whole->element_count; element++)
		for (uint32_t k = 0; k < bytes; k++)
			((uint8_t *)whole->data)[element * bytes + k] =
				byte_of(tensor, element, version, k);
	if (whole->is_quantized)
		whole_find_maxima(whole);
}

/* What a rollout makes of it. */
static void piece_make(const struct world *world, const struct manifest *manifest, uint32_t rank,
		       const struct param *param, const struct piece *piece, uint8_t *memory,
		       uint64_t version)
{
	const struct tensor_rule *rules[FELLOWS_MAX];
	uint32_t count = whole_fellows(manifest, rank, param, piece, rules);
	int32_t expert = param_expert(manifest, rank, param, piece->slot);
	struct whole wholes[FELLOWS_MAX];
	char name[256];

	for (uint32_t i = 0; i < count; i++) {
		tensor_name(rules[i], param->layer, expert, name, sizeof(name));
		whole_make(world, &wholes[i], rules[i], manifest_scheme(manifest, param->rule),
			   digest_bytes(name, strlen(name), 0), version);
		if (i > 0)
			whole_share(&wholes[0], &wholes[i]);
	}
	whole_put(&wholes[0], param->dtype, piece, manifest_rule(manifest, param->rule)->is_scale,
		  memory);
	for (uint32_t i = 0; i < count; i++)
		whole_close(&wholes[i]);
}

static void bytes_make(const struct engine_loop *loop, uint64_t version)
{
	for (uint32_t i = 0; i < loop->params.count; i++) {
		const struct param *param = &loop->params.params[i];
		for (uint32_t p = 0; p < param->form->piece_count; p++)
			piece_make(loop->world, loop->manifest, loop->rank, param,
				   &param->form->pieces[p], loop->expected + param->arena_offset,
				   version);
	}
}

void bytes_fill(const struct manifest *manifest, uint32_t rank, const struct rank_params *params,
		uint8_t *memory, uint64_t version)
{
	for (uint32_t i = 0; i < params->count; i++) {
		const struct param *param = &params->params[i];
		for (uint32_t p = 0; p < param->form->piece_count; p++)
			piece_fill(manifest, rank, param, &param->form->pieces[p],
				   memory + param->arena_offset, version);
	}
}

void bytes_expect(const struct engine_loop *loop, uint64_t version)
{
	if (loop->world->options.quant != NULL || loop->world->options.dtype != NULL)
		bytes_make(loop, version);
	else
		bytes_fill(loop->manifest, loop->rank, &loop->params, loop->expected, version);
}
