/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a NIC.  One that is lost or whose port goes down is out of use at once: nothing more
 * is posted to it, and addresses leave its place empty.  It comes back between two attempts, after
 * a time that doubles each time it went out shortly before: a link that flaps mustn't keep a run
 * from getting on.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/engine/engine_internal.h"

#define STEADY_NS     UINT64_C(500000000) /* a port must be up, or a try to open waits */
#define DOUBLINGS_MAX 6u		  /* at most 32 s */
#define RAIL_TEXT_MAX (NIC_TROUBLE_MAX + 16)

struct nic_speed engine_rail_of(const struct nic *nic)
{
	return (struct nic_speed){
		.subnet = nic->same_host ? 0 : digest_bytes(nic->subnet, strlen(nic->subnet), 0),
		.mbps = nic->mbps};
}

bool engine_nic_is_in_use(const struct engine *engine, uint32_t index)
{
	return !engine->nics[index].out;
}

uint32_t engine_rails(const struct engine *engine, struct nic_speed rails_out[NICS_MAX])
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		if (!engine->nics[i].out)
			rails_out[count++] = engine_rail_of(engine_nic(engine, i));
	return count;
}

const char *rail_trouble(const struct engine *engine, uint32_t index)
{
	const char *why = engine->nics[index].why.text;
	return why[0] != '\0' ? why : engine_nic(engine, index)->trouble;
}

/* "is down: port 1 is down", "left out to 'rollout 0.0' for 8 s: .."; empty: in use for all. */
static void rail_text(const struct engine *engine, uint32_t index, char text_out[RAIL_TEXT_MAX])
{
	const struct engine_nic *nic = &engine->nics[index];
	const char *trouble = rail_trouble(engine, index);
	if (nic->out)
		snprintf(text_out, RAIL_TEXT_MAX, "is %s%s%s", nic->lost ? "lost" : "down",
			 trouble[0] != '\0' ? ": " : "", trouble);
	else
		doubts_text(engine, index, text_out, RAIL_TEXT_MAX);
}

void engine_rails_text(const struct engine *engine, char *text_out, size_t bytes)
{
	const size_t room = bytes - sizeof("; running on 16 of 16 NICs");
	uint32_t in_use = 0;
	size_t used = 0;
	text_out[0] = '\0';
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		char text[RAIL_TEXT_MAX];
		rail_text(engine, i, text);
		in_use += engine->nics[i].out ? 0 : 1;
		if (text[0] != '\0')
			snprintf(text_out + used, room - used, "%sNIC '%s' %s",
				 used > 0 ? ", " : "", engine_nic(engine, i)->name, text);
		used += strlen(text_out + used);
	}
	if (in_use < engine->nic_count)
		snprintf(text_out + used, bytes - used, "; running on %u of %u NICs", in_use,
			 engine->nic_count);
}

bool engine_rails_news(const struct engine *engine, char *text_out, size_t bytes)
{
	engine_rails_text(engine, text_out, bytes);
	bool degraded = text_out[0] != '\0';
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		const char *trouble = rail_trouble(engine, i);
		size_t used = strlen(text_out);
		if (!engine->nics[i].out && trouble[0] != '\0')
			snprintf(text_out + used, bytes - used, "%sNIC '%s': %s",
				 used > 0 ? "; " : "", engine_nic(engine, i)->name, trouble);
	}
	return degraded;
}

/* Some peer is to be reached over it. */
static bool is_needed(const struct engine *engine, uint32_t index)
{
	for (uint32_t p = 0; p < engine->peer_count; p++)
		if (engine->peers[p]->rails[index].paired)
			return true;
	return false;
}

uint32_t rail_out_of_use(const struct engine *engine)
{
	for (uint32_t i = 0; i < engine->nic_count; i++)
		if (engine->nics[i].out && is_needed(engine, i))
			return i;
	return NONE;
}

void rail_out(struct engine *engine, uint32_t index, bool lost, int status)
{
	struct engine_nic *nic = &engine->nics[index];
	uint64_t now = clock_ns();
	if (lost && !nic->lost && nic->nic->trouble[0] == '\0')
		ws_fail(&nic->why, status, "%s", strerror(-status));
	nic->lost = nic->lost || lost;
	if (nic->out)
		return;
	nic->out = nic->was_out = true;
	if (now - nic->since_ns > CALM_NS)
		nic->doublings = 0;
	nic->wait_ns = STEADY_NS << nic->doublings;
	nic->doublings = MIN(nic->doublings + 1, DOUBLINGS_MAX);
	nic->since_ns = now;
	if (is_needed(engine, index))
		engine_emit(engine, &(struct engine_event){.kind = ENGINE_NIC_LOST,
							   .nic = index,
							   .status = status});
}

void rail_op_failed(struct engine *engine, uint32_t nic, const struct op_slot *slot,
		    const struct event *event)
{
	const struct engine_event failed = {.kind = ENGINE_OP_FAILED,
					    .peer = slot->peer,
					    .nic = nic,
					    .status = event->status,
					    .reason = event->reason,
					    .op_id = slot->op_id};
	slot->peer->broken = true;
	if (engine->fencing)
		return;
	doubt_note(engine, slot->peer, nic, slot->posted_ns, engine_op_reason(&failed));
	if (!slot->peer->dropped)
		engine_emit(engine, &failed);
}

/* A lost NIC reports nothing more: what it still had ends with it. */
void rail_give_up(struct engine *engine, uint32_t index)
{
	struct engine_nic *nic = &engine->nics[index];
	if (!nic->lost || nic->nic == NULL)
		return;
	nic->was = *nic->nic;
	nic_close(nic->nic);
	nic->nic = NULL;
	post_forget(engine, index, NULL);
	for (uint32_t p = 0; p < engine->peer_count; p++)
		engine->peers[p]->rails[index] = (struct rail){0};
	regions_forget(engine, index);
}

/* nic->why says what went wrong. */
static int reopen(struct engine *engine, uint32_t index)
{
	struct engine_nic *nic = &engine->nics[index];
	int rc = nic_open(&nic->nic, nic->transport, nic->device, &nic->why);
	if (rc == 0 && nic->nic->op_bytes_max < engine->op_bytes)
		rc = ws_fail(&nic->why, -ENOSPC, "it takes no ops of %llu bytes any more",
			     (unsigned long long)engine->op_bytes);
	if (rc == 0)
		rc = regions_register(engine, index, &nic->why);
	if (rc != 0) {
		nic_close(nic->nic);
		nic->nic = NULL;
		return rc;
	}
	nic->limit = MIN(nic->limit, nic->nic->ops_in_flight_max);
	nic->why = (struct ws_error){0};
	return 0;
}

static void rail_mend(struct engine *engine, uint32_t index, uint64_t now)
{
	struct engine_nic *nic = &engine->nics[index];
	rail_give_up(engine, index);
	if (nic->nic != NULL && nic->nic->down)
		nic->since_ns = now;
	if (now - nic->since_ns < nic->wait_ns)
		return;
	nic->since_ns = now;
	if (nic->nic == NULL && reopen(engine, index) != 0)
		return;
	nic->lost = false;
	nic->out = nic->nic->down;
	nic->life = ++engine->lives;
	doubts_forget(engine, index);
}

void engine_rails_mend(struct engine *engine)
{
	uint64_t now = clock_ns();
	if (engine->imm.armed || engine->fencing)
		return;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		if (engine->nics[i].out)
			rail_mend(engine, i, now);
	doubts_mend(engine, now);
}
