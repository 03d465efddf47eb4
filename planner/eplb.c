/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert placement by load (EPLB): an engine's own file, one row of physical slots per layer, each
 * the logical expert that the slot holds, becomes the manifest's "experts".  Redundant slots are
 * experts that stand several times.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

/* Coordinates of the axis `ep` of the experts' mesh. */
static uint32_t ep_size(const struct ranks *ranks)
{
	const struct ranks_mesh *mesh = &ranks->mesh[ranks->mesh_count - 1];
	const char *const self[] = {"ep"};
	const char *const *parts = self;
	uint32_t count = 1, size = 1;
	for (uint32_t b = 0; b < ranks->binding_count; b++) {
		if (strcmp(ranks->binding[b].name, "ep") != 0)
			continue;
		parts = ranks->binding[b].part;
		count = ranks->binding[b].part_count;
	}
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t a = 0; a < mesh->axis_count; a++)
			size *= strcmp(mesh->axis[a].name, parts[i]) == 0 ? mesh->axis[a].size : 1;
	}
	return size;
}

static const struct json *read_file(struct make *make, const struct json **version_out)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	const struct json *json, *map;
	struct ws_error err;
	int rc = json_parse(&make->arena, make->options->eplb, make->options->eplb_bytes, &limits,
			    &json, &err);
	if (rc == -ENOMEM)
		make->json.out->failed = true; /* what the caller looks at in the end */
	else if (rc != 0)
		findings_add(&make->found, "eplb", "eplb", "%s", err.text);
	if (rc != 0)
		return NULL;
	*version_out = json->type == JSON_OBJECT ? json_get(json, "map_version") : NULL;
	map = json->type == JSON_OBJECT ? json_get(json, "physical_to_logical_map") : json;
	if (map != NULL && map->type == JSON_ARRAY && map->first != NULL &&
	    map->first->type == JSON_ARRAY)
		return map;
	findings_add(&make->found, "eplb", "eplb",
		     "expected {\"physical_to_logical_map\": [[expert of slot 0, ..] per layer]}");
	return NULL;
}

/* The layers that the rows are of: all, the model's own, or those with experts. */
static bool find_layers(struct make *make, uint32_t rows, int32_t *first_row, int32_t *lo,
			int32_t *hi)
{
	int32_t end = make->layer_end, own = make->model->layer_count;
	*lo = 0;
	*hi = end;
	while (*lo < end && !make_in_set(make, "moe", *lo))
		(*lo)++;
	bool moe_rows = rows == (uint32_t)(end - *lo);
	*first_row = moe_rows ? *lo : 0;
	if (*lo < end && (moe_rows || rows == (uint32_t)end))
		return true;
	findings_add(&make->found, "eplb", "eplb",
		     "it has %u rows; the model has %d layers, from %d on with experts%s", rows,
		     end, *lo, end > own ? " (MTP layers too; mtp=none leaves them away)" : "");
	return false;
}

/* One row: equal shares of its slots for the coordinates. */
static bool put_row(struct make *make, const struct json *row, int32_t layer, uint32_t slots,
		    uint32_t coordinates)
{
	const struct json *slot = row->first;
	if (row->type != JSON_ARRAY || row->count != slots) {
		findings_add(&make->found, "eplb", "eplb",
			     "layer %d: expected %u slots, as at the first layer", layer, slots);
		return false;
	}
	json_begin_array(&make->json, NULL);
	for (uint32_t c = 0; c < coordinates; c++) {
		json_begin_array(&make->json, NULL);
		for (uint32_t i = 0; i < slots / coordinates; i++, slot = slot->next)
			json_put_value(&make->json, NULL, slot);
		json_end_array(&make->json);
	}
	json_end_array(&make->json);
	return true;
}

void make_put_eplb(struct make *make)
{
	const struct json *version = NULL, *map = read_file(make, &version);
	uint32_t coordinates = ep_size(&make->ranks);
	int32_t first_row, lo, hi;
	if (make->options->side != SIDE_ROLLOUT)
		findings_add(&make->found, "eplb", "eplb", "maps are an engine's, not a trainer's");
	if (make->ranks.round_robin)
		findings_add(&make->found, "eplb", "eplb", "round_robin= doesn't go with a map");
	if (map == NULL || !find_layers(make, map->count, &first_row, &lo, &hi))
		return;
	uint32_t slots = map->first->count;
	if (slots == 0 || slots % coordinates != 0)
		return findings_add(&make->found, "eplb", "eplb",
				    "%u slots don't divide by the %u ranks of ep", slots,
				    coordinates);
	if (version != NULL)
		json_put_value(&make->json, "map_version", version);
	json_begin_array(&make->json, "map_layers");
	json_put_integer(&make->json, NULL, lo);
	json_put_integer(&make->json, NULL, hi);
	json_end_array(&make->json);
	json_begin_array(&make->json, "map");
	const struct json *row = map->first;
	for (int32_t layer = first_row; layer < hi && row != NULL; layer++, row = row->next) {
		if (layer >= lo && !put_row(make, row, layer, slots, coordinates))
			break;
	}
	json_end_array(&make->json);
}
