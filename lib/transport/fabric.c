/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfabric: tcp where no NIC exists, EFA and every other provider that has RDM endpoints with
 * RMA.  Each write is an fi_writemsg with remote CQ data, never a plain write: shm's plain write
 * checks neither bounds nor keys.  Here are the NIC, its registrations, post and poll;
 * fabric_peer.c has the endpoints.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/transport/fabric.h"
#include "lib/transport/tables.h"

#define NONE	   UINT32_MAX
#define PAGE_BYTES 4096

static struct fabric *fabric_of(struct nic *nic)
{
	return (struct fabric *)nic;
}

/* ---------------------------------------------------------------- op contexts */

static struct op_context *context_take(struct fabric *fabric, struct peer *peer, uint64_t id)
{
	if (fabric->free_first == NONE)
		return NULL;
	struct op_context *context = &fabric->contexts[fabric->free_first];
	fabric->free_first = context->next;
	context->peer = peer;
	context->id = id;
	peer->unreported++;
	return context;
}

void fabric_context_free(struct fabric *fabric, struct op_context *context)
{
	if (context->posted)
		context->peer->posted--;
	context->posted = false;
	context->peer->unreported--;
	context->warms = false;
	context->peer = NULL;
	context->next = fabric->free_first;
	fabric->free_first = (uint32_t)(context - fabric->contexts);
}

void fabric_context_fail(struct fabric *fabric, struct op_context *context, int status)
{
	uint32_t room = fabric->nic.ops_in_flight_max;

	assert(fabric->done_count < room);
	context->status = status;
	fabric->done[(fabric->done_head + fabric->done_count) % room] =
		(uint32_t)(context - fabric->contexts);
	fabric->done_count++;
}

/* ---------------------------------------------------------------- limits, close */

static int contexts_open(struct fabric *fabric, struct ws_error *err)
{
	uint32_t room = fabric->nic.ops_in_flight_max;

	fabric->contexts = mem_alloc(room * sizeof(*fabric->contexts));
	fabric->done = mem_alloc(room * sizeof(*fabric->done));
	if (fabric->contexts == NULL || fabric->done == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u ops in flight on %s", room,
			       fabric->nic.name);
	for (uint32_t i = 0; i < room; i++)
		fabric->contexts[i].next = i + 1 < room ? i + 1 : NONE;
	fabric->free_first = 0;
	return 0;
}

/* Both ends must agree on what decides how an address, a key and an immediate are spelled. */
static uint64_t protocol_make(const struct fi_info *info)
{
	char text[160];
	int count = snprintf(text, sizeof(text), "fabric 2 %s %u.%u %x %zu %x %llx",
			     info->fabric_attr->prov_name, FI_MAJOR(info->fabric_attr->api_version),
			     FI_MINOR(info->fabric_attr->api_version),
			     (unsigned)info->domain_attr->mr_mode, info->domain_attr->mr_key_size,
			     info->ep_attr->protocol, (unsigned long long)info->mode);

	return digest_bytes(text, MIN((size_t)count, sizeof(text) - 1), 0);
}

static void limits_fill(struct fabric *fabric)
{
	const struct fi_info *info = fabric->info;
	struct nic *nic = &fabric->nic;

	nic->op_bytes_max = fabric->modes.op_bytes_max;
	nic->ops_in_flight_max = (uint32_t)MIN((size_t)FABRIC_OPS_MAX, info->tx_attr->size);
	nic->imm_bytes = (uint32_t)info->domain_attr->cq_data_size;
	nic->gpu_memory = fabric->modes.gpu_memory;
	nic->fences_one_peer = true;
	nic->protocol = protocol_make(info);
}

/* Not every provider can wait on an fd (shm can't): tried once, on a queue that is thrown away. */
static int wait_open(struct fabric *fabric, struct ws_error *err)
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
	struct fid_cq *cq;

	if (fi_cq_open(fabric->domain, &attr, &cq, NULL) != 0)
		return 0;
	fi_close(&cq->fid);
	fabric->nic.wait_fd = epoll_create1(EPOLL_CLOEXEC);
	fabric->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fabric->nic.wait_fd < 0 || fabric->wake_fd < 0)
		return ws_fail(err, -ENOSPC, "cannot open a wait fd for %s: %s", fabric->nic.name,
			       strerror(errno));
	struct epoll_event event = {.events = EPOLLIN};
	if (epoll_ctl(fabric->nic.wait_fd, EPOLL_CTL_ADD, fabric->wake_fd, &event) != 0)
		return ws_fail(err, -ENOMEM, "cannot wait for %s: %s", fabric->nic.name,
			       strerror(errno));
	fabric->waits = true;
	return 0;
}

/* A domain with an endpoint set aside stays open: closing that endpoint would crash. */
static void fabric_close(struct nic *nic)
{
	struct fabric *fabric = fabric_of(nic);

	while (fabric->peer_count > 0)
		fabric_peer_end(fabric, fabric->peers[0]);
	for (uint32_t i = 0; i < fabric->mr_count; i++)
		if (fabric->mrs[i] != NULL)
			fi_close(&fabric->mrs[i]->fid);
	if (!fabric->leaked) {
		if (fabric->av != NULL)
			fi_close(&fabric->av->fid);
		if (fabric->domain != NULL)
			fi_close(&fabric->domain->fid);
		if (fabric->fabric != NULL)
			fi_close(&fabric->fabric->fid);
	}
	if (fabric->wake_fd > 0) /* 0 only where open never ran */
		close(fabric->wake_fd);
	if (nic->wait_fd > 0)
		close(nic->wait_fd);
	if (fabric->info != NULL)
		libfabric.freeinfo(fabric->info);
	mem_free(fabric->peers);
	mem_free(fabric->queues);
	mem_free(fabric->mrs);
	mem_free(fabric->page.base);
	mem_free(fabric->contexts);
	mem_free(fabric->done);
}

/* ---------------------------------------------------------------- registrations */

static int mr_room_make(struct fabric *fabric, uint32_t *slot_out)
{
	for (uint32_t i = 0; i < fabric->mr_count; i++)
		if (fabric->mrs[i] == NULL) {
			*slot_out = i;
			return 0;
		}
	if (fabric->mr_count == fabric->mr_room) {
		uint32_t room = fabric->mr_room + 16;
		void *grown = mem_grow(fabric->mrs, fabric->mr_room * sizeof(*fabric->mrs),
				       room * sizeof(*fabric->mrs));
		if (grown == NULL)
			return -ENOMEM;
		fabric->mrs = grown;
		fabric->mr_room = room;
	}
	*slot_out = fabric->mr_count++;
	return 0;
}

/* As wide as the provider's keys are; an unguessable key is the only protection tcp has. */
static int key_make(const struct fabric *fabric, uint64_t *key_out, struct ws_error *err)
{
	size_t bytes = fabric->info->domain_attr->mr_key_size;
	int rc = random_bytes(key_out, sizeof(*key_out), err);

	if (bytes < sizeof(*key_out))
		*key_out &= ((uint64_t)1 << (8 * bytes)) - 1;
	return rc;
}

/* libfabric finds out by itself how its NIC reaches a GPU's: as a dma-buf, or by a kernel module.
 */
static int memory_reg(struct fabric *fabric, const struct ws_memory *memory, enum mr_use use,
		      uint64_t key, struct fid_mr **fid_out, struct ws_error *err)
{
	const struct iovec all = {.iov_base = memory->base, .iov_len = memory->bytes};
	bool gpu = memory->place == WS_CUDA;
	struct fi_mr_attr attr = {.mr_iov = &all,
				  .iov_count = 1,
				  .access = FI_WRITE | (use == MR_TARGET ? FI_REMOTE_WRITE : 0),
				  .requested_key = key,
				  .iface = gpu ? FI_HMEM_CUDA : FI_HMEM_SYSTEM};
	if (gpu)
		attr.device.cuda = memory->device;
	int rc = fi_mr_regattr(fabric->domain, &attr, 0, fid_out);
	if (rc == 0)
		return 0;
	if (gpu)
		return ws_fail(
			err, rc == -FI_ENOMEM ? -ENOSPC : -ENOTSUP,
			"%s can't register %zu bytes of GPU %d: %s; it takes a libfabric that "
			"was built with CUDA, and plain memory (cudaMalloc)",
			fabric->nic.name, memory->bytes, memory->device, libfabric_error(rc));
	return ws_fail(err, rc == -FI_ENOMEM ? -ENOSPC : -EINVAL,
		       "%s can't register %zu bytes: %s; raise `ulimit -l` above that or "
		       "register less",
		       fabric->nic.name, memory->bytes, libfabric_error(rc));
}

static int fabric_reg(struct nic *nic, const struct ws_memory *memory, enum mr_use use,
		      struct mr *mr, struct ws_error *err)
{
	struct fabric *fabric = fabric_of(nic);
	int mode = fabric->info->domain_attr->mr_mode;
	struct fid_mr *fid;
	uint64_t key = 0;
	uint32_t slot;

	memset(mr, 0, sizeof(*mr));
	if (memory->place != WS_HOST && !nic->gpu_memory)
		return ws_fail(err, -ENOTSUP,
			       "%s can't reach GPU memory; use host memory or another transport",
			       nic->name);
	if (memory->base == NULL || memory->bytes == 0)
		return ws_fail(err, -EINVAL, "cannot register 0 bytes on %s", nic->name);
	if (mr_room_make(fabric, &slot) != 0)
		return ws_fail(err, -ENOMEM, "no memory for one more registration on %s",
			       nic->name);
	if ((mode & FI_MR_PROV_KEY) == 0) {
		int rc = key_make(fabric, &key, err);
		if (rc != 0)
			return rc;
	}
	int rc = memory_reg(fabric, memory, use, key, &fid, err);
	if (rc != 0)
		return rc;
	fabric->mrs[slot] = fid;
	mr->memory = *memory;
	mr->key = use == MR_TARGET ? fi_mr_key(fid) : 0;
	mr->base = (mode & FI_MR_VIRT_ADDR) != 0 ? (uint64_t)(uintptr_t)memory->base : 0;
	mr->local = fid;
	return 0;
}

static void fabric_dereg(struct nic *nic, struct mr *mr)
{
	struct fabric *fabric = fabric_of(nic);

	for (uint32_t i = 0; i < fabric->mr_count; i++)
		if (fabric->mrs[i] != NULL && fabric->mrs[i] == mr->local) {
			fi_close(&fabric->mrs[i]->fid);
			fabric->mrs[i] = NULL;
		}
	memset(mr, 0, sizeof(*mr));
}

/* ---------------------------------------------------------------- open */

/* A write of nothing names something all the same: where the provider wants a descriptor for
 * each, and at a peer that has told nothing else yet. */
static int page_open(struct fabric *fabric, struct ws_error *err)
{
	if (!fabric->modes.own_descriptor && !fabric->modes.warm_up)
		return 0;
	fabric->page.base = mem_alloc(PAGE_BYTES);
	fabric->page.bytes = PAGE_BYTES;
	if (fabric->page.base == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the NIC %s", fabric->nic.name);
	return fabric_reg(&fabric->nic, &fabric->page, MR_TARGET, &fabric->page_mr, err);
}

static int fabric_open(struct nic *nic, const char *device, struct ws_error *err)
{
	struct fabric *fabric = fabric_of(nic);
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};

	fabric->wake_fd = -1;
	int rc = fabric_device_find(device, nic, &fabric->info, &fabric->modes, err);
	if (rc != 0)
		return rc;
	limits_fill(fabric);
	rc = contexts_open(fabric, err);
	if (rc != 0)
		return rc;
	rc = libfabric.fabric(fabric->info->fabric_attr, &fabric->fabric, NULL);
	if (rc != 0)
		return ws_fail(err, -ENODEV, "libfabric can't open fabric '%s' for %s: %s",
			       fabric->info->fabric_attr->name, nic->name, libfabric_error(rc));
	rc = fi_domain(fabric->fabric, fabric->info, &fabric->domain, NULL);
	if (rc != 0)
		return ws_fail(err, -ENODEV, "libfabric can't open domain '%s' for %s: %s",
			       fabric->info->domain_attr->name, nic->name, libfabric_error(rc));
	rc = fi_av_open(fabric->domain, &av_attr, &fabric->av, NULL);
	if (rc != 0)
		return ws_fail(err, -ENOMEM, "libfabric can't open an address table for %s: %s",
			       nic->name, libfabric_error(rc));
	rc = page_open(fabric, err);
	return rc == 0 ? wait_open(fabric, err) : rc;
}

/* ---------------------------------------------------------------- post, poll */

/* fi_writemsg's answer: 0, -FI_EAGAIN, or another error. */
static ssize_t write_issue(struct fabric *fabric, const struct op *op, struct op_context *context)
{
	uint64_t bytes = op->placed ? 0 : op->bytes;
	const struct mr *mr = op->local_mr != NULL ? op->local_mr : &fabric->page_mr;
	const void *local = op->local_mr != NULL ? op->local : fabric->page.base;
	struct iovec from = {.iov_base = (void *)(uintptr_t)local, .iov_len = bytes};
	struct fi_rma_iov to = {.addr = op->remote, .len = bytes, .key = op->remote_key};
	void *desc = mr->local != NULL ? fi_mr_desc(mr->local) : NULL;
	struct fi_msg_rma message = {
		.msg_iov = &from,
		.desc = &desc,
		.iov_count = 1,
		.addr = op->peer->tx_to,
		.rma_iov = &to,
		.rma_iov_count = 1,
		.context = context,
		.data = op->imm,
	};

	return fi_writemsg(op->peer->tx.ep, &message,
			   FI_REMOTE_CQ_DATA | FI_COMPLETION |
				   (fabric->modes.delivery_complete ? FI_DELIVERY_COMPLETE : 0));
}

/* Until the first op gets through, libfabric answers EAGAIN while it connects, and for ever
 * where nobody listens. */
static void refusal_note(struct fabric *fabric, struct peer *peer)
{
	uint64_t now = clock_ns();

	if (peer->posted > 0) {
		peer->refused_at_ns = 0;
		return;
	}
	if (peer->refused_at_ns == 0)
		peer->refused_at_ns = now;
	if (now - peer->refused_at_ns > FABRIC_CONNECT_MS_MAX * UINT64_C(1000000)) {
		peer->reason = "nobody answers at its address";
		fabric_tx_close(fabric, peer, -ECONNRESET);
	}
}

void fabric_warm_up(struct fabric *fabric, struct peer *peer)
{
	const struct op nothing = {.peer = peer,
				   .remote = peer->warm_to,
				   .remote_key = peer->warm_key,
				   .placed = true};

	if (!peer->cold_out || peer->warm_sent || peer->lost != 0 || peer->closing)
		return;
	struct op_context *context = context_take(fabric, peer, 0);
	if (context == NULL)
		return;
	context->warms = true;
	ssize_t rc = write_issue(fabric, &nothing, context);
	if (rc == 0) {
		context->posted = peer->warm_sent = true;
		peer->posted++;
		peer->refused_at_ns = 0;
		return;
	}
	fabric_context_free(fabric, context);
	if (rc == -FI_EAGAIN)
		refusal_note(fabric, peer);
	else
		fabric_tx_close(fabric, peer, -ECONNRESET);
}

static bool post_one(struct fabric *fabric, const struct op *op)
{
	struct peer *peer = op->peer;

	assert(peer->connected && !peer->closing);
	assert(op->bytes <= fabric->nic.op_bytes_max);
	if (peer->cold_out && peer->lost == 0)
		return false;
	struct op_context *context = context_take(fabric, peer, op->id);
	if (context == NULL)
		return false;
	ssize_t rc = peer->lost == 0 ? write_issue(fabric, op, context) : peer->lost;
	if (rc == 0) {
		context->posted = true;
		peer->posted++;
		peer->refused_at_ns = 0;
		return true;
	}
	if (rc == -FI_EAGAIN) {
		fabric_context_free(fabric, context);
		refusal_note(fabric, peer);
		return false;
	}
	/* Taken, and failed: the engine hears of it as of any other failure. */
	fabric_context_fail(fabric, context, peer->lost != 0 ? peer->lost : -ECONNRESET);
	if (peer->lost == 0)
		fabric_tx_close(fabric, peer, -ECONNRESET);
	return true;
}

static int fabric_post(struct nic *nic, const struct op *ops, int count)
{
	struct fabric *fabric = fabric_of(nic);

	for (int i = 0; i < count; i++)
		if (!post_one(fabric, &ops[i]))
			return i;
	return count;
}

static int done_take(struct fabric *fabric, struct event *events_out, int count)
{
	int taken = 0;

	while (taken < count && fabric->done_count > 0) {
		struct op_context *context = &fabric->contexts[fabric->done[fabric->done_head]];
		fabric->done_head = (fabric->done_head + 1) % fabric->nic.ops_in_flight_max;
		fabric->done_count--;
		if (!context->warms)
			events_out[taken++] = (struct event){.kind = EVENT_FAILED,
							     .status = context->status,
							     .id = context->id,
							     .reason = context->peer->reason,
							     .peer = context->peer};
		fabric_context_free(fabric, context);
	}
	return taken;
}

static int peers_poll(struct fabric *fabric, struct event *events_out, int count)
{
	int taken = 0;

	for (uint32_t i = 0; i < fabric->peer_count && taken < count; i++) {
		uint32_t at = fabric->peer_next;
		fabric->peer_next = (at + 1) % fabric->peer_count;
		taken += fabric_peer_poll(fabric, fabric->peers[at], events_out + taken,
					  count - taken);
	}
	return taken;
}

/* libfabric's rule: a queue's fd may be waited for only after fi_trywait said so. */
static bool may_wait(struct fabric *fabric)
{
	int count = 0;

	for (uint32_t i = 0; i < fabric->peer_count; i++) {
		const struct peer *peer = fabric->peers[i];
		if (peer->set_aside)
			continue;
		if (peer->tx.fd >= 0)
			fabric->queues[count++] = &peer->tx.cq->fid;
		if (peer->rx.fd >= 0)
			fabric->queues[count++] = &peer->rx.cq->fid;
	}
	return count == 0 || fi_trywait(fabric->fabric, fabric->queues, count) == 0;
}

static void wake_set(struct fabric *fabric, bool awake)
{
	uint64_t one = 1;

	if (fabric->awake == awake)
		return;
	/* An eventfd of this process: neither call can fail but by a signal before any effect. */
	ssize_t done = awake ? write(fabric->wake_fd, &one, sizeof(one))
			     : read(fabric->wake_fd, &one, sizeof(one));
	if (done == (ssize_t)sizeof(one))
		fabric->awake = awake;
}

/* fi_trywait costs seven polls.  A caller that spins mostly does without; one that blocks finds
 * the wake fd readable, and polls again, until it was done. */
static void wait_prepare(struct fabric *fabric)
{
	bool ready = false;

	if (++fabric->empty_polls % FABRIC_EMPTY_POLLS == 0) {
		ready = may_wait(fabric);
		fabric->unsettled = !ready;
	}
	wake_set(fabric, !ready);
}

static int fabric_poll(struct nic *nic, struct event *events_out, int count)
{
	struct fabric *fabric = fabric_of(nic);
	int taken = done_take(fabric, events_out, count);

	taken += peers_poll(fabric, events_out + taken, count - taken);
	if (taken == 0) /* what a queue that just broke left behind */
		taken = done_take(fabric, events_out, count);
	if (taken > 0)
		fabric->empty_polls = 0;
	else if (count > 0 && fabric->waits)
		wait_prepare(fabric);
	return taken;
}

const struct transport transport_fabric = {
	.name = "fabric",
	.nic_size = sizeof(struct fabric),
	.open = fabric_open,
	.close = fabric_close,
	.reg = fabric_reg,
	.dereg = fabric_dereg,
	.peer_open = fabric_peer_open,
	.peer_connect = fabric_peer_connect,
	.peer_close = fabric_peer_close,
	.post = fabric_post,
	.poll = fabric_poll,
};
