/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `weightsync status`: the hub's answer in JSON, and the asking.  No key, address or place of
 * memory is in it.
 */
#include <errno.h>
#include <string.h>

#include "lib/hub/hub_inside.h"

#define MS_NS	       UINT64_C(1000000)
#define ASK_NS	       (300 * MS_NS)
#define ASK_FRAMES_MAX 64 /* looked at before the deadline is */

static const char *run_state(const struct progress *progress)
{
	if (progress->is_ended)
		return "ended";
	if (attempt_is_open(progress))
		return "pushing";
	if (progress->roster_count == 0)
		return "joining";
	if (progress->waits.code != 0 || progress->rewire)
		return progress->wired && !progress->rewire ? "waiting" : "wiring";
	return "idle";
}

static const char *seat_state(const struct progress *progress, const struct seat *seat)
{
	if (seat->left)
		return "left";
	if (seat->joined <= seat->out)
		return seat->up.describes ? "describing" : "lost";
	if (seat->in == 0)
		return "joined";
	if (member_id_role(seat->id) == ROLE_ROLLOUT)
		return rank_state_name(seat->up.state);
	if (progress->over || !trainer_has_joined(progress, seat))
		return seat->up.want != 0 && seat->up.want_attempt == 0 ? "waiting" : "idle";
	return seat->up.sent >= progress->attempt ? "sent" : "sending";
}

static void put_seat(const struct progress *progress, const struct seat *seat,
		     struct json_writer *json)
{
	char name[MEMBER_NAME_BYTES];
	bool trains = member_id_role(seat->id) == ROLE_TRAINER;
	member_name(seat->id, name);
	json_begin_object(json, NULL);
	json_put_text(json, "name", name);
	json_put_text(json, "role", trains ? "trainer" : "rollout");
	json_put_u64(json, "rank", member_id_rank(seat->id));
	if (!trains)
		json_put_u64(json, "replica", member_id_replica(seat->id));
	json_put_text(json, "host", seat->info.host);
	json_put_text(json, "nics_chosen", seat->info.nics);
	json_put_text(json, "state", seat_state(progress, seat));
	json_put_bool(json, "in", seat->in != 0);
	json_put_u64(json, "version", trains ? seat->up.want : seat->up.live_version);
	json_put_u64(json, "attempt", trains ? seat->up.joined : seat->up.attempt);
	json_put_u64(json, trains ? "bytes_sent" : "bytes_received", seat->up.bytes);
	json_put_u64(json, "nics", seat->up.rails.nic_count);
	json_put_u64(json, "nics_in_use", seat->up.rails.count);
	json_put_text(json, "nic_trouble", seat->up.trouble);
	if (!trains)
		json_put_u64(json, "bytes_from_rollouts", seat->up.from_rollouts);
	if (!trains && seat->up.step_age_ms != UINT64_MAX)
		json_put_u64(json, "step_age_ms", seat->up.step_age_ms);
	if (!trains && seat->up.verified_version != 0) {
		json_put_u64(json, "verified_version", seat->up.verified_version);
		json_put_u64(json, "verified_bytes", seat->up.verified_bytes);
		json_put_u64(json, "different_bytes", seat->up.verified_different);
	}
	if (seat->joined <= seat->out || seat->in == 0)
		json_put_text(json, "error", seat->out_error.text);
	json_end_object(json);
}

void hub_status(const struct hub *hub, struct writer *json_out)
{
	const struct progress *progress = &hub->progress;
	struct json_writer json = {.out = json_out};
	json_begin_object(&json, NULL);
	json_put_text(&json, "state", run_state(progress));
	json_put_u64(&json, "generation", progress->generation);
	json_put_u64(&json, "attempt", progress->attempt);
	json_put_u64(&json, "version", progress->version);
	json_put_u64(&json, "live_version", progress->live_version_max);
	json_put_text(&json, "last_error", progress->last_error.text);
	json_put_text(&json, "waits_for", progress->waits.text);
	json_put_u64(&json, "malformed_frames", hub->malformed_count);
	json_begin_array(&json, "members");
	for (uint32_t i = 0; i < progress_seat_count(progress); i++)
		if (progress->seats[i].joined != 0)
			put_seat(progress, &progress->seats[i], &json);
	json_end_array(&json);
	json_begin_array(&json, "replicas");
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		const struct replica *replica = &progress->replicas[i];
		struct replica_view view;
		progress_view(progress, replica->id, &view);
		json_begin_object(&json, NULL);
		json_put_u64(&json, "replica", replica->id);
		json_put_bool(&json, "in", view.in);
		json_put_text(&json, "word", replica_word_name(view.word));
		json_put_text(&json, "slowest", rank_state_name(view.slowest));
		json_put_u64(&json, "attempt", view.attempt);
		json_put_u64(&json, "live_version", view.live_version);
		json_put_text(&json, "error", view.error.text);
		json_end_object(&json);
	}
	json_end_array(&json);
	json_end_object(&json);
}

/* One turn of asking: 0 with the answer written, -EAGAIN for another turn. */
static int ask_turn(struct link *link, uint64_t me, uint64_t *next_ns, struct writer *json_out,
		    struct ws_error *err)
{
	struct frame frame = {.kind = FRAME_STATUS_ASK, .incarnation = me}, answer;
	link_wait(link, NULL, 0, clock_ns() + ASK_NS / 10);
	for (uint32_t i = 0; i < ASK_FRAMES_MAX; i++) {
		enum link_event event = link_receive(link, &answer, err);
		if (event == LINK_NOTHING)
			break;
		if (event == LINK_REFUSED)
			return err->code == 0 ? -EACCES : err->code;
		if (event == LINK_CONNECTED)
			*next_ns = 0;
		if (event != LINK_FRAME || (enum hub_frame)answer.kind != FRAME_STATUS ||
		    answer.incarnation != me)
			continue;
		write_bytes(json_out, answer.body, answer.body_bytes);
		return json_out->failed ? ws_fail(err, -ENOMEM, "no memory for the hub's answer")
					: 0;
	}
	if (clock_ns() >= *next_ns) {
		link_send(link, &frame, NULL);
		*next_ns = clock_ns() + ASK_NS;
	}
	return -EAGAIN;
}

int hub_ask_status(const char *endpoint, const struct run_key *key, uint32_t deadline_ms,
		   struct writer *json_out, struct ws_error *err)
{
	struct link *link = NULL;
	struct ws_error said = {0};
	uint64_t me, next_ns = UINT64_MAX, until_ns = deadline_in_ms(deadline_ms);
	int rc = random_bytes(&me, sizeof(me), err);
	if (rc == 0)
		rc = link_dial(&link, endpoint, key, err);
	if (rc != 0)
		return rc;
	do {
		rc = ask_turn(link, me, &next_ns, json_out, &said);
	} while (rc == -EAGAIN && clock_ns() < until_ns);
	link_close(link);
	if (rc == -EAGAIN)
		return ws_fail(
			err, -ETIMEDOUT,
			"no hub answered at '%s' within %g s; is it started, and is the address right?",
			endpoint, deadline_ms / 1e3);
	if (rc != 0 && err != NULL)
		*err = said;
	return rc;
}
