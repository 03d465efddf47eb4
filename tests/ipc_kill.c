/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sender or a receiver is killed or stopped at a random moment of an ipc transfer.  The other one
 * fences it in bounded time, nothing lands afterwards, also when the stopped one goes on, and the
 * next version comes whole from (or to) a new peer.  _i is the moment, and which of the eight
 * kinds.
 */
#include "tests/ipc_ends.h"

#define MOMENTS	  (SANITIZED ? 64 : 200) /* of each kind an eighth */
#define BYTES	  ((size_t)2 << 20)
#define OP_BYTES  ((size_t)256 << 10)
#define OPS	  (BYTES / OP_BYTES)
#define MOMENT_US 2000

static struct ws_error err;

static void version_fill(struct end *end, uint64_t version)
{
	uint64_t *words = end->memory.base;

	for (size_t i = 0; i < BYTES / sizeof(*words); i++)
		words[i] = mix64(version << 32 | i);
}

static bool version_is(const struct end *end, uint64_t version)
{
	const uint64_t *words = end->memory.base;

	for (size_t i = 0; i < BYTES / sizeof(*words); i++)
		if (words[i] != mix64(version << 32 | i))
			return false;
	return true;
}

/* Sends versions 1, 2, 3, ...: until it is killed, or the receiver has closed. */
static void sender_endless(int socket, const void *arg)
{
	const bool *allocated = arg;
	struct end end;

	MUST(end_open(&end, socket, BYTES, *allocated, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	for (uint32_t i = 0;; i++) {
		if (i % OPS == 0)
			version_fill(&end, 1 + i / OPS);
		while (end_post(&end, i % OPS * OP_BYTES, OP_BYTES, i) == 0)
			end_poll(&end);
		end_poll(&end);
	}
}

/* Version 1000 once. */
static void sender_once(int socket, const void *arg)
{
	const bool *allocated = arg;
	char byte;
	struct end end;

	MUST(end_open(&end, socket, BYTES, *allocated, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	version_fill(&end, 1000);
	for (uint32_t i = 0; i < OPS; i++)
		while (end_post(&end, i * OP_BYTES, OP_BYTES, i) == 0)
			end_poll(&end);
	while (end.sent + end.failed < OPS)
		end_poll(&end);
	MUST(end.failed == 0);
	MUST(read(socket, &byte, 1) == 1);
}

static void receiver_endless(int socket, const void *arg)
{
	const bool *allocated = arg;
	struct end end;

	MUST(end_open(&end, socket, BYTES, *allocated, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	for (;;)
		end_poll(&end);
}

/* Takes version 1000, and says by its status whether it is whole. */
static void receiver_once(int socket, const void *arg)
{
	const bool *allocated = arg;
	struct end end;

	MUST(end_open(&end, socket, BYTES, *allocated, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	while (end.imms < OPS)
		end_poll(&end);
	MUST(version_is(&end, 1000));
}

/* Polls, and lets time pass to the moment. */
static void until_moment(struct end *end, uint64_t seed, bool posting)
{
	uint64_t end_ns = clock_ns() + mix64(seed) % (MOMENT_US * UINT64_C(1000));

	for (uint32_t i = 0; clock_ns() < end_ns; i++) {
		if (posting)
			end_post(end, i % OPS * OP_BYTES, OP_BYTES, i);
		end_poll(end);
	}
}

/* The same memory, a new connection. */
static void reopen(struct end *end, int socket)
{
	struct hello mine = {.key = end->mr.key, .base = end->mr.base};
	const struct transport *transport = end->nic->transport;

	ck_ok(transport->peer_open(end->nic, &end->peer, &mine.address, &err), err);
	ck_assert_int_eq(write(socket, &mine, sizeof(mine)), sizeof(mine));
	ck_assert_int_eq(read(socket, &end->other, sizeof(end->other)), sizeof(end->other));
	ck_ok(end_connect(end, socket, &err), err);
	end->imms = end->sent = end->failed = 0;
}

static void next_version_received(struct end *end, bool allocated)
{
	struct child child = child_start(sender_once, &allocated);
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);

	reopen(end, child.socket);
	while (end->imms < OPS) {
		ck_assert_msg(clock_ns() < deadline, "%u of %u immediates of the next version",
			      (unsigned)end->imms, (unsigned)OPS);
		end_poll(end);
	}
	ck_assert(version_is(end, 1000));
	ck_assert_int_eq(write(child.socket, "", 1), 1);
	ck_assert_int_eq(child_wait(&child), 0);
	ck_assert_int_eq(end_fence(end, false, PATIENCE_MS), 0);
}

static void next_version_sent(struct end *end, bool allocated)
{
	struct child child = child_start(receiver_once, &allocated);
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);

	reopen(end, child.socket);
	version_fill(end, 1000);
	for (uint32_t i = 0; i < OPS;) {
		ck_assert(clock_ns() < deadline);
		i += (uint32_t)end_post(end, i * OP_BYTES, OP_BYTES, i);
		end_poll(end);
	}
	ck_assert_int_eq(child_wait(&child), 0);
	ck_assert_int_eq(end_fence(end, true, PATIENCE_MS), 0);
}

static void hurt_sender(struct end *end, struct child *child, uint64_t seed, bool stop)
{
	until_moment(end, seed, false);
	kill(child->pid, stop ? SIGSTOP : SIGKILL);
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);
	int rc;
	/* -ENOSPC: on a machine that is busy it takes a second to die, or to stop. */
	while ((rc = end_fence(end, true, PATIENCE_MS)) == -ENOSPC)
		ck_assert(clock_ns() < deadline);
	ck_assert_msg(rc == 0 || rc == -EBUSY, "the fence says %d", rc);
	uint64_t digest = end_digest(end), imms = end->imms;
	if (stop) {
		kill(child->pid, SIGCONT);
		sleep_ns(3000000);
	}
	end_poll(end);
	ck_assert_msg(end_digest(end) == digest, "bytes landed after the fence");
	ck_assert_uint_eq(end->imms, imms);
	child_kill(child);
}

static void hurt_receiver(struct end *end, struct child *child, uint64_t seed, bool stop)
{
	until_moment(end, seed, true);
	uint64_t deadline = deadline_in_ms(PATIENCE_MS), failed = end->failed;
	kill(child->pid, stop ? SIGSTOP : SIGKILL);
	while (!stop && end->failed == failed) {
		ck_assert_msg(clock_ns() < deadline, "nobody said that the peer has died");
		end_post(end, 0, OP_BYTES, 0);
		end_poll(end);
	}
	if (!stop)
		ck_assert_msg(strstr(end->last_reason, "has died") != NULL, "'%s'",
			      end->last_reason);
	ck_assert_int_eq(end_fence(end, true, PATIENCE_MS), 0);
	kill(child->pid, SIGCONT);
	child_kill(child);
}

START_TEST(at_any_moment_the_end_is_bounded_and_the_next_version_whole)
{
	bool allocated = (_i & 1) != 0, stop = (_i & 2) != 0, sender = (_i & 4) != 0;
	struct end end;
	struct child child = child_start(sender ? sender_endless : receiver_endless, &allocated);

	ck_ok(end_open(&end, child.socket, BYTES, allocated, &err), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	if (sender) {
		hurt_sender(&end, &child, (uint64_t)_i, stop);
		next_version_received(&end, allocated);
	} else {
		hurt_receiver(&end, &child, (uint64_t)_i, stop);
		next_version_sent(&end, allocated);
	}
	end_close(&end);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("ipc_kill");
	TCase *tests = tcase_create("ipc_kill");

	tcase_set_timeout(tests, 60);
	tcase_add_loop_test(tests, at_any_moment_the_end_is_bounded_and_the_next_version_whole, 0,
			    MOMENTS);
	suite_add_tcase(all, tests);
	return all;
}
