/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One write.  Nothing here waits for the peer, and the peer runs no code: whatever must be checked
 * is checked by the sender, against what the peer's door exports.
 *
 * The order is the fence's (README.md): say busy, then look whether the receiver has closed; and
 * the memory's: copy, then look whether it was another's meanwhile; only then the immediate.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/transport/ipc.h"

#define PIECE_BYTES (UINT64_C(512) << 10) /* which process_vm_writev pins at once */

/* OP_QUEUED: a GPU carries it out, and ipc_gpu.c reports it. */
enum outcome { OP_SENT, OP_FAILED, OP_NOT_TAKEN, OP_QUEUED };

void ipc_report(struct ipc *ipc, struct peer *peer, uint64_t id, const struct failure *failure)
{
	ipc->done[(ipc->done_head + ipc->done_count++) % IPC_OPS_MAX] = (struct event){
		.kind = failure == NULL ? EVENT_SENT : EVENT_FAILED,
		.status = failure == NULL ? 0 : failure->status,
		.reason = failure == NULL ? NULL : failure->reason,
		.id = id,
		.peer = peer,
	};
	peer->unreported++;
}

static struct failure failure_of(const struct peer *peer)
{
	return (struct failure){.status = peer->lost, .reason = peer->reason};
}

static void died(struct peer *peer)
{
	ipc_peer_lose(peer, -ECONNRESET, "the peer process %d has died", (int)peer->pid);
}

/* The peer's region that op names, looked up once and again when the peer has changed it. */
static enum outcome view_find(struct peer *peer, const struct op *op, int device,
			      struct view **view_out, struct failure *failure)
{
	uint32_t index = op->remote_key % IPC_REGIONS_MAX;
	struct view *view = &peer->views[index];
	uint32_t serial =
		atomic_load_explicit(&peer->door->regions[index].serial, memory_order_acquire);
	bool again, fits = view->key != 0 && view->key == op->remote_key && view->serial == serial;

	*failure = (struct failure){.status = -EIO};
	*view_out = view;
	/* What the GPU may be writing into stays mapped until it is done. */
	if (!fits && view->key != 0 && peer->flights > 0)
		return OP_NOT_TAKEN;
	if (!fits && !shared_view(view, peer->door, peer->pid, op->remote_key, device, &again,
				  &failure->reason))
		return again ? OP_NOT_TAKEN : OP_FAILED;
	uint64_t offset = op->remote - view->base;
	if (offset > view->bytes || op->bytes > view->bytes - offset) {
		failure->reason = "the write is not inside the memory that the peer exports";
		return OP_FAILED;
	}
	if (view->memory == NULL && op->bytes > 0 && !op->placed && peer->call_error != 0) {
		failure->reason =
			"process_vm_writev into the peer isn't allowed (yama, or undumpable)";
		return OP_FAILED;
	}
	return OP_SENT;
}

bool ipc_view_holds(const struct peer *peer, const struct view *view)
{
	return atomic_load(&peer->door->regions[view->key % IPC_REGIONS_MAX].serial) ==
	       view->serial;
}

/*
 * The gate's element comes first: where the receiver has shut it, nothing behind it is written.
 * The kernel pins all pages of an element, copies, and lets go of them: what it knows of each page
 * should still be in the cache then.
 */
static enum outcome call_write(struct peer *peer, const struct op *op, struct failure *failure)
{
	static const uint64_t knock = 1;
	struct iovec from[2] = {
		{.iov_base = (void *)(uintptr_t)&knock, .iov_len = sizeof(knock)},
		{.iov_base = (void *)(uintptr_t)op->local, .iov_len = op->bytes},
	};
	struct iovec to[1 + IPC_OP_BYTES_MAX / PIECE_BYTES] = {
		{.iov_base = (void *)(uintptr_t)peer->gate_there, .iov_len = sizeof(knock)},
	};
	unsigned long count = 1;

	for (uint64_t at = 0; at < op->bytes; at += PIECE_BYTES)
		to[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)(op->remote + at),
					     .iov_len = MIN(PIECE_BYTES, op->bytes - at)};
	ssize_t done = process_vm_writev(peer->pid, from, 2, to, count, 0);

	if (done >= 0 && (size_t)done == sizeof(knock) + op->bytes)
		return OP_SENT;
	if (done < 0 && errno == ESRCH) {
		died(peer);
		*failure = failure_of(peer);
	} else if (done < 0 && errno == EPERM) {
		failure->reason = "process_vm_writev into the peer isn't allowed any more";
	} else {
		failure->reason =
			"process_vm_writev: the peer's memory isn't mapped, or the source "
			"isn't";
	}
	return OP_FAILED;
}

static enum outcome bytes_write(struct peer *peer, const struct op *op, const struct view *view,
				struct failure *failure)
{
	if (op->placed || op->bytes == 0)
		return OP_SENT;
	if (view->memory == NULL)
		return call_write(peer, op, failure);
	ipc_copy(view->memory + (op->remote - view->base), op->local, op->bytes);
	return OP_SENT;
}

/* False: the ring is full, or (then the peer is lost) its reader counts nonsense. */
static bool ring_has_room(struct peer *peer)
{
	uint32_t taken = atomic_load_explicit(&peer->out_head->taken, memory_order_acquire);
	uint32_t filled = peer->put - taken + peer->flights; /* each of which will take a slot */

	if (filled > IPC_RING_SLOTS)
		ipc_peer_lose(peer, -EPROTO, "the peer process %d has broken its ring",
			      (int)peer->pid);
	return filled < IPC_RING_SLOTS;
}

static void ring_put(struct peer *peer, uint32_t imm)
{
	atomic_store_explicit(&peer->out_tail->imms[peer->put % IPC_RING_SLOTS], imm,
			      memory_order_relaxed);
	peer->put++;
	atomic_store(&peer->out_tail->put, peer->put);
}

/* Between busy and idle: what the receiver's fence has to know of.  Each look is behind its store
 * in the one order of all that is sequentially consistent, at the receiver the other way round. */
static enum outcome write_fenced(struct ipc *ipc, const struct op *op, const struct view *view,
				 bool by_gpu, struct failure *failure)
{
	struct peer *peer = op->peer;
	uint32_t busy = by_gpu || peer->flights > 0 ? RING_QUEUED : RING_IDLE;

	if (!by_gpu)
		busy |= view->memory != NULL ? RING_STORING : RING_CALLING;
	atomic_store(&peer->out_tail->busy, busy);
	if (atomic_load(&peer->out_head->closed) != 0) {
		ipc_peer_lose(peer, -ECONNRESET, "the peer process %d has closed the connection",
			      (int)peer->pid);
		*failure = failure_of(peer);
		return OP_FAILED;
	}
	if (!ipc_view_holds(peer, view))
		return OP_NOT_TAKEN;
	if (by_gpu) {
		ipc_gpu_write(ipc, op, view);
		return OP_QUEUED;
	}
	enum outcome outcome = bytes_write(peer, op, view, failure);
	if (outcome != OP_SENT)
		return outcome;
	/* Pages that were replaced meanwhile may lack what I wrote: once more, into the new ones.
	 * The store puts my bytes in front of that look. */
	atomic_store(&peer->out_tail->busy, busy);
	if (!ipc_view_holds(peer, view))
		return OP_NOT_TAKEN;
	ring_put(peer, op->imm);
	return OP_SENT;
}

static bool is_gpu_write(const struct op *op, const struct view *view)
{
	return op->bytes > 0 && !op->placed &&
	       (view->is_gpu || op->local_mr->memory.place == WS_CUDA);
}

static enum outcome op_write(struct ipc *ipc, const struct op *op, struct failure *failure)
{
	struct peer *peer = op->peer;
	struct ring_tail *ring = peer->out_tail;
	struct view *view;

	enum outcome outcome = view_find(peer, op, ipc_gpu_device(ipc), &view, failure);
	if (outcome != OP_SENT)
		return outcome;
	bool by_gpu = is_gpu_write(op, view);
	if (by_gpu && (ipc->gpu == NULL || view->memory == NULL)) {
		failure->reason = ipc->gpu == NULL
					  ? "the peer exported GPU memory after it was connected"
					  : "a GPU can't write into host memory that isn't "
					    "ws_memory_alloc's";
		return OP_FAILED;
	}
	atomic_store_explicit(&ring->at, op->remote, memory_order_relaxed);
	atomic_store_explicit(&ring->bytes, op->placed ? 0 : op->bytes, memory_order_relaxed);
	outcome = write_fenced(ipc, op, view, by_gpu, failure);
	atomic_store_explicit(&ring->busy, peer->flights > 0 ? RING_QUEUED : RING_IDLE,
			      memory_order_release);
	return outcome;
}

/*
 * Only a receiver that may block is woken: one that polls finds the immediate by itself.  And once:
 * before it blocks it takes all that is in the ring, so as long as it hasn't taken what I saw it
 * awake for, or woke it for, it takes what came after that, too.
 */
static void peer_wake(struct peer *peer)
{
	uint32_t left = peer->woken - atomic_load(&peer->out_head->taken);

	if (left > 0 && left <= IPC_RING_SLOTS)
		return;
	if (peer->put != peer->woken && atomic_load(&peer->door->asleep) != 0) {
		ssize_t written = write(peer->wake_fd, "", 1);
		(void)written; /* a full pipe wakes as well */
	}
	peer->woken = peer->put;
}

void ipc_hand_over(struct peer *peer, uint32_t imm)
{
	ring_put(peer, imm);
	peer_wake(peer);
}

static enum outcome post_one(struct ipc *ipc, const struct op *op)
{
	struct peer *peer = op->peer;
	struct failure failure = {0};
	enum outcome outcome = OP_NOT_TAKEN;

	assert(peer->connected && !peer->closing);
	assert(op->bytes <= IPC_OP_BYTES_MAX);
	if (ipc->done_count + ipc_gpu_flights(ipc) >= IPC_OPS_MAX)
		return OP_NOT_TAKEN;
	if (peer->lost == 0 && ring_has_room(peer))
		outcome = op_write(ipc, op, &failure);
	/* A NIC that others keep busy doesn't look for deaths; who waits for a dead one does. */
	else if (peer->lost == 0 && ipc_peer_has_died(peer))
		died(peer);
	if (outcome == OP_NOT_TAKEN && peer->lost != 0) {
		failure = failure_of(peer);
		outcome = OP_FAILED;
	}
	if (outcome == OP_SENT || outcome == OP_FAILED)
		ipc_report(ipc, peer, op->id, outcome == OP_FAILED ? &failure : NULL);
	return outcome;
}

int ipc_post(struct nic *nic, const struct op *ops, int count)
{
	struct ipc *ipc = ipc_of(nic);
	uint64_t bytes = 0;
	int taken = 0;

	/* The copying is done here: one call shall neither keep the thread for long, nor a receiver
	 * that sleeps, which is woken at its end: that takes as long as to copy 100 KiB. */
	while (taken < count && bytes < IPC_POST_BYTES) {
		enum outcome outcome = post_one(ipc, &ops[taken]);
		if (outcome == OP_NOT_TAKEN)
			break;
		bytes += outcome == OP_QUEUED ? 0 : ops[taken].bytes;
		taken++;
	}
	ipc_gpu_launch(ipc);
	for (int i = 0; i < taken; i++)
		peer_wake(ops[i].peer);
	if (taken > 0)
		ipc_wake_self(ipc);
	return taken;
}
