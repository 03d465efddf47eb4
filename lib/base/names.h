/* SPDX-License-Identifier: Apache-2.0 */
/* Private to lib/base: a set of borrowed names, which finds one that is there already. */
#ifndef NAMES_H
#define NAMES_H

#include "lib/base/base.h"

struct names {
	const char **slots; /* owned; a power of two of them */
	size_t slot_count;
	uint64_t seed; /* random: names from outside can't be chosen to collide */
};

/* For at most count_max names.  -ENOMEM, -EIO. */
int names_open(struct names *names, size_t count_max, struct ws_error *err);
/* Adds name, which must stay; returns the equal one that was there before, or NULL. */
const char *names_add(struct names *names, const char *name);
void names_close(struct names *names); /* also half-open or zeroed */

#endif
