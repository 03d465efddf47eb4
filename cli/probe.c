/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe's course, the same at every rank: meet, join rails (probe_join.c), then step by step.
 * Who writes to whom in which step follows from what all have told each other, so nobody gives
 * orders; the round after a step brings its result to everybody and is the barrier before the next.
 */
#include <errno.h>
#include <string.h>

#include "cli/probe_inside.h"

#define CROWD_OPS_MIN 2
#define CROWD_OPS_MAX 64
#define CROWD_SECONDS 0.1

void probe_free(struct probe *probe)
{
	if (probe == NULL)
		return;
	for (uint32_t i = 0; i < probe->nic_count; i++) {
		probe->nics[i]->transport->dereg(probe->nics[i], &probe->mrs[i]);
		nic_close(probe->nics[i]);
	}
	meeting_close(probe->meeting);
	ws_memory_free(&probe->memory);
	mem_free(probe->ranks);
	mem_free(probe->pairs);
	mem_free(probe->incast);
	mem_free(probe->all);
	mem_free(probe->wires);
	mem_free(probe);
}

static struct probe *probe_make(const struct probe_options *options)
{
	struct probe *probe = mem_alloc(sizeof(*probe));
	size_t world = options->launch->world;

	if (probe == NULL)
		return NULL;
	probe->options = *options;
	probe->rank = options->launch->rank;
	probe->world = options->launch->world;
	probe->ranks = mem_alloc(world * sizeof(*probe->ranks));
	probe->pairs = mem_alloc(world * world * NICS_MAX * sizeof(*probe->pairs));
	probe->incast = mem_alloc(world * sizeof(*probe->incast));
	probe->all = mem_alloc(world * sizeof(*probe->all));
	probe->wires = mem_alloc(world * NICS_MAX * sizeof(*probe->wires));
	if (probe->ranks == NULL || probe->pairs == NULL || probe->incast == NULL ||
	    probe->all == NULL || probe->wires == NULL) {
		probe_free(probe);
		return NULL;
	}
	return probe;
}

/* ------------------------------------------------------------------------- steps */

/* What a rank says after a step: nothing, or its measures, or its fault. */
static void step_encode(const struct pair_result *result, int rc, const struct ws_error *why,
			struct writer *out)
{
	write_u64(out, result->first_ns);
	write_u64(out, result->p50_ns);
	write_u64(out, result->p99_ns);
	write_u64(out, result->bytes_per_s);
	write_u32(out, (uint32_t)-rc);
	write_text(out, rc != 0 ? why->text : "");
}

/* The receiver's words say more, unless it only waited. */
static void step_take(struct probe *probe, struct doctor *doctor, uint32_t from, uint32_t to,
		      uint32_t rail, struct reader *parts)
{
	struct pair_result *pair = pair_at(probe, from, to, rail);
	char written[PROBE_TEXT_BYTES], received[PROBE_TEXT_BYTES], both[2 * PROBE_TEXT_BYTES + 64];

	pair->first_ns = read_u64(&parts[from]);
	pair->p50_ns = read_u64(&parts[from]);
	pair->p99_ns = read_u64(&parts[from]);
	pair->bytes_per_s = read_u64(&parts[from]);
	uint32_t write_code = read_u32(&parts[from]);
	read_text(&parts[from], written, sizeof(written));
	read_bytes(&parts[to], 4 * 8);
	uint32_t read_code = read_u32(&parts[to]);
	read_text(&parts[to], received, sizeof(received));
	bool good = write_code == 0 && read_code == 0;
	pair->state = good ? PAIR_GOOD : PAIR_BAD;
	if (good)
		return;
	uint32_t code = write_code;
	snprintf(both, sizeof(both), "%s", written);
	if (write_code == 0 || (read_code != 0 && read_code != ETIMEDOUT)) {
		code = read_code;
		snprintf(both, sizeof(both), "%s", received);
	} else if (read_code == ETIMEDOUT && write_code == ETIMEDOUT) {
		snprintf(both, sizeof(both), "%s; there: %s", written, received);
	}
	probe_say_bad(probe, doctor, from, to, rail, code, both);
}

static int step(struct probe *probe, struct doctor *doctor, uint32_t from, uint32_t to,
		uint32_t rail, struct ws_error *err)
{
	struct writer mine = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct reader parts[PROBE_RANKS_MAX];
	struct pair_result result = {0};
	struct ws_error why = {0};
	uint64_t seed = mix64(((uint64_t)from << 32 | to) * NICS_MAX + rail);
	int rc = 0;

	if (probe->rank == from || probe->rank == to) {
		struct wire *wire = wire_at(probe, probe->rank == from ? to : from, rail);
		wire_begin(wire, probe->rank == to, deadline_in_ms(probe->options.step_ms));
		rc = probe->rank == from ? wire_probe(wire, seed, &result, &why)
					 : wire_answer(wire, seed, &why);
		if (probe->rank == to)
			wire_clear(wire);
		step_encode(&result, rc, &why, &mine);
	}
	rc = probe_share(probe, &mine, parts, err);
	writer_release(&mine);
	if (rc == 0)
		step_take(probe, doctor, from, to, rail, parts);
	return rc;
}

static int probe_pairs(struct probe *probe, struct doctor *doctor, struct ws_error *err)
{
	struct progress_line line;
	uint32_t tried = 0;
	int rc = 0;

	progress_line_start(&line);
	for (uint32_t from = 0; rc == 0 && from < probe->world; from++)
		for (uint32_t to = 0; rc == 0 && to < probe->world; to++)
			for (uint32_t rail = 0; rc == 0 && rail < NICS_MAX; rail++) {
				const struct pair_result *pair = pair_at(probe, from, to, rail);
				if (!pair->joined || pair->state == PAIR_BAD)
					continue;
				if (probe->rank == 0)
					progress_line_say(&line,
							  "rank %u to rank %u of %u, rail %u", from,
							  to, probe->world, rail);
				rc = step(probe, doctor, from, to, rail, err);
				tried += pair->state == PAIR_GOOD;
			}
	progress_line_end(&line);
	if (rc == 0 && tried > 0)
		doctor_say(doctor, HEALTH_OK, "probe", "", "",
			   "%u pairs: writes of 8 B to 1 MiB arrived whole, with 32 bits of "
			   "immediate",
			   tried);
	return rc;
}

/* ------------------------------------------------------------------------- crowds */

/* As many ops for each rail that all together take about a tenth of a second. */
static uint32_t crowd_ops(const struct probe *probe)
{
	size_t total = (size_t)probe->world * probe->world * NICS_MAX;
	uint64_t slowest = UINT64_MAX;
	for (size_t i = 0; i < total; i++)
		if (probe->pairs[i].state == PAIR_GOOD)
			slowest = MIN(slowest, probe->pairs[i].bytes_per_s);
	if (slowest == UINT64_MAX)
		return 0;
	double ops = (double)slowest * CROWD_SECONDS / (1 << 20) / (probe->world - 1);
	return ops < CROWD_OPS_MIN ? CROWD_OPS_MIN : (uint32_t)MIN(ops, CROWD_OPS_MAX);
}

/* Ranks don't leave a round at the same moment, so the slowest one's time is everybody's: a late
 * receiver finds the bytes there and would seem to have got them in no time. */
static void crowd_take(struct probe *probe, struct doctor *doctor, uint32_t target,
		       struct crowd_result *results, struct reader *parts)
{
	uint64_t slowest_ns = 0;

	for (uint32_t i = 0; i < probe->world; i++) {
		char text[PROBE_TEXT_BYTES];
		uint64_t bytes = read_u64(&parts[i]);
		uint64_t ns = read_u64(&parts[i]);
		slowest_ns = MAX(slowest_ns, ns);
		read_text(&parts[i], text, sizeof(text));
		if (target == UINT32_MAX || target == i)
			results[i].bytes = bytes;
		if (text[0] != '\0')
			doctor_say(
				doctor, HEALTH_PROBLEM, "probe",
				"an update writes from many to many at once",
				"see flow control (RoCE: PFC or ECN on every switch), the fd limit "
				"and memory",
				"rank %u (%s), %s: %s", i, probe->ranks[i].host,
				target == UINT32_MAX ? "all to all" : "incast", text);
	}
	for (uint32_t i = 0; i < probe->world; i++)
		if (target == UINT32_MAX || target == i)
			results[i].ns = slowest_ns;
}

/* All write to all, or all to one (target). */
static int crowd(struct probe *probe, struct doctor *doctor, uint32_t target, uint32_t ops,
		 struct crowd_result *results, struct ws_error *err)
{
	struct wire **wires = mem_alloc((size_t)probe->world * NICS_MAX * sizeof(*wires));
	struct writer mine = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct reader parts[PROBE_RANKS_MAX];
	struct ws_error why = {0};
	uint64_t until = deadline_in_ms(probe->options.step_ms), ns = 0, imms = 0;
	uint32_t count = 0, me = probe->rank;

	for (uint32_t other = 0; wires != NULL && other < probe->world; other++)
		for (uint32_t rail = 0; rail < NICS_MAX; rail++) {
			if ((target == UINT32_MAX || target == other) &&
			    pair_at(probe, me, other, rail)->state == PAIR_GOOD)
				wires[count++] = wire_at(probe, other, rail);
			if ((target == UINT32_MAX || target == me) &&
			    pair_at(probe, other, me, rail)->state == PAIR_GOOD)
				imms += ops;
		}
	int rc = wires == NULL ? ws_fail(&why, -ENOMEM, "no memory for %u wires", probe->world)
			       : wires_crowd(wires, count, ops, probe->nics, probe->nic_count, imms,
					     until, &ns, &why);
	mem_free(wires);
	write_u64(&mine, imms << 20);
	write_u64(&mine, ns);
	write_text(&mine, rc != 0 ? why.text : "");
	rc = probe_share(probe, &mine, parts, err);
	writer_release(&mine);
	if (rc == 0)
		crowd_take(probe, doctor, target, results, parts);
	return rc;
}

static int probe_crowds(struct probe *probe, struct doctor *doctor, struct ws_error *err)
{
	uint32_t ops = probe->world > 2 ? crowd_ops(probe) : 0;
	int rc = 0;

	if (ops == 0)
		return 0;
	rc = crowd(probe, doctor, UINT32_MAX, ops, probe->all, err);
	for (uint32_t i = 0; rc == 0 && i < probe->world; i++)
		rc = crowd(probe, doctor, i, ops, probe->incast, err);
	return rc;
}

/* ------------------------------------------------------------------------ the whole */

struct probe *probe_run(struct doctor *doctor, const struct probe_options *options)
{
	struct probe *probe = probe_make(options);
	struct ws_error err = {0};

	if (probe == NULL) {
		doctor->out_of_memory = true;
		return NULL;
	}
	probe_open_nics(probe, doctor);
	int rc = meeting_open(&probe->meeting, options->launch, options->hub, options->key_file,
			      deadline_in_ms(options->start_ms), &err);
	if (rc == 0)
		rc = probe_hello(probe, doctor, &err);
	if (rc == 0)
		rc = probe_join(probe, doctor, &err);
	if (rc == 0)
		rc = probe_pairs(probe, doctor, &err);
	if (rc == 0)
		rc = probe_crowds(probe, doctor, &err);
	if (rc == 0)
		probe_judge_speed(probe, doctor);
	else
		doctor_say(doctor, HEALTH_PROBLEM, "probe",
			   "ranks that don't find each other can't share an update",
			   "start all of them, with the same key and address; --alone leaves the "
			   "probe out",
			   "%s", err.text);
	return probe;
}

bool probe_has_met(const struct probe *probe)
{
	return probe != NULL && probe->met;
}

uint32_t probe_world(const struct probe *probe)
{
	return probe->met ? probe->world : 1;
}
