/* SPDX-License-Identifier: Apache-2.0 */
/* See even_clock.h. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "lib/base/base.h"
#include "tests/even_clock.h"
#include "tests/test.h"

#define LOOKERS_MAX 32
#define GAP_NS	    (EVEN_GAP_MS * UINT64_C(1000000))

struct looker {
	bool here;
	uint64_t looked_ns; /* what it saw */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t key; /* a thread's looker; given back when it ends */
static struct looker lookers[LOOKERS_MAX];
static uint64_t now_ns, real_ns;
static bool each_counts;

static void looker_leave(void *arg)
{
	struct looker *looker = arg;

	pthread_mutex_lock(&mutex);
	looker->here = false;
	pthread_mutex_unlock(&mutex);
}

static struct looker *looker_of_thread(void)
{
	struct looker *looker = pthread_getspecific(key);

	for (size_t i = 0; looker == NULL && i < LOOKERS_MAX; i++)
		if (!lookers[i].here)
			looker = &lookers[i];
	ck_assert_ptr_nonnull(looker);
	pthread_setspecific(key, looker);
	looker->here = true;
	return looker;
}

static uint64_t even_ns(void *arg)
{
	struct timespec real;

	(void)arg;
	pthread_mutex_lock(&mutex);
	struct looker *mine = each_counts ? looker_of_thread() : NULL;
	clock_gettime(CLOCK_MONOTONIC, &real);
	uint64_t before_ns = real_ns, next_ns;
	real_ns = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
	next_ns = now_ns + MIN(real_ns - before_ns, GAP_NS);
	for (size_t i = 0; i < LOOKERS_MAX && each_counts; i++)
		if (lookers[i].here && &lookers[i] != mine)
			next_ns = MIN(next_ns, lookers[i].looked_ns + GAP_NS);
	now_ns = MAX(now_ns, next_ns);
	if (mine != NULL)
		mine->looked_ns = now_ns;
	next_ns = now_ns;
	pthread_mutex_unlock(&mutex);
	return next_ns;
}

void even_clock_start(bool each)
{
	each_counts = each;
	now_ns = real_ns = clock_ns();
	ck_assert_int_eq(pthread_key_create(&key, looker_leave), 0);
	clock_set(even_ns, NULL);
}

void even_clock_leave(void)
{
	struct looker *looker = pthread_getspecific(key);

	if (looker != NULL)
		looker_leave(looker);
	pthread_setspecific(key, NULL);
}
