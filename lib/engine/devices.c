/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's NICs as devices, and params' memories as regions: what a trainer and a rollout do
 * alike.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine/devices.h"

#define GAP_BYTES_MAX 4095u

/* ---------------------------------------------------------------- devices */

static int device_put(struct devices *devices, const char *provider, const char *nic,
		      struct ws_error *err)
{
	if (devices->count == NICS_MAX)
		return ws_fail(err, -EINVAL, "more than %d NICs are named for one rank", NICS_MAX);
	char *text = devices->text[devices->count];
	bool whole = strcmp(devices->transport, "fabric") != 0 || strchr(nic, '/') != NULL;
	int n = whole ? snprintf(text, NIC_NAME_MAX, "%s", nic)
		      : snprintf(text, NIC_NAME_MAX, "%s/%s", provider, nic);
	if (n < 0 || n >= NIC_NAME_MAX)
		return ws_fail(err, -EINVAL, "the NIC name '%s' is longer than %d bytes", nic,
			       NIC_NAME_MAX - 1);
	devices->device[devices->count++] =
		(struct device){.transport = devices->transport, .name = text};
	return 0;
}

/* All of this host that nobody has a reason to skip. */
static int devices_of_host(struct devices *devices, const char *provider, struct ws_error *err)
{
	struct arena arena = {0};
	struct nic_info *infos;
	uint32_t count;
	const char *skipped = NULL;

	int rc = nics_list(&arena, devices->transport, provider, &infos, &count, err);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		if (infos[i].skipped[0] == 0)
			rc = device_put(devices, provider, infos[i].device, err);
		else if (skipped == NULL)
			skipped =
				arena_text(&arena, "'%s' (%s)", infos[i].device, infos[i].skipped);
	}
	if (rc == 0 && devices->count == 0)
		rc = ws_fail(err, -ENODEV,
			     "this host has no NIC for %s/%s that is used unasked%s%s; name one",
			     devices->transport, provider, skipped != NULL ? "; skipped: " : "",
			     skipped != NULL ? skipped : "");
	arena_release(&arena);
	return rc;
}

int devices_find(struct devices *devices, const char *transport, const char *provider,
		 const char *const *nics, uint32_t nic_count, struct ws_error *err)
{
	int rc = 0;

	memset(devices, 0, sizeof(*devices));
	if (transport == NULL)
		transport = "fabric";
	if (provider == NULL)
		provider = "tcp";
	if (strlen(transport) >= sizeof(devices->transport))
		return ws_fail(err, -ENODEV, "no transport is named '%s'", transport);
	snprintf(devices->transport, sizeof(devices->transport), "%s", transport);
	for (uint32_t i = 0; rc == 0 && i < nic_count; i++)
		rc = device_put(devices, provider, nics[i], err);
	if (rc == 0 && nic_count == 0)
		rc = devices_of_host(devices, provider, err);
	for (uint32_t i = 0; rc == 0 && i < devices->count; i++) {
		struct nic *nic;
		rc = nic_open(&nic, devices->device[i].transport, devices->device[i].name, err);
		if (rc == 0) {
			devices->rail[i] = engine_rail_of(nic);
			nic_close(nic);
		}
	}
	return rc;
}

/* ---------------------------------------------------------------- memories */

struct sorted {
	const struct ws_memory *memory;
	uint32_t index;
};

static int by_address(const void *a, const void *b)
{
	const struct ws_memory *x = ((const struct sorted *)a)->memory;
	const struct ws_memory *y = ((const struct sorted *)b)->memory;

	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return (uintptr_t)x->base < (uintptr_t)y->base ? -1
						       : (uintptr_t)x->base > (uintptr_t)y->base;
}

/* Grows *region over next if they nearly touch. */
static bool region_takes(struct ws_memory *region, const struct ws_memory *next)
{
	uintptr_t end = (uintptr_t)region->base + region->bytes;

	if (region->place != next->place || region->device != next->device ||
	    (uintptr_t)next->base > end + GAP_BYTES_MAX)
		return false;
	uintptr_t next_end = (uintptr_t)next->base + next->bytes;
	region->bytes = MAX(end, next_end) - (uintptr_t)region->base;
	return true;
}

int memories_add(struct engine *engine, const struct ws_memory *memories, uint32_t count,
		 struct memory_place *places_out, struct ws_error *err)
{
	struct sorted *list = mem_alloc(count * sizeof(*list));
	uint32_t used = 0, first = 0;
	int rc = 0;

	if (list == NULL)
		return ws_fail(err, -ENOMEM, "no memory to sort %u params", count);
	for (uint32_t i = 0; i < count; i++) {
		places_out[i] = (struct memory_place){.region = UINT32_MAX};
		if (memories[i].bytes > 0)
			list[used++] = (struct sorted){.memory = &memories[i], .index = i};
	}
	qsort(list, used, sizeof(*list), by_address);
	while (rc == 0 && first < used) {
		struct ws_memory region = *list[first].memory;
		uint32_t end = first + 1, number;
		while (end < used && region_takes(&region, list[end].memory))
			end++;
		rc = engine_region_add(engine, &region, &number, err);
		for (; rc == 0 && first < end; first++)
			places_out[list[first].index] = (struct memory_place){
				.region = number,
				.offset = (uintptr_t)list[first].memory->base -
					  (uintptr_t)region.base,
			};
	}
	mem_free(list);
	return rc;
}
