/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs inside one process: device "net/name", "net/name?seed=7" or "net/name?mbps=1000".  All NICs
 * of a net share a seeded generator that decides when each write lands, when its immediate is seen
 * and when its end is reported, so that nobody leans on an order; but not before a line of that
 * speed has carried it (loop_net.c).  A net lives as long as its NICs.
 *
 * A write sits in a slot of its sender until its immediate was taken and its end was reported:
 * a receiver that doesn't poll holds its senders up.  One lock per net (a test may run each side
 * in a thread of its own); the fabrics have none.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "lib/transport/loop.h"
#include "lib/transport/tables.h"

#define LOOP_OPS_MAX	  64
#define LOOP_SLOTS	  (2 * LOOP_OPS_MAX)
#define LOOP_OP_BYTES_MAX (UINT64_C(4) << 20)
#define LOOP_MRS_MAX	  4096
#define ADDRESS_MAGIC	  UINT32_C(0x31504c57)

static struct loop *loop_of(struct nic *nic)
{
	return (struct loop *)nic;
}

/* ---------------------------------------------------------------- slots */

static void slot_unlink(struct loop *loop, struct peer *peer, uint32_t index)
{
	struct slot *slot = &loop->slots[index];

	if (slot->before != NONE)
		loop->slots[slot->before].next = slot->next;
	else
		peer->first = slot->next;
	if (slot->next != NONE)
		loop->slots[slot->next].before = slot->before;
	else
		peer->last = slot->before;
	slot->next = loop->free_first;
	loop->free_first = index;
}

/* At either end of the list, so that its order says nothing. */
static void slot_link(struct loop *loop, struct peer *peer, uint32_t index, bool in_front)
{
	struct slot *slot = &loop->slots[index];

	slot->before = in_front ? NONE : peer->last;
	slot->next = in_front ? peer->first : NONE;
	if (slot->before != NONE)
		loop->slots[slot->before].next = index;
	else
		peer->first = index;
	if (slot->next != NONE)
		loop->slots[slot->next].before = index;
	else
		peer->last = index;
}

static void slot_done(struct loop *loop, struct peer *peer, uint32_t index)
{
	if (!loop->slots[index].imm_due && !loop->slots[index].end_due)
		slot_unlink(loop, peer, index);
}

/* ---------------------------------------------------------------- landing */

/* NULL: no registration of the receiver allows this write. */
static uint8_t *target_find(const struct loop *loop, const struct op *op, uint64_t bytes)
{
	for (uint32_t i = 0; i < loop->mr_count; i++) {
		const struct mr *mr = loop->mrs[i];
		uint64_t offset = op->remote - mr->base;
		if (mr->key == op->remote_key && offset <= mr->memory.bytes &&
		    bytes <= mr->memory.bytes - offset)
			return (uint8_t *)mr->memory.base + offset;
	}
	return NULL;
}

static void slot_fail(struct slot *slot, int status)
{
	if (slot->landed)
		return;
	slot->landed = true;
	slot->imm_due = false;
	slot->status = status;
}

static void slot_land(struct peer *peer, struct slot *slot)
{
	uint64_t bytes = slot->op.placed ? 0 : slot->op.bytes;
	uint8_t *to = target_find(peer->other->loop, &slot->op, bytes);

	if (to == NULL) {
		slot_fail(slot, -EIO);
		return;
	}
	if (bytes > 0)
		memcpy(to, slot->op.local, bytes);
	slot->landed = true;
}

/* Some of the ops from peer to its other half land, if both ends have connected. */
static void peer_progress(struct peer *peer)
{
	struct loop *loop = peer->loop;

	if (peer->other == NULL || peer->other->other != peer)
		return;
	for (uint32_t i = peer->first; i != NONE; i = loop->slots[i].next)
		if (!loop->slots[i].landed && loop->slots[i].due_ns <= loop->net->now_ns &&
		    net_coin(loop->net))
			slot_land(peer, &loop->slots[i]);
}

/* ---------------------------------------------------------------- open, close */

static int loop_open(struct nic *nic, const char *device, struct ws_error *err)
{
	struct loop *loop = loop_of(nic);
	struct loop_device parsed;

	int rc = loop_device_parse(&parsed, device, err);
	if (rc != 0)
		return rc;
	memcpy(loop->name, parsed.name, sizeof(loop->name));
	loop->slots = mem_alloc(LOOP_SLOTS * sizeof(*loop->slots));
	loop->mrs = mem_alloc(LOOP_MRS_MAX * sizeof(struct mr *));
	if (loop->slots == NULL || loop->mrs == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the loop NIC '%s'", device);
	for (uint32_t i = 0; i < LOOP_SLOTS; i++)
		loop->slots[i].next = i + 1 < LOOP_SLOTS ? i + 1 : NONE;
	snprintf(nic->name, sizeof(nic->name), "loop %.40s/%.40s", parsed.net, loop->name);
	snprintf(nic->subnet, sizeof(nic->subnet), "%s", parsed.net);
	nic->mbps = parsed.mbps;
	nic->op_bytes_max = LOOP_OP_BYTES_MAX;
	nic->ops_in_flight_max = LOOP_OPS_MAX;
	nic->imm_bytes = 4;
	nic->fences_one_peer = true;
	nic->protocol = digest_bytes("loop 1", 6, 0);
	return net_join(loop, &parsed, err);
}

/* Halves that were connected to peer lose it: what they sent and hasn't landed has failed. */
static void peer_part(struct peer *peer)
{
	peer->other = NULL;
	for (struct loop *loop = peer->loop->net->nics; loop != NULL; loop = loop->next)
		for (struct peer *other = loop->peers; other != NULL; other = other->next) {
			if (other->other != peer)
				continue;
			other->other = NULL;
			for (uint32_t i = other->first, next; i != NONE; i = next) {
				next = loop->slots[i].next;
				slot_fail(&loop->slots[i], -ECONNRESET);
				loop->slots[i].imm_due = false;
				slot_done(loop, other, i);
			}
		}
}

static void peer_free(struct peer *peer)
{
	struct loop *loop = peer->loop;

	peer_part(peer);
	while (peer->first != NONE)
		slot_unlink(loop, peer, peer->first);
	loop->unreported -= peer->unreported;
	for (struct peer **at = &loop->peers; *at != NULL; at = &(*at)->next)
		if (*at == peer) {
			*at = peer->next;
			break;
		}
	mem_free(peer);
}

static void loop_close(struct nic *nic)
{
	struct loop *loop = loop_of(nic);

	if (loop->net != NULL) {
		pthread_mutex_lock(&loop->net->lock);
		while (loop->peers != NULL)
			peer_free(loop->peers);
		pthread_mutex_unlock(&loop->net->lock);
		net_leave(loop);
	}
	mem_free(loop->slots);
	mem_free(loop->mrs);
	loop->slots = NULL;
	loop->mrs = NULL;
}

/* ---------------------------------------------------------------- registrations */

/* The base is no pointer and not 0: whoever leans on one of them finds out here. */
static int loop_reg(struct nic *nic, const struct ws_memory *memory, enum mr_use use, struct mr *mr,
		    struct ws_error *err)
{
	struct loop *loop = loop_of(nic);

	memset(mr, 0, sizeof(*mr));
	if (memory->place != WS_HOST)
		return ws_fail(err, -ENOTSUP, "%s can't reach GPU memory; use host memory",
			       nic->name);
	if (memory->base == NULL || memory->bytes == 0)
		return ws_fail(err, -EINVAL, "cannot register 0 bytes on %s", nic->name);
	if (use == MR_SOURCE) {
		mr->memory = *memory;
		return 0;
	}
	pthread_mutex_lock(&loop->net->lock);
	int rc = 0;
	if (loop->mr_count == LOOP_MRS_MAX)
		rc = ws_fail(err, -ENOSPC, "%s has %d registrations already; drop one first",
			     nic->name, LOOP_MRS_MAX);
	if (rc == 0) {
		mr->memory = *memory;
		mr->key = mix64(++loop->net->serial);
		mr->base = mix64(mr->key) >> 16 << 12;
		loop->mrs[loop->mr_count++] = mr;
	}
	pthread_mutex_unlock(&loop->net->lock);
	return rc;
}

static void loop_dereg(struct nic *nic, struct mr *mr)
{
	struct loop *loop = loop_of(nic);

	pthread_mutex_lock(&loop->net->lock);
	for (uint32_t i = 0; i < loop->mr_count; i++)
		if (loop->mrs[i] == mr) {
			loop->mrs[i] = loop->mrs[--loop->mr_count];
			break;
		}
	pthread_mutex_unlock(&loop->net->lock);
	memset(mr, 0, sizeof(*mr));
}

/* ---------------------------------------------------------------- peers */

static int loop_peer_open(struct nic *nic, struct peer **peer_out, struct address *address_out,
			  struct ws_error *err)
{
	struct loop *loop = loop_of(nic);
	struct writer out = writer_fixed(address_out->bytes, sizeof(address_out->bytes));
	struct peer *peer = mem_alloc(sizeof(*peer));

	*peer_out = NULL;
	if (peer == NULL)
		return ws_fail(err, -ENOMEM, "no memory for one more peer of %s", nic->name);
	pthread_mutex_lock(&loop->net->lock);
	*peer = (struct peer){.loop = loop,
			      .next = loop->peers,
			      .serial = ++loop->net->serial,
			      .first = NONE,
			      .last = NONE};
	loop->peers = peer;
	pthread_mutex_unlock(&loop->net->lock);
	write_u32(&out, ADDRESS_MAGIC);
	write_u64(&out, net_digest(loop->net));
	write_u64(&out, loop->serial);
	write_u64(&out, peer->serial);
	address_out->count = (uint16_t)out.count;
	*peer_out = peer;
	return 0;
}

static int loop_peer_connect(struct nic *nic, struct peer *peer, const struct address *address,
			     struct ws_error *err)
{
	struct loop *loop = loop_of(nic);
	struct reader in = reader_make(address->bytes, MIN(address->count, ADDRESS_BYTES_MAX));
	uint32_t magic = read_u32(&in);
	uint64_t net = read_u64(&in);
	uint64_t nic_serial = read_u64(&in), peer_serial = read_u64(&in);

	if (address->count > ADDRESS_BYTES_MAX || !reader_done(&in) || magic != ADDRESS_MAGIC)
		return ws_fail(err, -EPROTO, "%s got an address that no loop NIC makes", nic->name);
	if (net != net_digest(loop->net))
		return ws_fail(err, -EPROTO, "%s got the address of a NIC of another net",
			       nic->name);
	pthread_mutex_lock(&loop->net->lock);
	/* One that is gone already is no error here: its ops will fail. */
	for (struct loop *i = loop->net->nics; i != NULL; i = i->next)
		for (struct peer *j = i->serial == nic_serial ? i->peers : NULL; j != NULL;
		     j = j->next)
			if (j->serial == peer_serial && !j->closing)
				peer->other = j;
	peer->connected = true;
	pthread_mutex_unlock(&loop->net->lock);
	return 0;
}

static int loop_peer_close(struct nic *nic, struct peer *peer, bool quiet, bool abandon)
{
	struct loop *loop = loop_of(nic);
	int rc = 0;

	(void)quiet; /* a loop ends both directions alone, at once */
	(void)abandon;
	pthread_mutex_lock(&loop->net->lock);
	if (!peer->closing) {
		peer->closing = true;
		peer_part(peer);
		for (uint32_t i = peer->first, next; i != NONE; i = next) {
			next = loop->slots[i].next;
			slot_fail(&loop->slots[i], -ECANCELED);
			loop->slots[i].imm_due = false;
			slot_done(loop, peer, i);
		}
	}
	if (peer->unreported > 0)
		rc = -EAGAIN;
	else
		peer_free(peer);
	pthread_mutex_unlock(&loop->net->lock);
	return rc;
}

/* ---------------------------------------------------------------- post, poll */

static bool post_one(struct loop *loop, const struct op *op)
{
	uint32_t index = loop->free_first;

	assert(op->peer->loop == loop && op->peer->connected && !op->peer->closing);
	assert(op->bytes <= LOOP_OP_BYTES_MAX);
	if (loop->unreported == LOOP_OPS_MAX || index == NONE)
		return false;
	loop->free_first = loop->slots[index].next;
	loop->slots[index] = (struct slot){.op = *op,
					   .imm_due = true,
					   .end_due = true,
					   .due_ns = net_line_take(loop, op->bytes)};
	slot_link(loop, op->peer, index, net_coin(loop->net));
	loop->unreported++;
	op->peer->unreported++;
	if (op->peer->other == NULL)
		slot_fail(&loop->slots[index], -ECONNRESET);
	return true;
}

static int loop_post(struct nic *nic, const struct op *ops, int count)
{
	struct loop *loop = loop_of(nic);
	int taken = 0;

	pthread_mutex_lock(&loop->net->lock);
	while (taken < count && post_one(loop, &ops[taken]))
		taken++;
	pthread_mutex_unlock(&loop->net->lock);
	return taken;
}

/* Ends of my own ops to peer. */
static int ends_take(struct peer *peer, struct event *events_out, int count)
{
	struct loop *loop = peer->loop;
	int taken = 0;

	for (uint32_t i = peer->first, next; i != NONE && taken < count; i = next) {
		struct slot *slot = &loop->slots[i];
		next = slot->next;
		if (!slot->landed || !slot->end_due || !net_coin(loop->net))
			continue;
		loop->told = true;
		events_out[taken++] = (struct event){
			.kind = slot->status == 0 ? EVENT_SENT : EVENT_FAILED,
			.status = slot->status,
			.id = slot->op.id,
			.peer = peer,
		};
		slot->end_due = false;
		peer->unreported--;
		loop->unreported--;
		slot_done(loop, peer, i);
	}
	return taken;
}

/* Immediates of what the other half has written to me. */
static int imms_take(struct peer *peer, struct event *events_out, int count)
{
	struct peer *other = peer->other;
	int taken = 0;

	if (other == NULL || other->other != peer)
		return 0;
	for (uint32_t i = other->first, next; i != NONE && taken < count; i = next) {
		struct slot *slot = &other->loop->slots[i];
		next = slot->next;
		if (!slot->landed || !slot->imm_due || !net_coin(peer->loop->net))
			continue;
		events_out[taken++] =
			(struct event){.kind = EVENT_IMM, .imm = slot->op.imm, .peer = peer};
		slot->imm_due = false;
		slot_done(other->loop, other, i);
	}
	return taken;
}

static int loop_poll(struct nic *nic, struct event *events_out, int count)
{
	struct loop *loop = loop_of(nic);
	int taken = 0;

	pthread_mutex_lock(&loop->net->lock);
	loop->told = false;
	net_time_pass(loop->net);
	for (struct peer *peer = loop->peers; peer != NULL && taken < count; peer = peer->next) {
		peer_progress(peer);
		if (peer->other != NULL && peer->other->other == peer)
			peer_progress(peer->other);
		taken += ends_take(peer, events_out + taken, count - taken);
		taken += imms_take(peer, events_out + taken, count - taken);
	}
	pthread_mutex_unlock(&loop->net->lock);
	return taken;
}

const struct transport transport_loop = {
	.name = "loop",
	.nic_size = sizeof(struct loop),
	.open = loop_open,
	.close = loop_close,
	.reg = loop_reg,
	.dereg = loop_dereg,
	.peer_open = loop_peer_open,
	.peer_connect = loop_peer_connect,
	.peer_close = loop_peer_close,
	.post = loop_post,
	.poll = loop_poll,
};
