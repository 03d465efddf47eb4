/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner's promises on random models and layouts: carrying the plan out on id-coded memory
 * gives what the oracle of gen.c says, both ends agree on everything, and a plan with one wrong
 * number doesn't pass the check.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "lib/convert/convert.h"
#include "tests/plan_digests.h"
#include "tests/plan_world.h"
#include "tests/test.h"

#define SEEDS	     48
#define CONTENT_EACH 50
#define CONTENT_RUNS 40

/* Source to wire, or wire to target. */
static void move_part(const struct plan_part *part, const uint8_t *src, uint8_t *dst, bool to_wire)
{
	struct move move = {.dim_count = part->dim_count,
			    .from = to_wire ? part->from : part->to,
			    .to = part->to};
	int64_t next = (int64_t)ws_dtype_bytes(part->to);

	for (uint32_t d = part->dim_count; d > 0; d--) {
		move.extent[d - 1] = part->extent[d - 1];
		move.src_stride[d - 1] = to_wire ? part->src_stride[d - 1] : next;
		move.dst_stride[d - 1] = to_wire ? next : part->dst_stride[d - 1];
		next *= (int64_t)part->extent[d - 1];
	}
	move.src = src;
	move.dst = dst;
	convert_move(&move);
}

/* One copy, by way of a wire image; a direct one lands as bytes. */
static void carry_out(struct world *world, const struct plan_copy *copy)
{
	static uint8_t wire[1u << 20];
	uint8_t **from = world->memory[copy->sender], **to = world->memory[copy->receiver];
	const struct plan_part *first = &copy->parts[0];

	ck_assert_uint_le(copy->bytes, sizeof(wire));
	if (copy->gather) {
		for (uint32_t i = 0; i < copy->part_count; i++)
			move_part(&copy->parts[i],
				  from[copy->parts[i].src_param] + copy->parts[i].src_offset,
				  wire + copy->parts[i].wire_offset, true);
	} else {
		memcpy(wire, from[first->src_param] + first->src_offset, copy->bytes);
	}
	if (copy->ring < 0) {
		memcpy(to[first->dst_param] + first->dst_offset, wire, copy->bytes);
		return;
	}
	for (uint32_t i = 0; i < copy->part_count; i++)
		move_part(&copy->parts[i], wire + copy->parts[i].wire_offset,
			  to[copy->parts[i].dst_param] + copy->parts[i].dst_offset, false);
}

static void compare_param(const struct world *world, uint32_t member, uint32_t param,
			  const uint32_t *ids)
{
	const struct param *of = &world->params[member].params[param];
	uint64_t bytes = ws_dtype_bytes(of->dtype);

	for (uint64_t i = 0; i < of->form->element_count; i++) {
		uint8_t want[8];
		memset(want, POISON, sizeof(want));
		if (ids[i] != 0)
			gen_value(ids[i], of->dtype, want);
		if (memcmp(want, world->memory[member][param] + i * bytes, bytes) != 0)
			ck_abort_msg("member %u, '%s', element %" PRIu64 " isn't id %u", member,
				     of->name, i, ids[i]);
	}
}

/* Every element is the oracle's in each replica; zero fill was never touched. */
static void compare(struct world *world, uint32_t rank)
{
	const struct rank_params *params = &world->params[world->trainers + rank];

	for (uint32_t p = 0; p < params->count; p++) {
		enum ws_dtype dtype;
		uint64_t count;
		const uint32_t *ids = gen_ids(&world->gen, GEN_ROLLOUT, rank,
					      params->params[p].name, &count, &dtype);
		ck_assert_uint_eq(count, params->params[p].form->element_count);
		for (uint32_t m = world->trainers + rank; m < world->members; m += world->ranks)
			compare_param(world, m, p, ids);
	}
}

/* A member's sends, one behind the other, and what has come to it. */
struct actor {
	struct plan_cursor cursor;
	struct plan_copy next;
	bool more;
	uint32_t **left; /* by receive pair and counter: ops still to come */
};

static struct actor *actors_make(struct world *world)
{
	struct actor *actors = arena_array(&world->arena, world->members, sizeof(*actors));

	for (uint32_t m = 0; m < world->members; m++) {
		struct actor *actor = &actors[m];
		const struct plan *plan = world->plans[m];
		uint32_t pairs = plan_receive_pair_count(plan);
		actor->left = arena_array(&world->arena, pairs, sizeof(*actor->left));
		for (uint32_t i = 0; i < pairs; i++) {
			const struct plan_pair *pair = plan_receive_pair(plan, i);
			actor->left[i] =
				arena_array(&world->arena, pair->counter_count, sizeof(uint32_t));
			for (uint32_t c = 0; c < pair->counter_count; c++)
				actor->left[i][c] = pair->counters[c].op_count -
						    world->input.rules.wire_digests;
		}
		actor->more = plan_next_send(plan, &actor->cursor, &actor->next);
	}
	return actors;
}

/* Trainers may always send; a rollout when all that feeds the bucket has come. */
static bool may_send(const struct world *world, const struct actor *actor)
{
	const struct plan *plan = world->plans[actor->next.sender];

	for (uint32_t i = 0; i < plan_receive_pair_count(plan); i++) {
		const struct plan_pair *pair = plan_receive_pair(plan, i);
		for (uint32_t c = 0; pair->feeds && c < pair->counter_count; c++)
			if (pair->counters[c].bucket == actor->next.bucket && actor->left[i][c] > 0)
				return false;
	}
	return true;
}

static void arrive(const struct world *world, struct actor *actors, const struct plan_copy *copy)
{
	const struct plan *plan = world->plans[copy->receiver];

	for (uint32_t i = 0; i < plan_receive_pair_count(plan); i++)
		if (plan_receive_pair(plan, i)->sender == copy->sender) {
			ck_assert_uint_ge(actors[copy->receiver].left[i][copy->counter],
					  copy->op_count);
			actors[copy->receiver].left[i][copy->counter] -= copy->op_count;
			return;
		}
	ck_abort_msg("member %u doesn't know that %u writes to it", copy->receiver, copy->sender);
}

/* In an order that the counters allow, last members first, until nobody can go on. */
static void carry_out_all(struct world *world)
{
	struct actor *actors = actors_make(world);
	bool any = true;

	while (any) {
		any = false;
		for (uint32_t m = world->members; m-- > 0;) {
			struct actor *actor = &actors[m];
			if (!actor->more || !may_send(world, actor))
				continue;
			carry_out(world, &actor->next);
			arrive(world, actors, &actor->next);
			actor->more = plan_next_send(world->plans[m], &actor->cursor, &actor->next);
			any = true;
		}
	}
	for (uint32_t m = 0; m < world->members; m++)
		ck_assert_msg(!actors[m].more, "member %u waits for ever", m);
}

/* Run i takes a stretch of seeds, so that thousands cost no fork each. */
START_TEST(carrying_out_the_plan_gives_what_the_oracle_says)
{
	for (uint32_t i = 0; i < CONTENT_EACH; i++) {
		struct world world;
		world_open(&world, (uint32_t)_i * CONTENT_EACH + i);
		world_memory(&world);
		carry_out_all(&world);
		for (uint32_t rank = 0; rank < world.ranks; rank++)
			compare(&world, rank);
		world_close(&world);
	}
}
END_TEST

START_TEST(the_checker_agrees_with_the_planner)
{
	struct world world;

	world_open(&world, (uint32_t)_i);
	for (uint32_t m = 0; m < world.members; m++)
		ck_ok(plan_check(world.plans[m], NULL, &world.err), world.err);
	ck_ok(plan_check(world.all, NULL, &world.err), world.err);
	world_close(&world);
}
END_TEST

static const struct plan_pair *find_pair(const struct plan *plan, bool sends, uint32_t sender,
					 uint32_t receiver)
{
	uint32_t count = sends ? plan_send_pair_count(plan) : plan_receive_pair_count(plan);

	for (uint32_t i = 0; i < count; i++) {
		const struct plan_pair *pair =
			sends ? plan_send_pair(plan, i) : plan_receive_pair(plan, i);
		if (pair->sender == sender && pair->receiver == receiver)
			return pair;
	}
	return NULL;
}

START_TEST(both_ends_and_the_whole_plan_agree_on_each_pair)
{
	struct world world;
	uint32_t met = 0;

	world_open(&world, (uint32_t)_i);
	for (uint32_t s = 0; s < world.members; s++) {
		if (s < world.trainers)
			ck_assert_uint_eq(plan_receive_pair_count(world.plans[s]), 0);
		for (uint32_t i = 0; i < plan_send_pair_count(world.plans[s]); i++) {
			const struct plan_pair *mine = plan_send_pair(world.plans[s], i);
			const struct plan_pair *theirs =
				find_pair(world.plans[mine->receiver], false, s, mine->receiver);
			const struct plan_pair *alls =
				find_pair(world.all, true, s, mine->receiver);
			ck_assert_uint_eq(mine->sender, s);
			ck_assert(theirs != NULL && alls != NULL);
			ck_assert_uint_eq(mine->digest, theirs->digest);
			ck_assert_uint_eq(mine->digest, alls->digest);
			ck_assert_uint_eq(mine->op_count, theirs->op_count);
			ck_assert_uint_gt(mine->bytes, 0);
			met++;
		}
	}
	for (uint32_t m = world.trainers; m < world.members; m++)
		met -= plan_receive_pair_count(world.plans[m]);
	ck_assert_uint_eq(met, 0);
	ck_assert_uint_eq(plan_send_pair_count(world.all), plan_receive_pair_count(world.all));
	for (uint32_t m = 0; m < world.members; m++)
		ck_assert_uint_eq(plan_digest(world.plans[m]), plan_digest(world.all));
	world_close(&world);
}
END_TEST

static bool same_copy(const struct plan_copy *a, const struct plan_copy *b)
{
	bool same = a->bucket == b->bucket && a->sender == b->sender &&
		    a->receiver == b->receiver && a->bytes == b->bytes &&
		    a->first_op == b->first_op && a->op_count == b->op_count &&
		    a->counter == b->counter && a->gather == b->gather && a->ring == b->ring &&
		    a->part_count == b->part_count;

	for (uint32_t i = 0; same && i < a->part_count; i++)
		same = memcmp(&a->parts[i], &b->parts[i], sizeof(a->parts[i])) == 0;
	return same;
}

START_TEST(thresholds_are_what_the_senders_ops_add_up_to)
{
	struct world world;

	world_open(&world, (uint32_t)_i);
	uint32_t digests = world.input.rules.wire_digests ? 1 : 0;
	for (uint32_t m = world.trainers; m < world.members; m++) {
		struct plan_cursor mine = {0};
		struct plan_copy copy, sent;
		const struct plan *plan = world.plans[m];
		for (uint32_t i = 0; i < plan_receive_pair_count(plan); i++) {
			const struct plan_pair *pair = plan_receive_pair(plan, i);
			struct plan_cursor theirs = {0};
			uint64_t ops = 0, bytes = 0;
			uint32_t *counted =
				arena_array(&world.arena, pair->counter_count, sizeof(*counted));
			uint32_t rings = 0;
			while (plan_next_send(world.plans[pair->sender], &theirs, &sent)) {
				if (sent.receiver != m)
					continue;
				/* the sender's order within the pair is the receiver's */
				ck_assert(plan_next_receive(plan, &mine, &copy));
				ck_assert(same_copy(&copy, &sent));
				ck_assert_uint_eq(sent.first_op, ops);
				ck_assert_uint_eq(sent.op_count, (sent.bytes + 4095) / 4096);
				ops += sent.op_count;
				bytes += sent.bytes;
				counted[sent.counter] += sent.op_count;
				if (sent.ring >= 0)
					ck_assert_int_eq(sent.ring, rings++);
				ck_assert(sent.ring < 0 || sent.bytes <= plan_slot_bytes(plan));
			}
			for (uint32_t c = 0; c < pair->counter_count; c++)
				ck_assert_uint_eq(pair->counters[c].op_count, counted[c] + digests);
			ck_assert_uint_eq(pair->data_op_count, ops);
			ck_assert_uint_eq(pair->op_count, ops + digests * pair->counter_count);
			ck_assert_uint_eq(pair->bytes, bytes);
			ck_assert_uint_eq(pair->ring_count, rings);
			ck_assert_uint_eq(pair->credit_count, rings > 2 ? rings - 2 : 0);
		}
		ck_assert(!plan_next_receive(plan, &mine, &copy));
	}
	ck_assert_uint_le(plan_slot_bytes(world.all) * plan_slot_count(world.all) * world.trainers,
			  world.input.rules.recv_staging_bytes);
	world_close(&world);
}
END_TEST

START_TEST(the_same_inputs_give_the_same_plan_and_a_cursor_restarts)
{
	struct world one, two;

	world_open(&one, (uint32_t)_i);
	memset(&two, 0, sizeof(two));
	world_open(&two, (uint32_t)_i);
	for (uint32_t m = 0; m < one.members; m++) {
		struct plan_cursor a = {0}, b = {0};
		struct plan_copy x, y;
		ck_assert_uint_eq(plan_stored_count(one.plans[m]), plan_stored_count(two.plans[m]));
		while (plan_next_send(one.plans[m], &a, &x)) {
			ck_assert(plan_next_send(two.plans[m], &b, &y));
			ck_assert(same_copy(&x, &y));
		}
		struct plan_cursor again = {0};
		bool first = plan_next_send(one.plans[m], &again, &x);
		ck_assert(first == (plan_send_pair_count(one.plans[m]) > 0));
	}
	world_release(&two);
	world_close(&one);
}
END_TEST

START_TEST(bytes_are_conserved_and_buckets_in_order)
{
	struct world world;
	uint64_t sent = 0, needed = 0, forwarded = 0;

	world_open(&world, (uint32_t)_i);
	world_params(&world);
	for (uint32_t m = 0; m < world.members; m++) {
		struct plan_cursor cursor = {0};
		struct plan_copy copy;
		uint32_t bucket = 0;
		while (plan_next_send(world.plans[m], &cursor, &copy)) {
			ck_assert_uint_ge(copy.bucket, bucket);
			bucket = copy.bucket;
			for (uint32_t i = 0; i < copy.part_count; i++) {
				uint64_t bytes = ws_dtype_bytes(copy.parts[i].to);
				for (uint32_t d = 0; d < copy.parts[i].dim_count; d++)
					bytes *= copy.parts[i].extent[d];
				sent += bytes;
				forwarded += m < world.trainers ? 0 : bytes;
				ck_assert_uint_eq(copy.parts[i].wire_offset % 16, 0);
			}
		}
	}
	for (uint32_t m = world.trainers; m < world.members; m++)
		for (uint32_t p = 0; p < world.params[m].count; p++) {
			const struct param *param = &world.params[m].params[p];
			needed += param->form->covered_count * ws_dtype_bytes(param->dtype);
		}
	ck_assert_uint_eq(sent, needed);
	ck_assert_uint_eq(plan_totals(world.all)->bytes, needed);
	ck_assert_uint_eq(plan_totals(world.all)->forward_bytes, forwarded);
	world_close(&world);
}
END_TEST

/* All of a param's copies carry one bucket, on both sides: q_a and kv_a never part. */
START_TEST(a_param_is_never_torn_between_buckets)
{
	struct world world;

	world_open(&world, (uint32_t)_i);
	world_params(&world);
	for (uint32_t m = 0; m < world.trainers; m++) {
		struct plan_cursor cursor = {0};
		struct plan_copy copy;
		uint32_t *own = arena_array(&world.arena, world.params[m].count, sizeof(*own));
		while (plan_next_send(world.plans[m], &cursor, &copy))
			for (uint32_t i = 0; i < copy.part_count; i++) {
				uint32_t *mine = &own[copy.parts[i].src_param];
				ck_assert(*mine == 0 || *mine == copy.bucket + 1);
				*mine = copy.bucket + 1;
			}
	}
	for (uint32_t m = world.trainers; m < world.members; m++) {
		struct plan_cursor cursor = {0};
		struct plan_copy copy;
		uint32_t *own = arena_array(&world.arena, world.params[m].count, sizeof(*own));
		while (plan_next_receive(world.plans[m], &cursor, &copy))
			for (uint32_t i = 0; i < copy.part_count; i++) {
				uint32_t *mine = &own[copy.parts[i].dst_param];
				ck_assert(*mine == 0 || *mine == copy.bucket + 1);
				*mine = copy.bucket + 1;
			}
	}
	world_close(&world);
}
END_TEST

/* Who holds each element: a bit per trainer. */
static void holders_fill(struct world *world, uint16_t *holders)
{
	for (uint32_t m = 0; m < world->trainers; m++)
		for (uint32_t p = 0; p < world->params[m].count; p++) {
			enum ws_dtype dtype;
			uint64_t count;
			const uint32_t *ids =
				gen_ids(&world->gen, GEN_TRAINER, m,
					world->params[m].params[p].name, &count, &dtype);
			for (uint64_t i = 0; i < count; i++)
				holders[ids[i]] |= (uint16_t)(1u << m);
		}
}

/* The bytes that only the trainers of each set can send, one replica. */
static void bytes_fill(struct world *world, const uint16_t *holders, uint64_t *bytes)
{
	for (uint32_t rank = 0; rank < world->ranks; rank++) {
		const struct rank_params *params = &world->params[world->trainers + rank];
		for (uint32_t p = 0; p < params->count; p++) {
			enum ws_dtype dtype;
			uint64_t count;
			const uint32_t *ids = gen_ids(&world->gen, GEN_ROLLOUT, rank,
						      params->params[p].name, &count, &dtype);
			for (uint64_t i = 0; i < count; i++)
				if (ids[i] != 0)
					bytes[holders[ids[i]]] += ws_dtype_bytes(dtype);
		}
	}
}

/*
 * The best fractional assignment by max-flow's dual: the busiest of a set of trainers sends at
 * least what only that set holds, divided by its size.
 */
static double fractional_optimum(uint64_t *bytes, uint32_t trainers)
{
	double best = 0;

	for (uint32_t bit = 0; bit < trainers; bit++)
		for (uint32_t set = 0; set < 1u << trainers; set++)
			if ((set >> bit & 1) != 0)
				bytes[set] += bytes[set ^ 1u << bit];
	for (uint32_t set = 1; set < 1u << trainers; set++)
		best = MAX(best, (double)bytes[set] / __builtin_popcount(set));
	return best;
}

#define OPTIMUM_TRAINERS_MAX 12
#define ROWS_BYTES_MAX	     8192 /* a row per holder set can be on the wrong side of a border */

START_TEST(the_busiest_sender_is_near_the_fractional_optimum)
{
	struct world world;
	struct plan *plan;

	world_open(&world, (uint32_t)_i);
	if (world.trainers <= OPTIMUM_TRAINERS_MAX) {
		uint16_t *holders =
			arena_array(&world.arena, world.gen.id_count + 1, sizeof(*holders));
		uint64_t *bytes =
			arena_array(&world.arena, 1u << OPTIMUM_TRAINERS_MAX, sizeof(*bytes));
		world_params(&world);
		holders_fill(&world, holders);
		bytes_fill(&world, holders, bytes);
		double best = fractional_optimum(bytes, world.trainers) * world.input.replica_count;
		world.input.rules.run_bytes_min = 1;
		world.input.rules.fanout = FANOUT_NONE;
		ck_ok(plan_make(&plan, &world.input, PLAN_ALL, NULL, &world.err), world.err);
		double busiest = (double)plan_totals(plan)->send_max;
		ck_assert_msg(busiest <= 1.02 * best + ROWS_BYTES_MAX, "%f above %f", busiest,
			      best);
		ck_assert_msg(busiest >= best, "%f below the optimum %f", busiest, best);
		plan_free(plan);
	}
	world_close(&world);
}
END_TEST

/* Every allocation of our own door fails once, with a sentence and without a leak. */
START_TEST(any_allocation_may_fail)
{
	struct world world;
	int rc = -ENOMEM;

	world_open(&world, 1);
	const uint32_t selves[] = {0, world.members - 1, PLAN_ALL};
	uint32_t self = selves[_i];
	uint64_t live = mem_live_count();
	int64_t n = 0;
	for (; rc == -ENOMEM && n < 100000; n++) {
		struct plan *plan = NULL;
		mem_fail_nth(n);
		rc = plan_make(&plan, &world.input, self, NULL, &world.err);
		if (rc == 0)
			rc = plan_check(plan, NULL, &world.err);
		mem_fail_nth(-1);
		ck_assert_msg(rc == 0 || (rc == -ENOMEM && world.err.text[0] != '\0'),
			      "%" PRId64 ": %d", n, rc);
		plan_free(plan);
		ck_assert_uint_eq(mem_live_count(), live);
	}
	ck_assert_int_eq(rc, 0);
	ck_assert_int_gt(n, 20);
	world_close(&world);
}
END_TEST

START_TEST(the_seeds_have_forwards_of_both_kinds)
{
	uint32_t met[3] = {0};

	for (uint32_t seed = 0; seed < SEEDS; seed++) {
		struct world world;
		world_open(&world, seed);
		met[world.input.rules.fanout] += plan_totals(world.all)->forward_bytes > 0;
		world_close(&world);
	}
	ck_assert_uint_eq(met[FANOUT_NONE], 0);
	ck_assert_msg(met[FANOUT_NODE] >= SEEDS / 12 && met[FANOUT_REPLICA] >= SEEDS / 12,
		      "%u of node, %u of replica", met[FANOUT_NODE], met[FANOUT_REPLICA]);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_properties");
	TCase *random = tcase_create("random layouts");

	tcase_set_timeout(random, 120);
	tcase_add_loop_test(random, the_checker_agrees_with_the_planner, 0, SEEDS);
	tcase_add_loop_test(random, both_ends_and_the_whole_plan_agree_on_each_pair, 0, SEEDS);
	tcase_add_loop_test(random, thresholds_are_what_the_senders_ops_add_up_to, 0, SEEDS);
	tcase_add_loop_test(random, the_same_inputs_give_the_same_plan_and_a_cursor_restarts, 0,
			    SEEDS / 4);
	tcase_add_loop_test(random, bytes_are_conserved_and_buckets_in_order, 0, SEEDS);
	tcase_add_loop_test(random, a_param_is_never_torn_between_buckets, 0, SEEDS);
	tcase_add_loop_test(random, the_busiest_sender_is_near_the_fractional_optimum, 0, SEEDS);
	tcase_add_loop_test(random, any_allocation_may_fail, 0, 3);
	tcase_add_test(random, the_seeds_have_forwards_of_both_kinds);
	suite_add_tcase(tests, random);
	TCase *content = tcase_create("content");
	tcase_set_timeout(content, 300);
	tcase_add_loop_test(content, carrying_out_the_plan_gives_what_the_oracle_says, 0,
			    SANITIZED ? CONTENT_RUNS / 8 : CONTENT_RUNS);
	suite_add_tcase(tests, content);
	return tests;
}
