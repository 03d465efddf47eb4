/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A quantized plan with one wrong number doesn't pass the check: what is wrong with its digests as
 * they were, and what was planned wrong from the start.  Only what changes nothing may pass:
 * that every element still has the entry that it had is found here element by element.
 */
#include <errno.h>
#include <string.h>

#include "tests/plan_wrong.h"
#include "tests/shards_world.h"
#include "tests/test.h"

#define SEEDS 150
#define TURNS 60

struct mutations {
	struct shards_world shards;
	uint64_t state;
	struct plan *plan; /* owned */
	struct ws_error err;
	/* The copy and part at hand, or the local. */
	struct stored_copy *copy;
	struct plan_part *part;
	struct stored_local *local;
	struct plan_blocks blocks;
	struct block_turn turn;
	const struct plan_blocks *blocks_before;
	const struct block_turn *turn_before;
	struct fields fields;
};

static uint32_t below(struct mutations *m, size_t limit)
{
	m->state = mix64(m->state + 0x9e3779b97f4a7c15ull);
	return (uint32_t)(m->state % limit);
}

static void blocks_fields(struct mutations *m, struct plan_blocks *blocks, uint32_t dim_count)
{
	FIELD(&m->fields, blocks, table_offset);
	for (uint32_t d = 0; d < dim_count; d++) {
		FIELD(&m->fields, blocks, each[d]);
		FIELD(&m->fields, blocks, first[d]);
		FIELD(&m->fields, blocks, stride[d]);
	}
}

/* A part of the plan, with blocks and turn of its own: it shares them with others. */
static void part_choose(struct mutations *m)
{
	uint32_t index = below(m, plan_stored_count(m->plan));

	m->local = NULL;
	m->copy = plan_stored_copy(m->plan, index);
	uint32_t place = below(m, m->copy->part_count);
	m->part = plan_stored_part(m->plan, m->copy, place);
	m->blocks_before = m->part->blocks;
	m->turn_before = m->copy->turn;
	struct plan_part *part = m->part;
	struct part_rules *rules = (struct part_rules *)m->plan->part_rules.items;
	part_fields(&m->fields, part, &rules[m->copy->part_first + place]);
	if (part->blocks != NULL) {
		m->blocks = *part->blocks;
		part->blocks = &m->blocks;
		blocks_fields(m, &m->blocks, part->dim_count);
	}
	if (m->copy->turn != NULL) {
		m->turn = *m->copy->turn;
		m->copy->turn = &m->turn;
		struct block_turn *turn = &m->turn;
		FIELD(&m->fields, turn, each);
		FIELD(&m->fields, turn, first);
		FIELD(&m->fields, turn, step);
		FIELD(&m->fields, turn, stride);
		FIELD(&m->fields, turn, dim);
	}
}

static void local_choose(struct mutations *m)
{
	m->part = NULL;
	m->local = (struct stored_local *)m->plan->locals.items + below(m, m->plan->locals.count);
	struct stored_local *stored = m->local;
	struct plan_local *local = &stored->local;
	FIELD(&m->fields, stored, rule);
	FIELD(&m->fields, stored, each);
	FIELD(&m->fields, local, param);
	FIELD(&m->fields, local, src_offset);
	FIELD(&m->fields, local, from);
	for (uint32_t d = 0; d < local->dim_count; d++) {
		FIELD(&m->fields, local, extent[d]);
		FIELD(&m->fields, local, src_stride[d]);
	}
	blocks_fields(m, &local->blocks, local->dim_count);
}

/* What stands beside copies: pairs and tables. */
static void around_choose(struct mutations *m)
{
	struct plan *plan = m->plan;
	struct pair_state *state = plan_pair_state(plan, below(m, plan->pairs.count));
	struct instance *instance = &state->instances[below(m, state->instance_count)];
	struct plan_pair *pair = &state->pair;
	uint32_t trainer = below(m, plan->trainer_count);

	m->part = NULL;
	m->local = NULL;
	FIELD(&m->fields, pair, inbox_bytes);
	FIELD(&m->fields, instance, inbox_base);
	struct segment *segment = plan_segment(plan, instance->segment);
	FIELD(&m->fields, segment, of_tables);
	struct trainer_tables *tables = &plan->tables[trainer];
	bool seen = plan->self == PLAN_ALL || plan->self == trainer;
	if (!tables->known || tables->count == 0 || !seen)
		return;
	struct plan_table *table = &tables->list[below(m, tables->count)];
	FIELD(&m->fields, table, first);
	FIELD(&m->fields, table, kind);
	FIELD(&m->fields, table, param);
	FIELD(&m->fields, tables, bucket[below(m, plan->bucket_count + 1ul)]);
}

static void restore(struct mutations *m)
{
	if (m->part == NULL)
		return;
	m->part->blocks = m->blocks_before;
	m->copy->turn = m->turn_before;
}

/* ---- What may pass. */
static uint64_t entry_of(const struct plan_blocks *blocks, const uint64_t *at, uint32_t dim_count)
{
	uint64_t entry = blocks->table_offset;

	for (uint32_t d = 0; d < dim_count; d++)
		entry += (blocks->first[d] + at[d]) / MAX(blocks->each[d], 1) *
			 (uint64_t)blocks->stride[d] * 4;
	return entry;
}

/* Whether each element has the same entry by both. */
static bool same_entries(const struct plan_blocks *a, const struct plan_blocks *b,
			 const uint64_t *extent, uint32_t dim_count)
{
	uint64_t at[BOX_DIM_MAX] = {0};
	bool more = true;

	for (uint32_t d = 0; d < dim_count; d++)
		if (a->each[d] == 0 || b->each[d] == 0)
			return false;
	while (more) {
		if (entry_of(a, at, dim_count) != entry_of(b, at, dim_count))
			return false;
		more = false;
		for (uint32_t d = dim_count; d > 0 && !more; d--) {
			more = ++at[d - 1] < extent[d - 1];
			if (!more)
				at[d - 1] = 0;
		}
	}
	return true;
}

/* Blocks that give what they gave, or a stride along one element; and more may be found or told
 * than must be. */
static bool changes_nothing(const struct mutations *m, const struct field *field,
			    const struct plan_blocks *blocks_were,
			    const struct block_turn *turn_was)
{
	const struct plan_part *part = m->part;
	const struct plan_local *local = m->local == NULL ? NULL : &m->local->local;
	uint32_t dims = local != NULL ? local->dim_count : part == NULL ? 0 : part->dim_count;
	const uint64_t *extent = local != NULL ? local->extent : part == NULL ? NULL : part->extent;

	for (uint32_t d = 0; d < dims && d < BOX_DIM_MAX; d++) {
		const int64_t *src = local != NULL ? &local->src_stride[d] : &part->src_stride[d];
		bool stride =
			field->at == src || (part != NULL && field->at == &part->dst_stride[d]);
		if (stride && extent[d] == 1)
			return true;
		if (field->at == &extent[d] && (local != NULL || part->kind == PART_MAXIMA))
			return true;
	}
	if (part != NULL && field->at == &part->whole && !part->whole)
		return true; /* two passes are always right */
	if (local != NULL && strncmp(field->name, "blocks.", 7) == 0)
		return same_entries(&local->blocks, blocks_were, extent, dims);
	if (part == NULL || part->blocks == NULL ||
	    (strncmp(field->name, "blocks.", 7) != 0 && strncmp(field->name, "turn.", 5) != 0))
		return false;
	for (uint32_t r = 0; r < m->copy->repeat; r++) {
		struct plan_blocks a = *part->blocks, b = *blocks_were;
		if (m->copy->turn != NULL && m->copy->turn->dim >= dims &&
		    m->copy->turn->dim != NONE)
			return false;
		if (m->copy->turn != NULL) {
			plan_blocks_turn(&a, m->copy->turn, r);
			plan_blocks_turn(&b, turn_was, r);
		}
		if (!same_entries(&a, &b, extent, dims))
			return false;
	}
	return true;
}

/* The plan of a trainer, or of a rollout, or now and then of all. */
static void plan_open(struct mutations *m, uint32_t seed, bool trains)
{
	memset(m, 0, sizeof(*m));
	m->state = seed;
	shards_open(&m->shards, seed);
	uint32_t trainers = m->shards.a * m->shards.b;
	uint32_t rollouts = m->shards.ranks * m->shards.input.replica_count;
	uint32_t self = trains ? below(m, trainers) : trainers + below(m, rollouts);
	if (seed % 5 == 4)
		self = PLAN_ALL;
	ck_ok(plan_make(&m->plan, &m->shards.input, self, NULL, &m->err), m->err);
	ck_ok(plan_check(m->plan, NULL, &m->err), m->err);
}

static void plan_close(struct mutations *m)
{
	plan_free(m->plan);
	shards_close(&m->shards);
}

/* One field of a part, a local, or what is around, is more by one or by an entry. */
static void one_wrong(struct mutations *m, bool renew)
{
	struct plan *plan = m->plan;
	uint32_t what = below(m, 4);

	m->fields.count = 0;
	if (what == 0 && plan->locals.count > 0)
		local_choose(m);
	else if (what == 1)
		around_choose(m);
	else if (plan_stored_count(plan) > 0)
		part_choose(m);
	else
		return;
	const struct field *field = &m->fields.list[below(m, m->fields.count)];
	struct plan_blocks blocks_were = m->local != NULL ? m->local->local.blocks : m->blocks;
	struct block_turn turn_was = m->turn;
	uint8_t before[8];
	memcpy(before, field->at, field->bytes);
	field_change(field, field->bytes == 8 && below(m, 2) == 0 ? 4 : 1);
	if (renew)
		digests_renew(plan);
	int rc = plan_check(plan, NULL, &m->err);
	bool digested = !renew && m->local == NULL;
	ck_assert_msg(rc == -EINVAL ||
			      (!digested && changes_nothing(m, field, &blocks_were, &turn_was)),
		      "'%s' may be more at member %u (%s)", field->name, plan->self,
		      m->part != NULL ? "part" : "local");
	memcpy(field->at, before, field->bytes);
	restore(m);
	if (renew)
		digests_renew(plan);
}

static void wrong_one_by_one(uint32_t seed, bool renew)
{
	struct mutations m;

	plan_open(&m, seed, seed % 2 == 0);
	for (uint32_t turn = 0; turn < TURNS; turn++)
		one_wrong(&m, renew);
	ck_ok(plan_check(m.plan, NULL, &m.err), m.err);
	plan_close(&m);
}

START_TEST(a_quantized_plan_with_one_wrong_field_is_rejected)
{
	wrong_one_by_one((uint32_t)_i, false);
}
END_TEST

START_TEST(what_was_planned_wrong_is_rejected_by_what_it_would_do)
{
	wrong_one_by_one((uint32_t)_i, true);
}
END_TEST

/* Each local is needed: without it a block that is sent isn't known whole, or one is told that was
 * never looked through. */
START_TEST(a_box_that_nobody_looks_through_is_missed)
{
	uint32_t met = 0;

	for (uint32_t seed = 0; seed < SEEDS; seed++) {
		struct mutations m;
		plan_open(&m, seed, true);
		struct stored_local *locals = m.plan->locals.items;
		/* Another one twice: as many, but not all. */
		for (size_t i = 0; m.plan->locals.count > 1 && i < m.plan->locals.count; i++) {
			struct stored_local before = locals[i];
			locals[i] = locals[i == 0 ? 1 : i - 1];
			ck_assert_msg(plan_check(m.plan, NULL, &m.err) == -EINVAL,
				      "seed %u: local %zu isn't missed", seed, i);
			locals[i] = before;
			met++;
		}
		ck_ok(plan_check(m.plan, NULL, &m.err), m.err);
		plan_close(&m);
	}
	ck_assert_uint_gt(met, SEEDS / 2);
}
END_TEST

/* Rows that lie one behind the other under one scale, as one dim without its last element. */
static bool shorten(struct plan_local *local)
{
	if (local->dim_count != 2 || local->extent[0] < 2 ||
	    local->src_stride[0] != local->src_stride[1] * (int64_t)local->extent[1] ||
	    local->blocks.stride[0] != 0 || local->blocks.stride[1] != 0)
		return false;
	local->dim_count = 1;
	local->extent[0] = local->extent[0] * local->extent[1] - 1;
	local->src_stride[0] = local->src_stride[1];
	return true;
}

START_TEST(a_box_that_ends_in_mid_row_is_no_box)
{
	uint32_t met = 0;

	for (uint32_t seed = 0; seed < SEEDS; seed++) {
		struct mutations m;
		plan_open(&m, seed, true);
		struct stored_local *locals = m.plan->locals.items;
		for (size_t i = 0; i < m.plan->locals.count; i++) {
			struct stored_local before = locals[i];
			if (!shorten(&locals[i].local))
				continue;
			ck_assert_msg(plan_check(m.plan, NULL, &m.err) == -EINVAL,
				      "seed %u: the end of local %zu isn't missed", seed, i);
			locals[i] = before;
			met++;
		}
		ck_ok(plan_check(m.plan, NULL, &m.err), m.err);
		plan_close(&m);
	}
	ck_assert_uint_gt(met, 5);
}
END_TEST

/* The maxima that one trainer is told by another in a kind; NULL: none, or of other sizes. */
static struct plan_part *two_told(struct plan *plan, const struct pair_state *state, uint32_t kind)
{
	if (state->segments[kind] == 0 || state->pair.receiver >= plan->trainer_count ||
	    (plan->self != PLAN_ALL && plan->self != state->pair.receiver))
		return NULL;
	const struct segment *segment = plan_segment(plan, state->segments[kind] - 1);
	struct stored_copy *copy = plan_stored_copy(plan, segment->copy_first);
	struct plan_part *parts = plan_stored_part(plan, copy, 0);
	return copy->part_count > 1 && parts[0].dim_count == parts[1].dim_count &&
			       memcmp(parts[0].extent, parts[1].extent, sizeof(parts->extent)) == 0
		       ? parts
		       : NULL;
}

/* Maxima of one box told twice, in place of another of the same size: all numbers are right, and
 * who was to be told misses it. */
START_TEST(maxima_that_nobody_tells_are_missed)
{
	uint32_t met = 0;

	for (uint32_t seed = 0; seed < 4 * SEEDS; seed++) {
		struct mutations m;
		plan_open(&m, seed, true);
		for (size_t i = 0; i < m.plan->pairs.count * m.plan->kind_count; i++) {
			uint32_t pair = (uint32_t)i / m.plan->kind_count;
			struct plan_part *parts = two_told(m.plan, plan_pair_state(m.plan, pair),
							   (uint32_t)i % m.plan->kind_count);
			if (parts == NULL)
				continue;
			struct plan_part before = parts[1];
			parts[1] = parts[0];
			parts[1].wire_offset = before.wire_offset;
			digests_renew(m.plan);
			ck_assert_msg(plan_check(m.plan, NULL, &m.err) == -EINVAL,
				      "seed %u: pair %u isn't missed", seed, pair);
			parts[1] = before;
			digests_renew(m.plan);
			met++;
		}
		ck_ok(plan_check(m.plan, NULL, &m.err), m.err);
		plan_close(&m);
	}
	ck_assert_uint_gt(met, 5);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_maxima_mutations");
	TCase *random = tcase_create("random layouts");

	tcase_set_timeout(random, 120);
	tcase_add_loop_test(random, a_quantized_plan_with_one_wrong_field_is_rejected, 0, SEEDS);
	tcase_add_loop_test(random, what_was_planned_wrong_is_rejected_by_what_it_would_do, 0,
			    SEEDS);
	tcase_add_test(random, a_box_that_nobody_looks_through_is_missed);
	tcase_add_test(random, a_box_that_ends_in_mid_row_is_no_box);
	tcase_add_test(random, maxima_that_nobody_tells_are_missed);
	suite_add_tcase(tests, random);
	return tests;
}
