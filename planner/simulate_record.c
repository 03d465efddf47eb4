/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulation in the making: intervals as they become known, then sorted and summed up.
 */
#include "planner/simulate_internal.h"

const char *sim_phase_name(enum sim_phase phase)
{
	static const char *const names[] = {
		[SIM_BEGIN] = "begin",	   [SIM_LOAD] = "load",	    [SIM_GATHER] = "gather",
		[SIM_FUSE] = "fuse",	   [SIM_AMAX] = "amax",	    [SIM_EXCHANGE] = "exchange",
		[SIM_CONVERT] = "convert", [SIM_WRITE] = "write",   [SIM_FORWARD] = "forward",
		[SIM_RECEIVE] = "receive", [SIM_UNPACK] = "unpack", [SIM_WAIT] = "wait",
	};

	return names[phase];
}

int recorder_begin(struct recorder *recorder, uint32_t trainers, uint32_t members, uint32_t buckets)
{
	struct simulation *out = mem_alloc(sizeof(*out));

	if (out == NULL)
		return -ENOMEM;
	recorder->out = out;
	out->trainer_count = trainers;
	out->member_count = members;
	out->bucket_count = buckets;
	out->members = recorder->members =
		arena_array(&out->arena, members, sizeof(*recorder->members));
	return out->members == NULL ? -ENOMEM : 0;
}

void recorder_add(struct recorder *recorder, const struct sim_interval *interval, double busy_s)
{
	struct sim_interval *added = vec_add(&recorder->intervals, sizeof(*added));
	struct sim_member *member = &recorder->members[interval->member];

	if (added == NULL) {
		recorder->failed = true;
		return;
	}
	*added = *interval;
	member->busy_s[interval->phase] += busy_s;
	member->end_s = MAX(member->end_s, interval->end_s);
}

void recorder_floors(struct recorder *recorder, const double *lines)
{
	struct simulation *out = recorder->out;

	for (uint32_t m = 0; m < out->member_count; m++) {
		struct sim_member *member = &recorder->members[m];
		double sends_s = (double)member->sent_bytes / lines[m];
		double receives_s = (double)member->received_bytes / lines[m];
		member->floor_s = MAX(sends_s, receives_s);
		out->send_floor_s = MAX(out->send_floor_s, sends_s);
		out->receive_floor_s = MAX(out->receive_floor_s, receives_s);
	}
}

static int interval_order(const void *a, const void *b)
{
	const struct sim_interval *x = a, *y = b;

	if (x->member != y->member)
		return x->member < y->member ? -1 : 1;
	if (x->phase != y->phase)
		return x->phase < y->phase ? -1 : 1;
	if (x->begin_s != y->begin_s)
		return x->begin_s < y->begin_s ? -1 : 1;
	return x->bucket < y->bucket ? -1 : x->bucket > y->bucket;
}

static void sum_phase(struct simulation *out, enum sim_phase phase)
{
	struct sim_phase_total *total = &out->phases[phase];

	for (size_t i = 0; i < out->interval_count; i++) {
		const struct sim_interval *interval = &out->intervals[i];
		if (interval->phase != phase)
			continue;
		if (total->member_count == 0 || interval->begin_s < total->begin_s)
			total->begin_s = interval->begin_s;
		total->end_s = MAX(total->end_s, interval->end_s);
		total->bytes += interval->bytes;
		if (i == 0 || interval[-1].member != interval->member ||
		    interval[-1].phase != phase) {
			double busy_s = out->members[interval->member].busy_s[phase];
			if (total->member_count == 0 || busy_s > total->busy_max_s) {
				total->busy_max_s = busy_s;
				total->busiest = interval->member;
			}
			total->busy_mean_s += busy_s;
			total->member_count++;
		}
	}
	if (total->member_count > 0)
		total->busy_mean_s /= total->member_count;
}

int recorder_end(struct recorder *recorder, double closing_s, struct simulation **out_out)
{
	struct simulation *out = recorder->out;
	size_t count = recorder->intervals.count;
	struct sim_interval *intervals = arena_array(&out->arena, count, sizeof(*intervals));

	if (recorder->failed || intervals == NULL)
		return -ENOMEM;
	if (count > 0) {
		memcpy(intervals, recorder->intervals.items, count * sizeof(*intervals));
		qsort(intervals, count, sizeof(*intervals), interval_order);
	}
	out->intervals = intervals;
	out->interval_count = count;
	for (uint32_t phase = 0; phase < SIM_PHASES; phase++)
		sum_phase(out, (enum sim_phase)phase);
	for (uint32_t m = out->trainer_count; m < out->member_count; m++)
		out->predicted_s = MAX(out->predicted_s, out->members[m].end_s);
	out->predicted_s += closing_s;
	double floor_s = MAX(out->send_floor_s, out->receive_floor_s);
	out->ratio = floor_s > 0 ? out->predicted_s / floor_s : 0;
	*out_out = out;
	recorder->out = NULL;
	return 0;
}

void recorder_release(struct recorder *recorder)
{
	vec_release(&recorder->intervals);
	simulation_free(recorder->out);
	recorder->out = NULL;
}

void simulation_free(struct simulation *simulation)
{
	if (simulation == NULL)
		return;
	arena_release(&simulation->arena);
	mem_free(simulation);
}
