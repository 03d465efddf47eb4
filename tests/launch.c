/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a host's ranks a process is, by what launchers write into its environment.  Whole jobs
 * are in cli.sh, updates.sh and topology.sh.
 */
#include <stdlib.h>

#include "cli/cli.h"
#include "tests/test.h"

/* A task of a Slurm step: its number on its node, the node's (NULL: unset), tasks by node. */
static const struct {
	const char *local_rank, *node, *tasks;
	uint32_t ranks; /* of its host; 0: that isn't known */
} steps[] = {
	{"5", "1", "8(x2),4", 8},    {"3", "2", "8(x2),4", 4},
	{"5", "2", "8(x2),4", 0}, /* node 2 has no task 5 */
	{"0", "3", "8(x2),4", 0}, /* there is no node 3 */
	{"3", NULL, "8(x2),4", 0},   {"7", NULL, "8(x2)", 8},
	{"0", "0", "1", 1},	     {"0", "0", "2,3(x4294967295)", 0},
	{"2", "7", "2,3(x40),1", 3}, {"0", "41", "2,3(x40),1", 1},
	{"0", "0", "8(x2", 0},	     {"0", "0", "8(2)", 0},
	{"0", "0", "8,", 0},	     {"0", "0", ",8", 0},
	{"0", "0", "8 ", 0},	     {"0", "0", "-8", 0},
	{"0", "0", "", 0},	     {"one", "0", "8", 0},
	{"0x", "0", "8", 0},
};

START_TEST(the_tasks_of_this_node_are_counted)
{
	uint32_t rank = 9, ranks = 9;

	setenv("SLURM_LOCALID", steps[_i].local_rank, 1);
	setenv("SLURM_STEP_TASKS_PER_NODE", steps[_i].tasks, 1);
	if (steps[_i].node != NULL)
		setenv("SLURM_NODEID", steps[_i].node, 1);
	launch_find_local(&rank, &ranks);
	ck_assert_uint_eq(ranks, steps[_i].ranks);
	ck_assert_uint_eq(rank, ranks == 0 ? 0 : (uint32_t)atoi(steps[_i].local_rank));
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("launch");
	TCase *tests = tcase_create("launch");

	unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
	unsetenv("LOCAL_RANK");
	unsetenv("SLURM_NODEID");
	tcase_add_loop_test(tests, the_tasks_of_this_node_are_counted, 0, (int)ARRAY_SIZE(steps));
	suite_add_tcase(all, tests);
	return all;
}
