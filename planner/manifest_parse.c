/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manifest's JSON into a struct manifest: the top level, the tensors and the small lists.
 * Every fault becomes a finding, so that a user sees all of them at once.  README.md has the
 * format; manifest_axes.c, manifest_rules.c and rows.c read the larger parts.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define CHAIN_MAX 1024	     /* entries of one tensor name, for different layers */
#define CASTS_MAX 256	     /* there are few dtypes */
#define WORK_MAX  (8u << 20) /* steps of one manifest, and about as many numbers of layers */

void *parse_alloc(struct parse *parse, size_t count, size_t bytes_each)
{
	void *memory = arena_array(&parse->manifest->arena, count, bytes_each);
	parse->out_of_memory = parse->out_of_memory || memory == NULL;
	return memory;
}

const char *parse_copy(struct parse *parse, const char *text)
{
	const char *copy = arena_copy(&parse->manifest->arena, text, strlen(text));
	parse->out_of_memory = parse->out_of_memory || copy == NULL;
	return copy;
}

bool parse_keys(struct parse *parse, const struct json *object, const char *where,
		const char *const *allowed)
{
	if (object->type != JSON_OBJECT) {
		findings_add(&parse->found, "json", where, "expected an object");
		return false;
	}
	for (const struct json *it = object->first; it != NULL; it = it->next) {
		uint32_t i = 0;
		while (allowed[i] != NULL && strcmp(allowed[i], it->key) != 0)
			i++;
		if (allowed[i] == NULL)
			findings_add(&parse->found, "key", where, "unknown key '%s'", it->key);
	}
	return true;
}

bool parse_named(struct parse *parse, const struct json *json, const char *kind, const char *where)
{
	if (json->type == JSON_OBJECT && json->count <= NAMED_MAX)
		return true;
	findings_add(&parse->found, kind, where, "expected an object of at most %d names",
		     NAMED_MAX);
	return false;
}

bool parse_work(struct parse *parse, const char *where, uint64_t steps)
{
	if (parse->work > WORK_MAX)
		return false; /* which has been said */
	parse->work += MIN(steps, WORK_MAX + 1ull);
	if (parse->work <= WORK_MAX)
		return true;
	findings_add(&parse->found, "rule", where,
		     "too many params times layers or experts: it and those before it take more "
		     "than %u steps to read",
		     WORK_MAX);
	return false;
}

const char *parse_text(struct parse *parse, const struct json *object, const char *key,
		       const char *where)
{
	const struct json *json = json_get(object, key);
	if (json == NULL || json->type == JSON_NULL)
		return NULL;
	if (json->type == JSON_STRING && json->text[0] != '\0' &&
	    strlen(json->text) < NAME_BYTES_MAX)
		return parse_copy(parse, json->text);
	findings_add(&parse->found, "key", where, "'%s' must be a text of 1 to %d bytes", key,
		     NAME_BYTES_MAX - 1);
	return NULL;
}

bool parse_range(struct parse *parse, const struct json *json, const char *where, const char *what,
		 int32_t max, struct layer_range *range_out)
{
	const struct json *lo = json_at(json, 0), *hi = json_at(json, 1);
	*range_out = (struct layer_range){0, 0};
	if (json == NULL || json->type != JSON_ARRAY || json->count != 2 || !lo->is_integer ||
	    !hi->is_integer || lo->integer < 0 || lo->integer > hi->integer || hi->integer > max) {
		findings_add(&parse->found, "range", where,
			     "%s must be [first, behind the last], from 0 to %d", what, max);
		return false;
	}
	*range_out = (struct layer_range){(int32_t)lo->integer, (int32_t)hi->integer};
	return true;
}

bool parse_ranges(struct parse *parse, const struct json *json, const char *where,
		  struct layer_set *set_out)
{
	bool one =
		json->type == JSON_ARRAY && json->first != NULL && json->first->type == JSON_NUMBER;
	uint32_t count = one ? 1 : json->count;
	*set_out = (struct layer_set){.name = set_out->name};
	if (json->type != JSON_ARRAY) {
		findings_add(&parse->found, "layers", where,
			     "layers must be [lo, hi] or a list of such ranges");
		return false;
	}
	struct layer_range *ranges = parse_alloc(parse, count, sizeof(*ranges));
	if (ranges == NULL)
		return false;
	const struct json *it = one ? json : json->first;
	for (uint32_t i = 0; it != NULL && i < count; i++, it = it->next) {
		if (!parse_range(parse, it, where, "a range of layers", LAYER_MAX, &ranges[i]))
			return false;
		if (i > 0 && ranges[i].lo < ranges[i - 1].hi) {
			findings_add(&parse->found, "layers", where,
				     "ranges of layers must ascend without overlap");
			return false;
		}
	}
	set_out->count = count;
	set_out->ranges = ranges;
	return true;
}

static bool parse_shape(struct parse *parse, const struct json *json, const char *where,
			struct tensor_rule *rule)
{
	if (json == NULL || json->type != JSON_ARRAY || json->count < 1 ||
	    json->count > BOX_DIM_MAX) {
		findings_add(&parse->found, "shape", where, "\"shape\" must have 1 to %d dims",
			     BOX_DIM_MAX);
		return false;
	}
	uint64_t product = 1;
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		if (!it->is_integer || it->integer < 1 ||
		    __builtin_mul_overflow(product, (uint64_t)it->integer, &product) ||
		    product > ELEMENT_COUNT_MAX) {
			findings_add(
				&parse->found, "shape", where,
				"dims must be integers from 1 on, at most 2^56 elements in all");
			return false;
		}
		rule->dim[rule->dim_count++] = (uint64_t)it->integer;
	}
	return true;
}

/* A range that must be there exactly where the name has its mark. */
static bool parse_mark(struct parse *parse, const struct json *json, const char *key,
		       const char *mark, int32_t max, const char *where, int32_t *lo, int32_t *hi)
{
	const struct json *value = json_get(json, key);
	struct layer_range range;
	bool named = strstr(where, mark) != NULL;
	*lo = *hi = -1;
	if (named != (value != NULL)) {
		findings_add(&parse->found, "tensor", where, "'%s' and %s in the name go together",
			     key, mark);
		return false;
	}
	if (value == NULL)
		return true;
	if (!parse_range(parse, value, where, key, max, &range))
		return false;
	if (range.lo == range.hi) {
		findings_add(&parse->found, "range", where, "'%s' is empty", key);
		return false;
	}
	*lo = range.lo;
	*hi = range.hi;
	return true;
}

static bool parse_tensor_rule(struct parse *parse, const struct json *json, uint32_t index,
			      struct tensor_rule *rule)
{
	static const char *const keys[] = {"name", "dtype", "shape", "layers", "experts", NULL};
	static const char *const marks[] = {"{L}", "{E}", NULL};
	char room[32];
	const char *where = parse_where(json, "tensors", index, room, sizeof(room));
	if (!parse_keys(parse, json, where, keys))
		return false;
	rule->name = parse_text(parse, json, "name", where);
	if (rule->name == NULL) {
		findings_add(&parse->found, "key", where, "\"name\" is missing");
		return false;
	}
	if (!name_marks_fit(rule->name, marks)) {
		findings_add(&parse->found, "tensor", rule->name, "a brace must begin {L} or {E}");
		return false;
	}
	rule->dtype = ws_dtype_parse(json_text(json, "dtype", ""));
	if (rule->dtype == WS_NONE)
		findings_add(&parse->found, "dtype", rule->name, "'%s' is no dtype",
			     json_text(json, "dtype", ""));
	bool shaped = parse_shape(parse, json_get(json, "shape"), rule->name, rule);
	bool layers = parse_mark(parse, json, "layers", "{L}", LAYER_MAX, rule->name,
				 &rule->layer_lo, &rule->layer_hi);
	bool experts = parse_mark(parse, json, "experts", "{E}", EXPERT_MAX, rule->name,
				  &rule->expert_lo, &rule->expert_hi);
	return rule->dtype != WS_NONE && shaped && layers && experts;
}

/* Finds rules by name; two of one name must be for different layers. */
static void index_tensors(struct parse *parse)
{
	struct manifest *manifest = parse->manifest;
	uint32_t room = 1;
	while (room < manifest->tensor_count * 2)
		room *= 2;
	manifest->tensor_bucket = parse_alloc(parse, room, sizeof(uint32_t));
	manifest->tensor_next = parse_alloc(parse, manifest->tensor_count, sizeof(uint32_t));
	if (manifest->tensor_bucket == NULL || manifest->tensor_next == NULL)
		return;
	manifest->tensor_mask = room - 1;
	memset(manifest->tensor_bucket, 0xff, room * sizeof(uint32_t));
	for (uint32_t i = 0; i < manifest->tensor_count; i++) {
		const struct tensor_rule *rule = &manifest->tensors[i];
		uint64_t hash = digest_bytes(rule->name, strlen(rule->name), 0);
		uint32_t *bucket = &manifest->tensor_bucket[(uint32_t)hash & manifest->tensor_mask];
		uint32_t chain = 0, j = *bucket;
		for (; j != UINT32_MAX && chain < CHAIN_MAX;
		     j = manifest->tensor_next[j], chain++) {
			const struct tensor_rule *other = &manifest->tensors[j];
			if (strcmp(rule->name, other->name) == 0 &&
			    (rule->layer_lo < 0 || (rule->layer_lo < other->layer_hi &&
						    other->layer_lo < rule->layer_hi)))
				break;
		}
		if (j != UINT32_MAX && chain < CHAIN_MAX)
			findings_add(&parse->found, "tensor", rule->name, "it is listed twice");
		if (chain == CHAIN_MAX)
			findings_add(&parse->found, "tensor", rule->name,
				     "more than %d entries for different layers", CHAIN_MAX);
		manifest->tensor_next[i] = *bucket;
		*bucket = i;
	}
}

static void parse_tensors(struct parse *parse, const struct json *json)
{
	struct manifest *manifest = parse->manifest;
	if (json == NULL || json->type != JSON_ARRAY) {
		findings_add(&parse->found, "key", "tensors",
			     "the list of canonical tensors is missing");
		return;
	}
	/* Each may get a scale, behind the listed ones. */
	uint32_t room = json->count * (manifest->scheme_count > 0 ? 2 : 1);
	manifest->tensors = parse_alloc(parse, room, sizeof(*manifest->tensors));
	manifest->scale_of = parse_alloc(parse, json->count, sizeof(*manifest->scale_of));
	manifest->tensor_scheme = parse_alloc(parse, json->count, sizeof(struct quant_scheme *));
	manifest->fellow = parse_alloc(parse, json->count, sizeof(*manifest->fellow));
	if (manifest->tensors == NULL || manifest->scale_of == NULL ||
	    manifest->tensor_scheme == NULL || manifest->fellow == NULL)
		return;
	memset(manifest->scale_of, 0xff, json->count * sizeof(*manifest->scale_of));
	memset(manifest->fellow, 0xff, json->count * sizeof(*manifest->fellow));
	uint32_t index = 0;
	for (const struct json *it = json->first; it != NULL; it = it->next, index++) {
		struct tensor_rule rule = {0};
		if (parse_tensor_rule(parse, it, index, &rule))
			manifest->tensors[manifest->tensor_count++] = rule;
	}
	index_tensors(parse);
}

static void parse_sets(struct parse *parse, const struct json *json)
{
	struct manifest *manifest = parse->manifest;
	if (json == NULL)
		return;
	if (!parse_named(parse, json, "layers", "layers"))
		return;
	manifest->sets = parse_alloc(parse, json->count, sizeof(*manifest->sets));
	if (manifest->sets == NULL)
		return;
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		struct layer_set *set = &manifest->sets[manifest->set_count];
		set->name = parse_copy(parse, it->key);
		if (set->name != NULL && parse_ranges(parse, it, it->key, set))
			manifest->set_count++;
	}
}

static void parse_sym(struct parse *parse, const struct json *json)
{
	parse->manifest->layer_base = -1;
	if (json == NULL)
		return;
	if (!parse_named(parse, json, "symbol", "sym"))
		return;
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		if (!it->is_integer || it->integer < 0)
			findings_add(&parse->found, "symbol", it->key,
				     "a symbol must be an integer from 0 on");
	}
	parse->manifest->sym = json;
	parse->manifest->layer_base =
		(int32_t)MIN(json_integer(json, "num_hidden_layers", -1), LAYER_MAX);
}

static void parse_casts(struct parse *parse, const struct json *json)
{
	struct manifest *manifest = parse->manifest;
	if (json == NULL)
		return;
	if (json->type != JSON_ARRAY || json->count > CASTS_MAX) {
		findings_add(&parse->found, "cast", "casts",
			     "expected a list like [\"f32:bf16\"], of at most %d", CASTS_MAX);
		return;
	}
	manifest->casts = parse_alloc(parse, json->count, sizeof(*manifest->casts));
	if (manifest->casts == NULL)
		return;
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		char text[32] = "";
		char *colon;
		if (it->type == JSON_STRING && strlen(it->text) < sizeof(text))
			snprintf(text, sizeof(text), "%s", it->text);
		colon = strchr(text, ':');
		if (colon != NULL)
			*colon++ = '\0';
		enum ws_dtype from = ws_dtype_parse(text);
		enum ws_dtype to = colon == NULL ? WS_NONE : ws_dtype_parse(colon);
		if (from == WS_NONE || to == WS_NONE) {
			findings_add(&parse->found, "cast", "casts",
				     "a cast looks like \"f32:bf16\": from, colon, to");
			continue;
		}
		manifest->casts[manifest->cast_count][0] = from;
		manifest->casts[manifest->cast_count++][1] = to;
	}
}

static void parse_head(struct parse *parse, const struct json *json)
{
	struct manifest *manifest = parse->manifest;
	const char *side = json_text(json, "side", "");
	int64_t world = json_integer(json, "world", 0);
	if (json_integer(json, "ws_manifest", 0) != 1)
		findings_add(&parse->found, "version", "ws_manifest",
			     "this weightsync reads version 1: \"ws_manifest\": 1");
	if (strcmp(side, "trainer") != 0 && strcmp(side, "rollout") != 0)
		findings_add(&parse->found, "key", "side", "it must be \"trainer\" or \"rollout\"");
	manifest->side = strcmp(side, "rollout") == 0 ? SIDE_ROLLOUT : SIDE_TRAINER;
	manifest->framework = parse_text(parse, json, "framework", "framework");
	manifest->model = parse_text(parse, json, "model", "model");
	if (manifest->framework == NULL || manifest->model == NULL)
		findings_add(&parse->found, "key", "manifest",
			     "\"framework\" and \"model\" must both be there");
	if (world < 1 || world > RANKS_MAX)
		findings_add(&parse->found, "key", "world", "it must be from 1 to %d ranks",
			     RANKS_MAX);
	else
		manifest->world = (uint32_t)world;
}

static void parse_manifest(struct parse *parse, const struct json *json)
{
	static const char *const keys[] = {
		"ws_manifest", "side", "framework", "model",  "world",	 "sym",	  "tensors",
		"meshes",      "axes", "layers",    "stages", "experts", "casts", "schemes",
		"params",      "rows", "derived",   "note",   NULL};
	if (!parse_keys(parse, json, "manifest", keys))
		return;
	parse_head(parse, json);
	parse_sym(parse, json_get(json, "sym"));
	parse_schemes(parse, json_get(json, "schemes"));
	parse_tensors(parse, parse_order(parse, json_get(json, "tensors")));
	parse_sets(parse, json_get(json, "layers"));
	parse_casts(parse, parse_order(parse, json_get(json, "casts")));
	if (parse->manifest->world == 0 || parse->out_of_memory)
		return;
	parse_meshes(parse, json_get(json, "meshes"));
	parse_bindings(parse, json_get(json, "axes"));
	parse_stages(parse, json_get(json, "stages"));
	parse_experts(parse, json_get(json, "experts"));
	if (json_get(json, "params") == NULL && json_get(json, "rows") == NULL)
		findings_add(&parse->found, "key", "manifest",
			     "it has neither \"params\" nor \"rows\"");
	parse_params(parse, parse_order(parse, json_get(json, "params")));
	parse_rows(parse, parse_order(parse, json_get(json, "rows")));
	check_names(parse);
	parse_derived(parse, json_get(json, "derived"));
}

int report_first(const struct findings *found, struct ws_error *err)
{
	int rc = findings_fail(found, -EINVAL, err);
	return found->first == NULL ? rc : ws_fail_in(err, rc, "%s", found->first->where);
}

/* Hands the findings on: the caller's list may hold others already. */
static int report(struct parse *parse, struct findings *findings, struct ws_error *err)
{
	if (parse->out_of_memory)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	if (findings != NULL)
		findings_merge(findings, &parse->found);
	return parse->found.count == 0 ? 0 : report_first(&parse->found, err);
}

int manifest_parse_faulty(struct manifest **manifest_out, const void *text, size_t bytes,
			  struct findings *findings, struct ws_error *err)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	const struct json *json = NULL;
	struct parse parse = {0};
	*manifest_out = NULL;
	parse.manifest = mem_alloc(sizeof(*parse.manifest));
	if (parse.manifest == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	parse.manifest->map_version = -1;
	parse.found.arena = &parse.arena;
	parse.manifest->memo = mem_alloc(sizeof(*parse.manifest->memo));
	parse.out_of_memory = parse.manifest->memo == NULL;
	int rc = json_parse(&parse.arena, text, bytes, &limits, &json, err);
	if (rc == 0) {
		parse_manifest(&parse, json);
		rc = report(&parse, findings, err);
	}
	bool whole = rc == 0 ||
		     (rc == -EINVAL && parse.readable > 0 && parse.found.count == parse.readable);
	int digested = whole ? manifest_digest_make(parse.manifest, rc == 0 ? err : NULL) : 0;
	if (rc == 0)
		rc = digested;
	parse.manifest->sym = NULL;
	arena_release(&parse.arena);
	if (!whole || digested != 0)
		manifest_free(parse.manifest);
	else
		*manifest_out = parse.manifest;
	return rc;
}

int manifest_parse(struct manifest **manifest_out, const void *text, size_t bytes,
		   struct findings *findings, struct ws_error *err)
{
	int rc = manifest_parse_faulty(manifest_out, text, bytes, findings, err);
	if (rc != 0) {
		manifest_free(*manifest_out);
		*manifest_out = NULL;
	}
	return rc;
}
