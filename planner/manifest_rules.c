/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manifest's "params": one rule per entry, or several where its tensors differ by layer, so
 * that a rule has the same form at each of its layers.  Every rule's shape is computed here at
 * every coordinate its ranks have, so that what can't be is said while the manifest is read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define SEGMENT_MAX 64		/* rules that one entry may make */
#define VISIT_MAX   (4u << 20)	/* nodes computed for one manifest; later shapes when asked for */
#define STAGE_ROOM  (16u << 20) /* rules times stages */

static const char *const name_marks[] = {"{L}", "{L-nl}", "{E}", "{e}", NULL};

struct rule *rule_add(struct parse *parse)
{
	struct manifest *manifest = parse->manifest;
	if (manifest->rule_count == manifest->rule_room) {
		uint32_t room = manifest->rule_room == 0 ? 64 : manifest->rule_room * 2;
		struct rule *rules = mem_grow(manifest->rules, manifest->rule_room * sizeof(*rules),
					      room * sizeof(*rules));
		if (rules == NULL) {
			parse->out_of_memory = true;
			return NULL;
		}
		manifest->rules = rules;
		manifest->rule_room = room;
	}
	struct rule *rule = &manifest->rules[manifest->rule_count++];
	*rule = (struct rule){.stage = STAGE_ANY};
	return rule;
}

/* Sorts a rule's layers by stage; false and findings where a layer has none. */
static bool rule_place(struct parse *parse, struct rule *rule, const int32_t *layers,
		       uint32_t count)
{
	const struct manifest *manifest = parse->manifest;
	rule->layer_count = count;
	rule->layers = parse_alloc(parse, count, sizeof(*rule->layers));
	if (rule->layers == NULL)
		return false;
	memcpy(rule->layers, layers, count * sizeof(*layers));
	if (manifest->stage_axis == NULL || layers[0] < 0)
		return true;
	uint32_t stages = manifest->stage_axis->size;
	if ((uint64_t)manifest->rule_count * stages > STAGE_ROOM) {
		findings_add(&parse->found, "stage", rule->view.name,
			     "too many rules times stages");
		return false;
	}
	rule->stage_first = parse_alloc(parse, stages + 1, sizeof(*rule->stage_first));
	if (rule->stage_first == NULL)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		if ((uint32_t)layers[i] >= manifest->stage_layer_count) {
			findings_add(&parse->found, "stage", rule->view.name,
				     "\"stages\" gives layer %d no stage", layers[i]);
			return false;
		}
		rule->stage_first[manifest->stage_of[layers[i]] + 1]++;
	}
	for (uint32_t s = 0; s < stages; s++)
		rule->stage_first[s + 1] += rule->stage_first[s];
	uint32_t *next = parse_alloc(parse, stages, sizeof(*next));
	for (uint32_t i = 0; next != NULL && i < count; i++) {
		uint32_t stage = manifest->stage_of[layers[i]];
		rule->layers[rule->stage_first[stage] + next[stage]++] = layers[i];
	}
	return next != NULL;
}

uint64_t rule_key(const struct rule *rule, uint32_t rank)
{
	uint64_t key = 0, sizes = 1;
	for (uint32_t i = 0; i < rule->axis_count; i++) {
		if (sizes > UINT64_MAX / rule->axes[i]->size)
			return rank; /* finer than needed, never wrong */
		sizes *= rule->axes[i]->size;
		key = key * rule->axes[i]->size + axis_index(rule->axes[i], rank);
	}
	return key;
}

uint32_t rule_expert_count(const struct manifest *manifest, const struct rule *rule, uint32_t rank)
{
	if (rule->rows != NULL || (!rule->view.each_expert && !rule->view.stacks_experts))
		return 0;
	uint32_t coordinate = rule->expert_axis == NULL ? 0 : axis_index(rule->expert_axis, rank);
	if (rule->lists == NULL)
		return manifest->map->counts[coordinate];
	uint32_t count = (uint32_t)(rule->lists->hi - rule->lists->lo);
	uint32_t n = rule->lists->coordinate_count;
	return count / n + (coordinate < count % n);
}

/* A map must give each expert of the range at each layer, and no other. */
static bool check_map(struct parse *parse, const struct rule *rule, struct layer_range experts)
{
	const struct expert_map *map = parse->manifest->map;
	uint32_t count = (uint32_t)(experts.hi - experts.lo);
	if (!parse_work(parse, rule->view.name, (uint64_t)rule->layer_count * map->total + count))
		return false;
	uint8_t *seen = arena_alloc(&parse->arena, count);
	if (seen == NULL) {
		parse->out_of_memory = true;
		return false;
	}
	for (uint32_t i = 0; i < rule->layer_count; i++) {
		int32_t layer = rule->layers[i];
		if (layer < map->layers.lo || layer >= map->layers.hi) {
			findings_add(&parse->found, "experts", rule->view.name,
				     "\"experts.map\" has no layer %d", layer);
			return false;
		}
		const int32_t *list = map->list + (size_t)(layer - map->layers.lo) * map->total;
		memset(seen, 0, count);
		for (uint32_t j = 0; j < map->total; j++) {
			if (list[j] < experts.lo || list[j] >= experts.hi) {
				findings_add(
					&parse->found, "experts", rule->view.name,
					"\"experts.map\" has expert %d at layer %d, the tensors have %d to %d",
					list[j], layer, experts.lo, experts.hi - 1);
				return false;
			}
			seen[list[j] - experts.lo] = 1;
		}
		const uint8_t *missing = memchr(seen, 0, count);
		if (missing != NULL) {
			findings_add(&parse->found, "experts", rule->view.name,
				     "\"experts.map\" puts expert %d of layer %d nowhere",
				     experts.lo + (int32_t)(missing - seen), layer);
			return false;
		}
	}
	return true;
}

static bool place_experts(struct parse *parse, struct param_parse *param, struct rule *rule)
{
	struct manifest *manifest = parse->manifest;
	if (!rule->view.each_expert && !rule->view.stacks_experts)
		return true;
	if (param->experts.lo < 0) {
		findings_add(&parse->found, "experts", rule->view.name,
			     "%s, and none of its tensors has {E}",
			     rule->view.each_expert ? "it has each.E" : "it has a `k`");
		return false;
	}
	uint32_t coordinates = 1;
	if (manifest->expert_axis_name != NULL) {
		rule->expert_axis = axis_resolve(param, manifest->expert_axis_name);
		if (rule->expert_axis == NULL)
			return false;
		coordinates = rule->expert_axis->size;
	}
	if (manifest->map == NULL) {
		rule->lists =
			expert_lists(parse, param->experts.lo, param->experts.hi, coordinates);
		return rule->lists != NULL;
	}
	if (manifest->map->list == NULL)
		return false;
	if (manifest->map->coordinate_count != coordinates) {
		findings_add(&parse->found, "experts", rule->view.name,
			     "\"experts.map\" has %u coordinates, its axis has %u",
			     manifest->map->coordinate_count, coordinates);
		return false;
	}
	return check_map(parse, rule, param->experts);
}

/* The shape at each different coordinate; one finding for the first rank where it can't be. */
static void check_shapes(struct parse *parse, const struct rule *rule, uint32_t nodes,
			 uint32_t *visits_left)
{
	const struct manifest *manifest = parse->manifest;
	uint64_t keys = 1;
	if (*visits_left == 0)
		return;
	for (uint32_t i = 0; i < rule->axis_count && keys <= manifest->world; i++)
		keys *= rule->axes[i]->size;
	bool remembers = keys <= manifest->world && !rule->view.stacks_experts;
	uint64_t keys_left = remembers ? keys : UINT64_MAX;
	uint8_t *seen = remembers ? arena_alloc(&parse->arena, keys / 8 + 1) : NULL;
	if (remembers && seen == NULL)
		return (void)(parse->out_of_memory = true);
	for (uint32_t rank = 0; *visits_left > 0 && keys_left > 0 && rank < manifest->world;
	     rank++) {
		uint64_t key = rule_key(rule, rank);
		*visits_left -= rank % VISIT_RANKS == 0;
		if (seen != NULL && (seen[key / 8] >> (key % 8) & 1) != 0)
			continue;
		if (seen != NULL)
			seen[key / 8] = (uint8_t)(seen[key / 8] | 1u << (key % 8));
		keys_left--;
		*visits_left -= MIN(*visits_left, nodes);
		struct spot spot = {.rank = rank,
				    .expert_count = rule_expert_count(manifest, rule, rank),
				    .stacks = rule->view.stacks_experts};
		struct shape shape;
		struct ws_error error;
		if (expr_shape(rule->expr, &spot, &shape, &error) != 0) {
			findings_add(&parse->found, "rule", rule->view.name, "%s, at rank %u",
				     error.text, rank);
			return;
		}
	}
}

static const char *parse_choice(struct parse *parse, const struct json *json, const char *key,
				const char *where, const char *first, const char *second)
{
	const char *text = parse_text(parse, json, key, where);
	if (text == NULL || strcmp(text, first) == 0)
		return first;
	if (strcmp(text, second) == 0)
		return second;
	findings_add(&parse->found, "key", where, "'%s' must be \"%s\" or \"%s\"", key, first,
		     second);
	return first;
}

static void parse_stage(struct parse *parse, const struct json *json, struct rule *rule)
{
	const struct json *stage = json_get(json, "stage");
	const struct axis *axis = parse->manifest->stage_axis;
	const char *text = stage != NULL && stage->type == JSON_STRING ? stage->text : "";
	if (stage == NULL)
		return;
	if (strcmp(text, "first") == 0)
		rule->stage = 0;
	else if (strcmp(text, "last") == 0)
		rule->stage = axis == NULL ? STAGE_ANY : (int32_t)axis->size - 1;
	else if (axis != NULL && stage->is_integer && stage->integer >= 0 &&
		 stage->integer < axis->size)
		rule->stage = (int32_t)stage->integer;
	else
		findings_add(&parse->found, "stage", rule->view.name,
			     "\"stage\" must be \"first\", \"last\" or a stage's number");
	if (axis == NULL)
		rule->stage = STAGE_ANY;
	if (rule->view.each_layer)
		findings_add(&parse->found, "stage", rule->view.name,
			     "a param with each.L is where \"stages\" puts its layers");
}

/* What doesn't depend on the expression. */
static void parse_plain(struct parse *parse, const struct json *json, struct rule *rule)
{
	const struct manifest *manifest = parse->manifest;
	const char *name = rule->view.name;
	const char *mode = NULL;
	rule->view.post = parse_text(parse, json, "post", name);
	rule->view.quant = parse_text(parse, json, "q", name);
	rule->scale = parse_text(parse, json, "scale", name);
	rule->kind = parse_choice(parse, json, "kind", name, "param", "buffer");
	rule->part_of = parse_choice(parse, json, "model", name, "main", "draft");
	mode = rule->view.post == NULL
		       ? parse_choice(parse, json, "mode", name, "inplace", "staged")
		       : parse_choice(parse, json, "mode", name, "staged", "inplace");
	rule->view.inplace = strcmp(mode, "inplace") == 0;
	parse_stage(parse, json, rule);
	rule->scheme = rule->view.quant == NULL ? NULL : scheme_find(manifest, rule->view.quant);
	if (rule->view.quant != NULL && rule->scheme == NULL)
		findings_add(&parse->found, "quant", name, "\"schemes\" has no '%s'",
			     rule->view.quant);
	if (rule->scale != NULL && !name_marks_fit(rule->scale, name_marks))
		findings_add(&parse->found, "name", name,
			     "a brace in \"scale\" must begin {L}, {L-nl}, {E} or {e}");
	if (rule->view.quant == NULL && rule->scale != NULL)
		findings_add(&parse->found, "quant", name,
			     "it has a \"scale\" and no \"q\", its scheme");
	if (rule->scheme != NULL)
		rule->view.dtype = rule->scheme->code;
	const struct json *dtype = json_get(json, "dtype");
	if (dtype == NULL)
		return;
	rule->view.dtype = ws_dtype_parse(dtype->type == JSON_STRING ? dtype->text : "");
	if (rule->view.dtype == WS_NONE)
		findings_add(&parse->found, "dtype", name, "'%s' is no dtype",
			     dtype->type == JSON_STRING ? dtype->text : "?");
}

/* One rule of an entry, for layers that all resolve to the same tensors. */
static void add_segment(struct parse *parse, struct param_parse *param, const struct json *json,
			const int32_t *layers, uint32_t count, uint32_t *visits_left)
{
	uint32_t found = parse->found.count;
	param->layer = layers[0];
	param->node_count = param->axis_count = 0;
	param->stacks = param->in_stack = param->failed = param->mixed_dtypes = false;
	param->experts = (struct layer_range){-1, -1};
	param->dtype = WS_NONE;
	param->axes = parse_alloc(parse, AXES_NAMED_MAX, sizeof(struct axis *));
	struct rule *rule = param->axes == NULL ? NULL : rule_add(parse);
	if (rule == NULL)
		return;
	rule->view.name = param->name;
	rule->view.each_layer = layers[0] >= 0;
	rule->view.each_expert = param->each_expert;
	rule->expr = expr_parse(param, json_get(json, "x"));
	rule->view.stacks_experts = param->stacks;
	parse_plain(parse, json, rule);
	if (rule->view.dtype == WS_NONE && param->mixed_dtypes)
		findings_add(&parse->found, "dtype", param->name,
			     "its tensors have different dtypes, so it needs \"dtype\"");
	if (rule->view.dtype == WS_NONE)
		rule->view.dtype = param->dtype;
	rule->axes = param->axes;
	rule->axis_count = param->axis_count;
	check_declared(parse, json, rule);
	if (rule->expr == NULL || !rule_place(parse, rule, layers, count) ||
	    !place_experts(parse, param, rule) || parse->found.count > found)
		return;
	check_shapes(parse, rule, param->node_count, visits_left);
	if (rule->scheme != NULL && parse->found.count == found && !parse->out_of_memory)
		add_scale_rule(parse, parse->manifest->rule_count - 1, visits_left);
}

bool parse_each(struct parse *parse, const struct json *each, struct param_parse *param,
		struct layer_set *layers)
{
	static const char *const keys[] = {"L", "E", NULL};
	const struct manifest *manifest = parse->manifest;
	if (each == NULL)
		return true;
	if (!parse_keys(parse, each, param->name, keys))
		return false;
	const struct json *l = json_get(each, "L"), *e = json_get(each, "E");
	const char *axis = manifest->expert_axis_name != NULL ? manifest->expert_axis_name : "all";
	if (e != NULL && (e->type != JSON_STRING || strcmp(e->text, axis) != 0)) {
		findings_add(&parse->found, "experts", param->name,
			     "each.E must be '%s', as \"experts.axis\" says", axis);
		return false;
	}
	param->each_expert = e != NULL;
	if (l == NULL)
		return true;
	if (l->type != JSON_STRING)
		return parse_ranges(parse, l, param->name, layers);
	for (uint32_t i = 0; i < manifest->set_count; i++) {
		if (strcmp(manifest->sets[i].name, l->text) == 0) {
			*layers = manifest->sets[i];
			return true;
		}
	}
	findings_add(&parse->found, "layers", param->name, "\"layers\" has no set '%s'", l->text);
	return false;
}

/* Sorts an entry's layers into segments of equal tensors, and adds a rule for each. */
static void add_segments(struct parse *parse, struct param_parse *param, const struct json *json,
			 const struct layer_set *set, uint32_t *visits_left)
{
	if (parse->names == NULL)
		parse->names = arena_array(&parse->arena, EXPR_NODE_MAX, sizeof(char *));
	const char **names = parse->names;
	uint32_t total = 0, segment_count = 0, used[SEGMENT_MAX] = {0};
	for (uint32_t i = 0; i < set->count; i++)
		total += (uint32_t)(set->ranges[i].hi - set->ranges[i].lo);
	if (names == NULL)
		return (void)(parse->out_of_memory = true);
	uint32_t name_count = expr_tensor_names(json_get(json, "x"), names, EXPR_NODE_MAX);
	/* Each is looked up, and its number is kept twice. */
	if (!parse_work(parse, param->name, (name_count + 3ull) * total))
		return;
	uint32_t *found[SEGMENT_MAX + 1];
	int32_t *layers[SEGMENT_MAX];
	found[0] = arena_array(&parse->arena, name_count, sizeof(uint32_t));
	for (uint32_t r = 0; r < set->count; r++) {
		for (int32_t layer = set->ranges[r].lo; layer < set->ranges[r].hi; layer++) {
			uint32_t *mine = found[segment_count], s = 0;
			if (mine == NULL)
				return (void)(parse->out_of_memory = true);
			for (uint32_t i = 0; i < name_count; i++)
				mine[i] = tensor_find(parse->manifest, names[i], layer);
			while (s < segment_count && name_count > 0 &&
			       memcmp(found[s], mine, name_count * sizeof(*mine)) != 0)
				s++;
			if (s == SEGMENT_MAX)
				return findings_add(&parse->found, "rule", param->name,
						    "its tensors differ in more than %d ways",
						    SEGMENT_MAX);
			if (s == segment_count) {
				layers[s] = arena_array(&parse->arena, total, sizeof(int32_t));
				found[++segment_count] =
					arena_array(&parse->arena, name_count, sizeof(uint32_t));
				if (layers[s] == NULL)
					return (void)(parse->out_of_memory = true);
			}
			layers[s][used[s]++] = layer;
		}
	}
	for (uint32_t s = 0; s < segment_count; s++)
		add_segment(parse, param, json, layers[s], used[s], visits_left);
}

void param_mesh(struct param_parse *param, const struct json *json)
{
	struct parse *parse = param->parse;
	const char *mesh = json_text(json, "mesh", NULL);
	if (mesh != NULL)
		param->mesh = mesh_find(parse->manifest, mesh);
	else if (parse->manifest->mesh_count == 1)
		param->mesh = &parse->manifest->meshes[0];
	if (param->mesh == NULL)
		findings_add(&parse->found, "mesh", param->name,
			     mesh != NULL ? "\"meshes\" has no '%s'" : "it needs \"mesh\"%s",
			     mesh != NULL ? mesh : "");
}

static void parse_param(struct parse *parse, const struct json *json, uint32_t index,
			uint32_t *visits_left)
{
	static const char *const keys[] = {"p",	    "each",  "mesh",  "x",     "dtype",	  "q",
					   "mode",  "post",  "scale", "stage", "derived", "kind",
					   "model", "order", "note",  NULL};
	char room[32];
	const char *where = parse_where(json, "params", index, room, sizeof(room));
	struct param_parse param = {.parse = parse};
	struct layer_set layers = {.count = UINT32_MAX};
	if (!parse_keys(parse, json, where, keys))
		return;
	param.name = parse_text(parse, json, "p", where);
	if (param.name == NULL) {
		findings_add(&parse->found, "key", where, "\"p\", its name, is missing");
		return;
	}
	if (!name_marks_fit(param.name, name_marks)) {
		findings_add(&parse->found, "name", param.name,
			     "a brace must begin {L}, {L-nl}, {E} or {e}");
		return;
	}
	param_mesh(&param, json);
	if (param.mesh == NULL)
		return;
	if (!parse_each(parse, json_get(json, "each"), &param, &layers))
		return;
	if (strstr(param.name, "{L-nl}") != NULL && parse->manifest->layer_base < 0)
		findings_add(&parse->found, "symbol", param.name,
			     "{L-nl} needs \"num_hidden_layers\" in \"sym\"");
	if ((layers.count == UINT32_MAX && strstr(param.name, "{L") != NULL) ||
	    (!param.each_expert &&
	     (strstr(param.name, "{E}") != NULL || strstr(param.name, "{e}") != NULL)))
		findings_add(&parse->found, "name", param.name,
			     "a mark in the name needs its each.L or each.E");
	if (layers.count == UINT32_MAX) {
		int32_t none = -1;
		add_segment(parse, &param, json, &none, 1, visits_left);
	} else {
		add_segments(parse, &param, json, &layers, visits_left);
	}
}

void parse_params(struct parse *parse, const struct json *json)
{
	uint32_t index = 0, visits_left = VISIT_MAX;
	if (json == NULL)
		return;
	if (json->type != JSON_ARRAY) {
		findings_add(&parse->found, "key", "params", "expected a list of params");
		return;
	}
	for (const struct json *it = json->first; it != NULL && !parse->out_of_memory;
	     it = it->next)
		parse_param(parse, it, index++, &visits_left);
}
