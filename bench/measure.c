/* SPDX-License-Identifier: Apache-2.0 */
/* Median, least and most of a benchmark's rounds; quantiles of its samples; its children's end. */
#include "bench/measure.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#define REAP_NS_MAX UINT64_C(5000000000) /* how long the killed may take to end */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

struct spread spread_of(double *values, uint32_t count)
{
	qsort(values, count, sizeof(*values), compare);
	double middle = count % 2 == 1 ? values[count / 2]
				       : (values[count / 2 - 1] + values[count / 2]) / 2;
	return (struct spread){.median = middle, .min = values[0], .max = values[count - 1]};
}

double spread_quantile(const double *sorted, uint32_t count, double share)
{
	return sorted[MIN((uint32_t)(share * count), count - 1)];
}

int child_reap(pid_t child, uint64_t until_ns)
{
	int status = -1;
	uint64_t last = MAX(clock_ns(), until_ns) + REAP_NS_MAX;
	while (waitpid(child, &status, WNOHANG) == 0 && clock_ns() < last) {
		if (clock_ns() > until_ns)
			kill(child, SIGKILL);
		sleep_ns(1000000);
	}
	return status;
}
