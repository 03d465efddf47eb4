/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a parsed manifest answers: rules, their layers and experts at a rank, and the form of a
 * rule at a rank, computed once per different set of coordinates and shared by ranks, layers
 * and experts.
 */
#include <errno.h>
#include <string.h>

#include "planner/describe.h"

void manifest_free(struct manifest *manifest)
{
	if (manifest == NULL)
		return;
	if (manifest->memo != NULL) {
		arena_release(&manifest->memo->arena);
		mem_free(manifest->memo->table);
		mem_free(manifest->memo->form_counts);
		mem_free(manifest->memo);
	}
	mem_free(manifest->rules);
	arena_release(&manifest->arena);
	mem_free(manifest);
}

enum side manifest_side(const struct manifest *manifest)
{
	return manifest->side;
}

uint32_t manifest_world(const struct manifest *manifest)
{
	return manifest->world;
}

const char *manifest_model(const struct manifest *manifest)
{
	return manifest->model;
}

const char *manifest_framework(const struct manifest *manifest)
{
	return manifest->framework;
}

const char *manifest_quant(const struct manifest *manifest)
{
	return manifest->scheme_count == 0 ? NULL : manifest->schemes[0].name;
}

uint64_t manifest_digest(const struct manifest *manifest)
{
	return manifest->digest;
}

int64_t manifest_map_version(const struct manifest *manifest)
{
	return manifest->map_version;
}

uint32_t manifest_tensor_count(const struct manifest *manifest)
{
	return manifest->tensor_count;
}

const struct tensor_rule *manifest_tensor(const struct manifest *manifest, uint32_t index)
{
	return &manifest->tensors[index];
}

bool manifest_casts(const struct manifest *manifest, enum ws_dtype from, enum ws_dtype to)
{
	for (uint32_t i = 0; i < manifest->cast_count; i++) {
		if (manifest->casts[i][0] == from && manifest->casts[i][1] == to)
			return true;
	}
	return false;
}

uint32_t manifest_rule_count(const struct manifest *manifest)
{
	return manifest->rule_count;
}

const struct param_rule *manifest_rule(const struct manifest *manifest, uint32_t rule)
{
	return &manifest->rules[rule].view;
}

const struct quant_scheme *manifest_scheme(const struct manifest *manifest, uint32_t rule)
{
	return manifest->rules[rule].scheme;
}

const struct quant_scheme *manifest_tensor_scheme(const struct manifest *manifest, uint32_t tensor)
{
	/* Derived scales stand behind the listed tensors, for which alone there is room. */
	return manifest->tensors[tensor].is_scale ? NULL : manifest->tensor_scheme[tensor];
}

uint32_t manifest_tensor_fellow(const struct manifest *manifest, uint32_t tensor)
{
	return manifest_tensor_scheme(manifest, tensor) == NULL ? tensor : manifest->fellow[tensor];
}

uint32_t manifest_tensor_lead(const struct manifest *manifest, uint32_t tensor)
{
	return manifest_tensor_scheme(manifest, tensor) == NULL
		       ? tensor
		       : manifest->tensors[manifest->scale_of[tensor]].weight_tensor;
}

/* Index of a rank in a rule's rows; row_forms.count where it has none. */
static uint32_t row_find(const struct row_forms *rows, uint32_t rank)
{
	uint32_t lo = 0, hi = rows->count;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (rows->ranks[mid] < rank)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < rows->count && rows->ranks[lo] == rank ? lo : rows->count;
}

uint32_t manifest_layers(const struct manifest *manifest, uint32_t rule_index, uint32_t rank,
			 const int32_t **layers_out)
{
	const struct rule *rule = &manifest->rules[rule_index];
	*layers_out = rule->layers;
	if (rule->rows != NULL)
		return row_find(rule->rows, rank) < rule->rows->count ? rule->layer_count : 0;
	if (manifest->stage_axis == NULL)
		return rule->layer_count;
	int32_t stage = (int32_t)axis_index(manifest->stage_axis, rank);
	if (rule->stage_first == NULL)
		return rule->stage == STAGE_ANY || rule->stage == stage ? rule->layer_count : 0;
	*layers_out = rule->layers + rule->stage_first[stage];
	return rule->stage_first[stage + 1] - rule->stage_first[stage];
}

uint32_t manifest_experts(const struct manifest *manifest, uint32_t rule_index, uint32_t rank,
			  int32_t layer, const int32_t **experts_out)
{
	const struct rule *rule = &manifest->rules[rule_index];
	*experts_out = NULL;
	if (rule->rows != NULL) {
		uint32_t i = row_find(rule->rows, rank);
		if (i == rule->rows->count || rule->rows->expert_count[i] == 0)
			return 0;
		*experts_out = rule->rows->experts + rule->rows->expert_first[i];
		return rule->rows->expert_count[i];
	}
	if (!rule->view.each_expert && !rule->view.stacks_experts)
		return 0;
	uint32_t coordinate = rule->expert_axis == NULL ? 0 : axis_index(rule->expert_axis, rank);
	if (rule->lists == NULL) {
		const struct expert_map *map = manifest->map;
		*experts_out = map->list + (size_t)(layer - map->layers.lo) * map->total +
			       map->firsts[coordinate];
		return map->counts[coordinate];
	}
	uint32_t count = (uint32_t)(rule->lists->hi - rule->lists->lo);
	uint32_t n = rule->lists->coordinate_count, more = count % n;
	*experts_out = rule->lists->list + coordinate * (count / n) + MIN(coordinate, more);
	return count / n + (coordinate < more);
}

static bool memo_grow(struct memo *memo)
{
	uint32_t old_room = memo->table == NULL ? 0 : memo->mask + 1;
	uint32_t room = old_room == 0 ? 256 : old_room * 2;
	struct memo_entry *table = mem_alloc(room * sizeof(*table));
	if (table == NULL)
		return false;
	for (uint32_t i = 0; i < old_room; i++) {
		const struct memo_entry *entry = &memo->table[i];
		uint32_t at = (uint32_t)mix64(entry->key ^ mix64(entry->rule)) & (room - 1);
		if (entry->form == NULL)
			continue;
		while (table[at].form != NULL)
			at = (at + 1) & (room - 1);
		table[at] = *entry;
	}
	mem_free(memo->table);
	memo->table = table;
	memo->mask = room - 1;
	return true;
}

/* The entry of a key, or the free place where it belongs. */
static struct memo_entry *memo_at(struct memo *memo, uint32_t rule, uint64_t key,
				  uint32_t expert_count)
{
	uint32_t at = (uint32_t)mix64(key ^ mix64(rule)) & memo->mask;
	for (;; at = (at + 1) & memo->mask) {
		struct memo_entry *entry = &memo->table[at];
		if (entry->form == NULL || (entry->rule == rule && entry->key == key &&
					    entry->expert_count == expert_count))
			return entry;
	}
}

static int evaluate(const struct manifest *manifest, uint32_t rule_index, const struct spot *spot,
		    const struct form **form_out, struct ws_error *err)
{
	const struct rule *rule = &manifest->rules[rule_index];
	struct memo *memo = manifest->memo;
	if (memo->form_counts == NULL)
		memo->form_counts = mem_alloc(manifest->rule_count * sizeof(uint32_t));
	struct form *form = arena_alloc(&memo->arena, sizeof(*form));
	if (memo->form_counts == NULL || form == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the form of '%s'", rule->view.name);
	struct scaling scaling = scaling_of(manifest, rule);
	int rc = expr_form(rule->expr, spot, rule->view.is_scale ? &scaling : NULL, &memo->arena,
			   form, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "'%s' at rank %u", rule->view.name, spot->rank);
	form->id = memo->form_counts[rule_index]++;
	*form_out = form;
	return 0;
}

int manifest_form(const struct manifest *manifest, uint32_t rule_index, uint32_t rank,
		  const struct form **form_out, struct ws_error *err)
{
	const struct rule *rule = &manifest->rules[rule_index];
	struct memo *memo = manifest->memo;
	const int32_t *layers;
	*form_out = NULL;
	if (rule->rows != NULL) {
		uint32_t i = row_find(rule->rows, rank);
		*form_out = i < rule->rows->count ? rule->rows->forms[i] : NULL;
		return 0;
	}
	if (manifest_layers(manifest, rule_index, rank, &layers) == 0)
		return 0;
	struct spot spot = {.rank = rank, .stacks = rule->view.stacks_experts};
	if (spot.stacks)
		spot.expert_count = rule_expert_count(manifest, rule, rank);
	uint64_t key = rule_key(rule, rank);
	if ((memo->table == NULL || memo->count >= (memo->mask + 1) / 2) && !memo_grow(memo))
		return ws_fail(err, -ENOMEM, "out of memory for the form of '%s'", rule->view.name);
	struct memo_entry *entry = memo_at(memo, rule_index, key, spot.expert_count);
	if (entry->form == NULL) {
		const struct form *form = NULL;
		int rc = evaluate(manifest, rule_index, &spot, &form, err);
		if (rc != 0)
			return rc;
		*entry = (struct memo_entry){.key = key,
					     .rule = rule_index,
					     .expert_count = spot.expert_count,
					     .form = form};
		memo->count++;
	}
	*form_out = entry->form;
	return 0;
}
