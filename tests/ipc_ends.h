/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ends of an ipc connection in two processes, and what only ipc's tests do with them: block,
 * compare memory, and stop in the middle of a write.
 */
#ifndef IPC_ENDS_H
#define IPC_ENDS_H

#include <poll.h>
#include <sys/mman.h>

#include "lib/transport/ipc.h"
#include "tests/transport_ends.h"

static inline int end_open(struct end *end, int socket, size_t bytes, bool allocated,
			   struct ws_error *err)
{
	return end_open_on(end, "ipc", "host", socket, bytes, allocated, err);
}

/* Polls, and blocks where nothing came, until so many immediates are here; false: asleep for ever.
 */
static inline bool block_for(struct end *end, uint64_t imms)
{
	while (end->imms < imms) {
		struct pollfd wait = {.fd = end->nic->wait_fd, .events = POLLIN};
		if (end_poll(end) == 0 && poll(&wait, 1, PATIENCE_MS) == 0)
			return false;
	}
	return true;
}

static inline void burst(struct end *end, uint32_t count)
{
	for (uint32_t i = 0; i < count;)
		i += (uint32_t)end_post(end, 0, 64, i);
}

static inline uint64_t end_digest(const struct end *end)
{
	return digest_bytes(end->memory.base, end->memory.bytes, 0);
}

/* A page that stops the process that reads it, once: in the middle of a write from there. */
static uint8_t *trap;
static volatile sig_atomic_t trap_was_met;

static inline void stop_here(int number)
{
	(void)number;
	trap_was_met = 1;
	raise(SIGSTOP);
	mprotect(trap, 4096, PROT_READ | PROT_WRITE);
}

static inline void trap_lay(uint8_t *page)
{
	trap = page;
	signal(SIGSEGV, stop_here);
	MUST(mprotect(trap, 4096, PROT_NONE) == 0);
}

#endif
