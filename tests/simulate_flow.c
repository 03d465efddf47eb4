/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's core: flows that share links, and gates. */
#include <errno.h>

#include "planner/simulate_internal.h"
#include "tests/test.h"

#define FLOWS_MAX 64
#define LINKS_MAX 24

static uint32_t below(uint64_t *seed, uint32_t limit)
{
	return (uint32_t)(mix64(++*seed) % limit);
}

struct world {
	struct sim_flows flows;
	double capacities[LINKS_MAX], gates[FLOWS_MAX * 2];
	struct sim_flow list[FLOWS_MAX];
	struct sim_segment segments[FLOWS_MAX * 2];
	double ends[FLOWS_MAX]; /* of each flow's last segment */
	bool looked;		/* at the rates of the first moment */
	struct ws_error err;
};

/* No flow's rate could grow without taking from one that has no more for its share. */
static void rates_are_fair(const struct world *world)
{
	double used[LINKS_MAX] = {0}, highest[LINKS_MAX] = {0};

	for (uint32_t i = 0; i < world->flows.flow_count; i++) {
		const struct sim_flow *flow = &world->list[i];
		for (uint32_t u = 0; u < flow->use_count; u++) {
			used[flow->uses[u].link] += flow->rate * flow->uses[u].weight;
			highest[flow->uses[u].link] =
				MAX(highest[flow->uses[u].link], flow->rate / flow->share);
		}
	}
	for (uint32_t l = 0; l < world->flows.link_count; l++)
		ck_assert_double_le(used[l], world->capacities[l] * (1 + 1e-9));
	for (uint32_t i = 0; i < world->flows.flow_count; i++) {
		const struct sim_flow *flow = &world->list[i];
		bool held = flow->rate >= flow->rate_max * (1 - 1e-9);
		for (uint32_t u = 0; u < flow->use_count && !held; u++) {
			uint32_t link = flow->uses[u].link;
			held = used[link] >= world->capacities[link] * (1 - 1e-9) &&
			       flow->rate / flow->share >= highest[link] * (1 - 1e-9);
		}
		ck_assert_msg(held, "flow %u could have more than %g", i, flow->rate);
	}
}

static void done(void *arg, const struct sim_flow *flow, const struct sim_segment *segment,
		 double begin_s, double end_s)
{
	struct world *world = arg;

	(void)segment;
	if (!world->looked && world->flows.step_count == 0) {
		world->looked = true;
		rates_are_fair(world);
	}
	ck_assert_double_le(begin_s, end_s);
	world->ends[flow->sender] = end_s;
}

static struct sim_flow *flow_add(struct world *world, uint64_t bytes, double rate_max)
{
	uint32_t index = world->flows.flow_count++;
	struct sim_flow *flow = &world->list[index];

	world->segments[2 * index] = (struct sim_segment){.bytes = bytes, .item = 0};
	*flow = (struct sim_flow){.sender = index,
				  .share = 1,
				  .rate_max = rate_max,
				  .gate_first = 2 * (size_t)index,
				  .segment_first = 2 * (size_t)index,
				  .segment_count = 1};
	return flow;
}

static void use(struct sim_flow *flow, uint32_t link, double weight)
{
	flow->uses[flow->use_count++] = (struct sim_use){link, weight};
}

static void open(struct world *world, uint32_t links, double capacity)
{
	*world = (struct world){0};
	for (uint32_t l = 0; l < links; l++)
		world->capacities[l] = capacity;
	world->flows = (struct sim_flows){.capacities = world->capacities,
					  .link_count = links,
					  .flows = world->list,
					  .segments = world->segments,
					  .gates = world->gates,
					  .step_s = 1e-9,
					  .done = done,
					  .arg = world};
}

START_TEST(flows_over_one_link_share_it)
{
	struct world world;

	open(&world, 1, 100);
	use(flow_add(&world, 100, INFINITY), 0, 1);
	use(flow_add(&world, 300, INFINITY), 0, 1);
	ck_ok(sim_flows_run(&world.flows, &world.err), world.err);
	ck_assert_double_eq_tol(world.ends[0], 2, 1e-6); /* 50 each */
	ck_assert_double_eq_tol(world.ends[1], 4, 1e-6); /* 200 left, alone */
}
END_TEST

START_TEST(what_a_slow_flow_leaves_others_take)
{
	struct world world;

	open(&world, 3, 100);
	world.capacities[2] = 10;
	struct sim_flow *slow = flow_add(&world, 100, INFINITY);
	use(slow, 0, 1);
	use(slow, 2, 1);
	use(flow_add(&world, 900, INFINITY), 0, 1);
	struct sim_flow *capped = flow_add(&world, 100, 20),
			*other = flow_add(&world, 400, INFINITY);
	use(capped, 1, 1);
	use(other, 1, 1);
	ck_ok(sim_flows_run(&world.flows, &world.err), world.err);
	ck_assert_double_eq_tol(world.ends[0], 10, 1e-6);
	ck_assert_double_eq_tol(world.ends[1], 10, 1e-6);
	ck_assert_double_eq_tol(world.ends[2], 5, 1e-6);
	ck_assert_double_eq_tol(world.ends[3], 5, 1e-6);
}
END_TEST

START_TEST(a_share_of_three_gets_three_times_as_much)
{
	struct world world;

	open(&world, 1, 100);
	struct sim_flow *large = flow_add(&world, 300, INFINITY);
	use(large, 0, 1);
	large->share = 3;
	use(flow_add(&world, 100, INFINITY), 0, 1);
	ck_ok(sim_flows_run(&world.flows, &world.err), world.err);
	ck_assert_double_eq_tol(world.ends[0], 4, 1e-6);
	ck_assert_double_eq_tol(world.ends[1], 4, 1e-6);
}
END_TEST

START_TEST(a_byte_that_costs_more_takes_more_of_the_link)
{
	struct world world;

	open(&world, 1, 100);
	use(flow_add(&world, 100, INFINITY), 0, 4);
	ck_ok(sim_flows_run(&world.flows, &world.err), world.err);
	ck_assert_double_eq_tol(world.ends[0], 4, 1e-6);
}
END_TEST

/* Flow 0 opens flow 1's second segment when it ends. */
static void opens_gate(void *arg, const struct sim_flow *flow, const struct sim_segment *segment,
		       double begin_s, double end_s)
{
	struct world *world = arg;

	(void)segment;
	(void)begin_s;
	world->ends[flow->sender] = end_s;
	if (flow->sender == 0)
		world->gates[3] = end_s + 1;
}

START_TEST(a_gate_holds_what_is_behind_it)
{
	struct world world;

	open(&world, 2, 100);
	world.flows.done = opens_gate;
	use(flow_add(&world, 500, INFINITY), 0, 1);
	struct sim_flow *gated = flow_add(&world, 100, INFINITY);
	use(gated, 1, 1);
	gated->segment_count = 2;
	gated->ready_s = 0.5;
	world.segments[3] = (struct sim_segment){.bytes = 100, .item = 1};
	world.gates[3] = INFINITY;
	ck_ok(sim_flows_run(&world.flows, &world.err), world.err);
	ck_assert_double_eq_tol(world.ends[0], 5, 1e-6);
	ck_assert_double_eq_tol(world.ends[1], 7, 1e-6); /* opens at 6 */
}
END_TEST

START_TEST(a_gate_that_nobody_opens_is_an_error)
{
	struct world world;

	open(&world, 1, 100);
	use(flow_add(&world, 100, INFINITY), 0, 1);
	world.gates[0] = INFINITY;
	ck_fails(sim_flows_run(&world.flows, &world.err), -EDEADLK, world.err);
	ck_assert_str_eq(world.err.text, "1 flows wait for what never comes");
}
END_TEST

/* Random flows, links, weights, shares and caps. */
static void a_random_world_is_fair(uint64_t seed)
{
	struct world world;
	uint32_t links = 1 + below(&seed, LINKS_MAX), flows = 1 + below(&seed, FLOWS_MAX);
	double slowest = 0;

	open(&world, links, 0);
	for (uint32_t l = 0; l < links; l++)
		world.capacities[l] = 1e6 * (1 + below(&seed, 1000));
	for (uint32_t i = 0; i < flows; i++) {
		struct sim_flow *flow = flow_add(
			&world, 1000000ull * (1 + below(&seed, 1000)),
			below(&seed, 4) == 0 ? 1e6 * (1 + below(&seed, 200)) : (double)INFINITY);
		flow->share = (double)(below(&seed, 3) == 0 ? 1 + below(&seed, 8) : 1);
		uint32_t uses = 1 + below(&seed, MIN(links, 4)), at = below(&seed, links);
		for (uint32_t u = 0; u < uses; u++)
			use(flow, (at + u) % links, 1 + below(&seed, 3));
	}
	ck_ok(sim_flows_run(&world.flows, &world.err), world.err);
	ck_assert(world.looked);
	for (uint32_t i = 0; i < flows; i++) {
		ck_assert_double_gt(world.ends[i], 0);
		slowest = MAX(slowest, world.ends[i]);
	}
	/* no link can have carried more than it could */
	for (uint32_t l = 0; l < links; l++) {
		double bytes = 0;
		for (uint32_t i = 0; i < flows; i++)
			for (uint32_t u = 0; u < world.list[i].use_count; u++)
				bytes += world.list[i].uses[u].link == l
						 ? (double)world.segments[2 * i].bytes *
							   world.list[i].uses[u].weight
						 : 0;
		ck_assert_double_le(bytes, world.capacities[l] * slowest * (1 + 1e-6));
	}
}

/* _i: the first of ten seeds. */
START_TEST(no_flow_could_have_more_without_taking_it)
{
	for (uint64_t seed = 0; seed < 10; seed++)
		a_random_world_is_fair(((uint64_t)_i * 10 + seed) << 32);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("simulate_flow");
	TCase *tcase = tcase_create("flows");

	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, flows_over_one_link_share_it);
	tcase_add_test(tcase, what_a_slow_flow_leaves_others_take);
	tcase_add_test(tcase, a_share_of_three_gets_three_times_as_much);
	tcase_add_test(tcase, a_byte_that_costs_more_takes_more_of_the_link);
	tcase_add_test(tcase, a_gate_holds_what_is_behind_it);
	tcase_add_test(tcase, a_gate_that_nobody_opens_is_an_error);
	tcase_add_loop_test(tcase, no_flow_could_have_more_without_taking_it, 0, 40);
	suite_add_tcase(suite, tcase);
	return suite;
}
