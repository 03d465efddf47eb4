/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fan-out in plans: how often trainers write what is held alike, that the load is even inside a
 * node, who waits for whom, and what it saves a real model.  That forwards give the right bytes
 * on random layouts is in plan_properties.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/plan_digests.h"
#include "tests/plan_pair.h"
#include "tests/test.h"

#define TENSOR(name, shape) "{\"name\":\"" name "\",\"dtype\":\"bf16\",\"shape\":" shape "}"
#define WHOLE(name)	    "{\"p\":\"" name "\",\"x\":[\"t\",\"" name "\"]}"
#define SPLIT(name)	    "{\"p\":\"" name "\",\"x\":[\"s\",[\"t\",\"" name "\"],0,\"n\"]}"

/* Trainers apart; a replica's ranks by `each` on a host. */
static struct place *places_make(struct pair_world *pair, uint32_t trainers, uint32_t ranks,
				 uint32_t each)
{
	uint32_t members = trainers + ranks * pair->input.replica_count;
	struct place *places = arena_array(&pair->arena, members, sizeof(*places));

	for (uint32_t m = 0; m < members; m++) {
		uint32_t rank = m - trainers;
		places[m].nic_count = 1;
		if (m < trainers)
			snprintf(places[m].host, sizeof(places[m].host), "t%u", m);
		else
			snprintf(places[m].host, sizeof(places[m].host), "r%u-%u", rank / ranks,
				 rank % ranks / each);
	}
	return places;
}

static void replicas_set(struct pair_world *pair, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		pair->replicas[i] = i;
	pair->input.replica_count = count;
}

static uint64_t pair_bytes(const struct plan *all, uint32_t sender, uint32_t receiver)
{
	for (uint32_t i = 0; i < plan_send_pair_count(all); i++) {
		const struct plan_pair *pair = plan_send_pair(all, i);
		if (pair->sender == sender && pair->receiver == receiver)
			return pair->bytes;
	}
	return 0;
}

static void check(struct pair_world *pair, const struct plan *plan)
{
	int rc = plan_check(plan, &pair->findings, &pair->err);

	ck_assert_msg(rc == 0, "%s",
		      pair->findings.first != NULL ? pair->findings.first->text : pair->err.text);
}

/* One weight that all four ranks hold, two on a host. */
START_TEST(a_node_receives_a_weight_once_and_each_of_its_ranks_a_part)
{
	struct pair_world pair;
	const uint64_t bytes = 512 * 512 * 2;

	pair_open(&pair, TENSOR("w", "[512,512]"), 2, "\"params\":[" SPLIT("w") "]", 4,
		  "\"params\":[" WHOLE("w") "]");
	pair.input.places = places_make(&pair, 2, 4, 2);
	pair.input.rules.fanout = FANOUT_NODE;
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	const struct plan_totals *totals = plan_totals(all);
	ck_assert_uint_eq(totals->bytes, 4 * bytes);
	ck_assert_uint_eq(totals->forward_bytes, 2 * bytes);
	ck_assert_uint_eq(totals->trainer_min, bytes / 2);
	ck_assert_uint_eq(totals->trainer_max, bytes / 2);
	ck_assert_uint_eq(totals->receive_min, bytes);
	ck_assert_uint_eq(totals->receive_max, bytes);
	for (uint32_t node = 2; node < 6; node += 2) {
		ck_assert_uint_eq(pair_bytes(all, node, node + 1), bytes / 2);
		ck_assert_uint_eq(pair_bytes(all, node + 1, node), bytes / 2);
	}
	ck_assert_uint_eq(pair_bytes(all, 3, 4), 0);
	check(&pair, all);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* Rank 0 of the node has a weight of its own as large as a third of the shared one. */
START_TEST(who_receives_more_of_its_own_receives_less_of_what_is_shared)
{
	struct pair_world pair;
	const uint64_t rows = 1024 * 2;

	pair_open(
		&pair, TENSOR("own", "[256,1024]") "," TENSOR("shared", "[768,1024]"), 1,
		"\"params\":[" WHOLE("own") "," WHOLE("shared") "]", 2,
		"\"params\":[" WHOLE(
			"shared") "],\"rows\":[{\"t\":\"own\",\"rank\":0,\"goff\":[0,0],\"lshape\":[256,1024]}]");
	pair.input.places = places_make(&pair, 1, 2, 2);
	pair.input.rules.fanout = FANOUT_NODE;
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->trainer_min, 512 * rows);
	ck_assert_uint_eq(plan_totals(all)->trainer_max, 512 * rows);
	ck_assert_uint_eq(pair_bytes(all, 1, 2), 256 * rows);
	ck_assert_uint_eq(pair_bytes(all, 2, 1), 512 * rows);
	check(&pair, all);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* In replica 1 the ranks are on other hosts: only those that share one in both are a node. */
START_TEST(a_node_is_whose_ranks_share_a_host_in_every_replica)
{
	struct pair_world pair;

	pair_open(&pair, TENSOR("w", "[512,512]"), 1, "\"params\":[" WHOLE("w") "]", 4,
		  "\"params\":[" WHOLE("w") "]");
	replicas_set(&pair, 2);
	struct place *places = places_make(&pair, 1, 4, 4);
	for (uint32_t rank = 0; rank < 4; rank++)
		snprintf(places[5 + rank].host, sizeof(places->host), "other-%u", rank / 2);
	pair.input.places = places;
	pair.input.rules.fanout = FANOUT_NODE;
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->forward_bytes, plan_totals(all)->bytes / 2);
	ck_assert_uint_eq(pair_bytes(all, 1, 2), 256 * 512 * 2);
	ck_assert_uint_eq(pair_bytes(all, 2, 3), 0);
	ck_assert_uint_eq(pair_bytes(all, 1, 6), 0);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* Columns of a wider param are no plain write: trainers write them to each rank. */
START_TEST(what_lies_strided_is_left_to_the_trainers)
{
	struct pair_world pair;

	pair_open(&pair, TENSOR("a", "[512,512]") "," TENSOR("b", "[512,512]"), 1,
		  "\"params\":[" WHOLE("a") "," WHOLE("b") "]", 2,
		  "\"params\":[{\"p\":\"ab\",\"x\":[\"c\",1,[\"t\",\"a\"],[\"t\",\"b\"]]}]");
	pair.input.places = places_make(&pair, 1, 2, 2);
	pair.input.rules.fanout = FANOUT_NODE;
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	ck_assert_uint_eq(plan_totals(all)->forward_bytes, 0);
	plan_free(all);
	/* From replica to replica the param lies alike: it goes whole. */
	replicas_set(&pair, 2);
	pair.input.places = places_make(&pair, 1, 2, 2);
	pair.input.rules.fanout = FANOUT_REPLICA;
	all = pair_plan(&pair, PLAN_ALL);
	check(&pair, all);
	ck_assert_uint_eq(plan_totals(all)->forward_bytes, plan_totals(all)->bytes / 2);
	plan_free(all);
	struct plan *plan = pair_plan(&pair, 1);
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	ck_assert(plan_next_send(plan, &cursor, &copy));
	ck_assert_uint_eq(copy.bytes, 2 * 512 * 512 * 2);
	ck_assert_int_eq(copy.ring, -1);
	ck_assert(!copy.gather);
	ck_assert(!plan_next_send(plan, &cursor, &copy));
	plan_free(plan);
	pair_close(&pair);
}
END_TEST

START_TEST(replicas_are_a_chain_that_trainers_feed_at_one_end)
{
	struct pair_world pair;

	pair_open(&pair, TENSOR("w", "[512,512]"), 2, "\"params\":[" SPLIT("w") "]", 2,
		  "\"params\":[" SPLIT("w") "]");
	replicas_set(&pair, 4);
	pair.input.rules.fanout = FANOUT_REPLICA;
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	const uint64_t half = 256 * 512 * 2;
	for (uint32_t i = 0; i < plan_send_pair_count(all); i++) {
		const struct plan_pair *one = plan_send_pair(all, i);
		ck_assert(one->feeds);
		ck_assert_uint_eq(one->bytes, half);
		ck_assert_uint_eq(one->receiver - one->sender, 2);
	}
	ck_assert_uint_eq(plan_send_pair_count(all), 8);
	ck_assert_uint_eq(plan_totals(all)->forward_bytes, 6 * half);
	check(&pair, all);
	plan_free(all);
	pair_close(&pair);
}
END_TEST

/* Breaks one thing about a rollout's forwards: the checker must see it. */
START_TEST(a_wrong_forward_is_seen)
{
	struct pair_world pair;

	pair_open(&pair, TENSOR("w", "[512,512]") "," TENSOR("v", "[512,512]"), 2,
		  "\"params\":[" SPLIT("w") "," SPLIT("v") "]", 2,
		  "\"params\":[" WHOLE("w") "," WHOLE("v") "]");
	pair.input.places = places_make(&pair, 2, 2, 2);
	pair.input.rules.fanout = FANOUT_NODE;
	struct plan *plan = pair_plan(&pair, 2);
	check(&pair, plan);
	struct pair_state *back = plan_pair_state(plan, 2);
	ck_assert_uint_eq(back->pair.sender, 3);
	struct pair_state *feeder = plan_pair_state(plan, 0);
	ck_assert_uint_eq(feeder->pair.sender, 0);
	for (uint32_t i = 0; i < plan_send_pair_count(plan); i++) {
		struct pair_state *state = plan_pair_state(plan, plan->send_first + i);
		struct segment *segment = plan_segment(plan, state->instances[0].segment);
		struct stored_copy *copy = plan_stored_copy(plan, segment->copy_first);
		switch (_i) {
		case 0: /* forwards what the other one forwards to it */
			plan_stored_part(plan, copy, 0)->src_offset ^= 256 * 512 * 2;
			break;
		case 1:
			copy->ring = 0;
			break;
		case 2:
			back->pair.feeds = true; /* each would wait for the other */
			break;
		case 3:
			feeder->pair.feeds = false; /* nobody would wait for its bytes */
			break;
		}
	}
	digests_renew(plan);
	ck_assert_int_eq(plan_check(plan, &pair.findings, &pair.err), -EINVAL);
	plan_free(plan);
	pair_close(&pair);
}
END_TEST

/*
 * The reference job's rollout in FP8 (32 ranks, 8 on a host): experts are split, all else is on
 * each rank.  What a NIC receives falls from about 46 to 34 GB (design.md 5).
 */
START_TEST(kimi_k2_lowers_what_a_nic_receives_from_46_to_34_gb)
{
	struct pair_world pair;

	pair_open_quant(&pair, "kimi-k2", 1, "fsdp2", "dp=4", "sglang",
			"tp=32,dp=32,ep=32,moe_dense_tp=1,shared_tp=1,dp_lm_head=1", "fp8-block",
			1);
	struct plan *none = pair_plan(&pair, PLAN_ALL);
	pair.input.places = places_make(&pair, 4, 32, 8);
	pair.input.rules.fanout = FANOUT_NODE;
	struct plan *node = pair_plan(&pair, PLAN_ALL);
	const struct plan_totals *totals = plan_totals(node);
	uint64_t all = plan_totals(none)->receive_max;
	/* Of what is shared each rank sends what it got to seven others. */
	uint64_t shared = totals->forward_bytes / 32 / 7 * 8;
	ck_assert_uint_eq(totals->receive_max, all);
	ck_assert_msg((all + 500000000) / 1000000000 == 46, "all is %" PRIu64, all);
	ck_assert_msg((totals->trainer_max + 500000000) / 1000000000 == 34, "a NIC gets %" PRIu64,
		      totals->trainer_max);
	uint64_t even = all - shared + shared / 8;
	ck_assert_msg(totals->trainer_max <= even + even / 200,
		      "the busiest NIC gets %" PRIu64 ", evenly it were %" PRIu64,
		      totals->trainer_max, even);
	ck_assert_uint_eq(totals->senders_idle, 0);
	plan_free(none);
	plan_free(node);
	struct plan *member = pair_plan(&pair, 4 + 9);
	check(&pair, member);
	ck_assert_uint_eq(plan_send_pair_count(member), 7);
	plan_free(member);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_fanout");
	TCase *node = tcase_create("node");
	TCase *chain = tcase_create("replica");
	TCase *real = tcase_create("real");

	tcase_add_test(node, a_node_receives_a_weight_once_and_each_of_its_ranks_a_part);
	tcase_add_test(node, who_receives_more_of_its_own_receives_less_of_what_is_shared);
	tcase_add_test(node, a_node_is_whose_ranks_share_a_host_in_every_replica);
	tcase_add_test(node, what_lies_strided_is_left_to_the_trainers);
	tcase_add_loop_test(node, a_wrong_forward_is_seen, 0, 4);
	tcase_add_test(chain, replicas_are_a_chain_that_trainers_feed_at_one_end);
	tcase_add_test(real, kimi_k2_lowers_what_a_nic_receives_from_46_to_34_gb);
	tcase_set_timeout(real, 240);
	suite_add_tcase(tests, node);
	suite_add_tcase(tests, chain);
	suite_add_tcase(tests, real);
	return tests;
}
