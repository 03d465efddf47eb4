/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows carry a move out: the best that this CPU has, found once. */
#include <stdatomic.h>

#include "lib/convert/rows.h"

static const struct level {
	const char *name;
	const struct rows *rows; /* NULL: not built for this architecture */
} levels[CONVERT_LEVEL_COUNT] = {
	[CONVERT_C] = {"c", &rows_c},
#ifdef __x86_64__
	[CONVERT_AVX2] = {"avx2", &rows_avx2},
	[CONVERT_AVX512] = {"avx512", &rows_avx512},
#else
	[CONVERT_AVX2] = {"avx2", NULL},
	[CONVERT_AVX512] = {"avx512", NULL},
#endif
};

static const struct rows *_Atomic best;

const char *convert_level_name(enum convert_level level)
{
	return levels[level].name;
}

bool convert_level_set(enum convert_level level)
{
	const struct rows *rows = levels[level].rows;
	if (rows == NULL || !rows->is_here())
		return false;
	atomic_store_explicit(&best, rows, memory_order_release);
	return true;
}

const struct rows *rows_best(void)
{
	const struct rows *rows = atomic_load_explicit(&best, memory_order_acquire);
	for (unsigned level = CONVERT_LEVEL_COUNT; rows == NULL && level-- > 0;) {
		if (convert_level_set((enum convert_level)level))
			rows = levels[level].rows;
	}
	return rows;
}
