/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expressions from their JSON arrays.  Names are resolved here, once: tensors to rules, symbols
 * to numbers, axes to divisors of the rank, so that expr.c only computes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

/* What one letter means. */
struct node_kind {
	const char *letter;
	enum expr_op op;
	uint32_t child_first; /* index of the first child in the array */
	uint32_t child_max;
	uint32_t after_max; /* values behind the last child */
};

static const struct node_kind node_kinds[] = {
	{"t", OP_T, 1, 0, 1},
	{"s", OP_S, 1, 1, 3},
	{"r", OP_R, 1, 1, 3},
	{"c", OP_C, 2, EXPR_NODE_MAX, 0},
	{"g", OP_G, 3, GROUP_PART_MAX, 0},
	{"il", OP_IL, 1, 1, 4},
	{"p", OP_P, 1, 1, 2},
	{"k", OP_K, 2, 1, 0},
	{"x", OP_X, 1, 1, 1},
	{"fl", OP_FL, 1, 1, 0},
	{"z", OP_Z, 1, 1, 1},
};

static __attribute__((format(printf, 3, 4))) void fault(struct param_parse *param, const char *kind,
							const char *format, ...)
{
	char text[sizeof(((struct ws_error *)NULL)->text)];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	findings_add(&param->parse->found, kind, param->name, "%s", text);
	param->failed = true;
}

static const struct mesh_axis *mesh_axis(const struct mesh *mesh, const char *name)
{
	for (uint32_t i = 0; i < mesh->axis_count; i++) {
		if (strcmp(mesh->axes[i].name, name) == 0)
			return &mesh->axes[i];
	}
	return NULL;
}

static const struct binding *binding_find(const struct manifest *manifest, const char *name)
{
	for (uint32_t i = 0; i < manifest->binding_count; i++) {
		if (strcmp(manifest->bindings[i].name, name) == 0)
			return &manifest->bindings[i];
	}
	return NULL;
}

static bool axis_fill(struct param_parse *param, const char *name, struct axis *axis)
{
	const struct binding *binding = binding_find(param->parse->manifest, name);
	struct binding self = {.part_count = 1, .part = {name}};
	const struct binding *parts = binding != NULL ? binding : &self;
	axis->size = 1;
	axis->part_count = parts->part_count;
	for (uint32_t i = 0; i < parts->part_count; i++) {
		const struct mesh_axis *part = mesh_axis(param->mesh, parts->part[i]);
		if (part == NULL && binding != NULL) {
			fault(param, "axis",
			      "axis '%s' is made of '%s', which mesh '%s' doesn't declare", name,
			      parts->part[i], param->mesh->name);
			return false;
		}
		if (part == NULL) {
			fault(param, "axis", "mesh '%s' declares no axis '%s'", param->mesh->name,
			      name);
			return false;
		}
		axis->part_divisor[i] = part->divisor;
		axis->part_size[i] = part->size;
		if (axis->size > RANKS_MAX / part->size) {
			fault(param, "axis", "axis '%s' has more than %d coordinates", name,
			      RANKS_MAX);
			return false;
		}
		axis->size *= part->size;
	}
	return true;
}

const struct axis *axis_resolve(struct param_parse *param, const char *name)
{
	struct arena *arena = &param->parse->manifest->arena;
	for (uint32_t i = 0; i < param->axis_count; i++) {
		if (strcmp(param->axes[i]->name, name) == 0)
			return param->axes[i];
	}
	if (param->axis_count == AXES_NAMED_MAX) {
		fault(param, "axis", "the expression names more than %d axes", AXES_NAMED_MAX);
		return NULL;
	}
	struct axis *axis = arena_alloc(arena, sizeof(*axis));
	if (axis == NULL || (axis->name = arena_copy(arena, name, strlen(name))) == NULL) {
		param->parse->out_of_memory = param->failed = true;
		return NULL;
	}
	if (!axis_fill(param, name, axis))
		return NULL;
	param->axes[param->axis_count++] = axis;
	return axis;
}

uint64_t expr_number(struct param_parse *param, const struct json *json, const char *what,
		     int64_t min)
{
	char name[NAME_BYTES_MAX];
	if (json != NULL && json->type == JSON_NUMBER && json->is_integer && json->integer >= min)
		return (uint64_t)json->integer;
	if (json == NULL || json->type != JSON_STRING || json->text[0] != '$' ||
	    strlen(json->text) >= sizeof(name)) {
		fault(param, "expr", "%s must be an integer from %" PRId64 " on or a \"$symbol\"",
		      what, min);
		return 1;
	}
	snprintf(name, sizeof(name), "%s", json->text + 1);
	char *sign = strpbrk(name, "*/"), by = sign == NULL ? '\0' : *sign;
	if (sign != NULL)
		*sign = '\0';
	int64_t value = json_integer(param->parse->manifest->sym, name, -1);
	if (value < min) {
		fault(param, "symbol",
		      "%s is '$%s', and \"sym\" gives it no value from %" PRId64 " on", what, name,
		      min);
		return 1;
	}
	const struct axis *axis = sign == NULL ? NULL : axis_resolve(param, sign + 1);
	uint64_t result = (uint64_t)value;
	if (axis != NULL && by == '*' && __builtin_mul_overflow(result, axis->size, &result)) {
		fault(param, "symbol", "%s: '%s' is too large", what, json->text);
		return 1;
	}
	if (axis != NULL && by == '/' && (result % axis->size != 0 || result == 0)) {
		fault(param, "symbol", "%s: '%s': %" PRId64 " doesn't divide by %u", what,
		      json->text, value, axis->size);
		return 1;
	}
	return axis != NULL && by == '/' ? result / axis->size : result;
}

uint32_t tensor_find(const struct manifest *manifest, const char *name, int32_t layer)
{
	if (manifest->tensor_count == 0)
		return UINT32_MAX;
	uint64_t hash = digest_bytes(name, strlen(name), 0);
	uint32_t i = manifest->tensor_bucket[(uint32_t)hash & manifest->tensor_mask];
	for (; i != UINT32_MAX; i = manifest->tensor_next[i]) {
		const struct tensor_rule *rule = &manifest->tensors[i];
		if (strcmp(rule->name, name) == 0 &&
		    (rule->layer_lo < 0 || (rule->layer_lo <= layer && layer < rule->layer_hi)))
			return i;
	}
	return UINT32_MAX;
}

static void say_no_tensor(struct param_parse *param, const char *name)
{
	const struct manifest *manifest = param->parse->manifest;
	struct nearest nearest = {.name = name};
	char where[32] = "";
	bool looks = param->parse->found.count < NEAREST_FINDINGS_MAX;
	for (uint32_t i = 0; i < manifest->tensor_count && looks; i++)
		nearest_try(&nearest, manifest->tensors[i].name);
	if (param->layer >= 0)
		snprintf(where, sizeof(where), " at layer %d", param->layer);
	else if (strstr(name, "{L}") != NULL)
		snprintf(where, sizeof(where), " (the param has no each.L)");
	if (nearest.best != NULL && strcmp(nearest.best, name) != 0)
		fault(param, "tensor", "t: \"tensors\" has no '%s'%s; did you mean '%s'?", name,
		      where, nearest.best);
	else
		fault(param, "tensor", "t: \"tensors\" has no '%s'%s", name, where);
}

static void parse_tensor(struct param_parse *param, const struct json *json, struct expr *expr)
{
	const struct manifest *manifest = param->parse->manifest;
	const struct json *name = json_at(json, 1);
	if (name == NULL || name->type != JSON_STRING) {
		fault(param, "expr", "t: expected [\"t\", tensor name]");
		return;
	}
	expr->tensor = tensor_find(manifest, name->text, param->layer);
	if (expr->tensor == UINT32_MAX) {
		say_no_tensor(param, name->text);
		return;
	}
	const struct tensor_rule *rule = expr->rule = &manifest->tensors[expr->tensor];
	if (param->dtype != WS_NONE && param->dtype != rule->dtype)
		param->mixed_dtypes = true;
	param->dtype = rule->dtype;
	if (rule->expert_lo < 0)
		return;
	struct layer_range experts = {rule->expert_lo, rule->expert_hi};
	if (!param->each_expert && !param->in_stack)
		fault(param, "experts", "t: '%s' needs each.E or a `k` around it", name->text);
	else if (param->experts.lo < 0)
		param->experts = experts;
	else if (param->experts.lo != experts.lo || param->experts.hi != experts.hi)
		fault(param, "experts", "t: '%s' has experts %d to %d, another tensor %d to %d",
		      name->text, experts.lo, experts.hi - 1, param->experts.lo,
		      param->experts.hi - 1);
}

static void parse_split(struct param_parse *param, const struct json *json, struct expr *expr)
{
	const struct json *axis = json_at(json, 3), *how = json_at(json, 4);
	expr->dim =
		(uint32_t)MIN(expr_number(param, json_at(json, 2), "s: the dim", 0), UINT32_MAX);
	expr->a = 1;
	if (axis == NULL || axis->type != JSON_STRING)
		fault(param, "expr", "s: expected [\"s\", expression, dim, axis name]");
	else
		expr->axis = axis_resolve(param, axis->text);
	if (how == NULL)
		return;
	if (how->type != JSON_OBJECT) {
		fault(param, "expr", "s: what follows the axis must be an object");
		return;
	}
	for (const struct json *it = how->first; it != NULL; it = it->next) {
		const char *text = it->type == JSON_STRING ? it->text : "";
		if (strcmp(it->key, "unit") == 0)
			expr->a = expr_number(param, it, "s: the unit", 1);
		else if (strcmp(it->key, "mode") != 0)
			fault(param, "key", "s: unknown key '%s'", it->key);
		else if (strcmp(text, "chunk") == 0)
			expr->mode = SPLIT_CHUNK;
		else if (strcmp(text, "rep") == 0)
			expr->mode = SPLIT_REP;
		else if (strcmp(text, "even") != 0)
			fault(param, "expr", "s: the mode must be even, chunk or rep");
	}
}

static void parse_permutation(struct param_parse *param, const struct json *json, struct expr *expr)
{
	const struct json *perm = json_at(json, 2);
	if (perm == NULL || perm->type != JSON_ARRAY || perm->count > LOCAL_DIM_MAX) {
		fault(param, "expr", "x: expected [\"x\", expression, [dims]]");
		return;
	}
	for (const struct json *it = perm->first; it != NULL; it = it->next)
		expr->perm[expr->perm_count++] =
			(uint32_t)MIN(expr_number(param, it, "x: a dim", 0), UINT32_MAX);
}

/* Over the rank's experts, or over 1: a new dim that has only this. */
static void parse_stack(struct param_parse *param, const struct json *json, struct expr *expr)
{
	const struct json *list = json_at(json, 1);
	expr->a = list != NULL && list->is_integer && list->integer == 1 ? 1 : 0;
	if (expr->a == 1)
		return;
	if (list == NULL || list->type != JSON_STRING || strcmp(list->text, "E") != 0)
		fault(param, "expr", "k: expected [\"k\", \"E\" or 1, expression]");
	else if (param->each_expert)
		fault(param, "expr", "k: the param already has each.E");
	else if (param->in_stack)
		fault(param, "expr", "k: there is a `k` around it already");
	param->stacks = param->in_stack = true;
}

/* The values of a node other than its children. */
static void parse_values(struct param_parse *param, const struct json *json, struct expr *expr)
{
	static const char *const dim_names[] = {"t: ",	      "s: ",	    "r: the dim",
						"c: the dim", "g: the dim", "il: the dim",
						"p: the dim"};
	uint32_t dim_at = expr->op == OP_C || expr->op == OP_G ? 1 : 2;
	const struct json *axis = json_at(json, 2);
	if (expr->op == OP_R || expr->op == OP_C || expr->op == OP_G || expr->op == OP_IL ||
	    expr->op == OP_P)
		expr->dim = (uint32_t)MIN(
			expr_number(param, json_at(json, dim_at), dim_names[expr->op], 0),
			UINT32_MAX);
	switch (expr->op) {
	case OP_T:
		parse_tensor(param, json, expr);
		return;
	case OP_S:
		parse_split(param, json, expr);
		return;
	case OP_R:
		expr->a = expr_number(param, json_at(json, 3), "r: the start", 0);
		expr->b = expr_number(param, json_at(json, 4), "r: the end", 0);
		return;
	case OP_G:
		expr->a = expr_number(param, json_at(json, 2), "g: the number of groups", 1);
		return;
	case OP_IL:
		expr->a = expr_number(param, json_at(json, 3), "il: outer", 1);
		expr->b = expr_number(param, json_at(json, 4), "il: a", 1);
		expr->c = expr_number(param, json_at(json, 5), "il: b", 1);
		return;
	case OP_P:
		expr->a = expr_number(param, json_at(json, 3), "p: the multiple", 1);
		return;
	case OP_K:
		parse_stack(param, json, expr);
		return;
	case OP_X:
		parse_permutation(param, json, expr);
		return;
	case OP_Z:
		if (axis == NULL || axis->type != JSON_STRING)
			fault(param, "expr", "z: expected [\"z\", expression, axis name]");
		else
			expr->axis = axis_resolve(param, axis->text);
		return;
	case OP_C:
	case OP_FL:
		return;
	}
}

static const struct node_kind *node_kind(struct param_parse *param, const struct json *json)
{
	const char *letter =
		json->type == JSON_ARRAY && json->first != NULL && json->first->type == JSON_STRING
			? json->first->text
			: NULL;
	if (letter == NULL) {
		fault(param, "expr", "a node must be an array that begins with its letter");
		return NULL;
	}
	for (size_t i = 0; i < ARRAY_SIZE(node_kinds); i++) {
		if (strcmp(node_kinds[i].letter, letter) == 0)
			return &node_kinds[i];
	}
	fault(param, "expr", "there is no node '%s'; there are t s r c g il p k x fl z", letter);
	return NULL;
}

/* Recurses at most EXPR_DEPTH_MAX deep. */
static struct expr *parse_node(struct param_parse *param, const struct json *json, uint32_t depth)
{
	const struct node_kind *kind = node_kind(param, json);
	if (kind == NULL)
		return NULL;
	if (depth == EXPR_DEPTH_MAX || param->node_count++ == EXPR_NODE_MAX) {
		fault(param, "expr", "more than %d nodes, or nested more than %d deep",
		      EXPR_NODE_MAX, EXPR_DEPTH_MAX);
		return NULL;
	}
	uint32_t fixed = kind->child_first + kind->after_max;
	uint32_t children = kind->child_max <= 1  ? kind->child_max
			    : json->count > fixed ? json->count - fixed
						  : 0;
	/* Only the options of `s` may be left out. */
	uint32_t most = fixed + children, least = most - (kind->op == OP_S ? 1 : 0);
	if (json->count < least || json->count > most || children > kind->child_max ||
	    (kind->child_max > 0 && children == 0)) {
		fault(param, "expr", "%s: %u values can't be right", kind->letter, json->count - 1);
		return NULL;
	}
	struct arena *arena = &param->parse->manifest->arena;
	struct expr *expr = arena_alloc(arena, sizeof(*expr));
	struct expr **child = arena_array(arena, children, sizeof(struct expr *));
	if (expr == NULL || child == NULL) {
		param->parse->out_of_memory = param->failed = true;
		return NULL;
	}
	*expr = (struct expr){.op = kind->op, .child_count = children, .child = child};
	parse_values(param, json, expr);
	const struct json *it = json_at(json, kind->child_first);
	for (uint32_t i = 0; i < children; i++, it = it->next)
		child[i] = parse_node(param, it, depth + 1);
	if (kind->op == OP_K && expr->a == 0)
		param->in_stack = false;
	return expr;
}

const struct expr *expr_parse(struct param_parse *param, const struct json *json)
{
	if (json == NULL) {
		fault(param, "key", "\"x\", its expression, is missing");
		return NULL;
	}
	const struct expr *expr = parse_node(param, json, 0);
	return param->failed ? NULL : expr;
}

/* Recurses no deeper than the JSON, whose depth json_parse has bounded. */
uint32_t expr_tensor_names(const struct json *json, const char **names, uint32_t room)
{
	if (json == NULL || json->type != JSON_ARRAY || json->first == NULL ||
	    json->first->type != JSON_STRING)
		return 0;
	const struct json *second = json->first->next;
	if (strcmp(json->first->text, "t") == 0) {
		if (room == 0 || second == NULL || second->type != JSON_STRING)
			return 0;
		names[0] = second->text;
		return 1;
	}
	uint32_t count = 0;
	for (const struct json *it = second; it != NULL; it = it->next)
		count += expr_tensor_names(it, names + count, room - count);
	return count;
}
