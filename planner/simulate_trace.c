/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulation in Chrome's trace format, which ui.perfetto.dev and chrome://tracing open: a
 * process per member, a thread per phase, microseconds.  Bars of one thread may not overlap in
 * this format, so those that would are put on further threads of their phase.
 */
#include <stdio.h>

#include "planner/simulate_internal.h"

#define EVENTS_MAX 200000 /* about 25 MB of text; beyond it neighbouring buckets become one bar */
#define ROWS_MAX   64	  /* threads of one phase; a bar that finds none free begins later */

struct tracer {
	const struct simulation *simulation;
	const struct plan *all;
	struct json_writer json;
	size_t merge; /* intervals of one member and phase that become one bar */
};

static void put_name(struct tracer *tracer, const char *what, uint32_t process, uint32_t thread,
		     const char *name)
{
	struct json_writer *json = &tracer->json;

	json_begin_object(json, NULL);
	json_put_text(json, "ph", "M");
	json_put_text(json, "name", what);
	json_put_u64(json, "pid", process);
	json_put_u64(json, "tid", thread);
	json_begin_object(json, "args");
	json_put_text(json, "name", name);
	json_end_object(json);
	json_end_object(json);
}

static void put_bar(struct tracer *tracer, const struct sim_interval *bar, uint32_t last_bucket,
		    uint32_t thread)
{
	struct json_writer *json = &tracer->json;
	const char *name = sim_phase_name(bar->phase);

	if (bar->bucket != SIM_NO_BUCKET && tracer->all != NULL)
		name = plan_bucket_name(tracer->all, bar->bucket);
	json_begin_object(json, NULL);
	json_put_text(json, "ph", "X");
	json_put_text(json, "name", name);
	json_put_text(json, "cat", sim_phase_name(bar->phase));
	json_put_u64(json, "pid", bar->member + 1);
	json_put_u64(json, "tid", thread);
	json_put_number(json, "ts", bar->begin_s * 1e6, 3);
	json_put_number(json, "dur", (bar->end_s - bar->begin_s) * 1e6, 3);
	json_begin_object(json, "args");
	json_put_u64(json, "bytes", bar->bytes);
	if (last_bucket != bar->bucket && tracer->all != NULL)
		json_put_text(json, "to", plan_bucket_name(tracer->all, last_bucket));
	json_end_object(json);
	json_end_object(json);
}

/* The first row that is free at the bar's begin, or else the first to become free. */
static uint32_t row_find(const double *free_s, uint32_t count, double begin_s)
{
	uint32_t best = 0;

	for (uint32_t row = 0; row < count; row++) {
		if (free_s[row] <= begin_s)
			return row;
		if (free_s[row] < free_s[best])
			best = row;
	}
	return count < ROWS_MAX ? count : best;
}

static uint32_t thread_of(enum sim_phase phase, uint32_t row)
{
	return (uint32_t)phase * ROWS_MAX + row + 1;
}

static void put_thread_name(struct tracer *tracer, uint32_t member, enum sim_phase phase,
			    uint32_t row)
{
	char name[32];

	snprintf(name, sizeof(name), row == 0 ? "%s" : "%s %" PRIu32, sim_phase_name(phase),
		 row + 1);
	put_name(tracer, "thread_name", member + 1, thread_of(phase, row), name);
}

/* The bars of one member in one phase: intervals[first, end). */
static void put_phase(struct tracer *tracer, size_t first, size_t end)
{
	const struct sim_interval *intervals = tracer->simulation->intervals;
	double free_s[ROWS_MAX];
	uint32_t rows = 0;

	for (size_t i = first; i < end; i += tracer->merge) {
		size_t last = MIN(i + tracer->merge, end) - 1;
		struct sim_interval bar = intervals[i];
		for (size_t j = i + 1; j <= last; j++) {
			bar.end_s = MAX(bar.end_s, intervals[j].end_s);
			bar.bytes += intervals[j].bytes;
		}
		uint32_t row = row_find(free_s, rows, bar.begin_s);
		if (row == rows) {
			put_thread_name(tracer, bar.member, bar.phase, row);
			free_s[rows++] = 0;
		}
		bar.begin_s = MAX(bar.begin_s, free_s[row]);
		bar.end_s = MAX(bar.end_s, bar.begin_s);
		free_s[row] = bar.end_s;
		put_bar(tracer, &bar, intervals[last].bucket, thread_of(bar.phase, row));
	}
}

int simulation_trace(const struct simulation *simulation, const struct plan *all,
		     struct writer *out)
{
	const struct sim_interval *intervals = simulation->intervals;
	struct tracer tracer = {.simulation = simulation,
				.all = all,
				.json = {.out = out},
				.merge = simulation->interval_count / EVENTS_MAX + 1};
	char name[96];

	json_begin_object(&tracer.json, NULL);
	json_put_text(&tracer.json, "displayTimeUnit", "ms");
	json_begin_array(&tracer.json, "traceEvents");
	for (uint32_t m = 0; m < simulation->member_count; m++)
		put_name(&tracer, "process_name", m + 1, 0,
			 simulation_member_name(simulation, all, m, name, sizeof(name)));
	for (size_t i = 0, end; i < simulation->interval_count; i = end) {
		for (end = i + 1; end < simulation->interval_count; end++)
			if (intervals[end].member != intervals[i].member ||
			    intervals[end].phase != intervals[i].phase)
				break;
		put_phase(&tracer, i, end);
	}
	json_end_array(&tracer.json);
	json_end_object(&tracer.json);
	write_format(out, "\n");
	return out->failed ? -ENOMEM : 0;
}
