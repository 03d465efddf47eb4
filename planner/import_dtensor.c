/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DTensor dump: every param's name, whole shape and dtype, its mesh and the placement on each
 * of the mesh's dims.  Placements are splits in the order that they are applied: left to right,
 * but for _StridedShard(dim, split_factor), which is applied behind those to its right whose
 * sizes make its split factor (tensor parallel first, FSDP inside, though dp stands left).
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

/* The dump's meshes as they were read; import->grids has them fitted, in the same order. */
struct dtensor {
	struct import *import;
	const struct grid *meshes;
	uint32_t mesh_count, rank;
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

static uint64_t rule_key_of(const struct placement *placements, uint32_t count, uint32_t mesh,
			    enum ws_dtype dtype)
{
	uint64_t key = mix64((uint64_t)mesh << 8 | (uint64_t)dtype);
	for (uint32_t i = 0; i < count; i++)
		key = mix64(key * 31 + ((uint64_t)placements[i].dim << 32 |
					(uint64_t)placements[i].factor << 2 |
					(uint64_t)placements[i].kind));
	return key;
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
	uint64_t key = rule_key_of(placements, GRID_AXIS_MAX, mesh, dtype);
	struct import_rule *rule = import_rule(import, template, key);
	if (rule == NULL)
		return;
	if (rule->whole == NULL || !import_has(import, rule->whole, layer)) {
		const struct json *whole = import_whole(import, template, layer);
		if (whole == NULL)
			return import_unknown(import, name, template);
		rule->whole = whole;
		rule->x = plain_tensor ? whole : place(dump, whole, name, mesh, placements);
		rule->order = import_first_tensor(import, whole);
		rule->grid = mesh;
		rule->dtype = dtype;
		rule->each_layer = layer >= 0;
		rule->each_expert = strstr(template, "{E}") != NULL;
	}
	import_count(import, rule, layer);
	import_claim(import, &import->wholes, plain, 0, shape);
	if (local != NULL)
		import_claim(import, &import->parts, plain, dump->rank, local);
}

/* {"dims": ["dp", "tp"], "ranks": [[0, 1], [2, 3]]} */
static bool read_mesh(struct import *import, const struct json *json, uint32_t index,
		      struct grid *mesh)
{
	const struct json *dims = json_get(json, "dims"), *ranks = json_get(json, "ranks");
	const struct json *depth = ranks;
	char where[32];
	snprintf(where, sizeof(where), "meshes[%u]", index);
	mesh->name = arena_text(&import->arena, "m%u", index);
	for (; depth != NULL && depth->type == JSON_ARRAY && mesh->axis_count < GRID_AXIS_MAX;
	     depth = depth->first) {
		const struct json *dim = json_at(dims, mesh->axis_count);
		const char *name = dim != NULL && dim->type == JSON_STRING ? dim->text : NULL;
		if (name == NULL)
			name = arena_text(&import->arena, "d%u", mesh->axis_count);
		if (name == NULL || mesh->name == NULL)
			return !(import->out_of_memory = true);
		mesh->axis[mesh->axis_count++].name = name;
	}
	if (mesh->axis_count == 0 || (depth != NULL && depth->type == JSON_ARRAY)) {
		findings_add(&import->found, "mesh", where,
			     "it needs \"ranks\", lists nested 1 to %d deep", GRID_AXIS_MAX);
		return false;
	}
	if (!grid_read(import, ranks, mesh, where))
		return false;
	import->grids[index] = *mesh;
	return grid_fit(import, &import->grids[index], where);
}

/* The mesh of params that have none, if no other is there. */
static void add_flat_grid(struct import *import)
{
	import->grids[0] = (struct grid){.name = "ranks", .axis_count = 1, .axis = {
						 { "rank",
						   import->world,
						   1 }
					 }};
	import->grid_count = 1;
}

static bool read_meshes(struct dtensor *dump)
{
	struct import *import = dump->import;
	const struct json *list = json_get(import->dump, "meshes");
	uint32_t count = list != NULL && list->type == JSON_ARRAY ? list->count : 0, index = 0;
	struct grid *meshes = import_alloc(import, count + 1, sizeof(*meshes));
	import->grids = import_alloc(import, count + 1, sizeof(*import->grids));
	if (meshes == NULL || import->grids == NULL)
		return false;
	uint32_t found = import->found.count;
	for (const struct json *it = count > 0 ? list->first : NULL; it != NULL; it = it->next)
		read_mesh(import, it, index, &meshes[index]), index++;
	dump->meshes = meshes;
	dump->mesh_count = import->grid_count = count;
	if (count == 0)
		add_flat_grid(import);
	return import->found.count == found && !import->out_of_memory;
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

void import_dtensor(struct import *import)
{
	struct dtensor dump = {.import = import};
	const struct json *params = json_get(import->dump, "params");
	int64_t rank = json_integer(import->dump, "rank", 0);
	uint32_t index = 0;
	if (rank < 0 || rank >= import->world)
		return findings_add(&import->found, "dump", "rank", "it must be below %u",
				    import->world);
	if (params == NULL || params->type != JSON_ARRAY || params->count == 0)
		return findings_add(&import->found, "dump", "params",
				    "it must be a list of params");
	dump.rank = (uint32_t)rank;
	if (!read_meshes(&dump))
		return;
	for (const struct json *it = params->first; it != NULL && !import->out_of_memory;
	     it = it->next)
		read_param(&dump, it, index++);
	if (!import->out_of_memory)
		check_experts(import);
}
