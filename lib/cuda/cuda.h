/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only folder that will know cuda_runtime.h.  CUDA isn't built in yet: host memory works,
 * and everything that asks for a GPU gets -ENOTSUP and a sentence.
 */
#ifndef CUDA_H
#define CUDA_H

#include <stdbool.h>

#include "lib/ws_memory.h"

/* False: this build has no CUDA, and every WS_CUDA memory is refused. */
bool cuda_built_in(void);

#endif
