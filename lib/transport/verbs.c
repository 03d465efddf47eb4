/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices by libibverbs: each op is an RDMA WRITE WITH IMMEDIATE over a reliable connection.
 * One queue pair per peer, one completion queue and one shared receive queue per NIC; verbs.h
 * says how credits keep both from running over.  Here the NIC is opened and closed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/cuda/cuda.h"
#include "lib/transport/tables.h"
#include "lib/transport/verbs.h"

static int nonblocking(int fd)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* One fd for completions and for what the device tells by itself. */
static int wait_open(struct verbs *verbs, struct ws_error *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	int *wait_fd = &verbs->nic.wait_fd;

	verbs->channel = ibv_create_comp_channel(verbs->context);
	if (verbs->channel == NULL)
		return ws_fail(err, -ENOSPC, "cannot open a completion channel on %s: %s",
			       verbs->nic.name, strerror(errno));
	*wait_fd = epoll_create1(EPOLL_CLOEXEC);
	if (*wait_fd < 0 || nonblocking(verbs->channel->fd) != 0 ||
	    nonblocking(verbs->context->async_fd) != 0 ||
	    epoll_ctl(*wait_fd, EPOLL_CTL_ADD, verbs->channel->fd, &event) != 0 ||
	    epoll_ctl(*wait_fd, EPOLL_CTL_ADD, verbs->context->async_fd, &event) != 0)
		return ws_fail(err, -ENOSPC, "cannot open a wait fd for %s: %s", verbs->nic.name,
			       strerror(errno));
	return 0;
}

/* Thread domains let the provider leave out its locks.  Not every one has them. */
static int domain_open(struct verbs *verbs, struct ws_error *err)
{
	struct ibv_td_init_attr thread = {0};

	verbs->pd = ibv_alloc_pd(verbs->context);
	if (verbs->pd == NULL)
		return ws_fail(err, -ENOMEM, "cannot open a protection domain on %s: %s",
			       verbs->nic.name, strerror(errno));
	verbs->thread = ibv_alloc_td(verbs->context, &thread);
	if (verbs->thread == NULL)
		return 0;
	struct ibv_parent_domain_init_attr parent = {.pd = verbs->pd, .td = verbs->thread};
	verbs->parent = ibv_alloc_parent_domain(verbs->context, &parent);
	return 0;
}

/* Room for everything that can be in flight, whether or not anybody polls. */
static int sizes_choose(struct verbs *verbs, struct ws_error *err)
{
	struct ibv_device_attr device;

	if (ibv_query_device(verbs->context, &device) != 0)
		return ws_fail(err, -ENODEV, "%s doesn't answer", verbs->nic.name);
	/* Each op, each receive, and a credit for each peer, who has a share of the receives. */
	uint32_t max = (uint32_t)device.max_cqe - VERBS_OPS_MAX;
	uint32_t receives = MIN(VERBS_RECEIVES_MAX, (uint32_t)device.max_srq_wr);
	uint32_t least = VERBS_RECEIVES_MIN + VERBS_RECEIVES_MIN / VERBS_SHARE_MIN;
	if (device.max_cqe < (int)(VERBS_OPS_MAX + least) || receives < VERBS_RECEIVES_MIN)
		return ws_fail(err, -ENOSPC,
			       "%s has completion queues of at most %d entries and receive queues "
			       "of %d; at least %u and %u are needed",
			       verbs->nic.name, device.max_cqe, device.max_srq_wr,
			       VERBS_OPS_MAX + least, VERBS_RECEIVES_MIN);
	receives = MIN(receives, max - max / (VERBS_SHARE_MIN + 1) - 1);
	verbs->receives_total = verbs->receives_free = receives;
	verbs->queue_entries = MIN(VERBS_SHARE_MAX + 1, (uint32_t)device.max_qp_wr);
	verbs->completions = VERBS_OPS_MAX + receives + receives / VERBS_SHARE_MIN;
	if (verbs->options.cq > 0)
		verbs->completions = (uint32_t)verbs->options.cq;
	return 0;
}

static int queues_open(struct verbs *verbs, struct ws_error *err)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = verbs->completions,
					   .channel = verbs->channel,
					   .wc_flags = IBV_WC_STANDARD_FLAGS,
					   .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					   .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
	struct ibv_cq_ex *single = ibv_create_cq_ex(verbs->context, &attr);
	verbs->cq = single != NULL ? ibv_cq_ex_to_cq(single)
				   : ibv_create_cq(verbs->context, (int)verbs->completions, NULL,
						   verbs->channel, 0);
	if (verbs->cq == NULL)
		return ws_fail(err, -ENOSPC, "%s can't have a completion queue of %u entries: %s",
			       verbs->nic.name, verbs->completions, strerror(errno));
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = verbs->receives_total, .max_sge = 1}};
	verbs->srq = ibv_create_srq(verbs->parent != NULL ? verbs->parent : verbs->pd, &srq);
	if (verbs->srq == NULL)
		return ws_fail(err, -ENOSPC, "%s can't have a queue of %u receives: %s",
			       verbs->nic.name, verbs->receives_total, strerror(errno));
	for (int i = 0; i < VERBS_BATCH; i++) {
		verbs->receives[i].wr_id = WR_RECEIVE;
		if (i + 1 < VERBS_BATCH)
			verbs->receives[i].next = &verbs->receives[i + 1];
	}
	verbs_receives_post(verbs, verbs->options.receives >= 0 ? (uint32_t)verbs->options.receives
								: verbs->receives_total);
	/* Where the device can, it says when receives run low; with credits they never do. */
	struct ibv_srq_attr low = {.srq_limit = verbs->receives_total / 16};
	if (verbs->options.receives < 0)
		ibv_modify_srq(verbs->srq, &low, IBV_SRQ_LIMIT);
	return verbs->lost == 0
		       ? 0
		       : ws_fail(err, verbs->lost, "%s: %s", verbs->nic.name, verbs->nic.trouble);
}

static int ops_open(struct verbs *verbs, struct ws_error *err)
{
	uint32_t count = verbs->nic.ops_in_flight_max;

	verbs->ops = mem_alloc(count * sizeof(*verbs->ops));
	if (verbs->ops == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u ops in flight on %s", count,
			       verbs->nic.name);
	for (uint32_t i = 0; i < count; i++)
		verbs->ops[i].next = i + 1 < count ? &verbs->ops[i + 1] : NULL;
	verbs->free = verbs->ops;
	verbs->failed_end = &verbs->failed;
	return 0;
}

static void limits_fill(struct verbs *verbs)
{
	const struct ibv_port_attr *port = &verbs->port.attr;
	struct nic *nic = &verbs->nic;
	char text[64];

	snprintf(nic->name, sizeof(nic->name), "%s port %u", verbs->options.device,
		 verbs->port.number);
	if (verbs->options.subnet[0] != 0)
		snprintf(nic->subnet, sizeof(nic->subnet), "%s", verbs->options.subnet);
	else
		verbs_subnet(&verbs->port.gid, nic->subnet);
	nic->mbps = verbs_mbps(port);
	nic->op_bytes_max = MIN(port->max_msg_sz, 1u << 30);
	nic->ops_in_flight_max = VERBS_OPS_MAX;
	nic->imm_bytes = 4;
	nic->gpu_memory = cuda_built_in();
	nic->fences_one_peer = true;
	int count = snprintf(text, sizeof(text), "verbs 1 link layer %u", port->link_layer);
	nic->protocol = digest_bytes(text, (size_t)count, 0);
}

static int verbs_open(struct nic *nic, const char *device, struct ws_error *err)
{
	struct verbs *verbs = verbs_of(nic);

	int rc = verbs_options_parse(&verbs->options, device, err);
	if (rc == 0)
		rc = verbs_port_open(&verbs->options, &verbs->context, &verbs->port, err);
	if (rc != 0)
		return rc;
	limits_fill(verbs);
	verbs_port_check(verbs);
	rc = ops_open(verbs, err);
	if (rc == 0)
		rc = wait_open(verbs, err);
	if (rc == 0)
		rc = domain_open(verbs, err);
	if (rc == 0)
		rc = sizes_choose(verbs, err);
	if (rc == 0)
		rc = queues_open(verbs, err);
	return rc;
}

static void verbs_close(struct nic *nic)
{
	struct verbs *verbs = verbs_of(nic);

	while (verbs->peer_count > 0)
		verbs_peer_free(verbs, verbs->peers[verbs->peer_count - 1]);
	while (verbs->mrs != NULL)
		verbs_dereg(nic, &(struct mr){.local = verbs->mrs});
	if (verbs->srq != NULL)
		ibv_destroy_srq(verbs->srq);
	if (verbs->cq != NULL)
		ibv_destroy_cq(verbs->cq);
	if (verbs->channel != NULL)
		ibv_destroy_comp_channel(verbs->channel);
	if (verbs->parent != NULL)
		ibv_dealloc_pd(verbs->parent);
	if (verbs->thread != NULL)
		ibv_dealloc_td(verbs->thread);
	if (verbs->pd != NULL)
		ibv_dealloc_pd(verbs->pd);
	if (nic->wait_fd > 0) /* 0 only where open never ran */
		close(nic->wait_fd);
	if (verbs->context != NULL)
		ibv_close_device(verbs->context);
	mem_free(verbs->peers);
	mem_free(verbs->by_number);
	mem_free(verbs->ops);
}

const struct transport transport_verbs = {
	.name = "verbs",
	.nic_size = sizeof(struct verbs),
	.open = verbs_open,
	.close = verbs_close,
	.reg = verbs_reg,
	.dereg = verbs_dereg,
	.peer_open = verbs_peer_open,
	.peer_connect = verbs_peer_connect,
	.peer_close = verbs_peer_close,
	.post = verbs_post,
	.poll = verbs_poll,
};
