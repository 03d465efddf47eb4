/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Immediates: which ones of an attempt have come, and how many of each counter.  The bitmap makes
 * a second arrival an error at once, so that a duplicate can't stand in for a missing op.
 */
#include <errno.h>
#include <string.h>

#include "lib/engine/engine_internal.h"

static bool bit_get(const uint64_t *words, uint32_t bit)
{
	return (words[bit / 64] >> (bit % 64) & 1) != 0;
}

static void bit_set(uint64_t *words, uint32_t bit)
{
	words[bit / 64] |= (uint64_t)1 << (bit % 64);
}

void imm_release(struct imm *imm)
{
	mem_free(imm->seen);
	mem_free(imm->counters);
	*imm = (struct imm){0};
}

/* Every range ascends, lies below op_id_count, names a receive, and thresholds are their sums. */
static int ranges_check(const struct engine_program *program, struct imm_counter *counters,
			struct ws_error *err)
{
	uint64_t end = 0;
	for (uint32_t i = 0; i < program->range_count; i++) {
		const struct op_range *range = &program->ranges[i];
		if (range->first_op_id < end || range->count == 0)
			return ws_fail(
				err, -EINVAL,
				"op range %u begins at %u, below the end %llu of the one before it, "
				"or is empty",
				i, range->first_op_id, (unsigned long long)end);
		end = (uint64_t)range->first_op_id + range->count;
		if (end > program->op_id_count)
			return ws_fail(err, -EINVAL,
				       "op range %u ends at %llu, beyond the %u op ids", i,
				       (unsigned long long)end, program->op_id_count);
		if (range->receive == OP_IS_CREDIT)
			continue;
		if (range->receive >= program->receive_count)
			return ws_fail(err, -EINVAL,
				       "op range %u feeds receive %u, but there are %u", i,
				       range->receive, program->receive_count);
		counters[range->receive].threshold += range->count;
	}
	for (uint32_t i = 0; i < program->receive_count; i++) {
		uint32_t count = program->receives[i].op_count;
		if (count == 0 || counters[i].threshold != count)
			return ws_fail(
				err, -EINVAL,
				"receive %u expects %u ops, but its op ranges hold %u; both must "
				"agree and not be 0",
				i, count, counters[i].threshold);
	}
	return 0;
}

int imm_set(struct imm *imm, const struct engine_program *program, struct ws_error *err)
{
	imm_release(imm);
	if (program->op_id_count > OP_ID_MAX + 1)
		return ws_fail(
			err, -ENOSPC,
			"%u op ids at one receiver are above the limit %u; choose larger ops",
			program->op_id_count, OP_ID_MAX + 1);
	imm->seen = mem_alloc(((size_t)program->op_id_count + 63) / 64 * sizeof(*imm->seen));
	imm->counters = mem_alloc(program->receive_count * sizeof(*imm->counters));
	if (imm->seen == NULL || imm->counters == NULL) {
		imm_release(imm);
		return ws_fail(err, -ENOMEM,
			       "no memory for the counters of %u receives and %u op ids",
			       program->receive_count, program->op_id_count);
	}
	int rc = ranges_check(program, imm->counters, err);
	if (rc != 0) {
		imm_release(imm);
		return rc;
	}
	imm->op_id_count = program->op_id_count;
	imm->ranges = program->ranges;
	imm->range_count = program->range_count;
	imm->counter_count = program->receive_count;
	return 0;
}

void imm_arm(struct imm *imm, uint64_t attempt)
{
	if (imm->seen != NULL)
		memset(imm->seen, 0, ((size_t)imm->op_id_count + 63) / 64 * sizeof(*imm->seen));
	for (uint32_t i = 0; i < imm->counter_count; i++)
		atomic_store_explicit(&imm->counters[i].arrived, 0, memory_order_relaxed);
	imm->attempt = attempt;
	imm->armed = true;
}

void imm_end(struct imm *imm)
{
	imm->armed = false;
}

/* The range that holds op_id, or NULL. */
static const struct op_range *range_find(const struct imm *imm, uint32_t op_id)
{
	uint32_t low = 0, high = imm->range_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct op_range *range = &imm->ranges[middle];
		if (op_id < range->first_op_id)
			high = middle;
		else if (op_id - range->first_op_id >= range->count)
			low = middle + 1;
		else
			return range;
	}
	return NULL;
}

enum imm_verdict imm_take(struct imm *imm, uint32_t value, uint32_t *receive_out)
{
	uint32_t op_id = value & OP_ID_MAX;
	*receive_out = NONE;
	if (!imm->armed)
		return IMM_NO_ATTEMPT;
	if (imm_make(imm->attempt, op_id) != value)
		return IMM_STALE;
	const struct op_range *range = range_find(imm, op_id);
	if (range == NULL)
		return IMM_UNKNOWN;
	if (range->receive != OP_IS_CREDIT)
		*receive_out = range->receive;
	if (bit_get(imm->seen, op_id))
		return IMM_DUPLICATE;
	bit_set(imm->seen, op_id);
	if (range->receive == OP_IS_CREDIT)
		return IMM_CREDIT;
	struct imm_counter *counter = &imm->counters[range->receive];
	/* Release: the stage thread acquires it and goes on to read the bytes. */
	uint32_t before = atomic_fetch_add_explicit(&counter->arrived, 1, memory_order_release);
	return before + 1 == counter->threshold ? IMM_REACHED : IMM_COUNTED;
}

bool imm_has(const struct imm *imm, uint32_t op_id)
{
	return op_id < imm->op_id_count && bit_get(imm->seen, op_id);
}

bool imm_is_whole(const struct imm *imm, uint32_t receive)
{
	const struct imm_counter *counter = &imm->counters[receive];
	/* Acquire: pairs with the poller's release of the last arrival. */
	return atomic_load_explicit(&counter->arrived, memory_order_acquire) == counter->threshold;
}

uint32_t imm_missing(const struct imm *imm, uint32_t receive, uint32_t *first_op_id_out)
{
	uint32_t missing = 0;
	*first_op_id_out = NONE;
	for (uint32_t i = 0; i < imm->range_count; i++) {
		const struct op_range *range = &imm->ranges[i];
		if (range->receive != receive)
			continue;
		for (uint32_t k = 0; k < range->count; k++) {
			if (bit_get(imm->seen, range->first_op_id + k))
				continue;
			if (missing++ == 0)
				*first_op_id_out = range->first_op_id + k;
		}
	}
	return missing;
}
