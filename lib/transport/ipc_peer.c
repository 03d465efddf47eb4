/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One peer of an ipc NIC: its half of a connection, its death, and the fence.
 *
 * A peer is another process of this host.  Its number alone could mean a later process: it is
 * believed when a file of it has the secret that came with the address, which was looked at after
 * the pidfd was opened.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/transport/ipc.h"

#define ADDRESS_MAGIC UINT32_C(0x31495057)

struct remote {
	pid_t pid;
	uint32_t door_fd, ring_fd, wake_fd;
	struct secret door_secret, ring_secret;
	uint64_t gate;
};

void ipc_peer_lose(struct peer *peer, int status, const char *format, ...)
{
	va_list arguments;

	if (peer->lost != 0)
		return;
	va_start(arguments, format);
	vsnprintf(peer->reason, sizeof(peer->reason), format, arguments);
	va_end(arguments);
	peer->lost = status;
}

/* ---------------------------------------------------------------- open */

static void fd_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void unmap(const void *map, size_t bytes)
{
	if (map != NULL)
		munmap((void *)(uintptr_t)map, bytes);
}

/* Ends my sending half, so that connecting may be tried again. */
static void sender_close(struct ipc *ipc, struct peer *peer)
{
	for (uint32_t i = 0; peer->views != NULL && i < IPC_REGIONS_MAX; i++)
		shared_view_close(&peer->views[i]);
	unmap(peer->door, sizeof(*peer->door));
	unmap(peer->out_head, IPC_RING_BYTES);
	peer->door = NULL;
	peer->out_head = NULL;
	peer->out_tail = NULL;
	fd_close(&peer->wake_fd);
	/* A process that I forked may have it open, too: it doesn't leave the epoll by itself. */
	if (peer->pid_fd >= 0)
		epoll_ctl(ipc->nic.wait_fd, EPOLL_CTL_DEL, peer->pid_fd, NULL);
	fd_close(&peer->pid_fd);
	peer->connected = false;
}

static void peer_free(struct ipc *ipc, struct peer *peer)
{
	sender_close(ipc, peer);
	unmap(peer->in_head, IPC_RING_BYTES);
	fd_close(&peer->ring_fd);
	/* A gate that a stopped peer may still knock at stays shut for ever: nothing else may
	 * come to lie at its address. */
	if (!peer->gate_shut)
		unmap(peer->gate, IPC_PART_BYTES);
	for (uint32_t i = 0; i < ipc->peer_count; i++)
		if (ipc->peers[i] == peer) {
			ipc->peers[i] = ipc->peers[--ipc->peer_count];
			break;
		}
	ipc->peer_next = 0;
	mem_free(peer->views);
	mem_free(peer);
}

static int peer_room_make(struct ipc *ipc)
{
	if (ipc->peer_count < ipc->peer_room)
		return 0;
	uint32_t room = ipc->peer_room + 16;
	void *peers = mem_grow(ipc->peers, ipc->peer_room * sizeof(*ipc->peers),
			       room * sizeof(*ipc->peers));
	if (peers == NULL)
		return -ENOMEM;
	ipc->peers = peers;
	ipc->peer_room = room;
	return 0;
}

/* My receiving half: the ring into which the peer writes, and its gate. */
static int receiver_open(struct ipc *ipc, struct peer *peer, struct ws_error *err)
{
	void *ring;

	int rc = memory_file_make(IPC_RING_BYTES, &peer->ring_fd, &ring, err);
	if (rc != 0)
		return rc;
	peer->in_head = ring;
	peer->in_tail = (struct ring_tail *)((uint8_t *)ring + IPC_PART_BYTES);
	rc = random_bytes(&peer->in_head->secret, sizeof(struct secret), err);
	if (rc != 0)
		return rc;
	void *gate = mmap(NULL, IPC_PART_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);
	if (gate == MAP_FAILED)
		return ws_fail(err, -ENOMEM, "no memory for one more peer of %s", ipc->nic.name);
	peer->gate = gate;
	return 0;
}

static void secret_write(struct writer *out, const struct secret *secret)
{
	write_u64(out, secret->words[0]);
	write_u64(out, secret->words[1]);
}

static void address_write(const struct ipc *ipc, const struct peer *peer, struct address *address)
{
	struct writer out = writer_fixed(address->bytes, sizeof(address->bytes));

	write_u32(&out, ADDRESS_MAGIC);
	write_u32(&out, (uint32_t)getpid());
	write_u32(&out, (uint32_t)ipc->door_fd);
	write_u32(&out, (uint32_t)peer->ring_fd);
	write_u32(&out, (uint32_t)ipc->pipe_fds[1]);
	secret_write(&out, &ipc->door->secret);
	secret_write(&out, &peer->in_head->secret);
	write_u64(&out, (uint64_t)(uintptr_t)peer->gate);
	address->count = (uint16_t)out.count;
}

int ipc_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
		  struct ws_error *err)
{
	struct ipc *ipc = ipc_of(nic);

	*peer_out = NULL;
	struct peer *peer = mem_alloc(sizeof(*peer));
	if (peer == NULL || peer_room_make(ipc) != 0) {
		mem_free(peer);
		return ws_fail(err, -ENOMEM, "no memory for one more peer of %s", nic->name);
	}
	*peer = (struct peer){.ring_fd = -1, .pid_fd = -1, .wake_fd = -1};
	ipc->peers[ipc->peer_count++] = peer;
	int rc = 0;
	peer->views = mem_alloc(IPC_REGIONS_MAX * sizeof(*peer->views));
	if (peer->views == NULL)
		rc = ws_fail(err, -ENOMEM, "no memory for the regions of one more peer of %s",
			     nic->name);
	if (rc == 0)
		rc = receiver_open(ipc, peer, err);
	if (rc != 0) {
		peer_free(ipc, peer);
		return rc;
	}
	address_write(ipc, peer, address_out);
	*peer_out = peer;
	return 0;
}

/* ---------------------------------------------------------------- connect */

static void secret_read(struct reader *in, struct secret *secret)
{
	secret->words[0] = read_u64(in);
	secret->words[1] = read_u64(in);
}

static int address_read(const struct nic *nic, const struct address *address, struct remote *remote,
			struct ws_error *err)
{
	struct reader in = reader_make(address->bytes, MIN(address->count, ADDRESS_BYTES_MAX));

	if (address->count > ADDRESS_BYTES_MAX || read_u32(&in) != ADDRESS_MAGIC)
		return ws_fail(err, -EPROTO, "%s got an address that no ipc NIC makes", nic->name);
	remote->pid = (pid_t)read_u32(&in);
	remote->door_fd = read_u32(&in);
	remote->ring_fd = read_u32(&in);
	remote->wake_fd = read_u32(&in);
	secret_read(&in, &remote->door_secret);
	secret_read(&in, &remote->ring_secret);
	remote->gate = read_u64(&in);
	if (!reader_done(&in) || remote->pid <= 0)
		return ws_fail(err, -EPROTO, "%s got a broken address", nic->name);
	return 0;
}

/* Maps a file of the peer's to read, if it is the one that has the secret. */
static int file_believe(const struct remote *remote, uint32_t fd, size_t bytes,
			const struct secret *secret, void **map_out, struct ws_error *err)
{
	int opened = shared_open(remote->pid, fd);
	void *map = MAP_FAILED;

	if (opened < 0)
		return ws_fail(err, -ENOTSUP,
			       "cannot open a file of process %d: %s; ipc needs ranks of the same "
			       "user and process namespace that didn't make themselves undumpable",
			       (int)remote->pid, strerror(-opened));
	if (shared_check(opened, bytes) == 0)
		map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, opened, 0);
	close(opened);
	if (map != MAP_FAILED && memcmp(map, secret, sizeof(*secret)) == 0) {
		*map_out = map;
		return 0;
	}
	if (map != MAP_FAILED)
		munmap(map, bytes);
	return ws_fail(err, -ECONNRESET,
		       "process %d isn't the one that made this address; it has ended, or runs on "
		       "another host with the same boot id",
		       (int)remote->pid);
}

/* The peer's door and its ring, the receiver's part of which stays read-only here. */
static int files_open(struct peer *peer, const struct remote *remote, struct ws_error *err)
{
	void *door = NULL, *ring = NULL;

	int rc = file_believe(remote, remote->door_fd, sizeof(struct door), &remote->door_secret,
			      &door, err);
	if (rc != 0 || door == NULL)
		return rc;
	peer->door = door;
	rc = file_believe(remote, remote->ring_fd, IPC_RING_BYTES, &remote->ring_secret, &ring,
			  err);
	if (rc != 0 || ring == NULL)
		return rc;
	peer->out_head = ring;
	peer->out_tail = (struct ring_tail *)((uint8_t *)ring + IPC_PART_BYTES);
	if (mprotect(peer->out_tail, IPC_PART_BYTES, PROT_READ | PROT_WRITE) != 0)
		return ws_fail(err, -ENOMEM, "cannot map the ring of process %d: %s",
			       (int)remote->pid, strerror(errno));
	peer->wake_fd = shared_open(remote->pid, remote->wake_fd);
	if (peer->wake_fd < 0)
		return ws_fail(err, -ENOSPC, "cannot open the pipe of process %d: %s",
			       (int)remote->pid, strerror(-peer->wake_fd));
	if (!shared_is_pipe(peer->wake_fd))
		return ws_fail(err, -EPROTO, "process %d has no pipe where its address says one is",
			       (int)remote->pid);
	return 0;
}

/* Whether memory that isn't a file's can be written: tried on the gate, which is there for that. */
static int call_try(struct peer *peer, const struct remote *remote, struct ws_error *err)
{
	static const uint64_t knock = 1;
	struct iovec from = {.iov_base = (void *)(uintptr_t)&knock, .iov_len = sizeof(knock)};
	struct iovec to = {.iov_base = (void *)(uintptr_t)remote->gate, .iov_len = sizeof(knock)};
	bool needed = false;

	peer->gate_there = remote->gate;
	peer->call_error = 0;
	if (process_vm_writev(remote->pid, &from, 1, &to, 1, 0) == (ssize_t)sizeof(knock))
		return 0;
	peer->call_error = errno;
	uint32_t count = MIN(peer->door->region_count, IPC_REGIONS_MAX);
	for (uint32_t i = 0; i < count; i++)
		needed = needed || (peer->door->regions[i].key != 0 &&
				    peer->door->regions[i].file_count == 0 &&
				    peer->door->regions[i].is_gpu == 0);
	if (!needed)
		return 0;
	return ws_fail(
		err, -ENOTSUP,
		"process_vm_writev into process %d failed: %s; its memory isn't "
		"ws_memory_alloc's, so it can't be mapped: set sysctl "
		"kernel.yama.ptrace_scope=0, start all ranks by one launcher, give the sender "
		"CAP_SYS_PTRACE, or let the engine use ws_memory_alloc",
		(int)remote->pid, strerror(peer->call_error));
}

/* Writing into a GPU's memory takes a GPU here, too. */
static int gpu_prepare(struct ipc *ipc, const struct peer *peer, struct ws_error *err)
{
	uint32_t count = MIN(peer->door->region_count, IPC_REGIONS_MAX);

	for (uint32_t i = 0; i < count && ipc->gpu == NULL; i++)
		if (peer->door->regions[i].key != 0 && peer->door->regions[i].is_gpu != 0)
			return ipc_gpu_open(ipc, 0, err);
	return 0;
}

static int death_watch(struct ipc *ipc, struct peer *peer, struct ws_error *err)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};

	if (epoll_ctl(ipc->nic.wait_fd, EPOLL_CTL_ADD, peer->pid_fd, &event) != 0)
		return ws_fail(err, -ENOMEM, "cannot watch process %d: %s", (int)peer->pid,
			       strerror(errno));
	return 0;
}

int ipc_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
		     struct ws_error *err)
{
	struct ipc *ipc = ipc_of(nic);
	struct remote remote = {0};

	int rc = address_read(nic, address, &remote, err);
	if (rc != 0)
		return rc;
	peer->pid = remote.pid;
	peer->pid_fd = pidfd_open(remote.pid, 0);
	if (peer->pid_fd < 0)
		return ws_fail(err, errno == EMFILE ? -ENOSPC : -ECONNRESET,
			       "cannot watch process %d: %s", (int)remote.pid, strerror(errno));
	rc = files_open(peer, &remote, err);
	if (rc == 0)
		rc = call_try(peer, &remote, err);
	if (rc == 0)
		rc = gpu_prepare(ipc, peer, err);
	if (rc == 0)
		rc = death_watch(ipc, peer, err);
	if (rc != 0)
		sender_close(ipc, peer);
	peer->connected = rc == 0;
	return rc;
}

/* ---------------------------------------------------------------- the fence */

static bool elapsed(uint64_t since_ns, uint64_t ms)
{
	return clock_ns() - since_ns >= ms * UINT64_C(1000000);
}

bool ipc_peer_has_died(const struct peer *peer)
{
	struct pollfd fd = {.fd = peer->pid_fd, .events = POLLIN};

	return peer->dead || (peer->pid_fd >= 0 && poll(&fd, 1, 0) == 1);
}

/*
 * The peer is given up, and says that it is in the middle of a write: it was stopped there, or
 * lies.  0: it can't write any more.  -EBUSY: the same, and memory was replaced.  -EAGAIN.
 * -ENOSPC: it can't be kept from it.
 */
static int busy_revoke(struct peer *peer)
{
	uint64_t at = atomic_load_explicit(&peer->in_tail->at, memory_order_relaxed);
	uint64_t bytes = atomic_load_explicit(&peer->in_tail->bytes, memory_order_relaxed);
	uint32_t busy = atomic_load_explicit(&peer->in_tail->busy, memory_order_relaxed);

	/* No mapping of a GPU's memory can be taken back, and a write that was launched needs no
	 * thread: all that helps is that it ends, and that its sender goes on and says so. */
	if ((busy & RING_QUEUED) != 0)
		return elapsed(peer->abandoned_at_ns, IPC_END_MS_MAX) ? -ENOSPC : -EAGAIN;
	if (busy == RING_IDLE || bytes == 0)
		return 0;
	if (busy == RING_STORING && bytes <= IPC_OP_BYTES_MAX)
		return ipc_revoke(at, bytes) == 0 ? -EBUSY : -ENOSPC;
	/* A call that begins from here on ends at the gate; one that began earlier ends before its
	 * thread can be stopped. */
	if (!peer->gate_shut && mprotect(peer->gate, IPC_PART_BYTES, PROT_NONE) != 0)
		return -ENOSPC;
	peer->gate_shut = true;
	if (peer->pid > 0 && shared_process_stopped(peer->pid))
		return 0;
	return elapsed(peer->abandoned_at_ns, IPC_END_MS_MAX) ? -ENOSPC : -EAGAIN;
}

static void receiver_close(struct peer *peer)
{
	peer->closing = true;
	atomic_store(&peer->in_head->closed, 1);
}

/* The closed half: as in busy_revoke. */
static int receiver_quiesce(struct peer *peer, bool abandon)
{
	/* After closed was said: the sender says busy, and then looks at closed. */
	if (atomic_load(&peer->in_tail->busy) == RING_IDLE || ipc_peer_has_died(peer))
		return 0;
	if (!abandon)
		return -EAGAIN;
	if (peer->abandoned_at_ns == 0)
		peer->abandoned_at_ns = clock_ns();
	return elapsed(peer->abandoned_at_ns, IPC_GRACE_MS) ? busy_revoke(peer) : -EAGAIN;
}

/* My ops have all been carried out or have failed when post returned, or else poll reports them
 * soon, so quiet says nothing that the ring doesn't. */
int ipc_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon)
{
	(void)quiet;
	receiver_close(peer);
	if (peer->flights > 0 && !ipc_gpu_is_at_work(ipc_of(nic)))
		return -ETIMEDOUT;
	if (peer->unreported > 0 || peer->flights > 0)
		return -EAGAIN;
	int rc = receiver_quiesce(peer, abandon);
	if (rc == -ENOSPC)
		ipc_trouble(ipc_of(nic),
			    "process %d is in the middle of a write and can't be kept "
			    "from ending it",
			    (int)peer->pid);
	if (rc == 0 || rc == -EBUSY)
		peer_free(ipc_of(nic), peer);
	return rc;
}

void ipc_peer_end(struct ipc *ipc, struct peer *peer)
{
	uint64_t deadline = deadline_in_ms(IPC_CLOSE_MS_MAX);

	receiver_close(peer);
	while (receiver_quiesce(peer, true) == -EAGAIN && clock_ns() < deadline)
		sleep_ns(1000000);
	peer_free(ipc, peer);
}
