/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory is a shared mapping of a memfd rather than malloc, so that a peer process on this
 * host can map the same pages.  A small table finds the files again by address, and lets pages be
 * taken away from a peer that can't be stopped (lib/transport/README.md, "ipc").
 */
#include "lib/cuda/cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Below it a huge page would mostly be waste. */
#define HUGE_BYTES_MIN ((size_t)4 << 20)

/* What was allocated at once.  bytes 0: a free entry. */
struct filed {
	uint8_t *base;
	size_t bytes;
	uint32_t count;
	struct memory_file files[MEMORY_FILES_MAX]; /* owned; the first has all of it */
};

static struct filed table[MEMORY_FILED_MAX];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

/* Sealed, so that its length is for ever. */
static int file_make(size_t bytes)
{
	int fd = memfd_create("weightsync", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, MEMORY_SEALS) != 0) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

int memory_file_make(size_t bytes, int *fd_out, void **map_out, struct ws_error *err)
{
	int fd = file_make(bytes), error = -fd;
	void *map = MAP_FAILED;

	if (fd >= 0) {
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		error = errno;
	}
	if (map == MAP_FAILED) {
		if (fd >= 0)
			close(fd);
		return ws_fail(err, error == EMFILE || error == ENFILE ? -ENOSPC : -ENOMEM,
			       "cannot make %zu bytes of shared memory: %s", bytes,
			       strerror(error));
	}
	*fd_out = fd;
	*map_out = map;
	return 0;
}

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* With the lock held.  NULL: there is no entry that has all of the stretch. */
static struct filed *filed_find(const void *base, size_t bytes)
{
	for (size_t i = 0; i < MEMORY_FILED_MAX; i++) {
		struct filed *filed = &table[i];
		uintptr_t offset = (uintptr_t)base - (uintptr_t)filed->base;
		if (filed->bytes > 0 && offset < filed->bytes && bytes <= filed->bytes - offset)
			return filed;
	}
	return NULL;
}

/* False: the table is full, the file isn't kept. */
static bool filed_keep(void *base, size_t bytes, int fd)
{
	bool kept = false;

	pthread_mutex_lock(&table_lock);
	for (size_t i = 0; i < MEMORY_FILED_MAX && !kept; i++) {
		if (table[i].bytes > 0)
			continue;
		table[i] = (struct filed){.base = base, .bytes = bytes, .count = 1};
		table[i].files[0] = (struct memory_file){.fd = fd, .at = 0, .bytes = bytes};
		kept = true;
	}
	pthread_mutex_unlock(&table_lock);
	return kept;
}

int host_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	size_t page = page_bytes();
	if (bytes > PTRDIFF_MAX - page)
		return ws_fail(err, -ENOMEM, "%zu bytes are more than an address space holds",
			       bytes);
	size_t rounded = (bytes + (bytes == 0) + page - 1) & ~(page - 1);
	void *base = NULL;
	int fd = -1;
	int rc = memory_file_make(rounded, &fd, &base, err);
	if (rc != 0)
		return rc;
	/* The mapping keeps a file alive that isn't kept open. */
	if (!filed_keep(base, rounded, fd))
		close(fd);
	/* A hint: where the kernel has no huge pages for shared memory, small ones do. */
	if (rounded >= HUGE_BYTES_MIN)
		madvise(base, rounded, MADV_HUGEPAGE);
	memory->base = base;
	memory->bytes = rounded;
	return 0;
}

void host_free(const struct ws_memory *memory)
{
	pthread_mutex_lock(&table_lock);
	struct filed *filed = filed_find(memory->base, memory->bytes);
	for (uint32_t i = 0; filed != NULL && i < filed->count; i++)
		close(filed->files[i].fd);
	if (filed != NULL)
		*filed = (struct filed){0};
	pthread_mutex_unlock(&table_lock);
	munmap(memory->base, memory->bytes);
}

bool memory_files(const void *base, size_t bytes, struct memory_files *files_out)
{
	pthread_mutex_lock(&table_lock);
	const struct filed *filed = filed_find(base, bytes);
	if (filed != NULL) {
		files_out->offset = (uint64_t)((const uint8_t *)base - filed->base);
		files_out->count = filed->count;
		memcpy(files_out->files, filed->files, sizeof(filed->files));
	}
	pthread_mutex_unlock(&table_lock);
	return filed != NULL;
}

/* Copies the pages into a new file's, which then take their place at once.  The new file, or a
 * negative errno. */
static int pages_move(const struct filed *filed, size_t from, size_t bytes)
{
	int fd = file_make(filed->bytes);

	if (fd < 0)
		return fd;
	void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)from);
	if (copy == MAP_FAILED) {
		close(fd);
		return -ENOMEM;
	}
	memcpy(copy, filed->base + from, bytes);
	if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, filed->base + from) ==
	    MAP_FAILED) {
		munmap(copy, bytes);
		close(fd);
		return -ENOMEM;
	}
	return fd;
}

int memory_replace(const void *base, size_t bytes)
{
	size_t mask = page_bytes() - 1;
	int rc = -ENOENT;

	pthread_mutex_lock(&table_lock);
	struct filed *filed = filed_find(base, bytes);
	if (filed != NULL && filed->count == MEMORY_FILES_MAX) {
		rc = -ENOSPC;
	} else if (filed != NULL && bytes > 0) {
		size_t from = (size_t)((const uint8_t *)base - filed->base) & ~mask;
		size_t end = ((size_t)((const uint8_t *)base - filed->base) + bytes + mask) & ~mask;
		rc = pages_move(filed, from, end - from);
		if (rc >= 0) {
			filed->files[filed->count++] =
				(struct memory_file){.fd = rc, .at = from, .bytes = end - from};
			rc = 0;
		}
	}
	pthread_mutex_unlock(&table_lock);
	return rc < 0 ? (rc == -ENOENT || rc == -ENOSPC ? rc : -ENOMEM) : 0;
}
