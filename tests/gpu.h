/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that need a GPU: how many there are, and bytes in and out of them. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cuda/cuda.h"
#include "tests/test.h"

/* Asked in a child: a process that has opened CUDA can't fork into one that uses it.  Says why
 * there are fewer than are needed, as the skip's line. */
static inline bool gpus_are_there(int need)
{
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		struct ws_error error = {0};
		int count = cuda_device_count(&error);
		if (count < need && count > 0)
			printf("%d GPUs are needed, and there are %d\n", need, count);
		else if (count < need)
			printf("%d GPUs are needed: %s\n", need, error.text);
		fflush(stdout);
		_exit(count >= need ? 0 : 1);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
	       WEXITSTATUS(status) == 0;
}

static inline void gpu_put(void *gpu, const void *host, size_t bytes)
{
	struct ws_error error = {0};
	ck_ok(cuda_copy(gpu, host, bytes, NULL, &error), error);
	ck_ok(cuda_stream_wait(NULL, &error), error);
}

static inline void gpu_get(void *host, const void *gpu, size_t bytes)
{
	gpu_put(host, gpu, bytes);
}

#endif
