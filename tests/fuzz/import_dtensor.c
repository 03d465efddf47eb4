/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer: a DTensor dump's text. */
#include "tests/fuzz/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	return fuzz_import("dtensor", bytes, count);
}
