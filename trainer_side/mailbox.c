/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request at a time from the caller to the I/O thread.  `asked` and `answered` say whose turn
 * it is: the caller writes only while they are equal, the thread only while they differ.
 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "trainer_side/mailbox.h"

#define GRACE_MS 4000u /* beyond a deadline: closing senders takes its time */

void mailbox_wake(int fd)
{
	uint64_t one = 1;

	/* A full counter is readable already. */
	(void)!write(fd, &one, sizeof(one));
}

static int wait_answer(struct ws_trainer *trainer, uint32_t number, uint64_t until_ns)
{
	struct pollfd fd = {.fd = trainer->reply_fd, .events = POLLIN};
	uint64_t dropped;

	while (atomic_load_explicit(&trainer->answered, memory_order_acquire) != number) {
		uint64_t now = clock_ns();
		if (now >= until_ns)
			return -ETIMEDOUT;
		(void)poll(&fd, 1, (int)MIN((until_ns - now) / 1000000u + 1, 1000u));
		(void)!read(trainer->reply_fd, &dropped, sizeof(dropped));
	}
	return 0;
}

int mailbox_ask(struct ws_trainer *trainer, const struct request *request, struct ws_error *err)
{
	uint32_t number = atomic_load_explicit(&trainer->asked, memory_order_relaxed) + 1;

	if (!trainer->thread_started)
		return ws_fail(err, -EINVAL, "trainer %u hasn't been started", trainer->rank);
	if (trainer->stuck)
		return ws_fail(err, -EIO, "trainer %u's I/O thread is stuck; close it",
			       trainer->rank);
	trainer->request = *request;
	atomic_store_explicit(&trainer->asked, number, memory_order_release);
	mailbox_wake(trainer->wake_fd);
	uint64_t until_ns = MAX(request->deadline_ns, clock_ns()) + GRACE_MS * UINT64_C(1000000);
	if (wait_answer(trainer, number, until_ns) != 0) {
		trainer->stuck = true;
		return ws_fail(
			err, -ETIMEDOUT,
			"trainer %u's I/O thread didn't answer in time; a NIC or a GPU may hang",
			trainer->rank);
	}
	if (trainer->reply.code != 0 && err != NULL)
		*err = trainer->reply;
	return trainer->reply.code;
}

const struct request *mailbox_look(struct ws_trainer *trainer)
{
	uint32_t asked = atomic_load_explicit(&trainer->asked, memory_order_acquire);

	return asked != atomic_load_explicit(&trainer->answered, memory_order_relaxed)
		       ? &trainer->request
		       : NULL;
}

void mailbox_answer(struct ws_trainer *trainer, const struct ws_error *answer)
{
	trainer->reply = *answer;
	atomic_fetch_add_explicit(&trainer->answered, 1, memory_order_release);
	mailbox_wake(trainer->reply_fd);
}
