/* SPDX-License-Identifier: Apache-2.0 */
/* nearest.c: the best of the candidates for a name that nobody knows. */
#ifndef NEAREST_H
#define NEAREST_H

#include <stdint.h>

struct nearest {
	const char *name;  /* what was written */
	const char *best;  /* NULL: none is near; borrowed from the candidates */
	uint32_t distance; /* of best */
};

/* Once there are as many findings, names aren't looked for: a search takes time, and who has so
 * many has another fault. */
#define NEAREST_FINDINGS_MAX 16

void nearest_try(struct nearest *nearest, const char *candidate);

#endif
