/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that may not open each other's files, or not write into each other by system calls.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include "tests/ipc_ends.h"

static struct ws_error err;

#define NOBODY 65534

/* Root may open whatever it likes. */
static bool become_nobody(void)
{
	return getuid() != 0 || (setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
}

/* Nothing of it can be opened, but by root. */
static void undumpable(int socket, const void *arg)
{
	const bool *allocated = arg;
	char byte;
	struct end end;

	MUST(become_nobody());
	MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
	MUST(end_open(&end, socket, 4096, *allocated, &err) == 0);
	MUST(read(socket, &byte, 1) >= 0);
}

START_TEST(a_process_that_lets_nobody_in_is_named_with_a_remedy)
{
	bool allocated = true;
	struct end end;

	struct child child = child_start(undumpable, &allocated);
	ck_assert(become_nobody());
	ck_ok(end_open(&end, child.socket, 4096, true, &err), err);
	ck_fails(end.nic->transport->peer_connect(end.nic, end.peer, &end.other.address, &err),
		 -ENOTSUP, err);
	ck_assert_ptr_nonnull(strstr(err.text, "undumpable"));
	close(child.socket);
	end_close(&end);
}
END_TEST

/* What Yama does, where a kernel has it: EPERM to whoever calls process_vm_writev. */
static void calls_forbid(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = ARRAY_SIZE(steps), .filter = steps};

	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Mapped memory needs no such call; other memory is refused while connecting, with the remedies. */
static void forbidden_sender(int socket, const void *arg)
{
	const bool *allocated = arg;
	struct end end;

	calls_forbid();
	MUST(end_open(&end, socket, 4096, true, &err) == 0);
	if (!*allocated) {
		MUST(end.nic->transport->peer_connect(end.nic, end.peer, &end.other.address,
						      &err) == -ENOTSUP);
		MUST(strstr(err.text, "ptrace_scope") != NULL);
		MUST(strstr(err.text, "ws_memory_alloc") != NULL);
		return;
	}
	MUST(end_connect(&end, socket, &err) == 0);
	burst(&end, 1);
	end_poll(&end);
	MUST(end.sent == 1);
	MUST(block_for(&end, 1)); /* until the other has registered more */
	MUST(read(socket, &end.other, sizeof(end.other)) == sizeof(end.other));
	burst(&end, 1);
	end_poll(&end);
	MUST(end.failed == 1 && end.last_status == -EIO);
	MUST(strstr(end.last_reason, "process_vm_writev") != NULL);
}

START_TEST(who_may_not_call_is_told_at_connect_and_not_bothered_where_memory_is_mapped)
{
	static uint8_t engines[4096];
	bool allocated = _i != 0;
	struct end end;
	struct child child = child_start(forbidden_sender, &allocated);

	ck_ok(end_open(&end, child.socket, 4096, allocated, &err), err);
	if (allocated) {
		struct ws_memory memory = {.base = engines, .bytes = sizeof(engines)};
		struct mr mr;
		ck_ok(end_connect(&end, child.socket, &err), err);
		ck_assert(block_for(&end, 1));
		ck_ok(end.nic->transport->reg(end.nic, &memory, MR_TARGET, &mr, &err), err);
		struct hello more = {.key = mr.key, .base = mr.base};
		burst(&end, 1);
		ck_assert_int_eq(write(child.socket, &more, sizeof(more)), sizeof(more));
	}
	ck_assert_int_eq(child_wait(&child), 0);
	end_close(&end);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("ipc_rights");
	TCase *tests = tcase_create("ipc_rights");

	tcase_set_timeout(tests, 60);
	tcase_add_test(tests, a_process_that_lets_nobody_in_is_named_with_a_remedy);
	tcase_add_loop_test(
		tests, who_may_not_call_is_told_at_connect_and_not_bothered_where_memory_is_mapped,
		0, 2);
	suite_add_tcase(all, tests);
	return all;
}
