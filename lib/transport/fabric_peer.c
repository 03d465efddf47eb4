/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One peer of a libfabric NIC: its two endpoints, their names as an address, and the fence.
 *
 * Closing an rx endpoint of libfabric 1.17's tcp in mid receive crashes: the half-received
 * write is reported as an error whose op context is NULL, and rxm looks into it.  A connection
 * that ends by itself takes a path that reports nothing.  So the fence first shuts the
 * connection's socket down, polls until libfabric has let go of it, and only then closes.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lib/transport/fabric.h"

#define ADDRESS_MAGIC UINT32_C(0x31464157)
#define READ_MAX      16
#define MS_NS	      UINT64_C(1000000)

/* Of this process: endpoints that stay open for ever, and so remain known to leak checkers. */
static struct half set_aside[FABRIC_SET_ASIDE_MAX];
static atomic_int set_aside_count;

/* ---------------------------------------------------------------- halves */

static void half_close(struct fabric *fabric, struct half *half)
{
	if (half->fd >= 0)
		epoll_ctl(fabric->nic.wait_fd, EPOLL_CTL_DEL, half->fd, NULL);
	half->fd = -1;
	if (half->ep != NULL)
		fi_close(&half->ep->fid);
	if (half->cq != NULL)
		fi_close(&half->cq->fid);
	half->ep = NULL;
	half->cq = NULL;
}

static int half_open(struct fabric *fabric, struct half *half, struct ws_error *err)
{
	struct fi_cq_attr attr = {
		.format = FI_CQ_FORMAT_DATA,
		.wait_obj = fabric->waits ? FI_WAIT_FD : FI_WAIT_NONE,
		.size = MAX(2 * fabric->nic.ops_in_flight_max, fabric->modes.queue_room),
	};
	const char *step = "a completion queue";
	int rc = fi_cq_open(fabric->domain, &attr, &half->cq, NULL);

	if (rc == 0 && fabric->waits) {
		step = "a queue's fd";
		rc = fi_control(&half->cq->fid, FI_GETWAIT, &half->fd);
	}
	if (rc == 0) {
		step = "an endpoint";
		rc = fi_endpoint(fabric->domain, fabric->info, &half->ep, NULL);
	}
	if (rc == 0 && fabric_endpoint_forbid(&fabric->nic, half->ep, err) != 0)
		return -ENOTSUP;
	if (rc == 0)
		rc = fi_ep_bind(half->ep, &half->cq->fid, FI_TRANSMIT | FI_RECV);
	if (rc == 0)
		rc = fi_ep_bind(half->ep, &fabric->av->fid, 0);
	if (rc == 0)
		rc = fi_enable(half->ep);
	if (rc == 0 && half->fd >= 0) {
		struct epoll_event event = {.events = EPOLLIN};
		step = "a wait for its queue";
		rc = epoll_ctl(fabric->nic.wait_fd, EPOLL_CTL_ADD, half->fd, &event) != 0 ? -errno
											  : 0;
	}
	if (rc != 0)
		return ws_fail(err, rc == -FI_EMFILE ? -ENOSPC : -ENOMEM,
			       "%s can't open %s for a peer: %s", fabric->nic.name, step,
			       libfabric_error(rc));
	return fabric_endpoint_check(&fabric->nic, &fabric->modes, half->ep, err);
}

/* ---------------------------------------------------------------- reading queues */

/* libfabric's codes above 255 are its own; ECANCELED is how it says that the other end ended. */
static int status_of(int code)
{
	switch (code) {
	case FI_ECANCELED:
	case FI_ENOTCONN:
	case FI_ECONNRESET:
	case FI_ECONNREFUSED:
	case FI_ECONNABORTED:
	case FI_ESHUTDOWN:
		return -ECONNRESET;
	default: /* not an enum: an errno */
		return -EIO;
	}
}

/* -1: the queue has an error that belongs to no op. */
static int tx_error_read(struct peer *peer, struct op_context **failed_out, int *status_out)
{
	struct fi_cq_err_entry entry = {0};

	*failed_out = NULL;
	if (fi_cq_readerr(peer->tx.cq, &entry, 0) < 0)
		return -1;
	*failed_out = entry.op_context;
	*status_out = status_of(entry.err);
	return *failed_out != NULL && (*failed_out)->peer == peer ? 0 : -1;
}

/* One completion: of an op of mine, or of a write of the peer's.  How many events it is. */
static int entry_take(struct fabric *fabric, struct peer *peer,
		      const struct fi_cq_data_entry *entry, struct event *event_out)
{
	struct op_context *context = entry->op_context;
	bool cold = peer->cold_in;

	if ((entry->flags & FI_REMOTE_CQ_DATA) != 0) {
		peer->cold_in = false;
		if (cold || peer->closing)
			return 0;
		*event_out = (struct event){
			.kind = EVENT_IMM, .imm = (uint32_t)entry->data, .peer = peer};
		return 1;
	}
	if (context == NULL || context->peer != peer)
		return 0;
	*event_out = (struct event){.kind = EVENT_SENT, .id = context->id, .peer = peer};
	bool told = !context->warms;
	if (context->warms)
		peer->cold_out = false;
	fabric_context_free(fabric, context);
	return told;
}

/* libfabric's answer in *got_out; returns how many events. */
static int entries_read(struct fabric *fabric, struct peer *peer, struct fid_cq *cq,
			struct event *events_out, int count, ssize_t *got_out)
{
	struct fi_cq_data_entry entries[READ_MAX];
	int taken = 0;

	*got_out = fi_cq_read(cq, entries, (size_t)MIN(count, READ_MAX));
	for (ssize_t i = 0; i < *got_out; i++)
		taken += entry_take(fabric, peer, &entries[i], &events_out[taken]);
	return taken;
}

static int tx_read(struct fabric *fabric, struct peer *peer, struct event *events_out, int count)
{
	struct op_context *failed;
	int status = -EIO;
	ssize_t got;
	int taken = entries_read(fabric, peer, peer->tx.cq, events_out, count, &got);

	if (got >= 0 || got == -FI_EAGAIN)
		return taken;
	if (got == -FI_EAVAIL && tx_error_read(peer, &failed, &status) == 0) {
		if (!failed->warms)
			events_out[taken++] = (struct event){.kind = EVENT_FAILED,
							     .status = status,
							     .id = failed->id,
							     .peer = peer};
		fabric_context_free(fabric, failed);
	}
	/* After one failure the connection is of no use (tcp loses the next write too), and a
	 * new one behind the caller's back would be no longer fenced. */
	fabric_tx_close(fabric, peer, status);
	return taken;
}

static int rx_read(struct fabric *fabric, struct peer *peer, struct event *events_out, int count)
{
	struct fi_cq_err_entry error = {0};
	ssize_t got;
	int taken = entries_read(fabric, peer, peer->rx.cq, events_out, count, &got);

	/* A broken incoming connection isn't an event: what is missing is the receiver's count. */
	if (got == -FI_EAVAIL)
		(void)fi_cq_readerr(peer->rx.cq, &error, 0);
	return taken;
}

int fabric_peer_poll(struct fabric *fabric, struct peer *peer, struct event *events_out, int count)
{
	int taken = 0;

	if (peer->cold_out)
		fabric_warm_up(fabric, peer);
	/* A tx half that waits for nothing needs no progress but while it connects, or ends. */
	if (peer->tx.ep != NULL && (peer->posted > 0 || peer->refused_at_ns != 0 ||
				    fabric->unsettled || fabric->modes.joined))
		taken = tx_read(fabric, peer, events_out, count);
	if (peer->rx.ep != NULL && !peer->set_aside && taken < count)
		taken += rx_read(fabric, peer, events_out + taken, count - taken);
	return taken;
}

/* ---------------------------------------------------------------- open, connect */

static int peer_room_make(struct fabric *fabric)
{
	if (fabric->peer_count < fabric->peer_room)
		return 0;
	uint32_t room = fabric->peer_room + 16;
	void *peers = mem_grow(fabric->peers, fabric->peer_room * sizeof(*fabric->peers),
			       room * sizeof(*fabric->peers));
	if (peers == NULL)
		return -ENOMEM;
	fabric->peers = peers;
	void *queues = mem_grow(fabric->queues, 2 * fabric->peer_room * sizeof(*fabric->queues),
				2 * room * sizeof(*fabric->queues));
	if (queues == NULL)
		return -ENOMEM;
	fabric->queues = queues;
	fabric->peer_room = room;
	return 0;
}

/* Sockets of an abandoned rx half are the process's for good; everything else goes. */
static void peer_free(struct fabric *fabric, struct peer *peer)
{
	fi_addr_t known[2] = {peer->tx_to, peer->rx_from};

	half_close(fabric, &peer->tx);
	if (!peer->set_aside)
		half_close(fabric, &peer->rx);
	if (!fabric->leaked)
		for (size_t i = 0; i < 2; i++)
			if (known[i] != FI_ADDR_NOTAVAIL)
				fi_av_remove(fabric->av, &known[i], 1, 0);
	for (uint32_t i = 0; i < fabric->peer_count; i++)
		if (fabric->peers[i] == peer) {
			fabric->peers[i] = fabric->peers[--fabric->peer_count];
			break;
		}
	fabric->peer_next = 0;
	mem_free(peer);
}

static int address_write(const struct fabric *fabric, struct peer *peer, struct address *address,
			 struct ws_error *err)
{
	struct writer out = writer_fixed(address->bytes, sizeof(address->bytes));
	uint8_t tx_name[FABRIC_NAME_BYTES_MAX];
	size_t tx_bytes = sizeof(tx_name);

	const struct half *in = fabric->modes.joined ? &peer->tx : &peer->rx;

	peer->name_bytes = sizeof(peer->name);
	if (fi_getname(&in->ep->fid, peer->name, &peer->name_bytes) != 0 ||
	    fi_getname(&peer->tx.ep->fid, tx_name, &tx_bytes) != 0)
		return ws_fail(err, -ENOTSUP, "%s has endpoint names of more than %d bytes",
			       fabric->nic.name, FABRIC_NAME_BYTES_MAX);
	write_u32(&out, ADDRESS_MAGIC);
	write_u64(&out, fabric->nic.protocol);
	write_u16(&out, (uint16_t)peer->name_bytes);
	write_bytes(&out, peer->name, peer->name_bytes);
	write_u16(&out, (uint16_t)tx_bytes);
	write_bytes(&out, tx_name, tx_bytes);
	write_u64(&out, fabric->page_mr.base);
	write_u64(&out, fabric->page_mr.key);
	address->count = (uint16_t)out.count;
	return out.failed ? ws_fail(err, -ENOTSUP, "%s has an address of more than %d bytes",
				    fabric->nic.name, ADDRESS_BYTES_MAX)
			  : 0;
}

int fabric_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
		     struct ws_error *err)
{
	struct fabric *fabric = (struct fabric *)nic;

	*peer_out = NULL;
	struct peer *peer = mem_alloc(sizeof(*peer));
	if (peer == NULL || peer_room_make(fabric) != 0) {
		mem_free(peer);
		return ws_fail(err, -ENOMEM, "no memory for one more peer of %s", nic->name);
	}
	*peer = (struct peer){
		.tx.fd = -1, .rx.fd = -1, .tx_to = FI_ADDR_NOTAVAIL, .rx_from = FI_ADDR_NOTAVAIL};
	fabric->peers[fabric->peer_count++] = peer;
	int rc = half_open(fabric, &peer->tx, err);
	if (rc == 0 && !fabric->modes.joined)
		rc = half_open(fabric, &peer->rx, err);
	if (rc == 0)
		rc = address_write(fabric, peer, address_out, err);
	if (rc != 0) {
		peer_free(fabric, peer);
		return rc;
	}
	*peer_out = peer;
	return 0;
}

/* Lengths and address families as my own names have them: libfabric trusts what it is given. */
static bool name_plausible(const struct fabric *fabric, const struct peer *peer, const void *name,
			   size_t bytes)
{
	struct sockaddr_in in;

	if (name == NULL || bytes != peer->name_bytes)
		return false;
	if (fabric->info->addr_format != FI_SOCKADDR_IN)
		return true;
	memcpy(&in, name, MIN(bytes, sizeof(in)));
	return bytes == sizeof(in) && in.sin_family == AF_INET && in.sin_port != 0;
}

int fabric_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
			struct ws_error *err)
{
	struct fabric *fabric = (struct fabric *)nic;
	struct reader in = reader_make(address->bytes, MIN(address->count, ADDRESS_BYTES_MAX));

	if (address->count > ADDRESS_BYTES_MAX || read_u32(&in) != ADDRESS_MAGIC)
		return ws_fail(err, -EPROTO, "%s got an address that no fabric NIC makes",
			       nic->name);
	if (read_u64(&in) != nic->protocol)
		return ws_fail(err, -EPROTO,
			       "%s got the address of another provider, libfabric version or "
			       "mode; use the same on both ends",
			       nic->name);
	size_t rx_bytes = read_u16(&in);
	const void *rx_name = read_bytes(&in, rx_bytes);
	size_t tx_bytes = read_u16(&in);
	const void *tx_name = read_bytes(&in, tx_bytes);
	peer->warm_to = read_u64(&in);
	peer->warm_key = read_u64(&in);
	if (!reader_done(&in) || !name_plausible(fabric, peer, rx_name, rx_bytes) ||
	    !name_plausible(fabric, peer, tx_name, tx_bytes))
		return ws_fail(err, -EPROTO, "%s got a broken address", nic->name);
	if (fi_av_insert(fabric->av, rx_name, 1, &peer->tx_to, 0, NULL) != 1 ||
	    (!fabric->modes.joined &&
	     fi_av_insert(fabric->av, tx_name, 1, &peer->rx_from, 0, NULL) != 1))
		return ws_fail(err, -EPROTO, "%s can't use the peer's address", nic->name);
	peer->connected = true;
	peer->cold_out = peer->cold_in = fabric->modes.warm_up;
	fabric_warm_up(fabric, peer);
	return 0;
}

/* ---------------------------------------------------------------- the fence */

void fabric_tx_close(struct fabric *fabric, struct peer *peer, int status)
{
	if (peer->tx.ep == NULL)
		return;
	half_close(fabric, &peer->tx);
	peer->lost = status;
	peer->refused_at_ns = 0;
	/* The queue is gone: whatever was still with libfabric ends here. */
	for (uint32_t i = 0; i < fabric->nic.ops_in_flight_max && peer->posted > 0; i++)
		if (fabric->contexts[i].peer == peer && fabric->contexts[i].posted) {
			fabric->contexts[i].posted = false;
			peer->posted--;
			fabric_context_fail(fabric, &fabric->contexts[i], status);
		}
	assert(peer->posted == 0);
}

/* Is this fd a connection that was accepted by my rx endpoint's listener? */
static bool is_incoming(int fd, const struct sockaddr_in *mine)
{
	struct sockaddr_in in = {0};
	socklen_t bytes = sizeof(in), flag_bytes = sizeof(int);
	int listening = 0;

	return getsockname(fd, (struct sockaddr *)&in, &bytes) == 0 && bytes == sizeof(in) &&
	       in.sin_family == AF_INET && in.sin_port == mine->sin_port &&
	       in.sin_addr.s_addr == mine->sin_addr.s_addr &&
	       getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &flag_bytes) == 0 &&
	       listening == 0;
}

/*
 * How many connections into peer's rx endpoint this process still has, and their end where shut
 * asks for it: what the kernel holds may still be read, then libfabric sees the end.  Only this
 * thread closes these fds, so none can change its meaning in between.  -1: can't tell.
 */
static int incoming_count(const struct peer *peer, bool shut)
{
	struct sockaddr_in mine;
	int count = 0;

	if (peer->name_bytes != sizeof(mine))
		return -1;
	memcpy(&mine, peer->name, sizeof(mine));
	DIR *folder = opendir("/proc/self/fd");
	if (folder == NULL)
		return -1;
	for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
		int fd = (int)strtol(entry->d_name, NULL, 10);
		if (entry->d_name[0] == '.' || !is_incoming(fd, &mine))
			continue;
		count++;
		if (shut)
			shutdown(fd, SHUT_RDWR);
	}
	closedir(folder);
	return count;
}

static bool elapsed(uint64_t since_ns, uint64_t ms)
{
	return clock_ns() - since_ns >= ms * MS_NS;
}

/* 0: my rx half may be closed now.  -EAGAIN: poll on.  -EBUSY: it can't be ended. */
static int rx_quiesce(struct fabric *fabric, struct peer *peer, bool quiet)
{
	if (quiet && peer->quiet_at_ns == 0)
		peer->quiet_at_ns = clock_ns();
	bool waited = peer->quiet_at_ns != 0 && elapsed(peer->quiet_at_ns, FABRIC_QUIET_MS);
	if (!fabric->modes.ends_alone) {
		if (peer->quiet_at_ns == 0)
			return -EBUSY;
		return waited ? 0 : -EAGAIN;
	}
	/* A quiet peer's connection comes to its end by itself. */
	int count = incoming_count(peer, !quiet || waited);
	if (count == 0)
		return 0;
	uint64_t now_ns = clock_ns();
	if (peer->asked_at_ns != 0)
		peer->shut_ns += MIN(now_ns - peer->asked_at_ns, FABRIC_STEP_MS_MAX * MS_NS);
	peer->asked_at_ns = now_ns;
	return count < 0 || peer->shut_ns >= FABRIC_END_ALONE_MS_MAX * MS_NS ? -EBUSY : -EAGAIN;
}

/* Never polled nor closed again: without progress nothing lands, and closing would crash. */
static int rx_set_aside(struct fabric *fabric, struct peer *peer)
{
	int index = atomic_fetch_add(&set_aside_count, 1);

	if (index >= FABRIC_SET_ASIDE_MAX) {
		atomic_fetch_sub(&set_aside_count, 1);
		return -ENOSPC;
	}
	set_aside[index] = peer->rx;
	if (peer->rx.fd >= 0)
		epoll_ctl(fabric->nic.wait_fd, EPOLL_CTL_DEL, peer->rx.fd, NULL);
	peer->set_aside = true;
	fabric->leaked = true;
	return 0;
}

int fabric_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon)
{
	struct fabric *fabric = (struct fabric *)nic;

	peer->closing = true;
	fabric_tx_close(fabric, peer, -ECANCELED);
	if (peer->unreported > 0)
		return -EAGAIN;
	/* Without a receiving half of its own, that was all. */
	int rc = fabric->modes.joined ? 0 : rx_quiesce(fabric, peer, quiet);
	if (rc == -EBUSY && !abandon)
		return -EAGAIN;
	if (rc == -EBUSY) {
		int full = rx_set_aside(fabric, peer);
		if (full != 0)
			return full;
	}
	if (rc != -EAGAIN)
		peer_free(fabric, peer);
	return rc;
}

void fabric_peer_end(struct fabric *fabric, struct peer *peer)
{
	struct event dropped[READ_MAX];
	int rc = 0;

	peer->closing = true;
	half_close(fabric, &peer->tx);
	for (int i = 0; i < 1000 && peer->rx.ep != NULL && fabric->modes.ends_alone; i++) {
		rc = rx_quiesce(fabric, peer, false);
		if (rc != -EAGAIN)
			break;
		rx_read(fabric, peer, dropped, READ_MAX);
		sleep_ns(200000);
	}
	/* Where the table is full too: a NIC's close can't fail, and a crash is worse than a leak.
	 */
	if (rc != 0 && rx_set_aside(fabric, peer) != 0) {
		peer->set_aside = true;
		fabric->leaked = true;
	}
	peer_free(fabric, peer);
}
