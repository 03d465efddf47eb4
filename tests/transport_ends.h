/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ends of a connection in two processes: the test's own and a child's.  They tell each other
 * their addresses and keys over a socket, as the link does in earnest.
 */
#ifndef TRANSPORT_ENDS_H
#define TRANSPORT_ENDS_H

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/transport/transport.h"
#include "tests/test.h"

struct hello {
	struct address address;
	uint64_t key, base;
};

struct end {
	struct nic *nic;
	struct peer *peer;
	struct ws_memory memory;
	bool allocated; /* by ws_memory_alloc: reached by "memfd" */
	struct mr mr;
	struct hello other;
	uint64_t posted, sent, failed, imms;
	uint32_t last_imm;
	int last_status;
	char last_reason[NIC_TROUBLE_MAX];
};

/* The child's failures end it with a status that its parent looks at. */
#define MUST(what)                 \
	do {                       \
		if (!(what))       \
			_exit(99); \
	} while (0)

/* Everything up to the other's hello, with memory that is there. */
static inline int end_open_with(struct end *end, const char *transport, const char *device,
				int socket, const struct ws_memory *memory, enum mr_use use,
				struct ws_error *err)
{
	struct hello mine = {0};

	*end = (struct end){.memory = *memory};
	int rc = nic_open(&end->nic, transport, device, err);
	if (rc == 0)
		rc = end->nic->transport->reg(end->nic, &end->memory, use, &end->mr, err);
	if (rc == 0)
		rc = end->nic->transport->peer_open(end->nic, &end->peer, &mine.address, err);
	mine.key = end->mr.key;
	mine.base = end->mr.base;
	if (rc == 0 && write(socket, &mine, sizeof(mine)) != (ssize_t)sizeof(mine))
		rc = -EIO;
	if (rc == 0 && read(socket, &end->other, sizeof(end->other)) != sizeof(end->other))
		rc = -EIO;
	return rc;
}

static inline int end_open_on(struct end *end, const char *transport, const char *device,
			      int socket, size_t bytes, bool allocated, struct ws_error *err)
{
	struct ws_memory memory = {.bytes = bytes};
	int rc = 0;

	if (allocated)
		rc = ws_memory_alloc(&memory, bytes, err);
	else
		memory.base = calloc(1, bytes);
	if (memory.base == NULL)
		return rc != 0 ? rc : -ENOMEM;
	rc = end_open_with(end, transport, device, socket, &memory, MR_TARGET, err);
	end->allocated = allocated;
	return rc;
}

/* Both are connected when both have returned from it. */
static inline int end_connect(struct end *end, int socket, struct ws_error *err)
{
	char byte = 1;

	int rc = end->nic->transport->peer_connect(end->nic, end->peer, &end->other.address, err);
	if (rc == 0 && (write(socket, &byte, 1) != 1 || read(socket, &byte, 1) != 1))
		rc = -EIO;
	return rc;
}

static inline void end_close(struct end *end)
{
	end->nic->transport->dereg(end->nic, &end->mr);
	nic_close(end->nic);
	if (end->allocated)
		ws_memory_free(&end->memory);
	else
		free(end->memory.base);
}

static inline int end_poll(struct end *end)
{
	struct event events[64];
	int count = end->nic->transport->poll(end->nic, events, 64);

	for (int i = 0; i < count; i++) {
		switch (events[i].kind) {
		case EVENT_SENT:
			end->sent++;
			break;
		case EVENT_FAILED:
			end->failed++;
			end->last_status = events[i].status;
			strncpy(end->last_reason, events[i].reason != NULL ? events[i].reason : "",
				sizeof(end->last_reason) - 1);
			break;
		case EVENT_IMM:
			end->imms++;
			end->last_imm = events[i].imm;
			break;
		case EVENT_NIC:
			break;
		}
	}
	return count;
}

/* 1: taken. */
static inline int end_post(struct end *end, uint64_t offset, uint64_t bytes, uint32_t imm)
{
	struct op op = {
		.peer = end->peer,
		.local = (const uint8_t *)end->memory.base + offset,
		.local_mr = &end->mr,
		.remote = end->other.base + offset,
		.remote_key = end->other.key,
		.bytes = bytes,
		.id = imm,
		.imm = imm,
	};

	int taken = end->nic->transport->post(end->nic, &op, 1);
	end->posted += taken > 0;
	return taken;
}

/* ---------------------------------------------------------------- the other process */

struct child {
	pid_t pid;
	int socket;
};

/* Runs body(socket, arg) in a process that ends with this one. */
static inline struct child child_start(void (*body)(int socket, const void *arg), const void *arg)
{
	int sockets[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(sockets[0]);
		body(sockets[1], arg);
		_exit(0);
	}
	close(sockets[1]);
	return (struct child){.pid = pid, .socket = sockets[0]};
}

/* Its status as waitpid has it. */
static inline int child_wait(struct child *child)
{
	int status = 0;

	ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
	close(child->socket);
	return status;
}

static inline void child_kill(struct child *child)
{
	kill(child->pid, SIGKILL);
	int status = child_wait(child);
	ck_assert_msg(WIFSIGNALED(status), "the child ended by itself: status %x",
		      (unsigned)status);
}

static inline void child_await_stop(const struct child *child)
{
	int status = 0;

	ck_assert_int_eq(waitpid(child->pid, &status, WUNTRACED), child->pid);
	ck_assert_msg(WIFSTOPPED(status), "status %x", (unsigned)status);
}

/* The fence, given up at once where the peer was hurt: its last return value. */
static inline int end_fence(struct end *end, bool abandon, uint64_t ms_max)
{
	uint64_t deadline = deadline_in_ms(ms_max);
	int rc;

	while ((rc = end->nic->transport->peer_close(end->nic, end->peer, false, abandon)) ==
	       -EAGAIN) {
		ck_assert_msg(clock_ns() < deadline, "the fence takes more than %u ms",
			      (unsigned)ms_max);
		end_poll(end);
	}
	return rc;
}

#endif
