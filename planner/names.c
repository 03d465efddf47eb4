/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names with {L}, {L-nl}, {E} and {e} put in, and the check that no rank has two params of one
 * name.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define EXPANDED_MAX (8u << 20) /* names of all rules together */

/* What a mark stands for. */
struct mark {
	const char *text;
	int32_t value;
};

static int expand(const char *name, const struct mark *marks, uint32_t mark_count, char *out,
		  size_t bytes)
{
	size_t used = 0;
	while (*name != '\0') {
		char number[16];
		const char *text = name;
		size_t count = 1, skip = 1;
		for (uint32_t i = 0; i < mark_count && *name == '{'; i++) {
			size_t mark = strlen(marks[i].text);
			if (strncmp(name, marks[i].text, mark) != 0)
				continue;
			count = (size_t)snprintf(number, sizeof(number), "%d", marks[i].value);
			text = number;
			skip = mark;
			break;
		}
		for (size_t i = 0; i < count; i++, used++) {
			if (used + 1 < bytes)
				out[used] = text[i];
		}
		name += skip;
	}
	if (bytes > 0)
		out[MIN(used, bytes - 1)] = '\0';
	return (int)used;
}

int tensor_name(const struct tensor_rule *rule, int32_t layer, int32_t expert, char *out,
		size_t bytes)
{
	struct mark marks[] = {{"{L}", layer}, {"{E}", expert}};
	return expand(rule->name, marks, ARRAY_SIZE(marks), out, bytes);
}

int param_name(const struct manifest *manifest, const struct rule *rule, int32_t layer,
	       int32_t expert, int32_t slot, char *out, size_t bytes)
{
	struct mark marks[] = {{"{L}", layer},
			       {"{L-nl}", layer - manifest->layer_base},
			       {"{E}", expert},
			       {"{e}", slot}};
	if (layer < 0 && expert < 0) /* a plain name is taken as it is */
		return snprintf(out, bytes, "%s", rule->view.name);
	return expand(rule->view.name, marks, ARRAY_SIZE(marks), out, bytes);
}

/* One possible param: on a rank it exists where its rule, layer and expert or slot do. */
struct owner {
	uint32_t rule;
	int32_t layer, expert, slot; /* expert -1: any; slot -1: any */
	uint64_t hash;
	bool used;
};

struct owners {
	struct owner *table;
	uint32_t mask, count;
};

static bool has(const struct manifest *manifest, const struct owner *owner, uint32_t rank)
{
	const int32_t *layers, *experts;
	uint32_t count = manifest_layers(manifest, owner->rule, rank, &layers);
	uint32_t i = 0;
	while (i < count && layers[i] != owner->layer)
		i++;
	if (i == count)
		return false;
	if (owner->expert < 0 && owner->slot < 0)
		return true;
	count = manifest_experts(manifest, owner->rule, rank, owner->layer, &experts);
	if (owner->slot >= 0)
		return (uint32_t)owner->slot < count;
	for (i = 0; i < count && experts[i] != owner->expert; i++)
		continue;
	return i < count;
}

static void collide(struct parse *parse, const struct owner *a, const struct owner *b,
		    const char *name)
{
	const struct manifest *manifest = parse->manifest;
	for (uint32_t rank = 0; rank < manifest->world; rank++) {
		if (has(manifest, a, rank) && has(manifest, b, rank)) {
			findings_add(&parse->found, "name", name,
				     "rank %u has two params of this name", rank);
			return;
		}
	}
}

static void own(struct parse *parse, struct owners *owners, struct owner owner)
{
	const struct manifest *manifest = parse->manifest;
	char name[NAME_BYTES_MAX + 64], other[NAME_BYTES_MAX + 64];
	int length = param_name(manifest, &manifest->rules[owner.rule], owner.layer,
				MAX(owner.expert, 0), MAX(owner.slot, 0), name, sizeof(name));
	owner.hash = digest_bytes(name, (size_t)MIN(length, (int)sizeof(name) - 1), 0);
	owner.used = true;
	uint32_t at = (uint32_t)owner.hash & owners->mask;
	for (; owners->table[at].used; at = (at + 1) & owners->mask) {
		const struct owner *it = &owners->table[at];
		if (it->hash != owner.hash || parse->found.count >= FINDINGS_KEPT_MAX)
			continue;
		param_name(manifest, &manifest->rules[it->rule], it->layer, MAX(it->expert, 0),
			   MAX(it->slot, 0), other, sizeof(other));
		if (strcmp(name, other) == 0) {
			collide(parse, it, &owner, name);
			break;
		}
	}
	if (!owners->table[at].used) {
		owners->table[at] = owner;
		owners->count++;
	}
}

/* How many names a rule makes at one layer: per expert, per slot, or one. */
static uint32_t names_of(const struct manifest *manifest, const struct rule *rule, bool *by_expert)
{
	*by_expert = strstr(rule->view.name, "{E}") != NULL;
	if (!rule->view.each_expert || rule->rows != NULL)
		return 1;
	if (*by_expert && rule->lists != NULL)
		return (uint32_t)(rule->lists->hi - rule->lists->lo);
	uint32_t most = 0, coordinates = rule->lists != NULL ? rule->lists->coordinate_count
							     : manifest->map->coordinate_count;
	if (rule->lists != NULL)
		return (uint32_t)(rule->lists->hi - rule->lists->lo + (int32_t)coordinates - 1) /
		       coordinates;
	for (uint32_t c = 0; c < coordinates; c++)
		most = MAX(most, manifest->map->counts[c]);
	return most;
}

/* Two params of one expert on one rank (a map may place it twice) share a name with {E}. */
static void check_twice(struct parse *parse, const struct rule *rule)
{
	const struct expert_map *map = parse->manifest->map;
	for (uint32_t i = 0; i < rule->layer_count; i++) {
		const int32_t *list =
			map->list + (size_t)(rule->layers[i] - map->layers.lo) * map->total;
		for (uint32_t c = 0; c < map->coordinate_count; c++) {
			const int32_t *mine = list + map->firsts[c];
			for (uint32_t j = 1; j < map->counts[c]; j++) {
				uint32_t k = 0;
				while (k < j && mine[k] != mine[j])
					k++;
				if (k == j)
					continue;
				findings_add(
					&parse->found, "name", rule->view.name,
					"layer %d: expert %d is twice at coordinate %u; name params by {e}",
					rule->layers[i], mine[j], c);
				return;
			}
		}
	}
}

static void own_rule(struct parse *parse, struct owners *owners, uint32_t index)
{
	const struct manifest *manifest = parse->manifest;
	const struct rule *rule = &manifest->rules[index];
	bool by_expert;
	uint32_t count = names_of(manifest, rule, &by_expert);
	bool named = by_expert || strstr(rule->view.name, "{e}") != NULL;
	if (rule->view.each_expert && rule->rows == NULL && !named && count > 1) {
		findings_add(&parse->found, "name", rule->view.name,
			     "it has each.E, so its name needs {E} or {e}");
		return;
	}
	if (rule->view.each_expert && rule->rows == NULL && by_expert && rule->lists == NULL) {
		check_twice(parse, rule);
		return;
	}
	for (uint32_t i = 0; i < rule->layer_count; i++) {
		for (uint32_t n = 0; n < count; n++) {
			struct owner owner = {
				.rule = index, .layer = rule->layers[i], .expert = -1, .slot = -1};
			if (rule->view.each_expert && rule->rows == NULL && by_expert)
				owner.expert = rule->lists->lo + (int32_t)n;
			else if (rule->view.each_expert && rule->rows == NULL)
				owner.slot = (int32_t)n;
			own(parse, owners, owner);
		}
	}
}

void check_names(struct parse *parse)
{
	const struct manifest *manifest = parse->manifest;
	struct owners owners = {0};
	uint64_t total = 0;
	bool by_expert;
	if (parse->out_of_memory || parse->found.count > 0)
		return; /* rules that aren't whole have no names to compare */
	for (uint32_t i = 0; i < manifest->rule_count; i++)
		total += (uint64_t)manifest->rules[i].layer_count *
			 names_of(manifest, &manifest->rules[i], &by_expert);
	if (total > EXPANDED_MAX) {
		findings_add(&parse->found, "name", "params", "%" PRIu64 " names are more than %u",
			     total, EXPANDED_MAX);
		return;
	}
	uint32_t room = 16;
	while (room < total * 2)
		room *= 2;
	owners.mask = room - 1;
	owners.table = mem_alloc((size_t)room * sizeof(*owners.table));
	if (owners.table == NULL) {
		parse->out_of_memory = true;
		return;
	}
	for (uint32_t i = 0; i < manifest->rule_count; i++)
		own_rule(parse, &owners, i);
	mem_free(owners.table);
}
