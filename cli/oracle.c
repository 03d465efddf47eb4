/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rollout must hold: for every element of a param, the checkpoint's element that the
 * manifest puts there, cast to the trainer's dtype, changed for the version, and then cast to the
 * rollout's, or quantized.  Shares no code with the planner's evaluation of expressions.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/oracle.h"
#include "lib/convert/convert.h"

#define BATCH 4096

struct oracle {
	struct arena arena; /* the manifests */
	const struct json *trainer, *rollout;
	const struct checkpoint *checkpoint;
	uint32_t rank;
};

int oracle_open(struct oracle **oracle_out, const void *trainer_text, size_t trainer_bytes,
		const void *rollout_text, size_t rollout_bytes, uint32_t rank,
		const struct checkpoint *checkpoint, struct ws_error *err)
{
	const struct json_limits limits = JSON_LIMITS_MANIFEST;
	struct oracle *oracle = mem_alloc(sizeof(*oracle));

	*oracle_out = NULL;
	if (oracle == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the oracle");
	oracle->checkpoint = checkpoint;
	oracle->rank = rank;
	int rc = json_parse(&oracle->arena, trainer_text, trainer_bytes, &limits, &oracle->trainer,
			    err);
	if (rc == 0)
		rc = json_parse(&oracle->arena, rollout_text, rollout_bytes, &limits,
				&oracle->rollout, err);
	if (rc != 0)
		oracle_close(oracle);
	else
		*oracle_out = oracle;
	return rc;
}

void oracle_close(struct oracle *oracle)
{
	if (oracle == NULL)
		return;
	arena_release(&oracle->arena);
	mem_free(oracle);
}

/* The whole tensor in the trainer's dtype. */
static int load_tensor(const struct reading *reading, struct tree *tree, struct ws_error *err)
{
	const struct st_tensor *tensor = tree->tensor;
	uint64_t count = tensor->bytes / ws_dtype_bytes(tensor->dtype);
	uint8_t *stored = mem_alloc(tensor->bytes);
	tree->data = mem_alloc(count * ws_dtype_bytes(tree->trained));
	int rc = 0;
	if (stored == NULL || tree->data == NULL)
		rc = ws_fail(err, -ENOMEM, "no memory for tensor '%s'", tensor->name);
	if (rc == 0)
		rc = checkpoint_read(reading->checkpoint, tensor, 0, stored, tensor->bytes, err);
	if (rc == 0)
		convert_move(&(struct move){.src = stored,
					    .dst = tree->data,
					    .dim_count = 1,
					    .extent = {count},
					    .src_stride = {(int64_t)ws_dtype_bytes(tensor->dtype)},
					    .dst_stride = {(int64_t)ws_dtype_bytes(tree->trained)},
					    .from = tensor->dtype,
					    .to = tree->trained});
	mem_free(stored);
	return rc;
}

struct comparison {
	const struct reading *reading;
	struct tree *tree;
	const char *param;
	enum ws_dtype dtype, trained; /* at the rollout, at the trainer */
	const uint8_t *memory;
	uint64_t version;
	uint32_t dim_count;
	uint64_t shape[TREE_DIM_MAX];
	uint64_t index[TREE_DIM_MAX]; /* of the next element */
	uint64_t different;
	struct ws_error *first;

	bool is_coded;		     /* codes or scales, */
	bool is_scale, is_quantized; /* and that they were made on the way */
	bool is_shared;		     /* one scale for all tensors of an expert */
	struct derived derived;	     /* what a post step makes of the param `from` */
	struct scheme scheme;	     /* of both, and of scales that the checkpoint lists */
	uint64_t each[TREE_DIM_MAX]; /* elements of the weight by one of the scale; else 1 */
	struct tree **leaves;	     /* of a scale per tensor, or for several: by element */
};

/* ---------------------------------------------------------------- a scale's elements */

/* How many elements of a local dim of the weight lie under one scale; 0: they aren't in a row. */
static uint64_t local_each(const struct scheme *scheme, const struct tree *tree, uint32_t dim)
{
	switch (tree->op[0]) {
	case 't':
		return oracle_each(scheme, tree, dim);
	case 'k':
		return dim == 0 ? 1 : local_each(scheme, tree->child[0], dim - 1);
	case 'x':
		return local_each(scheme, tree->child[0], tree->perm[dim]);
	case 'f':
		return 0;
	default:
		return local_each(scheme, tree->child[0], dim);
	}
}

static uint32_t count_leaves(const struct tree *tree)
{
	uint32_t count = tree->op[0] == 't';
	for (uint32_t i = 0; i < tree->child_count; i++)
		count += count_leaves(tree->child[i]);
	return count;
}

/* Each tensor once, in the order of the expression, or one for all if they share a scale; for each
 * expert anew: list[from..count) are those of this expert so far. */
static uint32_t list_leaves(struct tree *tree, bool is_shared, struct tree **list, uint32_t from,
			    uint32_t count)
{
	for (uint32_t i = from; tree->op[0] == 't' && i < count; i++)
		if (is_shared || list[i]->tensor == tree->tensor)
			return count;
	if (tree->op[0] == 't')
		list[count++] = tree;
	for (uint32_t i = 0; i < tree->child_count; i++)
		count = list_leaves(tree->child[i], is_shared, list,
				    tree->op[0] == 'k' ? count : from, count);
	return count;
}

/* Whether the manifest lists the scale of a tensor below: then each has its own. */
static bool lists_scale(const struct comparison *compare, const struct spot *spot,
			const struct tree *tree)
{
	const struct json *tensors = json_get(spot->manifest, "tensors");
	char name[2 * NAME_MAX_BYTES];
	if (tree->op[0] == 't') {
		snprintf(name, sizeof(name), "%s%s", tree->tensor->name, compare->scheme.suffix);
		for (const struct json *at = tensors->first; at != NULL; at = at->next)
			if (name_matches(json_text(at, "name", ""), name))
				return true;
	}
	for (uint32_t i = 0; i < tree->child_count; i++)
		if (lists_scale(compare, spot, tree->child[i]))
			return true;
	return false;
}

static int shape_scale(struct comparison *compare, struct ws_error *err)
{
	const struct tree *tree = compare->tree;
	if (compare->scheme.whole) {
		compare->leaves = arena_array(compare->reading->arena, count_leaves(tree),
					      sizeof(struct tree *));
		if (compare->leaves == NULL)
			return ws_fail(err, -ENOMEM, "oracle: no memory");
		compare->dim_count = 1;
		compare->shape[0] =
			list_leaves(compare->tree, compare->is_shared, compare->leaves, 0, 0);
		return 0;
	}
	for (uint32_t d = 0; d < tree->dim_count; d++) {
		uint64_t each = local_each(&compare->scheme, tree, d);
		if (each == 0)
			return ws_fail(err, -ENOTSUP, "oracle: the scale '%s' is of a flat weight",
				       compare->param);
		compare->each[d] = each;
		compare->shape[d] = (tree->shape[d] + each - 1) / each;
	}
	return 0;
}

/* The first tensor below. */
static struct tree *first_leaf(struct tree *tree)
{
	while (tree->child_count > 0)
		tree = tree->child[0];
	return tree;
}

/* A scale that isn't made on the way: the tensor that the checkpoint lists for a weight. */
static int find_listed(const struct comparison *compare, struct tree *weight, struct ws_error *err)
{
	char name[2 * NAME_MAX_BYTES];
	if (weight->listed != NULL)
		return 0;
	weight->listed = arena_alloc(compare->reading->arena, sizeof(*weight->listed));
	if (weight->listed == NULL)
		return ws_fail(err, -ENOMEM, "oracle: no memory");
	snprintf(name, sizeof(name), "%s%s", weight->tensor->name, compare->scheme.suffix);
	return tree_leaf(compare->reading, name, weight->listed, err);
}

/* What the param is, by its entry: elements, codes of them, or scales. */
static int shape_param(struct comparison *compare, const struct spot *spot, struct ws_error *err)
{
	compare->trained = first_leaf(compare->tree)->trained;
	compare->is_scale = spot->is_scale;
	compare->dim_count = compare->tree->dim_count;
	for (uint32_t d = 0; d < compare->dim_count; d++) {
		compare->shape[d] = compare->tree->shape[d];
		compare->each[d] = 1;
	}
	compare->is_coded = json_get(spot->param, "q") != NULL;
	if (!compare->is_coded)
		return 0;
	int rc = oracle_find(spot, &compare->scheme, err);
	if (rc != 0)
		return rc;
	compare->is_quantized = compare->trained != compare->scheme.code;
	compare->is_shared = compare->is_quantized && compare->scheme.whole &&
			     !lists_scale(compare, spot, compare->tree);
	if (compare->is_scale)
		rc = shape_scale(compare, err);
	if (rc == 0 && compare->is_scale && !compare->is_quantized) {
		struct tree *weight = first_leaf(compare->tree);
		rc = find_listed(compare, weight, err);
		if (rc == 0)
			compare->trained = weight->listed->trained;
	}
	return rc;
}

/* ---------------------------------------------------------------- one element */

/* The tensor whose element stands at index, NULL for a zero.  Of a scale: the weight, and the first
 * element under it. */
static struct tree *locate(const struct comparison *compare, const uint64_t *index,
			   uint64_t *element_out)
{
	uint64_t below[TREE_DIM_MAX];
	*element_out = 0;
	if (compare->leaves != NULL)
		return compare->leaves[index[0]];
	if (compare->derived.from[0] != '\0') {
		derived_place(&compare->derived, index, below);
		return tree_locate(compare->tree, below, element_out);
	}
	for (uint32_t d = 0; d < compare->dim_count; d++)
		below[d] = index[d] * compare->each[d];
	return tree_locate(compare->tree, below, element_out);
}

/* The bits of an element in the dtype in which the trainer holds it. */
static int trained_bits(const struct comparison *compare, struct tree *leaf, uint64_t element,
			void *out, struct ws_error *err)
{
	size_t each = ws_dtype_bytes(leaf->trained);
	uint32_t bits = 0;
	int rc = leaf->data == NULL ? load_tensor(compare->reading, leaf, err) : 0;

	if (rc != 0)
		return rc;
	memcpy(out, leaf->data + element * each, each);
	memcpy(&bits, out, MIN(each, sizeof(bits)));
	bits ^= change_mask(leaf->trained, bits, leaf->hash, element, compare->version);
	memcpy(out, &bits, MIN(each, sizeof(bits)));
	return 0;
}

/* Those of the next element. */
static int expect_trained(struct comparison *compare, struct tree *leaf, uint64_t element,
			  void *out, struct ws_error *err)
{
	int rc = 0;

	if (compare->is_scale) {
		rc = find_listed(compare, leaf, err);
		element = oracle_block(&compare->scheme, leaf, element);
		leaf = leaf->listed;
	}
	if (rc == 0 && leaf->trained != compare->trained)
		rc = ws_fail(err, -ENOTSUP, "oracle: param '%s' mixes dtypes", compare->param);
	return rc == 0 ? trained_bits(compare, leaf, element, out, err) : rc;
}

/* The largest scale of an expert's tensors, each taken alone; a NaN is larger. */
static int find_most(const struct comparison *compare, struct tree *tree, int32_t expert,
		     float *most, struct ws_error *err)
{
	int rc = 0;
	if (tree->op[0] == 't' && tree->expert == expert) {
		if (tree->data == NULL)
			rc = load_tensor(compare->reading, tree, err);
		if (rc == 0)
			rc = oracle_scales(&compare->scheme, tree, compare->version, err);
		if (rc == 0 && !isnan(*most) && !(tree->scales[0] <= *most))
			*most = tree->scales[0];
	}
	for (uint32_t i = 0; rc == 0 && i < tree->child_count; i++)
		rc = find_most(compare, tree->child[i], expert, most, err);
	return rc;
}

static void set_most(struct tree *tree, int32_t expert, float most)
{
	if (tree->op[0] == 't' && tree->expert == expert)
		tree->scales[0] = most;
	for (uint32_t i = 0; i < tree->child_count; i++)
		set_most(tree->child[i], expert, most);
}

/* Engines requantize what they fuse to the largest of the parts' scales, and so it is here. */
static int share_scale(const struct comparison *compare, int32_t expert, struct ws_error *err)
{
	float most = 0;
	int rc = find_most(compare, compare->tree, expert, &most, err);
	if (rc == 0)
		set_most(compare->tree, expert, most);
	return rc;
}

/* A tensor's scales, as they are made on the way. */
static int make_scales(const struct comparison *compare, struct tree *leaf, struct ws_error *err)
{
	int rc = leaf->data == NULL ? load_tensor(compare->reading, leaf, err) : 0;

	if (rc != 0 || leaf->scales != NULL)
		return rc;
	return compare->is_shared ? share_scale(compare, leaf->expert, err)
				  : oracle_scales(&compare->scheme, leaf, compare->version, err);
}

/* The next element as BF16, of the code and the scale that have landed. */
static int expect_decoded(struct comparison *compare, struct tree *leaf, uint64_t element,
			  void *out, struct ws_error *err)
{
	const struct scheme *scheme = &compare->scheme;
	uint64_t block = oracle_block(scheme, leaf, element);
	uint32_t code = 0, scale_bits = 0;
	float scale = 0;
	int rc;

	if (compare->is_quantized) {
		rc = make_scales(compare, leaf, err);
		if (rc == 0) {
			code = oracle_code(scheme, leaf, element, compare->version);
			scale = leaf->scales[block];
		}
	} else {
		rc = trained_bits(compare, leaf, element, &code, err);
		if (rc == 0)
			rc = find_listed(compare, leaf, err);
		if (rc == 0)
			rc = trained_bits(compare, leaf->listed, block, &scale_bits, err);
		if (rc == 0)
			scale = oracle_value(leaf->listed->trained, scale_bits);
	}
	if (rc == 0)
		memcpy(out, &(uint16_t){oracle_decode(scheme, code, scale)}, sizeof(uint16_t));
	return rc;
}

/* The bits of the next code or scale. */
static int expect_quantized(struct comparison *compare, struct tree *leaf, uint64_t element,
			    void *out, struct ws_error *err)
{
	const struct scheme *scheme = &compare->scheme;
	int rc = make_scales(compare, leaf, err);
	if (rc != 0)
		return rc;
	uint32_t bits = compare->is_scale
				? oracle_scale_bits(
					  scheme, leaf->scales[oracle_block(scheme, leaf, element)])
				: oracle_code(scheme, leaf, element, compare->version);
	memcpy(out, &bits, ws_dtype_bytes(compare->dtype));
	return 0;
}

static void advance(struct comparison *compare)
{
	for (uint32_t d = compare->dim_count; d-- > 0;) {
		if (++compare->index[d] < compare->shape[d])
			return;
		compare->index[d] = 0;
	}
}

/* What the next elements must be, in the rollout's dtype. */
static int expect_batch(struct comparison *compare, uint64_t count, uint8_t *want,
			struct ws_error *err)
{
	static _Thread_local uint8_t trained[BATCH * 8];
	bool decoded = compare->derived.from[0] != '\0' && compare->is_coded;
	bool made = compare->is_quantized || decoded;
	size_t from = ws_dtype_bytes(compare->trained), to = ws_dtype_bytes(compare->dtype);
	int rc = 0;

	for (uint64_t i = 0; rc == 0 && i < count; i++) {
		uint64_t element;
		struct tree *leaf = locate(compare, compare->index, &element);
		void *out = made ? want + i * to : trained + i * from;
		if (leaf == NULL)
			memset(out, 0, made ? to : from);
		else
			rc = decoded ? expect_decoded(compare, leaf, element, out, err)
			     : made  ? expect_quantized(compare, leaf, element, out, err)
				     : expect_trained(compare, leaf, element, out, err);
		advance(compare);
	}
	if (rc == 0 && !made)
		convert_move(&(struct move){.src = trained,
					    .dst = want,
					    .dim_count = 1,
					    .extent = {count},
					    .src_stride = {(int64_t)from},
					    .dst_stride = {(int64_t)to},
					    .from = compare->trained,
					    .to = compare->dtype});
	return rc;
}

/* ---------------------------------------------------------------- the comparison */

/* Names the first difference in canonical coordinates. */
static void describe(struct comparison *compare, const uint64_t *index, uint64_t position,
		     const uint8_t *want, const uint8_t *got)
{
	uint64_t element = 0;
	uint64_t want_bits = 0, got_bits = 0;
	size_t each = ws_dtype_bytes(compare->dtype);
	struct tree *leaf = locate(compare, index, &element);
	memcpy(&want_bits, want, each);
	memcpy(&got_bits, got, each);
	ws_fail(compare->first, -EIO,
		"param '%s' element %" PRIu64 ": expected 0x%" PRIx64 " (%selement %" PRIu64
		" of '%s'), got 0x%" PRIx64,
		compare->param, position, want_bits, compare->is_scale ? "scale of " : "", element,
		leaf != NULL ? leaf->tensor->name : "padding", got_bits);
}

static int compare_batch(struct comparison *compare, uint64_t begin, uint64_t count,
			 struct ws_error *err)
{
	static _Thread_local uint8_t want[BATCH * 8];
	uint64_t start[TREE_DIM_MAX];
	size_t each = ws_dtype_bytes(compare->dtype);

	memcpy(start, compare->index, sizeof(start));
	int rc = expect_batch(compare, count, want, err);
	const uint8_t *got = compare->memory + begin * each;
	if (rc != 0 || memcmp(want, got, count * each) == 0)
		return rc;
	memcpy(compare->index, start, sizeof(start));
	for (uint64_t i = 0; i < count; i++) {
		if (memcmp(want + i * each, got + i * each, each) != 0) {
			if (compare->first != NULL && compare->first->code == 0)
				describe(compare, compare->index, begin + i, want + i * each,
					 got + i * each);
			for (size_t b = 0; b < each; b++)
				compare->different += want[i * each + b] != got[i * each + b];
		}
		advance(compare);
	}
	return 0;
}

int oracle_compare(struct oracle *oracle, const char *param, enum ws_dtype dtype,
		   const void *memory, uint64_t bytes, uint64_t version, uint64_t *verified_bytes,
		   uint64_t *different_bytes, struct ws_error *first, struct ws_error *err)
{
	struct arena arena = {0};
	struct reading reading = {
		.arena = &arena, .checkpoint = oracle->checkpoint, .trainer = oracle->trainer};
	struct comparison compare = {.reading = &reading,
				     .param = param,
				     .dtype = dtype,
				     .memory = memory,
				     .version = version,
				     .first = first};
	struct spot spot;
	uint64_t count = bytes / ws_dtype_bytes(dtype), shaped = 1;

	int rc = derived_find(oracle->rollout, param, &compare.derived, err);
	bool is_derived = compare.derived.from[0] != '\0';
	if (rc == 0)
		rc = spot_find(&reading, oracle->rollout, oracle->rank,
			       is_derived ? compare.derived.from : param, &spot, err);
	if (rc == 0)
		rc = tree_make(&reading, &spot, json_get(spot.param, "x"), spot.expert,
			       &compare.tree, err);
	if (rc == 0)
		rc = shape_param(&compare, &spot, err);
	if (rc == 0 && is_derived)
		compare.dim_count = derived_shape(&compare.derived, compare.tree, compare.shape);
	for (uint32_t d = 0; rc == 0 && d < compare.dim_count; d++)
		shaped *= compare.shape[d];
	if (rc == 0 && shaped != count)
		rc = ws_fail(err, -EINVAL,
			     "oracle: param '%s' must have %" PRIu64 " elements, it has %" PRIu64,
			     param, shaped, count);
	for (uint64_t at = 0; rc == 0 && at < count; at += BATCH)
		rc = compare_batch(&compare, at, MIN(count - at, (uint64_t)BATCH), err);
	tree_release(compare.tree);
	arena_release(&arena);
	*verified_bytes = bytes;
	*different_bytes = compare.different;
	return rc;
}
