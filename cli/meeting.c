/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over a link: see meeting.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/meeting.h"
#include "cli/roles.h"

#define REPEAT_NS 500000000u
#define LOOK_NS	  200000000u /* how often a wait looks at signals and deadlines */

enum { FRAME_PART = 1, FRAME_ANSWER, FRAME_GIVEN_UP };

struct meeting {
	struct link *link;
	struct rendezvous meet;
	uint32_t rank, world;
	uint64_t round;				/* from 1 */
	struct writer answer;			/* of the last round that was answered */
	uint64_t routes[MEETING_RANKS_MAX];	/* rank 0: 0 is unknown */
	struct writer parts[MEETING_RANKS_MAX]; /* rank 0: of this round */
	bool here[MEETING_RANKS_MAX];
};

/* "10.0.0.1:7000" is as good as "tcp://10.0.0.1:7000". */
static const char *endpoint_of(const char *given, char *out, size_t room)
{
	snprintf(out, room, "%s%s", strstr(given, "://") == NULL ? "tcp://" : "", given);
	return out;
}

static int middle_open(struct meeting *meeting, const struct launch *launch, const char *hub,
		       const char *key_file, struct ws_error *err)
{
	struct run_key key;
	char endpoint[256];
	int rc = 0;

	if (hub == NULL)
		rc = rendezvous_make(&meeting->meet, launch, err);
	if (rc == 0)
		rc = run_key_read(&key, hub != NULL ? key_file : meeting->meet.key_file, err);
	if (rc != 0)
		return rc;
	endpoint_of(hub != NULL ? hub : "127.0.0.1:*", endpoint, sizeof(endpoint));
	rc = link_listen(&meeting->link, endpoint, &key, err);
	run_key_wipe(&key);
	if (rc == 0 && hub == NULL)
		rc = rendezvous_say_hub(&meeting->meet, link_endpoint(meeting->link), err);
	return rc;
}

static int member_open(struct meeting *meeting, const struct launch *launch, const char *hub,
		       const char *key_file, uint64_t until_ns, struct ws_error *err)
{
	struct run_key key;
	char endpoint[256], who[32];
	int rc = 0;

	if (hub != NULL) {
		endpoint_of(hub, endpoint, sizeof(endpoint));
	} else {
		snprintf(who, sizeof(who), "rank %u", launch->rank);
		end_on_signal(who);
		rc = rendezvous_find(&meeting->meet, launch, endpoint, sizeof(endpoint), until_ns,
				     err);
		end_on_signal(NULL);
	}
	if (rc == 0)
		rc = run_key_read(&key, hub != NULL ? key_file : meeting->meet.key_file, err);
	if (rc != 0)
		return rc;
	rc = link_dial(&meeting->link, endpoint, &key, err);
	run_key_wipe(&key);
	return rc;
}

int meeting_open(struct meeting **meeting_out, const struct launch *launch, const char *hub,
		 const char *key_file, uint64_t until_ns, struct ws_error *err)
{
	*meeting_out = NULL;
	struct meeting *meeting = mem_alloc(sizeof(*meeting));
	if (meeting == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a meeting of %u ranks", launch->world);
	meeting->rank = launch->rank;
	meeting->world = launch->world;
	meeting->answer.room_max = LINK_BODY_BYTES_MAX;
	for (uint32_t i = 0; i < meeting->world; i++)
		meeting->parts[i].room_max = LINK_BODY_BYTES_MAX;
	int rc = launch->rank == 0 ? middle_open(meeting, launch, hub, key_file, err)
				   : member_open(meeting, launch, hub, key_file, until_ns, err);
	if (rc != 0) {
		meeting_close(meeting);
		return rc;
	}
	*meeting_out = meeting;
	return 0;
}

void meeting_close(struct meeting *meeting)
{
	if (meeting == NULL)
		return;
	link_close(meeting->link);
	rendezvous_end(&meeting->meet);
	writer_release(&meeting->answer);
	for (uint32_t i = 0; i < meeting->world; i++)
		writer_release(&meeting->parts[i]);
	mem_free(meeting);
}

/* ------------------------------------------------------------------------- rank 0 */

static void send_to(struct meeting *meeting, uint64_t route, uint16_t kind, uint64_t round,
		    const void *body, size_t bytes)
{
	const struct frame frame = {.kind = kind,
				    .incarnation = round,
				    .body = body,
				    .body_bytes = (uint32_t)bytes,
				    .route = route};
	/* What gets lost is asked for again. */
	if (route != 0)
		link_send(meeting->link, &frame, NULL);
}

/* A member's part: of this round, or of the last one, whose answer it has missed. */
static int take_part(struct meeting *meeting, const struct frame *frame, struct ws_error *err)
{
	uint32_t rank = (uint32_t)frame->member;
	struct reader body = reader_make(frame->body, frame->body_bytes);

	if (frame->kind != FRAME_PART || frame->member == 0 || frame->member >= meeting->world)
		return ws_fail(err, -EPROTO, "somebody called rank %llu of %u is here",
			       (unsigned long long)frame->member, meeting->world);
	uint32_t world = read_u32(&body);
	if (world != meeting->world)
		return ws_fail(err, -EPROTO, "rank %u says that the world is %u, not %u", rank,
			       world, meeting->world);
	meeting->routes[rank] = frame->route;
	if (frame->incarnation + 1 == meeting->round)
		send_to(meeting, frame->route, FRAME_ANSWER, frame->incarnation,
			meeting->answer.bytes, meeting->answer.count);
	if (frame->incarnation != meeting->round || meeting->here[rank])
		return 0;
	writer_reset(&meeting->parts[rank]);
	write_bytes(&meeting->parts[rank], body.at, reader_left(&body));
	meeting->here[rank] = true;
	return 0;
}

static uint32_t here_count(const struct meeting *meeting)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < meeting->world; i++)
		count += meeting->here[i];
	return count;
}

static int say_missing(const struct meeting *meeting, struct ws_error *err)
{
	char text[300];
	struct writer names = writer_fixed(text, sizeof(text) - 1);
	for (uint32_t i = 0; i < meeting->world; i++)
		if (!meeting->here[i])
			write_format(&names, "%s%u", names.count > 0 ? ", " : "", i);
	text[names.count] = '\0';
	return ws_fail(
		err, -ETIMEDOUT,
		meeting->round == 1
			? "of %u ranks these haven't come: %s; do they run, and is the key the same?"
			: "of %u ranks these said nothing any more: %s; did they die?",
		meeting->world, text);
}

static int gather(struct meeting *meeting, uint64_t until_ns, struct ws_error *err)
{
	struct frame frame;
	int rc = 0;

	while (rc == 0 && here_count(meeting) < meeting->world) {
		if (stop_asked())
			return ws_fail(err, -EINTR, "stopped by a signal");
		if (clock_ns() > until_ns)
			return say_missing(meeting, err);
		switch (link_receive(meeting->link, &frame, err)) {
		case LINK_FRAME:
			rc = take_part(meeting, &frame, err);
			if (rc != 0)
				send_to(meeting, frame.route, FRAME_GIVEN_UP, meeting->round,
					err->text, strlen(err->text));
			break;
		case LINK_NOTHING:
			link_wait(meeting->link, NULL, 0, MIN(until_ns, clock_ns() + LOOK_NS));
			break;
		case LINK_CONNECTED:
		case LINK_DISCONNECTED:
		case LINK_REFUSED:
		case LINK_MALFORMED:
			break; /* who it was asks again, or is missing in the end */
		}
	}
	return rc;
}

static int middle_share(struct meeting *meeting, const struct writer *mine, uint64_t until_ns,
			struct ws_error *err)
{
	writer_reset(&meeting->parts[0]);
	write_bytes(&meeting->parts[0], mine->bytes, mine->count);
	meeting->here[0] = true;
	int rc = gather(meeting, until_ns, err);
	if (rc != 0) {
		for (uint32_t i = 1; i < meeting->world; i++)
			send_to(meeting, meeting->routes[i], FRAME_GIVEN_UP, meeting->round,
				err->text, strlen(err->text));
		return rc;
	}
	writer_reset(&meeting->answer);
	for (uint32_t i = 0; i < meeting->world; i++) {
		write_u32(&meeting->answer, (uint32_t)meeting->parts[i].count);
		write_bytes(&meeting->answer, meeting->parts[i].bytes, meeting->parts[i].count);
		meeting->here[i] = false;
	}
	if (meeting->answer.failed)
		return ws_fail(err, -ENOSPC, "what %u ranks say is over %u bytes", meeting->world,
			       LINK_BODY_BYTES_MAX);
	for (uint32_t i = 1; i < meeting->world; i++)
		send_to(meeting, meeting->routes[i], FRAME_ANSWER, meeting->round,
			meeting->answer.bytes, meeting->answer.count);
	return 0;
}

/* ------------------------------------------------------------------------ members */

/* 1: the round is answered. */
static int take_answer(struct meeting *meeting, const struct frame *frame, struct ws_error *err)
{
	if (frame->kind == FRAME_GIVEN_UP)
		return ws_fail(err, -ECANCELED, "rank 0 gave up: %.*s",
			       (int)MIN(frame->body_bytes, 400), (const char *)frame->body);
	if (frame->kind != FRAME_ANSWER || frame->incarnation != meeting->round)
		return 0;
	writer_reset(&meeting->answer);
	write_bytes(&meeting->answer, frame->body, frame->body_bytes);
	return meeting->answer.failed ? ws_fail(err, -ENOMEM, "no memory for what ranks say") : 1;
}

static int member_share(struct meeting *meeting, const struct writer *mine, uint64_t until_ns,
			struct ws_error *err)
{
	struct writer body = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct frame frame;
	uint64_t said_ns = 0;
	int rc = 0;

	write_u32(&body, meeting->world);
	write_bytes(&body, mine->bytes, mine->count);
	const struct frame part = {.kind = FRAME_PART,
				   .member = meeting->rank,
				   .incarnation = meeting->round,
				   .body = body.bytes,
				   .body_bytes = (uint32_t)body.count};
	if (body.failed)
		rc = ws_fail(err, -ENOMEM, "no memory for what rank %u says", meeting->rank);
	while (rc == 0) {
		uint64_t now = clock_ns();
		if (stop_asked())
			rc = ws_fail(err, -EINTR, "stopped by a signal");
		else if (now > until_ns)
			rc = ws_fail(err, -ETIMEDOUT,
				     "rank 0 at '%s' doesn't answer: does it run, "
				     "and can its address be reached from here?",
				     link_endpoint(meeting->link));
		else if (now - said_ns > REPEAT_NS && link_send(meeting->link, &part, NULL) == 0)
			said_ns = now;
		if (rc != 0)
			break;
		enum link_event event = link_receive(meeting->link, &frame, err);
		if (event == LINK_FRAME)
			rc = take_answer(meeting, &frame, err);
		else if (event == LINK_REFUSED)
			rc = -EACCES;
		else if (event == LINK_NOTHING)
			link_wait(meeting->link, NULL, 0, MIN(until_ns, now + LOOK_NS));
	}
	writer_release(&body);
	return rc < 0 ? rc : 0;
}

int meeting_share(struct meeting *meeting, const struct writer *mine, struct reader *parts_out,
		  uint64_t until_ns, struct ws_error *err)
{
	meeting->round++;
	if (mine->failed)
		return ws_fail(err, -ENOMEM, "no memory for what rank %u says", meeting->rank);
	int rc = meeting->rank == 0 ? middle_share(meeting, mine, until_ns, err)
				    : member_share(meeting, mine, until_ns, err);
	struct reader answer = reader_make(meeting->answer.bytes, meeting->answer.count);
	for (uint32_t i = 0; rc == 0 && i < meeting->world; i++) {
		uint32_t count = read_u32(&answer);
		parts_out[i] = reader_make(read_bytes(&answer, count), answer.failed ? 0 : count);
	}
	if (rc == 0 && answer.failed)
		rc = ws_fail(err, -EPROTO, "rank 0 sent a round's answer that is cut off");
	return rc;
}
