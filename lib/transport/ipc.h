/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to ipc*.c: what two processes of one host share, and a NIC that joins them.
 *
 * ipc.c         a NIC: open, registrations, poll
 * ipc_post.c    one write: find the region, copy, hand the immediate over
 * ipc_copy.c    the copy
 * ipc_gpu.c     writes into a GPU's memory, or out of it: they end later
 * ipc_peer.c    a peer: connect, death, and the fence
 * ipc_shared.c  files of other processes, looked at before they are believed
 *
 * Each NIC has a door: a file that it alone writes and its peers map read-only, which says what
 * memory is exported and whether the NIC sleeps.  Each peer's half has a ring: a file of the
 * receiver's, through which that one sender hands its immediates over.  A ring's first part is
 * written by the receiver only, its second by the sender only.  Both are sealed, so neither end
 * can take pages away from the other.
 */
#ifndef TRANSPORT_IPC_H
#define TRANSPORT_IPC_H

#include <stdatomic.h>
#include <sys/types.h>

#include "lib/cuda/cuda.h"
#include "lib/transport/transport.h"

#define IPC_OP_BYTES_MAX (UINT64_C(16) << 20)
#define IPC_POST_BYTES	 (UINT64_C(4) << 20) /* a post that has copied so much ends */
#define IPC_OPS_MAX	 1024		     /* unreported ops per NIC */
#define IPC_RING_SLOTS	 1024u		     /* immediates not taken yet, per direction and peer */
#define IPC_REGIONS_MAX	 4096u		     /* a key's low 12 bits are its region's index */
#define IPC_PART_BYTES	 65536u		     /* at least a page, everywhere */
#define IPC_REASON_MAX	 96
#define IPC_EMPTY_POLLS	 8 /* until a poll prepares for blocking */
#define IPC_SHARE_WORDS	 (sizeof(struct cuda_share) / sizeof(uint64_t))
#define IPC_GRACE_MS	 20   /* a busy sender that was given up may end by itself for so long */
#define IPC_END_MS_MAX	 1000 /* until a sender that can't be stopped is reported so */
#define IPC_CLOSE_MS_MAX 100  /* how long the close of a NIC waits for busy senders */

/* What makes a file of a peer's believable: it is the one that its address spoke of. */
struct secret {
	uint64_t words[2];
};

/* ---------------------------------------------------------------- shared: the door */
struct door_file {
	_Atomic uint64_t at, bytes; /* in the memory and in the file */
	_Atomic uint32_t fd;	    /* of the exporting process */
};

/* An exported stretch of memory.  serial is odd while the rest changes. */
struct door_region {
	_Atomic uint32_t serial;
	_Atomic uint32_t file_count; /* 0: written by process_vm_writev, or a GPU's */
	_Atomic uint32_t is_gpu;     /* share says how to map it */
	_Atomic uint64_t key;	     /* 0: none */
	_Atomic uint64_t base;	     /* address in the exporting process */
	_Atomic uint64_t bytes;
	_Atomic uint64_t offset; /* of base in the files */
	struct door_file files[MEMORY_FILES_MAX];
	_Atomic uint64_t share[IPC_SHARE_WORDS]; /* a struct cuda_share */
};

struct door {
	struct secret secret;
	_Atomic uint32_t asleep;       /* the owner may block: write to its wake pipe */
	_Atomic uint32_t region_count; /* those behind were never used */
	struct door_region regions[IPC_REGIONS_MAX];
};

/* ---------------------------------------------------------------- shared: a ring */
struct ring_head { /* the receiver writes it */
	struct secret secret;
	_Atomic uint32_t closed; /* nothing may be written into the receiver any more */
	_Atomic uint32_t taken;	 /* immediates; counts up and wraps */
};

/* How it is writing: by stores into what it has mapped, or by process_vm_writev; and in any case by
 * work that a GPU has been given, which ends by itself, or will be. */
enum ring_busy { RING_IDLE = 0, RING_STORING = 1, RING_CALLING = 2, RING_QUEUED = 4 };

struct ring_tail {		    /* the sender writes it */
	_Atomic uint32_t put;	    /* immediates; counts up and wraps */
	_Atomic uint32_t busy;	    /* enum ring_busy, or-ed: in the middle of the write below */
	_Atomic uint64_t at, bytes; /* address in the receiver */
	_Atomic uint32_t imms[IPC_RING_SLOTS];
};

#define IPC_RING_BYTES (2 * (size_t)IPC_PART_BYTES)
_Static_assert(sizeof(struct ring_tail) <= IPC_PART_BYTES, "a ring's parts are apart");

/* ---------------------------------------------------------------- private */
/* A peer's region as I have it mapped.  key 0: not looked up. */
struct view {
	uint64_t key, base, bytes;
	uint32_t serial; /* of the door's entry when I read it */
	uint8_t *memory; /* where base is mapped here; NULL: process_vm_writev */
	void *map;	 /* owned; NULL for a GPU's memory */
	size_t map_bytes;
	bool is_gpu;
	bool is_far;	/* another GPU's than mine */
	bool is_opened; /* memory is owned: opened by share */
	int device;	/* that it was opened for */
	struct cuda_share share;
};

struct peer {
	/* I receive */
	int ring_fd;		   /* owned; for the peer to open */
	struct ring_head *in_head; /* owned mapping of both parts */
	struct ring_tail *in_tail;
	uint32_t taken; /* my own; what stands in the ring is for the sender */
	void *gate;	/* owned page: every process_vm_writev of the peer begins with it */

	/* I send */
	pid_t pid;
	int pid_fd;		 /* -1: not connected; readable when the process has ended */
	int wake_fd;		 /* the peer's pipe */
	const struct door *door; /* owned mapping */
	const struct ring_head *out_head; /* owned mapping of both parts */
	struct ring_tail *out_tail;
	uint32_t put;
	uint32_t woken; /* so many it takes before it blocks */
	uint64_t gate_there;
	int call_error;	    /* why process_vm_writev isn't allowed; 0: it is */
	struct view *views; /* owned; IPC_REGIONS_MAX */

	uint32_t unreported; /* events that poll hasn't given */
	uint32_t flights;    /* writes that the GPU is at */
	bool connected, closing, dead;
	int lost; /* what ops fail with; 0: nothing is wrong */
	char reason[IPC_REASON_MAX];
	uint64_t abandoned_at_ns; /* 0: it isn't */
	bool gate_shut;
};

struct ipc {
	struct nic nic;	   /* first */
	struct ipc *next;  /* of this process */
	struct door *door; /* owned mapping */
	int door_fd;
	int pipe_fds[2]; /* whoever writes wakes me */
	bool awake;	 /* the pipe has a byte, so that nobody blocks on it */
	bool untold;	 /* nic.trouble has changed, no EVENT_NIC has said so yet */
	uint32_t empty_polls;
	struct ipc_gpu *gpu; /* owned; NULL: no GPU's memory has been seen */
	struct event *done;  /* owned ring of IPC_OPS_MAX */
	uint32_t done_head, done_count;
	struct peer **peers; /* owned, each too */
	uint32_t peer_count, peer_room, peer_next;
};

static inline struct ipc *ipc_of(struct nic *nic)
{
	return (struct ipc *)nic;
}

/* ipc.c.  A caller that is about to block, or does, comes back. */
void ipc_wake_self(struct ipc *ipc);
void ipc_trouble(struct ipc *ipc, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Takes what is under [at, at + bytes) away from whoever has it mapped: memory_replace, and every
 * door of this process says so. */
int ipc_revoke(uint64_t at, uint64_t bytes);

/* ipc_copy.c */
void ipc_copy(void *to, const void *from, size_t bytes);

/* ipc_post.c */
struct failure {
	int status;
	const char *reason;
};

int ipc_post(struct nic *nic, const struct op *ops, int count);
/* The end of an op; failure NULL: it was sent. */
void ipc_report(struct ipc *ipc, struct peer *peer, uint64_t id, const struct failure *failure);
/* The peer's region is still what it was when the view was made: after a write, it has gone there.
 */
bool ipc_view_holds(const struct peer *peer, const struct view *view);
/* Hands an immediate over: there is room. */
void ipc_hand_over(struct peer *peer, uint32_t imm);

/* ipc_gpu.c.  One GPU per NIC: the first that memory is registered of, or else GPU 0. */
int ipc_gpu_open(struct ipc *ipc, int device, struct ws_error *err);
/* Waits for what the GPU is at. */
void ipc_gpu_close(struct ipc *ipc);
int ipc_gpu_device(const struct ipc *ipc); /* -1: none */
uint32_t ipc_gpu_flights(const struct ipc *ipc);
/* Some of them, and they will end: the GPU wasn't given up. */
bool ipc_gpu_is_at_work(const struct ipc *ipc);
/* Takes a write, which begins with this ipc_gpu_launch, or (while others are under way) with a
 * later one, of a poll. */
void ipc_gpu_write(struct ipc *ipc, const struct op *op, const struct view *view);
void ipc_gpu_launch(struct ipc *ipc);
/* A registration has ended: what is page-locked may not be any more. */
void ipc_gpu_forget(struct ipc *ipc);
/* Hands over the immediates of what is done.  After a fault, or a minute in which nothing has
 * ended, the NIC is down, and nic.trouble says why. */
void ipc_gpu_poll(struct ipc *ipc);

/* ipc_peer.c */
int ipc_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
		  struct ws_error *err);
int ipc_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
		     struct ws_error *err);
int ipc_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon);
void ipc_peer_end(struct ipc *ipc, struct peer *peer); /* for close; bounded by IPC_CLOSE_MS_MAX */
bool ipc_peer_has_died(const struct peer *peer);       /* a system call */
/* Ops to peer fail from now on. */
void ipc_peer_lose(struct peer *peer, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ipc_shared.c.  Opens what process pid has open as fd.  A negative errno. */
int shared_open(pid_t pid, uint32_t fd);
/* 0 if fd is a sealed file of at least so many bytes: touching a mapping can't be a SIGBUS. */
int shared_check(int fd, uint64_t bytes);
bool shared_is_pipe(int fd);
/* Maps the region of the key as its process's door describes it, a GPU's for work on device; false:
 * not exported, or (with *again_out) it is changing just now.  *reason_out says why not. */
bool shared_view(struct view *view, const struct door *door, pid_t pid, uint64_t key, int device,
		 bool *again_out, const char **reason_out);
void shared_view_close(struct view *view);
/* True if each thread of the process was seen stopped, or has ended. */
bool shared_process_stopped(pid_t pid);

#endif
