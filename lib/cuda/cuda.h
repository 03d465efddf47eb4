/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to lib: the only place that knows cuda_runtime_api.h, and the files under host memory.
 * Where the build found nvcc, runtime.c is in it; otherwise absent.c, whose every function is
 * -ENOTSUP and a sentence.  With CUDA built in, a machine without a GPU or a driver gets -ENODEV.
 */
#ifndef CUDA_H
#define CUDA_H

#include <stdbool.h>

#include "lib/ws_memory.h"

struct CUstream_st; /* CUDA's own stream and event, which its header calls cudaStream_t, .. */
struct CUevent_st;

/* False: this build has no CUDA, and every WS_CUDA memory is refused. */
bool cuda_built_in(void);

/* GPUs that can be used here; 0 also where CUDA isn't built in.  reason_out (may be NULL) then says
 * why there are none. */
int cuda_device_count(struct ws_error *reason_out);

/*
 * Every function below that takes a device makes it the calling thread's current one.  None is to
 * be called before fork() in a process whose child will use CUDA.  Errors: -ENOTSUP, -ENODEV,
 * -ENOMEM, -EIO (an error of an earlier kernel or copy shows up at any later call, and stays).
 */
int cuda_use(int device, struct ws_error *err);

/* Memory of a GPU (not zeroed), and page-locked memory of the host that every GPU can address.
 * Neither is for the data path; both frees accept NULL and wait for the device. */
int cuda_alloc(int device, size_t bytes, void **base_out, struct ws_error *err);
void cuda_free(int device, void *base);
int cuda_pinned_alloc(size_t bytes, void **base_out, struct ws_error *err);
void cuda_pinned_free(void *base);

int cuda_stream_open(int device, struct CUstream_st **stream_out, struct ws_error *err);
void cuda_stream_close(struct CUstream_st *stream); /* accepts NULL */
/* Blocks until all before it on the stream is done. */
int cuda_stream_wait(struct CUstream_st *stream, struct ws_error *err);

/* From and to any of the host's memory and the GPUs'.  Returns at once if the host's is pinned. */
int cuda_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *err);
int cuda_fill(void *dst, uint8_t value, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *err);

/* A place on a stream that can be asked about from any thread. */
int cuda_event_open(int device, struct CUevent_st **event_out, struct ws_error *err);
void cuda_event_close(struct CUevent_st *event); /* accepts NULL */
int cuda_event_record(struct CUevent_st *event, struct CUstream_st *stream, struct ws_error *err);
/* 0: all before it is done (also if it was never recorded); -EAGAIN: not yet.  Never blocks. */
int cuda_event_done(struct CUevent_st *event, struct ws_error *err);
/* Between two that are done. */
int cuda_event_ns(struct CUevent_st *from, struct CUevent_st *to, uint64_t *ns_out,
		  struct ws_error *err);

/* How a kernel that was just launched came off; doing as in "cannot <doing> on the GPU". */
int cuda_launched(const char *doing, struct ws_error *err);

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
