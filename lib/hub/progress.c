/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attempts: from a trainer's want to the last resume.  One word per replica, which its ranks'
 * states move on (update_model.pml, proctype replica and hub).  Loss, failure and deadlines
 * end in a drop of one replica or in an abort of those that haven't committed.
 */
#include "lib/hub/progress.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* AT: heard in the replica's attempt in that state or beyond it. */
bool rank_is_at(const struct progress *progress, uint32_t index, uint32_t rank,
		enum rank_state state)
{
	const struct seat *seat = replica_rank(progress, index, rank);
	return seat_is_in(seat) && seat->up.attempt == progress->replicas[index].attempt &&
	       seat->up.state >= state && seat->up.state != RANK_BAD;
}

static bool all_are_at(const struct progress *progress, uint32_t index, enum rank_state state)
{
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++)
		if (!rank_is_at(progress, index, rank, state))
			return false;
	return true;
}

bool replica_is_in(const struct progress *progress, uint32_t index)
{
	return replica_rank(progress, index, 0)->in != 0;
}

/* CALM: not in the middle of an attempt. */
static bool seat_is_calm(const struct seat *seat)
{
	return seat->up.state == RANK_IDLE || seat->up.state == RANK_RESUMED;
}

bool replica_is_joinable(const struct progress *progress, uint32_t index)
{
	if (progress->now_ns < progress->replicas[index].retry_ns ||
	    !replica_is_alike(progress, index))
		return false;
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
		const struct seat *seat = replica_rank(progress, index, rank);
		if (!seat_is_there(seat) || !seat_is_calm(seat) || rails_are_gone(seat))
			return false;
	}
	return true;
}

void replica_admit(struct progress *progress, uint32_t index)
{
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
		struct seat *seat = replica_rank(progress, index, rank);
		seat->in = seat->joined;
	}
	/* Why it was dropped stays until it begins again. */
	progress->replicas[index].decided = true;
	progress->replicas[index].describe_ns = 0;
}

static void word_set(struct progress *progress, uint32_t index, enum replica_word word)
{
	struct replica *replica = &progress->replicas[index];
	replica->word = word;
	replica->word_ns = progress->now_ns;
	progress->view_serial++;
	progress->changed = true;
}

/* QUIET: nothing of an attempt is open there. */
static bool replica_is_quiet(const struct progress *progress, uint32_t index)
{
	const struct replica *replica = &progress->replicas[index];
	if (!replica_is_in(progress, index))
		return true;
	return (replica->word == WORD_NONE || replica->word == WORD_ABORT) &&
	       !(replica->waits_trainers && !progress->over);
}

bool attempt_is_open(const struct progress *progress)
{
	if (!progress->over)
		return true;
	for (uint32_t i = 0; i < progress->replica_count; i++)
		if (!replica_is_quiet(progress, i))
			return true;
	return false;
}

void replica_drop(struct progress *progress, uint32_t index, const struct ws_error *why)
{
	struct replica *replica = &progress->replicas[index];
	bool was_in = replica_is_in(progress, index);
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
		struct seat *seat = replica_rank(progress, index, rank);
		if (seat->in != 0) {
			seat->out = MAX(seat->out, seat->in);
			seat->out_error = *why;
		}
		seat->in = 0;
	}
	if (!was_in)
		return;
	replica->error = *why;
	progress->last_error = *why;
	replica->waits_trainers = false;
	progress->rewire = true;
	word_set(progress, index, WORD_NONE);
	forward_drop(progress, index, why);
}

void attempt_abort(struct progress *progress, const struct ws_error *why)
{
	bool any = false;
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		struct replica *replica = &progress->replicas[i];
		bool began = replica->word == WORD_BEGIN || replica->word == WORD_PAUSE;
		if (!replica_is_in(progress, i) || !(began || replica->waits_trainers))
			continue;
		any = true;
		replica->waits_trainers = false;
		replica->error = *why;
		word_set(progress, i, WORD_ABORT);
	}
	if (!any)
		return;
	progress->rewire = true;
	progress->last_error = *why;
	if (progress->attempt_error.code == 0 && !progress->over)
		progress->attempt_error = *why;
}

static void trainer_drop(struct progress *progress, uint32_t rank, const struct ws_error *why)
{
	struct seat *seat = &progress->seats[rank];
	if (seat->in == 0)
		return;
	seat->out = MAX(seat->out, seat->in);
	seat->out_error = *why;
	seat->in = 0;
	progress->last_error = *why;
	progress->rewire = true;
	progress->changed = true;
	attempt_abort(progress, why);
}

void seat_lose(struct progress *progress, uint32_t number, const struct ws_error *why)
{
	struct seat *seat = &progress->seats[number];
	uint32_t trainers = progress->options.trainer_count;
	if (seat->joined > seat->out) {
		seat->out = seat->joined;
		seat->out_error = *why;
	}
	if (seat->in == 0)
		return;
	if (number < trainers)
		trainer_drop(progress, number, why);
	else
		replica_drop(progress, (number - trainers) / progress->options.replica_ranks, why);
}

void seat_release(struct progress *progress, uint32_t number, const struct ws_error *why)
{
	struct ws_error last = progress->last_error;
	seat_lose(progress, number, why);
	progress->last_error = last;
}

bool trainer_has_joined(const struct progress *progress, const struct seat *seat)
{
	const struct beat_up *up = &seat->up;
	bool of_this = up->want_attempt == 0 || up->want_attempt == progress->attempt;
	if (up->want != 0 && of_this && up->want != progress->version)
		return up->want_attempt == 0 &&
		       up->joined == progress->attempt; /* the next push's */
	return up->joined == progress->attempt || (up->want != 0 && of_this);
}

static bool trainer_waits(const struct seat *seat)
{
	return seat_is_in(seat) && seat->up.want != 0 && seat->up.want_attempt == 0;
}

/* Views come in the beat that says over.  Who hasn't taken the roster yet knew before it was made.
 */
bool trainers_know(const struct progress *progress)
{
	for (uint32_t i = 0; i < progress->options.trainer_count; i++) {
		const struct seat *seat = &progress->seats[i];
		bool views = seat->up.generation != progress->generation ||
			     seat->up.view_seen == progress->view_serial;
		if (seat_is_in(seat) && !(views && seat->up.attempt_seen >= progress->attempt))
			return false;
	}
	return true;
}

bool all_trainers_joined(const struct progress *progress)
{
	for (uint32_t i = 0; i < progress->options.trainer_count; i++) {
		const struct seat *seat = &progress->seats[i];
		if (!seat_is_in(seat) || !trainer_has_joined(progress, seat))
			return false;
	}
	return true;
}

static bool barrier_holds(const struct progress *progress)
{
	for (uint32_t i = 0; progress->options.barrier && i < progress->replica_count; i++) {
		const struct replica *replica = &progress->replicas[i];
		if (replica_is_in(progress, i) && replica->in_attempt &&
		    (replica->waits_trainers ||
		     (replica->word == WORD_BEGIN && !all_are_at(progress, i, RANK_LANDED))))
			return true;
	}
	return false;
}

static void replica_tick(struct progress *progress, uint32_t index)
{
	struct replica *replica = &progress->replicas[index];
	if (!replica_is_in(progress, index) || replica_broken(progress, index))
		return;
	switch (replica->word) {
	case WORD_NONE:
	case WORD_ABORT:
		if (!replica->waits_trainers || !all_trainers_joined(progress))
			return;
		replica->waits_trainers = false;
		word_set(progress, index, WORD_BEGIN);
		return;
	case WORD_BEGIN:
		if (!all_are_at(progress, index, RANK_LANDED))
			replica_late(progress, index, RANK_LANDED);
		else if (!barrier_holds(progress) && all_trainers_joined(progress))
			word_set(progress, index, WORD_PAUSE);
		return;
	case WORD_PAUSE:
		if (all_are_at(progress, index, RANK_PAUSED))
			word_set(progress, index, WORD_COMMIT);
		else
			replica_late(progress, index, RANK_PAUSED);
		return;
	case WORD_COMMIT:
		if (all_are_at(progress, index, RANK_LIVE)) {
			replica->went_live = true;
			replica->wiring_fails = 0;
			word_set(progress, index, WORD_RESUME);
		} else {
			replica_late(progress, index, RANK_LIVE);
		}
		return;
	case WORD_RESUME:
		if (all_are_at(progress, index, RANK_RESUMED))
			word_set(progress, index, WORD_NONE);
		else
			replica_late(progress, index, RANK_RESUMED);
		return;
	}
}

/* Another version, or none in time: every trainer pushes the same or nobody does. */
static void trainers_check(struct progress *progress)
{
	for (uint32_t i = 0; i < progress->options.trainer_count && !progress->over; i++) {
		const struct seat *seat = &progress->seats[i];
		const struct beat_up *up = &seat->up;
		struct ws_error why;
		char name[MEMBER_NAME_BYTES];
		if (!seat_is_in(seat) || trainer_has_joined(progress, seat))
			continue;
		member_name(seat->id, name);
		bool other = up->want != 0 &&
			     (up->want_attempt == 0 || up->want_attempt == progress->attempt);
		if (other)
			ws_fail(&why, -EINVAL,
				"%s pushes version %llu while another trainer began version %llu",
				name, (unsigned long long)up->want,
				(unsigned long long)progress->version);
		else if (progress->now_ns - progress->begin_ns > progress->options.phase_ns)
			ws_fail(&why, -ETIMEDOUT,
				"%s hasn't pushed version %llu within %g s of the first trainer",
				name, (unsigned long long)progress->version,
				(double)progress->options.phase_ns / 1e9);
		else
			continue;
		attempt_abort(progress, &why);
		/* Nothing left to abort: it only says why the attempt ended. */
		if (progress->attempt_error.code == 0)
			progress->attempt_error = why;
	}
}

/* An attempt is over when each replica in it is done, dropped or aborted, and no trainer may
 * still come for it. */
static void attempt_end(struct progress *progress)
{
	uint32_t live = 0;
	struct ws_error first = {0};
	if (progress->over)
		return;
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		const struct replica *replica = &progress->replicas[i];
		if (!replica_is_quiet(progress, i))
			return;
		live += replica->in_attempt && replica->went_live && replica_is_in(progress, i);
		/* One that was dropped before it began is missing too. */
		if ((replica->in_attempt || !replica_is_in(progress, i)) && first.code == 0 &&
		    replica->error.code != 0)
			first = replica->error;
	}
	for (uint32_t i = 0; i < progress->options.trainer_count; i++) {
		const struct seat *seat = &progress->seats[i];
		if (seat_is_in(seat) && !trainer_has_joined(progress, seat) &&
		    progress->attempt_error.code == 0)
			return;
	}
	progress->over = true;
	progress->changed = true;
	progress->view_serial++;
	if (progress->attempt_error.code != 0 || live >= progress->options.min_replicas)
		return;
	progress->attempt_error = first;
	ws_fail_in(&progress->attempt_error, first.code == 0 ? -ECONNRESET : first.code,
		   "version %llu is live in %u of at least %u replicas",
		   (unsigned long long)progress->version, live, progress->options.min_replicas);
}

/* In doubt, after a hub restart (decide() in the model): only with each of its ranks heard. */
static void replica_decide(struct progress *progress, uint32_t index)
{
	struct replica *replica = &progress->replicas[index];
	uint32_t ranks = progress->options.replica_ranks, heard = 0, calm = 0;
	bool committed = false;
	uint64_t attempt = 0;
	for (uint32_t rank = 0; rank < ranks; rank++) {
		const struct seat *seat = replica_rank(progress, index, rank);
		if (!seat_is_there(seat))
			continue;
		heard++;
		calm += seat_is_calm(seat);
		attempt = MAX(attempt, seat->up.attempt);
	}
	if (heard > 0 && replica->first_ns == 0)
		replica->first_ns = progress->now_ns;
	if (heard == ranks && calm == ranks) {
		replica->decided = true;
		return;
	}
	if (heard < ranks) {
		/* Some stay silent: it goes on without this replica; those heard join again. */
		if (heard > 0 &&
		    progress->now_ns - replica->first_ns > 2 * progress->options.lost_ns)
			replica->decided = true;
		return;
	}
	replica_admit(progress, index);
	replica->attempt = attempt;
	progress->attempt_heard = MAX(progress->attempt_heard, attempt);
	for (uint32_t rank = 0; rank < ranks; rank++)
		committed = committed || rank_is_at(progress, index, rank, RANK_COMMITTED) ||
			    replica_rank(progress, index, rank)->up.state == RANK_BAD;
	ws_fail(&replica->error, -ECONNRESET, "the hub was restarted in attempt %llu",
		(unsigned long long)attempt);
	word_set(progress, index, committed ? WORD_COMMIT : WORD_ABORT);
	progress->rewire = true;
}

/* Not in the roster and heard in the middle of an old attempt: told to join again. */
static void stray_drop(struct progress *progress, uint32_t index)
{
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
		struct seat *seat = replica_rank(progress, index, rank);
		if (!seat_is_there(seat) || seat_is_calm(seat))
			continue;
		ws_fail(&seat->out_error, -ECONNRESET,
			"the hub went on without this process, which is in the middle of attempt %llu",
			(unsigned long long)seat->up.attempt);
		seat->out = seat->joined;
		progress->changed = true;
	}
}

static void attempt_begin(struct progress *progress, uint64_t version)
{
	progress->attempt = MAX(progress->attempt, progress->attempt_heard) + 1;
	progress->attempt_generation = progress->generation;
	progress->version = version;
	progress->begin_ns = progress->now_ns;
	progress->over = false;
	progress->attempt_error = (struct ws_error){0};
	progress->want_ns = 0;
	bool joined = all_trainers_joined(progress);
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		struct replica *replica = &progress->replicas[i];
		bool in = replica_is_in(progress, i);
		replica->in_attempt = in;
		replica->went_live = false;
		if (!in)
			continue;
		replica->error = (struct ws_error){0};
		replica->attempt = progress->attempt;
		bool inplace = false;
		for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++)
			inplace = inplace || replica_rank(progress, i, rank)->info.inplace;
		replica->waits_trainers = inplace && !joined;
		word_set(progress, i, replica->waits_trainers ? WORD_NONE : WORD_BEGIN);
	}
}

/* The first trainer's want begins the next attempt, once the wiring stands, every trainer has heard
 * how the last one ended, and enough replicas are in (or were waited for long enough). */
static void attempt_try(struct progress *progress)
{
	uint32_t in = 0;
	uint64_t want = 0;
	if (attempt_is_open(progress) || !progress->wired || progress->rewire ||
	    describe_is_awaited(progress) || !trainers_know(progress))
		return;
	for (uint32_t i = 0; i < progress->options.trainer_count; i++) {
		const struct seat *seat = &progress->seats[i];
		if (!seat_is_in(seat))
			return;
		if (want == 0 && trainer_waits(seat))
			want = seat->up.want;
	}
	if (want == 0) {
		progress->want_ns = 0;
		return;
	}
	if (progress->want_ns == 0)
		progress->want_ns = progress->now_ns;
	for (uint32_t i = 0; i < progress->replica_count; i++)
		in += replica_is_in(progress, i);
	bool waited = progress->now_ns - progress->want_ns > progress->options.phase_ns;
	if (in >= progress->options.min_replicas || (in > 0 && waited))
		attempt_begin(progress, want);
}

void attempts_tick(struct progress *progress)
{
	describe_tick(progress);
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		if (!progress->replicas[i].decided)
			replica_decide(progress, i);
		else if (!replica_is_in(progress, i))
			stray_drop(progress, i);
		replica_tick(progress, i);
	}
	trainers_check(progress);
	attempt_end(progress);
	attempt_try(progress);
}
