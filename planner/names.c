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

/* A decimal number without sign or leading zeros that ends at a dot or the end; -1 if it isn't. */
static int32_t leading_number(const char *text, size_t *length)
{
	int32_t value = 0;
	size_t i = 0;
	while (text[i] >= '0' && text[i] <= '9' && i < 6) {
		value = value * 10 + (text[i] - '0');
		i++;
	}
	*length = i;
	if (i == 0 || i == 6 || (text[i] != '.' && text[i] != '\0') || (i > 1 && text[0] == '0'))
		return -1;
	return value;
}

int32_t take_number(char *name, size_t room, const char *after, const char *mark)
{
	size_t count = strlen(after), digits;
	for (char *at = strstr(name, after); at != NULL; at = strstr(at + 1, after)) {
		if (at != name && at[-1] != '.')
			continue;
		int32_t value = leading_number(at + count, &digits);
		size_t tail = strlen(at + count) + 1 - digits;
		size_t mark_count = strlen(mark);
		if (value < 0 || (size_t)(at - name) + count + mark_count + tail > room)
			continue;
		memmove(at + count + mark_count, at + count + digits, tail);
		for (size_t i = 0; i < mark_count; i++)
			at[count + i] = mark[i];
		return value;
	}
	return -1;
}

bool name_marks_fit(const char *name, const char *const *marks)
{
	for (const char *at = strchr(name, '{'); at != NULL; at = strchr(at + 1, '{')) {
		uint32_t i = 0;
		while (marks[i] != NULL && strncmp(at, marks[i], strlen(marks[i])) != 0)
			i++;
		if (marks[i] == NULL)
			return false;
	}
	return true;
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
	if (!parse_work(parse, name, manifest->world / 8))
		return;
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

/* A rule's names at one layer, as owners; how many of them and which experts they are of. */
struct naming {
	uint32_t count;
	bool by_expert, by_slot;
	const int32_t *experts; /* if by_expert */
};

static struct naming naming_of(const struct manifest *manifest, const struct rule *rule)
{
	struct naming naming = {.count = 1};
	if (!rule->view.each_expert)
		return naming;
	naming.by_expert = strstr(rule->view.name, "{E}") != NULL;
	naming.by_slot = !naming.by_expert && strstr(rule->view.name, "{e}") != NULL;
	if (rule->rows != NULL) {
		naming.count = rule->rows->expert_count[0];
		naming.experts = rule->rows->experts;
	} else if (rule->lists != NULL && naming.by_expert) {
		naming.count = (uint32_t)(rule->lists->hi - rule->lists->lo);
		naming.experts = rule->lists->list;
	} else if (rule->lists != NULL) {
		uint32_t all = (uint32_t)(rule->lists->hi - rule->lists->lo);
		uint32_t n = rule->lists->coordinate_count;
		naming.count = all / n + (all % n != 0);
	} else {
		naming.count = 0;
		for (uint32_t c = 0; c < manifest->map->coordinate_count; c++)
			naming.count = MAX(naming.count, manifest->map->counts[c]);
	}
	return naming;
}

/* Two params of one expert on one rank (a map may place it twice) share a name with {E}. */
static void check_twice(struct parse *parse, const struct rule *rule)
{
	const struct expert_map *map = parse->manifest->map;
	if (parse->at_expert == NULL)
		parse->at_expert = arena_array(&parse->arena, EXPERT_MAX, sizeof(uint32_t));
	uint32_t *last = parse->at_expert, round = 0;
	if (last == NULL || !parse_work(parse, rule->view.name,
					(uint64_t)rule->layer_count * map->total + EXPERT_MAX / 16))
		return (void)(parse->out_of_memory = parse->out_of_memory || last == NULL);
	memset(last, 0, EXPERT_MAX * sizeof(*last));
	for (uint32_t i = 0; i < rule->layer_count; i++) {
		const int32_t *list =
			map->list + (size_t)(rule->layers[i] - map->layers.lo) * map->total;
		for (uint32_t c = 0; c < map->coordinate_count; c++) {
			const int32_t *mine = list + map->firsts[c];
			round++;
			for (uint32_t j = 0; j < map->counts[c]; j++) {
				if (last[mine[j]] == round) {
					findings_add(
						&parse->found, "name", rule->view.name,
						"layer %d: expert %d is twice at coordinate %u; name params by {e}",
						rule->layers[i], mine[j], c);
					return;
				}
				last[mine[j]] = round;
			}
		}
	}
}

static void own_rule(struct parse *parse, struct owners *owners, uint32_t index)
{
	const struct manifest *manifest = parse->manifest;
	const struct rule *rule = &manifest->rules[index];
	struct naming naming = naming_of(manifest, rule);
	for (uint32_t i = 0; i < rule->layer_count; i++) {
		for (uint32_t n = 0; n < naming.count; n++) {
			struct owner owner = {
				.rule = index, .layer = rule->layers[i], .expert = -1, .slot = -1};
			if (naming.experts != NULL)
				owner.expert = naming.experts[n];
			else if (naming.by_slot || naming.by_expert)
				owner.slot = (int32_t)n;
			own(parse, owners, owner);
		}
	}
}

/* A rule's name with every mark and every number as '#': names of two rules can only meet where
 * these do.  False where one rule's own names might meet, or where a number may be negative. */
static bool skeleton(const struct manifest *manifest, const struct rule *rule, char *out,
		     size_t room)
{
	static const char *const marks[] = {"{L}", "{E}", "{e}", "{L-nl}"};
	const char *name = rule->view.name;
	size_t used = 0;
	bool clear = true, number = false, marked = false;
	while (*name != '\0' && used + 1 < room) {
		size_t mark = 0;
		for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
			if (strncmp(name, marks[i], strlen(marks[i])) == 0)
				mark = strlen(marks[i]);
		}
		for (uint32_t i = 0; mark == 6 && i < rule->layer_count; i++)
			clear = clear && rule->layers[i] >= manifest->layer_base;
		if (mark == 0 && (*name < '0' || *name > '9')) {
			number = marked = false;
			out[used++] = *name++;
			continue;
		}
		/* Numbers side by side blur where one ends. */
		clear = clear && !(number && (mark > 0 || marked));
		if (!number)
			out[used++] = '#';
		number = true;
		marked = mark > 0;
		name += mark > 0 ? mark : 1;
	}
	out[used] = '\0';
	return clear;
}

/* Skips one number or mark; *mark_out says which, *text_out and *count_out where it is. */
static const char *skip_number(const char *name, bool *mark_out, size_t *count_out)
{
	*mark_out = *name == '{';
	*count_out = *mark_out ? strcspn(name, "}") + 1 : strspn(name, "0123456789");
	return name + *count_out;
}

/* Whether names of two rules with equal skeletons can be equal: not where both have a number
 * written out, and not the same one. */
static bool may_meet(const char *a, const char *b)
{
	while (*a != '\0' && *b != '\0') {
		bool a_mark, b_mark;
		size_t a_count, b_count;
		if (*a != '{' && (*a < '0' || *a > '9')) {
			if (*a++ != *b++)
				return false;
			continue;
		}
		const char *a_next = skip_number(a, &a_mark, &a_count);
		const char *b_next = skip_number(b, &b_mark, &b_count);
		if (!a_mark && !b_mark && (a_count != b_count || memcmp(a, b, a_count) != 0))
			return false;
		a = a_next;
		b = b_next;
	}
	return *a == *b;
}

/* True where it is plain from the rules alone that no two names are equal. */
static bool plainly_different(struct parse *parse)
{
	const struct manifest *manifest = parse->manifest;
	uint32_t room = 16, probes = 0;
	while (room < manifest->rule_count * 2)
		room *= 2;
	struct {
		uint64_t hash; /* 0: free */
		const char *name;
	} *seen = arena_array(&parse->arena, room, sizeof(*seen));
	bool different = seen != NULL;
	for (uint32_t i = 0; i < manifest->rule_count && different; i++) {
		const struct rule *rule = &manifest->rules[i];
		struct naming naming = naming_of(manifest, rule);
		char text[NAME_BYTES_MAX + 64];
		bool by_layer = strstr(rule->view.name, "{L}") != NULL ||
				strstr(rule->view.name, "{L-nl}") != NULL;
		different = skeleton(manifest, rule, text, sizeof(text)) &&
			    (rule->layer_count == 1 || by_layer) &&
			    (naming.count <= 1 || naming.by_slot ||
			     (naming.by_expert && naming.experts != NULL));
		uint64_t hash = digest_bytes(text, strlen(text), 0) | 1;
		uint32_t at = (uint32_t)(hash >> 1) & (room - 1);
		/* Names that differ in written-out numbers only all land here: compare them. */
		for (; seen[at].hash != 0 && different; at = (at + 1) & (room - 1))
			different =
				probes++ < 8 * room && (seen[at].hash != hash ||
							!may_meet(seen[at].name, rule->view.name));
		seen[at].hash = hash;
		seen[at].name = rule->view.name;
	}
	return different;
}

void check_names(struct parse *parse)
{
	const struct manifest *manifest = parse->manifest;
	struct owners owners = {0};
	uint64_t total = 0;
	if (parse->out_of_memory || parse->found.count > 0)
		return; /* rules that aren't whole have no names to compare */
	for (uint32_t i = 0; i < manifest->rule_count; i++) {
		const struct rule *rule = &manifest->rules[i];
		struct naming naming = naming_of(manifest, rule);
		total += (uint64_t)rule->layer_count * naming.count;
		if (rule->view.each_expert && naming.count > 1 && !naming.by_expert &&
		    !naming.by_slot)
			findings_add(&parse->found, "name", rule->view.name,
				     "it has each.E, so its name needs {E} or {e}");
		else if (naming.by_expert && naming.experts == NULL)
			check_twice(parse, rule);
	}
	if (parse->found.count > 0 || plainly_different(parse))
		return;
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
