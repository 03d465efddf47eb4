/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fence of ipc against a sender that is stopped in the very middle of a write: by stores,
 * before its system call, or one that never says that it is done.
 */
#include <sys/mman.h>
#include <sys/uio.h>

#include "tests/ipc_ends.h"
#include "tests/transport_pair.h"

static const char *const devices[2] = {"host", "host"};

START_TEST(replaced_pages_keep_their_bytes_and_later_writes_find_them)
{
	struct pair pair;

	pair_open_in(&pair, "ipc", devices, 1 << 20, true);
	fill(pair.memory[0].base, 1 << 20, 1);
	struct op op = op_make(&pair, 0, 0, 1 << 20, 1);
	post(&pair, 0, &op);
	await(&pair, 0, 1, 1);
	struct view before = pair.peers[0]->views[pair.mrs[1].key % IPC_REGIONS_MAX];
	for (int i = 1; i < MEMORY_FILES_MAX; i++) {
		uint64_t at = pair.mrs[1].base + (uint64_t)i * 10000;
		ck_assert_int_eq(ipc_revoke(at, 5000), 0);
		ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 1 << 20), 0);
		/* Through what was mapped before nothing comes any more; by an op it does. */
		before.memory[(uint64_t)i * 10000 + 77] ^= 0xff;
		ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 1 << 20), 0);
		fill(pair.memory[0].base, 1 << 20, (uint64_t)i + 1);
		post(&pair, 0, &op);
		await(&pair, 0, (uint64_t)i + 1, (uint64_t)i + 1);
		ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 1 << 20), 0);
		before = pair.peers[0]->views[pair.mrs[1].key % IPC_REGIONS_MAX];
	}
	ck_assert_int_eq(ipc_revoke(pair.mrs[1].base, 1), -ENOSPC);
	ck_assert_int_eq(ipc_revoke((uint64_t)(uintptr_t)&pair, 1), -ENOENT);
	pair_close(&pair);
}
END_TEST

/* Stops in the middle of a store. */
static void stopped_storing(int socket, const void *arg)
{
	struct end end;

	(void)arg;
	MUST(end_open(&end, socket, 1 << 20, true, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	memset(end.memory.base, 0xaa, end.memory.bytes);
	trap_lay((uint8_t *)end.memory.base + (512 << 10));
	end_post(&end, 0, 1 << 20, 1);
	while (end.sent + end.failed == 0) {
		end_post(&end, 0, 1 << 20, 2);
		end_poll(&end);
	}
	MUST(end.sent == 0 && end.last_status == -ECONNRESET);
}

START_TEST(a_sender_stopped_in_mid_store_writes_into_the_void)
{
	struct end end;
	struct child child = child_start(stopped_storing, NULL);
	uint8_t *bytes;

	ck_ok(end_open(&end, child.socket, 1 << 20, true, &err), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	bytes = end.memory.base;
	child_await_stop(&child);
	/* It has begun, and isn't done: memcpy goes its own ways. */
	ck_assert_ptr_nonnull(memchr(bytes, 0xaa, 1 << 20));
	ck_assert_ptr_nonnull(memchr(bytes, 0, 1 << 20));
	/* As long as it isn't given up there is no end; then there is. */
	for (int i = 0; i < 100; i++)
		ck_assert_int_eq(end.nic->transport->peer_close(end.nic, end.peer, false, false),
				 -EAGAIN);
	ck_assert_int_eq(end_fence(&end, true, PATIENCE_MS), -EBUSY);
	ck_assert_ptr_nonnull(memchr(bytes, 0xaa, 1 << 20));
	memset(bytes, 0xee, 1 << 20);
	kill(child.pid, SIGCONT);
	ck_assert_int_eq(child_wait(&child), 0);
	ck_assert(is_filled(&end.memory, 0xee));
	ck_assert_uint_eq(end.imms, 0);
	end_close(&end);
}
END_TEST

/* What post does, stopped between the look at `closed` and the call. */
static void stopped_before_call(int socket, const void *arg)
{
	static const uint64_t knock = 1;
	struct end end;

	(void)arg;
	MUST(end_open(&end, socket, 4096, false, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	memset(end.memory.base, 0xaa, 4096);
	end.peer->out_tail->at = end.other.base;
	end.peer->out_tail->bytes = 4096;
	end.peer->out_tail->busy = RING_CALLING;
	MUST(end.peer->out_head->closed == 0);
	raise(SIGSTOP);
	struct iovec from[] = {{(void *)(uintptr_t)&knock, sizeof(knock)}, {end.memory.base, 4096}};
	struct iovec to[] = {{(void *)(uintptr_t)end.peer->gate_there, sizeof(knock)},
			     {(void *)(uintptr_t)end.other.base, 4096}};
	MUST(process_vm_writev(end.peer->pid, from, 2, to, 2, 0) == -1);
	MUST(errno == EFAULT);
}

START_TEST(a_sender_stopped_before_its_call_finds_the_gate_shut)
{
	struct end end;
	struct child child = child_start(stopped_before_call, NULL);

	ck_ok(end_open(&end, child.socket, 4096, false, &err), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	child_await_stop(&child);
	void *gate = end.peer->gate;
	ck_assert_int_eq(end_fence(&end, true, PATIENCE_MS), 0);
	memset(end.memory.base, 0xee, 4096);
	/* Nothing may come to lie where the gate was. */
	void *other = mmap(gate, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(other, gate);
	kill(child.pid, SIGCONT);
	ck_assert_int_eq(child_wait(&child), 0);
	ck_assert(is_filled(&end.memory, 0xee));
	munmap(other, 4096);
	end_close(&end);
}
END_TEST

/* It runs, and says for ever that it is in a call: neither stopped, nor done, nor dead. */
static void busy_for_ever(int socket, const void *arg)
{
	struct end end;

	(void)arg;
	MUST(end_open(&end, socket, 4096, false, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	end.peer->out_tail->bytes = 1;
	end.peer->out_tail->busy = RING_CALLING;
	MUST(write(socket, "", 1) == 1);
	for (;;)
		sleep_ns(1000000);
}

START_TEST(a_sender_that_neither_ends_nor_stops_is_reported_in_bounded_time)
{
	struct end end;
	struct child child = child_start(busy_for_ever, NULL);
	char byte;

	ck_ok(end_open(&end, child.socket, 4096, false, &err), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	ck_assert_int_eq(read(child.socket, &byte, 1), 1);
	ck_assert_int_eq(end_fence(&end, true, PATIENCE_MS), -ENOSPC);
	/* Its death is an end, too. */
	child_kill(&child);
	ck_assert_int_eq(end_fence(&end, true, PATIENCE_MS), 0);
	end_close(&end);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("ipc_fence");
	TCase *tests = tcase_create("ipc_fence");

	tcase_set_timeout(tests, 60);
	tcase_add_test(tests, replaced_pages_keep_their_bytes_and_later_writes_find_them);
	tcase_add_test(tests, a_sender_stopped_in_mid_store_writes_into_the_void);
	tcase_add_test(tests, a_sender_stopped_before_its_call_finds_the_gate_shut);
	tcase_add_test(tests, a_sender_that_neither_ends_nor_stops_is_reported_in_bounded_time);
	suite_add_tcase(all, tests);
	return all;
}
