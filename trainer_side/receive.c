/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer as a receiver: rollouts give credits back, and where weights are quantized on the way
 * other trainers write the maxima of blocks that they hold parts of.  Each of these asks for its
 * half of a pair, over a connection of its own; what it writes lands in its stretch of my inbox and
 * raises my tables.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "trainer_side/program.h"

#define STRETCH_ALIGN 256u

/* ---------------------------------------------------------------- the roster */

int sources_make(struct ws_trainer *trainer, const struct member_event *event, struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	const struct plan *plan = trainer->source.plan;
	uint64_t ops = wire->credit_count, receives = 0;

	wire->source_count = plan_receive_pair_count(plan);
	wire->sources = arena_array(&wire->arena, wire->source_count, sizeof(*wire->sources));
	if (wire->sources == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u senders", wire->source_count);
	for (uint32_t i = 0; i < wire->source_count; i++) {
		const struct plan_pair *pair = plan_receive_pair(plan, i);
		const struct roster_member *from = &event->roster[pair->sender];
		if (from->role != ROLE_TRAINER)
			return ws_fail(err, -ENOTSUP, "the plan sends from a rollout to a trainer");
		wire->sources[i] = (struct source){
			.member = pair->sender,
			.id = from->id,
			.incarnation = from->incarnation,
			.plan = pair,
			.op_id_base = (uint32_t)ops,
			.receive_base = (uint32_t)receives,
			.inbox_offset = wire->inbox_bytes,
		};
		ops += pair->op_count;
		receives += pair->counter_count;
		wire->inbox_bytes += align_up(pair->inbox_bytes, STRETCH_ALIGN);
		if (ops > OP_ID_MAX + UINT64_C(1))
			return ws_fail(err, -ENOSPC,
				       "trainer %u would get more than %u ops; choose larger ops "
				       "than %llu bytes",
				       trainer->rank, OP_ID_MAX + 1,
				       (unsigned long long)wire->rules.op_bytes);
	}
	wire->program.receive_count = (uint32_t)receives;
	wire->program.op_id_count = (uint32_t)ops;
	return 0;
}

int inbox_fit(struct ws_trainer *trainer, struct ws_error *err)
{
	if (trainer->inbox.bytes == 0)
		trainer->inbox = trainer->place;
	int rc = memory_fit(trainer->engine, &trainer->inbox, &trainer->inbox_region,
			    trainer->wire.inbox_bytes, err);

	return rc != 0 ? ws_fail_in(err, rc, "trainer %u's inbox", trainer->rank) : 0;
}

/* ---------------------------------------------------------------- a sender's request */

static int answer_say(struct ws_trainer *trainer, const struct source *source,
		      const struct writer *address, struct ws_error *err)
{
	struct writer regions = WRITER_INIT(LINK_BODY_BYTES_MAX);

	engine_regions_encode(trainer->engine, &regions);
	const struct pair_frame frame = {
		.pair_digest[0] = source->plan->digest,
		.plan_digest = plan_digest(trainer->source.plan),
		.address = address->bytes,
		.address_bytes = (uint32_t)address->count,
		.regions = regions.bytes,
		.regions_bytes = (uint32_t)regions.count,
		.op_id_base = source->op_id_base,
		.receive_base = source->receive_base,
		.ring_region = trainer->inbox_region,
		.slot_count = 1,
		.slot_offset[0] = source->inbox_offset,
	};
	int rc = regions.failed ? ws_fail(err, -ENOMEM, "no memory for the keys of regions") : 0;
	if (rc == 0)
		rc = pair_say(trainer->member, trainer->wire.generation, source->member, true,
			      &frame, err);
	writer_release(&regions);
	return rc;
}

static int request_take(struct ws_trainer *trainer, struct source *source, const void *body,
			uint32_t bytes, struct ws_error *err)
{
	struct writer address = WRITER_INIT(1u << 20);
	struct pair_frame frame;
	char name[MEMBER_NAME_BYTES_MAX];

	const struct pair_plan mine = {
		.with = trainer_wire_member_name(trainer, source->member, name),
		.plan_digest = plan_digest(trainer->source.plan),
		.pair_digest = source->plan->digest,
		.op_id_max = OP_ID_MAX,
	};
	int rc = pair_decode(&frame, &trainer->wire.arena, body, bytes, err);
	if (rc == 0)
		rc = pair_check(&frame, &mine, err);
	if (rc == 0)
		rc = engine_peer_open(trainer->engine, name, &source->peer, &address, err);
	if (rc == 0) {
		engine_peer_writer(source->peer, source->id, source->incarnation);
		rc = engine_peer_connect(trainer->engine, source->peer, frame.address,
					 frame.address_bytes, err);
	}
	if (rc == 0)
		rc = engine_peer_regions(trainer->engine, source->peer, frame.regions,
					 frame.regions_bytes, err);
	if (rc == 0)
		rc = answer_say(trainer, source, &address, err);
	writer_release(&address);
	source->answered = rc == 0;
	trainer->wire.answered_count += rc == 0;
	return rc;
}

int source_request(struct ws_trainer *trainer, const struct member_event *event,
		   struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	struct source *source = NULL;

	for (uint32_t i = 0; i < wire->source_count; i++)
		if (wire->sources[i].member == event->from)
			source = &wire->sources[i];
	if (source == NULL || source->answered)
		return 0;
	if (wire->state == WIRE_PAIRING)
		return request_take(trainer, source, event->body, event->body_bytes, err);
	/* Before my fence is done: it waits. */
	source->request = arena_copy(&wire->arena, event->body, event->body_bytes);
	source->request_bytes = source->request != NULL ? event->body_bytes : 0;
	return 0;
}

int sources_answer(struct ws_trainer *trainer, struct ws_error *err)
{
	const struct wire *wire = &trainer->wire;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < wire->source_count; i++)
		if (wire->sources[i].request != NULL)
			rc = request_take(trainer, &wire->sources[i], wire->sources[i].request,
					  wire->sources[i].request_bytes, err);
	return rc;
}

/* ---------------------------------------------------------------- the program */

struct builder {
	struct ws_trainer *trainer;
	struct receive *receives;
	struct span *spans; /* one each */
	struct op_range *ranges;
	uint32_t range_count;
};

static void range_put(struct builder *builder, uint64_t first, uint64_t count, uint32_t receive)
{
	builder->ranges[builder->range_count++] = (struct op_range){
		.first_op_id = (uint32_t)first, .count = (uint32_t)count, .receive = receive};
}

/* Out of the inbox, part by part, into the tables. */
static int raises_make(struct builder *builder, const struct plan_copy *copy,
		       const uint8_t *landing, struct receive *receive)
{
	struct ws_trainer *trainer = builder->trainer;
	struct move *moves = arena_array(&trainer->wire.arena, copy->part_count, sizeof(*moves));

	if (moves == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < copy->part_count; i++) {
		const struct plan_part *part = &copy->parts[i];
		struct move *move = &moves[i];
		int64_t stride = (int64_t)ws_dtype_bytes(part->to);
		*move = (struct move){
			.kind = MOVE_RAISE,
			.src = landing + part->wire_offset,
			.dst = (uint8_t *)trainer->wire.program.tables + part->dst_offset,
			.dim_count = part->dim_count,
			.from = part->from,
			.to = part->to,
		};
		for (uint32_t d = part->dim_count; d-- > 0;) {
			move->extent[d] = part->extent[d];
			move->src_stride[d] = stride;
			move->dst_stride[d] = part->dst_stride[d];
			stride *= (int64_t)part->extent[d];
		}
	}
	receive->moves = moves;
	receive->move_count = copy->part_count;
	return 0;
}

/* A bucket's maxima come as one copy, so each counter has one. */
static int copy_put(struct builder *builder, const struct source *source,
		    const struct plan_copy *copy)
{
	uint32_t index = source->receive_base + copy->counter;
	struct receive *receive = &builder->receives[index];
	uint64_t first = source->op_id_base + copy->first_op;
	const uint8_t *landing = (const uint8_t *)builder->trainer->inbox.base +
				 source->inbox_offset + copy->inbox_offset;

	assert(receive->span_count == 0);
	range_put(builder, first, copy->op_count, index);
	builder->spans[index] = (struct span){.memory = landing,
					      .bytes = copy->bytes,
					      .op_bytes = copy->op_bytes,
					      .first_op_id = (uint32_t)first};
	receive->spans = &builder->spans[index];
	receive->span_count = 1;
	return raises_make(builder, copy, landing, receive);
}

/* A pair's counters, and the ops of its digests behind its data ops. */
static void source_put(struct builder *builder, const struct source *source)
{
	const struct plan_pair *pair = source->plan;
	bool digests = builder->trainer->wire.rules.wire_digests;

	for (uint32_t c = 0; c < pair->counter_count; c++) {
		uint64_t digest = source->op_id_base + pair->data_op_count + c;
		struct receive *receive = &builder->receives[source->receive_base + c];
		receive->peer = source->peer;
		receive->op_count = pair->counters[c].op_count;
		receive->bytes = pair->counters[c].bytes;
		receive->digest_op_id = digests ? (uint32_t)digest : UINT32_MAX;
		receive->credit_op_id = UINT32_MAX;
		receive->tag = pair->counters[c].bucket;
		receive->gate = gate_raised(pair->counters[c].bucket);
		if (digests)
			range_put(builder, digest, 1, source->receive_base + c);
	}
}

static int copies_put(struct builder *builder)
{
	const struct wire *wire = &builder->trainer->wire;
	const struct plan *plan = builder->trainer->source.plan;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	bool more = plan_next_receive(plan, &cursor, &copy);
	int rc = 0;

	for (uint32_t i = 0; i < wire->source_count; i++) {
		const struct source *source = &wire->sources[i];
		for (; rc == 0 && more && copy.sender == source->member;
		     more = plan_next_receive(plan, &cursor, &copy))
			rc = copy_put(builder, source, &copy);
		source_put(builder, source);
	}
	return rc;
}

int receives_program(struct ws_trainer *trainer, struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	uint32_t count = wire->program.receive_count;
	struct builder builder = {
		.trainer = trainer,
		.receives = arena_array(&wire->arena, count, sizeof(*builder.receives)),
		.spans = arena_array(&wire->arena, count, sizeof(*builder.spans)),
		.ranges = arena_array(&wire->arena, 1 + 2 * (size_t)count, sizeof(*builder.ranges)),
	};
	int rc = builder.receives == NULL || builder.spans == NULL || builder.ranges == NULL
			 ? -ENOMEM
			 : 0;
	/* All credits of all pairs are consecutive op ids, the first ones. */
	if (rc == 0 && wire->credit_count > 0)
		range_put(&builder, 0, wire->credit_count, OP_IS_CREDIT);
	if (rc == 0)
		rc = copies_put(&builder);
	if (rc != 0)
		return ws_fail(err, rc, "no memory for a program of %u receives", count);
	wire->program.receives = builder.receives;
	wire->program.ranges = builder.ranges;
	wire->program.range_count = builder.range_count;
	return 0;
}

/* ---------------------------------------------------------------- for people */

const struct source *source_of_receive(const struct ws_trainer *trainer, uint32_t receive)
{
	const struct wire *wire = &trainer->wire;

	for (uint32_t i = 0; i < wire->source_count; i++)
		if (receive - wire->sources[i].receive_base < wire->sources[i].plan->counter_count)
			return &wire->sources[i];
	return NULL;
}

bool sources_missing(const struct ws_trainer *trainer, char *text_out, size_t bytes)
{
	const struct wire *wire = &trainer->wire;
	char name[MEMBER_NAME_BYTES_MAX];

	for (uint32_t i = 0; i < wire->program.receive_count; i++) {
		uint32_t first, missing = engine_receive_missing(trainer->engine, i, &first);
		const struct source *source = source_of_receive(trainer, i);
		if (missing == 0 || source == NULL)
			continue;
		const struct receive *receive = &wire->program.receives[i];
		snprintf(text_out, bytes, "got %u of %u ops of maxima of bucket '%s' from %s",
			 receive->op_count - missing, receive->op_count,
			 plan_bucket_name(trainer->source.plan, receive->tag),
			 trainer_wire_member_name(trainer, source->member, name));
		return true;
	}
	return false;
}
