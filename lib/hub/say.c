/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the hub tells one member, computed from what progress.c and roster.c decided: a beat
 * down, a line of the roster, a trainer's view of a replica, and who is waited for.
 */
#include "lib/hub/progress.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

uint32_t progress_seat_count(const struct progress *progress)
{
	return replica_seat(progress, progress->replica_count, 0);
}

uint32_t progress_seat(const struct progress *progress, uint64_t id)
{
	uint32_t rank = member_id_rank(id), replica = member_id_replica(id);
	if (member_id_role(id) == ROLE_TRAINER)
		return rank < progress->options.trainer_count ? rank : UINT32_MAX;
	if (member_id_role(id) != ROLE_ROLLOUT || rank >= progress->options.replica_ranks)
		return UINT32_MAX;
	for (uint32_t i = 0; i < progress->replica_count; i++)
		if (progress->replicas[i].id == replica)
			return replica_seat(progress, i, rank);
	return UINT32_MAX;
}

void progress_view(const struct progress *progress, uint32_t replica_id,
		   struct replica_view *view_out)
{
	*view_out = (struct replica_view){.replica = replica_id};
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		const struct replica *replica = &progress->replicas[i];
		if (replica->id != replica_id)
			continue;
		view_out->in = replica_is_in(progress, i);
		view_out->word = replica->word;
		view_out->attempt = replica->attempt;
		view_out->error = replica->error;
		view_out->slowest = RANK_BAD;
		view_out->live_version = UINT64_MAX;
		for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
			const struct beat_up *up =
				&progress->seats[replica_seat(progress, i, rank)].up;
			bool same = up->attempt == replica->attempt;
			view_out->bytes += same ? up->bytes : 0;
			view_out->from_rollouts += same ? up->from_rollouts : 0;
			view_out->slowest = MIN(view_out->slowest, same ? up->state : RANK_IDLE);
			view_out->live_version = MIN(view_out->live_version, up->live_version);
		}
	}
}

/* Sums by version; beyond VERIFIED_MAX the lowest version gives way. */
static void verified_add(struct beat_down *beat, const struct beat_up *up)
{
	struct verified *at = NULL;
	if (up->verified_version == 0)
		return;
	for (uint32_t i = 0; i < beat->verified_count && at == NULL; i++)
		if (beat->verified[i].version == up->verified_version)
			at = &beat->verified[i];
	if (at == NULL && beat->verified_count < VERIFIED_MAX)
		at = &beat->verified[beat->verified_count++];
	for (uint32_t i = 0; i < VERIFIED_MAX && at == NULL; i++)
		if (beat->verified[i].version < up->verified_version)
			at = &beat->verified[i];
	if (at == NULL)
		return;
	if (at->version != up->verified_version)
		*at = (struct verified){.version = up->verified_version};
	at->ranks++;
	at->bytes += up->verified_bytes;
	at->different += up->verified_different;
}

/* Which trainers may be written to by others in the attempt that is open. */
static void armed_say(const struct progress *progress, struct beat_down *beat)
{
	if (progress->over)
		return;
	beat->armed_count = progress->options.trainer_count;
	for (uint32_t i = 0; i < beat->armed_count; i++) {
		const struct seat *seat = &progress->seats[i];
		if (seat_is_in(seat) && seat->up.armed == progress->attempt)
			bit_set(beat->armed, i);
	}
}

static void trainer_say(struct progress *progress, const struct seat *seat,
			struct replica_view *views, struct beat_down *beat)
{
	beat->attempt_error = progress->attempt_error;
	memcpy(beat->trouble, progress->trouble, sizeof(beat->trouble));
	if (progress->attempt == 0 && progress->attempt_heard != 0) {
		/* Attempts of a former hub: whatever is still to be finished is no trainer's
		 * business. */
		beat->attempt = progress->attempt_heard;
		ws_fail(&beat->attempt_error, -ECONNRESET,
			"the hub was restarted during or after attempt %llu",
			(unsigned long long)progress->attempt_heard);
	}
	if (!beat->over)
		beat->attempt_error = (struct ws_error){0};
	armed_say(progress, beat);
	beat->view_serial = progress->view_serial;
	/* A view is of the replicas in the roster that it knows. */
	if (seat->up.view_seen == progress->view_serial || views == NULL ||
	    seat->up.generation != progress->generation)
		return;
	beat->has_views = true;
	beat->views = views;
	beat->view_count = progress->roster_replica_count;
	for (uint32_t i = 0; i < beat->view_count; i++)
		progress_view(progress, progress->roster_replicas[i], &views[i]);
	for (uint32_t i = progress->options.trainer_count; i < progress_seat_count(progress); i++)
		if (seat_is_in(&progress->seats[i]))
			verified_add(beat, &progress->seats[i].up);
}

void progress_beat_down(struct progress *progress, uint32_t number, struct replica_view *views,
			struct beat_down *beat_out)
{
	const struct seat *seat = &progress->seats[number];
	*beat_out = (struct beat_down){.sequence = ++progress->down_sequence,
				       .joined = seat->joined,
				       .in = seat->in,
				       .dropped = seat->out,
				       .dropped_error = seat->out_error,
				       .lost_ms = (uint32_t)(progress->options.lost_ns / 1000000u),
				       .generation = progress->generation,
				       .quiet = progress->quiet,
				       .wired = progress->wired && !progress->rewire,
				       .failure_serial = seat->failure_serial,
				       .attempt = progress->attempt,
				       .attempt_generation = progress->attempt_generation,
				       .version = progress->version,
				       .over = progress->over,
				       .waits = progress->waits};
	if (member_id_role(seat->id) == ROLE_TRAINER) {
		trainer_say(progress, seat, views, beat_out);
		return;
	}
	uint32_t index =
		(number - progress->options.trainer_count) / progress->options.replica_ranks;
	const struct replica *replica = &progress->replicas[index];
	beat_out->word = replica->word;
	beat_out->word_attempt = replica->attempt;
	beat_out->word_error = replica->error;
	beat_out->next_gone = forward_next_gone(progress, number);
}

uint32_t progress_roster_index(const struct progress *progress, uint32_t number)
{
	const struct seat *seat = &progress->seats[number];
	uint32_t index = seat->roster_index;
	if (index >= progress->roster_count || progress->roster[index] != number || seat->in == 0 ||
	    progress->roster_incarnation[index] != seat->in)
		return UINT32_MAX;
	return index;
}

bool progress_owes_roster(const struct progress *progress, uint32_t number)
{
	const struct seat *seat = &progress->seats[number];
	if (progress_roster_index(progress, number) == UINT32_MAX || !seat_is_in(seat) ||
	    progress->rewire || seat->up.generation >= progress->generation)
		return false;
	/* A rank not before it knows that the last attempt is over; trainers do (wiring_try). */
	return member_id_role(seat->id) == ROLE_TRAINER || seat->up.state == RANK_IDLE ||
	       seat->up.state == RANK_RESUMED;
}

void progress_roster_member(const struct progress *progress, uint32_t index,
			    struct roster_member *out)
{
	const struct seat *seat = &progress->seats[progress->roster[index]];
	*out = (struct roster_member){.role = member_id_role(seat->id),
				      .rank = member_id_rank(seat->id),
				      .replica = member_id_replica(seat->id),
				      .id = seat->id,
				      .incarnation = progress->roster_incarnation[index],
				      .rails = seat->rails,
				      .inplace = seat->info.inplace};
	snprintf(out->host, sizeof(out->host), "%s", seat->info.host);
}

/* A list of names that is cut where it gets long. */
struct names {
	char text[300];
	uint32_t count;
};

static void names_add(struct names *names, uint64_t id)
{
	char name[MEMBER_NAME_BYTES];
	size_t used = strlen(names->text);
	member_name(id, name);
	names->count++;
	if (names->count <= 8)
		snprintf(names->text + used, sizeof(names->text) - used, "%s%s",
			 used == 0 ? "" : ", ", name);
	else if (names->count == 9)
		snprintf(names->text + used, sizeof(names->text) - used, " and others");
}

/* The ranks that keep enough replicas from being whole. */
static void ranks_missing(const struct progress *progress, struct names *names)
{
	uint32_t ranks = progress->options.replica_ranks;
	for (uint32_t i = 0; i < progress->replica_count; i++)
		for (uint32_t rank = 0; rank < ranks; rank++) {
			const struct seat *seat = &progress->seats[replica_seat(progress, i, rank)];
			if (!seat_is_there(seat))
				names_add(names, seat->id);
		}
}

int progress_waits_for(const struct progress *progress, struct ws_error *err)
{
	struct names names = {0}, late = {0};
	uint32_t whole;
	for (uint32_t i = 0; i < progress->options.trainer_count; i++)
		if (!seat_is_there(&progress->seats[i]))
			names_add(&names, progress->seats[i].id);
	bool trainers = names.count > 0;
	ranks_missing(progress, &names);
	describe_choose(progress, &whole);
	uint32_t need = progress->options.min_replicas;
	if (rails_wait_for(progress, whole < need, err))
		return err->code;
	if ((whole < need || describe_is_awaited(progress)) && describe_waits_for(progress, err))
		return err->code;
	if (whole < need)
		return ws_fail(err, -EAGAIN, "%u of %u replicas are whole%s%s%s", whole, need,
			       names.count > 0 ? ", and not there: " : "", names.text,
			       names.count == 0 ? "; have all rollouts been started?" : "");
	if (trainers)
		return ws_fail(err, -EAGAIN, "not there: %s", names.text);
	for (uint32_t i = 0; i < progress->roster_count && !progress->wired; i++)
		if (progress->seats[progress->roster[i]].up.wired != progress->generation)
			names_add(&late, progress->seats[progress->roster[i]].id);
	if (late.count > 0)
		return ws_fail(err, -EAGAIN, "not yet connected to their peers: %s", late.text);
	*err = (struct ws_error){0};
	return 0;
}
