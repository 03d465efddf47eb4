/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where this host's GPUs, NICs and cores are, and what follows from it: which NICs serve which
 * GPU, and on which core an I/O thread is near them.
 *
 *	topology_load     hwloc, or a file that `lstopo FILE.xml` saved -> struct topology
 *	nics_list         what a transport offers                       -> nic_info (transport.h)
 *	nics_place        joins the two: PCI address, NUMA node, driver of each NIC
 *	nics_choose       who uses which, and why not (pure)
 *	core_choose       where the I/O thread runs, or why anywhere (pure)
 *
 * Nothing here is for the data path.
 */
#ifndef TOPOLOGY_H
#define TOPOLOGY_H

#include "lib/transport/transport.h"

#define PCI_TEXT_BYTES	16
#define PCI_DEPTH_MAX	12
#define GPUS_MAX	64 /* bits of nic_info.gpus */
#define NICS_CHOSEN_MAX 8  /* for one rank, unless it names more (up to NICS_MAX) */

/* Where a device hangs. */
struct pci_place {
	char address[PCI_TEXT_BYTES]; /* "0000:18:00.0"; empty: not on PCI */
	int numa, package;	      /* the kernel's numbers of node and socket; -1 unknown */
	uint32_t depth;
	uint32_t bridges[PCI_DEPTH_MAX]; /* the host bridge first; equal numbers, the same bridge */
};

/* From near to far.  Below a switch, who shares more of its bridges is nearer. */
enum distance {
	DISTANCE_SWITCH,
	DISTANCE_HOST_BRIDGE,
	DISTANCE_NODE,
	DISTANCE_SOCKET,
	DISTANCE_FAR,
	DISTANCE_UNKNOWN
};

struct topology_gpu {
	struct pci_place at;
	char name[64]; /* its driver's or the PCI database's, or "10de:2330" */
};

/* A network card's device in the kernel; a card may have several (an RDMA and a network one). */
struct topology_nic {
	struct pci_place at;
	char name[64];	 /* "mlx5_0", "ens1f0" */
	bool rdma;	 /* an OpenFabrics device; else a network interface */
	bool efa;	 /* of Amazon's Elastic Fabric Adapter */
	uint32_t ports;	 /* rdma: how many */
	uint64_t active; /* rdma: bit i: port i + 1 is */
};

struct topology_core {
	uint32_t cpu; /* the kernel's number of its first thread */
	int numa;
	bool allowed; /* this process may run there */
};

struct topology {
	struct arena arena; /* owns the arrays */
	bool saved;	    /* from a file: nothing here may be asked of this machine's kernel */
	char host[64];
	struct topology_gpu *gpus; /* in the order of their PCI addresses: GPU 0, 1, ... */
	struct topology_nic *nics; /* by PCI address, then by name */
	struct topology_core *cores;
	uint32_t gpu_count, nic_count, core_count;
	uint32_t numa_count;
	int numa; /* the only node that this process may run on; -1: there are several */
};

/* file NULL: this machine.  30 ms and more; starts no GPU.  *topology is zeroed first; release
 * takes it also after a failure. */
int topology_load(struct topology *topology, const char *file, struct ws_error *err);
void topology_release(struct topology *topology);

/* "0000:18:00.0", "18:00.0" or a number in topology's order -> an index into gpus; NULL: -1, host
 * memory.  -ENODEV names what there is. */
int topology_gpu_find(const struct topology *topology, const char *gpu, int *index_out,
		      struct ws_error *err);

enum distance pci_distance(const struct pci_place *a, const struct pci_place *b);
const char *distance_name(enum distance distance); /* "same switch" */

/* After nics_place. */
enum distance nic_distance(const struct topology *topology, const struct nic_info *info,
			   uint32_t gpu);

/* nics_list for a saved topology: what its file tells of a transport's NICs. */
int topology_nics(const struct topology *topology, struct arena *arena, const char *transport,
		  const char *provider, struct nic_info **infos_out, uint32_t *count_out,
		  struct ws_error *err);

/* What a device's name alone tells, for nics_place: the kernel's devices that it means. */
void nic_info_of(const char *transport, const char *device, struct nic_info *info_out);

/* Fills the second part of infos but for gpus and near. */
void nics_place(const struct topology *topology, struct nic_info *infos, uint32_t count);

/*
 * Which of one transport's NICs serve which GPU, into gpus; and for gpu (an index, or -1: host
 * memory) those that don't serve it are skipped, with the reason.  Who was skipped before serves
 * nobody.
 *
 * A GPU is served by the NICs nearest to it.  GPUs that have the same nearest ones share them
 * evenly: NIC i goes to GPU i modulo their number, or GPU i to NIC i modulo theirs where GPUs are
 * more.  Host memory is served by the NICs of the process's NUMA node, if it is bound to one that
 * has any, else by all.  More than NICS_CHOSEN_MAX are cut.  -ENOMEM.
 */
int nics_choose(const struct topology *topology, int gpu, struct nic_info *infos, uint32_t count,
		struct ws_error *err);

/* Where the I/O thread of a rank should run. */
struct core_choice {
	int cpu;       /* -1: anywhere */
	char why[160]; /* "core 47, on NUMA node 0 beside its NICs"; or why anywhere */
};

/*
 * local_ranks of this job run on this host and this is local_rank of them (0 ranks: unknown).
 * infos: the NICs; skipped ones don't count.  Bound is only who has cores to spare: the core is
 * one of the NICs' NUMA node, from its end, since engines begin at its start, and no other local
 * rank's, whatever NICs that one has and whatever cores it may use.
 */
void core_choose(const struct topology *topology, const struct nic_info *infos, uint32_t count,
		 uint32_t local_rank, uint32_t local_ranks, struct core_choice *choice_out);

#endif
