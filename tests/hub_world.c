/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actors: each answers an event as its side would, at once.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/hub/hub_inside.h"
#include "lib/hub/member_inside.h"
#include "tests/even_clock.h"
#include "tests/hub_world.h"
#include "tests/test.h"

#define TRAINER_MANIFEST "{\n  \"side\": \"trainer\"\n}\n"
#define ROLLOUT_MANIFEST "{\n  \"side\": \"rollout\"\n}\n"

void world_hub(struct world *world)
{
	struct ws_error err = {0};
	ck_ok(hub_open(&world->hub, &world->options, &err), err);
	snprintf(world->endpoint, sizeof(world->endpoint), "%s", hub_endpoint(world->hub));
	world->options.endpoint = world->endpoint; /* the next one comes back at the same place */
}

void actor_open(struct world *world, struct actor *actor, const char *manifest)
{
	struct ws_error err = {0};
	bool trains = actor->role == ROLE_TRAINER;
	const char *text = manifest != NULL ? manifest
			   : trains	    ? TRAINER_MANIFEST
					    : ROLLOUT_MANIFEST;
	struct member_options options = {.endpoint = world->endpoint,
					 .key = &world->key,
					 .role = actor->role,
					 .rank = actor->rank,
					 .replica = actor->replica,
					 .world = trains ? world->trainers : world->replica_ranks,
					 .host = "here",
					 .nics = "ipc host (no other is here)",
					 .rails = {1, 1, 0, {{7, 1000}}},
					 .inplace = actor->inplace,
					 .manifest = text,
					 .manifest_bytes = (uint32_t)strlen(text),
					 .manifest_digest = digest_bytes(text, strlen(text), 0),
					 .join_ms = PATIENCE_MS};
	*actor = (struct actor){.role = actor->role,
				.rank = actor->rank,
				.replica = actor->replica,
				.inplace = actor->inplace,
				.cannot_wire = actor->cannot_wire};
	ck_ok(member_open(&actor->member, &options, &err), err);
}

struct actor *world_rollout(struct world *world, uint32_t replica, uint32_t rank)
{
	return &world->actor[world->trainers + replica * world->replica_ranks + rank];
}

void world_open(struct world *world, uint32_t trainers, uint32_t replicas, uint32_t replica_ranks,
		const struct hub_options *options)
{
	struct ws_error err = {0};
	*world = (struct world){.options = *options,
				.count = trainers + replicas * replica_ranks,
				.trainers = trainers,
				.replica_ranks = replica_ranks};
	ck_assert_uint_le(world->count, WORLD_MEMBERS_MAX);
	even_clock_start(true);
	ck_ok(run_key_make(&world->key, &err), err);
	world->options.endpoint = "tcp://127.0.0.1:*";
	world->options.key = &world->key;
	world->options.trainer_count = trainers;
	world->options.replica_ranks = replica_ranks;
	world->options.rules = "rules";
	world->options.rules_bytes = 5;
	world_hub(world);
	for (uint32_t i = 0; i < world->count; i++) {
		struct actor *actor = &world->actor[i];
		bool trains = i < trainers;
		actor->role = trains ? ROLE_TRAINER : ROLE_ROLLOUT;
		actor->rank = trains ? i : (i - trainers) % replica_ranks;
		actor->replica = trains ? 0 : (i - trainers) / replica_ranks;
		actor_open(world, actor, NULL);
	}
}

void actor_kill(struct actor *actor)
{
	if (actor->member != NULL)
		actor->member->connected = false; /* so that close says no goodbye */
	member_close(actor->member);
	actor->member = NULL;
}

void world_close(struct world *world)
{
	for (uint32_t i = 0; i < world->count; i++)
		member_close(world->actor[i].member);
	even_clock_leave();
	if (world->has_closer)
		pthread_join(world->closer, NULL);
	else
		hub_close(world->hub);
}

void world_hub_kill(struct world *world)
{
	atomic_store(&world->hub->dies, true);
	even_clock_leave();
	hub_close(world->hub);
	world->hub = NULL;
}

void world_member_forget_hub(struct actor *actor)
{
	struct frame frame;
	enum link_event event;
	actor->deaf = false;
	actor->deaf_at = RANK_IDLE;
	/* Up to the end of the connection, which the member must see itself. */
	for (uint32_t i = 0; i < 1000; i++) {
		event = link_receive(actor->member->link, &frame, NULL);
		if (event == LINK_DISCONNECTED) {
			actor->member->connected = false;
			return;
		}
		if (event == LINK_NOTHING)
			link_wait(actor->member->link, NULL, 0, deadline_in_ms(10));
	}
}

static void *hub_closer(void *hub)
{
	hub_close(hub);
	return NULL;
}

void world_hub_close_beside(struct world *world, bool leaves)
{
	if (leaves) {
		hub_left_by(world->hub, world->actor[0].member);
		actor_kill(&world->actor[0]); /* what it says itself never comes */
	}
	ck_assert_int_eq(pthread_create(&world->closer, NULL, hub_closer, world->hub), 0);
	world->has_closer = true;
}

static void state_say(struct actor *actor, enum rank_state state)
{
	actor->state = state;
	actor->deaf = actor->deaf || (actor->deaf_at != RANK_IDLE && actor->deaf_at == state);
	member_say_state(actor->member, state, actor->attempt, actor->live, clock_ns(), 0);
}

static void roster_take(struct actor *actor, const struct member_event *event)
{
	ck_assert(event->generation > actor->generation);
	ck_assert_uint_le(event->roster_count, WORLD_MEMBERS_MAX);
	ck_assert_mem_eq(event->rules, "rules", 5);
	ck_assert_uint_eq(event->trainer_manifest_bytes, strlen(TRAINER_MANIFEST));
	ck_assert_uint_eq(event->rollout_manifest_bytes, strlen(ROLLOUT_MANIFEST));
	ck_assert_mem_eq(event->rollout_manifest, ROLLOUT_MANIFEST, event->rollout_manifest_bytes);
	actor->generation = event->generation;
	actor->self = event->self;
	actor->roster_count = event->roster_count;
	actor->trainer_count = event->trainer_count;
	actor->roster_replicas = event->replica_count;
	actor->requests = actor->answers = 0;
	actor->quiet_seen = actor->all_wired = false;
	memset(actor->ready, 0, sizeof(actor->ready));
	memset(actor->written, 0, sizeof(actor->written));
	for (uint32_t i = 0; i < event->roster_count; i++) {
		actor->roster_id[i] = event->roster[i].id;
		actor->rail_count[i] = event->roster[i].rails.count;
	}
	ck_assert(event->roster[event->self].rank == actor->rank);
	const struct ws_error no_rail = {.code = -ENODEV, .text = "no rail"};
	if (actor->cannot_wire)
		member_say_failure(actor->member, FAILURE_ATTEMPT, 0, UINT32_MAX, &no_rail);
	actor->next_gone = false;
	actor->forwarded = 0;
	member_say_quiet(actor->member, event->generation);
}

/* Memory that was short for a moment (mem_fail_nth) is asked for again. */
static void actor_say_pair(struct actor *actor, uint32_t to, bool answer, const char *body)
{
	struct ws_error err = {0};
	int rc = -ENOMEM;
	for (uint32_t i = 0; i < 3 && rc == -ENOMEM; i++)
		rc = member_say_pair(actor->member, actor->generation, to, answer, body,
				     (uint32_t)strlen(body), &err);
	ck_assert_msg(rc == 0, "%s", err.text);
}

/* After quiet: trainers ask, rollouts answer. */
static void pairs_ask(struct actor *actor)
{
	for (uint32_t i = actor->trainer_count;
	     i < actor->roster_count && actor->role == ROLE_TRAINER; i++)
		actor_say_pair(actor, i, false, "ask");
}

static void pair_take(struct actor *actor, const struct member_event *event)
{
	ck_assert_uint_eq(event->generation, actor->generation);
	if (event->answer) {
		ck_assert_mem_eq(event->body, "answer", 6);
		actor->answers++;
		if (actor->answers == actor->roster_count - actor->trainer_count)
			member_say_wired(actor->member, actor->generation);
		return;
	}
	ck_assert_mem_eq(event->body, "ask", 3);
	actor_say_pair(actor, event->from, true, "answer");
	if (++actor->requests == actor->trainer_count)
		member_say_wired(actor->member, actor->generation);
}

static void rollout_word(struct actor *actor, const struct member_event *event)
{
	struct ws_error err = {0};
	if (actor->no_step)
		return;
	switch (event->word) {
	case WORD_NONE:
		ck_abort_msg("NONE is never yielded");
		break;
	case WORD_BEGIN:
		actor->begin_count++;
		actor->attempt = event->attempt;
		actor->version = event->version;
		if (member_say_ready(actor->member, event->attempt, "set 0", 5, &err) != 0)
			ck_ok(member_say_ready(actor->member, event->attempt, "set 0", 5, &err),
			      err);
		state_say(actor, RANK_READY);
		break;
	case WORD_PAUSE:
		state_say(actor, RANK_PAUSED);
		break;
	case WORD_COMMIT:
		state_say(actor, actor->bad_reload ? RANK_BAD : RANK_COMMITTED);
		break;
	case WORD_RESUME:
		actor->live = actor->version;
		state_say(actor, RANK_RESUMED);
		break;
	case WORD_ABORT:
		actor->abort_count++;
		actor->abort = event->error;
		state_say(actor, RANK_IDLE);
		break;
	}
}

/* Others may write to it from now on, and it waits for what they write. */
static void trainer_join(struct actor *actor, uint64_t attempt)
{
	struct ws_error err = {0};
	actor->joined = attempt;
	member_say_push(actor->member, actor->want, actor->joined, actor->sent, 0);
	if (actor->begun_version == actor->want)
		ck_ok(member_say_ready(actor->member, attempt, NULL, 0, &err), err);
}

static void trainer_word(struct actor *actor, const struct member_event *event)
{
	actor->begun = event->attempt;
	actor->begun_version = event->version;
	if (actor->want == 0)
		return;
	trainer_join(actor, event->attempt);
}

static void ready_take(struct actor *actor, const struct member_event *event)
{
	if (event->from < actor->trainer_count)
		ck_assert_uint_eq(event->body_bytes, 0);
	else
		ck_assert_mem_eq(event->body, "set 0", 5);
	ck_assert_uint_eq(event->generation, actor->generation);
	ck_assert_uint_ne(event->from, actor->self);
	ck_assert_uint_lt(actor->ready[event->from], event->attempt);
	actor->ready[event->from] = event->attempt;
}

static void actor_take(struct actor *actor, const struct member_event *event)
{
	struct ws_error err = {0};
	switch (event->kind) {
	case MEMBER_NOTHING:
	case MEMBER_REPLICAS:
		break;
	case MEMBER_ROSTER:
		roster_take(actor, event);
		break;
	case MEMBER_QUIET:
		actor->quiet_seen = true;
		pairs_ask(actor);
		break;
	case MEMBER_PAIR:
		pair_take(actor, event);
		break;
	case MEMBER_ALL_WIRED:
		actor->all_wired = true;
		break;
	case MEMBER_READY:
		ready_take(actor, event);
		break;
	case MEMBER_NEXT_GONE:
		ck_assert_uint_eq(event->generation, actor->generation);
		actor->next_gone = true;
		break;
	case MEMBER_WORD:
		if (actor->role == ROLE_ROLLOUT)
			rollout_word(actor, event);
		else
			trainer_word(actor, event);
		break;
	case MEMBER_DROPPED:
		actor->was_dropped = true;
		actor->drop_count++;
		actor->dropped = event->error;
		if (actor->keeps_dropped)
			break;
		if (actor->state == RANK_COMMITTED || actor->state == RANK_LIVE)
			actor->live = 0;
		actor->all_wired = false;
		ck_ok(member_rejoin(actor->member, &err), err);
		state_say(actor, RANK_IDLE);
		break;
	case MEMBER_HUB_LOST:
		actor->hub_lost = true;
		actor->hub_lost_count++;
		break;
	case MEMBER_HUB_FOUND:
		actor->hub_lost = false;
		actor->hub_found_count++;
		break;
	case MEMBER_OVER:
		actor->is_over = true;
		actor->over = event->error;
		break;
	}
}

/* In a chain: the rollout with that roster index, in the same wiring; or NULL. */
static const struct actor *in_chain(const struct world *world, const struct actor *rollout,
				    uint32_t index)
{
	if (world->options.forward != HUB_FORWARD_CHAIN || index < world->trainers)
		return NULL;
	for (uint32_t i = world->trainers; i < world->count; i++)
		if (world->actor[i].self == index &&
		    world->actor[i].generation == rollout->generation)
			return &world->actor[i];
	return NULL;
}

/* Whether every trainer's bytes for this rank's attempt are there, or those of the one before. */
static bool bytes_are_there(const struct world *world, const struct actor *rollout)
{
	const struct actor *before = in_chain(world, rollout, rollout->self - world->replica_ranks);
	if (before != NULL)
		return before->forwarded == rollout->attempt;
	for (uint32_t i = 0; i < world->trainers; i++)
		if (world->actor[i].written[rollout->self] != rollout->attempt)
			return false;
	return true;
}

static void actor_goes_on(struct world *world, struct actor *actor)
{
	if (actor->role == ROLE_ROLLOUT) {
		uint32_t next = actor->self + world->replica_ranks;
		bool there = actor->state == RANK_READY && bytes_are_there(world, actor);
		if (there && in_chain(world, actor, next) != NULL &&
		    actor->ready[next] == actor->attempt)
			actor->forwarded = actor->attempt;
		there = there && (in_chain(world, actor, next) == NULL || actor->next_gone ||
				  actor->forwarded == actor->attempt);
		if (there)
			state_say(actor, RANK_LANDED);
		else if (actor->state == RANK_COMMITTED)
			state_say(actor, RANK_LIVE);
		else if (!actor->no_step)
			state_say(actor, actor->state);
		return;
	}
	bool all = actor->joined != 0 && !actor->mute, others = true;
	for (uint32_t i = 0; i < actor->trainer_count; i++)
		others = others && (i == actor->self || actor->ready[i] == actor->joined);
	for (uint32_t i = actor->trainer_count; i < actor->roster_count; i++) {
		if (others && !actor->mute && actor->want != 0 && actor->ready[i] == actor->joined)
			actor->written[i] = actor->joined;
		all = all && actor->written[i] == actor->joined;
	}
	if (all && actor->sent < actor->joined)
		actor->sent = actor->joined;
	if (actor->want == 0)
		return;
	if (actor->joined > actor->over_attempt &&
	    member_attempt_over(actor->member, actor->joined, &actor->push_error)) {
		actor->over_attempt = actor->joined;
		actor->want = 0;
	}
	member_say_push(actor->member, actor->want, actor->joined, actor->sent, 1000);
}

static void world_step(struct world *world)
{
	for (uint32_t i = 0; i < world->count; i++) {
		struct actor *actor = &world->actor[i];
		struct member_event event;
		if (actor->member == NULL || actor->frozen)
			continue;
		for (uint32_t n = 0; n < 200 && !actor->deaf; n++) {
			member_step(actor->member, &event);
			if (event.kind == MEMBER_NOTHING)
				break;
			actor_take(actor, &event);
		}
		if (actor->deaf)
			member_send_due(actor->member, clock_ns());
		if (!actor->is_over && !(actor->was_dropped && actor->keeps_dropped))
			actor_goes_on(world, actor);
	}
	sleep_ns(1000000);
}

bool world_run(struct world *world, bool (*done)(const struct world *world, const void *arg),
	       const void *arg)
{
	uint64_t until_ns = deadline_in_ms(PATIENCE_MS);
	while (!done(world, arg)) {
		if (clock_ns() > until_ns)
			return false;
		world_step(world);
	}
	return true;
}

void world_run_ms(struct world *world, uint64_t ms)
{
	uint64_t until_ns = deadline_in_ms(ms);
	while (clock_ns() < until_ns)
		world_step(world);
}

bool all_are_wired(const struct world *world, const void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < world->count; i++)
		if (world->actor[i].member != NULL && !world->actor[i].all_wired)
			return false;
	return true;
}

bool push_ended(const struct world *world, const void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < world->trainers; i++)
		if (world->actor[i].member != NULL && world->actor[i].want != 0)
			return false;
	return true;
}

void actor_push(struct actor *actor, uint64_t version)
{
	actor->want = version;
	actor->push_error = (struct ws_error){0};
	/* Begun already by another trainer. */
	if (actor->begun_version == version && actor->begun > actor->joined &&
	    !member_attempt_over(actor->member, actor->begun, NULL))
		trainer_join(actor, actor->begun);
	else
		member_say_push(actor->member, version, actor->joined, actor->sent, 0);
}

void world_push(struct world *world, uint64_t version)
{
	for (uint32_t i = 0; i < world->trainers; i++) {
		struct actor *actor = &world->actor[i];
		if (actor->member == NULL)
			continue;
		actor_push(actor, version);
	}
}

bool rollout_has_begun(const struct world *world, const void *actor)
{
	(void)world;
	return ((const struct actor *)actor)->begin_count > 0;
}

const struct ws_error *push_error(const struct world *world, uint32_t trainer)
{
	return &world->actor[trainer].push_error;
}

void push_ok_but(struct world *world, uint64_t version, const struct actor *absent)
{
	world_push(world, version);
	ck_assert_msg(world_run(world, push_ended, NULL), "version %llu didn't end",
		      (unsigned long long)version);
	for (uint32_t i = 0; i < world->count; i++) {
		const struct actor *actor = &world->actor[i];
		if (actor->member == NULL || actor == absent)
			continue;
		if (i < world->trainers)
			ck_assert_msg(actor->push_error.code == 0, "trainer %u: %s", i,
				      actor->push_error.text);
		else
			ck_assert_msg(actor->live == version, "rollout %u.%u serves %llu",
				      actor->replica, actor->rank, (unsigned long long)actor->live);
	}
}

void push_ok(struct world *world, uint64_t version)
{
	push_ok_but(world, version, NULL);
}
