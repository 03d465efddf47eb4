/* SPDX-License-Identifier: Apache-2.0 */
/* Bare libfabric writes: one endpoint, one queue, a window of ops. */
#include "bench/bare_fabric.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define READ_MAX     64
#define WAIT_MS	     60000
#define SPIN_POLLS   64 /* empty polls in a row before it sleeps on the queue */
#define SLEEP_MS     100
#define CONTEXTS_MAX 4096

struct bare {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	struct fi_context2 *contexts; /* owned; one per op in flight */
	uint32_t depth;
	uint8_t *memory;
	size_t bytes;
	struct bare_address peer;
	fi_addr_t to;
	uint64_t flags;
	bool waits; /* the queue can be slept on */
};

static int say(struct ws_error *err, int rc, const char *step)
{
	return ws_fail(err, -EIO, "bare libfabric can't %s: %s", step, fi_strerror(-rc));
}

/* The same hints as lib/transport gives. */
static int info_find(struct bare *bare, const char *provider, const char *source)
{
	struct fi_info *hints = fi_allocinfo();
	if (hints == NULL)
		return -FI_ENOMEM;
	hints->caps = FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_WRITE | FI_LOCAL_COMM | FI_REMOTE_COMM;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->rx_attr->size = 8;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->fabric_attr->prov_name = strdup(provider);
	int rc = fi_getinfo(FI_VERSION(1, 17), source, NULL, FI_SOURCE, hints, &bare->info);
	fi_freeinfo(hints);
	return rc;
}

static int endpoint_open(struct bare *bare)
{
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD, .size = 4096};
	int rc = fi_fabric(bare->info->fabric_attr, &bare->fabric, NULL);
	if (rc == 0)
		rc = fi_domain(bare->fabric, bare->info, &bare->domain, NULL);
	if (rc == 0)
		rc = fi_av_open(bare->domain, &av, &bare->av, NULL);
	if (rc == 0 && fi_cq_open(bare->domain, &cq, &bare->cq, NULL) == 0) {
		bare->waits = true;
	} else if (rc == 0) {
		cq.wait_obj = FI_WAIT_NONE;
		rc = fi_cq_open(bare->domain, &cq, &bare->cq, NULL);
	}
	if (rc == 0)
		rc = fi_endpoint(bare->domain, bare->info, &bare->ep, NULL);
	if (rc == 0)
		rc = fi_ep_bind(bare->ep, &bare->cq->fid, FI_TRANSMIT | FI_RECV);
	if (rc == 0)
		rc = fi_ep_bind(bare->ep, &bare->av->fid, 0);
	if (rc == 0)
		rc = fi_enable(bare->ep);
	return rc;
}

static int memory_open(struct bare *bare, struct bare_address *address_out)
{
	int mode = bare->info->domain_attr->mr_mode;
	size_t name_bytes = BARE_NAME_BYTES;
	int rc = fi_mr_reg(bare->domain, bare->memory, bare->bytes, FI_WRITE | FI_REMOTE_WRITE, 0,
			   4711, 0, &bare->mr, NULL);
	if (rc == 0)
		rc = fi_getname(&bare->ep->fid, address_out->name, &name_bytes);
	if (rc != 0)
		return rc;
	address_out->name_bytes = name_bytes;
	address_out->key = fi_mr_key(bare->mr);
	address_out->base = (mode & FI_MR_VIRT_ADDR) != 0 ? (uint64_t)(uintptr_t)bare->memory : 0;
	return 0;
}

int bare_open(struct bare **bare_out, const char *provider, const char *source, uint32_t depth,
	      void *memory, size_t bytes, struct bare_address *address_out, struct ws_error *err)
{
	*bare_out = NULL;
	struct bare *bare = mem_alloc(sizeof(*bare));
	if (bare == NULL || depth > CONTEXTS_MAX) {
		mem_free(bare);
		return ws_fail(err, -ENOMEM, "no memory for the baseline, or a depth above %d",
			       CONTEXTS_MAX);
	}
	bare->contexts = mem_alloc(depth * sizeof(*bare->contexts));
	bare->depth = depth;
	bare->memory = memory;
	bare->bytes = bytes;
	/* As lib/transport/fabric.c: without it tcp's completions say nothing of delivery. */
	bool delivery = strncmp(provider, "tcp", 3) == 0 || strncmp(provider, "net", 3) == 0 ||
			strncmp(provider, "sockets", 7) == 0;
	bare->flags = FI_REMOTE_CQ_DATA | FI_COMPLETION | (delivery ? FI_DELIVERY_COMPLETE : 0);
	int rc = bare->contexts == NULL ? -FI_ENOMEM : info_find(bare, provider, source);
	if (rc == 0)
		rc = endpoint_open(bare);
	if (rc == 0)
		rc = memory_open(bare, address_out);
	if (rc != 0) {
		bare_close(bare);
		return say(err, rc, "open an endpoint");
	}
	*bare_out = bare;
	return 0;
}

int bare_connect(struct bare *bare, const struct bare_address *peer, struct ws_error *err)
{
	bare->peer = *peer;
	if (fi_av_insert(bare->av, bare->peer.name, 1, &bare->to, 0, NULL) != 1)
		return say(err, -FI_EINVAL, "take the other end's address");
	return 0;
}

void bare_close(struct bare *bare)
{
	if (bare == NULL)
		return;
	struct fid *fids[] = {bare->ep != NULL ? &bare->ep->fid : NULL,
			      bare->mr != NULL ? &bare->mr->fid : NULL,
			      bare->cq != NULL ? &bare->cq->fid : NULL,
			      bare->av != NULL ? &bare->av->fid : NULL,
			      bare->domain != NULL ? &bare->domain->fid : NULL,
			      bare->fabric != NULL ? &bare->fabric->fid : NULL};
	for (size_t i = 0; i < ARRAY_SIZE(fids); i++)
		if (fids[i] != NULL)
			fi_close(fids[i]);
	if (bare->info != NULL)
		fi_freeinfo(bare->info);
	mem_free(bare->contexts);
	mem_free(bare);
}

/* Reads completions; negative when the queue has an error or the deadline passed.  Sleeps only
 * where the caller has nothing to post. */
static ssize_t completions(struct bare *bare, struct fi_cq_data_entry *entries, uint32_t *polls,
			   uint64_t deadline, struct ws_error *err)
{
	ssize_t got = fi_cq_read(bare->cq, entries, READ_MAX);
	if (got == -FI_EAGAIN && ++*polls > SPIN_POLLS) {
		if (clock_ns() > deadline)
			return ws_fail(err, -ETIMEDOUT, "the baseline stood still for %d s",
				       WAIT_MS / 1000);
		if (bare->waits)
			got = fi_cq_sread(bare->cq, entries, READ_MAX, NULL, SLEEP_MS);
	}
	if (got == -FI_EAGAIN)
		return 0;
	*polls = 0;
	if (got < 0)
		return say(err, (int)got, "read completions");
	return got;
}

static ssize_t write_one(struct bare *bare, uint64_t offset, uint64_t bytes, uint32_t imm,
			 void *context)
{
	struct iovec from = {.iov_base = bare->memory + offset, .iov_len = bytes};
	struct fi_rma_iov to = {
		.addr = bare->peer.base + offset, .len = bytes, .key = bare->peer.key};
	void *desc = fi_mr_desc(bare->mr);
	struct fi_msg_rma message = {.msg_iov = &from,
				     .desc = &desc,
				     .iov_count = 1,
				     .addr = bare->to,
				     .rma_iov = &to,
				     .rma_iov_count = 1,
				     .context = context,
				     .data = imm};
	return fi_writemsg(bare->ep, &message, bare->flags);
}

int bare_write(struct bare *bare, uint64_t total, uint64_t op_bytes, struct ws_error *err)
{
	struct fi_cq_data_entry entries[READ_MAX];
	uint64_t count = (total + op_bytes - 1) / op_bytes, posted = 0, complete = 0;
	uint64_t offset = 0, deadline = deadline_in_ms(WAIT_MS);
	uint32_t polls = 0, free_count = bare->depth;
	void *free_contexts[CONTEXTS_MAX];
	for (uint32_t i = 0; i < bare->depth; i++)
		free_contexts[i] = &bare->contexts[i];
	while (complete < count) {
		while (posted < count && free_count > 0) {
			uint64_t bytes = MIN(op_bytes, total - posted * op_bytes);
			if (offset + bytes > bare->bytes)
				offset = 0;
			ssize_t rc = write_one(bare, offset, bytes, (uint32_t)posted,
					       free_contexts[free_count - 1]);
			if (rc == -FI_EAGAIN)
				break;
			if (rc != 0)
				return say(err, (int)rc, "write");
			free_count--;
			posted++;
			offset += bytes;
		}
		ssize_t got = completions(bare, entries, &polls, deadline, err);
		if (got < 0)
			return (int)got;
		for (ssize_t i = 0; i < got; i++)
			free_contexts[free_count++] = entries[i].op_context;
		complete += (uint64_t)got;
	}
	return 0;
}

int bare_receive(struct bare *bare, uint64_t count, struct ws_error *err)
{
	struct fi_cq_data_entry entries[READ_MAX];
	uint64_t come = 0, deadline = deadline_in_ms(WAIT_MS);
	uint32_t polls = 0;
	while (come < count) {
		ssize_t got = completions(bare, entries, &polls, deadline, err);
		if (got < 0)
			return (int)got;
		for (ssize_t i = 0; i < got; i++)
			come += (entries[i].flags & FI_REMOTE_CQ_DATA) != 0;
	}
	return 0;
}
