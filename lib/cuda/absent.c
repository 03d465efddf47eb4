/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h where the build found no nvcc: runtime.c, share.c and the kernels otherwise. */
#include "lib/cuda/copy.h"

#include <errno.h>

static int absent(struct ws_error *err)
{
	return ws_fail(err, -ENOTSUP,
		       "CUDA is not built in: use host memory, or build where nvcc is");
}

bool cuda_built_in(void)
{
	return false;
}

int cuda_device_count(struct ws_error *reason_out)
{
	absent(reason_out);
	return 0;
}

int cuda_use(int device, struct ws_error *err)
{
	(void)device;
	return absent(err);
}

int cuda_current(void)
{
	return -1;
}

void cuda_leave(int before)
{
	(void)before;
}

int cuda_alloc(int device, size_t bytes, void **base_out, struct ws_error *err)
{
	*base_out = NULL;
	return ws_fail(err, -ENOTSUP,
		       "no %zu bytes on GPU %d: CUDA is not built in, use host memory", bytes,
		       device);
}

void cuda_free(int device, void *base)
{
	(void)device, (void)base;
}

int cuda_memory_left(int device, uint64_t *bytes_out, struct ws_error *err)
{
	(void)device;
	*bytes_out = 0;
	return absent(err);
}

int cuda_pinned_alloc(size_t bytes, void **base_out, struct ws_error *err)
{
	(void)bytes;
	*base_out = NULL;
	return absent(err);
}

void cuda_pinned_free(void *base)
{
	(void)base;
}

int cuda_pin(void *base, size_t bytes, struct ws_error *err)
{
	(void)base;
	(void)bytes;
	return absent(err);
}

void cuda_unpin(void *base)
{
	(void)base;
}

int cuda_stream_open(int device, struct CUstream_st **stream_out, struct ws_error *err)
{
	(void)device;
	*stream_out = NULL;
	return absent(err);
}

void cuda_stream_close(struct CUstream_st *stream)
{
	(void)stream;
}

int cuda_stream_wait(struct CUstream_st *stream, struct ws_error *err)
{
	(void)stream;
	return absent(err);
}

int cuda_stream_done(struct CUstream_st *stream, struct ws_error *err)
{
	(void)stream;
	return absent(err);
}

int cuda_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *err)
{
	(void)dst, (void)src, (void)bytes, (void)stream;
	return absent(err);
}

int cuda_fill(void *dst, uint8_t value, size_t bytes, struct CUstream_st *stream,
	      struct ws_error *err)
{
	(void)dst, (void)value, (void)bytes, (void)stream;
	return absent(err);
}

int cuda_event_open(int device, bool timed, struct CUevent_st **event_out, struct ws_error *err)
{
	(void)device;
	(void)timed;
	*event_out = NULL;
	return absent(err);
}

void cuda_event_close(struct CUevent_st *event)
{
	(void)event;
}

int cuda_event_record(struct CUevent_st *event, struct CUstream_st *stream, struct ws_error *err)
{
	(void)event, (void)stream;
	return absent(err);
}

int cuda_event_done(struct CUevent_st *event, struct ws_error *err)
{
	(void)event;
	return absent(err);
}

int cuda_event_ns(struct CUevent_st *from, struct CUevent_st *to, uint64_t *ns_out,
		  struct ws_error *err)
{
	(void)from, (void)to, (void)ns_out;
	return absent(err);
}

int cuda_launched(const char *doing, struct ws_error *err)
{
	(void)doing;
	return absent(err);
}

struct cuda_range cuda_range_of(const void *at)
{
	(void)at;
	return (struct cuda_range){.device = -1};
}

uint64_t cuda_gpu_id(int device)
{
	(void)device;
	return 0;
}

int cuda_dmabuf_open(const struct ws_memory *memory, int *fd_out, uint64_t *offset_out,
		     struct ws_error *err)
{
	(void)memory;
	*fd_out = -1;
	*offset_out = 0;
	return absent(err);
}

int cuda_flush_wanted(int device, bool *wanted_out, struct ws_error *err)
{
	(void)device;
	*wanted_out = false;
	return absent(err);
}

int cuda_flush(int device, struct ws_error *err)
{
	(void)device;
	return absent(err);
}

int cuda_memory_check(const struct ws_memory *memory, struct ws_error *err)
{
	(void)memory;
	return absent(err);
}

int cuda_share_make(const struct ws_memory *memory, struct cuda_share *share_out,
		    struct ws_error *err)
{
	(void)memory;
	*share_out = (struct cuda_share){0};
	return absent(err);
}

int cuda_share_open(const struct cuda_share *share, int device, void **base_out,
		    struct ws_error *err)
{
	(void)share;
	(void)device;
	*base_out = NULL;
	return absent(err);
}

int cuda_reach(int device, const void *at, struct ws_error *err)
{
	(void)device;
	(void)at;
	return absent(err);
}

void cuda_share_close(const struct cuda_share *share, int device, void *base)
{
	(void)share;
	(void)device;
	(void)base;
}

int differ_launch(const void *a, const void *b, uint64_t bytes, uint64_t *count,
		  struct CUstream_st *stream, struct ws_error *err)
{
	(void)a;
	(void)b;
	(void)bytes;
	(void)count;
	(void)stream;
	return absent(err);
}

int spin_launch(const volatile uint32_t *go, uint32_t ms, struct CUstream_st *stream,
		struct ws_error *err)
{
	(void)go;
	(void)ms;
	(void)stream;
	return absent(err);
}

int copies_by_engine(const struct copies *copies, struct CUstream_st *stream, struct ws_error *err)
{
	(void)copies;
	(void)stream;
	return absent(err);
}

int copies_launch(const struct copies *copies, int device, struct CUstream_st *stream,
		  struct ws_error *err)
{
	(void)copies;
	(void)device;
	(void)stream;
	return absent(err);
}
