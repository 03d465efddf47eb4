/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Same host first: of holders that are as busy either way, one on the target's own host sends.
 * Hosts are named against the order of ranks, so that only a planner that looks finds them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench/plan_jobs.h"
#include "planner/plan_internal.h"
#include "tests/test.h"

#define TRAINERS 16
#define REPLICAS 4
#define RANKS	 4
#define MEMBERS	 (TRAINERS + REPLICAS * RANKS)

/* 8 copies of 2 shards; an engine's ranks are on one host. */
static const struct plan_job job = {.model = "qwen3-32b",
				    .trainer = "fsdp2",
				    .trainer_mesh = "rep=8,dp=2",
				    .rollout = "vllm",
				    .rollout_mesh = "tp=4"};

/* Trainers of one shard and parity of copy share a host with one replica, or nobody does. */
static void places_make(struct place *places, bool shared)
{
	for (uint32_t m = 0; m < MEMBERS; m++) {
		uint32_t host = m < TRAINERS ? m % 4 : 3 - (m - TRAINERS) / RANKS;
		snprintf(places[m].host, sizeof(places[m].host), "h%u", shared ? host : m);
		places[m].nic_count = 1;
		places[m].mbps = 400000;
	}
}

static void input_make(struct plan_input *input, struct manifest **manifests)
{
	static const uint32_t replicas[REPLICAS] = {0, 1, 2, 3};
	struct ws_error err = {0};

	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(1u << 20);
		ck_ok(plan_job_manifest(&job, (enum side)side, &out, NULL, &err), err);
		ck_ok(manifest_parse(&manifests[side], out.bytes, out.count, NULL, &err), err);
		writer_release(&out);
	}
	*input = (struct plan_input){.trainer = manifests[SIDE_TRAINER],
				     .rollout = manifests[SIDE_ROLLOUT],
				     .replicas = replicas,
				     .replica_count = REPLICAS,
				     .rules = RULES_DEFAULT};
}

static uint64_t bytes_inside(const struct plan *all)
{
	const struct place *places = all->input.places;
	uint64_t inside = 0;

	for (uint32_t i = 0; i < plan_send_pair_count(all); i++) {
		const struct plan_pair *pair = plan_send_pair(all, i);
		if (strcmp(places[pair->sender].host, places[pair->receiver].host) == 0)
			inside += pair->bytes;
	}
	return inside;
}

START_TEST(a_trainer_serves_its_own_host_first)
{
	struct place places[2][MEMBERS] = {0};
	struct manifest *manifests[2] = {0};
	struct plan *plans[2] = {0};
	struct ws_error err = {0};
	struct plan_input input;

	input_make(&input, manifests);
	for (int shared = 0; shared < 2; shared++) {
		places_make(places[shared], shared == 1);
		input.places = places[shared];
		ck_ok(plan_make(&plans[shared], &input, PLAN_ALL, NULL, &err), err);
		ck_ok(plan_check(plans[shared], NULL, &err), err);
	}
	/* A host's trainers hold one of the two shards, and that is what they can send at home. */
	uint64_t whole = plan_totals(plans[1])->bytes;
	uint64_t inside = bytes_inside(plans[1]);
	ck_assert_msg(inside > whole / 2 - whole / 50, "%" PRIu64 " of %" PRIu64 " stay inside",
		      inside, whole);
	/* And nobody sends more for it: to a row of a box at each border. */
	ck_assert_uint_eq(plan_totals(plans[0])->bytes, whole);
	for (uint32_t m = 0; m < TRAINERS; m++) {
		uint64_t apart = plans[0]->sent[m], near = plans[1]->sent[m];
		ck_assert_uint_le(MAX(apart, near) - MIN(apart, near), apart / 100);
	}
	for (int i = 0; i < 2; i++) {
		plan_free(plans[i]);
		manifest_free(manifests[i]);
	}
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* Each member alone comes to what all together did: the line is the same for everybody. */
START_TEST(both_ends_agree_on_who_is_near)
{
	struct place places[MEMBERS] = {0};
	struct manifest *manifests[2] = {0};
	struct plan *members[MEMBERS] = {0};
	struct ws_error err = {0};
	struct plan_input input;
	uint32_t met = 0;

	places_make(places, true);
	input_make(&input, manifests);
	input.places = places;
	for (uint32_t m = 0; m < MEMBERS; m++) {
		ck_ok(plan_make(&members[m], &input, m, NULL, &err), err);
		ck_ok(plan_check(members[m], NULL, &err), err);
	}
	for (uint32_t m = 0; m < TRAINERS; m++) {
		for (uint32_t i = 0; i < plan_send_pair_count(members[m]); i++) {
			const struct plan_pair *sent = plan_send_pair(members[m], i);
			const struct plan *other = members[sent->receiver];
			for (uint32_t j = 0; j < plan_receive_pair_count(other); j++) {
				const struct plan_pair *got = plan_receive_pair(other, j);
				if (got->sender != m)
					continue;
				ck_assert_uint_eq(got->digest, sent->digest);
				met++;
			}
		}
	}
	ck_assert_uint_gt(met, TRAINERS);
	for (uint32_t m = 0; m < MEMBERS; m++)
		plan_free(members[m]);
	manifest_free(manifests[0]);
	manifest_free(manifests[1]);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_hosts");
	TCase *near = tcase_create("near");

	tcase_set_timeout(near, 120);
	tcase_add_test(near, a_trainer_serves_its_own_host_first);
	tcase_add_test(near, both_ends_agree_on_who_is_near);
	suite_add_tcase(tests, near);
	return tests;
}
