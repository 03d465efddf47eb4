/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: a whole safetensors file in memory.  What is accepted must tile the data without
 * a hole, in files that are what they say, and no input may leave memory behind.
 */
#include "lib/base/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void must(bool condition)
{
	if (!condition)
		abort();
}

static void check_tensors(const struct st_tensor *tensors, uint32_t count, uint64_t begin,
			  uint64_t end)
{
	uint64_t at = begin;
	for (uint32_t i = 0; i < count; i++) {
		const struct st_tensor *tensor = &tensors[i];
		uint64_t bits = 0;
		must(tensor->offset == at && tensor->bytes <= end - at);
		must(st_tensor_bits(tensor, &bits, NULL) == 0 && bits == tensor->bytes * 8);
		must(tensor->dim_count <= TENSOR_DIM_MAX && tensor->name != NULL);
		must(tensor->dtype == WS_NONE ||
		     strcmp(st_dtype_name(tensor->dtype), tensor->dtype_name) == 0);
		at += tensor->bytes;
	}
	must(at == end);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	struct arena arena = {0};
	struct st_tensor *tensors = NULL;
	struct ws_error err = {0};
	struct reader in = reader_make(bytes, count);
	uint32_t tensor_count = 0;
	uint64_t header_bytes = read_u64(&in);
	if (in.failed)
		return 0;
	/* A wrong length would end here at once: the fuzzer is to look behind it. */
	size_t left = reader_left(&in), header_count = (size_t)MIN(header_bytes, left);
	const void *header = read_bytes(&in, header_count);
	int rc = st_parse_header(&arena, header, header_count, left - header_count, &tensors,
				 &tensor_count, &err);
	if (rc == 0)
		check_tensors(tensors, tensor_count, 8 + header_count, count);
	else
		must(rc == err.code && err.text[0] != '\0' && tensors == NULL);
	arena_release(&arena);
	must(mem_live_count() == 0);
	return 0;
}
