/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random models and layouts.  A layout is a list of params, each a small tree of the expression
 * language, which is printed here for the manifest and evaluated in gen_oracle.c.
 */
#include <assert.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "tests/gen_tree.h"

uint32_t gen_below(struct gen *gen, uint32_t limit)
{
	gen->random += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(mix64(gen->random) % limit);
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

	switch (gen_below(gen, 12)) {
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
	case 8: /* nested, with units that don't fit */
		x = split(gen, CHUNK, x, gen_below(gen, 2), tp, 1 + gen_below(gen, 5));
		return experts ? x
			       : split(gen, CHUNK, x, gen_below(gen, 2), dp, 1 + gen_below(gen, 5));
	case 9:
		x = experts ? x : split(gen, CHUNK, x, 0, dp, 1 + gen_below(gen, 7));
		x = one(gen, (struct node){.op = FLAT}, split(gen, CHUNK, x, 1, tp, 1));
		return one(gen, (struct node){.op = PAD, .unit = 1 + gen_below(gen, 40)}, x);
	case 10:
		x = one(gen, (struct node){.op = FLAT}, x);
		return split(gen, CHUNK, split(gen, CHUNK, x, 0, tp, 1), 0, experts ? "one" : dp,
			     3);
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
	struct node *shared = t(gen, L "mlp.shared");
	struct gen_param *added[4] = {0};
	bool fused = false;

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
		fused = gen_below(gen, 3) == 0;
		if (fused) { /* the shared expert is the last slot */
			struct node *last = one(gen, (struct node){.op = ONE},
						split(gen, EVEN, shared, 1, "etp", 1));
			w2 = node_new(
				gen,
				(struct node){.op = CONCAT, .child_count = 2, .child = {w2, last}});
		} else if (gen_below(gen, 3) == 0) {
			w2 = split(gen, CHUNK, one(gen, (struct node){.op = STACK}, down),
				   gen_below(gen, 3), "etp", 1);
		}
		layout->each = (uint32_t)gen->expert_count / layout->ep + 1 + gen_below(gen, 2);
		layout->each = gen_below(gen, 2) == 0 ? layout->each : 0;
		added[0] = param_add(gen, layout, L "mlp.experts.w13", w13, true, E "gate");
		added[1] = param_add(gen, layout, L "mlp.experts.w2", w2, true, E "down");
	}
	if (!fused)
		added[3] = param_add(gen, layout, L "mlp.shared", random_cut(gen, shared, true),
				     true, L "mlp.shared");
	for (int i = 0; i < 4; i++)
		if (added[i] != NULL)
			added[i]->mesh = "e";
}

/* Each layer's slots: every expert, then some again, shuffled. */
static void layout_map(struct gen *gen, struct gen_layout *layout)
{
	uint32_t slots = layout->each * layout->ep, experts = (uint32_t)gen->expert_count;

	layout->map = arena_array(&gen->arena, (size_t)slots * (size_t)gen->layer_count,
				  sizeof(*layout->map));
	assert(layout->map != NULL);
	for (int32_t l = 0; l < gen->layer_count; l++) {
		int32_t *row = layout->map + (size_t)l * slots;
		for (uint32_t s = 0; s < slots; s++)
			row[s] = (int32_t)(s < experts ? s : gen_below(gen, experts));
		for (uint32_t s = slots; s > 1; s--) {
			uint32_t with = gen_below(gen, s);
			int32_t last = row[s - 1];
			row[s - 1] = row[with];
			row[with] = last;
		}
	}
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
	struct node *bias = t(gen, L "bias");
	if (gen_below(gen, 3) == 0)
		bias = one(gen, (struct node){.op = ZERO, .axis = "tp"}, bias);
	else if (gen_below(gen, 2) == 0)
		bias = split(gen, CHUNK, bias, 0, "dp", 1);
	param_add(gen, layout, L "bias", bias, true, L "bias");
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
	static const uint32_t ways[] = {1, 2, 3, 4, 6};
	struct gen_layout *layout = arena_alloc(&gen->arena, sizeof(*layout));

	assert(layout != NULL);
	gen->layouts[side] = layout;
	layout->tp = ways[gen_below(gen, 5)];
	layout->dp = ways[gen_below(gen, layout->tp > 3 ? 2 : 4)];
	layout->pp = gen->layer_count > 1 && gen_below(gen, 4) == 0 ? 2 : 1;
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
	layout->round_robin = layout->each == 0 && gen_below(gen, 2) == 0;
	if (layout->each > 0)
		layout_map(gen, layout);
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
	/* Arrays come and go by the thousand: keep their pages. */
	mallopt(M_MMAP_THRESHOLD, 1 << 28);
	mallopt(M_TRIM_THRESHOLD, 1 << 28);
	*gen = (struct gen){.random = mix64(seed + 1ull)};
	gen->casts = gen_below(gen, 3) == 0;
	gen->layer_count = 1 + (int32_t)gen_below(gen, 3);
	gen->expert_count = 1 + (int32_t)gen_below(gen, 6);
	gen->tensors = arena_array(&gen->arena, 16, sizeof(*gen->tensors));
	assert(gen->tensors != NULL);
	uint64_t h = 12 * (1 + gen_below(gen, 5)), head = 1 + gen_below(gen, 4),
		 i = 12 * (1 + gen_below(gen, 3));
	enum ws_dtype kind = gen->casts || gen_below(gen, 2) == 0 ? WS_BF16 : WS_U32;
	tensor_add(
		gen,
		(struct gen_tensor){
			"model.embed", kind, 2, {5 + gen_below(gen, 150), h}, false, false, 0, 0});
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
	tensor_add(gen, (struct gen_tensor){L "mlp.shared", kind, 2, {h, i}, true, false, 0, 0});
	tensor_add(gen, (struct gen_tensor){"head", kind, 2, {12, h}, false, false, 0, 0});
	layout_make(gen, GEN_TRAINER);
	layout_make(gen, GEN_ROLLOUT);
}

void gen_close(struct gen *gen)
{
	arena_release(&gen->scratch);
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
	static const char *const letters[] = {"t", "s", "s",  "s", "c",	 "g", "p",
					      "k", "x", "fl", "r", "il", "k", "z"};

	write_format(out, "[\"%s\"", letters[x->op]);
	if (x->op == T)
		write_format(out, ",\"%s\"", gen->tensors[x->tensor].name);
	if (x->op == CONCAT || x->op == GROUP)
		write_format(out, ",%" PRIu32, x->dim);
	if (x->op == GROUP)
		write_format(out, ",%" PRIu32, x->groups);
	if (x->op == STACK || x->op == ONE)
		write_format(out, x->op == ONE ? ",1" : ",\"E\"");
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
	case ZERO:
		write_format(out, ",\"%s\"", x->axis);
		break;
	case T:
	case CONCAT:
	case GROUP:
	case STACK:
	case FLAT:
	case ONE:
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

static void print_experts(const struct gen *gen, struct writer *out, const struct gen_layout *l)
{
	write_format(out, "\"experts\":{\"axis\":\"ep\"");
	if (l->round_robin)
		write_format(out, ",\"place\":\"round_robin\"");
	if (l->each > 0)
		write_format(out, ",\"map_layers\":[0,%" PRId32 "],\"map\":[", gen->layer_count);
	for (int32_t layer = 0; l->each > 0 && layer < gen->layer_count; layer++) {
		write_format(out, layer == 0 ? "[" : ",[");
		for (uint32_t s = 0; s < l->each * l->ep; s++)
			write_format(out, "%s%" PRId32 "%s",
				     s == 0		? "["
				     : s % l->each == 0 ? ",["
							: ",",
				     l->map[(uint32_t)layer * l->each * l->ep + s],
				     s % l->each + 1 == l->each ? "]" : "");
		write_format(out, "]");
	}
	write_format(out, "%s},", l->each > 0 ? "]" : "");
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
	write_format(&out, "\"axes\":{\"one\":1},\"layers\":{\"all\":[0,%" PRId32 "]},",
		     gen->layer_count);
	print_experts(gen, &out, l);
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
