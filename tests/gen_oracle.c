/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a layout means: trees evaluated on whole arrays of element ids, array by array.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/gen_tree.h"

#define DIMS	    6
#define EXPERTS_MAX 16 /* of a rank */

/* Where a tree is evaluated. */
struct spot {
	struct gen *gen;
	const struct gen_layout *layout;
	uint32_t rank;
	int32_t layer, expert;
};

struct array {
	uint32_t dim_count;
	uint64_t dim[DIMS];
	uint32_t *id;
};

static uint64_t volume_of(const struct array *array)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < array->dim_count; d++)
		volume *= array->dim[d];
	return volume;
}

static void array_fill(struct gen *gen, struct array *array)
{
	array->id = arena_array(&gen->scratch, volume_of(array), sizeof(uint32_t));
	assert(array->id != NULL);
}

static void index_of(const struct array *array, uint64_t flat, uint64_t *at)
{
	for (uint32_t d = array->dim_count; d > 0; d--) {
		at[d - 1] = flat % array->dim[d - 1];
		flat /= array->dim[d - 1];
	}
}

static uint64_t flat_of(const struct array *array, const uint64_t *at)
{
	uint64_t flat = 0;

	for (uint32_t d = 0; d < array->dim_count; d++)
		flat = flat * array->dim[d] + at[d];
	return flat;
}

static struct array slice(struct gen *gen, const struct array *in, uint32_t dim, uint64_t lo,
			  uint64_t hi)
{
	struct array out = *in;
	uint64_t at[DIMS];

	out.dim[dim] = hi - lo;
	array_fill(gen, &out);
	for (uint64_t i = 0; i < volume_of(&out); i++) {
		index_of(&out, i, at);
		at[dim] += lo;
		out.id[i] = in->id[flat_of(in, at)];
	}
	return out;
}

static struct array join(struct gen *gen, const struct array *a, const struct array *b,
			 uint32_t dim)
{
	struct array out = *a;
	uint64_t at[DIMS];

	out.dim[dim] += b->dim[dim];
	array_fill(gen, &out);
	for (uint64_t i = 0; i < volume_of(&out); i++) {
		index_of(&out, i, at);
		if (at[dim] < a->dim[dim]) {
			out.id[i] = a->id[flat_of(a, at)];
		} else {
			at[dim] -= a->dim[dim];
			out.id[i] = b->id[flat_of(b, at)];
		}
	}
	return out;
}

static struct array permute(struct gen *gen, const struct array *in, const uint32_t *perm)
{
	struct array out = *in;
	uint64_t at[DIMS], from[DIMS];

	for (uint32_t d = 0; d < in->dim_count; d++)
		out.dim[d] = in->dim[perm[d]];
	array_fill(gen, &out);
	for (uint64_t i = 0; i < volume_of(&out); i++) {
		index_of(&out, i, at);
		for (uint32_t d = 0; d < in->dim_count; d++)
			from[perm[d]] = at[d];
		out.id[i] = in->id[flat_of(in, from)];
	}
	return out;
}

/* Rows (a, b) of each outer block change places: out row j*a+k is in row k*b+j. */
static struct array swap_rows(struct gen *gen, const struct array *in, uint64_t outer, uint64_t a,
			      uint64_t b)
{
	struct array out = *in;
	uint64_t at[DIMS];

	array_fill(gen, &out);
	for (uint64_t i = 0; i < volume_of(&out); i++) {
		index_of(&out, i, at);
		uint64_t o = at[0] / (a * b), j = at[0] % (a * b) / a, k = at[0] % a;
		assert(o < outer);
		at[0] = (o * a + k) * b + j;
		out.id[i] = in->id[flat_of(in, at)];
	}
	return out;
}

static void axis_of(const struct spot *spot, const char *axis, uint64_t *index, uint64_t *size)
{
	const struct gen_layout *l = spot->layout;
	uint32_t inner = l->dp * l->tp, rank = spot->rank;

	*size = 1;
	*index = 0;
	if (strcmp(axis, "dp") == 0) {
		*size = l->dp;
		*index = rank % inner / l->tp;
	} else if (strcmp(axis, "tp") == 0) {
		*size = l->tp;
		*index = rank % l->tp;
	} else if (strcmp(axis, "ep") == 0) {
		*size = l->ep;
		*index = rank % inner / l->etp;
	} else if (strcmp(axis, "etp") == 0) {
		*size = l->etp;
		*index = rank % l->etp;
	}
}

/* The experts of a rank at the spot's layer, in order: by a map, in turn, or in a row with one more
 * for the first ranks where they don't divide. */
static uint32_t experts_of(const struct spot *spot, int32_t *list)
{
	const struct gen_layout *l = spot->layout;
	uint64_t index, size, count = (uint64_t)spot->gen->expert_count;
	uint32_t used = 0;

	axis_of(spot, "ep", &index, &size);
	if (l->each > 0) {
		const int32_t *row = l->map + (uint64_t)spot->layer * l->each * size;
		memcpy(list, row + index * l->each, l->each * sizeof(*list));
		return l->each;
	}
	for (uint64_t e = index; l->round_robin && e < count; e += size)
		list[used++] = (int32_t)e;
	if (l->round_robin)
		return used;
	uint64_t each = count / size, more = count % size;
	uint64_t lo = index * each + MIN(index, more);
	for (uint64_t e = lo; e < lo + each + (index < more ? 1 : 0); e++)
		list[used++] = (int32_t)e;
	return used;
}

static struct array eval_split(const struct spot *spot, const struct node *x,
			       const struct array *in)
{
	uint64_t index, size, d = in->dim[x->dim], lo, hi;

	axis_of(spot, x->axis, &index, &size);
	if (x->op == CHUNK) {
		uint64_t units = (d + x->unit - 1) / x->unit,
			 each = (units + size - 1) / size * x->unit;
		lo = MIN(index * each, d);
		hi = MIN(lo + each, d);
	} else if (x->op == REP && size > d / x->unit) {
		uint64_t units = d / x->unit, which = index / (size / units);
		lo = which * x->unit;
		hi = lo + x->unit;
	} else {
		lo = index * d / size;
		hi = (index + 1) * d / size;
	}
	return slice(spot->gen, in, x->dim, lo, hi);
}

static struct array eval_tensor(const struct spot *spot, const struct node *x)
{
	const struct gen_tensor *t = &spot->gen->tensors[x->tensor];
	struct array out = {.dim_count = t->dim_count};
	uint64_t base = t->base;

	memcpy(out.dim, t->dim, t->dim_count * sizeof(out.dim[0]));
	array_fill(spot->gen, &out);
	if (t->layered)
		base += (uint64_t)spot->layer * t->volume *
			(t->expert ? (uint64_t)spot->gen->expert_count : 1);
	if (t->expert)
		base += (uint64_t)spot->expert * t->volume;
	for (uint64_t i = 0; i < t->volume; i++)
		out.id[i] = (uint32_t)(base + i);
	return out;
}

static struct array eval_stack(const struct spot *spot, const struct array *each, uint64_t count)
{
	struct array out = {.dim_count = each[0].dim_count + 1};
	uint64_t volume = volume_of(&each[0]);

	out.dim[0] = count;
	memcpy(&out.dim[1], each[0].dim, each[0].dim_count * sizeof(out.dim[0]));
	array_fill(spot->gen, &out);
	for (uint64_t e = 0; e < count; e++)
		memcpy(out.id + e * volume, each[e].id, volume * sizeof(uint32_t));
	return out;
}

static struct array eval_group(const struct spot *spot, const struct node *x,
			       const struct array *parts)
{
	struct array out = parts[0];
	uint64_t at[DIMS], each = 0;

	for (uint32_t p = 0; p < x->child_count; p++)
		each += parts[p].dim[x->dim] / x->groups;
	out.dim[x->dim] = each * x->groups;
	array_fill(spot->gen, &out);
	for (uint64_t i = 0; i < volume_of(&out); i++) {
		index_of(&out, i, at);
		uint64_t group = at[x->dim] / each, row = at[x->dim] % each;
		uint32_t p = 0;
		for (; row >= parts[p].dim[x->dim] / x->groups; p++)
			row -= parts[p].dim[x->dim] / x->groups;
		at[x->dim] = group * (parts[p].dim[x->dim] / x->groups) + row;
		out.id[i] = parts[p].id[flat_of(&parts[p], at)];
	}
	return out;
}

/* Recursion: as deep as the trees built below. */
static struct array eval(const struct spot *spot, const struct node *x)
{
	struct array in[16] = {0};

	if (x->op == STACK) {
		int32_t list[EXPERTS_MAX] = {0};
		uint32_t count = experts_of(spot, list);
		assert(count <= ARRAY_SIZE(in));
		for (uint32_t e = 0; e < MAX(count, 1u); e++) {
			struct spot at = *spot;
			at.expert = list[e];
			in[e] = eval(&at, x->child[0]);
		}
		return eval_stack(spot, in, count);
	}
	for (uint32_t i = 0; i < x->child_count; i++)
		in[i] = eval(spot, x->child[i]);
	switch (x->op) {
	case T:
		return eval_tensor(spot, x);
	case EVEN:
	case CHUNK:
	case REP:
		return eval_split(spot, x, &in[0]);
	case CONCAT:
		for (uint32_t i = 1; i < x->child_count; i++)
			in[0] = join(spot->gen, &in[0], &in[i], x->dim);
		return in[0];
	case GROUP:
		return eval_group(spot, x, in);
	case PAD: {
		struct array zeros = in[0];
		zeros.dim[x->dim] = (x->unit - in[0].dim[x->dim] % x->unit) % x->unit;
		array_fill(spot->gen, &zeros);
		return join(spot->gen, &in[0], &zeros, x->dim);
	}
	case PERMUTE:
		return permute(spot->gen, &in[0], x->perm);
	case FLAT:
		in[0].dim[0] = volume_of(&in[0]);
		in[0].dim_count = 1;
		return in[0];
	case RANGE:
		return slice(spot->gen, &in[0], x->dim, x->lo, x->hi);
	case SWAP:
		return swap_rows(spot->gen, &in[0], x->unit, x->lo, x->hi);
	case ONE:
		return eval_stack(spot, in, 1);
	case ZERO: {
		uint64_t index, size;
		axis_of(spot, x->axis, &index, &size);
		if (index != 0)
			memset(in[0].id, 0, volume_of(&in[0]) * sizeof(*in[0].id));
		return in[0];
	}
	case STACK:
		break;
	}
	return in[0];
}

/* ---- Asking. */
static bool layer_here(const struct spot *spot, int32_t layer)
{
	uint32_t stage = spot->rank / (spot->layout->dp * spot->layout->tp);

	return spot->layout->pp == 1 || (layer == 0) == (stage == 0);
}

static bool param_here(const struct spot *spot, const struct gen_param *param)
{
	uint32_t stage = spot->rank / (spot->layout->dp * spot->layout->tp);

	return spot->layout->pp == 1 || param->stage < 0 || (uint32_t)param->stage == stage;
}

static void name_put(const char *pattern, int32_t layer, int32_t expert, char *out, size_t bytes)
{
	size_t used = 0;

	for (const char *at = pattern; *at != '\0' && used + 12 < bytes;) {
		if (strncmp(at, "{L}", 3) == 0 || strncmp(at, "{E}", 3) == 0) {
			used += (size_t)snprintf(out + used, bytes - used, "%" PRId32,
						 at[1] == 'L' ? layer : expert);
			at += 3;
		} else {
			out[used++] = *at++;
		}
	}
	out[used] = '\0';
}

/* Walks the rank's params; stops at the name asked for. */
static uint32_t walk(struct spot *spot, const char *name, const struct gen_param **found)
{
	char text[128];
	uint32_t count = 0;

	*found = NULL;
	for (uint32_t p = 0; p < spot->layout->param_count; p++) {
		const struct gen_param *param = &spot->layout->params[p];
		int32_t list[EXPERTS_MAX] = {0};
		uint32_t experts = 1;
		if (!param_here(spot, param))
			continue;
		if (param->each_expert)
			experts = experts_of(spot, list);
		for (int32_t layer = 0; layer < (param->layered ? spot->gen->layer_count : 1);
		     layer++) {
			if (param->layered && !layer_here(spot, layer))
				continue;
			for (uint32_t e = 0; e < experts; e++) {
				name_put(param->name, layer, list[e], text, sizeof(text));
				count++;
				if (name == NULL || strcmp(text, name) != 0)
					continue;
				spot->layer = layer;
				spot->expert = list[e];
				*found = param;
				return count;
			}
		}
	}
	return count;
}

uint32_t gen_param_count(struct gen *gen, enum gen_side side, uint32_t rank)
{
	struct spot spot = {.gen = gen, .layout = gen->layouts[side], .rank = rank};
	const struct gen_param *found;

	return walk(&spot, NULL, &found);
}

const uint32_t *gen_ids(struct gen *gen, enum gen_side side, uint32_t rank, const char *name,
			uint64_t *count_out, enum ws_dtype *dtype_out)
{
	struct spot spot = {.gen = gen, .layout = gen->layouts[side], .rank = rank};
	const struct gen_param *param;

	arena_release(&gen->scratch);
	walk(&spot, name, &param);
	if (param == NULL)
		return NULL;
	struct array array = eval(&spot, param->x);
	*count_out = volume_of(&array);
	*dtype_out = param->dtype;
	return array.id;
}

void gen_value(uint32_t id, enum ws_dtype dtype, void *out)
{
	uint16_t half = id == 0 ? 0 : (uint16_t)(1 + id % 32639); /* a finite bf16, exact in f32 */
	uint32_t word = dtype == WS_F32 ? (uint32_t)half << 16 : id;
	uint64_t wide = id == 0 ? 0 : mix64(id);

	if (dtype == WS_BF16)
		memcpy(out, &half, sizeof(half));
	else if (dtype == WS_U64)
		memcpy(out, &wide, sizeof(wide));
	else
		memcpy(out, &word, sizeof(word));
}
