/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hwloc's tree -> struct topology: GPUs, network cards and cores with the bridges, NUMA node and
 * socket that each hangs below.  The only file that includes hwloc.h; it decides nothing.
 */
#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/topology.h"

#define VENDOR_NVIDIA  0x10deu
#define VENDOR_AMAZON  0x1d0fu
#define CLASS_DISPLAY  0x03u /* the upper byte: VGA, 3D and other display controllers */
#define FILE_BYTES_MAX ((size_t)64 << 20)
#define PORTS_MAX      64u

static int bitmap_only(hwloc_const_bitmap_t set)
{
	return set != NULL && hwloc_bitmap_weight(set) == 1 ? hwloc_bitmap_first(set) : -1;
}

/* Sub-NUMA clusters share their PCI roots: the first of the nodes stands for them. */
static int node_of(hwloc_obj_t object)
{
	return object->nodeset != NULL ? hwloc_bitmap_first(object->nodeset) : -1;
}

static int package_of(hwloc_topology_t tree, hwloc_obj_t object)
{
	if (object->type != HWLOC_OBJ_PACKAGE)
		object = hwloc_get_ancestor_obj_by_type(tree, HWLOC_OBJ_PACKAGE, object);
	return object != NULL ? (int)object->os_index : -1;
}

/* The PCI device that a device of the operating system belongs to, or NULL. */
static hwloc_obj_t pci_of(hwloc_obj_t object)
{
	while (object != NULL && object->type != HWLOC_OBJ_PCI_DEVICE)
		object = object->parent;
	return object;
}

static bool is_pci_bridge(hwloc_obj_t object)
{
	return object->type == HWLOC_OBJ_BRIDGE &&
	       object->attr->bridge.downstream_type == HWLOC_OBJ_BRIDGE_PCI;
}

static void place_fill(hwloc_topology_t tree, hwloc_obj_t object, struct pci_place *place)
{
	hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(tree, object);
	hwloc_obj_t pci = pci_of(object);
	uint32_t above = 0;

	/* Directly below the machine, where there are several nodes: nobody knows which. */
	bool known = near->type != HWLOC_OBJ_MACHINE || bitmap_only(near->nodeset) >= 0;
	*place = (struct pci_place){
		.numa = known ? node_of(near) : -1,
		.package = package_of(tree, near),
	};
	if (pci == NULL)
		return;
	const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;
	snprintf(place->address, sizeof(place->address), "%04x:%02x:%02x.%01x",
		 (unsigned)attr->domain & 0xffffu, attr->bus, attr->dev, attr->func & 0xfu);
	for (hwloc_obj_t at = pci->parent; at != NULL; at = at->parent)
		above += is_pci_bridge(at) ? 1 : 0;
	place->depth = MIN(above, PCI_DEPTH_MAX);
	for (hwloc_obj_t at = pci->parent; at != NULL; at = at->parent)
		if (is_pci_bridge(at) && --above < PCI_DEPTH_MAX)
			place->bridges[above] = (uint32_t)at->gp_index;
}

/* ---------------------------------------------------------------- devices */

static bool is_gpu(hwloc_obj_t pci)
{
	return pci->attr->pcidev.vendor_id == VENDOR_NVIDIA &&
	       pci->attr->pcidev.class_id >> 8 == CLASS_DISPLAY;
}

/* What NVIDIA's driver calls it: a line "Model: <tab> NVIDIA H200". */
static bool model_read(const char *address, char name_out[64])
{
	char path[96];
	void *text;
	size_t count;

	snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", address);
	if (file_read(path, 65536, &text, &count, NULL) != 0)
		return false;
	const char *model = strstr(text, "Model:");
	if (model != NULL) {
		model += strlen("Model:");
		model += strspn(model, " \t");
		snprintf(name_out, 64, "%.*s", (int)MIN(strcspn(model, "\n"), 63u), model);
	}
	mem_free(text);
	return model != NULL;
}

static void gpu_fill(hwloc_topology_t tree, bool saved, hwloc_obj_t pci, struct topology_gpu *gpu)
{
	const char *name = hwloc_obj_get_info_by_name(pci, "PCIDevice");

	place_fill(tree, pci, &gpu->at);
	if (name != NULL)
		snprintf(gpu->name, sizeof(gpu->name), "%.63s", name);
	else if (saved || !model_read(gpu->at.address, gpu->name))
		snprintf(gpu->name, sizeof(gpu->name), "%04x:%04x", pci->attr->pcidev.vendor_id,
			 pci->attr->pcidev.device_id);
}

static bool is_nic(hwloc_obj_t device)
{
	return device->name != NULL && (device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS ||
					device->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK);
}

static void nic_fill(hwloc_topology_t tree, hwloc_obj_t device, struct topology_nic *nic)
{
	hwloc_obj_t pci = pci_of(device);

	place_fill(tree, device, &nic->at);
	snprintf(nic->name, sizeof(nic->name), "%.63s", device->name);
	nic->rdma = device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
	nic->efa = nic->rdma && pci != NULL && pci->attr->pcidev.vendor_id == VENDOR_AMAZON;
	for (uint32_t port = 1; nic->rdma && port <= PORTS_MAX; port++) {
		char key[24];
		snprintf(key, sizeof(key), "Port%uState", port);
		const char *state = hwloc_obj_get_info_by_name(device, key);
		if (state == NULL)
			break;
		nic->ports = port;
		if (state[0] == '4') /* the kernel's number of ACTIVE */
			nic->active |= UINT64_C(1) << (port - 1);
	}
}

static int by_gpu_address(const void *a, const void *b)
{
	const struct topology_gpu *x = a, *y = b;

	return strcmp(x->at.address, y->at.address);
}

/* Cards in PCI order, what isn't on PCI behind them. */
static int by_nic_address(const void *a, const void *b)
{
	const struct topology_nic *x = a, *y = b;

	if ((x->at.address[0] == 0) != (y->at.address[0] == 0))
		return x->at.address[0] == 0 ? 1 : -1;
	int order = strcmp(x->at.address, y->at.address);
	return order != 0 ? order : strverscmp(x->name, y->name);
}

static int gpus_take(hwloc_topology_t tree, struct topology *topology, struct ws_error *err)
{
	uint32_t room = 0;

	for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(tree, pci)) != NULL;)
		room += is_gpu(pci) ? 1 : 0;
	if (room > GPUS_MAX)
		return ws_fail(err, -ENOSPC, "this host has %u GPUs, %d are the most", room,
			       GPUS_MAX);
	topology->gpus = arena_array(&topology->arena, room, sizeof(*topology->gpus));
	if (topology->gpus == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u GPUs", room);
	for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(tree, pci)) != NULL;)
		if (is_gpu(pci))
			gpu_fill(tree, topology->saved, pci,
				 &topology->gpus[topology->gpu_count++]);
	qsort(topology->gpus, topology->gpu_count, sizeof(*topology->gpus), by_gpu_address);
	return 0;
}

static int nics_take(hwloc_topology_t tree, struct topology *topology, struct ws_error *err)
{
	uint32_t room = 0;

	for (hwloc_obj_t device = NULL; (device = hwloc_get_next_osdev(tree, device)) != NULL;)
		room += is_nic(device) ? 1 : 0;
	topology->nics = arena_array(&topology->arena, room, sizeof(*topology->nics));
	if (topology->nics == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u network devices", room);
	for (hwloc_obj_t device = NULL; (device = hwloc_get_next_osdev(tree, device)) != NULL;)
		if (is_nic(device))
			nic_fill(tree, device, &topology->nics[topology->nic_count++]);
	qsort(topology->nics, topology->nic_count, sizeof(*topology->nics), by_nic_address);
	return 0;
}

/* ---------------------------------------------------------------- cores */

/* Where this process may run: its own binding, and of that what its cgroup allows. */
static void allowed_fill(hwloc_topology_t tree, bool saved, hwloc_bitmap_t allowed)
{
	hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(tree));
	hwloc_bitmap_t bound = hwloc_bitmap_alloc();
	if (!saved && bound != NULL && hwloc_get_cpubind(tree, bound, HWLOC_CPUBIND_PROCESS) == 0)
		hwloc_bitmap_and(allowed, allowed, bound);
	hwloc_bitmap_free(bound);
}

/* A core without its caches' levels: a thread of it stands for it where hwloc knows no cores. */
static int cores_take(hwloc_topology_t tree, struct topology *topology, struct ws_error *err)
{
	hwloc_obj_type_t type =
		hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
	int room = hwloc_get_nbobjs_by_type(tree, type);
	hwloc_bitmap_t allowed = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();

	topology->cores =
		arena_array(&topology->arena, (size_t)MAX(room, 0), sizeof(*topology->cores));
	if (topology->cores == NULL || allowed == NULL || nodes == NULL) {
		hwloc_bitmap_free(allowed);
		hwloc_bitmap_free(nodes);
		return ws_fail(err, -ENOMEM, "no memory for %d cores", room);
	}
	allowed_fill(tree, topology->saved, allowed);
	for (int i = 0; i < room; i++) {
		hwloc_obj_t core = hwloc_get_obj_by_type(tree, type, (unsigned)i);
		topology->cores[topology->core_count++] = (struct topology_core){
			.cpu = (uint32_t)hwloc_bitmap_first(core->cpuset),
			.numa = node_of(core),
			.allowed = hwloc_bitmap_isincluded(core->cpuset, allowed) != 0,
		};
	}
	hwloc_cpuset_to_nodeset(tree, allowed, nodes);
	topology->numa = bitmap_only(nodes);
	hwloc_bitmap_free(allowed);
	hwloc_bitmap_free(nodes);
	return 0;
}

/* ---------------------------------------------------------------- load */

/* Plugins that would open a GPU or an X display, only to say what sysfs says too; and libpciaccess,
 * which keeps all names of the PCI database for ever. */
static void plugins_forbid(hwloc_topology_t tree)
{
	static const char *const names[] = {"cuda",   "nvml", "rsmi", "levelzero",
					    "opencl", "gl",   "pci"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		hwloc_topology_set_components(tree, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
					      names[i]);
}

static int tree_take(hwloc_topology_t tree, struct topology *topology, struct ws_error *err)
{
	const char *host = hwloc_obj_get_info_by_name(hwloc_get_root_obj(tree), "HostName");

	snprintf(topology->host, sizeof(topology->host), "%.63s", host != NULL ? host : "");
	topology->numa_count = (uint32_t)MAX(hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_NUMANODE), 0);
	int rc = gpus_take(tree, topology, err);
	if (rc == 0)
		rc = nics_take(tree, topology, err);
	return rc == 0 ? cores_take(tree, topology, err) : rc;
}

int topology_load(struct topology *topology, const char *file, struct ws_error *err)
{
	hwloc_topology_t tree = NULL;
	void *text = NULL;
	size_t bytes = 0;
	int rc = 0;

	*topology = (struct topology){.saved = file != NULL, .numa = -1};
	if (file != NULL)
		rc = file_read(file, FILE_BYTES_MAX, &text, &bytes, err);
	if (rc != 0)
		return rc;
	if (hwloc_topology_init(&tree) != 0)
		rc = ws_fail(err, -ENOMEM, "hwloc cannot begin: %s", strerror(errno));
	else if (file != NULL && hwloc_topology_set_xmlbuffer(tree, text, (int)bytes + 1) != 0)
		rc = ws_fail(err, -EINVAL, "'%s' isn't a topology that `lstopo FILE.xml` saved",
			     file);
	if (rc == 0) {
		plugins_forbid(tree);
		hwloc_topology_set_cache_types_filter(tree, HWLOC_TYPE_FILTER_KEEP_NONE);
		hwloc_topology_set_io_types_filter(tree, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
		if (hwloc_topology_load(tree) != 0)
			rc = ws_fail(err, -EINVAL, "hwloc cannot read the topology of %s%s%s: %s",
				     file != NULL ? "'" : "", file != NULL ? file : "this host",
				     file != NULL ? "'" : "", strerror(errno));
	}
	if (rc == 0)
		rc = tree_take(tree, topology, err);
	if (tree != NULL)
		hwloc_topology_destroy(tree);
	mem_free(text);
	return rc;
}

void topology_release(struct topology *topology)
{
	arena_release(&topology->arena);
	*topology = (struct topology){.numa = -1};
}
