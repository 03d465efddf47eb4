/* SPDX-License-Identifier: Apache-2.0 */
/* The weights that bench convert converts, on a core or a GPU: experts of Qwen3-30B-A3B. */
#ifndef EXPERTS_H
#define EXPERTS_H

#include "lib/base/base.h"

#define ROWS	     768
#define COLUMNS	     2048
#define BLOCK	     128
#define GRID_COLUMNS (COLUMNS / BLOCK)
#define ELEMENTS     ((uint64_t)ROWS * COLUMNS)
#define ENTRIES	     ((uint64_t)ROWS / BLOCK * GRID_COLUMNS)

/* The i-th of all.  The sum of four digits looks like a bell, as weights do. */
static inline float expert_weight(uint64_t i)
{
	uint64_t x = mix64(i + 1);
	int sum = (int)(x & 0xffff) + (int)(x >> 16 & 0xffff) + (int)(x >> 32 & 0xffff) +
		  (int)(x >> 48) - 131070;
	return (float)sum * 0x1p-22F;
}

#endif
