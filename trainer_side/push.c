/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the I/O thread knows of a push, and what it does next (request.c has what callers ask).
 *
 *   ASKED -> JOINED (begin heard: armed, writing) -> OVER (the hub says so, all ops are reported)
 *
 * A push that ends here before its params are released (deadline, cancel, the hub is gone) goes
 * through CLOSING: whoever gets the params back may change them, so nothing of mine may be read
 * by a NIC any more.  What had been sent whole may still go live, and then it is this version.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "trainer_side/report.h"
#include "trainer_side/trainer_internal.h"

#define CLOSE_NS UINT64_C(2000000000)		    /* how long a late push waits for its senders */
#define WAITS_NS ((uint64_t)HUB_BEAT_MS * 1000000u) /* what is waited for is looked at as often */

/* ---------------------------------------------------------------- going on */

static void say(struct ws_trainer *trainer, bool wanted)
{
	const struct push *push = &trainer->push;
	struct engine_progress progress = {0};

	if (trainer->is_over)
		return;
	if (trainer->engine != NULL)
		engine_progress(trainer->engine, &progress);
	member_say_push(trainer->member, wanted ? push->version : 0, push->attempt,
			push->sent ? push->attempt : 0, progress.bytes_sent);
}

static void finish(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;

	if (push->dropped && push->state != PUSH_DOUBT) {
		/* Nothing of mine is under way any more; what became of it is asked. */
		push->state = PUSH_DOUBT;
		push->released = true;
		return;
	}
	if (push->why.code != 0)
		ws_fail_in(&push->why, push->why.code, "cannot push version %llu",
			   (unsigned long long)push->version);
	if (trainer->engine != NULL)
		engine_end(trainer->engine);
	push->released = true;
	push->live = push->why.code == 0;
	push->state = PUSH_OVER;
	report_end(trainer);
	say(trainer, false);
}

/* The report's `begin` ends with the first rollout that is ready, not with another trainer. */
static void pair_is_ready(struct ws_trainer *trainer, const struct pair *pair)
{
	struct push *push = &trainer->push;

	if (push->ready_ns == 0 && pair->member >= trainer->world)
		push->ready_ns = clock_ns();
	engine_peer_ready(trainer->engine, pair->peer);
}

static void join(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct wire *wire = &trainer->wire;
	struct ws_error err = {0};

	push->attempt = trainer->begun_attempt;
	push->other_version = trainer->begun_version != push->version;
	push->state = PUSH_JOINED;
	report_trouble(trainer);
	if (push->other_version) {
		push->sent = true;
		say(trainer, true);
		return;
	}
	int rc = wire->state != WIRE_WIRED
			 ? ws_fail(&err, -ESTALE, "it isn't wired for attempt %llu",
				   (unsigned long long)push->attempt)
			 : engine_arm(trainer->engine, push->attempt, &err);
	if (rc != 0) {
		push->sent = true;
		member_say_failure(trainer->member, FAILURE_ATTEMPT, push->attempt, UINT32_MAX,
				   &err);
		return;
	}
	push->sent = wire->program.send_count == 0 && wire->program.local_count == 0;
	say(trainer, true);
	/* Whoever writes to me may from now on; without a body nothing fails. */
	if (wire->source_count > 0)
		(void)member_say_ready(trainer->member, push->attempt, NULL, 0, NULL);
	for (uint32_t i = 0; i < wire->pair_count; i++)
		if (wire->pairs[i].ready_attempt == push->attempt)
			pair_is_ready(trainer, &wire->pairs[i]);
}

void push_begun(struct ws_trainer *trainer)
{
	if (trainer->push.state == PUSH_ASKED)
		join(trainer);
}

/* A rollout's body names a buffer set; there is one. */
static bool ready_body_fits(const struct ws_trainer *trainer, const struct member_event *event)
{
	if (event->from < trainer->world)
		return event->body_bytes == 0;
	struct reader body = reader_make(event->body, event->body_bytes);

	return read_u32(&body) == 0 && reader_done(&body);
}

void push_ready(struct ws_trainer *trainer, const struct member_event *event)
{
	struct push *push = &trainer->push;
	struct wire *wire = &trainer->wire;
	struct ws_error err;
	char name[64];

	if (event->from >= wire->member_count || wire->pair_of_member[event->from] == UINT32_MAX)
		return;
	if (!ready_body_fits(trainer, event)) {
		ws_fail(&err, -EPROTO, "can't read the ready of %s",
			trainer_wire_member_name(trainer, event->from, name));
		member_say_failure(trainer->member, FAILURE_ATTEMPT, event->attempt, event->from,
				   &err);
		return;
	}
	struct pair *pair = &wire->pairs[wire->pair_of_member[event->from]];
	pair->ready_attempt = event->attempt;
	if (push->state != PUSH_JOINED || push->attempt != event->attempt || push->other_version ||
	    wire->state != WIRE_WIRED)
		return;
	pair_is_ready(trainer, pair);
}

void push_sent(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;

	if (push->state != PUSH_JOINED || push->sent)
		return;
	push->sent = true;
	push->sent_ns = clock_ns();
	say(trainer, true);
}

void push_fenced(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;

	if (push->state == PUSH_CLOSING) {
		push->sent = true;
		finish(trainer);
	} else if (push->state == PUSH_JOINED && !push->sent) {
		push->sent = true;
		say(trainer, true);
	}
}

void push_failed(struct ws_trainer *trainer, const struct ws_error *why)
{
	struct push *push = &trainer->push;

	switch (push->state) {
	case PUSH_NONE:
	case PUSH_OVER:
	case PUSH_CLOSING:
		return;
	case PUSH_DOUBT:
		finish(trainer);
		return;
	case PUSH_ASKED:
		push->why = *why;
		finish(trainer);
		return;
	case PUSH_JOINED:
		break;
	}
	push->why = *why;
	if (push->released || push->sent) {
		finish(trainer);
		return;
	}
	if (!trainer->is_over)
		member_say_failure(trainer->member, FAILURE_ATTEMPT, push->attempt, UINT32_MAX,
				   why);
	bool patient = !atomic_load(&trainer->cancelled);
	push->close_ns = CLOSE_NS + MAX(clock_ns(), patient ? push->deadline_ns : 0);
	push->state = PUSH_CLOSING;
	trainer_wire_shut(trainer);
}

void push_unfenced(struct ws_trainer *trainer, const struct ws_error *why)
{
	struct push *push = &trainer->push;

	push_failed(trainer, why);
	if (push->state != PUSH_CLOSING)
		return;
	push->why = *why;
	push->sent = true;
	finish(trainer);
}

void push_closing(struct ws_trainer *trainer, const struct ws_error *waits)
{
	const struct push *push = &trainer->push;
	struct ws_error why;

	if (push->state != PUSH_CLOSING || clock_ns() < push->close_ns)
		return;
	ws_fail(&why, -ETIMEDOUT, "%.300s; even now %s: params may still be read", push->why.text,
		waits->text);
	push_unfenced(trainer, &why);
}

void push_dropped(struct ws_trainer *trainer, const struct ws_error *why)
{
	struct push *push = &trainer->push;

	if (push->state == PUSH_JOINED) {
		push->dropped = true;
		push->doubt_generation = trainer->wire.generation;
	}
	push_failed(trainer, why);
}

/* ---------------------------------------------------------------- each turn */

/* A new roster comes only when the attempt is over everywhere, so its views tell the outcome. */
static void doubt_step(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct wire *wire = &trainer->wire;
	bool live = true;

	if (wire->views == NULL || wire->generation == push->doubt_generation)
		return;
	uint32_t count = member_replicas(trainer->member, wire->views, wire->replica_count);
	if (count == 0)
		return;
	for (uint32_t i = 0; i < count; i++)
		live = live && wire->views[i].live_version == push->version;
	if (live)
		push->why = (struct ws_error){0};
	finish(trainer);
}

static void verified_step(struct ws_trainer *trainer)
{
	struct verified *verified = trainer->verified;
	uint64_t version = atomic_load(&verified->wanted), bytes, different;
	uint32_t ranks;

	if (version == 0)
		return;
	if (trainer->is_over && atomic_load(&verified->gone_version) != version) {
		ws_fail(&verified->gone, -ECONNRESET, "%s",
			trainer->over.text[0] != '\0' ? trainer->over.text : "the run ended");
		atomic_store(&verified->gone_version, version);
	}
	member_verified(trainer->member, version, &ranks, &bytes, &different);
	atomic_fetch_add(&verified->serial, 1);
	atomic_store(&verified->version, version);
	atomic_store(&verified->ranks, ranks);
	atomic_store(&verified->bytes, bytes);
	atomic_store(&verified->different, different);
	atomic_fetch_add(&verified->serial, 1);
}

/* No attempt begins before all that is known of the one before was heard here. */
void push_replica_gone(struct ws_trainer *trainer)
{
	struct verified *verified = trainer->verified;
	const struct wire *wire = &trainer->wire;
	uint64_t version = trainer->push.version;

	if (wire->views == NULL || trainer->push.attempt == 0 ||
	    atomic_load(&verified->gone_version) == version)
		return;
	uint32_t count = member_replicas(trainer->member, wire->views, wire->replica_count);
	for (uint32_t i = 0; i < count; i++) {
		const struct replica_view *view = &wire->views[i];
		if (view->in)
			continue;
		ws_fail(&verified->gone, -ECONNRESET, "replica %u was dropped: %s", view->replica,
			view->error.text);
		atomic_store(&verified->gone_version, version);
		return;
	}
}

/* Whether nothing is to be written to a replica any more. */
static bool view_landed(const struct replica_view *view, uint64_t attempt)
{
	if (!view->in || view->attempt > attempt)
		return true;
	if (view->attempt < attempt)
		return false;
	switch (view->word) {
	case WORD_PAUSE:
	case WORD_COMMIT:
	case WORD_RESUME:
	case WORD_ABORT:
		return true;
	case WORD_NONE:
	case WORD_BEGIN:
		break;
	}
	return view->slowest >= RANK_LANDED;
}

static bool view_paused(const struct replica_view *view, uint64_t attempt)
{
	return !view->in || view->attempt > attempt ||
	       (view->attempt == attempt &&
		(view->word == WORD_COMMIT || view->word == WORD_RESUME ||
		 view->word == WORD_ABORT || view->slowest >= RANK_PAUSED));
}

static void views_look(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct wire *wire = &trainer->wire;
	bool landed = true, paused = true;

	if (wire->views == NULL)
		return;
	uint32_t count = member_replicas(trainer->member, wire->views, wire->replica_count);
	for (uint32_t i = 0; i < count; i++) {
		if (!view_landed(&wire->views[i], push->attempt)) {
			landed = false;
			push->last_landed = wire->views[i].replica;
		}
		paused = paused && view_paused(&wire->views[i], push->attempt);
	}
	if (landed && push->landed_ns == 0)
		push->landed_ns = clock_ns();
	if (paused && landed && push->paused_ns == 0)
		push->paused_ns = clock_ns();
}

static bool replica_lost(const struct push *push)
{
	for (uint32_t i = 0; i < push->report.replica_count; i++)
		if (!push->report.replicas[i].live)
			return true;
	return push->report.replica_count == 0;
}

/* The attempt is over, but a NIC still has ops of mine: they come out when the peers are closed.
 * (Where all went well only their completions are late.)  The hub wires anew. */
static void shut_after(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct ws_error why;

	if (push->why.code == 0) {
		ws_fail(&why, -EIO, "trainer %u closed its connections after version %llu",
			trainer->rank, (unsigned long long)push->version);
		member_say_failure(trainer->member, FAILURE_ATTEMPT, push->attempt, UINT32_MAX,
				   &why);
	}
	trainer_wire_shut(trainer);
}

void push_look(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct ws_error why = {0};

	if (push->state != PUSH_JOINED)
		return;
	views_look(trainer);
	if (!push->over_heard && member_attempt_over(trainer->member, push->attempt, &why)) {
		push->over_heard = true;
		push->why = why;
		report_replicas(trainer);
		if (!push->sent && (why.code != 0 || replica_lost(push)))
			shut_after(trainer);
	}
	if (push->sent && (push->landed_ns != 0 || push->over_heard))
		push->released = true;
	if (push->over_heard && push->sent)
		finish(trainer);
}

/* What a push waits for, for the sentence of its deadline. */
static void deadline_pass(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct ws_error why = {0}, waits = {0};
	uint64_t attempt = push->state == PUSH_ASKED ? UINT64_MAX : push->attempt;

	(void)member_attempt_over(trainer->member, attempt, &waits);
	ws_fail(&why, -ETIMEDOUT, "the deadline passed on trainer %u, %s%s%s%s", trainer->rank,
		push->state == PUSH_ASKED ? "before the hub began"
		: push->released	  ? "before every replica was live"
					  : "before every replica had landed",
		trainer->hub_lost ? "; the hub is silent" : "", waits.text[0] != 0 ? "; " : "",
		waits.text);
	push_failed(trainer, &why);
}

/*
 * Another trainer may have begun it already.  If that attempt is over by now, it was this push for
 * it, and so it is for this trainer: the ranks' calls stay in step, and none waits alone.
 */
void push_begin(struct ws_trainer *trainer, uint64_t version, uint64_t deadline_ns)
{
	struct push *push = &trainer->push;
	struct ws_error why = {0};
	bool missed = trainer->begun_attempt > trainer->ended_attempt;
	bool over = missed && member_attempt_over(trainer->member, trainer->begun_attempt, &why);

	/* The same version again is a push of its own: who was lost before may be back. */
	atomic_store(&trainer->verified->gone_version, 0);
	memset(push, 0, sizeof(*push));
	push->state = PUSH_ASKED;
	push->version = version;
	push->deadline_ns = deadline_ns;
	push->start_ns = clock_ns();
	if (missed && !over) {
		join(trainer);
	} else if (over && why.code != 0 && trainer->begun_version == push->version) {
		push->attempt = trainer->begun_attempt;
		push->sent = true;
		push->why = why;
		finish(trainer);
	} else {
		say(trainer, true);
	}
}

/* What I wait for of other trainers, for the sentence of a deadline. */
static void waits_say(struct ws_trainer *trainer)
{
	const struct push *push = &trainer->push;
	const struct wire *wire = &trainer->wire;
	char waits[MEMBER_WAITS_BYTES] = "", name[MEMBER_NAME_BYTES_MAX];

	if (wire->source_count == 0 || clock_ns() - trainer->waits_ns < WAITS_NS)
		return;
	trainer->waits_ns = clock_ns();
	bool open = push->state == PUSH_JOINED && !push->sent && !push->other_version &&
		    wire->state == WIRE_WIRED;
	for (uint32_t i = 0; open && i < wire->pair_count && waits[0] == 0; i++)
		if (wire->pairs[i].member < trainer->world &&
		    wire->pairs[i].ready_attempt != push->attempt)
			snprintf(waits, sizeof(waits), "has maxima for %s, which isn't ready",
				 trainer_wire_member_name(trainer, wire->pairs[i].member, name));
	if (open && waits[0] == 0)
		(void)sources_missing(trainer, waits, sizeof(waits));
	member_say_waiting(trainer->member, waits);
}

void push_step(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct ws_error why;

	verified_step(trainer);
	waits_say(trainer);
	push_look(trainer);
	if (push->state == PUSH_DOUBT)
		doubt_step(trainer);
	if (push->state != PUSH_ASKED && push->state != PUSH_JOINED && push->state != PUSH_DOUBT)
		return;
	if (atomic_load(&trainer->cancelled)) {
		ws_fail(&why, -ECANCELED, "trainer %u was told to stop", trainer->rank);
		push_failed(trainer, &why);
	} else if (trainer->is_over) {
		why = trainer->over;
		if (why.code == 0)
			ws_fail(&why, -ECONNRESET, "the run ended before the version was live");
		push_failed(trainer, &why);
	} else if (clock_ns() >= push->deadline_ns) {
		deadline_pass(trainer);
	}
}
