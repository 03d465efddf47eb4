/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both sides do before and around an engine: turn a user's list of NICs into devices, and
 * the memories of many params into few regions.
 */
#ifndef ENGINE_DEVICES_H
#define ENGINE_DEVICES_H

#include "lib/engine/engine.h"

struct devices {
	char transport[16];
	char text[NICS_MAX][NIC_NAME_MAX];
	struct device device[NICS_MAX]; /* into the two above: what engine_options wants */
	uint32_t count;
	struct nic_speed rail[NICS_MAX]; /* by device */
};

/*
 * Spells the devices and opens each one shortly, so that a NIC that isn't there is an error now.
 * transport NULL: "fabric"; provider NULL: "tcp".  nics are addresses, interfaces or domains (the
 * provider is put in front), or whole devices ("tcp/127.0.0.1"); none: all of this host that
 * aren't skipped.  Fills *devices in place.  Blocks.  -ENODEV, -EINVAL.
 */
int devices_find(struct devices *devices, const char *transport, const char *provider,
		 const char *const *nics, uint32_t nic_count, struct ws_error *err);

/* Where a memory lies among the regions. */
struct memory_place {
	uint32_t region; /* UINT32_MAX: memory of 0 bytes */
	uint64_t offset;
};

/*
 * Registers memories; those that touch, or nearly so (the gap is below a page, so both ends are
 * mapped), share a region.  places_out has an entry per memory.  Not for the data path.
 */
int memories_add(struct engine *engine, const struct ws_memory *memories, uint32_t count,
		 struct memory_place *places_out, struct ws_error *err);

#endif
