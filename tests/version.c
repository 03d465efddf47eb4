/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of a rollout rank, alone and in a replica of two under a hub that may abort,
 * drop and forget at any moment.  The world here plays memory, engine and hub; the checks are
 * those of update_model.pml: what serves is whole (S1), and the same on all ranks (S2).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rollout_side/version.h"
#include "tests/test.h"

#define RANKS 2

struct rank {
	struct version version;
	struct version_actions todo;
	/* the engine */
	uint64_t memory, spare; /* which version's bytes; UINT64_MAX: torn */
	uint64_t claims;	/* the version it would stamp samples with */
	bool serving, armed, paused;
	enum hook running;
	uint64_t running_version;
	bool serving_old;
	/* heard by the hub */
	enum rank_state said;
	uint64_t said_attempt;
	bool failed, poisoned_told, rejoin;
	uint32_t hooks[HOOK_ABORT + 1];
};

struct world {
	struct rank rank[RANKS];
	bool inplace;
	enum replica_word word;
	uint64_t attempt, number;
	unsigned seed;
};

static uint32_t dice(struct world *world, uint32_t sides)
{
	return (uint32_t)rand_r(&world->seed) % sides;
}

static void check_safe(const struct world *world)
{
	for (int i = 0; i < RANKS; i++) {
		const struct rank *rank = &world->rank[i];
		if (!rank->serving)
			continue;
		ck_assert_msg(rank->memory == rank->claims, "serves %llu as %llu",
			      (unsigned long long)rank->memory, (unsigned long long)rank->claims);
		for (int k = 0; k < i; k++)
			ck_assert_msg(!world->rank[k].serving ||
					      world->rank[k].claims == rank->claims,
				      "one replica serves two versions");
	}
}

/* What a rank's beats repeat at any time. */
static void beat(struct rank *rank)
{
	rank->said = rank->version.state;
	rank->said_attempt = rank->version.said_attempt;
}

static void take_actions(struct world *world, struct rank *rank)
{
	for (uint32_t i = 0; i < rank->todo.count; i++) {
		struct version_action action = rank->todo.list[i];
		switch (action.act) {
		case ACT_HOOK:
			ck_assert_int_eq(rank->running, HOOK_NONE);
			rank->running = action.hook;
			rank->running_version = action.version;
			rank->serving_old = action.serving_old;
			rank->hooks[action.hook]++;
			break;
		case ACT_REVOKE:
			ck_assert(rank->running == HOOK_BEGIN || rank->running == HOOK_PAUSE);
			rank->running = HOOK_NONE;
			version_hook_done(&rank->version, -ECANCELED, NULL, &rank->todo);
			break;
		case ACT_ARM:
			ck_assert(!world->inplace || !rank->serving);
			rank->armed = true;
			version_armed(&rank->version, 0, NULL, &rank->todo);
			break;
		case ACT_END:
			rank->armed = false;
			break;
		case ACT_SAY:
			beat(rank);
			break;
		case ACT_READY:
			ck_assert(rank->armed && rank->said == RANK_READY);
			break;
		case ACT_FAIL:
			rank->failed = true;
			rank->poisoned_told |= action.failure == FAILURE_POISONED;
			break;
		case ACT_REJOIN:
			rank->rejoin = true;
			break;
		}
	}
	rank->todo.count = 0;
	check_safe(world);
}

/* What the engine's thread does with a hook, as step.c does it. */
static void run_hook(struct world *world, struct rank *rank, int rc)
{
	struct ws_error err = {.code = rc, .text = "the engine said no"};
	enum hook hook = rank->running;

	if (hook == HOOK_NONE)
		return;
	rank->running = HOOK_NONE;
	switch (hook) {
	case HOOK_NONE:
		break;
	case HOOK_BEGIN:
		if (rc == 0 && world->inplace)
			rank->serving = false;
		break;
	case HOOK_PAUSE:
		if (rc == 0)
			rank->serving = false;
		break;
	case HOOK_RELOAD:
		ck_assert_msg(!rank->serving, "reloaded under a serving engine");
		if (!world->inplace)
			rank->memory = rank->spare;
		if (rc == 0)
			rank->claims = rank->running_version;
		break;
	case HOOK_RESUME:
		if (rc == 0) {
			rank->serving = true;
			rank->claims = rank->running_version;
		}
		break;
	case HOOK_ABORT:
		rc = 0;
		rank->serving = rank->serving_old && rank->memory != 0;
		if (rank->serving)
			rank->claims = rank->memory;
		break;
	}
	version_hook_done(&rank->version, rc, &err, &rank->todo);
	take_actions(world, rank);
}

static void hear(struct world *world, struct rank *rank)
{
	beat(rank);
	version_word(&rank->version, world->word, world->attempt, world->number, NULL, &rank->todo);
	take_actions(world, rank);
}

/* Bytes of the attempt arrive, half first: memory is torn until all is there. */
static void land(struct world *world, struct rank *rank, bool all)
{
	if (!rank->armed || rank->version.state != RANK_READY || rank->version.broken)
		return;
	uint64_t *target = world->inplace ? &rank->memory : &rank->spare;
	*target = all ? rank->version.version : UINT64_MAX;
	check_safe(world);
	if (!all)
		return;
	version_landed(&rank->version, &rank->todo);
	take_actions(world, rank);
}

static bool all_said(const struct world *world, enum rank_state state)
{
	for (int i = 0; i < RANKS; i++)
		if (world->rank[i].said_attempt != world->attempt || world->rank[i].said < state ||
		    world->rank[i].said == RANK_BAD)
			return false;
	return true;
}

static void hub_move(struct world *world)
{
	bool calm = true;

	for (int i = 0; i < RANKS; i++)
		calm = calm && !world->rank[i].failed &&
		       (world->rank[i].said == RANK_IDLE || world->rank[i].said == RANK_RESUMED);
	if (world->word == WORD_BEGIN && all_said(world, RANK_LANDED))
		world->word = WORD_PAUSE;
	else if (world->word == WORD_PAUSE && all_said(world, RANK_PAUSED))
		world->word = WORD_COMMIT;
	else if (world->word == WORD_COMMIT && all_said(world, RANK_LIVE))
		world->word = WORD_RESUME;
	else if (world->word == WORD_RESUME && all_said(world, RANK_RESUMED))
		world->word = WORD_NONE;
	else if ((world->word == WORD_NONE || world->word == WORD_ABORT) && calm) {
		world->word = WORD_BEGIN;
		world->attempt++;
		world->number++;
	}
}

static void hub_abort(struct world *world)
{
	if (world->word == WORD_BEGIN || world->word == WORD_PAUSE)
		world->word = WORD_ABORT;
}

static void hub_drop(struct world *world)
{
	struct ws_error why = {.code = -ETIMEDOUT, .text = "it was silent"};

	world->word = WORD_NONE;
	for (int i = 0; i < RANKS; i++) {
		world->rank[i].failed = false;
		version_dropped(&world->rank[i].version, &why, &world->rank[i].todo);
		take_actions(world, &world->rank[i]);
	}
}

/* The hub acts on what ranks told it. */
static void hub_hear_failures(struct world *world)
{
	bool failed = false, bad = false;

	for (int i = 0; i < RANKS; i++) {
		failed = failed || world->rank[i].failed;
		bad = bad || world->rank[i].said == RANK_BAD || world->rank[i].poisoned_told;
		world->rank[i].poisoned_told = false;
	}
	if (bad || (failed && (world->word == WORD_COMMIT || world->word == WORD_RESUME)))
		hub_drop(world);
	else if (failed)
		hub_abort(world);
	for (int i = 0; failed && world->word == WORD_ABORT && i < RANKS; i++)
		world->rank[i].failed = false;
}

static struct world *world_make(int seed, bool inplace)
{
	struct world *world = calloc(1, sizeof(*world));

	ck_assert_ptr_nonnull(world);
	world->inplace = inplace;
	world->seed = (unsigned)seed;
	for (int i = 0; i < RANKS; i++) {
		struct version_actions none = {0};
		version_init(&world->rank[i].version, inplace);
		version_wired(&world->rank[i].version, true, &none);
	}
	return world;
}

/* Goes on without faults until a version that begins now is resumed everywhere. */
static void run_clean(struct world *world)
{
	uint64_t before = UINT64_MAX;

	for (int step = 0; step < 2000; step++) {
		hub_hear_failures(world);
		for (int i = 0; i < RANKS; i++) {
			hear(world, &world->rank[i]);
			run_hook(world, &world->rank[i], 0);
			land(world, &world->rank[i], true);
		}
		hub_move(world);
		if (world->word == WORD_BEGIN && before == UINT64_MAX)
			before = world->attempt;
		if (before != UINT64_MAX && world->word == WORD_NONE && world->attempt >= before) {
			for (int i = 0; i < RANKS; i++) {
				ck_assert_int_eq(world->rank[i].version.state, RANK_RESUMED);
				ck_assert(world->rank[i].serving);
				ck_assert_uint_eq(world->rank[i].memory, world->number);
				ck_assert_uint_eq(world->rank[i].version.live_version,
						  world->number);
			}
			return;
		}
	}
	ck_abort_msg("no version went live: word %d attempt %llu, ranks %d %d", (int)world->word,
		     (unsigned long long)world->attempt, (int)world->rank[0].version.state,
		     (int)world->rank[1].version.state);
}

START_TEST(a_version_goes_live_and_the_next_one_too)
{
	struct world *world = world_make(1, _i == 1);

	run_clean(world);
	run_clean(world);
	for (int i = 0; i < RANKS; i++) {
		ck_assert_uint_eq(world->rank[i].hooks[HOOK_RELOAD], 2);
		ck_assert_uint_eq(world->rank[i].hooks[HOOK_RESUME], 2);
		ck_assert_uint_eq(world->rank[i].hooks[HOOK_PAUSE], world->inplace ? 0 : 2);
	}
	free(world);
}
END_TEST

START_TEST(any_schedule_of_faults_never_serves_torn_or_mixed_weights)
{
	struct world *world = world_make(_i, _i % 2 == 1);

	for (int step = 0; step < 400; step++) {
		struct rank *rank = &world->rank[dice(world, RANKS)];
		struct ws_error why = {.code = -EPROTO, .text = "fence broken"};
		for (int i = 0; i < RANKS; i++)
			beat(&world->rank[i]);
		switch (dice(world, 16)) {
		case 0:
		case 1:
		case 2:
			hear(world, rank);
			break;
		case 3:
		case 4:
			run_hook(world, rank, 0);
			break;
		case 5:
			if (rank->running != HOOK_RELOAD)
				run_hook(world, rank, -EAGAIN);
			break;
		case 6:
			if (dice(world, 8) == 0)
				run_hook(world, rank, -EIO);
			break;
		case 7:
		case 8:
			land(world, rank, true);
			break;
		case 9:
			land(world, rank, false);
			break;
		case 10:
			if (dice(world, 8) == 0)
				hub_abort(world);
			break;
		case 11:
			if (dice(world, 24) == 0)
				hub_drop(world);
			break;
		case 12:
			if (dice(world, 16) == 0) {
				version_failed(&rank->version, &why, &rank->todo);
				take_actions(world, rank);
			}
			break;
		case 13:
			/* Bytes go over spare memory that is armed or being copied. */
			if (dice(world, 16) == 0 && !world->inplace && rank->armed) {
				rank->spare = UINT64_MAX;
				version_stray(&rank->version, &why, &rank->todo);
				take_actions(world, rank);
			}
			break;
		case 14:
			hub_hear_failures(world);
			break;
		case 15:
			hub_move(world);
			break;
		default:
			break;
		}
	}
	run_clean(world);
	free(world);
}
END_TEST

/* Brings a rank of a replica to a state by the shortest way. */
static struct world *world_at(bool inplace, enum rank_state state)
{
	struct world *world = world_make(7, inplace);

	run_clean(world);
	for (int step = 0; step < 100 && world->rank[0].version.state != state; step++) {
		hub_move(world);
		for (int i = 0; i < RANKS; i++) {
			if (world->rank[0].version.state == state)
				break;
			hear(world, &world->rank[i]);
			if (world->rank[0].version.state == state)
				break;
			run_hook(world, &world->rank[i], 0);
			if (world->rank[0].version.state != state)
				land(world, &world->rank[i], true);
		}
	}
	ck_assert_int_eq(world->rank[0].version.state, state);
	return world;
}

START_TEST(an_abort_before_commit_brings_old_weights_back_only_in_double_mode)
{
	bool inplace = _i % 2 == 1;
	struct world *world = world_at(inplace, (enum rank_state)(RANK_READY + _i / 2));
	struct rank *rank = &world->rank[0];

	land(world, rank, false);
	world->word = WORD_ABORT;
	for (int i = 0; i < 3; i++) {
		hear(world, rank);
		run_hook(world, rank, 0);
	}
	ck_assert_int_eq(rank->version.state, RANK_IDLE);
	ck_assert_uint_eq(rank->hooks[HOOK_ABORT], 1);
	ck_assert_int_eq(rank->serving, !inplace);
	ck_assert_uint_eq(rank->version.live_version, inplace ? 0 : 1);
	for (int i = 1; i < RANKS; i++)
		hear(world, &world->rank[i]);
	run_clean(world);
	free(world);
}
END_TEST

START_TEST(an_abort_never_undoes_a_commit)
{
	struct world *world = world_at(_i == 1, RANK_COMMITTED);
	struct rank *rank = &world->rank[0];

	version_word(&rank->version, WORD_ABORT, world->attempt, world->number, NULL, &rank->todo);
	take_actions(world, rank);
	ck_assert_int_eq(rank->version.state, RANK_COMMITTED);
	ck_assert_uint_eq(rank->hooks[HOOK_ABORT], 0);
	run_hook(world, rank, 0);
	ck_assert_int_eq(rank->version.state, RANK_LIVE);
	free(world);
}
END_TEST

START_TEST(a_drop_after_commit_poisons_and_one_after_resume_does_not)
{
	struct world *world = world_at(false, _i == 0 ? RANK_COMMITTED : RANK_RESUMED);
	struct rank *rank = &world->rank[0];
	struct ws_error why = {.code = -ETIMEDOUT, .text = "silent"};

	version_dropped(&rank->version, &why, &rank->todo);
	take_actions(world, rank);
	if (_i == 0)
		ck_assert(!rank->rejoin); /* on_reload runs */
	run_hook(world, rank, 0);
	run_hook(world, rank, 0);
	ck_assert(rank->rejoin);
	ck_assert_int_eq(rank->serving, _i == 1);
	ck_assert_int_eq(rank->version.state, _i == 0 ? RANK_IDLE : RANK_RESUMED);
	free(world);
}
END_TEST

START_TEST(a_stray_write_withdraws_landed_and_a_commit_after_it_poisons)
{
	struct world *world = world_at(false, RANK_PAUSED);
	struct rank *rank = &world->rank[0];
	struct ws_error why = {.code = -EPROTO, .text = "fence broken"};

	version_stray(&rank->version, &why, &rank->todo);
	take_actions(world, rank);
	ck_assert(rank->failed && !rank->poisoned_told);
	version_word(&rank->version, WORD_COMMIT, world->attempt, world->number, NULL, &rank->todo);
	take_actions(world, rank);
	ck_assert(rank->poisoned_told);
	ck_assert_int_eq(rank->version.state, RANK_BAD);
	ck_assert_uint_eq(rank->hooks[HOOK_RELOAD], 1); /* of the version before */
	free(world);
}
END_TEST

START_TEST(a_stray_write_into_live_memory_poisons_in_place_only)
{
	struct world *world = world_at(_i == 1, RANK_RESUMED);
	struct rank *rank = &world->rank[0];
	struct ws_error why = {.code = -EPROTO, .text = "fence broken"};

	version_stray(&rank->version, &why, &rank->todo);
	take_actions(world, rank);
	ck_assert_int_eq(rank->poisoned_told, _i == 1);
	ck_assert_int_eq(rank->version.state, _i == 1 ? RANK_BAD : RANK_RESUMED);
	ck_assert_uint_eq(rank->version.live_version, _i == 1 ? 0 : world->number);
	free(world);
}
END_TEST

START_TEST(a_failed_reload_poisons_the_replica)
{
	struct world *world = world_at(_i == 1, RANK_COMMITTED);
	struct rank *rank = &world->rank[0];

	run_hook(world, rank, -EIO);
	ck_assert_int_eq(rank->version.state, RANK_BAD);
	ck_assert(rank->poisoned_told && !rank->serving);
	hub_hear_failures(world);
	run_clean(world);
	free(world);
}
END_TEST

START_TEST(a_rank_that_never_steps_still_joins_again)
{
	struct world *world = world_at(false, RANK_LANDED);
	struct rank *rank = &world->rank[0];
	struct ws_error why = {.code = -ETIMEDOUT, .text = "no step for 41 s"};

	world->word = WORD_PAUSE;
	hear(world, rank);
	ck_assert_int_eq(rank->running, HOOK_PAUSE);
	version_dropped(&rank->version, &why, &rank->todo); /* on_pause was never begun */
	take_actions(world, rank);
	ck_assert(rank->rejoin);
	ck_assert_int_eq(rank->version.state, RANK_IDLE);
	ck_assert_int_eq(rank->running, HOOK_ABORT);
	rank->rejoin = false;
	version_dropped(&rank->version, &why, &rank->todo); /* and again: on_abort still waits */
	take_actions(world, rank);
	ck_assert(rank->rejoin);
	free(world);
}
END_TEST

START_TEST(not_yet_is_asked_again_until_an_abort_comes)
{
	struct world *world = world_at(false, RANK_LANDED);
	struct rank *rank = &world->rank[0];

	world->word = WORD_PAUSE;
	hear(world, rank);
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(rank->running, HOOK_PAUSE);
		ck_assert(rank->serving);
		run_hook(world, rank, -EAGAIN);
	}
	world->word = WORD_ABORT;
	hear(world, rank);
	ck_assert_int_eq(rank->running, HOOK_ABORT);
	run_hook(world, rank, 0);
	ck_assert(rank->serving);
	free(world);
}
END_TEST

Suite *suite(void)
{
	Suite *version = suite_create("version");
	TCase *rules = tcase_create("rules");
	TCase *random = tcase_create("random");

	tcase_add_loop_test(rules, a_version_goes_live_and_the_next_one_too, 0, 2);
	tcase_add_loop_test(
		rules, an_abort_before_commit_brings_old_weights_back_only_in_double_mode, 0, 6);
	tcase_add_loop_test(rules, an_abort_never_undoes_a_commit, 0, 2);
	tcase_add_loop_test(rules, a_drop_after_commit_poisons_and_one_after_resume_does_not, 0, 2);
	tcase_add_test(rules, a_stray_write_withdraws_landed_and_a_commit_after_it_poisons);
	tcase_add_loop_test(rules, a_stray_write_into_live_memory_poisons_in_place_only, 0, 2);
	tcase_add_loop_test(rules, a_failed_reload_poisons_the_replica, 0, 2);
	tcase_add_test(rules, a_rank_that_never_steps_still_joins_again);
	tcase_add_test(rules, not_yet_is_asked_again_until_an_abort_comes);
	tcase_add_loop_test(random, any_schedule_of_faults_never_serves_torn_or_mixed_weights, 0,
			    400);
	tcase_set_timeout(random, 60);
	suite_add_tcase(version, rules);
	suite_add_tcase(version, random);
	return version;
}
