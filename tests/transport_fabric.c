/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is special to libfabric: two processes, of which one is killed or stopped in mid
 * transfer, the fence against a sender that can't answer, and endpoints that are set aside.
 * The child is always a process of its own that opens its NIC after the fork.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/transport/fabric.h"
#include "tests/transport_pair.h"

#define OPS   64
#define BYTES (UINT64_C(1) << 20)

/* What each end tells the other over the socket pair. */
struct hello {
	struct address address;
	uint64_t key, base;
};

struct end {
	struct nic *nic;
	struct peer *peer;
	struct ws_memory memory;
	struct mr mr;
	struct hello theirs;
	int link;
	pid_t child; /* of the parent's end */
	uint64_t sent, failed, imms;
	int last_status;
};

static void end_open(struct end *end, const char *device)
{
	struct hello mine;

	memory_make(&end->memory, OPS * BYTES, false);
	ck_ok(nic_open(&end->nic, "fabric", device, &err), err);
	ck_ok(end->nic->transport->reg(end->nic, &end->memory, MR_TARGET, &end->mr, &err), err);
	ck_ok(end->nic->transport->peer_open(end->nic, &end->peer, &mine.address, &err), err);
	mine.key = end->mr.key;
	mine.base = end->mr.base;
	ck_assert_int_eq(write(end->link, &mine, sizeof(mine)), sizeof(mine));
	ck_assert_int_eq(recv(end->link, &end->theirs, sizeof(end->theirs), MSG_WAITALL),
			 sizeof(mine));
	ck_ok(end->nic->transport->peer_connect(end->nic, end->peer, &end->theirs.address, &err),
	      err);
}

static void end_poll(struct end *end)
{
	struct event events[EVENTS_MAX];
	int got = end->nic->transport->poll(end->nic, events, EVENTS_MAX);

	for (int i = 0; i < got; i++) {
		end->sent += events[i].kind == EVENT_SENT;
		end->failed += events[i].kind == EVENT_FAILED;
		end->imms += events[i].kind == EVENT_IMM;
		if (events[i].kind == EVENT_FAILED)
			end->last_status = events[i].status;
	}
}

/* Posts the first so many ops, or until nothing more is taken for a while; how many were taken. */
static uint64_t end_post(struct end *end, uint64_t ops)
{
	uint64_t posted = 0, deadline = deadline_in_ms(DEADLINE_MS);

	while (posted < ops && clock_ns() < deadline) {
		struct op op = {.peer = end->peer,
				.local = (uint8_t *)end->memory.base + posted * BYTES,
				.local_mr = &end->mr,
				.remote = end->theirs.base + posted * BYTES,
				.remote_key = end->theirs.key,
				.bytes = BYTES,
				.id = posted,
				.imm = (uint32_t)posted};
		int taken = end->nic->transport->post(end->nic, &op, 1);
		if (taken == 1)
			posted++;
		else
			end_poll(end);
	}
	return posted;
}

static void end_await(struct end *end, uint64_t reports, uint64_t imms)
{
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);

	while (end->sent + end->failed < reports || end->imms < imms) {
		ck_assert_msg(clock_ns() < deadline, "%llu sent, %llu failed, %llu imms",
			      (unsigned long long)end->sent, (unsigned long long)end->failed,
			      (unsigned long long)end->imms);
		end_poll(end);
	}
}

static int end_close_peer(struct end *end, bool quiet, bool abandon)
{
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	int rc;

	while ((rc = end->nic->transport->peer_close(end->nic, end->peer, quiet, abandon)) ==
		       -EAGAIN &&
	       clock_ns() < deadline)
		end_poll(end);
	return rc;
}

static void say(struct end *end, char word)
{
	ck_assert_int_eq(write(end->link, &word, 1), 1);
}

static char hear(struct end *end)
{
	char word = 0;

	ck_assert_int_eq(recv(end->link, &word, 1, MSG_WAITALL), 1);
	return word;
}

static bool has_said(const struct end *end)
{
	struct pollfd told = {.fd = end->link, .events = POLLIN};

	return poll(&told, 1, 0) == 1;
}

/* A child that posts everything, then polls until it is told to end; says how its ops ended. */
static void sender_main(struct end *end)
{
	end_open(end, "tcp/127.0.0.2");
	memset(end->memory.base, 0x11, end->memory.bytes);
	uint64_t posted = end_post(end, OPS);
	say(end, posted == OPS ? 'p' : 'x');
	while (!has_said(end))
		end_poll(end);
	/* After the end of its receiver every op must have an end of its own. */
	end_await(end, OPS, 0);
	say(end, end->failed > 0 && end->last_status == -ECONNRESET ? 'f' : 's');
	end_close_peer(end, false, false);
	nic_close(end->nic);
	_exit(0);
}

/* A child that writes all of its region as one op: says when the kernel has of it what it takes,
 * and goes on when it is told to, until the op fails. */
static void big_sender_main(struct end *end)
{
	end_open(end, "tcp/127.0.0.2");
	memset(end->memory.base, 0x11, end->memory.bytes);
	end_post(end, 1);
	end_await(end, 1, 0);
	say(end, 'c'); /* connected */
	hear(end);
	struct op op = {.peer = end->peer,
			.local = end->memory.base,
			.local_mr = &end->mr,
			.remote = end->theirs.base,
			.remote_key = end->theirs.key,
			.bytes = OPS * BYTES};
	while (end->nic->transport->post(end->nic, &op, 1) == 0)
		end_poll(end);
	say(end, 'h'); /* half of it is on its way, if so much */
	hear(end);
	while (end->failed == 0)
		end_poll(end);
	say(end, 'f');
	_exit(0);
}

/* Returns in the middle of the child's big op: it has begun to land, and can't have ended, since
 * nobody read while it was posted. */
static void receive_half(struct end *end)
{
	const volatile uint8_t *bytes = end->memory.base;

	ck_until(has_said(end), end_poll(end));
	ck_assert_int_eq(hear(end), 'c');
	memset(end->memory.base, 0, BYTES);
	say(end, 'b');
	ck_assert_int_eq(hear(end), 'h');
	ck_until(bytes[0] != 0, end_poll(end));
	ck_assert_uint_eq(bytes[end->memory.bytes - 1], 0);
	ck_assert_uint_eq(end->imms, 1);
	say(end, 'g');
}

static void receiver_main(struct end *end)
{
	end_open(end, "tcp/127.0.0.2");
	say(end, 'r');
	for (;;)
		end_poll(end);
}

static void fork_end(struct end *end, void (*child)(struct end *end))
{
	int pair[2];

	memset(end, 0, sizeof(*end));
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	end->child = fork();
	ck_assert_int_ge(end->child, 0);
	end->link = pair[end->child == 0];
	close(pair[end->child != 0]);
	if (end->child == 0) {
		alarm(2 * PATIENCE_MS / 1000);
		child(end);
		_exit(1);
	}
	end_open(end, "tcp/127.0.0.1");
}

static void end_finish(struct end *end)
{
	int status;

	nic_close(end->nic);
	kill(end->child, SIGKILL);
	kill(end->child, SIGCONT);
	ck_assert_int_eq(waitpid(end->child, &status, 0), end->child);
	free(end->memory.base);
	close(end->link);
	ck_assert_uint_eq(mem_live_count(), 0);
}

/* Returns when none of its threads runs any more. */
static void stop(pid_t child)
{
	int status;

	kill(child, SIGSTOP);
	ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
	ck_assert(WIFSTOPPED(status));
}

static void spoil(struct end *end)
{
	memset(end->memory.base, 0xee, end->memory.bytes);
}

/* Stopped before, it has surely not taken all: the sockets hold far less than 64 MiB. */
START_TEST(a_killed_receiver_fails_what_it_has_not_taken)
{
	uint64_t taken = 1 + (uint64_t)_i;
	struct end end;

	fork_end(&end, receiver_main);
	ck_assert_uint_eq(end_post(&end, taken), taken);
	end_await(&end, taken, 0);
	ck_assert_uint_eq(end.sent, taken);
	stop(end.child);
	ck_assert_uint_eq(end_post(&end, OPS), OPS);
	kill(end.child, SIGKILL);
	end_await(&end, taken + OPS, 0);
	ck_assert_uint_gt(end.failed, 0);
	ck_assert_int_eq(end.last_status, -ECONNRESET);
	ck_assert_int_eq(end_close_peer(&end, false, false), 0);
	end_finish(&end);
}
END_TEST

START_TEST(a_killed_sender_leaves_a_receiver_that_closes)
{
	struct end end;

	fork_end(&end, sender_main);
	end_await(&end, 0, 1 + (uint64_t)_i);
	kill(end.child, SIGKILL);
	ck_assert_int_eq(end_close_peer(&end, false, _i % 2 == 1), 0);
	spoil(&end);
	for (uint64_t until = deadline_in_ms(20); clock_ns() < until;)
		end_poll(&end);
	ck_assert(is_filled(&end.memory, 0xee));
	end_finish(&end);
}
END_TEST

/* The fence: a sender that is stopped in mid transfer can't say quiet, and writes when it goes
 * on.  Its receiver ends the connection alone. */
START_TEST(nothing_of_a_stopped_sender_lands_after_the_fence)
{
	struct end end;

	fork_end(&end, sender_main);
	end_await(&end, 0, 1 + 3 * (uint64_t)_i);
	kill(end.child, SIGSTOP);
	ck_assert_int_eq(end_close_peer(&end, false, true), 0);
	uint64_t imms = end.imms;
	spoil(&end);
	kill(end.child, SIGCONT);
	for (uint64_t until = deadline_in_ms(50); clock_ns() < until;)
		end_poll(&end);
	ck_assert_uint_eq(end.imms, imms);
	ck_assert(is_filled(&end.memory, 0xee));
	ck_assert_int_eq(hear(&end), 'p');
	say(&end, 'e');
	ck_assert_int_eq(hear(&end), 'f');
	ck_assert(is_filled(&end.memory, 0xee));
	end_finish(&end);
}
END_TEST

/* Really in the middle of one op: here closing the endpoint at once crashes libfabric 1.17.
 * _i: 0 the sender goes on, 1 it is stopped, 2 it is killed. */
START_TEST(a_half_received_op_stops_where_it_is)
{
	struct end end;

	fork_end(&end, big_sender_main);
	receive_half(&end);
	if (_i > 0)
		kill(end.child, _i == 1 ? SIGSTOP : SIGKILL);
	ck_assert_int_eq(end_close_peer(&end, false, false), 0);
	spoil(&end);
	kill(end.child, SIGCONT);
	for (uint64_t until = deadline_in_ms(30); clock_ns() < until;)
		end_poll(&end);
	ck_assert_uint_eq(end.imms, 1);
	if (_i < 2)
		ck_assert_int_eq(hear(&end), 'f');
	ck_assert(is_filled(&end.memory, 0xee));
	end_finish(&end);
}
END_TEST

/* The same end, by the NIC's close. */
START_TEST(a_nic_closes_in_the_middle_of_an_op)
{
	struct end end;

	fork_end(&end, big_sender_main);
	receive_half(&end);
	if (_i > 0)
		kill(end.child, SIGSTOP);
	end_finish(&end);
}
END_TEST

/* The same where the connection can't be ended alone: the endpoint is set aside. */
START_TEST(nothing_of_a_stopped_sender_lands_in_an_abandoned_endpoint)
{
	struct end end;

	fork_end(&end, sender_main);
	end_await(&end, 0, 1 + 3 * (uint64_t)_i);
	((struct fabric *)end.nic)->modes.ends_alone = false;
	kill(end.child, SIGSTOP);
	ck_assert_int_eq(end.nic->transport->peer_close(end.nic, end.peer, false, false), -EAGAIN);
	ck_assert_int_eq(end_close_peer(&end, false, true), -EBUSY);
	uint64_t imms = end.imms;
	spoil(&end);
	kill(end.child, SIGCONT);
	for (uint64_t until = deadline_in_ms(50); clock_ns() < until;)
		end_poll(&end);
	ck_assert_uint_eq(end.imms, imms);
	ck_assert(is_filled(&end.memory, 0xee));
	end_finish(&end);
}
END_TEST

START_TEST(a_sender_frees_itself_of_a_stopped_receiver)
{
	struct end end;

	fork_end(&end, receiver_main);
	ck_assert_int_eq(hear(&end), 'r');
	/* Connected, and something under way. */
	uint64_t posted = end_post(&end, OPS);
	kill(end.child, SIGSTOP);
	ck_assert_int_eq(end_close_peer(&end, false, false), 0);
	ck_assert_uint_eq(end.sent + end.failed, posted);
	ck_assert(end.failed == 0 || end.last_status == -ECANCELED);
	end_finish(&end);
}
END_TEST

START_TEST(at_most_so_many_endpoints_are_set_aside)
{
	struct nic *nic;
	struct address address;
	int rc = 0, aside = 0;

	ck_ok(nic_open(&nic, "fabric", "tcp/127.0.0.1", &err), err);
	((struct fabric *)nic)->modes.ends_alone = false;
	for (int i = 0; i <= FABRIC_SET_ASIDE_MAX; i++) {
		struct peer *peer;
		ck_ok(nic->transport->peer_open(nic, &peer, &address, &err), err);
		rc = nic->transport->peer_close(nic, peer, false, true);
		aside += rc == -EBUSY;
	}
	ck_assert_int_eq(aside, FABRIC_SET_ASIDE_MAX);
	ck_assert_int_eq(rc, -ENOSPC);
	nic_close(nic);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static uint64_t later_ns(void *arg)
{
	return *(uint64_t *)arg;
}

START_TEST(an_op_to_nobody_fails_after_a_while)
{
	const char *const devices[2] = {"tcp/127.0.0.1", "tcp/127.0.0.2"};
	uint64_t now = 1;
	struct pair pair;

	pair_open(&pair, "fabric", devices, 4096);
	nic_close(pair.nics[1]); /* nobody listens at its address any more */
	pair.nics[1] = NULL;
	pair.mrs[1].memory.base = NULL;
	clock_set(later_ns, &now);
	struct op op = op_make(&pair, 0, 0, 64, 1);
	for (int i = 0; i < 100; i++) {
		ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 0);
		ck_assert_int_eq(poll_one(&pair, 0), 0);
	}
	now += (FABRIC_CONNECT_MS_MAX + 1) * UINT64_C(1000000);
	ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 0);
	ck_assert_int_eq(pair.nics[0]->transport->post(pair.nics[0], &op, 1), 1);
	ck_assert_int_eq(poll_one(&pair, 0), 1);
	ck_assert_int_eq(pair.last_status, -ECONNRESET);
	ck_assert_str_eq(pair.last_reason, "nobody answers at its address");
	clock_set(NULL, NULL);
	pair_close(&pair);
}
END_TEST

/* Every connection of a NIC at 127.0.0.3 begins and ends at one of the two addresses. */
START_TEST(bytes_flow_over_the_address_that_was_named)
{
	const char *const devices[2] = {"tcp/127.0.0.3", "tcp/127.0.0.4"};
	struct pair pair;
	int found = 0;

	pair_open(&pair, "fabric", devices, 1 << 20);
	struct op op = op_make(&pair, 0, 0, 1 << 20, 1);
	post(&pair, 0, &op);
	await(&pair, 0, 1, 1);
	for (int fd = 3; fd < 200; fd++) {
		struct sockaddr_in mine, theirs;
		socklen_t bytes = sizeof(mine), their_bytes = sizeof(theirs);
		if (getsockname(fd, (struct sockaddr *)&mine, &bytes) != 0 ||
		    getpeername(fd, (struct sockaddr *)&theirs, &their_bytes) != 0 ||
		    mine.sin_family != AF_INET)
			continue;
		uint32_t from = ntohl(mine.sin_addr.s_addr), to = ntohl(theirs.sin_addr.s_addr);
		ck_assert_msg((from == 0x7f000003 && to == 0x7f000004) ||
				      (from == 0x7f000004 && to == 0x7f000003),
			      "a connection from %08x to %08x", from, to);
		found++;
	}
	ck_assert_int_eq(found, 2); /* both ends of the one connection */
	pair_close(&pair);
}
END_TEST

START_TEST(another_protocol_is_refused)
{
	const char *const devices[2] = {"tcp/127.0.0.1", "tcp/127.0.0.2"};
	struct address address;
	struct peer *peer;
	struct pair pair;

	pair_open(&pair, "fabric", devices, 4096);
	ck_ok(pair.nics[0]->transport->peer_open(pair.nics[0], &peer, &address, &err), err);
	address.bytes[5] ^= 1; /* of the protocol's digest */
	ck_fails(pair.nics[0]->transport->peer_connect(pair.nics[0], peer, &address, &err), -EPROTO,
		 err);
	ck_assert_ptr_nonnull(strstr(err.text, "another provider"));
	pair_close(&pair);
}
END_TEST

START_TEST(an_interface_and_a_domain_name_a_nic_too)
{
	struct nic *nic;

	ck_ok(nic_open(&nic, "fabric", "tcp/lo", &err), err);
	ck_assert_str_eq(nic->name, "tcp lo");
	ck_assert_str_eq(nic->subnet, "127.0.0.0/8");
	nic_close(nic);
	ck_fails(nic_open(&nic, "fabric", "tcp/nosuch0", &err), -ENODEV, err);
	ck_assert_ptr_nonnull(strstr(err.text, "nosuch0"));
	/* An address of another host. */
	ck_fails(nic_open(&nic, "fabric", "tcp/8.8.8.8", &err), -ENODEV, err);
	ck_assert_ptr_nonnull(strstr(err.text, "8.8.8.8"));
}
END_TEST

START_TEST(the_list_names_loopback_and_says_why_it_is_skipped)
{
	struct arena arena = {0};
	struct nic_info *infos;
	uint32_t count;
	bool loopback = false;

	ck_ok(nics_list(&arena, "fabric", "tcp", &infos, &count, &err), err);
	for (uint32_t i = 0; i < count; i++) {
		struct nic *nic;
		if (strcmp(infos[i].device, "tcp/127.0.0.1") == 0) {
			loopback = true;
			ck_assert_str_eq(infos[i].skipped, "loopback: name it to use it");
		}
		if (infos[i].skipped[0] != 0 && strncmp(infos[i].skipped, "loopback", 8) != 0)
			continue;
		ck_assert_str_ne(infos[i].subnet, "");
		ck_ok(nic_open(&nic, infos[i].transport, infos[i].device, &err), err);
		ck_assert_str_eq(nic->subnet, infos[i].subnet);
		nic_close(nic);
	}
	ck_assert(loopback);
	ck_fails(nics_list(&arena, "pigeon", "tcp", &infos, &count, &err), -ENODEV, err);
	ck_ok(nics_list(&arena, "loop", "", &infos, &count, &err), err);
	ck_assert_uint_eq(count, 0);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* The nth allocation fails: a sentence, no leak, and the next attempt works. */
START_TEST(open_survives_every_failed_allocation)
{
	const char *const devices[3][2] = {
		{"fabric", "tcp/127.0.0.1"}, {"loop", "net/a"}, {"fault", "corrupt=1:loop:net/a"}};
	bool done = false;

	for (int64_t n = 0; n < 50 && !done; n++) {
		struct address address;
		struct peer *peer;
		struct nic *nic;

		memset(&err, 0, sizeof(err));
		mem_fail_nth(n);
		int rc = nic_open(&nic, devices[_i][0], devices[_i][1], &err);
		if (rc == 0)
			rc = nic->transport->peer_open(nic, &peer, &address, &err);
		done = rc == 0;
		mem_fail_nth(-1);
		if (!done) {
			ck_assert_int_eq(rc, -ENOMEM);
			ck_assert_str_ne(err.text, "");
		}
		nic_close(nic);
		ck_assert_uint_eq(mem_live_count(), 0);
	}
	ck_assert(done);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("transport_fabric");
	TCase *tests = tcase_create("fabric");

	tcase_set_timeout(tests, 90);
	tcase_add_loop_test(tests, a_killed_receiver_fails_what_it_has_not_taken, 0, 3);
	tcase_add_loop_test(tests, a_killed_sender_leaves_a_receiver_that_closes, 0, 4);
	tcase_add_loop_test(tests, nothing_of_a_stopped_sender_lands_after_the_fence, 0, 5);
	tcase_add_loop_test(tests, a_half_received_op_stops_where_it_is, 0, 3);
	tcase_add_loop_test(tests, a_nic_closes_in_the_middle_of_an_op, 0, 2);
	tcase_add_loop_test(tests, nothing_of_a_stopped_sender_lands_in_an_abandoned_endpoint, 0,
			    4);
	tcase_add_loop_test(tests, a_sender_frees_itself_of_a_stopped_receiver, 0, 3);
	tcase_add_test(tests, at_most_so_many_endpoints_are_set_aside);
	tcase_add_test(tests, an_op_to_nobody_fails_after_a_while);
	tcase_add_test(tests, bytes_flow_over_the_address_that_was_named);
	tcase_add_test(tests, another_protocol_is_refused);
	tcase_add_test(tests, an_interface_and_a_domain_name_a_nic_too);
	tcase_add_test(tests, the_list_names_loopback_and_says_why_it_is_skipped);
	tcase_add_loop_test(tests, open_survives_every_failed_allocation, 0, 3);
	suite_add_tcase(all, tests);
	return all;
}
