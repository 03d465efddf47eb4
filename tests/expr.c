/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random expressions against an evaluator that moves single elements and knows no boxes: the
 * same elements at every rank, and refused exactly where it refuses.  Then what errors say, and
 * how few pieces regular layouts take.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

#define WORLD	    6 /* axes a: 2, b: 3 */
#define EXPERTS	    3
#define ELEMENT_MAX 200000

/* ---- The naive evaluator. */

struct array {
	uint32_t dim_count;
	uint64_t dim[LOCAL_DIM_MAX];
	uint64_t count;
	uint32_t *ids; /* owned */
};

struct tree {
	char op[3];
	uint32_t dim, tensor, perm_count, child_count;
	uint64_t a, b, c;
	char axis, mode; /* axis a or b; mode e, c, r */
	uint32_t perm[LOCAL_DIM_MAX];
	struct tree *child[2];
};

static const struct {
	const char *name;
	uint32_t dim_count;
	uint64_t dim[3];
	bool experts;
} tensors[] = {{"c", 3, {2, 3, 4}, false},
	       {"m", 2, {4, 6}, false},
	       {"v", 1, {12}, false},
	       {"w{E}", 2, {6, 4}, true}};

static uint32_t tensor_id(uint32_t tensor, uint32_t expert, uint64_t element)
{
	return (tensor + 1) * 10000 + expert * 1000 + (uint32_t)element;
}

static void array_make(struct array *array, uint32_t dim_count, const uint64_t *dim)
{
	*array = (struct array){.dim_count = dim_count, .count = 1};
	for (uint32_t d = 0; d < dim_count; d++) {
		array->dim[d] = dim[d];
		array->count *= dim[d];
	}
	ck_assert_uint_lt(array->count, ELEMENT_MAX);
	array->ids = mem_alloc(array->count * sizeof(uint32_t));
}

static uint64_t offset_of(const struct array *array, const uint64_t *index)
{
	uint64_t offset = 0;
	for (uint32_t d = 0; d < array->dim_count; d++)
		offset = offset * array->dim[d] + index[d];
	return offset;
}

static void index_of(const struct array *array, uint64_t offset, uint64_t *index)
{
	for (uint32_t d = array->dim_count; d > 0; d--) {
		index[d - 1] = offset % array->dim[d - 1];
		offset /= array->dim[d - 1];
	}
}

/* Row of the output -> row of the input along dim, UINT64_MAX for zero. */
static void take_rows(struct array *array, uint32_t dim, uint64_t rows, const uint64_t *from)
{
	struct array out;
	uint64_t shape[LOCAL_DIM_MAX], index[LOCAL_DIM_MAX];
	memcpy(shape, array->dim, sizeof(shape));
	shape[dim] = rows;
	array_make(&out, array->dim_count, shape);
	for (uint64_t i = 0; i < out.count; i++) {
		index_of(&out, i, index);
		index[dim] = from[index[dim]];
		out.ids[i] = index[dim] == UINT64_MAX ? 0 : array->ids[offset_of(array, index)];
	}
	mem_free(array->ids);
	*array = out;
}

static void take_range(struct array *array, uint32_t dim, uint64_t lo, uint64_t hi)
{
	uint64_t *from = mem_alloc((hi - lo) * sizeof(*from));
	for (uint64_t i = lo; i < hi; i++)
		from[i - lo] = i;
	take_rows(array, dim, hi - lo, from);
	mem_free(from);
}

static bool split(const struct tree *tree, struct array *array, uint32_t rank)
{
	uint64_t n = tree->axis == 'a' ? 2 : 3, i = tree->axis == 'a' ? rank / 3 : rank % 3;
	uint64_t d = array->dim[tree->dim], u = tree->a, lo = 0, hi = 0;
	if (tree->mode == 'e') {
		if (d % (n * u) != 0)
			return false;
		lo = i * d / n;
		hi = (i + 1) * d / n;
	} else if (tree->mode == 'c') {
		uint64_t chunk = ((d + u - 1) / u + n - 1) / n * u;
		lo = MIN(i * chunk, d);
		hi = MIN((i + 1) * chunk, d);
	} else {
		uint64_t m = d / u;
		if (d % u != 0 || m == 0 || (n <= m ? m % n : n % m) != 0)
			return false;
		lo = n <= m ? i * d / n : i / (n / m) * u;
		hi = n <= m ? (i + 1) * d / n : lo + u;
	}
	take_range(array, tree->dim, lo, hi);
	return true;
}

/* Concatenation, then for `g` the interleaving of n shares. */
static bool join(const struct tree *tree, struct array *array, const struct array *other)
{
	uint64_t first = array->dim[tree->dim], second = other->dim[tree->dim];
	struct array out;
	uint64_t shape[LOCAL_DIM_MAX], index[LOCAL_DIM_MAX];
	if (array->dim_count != other->dim_count)
		return false;
	for (uint32_t d = 0; d < array->dim_count; d++) {
		if (d != tree->dim && array->dim[d] != other->dim[d])
			return false;
	}
	uint64_t n = tree->op[0] == 'g' ? tree->a : 1;
	if (first % n != 0 || second % n != 0)
		return false;
	memcpy(shape, array->dim, sizeof(shape));
	shape[tree->dim] = first + second;
	array_make(&out, array->dim_count, shape);
	for (uint64_t i = 0; i < out.count; i++) {
		index_of(&out, i, index);
		uint64_t group = (first + second) / n, q = index[tree->dim] / group;
		uint64_t rest = index[tree->dim] % group;
		bool left = rest < first / n;
		index[tree->dim] =
			left ? q * (first / n) + rest : q * (second / n) + rest - first / n;
		out.ids[i] = left ? array->ids[offset_of(array, index)]
				  : other->ids[offset_of(other, index)];
	}
	mem_free(array->ids);
	*array = out;
	return true;
}

static bool interleave(const struct tree *tree, struct array *array)
{
	uint64_t rows = array->dim[tree->dim];
	if (tree->a * tree->b * tree->c != rows)
		return false;
	uint64_t *from = mem_alloc(rows * sizeof(*from));
	for (uint64_t o = 0; o < tree->a; o++)
		for (uint64_t k = 0; k < tree->b; k++)
			for (uint64_t j = 0; j < tree->c; j++)
				from[(o * tree->c + j) * tree->b + k] =
					(o * tree->b + k) * tree->c + j;
	take_rows(array, tree->dim, rows, from);
	mem_free(from);
	return true;
}

static void permute(const struct tree *tree, struct array *array)
{
	struct array out;
	uint64_t shape[LOCAL_DIM_MAX], index[LOCAL_DIM_MAX], old[LOCAL_DIM_MAX];
	for (uint32_t d = 0; d < tree->perm_count; d++)
		shape[d] = array->dim[tree->perm[d]];
	array_make(&out, array->dim_count, shape);
	for (uint64_t i = 0; i < out.count; i++) {
		index_of(&out, i, index);
		for (uint32_t d = 0; d < tree->perm_count; d++)
			old[tree->perm[d]] = index[d];
		out.ids[i] = array->ids[offset_of(array, old)];
	}
	mem_free(array->ids);
	*array = out;
}

static void pad(const struct tree *tree, struct array *array)
{
	uint64_t rows = array->dim[tree->dim], more = (rows + tree->a - 1) / tree->a * tree->a;
	uint64_t *from = mem_alloc(more * sizeof(*from));
	for (uint64_t i = 0; i < more; i++)
		from[i] = i < rows ? i : UINT64_MAX;
	take_rows(array, tree->dim, more, from);
	mem_free(from);
}

/* False where the expression can't be; array->ids is NULL then. */
static bool naive(const struct tree *tree, uint32_t rank, uint32_t expert, struct array *array)
{
	bool good = true;
	struct array other = {0};
	*array = (struct array){0};
	if (tree->op[0] == 't') {
		array_make(array, tensors[tree->tensor].dim_count, tensors[tree->tensor].dim);
		for (uint64_t i = 0; i < array->count; i++)
			array->ids[i] = tensor_id(tree->tensor,
						  tensors[tree->tensor].experts ? expert : 0, i);
		return true;
	}
	if (!naive(tree->child[0], rank, expert, array))
		return false;
	if (tree->child_count == 2)
		good = naive(tree->child[1], rank, expert, &other);
	if (tree->op[0] != 'x' && tree->op[0] != 'z' && strcmp(tree->op, "fl") != 0 && good)
		good = tree->dim < array->dim_count;
	if (!good)
		;
	else if (tree->op[0] == 's')
		good = split(tree, array, rank);
	else if (tree->op[0] == 'r' &&
		 (good = tree->a < tree->b && tree->b <= array->dim[tree->dim]))
		take_range(array, tree->dim, tree->a, tree->b);
	else if (tree->op[0] == 'c' || tree->op[0] == 'g')
		good = join(tree, array, &other);
	else if (tree->op[0] == 'i')
		good = interleave(tree, array);
	else if (tree->op[0] == 'p')
		pad(tree, array);
	else if (tree->op[0] == 'x' && (good = tree->perm_count == array->dim_count))
		permute(tree, array);
	else if (tree->op[0] == 'f') {
		array->dim_count = 1;
		array->dim[0] = array->count;
	} else if (tree->op[0] == 'z' && (tree->axis == 'a' ? rank / 3 : rank % 3) != 0)
		memset(array->ids, 0, array->count * sizeof(uint32_t));
	mem_free(other.ids);
	if (!good) {
		mem_free(array->ids);
		array->ids = NULL;
	}
	return good;
}

/* ---- Random trees: mostly possible, by the shape at rank 0. */

struct random {
	uint64_t state;
	struct arena arena;
};

static uint32_t below(struct random *random, uint32_t limit)
{
	random->state += 0x9e3779b97f4a7c15u;
	return (uint32_t)(mix64(random->state) % limit);
}

static uint64_t divisor(struct random *random, uint64_t of)
{
	uint64_t list[64];
	uint32_t count = 0;
	for (uint64_t d = 1; d <= of && count < ARRAY_SIZE(list); d++) {
		if (of % d == 0)
			list[count++] = d;
	}
	return count == 0 ? 1 : list[below(random, count)];
}

static struct tree *tree_new(struct random *random, const char *op, struct tree *child)
{
	struct tree *tree = arena_alloc(&random->arena, sizeof(*tree));
	strcpy(tree->op, op);
	tree->child[0] = child;
	tree->child_count = child != NULL;
	tree->a = tree->b = tree->c = 1;
	return tree;
}

static struct tree *grow(struct random *random, struct tree *tree)
{
	static const char *const ops[] = {"s", "s", "r", "c", "g", "il", "p", "x", "fl", "z"};
	const char *op = ops[below(random, ARRAY_SIZE(ops))];
	struct array at;
	struct tree *node = tree_new(random, op, tree);
	if (!naive(tree, 0, 0, &at))
		return tree;
	node->dim = below(random, at.dim_count);
	uint64_t rows = at.dim[node->dim];
	node->axis = below(random, 2) == 0 ? 'a' : 'b';
	if (op[0] == 's') {
		node->mode = "ecr"[below(random, 3)];
		node->a = node->mode == 'e' ? 1 : divisor(random, rows);
	} else if (op[0] == 'r') {
		node->a = below(random, (uint32_t)rows + 1);
		node->b = node->a + 1 + below(random, (uint32_t)rows + 1);
	} else if (op[0] == 'c' || op[0] == 'g') {
		node->child_count = 2;
		node->child[1] = below(random, 2) == 0 ? tree : tree_new(random, "r", tree);
		if (node->child[1] != tree) {
			node->child[1]->dim = node->dim;
			node->child[1]->b = rows;
			node->child[1]->a = rows / 2;
		}
		node->a = divisor(random, rows);
	} else if (op[0] == 'i') {
		node->a = divisor(random, rows);
		node->b = divisor(random, rows / node->a);
		node->c = rows / node->a / node->b;
	} else if (op[0] == 'p') {
		node->a = 1 + below(random, 9);
	} else if (op[0] == 'x') {
		node->perm_count = at.dim_count;
		for (uint32_t d = 0; d < at.dim_count; d++) {
			uint32_t with = below(random, d + 1);
			node->perm[d] = node->perm[with];
			node->perm[with] = d;
		}
	}
	bool large = at.count > 2000;
	mem_free(at.ids);
	return large && node->child_count == 2 ? tree : node;
}

static void put_tree(struct json_writer *json, const struct tree *tree)
{
	static const char *const modes[] = {"even", "chunk", "rep"};
	bool first = tree->op[0] == 'c' || tree->op[0] == 'g';
	json_begin_array(json, NULL);
	json_put_text(json, NULL, tree->op);
	if (tree->op[0] == 't')
		json_put_text(json, NULL, tensors[tree->tensor].name);
	if (first)
		json_put_u64(json, NULL, tree->dim);
	if (tree->op[0] == 'g')
		json_put_u64(json, NULL, tree->a);
	for (uint32_t i = 0; i < tree->child_count; i++)
		put_tree(json, tree->child[i]);
	if (!first && strchr("srip", tree->op[0]) != NULL)
		json_put_u64(json, NULL, tree->dim);
	if (tree->op[0] == 's' || tree->op[0] == 'z')
		json_put_text(json, NULL, tree->axis == 'a' ? "a" : "b");
	if (tree->op[0] == 's') {
		json_begin_object(json, NULL);
		json_put_text(json, "mode",
			      modes[tree->mode == 'e'	? 0
				    : tree->mode == 'c' ? 1
							: 2]);
		json_put_u64(json, "unit", tree->a);
		json_end_object(json);
	}
	if (strchr("rip", tree->op[0]) != NULL)
		json_put_u64(json, NULL, tree->a);
	if (strchr("ri", tree->op[0]) != NULL)
		json_put_u64(json, NULL, tree->b);
	if (tree->op[0] == 'i')
		json_put_u64(json, NULL, tree->c);
	if (tree->op[0] == 'x') {
		json_begin_array(json, NULL);
		for (uint32_t d = 0; d < tree->perm_count; d++)
			json_put_u64(json, NULL, tree->perm[d]);
		json_end_array(json);
	}
	json_end_array(json);
}

/* A manifest with one param: the tree, in a `k` where stack. */
static void put_manifest(struct writer *out, const struct tree *tree, bool stack)
{
	struct json_writer json = {.out = out};
	write_format(
		out,
		"{\"ws_manifest\":1,\"side\":\"trainer\",\"framework\":\"f\",\"model\":\"m\",\"world\":6,"
		"\"tensors\":[{\"name\":\"m\",\"dtype\":\"bf16\",\"shape\":[4,6]},"
		"{\"name\":\"v\",\"dtype\":\"bf16\",\"shape\":[12]},"
		"{\"name\":\"c\",\"dtype\":\"bf16\",\"shape\":[2,3,4]},"
		"{\"name\":\"w{E}\",\"dtype\":\"bf16\",\"shape\":[6,4],\"experts\":[0,3]}],"
		"\"meshes\":{\"x\":{\"axes\":[[\"a\",2],[\"b\",3]]}},\"experts\":{\"axis\":\"a\"},"
		"\"params\":[{\"p\":\"param\",\"x\":%s",
		stack ? "[\"k\",\"E\"," : "");
	put_tree(&json, tree);
	write_format(out, "%s}]}", stack ? "]" : "");
	ck_assert(!out->failed);
}

/* ---- Comparing. */

static void compare(const struct manifest *manifest, const struct form *form, uint32_t rank,
		    const struct tree *tree, bool stack)
{
	const int32_t *experts;
	uint32_t slots = stack ? manifest_experts(manifest, 0, rank, -1, &experts) : 1;
	uint32_t *ids = mem_alloc(form->element_count * sizeof(*ids));
	for (uint32_t p = 0; p < form->piece_count; p++) {
		const struct piece *piece = &form->pieces[p];
		struct array box, whole = {.dim_count = piece->dim_count};
		uint64_t index[LOCAL_DIM_MAX];
		array_make(&box, piece->dim_count, piece->extent);
		memcpy(whole.dim, tensors[piece->tensor].dim, sizeof(tensors[0].dim));
		for (uint64_t i = 0; i < box.count; i++) {
			uint64_t place = piece->place;
			index_of(&box, i, index);
			for (uint32_t d = 0; d < piece->dim_count; d++) {
				place += index[d] * (uint64_t)piece->stride[d];
				index[d] += piece->offset[d];
			}
			ck_assert_uint_lt(place, form->element_count);
			ck_assert_uint_eq(ids[place], 0);
			ids[place] = tensor_id(piece->tensor,
					       piece->slot < 0 ? 0 : (uint32_t)experts[piece->slot],
					       offset_of(&whole, index));
		}
		mem_free(box.ids);
	}
	uint64_t at = 0, covered = 0;
	for (uint32_t slot = 0; slot < slots; slot++) {
		struct array want;
		ck_assert(naive(tree, rank, stack ? (uint32_t)experts[slot] : 0, &want));
		ck_assert_uint_eq(form->dim_count, want.dim_count + (stack ? 1 : 0));
		for (uint32_t d = 0; d < want.dim_count; d++)
			ck_assert_uint_eq(form->dim[d + (stack ? 1 : 0)], want.dim[d]);
		for (uint64_t i = 0; i < want.count; i++, at++) {
			ck_assert_uint_eq(ids[at], want.ids[i]);
			covered += want.ids[i] != 0;
		}
		mem_free(want.ids);
	}
	ck_assert_uint_eq(at, form->element_count);
	ck_assert_uint_eq(covered, form->covered_count);
	mem_free(ids);
}

START_TEST(random_expressions_place_every_element_as_the_naive_evaluator_does)
{
	struct random random = {.state = (uint64_t)_i * 1000003};
	struct writer out = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct manifest *manifest;
	struct tree *tree = tree_new(&random, "t", NULL);
	tree->tensor = below(&random, ARRAY_SIZE(tensors));
	bool stack = tensors[tree->tensor].experts, possible = true;
	for (uint32_t steps = 1 + below(&random, 6); steps > 0; steps--)
		tree = grow(&random, tree);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct array array;
		possible = naive(tree, rank, 0, &array) && possible;
		mem_free(array.ids);
	}
	put_manifest(&out, tree, stack);
	int rc = manifest_parse(&manifest, out.bytes, out.count, NULL, &err);
	ck_assert_msg((rc == 0) == possible, "%s, but: %d %s: %.*s",
		      possible ? "possible" : "not so", rc, err.text, (int)out.count,
		      (char *)out.bytes);
	for (uint32_t rank = 0; rank < WORLD && possible; rank++) {
		const struct form *form;
		ck_ok(manifest_form(manifest, 0, rank, &form, &err), err);
		compare(manifest, form, rank, tree, stack);
	}
	manifest_free(manifest);
	writer_release(&out);
	arena_release(&random.arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* ---- Pieces and errors of single expressions. */

static int parse_one(const char *x, struct manifest **manifest, struct ws_error *err)
{
	struct writer out = WRITER_INIT(1 << 20);
	write_format(
		&out,
		"{\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"f\",\"model\":\"m\",\"world\":8,"
		"\"sym\":{\"kv\":4},"
		"\"tensors\":[{\"name\":\"q\",\"dtype\":\"bf16\",\"shape\":[4096,512]},"
		"{\"name\":\"k\",\"dtype\":\"bf16\",\"shape\":[1024,512]}],"
		"\"meshes\":{\"x\":{\"axes\":[[\"dp\",2],[\"tp\",4]]}},"
		"\"params\":[{\"p\":\"param\",\"x\":%s}]}",
		x);
	int rc = manifest_parse(manifest, out.bytes, out.count, NULL, err);
	writer_release(&out);
	return rc;
}

#define REFUSED 0
#define SPARSE	"[\"fl\",[\"p\",[\"r\",[\"t\",\"q\"],1,0,1],1,1099511627776]]"
static const struct {
	const char *x;
	uint32_t pieces;
} piece_counts[] = {
	{"[\"t\",\"q\"]", 1},
	{"[\"s\",[\"t\",\"q\"],1,\"tp\"]", 1},
	{"[\"x\",[\"t\",\"q\"],[1,0]]", 1},
	/* one piece per group and part */
	{"[\"g\",0,\"$kv\",[\"t\",\"q\"],[\"t\",\"k\"]]", 8},
	{"[\"s\",[\"g\",0,\"$kv\",[\"t\",\"q\"],[\"t\",\"k\"]],0,\"tp\"]", 2},
	/* shares of one row: strided, not 2048 pieces */
	{"[\"g\",0,1024,[\"t\",\"k\"],[\"t\",\"k\"]]", 2},
	/* RoPE order of 32 heads: outer * a strided pieces */
	{"[\"il\",[\"t\",\"q\"],0,32,2,64]", 64},
	/* a cut in the middle of rows: head, full rows, tail */
	{"[\"r\",[\"fl\",[\"t\",\"k\"]],0,100,5000]", 3},
	/* what was cut is one piece again */
	{"[\"c\",0,[\"r\",[\"t\",\"q\"],0,0,1000],[\"r\",[\"t\",\"q\"],0,1000,4096]]", 1},
	{"[\"c\",1,[\"r\",[\"t\",\"q\"],1,0,100],[\"r\",[\"t\",\"q\"],1,100,512]]", 1},
	/* of 2^40 groups or blocks of padding nobody looks at each */
	{"[\"g\",0,1099511627776," SPARSE "]", REFUSED},
	{"[\"il\"," SPARSE ",0,4096,549755813888,2]", REFUSED},
};

START_TEST(regular_layouts_take_few_pieces)
{
	struct ws_error err = {0};
	struct manifest *manifest;
	const struct form *form;
	ck_ok(parse_one(piece_counts[_i].x, &manifest, &err), err);
	int rc = manifest_form(manifest, 0, 0, &form, &err);
	ck_assert_int_eq(rc, piece_counts[_i].pieces == REFUSED ? -ENOSPC : 0);
	ck_assert_uint_eq(rc == 0 ? form->piece_count : REFUSED, piece_counts[_i].pieces);
	manifest_free(manifest);
}
END_TEST

static const struct {
	const char *x, *text;
} errors[] = {
	{"[\"s\",[\"r\",[\"t\",\"q\"],0,0,6],0,\"tp\"]",
	 "s: 6 rows of dim 0 don't divide by 4 (axis 'tp')"},
	{"[\"s\",[\"t\",\"q\"],2,\"tp\"]", "s: there is no dim 2 among 2"},
	{"[\"s\",[\"t\",\"q\"],0,\"ep\"]", "mesh 'x' declares no axis 'ep'"},
	{"[\"s\",[\"t\",\"q\"],0,\"tp\",{\"mode\":\"odd\"}]",
	 "the mode must be even, chunk or rep"},
	{"[\"s\",[\"t\",\"q\"],0,\"tp\",{\"units\":2}]", "unknown key 'units'"},
	{"[\"s\",[\"t\",\"q\"],0,\"tp\",{\"mode\":\"rep\",\"unit\":5}]",
	 "s: unit 5 doesn't divide the 4096 rows of dim 0 (axis 'tp')"},
	{"[\"r\",[\"t\",\"q\"],1,500,513]", "r: the range 500 to 513 passes the 512 rows of dim 1"},
	{"[\"r\",[\"t\",\"q\"],1,7,7]", "r: the range 7 to 7 of dim 1 is empty or reversed"},
	{"[\"c\",1,[\"t\",\"q\"],[\"t\",\"k\"]]",
	 "c: dim 0 of part 1 has 1024 elements, of the first 4096"},
	{"[\"g\",0,3,[\"t\",\"q\"]]", "g: 3 groups don't divide the 4096 rows of dim 0 of part 0"},
	{"[\"il\",[\"t\",\"q\"],0,3,3,3]", "il: 3 * 3 * 3 isn't the 4096 rows of dim 0"},
	{"[\"p\",[\"t\",\"q\"],0,0]", "p: the multiple must be an integer from 1 on"},
	{"[\"p\",[\"t\",\"q\"],0,\"$heads\"]", "\"sym\" gives it no value"},
	{"[\"x\",[\"t\",\"q\"],[1,1]]", "x: that isn't a permutation of 2 dims"},
	{"[\"k\",\"E\",[\"t\",\"q\"]]", "it has a `k`, and none of its tensors has {E}"},
	{"[\"t\",\"o\"]", "\"tensors\" has no 'o'"},
	{"[\"y\",[\"t\",\"q\"]]", "there is no node 'y'"},
	{"[\"t\"]", "t: 0 values can't be right"},
	{"[[\"t\",\"q\"]]", "a node must be an array that begins with its letter"},
	{"[\"c\",0]", "c: 1 values can't be right"},
	{"[\"p\",[\"p\",[\"t\",\"q\"],0,1000000000],1,1000000000]", "more than 2^56 elements"},
};

START_TEST(an_error_names_node_dim_numbers_and_axis)
{
	struct ws_error err = {0};
	struct manifest *manifest;
	ck_fails(parse_one(errors[_i].x, &manifest, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, errors[_i].text) != NULL, "'%s' isn't in '%s'",
		      errors[_i].text, err.text);
}
END_TEST

START_TEST(depth_has_a_limit)
{
	struct writer x = WRITER_INIT(1 << 20);
	struct ws_error err = {0};
	struct manifest *manifest;
	for (int i = 0; i < 40; i++)
		write_format(&x, "[\"fl\",");
	write_format(&x, "[\"t\",\"q\"]");
	for (int i = 0; i < 40; i++)
		write_format(&x, "]");
	write_u8(&x, 0);
	ck_fails(parse_one((char *)x.bytes, &manifest, &err), -EINVAL, err);
	ck_assert(strstr(err.text, "nested more than 32 deep") != NULL);
	writer_release(&x);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("expr");
	TCase *tc = tcase_create("expressions");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, random_expressions_place_every_element_as_the_naive_evaluator_does,
			    0, 400);
	tcase_add_loop_test(tc, regular_layouts_take_few_pieces, 0, ARRAY_SIZE(piece_counts));
	tcase_add_loop_test(tc, an_error_names_node_dim_numbers_and_axis, 0, ARRAY_SIZE(errors));
	tcase_add_test(tc, depth_has_a_limit);
	suite_add_tcase(s, tc);
	return s;
}
