/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of a safetensors header, in the order of the Rust reader's checks (tensor.rs), and
 * where the format says MUST, that.  The header's object is walked, never built as a tree:
 * one tensor at a time goes through cJSON, so that memory is bounded by the tensors.
 */
#include "lib/base/json_scan.h"
#include "lib/base/names.h"
#include "lib/base/st_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* serde_json refuses the 128th level. */
#define HEADER_DEPTH_MAX 127

/* Every dtype that the Rust reader knows; those that weightsync can't move are WS_NONE. */
static const struct {
	const char *name;
	enum ws_dtype dtype;
	uint32_t bits;
} header_dtypes[] = {
	{"BOOL", WS_BOOL, 8},
	{"F4", WS_NONE, 4},
	{"F6_E2M3", WS_NONE, 6},
	{"F6_E3M2", WS_NONE, 6},
	{"U8", WS_U8, 8},
	{"I8", WS_I8, 8},
	{"F8_E5M2", WS_F8_E5M2, 8},
	{"F8_E4M3", WS_F8_E4M3, 8},
	{"F8_E8M0", WS_F8_E8M0, 8},
	{"F8_E4M3FNUZ", WS_NONE, 8},
	{"F8_E5M2FNUZ", WS_NONE, 8},
	{"I16", WS_I16, 16},
	{"U16", WS_U16, 16},
	{"F16", WS_F16, 16},
	{"BF16", WS_BF16, 16},
	{"I32", WS_I32, 32},
	{"U32", WS_U32, 32},
	{"F32", WS_F32, 32},
	{"C64", WS_NONE, 64},
	{"F64", WS_F64, 64},
	{"I64", WS_I64, 64},
	{"U64", WS_U64, 64},
};

static int parse_dtype(struct st_tensor *tensor, const struct json *json, struct ws_error *err)
{
	if (json == NULL || json->type != JSON_STRING)
		return ws_fail(err, -EBADMSG, "dtype is missing or no string");
	for (size_t i = 0; i < ARRAY_SIZE(header_dtypes); i++) {
		if (strcmp(header_dtypes[i].name, json->text) == 0) {
			tensor->dtype = header_dtypes[i].dtype;
			tensor->dtype_name = header_dtypes[i].name;
			return 0;
		}
	}
	return ws_fail(err, -EBADMSG, "dtype '%.40s' is unknown", json->text);
}

const char *st_dtype_name(enum ws_dtype dtype)
{
	for (size_t i = 0; dtype != WS_NONE && i < ARRAY_SIZE(header_dtypes); i++)
		if (header_dtypes[i].dtype == dtype)
			return header_dtypes[i].name;
	return NULL;
}

static uint32_t dtype_bits(const char *name)
{
	size_t i = 0;
	while (header_dtypes[i].name != name)
		i++;
	return header_dtypes[i].bits;
}

/* A whole number from 0 to 2^53-1, written plainly: what JSON readers agree on. */
static int parse_size(const struct json *json, const char *what, uint64_t *size_out,
		      struct ws_error *err)
{
	if (!json->is_integer || json->integer < 0)
		return ws_fail(err, -EBADMSG, "%s holds something else than integers of 0..2^53-1",
			       what);
	*size_out = (uint64_t)json->integer;
	return 0;
}

static int parse_shape(struct st_tensor *tensor, const struct json *json, struct ws_error *err)
{
	if (json == NULL || json->type != JSON_ARRAY)
		return ws_fail(err, -EBADMSG, "shape is missing or no array");
	if (json->count > TENSOR_DIM_MAX)
		return ws_fail(err, -ENOSPC, "it has %u dimensions, and weightsync takes %d",
			       json->count, TENSOR_DIM_MAX);
	for (const struct json *dim = json->first; dim != NULL; dim = dim->next) {
		int rc = parse_size(dim, "shape", &tensor->dim[tensor->dim_count], err);
		if (rc != 0)
			return rc;
		tensor->dim_count++;
	}
	return 0;
}

/* Until the ranges are checked, offset and bytes hold the begin and the end as written. */
static int parse_offsets(struct st_tensor *tensor, const struct json *json, struct ws_error *err)
{
	if (json == NULL || json->type != JSON_ARRAY || json->count != 2)
		return ws_fail(err, -EBADMSG, "data_offsets is missing or no array of two");
	int rc = parse_size(json->first, "data_offsets", &tensor->offset, err);
	return rc != 0 ? rc : parse_size(json->first->next, "data_offsets", &tensor->bytes, err);
}

static int parse_tensor(struct st_tensor *tensor, struct json_slice value, struct ws_error *err)
{
	static const struct json_limits limits = {.bytes_max = ST_TENSOR_TEXT_BYTES_MAX,
						  .depth_max = HEADER_DEPTH_MAX,
						  .node_count_max = ST_TENSOR_NODE_COUNT_MAX};
	struct arena scratch = {0};
	const struct json *json = NULL;
	int rc = 0;
	if (value.at[0] != '{')
		rc = ws_fail(err, -EBADMSG, "it is no object of dtype, shape and data_offsets");
	if (rc == 0)
		rc = json_parse(&scratch, value.at, value.count, &limits, &json, err);
	if (rc == 0)
		rc = parse_dtype(tensor, json_get(json, "dtype"), err);
	if (rc == 0)
		rc = parse_shape(tensor, json_get(json, "shape"), err);
	if (rc == 0)
		rc = parse_offsets(tensor, json_get(json, "data_offsets"), err);
	arena_release(&scratch);
	return rc == 0 ? 0 : ws_fail_in(err, rc, "tensor '%.200s'", tensor->name);
}

static uint32_t count_members(struct json_slice object)
{
	struct json_walk walk = json_walk_make(object);
	struct json_slice key, value;
	uint32_t count = 0;
	while (json_walk_next(&walk, &key, &value))
		count++;
	return count;
}

static int check_metadata_members(struct json_slice object, struct arena *scratch,
				  struct names *names, struct ws_error *err)
{
	struct json_walk walk = json_walk_make(object);
	struct json_slice key, value;
	while (json_walk_next(&walk, &key, &value)) {
		char *name = json_slice_text(scratch, key);
		if (name == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for __metadata__");
		if (names_add(names, name) != NULL)
			return ws_fail(err, -EBADMSG, "__metadata__ has the key '%.200s' twice",
				       name);
		if (value.at[0] != '"')
			return ws_fail(err, -EBADMSG, "__metadata__ '%.200s' is no string", name);
	}
	return 0;
}

/* String to string only, or null; weightsync doesn't use it. */
static int check_metadata(struct json_slice value, struct ws_error *err)
{
	if (value.at[0] == 'n')
		return 0;
	if (value.at[0] != '{')
		return ws_fail(err, -EBADMSG, "__metadata__ is no object");
	uint32_t count = count_members(value);
	if (count > ST_METADATA_COUNT_MAX)
		return ws_fail(err, -ENOSPC, "__metadata__ has %u entries, and the limit is %d",
			       count, ST_METADATA_COUNT_MAX);
	struct arena scratch = {0};
	struct names names;
	int rc = names_open(&names, count, err);
	if (rc == 0)
		rc = check_metadata_members(value, &scratch, &names, err);
	names_close(&names);
	arena_release(&scratch);
	return rc;
}

static int parse_members(struct arena *arena, struct json_slice object, struct names *names,
			 struct st_tensor *tensors, uint32_t *count_out, struct ws_error *err)
{
	struct json_walk walk = json_walk_make(object);
	struct json_slice key, value;
	uint32_t count = 0;
	while (json_walk_next(&walk, &key, &value)) {
		const char *name = json_slice_text(arena, key);
		if (name == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for a tensor's name");
		if (names_add(names, name) != NULL)
			return ws_fail(err, -EBADMSG, "the header has the key '%.200s' twice",
				       name);
		bool metadata = strcmp(name, "__metadata__") == 0;
		struct st_tensor tensor = {.name = name};
		int rc = metadata ? check_metadata(value, err) : parse_tensor(&tensor, value, err);
		if (rc != 0)
			return rc;
		if (!metadata)
			tensors[count++] = tensor;
	}
	*count_out = count;
	return 0;
}

static int compare_ranges(const void *a, const void *b)
{
	const struct st_tensor *left = a, *right = b;
	if (left->offset != right->offset)
		return left->offset < right->offset ? -1 : 1;
	if (left->bytes != right->bytes)
		return left->bytes < right->bytes ? -1 : 1;
	return strcmp(left->name, right->name);
}

int st_tensor_bits(const struct st_tensor *tensor, uint64_t *bits_out, struct ws_error *err)
{
	/* Dim by dim, so that [2^40, 2^40, 0] overflows before it meets its 0, as in Rust. */
	uint64_t bits = 1;
	bool overflow = false;
	for (uint32_t i = 0; i < tensor->dim_count; i++)
		overflow = overflow || __builtin_mul_overflow(bits, tensor->dim[i], &bits);
	if (overflow || __builtin_mul_overflow(bits, dtype_bits(tensor->dtype_name), &bits))
		return ws_fail(err, -EBADMSG, "tensor '%.200s': its shape overflows 64 bits",
			       tensor->name);
	*bits_out = bits;
	return 0;
}

/* One rule forbids overlaps, holes and a first tensor that isn't at 0. */
static int check_range(struct st_tensor *tensor, uint64_t previous_end, struct ws_error *err)
{
	uint64_t begin = tensor->offset, end = tensor->bytes, bits = 0;
	if (begin != previous_end || end < begin)
		return ws_fail(err, -EBADMSG,
			       "tensor '%.200s': its data_offsets [%llu, %llu] don't continue at "
			       "%llu, where the tensor before it ends",
			       tensor->name, (unsigned long long)begin, (unsigned long long)end,
			       (unsigned long long)previous_end);
	int rc = st_tensor_bits(tensor, &bits, err);
	if (rc != 0)
		return rc;
	if (bits % 8 != 0)
		return ws_fail(err, -EBADMSG, "tensor '%.200s': %llu bits are no whole bytes",
			       tensor->name, (unsigned long long)bits);
	if (bits / 8 != end - begin)
		return ws_fail(err, -EBADMSG,
			       "tensor '%.200s': dtype and shape make %llu bytes, and its "
			       "data_offsets %llu",
			       tensor->name, (unsigned long long)(bits / 8),
			       (unsigned long long)(end - begin));
	tensor->bytes = end - begin;
	return 0;
}

static int check_ranges(struct st_tensor *tensors, uint32_t count, uint64_t header_bytes,
			uint64_t data_bytes, struct ws_error *err)
{
	uint64_t end = 0;
	for (uint32_t i = 0; i < count; i++) {
		int rc = check_range(&tensors[i], end, err);
		if (rc != 0)
			return rc;
		end += tensors[i].bytes;
	}
	if (end != data_bytes)
		return ws_fail(err, -EBADMSG,
			       "the tensors cover %llu bytes, and the file has %llu bytes of data",
			       (unsigned long long)end, (unsigned long long)data_bytes);
	for (uint32_t i = 0; i < count; i++)
		tensors[i].offset += 8 + header_bytes;
	return 0;
}

static int scan_header(const void *header, size_t count, uint32_t *member_count_out,
		       struct ws_error *err)
{
	static const struct json_limits limits = {.bytes_max = ST_HEADER_BYTES_MAX,
						  .depth_max = HEADER_DEPTH_MAX,
						  .node_count_max = UINT32_MAX};
	if (count == 0)
		return ws_fail(err, -EBADMSG, "the header is empty");
	if (((const uint8_t *)header)[0] != '{')
		return ws_fail(err, -EBADMSG, "the header doesn't begin with '{'");
	int rc = json_scan(header, count, &limits, member_count_out, err);
	return rc == 0 ? 0 : ws_fail_in(err, rc, "the header isn't right");
}

int st_parse_header_in(struct arena *names_arena, struct arena *arena, const void *header,
		       size_t count, uint64_t data_bytes, struct st_tensor **tensors_out,
		       uint32_t *count_out, struct ws_error *err)
{
	struct json_slice object = {.at = header, .count = count};
	struct names names;
	uint32_t tensor_count = 0, member_count = 0;
	*tensors_out = NULL;
	*count_out = 0;
	int rc = scan_header(header, count, &member_count, err);
	if (rc != 0)
		return rc;
	if (member_count > ST_TENSOR_COUNT_MAX)
		return ws_fail(err, -ENOSPC, "the header has %u tensors, and the limit is %d",
			       member_count, ST_TENSOR_COUNT_MAX);
	struct st_tensor *tensors = arena_array(arena, member_count, sizeof(*tensors));
	if (tensors == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u tensors", member_count);
	rc = names_open(&names, member_count, err);
	if (rc == 0)
		rc = parse_members(names_arena, object, &names, tensors, &tensor_count, err);
	names_close(&names);
	if (rc != 0)
		return rc;
	qsort(tensors, tensor_count, sizeof(*tensors), compare_ranges);
	rc = check_ranges(tensors, tensor_count, count, data_bytes, err);
	if (rc != 0)
		return rc;
	*tensors_out = tensors;
	*count_out = tensor_count;
	return 0;
}

int st_parse_header(struct arena *arena, const void *header, size_t count, uint64_t data_bytes,
		    struct st_tensor **tensors_out, uint32_t *count_out, struct ws_error *err)
{
	return st_parse_header_in(arena, arena, header, count, data_bytes, tensors_out, count_out,
				  err);
}
