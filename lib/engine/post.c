/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops in flight.  Each has a slot from the moment a NIC took it until it is reported; its id
 * carries the slot and a generation, so that a report of anything else is recognised.  Ops are
 * dealt to the rail whose NIC will be done with them first: bytes in flight by line rate.
 */
#include <errno.h>

#include "lib/engine/engine_internal.h"

int post_open(struct engine *engine, uint32_t depth, struct ws_error *err)
{
	uint32_t total = 0;
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		struct engine_nic *nic = &engine->nics[i];
		nic->limit = MAX(1, MIN(depth, nic->nic->ops_in_flight_max));
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
	mem_free(engine->slots);
	engine->slots = NULL;
	engine->slot_count = 0;
}

uint32_t post_room(const struct engine *engine)
{
	uint32_t room = 0;
	bool live = false;
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		const struct engine_nic *nic = &engine->nics[i];
		live |= !nic->out;
		if (!nic->out && nic->in_flight < nic->limit)
			room += nic->limit - nic->in_flight;
	}
	return live ? room : 1; /* post_ops is to say that there is none */
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

/* What the peer advertised holds it. */
static bool is_inside(const struct post *post)
{
	const struct engine_peer *peer = post->peer;
	if (post->remote_region >= peer->remote_region_count)
		return false;
	uint64_t size = peer->remote_bytes[post->remote_region], offset = post->remote_offset;
	return size > 0 && offset <= size && post->bytes <= size - offset;
}

static struct op op_make(const struct engine *engine, const struct post *post, uint32_t index,
			 const struct op_slot *slot)
{
	const struct engine_peer *peer = post->peer;
	const struct rail *rail = &peer->rails[index];
	const struct remote_key *key =
		&peer->remote_keys[(size_t)post->remote_region * peer->remote_nic_count +
				   rail->remote_nic];
	return (struct op){
		.peer = rail->peer,
		.local = post->local,
		.local_mr = post->local == NULL ? NULL
						: &engine->regions[post->local_region]->mrs[index],
		.remote = key->base + post->remote_offset,
		.remote_key = key->key,
		.bytes = post->bytes,
		.id = (uint64_t)slot->generation << 32 | (uint64_t)(slot - engine->slots),
		.imm = imm_make(engine->imm.attempt, post->op_id),
	};
}

/* The first of them, and those behind it as long as they would be dealt to the same rail. */
static int rail_post(struct engine *engine, uint32_t index, const struct post *posts,
		     uint32_t count)
{
	struct nic *nic = engine->nics[index].nic;
	struct op ops[POST_OPS_MAX];
	int made = 0;
	bool any;
	do {
		const struct op_slot *slot = slot_take(engine, &posts[made], index);
		ops[made] = op_make(engine, &posts[made], index, slot);
		made++;
	} while ((uint32_t)made < MIN(count, POST_OPS_MAX) && is_inside(&posts[made]) &&
		 rail_deal(engine, posts->peer, posts[made].bytes, &any) == index);
	int taken = nic->transport->post(nic, ops, made);
	while (made > MAX(taken, 0))
		slot_give_back(engine, &engine->slots[ops[--made].id & UINT32_MAX]);
	return taken;
}

int post_ops(struct engine *engine, const struct post *posts, uint32_t count)
{
	struct engine_peer *peer = posts->peer;
	if (!is_inside(posts))
		return post_refuse(engine, posts, -EPROTO);
	/* At most once around all rails: each turn marks one as refused. */
	for (uint32_t turn = 0; turn < engine->nic_count; turn++) {
		bool any;
		uint32_t index = rail_deal(engine, peer, posts->bytes, &any);
		if (!any)
			return post_refuse(engine, posts, -ENETDOWN);
		if (index == NONE)
			return 0;
		int taken = rail_post(engine, index, posts, count);
		if (taken > 0)
			return taken;
		peer->rails[index].refused_step = engine->step;
		engine->refused = true;
		if (taken < 0)
			rail_out(engine, index, true, taken);
	}
	return 0;
}

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
	for (uint32_t i = 0; i < engine->slot_count; i++) {
		struct op_slot *slot = &engine->slots[i];
		if (!slot->used || slot->nic != nic || (peer != NULL && slot->peer != peer))
			continue;
		if (slot->kind == OP_GATHERED)
			program_block_free(engine, slot->block);
		slot_give_back(engine, slot);
	}
}
