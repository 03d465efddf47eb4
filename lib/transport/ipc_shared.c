/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that two processes share.  They are opened by /proc/PID/fd, which the kernel allows to who
 * may read that process (the same user, not undumpable) whatever Yama says, and which needs no
 * socket, no path and nobody's help, so that connecting can't block.  What another process
 * says of its files is checked before anything of them is touched.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/transport/ipc.h"

int shared_open(pid_t pid, uint32_t fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)pid, fd);
	/* A pipe is opened for both ways: one whose reader died is then no SIGPIPE. */
	int opened = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	return opened >= 0 ? opened : -errno;
}

int shared_check(int fd, uint64_t bytes)
{
	struct stat status;

	if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
		return -EPROTO;
	int seals = fcntl(fd, F_GET_SEALS);
	return seals >= 0 && (seals & MEMORY_SEALS) == MEMORY_SEALS &&
			       (uint64_t)status.st_size >= bytes
		       ? 0
		       : -EPROTO;
}

bool shared_is_pipe(int fd)
{
	struct stat status;

	return fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
}

/* ---------------------------------------------------------------- a peer's region */

struct region_copy {
	uint32_t serial, file_count;
	bool is_gpu;
	uint64_t key, base, bytes, offset;
	struct memory_file files[MEMORY_FILES_MAX];
	struct cuda_share share;
};

static uint64_t load(const _Atomic uint64_t *from)
{
	return atomic_load_explicit(from, memory_order_acquire);
}

/* False: the entry is changing.  Each load acquires: the serial is read again after all. */
static bool region_read(const struct door_region *region, struct region_copy *copy)
{
	copy->serial = atomic_load_explicit(&region->serial, memory_order_acquire);
	copy->file_count = atomic_load_explicit(&region->file_count, memory_order_acquire);
	copy->is_gpu = atomic_load_explicit(&region->is_gpu, memory_order_acquire) != 0;
	copy->key = load(&region->key);
	copy->base = load(&region->base);
	copy->bytes = load(&region->bytes);
	copy->offset = load(&region->offset);
	for (uint32_t i = 0; i < copy->file_count && i < MEMORY_FILES_MAX; i++) {
		const struct door_file *file = &region->files[i];
		copy->files[i] = (struct memory_file){
			.fd = (int)atomic_load_explicit(&file->fd, memory_order_acquire),
			.at = load(&file->at),
			.bytes = load(&file->bytes),
		};
	}
	for (uint32_t i = 0; copy->is_gpu && i < IPC_SHARE_WORDS; i++) {
		uint64_t word = load(&region->share[i]);
		memcpy((uint8_t *)&copy->share + i * sizeof(word), &word, sizeof(word));
	}
	return (copy->serial & 1) == 0 &&
	       atomic_load_explicit(&region->serial, memory_order_relaxed) == copy->serial;
}

/* Lays one file over its part of the map, which begins at from in the memory. */
static int file_map(const struct view *view, uint64_t from, pid_t pid,
		    const struct memory_file *file)
{
	uint64_t end = from + view->map_bytes;

	if (file->at > UINT64_MAX - file->bytes)
		return -EPROTO;
	uint64_t first = MAX(from, file->at), last = MIN(end, file->at + file->bytes);
	if (first >= last)
		return 0;
	int fd = shared_open(pid, (uint32_t)file->fd);
	if (fd < 0)
		return fd;
	int rc = shared_check(fd, last);
	if (rc == 0 &&
	    mmap((uint8_t *)view->map + (first - from), last - first, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED, fd, (off_t)first) == MAP_FAILED)
		rc = -errno;
	close(fd);
	return rc;
}

static int view_map(struct view *view, const struct region_copy *copy, pid_t pid)
{
	uint64_t mask = (uint64_t)sysconf(_SC_PAGESIZE) - 1;
	uint64_t from = copy->offset & ~mask, end = copy->offset + copy->bytes;
	int rc = 0;

	if (copy->bytes > INT64_MAX / 2 || copy->offset > INT64_MAX / 2)
		return -EPROTO;
	view->map_bytes = ((end + mask) & ~mask) - from;
	void *map = mmap(NULL, view->map_bytes, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		return -errno;
	view->map = map;
	for (uint32_t i = 0; rc == 0 && i < copy->file_count; i++)
		rc = file_map(view, from, pid, &copy->files[i]);
	/* The first file has all of it: else a hole would be left, and a store into it crash. */
	if (rc == 0 && (copy->files[0].at > from || copy->files[0].at + copy->files[0].bytes < end))
		rc = -EPROTO;
	view->memory = (uint8_t *)map + (copy->offset - from);
	return rc;
}

/* Within one process CUDA opens no handle, and needs none. */
static int view_gpu(struct view *view, const struct region_copy *copy, pid_t pid, int device,
		    const char **reason_out)
{
	void *base;

	view->is_gpu = true;
	view->is_far = copy->share.gpu != cuda_gpu_id(device);
	view->memory = (uint8_t *)(uintptr_t)copy->base;
	*reason_out = "the peer's memory is a GPU's, and this process uses none";
	if (device < 0)
		return -ENODEV;
	*reason_out = "the peer's GPU memory can't be mapped: it was freed, or no path joins the "
		      "two GPUs";
	if (pid == getpid())
		return cuda_reach(device, view->memory, NULL);
	int rc = copy->share.bytes < copy->bytes
			 ? -EPROTO
			 : cuda_share_open(&copy->share, device, &base, NULL);
	if (rc != 0)
		return rc;
	view->memory = base;
	view->is_opened = true;
	view->device = device;
	view->share = copy->share;
	return 0;
}

bool shared_view(struct view *view, const struct door *door, pid_t pid, uint64_t key, int device,
		 bool *again_out, const char **reason_out)
{
	struct region_copy copy;

	*again_out = false;
	shared_view_close(view);
	if (!region_read(&door->regions[key % IPC_REGIONS_MAX], &copy)) {
		*again_out = true;
		return false;
	}
	*reason_out = "the peer exports no memory with this key";
	if (key == 0 || copy.key != key)
		return false;
	*reason_out = "the peer's entry for this memory makes no sense";
	if (copy.file_count > MEMORY_FILES_MAX || copy.base > UINT64_MAX - copy.bytes)
		return false;
	if (copy.is_gpu && view_gpu(view, &copy, pid, device, reason_out) != 0) {
		*view = (struct view){0};
		return false;
	}
	if (copy.file_count > 0 && view_map(view, &copy, pid) != 0) {
		*reason_out = "the peer's memory file can't be mapped";
		shared_view_close(view);
		return false;
	}
	view->key = key;
	view->base = copy.base;
	view->bytes = copy.bytes;
	view->serial = copy.serial;
	return true;
}

void shared_view_close(struct view *view)
{
	if (view->map != NULL)
		munmap(view->map, view->map_bytes);
	if (view->is_opened)
		cuda_share_close(&view->share, view->device, view->memory);
	*view = (struct view){0};
}

/* ---------------------------------------------------------------- is it stopped? */

/* The letter behind the name, which is in brackets and may have any. */
static bool thread_is_stopped(pid_t pid, const char *thread)
{
	char path[96], text[512];

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", (int)pid, thread);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ESRCH; /* it has ended */
	ssize_t count = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (count <= 0)
		return true;
	text[count] = 0;
	const char *bracket = strrchr(text, ')');
	return bracket != NULL && bracket[1] == ' ' && strchr("TtZX", bracket[2]) != NULL;
}

bool shared_process_stopped(pid_t pid)
{
	char path[64];
	bool stopped = true;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	DIR *threads = opendir(path);
	if (threads == NULL)
		return errno == ENOENT || errno == ESRCH;
	for (struct dirent *entry = readdir(threads); stopped && entry != NULL;
	     entry = readdir(threads))
		if (entry->d_name[0] != '.')
			stopped = thread_is_stopped(pid, entry->d_name);
	closedir(threads);
	return stopped;
}
