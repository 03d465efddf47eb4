/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path of a verbs NIC: ops become chains of work requests, completions become events, and
 * receives and credits go round.  Nothing here allocates, locks or blocks.
 */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "lib/transport/verbs.h"

#define CHAIN_MAX	  16   /* ops posted at once */
#define POLLS_UNTIL_NEWS  512u /* of a busy queue; an empty poll counts as EMPTY_POLL_WEIGHT */
#define EMPTY_POLL_WEIGHT 32u

/* Posts so many receives.  A full queue isn't an error: it is what is wanted. */
void verbs_receives_post(struct verbs *verbs, uint32_t count)
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
	assert(posted >= 0 && posted <= made);
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

int verbs_post(struct nic *nic, const struct op *ops, int count)
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

/* The first completion of an error has the reason; those behind it were only flushed. */
static void completion_failed(struct peer *peer, enum ibv_wc_status status)
{
	if (status == IBV_WC_WR_FLUSH_ERR)
		verbs_peer_lose(peer, -ECONNRESET, "the connection broke");
	else
		verbs_peer_lose(peer, status == IBV_WC_RETRY_EXC_ERR ? -ECONNRESET : -EIO,
				ibv_wc_status_str(status));
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

static struct event op_completed(struct verbs *verbs, struct verbs_op *op,
				 enum ibv_wc_status status)
{
	op->peer->queued--;
	if (status == IBV_WC_SUCCESS)
		return op_event(verbs, op, EVENT_SENT);
	completion_failed(op->peer, status);
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
		completion_failed(peer, status);
	if (!peer->closing)
		credit_send(peer);
}

/* A write of a peer's has landed, or a credit came.  1 with an event, else 0. */
static int received(const struct verbs *verbs, const struct ibv_wc *wc, struct event *event_out)
{
	if (wc->status != IBV_WC_SUCCESS)
		return 0;
	struct peer *peer = verbs_peer_find(verbs, wc->qp_num);
	if (peer == NULL || peer->closing)
		return 0;
	uint32_t imm = be32toh(wc->imm_data);
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
	verbs_receives_post(verbs, receives);
	for (int i = 0; i < count; i++) {
		void *whose = (void *)(uintptr_t)(wcs[i].wr_id & ~WR_KIND_MASK);
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

/* Takes what the channel told, so that it isn't readable any more and can be armed again. */
static void channel_take(struct verbs *verbs)
{
	struct ibv_cq *cq;
	void *context;

	if (!verbs->armed || ibv_get_cq_event(verbs->channel, &cq, &context) != 0)
		return;
	ibv_ack_cq_events(cq, 1);
	verbs->armed = false;
}

/*
 * Makes wait_fd tell of the next completion.  True: it was just armed, so look once more.  What
 * came since it was armed before has made the channel readable, or will very soon: then a waiter
 * wakes up once for nothing.
 */
static bool wait_arm(struct verbs *verbs)
{
	if (verbs->told)
		channel_take(verbs);
	if (verbs->armed)
		return false;
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
	channel_take(verbs); /* told without a completion, it would stay readable */
	verbs_events_take(verbs);
	verbs_port_check(verbs);
}

int verbs_poll(struct nic *nic, struct event *events_out, int count)
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
