/* SPDX-License-Identifier: Apache-2.0 */
/* How a member names the host it runs on, so that others see who shares it. */
#ifndef HUB_HOST_H
#define HUB_HOST_H

#include "lib/base/base.h"

#define HOST_TEXT_BYTES 64

/* Host name and the kernel's boot id: equal for two processes exactly when one kernel runs them. */
void host_identity(char text_out[HOST_TEXT_BYTES]);

#endif
