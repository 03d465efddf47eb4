/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' part where the build found no nvcc. */
#include <errno.h>

#include "lib/convert/task.h"

static int absent(struct ws_error *err)
{
	return ws_fail(err, -ENOTSUP, "CUDA is not built in: there are no kernels");
}

int tiles_launch(const struct task_list *list, struct CUstream_st *stream, struct ws_error *err)
{
	(void)list, (void)stream;
	return absent(err);
}

int whole_launch(const struct task_list *list, uint32_t element_bytes, struct CUstream_st *stream,
		 struct ws_error *err)
{
	(void)list, (void)element_bytes, (void)stream;
	return absent(err);
}
