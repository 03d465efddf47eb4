/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product: lib/engine moves what a contest asks for.  One send per op, dealt over the
 * receivers in turns; one receive per sender.  For latency each end has a send per op behind a
 * gate that the receive of the one before it opens, so that the bytes go there and back.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench/contest.h"
#include "lib/engine/engine.h"

#define EVENTS_MAX 32

struct side {
	const struct end *end;
	struct engine *engine;
	struct engine_peer *peers[WORKERS_MAX];
	uint32_t connected;
	char names[NICS_MAX][NIC_NAME_MAX];
	struct send *sends;	  /* owned */
	struct receive *receives; /* owned */
	struct op_range *ranges;  /* owned */
	uint64_t *come_ns;	  /* owned; latency: when each receive was done */
	double *samples;	  /* owned; latency */
	uint64_t attempt;
};

static void side_close(void *state)
{
	struct side *side = state;
	if (side == NULL)
		return;
	engine_close(side->engine);
	mem_free(side->sends);
	mem_free(side->receives);
	mem_free(side->ranges);
	mem_free(side->come_ns);
	mem_free(side->samples);
	mem_free(side);
}

/* A loop's NIC is named by its net; each end has one of its own there. */
static void devices_name(struct side *side, struct device *devices)
{
	const struct bench_nics *nics = side->end->nics;
	for (uint32_t i = 0; i < nics->count; i++) {
		if (strcmp(nics->transport, "loop") == 0)
			snprintf(side->names[i], NIC_NAME_MAX, "%.60s/%c%u", nics->names[i],
				 side->end->receives ? 'r' : 's', side->end->index);
		else
			snprintf(side->names[i], NIC_NAME_MAX, "%s", nics->names[i]);
		devices[i] = (struct device){.transport = nics->transport, .name = side->names[i]};
	}
}

static int side_open(void **state_out, const struct end *end, struct ws_error *err)
{
	struct device devices[NICS_MAX];
	uint32_t region;
	struct side *side = mem_alloc(sizeof(*side));
	*state_out = side;
	if (side == NULL)
		return ws_fail(err, -ENOMEM, "no memory for an engine");
	side->end = end;
	devices_name(side, devices);
	const struct engine_options options = {
		.devices = devices,
		.device_count = end->nics->count,
		.op_bytes = align_up(end->contest->op_bytes, 4096),
		.depth = end->contest->depth,
	};
	int rc = engine_open(&side->engine, &options, err);
	return rc == 0 ? engine_region_add(side->engine, &end->memory, MR_TARGET, &region, err)
		       : rc;
}

/* ------------------------------------------------------------------------- connections */

static int side_address(void *state, uint32_t peer, struct writer *out, struct ws_error *err)
{
	struct side *side = state;
	struct writer address = WRITER_INIT(1u << 16);
	char name[24];
	snprintf(name, sizeof(name), "%s %u", side->end->receives ? "sender" : "receiver", peer);
	int rc = engine_peer_open(side->engine, name, &side->peers[peer], &address, err);
	if (rc == 0) {
		write_u32(out, (uint32_t)address.count);
		write_bytes(out, address.bytes, address.count);
		engine_regions_encode(side->engine, out);
	}
	writer_release(&address);
	return rc;
}

static struct send send_make(const struct side *side, uint32_t peer, uint32_t i)
{
	const struct contest *contest = side->end->contest;
	uint64_t local = contest->latency ? 0 : contest_local(contest, i);
	return (struct send){
		.peer = side->peers[peer],
		.bytes = contest->op_bytes,
		.first_op_id = (contest->latency ? 0 : side->end->index * contest->op_count) + i,
		.local = (const uint8_t *)side->end->memory.base + local,
		.local_region = 1,
		.remote_region = 1,
		.remote_offset = contest->latency ? contest->op_bytes
						  : contest_remote(contest, side->end->index, i),
		.credit_op_id = UINT32_MAX,
	};
}

static struct receive receive_make(struct side *side, uint32_t peer, uint32_t ops)
{
	return (struct receive){.peer = side->peers[peer],
				.op_count = ops,
				.digest_op_id = UINT32_MAX,
				.credit_op_id = UINT32_MAX};
}

static void stream_fill(struct side *side, struct engine_program *program)
{
	const struct contest *contest = side->end->contest;
	for (uint32_t i = 0; !side->end->receives && i < contest->op_count; i++)
		for (uint32_t k = 0; k < contest->receivers; k++)
			side->sends[program->send_count++] = send_make(side, k, i);
	for (uint32_t k = 0; side->end->receives && k < contest->senders; k++) {
		side->receives[k] = receive_make(side, k, contest->op_count);
		side->ranges[k] = (struct op_range){.first_op_id = k * contest->op_count,
						    .count = contest->op_count,
						    .receive = k};
		program->receive_count++;
	}
}

static void latency_fill(struct side *side, struct engine_program *program)
{
	const struct contest *contest = side->end->contest;
	for (uint32_t i = 0; i < contest->op_count; i++) {
		side->sends[i] = send_make(side, 0, i);
		side->sends[i].gate = side->end->receives ? i + 1 : i;
		side->receives[i] = receive_make(side, 0, 1);
		side->receives[i].gate = i + 1;
		side->ranges[i] = (struct op_range){.first_op_id = i, .count = 1, .receive = i};
	}
	program->send_count = program->receive_count = program->gate_count = contest->op_count;
}

static int program_set(struct side *side, struct ws_error *err)
{
	const struct contest *contest = side->end->contest;
	uint32_t sends = contest->latency || !side->end->receives ? contest->op_count : 0;
	uint32_t receives = contest->latency ? contest->op_count : contest->senders;
	struct engine_program program = {.op_id_count = contest->op_count *
							(contest->latency ? 1 : contest->senders)};
	side->sends = mem_alloc((size_t)sends * contest->receivers * sizeof(*side->sends));
	side->receives = mem_alloc(receives * sizeof(*side->receives));
	side->ranges = mem_alloc(receives * sizeof(*side->ranges));
	side->samples = mem_alloc((contest->latency ? receives : 0) * sizeof(*side->samples));
	side->come_ns = mem_alloc((contest->latency ? receives : 0) * sizeof(*side->come_ns));
	if (side->sends == NULL || side->receives == NULL || side->ranges == NULL ||
	    side->samples == NULL || side->come_ns == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u ops", contest->op_count);
	if (contest->latency)
		latency_fill(side, &program);
	else
		stream_fill(side, &program);
	program.sends = side->sends;
	program.receives = side->receives;
	program.ranges = side->ranges;
	program.range_count = program.receive_count;
	return engine_set_program(side->engine, &program, err);
}

static int side_connect(void *state, uint32_t peer, const void *bytes, size_t count,
			struct ws_error *err)
{
	struct side *side = state;
	struct reader in = reader_make(bytes, count);
	size_t address_bytes = read_u32(&in);
	const void *address = read_bytes(&in, address_bytes);
	if (in.failed)
		return ws_fail(err, -EPROTO, "the engine's address is cut short");
	int rc = engine_peer_connect(side->engine, side->peers[peer], address, address_bytes, err);
	if (rc == 0)
		rc = engine_peer_regions(side->engine, side->peers[peer], in.at, reader_left(&in),
					 err);
	if (rc == 0 && ++side->connected == end_peer_count(side->end))
		rc = program_set(side, err);
	return rc;
}

/* ------------------------------------------------------------------------------- turns */

static int side_arm(void *state, struct ws_error *err)
{
	struct side *side = state;
	return engine_arm(side->engine, ++side->attempt, err);
}

/* Steps until all that this end sends and receives is done. */
static int side_step(struct side *side, uint32_t receives, struct ws_error *err)
{
	uint64_t deadline = deadline_in_ms(RUN_MS_MAX);
	struct engine_event events[EVENTS_MAX];
	struct engine_progress progress = {0};
	uint32_t come = 0;
	while (!progress.all_sent || come < receives) {
		if (clock_ns() > deadline)
			return ws_fail(err, -ETIMEDOUT, "the engine wasn't done after %d s",
				       RUN_MS_MAX / 1000);
		int count = engine_step(side->engine, events, EVENTS_MAX);
		for (int i = 0; i < count; i++) {
			if (events[i].kind == ENGINE_SENDS_DONE)
				continue;
			if (events[i].kind != ENGINE_RECEIVE_DONE)
				return ws_fail(err, -EIO, "the engine met event %d at op %u: %s",
					       (int)events[i].kind, events[i].op_id,
					       engine_op_reason(&events[i]));
			if (side->end->contest->latency)
				side->come_ns[come] = clock_ns();
			come++;
		}
		if (count == 0)
			engine_wait(side->engine, -1, -1, deadline);
		engine_progress(side->engine, &progress);
	}
	return 0;
}

/* From one arrival to the next the bytes went there and back. */
static int latency_run(struct side *side, struct outcome *outcome, struct ws_error *err)
{
	uint32_t count = side->end->contest->op_count;
	int rc = side_step(side, count, err);
	for (uint32_t i = 1; i < count; i++)
		side->samples[i - 1] = (double)(side->come_ns[i] - side->come_ns[i - 1]) / 2e3;
	if (rc == 0 && !side->end->receives)
		outcome_latency(outcome, side->samples, count - 1);
	return rc;
}

static int side_run(void *state, struct outcome *outcome, struct ws_error *err)
{
	struct side *side = state;
	const struct contest *contest = side->end->contest;
	for (uint32_t i = 0; i < end_peer_count(side->end); i++)
		if (contest->latency || !side->end->receives)
			engine_peer_ready(side->engine, side->peers[i]);
	int rc = contest->latency
			 ? latency_run(side, outcome, err)
			 : side_step(side, side->end->receives ? contest->senders : 0, err);
	outcome->nic_count = engine_nic_count(side->engine);
	for (uint32_t i = 0; i < outcome->nic_count; i++)
		outcome->bytes[i] = engine_nic_bytes_sent(side->engine, i);
	engine_end(side->engine);
	return rc;
}

const struct contender contender_engine = {
	.open = side_open,
	.close = side_close,
	.address = side_address,
	.connect = side_connect,
	.arm = side_arm,
	.run = side_run,
};
