/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the hub.  One of an older hub than one seen, or to another incarnation of mine, is
 * dropped; so is one that can't be decoded: the hub repeats itself.
 */
#include "lib/hub/member_inside.h"

#include <errno.h>
#include <string.h>

static bool keep_text(void **kept, uint32_t *kept_bytes, const void *text, uint32_t bytes)
{
	void *copy = mem_alloc((size_t)bytes + 1);
	if (copy == NULL)
		return false;
	memcpy(copy, text, bytes);
	mem_free(*kept);
	*kept = copy;
	*kept_bytes = bytes;
	return true;
}

/* Manifests that come with the roster are kept; one that doesn't come must be held already. */
static bool keep_texts(struct member *member, const struct roster *roster)
{
	uint64_t *held = member->up.manifest_held;
	for (size_t side = 0; side < 2; side++) {
		if (roster->manifest[side] == NULL && roster->manifest_digest[side] != held[side])
			return false;
		if (roster->manifest[side] == NULL)
			continue;
		if (!keep_text(&member->manifest[side], &member->manifest_bytes[side],
			       roster->manifest[side], roster->manifest_bytes[side]))
			return false;
		held[side] = roster->manifest_digest[side];
	}
	return keep_text(&member->rules, &member->rules_bytes, roster->rules, roster->rules_bytes);
}

static uint32_t find_self(const struct member *member, const struct roster *roster)
{
	for (uint32_t i = 0; i < roster->member_count; i++)
		if (roster->members[i].id == member->id &&
		    roster->members[i].incarnation == member->incarnation)
			return i;
	return UINT32_MAX;
}

bool roster_has(const void *roster_event, uint64_t id, uint64_t incarnation)
{
	const struct member_event *event = roster_event;
	for (uint32_t i = 0; i < event->roster_count; i++)
		if (event->roster[i].id == id && event->roster[i].incarnation == incarnation)
			return true;
	return false;
}

static void roster_event(const struct member *member, struct member_event *event_out)
{
	const struct roster *roster = &member->roster;
	*event_out = (struct member_event){.kind = MEMBER_ROSTER,
					   .generation = roster->generation,
					   .roster = roster->members,
					   .roster_count = roster->member_count,
					   .trainer_count = roster->trainer_count,
					   .self = member->self,
					   .replicas = roster->replicas,
					   .replica_count = roster->replica_count,
					   .trainer_manifest = member->manifest[0],
					   .rollout_manifest = member->manifest[1],
					   .rules = member->rules,
					   .trainer_manifest_bytes = member->manifest_bytes[0],
					   .rollout_manifest_bytes = member->manifest_bytes[1],
					   .rules_bytes = member->rules_bytes};
}

static bool roster_hear(struct member *member, const struct frame *frame,
			struct member_event *event_out)
{
	struct arena arena = {0};
	struct roster roster;
	if (roster_decode(&roster, &arena, frame->body, frame->body_bytes, NULL) != 0)
		goto fail;
	uint32_t self = find_self(member, &roster);
	if (roster.generation <= member->roster.generation || self == UINT32_MAX)
		goto fail;
	if (roster.replica_count > member->view_room) {
		struct replica_view *views =
			mem_grow(member->views, sizeof(*views) * member->view_room,
				 sizeof(*views) * roster.replica_count);
		if (views == NULL)
			goto fail;
		member->views = views;
		member->view_room = roster.replica_count;
	}
	if (!keep_texts(member, &roster))
		goto fail;
	arena_release(&member->roster_arena);
	member->roster_arena = arena;
	member->roster = roster;
	member->self = self;
	member->was_in = member->admitted = true;
	member->view_count = 0;
	member->up.view_seen = 0;
	member->up.generation = roster.generation;
	member->up.ready_count = roster.member_count - roster.trainer_count;
	memset(member->up.ready, 0, sizeof(member->up.ready));
	member->dirty = true;
	member_pairs_clear(member);
	roster_event(member, event_out);
	return true;
fail: /* no memory, or not for me: it is repeated */
	arena_release(&arena);
	return false;
}

static bool pair_hear(struct member *member, const struct frame *frame,
		      struct member_event *event_out)
{
	struct passage pair;
	if (passage_decode(&pair, frame->body, frame->body_bytes, NULL) != 0 ||
	    pair.generation != member->roster.generation || pair.to != member->self ||
	    pair.from >= member->roster.member_count)
		return false;
	for (uint32_t i = 0; i < member->pair_count; i++) {
		struct pair_out *mine = &member->pairs[i];
		if (mine->to != pair.from)
			continue;
		if (pair.answer && !mine->answer)
			mine->done = true; /* that was the answer */
		if (!pair.answer && mine->answer) {
			mine->done = false; /* asked again: answered again */
			mine->next_ns = 0;
		}
	}
	if (bit_get(member->pair_in[pair.answer], pair.from))
		return false;
	bit_set(member->pair_in[pair.answer], pair.from);
	*event_out = (struct member_event){.kind = MEMBER_PAIR,
					   .generation = pair.generation,
					   .from = pair.from,
					   .answer = pair.answer,
					   .body = pair.body,
					   .body_bytes = pair.body_bytes};
	return true;
}

/* A trainer has heard the attempt's BEGIN; a rollout's own may still be under way. */
static bool ready_fits(const struct member *member, uint64_t attempt)
{
	if (member->options.role == ROLE_TRAINER)
		return attempt == member->up.attempt_seen;
	return attempt >= MAX(member->begun, member->up.ready_attempt);
}

static bool ready_hear(struct member *member, const struct frame *frame,
		       struct member_event *event_out)
{
	struct passage ready;
	struct beat_up *up = &member->up;
	if (passage_decode(&ready, frame->body, frame->body_bytes, NULL) != 0 ||
	    ready.generation != member->roster.generation || !ready_fits(member, ready.attempt) ||
	    ready.from < member->roster.trainer_count || ready.from >= member->roster.member_count)
		return false;
	if (up->ready_attempt != ready.attempt) {
		memset(up->ready, 0, sizeof(up->ready));
		up->ready_attempt = ready.attempt;
	}
	uint32_t bit = ready.from - member->roster.trainer_count;
	if (bit_get(up->ready, bit))
		return false;
	bit_set(up->ready, bit);
	member->dirty = true;
	*event_out = (struct member_event){.kind = MEMBER_READY,
					   .generation = ready.generation,
					   .attempt = ready.attempt,
					   .from = ready.from,
					   .body = ready.body,
					   .body_bytes = ready.body_bytes};
	return true;
}

static void beat_hear(struct member *member, const struct frame *frame)
{
	struct beat_down beat = {.views = member->views, .view_room = member->view_room};
	struct reader first = reader_make(frame->body, frame->body_bytes);
	/* A late one isn't decoded: its views would replace newer ones. */
	if (read_u64(&first) <= member->down.sequence ||
	    beat_down_decode(&beat, frame->body, frame->body_bytes, NULL) != 0)
		return;
	/* What is only now and then included stays as it was. */
	if (!beat.has_views) {
		beat.verified_count = member->down.verified_count;
		memcpy(beat.verified, member->down.verified, sizeof(beat.verified));
	} else {
		member->view_count = beat.view_count;
		member->up.view_seen = beat.view_serial;
		member->views_due = true;
	}
	if (member->down.joined != beat.joined)
		member->dirty = true; /* its first frame is answered at once */
	if (beat.need_manifest && !member->down.need_manifest)
		member->next_join_ns = 0;
	member->down = beat;
	if (beat.dropped < member->incarnation || member->dropped)
		return;
	if (!member->was_in && !member->up.describes) {
		member_renew(member, beat.dropped); /* nobody has seen this one: silently */
		return;
	}
	member->dropped = member->dropped_due = true;
	member->dropped_error = beat.dropped_error;
}

bool member_hear(struct member *member, const struct frame *frame, uint64_t now_ns,
		 struct member_event *event_out)
{
	if (frame->member != member->id || frame->incarnation != member->incarnation ||
	    frame->hub_incarnation < member->hub_seen)
		return false;
	if (frame->hub_incarnation > member->hub_seen) {
		/* Another hub: it knows nothing of me yet. */
		member->hub_seen = frame->hub_incarnation;
		member->down =
			(struct beat_down){.verified_count = 0, .lost_ms = member->down.lost_ms};
		member->up.view_seen = 0;
		member->next_join_ns = 0;
	}
	member->hub_heard = true;
	member->heard_ns = now_ns;
	if (member->hub_lost) {
		member->hub_lost = false;
		member->found_due = true;
	}
	switch ((enum hub_frame)frame->kind) {
	case FRAME_BEAT_DOWN:
		beat_hear(member, frame);
		return false;
	case FRAME_ROSTER:
		return roster_hear(member, frame, event_out);
	case FRAME_PAIR:
		return pair_hear(member, frame, event_out);
	case FRAME_READY:
		return ready_hear(member, frame, event_out);
	case FRAME_OVER:
		if (!member->is_over &&
		    over_decode(&member->over, frame->body, frame->body_bytes, NULL) == 0) {
			member_send_empty(member, FRAME_LEAVE);
			member->is_over = member->over_due = true;
		}
		return false;
	case FRAME_JOIN:
	case FRAME_BEAT_UP:
	case FRAME_LEAVE:
	case FRAME_STATUS_ASK:
	case FRAME_STATUS:
		return false;
	}
	return false;
}
