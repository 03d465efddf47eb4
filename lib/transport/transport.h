/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided writes with an immediate: nine functions make a transport (../../README.md has the
 * picture, README.md beside this file the rules for whoever writes one).
 *
 * Life of a NIC:
 *   1. nic_open finds the transport by name, allocates nic_size bytes and calls open.
 *   2. reg makes memory reachable: what peers need to write into it goes into struct mr.
 *   3. peer_open makes my half of a connection; its address travels over the link; peer_connect
 *      takes the other's.  Both halves must be connected before either side posts.
 *   4. post hands over writes, poll yields their ends and the immediates of others' writes.
 *   5. peer_close fences a peer; dereg; nic_close.
 *
 * Promises:
 *   - every op taken gives exactly one SENT or FAILED, also when its peer or NIC is closed
 *     (peer_close reports them through poll before it returns 0);
 *   - a write gives one IMM at the peer, after its bytes are visible to a thread that acquires
 *     what the poller released;
 *   - no order of any kind, neither between ops, nor between IMM and SENT;
 *   - a SENT is not a delivery: only the receiver's IMM is;
 *   - an op is never split; an op of 0 bytes still delivers its imm;
 *   - nothing blocks but open, reg, dereg and close, and peer_connect of verbs over RoCE: for a
 *     round trip, or, where nobody answers to the peer's address, until the kernel gives it up
 *     after two seconds at most (-ETIMEDOUT).
 *
 * Threads: a NIC belongs to one thread at a time (the side's I/O thread).
 */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include "lib/base/base.h"

#define NIC_NAME_MAX	  96
#define NIC_TROUBLE_MAX	  160
#define ADDRESS_BYTES_MAX 256

struct transport;
struct peer; /* a transport's own; one per connected NIC pair */

/* One end of a connection, as opaque bytes for the other end's peer_connect. */
struct address {
	uint16_t count;
	uint8_t bytes[ADDRESS_BYTES_MAX];
};

/* What registered memory is for.  Into a source nobody can write, neither by mistake nor with a
 * stolen key; and since it is shared with nobody it may be of any kind that the NIC can read. */
enum mr_use { MR_SOURCE, MR_TARGET };

/* Registered memory.  key and base are what a peer puts into struct op; they are secrets: they
 * travel only over the link and are never logged. */
struct mr {
	struct ws_memory memory; /* borrowed until dereg */
	uint64_t key;		 /* 0: a source */
	uint64_t base;		 /* how a peer must spell the address of memory's first byte */
	void *local;		 /* the transport's own */
	const char *path; /* how it is reached, static: "host", "dma-buf", "peermem", "memfd",
			   * "process_vm_writev", "CUDA IPC", "CUDA"; for reports */
};

/* What a transport embeds first in its NIC.  Filled by open, constant afterwards. */
struct nic {
	const struct transport *transport;
	char name[NIC_NAME_MAX];   /* for people: "tcp 127.0.0.1", "mlx5_0 port 1" */
	char subnet[NIC_NAME_MAX]; /* rails are paired where this is equal */
	uint64_t mbps;		   /* line rate in Mb/s, for shares; 0 = unknown */
	uint64_t op_bytes_max;
	uint32_t ops_in_flight_max; /* post takes no more than this many unreported ops */
	uint32_t imm_bytes;	    /* at least 4 */
	bool gpu_memory;	    /* reg takes WS_CUDA */
	bool fences_one_peer;	    /* else peer_close of one fences all of this NIC's peers */
	int wait_fd;		    /* readable when poll may yield something; to be waited for only
				     * right after a poll that returned 0; -1: only polling tells */
	bool same_host;		    /* joins only processes of one host: a peer that is paired over
				     * it is written to over no other rail */
	uint64_t protocol;	    /* both ends of a connection must have the same: a digest of
				     * provider, API version and modes */
	/* These two may change inside poll, which then yields an EVENT_NIC. */
	bool down;		       /* its port or link: ops fail until it is up again; or the
					* GPU that does its work: for ever */
	char trouble[NIC_TROUBLE_MAX]; /* the last thing that went wrong, as part of a sentence:
					* "port 1 is down"; empty: nothing has */
};

/* One write.  All pointers are borrowed until post returns; memory until SENT or FAILED. */
struct op {
	struct peer *peer;
	const void *local;	   /* may be NULL where bytes is 0 or the op is placed */
	const struct mr *local_mr; /* the registration that holds local; may be NULL with local */
	uint64_t remote;	   /* the peer's mr.base plus an offset */
	uint64_t remote_key;
	uint64_t bytes;
	uint64_t id; /* comes back in the op's event */
	uint32_t imm;
	bool placed; /* bytes are at the peer already; only the imm is to be delivered */
};

enum event_kind {
	EVENT_SENT = 1,
	EVENT_FAILED,
	EVENT_IMM,
	EVENT_NIC /* the NIC's own: what is in nic->down and nic->trouble has changed */
};

struct event {
	enum event_kind kind;
	int status;	    /* FAILED: the negative errno; -ECANCELED when the peer was closed */
	uint64_t id;	    /* SENT, FAILED: the op's */
	const char *reason; /* FAILED: static or until its peer is closed, the fabric's own words
			     * ("remote access error"), or NULL */
	uint32_t imm;	    /* IMM */
	struct peer
		*peer; /* SENT, FAILED: the op's; IMM: the writer where the NIC knows it, or NULL */
};

struct transport {
	const char *name;
	size_t nic_size; /* bytes of the struct that begins with struct nic */

	/* device is the transport's own spelling of a NIC (see nic_open).  May fail half way, and
	 * leaves what close can take.  Blocks. */
	int (*open)(struct nic *nic, const char *device, struct ws_error *err);
	/* From any state, also zeroed.  Peers and registrations end with it, unreported ops too. */
	void (*close)(struct nic *nic);
	/* *mr is the caller's storage and must stay in place until dereg.  -ENOTSUP for memory this
	 * NIC can't reach, -ENOSPC for a limit, with need, allowance and remedy in the sentence. */
	int (*reg)(struct nic *nic, const struct ws_memory *memory, enum mr_use use, struct mr *mr,
		   struct ws_error *err);
	void (*dereg)(struct nic *nic, struct mr *mr);
	int (*peer_open)(struct nic *nic, struct peer **peer_out, struct address *address_out,
			 struct ws_error *err);
	/* -EPROTO for an address no transport of this kind makes. */
	int (*peer_connect)(struct nic *nic, struct peer *peer, const struct address *address,
			    struct ws_error *err);
	/*
	 * The fence.  Never blocks.  A peer has two roles, and the fence is the same for both:
	 *
	 *   - the first call closes my sending side at once; its unreported ops come as FAILED
	 *     -ECANCELED through poll.  No op may be posted to peer any more, and immediates from
	 *     it are dropped, not reported.  Now the side may say quiet to the peer over the link;
	 *   - then my receiving side is closed, as soon as nothing can land over it any more: where
	 *     the transport can end the connection alone (loop, fabric over tcp) whatever the peer
	 *     does, else when the peer has said quiet, plus 50 ms.
	 *
	 * quiet: the peer has said that it has called peer_close.  abandon: that will never be
	 * heard; give the receiving side up if it can't be ended.
	 *
	 * 0: every op of mine to peer has been reported, none of its earlier writes can land, *peer
	 * is gone.  -EAGAIN: poll, and call again.  -EBUSY, only with abandon: as 0, but the
	 * receiving endpoint was set aside, never to be polled or closed until the process ends;
	 * where nic->same_host: memory into which the peer might still have stored got other
	 * pages at the same address, with the same content, so on NICs of other transports all
	 * that is registered must be registered again before they are used.
	 * -ENOSPC, only with abandon: no more may be set aside; the NIC must be closed.
	 * -ETIMEDOUT: a GPU that carries out writes to the peer has hung for a minute.
	 */
	int (*peer_close)(struct nic *nic, struct peer *peer, bool quiet, bool abandon);
	/* Takes ops in order and returns how many it took; 0: full, poll first; negative: NIC lost.
	 */
	int (*post)(struct nic *nic, const struct op *ops, int count);
	/* Returns how many events it wrote; 0: nothing now; negative: NIC lost.  Never blocks. */
	int (*poll)(struct nic *nic, struct event *events_out, int count);
};

/* The transports built in, ended by NULL. */
extern const struct transport *const transports[];
const struct transport *transport_find(const char *name); /* NULL if it isn't built in */

/*
 * Opens a NIC: "verbs" with device "mlx5_0/1" (RDMA device/port), "fabric" with "tcp/127.0.0.1"
 * (provider/local address or interface or domain), "ipc" with "host" (this one), "loop" with
 * "net/name" (a network inside this process), "fault" with "seed=1,drop=0.01:fabric:tcp/127.0.0.1"
 * (rules, then the wrapped transport and its device).
 * *nic_out is NULL on failure.
 */
int nic_open(struct nic **nic_out, const char *transport, const char *device, struct ws_error *err);
void nic_close(struct nic *nic); /* NULL too */

/*
 * One NIC of this host as the `nics` command sees it.  nics_list fills the first part; the second
 * is topology.h's nics_place and nics_choose.
 */
struct nic_info {
	char transport[16], device[NIC_NAME_MAX]; /* nic_open's */
	char subnet[NIC_NAME_MAX], state[32];
	char skipped[NIC_TROUBLE_MAX]; /* why it isn't used by default; empty if it is */
	char rdma[64], netdev[32];     /* its devices in the kernel: "mlx5_0", "ens1f0"; or empty */
	char gid[NIC_TROUBLE_MAX];     /* verbs: the GID or LID chosen, and why; or empty */
	uint64_t mbps;
	uint32_t mtu; /* bytes; 0 unknown */

	char pci[16];	 /* "0000:18:00.0"; empty: not on PCI, or unknown */
	char driver[32]; /* "mlx5_core"; empty: unknown */
	int numa;	 /* -1 unknown */
	uint64_t gpus;	 /* bit i: it serves topology->gpus[i] */
	char near[48];	 /* how far the chosen is from whom it serves: "same switch"; or empty */
};

/* What this host offers to a transport and provider; *infos_out is in arena.  Those that can't
 * or shouldn't be used by anybody say so in skipped.  "loop" and "fault" offer nothing. */
int nics_list(struct arena *arena, const char *transport, const char *provider,
	      struct nic_info **infos_out, uint32_t *count_out, struct ws_error *err);

#endif
