/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "device/port?options": which RDMA device and port a NIC's name means, what connections of it
 * are made from, and what this host offers.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/tables.h"
#include "lib/transport/verbs.h"

/* ---------------------------------------------------------------- the name */

/* One "key=value" of what follows the question mark. */
static int option_take(struct verbs_options *options, const char *text, const char *device,
		       struct ws_error *err)
{
	const struct {
		const char *key;
		int *value;
		int min, max;
	} numbers[] = {
		{"gid", &options->gid, 0, 255},
		{"mtu", &options->mtu, 256, 4096},
		{"sl", &options->service_level, 0, 15},
		{"tc", &options->traffic_class, 0, 255},
		{"timeout", &options->timeout, 1, 31},
		{"retries", &options->retries, 0, 7},
		{"rnr_retries", &options->rnr_retries, 0, 6},
		{"cq", &options->cq, 1, 1 << 24},
		{"receives", &options->receives, 0, 1 << 24},
		{"key", &options->key, 0, INT_MAX},
		{"past", &options->past, 0, INT_MAX},
	};
	const char *equals = strchr(text, '=');
	size_t key_bytes = equals != NULL ? (size_t)(equals - text) : strlen(text);
	char *end;

	if (equals != NULL && key_bytes == 6 && strncmp(text, "subnet", 6) == 0) {
		snprintf(options->subnet, sizeof(options->subnet), "%s", equals + 1);
		return options->subnet[0] != 0
			       ? 0
			       : ws_fail(err, -EINVAL, "'%s' names no subnet", device);
	}
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		if (equals == NULL || strlen(numbers[i].key) != key_bytes ||
		    strncmp(text, numbers[i].key, key_bytes) != 0)
			continue;
		long value = strtol(equals + 1, &end, 10);
		if (end == equals + 1 || *end != 0 || value < numbers[i].min ||
		    value > numbers[i].max)
			return ws_fail(err, -EINVAL, "'%s' in '%s': %s is a number from %d to %d",
				       text, device, numbers[i].key, numbers[i].min,
				       numbers[i].max);
		*numbers[i].value = (int)value;
		return 0;
	}
	return ws_fail(err, -EINVAL,
		       "'%s' in '%s' is no option of verbs; there are subnet, gid, mtu, sl, tc, "
		       "timeout and retries",
		       text, device);
}

static int name_take(struct verbs_options *options, const char *name, const char *device,
		     struct ws_error *err)
{
	const char *slash = strchr(name, '/');
	size_t bytes = slash != NULL ? (size_t)(slash - name) : strlen(name);
	char *end = NULL;

	if (bytes == 0 || bytes >= sizeof(options->device))
		return ws_fail(err, -EINVAL,
			       "'%s' names no RDMA device; write it as mlx5_0/1 (device/port)",
			       device);
	memcpy(options->device, name, bytes);
	if (slash == NULL)
		return 0;
	long port = strtol(slash + 1, &end, 10);
	if (end == slash + 1 || *end != 0 || port < 1 || port > UINT8_MAX)
		return ws_fail(err, -EINVAL,
			       "'%s' names no port: behind the slash stands a number from 1",
			       device);
	options->port = (uint8_t)port;
	return 0;
}

int verbs_options_parse(struct verbs_options *options, const char *device, struct ws_error *err)
{
	char text[160], *rest;

	*options = (struct verbs_options){.gid = -1,
					  .timeout = 17, /* 0.5 s, see README.md */
					  .retries = 6,	 /* 7 has no end on Soft-RoCE */
					  .rnr_retries = 6,
					  .receives = -1};
	if (strlen(device) >= sizeof(text))
		return ws_fail(err, -EINVAL, "the device's name '%s' is too long", device);
	snprintf(text, sizeof(text), "%s", device);
	rest = strchr(text, '?');
	if (rest != NULL)
		*rest++ = 0;
	int rc = name_take(options, text, device, err);
	for (char *next; rc == 0 && rest != NULL; rest = next) {
		next = strchr(rest, '&');
		if (next != NULL)
			*next++ = 0;
		rc = option_take(options, rest, device, err);
	}
	if (rc == 0 && options->mtu != 0 && (options->mtu & (options->mtu - 1)) != 0)
		return ws_fail(err, -EINVAL, "mtu in '%s' is 256, 512, 1024, 2048 or 4096", device);
	return rc;
}

/* ---------------------------------------------------------------- what a port is */

uint64_t verbs_mbps(const struct ibv_port_attr *attr)
{
	static const struct {
		uint8_t code;
		uint32_t value;
	} speeds[] = {{1, 2500},   {2, 5000},	{4, 10000},  {8, 10000},
		      {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}},
	  widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
	uint64_t speed = 0, lanes = 0;

	for (size_t i = 0; i < ARRAY_SIZE(speeds); i++)
		if (speeds[i].code == attr->active_speed)
			speed = speeds[i].value;
	for (size_t i = 0; i < ARRAY_SIZE(widths); i++)
		if (widths[i].code == attr->active_width)
			lanes = widths[i].value;
	return speed * lanes;
}

int verbs_gid_scan(struct ibv_context *context, const struct verbs_port *port, int wanted,
		   struct verbs_gid *gid_out)
{
	struct ibv_gid_entry entries[VERBS_GIDS_MAX];
	uint32_t count = 0;

	for (int i = 0; i < port->attr.gid_tbl_len && i < VERBS_GIDS_MAX; i++)
		if (ibv_query_gid_ex(context, port->number, (uint32_t)i, &entries[count], 0) == 0)
			count++;
	return verbs_gid_choose(entries, count, wanted, gid_out);
}

void verbs_subnet(const struct verbs_gid *gid, char subnet[NIC_NAME_MAX])
{
	union ibv_gid prefix = gid->raw;
	struct interface interface;
	char text[INET6_ADDRSTRLEN] = "";

	if (gid->type != IBV_GID_TYPE_IB && strchr(gid->address, ':') == NULL) {
		/* Without its interface (another network namespace) the mask isn't known. */
		if (interface_find(gid->address, &interface, NULL) == 0)
			snprintf(subnet, NIC_NAME_MAX, "%s", interface.subnet);
		else
			snprintf(subnet, NIC_NAME_MAX, "%s/32", gid->address);
		return;
	}
	memset(prefix.raw + 8, 0, 8);
	inet_ntop(AF_INET6, prefix.raw, text, sizeof(text));
	snprintf(subnet, NIC_NAME_MAX, "%s%s/64", gid->type == IBV_GID_TYPE_IB ? "ib " : "", text);
}

/* ---------------------------------------------------------------- finding one */

/* "rxe1, rxe2" for an error; cut where there are many. */
static void names_write(struct ibv_device **devices, int count, char *text, size_t room)
{
	struct writer out = writer_fixed(text, room - 1);

	for (int i = 0; i < count; i++)
		write_format(&out, "%s%s", i > 0 ? ", " : "", ibv_get_device_name(devices[i]));
	text[out.count] = 0;
}

static int device_open(struct ibv_device **devices, int count, const struct verbs_options *options,
		       struct ibv_context **context_out, struct ws_error *err)
{
	char names[160];

	for (int i = 0; i < count; i++) {
		if (strcmp(ibv_get_device_name(devices[i]), options->device) != 0)
			continue;
		*context_out = ibv_open_device(devices[i]);
		return *context_out != NULL
			       ? 0
			       : ws_fail(err, -ENODEV, "cannot open RDMA device '%s': %s",
					 options->device, strerror(errno));
	}
	names_write(devices, count, names, sizeof(names));
	return ws_fail(err, -ENODEV, "no RDMA device is named '%s'; this host has %s",
		       options->device, names);
}

static int device_find(const struct verbs_options *options, struct ibv_context **context_out,
		       struct ws_error *err)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);

	if (devices == NULL || count == 0) {
		if (devices != NULL)
			ibv_free_device_list(devices);
		return ws_fail(err, -ENODEV,
			       "this host has no RDMA device for '%s'; is the driver loaded, and "
			       "/dev/infiniband in this container?",
			       options->device);
	}
	int rc = device_open(devices, count, options, context_out, err);
	ibv_free_device_list(devices);
	return rc;
}

/* The port that was named, or the first that is active. */
static int port_choose(struct ibv_context *context, const struct verbs_options *options,
		       struct verbs_port *port, struct ws_error *err)
{
	struct ibv_device_attr device;
	struct ibv_port_attr attr;
	int active = 0;

	if (ibv_query_device(context, &device) != 0)
		return ws_fail(err, -ENODEV, "RDMA device '%s' doesn't answer", options->device);
	if (options->port > device.phys_port_cnt)
		return ws_fail(err, -ENODEV, "'%s' has no port %u; it has %u", options->device,
			       options->port, device.phys_port_cnt);
	for (unsigned i = 1; i <= device.phys_port_cnt; i++) {
		if (ibv_query_port(context, (uint8_t)i, &attr) != 0)
			continue;
		active += attr.state == IBV_PORT_ACTIVE;
		if (options->port != 0 ? i != options->port
				       : attr.state != IBV_PORT_ACTIVE || port->number != 0)
			continue;
		port->number = (uint8_t)i;
		port->attr = attr;
	}
	if (port->number == 0)
		return ws_fail(err, -ENODEV, "none of the %u ports of '%s' is active",
			       device.phys_port_cnt, options->device);
	if (options->port != 0)
		snprintf(port->reason, sizeof(port->reason), "named");
	else
		snprintf(port->reason, sizeof(port->reason), "%s active of %u",
			 active > 1 ? "the first" : "the only", device.phys_port_cnt);
	return 0;
}

int verbs_port_open(const struct verbs_options *options, struct ibv_context **context_out,
		    struct verbs_port *port_out, struct ws_error *err)
{
	memset(port_out, 0, sizeof(*port_out));
	int rc = device_find(options, context_out, err);
	if (rc != 0)
		return rc;
	assert(*context_out != NULL);
	rc = port_choose(*context_out, options, port_out, err);
	if (rc == 0 && verbs_gid_scan(*context_out, port_out, options->gid, &port_out->gid) != 0)
		rc = ws_fail(err, -ENODEV, "%s port %u (%s) can't be used: %s", options->device,
			     port_out->number, port_out->reason, port_out->gid.reason);
	return rc;
}

/* ---------------------------------------------------------------- offers */

static void offer_name(struct nic_info *info, struct ibv_device *device, uint8_t number)
{
	const char *name = ibv_get_device_name(device);

	snprintf(info->transport, sizeof(info->transport), "verbs");
	snprintf(info->device, sizeof(info->device), "%.63s/%u", name, number);
	snprintf(info->rdma, sizeof(info->rdma), "%.63s", name);
	snprintf(info->state, sizeof(info->state), "unknown");
	info->numa = -1;
}

static void offer_fill(struct nic_info *info, struct ibv_context *context, uint8_t number)
{
	struct verbs_port port = {.number = number};

	offer_name(info, context->device, number);
	if (ibv_query_port(context, number, &port.attr) != 0) {
		snprintf(info->skipped, sizeof(info->skipped), "the port doesn't answer: %s",
			 strerror(errno));
		return;
	}
	bool active = port.attr.state == IBV_PORT_ACTIVE;
	snprintf(info->state, sizeof(info->state), "%s",
		 active ? "up" : ibv_port_state_str(port.attr.state));
	info->mbps = verbs_mbps(&port.attr);
	info->mtu = 128u << port.attr.active_mtu;
	bool usable = verbs_gid_scan(context, &port, -1, &port.gid) == 0;
	if (usable) {
		verbs_subnet(&port.gid, info->subnet);
		snprintf(info->gid, sizeof(info->gid), "%s", port.gid.reason);
		if (port.gid.netdev != 0)
			if_indextoname(port.gid.netdev, info->netdev);
	}
	if (!active)
		snprintf(info->skipped, sizeof(info->skipped), "port %u is %s", number,
			 info->state);
	else if (!usable)
		snprintf(info->skipped, sizeof(info->skipped), "%s", port.gid.reason);
}

/* EFA's transport is its own, and iWARP's writes carry no immediate. */
static void transport_check(const struct ibv_device *device, struct nic_info *info)
{
	if (device->transport_type == IBV_TRANSPORT_UNSPECIFIED)
		snprintf(
			info->skipped, sizeof(info->skipped),
			"no reliable connections: if it is EFA, fabric with --provider efa uses it");
	else if (device->transport_type != IBV_TRANSPORT_IB)
		snprintf(info->skipped, sizeof(info->skipped),
			 "no writes with an immediate: neither InfiniBand nor RoCE");
}

static uint32_t ports_offer(struct ibv_device *device, struct nic_info *infos, uint32_t room)
{
	struct ibv_context *context = ibv_open_device(device);
	int error = context == NULL ? errno : 0;
	struct ibv_device_attr attr = {0};
	uint32_t count = 0;

	if (context != NULL)
		error = ibv_query_device(context, &attr);
	for (uint8_t i = 1; error == 0 && i <= attr.phys_port_cnt && count < room; i++) {
		offer_fill(&infos[count], context, i);
		transport_check(device, &infos[count++]);
	}
	if (context != NULL)
		ibv_close_device(context);
	if (error == 0)
		return count;
	offer_name(&infos[0], device, 1);
	snprintf(infos[0].skipped, sizeof(infos[0].skipped), "cannot open the device: %s",
		 strerror(error));
	return 1;
}

#define PORTS_MAX 4 /* of one device */

int verbs_offers(struct arena *arena, struct nic_info **infos_out, uint32_t *count_out,
		 struct ws_error *err)
{
	int device_count = 0;
	uint32_t count = 0;

	*infos_out = NULL;
	*count_out = 0;
	/* NULL where the kernel has no RDMA at all: no device either. */
	struct ibv_device **devices = ibv_get_device_list(&device_count);
	if (devices == NULL || device_count == 0) {
		if (devices != NULL)
			ibv_free_device_list(devices);
		return 0;
	}
	struct nic_info *infos =
		arena_array(arena, (size_t)device_count * PORTS_MAX, sizeof(*infos));
	for (int i = 0; infos != NULL && i < device_count; i++)
		count += ports_offer(devices[i], &infos[count], PORTS_MAX);
	ibv_free_device_list(devices);
	if (infos == NULL)
		return ws_fail(err, -ENOMEM, "no memory to list %d RDMA devices", device_count);
	*infos_out = count > 0 ? infos : NULL;
	*count_out = count;
	return 0;
}
