/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ZeroMQ's socket monitors tell, turned into the link's events.  A member learns whether
 * its handshake succeeded, failed for a wrong key, or never began; a hub learns who was sent away.
 *
 * The events of one socket come from one I/O thread, in order, and the failure of a handshake
 * is followed at once by that connection's DISCONNECTED, except after a ZAP refusal.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/link/link_inside.h"

#define WATCHED_HUB                                                                          \
	(ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | \
	 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
#define WATCHED_MEMBER                                                          \
	(ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |      \
	 ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | \
	 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

int watch_open(struct link *link, struct ws_error *err)
{
	char name[64];
	/* No limit: the I/O thread would block on a full monitor, with a lock that close needs. */
	int limit = 0, linger = 0;

	snprintf(name, sizeof(name), "inproc://watch-%u", link->dial_count++);
	link->monitor = zmq_socket(link->context, ZMQ_PAIR);
	if (link->monitor == NULL ||
	    zmq_setsockopt(link->monitor, ZMQ_RCVHWM, &limit, sizeof(limit)) != 0 ||
	    zmq_setsockopt(link->monitor, ZMQ_LINGER, &linger, sizeof(linger)) != 0 ||
	    zmq_socket_monitor(link->socket, name, link->is_hub ? WATCHED_HUB : WATCHED_MEMBER) !=
		    0 ||
	    zmq_connect(link->monitor, name) != 0)
		return ws_fail(err, -EIO, "cannot watch the connections of '%s': %s",
			       link->endpoint, zmq_strerror(errno));
	return 0;
}

void watch_close(struct link *link)
{
	if (link->socket != NULL)
		zmq_socket_monitor(link->socket, NULL, 0);
	if (link->monitor != NULL)
		zmq_close(link->monitor);
	link->monitor = NULL;
}

/* One event: its number, or 0 when there is none; value is a descriptor or an error. */
static uint32_t event_receive(struct link *link, uint32_t *value_out)
{
	zmq_msg_t parts[2];
	uint16_t event = 0;
	uint32_t value = 0;
	uint32_t count = link->monitor != NULL ? parts_receive(link->monitor, parts, 2) : 0;

	if (count == 0) {
		link->calm++;
		return 0;
	}
	/* The monitor's own format, in host order: an event and a value without padding. */
	if (zmq_msg_size(&parts[0]) == sizeof(event) + sizeof(value)) {
		memcpy(&event, zmq_msg_data(&parts[0]), sizeof(event));
		memcpy(&value, (uint8_t *)zmq_msg_data(&parts[0]) + sizeof(event), sizeof(value));
	}
	parts_close(parts, MIN(count, 2));
	*value_out = value;
	return event;
}

/* ---- the hub's side */

uint32_t watch_settled_count(const struct link *link)
{
	uint64_t now = clock_ns();
	uint32_t count = 0;

	for (uint32_t i = 0; i < ARRIVAL_COUNT; i++) {
		uint64_t since = link->arrivals[i].since_ns;
		count += since != 0 && now - since > SETTLED_NS;
	}
	return count;
}

static void address_print(const struct sockaddr_storage *name, char *text_out, size_t room)
{
	char host[INET6_ADDRSTRLEN] = "";

	if (name->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)name;
		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(text_out, room, "%s:%u", host, ntohs(in->sin_port));
	} else if (name->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)name;
		inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof(host));
		snprintf(text_out, room, "[%s]:%u", host, ntohs(in->sin6_port));
	}
}

/* The descriptor is the I/O thread's: it may be closed by now, or be another connection already;
 * arrival_end tells. */
static void arrival_begin(struct link *link, uint32_t fd)
{
	struct sockaddr_storage name = {0};
	socklen_t bytes = sizeof(name);

	link->open_count++;
	if (fd >= ARRIVAL_COUNT)
		return;
	struct arrival *arrival = &link->arrivals[fd];
	*arrival = (struct arrival){.since_ns = clock_ns(), .calm = link->calm};
	if (getpeername((int)fd, (struct sockaddr *)&name, &bytes) == 0)
		address_print(&name, arrival->address, sizeof(arrival->address));
}

/*
 * Forgets a connection; text_out says where it came from, if that is certain: the address was
 * asked for before the monitor was last seen empty, so before the descriptor was closed.
 */
static void arrival_end(struct link *link, uint32_t fd, char *text_out, size_t room)
{
	snprintf(text_out, room, "an address that was gone at once");
	if (link->open_count > 0)
		link->open_count--;
	if (fd >= ARRIVAL_COUNT)
		return;
	struct arrival *arrival = &link->arrivals[fd];
	if (arrival->calm != link->calm && arrival->address[0] != '\0')
		snprintf(text_out, room, "%s", arrival->address);
	*arrival = (struct arrival){0};
}

static enum link_event report_refused(struct link *link, const char *who, const char *address,
				      struct ws_error *err)
{
	uint64_t now = clock_ns();
	char others[64] = "";

	if (now < link->refused_report_ns) {
		link->refused_hidden++;
		return LINK_NOTHING;
	}
	if (link->refused_hidden > 0)
		snprintf(others, sizeof(others), " (and %u more since the last report)",
			 link->refused_hidden);
	ws_fail(err, -EACCES, "%s tried to join run %s from %s%s", who, link->key.run_id, address,
		others);
	link->refused_hidden = 0;
	link->refused_report_ns = now + REFUSED_REPORT_NS;
	return LINK_REFUSED;
}

static const char *failure_name(uint32_t kind)
{
	if (kind == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
		return "a client with a wrong key";
	if (kind == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
		return "a client without encryption";
	return "a client that doesn't speak weightsync's protocol";
}

static enum link_event hub_event(struct link *link, uint32_t event, uint32_t value,
				 struct ws_error *err)
{
	char address[64];

	if (event == ZMQ_EVENT_ACCEPTED) {
		arrival_begin(link, value);
	} else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
		return report_refused(link,
				      link->refused_full ? "a member too many"
							 : "a client with a wrong key",
				      link->refused_address, err);
	} else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
		link->failed_kind = value;
	} else if (event == ZMQ_EVENT_DISCONNECTED) {
		uint32_t kind = link->failed_kind;
		link->failed_kind = 0;
		arrival_end(link, value, address, sizeof(address));
		if (kind != 0)
			return report_refused(link, failure_name(kind), address, err);
	}
	return LINK_NOTHING;
}

/* ---- the member's side */

/* The connection ended, or never was: when to dial again. */
static void redial_plan(struct link *link)
{
	uint32_t wait_ms = link->refused ? REDIAL_REFUSED_MS : link->redial_ms;

	link->redial_ms = MIN(link->redial_ms * 2, REDIAL_MS_MAX);
	link->redial_ns = clock_ns() + wait_ms * UINT64_C(1000000);
}

static enum link_event cut_off(struct link *link, struct ws_error *err)
{
	/* A handshake that lasted is a hub that is stopped or busy, not one that says no. */
	if (clock_ns() - link->tcp_up_ns > HANDSHAKE_MS / 2 * UINT64_C(1000000))
		link->cut_off_count = 0;
	else
		link->cut_off_count++;
	if (link->cut_off_count < CUT_OFF_COUNT_MAX)
		return LINK_NOTHING;
	link->refused = true;
	ws_fail(err, -EACCES,
		"what listens at '%s' hung up during %u handshakes in a row: it isn't the hub of run "
		"%s, or its key is another one; use the key file the hub was started with",
		link->endpoint, link->cut_off_count, link->key.run_id);
	return LINK_REFUSED;
}

static enum link_event refused(struct link *link, uint32_t event, uint32_t value,
			       struct ws_error *err)
{
	link->refused = true;
	if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && value == 500)
		ws_fail(err, -EACCES, "the hub at '%s' has all the members it can take",
			link->endpoint);
	else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
		ws_fail(err, -EACCES,
			"the hub at '%s' doesn't know the member key of run %s; use the key file "
			"the hub was started with",
			link->endpoint, link->key.run_id);
	else if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
		ws_fail(err, -EACCES,
			"what listens at '%s' speaks ZeroMQ without encryption: it isn't a "
			"weightsync hub; look at the address",
			link->endpoint);
	else
		ws_fail(err, -EACCES,
			"the handshake with '%s' failed (ZeroMQ's protocol error 0x%x): it isn't the hub "
			"of run %s, or its key is another one",
			link->endpoint, value, link->key.run_id);
	return LINK_REFUSED;
}

static enum link_event member_event(struct link *link, uint32_t event, uint32_t value,
				    struct ws_error *err)
{
	if (event == ZMQ_EVENT_CONNECTED) {
		link->tcp_up_ns = clock_ns();
		link->redial_ns = link->tcp_up_ns + DIAL_MS_MAX * UINT64_C(1000000);
	} else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
		link->shaken = true;
		link->refused = false;
		link->cut_off_count = 0;
		link->redial_ms = REDIAL_MS_MIN;
		link->redial_ns = UINT64_MAX;
		return LINK_CONNECTED;
	} else if (event == ZMQ_EVENT_CLOSED) {
		/* Nobody listens.  (An established connection ends by DISCONNECTED.) */
		link->cut_off_count = 0;
		link->refused = false;
		redial_plan(link);
	} else if (event == ZMQ_EVENT_DISCONNECTED) {
		link->lost = link->shaken;
		redial_plan(link);
	} else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) {
		return cut_off(link, err);
	} else if (!link->shaken) {
		return refused(link, event, value, err);
	}
	return LINK_NOTHING;
}

enum link_event watch_next(struct link *link, struct ws_error *err)
{
	enum link_event told = LINK_NOTHING;

	for (uint32_t i = 0; told == LINK_NOTHING && i < EVENTS_EACH_CALL_MAX; i++) {
		uint32_t value = 0;
		uint32_t event = event_receive(link, &value);
		if (event == 0)
			break;
		told = link->is_hub ? hub_event(link, event, value, err)
				    : member_event(link, event, value, err);
	}
	return told;
}
