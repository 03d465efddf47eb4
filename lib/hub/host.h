/* SPDX-License-Identifier: Apache-2.0 */
/* How a member names the host it runs on, so that others see who shares it. */
#ifndef HUB_HOST_H
#define HUB_HOST_H

#include "lib/base/base.h"

#define HOST_TEXT_BYTES 64

/*
 * Equal for two processes that share a host.  inside: equal for those that reach each other without
 * a network (containers of one host may not, nor its users); empty: one kernel runs them, as far as
 * its boot id says.
 */
void host_identity(const char *inside, char text_out[HOST_TEXT_BYTES]);

#endif
