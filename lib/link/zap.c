/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ZAP handler (rfc.zeromq.org/spec/27): who holds the run's member key may come in.  It
 * has no thread of its own; link_receive and link_wait answer what has come, so a hub that
 * calls neither for five seconds lets nobody in, and those who wait dial again.
 */
#include <errno.h>
#include <string.h>

#include "lib/link/link_inside.h"

/* Identity, delimiter, version, request id, domain, address, identity, mechanism, key. */
enum zap_part {
	ZAP_ROUTE,
	ZAP_DELIMITER,
	ZAP_VERSION,
	ZAP_REQUEST,
	ZAP_DOMAIN,
	ZAP_ADDRESS,
	ZAP_IDENTITY,
	ZAP_MECHANISM,
	ZAP_CREDENTIAL,
	ZAP_PART_COUNT
};

/* A ROUTER, not a REP: it has no state that a failed answer could leave it stuck in. */
int zap_open(struct link *link, struct ws_error *err)
{
	int linger = 0;

	link->zap = zmq_socket(link->context, ZMQ_ROUTER);
	if (link->zap == NULL ||
	    zmq_setsockopt(link->zap, ZMQ_LINGER, &linger, sizeof(linger)) != 0 ||
	    zmq_bind(link->zap, "inproc://zeromq.zap.01") != 0)
		return ws_fail(err, -EIO, "cannot set up the hub's admission: %s",
			       zmq_strerror(errno));
	return 0;
}

static bool part_is(zmq_msg_t *part, const void *bytes, size_t count)
{
	return zmq_msg_size(part) == count && memcmp(zmq_msg_data(part), bytes, count) == 0;
}

static void answer(struct link *link, zmq_msg_t *parts, const char *status, const char *text)
{
	static const char version[] = "1.0";
	const struct {
		const void *bytes;
		size_t count;
	} reply[] = {
		{zmq_msg_data(&parts[ZAP_ROUTE]), zmq_msg_size(&parts[ZAP_ROUTE])},
		{"", 0},
		{version, strlen(version)},
		{zmq_msg_data(&parts[ZAP_REQUEST]), zmq_msg_size(&parts[ZAP_REQUEST])},
		{status, strlen(status)},
		{text, strlen(text)},
		{"", 0}, /* user id */
		{"", 0}, /* metadata */
	};

	/* A failed send drops the whole answer; the client's handshake times out and it asks again.
	 */
	for (uint32_t i = 0; i < ARRAY_SIZE(reply); i++)
		if (zmq_send(link->zap, reply[i].bytes, reply[i].count,
			     ZMQ_DONTWAIT | (i + 1 < ARRAY_SIZE(reply) ? ZMQ_SNDMORE : 0)) < 0)
			return;
}

static void note_refused(struct link *link, zmq_msg_t *address, bool full)
{
	size_t count = MIN(zmq_msg_size(address), sizeof(link->refused_address) - 1);

	memcpy(link->refused_address, zmq_msg_data(address), count);
	link->refused_address[count] = '\0';
	link->refused_full = full;
}

static void decide(struct link *link, zmq_msg_t *parts)
{
	uint8_t admitted[32];

	if (zmq_z85_decode(admitted, link->key.member_public) == NULL ||
	    !part_is(&parts[ZAP_VERSION], "1.0", 3) ||
	    !part_is(&parts[ZAP_MECHANISM], "CURVE", 5) ||
	    !part_is(&parts[ZAP_CREDENTIAL], admitted, sizeof(admitted))) {
		note_refused(link, &parts[ZAP_ADDRESS], false);
		answer(link, parts, "400", "not a member of this run");
	} else if (link->open_count >= link->client_count_max &&
		   watch_settled_count(link) >= link->client_count_max) {
		/* 500: on 300, "try again", ZeroMQ cuts the client off without a word. */
		note_refused(link, &parts[ZAP_ADDRESS], true);
		answer(link, parts, "500", "the hub has all the members it can take");
	} else {
		answer(link, parts, "200", "");
	}
}

void zap_serve(struct link *link)
{
	zmq_msg_t parts[ZAP_PART_COUNT];

	for (uint32_t i = 0; link->zap != NULL && i < EVENTS_EACH_CALL_MAX; i++) {
		uint32_t count = parts_receive(link->zap, parts, ZAP_PART_COUNT);
		if (count == 0)
			return;
		/* Other mechanisms carry other counts; they get no further than the socket's
		 * own demand for CURVE, and are not answered. */
		if (count == ZAP_PART_COUNT)
			decide(link, parts);
		parts_close(parts, MIN(count, ZAP_PART_COUNT));
	}
}
