/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this host, or a saved topology, offers to a transport; and where each of those NICs hangs.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/transport/tables.h"
#include "lib/transport/topology.h"

#define LOWER_MAX 4 /* a VLAN over a bond over a card, and one more */

static bool is_sockets(const char *provider)
{
	return strcmp(provider, "tcp") == 0 || strcmp(provider, "net") == 0 ||
	       strcmp(provider, "sockets") == 0;
}

/* The first reason stays. */
__attribute__((format(printf, 2, 3))) static void skip(struct nic_info *info, const char *format,
						       ...)
{
	va_list args;

	va_start(args, format);
	if (info->skipped[0] == 0)
		vsnprintf(info->skipped, sizeof(info->skipped), format, args);
	va_end(args);
}

/* ---------------------------------------------------------------- this host's */

static void interface_offer(const struct interface *interface, const char *provider,
			    struct nic_info *info)
{
	snprintf(info->transport, sizeof(info->transport), "fabric");
	snprintf(info->device, sizeof(info->device), "%.40s/%s", provider,
		 interface->address[0] != 0 ? interface->address : interface->name);
	snprintf(info->subnet, sizeof(info->subnet), "%s", interface->subnet);
	snprintf(info->state, sizeof(info->state), "%s", interface->up ? "up" : "down");
	snprintf(info->netdev, sizeof(info->netdev), "%s", interface->name);
	info->mbps = interface->mbps;
	info->mtu = interface->mtu;
	info->numa = -1;
	if (interface->bond[0] != 0)
		skip(info, "slave of %s", interface->bond);
	else if (!interface->up)
		skip(info, "the interface is down");
	else if (interface->address[0] == 0)
		skip(info, "it has no IPv4 address");
	else if (interface->loopback)
		skip(info, "loopback: name it to use it");
	else if (interface->inside)
		skip(info, "a bridge inside this host: name it to use it");
}

static int sockets_offers(struct arena *arena, const char *provider, struct nic_info **infos_out,
			  uint32_t *count_out, struct ws_error *err)
{
	struct interface *interfaces;
	uint32_t count;

	int rc = interfaces_list(arena, &interfaces, &count, err);
	if (rc != 0)
		return rc;
	*infos_out = arena_array(arena, count, sizeof(**infos_out));
	if (*infos_out == NULL)
		return ws_fail(err, -ENOMEM, "no memory to list %u NICs", count);
	for (uint32_t i = 0; i < count; i++)
		interface_offer(&interfaces[i], provider, &(*infos_out)[i]);
	*count_out = count;
	return 0;
}

static int fabric_list(struct arena *arena, const char *provider, struct nic_info **infos_out,
		       uint32_t *count_out, struct ws_error *err)
{
	int rc = fabric_offers(arena, provider, infos_out, count_out, err);

	/* Domains of socket providers are interfaces; addresses say more, several per interface. */
	if (rc == 0 && *count_out > 0 && is_sockets(provider)) {
		*count_out = 0;
		rc = sockets_offers(arena, provider, infos_out, count_out, err);
	}
	/* A peer killed in mid write can leave a sender spinning inside libfabric for ever. */
	for (uint32_t i = 0; rc == 0 && strcmp(provider, "shm") == 0 && i < *count_out; i++)
		skip(&(*infos_out)[i], "shm survives no killed peer: name it for a benchmark");
	return rc;
}

/* The slaves of a bond may be RDMA devices each, all with the bond's address. */
static int verbs_list(struct arena *arena, struct nic_info **infos_out, uint32_t *count_out,
		      struct ws_error *err)
{
	int rc = verbs_offers(arena, infos_out, count_out, err);

	for (uint32_t i = 0; rc == 0 && i < *count_out; i++) {
		struct nic_info *info = &(*infos_out)[i];
		for (uint32_t k = 0; k < i && info->netdev[0] != 0; k++) {
			const struct nic_info *first = &(*infos_out)[k];
			if (first->skipped[0] == 0 && strcmp(first->netdev, info->netdev) == 0)
				skip(info, "its address is that of %s, over %s", first->device,
				     info->netdev);
		}
	}
	return rc;
}

static int ipc_list(struct arena *arena, struct nic_info **infos_out, uint32_t *count_out,
		    struct ws_error *err)
{
	*infos_out = arena_array(arena, 1, sizeof(**infos_out));
	if (*infos_out == NULL)
		return ws_fail(err, -ENOMEM, "no memory to list this host");
	**infos_out =
		(struct nic_info){.transport = "ipc", .device = "host", .state = "up", .numa = -1};
	*count_out = 1;
	return 0;
}

int nics_list(struct arena *arena, const char *transport, const char *provider,
	      struct nic_info **infos_out, uint32_t *count_out, struct ws_error *err)
{
	*infos_out = NULL;
	*count_out = 0;
	if (transport_find(transport) == NULL)
		return ws_fail(err, -ENODEV, "no transport is named '%s'", transport);
	if (strcmp(transport, "verbs") == 0)
		return verbs_list(arena, infos_out, count_out, err);
	if (strcmp(transport, "ipc") == 0)
		return ipc_list(arena, infos_out, count_out, err);
	if (strcmp(transport, "fabric") == 0)
		return fabric_list(arena, provider != NULL && provider[0] != 0 ? provider : "tcp",
				   infos_out, count_out, err);
	return 0; /* loop and fault aren't hardware */
}

/* ---------------------------------------------------------------- a saved topology's */

/* mlx5 joins the two ports of a card that are bonded into one RDMA device of this name. */
static bool is_bonded(const struct topology_nic *nic)
{
	return nic->rdma && strstr(nic->name, "_bond_") != NULL;
}

/* Whether two functions are of one card: all of the address but the function's number. */
static bool same_card(const struct topology_nic *a, const struct topology_nic *b)
{
	size_t length = strlen(a->at.address);

	return length > 2 && strncmp(a->at.address, b->at.address, length - 1) == 0;
}

static void saved_offer(const struct topology_nic *nic, const char *device, struct nic_info *info)
{
	snprintf(info->device, sizeof(info->device), "%s", device);
	snprintf(nic->rdma ? info->rdma : info->netdev, sizeof(info->netdev), "%.31s", nic->name);
	snprintf(info->state, sizeof(info->state), "saved");
	info->numa = nic->at.numa;
}

static void saved_port(const struct topology_nic *nic, uint32_t port, struct nic_info *info)
{
	char text[NIC_NAME_MAX];

	snprintf(text, sizeof(text), "%s/%u", nic->name, port);
	saved_offer(nic, text, info);
	bool active = (nic->active >> (port - 1) & 1) != 0;
	snprintf(info->state, sizeof(info->state), "%s", active ? "up" : "down");
	if (!active)
		skip(info, "port %u is down", port);
}

static void saved_interface(const struct topology *topology, const struct topology_nic *nic,
			    const char *provider, struct nic_info *info)
{
	char text[NIC_NAME_MAX];

	snprintf(text, sizeof(text), "%.20s/%s", provider, nic->name);
	saved_offer(nic, text, info);
	for (uint32_t i = 0; i < topology->nic_count; i++) {
		const struct topology_nic *other = &topology->nics[i];
		if (is_bonded(other) && same_card(other, nic))
			skip(info, "slave of %s's bond", other->name);
	}
}

int topology_nics(const struct topology *topology, struct arena *arena, const char *transport,
		  const char *provider, struct nic_info **infos_out, uint32_t *count_out,
		  struct ws_error *err)
{
	bool verbs = strcmp(transport, "verbs") == 0, fabric = strcmp(transport, "fabric") == 0;
	bool efa = fabric && strcmp(provider, "efa") == 0;
	uint32_t room = 0, used = 0;

	for (uint32_t i = 0; i < topology->nic_count; i++)
		room += MAX(topology->nics[i].ports, 1u);
	*count_out = 0;
	if (transport_find(transport) == NULL)
		return ws_fail(err, -ENODEV, "no transport is named '%s'", transport);
	*infos_out = arena_array(arena, room, sizeof(**infos_out));
	if (*infos_out == NULL)
		return ws_fail(err, -ENOMEM, "no memory to list %u NICs", room);
	for (uint32_t i = 0; i < topology->nic_count; i++) {
		const struct topology_nic *nic = &topology->nics[i];
		if (efa && nic->efa) {
			char device[NIC_NAME_MAX];
			snprintf(device, sizeof(device), "efa/%s-rdm", nic->name);
			saved_offer(nic, device, &(*infos_out)[used++]);
		}
		for (uint32_t port = 1; verbs && nic->rdma && !nic->efa && port <= nic->ports;
		     port++)
			saved_port(nic, port, &(*infos_out)[used++]);
		if (fabric && !nic->rdma && is_sockets(provider))
			saved_interface(topology, nic, provider, &(*infos_out)[used++]);
	}
	for (uint32_t i = 0; i < used; i++)
		snprintf((*infos_out)[i].transport, sizeof((*infos_out)[i].transport), "%.15s",
			 transport);
	*count_out = used;
	return 0;
}

/* ---------------------------------------------------------------- where each hangs */

void nic_info_of(const char *transport, const char *device, struct nic_info *info_out)
{
	const char *slash = strchr(device, '/'), *source = slash != NULL ? slash + 1 : device;
	struct interface interface;

	*info_out = (struct nic_info){.numa = -1};
	if (strcmp(transport, "verbs") == 0) {
		snprintf(info_out->rdma, sizeof(info_out->rdma), "%.*s",
			 (int)MIN(strcspn(device, "/?"), sizeof(info_out->rdma) - 1), device);
	} else if (strcmp(transport, "fabric") == 0 &&
		   interface_find(source, &interface, NULL) == 0) {
		snprintf(info_out->netdev, sizeof(info_out->netdev), "%s", interface.name);
	} else if (strcmp(transport, "fabric") == 0) { /* a domain: "rdmap0s6-rdm", "mlx5_0" */
		snprintf(info_out->rdma, sizeof(info_out->rdma), "%.*s",
			 (int)MIN(strcspn(source, "-"), sizeof(info_out->rdma) - 1), source);
	}
}

static const struct topology_nic *device_find(const struct topology *topology, const char *name,
					      bool rdma)
{
	for (uint32_t i = 0; name[0] != 0 && i < topology->nic_count; i++)
		if (topology->nics[i].rdma == rdma && strcmp(topology->nics[i].name, name) == 0)
			return &topology->nics[i];
	return NULL;
}

/* A virtual device hangs where the card below it does: rxe over eth0, a VLAN over a bond. */
static const struct topology_nic *card_find(const struct topology *topology,
					    const struct nic_info *info)
{
	const struct topology_nic *found = device_find(topology, info->rdma, true);
	char name[32], lower[32];

	snprintf(name, sizeof(name), "%.31s", info->netdev);
	if (name[0] == 0 && info->rdma[0] != 0 && !topology->saved)
		rdma_interface(info->rdma, name);
	if (found == NULL)
		found = device_find(topology, name, false);
	for (int i = 0; found == NULL && !topology->saved && i < LOWER_MAX; i++) {
		if (!interface_lower(name, lower))
			break;
		memcpy(name, lower, sizeof(name));
		found = device_find(topology, name, false);
	}
	return found;
}

static void driver_find(const struct topology_nic *nic, char driver_out[32])
{
	char path[160];

	snprintf(path, sizeof(path), "/sys/class/%s/%s/device/driver",
		 nic->rdma ? "infiniband" : "net", nic->name);
	file_link_name(path, driver_out, 32);
}

void nics_place(const struct topology *topology, struct nic_info *infos, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct topology_nic *card = card_find(topology, &infos[i]);
		if (card == NULL)
			continue;
		memcpy(infos[i].pci, card->at.address, sizeof(infos[i].pci));
		infos[i].numa = card->at.numa;
		if (!topology->saved)
			driver_find(card, infos[i].driver);
	}
}
