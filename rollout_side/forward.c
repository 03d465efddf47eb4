/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rollout rank as a sender: what it forwards to other rollouts (the plan's fan-out), out of the
 * memory where it has landed.  Each receiver is asked for its half of the pair as a trainer
 * asks, over a connection of its own; a forward of a bucket waits behind the gate of the receives
 * that feed it.  A rank has landed only when its forwards are sent, too.
 */
#include <errno.h>
#include <stdio.h>

#include "rollout_side/rollout_internal.h"

/* ---------------------------------------------------------------- the roster */

int forwards_make(struct ws_rollout *rollout, const struct member_event *event,
		  struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	const struct plan *plan = rollout->source.plan;
	uint32_t digests = 0;

	wire->forward_count = plan_send_pair_count(plan);
	wire->bytes_forwarded = 0;
	wire->forwards = arena_array(&wire->arena, wire->forward_count, sizeof(*wire->forwards));
	if (wire->forwards == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u receivers", wire->forward_count);
	for (uint32_t i = 0; i < wire->forward_count; i++) {
		const struct plan_pair *pair = plan_send_pair(plan, i);
		if (event->roster[pair->receiver].role != ROLE_ROLLOUT)
			return ws_fail(err, -ENOTSUP, "the plan sends from a rollout to a trainer");
		wire->forwards[i] = (struct forward){
			.member = pair->receiver,
			.plan = pair,
			.digest_base = digests,
		};
		digests += pair->counter_count;
		wire->bytes_forwarded += pair->bytes;
	}
	return 0;
}

/* ---------------------------------------------------------------- asking */

static int forward_ask(struct ws_rollout *rollout, struct forward *forward,
		       const struct writer *regions, struct ws_error *err)
{
	struct writer address = WRITER_INIT(1u << 20);
	char name[ROLLOUT_NAME_BYTES];

	int rc = engine_peer_open(rollout->engine,
				  rollout_wire_member_name(rollout, forward->member, name),
				  &forward->peer, &address, err);
	const struct pair_frame frame = {
		.pair_digest[0] = forward->plan->digest,
		.plan_digest = plan_digest(rollout->source.plan),
		.address = address.bytes,
		.address_bytes = (uint32_t)address.count,
		.regions = regions->bytes,
		.regions_bytes = (uint32_t)regions->count,
	};
	if (rc == 0)
		rc = pair_say(rollout->member, rollout->wire.generation, forward->member, false,
			      &frame, err);
	writer_release(&address);
	return rc;
}

int forwards_ask(struct ws_rollout *rollout, struct ws_error *err)
{
	struct writer regions = WRITER_INIT(LINK_BODY_BYTES_MAX);
	int rc = 0;

	engine_regions_encode(rollout->engine, &regions);
	if (regions.failed)
		rc = ws_fail(err, -ENOMEM, "no memory for the keys of regions");
	for (uint32_t i = 0; rc == 0 && i < rollout->wire.forward_count; i++)
		rc = forward_ask(rollout, &rollout->wire.forwards[i], &regions, err);
	writer_release(&regions);
	return rc;
}

/* My forward to a member, NULL for none. */
static struct forward *forward_to(const struct ws_rollout *rollout, uint32_t member)
{
	for (uint32_t i = 0; i < rollout->wire.forward_count; i++)
		if (rollout->wire.forwards[i].member == member)
			return &rollout->wire.forwards[i];
	return NULL;
}

int forward_answer(struct ws_rollout *rollout, const struct member_event *event,
		   struct ws_error *err)
{
	struct forward *forward = forward_to(rollout, event->from);
	struct pair_frame frame;
	char name[ROLLOUT_NAME_BYTES];

	if (forward == NULL || forward->answered)
		return 0;
	const struct pair_plan mine = {
		.with = rollout_wire_member_name(rollout, forward->member, name),
		.plan_digest = plan_digest(rollout->source.plan),
		.pair_digest = forward->plan->digest,
		.op_count = forward->plan->op_count,
		.op_id_max = OP_ID_MAX,
	};
	int rc = pair_decode(&frame, &rollout->wire.arena, event->body, event->body_bytes, err);
	if (rc == 0)
		rc = pair_check(&frame, &mine, err);
	if (rc == 0)
		rc = engine_peer_connect(rollout->engine, forward->peer, frame.address,
					 frame.address_bytes, err);
	if (rc == 0)
		rc = engine_peer_regions(rollout->engine, forward->peer, frame.regions,
					 frame.regions_bytes, err);
	if (rc != 0)
		return rc;
	forward->op_id_base = frame.op_id_base;
	forward->receive_base = frame.receive_base;
	forward->rows = frame.rows;
	forward->row_count = frame.row_count;
	forward->answered = true;
	rollout->wire.answered_count++;
	return 0;
}

/* ---------------------------------------------------------------- the program */

static int send_make(struct ws_rollout *rollout, const struct plan_copy *copy, struct send *send,
		     struct ws_error *err)
{
	const struct plan_part *part = &copy->parts[0];
	const struct forward *forward = forward_to(rollout, copy->receiver);
	char name[ROLLOUT_NAME_BYTES];

	*send = (struct send){
		.peer = forward->peer,
		.bytes = copy->bytes,
		.first_op_id = (uint32_t)(forward->op_id_base + copy->first_op),
		.local = (const uint8_t *)rollout->own.targets[part->src_param].base +
			 part->src_offset,
		.local_region = rollout->own.places[part->src_param].region,
		.credit_op_id = UINT32_MAX,
		.counter = forward->digest_base + copy->counter,
		.gate = forward_gate(copy->bucket),
	};
	if (!place_find(forward->rows, forward->row_count, part->dst_param, &send->remote_region,
			&send->remote_offset))
		return ws_fail(err, -EPROTO, "%s didn't say where its param %u lies",
			       rollout_wire_member_name(rollout, forward->member, name),
			       part->dst_param);
	send->remote_offset += part->dst_offset;
	return 0;
}

static int digests_make(struct ws_rollout *rollout, struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	uint32_t count = 0;

	for (uint32_t i = 0; i < wire->forward_count; i++)
		count += wire->forwards[i].plan->counter_count;
	struct send_digest *digests = arena_array(&wire->arena, count, sizeof(*digests));
	if (digests == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u digests", count);
	for (uint32_t i = 0; i < wire->forward_count; i++) {
		const struct forward *forward = &wire->forwards[i];
		const struct plan_pair *pair = forward->plan;
		for (uint32_t c = 0; c < pair->counter_count; c++)
			digests[forward->digest_base + c] = (struct send_digest){
				.peer = forward->peer,
				.op_id = (uint32_t)(forward->op_id_base + pair->data_op_count + c),
				.remote_receive = forward->receive_base + c,
			};
	}
	for (uint32_t i = 0; i < wire->program.send_count; i++)
		digests[wire->program.sends[i].counter].send_count++;
	wire->program.digests = digests;
	wire->program.digest_count = count;
	return 0;
}

int forwards_program(struct ws_rollout *rollout, struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	const struct plan *plan = rollout->source.plan;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	uint32_t count = 0;

	if (wire->forward_count == 0)
		return 0;
	while (plan_next_send(plan, &cursor, &copy))
		count++;
	struct send *sends = arena_array(&wire->arena, count, sizeof(*sends));
	wire->send_param = arena_array(&wire->arena, count, sizeof(*wire->send_param));
	if (sends == NULL || wire->send_param == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u forwards", count);
	cursor = (struct plan_cursor){0};
	for (uint32_t i = 0; i < count && plan_next_send(plan, &cursor, &copy); i++) {
		int rc = send_make(rollout, &copy, &sends[i], err);
		if (rc != 0)
			return rc;
		wire->send_param[i] = copy.parts[0].src_param;
	}
	wire->program.sends = sends;
	wire->program.send_count = count;
	wire->program.gate_count = plan_bucket_count(plan);
	return wire->rules.wire_digests ? digests_make(rollout, err) : 0;
}

/* ---------------------------------------------------------------- an attempt */

void forwards_armed(struct ws_rollout *rollout)
{
	struct wire *wire = &rollout->wire;

	for (uint32_t i = 0; i < wire->forward_count; i++) {
		const struct forward *forward = &wire->forwards[i];
		if (wire->next_gone)
			engine_peer_drop(rollout->engine, forward->peer);
		else if (forward->ready_attempt == rollout->version.attempt)
			engine_peer_ready(rollout->engine, forward->peer);
	}
}

void forward_ready(struct ws_rollout *rollout, const struct member_event *event)
{
	struct forward *forward = forward_to(rollout, event->from);

	if (forward == NULL || event->generation != rollout->wire.generation)
		return;
	forward->ready_attempt = event->attempt;
	if (rollout->wire.state == WIRE_WIRED && rollout->version.state == RANK_READY &&
	    rollout->version.attempt == event->attempt)
		engine_peer_ready(rollout->engine, forward->peer);
}

void forwards_next_gone(struct ws_rollout *rollout)
{
	struct wire *wire = &rollout->wire;

	wire->next_gone = true;
	for (uint32_t i = 0; i < wire->forward_count && wire->state == WIRE_WIRED; i++)
		engine_peer_drop(rollout->engine, wire->forwards[i].peer);
}

/* ---------------------------------------------------------------- for people */

bool forwards_missing(const struct ws_rollout *rollout, char *text_out, size_t bytes)
{
	const struct wire *wire = &rollout->wire;
	struct engine_progress progress;
	char name[ROLLOUT_NAME_BYTES];

	engine_progress(rollout->engine, &progress);
	if (progress.all_sent)
		return false;
	for (uint32_t i = 0; i < wire->forward_count; i++) {
		const struct forward *forward = &wire->forwards[i];
		if (forward->ready_attempt == rollout->version.attempt)
			continue;
		snprintf(text_out, bytes, "forwards to %s, which isn't ready",
			 rollout_wire_member_name(rollout, forward->member, name));
		return true;
	}
	snprintf(text_out, bytes, "has forwarded %u of %u copies", progress.sends_done,
		 progress.send_count);
	return true;
}

uint32_t forward_member_of_peer(const struct ws_rollout *rollout, const struct engine_peer *peer)
{
	for (uint32_t i = 0; i < rollout->wire.forward_count; i++)
		if (peer != NULL && rollout->wire.forwards[i].peer == peer)
			return rollout->wire.forwards[i].member;
	return UINT32_MAX;
}

const char *forward_param_of_op(const struct ws_rollout *rollout, const struct engine_peer *peer,
				uint32_t op_id)
{
	const struct wire *wire = &rollout->wire;

	for (uint32_t i = 0; i < wire->program.send_count; i++) {
		const struct send *send = &wire->program.sends[i];
		if (send->peer == peer && op_id >= send->first_op_id &&
		    op_id - send->first_op_id < engine_op_count(send->bytes, wire->rules.op_bytes))
			return rollout->own.params.params[wire->send_param[i]].name;
	}
	return "?";
}
