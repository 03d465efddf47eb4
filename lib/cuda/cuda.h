/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to lib: the place that will know cuda_runtime.h, and the files under host memory.  CUDA
 * isn't built in yet: host memory works, and everything that asks for a GPU gets -ENOTSUP and a
 * sentence.
 */
#ifndef CUDA_H
#define CUDA_H

#include <stdbool.h>

#include "lib/ws_memory.h"

/* False: this build has no CUDA, and every WS_CUDA memory is refused. */
bool cuda_built_in(void);

/*
 * GPU memory as a dma-buf that a NIC can register: *fd_out is the caller's to close, memory begins
 * at *offset_out of it.  -ENOTSUP where CUDA, the driver or the kind of allocation can't.
 */
int cuda_dmabuf_open(const struct ws_memory *memory, int *fd_out, uint64_t *offset_out,
		     struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * host.c: ws_memory_alloc's host memory is a sealed memfd: nobody can make it shorter or longer,
 * so whoever maps it needn't fear a SIGBUS.  The file stays open until ws_memory_free, for the
 * first MEMORY_FILED_MAX allocations that a process has at once; later ones can't be found here.
 * Threads: any.
 */
#define MEMORY_FILED_MAX 256
#define MEMORY_FILES_MAX 16
#define MEMORY_SEALS	 (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* of <fcntl.h> */

/* One file, mapped over [at, at + bytes) of the memory, from the same offset of the file. */
struct memory_file {
	int fd;
	uint64_t at, bytes;
};

/* The files under a stretch of memory; where several lie over each other, the last one counts. */
struct memory_files {
	uint64_t offset; /* of the stretch in the memory that was allocated at once */
	uint32_t count;
	struct memory_file files[MEMORY_FILES_MAX];
};

/* Such a file, with a mapping of it: both are the caller's to close.  -ENOSPC: no descriptor is
 * left; -ENOMEM. */
int memory_file_make(size_t bytes, int *fd_out, void **map_out, struct ws_error *err);

/* False: the stretch isn't in one piece of ws_memory_alloc's host memory whose file is open. */
bool memory_files(const void *base, size_t bytes, struct memory_files *files_out);

/*
 * Puts another file under the pages of a stretch, with the same content at the same addresses: who
 * has mapped the old one, and can't be stopped, writes there in vain.  Nobody of this process may
 * write there meanwhile.  What a NIC has pinned must be registered again.  -ENOENT if the stretch
 * isn't in one piece, -ENOSPC when MEMORY_FILES_MAX files are under it, -ENOMEM.
 */
int memory_replace(const void *base, size_t bytes);

/* For cuda.c: the host's part of ws_memory_alloc and ws_memory_free. */
int host_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err);
void host_free(const struct ws_memory *memory);

#endif
