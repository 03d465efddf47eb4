/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random layouts and their oracle.  A layout is a list of params, each a small tree of the
 * expression language; the tree is printed for the manifest and evaluated here, array by array.
 */
#include "tests/gen.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DIMS 6
#define AXES 6

struct gen_tensor {
	const char *name;
	enum ws_dtype dtype;
	uint32_t dim_count;
	uint64_t dim[4];
	bool layered, expert;
	uint64_t volume, base; /* first id of its first layer and expert */
};

enum op { T, EVEN, CHUNK, REP, CONCAT, GROUP, PAD, STACK, PERMUTE, FLAT, RANGE, SWAP };

struct node {
	enum op op;
	uint32_t tensor, dim, unit, lo, hi, groups;
	uint32_t perm[3], perm_count;
	const char *axis;
	uint32_t child_count;
	struct node *child[4];
};

struct gen_param {
	const char *name;
	struct node *x;
	enum ws_dtype dtype;
	bool layered, each_expert;
	const char *mesh;
	int stage; /* of one without layers: -1 any, 0 first, 1 last */
};

struct gen_layout {
	uint32_t pp, dp, tp, ep, etp;
	uint32_t param_count;
	struct gen_param params[64];
};

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

uint32_t gen_below(struct gen *gen, uint32_t limit)
{
	gen->random += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(mix64(gen->random) % limit);
}

/* ---- The oracle. */
static uint64_t volume_of(const struct array *array)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < array->dim_count; d++)
		volume *= array->dim[d];
	return volume;
}

static void array_fill(struct gen *gen, struct array *array)
{
	array->id = arena_array(&gen->arena, volume_of(array), sizeof(uint32_t));
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

/* The experts [lo, hi) of a rank: the first ranks get one more where they don't divide. */
static void experts_of(const struct spot *spot, uint64_t *lo, uint64_t *hi)
{
	uint64_t index, size, count = (uint64_t)spot->gen->expert_count;

	axis_of(spot, "ep", &index, &size);
	uint64_t each = count / size, more = count % size;
	*lo = index * each + MIN(index, more);
	*hi = *lo + each + (index < more ? 1 : 0);
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
	struct array out = {0};
	bool first = true;

	for (uint32_t g = 0; g < x->groups; g++)
		for (uint32_t p = 0; p < x->child_count; p++) {
			uint64_t share = parts[p].dim[x->dim] / x->groups;
			struct array part =
				slice(spot->gen, &parts[p], x->dim, g * share, (g + 1) * share);
			out = first ? part : join(spot->gen, &out, &part, x->dim);
			first = false;
		}
	return out;
}

/* Recursion: as deep as the trees built below. */
static struct array eval(const struct spot *spot, const struct node *x)
{
	struct array in[16] = {0};

	if (x->op == STACK) {
		uint64_t lo, hi;
		experts_of(spot, &lo, &hi);
		assert(hi - lo <= ARRAY_SIZE(in));
		for (uint64_t e = lo; e < MAX(hi, lo + 1); e++) {
			struct spot at = *spot;
			at.expert = (int32_t)e;
			in[e - lo] = eval(&at, x->child[0]);
		}
		return eval_stack(spot, in, hi - lo);
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
	case STACK:
		break;
	}
	return in[0];
}

/* ---- Building trees. */
static struct node *node_new(struct gen *gen, struct node like)
{
	struct node *node = arena_alloc(&gen->arena, sizeof(*node));

	assert(node != NULL);
	*node = like;
	return node;
}

static struct node *t(struct gen *gen, const char *name)
{
	uint32_t i = 0;

	while (strcmp(gen->tensors[i].name, name) != 0)
		i++;
	return node_new(gen, (struct node){.op = T, .tensor = i});
}

static struct node *one(struct gen *gen, struct node like, struct node *child)
{
	like.child_count = 1;
	like.child[0] = child;
	return node_new(gen, like);
}

static struct node *split(struct gen *gen, enum op op, struct node *x, uint32_t dim,
			  const char *axis, uint32_t unit)
{
	return one(gen, (struct node){.op = op, .dim = dim, .axis = axis, .unit = unit}, x);
}

/* A cut of a 2-D tensor whose dims divide by what even splits need. */
static struct node *random_cut(struct gen *gen, struct node *x, bool experts)
{
	const char *tp = experts ? "etp" : "tp", *dp = experts ? "etp" : "dp";

	switch (gen_below(gen, 9)) {
	case 0:
		return x;
	case 1:
		return split(gen, CHUNK, x, 0, dp, 1 + gen_below(gen, 3));
	case 2:
		return split(gen, EVEN, x, 0, tp, 1);
	case 3:
		return split(gen, EVEN, x, 1, tp, 1);
	case 4:
		return experts ? x : split(gen, CHUNK, split(gen, EVEN, x, 1, tp, 1), 0, dp, 1);
	case 5:
		return experts ? x : split(gen, CHUNK, split(gen, EVEN, x, 0, tp, 1), 0, dp, 1);
	case 6:
		return experts ? x
			       : split(gen, CHUNK, one(gen, (struct node){.op = FLAT}, x), 0, dp,
				       1);
	case 7:
		return one(gen, (struct node){.op = PERMUTE, .perm = {1, 0}, .perm_count = 2},
			   split(gen, EVEN, x, 0, tp, 1));
	default:
		return split(gen, CHUNK, x, 1, dp, 1);
	}
}

static struct gen_param *param_add(struct gen *gen, struct gen_layout *layout, const char *name,
				   struct node *x, bool layered, const char *tensor)
{
	struct gen_param *param = &layout->params[layout->param_count++];
	const struct gen_tensor *like = &gen->tensors[t(gen, tensor)->tensor];

	assert(layout->param_count <= ARRAY_SIZE(layout->params));
	*param = (struct gen_param){.name = name,
				    .x = x,
				    .dtype = like->dtype,
				    .layered = layered,
				    .mesh = "d",
				    .stage = -1};
	if (gen->casts && layout == gen->layouts[GEN_TRAINER] && like->dtype == WS_BF16)
		param->dtype = WS_F32;
	return param;
}

#define L "model.layers.{L}."
#define E L "mlp.experts.{E}."

static void layout_attention(struct gen *gen, struct gen_layout *layout)
{
	struct node *q = t(gen, L "q"), *k = t(gen, L "k"), *v = t(gen, L "v");
	uint32_t head = (uint32_t)gen->tensors[k->tensor].dim[0] / 12;
	struct node *fused;

	switch (gen_below(gen, 4)) {
	case 0:
		param_add(gen, layout, L "q", random_cut(gen, q, false), true, L "q");
		param_add(gen, layout, L "k", random_cut(gen, k, false), true, L "k");
		param_add(gen, layout, L "v", random_cut(gen, v, false), true, L "v");
		return;
	case 1:
		fused = node_new(gen, (struct node){.op = GROUP,
						    .groups = 12,
						    .child_count = 3,
						    .child = {q, k, v}});
		param_add(gen, layout, L "qkv", split(gen, EVEN, fused, 0, "tp", 1), true, L "q");
		return;
	case 2:
		fused = node_new(gen,
				 (struct node){.op = CONCAT,
					       .child_count = 3,
					       .child = {split(gen, EVEN, q, 0, "tp", 1),
							 split(gen, REP, k, 0, "tp", head),
							 split(gen, REP, v, 0, "tp", 12 * head)}});
		param_add(gen, layout, L "qkv", fused, true, L "q");
		return;
	default:
		/* rows in another order, and a hand-made cut into two params */
		q = one(gen,
			(struct node){.op = SWAP,
				      .unit = 3,
				      .lo = 2,
				      .hi = (uint32_t)gen->tensors[q->tensor].dim[0] / 6},
			q);
		param_add(gen, layout, L "q", q, true, L "q");
		param_add(gen, layout, L "k.a",
			  one(gen, (struct node){.op = RANGE, .lo = 0, .hi = 5}, k), true, L "k");
		param_add(gen, layout, L "k.b",
			  one(gen, (struct node){.op = RANGE, .lo = 5, .hi = 12 * head}, k), true,
			  L "k");
		param_add(gen, layout, L "v", split(gen, CHUNK, v, 0, "dp", 1), true, L "v");
	}
}

static void layout_experts(struct gen *gen, struct gen_layout *layout)
{
	struct node *gate = t(gen, E "gate"), *up = t(gen, E "up"), *down = t(gen, E "down");
	struct gen_param *added[3] = {0};

	if (gen_below(gen, 3) == 0) {
		added[0] = param_add(gen, layout, E "gate", random_cut(gen, gate, true), true,
				     E "gate");
		added[1] = param_add(gen, layout, E "up", random_cut(gen, up, true), true, E "up");
		added[2] = param_add(gen, layout, E "down", random_cut(gen, down, true), true,
				     E "down");
		for (int i = 0; i < 3; i++)
			added[i]->each_expert = true;
	} else {
		struct node *pair = node_new(gen, (struct node){.op = CONCAT, .child_count = 2});
		bool swapped = gen_below(gen, 2) == 0;
		pair->child[0] = split(gen, EVEN, swapped ? up : gate, 0, "etp", 1);
		pair->child[1] = split(gen, EVEN, swapped ? gate : up, 0, "etp", 1);
		struct node *w13 = one(gen, (struct node){.op = STACK}, pair);
		struct node *w2 =
			one(gen, (struct node){.op = STACK}, split(gen, EVEN, down, 1, "etp", 1));
		if (gen_below(gen, 3) == 0)
			w2 = split(gen, CHUNK, one(gen, (struct node){.op = STACK}, down), 1, "etp",
				   1);
		added[0] = param_add(gen, layout, L "mlp.experts.w13", w13, true, E "gate");
		added[1] = param_add(gen, layout, L "mlp.experts.w2", w2, true, E "down");
	}
	for (int i = 0; i < 3; i++)
		if (added[i] != NULL)
			added[i]->mesh = "e";
}

static void layout_rest(struct gen *gen, struct gen_layout *layout)
{
	struct node *embed = t(gen, "model.embed"), *cube = t(gen, L "cube"),
		    *head = t(gen, "head");

	if (gen_below(gen, 2) == 0) {
		uint32_t unit = layout->tp * (1 + gen_below(gen, 4));
		embed = split(gen, EVEN, one(gen, (struct node){.op = PAD, .unit = unit}, embed), 0,
			      "tp", 1);
	} else {
		embed = split(gen, CHUNK, embed, 0, gen_below(gen, 2) == 0 ? "dp" : "tp", 1);
	}
	param_add(gen, layout, "model.embed", embed, false, "model.embed")->stage =
		gen_below(gen, 2) == 0 ? 0 : -1;
	if (gen_below(gen, 2) == 0) /* tied: the same tensor in a second param */
		param_add(gen, layout, "model.tied", t(gen, "model.embed"), false, "model.embed");
	param_add(gen, layout, L "o", random_cut(gen, t(gen, L "o"), false), true, L "o");
	param_add(gen, layout, L "bias",
		  gen_below(gen, 2) == 0 ? t(gen, L "bias")
					 : split(gen, CHUNK, t(gen, L "bias"), 0, "dp", 1),
		  true, L "bias");
	switch (gen_below(gen, 4)) {
	case 0:
		cube = one(gen, (struct node){.op = PERMUTE, .perm = {2, 0, 1}, .perm_count = 3},
			   cube);
		break;
	case 1:
		cube = split(gen, EVEN, cube, 1, "tp", 1);
		break;
	case 2:
		cube = split(gen, CHUNK, split(gen, EVEN, cube, 1, "tp", 1), 0, "dp", 1);
		break;
	default:
		cube = split(gen, CHUNK, cube, 2, "dp", 1);
	}
	param_add(gen, layout, L "cube", cube, true, L "cube");
	param_add(gen, layout, "head", random_cut(gen, head, false), false, "head")->stage =
		gen_below(gen, 2) == 0 ? 1 : -1;
}

static struct gen_layout *layout_make(struct gen *gen, enum gen_side side)
{
	static const uint32_t ways[] = {1, 2, 3, 4};
	struct gen_layout *layout = arena_alloc(&gen->arena, sizeof(*layout));

	assert(layout != NULL);
	gen->layouts[side] = layout;
	layout->pp = 1 + gen_below(gen, (uint32_t)MIN(gen->layer_count, 2));
	layout->dp = ways[gen_below(gen, 4)];
	layout->tp = ways[gen_below(gen, 4)];
	uint32_t inner = layout->dp * layout->tp;
	layout->etp = gen_below(gen, 2) == 0 ? 1 : layout->tp;
	layout->ep = inner / layout->etp;
	/* A stack over no experts is another test's business. */
	if (layout->ep > (uint32_t)gen->expert_count) {
		layout->ep = 1;
		layout->etp = inner;
	}
	if (12 % layout->etp != 0) {
		layout->dp = layout->ep = 1;
		layout->etp = layout->tp;
	}
	layout_attention(gen, layout);
	layout_experts(gen, layout);
	layout_rest(gen, layout);
	return layout;
}

static void tensor_add(struct gen *gen, struct gen_tensor tensor)
{
	uint64_t copies = 1;

	tensor.volume = 1;
	for (uint32_t d = 0; d < tensor.dim_count; d++)
		tensor.volume *= tensor.dim[d];
	tensor.base = gen->id_count + 1;
	if (tensor.layered)
		copies *= (uint64_t)gen->layer_count;
	if (tensor.expert)
		copies *= (uint64_t)gen->expert_count;
	gen->id_count += copies * tensor.volume;
	gen->tensors[gen->tensor_count++] = tensor;
}

void gen_open(struct gen *gen, uint32_t seed)
{
	*gen = (struct gen){.random = mix64(seed + 1ull)};
	gen->casts = gen_below(gen, 3) == 0;
	gen->layer_count = 1 + (int32_t)gen_below(gen, 3);
	gen->expert_count = 1 + (int32_t)gen_below(gen, 6);
	gen->tensors = arena_array(&gen->arena, 16, sizeof(*gen->tensors));
	assert(gen->tensors != NULL);
	uint64_t h = 12 * (1 + gen_below(gen, 3)), head = 1 + gen_below(gen, 3),
		 i = 12 * (1 + gen_below(gen, 2));
	enum ws_dtype kind = gen->casts || gen_below(gen, 2) == 0 ? WS_BF16 : WS_U32;
	tensor_add(
		gen,
		(struct gen_tensor){
			"model.embed", kind, 2, {5 + gen_below(gen, 40), h}, false, false, 0, 0});
	tensor_add(gen, (struct gen_tensor){L "q", kind, 2, {24 * head, h}, true, false, 0, 0});
	tensor_add(gen, (struct gen_tensor){L "k", kind, 2, {12 * head, h}, true, false, 0, 0});
	tensor_add(gen, (struct gen_tensor){L "v", kind, 2, {12 * head, h}, true, false, 0, 0});
	tensor_add(gen, (struct gen_tensor){L "o", kind, 2, {h, 24 * head}, true, false, 0, 0});
	tensor_add(gen, (struct gen_tensor){
				L "bias", WS_U64, 1, {1 + gen_below(gen, 30)}, true, false, 0, 0});
	tensor_add(gen,
		   (struct gen_tensor){
			   L "cube", WS_U32, 3, {3, 12, 1 + gen_below(gen, 6)}, true, false, 0, 0});
	tensor_add(gen, (struct gen_tensor){E "gate", kind, 2, {i, h}, true, true, 0, 0});
	tensor_add(gen, (struct gen_tensor){E "up", kind, 2, {i, h}, true, true, 0, 0});
	tensor_add(gen, (struct gen_tensor){E "down", kind, 2, {h, i}, true, true, 0, 0});
	tensor_add(gen, (struct gen_tensor){"head", kind, 2, {12, h}, false, false, 0, 0});
	layout_make(gen, GEN_TRAINER);
	layout_make(gen, GEN_ROLLOUT);
}

void gen_close(struct gen *gen)
{
	arena_release(&gen->arena);
}

/* ---- Printing. */
static void print_list(struct writer *out, const uint32_t *list, uint32_t count)
{
	write_format(out, "[");
	for (uint32_t i = 0; i < count; i++)
		write_format(out, "%s%" PRIu32, i == 0 ? "" : ",", list[i]);
	write_format(out, "]");
}

static void print_node(struct gen *gen, struct writer *out, const struct node *x)
{
	static const char *const letters[] = {"t", "s", "s", "s",  "c", "g",
					      "p", "k", "x", "fl", "r", "il"};

	write_format(out, "[\"%s\"", letters[x->op]);
	if (x->op == T)
		write_format(out, ",\"%s\"", gen->tensors[x->tensor].name);
	if (x->op == CONCAT || x->op == GROUP)
		write_format(out, ",%" PRIu32, x->dim);
	if (x->op == GROUP)
		write_format(out, ",%" PRIu32, x->groups);
	if (x->op == STACK)
		write_format(out, ",\"E\"");
	for (uint32_t i = 0; i < x->child_count; i++) {
		write_format(out, ",");
		print_node(gen, out, x->child[i]);
	}
	switch (x->op) {
	case EVEN:
		write_format(out, ",%" PRIu32 ",\"%s\"", x->dim, x->axis);
		break;
	case CHUNK:
	case REP:
		write_format(out, ",%" PRIu32 ",\"%s\",{\"mode\":\"%s\",\"unit\":%" PRIu32 "}",
			     x->dim, x->axis, x->op == REP ? "rep" : "chunk", x->unit);
		break;
	case PAD:
		write_format(out, ",%" PRIu32 ",%" PRIu32, x->dim, x->unit);
		break;
	case PERMUTE:
		write_format(out, ",");
		print_list(out, x->perm, x->perm_count);
		break;
	case RANGE:
		write_format(out, ",%" PRIu32 ",%" PRIu32 ",%" PRIu32, x->dim, x->lo, x->hi);
		break;
	case SWAP:
		write_format(out, ",0,%" PRIu32 ",%" PRIu32 ",%" PRIu32, x->unit, x->lo, x->hi);
		break;
	case T:
	case CONCAT:
	case GROUP:
	case STACK:
	case FLAT:
		break;
	}
	write_format(out, "]");
}

static void print_tensors(const struct gen *gen, struct writer *out)
{
	write_format(out, "\"tensors\":[");
	for (uint32_t i = 0; i < gen->tensor_count; i++) {
		const struct gen_tensor *tensor = &gen->tensors[i];
		write_format(out, "%s{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":[",
			     i == 0 ? "" : ",", tensor->name, ws_dtype_name(tensor->dtype));
		for (uint32_t d = 0; d < tensor->dim_count; d++)
			write_format(out, "%s%" PRIu64, d == 0 ? "" : ",", tensor->dim[d]);
		write_format(out, "]");
		if (tensor->layered)
			write_format(out, ",\"layers\":[0,%" PRId32 "]", gen->layer_count);
		if (tensor->expert)
			write_format(out, ",\"experts\":[0,%" PRId32 "]", gen->expert_count);
		write_format(out, "}");
	}
	write_format(out, "],");
}

const char *gen_manifest(struct gen *gen, enum gen_side side)
{
	const struct gen_layout *l = gen->layouts[side];
	struct writer out = WRITER_INIT(1u << 20);

	write_format(
		&out,
		"{\"ws_manifest\":1,\"side\":\"%s\",\"framework\":\"gen\",\"model\":\"gen\",\"world\":%" PRIu32
		",",
		side == GEN_TRAINER ? "trainer" : "rollout", l->pp * l->dp * l->tp);
	print_tensors(gen, &out);
	write_format(&out,
		     "\"meshes\":{\"d\":{\"axes\":[[\"pp\",%" PRIu32 "],[\"dp\",%" PRIu32
		     "],[\"tp\",%" PRIu32 "]]},\"e\":{\"axes\":[[\"pp\",%" PRIu32
		     "],[\"ep\",%" PRIu32 "],[\"etp\",%" PRIu32 "]]}},",
		     l->pp, l->dp, l->tp, l->pp, l->ep, l->etp);
	write_format(&out, "\"layers\":{\"all\":[0,%" PRId32 "]},\"experts\":{\"axis\":\"ep\"},",
		     gen->layer_count);
	if (l->pp == 2) { /* the stage of each layer */
		write_format(&out, "\"stages\":{\"axis\":\"pp\",\"of\":[0");
		for (int32_t layer = 1; layer < gen->layer_count; layer++)
			write_format(&out, ",1");
		write_format(&out, "]},");
	}
	if (gen->casts)
		write_format(&out, "\"casts\":[\"f32:bf16\"],");
	write_format(&out, "\"params\":[");
	for (uint32_t i = 0; i < l->param_count; i++) {
		const struct gen_param *param = &l->params[i];
		write_format(&out, "%s{\"p\":\"%s\",\"mesh\":\"%s\",\"dtype\":\"%s\",",
			     i == 0 ? "" : ",", param->name, param->mesh,
			     ws_dtype_name(param->dtype));
		if (param->layered)
			write_format(&out, "\"each\":{\"L\":\"all\"%s},",
				     param->each_expert ? ",\"E\":\"ep\"" : "");
		if (param->stage >= 0 && l->pp == 2)
			write_format(&out, "\"stage\":\"%s\",",
				     param->stage == 0 ? "first" : "last");
		write_format(&out, "\"x\":");
		print_node(gen, &out, param->x);
		write_format(&out, "}");
	}
	write_format(&out, "]}");
	assert(!out.failed);
	const char *text = arena_copy(&gen->arena, out.bytes, out.count);
	writer_release(&out);
	return text;
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
		uint64_t lo = 0, hi = 1;
		if (!param_here(spot, param))
			continue;
		if (param->each_expert)
			experts_of(spot, &lo, &hi);
		for (int32_t layer = 0; layer < (param->layered ? spot->gen->layer_count : 1);
		     layer++) {
			if (param->layered && !layer_here(spot, layer))
				continue;
			for (uint64_t e = lo; e < hi; e++) {
				name_put(param->name, layer, (int32_t)e, text, sizeof(text));
				count++;
				if (name == NULL || strcmp(text, name) != 0)
					continue;
				spot->layer = layer;
				spot->expert = (int32_t)e;
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
