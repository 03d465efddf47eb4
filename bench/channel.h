/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the processes of one benchmark talk beside what they measure: frames of a tag and bytes over
 * a stream socket, a pair's or TCP's.  Every wait has a deadline.  A frame that says an error
 * becomes the listener's error.
 */
#ifndef CHANNEL_H
#define CHANNEL_H

#include "lib/base/base.h"

#define CHANNEL_FRAME_BYTES_MAX (1u << 20)
#define CHANNEL_WAIT_MS		60000

struct channel {
	int fd;		  /* owned; -1: none */
	const char *name; /* of who is at the other end, for errors; borrowed */
	uint8_t *frame;	  /* owned; the last one heard, without its tag */
	size_t bytes;	  /* of it */
};

#define CHANNEL_INIT     \
	{                \
		.fd = -1 \
	}

/* Takes the fd, also on failure. */
int channel_open(struct channel *channel, int fd, const char *name, struct ws_error *err);
void channel_close(struct channel *channel);
int channel_say(struct channel *channel, char tag, const void *bytes, size_t count,
		struct ws_error *err);
/* My error becomes the other end's. */
void channel_say_error(struct channel *channel, const struct ws_error *said);
/* Waits for a frame: its tag in *tag_out, its bytes in channel->frame. */
int channel_hear(struct channel *channel, char *tag_out, struct ws_error *err);
/* Waits for a frame with this tag. */
int channel_expect(struct channel *channel, char tag, struct ws_error *err);

/* "10.0.0.2:7700": listens there, or connects to it.  The fd is the caller's. */
int channel_listen(const char *where, int *fd_out, struct ws_error *err);
int channel_accept(int listener, uint32_t wait_ms, int *fd_out, struct ws_error *err);
int channel_connect(const char *where, int *fd_out, struct ws_error *err);

#endif
