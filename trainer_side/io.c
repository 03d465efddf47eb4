/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's I/O thread: it alone talks to the hub and the NICs.  Each turn takes what the hub
 * said, what the engine did, what the caller asks, and then waits until one of them moves.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trainer_side/mailbox.h"
#include "trainer_side/report.h"
#include "trainer_side/trainer_internal.h"

#define MEMBER_EVENTS_A_TURN 64
#define TURN_NS		     UINT64_C(20000000) /* deadlines are looked at as often */
#define IDLE_NS		     UINT64_C(100000000)
#define RAILS_NS	     UINT64_C(1000000)
#define CLOSE_NS	     UINT64_C(1500000000) /* for the fence at the end */

/* ---------------------------------------------------------------- the hub's events */

static void member_event_take(struct ws_trainer *trainer, const struct member_event *event)
{
	switch (event->kind) {
	case MEMBER_NOTHING:
	case MEMBER_NEXT_GONE:
		break;
	case MEMBER_QUIET:
		trainer_wire_quiet(trainer, event->generation);
		break;
	case MEMBER_REPLICAS:
		/* At once: a roster may follow, which knows other replicas. */
		if (trainer->push.state == PUSH_JOINED && !trainer->push.over_heard)
			report_replicas(trainer);
		push_replica_gone(trainer);
		push_look(trainer);
		break;
	case MEMBER_ROSTER:
		trainer->all_wired = false;
		trainer_wire_roster(trainer, event);
		break;
	case MEMBER_PAIR:
		trainer_wire_pair(trainer, event);
		break;
	case MEMBER_ALL_WIRED:
		trainer->all_wired = true;
		break;
	case MEMBER_READY:
		push_ready(trainer, event);
		break;
	case MEMBER_WORD:
		if (event->word != WORD_BEGIN)
			break;
		trainer->begun_attempt = event->attempt;
		trainer->begun_version = event->version;
		push_begun(trainer);
		break;
	case MEMBER_DROPPED:
		push_dropped(trainer, &event->error);
		if (member_rejoin(trainer->member, &trainer->over) != 0)
			trainer->is_over = true;
		break;
	case MEMBER_HUB_LOST:
		trainer->hub_lost = true;
		break;
	case MEMBER_HUB_FOUND:
		trainer->hub_lost = false;
		break;
	case MEMBER_OVER:
		trainer->over = event->error;
		trainer->is_over = true;
		break;
	}
}

/* Whether something happened. */
static bool member_turn(struct ws_trainer *trainer)
{
	struct member_event event;

	for (int i = 0; i < MEMBER_EVENTS_A_TURN && !trainer->is_over; i++) {
		member_step(trainer->member, &event);
		if (event.kind == MEMBER_NOTHING)
			return i > 0;
		member_event_take(trainer, &event);
	}
	return true;
}

/* ---------------------------------------------------------------- NICs */

/* What is out of use is said at once; what may come back does so between two attempts.  A turn in
 * which nothing happened is looked at only now and then: there may be a million in a second. */
static void rails_turn(struct ws_trainer *trainer, bool happened)
{
	uint64_t now = clock_ns();
	struct member_rails said = {.nic_count = trainer->devices.count};
	char trouble[MEMBER_TROUBLE_BYTES];

	if (trainer->engine == NULL || trainer->is_over ||
	    (!happened && now - trainer->rails_ns < RAILS_NS))
		return;
	trainer->rails_ns = now;
	engine_rails_mend(trainer->engine);
	said.count = engine_rails(trainer->engine, said.rail);
	said.rewires = engine_rewires(trainer->engine);
	bool degraded = engine_rails_news(trainer->engine, trouble, sizeof(trouble));
	member_say_rails(trainer->member, &said, trouble, degraded);
}

/* ---------------------------------------------------------------- the engine's events */

/* Which of my sends to a peer has this op id there; UINT32_MAX: none. */
static uint32_t send_of_op(const struct ws_trainer *trainer, const struct engine_peer *peer,
			   uint32_t op_id)
{
	const struct wire *wire = &trainer->wire;

	for (uint32_t i = 0; i < wire->program.send_count; i++) {
		const struct send *send = &wire->program.sends[i];
		uint64_t count = engine_op_count(send->bytes, send->op_bytes);
		if (send->peer == peer && op_id >= send->first_op_id &&
		    op_id - send->first_op_id < count)
			return i;
	}
	return UINT32_MAX;
}

static uint32_t member_of_peer(const struct ws_trainer *trainer, const struct engine_peer *peer)
{
	for (uint32_t i = 0; i < trainer->wire.pair_count; i++)
		if (peer != NULL && trainer->wire.pairs[i].peer == peer)
			return trainer->wire.pairs[i].member;
	for (uint32_t i = 0; i < trainer->wire.source_count; i++)
		if (peer != NULL && trainer->wire.sources[i].peer == peer)
			return trainer->wire.sources[i].member;
	return UINT32_MAX;
}

static const char *nic_name(const struct ws_trainer *trainer, uint32_t nic)
{
	return nic < engine_nic_count(trainer->engine) ? engine_nic(trainer->engine, nic)->name
						       : "no NIC";
}

static void op_failed(struct ws_trainer *trainer, const struct engine_event *event)
{
	const struct push *push = &trainer->push;
	const struct wire *wire = &trainer->wire;
	uint32_t send = send_of_op(trainer, event->peer, event->op_id);
	uint32_t about = member_of_peer(trainer, event->peer);
	char name[64];
	struct ws_error why;

	/* Of a wiring that is being closed, or after the end: expected. */
	if (push->state != PUSH_JOINED || wire->state != WIRE_WIRED)
		return;
	ws_fail(&why, event->status == -EPROTO ? -EPROTO : -EIO,
		"the write of %sparam '%s' (bucket '%s', version %llu) to %s by NIC '%s' "
		"failed: %s",
		about < trainer->world ? "maxima of " : "",
		send == UINT32_MAX ? "?" : trainer->params.params[wire->send_param[send]].name,
		send == UINT32_MAX
			? "?"
			: plan_bucket_name(trainer->source.plan, wire->send_bucket[send]),
		(unsigned long long)push->version, trainer_wire_member_name(trainer, about, name),
		nic_name(trainer, event->nic), engine_op_reason(event));
	/* By my own NIC's fault no peer is dropped. */
	bool own = event->nic < engine_nic_count(trainer->engine) &&
		   !engine_nic_is_in_use(trainer->engine, event->nic);
	member_say_failure(trainer->member, own ? FAILURE_ATTEMPT : FAILURE_OP, push->attempt,
			   about, &why);
	/* The bytes had landed, but this send is never done otherwise. */
	if (push->over_heard && !push->sent)
		trainer_wire_shut(trainer);
}

static void attempt_fail(struct ws_trainer *trainer, const struct ws_error *why)
{
	if (trainer->push.state == PUSH_JOINED && !trainer->push.over_heard)
		member_say_failure(trainer->member, FAILURE_ATTEMPT, trainer->push.attempt,
				   UINT32_MAX, why);
}

/* A write nobody expected: my tables may be wrong, so nothing that was made with them may count. */
static void stray_take(struct ws_trainer *trainer, const struct engine_event *event)
{
	uint32_t from = member_of_peer(trainer, event->peer);
	char name[MEMBER_NAME_BYTES_MAX];
	struct ws_error why;

	ws_fail(&why, -EPROTO,
		"fence broken: a write came %s, from %s by NIC '%s' (immediate %08x, attempt "
		"%llu)",
		engine_stray_text(event->stray),
		from == UINT32_MAX ? "an unknown member"
				   : trainer_wire_member_name(trainer, from, name),
		nic_name(trainer, event->nic), event->imm,
		(unsigned long long)trainer->push.attempt);
	attempt_fail(trainer, &why);
}

static void digest_wrong(struct ws_trainer *trainer, const struct engine_event *event)
{
	const struct source *source = source_of_receive(trainer, event->receive);
	uint32_t bucket = trainer->wire.program.receives[event->receive].tag;
	char name[MEMBER_NAME_BYTES_MAX];
	struct ws_error why;

	ws_fail(&why, -EIO,
		"maxima of bucket '%s' from %s changed on the way (digest %016llx, expected "
		"%016llx, version %llu)",
		plan_bucket_name(trainer->source.plan, bucket),
		trainer_wire_member_name(trainer, source != NULL ? source->member : UINT32_MAX,
					 name),
		(unsigned long long)event->got, (unsigned long long)event->want,
		(unsigned long long)trainer->push.version);
	attempt_fail(trainer, &why);
}

static void engine_event_take(struct ws_trainer *trainer, const struct engine_event *event)
{
	struct ws_error why;

	switch (event->kind) {
	case ENGINE_SENDS_DONE:
		push_sent(trainer);
		break;
	case ENGINE_OP_FAILED:
		op_failed(trainer, event);
		break;
	case ENGINE_STRAY:
		stray_take(trainer, event);
		break;
	case ENGINE_NIC_LOST:
		/* What was sent isn't touched by it. */
		why.code = -EIO;
		engine_rails_text(trainer->engine, why.text, sizeof(why.text));
		if (!trainer->push.sent)
			attempt_fail(trainer, &why);
		break;
	case ENGINE_DIGEST_WRONG:
		digest_wrong(trainer, event);
		break;
	case ENGINE_GPU_FAILED:
		ws_fail(&why, event->status, "trainer %u: %s", trainer->rank, event->reason);
		attempt_fail(trainer, &why);
		break;
	case ENGINE_RECEIVE_DONE:
		break; /* it has raised my tables and opened a gate: the engine goes on */
	}
}

/* Whether something happened. */
static bool engine_turn(struct ws_trainer *trainer)
{
	struct engine_event events[32];

	if (trainer->engine == NULL)
		return false;
	int count = engine_step(trainer->engine, events, (int)ARRAY_SIZE(events));
	for (int i = 0; i < count; i++)
		engine_event_take(trainer, &events[i]);
	return count > 0;
}

/* ---------------------------------------------------------------- the loop */

/* Between updates nothing is polled. */
static void wait_turn(struct ws_trainer *trainer)
{
	int fds[NICS_MAX + 2], count = 0;
	uint64_t most_ns = UINT64_MAX, dropped;

	if (trainer->engine != NULL)
		count = engine_wait_fds(trainer->engine, fds, NICS_MAX + 1, &most_ns);
	fds[count++] = trainer->wake_fd;
	bool busy = trainer->push.state != PUSH_NONE || trainer->wire.state == WIRE_FENCING;
	if (busy)
		most_ns = MIN(most_ns, TURN_NS);
	else if (most_ns > 0)
		most_ns = IDLE_NS;
	member_wait(trainer->member, fds, count, clock_ns() + most_ns);
	(void)!read(trainer->wake_fd, &dropped, sizeof(dropped));
}

void *trainer_io_main(void *arg)
{
	struct ws_trainer *trainer = arg;

	/* An event loop: it ends when close says stop. */
	while (!atomic_load(&trainer->stop)) {
		bool happened = member_turn(trainer);
		happened |= engine_turn(trainer);
		rails_turn(trainer, happened);
		trainer_wire_step(trainer);
		push_request(trainer);
		push_step(trainer);
		push_request(trainer);
		wait_turn(trainer);
	}
	trainer_wire_close(trainer, clock_ns() + CLOSE_NS);
	return NULL;
}
