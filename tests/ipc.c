/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ipc's two ends share, against an end that breaks it: rings and doors full of nonsense, files
 * that should be cut short, addresses of processes that are gone or aren't the right ones.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "tests/ipc_ends.h"
#include "tests/transport_pair.h"

static const char *const devices[2] = {"host", "host"};

static void open_pair(struct pair *pair, size_t bytes, bool allocated)
{
	pair_open_in(pair, "ipc", devices, bytes, allocated);
}

/* ---------------------------------------------------------------- what is registered */

START_TEST(a_path_says_how_memory_is_reached)
{
	struct ws_memory own = {0};
	uint8_t engines[64];
	struct nic *nic;
	struct mr mr;

	ck_ok(nic_open(&nic, "ipc", "host", &err), err);
	ck_assert(nic->same_host && nic->fences_one_peer && nic->gpu_memory == cuda_built_in());
	ck_ok(ws_memory_alloc(&own, 1 << 20, &err), err);
	struct ws_memory part = {.base = (uint8_t *)own.base + 100, .bytes = 5000};
	ck_ok(nic->transport->reg(nic, &part, MR_TARGET, &mr, &err), err);
	ck_assert_str_eq(mr.path, "memfd");
	nic->transport->dereg(nic, &mr);
	struct ws_memory borrowed = {.base = engines, .bytes = sizeof(engines)};
	ck_ok(nic->transport->reg(nic, &borrowed, MR_TARGET, &mr, &err), err);
	ck_assert_str_eq(mr.path, "process_vm_writev");
	nic->transport->dereg(nic, &mr);
	/* One stretch over two allocations has two files: it isn't mapped. */
	struct ws_memory over = {.base = own.base, .bytes = own.bytes + 1};
	ck_ok(nic->transport->reg(nic, &over, MR_TARGET, &mr, &err), err);
	ck_assert_str_eq(mr.path, "process_vm_writev");
	nic->transport->dereg(nic, &mr);
	nic_close(nic);
	ws_memory_free(&own);
}
END_TEST

START_TEST(more_registrations_than_a_nic_has_are_refused_with_a_sentence)
{
	static struct mr mrs[IPC_REGIONS_MAX + 1];
	uint8_t byte = 0;
	struct ws_memory memory = {.base = &byte, .bytes = 1};
	struct nic *nic;

	ck_ok(nic_open(&nic, "ipc", "host", &err), err);
	for (uint32_t i = 0; i < IPC_REGIONS_MAX; i++)
		ck_ok(nic->transport->reg(nic, &memory, MR_TARGET, &mrs[i], &err), err);
	ck_fails(nic->transport->reg(nic, &memory, MR_TARGET, &mrs[IPC_REGIONS_MAX], &err), -ENOSPC,
		 err);
	ck_assert_ptr_nonnull(strstr(err.text, "4096"));
	nic->transport->dereg(nic, &mrs[7]);
	ck_ok(nic->transport->reg(nic, &memory, MR_TARGET, &mrs[7], &err), err);
	nic_close(nic);
}
END_TEST

START_TEST(no_file_that_is_shared_can_be_cut_or_grown)
{
	struct pair pair;
	struct memory_files files;

	open_pair(&pair, 1 << 20, true);
	ck_assert(memory_files(pair.memory[1].base, 1, &files));
	int fds[] = {files.files[0].fd, ipc_of(pair.nics[1])->door_fd, pair.peers[1]->ring_fd};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		int fd = shared_open(getpid(), (uint32_t)fds[i]);
		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(ftruncate(fd, 0), -1);
		ck_assert_int_eq(ftruncate(fd, 1 << 24), -1);
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
		ck_assert_int_eq(shared_check(fd, 4096), 0);
		ck_assert_int_eq(shared_check(fd, 1 << 24), -EPROTO);
		close(fd);
	}
	/* One that isn't sealed, or no file at all, is believed by nobody. */
	int loose = memfd_create("loose", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(loose, 1 << 20), 0);
	ck_assert_int_eq(shared_check(loose, 4096), -EPROTO);
	ck_assert_int_eq(shared_check(ipc_of(pair.nics[1])->pipe_fds[0], 0), -EPROTO);
	close(loose);
	pair_close(&pair);
}
END_TEST

/* A sender that writes where only the receiver may dies of it; the receiver doesn't notice. */
static void scribbler(int socket, const void *arg)
{
	struct end end;
	const int *which = arg;

	MUST(end_open(&end, socket, 4096, true, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	signal(SIGSEGV, SIG_DFL); /* sanitizers catch it */
	volatile uint8_t *at = *which == 0 ? (volatile uint8_t *)(uintptr_t)end.peer->out_head
					   : (volatile uint8_t *)(uintptr_t)end.peer->door;
	at[16] = 1;
}

START_TEST(what_the_receiver_alone_writes_is_read_only_to_a_sender)
{
	struct end end;
	struct child child = child_start(scribbler, &_i);

	ck_ok(end_open(&end, child.socket, 4096, true, &err), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	int status = child_wait(&child);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %x",
		      (unsigned)status);
	end_close(&end);
}
END_TEST

/* ---------------------------------------------------------------- nonsense */

START_TEST(a_ring_full_of_nonsense_ends_its_writer_alone)
{
	struct pair pair, good;
	uint64_t random = (uint64_t)_i;

	open_pair(&pair, 4096, true);
	good = pair;
	pair_connect(&good);
	for (int round = 0; round < 20; round++) {
		_Atomic uint32_t *words = (_Atomic uint32_t *)pair.peers[1]->in_tail;
		for (size_t i = 0; i < sizeof(struct ring_tail) / 4; i++) {
			random = mix64(random + i);
			words[i] = (uint32_t)random;
		}
		if (_i > 0) /* barely too many, or fewer than nothing */
			pair.peers[1]->in_tail->put =
				pair.peers[1]->taken + (_i == 1 ? IPC_RING_SLOTS + 1 : UINT32_MAX);
		poll_one(&pair, 1);
	}
	ck_assert_ptr_nonnull(strstr(pair.nics[1]->trouble, "nonsense"));
	/* My own writes to it fail with the reason; another peer's go on in both directions. */
	struct op op = op_make(&pair, 1, 0, 64, 1);
	post(&pair, 1, &op);
	while (pair.failed[1] == 0)
		poll_both(&pair);
	ck_assert_int_eq(pair.last_status, -EPROTO);
	uint64_t imms = pair.imms[1];
	op = op_make(&good, 0, 0, 64, 77);
	post(&pair, 0, &op);
	while (pair.imms[1] == imms)
		poll_both(&pair);
	ck_assert_uint_eq(pair.last_imm.imm, 77);
	ck_assert_ptr_eq(pair.last_imm.peer, good.peers[1]);
	/* It says that it is busy; the NIC's close is bounded all the same. */
	pair_close(&pair);
}
END_TEST

START_TEST(a_reader_that_takes_what_isnt_there_ends_the_connection)
{
	struct pair pair;

	open_pair(&pair, 4096, true);
	pair.peers[1]->in_head->taken = 5;
	struct op op = op_make(&pair, 0, 0, 64, 1);
	post(&pair, 0, &op);
	await(&pair, 0, 1, 0);
	ck_assert_uint_eq(pair.failed[0], 1);
	ck_assert_int_eq(pair.last_status, -EPROTO);
	pair_close(&pair);
}
END_TEST

/* A door that lies is a FAILED op with a reason, whatever it says. */
START_TEST(a_door_full_of_nonsense_is_a_failed_op)
{
	struct pair pair;
	int pipes[2];

	open_pair(&pair, 8192, true);
	ck_assert_int_eq(pipe(pipes), 0);
	struct door_region *region = pair.mrs[1].local;
	struct door_file *file = &region->files[0];
	switch (_i) {
	case 0:
		region->file_count = MEMORY_FILES_MAX + 1;
		break;
	case 1:
		region->file_count = UINT32_MAX;
		break;
	case 2:
		region->base = UINT64_MAX - 100;
		break;
	case 3:
		region->offset = UINT64_MAX - 4096;
		break;
	case 4:
		region->offset = UINT64_C(1) << 40;
		break;
	case 5:
		region->bytes = UINT64_C(1) << 62;
		break;
	case 6:
		file->fd = UINT32_MAX;
		break;
	case 7:
		file->fd = (uint32_t)pipes[0];
		break;
	case 8:
		file->bytes = 4096; /* a hole behind it */
		break;
	case 9:
		file->at = 4096; /* one in front */
		break;
	case 10:
		file->at = UINT64_MAX - 10;
		break;
	case 11: /* an exported stretch longer than the file */
		region->bytes = file->bytes = 1 << 20;
		break;
	case 12: /* not at a page's start */
		region->file_count = 2;
		region->files[1].at = 100;
		region->files[1].bytes = 200;
		region->files[1].fd = file->fd;
		break;
	}
	region->serial += 2;
	struct op op = op_make(&pair, 0, 0, 64, 1);
	post(&pair, 0, &op);
	await(&pair, 0, 1, 0);
	ck_assert_uint_eq(pair.failed[0], 1);
	ck_assert_int_eq(pair.last_status, -EIO);
	ck_assert_uint_eq(pair.imms[1], 0);
	pair_close(&pair);
}
#define DOOR_LIES 13
END_TEST

START_TEST(an_entry_that_keeps_changing_holds_the_sender_up)
{
	struct pair pair;

	open_pair(&pair, 8192, _i != 0);
	struct door_region *region = pair.mrs[1].local;
	region->serial |= 1;
	struct op op = op_make(&pair, 0, 0, 64, 1);
	for (int i = 0; i < 100; i++)
		ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 0);
	region->serial += 1;
	post(&pair, 0, &op);
	await(&pair, 0, 1, 1);
	pair_close(&pair);
}
END_TEST

START_TEST(an_address_beyond_the_end_of_all_is_refused)
{
	struct pair pair;

	open_pair(&pair, 8192, _i != 0);
	const uint64_t remotes[] = {UINT64_MAX, 0, pair.mrs[1].base - 1, pair.mrs[1].base + 8192,
				    pair.mrs[1].base + 8192 - 63};
	for (uint32_t i = 0; i < ARRAY_SIZE(remotes); i++) {
		struct op op = op_make(&pair, 0, 0, 64, i);
		op.remote = remotes[i];
		post(&pair, 0, &op);
		await(&pair, 0, i + 1, 0);
		ck_assert_uint_eq(pair.failed[0], i + 1);
	}
	pair_close(&pair);
}
END_TEST

/* ---------------------------------------------------------------- waiting */

static int bytes_in(int fd)
{
	int count = -1;

	ck_assert_int_eq(ioctl(fd, FIONREAD, &count), 0);
	return count;
}

START_TEST(a_receiver_that_polls_isnt_woken_and_one_that_blocks_is)
{
	struct pair pair;

	open_pair(&pair, 4096, true);
	int fd = ipc_of(pair.nics[1])->pipe_fds[0];
	for (uint32_t i = 0; i < 100; i++) {
		struct op op = op_make(&pair, 0, 0, 64, i);
		post(&pair, 0, &op);
	}
	await(&pair, 0, 100, 100);
	ck_assert_int_eq(bytes_in(fd), 1); /* its own */
	/* After enough empty polls it is empty, and asleep; then each immediate writes. */
	for (int i = 0; i < 2 * IPC_EMPTY_POLLS; i++)
		poll_one(&pair, 1);
	struct pollfd wait = {.fd = pair.nics[1]->wait_fd, .events = POLLIN};
	ck_assert_int_eq(poll(&wait, 1, 0), 0);
	struct op op = op_make(&pair, 0, 0, 64, 1);
	ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
	ck_assert_int_eq(poll(&wait, 1, 0), 1);
	ck_assert_int_eq(poll_one(&pair, 1), 1);
	pair_close(&pair);
}
END_TEST

/* Also when the reader is slow to come: it takes what came meanwhile before it blocks again. */
START_TEST(the_ops_of_a_post_share_one_wake_up)
{
	struct pair pair;
	struct op ops[64];

	open_pair(&pair, 4096, true);
	for (uint32_t i = 0; i < ARRAY_SIZE(ops); i++)
		ops[i] = op_make(&pair, 0, 0, 64, i);
	const struct transport *transport = pair.nics[0]->transport;
	int fd = ipc_of(pair.nics[1])->pipe_fds[0];
	for (uint32_t turn = 1; turn <= 3; turn++) {
		for (int i = 0; i < 2 * IPC_EMPTY_POLLS; i++)
			poll_one(&pair, 1);
		ck_assert_int_eq(bytes_in(fd), 0);
		ck_assert_int_eq(transport->post(pair.nics[0], ops, 64), 64);
		ck_assert_int_eq(bytes_in(fd), 1);
		ck_assert_int_eq(transport->post(pair.nics[0], ops, 64), 64);
		ck_assert_int_eq(bytes_in(fd), 1);
		await(&pair, 0, 128 * turn, 128 * turn);
	}
	pair_close(&pair);
}
END_TEST

START_TEST(a_post_that_has_copied_enough_takes_no_more)
{
	struct pair pair;
	struct op ops[8];

	open_pair(&pair, IPC_POST_BYTES / 2, _i != 0);
	for (uint32_t i = 0; i < ARRAY_SIZE(ops); i++)
		ops[i] = op_make(&pair, 0, 0, IPC_POST_BYTES / 2, i);
	for (uint32_t i = 1; i <= ARRAY_SIZE(ops) / 2; i++) {
		int taken = pair.nics[0]->transport->post(pair.nics[0], ops, ARRAY_SIZE(ops));
		ck_assert_int_eq(taken, 2);
		await(&pair, 0, 2 * i, 2 * i);
	}
	pair_close(&pair);
}
END_TEST

#define ROUNDS 1000

/* Answers each burst, whose length both know, by one immediate. */
static void answerer(int socket, const void *arg)
{
	uint64_t imms = 0;
	struct end end;

	(void)arg;
	MUST(end_open(&end, socket, 4096, true, &err) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		imms += 1 + i % 7;
		MUST(block_for(&end, imms));
		burst(&end, 1);
	}
	MUST(block_for(&end, imms + 1));
}

START_TEST(no_immediate_is_slept_over_between_two_processes)
{
	struct end end;
	struct child child = child_start(answerer, NULL);

	ck_ok(end_open(&end, child.socket, 4096, true, &err), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		/* At any moment of the other's way into sleep. */
		for (uint64_t until = clock_ns() + mix64(i) % 30000; clock_ns() < until;)
			;
		burst(&end, 1 + i % 7);
		ck_assert_msg(block_for(&end, i + 1), "asleep in round %u", i);
	}
	burst(&end, 1);
	ck_assert_int_eq(child_wait(&child), 0);
	end_close(&end);
}
END_TEST

/* ---------------------------------------------------------------- who is who */

static void opener(int socket, const void *arg)
{
	const bool *allocated = arg;
	char byte;
	struct end end;

	MUST(end_open(&end, socket, 4096, *allocated, &err) == 0);
	MUST(read(socket, &byte, 1) >= 0);
}

START_TEST(a_dead_peer_wakes_a_waiter_and_its_ops_fail_by_name)
{
	bool allocated = _i != 0;
	struct end end;
	char text[64];
	struct child child = child_start(opener, &allocated);
	const struct transport *transport;

	ck_ok(end_open(&end, child.socket, 4096, allocated, &err), err);
	transport = end.nic->transport;
	ck_ok(transport->peer_connect(end.nic, end.peer, &end.other.address, &err), err);
	for (int i = 0; i < 2 * IPC_EMPTY_POLLS; i++)
		end_poll(&end);
	struct pollfd wait = {.fd = end.nic->wait_fd, .events = POLLIN};
	ck_assert_int_eq(poll(&wait, 1, 0), 0);
	snprintf(text, sizeof(text), "the peer process %d has died", (int)child.pid);
	child_kill(&child);
	ck_assert_int_eq(poll(&wait, 1, PATIENCE_MS), 1);
	end_poll(&end);
	ck_assert_int_eq(end_post(&end, 0, 64, 1), 1);
	end_poll(&end);
	ck_assert_int_eq(end.last_status, -ECONNRESET);
	ck_assert_str_eq(end.last_reason, text);
	ck_assert_ptr_nonnull(strstr(end.nic->trouble, "has died"));
	ck_assert_int_eq(end_fence(&end, false, PATIENCE_MS), 0);
	/* Its address leads nowhere any more. */
	struct address address;
	ck_ok(transport->peer_open(end.nic, &end.peer, &address, &err), err);
	ck_fails(transport->peer_connect(end.nic, end.peer, &end.other.address, &err), -ECONNRESET,
		 err);
	end_close(&end);
}
END_TEST

/* Without a poll in between: a NIC whose other peers keep it busy finds no time to look. */
START_TEST(a_ring_that_nobody_reads_any_more_fails_what_is_posted)
{
	bool allocated = _i != 0;
	struct end end;
	struct child child = child_start(opener, &allocated);

	ck_ok(end_open(&end, child.socket, 4096, allocated, &err), err);
	ck_ok(end.nic->transport->peer_connect(end.nic, end.peer, &end.other.address, &err), err);
	for (uint32_t i = 0; i < IPC_RING_SLOTS; i++)
		ck_assert_int_eq(end_post(&end, 0, 64, i), 1);
	while (end.sent < IPC_RING_SLOTS)
		end_poll(&end);
	ck_assert_int_eq(end_post(&end, 0, 64, 0), 0);
	child_kill(&child);
	ck_assert_int_eq(end_post(&end, 0, 64, 0), 1);
	end_poll(&end);
	ck_assert_uint_eq(end.failed, 1);
	ck_assert_int_eq(end.last_status, -ECONNRESET);
	end_close(&end);
}
END_TEST

/* The number of a process that came later, or of another one, with the same files open. */
START_TEST(another_process_with_the_same_number_isnt_believed)
{
	bool allocated = true;
	struct hello hello;
	struct end end;
	struct child child = child_start(opener, &allocated),
		     other = child_start(opener, &allocated);

	ck_ok(end_open(&end, child.socket, 4096, true, &err), err);
	uint32_t pid = (uint32_t)other.pid;
	/* When it has told its address it has the same numbers open. */
	ck_assert_int_eq(read(other.socket, &hello, sizeof(hello)), sizeof(hello));
	for (int i = 0; i < 4; i++)
		end.other.address.bytes[4 + i] = (uint8_t)(pid >> 8 * i);
	int rc = end.nic->transport->peer_connect(end.nic, end.peer, &end.other.address, &err);
	ck_assert_msg(rc == -ECONNRESET || rc == -ENOTSUP, "%d: %s", rc, err.text);
	child_kill(&child);
	child_kill(&other);
	end_close(&end);
}
END_TEST

START_TEST(what_isnt_a_pipe_is_never_written_to)
{
	struct pair pair;
	struct peer *peers[2];
	struct address address;

	open_pair(&pair, 4096, true);
	const struct transport *transport = pair.nics[0]->transport;
	for (int i = 0; i < 2; i++)
		ck_ok(transport->peer_open(pair.nics[i], &peers[i], &address, &err), err);
	int file = memfd_create("precious", MFD_CLOEXEC);
	memcpy(&address.bytes[16], &file, sizeof(file));
	ck_fails(transport->peer_connect(pair.nics[0], peers[0], &address, &err), -EPROTO, err);
	close(file);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("ipc");
	TCase *tests = tcase_create("ipc");

	tcase_set_timeout(tests, 60);
	tcase_add_test(tests, a_path_says_how_memory_is_reached);
	tcase_add_test(tests, more_registrations_than_a_nic_has_are_refused_with_a_sentence);
	tcase_add_test(tests, no_file_that_is_shared_can_be_cut_or_grown);
	tcase_add_loop_test(tests, what_the_receiver_alone_writes_is_read_only_to_a_sender, 0, 2);
	tcase_add_loop_test(tests, a_ring_full_of_nonsense_ends_its_writer_alone, 0, 3);
	tcase_add_test(tests, a_reader_that_takes_what_isnt_there_ends_the_connection);
	tcase_add_loop_test(tests, a_door_full_of_nonsense_is_a_failed_op, 0, DOOR_LIES);
	tcase_add_loop_test(tests, an_entry_that_keeps_changing_holds_the_sender_up, 0, 2);
	tcase_add_loop_test(tests, an_address_beyond_the_end_of_all_is_refused, 0, 2);
	tcase_add_test(tests, a_receiver_that_polls_isnt_woken_and_one_that_blocks_is);
	tcase_add_test(tests, the_ops_of_a_post_share_one_wake_up);
	tcase_add_loop_test(tests, a_post_that_has_copied_enough_takes_no_more, 0, 2);
	tcase_add_test(tests, no_immediate_is_slept_over_between_two_processes);
	tcase_add_loop_test(tests, a_dead_peer_wakes_a_waiter_and_its_ops_fail_by_name, 0, 2);
	tcase_add_loop_test(tests, a_ring_that_nobody_reads_any_more_fails_what_is_posted, 0, 2);
	tcase_add_test(tests, another_process_with_the_same_number_isnt_believed);
	tcase_add_test(tests, what_isnt_a_pipe_is_never_written_to);
	suite_add_tcase(all, tests);
	return all;
}
