/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs and rails that go out of use and come back.  Members say at any time which NICs they have;
 * the roster keeps what they had when it was made, and is made anew between two attempts where that
 * differs.  Rails between two members are their own affair, until one is to be tried again.
 * Nothing goes on without a trainer whose NICs are all gone; a rollout's replica waits outside.
 */
#include <errno.h>
#include <stdio.h>

#include "lib/hub/progress.h"

bool rails_are_gone(const struct seat *seat)
{
	return seat->up.rails.nic_count > 0 && seat->up.rails.count == 0;
}

static int gone_say(const struct seat *seat, int code, struct ws_error *err)
{
	char name[MEMBER_NAME_BYTES];
	const char *why = seat->up.trouble;

	member_name(seat->id, name);
	return ws_fail(err, code, "%s has no NIC in use%s%s", name, why[0] != '\0' ? ": " : "",
		       why);
}

static void seat_tick(struct progress *progress, uint32_t number)
{
	const struct seat *seat = &progress->seats[number];
	struct ws_error why;

	if (!seat_is_in(seat) || rails_same(&seat->rails, &seat->up.rails))
		return;
	if (!progress->rewire)
		progress->rewire = progress->changed = true;
	/* What kept a replica from being wired may be mended. */
	for (uint32_t i = 0; i < progress->replica_count; i++)
		progress->replicas[i].retry_ns = 0;
	if (number < progress->options.trainer_count || !rails_are_gone(seat))
		return;
	gone_say(seat, -EIO, &why);
	seat_lose(progress, number, &why);
}

void rails_tick(struct progress *progress)
{
	if (attempt_is_open(progress) || !trainers_know(progress))
		return;
	for (uint32_t i = 0; i < progress->roster_count; i++)
		seat_tick(progress, progress->roster[i]);
}

void rails_trouble(struct progress *progress)
{
	const struct seat *first = NULL;
	uint32_t others = 0;
	char name[MEMBER_NAME_BYTES], and_more[40] = "";

	for (uint32_t i = 0; i < progress_seat_count(progress); i++) {
		const struct seat *seat = &progress->seats[i];
		/* What it says of NICs in use is for status. */
		if (!seat_is_there(seat) || !seat->up.degraded)
			continue;
		others += first != NULL;
		first = first != NULL ? first : seat;
	}
	progress->trouble[0] = '\0';
	if (first == NULL)
		return;
	member_name(first->id, name);
	if (others > 0)
		snprintf(and_more, sizeof(and_more), " (and %u other%s)", others,
			 others > 1 ? "s" : "");
	snprintf(progress->trouble, sizeof(progress->trouble), "%s%s: %.180s", name, and_more,
		 first->up.trouble);
}

bool rails_wait_for(const struct progress *progress, bool replicas, struct ws_error *err)
{
	uint32_t count = replicas ? progress_seat_count(progress) : progress->options.trainer_count;

	for (uint32_t i = 0; i < count; i++) {
		const struct seat *seat = &progress->seats[i];
		if (seat_is_there(seat) && rails_are_gone(seat)) {
			gone_say(seat, -EAGAIN, err);
			return true;
		}
	}
	return false;
}
