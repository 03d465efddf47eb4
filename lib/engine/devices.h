/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both sides do before and around an engine: turn a user's list of NICs into devices, and
 * the memories of many params into few regions.
 */
#ifndef ENGINE_DEVICES_H
#define ENGINE_DEVICES_H

#include "lib/engine/engine.h"
#include "lib/transport/topology.h"

#define DEVICES_CHOICE_BYTES 600

struct devices {
	struct device device[NICS_MAX]; /* what engine_options wants; names are in text */
	char text[NICS_MAX][NIC_NAME_MAX];
	uint32_t count;
	struct nic_speed rail[NICS_MAX]; /* by device */
	/* Subnet of what joins only processes of this host; empty: nothing does. */
	char inside[NIC_NAME_MAX];
	/* For people, what was chosen and why not something better: "ipc host; fabric
	 * tcp/192.0.2.7 (this host has no RDMA device)". */
	char choice[DEVICES_CHOICE_BYTES];
	struct core_choice core; /* where the I/O thread runs; why is empty if nobody asked */
};

/* What a side's options say; zeroes are defaults. */
struct devices_wanted {
	const char *transport, *provider;
	const char *const *nics;
	uint32_t nic_count;
	const char *gpu;		  /* see topology_gpu_find; NULL: host memory */
	uint32_t local_rank, local_ranks; /* see core_choose */
};

/*
 * Chooses and spells the devices, and opens each one shortly, so that a NIC that can't be used is
 * an error now.  Fills *devices in place.  Blocks.  -ENODEV, -EINVAL, or what opening one said.
 *
 * transport "auto" (or NULL): ipc, if it opens, for peers on this host, and for the others the
 * first of verbs, libfabric's efa and libfabric's tcp that has a NIC here which isn't skipped
 * (provider: only that one of libfabric's).  Another transport: only its NICs, all that aren't
 * skipped.  Of a transport's NICs those are taken that serve the GPU, or the process's NUMA node
 * (nics_choose).
 *
 * nics replace the choice of those for other hosts: addresses, interfaces or domains (libfabric's,
 * the provider is put in front, NULL: "tcp"), whole devices ("tcp/127.0.0.1", "mlx5_0/1"), or with
 * "auto" also devices of any transport with its name in front ("verbs:mlx5_0/1").
 */
int devices_find(struct devices *devices, const struct devices_wanted *wanted,
		 struct ws_error *err);

/* Where a memory lies among the regions. */
struct memory_place {
	uint32_t region; /* UINT32_MAX: memory of 0 bytes */
	uint64_t offset;
};

/* Where they lie, as place and device of *place_out: the host where there are none.  -ENOTSUP
 * unless all lie in one place. */
int memories_place(const struct ws_memory *memories, uint32_t count, struct ws_memory *place_out,
		   struct ws_error *err);

/*
 * Registers memories; those that touch, or nearly so (the gap is below a page, so both ends are
 * mapped), share a region, unless they are of two allocations of a GPU's or of
 * ws_memory_alloc's.  places_out has an entry per memory.  Not for the data path.
 */
int memories_add(struct engine *engine, const struct ws_memory *memories, uint32_t count,
		 enum mr_use use, struct memory_place *places_out, struct ws_error *err);

/* The host's memory page-locked for a GPU: those that touch together, whole pages, and none that is
 * already. */
struct pins {
	int device;
	void **bases; /* owned */
	uint32_t count;
};

/* On the caller's thread: it takes long (a second for a few GB).  The caller's current GPU stays
 * what it was.  *pins may be released after an error, too. */
int memories_pin(const struct ws_memory *memories, uint32_t count, int device, struct pins *pins,
		 struct ws_error *err);
void memories_unpin(struct pins *pins);

/*
 * Memory of my own that peers write to: at least so many bytes of it, registered, at a place that
 * may change.  *region is UINT32_MAX before the first time, and where nothing is needed.  Not for
 * the data path.
 */
int memory_fit(struct engine *engine, struct ws_memory *memory, uint32_t *region, uint64_t bytes,
	       struct ws_error *err);

#endif
