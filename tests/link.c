/* SPDX-License-Identifier: Apache-2.0 */
/* lib/link: frames between a hub and its members, queues, waiting, memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/link_ends.h"

static const uint32_t body_sizes[] = {0, 1, 7, 33, 4096, 1u << 20};

START_TEST(a_body_of_any_size_arrives_whole_both_ways)
{
	struct end hub = {0}, member = {0};
	uint32_t count = body_sizes[_i];
	uint8_t *body = malloc(count + 1);

	for (uint32_t i = 0; i < count; i++)
		body[i] = (uint8_t)mix64(i);
	struct frame sent = {.kind = 7,
			     .hub_incarnation = 0x1122334455667788,
			     .member = 3,
			     .incarnation = UINT64_MAX,
			     .body = body,
			     .body_bytes = count};
	meet(&hub, &member);
	send_now(&member, &hub, &sent);
	ck_assert_uint_eq(hub.frame.kind, 7);
	ck_assert_uint_eq(hub.frame.hub_incarnation, 0x1122334455667788);
	ck_assert_uint_eq(hub.frame.member, 3);
	ck_assert_uint_eq(hub.frame.incarnation, UINT64_MAX);
	ck_assert_uint_eq(hub.frame.sequence, 1);
	ck_assert_uint_eq(hub.frame.body_bytes, count);
	ck_assert_mem_eq(hub.frame.body, body, count);
	ck_assert_uint_ne(hub.frame.route, 0);
	sent.route = hub.frame.route;
	sent.kind = 8;
	send_now(&hub, &member, &sent);
	send_now(&hub, &member, &sent);
	ck_assert_uint_eq(member.frame.kind, 8);
	ck_assert_uint_eq(member.frame.sequence, 2);
	ck_assert_uint_eq(member.frame.body_bytes, count);
	ck_assert_mem_eq(member.frame.body, body, count);
	part(&hub, &member);
	free(body);
}
END_TEST

START_TEST(frames_of_one_member_keep_their_order)
{
	struct end hub = {0}, member = {0};
	struct ws_error err = {0};
	uint32_t sent = 0;

	meet(&hub, &member);
	for (uint64_t last = 0; last < 500;) {
		struct frame frame = {.kind = 1, .member = sent + 1};
		if (sent < 500 && link_send(member.link, &frame, &err) == 0)
			sent++;
		uint32_t before = hub.frames;
		turn(&hub);
		if (hub.frames == before)
			continue;
		ck_assert_uint_eq(hub.frame.member, last + 1);
		ck_assert_uint_eq(hub.frame.sequence, last + 1);
		last++;
	}
	part(&hub, &member);
}
END_TEST

START_TEST(a_body_over_the_limit_is_not_sent)
{
	struct end hub = {0}, member = {0};
	struct ws_error err = {0};
	struct frame frame = {.kind = 1, .body = &err, .body_bytes = LINK_BODY_BYTES_MAX + 1};

	meet(&hub, &member);
	ck_fails(link_send(member.link, &frame, &err), -ENOSPC, err);
	ck_assert_ptr_nonnull(strstr(err.text, "67108865"));
	part(&hub, &member);
}
END_TEST

START_TEST(a_member_that_is_not_connected_says_so)
{
	struct end member = {0};
	struct ws_error err = {0};
	struct frame frame = {.kind = 1};

	ck_ok(link_dial(&member.link, "tcp://127.0.0.1:9", &ends_key, &err), err);
	ck_fails(link_send(member.link, &frame, &err), -EAGAIN, err);
	ck_assert_ptr_nonnull(strstr(err.text, "not connected"));
	link_close(member.link);
}
END_TEST

START_TEST(a_full_queue_says_eagain_and_loses_nothing)
{
	struct end hub = {0}, member = {0};
	struct ws_error err = {0};
	uint8_t *body = calloc(1, 65536);
	uint32_t taken = 0;
	int rc = 0;

	meet(&hub, &member);
	/* The hub doesn't read: buffers fill, then the queues. */
	while (taken < 100000 && rc == 0) {
		struct frame frame = {.kind = 1, .body = body, .body_bytes = 65536};
		rc = link_send(member.link, &frame, &err);
		taken += rc == 0;
	}
	ck_assert_int_eq(rc, -EAGAIN);
	turn_until(&hub, &member, hub.frames == taken);
	ck_assert_uint_eq(hub.frame.sequence, taken);
	part(&hub, &member);
	free(body);
}
END_TEST

START_TEST(a_route_that_is_gone_is_an_error)
{
	struct end hub = {0}, member = {0};
	struct ws_error err = {0};
	struct frame frame = {.kind = 1};
	int rc = 0;

	meet(&hub, &member);
	frame.route = route_of(&hub, &member);
	link_close(member.link);
	member.link = NULL;
	turn_until(&hub, &member, (rc = link_send(hub.link, &frame, &err)) != 0);
	ck_assert_int_eq(rc, -ECONNRESET);
	frame.route = 12345;
	ck_fails(link_send(hub.link, &frame, &err), -ECONNRESET, err);
	link_close(hub.link);
}
END_TEST

START_TEST(the_wait_ends_by_another_descriptor_and_by_its_deadline)
{
	struct end hub = {0};
	int pipes[2];

	ck_assert_int_eq(pipe(pipes), 0);
	listen_here(&hub);
	uint64_t begin = clock_ns();
	link_wait(hub.link, pipes, 1, begin + 50000000);
	ck_assert_uint_ge(clock_ns() - begin, 50000000);
	ck_assert_int_eq((int)write(pipes[1], "x", 1), 1);
	begin = clock_ns();
	link_wait(hub.link, pipes, 1, begin + UINT64_C(60000000000));
	ck_assert_uint_lt(clock_ns() - begin, UINT64_C(30000000000));
	link_close(hub.link);
	close(pipes[0]);
	close(pipes[1]);
}
END_TEST

START_TEST(an_address_that_cannot_be_bound_is_named)
{
	struct end hub = {0};
	struct link *other = NULL;
	struct ws_error err = {0};

	static const char *const wrong[] = {
		"127.0.0.1:7000",     "tcp://*:7000",	       "tcp://127.0.0.1:port",
		"tcp://127.0.0.1",    "tcp://127.0.0.1:70000", "tcp://127.0.0.1:",
		"tcp://127.0.0.1:-1", "tcp://[::1]",
	};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		ck_fails(link_listen(&other, wrong[i], &ends_key, &err), -EINVAL, err);
		ck_fails(link_dial(&other, wrong[i], &ends_key, &err), -EINVAL, err);
	}
	ck_fails(link_dial(&other, "tcp://127.0.0.1:0", &ends_key, &err), -EINVAL, err);
	ck_fails(link_dial(&other, "tcp://127.0.0.1:*", &ends_key, &err), -EINVAL, err);
	listen_here(&hub);
	ck_assert_ptr_null(strchr(link_endpoint(hub.link), '*'));
	ck_fails(link_listen(&other, link_endpoint(hub.link), &ends_key, &err), -EADDRINUSE, err);
	ck_assert_ptr_nonnull(strstr(err.text, link_endpoint(hub.link)));
	ck_assert_ptr_null(other);
	link_close(hub.link);
	link_close(NULL);
}
END_TEST

START_TEST(a_failed_allocation_is_enomem_without_a_leak)
{
	struct ws_error err = {0};
	struct link *link = NULL;
	uint64_t before = mem_live_count();
	int rc = -ENOMEM;
	int64_t n = 0;

	for (; rc != 0 && n < 10; n++) {
		mem_fail_nth(n);
		rc = _i == 0 ? link_listen(&link, "tcp://127.0.0.1:*", &ends_key, &err)
			     : link_dial(&link, "tcp://127.0.0.1:9", &ends_key, &err);
		if (rc != 0) {
			ck_assert_int_eq(rc, -ENOMEM);
			ck_assert_int_eq(err.code, -ENOMEM);
			ck_assert_ptr_null(link);
			ck_assert_uint_eq(mem_live_count(), before);
		}
	}
	mem_fail_nth(-1);
	ck_assert_int_gt(n, 1); /* at least one did fail */
	ck_assert_int_eq(rc, 0);
	link_close(link);
	ck_assert_uint_eq(mem_live_count(), before);
}
END_TEST

START_TEST(after_open_nothing_is_allocated)
{
	struct end hub = {0}, member = {0};

	meet(&hub, &member);
	uint64_t count = mem_alloc_count();
	struct frame frame = {.kind = 1, .body = &hub, .body_bytes = sizeof(hub)};
	for (int i = 0; i < 20; i++)
		send_now(&member, &hub, &frame);
	ck_assert_uint_eq(mem_alloc_count(), count);
	part(&hub, &member);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("link");
	TCase *frames = tcase_create("frames");
	TCase *memory = tcase_create("memory");

	tcase_add_checked_fixture(frames, ends_setup, NULL);
	tcase_set_timeout(frames, 60);
	tcase_add_loop_test(frames, a_body_of_any_size_arrives_whole_both_ways, 0,
			    (int)ARRAY_SIZE(body_sizes));
	tcase_add_test(frames, frames_of_one_member_keep_their_order);
	tcase_add_test(frames, a_body_over_the_limit_is_not_sent);
	tcase_add_test(frames, a_member_that_is_not_connected_says_so);
	tcase_add_test(frames, a_full_queue_says_eagain_and_loses_nothing);
	tcase_add_test(frames, a_route_that_is_gone_is_an_error);
	tcase_add_test(frames, the_wait_ends_by_another_descriptor_and_by_its_deadline);
	tcase_add_test(frames, an_address_that_cannot_be_bound_is_named);
	suite_add_tcase(suite, frames);
	tcase_add_checked_fixture(memory, ends_setup, NULL);
	tcase_set_timeout(memory, 60);
	tcase_add_loop_test(memory, a_failed_allocation_is_enomem_without_a_leak, 0, 2);
	tcase_add_test(memory, after_open_nothing_is_allocated);
	suite_add_tcase(suite, memory);
	return suite;
}
