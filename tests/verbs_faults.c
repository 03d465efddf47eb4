/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong on an RDMA device: both ends on one device, looped to itself, or in two
 * processes.  It is the first usable device of this host, or WS_VERBS="rxe1/1".  What reconfigures
 * a network interface runs only where one may be broken: WS_VERBS_NETDEV="eth0" (tests/vm).
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/transport_ends.h"
#include "tests/transport_pair.h"

#define WINDOW_MAX 128 /* no peer lets more writes be under way */

static char device[NIC_NAME_MAX];
static const char *netdev;

/* The device at both ends, each with options of its own. */
static void open_with(struct pair *pair, const char *first, const char *second, size_t bytes)
{
	char names[2][2 * NIC_NAME_MAX];

	snprintf(names[0], sizeof(names[0]), "%s%s", device, first);
	snprintf(names[1], sizeof(names[1]), "%s%s", device, second);
	pair_open(pair, "verbs", (const char *const[]){names[0], names[1]}, bytes);
}

/* Waits until the NIC says something of itself. */
static void await_trouble(struct nic *nic, const char *text)
{
	struct event events[EVENTS_MAX];

	for (uint64_t deadline = deadline_in_ms(DEADLINE_MS);;) {
		ck_assert_msg(clock_ns() < deadline, "'%s' instead of '%s'", nic->trouble, text);
		int count = nic->transport->poll(nic, events, EVENTS_MAX);
		for (int i = 0; i < count; i++)
			if (events[i].kind == EVENT_NIC && strstr(nic->trouble, text) != NULL)
				return;
	}
}

static void run_command(const char *format, const char *first, const char *second)
{
	char command[160];

	snprintf(command, sizeof(command), format, first, second);
	ck_assert_msg(system(command) == 0, "failed: %s", command);
}

/* "10.0.1.1/24" */
static void address_of(const char *interface, char *text, int room)
{
	char command[96];

	snprintf(command, sizeof(command), "ip -o -4 addr show dev %s | grep -o '[0-9.]*/[0-9]*'",
		 interface);
	FILE *out = popen(command, "r");
	ck_assert_ptr_nonnull(out);
	ck_assert_ptr_nonnull(fgets(text, room, out));
	ck_assert_int_eq(pclose(out), 0);
	text[strcspn(text, "\n")] = 0;
}

/* ---------------------------------------------------------------- refused writes */

START_TEST(a_refused_write_names_the_reason_and_the_rest_is_flushed)
{
	enum { OPS = 20 };
	struct pair pair;

	open_with(&pair, "", "", 1 << 16);
	struct op ops[OPS];
	for (uint32_t i = 0; i < OPS; i++)
		ops[i] = op_make(&pair, 0, 0, 4096, i);
	if (_i == 0)
		ops[0].remote_key ^= 0x5a00;
	else
		ops[0].remote += (1 << 16) - 1;
	ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], ops, OPS), OPS);
	await(&pair, 0, OPS, 0);
	ck_assert_uint_eq(pair.failed[0], OPS);
	ck_assert_uint_eq(pair.imms[1], 0);
	ck_assert_int_eq(pair.last_status, -EIO);
	ck_assert_str_eq(pair.last_reason, "remote access error");
	close_peer(&pair, 0, false);
	close_peer(&pair, 1, true);
	/* The NICs are as good as before. */
	pair_connect(&pair);
	struct op op = op_make(&pair, 0, 0, 4096, 7);
	post(&pair, 0, &op);
	await(&pair, 0, OPS + 1, 1);
	ck_assert_uint_eq(pair.sent[0], 1);
	pair_close(&pair);
}
END_TEST

START_TEST(without_a_receive_a_write_fails_in_time)
{
	struct pair pair;

	open_with(&pair, "", "?receives=0", 4096);
	struct op op = op_make(&pair, 0, 0, 4096, 7);
	post(&pair, 0, &op);
	await(&pair, 0, 1, 0);
	ck_assert_uint_eq(pair.failed[0], 1);
	ck_assert_uint_eq(pair.imms[1], 0);
	ck_assert_str_eq(pair.last_reason, "RNR retry counter exceeded");
	pair_close(&pair);
}
END_TEST

/* ---------------------------------------------------------------- queues */

START_TEST(a_completion_queue_that_is_too_small_loses_the_nic_loudly)
{
	struct event events[EVENTS_MAX];
	struct pair pair;
	int count = 0;

	open_with(&pair, "", "?cq=16", 4096);
	for (uint32_t i = 0; i < 60; i++) {
		struct op op = op_make(&pair, 0, 0, 64, i);
		ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
	}
	for (uint64_t until = deadline_in_ms(300); clock_ns() < until;)
		poll_one(&pair, 0);
	for (uint64_t deadline = deadline_in_ms(DEADLINE_MS); count >= 0;) {
		ck_assert(clock_ns() < deadline);
		count = pair.nics[1]->transport->poll(pair.nics[1], events, EVENTS_MAX);
	}
	ck_assert_int_eq(count, -EIO);
	ck_assert_ptr_nonnull(strstr(pair.nics[1]->trouble, "completion queue ran over"));
	struct op op = op_make(&pair, 1, 0, 64, 1);
	ck_assert_int_eq(pair.nics[1]->transport->post(pair.nics[1], &op, 1), -EIO);
	pair_close(&pair);
}
END_TEST

/* Credits: who doesn't poll is waited for, and nothing runs over. */
START_TEST(a_receiver_that_doesnt_poll_holds_its_sender_up)
{
	enum { OPS = 1000 };
	struct pair pair;
	uint32_t posted = 0;

	open_with(&pair, "", "", 4096);
	for (uint64_t until = deadline_in_ms(500); clock_ns() < until;) {
		struct op op = op_make(&pair, 0, 0, 64, posted);
		posted += (uint32_t)pair.nics[0]->transport->post(pair.nics[0], &op, 1);
		poll_one(&pair, 0);
	}
	ck_assert_uint_gt(posted, WINDOW_MAX / 2);
	ck_assert_uint_le(posted, WINDOW_MAX);
	while (posted < OPS) {
		struct op op = op_make(&pair, 0, 0, 64, posted++);
		post(&pair, 0, &op);
	}
	await(&pair, 0, OPS, OPS);
	ck_assert_uint_eq(pair.sent[0], OPS);
	ck_assert_str_eq(pair.nics[1]->trouble, "");
	pair_close(&pair);
}
END_TEST

START_TEST(receives_are_shared_out_until_none_is_left)
{
	enum { PEERS_MAX = 2048 };
	struct address address;
	struct nic *nic;
	struct peer *peer;
	int count = 0, rc = 0;

	ck_ok(nic_open(&nic, "verbs", device, &err), err);
	while (rc == 0 && count < PEERS_MAX) {
		rc = nic->transport->peer_open(nic, &peer, &address, &err);
		count += rc == 0;
	}
	ck_assert_int_eq(rc, -ENOSPC);
	ck_assert_int_gt(count, 256);
	ck_assert_ptr_nonnull(strstr(err.text, "no room for one more"));
	nic_close(nic);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(memory_above_the_memlock_limit_is_refused_with_need_and_limit)
{
	struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
	bool root = getuid() == 0;
	struct ws_memory memory;
	struct nic *nic;
	struct mr mr;

	ck_ok(nic_open(&nic, "verbs", device, &err), err);
	memory_make(&memory, 4 << 20, false);
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	if (root) /* without CAP_IPC_LOCK */
		ck_assert_int_eq(setresuid(65534, 65534, 0), 0);
	ck_fails(nic->transport->reg(nic, &memory, MR_TARGET, &mr, &err), -ENOSPC, err);
	ck_assert_ptr_nonnull(strstr(err.text, "ulimit -l"));
	ck_assert_ptr_nonnull(strstr(err.text, "1048576"));
	memory.bytes = 65536;
	ck_ok(nic->transport->reg(nic, &memory, MR_TARGET, &mr, &err), err);
	ck_assert_str_eq(mr.path, "host");
	if (root)
		ck_assert_int_eq(setresuid(0, 0, 0), 0);
	nic_close(nic);
	free(memory.base);
}
END_TEST

/* ---------------------------------------------------------------- addresses */

START_TEST(ends_with_different_mtus_use_the_smaller)
{
	struct pair pair;

	open_with(&pair, _i == 0 ? "?mtu=256" : "?mtu=1024", _i == 0 ? "?mtu=4096" : "?mtu=512",
		  1 << 20);
	fill(pair.memory[0].base, 1 << 20, 5);
	for (int i = 0; i < 2; i++) {
		struct op op = op_make(&pair, i, 0, 1 << 20, 1);
		post(&pair, i, &op);
		await(&pair, i, 1, 1);
	}
	ck_assert_uint_eq(pair.sent[0] + pair.sent[1], 2);
	ck_assert_int_eq(memcmp(pair.memory[0].base, pair.memory[1].base, 1 << 20), 0);
	pair_close(&pair);
}
END_TEST

/* One end in the network's new state: 16 ops arrive over a fresh connection. */
static void works_again(struct pair *pair)
{
	uint64_t reports = pair->sent[0] + pair->failed[0], sent = pair->sent[0];
	uint64_t imms = pair->imms[1];

	pair_connect(pair);
	for (uint32_t i = 0; i < 16; i++) {
		struct op op = op_make(pair, 0, 0, 4096, i);
		post(pair, 0, &op);
	}
	await(pair, 0, reports + 16, imms + 16);
	ck_assert_uint_eq(pair->sent[0], sent + 16);
	close_peer(pair, 0, false);
	close_peer(pair, 1, true);
}

START_TEST(a_gid_that_changes_is_said_and_the_next_connection_uses_the_new_one)
{
	char address[64];
	struct pair pair;

	address_of(netdev, address, sizeof(address));
	open_with(&pair, "", "", 4096);
	run_command("ip addr del %s dev %s", address, netdev);
	run_command("ip addr add %s dev %s", "10.9.9.9/24", netdev);
	await_trouble(pair.nics[0], "GID");
	for (int i = 0; i < 2; i++)
		close_peer(&pair, i, i == 1);
	works_again(&pair);
	ck_assert_ptr_nonnull(strstr(pair.nics[0]->trouble, "10.9.9.9"));
	run_command("ip addr del %s dev %s", "10.9.9.9/24", netdev);
	run_command("ip addr add %s dev %s", address, netdev);
	works_again(&pair);
	pair_close(&pair);
}
END_TEST

START_TEST(a_port_that_goes_down_says_so_fails_its_ops_and_comes_back)
{
	struct pair pair;

	open_with(&pair, "", "", 1 << 20);
	run_command("ip link set %s%s down", netdev, "");
	await_trouble(pair.nics[0], "is down");
	ck_assert(pair.nics[0]->down);
	struct op op = op_make(&pair, 0, 0, 4096, 1);
	post(&pair, 0, &op);
	await(&pair, 0, 1, 0);
	ck_assert_uint_eq(pair.failed[0], 1);
	ck_assert_int_eq(pair.last_status, -ENETDOWN);
	run_command("ip link set %s%s up", netdev, "");
	await_trouble(pair.nics[0], "was down for");
	ck_assert(!pair.nics[0]->down);
	for (int i = 0; i < 2; i++)
		close_peer(&pair, i, i == 1);
	works_again(&pair);
	pair_close(&pair);
}
END_TEST

/* ---------------------------------------------------------------- a peer in another process */

/* Takes writes until it is killed. */
static void receiver_run(int socket, const void *arg)
{
	struct end end;

	(void)arg;
	MUST(end_open_on(&end, "verbs", device, socket, 1 << 20, false, NULL) == 0);
	MUST(end_connect(&end, socket, NULL) == 0);
	for (;;)
		if (end_poll(&end) == 0)
			usleep(1000);
}

static struct child receiver_start(struct end *end)
{
	struct child receiver = child_start(receiver_run, NULL);

	ck_ok(end_open_on(end, "verbs", device, receiver.socket, 1 << 20, false, &err), err);
	ck_ok(end_connect(end, receiver.socket, &err), err);
	return receiver;
}

#define OPS_EACH 400

/* So many writes, in the middle of which the receiver gets a signal; until all that were posted are
 * reported, or nothing has moved for stuck_ms. */
static void write_while(struct end *end, const struct child *receiver, int signal_number,
			uint64_t stuck_ms)
{
	uint64_t goal = end->posted + OPS_EACH;
	siginfo_t told;

	for (uint64_t deadline = deadline_in_ms(stuck_ms);
	     end->sent + end->failed < goal && clock_ns() < deadline;) {
		int taken = end->posted < goal ? end_post(end, 0, 16384, 0) : 0;
		int count = end_poll(end);
		ck_assert_int_ge(taken, 0);
		ck_assert_int_ge(count, 0);
		if (end->sent >= 50 && signal_number != 0) {
			kill(receiver->pid, signal_number);
			signal_number = 0;
			/* It may die or stop only after it has taken the rest. */
			waitid(P_PID, (id_t)receiver->pid, &told, WEXITED | WSTOPPED | WNOWAIT);
		}
		if (taken + count > 0)
			deadline = deadline_in_ms(stuck_ms);
		else
			usleep(1000);
	}
}

START_TEST(a_killed_receiver_fails_the_writes_in_time)
{
	struct end end;
	struct child receiver = receiver_start(&end);

	write_while(&end, &receiver, SIGKILL, DEADLINE_MS);
	child_kill(&receiver);
	ck_assert_uint_ge(end.sent, 50);
	ck_assert_uint_gt(end.failed, 0);
	ck_assert_uint_eq(end.sent + end.failed, OPS_EACH);
	end_close(&end);
}
END_TEST

START_TEST(a_stopped_receiver_holds_up_the_writes_and_can_be_fenced)
{
	struct end end;
	struct child receiver = receiver_start(&end);

	write_while(&end, &receiver, SIGSTOP, 1000);
	ck_assert_uint_eq(end.failed, 0);
	ck_assert_uint_lt(end.sent, OPS_EACH);
	if (_i == 0) { /* it goes on where it was */
		kill(receiver.pid, SIGCONT);
		write_while(&end, &receiver, 0, DEADLINE_MS);
		ck_assert_uint_eq(end.sent, end.posted);
		ck_assert_uint_eq(end.failed, 0);
	}
	ck_assert_int_eq(end_fence(&end, false, DEADLINE_MS), 0);
	child_kill(&receiver);
	end_close(&end);
}
END_TEST

/* ---------------------------------------------------------------- which device */

static bool device_find(void)
{
	const char *named = getenv("WS_VERBS");
	struct arena arena = {0};
	struct nic_info *infos;
	uint32_t count = 0;

	netdev = getenv("WS_VERBS_NETDEV");
	if (named != NULL)
		snprintf(device, sizeof(device), "%s", named);
	else if (nics_list(&arena, "verbs", NULL, &infos, &count, &err) == 0)
		for (uint32_t i = count; i-- > 0;)
			if (infos[i].skipped[0] == 0)
				snprintf(device, sizeof(device), "%s", infos[i].device);
	arena_release(&arena);
	return device[0] != 0;
}

Suite *suite(void)
{
	if (!device_find()) {
		printf("verbs_faults: this host has no usable RDMA device; tests/vm has\n");
		return NULL;
	}
	Suite *all = suite_create("verbs_faults");
	TCase *tests = tcase_create("verbs_faults");
	tcase_set_timeout(tests, 90);
	tcase_add_loop_test(tests, a_refused_write_names_the_reason_and_the_rest_is_flushed, 0, 2);
	tcase_add_test(tests, without_a_receive_a_write_fails_in_time);
	tcase_add_test(tests, a_completion_queue_that_is_too_small_loses_the_nic_loudly);
	tcase_add_test(tests, a_receiver_that_doesnt_poll_holds_its_sender_up);
	tcase_add_test(tests, receives_are_shared_out_until_none_is_left);
	tcase_add_loop_test(tests, ends_with_different_mtus_use_the_smaller, 0, 2);
	tcase_add_test(tests, a_killed_receiver_fails_the_writes_in_time);
	tcase_add_loop_test(tests, a_stopped_receiver_holds_up_the_writes_and_can_be_fenced, 0, 2);
	tcase_add_test(tests, memory_above_the_memlock_limit_is_refused_with_need_and_limit);
	if (netdev == NULL) {
		printf("not run: what breaks a network interface, unless WS_VERBS_NETDEV names one\n");
	} else {
		tcase_add_test(tests,
			       a_gid_that_changes_is_said_and_the_next_connection_uses_the_new_one);
		tcase_add_test(tests, a_port_that_goes_down_says_so_fails_its_ops_and_comes_back);
	}
	suite_add_tcase(all, tests);
	return all;
}
