/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rollouts that write to rollouts: who to whom, and what a drop means to the replicas behind it.
 * A replica that waits for bytes of one that was dropped can't land any more, so it goes too; one
 * that has landed needs nothing of anybody.
 */
#include "lib/hub/progress.h"

#include <errno.h>

static uint32_t seat_replica(const struct progress *progress, uint32_t seat)
{
	return (seat - progress->options.trainer_count) / progress->options.replica_ranks;
}

static uint32_t seat_rank(const struct progress *progress, uint32_t seat)
{
	return (seat - progress->options.trainer_count) % progress->options.replica_ranks;
}

/* The place of a replica in the roster, from 0; roster_replica_count: it isn't there. */
static uint32_t roster_place(const struct progress *progress, uint32_t index)
{
	uint32_t place = 0;
	while (place < progress->roster_replica_count &&
	       progress->roster_replicas[place] != progress->replicas[index].id)
		place++;
	return place;
}

/* The replica at a place of the roster, or UINT32_MAX. */
static uint32_t replica_at(const struct progress *progress, uint32_t place)
{
	if (place >= progress->roster_replica_count)
		return UINT32_MAX;
	uint32_t seat = progress_seat(progress,
				      member_id(ROLE_ROLLOUT, progress->roster_replicas[place], 0));
	return seat_replica(progress, seat);
}

static uint32_t replica_behind(const struct progress *progress, uint32_t index)
{
	return replica_at(progress, roster_place(progress, index) + 1);
}

uint32_t forward_writers(const struct progress *progress, uint32_t seat, uint32_t *first_out)
{
	uint32_t index = seat_replica(progress, seat), place = roster_place(progress, index);
	*first_out = replica_seat(progress, index, 0);
	switch (progress->options.forward) {
	case HUB_FORWARD_NONE:
		return 0;
	case HUB_FORWARD_INSIDE:
		return progress->options.replica_ranks;
	case HUB_FORWARD_CHAIN:
		if (place == 0 || place >= progress->roster_replica_count)
			return 0;
		*first_out = replica_seat(progress, replica_at(progress, place - 1),
					  seat_rank(progress, seat));
		return 1;
	}
	return 0;
}

bool forward_next_gone(const struct progress *progress, uint32_t seat)
{
	if (progress->options.forward != HUB_FORWARD_CHAIN)
		return false;
	uint32_t next = replica_behind(progress, seat_replica(progress, seat));
	return next != UINT32_MAX &&
	       progress_roster_index(progress, replica_seat(progress, next, 0)) == UINT32_MAX;
}

static bool has_landed(const struct progress *progress, uint32_t index)
{
	for (uint32_t rank = 0; rank < progress->options.replica_ranks; rank++)
		if (!rank_is_at(progress, index, rank, RANK_LANDED))
			return false;
	return true;
}

bool forward_awaits(const struct progress *progress, uint32_t index)
{
	uint32_t place = roster_place(progress, index);
	if (progress->options.forward != HUB_FORWARD_CHAIN || place == 0)
		return false;
	uint32_t before = replica_at(progress, place - 1);
	return before != UINT32_MAX && !has_landed(progress, before);
}

void forward_drop(struct progress *progress, uint32_t index, const struct ws_error *why)
{
	if (progress->options.forward != HUB_FORWARD_CHAIN || progress->over)
		return;
	uint32_t next = replica_behind(progress, index);
	if (next == UINT32_MAX || !replica_is_in(progress, next))
		return;
	const struct replica *replica = &progress->replicas[next];
	bool waits = replica->waits_trainers || replica->word == WORD_BEGIN;
	if (!replica->in_attempt || !waits || has_landed(progress, next))
		return;
	struct ws_error cause = *why;
	ws_fail_in(&cause, why->code, "replica %u gets its weights from replica %u", replica->id,
		   progress->replicas[index].id);
	replica_drop(progress, next, &cause);
}
