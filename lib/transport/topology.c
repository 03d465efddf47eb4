/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this host offers: its network interfaces with IPv4 addresses, from the kernel, and the
 * domains of a libfabric provider.  PCI, NUMA and GPU distances aren't known here yet.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/tables.h"

/* In Mb/s; 0 where the kernel doesn't know (loopback, most virtual ones). */
static uint64_t interface_mbps(const char *name)
{
	char path[96], *end;
	void *text;
	size_t count;

	snprintf(path, sizeof(path), "/sys/class/net/%.32s/speed", name);
	if (file_read(path, 64, &text, &count, NULL) != 0)
		return 0;
	long mbps = strtol(text, &end, 10);
	mem_free(text);
	return mbps > 0 ? (uint64_t)mbps : 0;
}

static struct in_addr address_of(const struct sockaddr *from)
{
	struct sockaddr_in in;

	memcpy(&in, from, sizeof(in));
	return in.sin_addr;
}

static bool is_usable(const struct ifaddrs *entry)
{
	return entry->ifa_addr != NULL && entry->ifa_netmask != NULL &&
	       entry->ifa_addr->sa_family == AF_INET;
}

static void interface_fill(const struct ifaddrs *entry, struct interface *interface)
{
	struct in_addr address = address_of(entry->ifa_addr);
	struct in_addr mask = address_of(entry->ifa_netmask);
	struct in_addr subnet = {.s_addr = address.s_addr & mask.s_addr};
	char text[INET_ADDRSTRLEN] = "";

	memset(interface, 0, sizeof(*interface));
	snprintf(interface->name, sizeof(interface->name), "%.31s", entry->ifa_name);
	inet_ntop(AF_INET, &address, interface->address, sizeof(interface->address));
	inet_ntop(AF_INET, &subnet, text, sizeof(text));
	snprintf(interface->subnet, sizeof(interface->subnet), "%s/%d", text,
		 __builtin_popcount(mask.s_addr));
	interface->up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
	interface->loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
}

static bool is_meant(const struct ifaddrs *entry, const char *name, const struct in_addr *address)
{
	if (address == NULL)
		return strcmp(entry->ifa_name, name) == 0;
	struct in_addr mine = address_of(entry->ifa_addr);
	struct in_addr mask = address_of(entry->ifa_netmask);
	if ((entry->ifa_flags & IFF_LOOPBACK) != 0)
		return ((mine.s_addr ^ address->s_addr) & mask.s_addr) == 0;
	return mine.s_addr == address->s_addr;
}

int interface_find(const char *name_or_address, struct interface *found_out, struct ws_error *err)
{
	struct ifaddrs *list = NULL, *entry;
	struct in_addr address;
	bool is_address = inet_pton(AF_INET, name_or_address, &address) == 1;

	memset(found_out, 0, sizeof(*found_out));
	if (getifaddrs(&list) != 0)
		return ws_fail(err, -ENODEV, "cannot list network interfaces: %s", strerror(errno));
	for (entry = list; entry != NULL; entry = entry->ifa_next)
		if (is_usable(entry) &&
		    is_meant(entry, name_or_address, is_address ? &address : NULL))
			break;
	if (entry != NULL) {
		interface_fill(entry, found_out);
		found_out->mbps = interface_mbps(found_out->name);
	}
	freeifaddrs(list);
	if (entry == NULL)
		return ws_fail(
			err, -ENODEV,
			"no interface of this host is or has '%s'; `weightsync nics` lists them",
			name_or_address);
	return 0;
}

static void info_fill(struct nic_info *info, const struct interface *interface,
		      const char *transport, const char *provider)
{
	snprintf(info->transport, sizeof(info->transport), "%.15s", transport);
	snprintf(info->device, sizeof(info->device), "%.40s/%s", provider, interface->address);
	snprintf(info->subnet, sizeof(info->subnet), "%s", interface->subnet);
	snprintf(info->state, sizeof(info->state), "%.20s %s", interface->name,
		 interface->up ? "up" : "down");
	info->mbps = interface->mbps;
	info->numa = -1;
	if (!interface->up)
		snprintf(info->skipped, sizeof(info->skipped), "the interface is down");
	else if (interface->loopback)
		snprintf(info->skipped, sizeof(info->skipped), "loopback: name it to use it");
}

/* One per IPv4 address, in the kernel's order. */
static int interfaces_list(struct arena *arena, const char *transport, const char *provider,
			   struct nic_info **infos_out, uint32_t *count_out, struct ws_error *err)
{
	struct ifaddrs *list = NULL;
	size_t room = 0;

	if (getifaddrs(&list) != 0)
		return ws_fail(err, -ENODEV, "cannot list network interfaces: %s", strerror(errno));
	for (const struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next)
		room += is_usable(entry) ? 1 : 0;
	struct nic_info *infos = arena_array(arena, room, sizeof(*infos));
	for (const struct ifaddrs *entry = list; infos != NULL && entry != NULL;
	     entry = entry->ifa_next) {
		struct interface interface;
		if (!is_usable(entry))
			continue;
		interface_fill(entry, &interface);
		interface.mbps = interface_mbps(interface.name);
		info_fill(&infos[(*count_out)++], &interface, transport, provider);
	}
	freeifaddrs(list);
	*infos_out = infos;
	return infos != NULL ? 0 : ws_fail(err, -ENOMEM, "no memory to list %zu NICs", room);
}

int nics_list(struct arena *arena, const char *transport, const char *provider,
	      struct nic_info **infos_out, uint32_t *count_out, struct ws_error *err)
{
	struct nic_info *offers;
	uint32_t offer_count;

	*infos_out = NULL;
	*count_out = 0;
	if (transport_find(transport) == NULL)
		return ws_fail(err, -ENODEV, "no transport is named '%s'", transport);
	if (strcmp(transport, "fabric") != 0)
		return 0; /* loop and fault aren't hardware */
	if (provider == NULL || provider[0] == 0)
		provider = "tcp";
	int rc = fabric_offers(arena, provider, &offers, &offer_count, err);
	if (rc != 0)
		return rc;
	/* Domains of socket providers are interfaces; addresses say more, several per interface. */
	if (strcmp(provider, "tcp") == 0 || strcmp(provider, "net") == 0 ||
	    strcmp(provider, "sockets") == 0)
		return offer_count == 0 ? 0
					: interfaces_list(arena, transport, provider, infos_out,
							  count_out, err);
	*infos_out = offers;
	*count_out = offer_count;
	return 0;
}
