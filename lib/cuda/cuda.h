/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to lib: the place that knows CUDA, and the files under host memory.
 *
 *   cuda.c      ws_memory_alloc and ws_memory_free    host.c   files under host memory
 *   runtime.c   devices, memory, streams, events
 *   share.c     what an address is; memory for NICs and for other processes
 *   queue.c     a stream with marks; copy.cu: its copies, by the hundred in one kernel
 *   differ.cu   how many bytes differ, for `bench update`
 *   spin.cu     a kernel that hangs, for tests
 *   absent.c    where the build found no nvcc, instead of runtime.c, share.c and the kernels
 *
 * There every function is -ENOTSUP and a sentence.  With CUDA built in, a machine without a GPU or
 * a driver gets -ENODEV.
 */
#ifndef CUDA_H
#define CUDA_H

#include <stdbool.h>

#include "lib/ws_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

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
 * -ENOMEM, -EIO (an error of an earlier kernel or copy shows up at any later call, and stays),
 * -ETIMEDOUT for a GPU that was given up.
 */
int cuda_use(int device, struct ws_error *err);
/* The calling thread's; -1: none. */
int cuda_current(void);
/* share.c.  Makes it the thread's again, which may compute there; but not a GPU that this process
 * has no context on: to make it current would take hundreds of MiB of it. */
void cuda_leave(int before);

/* Memory of a GPU (not zeroed), and page-locked memory of the host that every GPU can address.
 * Neither is for the data path.  Both frees accept NULL, and settle what is on weightsync's own
 * streams; then CUDA waits for whatever else is on the device, unless it was given up. */
int cuda_alloc(int device, size_t bytes, void **base_out, struct ws_error *err);
void cuda_free(int device, void *base);
/* Of a GPU's memory: what nobody has taken, of whatever process. */
int cuda_memory_left(int device, uint64_t *bytes_out, struct ws_error *err);
int cuda_pinned_alloc(size_t bytes, void **base_out, struct ws_error *err);
void cuda_pinned_free(void *base);
/* Page-locks host memory that is there, for copies at PCIe's speed; until unpin. */
int cuda_pin(void *base, size_t bytes, struct ws_error *err);
void cuda_unpin(void *base);

int cuda_stream_open(int device, struct CUstream_st **stream_out, struct ws_error *err);
void cuda_stream_close(struct CUstream_st *stream); /* accepts NULL */
/* Blocks until all before it on the stream is done, however long that takes: for programs. */
int cuda_stream_wait(struct CUstream_st *stream, struct ws_error *err);
/* 0: all that is on it is done; -EAGAIN: not yet.  Never blocks. */
int cuda_stream_done(struct CUstream_st *stream, struct ws_error *err);

/*
 * cuda.c.  What a GPU hasn't done by then it never will: whoever has waited so long gives it up,
 * for this process and for ever.  cuda_use refuses it from then on, and what would wait for it is
 * let be: what this process has on it, and page-locked, stays taken until the process ends.
 */
#define CUDA_STUCK_MS 60000u
uint64_t cuda_stuck_ns(void);
void cuda_stuck_after(uint32_t ms); /* instead of CUDA_STUCK_MS: for tests */
/* Gives it up: the sentence, -ETIMEDOUT. */
int cuda_stuck(int device, struct ws_error *err);
bool cuda_is_given_up(int device); /* -1: whether any is */
/* Wait so long at most, and give the GPU up then: for an event, or for what is on a stream now,
 * whatever is put there meanwhile. */
int cuda_stream_settle(struct CUstream_st *stream, int device, struct ws_error *err);
int cuda_event_settle(struct CUevent_st *event, int device, struct ws_error *err);

/* From and to any of the host's memory and the GPUs'.  Returns at once if the host's is pinned. */
int cuda_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *err);
int cuda_fill(void *dst, uint8_t value, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *err);

/* A place on a stream that can be asked about from any thread.  timed: cuda_event_ns may be asked,
 * which costs a stream more. */
int cuda_event_open(int device, bool timed, struct CUevent_st **event_out, struct ws_error *err);
void cuda_event_close(struct CUevent_st *event); /* accepts NULL */
int cuda_event_record(struct CUevent_st *event, struct CUstream_st *stream, struct ws_error *err);
/* 0: all before it is done (also if it was never recorded); -EAGAIN: not yet.  Never blocks. */
int cuda_event_done(struct CUevent_st *event, struct ws_error *err);
/* Between two timed ones that are done. */
int cuda_event_ns(struct CUevent_st *from, struct CUevent_st *to, uint64_t *ns_out,
		  struct ws_error *err);

/* How a kernel that was just launched came off; doing as in "cannot <doing> on the GPU". */
int cuda_launched(const char *doing, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * cuda.c: the host's memory and a GPU's alike.  Both wait: not for the data path.  On a GPU they
 * have a stream of their own: what else is to be done there before must have ended.  The caller's
 * current GPU stays what it was (cuda_leave).  -EIO, -ETIMEDOUT.
 */
int memory_zero(const struct ws_memory *memory, uint64_t offset, uint64_t bytes,
		struct ws_error *err);
int memory_read(const struct ws_memory *memory, uint64_t offset, void *to, uint64_t bytes,
		struct ws_error *err);
/* "GPU 1", "the host" */
const char *memory_place(const struct ws_memory *memory, char text_out[16]);

/* ------------------------------------------------------------------------------------------
 * share.c.  Threads: any; the caller's current GPU stays what it was (cuda_leave).
 */
/* What CUDA knows of an address. */
enum cuda_kind {
	CUDA_UNKNOWN = 0, /* the host's, pageable */
	CUDA_PINNED,	  /* the host's, page-locked: cudaHostAlloc or cudaHostRegister */
	CUDA_PLAIN,	  /* a GPU's, by cudaMalloc: can be shared, and registered as a dma-buf */
	CUDA_VMM,	  /* a GPU's, mapped piece by piece (PyTorch's expandable segments) */
	CUDA_POOLED,	  /* a GPU's, by cudaMallocAsync */
	CUDA_MANAGED	  /* moves between host and GPUs: refused, no NIC can follow it */
};

struct cuda_range {
	enum cuda_kind kind;
	int device;   /* -1: the host's */
	void *base;   /* of the allocation, or of what was page-locked at once; NULL: unknown */
	size_t bytes; /* of the allocation */
};

/* CUDA_UNKNOWN without CUDA, and for memory that it doesn't know. */
struct cuda_range cuda_range_of(const void *at);
/* CUDA refuses a copy over the end of an allocation, or of what was page-locked at once. */
static inline bool cuda_range_has(const struct cuda_range *range, const void *at, uint64_t bytes)
{
	uint64_t offset = (uint64_t)((uintptr_t)at - (uintptr_t)range->base);

	return range->base != NULL && offset <= range->bytes && bytes <= range->bytes - offset;
}
/* -EINVAL unless both ends of it, of more than 0 bytes, are its GPU's.  Of any kind: what lies
 * between is the caller's word. */
int cuda_memory_check(const struct ws_memory *memory, struct ws_error *err);
/* "pageable host memory", "CUDA memory", "CUDA memory mapped piece by piece", .. */
const char *cuda_kind_name(enum cuda_kind kind);

/*
 * GPU memory as a dma-buf that a NIC can register: *fd_out is the caller's to close, memory begins
 * at *offset_out of it.  -ENOTSUP where CUDA, the driver or the kind of allocation can't.
 */
int cuda_dmabuf_open(const struct ws_memory *memory, int *fd_out, uint64_t *offset_out,
		     struct ws_error *err);

/*
 * What NICs wrote into a GPU's memory (GPUDirect RDMA), the rule: their completions were taken on
 * the host, and whatever the host launches on that GPU afterwards reads it.  Most GPUs keep that by
 * themselves (cudaDevAttrGPUDirectRDMAWritesOrdering); some only after a flush, which takes
 * microseconds.  *wanted_out: this is one of those.  -ENOTSUP: it can't even be flushed.
 */
int cuda_flush_wanted(int device, bool *wanted_out, struct ws_error *err);
int cuda_flush(int device, struct ws_error *err);

/* How another process of this host maps GPU memory (CUDA IPC): plain values, as the maker's process
 * fills them in.  It stays allocated until the maker frees it, whoever has it open. */
struct cuda_share {
	uint8_t handle[64];
	uint64_t offset; /* of the memory in the allocation that the handle names */
	uint64_t bytes;	 /* of the memory */
	uint64_t gpu;	 /* cuda_gpu_id of where it lies: processes number GPUs as they like */
};

/* By its place on PCI: the same in every process of the host.  0: unknown. */
uint64_t cuda_gpu_id(int device);

/* -ENOTSUP for memory that isn't CUDA_PLAIN, with what to do. */
int cuda_share_make(const struct ws_memory *memory, struct cuda_share *share_out,
		    struct ws_error *err);
/* Maps it for work on a GPU of this process.  -EACCES where the two GPUs can't reach each other,
 * -ENOENT when the maker has gone or freed it; -EINVAL in the process that made it. */
int cuda_share_open(const struct cuda_share *share, int device, void **base_out,
		    struct ws_error *err);
void cuda_share_close(const struct cuda_share *share, int device, void *base);
/* The same within one process: the GPU can use memory of another one from now on.  -EACCES,
 * -ENOENT. */
int cuda_reach(int device, const void *at, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * queue.c: a stream of one GPU.  Calls queue work and come back; errors of the GPU itself come
 * late, from any call, and are for ever: -EIO, and queue->error says what it was.  Threads:
 * one at a time.  Nothing is allocated after open.
 */
#define CUDA_MARKS_MAX 64

struct cuda_queue {
	int device;
	struct CUstream_st *stream; /* owned unless borrowed */
	bool borrowed;
	uint64_t marked, passed;
	struct CUevent_st *events[CUDA_MARKS_MAX]; /* mark n has event n % CUDA_MARKS_MAX */
	struct ws_error error;			   /* the first, for ever; code 0: none */
};

struct cuda_copy {
	void *to; /* the GPU's, or mapped by cuda_share_open; page-locked host memory */
	const void *from;
	uint64_t bytes;
	bool is_far; /* an end isn't in this GPU: a large one is left to a copy engine */
};

/* Open and close leave the caller's current GPU as it was; the others make it the queue's. */
int cuda_queue_open(struct cuda_queue *queue, int device, struct ws_error *err);
/* On a stream of somebody else's, who keeps it until close; NULL: on one of its own. */
int cuda_queue_open_on(struct cuda_queue *queue, int device, struct CUstream_st *stream,
		       struct ws_error *err);
/* Waits for what is queued, but not for a GPU that is stuck; harmless on one that isn't open. */
void cuda_queue_close(struct cuda_queue *queue);

/* All of them, in any order, by as few launches as it takes.  They don't overlap. */
int cuda_queue_copy(struct cuda_queue *queue, const struct cuda_copy *copies, uint32_t count);
/* One, where an end is any host memory: pageable memory is waited for, and what was page-locked
 * piece by piece is copied so. */
int cuda_queue_copy_host(struct cuda_queue *queue, const struct cuda_copy *copy);
/* A mark behind all that was queued; -EAGAIN: CUDA_MARKS_MAX are ahead. */
int cuda_queue_mark(struct cuda_queue *queue, uint64_t *mark_out);
/* 1: all in front of the mark is done, and what it wrote can be seen by everybody; 0: not yet.
 * After an error: 0 until nothing is at work, then -EIO. */
int cuda_queue_passed(struct cuda_queue *queue, uint64_t mark);

/* differ.cu: adds to *count, which is the GPU's, how many bytes of the two differ.  Returns at
 * once; for the thread's current GPU. */
int differ_launch(const void *a, const void *b, uint64_t bytes, uint64_t *count,
		  struct CUstream_st *stream, struct ws_error *err);

/* spin.cu: hangs the stream until *go, which is page-locked, isn't 0; but so long at most.  Nothing
 * that may wait for the GPU is to be called meanwhile: allocate, and launch every kernel once,
 * before. */
int spin_launch(const volatile uint32_t *go, uint32_t ms, struct CUstream_st *stream,
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

#ifdef __cplusplus
}
#endif

#endif
