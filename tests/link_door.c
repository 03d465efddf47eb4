/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/link: who comes in.  Wrong keys, dead and stopped hubs, strangers that send anything, and
 * members that send what isn't a frame.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/link_ends.h"

#define STRANGER_COUNT 200

/* Which keys of another run the member holds. */
enum wrong { WRONG_MEMBER, WRONG_HUB, WRONG_BOTH, WRONG_COUNT };

static struct run_key wrong_key(int which)
{
	struct ws_error err = {0};
	struct run_key other, mixed = ends_key;

	ck_ok(run_key_make(&other, &err), err);
	if (which != WRONG_HUB) {
		memcpy(mixed.member_public, other.member_public, 41);
		memcpy(mixed.member_secret, other.member_secret, 41);
	}
	if (which != WRONG_MEMBER)
		memcpy(mixed.hub_public, other.hub_public, 41);
	return mixed;
}

START_TEST(a_wrong_key_is_refused_and_no_frame_passes)
{
	struct end hub = {0}, member = {0};
	struct run_key mixed = wrong_key(_i);
	struct ws_error err = {0};
	struct frame frame = {.kind = 1};

	listen_here(&hub);
	dial_to(&member, &hub, &mixed);
	turn_until(&hub, &member, member.refused > 0 && hub.refused > 0);
	ck_assert_ptr_nonnull(strstr(member.err.text, "key"));
	ck_assert_int_eq(member.err.code, -EACCES);
	ck_assert_ptr_nonnull(strstr(hub.err.text, "wrong key"));
	if (_i == WRONG_MEMBER)
		ck_assert_ptr_nonnull(strstr(hub.err.text, "from 127.0.0.1"));
	ck_fails(link_send(member.link, &frame, &err), -EAGAIN, err);
	turn_for_ms(&hub, &member, 300);
	ck_assert_uint_eq(hub.frames, 0);
	ck_assert_uint_eq(member.connected, 0);
	part(&hub, &member);
}
END_TEST

START_TEST(refusals_are_reported_at_most_once_a_second)
{
	struct end hub = {0}, members[8] = {0}, none = {0};
	uint64_t begin = clock_ns();

	listen_here(&hub);
	for (int i = 0; i < 8; i++) {
		struct run_key mixed = wrong_key(WRONG_MEMBER);
		dial_to(&members[i], &hub, &mixed);
	}
	for (int i = 0; i < 8; i++)
		turn_until(&hub, &members[i], members[i].refused > 0);
	turn_until(&hub, &none, hub.refused > 0);
	ck_assert_uint_le(hub.refused, 1 + (clock_ns() - begin) / 1000000000);
	for (int i = 0; i < 8; i++)
		link_close(members[i].link);
	link_close(hub.link);
}
END_TEST

START_TEST(a_refused_member_does_not_disturb_a_real_one)
{
	struct end hub = {0}, member = {0}, stranger = {0};
	struct run_key mixed = wrong_key(WRONG_BOTH);

	meet(&hub, &member);
	dial_to(&stranger, &hub, &mixed);
	turn_until(&hub, &stranger, stranger.refused > 1);
	route_of(&hub, &member);
	ck_assert_uint_eq(member.disconnected, 0);
	link_close(stranger.link);
	part(&hub, &member);
}
END_TEST

START_TEST(a_dead_hub_is_not_a_wrong_key)
{
	struct end hub = {0}, member = {0};

	listen_here(&hub);
	dial_to(&member, &hub, &ends_key);
	link_close(hub.link);
	hub.link = NULL;
	turn_for_ms(&member, &hub, 1000);
	ck_assert_uint_eq(member.refused, 0);
	ck_assert_uint_eq(member.connected, 0);
	link_close(member.link);
}
END_TEST

/* More than five seconds of silence: the hub ends the handshake, and it doesn't look like a
 * refusal. */
START_TEST(a_stopped_hub_is_not_a_wrong_key)
{
	struct end hub = {0}, member = {0}, none = {0};

	listen_here(&hub);
	dial_to(&member, &hub, &ends_key);
	turn_for_ms(&member, &none, 5500);
	ck_assert_uint_eq(member.connected, 0);
	turn_until(&hub, &member, member.connected == 1);
	route_of(&hub, &member);
	ck_assert_uint_eq(member.refused, 0);
	ck_assert_uint_eq(hub.refused, 0);
	part(&hub, &member);
}
END_TEST

START_TEST(a_member_outlives_its_hub_and_is_told)
{
	struct end hub = {0}, member = {0};
	struct ws_error err = {0};
	char endpoint[256];

	meet(&hub, &member);
	route_of(&hub, &member);
	snprintf(endpoint, sizeof(endpoint), "%s", link_endpoint(hub.link));
	link_close(hub.link);
	hub.link = NULL;
	turn_until(&member, &hub, member.disconnected == 1);
	turn_for_ms(&member, &hub, 300);
	ck_ok(link_listen(&hub.link, endpoint, &ends_key, &err), err);
	turn_until(&member, &hub, member.connected == 2);
	hub.frames = 0;
	route_of(&hub, &member);
	ck_assert_uint_eq(hub.frame.sequence, 2);
	ck_assert_uint_eq(member.refused, 0);
	part(&hub, &member);
}
END_TEST

START_TEST(the_last_frames_of_a_hub_come_before_its_end)
{
	struct end hub = {0}, member = {0};
	struct ws_error err = {0};
	struct frame frame = {.kind = 9};

	meet(&hub, &member);
	frame.route = route_of(&hub, &member);
	for (int i = 0; i < 10; i++)
		ck_ok(link_send(hub.link, &frame, &err), err);
	link_close(hub.link);
	hub.link = NULL;
	turn_until(&member, &hub, member.disconnected == 1);
	ck_assert_uint_eq(member.frames, 10);
	link_close(member.link);
}
END_TEST

/* ---- strangers */

static int raw_connect(const struct end *hub)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons((uint16_t)atoi(strrchr(link_endpoint(hub->link), ':') + 1));
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* What strangers say: nothing, HTTP, noise, a CURVE client's greeting and no more, the same and a
 * command of absurd length, the greeting of a client without encryption. */
static void raw_send(int fd, int which)
{
	static const char http[] = "GET / HTTP/1.1\r\nHost: hub\r\n\r\n";
	uint8_t greeting[64] = {0xff, [9] = 0x7f, 3, 0, 'C', 'U', 'R', 'V', 'E'};
	uint8_t absurd[9] = {0x06, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
	uint8_t noise[512];
	struct ws_error err;

	if (which == 1)
		(void)!send(fd, http, sizeof(http) - 1, MSG_NOSIGNAL);
	if (which == 2 && random_bytes(noise, sizeof(noise), &err) == 0)
		(void)!send(fd, noise, sizeof(noise), MSG_NOSIGNAL);
	if (which == 5)
		memcpy(&greeting[12], "NULL\0", 5);
	if (which >= 3)
		(void)!send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL);
	if (which == 4)
		(void)!send(fd, absurd, sizeof(absurd), MSG_NOSIGNAL);
}

START_TEST(raw_connections_do_not_keep_members_out)
{
	struct end hub = {0}, member = {0};
	int fds[STRANGER_COUNT];

	listen_here(&hub);
	for (int i = 0; i < STRANGER_COUNT; i++) {
		fds[i] = raw_connect(&hub);
		raw_send(fds[i], _i == 6 ? i % 6 : _i);
	}
	dial_to(&member, &hub, &ends_key);
	turn_until(&hub, &member, member.connected == 1);
	route_of(&hub, &member);
	ck_assert_uint_eq(hub.frames, 1);
	ck_assert_uint_eq(hub.malformed, 0);
	for (int i = 0; i < STRANGER_COUNT; i++)
		close(fds[i]);
	part(&hub, &member);
}
END_TEST

START_TEST(a_silent_connection_is_hung_up_on)
{
	struct end hub = {0}, none = {0};
	char bytes[64];
	ssize_t got = 1;

	listen_here(&hub);
	int silent = raw_connect(&hub), greeted = raw_connect(&hub);
	raw_send(greeted, 3);
	turn_for_ms(&hub, &none, 100);
	for (int i = 0; i < 2; i++) {
		int fd = i == 0 ? silent : greeted;
		ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
		turn_until(&hub, &none,
			   (got = recv(fd, bytes, sizeof(bytes), 0)) == 0 ||
				   (got < 0 && errno == ECONNRESET));
		close(fd);
	}
	link_close(hub.link);
}
END_TEST

static uint64_t later_ns(void *arg)
{
	struct timespec now;

	(void)arg;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + SETTLED_NS +
	       1000000000u;
}

START_TEST(only_members_fill_the_hub)
{
	struct end hub = {0}, members[3] = {0}, late = {0};
	int fds[8];

	listen_here(&hub);
	hub.link->client_count_max = 3;
	for (int i = 0; i < 3; i++) {
		dial_to(&members[i], &hub, &ends_key);
		turn_until(&hub, &members[i], members[i].connected == 1);
	}
	turn_until(&hub, &late, hub.link->open_count == 3);
	/* From here on the three are older than any handshake. */
	clock_set(later_ns, NULL);
	for (int i = 0; i < 8; i++)
		fds[i] = raw_connect(&hub);
	dial_to(&late, &hub, &ends_key);
	turn_until(&hub, &late, late.refused > 0 && hub.refused > 0);
	ck_assert_ptr_nonnull(strstr(late.err.text, "all the members it can take"));
	ck_assert_ptr_nonnull(strstr(hub.err.text, "a member too many"));
	ck_assert_uint_eq(late.connected, 0);
	link_close(members[1].link);
	turn_until(&hub, &late, late.connected == 1);
	for (int i = 0; i < 8; i++)
		close(fds[i]);
	link_close(members[0].link);
	link_close(members[2].link);
	part(&hub, &late);
	clock_set(NULL, NULL);
}
END_TEST

/* A ZeroMQ client of our own, outside of lib/link. */
struct raw {
	void *context, *socket;
};

static struct raw raw_open(const struct end *hub, bool curve, const char *name)
{
	struct raw raw = {.context = zmq_ctx_new()};
	int zero = 0;

	raw.socket = zmq_socket(raw.context, ZMQ_DEALER);
	zmq_setsockopt(raw.socket, ZMQ_LINGER, &zero, sizeof(zero));
	if (curve) {
		zmq_setsockopt(raw.socket, ZMQ_CURVE_SERVERKEY, ends_key.hub_public, 41);
		zmq_setsockopt(raw.socket, ZMQ_CURVE_PUBLICKEY, ends_key.member_public, 41);
		zmq_setsockopt(raw.socket, ZMQ_CURVE_SECRETKEY, ends_key.member_secret, 41);
	}
	if (name != NULL)
		zmq_setsockopt(raw.socket, ZMQ_ROUTING_ID, name, strlen(name));
	ck_assert_int_eq(zmq_connect(raw.socket, link_endpoint(hub->link)), 0);
	return raw;
}

static void raw_close(struct raw *raw)
{
	zmq_close(raw->socket);
	zmq_ctx_term(raw->context);
}

START_TEST(a_client_without_encryption_gets_nothing_in)
{
	struct end hub = {0}, member = {0};

	meet(&hub, &member);
	struct raw raw = raw_open(&hub, false, NULL);
	for (int i = 0; i < 10; i++)
		zmq_send(raw.socket, "x", 1, ZMQ_DONTWAIT);
	/* ZeroMQ's client may hang up before the hub has looked; this one waits. */
	int fd = raw_connect(&hub);
	raw_send(fd, 5);
	turn_until(&hub, &member, hub.refused > 0);
	ck_assert_ptr_nonnull(strstr(hub.err.text, "without encryption"));
	turn_for_ms(&hub, &member, 200);
	route_of(&hub, &member);
	ck_assert_uint_eq(hub.frames, 1);
	ck_assert_uint_eq(hub.malformed, 0);
	close(fd);
	raw_close(&raw);
	part(&hub, &member);
}
END_TEST

START_TEST(a_listener_without_encryption_refuses_a_member)
{
	struct end member = {0}, none = {0};
	struct ws_error err = {0};
	char endpoint[256];
	size_t room = sizeof(endpoint);
	void *context = zmq_ctx_new();
	void *socket = zmq_socket(context, ZMQ_ROUTER);

	ck_assert_int_eq(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
	ck_assert_int_eq(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &room), 0);
	ck_ok(link_dial(&member.link, endpoint, &ends_key, &err), err);
	turn_until(&member, &none, member.refused > 0);
	link_close(member.link);
	zmq_close(socket);
	zmq_ctx_term(context);
}
END_TEST

/* Every way to break a good frame of 3 body bytes that the header can show. */
static size_t broken_frame(uint8_t *bytes, int which)
{
	struct frame frame = {.kind = 5, .body_bytes = 3};
	uint64_t run = strtoull(ends_key.run_id, NULL, 16);
	size_t count = FRAME_HEADER_BYTES + 3;

	memset(bytes, 'b', 4096);
	link_encode(bytes, &frame, which == 0 ? run + 1 : run);
	switch (which) {
	case 1:
		bytes[0] ^= 1; /* magic */
		break;
	case 2:
		bytes[4] ^= 1; /* version */
		break;
	case 3:
		bytes[6] = 0; /* kind */
		break;
	case 4:
		bytes[52] = 1; /* reserved */
		break;
	case 5:
		bytes[51] = 0xff; /* a body of 4 GiB */
		break;
	case 6:
		return count - 1;
	case 7:
		return count + 1;
	case 8:
		return FRAME_HEADER_BYTES - 1;
	case 9:
		return 0;
	case 10:
		memset(bytes, 0xa5, 4096);
		return 4096;
	default:
		break;
	}
	return count;
}

START_TEST(a_broken_frame_is_dropped_and_named)
{
	struct end hub = {0}, member = {0};
	uint8_t bytes[4096];
	size_t count = broken_frame(bytes, _i);
	uint64_t run = strtoull(ends_key.run_id, NULL, 16);
	struct ws_error err = {0};
	struct frame frame;

	ck_fails(link_decode(&frame, bytes, count, run, &err), -EBADMSG, err);
	meet(&hub, &member);
	struct raw raw = raw_open(&hub, true, NULL);
	ck_assert_int_ge(zmq_send(raw.socket, bytes, count, 0), 0);
	turn_until(&hub, &member, hub.malformed == 1);
	ck_assert_ptr_nonnull(strstr(hub.err.text, "127.0.0.1"));
	ck_assert_ptr_nonnull(strstr(hub.err.text, err.text));
	route_of(&hub, &member);
	ck_assert_uint_eq(hub.frames, 1);
	raw_close(&raw);
	part(&hub, &member);
}
END_TEST

START_TEST(parts_and_chosen_names_are_malformed)
{
	struct end hub = {0}, member = {0};
	struct frame frame = {.kind = 5};
	uint8_t header[FRAME_HEADER_BYTES];

	link_encode(header, &frame, strtoull(ends_key.run_id, NULL, 16));
	meet(&hub, &member);
	struct raw many = raw_open(&hub, true, NULL), named = raw_open(&hub, true, "rank0");
	for (int i = 0; i < 40; i++)
		zmq_send(many.socket, header, sizeof(header), i < 39 ? ZMQ_SNDMORE : 0);
	zmq_send(named.socket, header, sizeof(header), 0);
	turn_until(&hub, &member, hub.malformed == 2);
	/* Afterwards a whole frame by the same client is one. */
	zmq_send(many.socket, header, sizeof(header), 0);
	turn_until(&hub, &member, hub.frames == 1);
	ck_assert_uint_eq(hub.frame.kind, 5);
	raw_close(&many);
	raw_close(&named);
	part(&hub, &member);
}
END_TEST

START_TEST(a_message_over_the_limit_ends_only_its_connection)
{
	struct end hub = {0}, member = {0};
	size_t count = (size_t)LINK_BODY_BYTES_MAX + 1000;
	uint8_t *bytes = calloc(1, count);

	meet(&hub, &member);
	struct raw raw = raw_open(&hub, true, NULL);
	zmq_send(raw.socket, bytes, count, 0);
	turn_for_ms(&hub, &member, 500);
	route_of(&hub, &member);
	ck_assert_uint_eq(hub.frames, 1);
	ck_assert_uint_eq(hub.malformed, 0);
	ck_assert_uint_eq(member.disconnected, 0);
	raw_close(&raw);
	part(&hub, &member);
	free(bytes);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("link_door");
	TCase *door = tcase_create("door");

	tcase_add_checked_fixture(door, ends_setup, NULL);
	tcase_set_timeout(door, 60);
	tcase_add_loop_test(door, a_wrong_key_is_refused_and_no_frame_passes, 0, WRONG_COUNT);
	tcase_add_test(door, refusals_are_reported_at_most_once_a_second);
	tcase_add_test(door, a_refused_member_does_not_disturb_a_real_one);
	tcase_add_test(door, a_dead_hub_is_not_a_wrong_key);
	tcase_add_test(door, a_stopped_hub_is_not_a_wrong_key);
	tcase_add_test(door, a_member_outlives_its_hub_and_is_told);
	tcase_add_test(door, the_last_frames_of_a_hub_come_before_its_end);
	tcase_add_loop_test(door, raw_connections_do_not_keep_members_out, 0, 7);
	tcase_add_test(door, a_silent_connection_is_hung_up_on);
	tcase_add_test(door, only_members_fill_the_hub);
	tcase_add_test(door, a_client_without_encryption_gets_nothing_in);
	tcase_add_test(door, a_listener_without_encryption_refuses_a_member);
	tcase_add_loop_test(door, a_broken_frame_is_dropped_and_named, 0, 11);
	tcase_add_test(door, parts_and_chosen_names_are_malformed);
	tcase_add_test(door, a_message_over_the_limit_ends_only_its_connection);
	suite_add_tcase(suite, door);
	return suite;
}
