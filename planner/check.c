/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of a plan before its first write, by other means than planning: each copy is followed
 * element by element through both ranks' forms, and a receiver's bytes go into an account that
 * must equal what its params cover.  That is done where a plan was made, in one layer of those
 * alike; check_loops.c proves the rest.
 */
#include <stdio.h>

#include "planner/check.h"

/* A copy where it is planned. */
struct place_of_copy {
	const struct pair_state *state;
	const struct segment *segment;
	const struct stored_copy *copy;
};

static void tell(struct checking *checking, const struct place_of_copy *at, const char *kind,
		 const char *text)
{
	char sender[96], receiver[96];
	const struct plan *plan = checking->plan;
	const struct plan_pair *pair = &at->state->pair;
	const char *bucket = "bucket";

	for (uint32_t b = plan->bucket_count; b > 0; b--)
		if (plan->buckets[b - 1].kind == at->segment->kind)
			bucket = plan->buckets[b - 1].name;
	plan_member_name(plan, pair->sender, sender, sizeof(sender));
	plan_member_name(plan, pair->receiver, receiver, sizeof(receiver));
	findings_add(checking->findings, kind, bucket,
		     "the copy of %s to %s at op %" PRIu32 " of '%s' is planned wrong: %s", sender,
		     receiver, at->copy->first_op, bucket, text);
}

static bool packed(const struct plan_part *part, const int64_t *stride, enum ws_dtype dtype)
{
	int64_t next = (int64_t)ws_dtype_bytes(dtype);

	for (uint32_t d = part->dim_count; d-- > 0;) {
		if (part->extent[d] > 1 && stride[d] != next)
			return false;
		next *= (int64_t)part->extent[d];
	}
	return true;
}

static uint64_t wire_bytes(const struct plan_part *part)
{
	uint64_t bytes = ws_dtype_bytes(part->to);

	for (uint32_t d = 0; d < part->dim_count; d++)
		bytes *= part->extent[d];
	return bytes;
}

bool check_inside(const struct plan_part *part, uint64_t offset, const int64_t *stride,
		  enum ws_dtype dtype, uint64_t bytes)
{
	__extension__ __int128 low = (__int128)offset,
			       high = (__int128)offset + (int64_t)ws_dtype_bytes(dtype);

	for (uint32_t d = 0; d < part->dim_count; d++) {
		__extension__ __int128 span = (__int128)(part->extent[d] - 1) * stride[d];
		if (span < 0)
			low += span;
		else
			high += span;
	}
	return low >= 0 && high <= (__int128)bytes;
}

bool check_is_float(enum ws_dtype dtype)
{
	return dtype == WS_F32 || dtype == WS_BF16 || dtype == WS_F16;
}

/* What becomes of an element on the way must be what the target declares. */
static const char *dtypes_fault(const struct plan_part *part, const struct peer *from,
				const struct param *src, const struct peer *to,
				const struct param *dst)
{
	const struct param_rule *rule = manifest_rule(to->manifest, dst->rule);
	const struct quant_scheme *scheme = manifest_scheme(to->manifest, dst->rule);

	if (part->to != dst->dtype)
		return "its dtype isn't the target's";
	bool makes = scheme != NULL && part->scheme == scheme && check_is_float(src->dtype) &&
		     manifest_side(from->manifest) == SIDE_TRAINER;
	if (part->kind == PART_SCALES)
		return makes && rule->is_scale && part->from == WS_U32 && part->blocks == NULL
			       ? NULL
			       : "it brings a scale that nobody makes";
	if (part->from != src->dtype)
		return "its dtype isn't the source's";
	if (part->kind == PART_CODES)
		return makes && !rule->is_scale && part->from != part->to &&
				       part->to == scheme->code && part->blocks != NULL
			       ? NULL
			       : "its codes aren't the scheme's";
	if (part->kind != PART_CAST || part->scheme != NULL || part->blocks != NULL)
		return "it quantizes what needn't be";
	if (part->from == part->to)
		return NULL;
	if (scheme != NULL && !rule->is_scale)
		return "it doesn't quantize what must be";
	if (!check_is_float(part->from))
		return "its dtype can't be cast";
	if (!manifest_casts(to->manifest, part->from, part->to))
		return "its cast isn't declared";
	return NULL;
}

/* NULL, or what is wrong with the part taken by itself. */
static const char *part_fault(const struct plan_part *part, const struct part_rules *rules,
			      const struct peer *from, const struct peer *to)
{
	if (part->src_param >= from->count || part->dst_param >= to->count)
		return "no such param";
	const struct param *src = &from->params[part->src_param],
			   *dst = &to->params[part->dst_param];
	if (rules->src_rule != src->rule || rules->dst_rule != dst->rule ||
	    rules->src_each != from->each[part->src_param] ||
	    rules->dst_each != to->each[part->dst_param])
		return "its rules aren't those of the params";
	const char *fault = dtypes_fault(part, from, src, to, dst);
	if (fault != NULL)
		return fault;
	if (part->dim_count == 0 || part->dim_count > BOX_DIM_MAX)
		return "its box has too many dims";
	for (uint32_t d = 0; d < part->dim_count; d++)
		if (part->extent[d] == 0 || part->extent[d] > MAX(dst->form->element_count, 1))
			return "its box isn't of the param's size";
	if (part->kind != PART_SCALES &&
	    !check_inside(part, part->src_offset, part->src_stride, part->from, src->bytes))
		return "it reads outside the sender's param";
	if (!check_inside(part, part->dst_offset, part->dst_stride, part->to, dst->bytes))
		return "it writes outside the receiver's param";
	return NULL;
}

struct plan_part check_mirrored(const struct plan_part *part)
{
	struct plan_part mirror = *part;

	mirror.src_param = part->dst_param;
	mirror.dst_param = part->src_param;
	mirror.src_offset = part->dst_offset;
	mirror.dst_offset = part->src_offset;
	memcpy(mirror.src_stride, part->dst_stride, sizeof(mirror.src_stride));
	memcpy(mirror.dst_stride, part->src_stride, sizeof(mirror.dst_stride));
	return mirror;
}

/* Follows the part, and notes what it writes at the member at hand, or forwards from there. */
static int follow_part(struct checking *checking, uint32_t member, const struct plan_pair *pair,
		       const struct plan_part *part, struct spot_param *source,
		       struct spot_param *target, char *why, size_t why_bytes)
{
	if (pair->sender == member && pair->sender >= checking->plan->trainer_count) {
		struct plan_part mirror = check_mirrored(part);
		return account_part(&checking->forwarded, &mirror, target, source, why, why_bytes);
	}
	bool receives = pair->receiver == member;
	int rc = account_part(receives ? &checking->written : NULL, part, source, target, why,
			      why_bytes);
	if (rc == 0 && receives && pair->feeds)
		rc = account_part(&checking->fed, part, source, target, why, why_bytes);
	return rc;
}

/*
 * All repetitions of a part as one part: where the steps go on along one of its dims that dim is
 * longer, else they are a dim more.  False where there is no room for one.
 */
static bool repeated(const struct stored_copy *copy, const struct plan_part *part,
		     struct plan_part *whole)
{
	*whole = *part;
	for (uint32_t d = 0; d < part->dim_count; d++)
		if ((uint64_t)copy->src_step == (uint64_t)part->src_stride[d] * part->extent[d] &&
		    (uint64_t)copy->dst_step == (uint64_t)part->dst_stride[d] * part->extent[d]) {
			whole->extent[d] *= copy->repeat;
			return true;
		}
	if (part->dim_count == BOX_DIM_MAX)
		return false;
	for (uint32_t d = part->dim_count; d > 0; d--) {
		whole->extent[d] = part->extent[d - 1];
		whole->src_stride[d] = part->src_stride[d - 1];
		whole->dst_stride[d] = part->dst_stride[d - 1];
	}
	whole->dim_count++;
	whole->extent[0] = copy->repeat;
	whole->src_stride[0] = copy->src_step;
	whole->dst_stride[0] = copy->dst_step;
	return true;
}

/* What a param's copies are is one kind's business: else a bucket would not be whole. */
static bool touch(struct peer *peer, uint32_t param, uint32_t kind)
{
	bool fits = peer->kind[param] == 0 || peer->kind[param] == kind + 1;

	peer->kind[param] = kind + 1;
	return fits;
}

/* What of a copy is checked part by part. */
struct part_check {
	struct checking *checking;
	uint32_t member;
	const struct place_of_copy *at;
	struct peer *from, *to;
	struct spot_param source, target;
	struct maxima_part maxima;
	char why[1200];
};

/* What is quantized is read by way of the sender's tables.  0, 1 and a sentence, -ENOMEM. */
static int check_quantized(struct part_check *check, const struct plan_part *part)
{
	struct spot_param *source = &check->source;
	const char *fault = NULL;
	struct made_scale made;
	int rc = 0;

	if (part->kind == PART_SCALES) {
		fault = check_scale_source(&check->maxima, part, &check->target, &made);
		source = &made.spot;
	}
	if (fault == NULL)
		rc = follow_part(check->checking, check->member, &check->at->state->pair, part,
				 source, &check->target, check->why, sizeof(check->why));
	if (rc == 0 && fault == NULL && part->kind == PART_SCALES)
		rc = check_scale_need(&check->maxima, part, &made);
	if (fault == NULL)
		return rc;
	snprintf(check->why, sizeof(check->why), "%s", fault);
	return 1;
}

/* One repetition, or all as one.  0, 1 and a finding, -ENOMEM. */
static int check_once(struct part_check *check, const struct plan_part *part,
		      const struct part_rules *rules)
{
	struct checking *checking = check->checking;
	uint32_t kind = check->at->segment->kind;
	const char *fault = part_fault(part, rules, check->from, check->to);

	if (fault == NULL && (!touch(check->from, part->src_param, kind) ||
			      !touch(check->to, part->dst_param, kind)))
		fault = "its param has copies in two buckets";
	if (fault != NULL) {
		tell(checking, check->at, "outside", fault);
		return 1;
	}
	int rc = check_spot(checking, &check->source, check->from, part->src_param);
	if (rc == 0)
		rc = check_spot(checking, &check->target, check->to, part->dst_param);
	if (rc == 0)
		rc = check_quantized(check, part);
	if (rc == 1)
		tell(checking, check->at, "identity", check->why);
	return rc;
}

/* Codes are made by the maxima of their blocks, in each repetition. */
static int check_part_codes(struct part_check *check, const struct plan_part *part)
{
	const char *why;
	int rc = check_codes(&check->maxima, check->at->copy, part, &check->source, &why);

	if (rc == 1)
		tell(check->checking, check->at, "identity", why);
	return rc;
}

/* Between trainers there are maxima and nothing else. */
static int check_maxima(struct part_check *check, const struct plan_part *part,
			const struct part_rules *rules)
{
	bool plain = rules->src_rule == 0 && rules->dst_rule == 0 && rules->src_each == 0 &&
		     rules->dst_each == 0 && part->kind == PART_MAXIMA;
	int rc = 1;

	if (!plain)
		snprintf(check->why, sizeof(check->why), "it isn't of maxima");
	else
		rc = check_maxima_part(&check->maxima, part, NULL, check->why, sizeof(check->why));
	if (rc == 1)
		tell(check->checking, check->at, "identity", check->why);
	return rc;
}

static int check_repeated(struct part_check *check, const struct plan_part *part,
			  const struct part_rules *rules)
{
	const struct stored_copy *copy = check->at->copy;
	struct plan_part whole = *part;
	int rc = 0;

	if (check->at->state->pair.receiver < check->checking->plan->trainer_count)
		return check_maxima(check, part, rules);
	bool once = copy->repeat == 1 || repeated(copy, part, &whole);
	for (uint32_t r = 0; rc == 0 && r < (once ? 1 : copy->repeat); r++) {
		rc = check_once(check, &whole, rules);
		whole.src_offset += (uint64_t)copy->src_step;
		whole.dst_offset += (uint64_t)copy->dst_step;
	}
	return rc == 0 && part->kind == PART_CODES ? check_part_codes(check, part) : rc;
}

/* The tables of both ends, where they are trainers that keep some. */
static int maxima_begin(struct part_check *check)
{
	const struct plan *plan = check->checking->plan;
	const struct plan_pair *pair = &check->at->state->pair;
	int rc = 0;

	check->maxima =
		(struct maxima_part){.checking = check->checking, .kind = check->at->segment->kind};
	if (pair->sender < plan->trainer_count)
		rc = check_tables(check->checking, pair->sender, &check->maxima.from);
	if (rc == 0 && pair->receiver < plan->trainer_count)
		rc = check_tables(check->checking, pair->receiver, &check->maxima.to);
	return rc;
}

static int check_parts(struct checking *checking, uint32_t member, const struct place_of_copy *at)
{
	const struct plan *plan = checking->plan;
	const struct stored_copy *copy = at->copy;
	const struct plan_part *parts =
		(const struct plan_part *)plan->parts.items + copy->part_first;
	const struct part_rules *rules =
		(const struct part_rules *)plan->part_rules.items + copy->part_first;
	struct part_check check = {.checking = checking, .member = member, .at = at};
	bool maxima = at->state->pair.receiver < plan->trainer_count;
	bool gather = copy->part_count > 1 || maxima;
	uint64_t wire = 0;
	int rc = 0;

	if (!maxima) {
		check.from = check_member_peer(checking, at->state->pair.sender);
		check.to = check_member_peer(checking, at->state->pair.receiver);
		if (check.from == NULL || check.to == NULL)
			return checking->err->code;
	}
	rc = maxima_begin(&check);
	for (uint32_t i = 0; rc == 0 && i < copy->part_count; i++) {
		const struct plan_part *part = &parts[i];
		rc = check_repeated(&check, part, &rules[i]);
		if (rc != 0)
			break;
		if (part->wire_offset != align_up(wire, WIRE_ALIGN))
			tell(checking, at, "wire",
			     "its parts aren't one behind the other on the wire");
		wire = part->wire_offset + wire_bytes(part);
		gather = gather || part->from != part->to || part->kind == PART_SCALES ||
			 !packed(part, part->src_stride, part->from);
		if (copy->ring < 0 && !maxima && !packed(part, part->dst_stride, part->to))
			tell(checking, at, "wire",
			     "it isn't in one piece at the target and avoids the ring");
	}
	if (rc == 0 && wire != copy->bytes)
		tell(checking, at, "wire", "its bytes aren't those of its parts");
	if (rc == 0 && gather != copy->gather)
		tell(checking, at, "wire", "it gathers where it needn't, or doesn't where it must");
	if (rc == -ENOMEM)
		return plan_no_memory(checking->err);
	return MIN(rc, 0);
}

/* All copies of a pair, in the layers planned. */
static int check_pair(struct checking *checking, uint32_t member, const struct pair_state *state)
{
	const struct plan *plan = checking->plan;
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && k < plan->kind_count; k++) {
		if (state->segments[k] == 0)
			continue;
		struct place_of_copy at = {.state = state,
					   .segment = plan_segment(plan, state->segments[k] - 1)};
		at.copy = (const struct stored_copy *)plan->copies.items + at.segment->copy_first;
		for (uint32_t i = 0; rc == 0 && i < at.segment->copy_count; i++, at.copy++)
			rc = check_parts(checking, member, &at);
	}
	return rc;
}

/* ---- One receiver. */

/* Pieces must not share elements, or "each piece once" isn't "each byte once". */
static int check_forms(struct checking *checking, const struct peer *mine)
{
	for (uint32_t i = 0; i < mine->count; i++) {
		const struct param *param = &mine->params[i];
		uint64_t key = (uint64_t)param->rule << 32 | param->form->id;
		if (idmap_get(&checking->forms, key) != NONE)
			continue;
		int rc = account_form_overlaps(param->form);
		if (rc == 1) {
			const char *name = check_param_name(checking, mine, i);
			findings_add(checking->findings, "doubled", name,
				     "two pieces of '%s' in the rollout's "
				     "manifest share elements",
				     name);
		}
		if (rc < 0 || idmap_put(&checking->forms, key, 0) != 0)
			return plan_no_memory(checking->err);
	}
	return 0;
}

static int check_coverage(struct checking *checking, const struct peer *mine)
{
	char box[160];
	struct claim at;
	int rc = check_forms(checking, mine);
	const char *fault = rc == 0 ? account_fault(&checking->written, mine, &at) : NULL;

	if (fault == NULL)
		return rc;
	const struct param *param = &mine->params[at.param];
	const struct piece *piece = &param->form->pieces[at.piece];
	const char *name = check_param_name(checking, mine, at.param);
	at.box.dim_count = piece->dim_count;
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		at.box.extent[d] = at.box.extent[d] == 0 ? piece->extent[d] : at.box.extent[d];
		at.box.offset[d] += piece->offset[d];
	}
	findings_add(
		checking->findings, strcmp(fault, "is written twice") == 0 ? "doubled" : "missing",
		name, "%s of '%s' in '%s' %s", box_text(&at.box, box, sizeof(box)),
		manifest_tensor(checking->plan->input.rollout, piece->tensor)->name, name, fault);
	return 0;
}

/* What is forwarded must have come by a pair that feeds. */
static void check_forwards(struct checking *checking, const struct peer *mine)
{
	const struct claim *missing = account_uncovered(&checking->forwarded, &checking->fed);
	char box[160];

	if (missing == NULL)
		return;
	const char *name = check_param_name(checking, mine, missing->param);
	findings_add(checking->findings, "forward", name,
		     "%s of '%s' is forwarded, but nothing that forwards wait for brings it",
		     box_text(&missing->box, box, sizeof(box)), name);
}

uint32_t check_first_received(const struct plan *plan, uint32_t member)
{
	uint32_t lo = 0, hi = plan->receive_count;

	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		if (plan_receive_pair(plan, middle)->receiver < member)
			lo = middle + 1;
		else
			hi = middle;
	}
	return lo;
}

/* Whether this member gets the very segments that the same rank of the replica before gets. */
static bool received_alike(const struct plan *plan, uint32_t member)
{
	uint32_t ranks = plan->rollout_count;

	if (member < plan->trainer_count + ranks || plan->input.rules.fanout != FANOUT_NONE)
		return false;
	uint32_t a = check_first_received(plan, member - ranks),
		 b = check_first_received(plan, member);
	for (; b < plan->receive_count; a++, b++) {
		const struct pair_state *x = plan_pair_state(plan, plan->by_receiver[a]);
		const struct pair_state *y = plan_pair_state(plan, plan->by_receiver[b]);
		bool x_ends = x->pair.receiver != member - ranks;
		if (y->pair.receiver != member)
			return x_ends;
		if (x_ends || x->pair.sender != y->pair.sender ||
		    memcmp(x->segments, y->segments, plan->kind_count * sizeof(uint32_t)) != 0)
			return false;
	}
	return plan_receive_pair(plan, a)->receiver != member - ranks;
}

static int check_receiver(struct checking *checking, uint32_t member)
{
	const struct plan *plan = checking->plan;
	struct peer *mine = check_member_peer(checking, member);
	int rc = mine == NULL ? checking->err->code : 0;

	if (rc == 0 && plan->self == PLAN_ALL && received_alike(plan, member))
		return 0;
	checking->written.claims.count = 0;
	checking->fed.claims.count = checking->forwarded.claims.count = 0;
	for (uint32_t i = check_first_received(plan, member); rc == 0 && i < plan->receive_count;
	     i++) {
		const struct pair_state *state = plan_pair_state(plan, plan->by_receiver[i]);
		if (state->pair.receiver != member)
			break;
		rc = check_pair(checking, member, state);
	}
	for (uint32_t i = 0; rc == 0 && i < plan->pairs.count; i++) {
		const struct pair_state *state = plan_pair_state(plan, i);
		if (plan->input.rules.fanout != FANOUT_NONE && state->pair.sender == member)
			rc = check_pair(checking, member, state);
	}
	if (rc == 0)
		rc = check_coverage(checking, mine);
	if (rc == 0)
		check_forwards(checking, mine);
	return rc;
}

static int check_receivers(struct checking *checking)
{
	const struct plan *plan = checking->plan;
	const struct plan_input *input = &plan->input;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < plan->pairs.count; i++)
		if (plan_pair_state(plan, i)->pair.receiver < plan->trainer_count)
			rc = check_pair(checking, PLAN_ALL, plan_pair_state(plan, i));
	for (uint32_t m = plan->trainer_count; rc == 0 && m < plan->member_count; m++) {
		rc = check_receiver(checking, m);
		if (input->progress != NULL)
			input->progress(input->progress_arg, m + 1 - plan->trainer_count,
					plan->member_count - plan->trainer_count);
	}
	return rc;
}

static int check_all(struct checking *checking)
{
	const struct plan *plan = checking->plan;
	uint32_t found = checking->findings->count;
	int rc = check_lists(checking);

	if (rc == 0)
		rc = check_numbers(checking);
	if (plan->self != PLAN_ALL && plan->self < plan->trainer_count)
		for (uint32_t i = 0; rc == 0 && i < plan->pairs.count; i++)
			rc = check_pair(checking, plan->self, plan_pair_state(plan, i));
	else if (plan->self != PLAN_ALL)
		rc = rc == 0 ? check_receiver(checking, plan->self) : rc;
	else
		rc = rc == 0 ? check_receivers(checking) : rc;
	/* What is needed is known by now; where something else is wrong it isn't all there is. */
	for (uint32_t t = 0; rc == 0 && checking->findings->count == found &&
			     plan->tables != NULL && t < plan->trainer_count;
	     t++)
		if (plan->self == PLAN_ALL || plan->self == t)
			rc = check_trainer(checking, t);
	if (rc == 0)
		rc = check_loops(checking);
	/* What is stored wrong has been named by now, and isn't walked. */
	return rc == 0 && checking->findings->count == found ? check_walk(checking) : rc;
}

int plan_check(const struct plan *plan, struct findings *findings, struct ws_error *err)
{
	struct ws_error none = {0};
	struct checking checking = {
		.plan = plan, .findings = findings, .err = err != NULL ? err : &none};
	struct findings own = {.arena = &checking.arena};
	int rc = 0;

	if (findings == NULL)
		checking.findings = &own;
	uint32_t found = checking.findings->count;
	checking.peers[0] = arena_array(&checking.arena, plan->trainer_count, sizeof(struct peer));
	checking.peers[1] = arena_array(&checking.arena, plan->rollout_count, sizeof(struct peer));
	if (checking.peers[0] == NULL || checking.peers[1] == NULL)
		rc = plan_no_memory(err);
	else
		rc = check_all(&checking);
	if (rc == 0 && checking.findings->count > found)
		rc = findings_fail(checking.findings, -EINVAL, err);
	vec_release(&checking.written.claims);
	vec_release(&checking.fed.claims);
	vec_release(&checking.forwarded.claims);
	vec_release(&checking.reaches);
	vec_release(&checking.boxes);
	for (uint32_t t = 0; checking.tables != NULL && t < plan->trainer_count; t++)
		idmap_release(&checking.tables[t].by_key);
	idmap_release(&checking.reach_map);
	idmap_release(&checking.forms);
	arena_release(&checking.arena);
	return rc;
}
