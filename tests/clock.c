/* SPDX-License-Identifier: Apache-2.0 */
/* The clock never goes back, sleeps are never short, and a test's clock takes its place. */
#include "lib/base/base.h"

#include <signal.h>
#include <sys/time.h>

#include "tests/test.h"

START_TEST(the_clock_never_goes_back)
{
	uint64_t last = clock_ns();
	for (int i = 0; i < 100000; i++) {
		uint64_t now = clock_ns();
		if (now < last)
			ck_abort_msg("%llu follows %llu", (unsigned long long)now,
				     (unsigned long long)last);
		last = now;
	}
}
END_TEST

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
	(void)number;
	signals++;
}

START_TEST(a_sleep_outlives_signals)
{
	struct sigaction action = {.sa_handler = count_signal};
	struct itimerval every_ms = {.it_interval = {.tv_usec = 1000},
				     .it_value = {.tv_usec = 1000}};
	struct itimerval never = {0};
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every_ms, NULL);
	uint64_t start = clock_ns();
	sleep_ns(50000000);
	uint64_t slept = clock_ns() - start;
	setitimer(ITIMER_REAL, &never, NULL);
	ck_assert_uint_ge(slept, 50000000);
	ck_assert_int_gt(signals, 0);
	sleep_ns(0);
}
END_TEST

static uint64_t count_calls(void *arg)
{
	return ++*(uint64_t *)arg * 1000;
}

START_TEST(a_clock_of_the_tests_own_takes_its_place)
{
	uint64_t calls = 41;
	clock_set(count_calls, &calls);
	ck_assert_uint_eq(clock_ns(), 42000);
	ck_assert_uint_eq(deadline_in_ms(3), 43000 + 3000000);
	clock_set(NULL, NULL);
	ck_assert_uint_gt(clock_ns(), 1000000);
	ck_assert_uint_eq(calls, 43);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("clock");
	TCase *tcase = tcase_create("clock");
	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, the_clock_never_goes_back);
	tcase_add_test(tcase, a_sleep_outlives_signals);
	tcase_add_test(tcase, a_clock_of_the_tests_own_takes_its_place);
	suite_add_tcase(all, tcase);
	return all;
}
