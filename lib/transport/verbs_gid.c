/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which entry of a port's GID table a connection is made from.  Its index differs between vendors
 * and nodes and moves when a link flaps, so it is always chosen by what it holds.  Nothing here
 * asks a device: the table comes in, a choice and its reason go out.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/transport/verbs.h"

/* The better, the greater.  GID_NONE is no entry at all, GID_LINK_LOCAL is only taken by order. */
enum gid_kind {
	GID_NONE,
	GID_LINK_LOCAL,
	GID_V1,
	GID_INFINIBAND,
	GID_V2_IPV6,
	GID_V2_IPV4,
};

static const char *const kind_reasons[] = {
	/* of those that may be chosen */
	[GID_V1] = "no RoCE v2 entry is routable; this one isn't link-local",
	[GID_INFINIBAND] = "the port's InfiniBand GID",
	[GID_V2_IPV6] = "RoCE v2 over a routable IPv6 address; there is no IPv4 one",
	[GID_V2_IPV4] = "RoCE v2 over a routable IPv4 address",
};

static bool is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid->raw, mapped, sizeof(mapped)) == 0;
}

static bool is_link_local(const union ibv_gid *gid)
{
	if (is_ipv4(gid))
		return (gid->raw[12] == 169 && gid->raw[13] == 254) || gid->raw[12] == 127;
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static enum gid_kind kind_of(const struct ibv_gid_entry *entry)
{
	static const union ibv_gid zero;

	if (memcmp(&entry->gid, &zero, sizeof(zero)) == 0)
		return GID_NONE;
	/* Every InfiniBand GID of a default fabric has the link-local prefix; it is routed by LID.
	 */
	if (entry->gid_type == IBV_GID_TYPE_IB)
		return GID_INFINIBAND;
	if (is_link_local(&entry->gid))
		return GID_LINK_LOCAL;
	if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
		return GID_V1;
	return is_ipv4(&entry->gid) ? GID_V2_IPV4 : GID_V2_IPV6;
}

static const char *type_name(uint32_t type)
{
	return type == IBV_GID_TYPE_IB	      ? "InfiniBand"
	       : type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
					      : "RoCE v2";
}

static void gid_fill(struct verbs_gid *gid, const struct ibv_gid_entry *entry, const char *why)
{
	memset(gid, 0, sizeof(*gid));
	gid->raw = entry->gid;
	gid->index = (uint8_t)entry->gid_index;
	gid->type = (uint8_t)entry->gid_type;
	gid->netdev = entry->ndev_ifindex;
	if (is_ipv4(&entry->gid))
		inet_ntop(AF_INET, entry->gid.raw + 12, gid->address, sizeof(gid->address));
	else
		inet_ntop(AF_INET6, entry->gid.raw, gid->address, sizeof(gid->address));
	snprintf(gid->reason, sizeof(gid->reason), "GID %u (%s, %s): %s", entry->gid_index,
		 type_name(entry->gid_type), gid->address, why);
}

static int none_usable(const struct ibv_gid_entry *entries, uint32_t count, int wanted,
		       struct verbs_gid *gid)
{
	uint32_t link_local = 0;

	for (uint32_t i = 0; i < count; i++)
		link_local += kind_of(&entries[i]) == GID_LINK_LOCAL;
	if (wanted >= 0)
		snprintf(gid->reason, sizeof(gid->reason), "its GID table has nothing at index %d",
			 wanted);
	else if (link_local > 0)
		snprintf(gid->reason, sizeof(gid->reason),
			 "all %u GIDs are link-local; give the interface an address", link_local);
	else
		snprintf(gid->reason, sizeof(gid->reason), "its GID table is empty");
	return -ENODEV;
}

int verbs_gid_choose(const struct ibv_gid_entry *entries, uint32_t count, int wanted,
		     struct verbs_gid *gid_out)
{
	const struct ibv_gid_entry *best = NULL;
	enum gid_kind best_kind = GID_LINK_LOCAL;

	memset(gid_out, 0, sizeof(*gid_out));
	for (uint32_t i = 0; i < count; i++) {
		enum gid_kind kind = kind_of(&entries[i]);
		if (wanted >= 0 && entries[i].gid_index == (uint32_t)wanted && kind != GID_NONE) {
			gid_fill(gid_out, &entries[i], "asked for");
			return 0;
		}
		if (kind > best_kind ||
		    (kind == best_kind && best != NULL && entries[i].gid_index < best->gid_index)) {
			best = &entries[i];
			best_kind = kind;
		}
	}
	if (wanted >= 0 || best == NULL)
		return none_usable(entries, count, wanted, gid_out);
	gid_fill(gid_out, best, kind_reasons[best_kind]);
	return 0;
}
