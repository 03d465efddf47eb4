/* SPDX-License-Identifier: Apache-2.0 */
/* Median, least and most of a benchmark's rounds; quantiles of its samples. */
#include "bench/measure.h"

#include <stdlib.h>

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
