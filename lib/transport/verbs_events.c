/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an RDMA device tells by itself: its port went down or came back, an address changed, a
 * queue broke.  All of it ends in nic->down, nic->trouble, a lost peer or a lost NIC; nothing here
 * is on the way of a write.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/transport/verbs.h"

#define EVENTS_AT_ONCE_MAX 64

void verbs_trouble(struct verbs *verbs, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(verbs->nic.trouble, sizeof(verbs->nic.trouble), format, args);
	va_end(args);
	verbs->changed = true;
}

void verbs_lose(struct verbs *verbs, int status, const char *format, ...)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	va_list args;

	if (verbs->lost != 0)
		return;
	verbs->lost = status;
	va_start(args, format);
	vsnprintf(verbs->nic.trouble, sizeof(verbs->nic.trouble), format, args);
	va_end(args);
	verbs->changed = true;
	for (uint32_t i = 0; i < verbs->peer_count; i++)
		ibv_modify_qp(verbs->peers[i]->qp, &reset, IBV_QP_STATE);
}

/* ---------------------------------------------------------------- the port */

static void port_take(struct verbs *verbs)
{
	struct nic *nic = &verbs->nic;
	uint8_t number = verbs->port.number;
	uint64_t now = clock_ns();
	struct ibv_port_attr attr;

	verbs->port_checked_ns = now;
	if (ibv_query_port(verbs->context, number, &attr) != 0) {
		verbs_lose(verbs, -ENODEV, "port %u doesn't answer any more: %s", number,
			   strerror(errno));
		return;
	}
	if (attr.lid != verbs->port.attr.lid)
		verbs_trouble(verbs, "its LID changed: connections made before may break");
	verbs->port.attr = attr;
	bool down = attr.state != IBV_PORT_ACTIVE;
	if (down == nic->down)
		return;
	nic->down = down;
	if (down) {
		verbs->down_since_ns = now;
		verbs_trouble(verbs, "port %u is down (%s)", number,
			      ibv_port_state_str(attr.state));
	} else {
		verbs_trouble(verbs, "port %u was down for %.1f s", number,
			      (double)(now - verbs->down_since_ns) / 1e9);
	}
}

void verbs_port_check(struct verbs *verbs)
{
	if (clock_ns() - verbs->port_checked_ns >= VERBS_PORT_CHECK_MS * UINT64_C(1000000))
		port_take(verbs);
}

/* ---------------------------------------------------------------- the GID */

/* True where the one that is in use is still at its place. */
static bool gid_take(struct verbs *verbs, struct verbs_gid *gid_out)
{
	const struct verbs_gid *old = &verbs->port.gid;
	int rc = verbs_gid_scan(verbs->context, &verbs->port, verbs->options.gid, gid_out);

	return rc == 0 && memcmp(&gid_out->raw, &old->raw, sizeof(old->raw)) == 0 &&
	       gid_out->index == old->index && gid_out->type == old->type;
}

static void gid_changed(struct verbs *verbs)
{
	struct verbs_gid gid;

	if (!gid_take(verbs, &gid))
		verbs_trouble(verbs,
			      "its GID %u is no longer %s: connections made before may break",
			      verbs->port.gid.index, verbs->port.gid.address);
}

int verbs_gid_renew(struct verbs *verbs, struct ws_error *err)
{
	struct verbs_gid gid;
	const char *name = verbs->nic.name;

	if (gid_take(verbs, &gid))
		return 0;
	if (gid.address[0] == 0)
		return ws_fail(err, -ENODEV, "%s has lost its GID %u (%s): %s", name,
			       verbs->port.gid.index, verbs->port.gid.address, gid.reason);
	verbs_trouble(verbs, "its GID changed from %u (%s) to %u (%s)", verbs->port.gid.index,
		      verbs->port.gid.address, gid.index, gid.address);
	verbs->port.gid = gid;
	return 0;
}

/* ---------------------------------------------------------------- events */

/* What it still has is flushed. */
static void peer_fail(const struct ibv_qp *qp, const char *reason)
{
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	struct peer *peer = qp->qp_context;

	verbs_peer_lose(peer, -ECONNRESET, reason);
	ibv_modify_qp(peer->qp, &error, IBV_QP_STATE);
}

static void event_take(struct verbs *verbs, const struct ibv_async_event *event)
{
	struct ibv_srq_attr low = {.srq_limit = verbs->receives_total / 16};

	switch (event->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_PATH_MIG_ERR:
		peer_fail(event->element.qp, "the queue pair failed");
		break;
	case IBV_EVENT_QP_ACCESS_ERR:
		peer_fail(event->element.qp, "the peer wrote where it may not");
		verbs_trouble(verbs, "a peer wrote where it may not");
		break;
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		((struct peer *)event->element.qp->qp_context)->last_seen = true;
		break;
	case IBV_EVENT_CQ_ERR:
		verbs_lose(verbs, -EIO, "its completion queue ran over");
		break;
	case IBV_EVENT_SRQ_ERR:
		verbs_lose(verbs, -EIO, "its queue of receives failed");
		break;
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		verbs_trouble(verbs,
			      "fewer than %u of its %u receives were left: it is polled too seldom",
			      low.srq_limit, verbs->receives_total);
		ibv_modify_srq(verbs->srq, &low, IBV_SRQ_LIMIT);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		verbs_lose(verbs, -ENODEV, "the device failed or was removed");
		break;
	/* Of whichever port: mine is asked whether it has changed. */
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
		port_take(verbs);
		break;
	case IBV_EVENT_GID_CHANGE:
		gid_changed(verbs);
		break;
	/* Nothing that a connection would notice. */
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_WQ_FATAL:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
		break;
	}
}

void verbs_events_take(struct verbs *verbs)
{
	struct ibv_async_event event;

	for (int i = 0; i < EVENTS_AT_ONCE_MAX; i++) {
		if (ibv_get_async_event(verbs->context, &event) != 0)
			return;
		/* Before it is acknowledged: until then its queue pair can't be destroyed. */
		event_take(verbs, &event);
		ibv_ack_async_event(&event);
	}
}
