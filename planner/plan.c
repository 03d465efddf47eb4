/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a plan: kind by kind the boxes of the planned member, or of all, become segments; then
 * each pair's segments are laid out bucket by bucket.  Layers alike share segments, so that
 * a plan's memory and time don't grow with their number.
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
	vec_release(&planning->lines);
	vec_release(&planning->raws);
	vec_release(&planning->sorted);
	vec_release(&planning->shaped);
	vec_release(&planning->ring);
	vec_release(&planning->needs);
	vec_release(&planning->blocks);
	idmap_release(&planning->blocks_map);
	idmap_release(&planning->family_map);
	idmap_release(&planning->set_map);
	idmap_release(&planning->pair_map);
	arena_release(&planning->arena);
}

void plan_free(struct plan *plan)
{
	if (plan == NULL)
		return;
	vec_release(&plan->pairs);
	vec_release(&plan->segments);
	vec_release(&plan->copies);
	vec_release(&plan->parts);
	vec_release(&plan->part_rules);
	vec_release(&plan->locals);
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
	return places_keep(plan);
}

int plan_input_digest(const struct plan *plan, uint64_t *digest_out)
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
		*digest_out = digest_bytes(out.bytes, out.count, PLANNER_VERSION);
	writer_release(&out);
	return rc;
}

static void check_globals(struct planning *planning)
{
	struct plan *plan = planning->plan;
	const struct plan_input *input = &plan->input;
	const char *have = manifest_model(input->trainer), *want = manifest_model(input->rollout);

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
			     "the rollouts' staging ring is too small: %" PRIu64
			     " bytes are the least for %" PRIu32 " trainers, not %" PRIu64,
			     (uint64_t)plan->trainer_count * RING_SLOTS * SLOT_ALIGN,
			     plan->trainer_count, input->rules.recv_staging_bytes);
}

/* ---- One kind after the other. */
struct raw_key {
	uint64_t pair, dst_offset;
	uint32_t dst_param, index;
};

static int raw_order(const void *a, const void *b)
{
	const struct raw_key *x = a, *y = b;

	if (x->pair != y->pair)
		return x->pair < y->pair ? -1 : 1;
	if (x->dst_param != y->dst_param)
		return x->dst_param < y->dst_param ? -1 : 1;
	if (x->dst_offset != y->dst_offset)
		return x->dst_offset < y->dst_offset ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static int raws_sort(struct planning *planning)
{
	const struct raw *raws = planning->raws.items;

	planning->sorted.count = 0;
	for (uint32_t i = 0; i < planning->raws.count; i++) {
		struct raw_key *key = vec_add(&planning->sorted, sizeof(*key));
		if (key == NULL)
			return -ENOMEM;
		*key = (struct raw_key){.pair = (uint64_t)raws[i].sender << 32 | raws[i].receiver,
					.dst_param = raws[i].part.dst_param,
					.dst_offset = raws[i].part.dst_offset,
					.index = i};
	}
	if (planning->sorted.count > 0)
		qsort(planning->sorted.items, planning->sorted.count, sizeof(struct raw_key),
		      raw_order);
	return 0;
}

/* The segment belongs to this pair, and where replicas are alike to those of all. */
static int segment_give(struct planning *planning, const struct segment *segment, uint32_t sender,
			uint32_t receiver)
{
	struct plan *plan = planning->plan;
	bool alike = plan->kinds[segment->kind].replicas_alike && receiver >= plan->trainer_count &&
		     (plan->self == PLAN_ALL || plan->self < plan->trainer_count);
	struct segment *added = vec_add(&plan->segments, sizeof(*added));

	if (added == NULL)
		return -ENOMEM;
	*added = *segment;
	for (uint32_t r = 0; r < (alike ? plan->input.replica_count : 1); r++) {
		struct pair_state *state =
			pairs_find(planning, sender, receiver + r * plan->rollout_count);
		if (state == NULL)
			return -ENOMEM;
		state->segments[segment->kind] = (uint32_t)plan->segments.count;
	}
	return 0;
}

static int kind_segments(struct planning *planning, uint32_t kind, struct ws_error *err)
{
	const struct raw *raws = planning->raws.items;
	struct vec group = {0};
	int rc = raws_sort(planning) != 0 ? plan_no_memory(err) : 0;
	const struct raw_key *keys = planning->sorted.items;
	size_t count = planning->sorted.count;

	for (size_t i = 0, end; rc == 0 && i < count; i = end) {
		struct segment segment;
		const struct raw *first = &raws[keys[i].index];
		group.count = 0;
		for (end = i; rc == 0 && end < count && keys[end].pair == keys[i].pair; end++) {
			const struct raw **slot = vec_add(&group, sizeof(void *));
			if (slot == NULL)
				rc = plan_no_memory(err);
			else
				*slot = &raws[keys[end].index];
		}
		if (rc == 0)
			rc = shape_segment(planning, kind, group.items, (uint32_t)group.count,
					   &segment, err);
		if (rc == 0 &&
		    segment_give(planning, &segment, first->sender, first->receiver) != 0)
			rc = plan_no_memory(err);
	}
	vec_release(&group);
	return rc;
}

static int walk_kinds(struct planning *planning, struct ws_error *err)
{
	struct plan *plan = planning->plan;
	int rc = boxes_begin(planning) != 0 ? plan_no_memory(err) : 0;

	for (uint32_t k = 0; rc == 0 && k < plan->kind_count; k++) {
		rc = boxes_of_kind(planning, &plan->kinds[k], err);
		if (rc == 0)
			rc = kind_segments(planning, k, err);
		if (rc == 0)
			rc = maxima_of_kind(planning, k, err);
		if (rc == 0)
			rc = kind_segments(planning, k, err);
	}
	if (rc == 0)
		boxes_end(plan);
	return rc;
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
			for (uint32_t i = 0; rc == 0 && i < geometry->atom_count; i++) {
				key = (uint64_t)geometry->atoms[i].set << 32 | f;
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
	for (uint32_t i = 0; plan->tables != NULL && i < plan->trainer_count; i++)
		if (plan->tables[i].known)
			totals->tables_max =
				MAX(totals->tables_max, plan->tables[i].bucket[plan->bucket_count]);
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
	rc = match_units(planning, err);
	if (rc == 0)
		rc = layers_make(planning, err);
	if (rc == 0)
		rc = match_make(planning, err);
	if (rc == 0)
		rc = scales_make(planning, err);
	if (rc == 0)
		rc = fanout_make(planning, err);
	if (rc == 0)
		rc = geometry_make(planning, err);
	if (rc == 0)
		rc = refuse(planning, err);
	if (rc == 0 && planning->findings->count == found)
		rc = bucket_make(planning, err);
	if (rc != 0 || planning->findings->count > found)
		return rc;
	rc = balance_make(planning, err);
	if (rc == 0 && tables_begin(planning) != 0)
		rc = plan_no_memory(err);
	if (rc == 0)
		rc = walk_kinds(planning, err);
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
	if (keep_input(plan, input, self) != 0 || plan_input_digest(plan, &plan->digest) != 0) {
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
