/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member whose hub is the test: frames that a hub says in the wrong order, or never would.
 */
#include <string.h>

#include "lib/hub/hub_frames.h"
#include "tests/test.h"

#define MANIFEST "{}"

struct played {
	struct run_key key;
	struct link *hub;
	struct member *member;
	struct frame heard; /* the member's last: whom to answer */
	struct writer out;
};

static void member_turn(struct played *played)
{
	struct member_event event;
	do {
		member_step(played->member, &event);
	} while (event.kind != MEMBER_NOTHING);
}

/* Both ends for a while; what the member says is heard. */
static void turns(struct played *played, uint32_t ms)
{
	for (uint32_t i = 0; i < ms; i++) {
		struct frame frame;
		enum link_event event;
		member_turn(played);
		while ((event = link_receive(played->hub, &frame, NULL)) != LINK_NOTHING)
			if (event == LINK_FRAME)
				played->heard = frame;
		link_wait(played->hub, NULL, 0, clock_ns() + 1000000);
	}
}

static void say(struct played *played, enum hub_frame kind)
{
	struct frame frame = played->heard;
	struct ws_error err;
	ck_assert(!played->out.failed);
	frame.kind = (uint16_t)kind;
	frame.hub_incarnation = 1;
	frame.body = played->out.bytes;
	frame.body_bytes = (uint32_t)played->out.count;
	ck_ok(link_send(played->hub, &frame, &err), err);
	writer_reset(&played->out);
}

static void say_roster(struct played *played)
{
	const struct roster_member me = {.id = played->heard.member,
					 .incarnation = played->heard.incarnation,
					 .role = ROLE_TRAINER};
	const uint32_t replica = 0;
	const struct roster roster = {.generation = 1,
				      .member_count = 1,
				      .trainer_count = 1,
				      .replica_count = 1,
				      .members = &me,
				      .replicas = &replica,
				      .manifest_digest = {1, 2},
				      .manifest = {MANIFEST, MANIFEST},
				      .manifest_bytes = {2, 2}};
	roster_encode(&roster, &played->out);
	say(played, FRAME_ROSTER);
}

static void write_beat(struct played *played, uint64_t sequence, uint64_t live_version)
{
	struct replica_view view = {.live_version = live_version, .in = true};
	const struct beat_down beat = {.sequence = sequence,
				       .joined = played->heard.incarnation,
				       .in = played->heard.incarnation,
				       .generation = 1,
				       .lost_ms = 5000,
				       .view_serial = sequence,
				       .has_views = true,
				       .view_count = 1,
				       .views = &view};
	beat_down_encode(&beat, &played->out);
}

static uint64_t live_version(const struct played *played)
{
	struct replica_view view;
	return member_replicas(played->member, &view, 1) == 0 ? 0 : view.live_version;
}

START_TEST(a_late_or_broken_beat_leaves_the_views_as_they_were)
{
	struct played played = {.out = WRITER_INIT(1 << 20)};
	struct ws_error err;
	ck_ok(run_key_make(&played.key, &err), err);
	ck_ok(link_listen(&played.hub, "tcp://127.0.0.1:*", &played.key, &err), err);
	const struct member_options options = {.endpoint = link_endpoint(played.hub),
					       .key = &played.key,
					       .role = ROLE_TRAINER,
					       .world = 1,
					       .manifest = MANIFEST,
					       .manifest_bytes = 2};
	ck_ok(member_open(&played.member, &options, &err), err);
	ck_until(played.heard.kind != 0, turns(&played, 1));
	say_roster(&played);
	write_beat(&played, 5, 7);
	say(&played, FRAME_BEAT_DOWN);
	ck_until(live_version(&played) == 7, turns(&played, 1));
	write_beat(&played, 4, 3);
	say(&played, FRAME_BEAT_DOWN);
	write_beat(&played, 6, 4);
	played.out.count--;
	say(&played, FRAME_BEAT_DOWN);
	turns(&played, 50);
	ck_assert_uint_eq(live_version(&played), 7);
	write_beat(&played, 6, 8);
	say(&played, FRAME_BEAT_DOWN);
	ck_until(live_version(&played) == 8, turns(&played, 1));
	member_close(played.member);
	link_close(played.hub);
	writer_release(&played.out);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("hub_late");
	TCase *beats = tcase_create("beats");

	tcase_set_timeout(beats, 120);
	tcase_add_test(beats, a_late_or_broken_beat_leaves_the_views_as_they_were);
	suite_add_tcase(tests, beats);
	return tests;
}
