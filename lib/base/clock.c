/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time: CLOCK_MONOTONIC only, so that a step of the wall clock moves no deadline.  A test may
 * put a clock of its own in its place; sleep_ns always sleeps for real.
 */
#include "lib/base/base.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#define NS_PER_S 1000000000u

static uint64_t (*_Atomic fake_now)(void *arg);
static void *_Atomic fake_arg;

static uint64_t real_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t clock_ns(void)
{
	uint64_t (*now)(void *arg) = atomic_load_explicit(&fake_now, memory_order_acquire);
	return now == NULL ? real_ns() : now(atomic_load(&fake_arg));
}

void clock_set(uint64_t (*now_ns)(void *arg), void *arg)
{
	atomic_store(&fake_arg, arg);
	atomic_store_explicit(&fake_now, now_ns, memory_order_release);
}

void sleep_ns(uint64_t ns)
{
	/* Until a point in time: a signal must not stretch the sleep. */
	uint64_t until = real_ns() + ns;
	struct timespec at = {.tv_sec = (time_t)(until / NS_PER_S),
			      .tv_nsec = (long)(until % NS_PER_S)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}
