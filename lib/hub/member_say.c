/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a member says: kept, sent at once when it changed, repeated by beats; join, ready and
 * pair frames repeated until they are answered.
 */
#include "lib/hub/member_inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MS_NS		1000000u
#define BEAT_NS		(HUB_BEAT_MS * (uint64_t)MS_NS)
#define BEAT_GAP_NS	(1 * (uint64_t)MS_NS)  /* a change is said at once, but in the long run */
#define BEAT_BURST_NS	(20 * (uint64_t)MS_NS) /* not more often; an attempt has few */
#define JOIN_REPEAT_NS	(250 * (uint64_t)MS_NS)
#define READY_REPEAT_NS (250 * (uint64_t)MS_NS)
#define PAIR_REPEAT_NS	(200 * (uint64_t)MS_NS)
#define PAIR_REPEAT_MAX (2000 * (uint64_t)MS_NS)

static int frame_send(struct member *member, enum hub_frame kind, const void *body, size_t bytes)
{
	struct frame frame = {.kind = (uint16_t)kind,
			      .hub_incarnation = member->hub_seen,
			      .member = member->id,
			      .incarnation = member->incarnation,
			      .body = body,
			      .body_bytes = (uint32_t)bytes};
	return link_send(member->link, &frame, NULL);
}

void member_send_empty(struct member *member, enum hub_frame kind)
{
	frame_send(member, kind, NULL, 0);
}

static void join_send(struct member *member)
{
	const struct member_options *options = &member->options;
	struct join join = {.protocol = HUB_PROTOCOL,
			    .role = options->role,
			    .rank = options->rank,
			    .replica = options->role == ROLE_ROLLOUT ? options->replica : 0,
			    .world = options->world,
			    .inplace = options->inplace,
			    .manifest_digest = options->manifest_digest,
			    .history = member->history,
			    .admitted = member->admitted};
	memcpy(join.host, member->host, sizeof(join.host));
	if (options->nics != NULL)
		snprintf(join.nics, sizeof(join.nics), "%s", options->nics);
	if (member->down.need_manifest) {
		join.manifest = options->manifest;
		join.manifest_bytes = options->manifest_bytes;
	}
	writer_reset(&member->out);
	join_encode(&join, &member->out);
	if (!member->out.failed)
		frame_send(member, FRAME_JOIN, member->out.bytes, member->out.count);
}

static void beat_send(struct member *member, uint64_t now_ns)
{
	struct beat_up *up = &member->up;
	up->sequence++;
	up->step_age_ms = UINT64_MAX;
	if (member->last_step_ns != 0)
		up->step_age_ms =
			now_ns > member->last_step_ns ? (now_ns - member->last_step_ns) / MS_NS : 0;
	writer_reset(&member->out);
	beat_up_encode(up, &member->out);
	if (!member->out.failed)
		frame_send(member, FRAME_BEAT_UP, member->out.bytes, member->out.count);
	member->dirty = false;
	member->next_change_ns =
		BEAT_GAP_NS + MAX(member->next_change_ns, now_ns - MIN(now_ns, BEAT_BURST_NS));
	member->next_beat_ns = now_ns + BEAT_NS;
}

static bool is_joined(const struct member *member)
{
	return member->hub_heard && member->down.joined == member->incarnation;
}

/* Pair frames and the ready frame, as long as nobody answered. */
static void passages_send(struct member *member, uint64_t now_ns)
{
	if (member->ready_attempt > member->down.ready_attempt && now_ns >= member->ready_next_ns) {
		struct passage ready = {.generation = member->roster.generation,
					.attempt = member->ready_attempt,
					.from = member->self,
					.body = member->ready.bytes,
					.body_bytes = (uint32_t)member->ready.count};
		writer_reset(&member->out);
		passage_encode(&ready, &member->out);
		if (!member->out.failed)
			frame_send(member, FRAME_READY, member->out.bytes, member->out.count);
		member->ready_next_ns = now_ns + READY_REPEAT_NS;
	}
	for (uint32_t i = 0; i < member->pair_count; i++) {
		struct pair_out *pair = &member->pairs[i];
		if (pair->done || now_ns < pair->next_ns)
			continue;
		struct passage passage = {.generation = member->roster.generation,
					  .from = member->self,
					  .to = pair->to,
					  .answer = pair->answer,
					  .body = pair->body,
					  .body_bytes = pair->body_bytes};
		writer_reset(&member->out);
		passage_encode(&passage, &member->out);
		if (member->out.failed ||
		    frame_send(member, FRAME_PAIR, member->out.bytes, member->out.count) != 0)
			return; /* the queue is full, or no connection: at the next turn */
		pair->done = pair->answer;
		pair->next_ns = now_ns + pair->interval_ns;
		pair->interval_ns = MIN(2 * pair->interval_ns, PAIR_REPEAT_MAX);
	}
}

void member_send_due(struct member *member, uint64_t now_ns)
{
	if (!member->connected || member->is_over || member->dropped)
		return;
	if (!is_joined(member) || member->down.need_manifest) {
		if (now_ns >= member->next_join_ns) {
			join_send(member);
			member->next_join_ns = now_ns + JOIN_REPEAT_NS;
		}
		if (!is_joined(member))
			return;
	}
	if (now_ns >= member->next_beat_ns || (member->dirty && now_ns >= member->next_change_ns))
		beat_send(member, now_ns);
	passages_send(member, now_ns);
}

uint64_t member_next_due(const struct member *member)
{
	if (!member->connected || member->is_over || member->dropped)
		return UINT64_MAX;
	if (!is_joined(member))
		return member->next_join_ns;
	uint64_t due = member->dirty ? member->next_change_ns : member->next_beat_ns;
	if (member->ready_attempt > member->down.ready_attempt)
		due = MIN(due, member->ready_next_ns);
	for (uint32_t i = 0; i < member->pair_count; i++)
		if (!member->pairs[i].done)
			due = MIN(due, member->pairs[i].next_ns);
	return due;
}

void member_say_quiet(struct member *member, uint64_t generation)
{
	member->dirty = member->dirty || member->up.quiet != generation;
	member->up.quiet = generation;
}

void member_say_wired(struct member *member, uint64_t generation)
{
	member->dirty = member->dirty || member->up.wired != generation;
	member->up.wired = generation;
}

void member_say_push(struct member *member, uint64_t version, uint64_t attempt_joined,
		     uint64_t attempt_sent, uint64_t bytes_sent)
{
	struct beat_up *up = &member->up;
	if (up->want != version) {
		up->want_attempt = 0;
		member->want_joined = up->joined;
	}
	/* A want that names the attempt it joins is spent on it. */
	if (version != 0 && up->want_attempt == 0 && attempt_joined > member->want_joined)
		up->want_attempt = attempt_joined;
	member->dirty = member->dirty || up->want != version || up->joined != attempt_joined;
	up->want = version;
	up->joined = attempt_joined;
	up->sent = attempt_sent;
	up->bytes = bytes_sent;
}

void member_say_state(struct member *member, enum rank_state state, uint64_t attempt,
		      uint64_t live_version, uint64_t last_step_ns, uint64_t bytes_received)
{
	struct beat_up *up = &member->up;
	/* Nobody acts upon READY, which its frame tells, or COMMITTED. */
	if (state != RANK_READY && state != RANK_COMMITTED)
		member->dirty = member->dirty || up->state != state || up->attempt != attempt ||
				up->live_version != live_version;
	up->state = state;
	up->attempt = attempt;
	up->live_version = live_version;
	up->bytes = bytes_received;
	member->last_step_ns = last_step_ns;
}

void member_say_rails(struct member *member, const struct member_rails *rails, const char *trouble,
		      bool degraded)
{
	struct beat_up *up = &member->up;
	if (rails_same(&up->rails, rails) && strcmp(up->trouble, trouble) == 0 &&
	    up->degraded == degraded)
		return;
	up->rails = *rails;
	up->degraded = degraded;
	snprintf(up->trouble, sizeof(up->trouble), "%s", trouble);
	member->dirty = true;
}

void member_say_forwarded(struct member *member, uint64_t bytes_from_rollouts)
{
	member->up.from_rollouts = bytes_from_rollouts;
}

void member_say_waiting(struct member *member, const char *text)
{
	snprintf(member->up.waits, sizeof(member->up.waits), "%s", text);
}

void member_say_verified(struct member *member, uint64_t version, uint64_t bytes,
			 uint64_t different_bytes)
{
	member->up.verified_version = version;
	member->up.verified_bytes = bytes;
	member->up.verified_different = different_bytes;
	member->dirty = true;
}

int member_say_ready(struct member *member, uint64_t attempt, const void *body, uint32_t bytes,
		     struct ws_error *err)
{
	if (member->options.role == ROLE_TRAINER) {
		member->dirty = member->dirty || member->up.armed != attempt;
		member->up.armed = attempt;
		return 0;
	}
	if (bytes > READY_BODY_BYTES_MAX)
		return ws_fail(err, -ENOSPC, "a ready frame of %u bytes is above %u", bytes,
			       READY_BODY_BYTES_MAX);
	writer_reset(&member->ready);
	write_bytes(&member->ready, body, bytes);
	if (member->ready.failed)
		return ws_fail(err, -ENOMEM, "no memory for a ready frame of %u bytes", bytes);
	member->ready_attempt = attempt;
	member->ready_next_ns = 0;
	return 0;
}

int member_say_pair(struct member *member, uint64_t generation, uint32_t to, bool answer,
		    const void *body, uint32_t bytes, struct ws_error *err)
{
	if (generation != member->roster.generation || to >= member->roster.member_count)
		return ws_fail(err, -ESTALE, "the wiring moved on to generation %llu",
			       (unsigned long long)member->roster.generation);
	if (bytes > LINK_BODY_BYTES_MAX - 64)
		return ws_fail(err, -ENOSPC, "a pair frame of %u bytes is too long", bytes);
	if (member->pair_count == member->pair_room) {
		uint32_t room = MAX(16, 2 * member->pair_room);
		struct pair_out *pairs = mem_grow(member->pairs, sizeof(*pairs) * member->pair_room,
						  sizeof(*pairs) * room);
		if (pairs == NULL)
			return ws_fail(err, -ENOMEM, "no memory for %u pair frames", room);
		member->pairs = pairs;
		member->pair_room = room;
	}
	void *copy = mem_alloc(bytes);
	if (copy == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a pair frame of %u bytes", bytes);
	if (bytes > 0)
		memcpy(copy, body, bytes);
	member->pairs[member->pair_count++] = (struct pair_out){.to = to,
								.answer = answer,
								.body = copy,
								.body_bytes = bytes,
								.interval_ns = PAIR_REPEAT_NS};
	return 0;
}

int pair_say(struct member *member, uint64_t generation, uint32_t to, bool answer,
	     const struct pair_frame *frame, struct ws_error *err)
{
	struct writer body = WRITER_INIT(LINK_BODY_BYTES_MAX);
	int rc = pair_encode(frame, &body);
	if (rc != 0)
		rc = ws_fail(err, rc, "a pair frame for member %u of the roster %s", to,
			     rc == -ENOMEM ? "finds no memory" : "is too long");
	else
		rc = member_say_pair(member, generation, to, answer, body.bytes,
				     (uint32_t)body.count, err);
	writer_release(&body);
	return rc;
}

void member_pairs_clear(struct member *member)
{
	for (uint32_t i = 0; i < member->pair_count; i++)
		mem_free(member->pairs[i].body);
	member->pair_count = 0;
	memset(member->pair_in, 0, sizeof(member->pair_in));
}

void member_say_failure(struct member *member, enum failure_kind kind, uint64_t attempt,
			uint32_t about, const struct ws_error *error)
{
	struct beat_up *up = &member->up;
	/* The first one not yet acknowledged stays: it is the cause of those that follow; but a
	 * poisoned memory must be known whatever else is. */
	if (up->failure_serial > member->down.failure_serial && kind != FAILURE_POISONED &&
	    up->failure_attempt == attempt)
		return;
	up->failure_serial++;
	up->failure_kind = kind;
	up->failure_attempt = attempt;
	up->failure_about =
		about < member->roster.member_count ? member->roster.members[about].id : 0;
	up->failure = *error;
	member->dirty = true;
}

/* A new incarnation: nothing of the old one's is said any more. */
void member_renew(struct member *member, uint64_t above)
{
	struct beat_up *up = &member->up;
	member->incarnation = MAX(member->incarnation, above) + 1;
	up->state = RANK_IDLE;
	up->describes = false;
	up->quiet = up->wired = up->armed = 0;
	up->generation = 0;
	up->failure_serial = 0;
	member->ready_attempt = member->down.ready_attempt = member->down.failure_serial = 0;
	member->down.joined = member->down.in = 0;
	member->down.need_manifest = false;
	member->dropped = member->dropped_due = member->was_in = false;
	member->roster.generation = 0;
	member->word_told = WORD_NONE;
	member->begun = 0;
	member->next_join_ns = 0;
	member_pairs_clear(member);
}

int member_rejoin(struct member *member, struct ws_error *err)
{
	if (member->is_over)
		return ws_fail(err, member->over.code == 0 ? -ECANCELED : member->over.code, "%s",
			       member->over.text);
	member_renew(member, member->down.dropped);
	return 0;
}

void member_say_describe(struct member *member, bool describes)
{
	member->dirty = member->dirty || member->up.describes != describes;
	member->up.describes = describes;
}

int member_describe(struct member *member, const void *manifest, uint32_t manifest_bytes,
		    uint64_t manifest_digest, struct ws_error *err)
{
	struct member_options *options = &member->options;
	if (manifest_bytes > MANIFEST_BYTES_MAX)
		return ws_fail(err, -EINVAL, "a manifest of %u bytes can't be sent: at most %u",
			       manifest_bytes, MANIFEST_BYTES_MAX);
	member->history = mix64(member->history ^ options->manifest_digest) | 1;
	options->manifest = manifest;
	options->manifest_bytes = manifest_bytes;
	options->manifest_digest = manifest_digest;
	return member_rejoin(member, err);
}
