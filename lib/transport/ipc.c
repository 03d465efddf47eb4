/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers on one host, without a NIC: writes are stores into memory that both processes have mapped,
 * or process_vm_writev; immediates go through a ring.  README.md says what is shared and why it
 * survives a death at any instruction.  Here are the NIC, what it exports, and poll.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/transport/ipc.h"
#include "lib/transport/tables.h"

#define READY_MAX	16
#define PIPE_READ_BYTES 1024
#define PIPE_READS_MAX	64 /* together what a pipe holds */

/* All of this process, and who changes a door: memory that one of them must replace may be exported
 * by others, too.  Not taken on the data path. */
static pthread_mutex_t nics_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ipc *nics;

void ipc_trouble(struct ipc *ipc, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(ipc->nic.trouble, sizeof(ipc->nic.trouble), format, arguments);
	va_end(arguments);
	ipc->untold = true;
	ipc_wake_self(ipc);
}

/* ---------------------------------------------------------------- open, close */

static uint64_t namespace_number(const char *name)
{
	struct stat status;
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
	return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* Equal for processes that can find each other by number and may open each other's files. */
static int subnet_fill(struct nic *nic, struct ws_error *err)
{
	void *boot;
	size_t bytes;

	int rc = file_read("/proc/sys/kernel/random/boot_id", 64, &boot, &bytes, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "ipc needs /proc");
	snprintf(nic->subnet, sizeof(nic->subnet), "host %.8s pid-ns %llu user-ns %llu uid %u",
		 (const char *)boot, (unsigned long long)namespace_number("pid"),
		 (unsigned long long)namespace_number("user"), (unsigned)getuid());
	mem_free(boot);
	return 0;
}

static int waiting_open(struct ipc *ipc, struct ws_error *err)
{
	struct epoll_event event = {.events = EPOLLIN};

	if (pipe2(ipc->pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0) {
		ipc->pipe_fds[0] = ipc->pipe_fds[1] = -1;
		return ws_fail(err, -ENOSPC, "cannot open a pipe for %s: %s", ipc->nic.name,
			       strerror(errno));
	}
	ipc->nic.wait_fd = epoll_create1(EPOLL_CLOEXEC);
	if (ipc->nic.wait_fd < 0 ||
	    epoll_ctl(ipc->nic.wait_fd, EPOLL_CTL_ADD, ipc->pipe_fds[0], &event) != 0)
		return ws_fail(err, -ENOSPC, "cannot open a wait fd for %s: %s", ipc->nic.name,
			       strerror(errno));
	ipc_wake_self(ipc);
	return 0;
}

static void nics_join(struct ipc *ipc)
{
	pthread_mutex_lock(&nics_lock);
	ipc->next = nics;
	nics = ipc;
	pthread_mutex_unlock(&nics_lock);
}

static void nics_leave(struct ipc *ipc)
{
	pthread_mutex_lock(&nics_lock);
	for (struct ipc **at = &nics; *at != NULL; at = &(*at)->next)
		if (*at == ipc) {
			*at = ipc->next;
			break;
		}
	pthread_mutex_unlock(&nics_lock);
}

static int ipc_open(struct nic *nic, const char *device, struct ws_error *err)
{
	struct ipc *ipc = ipc_of(nic);
	void *door;

	ipc->door_fd = ipc->pipe_fds[0] = ipc->pipe_fds[1] = -1;
	if (strcmp(device, "host") != 0)
		return ws_fail(err, -EINVAL, "'%s' isn't an ipc device; the only one is 'host'",
			       device);
	snprintf(nic->name, sizeof(nic->name), "ipc host");
	nic->op_bytes_max = IPC_OP_BYTES_MAX;
	nic->ops_in_flight_max = IPC_OPS_MAX;
	nic->imm_bytes = 4;
	nic->fences_one_peer = true;
	nic->same_host = true;
	nic->gpu_memory = cuda_built_in();
	nic->protocol = digest_bytes("ipc 1", 5, sizeof(struct door) + IPC_RING_BYTES);
	int rc = subnet_fill(nic, err);
	if (rc != 0)
		return rc;
	ipc->done = mem_alloc(IPC_OPS_MAX * sizeof(*ipc->done));
	if (ipc->done == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %d ops in flight on %s", IPC_OPS_MAX,
			       nic->name);
	rc = memory_file_make(sizeof(struct door), &ipc->door_fd, &door, err);
	if (rc != 0)
		return rc;
	ipc->door = door;
	rc = random_bytes(&ipc->door->secret, sizeof(ipc->door->secret), err);
	if (rc == 0)
		rc = waiting_open(ipc, err);
	if (rc == 0)
		nics_join(ipc);
	return rc;
}

static void fd_close(int fd)
{
	if (fd > 0) /* 0 only where open never ran */
		close(fd);
}

static void ipc_close(struct nic *nic)
{
	struct ipc *ipc = ipc_of(nic);

	ipc_gpu_close(ipc);
	while (ipc->peer_count > 0)
		ipc_peer_end(ipc, ipc->peers[0]);
	nics_leave(ipc);
	if (ipc->door != NULL)
		munmap(ipc->door, sizeof(*ipc->door));
	fd_close(ipc->door_fd);
	fd_close(ipc->pipe_fds[0]);
	fd_close(ipc->pipe_fds[1]);
	fd_close(nic->wait_fd);
	mem_free(ipc->peers);
	mem_free(ipc->done);
}

/* ---------------------------------------------------------------- registrations */

/* Releases, so that who reads a new value sees the odd serial before it. */
static void store(_Atomic uint64_t *to, uint64_t value)
{
	atomic_store_explicit(to, value, memory_order_release);
}

/* Whoever reads meanwhile sees an odd serial, or another one behind than before. */
static void region_begin(struct door_region *region)
{
	uint32_t serial = atomic_load_explicit(&region->serial, memory_order_relaxed);

	atomic_store(&region->serial, serial | 1);
}

static void region_end(struct door_region *region)
{
	uint32_t serial = atomic_load_explicit(&region->serial, memory_order_relaxed);

	atomic_store_explicit(&region->serial, serial + 1, memory_order_release);
}

static void region_fill_share(struct door_region *region, const struct cuda_share *share)
{
	for (uint32_t i = 0; i < IPC_SHARE_WORDS; i++) {
		uint64_t word;
		memcpy(&word, (const uint8_t *)share + i * sizeof(word), sizeof(word));
		store(&region->share[i], word);
	}
}

/* files NULL: the memory isn't a file's. */
static void region_fill(struct door_region *region, const struct memory_files *files)
{
	uint32_t count = files == NULL ? 0 : files->count;

	for (uint32_t i = 0; i < count; i++) {
		store(&region->files[i].at, files->files[i].at);
		store(&region->files[i].bytes, files->files[i].bytes);
		atomic_store_explicit(&region->files[i].fd, (uint32_t)files->files[i].fd,
				      memory_order_release);
	}
	store(&region->offset, files == NULL ? 0 : files->offset);
	atomic_store_explicit(&region->file_count, count, memory_order_release);
}

static struct door_region *region_take(struct ipc *ipc, uint32_t *index_out)
{
	struct door *door = ipc->door;

	for (uint32_t i = 0; i < IPC_REGIONS_MAX; i++) {
		if (door->regions[i].key != 0)
			continue;
		if (i >= door->region_count)
			door->region_count = i + 1;
		*index_out = i;
		return &door->regions[i];
	}
	return NULL;
}

/*
 * Yama lets only ancestors write into a process by system calls, unless it names others: here all
 * that the launcher of this rank has started.  No loss where Yama isn't, or asks for nothing.
 */
static void callers_allow(void)
{
	pid_t launcher = getppid();

	if (launcher > 1)
		prctl(PR_SET_PTRACER, (unsigned long)launcher, 0, 0, 0);
}

/* How peers will reach the memory; fills what the door says of it. */
struct export
{
	bool is_gpu, filed;
	struct memory_files files;
	struct cuda_share share;
};

static int export_make(const struct ws_memory *memory, struct export *export, struct ws_error *err)
{
	*export = (struct export){.is_gpu = memory->place == WS_CUDA};
	if (export->is_gpu)
		return cuda_share_make(memory, &export->share, err);
	export->filed = memory_files(memory->base, memory->bytes, &export->files);
	if (!export->filed)
		callers_allow();
	return 0;
}

static int region_export(struct ipc *ipc, const struct ws_memory *memory, struct mr *mr,
			 struct ws_error *err)
{
	struct export export;
	uint64_t random;
	uint32_t index = 0;

	int rc = random_bytes(&random, sizeof(random), err);
	if (rc == 0)
		rc = export_make(memory, &export, err);
	if (rc != 0)
		return rc;
	struct door_region *region = region_take(ipc, &index);
	if (region == NULL)
		return ws_fail(err, -ENOSPC,
			       "all %u registrations of %s are in use; register fewer, larger "
			       "stretches",
			       IPC_REGIONS_MAX, ipc->nic.name);
	mr->key = (random | UINT64_C(1) << 63) / IPC_REGIONS_MAX * IPC_REGIONS_MAX + index;
	mr->base = (uint64_t)(uintptr_t)memory->base;
	mr->local = region;
	mr->path = export.is_gpu ? "CUDA IPC" : export.filed ? "memfd" : "process_vm_writev";
	region_begin(region);
	region_fill(region, export.filed ? &export.files : NULL);
	region_fill_share(region, &export.share);
	atomic_store_explicit(&region->is_gpu, export.is_gpu, memory_order_release);
	store(&region->base, mr->base);
	store(&region->bytes, memory->bytes);
	store(&region->key, mr->key);
	region_end(region);
	return 0;
}

/* What only this process reads. */
static int source_check(const struct ws_memory *memory, struct mr *mr, struct ws_error *err)
{
	mr->path = memory->place == WS_CUDA ? "CUDA" : "host";
	return memory->place == WS_CUDA ? cuda_memory_check(memory, err) : 0;
}

static int ipc_reg(struct nic *nic, const struct ws_memory *memory, enum mr_use use, struct mr *mr,
		   struct ws_error *err)
{
	struct ipc *ipc = ipc_of(nic);
	int rc = 0;

	memset(mr, 0, sizeof(*mr));
	if (memory->base == NULL || memory->bytes == 0)
		return ws_fail(err, -EINVAL, "cannot register 0 bytes on %s", nic->name);
	pthread_mutex_lock(&nics_lock);
	if (memory->place == WS_CUDA)
		rc = ipc_gpu_open(ipc, memory->device, err);
	if (rc == 0)
		rc = use == MR_SOURCE ? source_check(memory, mr, err)
				      : region_export(ipc, memory, mr, err);
	pthread_mutex_unlock(&nics_lock);
	if (rc == 0)
		mr->memory = *memory;
	return rc;
}

static void ipc_dereg(struct nic *nic, struct mr *mr)
{
	struct door_region *region = mr->local;

	ipc_gpu_forget(ipc_of(nic));
	pthread_mutex_lock(&nics_lock);
	if (region != NULL) {
		region_begin(region);
		store(&region->key, 0);
		region_end(region);
	}
	pthread_mutex_unlock(&nics_lock);
	memset(mr, 0, sizeof(*mr));
}

/* For each region of this process that a file is under: its entry is opened, or filled anew. */
static void regions_each(bool begin)
{
	for (struct ipc *ipc = nics; ipc != NULL; ipc = ipc->next)
		for (uint32_t i = 0; i < ipc->door->region_count; i++) {
			struct door_region *region = &ipc->door->regions[i];
			struct memory_files files;
			if (region->key == 0 || region->file_count == 0)
				continue;
			if (begin) {
				region_begin(region);
				continue;
			}
			/* What was found once is found again: it is borrowed until dereg. */
			if (memory_files((const void *)(uintptr_t)region->base, region->bytes,
					 &files))
				region_fill(region, &files);
			region_end(region);
		}
}

int ipc_revoke(uint64_t at, uint64_t bytes)
{
	pthread_mutex_lock(&nics_lock);
	regions_each(true);
	int rc = memory_replace((const void *)(uintptr_t)at, bytes);
	regions_each(false);
	pthread_mutex_unlock(&nics_lock);
	return rc;
}

/* ---------------------------------------------------------------- poll */

void ipc_wake_self(struct ipc *ipc)
{
	if (ipc->awake)
		return;
	ipc->awake = true;
	ipc->empty_polls = 0;
	atomic_store_explicit(&ipc->door->asleep, 0, memory_order_relaxed);
	ssize_t written = write(ipc->pipe_fds[1], "", 1);
	(void)written; /* full: readable */
}

static int done_take(struct ipc *ipc, struct event *events_out, int count)
{
	int taken = 0;

	while (taken < count && ipc->done_count > 0) {
		struct event *event = &events_out[taken++];
		*event = ipc->done[ipc->done_head];
		ipc->done_head = (ipc->done_head + 1) % IPC_OPS_MAX;
		ipc->done_count--;
		event->peer->unreported--;
	}
	if (taken < count && ipc->untold) {
		ipc->untold = false;
		events_out[taken++] = (struct event){.kind = EVENT_NIC};
	}
	return taken;
}

/* A count that can't be is the end of this peer, not of me. */
static int ring_take(struct ipc *ipc, struct peer *peer, struct event *events_out, int count)
{
	uint32_t put = atomic_load(&peer->in_tail->put); /* after asleep was said */
	uint32_t filled = put - peer->taken;
	int taken = 0;

	if (filled == 0 || peer->closing || peer->lost == -EPROTO)
		return 0;
	if (filled > IPC_RING_SLOTS) {
		ipc_peer_lose(peer, -EPROTO, "the peer process %d has broken its ring",
			      (int)peer->pid);
		ipc_trouble(ipc, "process %d wrote nonsense into its ring", (int)peer->pid);
		return 0;
	}
	while (taken < count && peer->taken != put) {
		uint32_t slot = peer->taken++ % IPC_RING_SLOTS;
		events_out[taken++] = (struct event){
			.kind = EVENT_IMM,
			.imm = atomic_load_explicit(&peer->in_tail->imms[slot],
						    memory_order_relaxed),
			.peer = peer,
		};
	}
	atomic_store(&peer->in_head->taken, peer->taken);
	return taken;
}

static int events_take(struct ipc *ipc, struct event *events_out, int count)
{
	int taken = done_take(ipc, events_out, count);

	for (uint32_t i = 0; i < ipc->peer_count && taken < count; i++) {
		uint32_t at = ipc->peer_next;
		ipc->peer_next = (at + 1) % ipc->peer_count;
		taken += ring_take(ipc, ipc->peers[at], events_out + taken, count - taken);
	}
	return taken;
}

static void peer_died(struct ipc *ipc, struct peer *peer)
{
	epoll_ctl(ipc->nic.wait_fd, EPOLL_CTL_DEL, peer->pid_fd, NULL);
	peer->dead = true;
	ipc_peer_lose(peer, -ECONNRESET, "the peer process %d has died", (int)peer->pid);
	ipc_trouble(ipc, "process %d has died", (int)peer->pid);
}

/* A peer that goes on writing leaves some: then nobody blocks, no more. */
static void pipe_empty(struct ipc *ipc)
{
	char bytes[PIPE_READ_BYTES];

	for (int i = 0; i < PIPE_READS_MAX; i++)
		if (read(ipc->pipe_fds[0], bytes, sizeof(bytes)) != (ssize_t)sizeof(bytes))
			return;
}

/* From here on peers write to the pipe, and nothing that came before hides: say asleep, empty the
 * pipe, and only then let the caller look at the rings. */
static void sleep_prepare(struct ipc *ipc)
{
	struct epoll_event ready[READY_MAX];

	ipc->awake = false;
	atomic_store(&ipc->door->asleep, 1);
	int count = epoll_wait(ipc->nic.wait_fd, ready, READY_MAX, 0);
	for (int i = 0; i < count; i++) {
		if (ready[i].data.ptr != NULL)
			peer_died(ipc, ready[i].data.ptr);
		else
			pipe_empty(ipc);
	}
}

static int ipc_poll(struct nic *nic, struct event *events_out, int count)
{
	struct ipc *ipc = ipc_of(nic);

	ipc_gpu_poll(ipc);
	int taken = events_take(ipc, events_out, count);
	/* What a GPU is at ends without a sign: until then nobody blocks on me. */
	if (ipc_gpu_is_at_work(ipc)) {
		ipc_wake_self(ipc);
		return taken;
	}
	if (taken == 0 && count > 0 && (!ipc->awake || ++ipc->empty_polls >= IPC_EMPTY_POLLS)) {
		sleep_prepare(ipc);
		taken = events_take(ipc, events_out, count);
	}
	if (taken > 0) {
		ipc->empty_polls = 0;
		ipc_wake_self(ipc);
	}
	return taken;
}

const struct transport transport_ipc = {
	.name = "ipc",
	.nic_size = sizeof(struct ipc),
	.open = ipc_open,
	.close = ipc_close,
	.reg = ipc_reg,
	.dereg = ipc_dereg,
	.peer_open = ipc_peer_open,
	.peer_connect = ipc_peer_connect,
	.peer_close = ipc_peer_close,
	.post = ipc_post,
	.poll = ipc_poll,
};
