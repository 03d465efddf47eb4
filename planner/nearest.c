/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "did you mean": the known name with the fewest letters to insert, drop or change, where they
 * are few enough for a slip of the finger.
 */
#include "planner/nearest.h"

#include <string.h>

#include "lib/base/base.h"

#define NEAREST_BYTES_MAX 256

/* One row of the table of distances at a time; gives up beyond `most`. */
static uint32_t distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes,
			 uint32_t most)
{
	uint32_t row[NEAREST_BYTES_MAX + 1];
	for (uint32_t j = 0; j <= b_bytes; j++)
		row[j] = j;
	for (uint32_t i = 1; i <= a_bytes; i++) {
		uint32_t corner = row[0], least = row[0] = i;
		for (uint32_t j = 1; j <= b_bytes; j++) {
			uint32_t change = corner + (a[i - 1] != b[j - 1] ? 1 : 0);
			corner = row[j];
			row[j] = MIN(change, MIN(row[j], row[j - 1]) + 1);
			least = MIN(least, row[j]);
		}
		if (least > most)
			return most + 1;
	}
	return row[b_bytes];
}

void nearest_try(struct nearest *nearest, const char *candidate)
{
	size_t bytes = strlen(nearest->name), other = strlen(candidate);
	uint32_t most = (uint32_t)MIN(bytes / 3, 12);
	if (nearest->best != NULL && nearest->distance == 0)
		return;
	if (nearest->best != NULL)
		most = MIN(most, nearest->distance - 1);
	if (bytes > NEAREST_BYTES_MAX || other > NEAREST_BYTES_MAX ||
	    (bytes > other ? bytes - other : other - bytes) > most)
		return;
	uint32_t found = distance(nearest->name, bytes, candidate, other, most);
	if (found > most)
		return;
	nearest->best = candidate;
	nearest->distance = found;
}
