/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong in an attempt or a wiring: failures that members say, ranks that are poisoned,
 * and deadlines that pass.  Each ends in a drop, an abort or the end of the run, with a sentence.
 */
#include "lib/hub/progress.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define RANK_TEXT_BYTES (MEMBER_WAITS_BYTES + 96)

void replica_put_off(struct progress *progress, uint32_t number)
{
	uint32_t trainers = progress->options.trainer_count;
	if (number < trainers)
		return; /* nothing goes on without it */
	struct replica *replica =
		&progress->replicas[(number - trainers) / progress->options.replica_ranks];
	uint64_t wait_ns = progress->options.lost_ns << MIN(replica->wiring_fails, 6u);
	replica->wiring_fails++;
	replica->retry_ns = progress->now_ns + MIN(wait_ns, progress->options.phase_ns);
}

/* FAILURE_OP about a member: its replica goes, or with a trainer the attempt. */
static void failure_about(struct progress *progress, uint64_t id, const struct ws_error *why)
{
	uint32_t number = progress_seat(progress, id), trainers = progress->options.trainer_count;
	if (number == UINT32_MAX || number < trainers) {
		attempt_abort(progress, why);
		return;
	}
	uint32_t index = (number - trainers) / progress->options.replica_ranks;
	enum replica_word word = progress->replicas[index].word;
	/* Once it has committed every byte was there: a late FAILED only asks for a new wiring. */
	if (word == WORD_COMMIT || word == WORD_RESUME ||
	    (word == WORD_NONE && progress->replicas[index].went_live))
		progress->rewire = true;
	else
		replica_drop(progress, index, why);
}

void failure_hear(struct progress *progress, uint32_t number)
{
	struct seat *seat = &progress->seats[number];
	const struct beat_up *up = &seat->up;
	struct ws_error why = up->failure;
	char name[MEMBER_NAME_BYTES];
	member_name(seat->id, name);
	ws_fail_in(&why, why.code == 0 ? -EIO : why.code, "%s", name);
	progress->changed = true;
	if (up->failure_kind == FAILURE_PLAN) {
		progress_end(progress, &why);
		return;
	}
	if (seat->in == 0)
		return;
	if (up->failure_kind == FAILURE_POISONED) {
		seat_lose(progress, number, &why);
		return;
	}
	if (up->failure_attempt == 0) {
		/* While wiring: the first one can't go on; later ones go on without the failing
		 * member. */
		if (progress->wired || up->generation != progress->generation)
			return;
		if (!progress->wired_once && progress->attempt_heard == 0)
			progress_end(progress, &why);
		replica_put_off(progress, number);
		seat_lose(progress, number, &why);
		return;
	}
	if (up->failure_attempt != progress->attempt)
		return;
	if (!attempt_is_open(progress)) {
		/* Late, nothing torn; but some connection is broken. */
		if (progress->wired)
			progress->rewire = true;
		return;
	}
	if (up->failure_kind == FAILURE_OP && up->failure_about != 0)
		failure_about(progress, up->failure_about, &why);
	else
		attempt_abort(progress, &why);
}

void step_text(const struct progress *progress, const struct seat *seat, char text_out[80])
{
	uint64_t age_ms = seat->up.step_age_ms;
	text_out[0] = '\0';
	if (member_id_role(seat->id) != ROLE_ROLLOUT || !seat->heard)
		return;
	if (age_ms == UINT64_MAX) {
		snprintf(text_out, 80, "; it has never called ws_rollout_step");
		return;
	}
	age_ms += (progress->now_ns - seat->heard_ns) / 1000000u;
	if (age_ms > 1000 && age_ms > progress->options.phase_ns / 2000000u)
		snprintf(text_out, 80, "; it hasn't called ws_rollout_step for %llu s",
			 (unsigned long long)age_ms / 1000);
}

/* A trainer that stands still before all is sent; one that waits for another only where all do. */
static const struct seat *sender_still(const struct progress *progress)
{
	const struct seat *still = NULL;
	for (uint32_t i = 0; i < progress->options.trainer_count; i++) {
		const struct seat *seat = &progress->seats[i];
		if (!seat_is_in(seat) || seat->up.sent >= progress->attempt ||
		    progress->now_ns - seat->moved_ns <= progress->options.phase_ns)
			continue;
		if (still == NULL || (still->up.waits[0] != 0 && seat->up.waits[0] == 0))
			still = seat;
	}
	return still;
}

/* A trainer that has joined but stopped sending is to blame before the rank that waits for it. */
static bool sender_late(struct progress *progress, const struct seat *rank)
{
	const struct seat *seat = sender_still(progress);
	struct ws_error why;
	char name[MEMBER_NAME_BYTES], about[MEMBER_NAME_BYTES];
	if (seat == NULL)
		return false;
	member_name(seat->id, name);
	member_name(rank->id, about);
	ws_fail(&why, -ETIMEDOUT,
		"%s hasn't sent all of version %llu and stands still for %.1f s%s%s; %s waits%s%s",
		name, (unsigned long long)progress->version,
		(double)(progress->now_ns - seat->moved_ns) / 1e9,
		seat->up.waits[0] != 0 ? ": it " : "", seat->up.waits, about,
		rank->up.waits[0] != 0 ? ": it " : "", rank->up.waits);
	attempt_abort(progress, &why);
	return true;
}

/* The state of those that `want` asks for that a rank isn't at. */
static enum rank_state state_next(const struct progress *progress, uint32_t index, uint32_t rank,
				  enum rank_state want)
{
	bool ready = rank_is_at(progress, index, rank, RANK_READY);
	return want == RANK_LANDED && !ready ? RANK_READY : want;
}

/* What the rank says that it waits for, and whether its engine steps: "; it got 1 of 2 ops". */
static void rank_text(const struct progress *progress, const struct seat *seat,
		      enum rank_state next, char text_out[RANK_TEXT_BYTES])
{
	const char *waits = next == RANK_LANDED ? seat->up.waits : "";
	char step[80];
	step_text(progress, seat, step);
	snprintf(text_out, RANK_TEXT_BYTES, "%s%s%s", waits[0] != 0 ? "; it " : "", waits, step);
}

/* Deadlines: a rank that doesn't come to the state its word asks for takes its replica out. */
void replica_late(struct progress *progress, uint32_t index, enum rank_state want)
{
	const struct replica *replica = &progress->replicas[index];
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
		struct seat *seat = replica_rank(progress, index, rank);
		enum rank_state next = state_next(progress, index, rank, want);
		if (rank_is_at(progress, index, rank, want))
			continue;
		uint64_t since = MAX(replica->word_ns, seat->moved_ns);
		if (next == RANK_LANDED && !all_trainers_joined(progress))
			continue; /* the trainers' own deadline */
		if (progress->now_ns - since <= progress->options.phase_ns)
			continue;
		if (next == RANK_LANDED && forward_awaits(progress, index))
			continue; /* the one before it is to blame */
		if (next == RANK_LANDED && sender_late(progress, seat))
			return;
		struct ws_error why;
		char name[MEMBER_NAME_BYTES], text[RANK_TEXT_BYTES];
		member_name(seat->id, name);
		rank_text(progress, seat, next, text);
		ws_fail(&why, -ETIMEDOUT, "%s isn't %s for version %llu after %.1f s%s", name,
			rank_state_name(next), (unsigned long long)progress->version,
			(double)(progress->now_ns - since) / 1e9, text);
		replica_drop(progress, index, &why);
		return;
	}
}

/* What a word asks ranks for; RANK_IDLE: nothing. */
static enum rank_state word_asks(enum replica_word word)
{
	switch (word) {
	case WORD_BEGIN:
		return RANK_LANDED;
	case WORD_PAUSE:
		return RANK_PAUSED;
	case WORD_COMMIT:
		return RANK_LIVE;
	case WORD_RESUME:
		return RANK_RESUMED;
	case WORD_NONE:
	case WORD_ABORT:
		break;
	}
	return RANK_IDLE;
}

void attempt_waits_for(const struct progress *progress, struct ws_error *err)
{
	for (uint32_t index = 0; index < progress->replica_count; index++) {
		enum rank_state want = word_asks(progress->replicas[index].word);
		bool asked = replica_is_in(progress, index) && want != RANK_IDLE;
		for (uint32_t rank = 0; asked && rank < progress->options.replica_ranks; rank++) {
			const struct seat *seat =
				&progress->seats[replica_seat(progress, index, rank)];
			char name[MEMBER_NAME_BYTES], text[RANK_TEXT_BYTES];
			if (rank_is_at(progress, index, rank, want))
				continue;
			enum rank_state next = state_next(progress, index, rank, want);
			member_name(seat->id, name);
			rank_text(progress, seat, next, text);
			ws_fail(err, -EAGAIN, "%s isn't %s%s", name, rank_state_name(next), text);
			return;
		}
	}
}

/* A rank that is poisoned, or that gave up what its replica has committed, ends the replica. */
bool replica_broken(struct progress *progress, uint32_t index)
{
	const struct replica *replica = &progress->replicas[index];
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
		const struct seat *seat = replica_rank(progress, index, rank);
		bool bad = seat_is_in(seat) && seat->up.state == RANK_BAD;
		bool gone = replica->word == WORD_COMMIT && seat_is_in(seat) &&
			    seat->up.state == RANK_IDLE;
		struct ws_error why;
		char name[MEMBER_NAME_BYTES];
		if (!bad && !gone)
			continue;
		member_name(seat->id, name);
		if (bad)
			ws_fail(&why, -EIO,
				"%s is poisoned: its reload failed or its memory was written to",
				name);
		else
			ws_fail(&why, -EIO, "%s gave up an attempt that its replica had committed",
				name);
		replica_drop(progress, index, &why);
		return true;
	}
	return false;
}
