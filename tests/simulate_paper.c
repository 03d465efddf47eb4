/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator proves itself: constants fitted on point-to-point measurements alone, and the
 * published pipelines come out as published.  Also constants read and written, and traces.
 */
#include <errno.h>
#include <string.h>

#include "planner/simulate.h"
#include "tests/test.h"

#define BARS_MAX 200000
#define DIGEST	 0xa5b69203d44675bfull /* of the times of all intervals of the Kimi-K2 pipeline */

static struct ws_error err;

/* arXiv 2510.27656: seconds of the whole update; bytes that a rollout receives. */
static const struct {
	const char *model;
	double seconds, tolerance, receive_gb;
} published[] = {
	{"kimi-k2", 1.233, 0.15, 45.946},
	{"qwen3-235b", 1.69, 0.20, 37.688},
};

/* _i: the pipeline, on each measured fabric. */
START_TEST(published_pipelines_come_out_as_published)
{
	const struct sim_fabric *fabric;

	for (uint32_t f = 0; (fabric = sim_fabric_at(f)) != NULL; f++) {
		struct sim_constants constants = sim_constants_default();
		struct simulation *simulation;
		sim_fabric_fit(fabric, &constants);
		ck_ok(simulate_paper(&simulation, published[_i].model, &constants, &err), err);
		ck_assert_double_eq_tol(simulation->predicted_s, published[_i].seconds,
					published[_i].seconds * published[_i].tolerance);
		ck_assert_double_eq_tol(simulation->receive_floor_s * 50, published[_i].receive_gb,
					0.02);
		simulation_free(simulation);
	}
}
END_TEST

/* Published: 8.99 to 11.48 GB a sender; a static pairing by turns makes the same spread. */
START_TEST(the_pairing_loads_senders_as_published)
{
	const struct sim_constants constants = sim_constants_default();
	struct simulation *simulation;
	uint64_t least = UINT64_MAX, most = 0;

	ck_ok(simulate_paper(&simulation, "qwen3-235b", &constants, &err), err);
	for (uint32_t t = 0; t < simulation->trainer_count; t++) {
		least = MIN(least, simulation->members[t].sent_bytes);
		most = MAX(most, simulation->members[t].sent_bytes);
	}
	ck_assert_double_eq_tol((double)least / 1e9, 8.99, 0.45);
	ck_assert_double_eq_tol((double)most / 1e9, 11.48, 0.57);
	simulation_free(simulation);
}
END_TEST

START_TEST(each_allocation_may_fail)
{
	const struct sim_constants constants = sim_constants_default();
	struct simulation *simulation = NULL;
	uint64_t live = mem_live_count();
	int rc = -ENOMEM;

	for (int64_t n = 0; rc != 0; n++) {
		ck_assert_int_lt(n, 10000);
		mem_fail_nth(n);
		rc = simulate_paper(&simulation, "qwen3-235b", &constants, &err);
		mem_fail_nth(-1);
		ck_assert(rc == 0 || (rc == -ENOMEM && simulation == NULL));
		if (rc != 0)
			ck_assert_uint_eq(mem_live_count(), live);
	}
	simulation_free(simulation);
	ck_assert_uint_eq(mem_live_count(), live);
}
END_TEST

START_TEST(an_unknown_pipeline_is_named)
{
	const struct sim_constants constants = sim_constants_default();
	struct simulation *simulation;

	ck_fails(simulate_paper(&simulation, "gpt-5", &constants, &err), -EINVAL, err);
	ck_assert_str_eq(err.text,
			 "the published pipelines are kimi-k2 and qwen3-235b, not 'gpt-5'");
}
END_TEST

/* A write alone takes latency and bytes; many take bytes, or the NIC's least time each. */
START_TEST(the_fit_gives_back_the_measurements)
{
	const struct sim_fabric *fabric;

	for (uint32_t f = 0; (fabric = sim_fabric_at(f)) != NULL; f++) {
		struct sim_constants fit = sim_constants_default();
		sim_fabric_fit(fabric, &fit);
		double pace_ns = 8 / (fit.nic_gbps * fit.nic_efficiency);
		for (size_t i = 0; i < ARRAY_SIZE(fabric->single); i++) {
			double bytes = fabric->single[i].kib * 1024.0;
			double gbps = 8 * bytes / (fit.write_latency_ns + bytes * pace_ns);
			ck_assert_double_eq_tol(gbps / fabric->single[i].gbps, 1, 0.08);
		}
		for (size_t i = 0; i < ARRAY_SIZE(fabric->paged); i++) {
			double bytes = fabric->paged[i].kib * 1024.0;
			double gbps = 8 * bytes / MAX(fit.op_ns, bytes * pace_ns);
			ck_assert_double_eq_tol(gbps / fabric->paged[i].gbps, 1, 0.17);
		}
	}
}
END_TEST

static const struct {
	const char *text, *sentence; /* NULL: is taken */
} constants_texts[] = {
	{"{\"nic_gbps\": 200}", NULL},
	{"{\"nic_gbps\": {\"value\": 200, \"unit\": \"Gb/s\", \"source\": \"a switch\"}}", NULL},
	{"{}", NULL},
	{"{\"nic_gbs\": 200}",
	 "no constant is named 'nic_gbs': simulate --print-constants names all"},
	{"{\"nic_efficiency\": 1.5}",
	 "constant 'nic_efficiency' must be a number from 0.001 to 1 (share)"},
	{"{\"nic_efficiency\": 0}",
	 "constant 'nic_efficiency' must be a number from 0.001 to 1 (share)"},
	{"{\"op_ns\": \"fast\"}", "constant 'op_ns' must be a number from 0 to 1e+09 (ns)"},
	{"{\"op_ns\": {\"unit\": \"ns\"}}",
	 "constant 'op_ns' must be a number from 0 to 1e+09 (ns)"},
	{"[200]", "constants are one JSON object of names and numbers"},
};

START_TEST(constants_are_read_or_refused)
{
	const char *text = constants_texts[_i].text;
	struct sim_constants constants = sim_constants_default(), before = constants;

	int rc = sim_constants_parse(&constants, text, strlen(text), &err);
	if (constants_texts[_i].sentence == NULL) {
		ck_ok(rc, err);
		ck_assert_double_eq(constants.nic_gbps, _i < 2 ? 200 : 400);
		return;
	}
	ck_assert_int_eq(rc, -EINVAL);
	ck_assert_str_eq(err.text, constants_texts[_i].sentence);
	ck_assert_mem_eq(&constants, &before, sizeof(before));
}
END_TEST

START_TEST(printed_constants_read_back_the_same)
{
	struct writer out = WRITER_INIT(1u << 20);
	struct json_writer json = {.out = &out};
	struct sim_constants constants = sim_constants_default(), back;
	uint32_t count;

	const struct sim_constant *list = sim_constant_list(&count);
	ck_assert_uint_eq(count * sizeof(double), sizeof(constants));
	for (uint32_t i = 0; i < count; i++) {
		ck_assert_ptr_nonnull(list[i].source);
		ck_assert_uint_gt(strlen(list[i].unit), 0);
	}
	sim_constants_json(&constants, &json);
	memset(&back, 0, sizeof(back));
	ck_ok(sim_constants_parse(&back, out.bytes, out.count, &err), err);
	ck_assert_mem_eq(&back, &constants, sizeof(back));
	writer_release(&out);
}
END_TEST

/* The model is arithmetic in a fixed order: gcc, clang and sanitizers get the same bits. */
START_TEST(every_compiler_predicts_the_same)
{
	const struct sim_constants constants = sim_constants_default();
	struct simulation *simulation;
	uint64_t digest = 0;

	ck_ok(simulate_paper(&simulation, published[0].model, &constants, &err), err);
	for (size_t i = 0; i < simulation->interval_count; i++) {
		const struct sim_interval *interval = &simulation->intervals[i];
		digest = digest_bytes(&interval->begin_s, sizeof(double), digest);
		digest = digest_bytes(&interval->end_s, sizeof(double), digest);
	}
	ck_assert_uint_eq(digest, DIGEST);
	simulation_free(simulation);
}
END_TEST

/* What Perfetto needs: an object with traceEvents; X events with pid, tid, ts, dur, those of a
 * thread ascending and apart; every pid and tid named. */
static void trace_is_good(const struct writer *text, const struct simulation *simulation)
{
	static const struct json_limits limits = {
		.bytes_max = 256u << 20, .depth_max = 8, .node_count_max = 16u << 20};
	const struct json *trace, *events;
	struct arena arena = {0};
	uint32_t process = 0, thread = 0, bars = 0;
	double end = 0;

	ck_ok(json_parse(&arena, text->bytes, text->count, &limits, &trace, &err), err);
	events = json_get(trace, "traceEvents");
	ck_assert_uint_eq(events->type, JSON_ARRAY);
	bool *named = arena_array(&arena, 65536, sizeof(bool));
	const struct json **last = arena_array(&arena, 65536, sizeof(*last));
	ck_assert(named != NULL && last != NULL);
	for (const struct json *event = events->first; event != NULL; event = event->next) {
		const char *kind = json_text(event, "ph", "?"),
			   *name = json_text(event, "name", "?");
		uint32_t pid = (uint32_t)json_integer(event, "pid", 0);
		uint32_t tid = (uint32_t)json_integer(event, "tid", 0);
		ck_assert_uint_ge(pid, 1);
		ck_assert_uint_le(pid, simulation->member_count);
		ck_assert_uint_lt(tid, 65536);
		if (strcmp(kind, "M") == 0 && strcmp(name, "process_name") == 0)
			named[pid] = true;
		if (strcmp(kind, "M") == 0 && strcmp(name, "thread_name") == 0) {
			if (pid != process)
				memset(last, 0, 65536 * sizeof(*last));
			process = pid;
			thread = tid;
			last[tid] = event;
		}
		if (strcmp(kind, "X") != 0)
			continue;
		bars++;
		ck_assert(named[pid] && pid == process && last[tid] != NULL);
		const struct json *ts = json_get(event, "ts"), *dur = json_get(event, "dur");
		ck_assert(ts != NULL && ts->type == JSON_NUMBER && ts->number >= 0);
		ck_assert(dur != NULL && dur->type == JSON_NUMBER && dur->number >= 0);
		const struct json *before = json_get(last[tid], "ts");
		end = before == NULL ? 0 : before->number + json_get(last[tid], "dur")->number;
		ck_assert_double_ge(ts->number, end - 0.0021); /* printed to the nanosecond */
		last[tid] = event;
	}
	ck_assert_uint_gt(thread, 0);
	ck_assert_uint_gt(bars, 0);
	ck_assert_uint_le(bars, BARS_MAX);
	arena_release(&arena);
}

START_TEST(a_trace_is_what_perfetto_opens)
{
	const struct sim_constants constants = sim_constants_default();
	struct writer out = WRITER_INIT(256u << 20);
	struct simulation *simulation;

	ck_ok(simulate_paper(&simulation, "kimi-k2", &constants, &err), err);
	ck_assert_int_eq(simulation_trace(simulation, NULL, &out), 0);
	trace_is_good(&out, simulation);
	simulation_free(simulation);
	writer_release(&out);
}
END_TEST

/* 1,000 ranks of 250 buckets each: the file stays one that a browser can open. */
START_TEST(a_trace_of_a_thousand_ranks_is_bounded)
{
	enum { RANKS = 1000, BUCKETS = 250 };
	struct writer out = WRITER_INIT(256u << 20);
	struct sim_interval *intervals = mem_alloc(sizeof(*intervals) * RANKS * BUCKETS);
	struct sim_member *members = mem_alloc(sizeof(*members) * RANKS);
	struct simulation simulation = {.trainer_count = RANKS,
					.member_count = RANKS,
					.bucket_count = BUCKETS,
					.members = members,
					.intervals = intervals,
					.interval_count = RANKS * BUCKETS};

	ck_assert(intervals != NULL && members != NULL);
	for (uint32_t i = 0; i < RANKS * BUCKETS; i++)
		intervals[i] = (struct sim_interval){.begin_s = i % BUCKETS * 1e-3,
						     .end_s = (i % BUCKETS + 1.5) * 1e-3,
						     .bytes = 1 << 20,
						     .member = i / BUCKETS,
						     .bucket = i % BUCKETS,
						     .phase = SIM_WRITE};
	ck_assert_int_eq(simulation_trace(&simulation, NULL, &out), 0);
	ck_assert_uint_le(out.count, 32u << 20);
	trace_is_good(&out, &simulation);
	mem_free(intervals);
	mem_free(members);
	writer_release(&out);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("simulate_paper");
	TCase *tcase = tcase_create("published");

	tcase_set_timeout(tcase, 300);
	tcase_add_loop_test(tcase, published_pipelines_come_out_as_published, 0,
			    (int)ARRAY_SIZE(published));
	tcase_add_test(tcase, the_pairing_loads_senders_as_published);
	tcase_add_test(tcase, each_allocation_may_fail);
	tcase_add_test(tcase, an_unknown_pipeline_is_named);
	tcase_add_test(tcase, the_fit_gives_back_the_measurements);
	tcase_add_loop_test(tcase, constants_are_read_or_refused, 0,
			    (int)ARRAY_SIZE(constants_texts));
	tcase_add_test(tcase, printed_constants_read_back_the_same);
	tcase_add_test(tcase, every_compiler_predicts_the_same);
	tcase_add_test(tcase, a_trace_is_what_perfetto_opens);
	tcase_add_test(tcase, a_trace_of_a_thousand_ranks_is_bounded);
	suite_add_tcase(suite, tcase);
	return suite;
}
