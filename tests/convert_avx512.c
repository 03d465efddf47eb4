/* SPDX-License-Identifier: Apache-2.0 */
/* AVX512, vectors of 16 lanes: bit by bit what the plain C does. */
#include "tests/convert_world.h"

Suite *suite(void)
{
	return level_suite(CONVERT_AVX512);
}
