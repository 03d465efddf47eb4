/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer of a verbs NIC: one reliable connection, over which both sides write.  Its address is
 * what the other end's queue pair needs to reach this one; the fence is its destruction.
 */
#include <errno.h>
#include <string.h>

#include "lib/transport/verbs.h"

#define ADDRESS_MAGIC 0x31766277u /* "wbv1" */
#define HOPS_MAX      64

/* What my end of a connection tells the other. */
struct wire {
	uint8_t link_layer, gid_type, mtu; /* mtu as enum ibv_mtu */
	uint16_t lid;
	union ibv_gid gid;
	uint32_t number, psn;
	uint32_t window; /* writes that I have receives for */
};

static void wire_encode(const struct wire *wire, struct address *address)
{
	struct writer out = writer_fixed(address->bytes, sizeof(address->bytes));

	write_u32(&out, ADDRESS_MAGIC);
	write_u8(&out, wire->link_layer);
	write_u8(&out, wire->gid_type);
	write_u8(&out, wire->mtu);
	write_u16(&out, wire->lid);
	write_bytes(&out, wire->gid.raw, sizeof(wire->gid.raw));
	write_u32(&out, wire->number);
	write_u32(&out, wire->psn);
	write_u32(&out, wire->window);
	address->count = (uint16_t)out.count;
}

static int wire_decode(const struct verbs *verbs, const struct address *address, struct wire *wire,
		       struct ws_error *err)
{
	const struct verbs_gid *gid = &verbs->port.gid;
	struct reader in = reader_make(address->bytes, MIN(address->count, ADDRESS_BYTES_MAX));

	memset(wire, 0, sizeof(*wire));
	if (address->count > ADDRESS_BYTES_MAX || read_u32(&in) != ADDRESS_MAGIC)
		return ws_fail(err, -EPROTO, "%s got an address that no verbs NIC makes",
			       verbs->nic.name);
	wire->link_layer = read_u8(&in);
	wire->gid_type = read_u8(&in);
	wire->mtu = read_u8(&in);
	wire->lid = read_u16(&in);
	const void *raw = read_bytes(&in, sizeof(wire->gid.raw));
	if (raw != NULL)
		memcpy(wire->gid.raw, raw, sizeof(wire->gid.raw));
	wire->number = read_u32(&in);
	wire->psn = read_u32(&in);
	wire->window = read_u32(&in);
	if (!reader_done(&in) || wire->mtu < IBV_MTU_256 || wire->mtu > IBV_MTU_4096 ||
	    wire->number == 0 || wire->number >> 24 != 0 || wire->psn >> 24 != 0 ||
	    wire->window == 0 || wire->window > VERBS_SHARE_MAX)
		return ws_fail(err, -EPROTO, "%s got a broken address", verbs->nic.name);
	if (wire->link_layer != verbs->port.attr.link_layer || wire->gid_type != gid->type)
		return ws_fail(err, -EPROTO,
			       "%s uses %s, and its peer another kind of network or GID; name the "
			       "same kind at both ends (\"?gid=N\")",
			       verbs->nic.name, gid->reason);
	return 0;
}

/* ---------------------------------------------------------------- the list of peers */

static uint32_t slot_of(const struct verbs *verbs, uint32_t number)
{
	return (uint32_t)mix64(number) & (verbs->by_number_count - 1);
}

struct peer *verbs_peer_find(const struct verbs *verbs, uint32_t number)
{
	/* At least half of the table is empty, so this ends. */
	for (uint32_t at = slot_of(verbs, number); verbs->by_number[at] != NULL;
	     at = (at + 1) & (verbs->by_number_count - 1))
		if (verbs->by_number[at]->qp->qp_num == number)
			return verbs->by_number[at];
	return NULL;
}

static void numbers_fill(struct verbs *verbs)
{
	memset(verbs->by_number, 0, verbs->by_number_count * sizeof(struct peer *));
	for (uint32_t i = 0; i < verbs->peer_count; i++) {
		uint32_t at = slot_of(verbs, verbs->peers[i]->qp->qp_num);
		while (verbs->by_number[at] != NULL)
			at = (at + 1) & (verbs->by_number_count - 1);
		verbs->by_number[at] = verbs->peers[i];
	}
}

/* Room for one more in both tables. */
static int room_make(struct verbs *verbs)
{
	if (verbs->peer_count < verbs->peer_room)
		return 0;
	uint32_t room = MAX(16, 2 * verbs->peer_room);
	void *peers = mem_grow(verbs->peers, verbs->peer_room * sizeof(struct peer *),
			       room * sizeof(struct peer *));
	if (peers == NULL)
		return -ENOMEM;
	verbs->peers = peers;
	void *numbers = mem_alloc(2 * room * sizeof(struct peer *));
	if (numbers == NULL)
		return -ENOMEM;
	mem_free(verbs->by_number);
	verbs->by_number = numbers;
	verbs->by_number_count = 2 * room;
	verbs->peer_room = room;
	numbers_fill(verbs);
	return 0;
}

/* ---------------------------------------------------------------- open */

/* What is left is dealt out so that there is always something for one more, if less. */
static uint32_t share_choose(const struct verbs *verbs)
{
	uint32_t share = MIN(MAX(verbs->receives_free / 64, VERBS_SHARE_MIN), VERBS_SHARE_MAX);

	return share <= verbs->receives_free ? share : 0;
}

static int queue_pair_open(struct verbs *verbs, struct peer *peer, struct ws_error *err)
{
	struct ibv_qp_init_attr init = {
		.qp_context = peer,
		.send_cq = verbs->cq,
		.recv_cq = verbs->cq,
		.srq = verbs->srq,
		.cap = {.max_send_wr = verbs->queue_entries, .max_send_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = verbs->port.number,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

	peer->qp = ibv_create_qp(verbs->parent != NULL ? verbs->parent : verbs->pd, &init);
	if (peer->qp == NULL)
		return ws_fail(err, -ENOSPC, "%s can't have one more queue pair of %u entries: %s",
			       verbs->nic.name, verbs->queue_entries, strerror(errno));
	int rc =
		ibv_modify_qp(peer->qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	return rc == 0 ? 0
		       : ws_fail(err, -ENODEV, "%s can't ready a queue pair: %s", verbs->nic.name,
				 strerror(rc));
}

static enum ibv_mtu mtu_of(const struct verbs *verbs)
{
	enum ibv_mtu mtu = IBV_MTU_256;

	if (verbs->options.mtu == 0)
		return verbs->port.attr.active_mtu;
	while (128 << mtu < verbs->options.mtu)
		mtu++;
	return MIN(mtu, verbs->port.attr.active_mtu);
}

int verbs_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
		    struct ws_error *err)
{
	struct verbs *verbs = verbs_of(nic);
	uint32_t share = share_choose(verbs);
	uint32_t psn;

	*peer_out = NULL;
	if (share == 0)
		return ws_fail(err, -ENOSPC,
			       "%s has %u peers, and its %u receives have no room for one more",
			       nic->name, verbs->peer_count, verbs->receives_total);
	int rc = verbs_gid_renew(verbs, err);
	if (rc == 0)
		rc = random_bytes(&psn, sizeof(psn), err);
	if (rc != 0)
		return rc;
	struct peer *peer = room_make(verbs) == 0 ? mem_alloc(sizeof(*peer)) : NULL;
	if (peer == NULL)
		return ws_fail(err, -ENOMEM, "no memory for one more peer of %s", nic->name);
	peer->verbs = verbs;
	peer->psn = psn & 0xffffff;
	rc = queue_pair_open(verbs, peer, err);
	if (rc != 0) {
		verbs_peer_free(verbs, peer);
		return rc;
	}
	peer->share = share;
	verbs->receives_free -= share;
	verbs->peers[verbs->peer_count++] = peer;
	numbers_fill(verbs);
	wire_encode(&(struct wire){.link_layer = verbs->port.attr.link_layer,
				   .gid_type = verbs->port.gid.type,
				   .mtu = (uint8_t)mtu_of(verbs),
				   .lid = verbs->port.attr.lid,
				   .gid = verbs->port.gid.raw,
				   .number = peer->qp->qp_num,
				   .psn = peer->psn,
				   .window = share - VERBS_CREDITS_MAX},
		    address_out);
	*peer_out = peer;
	return 0;
}

/* ---------------------------------------------------------------- connect */

/* InfiniBand routes by LID, and needs the GID only between subnets. */
static struct ibv_ah_attr route_make(const struct verbs *verbs, const struct wire *to)
{
	const struct verbs_gid *mine = &verbs->port.gid;
	bool global = to->link_layer == IBV_LINK_LAYER_ETHERNET || to->lid == 0 ||
		      memcmp(to->gid.raw, mine->raw.raw, 8) != 0;
	struct ibv_ah_attr route = {.dlid = to->lid,
				    .sl = (uint8_t)verbs->options.service_level,
				    .is_global = global,
				    .port_num = verbs->port.number};

	if (global)
		route.grh = (struct ibv_global_route){
			.dgid = to->gid,
			.sgid_index = mine->index,
			.hop_limit = HOPS_MAX,
			.traffic_class = (uint8_t)verbs->options.traffic_class};
	return route;
}

static int ready_to_receive(struct peer *peer, const struct wire *to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = MIN(mtu_of(peer->verbs), (enum ibv_mtu)to->mtu),
		.dest_qp_num = to->number,
		.rq_psn = to->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, /* 0.64 ms */
		.ah_attr = route_make(peer->verbs, to),
	};

	return ibv_modify_qp(peer->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER);
}

static int ready_to_send(struct peer *peer)
{
	const struct verbs_options *options = &peer->verbs->options;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = (uint8_t)options->timeout,
		.retry_cnt = (uint8_t)options->retries,
		.rnr_retry = (uint8_t)options->rnr_retries,
		.sq_psn = peer->psn,
		.max_rd_atomic = 1,
	};

	return ibv_modify_qp(peer->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int verbs_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
		       struct ws_error *err)
{
	struct verbs *verbs = verbs_of(nic);
	struct wire to;

	int rc = wire_decode(verbs, address, &to, err);
	if (rc != 0)
		return rc;
	rc = ready_to_receive(peer, &to);
	if (rc == 0)
		rc = ready_to_send(peer);
	if (rc != 0)
		return ws_fail(err, rc == ETIMEDOUT ? -ETIMEDOUT : -ECONNRESET,
			       "%s can't reach its peer from %s: %s", nic->name,
			       verbs->port.gid.reason, strerror(rc));
	peer->window = to.window;
	return 0;
}

void verbs_peer_lose(struct peer *peer, int status, const char *reason)
{
	if (peer->lost != 0)
		return;
	peer->lost = status;
	peer->reason = reason;
}

/* ---------------------------------------------------------------- the fence */

void verbs_peer_free(struct verbs *verbs, struct peer *peer)
{
	for (uint32_t i = 0; i < verbs->peer_count; i++)
		if (verbs->peers[i] == peer) {
			verbs->peers[i] = verbs->peers[--verbs->peer_count];
			numbers_fill(verbs);
			break;
		}
	if (peer->qp != NULL)
		ibv_destroy_qp(peer->qp);
	verbs->receives_free += peer->share;
	/* A write that was cut short may have taken a receive without completing it. */
	if (peer->window > 0 && verbs->options.receives < 0)
		verbs_receives_post(verbs, 1);
	mem_free(peer);
}

/*
 * In the error state nothing is sent or accepted any more, and everything that was posted is
 * completed.  A write that was being received may still complete, with an immediate that mustn't
 * be taken for another's once the number of the queue pair is used again: so it is destroyed
 * only when the device has said that no more will come, or some time has passed, and the
 * completion queue was empty after that.
 */
int verbs_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon)
{
	struct verbs *verbs = verbs_of(nic);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	(void)quiet; /* nobody's help is needed */
	(void)abandon;
	if (!peer->closing) {
		peer->closing = true;
		peer->error_at_ns = clock_ns();
		/* It fails only where the device is gone, and then poll says so. */
		ibv_modify_qp(peer->qp, &error, IBV_QP_STATE);
	}
	if (peer->unreported > 0 || peer->credit_queued)
		return -EAGAIN;
	if (peer->window > 0 && !peer->last_seen &&
	    clock_ns() - peer->error_at_ns < VERBS_QUIET_MS * UINT64_C(1000000))
		return -EAGAIN;
	if (!peer->settled) {
		peer->settled = true;
		peer->settled_at = verbs->emptied;
	}
	if (peer->settled_at == verbs->emptied)
		return -EAGAIN;
	verbs_peer_free(verbs, peer);
	return 0;
}
