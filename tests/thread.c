/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads on one core, and those that such a thread starts.
 */
#include <errno.h>
#include <sched.h>

#include "lib/base/base.h"
#include "tests/test.h"

struct seen {
	cpu_set_t bound, started;
};

static cpu_set_t cores_now(void)
{
	cpu_set_t cores;

	ck_assert_int_eq(pthread_getaffinity_np(pthread_self(), sizeof(cores), &cores), 0);
	return cores;
}

static void *look(void *arg)
{
	*(cpu_set_t *)arg = cores_now();
	return NULL;
}

static void *start_another(void *arg)
{
	struct seen *seen = arg;
	pthread_t thread;

	seen->bound = cores_now();
	ck_assert_int_eq(thread_start(&thread, -1, look, &seen->started), 0);
	pthread_join(thread, NULL);
	return NULL;
}

static int core_last(const cpu_set_t *cores)
{
	int last = -1;

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET((size_t)cpu, cores))
			last = cpu;
	return last;
}

START_TEST(a_bound_thread_has_one_core_and_starts_threads_that_have_all)
{
	cpu_set_t mine = cores_now(), after;
	struct seen seen;
	pthread_t thread;
	int cpu = core_last(&mine);

	ck_assert_int_eq(thread_start(&thread, cpu, start_another, &seen), 0);
	pthread_join(thread, NULL);
	ck_assert_int_eq(CPU_COUNT(&seen.bound), 1);
	ck_assert(CPU_ISSET((size_t)cpu, &seen.bound));
	ck_assert(CPU_EQUAL(&seen.started, &mine));
	after = cores_now();
	ck_assert(CPU_EQUAL(&after, &mine));
}
END_TEST

START_TEST(without_a_core_a_thread_has_its_starters)
{
	cpu_set_t mine = cores_now(), seen;
	pthread_t thread;

	ck_assert_int_eq(thread_start(&thread, -1, look, &seen), 0);
	pthread_join(thread, NULL);
	ck_assert(CPU_EQUAL(&seen, &mine));
}
END_TEST

START_TEST(a_core_that_is_not_there_is_an_error)
{
	cpu_set_t seen;
	pthread_t thread;

	ck_assert_int_eq(thread_start(&thread, CPU_SETSIZE - 1, look, &seen), EINVAL);
	ck_assert_int_eq(thread_start(&thread, CPU_SETSIZE, look, &seen), EINVAL);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("thread");
	TCase *all = tcase_create("all");

	tcase_add_test(all, a_bound_thread_has_one_core_and_starts_threads_that_have_all);
	tcase_add_test(all, without_a_core_a_thread_has_its_starters);
	tcase_add_test(all, a_core_that_is_not_there_is_an_error);
	suite_add_tcase(s, all);
	return s;
}
