/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's wiring: a roster becomes a plan, the old peers are fenced, each receiver of mine is
 * asked for its half of a pair, and when all have answered (program.c) the plan becomes the
 * engine's program.  What can't be wired is told to the hub, which ends the run.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "trainer_side/program.h"
#include "trainer_side/trainer_internal.h"

#define FENCE_NS UINT64_C(10000000000) /* then peers that don't answer are given up */

/* Rollouts write nothing but credits, so they needn't be heard to close what they wrote with; other
 * trainers that write to me must be, as long as they are in the roster (NULL: the same one). */
static void peers_retire(struct ws_trainer *trainer, const struct member_event *roster)
{
	struct wire *wire = &trainer->wire;

	if (trainer->engine == NULL)
		return;
	engine_end(trainer->engine);
	engine_peers_retire(trainer->engine, roster != NULL ? roster_has : NULL, roster);
	for (uint32_t i = 0; i < wire->pair_count; i++)
		wire->pairs[i].peer = NULL;
	for (uint32_t i = 0; i < wire->source_count; i++)
		wire->sources[i].peer = NULL;
}

void trainer_wire_shut(struct ws_trainer *trainer)
{
	struct wire *wire = &trainer->wire;

	peers_retire(trainer, NULL);
	if (wire->state != WIRE_FENCING && wire->state != WIRE_FAILED)
		wire->state = WIRE_CLOSED;
}

/* The hub puts my name in front.  Inputs that can't be planned end the run; a wiring that fails
 * otherwise ends the first one, later ones go on without this member. */
static void wire_fail(struct ws_trainer *trainer, enum failure_kind kind,
		      const struct ws_error *why)
{
	trainer_wire_shut(trainer);
	trainer->wire.state = WIRE_FAILED;
	member_say_failure(trainer->member, kind, 0, UINT32_MAX, why);
}

const char *trainer_wire_member_name(const struct ws_trainer *trainer, uint32_t member,
				     char *text_out)
{
	if (trainer->source.plan == NULL || member >= trainer->wire.member_count)
		snprintf(text_out, MEMBER_NAME_BYTES_MAX, "member %u", member);
	else
		plan_member_name(trainer->source.plan, member, text_out, MEMBER_NAME_BYTES_MAX);
	return text_out;
}

/* ---------------------------------------------------------------- the roster */

static int roster_plan(struct ws_trainer *trainer, const struct member_event *event,
		       struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	struct plan_source *source = &trainer->source;
	struct rules rules;

	int rc = rules_decode(&rules, event->rules, event->rules_bytes, err);
	if (rc != 0)
		return rc;
	if (wire->engine_made && !rules_same(&rules, &wire->rules))
		wire->engine_made = false;
	wire->rules = rules;
	rc = plan_source_take(source, SIDE_TRAINER, event->trainer_manifest,
			      event->trainer_manifest_bytes, err);
	if (rc == 0)
		rc = plan_source_take(source, SIDE_ROLLOUT, event->rollout_manifest,
				      event->rollout_manifest_bytes, err);
	if (rc != 0)
		return rc;
	struct place *places = arena_array(&wire->arena, event->roster_count, sizeof(*places));
	if (places == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a roster of %u", event->roster_count);
	for (uint32_t i = 0; i < event->roster_count; i++) {
		const struct roster_member *member = &event->roster[i];
		snprintf(places[i].host, sizeof(places[i].host), "%s", member->host);
		places[i].rails = member->rails.rail;
		places[i].rail_count = member->rails.count;
	}
	const struct plan_input input = {.replicas = event->replicas,
					 .replica_count = event->replica_count,
					 .places = places,
					 .rules = rules};
	return plan_source_make(source, &input, event->roster_count, event->self, err);
}

static int pairs_make(struct ws_trainer *trainer, const struct member_event *event,
		      struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	const struct plan *plan = trainer->source.plan;
	uint64_t credits = 0, digests = 0;

	wire->member_count = event->roster_count;
	wire->replica_count = event->replica_count;
	wire->pair_count = plan_send_pair_count(plan);
	wire->pairs = arena_array(&wire->arena, wire->pair_count, sizeof(*wire->pairs));
	wire->pair_of_member =
		arena_array(&wire->arena, event->roster_count, sizeof(*wire->pair_of_member));
	wire->views = arena_array(&wire->arena, wire->replica_count, sizeof(*wire->views));
	if (wire->pairs == NULL || wire->pair_of_member == NULL || wire->views == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u pairs", wire->pair_count);
	for (uint32_t i = 0; i < event->roster_count; i++)
		wire->pair_of_member[i] = UINT32_MAX;
	for (uint32_t i = 0; i < wire->pair_count; i++) {
		const struct plan_pair *pair = plan_send_pair(plan, i);
		wire->pairs[i] = (struct pair){
			.member = pair->receiver,
			.rank = event->roster[pair->receiver].rank,
			.plan = pair,
			.credit_base = (uint32_t)credits,
			.digest_base = (uint32_t)digests,
		};
		wire->pair_of_member[pair->receiver] = i;
		credits += pair->credit_count;
		digests += pair->counter_count;
	}
	if (credits > OP_ID_MAX || digests > UINT32_MAX)
		return ws_fail(err, -ENOSPC,
			       "trainer %u would get %llu credits; use a larger receive ring",
			       trainer->rank, (unsigned long long)credits);
	wire->credit_count = (uint32_t)credits;
	return sources_make(trainer, event, err);
}

/* The pairs of before are the engine's to fence; only what describes them goes. */
void trainer_wire_roster(struct ws_trainer *trainer, const struct member_event *event)
{
	struct wire *wire = &trainer->wire;
	struct ws_error err = {0};

	peers_retire(trainer, event);
	/* The engine borrows the program of the last complete wiring until the fence is done. */
	if (wire->arena_before.blocks == NULL) {
		wire->arena_before = wire->arena;
		memset(&wire->arena, 0, sizeof(wire->arena));
	}
	arena_release(&wire->arena);
	wire->pairs = NULL;
	wire->sources = NULL;
	wire->pair_of_member = NULL;
	wire->views = NULL;
	wire->replica_count = 0;
	wire->pair_count = wire->source_count = 0;
	wire->answered_count = 0;
	wire->inbox_bytes = 0;
	wire->quiet_said = false;
	memset(&wire->program, 0, sizeof(wire->program));
	wire->generation = event->generation;
	wire->state = WIRE_FENCING;
	wire->fence_until_ns = clock_ns() + FENCE_NS;
	int rc = roster_plan(trainer, event, &err);
	if (rc == 0)
		rc = pairs_make(trainer, event, &err);
	if (rc != 0)
		wire_fail(trainer, FAILURE_PLAN, &err);
}

void trainer_wire_quiet(struct ws_trainer *trainer, uint64_t generation)
{
	const struct wire *wire = &trainer->wire;

	if (trainer->engine != NULL && generation == wire->generation &&
	    wire->state == WIRE_FENCING)
		engine_peers_quiet(trainer->engine);
}

/* ---------------------------------------------------------------- after the fence */

static int work_place_find(struct ws_trainer *trainer, struct ws_error *err)
{
	int rc = memories_place(trainer->memories, trainer->params.count, &trainer->place, err);

	if (rc != 0 || trainer->offload_device < 0)
		return rc;
	if (trainer->place.place != WS_HOST)
		return ws_fail(err, -EINVAL,
			       "params of GPU %d aren't offloaded: leave offload_bytes 0",
			       trainer->place.device);
	trainer->place = (struct ws_memory){.place = WS_CUDA, .device = trainer->offload_device};
	return 0;
}

/* A GPU is so far ahead of what NVLink takes, and hears of it so late, that it needs more: up to
 * all that is gathered in an update. */
static uint64_t staging_bytes(const struct ws_trainer *trainer)
{
	const struct rules *rules = &trainer->wire.rules;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	uint64_t gathered = 0;

	if (trainer->staging_bytes != 0)
		return trainer->staging_bytes;
	if (trainer->place.place != WS_CUDA)
		return rules->staging_bytes;
	while (gathered < STAGING_GPU_BYTES && plan_next_send(trainer->source.plan, &cursor, &copy))
		if (copy.gather)
			gathered += (uint64_t)copy.op_count * rules->op_bytes;
	return MAX(rules->staging_bytes, MIN(gathered, STAGING_GPU_BYTES));
}

static int engine_make(struct ws_trainer *trainer, struct ws_error *err)
{
	struct engine_options options = {
		.devices = trainer->devices.device,
		.device_count = trainer->devices.count,
		.op_bytes = trainer->wire.rules.op_bytes,
		.wire_digests = trainer->wire.rules.wire_digests,
		.ring_bytes = trainer->ring_bytes,
	};

	engine_close(trainer->engine);
	trainer->engine = NULL;
	trainer->inbox_region = UINT32_MAX;
	int rc = work_place_find(trainer, err);
	options.staging_bytes = staging_bytes(trainer);
	options.place = trainer->place.place;
	options.device = trainer->place.device;
	if (rc == 0)
		rc = engine_open(&trainer->engine, &options, err);
	if (rc == 0)
		rc = memories_add(trainer->engine, trainer->memories, trainer->params.count,
				  MR_SOURCE, trainer->places, err);
	trainer->wire.engine_made = rc == 0;
	return rc;
}

static int pair_ask(struct ws_trainer *trainer, struct pair *pair, const struct writer *regions,
		    struct ws_error *err)
{
	struct writer address = WRITER_INIT(1u << 20);
	char name[MEMBER_NAME_BYTES_MAX];

	int rc = engine_peer_open(trainer->engine,
				  trainer_wire_member_name(trainer, pair->member, name),
				  &pair->peer, &address, err);
	const struct pair_frame frame = {
		.pair_digest[0] = pair->plan->digest,
		.plan_digest = plan_digest(trainer->source.plan),
		.address = address.bytes,
		.address_bytes = (uint32_t)address.count,
		.regions = regions->bytes,
		.regions_bytes = (uint32_t)regions->count,
		.op_id_base = pair->credit_base,
	};
	if (rc == 0)
		rc = pair_say(trainer->member, trainer->wire.generation, pair->member, false,
			      &frame, err);
	writer_release(&address);
	return rc;
}

static bool all_answered(const struct wire *wire)
{
	return wire->answered_count == wire->pair_count + wire->source_count;
}

/* Everything is connected: the plan becomes the program. */
static void wire_done(struct ws_trainer *trainer)
{
	struct wire *wire = &trainer->wire;
	struct ws_error err = {0};

	int rc = program_make(trainer, &err);
	if (rc == 0)
		rc = engine_set_program(trainer->engine, &wire->program, &err);
	if (rc != 0) {
		wire_fail(trainer, FAILURE_ATTEMPT, &err);
		return;
	}
	wire->state = WIRE_WIRED;
	member_say_wired(trainer->member, wire->generation);
}

static int pairs_ask(struct ws_trainer *trainer, struct ws_error *err)
{
	struct writer regions = WRITER_INIT(LINK_BODY_BYTES_MAX);
	int rc = trainer->wire.engine_made ? 0 : engine_make(trainer, err);

	if (rc == 0)
		rc = inbox_fit(trainer, err);
	if (rc == 0) {
		engine_regions_encode(trainer->engine, &regions);
		if (regions.failed)
			rc = ws_fail(err, -ENOMEM, "no memory for the keys of regions");
	}
	for (uint32_t i = 0; rc == 0 && i < trainer->wire.pair_count; i++)
		rc = pair_ask(trainer, &trainer->wire.pairs[i], &regions, err);
	writer_release(&regions);
	return rc;
}

/* The old peers are gone, and with them whatever the engine borrowed for them. */
static int fence_done(struct ws_trainer *trainer, struct ws_error *err)
{
	static const struct engine_program none;
	int rc = 0;

	push_fenced(trainer);
	if (trainer->engine != NULL)
		rc = engine_set_program(trainer->engine, &none, err);
	arena_release(&trainer->wire.arena_before);
	trainer->wire.state = WIRE_PAIRING;
	if (rc == 0)
		rc = pairs_ask(trainer, err);
	return rc != 0 ? rc : sources_answer(trainer, err);
}

void trainer_wire_step(struct ws_trainer *trainer)
{
	struct wire *wire = &trainer->wire;
	struct ws_error err = {0};
	bool closed = trainer->engine == NULL;
	int rc = 0;

	if (wire->state == WIRE_NONE || wire->state == WIRE_PAIRING || wire->state == WIRE_WIRED)
		return;
	if (trainer->engine != NULL && wire->state == WIRE_FENCING &&
	    clock_ns() >= wire->fence_until_ns)
		engine_peers_abandon(trainer->engine);
	if (trainer->engine != NULL)
		rc = engine_fence(trainer->engine, &closed, &err);
	if (closed)
		push_fenced(trainer);
	else if (rc == -ETIMEDOUT)
		push_unfenced(trainer, &err);
	else
		push_closing(trainer, &err);
	if (wire->state == WIRE_CLOSED && rc == 0)
		wire->state = WIRE_NONE;
	if (wire->state != WIRE_FENCING)
		return;
	if (closed && !wire->quiet_said) {
		wire->quiet_said = true;
		member_say_quiet(trainer->member, wire->generation);
	}
	if (rc == -EAGAIN)
		return;
	if (rc == 0)
		rc = fence_done(trainer, &err);
	if (rc != 0)
		wire_fail(trainer, FAILURE_ATTEMPT, &err);
	else if (all_answered(wire))
		wire_done(trainer);
}

/* ---------------------------------------------------------------- a receiver's answer */

/* Of the ring, or of the inbox. */
static int slots_check(const struct ws_trainer *trainer, const struct pair *pair,
		       const struct pair_frame *frame, struct ws_error *err)
{
	uint32_t slots = MIN(plan_slot_count(trainer->source.plan), pair->plan->ring_count);
	char name[MEMBER_NAME_BYTES_MAX];

	if (pair->plan->inbox_bytes > 0)
		slots = 1;
	if (frame->slot_count > SLOTS_MAX || frame->slot_count < slots)
		return ws_fail(err, -EPROTO, "%s lends %u slots to trainer %u, which needs %u",
			       trainer_wire_member_name(trainer, pair->member, name),
			       frame->slot_count, trainer->rank, slots);
	return 0;
}

static int answer_take(struct ws_trainer *trainer, struct pair *pair,
		       const struct member_event *event, struct ws_error *err)
{
	struct pair_frame frame;
	char name[MEMBER_NAME_BYTES_MAX];

	const struct pair_plan mine = {
		.with = trainer_wire_member_name(trainer, pair->member, name),
		.plan_digest = plan_digest(trainer->source.plan),
		.pair_digest = pair->plan->digest,
		.op_count = pair->plan->op_count,
		.op_id_max = OP_ID_MAX,
	};
	int rc = pair_decode(&frame, &trainer->wire.arena, event->body, event->body_bytes, err);
	if (rc == 0)
		rc = pair_check(&frame, &mine, err);
	if (rc == 0)
		rc = slots_check(trainer, pair, &frame, err);
	if (rc == 0)
		rc = engine_peer_connect(trainer->engine, pair->peer, frame.address,
					 frame.address_bytes, err);
	if (rc == 0)
		rc = engine_peer_regions(trainer->engine, pair->peer, frame.regions,
					 frame.regions_bytes, err);
	if (rc != 0)
		return rc;
	pair->op_id_base = frame.op_id_base;
	pair->receive_base = frame.receive_base;
	pair->ring_region = frame.ring_region;
	pair->slot_count = frame.slot_count;
	memcpy(pair->slot_offset, frame.slot_offset, sizeof(pair->slot_offset));
	pair->rows = frame.rows;
	pair->row_count = frame.row_count;
	pair->answered = true;
	trainer->wire.answered_count++;
	return 0;
}

static int answer_hear(struct ws_trainer *trainer, const struct member_event *event,
		       struct ws_error *err)
{
	struct wire *wire = &trainer->wire;

	if (wire->state != WIRE_PAIRING || wire->pair_of_member[event->from] == UINT32_MAX)
		return 0;
	struct pair *pair = &wire->pairs[wire->pair_of_member[event->from]];
	return pair->answered ? 0 : answer_take(trainer, pair, event, err);
}

void trainer_wire_pair(struct ws_trainer *trainer, const struct member_event *event)
{
	struct wire *wire = &trainer->wire;
	struct ws_error err = {0};

	if ((wire->state != WIRE_FENCING && wire->state != WIRE_PAIRING) ||
	    event->generation != wire->generation || event->from >= wire->member_count)
		return;
	int rc = event->answer ? answer_hear(trainer, event, &err)
			       : source_request(trainer, event, &err);
	if (rc != 0)
		wire_fail(trainer, FAILURE_ATTEMPT, &err);
	else if (wire->state == WIRE_PAIRING && all_answered(wire))
		wire_done(trainer);
}

/* ---------------------------------------------------------------- the end */

void trainer_wire_close(struct ws_trainer *trainer, uint64_t until_ns)
{
	if (trainer->engine == NULL)
		return;
	trainer_wire_shut(trainer);
	(void)engine_peers_close(trainer->engine, until_ns);
}

void trainer_wire_release(struct ws_trainer *trainer)
{
	arena_release(&trainer->wire.arena_before);
	arena_release(&trainer->wire.arena);
	ws_memory_free(&trainer->inbox);
	ws_memory_free(&trainer->tables);
	memset(&trainer->wire, 0, sizeof(trainer->wire));
}
