/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker's view of trainers' tables of maxima.  What a plan says of them is a claim: this
 * table is of that tensor, which this param holds, and has these blocks.  Here the tables of a
 * bucket become a form whose elements are blocks, so that what reads or raises them is followed as
 * any part is.  Two tables on one place, or two buckets', are found here.  Tables of weights under
 * one scale are one place by right: which those are, the rollout's manifest says.
 */
#include "planner/check.h"

/* How many elements of a dim share a scale. */
static uint64_t elements_each(const struct quant_scheme *scheme, const struct tensor_rule *rule,
			      uint32_t dim)
{
	uint64_t block = 1;

	if (scheme->kind == SCHEME_TENSOR)
		return rule->dim[dim];
	if (dim + 2 >= rule->dim_count)
		block = scheme->block[dim + 2 - rule->dim_count];
	return block == 0 ? rule->dim[dim] : block;
}

/* Whether a rollout's rule names this tensor, and at which layer and expert; numbers may be written
 * out on one side. */
static bool names(const struct tensor_rule *rule, const struct spot_tensor *tensor, bool slowly,
		  struct spot_tensor *at_out)
{
	char have[512], want[512];
	bool in_range = rule->layer_lo < 0 ||
			(tensor->layer >= rule->layer_lo && tensor->layer < rule->layer_hi);

	*at_out = (struct spot_tensor){rule, tensor->layer, tensor->expert};
	if (!slowly)
		return in_range && strcmp(rule->name, tensor->rule->name) == 0;
	tensor_name(tensor->rule, tensor->layer, tensor->expert, have, sizeof(have));
	for (int32_t l = rule->layer_lo; l < MAX(rule->layer_hi, rule->layer_lo + 1); l++)
		for (int32_t e = rule->expert_lo; e < MAX(rule->expert_hi, rule->expert_lo + 1);
		     e++) {
			tensor_name(rule, l, e, want, sizeof(want));
			*at_out = (struct spot_tensor){rule, l, e};
			if (strcmp(have, want) == 0)
				return true;
		}
	return false;
}

/* The rollout's tensor that is a trainer's, where it has a scheme; else NONE. */
static uint32_t quantized_as(struct checking *checking, uint32_t tensor_index,
			     const struct spot_tensor *tensor, struct spot_tensor *at_out)
{
	const struct manifest *rollout = checking->plan->input.rollout;
	uint32_t *last = &checking->quantized[tensor_index];

	if (*last > 0 && names(manifest_tensor(rollout, *last - 1), tensor, false, at_out))
		return *last - 1;
	for (int slowly = 0; slowly < 2; slowly++)
		for (uint32_t i = 0; i < manifest_tensor_count(rollout); i++) {
			if (manifest_tensor_scheme(rollout, i) == NULL ||
			    !names(manifest_tensor(rollout, i), tensor, slowly == 1, at_out))
				continue;
			*last = i + 1;
			return i;
		}
	return NONE;
}

/* A rank's params in rows alike, without listing them. */
static int runs_make(struct checking *checking, const struct peer *peer, struct vec *runs)
{
	const struct manifest *manifest = peer->manifest;
	uint32_t first = 0;

	for (uint32_t r = 0; r < manifest_rule_count(manifest); r++) {
		const int32_t *layers, *experts;
		uint32_t count = manifest_layers(manifest, r, peer->rank, &layers);
		for (uint32_t l = 0; l < count; l++) {
			struct param_run *run = vec_add(runs, sizeof(*run));
			if (run == NULL)
				return plan_no_memory(checking->err);
			*run = (struct param_run){
				.first = first, .rule = r, .each = 1, .layer = layers[l]};
			if (manifest_rule(manifest, r)->each_expert)
				run->each = manifest_experts(manifest, r, peer->rank, layers[l],
							     &experts);
			first += run->each;
		}
	}
	return 0;
}

/* The rank's param of this number; its form is NULL where there is none. */
static int param_of(struct checking *checking, const struct peer *peer, const struct vec *runs,
		    uint32_t number, struct param *param)
{
	const struct param_run *list = runs->items;
	size_t lo = 0, hi = runs->count;
	const int32_t *experts;

	*param = (struct param){.expert = -1, .slot = -1};
	while (lo < hi) {
		size_t middle = (lo + hi) / 2;
		if (list[middle].first <= number)
			lo = middle + 1;
		else
			hi = middle;
	}
	if (lo == 0 || number - list[lo - 1].first >= list[lo - 1].each)
		return 0;
	const struct param_run *run = &list[lo - 1];
	param->rule = run->rule;
	param->layer = run->layer;
	if (manifest_rule(peer->manifest, run->rule)->each_expert) {
		manifest_experts(peer->manifest, run->rule, peer->rank, run->layer, &experts);
		param->slot = (int32_t)(number - run->first);
		param->expert = experts[param->slot];
	}
	return manifest_form(peer->manifest, run->rule, peer->rank, &param->form, checking->err);
}

static const char *table_fault(const struct plan *plan, const struct param *param,
			       const struct plan_table *table)
{
	const struct form *form = param->form;

	if (table->kind >= plan->kind_count || form == NULL)
		return "a table is of no bucket or no param";
	if ((uintptr_t)table->piece < (uintptr_t)form->pieces ||
	    (uintptr_t)table->piece >= (uintptr_t)(form->pieces + form->piece_count))
		return "a table is of no piece of its param";
	return NULL;
}

/* What a table is of, and what its scale is called after. */
static const char *view_names(struct checking *checking, struct tables_view *view, uint32_t index)
{
	const struct manifest *rollout = checking->plan->input.rollout;
	const struct plan_table *table = &checking->plan->tables[view->rank].list[index];
	const struct spot_param spot = {.peer = &view->peer, .param = &view->params[index]};
	struct spot_tensor *lead = &view->leads[index];
	struct table_view *mine = &view->tables[index];

	view->names[index] = spot_tensor(&spot, table->piece);
	uint32_t tensor = quantized_as(checking, table->piece->tensor, &view->names[index], lead);
	if (tensor == NONE)
		return "a table is of a tensor that no rollout quantizes";
	mine->scheme = manifest_tensor_scheme(rollout, tensor);
	mine->lead = manifest_tensor_lead(rollout, tensor);
	lead->rule = manifest_tensor(rollout, mine->lead);
	const uint32_t words[] = {mine->lead, (uint32_t)lead->layer, (uint32_t)lead->expert};
	mine->key = digest_bytes(words, sizeof(words), 0);
	return NULL;
}

/* A table as a piece whose elements are its blocks. */
static const char *view_table(struct checking *checking, struct tables_view *view, uint32_t index)
{
	const struct plan *plan = checking->plan;
	const struct plan_table *table = &plan->tables[view->rank].list[index];
	const char *fault = table_fault(plan, &view->params[index], table);
	struct piece *piece = &view->pieces[index];
	struct table_view *mine = &view->tables[index];

	if (fault == NULL)
		fault = view_names(checking, view, index);
	if (fault != NULL)
		return fault;
	const struct tensor_rule *rule = view->names[index].rule;
	bool one = mine->scheme->kind == SCHEME_TENSOR;
	if (table->blocks->dim_count != (one ? 1 : rule->dim_count))
		return "a table has other dims than its tensor";
	*piece = (struct piece){.tensor = table->piece->tensor,
				.slot = (int32_t)index,
				.dim_count = table->blocks->dim_count,
				.place = table->first};
	int64_t stride = 1;
	for (uint32_t d = rule->dim_count; d > 0; d--)
		mine->each[d - 1] = elements_each(mine->scheme, rule, d - 1);
	for (uint32_t d = piece->dim_count; d > 0; d--) {
		uint64_t blocks = one ? 1 : (rule->dim[d - 1] - 1) / mine->each[d - 1] + 1;
		piece->offset[d - 1] = table->blocks->offset[d - 1];
		piece->extent[d - 1] = table->blocks->extent[d - 1];
		if (piece->extent[d - 1] == 0 || piece->extent[d - 1] > blocks ||
		    piece->offset[d - 1] > blocks - piece->extent[d - 1])
			return "a table has blocks that its tensor doesn't have";
		piece->stride[d - 1] = stride;
		stride *= (int64_t)piece->extent[d - 1];
	}
	mine->kind = table->kind;
	mine->end = table->first + (uint64_t)stride;
	return NULL;
}

uint32_t check_table_member(const struct tables_view *view, uint32_t first,
			    const struct spot_tensor *name)
{
	const struct spot_param spot = {.peer = &view->peer, .names = view->names};

	for (uint32_t i = first; i < view->table_count && view->tables[i].group == first; i++)
		if (account_same_tensor(&spot, &view->pieces[i], name))
			return i;
	return NONE;
}

/*
 * How a table lies to the one before it: under the same scale, on the same entry, or behind it.
 * Scales of several tensors are remembered, so that none has tables in two places.
 */
static int place_table(struct checking *checking, struct tables_view *view, uint32_t index,
		       const char **fault)
{
	const struct manifest *rollout = checking->plan->input.rollout;
	const struct plan_table *table = &checking->plan->tables[view->rank].list[index];
	struct table_view *mine = &view->tables[index];
	bool after = index > 0 && mine->kind == mine[-1].kind;
	bool fused = manifest_tensor_fellow(rollout, mine->lead) != mine->lead;

	mine->group = index;
	if (index > 0 && mine->kind < mine[-1].kind)
		*fault = "tables aren't in the order of their buckets";
	if (after && fused && mine->key == mine[-1].key) {
		uint32_t first = mine[-1].group;
		if (table->first != table[-1].first)
			*fault = "one scale has tables in two places";
		if (check_table_member(view, first, &view->names[index]) != NONE)
			*fault = "one tensor has two tables";
		mine->group = first;
		return 0;
	}
	if (after && table->first < mine[-1].end)
		*fault = "two tables lie on one place";
	if (!fused)
		return 0;
	if (idmap_get(&view->by_key, mine->key) != NONE) {
		*fault = "one scale has tables in two places";
		return 0;
	}
	return idmap_put(&view->by_key, mine->key, index);
}

/* The tables of a kind as the form of one param; the kind's length in entries. */
static int view_kind(struct checking *checking, struct tables_view *view, uint32_t kind,
		     uint32_t first, uint32_t end, uint64_t *entries_out)
{
	struct kind_view *mine = &view->kinds[kind];
	struct piece *pieces = arena_array(&checking->arena, end - first, sizeof(*pieces));
	struct reach *reach = arena_array(&checking->arena, end - first, sizeof(*reach));
	uint64_t entries = 0;
	uint32_t count = 0;

	if (reach == NULL || pieces == NULL)
		return plan_no_memory(checking->err);
	for (uint32_t i = first; i < end; i++) {
		entries = MAX(entries, view->tables[i].end);
		if (view->tables[i].group == i)
			pieces[count++] = view->pieces[i];
	}
	*entries_out = entries;
	mine->form = (struct form){.dim_count = 1,
				   .dim = {entries},
				   .element_count = entries,
				   .covered_count = entries,
				   .piece_count = count,
				   .pieces = pieces};
	mine->param = (struct param){.layer = -1,
				     .expert = -1,
				     .slot = -1,
				     .dtype = WS_U32,
				     .form = &mine->form,
				     .bytes = entries * ws_dtype_bytes(WS_U32)};
	account_reach(&mine->form, reach);
	mine->spot = (struct spot_param){
		.peer = &view->peer, .param = &mine->param, .reach = reach, .names = view->leads};
	return 0;
}

/* By kind, one behind the other; and each bucket's room is its kind's. */
static int view_fill(struct checking *checking, struct tables_view *view, const char **fault)
{
	const struct plan *plan = checking->plan;
	const struct trainer_tables *tables = &plan->tables[view->rank];
	uint64_t *room = arena_array(&checking->arena, plan->kind_count, sizeof(*room));
	struct vec runs = {0};
	int rc = room == NULL ? plan_no_memory(checking->err)
			      : runs_make(checking, &view->peer, &runs);

	for (uint32_t i = 0; rc == 0 && i < tables->count; i++)
		rc = param_of(checking, &view->peer, &runs, tables->list[i].param,
			      &view->params[i]);
	vec_release(&runs);
	for (uint32_t i = 0; rc == 0 && i < tables->count; i++) {
		*fault = view_table(checking, view, i);
		if (*fault == NULL && place_table(checking, view, i, fault) != 0)
			rc = plan_no_memory(checking->err);
		if (*fault != NULL)
			return 0;
		view->table_count = i + 1;
	}
	for (uint32_t first = 0, end; rc == 0 && first < tables->count; first = end) {
		uint32_t kind = tables->list[first].kind;
		for (end = first; end < tables->count && tables->list[end].kind == kind; end++)
			;
		rc = view_kind(checking, view, kind, first, end, &room[kind]);
	}
	for (uint32_t b = 0; rc == 0 && b < plan->bucket_count; b++)
		if (tables->bucket[b + 1] < tables->bucket[b] ||
		    tables->bucket[b + 1] - tables->bucket[b] !=
			    room[plan->buckets[b].kind] * ws_dtype_bytes(WS_U32))
			*fault = "a bucket's tables aren't as long as its kind's";
	if (rc == 0 && tables->bucket[0] != 0)
		*fault = "the first bucket's tables don't come first";
	return rc;
}

/* A rank has one form of a rule: so a tensor that only one rule has is in one param of a layer and
 * expert. */
static int view_rules(struct checking *checking, struct tables_view *view)
{
	const struct manifest *manifest = view->peer.manifest;

	for (uint32_t r = 0; r < manifest_rule_count(manifest); r++) {
		const struct form *form = NULL;
		const int32_t *layers;
		if (manifest_layers(manifest, r, view->rank, &layers) == 0)
			continue;
		int rc = manifest_form(manifest, r, view->rank, &form, checking->err);
		if (rc != 0)
			return rc;
		for (uint32_t i = 0; form != NULL && i < form->piece_count; i++) {
			uint32_t *rule = &view->rule_of[form->pieces[i].tensor];
			*rule = *rule == 0 || *rule == r + 1 ? r + 1 : NONE;
		}
	}
	return 0;
}

int check_table_find(struct tables_view *view, uint64_t key, uint32_t *table_out)
{
	for (uint32_t i = 0; !view->by_key_is_whole && i < view->table_count; i++) {
		const struct table_view *table = &view->tables[i];
		if (idmap_get(&view->by_key, table->key) == NONE &&
		    idmap_put(&view->by_key, table->key, table->group) != 0)
			return -ENOMEM;
	}
	view->by_key_is_whole = true;
	*table_out = idmap_get(&view->by_key, key);
	return 0;
}

int check_tables(struct checking *checking, uint32_t trainer, struct tables_view **out)
{
	const struct plan *plan = checking->plan;
	const char *fault = NULL;

	*out = NULL;
	if (plan->tables == NULL || !plan->tables[trainer].known)
		return 0;
	if (checking->tables == NULL) {
		checking->quantized =
			arena_array(&checking->arena, manifest_tensor_count(plan->input.trainer),
				    sizeof(*checking->quantized));
		checking->tables = arena_array(&checking->arena, plan->trainer_count,
					       sizeof(*checking->tables));
	}
	if (checking->tables == NULL || checking->quantized == NULL)
		return plan_no_memory(checking->err);
	struct tables_view *view = &checking->tables[trainer];
	*out = view;
	if (view->known)
		return 0;
	uint32_t count = plan->tables[trainer].count;
	view->rank = trainer;
	view->peer = (struct peer){.manifest = plan->input.trainer, .rank = trainer};
	view->params = arena_array(&checking->arena, count, sizeof(*view->params));
	view->pieces = arena_array(&checking->arena, count, sizeof(*view->pieces));
	view->names = arena_array(&checking->arena, count, sizeof(*view->names));
	view->leads = arena_array(&checking->arena, count, sizeof(*view->leads));
	view->tables = arena_array(&checking->arena, count, sizeof(*view->tables));
	view->kinds = arena_array(&checking->arena, plan->kind_count, sizeof(*view->kinds));
	view->rule_of = arena_array(&checking->arena, manifest_tensor_count(plan->input.trainer),
				    sizeof(*view->rule_of));
	if (view->params == NULL || view->rule_of == NULL || view->pieces == NULL ||
	    view->names == NULL || view->leads == NULL || view->tables == NULL ||
	    view->kinds == NULL)
		return plan_no_memory(checking->err);
	int rc = view_fill(checking, view, &fault);
	if (rc == 0)
		rc = view_rules(checking, view);
	if (rc != 0)
		return rc;
	view->known = true;
	if (fault == NULL)
		return 0;
	char name[96];
	plan_member_name(plan, trainer, name, sizeof(name));
	findings_add(checking->findings, "tables", name, "the maxima of %s are laid wrong: %s",
		     name, fault);
	return findings_fail(checking->findings, -EINVAL, checking->err);
}
