/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes that a GPU carries out: into a peer's GPU memory (CUDA IPC), or out of mine.  They end
 * after post has returned: what posts took is kept until there is use for one more launch, with a
 * mark behind it, and poll hands the immediates over once the mark has passed, so never before the
 * bytes.  From when a write was taken until the last one to its peer has ended, the ring says
 * queued.
 */
#include <errno.h>

#include "lib/transport/ipc.h"

/*
 * A launch is full: so it isn't told too late that its first writes are done.  Each costs 5 us in
 * which nothing is copied: 388 GB/s in launches of 48 MiB, 393 of 96, 395 of 192 (2 x H200).
 */
#define LAUNCH_COPIES 96u
#define LAUNCH_OPS    256u
#define LAUNCH_BYTES  (UINT64_C(192) << 20)
/* One is carried out, two stand behind it, since it takes a while until the engine comes round
 * again.  What is posted meanwhile becomes one launch. */
#define LAUNCHES_AHEAD 3u

struct flight {
	struct peer *peer;
	const struct view *view; /* stays as it is while the peer has flights */
	uint64_t id, mark;
	uint32_t imm;
};

struct ipc_gpu {
	struct cuda_queue queue; /* with the GPU's error, which is for ever */
	uint64_t moved_ns;	 /* when a flight last ended, or the first one began */
	uint32_t first, count;	 /* of flights */
	uint32_t marked;	 /* of count: those behind get theirs with the next launch */
	uint32_t copy_count;	 /* of copies: to be launched */
	uint64_t copy_bytes;
	const struct mr *from; /* of the last copy: only compared, and while there is one */
	const struct view *to;
	struct cuda_range locked; /* where a source of the host's was last; until a dereg */
	struct flight flights[IPC_OPS_MAX];
	struct cuda_copy copies[LAUNCH_COPIES];
};

int ipc_gpu_open(struct ipc *ipc, int device, struct ws_error *err)
{
	if (ipc->gpu != NULL && ipc->gpu->queue.device != device)
		return ws_fail(err, -ENOTSUP,
			       "%s works with GPU %d already, and not with GPU %d, too: a rank "
			       "has its params on one GPU",
			       ipc->nic.name, ipc->gpu->queue.device, device);
	if (ipc->gpu != NULL)
		return 0;
	struct ipc_gpu *gpu = mem_alloc(sizeof(*gpu));
	if (gpu == NULL)
		return ws_fail(err, -ENOMEM, "no memory for GPU %d on %s", device, ipc->nic.name);
	int rc = cuda_queue_open(&gpu->queue, device, err);
	if (rc != 0) {
		mem_free(gpu);
		return rc;
	}
	ipc->gpu = gpu;
	return 0;
}

void ipc_gpu_close(struct ipc *ipc)
{
	if (ipc->gpu == NULL)
		return;
	int device = ipc->gpu->queue.device;
	cuda_queue_close(&ipc->gpu->queue);
	for (uint32_t i = 0; i < ipc->peer_count; i++) {
		struct peer *peer = ipc->peers[i];
		/* What a stuck one was given may still be written: so the ring says until this
		 * process has ended. */
		if (peer->flights > 0 && !cuda_is_given_up(device))
			atomic_store_explicit(&peer->out_tail->busy, RING_IDLE,
					      memory_order_release);
		peer->flights = 0;
	}
	mem_free(ipc->gpu);
	ipc->gpu = NULL;
}

int ipc_gpu_device(const struct ipc *ipc)
{
	return ipc->gpu != NULL ? ipc->gpu->queue.device : -1;
}

uint32_t ipc_gpu_flights(const struct ipc *ipc)
{
	return ipc->gpu != NULL ? ipc->gpu->count : 0;
}

bool ipc_gpu_is_at_work(const struct ipc *ipc)
{
	return ipc_gpu_flights(ipc) > 0 && !cuda_is_given_up(ipc->gpu->queue.device);
}

static void launch(struct ipc_gpu *gpu)
{
	uint64_t mark = 0;
	int rc = cuda_queue_copy(&gpu->queue, gpu->copies, gpu->copy_count);
	gpu->copy_count = 0;
	gpu->copy_bytes = 0;
	if (rc == 0)
		rc = cuda_queue_mark(&gpu->queue, &mark);
	/* So many marks are ahead: a later poll finds one.  After an error mark 0 will do. */
	if (rc == -EAGAIN)
		return;
	for (; gpu->marked < gpu->count; gpu->marked++)
		gpu->flights[(gpu->first + gpu->marked) % IPC_OPS_MAX].mark = mark;
}

void ipc_gpu_launch(struct ipc *ipc)
{
	struct ipc_gpu *gpu = ipc->gpu;

	if (gpu == NULL || gpu->marked == gpu->count)
		return;
	if (gpu->queue.error.code != 0 || gpu->queue.marked - gpu->queue.passed < LAUNCHES_AHEAD)
		launch(gpu);
}

/* Behind the last one, or as a part of it where it goes on at both ends.  A registration of GPU
 * memory lies in one allocation, as CUDA wants of a copy; one of the host's may not: from is NULL
 * for those. */
static void copy_keep(struct ipc_gpu *gpu, const struct mr *from, const struct view *to,
		      const struct cuda_copy *copy)
{
	struct cuda_copy *last = &gpu->copies[gpu->copy_count - (gpu->copy_count > 0)];
	bool goes_on = gpu->copy_count > 0 && from != NULL && gpu->from == from && gpu->to == to &&
		       (uint8_t *)last->to + last->bytes == copy->to &&
		       (const uint8_t *)last->from + last->bytes == copy->from;

	gpu->copy_bytes += copy->bytes;
	gpu->from = from;
	gpu->to = to;
	if (goes_on)
		last->bytes += copy->bytes;
	else
		gpu->copies[gpu->copy_count++] = *copy;
}

/* All of it, at once: a kernel may be what reads it. */
static bool is_page_locked(struct ipc_gpu *gpu, const void *at, uint64_t bytes)
{
	if (!cuda_range_has(&gpu->locked, at, bytes))
		gpu->locked = cuda_range_of(at);
	return gpu->locked.kind == CUDA_PINNED && cuda_range_has(&gpu->locked, at, bytes);
}

void ipc_gpu_forget(struct ipc *ipc)
{
	if (ipc->gpu != NULL)
		ipc->gpu->locked = (struct cuda_range){0};
}

void ipc_gpu_write(struct ipc *ipc, const struct op *op, const struct view *view)
{
	struct ipc_gpu *gpu = ipc->gpu;
	bool from_gpu = op->local_mr->memory.place == WS_CUDA;
	const struct cuda_copy copy = {.to = view->memory + (op->remote - view->base),
				       .from = op->local,
				       .bytes = op->bytes,
				       .is_far = view->is_far || !from_gpu};

	if (gpu->count == 0)
		gpu->moved_ns = clock_ns();
	gpu->flights[(gpu->first + gpu->count++) % IPC_OPS_MAX] =
		(struct flight){.peer = op->peer, .view = view, .id = op->id, .imm = op->imm};
	op->peer->flights++;
	if (view->is_gpu && (from_gpu || is_page_locked(gpu, op->local, op->bytes)))
		copy_keep(gpu, from_gpu ? op->local_mr : NULL, view, &copy);
	else
		(void)cuda_queue_copy_host(&gpu->queue, &copy);
	if (gpu->copy_count == LAUNCH_COPIES || gpu->count - gpu->marked >= LAUNCH_OPS ||
	    gpu->copy_bytes >= LAUNCH_BYTES)
		launch(gpu);
}

static void flight_end(struct ipc *ipc, const struct flight *flight)
{
	struct ipc_gpu *gpu = ipc->gpu;
	struct peer *peer = flight->peer;
	const struct failure lost = {.status = peer->lost, .reason = peer->reason};
	const struct failure fault = {.status = -EIO, .reason = gpu->queue.error.text};
	static const struct failure moved = {
		.status = -EIO, .reason = "the peer's memory got other pages while it was written"};

	if (gpu->queue.error.code != 0) {
		ipc_report(ipc, peer, flight->id, &fault);
	} else if (peer->lost != 0) {
		ipc_report(ipc, peer, flight->id, &lost);
	} else if (!ipc_view_holds(peer, flight->view)) {
		ipc_report(ipc, peer, flight->id, &moved);
	} else {
		ipc_hand_over(peer, flight->imm);
		ipc_report(ipc, peer, flight->id, NULL);
	}
	/* Behind the immediate: who waits for idle finds it in the ring. */
	if (--peer->flights == 0)
		atomic_store_explicit(&peer->out_tail->busy, RING_IDLE, memory_order_release);
}

/* For ever, by this side's fault: no peer's. */
static void gpu_lost(struct ipc *ipc, const char *why)
{
	if (!ipc->nic.down)
		ipc_trouble(ipc, "%s", why);
	ipc->nic.down = true;
}

/* What is under way hasn't ended for so long that it may never, or somebody else has found so. */
static void stuck_look(struct ipc *ipc, uint64_t now)
{
	const struct ipc_gpu *gpu = ipc->gpu;
	int device = gpu->queue.device;
	struct ws_error why;

	if (now - gpu->moved_ns < cuda_stuck_ns() && !cuda_is_given_up(device))
		return;
	cuda_stuck(device, &why);
	gpu_lost(ipc, why.text);
}

void ipc_gpu_poll(struct ipc *ipc)
{
	struct ipc_gpu *gpu = ipc->gpu;

	while (gpu != NULL && gpu->marked > 0) {
		/* The clock first: this process may be stopped in between. */
		uint64_t now = clock_ns();
		struct flight flight = gpu->flights[gpu->first];
		int passed = cuda_queue_passed(&gpu->queue, flight.mark);
		if (passed == 0) {
			stuck_look(ipc, now);
			break;
		}
		if (passed < 0)
			gpu_lost(ipc, gpu->queue.error.text);
		gpu->first = (gpu->first + 1) % IPC_OPS_MAX;
		gpu->count--;
		gpu->marked--;
		gpu->moved_ns = now;
		flight_end(ipc, &flight);
	}
	ipc_gpu_launch(ipc); /* what was kept, or found no mark */
}
