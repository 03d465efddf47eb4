/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DTensor dump: every param's name, whole shape and dtype, its mesh and the placement on each
 * of the mesh's dims; of one rank, or of one of each pipeline stage.  Placements are splits in the
 * order that they are applied: left to right, but for _StridedShard(dim, split_factor), which is
 * applied behind those to its right whose sizes make its split factor (tensor parallel first, FSDP
 * inside, though dp stands left).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/import.h"

enum placement_kind { PLACE_REPLICATE, PLACE_SHARD, PLACE_STRIDED };

struct placement {
	enum placement_kind kind;
	uint32_t dim, factor;
};

/* "Shard(dim=0)", "_StridedShard(dim=0, sf=2)", "Replicate()", and torch's short forms "S(0)",
 * "_S(0, 2)", "R". */
static bool read_placement(const char *text, uint32_t dim_count, struct placement *out)
{
	static const struct {
		const char *name;
		enum placement_kind kind;
		uint32_t numbers;
	} kinds[] = {{"Replicate", PLACE_REPLICATE, 0},	  {"R", PLACE_REPLICATE, 0},
		     {"Shard", PLACE_SHARD, 1},		  {"S", PLACE_SHARD, 1},
		     {"_StridedShard", PLACE_STRIDED, 2}, {"_S", PLACE_STRIDED, 2}};
	size_t name = strcspn(text, "("), kind = 0;
	long number[3] = {0};
	uint32_t count = 0;
	while (kind < ARRAY_SIZE(kinds) &&
	       (strlen(kinds[kind].name) != name || strncmp(kinds[kind].name, text, name) != 0))
		kind++;
	if (kind == ARRAY_SIZE(kinds))
		return false;
	for (const char *at = text + name; *at != '\0' && count < 3;) {
		size_t skip = strcspn(at, "-0123456789");
		char *end;
		at += skip;
		if (*at == '\0')
			break;
		number[count++] = strtol(at, &end, 10);
		if (end == at)
			return false;
		at = end;
	}
	if (count != kinds[kind].numbers)
		return false;
	long dim = number[0] < 0 ? number[0] + (long)dim_count : number[0];
	bool fits = count == 0 || (dim >= 0 && dim < (long)dim_count);
	fits = fits && (count < 2 || (number[1] >= 1 && number[1] <= RANKS_MAX));
	*out = (struct placement){.kind = kinds[kind].kind,
				  .dim = fits ? (uint32_t)dim : 0,
				  .factor = fits ? (uint32_t)number[1] : 1};
	return fits;
}

/* The mesh dims that cut, in the order in which they do. */
struct order {
	uint32_t count;
	uint32_t axis[GRID_AXIS_MAX], dim[GRID_AXIS_MAX];
	uint64_t size[GRID_AXIS_MAX];
};

static void order_insert(struct order *order, uint32_t at, uint32_t axis, uint32_t dim,
			 uint64_t size)
{
	for (uint32_t i = order->count++; i > at; i--) {
		order->axis[i] = order->axis[i - 1];
		order->dim[i] = order->dim[i - 1];
		order->size[i] = order->size[i - 1];
	}
	order->axis[at] = axis;
	order->dim[at] = dim;
	order->size[at] = size;
}

/* From the right: a plain one goes before all that stand right of it, a strided one behind those
 * of its dim that make its factor. */
static bool order_placements(const struct grid *mesh, const struct placement *placements,
			     struct order *order)
{
	for (uint32_t i = mesh->axis_count; i > 0; i--) {
		const struct placement *it = &placements[i - 1];
		uint64_t product = 1;
		uint32_t at = 0;
		if (it->kind == PLACE_REPLICATE)
			continue;
		for (; it->kind == PLACE_STRIDED && product != it->factor; at++) {
			if (at == order->count)
				return false;
			if (order->dim[at] == it->dim)
				product *= order->size[at];
		}
		order_insert(order, at, i - 1, it->dim, mesh->axis[i - 1].size);
	}
	return true;
}

/* One rank's dump. */
struct dtensor {
	struct import *import;
	const struct grid *meshes; /* as they were read */
	const uint32_t *grids;	   /* by mesh: its number among import->grids */
	struct grid_axis pipeline; /* size 1: there is none */
	uint32_t mesh_count, rank, stage;
};

static bool read_placements(const struct dtensor *dump, const struct json *json, const char *where,
			    uint32_t dim_count, uint32_t mesh, struct placement *placements)
{
	struct import *import = dump->import;
	const struct grid *grid = &dump->meshes[mesh];
	uint32_t count = 0;
	if (json->type != JSON_ARRAY || json->count != grid->axis_count) {
		findings_add(&import->found, "placement", where,
			     "it has %u placements, and its mesh %u dims", json->count,
			     grid->axis_count);
		return false;
	}
	for (const struct json *it = json->first; it != NULL; it = it->next, count++) {
		const char *text = it->type == JSON_STRING ? it->text : "";
		if (read_placement(text, dim_count, &placements[count]))
			continue;
		findings_add(&import->found, "placement", where,
			     "'%s' isn't a placement of a weight of %u dims; good ones are "
			     "Shard(dim=0), _StridedShard(dim=0, sf=2) and Replicate()",
			     text, dim_count);
		return false;
	}
	return true;
}

/* Wraps the whole expression in the splits; NULL and a finding where they have no order. */
static const struct json *place(const struct dtensor *dump, const struct json *whole,
				const char *where, uint32_t mesh,
				const struct placement *placements)
{
	const struct grid *grid = &dump->meshes[mesh];
	struct order order = {0};
	const struct json *x = whole;
	if (!order_placements(grid, placements, &order)) {
		findings_add(&dump->import->found, "placement", where,
			     "a _StridedShard's split factor isn't the product of the mesh dims "
			     "right of it that cut the same dim");
		return NULL;
	}
	for (uint32_t i = 0; i < order.count && x != NULL; i++)
		x = import_split(dump->import, x, order.dim[i], grid->axis[order.axis[i]].name,
				 true);
	return x;
}

static uint64_t rule_key_of(const struct placement *placements, uint32_t grid, enum ws_dtype dtype)
{
	uint64_t key = mix64((uint64_t)grid << 8 | (uint64_t)dtype);
	for (uint32_t i = 0; i < GRID_AXIS_MAX; i++)
		key = mix64(key * 31 + ((uint64_t)placements[i].dim << 32 |
					(uint64_t)placements[i].factor << 2 |
					(uint64_t)placements[i].kind));
	return key;
}

/* Fills a new rule; false where nobody knows the name. */
static bool make_rule(const struct dtensor *dump, struct import_rule *rule, const char *name,
		      int32_t layer, const uint32_t *mesh, const struct placement *placements)
{
	struct import *import = dump->import;
	const struct json *whole = import_whole(import, rule->name, layer);
	if (whole == NULL)
		return false;
	rule->whole = whole;
	rule->x = mesh == NULL ? whole : place(dump, whole, name, *mesh, placements);
	rule->order = import_first_tensor(import, whole);
	rule->grid = mesh == NULL ? 0 : dump->grids[*mesh];
	rule->each_layer = layer >= 0;
	rule->each_expert = strstr(rule->name, "{E}") != NULL;
	rule->stages = import_alloc(import, import->stage_count, 1);
	return true;
}

/* Where the param is: its layer's stage, or this one. */
static void note_stage(const struct dtensor *dump, struct import_rule *rule, const char *name,
		       int32_t layer)
{
	struct import *import = dump->import;
	if (rule->stages == NULL)
		return;
	rule->stages[dump->stage] = 1;
	if (layer < 0 || layer >= (int32_t)import->layer_end)
		return;
	if (import->stage_of[layer] != UINT32_MAX && import->stage_of[layer] != dump->stage)
		findings_add(&import->found, "stage", name,
			     "layer %d is on stage %u and on stage %u", layer,
			     import->stage_of[layer], dump->stage);
	import->stage_of[layer] = dump->stage;
}

static void read_param(const struct dtensor *dump, const struct json *json, uint32_t index)
{
	struct import *import = dump->import;
	struct placement placements[GRID_AXIS_MAX] = {0};
	char where[32];
	int32_t layer, expert;
	snprintf(where, sizeof(where), "params[%u]", index);
	const char *name = import_text(import, json, "name", where);
	if (name == NULL || import_ignores(import, name))
		return;
	const struct json *shape = json_get(json, "shape"), *local = json_get(json, "local");
	const struct json *placed = json_get(json, "placements"), *at = json_get(json, "mesh");
	const char *plain = import_name(import, name);
	const char *template = import_template(import, plain, &layer, &expert);
	enum ws_dtype dtype = import_dtype(import, json, name);
	if (template == NULL || dtype == WS_NONE || !import_shape(import, shape, name) ||
	    (local != NULL && !import_shape(import, local, name)))
		return;
	bool plain_tensor = placed == NULL && at == NULL;
	if (!plain_tensor && (placed == NULL || at == NULL || !at->is_integer || at->integer < 0 ||
			      at->integer >= dump->mesh_count))
		return findings_add(&import->found, "mesh", name,
				    "a DTensor needs \"placements\", and \"mesh\" below %u, the "
				    "number of its mesh in \"meshes\"",
				    dump->mesh_count);
	uint32_t mesh = plain_tensor ? 0 : (uint32_t)at->integer;
	if (!plain_tensor && !read_placements(dump, placed, name, shape->count, mesh, placements))
		return;
	uint32_t grid = plain_tensor ? 0 : dump->grids[mesh];
	struct import_rule *rule =
		import_rule(import, template, rule_key_of(placements, grid, dtype));
	if (rule == NULL)
		return;
	rule->dtype = dtype;
	bool known = rule->whole != NULL ? import_has(import, rule->whole, layer)
					 : make_rule(dump, rule, name, layer,
						     plain_tensor ? NULL : &mesh, placements);
	if (!known)
		return import_unknown(import, name, template);
	/* Stages may share a param without a layer; each has its part of it. */
	if (layer >= 0 || rule->layers[import->layer_end] == 0 || import->stage_count == 1)
		import_claim(import, &import->wholes, plain, 0, shape);
	if (local != NULL)
		import_claim(import, &import->parts, plain, dump->rank, local);
	import_count(import, rule, layer);
	note_stage(dump, rule, name, layer);
}

/* {"dims": ["dp", "tp"], "ranks": [[0, 1], [2, 3]]} */
static bool read_mesh(struct import *import, const struct json *json, uint32_t index,
		      struct grid *mesh)
{
	const struct json *dims = json_get(json, "dims"), *ranks = json_get(json, "ranks");
	const struct json *depth = ranks;
	char where[32];
	snprintf(where, sizeof(where), "meshes[%u]", index);
	for (; depth != NULL && depth->type == JSON_ARRAY && mesh->axis_count < GRID_AXIS_MAX;
	     depth = depth->first) {
		const struct json *dim = json_at(dims, mesh->axis_count);
		const char *name = dim != NULL && dim->type == JSON_STRING ? dim->text : NULL;
		if (name == NULL)
			name = arena_text(&import->arena, "d%u", mesh->axis_count);
		if (name == NULL)
			return !(import->out_of_memory = true);
		mesh->axis[mesh->axis_count++].name = name;
	}
	if (mesh->axis_count == 0 || (depth != NULL && depth->type == JSON_ARRAY)) {
		findings_add(&import->found, "mesh", where,
			     "it needs \"ranks\", lists nested 1 to %d deep", GRID_AXIS_MAX);
		return false;
	}
	return grid_read(import, ranks, mesh, where);
}

/* The number of a grid among those that there are, made when new. */
static bool add_grid(struct import *import, const struct grid *grid, uint32_t *number_out)
{
	for (uint32_t g = 0; g < import->grid_count; g++) {
		const struct grid *other = &import->grids[g];
		bool same = other->axis_count == grid->axis_count;
		for (uint32_t i = 0; i < grid->axis_count && same; i++)
			same = strcmp(other->axis[i].name, grid->axis[i].name) == 0 &&
			       other->axis[i].size == grid->axis[i].size &&
			       other->axis[i].stride == grid->axis[i].stride;
		*number_out = g;
		if (same)
			return true;
	}
	if (import->grid_count == GRID_COUNT_MAX) {
		findings_add(&import->found, "mesh", "meshes", "more than %d different ones",
			     GRID_COUNT_MAX);
		return false;
	}
	*number_out = import->grid_count;
	import->grids[import->grid_count] = *grid;
	import->grids[import->grid_count].name =
		arena_text(&import->arena, "m%u", import->grid_count);
	import->out_of_memory = import->grids[import->grid_count++].name == NULL;
	return !import->out_of_memory;
}

static bool read_meshes(struct dtensor *dump, const struct json *list)
{
	struct import *import = dump->import;
	uint32_t count = list != NULL && list->type == JSON_ARRAY ? list->count : 0, index = 0;
	struct grid *meshes = import_alloc(import, count + 1, sizeof(*meshes));
	uint32_t *grids = import_alloc(import, count + 1, sizeof(*grids));
	if (meshes == NULL || grids == NULL)
		return false;
	bool good = true;
	for (const struct json *it = count > 0 ? list->first : NULL; it != NULL; it = it->next) {
		char where[32];
		snprintf(where, sizeof(where), "meshes[%u]", index);
		bool read = read_mesh(import, it, index, &meshes[index]);
		struct grid grid = meshes[index];
		if (read && dump->pipeline.size > 1)
			grid.axis[grid.axis_count++] = dump->pipeline;
		read = read && grid_fit(import, &grid, where) &&
		       add_grid(import, &grid, &grids[index]);
		good = good && read;
		index++;
	}
	dump->meshes = meshes;
	dump->grids = grids;
	dump->mesh_count = count;
	/* A mesh for params that have none, where no other is there. */
	struct grid flat = {.axis_count = 1, .axis = {{"rank", import->world, 1}}};
	uint32_t number;
	return good && (import->grid_count > 0 || add_grid(import, &flat, &number));
}

/* Modules of experts: as many as the model has, at each layer where there is one. */
static void check_experts(struct import *import)
{
	for (const struct import_rule *it = import->rules; it != NULL; it = it->next) {
		for (uint32_t layer = 0; it->each_expert && layer < import->layer_end; layer++) {
			uint32_t want = import_experts(import, it->whole, (int32_t)layer);
			if (it->layers[layer] != 0 && it->layers[layer] != want)
				findings_add(&import->found, "missing", it->name,
					     "layer %u has %u of its %u experts in the dump, all "
					     "placed alike",
					     layer, it->layers[layer], want);
		}
	}
}

static void read_rank(struct dtensor *dump, const struct json *json)
{
	struct import *import = dump->import;
	const struct json *params = json_get(json, "params");
	int64_t rank = json_integer(json, "rank", 0);
	uint32_t index = 0;
	if (rank < 0 || rank >= import->world)
		return findings_add(&import->found, "dump", "rank", "it must be below %u",
				    import->world);
	if (params == NULL || params->type != JSON_ARRAY || params->count == 0)
		return findings_add(&import->found, "dump", "params",
				    "it must be a list of params");
	dump->rank = (uint32_t)rank;
	if (!read_meshes(dump, json_get(json, "meshes")))
		return;
	for (const struct json *it = params->first; it != NULL && !import->out_of_memory;
	     it = it->next)
		read_param(dump, it, index++);
}

/* "ranks": the dumps of the first rank of each stage, which are in equal steps. */
static bool read_pipeline(struct dtensor *dump, const struct json *ranks)
{
	struct import *import = dump->import;
	int64_t first = json_integer(ranks->first, "rank", -1), at = 0;
	int64_t step = ranks->count > 1 ? json_integer(ranks->first->next, "rank", -1) - first : 1;
	bool good = ranks->type == JSON_ARRAY && first >= 0 && step >= 1;
	for (const struct json *it = ranks->first; it != NULL && good; it = it->next, at++)
		good = json_integer(it, "rank", -1) == first + at * step;
	if (!good || at * step > import->world) {
		findings_add(&import->found, "dump", "ranks",
			     "it must be a list of dumps of ranks in equal steps, one of each "
			     "pipeline stage");
		return false;
	}
	dump->pipeline.size = import->stage_count = (uint32_t)at;
	dump->pipeline.stride = (uint32_t)step;
	return true;
}

void import_dtensor(struct import *import)
{
	struct dtensor dump = {.import = import, .pipeline = {"pp", 1, 1}};
	const struct json *ranks = json_get(import->dump, "ranks");
	import->stage_count = 1;
	if (ranks != NULL && !read_pipeline(&dump, ranks))
		return;
	import->grids = import_alloc(import, GRID_COUNT_MAX, sizeof(*import->grids));
	import->stage_of = import_alloc(import, import->layer_end + 1, sizeof(uint32_t));
	if (import->grids == NULL || import->stage_of == NULL)
		return;
	memset(import->stage_of, 0xff, (import->layer_end + 1) * sizeof(uint32_t));
	if (ranks == NULL)
		read_rank(&dump, import->dump);
	for (const struct json *it = ranks == NULL ? NULL : ranks->first; it != NULL;
	     it = it->next, dump.stage++)
		read_rank(&dump, it);
	if (!import->out_of_memory)
		check_experts(import);
}
