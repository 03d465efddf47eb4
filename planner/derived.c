/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manifest's "derived": memory of a rollout's engine that no canonical tensor covers and that a
 * named post step makes of params.  And all calls of post steps that a rank has: one for each
 * entry and layer of "derived", one for each param with a "post".
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define DERIVED_MAX 256	       /* entries */
#define NAMES_MAX   16	       /* in one's "from", and in its "makes" */
#define MADE_MAX    (1u << 20) /* things, at all layers of all entries */

static const char *const made_marks[] = {"{L}", NULL};
static const char *const from_marks[] = {"{L}", "{L-nl}", NULL};

/* ---------------------------------------------------------------- reading */

/* Says where the entry has a layer without that param. */
static void check_from(struct param_parse *param, const struct derived_rule *rule, const char *name)
{
	struct parse *parse = param->parse;
	const struct manifest *manifest = parse->manifest;
	bool layered = strstr(name, "{L}") != NULL, found = false;
	if (!parse_work(parse, param->name, manifest->rule_count + (uint64_t)LAYER_MAX / 64))
		return;
	if (parse->at_layer == NULL)
		parse->at_layer = arena_alloc(&parse->arena, LAYER_MAX);
	if (parse->at_layer == NULL)
		return (void)(parse->out_of_memory = true);
	memset(parse->at_layer, 0, LAYER_MAX);
	for (uint32_t i = 0; i < manifest->rule_count; i++) {
		const struct rule *it = &manifest->rules[i];
		if (strcmp(it->view.name, name) != 0)
			continue;
		found = true;
		for (uint32_t l = 0; layered && l < it->layer_count; l++)
			parse->at_layer[MAX(it->layers[l], 0)] = 1;
	}
	for (uint32_t l = 0; layered && found && l < rule->layer_count; l++)
		found = rule->layers[l] >= 0 && parse->at_layer[rule->layers[l]];
	if (!name_marks_fit(name, from_marks))
		findings_add(&parse->found, "derived", param->name,
			     "\"from\" names '%s', which is a param of each expert", name);
	else if (!found)
		findings_add(&parse->found, "derived", param->name,
			     "\"from\" names '%s', and \"params\" has none such%s", name,
			     rule->layers[0] < 0 ? "" : " at one of its layers");
}

static void parse_from(struct param_parse *param, const struct json *json,
		       struct derived_rule *rule)
{
	struct parse *parse = param->parse;
	uint32_t count = json != NULL && json->type == JSON_ARRAY ? json->count : 0;
	if (count < 1 || count > NAMES_MAX)
		return findings_add(&parse->found, "derived", param->name,
				    "\"from\" must list 1 to %d names of params", NAMES_MAX);
	rule->from = parse_alloc(parse, count, sizeof(*rule->from));
	for (const struct json *it = json->first; rule->from != NULL && it != NULL; it = it->next) {
		const char *name = it->type == JSON_STRING ? it->text : "";
		check_from(param, rule, name);
		rule->from[rule->from_count++] = parse_copy(parse, name);
	}
}

static bool is_taken(const struct manifest *manifest, const struct derived_rule *rule,
		     const char *name)
{
	for (uint32_t i = 0; i < manifest->rule_count; i++) {
		if (strcmp(manifest->rules[i].view.name, name) == 0)
			return true;
	}
	for (const struct derived_rule *it = manifest->derived; it <= rule; it++) {
		for (uint32_t m = 0; m < it->made_count; m++) {
			if (strcmp(it->made[m].name, name) == 0)
				return true;
		}
	}
	return false;
}

static void parse_form(struct param_parse *param, const struct json *json, struct step_made *made)
{
	struct parse *parse = param->parse;
	const struct json *shape = json_get(json, "shape");
	made->dtype = ws_dtype_parse(json_text(json, "dtype", ""));
	made->param = UINT32_MAX;
	if (made->dtype == WS_NONE)
		findings_add(&parse->found, "dtype", param->name, "'%s' is no dtype",
			     json_text(json, "dtype", ""));
	uint32_t count = shape != NULL && shape->type == JSON_ARRAY ? shape->count : 0;
	if (count < 1 || count > LOCAL_DIM_MAX)
		return findings_add(&parse->found, "shape", param->name,
				    "\"shape\" must have 1 to %d dims", LOCAL_DIM_MAX);
	uint64_t product = 1;
	for (const struct json *it = shape->first; it != NULL; it = it->next) {
		uint64_t dim = expr_number(param, it, "shape: a dim", 1);
		made->dim[made->dim_count++] = dim;
		if (__builtin_mul_overflow(product, dim, &product) || product > ELEMENT_COUNT_MAX)
			return findings_add(&parse->found, "shape", param->name,
					    "it has more than 2^56 elements");
	}
	made->bytes = product * ws_dtype_bytes(made->dtype);
}

static void parse_made(struct param_parse *param, const struct json *json,
		       struct derived_rule *rule)
{
	static const char *const keys[] = {"p", "dtype", "shape", "note", NULL};
	struct parse *parse = param->parse;
	struct step_made made = {0};
	if (!parse_keys(parse, json, param->name, keys))
		return;
	made.name = parse_text(parse, json, "p", param->name);
	if (made.name == NULL)
		return findings_add(&parse->found, "key", param->name,
				    "\"p\", a name of what it makes, is missing");
	param->name = made.name;
	if (!name_marks_fit(made.name, made_marks) ||
	    (strstr(made.name, "{L}") != NULL) != (rule->layers[0] >= 0))
		findings_add(&parse->found, "name", made.name,
			     "{L} in its name and each.L go together, and there is no other mark");
	if (!parse_work(parse, made.name, parse->manifest->rule_count))
		return;
	if (is_taken(parse->manifest, rule, made.name))
		findings_add(&parse->found, "name", made.name, "there is one of that name already");
	parse_form(param, json, &made);
	rule->made[rule->made_count++] = made;
}

static bool parse_layers(struct param_parse *param, const struct json *each,
			 struct derived_rule *rule)
{
	struct layer_set set = {.count = UINT32_MAX};
	if (!parse_each(param->parse, each, param, &set))
		return false;
	if (param->each_expert) {
		findings_add(&param->parse->found, "experts", param->name,
			     "what is derived is one for all experts of a rank: leave each.E away");
		return false;
	}
	bool layered = set.count != UINT32_MAX;
	for (uint32_t i = 0; layered && i < set.count; i++)
		rule->layer_count += (uint32_t)(set.ranges[i].hi - set.ranges[i].lo);
	rule->layer_count = layered ? rule->layer_count : 1;
	rule->layers = parse_alloc(param->parse, rule->layer_count, sizeof(*rule->layers));
	if (rule->layers == NULL)
		return false;
	if (!layered)
		rule->layers[0] = -1;
	uint32_t at = 0;
	for (uint32_t i = 0; layered && i < set.count; i++) {
		for (int32_t layer = set.ranges[i].lo; layer < set.ranges[i].hi; layer++)
			rule->layers[at++] = layer;
	}
	return rule->layer_count > 0;
}

static void parse_entry(struct parse *parse, const struct json *json, uint32_t index)
{
	static const char *const keys[] = {"post", "each", "mesh", "from", "makes", "note", NULL};
	struct manifest *manifest = parse->manifest;
	struct derived_rule *rule = &manifest->derived[manifest->derived_count];
	char room[32];
	struct param_parse param = {.parse = parse, .name = room};
	*rule = (struct derived_rule){0}; /* an entry with faults was read to here */
	snprintf(room, sizeof(room), "derived[%" PRIu32 "]", index);
	if (!parse_keys(parse, json, room, keys))
		return;
	rule->step = parse_text(parse, json, "post", room);
	if (rule->step == NULL)
		return findings_add(&parse->found, "key", room,
				    "\"post\", the step that makes it, is missing");
	param_mesh(&param, json);
	param.axes = parse_alloc(parse, AXES_NAMED_MAX, sizeof(struct axis *));
	if (param.mesh == NULL || param.axes == NULL ||
	    !parse_layers(&param, json_get(json, "each"), rule))
		return;
	parse_from(&param, json_get(json, "from"), rule);
	const struct json *makes = json_get(json, "makes");
	uint32_t count = makes != NULL && makes->type == JSON_ARRAY ? makes->count : 0;
	if (count < 1 || count > NAMES_MAX)
		return findings_add(&parse->found, "derived", room,
				    "\"makes\" must list 1 to %d things with \"p\", \"dtype\" and "
				    "\"shape\"",
				    NAMES_MAX);
	rule->made = parse_alloc(parse, count, sizeof(*rule->made));
	if (rule->made == NULL)
		return;
	for (const struct json *it = makes->first; it != NULL; it = it->next)
		parse_made(&param, it, rule);
	manifest->derived_count++;
}

void parse_derived(struct parse *parse, const struct json *json)
{
	struct manifest *manifest = parse->manifest;
	uint32_t index = 0;
	if (json == NULL)
		return;
	if (json->type != JSON_ARRAY || json->count > DERIVED_MAX)
		return findings_add(&parse->found, "derived", "derived",
				    "expected a list of at most %d entries", DERIVED_MAX);
	if (manifest->side == SIDE_TRAINER)
		return findings_add(&parse->found, "derived", "derived",
				    "a trainer pushes what it holds: only a rollout derives");
	manifest->derived = parse_alloc(parse, json->count, sizeof(*manifest->derived));
	if (manifest->derived == NULL)
		return;
	for (const struct json *it = json->first; it != NULL; it = it->next)
		parse_entry(parse, it, index++);
	uint64_t total = 0;
	for (uint32_t i = 0; i < manifest->derived_count; i++)
		total += (uint64_t)manifest->derived[i].layer_count *
			 manifest->derived[i].made_count;
	if (total > MADE_MAX)
		findings_add(&parse->found, "derived", "derived",
			     "more than %u things are derived at all layers", MADE_MAX);
}

/* ---------------------------------------------------------------- a rank's calls */

struct calls {
	const struct manifest *manifest;
	const struct rank_params *params;
	struct arena *arena;
	struct rank_steps *steps;
	uint32_t rank;
	struct ws_error *err;
};

static int no_memory(const struct calls *calls)
{
	return ws_fail(calls->err, -ENOMEM, "out of memory for the post steps of rank %u",
		       calls->rank);
}

static const char *name_at(const struct calls *calls, const char *pattern, int32_t layer)
{
	const struct rule rule = {.view = {.name = pattern}};
	char name[NAME_BYTES_MAX + 64];
	int length = param_name(calls->manifest, &rule, layer, -1, -1, name, sizeof(name));
	return arena_copy(calls->arena, name, (size_t)MIN(length, (int)sizeof(name) - 1));
}

/* The scale of a param's weight, at its layer and expert; UINT32_MAX: it has none. */
static uint32_t scale_param(const struct calls *calls, uint32_t weight)
{
	const struct manifest *manifest = calls->manifest;
	const struct param *param = &calls->params->params[weight];
	uint32_t rule = param->rule + 1;
	char name[NAME_BYTES_MAX + 64];
	if (rule >= manifest->rule_count || !manifest->rules[rule].view.is_scale ||
	    manifest->rules[rule].view.weight_rule != param->rule)
		return UINT32_MAX;
	param_name(manifest, &manifest->rules[rule], param->layer, param->expert, param->slot, name,
		   sizeof(name));
	int64_t found = rank_params_find(calls->params, name);
	return found < 0 ? UINT32_MAX : (uint32_t)found;
}

/* Weights one after the other, each with its scale behind it; from has room for two each. */
static uint32_t put_from(const struct calls *calls, uint32_t weight, uint32_t *from, uint32_t count)
{
	uint32_t scale = scale_param(calls, weight);
	from[count++] = weight;
	if (scale != UINT32_MAX)
		from[count++] = scale;
	return count;
}

/* Of "derived", at one layer; none where the rank has none of its params. */
static int call_derived(const struct calls *calls, const struct derived_rule *rule, int32_t layer)
{
	struct rank_steps *steps = calls->steps;
	struct step_call call = {
		.step = rule->step, .layer = layer, .expert = -1, .made_first = steps->made_count};
	uint32_t *from = arena_array(calls->arena, 2 * (size_t)rule->from_count, sizeof(*from));
	const char *missing = NULL;
	if (from == NULL)
		return no_memory(calls);
	for (uint32_t i = 0; i < rule->from_count; i++) {
		const char *name = name_at(calls, rule->from[i], layer);
		if (name == NULL)
			return no_memory(calls);
		int64_t index = rank_params_find(calls->params, name);
		if (index < 0)
			missing = name;
		else
			call.from_count = put_from(calls, (uint32_t)index, from, call.from_count);
	}
	if (call.from_count == 0)
		return 0;
	if (missing != NULL)
		return ws_fail(calls->err, -EINVAL,
			       "post step '%s' needs '%s' and '%s', and rank %u has only the first",
			       rule->step, calls->params->params[from[0]].name, missing,
			       calls->rank);
	for (uint32_t i = 0; i < rule->made_count; i++) {
		struct step_made *made = &steps->made[steps->made_count++];
		*made = rule->made[i];
		made->name = name_at(calls, made->name, layer);
		if (made->name == NULL)
			return no_memory(calls);
		if (rank_params_find(calls->params, made->name) >= 0)
			return ws_fail(calls->err, -EINVAL,
				       "'%s' is derived, and a param has that name", made->name);
	}
	call.from = from;
	call.made_count = rule->made_count;
	steps->calls[steps->call_count++] = call;
	return 0;
}

/* Of a param with a "post": where it is staged, its own memory is made. */
static int call_param(const struct calls *calls, uint32_t index)
{
	struct rank_steps *steps = calls->steps;
	const struct param *param = &calls->params->params[index];
	const struct param_rule *rule = manifest_rule(calls->manifest, param->rule);
	if (rule->post == NULL || rule->is_scale)
		return 0;
	uint32_t *from = arena_array(calls->arena, 2, sizeof(*from));
	if (from == NULL)
		return no_memory(calls);
	struct step_call call = {.step = rule->post,
				 .layer = param->layer,
				 .expert = param->expert,
				 .from = from,
				 .from_count = put_from(calls, index, from, 0),
				 .made_first = steps->made_count};
	for (uint32_t i = 0; !rule->inplace && i < call.from_count; i++)
		steps->made[steps->made_count++] = (struct step_made){
			.name = calls->params->params[from[i]].name, .param = from[i]};
	call.made_count = steps->made_count - call.made_first;
	steps->calls[steps->call_count++] = call;
	return 0;
}

int manifest_steps(const struct manifest *manifest, uint32_t rank, const struct rank_params *params,
		   struct arena *arena, struct rank_steps *steps_out, struct ws_error *err)
{
	struct rank_steps steps = {0};
	const struct calls calls = {.manifest = manifest,
				    .params = params,
				    .arena = arena,
				    .steps = &steps,
				    .rank = rank,
				    .err = err};
	size_t call_room = params->count, made_room = params->count;
	int rc = 0;
	*steps_out = steps;
	for (uint32_t i = 0; i < manifest->derived_count; i++) {
		const struct derived_rule *rule = &manifest->derived[i];
		call_room += rule->layer_count;
		made_room += (size_t)rule->layer_count * rule->made_count;
	}
	steps.calls = arena_array(arena, call_room, sizeof(*steps.calls));
	steps.made = arena_array(arena, made_room, sizeof(*steps.made));
	if (steps.calls == NULL || steps.made == NULL)
		return no_memory(&calls);
	for (uint32_t i = 0; rc == 0 && i < manifest->derived_count; i++) {
		const struct derived_rule *rule = &manifest->derived[i];
		for (uint32_t l = 0; rc == 0 && l < rule->layer_count; l++)
			rc = call_derived(&calls, rule, rule->layers[l]);
	}
	steps.derived_count = steps.made_count;
	for (uint32_t i = 0; rc == 0 && i < params->count; i++)
		rc = call_param(&calls, i);
	if (rc == 0)
		*steps_out = steps;
	return rc;
}
