/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline that nothing beats on one host: each sender copies its ops inside its own memory. */
#include <errno.h>
#include <string.h>

#include "bench/contest.h"

struct copier {
	const struct end *end;
	struct ws_memory to; /* of the same kind as the end's */
	double *samples;
};

static void copier_close(void *state)
{
	struct copier *copier = state;
	if (copier == NULL)
		return;
	bench_memory_free(&copier->to, copier->end->contest->memory);
	mem_free(copier->samples);
	mem_free(copier);
}

static int copier_open(void **state_out, const struct end *end, struct ws_error *err)
{
	struct copier *copier = mem_alloc(sizeof(*copier));
	*state_out = copier;
	if (copier == NULL)
		return ws_fail(err, -ENOMEM, "no memory for memcpy");
	copier->end = end;
	if (end->receives)
		return 0;
	if (end->contest->latency)
		copier->samples = mem_alloc(end->contest->op_count * sizeof(*copier->samples));
	if (end->contest->latency && copier->samples == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the samples of memcpy");
	return bench_memory_alloc(&copier->to, end->memory.bytes, end->contest->memory, err);
}

/* A latency is of the same bytes again and again, as there and back are. */
static void op_copy(const struct copier *copier, uint32_t i)
{
	const struct contest *contest = copier->end->contest;
	uint64_t from = contest->latency ? 0 : contest_local(contest, i);
	uint64_t to = contest->latency ? contest->op_bytes : contest_remote(contest, 0, i);
	memcpy((uint8_t *)copier->to.base + to, (uint8_t *)copier->end->memory.base + from,
	       contest->op_bytes);
}

static int copier_run(void *state, struct outcome *outcome, struct ws_error *err)
{
	struct copier *copier = state;
	const struct end *end = copier->end;
	const struct contest *contest = end->contest;
	(void)err;
	for (uint32_t i = 0; !end->receives && i < contest->op_count; i++) {
		uint64_t begin = contest->latency ? clock_ns() : 0;
		for (uint32_t k = 0; k < contest->receivers; k++)
			op_copy(copier, i);
		if (contest->latency)
			copier->samples[i] = (double)(clock_ns() - begin) / 1e3;
	}
	if (copier->samples != NULL)
		outcome_latency(outcome, copier->samples, contest->op_count);
	return 0;
}

const struct contender contender_memcpy = {
	.open = copier_open,
	.close = copier_close,
	.run = copier_run,
};
