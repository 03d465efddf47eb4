/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe's data path: one rank's part of a step.  A SENT is not a delivery, so whatever is
 * measured ends with an immediate that came back from the other end.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cli/probe_inside.h"

#define HALF	      (PROBE_MEMORY_BYTES / 2)
#define OP_BYTES      (1u << 20)
#define DEPTH	      16u
#define PINGS_MIN     10
#define PINGS_NS      300000000u
#define OPS_MIN	      8
#define OPS_MAX	      64
#define OPS_NS	      200000000u
#define EVENTS_EACH   16
#define SPINS_MAX     64
#define EMPTY_PATTERN 0xee

/* Each size has a place of its own and an immediate that a narrower one can't stand for. */
static const struct {
	uint64_t offset, bytes;
	uint32_t imm;
} sizes[PROBE_SIZE_COUNT] = {
	{0, 8, 0xffffffff},
	{4096, 4096, 0x80000001},
	{65536, 65536, 0},
	{OP_BYTES, OP_BYTES, 0x5aa5c33c},
};

/* What the other immediates say. */
enum {
	IMM_PING = 0x11000000,
	IMM_PONG = 0x12000000,
	IMM_DATA = 0x13000000,
	IMM_END = 0x14000000, /* and how many DATA there were */
	IMM_DONE = 0x15000000,
	IMM_GOOD = 0x16000000,
	IMM_BAD = 0x17000000,
	IMM_CROWD = 0x18000000,
};

void wire_begin(struct wire *wire, bool answers, uint64_t until_ns)
{
	wire->step++;
	wire->answers = answers;
	wire->until_ns = until_ns;
	wire->in_flight = wire->imm_count = 0;
}

/* Whether only the end that answers sends it, or only the end that writes.  What is neither is
 * for whoever expects something else. */
static bool is_answer(uint32_t imm)
{
	return imm == IMM_PONG || imm == IMM_DONE || imm == IMM_GOOD || imm == IMM_BAD;
}

static bool is_written(uint32_t imm)
{
	bool known = imm == IMM_PING || imm == IMM_DATA || imm == IMM_CROWD ||
		     (imm & 0xff000000) == IMM_END;

	for (uint32_t i = 0; i < PROBE_SIZE_COUNT; i++)
		known |= imm == sizes[i].imm;
	return known;
}

static int op_failed(const struct wire *wire, const struct event *event, struct ws_error *err)
{
	return ws_fail(err, event->status, "a write on '%s' failed: %s%s%s", wire->nic->name,
		       event->reason != NULL ? event->reason : strerror(-event->status),
		       wire->nic->trouble[0] != '\0' ? "; " : "", wire->nic->trouble);
}

/* Takes events of the wire's NIC; what isn't of the wire or of this step is an earlier step's and
 * is dropped. */
static int wire_poll(struct wire *wire, struct ws_error *err)
{
	struct event events[EVENTS_EACH];
	int count = wire->nic->transport->poll(wire->nic, events, EVENTS_EACH);
	int rc = 0;

	if (count < 0)
		return ws_fail(err, count, "'%s' is lost: %s", wire->nic->name,
			       wire->nic->trouble[0] != '\0' ? wire->nic->trouble
							     : strerror(-count));
	for (int i = 0; i < count; i++) {
		bool ended = events[i].kind == EVENT_SENT || events[i].kind == EVENT_FAILED;
		if (events[i].peer != NULL && events[i].peer != wire->peer)
			continue;
		if (ended && events[i].id != wire->step)
			continue;
		switch (events[i].kind) {
		case EVENT_SENT:
			wire->in_flight--;
			break;
		case EVENT_FAILED:
			wire->in_flight--;
			if (rc == 0)
				rc = op_failed(wire, &events[i], err);
			break;
		case EVENT_IMM:
			if (wire->answers ? is_answer(events[i].imm) : is_written(events[i].imm))
				break;
			if (wire->imm_count < ARRAY_SIZE(wire->imms))
				wire->imms[wire->imm_count++] = events[i].imm;
			break;
		case EVENT_NIC:
			break;
		}
	}
	return rc != 0 ? rc : count;
}

/* One look, or a step aside for whoever else needs this core; -ETIMEDOUT, what for. */
static int wire_wait(struct wire *wire, uint32_t *spins, const char *what, struct ws_error *err)
{
	int rc = wire_poll(wire, err);
	if (rc < 0)
		return rc;
	*spins = rc > 0 ? 0 : *spins + 1;
	if (*spins < SPINS_MAX)
		return 0;
	if (clock_ns() > wire->until_ns)
		return ws_fail(err, -ETIMEDOUT, "%s didn't come by '%s' in time%s%s", what,
			       wire->nic->name, wire->nic->trouble[0] != '\0' ? ": " : "",
			       wire->nic->trouble);
	sched_yield();
	return 0;
}

static int wire_post(struct wire *wire, uint64_t offset, uint64_t bytes, uint32_t imm,
		     struct ws_error *err)
{
	const struct op op = {
		.peer = wire->peer,
		.local = wire->memory + offset,
		.local_mr = wire->mr,
		.remote = wire->remote_base + HALF + offset,
		.remote_key = wire->remote_key,
		.bytes = bytes,
		.id = wire->step,
		.imm = imm,
	};
	int taken = 0, rc = 0;
	uint32_t spins = 0;

	while (rc == 0 && taken == 0) {
		taken = wire->nic->transport->post(wire->nic, &op, 1);
		if (taken < 0)
			return ws_fail(err, taken, "'%s' takes no write: %s", wire->nic->name,
				       strerror(-taken));
		if (taken == 0)
			rc = wire_wait(wire, &spins, "room for a write", err);
	}
	wire->in_flight += taken > 0;
	return rc;
}

static int wire_flush(struct wire *wire, struct ws_error *err)
{
	uint32_t spins = 0;
	int rc = 0;
	while (rc == 0 && wire->in_flight > 0)
		rc = wire_wait(wire, &spins, "the end of a write", err);
	return rc;
}

static int wire_next(struct wire *wire, const char *what, uint32_t *imm_out, struct ws_error *err)
{
	uint32_t spins = 0;
	int rc = 0;
	while (rc == 0 && wire->imm_count == 0)
		rc = wire_wait(wire, &spins, what, err);
	if (rc != 0)
		return rc;
	*imm_out = wire->imms[0];
	memmove(wire->imms, wire->imms + 1, --wire->imm_count * sizeof(wire->imms[0]));
	return 0;
}

static int wire_expect(struct wire *wire, const char *what, uint32_t want, struct ws_error *err)
{
	uint32_t imm = 0;
	int rc = wire_next(wire, what, &imm, err);
	if (rc == 0 && imm == IMM_BAD)
		rc = ws_fail(err, -EBADMSG,
			     "the other end says that what came isn't what was written");
	else if (rc == 0 && imm != want)
		rc = ws_fail(err, -EBADMSG,
			     "immediate 0x%08" PRIx32 " came where 0x%08" PRIx32 " was due (%s)",
			     imm, want, what);
	return rc;
}

/* ----------------------------------------------------------------------- writing */

static void fill(uint8_t *memory, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes; i += sizeof(seed)) {
		uint64_t word = mix64(seed + i);
		memcpy(memory + i, &word, sizeof(word));
	}
}

static int write_sizes(struct wire *wire, uint64_t seed, struct pair_result *result,
		       struct ws_error *err)
{
	uint64_t begin = clock_ns();
	int rc = 0;

	for (uint32_t i = 0; i < PROBE_SIZE_COUNT; i++)
		fill(wire->memory + sizes[i].offset, sizes[i].bytes, seed + i);
	for (uint32_t i = 0; rc == 0 && i < PROBE_SIZE_COUNT; i++)
		rc = wire_post(wire, sizes[i].offset, MIN(sizes[i].bytes, wire->nic->op_bytes_max),
			       sizes[i].imm, err);
	if (rc == 0)
		rc = wire_flush(wire, err);
	if (rc == 0)
		rc = wire_expect(wire, "the answer to writes of 8 B to 1 MiB", IMM_GOOD, err);
	result->first_ns = clock_ns() - begin;
	return rc;
}

static int write_pings(struct wire *wire, struct pair_result *result, struct ws_error *err)
{
	uint64_t took[PROBE_PINGS_MAX], begin = clock_ns();
	uint32_t count = 0;
	int rc = 0;

	while (rc == 0 && count < PROBE_PINGS_MAX &&
	       (count < PINGS_MIN || clock_ns() - begin < PINGS_NS)) {
		uint64_t sent = clock_ns();
		rc = wire_post(wire, 0, 8, IMM_PING, err);
		if (rc == 0)
			rc = wire_expect(wire, "the answer to a write of 8 B", IMM_PONG, err);
		took[count++] = (clock_ns() - sent) / 2;
	}
	qsort(took, count, sizeof(took[0]), probe_by_value);
	result->p50_ns = took[count / 2];
	result->p99_ns = took[count * 99 / 100];
	return rc;
}

static int write_data(struct wire *wire, struct pair_result *result, struct ws_error *err)
{
	uint64_t begin = clock_ns(), op_bytes = MIN(OP_BYTES, wire->nic->op_bytes_max);
	uint32_t depth = MIN(DEPTH, wire->nic->ops_in_flight_max), count = 0, spins = 0;
	int rc = wire_flush(wire, err);

	while (rc == 0 && count < OPS_MAX && (count < OPS_MIN || clock_ns() - begin < OPS_NS)) {
		if (wire->in_flight >= depth) {
			rc = wire_wait(wire, &spins, "the end of a write", err);
			continue;
		}
		rc = wire_post(wire, OP_BYTES, op_bytes, IMM_DATA, err);
		count++;
	}
	if (rc == 0)
		rc = wire_post(wire, 0, 8, IMM_END | count, err);
	if (rc == 0)
		rc = wire_expect(wire, "the answer to writes of 1 MiB", IMM_DONE, err);
	uint64_t ns = MAX(clock_ns() - begin, 1);
	result->bytes_per_s = (uint64_t)((double)(count * op_bytes) * 1e9 / (double)ns);
	return rc == 0 ? wire_flush(wire, err) : rc;
}

int wire_probe(struct wire *wire, uint64_t seed, struct pair_result *result, struct ws_error *err)
{
	int rc = write_sizes(wire, seed, result, err);
	if (rc == 0)
		rc = write_pings(wire, result, err);
	if (rc == 0)
		rc = write_data(wire, result, err);
	result->state = rc == 0 ? PAIR_GOOD : PAIR_BAD;
	return rc;
}

/* --------------------------------------------------------------------- answering */

void wire_clear(struct wire *wire)
{
	memset(wire->memory + HALF, EMPTY_PATTERN, HALF);
}

/* The immediates may come in any order; each must come once, whole. */
static int check_imms(const uint32_t *imms, struct ws_error *err)
{
	for (uint32_t i = 0; i < PROBE_SIZE_COUNT; i++) {
		uint32_t count = 0, other = 0;
		for (uint32_t k = 0; k < PROBE_SIZE_COUNT; k++) {
			bool meant = false;
			for (uint32_t n = 0; n < PROBE_SIZE_COUNT; n++)
				meant |= imms[k] == sizes[n].imm;
			count += imms[k] == sizes[i].imm;
			other = meant ? other : imms[k];
		}
		if (count != 1)
			return ws_fail(err, -EBADMSG,
				       "immediate 0x%08" PRIx32 " came %u times (0x%08" PRIx32
				       " came, too): immediates must have all of their 32 bits",
				       sizes[i].imm, count, other);
	}
	return 0;
}

static int check_content(const struct wire *wire, uint64_t seed, struct ws_error *err)
{
	for (uint32_t i = 0; i < PROBE_SIZE_COUNT; i++) {
		const uint8_t *at = wire->memory + HALF + sizes[i].offset;
		uint64_t bytes = MIN(sizes[i].bytes, wire->nic->op_bytes_max);
		for (uint64_t k = 0; k < bytes; k += sizeof(seed)) {
			uint64_t want = mix64(seed + i + k);
			if (memcmp(at + k, &want, sizeof(want)) != 0)
				return ws_fail(err, -EBADMSG,
					       "a write of %" PRIu64
					       " bytes has other content from "
					       "byte %" PRIu64 " on",
					       bytes, k);
		}
	}
	return 0;
}

static int answer_sizes(struct wire *wire, uint64_t seed, struct ws_error *err)
{
	uint32_t imms[PROBE_SIZE_COUNT];
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < PROBE_SIZE_COUNT; i++)
		rc = wire_next(wire, "a write of 8 B to 1 MiB", &imms[i], err);
	if (rc != 0)
		return rc;
	rc = check_imms(imms, err);
	if (rc == 0)
		rc = check_content(wire, seed, err);
	int said = wire_post(wire, 0, 8, rc == 0 ? IMM_GOOD : IMM_BAD, rc == 0 ? err : NULL);
	return rc != 0 ? rc : said;
}

int wire_answer(struct wire *wire, uint64_t seed, struct ws_error *err)
{
	uint32_t imm = 0, data = 0, want = UINT32_MAX;
	int rc = answer_sizes(wire, seed, err);

	while (rc == 0 && data != want) {
		rc = wire_next(wire, "the next write", &imm, err);
		if (rc == 0 && imm == IMM_PING)
			rc = wire_post(wire, 0, 8, IMM_PONG, err);
		else if (rc == 0 && imm == IMM_DATA)
			data++;
		else if (rc == 0 && (imm & 0xff000000) == IMM_END)
			want = imm & 0xffffff;
		else if (rc == 0)
			rc = ws_fail(err, -EBADMSG,
				     "immediate 0x%08" PRIx32 " came, which wasn't written, or a "
				     "second time",
				     imm);
	}
	if (rc == 0)
		rc = wire_post(wire, 0, 8, IMM_DONE, err);
	return rc == 0 ? wire_flush(wire, err) : rc;
}

/* ---------------------------------------------------------------------- all at once */

/* The wire that an event's peer belongs to. */
static struct wire *wire_of(struct wire **wires, uint32_t count, const struct peer *peer)
{
	for (uint32_t i = 0; i < count; i++)
		if (wires[i]->peer == peer)
			return wires[i];
	return NULL;
}

static int crowd_poll(struct wire **wires, uint32_t wire_count, struct nic *nic, uint64_t *imms,
		      struct ws_error *err)
{
	struct event events[EVENTS_EACH];
	int count = nic->transport->poll(nic, events, EVENTS_EACH), rc = 0;

	if (count < 0)
		return ws_fail(err, count, "'%s' is lost: %s", nic->name,
			       nic->trouble[0] != '\0' ? nic->trouble : strerror(-count));
	for (int i = 0; i < count; i++) {
		struct wire *wire = wire_of(wires, wire_count, events[i].peer);
		*imms += events[i].kind == EVENT_IMM && events[i].imm == IMM_CROWD;
		bool ended = events[i].kind == EVENT_SENT || events[i].kind == EVENT_FAILED;
		if (!ended || wire == NULL || events[i].id != wire->step)
			continue;
		wire->in_flight--;
		if (rc == 0 && events[i].kind == EVENT_FAILED)
			rc = op_failed(wire, &events[i], err);
	}
	return rc != 0 ? rc : count;
}

/* One more op of this wire, if its NIC takes one; how many there are left of all. */
static int crowd_post(struct wire *wire, uint32_t *left, struct ws_error *err)
{
	const struct op op = {.peer = wire->peer,
			      .local = wire->memory + OP_BYTES,
			      .local_mr = wire->mr,
			      .remote = wire->remote_base + HALF + OP_BYTES,
			      .remote_key = wire->remote_key,
			      .bytes = MIN(OP_BYTES, wire->nic->op_bytes_max),
			      .id = wire->step,
			      .imm = IMM_CROWD};

	if (*left == 0 || wire->in_flight >= MIN(DEPTH, wire->nic->ops_in_flight_max))
		return 0;
	int taken = wire->nic->transport->post(wire->nic, &op, 1);
	if (taken < 0)
		return ws_fail(err, taken, "'%s' takes no write: %s", wire->nic->name,
			       strerror(-taken));
	*left -= (uint32_t)taken;
	wire->in_flight += (uint32_t)taken;
	return taken;
}

int wires_crowd(struct wire **wires, uint32_t wire_count, uint32_t ops_each, struct nic **nics,
		uint32_t nic_count, uint64_t imm_count, uint64_t until_ns, uint64_t *ns_out,
		struct ws_error *err)
{
	uint64_t begin = clock_ns(), imms = 0, busy = 1;
	uint32_t *left = mem_alloc((wire_count + 1) * sizeof(*left));
	int rc = 0;

	if (left == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u wires", wire_count);
	for (uint32_t i = 0; i < wire_count; i++) {
		wire_begin(wires[i], false, until_ns);
		left[i] = ops_each;
	}
	while (rc == 0 && (imms < imm_count || busy > 0)) {
		int moved = 0;
		busy = 0;
		for (uint32_t i = 0; rc >= 0 && i < wire_count; i++) {
			rc = crowd_post(wires[i], &left[i], err);
			moved += rc;
			busy += left[i] + wires[i]->in_flight;
		}
		for (uint32_t i = 0; rc >= 0 && i < nic_count; i++) {
			rc = crowd_poll(wires, wire_count, nics[i], &imms, err);
			moved += rc;
		}
		if (rc < 0)
			break;
		rc = 0;
		if (moved == 0 && clock_ns() > until_ns)
			rc = ws_fail(err, -ETIMEDOUT,
				     "%" PRIu64 " of %" PRIu64 " writes of 1 MiB came in time, "
				     "%" PRIu64 " of its own aren't done",
				     imms, imm_count, busy);
		else if (moved == 0)
			sched_yield();
	}
	mem_free(left);
	*ns_out = clock_ns() - begin;
	return rc;
}
