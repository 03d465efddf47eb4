/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' part where the build found no nvcc. */
#include <errno.h>

#include "lib/convert/task.h"

static int absent(struct ws_error *err)
{
	return ws_fail(err, -ENOTSUP, "CUDA is not built in: there are no kernels");
}

int tiles_fill(uint32_t *block_count_out, struct ws_error *err)
{
	*block_count_out = 0;
	return absent(err);
}

int tiles_launch(uint32_t block_count, const struct task_list *list, struct CUstream_st *stream,
		 struct ws_error *err)
{
	(void)block_count, (void)list, (void)stream;
	return absent(err);
}

int whole_fill(bool has_f32, struct whole_grid *grid_out, struct ws_error *err)
{
	(void)has_f32;
	*grid_out = (struct whole_grid){0};
	return absent(err);
}

int whole_launch(const struct whole_grid *grid, const struct task_list *list,
		 struct CUstream_st *stream, struct ws_error *err)
{
	(void)grid, (void)list, (void)stream;
	return absent(err);
}
