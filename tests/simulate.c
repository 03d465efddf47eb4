/* SPDX-License-Identifier: Apache-2.0 */
/* Plans played: what must hold of every simulation, what-ifs, the reference job. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/simulate.h"
#include "tests/plan_pair.h"
#include "tests/test.h"

#define NODE_RANKS 8

struct played {
	struct pair_world pair;
	struct plan *plan;
	struct simulation *simulation;
	struct sim_options options;
	struct ws_error err;
};

/* Hosts of eight ranks, sides and replicas apart, NICs of `gbps`. */
static void places_make(struct pair_world *pair, uint64_t gbps)
{
	uint32_t trainers = manifest_world(pair->manifests[0]);
	uint32_t ranks = manifest_world(pair->manifests[1]);
	uint32_t members = trainers + ranks * pair->input.replica_count;
	struct place *places = arena_array(&pair->arena, members, sizeof(*places));

	ck_assert_ptr_nonnull(places);
	for (uint32_t m = 0; m < members; m++) {
		bool trainer = m < trainers;
		uint32_t rank = trainer ? m : (m - trainers) % ranks;
		snprintf(places[m].host, sizeof(places[m].host), "%c%u-%u", trainer ? 't' : 'r',
			 trainer ? 0 : (m - trainers) / ranks, rank / NODE_RANKS);
		places[m].nic_count = 1;
		places[m].mbps = gbps * 1000;
	}
	pair->input.places = places;
}

static void play(struct played *played)
{
	simulation_free(played->simulation);
	plan_free(played->plan);
	played->plan = pair_plan(&played->pair, PLAN_ALL);
	ck_ok(simulate_plan(&played->simulation, played->plan, &played->options, &played->err),
	      played->err);
}

static void played_open(struct played *played, const char *model, const char *trainer,
			const char *trainer_mesh, const char *rollout, const char *rollout_mesh,
			uint32_t replicas)
{
	memset(played, 0, sizeof(*played));
	pair_open_model(&played->pair, model, trainer, trainer_mesh, rollout, rollout_mesh,
			replicas);
	places_make(&played->pair, 400);
	played->options.constants = sim_constants_default();
}

static void played_close(struct played *played)
{
	simulation_free(played->simulation);
	plan_free(played->plan);
	pair_close(&played->pair);
}

static void small_open(struct played *played)
{
	played_open(played, "qwen3-30b-a3b", "fsdp2", "dp=8", "vllm", "tp=2", 2);
}

static uint64_t phase_bytes(const struct simulation *simulation, enum sim_phase phase)
{
	return simulation->phases[phase].bytes;
}

static const struct {
	const char *model, *trainer, *trainer_mesh, *rollout, *rollout_mesh;
	uint32_t replicas;
	enum fanout fanout;
} cases[] = {
	{"qwen3-30b-a3b", "fsdp2", "dp=8", "vllm", "tp=2", 2, FANOUT_NONE},
	{"qwen3-30b-a3b", "fsdp2", "dp=3", "vllm", "tp=2", 3, FANOUT_REPLICA},
	{"qwen3-30b-a3b", "megatron", "tp=2,pp=2,ep=2", "vllm", "tp=4,dp=2", 2, FANOUT_NODE},
	{"llama-3-70b", "megatron", "tp=8,pp=2", "vllm", "tp=8", 1, FANOUT_NONE},
	{"llama-3-70b", "fsdp2", "dp=16", "vllm", "tp=2", 8, FANOUT_REPLICA},
};

/* Times are within the update, bytes are the plan's. */
START_TEST(all_bytes_arrive_and_not_before_the_floor)
{
	struct played played;

	played_open(&played, cases[_i].model, cases[_i].trainer, cases[_i].trainer_mesh,
		    cases[_i].rollout, cases[_i].rollout_mesh, cases[_i].replicas);
	played.pair.input.rules.fanout = cases[_i].fanout;
	play(&played);
	const struct simulation *simulation = played.simulation;
	const struct plan_totals *totals = plan_totals(played.plan);
	ck_assert_double_ge(simulation->predicted_s, simulation->receive_floor_s);
	ck_assert_double_ge(simulation->predicted_s, simulation->send_floor_s);
	ck_assert_double_ge(simulation->ratio, 1);
	/* on the wire a packed copy has gaps */
	uint64_t sent = phase_bytes(simulation, SIM_WRITE) + phase_bytes(simulation, SIM_FORWARD);
	ck_assert_uint_ge(sent, totals->bytes);
	ck_assert_uint_le(sent, totals->bytes + totals->bytes / 1000);
	ck_assert_uint_eq(phase_bytes(simulation, SIM_RECEIVE), sent);
	ck_assert_uint_eq(phase_bytes(simulation, SIM_FORWARD) > 0,
			  cases[_i].fanout != FANOUT_NONE);
	uint64_t in = 0, out = 0;
	for (uint32_t m = 0; m < simulation->member_count; m++) {
		const struct sim_member *member = &simulation->members[m];
		in += member->received_bytes + member->nvlink_received_bytes;
		out += member->sent_bytes + member->nvlink_sent_bytes;
		ck_assert_double_le(member->end_s, simulation->predicted_s);
	}
	ck_assert_uint_eq(in, sent);
	ck_assert_uint_eq(out, sent);
	for (size_t i = 0; i < simulation->interval_count; i++) {
		const struct sim_interval *interval = &simulation->intervals[i];
		ck_assert_double_ge(interval->begin_s, 0);
		ck_assert_double_ge(interval->end_s, interval->begin_s);
		ck_assert_double_le(interval->end_s, simulation->predicted_s);
		if (i > 0 && interval[-1].member == interval->member &&
		    interval[-1].phase == interval->phase)
			ck_assert_double_ge(interval->begin_s, interval[-1].begin_s);
	}
	played_close(&played);
}
END_TEST

START_TEST(members_of_one_host_need_no_nic)
{
	struct played played;

	small_open(&played);
	play(&played);
	double before_s = played.simulation->predicted_s;
	struct place *places = (struct place *)played.pair.input.places; /* of places_make */
	for (uint32_t m = 0; m < played.simulation->member_count; m++)
		strcpy(places[m].host, "all");
	play(&played);
	const struct simulation *simulation = played.simulation;
	ck_assert_double_lt(simulation->predicted_s, before_s / 4);
	ck_assert_double_eq(simulation->receive_floor_s + simulation->send_floor_s, 0);
	ck_assert_double_eq(simulation->ratio, 0);
	for (uint32_t m = 0; m < simulation->member_count; m++)
		ck_assert_uint_eq(simulation->members[m].sent_bytes, 0);
	ck_assert_uint_gt(simulation->members[0].nvlink_sent_bytes, 0);
	ck_assert_uint_lt(simulation->step_count, 10000);
	played_close(&played);
}
END_TEST

START_TEST(a_forward_begins_when_what_feeds_it_has_come)
{
	struct played played;

	played_open(&played, "llama-3-70b", "fsdp2", "dp=4", "vllm", "tp=2", 3);
	played.pair.input.rules.fanout = FANOUT_REPLICA;
	play(&played);
	const struct simulation *simulation = played.simulation;
	uint32_t checked = 0;
	for (size_t i = 0; i < simulation->interval_count; i++) {
		const struct sim_interval *forward = &simulation->intervals[i];
		if (forward->phase != SIM_FORWARD)
			continue;
		for (size_t j = 0; j < simulation->interval_count; j++) {
			const struct sim_interval *receive = &simulation->intervals[j];
			if (receive->phase != SIM_RECEIVE || receive->member != forward->member ||
			    receive->bucket != forward->bucket)
				continue;
			ck_assert_double_ge(forward->begin_s, receive->end_s);
			checked++;
		}
	}
	ck_assert_uint_eq(checked, 2 * 2 * simulation->bucket_count);
	played_close(&played);
}
END_TEST

START_TEST(half_the_bandwidth_takes_twice_as_long)
{
	struct played played;

	small_open(&played);
	play(&played);
	double whole_s = played.simulation->predicted_s;
	places_make(&played.pair, 200);
	play(&played);
	ck_assert_double_ge(played.simulation->predicted_s / whole_s, 1.9);
	ck_assert_double_le(played.simulation->predicted_s / whole_s, 2.05);
	played_close(&played);
}
END_TEST

START_TEST(a_slow_rank_makes_all_wait_for_it)
{
	struct played played;
	const struct sim_slow slow = {.member = 9, .factor = 0.25};

	small_open(&played);
	play(&played);
	double before_s = played.simulation->predicted_s;
	played.options.slow = &slow;
	played.options.slow_count = 1;
	play(&played);
	ck_assert_double_gt(played.simulation->predicted_s, 3 * before_s);
	for (uint32_t m = 8; m < 12; m++)
		ck_assert(m == 9 || played.simulation->members[m].end_s <
					    played.simulation->members[9].end_s);
	played_close(&played);
}
END_TEST

START_TEST(a_late_replica_ends_late_and_delays_no_other)
{
	struct played played;

	small_open(&played);
	play(&played);
	double before_s = played.simulation->members[8].end_s;
	played.options.late_replica = 1;
	played.options.late_s = 3;
	play(&played);
	ck_assert_double_gt(played.simulation->members[10].end_s, 3);
	ck_assert_double_le(played.simulation->members[8].end_s, before_s);
	played_close(&played);
}
END_TEST

START_TEST(what_the_plan_has_not_is_refused)
{
	struct played played;
	const struct sim_slow nobody = {.member = 12, .factor = 0.5}, nothing = {.factor = 0};

	small_open(&played);
	played.plan = pair_plan(&played.pair, PLAN_ALL);
	played.options.slow_count = 1;
	played.options.slow = &nobody;
	ck_fails(simulate_plan(&played.simulation, played.plan, &played.options, &played.err),
		 -EINVAL, played.err);
	ck_assert_ptr_null(played.simulation);
	ck_assert_str_eq(played.err.text, "member 12 can't be slow: the plan has 12");
	played.options.slow = &nothing;
	ck_fails(simulate_plan(&played.simulation, played.plan, &played.options, &played.err),
		 -EINVAL, played.err);
	played.options.slow_count = 0;
	played.options.late_s = 1;
	played.options.late_replica = 2;
	ck_fails(simulate_plan(&played.simulation, played.plan, &played.options, &played.err),
		 -EINVAL, played.err);
	ck_assert_str_eq(played.err.text, "replica 2 can't be late: the roster has 2");
	played_close(&played);
}
END_TEST

START_TEST(offloaded_params_are_loaded_before_they_are_written)
{
	struct played played;

	small_open(&played);
	play(&played);
	double before_s = played.simulation->predicted_s;
	played.options.offloaded = true;
	played.options.constants.pcie_gbytes_s = 2;
	play(&played);
	const struct simulation *simulation = played.simulation;
	uint32_t checked = 0;
	for (size_t i = 0; i < simulation->interval_count; i++) {
		const struct sim_interval *load = &simulation->intervals[i];
		if (load->phase != SIM_LOAD)
			continue;
		bool follows =
			i > 0 && load[-1].phase == SIM_LOAD && load[-1].member == load->member;
		ck_assert(!follows || load->begin_s >= load[-1].end_s);
		for (size_t j = i; j < simulation->interval_count &&
				   simulation->intervals[j].member == load->member;
		     j++) {
			const struct sim_interval *write = &simulation->intervals[j];
			if (write->phase != SIM_WRITE || write->bucket != load->bucket)
				continue;
			ck_assert_double_ge(write->begin_s, load->end_s);
			checked++;
		}
	}
	ck_assert_uint_eq(checked, 8 * simulation->bucket_count);
	/* each rank's 7.6 GB at 2 GB/s */
	ck_assert_double_gt(simulation->predicted_s, 3.8);
	ck_assert_double_gt(simulation->predicted_s, 2 * before_s);
	played_close(&played);
}
END_TEST

START_TEST(short_writes_and_small_staging_cost_time)
{
	struct played played;

	small_open(&played);
	play(&played);
	double before_s = played.simulation->predicted_s;
	played.pair.input.rules.op_bytes = 16u << 10;
	played.options.depth = 2; /* 32 KiB on their way at most */
	play(&played);
	ck_assert_double_gt(played.simulation->predicted_s, 2 * before_s);
	played_close(&played);
	/* row-parallel weights go through the ring */
	played_open(&played, "llama-3-70b", "megatron", "tp=8", "vllm", "tp=2", 1);
	play(&played);
	before_s = played.simulation->predicted_s;
	played.pair.input.rules.recv_staging_bytes = 64u << 10; /* slots of 4 KiB */
	play(&played);
	ck_assert_double_gt(played.simulation->predicted_s, 2 * before_s);
	played_close(&played);
}
END_TEST

/* Kimi-K2, FSDP 16 x PP 2 x EP 8 in BF16, to four replicas of EP 32 in FP8, 400 Gb/s. */
START_TEST(the_reference_job_is_within_a_tenth_of_its_floor)
{
	struct played played;

	memset(&played, 0, sizeof(played));
	pair_open_quant(&played.pair, "kimi-k2", 1, "torchtitan", "pp=2,dp=128,ep=8,stages=31:30",
			"sglang", "tp=32,dp=32,ep=32,shared_tp=1,moe_dense_tp=1,dp_lm_head=1",
			"fp8-block", 4);
	places_make(&played.pair, 400);
	played.options.constants = sim_constants_default();
	play(&played);
	const struct simulation *simulation = played.simulation;
	ck_assert_double_eq_tol(simulation->receive_floor_s, 0.919, 0.001);
	ck_assert_double_le(simulation->predicted_s, 1.10 * simulation->receive_floor_s);
	/* maxima are found and exchanged before the codes are made */
	ck_assert_uint_eq(simulation->phases[SIM_AMAX].member_count, 256);
	ck_assert_uint_eq(simulation->phases[SIM_EXCHANGE].member_count, 256);
	played.pair.input.rules.fanout = FANOUT_NODE;
	play(&played);
	ck_assert_double_lt(played.simulation->predicted_s, 0.75);
	played_close(&played);
}
END_TEST

START_TEST(each_allocation_may_fail)
{
	struct played played;
	int rc = -ENOMEM;

	pair_open_model(&played.pair, "qwen3-30b-a3b", "fsdp2", "dp=2", "vllm", "tp=2", 1);
	played.options = (struct sim_options){.constants = sim_constants_default()};
	struct plan *plan = pair_plan(&played.pair, PLAN_ALL);
	uint64_t live = mem_live_count();
	for (int64_t n = 0; rc != 0; n++) {
		ck_assert_int_lt(n, 1000);
		mem_fail_nth(n);
		rc = simulate_plan(&played.simulation, plan, &played.options, &played.err);
		mem_fail_nth(-1);
		ck_assert(rc == 0 || rc == -ENOMEM);
		if (rc != 0)
			ck_assert_uint_eq(mem_live_count(), live);
	}
	simulation_free(played.simulation);
	ck_assert_uint_eq(mem_live_count(), live);
	plan_free(plan);
	pair_close(&played.pair);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("simulate");
	TCase *tcase = tcase_create("plans");

	tcase_set_timeout(tcase, 300);
	tcase_add_loop_test(tcase, all_bytes_arrive_and_not_before_the_floor, 0,
			    (int)ARRAY_SIZE(cases));
	tcase_add_test(tcase, members_of_one_host_need_no_nic);
	tcase_add_test(tcase, a_forward_begins_when_what_feeds_it_has_come);
	tcase_add_test(tcase, half_the_bandwidth_takes_twice_as_long);
	tcase_add_test(tcase, a_slow_rank_makes_all_wait_for_it);
	tcase_add_test(tcase, a_late_replica_ends_late_and_delays_no_other);
	tcase_add_test(tcase, what_the_plan_has_not_is_refused);
	tcase_add_test(tcase, offloaded_params_are_loaded_before_they_are_written);
	tcase_add_test(tcase, short_writes_and_small_staging_cost_time);
	tcase_add_test(tcase, the_reference_job_is_within_a_tenth_of_its_floor);
	tcase_add_test(tcase, each_allocation_may_fail);
	suite_add_tcase(suite, tcase);
	return suite;
}
