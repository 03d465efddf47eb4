/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's end of the mailbox between a trainer's caller and its I/O thread. */
#ifndef TRAINER_MAILBOX_H
#define TRAINER_MAILBOX_H

#include "trainer_side/trainer_internal.h"

/* Makes an eventfd readable.  Async-signal-safe. */
void mailbox_wake(int fd);
/* Hands a request over and waits for its answer; a little beyond its deadline, so that the I/O
 * thread's sentence is the one that is heard, but never for ever. */
int mailbox_ask(struct ws_trainer *trainer, const struct request *request, struct ws_error *err);
/* I/O thread: the request that waits for an answer, or NULL; and the answer. */
const struct request *mailbox_look(struct ws_trainer *trainer);
void mailbox_answer(struct ws_trainer *trainer, const struct ws_error *answer);

#endif
