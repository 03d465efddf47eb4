/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of lib/link share: the struct, the frame's bytes, the ZAP answers and the
 * reading of socket monitors.  One ZeroMQ context per link: ZAP's address is fixed inside one,
 * so two links of one process (a hub in a trainer) would otherwise answer for each other.
 */
#ifndef LINK_INSIDE_H
#define LINK_INSIDE_H

#include <zmq.h>

#include "lib/link/link.h"
#include "lib/link/link_frame.h"

#define HANDSHAKE_MS 5000
/* Older connections have ended their handshake, or ZeroMQ would have ended them. */
#define SETTLED_NS    ((HANDSHAKE_MS + 1000) * UINT64_C(1000000))
#define REDIAL_MS_MIN 100
#define REDIAL_MS_MAX 2000
/* A member that was refused asks again, in case the hub gets the right key. */
#define REDIAL_REFUSED_MS 1000
/* Neither connected nor failed in this time (a name that doesn't resolve yields no event). */
#define DIAL_MS_MAX 12000
/* So often in a row must a handshake be cut off before that counts as a wrong key. */
#define CUT_OFF_COUNT_MAX 3
/* The hub reports refusals at most this often. */
#define REFUSED_REPORT_NS 1000000000u
/* Bounds what one link_receive does before it looks at frames. */
#define EVENTS_EACH_CALL_MAX 256
/* Connections at a higher descriptor aren't tracked: no address in reports, not in the cap. */
#define ARRIVAL_COUNT 16384

/* A connection the hub accepted; its index is the descriptor. */
struct arrival {
	uint64_t since_ns; /* 0: none */
	uint64_t calm;	   /* the monitor's calm when it was noted */
	char address[56];  /* "" if it was gone before it could be asked */
};

struct link {
	bool is_hub;
	void *context, *socket, *monitor, *zap; /* owned; socket may be NULL between two dials */
	struct run_key key;
	uint64_t run;	   /* key.run_id as a number */
	uint64_t sequence; /* of the last frame sent */
	char endpoint[256];
	zmq_msg_t message;     /* owned; the last frame received; its body is lent out */
	char peer_address[64]; /* whom message came from; hub only */

	/* member: the state of the one connection */
	bool shaken;		/* the handshake succeeded and the caller knows */
	bool lost;		/* gone; said when the frames it left are read */
	bool refused;		/* the hub said no: ask again slowly */
	uint32_t cut_off_count; /* handshakes cut off in a row */
	uint32_t redial_ms;
	uint32_t dial_count; /* names the monitors */
	uint64_t tcp_up_ns;
	uint64_t redial_ns; /* when to dial again; never 0 */

	/* hub */
	struct arrival *arrivals;   /* owned; ARRIVAL_COUNT */
	uint32_t client_count_max;  /* LINK_CLIENTS_MAX; tests lower it */
	uint32_t open_count;	    /* connections accepted and not yet gone */
	uint64_t calm;		    /* how often the monitor was seen empty */
	uint32_t failed_kind;	    /* of the handshake whose DISCONNECTED comes next; 0: none */
	uint32_t refused_hidden;    /* refusals not reported since the last that was */
	uint64_t refused_report_ns; /* no report before */
	char refused_address[64];   /* whom ZAP refused last */
	bool refused_full;	    /* and whether for want of room */
};

/* zap.c: binds the ZAP address; answers what has come; never blocks. */
int zap_open(struct link *link, struct ws_error *err);
void zap_serve(struct link *link);

/* watch.c: attaches a monitor to link->socket; the next event worth telling, or LINK_NOTHING. */
int watch_open(struct link *link, struct ws_error *err);
enum link_event watch_next(struct link *link, struct ws_error *err);
void watch_close(struct link *link);
/* Connections older than any handshake may be: they have shown the key. */
uint32_t watch_settled_count(const struct link *link);

/* Reads all parts of one message; how many there are, of which parts_max are kept (the
 * caller closes them); 0 when there is no message. */
uint32_t parts_receive(void *socket, zmq_msg_t *parts, uint32_t parts_max);
void parts_close(zmq_msg_t *parts, uint32_t count);

#endif
