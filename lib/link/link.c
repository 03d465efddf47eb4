/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets and frames.  A member dials by itself instead of letting ZeroMQ reconnect: each
 * connection is a new DEALER, so no frame of an old connection turns up in a new one, and a
 * connection that ended by a protocol error (ZeroMQ gives such a one up for good) comes back too.
 */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "lib/link/link_inside.h"

/* Frames queued for one peer, or from one, before send says -EAGAIN and TCP pushes back. */
#define QUEUED_COUNT_MAX 1024
#define LINGER_MS	 200
/* What CURVE puts around a frame: command name, nonce, box, flags; rounded up. */
#define CURVE_BYTES 64
/* ROUTER names its connections by a zero byte and a 32-bit number. */
#define ROUTE_BYTES 5
#define ROUTE_BIT   (UINT64_C(1) << 32)
#define NS_PER_S    UINT64_C(1000000000)
#define WAIT_NS_MAX (60 * NS_PER_S)
/* Long after ours.  ZeroMQ's never (-1), as its ZMQ_IMMEDIATE, would throw away the frames that a
 * connection left unread: a hub's last words. */
#define RECONNECT_MS 3600000

uint32_t parts_receive(void *socket, zmq_msg_t *parts, uint32_t parts_max)
{
	uint32_t count = 0;
	bool more = true;

	while (more) { /* ends with the message, whose length MAXMSGSIZE and its sender bound */
		zmq_msg_t extra;
		zmq_msg_t *part = count < parts_max ? &parts[count] : &extra;
		zmq_msg_init(part);
		if (zmq_msg_recv(part, socket, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(part);
			break;
		}
		more = zmq_msg_more(part) != 0;
		if (part == &extra)
			zmq_msg_close(part);
		count++;
	}
	return count;
}

void parts_close(zmq_msg_t *parts, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		zmq_msg_close(&parts[i]);
}

/* ---- opening */

struct option {
	int name, value;
};

static int options_set(struct link *link, struct ws_error *err)
{
	const struct option options[] = {
		{ZMQ_LINGER, LINGER_MS},
		{ZMQ_SNDHWM, QUEUED_COUNT_MAX},
		{ZMQ_RCVHWM, QUEUED_COUNT_MAX},
		{ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
		{ZMQ_TCP_KEEPALIVE, 1},
		{ZMQ_TCP_KEEPALIVE_IDLE, 15},
		{ZMQ_TCP_KEEPALIVE_INTVL, 5},
		{ZMQ_TCP_KEEPALIVE_CNT, 3},
		{ZMQ_TCP_MAXRT, 30000}, /* unacknowledged bytes end a connection: a half-open one */
		{ZMQ_IPV6, strchr(link->endpoint, '[') != NULL},
	};
	const struct option hub[] = {
		{ZMQ_ROUTER_MANDATORY, 1}, {ZMQ_CURVE_SERVER, 1}, {ZMQ_BACKLOG, 1024}};
	const struct option member[] = {{ZMQ_RECONNECT_IVL, RECONNECT_MS},
					{ZMQ_CONNECT_TIMEOUT, HANDSHAKE_MS}};
	int64_t bytes_max = FRAME_HEADER_BYTES + (int64_t)LINK_BODY_BYTES_MAX + CURVE_BYTES;
	int bad = zmq_setsockopt(link->socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof(bytes_max));

	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		bad |= zmq_setsockopt(link->socket, options[i].name, &options[i].value,
				      sizeof(int));
	const struct option *own = link->is_hub ? hub : member;
	for (size_t i = 0; i < (link->is_hub ? ARRAY_SIZE(hub) : ARRAY_SIZE(member)); i++)
		bad |= zmq_setsockopt(link->socket, own[i].name, &own[i].value, sizeof(int));
	if (link->is_hub) {
		bad |= zmq_setsockopt(link->socket, ZMQ_CURVE_SECRETKEY, link->key.hub_secret, 41);
		/* Without a domain ZeroMQ admits everybody should it find no handler. */
		bad |= zmq_setsockopt(link->socket, ZMQ_ZAP_DOMAIN, "weightsync", 10);
	} else {
		bad |= zmq_setsockopt(link->socket, ZMQ_CURVE_SERVERKEY, link->key.hub_public, 41);
		bad |= zmq_setsockopt(link->socket, ZMQ_CURVE_PUBLICKEY, link->key.member_public,
				      41);
		bad |= zmq_setsockopt(link->socket, ZMQ_CURVE_SECRETKEY, link->key.member_secret,
				      41);
	}
	if (bad != 0)
		return ws_fail(err, -EINVAL,
			       "cannot set up '%s': ZeroMQ takes neither the run's keys nor the "
			       "options: %s",
			       link->endpoint, zmq_strerror(errno));
	return 0;
}

/* ZeroMQ would take 70000 for 4464. */
static bool endpoint_good(const char *endpoint, bool is_hub)
{
	char *end = NULL;

	if (strncmp(endpoint, "tcp://", 6) != 0 || endpoint[6] == '*' ||
	    strchr(endpoint, ';') != NULL)
		return false;
	const char *port = strrchr(endpoint, ':') + 1;
	if (is_hub && strcmp(port, "*") == 0)
		return true;
	unsigned long number = strtoul(port, &end, 10);
	return isdigit((unsigned char)port[0]) && *end == '\0' && number <= 65535 &&
	       (number != 0 || is_hub);
}

/* What both ends have; link is zeroed memory. */
static int begin(struct link *link, bool is_hub, const char *endpoint, const struct run_key *key,
		 struct ws_error *err)
{
	zmq_msg_init(&link->message);
	if (!endpoint_good(endpoint, is_hub) || strlen(endpoint) >= sizeof(link->endpoint))
		return ws_fail(err, -EINVAL,
			       "'%s' isn't an address of a hub: give one like tcp://10.0.0.1:7000",
			       endpoint);
	link->is_hub = is_hub;
	link->key = *key;
	link->run = strtoull(key->run_id, NULL, 16);
	link->redial_ms = REDIAL_MS_MIN;
	link->redial_ns = UINT64_MAX;
	memcpy(link->endpoint, endpoint, strlen(endpoint));
	if (is_hub) {
		link->client_count_max = LINK_CLIENTS_MAX;
		link->arrivals = mem_alloc(ARRIVAL_COUNT * sizeof(*link->arrivals));
		if (link->arrivals == NULL)
			return ws_fail(err, -ENOMEM, "no memory for the clients of '%s'", endpoint);
	}
	link->context = zmq_ctx_new();
	if (link->context == NULL)
		return ws_fail(err, -ENOMEM, "cannot start ZeroMQ: %s", zmq_strerror(errno));
	return 0;
}

static int socket_open(struct link *link, int type, struct ws_error *err)
{
	link->socket = zmq_socket(link->context, type);
	if (link->socket == NULL)
		return ws_fail(err, errno == EMFILE ? -ENOSPC : -EIO,
			       "cannot open a socket for '%s': %s%s", link->endpoint,
			       zmq_strerror(errno), errno == EMFILE ? "; raise `ulimit -n`" : "");
	int rc = options_set(link, err);
	return rc == 0 ? watch_open(link, err) : rc;
}

static int listen_at(struct link *link, struct ws_error *err)
{
	size_t room = sizeof(link->endpoint);
	int rc = zap_open(link, err);

	if (rc == 0)
		rc = socket_open(link, ZMQ_ROUTER, err);
	if (rc != 0)
		return rc;
	if (zmq_bind(link->socket, link->endpoint) != 0) {
		rc = errno < ZMQ_HAUSNUMERO ? -errno : -EINVAL;
		return ws_fail(err, rc,
			       "cannot listen at '%s': %s; give an address of this host and a "
			       "free port",
			       link->endpoint, zmq_strerror(errno));
	}
	if (zmq_getsockopt(link->socket, ZMQ_LAST_ENDPOINT, link->endpoint, &room) != 0)
		return ws_fail(err, -EIO, "cannot tell the port of '%s': %s", link->endpoint,
			       zmq_strerror(errno));
	return 0;
}

static void hang_up(struct link *link, int linger_ms)
{
	watch_close(link);
	if (link->socket != NULL) {
		zmq_setsockopt(link->socket, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
		zmq_close(link->socket);
	}
	link->socket = NULL;
}

static int dial(struct link *link, struct ws_error *err)
{
	hang_up(link, 0);
	link->shaken = link->lost = false;
	link->redial_ns = clock_ns() + DIAL_MS_MAX * UINT64_C(1000000);
	int rc = socket_open(link, ZMQ_DEALER, err);
	if (rc == 0 && zmq_connect(link->socket, link->endpoint) != 0) {
		rc = errno < ZMQ_HAUSNUMERO ? -errno : -EINVAL;
		ws_fail(err, rc, "cannot dial '%s': %s", link->endpoint, zmq_strerror(errno));
	}
	return rc;
}

void link_close(struct link *link)
{
	if (link == NULL)
		return;
	hang_up(link, LINGER_MS);
	if (link->zap != NULL)
		zmq_close(link->zap);
	zmq_msg_close(&link->message);
	if (link->context != NULL)
		while (zmq_ctx_term(link->context) != 0 && errno == EINTR)
			; /* ends: a signal only interrupts the linger's 200 ms */
	run_key_wipe(&link->key);
	mem_free(link->arrivals);
	mem_free(link);
}

static int end_open(struct link **link_out, bool is_hub, const char *endpoint,
		    const struct run_key *key, struct ws_error *err)
{
	*link_out = NULL;
	struct link *link = mem_alloc(sizeof(*link));
	if (link == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the link to '%s'", endpoint);
	int rc = begin(link, is_hub, endpoint, key, err);
	if (rc == 0)
		rc = is_hub ? listen_at(link, err) : dial(link, err);
	if (rc != 0) {
		link_close(link);
		return rc;
	}
	*link_out = link;
	return 0;
}

int link_listen(struct link **link_out, const char *endpoint, const struct run_key *key,
		struct ws_error *err)
{
	return end_open(link_out, true, endpoint, key, err);
}

int link_dial(struct link **link_out, const char *endpoint, const struct run_key *key,
	      struct ws_error *err)
{
	return end_open(link_out, false, endpoint, key, err);
}

const char *link_endpoint(const struct link *link)
{
	return link->endpoint;
}

/* ---- sending */

static void route_encode(uint8_t bytes_out[ROUTE_BYTES], uint64_t route)
{
	bytes_out[0] = 0;
	for (uint32_t i = 1; i < ROUTE_BYTES; i++)
		bytes_out[i] = (uint8_t)(route >> (8 * (ROUTE_BYTES - 1 - i)));
}

/* A client may choose its own name; ours never do. */
static bool route_decode(uint64_t *route_out, zmq_msg_t *part)
{
	const uint8_t *bytes = zmq_msg_data(part);
	uint64_t route = ROUTE_BIT;

	if (zmq_msg_size(part) != ROUTE_BYTES || bytes[0] != 0)
		return false;
	for (uint32_t i = 1; i < ROUTE_BYTES; i++)
		route |= (uint64_t)bytes[i] << (8 * (ROUTE_BYTES - 1 - i));
	*route_out = route;
	return true;
}

static int send_failed(struct link *link, int code, struct ws_error *err)
{
	if (code == EHOSTUNREACH)
		return ws_fail(err, -ECONNRESET, "the member this frame is for has hung up");
	if (code == EAGAIN)
		return ws_fail(err, -EAGAIN, "%d frames already wait to be sent", QUEUED_COUNT_MAX);
	return ws_fail(err, -EIO, "cannot send a frame by '%s': %s", link->endpoint,
		       zmq_strerror(code));
}

int link_send(struct link *link, const struct frame *frame, struct ws_error *err)
{
	uint8_t route[ROUTE_BYTES];
	struct frame sent = *frame;
	zmq_msg_t message;

	if (frame->body_bytes > LINK_BODY_BYTES_MAX)
		return ws_fail(err, -ENOSPC, "a frame's body of %u bytes is over the limit of %u",
			       frame->body_bytes, LINK_BODY_BYTES_MAX);
	if (!link->is_hub && (!link->shaken || link->lost))
		return ws_fail(err, -EAGAIN, "not connected to the hub at '%s' yet",
			       link->endpoint);
	if (zmq_msg_init_size(&message, FRAME_HEADER_BYTES + (size_t)frame->body_bytes) != 0)
		return ws_fail(err, -ENOMEM, "no memory for a frame of %u bytes",
			       frame->body_bytes);
	uint8_t *bytes = zmq_msg_data(&message);
	sent.sequence = link->sequence + 1;
	link_encode(bytes, &sent, link->run);
	if (frame->body_bytes > 0)
		memcpy(bytes + FRAME_HEADER_BYTES, frame->body, frame->body_bytes);
	route_encode(route, frame->route);
	if ((link->is_hub &&
	     zmq_send(link->socket, route, sizeof(route), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) ||
	    zmq_msg_send(&message, link->socket, ZMQ_DONTWAIT) < 0) {
		int code = errno;
		zmq_msg_close(&message);
		return send_failed(link, code, err);
	}
	link->sequence++;
	return 0;
}

/* ---- receiving */

static enum link_event malformed(struct link *link, zmq_msg_t *part, const struct ws_error *why,
				 struct ws_error *err)
{
	const char *address = link->is_hub ? zmq_msg_gets(part, "Peer-Address") : link->endpoint;

	ws_fail(err, -EBADMSG, "dropped what %s sent: %s", address != NULL ? address : "a member",
		why->text);
	return LINK_MALFORMED;
}

static enum link_event frame_receive(struct link *link, struct frame *frame_out,
				     struct ws_error *err)
{
	zmq_msg_t parts[2];
	struct ws_error why = {0};
	uint32_t wanted = link->is_hub ? 2 : 1;
	uint32_t count = link->socket != NULL ? parts_receive(link->socket, parts, 2) : 0;
	enum link_event event = LINK_FRAME;
	uint64_t route = 0;

	if (count == 0)
		return LINK_NOTHING;
	zmq_msg_t *last = &parts[MIN(count, 2) - 1];
	int rc = 0;
	if (count != wanted)
		rc = ws_fail(&why, -EBADMSG, "a message has %u parts instead of %u", count, wanted);
	else if (link->is_hub && !route_decode(&route, &parts[0]))
		rc = ws_fail(&why, -EBADMSG, "the client chose a name for itself");
	else
		rc = link_decode(frame_out, zmq_msg_data(last), zmq_msg_size(last), link->run,
				 &why);
	if (rc == 0) {
		/* Small bodies lie inside the zmq_msg_t: decode again where it stays. */
		zmq_msg_move(&link->message, last);
		link_decode(frame_out, zmq_msg_data(&link->message), zmq_msg_size(&link->message),
			    link->run, NULL);
		frame_out->route = route;
	} else {
		event = malformed(link, last, &why, err);
	}
	parts_close(parts, MIN(count, 2));
	return event;
}

static bool redial_due(const struct link *link)
{
	return !link->is_hub && clock_ns() >= link->redial_ns;
}

enum link_event link_receive(struct link *link, struct frame *frame_out, struct ws_error *err)
{
	zap_serve(link);
	enum link_event event = watch_next(link, err);
	if (event != LINK_NOTHING)
		return event;
	/* CONNECTED may have come since watch_next looked: its frames wait until it is told. */
	if (link->is_hub || link->shaken)
		event = frame_receive(link, frame_out, err);
	if (event != LINK_NOTHING)
		return event;
	if (link->lost) {
		link->lost = link->shaken = false;
		ws_fail(err, -ECONNRESET, "the hub at '%s' is gone; dialling again",
			link->endpoint);
		return LINK_DISCONNECTED;
	}
	if (redial_due(link) && dial(link, NULL) != 0) {
		hang_up(link, 0);
		link->redial_ns = clock_ns() + REDIAL_MS_MAX * UINT64_C(1000000);
	}
	return LINK_NOTHING;
}

/* Its descriptor only tells that this may have changed. */
static bool socket_is_ready(void *socket)
{
	int events = 0;
	size_t room = sizeof(events);

	return socket != NULL && zmq_getsockopt(socket, ZMQ_EVENTS, &events, &room) == 0 &&
	       (events & ZMQ_POLLIN) != 0;
}

static int socket_fd(void *socket)
{
	int fd = -1;
	size_t room = sizeof(fd);

	return socket != NULL && zmq_getsockopt(socket, ZMQ_FD, &fd, &room) == 0 ? fd : -1;
}

static bool link_is_ready(struct link *link)
{
	/* A client that knocks is no reason to wake the caller. */
	zap_serve(link);
	return link->lost || redial_due(link) || socket_is_ready(link->socket) ||
	       socket_is_ready(link->monitor);
}

/* By poll, since zmq_poll counts in milliseconds. */
void link_wait(struct link *link, const int *fds, int fd_count, uint64_t until_ns)
{
	struct pollfd polled[LINK_FDS_MAX + 3];
	int others = MIN(fd_count, LINK_FDS_MAX), count = 0;
	bool other = false;

	for (int i = 0; i < others; i++)
		polled[count++] = (struct pollfd){.fd = fds[i], .events = POLLIN};
	if (link != NULL) { /* a socket that there isn't has -1, which poll passes over */
		polled[count++] = (struct pollfd){.fd = socket_fd(link->zap), .events = POLLIN};
		polled[count++] = (struct pollfd){.fd = socket_fd(link->socket), .events = POLLIN};
		polled[count++] = (struct pollfd){.fd = socket_fd(link->monitor), .events = POLLIN};
	}
	while (!other) { /* ends at until_ns at the latest */
		if (link != NULL && link_is_ready(link))
			return;
		bool dials = link != NULL && !link->is_hub;
		uint64_t now = clock_ns(), end = dials ? MIN(until_ns, link->redial_ns) : until_ns,
			 ns = end > now ? MIN(end - now, WAIT_NS_MAX) : 0;
		const struct timespec timeout = {.tv_sec = (time_t)(ns / NS_PER_S),
						 .tv_nsec = (long)(ns % NS_PER_S)};
		if (ppoll(polled, (nfds_t)count, &timeout, NULL) < 0 || ns == 0)
			return;
		for (int i = 0; i < others; i++)
			other = other || polled[i].revents != 0;
	}
}
