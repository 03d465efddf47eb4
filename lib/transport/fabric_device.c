/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "provider/source": which of libfabric's offers a device's name means, and what a NIC over it
 * says of itself.  The source is a local IPv4 address, an interface or a libfabric domain.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/fabric.h"
#include "lib/transport/tables.h"

/* What is asked of every provider.  The returned modes rule, not these. */
static struct fi_info *hints_make(const char *provider)
{
	struct fi_info *hints = libfabric.dupinfo(NULL);

	if (hints == NULL)
		return NULL;
	hints->caps = FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->rx_attr->size = 8; /* no message is ever received */
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->fabric_attr->prov_name = strdup(provider); /* freeinfo frees it */
	if (hints->fabric_attr->prov_name == NULL) {
		libfabric.freeinfo(hints);
		return NULL;
	}
	return hints;
}

/*
 * rxm's defaults take 70 MB of message buffers per endpoint, and writes use none of them; a queue
 * of verbs;ofi_rxm has room for a universe of peers where an endpoint of ours has one, and is
 * larger than Soft-RoCE can have; a registration that stays in a cache can be written to after its
 * end. libfabric reads settings from the environment only, when it starts, so they are there for
 * the first call of fi_getinfo; what the user has set stays.
 */
static int getinfo(const char *node, const struct fi_info *hints, struct fi_info **offers_out)
{
	static const char *const settings[][2] = {
		{"FI_OFI_RXM_MSG_RX_SIZE", "8"},
		{"FI_OFI_RXM_BUFFER_SIZE", "256"},
		{"FI_UNIVERSE_SIZE", "16"},
		{"FI_MR_CACHE_MAX_COUNT", "0"},
	};
	static atomic_bool started;
	bool mine[ARRAY_SIZE(settings)] = {false};
	bool first = !atomic_exchange(&started, true);

	for (size_t i = 0; first && i < ARRAY_SIZE(settings); i++)
		if (getenv(settings[i][0]) == NULL)
			mine[i] = setenv(settings[i][0], settings[i][1], 1) == 0;
	int rc = libfabric.getinfo(FABRIC_API, node, NULL, node != NULL ? FI_SOURCE : 0, hints,
				   offers_out);
	for (size_t i = 0; first && i < ARRAY_SIZE(settings); i++)
		if (mine[i])
			unsetenv(settings[i][0]);
	return rc;
}

static bool is_ipv4(const char *text)
{
	struct in_addr address;

	return inet_pton(AF_INET, text, &address) == 1;
}

/* The address by which libfabric is to bind, or "" where source can only be a domain's name. */
static int source_address(const char *source, struct interface *interface, char address[16],
			  struct ws_error *err)
{
	address[0] = 0;
	int rc = interface_find(source, interface, is_ipv4(source) ? err : NULL);
	if (rc == 0 && !interface->up)
		return ws_fail(err, -ENODEV, "interface '%s' is down; bring it up or name another",
			       interface->name);
	if (rc == 0)
		snprintf(address, 16, "%.15s", is_ipv4(source) ? source : interface->address);
	else if (is_ipv4(source))
		return rc;
	return 0;
}

static void nic_describe(struct nic *nic, const struct fi_info *info,
			 const struct interface *interface, const char *source,
			 const char *provider)
{
	snprintf(nic->name, sizeof(nic->name), "%.32s %.60s", provider, source);
	if (interface->subnet[0] != 0)
		snprintf(nic->subnet, sizeof(nic->subnet), "%s", interface->subnet);
	else
		snprintf(nic->subnet, sizeof(nic->subnet), "%.90s",
			 info->fabric_attr->name != NULL ? info->fabric_attr->name : provider);
	nic->mbps = interface->mbps;
	if (nic->mbps == 0 && info->nic != NULL && info->nic->link_attr != NULL)
		nic->mbps = info->nic->link_attr->speed / 1000000u;
}

/* "provider/source", and "?as=efa" behind it for tests of what only EFA needs. */
static int device_split(const char *device, char provider[32], char source[NIC_NAME_MAX],
			bool *as_efa_out, struct ws_error *err)
{
	const char *slash = strchr(device, '/'), *mark = strstr(device, "?as=efa");

	if (slash == NULL || slash == device || slash[1] == 0 || slash - device >= 32)
		return ws_fail(err, -EINVAL,
			       "'%s' isn't a fabric device; write provider/source, as in "
			       "tcp/127.0.0.1, tcp/eth0 or efa/rdmap0s6-rdm",
			       device);
	*as_efa_out = mark != NULL && mark > slash && mark[7] == 0;
	snprintf(provider, 32, "%.*s", (int)(slash - device), device);
	snprintf(source, NIC_NAME_MAX, "%.*s",
		 *as_efa_out ? (int)(mark - slash - 1) : NIC_NAME_MAX - 1, slash + 1);
	return 0;
}

/* Where the NIC itself can reach a GPU's memory it is asked whether it does here; other providers
 * would copy it. */
static int offers_find(const char *node, struct fi_info *hints, bool efa,
		       struct fi_info **offers_out)
{
	uint64_t caps = hints->caps;
	int mode = hints->domain_attr->mr_mode;

	if (efa) {
		hints->caps = caps | FI_HMEM;
		hints->domain_attr->mr_mode = mode | FI_MR_HMEM;
		if (getinfo(node, hints, offers_out) == 0)
			return 0;
		hints->caps = caps;
		hints->domain_attr->mr_mode = mode;
	}
	return getinfo(node, hints, offers_out);
}

int fabric_device_find(const char *device, struct nic *nic, struct fi_info **info_out,
		       struct fabric_modes *modes_out, struct ws_error *err)
{
	char provider[32], source[NIC_NAME_MAX], address[16];
	struct interface interface = {0};
	struct fi_info *offers = NULL;
	bool as_efa = false;

	*info_out = NULL;
	int rc = device_split(device, provider, source, &as_efa, err);
	if (rc != 0)
		return rc;
	rc = source_address(source, &interface, address, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "cannot open '%s'", device);
	rc = libfabric_load(err);
	if (rc != 0)
		return ws_fail_in(err, rc, "cannot open '%s'", device);
	struct fi_info *hints = hints_make(provider);
	if (hints == NULL)
		return ws_fail(err, -ENOMEM, "no memory to ask libfabric for '%s'", device);
	rc = offers_find(address[0] != 0 ? address : NULL, hints,
			 as_efa || strcmp(provider, "efa") == 0, &offers);
	libfabric.freeinfo(hints);
	if (rc != 0)
		return ws_fail(err, -ENODEV, "libfabric's provider '%s' has nothing at '%s': %s",
			       provider, source, libfabric_error(rc));
	struct fi_info *info = fabric_offer_pick(offers, address[0] != 0 ? NULL : source);
	if (info == NULL)
		rc = ws_fail(err, -ENODEV,
			     "'%s' is no address, interface or domain of provider '%s' here; "
			     "`weightsync nics` lists them",
			     source, provider);
	else
		rc = fabric_modes_choose(info, device, as_efa, modes_out, err);
	if (rc == 0) {
		*info_out = libfabric.dupinfo(info);
		if (*info_out == NULL)
			rc = ws_fail(err, -ENOMEM, "no memory for the NIC '%s'", device);
		else
			nic_describe(nic, *info_out, &interface, source, provider);
	}
	libfabric.freeinfo(offers);
	return rc;
}

static void offer_fill(struct nic_info *info, const struct fi_info *offer, const char *provider)
{
	snprintf(info->transport, sizeof(info->transport), "fabric");
	snprintf(info->device, sizeof(info->device), "%.30s/%.60s", provider,
		 offer->domain_attr->name);
	snprintf(info->subnet, sizeof(info->subnet), "%.90s",
		 offer->fabric_attr->name != NULL ? offer->fabric_attr->name : "");
	snprintf(info->state, sizeof(info->state), "offered");
	info->numa = -1;
	if (offer->nic != NULL && offer->nic->device_attr != NULL &&
	    offer->nic->device_attr->name != NULL)
		snprintf(info->rdma, sizeof(info->rdma), "%.63s", offer->nic->device_attr->name);
	if (offer->nic != NULL && offer->nic->link_attr != NULL) {
		info->mbps = offer->nic->link_attr->speed / 1000000u;
		snprintf(info->state, sizeof(info->state), "%s",
			 offer->nic->link_attr->state == FI_LINK_DOWN ? "down" : "up");
	}
	if (strcmp(info->state, "down") == 0)
		snprintf(info->skipped, sizeof(info->skipped), "its link is down");
}

static bool offer_known(const struct nic_info *infos, uint32_t count, const struct nic_info *info)
{
	for (uint32_t i = 0; i < count; i++)
		if (strcmp(infos[i].device, info->device) == 0)
			return true;
	return false;
}

int fabric_offers(struct arena *arena, const char *provider, struct nic_info **infos_out,
		  uint32_t *count_out, struct ws_error *err)
{
	struct fi_info *offers = NULL;
	uint32_t room = 0;

	*infos_out = NULL;
	*count_out = 0;
	int rc = libfabric_load(err);
	if (rc != 0)
		return rc;
	struct fi_info *hints = hints_make(provider);
	if (hints == NULL)
		return ws_fail(err, -ENOMEM, "no memory to ask libfabric for '%s'", provider);
	rc = getinfo(NULL, hints, &offers);
	libfabric.freeinfo(hints);
	if (rc == -FI_ENODATA)
		return 0;
	if (rc != 0)
		return ws_fail(err, -ENODEV, "libfabric can't list provider '%s': %s", provider,
			       libfabric_error(rc));
	for (const struct fi_info *offer = offers; offer != NULL; offer = offer->next)
		room++;
	struct nic_info *infos = arena_array(arena, room, sizeof(*infos));
	if (infos == NULL) {
		libfabric.freeinfo(offers);
		return ws_fail(err, -ENOMEM, "no memory to list %u NICs", room);
	}
	for (const struct fi_info *offer = offers; offer != NULL; offer = offer->next) {
		struct nic_info info = {0};

		if (offer->domain_attr->name == NULL)
			continue;
		offer_fill(&info, offer, provider);
		if (!offer_known(infos, *count_out, &info))
			infos[(*count_out)++] = info;
	}
	libfabric.freeinfo(offers);
	*infos_out = infos;
	return 0;
}
