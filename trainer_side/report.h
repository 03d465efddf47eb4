/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a push, filled where it ends.  I/O thread. */
#ifndef TRAINER_REPORT_H
#define TRAINER_REPORT_H

#include "trainer_side/trainer_internal.h"

/* Whose NICs are out of use now. */
void report_trouble(struct ws_trainer *trainer);
/* What the hub says of the replicas now: at the attempt's end, before a new roster forgets some. */
void report_replicas(struct ws_trainer *trainer);
void report_end(struct ws_trainer *trainer);

#endif
