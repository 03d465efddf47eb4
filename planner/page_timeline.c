/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulation's timeline, packed for the page: how busy each member is with each phase, tick
 * by tick, a tick being a fraction of the whole.  Varints in base64:
 *
 *   for each member: count of phases; for each: phase, count of runs; for each:
 *     ticks since the run before, 4 times its own ticks + level
 *
 * A phase that waits most of its time isn't one that works: a level says how much of a tick is
 * filled with work.
 */
#include "planner/page_internal.h"
#include "planner/simulate.h"

#define TICKS_MAX 4096
#define TICKS_MIN 64

enum level { LEVEL_NONE, LEVEL_SOME, LEVEL_MUCH, LEVEL_FULL };

struct lane {
	uint32_t ticks;
	double filled[TICKS_MAX];      /* by intervals that begin or end in the tick */
	double steps[TICKS_MAX + 1];   /* how many more fill it whole than the tick before */
	uint8_t levels[TICKS_MAX + 1]; /* the last one is none */
};

static void lane_add(struct lane *lane, double begin, double end)
{
	uint32_t last = lane->ticks - 1;
	uint32_t first_tick = begin >= lane->ticks ? last : (uint32_t)begin;
	uint32_t end_tick = end >= lane->ticks ? last : (uint32_t)end;

	if (first_tick == end_tick) {
		lane->filled[first_tick] += MAX(end - begin, 1e-9); /* not nothing */
		return;
	}
	lane->filled[first_tick] += first_tick + 1 - begin;
	lane->filled[end_tick] += end - end_tick;
	lane->steps[first_tick + 1] += 1;
	lane->steps[end_tick] -= 1;
}

/* Fills the ticks from the intervals [first, end), which are of one member and phase; how many
 * ticks that is. */
static double lane_fill(struct lane *lane, const struct simulation *simulation, size_t first,
			size_t end)
{
	double ticks_each_s = lane->ticks / simulation->predicted_s, whole = 0, sum = 0;

	memset(lane->filled, 0, sizeof(lane->filled));
	memset(lane->steps, 0, sizeof(lane->steps));
	for (size_t i = first; i < end; i++)
		lane_add(lane, simulation->intervals[i].begin_s * ticks_each_s,
			 simulation->intervals[i].end_s * ticks_each_s);
	for (uint32_t tick = 0; tick < lane->ticks; tick++) {
		whole += lane->steps[tick];
		lane->filled[tick] = MIN(lane->filled[tick] + whole, 1); /* buckets overlap */
		sum += lane->filled[tick];
	}
	return sum;
}

/* Of the time that it is at it, a member works busy_s: the more of a tick, the higher its level. */
static void lane_make(struct lane *lane, const struct simulation *simulation, size_t first,
		      size_t end)
{
	const struct sim_interval *at = &simulation->intervals[first];
	double busy_s = simulation->members[at->member].busy_s[at->phase];
	double share = busy_s * lane->ticks / simulation->predicted_s /
		       lane_fill(lane, simulation, first, end);

	for (uint32_t tick = 0; tick < lane->ticks; tick++) {
		double filled = lane->filled[tick], busy = filled * MIN(share, 1);
		lane->levels[tick] = filled <= 1e-12  ? LEVEL_NONE
				     : busy < 1.0 / 3 ? LEVEL_SOME
				     : busy < 0.9     ? LEVEL_MUCH
						      : LEVEL_FULL;
	}
	lane->levels[lane->ticks] = LEVEL_NONE;
}

static uint64_t lane_runs(const struct lane *lane)
{
	uint64_t runs = 0;
	uint8_t before = LEVEL_NONE;

	for (uint32_t tick = 0; tick < lane->ticks; before = lane->levels[tick++])
		runs += lane->levels[tick] != LEVEL_NONE && lane->levels[tick] != before;
	return runs;
}

static void lane_write(const struct lane *lane, struct writer *out)
{
	uint32_t at = 0; /* end of the run before */

	page_varint(out, lane_runs(lane));
	for (uint32_t tick = 0, end; tick < lane->ticks; tick = end) {
		for (end = tick + 1; lane->levels[end] == lane->levels[tick];)
			if (end++ == lane->ticks)
				break;
		end = MIN(end, lane->ticks);
		if (lane->levels[tick] == LEVEL_NONE)
			continue;
		page_varint(out, tick - at);
		page_varint(out, 4 * (uint64_t)(end - tick) + lane->levels[tick]);
		at = end;
	}
}

static bool same_lane(const struct sim_interval *a, const struct sim_interval *b)
{
	return a->member == b->member && a->phase == b->phase;
}

static size_t lane_end(const struct simulation *simulation, size_t first)
{
	size_t end = first + 1;

	while (end < simulation->interval_count &&
	       same_lane(&simulation->intervals[end], &simulation->intervals[first]))
		end++;
	return end;
}

static void write_members(const struct simulation *simulation, struct lane *lane,
			  struct writer *out)
{
	size_t at = 0;

	for (uint32_t member = 0; member < simulation->member_count; member++) {
		uint64_t phases = 0;
		size_t first = at;
		while (at < simulation->interval_count &&
		       simulation->intervals[at].member == member) {
			at = lane_end(simulation, at);
			phases++;
		}
		page_varint(out, phases);
		for (size_t end; first < at; first = end) {
			end = lane_end(simulation, first);
			page_varint(out, (uint64_t)simulation->intervals[first].phase);
			lane_make(lane, simulation, first, end);
			lane_write(lane, out);
		}
	}
}

static void put_numbers(const struct simulation *simulation, uint32_t ticks,
			struct json_writer *json)
{
	json_put_number(json, "predicted_s", simulation->predicted_s, -1);
	json_put_number(json, "receive_floor_s", simulation->receive_floor_s, -1);
	json_put_number(json, "send_floor_s", simulation->send_floor_s, -1);
	json_put_number(json, "ratio", simulation->ratio, -1);
	json_put_u64(json, "ticks", ticks);
	json_begin_array(json, "phases");
	for (int phase = 0; phase < SIM_PHASES; phase++)
		json_put_text(json, NULL, sim_phase_name((enum sim_phase)phase));
	json_end_array(json);
	json_begin_array(json, "end_s");
	for (uint32_t i = 0; i < simulation->member_count; i++)
		json_put_number(json, NULL, simulation->members[i].end_s, 6);
	json_end_array(json);
	json_begin_array(json, "floor_s");
	for (uint32_t i = 0; i < simulation->member_count; i++)
		json_put_number(json, NULL, simulation->members[i].floor_s, 6);
	json_end_array(json);
}

int page_timeline(const struct simulation *simulation, struct json_writer *json)
{
	struct writer packed = WRITER_INIT(256u << 20);
	struct lane *lane = mem_alloc(sizeof(*lane));

	if (lane == NULL)
		return -ENOMEM;
	assert(simulation->predicted_s > 0);
	for (lane->ticks = TICKS_MAX;; lane->ticks /= 2) {
		writer_reset(&packed);
		write_members(simulation, lane, &packed);
		if (packed.count <= TIMELINE_BYTES_MAX / 4 * 3 || lane->ticks == TICKS_MIN)
			break;
	}
	json_begin_object(json, "simulation");
	put_numbers(simulation, lane->ticks, json);
	int rc = page_base64(&packed, "lanes", json);
	json_end_object(json);
	writer_release(&packed);
	mem_free(lane);
	return rc;
}
