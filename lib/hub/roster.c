/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is there: joins, rivals for a seat, silence, leave; and the wiring generations, which
 * change only between attempts.
 */
#include "lib/hub/progress.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define RIVAL_BEATS_MIN 3 /* heard of the one that sits before a rival is told that it is taken */

int progress_init(struct progress *progress, const struct progress_options *options,
		  uint64_t now_ns, struct ws_error *err)
{
	*progress = (struct progress){.options = *options,
				      .opened_ns = now_ns,
				      .now_ns = now_ns,
				      .over = true,
				      .view_serial = 1};
	uint32_t trainers = options->trainer_count, ranks = options->replica_ranks;
	if (trainers == 0 || ranks == 0 || options->min_replicas == 0)
		return ws_fail(err, -EINVAL, "a run needs at least one trainer and one rollout");
	if (trainers > HUB_MEMBERS_MAX || ranks > HUB_MEMBERS_MAX ||
	    (uint64_t)ranks * options->min_replicas > HUB_MEMBERS_MAX - trainers)
		return ws_fail(err, -ENOSPC,
			       "%u trainers and %u replicas of %u are above %u members", trainers,
			       options->min_replicas, ranks, HUB_MEMBERS_MAX);
	progress->seats = mem_alloc(sizeof(struct seat) * trainers);
	progress->roster = mem_alloc(sizeof(uint32_t) * HUB_MEMBERS_MAX);
	progress->roster_incarnation = mem_alloc(sizeof(uint64_t) * HUB_MEMBERS_MAX);
	progress->roster_replicas = mem_alloc(sizeof(uint32_t) * HUB_REPLICAS_MAX);
	if (progress->seats == NULL || progress->roster == NULL ||
	    progress->roster_incarnation == NULL || progress->roster_replicas == NULL) {
		progress_release(progress);
		return ws_fail(err, -ENOMEM, "no memory for a hub of %u trainers", trainers);
	}
	for (uint32_t i = 0; i < trainers; i++)
		progress->seats[i].id = member_id(ROLE_TRAINER, 0, i);
	return 0;
}

void progress_release(struct progress *progress)
{
	mem_free(progress->seats);
	mem_free(progress->replicas);
	mem_free(progress->roster);
	mem_free(progress->roster_incarnation);
	mem_free(progress->roster_replicas);
	*progress = (struct progress){0};
}

void progress_end(struct progress *progress, const struct ws_error *error)
{
	if (progress->is_ended)
		return;
	progress->ended = *error;
	/* To a side's caller these two mean a hub that may come back, and its own wish. */
	if (error->code == -ECONNRESET || error->code == -ECANCELED)
		progress->ended.code = -ESTALE;
	progress->is_ended = progress->gave_up = true;
	if (error->code != 0)
		progress->last_error = *error;
	progress->changed = true;
}

/* Seats for one more replica; -ENOSPC, -ENOMEM. */
static int replica_add(struct progress *progress, uint32_t id, struct ws_error *err)
{
	uint32_t ranks = progress->options.replica_ranks, count = progress->replica_count;
	uint32_t seats = replica_seat(progress, count, 0);
	if (count == HUB_REPLICAS_MAX || ranks > HUB_MEMBERS_MAX - seats)
		return ws_fail(err, -ENOSPC,
			       "the hub has no place for replica %u: %u members at most", id,
			       HUB_MEMBERS_MAX);
	struct seat *grown =
		mem_grow(progress->seats, sizeof(*grown) * seats, sizeof(*grown) * (seats + ranks));
	if (grown == NULL)
		return ws_fail(err, -ENOMEM, "the hub has no memory for replica %u", id);
	progress->seats = grown;
	struct replica *replicas = mem_grow(progress->replicas, sizeof(*replicas) * count,
					    sizeof(*replicas) * (count + 1));
	if (replicas == NULL)
		return ws_fail(err, -ENOMEM, "the hub has no memory for replica %u", id);
	progress->replicas = replicas;
	replicas[count] = (struct replica){.id = id};
	for (uint32_t rank = 0; rank < ranks; rank++)
		grown[seats + rank] = (struct seat){.id = member_id(ROLE_ROLLOUT, id, rank)};
	progress->replica_count++;
	return 0;
}

static int join_check(const struct progress *progress, const struct join *join,
		      struct ws_error *err)
{
	const struct progress_options *options = &progress->options;
	char name[MEMBER_NAME_BYTES];
	member_name(member_id(join->role, join->replica, join->rank), name);
	bool trains = join->role == ROLE_TRAINER;
	uint32_t world = trains ? options->trainer_count : options->replica_ranks;
	if (join->world != world)
		return ws_fail(err, -EINVAL, "%s says there are %u %s, the hub was started for %u",
			       name, join->world, trains ? "trainers" : "ranks in a replica",
			       world);
	if (join->rank >= world)
		return ws_fail(err, -EINVAL, "%s can't be: there are only %u %s, counted from 0",
			       name, world, trains ? "trainers" : "ranks in a replica");
	return 0;
}

/* Another process wants a seat that is taken.  Only when the one that sits has been heard for
 * a while is the other refused: the sitting one may have died a moment ago. */
static enum join_verdict rival_join(struct progress *progress, struct seat *seat,
				    const struct join *join, uint64_t incarnation,
				    struct ws_error *err)
{
	char name[MEMBER_NAME_BYTES];
	uint64_t patience = MIN(progress->options.lost_ns, 3u * HUB_BEAT_MS * 1000000u);
	if (seat->rival != incarnation) {
		seat->rival = incarnation;
		seat->rival_beats = 0;
		seat->rival_ns = progress->now_ns;
		return JOIN_LATER;
	}
	if (seat->rival_beats < RIVAL_BEATS_MIN || progress->now_ns - seat->rival_ns < patience)
		return JOIN_LATER;
	member_name(seat->id, name);
	ws_fail(err, -EINVAL, "%s is taken by a living process on '%s' (this one is on '%s')", name,
		seat->info.host, join->host);
	return JOIN_REFUSED;
}

enum join_verdict progress_join(struct progress *progress, const struct join *join,
				uint64_t incarnation, uint64_t now_ns, uint32_t *seat_out,
				struct ws_error *err)
{
	progress->now_ns = MAX(progress->now_ns, now_ns);
	uint64_t id = member_id(join->role, join->replica, join->rank);
	if (join_check(progress, join, err) != 0 || describe_check(progress, join, err) != 0)
		return JOIN_REFUSED;
	uint32_t number = progress_seat(progress, id);
	if (number == UINT32_MAX && replica_add(progress, join->replica, err) != 0)
		return JOIN_REFUSED;
	number = progress_seat(progress, id);
	*seat_out = number;
	struct seat *seat = &progress->seats[number];
	if (incarnation <= seat->out || incarnation == 0)
		return JOIN_DROPPED;
	if (seat->joined == incarnation) {
		seat->heard_ns = progress->now_ns;
		return JOIN_TAKEN;
	}
	if (seat->joined != 0 && seat->joined > seat->out)
		return rival_join(progress, seat, join, incarnation, err);
	if (join->history != 0 && join->manifest_digest != seat->info.manifest_digest)
		replica_describes(progress, (number - progress->options.trainer_count) /
						    progress->options.replica_ranks);
	*seat = (struct seat){.id = id,
			      .joined = incarnation,
			      .out = seat->out,
			      .out_error = seat->out_error,
			      .heard_ns = progress->now_ns,
			      .moved_ns = progress->now_ns,
			      .info = *join};
	seat->info.manifest = NULL;
	seat->info.manifest_bytes = 0;
	progress->changed = true;
	return JOIN_TAKEN;
}

/* Numbers of this hub stay above all it hears: a former hub's begins must not come back. */
static void numbers_hear(struct progress *progress, const struct beat_up *beat)
{
	uint64_t attempt = MAX(MAX(beat->attempt, beat->joined), beat->attempt_seen);
	if (attempt > progress->attempt)
		progress->attempt_heard = MAX(progress->attempt_heard, attempt);
	if (beat->generation > progress->generation)
		progress->generation_heard = MAX(progress->generation_heard, beat->generation);
	progress->live_version_max = MAX(progress->live_version_max, beat->live_version);
}

bool progress_hear(struct progress *progress, uint64_t id, uint64_t incarnation,
		   const struct beat_up *beat, uint64_t now_ns)
{
	progress->now_ns = MAX(progress->now_ns, now_ns);
	uint32_t number = progress_seat(progress, id);
	struct seat *seat = number == UINT32_MAX ? NULL : &progress->seats[number];
	if (seat == NULL || seat->joined != incarnation || incarnation <= seat->out)
		return false;
	seat->heard_ns = progress->now_ns;
	seat->rival_beats += seat->rival != 0;
	if (seat->heard && beat->sequence <= seat->up.sequence)
		return true;
	bool stepped = !seat->heard || seat->up.state != beat->state ||
		       seat->up.attempt != beat->attempt ||
		       seat->up.live_version != beat->live_version ||
		       seat->up.verified_version != beat->verified_version;
	if (stepped || seat->up.bytes != beat->bytes || seat->up.sent != beat->sent ||
	    seat->up.joined != beat->joined)
		seat->moved_ns = progress->now_ns;
	if (stepped)
		progress->view_serial++;
	progress->news = progress->news || stepped;
	if (!rails_same(&seat->up.rails, &beat->rails) || seat->up.want != beat->want ||
	    seat->up.wired != beat->wired || seat->up.quiet != beat->quiet ||
	    seat->up.armed != beat->armed || seat->up.generation != beat->generation)
		progress->changed = true;
	seat->heard = true;
	seat->up = *beat;
	numbers_hear(progress, beat);
	if (beat->failure_serial > seat->failure_serial) {
		seat->failure_serial = beat->failure_serial;
		failure_hear(progress, number);
	}
	return true;
}

/* A trainer has left between attempts: that is the normal end, unless the last push failed. */
void progress_goodbye(const struct progress *progress, struct ws_error *end_out)
{
	bool left = false;
	*end_out = (struct ws_error){.code = -ECONNRESET, .text = "the hub closed"};
	for (uint32_t i = 0; i < progress->options.trainer_count; i++)
		left = left || progress->seats[i].left;
	if (attempt_is_open(progress)) {
		ws_fail(end_out, -ECONNRESET, "the hub closed in attempt %llu of version %llu",
			(unsigned long long)progress->attempt,
			(unsigned long long)progress->version);
	} else if (left && progress->attempt_error.code != 0) {
		*end_out = progress->attempt_error;
		ws_fail_in(end_out, end_out->code, "the run ended, its last push failed");
	} else if (left && progress->roster_count > 0) {
		*end_out = (struct ws_error){.code = 0, .text = "the run ended"};
	}
}

/* The run has ended when every trainer has said goodbye between attempts. */
static void end_if_all_left(struct progress *progress)
{
	struct ws_error end;
	for (uint32_t i = 0; i < progress->options.trainer_count; i++)
		if (!progress->seats[i].left)
			return;
	if (progress->roster_count == 0 || attempt_is_open(progress))
		return;
	progress_goodbye(progress, &end);
	progress_end(progress, &end);
	progress->gave_up = false;
}

void progress_leave(struct progress *progress, uint64_t id, uint64_t incarnation, uint64_t now_ns)
{
	progress->now_ns = MAX(progress->now_ns, now_ns);
	uint32_t number = progress_seat(progress, id);
	if (number == UINT32_MAX || progress->seats[number].joined != incarnation ||
	    progress->seats[number].left)
		return;
	struct ws_error why;
	char name[MEMBER_NAME_BYTES];
	bool normal = progress->is_ended ||
		      (number < progress->options.trainer_count && !attempt_is_open(progress));
	member_name(id, name);
	ws_fail(&why, -ECONNRESET, "%s left the run", name);
	if (normal)
		seat_release(progress, number, &why);
	else
		seat_lose(progress, number, &why);
	progress->seats[number].left = true;
}

static void silence_check(struct progress *progress, uint32_t number)
{
	struct seat *seat = &progress->seats[number];
	if (seat->joined == 0 || seat->joined <= seat->out ||
	    progress->now_ns - seat->heard_ns <= progress->options.lost_ns)
		return;
	struct ws_error why;
	char name[MEMBER_NAME_BYTES];
	member_name(seat->id, name);
	ws_fail(&why, -ECONNRESET, "%s on '%s' is lost: not heard for %.1f s", name,
		seat->info.host, (double)(progress->now_ns - seat->heard_ns) / 1e9);
	seat_lose(progress, number, &why);
}

static uint64_t later(const struct progress *progress, uint64_t at_ns, uint64_t gap_ns)
{
	return MIN(at_ns + gap_ns, progress->now_ns);
}

/* A hub that was stopped itself must not blame the members for the silence. */
static void own_gap_forgive(struct progress *progress, uint64_t gap_ns)
{
	for (uint32_t i = 0; i < progress_seat_count(progress); i++) {
		struct seat *seat = &progress->seats[i];
		seat->heard_ns = later(progress, seat->heard_ns, gap_ns);
		seat->moved_ns = later(progress, seat->moved_ns, gap_ns);
	}
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		struct replica *replica = &progress->replicas[i];
		replica->word_ns = later(progress, replica->word_ns, gap_ns);
		replica->first_ns = later(progress, replica->first_ns, gap_ns);
	}
	progress->wiring_ns = later(progress, progress->wiring_ns, gap_ns);
	progress->begin_ns = later(progress, progress->begin_ns, gap_ns);
}

static void roster_set(struct progress *progress)
{
	uint32_t count = 0, ranks = progress->options.replica_ranks;
	progress->roster_replica_count = 0;
	for (uint32_t i = 0; i < progress->options.trainer_count; i++)
		progress->roster[count++] = i;
	/* Ascending by id: an insertion sort of few. */
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		if (!replica_is_in(progress, i))
			continue;
		uint32_t at = progress->roster_replica_count++;
		for (; at > 0 && progress->roster_replicas[at - 1] > progress->replicas[i].id; at--)
			progress->roster_replicas[at] = progress->roster_replicas[at - 1];
		progress->roster_replicas[at] = progress->replicas[i].id;
	}
	for (uint32_t i = 0; i < progress->roster_replica_count; i++)
		for (uint32_t rank = 0; rank < ranks; rank++)
			progress->roster[count++] = progress_seat(
				progress,
				member_id(ROLE_ROLLOUT, progress->roster_replicas[i], rank));
	for (uint32_t i = 0; i < count; i++) {
		progress->roster_incarnation[i] = progress->seats[progress->roster[i]].in;
		progress->seats[progress->roster[i]].roster_index = i;
		progress->seats[progress->roster[i]].rails =
			progress->seats[progress->roster[i]].up.rails;
	}
	progress->roster_count = count;
}

static bool trainers_are_there(const struct progress *progress)
{
	for (uint32_t i = 0; i < progress->options.trainer_count; i++)
		if (!seat_is_there(&progress->seats[i]) || rails_are_gone(&progress->seats[i]))
			return false;
	return true;
}

/* All trainers and enough whole replicas: the next generation. */
static void wiring_try(struct progress *progress)
{
	uint32_t whole, fresh = 0;
	bool started = progress->roster_count > 0;
	if (attempt_is_open(progress) || !trainers_are_there(progress) ||
	    !trainers_know(progress) || describe_is_awaited(progress))
		return;
	uint64_t digest = describe_choose(progress, &whole);
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		bool in = replica_is_in(progress, i), fits = replica_digest(progress, i) == digest,
		     joins = !in && fits && replica_is_joinable(progress, i);
		fresh += joins || (in && (!started || !fits));
	}
	for (uint32_t i = 0; i < progress->options.trainer_count; i++)
		fresh += progress->seats[i].in != progress->seats[i].joined;
	bool busy = started && !progress->wired && !progress->rewire;
	if (whole < (started ? 1 : progress->options.min_replicas) || busy ||
	    (fresh == 0 && !progress->rewire))
		return;
	progress->manifest_digest = digest;
	describe_drop_others(progress);
	for (uint32_t i = 0; i < progress->replica_count; i++)
		if (!replica_is_in(progress, i) && replica_digest(progress, i) == digest &&
		    replica_is_joinable(progress, i))
			replica_admit(progress, i);
	for (uint32_t i = 0; i < progress->options.trainer_count; i++)
		progress->seats[i].in = progress->seats[i].joined;
	progress->generation = MAX(progress->generation, progress->generation_heard) + 1;
	progress->rewire = progress->quiet = progress->wired = false;
	progress->wiring_ns = progress->now_ns;
	progress->view_serial++;
	progress->changed = true;
	roster_set(progress);
}

static bool sends(const struct progress *progress, enum member_role role)
{
	return role == ROLE_TRAINER || progress->options.forward != HUB_FORWARD_NONE;
}

/* Whose fault a late wiring is.  One that hangs keeps all of the other role from being wired, so
 * where only some of a role lag it is they, and else the rollouts. */
static bool wiring_blames(const struct progress *progress, const struct seat *seat)
{
	uint32_t lag[3] = {0}, all[3] = {0};
	enum member_role role = member_id_role(seat->id);
	uint64_t generation = progress->generation;
	for (uint32_t i = 0; i < progress->roster_count; i++) {
		const struct seat *other = &progress->seats[progress->roster[i]];
		if (other->up.generation != generation)
			return seat->up.generation != generation;
		all[member_id_role(other->id)]++;
		lag[member_id_role(other->id)] += other->up.wired != generation;
	}
	if (!progress->quiet)
		return sends(progress, role) && seat->up.quiet != generation;
	bool rollouts = lag[ROLE_TRAINER] == 0 || lag[ROLE_ROLLOUT] < all[ROLE_ROLLOUT] ||
			lag[ROLE_TRAINER] == all[ROLE_TRAINER];
	if (lag[ROLE_ROLLOUT] == 0)
		rollouts = false;
	return role == (rollouts ? ROLE_ROLLOUT : ROLE_TRAINER) && seat->up.wired != generation;
}

/* Who hasn't come to quiet or wired within the phase's deadline is out. */
static void wiring_late(struct progress *progress)
{
	if (progress->now_ns - progress->wiring_ns <= progress->options.phase_ns)
		return;
	for (uint32_t i = 0; i < progress->roster_count; i++) {
		struct seat *seat = &progress->seats[progress->roster[i]];
		struct ws_error why;
		char name[MEMBER_NAME_BYTES], step[80];
		if (seat->in == 0 || !wiring_blames(progress, seat))
			continue;
		member_name(seat->id, name);
		step_text(progress, seat, step);
		ws_fail(&why, -ETIMEDOUT, "%s hasn't %s generation %llu within %g s%s", name,
			seat->up.generation != progress->generation ? "taken the roster of"
			: progress->quiet			    ? "connected to its peers of"
					  : "closed its old connections for",
			(unsigned long long)progress->generation,
			(double)progress->options.phase_ns / 1e9, step);
		replica_put_off(progress, progress->roster[i]);
		seat_lose(progress, progress->roster[i], &why);
		return; /* its loss begins a new wiring, with a deadline of its own */
	}
}

static void wiring_tick(struct progress *progress)
{
	bool quiet = true, wired = true;
	rails_tick(progress);
	wiring_try(progress);
	if (progress->roster_count == 0 || progress->rewire)
		return;
	for (uint32_t i = 0; i < progress->roster_count; i++) {
		const struct seat *seat = &progress->seats[progress->roster[i]];
		bool is_in = seat_is_in(seat) && seat->in == progress->roster_incarnation[i];
		wired = wired && is_in && seat->up.wired == progress->generation;
		if (sends(progress, member_id_role(seat->id)))
			quiet = quiet && is_in && seat->up.quiet == progress->generation;
	}
	if ((quiet && !progress->quiet) || (wired && !progress->wired))
		progress->changed = true;
	progress->quiet = progress->quiet || quiet;
	progress->wired = progress->wired || (progress->quiet && wired);
	progress->wired_once = progress->wired_once || progress->wired;
	if (!progress->wired)
		wiring_late(progress);
}

static void roster_tick(struct progress *progress)
{
	for (uint32_t i = 0; i < progress_seat_count(progress); i++)
		silence_check(progress, i);
	wiring_tick(progress);
	end_if_all_left(progress);
	if (progress->roster_count == 0 &&
	    progress->now_ns - progress->opened_ns > progress->options.join_ns) {
		struct ws_error why = {0};
		progress_waits_for(progress, &why);
		ws_fail_in(&why, -ETIMEDOUT, "the run didn't start within %g s",
			   (double)progress->options.join_ns / 1e9);
		progress_end(progress, &why);
	}
}

void progress_tick(struct progress *progress, uint64_t now_ns)
{
	progress->now_ns = MAX(progress->now_ns, now_ns);
	uint64_t gap = progress->now_ns - progress->tick_ns;
	if (gap > progress->options.lost_ns / 2 && progress->tick_ns != 0)
		own_gap_forgive(progress, gap);
	progress->tick_ns = progress->now_ns;
	if (progress->is_ended)
		return;
	roster_tick(progress);
	attempts_tick(progress);
	rails_trouble(progress);
	progress->waits = (struct ws_error){0};
	if (attempt_is_open(progress))
		attempt_waits_for(progress, &progress->waits);
	else
		progress_waits_for(progress, &progress->waits);
}
