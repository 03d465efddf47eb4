/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows over links.  Rates are max-min fair by progressive filling: all grow alike until a link
 * is full, its flows are frozen, the others grow on.  Time goes from event to event, but not in
 * smaller steps than step_s, which bounds the work whatever the number of flows.
 *
 * Only + - * / and comparisons of doubles in a fixed order: the same result everywhere.
 */
#include "planner/simulate_internal.h"

#define NEVER	 INFINITY
#define ROUNDING 0.001 /* bytes: what so many seconds at so many bytes/s may miss */

/* One link while rates are found. */
struct filling {
	double left;	/* capacity that frozen flows leave */
	double weight;	/* of its unfrozen flows: what a level of 1 takes */
	uint32_t count; /* of its unfrozen flows */
};

struct heap_entry {
	double level; /* at most the one that fills the link: it only grows while flows freeze */
	uint32_t link;
};

struct solver {
	struct sim_flows *in;
	struct filling *links;
	size_t *by_link_first; /* the flows of link l: by_link[first[l]] .. by_link[first[l + 1]) */
	uint32_t *by_link;
	uint32_t *capped; /* flows with a rate_max, lowest level first */
	uint32_t capped_count;
	bool *growing; /* by flow: active and not frozen */
	struct heap_entry *heap;
	uint32_t heap_count;
	struct arena arena;
};

/* ---- A heap of links, the first to be full on top; ties by number. */
static bool before(const struct heap_entry *a, const struct heap_entry *b)
{
	return a->level != b->level ? a->level < b->level : a->link < b->link;
}

static void heap_sink(struct heap_entry *heap, uint32_t count, uint32_t at)
{
	struct heap_entry moved = heap[at];

	for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
		if (child + 1 < count && before(&heap[child + 1], &heap[child]))
			child++;
		if (!before(&heap[child], &moved))
			break;
		heap[at] = heap[child];
	}
	heap[at] = moved;
}

static void heap_make(struct solver *solver)
{
	solver->heap_count = 0;
	for (uint32_t l = 0; l < solver->in->link_count; l++)
		if (solver->links[l].count > 0)
			solver->heap[solver->heap_count++] = (struct heap_entry){
				solver->links[l].left / solver->links[l].weight, l};
	for (uint32_t i = solver->heap_count / 2; i > 0; i--)
		heap_sink(solver->heap, solver->heap_count, i - 1);
}

static void heap_drop_top(struct solver *solver)
{
	solver->heap[0] = solver->heap[--solver->heap_count];
	if (solver->heap_count > 0)
		heap_sink(solver->heap, solver->heap_count, 0);
}

/* ---- Progressive filling. */
static double level_max(const struct sim_flow *flow)
{
	return flow->rate_max / flow->share;
}

static void freeze(struct solver *solver, uint32_t index, double level)
{
	struct sim_flow *flow = &solver->in->flows[index];
	double rate = level * flow->share;

	/* Rounding may leave a full link's last flow nothing; it must end all the same. */
	rate = MAX(rate, 1);
	solver->growing[index] = false;
	flow->rate = rate;
	for (uint32_t u = 0; u < flow->use_count; u++) {
		struct filling *link = &solver->links[flow->uses[u].link];
		link->left = MAX(0, link->left - rate * flow->uses[u].weight);
		link->weight -= flow->uses[u].weight * flow->share;
		link->count--;
	}
}

static void fill_begin(struct solver *solver)
{
	const struct sim_flows *in = solver->in;

	for (uint32_t l = 0; l < in->link_count; l++)
		solver->links[l] = (struct filling){.left = in->capacities[l]};
	for (uint32_t i = 0; i < in->flow_count; i++) {
		const struct sim_flow *flow = &in->flows[i];
		if (!solver->growing[i])
			continue;
		for (uint32_t u = 0; u < flow->use_count; u++) {
			solver->links[flow->uses[u].link].weight +=
				flow->uses[u].weight * flow->share;
			solver->links[flow->uses[u].link].count++;
		}
	}
	heap_make(solver);
}

/* Gives every growing flow its rate. */
static void fill(struct solver *solver)
{
	uint32_t next_capped = 0;

	fill_begin(solver);
	/* Ends: each turn freezes a capped flow, raises a key to a link's true level, or drops a
	 * link. */
	while (solver->heap_count > 0) {
		struct heap_entry *top = &solver->heap[0];
		struct filling *link = &solver->links[top->link];
		if (next_capped < solver->capped_count) {
			uint32_t index = solver->capped[next_capped];
			double level = level_max(&solver->in->flows[index]);
			if (level <= top->level) {
				if (solver->growing[index])
					freeze(solver, index, level);
				next_capped++;
				continue;
			}
		}
		if (link->count == 0) {
			heap_drop_top(solver);
			continue;
		}
		double level = link->left / link->weight;
		if (level > top->level) {
			top->level = level;
			heap_sink(solver->heap, solver->heap_count, 0);
			continue;
		}
		uint32_t full = top->link;
		heap_drop_top(solver);
		for (size_t i = solver->by_link_first[full]; i < solver->by_link_first[full + 1];
		     i++)
			if (solver->growing[solver->by_link[i]])
				freeze(solver, solver->by_link[i], level);
	}
}

/* ---- Time. */

/* Lets the flow go on through the gates that are open at `now`. */
static void open_gates(const struct sim_flows *in, struct sim_flow *flow, double now)
{
	const struct sim_segment *segments = in->segments + flow->segment_first;

	if (flow->ready_s > now)
		return;
	while (flow->open < flow->segment_count &&
	       in->gates[flow->gate_first + segments[flow->open].item] <= now) {
		flow->open_bytes += (double)segments[flow->open].bytes;
		flow->open++;
	}
}

/* What a look at all flows says of the next step. */
struct outlook {
	bool rates_change; /* a flow has started or stopped */
	uint32_t active, waiting;
	double opens_s; /* the earliest gate that a waiting flow can go through */
};

static struct outlook look(struct solver *solver, double now)
{
	struct sim_flows *in = solver->in;
	struct outlook seen = {.opens_s = NEVER};

	for (uint32_t i = 0; i < in->flow_count; i++) {
		struct sim_flow *flow = &in->flows[i];
		bool was = flow->rate > 0;
		if (flow->at == flow->segment_count && !was)
			continue;
		open_gates(in, flow, now);
		bool active = flow->at < flow->open;
		solver->growing[i] = active;
		seen.rates_change |= active != was;
		seen.active += active;
		if (active || flow->at == flow->segment_count) {
			flow->rate = active ? flow->rate : 0;
			continue;
		}
		const struct sim_segment *next = &in->segments[flow->segment_first + flow->at];
		flow->rate = 0;
		seen.waiting++;
		seen.opens_s = MIN(seen.opens_s,
				   MAX(flow->ready_s, in->gates[flow->gate_first + next->item]));
	}
	return seen;
}

/* Moves a flow on for `seconds`, or to where it must stop, and tells of each segment it ends. */
static void advance(const struct sim_flows *in, struct sim_flow *flow, double now, double seconds)
{
	double spent = 0;

	if (flow->began_s < 0)
		flow->began_s = now;
	/* Bounded by the flow's segments. */
	while (flow->at < flow->open) {
		const struct sim_segment *segment = &in->segments[flow->segment_first + flow->at];
		double moved = flow->rate * (seconds - spent);
		if (moved + ROUNDING < flow->left) {
			flow->left -= moved;
			flow->open_bytes -= moved;
			return;
		}
		spent += flow->left / flow->rate;
		flow->open_bytes = MAX(0, flow->open_bytes - flow->left);
		flow->at++;
		if (flow->at < flow->segment_count)
			flow->left = (double)segment[1].bytes;
		double began = flow->began_s, end = now + spent;
		flow->began_s = flow->at < flow->open ? end : -1;
		in->done(in->arg, flow, segment, began, end);
	}
}

/* Seconds until something may change: a flow stops, or, while others wait for gates, ends a
 * segment, for that may open one. */
static double first_event(const struct sim_flows *in, bool others_wait)
{
	double seconds = NEVER;

	for (uint32_t i = 0; i < in->flow_count; i++) {
		const struct sim_flow *flow = &in->flows[i];
		if (flow->rate > 0)
			seconds = MIN(seconds,
				      (others_wait ? flow->left : flow->open_bytes) / flow->rate);
	}
	return seconds;
}

static int run(struct solver *solver, struct ws_error *err)
{
	struct sim_flows *in = solver->in;
	double now = 0;

	/* Ends: each step moves the flows by step_s at least, or to the next gate. */
	for (;;) {
		struct outlook seen = look(solver, now);
		if (seen.active == 0 && seen.waiting == 0)
			return 0;
		if (seen.active == 0) {
			if (!(seen.opens_s < NEVER))
				return ws_fail(err, -EDEADLK,
					       "%" PRIu32 " flows wait for what never comes",
					       seen.waiting);
			now = seen.opens_s;
			continue;
		}
		if (seen.rates_change)
			fill(solver);
		double until = MIN(now + first_event(in, seen.waiting > 0), seen.opens_s);
		until = MAX(until, now + in->step_s);
		for (uint32_t i = 0; i < in->flow_count; i++)
			if (in->flows[i].rate > 0)
				advance(in, &in->flows[i], now, until - now);
		now = until;
		in->step_count++;
	}
}

/* ---- Set up. */
static int capped_order(const void *a, const void *b, void *arg)
{
	const struct sim_flow *flows = arg;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	if (level_max(&flows[i]) != level_max(&flows[j]))
		return level_max(&flows[i]) < level_max(&flows[j]) ? -1 : 1;
	return i < j ? -1 : i > j;
}

static int set_up(struct solver *solver)
{
	const struct sim_flows *in = solver->in;
	size_t uses = 0;

	for (uint32_t i = 0; i < in->flow_count; i++)
		uses += in->flows[i].use_count;
	solver->links = arena_array(&solver->arena, in->link_count, sizeof(*solver->links));
	solver->heap = arena_array(&solver->arena, in->link_count, sizeof(*solver->heap));
	solver->by_link_first = arena_array(&solver->arena, (size_t)in->link_count + 2,
					    sizeof(*solver->by_link_first));
	solver->by_link = arena_array(&solver->arena, uses, sizeof(*solver->by_link));
	solver->capped = arena_array(&solver->arena, in->flow_count, sizeof(*solver->capped));
	solver->growing = arena_array(&solver->arena, in->flow_count, sizeof(*solver->growing));
	if (solver->links == NULL || solver->heap == NULL || solver->by_link_first == NULL ||
	    solver->by_link == NULL || solver->capped == NULL || solver->growing == NULL)
		return -ENOMEM;
	/* Counted two places further on, so that filling leaves first[l] where link l begins. */
	size_t *first = solver->by_link_first;
	for (uint32_t i = 0; i < in->flow_count; i++)
		for (uint32_t u = 0; u < in->flows[i].use_count; u++)
			first[in->flows[i].uses[u].link + 2]++;
	for (uint32_t l = 2; l < in->link_count + 2; l++)
		first[l] += first[l - 1];
	for (uint32_t i = 0; i < in->flow_count; i++) {
		struct sim_flow *flow = &in->flows[i];
		for (uint32_t u = 0; u < flow->use_count; u++)
			solver->by_link[first[flow->uses[u].link + 1]++] = i;
		flow->at = flow->open = 0;
		flow->left = (double)in->segments[flow->segment_first].bytes;
		flow->open_bytes = flow->rate = 0;
		flow->began_s = -1;
		if (flow->rate_max < NEVER)
			solver->capped[solver->capped_count++] = i;
	}
	if (solver->capped_count > 0)
		qsort_r(solver->capped, solver->capped_count, sizeof(uint32_t), capped_order,
			in->flows);
	return 0;
}

int sim_flows_run(struct sim_flows *flows, struct ws_error *err)
{
	struct solver solver = {.in = flows};

	flows->step_count = 0;
	int rc = set_up(&solver);
	rc = rc != 0 ? ws_fail(err, rc, "out of memory while simulating") : run(&solver, err);
	arena_release(&solver.arena);
	return rc;
}
