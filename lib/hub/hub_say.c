/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that the hub sends: beats on time and on change, the roster and ready frames until the
 * member's beat shows that they came.  A queue that is full is tried again at the next turn.
 */
#include <errno.h>
#include <string.h>

#include "lib/hub/hub_inside.h"

#define MS_NS	       UINT64_C(1000000)
#define BEAT_NS	       (HUB_BEAT_MS * MS_NS)
#define ROSTER_NS      (1000 * MS_NS)
#define READY_NS       (250 * MS_NS)
#define OVER_NS	       (200 * MS_NS)
#define SEQUENCE_BYTES 8 /* a beat's first field, which alone is no reason to send it */

int hub_send(struct hub *hub, enum hub_frame kind, uint64_t member, uint64_t incarnation,
	     uint64_t route)
{
	struct frame frame = {.kind = (uint16_t)kind,
			      .hub_incarnation = hub->progress.options.incarnation,
			      .member = member,
			      .incarnation = incarnation,
			      .body = hub->out.bytes,
			      .body_bytes = (uint32_t)hub->out.count,
			      .route = route};
	if (hub->out.failed)
		return -ENOMEM;
	return link_send(hub->link, &frame, NULL);
}

void hub_send_over(struct hub *hub, const struct frame *to, const struct ws_error *error)
{
	writer_reset(&hub->out);
	over_encode(error, &hub->out);
	hub_send(hub, FRAME_OVER, to->member, to->incarnation, to->route);
}

void hub_send_hello(struct hub *hub, const struct frame *to, bool need_manifest)
{
	struct beat_down hello = {.sequence = ++hub->progress.down_sequence,
				  .need_manifest = need_manifest,
				  .lost_ms = (uint32_t)(hub->progress.options.lost_ns / MS_NS)};
	uint32_t number = progress_seat(&hub->progress, to->member);
	if (number != UINT32_MAX && to->incarnation <= hub->progress.seats[number].out) {
		hello.dropped = hub->progress.seats[number].out;
		hello.dropped_error = hub->progress.seats[number].out_error;
	}
	writer_reset(&hub->out);
	beat_down_encode(&hello, &hub->out);
	hub_send(hub, FRAME_BEAT_DOWN, to->member, to->incarnation, to->route);
}

static void beat_say(struct hub *hub, uint32_t number, uint64_t now_ns)
{
	struct seat_io *io = &hub->io[number];
	const struct seat *seat = &hub->progress.seats[number];
	struct beat_down beat;
	progress_beat_down(&hub->progress, number, hub->views, &beat);
	beat.ready_attempt = io->ready_attempt;
	writer_reset(&hub->out);
	beat_down_encode(&beat, &hub->out);
	if (hub->out.failed)
		return;
	uint64_t digest =
		digest_bytes(hub->out.bytes + SEQUENCE_BYTES, hub->out.count - SEQUENCE_BYTES, 0);
	if (digest == io->beat_digest && now_ns < io->next_beat_ns)
		return;
	if (hub_send(hub, FRAME_BEAT_DOWN, seat->id, seat->joined, io->route) != 0)
		return;
	io->beat_digest = digest;
	io->next_beat_ns = now_ns + BEAT_NS;
}

/* The text only for who doesn't hold it. */
static void roster_manifest_put(const struct hub *hub, const struct seat *seat, size_t side,
				struct roster *roster)
{
	uint64_t digest = side == 0 ? hub->progress.seats[0].info.manifest_digest
				    : hub->progress.manifest_digest;
	const struct manifest_text *manifest =
		hub_manifest(hub, side == 0 ? ROLE_TRAINER : ROLE_ROLLOUT, digest);
	roster->manifest_digest[side] = digest;
	if (manifest == NULL || seat->up.manifest_held[side] == digest)
		return;
	roster->manifest[side] = manifest->text;
	roster->manifest_bytes[side] = manifest->bytes;
}

static void roster_say(struct hub *hub, uint32_t number, uint64_t now_ns)
{
	struct seat_io *io = &hub->io[number];
	const struct progress *progress = &hub->progress;
	const struct seat *seat = &progress->seats[number];
	bool repeated = io->roster_generation == progress->generation;
	if ((repeated && now_ns < io->roster_ns) || !progress_owes_roster(progress, number))
		return;
	for (uint32_t i = 0; i < progress->roster_count; i++)
		progress_roster_member(progress, i, &hub->members[i]);
	struct roster roster = {.generation = progress->generation,
				.member_count = progress->roster_count,
				.trainer_count = progress->options.trainer_count,
				.replica_count = progress->roster_replica_count,
				.members = hub->members,
				.replicas = progress->roster_replicas,
				.rules = hub->rules,
				.rules_bytes = hub->rules_bytes};
	for (size_t side = 0; side < 2; side++)
		roster_manifest_put(hub, seat, side, &roster);
	writer_reset(&hub->out);
	roster_encode(&roster, &hub->out);
	if (hub_send(hub, FRAME_ROSTER, seat->id, seat->joined, io->route) != 0)
		return;
	io->roster_generation = progress->generation;
	io->roster_ns = now_ns + ROSTER_NS;
}

/* One rollout's ready, to those who write to it and whose beats don't show it yet. */
static void ready_say(struct hub *hub, uint32_t number, uint64_t now_ns)
{
	struct seat_io *io = &hub->io[number];
	const struct progress *progress = &hub->progress;
	uint32_t index = progress_roster_index(progress, number);
	if (progress->over || io->ready_attempt != progress->attempt || index == UINT32_MAX ||
	    (io->ready_ns != 0 && now_ns - io->ready_ns < READY_NS))
		return;
	uint32_t trainers = progress->options.trainer_count, bit = index - trainers, first;
	uint32_t writers = trainers + forward_writers(progress, number, &first);
	bool encoded = false;
	for (uint32_t n = 0; n < writers; n++) {
		uint32_t i = n < trainers ? n : first + n - trainers;
		const struct beat_up *up = &progress->seats[i].up;
		bool has = up->ready_attempt == progress->attempt && bit < up->ready_count &&
			   bit_get(up->ready, bit);
		if (has || i == number || !seat_is_in(&progress->seats[i]))
			continue;
		struct passage ready = {.generation = progress->generation,
					.attempt = io->ready_attempt,
					.from = index,
					.body = io->ready.bytes,
					.body_bytes = (uint32_t)io->ready.count};
		if (!encoded) {
			writer_reset(&hub->out);
			passage_encode(&ready, &hub->out);
			encoded = true;
		}
		hub_send(hub, FRAME_READY, progress->seats[i].id, progress->seats[i].joined,
			 hub->io[i].route);
	}
	io->ready_ns = now_ns;
}

void hub_say_over(struct hub *hub, uint64_t now_ns)
{
	const struct progress *progress = &hub->progress;
	for (uint32_t i = 0; i < hub->io_count; i++) {
		struct seat_io *io = &hub->io[i];
		const struct seat *seat = &progress->seats[i];
		if (seat->joined == 0 || seat->left || io->route == 0 || now_ns < io->over_ns)
			continue;
		io->over_ns = now_ns + OVER_NS;
		struct frame to = {
			.member = seat->id, .incarnation = seat->joined, .route = io->route};
		hub_send_over(hub, &to, &progress->ended);
	}
}

void hub_say(struct hub *hub, uint64_t now_ns)
{
	bool changed = hub->progress.changed || hub->progress.news;
	if (!hub_io_grow(hub))
		return;
	hub->progress.changed = hub->progress.news = false;
	if (hub->progress.is_ended) {
		hub_say_over(hub, now_ns);
		return;
	}
	for (uint32_t i = 0; i < hub->io_count; i++) {
		if (hub->progress.seats[i].joined == 0 || hub->io[i].route == 0)
			continue;
		if (changed || now_ns >= hub->io[i].next_beat_ns)
			beat_say(hub, i, now_ns);
		roster_say(hub, i, now_ns);
	}
	for (uint32_t i = hub->progress.options.trainer_count; i < hub->io_count; i++)
		ready_say(hub, i, now_ns);
}
