/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's params, laid out: every rule with its layers and experts put in, numbered, with
 * the place each has in a spare arena.
 */
#include <errno.h>
#include <string.h>

#include "planner/describe.h"

#define RANK_BYTES_MAX (1ULL << 60) /* one param more, and sums of them still fit */

/* The params of one rank while they are listed. */
struct listing {
	const struct manifest *manifest;
	uint32_t rank;
	struct arena *arena;
	struct rank_params *params;
	struct ws_error *err;
};

static int add_param(const struct listing *listing, struct param param)
{
	const struct manifest *manifest = listing->manifest;
	const struct rule *rule = &manifest->rules[param.rule];
	struct rank_params *params = listing->params;
	char name[NAME_BYTES_MAX + 64];
	int length = param_name(manifest, rule, param.layer, param.expert, param.slot, name,
				sizeof(name));
	param.name = arena_copy(listing->arena, name, (size_t)MIN(length, (int)sizeof(name) - 1));
	if (param.name == NULL)
		return ws_fail(listing->err, -ENOMEM, "out of memory for param '%s'", name);
	param.bytes = param.form->element_count * ws_dtype_bytes(param.dtype);
	param.arena_offset = params->arena_bytes;
	params->bytes += param.bytes;
	params->arena_bytes += align_up(param.bytes, ARENA_ALIGN);
	if (params->arena_bytes > RANK_BYTES_MAX)
		return ws_fail(listing->err, -ENOSPC,
			       "rank %u's params up to '%s' have more than 2^60 bytes",
			       listing->rank, name);
	params->params[params->count++] = param;
	return 0;
}

static int add_rule(const struct listing *listing, uint32_t index)
{
	const struct manifest *manifest = listing->manifest;
	const struct rule *rule = &manifest->rules[index];
	const int32_t *layers, *experts;
	uint32_t layer_count = manifest_layers(manifest, index, listing->rank, &layers);
	struct param param = {.rule = index, .expert = -1, .slot = -1, .dtype = rule->view.dtype};
	int rc = layer_count == 0
			 ? 0
			 : manifest_form(manifest, index, listing->rank, &param.form, listing->err);
	for (uint32_t i = 0; i < layer_count && rc == 0; i++) {
		param.layer = layers[i];
		if (!rule->view.each_expert) {
			rc = add_param(listing, param);
			continue;
		}
		uint32_t count =
			manifest_experts(manifest, index, listing->rank, layers[i], &experts);
		for (uint32_t slot = 0; slot < count && rc == 0; slot++) {
			param.expert = experts[slot];
			param.slot = (int32_t)slot;
			rc = add_param(listing, param);
		}
	}
	return rc;
}

static uint64_t count_params(const struct manifest *manifest, uint32_t rank)
{
	uint64_t total = 0;
	for (uint32_t index = 0; index < manifest->rule_count; index++) {
		const int32_t *layers, *experts;
		uint32_t count = manifest_layers(manifest, index, rank, &layers);
		if (manifest->rules[index].view.each_expert && count > 0)
			total += (uint64_t)count *
				 manifest_experts(manifest, index, rank, layers[0], &experts);
		else
			total += count;
	}
	return total;
}

/* Open addressing; an entry is a param's number + 1. */
static bool index_names(struct rank_params *params, struct arena *arena)
{
	uint32_t room = 4;
	while (room < params->count * 2)
		room *= 2;
	params->index = arena_array(arena, room, sizeof(uint32_t));
	params->index_mask = room - 1;
	for (uint32_t i = 0; params->index != NULL && i < params->count; i++) {
		const char *name = params->params[i].name;
		uint32_t at = (uint32_t)digest_bytes(name, strlen(name), 0) & params->index_mask;
		while (params->index[at] != 0)
			at = (at + 1) & params->index_mask;
		params->index[at] = i + 1;
	}
	return params->index != NULL;
}

int manifest_params(const struct manifest *manifest, uint32_t rank, struct arena *arena,
		    struct rank_params *params_out, struct ws_error *err)
{
	struct rank_params params = {0};
	struct listing listing = {
		.manifest = manifest, .rank = rank, .arena = arena, .params = &params, .err = err};
	uint64_t count = count_params(manifest, rank);
	*params_out = params;
	if (count > INT32_MAX)
		return ws_fail(err, -ENOSPC, "rank %u has more than 2^31 params", rank);
	params.params = arena_array(arena, (size_t)count, sizeof(*params.params));
	if (params.params == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the params of rank %u", rank);
	for (uint32_t index = 0; index < manifest->rule_count; index++) {
		int rc = add_rule(&listing, index);
		if (rc != 0)
			return rc;
	}
	if (!index_names(&params, arena))
		return ws_fail(err, -ENOMEM, "out of memory for the params of rank %u", rank);
	*params_out = params;
	return 0;
}

int64_t rank_params_find(const struct rank_params *params, const char *name)
{
	if (params->count == 0)
		return -1;
	uint32_t at = (uint32_t)digest_bytes(name, strlen(name), 0) & params->index_mask;
	for (; params->index[at] != 0; at = (at + 1) & params->index_mask) {
		uint32_t number = params->index[at] - 1;
		if (strcmp(params->params[number].name, name) == 0)
			return number;
	}
	return -1;
}

int32_t param_expert(const struct manifest *manifest, uint32_t rank, const struct param *param,
		     int32_t slot)
{
	const int32_t *experts;
	if (slot < 0)
		return param->expert;
	uint32_t count = manifest_experts(manifest, param->rule, rank, param->layer, &experts);
	return (uint32_t)slot < count ? experts[slot] : -1;
}
