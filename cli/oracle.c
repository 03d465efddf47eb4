/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rollout must hold: for every element of a param, the checkpoint's element that the
 * manifest puts there, cast to the trainer's dtype, changed for the version, cast to the rollout's.
 * Shares no code with the planner's evaluation of expressions.
 */
#include <errno.h>
#include <inttypes.h>
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
	uint64_t index[TREE_DIM_MAX]; /* of the next element */
	uint64_t different;
	struct ws_error *first;
};

/* The expected bits of the next element, in the trainer's dtype. */
static int expect(struct comparison *compare, void *out, struct ws_error *err)
{
	uint64_t element = 0;
	size_t each = ws_dtype_bytes(compare->trained);
	uint32_t bits = 0;
	struct tree *leaf = tree_locate(compare->tree, compare->index, &element);

	if (leaf == NULL) {
		memset(out, 0, each);
		return 0;
	}
	int rc = leaf->data == NULL ? load_tensor(compare->reading, leaf, err) : 0;
	if (rc != 0)
		return rc;
	if (leaf->trained != compare->trained)
		return ws_fail(err, -ENOTSUP, "oracle: param '%s' mixes dtypes", compare->param);
	memcpy(out, leaf->data + element * each, each);
	memcpy(&bits, out, MIN(each, sizeof(bits)));
	bits ^= change_mask(leaf->trained, bits, leaf->hash, element, compare->version);
	memcpy(out, &bits, MIN(each, sizeof(bits)));
	return 0;
}

static void advance(struct comparison *compare)
{
	for (uint32_t d = compare->tree->dim_count; d-- > 0;) {
		if (++compare->index[d] < compare->tree->shape[d])
			return;
		compare->index[d] = 0;
	}
}

/* Names the first difference in canonical coordinates. */
static void describe(struct comparison *compare, const uint64_t *index, uint64_t position,
		     const uint8_t *want, const uint8_t *got)
{
	uint64_t element = 0;
	uint64_t want_bits = 0, got_bits = 0;
	size_t each = ws_dtype_bytes(compare->dtype);
	struct tree *leaf = tree_locate(compare->tree, index, &element);
	memcpy(&want_bits, want, each);
	memcpy(&got_bits, got, each);
	ws_fail(compare->first, -EIO,
		"param '%s' element %" PRIu64 ": expected 0x%" PRIx64 " (element %" PRIu64
		" of '%s'), got 0x%" PRIx64,
		compare->param, position, want_bits, element,
		leaf != NULL ? leaf->tensor->name : "padding", got_bits);
}

static int compare_batch(struct comparison *compare, uint64_t begin, uint64_t count,
			 struct ws_error *err)
{
	static _Thread_local uint8_t raw[BATCH * 8], want[BATCH * 8];
	uint64_t start[TREE_DIM_MAX];
	size_t from = ws_dtype_bytes(compare->trained), to = ws_dtype_bytes(compare->dtype);
	int rc = 0;

	memcpy(start, compare->index, sizeof(start));
	for (uint64_t i = 0; rc == 0 && i < count; i++) {
		rc = expect(compare, raw + i * from, err);
		advance(compare);
	}
	if (rc != 0)
		return rc;
	convert_move(&(struct move){.src = raw,
				    .dst = want,
				    .dim_count = 1,
				    .extent = {count},
				    .src_stride = {(int64_t)from},
				    .dst_stride = {(int64_t)to},
				    .from = compare->trained,
				    .to = compare->dtype});
	const uint8_t *got = compare->memory + begin * to;
	if (memcmp(want, got, count * to) == 0)
		return 0;
	memcpy(compare->index, start, sizeof(start));
	for (uint64_t i = 0; i < count; i++) {
		if (memcmp(want + i * to, got + i * to, to) != 0) {
			if (compare->first != NULL && compare->first->code == 0)
				describe(compare, compare->index, begin + i, want + i * to,
					 got + i * to);
			for (size_t b = 0; b < to; b++)
				compare->different += want[i * to + b] != got[i * to + b];
		}
		advance(compare);
	}
	return 0;
}

/* The dtype of the first tensor below. */
static enum ws_dtype first_trained(const struct tree *tree)
{
	while (tree->child_count > 0)
		tree = tree->child[0];
	return tree->trained;
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

	int rc = spot_find(&reading, oracle->rollout, oracle->rank, param, &spot, err);
	if (rc == 0)
		rc = tree_make(&reading, &spot, json_get(spot.param, "x"), spot.expert,
			       &compare.tree, err);
	for (uint32_t d = 0; rc == 0 && d < compare.tree->dim_count; d++)
		shaped *= compare.tree->shape[d];
	if (rc == 0 && shaped != count)
		rc = ws_fail(err, -EINVAL,
			     "oracle: param '%s' must have %" PRIu64 " elements, it has %" PRIu64,
			     param, shaped, count);
	if (rc == 0)
		compare.trained = first_trained(compare.tree);
	for (uint64_t at = 0; rc == 0 && at < count; at += BATCH)
		rc = compare_batch(&compare, at, MIN(count - at, (uint64_t)BATCH), err);
	tree_release(compare.tree);
	arena_release(&arena);
	*verified_bytes = bytes;
	*different_bytes = compare.different;
	return rc;
}
