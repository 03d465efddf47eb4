/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC that misbehaves by rule: device "RULES:transport:device", as in
 * "seed=3,drop=0.01,dup_nth=5:fabric:tcp/127.0.0.1".  README.md lists the rules.  They act on
 * the ops posted through this NIC; delay also on the immediates that arrive at it.
 *
 * down, silent and gone are of the NIC as a whole: its port, what lies behind it, or it.
 *
 * Every op is a slot; the wrapped NIC sees the slot's index as the op's id.  Events that the
 * wrapped NIC doesn't give (drop, fail), or gave too early (delay), are queued here.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/fault.h"
#include "lib/transport/tables.h"

#define COPIES		4 /* ops that may be corrupt at the same time */
#define COPY_BYTES_MAX	(UINT64_C(4) << 20)
#define OLD_COUNT	64 /* immediates that stale may repeat */
#define DELAY_POLLS_MAX 64
#define SILENT_POLLS	200 /* of what isn't answered, until it is said */
#define HELD_MAX	4096
#define EXTRA_MAX	256

struct peer {
	struct peer *inner; /* the wrapped transport's; NULL once it has closed it */
	struct peer *next;
	uint32_t unreported;
	int closed_rc; /* what the wrapped transport said at last */
	bool closing;
};

enum slot_state { SLOT_FREE, SLOT_NORMAL, SLOT_LOST, SLOT_EXTRA };

struct slot {
	enum slot_state state;
	struct peer *peer; /* of this transport */
	uint64_t id;	   /* the caller's */
	int copy;	   /* index of the copy it is sent from, or -1 */
	bool delay;
	bool ended;    /* LOST: the wrapped NIC has reported it */
	uint32_t next; /* free list */
};

struct held {
	struct event event;
	uint32_t polls; /* how many more; 0: now */
};

struct fault {
	struct nic nic;	   /* first */
	struct nic *inner; /* owned */
	struct rules rules;
	bool decided, does[RULE_COUNT]; /* for the next op, while the wrapped NIC is full */
	struct port port;

	struct peer *peers; /* owned */
	struct slot *slots; /* owned */
	uint32_t slot_count, free_first, unreported;
	struct held *held; /* owned; HELD_MAX, unordered */
	uint32_t held_count;
	struct op *extra; /* owned ring of immediates to send once more */
	uint32_t extra_count;
	struct op old[OLD_COUNT]; /* what stale chooses from */
	uint32_t old_count;

	struct ws_memory copies; /* owned; COPIES times copy_bytes */
	struct mr copies_mr;
	uint64_t copy_bytes;
	bool copy_used[COPIES];
};

#define NONE UINT32_MAX

static struct fault *fault_of(struct nic *nic)
{
	return (struct fault *)nic;
}

/* ---------------------------------------------------------------- open, close */

/* An op on its way to be corrupted is sent from a copy: the caller's bytes stay as they are. */
static int copies_open(struct fault *fault, struct ws_error *err)
{
	if (!rules_have(&fault->rules, CORRUPT))
		return 0;
	fault->copy_bytes = MIN(fault->nic.op_bytes_max, COPY_BYTES_MAX);
	fault->nic.op_bytes_max = fault->copy_bytes;
	fault->copies.bytes = COPIES * fault->copy_bytes;
	fault->copies.base = mem_alloc(fault->copies.bytes);
	if (fault->copies.base == NULL)
		return ws_fail(err, -ENOMEM, "no memory to corrupt ops in");
	return fault->inner->transport->reg(fault->inner, &fault->copies, MR_SOURCE,
					    &fault->copies_mr, err);
}

static void limits_take(struct fault *fault)
{
	const struct nic *inner = fault->inner;
	const struct transport *transport = fault->nic.transport;
	bool any = fault->rules.down_nth > 0 || fault->rules.gone_nth > 0 ||
		   fault->rules.silent_nth > 0;

	for (enum rule rule = 0; rule < RULE_COUNT; rule++)
		any = any || rules_have(&fault->rules, rule);
	fault->nic = *inner;
	fault->nic.transport = transport;
	snprintf(fault->nic.name, sizeof(fault->nic.name), "fault(%.80s)", inner->name);
	/* An event that is held here makes no fd readable. */
	if (any)
		fault->nic.wait_fd = -1;
}

static int fault_open(struct nic *nic, const char *device, struct ws_error *err)
{
	struct fault *fault = fault_of(nic);
	const char *first = strchr(device, ':');
	const char *second = first != NULL ? strchr(first + 1, ':') : NULL;
	char transport[16];

	if (second == NULL || (size_t)(second - first) > sizeof(transport))
		return ws_fail(err, -EINVAL,
			       "'%s' isn't a fault device; write rules:transport:device, as in "
			       "drop=0.01:fabric:tcp/127.0.0.1",
			       device);
	int rc = rules_parse(&fault->rules, device, (size_t)(first - device), err);
	if (rc != 0)
		return ws_fail_in(err, rc, "cannot open '%s'", device);
	if (port_is_kept_away(&fault->rules))
		return ws_fail(err, -ENODEV, "the NIC of '%s' is gone by rule", device);
	snprintf(transport, sizeof(transport), "%.*s", (int)(second - first - 1), first + 1);
	rc = nic_open(&fault->inner, transport, second + 1, err);
	if (rc != 0)
		return rc;
	limits_take(fault);
	fault->slot_count = 2 * nic->ops_in_flight_max + EXTRA_MAX;
	fault->slots = mem_alloc(fault->slot_count * sizeof(*fault->slots));
	fault->held = mem_alloc(HELD_MAX * sizeof(*fault->held));
	fault->extra = mem_alloc(EXTRA_MAX * sizeof(*fault->extra));
	if (fault->slots == NULL || fault->held == NULL || fault->extra == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the NIC '%s'", device);
	for (uint32_t i = 0; i < fault->slot_count; i++)
		fault->slots[i].next = i + 1 < fault->slot_count ? i + 1 : NONE;
	return copies_open(fault, err);
}

static void fault_close(struct nic *nic)
{
	struct fault *fault = fault_of(nic);

	if (fault->copies_mr.memory.base != NULL)
		fault->inner->transport->dereg(fault->inner, &fault->copies_mr);
	nic_close(fault->inner);
	while (fault->peers != NULL) {
		struct peer *peer = fault->peers;
		fault->peers = peer->next;
		mem_free(peer);
	}
	mem_free(fault->copies.base);
	mem_free(fault->slots);
	mem_free(fault->held);
	mem_free(fault->extra);
}

/* ---------------------------------------------------------------- slots and held events */

static void slot_free(struct fault *fault, uint32_t index)
{
	struct slot *slot = &fault->slots[index];

	if (slot->copy >= 0)
		fault->copy_used[slot->copy] = false;
	*slot = (struct slot){.next = fault->free_first};
	fault->free_first = index;
}

static struct slot *slot_take(struct fault *fault, enum slot_state state, struct peer *peer,
			      uint64_t id)
{
	uint32_t index = fault->free_first;

	if (index == NONE)
		return NULL;
	fault->free_first = fault->slots[index].next;
	fault->slots[index] = (struct slot){.state = state, .peer = peer, .id = id, .copy = -1};
	return &fault->slots[index];
}

static void reported(struct fault *fault, const struct event *event)
{
	if (event->kind == EVENT_IMM || event->kind == EVENT_NIC)
		return;
	assert(event->peer != NULL);
	event->peer->unreported--;
	fault->unreported--;
}

/* Room for every report: at most ops_in_flight_max are unreported; immediates may run out of it,
 * and are then simply not held. */
static bool event_hold(struct fault *fault, const struct event *event, uint32_t polls)
{
	uint32_t kept = event->kind == EVENT_IMM ? HELD_MAX / 2 : HELD_MAX;

	if (fault->held_count >= kept)
		return false;
	fault->held[fault->held_count++] = (struct held){.event = *event, .polls = polls};
	return true;
}

static int held_take(struct fault *fault, struct event *events_out, int count)
{
	int taken = 0;

	for (uint32_t i = 0; i < fault->held_count && taken < count;) {
		struct held *held = &fault->held[i];
		if (held->polls > 0) {
			held->polls--;
			i++;
			continue;
		}
		events_out[taken++] = held->event;
		reported(fault, &held->event);
		*held = fault->held[--fault->held_count];
	}
	return taken;
}

/* ---------------------------------------------------------------- registrations, peers */

static int fault_reg(struct nic *nic, const struct ws_memory *memory, enum mr_use use,
		     struct mr *mr, struct ws_error *err)
{
	struct fault *fault = fault_of(nic);

	return fault->inner->transport->reg(fault->inner, memory, use, mr, err);
}

static void fault_dereg(struct nic *nic, struct mr *mr)
{
	struct fault *fault = fault_of(nic);

	fault->inner->transport->dereg(fault->inner, mr);
}

static void peer_free(struct fault *fault, struct peer *peer)
{
	for (struct peer **at = &fault->peers; *at != NULL; at = &(*at)->next)
		if (*at == peer) {
			*at = peer->next;
			break;
		}
	mem_free(peer);
}

static int fault_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
			   struct ws_error *err)
{
	struct fault *fault = fault_of(nic);
	struct peer *peer = mem_alloc(sizeof(*peer));

	*peer_out = NULL;
	if (peer == NULL)
		return ws_fail(err, -ENOMEM, "no memory for one more peer of %s", nic->name);
	peer->next = fault->peers;
	fault->peers = peer;
	int rc = fault->inner->transport->peer_open(fault->inner, &peer->inner, address_out, err);
	if (rc != 0) {
		peer_free(fault, peer);
		return rc;
	}
	*peer_out = peer;
	return 0;
}

static int fault_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
			      struct ws_error *err)
{
	struct fault *fault = fault_of(nic);

	return fault->inner->transport->peer_connect(fault->inner, peer->inner, address, err);
}

/* What this file kept back of the peer: reports come now, lost ones too, the rest is dropped. */
static void peer_let_go(struct fault *fault, struct peer *peer)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < fault->held_count; i++) {
		struct held held = fault->held[i];
		if (held.event.peer == peer && held.event.kind == EVENT_IMM)
			continue;
		if (held.event.peer == peer)
			held.polls = 0;
		fault->held[kept++] = held;
	}
	fault->held_count = kept;
	kept = 0;
	for (uint32_t i = 0; i < fault->extra_count; i++)
		if (fault->extra[i].peer != peer)
			fault->extra[kept++] = fault->extra[i];
	fault->extra_count = kept;
	kept = 0;
	for (uint32_t i = 0; i < fault->old_count; i++)
		if (fault->old[i].peer != peer)
			fault->old[kept++] = fault->old[i];
	fault->old_count = kept;
	for (uint32_t i = 0; i < fault->slot_count; i++) {
		struct slot *slot = &fault->slots[i];
		if (slot->peer != peer || slot->state != SLOT_LOST)
			continue;
		struct event event = {
			.kind = EVENT_FAILED, .status = -ECANCELED, .id = slot->id, .peer = peer};
		bool kept_back = event_hold(fault, &event, 0);
		assert(kept_back);
		if (slot->ended)
			slot_free(fault, i);
		else
			slot->state = SLOT_EXTRA; /* its end is of no interest any more */
	}
}

static int fault_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon)
{
	struct fault *fault = fault_of(nic);

	if (!peer->closing) {
		peer->closing = true;
		peer_let_go(fault, peer);
	}
	if (peer->inner != NULL) {
		int rc = fault->inner->transport->peer_close(fault->inner, peer->inner, quiet,
							     abandon);
		if (rc != 0 && rc != -EBUSY)
			return rc;
		peer->inner = NULL;
		peer->closed_rc = rc;
		/* What it said of failures that are still held has ended with it. */
		for (uint32_t i = 0; i < fault->held_count; i++)
			if (fault->held[i].event.peer == peer)
				fault->held[i].event.reason = NULL;
	}
	if (peer->unreported > 0)
		return -EAGAIN;
	int rc = peer->closed_rc;
	peer_free(fault, peer);
	return rc;
}

/* ---------------------------------------------------------------- post */

static void decide(struct fault *fault)
{
	if (fault->decided)
		return;
	fault->decided = true;
	rules_decide(&fault->rules, fault->does);
}

static void extra_add(struct fault *fault, const struct op *op)
{
	if (fault->extra_count == EXTRA_MAX)
		return;
	fault->extra[fault->extra_count] = *op;
	fault->extra[fault->extra_count].bytes = 0;
	fault->extra[fault->extra_count++].local = NULL;
}

/* After op was taken: immediates to repeat, and what may be repeated later. */
static void echo(struct fault *fault, const struct op *op)
{
	if (fault->does[DUP])
		extra_add(fault, op);
	if (fault->does[STALE] && fault->old_count > 0)
		extra_add(fault, &fault->old[rules_random(&fault->rules) % fault->old_count]);
	uint32_t at = fault->old_count < OLD_COUNT
			      ? fault->old_count++
			      : (uint32_t)(rules_random(&fault->rules) % OLD_COUNT);
	fault->old[at] = *op;
}

/* False: no copy is free. */
static bool corrupt(struct fault *fault, struct op *op, struct slot *slot)
{
	for (int i = 0; i < COPIES; i++) {
		if (fault->copy_used[i])
			continue;
		uint8_t *copy = (uint8_t *)fault->copies.base + (uint64_t)i * fault->copy_bytes;
		memcpy(copy, op->local, op->bytes);
		copy[rules_random(&fault->rules) % op->bytes] ^=
			(uint8_t)(1 + rules_random(&fault->rules) % 255);
		op->local = copy;
		op->local_mr = &fault->copies_mr;
		fault->copy_used[i] = true;
		slot->copy = i;
		return true;
	}
	return false;
}

static void report_without_sending(struct fault *fault, const struct op *op)
{
	struct event event = {.kind = fault->does[FAIL] || fault->port.down ? EVENT_FAILED
									    : EVENT_SENT,
			      .status = fault->port.down    ? -ENETDOWN
					: fault->does[FAIL] ? -EIO
							    : 0,
			      .id = op->id,
			      .peer = op->peer};
	bool kept = event_hold(
		fault, &event,
		fault->does[DELAY] ? (uint32_t)(rules_random(&fault->rules) % DELAY_POLLS_MAX) : 0);

	assert(kept);
}

static void report_unanswered(struct fault *fault, const struct op *op)
{
	const struct event event = {.kind = EVENT_FAILED,
				    .status = -ECONNRESET,
				    .reason = "no answer, by rule",
				    .id = op->id,
				    .peer = op->peer};
	bool kept = event_hold(fault, &event, SILENT_POLLS);

	assert(kept);
}

/* The wrapped NIC's answer: 1 taken, 0 full, negative lost. */
static int pass_on(struct fault *fault, const struct op *op)
{
	struct op inner = *op;
	bool carries = op->bytes > 0 && !op->placed;
	struct slot *slot =
		slot_take(fault, fault->does[LOST] ? SLOT_LOST : SLOT_NORMAL, op->peer, op->id);
	int rc = 0;

	if (slot == NULL)
		return 0;
	uint32_t index = (uint32_t)(slot - fault->slots);
	slot->delay = fault->does[DELAY];
	inner.peer = op->peer->inner;
	inner.id = index;
	if (fault->does[CUT] && carries)
		inner.bytes = op->bytes / 2;
	if (!fault->does[CORRUPT] || !carries || corrupt(fault, &inner, slot))
		rc = fault->inner->transport->post(fault->inner, &inner, 1);
	if (rc <= 0)
		slot_free(fault, index);
	return rc;
}

static int fault_post(struct nic *nic, const struct op *ops, int count)
{
	struct fault *fault = fault_of(nic);

	for (int i = 0; i < count; i++) {
		assert(!ops[i].peer->closing);
		if (fault->unreported == nic->ops_in_flight_max)
			return i;
		if (!fault->decided)
			port_traffic(&fault->port, &fault->rules);
		if (fault->port.gone)
			return i > 0 ? i : -ENODEV;
		decide(fault);
		if (fault->does[FAIL] || fault->does[DROP] || fault->port.down) {
			report_without_sending(fault, &ops[i]);
		} else if (port_is_silent(&fault->port)) {
			report_unanswered(fault, &ops[i]);
		} else {
			int rc = pass_on(fault, &ops[i]);
			if (rc <= 0)
				return i > 0 ? i : rc;
			echo(fault, &ops[i]);
		}
		fault->decided = false;
		fault->unreported++;
		ops[i].peer->unreported++;
	}
	return count;
}

/* ---------------------------------------------------------------- poll */

static void extras_post(struct fault *fault)
{
	while (fault->extra_count > 0) {
		struct op *op = &fault->extra[fault->extra_count - 1];
		struct slot *slot = slot_take(fault, SLOT_EXTRA, op->peer, 0);
		if (slot == NULL)
			return;
		struct op inner = *op;
		inner.peer = op->peer->inner;
		inner.id = (uint64_t)(slot - fault->slots);
		if (fault->inner->transport->post(fault->inner, &inner, 1) != 1) {
			slot_free(fault, (uint32_t)inner.id);
			return;
		}
		fault->extra_count--;
	}
}

static struct peer *peer_find(const struct fault *fault, const struct peer *inner)
{
	for (struct peer *peer = fault->peers; peer != NULL; peer = peer->next)
		if (peer->inner == inner)
			return peer;
	return NULL;
}

/* The caller's event for one of the wrapped NIC's.  False: there is none, or not yet. */
static bool translate(struct fault *fault, const struct event *from, struct event *to)
{
	*to = *from;
	if (from->kind == EVENT_NIC) {
		fault->nic.down = fault->inner->down || fault->port.down;
		memcpy(fault->nic.trouble, fault->inner->trouble, sizeof(fault->nic.trouble));
		return true;
	}
	if (from->kind == EVENT_IMM) {
		bool delay = rules_chance(&fault->rules, DELAY);
		port_traffic(&fault->port, &fault->rules);
		if (fault->port.down || port_is_silent(&fault->port))
			return false; /* it doesn't get through */
		to->peer = from->peer != NULL ? peer_find(fault, from->peer) : NULL;
		return !delay ||
		       !event_hold(fault, to,
				   (uint32_t)(rules_random(&fault->rules) % DELAY_POLLS_MAX));
	}
	struct slot *slot = &fault->slots[from->id];
	enum slot_state state = slot->state;
	bool delay = slot->delay && !slot->peer->closing;
	to->peer = slot->peer;
	to->id = slot->id;
	assert(state != SLOT_FREE);
	if (state == SLOT_LOST && from->kind == EVENT_SENT) {
		slot->ended = true; /* reported when its peer is closed */
		return false;
	}
	slot_free(fault, (uint32_t)from->id);
	if (state == SLOT_EXTRA)
		return false;
	return !delay ||
	       !event_hold(fault, to, (uint32_t)(rules_random(&fault->rules) % DELAY_POLLS_MAX));
}

static int fault_poll(struct nic *nic, struct event *events_out, int count)
{
	struct fault *fault = fault_of(nic);
	struct event events[32];
	int taken = 0;

	if (fault->port.gone)
		return -ENODEV;
	if (port_poll(&fault->port, &fault->rules)) {
		nic->down = fault->port.down || fault->inner->down;
		snprintf(nic->trouble, sizeof(nic->trouble), "its port %s down by rule",
			 fault->port.down ? "is" : "was");
		events_out[taken++] = (struct event){.kind = EVENT_NIC};
	}
	taken += held_take(fault, events_out + taken, count - taken);
	extras_post(fault);
	int got = fault->inner->transport->poll(fault->inner, events, MIN(count - taken, 32));
	for (int i = 0; i < got; i++)
		if (translate(fault, &events[i], &events_out[taken])) {
			reported(fault, &events_out[taken]);
			taken++;
		}
	return got < 0 && taken == 0 ? got : taken;
}

const struct transport transport_fault = {
	.name = "fault",
	.nic_size = sizeof(struct fault),
	.open = fault_open,
	.close = fault_close,
	.reg = fault_reg,
	.dereg = fault_dereg,
	.peer_open = fault_peer_open,
	.peer_connect = fault_peer_connect,
	.peer_close = fault_peer_close,
	.post = fault_post,
	.poll = fault_poll,
};
