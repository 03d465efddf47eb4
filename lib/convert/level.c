/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows carry a move out: the best that this CPU has, found once. */
#include "lib/convert/rows.h"

static const char *const names[CONVERT_LEVEL_COUNT] = {"c", "avx2", "avx512"};

const char *convert_level_name(enum convert_level level)
{
	return names[level];
}

bool convert_level_set(enum convert_level level)
{
	return level == CONVERT_C;
}
