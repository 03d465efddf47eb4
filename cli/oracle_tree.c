/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expression language, element by element: a tree with shapes, and the walk of one index from
 * the local param down to a canonical element.  Slow and plain on purpose.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "cli/oracle.h"

int tree_leaf(const struct reading *reading, const char *name, struct tree *leaf_out,
	      struct ws_error *err)
{
	const struct st_tensor *tensor = checkpoint_find(reading->checkpoint, name);
	if (tensor == NULL || tensor->dim_count > TREE_DIM_MAX)
		return ws_fail(err, -ENOENT, "oracle: the checkpoint has no tensor '%s'", name);
	*leaf_out = (struct tree){.op = "t",
				  .tensor = tensor,
				  .hash = digest_bytes(name, strlen(name), 0),
				  .trained = trained_dtype(reading, name, tensor->dtype),
				  .dim_count = tensor->dim_count};
	for (uint32_t d = 0; d < tensor->dim_count; d++)
		leaf_out->shape[d] = tensor->dim[d];
	return 0;
}

static int make_children(const struct reading *reading, const struct spot *spot,
			 const struct json *first, uint32_t count, int32_t expert,
			 struct tree *tree, struct ws_error *err)
{
	tree->child = arena_array(reading->arena, count, sizeof(struct tree *));
	if (tree->child == NULL)
		return ws_fail(err, -ENOMEM, "oracle: no memory");
	int rc = 0;
	for (; rc == 0 && tree->child_count < count; first = first->next)
		rc = tree_make(reading, spot, first, expert, &tree->child[tree->child_count++],
			       err);
	if (rc == 0) {
		tree->dim_count = tree->child[0]->dim_count;
		memcpy(tree->shape, tree->child[0]->shape, sizeof(tree->shape));
	}
	return rc;
}

static int make_tensor(const struct reading *reading, const struct spot *spot,
		       const struct json *json, int32_t expert, struct tree *tree,
		       struct ws_error *err)
{
	const char *pattern = json_at(json, 1)->text;
	char name[NAME_MAX_BYTES];
	spot_name(spot, pattern, expert, -1, name, sizeof(name));
	int rc = tree_leaf(reading, name, tree, err);
	tree->expert = strstr(pattern, "{E}") == NULL ? -1 : expert;
	return rc;
}

/* a becomes the first row, the shape the rank's part. */
static int make_split(const struct spot *spot, const struct json *json, struct tree *tree,
		      struct ws_error *err)
{
	const struct json *options = json_at(json, 4);
	const char *mode = json_text(options, "mode", "even");
	uint32_t i = 0, n = 1;
	uint64_t unit = 1, d = tree->shape[tree->dim], lo, hi;

	int rc = spot_axis(spot, json_at(json, 3)->text, &i, &n, err);
	if (rc == 0 && json_get(options, "unit") != NULL)
		rc = spot_number(spot, json_get(options, "unit"), &unit, err);
	if (rc != 0)
		return rc;
	if (strcmp(mode, "chunk") == 0) {
		uint64_t units = (d + unit - 1) / unit, c = (units + n - 1) / n * unit;
		lo = MIN(i * c, d);
		hi = MIN((i + 1) * c, d);
	} else if (strcmp(mode, "rep") == 0 && n > d / unit) {
		uint64_t each = n / (d / unit);
		lo = i / each * unit;
		hi = lo + unit;
	} else {
		lo = i * d / n;
		hi = (i + 1) * d / n;
	}
	tree->a = lo;
	tree->shape[tree->dim] = hi - lo;
	return 0;
}

/* Over the rank's experts, or of one part: a new dim of 1. */
static int make_stack(const struct reading *reading, const struct spot *spot,
		      const struct json *json, int32_t expert, struct tree *tree,
		      struct ws_error *err)
{
	bool one = json_at(json, 1)->is_integer;
	uint32_t count = one ? 1 : spot->expert_count;
	int rc = 0;
	tree->child = arena_array(reading->arena, count, sizeof(struct tree *));
	if (tree->child == NULL || count == 0)
		return ws_fail(err, -EINVAL, "oracle: a stack of no experts");
	for (; rc == 0 && tree->child_count < count; tree->child_count++)
		rc = tree_make(reading, spot, json_at(json, 2),
			       one ? expert : spot->experts[tree->child_count],
			       &tree->child[tree->child_count], err);
	if (rc != 0)
		return rc;
	const struct tree *child = tree->child[0];
	tree->dim_count = child->dim_count + 1;
	tree->shape[0] = count;
	for (uint32_t d = 0; d < child->dim_count; d++)
		tree->shape[d + 1] = child->shape[d];
	return 0;
}

/* Number arguments behind the child: r lo hi, il outer a b, p multiple. */
static int take_numbers(const struct spot *spot, const struct json *json, uint32_t first,
			struct tree *tree, struct ws_error *err)
{
	uint64_t *into[] = {&tree->a, &tree->b, &tree->c};
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < 3 && json_at(json, first + i) != NULL; i++)
		rc = spot_number(spot, json_at(json, first + i), into[i], err);
	return rc;
}

static int make_one_child(const struct reading *reading, const struct spot *spot,
			  const struct json *json, int32_t expert, struct tree *tree,
			  struct ws_error *err)
{
	int rc = make_children(reading, spot, json_at(json, 1), 1, expert, tree, err);
	if (rc != 0)
		return rc;
	tree->dim = json_at(json, 2) && json_at(json, 2)->is_integer
			    ? (uint32_t)json_at(json, 2)->integer
			    : 0;
	if (strcmp(tree->op, "s") == 0)
		return make_split(spot, json, tree, err);
	if (strcmp(tree->op, "r") == 0 || strcmp(tree->op, "il") == 0 ||
	    strcmp(tree->op, "p") == 0) {
		rc = take_numbers(spot, json, 3, tree, err);
		if (tree->op[0] == 'r')
			tree->shape[tree->dim] = tree->b - tree->a;
		if (tree->op[0] == 'p' && rc == 0)
			tree->shape[tree->dim] =
				(tree->shape[tree->dim] + tree->a - 1) / tree->a * tree->a;
	} else if (strcmp(tree->op, "x") == 0) {
		for (uint32_t d = 0; d < tree->dim_count; d++) {
			tree->perm[d] = (uint32_t)json_at(json_at(json, 2), d)->integer;
			tree->shape[d] = tree->child[0]->shape[tree->perm[d]];
		}
	} else if (strcmp(tree->op, "fl") == 0) {
		for (uint32_t d = 1; d < tree->dim_count; d++)
			tree->shape[0] *= tree->shape[d];
		tree->dim_count = 1;
	} else if (strcmp(tree->op, "z") == 0) {
		uint32_t index = 0, size = 1;
		rc = spot_axis(spot, json_at(json, 2)->text, &index, &size, err);
		tree->zeros = index != 0;
	} else {
		rc = ws_fail(err, -EINVAL, "oracle: no node '%s'", tree->op);
	}
	return rc;
}

/* c and g: several children along dim. */
static int make_joined(const struct reading *reading, const struct spot *spot,
		       const struct json *json, int32_t expert, struct tree *tree,
		       struct ws_error *err)
{
	uint32_t first = tree->op[0] == 'c' ? 2 : 3;
	int rc = tree->op[0] == 'g' ? spot_number(spot, json_at(json, 2), &tree->a, err) : 0;
	if (rc == 0)
		rc = make_children(reading, spot, json_at(json, first), json->count - first, expert,
				   tree, err);
	tree->dim = (uint32_t)json_at(json, 1)->integer;
	for (uint32_t i = 1; rc == 0 && i < tree->child_count; i++)
		tree->shape[tree->dim] += tree->child[i]->shape[tree->dim];
	return rc;
}

int tree_make(const struct reading *reading, const struct spot *spot, const struct json *json,
	      int32_t expert, struct tree **tree_out, struct ws_error *err)
{
	struct tree *tree = arena_alloc(reading->arena, sizeof(*tree));
	*tree_out = tree;
	if (tree == NULL)
		return ws_fail(err, -ENOMEM, "oracle: no memory");
	snprintf(tree->op, sizeof(tree->op), "%s", json_at(json, 0)->text);
	if (strcmp(tree->op, "t") == 0)
		return make_tensor(reading, spot, json, expert, tree, err);
	if (strcmp(tree->op, "k") == 0)
		return make_stack(reading, spot, json, expert, tree, err);
	if (strcmp(tree->op, "c") == 0 || strcmp(tree->op, "g") == 0)
		return make_joined(reading, spot, json, expert, tree, err);
	return make_one_child(reading, spot, json, expert, tree, err);
}

void tree_release(struct tree *tree)
{
	if (tree == NULL)
		return;
	mem_free(tree->data);
	mem_free(tree->scales);
	tree->data = NULL;
	tree->scales = NULL;
	tree_release(tree->listed);
	for (uint32_t i = 0; i < tree->child_count; i++)
		tree_release(tree->child[i]);
}

/* Which child of c or g holds row `at` of dim, and which of its rows that is. */
static struct tree *pick_child(const struct tree *tree, uint64_t at, uint64_t *row_out)
{
	uint64_t groups = tree->op[0] == 'g' ? tree->a : 1, whole = tree->shape[tree->dim] / groups;
	uint64_t group = at / whole, inside = at % whole;
	for (uint32_t i = 0; i < tree->child_count; i++) {
		uint64_t share = tree->child[i]->shape[tree->dim] / groups;
		if (inside < share) {
			*row_out = group * share + inside;
			return tree->child[i];
		}
		inside -= share;
	}
	assert(false); /* shares add up to the whole */
	return tree->child[0];
}

struct tree *tree_locate(struct tree *tree, const uint64_t *index, uint64_t *element_out)
{
	uint64_t below[TREE_DIM_MAX];
	struct tree *child = tree->child_count > 0 ? tree->child[0] : tree;
	uint32_t dim = tree->dim;

	memcpy(below, index, tree->dim_count * sizeof(*index));
	switch (tree->op[0]) {
	case 't':
		*element_out = 0;
		for (uint32_t d = 0; d < tree->dim_count; d++)
			*element_out = *element_out * tree->shape[d] + index[d];
		return tree;
	case 's':
	case 'r':
		below[dim] += tree->a;
		break;
	case 'p':
		if (index[dim] >= child->shape[dim])
			return NULL;
		break;
	case 'z':
		if (tree->zeros)
			return NULL;
		break;
	case 'c':
	case 'g':
		child = pick_child(tree, index[dim], &below[dim]);
		break;
	case 'i': { /* out row (o*b+j)*a+k = in row (o*a+k)*b+j */
		uint64_t k = index[dim] % tree->b, rest = index[dim] / tree->b;
		below[dim] = (rest / tree->c * tree->b + k) * tree->c + rest % tree->c;
		break;
	}
	case 'k':
		child = tree->child[index[0]];
		memcpy(below, index + 1, child->dim_count * sizeof(*index));
		break;
	case 'x':
		for (uint32_t d = 0; d < tree->dim_count; d++)
			below[tree->perm[d]] = index[d];
		break;
	case 'f': {
		uint64_t flat = index[0];
		for (uint32_t d = child->dim_count; d-- > 0;) {
			below[d] = flat % child->shape[d];
			flat /= child->shape[d];
		}
		break;
	}
	}
	return tree_locate(child, below, element_out);
}
