/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rollouts that describe themselves again in the middle of a run, as an engine does that moves
 * experts between its ranks: with maps of the same sizes and with redundant slots, in double and
 * in place, alone and beside another replica, and what goes wrong there.
 */
#include <errno.h>
#include <string.h>

#include "tests/test.h"
#include "tests/update_world.h"

/* Eight experts at each of two layers, on two ranks. */
#define LINEAR "{\"axis\": \"ep\", \"place\": \"linear\"}"
#define SWAPPED                                                                               \
	"{\"axis\": \"ep\", \"map_layers\": [0, 2], \"map\": [[[7, 1, 5, 3], [6, 0, 2, 4]], " \
	"[[0, 1, 2, 7], [4, 5, 6, 3]]]}"
#define REDUNDANT                                                                                   \
	"{\"axis\": \"ep\", \"map_layers\": [0, 2], \"map\": [[[0, 1, 2, 3, 0], [4, 5, 6, 7, 0]], " \
	"[[0, 1, 2, 3, 6], [4, 5, 6, 7, 6]]]}"

static const struct world_options experts = {
	.model = "qwen3-30b-a3b",
	.scale = 12000,
	.trainer_layout = "fsdp2",
	.trainer_mesh = "dp=2",
	.rollout_layout = "vllm",
	.rollout_mesh = "tp=2,ep=2",
	.trainers = 2,
	.replicas = 1,
	.replica_ranks = 2,
	.phase_ms = 8000,
};

static void all_remap(struct world *world, const char *map)
{
	for (uint32_t i = 0; i < world->loop_count; i++)
		loop_remap(&world->loop[i], map);
}

START_TEST(versions_go_on_over_a_changed_expert_map)
{
	struct world_options options = experts;

	options.inplace = (_i & 1) != 0;
	options.digests = options.inplace;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	all_remap(world, (_i & 2) != 0 ? REDUNDANT : SWAPPED);
	/* At once: the push waits for the ranks, or they for the push. */
	world_push_good(world, 2, false);
	for (uint32_t i = 0; i < world->loop_count; i++)
		loop_await_remap(&world->loop[i]);
	world_push_good(world, 3, false);
	world_push_good(world, 4, false);
	for (uint32_t i = 0; i < world->loop_count; i++) {
		struct engine_loop *loop = &world->loop[i];
		ck_assert_uint_eq(loop->described, 1);
		ck_assert_uint_eq(ws_rollout_version(loop->rollout), 4);
		ck_assert_uint_eq(loop->manifest != world->manifest[SIDE_ROLLOUT], 1);
	}
	world_close(world);
}
END_TEST

/* Pushes; only this replica is then live, and the report says why the other isn't. */
static void push_only(struct world *world, uint64_t version, uint32_t replica, const char *says)
{
	world_push(world, version, PATIENCE_MS, false);
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		const struct trainer *trainer = &world->trainer[i];
		ck_assert_msg(trainer->rc == 0, "%s", trainer->err.text);
		for (uint32_t r = 0; r < trainer->report.replica_count; r++) {
			const struct ws_replica_report *of = &trainer->report.replicas[r];
			ck_assert_int_eq(of->live, of->replica == replica);
			ck_assert_msg(of->live || strstr(of->text, says) != NULL, "%s", of->text);
		}
	}
	for (uint32_t i = 0; i < world->loop_count; i++)
		if (world->loop[i].replica == replica)
			ck_assert_uint_eq(atomic_load(&world->loop[i].resumed), version);
}

static struct world *two_replicas(void)
{
	struct world_options options = experts;

	options.replicas = 2;
	options.phase_ms = 2500;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	return world;
}

/* A dropped replica joins again by itself; the push that finds it back in the run reaches it. */
static void push_until_all_live(struct world *world, uint64_t version)
{
	for (uint64_t until_ns = deadline_in_ms(PATIENCE_MS); clock_ns() < until_ns;) {
		world_push(world, version++, PATIENCE_MS, false);
		ck_assert_msg(world->trainer[0].rc == 0, "%s", world->trainer[0].err.text);
		const struct ws_report *report = &world->trainer[0].report;
		if (report->replica_count == 2 && report->replicas[0].live &&
		    report->replicas[1].live)
			return;
		sleep_ns(200000000u);
	}
	ck_abort_msg("replica 1 never came back: %s", world->trainer[0].report.replicas[1].text);
}

START_TEST(a_push_waits_until_all_replicas_have_the_new_map)
{
	struct world *world = two_replicas();

	loop_remap(&world->loop[0], SWAPPED);
	loop_remap(&world->loop[1], SWAPPED);
	loop_await_remap(&world->loop[0]);
	loop_remap(&world->loop[2], SWAPPED);
	loop_remap(&world->loop[3], SWAPPED);
	world_push_good(world, 2, false);
	world_push_good(world, 3, false);
	world_close(world);
}
END_TEST

START_TEST(a_replica_that_describes_alone_waits_outside_until_it_has_the_runs_map)
{
	struct world *world = two_replicas();

	loop_remap(&world->loop[2], SWAPPED);
	loop_remap(&world->loop[3], SWAPPED);
	loop_await_remap(&world->loop[2]);
	loop_await_remap(&world->loop[3]);
	push_only(world, 2, 0, "must describe itself again");
	ck_assert_uint_eq(ws_rollout_version(world->loop[2].rollout), 0);
	push_only(world, 3, 0, "must describe itself again");
	loop_remap(&world->loop[2], LINEAR);
	loop_remap(&world->loop[3], LINEAR);
	loop_await_remap(&world->loop[2]);
	loop_await_remap(&world->loop[3]);
	world_push_good(world, 4, false);
	world_close(world);
}
END_TEST

START_TEST(a_rank_that_describes_otherwise_than_its_peer_is_refused)
{
	struct world *world = two_replicas();

	loop_remap(&world->loop[2], SWAPPED);
	loop_remap(&world->loop[3], REDUNDANT);
	loop_await_remap(&world->loop[2]);
	loop_await_remap(&world->loop[3]);
	push_only(world, 2, 0, "itself again");
	loop_stop(&world->loop[2]);
	loop_stop(&world->loop[3]);
	const struct engine_loop *refused = &world->loop[world->loop[2].rc == 0 ? 3 : 2];
	ck_assert_int_eq(world->loop[2].rc + world->loop[3].rc, -ESTALE);
	ck_assert_msg(strstr(refused->err.text, "described itself again otherwise than rollout 1."),
		      "%s", refused->err.text);
	/* Opened anew with the run's manifest they come in. */
	loop_start(&world->loop[2]);
	loop_start(&world->loop[3]);
	push_until_all_live(world, 3);
	world_close(world);
}
END_TEST

START_TEST(a_rank_that_describes_and_dies_is_waited_for_so_long_and_no_longer)
{
	struct world *world = two_replicas();

	atomic_store(&world->loop[3].dies, true);
	loop_remap(&world->loop[3], SWAPPED);
	loop_await_remap(&world->loop[3]);
	push_only(world, 2, 0, "rollout 1.1 describes itself again");
	loop_stop(&world->loop[3]);
	loop_start(&world->loop[3]);
	push_until_all_live(world, 3);
	world_close(world);
}
END_TEST

START_TEST(during_an_update_it_has_to_wait_and_the_update_goes_live)
{
	struct world *world = world_open(&experts);

	world_push_good(world, 1, false);
	/* The second version's pause is put off while it asks. */
	atomic_store(&world->loop[0].put_off, 20);
	for (uint32_t i = 0; i < 2; i++) {
		world->loop[i].remap_after = 2;
		loop_remap(&world->loop[i], SWAPPED);
	}
	world_push_good(world, 2, false);
	world_push_good(world, 3, false);
	ck_assert_uint_gt(atomic_load(&world->loop[0].busy), 0);
	ck_assert_uint_eq(atomic_load(&world->loop[0].described), 1);
	world_close(world);
}
END_TEST

/* A manifest of the same layout for another model: no weight of it is there. */
static void other_model_write(struct writer *text)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct model *whole, *model;
	struct ws_error err = {0};
	struct manifest_options options = {.side = SIDE_ROLLOUT,
					   .layout = experts.rollout_layout,
					   .mesh = experts.rollout_mesh};

	*text = (struct writer)WRITER_INIT(16u << 20);
	ck_ok(model_builtin(&whole, experts.model, &err), err);
	ck_ok(model_scale(&model, whole, 1, experts.scale / 4, &err), err);
	ck_ok(manifest_make(model, &options, text, &findings, &err), err);
	model_free(model);
	model_free(whole);
	arena_release(&arena);
}

START_TEST(a_manifest_that_the_trainers_dont_cover_is_refused_and_nothing_has_changed)
{
	struct world *world = world_open(&experts);
	struct writer text;

	other_model_write(&text);
	world_push_good(world, 1, false);
	loop_remap_text(&world->loop[1], text.bytes, text.count);
	loop_await_remap(&world->loop[1]);
	ck_assert_msg(strstr(world->loop[1].refused_text, "of model") != NULL, "'%s'",
		      world->loop[1].refused_text);
	ck_assert_uint_eq(ws_rollout_version(world->loop[1].rollout), 1);
	world_push_good(world, 2, false);
	writer_release(&text);
	world_close(world);
}
END_TEST

/* Writes of the aborted attempt may still be under way. */
START_TEST(after_an_aborted_update_it_may_describe_at_once)
{
	struct world_options options = experts;

	options.inplace = _i == 1;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	atomic_store(&world->loop[1].fail_begin, 1);
	for (uint32_t i = 0; i < world->loop_count; i++)
		world->loop[i].remap_after_aborts = 1;
	all_remap(world, REDUNDANT);
	world_push(world, 2, PATIENCE_MS, false);
	ck_assert_int_lt(world->trainer[0].rc, 0);
	for (uint32_t i = 0; i < world->loop_count; i++)
		loop_await_remap(&world->loop[i]);
	world_push_good(world, 3, false);
	world_close(world);
}
END_TEST

/* Inside a node, and from replica to replica. */
START_TEST(versions_go_on_over_a_changed_map_with_forwards)
{
	struct world_options options = experts;

	uint64_t forwarded = 0;
	options.fanout = _i == 0 ? "node" : "replica";
	options.replicas = _i == 0 ? 1 : 2;
	struct world *world = world_open(&options);
	world_push_good(world, 1, false);
	all_remap(world, REDUNDANT);
	for (uint32_t i = 0; i < world->loop_count; i++)
		loop_await_remap(&world->loop[i]);
	world_push_good(world, 2, false);
	world_push_good(world, 3, false);
	for (uint32_t i = 0; i < world->loop_count; i++) {
		const struct ws_rollout_report report = *loop_last(&world->loop[i]);
		ck_assert_uint_eq(report.version, 3);
		forwarded += report.bytes_from_rollouts;
	}
	ck_assert_uint_gt(forwarded, 0);
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *describe = suite_create("update_describe");
	TCase *maps = tcase_create("maps");

	tcase_add_loop_test(maps, versions_go_on_over_a_changed_expert_map, 0, 4);
	tcase_add_loop_test(maps, versions_go_on_over_a_changed_map_with_forwards, 0, 2);
	tcase_add_test(maps, a_push_waits_until_all_replicas_have_the_new_map);
	tcase_add_test(maps,
		       a_replica_that_describes_alone_waits_outside_until_it_has_the_runs_map);
	tcase_add_test(maps, a_rank_that_describes_otherwise_than_its_peer_is_refused);
	tcase_add_test(maps, a_rank_that_describes_and_dies_is_waited_for_so_long_and_no_longer);
	tcase_add_test(maps, during_an_update_it_has_to_wait_and_the_update_goes_live);
	tcase_add_test(maps,
		       a_manifest_that_the_trainers_dont_cover_is_refused_and_nothing_has_changed);
	tcase_add_loop_test(maps, after_an_aborted_update_it_may_describe_at_once, 0, 2);
	tcase_set_timeout(maps, 90);
	suite_add_tcase(describe, maps);
	return describe;
}
