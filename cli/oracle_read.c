/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle's own reading of a manifest: axes, layers, stages, experts and names, as layouts.md
 * section 4 defines them.  Nothing here comes from planner/.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/oracle.h"

/* rank's coordinate on an axis of one mesh; axes are listed slowest first. */
static bool mesh_axis(const struct json *mesh, const char *name, uint32_t rank, uint32_t *index_out,
		      uint32_t *size_out)
{
	uint64_t below = 1;
	bool found = false;
	for (const struct json *at = json_get(mesh, "axes") ? json_get(mesh, "axes")->first : NULL;
	     at; at = at->next) {
		uint64_t size = (uint64_t)json_at(at, 1)->integer;
		if (found)
			below *= size;
		if (strcmp(json_at(at, 0)->text, name) == 0) {
			found = true;
			*size_out = (uint32_t)size;
		}
	}
	if (found)
		*index_out = (uint32_t)(rank / below % *size_out);
	return found;
}

/* "order" names the same axes in another order: then sizes are looked up by name. */
static bool ordered_axis(const struct json *mesh, const char *name, uint32_t rank,
			 uint32_t *index_out, uint32_t *size_out)
{
	const struct json *order = json_get(mesh, "order");
	if (order == NULL || order->type != JSON_ARRAY)
		return mesh_axis(mesh, name, rank, index_out, size_out);
	uint64_t below = 1;
	bool found = false;
	for (const struct json *at = order->first; at != NULL; at = at->next) {
		uint32_t index = 0, size = 1;
		if (!mesh_axis(mesh, at->text, 0, &index, &size))
			return false;
		if (found)
			below *= size;
		if (strcmp(at->text, name) == 0) {
			found = true;
			*size_out = size;
		}
	}
	if (found)
		*index_out = (uint32_t)(rank / below % *size_out);
	return found;
}

static int one_axis(const struct spot *spot, const char *name, uint32_t *index_out,
		    uint32_t *size_out, struct ws_error *err)
{
	const struct json *meshes = json_get(spot->manifest, "meshes");
	const char *mesh = json_text(spot->param, "mesh", NULL);
	const struct json *own = mesh != NULL ? json_get(meshes, mesh)
				 : meshes     ? meshes->first
					      : NULL;
	if (own == NULL || !ordered_axis(own, name, spot->rank, index_out, size_out))
		return ws_fail(err, -EINVAL, "oracle: mesh '%s' has no axis '%s'",
			       mesh ? mesh : "?", name);
	return 0;
}

int spot_axis(const struct spot *spot, const char *name, uint32_t *index_out, uint32_t *size_out,
	      struct ws_error *err)
{
	const struct json *bound = json_get(json_get(spot->manifest, "axes"), name);
	*index_out = 0;
	*size_out = 1;
	if (bound == NULL)
		return one_axis(spot, name, index_out, size_out, err);
	if (bound->type == JSON_NUMBER)
		return 0;
	if (bound->type == JSON_STRING)
		return one_axis(spot, bound->text, index_out, size_out, err);
	for (const struct json *at = bound->first; at != NULL; at = at->next) {
		uint32_t index = 0, size = 1;
		int rc = one_axis(spot, at->text, &index, &size, err);
		if (rc != 0)
			return rc;
		*index_out = *index_out * size + index;
		*size_out *= size;
	}
	return 0;
}

int spot_number(const struct spot *spot, const struct json *json, uint64_t *value_out,
		struct ws_error *err)
{
	char symbol[128];
	uint32_t index = 0, size = 1;

	if (json == NULL || json->type == JSON_NUMBER) {
		*value_out = json == NULL ? 0 : (uint64_t)json->integer;
		return json != NULL ? 0 : ws_fail(err, -EINVAL, "oracle: a number is missing");
	}
	snprintf(symbol, sizeof(symbol), "%s", json->text + 1);
	char *axis = strchr(symbol, '*');
	if (axis != NULL) {
		*axis++ = '\0';
		int rc = spot_axis(spot, axis, &index, &size, err);
		if (rc != 0)
			return rc;
	}
	const struct json *value = json_get(json_get(spot->manifest, "sym"), symbol);
	if (value == NULL || !value->is_integer)
		return ws_fail(err, -EINVAL, "oracle: no symbol '%s'", symbol);
	*value_out = (uint64_t)value->integer * size;
	return 0;
}

void spot_name(const struct spot *spot, const char *pattern, int32_t expert, int32_t slot,
	       char *out, size_t bytes)
{
	int64_t layers = json_integer(json_get(spot->manifest, "sym"), "num_hidden_layers", 0);
	size_t used = 0;
	out[0] = '\0';
	while (*pattern != '\0' && used + 12 < bytes) {
		if (strncmp(pattern, "{L-nl}", 6) == 0) {
			used += (size_t)snprintf(out + used, bytes - used, "%lld",
						 (long long)(spot->layer - layers));
			pattern += 6;
		} else if (strncmp(pattern, "{L}", 3) == 0 || strncmp(pattern, "{E}", 3) == 0 ||
			   strncmp(pattern, "{e}", 3) == 0) {
			int32_t value = pattern[1] == 'L'   ? spot->layer
					: pattern[1] == 'E' ? expert
							    : slot;
			used += (size_t)snprintf(out + used, bytes - used, "%d", value);
			pattern += 3;
		} else {
			out[used++] = *pattern++;
			out[used] = '\0';
		}
	}
}

bool name_matches(const char *pattern, const char *name)
{
	while (*pattern != '\0' && *name != '\0') {
		if (pattern[0] == '{' && (pattern[1] == 'L' || pattern[1] == 'E') &&
		    pattern[2] == '}') {
			size_t digits = strspn(name, "0123456789");
			if (digits == 0)
				return false;
			name += digits;
			pattern += 3;
		} else if (*pattern++ != *name++) {
			return false;
		}
	}
	return *pattern == *name;
}

/* The first tensor name with {E} of an expression: its rule's expert range is the param's. */
static const char *expert_tensor(const struct json *expression)
{
	if (expression->type != JSON_ARRAY)
		return NULL;
	if (expression->first != NULL && expression->first->type == JSON_STRING &&
	    strcmp(expression->first->text, "t") == 0 &&
	    strstr(json_at(expression, 1)->text, "{E}") != NULL)
		return json_at(expression, 1)->text;
	for (const struct json *at = expression->first; at != NULL; at = at->next) {
		const char *found = expert_tensor(at);
		if (found != NULL)
			return found;
	}
	return NULL;
}

static int expert_range(const struct spot *spot, const char *tensor, int64_t *lo_out,
			int64_t *hi_out, struct ws_error *err)
{
	const struct json *rules = json_get(spot->manifest, "tensors");
	for (const struct json *at = rules ? rules->first : NULL; at != NULL; at = at->next) {
		const struct json *range = json_get(at, "experts");
		if (strcmp(json_text(at, "name", ""), tensor) == 0 && range != NULL) {
			*lo_out = json_at(range, 0)->integer;
			*hi_out = json_at(range, 1)->integer;
			return 0;
		}
	}
	return ws_fail(err, -EINVAL, "oracle: tensor '%s' has no experts", tensor);
}

/* The rank's experts at this layer, in slot order. */
static int list_experts(const struct reading *reading, struct spot *spot, struct ws_error *err)
{
	const struct json *experts = json_get(spot->manifest, "experts"),
			  *map = json_get(experts, "map");
	const char *axis = json_text(experts, "axis", NULL);
	const char *tensor = expert_tensor(json_get(spot->param, "x"));
	uint32_t index = 0, size = 1;
	int64_t lo = 0, hi = 0;

	spot->expert_count = 0;
	if (tensor == NULL)
		return 0;
	int rc = axis != NULL ? spot_axis(spot, axis, &index, &size, err) : 0;
	if (rc == 0)
		rc = expert_range(spot, tensor, &lo, &hi, err);
	if (rc != 0)
		return rc;
	const struct json *listed = NULL;
	if (map != NULL && map->type == JSON_ARRAY) {
		int64_t first = json_at(json_get(experts, "map_layers"), 0)->integer;
		listed = json_at(json_at(map, (uint32_t)(spot->layer - first)), index);
	}
	uint64_t total = (uint64_t)(hi - lo), room = listed != NULL ? listed->count : total;
	int32_t *list = arena_array(reading->arena, room + 1, sizeof(*list));
	if (list == NULL)
		return ws_fail(err, -ENOMEM, "oracle: no memory for experts");
	uint32_t count = 0;
	bool turns = strcmp(json_text(experts, "place", "linear"), "round_robin") == 0;
	uint64_t each = total / size, more = total % size;
	uint64_t begin = index * each + MIN((uint64_t)index, more);
	for (const struct json *at = listed ? listed->first : NULL; at != NULL; at = at->next)
		list[count++] = (int32_t)at->integer;
	for (uint64_t e = 0; listed == NULL && e < total; e++) {
		bool mine =
			turns ? e % size == index : e >= begin && e < begin + each + (index < more);
		if (mine)
			list[count++] = (int32_t)(lo + (int64_t)e);
	}
	spot->experts = list;
	spot->expert_count = count;
	return 0;
}

/* Whether the rank's stage holds this layer. */
static int on_stage(const struct spot *spot, bool *here_out, struct ws_error *err)
{
	const struct json *stages = json_get(spot->manifest, "stages");
	const struct json *stage = json_get(spot->param, "stage");
	uint32_t index = 0, size = 1;

	*here_out = true;
	if (stages == NULL || stages->type != JSON_OBJECT || (spot->layer < 0 && stage == NULL))
		return 0;
	int rc = one_axis(spot, json_text(stages, "axis", ""), &index, &size, err);
	if (rc != 0)
		return rc;
	if (spot->layer >= 0)
		*here_out =
			json_at(json_get(stages, "of"), (uint32_t)spot->layer)->integer == index;
	else if (stage->type == JSON_NUMBER)
		*here_out = stage->integer == index;
	else
		*here_out = index == (strcmp(stage->text, "last") == 0 ? size - 1 : 0);
	return 0;
}

/* Tries one entry at one layer: is the wanted name one of its params? */
static int try_layer(const struct reading *reading, struct spot *spot, const char *pattern,
		     const char *name, bool *found_out, struct ws_error *err)
{
	const struct json *each = json_get(spot->param, "each");
	char candidate[NAME_MAX_BYTES];
	bool here = true;

	*found_out = false;
	int rc = on_stage(spot, &here, err);
	if (rc != 0 || !here)
		return rc;
	if (json_get(each, "E") == NULL) {
		spot->expert = -1;
		spot_name(spot, pattern, -1, -1, candidate, sizeof(candidate));
		*found_out = strcmp(candidate, name) == 0;
		return *found_out ? list_experts(reading, spot, err) : 0;
	}
	spot_name(spot, pattern, 0, 0, candidate, sizeof(candidate));
	/* Cheap look first: names that differ before any number can't match. */
	if (strncmp(candidate, name, strcspn(pattern, "{")) != 0)
		return 0;
	rc = list_experts(reading, spot, err);
	for (uint32_t slot = 0; rc == 0 && slot < spot->expert_count; slot++) {
		spot_name(spot, pattern, spot->experts[slot], (int32_t)slot, candidate,
			  sizeof(candidate));
		if (strcmp(candidate, name) == 0) {
			spot->expert = spot->experts[slot];
			*found_out = true;
			return 0;
		}
	}
	return rc;
}

static int try_range(const struct reading *reading, struct spot *spot, const struct json *range,
		     const char *pattern, const char *name, bool *found_out, struct ws_error *err)
{
	int rc = 0;
	for (int64_t layer = json_at(range, 0)->integer;
	     rc == 0 && !*found_out && layer < json_at(range, 1)->integer; layer++) {
		spot->layer = (int32_t)layer;
		rc = try_layer(reading, spot, pattern, name, found_out, err);
	}
	return rc;
}

/* One entry, at all of its layers. */
static int try_entry(const struct reading *reading, struct spot *spot, const char *pattern,
		     const char *name, bool *found_out, struct ws_error *err)
{
	const struct json *ranges = json_get(json_get(spot->param, "each"), "L");
	int rc = 0;

	spot->layer = -1;
	if (ranges == NULL)
		return try_layer(reading, spot, pattern, name, found_out, err);
	/* the name of a set, or the ranges themselves */
	if (ranges->type == JSON_STRING)
		ranges = json_get(json_get(spot->manifest, "layers"), ranges->text);
	if (ranges == NULL || ranges->first == NULL)
		return 0;
	if (ranges->first->type == JSON_NUMBER)
		return try_range(reading, spot, ranges, pattern, name, found_out, err);
	for (const struct json *r = ranges->first; rc == 0 && !*found_out && r != NULL; r = r->next)
		rc = try_range(reading, spot, r, pattern, name, found_out, err);
	return rc;
}

/* The entry's second name: that of the scale of what it quantizes. */
static int try_scale(const struct reading *reading, struct spot *spot, const char *name,
		     bool *found_out, struct ws_error *err)
{
	char pattern[2 * NAME_MAX_BYTES];
	struct scheme scheme;

	spot->is_scale = true;
	int rc = oracle_find(spot, &scheme, err);
	if (rc != 0)
		return rc;
	snprintf(pattern, sizeof(pattern), "%s%s", json_text(spot->param, "p", ""), scheme.suffix);
	return try_entry(reading, spot, json_text(spot->param, "scale", pattern), name, found_out,
			 err);
}

int spot_find(const struct reading *reading, const struct json *manifest, uint32_t rank,
	      const char *name, struct spot *spot_out, struct ws_error *err)
{
	const struct json *params = json_get(manifest, "params");
	bool found = false;
	int rc = 0;
	for (const struct json *at = params ? params->first : NULL; rc == 0 && !found && at;
	     at = at->next) {
		*spot_out = (struct spot){.manifest = manifest, .param = at, .rank = rank};
		rc = try_entry(reading, spot_out, json_text(at, "p", ""), name, &found, err);
		if (rc == 0 && !found && json_get(at, "q") != NULL)
			rc = try_scale(reading, spot_out, name, &found, err);
	}
	if (rc == 0 && !found)
		rc = ws_fail(err, -ENOENT, "oracle: no param '%s' at rank %u", name, rank);
	return rc;
}

static bool mentions(const struct json *expression, const char *tensor)
{
	if (expression->type == JSON_STRING)
		return name_matches(expression->text, tensor);
	if (expression->type != JSON_ARRAY)
		return false;
	for (const struct json *at = expression->first; at != NULL; at = at->next)
		if (mentions(at, tensor))
			return true;
	return false;
}

enum ws_dtype trained_dtype(const struct reading *reading, const char *tensor, enum ws_dtype stored)
{
	const struct json *params = json_get(reading->trainer, "params");
	const struct json *rules = json_get(reading->trainer, "tensors");
	const struct json *rows = json_get(reading->trainer, "rows");
	const char *dtype = NULL;
	for (const struct json *at = rules ? rules->first : NULL; at != NULL; at = at->next)
		if (name_matches(json_text(at, "name", ""), tensor))
			dtype = json_text(at, "dtype", dtype);
	for (const struct json *at = params ? params->first : NULL; at != NULL; at = at->next)
		if (json_get(at, "dtype") != NULL && mentions(json_get(at, "x"), tensor))
			dtype = json_text(at, "dtype", dtype);
	for (const struct json *at = rows ? rows->first : NULL; at != NULL; at = at->next)
		if (strcmp(json_text(at, "t", ""), tensor) == 0)
			dtype = json_text(at, "dtype", dtype);
	return dtype != NULL ? ws_dtype_parse(dtype) : stored;
}
