/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manifest's ranks: meshes (factorizations of the same ranks), axis names bound to them,
 * pipeline stages and the placement of experts.
 */
#include <errno.h>
#include <string.h>

#include "planner/describe.h"

#define LISTS_MAX 1024 /* different ranges of experts in one manifest */

const struct mesh *mesh_find(const struct manifest *manifest, const char *name)
{
	for (uint32_t i = 0; i < manifest->mesh_count; i++) {
		if (strcmp(manifest->meshes[i].name, name) == 0)
			return &manifest->meshes[i];
	}
	return NULL;
}

static bool parse_mesh_axes(struct parse *parse, const struct json *axes, const char *where,
			    struct mesh *mesh)
{
	if (axes == NULL || axes->type != JSON_ARRAY || axes->count > 16) {
		findings_add(&parse->found, "mesh", where,
			     "\"axes\" must be a list of at most 16 [name, size]");
		return false;
	}
	mesh->axes = parse_alloc(parse, axes->count, sizeof(*mesh->axes));
	if (mesh->axes == NULL)
		return false;
	for (const struct json *it = axes->first; it != NULL; it = it->next) {
		const struct json *name = json_at(it, 0), *size = json_at(it, 1);
		if (it->type != JSON_ARRAY || it->count != 2 || name->type != JSON_STRING ||
		    !size->is_integer || size->integer < 1 || size->integer > RANKS_MAX) {
			findings_add(&parse->found, "mesh", where,
				     "an axis must be [name, size from 1 to %d]", RANKS_MAX);
			return false;
		}
		for (uint32_t i = 0; i < mesh->axis_count; i++) {
			if (strcmp(mesh->axes[i].name, name->text) == 0) {
				findings_add(&parse->found, "mesh", where,
					     "axis '%s' is listed twice", name->text);
				return false;
			}
		}
		struct mesh_axis *axis = &mesh->axes[mesh->axis_count++];
		axis->name = parse_copy(parse, name->text);
		axis->size = (uint32_t)size->integer;
		if (axis->name == NULL)
			return false;
	}
	return true;
}

/* "order" lists the same axes, slowest first, where that isn't the order of "axes". */
static bool apply_order(struct parse *parse, const struct json *order, const char *where,
			struct mesh *mesh)
{
	if (order == NULL || (order->type == JSON_STRING && strcmp(order->text, "row") == 0))
		return true;
	bool fits = order->type == JSON_ARRAY && order->count == mesh->axis_count;
	uint32_t at = 0;
	for (const struct json *it = order->first; fits && it != NULL; it = it->next, at++) {
		uint32_t i = at;
		while (i < mesh->axis_count &&
		       (it->type != JSON_STRING || strcmp(mesh->axes[i].name, it->text) != 0))
			i++;
		fits = i < mesh->axis_count;
		if (fits) {
			struct mesh_axis found = mesh->axes[i];
			mesh->axes[i] = mesh->axes[at];
			mesh->axes[at] = found;
		}
	}
	if (!fits)
		findings_add(&parse->found, "mesh", where,
			     "\"order\" must be \"row\" or each axis once, slowest first");
	return fits;
}

static bool parse_mesh(struct parse *parse, const struct json *json, struct mesh *mesh)
{
	static const char *const keys[] = {"axes", "order", NULL};
	const char *where = mesh->name;
	if (!parse_keys(parse, json, where, keys) ||
	    !parse_mesh_axes(parse, json_get(json, "axes"), where, mesh) ||
	    !apply_order(parse, json_get(json, "order"), where, mesh))
		return false;
	uint64_t product = 1;
	for (uint32_t i = mesh->axis_count; i > 0 && product <= RANKS_MAX; i--) {
		mesh->axes[i - 1].divisor = (uint32_t)product;
		product *= mesh->axes[i - 1].size;
	}
	if (product != parse->manifest->world) {
		findings_add(&parse->found, "mesh", where,
			     "its axes make %llu ranks%s, and the world has %u",
			     (unsigned long long)product, product > RANKS_MAX ? " or more" : "",
			     parse->manifest->world);
		return false;
	}
	return true;
}

void parse_meshes(struct parse *parse, const struct json *json)
{
	struct manifest *manifest = parse->manifest;
	if (json == NULL)
		return;
	if (!parse_named(parse, json, "mesh", "meshes"))
		return;
	manifest->meshes = parse_alloc(parse, json->count, sizeof(*manifest->meshes));
	if (manifest->meshes == NULL)
		return;
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		struct mesh *mesh = &manifest->meshes[manifest->mesh_count];
		mesh->name = parse_copy(parse, it->key);
		if (mesh->name != NULL && parse_mesh(parse, it, mesh))
			manifest->mesh_count++;
		else
			*mesh = (struct mesh){0};
	}
}

static bool is_mesh_axis(const struct manifest *manifest, const char *name)
{
	for (uint32_t m = 0; m < manifest->mesh_count; m++) {
		for (uint32_t i = 0; i < manifest->meshes[m].axis_count; i++) {
			if (strcmp(manifest->meshes[m].axes[i].name, name) == 0)
				return true;
		}
	}
	return false;
}

static bool parse_binding(struct parse *parse, const struct json *json, struct binding *binding)
{
	bool list = json->type == JSON_ARRAY;
	const struct json *it = list ? json->first : json;
	if (is_mesh_axis(parse->manifest, binding->name)) {
		findings_add(&parse->found, "axis", binding->name,
			     "it is an axis of a mesh and bound in \"axes\" too");
		return false;
	}
	if (json->is_integer && json->integer == 1)
		return true;
	for (; it != NULL; it = list ? it->next : NULL) {
		if (it->type != JSON_STRING || binding->part_count == AXIS_PART_MAX) {
			findings_add(&parse->found, "axis", binding->name,
				     "it must be 1, an axis name, or a list of at most %d",
				     AXIS_PART_MAX);
			return false;
		}
		if (!is_mesh_axis(parse->manifest, it->text)) {
			findings_add(&parse->found, "axis", binding->name,
				     "it is bound to '%s', which no mesh declares", it->text);
			return false;
		}
		binding->part[binding->part_count] = parse_copy(parse, it->text);
		if (binding->part[binding->part_count++] == NULL)
			return false;
	}
	return true;
}

void parse_bindings(struct parse *parse, const struct json *json)
{
	struct manifest *manifest = parse->manifest;
	if (json == NULL)
		return;
	if (!parse_named(parse, json, "axis", "axes"))
		return;
	manifest->bindings = parse_alloc(parse, json->count, sizeof(*manifest->bindings));
	if (manifest->bindings == NULL)
		return;
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		struct binding *binding = &manifest->bindings[manifest->binding_count];
		binding->name = parse_copy(parse, it->key);
		if (binding->name != NULL && parse_binding(parse, it, binding))
			manifest->binding_count++;
		else
			*binding = (struct binding){0};
	}
}

/* A rank has one stage, so every mesh that has the axis must give it the same coordinate. */
static bool find_stage_axis(struct parse *parse, const char *name)
{
	struct manifest *manifest = parse->manifest;
	struct axis *axis = parse_alloc(parse, 1, sizeof(*axis));
	if (axis == NULL)
		return false;
	*axis = (struct axis){.name = name};
	for (uint32_t m = 0; m < manifest->mesh_count; m++) {
		for (uint32_t i = 0; i < manifest->meshes[m].axis_count; i++) {
			const struct mesh_axis *it = &manifest->meshes[m].axes[i];
			if (strcmp(it->name, name) != 0)
				continue;
			if (axis->part_count == 1 &&
			    (it->size != axis->size || it->divisor != axis->part_divisor[0])) {
				findings_add(&parse->found, "stage", name,
					     "two meshes give ranks different coordinates on it");
				return false;
			}
			axis->size = axis->part_size[0] = it->size;
			axis->part_divisor[0] = it->divisor;
			axis->part_count = 1;
		}
	}
	if (axis->part_count == 0) {
		findings_add(&parse->found, "stage", name,
			     "no mesh declares this axis of \"stages\"");
		return false;
	}
	manifest->stage_axis = axis;
	return true;
}

void parse_stages(struct parse *parse, const struct json *json)
{
	static const char *const keys[] = {"axis", "of", NULL};
	struct manifest *manifest = parse->manifest;
	if (json == NULL || json->type == JSON_NULL || !parse_keys(parse, json, "stages", keys))
		return;
	const char *name = parse_text(parse, json, "axis", "stages");
	const struct json *of = json_get(json, "of");
	if (name == NULL || of == NULL || of->type != JSON_ARRAY || of->count > LAYER_MAX) {
		findings_add(&parse->found, "stage", "stages",
			     "it needs \"axis\", and \"of\": the stage of layer 0, 1, ..");
		return;
	}
	if (!find_stage_axis(parse, name))
		return;
	manifest->stage_of = parse_alloc(parse, of->count, sizeof(*manifest->stage_of));
	if (manifest->stage_of == NULL)
		return;
	for (const struct json *it = of->first; it != NULL; it = it->next) {
		if (!it->is_integer || it->integer < 0 ||
		    it->integer >= manifest->stage_axis->size) {
			findings_add(&parse->found, "stage", "stages",
				     "layer %u: a stage must be from 0 to %u",
				     manifest->stage_layer_count, manifest->stage_axis->size - 1);
			return;
		}
		manifest->stage_of[manifest->stage_layer_count++] = (uint32_t)it->integer;
	}
}

/* The lists of one layer of a map: as long for each coordinate as at the first layer. */
static bool parse_map_layer(struct parse *parse, const struct json *json, int32_t layer, bool first,
			    int32_t *list)
{
	struct expert_map *map = parse->manifest->map;
	if (json->type != JSON_ARRAY || json->count != map->coordinate_count) {
		findings_add(&parse->found, "experts", "experts.map",
			     "layer %d: expected %u lists, one per coordinate", layer,
			     map->coordinate_count);
		return false;
	}
	uint32_t coordinate = 0;
	for (const struct json *it = json->first; it != NULL; it = it->next, coordinate++) {
		if (it->type != JSON_ARRAY || (!first && it->count != map->counts[coordinate])) {
			findings_add(
				&parse->found, "experts", "experts.map",
				"layer %d: coordinate %u must have as many experts as at the first layer",
				layer, coordinate);
			return false;
		}
		if (first) {
			map->counts[coordinate] = it->count;
			map->firsts[coordinate] = map->total;
			map->total += it->count;
			continue;
		}
		for (const struct json *expert = it->first; expert != NULL; expert = expert->next) {
			if (!expert->is_integer || expert->integer < 0 ||
			    expert->integer >= EXPERT_MAX) {
				findings_add(&parse->found, "experts", "experts.map",
					     "layer %d: an expert must be an integer from 0 on",
					     layer);
				return false;
			}
			*list++ = (int32_t)expert->integer;
		}
	}
	return true;
}

static void parse_map(struct parse *parse, const struct json *json, const struct json *layers)
{
	struct expert_map *map = parse_alloc(parse, 1, sizeof(*map));
	if (map == NULL)
		return;
	parse->manifest->map = map;
	if (layers == NULL || json->type != JSON_ARRAY || json->count == 0) {
		findings_add(&parse->found, "experts", "experts.map",
			     "a map is a list over the layers of \"map_layers\": [lo, hi]");
		return;
	}
	if (!parse_range(parse, layers, "experts.map_layers", "layers", LAYER_MAX, &map->layers))
		return;
	if ((uint32_t)(map->layers.hi - map->layers.lo) != json->count) {
		findings_add(&parse->found, "experts", "experts.map",
			     "it has %u layers, \"map_layers\" %d", json->count,
			     map->layers.hi - map->layers.lo);
		return;
	}
	map->coordinate_count = json->first->count;
	map->counts = parse_alloc(parse, map->coordinate_count, sizeof(uint32_t));
	map->firsts = parse_alloc(parse, map->coordinate_count, sizeof(uint32_t));
	if (map->counts == NULL || map->firsts == NULL ||
	    !parse_map_layer(parse, json->first, map->layers.lo, true, NULL))
		return;
	if (!parse_work(parse, "experts.map", (uint64_t)map->total * json->count))
		return;
	map->list = parse_alloc(parse, (size_t)map->total * json->count, sizeof(int32_t));
	int32_t *list = map->list, layer = map->layers.lo;
	for (const struct json *it = json->first; it != NULL && list != NULL; it = it->next) {
		if (!parse_map_layer(parse, it, layer++, false, list))
			return;
		list += map->total;
	}
}

void parse_experts(struct parse *parse, const struct json *json)
{
	static const char *const keys[] = {"axis",	 "place",	"map",
					   "map_layers", "map_version", NULL};
	if (json == NULL || json->type == JSON_NULL || !parse_keys(parse, json, "experts", keys))
		return;
	const char *place = json_text(json, "place", "linear");
	const struct json *map = json_get(json, "map");
	parse->manifest->expert_axis_name = parse_text(parse, json, "axis", "experts");
	parse->manifest->round_robin = strcmp(place, "round_robin") == 0;
	if (!parse->manifest->round_robin && strcmp(place, "linear") != 0)
		findings_add(&parse->found, "experts", "experts",
			     "\"place\" must be \"linear\" or \"round_robin\"");
	const struct json *version = json_get(json, "map_version");
	if (version != NULL && (!version->is_integer || version->integer < 0 || map == NULL))
		findings_add(&parse->found, "experts", "experts",
			     "\"map_version\" must be an integer from 0 on, and goes with a map");
	else if (version != NULL)
		parse->manifest->map_version = version->integer;
	if (map != NULL && map->type != JSON_NULL)
		parse_map(parse, map, json_get(json, "map_layers"));
}

/* By place: the first count % n coordinates have one more. */
const struct expert_lists *expert_lists(struct parse *parse, int32_t lo, int32_t hi, uint32_t count)
{
	struct manifest *manifest = parse->manifest;
	for (uint32_t i = 0; i < manifest->lists_count; i++) {
		const struct expert_lists *lists = manifest->lists[i];
		if (lists->lo == lo && lists->hi == hi && lists->coordinate_count == count)
			return lists;
	}
	if (manifest->lists_count == LISTS_MAX) {
		findings_add(&parse->found, "experts", "tensors",
			     "more than %d different ranges of experts", LISTS_MAX);
		return NULL;
	}
	struct expert_lists **grown =
		parse_alloc(parse, manifest->lists_count + 1, sizeof(struct expert_lists *));
	struct expert_lists *lists = parse_alloc(parse, 1, sizeof(*lists));
	int32_t *list = parse_alloc(parse, (size_t)(hi - lo), sizeof(*list));
	if (grown == NULL || lists == NULL || list == NULL)
		return NULL;
	if (manifest->lists_count > 0)
		memcpy(grown, manifest->lists,
		       manifest->lists_count * sizeof(struct expert_lists *));
	*lists = (struct expert_lists){.lo = lo, .hi = hi, .coordinate_count = count, .list = list};
	for (uint32_t c = 0; c < count && manifest->round_robin; c++) {
		for (int32_t expert = lo + (int32_t)c; expert < hi; expert += (int32_t)count)
			*list++ = expert;
	}
	for (int32_t expert = lo; expert < hi && !manifest->round_robin; expert++)
		*list++ = expert;
	grown[manifest->lists_count++] = lists;
	manifest->lists = grown;
	return lists;
}
