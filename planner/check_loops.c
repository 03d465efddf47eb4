/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the check that needs no elements: numbers that follow from copies, and layers.
 * A plan follows one layer of those alike; here every other one is looked at, param by param.
 */
#include <stdio.h>

#include "planner/check.h"

/* ---- Numbers of a segment, and of a pair in all its buckets. */

/* NULL, or what is wrong with a copy that stands behind what is summed up. */
static const char *copy_fault(const struct plan *plan, const struct stored_copy *copy,
			      const struct segment *sums)
{
	bool ring = copy->ring >= 0, maxima;
	uint32_t counters = sums->ring_count + (sums->direct_op_count > 0);

	if (copy->bytes == 0 || copy->part_count == 0 || copy->repeat == 0 ||
	    copy->part_first > plan->parts.count ||
	    copy->part_count > plan->parts.count - copy->part_first)
		return "a copy is empty";
	if (copy->repeat > 1 ? copy->part_count > 1 : copy->src_step != 0 || copy->dst_step != 0)
		return "a copy of several parts repeats";
	if (copy->op_bytes == 0 || copy->op_bytes > plan->input.rules.op_bytes ||
	    copy->op_bytes % WIRE_ALIGN != 0)
		return "a copy's ops are larger than the rules', or end anywhere";
	if (copy->op_count != (copy->bytes - 1) / copy->op_bytes + 1)
		return "a copy's ops aren't as many as its bytes need";
	if (copy->first_op != sums->op_count)
		return "a copy's op ids don't follow the copy before";
	if (copy->ring < -1 || (ring && (uint32_t)copy->ring != sums->ring_count))
		return "a ring number doesn't follow the one before";
	if (ring && copy->bytes > plan->slot_bytes)
		return "a ring copy is larger than a slot";
	maxima =
		((const struct plan_part *)plan->parts.items)[copy->part_first].kind == PART_MAXIMA;
	if (maxima && (ring || sums->copy_total > 0 || copy->repeat != 1))
		return "maxima aren't one copy";
	if (!ring && !maxima && (copy->part_count != 1 || sums->ring_count > 0))
		return "a copy has several parts, or comes after ring copies, and avoids the ring";
	if (copy->counter != (ring ? counters : 0))
		return "a copy's counter is another's";
	return NULL;
}

/* NULL, or what is wrong with a segment; *sums is what its copies add up to. */
static const char *segment_fault(const struct plan *plan, const struct segment *segment,
				 struct segment *sums)
{
	const struct stored_copy *copies = plan->copies.items;
	const struct plan_part *parts = plan->parts.items;

	*sums = (struct segment){0};
	if (segment->copy_first > plan->copies.count || segment->copy_count == 0 ||
	    segment->copy_count > plan->copies.count - segment->copy_first)
		return "it has copies that aren't there";
	for (uint32_t i = 0; i < segment->copy_count; i++) {
		const struct stored_copy *copy = &copies[segment->copy_first + i];
		const char *fault = copy_fault(plan, copy, sums);
		if (fault != NULL)
			return fault;
		uint64_t bytes = copy->bytes * copy->repeat;
		for (uint32_t p = 0; p < copy->part_count; p++) {
			const struct plan_part *part = &parts[copy->part_first + p];
			if (part->whole && part->kind != PART_CODES)
				return "what isn't of codes has whole blocks";
			sums->of_tables = sums->of_tables || part->kind != PART_CAST;
		}
		sums->op_count += (uint64_t)copy->op_count * copy->repeat;
		sums->bytes += bytes;
		sums->copy_total += copy->repeat;
		if (copy->ring >= 0) {
			sums->ring_count += copy->repeat;
			continue;
		}
		sums->direct_op_count += copy->op_count * copy->repeat;
		sums->direct_bytes += bytes;
		sums->direct_gather_bytes += copy->gather ? bytes : 0;
	}
	sums->counter_count = sums->ring_count + (sums->direct_op_count > 0);
	if (sums->op_count != segment->op_count || sums->bytes != segment->bytes ||
	    sums->counter_count != segment->counter_count ||
	    sums->ring_count != segment->ring_count || sums->copy_total != segment->copy_total ||
	    sums->direct_op_count != segment->direct_op_count ||
	    sums->direct_bytes != segment->direct_bytes || sums->of_tables != segment->of_tables ||
	    sums->direct_gather_bytes != segment->direct_gather_bytes)
		return "its sums aren't those of its copies";
	if (segment->digest != plan_segment_digest(plan, segment))
		return "its digest isn't that of its copies";
	return NULL;
}

static bool same_counter(const struct plan_counter *a, const struct plan_counter *b)
{
	return a->bucket == b->bucket && a->ring == b->ring && a->op_count == b->op_count &&
	       a->bytes == b->bytes && a->gather_bytes == b->gather_bytes;
}

/* Compares the rows of one instance with what its copies send; *rows_left shrinks by their
 * number.  The place behind them, or NULL. */
static const struct plan_counter *counters_follow(
	const struct plan *plan, const struct segment *segment, const struct segment *sums,
	const struct instance *instance, const struct plan_counter *row, uint32_t *rows_left)
{
	const struct stored_copy *copy =
		(const struct stored_copy *)plan->copies.items + segment->copy_first;
	uint32_t digests = plan->input.rules.wire_digests ? 1 : 0, ring = instance->ring_base;
	uint32_t direct = sums->direct_op_count > 0;
	bool all = plan->self == PLAN_ALL;
	uint32_t rows = all ? direct + (sums->ring_count > 0) : sums->counter_count;
	uint64_t gathered = 0;

	if (rows > *rows_left)
		return NULL;
	*rows_left -= rows;
	struct plan_counter want = {.bucket = instance->bucket,
				    .op_count = sums->direct_op_count + digests,
				    .ring = -1,
				    .bytes = sums->direct_bytes,
				    .gather_bytes = sums->direct_gather_bytes};
	if (direct && !same_counter(row++, &want))
		return NULL;
	for (uint32_t i = 0; i < segment->copy_count; i++, copy++) {
		if (copy->ring < 0)
			continue;
		want = (struct plan_counter){.bucket = instance->bucket,
					     .op_count = copy->op_count + digests,
					     .bytes = copy->bytes,
					     .gather_bytes = copy->gather ? copy->bytes : 0};
		gathered += want.gather_bytes * copy->repeat;
		for (uint32_t r = 0; !all && r < copy->repeat; r++) {
			want.ring = ring++;
			if (!same_counter(row++, &want))
				return NULL;
		}
	}
	want = (struct plan_counter){.bucket = instance->bucket,
				     .op_count =
					     (uint32_t)(sums->op_count - sums->direct_op_count) +
					     digests * sums->ring_count,
				     .ring = instance->ring_base,
				     .bytes = sums->bytes - sums->direct_bytes,
				     .gather_bytes = gathered};
	if (all && sums->ring_count > 0 && !same_counter(row++, &want))
		return NULL;
	return row;
}

/* Who feeds: a trainer, or a rank of an earlier replica.  So forwards never wait in a circle. */
static bool may_feed(const struct plan *plan, const struct plan_pair *pair)
{
	uint32_t trainers = plan->trainer_count, ranks = plan->rollout_count;

	return pair->receiver >= trainers &&
	       (pair->sender < trainers ||
		(pair->sender - trainers) / ranks < (pair->receiver - trainers) / ranks);
}

/* What a pair's instances add up to. */
struct sums {
	uint64_t bytes, ops, inbox;
	uint32_t rings, counters, rows_left;
};

static const char *pair_fault(const struct plan *plan, const struct pair_state *state,
			      const struct sums *sums)
{
	const struct plan_pair *pair = &state->pair;
	uint32_t digests = plan->input.rules.wire_digests ? 1 : 0;
	uint32_t slots = plan_slot_count(plan);
	uint32_t credits = sums->rings > slots ? sums->rings - slots : 0;

	if (pair->receiver >= plan->member_count || pair->receiver == pair->sender ||
	    (pair->receiver < plan->trainer_count &&
	     (pair->sender >= plan->trainer_count || plan->tables == NULL)))
		return "it sends where nobody receives";
	if (pair->inbox_bytes != sums->inbox)
		return "its inbox isn't of the size of its copies";
	if (plan->self != PLAN_ALL && pair->sender != plan->self && pair->receiver != plan->self)
		return "it isn't of the member that was planned for";
	if (pair->sender >= plan->trainer_count && plan->input.rules.fanout == FANOUT_NONE)
		return "a rollout sends though nothing is forwarded";
	if (pair->feeds && (plan->input.rules.fanout == FANOUT_NONE || !may_feed(plan, pair)))
		return "it would make forwards wait in a circle";
	if (pair->bytes != sums->bytes || pair->data_op_count != sums->ops)
		return "its bytes or ops aren't the sum of its copies";
	if (sums->rows_left != 0 || state->counter_total != sums->counters ||
	    pair->op_count != sums->ops + (uint64_t)digests * sums->counters)
		return "its ops don't add up";
	if (pair->ring_count != sums->rings || pair->credit_count != credits)
		return "its ring copies or credits don't add up";
	if (pair->digest != plan_pair_digest(plan, state))
		return "its digest isn't that of its buckets";
	return NULL;
}

/* The buckets of the pair's kinds, all of them, in order, each where the one before ended. */
static const char *instances_fault(const struct plan *plan, const struct pair_state *state,
				   const struct segment *sums, struct sums *total)
{
	const struct plan_counter *row = state->pair.counters;
	uint32_t i = 0;

	for (uint32_t k = 0; k < plan->kind_count; k++)
		if (state->segments[k] > plan->segments.count)
			return "it has segments that aren't there";
	for (uint32_t b = 0; b < plan->bucket_count; b++) {
		uint32_t kind = plan->buckets[b].kind;
		uint32_t index = state->segments[kind];
		if (index == 0)
			continue;
		const struct instance *instance = &state->instances[i];
		if (i == state->instance_count || instance->bucket != b ||
		    instance->segment != index - 1 || plan_segment(plan, index - 1)->kind != kind)
			return "its buckets aren't those of its kinds";
		if (instance->inbox_base != total->inbox || instance->op_base != total->ops ||
		    instance->ring_base != total->rings ||
		    instance->counter_base != total->counters)
			return "a bucket's numbers don't follow the bucket before";
		const struct segment *sum = &sums[index - 1];
		row = counters_follow(plan, plan_segment(plan, index - 1), sum, instance, row,
				      &total->rows_left);
		if (row == NULL)
			return "a threshold isn't what its copies send";
		total->ops += sum->op_count;
		total->rings += sum->ring_count;
		total->counters += sum->counter_count;
		total->bytes += sum->bytes;
		if (state->pair.receiver < plan->trainer_count)
			total->inbox += align_up(sum->bytes, WIRE_ALIGN);
		i++;
	}
	return i == state->instance_count ? NULL : "it has buckets that aren't its kinds'";
}

/* A forward is a plain write. */
static bool forwards_plainly(const struct plan *plan, const struct segment *segment)
{
	const struct stored_copy *copies =
		(const struct stored_copy *)plan->copies.items + segment->copy_first;

	for (uint32_t i = 0; i < segment->copy_count; i++)
		if (copies[i].ring >= 0 || copies[i].gather)
			return false;
	return true;
}

static void tell_pair(struct checking *checking, const struct plan_pair *pair, const char *fault)
{
	char sender[96], receiver[96];

	plan_member_name(checking->plan, pair->sender, sender, sizeof(sender));
	plan_member_name(checking->plan, pair->receiver, receiver, sizeof(receiver));
	findings_add(checking->findings, "numbers", sender, "the pair %s to %s: %s", sender,
		     receiver, fault);
}

int check_numbers(struct checking *checking)
{
	const struct plan *plan = checking->plan;
	uint32_t found = checking->findings->count;
	struct segment *sums = mem_alloc(plan->segments.count * sizeof(*sums));

	uint64_t digest;
	if (sums == NULL || plan_input_digest(plan, &digest) != 0) {
		mem_free(sums);
		return plan_no_memory(checking->err);
	}
	if (digest != plan->digest)
		findings_add(checking->findings, "digest", "plan",
			     "it was made of other manifests, members or rules than it is for");
	for (uint32_t i = 0; i < plan->segments.count; i++) {
		const char *fault = segment_fault(plan, plan_segment(plan, i), &sums[i]);
		if (fault != NULL)
			findings_add(checking->findings, "numbers", "plan",
				     "segment %" PRIu32 ": %s", i, fault);
	}
	for (uint32_t b = 0; b < plan->bucket_count; b++)
		if (plan->buckets[b].kind >= plan->kind_count)
			findings_add(checking->findings, "numbers", plan->buckets[b].name,
				     "bucket %" PRIu32 " is of no kind", b);
	for (uint32_t i = 0; checking->findings->count == found && i < plan->pairs.count; i++) {
		const struct pair_state *state = plan_pair_state(plan, i);
		struct sums total = {.rows_left = state->pair.counter_count};
		const char *fault = instances_fault(plan, state, sums, &total);
		if (fault == NULL)
			fault = pair_fault(plan, state, &total);
		for (uint32_t k = 0; fault == NULL && k < plan->kind_count; k++)
			if (state->pair.sender >= plan->trainer_count && state->segments[k] != 0 &&
			    !forwards_plainly(plan, plan_segment(plan, state->segments[k] - 1)))
				fault = "a forward isn't a plain write";
		if (fault != NULL)
			tell_pair(checking, &state->pair, fault);
	}
	mem_free(sums);
	/* What isn't where it says can't be followed. */
	if (checking->findings->count > found)
		return findings_fail(checking->findings, -EINVAL, checking->err);
	return 0;
}

/* ---- Layers. */

static bool same_experts(const struct peer *peer, const struct param *a, const struct param *b)
{
	const int32_t *x, *y;
	uint32_t count = manifest_experts(peer->manifest, a->rule, peer->rank, a->layer, &x);

	if (a->slot != b->slot || a->expert != b->expert ||
	    manifest_experts(peer->manifest, b->rule, peer->rank, b->layer, &y) != count)
		return false;
	return x == y || memcmp(x, y, count * sizeof(*x)) == 0;
}

/* Whether all tensors of the form are of their param's own layer. */
static bool own_layer(const struct peer *peer, const struct form *form)
{
	for (uint32_t i = 0; i < form->piece_count; i++)
		if (manifest_tensor(peer->manifest, form->pieces[i].tensor)->layer_lo < 0)
			return false;
	return true;
}

/* Where a param of the kind is in one of its buckets, or NONE if that isn't the same there. */
static uint32_t moved(const struct plan *plan, enum side side, const struct peer *peer,
		      uint32_t param, const struct bucket_kind *kind, int32_t layer)
{
	const struct param *here = &peer->params[param];

	if (layer == kind->layer)
		return param;
	if (layer < 0 || layer >= plan->layer_count || kind->layer < 0 ||
	    here->layer != kind->layer)
		return NONE;
	uint32_t to =
		layers_move(plan, side, here->rule, peer->each[param], param, kind->layer, layer);
	if (to >= peer->count)
		return NONE;
	const struct param *there = &peer->params[to];
	bool same = there->layer == layer && there->rule == here->rule &&
		    there->form == here->form && there->dtype == here->dtype &&
		    same_experts(peer, here, there);
	return same ? to : NONE;
}

static void tell_param(struct checking *checking, const struct peer *peer, uint32_t param,
		       const char *text)
{
	const char *name = check_param_name(checking, peer, param);

	findings_add(checking->findings, "layers", name, "'%s' at rank %" PRIu32 " %s", name,
		     peer->rank, text);
}

/* Each param that a kind touches must be the same in all of the kind's buckets; owners counts
 * how many buckets reach a param. */
static void check_moves(struct checking *checking, enum side side, const struct peer *peer,
			uint8_t *owners, const uint32_t *first)
{
	const struct plan *plan = checking->plan;

	for (uint32_t p = 0; p < peer->count; p++) {
		if (peer->kind[p] == 0)
			continue;
		uint32_t k = peer->kind[p] - 1;
		const struct bucket_kind *kind = &plan->kinds[k];
		bool moves = own_layer(peer, peer->params[p].form);
		for (uint32_t b = first[k]; b < plan->bucket_count; b++) {
			if (plan->buckets[b].kind != k)
				continue;
			int32_t layer = plan->buckets[b].layer;
			uint32_t to = moved(plan, side, peer, p, kind, layer);
			if (to == NONE || (!moves && layer != kind->layer)) {
				tell_param(checking, peer, p,
					   "isn't the same in all layers that are planned as one");
				return;
			}
			owners[to] = (uint8_t)MIN(owners[to] + 1, 2);
		}
	}
}

static bool complete(const struct plan *plan, enum side side, uint32_t rank)
{
	uint32_t own;

	if (side == SIDE_TRAINER)
		return false;
	if (plan->self == PLAN_ALL)
		return true;
	return check_side(plan, plan->self, &own) == side && own == rank;
}

static int check_rank(struct checking *checking, enum side side, const struct peer *peer,
		      const uint32_t *first)
{
	uint8_t *owners = mem_alloc(peer->count);

	if (owners == NULL)
		return plan_no_memory(checking->err);
	check_moves(checking, side, peer, owners, first);
	for (uint32_t p = 0; p < peer->count; p++) {
		bool needed = complete(checking->plan, side, peer->rank) &&
			      peer->params[p].form->covered_count > 0;
		if (owners[p] == 1 || (owners[p] == 0 && !needed))
			continue;
		tell_param(checking, peer, p,
			   owners[p] == 0 ? "gets nothing" : "is reached by two buckets");
		break;
	}
	mem_free(owners);
	return 0;
}

int check_loops(struct checking *checking)
{
	const struct plan *plan = checking->plan;
	uint32_t *first = arena_array(&checking->arena, plan->kind_count, sizeof(*first));
	int rc = 0;

	if (first == NULL)
		return plan_no_memory(checking->err);
	for (uint32_t b = plan->bucket_count; b > 0; b--)
		first[plan->buckets[b - 1].kind] = b - 1;
	for (int s = 0; s < 2; s++) {
		uint32_t ranks = s == SIDE_TRAINER ? plan->trainer_count : plan->rollout_count;
		for (uint32_t r = 0; rc == 0 && r < ranks; r++)
			if (checking->peers[s][r].known)
				rc = check_rank(checking, (enum side)s, &checking->peers[s][r],
						first);
	}
	return rc;
}
