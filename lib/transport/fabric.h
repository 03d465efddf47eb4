/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to fabric*.c.
 *
 * fabric.c         a NIC: open, registrations, post, poll
 * fabric_peer.c    a peer: two endpoints, and the fence
 * fabric_device.c  which libfabric domain a device's name means
 * fabric_modes.c   what this provider needs and others don't
 *
 * Each peer has two halves, each an endpoint with a completion queue of its own: tx, over which
 * only this side writes, and rx, into which only the peer writes.  So a peer can be fenced
 * alone, an endpoint that is set aside isn't progressed by reading other peers' queues, and the
 * tx half can be closed at any moment: nothing is ever received over it but acknowledgements.
 * Where closing an endpoint is all that a fence takes (EFA) the two are one: tx does both.
 */
#ifndef TRANSPORT_FABRIC_H
#define TRANSPORT_FABRIC_H

#include "lib/transport/libfabric.h"
#include "lib/transport/transport.h"

#define FABRIC_API		FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)
#define FABRIC_OPS_MAX		1024  /* unreported ops per NIC */
#define FABRIC_NAME_BYTES_MAX	96    /* of an endpoint's name */
#define FABRIC_SET_ASIDE_MAX	32    /* endpoints per process that may be abandoned */
#define FABRIC_CONNECT_MS_MAX	10000 /* how long a peer may refuse the first op */
#define FABRIC_EMPTY_POLLS	8     /* until a poll prepares for blocking */
#define FABRIC_QUIET_MS		50    /* how long a quiet peer's endpoint is polled */
#define FABRIC_END_ALONE_MS_MAX 1000  /* how long the end of a shut connection may take */
#define FABRIC_STEP_MS_MAX	100   /* of that between two polls: it ends by them */

/* What libfabric hands back with a completion; its first member is the provider's to use. */
struct op_context {
	struct fi_context2 room;
	struct peer *peer; /* NULL: free */
	uint64_t id;
	int status;    /* of a done one: the FAILED event's */
	uint32_t next; /* free list */
	bool posted;   /* with libfabric; else done */
	bool warms;    /* no op of the caller's: nothing is told of it */
};

/* What a provider needs and others don't; fabric_modes.c says why. */
struct fabric_modes {
	uint64_t op_bytes_max;
	uint32_t queue_room;	/* completions a queue holds at least */
	bool delivery_complete; /* ask for it with each write */
	bool ends_alone;     /* a connection is a TCP socket of this process: it can be shut down */
	bool joined;	     /* one endpoint for both halves; closing it is the fence */
	bool warm_up;	     /* a first write of nothing at connect, which the receiver drops */
	bool own_descriptor; /* a write of nothing needs registered memory too */
	bool gpu_memory;     /* registered as FI_HMEM_CUDA */
	bool refuses_emulation; /* ask each endpoint whether the NIC does the writes */
};

struct half {
	struct fid_ep *ep;
	struct fid_cq *cq;
	int fd; /* the queue's, in the NIC's epoll; -1: none.  Owned by cq */
};

struct peer {
	struct half tx, rx;
	fi_addr_t tx_to;		     /* the peer's rx endpoint */
	fi_addr_t rx_from;		     /* the peer's tx endpoint */
	uint8_t name[FABRIC_NAME_BYTES_MAX]; /* of my rx endpoint */
	size_t name_bytes;
	uint32_t unreported;	    /* ops taken whose event hasn't been handed out */
	uint32_t posted;	    /* of those, still with libfabric */
	uint64_t refused_at_ns;	    /* since when the first op is refused; 0: it isn't */
	uint64_t warm_to, warm_key; /* the peer's page that a first write of nothing names */
	bool cold_out;		    /* the first write hasn't ended: no op is taken yet */
	bool warm_sent;		    /* but it is on its way */
	bool cold_in;		    /* the peer's first write hasn't come */
	bool connected, closing, set_aside;
	int lost;	      /* tx is closed: what later ops fail with */
	const char *reason;   /* and why, where that errno doesn't say it */
	uint64_t quiet_at_ns; /* when the peer said quiet */
	uint64_t asked_at_ns; /* when it was last looked whether its shut connections have ended */
	uint64_t shut_ns;     /* and for how long that has been waited for */
};

struct fabric {
	struct nic nic; /* first */
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fabric_modes modes;
	struct ws_memory page; /* owned; what writes of nothing name */
	struct mr page_mr;
	bool waits;  /* queues have an fd */
	int wake_fd; /* readable: poll again, though no queue's fd says so.  Owned */
	bool awake;
	bool unsettled;	      /* fi_trywait refused: even queues that wait for nothing are read */
	uint32_t empty_polls; /* since the last event */

	struct op_context *contexts; /* owned; nic.ops_in_flight_max */
	uint32_t free_first;	     /* UINT32_MAX: none */
	uint32_t *done;		     /* owned ring of contexts to report as FAILED */
	uint32_t done_head, done_count;

	struct peer **peers; /* owned, each too */
	struct fid **queues; /* owned; room for two per peer, for fi_trywait */
	uint32_t peer_count, peer_room, peer_next;
	struct fid_mr **mrs; /* owned; NULL entries are free */
	uint32_t mr_count, mr_room;
	bool leaked; /* an endpoint was set aside: its domain stays open for ever */
};

/* fabric_device.c: fills *info_out (fi_freeinfo it), what it needs, and the NIC's name, subnet and
 * speed. */
int fabric_device_find(const char *device, struct nic *nic, struct fi_info **info_out,
		       struct fabric_modes *modes_out, struct ws_error *err);

/* fabric_modes.c.  as_efa: as if the provider were EFA, for tests.  -ENOTSUP where it can't do
 * what a transport must. */
int fabric_modes_choose(const struct fi_info *info, const char *device, bool as_efa,
			struct fabric_modes *modes_out, struct ws_error *err);
/* The best offer, of this domain (NULL: of any); NULL if there is none. */
struct fi_info *fabric_offer_pick(struct fi_info *offers, const char *domain);
/* Before an endpoint is enabled, and afterwards. */
int fabric_endpoint_forbid(const struct nic *nic, struct fid_ep *ep, struct ws_error *err);
int fabric_endpoint_check(const struct nic *nic, const struct fabric_modes *modes,
			  struct fid_ep *ep, struct ws_error *err);
/* What the answer to "is a write emulated?" means; for the one above, and for tests. */
int fabric_emulation_check(const struct nic *nic, int rc, bool emulated, struct ws_error *err);

/* fabric.c: gives a context back, or queues it to be reported as FAILED. */
void fabric_context_free(struct fabric *fabric, struct op_context *context);
void fabric_context_fail(struct fabric *fabric, struct op_context *context, int status);
/* Posts the peer's first write, of nothing, where it is due. */
void fabric_warm_up(struct fabric *fabric, struct peer *peer);

/* fabric_peer.c.  fabric_tx_close ends the sending half; its unreported ops fail with status. */
void fabric_tx_close(struct fabric *fabric, struct peer *peer, int status);
void fabric_peer_end(struct fabric *fabric, struct peer *peer); /* for close; may take 200 ms */
int fabric_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
		     struct ws_error *err);
int fabric_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
			struct ws_error *err);
int fabric_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon);
/* Reads what the peer's queues have now; also by fabric_peer_end. */
int fabric_peer_poll(struct fabric *fabric, struct peer *peer, struct event *events_out, int count);

#endif
