/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules from explicit rows.  Units that lie alike on the same ranks become one rule over their
 * experts and layers, so that a plan of 70,000 rows costs what a few rules cost.  And the exact
 * check that a param's rows share no element.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

#define MERGE_SCAN_MAX 4096	  /* units of one name that may be merged into one rule */
#define RUN_MAX	       (4u << 20) /* contiguous runs of one param that are compared one by one */

struct run {
	uint64_t start, end;
};

/* Dims that move, the largest stride first. */
static uint32_t moving_dims(const struct piece *piece, uint32_t *dims)
{
	uint32_t count = 0;
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		if (piece->extent[d] <= 1)
			continue;
		uint32_t at = count++;
		for (; at > 0 && piece->stride[dims[at - 1]] < piece->stride[d]; at--)
			dims[at] = dims[at - 1];
		dims[at] = d;
	}
	return count;
}

/* Whether a piece can't meet itself because each stride passes all that is inside it.  *end_out
 * is behind its last element. */
static bool nested(const struct piece *piece, uint64_t *end_out)
{
	uint32_t dims[BOX_DIM_MAX];
	uint32_t count = moving_dims(piece, dims);
	uint64_t reach = 0;
	bool yes = true;
	for (uint32_t i = count; i > 0; i--) {
		uint64_t stride = (uint64_t)piece->stride[dims[i - 1]];
		yes = yes && stride > reach;
		reach += (piece->extent[dims[i - 1]] - 1) * stride;
	}
	*end_out = piece->place + reach + 1;
	return yes;
}

static int compare_runs(const void *left, const void *right)
{
	const struct run *a = left, *b = right;
	return a->start < b->start ? -1 : a->start > b->start;
}

/* Sorted by start, no run begins before the one before it ends. */
static bool runs_apart(struct run *runs, uint32_t count, uint64_t *where)
{
	qsort(runs, count, sizeof(*runs), compare_runs);
	for (uint32_t i = 1; i < count; i++) {
		if (runs[i].start < runs[i - 1].end) {
			*where = runs[i].start;
			return false;
		}
	}
	return true;
}

/* A piece's contiguous runs: how many, and their list where runs isn't NULL. */
static uint64_t list_runs(const struct piece *piece, struct run *runs)
{
	uint32_t dims[BOX_DIM_MAX];
	uint32_t count = moving_dims(piece, dims);
	uint64_t width = 1, total = 1, index[BOX_DIM_MAX] = {0};
	while (count > 0 && (uint64_t)piece->stride[dims[count - 1]] == width)
		width *= piece->extent[dims[--count]];
	for (uint32_t i = 0; i < count; i++) {
		if (__builtin_mul_overflow(total, piece->extent[dims[i]], &total))
			return UINT64_MAX;
	}
	for (uint64_t n = 0; runs != NULL && n < total; n++) {
		uint64_t at = piece->place;
		for (uint32_t i = 0; i < count; i++)
			at += index[i] * (uint64_t)piece->stride[dims[i]];
		runs[n] = (struct run){at, at + width};
		for (uint32_t i = count; i > 0; i--) {
			if (++index[i - 1] < piece->extent[dims[i - 1]])
				break;
			index[i - 1] = 0;
		}
	}
	return total;
}

bool check_disjoint(struct parse *parse, const char *name, uint32_t rank,
		    const struct piece *pieces, uint32_t count)
{
	struct run *runs = mem_alloc(count * sizeof(*runs));
	uint64_t total = 0, where = 0;
	bool apart = true;
	parse->out_of_memory = parse->out_of_memory || runs == NULL;
	if (runs == NULL)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		runs[i].start = pieces[i].place;
		apart = nested(&pieces[i], &runs[i].end) && apart;
	}
	apart = apart && runs_apart(runs, count, &where);
	mem_free(runs);
	if (apart)
		return true;
	/* Their spans overlap, like columns of one matrix: look at each run. */
	for (uint32_t i = 0; i < count && total <= RUN_MAX; i++) {
		uint64_t more = list_runs(&pieces[i], NULL);
		total = more > RUN_MAX ? RUN_MAX + 1 : total + more;
	}
	if (total > RUN_MAX) {
		findings_add(&parse->found, "rows", name,
			     "rank %u: its rows are in more than %u runs, too many to check", rank,
			     RUN_MAX);
		return false;
	}
	runs = mem_alloc(total * sizeof(*runs));
	parse->out_of_memory = parse->out_of_memory || runs == NULL;
	if (runs == NULL)
		return false;
	struct run *next = runs;
	for (uint32_t i = 0; i < count; i++)
		next += list_runs(&pieces[i], next);
	apart = runs_apart(runs, (uint32_t)total, &where);
	mem_free(runs);
	if (!apart)
		findings_add(&parse->found, "rows", name,
			     "rank %u: two of its rows hold local element %llu", rank,
			     (unsigned long long)where);
	return apart;
}

static bool same_form(const struct form *a, const struct form *b)
{
	return a->dim_count == b->dim_count && a->element_count == b->element_count &&
	       memcmp(a->dim, b->dim, sizeof(a->dim)) == 0 && a->piece_count == b->piece_count &&
	       memcmp(a->pieces, b->pieces, a->piece_count * sizeof(*a->pieces)) == 0;
}

/* The same ranks with the same forms and stacks; experts and layers may differ. */
static bool same_unit(const struct row_unit *a, const struct row_unit *b)
{
	if (a->hash != b->hash || a->count != b->count || a->stacks != b->stacks ||
	    a->has_layer != b->has_layer || (a->expert < 0) != (b->expert < 0) ||
	    a->dtype != b->dtype || strcmp(a->name, b->name) != 0 ||
	    memcmp(a->ranks, b->ranks, a->count * sizeof(*a->ranks)) != 0)
		return false;
	for (uint32_t i = 0; i < a->count; i++) {
		if (a->expert_count[i] != b->expert_count[i] ||
		    memcmp(a->experts + a->expert_first[i], b->experts + b->expert_first[i],
			   a->expert_count[i] * sizeof(*a->experts)) != 0 ||
		    !same_form(a->forms[i], b->forms[i]))
			return false;
	}
	return true;
}

static void hash_unit(struct row_unit *unit)
{
	uint64_t hash = digest_bytes(unit->ranks, unit->count * sizeof(*unit->ranks), unit->dtype);
	for (uint32_t i = 0; i < unit->count; i++) {
		const struct form *form = unit->forms[i];
		hash = digest_bytes(form->pieces, form->piece_count * sizeof(*form->pieces), hash);
		hash = digest_bytes(unit->experts + unit->expert_first[i],
				    unit->expert_count[i] * sizeof(*unit->experts), hash);
	}
	unit->hash = hash;
}

static int compare_units(const void *left, const void *right)
{
	const struct row_unit *a = left, *b = right;
	int order = strcmp(a->name, b->name);
	if (order != 0)
		return order;
	if (a->hash != b->hash)
		return a->hash < b->hash ? -1 : 1;
	if (a->layer != b->layer)
		return a->layer < b->layer ? -1 : 1;
	return a->expert < b->expert ? -1 : a->expert > b->expert;
}

/* Units of one layer that are alike: their experts are one list. */
struct row_group {
	const struct row_unit *first;
	uint32_t count;
	uint64_t experts;	      /* hash of the list */
	struct row_group *next_layer; /* with the same experts, in the same rule */
	bool taken;
	uint32_t order;
};

static bool same_experts(const struct row_group *a, const struct row_group *b)
{
	if (a->count != b->count || !same_unit(a->first, b->first))
		return false;
	for (uint32_t i = 0; i < a->count; i++) {
		if (a->first[i].expert != b->first[i].expert)
			return false;
	}
	return true;
}

static bool same_key(const struct row_group *a, const struct row_group *b)
{
	return a->experts == b->experts && a->first->hash == b->first->hash &&
	       strcmp(a->first->name, b->first->name) == 0;
}

/* What may become one rule side by side, by layer. */
static int compare_alike(const void *left, const void *right)
{
	const struct row_group *a = left, *b = right;
	int order = strcmp(a->first->name, b->first->name);
	if (order != 0)
		return order;
	if (a->first->hash != b->first->hash)
		return a->first->hash < b->first->hash ? -1 : 1;
	if (a->experts != b->experts)
		return a->experts < b->experts ? -1 : 1;
	return a->first->layer < b->first->layer ? -1 : a->first->layer > b->first->layer;
}

static void add_rule(struct parse *parse, const struct row_group *group, uint32_t layer_count)
{
	assert(group != NULL);
	const struct row_unit *unit = group->first;
	struct row_forms *rows = parse_alloc(parse, 1, sizeof(*rows));
	int32_t *layers = parse_alloc(parse, layer_count, sizeof(*layers));
	struct rule *rule = rows == NULL || layers == NULL ? NULL : rule_add(parse);
	if (rule == NULL)
		return;
	*rows = (struct row_forms){.count = unit->count,
				   .ranks = unit->ranks,
				   .forms = unit->forms,
				   .expert_first = unit->expert_first,
				   .expert_count = unit->expert_count,
				   .experts = unit->experts};
	rule->view = (struct param_rule){.name = unit->name,
					 .dtype = unit->dtype,
					 .each_layer = unit->has_layer,
					 .each_expert = unit->expert >= 0,
					 .stacks_experts = unit->stacks,
					 .inplace = true};
	rule->kind = "param";
	rule->part_of = "main";
	rule->rows = rows;
	if (unit->expert >= 0) {
		rows->experts = parse_alloc(parse, group->count, sizeof(*rows->experts));
		for (uint32_t i = 0; rows->experts != NULL && i < group->count; i++)
			rows->experts[i] = unit[i].expert;
		for (uint32_t i = 0; i < rows->count; i++) {
			rows->expert_first[i] = 0;
			rows->expert_count[i] = group->count;
		}
	}
	uint32_t at = 0;
	for (const struct row_group *it = group; it != NULL; it = it->next_layer)
		layers[at++] = it->first->layer;
	rule->layers = layers;
	rule->layer_count = layer_count;
}

static int compare_groups(const void *left, const void *right)
{
	const struct row_group *a = *(struct row_group *const *)left;
	const struct row_group *b = *(struct row_group *const *)right;
	return a->order < b->order ? -1 : a->order > b->order;
}

/* Chains groups of the same experts over their layers; returns how many chains. */
static uint32_t chain_groups(struct row_group *groups, uint32_t count, struct row_group **heads)
{
	uint32_t head_count = 0;
	for (uint32_t g = 0; g < count; g++) {
		struct row_group *last = &groups[g];
		uint32_t end = MIN(count, g + MERGE_SCAN_MAX);
		if (groups[g].taken)
			continue;
		heads[head_count++] = &groups[g];
		for (uint32_t h = g + 1; h < end && same_key(&groups[g], &groups[h]); h++) {
			if (groups[h].taken || groups[h].first->layer == last->first->layer ||
			    !same_experts(&groups[g], &groups[h]))
				continue;
			groups[h].taken = true;
			groups[g].order = MIN(groups[g].order, groups[h].order);
			last->next_layer = &groups[h];
			last = &groups[h];
		}
	}
	return head_count;
}

void add_row_rules(struct parse *parse, struct row_unit *units, uint32_t count)
{
	struct row_group *groups = arena_array(&parse->arena, count, sizeof(*groups));
	struct row_group **heads = arena_array(&parse->arena, count, sizeof(struct row_group *));
	uint32_t group_count = 0;
	if (groups == NULL || heads == NULL) {
		parse->out_of_memory = true;
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		hash_unit(&units[i]);
	qsort(units, count, sizeof(*units), compare_units);
	for (uint32_t i = 0; i < count; group_count++) {
		struct row_group *group = &groups[group_count];
		*group = (struct row_group){.first = &units[i], .order = units[i].order};
		do {
			group->order = MIN(group->order, units[i].order);
			group->experts = mix64(group->experts ^ (uint64_t)units[i].expert);
			group->count++;
			i++;
		} while (i < count && units[i].layer == group->first->layer &&
			 group->first->expert >= 0 && same_unit(group->first, &units[i]));
	}
	qsort(groups, group_count, sizeof(*groups), compare_alike);
	uint32_t head_count = chain_groups(groups, group_count, heads);
	qsort(heads, head_count, sizeof(struct row_group *), compare_groups);
	for (uint32_t i = 0; i < head_count; i++) {
		uint32_t layers = 0;
		for (const struct row_group *it = heads[i]; it != NULL; it = it->next_layer)
			layers++;
		add_rule(parse, heads[i], layers);
	}
}
