/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's part of a plan as the engine's program. */
#ifndef TRAINER_PROGRAM_H
#define TRAINER_PROGRAM_H

#include "trainer_side/trainer_internal.h"

/* Fills wire->program, in the wire's arena, from the plan and the pairs' answers.  -EPROTO when
 * a rollout left out where a param lies. */
int program_make(struct ws_trainer *trainer, struct ws_error *err);

#endif
