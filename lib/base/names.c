/* SPDX-License-Identifier: Apache-2.0 */
/* The set of names: open addressing, at most half full, so that a probe is short. */
#include "lib/base/names.h"

#include <errno.h>
#include <string.h>

int names_open(struct names *names, size_t count_max, struct ws_error *err)
{
	size_t slot_count = 8;
	*names = (struct names){0};
	while (slot_count / 2 < count_max)
		slot_count *= 2;
	names->slots = mem_alloc(slot_count * sizeof(names->slots[0]));
	if (names->slots == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for a set of %zu names", count_max);
	names->slot_count = slot_count;
	return random_bytes(&names->seed, sizeof(names->seed), err);
}

const char *names_add(struct names *names, const char *name)
{
	size_t mask = names->slot_count - 1;
	size_t slot = (size_t)digest_bytes(name, strlen(name), names->seed) & mask;
	/* Half of the slots are empty, so that the probe ends. */
	while (names->slots[slot] != NULL) {
		if (strcmp(names->slots[slot], name) == 0)
			return names->slots[slot];
		slot = (slot + 1) & mask;
	}
	names->slots[slot] = name;
	return NULL;
}

void names_close(struct names *names)
{
	mem_free(names->slots);
	*names = (struct names){0};
}
