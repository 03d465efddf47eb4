/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pure answers from a topology: how far two devices are from each other, which NICs serve which
 * GPU and why the others don't, and a core for the I/O thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/topology.h"

/* A rank keeps three threads busy: the caller's, I/O and stage; and the host has its own work. */
#define CORES_PER_RANK_MIN 4u

/* ---------------------------------------------------------------- distance */

static uint32_t bridges_shared(const struct pci_place *a, const struct pci_place *b)
{
	uint32_t shared = 0;

	while (shared < MIN(a->depth, b->depth) && a->bridges[shared] == b->bridges[shared])
		shared++;
	return shared;
}

enum distance pci_distance(const struct pci_place *a, const struct pci_place *b)
{
	uint32_t shared = bridges_shared(a, b);

	if (shared > 1)
		return DISTANCE_SWITCH;
	if (shared == 1)
		return DISTANCE_HOST_BRIDGE;
	if (a->numa < 0 || b->numa < 0)
		return DISTANCE_UNKNOWN;
	if (a->numa == b->numa)
		return DISTANCE_NODE;
	return a->package >= 0 && a->package == b->package ? DISTANCE_SOCKET : DISTANCE_FAR;
}

const char *distance_name(enum distance distance)
{
	switch (distance) {
	case DISTANCE_SWITCH:
		return "same switch";
	case DISTANCE_HOST_BRIDGE:
		return "same host bridge";
	case DISTANCE_NODE:
		return "same NUMA node";
	case DISTANCE_SOCKET:
		return "same socket";
	case DISTANCE_FAR:
		return "another socket";
	case DISTANCE_UNKNOWN:
		break;
	}
	return "unknown distance";
}

/* A distance, finer: below a switch each bridge more that both share counts. */
static uint8_t farness(const struct pci_place *a, const struct pci_place *b)
{
	enum distance distance = pci_distance(a, b);
	uint32_t fine = distance == DISTANCE_SWITCH ? PCI_DEPTH_MAX - bridges_shared(a, b) : 0;

	return (uint8_t)((uint32_t)distance * (PCI_DEPTH_MAX + 1) + fine);
}

static enum distance distance_of(uint8_t far)
{
	return (enum distance)(far / (PCI_DEPTH_MAX + 1));
}

static struct pci_place place_of(const struct topology *topology, const struct nic_info *info)
{
	for (uint32_t i = 0; info->pci[0] != 0 && i < topology->nic_count; i++)
		if (strcmp(topology->nics[i].at.address, info->pci) == 0)
			return topology->nics[i].at;
	return (struct pci_place){.numa = info->numa, .package = -1};
}

enum distance nic_distance(const struct topology *topology, const struct nic_info *info,
			   uint32_t gpu)
{
	struct pci_place place = place_of(topology, info);

	return pci_distance(&place, &topology->gpus[gpu].at);
}

int topology_gpu_find(const struct topology *topology, const char *gpu, int *index_out,
		      struct ws_error *err)
{
	char *end = NULL;

	*index_out = -1;
	if (gpu == NULL)
		return 0;
	unsigned long number = strtoul(gpu, &end, 10);
	if (end != gpu && *end == 0 && gpu[0] != '-' && number < topology->gpu_count) {
		*index_out = (int)number;
		return 0;
	}
	for (uint32_t i = 0; i < topology->gpu_count; i++) {
		/* CUDA and nvidia-smi write the domain with 4 or 8 digits, or not at all. */
		const char *address = topology->gpus[i].at.address;
		size_t length = strlen(address), given = strlen(gpu);
		if (strcasecmp(gpu, address) == 0 || strcasecmp(gpu, address + 5) == 0 ||
		    (given == length + 4 && strncmp(gpu, "0000", 4) == 0 &&
		     strcasecmp(gpu + 4, address) == 0)) {
			*index_out = (int)i;
			return 0;
		}
	}
	if (topology->gpu_count == 0)
		return ws_fail(err, -ENODEV, "there is no GPU '%s': this host has none", gpu);
	return ws_fail(err, -ENODEV, "there is no GPU '%s': this host has GPUs 0 to %u, from %s on",
		       gpu, topology->gpu_count - 1, topology->gpus[0].at.address);
}

/* ---------------------------------------------------------------- who serves whom */

#define FAR_NOBODY UINT8_MAX

/* For each GPU how far each NIC is; a NIC that can't be used is FAR_NOBODY. */
struct matrix {
	uint8_t *far; /* owned; gpu_count rows of count */
	uint32_t gpu_count, count;
	uint8_t nearest[GPUS_MAX]; /* of each row, the least */
};

static int matrix_make(struct matrix *matrix, const struct topology *topology,
		       const struct nic_info *infos, uint32_t count, struct ws_error *err)
{
	*matrix = (struct matrix){.gpu_count = topology->gpu_count, .count = count};
	matrix->far = mem_alloc((size_t)count * topology->gpu_count);
	if (matrix->far == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the distances of %u NICs", count);
	memset(matrix->nearest, FAR_NOBODY, sizeof(matrix->nearest));
	for (uint32_t i = 0; i < count; i++) {
		struct pci_place place = place_of(topology, &infos[i]);
		for (uint32_t gpu = 0; gpu < topology->gpu_count; gpu++) {
			uint8_t far = infos[i].skipped[0] != 0
					      ? FAR_NOBODY
					      : farness(&place, &topology->gpus[gpu].at);
			matrix->far[gpu * count + i] = far;
			matrix->nearest[gpu] = MIN(matrix->nearest[gpu], far);
		}
	}
	return 0;
}

static bool is_nearest(const struct matrix *matrix, uint32_t gpu, uint32_t nic)
{
	uint8_t far = matrix->far[gpu * matrix->count + nic];

	return far != FAR_NOBODY && far == matrix->nearest[gpu];
}

static bool same_nearest(const struct matrix *matrix, uint32_t a, uint32_t b)
{
	for (uint32_t i = 0; i < matrix->count; i++)
		if (is_nearest(matrix, a, i) != is_nearest(matrix, b, i))
			return false;
	return true;
}

/* The order in which NICs are dealt: all ranks of a host must see the same.  Two interfaces with
 * one address are named alike: the list's order. */
static bool comes_before(const struct nic_info *a, const struct nic_info *b)
{
	int order = strcmp(a->pci, b->pci);

	if (order == 0)
		order = strverscmp(a->device, b->device);
	return order != 0 ? order < 0 : a < b;
}

static void gpu_deal(const struct matrix *matrix, uint32_t gpu, struct nic_info *infos)
{
	uint32_t sharers = 0, my_turn = 0, nearest = 0;

	for (uint32_t other = 0; other < matrix->gpu_count; other++) {
		if (!same_nearest(matrix, gpu, other))
			continue;
		my_turn += other < gpu ? 1 : 0;
		sharers++;
	}
	for (uint32_t i = 0; i < matrix->count; i++)
		nearest += is_nearest(matrix, gpu, i) ? 1 : 0;
	for (uint32_t i = 0; i < matrix->count; i++) {
		uint32_t turn = 0;
		if (!is_nearest(matrix, gpu, i))
			continue;
		for (uint32_t j = 0; j < matrix->count; j++)
			turn += is_nearest(matrix, gpu, j) && comes_before(&infos[j], &infos[i]);
		bool mine =
			nearest >= sharers ? turn % sharers == my_turn : turn == my_turn % nearest;
		if (mine)
			infos[i].gpus |= UINT64_C(1) << gpu;
	}
}

/* ---------------------------------------------------------------- why not */

static uint32_t lowest(uint64_t gpus)
{
	return (uint32_t)__builtin_ctzll(gpus);
}

/* "GPU 3", "GPUs 2 and 3", "GPUs 0, 1, 2 and 3" */
static void gpus_spell(uint64_t gpus, char *text, size_t room)
{
	int used = snprintf(text, room, "%s", (gpus & (gpus - 1)) != 0 ? "GPUs" : "GPU");
	const char *before = " ";

	for (; gpus != 0 && used > 0 && (size_t)used < room; gpus &= gpus - 1) {
		used += snprintf(text + used, room - (size_t)used, "%s%u", before, lowest(gpus));
		uint64_t rest = gpus & (gpus - 1);
		before = (rest & (rest - 1)) != 0 ? ", " : " and ";
	}
}

static void gpu_skip(const struct matrix *matrix, uint32_t gpu, struct nic_info *infos,
		     uint32_t nic)
{
	struct nic_info *info = &infos[nic];
	char others[NIC_TROUBLE_MAX / 2];
	enum distance distance = distance_of(matrix->far[gpu * matrix->count + nic]);
	const struct nic_info *chosen = NULL;

	if (info->gpus != 0) {
		gpus_spell(info->gpus, others, sizeof(others));
		snprintf(info->skipped, sizeof(info->skipped), "serves %s, not GPU %u", others,
			 gpu);
	} else if (distance == DISTANCE_FAR) {
		snprintf(info->skipped, sizeof(info->skipped), "behind another socket than GPU %u",
			 gpu);
	} else {
		for (uint32_t i = 0; i < matrix->count; i++)
			if ((infos[i].gpus >> gpu & 1) != 0 &&
			    (chosen == NULL || comes_before(&infos[i], chosen)))
				chosen = &infos[i];
		snprintf(info->skipped, sizeof(info->skipped), "%.64s is nearer to GPU %u (%s)",
			 chosen->device, gpu, distance_name(distance_of(matrix->nearest[gpu])));
	}
}

static void gpu_choose(const struct matrix *matrix, uint32_t gpu, struct nic_info *infos)
{
	for (uint32_t i = 0; i < matrix->count; i++) {
		if (infos[i].skipped[0] != 0)
			continue;
		if ((infos[i].gpus >> gpu & 1) != 0)
			snprintf(infos[i].near, sizeof(infos[i].near), "%s",
				 distance_name(distance_of(matrix->nearest[gpu])));
		else
			gpu_skip(matrix, gpu, infos, i);
	}
}

/* What is on no known node is as good as here. */
static bool is_elsewhere(const struct topology *topology, const struct nic_info *info)
{
	return topology->numa >= 0 && info->numa >= 0 && info->numa != topology->numa;
}

static void host_choose(const struct topology *topology, struct nic_info *infos, uint32_t count)
{
	bool any_here = false;

	for (uint32_t i = 0; i < count; i++)
		any_here |= infos[i].skipped[0] == 0 && !is_elsewhere(topology, &infos[i]);
	for (uint32_t i = 0; i < count; i++) {
		struct nic_info *info = &infos[i];
		if (info->skipped[0] != 0)
			continue;
		if (any_here && is_elsewhere(topology, info))
			snprintf(
				info->skipped, sizeof(info->skipped),
				"behind another socket: on NUMA node %d, and this process is bound to "
				"node %d",
				info->numa, topology->numa);
		else if (topology->numa >= 0 && info->numa == topology->numa)
			snprintf(info->near, sizeof(info->near), "%s",
				 distance_name(DISTANCE_NODE));
	}
}

/* Those that come first in the dealing order stay. */
static void cut_to_max(struct nic_info *infos, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t before = 0;
		for (uint32_t j = 0; j < count; j++)
			before += infos[j].skipped[0] == 0 && comes_before(&infos[j], &infos[i]);
		if (infos[i].skipped[0] != 0 || before < NICS_CHOSEN_MAX)
			continue;
		snprintf(infos[i].skipped, sizeof(infos[i].skipped),
			 "a rank uses %d NICs at most unless they are named", NICS_CHOSEN_MAX);
		infos[i].near[0] = 0;
	}
}

int nics_choose(const struct topology *topology, int gpu, struct nic_info *infos, uint32_t count,
		struct ws_error *err)
{
	struct matrix matrix;

	int rc = matrix_make(&matrix, topology, infos, count, err);
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < count; i++)
		infos[i].gpus = 0;
	for (uint32_t i = 0; i < topology->gpu_count; i++)
		gpu_deal(&matrix, i, infos);
	if (gpu >= 0)
		gpu_choose(&matrix, (uint32_t)gpu, infos);
	else
		host_choose(topology, infos, count);
	cut_to_max(infos, count);
	mem_free(matrix.far);
	return 0;
}

/* ---------------------------------------------------------------- cores */

/* The node of the NICs in use: the one that most of them are on, the lower of two; -1 unknown. */
static int nics_node(const struct topology *topology, const struct nic_info *infos, uint32_t count)
{
	uint32_t most = 0;
	int node = -1;

	for (uint32_t i = 0; i < topology->core_count; i++) {
		uint32_t here = 0;
		for (uint32_t k = 0; k < count; k++)
			here += infos[k].skipped[0] == 0 &&
				infos[k].numa == topology->cores[i].numa;
		if (here > most || (here == most && here > 0 && topology->cores[i].numa < node)) {
			most = here;
			node = topology->cores[i].numa;
		}
	}
	return node;
}

/* The last core of this rank on a node (-1: of any) that this process may use, or NULL.  A host's
 * cores are dealt out to its ranks in turn, so no two ranks take the same one, whatever each of
 * them may use and wherever its NICs are; and each has as many as another on every node. */
static const struct topology_core *core_find(const struct topology *topology, int node,
					     uint32_t local_rank, uint32_t local_ranks)
{
	for (uint32_t i = topology->core_count; i-- > 0;) {
		const struct topology_core *core = &topology->cores[i];
		if (core->allowed && i % local_ranks == local_rank &&
		    (node < 0 || core->numa == node))
			return core;
	}
	return NULL;
}

static uint32_t cores_allowed(const struct topology *topology)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < topology->core_count; i++)
		count += topology->cores[i].allowed ? 1 : 0;
	return count;
}

static void core_take(const struct topology *topology, int node, uint32_t local_rank,
		      uint32_t local_ranks, struct core_choice *choice)
{
	const struct topology_core *core = core_find(topology, node, local_rank, local_ranks);
	char *why = choice->why;
	size_t room = sizeof(choice->why);

	if (core == NULL) {
		snprintf(why, room,
			 "not bound: no core that this process may use on NUMA node %d, where its "
			 "NICs are, is left to it",
			 node);
		return;
	}
	choice->cpu = (int)core->cpu;
	if (node >= 0)
		snprintf(why, room, "core %u, on NUMA node %d beside its NICs", core->cpu, node);
	else
		snprintf(why, room, "core %u; where its NICs are isn't known", core->cpu);
}

void core_choose(const struct topology *topology, const struct nic_info *infos, uint32_t count,
		 uint32_t local_rank, uint32_t local_ranks, struct core_choice *choice_out)
{
	uint32_t allowed = cores_allowed(topology);
	char *why = choice_out->why;
	size_t room = sizeof(choice_out->why);

	choice_out->cpu = -1;
	if (local_ranks == 0)
		snprintf(why, room, "not bound: how many ranks this host has isn't known");
	else if (allowed < CORES_PER_RANK_MIN)
		snprintf(
			why, room,
			"not bound: this process may use %u core%s, and %u are needed to spare one",
			allowed, allowed == 1 ? "" : "s", CORES_PER_RANK_MIN);
	else if (topology->core_count / local_ranks < CORES_PER_RANK_MIN)
		snprintf(
			why, room,
			"not bound: %u cores for %u ranks on this host, and %u for each are needed "
			"to spare one",
			topology->core_count, local_ranks, CORES_PER_RANK_MIN);
	else
		core_take(topology, nics_node(topology, infos, count), local_rank, local_ranks,
			  choice_out);
}
