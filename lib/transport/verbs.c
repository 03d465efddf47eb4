/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices by libibverbs: each op is an RDMA WRITE WITH IMMEDIATE over a reliable connection.
 * One queue pair per peer, one completion queue and one shared receive queue per NIC; verbs.h
 * says how credits keep both from running over.  Here are the NIC, post and poll.
 */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/cuda/cuda.h"
#include "lib/transport/tables.h"
#include "lib/transport/verbs.h"

/* What a work request was, in the low bits of its wr_id: the only thing that an error completion
 * tells.  The rest is the address of the op, or of the peer. */
enum wr_kind { WR_OP, WR_CREDIT, WR_RECEIVE, WR_KIND_MASK = 3 };

#define CHAIN_MAX	  16   /* ops posted at once */
#define POLLS_UNTIL_NEWS  512u /* of a busy queue; an empty poll counts as EMPTY_POLL_WEIGHT */
#define EMPTY_POLL_WEIGHT 32u

/* ---------------------------------------------------------------- open, close */

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

/* Posts so many receives.  A full queue isn't an error: it is what is wanted. */
static void receives_post(struct verbs *verbs, uint32_t count)
{
	struct ibv_recv_wr *bad;

	while (count > 0 && verbs->lost == 0) {
		uint32_t some = MIN(count, VERBS_BATCH);
		struct ibv_recv_wr *last = &verbs->receives[some - 1], *next = last->next;
		last->next = NULL;
		int rc = ibv_post_srq_recv(verbs->srq, verbs->receives, &bad);
		last->next = next;
		if (rc == ENOMEM)
			return;
		if (rc != 0)
			verbs_lose(verbs, -EIO, "receives can't be posted: %s", strerror(rc));
		count -= some;
	}
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
	receives_post(verbs, verbs->options.receives >= 0 ? (uint32_t)verbs->options.receives
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

/* ---------------------------------------------------------------- post */

static struct verbs_op *op_take(struct verbs *verbs, const struct op *from)
{
	struct verbs_op *op = verbs->free;

	verbs->free = op->next;
	op->peer = from->peer;
	op->id = from->id;
	from->peer->unreported++;
	return op;
}

static void op_give_back(struct verbs *verbs, struct verbs_op *op)
{
	op->peer->unreported--;
	op->peer = NULL;
	op->next = verbs->free;
	verbs->free = op;
}

/* Taken, and failed: it is reported as any other. */
static void op_fail(struct verbs *verbs, struct verbs_op *op)
{
	op->next = NULL;
	*verbs->failed_end = op;
	verbs->failed_end = &op->next;
}

static void write_make(const struct op *op, uint64_t wr_id, struct ibv_sge *piece,
		       struct ibv_send_wr *wr)
{
	bool moves = !op->placed && op->bytes > 0;

	if (moves)
		*piece = (struct ibv_sge){
			.addr = (uint64_t)(uintptr_t)op->local,
			.length = (uint32_t)op->bytes,
			.lkey = ((const struct verbs_mr *)op->local_mr->local)->mr->lkey,
		};
	*wr = (struct ibv_send_wr){
		.wr_id = wr_id,
		.sg_list = piece,
		.num_sge = moves,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(op->imm),
		.wr.rdma = {.remote_addr = op->remote, .rkey = (uint32_t)op->remote_key},
	};
}

/* How many more writes the peer's window and my queue have room for; one entry is the credits'. */
static uint32_t peer_room(const struct verbs *verbs, const struct peer *peer)
{
	uint32_t unreturned = peer->posted - peer->given_back;

	return MIN(peer->window - unreturned, verbs->queue_entries - 1 - peer->queued);
}

/* Hands a run of ops to one peer over as one chain; returns how many were taken. */
static int chain_post(struct verbs *verbs, const struct op *ops, int count)
{
	struct ibv_send_wr chain[CHAIN_MAX], *bad = NULL;
	struct ibv_sge pieces[CHAIN_MAX];
	struct verbs_op *taken[CHAIN_MAX];
	struct peer *peer = ops[0].peer;
	int room = (int)MIN(peer_room(verbs, peer), CHAIN_MAX), made = 0;

	for (; made < MIN(count, room) && ops[made].peer == peer && verbs->free != NULL; made++) {
		assert(ops[made].bytes <= verbs->nic.op_bytes_max);
		taken[made] = op_take(verbs, &ops[made]);
		write_make(&ops[made], (uint64_t)(uintptr_t)taken[made] | WR_OP, &pieces[made],
			   &chain[made]);
		if (made > 0)
			chain[made - 1].next = &chain[made];
	}
	if (made == 0)
		return 0;
	int rc = ibv_post_send(peer->qp, chain, &bad);
	/* A doorbell that fails leaves bad alone: the requests are in the queue. */
	int posted = rc != 0 && bad != NULL ? (int)(bad - chain) : made;
	peer->posted += (uint32_t)posted;
	peer->queued += (uint32_t)posted;
	if (rc != 0 && rc != ENOMEM)
		verbs_peer_lose(peer, -ECONNRESET, "the queue pair takes no more work");
	for (int i = made; i-- > posted;)
		op_give_back(verbs, taken[i]);
	return posted;
}

/* What can't be sent any more: by the peer's state, or the port's. */
static bool is_unreachable(const struct verbs *verbs, const struct peer *peer)
{
	return peer->lost != 0 || verbs->nic.down;
}

static int verbs_post(struct nic *nic, const struct op *ops, int count)
{
	struct verbs *verbs = verbs_of(nic);
	int taken = 0, some = 1;

	while (verbs->lost == 0 && taken < count && some > 0 && verbs->free != NULL) {
		struct peer *peer = ops[taken].peer;
		assert(peer->window > 0 && !peer->closing);
		if (is_unreachable(verbs, peer)) {
			op_fail(verbs, op_take(verbs, &ops[taken]));
			some = 1;
		} else {
			some = chain_post(verbs, &ops[taken], count - taken);
		}
		taken += some;
	}
	return verbs->lost != 0 ? verbs->lost : taken;
}

/* ---------------------------------------------------------------- poll */

static int status_of(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR ? -ECONNRESET : -EIO;
}

static struct event op_event(struct verbs *verbs, struct verbs_op *op, enum event_kind kind)
{
	const struct peer *peer = op->peer;
	struct event event = {.kind = kind, .id = op->id, .peer = op->peer};

	if (kind == EVENT_FAILED && peer->closing) {
		event.status = -ECANCELED;
	} else if (kind == EVENT_FAILED) {
		event.status = peer->lost != 0 ? peer->lost : -ENETDOWN;
		event.reason = peer->lost != 0 ? peer->reason : "the port is down";
	}
	op_give_back(verbs, op);
	return event;
}

/* An error's first completion has the reason; those behind it were only flushed. */
static struct event op_completed(struct verbs *verbs, struct verbs_op *op,
				 enum ibv_wc_status status)
{
	op->peer->queued--;
	if (status == IBV_WC_SUCCESS)
		return op_event(verbs, op, EVENT_SENT);
	verbs_peer_lose(op->peer, status_of(status), ibv_wc_status_str(status));
	return op_event(verbs, op, EVENT_FAILED);
}

/* Tells a sender what was taken out, once it is a quarter of its window. */
static void credit_send(struct peer *peer)
{
	uint32_t window = peer->share - VERBS_CREDITS_MAX;
	struct ibv_send_wr *bad;

	if (peer->landed - peer->credited < (window + VERBS_CREDITS_MAX - 1) / VERBS_CREDITS_MAX ||
	    peer->credit_queued || peer->lost != 0)
		return;
	struct ibv_send_wr credit = {.wr_id = (uint64_t)(uintptr_t)peer | WR_CREDIT,
				     .opcode = IBV_WR_SEND_WITH_IMM,
				     .send_flags = IBV_SEND_SIGNALED,
				     .imm_data = htobe32(peer->landed)};
	if (ibv_post_send(peer->qp, &credit, &bad) != 0) {
		verbs_peer_lose(peer, -ECONNRESET, "the queue pair takes no more work");
		return;
	}
	peer->credit_queued = true;
	peer->credited = peer->landed;
}

static void credit_completed(struct peer *peer, enum ibv_wc_status status)
{
	peer->credit_queued = false;
	if (status != IBV_WC_SUCCESS)
		verbs_peer_lose(peer, status_of(status), ibv_wc_status_str(status));
	if (!peer->closing)
		credit_send(peer);
}

/* A write of a peer's has landed, or a credit came.  1 with an event, else 0. */
static int received(const struct verbs *verbs, const struct ibv_wc *wc, struct event *event_out)
{
	struct peer *peer =
		wc->status == IBV_WC_SUCCESS ? verbs_peer_find(verbs, wc->qp_num) : NULL;
	uint32_t imm = be32toh(wc->imm_data);

	if (peer == NULL || peer->closing)
		return 0;
	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
		*event_out = (struct event){.kind = EVENT_IMM, .imm = imm, .peer = peer};
		peer->landed++;
		credit_send(peer);
		return 1;
	}
	if (imm - peer->given_back > peer->posted - peer->given_back)
		verbs_peer_lose(peer, -EPROTO, "the peer gave back more than it was sent");
	else
		peer->given_back = imm;
	return 0;
}

/* One event at most for each completion. */
static int batch_take(struct verbs *verbs, const struct ibv_wc *wcs, int count,
		      struct event *events_out)
{
	uint32_t receives = 0;
	int taken = 0;

	for (int i = 0; i < count; i++)
		receives += (wcs[i].wr_id & WR_KIND_MASK) == WR_RECEIVE;
	/* Before any credit: what it gives back must be there. */
	receives_post(verbs, receives);
	for (int i = 0; i < count; i++) {
		void *whose = (void *)(uintptr_t)(wcs[i].wr_id & ~(uint64_t)WR_KIND_MASK);
		switch ((enum wr_kind)(wcs[i].wr_id & WR_KIND_MASK)) {
		case WR_OP:
			events_out[taken++] = op_completed(verbs, whose, wcs[i].status);
			break;
		case WR_CREDIT:
			credit_completed(whose, wcs[i].status);
			break;
		case WR_RECEIVE:
			taken += received(verbs, &wcs[i], &events_out[taken]);
			break;
		case WR_KIND_MASK:
			break;
		}
	}
	return taken;
}

static int completions_take(struct verbs *verbs, struct event *events_out, int count)
{
	struct ibv_wc wcs[VERBS_BATCH];
	int taken = 0;

	/* Each turn gives events or takes out credits, of which few can be there. */
	while (taken < count && verbs->lost == 0) {
		int asked = MIN(count - taken, VERBS_BATCH);
		int found = ibv_poll_cq(verbs->cq, asked, wcs);
		if (found < 0) {
			verbs_lose(verbs, -EIO, "its completion queue is broken");
			break;
		}
		verbs->told = verbs->told || found > 0;
		taken += batch_take(verbs, wcs, found, events_out + taken);
		if (found < asked) {
			verbs->emptied++;
			break;
		}
	}
	return taken;
}

static int failed_take(struct verbs *verbs, struct event *events_out, int count)
{
	int taken = 0;

	while (taken < count && verbs->failed != NULL) {
		struct verbs_op *op = verbs->failed;
		verbs->failed = op->next;
		if (verbs->failed == NULL)
			verbs->failed_end = &verbs->failed;
		events_out[taken++] = op_event(verbs, op, EVENT_FAILED);
	}
	return taken;
}

/* Makes wait_fd tell of the next completion.  True: it was just armed, so look once more. */
static bool wait_arm(struct verbs *verbs)
{
	struct ibv_cq *cq;
	void *context;

	if (verbs->armed && !verbs->told)
		return false;
	if (verbs->armed) {
		/* Its event may still be on the way; then it wakes the waiter for nothing. */
		if (ibv_get_cq_event(verbs->channel, &cq, &context) != 0)
			return false;
		ibv_ack_cq_events(cq, 1);
	}
	verbs->armed = ibv_req_notify_cq(verbs->cq, 0) == 0;
	verbs->told = false;
	return true;
}

/* Now and then: what isn't a completion. */
static void news_take(struct verbs *verbs, bool empty)
{
	verbs->polls += empty ? EMPTY_POLL_WEIGHT : 1;
	if (verbs->polls < POLLS_UNTIL_NEWS)
		return;
	verbs->polls = 0;
	verbs->told = true; /* an event without a completion mustn't keep wait_fd readable */
	verbs_events_take(verbs);
	verbs_port_check(verbs);
}

static int verbs_poll(struct nic *nic, struct event *events_out, int count)
{
	struct verbs *verbs = verbs_of(nic);
	int taken = failed_take(verbs, events_out, count);

	if (verbs->lost == 0 && taken < count)
		taken += completions_take(verbs, events_out + taken, count - taken);
	news_take(verbs, taken == 0);
	if (taken == 0 && verbs->lost == 0 && wait_arm(verbs))
		taken = completions_take(verbs, events_out, count);
	if (taken < count && verbs->changed) {
		verbs->changed = false;
		events_out[taken++] = (struct event){.kind = EVENT_NIC};
	}
	return taken == 0 && verbs->lost != 0 ? verbs->lost : taken;
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
