/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of weightsync's own, on one core or on all that their process had.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

#include "lib/base/base.h"

/*
 * A thread inherits the cores of the one that starts it, and an I/O thread on its one core starts
 * others.  So what the first starter of a bound thread had is kept, for all that aren't bound.
 */
static cpu_set_t everywhere;
static atomic_int kept; /* 0: nothing yet, 1: being written, 2: there */

static void keep_cores(void)
{
	int nothing = 0;

	if (atomic_compare_exchange_strong(&kept, &nothing, 1))
		atomic_store(&kept, pthread_getaffinity_np(pthread_self(), sizeof(everywhere),
							   &everywhere) == 0
					    ? 2
					    : 0);
}

int thread_start(pthread_t *thread_out, int cpu, void *(*run)(void *arg), void *arg)
{
	pthread_attr_t attr;
	cpu_set_t one;

	if (cpu >= CPU_SETSIZE)
		return EINVAL;
	int rc = pthread_attr_init(&attr);
	if (rc != 0)
		return rc;
	if (cpu >= 0) {
		keep_cores();
		CPU_ZERO(&one);
		CPU_SET((size_t)cpu, &one);
		rc = pthread_attr_setaffinity_np(&attr, sizeof(one), &one);
	} else if (atomic_load(&kept) == 2) {
		rc = pthread_attr_setaffinity_np(&attr, sizeof(everywhere), &everywhere);
	}
	if (rc == 0)
		rc = pthread_create(thread_out, &attr, run, arg);
	pthread_attr_destroy(&attr);
	return rc;
}
