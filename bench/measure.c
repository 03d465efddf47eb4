/* SPDX-License-Identifier: Apache-2.0 */
/* Median, least and most of a benchmark's rounds; quantiles of its samples; product and baseline in
 * turns; memory of a GPU; its children's end. */
#include "bench/measure.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "lib/cuda/cuda.h"

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

int turns_play(uint32_t rounds,
	       int (*play)(void *arg, bool product, double *ns_out, struct ws_error *err),
	       void *arg, struct turns *turns_out, struct ws_error *err)
{
	double ns[2][BENCH_ROUNDS_MAX], ratios[BENCH_ROUNDS_MAX];
	int rc = 0;

	for (uint32_t i = 0; i < rounds; i++) {
		for (uint32_t k = 0; rc == 0 && k < 2; k++) {
			bool product = (i + k) % 2 == 0;
			rc = play(arg, product, &ns[product][i], err);
		}
		if (rc != 0)
			return rc;
		ratios[i] = ns[false][i] / ns[true][i];
	}
	*turns_out = (struct turns){.product_ns = spread_of(ns[true], rounds).median,
				    .baseline_ns = spread_of(ns[false], rounds).median,
				    .ratio = spread_of(ratios, rounds)};
	return 0;
}

int gpu_room(int device, uint64_t bytes, void *base_out, struct ws_error *err)
{
	void *base = NULL;
	int rc = cuda_alloc(device, bytes, &base, err);

	memcpy(base_out, &base, sizeof(base));
	return rc;
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
