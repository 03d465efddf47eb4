/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to verbs*.c, the only files that include libibverbs' headers.
 *
 * verbs.c          a NIC: open and close
 * verbs_data.c     post and poll: work requests, completions, receives and credits
 * verbs_peer.c     a peer: one RC queue pair for both directions, and the fence
 * verbs_reg.c      how memory is registered
 * verbs_events.c   what the device tells by itself: ports, errors, addresses
 * verbs_device.c   which device and port a name means; what this host offers
 * verbs_gid.c      which entry of a port's GID table, and why (pure)
 *
 * Credits.  Each write takes one receive at its target, and without one it fails.  All receives
 * are in one shared queue (SRQ) that is kept full; each peer is given a share of it when it is
 * opened, and the shares never exceed it:
 *
 *   share = window + VERBS_CREDITS_MAX
 *
 * The window travels in the address: a sender has at most that many writes that the receiver
 * hasn't given back.  They are given back a quarter of the window at a time, when their
 * completions have been taken out and new receives stand in their place, by an empty SEND whose
 * immediate counts all writes taken so far.  It takes a receive too: at most
 * VERBS_CREDITS_MAX can be under way, since each answers a quarter of the window.  So neither the
 * SRQ nor the completion queue can run over, however seldom a receiver polls.
 */
#ifndef TRANSPORT_VERBS_H
#define TRANSPORT_VERBS_H

#include <infiniband/verbs.h>

#include "lib/transport/transport.h"

#define VERBS_GIDS_MAX	    256	  /* entries of one port's table that are looked at */
#define VERBS_OPS_MAX	    1024u /* unreported ops per NIC */
#define VERBS_RECEIVES_MAX  16384u
#define VERBS_RECEIVES_MIN  256u /* a device with fewer is of no use */
#define VERBS_CREDITS_MAX   4u	 /* credits to one peer that may be under way */
#define VERBS_SHARE_MAX	    128u /* receives for one peer */
#define VERBS_SHARE_MIN	    8u
#define VERBS_BATCH	    64	 /* completions taken, and receives posted, at once */
#define VERBS_QUIET_MS	    20	 /* from a queue pair's error to its last completion */
#define VERBS_PORT_CHECK_MS 1000 /* where the driver tells nothing */

/* ---------------------------------------------------------------- verbs_gid.c */

/* What connections of a port are made from.  On InfiniBand the LID routes, and the GID serves
 * only between subnets; on Ethernet the GID is everything. */
struct verbs_gid {
	union ibv_gid raw;
	uint8_t index;
	uint8_t type;		      /* enum ibv_gid_type */
	uint32_t netdev;	      /* interface index; 0: none */
	char address[48];	      /* "10.0.1.1", "fd00::1" */
	char reason[NIC_TROUBLE_MAX]; /* "GID 1 (RoCE v2, 10.0.1.1), the first with ..." */
};

/*
 * Chooses from a port's table: RoCE v2 with a routable IPv4 address, then IPv6, then an InfiniBand
 * GID, then RoCE v1 that isn't link-local; within a kind the lowest index.  wanted is the index
 * that the user insists on, or negative.  -ENODEV: reason says what is there instead.
 */
int verbs_gid_choose(const struct ibv_gid_entry *entries, uint32_t count, int wanted,
		     struct verbs_gid *gid_out);

/* ---------------------------------------------------------------- verbs_device.c */

/* A device's name as nic_open gets it: "mlx5_0/1?gid=3&mtu=1024". */
struct verbs_options {
	char device[64];
	uint8_t port; /* 0: the first that is active */
	char subnet[NIC_NAME_MAX];
	int gid; /* -1: chosen from the table */
	int mtu; /* bytes; 0: the port's */
	int service_level, traffic_class;
	int timeout, retries;
	/* For tests */
	int rnr_retries;
	int cq;	      /* entries; 0: what everything in flight needs */
	int receives; /* -1: what all windows need */
	int key;      /* the keys that peers are told differ in these bits */
	int past;     /* the addresses are so much too high */
};

struct verbs_port {
	uint8_t number;
	struct ibv_port_attr attr;
	struct verbs_gid gid;
	char reason[NIC_TROUBLE_MAX]; /* why this port: "the first active of 2" */
};

int verbs_options_parse(struct verbs_options *options, const char *device, struct ws_error *err);
/* *context_out is the caller's to close, also where the rest fails. */
int verbs_port_open(const struct verbs_options *options, struct ibv_context **context_out,
		    struct verbs_port *port_out, struct ws_error *err);
/* Reads the port's GID table again. */
int verbs_gid_scan(struct ibv_context *context, const struct verbs_port *port, int wanted,
		   struct verbs_gid *gid_out);
/* Where the rails of a run are paired: "10.0.1.0/24", "fd00:0:0:1::/64", "ib fe80::/64". */
void verbs_subnet(const struct verbs_gid *gid, char subnet[NIC_NAME_MAX]);
uint64_t verbs_mbps(const struct ibv_port_attr *attr); /* 0 where the code is unknown */

/* ---------------------------------------------------------------- a NIC, its peers, its memory */

/* An op from post to its event.  Its address is the work request's wr_id. */
struct verbs_op {
	struct verbs_op *next; /* in the list of the free, or of those that failed */
	struct peer *peer;
	uint64_t id;
};

struct verbs_mr {
	struct ibv_mr *mr;
	struct verbs_mr *previous, *next;
};

struct peer {
	struct verbs *verbs;
	struct ibv_qp *qp;
	uint32_t psn;	/* my first packet's number */
	uint32_t share; /* of my receives */

	/* As a sender.  The counts wrap. */
	uint32_t window;     /* the peer's; 0: not connected */
	uint32_t posted;     /* writes given to the queue pair */
	uint32_t given_back; /* of those, by the peer */
	uint32_t queued;     /* of those, not yet completed */
	uint32_t unreported; /* ops taken whose event hasn't been handed out */

	/* As a receiver. */
	uint32_t landed;    /* writes of the peer that were taken out */
	uint32_t credited;  /* as I last told it */
	bool credit_queued; /* and that isn't completed */

	bool closing;
	bool last_seen;	      /* no completion of its receives will come any more */
	uint64_t error_at_ns; /* when peer_close moved it to the error state */
	bool settled;	      /* everything is completed, but perhaps not yet taken out */
	uint64_t settled_at;  /* verbs->emptied then */
	int lost;	      /* what later ops fail with; 0: connected */
	const char *reason;   /* with it; static */
};

struct verbs {
	struct nic nic; /* first */
	struct verbs_options options;
	struct verbs_port port;
	struct ibv_context *context;
	struct ibv_td *thread; /* NULL: the device has none */
	struct ibv_pd *pd;
	struct ibv_pd *parent; /* pd with the thread domain; NULL: as above */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;

	struct verbs_op *ops; /* owned; nic.ops_in_flight_max */
	struct verbs_op *free;
	struct verbs_op *failed, **failed_end;	  /* taken, but never given to the device */
	struct ibv_recv_wr receives[VERBS_BATCH]; /* a chain, to be cut where it should end */
	struct verbs_mr *mrs;

	struct peer **peers; /* owned, each too */
	uint32_t peer_count, peer_room;
	struct peer **by_number;		/* owned; hashed by queue pair number, half empty */
	uint32_t by_number_count;		/* a power of two */
	uint32_t receives_total, receives_free; /* free: in no peer's share */
	uint32_t queue_entries;			/* of a send queue */
	uint32_t completions;			/* entries of the completion queue */

	bool armed;	  /* the channel will tell of the next completion, or has */
	bool told;	  /* completions came since it was armed: the channel says so, or will */
	uint64_t emptied; /* how often the completion queue was found empty */
	uint32_t polls;	  /* since the device was asked for news; empty ones count more */
	uint64_t port_checked_ns, down_since_ns;
	bool changed; /* nic.down or nic.trouble: an EVENT_NIC is due */
	int lost;     /* the NIC: what post and poll return; 0: it works */
};

static inline struct verbs *verbs_of(struct nic *nic)
{
	return (struct verbs *)nic;
}

/* ---------------------------------------------------------------- verbs_data.c */

/* What a work request was, in the low bits of its wr_id: the only thing that an error completion
 * tells.  The rest is the address of the op, or of the peer. */
enum wr_kind { WR_OP, WR_CREDIT, WR_RECEIVE };
#define WR_KIND_MASK UINT64_C(3)

int verbs_post(struct nic *nic, const struct op *ops, int count);
int verbs_poll(struct nic *nic, struct event *events_out, int count);
/* Up to so many, until the queue is full: that isn't an error, it is what is wanted. */
void verbs_receives_post(struct verbs *verbs, uint32_t count);

/* ---------------------------------------------------------------- verbs_peer.c */

int verbs_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
		    struct ws_error *err);
int verbs_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
		       struct ws_error *err);
int verbs_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon);
void verbs_peer_free(struct verbs *verbs, struct peer *peer); /* its ops go unreported */
struct peer *verbs_peer_find(const struct verbs *verbs, uint32_t number); /* or NULL */
/* Ends what can be sent to it; the first reason stays. */
void verbs_peer_lose(struct peer *peer, int status, const char *reason);

/* ---------------------------------------------------------------- verbs_reg.c */

int verbs_reg(struct nic *nic, const struct ws_memory *memory, enum mr_use use, struct mr *mr,
	      struct ws_error *err);
void verbs_dereg(struct nic *nic, struct mr *mr);

/* ---------------------------------------------------------------- verbs_events.c */

/* Says what is wrong now; the next poll yields an EVENT_NIC. */
void verbs_trouble(struct verbs *verbs, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The NIC is lost: what post and poll return from now on.  Nothing lands over it any more. */
void verbs_lose(struct verbs *verbs, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Takes what the device has told; asks it for its port's state now and then. */
void verbs_events_take(struct verbs *verbs);
void verbs_port_check(struct verbs *verbs);
/* Reads the GID table again, before a connection is made from it.  -ENODEV: no GID is left. */
int verbs_gid_renew(struct verbs *verbs, struct ws_error *err);

#endif
