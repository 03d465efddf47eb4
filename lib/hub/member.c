/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member's end: its life (dial, join, lose and find the hub, leave) and the order in which
 * what the hub says is yielded.  States aren't queued: each event compares what the hub says now
 * with what was yielded before.
 */
#include "lib/hub/member_inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FRAMES_MAX	64 /* looked at in one step before the caller is heard again */
#define JOIN_MS_DEFAULT 60000
#define LOST_MS_FIRST	5000
#define MS_NS		UINT64_C(1000000)

/* Rises from process to process, also over a reboot, and two of one moment differ. */
static int incarnation_make(uint64_t *incarnation_out, struct ws_error *err)
{
	struct timespec now;
	uint64_t noise;
	int rc = random_bytes(&noise, sizeof(noise), err);
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
	*incarnation_out = us << 10 | (noise & 0x3ff);
	return rc;
}

int member_open(struct member **member_out, const struct member_options *options,
		struct ws_error *err)
{
	struct member *member = mem_alloc(sizeof(*member));
	*member_out = NULL;
	if (member == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a member");
	member->options = *options;
	if (member->options.join_ms == 0)
		member->options.join_ms = JOIN_MS_DEFAULT;
	snprintf(member->host, sizeof(member->host), "%s",
		 options->host == NULL ? "" : options->host);
	snprintf(member->endpoint, sizeof(member->endpoint), "%s", options->endpoint);
	member->id = member_id(options->role, options->role == ROLE_ROLLOUT ? options->replica : 0,
			       options->rank);
	member->ready = (struct writer)WRITER_INIT(READY_BODY_BYTES_MAX);
	member->out = (struct writer)WRITER_INIT(LINK_BODY_BYTES_MAX);
	member->opened_ns = member->heard_ns = member->stepped_ns = clock_ns();
	member->down.lost_ms = LOST_MS_FIRST;
	member->up.rails = options->rails;
	int rc = 0;
	if (options->manifest_bytes > MANIFEST_BYTES_MAX || options->manifest_bytes == 0)
		rc = ws_fail(err, -EINVAL, "a manifest of %u bytes can't be sent: at most %u",
			     options->manifest_bytes, MANIFEST_BYTES_MAX);
	if (rc == 0)
		rc = incarnation_make(&member->incarnation, err);
	if (rc == 0)
		rc = link_dial(&member->link, options->endpoint, options->key, err);
	member->options.key = NULL;
	if (rc == 0)
		*member_out = member;
	else
		member_close(member);
	return rc;
}

void member_close(struct member *member)
{
	if (member == NULL)
		return;
	if (member->link != NULL && member->connected && !member->is_over)
		member_send_empty(member, FRAME_LEAVE);
	link_close(member->link);
	member_pairs_clear(member);
	mem_free(member->pairs);
	mem_free(member->views);
	mem_free(member->manifest[0]);
	mem_free(member->manifest[1]);
	mem_free(member->rules);
	writer_release(&member->ready);
	writer_release(&member->out);
	arena_release(&member->roster_arena);
	mem_free(member);
}

static void over_set(struct member *member)
{
	member->is_over = member->over_due = true;
}

/* Silence.  A member that wasn't stepped itself (stopped, or busy) mustn't blame the hub. */
static void time_passes(struct member *member, uint64_t now_ns)
{
	uint64_t lost_ns = MAX(member->down.lost_ms, 1u) * MS_NS,
		 gap_ns = now_ns - member->stepped_ns;
	if (gap_ns > lost_ns / 2)
		member->heard_ns = MIN(member->heard_ns + gap_ns, now_ns);
	member->stepped_ns = now_ns;
	bool late = !member->was_in && member->up.attempt == 0 && member->roster.members == NULL &&
		    now_ns - member->opened_ns > member->options.join_ms * MS_NS;
	if (member->is_over)
		return;
	if (late) {
		double seconds = member->options.join_ms / 1e3;
		if (!member->hub_heard)
			ws_fail(&member->over, -ETIMEDOUT,
				"no hub answered at '%s' within %g s; is it started, and is the address right?",
				member->endpoint, seconds);
		else
			ws_fail(&member->over, -ETIMEDOUT, "the run didn't start within %g s: %s",
				seconds,
				member->down.waits.code != 0 ? member->down.waits.text
							     : "the hub gives no reason");
		over_set(member);
		return;
	}
	if (member->hub_heard && !member->hub_lost && now_ns - member->heard_ns > lost_ns)
		member->hub_lost = member->found_due = true;
}

static bool life_event(struct member *member, struct member_event *event_out)
{
	if (member->found_due) {
		member->found_due = false;
		event_out->kind = member->hub_lost ? MEMBER_HUB_LOST : MEMBER_HUB_FOUND;
		if (member->hub_lost)
			ws_fail(&event_out->error, -ECONNRESET,
				"the hub at '%s' hasn't been heard for %.1f s", member->endpoint,
				(double)(clock_ns() - member->heard_ns) / 1e9);
		return true;
	}
	if (member->dropped_due) {
		member->dropped_due = false;
		event_out->kind = MEMBER_DROPPED;
		event_out->error = member->dropped_error;
		return true;
	}
	return false;
}

static bool word_event(struct member *member, struct member_event *event_out)
{
	const struct beat_down *down = &member->down;
	struct beat_up *up = &member->up;
	bool in = member->was_in && down->in == member->incarnation;
	if (!in ||
	    (down->word == member->word_told && down->word_attempt == member->word_told_attempt))
		return false;
	if (!word_applies(down->word, down->word_attempt, up->state, up->attempt, member->begun))
		return false;
	if (down->word == WORD_BEGIN && down->attempt_generation != member->roster.generation)
		return false;
	member->word_told = down->word;
	member->word_told_attempt = down->word_attempt;
	if (down->word == WORD_BEGIN)
		member->begun = down->word_attempt;
	*event_out = (struct member_event){.kind = MEMBER_WORD,
					   .generation = down->attempt_generation,
					   .attempt = down->word_attempt,
					   .version = down->version,
					   .word = down->word,
					   .error = down->word_error};
	return true;
}

/* A trainer hears each begin of its generation, also of an attempt that is over by now: its want
 * is spent, and member_attempt_over says why. */
static bool begin_event(struct member *member, struct member_event *event_out)
{
	const struct beat_down *down = &member->down;
	struct beat_up *up = &member->up;
	if (down->attempt <= up->attempt_seen || down->in != member->incarnation)
		return false;
	up->attempt_seen = down->attempt;
	member->dirty = true;
	if (down->attempt_generation != member->roster.generation || down->version == 0)
		return false;
	if (up->want != 0 && up->want_attempt == 0)
		up->want_attempt = down->attempt;
	*event_out = (struct member_event){.kind = MEMBER_WORD,
					   .generation = down->attempt_generation,
					   .attempt = down->attempt,
					   .version = down->version,
					   .word = WORD_BEGIN};
	return true;
}

/* Other trainers that are ready in an attempt whose begin was yielded, one by one. */
static bool armed_event(struct member *member, struct member_event *event_out)
{
	const struct beat_down *down = &member->down;
	if (down->attempt != member->up.attempt_seen || down->in != member->incarnation ||
	    down->attempt_generation != member->roster.generation)
		return false;
	if (member->armed_attempt != down->attempt) {
		memset(member->armed_told, 0, sizeof(member->armed_told));
		member->armed_attempt = down->attempt;
	}
	uint32_t count = MIN(down->armed_count, member->roster.trainer_count);
	for (uint32_t i = 0; i < count; i++) {
		if (!bit_get(down->armed, i) || bit_get(member->armed_told, i))
			continue;
		bit_set(member->armed_told, i);
		if (i == member->self)
			continue;
		*event_out = (struct member_event){.kind = MEMBER_READY,
						   .generation = down->attempt_generation,
						   .attempt = down->attempt,
						   .from = i};
		return true;
	}
	return false;
}

static bool state_event(struct member *member, struct member_event *event_out)
{
	const struct beat_down *down = &member->down;
	uint64_t generation = member->roster.generation;
	if (member->dropped)
		return false;
	if (generation != 0 && down->generation == generation && down->in == member->incarnation) {
		if (down->quiet && member->quiet_told != generation) {
			member->quiet_told = generation;
			*event_out = (struct member_event){.kind = MEMBER_QUIET,
							   .generation = generation};
			return true;
		}
		if (down->wired && member->wired_told != generation) {
			member->wired_told = generation;
			*event_out = (struct member_event){.kind = MEMBER_ALL_WIRED,
							   .generation = generation};
			return true;
		}
	}
	if (generation != 0 && down->generation == generation && down->next_gone &&
	    member->next_gone_told != generation) {
		member->next_gone_told = generation;
		*event_out =
			(struct member_event){.kind = MEMBER_NEXT_GONE, .generation = generation};
		return true;
	}
	if (member->options.role == ROLE_ROLLOUT)
		return word_event(member, event_out);
	if (begin_event(member, event_out) || armed_event(member, event_out))
		return true;
	if (member->views_due) {
		member->views_due = false;
		*event_out = (struct member_event){.kind = MEMBER_REPLICAS};
		return true;
	}
	return false;
}

/* What the link tells of the connection. */
static void link_hear(struct member *member, enum link_event event, const struct ws_error *err)
{
	switch (event) {
	case LINK_CONNECTED:
		member->connected = true;
		member->next_join_ns = member->next_beat_ns = 0;
		break;
	case LINK_DISCONNECTED:
		member->connected = false;
		break;
	case LINK_REFUSED:
		/* Once let in, a refusal can only be a hub that is going down or coming up. */
		if (!member->hub_heard && !member->is_over) {
			member->over = *err;
			over_set(member);
		}
		break;
	case LINK_NOTHING:
	case LINK_FRAME:
	case LINK_MALFORMED:
		break;
	}
}

void member_step(struct member *member, struct member_event *event_out)
{
	uint64_t now_ns = clock_ns();
	*event_out = (struct member_event){0};
	for (uint32_t i = 0; i < FRAMES_MAX && !member->is_over; i++) {
		struct frame frame;
		struct ws_error err = {0};
		if (life_event(member, event_out) || state_event(member, event_out))
			break;
		enum link_event event = link_receive(member->link, &frame, &err);
		if (event == LINK_NOTHING) {
			time_passes(member, now_ns);
			life_event(member, event_out);
			break;
		}
		if (event != LINK_FRAME)
			link_hear(member, event, &err);
		else if (member_hear(member, &frame, now_ns, event_out))
			break;
	}
	if (event_out->kind == MEMBER_NOTHING && member->over_due) {
		member->over_due = false;
		event_out->kind = MEMBER_OVER;
		event_out->error = member->over;
	}
	/* What several events led to is one beat. */
	if (event_out->kind == MEMBER_NOTHING)
		member_send_due(member, now_ns);
}

void member_wait(struct member *member, const int *fds, int fd_count, uint64_t until_ns)
{
	/* What was said since the last step mustn't wait for the next one. */
	uint64_t now_ns = clock_ns();
	member_send_due(member, now_ns);
	/* Once the run is over the link isn't read any more, whatever lies there. */
	if (member->is_over)
		return link_wait(NULL, fds, fd_count, until_ns);
	uint64_t due_ns = MIN(until_ns, member_next_due(member));
	/* Silence is noticed by looking. */
	link_wait(member->link, fds, fd_count, MIN(due_ns, now_ns + HUB_BEAT_MS * MS_NS));
}

uint32_t member_replicas(const struct member *member, struct replica_view *views_out,
			 uint32_t count)
{
	count = MIN(count, member->view_count);
	if (count > 0)
		memcpy(views_out, member->views, sizeof(*views_out) * count);
	return count;
}

void member_verified(const struct member *member, uint64_t version, uint32_t *ranks_out,
		     uint64_t *bytes_out, uint64_t *different_out)
{
	const struct beat_down *down = &member->down;
	*ranks_out = 0;
	*bytes_out = *different_out = 0;
	for (uint32_t i = 0; i < down->verified_count; i++) {
		if (down->verified[i].version != version)
			continue;
		*ranks_out = down->verified[i].ranks;
		*bytes_out = down->verified[i].bytes;
		*different_out = down->verified[i].different;
	}
}

const char *member_trouble(const struct member *member)
{
	return member->down.trouble;
}

bool member_attempt_over(const struct member *member, uint64_t attempt, struct ws_error *err)
{
	const struct beat_down *down = &member->down;
	struct ws_error unheard;
	bool over = attempt < down->attempt || (attempt == down->attempt && down->over);
	const struct ws_error *says = &down->waits;
	if (over && attempt == down->attempt) {
		says = &down->attempt_error;
	} else if (over) {
		/* Of another hub, or while I was out: the hub waits for those it has. */
		ws_fail(&unheard, -ECONNRESET,
			"how attempt %llu ended wasn't heard; the hub is at attempt %llu",
			(unsigned long long)attempt, (unsigned long long)down->attempt);
		says = &unheard;
	}
	if (err != NULL)
		*err = *says;
	return over;
}
