/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops in flight.  Each has a slot from the moment it is dealt to a NIC until it is reported; its id
 * carries the slot and a generation, so that a report of anything else is recognised.  Ops are
 * dealt to the rail whose NIC will be done with them first: bytes in flight by line rate.  What a
 * NIC was dealt in one step is handed over together, one peer's ops after the other's: where the
 * fabric has chains of work requests, a chain costs about as much as one.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "lib/engine/engine_internal.h"

int post_open(struct engine *engine, uint32_t depth, struct ws_error *err)
{
	uint32_t total = 0;
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		struct engine_nic *nic = &engine->nics[i];
		nic->limit = MAX(1, MIN(depth, nic->nic->ops_in_flight_max));
		nic->queue = mem_alloc(nic->limit * sizeof(*nic->queue));
		if (nic->queue == NULL)
			return ws_fail(err, -ENOMEM, "no memory for a queue of %u ops", nic->limit);
		total += nic->limit;
	}
	engine->slots = mem_alloc(total * sizeof(*engine->slots));
	if (engine->slots == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u ops in flight", total);
	engine->slot_count = total;
	engine->slot_free = NONE;
	for (uint32_t i = total; i-- > 0;) {
		engine->slots[i].next_free = engine->slot_free;
		engine->slot_free = i;
	}
	return 0;
}

void post_close(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->nic_count; i++)
		mem_free(engine->nics[i].queue);
	mem_free(engine->slots);
	engine->slots = NULL;
	engine->slot_count = 0;
}

bool post_has_room(const struct engine *engine)
{
	bool live = false;
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		live |= !engine->nics[i].out;
		if (!engine->nics[i].out && engine->nics[i].in_flight < engine->nics[i].limit)
			return true;
	}
	return !live; /* post_op is to say that there is none */
}

static struct op_slot *slot_take(struct engine *engine, const struct post *post, uint32_t nic)
{
	/* There are as many slots as all NICs' limits together. */
	struct op_slot *slot = &engine->slots[engine->slot_free];
	engine->slot_free = slot->next_free;
	slot->used = true;
	slot->kind = post->kind;
	slot->serial = engine->serial;
	slot->nic = nic;
	slot->index = post->index;
	slot->op_id = post->op_id;
	slot->block = post->block;
	slot->bytes = post->bytes;
	slot->posted_ns = engine->now_ns;
	slot->peer = post->peer;
	engine->nics[nic].in_flight++;
	engine->nics[nic].in_flight_bytes += post->bytes;
	post->peer->rails[nic].in_flight++;
	return slot;
}

static void slot_give_back(struct engine *engine, struct op_slot *slot)
{
	engine->nics[slot->nic].in_flight--;
	engine->nics[slot->nic].in_flight_bytes -= slot->bytes;
	slot->peer->rails[slot->nic].in_flight--;
	slot->used = false;
	slot->generation++;
	slot->next_free = engine->slot_free;
	engine->slot_free = (uint32_t)(slot - engine->slots);
}

/* True if a would be done with these bytes, behind those in flight, before b; where both would be
 * at once, if it has had less of this attempt.  An unknown speed is as fast as the other's. */
static bool is_sooner(const struct engine_nic *a, const struct engine_nic *b, uint64_t bytes)
{
	uint64_t a_mbps = a->nic->mbps, b_mbps = b->nic->mbps;
	if (a_mbps == 0 || b_mbps == 0)
		a_mbps = b_mbps = 1;
	uint64_t a_ends = (a->in_flight_bytes + bytes) * b_mbps;
	uint64_t b_ends = (b->in_flight_bytes + bytes) * a_mbps;
	if (a_ends != b_ends)
		return a_ends < b_ends;
	return (a->bytes_sent + a->in_flight_bytes) * b_mbps <
	       (b->bytes_sent + b->in_flight_bytes) * a_mbps;
}

/* My NIC whose rail should take the next op; NONE: not now.  *any_out: there is a live rail. */
static uint32_t rail_deal(const struct engine *engine, const struct engine_peer *peer,
			  uint64_t bytes, bool *any_out)
{
	uint32_t best = NONE;
	*any_out = false;
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		const struct rail *rail = &peer->rails[i];
		const struct engine_nic *nic = &engine->nics[i];
		if (!rail->paired || nic->out)
			continue;
		*any_out = true;
		if (nic->in_flight >= nic->limit || rail->in_flight >= engine->rail_limit ||
		    rail->refused_step == engine->step)
			continue;
		if (best == NONE || is_sooner(nic, &engine->nics[best], bytes))
			best = i;
	}
	return best;
}

static int post_refuse(struct engine *engine, const struct post *post, int status)
{
	post->peer->broken = true;
	engine_emit(engine, &(struct engine_event){.kind = ENGINE_OP_FAILED,
						   .peer = post->peer,
						   .nic = NONE,
						   .status = status,
						   .op_id = post->op_id});
	return status;
}

/* What the peer advertised holds [offset, offset + bytes). */
static bool is_inside(const struct engine_peer *peer, uint32_t region, uint64_t offset,
		      uint64_t bytes)
{
	if (region >= peer->remote_region_count)
		return false;
	uint64_t size = peer->remote_bytes[region];
	return size > 0 && offset <= size && bytes <= size - offset;
}

/* ------------------------------------------------------------------------- queues */

/* Behind the last one of the same peer. */
static void queue_put(struct engine_nic *nic, const struct op *op)
{
	uint32_t at = nic->queued;
	while (at > 0 && nic->queue[at - 1].peer != op->peer)
		at--;
	if (at == 0)
		at = nic->queued;
	memmove(&nic->queue[at + 1], &nic->queue[at], (nic->queued - at) * sizeof(*op));
	nic->queue[at] = *op;
	nic->queued++;
}

static struct op_slot *slot_of(const struct engine *engine, const struct op *op)
{
	return &engine->slots[op->id & UINT32_MAX];
}

/* Takes out what never gets to the NIC: of broken peers, or all. */
static void queue_tidy(struct engine *engine, struct engine_nic *nic, bool all)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < nic->queued; i++) {
		struct op_slot *slot = slot_of(engine, &nic->queue[i]);
		if (!all && !slot->peer->broken) {
			nic->queue[kept++] = nic->queue[i];
			continue;
		}
		if (slot->kind == OP_GATHERED)
			program_block_free(engine, slot->block);
		slot_give_back(engine, slot);
	}
	nic->queued = kept;
}

/* What the NIC doesn't take waits in front of the queue, and holds up only its own peer. */
static void queue_post(struct engine *engine, uint32_t index)
{
	struct engine_nic *nic = &engine->nics[index];
	uint32_t at = 0, kept = 0;
	while (at < nic->queued && !nic->lost) {
		int taken = nic->nic->transport->post(nic->nic, &nic->queue[at],
						      (int)(nic->queued - at));
		if (taken < 0)
			rail_out(engine, index, true, taken);
		if (taken > 0) {
			at += (uint32_t)taken;
			engine->moved = true;
		}
		if (taken != 0)
			continue;
		const struct peer *full = nic->queue[at].peer;
		slot_of(engine, &nic->queue[at])->peer->rails[index].refused_step = engine->step;
		engine->refused = true;
		while (at < nic->queued && nic->queue[at].peer == full)
			nic->queue[kept++] = nic->queue[at++];
	}
	memmove(&nic->queue[kept], &nic->queue[at], (nic->queued - at) * sizeof(*nic->queue));
	nic->queued -= at - kept;
}

void post_flush(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		/* A NIC may turn out to be lost. */
		if (engine->nics[i].queued == 0 || engine_event_room(engine) == 0)
			continue;
		queue_tidy(engine, &engine->nics[i], false);
		queue_post(engine, i);
	}
}

void post_end(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->nic_count; i++)
		queue_tidy(engine, &engine->nics[i], true);
}

int post_op(struct engine *engine, const struct post *post)
{
	struct engine_peer *peer = post->peer;
	bool any;
	if (!is_inside(peer, post->remote_region, post->remote_offset, post->bytes))
		return post_refuse(engine, post, -EPROTO);
	uint32_t index = rail_deal(engine, peer, post->bytes, &any);
	if (!any)
		return post_refuse(engine, post, -ENETDOWN);
	if (index == NONE)
		return 0;
	const struct rail *rail = &peer->rails[index];
	const struct remote_key *key =
		&peer->remote_keys[(size_t)post->remote_region * peer->remote_nic_count +
				   rail->remote_nic];
	const struct op_slot *slot = slot_take(engine, post, index);
	queue_put(&engine->nics[index],
		  &(struct op){
			  .peer = rail->peer,
			  .local = post->local,
			  .local_mr = post->local == NULL
					      ? NULL
					      : &engine->regions[post->local_region]->mrs[index],
			  .remote = key->base + post->remote_offset,
			  .remote_key = key->key,
			  .bytes = post->bytes,
			  .id = (uint64_t)slot->generation << 32 | (uint64_t)(slot - engine->slots),
			  .imm = imm_make(engine->imm.attempt, post->op_id),
		  });
	return 1;
}

/* ------------------------------------------------------------------------ reports */

bool post_reported(struct engine *engine, uint64_t id, struct op_slot *slot_out)
{
	uint64_t index = id & UINT32_MAX;
	if (index >= engine->slot_count)
		return false;
	struct op_slot *slot = &engine->slots[index];
	if (!slot->used || slot->generation != id >> 32)
		return false;
	*slot_out = *slot;
	slot_give_back(engine, slot);
	return true;
}

void post_forget(struct engine *engine, uint32_t nic, const struct engine_peer *peer)
{
	assert(engine->nics[nic].queued == 0); /* post_end was before */
	for (uint32_t i = 0; i < engine->slot_count; i++) {
		struct op_slot *slot = &engine->slots[i];
		if (!slot->used || slot->nic != nic || (peer != NULL && slot->peer != peer))
			continue;
		if (slot->kind == OP_GATHERED)
			program_block_free(engine, slot->block);
		slot_give_back(engine, slot);
	}
}
