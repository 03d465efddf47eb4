/* SPDX-License-Identifier: Apache-2.0 */
/* Frames over a stream socket: four bytes of length, a tag, the bytes. */
#include "bench/channel.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAG_ERROR      'x' /* a struct ws_error follows */
#define HEAD_BYTES     5
#define CONNECT_MS_MAX 15000

/* Sends, and connects, end with EAGAIN (EINPROGRESS) after so long. */
static void sends_bound(int fd, uint32_t ms)
{
	const struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
}

int channel_open(struct channel *channel, int fd, const char *name, struct ws_error *err)
{
	int one = 1;
	*channel = (struct channel){
		.fd = fd, .name = name, .frame = mem_alloc(CHANNEL_FRAME_BYTES_MAX)};
	/* A socket pair has no delay to switch off, and says so. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	sends_bound(fd, CHANNEL_WAIT_MS);
	if (channel->frame == NULL)
		return ws_fail(err, -ENOMEM, "no memory to talk to %s", name);
	return 0;
}

void channel_close(struct channel *channel)
{
	if (channel->fd >= 0)
		close(channel->fd);
	mem_free(channel->frame);
	*channel = (struct channel)CHANNEL_INIT;
}

static int gone(const struct channel *channel, struct ws_error *err)
{
	return ws_fail(err, -ECONNRESET, "%s is gone", channel->name);
}

static int send_all(const struct channel *channel, const void *bytes, size_t count,
		    struct ws_error *err)
{
	/* Bounded: each turn sends something, or ends. */
	for (const uint8_t *at = bytes; count > 0;) {
		ssize_t sent = send(channel->fd, at, count, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN)
			return ws_fail(err, -ETIMEDOUT, "%s took nothing for %d s", channel->name,
				       CHANNEL_WAIT_MS / 1000);
		if (sent <= 0)
			return gone(channel, err);
		at += sent;
		count -= (size_t)sent;
	}
	return 0;
}

static int receive_all(const struct channel *channel, void *bytes, size_t count, uint64_t deadline,
		       struct ws_error *err)
{
	for (uint8_t *at = bytes; count > 0;) {
		struct pollfd wait = {.fd = channel->fd, .events = POLLIN};
		uint64_t now = clock_ns();
		if (now >= deadline)
			return ws_fail(err, -ETIMEDOUT, "%s said nothing for %d s", channel->name,
				       CHANNEL_WAIT_MS / 1000);
		if (poll(&wait, 1, (int)((deadline - now) / 1000000u) + 1) <= 0)
			continue;
		ssize_t got = recv(channel->fd, at, count, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return gone(channel, err);
		at += got;
		count -= (size_t)got;
	}
	return 0;
}

int channel_say(struct channel *channel, char tag, const void *bytes, size_t count,
		struct ws_error *err)
{
	uint8_t head[HEAD_BYTES];
	struct writer out = writer_fixed(head, sizeof(head));
	assert(count <= CHANNEL_FRAME_BYTES_MAX);
	write_u32(&out, (uint32_t)count);
	write_u8(&out, (uint8_t)tag);
	int rc = send_all(channel, head, sizeof(head), err);
	return rc == 0 ? send_all(channel, bytes, count, err) : rc;
}

void channel_say_error(struct channel *channel, const struct ws_error *said)
{
	(void)channel_say(channel, TAG_ERROR, said, sizeof(*said), NULL);
}

int channel_hear(struct channel *channel, char *tag_out, struct ws_error *err)
{
	uint8_t head[HEAD_BYTES];
	struct ws_error other;
	uint64_t deadline = deadline_in_ms(CHANNEL_WAIT_MS);
	int rc = receive_all(channel, head, sizeof(head), deadline, err);
	if (rc != 0)
		return rc;
	struct reader in = reader_make(head, sizeof(head));
	channel->bytes = read_u32(&in);
	*tag_out = (char)read_u8(&in);
	if (channel->bytes > CHANNEL_FRAME_BYTES_MAX)
		return ws_fail(err, -EPROTO, "%s isn't another `bench transfer`", channel->name);
	rc = receive_all(channel, channel->frame, channel->bytes, deadline, err);
	if (rc != 0 || *tag_out != TAG_ERROR)
		return rc;
	if (channel->bytes != sizeof(other))
		return ws_fail(err, -EPROTO, "%s failed and can't say how", channel->name);
	memcpy(&other, channel->frame, sizeof(other));
	other.text[sizeof(other.text) - 1] = 0;
	return ws_fail(err, other.code < 0 ? other.code : -EIO, "%s: %.400s", channel->name,
		       other.text);
}

int channel_expect(struct channel *channel, char tag, struct ws_error *err)
{
	char heard;
	int rc = channel_hear(channel, &heard, err);
	if (rc == 0 && heard != tag)
		return ws_fail(err, -EPROTO, "%s said '%c', not '%c'", channel->name, heard, tag);
	return rc;
}

/* ------------------------------------------------------------------------------- TCP */

static int address_find(const char *where, struct addrinfo **found_out, struct ws_error *err)
{
	const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(where, ':');
	char host[128];
	if (colon == NULL || colon == where || (size_t)(colon - where) >= sizeof(host))
		return ws_fail(err, -EINVAL,
			       "'%s' isn't a host and a port; write them as in 10.0.0.2:7700",
			       where);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - where), where);
	int rc = getaddrinfo(host, colon + 1, &hints, found_out);
	if (rc != 0)
		return ws_fail(err, -EINVAL, "'%s' can't be found: %s", where, gai_strerror(rc));
	return 0;
}

/* One try; the kernel's errno as the error's code. */
static int socket_make(const char *where, bool listens, int *fd_out, struct ws_error *err)
{
	struct addrinfo *found = NULL;
	int one = 1, rc = address_find(where, &found, err);
	*fd_out = -1;
	if (found == NULL)
		return rc;
	/* Who came may have gone before it is accepted. */
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (listens ? SOCK_NONBLOCK : 0), 0);
	if (listens && fd >= 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (!listens && fd >= 0)
		sends_bound(fd, CONNECT_MS_MAX);
	bool good = fd >= 0 && (listens ? bind(fd, found->ai_addr, found->ai_addrlen) == 0 &&
						  listen(fd, 64) == 0
					: connect(fd, found->ai_addr, found->ai_addrlen) == 0);
	int error = errno == EINPROGRESS ? ETIMEDOUT : errno;
	if (good)
		*fd_out = fd;
	else
		rc = ws_fail(err, -error, "cannot %s '%s': %s%s",
			     listens ? "listen at" : "connect to", where, strerror(error),
			     listens ? "" : "; does `bench transfer --listen` run there?");
	if (!good && fd >= 0)
		close(fd);
	freeaddrinfo(found);
	return rc;
}

int channel_listen(const char *where, int *fd_out, struct ws_error *err)
{
	return socket_make(where, true, fd_out, err);
}

int channel_accept(int listener, uint32_t wait_ms, int *fd_out, struct ws_error *err)
{
	struct pollfd wait = {.fd = listener, .events = POLLIN};
	*fd_out = -1;
	if (poll(&wait, 1, (int)wait_ms) == 1)
		*fd_out = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (*fd_out < 0)
		return ws_fail(err, -ETIMEDOUT, "nobody came for %u s", wait_ms / 1000);
	return 0;
}

/* The other host's half may be started a moment later. */
int channel_connect(const char *where, int *fd_out, struct ws_error *err)
{
	uint64_t deadline = deadline_in_ms(CONNECT_MS_MAX);
	int rc = socket_make(where, false, fd_out, err);
	while (rc == -ECONNREFUSED && clock_ns() < deadline) {
		sleep_ns(50000000);
		rc = socket_make(where, false, fd_out, err);
	}
	return rc;
}
