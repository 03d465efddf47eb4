/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Megatron dump: of one rank of each pipeline stage at least, its groups' ranks and the params
 * of its chunks with their partition attributes.  Groups give the axes, the global numbers of a
 * chunk's layers give the stages.  What a name is made of comes from Megatron's presets, since no
 * attribute says how q, k and v or gate and up were fused; attributes are held against it.  Other
 * names are cut by their attributes from what the dump's "names" says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/import.h"
#include "planner/import_megatron.h"

/* The index and the step of a rank in one of its groups; false where it is no such list. */
static bool read_group(const struct json *ranks, uint32_t rank, struct grid_axis *axis,
		       uint32_t *index_out)
{
	int64_t step = 1, index = -1, at = 0;
	if (ranks->type != JSON_ARRAY || ranks->count == 0 || ranks->count > RANKS_MAX)
		return false;
	if (ranks->count > 1 && ranks->first->is_integer && ranks->first->next->is_integer)
		step = ranks->first->next->integer - ranks->first->integer;
	for (const struct json *it = ranks->first; it != NULL; it = it->next, at++) {
		if (!it->is_integer || it->integer < 0 || it->integer >= RANKS_MAX ||
		    it->integer != ranks->first->integer + at * step)
			return false;
		if (it->integer == rank)
			index = at;
	}
	if (index < 0 || step < 1)
		return false;
	axis->size = ranks->count;
	axis->stride = (uint32_t)step;
	*index_out = (uint32_t)index;
	return true;
}

/* Every rank's groups are of one size and step; the first dumped rank says which. */
static bool read_groups(struct megatron *dump, const struct json *groups, const char *where)
{
	struct import *import = dump->import;
	uint32_t found = import->found.count;
	if (groups == NULL || groups->type != JSON_OBJECT) {
		findings_add(&import->found, "dump", where,
			     "\"groups\" must be an object of rank lists");
		return false;
	}
	for (const struct json *it = groups->first; it != NULL; it = it->next) {
		uint32_t a = 0, index;
		struct grid_axis axis;
		while (a < MEGATRON_AXIS_COUNT && strcmp(dump->axes[a].name, it->key) != 0)
			a++;
		if (a == MEGATRON_AXIS_COUNT) {
			findings_add(&import->found, "dump", where,
				     "\"groups\" has '%s'; there are tp, cp, dp, pp, etp, ep, edp",
				     it->key);
			continue;
		}
		if (!read_group(it, dump->rank, &axis, &index)) {
			findings_add(&import->found, "mesh", where,
				     "group '%s' must list rank %u and others in equal steps",
				     it->key, dump->rank);
			continue;
		}
		if (a == MEGATRON_PP)
			dump->stage = index;
		struct grid_axis *known = &dump->axes[a];
		if (known->size != 0 &&
		    (known->size != axis.size || (axis.size > 1 && known->stride != axis.stride)))
			findings_add(&import->found, "mesh", where,
				     "its group '%s' has %u ranks in steps of %u, another rank's "
				     "%u in steps of %u",
				     it->key, axis.size, axis.stride, known->size, known->stride);
		known->size = axis.size;
		known->stride = axis.stride;
	}
	return import->found.count == found;
}

static bool make_grid(struct megatron *dump, struct grid *grid, const char *name,
		      const uint32_t *axes)
{
	struct import *import = dump->import;
	uint64_t product = 1;
	*grid = (struct grid){.name = name};
	for (uint32_t i = 0; i < 4; i++) {
		const struct grid_axis *axis = &dump->axes[axes[i]];
		grid->axis[grid->axis_count] = *axis;
		grid->axis[grid->axis_count].size = MAX(axis->size, 1);
		grid->axis[grid->axis_count].stride = MAX(axis->stride, 1);
		product *= grid->axis[grid->axis_count++].size;
	}
	if (product != import->world) {
		findings_add(&import->found, "mesh", name,
			     "%s=%u %s=%u %s=%u %s=%u make %llu ranks, and the world has %u: "
			     "\"groups\" must have each",
			     grid->axis[0].name, grid->axis[0].size, grid->axis[1].name,
			     grid->axis[1].size, grid->axis[2].name, grid->axis[2].size,
			     grid->axis[3].name, grid->axis[3].size, (unsigned long long)product,
			     import->world);
		return false;
	}
	return grid_fit(import, grid, name);
}

static bool make_grids(struct megatron *dump)
{
	static const uint32_t dense[] = {MEGATRON_TP, MEGATRON_CP, MEGATRON_DP, MEGATRON_PP};
	static const uint32_t expert[] = {MEGATRON_ETP, MEGATRON_EP, MEGATRON_EDP, MEGATRON_PP};
	struct import *import = dump->import;
	bool experts = dump->axes[MEGATRON_EP].size + dump->axes[MEGATRON_ETP].size +
			       dump->axes[MEGATRON_EDP].size >
		       0;
	import->grids = import_alloc(import, 2, sizeof(*import->grids));
	if (import->grids == NULL || !make_grid(dump, &import->grids[0], "dense", dense))
		return false;
	import->grid_count = 1;
	import->stage_count = MAX(dump->axes[MEGATRON_PP].size, 1);
	if (!experts)
		return true;
	import->grid_count = 2;
	import->ep = "ep";
	return make_grid(dump, &import->grids[1], "expert", expert);
}

/* A layer is on one stage, the same in every dump of it. */
static void place_layer(struct megatron *dump, int32_t layer)
{
	struct import *import = dump->import;
	if (import->stage_of[layer] != UINT32_MAX && import->stage_of[layer] != dump->stage)
		findings_add(&import->found, "stage", dump->where,
			     "layer %d is on stage %u and on stage %u: \"layers\" must be global "
			     "numbers",
			     layer, import->stage_of[layer], dump->stage);
	import->stage_of[layer] = dump->stage;
}

static void read_chunk(struct megatron *dump, const struct json *chunk)
{
	struct import *import = dump->import;
	const struct json *params = json_get(chunk, "params");
	dump->layers = json_get(chunk, "layers");
	bool good = params != NULL && params->type == JSON_ARRAY && dump->layers != NULL &&
		    dump->layers->type == JSON_ARRAY;
	for (const struct json *it = good ? dump->layers->first : NULL; it != NULL && good;
	     it = it->next) {
		good = it->is_integer && it->integer >= 0 && it->integer < import->layer_end;
		if (good)
			place_layer(dump, (int32_t)it->integer);
	}
	if (!good)
		return findings_add(
			&import->found, "dump", dump->where,
			"a chunk needs \"layers\", the global numbers (below %u) of its "
			"layers, and \"params\"",
			import->layer_end);
	for (const struct json *it = params->first; it != NULL && !import->out_of_memory;
	     it = it->next)
		megatron_param(dump, it);
}

static void read_rank(struct megatron *dump, const struct json *json, bool groups_only)
{
	struct import *import = dump->import;
	int64_t rank = json_integer(json, "rank", -1);
	const struct json *chunks = json_get(json, "chunks");
	if (rank < 0 || rank >= import->world)
		return findings_add(&import->found, "dump", dump->where,
				    "\"rank\" must be below %u", import->world);
	dump->rank = (uint32_t)rank;
	dump->stage = 0;
	if (!read_groups(dump, json_get(json, "groups"), dump->where) || groups_only)
		return;
	if (chunks == NULL || chunks->type != JSON_ARRAY)
		return findings_add(&import->found, "dump", dump->where,
				    "\"chunks\" must be a list of model chunks");
	for (const struct json *it = chunks->first; it != NULL; it = it->next)
		read_chunk(dump, it);
}

static void check_stages(struct megatron *dump)
{
	struct import *import = dump->import;
	for (int32_t layer = 0; layer < import->model->layer_count; layer++) {
		if (import->stage_of[layer] == UINT32_MAX)
			findings_add(
				&import->found, "stage", "ranks",
				"no dumped rank has layer %d: the dump needs a rank of each of "
				"the %u pipeline stages",
				layer, import->stage_count);
	}
}

void import_megatron(struct import *import)
{
	struct megatron dump = {.import = import,
				.axes = {{.name = "tp"},
					 {.name = "cp"},
					 {.name = "dp"},
					 {.name = "pp"},
					 {.name = "etp"},
					 {.name = "ep"},
					 {.name = "edp"}}};
	const struct json *ranks = json_get(import->dump, "ranks");
	import->complete = true;
	import->stage_of = import_alloc(import, import->layer_end + 1, sizeof(uint32_t));
	if (import->stage_of == NULL || !megatron_presets(&dump))
		return;
	memset(import->stage_of, 0xff, (import->layer_end + 1) * sizeof(uint32_t));
	if (ranks == NULL || ranks->type != JSON_ARRAY || ranks->count == 0)
		return findings_add(
			&import->found, "dump", "ranks",
			"it must be a list, of one rank of each pipeline stage at least");
	for (uint32_t pass = 0; pass < 2; pass++) {
		uint32_t index = 0;
		for (const struct json *it = ranks->first; it != NULL; it = it->next) {
			snprintf(dump.where, sizeof(dump.where), "ranks[%u]", index++);
			read_rank(&dump, it, pass == 0);
		}
		if (pass == 0 && (import->found.count > 0 || !make_grids(&dump)))
			return;
	}
	if (!import->out_of_memory)
		check_stages(&dump);
}
