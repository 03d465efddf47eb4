/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a provider needs that others don't, decided from what libfabric says of it and from
 * nothing else, so that it can be tested where the provider's NIC isn't.  Most of it is EFA's
 * (fi_efa(7)): unordered and connectionless, so that a connection ends by destroying its queue
 * pair; immediates of 4 bytes; writes of at most 1 GiB; the first touch of a peer is slow.
 */
#include <errno.h>
#include <string.h>

#include "lib/transport/fabric.h"

/* Newer than the headers of libfabric 1.17: endpoint options of 1.18 (rdma/fi_endpoint.h) and
 * of EFA (rdma/fi_ext.h, 1.18).  They are numbers of an ABI and don't change. */
#if FI_VERSION_LT(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), FI_VERSION(1, 18))
#define FI_OPT_CUDA_API_PERMITTED      10
#define FI_OPT_SHARED_MEMORY_PERMITTED 11
#endif
#define OPT_EFA_EMULATED_WRITE (-(0xefa << 16) + 2)

#define EFA_OP_BYTES_MAX (UINT64_C(1) << 30)
/* Completions of others' writes wait here while nobody polls; one too many ends the queue.  The
 * writers wait for nobody, so there is no number that is always enough. */
#define EFA_QUEUE_ROOM 16384u

static bool is_from(const struct fi_info *info, const char *provider)
{
	return strncmp(info->fabric_attr->prov_name, provider, strlen(provider)) == 0;
}

static bool is_efa_direct(const struct fi_info *info)
{
	return info->fabric_attr->name != NULL &&
	       strcmp(info->fabric_attr->name, "efa-direct") == 0;
}

int fabric_modes_choose(const struct fi_info *info, const char *device, bool as_efa,
			struct fabric_modes *modes_out, struct ws_error *err)
{
	const int handled =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM;
	bool efa = as_efa || is_from(info, "efa");
	bool tcp = is_from(info, "tcp") || is_from(info, "net");
	uint64_t op_bytes_max = info->ep_attr->max_msg_size;

	if (info->domain_attr->cq_data_size < 4)
		return ws_fail(err, -ENOTSUP,
			       "'%s' carries %zu bytes with a write and 4 are needed; "
			       "choose another provider",
			       device, info->domain_attr->cq_data_size);
	if ((info->domain_attr->mr_mode & ~handled) != 0)
		return ws_fail(err, -ENOTSUP,
			       "'%s' wants memory registered in a way (mr_mode 0x%x) that isn't "
			       "built in; choose another provider",
			       device, (unsigned)info->domain_attr->mr_mode);
	if ((info->mode & ~(FI_CONTEXT | FI_CONTEXT2 | FI_BUFFERED_RECV)) != 0)
		return ws_fail(err, -ENOTSUP,
			       "'%s' wants a mode (0x%llx) that isn't built in; "
			       "choose another provider",
			       device, (unsigned long long)info->mode);
	*modes_out = (struct fabric_modes){
		.op_bytes_max = efa ? MIN(op_bytes_max, EFA_OP_BYTES_MAX) : op_bytes_max,
		.queue_room = efa ? EFA_QUEUE_ROOM : 0,
		/* Without it a write with a wrong key is "sent" over tcp, and so is the one after
		 * it.  shm 1.17.0 never completes a write of 0 bytes that asks for it. */
		.delivery_complete = tcp || is_from(info, "sockets"),
		.ends_alone = tcp && strstr(info->fabric_attr->prov_name, "ofi_rxm") != NULL,
		.joined = efa,
		/* efa-direct has no handshake, and a target that doesn't know the writer yet
		 * drops its write. */
		.warm_up = efa && !is_efa_direct(info),
		.own_descriptor = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0,
		.gpu_memory = efa && (info->caps & FI_HMEM) != 0,
		.refuses_emulation = is_from(info, "efa") && !is_efa_direct(info),
	};
	return 0;
}

struct fi_info *fabric_offer_pick(struct fi_info *offers, const char *domain)
{
	struct fi_info *found = NULL;

	for (struct fi_info *info = offers; info != NULL; info = info->next) {
		if (domain != NULL && (info->domain_attr->name == NULL ||
				       strcmp(info->domain_attr->name, domain) != 0))
			continue;
		if (is_efa_direct(info))
			return info;
		if (found == NULL)
			found = info;
	}
	return found;
}

/* -FI_ENOPROTOOPT and its like: the provider has never heard of it. */
static bool is_unknown(int rc)
{
	return rc == -FI_ENOPROTOOPT || rc == -FI_EOPNOTSUPP || rc == -FI_ENOSYS;
}

/* EFA would otherwise pass bytes inside a host through memory of its own, unfenced, and call CUDA
 * while a kernel waits for this thread. */
int fabric_endpoint_forbid(const struct nic *nic, struct fid_ep *ep, struct ws_error *err)
{
	bool no = false;
	int rc = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &no,
			   sizeof(no));

	if (rc != 0 && !is_unknown(rc))
		return ws_fail(err, -ENOTSUP, "%s can't be kept from using shared memory: %s",
			       nic->name, libfabric_error(rc));
	rc = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &no, sizeof(no));
	/* EINVAL is how EFA says that there is no CUDA here. */
	if (rc != 0 && !is_unknown(rc) && rc != -FI_EINVAL)
		return ws_fail(err, -ENOTSUP, "%s can't be kept from calling CUDA: %s", nic->name,
			       libfabric_error(rc));
	return 0;
}

int fabric_emulation_check(const struct nic *nic, int rc, bool emulated, struct ws_error *err)
{
	if (is_unknown(rc))
		return ws_fail(
			err, -ENOTSUP,
			"%s can't say whether its NIC does the writes; use libfabric 1.18 or "
			"later",
			nic->name);
	if (rc != 0)
		return ws_fail(err, -EIO, "%s can't say whether its NIC does the writes: %s",
			       nic->name, libfabric_error(rc));
	if (emulated)
		return ws_fail(
			err, -ENOTSUP,
			"%s would emulate writes by messages; use a NIC with RDMA write "
			"(p5, p4de with EFA firmware that has it), or FI_EFA_USE_DEVICE_RDMA=1",
			nic->name);
	return 0;
}

int fabric_endpoint_check(const struct nic *nic, const struct fabric_modes *modes,
			  struct fid_ep *ep, struct ws_error *err)
{
	bool emulated = false;
	size_t bytes = sizeof(emulated);

	if (!modes->refuses_emulation)
		return 0;
	int rc = fi_getopt(&ep->fid, FI_OPT_ENDPOINT, OPT_EFA_EMULATED_WRITE, &emulated, &bytes);
	return fabric_emulation_check(nic, rc, emulated, err);
}
