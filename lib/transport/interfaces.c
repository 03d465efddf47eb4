/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network interfaces of this host, from the kernel: an entry for each IPv4 address, and one
 * for each card's interface that has none.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/transport/tables.h"

/* ---------------------------------------------------------------- what sysfs says */

static bool class_path(char path[128], const char *name, const char *what)
{
	int length = snprintf(path, 128, "/sys/class/net/%.32s/%s", name, what);

	return length > 0 && length < 128;
}

/* A file's first line; false where there is none.  Allocates nothing: what can't be read for want
 * of memory would look like what the kernel doesn't say. */
static bool line_read(const char *path, char line_out[64])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t count = fd >= 0 ? read(fd, line_out, 63) : -1;

	if (fd >= 0)
		close(fd);
	if (count <= 0)
		return false;
	line_out[count] = 0;
	line_out[strcspn(line_out, "\n")] = 0;
	return true;
}

/* 0 where the kernel doesn't know (the speed of loopback and of most virtual ones). */
static uint64_t class_number(const char *name, const char *what)
{
	char path[128], text[64];

	if (!class_path(path, name, what) || !line_read(path, text))
		return 0;
	long number = strtol(text, NULL, 10);
	return number > 0 ? (uint64_t)number : 0;
}

/* The bond that owns this interface, or "". */
static void bond_of(const char *name, char bond_out[32])
{
	char path[128];

	bond_out[0] = 0;
	if (class_path(path, name, "master/bonding") && access(path, F_OK) == 0 &&
	    class_path(path, name, "master"))
		file_link_name(path, bond_out, 32);
}

static bool is_card(const char *name)
{
	char path[128];

	return class_path(path, name, "device") && access(path, F_OK) == 0;
}

bool interface_lower(const char *name, char lower_out[32])
{
	char path[128];
	DIR *folder = class_path(path, name, "") ? opendir(path) : NULL;
	const struct dirent *entry;

	lower_out[0] = 0;
	/* The first by name: a bond's card must not depend on the kernel's order. */
	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		const char *lower = entry->d_name + strlen("lower_");
		if (strncmp(entry->d_name, "lower_", strlen("lower_")) == 0 &&
		    (lower_out[0] == 0 || strverscmp(lower, lower_out) < 0))
			snprintf(lower_out, 32, "%.31s", lower);
	}
	if (folder != NULL)
		closedir(folder);
	return lower_out[0] != 0;
}

#define LAYERS_MAX 4 /* a bridge over a VLAN over a bond over a card */

static bool stands_on_card(const char *name)
{
	char lower[32];

	snprintf(lower, sizeof(lower), "%.31s", name);
	for (int i = 0; i < LAYERS_MAX && !is_card(lower); i++)
		if (!interface_lower(lower, lower))
			return false;
	return is_card(lower);
}

/* "docker0": its ports are containers' or virtual machines', and another host has one with the
 * very same addresses. */
static bool is_inside(const char *name)
{
	char path[128];
	DIR *ports = class_path(path, name, "brif") ? opendir(path) : NULL;
	const struct dirent *entry;
	bool inside = ports != NULL;

	while (inside && (entry = readdir(ports)) != NULL)
		inside = entry->d_name[0] == '.' || !stands_on_card(entry->d_name);
	if (ports != NULL)
		closedir(ports);
	return inside;
}

void rdma_interface(const char *rdma, char name_out[32])
{
	char path[160], text[64];

	name_out[0] = 0;
	snprintf(path, sizeof(path), "/sys/class/infiniband/%.63s/ports/1/gid_attrs/ndevs/0", rdma);
	if (line_read(path, text))
		snprintf(name_out, 32, "%.31s", text);
}

/* ---------------------------------------------------------------- what getifaddrs says */

static struct in_addr address_of(const struct sockaddr *from)
{
	struct sockaddr_in in;

	memcpy(&in, from, sizeof(in));
	return in.sin_addr;
}

static bool has_ipv4(const struct ifaddrs *entry)
{
	return entry->ifa_addr != NULL && entry->ifa_netmask != NULL &&
	       entry->ifa_addr->sa_family == AF_INET;
}

/* Each interface has one entry of this family, whatever its addresses. */
static bool is_card_without_ipv4(const struct ifaddrs *entry, const struct ifaddrs *list)
{
	if (entry->ifa_addr == NULL || entry->ifa_addr->sa_family != AF_PACKET ||
	    !is_card(entry->ifa_name))
		return false;
	for (; list != NULL; list = list->ifa_next)
		if (has_ipv4(list) && strcmp(list->ifa_name, entry->ifa_name) == 0)
			return false;
	return true;
}

static void interface_fill(const struct ifaddrs *entry, struct interface *interface)
{
	memset(interface, 0, sizeof(*interface));
	snprintf(interface->name, sizeof(interface->name), "%.31s", entry->ifa_name);
	interface->up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
	interface->loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
	interface->mbps = class_number(interface->name, "speed");
	interface->mtu = (uint32_t)class_number(interface->name, "mtu");
	bond_of(interface->name, interface->bond);
	interface->inside = is_inside(interface->name);
	if (!has_ipv4(entry))
		return;
	struct in_addr address = address_of(entry->ifa_addr);
	struct in_addr mask = address_of(entry->ifa_netmask);
	struct in_addr subnet = {.s_addr = address.s_addr & mask.s_addr};
	char text[INET_ADDRSTRLEN] = "";
	inet_ntop(AF_INET, &address, interface->address, sizeof(interface->address));
	inet_ntop(AF_INET, &subnet, text, sizeof(text));
	snprintf(interface->subnet, sizeof(interface->subnet), "%s/%d", text,
		 __builtin_popcount(mask.s_addr));
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
		if (has_ipv4(entry) &&
		    is_meant(entry, name_or_address, is_address ? &address : NULL))
			break;
	if (entry != NULL)
		interface_fill(entry, found_out);
	freeifaddrs(list);
	if (entry == NULL)
		return ws_fail(
			err, -ENODEV,
			"no interface of this host is or has '%s'; `weightsync nics` lists them",
			name_or_address);
	return 0;
}

int interfaces_list(struct arena *arena, struct interface **interfaces_out, uint32_t *count_out,
		    struct ws_error *err)
{
	struct ifaddrs *list = NULL;
	size_t room = 0;

	*interfaces_out = NULL;
	*count_out = 0;
	if (getifaddrs(&list) != 0)
		return ws_fail(err, -ENODEV, "cannot list network interfaces: %s", strerror(errno));
	for (const struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next)
		room++;
	struct interface *interfaces = arena_array(arena, room, sizeof(*interfaces));
	for (const struct ifaddrs *entry = list; interfaces != NULL && entry != NULL;
	     entry = entry->ifa_next)
		if (has_ipv4(entry) || is_card_without_ipv4(entry, list))
			interface_fill(entry, &interfaces[(*count_out)++]);
	freeifaddrs(list);
	*interfaces_out = interfaces;
	return interfaces != NULL
		       ? 0
		       : ws_fail(err, -ENOMEM, "no memory to list %zu network interfaces", room);
}
