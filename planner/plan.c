/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a plan and reading it.  For one member its pairs' copies are kept; a plan of all keeps
 * pairs and totals only, so that its memory doesn't grow with the number of boxes.
 */
#include "planner/plan_internal.h"

static void planning_release(struct planning *planning)
{
	for (int s = 0; s < 2; s++) {
		for (uint32_t r = 0;
		     planning->sides[s].ranks != NULL && r < planning->sides[s].world; r++)
			vec_release(&planning->sides[s].ranks[r].list);
		vec_release(&planning->sides[s].patterns);
	}
	vec_release(&planning->families);
	vec_release(&planning->geometries);
	vec_release(&planning->forwards);
	vec_release(&planning->sets);
	vec_release(&planning->raws);
	vec_release(&planning->sorted);
	vec_release(&planning->shaped);
	vec_release(&planning->ring);
	vec_release(&planning->words);
	idmap_release(&planning->family_map);
	idmap_release(&planning->set_map);
	idmap_release(&planning->pair_map);
	arena_release(&planning->arena);
}

void plan_free(struct plan *plan)
{
	if (plan == NULL)
		return;
	for (size_t i = 0; i < plan->pairs.count; i++) {
		struct pair_state *state = (struct pair_state *)plan->pairs.items + i;
		vec_release(&state->counters);
		vec_release(&state->segments);
	}
	vec_release(&plan->pairs);
	vec_release(&plan->copies);
	vec_release(&plan->parts);
	vec_release(&plan->receives);
	arena_release(&plan->arena);
	mem_free(plan);
}

/* ---- Inputs. */
static int check_input(const struct plan_input *input, uint32_t self, struct ws_error *err)
{
	int rc = rules_check(&input->rules, err);

	if (rc != 0)
		return rc;
	if (manifest_side(input->trainer) != SIDE_TRAINER ||
	    manifest_side(input->rollout) != SIDE_ROLLOUT)
		return ws_fail(err, -EINVAL,
			       "a plan needs a trainer's manifest and a rollout's, in this order");
	if (input->replica_count == 0)
		return ws_fail(err, -EINVAL, "a plan needs at least one replica in the roster");
	for (uint32_t i = 1; i < input->replica_count; i++)
		if (input->replicas[i] <= input->replicas[i - 1])
			return ws_fail(err, -EINVAL,
				       "the roster's replicas aren't ascending: %" PRIu32
				       " stands after %" PRIu32,
				       input->replicas[i], input->replicas[i - 1]);
	uint64_t members = (uint64_t)manifest_world(input->trainer) +
			   (uint64_t)manifest_world(input->rollout) * input->replica_count;
	if (manifest_world(input->trainer) == 0 || manifest_world(input->rollout) == 0 ||
	    members > RANKS_MAX)
		return ws_fail(err, -EINVAL,
			       "a run has %" PRIu32 " trainers and %" PRIu32 " replicas of %" PRIu32
			       " ranks: from 1 to %d members in all",
			       manifest_world(input->trainer), input->replica_count,
			       manifest_world(input->rollout), RANKS_MAX);
	if (self != PLAN_ALL && self >= members)
		return ws_fail(err, -EINVAL, "member %" PRIu32 " isn't one of the run's %" PRIu64,
			       self, members);
	return 0;
}

static int keep_input(struct plan *plan, const struct plan_input *input, uint32_t self)
{
	uint32_t *replicas = NULL;
	struct place *places = NULL;

	plan->self = self;
	plan->input = *input;
	plan->trainer_count = manifest_world(input->trainer);
	plan->rollout_count = manifest_world(input->rollout);
	plan->member_count = plan->trainer_count + plan->rollout_count * input->replica_count;
	plan->fed_replicas = input->rules.fanout == FANOUT_REPLICA ? 1 : input->replica_count;
	replicas = arena_array(&plan->arena, input->replica_count, sizeof(*replicas));
	plan->sent = arena_array(&plan->arena, plan->member_count, sizeof(uint64_t));
	plan->received = arena_array(&plan->arena, plan->member_count, sizeof(uint64_t));
	plan->from_trainers = arena_array(&plan->arena, plan->member_count, sizeof(uint64_t));
	if (replicas == NULL || plan->sent == NULL || plan->received == NULL ||
	    plan->from_trainers == NULL)
		return -ENOMEM;
	memcpy(replicas, input->replicas, input->replica_count * sizeof(*replicas));
	plan->input.replicas = replicas;
	if (input->places != NULL) {
		places = arena_array(&plan->arena, plan->member_count, sizeof(*places));
		if (places == NULL)
			return -ENOMEM;
		memcpy(places, input->places, plan->member_count * sizeof(*places));
	}
	plan->input.places = places;
	return 0;
}

static int digest_input(struct plan *plan)
{
	struct writer out = WRITER_INIT(64u << 20);

	write_u64(&out, manifest_digest(plan->input.trainer));
	write_u64(&out, manifest_digest(plan->input.rollout));
	write_u32(&out, plan->input.replica_count);
	for (uint32_t i = 0; i < plan->input.replica_count; i++)
		write_u32(&out, plan->input.replicas[i]);
	places_digest(plan, &out);
	rules_encode(&plan->input.rules, &out);
	int rc = out.failed ? -ENOMEM : 0;
	if (rc == 0)
		plan->digest = digest_bytes(out.bytes, out.count, PLANNER_VERSION);
	writer_release(&out);
	return rc;
}

static void check_quant(struct planning *planning, const struct manifest *manifest, const char *who)
{
	const char *scheme = manifest_quant(manifest);

	if (scheme != NULL)
		findings_add(planning->findings, "quant", scheme,
			     "the %s's manifest wants scheme '%s', which isn't "
			     "built yet: make the manifest without --quant",
			     who, scheme);
}

static void check_globals(struct planning *planning)
{
	struct plan *plan = planning->plan;
	const struct plan_input *input = &plan->input;
	const char *have = manifest_model(input->trainer), *want = manifest_model(input->rollout);

	check_quant(planning, input->trainer, "trainer");
	check_quant(planning, input->rollout, "rollout");
	if (have != NULL && want != NULL && have[0] != '\0' && want[0] != '\0' &&
	    strcmp(have, want) != 0)
		findings_add(planning->findings, "model", have,
			     "the trainer's manifest is of model '%s', the "
			     "rollout's of '%s'",
			     have, want);
	plan->slot_bytes = input->rules.recv_staging_bytes / plan->trainer_count / RING_SLOTS;
	plan->slot_bytes -= plan->slot_bytes % SLOT_ALIGN;
	if (plan->slot_bytes == 0)
		findings_add(planning->findings, "ring", "recv_staging_bytes",
			     "ring too small: needs %" PRIu64 " bytes for %" PRIu32
			     " trainers, has %" PRIu64,
			     (uint64_t)plan->trainer_count * RING_SLOTS * SLOT_ALIGN,
			     plan->trainer_count, input->rules.recv_staging_bytes);
}

/* ---- One bucket after the other. */
struct raw_order {
	const struct raw *raws;
	const struct plan *plan;
};

/* A sender's place in its walk over the targets, which it starts at its own index. */
static uint32_t turn(const struct plan *plan, const struct raw *raw)
{
	uint32_t targets = plan->member_count - plan->trainer_count;

	return (raw->receiver - plan->trainer_count + targets - raw->sender % targets) % targets;
}

static int raw_compare(const void *a, const void *b, void *arg)
{
	const struct raw_order *order = arg;
	const struct raw *x = &order->raws[*(const uint32_t *)a],
			 *y = &order->raws[*(const uint32_t *)b];

	if (x->sender != y->sender)
		return x->sender < y->sender ? -1 : 1;
	if (x->receiver != y->receiver)
		return turn(order->plan, x) < turn(order->plan, y) ? -1 : 1;
	if (x->part.dst_param != y->part.dst_param)
		return x->part.dst_param < y->part.dst_param ? -1 : 1;
	return x->part.dst_offset < y->part.dst_offset ? -1
						       : x->part.dst_offset > y->part.dst_offset;
}

static int bucket_pairs(struct planning *planning, uint32_t bucket, struct ws_error *err)
{
	struct raw_order order = {.raws = planning->raws.items, .plan = planning->plan};
	struct vec group = {0};
	int rc = 0;

	planning->sorted.count = 0;
	for (uint32_t i = 0; i < planning->raws.count; i++) {
		uint32_t *index = vec_add(&planning->sorted, sizeof(*index));
		if (index == NULL)
			return plan_no_memory(err);
		*index = i;
	}
	const uint32_t *sorted = planning->sorted.items;
	size_t count = planning->sorted.count;
	if (count > 0)
		qsort_r(planning->sorted.items, count, sizeof(uint32_t), raw_compare, &order);
	for (size_t i = 0, end; rc == 0 && i < count; i = end) {
		group.count = 0;
		for (end = i; end < count; end++) {
			const struct raw *raw = &order.raws[sorted[end]];
			if (raw->sender != order.raws[sorted[i]].sender ||
			    raw->receiver != order.raws[sorted[i]].receiver)
				break;
			const struct raw **slot = vec_add(&group, sizeof(void *));
			if (slot == NULL) {
				vec_release(&group);
				return plan_no_memory(err);
			}
			*slot = raw;
		}
		rc = shape_pair(planning, bucket, group.items, (uint32_t)group.count, err);
	}
	vec_release(&group);
	return rc;
}

static int walk_buckets(struct planning *planning, struct ws_error *err)
{
	const struct plan *plan = planning->plan;
	int rc = 0;

	for (uint32_t b = 0; rc == 0 && b < plan->bucket_count; b++) {
		const struct unit_bucket *bucket = &plan->buckets[b];
		planning->raws.count = 0;
		for (uint32_t i = 0; rc == 0 && i < bucket->unit_count; i++) {
			uint32_t unit = planning->order[bucket->unit_first + i];
			rc = boxes_of_unit(planning, unit, err);
			if (rc == 0)
				rc = fanout_of_unit(planning, unit, err);
		}
		if (rc == 0)
			rc = bucket_pairs(planning, b, err);
	}
	return rc;
}

/* ---- The end: pairs in order, thresholds, totals. */
static int pair_order(const void *a, const void *b)
{
	const struct plan_pair *x = &((const struct pair_state *)a)->pair;
	const struct plan_pair *y = &((const struct pair_state *)b)->pair;

	if (x->sender != y->sender)
		return x->sender < y->sender ? -1 : 1;
	return x->receiver < y->receiver ? -1 : x->receiver > y->receiver;
}

static int by_receiver_order(const void *a, const void *b, void *arg)
{
	const struct pair_state *pairs = arg;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	if (pairs[i].pair.receiver != pairs[j].pair.receiver)
		return pairs[i].pair.receiver < pairs[j].pair.receiver ? -1 : 1;
	return i < j ? -1 : i > j;
}

/* Op ids are 24 bits wide at each receiver, and credits come back to the sender the same way. */
static int pairs_end(struct planning *planning, struct ws_error *err)
{
	struct plan *plan = planning->plan;
	struct pair_state *pairs = plan->pairs.items;
	uint64_t *ops = arena_array(&planning->arena, plan->member_count, sizeof(*ops));
	char name[96];

	if (ops == NULL)
		return plan_no_memory(err);
	if (plan->pairs.count > 0)
		qsort(pairs, plan->pairs.count, sizeof(*pairs), pair_order);
	for (size_t i = 0; i < plan->pairs.count; i++) {
		struct plan_pair *pair = &pairs[i].pair;
		shape_pair_end(plan, &pairs[i]);
		ops[pair->receiver] += pair->op_count;
		ops[pair->sender] += pair->credit_count;
		plan->totals.ops += pair->op_count;
	}
	for (uint32_t i = 0; i < plan->member_count; i++)
		if (ops[i] >= OPS_MAX) {
			plan_member_name(plan, i, name, sizeof(name));
			findings_add(planning->findings, "ops", name,
				     "%s would receive %" PRIu64 " ops, and an imm "
				     "tells %u apart: too many ops, raise op_bytes",
				     name, ops[i], OPS_MAX - 1);
		}
	return 0;
}

static int pairs_index(struct plan *plan)
{
	const struct pair_state *pairs = plan->pairs.items;

	if (plan->self == PLAN_ALL) {
		plan->by_receiver = arena_array(&plan->arena, plan->pairs.count, sizeof(uint32_t));
		if (plan->by_receiver == NULL)
			return -ENOMEM;
		for (uint32_t i = 0; i < plan->pairs.count; i++)
			plan->by_receiver[i] = i;
		qsort_r(plan->by_receiver, plan->pairs.count, sizeof(uint32_t), by_receiver_order,
			plan->pairs.items);
		return 0;
	}
	plan->send_first = (uint32_t)plan->pairs.count;
	for (uint32_t i = 0; i < plan->pairs.count; i++) {
		if (pairs[i].pair.sender != plan->self)
			continue;
		plan->send_first = MIN(plan->send_first, i);
		plan->send_count++;
	}
	for (size_t i = 0; i < plan->pairs.count; i++) {
		if (pairs[i].pair.sender == plan->self)
			continue;
		const struct segment *segments = pairs[i].segments.items;
		for (size_t s = 0; s < pairs[i].segments.count; s++)
			for (size_t c = 0; c < segments[s].copy_count; c++) {
				size_t *index = vec_add(&plan->receives, sizeof(*index));
				if (index == NULL)
					return -ENOMEM;
				*index = segments[s].copy_first + c;
			}
	}
	return 0;
}

/* Kinds of work: one per holder set and family. */
static int count_classes(struct planning *planning)
{
	struct idmap met = {0}, classes = {0};
	int rc = 0;

	for (uint32_t f = 0; rc == 0 && f < planning->families.count; f++) {
		const struct family *family = (const struct family *)planning->families.items + f;
		uint32_t end = planning->unit_count;
		if (f + 1 < planning->families.count)
			end = family[1].unit_first;
		for (uint32_t unit = family->unit_first; rc == 0 && unit < end; unit++) {
			uint32_t index = planning->unit_geometry[unit];
			uint64_t key = (uint64_t)index << 32 | f;
			if (index == NONE || idmap_get(&met, key) != NONE)
				continue;
			const struct geometry *geometry = planning_geometry(planning, index);
			rc = idmap_put(&met, key, 0);
			for (uint32_t i = 0; rc == 0 && i < geometry->flow_count; i++) {
				key = (uint64_t)geometry->flows[i].set << 32 | f;
				if (idmap_get(&classes, key) == NONE)
					rc = idmap_put(&classes, key, 0);
			}
		}
	}
	planning->plan->totals.classes = classes.count;
	idmap_release(&met);
	idmap_release(&classes);
	return rc;
}

static void totals_end(struct plan *plan)
{
	struct plan_totals *totals = &plan->totals;

	assert(plan->trainer_count > 0 && plan->member_count > plan->trainer_count);
	totals->bucket_count = plan->bucket_count;
	totals->send_min = totals->receive_min = totals->trainer_min = UINT64_MAX;
	for (uint32_t i = 0; i < plan->member_count; i++) {
		if (i < plan->trainer_count) {
			totals->send_min = MIN(totals->send_min, plan->sent[i]);
			totals->send_max = MAX(totals->send_max, plan->sent[i]);
			totals->senders_idle += plan->sent[i] == 0;
		} else {
			totals->receive_min = MIN(totals->receive_min, plan->received[i]);
			totals->receive_max = MAX(totals->receive_max, plan->received[i]);
			totals->trainer_min = MIN(totals->trainer_min, plan->from_trainers[i]);
			totals->trainer_max = MAX(totals->trainer_max, plan->from_trainers[i]);
		}
	}
	uint64_t trained = totals->bytes - totals->forward_bytes;
	uint32_t rollouts = plan->member_count - plan->trainer_count;
	totals->send_mean = trained / plan->trainer_count;
	totals->receive_mean = totals->bytes / rollouts;
	totals->trainer_mean = trained / rollouts;
}

static int plan_steps(struct planning *planning, struct ws_error *err)
{
	struct plan *plan = planning->plan;
	uint32_t found = planning->findings->count;
	int rc;

	check_globals(planning);
	rc = match_make(planning, err);
	if (rc == 0)
		rc = fanout_make(planning, err);
	if (rc == 0)
		rc = geometry_make(planning, err);
	if (rc == 0 && planning->findings->count == found)
		rc = bucket_make(planning, err);
	if (rc != 0 || planning->findings->count > found)
		return rc;
	rc = balance_make(planning, err);
	if (rc == 0)
		rc = geometry_own(planning, err);
	if (rc == 0)
		rc = walk_buckets(planning, err);
	if (rc == 0)
		rc = pairs_end(planning, err);
	if (rc == 0 && (pairs_index(plan) != 0 || count_classes(planning) != 0))
		rc = plan_no_memory(err);
	if (rc == 0)
		totals_end(plan);
	return rc;
}

int plan_make(struct plan **plan_out, const struct plan_input *input, uint32_t self,
	      struct findings *findings, struct ws_error *err)
{
	struct planning planning = {0};
	struct findings own = {.arena = &planning.arena};

	*plan_out = NULL;
	int rc = check_input(input, self, err);
	if (rc != 0)
		return rc;
	struct plan *plan = mem_alloc(sizeof(*plan));
	if (plan == NULL)
		return plan_no_memory(err);
	planning.plan = plan;
	planning.findings = findings != NULL ? findings : &own;
	uint32_t found = planning.findings->count;
	if (keep_input(plan, input, self) != 0 || digest_input(plan) != 0) {
		rc = plan_no_memory(err);
		goto fail;
	}
	planning.sides[SIDE_TRAINER] = (struct side_index){
		.manifest = input->trainer, .who = "trainer", .world = plan->trainer_count};
	planning.sides[SIDE_ROLLOUT] = (struct side_index){
		.manifest = input->rollout, .who = "rollout", .world = plan->rollout_count};
	rc = plan_steps(&planning, err);
	if (rc == 0 && planning.findings->count > found)
		rc = findings_fail(planning.findings, -EINVAL, err);
	if (rc != 0)
		goto fail;
	planning_release(&planning);
	*plan_out = plan;
	return 0;
fail:
	planning_release(&planning);
	plan_free(plan);
	return rc;
}

/* ---- Reading a plan. */
uint64_t plan_digest(const struct plan *plan)
{
	return plan->digest;
}

const struct plan_totals *plan_totals(const struct plan *plan)
{
	return &plan->totals;
}

uint32_t plan_bucket_count(const struct plan *plan)
{
	return plan->bucket_count;
}

const char *plan_bucket_name(const struct plan *plan, uint32_t bucket)
{
	return plan->buckets[bucket].name;
}

struct pair_state *plan_pair_state(const struct plan *plan, uint32_t index)
{
	return (struct pair_state *)plan->pairs.items + index;
}

uint32_t plan_send_pair_count(const struct plan *plan)
{
	return plan->self == PLAN_ALL ? (uint32_t)plan->pairs.count : plan->send_count;
}

const struct plan_pair *plan_send_pair(const struct plan *plan, uint32_t index)
{
	return &plan_pair_state(plan, plan->self == PLAN_ALL ? index : plan->send_first + index)
			->pair;
}

uint32_t plan_receive_pair_count(const struct plan *plan)
{
	return (uint32_t)plan->pairs.count - (plan->self == PLAN_ALL ? 0 : plan->send_count);
}

const struct plan_pair *plan_receive_pair(const struct plan *plan, uint32_t index)
{
	if (plan->self == PLAN_ALL)
		index = plan->by_receiver[index];
	else if (index >= plan->send_first)
		index += plan->send_count;
	return &plan_pair_state(plan, index)->pair;
}

uint32_t plan_slot_count(const struct plan *plan)
{
	(void)plan;
	return RING_SLOTS;
}

uint64_t plan_slot_bytes(const struct plan *plan)
{
	return plan->slot_bytes;
}

static void copy_fill(const struct plan *plan, size_t index, struct plan_copy *copy_out)
{
	const struct stored_copy *stored = (const struct stored_copy *)plan->copies.items + index;

	*copy_out = stored->copy;
	copy_out->parts = (const struct plan_part *)plan->parts.items + stored->part_first;
}

bool plan_next_send(const struct plan *plan, struct plan_cursor *cursor, struct plan_copy *copy_out)
{
	/* Among a rollout's copies are those that it receives. */
	while (cursor->at < plan->copies.count) {
		copy_fill(plan, cursor->at++, copy_out);
		if (copy_out->sender == plan->self)
			return true;
	}
	return false;
}

bool plan_next_receive(const struct plan *plan, struct plan_cursor *cursor,
		       struct plan_copy *copy_out)
{
	if (cursor->at >= plan->receives.count)
		return false;
	copy_fill(plan, ((const size_t *)plan->receives.items)[cursor->at++], copy_out);
	return true;
}

struct stored_copy *plan_stored_copy(struct plan *plan, size_t index)
{
	return (struct stored_copy *)plan->copies.items + index;
}

struct plan_part *plan_stored_part(struct plan *plan, const struct stored_copy *copy, uint32_t part)
{
	return (struct plan_part *)plan->parts.items + copy->part_first + part;
}

size_t plan_stored_count(const struct plan *plan)
{
	return plan->copies.count;
}
