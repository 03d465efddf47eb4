/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rollouts that describe themselves again, with another manifest (an expert map has changed).  A
 * run has one target manifest at a time; attempts wait for a while until all replicas have it.
 */
#include "lib/hub/progress.h"

#include <errno.h>
#include <stdio.h>

/* ALIKE: all its ranks brought the same manifest. */
bool replica_is_alike(const struct progress *progress, uint32_t index)
{
	uint64_t digest = replica_digest(progress, index);
	for (uint32_t rank = 1; rank < progress->options.replica_ranks; rank++)
		if (replica_rank(progress, index, rank)->info.manifest_digest != digest)
			return false;
	return true;
}

uint64_t replica_digest(const struct progress *progress, uint32_t index)
{
	return replica_rank(progress, index, 0)->info.manifest_digest;
}

/* WHOLE: in, or could be. */
static bool replica_is_whole(const struct progress *progress, uint32_t index)
{
	return replica_is_in(progress, index) || replica_is_joinable(progress, index);
}

static bool describes_lately(const struct progress *progress, const struct replica *replica)
{
	return replica->describe_ns != 0 &&
	       progress->now_ns - replica->describe_ns <= progress->options.phase_ns;
}

void replica_describes(struct progress *progress, uint32_t index)
{
	struct replica *replica = &progress->replicas[index];
	if (!describes_lately(progress, replica))
		replica->describe_ns = progress->now_ns;
}

/* Who asks is let go, with its replica, between two attempts: it comes back with the new one.  The
 * trainers' reports of the last attempt still have it in. */
void describe_tick(struct progress *progress)
{
	uint32_t trainers = progress->options.trainer_count;
	if (attempt_is_open(progress) || !trainers_know(progress))
		return;
	for (uint32_t i = trainers; i < progress_seat_count(progress); i++) {
		struct seat *seat = &progress->seats[i];
		struct ws_error why;
		char name[MEMBER_NAME_BYTES];
		if (!seat_is_there(seat) || !seat->up.describes)
			continue;
		member_name(seat->id, name);
		ws_fail(&why, -ESTALE, "%s describes itself again", name);
		replica_describes(progress, (i - trainers) / progress->options.replica_ranks);
		seat_release(progress, i, &why);
		progress->changed = true;
	}
}

bool describe_is_awaited(const struct progress *progress)
{
	bool lately = false, unfinished = false, differ = false, any = false;
	uint64_t digest = 0;
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		bool whole = replica_is_whole(progress, i);
		if (describes_lately(progress, &progress->replicas[i])) {
			lately = true;
			unfinished = unfinished || !whole;
		}
		if (!whole)
			continue;
		differ = differ || (any && replica_digest(progress, i) != digest);
		digest = replica_digest(progress, i);
		any = true;
	}
	return lately && (unfinished || differ);
}

static uint32_t whole_with(const struct progress *progress, uint64_t digest)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < progress->replica_count; i++)
		count += replica_is_whole(progress, i) && replica_digest(progress, i) == digest;
	return count;
}

uint64_t describe_choose(const struct progress *progress, uint32_t *whole_out)
{
	uint64_t best = progress->manifest_digest;
	uint32_t count = whole_with(progress, best);
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		uint64_t digest = replica_digest(progress, i);
		if (digest == best || !replica_is_whole(progress, i))
			continue;
		uint32_t others = whole_with(progress, digest);
		if (others > count) {
			best = digest;
			count = others;
		}
	}
	*whole_out = count;
	return best;
}

/* Between two attempts; the wiring that follows is without them. */
void describe_drop_others(struct progress *progress)
{
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		struct replica *replica = &progress->replicas[i];
		uint64_t digest = replica_digest(progress, i);
		if (!replica_is_whole(progress, i) || digest == progress->manifest_digest)
			continue;
		ws_fail(&replica->error, -ESTALE,
			"replica %u has the manifest %016llx, the run now %016llx: it must "
			"describe itself again",
			replica->id, (unsigned long long)digest,
			(unsigned long long)progress->manifest_digest);
		replica_drop(progress, i, &replica->error);
	}
}

/* Ranks of a replica describe one manifest after the other, the same ones: where both have
 * described as many, they have the same. */
int describe_check(const struct progress *progress, const struct join *join, struct ws_error *err)
{
	char name[MEMBER_NAME_BYTES], other[MEMBER_NAME_BYTES];
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++) {
		uint64_t id = member_id(ROLE_ROLLOUT, join->replica, rank);
		uint32_t number = progress_seat(progress, id);
		const struct seat *seat = number == UINT32_MAX ? NULL : &progress->seats[number];
		if (seat == NULL || rank == join->rank || seat->joined <= seat->out ||
		    join->history == 0 || seat->info.history != join->history ||
		    seat->info.manifest_digest == join->manifest_digest)
			continue;
		member_name(member_id(ROLE_ROLLOUT, join->replica, join->rank), name);
		member_name(id, other);
		return ws_fail(err, -ESTALE,
			       "%s described itself again otherwise than %s of its replica "
			       "(manifests %016llx and %016llx); give both the same one",
			       name, other, (unsigned long long)join->manifest_digest,
			       (unsigned long long)seat->info.manifest_digest);
	}
	return 0;
}

/* What of its manifest keeps a rank's replica out; false: nothing. */
static bool rank_waits(const struct progress *progress, uint32_t index, uint32_t rank,
		       struct ws_error *err)
{
	const struct seat *seat = replica_rank(progress, index, rank);
	uint64_t mine = seat->info.manifest_digest, run = progress->manifest_digest;
	uint64_t first = replica_digest(progress, index);
	char name[MEMBER_NAME_BYTES];
	member_name(seat->id, name);
	if (seat->up.describes && seat->joined <= seat->out) {
		ws_fail(err, -EAGAIN, "%s describes itself again and isn't back yet", name);
		return true;
	}
	if (!seat_is_there(seat))
		return false;
	bool alike = replica_is_alike(progress, index);
	if (alike && mine != run) {
		ws_fail(err, -EAGAIN,
			"%s has the manifest %016llx, the run %016llx: all replicas must describe "
			"themselves alike",
			name, (unsigned long long)mine, (unsigned long long)run);
		return true;
	}
	if (!alike && (mine == run || (first != run && mine != first))) {
		ws_fail(err, -EAGAIN,
			"%s has the manifest %016llx, others of its replica have another one: it "
			"must describe itself again",
			name, (unsigned long long)mine);
		return true;
	}
	return false;
}

bool describe_waits_for(const struct progress *progress, struct ws_error *err)
{
	if (progress->roster_count == 0)
		return false;
	for (uint32_t i = 0; i < progress->replica_count; i++)
		for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++)
			if (!replica_is_in(progress, i) && rank_waits(progress, i, rank, err))
				return true;
	return false;
}
