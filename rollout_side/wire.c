/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rollout rank's wiring: a roster becomes a plan, the old peers are fenced, each sender's
 * request is answered with my half of the pair, and when all are, the plan becomes the engine's
 * program.  What can't be wired is told to the hub, which ends the run.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rollout_side/rollout_internal.h"

#define FENCE_NS UINT64_C(10000000000) /* then peers that don't answer are given up */

/* The hub puts my name in front.  Inputs that can't be planned end the run; a wiring that fails
 * otherwise ends the first one, later ones go on without this member. */
static void wire_fail(struct ws_rollout *rollout, enum failure_kind kind,
		      const struct ws_error *why)
{
	rollout->wire.state = WIRE_FAILED;
	member_say_failure(rollout->member, kind, 0, UINT32_MAX, why);
}

const char *rollout_wire_member_name(const struct ws_rollout *rollout, uint32_t member,
				     char *text_out)
{
	if (rollout->source.plan == NULL || member >= rollout->wire.member_count)
		snprintf(text_out, ROLLOUT_NAME_BYTES, "member %u", member);
	else
		plan_member_name(rollout->source.plan, member, text_out, ROLLOUT_NAME_BYTES);
	return text_out;
}

const struct pair *rollout_wire_pair_of_receive(const struct ws_rollout *rollout, uint32_t receive)
{
	const struct wire *wire = &rollout->wire;

	for (uint32_t i = 0; i < wire->pair_count; i++)
		if (receive - wire->pairs[i].receive_base < wire->pairs[i].plan->counter_count)
			return &wire->pairs[i];
	return NULL;
}

/* ---------------------------------------------------------------- the roster */

static int roster_plan(struct ws_rollout *rollout, const struct member_event *event,
		       struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	struct rules rules;

	int rc = rules_decode(&rules, event->rules, event->rules_bytes, err);
	if (rc != 0)
		return rc;
	if (wire->engine_made && !rules_same(&rules, &wire->rules))
		wire->engine_made = false;
	wire->rules = rules;
	rc = plan_source_take(&rollout->source, SIDE_TRAINER, event->trainer_manifest,
			      event->trainer_manifest_bytes, err);
	if (rc == 0)
		rc = plan_source_take(&rollout->source, SIDE_ROLLOUT, event->rollout_manifest,
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
	return plan_source_make(&rollout->source, &input, event->roster_count, event->self, err);
}

static int pairs_make(struct ws_rollout *rollout, const struct member_event *event,
		      struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	const struct plan *plan = rollout->source.plan;
	uint32_t members = event->roster_count;

	wire->member_count = members;
	wire->pair_count = plan_receive_pair_count(plan);
	wire->pairs = arena_array(&wire->arena, wire->pair_count, sizeof(*wire->pairs));
	wire->pair_of_member = arena_array(&wire->arena, members, sizeof(*wire->pair_of_member));
	if (wire->pairs == NULL || wire->pair_of_member == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a roster of %u", members);
	for (uint32_t i = 0; i < members; i++)
		wire->pair_of_member[i] = UINT32_MAX;
	for (uint32_t i = 0; i < wire->pair_count; i++) {
		const struct plan_pair *pair = plan_receive_pair(plan, i);
		const struct roster_member *from = &event->roster[pair->sender];
		wire->pairs[i] = (struct pair){
			.member = pair->sender,
			.id = from->id,
			.incarnation = from->incarnation,
			.forwards = from->role == ROLE_ROLLOUT,
			.plan = pair,
		};
		wire->pair_of_member[pair->sender] = i;
	}
	return receive_lay_out(rollout, err);
}

/* The peers are the engine's to fence; only what describes them goes. */
static void pairs_forget(struct wire *wire)
{
	wire->pairs = NULL;
	wire->pair_of_member = NULL;
	wire->forwards = NULL;
	wire->pair_count = wire->forward_count = 0;
	wire->answered_count = 0;
	wire->next_gone = false;
}

void rollout_wire_roster(struct ws_rollout *rollout, const struct member_event *event)
{
	struct wire *wire = &rollout->wire;
	struct version_actions none = {0};
	struct ws_error err = {0};

	version_wired(&rollout->version, false, &none);
	if (rollout->engine != NULL) {
		engine_end(rollout->engine);
		engine_peers_retire(rollout->engine, roster_has, event);
	}
	/* The engine borrows the program of the last complete wiring until the fence is done. */
	if (wire->arena_before.blocks == NULL) {
		wire->arena_before = wire->arena;
		memset(&wire->arena, 0, sizeof(wire->arena));
	}
	arena_release(&wire->arena);
	pairs_forget(wire);
	wire->quiet_said = false;
	memset(&wire->program, 0, sizeof(wire->program));
	wire->generation = event->generation;
	wire->state = WIRE_FENCING;
	wire->fence_until_ns = clock_ns() + FENCE_NS;
	int rc = roster_plan(rollout, event, &err);
	if (rc == 0)
		rc = pairs_make(rollout, event, &err);
	if (rc == 0)
		rc = forwards_make(rollout, event, &err);
	if (rc != 0)
		wire_fail(rollout, FAILURE_PLAN, &err);
}

void rollout_wire_quiet(struct ws_rollout *rollout, uint64_t generation)
{
	struct wire *wire = &rollout->wire;

	if (generation != wire->generation || wire->state != WIRE_FENCING)
		return;
	if (rollout->engine != NULL)
		engine_peers_quiet(rollout->engine);
}

/* ---------------------------------------------------------------- a sender's request */

static void answer_fill(const struct ws_rollout *rollout, const struct pair *pair,
			struct pair_frame *frame)
{
	const struct plan *plan = rollout->source.plan;

	*frame = (struct pair_frame){
		.pair_digest[0] = pair->plan->digest,
		.plan_digest = plan_digest(plan),
		.op_id_base = pair->op_id_base,
		.receive_base = pair->receive_base,
		.ring_region = rollout->ring_region == UINT32_MAX ? 0 : rollout->ring_region,
		.slot_count = MIN(plan_slot_count(plan), pair->plan->ring_count),
	};
	for (uint32_t i = 0; i < frame->slot_count && i < SLOTS_MAX; i++)
		frame->slot_offset[i] = pair->ring_offset + i * plan_slot_bytes(plan);
}

static int answer_say(struct ws_rollout *rollout, struct pair *pair, const struct writer *address,
		      struct ws_error *err)
{
	struct writer regions = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct arena arena = {0};
	struct place_row *rows = NULL;
	struct pair_frame frame;

	answer_fill(rollout, pair, &frame);
	int rc = place_rows(rollout, pair->needs, &arena, &rows, &frame.row_count);
	frame.rows = rows;
	engine_regions_encode(rollout->engine, &regions);
	frame.address = address->bytes;
	frame.address_bytes = (uint32_t)address->count;
	frame.regions = regions.bytes;
	frame.regions_bytes = (uint32_t)regions.count;
	if (rc != 0 || regions.failed)
		rc = ws_fail(err, -ENOMEM, "no memory for a pair frame");
	if (rc == 0)
		rc = pair_say(rollout->member, rollout->wire.generation, pair->member, true, &frame,
			      err);
	writer_release(&regions);
	arena_release(&arena);
	return rc;
}

static int request_take(struct ws_rollout *rollout, struct pair *pair, const void *body,
			uint32_t bytes, struct ws_error *err)
{
	struct writer address = WRITER_INIT(1u << 20);
	struct pair_frame frame;
	char name[ROLLOUT_NAME_BYTES];

	const struct pair_plan mine = {
		.with = rollout_wire_member_name(rollout, pair->member, name),
		.plan_digest = plan_digest(rollout->source.plan),
		.pair_digest = pair->plan->digest,
		.op_count = pair->plan->credit_count,
		.op_id_max = OP_ID_MAX,
	};
	int rc = pair_decode(&frame, &rollout->wire.arena, body, bytes, err);
	if (rc == 0)
		rc = pair_check(&frame, &mine, err);
	if (rc == 0)
		rc = engine_peer_open(rollout->engine, name, &pair->peer, &address, err);
	if (rc == 0) {
		engine_peer_writer(pair->peer, pair->id, pair->incarnation);
		rc = engine_peer_connect(rollout->engine, pair->peer, frame.address,
					 frame.address_bytes, err);
	}
	if (rc == 0)
		rc = engine_peer_regions(rollout->engine, pair->peer, frame.regions,
					 frame.regions_bytes, err);
	if (rc == 0)
		rc = answer_say(rollout, pair, &address, err);
	writer_release(&address);
	if (rc != 0)
		return rc;
	pair->credit_base = frame.op_id_base;
	pair->answered = true;
	rollout->wire.answered_count++;
	return 0;
}

static bool all_answered(const struct wire *wire)
{
	return wire->answered_count == wire->pair_count + wire->forward_count;
}

/* Everything is connected: the plan becomes the program. */
static int wire_done(struct ws_rollout *rollout, struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	struct version_actions actions = {0};

	int rc = receive_program(rollout, err);
	if (rc == 0)
		rc = posts_program(rollout, err);
	if (rc == 0)
		rc = forwards_program(rollout, err);
	if (rc == 0)
		rc = engine_set_program(rollout->engine, &wire->program, err);
	if (rc != 0)
		return rc;
	wire->state = WIRE_WIRED;
	member_say_wired(rollout->member, wire->generation);
	version_wired(&rollout->version, true, &actions);
	actions_apply(rollout, &actions);
	return 0;
}

static int request_hear(struct ws_rollout *rollout, const struct member_event *event,
			struct ws_error *err)
{
	struct wire *wire = &rollout->wire;

	if (wire->pair_of_member[event->from] == UINT32_MAX)
		return 0;
	struct pair *pair = &wire->pairs[wire->pair_of_member[event->from]];
	if (pair->answered)
		return 0;
	if (wire->state == WIRE_PAIRING)
		return request_take(rollout, pair, event->body, event->body_bytes, err);
	pair->request = arena_copy(&wire->arena, event->body, event->body_bytes);
	pair->request_bytes = pair->request != NULL ? event->body_bytes : 0;
	return 0;
}

void rollout_wire_pair(struct ws_rollout *rollout, const struct member_event *event)
{
	struct wire *wire = &rollout->wire;
	struct ws_error err = {0};

	if ((wire->state != WIRE_FENCING && wire->state != WIRE_PAIRING) ||
	    event->generation != wire->generation || event->from >= wire->member_count)
		return;
	int rc = event->answer ? forward_answer(rollout, event, &err)
			       : request_hear(rollout, event, &err);
	if (rc == 0 && wire->state == WIRE_PAIRING && all_answered(wire))
		rc = wire_done(rollout, &err);
	if (rc != 0)
		wire_fail(rollout, FAILURE_ATTEMPT, &err);
}

/* ---------------------------------------------------------------- after the fence */

static int engine_make(struct ws_rollout *rollout, struct ws_error *err)
{
	const struct engine_options options = {
		.devices = rollout->devices.device,
		.device_count = rollout->devices.count,
		.op_bytes = rollout->wire.rules.op_bytes,
		.wire_digests = rollout->wire.rules.wire_digests,
		.place = rollout->place.place,
		.device = rollout->place.device,
		.stream = rollout->stream,
	};

	engine_close(rollout->engine);
	rollout->engine = NULL;
	rollout->ring_region = UINT32_MAX;
	rollout->landing_registered = false;
	if (rollout->ring.place != options.place || rollout->ring.device != options.device)
		ws_memory_free(&rollout->ring);
	int rc = engine_open(&rollout->engine, &options, err);
	rollout->wire.engine_made = rc == 0;
	return rc;
}

static int fence_done(struct ws_rollout *rollout, struct ws_error *err)
{
	static const struct engine_program none;
	struct wire *wire = &rollout->wire;
	int rc = 0;

	if (rollout->engine != NULL)
		rc = engine_set_program(rollout->engine, &none, err);
	arena_release(&wire->arena_before);
	wire->written = false;
	wire->state = WIRE_PAIRING;
	if (rc == 0 && !wire->engine_made)
		rc = engine_make(rollout, err);
	if (rc == 0 && !rollout->landing_registered)
		rc = landing_register(rollout, err);
	if (rc == 0)
		rc = ring_fit(rollout, err);
	if (rc == 0)
		rc = forwards_ask(rollout, err);
	for (uint32_t i = 0; rc == 0 && i < wire->pair_count; i++)
		if (wire->pairs[i].request != NULL)
			rc = request_take(rollout, &wire->pairs[i], wire->pairs[i].request,
					  wire->pairs[i].request_bytes, err);
	if (rc == 0 && all_answered(wire))
		rc = wire_done(rollout, err);
	return rc;
}

void rollout_wire_step(struct ws_rollout *rollout)
{
	struct wire *wire = &rollout->wire;
	struct ws_error err = {0};
	bool closed = rollout->engine == NULL;
	int rc = 0;

	if (wire->state != WIRE_FENCING)
		return;
	if (rollout->engine != NULL && clock_ns() >= wire->fence_until_ns)
		engine_peers_abandon(rollout->engine);
	if (rollout->engine != NULL)
		rc = engine_fence(rollout->engine, &closed, &err);
	if (closed && !wire->quiet_said) {
		wire->quiet_said = true;
		member_say_quiet(rollout->member, wire->generation);
	}
	if (rc == -EAGAIN)
		return;
	if (rc == 0)
		rc = fence_done(rollout, &err);
	if (rc != 0)
		wire_fail(rollout, FAILURE_ATTEMPT, &err);
}

/* ---------------------------------------------------------------- the end */

void rollout_wire_close(struct ws_rollout *rollout, uint64_t until_ns)
{
	if (rollout->engine == NULL)
		return;
	(void)engine_peers_close(rollout->engine, until_ns);
}

int rollout_wire_suspend(struct ws_rollout *rollout, struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	struct version_actions none = {0};
	bool under_way = wire->written && rollout->version.state != RANK_RESUMED;

	if (rollout->engine == NULL)
		return 0;
	version_wired(&rollout->version, false, &none);
	engine_end(rollout->engine);
	engine_peers_retire(rollout->engine, NULL, NULL);
	pairs_forget(wire);
	wire->state = WIRE_NONE;
	if (under_way && !engine_peers_close(rollout->engine, clock_ns()))
		return ws_fail(err, -EAGAIN,
			       "writes of an update that was aborted may still come to %s",
			       rollout->name);
	return 0;
}

void rollout_wire_release(struct ws_rollout *rollout)
{
	arena_release(&rollout->wire.arena_before);
	arena_release(&rollout->wire.arena);
	memset(&rollout->wire, 0, sizeof(rollout->wire));
}
