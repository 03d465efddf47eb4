/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub's end: its thread, and what is done with frames that come.  Decisions are progress.c's;
 * this file keeps what they don't need: routes and ready bodies.
 *
 * A frame that can't be decoded is its sender's trouble alone.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "lib/hub/hub_inside.h"
#include "lib/hub/member_inside.h"

#define MS_NS		 UINT64_C(1000000)
#define JOIN_MS_DEFAULT	 60000
#define LOST_MS_DEFAULT	 5000
#define PHASE_MS_DEFAULT 60000
#define TURN_NS		 (20 * MS_NS) /* deadlines are looked at this often */
#define SAY_GAP_NS	 (1 * MS_NS)  /* at most between what is to be said and its saying */
#define FRAMES_MAX	 512	      /* heard in one turn */
#define GOODBYE_NS	 (1000 * MS_NS)

bool hub_io_grow(struct hub *hub)
{
	uint32_t count = progress_seat_count(&hub->progress);
	if (count == hub->io_count)
		return true;
	struct seat_io *io = mem_grow(hub->io, sizeof(*io) * hub->io_count, sizeof(*io) * count);
	if (io == NULL)
		return false;
	for (uint32_t i = hub->io_count; i < count; i++)
		io[i].ready = (struct writer)WRITER_INIT(READY_BODY_BYTES_MAX);
	hub->io = io;
	hub->io_count = count;
	return true;
}

/* A member of mine that has seen a newer hub won't hear me any more. */
static void newer_hear(struct hub *hub, const struct frame *frame)
{
	struct progress *progress = &hub->progress;
	uint32_t number = progress_seat(progress, frame->member);
	struct ws_error err;
	if (frame->hub_incarnation <= progress->options.incarnation || number == UINT32_MAX ||
	    progress->seats[number].joined != frame->incarnation)
		return;
	ws_fail(&err, -ESTALE, "members have seen a newer hub of this run than this one");
	progress_end(progress, &err);
}

/* Only what the counts allow may become a side's first manifest. */
static void join_hear(struct hub *hub, const struct frame *frame, uint64_t now_ns)
{
	struct ws_error err = {0};
	struct join join;
	uint32_t number;
	if (join_decode(&join, frame->body, frame->body_bytes, &err) != 0) {
		hub->malformed_count++;
		hub_send_over(hub, frame, &err);
		return;
	}
	if (member_id(join.role, join.replica, join.rank) != frame->member) {
		hub->malformed_count++;
		return;
	}
	const struct progress_options *options = &hub->progress.options;
	bool fits = join.world ==
		    (join.role == ROLE_TRAINER ? options->trainer_count : options->replica_ranks);
	int rc = fits ? hub_manifest_take(hub, &join, &err) : 0;
	if (rc == -EAGAIN) {
		hub_send_hello(hub, frame, true);
		return;
	}
	if (rc != 0) {
		hub_send_over(hub, frame, &err);
		if (rc == -ESTALE && hub->progress.generation == 0)
			progress_end(&hub->progress, &err);
		return;
	}
	switch (progress_join(&hub->progress, &join, frame->incarnation, now_ns, &number, &err)) {
	case JOIN_TAKEN:
		newer_hear(hub, frame);
		if (!hub_io_grow(hub))
			return;
		hub->io[number].route = frame->route;
		hub->io[number].next_beat_ns = 0;
		hub->io[number].roster_ns = 0;
		return;
	case JOIN_LATER:
		return;
	case JOIN_DROPPED:
		hub_send_hello(hub, frame, false);
		return;
	case JOIN_REFUSED:
		hub_send_over(hub, frame, &err);
		return;
	}
}

static void beat_hear(struct hub *hub, const struct frame *frame, uint64_t now_ns)
{
	struct beat_up beat;
	struct progress *progress = &hub->progress;
	newer_hear(hub, frame);
	if (frame->hub_incarnation != progress->options.incarnation) {
		hub_send_hello(hub, frame, false);
		return;
	}
	if (beat_up_decode(&beat, frame->body, frame->body_bytes, NULL) != 0) {
		hub->malformed_count++;
		return;
	}
	if (!progress_hear(progress, frame->member, frame->incarnation, &beat, now_ns)) {
		hub_send_hello(hub, frame, false);
		return;
	}
	uint32_t number = progress_seat(progress, frame->member);
	if (!hub_io_grow(hub) || hub->io[number].route == frame->route)
		return;
	hub->io[number].route = frame->route;
	hub->io[number].next_beat_ns = 0;
}

/* Sender's seat, when it is in and names this hub. */
static uint32_t sender_seat(const struct hub *hub, const struct frame *frame)
{
	uint32_t number = progress_seat(&hub->progress, frame->member);
	if (frame->hub_incarnation != hub->progress.options.incarnation ||
	    number >= hub->io_count || hub->progress.seats[number].in != frame->incarnation)
		return UINT32_MAX;
	return number;
}

static void ready_hear(struct hub *hub, const struct frame *frame)
{
	struct passage ready;
	uint32_t number = sender_seat(hub, frame);
	if (number == UINT32_MAX)
		return;
	if (passage_decode(&ready, frame->body, frame->body_bytes, NULL) != 0) {
		hub->malformed_count++;
		return;
	}
	struct seat_io *io = &hub->io[number];
	if (ready.attempt > hub->progress.attempt || ready.attempt <= io->ready_attempt)
		return;
	writer_reset(&io->ready);
	write_bytes(&io->ready, ready.body, ready.body_bytes);
	if (io->ready.failed)
		return; /* no memory, or too long: not acknowledged */
	io->ready_attempt = ready.attempt;
	io->ready_ns = 0;
	hub->progress.changed = true;
}

static void pair_hear(struct hub *hub, const struct frame *frame)
{
	struct passage pair;
	const struct progress *progress = &hub->progress;
	uint32_t from = sender_seat(hub, frame);
	if (from == UINT32_MAX)
		return;
	if (passage_decode(&pair, frame->body, frame->body_bytes, NULL) != 0) {
		hub->malformed_count++;
		return;
	}
	if (pair.generation != progress->generation || pair.to >= progress->roster_count ||
	    pair.from != progress_roster_index(progress, from))
		return;
	uint32_t to = progress->roster[pair.to];
	const struct seat *seat = &progress->seats[to];
	if (progress_roster_index(progress, to) == UINT32_MAX ||
	    seat->up.generation != pair.generation)
		return; /* it can't know what this is about yet; the frame is repeated */
	struct frame onward = *frame;
	onward.hub_incarnation = progress->options.incarnation;
	onward.member = seat->id;
	onward.incarnation = seat->joined;
	onward.route = hub->io[to].route;
	link_send(hub->link, &onward, NULL);
}

static void hub_hear(struct hub *hub, const struct frame *frame, uint64_t now_ns)
{
	bool is_ended = hub->progress.is_ended;
	switch ((enum hub_frame)frame->kind) {
	case FRAME_JOIN:
	case FRAME_BEAT_UP:
		if (is_ended)
			hub_send_over(hub, frame, &hub->progress.ended);
		else if ((enum hub_frame)frame->kind == FRAME_JOIN)
			join_hear(hub, frame, now_ns);
		else
			beat_hear(hub, frame, now_ns);
		return;
	case FRAME_LEAVE:
		progress_leave(&hub->progress, frame->member, frame->incarnation, now_ns);
		return;
	case FRAME_STATUS_ASK:
		writer_reset(&hub->out);
		hub_status(hub, &hub->out);
		hub_send(hub, FRAME_STATUS, frame->member, frame->incarnation, frame->route);
		return;
	case FRAME_PAIR:
		pair_hear(hub, frame);
		return;
	case FRAME_READY:
		ready_hear(hub, frame);
		return;
	case FRAME_BEAT_DOWN:
	case FRAME_ROSTER:
	case FRAME_OVER:
	case FRAME_STATUS:
		hub->malformed_count++; /* only a hub says these */
		return;
	}
	hub->malformed_count++;
}

static void frames_hear(struct hub *hub)
{
	for (uint32_t i = 0; i < FRAMES_MAX; i++) {
		struct frame frame;
		enum link_event event = link_receive(hub->link, &frame, NULL);
		switch (event) {
		case LINK_NOTHING:
			return;
		case LINK_FRAME:
			hub_hear(hub, &frame, clock_ns());
			break;
		case LINK_MALFORMED:
			hub->malformed_count++;
			break;
		case LINK_CONNECTED:
		case LINK_DISCONNECTED:
		case LINK_REFUSED:
			break;
		}
	}
}

static void failed_publish(struct hub *hub)
{
	if (!hub->progress.gave_up)
		return;
	pthread_mutex_lock(&hub->mutex);
	hub->failed = hub->progress.ended;
	pthread_mutex_unlock(&hub->mutex);
}

/* Everybody is told the end, until each has answered by leaving or a second has passed. */
static void goodbye(struct hub *hub)
{
	struct progress *progress = &hub->progress;
	struct ws_error end;
	frames_hear(hub);
	if (hub->leaver_incarnation != 0)
		progress_leave(progress, hub->leaver, hub->leaver_incarnation, clock_ns());
	uint64_t until_ns = clock_ns() + GOODBYE_NS;
	bool waits = true;
	/* The last decision first: who still waits for it mustn't take the end for its reason. */
	progress->changed = true;
	hub_say(hub, clock_ns());
	progress_goodbye(progress, &end);
	progress_end(progress, &end);
	while (waits && clock_ns() < until_ns) {
		hub_say_over(hub, clock_ns());
		link_wait(hub->link, NULL, 0, clock_ns() + TURN_NS);
		frames_hear(hub);
		waits = false;
		for (uint32_t i = 0; i < hub->io_count; i++) {
			const struct seat *seat = &progress->seats[i];
			waits = waits ||
				(seat->joined > seat->out && !seat->left && hub->io[i].route != 0);
		}
	}
}

/* When to say what has changed: a decision at once, as long as saying takes no more than half of
 * the hub's time (it is 2 us and more per member); news, which nobody acts upon, when it has
 * gathered. */
static uint64_t say_due_ns(const struct hub *hub)
{
	return hub->said_ns +
	       (hub->progress.changed ? MIN(hub->saying_ns, SAY_GAP_NS) : SAY_GAP_NS);
}

/* Until something comes, a deadline may be over, or what has changed may be said. */
static void hub_wait(struct hub *hub)
{
	const struct progress *progress = &hub->progress;
	uint64_t until_ns = clock_ns() + MIN(TURN_NS, progress->options.lost_ns / 8);
	if (progress->changed || progress->news)
		until_ns = say_due_ns(hub);
	link_wait(hub->link, &hub->wake_fd, 1, until_ns);
}

static void *hub_thread(void *arg)
{
	struct hub *hub = arg;
	while (!atomic_load(&hub->stop)) { /* ends with hub_close */
		hub_wait(hub);
		frames_hear(hub);
		uint64_t now_ns = clock_ns();
		progress_tick(&hub->progress, now_ns);
		if (now_ns >= say_due_ns(hub)) {
			hub_say(hub, now_ns);
			hub->said_ns = clock_ns();
			hub->saying_ns = hub->said_ns - now_ns;
		}
		failed_publish(hub);
	}
	if (!atomic_load(&hub->dies))
		goodbye(hub);
	return NULL;
}

/* Above the last hub's, which ran on a clock of the same day. */
static uint64_t incarnation_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static int hub_make(struct hub *hub, const struct hub_options *options, struct ws_error *err)
{
	struct progress_options rules = {
		.incarnation = incarnation_now(),
		.trainer_count = options->trainer_count,
		.replica_ranks = options->replica_ranks,
		.min_replicas = options->min_replicas,
		.barrier = options->barrier,
		.forward = options->forward,
		.join_ns = (options->join_ms == 0 ? JOIN_MS_DEFAULT : options->join_ms) * MS_NS,
		.lost_ns = (options->lost_ms == 0 ? LOST_MS_DEFAULT : options->lost_ms) * MS_NS,
		.phase_ns =
			(options->phase_ms == 0 ? PHASE_MS_DEFAULT : options->phase_ms) * MS_NS};
	if (options->rules_bytes > RULES_BYTES_MAX)
		return ws_fail(err, -ENOSPC, "rules of %u bytes are above %u", options->rules_bytes,
			       RULES_BYTES_MAX);
	int rc = progress_init(&hub->progress, &rules, clock_ns(), err);
	if (rc != 0)
		return rc;
	hub->out = (struct writer)WRITER_INIT(LINK_BODY_BYTES_MAX);
	hub->rules = mem_alloc(options->rules_bytes);
	hub->views = mem_alloc(sizeof(*hub->views) * HUB_REPLICAS_MAX);
	hub->members = mem_alloc(sizeof(*hub->members) * HUB_MEMBERS_MAX);
	if (hub->rules == NULL || hub->views == NULL || hub->members == NULL || !hub_io_grow(hub))
		return ws_fail(err, -ENOMEM, "no memory for a hub");
	if (options->rules_bytes > 0)
		memcpy(hub->rules, options->rules, options->rules_bytes);
	hub->rules_bytes = options->rules_bytes;
	hub->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (hub->wake_fd < 0)
		return ws_fail(err, -errno, "cannot make an event descriptor: %s", strerror(errno));
	return link_listen(&hub->link, options->endpoint, options->key, err);
}

int hub_open(struct hub **hub_out, const struct hub_options *options, struct ws_error *err)
{
	struct hub *hub = mem_alloc(sizeof(*hub));
	*hub_out = NULL;
	if (hub == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a hub");
	hub->wake_fd = -1;
	pthread_mutex_init(&hub->mutex, NULL);
	int rc = hub_make(hub, options, err);
	if (rc != 0)
		goto fail;
	rc = pthread_create(&hub->thread, NULL, hub_thread, hub);
	if (rc != 0) {
		rc = ws_fail(err, -rc, "cannot start the hub's thread: %s", strerror(rc));
		goto fail;
	}
	hub->has_thread = true;
	*hub_out = hub;
	return 0;
fail:
	hub_close(hub);
	return rc;
}

void hub_left_by(struct hub *hub, const struct member *member)
{
	if (hub == NULL || member == NULL)
		return;
	hub->leaver = member->id;
	hub->leaver_incarnation = member->incarnation;
}

void hub_close(struct hub *hub)
{
	if (hub == NULL)
		return;
	if (hub->has_thread) {
		uint64_t one = 1;
		atomic_store(&hub->stop, true);
		/* Should this fail the thread looks within TURN_NS. */
		ssize_t written = write(hub->wake_fd, &one, sizeof(one));
		(void)written;
		pthread_join(hub->thread, NULL);
	}
	link_close(hub->link);
	if (hub->wake_fd >= 0)
		close(hub->wake_fd);
	for (uint32_t i = 0; i < hub->io_count; i++)
		writer_release(&hub->io[i].ready);
	mem_free(hub->io);
	hub_manifests_release(hub);
	mem_free(hub->rules);
	mem_free(hub->views);
	mem_free(hub->members);
	writer_release(&hub->out);
	progress_release(&hub->progress);
	pthread_mutex_destroy(&hub->mutex);
	mem_free(hub);
}

const char *hub_endpoint(const struct hub *hub)
{
	return link_endpoint(hub->link);
}

int hub_failed(struct hub *hub, struct ws_error *err)
{
	pthread_mutex_lock(&hub->mutex);
	struct ws_error failed = hub->failed;
	pthread_mutex_unlock(&hub->mutex);
	if (err != NULL && failed.code != 0)
		*err = failed;
	return failed.code;
}
