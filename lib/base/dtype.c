/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: their sizes, and the two ways to spell them. */
#include "lib/base/base.h"

#include <string.h>

static const struct {
	const char *name;	 /* in manifests */
	const char *safetensors; /* in a safetensors header */
	size_t bytes;
} dtypes[WS_DTYPE_COUNT] = {
	[WS_NONE] = {"none", "", 0},
	[WS_BOOL] = {"bool", "BOOL", 1},
	[WS_U8] = {"u8", "U8", 1},
	[WS_I8] = {"i8", "I8", 1},
	[WS_F8_E5M2] = {"f8e5m2", "F8_E5M2", 1},
	[WS_F8_E4M3] = {"f8e4m3", "F8_E4M3", 1},
	[WS_F8_E8M0] = {"f8e8m0", "F8_E8M0", 1},
	[WS_U16] = {"u16", "U16", 2},
	[WS_I16] = {"i16", "I16", 2},
	[WS_F16] = {"f16", "F16", 2},
	[WS_BF16] = {"bf16", "BF16", 2},
	[WS_U32] = {"u32", "U32", 4},
	[WS_I32] = {"i32", "I32", 4},
	[WS_F32] = {"f32", "F32", 4},
	[WS_U64] = {"u64", "U64", 8},
	[WS_I64] = {"i64", "I64", 8},
	[WS_F64] = {"f64", "F64", 8},
};

size_t ws_dtype_bytes(enum ws_dtype dtype)
{
	return (unsigned)dtype < WS_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *ws_dtype_name(enum ws_dtype dtype)
{
	return (unsigned)dtype < WS_DTYPE_COUNT ? dtypes[dtype].name : "none";
}

enum ws_dtype ws_dtype_parse(const char *name)
{
	for (unsigned i = WS_NONE + 1; name != NULL && i < WS_DTYPE_COUNT; i++)
		if (strcmp(name, dtypes[i].name) == 0 || strcmp(name, dtypes[i].safetensors) == 0)
			return (enum ws_dtype)i;
	return WS_NONE;
}
