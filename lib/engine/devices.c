/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's NICs as devices, or those that suit this host, and params' memories as regions: what a
 * trainer and a rollout do alike.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cuda/cuda.h"
#include "lib/engine/devices.h"

#define PAGE_BYTES    ((uintptr_t)4096)
#define GAP_BYTES_MAX 4095u
#define REASONS_BYTES 240

/* ---------------------------------------------------------------- one device */

/* A NIC that isn't there, or can't be used, is an error now and not in the first wiring. */
static int device_add(struct devices *devices, const char *transport, const char *name,
		      struct ws_error *err)
{
	struct nic *nic;

	if (devices->count == NICS_MAX)
		return ws_fail(err, -EINVAL, "more than %d NICs are named for one rank", NICS_MAX);
	if (strlen(name) >= NIC_NAME_MAX)
		return ws_fail(err, -EINVAL, "the NIC name '%s' is longer than %d bytes", name,
			       NIC_NAME_MAX - 1);
	int rc = nic_open(&nic, transport, name, err);
	if (rc != 0)
		return rc;
	char *text = devices->text[devices->count];
	memcpy(text, name, strlen(name) + 1);
	devices->rail[devices->count] = engine_rail_of(nic);
	devices->device[devices->count++] =
		(struct device){.transport = nic->transport->name, .name = text};
	if (nic->same_host)
		memcpy(devices->inside, nic->subnet, sizeof(devices->inside));
	nic_close(nic);
	return 0;
}

/* "eth0" means "tcp/eth0". */
static int fabric_add(struct devices *devices, const char *provider, const char *nic,
		      struct ws_error *err)
{
	char text[2 * NIC_NAME_MAX];

	if (strchr(nic, '/') != NULL)
		return device_add(devices, "fabric", nic, err);
	snprintf(text, sizeof(text), "%.30s/%.160s", provider, nic);
	return device_add(devices, "fabric", text, err);
}

/* ---------------------------------------------------------------- those that are named */

/* The transport that stands in front of a device, as in "verbs:mlx5_0/1"; NULL: none does. */
static const struct transport *prefix_of(const char *nic)
{
	for (size_t i = 0; transports[i] != NULL; i++) {
		size_t length = strlen(transports[i]->name);
		if (strncmp(nic, transports[i]->name, length) == 0 && nic[length] == ':')
			return transports[i];
	}
	return NULL;
}

static bool is_rdma(const struct nic_info *rdma, uint32_t count, const char *nic)
{
	for (uint32_t i = 0; i < count; i++) {
		size_t length = strlen(rdma[i].rdma);
		if (strncmp(nic, rdma[i].rdma, length) == 0 && strchr("/?", nic[length]) != NULL)
			return true;
	}
	return false;
}

/* transport NULL: each by its own prefix, or by what RDMA devices are named here. */
static int named_add(struct devices *devices, const char *transport, const char *provider,
		     const char *const *nics, uint32_t nic_count, struct ws_error *err)
{
	struct arena arena = {0};
	struct nic_info *rdma = NULL;
	uint32_t rdma_count = 0;
	int rc = 0;

	if (transport == NULL && transport_find("verbs") != NULL)
		rc = nics_list(&arena, "verbs", NULL, &rdma, &rdma_count, err);
	for (uint32_t i = 0; rc == 0 && i < nic_count; i++) {
		const struct transport *prefix = prefix_of(nics[i]);
		const char *name = nics[i], *of = transport;
		if (prefix != NULL) {
			name += strlen(prefix->name) + 1;
			of = prefix->name;
		} else if (transport == NULL) {
			of = is_rdma(rdma, rdma_count, name) ? "verbs" : "fabric";
		}
		if (strcmp(of, "ipc") == 0 && devices->inside[0] != 0)
			continue; /* it is there already */
		if (transport != NULL && strcmp(of, transport) != 0)
			rc = ws_fail(
				err, -EINVAL,
				"'%s' isn't a NIC of the transport '%s'; transport 'auto' takes "
				"NICs of several",
				nics[i], transport);
		else if (strcmp(of, "fabric") == 0)
			rc = fabric_add(devices, provider, name, err);
		else
			rc = device_add(devices, of, name, err);
	}
	arena_release(&arena);
	return rc;
}

/* ---------------------------------------------------------------- those of this host */

/* Who the NICs are for, and where all things are. */
struct place {
	struct topology topology;
	int gpu;
};

/* All that a transport has here for this place and nobody has a reason to skip.  The reasons of
 * those that nobody can use are told, if none is left or tell_all. */
static int offered_add(struct devices *devices, const struct place *place, const char *transport,
		       const char *provider, bool tell_all, struct writer *reasons,
		       struct ws_error *err)
{
	struct arena arena = {0};
	struct nic_info *infos = NULL;
	uint32_t count = 0, usable = 0;

	int rc = nics_list(&arena, transport, provider, &infos, &count, err);
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		usable += infos[i].skipped[0] == 0 ? 1 : 0;
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		if (infos[i].skipped[0] != 0 && (tell_all || usable == 0))
			write_format(reasons, "%snot %s (%s)", reasons->count > 0 ? ", " : "",
				     infos[i].device, infos[i].skipped);
	if (rc == 0 && usable > 0) {
		nics_place(&place->topology, infos, count);
		rc = nics_choose(&place->topology, place->gpu, infos, count, err);
	}
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		if (infos[i].skipped[0] == 0)
			rc = device_add(devices, transport, infos[i].device, err);
	arena_release(&arena);
	return rc;
}

/* What stays inside the host is no must: what can't be opened is told. */
static int inside_add(struct devices *devices, struct writer *reasons, struct ws_error *err)
{
	struct ws_error why;

	int rc = device_add(devices, "ipc", "host", &why);
	if (rc == -ENOMEM)
		return ws_fail(err, rc, "%s", why.text);
	if (rc != 0)
		write_format(reasons, "%snot ipc (%.150s)", reasons->count > 0 ? ", " : "",
			     why.text);
	return 0;
}

/* why: of those that are here and that nobody uses unasked; empty: there is none. */
static int none_found(const char *transport, const char *provider, const char *why,
		      struct ws_error *err)
{
	if (why[0] != 0)
		return ws_fail(err, -ENODEV,
			       "transport '%s' has no NIC on this host that is used unasked: %s; "
			       "name one; `weightsync nics` lists what there is",
			       transport, why);
	return ws_fail(err, -ENODEV,
		       "transport '%s'%s%s%s has no NIC on this host; `weightsync nics` lists "
		       "what there is",
		       transport, provider != NULL ? " by provider '" : "",
		       provider != NULL ? provider : "", provider != NULL ? "'" : "");
}

/* The first network that has a NIC here.  A NIC that is offered and can't be used is an error:
 * whoever bought it doesn't want to run over another one without knowing. */
static int network_add(struct devices *devices, const struct place *place, const char *provider,
		       struct writer *reasons, struct ws_error *err)
{
	const struct {
		const char *transport, *provider;
		bool tell_all;
	} networks[] = {{"verbs", NULL, true}, {"fabric", "efa", true}, {"fabric", "tcp", false}};
	uint32_t before = devices->count;
	size_t told = reasons->count;
	int rc = 0;

	if (provider != NULL) {
		rc = offered_add(devices, place, "fabric", provider, true, reasons, err);
		return rc == 0 && devices->count == before && reasons->count == told
			       ? none_found("fabric", provider, "", err)
			       : rc;
	}
	for (size_t i = 0; rc == 0 && devices->count == before && i < ARRAY_SIZE(networks); i++) {
		told = reasons->count;
		if (transport_find(networks[i].transport) == NULL)
			continue;
		rc = offered_add(devices, place, networks[i].transport, networks[i].provider,
				 networks[i].tell_all, reasons, err);
		if (rc == -ENOTSUP) { /* no libfabric: what stays inside the host needs none */
			write_format(reasons, "%s%.200s", reasons->count > 0 ? ", " : "",
				     err->text);
			return 0;
		}
		if (rc != 0)
			ws_fail_in(
				err, rc,
				"transport 'auto' chose %s (name another transport to do without)",
				networks[i].transport);
		else if (i == 0 && devices->count == before && reasons->count == told)
			write_format(reasons, "%sthis host has no RDMA device",
				     reasons->count > 0 ? ", " : "");
	}
	return rc;
}

/* ---------------------------------------------------------------- the choice */

/* "ipc host; verbs mlx5_0/1, mlx5_1/1 (why)". */
static void choice_write(struct devices *devices, const char *why)
{
	struct writer out = writer_fixed(devices->choice, sizeof(devices->choice) - 1);
	const char *last = "";

	for (uint32_t i = 0; i < devices->count; i++) {
		const struct device *device = &devices->device[i];
		if (strcmp(device->transport, last) == 0)
			write_format(&out, ", %s", device->name);
		else
			write_format(&out, "%s%s %s", i > 0 ? "; " : "", device->transport,
				     device->name);
		last = device->transport;
	}
	if (why[0] != 0)
		write_format(&out, " (%s)", why);
	devices->choice[out.count] = 0;
}

static int devices_choose(struct devices *devices, const struct devices_wanted *wanted,
			  const struct place *place, struct writer *reasons, struct ws_error *err)
{
	const char *transport = wanted->transport, *provider = wanted->provider;
	bool is_auto = transport == NULL || strcmp(transport, "auto") == 0;
	int rc = is_auto ? inside_add(devices, reasons, err) : 0;

	if (rc != 0)
		return rc;
	if (wanted->nic_count > 0)
		rc = named_add(devices, is_auto ? NULL : transport,
			       provider != NULL ? provider : "tcp", wanted->nics, wanted->nic_count,
			       err);
	else if (is_auto)
		rc = network_add(devices, place, provider, reasons, err);
	else
		rc = offered_add(devices, place, transport, provider, false, reasons, err);
	return rc;
}

/* Named or chosen: the I/O thread runs near all of them. */
static void core_find(struct devices *devices, const struct devices_wanted *wanted,
		      const struct place *place)
{
	struct nic_info infos[NICS_MAX];

	for (uint32_t i = 0; i < devices->count; i++)
		nic_info_of(devices->device[i].transport, devices->device[i].name, &infos[i]);
	nics_place(&place->topology, infos, devices->count);
	core_choose(&place->topology, infos, devices->count, wanted->local_rank,
		    wanted->local_ranks, &devices->core);
}

int devices_find(struct devices *devices, const struct devices_wanted *wanted, struct ws_error *err)
{
	char why[REASONS_BYTES];
	struct writer reasons = writer_fixed(why, sizeof(why) - 1);
	struct place place = {0};
	bool binds = wanted->local_ranks > 0;
	int rc = 0;

	memset(devices, 0, sizeof(*devices));
	devices->core.cpu = -1;
	if (wanted->nic_count > 0)
		write_format(&reasons, "as named");
	/* It takes a while: not for who names its NICs and asks for no core. */
	if (wanted->nic_count == 0 || binds || wanted->gpu != NULL)
		rc = topology_load(&place.topology, NULL, err);
	if (rc == 0)
		rc = topology_gpu_find(&place.topology, wanted->gpu, &place.gpu, err);
	if (rc == 0)
		rc = devices_choose(devices, wanted, &place, &reasons, err);
	why[reasons.count] = 0;
	if (rc == 0 && devices->count == 0)
		rc = none_found(wanted->transport != NULL ? wanted->transport : "auto",
				wanted->provider, why, err);
	if (rc == 0 && binds)
		core_find(devices, wanted, &place);
	choice_write(devices, why);
	topology_release(&place.topology);
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

int memories_place(const struct ws_memory *memories, uint32_t count, struct ws_memory *place_out,
		   struct ws_error *err)
{
	const struct ws_memory *first = NULL;
	char here[16], there[16];

	*place_out = (struct ws_memory){.place = WS_HOST};
	for (uint32_t i = 0; i < count; i++) {
		if (memories[i].bytes == 0)
			continue;
		if (first == NULL)
			first = &memories[i];
		if (memories[i].place != first->place || memories[i].device != first->device)
			return ws_fail(err, -ENOTSUP,
				       "some of this rank's params lie on %s and others on %s; all "
				       "must lie in one place",
				       memory_place(first, there),
				       memory_place(&memories[i], here));
		place_out->place = first->place;
		place_out->device = first->device;
	}
	return 0;
}

static bool is_filed(const void *base, size_t bytes)
{
	struct memory_files files;

	return memory_files(base, bytes, &files);
}

/* What a GPU's memory is shared or registered by is its allocation.  Of what is mapped piece by
 * piece each piece is one: nobody shares a source, and it may have thousands. */
static bool is_one_allocation(const void *a, const void *b, enum mr_use use)
{
	const struct cuda_range first = cuda_range_of(a), second = cuda_range_of(b);

	return first.base == second.base ||
	       (use == MR_SOURCE && first.kind == CUDA_VMM && second.kind == CUDA_VMM);
}

/* Grows *region over next if they nearly touch. */
static bool region_takes(struct ws_memory *region, const struct ws_memory *next, enum mr_use use)
{
	uintptr_t end = (uintptr_t)region->base + region->bytes;

	if (region->place != next->place || region->device != next->device ||
	    (uintptr_t)next->base > end + GAP_BYTES_MAX)
		return false;
	if (region->place == WS_CUDA && !is_one_allocation(region->base, next->base, use))
		return false;
	uintptr_t next_end = (uintptr_t)next->base + next->bytes;
	size_t bytes = MAX(end, next_end) - (uintptr_t)region->base;
	/* ... and of the host's their file: a region over two is written by a call. */
	if (region->place == WS_HOST && !is_filed(region->base, bytes) &&
	    (is_filed(region->base, region->bytes) || is_filed(next->base, next->bytes)))
		return false;
	region->bytes = bytes;
	return true;
}

/* Those that have any, by address; the caller's to free. */
static int sorted_make(const struct ws_memory *memories, uint32_t count, struct sorted **list_out,
		       uint32_t *used_out, struct ws_error *err)
{
	struct sorted *list = mem_alloc(count * sizeof(*list));

	*list_out = list;
	*used_out = 0;
	if (list == NULL)
		return ws_fail(err, -ENOMEM, "no memory to sort %u params", count);
	for (uint32_t i = 0; i < count; i++)
		if (memories[i].bytes > 0)
			list[(*used_out)++] = (struct sorted){.memory = &memories[i], .index = i};
	qsort(list, *used_out, sizeof(*list), by_address);
	return 0;
}

/* The region that begins with an entry of the list; returns where the next one begins. */
static uint32_t region_join(const struct sorted *list, uint32_t used, uint32_t first,
			    enum mr_use use, struct ws_memory *region_out)
{
	uint32_t end = first + 1;

	*region_out = *list[first].memory;
	while (end < used && region_takes(region_out, list[end].memory, use))
		end++;
	return end;
}

int memories_add(struct engine *engine, const struct ws_memory *memories, uint32_t count,
		 enum mr_use use, struct memory_place *places_out, struct ws_error *err)
{
	struct sorted *list;
	uint32_t used, first = 0;
	int rc = sorted_make(memories, count, &list, &used, err);

	for (uint32_t i = 0; i < count; i++)
		places_out[i] = (struct memory_place){.region = UINT32_MAX};
	while (rc == 0 && first < used) {
		struct ws_memory region;
		uint32_t end = region_join(list, used, first, use, &region), number;
		rc = engine_region_add(engine, &region, use, &number, err);
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

/* Those that nobody has page-locked: of neighbours one may be, and the other not. */
static void unpinned_keep(struct sorted *list, uint32_t *used)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < *used; i++)
		if (list[i].memory->place == WS_HOST &&
		    cuda_range_of(list[i].memory->base).kind == CUDA_UNKNOWN)
			list[kept++] = list[i];
	*used = kept;
}

static int region_pin(const struct ws_memory *region, struct pins *pins, struct ws_error *err)
{
	uintptr_t mask = PAGE_BYTES - 1, from = (uintptr_t)region->base & ~mask;
	size_t bytes = (((uintptr_t)region->base + region->bytes + mask) & ~mask) - from;

	int rc = cuda_pin((void *)from, bytes, err);
	if (rc == 0)
		pins->bases[pins->count++] = (void *)from;
	return rc == 0 ? 0 : ws_fail_in(err, rc, "%zu bytes of params can't be offloaded", bytes);
}

int memories_pin(const struct ws_memory *memories, uint32_t count, int device, struct pins *pins,
		 struct ws_error *err)
{
	int before = cuda_current();
	struct sorted *list;
	uint32_t used;

	*pins = (struct pins){.device = device, .bases = mem_alloc(count * sizeof(void *))};
	if (pins->bases == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a list of %u params", count);
	int rc = sorted_make(memories, count, &list, &used, err);
	if (rc == 0)
		rc = cuda_use(device, err);
	if (rc == 0)
		unpinned_keep(list, &used);
	for (uint32_t first = 0; rc == 0 && first < used;) {
		struct ws_memory region;
		first = region_join(list, used, first, MR_SOURCE, &region);
		rc = region_pin(&region, pins, err);
	}
	mem_free(list);
	cuda_leave(before);
	return rc;
}

void memories_unpin(struct pins *pins)
{
	if (pins->count > 0) {
		int before = cuda_current();
		(void)cuda_use(pins->device, NULL); /* another GPU would get a context */
		for (uint32_t i = 0; i < pins->count; i++)
			cuda_unpin(pins->bases[i]);
		cuda_leave(before);
	}
	mem_free(pins->bases);
	*pins = (struct pins){0};
}

int memory_fit(struct engine *engine, struct ws_memory *memory, uint32_t *region, uint64_t bytes,
	       struct ws_error *err)
{
	if (bytes == 0 || (*region != UINT32_MAX && memory->bytes >= bytes))
		return 0;
	if (*region != UINT32_MAX)
		engine_region_drop(engine, *region);
	*region = UINT32_MAX;
	if (memory->bytes < bytes) {
		struct ws_memory place = {.place = memory->place, .device = memory->device};
		ws_memory_free(memory);
		*memory = place;
		int rc = ws_memory_alloc(memory, bytes, err);
		if (rc != 0)
			return rc;
	}
	return engine_region_add(engine, memory, MR_TARGET, region, err);
}
