/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a manifest's text.  What is refused must come with a sentence; what is taken must
 * give every rank params whose pieces lie inside them and inside their tensors, cover no more
 * than they have, and come out the same from the memo; and the digest must be repeatable.
 *
 *   clang -g -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. tests/fuzz/manifest.c
 *         with the objects of planner/ and lib/base/ (tests/fuzz.sh does it)
 */
#include <assert.h>
#include <errno.h>

#include "planner/planner.h"

#define RANKS_LOOKED_AT 8
#define PARAMS_MAX	20000

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void check_form(const struct manifest *manifest, const struct form *form)
{
	uint64_t covered = 0;
	for (uint32_t p = 0; p < form->piece_count; p++) {
		const struct piece *piece = &form->pieces[p];
		const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
		uint64_t volume = 1, last = piece->place;
		assert(piece->tensor < manifest_tensor_count(manifest));
		assert(piece->dim_count == rule->dim_count);
		for (uint32_t d = 0; d < piece->dim_count; d++) {
			assert(piece->extent[d] > 0 && piece->extent[d] <= rule->dim[d]);
			assert(piece->offset[d] <= rule->dim[d] - piece->extent[d]);
			assert(piece->extent[d] == 1 || piece->stride[d] > 0);
			if (piece->extent[d] > 1)
				last += (piece->extent[d] - 1) * (uint64_t)piece->stride[d];
			volume *= piece->extent[d];
		}
		assert(last < form->element_count);
		covered += volume;
	}
	assert(covered == form->covered_count && covered <= form->element_count);
}

static void check_steps(const struct manifest *manifest, uint32_t rank,
			const struct rank_params *params, struct arena *arena)
{
	struct rank_steps steps;
	struct ws_error err = {0};
	int rc = manifest_steps(manifest, rank, params, arena, &steps, &err);
	assert(rc == 0 || ((rc == -EINVAL || rc == -ENOMEM) && err.text[0] != '\0'));
	for (uint32_t i = 0; i < steps.call_count; i++) {
		const struct step_call *call = &steps.calls[i];
		assert(call->from_count > 0 && call->step[0] != '\0');
		assert(call->made_first + call->made_count <= steps.made_count);
		for (uint32_t f = 0; f < call->from_count; f++)
			assert(call->from[f] < params->count);
	}
	for (uint32_t i = 0; i < steps.made_count; i++)
		assert((steps.made[i].param == UINT32_MAX) == (i < steps.derived_count));
}

static void check_rank(const struct manifest *manifest, uint32_t rank)
{
	struct arena arena = {0};
	struct rank_params params;
	struct ws_error err = {0};
	uint64_t total = 0;
	for (uint32_t rule = 0; rule < manifest_rule_count(manifest); rule++) {
		const int32_t *layers, *experts;
		uint32_t layer_count = manifest_layers(manifest, rule, rank, &layers);
		uint32_t each = layer_count == 0 ? 0
						 : manifest_experts(manifest, rule, rank, layers[0],
								    &experts);
		total += (uint64_t)layer_count *
			 (manifest_rule(manifest, rule)->each_expert ? each : 1);
	}
	if (total > PARAMS_MAX)
		return;
	int rc = manifest_params(manifest, rank, &arena, &params, &err);
	assert(rc == 0 || (rc == -ENOSPC && err.text[0] != '\0'));
	for (uint32_t i = 0; rc == 0 && i < params.count; i++) {
		const struct param *param = &params.params[i];
		const struct form *again;
		check_form(manifest, param->form);
		assert(param->bytes == param->form->element_count * ws_dtype_bytes(param->dtype));
		assert(param->arena_offset % ARENA_ALIGN == 0);
		assert(rank_params_find(&params, param->name) == (int64_t)i);
		assert(manifest_form(manifest, param->rule, rank, &again, &err) == 0);
		assert(again == param->form);
	}
	if (rc == 0)
		check_steps(manifest, rank, &params, &arena);
	arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};
	struct manifest *manifest, *again;
	int rc = manifest_parse(&manifest, bytes, count, &findings, &err);
	if (rc != 0) {
		assert(manifest == NULL && err.code == rc && err.text[0] != '\0');
		assert(rc == -EBADMSG || rc == -ENOSPC || (rc == -EINVAL && findings.count > 0));
		arena_release(&arena);
		return 0;
	}
	assert(findings.count == 0);
	assert(manifest_parse(&again, bytes, count, NULL, &err) == 0);
	assert(manifest_digest(manifest) == manifest_digest(again));
	manifest_free(again);
	uint32_t world = manifest_world(manifest);
	for (uint32_t rank = 0; rank < MIN(world, RANKS_LOOKED_AT); rank++)
		check_rank(manifest, rank);
	check_rank(manifest, world - 1);
	manifest_free(manifest);
	arena_release(&arena);
	return 0;
}
