/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a wiring (design.md 7.6): every half is closed, every op is reported or given up,
 * what closed peers left in the queues is taken out and dropped, and the peers are gone.
 */
#include <errno.h>

#include "lib/cuda/cuda.h"
#include "lib/engine/engine_internal.h"

#define GIVE_UP_NS UINT64_C(200000000) /* what that takes */
#define DRAIN_MAX  4096		       /* polls of one NIC; each takes up to POLL_BATCH */

/* 0: closed.  -EAGAIN: not yet.  Another: it can't be. */
static int rail_close(struct engine *engine, struct engine_peer *peer, uint32_t index)
{
	struct rail *rail = &peer->rails[index];
	struct nic *nic = engine->nics[index].nic;
	if (rail->peer == NULL)
		return 0;
	rail->paired = false;
	int rc = nic->transport->peer_close(nic, rail->peer, peer->quiet, peer->abandoned);
	if (rc != 0 && rc != -EBUSY) /* -EBUSY: set aside for ever, or pages were replaced */
		return rc;
	engine->pages_moved |= rc == -EBUSY && nic->same_host;
	rail->peer = NULL;
	post_forget(engine, index, peer);
	return 0;
}

static void nic_drain(struct engine *engine, uint32_t index)
{
	struct engine_nic *nic = &engine->nics[index];
	struct event events[POLL_BATCH];
	for (int i = 0; !nic->lost && i < DRAIN_MAX; i++)
		if (nic->nic->transport->poll(nic->nic, events, POLL_BATCH) <= 0)
			return;
}

static void peers_free(struct engine *engine)
{
	program_release(engine);
	for (uint32_t i = engine->event_head; i != engine->event_tail; i++) {
		engine->events[i % EVENT_ROOM].peer = NULL;
		engine->events[i % EVENT_ROOM].reason = NULL;
	}
	for (uint32_t i = 0; i < engine->peer_count; i++)
		peer_free(engine->peers[i]);
	engine->peer_count = 0;
	engine->fencing = false;
}

/* What of mine is under way; 0: nothing.  What ipc hasn't done when post returns a GPU does. */
static int fence_waits(const struct engine *engine, struct ws_error *err)
{
	char place[16];
	memory_place(&engine->staging, place);
	const char *gpu = engine->staging.place == WS_CUDA ? place : "a GPU";
	for (uint32_t p = 0; p < engine->peer_count; p++)
		for (uint32_t i = 0; i < engine->nic_count; i++) {
			const struct engine_peer *peer = engine->peers[p];
			const struct nic *nic = engine_nic(engine, i);
			if (peer->rails[i].in_flight > 0)
				return ws_fail(
					err, -EAGAIN, "writes to '%s' on '%s' by %s haven't ended",
					peer->name, nic->name, nic->same_host ? gpu : "the NIC");
		}
	if (engine->stage->outstanding > 0)
		return ws_fail(err, -EAGAIN, "%s hasn't done what it was given", place);
	return 0;
}

/* Every half, as far as it goes now. */
static int rails_close(struct engine *engine, struct ws_error *err)
{
	int result = 0;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		rail_give_up(engine, i);
	for (uint32_t p = 0; p < engine->peer_count; p++) {
		struct engine_peer *peer = engine->peers[p];
		for (uint32_t i = 0; i < engine->nic_count; i++) {
			const struct nic *nic = engine->nics[i].nic;
			int rc = rail_close(engine, peer, i);
			/* Nothing hides that a GPU was given up: who waits for its ops is told. */
			if (rc == -EAGAIN && result == 0)
				result = -EAGAIN;
			else if (rc != 0 && rc != -EAGAIN && result != -ETIMEDOUT)
				result = ws_fail(
					err, rc,
					"the connection to '%s' on '%s' can't be fenced: %s%s",
					peer->name, nic->name,
					nic->trouble[0] != 0 ? nic->trouble
							     : "more than this process can hold",
					rc == -ETIMEDOUT ? "" : "; start it again");
		}
	}
	return result;
}

int engine_fence(struct engine *engine, bool *senders_closed_out, struct ws_error *err)
{
	engine_end(engine);
	engine->fencing = true;
	/* The stage thread first: what a GPU has mapped isn't closed while it is at work, for CUDA
	 * would wait for that, without a deadline. */
	int rc = engine->stage->outstanding == 0 ? rails_close(engine, err) : -EAGAIN;
	/* Every sending half was told to close, and what it had is reported. */
	*senders_closed_out = fence_waits(engine, rc == -EAGAIN ? err : NULL) == 0;
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		nic_drain(engine, i);
	peers_free(engine);
	return engine->pages_moved ? regions_renew(engine, err) : 0;
}

/* ---------------------------------------------------------------- whom it waits for */

void engine_peer_writer(struct engine_peer *peer, uint64_t member, uint64_t incarnation)
{
	peer->writer = member;
	peer->writer_incarnation = incarnation;
}

void engine_peers_retire(struct engine *engine,
			 bool (*present)(const void *arg, uint64_t member, uint64_t incarnation),
			 const void *arg)
{
	for (uint32_t i = 0; i < engine->peer_count; i++) {
		struct engine_peer *peer = engine->peers[i];
		if (peer->writer == 0)
			peer->quiet = true;
		else if (present != NULL && !present(arg, peer->writer, peer->writer_incarnation))
			peer->abandoned = true;
	}
}

void engine_peers_quiet(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->peer_count; i++)
		engine->peers[i]->quiet = true;
}

void engine_peers_abandon(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->peer_count; i++)
		engine->peers[i]->abandoned |= engine->peers[i]->writer != 0;
}

bool engine_peers_close(struct engine *engine, uint64_t until_ns)
{
	struct engine_event dropped[16];
	struct ws_error err;
	bool closed;
	int rc;

	engine_end(engine);
	engine_peers_retire(engine, NULL, NULL);
	while ((rc = engine_fence(engine, &closed, &err)) == -EAGAIN) {
		uint64_t now = clock_ns();
		if (now >= until_ns + GIVE_UP_NS)
			return false;
		if (now >= until_ns)
			engine_peers_abandon(engine);
		(void)engine_step(engine, dropped, (int)ARRAY_SIZE(dropped));
		engine_wait(engine, -1, -1, now + 5000000u);
	}
	return rc == 0;
}
