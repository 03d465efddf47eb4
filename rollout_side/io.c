/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rollout's I/O thread: it alone talks to the hub and the NICs.  What the hub says, the engine
 * does and a hook returned become facts for version.c; what that answers is done here.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rollout_side/rollout_internal.h"

#define MEMBER_EVENTS_A_TURN 64
#define TURN_NS		     UINT64_C(20000000)
#define IDLE_NS		     UINT64_C(100000000)
#define SAY_NS		     ((uint64_t)HUB_BEAT_MS * 1000000u)
#define RAILS_NS	     UINT64_C(1000000)
#define CLOSE_NS	     UINT64_C(1200000000)

void fd_wake(int fd)
{
	uint64_t one = 1;

	/* A full counter is readable already. */
	(void)!write(fd, &one, sizeof(one));
}

/* ---------------------------------------------------------------- doing what version.c says */

static void state_say(struct ws_rollout *rollout)
{
	const struct version *version = &rollout->version;
	struct engine_progress progress = {0};

	if (rollout->engine != NULL)
		engine_progress(rollout->engine, &progress);
	rollout->said_ns = clock_ns();
	/* Poisoned at once, wherever the engine is; a version becomes live in step. */
	if (version->state == RANK_BAD ||
	    (version->inplace && version->live_version == 0 && version->state != RANK_IDLE))
		atomic_store(&rollout->poisoned, true);
	else if (version->state == RANK_LIVE || version->state == RANK_RESUMED)
		atomic_store(&rollout->poisoned, false);
	if (version->live_version == 0 && version->state != RANK_COMMITTED)
		atomic_store(&rollout->live_version, 0);
	if (rollout->is_over)
		return;
	char waits[MEMBER_WAITS_BYTES] = "";
	if (version->state == RANK_READY && rollout->wire.state == WIRE_WIRED &&
	    !receive_missing(rollout, waits, sizeof(waits)) &&
	    !receive_unpacks(rollout, waits, sizeof(waits)) &&
	    !forwards_missing(rollout, waits, sizeof(waits)))
		(void)posts_waits(rollout, waits, sizeof(waits));
	member_say_waiting(rollout->member, waits);
	member_say_forwarded(rollout->member, rollout->bytes_from_rollouts);
	member_say_state(rollout->member, version->state, version->said_attempt,
			 version->live_version,
			 atomic_load_explicit(&rollout->last_step_ns, memory_order_relaxed),
			 progress.bytes_received);
}

static void ready_say(struct ws_rollout *rollout)
{
	uint8_t body[4];
	struct writer out = writer_fixed(body, sizeof(body));
	struct version_actions actions = {0};
	struct ws_error err = {0};

	write_u32(&out, 0); /* the buffer set: there is one */
	rollout->ready_ns = clock_ns();
	if (member_say_ready(rollout->member, rollout->version.attempt, body, (uint32_t)out.count,
			     &err) != 0) {
		version_failed(&rollout->version, &err, &actions);
		actions_apply(rollout, &actions);
	}
}

static void arm(struct ws_rollout *rollout)
{
	struct version_actions actions = {0};
	struct ws_error err = {0};

	int rc = rollout->wire.state != WIRE_WIRED
			 ? ws_fail(&err, -ESTALE, "isn't wired for attempt %llu",
				   (unsigned long long)rollout->version.attempt)
			 : engine_arm(rollout->engine, rollout->version.attempt, &err);
	rollout->wire.written = rollout->wire.written || rc == 0;
	rollout->bytes_from_rollouts = 0;
	if (rc == 0) {
		posts_arm(rollout);
		forwards_armed(rollout);
		engine_rails_text(rollout->engine, rollout->nic_trouble,
				  sizeof(rollout->nic_trouble));
	}
	version_armed(&rollout->version, rc, &err, &actions);
	actions_apply(rollout, &actions);
}

static void hook_post(struct ws_rollout *rollout, const struct version_action *action)
{
	struct hook_slot *slot = &rollout->slot;

	if (action->hook == HOOK_ABORT && !posts_idle(rollout)) {
		rollout->abort_waits = true;
		rollout->abort_action = *action;
		return;
	}
	if (action->hook == HOOK_BEGIN)
		rollout->begin_ns = clock_ns();
	/* Spare memory needs nothing of the engine: no step has to come first. */
	if (action->hook == HOOK_BEGIN && !rollout->inplace && rollout->hooks.on_begin == NULL) {
		struct version_actions actions = {0};
		version_hook_done(&rollout->version, 0, NULL, &actions);
		actions_apply(rollout, &actions);
		return;
	}
	slot->hook = action->hook;
	slot->version = action->version;
	slot->serving_old = action->serving_old;
	slot->why = action->why;
	if (action->hook == HOOK_RESUME) {
		struct engine_progress progress;
		uint32_t digests =
			rollout->wire.rules.wire_digests ? rollout->wire.program.receive_count : 0;
		engine_progress(rollout->engine, &progress);
		slot->report = (struct ws_rollout_report){
			.version = rollout->version.version,
			.attempt = rollout->version.attempt,
			.bytes = progress.bytes_received,
			.bytes_from_rollouts = rollout->bytes_from_rollouts,
			.bytes_forwarded = rollout->wire.bytes_forwarded,
			.ready_ns = rollout->ready_ns - rollout->begin_ns,
			.landed_ns = rollout->landed_ns - rollout->ready_ns,
			.paused_ns = rollout->pause_ns - rollout->landed_ns,
			.copy_ns = rollout->copy_ns,
			.reload_ns = rollout->reload_ns,
			.ring_bytes = rollout->wire.ring_bytes,
			.counter_count = rollout->wire.program.receive_count,
			.digest_count = digests,
			.param_digest = rollout->param_digest,
		};
		posts_report(rollout, &slot->report);
		memcpy(slot->report.nic_trouble, rollout->nic_trouble,
		       sizeof(rollout->nic_trouble));
		slot->report.nic_count = engine_nics(rollout->engine, slot->report.nics);
	}
	atomic_store_explicit(&slot->state, SLOT_POSTED, memory_order_release);
	fd_wake(rollout->step_fd);
}

static void hook_revoke(struct ws_rollout *rollout)
{
	struct version_actions actions = {0};
	int posted = SLOT_POSTED;

	if (!atomic_compare_exchange_strong(&rollout->slot.state, &posted, SLOT_EMPTY))
		return; /* it runs: its end comes by itself */
	version_hook_done(&rollout->version, -ECANCELED, NULL, &actions);
	actions_apply(rollout, &actions);
}

static void rejoin(struct ws_rollout *rollout)
{
	struct ws_error err;

	if (rollout->is_over || member_rejoin(rollout->member, &err) == 0)
		return;
	rollout->is_over = true;
	rollout->over = err;
	atomic_store_explicit(&rollout->over_set, true, memory_order_release);
	fd_wake(rollout->step_fd);
}

void actions_apply(struct ws_rollout *rollout, const struct version_actions *actions)
{
	for (uint32_t i = 0; i < actions->count; i++) {
		const struct version_action *action = &actions->list[i];
		switch (action->act) {
		case ACT_HOOK:
			hook_post(rollout, action);
			break;
		case ACT_REVOKE:
			hook_revoke(rollout);
			break;
		case ACT_ARM:
			arm(rollout);
			break;
		case ACT_END:
			posts_cancel(rollout);
			if (rollout->engine != NULL)
				engine_end(rollout->engine);
			break;
		case ACT_SAY:
			state_say(rollout);
			break;
		case ACT_READY:
			ready_say(rollout);
			break;
		case ACT_FAIL:
			if (!rollout->is_over)
				member_say_failure(rollout->member, action->failure,
						   rollout->version.attempt, UINT32_MAX,
						   &action->why);
			break;
		case ACT_REJOIN:
			rejoin(rollout);
			break;
		}
	}
}

/* ---------------------------------------------------------------- the hub's events */

static void word_take(struct ws_rollout *rollout, const struct member_event *event)
{
	struct version_actions actions = {0};
	struct ws_error why = event->error;
	char missing[256];

	if (event->word == WORD_PAUSE)
		rollout->pause_ns = clock_ns();
	/* Whoever reads why it was aborted wants to know what didn't come. */
	if (event->word == WORD_ABORT && why.code == -ETIMEDOUT &&
	    rollout->version.state == RANK_READY && rollout->wire.state == WIRE_WIRED &&
	    receive_missing(rollout, missing, sizeof(missing)))
		ws_fail_in(&why, why.code, "%s", missing);
	version_word(&rollout->version, event->word, event->attempt, event->version, &why,
		     &actions);
	actions_apply(rollout, &actions);
}

/* The drop that a caller waits for: it has the side to itself once this thread has ended. */
static bool describe_grant(struct ws_rollout *rollout)
{
	int asked = DESCRIBE_ASKED;

	if (!version_is_calm(&rollout->version) ||
	    !atomic_compare_exchange_strong(&rollout->describe, &asked, DESCRIBE_GRANTED))
		return false;
	fd_wake(rollout->step_fd);
	return true;
}

static void member_event_take(struct ws_rollout *rollout, const struct member_event *event)
{
	struct version_actions actions = {0};

	switch (event->kind) {
	case MEMBER_NOTHING:
	case MEMBER_ALL_WIRED:
	case MEMBER_REPLICAS:
		break;
	case MEMBER_READY:
		forward_ready(rollout, event);
		break;
	case MEMBER_NEXT_GONE:
		forwards_next_gone(rollout);
		break;
	case MEMBER_ROSTER:
		rollout_wire_roster(rollout, event);
		break;
	case MEMBER_QUIET:
		rollout_wire_quiet(rollout, event->generation);
		break;
	case MEMBER_PAIR:
		rollout_wire_pair(rollout, event);
		break;
	case MEMBER_WORD:
		word_take(rollout, event);
		break;
	case MEMBER_DROPPED:
		if (describe_grant(rollout))
			break;
		version_dropped(&rollout->version, &event->error, &actions);
		actions_apply(rollout, &actions);
		break;
	case MEMBER_HUB_LOST:
		atomic_store_explicit(&rollout->hub_lost, true, memory_order_release);
		fd_wake(rollout->step_fd);
		break;
	case MEMBER_HUB_FOUND:
		atomic_store_explicit(&rollout->hub_lost, false, memory_order_release);
		break;
	case MEMBER_OVER:
		rollout->over = event->error;
		rollout->is_over = true;
		atomic_store_explicit(&rollout->over_set, true, memory_order_release);
		fd_wake(rollout->step_fd);
		break;
	}
	if (event->kind == MEMBER_ALL_WIRED) {
		atomic_store_explicit(&rollout->wired_once, true, memory_order_release);
		fd_wake(rollout->step_fd);
	}
}

/* Whether something happened. */
static bool member_turn(struct ws_rollout *rollout)
{
	struct member_event event;

	for (int i = 0; i < MEMBER_EVENTS_A_TURN && !rollout->is_over; i++) {
		member_step(rollout->member, &event);
		if (event.kind == MEMBER_NOTHING)
			return i > 0;
		member_event_take(rollout, &event);
	}
	return true;
}

/* ---------------------------------------------------------------- NICs */

/* What is out of use is said at once; what may come back does so between two attempts.  A turn in
 * which nothing happened is looked at only now and then: there may be a million in a second. */
static void rails_turn(struct ws_rollout *rollout, bool happened)
{
	uint64_t now = clock_ns();
	struct member_rails said = {.nic_count = rollout->devices.count};
	char trouble[MEMBER_TROUBLE_BYTES];

	if (rollout->engine == NULL || rollout->is_over ||
	    (!happened && now - rollout->rails_ns < RAILS_NS))
		return;
	rollout->rails_ns = now;
	engine_rails_mend(rollout->engine);
	said.count = engine_rails(rollout->engine, said.rail);
	said.rewires = engine_rewires(rollout->engine);
	bool degraded = engine_rails_news(rollout->engine, trouble, sizeof(trouble));
	member_say_rails(rollout->member, &said, trouble, degraded);
}

/* ---------------------------------------------------------------- the engine's events */

static const char *nic_name(const struct ws_rollout *rollout, uint32_t nic)
{
	return nic < engine_nic_count(rollout->engine) ? engine_nic(rollout->engine, nic)->name
						       : "no NIC";
}

static uint32_t member_of_peer(const struct ws_rollout *rollout, const struct engine_peer *peer)
{
	for (uint32_t i = 0; i < rollout->wire.pair_count; i++)
		if (peer != NULL && rollout->wire.pairs[i].peer == peer)
			return rollout->wire.pairs[i].member;
	return forward_member_of_peer(rollout, peer);
}

static void op_failed(struct ws_rollout *rollout, const struct engine_event *event)
{
	uint32_t about = member_of_peer(rollout, event->peer);
	char name[ROLLOUT_NAME_BYTES];
	struct ws_error why;

	if (rollout->wire.state != WIRE_WIRED || rollout->version.state != RANK_READY)
		return;
	rollout_wire_member_name(rollout, about, name);
	if (forward_member_of_peer(rollout, event->peer) != UINT32_MAX)
		ws_fail(&why, event->status == -EPROTO ? -EPROTO : -EIO,
			"the forward of param '%s' (version %llu) to %s by NIC '%s' failed: %s",
			forward_param_of_op(rollout, event->peer, event->op_id),
			(unsigned long long)rollout->version.version, name,
			nic_name(rollout, event->nic), engine_op_reason(event));
	else
		ws_fail(&why, -EIO, "the credit to %s by NIC '%s' failed (version %llu): %s", name,
			nic_name(rollout, event->nic), (unsigned long long)rollout->version.version,
			engine_op_reason(event));
	/* By my own NIC's fault no peer is dropped. */
	bool own = event->nic < engine_nic_count(rollout->engine) &&
		   !engine_nic_is_in_use(rollout->engine, event->nic);
	member_say_failure(rollout->member, own ? FAILURE_ATTEMPT : FAILURE_OP,
			   rollout->version.attempt, about, &why);
}

static void stray_why(const struct ws_rollout *rollout, const struct engine_event *event,
		      struct ws_error *why)
{
	uint32_t from = member_of_peer(rollout, event->peer);
	char name[ROLLOUT_NAME_BYTES];

	ws_fail(why, -EPROTO,
		"fence broken: a write came %s, from %s by NIC '%s' (immediate %08x, attempt "
		"%llu)",
		engine_stray_text(event->stray),
		from == UINT32_MAX ? "an unknown member"
				   : rollout_wire_member_name(rollout, from, name),
		nic_name(rollout, event->nic), event->imm,
		(unsigned long long)rollout->version.attempt);
}

static void digest_why(const struct ws_rollout *rollout, const struct engine_event *event,
		       struct ws_error *why)
{
	const struct pair *pair = rollout_wire_pair_of_receive(rollout, event->receive);
	char name[ROLLOUT_NAME_BYTES];

	ws_fail(why, -EIO,
		"bytes of bucket '%s' from %s changed on the way (digest %016llx, expected "
		"%016llx, version %llu)",
		plan_bucket_name(rollout->source.plan,
				 rollout->wire.program.receives[event->receive].tag),
		rollout_wire_member_name(rollout, pair != NULL ? pair->member : UINT32_MAX, name),
		(unsigned long long)event->got, (unsigned long long)event->want,
		(unsigned long long)rollout->version.version);
}

static void receive_done(struct ws_rollout *rollout, uint32_t receive)
{
	const struct pair *pair = rollout_wire_pair_of_receive(rollout, receive);

	posts_landed(rollout, receive);
	if (pair != NULL && pair->forwards)
		rollout->bytes_from_rollouts += rollout->wire.program.receives[receive].bytes;
}

static void engine_event_take(struct ws_rollout *rollout, const struct engine_event *event)
{
	struct version_actions actions = {0};
	struct ws_error why;

	switch (event->kind) {
	case ENGINE_RECEIVE_DONE:
		receive_done(rollout, event->receive);
		break; /* landed is looked at in each turn */
	case ENGINE_SENDS_DONE:
		break;
	case ENGINE_OP_FAILED:
		op_failed(rollout, event);
		break;
	case ENGINE_STRAY:
		stray_why(rollout, event, &why);
		version_stray(&rollout->version, &why, &actions);
		break;
	case ENGINE_DIGEST_WRONG:
		digest_why(rollout, event, &why);
		version_failed(&rollout->version, &why, &actions);
		break;
	case ENGINE_GPU_FAILED:
		ws_fail(&why, event->status, "%s: %s", rollout->name, event->reason);
		version_failed(&rollout->version, &why, &actions);
		break;
	case ENGINE_NIC_LOST:
		/* What has landed isn't touched by it. */
		why.code = -EIO;
		engine_rails_text(rollout->engine, why.text, sizeof(why.text));
		if (rollout->version.state == RANK_READY)
			version_failed(&rollout->version, &why, &actions);
		break;
	}
	actions_apply(rollout, &actions);
}

/* Whether something happened. */
static bool engine_turn(struct ws_rollout *rollout)
{
	struct engine_event events[32];
	struct engine_progress progress;
	struct version_actions actions = {0};

	if (rollout->engine == NULL)
		return false;
	int count = engine_step(rollout->engine, events, (int)ARRAY_SIZE(events));
	for (int i = 0; i < count; i++)
		engine_event_take(rollout, &events[i]);
	if (rollout->version.state != RANK_READY || rollout->version.broken ||
	    count == (int)ARRAY_SIZE(events))
		return count > 0;
	engine_progress(rollout->engine, &progress);
	if (progress.receives_done < progress.receive_count || !progress.all_sent ||
	    !posts_done(rollout))
		return count > 0;
	rollout->landed_ns = clock_ns();
	version_landed(&rollout->version, &actions);
	actions_apply(rollout, &actions);
	return true;
}

/* ---------------------------------------------------------------- hooks, verified, the loop */

static void hook_turn(struct ws_rollout *rollout)
{
	struct hook_slot *slot = &rollout->slot;
	struct version_actions actions = {0};

	if (atomic_load_explicit(&slot->state, memory_order_acquire) != SLOT_DONE)
		return;
	if (slot->hook == HOOK_RELOAD) {
		rollout->copy_ns = slot->copy_ns;
		rollout->reload_ns = slot->reload_ns;
		rollout->param_digest = slot->param_digest;
	}
	struct ws_error err = slot->err;
	int rc = slot->rc;
	atomic_store_explicit(&slot->state, SLOT_EMPTY, memory_order_release);
	version_hook_done(&rollout->version, rc, &err, &actions);
	actions_apply(rollout, &actions);
}

/* Post steps: what went wrong with one, and the on_abort that waited for it. */
static void posts_turn(struct ws_rollout *rollout)
{
	struct version_actions actions = {0};
	struct ws_error why;

	if (rollout->version.state == RANK_READY && posts_look(rollout, &why) != 0) {
		version_failed(&rollout->version, &why, &actions);
		actions_apply(rollout, &actions);
	}
	if (rollout->abort_waits && posts_idle(rollout)) {
		rollout->abort_waits = false;
		hook_post(rollout, &rollout->abort_action);
	}
}

static void verified_turn(struct ws_rollout *rollout)
{
	uint32_t serial = atomic_load(&rollout->verified_serial);

	if (serial == rollout->verified_seen || serial % 2 != 0 || rollout->is_over)
		return;
	uint64_t version = atomic_load(&rollout->verified_version);
	uint64_t bytes = atomic_load(&rollout->verified_bytes);
	uint64_t different = atomic_load(&rollout->verified_different);
	if (atomic_load(&rollout->verified_serial) != serial)
		return;
	rollout->verified_seen = serial;
	member_say_verified(rollout->member, version, bytes, different);
}

/* Between two updates the hub is asked; while old peers are being closed that is waited for. */
static void describe_turn(struct ws_rollout *rollout)
{
	bool wants = atomic_load(&rollout->describe) == DESCRIBE_ASKED;
	int asked = DESCRIBE_ASKED;

	if (wants && !version_is_calm(&rollout->version)) {
		wants = false;
		if (atomic_compare_exchange_strong(&rollout->describe, &asked, DESCRIBE_BUSY))
			fd_wake(rollout->step_fd);
	}
	wants = wants && rollout->wire.state != WIRE_FENCING;
	if (wants == rollout->describe_said || rollout->is_over)
		return;
	rollout->describe_said = wants;
	member_say_describe(rollout->member, wants);
}

/* Between updates nothing is polled. */
static void wait_turn(struct ws_rollout *rollout)
{
	int fds[NICS_MAX + 2], count = 0;
	uint64_t most_ns = UINT64_MAX, dropped;

	if (rollout->engine != NULL)
		count = engine_wait_fds(rollout->engine, fds, NICS_MAX + 1, &most_ns);
	fds[count++] = rollout->wake_fd;
	bool busy = rollout->version.state == RANK_READY || rollout->wire.state == WIRE_FENCING;
	if (busy)
		most_ns = MIN(most_ns, TURN_NS);
	else if (most_ns > 0)
		most_ns = IDLE_NS;
	member_wait(rollout->member, fds, count, clock_ns() + most_ns);
	(void)!read(rollout->wake_fd, &dropped, sizeof(dropped));
}

void *rollout_io_main(void *arg)
{
	struct ws_rollout *rollout = arg;

	/* An event loop: it ends when close says stop, or the caller describes again. */
	while (!atomic_load(&rollout->stop)) {
		/* What a check found goes out before the state that ends it. */
		verified_turn(rollout);
		hook_turn(rollout);
		posts_turn(rollout);
		bool happened = member_turn(rollout);
		happened |= engine_turn(rollout);
		rails_turn(rollout, happened);
		rollout_wire_step(rollout);
		describe_turn(rollout);
		if (atomic_load(&rollout->describe) == DESCRIBE_GRANTED)
			return NULL;
		if (clock_ns() - rollout->said_ns >= SAY_NS)
			state_say(rollout);
		wait_turn(rollout);
	}
	rollout_wire_close(rollout, clock_ns() + CLOSE_NS);
	return NULL;
}
