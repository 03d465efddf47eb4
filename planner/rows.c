/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explicit rows, for frameworks without rules: each says which box of which canonical tensor
 * lies where in which local param of one rank.  A rank's rows of one name form one param.  They
 * are sorted into units here; row_rules.c makes rules of units that are alike.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

struct row {
	const char *name;
	uint32_t rank, tensor, order;
	int32_t layer, expert;
	enum ws_dtype dtype;
	bool plain; /* row-major at 0: the param has its shape */
	uint64_t offset[BOX_DIM_MAX], extent[BOX_DIM_MAX];
	int64_t stride[BOX_DIM_MAX];
	uint64_t place, end; /* end: behind the last element */
};

/* The tensor of a concrete name: its rule, and the layer and expert in the name. */
static bool find_tensor(struct parse *parse, const char *where, const char *name, struct row *row)
{
	const struct manifest *manifest = parse->manifest;
	char rule_name[NAME_BYTES_MAX + 16];
	row->layer = row->expert = -1;
	row->tensor = tensor_find(manifest, name, -1);
	if (row->tensor == UINT32_MAX && strlen(name) < NAME_BYTES_MAX) {
		snprintf(rule_name, sizeof(rule_name), "%s", name);
		row->layer = take_number(rule_name, sizeof(rule_name), "layers.", "{L}");
		row->expert = take_number(rule_name, sizeof(rule_name), "experts.", "{E}");
		row->tensor = tensor_find(manifest, rule_name, row->layer);
	}
	const struct tensor_rule *rule =
		row->tensor == UINT32_MAX ? NULL : &manifest->tensors[row->tensor];
	if (rule == NULL || strchr(name, '{') != NULL ||
	    (rule->expert_lo >= 0 &&
	     (row->expert < rule->expert_lo || row->expert >= rule->expert_hi))) {
		findings_add(&parse->found, "tensor", where, "\"tensors\" has no '%s'", name);
		return false;
	}
	return true;
}

/* Reads as many integers from `min` on as the tensor has dims. */
static bool read_dims(struct parse *parse, const struct json *json, const char *where,
		      const char *what, uint32_t count, int64_t min, int64_t *out)
{
	if (json == NULL || json->type != JSON_ARRAY || json->count != count) {
		findings_add(&parse->found, "rows", where, "\"%s\" must have %u integers", what,
			     count);
		return false;
	}
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		if (!it->is_integer || it->integer < min) {
			findings_add(&parse->found, "rows", where,
				     "\"%s\" must be integers from %" PRId64 " on", what, min);
			return false;
		}
		*out++ = it->integer;
	}
	return true;
}

static bool read_box(struct parse *parse, const struct json *json, const char *where,
		     struct row *row)
{
	const struct tensor_rule *rule = &parse->manifest->tensors[row->tensor];
	int64_t offset[BOX_DIM_MAX], extent[BOX_DIM_MAX];
	const struct json *strides = json_get(json, "lstride");
	uint32_t count = rule->dim_count;
	if (!read_dims(parse, json_get(json, "goff"), where, "goff", count, 0, offset) ||
	    !read_dims(parse, json_get(json, "lshape"), where, "lshape", count, 0, extent) ||
	    (strides != NULL &&
	     !read_dims(parse, strides, where, "lstride", count, 1, row->stride)))
		return false;
	int64_t place = json_integer(json, "loff", json_get(json, "loff") == NULL ? 0 : -1);
	uint64_t reach = 0, step = 1, volume = 1;
	bool fits = place >= 0 && (uint64_t)place < ELEMENT_COUNT_MAX;
	for (uint32_t d = count; d > 0; d--) {
		uint64_t o = (uint64_t)offset[d - 1], e = (uint64_t)extent[d - 1], far;
		if (e > rule->dim[d - 1] || o > rule->dim[d - 1] - e) {
			findings_add(&parse->found, "rows", where,
				     "dim %u: %" PRIu64 " elements from %" PRIu64
				     " on pass the tensor's %" PRIu64,
				     d - 1, e, o, rule->dim[d - 1]);
			return false;
		}
		row->offset[d - 1] = o;
		row->extent[d - 1] = e;
		volume *= e;
		if (strides == NULL)
			row->stride[d - 1] = (int64_t)step;
		step *= MAX(e, 1);
		fits = fits &&
		       !__builtin_mul_overflow(MAX(e, 1) - 1, (uint64_t)row->stride[d - 1], &far) &&
		       far < ELEMENT_COUNT_MAX;
		reach = fits ? reach + far : 0;
	}
	fits = fits && (uint64_t)place + reach < ELEMENT_COUNT_MAX;
	if (!fits)
		findings_add(&parse->found, "rows", where, "\"loff\" and \"lstride\" lead too far");
	row->place = fits ? (uint64_t)place : 0;
	row->end = volume == 0 ? row->place : row->place + reach + 1;
	row->plain = strides == NULL && place == 0;
	return fits;
}

static bool read_row(struct parse *parse, const struct json *json, uint32_t index, struct row *row)
{
	static const char *const keys[] = {"t",	     "rank",	"p",	"dtype", "goff",
					   "lshape", "lstride", "loff", "note",	 NULL};
	char room[32];
	const char *where = parse_where(json, "rows", index, room, sizeof(room));
	if (!parse_keys(parse, json, where, keys))
		return false;
	const char *tensor = parse_text(parse, json, "t", where);
	const char *name = parse_text(parse, json, "p", where);
	int64_t rank = json_integer(json, "rank", -1);
	if (tensor == NULL || rank < 0 || rank >= parse->manifest->world) {
		findings_add(&parse->found, "rows", where, "it needs \"t\", and \"rank\" below %u",
			     parse->manifest->world);
		return false;
	}
	*row = (struct row){
		.name = name != NULL ? name : tensor, .rank = (uint32_t)rank, .order = index};
	if (strchr(row->name, '{') != NULL) {
		findings_add(&parse->found, "rows", where, "'%s' has a brace in its name",
			     row->name);
		return false;
	}
	if (!find_tensor(parse, where, tensor, row) || !read_box(parse, json, where, row))
		return false;
	const struct json *dtype = json_get(json, "dtype");
	row->dtype = dtype == NULL ? parse->manifest->tensors[row->tensor].dtype
				   : ws_dtype_parse(json_text(json, "dtype", ""));
	if (row->dtype == WS_NONE)
		findings_add(&parse->found, "dtype", where, "'%s' is no dtype",
			     json_text(json, "dtype", ""));
	return row->dtype != WS_NONE;
}

/* By name, then layer, then rank; rows of one param stay in the order written. */
static int compare_rows(const void *left, const void *right)
{
	const struct row *a = left, *b = right;
	int order = strcmp(a->name, b->name);
	if (order != 0)
		return order;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return a->order < b->order ? -1 : 1;
}

static int compare_numbers(const void *left, const void *right)
{
	int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
	return a < b ? -1 : a > b;
}

/* The different experts of a param's rows, ascending. */
static int32_t *list_experts(struct parse *parse, const struct row *rows, uint32_t count,
			     uint32_t *count_out)
{
	int32_t *list = parse_alloc(parse, count, sizeof(*list));
	uint32_t found = 0, kept = 0;
	*count_out = 0;
	if (list == NULL)
		return NULL;
	for (uint32_t i = 0; i < count; i++) {
		if (rows[i].expert >= 0)
			list[found++] = rows[i].expert;
	}
	qsort(list, found, sizeof(*list), compare_numbers);
	for (uint32_t i = 0; i < found; i++) {
		if (i == 0 || list[i] != list[kept - 1])
			list[kept++] = list[i];
	}
	*count_out = kept;
	return list;
}

/* One param: all rows of one name at one rank. */
struct row_param {
	const struct row *rows;
	uint32_t count;
	int32_t layer;
	int32_t *experts;
	uint32_t expert_count;
	bool whole_expert; /* all rows are of one expert */
	const struct form *form;
};

static const struct form *make_form(struct parse *parse, const struct row_param *param, bool stacks)
{
	struct form *form = parse_alloc(parse, 1, sizeof(*form));
	struct piece *pieces = parse_alloc(parse, param->count, sizeof(*pieces));
	const struct row *first = &param->rows[0];
	if (form == NULL || pieces == NULL)
		return NULL;
	for (uint32_t i = 0; i < param->count; i++) {
		const struct row *row = &param->rows[i];
		const struct tensor_rule *rule = &parse->manifest->tensors[row->tensor];
		uint64_t volume = 1;
		for (uint32_t d = 0; d < rule->dim_count; d++)
			volume *= row->extent[d];
		form->element_count = MAX(form->element_count, row->end);
		if (volume == 0)
			continue;
		struct piece *piece = &pieces[form->piece_count++];
		*piece = (struct piece){.tensor = row->tensor,
					.slot = -1,
					.dim_count = rule->dim_count,
					.place = row->place};
		memcpy(piece->offset, row->offset, sizeof(piece->offset));
		memcpy(piece->extent, row->extent, sizeof(piece->extent));
		memcpy(piece->stride, row->stride, sizeof(piece->stride));
		if (stacks && row->expert >= 0) {
			const int32_t *slot =
				bsearch(&row->expert, param->experts, param->expert_count,
					sizeof(*slot), compare_numbers);
			piece->slot = slot == NULL ? -1 : (int32_t)(slot - param->experts);
		}
		form->covered_count += volume;
	}
	if (!check_disjoint(parse, first->name, first->rank, pieces, form->piece_count))
		return NULL;
	form->piece_count = pieces_merge(pieces, form->piece_count);
	form->pieces = pieces;
	form->dim_count = 1;
	form->dim[0] = form->element_count;
	if (param->count == 1 && first->plain) {
		form->dim_count = parse->manifest->tensors[first->tensor].dim_count;
		memcpy(form->dim, first->extent, sizeof(first->extent));
	}
	return form;
}

/* Rows of one param agree on dtype and layer; a layer of -1 goes with any. */
static bool read_param(struct parse *parse, const struct row *rows, uint32_t count,
		       struct row_param *param)
{
	*param = (struct row_param){.rows = rows, .count = count, .layer = -1};
	bool expertless = false;
	for (uint32_t i = 0; i < count; i++) {
		if (rows[i].dtype != rows[0].dtype) {
			findings_add(&parse->found, "dtype", rows[0].name,
				     "its rows at rank %u have different dtypes", rows[0].rank);
			return false;
		}
		if (rows[i].layer >= 0 && param->layer >= 0 && rows[i].layer != param->layer) {
			findings_add(
				&parse->found, "rows", rows[0].name,
				"its rows at rank %u are of layers %d and %d; a param has one layer",
				rows[0].rank, param->layer, rows[i].layer);
			return false;
		}
		param->layer = MAX(param->layer, rows[i].layer);
		expertless = expertless || rows[i].expert < 0;
	}
	param->experts = list_experts(parse, rows, count, &param->expert_count);
	param->whole_expert = param->expert_count == 1 && !expertless;
	return param->experts != NULL;
}

/* The name as a rule's: its layer and expert become marks where the number is in it. */
static const char *rule_name(struct parse *parse, const struct row_unit *unit, const char *name)
{
	char marked[NAME_BYTES_MAX + 16], plain[NAME_BYTES_MAX + 16];
	snprintf(marked, sizeof(marked), "%s", name);
	if (unit->layer >= 0) {
		memcpy(plain, marked, sizeof(plain));
		if (take_number(marked, sizeof(marked), "layers.", "{L}") != unit->layer)
			memcpy(marked, plain, sizeof(marked));
	}
	if (unit->expert >= 0) {
		memcpy(plain, marked, sizeof(plain));
		if (take_number(marked, sizeof(marked), "experts.", "{E}") != unit->expert)
			memcpy(marked, plain, sizeof(marked));
	}
	return parse_copy(parse, marked);
}

/* Adds one rank's param to a unit, which has room. */
static bool unit_add(struct parse *parse, struct row_unit *unit, struct row_param *param)
{
	uint32_t at = unit->count++;
	param->form = make_form(parse, param, unit->stacks);
	unit->ranks[at] = param->rows[0].rank;
	unit->forms[at] = param->form;
	unit->expert_first[at] =
		at == 0 ? 0 : unit->expert_first[at - 1] + unit->expert_count[at - 1];
	unit->expert_count[at] = unit->stacks ? param->expert_count : 0;
	if (unit->dtype != param->rows[0].dtype) {
		findings_add(&parse->found, "dtype", param->rows[0].name,
			     "rank %u has it as %s, another rank as %s", param->rows[0].rank,
			     ws_dtype_name(param->rows[0].dtype), ws_dtype_name(unit->dtype));
		return false;
	}
	for (uint32_t e = 0; e < unit->expert_count[at]; e++)
		unit->experts[unit->expert_first[at] + e] = param->experts[e];
	return param->form != NULL;
}

static bool unit_begin(struct parse *parse, struct row_unit *unit, const struct row_param *params,
		       uint32_t count)
{
	const struct row_param *first = &params[0];
	size_t experts = 0;
	*unit = (struct row_unit){.layer = first->layer,
				  .has_layer = first->layer >= 0,
				  .expert = -1,
				  .dtype = first->rows[0].dtype,
				  .order = first->rows[0].order};
	for (uint32_t i = 0; i < count; i++) {
		experts += params[i].expert_count;
		unit->stacks =
			unit->stacks || (params[i].expert_count > 0 && !params[i].whole_expert);
	}
	if (!unit->stacks && first->expert_count == 1)
		unit->expert = first->experts[0];
	unit->name = rule_name(parse, unit, first->rows[0].name);
	unit->ranks = parse_alloc(parse, count, sizeof(*unit->ranks));
	unit->forms = parse_alloc(parse, count, sizeof(struct form *));
	unit->expert_first = parse_alloc(parse, count, sizeof(*unit->expert_first));
	unit->expert_count = parse_alloc(parse, count, sizeof(*unit->expert_count));
	unit->experts = parse_alloc(parse, experts, sizeof(*unit->experts));
	return unit->name != NULL && !parse->out_of_memory;
}

/* Whether two params of one name are of one unit: the same layer and expert, or both stacks. */
static bool alike(const struct row_param *a, const struct row_param *b)
{
	if (a->layer != b->layer || a->whole_expert != b->whole_expert ||
	    (a->expert_count > 0) != (b->expert_count > 0))
		return false;
	return !a->whole_expert || a->experts[0] == b->experts[0];
}

/* Units of one name: usually one; more where ranks number layers or experts on their own. */
static uint32_t add_units(struct parse *parse, struct row_param *params, uint32_t count,
			  struct row_unit *units)
{
	uint32_t made = 0;
	for (uint32_t begin = 0; begin < count; made++) {
		uint32_t end = begin + 1;
		while (end < count && alike(&params[begin], &params[end]))
			end++;
		if (!unit_begin(parse, &units[made], &params[begin], end - begin))
			return made;
		for (; begin < end; begin++) {
			if (!unit_add(parse, &units[made], &params[begin]))
				return made;
		}
	}
	return made;
}

static int compare_params(const void *left, const void *right)
{
	const struct row_param *a = left, *b = right;
	int32_t a_expert = a->whole_expert ? a->experts[0] : -1;
	int32_t b_expert = b->whole_expert ? b->experts[0] : -1;
	if (a->layer != b->layer)
		return a->layer < b->layer ? -1 : 1;
	if (a_expert != b_expert)
		return a_expert < b_expert ? -1 : 1;
	if ((a->expert_count > 0) != (b->expert_count > 0))
		return a->expert_count > 0 ? 1 : -1;
	return a->rows[0].rank < b->rows[0].rank ? -1 : 1;
}

static void make_units(struct parse *parse, struct row *rows, uint32_t count)
{
	struct row_param *params = parse_alloc(parse, count, sizeof(*params));
	struct row_unit *units = parse_alloc(parse, count, sizeof(*units));
	uint32_t unit_count = 0;
	if (params == NULL || units == NULL)
		return;
	qsort(rows, count, sizeof(*rows), compare_rows);
	for (uint32_t begin = 0; begin < count;) {
		uint32_t made = 0;
		const char *name = rows[begin].name;
		while (begin < count && strcmp(rows[begin].name, name) == 0) {
			uint32_t end = begin + 1;
			while (end < count && strcmp(rows[end].name, name) == 0 &&
			       rows[end].rank == rows[begin].rank)
				end++;
			if (read_param(parse, &rows[begin], end - begin, &params[made]))
				made++;
			begin = end;
		}
		if (parse->out_of_memory)
			return;
		qsort(params, made, sizeof(*params), compare_params);
		unit_count += add_units(parse, params, made, &units[unit_count]);
	}
	if (parse->found.count == 0 && !parse->out_of_memory)
		add_row_rules(parse, units, unit_count);
}

void parse_rows(struct parse *parse, const struct json *json)
{
	uint32_t index = 0, count = 0;
	if (json == NULL)
		return;
	if (json->type != JSON_ARRAY) {
		findings_add(&parse->found, "rows", "rows", "expected a list of rows");
		return;
	}
	struct row *rows = arena_array(&parse->arena, json->count, sizeof(*rows));
	if (rows == NULL) {
		parse->out_of_memory = true;
		return;
	}
	for (const struct json *it = json->first; it != NULL && !parse->out_of_memory;
	     it = it->next) {
		if (read_row(parse, it, index++, &rows[count]))
			count++;
	}
	if (!parse->out_of_memory)
		make_units(parse, rows, count);
}
