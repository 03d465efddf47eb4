/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails that are dead while both their ports say up.  Where ops to a peer failed over one of
 * several rails, the next wirings with that peer leave it out, for a time that grows each time it
 * fails again: a try costs a version.  Both ends hear of it in addresses (peer.c), which name the
 * life of the NIC that is meant.  A NIC of a process that was killed, or whose port was down or
 * address changed, begins another life when it is back, and nothing is held against that one.
 */
#include <stdio.h>
#include <string.h>

#include "lib/engine/engine_internal.h"

/* A wiring mustn't take longer, or it would be over when that ends. */
#define FIRST_NS    UINT64_C(8000000000)
#define FACTOR_BITS 2u /* four times as long each time, */
#define TIMES_MAX   4u /* up to 2048 s */
#define STUCK_NS    UINT64_C(1000000000)

static uint64_t wait_ns(const struct doubt *doubt)
{
	return FIRST_NS << FACTOR_BITS * doubt->times;
}

static bool is_of(const struct doubt *doubt, const struct engine_peer *peer, uint32_t nic)
{
	return doubt->state != DOUBT_NONE && doubt->nic == nic &&
	       strncmp(doubt->peer_name, peer->name, sizeof(doubt->peer_name) - 1) == 0;
}

/* That NIC of the peer is still, or again, in the same life. */
static bool still_lives(const struct engine_peer *peer, uint64_t life)
{
	bool lives = false;
	for (uint32_t i = 0; i < NICS_MAX; i++)
		lives |= peer->remote_lives[i] == life;
	return lives;
}

/* NULL: there was never any. */
static struct doubt *doubt_find(struct engine *engine, const struct engine_peer *peer, uint32_t nic)
{
	for (uint32_t i = 0; i < engine->doubt_count; i++)
		if (is_of(&engine->doubts[i], peer, nic))
			return &engine->doubts[i];
	return NULL;
}

/* One for this rail; NULL: so many stand already that it won't be the rails. */
static struct doubt *doubt_take(struct engine *engine, const struct engine_peer *peer, uint32_t nic)
{
	struct doubt *taken = doubt_find(engine, peer, nic);
	for (uint32_t i = 0; taken == NULL && i < engine->doubt_count; i++)
		if (engine->doubts[i].state == DOUBT_NONE || engine->doubts[i].state == DOUBT_OVER)
			taken = &engine->doubts[i];
	if (taken == NULL && engine->doubt_count < DOUBTS_MAX)
		taken = &engine->doubts[engine->doubt_count++];
	if (taken == NULL)
		return NULL;
	if (!is_of(taken, peer, nic) || !still_lives(peer, taken->to)) {
		*taken = (struct doubt){.nic = nic};
		snprintf(taken->peer_name, sizeof(taken->peer_name), "%s", peer->name);
	}
	taken->to = peer->remote_lives[peer->rails[nic].remote_nic];
	return taken;
}

static void doubts_drop(struct engine *engine, const struct engine_peer *peer)
{
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		struct doubt *doubt = doubt_find(engine, peer, i);
		if (doubt != NULL)
			*doubt = (struct doubt){0};
	}
}

static void doubt_begin(struct engine *engine, const struct engine_peer *peer, uint32_t nic,
			const char *reason)
{
	struct doubt *doubt = doubt_take(engine, peer, nic);
	if (doubt == NULL)
		return;
	bool calm = peer->rails[nic].sent_ns > doubt->since_ns + CALM_NS;
	if (doubt->state == DOUBT_OVER)
		doubt->times = calm ? 0 : MIN(doubt->times + 1, TIMES_MAX);
	doubt->state = DOUBT_NOTED;
	snprintf(doubt->reason, sizeof(doubt->reason), "%s", reason);
	/* Most likely all of this NIC's have one reason: they are tried again together, not in
	 * turns that each cost a version. */
	for (uint32_t i = 0; i < engine->doubt_count; i++)
		if (engine->doubts[i].state == DOUBT_STANDS && engine->doubts[i].nic == nic)
			engine->doubts[i].state = DOUBT_NOTED;
}

void doubt_unreachable(struct engine *engine, struct engine_peer *peer, uint32_t nic,
		       const char *reason)
{
	peer->rails[nic].failed = true;
	doubt_begin(engine, peer, nic, reason);
	engine->rewires++;
}

/* Another one, which hasn't failed. */
static bool has_other_rail(const struct engine *engine, const struct engine_peer *peer,
			   uint32_t nic)
{
	bool others = false;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		others |= i != nic && peer->rails[i].paired && !peer->rails[i].failed;
	return others;
}

void doubt_note(struct engine *engine, struct engine_peer *peer, uint32_t nic, uint64_t since_ns,
		const char *reason)
{
	struct rail *rail = &peer->rails[nic];
	if (engine->nics[nic].out || rail->failed)
		return;
	rail->failed = true;
	rail->mute_ns = since_ns;
	if (has_other_rail(engine, peer, nic))
		doubt_begin(engine, peer, nic, reason);
	else
		doubts_drop(engine, peer); /* it is the peer, or all are to be tried */
}

uint64_t doubt_of(struct engine *engine, const struct engine_peer *peer, uint32_t nic)
{
	const struct doubt *doubt = doubt_find(engine, peer, nic);
	return doubt != NULL && doubt->state != DOUBT_OVER ? doubt->to : 0;
}

/* The rail of a NIC that failed to answer first; NULL: none is doubted. */
static const struct engine_peer *first_mute(struct engine *engine, uint32_t nic)
{
	const struct engine_peer *first = NULL;
	for (uint32_t p = 0; p < engine->peer_count; p++) {
		const struct engine_peer *peer = engine->peers[p];
		if (peer->rails[nic].failed && doubt_of(engine, peer, nic) != 0 &&
		    (first == NULL || peer->rails[nic].mute_ns < first->rails[nic].mute_ns))
			first = peer;
	}
	return first;
}

/* Where one rail of a NIC failed, and nothing has come over another since, that one would most
 * likely cost a version, too, before it is known. */
static void doubts_spread(struct engine *engine, uint32_t nic)
{
	const struct engine_peer *first = first_mute(engine, nic);
	char reason[64];
	if (first == NULL)
		return;
	snprintf(reason, sizeof(reason), "mute since it failed to '%s'", first->name);
	for (uint32_t p = 0; p < engine->peer_count; p++) {
		struct engine_peer *peer = engine->peers[p];
		const struct rail *rail = &peer->rails[nic];
		if (rail->paired && !rail->failed && rail->sent_ns < first->rails[nic].mute_ns &&
		    has_other_rail(engine, peer, nic))
			doubt_note(engine, peer, nic, first->rails[nic].mute_ns, reason);
	}
}

void doubts_end(struct engine *engine)
{
	uint64_t now = clock_ns();
	char reason[40];
	for (uint32_t i = 0; i < engine->slot_count; i++) {
		const struct op_slot *slot = &engine->slots[i];
		if (!slot->used)
			continue;
		uint64_t since_ns = MAX(slot->posted_ns, slot->peer->rails[slot->nic].sent_ns);
		if (now - since_ns < STUCK_NS)
			continue;
		snprintf(reason, sizeof(reason), "no answer for %.1f s",
			 (double)(now - since_ns) / 1e9);
		doubt_note(engine, slot->peer, slot->nic, since_ns, reason);
	}
	for (uint32_t i = 0; i < engine->nic_count; i++)
		doubts_spread(engine, i);
}

void doubts_settle(struct engine *engine, const struct engine_peer *peer)
{
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		struct doubt *doubt = doubt_find(engine, peer, i);
		if (doubt == NULL || doubt->state == DOUBT_OVER)
			continue;
		if (!still_lives(peer, doubt->to)) {
			*doubt = (struct doubt){0};
			continue;
		}
		if (doubt->state == DOUBT_NOTED || peer->rails[i].paired)
			doubt->since_ns = clock_ns();
		if (peer->rails[i].paired)
			doubt->state = DOUBT_OVER;
		else if (!peer->rails[i].failed) /* else the other end doesn't know of it yet */
			doubt->state = DOUBT_STANDS;
	}
}

void doubts_mend(struct engine *engine, uint64_t now_ns)
{
	for (uint32_t i = 0; i < engine->doubt_count; i++) {
		struct doubt *doubt = &engine->doubts[i];
		if (doubt->state != DOUBT_STANDS || now_ns - doubt->since_ns < wait_ns(doubt))
			continue;
		doubt->state = DOUBT_OVER;
		doubt->since_ns = now_ns;
		engine->rewires++;
	}
}

void doubts_forget(struct engine *engine, uint32_t nic)
{
	for (uint32_t i = 0; i < engine->doubt_count; i++)
		if (engine->doubts[i].nic == nic)
			engine->doubts[i] = (struct doubt){0};
}

void doubts_text(const struct engine *engine, uint32_t nic, char *text_out, size_t bytes)
{
	const struct doubt *first = NULL;
	uint32_t others = 0;
	char and_more[24] = "";
	for (uint32_t i = 0; i < engine->doubt_count; i++) {
		const struct doubt *doubt = &engine->doubts[i];
		if (doubt->state != DOUBT_STANDS || doubt->nic != nic)
			continue;
		others += first != NULL;
		first = first != NULL ? first : doubt;
	}
	text_out[0] = '\0';
	if (first == NULL)
		return;
	if (others > 0)
		snprintf(and_more, sizeof(and_more), " (and %u more)", others);
	snprintf(text_out, bytes, "left out to '%s'%s for %llu s: %s", first->peer_name, and_more,
		 (unsigned long long)(wait_ns(first) / 1000000000u), first->reason);
}

uint64_t engine_rewires(const struct engine *engine)
{
	return engine->rewires;
}
