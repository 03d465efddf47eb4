/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode and decode of the control frames' bodies, and the names that sentences use.
 * Little-endian through lib/base's reader and writer; an error's text travels as text.
 */
#include "lib/hub/hub_frames.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void member_name(uint64_t id, char name_out[MEMBER_NAME_BYTES])
{
	if (member_id_role(id) == ROLE_TRAINER)
		snprintf(name_out, MEMBER_NAME_BYTES, "trainer %u", member_id_rank(id));
	else
		snprintf(name_out, MEMBER_NAME_BYTES, "rollout %u.%u", member_id_replica(id),
			 member_id_rank(id));
}

const char *rank_state_name(enum rank_state state)
{
	switch (state) {
	case RANK_IDLE:
		return "idle";
	case RANK_READY:
		return "ready";
	case RANK_LANDED:
		return "landed";
	case RANK_PAUSED:
		return "paused";
	case RANK_COMMITTED:
		return "committed";
	case RANK_LIVE:
		return "live";
	case RANK_RESUMED:
		return "resumed";
	case RANK_BAD:
		return "bad";
	}
	return "unknown";
}

const char *replica_word_name(enum replica_word word)
{
	switch (word) {
	case WORD_NONE:
		return "none";
	case WORD_BEGIN:
		return "begin";
	case WORD_PAUSE:
		return "pause";
	case WORD_COMMIT:
		return "commit";
	case WORD_RESUME:
		return "resume";
	case WORD_ABORT:
		return "abort";
	}
	return "unknown";
}

bool word_applies(enum replica_word word, uint64_t word_attempt, enum rank_state state,
		  uint64_t attempt, uint64_t begun)
{
	bool committed = state == RANK_COMMITTED || state == RANK_LIVE || state == RANK_RESUMED;
	switch (word) {
	case WORD_NONE:
		return false;
	case WORD_BEGIN:
		/* A live rank takes it as its resume: the hub begins only after it heard all
		 * resume. */
		return word_attempt > attempt && state != RANK_COMMITTED && state != RANK_BAD;
	case WORD_PAUSE:
		return word_attempt == attempt && state == RANK_LANDED;
	case WORD_COMMIT:
		return word_attempt == attempt && state == RANK_PAUSED;
	case WORD_RESUME:
		return word_attempt == attempt && state == RANK_LIVE;
	case WORD_ABORT:
		/* Also when BEGIN was passed on and the rank is still on its way to ready. */
		if (word_attempt < MAX(attempt, begun) || state == RANK_BAD)
			return false;
		return begun > attempt ||
		       (!committed && (state != RANK_IDLE || begun == word_attempt));
	}
	return false;
}

static void write_error(struct writer *out, const struct ws_error *error)
{
	write_u32(out, (uint32_t)-error->code);
	write_text(out, error->text);
}

/* Errors arrive as their positive errno; anything else isn't one. */
static void read_error(struct reader *in, struct ws_error *error_out)
{
	uint32_t code = read_u32(in);
	if (code > 4095)
		in->failed = true;
	error_out->code = in->failed ? 0 : -(int)code;
	read_text(in, error_out->text, sizeof(error_out->text));
}

static bool read_bool(struct reader *in)
{
	uint8_t value = read_u8(in);
	if (value > 1)
		in->failed = true;
	return value == 1;
}

static uint8_t read_enum(struct reader *in, uint8_t last)
{
	uint8_t value = read_u8(in);
	if (value > last)
		in->failed = true;
	return in->failed ? 0 : value;
}

static void write_blob(struct writer *out, const void *bytes, uint32_t count)
{
	write_u32(out, count);
	write_bytes(out, bytes, count);
}

static const void *read_blob(struct reader *in, uint32_t count_max, uint32_t *count_out)
{
	uint32_t count = read_u32(in);
	if (count > count_max)
		in->failed = true;
	const void *bytes = read_bytes(in, count);
	*count_out = bytes == NULL ? 0 : count;
	return bytes;
}

static int decode_end(const struct reader *in, const char *what, struct ws_error *err)
{
	if (reader_done(in))
		return 0;
	return ws_fail(err, -EPROTO, "a %s frame is %s; is the other side of this version?", what,
		       in->failed ? "cut short or holds a number out of range" : "too long");
}

void join_encode(const struct join *join, struct writer *out)
{
	write_u16(out, join->protocol);
	write_u8(out, (uint8_t)join->role);
	write_u32(out, join->rank);
	write_u32(out, join->replica);
	write_u32(out, join->world);
	write_text(out, join->host);
	write_text(out, join->nics);
	write_u8(out, join->inplace);
	write_u64(out, join->manifest_digest);
	write_u64(out, join->history);
	write_u8(out, join->admitted);
	write_u8(out, join->manifest != NULL);
	if (join->manifest != NULL)
		write_blob(out, join->manifest, join->manifest_bytes);
}

int join_decode(struct join *join_out, const void *bytes, size_t count, struct ws_error *err)
{
	struct reader in = reader_make(bytes, count);
	*join_out = (struct join){.protocol = read_u16(&in)};
	if (!in.failed && join_out->protocol != HUB_PROTOCOL)
		return ws_fail(err, -EPROTO,
			       "it speaks version %u of the control frames, the hub %u",
			       join_out->protocol, HUB_PROTOCOL);
	join_out->role = (enum member_role)read_enum(&in, ROLE_ROLLOUT);
	join_out->rank = read_u32(&in);
	join_out->replica = read_u32(&in);
	join_out->world = read_u32(&in);
	read_text(&in, join_out->host, sizeof(join_out->host));
	read_text(&in, join_out->nics, sizeof(join_out->nics));
	join_out->inplace = read_bool(&in);
	join_out->manifest_digest = read_u64(&in);
	join_out->history = read_u64(&in);
	join_out->admitted = read_bool(&in);
	if (read_bool(&in))
		join_out->manifest = read_blob(&in, MANIFEST_BYTES_MAX, &join_out->manifest_bytes);
	if (join_out->role == 0 || join_out->rank >= HUB_MEMBERS_MAX ||
	    join_out->replica > 0xffffffu)
		in.failed = true;
	return decode_end(&in, "join", err);
}

static void rails_encode(const struct member_rails *rails, struct writer *out)
{
	write_u8(out, (uint8_t)rails->nic_count);
	write_u8(out, (uint8_t)rails->count);
	write_u64(out, rails->rewires);
	for (uint32_t i = 0; i < rails->count; i++) {
		write_u64(out, rails->rail[i].subnet);
		write_u64(out, rails->rail[i].mbps);
	}
}

static void rails_decode(struct member_rails *rails, struct reader *in)
{
	uint32_t nic_count = read_u8(in), count = read_u8(in);
	*rails = (struct member_rails){0};
	if (nic_count > NICS_MAX || count > nic_count) {
		in->failed = true;
		return;
	}
	rails->nic_count = nic_count;
	rails->count = count;
	rails->rewires = read_u64(in);
	for (uint32_t i = 0; i < count; i++) {
		rails->rail[i].subnet = read_u64(in);
		rails->rail[i].mbps = read_u64(in);
	}
}

/* One bit per member, and how many. */
static void bits_encode(const uint8_t *bits, uint32_t count, struct writer *out)
{
	write_u32(out, count);
	write_bytes(out, bits, (count + 7) / 8);
}

static uint32_t bits_decode(uint8_t *bits, struct reader *in)
{
	uint32_t count = read_u32(in);
	if (count > HUB_MEMBERS_MAX)
		in->failed = true;
	const void *bytes = in->failed ? NULL : read_bytes(in, (count + 7) / 8);
	if (bytes == NULL)
		return 0;
	memcpy(bits, bytes, (count + 7) / 8);
	return count;
}

void beat_up_encode(const struct beat_up *beat, struct writer *out)
{
	const uint64_t numbers[] = {beat->sequence,
				    beat->generation,
				    beat->quiet,
				    beat->wired,
				    beat->manifest_held[0],
				    beat->manifest_held[1],
				    beat->view_seen,
				    beat->attempt_seen,
				    beat->want,
				    beat->want_attempt,
				    beat->joined,
				    beat->sent,
				    beat->bytes,
				    beat->from_rollouts,
				    beat->armed,
				    beat->ready_attempt,
				    beat->attempt,
				    beat->live_version,
				    beat->step_age_ms,
				    beat->verified_version,
				    beat->verified_bytes,
				    beat->verified_different,
				    beat->failure_serial};
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
		write_u64(out, numbers[i]);
	bits_encode(beat->ready, beat->ready_count, out);
	write_u8(out, (uint8_t)beat->state);
	write_u8(out, beat->describes);
	write_text(out, beat->waits);
	rails_encode(&beat->rails, out);
	write_text(out, beat->trouble);
	write_u8(out, beat->degraded);
	if (beat->failure_serial == 0)
		return;
	write_u64(out, beat->failure_attempt);
	write_u64(out, beat->failure_about);
	write_u8(out, (uint8_t)beat->failure_kind);
	write_error(out, &beat->failure);
}

int beat_up_decode(struct beat_up *beat_out, const void *bytes, size_t count, struct ws_error *err)
{
	struct reader in = reader_make(bytes, count);
	struct beat_up beat = {0};
	uint64_t *const numbers[] = {&beat.sequence,
				     &beat.generation,
				     &beat.quiet,
				     &beat.wired,
				     &beat.manifest_held[0],
				     &beat.manifest_held[1],
				     &beat.view_seen,
				     &beat.attempt_seen,
				     &beat.want,
				     &beat.want_attempt,
				     &beat.joined,
				     &beat.sent,
				     &beat.bytes,
				     &beat.from_rollouts,
				     &beat.armed,
				     &beat.ready_attempt,
				     &beat.attempt,
				     &beat.live_version,
				     &beat.step_age_ms,
				     &beat.verified_version,
				     &beat.verified_bytes,
				     &beat.verified_different,
				     &beat.failure_serial};
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
		*numbers[i] = read_u64(&in);
	beat.ready_count = bits_decode(beat.ready, &in);
	beat.state = (enum rank_state)read_enum(&in, RANK_BAD);
	beat.describes = read_bool(&in);
	read_text(&in, beat.waits, sizeof(beat.waits));
	rails_decode(&beat.rails, &in);
	read_text(&in, beat.trouble, sizeof(beat.trouble));
	beat.degraded = read_bool(&in);
	if (beat.failure_serial != 0) {
		beat.failure_attempt = read_u64(&in);
		beat.failure_about = read_u64(&in);
		beat.failure_kind = (enum failure_kind)read_enum(&in, FAILURE_PLAN);
		read_error(&in, &beat.failure);
		if (beat.failure_kind == 0)
			in.failed = true;
	}
	int rc = decode_end(&in, "beat", err);
	if (rc == 0)
		*beat_out = beat;
	return rc;
}

#define VIEW_BYTES_MIN 47

static void view_encode(const struct replica_view *view, struct writer *out)
{
	write_u32(out, view->replica);
	write_u8(out, view->in);
	write_u8(out, (uint8_t)view->word);
	write_u8(out, (uint8_t)view->slowest);
	write_u64(out, view->attempt);
	write_u64(out, view->live_version);
	write_u64(out, view->bytes);
	write_u64(out, view->from_rollouts);
	write_error(out, &view->error);
}

static void view_decode(struct replica_view *view_out, struct reader *in)
{
	view_out->replica = read_u32(in);
	view_out->in = read_bool(in);
	view_out->word = (enum replica_word)read_enum(in, WORD_ABORT);
	view_out->slowest = (enum rank_state)read_enum(in, RANK_BAD);
	view_out->attempt = read_u64(in);
	view_out->live_version = read_u64(in);
	view_out->bytes = read_u64(in);
	view_out->from_rollouts = read_u64(in);
	read_error(in, &view_out->error);
}

void beat_down_encode(const struct beat_down *beat, struct writer *out)
{
	const uint64_t numbers[] = {
		beat->sequence,	     beat->joined,	 beat->in,
		beat->dropped,	     beat->generation,	 beat->failure_serial,
		beat->ready_attempt, beat->attempt,	 beat->attempt_generation,
		beat->version,	     beat->word_attempt, beat->view_serial};
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
		write_u64(out, numbers[i]);
	write_u32(out, beat->lost_ms);
	write_u8(out, beat->need_manifest);
	write_u8(out, beat->quiet);
	write_u8(out, beat->wired);
	write_u8(out, beat->over);
	write_u8(out, beat->next_gone);
	write_u8(out, (uint8_t)beat->word);
	write_error(out, &beat->dropped_error);
	write_error(out, &beat->attempt_error);
	write_error(out, &beat->waits);
	write_error(out, &beat->word_error);
	bits_encode(beat->armed, beat->armed_count, out);
	write_text(out, beat->trouble);
	write_u8(out, beat->has_views);
	if (!beat->has_views)
		return;
	write_u32(out, beat->view_count);
	for (uint32_t i = 0; i < beat->view_count; i++)
		view_encode(&beat->views[i], out);
	write_u32(out, beat->verified_count);
	for (uint32_t i = 0; i < beat->verified_count; i++) {
		write_u64(out, beat->verified[i].version);
		write_u64(out, beat->verified[i].bytes);
		write_u64(out, beat->verified[i].different);
		write_u32(out, beat->verified[i].ranks);
	}
}

int beat_down_decode(struct beat_down *beat_out, const void *bytes, size_t count,
		     struct ws_error *err)
{
	struct reader in = reader_make(bytes, count);
	struct beat_down beat = {.views = beat_out->views, .view_room = beat_out->view_room};
	uint64_t *const numbers[] = {
		&beat.sequence,	     &beat.joined,	 &beat.in,
		&beat.dropped,	     &beat.generation,	 &beat.failure_serial,
		&beat.ready_attempt, &beat.attempt,	 &beat.attempt_generation,
		&beat.version,	     &beat.word_attempt, &beat.view_serial};
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
		*numbers[i] = read_u64(&in);
	beat.lost_ms = read_u32(&in);
	beat.need_manifest = read_bool(&in);
	beat.quiet = read_bool(&in);
	beat.wired = read_bool(&in);
	beat.over = read_bool(&in);
	beat.next_gone = read_bool(&in);
	beat.word = (enum replica_word)read_enum(&in, WORD_ABORT);
	read_error(&in, &beat.dropped_error);
	read_error(&in, &beat.attempt_error);
	read_error(&in, &beat.waits);
	read_error(&in, &beat.word_error);
	beat.armed_count = bits_decode(beat.armed, &in);
	read_text(&in, beat.trouble, sizeof(beat.trouble));
	beat.has_views = read_bool(&in);
	if (beat.has_views)
		beat.view_count = read_count(&in, VIEW_BYTES_MIN, beat.view_room);
	struct reader views = in;
	for (uint32_t i = 0; i < beat.view_count && !in.failed; i++) {
		struct replica_view view;
		view_decode(&view, &in);
	}
	if (beat.has_views)
		beat.verified_count = read_count(&in, 28, VERIFIED_MAX);
	for (uint32_t i = 0; i < beat.verified_count; i++) {
		beat.verified[i].version = read_u64(&in);
		beat.verified[i].bytes = read_u64(&in);
		beat.verified[i].different = read_u64(&in);
		beat.verified[i].ranks = read_u32(&in);
	}
	int rc = decode_end(&in, "beat", err);
	if (rc != 0)
		return rc;
	/* The caller's views are the last beat's until this one is known to be good. */
	for (uint32_t i = 0; i < beat.view_count; i++)
		view_decode(&beat.views[i], &views);
	*beat_out = beat;
	return 0;
}

void roster_encode(const struct roster *roster, struct writer *out)
{
	write_u64(out, roster->generation);
	write_u32(out, roster->trainer_count);
	write_u32(out, roster->member_count);
	for (uint32_t i = 0; i < roster->member_count; i++) {
		const struct roster_member *member = &roster->members[i];
		write_u64(out, member->id);
		write_u64(out, member->incarnation);
		write_text(out, member->host);
		write_u8(out, member->inplace);
		rails_encode(&member->rails, out);
	}
	write_u32(out, roster->replica_count);
	for (uint32_t i = 0; i < roster->replica_count; i++)
		write_u32(out, roster->replicas[i]);
	for (size_t side = 0; side < 2; side++) {
		write_u64(out, roster->manifest_digest[side]);
		write_u8(out, roster->manifest[side] != NULL);
		if (roster->manifest[side] != NULL)
			write_blob(out, roster->manifest[side], roster->manifest_bytes[side]);
	}
	write_blob(out, roster->rules, roster->rules_bytes);
}

static void roster_member_decode(struct roster_member *member, struct reader *in)
{
	member->id = read_u64(in);
	member->incarnation = read_u64(in);
	read_text(in, member->host, sizeof(member->host));
	member->inplace = read_bool(in);
	rails_decode(&member->rails, in);
	member->role = member_id_role(member->id);
	member->rank = member_id_rank(member->id);
	member->replica = member_id_replica(member->id);
	if (member->role != ROLE_TRAINER && member->role != ROLE_ROLLOUT)
		in->failed = true;
}

int roster_decode(struct roster *roster_out, struct arena *arena, const void *bytes, size_t count,
		  struct ws_error *err)
{
	struct reader in = reader_make(bytes, count);
	struct roster roster = {.generation = read_u64(&in), .trainer_count = read_u32(&in)};
	roster.member_count = read_count(&in, 23, HUB_MEMBERS_MAX);
	struct roster_member *members = arena_array(arena, roster.member_count, sizeof(*members));
	if (members == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a roster of %u", roster.member_count);
	for (uint32_t i = 0; i < roster.member_count && !in.failed; i++) {
		roster_member_decode(&members[i], &in);
		/* Trainers come first, and only they. */
		if ((members[i].role == ROLE_TRAINER) != (i < roster.trainer_count))
			in.failed = true;
	}
	roster.replica_count = read_count(&in, 4, HUB_REPLICAS_MAX);
	uint32_t *replicas = arena_array(arena, roster.replica_count, sizeof(*replicas));
	if (replicas == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a roster of %u", roster.member_count);
	for (uint32_t i = 0; i < roster.replica_count; i++)
		replicas[i] = read_u32(&in);
	for (size_t side = 0; side < 2; side++) {
		roster.manifest_digest[side] = read_u64(&in);
		if (read_bool(&in))
			roster.manifest[side] =
				read_blob(&in, MANIFEST_BYTES_MAX, &roster.manifest_bytes[side]);
	}
	roster.rules = read_blob(&in, RULES_BYTES_MAX, &roster.rules_bytes);
	if (roster.trainer_count > roster.member_count || roster.generation == 0)
		in.failed = true;
	roster.members = members;
	roster.replicas = replicas;
	int rc = decode_end(&in, "roster", err);
	if (rc == 0)
		*roster_out = roster;
	return rc;
}

void passage_encode(const struct passage *passage, struct writer *out)
{
	write_u64(out, passage->generation);
	write_u64(out, passage->attempt);
	write_u32(out, passage->from);
	write_u32(out, passage->to);
	write_u8(out, passage->answer);
	write_blob(out, passage->body, passage->body_bytes);
}

int passage_decode(struct passage *passage_out, const void *bytes, size_t count,
		   struct ws_error *err)
{
	struct reader in = reader_make(bytes, count);
	struct passage passage = {.generation = read_u64(&in), .attempt = read_u64(&in)};
	passage.from = read_u32(&in);
	passage.to = read_u32(&in);
	passage.answer = read_bool(&in);
	passage.body = read_blob(&in, LINK_BODY_BYTES_MAX, &passage.body_bytes);
	int rc = decode_end(&in, "pair or ready", err);
	if (rc == 0)
		*passage_out = passage;
	return rc;
}

void over_encode(const struct ws_error *error, struct writer *out)
{
	write_error(out, error);
}

int over_decode(struct ws_error *error_out, const void *bytes, size_t count, struct ws_error *err)
{
	struct reader in = reader_make(bytes, count);
	struct ws_error error = {0};
	read_error(&in, &error);
	int rc = decode_end(&in, "goodbye", err);
	if (rc == 0)
		*error_out = error;
	return rc;
}
