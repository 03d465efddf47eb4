/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ws_memory_alloc and ws_memory_free: the host's memory or a GPU's.
 */
#include "lib/cuda/cuda.h"

#include <errno.h>

bool cuda_built_in(void)
{
	return false;
}

int cuda_dmabuf_open(const struct ws_memory *memory, int *fd_out, uint64_t *offset_out,
		     struct ws_error *err)
{
	*fd_out = -1;
	*offset_out = 0;
	return ws_fail(err, -ENOTSUP,
		       "memory on GPU %d can't be reached: CUDA is not built in, use host memory",
		       memory->device);
}

int ws_memory_alloc(struct ws_memory *memory, size_t bytes, struct ws_error *err)
{
	memory->base = NULL;
	memory->bytes = 0;
	switch (memory->place) {
	case WS_HOST:
		return host_alloc(memory, bytes, err);
	case WS_CUDA:
		return ws_fail(err, -ENOTSUP,
			       "no memory on GPU %d: CUDA is not built in, use host memory",
			       memory->device);
	}
	return ws_fail(err, -EINVAL, "memory place %d is unknown", (int)memory->place);
}

void ws_memory_free(struct ws_memory *memory)
{
	if (memory == NULL)
		return;
	if (memory->base != NULL && memory->place == WS_HOST)
		host_free(memory);
	*memory = (struct ws_memory){0};
}
