/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expression language, evaluated at one rank: shape and pieces in one walk, so that both
 * obey the same rules.  The walk needs nothing but the expression: names, symbols and axes were
 * resolved by expr_parse.c.  README.md has the language.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "planner/describe.h"

/* What the walk carries. */
struct walk {
	const struct spot *spot;
	struct ws_error *err;
};

uint32_t axis_index(const struct axis *axis, uint32_t rank)
{
	uint32_t index = 0;
	for (uint32_t i = 0; i < axis->part_count; i++)
		index = index * axis->part_size[i] +
			rank / axis->part_divisor[i] % axis->part_size[i];
	return index;
}

static uint32_t spot_index(const struct spot *spot, const struct axis *axis)
{
	return spot->axis == axis ? spot->axis_index : axis_index(axis, spot->rank);
}

static int check_dim(const struct walk *walk, const char *node, const struct expr *expr,
		     const struct shape *shape)
{
	if (expr->dim < shape->dim_count)
		return 0;
	return ws_fail(walk->err, -EINVAL, "%s: there is no dim %u among %u", node, expr->dim,
		       shape->dim_count);
}

static int check_size(const struct walk *walk, const char *node, const struct shape *shape)
{
	if (shape_elements(shape) <= ELEMENT_COUNT_MAX)
		return 0;
	return ws_fail(walk->err, -EINVAL, "%s: the result has more than 2^56 elements", node);
}

/* Replaces views by what of them lies in a span of a dim. */
static int cut_all(const struct walk *walk, uint32_t dim, const struct span *span,
		   struct views *views)
{
	struct views out = {0};
	int rc = 0;
	for (uint32_t i = 0; i < views->count && rc == 0; i++)
		rc = views_cut(&views->list[i], dim, span, &out, walk->err);
	views_release(views);
	*views = out;
	return rc;
}

static int do_tensor(const struct walk *walk, const struct expr *expr, struct shape *shape,
		     struct views *views)
{
	const struct tensor_rule *rule = expr->rule;
	struct view view = {.tensor = expr->tensor, .dim_count = rule->dim_count};

	view.slot = walk->spot->stacks && rule->expert_lo >= 0 ? 0 : -1;
	*shape = (struct shape){.dim_count = rule->dim_count};
	for (uint32_t d = 0; d < rule->dim_count; d++) {
		shape->dim[d] = rule->dim[d];
		view.extent[d] = rule->dim[d];
		view.step[d] = 1;
		view.to[d] = (uint8_t)d;
	}
	return views == NULL ? 0 : views_add(views, &view, walk->err);
}

/* The part of d elements that coordinate i of n owns. */
static int split_range(const struct walk *walk, const struct expr *expr, uint64_t d, uint64_t *lo,
		       uint64_t *hi)
{
	const char *axis = expr->axis->name;
	uint64_t i = spot_index(walk->spot, expr->axis), u = expr->a;
	uint64_t n = walk->spot->axis == expr->axis ? walk->spot->axis_size : expr->axis->size;
	switch (expr->mode) {
	case SPLIT_EVEN:
		if (d % n != 0)
			return ws_fail(walk->err, -EINVAL,
				       "s: %" PRIu64 " rows of dim %u don't divide by %" PRIu64
				       " (axis '%s')",
				       d, expr->dim, n, axis);
		if (d / n % u != 0)
			return ws_fail(walk->err, -EINVAL,
				       "s: the share of %" PRIu64
				       " rows of dim %u isn't a multiple of its unit %" PRIu64
				       " (axis '%s')",
				       d / n, expr->dim, u, axis);
		*lo = i * (d / n);
		*hi = (i + 1) * (d / n);
		return 0;
	case SPLIT_CHUNK: {
		uint64_t units = d / u + (d % u != 0);
		uint64_t chunk = (units / n + (units % n != 0)) * u;
		*lo = chunk == 0 || i > d / chunk ? d : MIN(i * chunk, d);
		*hi = d - *lo < chunk ? d : *lo + chunk;
		return 0;
	}
	case SPLIT_REP: {
		if (d % u != 0)
			return ws_fail(walk->err, -EINVAL,
				       "s: unit %" PRIu64 " doesn't divide the %" PRIu64
				       " rows of dim %u (axis '%s')",
				       u, d, expr->dim, axis);
		uint64_t m = d / u;
		if (m == 0 || (n <= m ? m % n : n % m) != 0)
			return ws_fail(walk->err, -EINVAL,
				       "s: %" PRIu64 " units of dim %u and %" PRIu64
				       " ranks of axis '%s': neither divides the other",
				       m, expr->dim, n, axis);
		*lo = n <= m ? i * (d / n) : i / (n / m) * u;
		*hi = *lo + (n <= m ? d / n : u);
		return 0;
	}
	}
	return -EINVAL;
}

static int do_split(const struct walk *walk, const struct expr *expr, struct shape *shape,
		    struct views *views)
{
	struct span span = {.scale = 1};
	int rc = check_dim(walk, "s", expr, shape);
	if (rc == 0)
		rc = split_range(walk, expr, shape->dim[expr->dim], &span.lo, &span.hi);
	if (rc != 0)
		return rc;
	shape->dim[expr->dim] = span.hi - span.lo;
	return views == NULL ? 0 : cut_all(walk, expr->dim, &span, views);
}

static int do_range(const struct walk *walk, const struct expr *expr, struct shape *shape,
		    struct views *views)
{
	int rc = check_dim(walk, "r", expr, shape);
	if (rc != 0)
		return rc;
	if (expr->a >= expr->b)
		return ws_fail(walk->err, -EINVAL,
			       "r: the range %" PRIu64 " to %" PRIu64
			       " of dim %u is empty or reversed",
			       expr->a, expr->b, expr->dim);
	if (expr->b > shape->dim[expr->dim])
		return ws_fail(walk->err, -EINVAL,
			       "r: the range %" PRIu64 " to %" PRIu64 " passes the %" PRIu64
			       " rows of dim %u",
			       expr->a, expr->b, shape->dim[expr->dim], expr->dim);
	struct span span = {.lo = expr->a, .hi = expr->b, .scale = 1};
	shape->dim[expr->dim] = expr->b - expr->a;
	return views == NULL ? 0 : cut_all(walk, expr->dim, &span, views);
}

/* Appends child `index` of a `c` or `g` along its dim. */
static int join(const struct walk *walk, const char *node, const struct expr *expr, uint32_t index,
		const struct shape *part, struct views *part_views, struct shape *shape,
		struct views *views)
{
	int rc = check_dim(walk, node, expr, part);
	if (rc != 0)
		return rc;
	if (index == 0) {
		*shape = *part;
		shape->dim[expr->dim] = 0;
	}
	if (part->dim_count != shape->dim_count)
		return ws_fail(walk->err, -EINVAL, "%s: part %u has %u dims, the first has %u",
			       node, index, part->dim_count, shape->dim_count);
	for (uint32_t d = 0; d < part->dim_count; d++) {
		if (d != expr->dim && part->dim[d] != shape->dim[d])
			return ws_fail(walk->err, -EINVAL,
				       "%s: dim %u of part %u has %" PRIu64
				       " elements, of the first %" PRIu64,
				       node, d, index, part->dim[d], shape->dim[d]);
	}
	for (uint32_t i = 0; views != NULL && i < part_views->count; i++) {
		part_views->list[i].at[expr->dim] += shape->dim[expr->dim];
		rc = views_add(views, &part_views->list[i], walk->err);
		if (rc != 0)
			return rc;
	}
	shape->dim[expr->dim] += part->dim[expr->dim];
	return check_size(walk, node, shape);
}

/* What a node does once for each of so many parts of a view, also where none of it lies. */
static int check_parts(const struct walk *walk, const char *node, uint64_t count)
{
	if (count <= PIECE_COUNT_MAX)
		return 0;
	return ws_fail(walk->err, -ENOSPC, "%s: it makes more than %u pieces", node,
		       PIECE_COUNT_MAX);
}

/* Moves one view of part [start, start + n * share) of a concatenation to its groups. */
static int regroup(const struct walk *walk, const struct expr *expr, const struct view *view,
		   struct span part, uint64_t share, uint64_t group, struct views *out)
{
	uint64_t first, last;
	if (share == 1) {
		part.scale = group;
		return views_cut(view, expr->dim, &part, out, walk->err);
	}
	view_reach(view, expr->dim, &first, &last);
	int rc = check_parts(walk, "g", (last - first) / share);
	for (uint64_t q = (first - part.lo) / share; rc == 0 && q <= (last - part.lo) / share;
	     q++) {
		struct span span = {.lo = part.lo + q * share,
				    .hi = part.lo + (q + 1) * share,
				    .scale = 1,
				    .shift = part.shift + q * group};
		rc = views_cut(view, expr->dim, &span, out, walk->err);
	}
	return rc;
}

/* `views` hold the concatenation of parts of these lengths; interleaves them in n groups. */
static int do_group(const struct walk *walk, const struct expr *expr, const uint64_t *lengths,
		    const struct shape *shape, struct views *views)
{
	uint64_t n = expr->a;
	for (uint32_t p = 0; p < expr->child_count; p++) {
		if (lengths[p] % n != 0)
			return ws_fail(walk->err, -EINVAL,
				       "g: %" PRIu64 " groups don't divide the %" PRIu64
				       " rows of dim %u of part %u",
				       n, lengths[p], expr->dim, p);
	}
	if (views == NULL)
		return 0;
	struct views out = {0};
	uint64_t group = shape->dim[expr->dim] / n;
	int rc = 0;
	for (uint32_t i = 0; i < views->count && rc == 0; i++) {
		struct span part = {0};
		uint32_t p = 0;
		while (views->list[i].at[expr->dim] >= part.lo + lengths[p]) {
			part.lo += lengths[p];
			part.shift += lengths[p] / n;
			p++;
		}
		part.hi = part.lo + lengths[p];
		rc = regroup(walk, expr, &views->list[i], part, lengths[p] / n, group, &out);
	}
	views_release(views);
	*views = out;
	return rc;
}

static int do_interleave(const struct walk *walk, const struct expr *expr, struct shape *shape,
			 struct views *views)
{
	uint64_t outer = expr->a, a = expr->b, b = expr->c, rows;
	int rc = check_dim(walk, "il", expr, shape);
	if (rc != 0)
		return rc;
	if (__builtin_mul_overflow(a, b, &rows) || __builtin_mul_overflow(outer, rows, &rows) ||
	    rows != shape->dim[expr->dim])
		return ws_fail(walk->err, -EINVAL,
			       "il: %" PRIu64 " * %" PRIu64 " * %" PRIu64 " isn't the %" PRIu64
			       " rows of dim %u",
			       outer, a, b, shape->dim[expr->dim], expr->dim);
	if (views == NULL || a == 1 || b == 1)
		return 0;
	struct views out = {0};
	for (uint32_t i = 0; i < views->count && rc == 0; i++) {
		uint64_t first, last;
		view_reach(&views->list[i], expr->dim, &first, &last);
		rc = check_parts(walk, "il", (last - first) / b);
		for (uint64_t block = first / b; block <= last / b && rc == 0; block++) {
			struct span span = {.lo = block * b,
					    .hi = (block + 1) * b,
					    .scale = a,
					    .shift = block / a * a * b + block % a};
			rc = views_cut(&views->list[i], expr->dim, &span, &out, walk->err);
		}
	}
	views_release(views);
	*views = out;
	return rc;
}

static int do_pad(const struct walk *walk, const struct expr *expr, struct shape *shape)
{
	int rc = check_dim(walk, "p", expr, shape);
	if (rc != 0)
		return rc;
	uint64_t rows = shape->dim[expr->dim], multiple = expr->a;
	if (multiple > ELEMENT_COUNT_MAX)
		return ws_fail(walk->err, -EINVAL, "p: the multiple %" PRIu64 " is too large",
			       multiple);
	shape->dim[expr->dim] = (rows / multiple + (rows % multiple != 0)) * multiple;
	return check_size(walk, "p", shape);
}

static int do_stack(const struct walk *walk, const struct expr *expr, struct shape *shape,
		    struct views *views)
{
	uint32_t count = expr->a == 1 ? 1 : walk->spot->expert_count;
	if (shape->dim_count == LOCAL_DIM_MAX)
		return ws_fail(walk->err, -EINVAL, "k: more than %d dims", LOCAL_DIM_MAX);
	memmove(&shape->dim[1], &shape->dim[0], shape->dim_count * sizeof(shape->dim[0]));
	shape->dim[0] = count;
	shape->dim_count++;
	int rc = check_size(walk, "k", shape);
	if (rc != 0 || views == NULL)
		return rc;
	struct views out = {0};
	for (uint32_t slot = 0; slot < count && rc == 0; slot++) {
		for (uint32_t i = 0; i < views->count && rc == 0; i++) {
			struct view view = views->list[i];
			for (uint32_t d = 0; d < view.dim_count; d++)
				view.to[d]++;
			memmove(&view.at[1], &view.at[0], (LOCAL_DIM_MAX - 1) * sizeof(view.at[0]));
			view.at[0] = slot;
			if (view.slot >= 0 && expr->a == 0)
				view.slot = (int32_t)slot;
			rc = views_add(&out, &view, walk->err);
		}
	}
	views_release(views);
	*views = out;
	return rc;
}

static int do_permute(const struct walk *walk, const struct expr *expr, struct shape *shape,
		      struct views *views)
{
	struct shape from = *shape;
	uint8_t inverse[LOCAL_DIM_MAX] = {0};
	uint32_t seen = 0;
	for (uint32_t i = 0; i < expr->perm_count && expr->perm[i] < LOCAL_DIM_MAX; i++)
		seen |= 1u << expr->perm[i];
	if (expr->perm_count != from.dim_count || seen != (1u << from.dim_count) - 1)
		return ws_fail(walk->err, -EINVAL, "x: that isn't a permutation of %u dims",
			       from.dim_count);
	for (uint32_t i = 0; i < expr->perm_count; i++) {
		shape->dim[i] = from.dim[expr->perm[i]];
		inverse[expr->perm[i]] = (uint8_t)i;
	}
	for (uint32_t i = 0; views != NULL && i < views->count; i++) {
		struct view *view = &views->list[i], old = *view;
		for (uint32_t d = 0; d < view->dim_count; d++)
			view->to[d] = inverse[old.to[d]];
		for (uint32_t j = 0; j < expr->perm_count; j++)
			view->at[j] = old.at[expr->perm[j]];
	}
	return 0;
}

static int do_flatten(struct shape *shape, struct views *views)
{
	uint64_t stride[LOCAL_DIM_MAX], elements = 1;
	for (uint32_t d = shape->dim_count; d > 0; d--) {
		stride[d - 1] = elements;
		elements *= shape->dim[d - 1];
	}
	for (uint32_t i = 0; views != NULL && i < views->count; i++) {
		struct view *view = &views->list[i];
		uint64_t at = 0;
		for (uint32_t j = 0; j < shape->dim_count; j++)
			at += view->at[j] * stride[j];
		for (uint32_t d = 0; d < view->dim_count; d++) {
			view->step[d] *= stride[view->to[d]];
			view->to[d] = 0;
		}
		memset(view->at, 0, sizeof(view->at));
		view->at[0] = at;
	}
	*shape = (struct shape){.dim_count = 1, .dim = {elements}};
	return 0;
}

static int do_zero(const struct walk *walk, const struct expr *expr, struct views *views)
{
	if (views != NULL && spot_index(walk->spot, expr->axis) != 0)
		views_release(views);
	return 0;
}

/* Does the node's own work on what its only child gave. */
static int do_node(const struct walk *walk, const struct expr *expr, const uint64_t *lengths,
		   struct shape *shape, struct views *views)
{
	switch (expr->op) {
	case OP_T:
		return do_tensor(walk, expr, shape, views);
	case OP_S:
		return do_split(walk, expr, shape, views);
	case OP_R:
		return do_range(walk, expr, shape, views);
	case OP_C:
		return 0;
	case OP_G:
		return do_group(walk, expr, lengths, shape, views);
	case OP_IL:
		return do_interleave(walk, expr, shape, views);
	case OP_P:
		return do_pad(walk, expr, shape);
	case OP_K:
		return do_stack(walk, expr, shape, views);
	case OP_X:
		return do_permute(walk, expr, shape, views);
	case OP_FL:
		return do_flatten(shape, views);
	case OP_Z:
		return do_zero(walk, expr, views);
	}
	return -EINVAL;
}

/* Recurses at most EXPR_DEPTH_MAX deep: the parser saw to it.  views may be NULL. */
static int eval(const struct walk *walk, const struct expr *expr, struct shape *shape,
		struct views *views)
{
	bool joins = expr->op == OP_C || expr->op == OP_G;
	uint64_t lengths[GROUP_PART_MAX] = {0};
	int rc = 0;
	for (uint32_t i = 0; i < expr->child_count && rc == 0; i++) {
		if (!joins) {
			rc = eval(walk, expr->child[i], shape, views);
			break;
		}
		struct shape part = {0};
		struct views part_views = {0};
		rc = eval(walk, expr->child[i], &part, views == NULL ? NULL : &part_views);
		if (rc == 0)
			rc = join(walk, expr->op == OP_C ? "c" : "g", expr, i, &part, &part_views,
				  shape, views);
		if (rc == 0 && expr->op == OP_G)
			lengths[i] = part.dim[expr->dim];
		views_release(&part_views);
	}
	return rc != 0 ? rc : do_node(walk, expr, lengths, shape, views);
}

int expr_shape(const struct expr *expr, const struct spot *spot, struct shape *shape_out,
	       struct ws_error *err)
{
	struct walk walk = {.spot = spot, .err = err};
	*shape_out = (struct shape){0};
	return eval(&walk, expr, shape_out, NULL);
}

int expr_form(const struct expr *expr, const struct spot *spot, const struct scaling *scaling,
	      struct arena *arena, struct form *form_out, struct ws_error *err)
{
	struct walk walk = {.spot = spot, .err = err};
	struct shape shape = {0};
	struct views views = {0};
	int rc = eval(&walk, expr, &shape, &views);
	if (rc == 0 && scaling != NULL)
		rc = views_scale(&views, &shape, scaling, err);
	if (rc == 0)
		rc = views_lower(&views, &shape, arena, form_out, err);
	views_release(&views);
	return rc;
}
