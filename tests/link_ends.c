/* SPDX-License-Identifier: Apache-2.0 */
/* See link_ends.h. */
#include "tests/link_ends.h"

struct run_key ends_key;

void ends_setup(void)
{
	struct ws_error err = {0};

	ck_ok(run_key_make(&ends_key, &err), err);
}

void turn(struct end *end)
{
	struct frame frame;

	if (end->link == NULL)
		return;
	switch (link_receive(end->link, &frame, &end->err)) {
	case LINK_NOTHING:
		break;
	case LINK_FRAME:
		end->frames++;
		end->frame = frame;
		break;
	case LINK_CONNECTED:
		end->connected++;
		break;
	case LINK_DISCONNECTED:
		end->disconnected++;
		break;
	case LINK_REFUSED:
		end->refused++;
		break;
	case LINK_MALFORMED:
		end->malformed++;
		break;
	}
	link_wait(end->link, NULL, 0, clock_ns() + 1000000);
}

void turn_for_ms(struct end *a, struct end *b, uint64_t ms)
{
	uint64_t until = deadline_in_ms(ms);

	while (clock_ns() < until) {
		turn(a);
		turn(b);
	}
}

void listen_here(struct end *hub)
{
	struct ws_error err = {0};

	ck_ok(link_listen(&hub->link, "tcp://127.0.0.1:*", &ends_key, &err), err);
}

void dial_to(struct end *member, const struct end *hub, const struct run_key *with)
{
	struct ws_error err = {0};

	ck_ok(link_dial(&member->link, link_endpoint(hub->link), with, &err), err);
}

void meet(struct end *hub, struct end *member)
{
	listen_here(hub);
	dial_to(member, hub, &ends_key);
	turn_until(hub, member, member->connected == 1);
}

void part(struct end *hub, struct end *member)
{
	link_close(member->link);
	link_close(hub->link);
}

void send_now(struct end *from, struct end *to, const struct frame *frame)
{
	struct ws_error err = {0};
	uint32_t before = to->frames;
	int rc = -EAGAIN;

	turn_until(from, to, (rc = link_send(from->link, frame, &err)) != -EAGAIN);
	ck_ok(rc, err);
	turn_until(from, to, to->frames == before + 1);
}

uint64_t route_of(struct end *hub, struct end *member)
{
	struct frame hello = {.kind = 1};

	send_now(member, hub, &hello);
	return hub->frame.route;
}
