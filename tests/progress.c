/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub's decisions.  First single rules, by hand; then random schedules with every fault,
 * against the properties of update_model.pml; then the same with one rule taken away, which
 * the properties must notice.
 */
#include <errno.h>
#include <string.h>

#include "tests/progress_world.h"
#include "tests/test.h"

#define SEEDS	     300
#define STEPS	     600
#define MUTANT_SEEDS 3000

START_TEST(no_schedule_tears_splits_or_wedges)
{
	struct model model;
	model_open(&model, (uint64_t)_i, MUTANT_NONE);
	for (uint32_t i = 0; i < STEPS && model.broken[0] == '\0'; i++)
		model_step(&model);
	ck_assert_msg(model.broken[0] == '\0', "seed %d: %s", _i, model.broken);
	model_calm(&model);
	ck_assert_msg(model.broken[0] == '\0', "seed %d, calm: %s", _i, model.broken);
	ck_assert_msg(model_trainers_idle(&model), "seed %d: a push never ended; the hub waits: %s",
		      _i, model.progress.waits.text);
	ck_assert_msg(model_last_push(&model),
		      "seed %d: the next push didn't go live: %d %s / waits %s", _i,
		      model.process[0].result.code, model.process[0].result.text,
		      model.progress.waits.text);
	ck_assert_msg(model.broken[0] == '\0', "seed %d, last push: %s", _i, model.broken);
	model_close(&model);
}
END_TEST

START_TEST(a_rule_taken_away_is_noticed)
{
	struct model model;
	bool noticed = false;
	for (uint64_t seed = 0; seed < MUTANT_SEEDS && !noticed; seed++) {
		model_open(&model, seed, (enum mutant)_i);
		for (uint32_t i = 0; i < STEPS && model.broken[0] == '\0'; i++)
			model_step(&model);
		noticed = model.broken[0] != '\0';
		model_close(&model);
	}
	ck_assert_msg(noticed, "mutant %d lives", _i);
}
END_TEST

Suite *suite(void)
{
	Suite *progress = suite_create("progress");
	TCase *schedules = tcase_create("schedules");
	tcase_set_timeout(schedules, 60);
	tcase_add_loop_test(schedules, no_schedule_tears_splits_or_wedges, 0, SEEDS);
	tcase_add_loop_test(schedules, a_rule_taken_away_is_noticed, MUTANT_NONE + 1, MUTANT_COUNT);
	suite_add_tcase(progress, schedules);
	return progress;
}
