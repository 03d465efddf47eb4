/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantized params: a manifest's "schemes", the scale that goes with each weight, and where its
 * values lie.  A scale has its weight's expression; what differs is the unit: a block of the
 * canonical weight is one element of the canonical scale.  So the weight's pieces are found
 * first, and each must end between blocks.
 */
#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define FORM_VISITS    8  /* what a form costs of a manifest's visits; a piece costs one more */
#define BLOCK_SIDE_MIN 16 /* of blocks that are named as a way out */

/* ---- "schemes". */

static enum ws_dtype code_dtype(const char *name)
{
	if (name != NULL && strcmp(name, "e4m3") == 0)
		return WS_F8_E4M3;
	return name != NULL && strcmp(name, "e5m2") == 0 ? WS_F8_E5M2 : WS_NONE;
}

static enum ws_dtype scale_dtype(const char *name)
{
	static const enum ws_dtype dtypes[] = {WS_F32, WS_BF16, WS_F8_E8M0};
	enum ws_dtype dtype = name == NULL ? WS_F32 : ws_dtype_parse(name);
	if (name != NULL && strcmp(name, "ue8m0") == 0)
		return WS_F8_E8M0;
	for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++) {
		if (dtypes[i] == dtype)
			return dtype;
	}
	return WS_NONE;
}

static void parse_block(struct parse *parse, const struct json *block, struct quant_scheme *scheme)
{
	bool fits = (block != NULL) == (scheme->kind == SCHEME_BLOCK);
	scheme->block[0] = scheme->kind == SCHEME_CHANNEL ? 1 : 0;
	for (uint32_t d = 0; fits && block != NULL && d < 2; d++) {
		const struct json *side = json_at(block, d);
		fits = block->count == 2 && side->is_integer && side->integer >= 1;
		scheme->block[d] = fits ? (uint64_t)side->integer : 1;
	}
	if (fits)
		return;
	scheme->block[0] = scheme->block[1] = 1; /* nothing is torn besides */
	findings_add(&parse->found, "quant", scheme->name,
		     "\"block\" must be two integers from 1 on, and goes with kind "
		     "\"block\" only");
}

/* What a block's maximum is at least; lib/convert has it as an f32. */
static double parse_eps(struct parse *parse, const struct json *eps, const char *scheme)
{
	if (eps == NULL)
		return 0;
	if (eps->type == JSON_NUMBER && eps->number >= 0 && eps->number <= FLT_MAX)
		return eps->number;
	findings_add(&parse->found, "quant", scheme,
		     "\"eps\" must be a number from 0 on that an f32 holds");
	return 0;
}

/* A block of zeros has the scale eps / largest: 0 times an infinite reciprocal would be NaN. */
static void check_eps(struct parse *parse, const struct quant_scheme *scheme)
{
	double least = 0x1p-128 * (scheme->code == WS_F8_E5M2 ? 57344 : 448);
	if (!scheme->reciprocal || scheme->eps == 0 || scheme->eps > least)
		return;
	findings_add(
		&parse->found, "quant", scheme->name,
		"\"eps\" is %g, and with \"recip\" must be 0 or above %.3g, so that 1 / scale is "
		"finite",
		scheme->eps, least);
}

static bool parse_flag(struct parse *parse, const struct json *json, const char *key,
		       const char *scheme)
{
	const struct json *flag = json_get(json, key);
	if (flag != NULL && flag->type != JSON_TRUE && flag->type != JSON_FALSE)
		findings_add(&parse->found, "quant", scheme, "\"%s\" must be true or false", key);
	return json_true(json, key);
}

static void parse_scheme(struct parse *parse, const struct json *json, struct quant_scheme *scheme)
{
	static const char *const kinds[] = {
		[SCHEME_BLOCK] = "block", [SCHEME_CHANNEL] = "channel", [SCHEME_TENSOR] = "tensor"};
	const char *kind = json_text(json, "kind", ""), *name = scheme->name;
	uint32_t k = 0;
	while (k < ARRAY_SIZE(kinds) && strcmp(kinds[k], kind) != 0)
		k++;
	if (k == ARRAY_SIZE(kinds))
		findings_add(&parse->found, "quant", name,
			     "\"kind\" must be \"block\", \"channel\" or \"tensor\", not '%s'",
			     kind);
	scheme->kind = k == ARRAY_SIZE(kinds) ? SCHEME_TENSOR : (enum scheme_kind)k;
	scheme->suffix = parse_text(parse, json, "suffix", name);
	if (scheme->suffix == NULL)
		scheme->suffix = scheme->kind == SCHEME_BLOCK ? "_scale_inv" : "_scale";
	scheme->code = code_dtype(json_text(json, "fmt", NULL));
	if (scheme->code == WS_NONE)
		findings_add(&parse->found, "quant", name, "\"fmt\" must be \"e4m3\" or \"e5m2\"");
	scheme->scale = scale_dtype(json_text(json, "scale", NULL));
	if (scheme->scale == WS_NONE)
		findings_add(&parse->found, "quant", name,
			     "\"scale\" must be \"f32\", \"bf16\" or \"ue8m0\"");
	scheme->eps = parse_eps(parse, json_get(json, "eps"), name);
	scheme->pow2 = parse_flag(parse, json, "pow2", name);
	scheme->reciprocal = parse_flag(parse, json, "recip", name);
	check_eps(parse, scheme);
	if (scheme->scale == WS_F8_E8M0 && !scheme->pow2)
		findings_add(&parse->found, "quant", name,
			     "scales of dtype ue8m0 are powers of two: it needs \"pow2\": true");
	if (k < ARRAY_SIZE(kinds))
		parse_block(parse, json_get(json, "block"), scheme);
}

void parse_schemes(struct parse *parse, const struct json *json)
{
	static const char *const keys[] = {"kind", "block", "fmt",   "scale", "suffix",
					   "eps",  "pow2",  "recip", NULL};
	struct manifest *manifest = parse->manifest;
	if (json == NULL)
		return;
	if (!parse_named(parse, json, "quant", "schemes"))
		return;
	manifest->schemes = parse_alloc(parse, json->count, sizeof(*manifest->schemes));
	if (manifest->schemes == NULL)
		return;
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		struct quant_scheme *scheme = &manifest->schemes[manifest->scheme_count];
		if (!parse_keys(parse, it, it->key, keys))
			continue;
		scheme->name = parse_copy(parse, it->key);
		if (scheme->name == NULL)
			return;
		parse_scheme(parse, it, scheme);
		manifest->scheme_count++;
	}
}

const struct quant_scheme *scheme_find(const struct manifest *manifest, const char *name)
{
	for (uint32_t i = 0; i < manifest->scheme_count; i++) {
		if (strcmp(manifest->schemes[i].name, name) == 0)
			return &manifest->schemes[i];
	}
	return NULL;
}

/* ---- Where a scale's values lie. */

/* Elements of a dim that share a scale: those of the last two dims, `whole` for all of it. */
static uint64_t granule(const struct quant_scheme *scheme, const struct tensor_rule *rule,
			uint32_t dim)
{
	if (dim + 2 < rule->dim_count)
		return 1;
	uint32_t side = dim + 2 - rule->dim_count; /* 0: rows, 1: columns */
	return scheme->block[side] == 0 ? rule->dim[dim] : scheme->block[side];
}

static uint64_t blocks_of(uint64_t elements, uint64_t each)
{
	return elements / each + (elements % each != 0);
}

/* One dim of a view: box and place in blocks.  The columns of a channel may be cut anywhere: each
 * part has the whole row's scale. */
static int scale_dim(const struct tensor_rule *rule, struct view *view, uint32_t d, uint64_t each,
		     bool shared, struct ws_error *err)
{
	uint64_t *offset = &view->offset[d], *extent = &view->extent[d], dim = rule->dim[d];
	uint64_t *at = &view->at[view->to[d]], end = *offset + *extent;
	assert(each > 0); /* dims and blocks are */
	if (each == 1)
		return 0;
	if (view->step[d] != 1 && *extent > 1)
		return ws_fail(err, -EINVAL,
			       "rows of '%s' don't lie side by side, so its blocks have no place",
			       rule->name);
	if (shared) {
		*offset = 0;
		*extent = 1;
	} else {
		if (*offset % each != 0 || (end % each != 0 && end != dim))
			return ws_fail(err, -EINVAL,
				       "[%" PRIu64 ", %" PRIu64 ") of dim %u of '%s' tears a block "
				       "of %" PRIu64,
				       *offset, end, d, rule->name, each);
		*offset /= each;
		*extent = blocks_of(*extent, each);
	}
	if (*at % each != 0)
		return ws_fail(err, -EINVAL,
			       "in front of '%s' lie %" PRIu64
			       " elements, and its blocks of %" PRIu64 " begin anew",
			       rule->name, *at, each);
	*at /= each;
	view->step[d] = 1;
	return 0;
}

/* Whether both are of one expert; where there is a stack, at one place of it. */
static bool same_slot(const struct view *a, const struct view *b, bool stacks)
{
	return a->slot == b->slot && (!stacks || a->at[0] == b->at[0]);
}

/* Per tensor: one value for all tensors of an expert that share it; values of their own stand in
 * the order in which the tensors were named. */
static void scale_whole_tensors(struct views *views, struct shape *shape, bool stacks)
{
	uint32_t kept = 0, most = 0, ordinal = 0;
	for (uint32_t i = 0; i < views->count; i++) {
		const struct view view = views->list[i];
		bool again = false;
		if (kept == 0 || !same_slot(&views->list[kept - 1], &view, stacks))
			ordinal = 0;
		for (uint32_t j = kept;
		     j > 0 && same_slot(&views->list[j - 1], &view, stacks) && !again; j--)
			again = views->list[j - 1].tensor == view.tensor;
		if (again)
			continue;
		views->list[kept++] =
			(struct view){.tensor = view.tensor,
				      .slot = view.slot,
				      .dim_count = 1,
				      .extent = {1},
				      .step = {1},
				      .to = {stacks ? 1 : 0},
				      .at = {stacks ? view.at[0] : ordinal, stacks ? ordinal : 0}};
		ordinal++;
		most = MAX(most, ordinal);
	}
	views->count = kept;
	*shape = (struct shape){.dim_count = stacks ? 2 : 1,
				.dim = {stacks ? shape->dim[0] : most, stacks ? most : 0}};
}

/* One view in blocks.  each_of: by local dim, how many elements of it a block has; 0: unknown. */
static int scale_view(struct view *view, const struct scaling *scaling, uint64_t *each_of,
		      struct ws_error *err)
{
	const struct tensor_rule *rule = &scaling->tensors[view->tensor];
	bool shared = scaling->scheme->kind == SCHEME_CHANNEL;
	uint32_t moved = 0;
	for (uint32_t d = 0; d < view->dim_count; d++) {
		uint64_t each = granule(scaling->scheme, rule, d);
		uint32_t to = view->to[d];
		if ((each > 1 && (moved >> to & 1) != 0) ||
		    (each_of[to] != 0 && each_of[to] != each))
			return ws_fail(err, -EINVAL,
				       "dim %u mixes dims of different blocks, so its scale has no "
				       "shape",
				       to);
		moved |= 1u << to;
		each_of[to] = each;
		int rc = scale_dim(rule, view, d, each, shared, err);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Lets a view take in the one that goes on where it ends, along one dim; rows that were moved one
 * by one may lie side by side again. */
static bool join_view(struct view *view, const struct view *next)
{
	uint32_t along = BOX_DIM_MAX;
	if (view->tensor != next->tensor || view->slot != next->slot)
		return false;
	for (uint32_t d = 0; d < view->dim_count; d++) {
		if (view->to[d] != next->to[d])
			return false;
		if (view->offset[d] == next->offset[d] && view->extent[d] == next->extent[d] &&
		    (view->extent[d] == 1 || view->step[d] == next->step[d]))
			continue;
		if (along != BOX_DIM_MAX || view->offset[d] + view->extent[d] != next->offset[d])
			return false;
		along = d;
	}
	if (along == BOX_DIM_MAX)
		return false;
	uint32_t to = view->to[along];
	uint64_t step = view->extent[along] == 1 ? next->at[to] - view->at[to] : view->step[along];
	for (uint32_t j = 0; j < LOCAL_DIM_MAX; j++) {
		uint64_t moved = j == to ? view->extent[along] * step : 0;
		if (next->at[j] != view->at[j] + moved)
			return false;
	}
	if (next->extent[along] > 1 && next->step[along] != step)
		return false;
	view->step[along] = step;
	view->extent[along] += next->extent[along];
	return true;
}

static void join_views(struct views *views)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < views->count; i++) {
		if (kept == 0 || !join_view(&views->list[kept - 1], &views->list[i]))
			views->list[kept++] = views->list[i];
	}
	views->count = kept;
}

int views_scale(struct views *views, struct shape *shape, const struct scaling *scaling,
		struct ws_error *err)
{
	bool one = scaling->scheme->kind == SCHEME_TENSOR;
	uint64_t each_of[LOCAL_DIM_MAX] = {0};
	join_views(views);
	for (uint32_t i = 0; i < views->count; i++) {
		struct view *view = &views->list[i];
		int rc = one ? 0 : scale_view(view, scaling, each_of, err);
		if (rc != 0)
			return rc;
		view->tensor = scaling->scale_of[view->tensor];
	}
	if (one)
		scale_whole_tensors(views, shape, scaling->stacks);
	for (uint32_t j = 0; j < shape->dim_count && !one; j++)
		shape->dim[j] = blocks_of(shape->dim[j], MAX(each_of[j], 1));
	return 0;
}

/* ---- The scale's tensors and rule. */

uint32_t scale_listed(const struct manifest *manifest, const struct quant_scheme *scheme,
		      uint32_t weight)
{
	const struct tensor_rule *of = &manifest->tensors[weight];
	char name[2 * NAME_BYTES_MAX];
	snprintf(name, sizeof(name), "%s%s", of->name, scheme->suffix);
	return tensor_find(manifest, name, of->layer_lo);
}

uint32_t scale_tensor(struct parse *parse, const struct quant_scheme *scheme, const char *where,
		      uint32_t weight)
{
	struct manifest *manifest = parse->manifest;
	const struct tensor_rule *of = &manifest->tensors[weight];
	struct tensor_rule want = *of;
	char name[2 * NAME_BYTES_MAX];
	snprintf(name, sizeof(name), "%s%s", of->name, scheme->suffix);
	want.dtype = scheme->scale;
	want.is_scale = true;
	want.weight_tensor = weight;
	for (uint32_t d = 0; d < of->dim_count; d++)
		want.dim[d] = blocks_of(of->dim[d], granule(scheme, of, d));
	if (scheme->kind == SCHEME_TENSOR) {
		want.dim_count = 1;
		want.dim[0] = 1;
	}
	uint32_t listed = scale_listed(manifest, scheme, weight);
	if (listed == UINT32_MAX) {
		want.name = parse_copy(parse, name);
		manifest->tensors[manifest->tensor_count] = want;
		return want.name == NULL ? UINT32_MAX : manifest->tensor_count++;
	}
	struct tensor_rule *is = &manifest->tensors[listed];
	if (is->dtype != want.dtype || is->dim_count != want.dim_count ||
	    memcmp(is->dim, want.dim, want.dim_count * sizeof(want.dim[0])) != 0 ||
	    is->layer_lo > of->layer_lo || is->layer_hi < of->layer_hi ||
	    is->expert_lo != of->expert_lo || is->expert_hi != of->expert_hi) {
		findings_add(&parse->found, "quant", where,
			     "\"tensors\" lists '%s', which isn't the scale that scheme '%s' gives "
			     "'%s': its dtype, shape, layers or experts differ",
			     name, scheme->name, of->name);
		return UINT32_MAX;
	}
	is->is_scale = true;
	is->weight_tensor = weight;
	return listed;
}

struct scaling scaling_of(const struct manifest *manifest, const struct rule *rule)
{
	return (struct scaling){.scheme = rule->scheme,
				.tensors = manifest->tensors,
				.scale_of = manifest->scale_of,
				.stacks = rule->view.stacks_experts};
}

/* The largest divisor of an axis' size at which no part tears a block; 0: none. */
static uint32_t untorn_size(const struct manifest *manifest, const struct rule *rule,
			    const struct axis *axis, struct spot spot, uint32_t *visits_left)
{
	struct scaling scaling = scaling_of(manifest, rule);
	*visits_left -= MIN(*visits_left, axis->size / FORM_VISITS);
	for (uint32_t size = axis->size - 1; size > 0 && *visits_left > 0; size--) {
		bool torn = axis->size % size != 0;
		spot.axis = axis;
		spot.axis_size = size;
		for (spot.axis_index = 0; !torn && spot.axis_index < size; spot.axis_index++) {
			struct arena arena = {0};
			struct form form;
			torn = *visits_left == 0 ||
			       expr_form(rule->expr, &spot, &scaling, &arena, &form, NULL) != 0;
			*visits_left -= MIN(*visits_left, FORM_VISITS);
			arena_release(&arena);
		}
		if (!torn)
			return size;
	}
	return 0;
}

/* The first rank whose part tears a block, at each different coordinate: 0 there is none (or too
 * much to look at), -EINVAL and why, -ENOMEM. */
static int find_torn(const struct manifest *manifest, const struct rule *rule,
		     const struct scaling *scaling, uint32_t *visits_left, struct spot *spot_out,
		     struct ws_error *err)
{
	uint64_t last_key = 0;
	for (uint32_t rank = 0; *visits_left > 0 && rank < manifest->world; rank++) {
		uint64_t key = rule_key(rule, rank);
		*visits_left -= rank % VISIT_RANKS == 0;
		struct arena arena = {0};
		struct form form = {0};
		/* Ranks in a row mostly share coordinates: DP, and axes that aren't named. */
		if (rank > 0 && key == last_key)
			continue;
		last_key = key;
		*spot_out = (struct spot){.rank = rank,
					  .expert_count = rule_expert_count(manifest, rule, rank),
					  .stacks = rule->view.stacks_experts};
		int rc = expr_form(rule->expr, spot_out, scaling, &arena, &form, err);
		*visits_left -= MIN(*visits_left, FORM_VISITS + form.piece_count);
		arena_release(&arena);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* The largest block that no rank tears, of those that halving the scheme's gives; 0: none, or its
 * scales are listed. */
static uint64_t untorn_block(const struct manifest *manifest, const struct rule *rule,
			     uint32_t *visits_left)
{
	struct scaling scaling = scaling_of(manifest, rule);
	struct quant_scheme smaller = *rule->scheme;
	const struct expr *leaf = rule->expr;
	uint64_t *block = smaller.block;
	struct spot spot;
	while (leaf->child_count > 0)
		leaf = leaf->child[0];
	if (scale_listed(manifest, rule->scheme, leaf->tensor) != UINT32_MAX)
		return 0;
	scaling.scheme = &smaller;
	while (block[0] == block[1] && block[0] % 2 == 0 && block[0] > BLOCK_SIDE_MIN) {
		block[0] = block[1] = block[0] / 2;
		if (find_torn(manifest, rule, &scaling, visits_left, &spot, NULL) == 0)
			return *visits_left > 0 ? block[0] : 0;
	}
	return 0;
}

/* Says where blocks are torn, and which size of which axis wouldn't, or which block. */
static void say_torn(struct parse *parse, const struct rule *rule, const struct spot *spot,
		     const char *why, uint32_t *visits_left)
{
	char advice[256] = "no smaller size of an axis helps", other[64] = "";
	for (uint32_t i = 0; i < rule->axis_count; i++) {
		const struct axis *axis = rule->axes[i];
		if (axis == rule->expert_axis || axis->size == 1)
			continue;
		uint32_t size = untorn_size(parse->manifest, rule, axis, *spot, visits_left);
		if (size == 0)
			continue;
		snprintf(advice, sizeof(advice),
			 "the largest size of axis '%.100s' that works is %u, not %u", axis->name,
			 size, axis->size);
		break;
	}
	uint64_t block = untorn_block(parse->manifest, rule, visits_left);
	if (block > 0)
		snprintf(other, sizeof(other), "; or declare blocks of %" PRIu64, block);
	findings_add(&parse->found, "block", rule->view.name, "at rank %u %s; %s%s", spot->rank,
		     why, advice, other);
}

/* What tears a block is said while reading. */
static void check_torn(struct parse *parse, uint32_t index, uint32_t *visits_left)
{
	const struct rule *rule = &parse->manifest->rules[index];
	struct scaling scaling = scaling_of(parse->manifest, rule);
	struct spot spot;
	struct ws_error error;
	int rc = find_torn(parse->manifest, rule, &scaling, visits_left, &spot, &error);
	parse->out_of_memory = parse->out_of_memory || rc == -ENOMEM;
	if (rc == 0)
		return;
	say_torn(parse, rule, &spot, error.text, visits_left);
	/* The weights can be read without it. */
	parse->readable++;
	parse->manifest->rule_count--;
}

void add_scale_rule(struct parse *parse, uint32_t weight_index, uint32_t *visits_left)
{
	const struct manifest *manifest = parse->manifest;
	const struct rule *weight = &manifest->rules[weight_index];
	const struct quant_scheme *scheme = weight->scheme;
	char name[2 * NAME_BYTES_MAX];
	uint32_t found = parse->found.count;
	if (weight->view.dtype != scheme->code)
		return findings_add(&parse->found, "quant", weight->view.name,
				    "scheme '%s' gives %s, and its dtype is %s", scheme->name,
				    ws_dtype_name(scheme->code), ws_dtype_name(weight->view.dtype));
	if (!scale_tensors(parse, scheme, weight->view.name, weight->expr))
		return;
	struct rule *rule = rule_add(parse);
	if (rule == NULL)
		return;
	*rule = manifest->rules[weight_index];
	snprintf(name, sizeof(name), "%s%s", rule->view.name, scheme->suffix);
	rule->view.name = rule->scale != NULL ? rule->scale : parse_copy(parse, name);
	rule->view.dtype = scheme->scale;
	rule->view.is_scale = true;
	rule->view.weight_rule = weight_index;
	if (rule->view.name != NULL && parse->found.count == found)
		check_torn(parse, manifest->rule_count - 1, visits_left);
}
