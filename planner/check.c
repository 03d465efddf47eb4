/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of a member's plan before its first write, by other means than planning: each copy
 * is followed element by element through both ranks' forms, a receiver's bytes go into an
 * account that must equal what its params cover, and every number of the plan (ops, counters,
 * ring, wire places) is derived again.
 */
#include <stdio.h>

#include "planner/check.h"

/* What a pair's copies add up to. */
struct pair_account {
	uint64_t next_op, bytes;
	uint32_t ring_count, last_bucket, counter_count;
	uint64_t *counter_ops, *counter_bytes; /* in the arena */
};

struct checking {
	const struct plan *plan;
	struct findings *findings;
	struct ws_error *err;
	struct arena arena;    /* lives as long as the peers */
	struct peer *peers[2]; /* by rank of one side; of one replica */
	struct pair_account *pairs;
	struct account written;
	struct account fed,
		forwarded;  /* of written: what feeds; and what is sent on, at my params */
	struct idmap forms; /* rule and form id: the form was looked at */
};

static int peer_params(struct checking *checking, uint32_t member, struct spot_param *spot,
		       uint32_t param, const struct rank_params **params_out)
{
	const struct plan *plan = checking->plan;
	bool trainer = member < plan->trainer_count;
	uint32_t rank = trainer ? member : (member - plan->trainer_count) % plan->rollout_count;
	struct peer *peer = &checking->peers[trainer ? SIDE_TRAINER : SIDE_ROLLOUT][rank];
	const struct manifest *manifest = trainer ? plan->input.trainer : plan->input.rollout;

	if (!peer->known) {
		int rc = manifest_params(manifest, rank, &checking->arena, &peer->params,
					 checking->err);
		if (rc != 0)
			return rc;
		peer->known = true;
	}
	*params_out = &peer->params;
	if (spot != NULL && param < peer->params.count &&
	    spot->param != &peer->params.params[param])
		*spot = (struct spot_param){
			.manifest = manifest, .rank = rank, .param = &peer->params.params[param]};
	return 0;
}

static void tell(struct checking *checking, const struct plan_copy *copy, const char *kind,
		 const char *text)
{
	char sender[96], receiver[96], bucket[64];
	const struct plan *plan = checking->plan;

	plan_member_name(plan, copy->sender, sender, sizeof(sender));
	plan_member_name(plan, copy->receiver, receiver, sizeof(receiver));
	snprintf(bucket, sizeof(bucket), "bucket %" PRIu32, copy->bucket);
	findings_add(checking->findings, kind,
		     copy->bucket < plan->bucket_count ? plan->buckets[copy->bucket].name : bucket,
		     "the copy of %s to %s at op %" PRIu64 " is planned wrong: %s", sender,
		     receiver, copy->first_op, text);
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

/* Whether the box stays inside a param of so many bytes. */
static bool inside(const struct plan_part *part, uint64_t offset, const int64_t *stride,
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

/* NULL, or what is wrong with the part taken by itself. */
static const char *part_fault(const struct plan_part *part, const struct rank_params *from,
			      const struct rank_params *to)
{
	if (part->src_param >= from->count || part->dst_param >= to->count)
		return "no such param";
	const struct param *src = &from->params[part->src_param],
			   *dst = &to->params[part->dst_param];
	if (part->from != src->dtype || part->to != dst->dtype)
		return "its dtypes aren't those of the params";
	if (part->dim_count == 0 || part->dim_count > BOX_DIM_MAX)
		return "its box has too many dims";
	for (uint32_t d = 0; d < part->dim_count; d++)
		if (part->extent[d] == 0 || part->extent[d] > MAX(src->form->element_count, 1))
			return "its box isn't of the param's size";
	if (!inside(part, part->src_offset, part->src_stride, part->from, src->bytes))
		return "it reads outside the sender's param";
	if (!inside(part, part->dst_offset, part->dst_stride, part->to, dst->bytes))
		return "it writes outside the receiver's param";
	return NULL;
}

/* The same elements the other way round: what is written becomes what is read. */
static struct plan_part mirrored(const struct plan_part *part)
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

/* Follows the part, and notes what it writes here, or forwards from here. */
static int follow_part(struct checking *checking, const struct plan_pair *pair,
		       const struct plan_part *part, struct spot_param *source,
		       struct spot_param *target, char *why, size_t why_bytes)
{
	const struct plan *plan = checking->plan;

	if (pair->sender == plan->self && pair->sender >= plan->trainer_count) {
		struct plan_part mirror = mirrored(part);
		return account_part(&checking->forwarded, &mirror, target, source, why, why_bytes);
	}
	bool receives = pair->receiver == plan->self;
	int rc = account_part(receives ? &checking->written : NULL, part, source, target, why,
			      why_bytes);
	if (rc == 0 && receives && pair->feeds)
		rc = account_part(&checking->fed, part, source, target, why, why_bytes);
	return rc;
}

static int check_parts(struct checking *checking, const struct plan_copy *copy,
		       const struct plan_pair *pair)
{
	const struct rank_params *from, *to;
	struct spot_param source = {0}, target = {0};
	uint64_t wire = 0;
	bool gather = copy->part_count > 1;
	char why[1200];
	int rc = peer_params(checking, copy->sender, NULL, 0, &from);

	if (rc == 0)
		rc = peer_params(checking, copy->receiver, NULL, 0, &to);
	for (uint32_t i = 0; rc == 0 && i < copy->part_count; i++) {
		const struct plan_part *part = &copy->parts[i];
		const char *fault = part_fault(part, from, to);
		if (fault != NULL) {
			tell(checking, copy, "outside", fault);
			return 0;
		}
		if (part->wire_offset != align_up(wire, WIRE_ALIGN))
			tell(checking, copy, "wire",
			     "its parts aren't one behind the other on the wire");
		wire = part->wire_offset + wire_bytes(part);
		gather = gather || part->from != part->to ||
			 !packed(part, part->src_stride, part->from);
		if (copy->ring < 0 && !packed(part, part->dst_stride, part->to))
			tell(checking, copy, "wire",
			     "it isn't in one piece at the target and avoids the ring");
		rc = peer_params(checking, copy->sender, &source, part->src_param, &from);
		if (rc == 0)
			rc = peer_params(checking, copy->receiver, &target, part->dst_param, &to);
		if (rc == 0)
			rc = follow_part(checking, pair, part, &source, &target, why, sizeof(why));
		if (rc == 1) {
			tell(checking, copy, "identity", why);
			return 0;
		}
	}
	if (rc == 0 && wire != copy->bytes)
		tell(checking, copy, "wire", "its bytes aren't those of its parts");
	if (rc == 0 && gather != copy->gather)
		tell(checking, copy, "wire",
		     "it gathers where it needn't, or doesn't where it must");
	return rc == -ENOMEM ? plan_no_memory(checking->err) : rc;
}

/* The pair by its members: pairs are sorted by sender, then receiver. */
static uint32_t pair_of(const struct plan *plan, uint32_t sender, uint32_t receiver)
{
	uint32_t lo = 0, hi = (uint32_t)plan->pairs.count;

	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		const struct plan_pair *pair = &plan_pair_state(plan, middle)->pair;
		if (pair->sender < sender || (pair->sender == sender && pair->receiver < receiver))
			lo = middle + 1;
		else
			hi = middle;
	}
	if (lo == plan->pairs.count)
		return NONE;
	const struct plan_pair *pair = &plan_pair_state(plan, lo)->pair;
	return pair->sender == sender && pair->receiver == receiver ? lo : NONE;
}

/* Ops, counters and ring numbers: each copy continues where its pair's last one ended. */
static const char *numbers_fault(struct checking *checking, const struct plan_copy *copy,
				 uint32_t index)
{
	const struct plan *plan = checking->plan;
	const struct plan_pair *pair = &plan_pair_state(plan, index)->pair;
	struct pair_account *account = &checking->pairs[index];
	const char *fault = NULL;

	if (copy->bytes == 0 || copy->part_count == 0)
		fault = "it is empty";
	else if (copy->op_count != ws_op_count(copy->bytes, plan->input.rules.op_bytes))
		fault = "its ops aren't as many as its bytes need";
	else if (copy->first_op != account->next_op)
		fault = "its op ids don't follow the copy before";
	else if (copy->bucket >= plan->bucket_count || copy->bucket < account->last_bucket)
		fault = "its bucket is out of order";
	else if (copy->ring < -1 || (copy->ring >= 0 && copy->ring != account->ring_count))
		fault = "its ring number doesn't follow the one before";
	else if (copy->ring >= 0 && copy->bytes > plan->slot_bytes)
		fault = "it is larger than a ring slot";
	else if (copy->ring < 0 && copy->part_count != 1)
		fault = "it has several parts and avoids the ring";
	else if (copy->sender >= plan->trainer_count && (copy->ring >= 0 || copy->gather))
		fault = "a forward isn't a plain write";
	else if (copy->counter >= pair->counter_count)
		fault = "it has no such counter";
	else if (pair->counters[copy->counter].bucket != copy->bucket ||
		 pair->counters[copy->counter].ring != copy->ring)
		fault = "its counter is another bucket's or ring copy's";
	if (fault != NULL)
		return fault;
	account->next_op += copy->op_count;
	account->bytes += copy->bytes;
	account->last_bucket = copy->bucket;
	account->ring_count += copy->ring >= 0 ? 1 : 0;
	account->counter_ops[copy->counter] += copy->op_count;
	account->counter_bytes[copy->counter] += copy->bytes;
	return NULL;
}

static int check_copy(struct checking *checking, const struct plan_copy *copy)
{
	uint32_t self = checking->plan->self;
	uint32_t index = pair_of(checking->plan, copy->sender, copy->receiver);

	if (index == NONE || (copy->receiver == self) == (copy->sender == self)) {
		findings_add(checking->findings, "pair", "plan",
			     "a copy from member %" PRIu32 " to member %" PRIu32
			     " isn't of a pair of member %" PRIu32,
			     copy->sender, copy->receiver, self);
		return 0;
	}
	const char *fault = numbers_fault(checking, copy, index);
	if (fault != NULL) {
		tell(checking, copy, "numbers", fault);
		return 0;
	}
	return check_parts(checking, copy, &plan_pair_state(checking->plan, index)->pair);
}

/* Who feeds: a trainer, or a rank of an earlier replica.  So forwards never wait in a circle. */
static bool may_feed(const struct plan *plan, const struct plan_pair *pair)
{
	uint32_t trainers = plan->trainer_count, ranks = plan->rollout_count;

	return pair->receiver >= trainers &&
	       (pair->sender < trainers ||
		(pair->sender - trainers) / ranks < (pair->receiver - trainers) / ranks);
}

static const char *pair_fault(const struct plan *plan, const struct plan_pair *pair,
			      const struct pair_account *account)
{
	uint32_t digests = plan->input.rules.wire_digests ? 1 : 0;
	uint32_t credits = account->ring_count > plan_slot_count(plan)
				   ? account->ring_count - plan_slot_count(plan)
				   : 0;

	if (pair->receiver < plan->trainer_count || pair->receiver == pair->sender)
		return "it sends where nobody receives";
	if (pair->sender >= plan->trainer_count && plan->input.rules.fanout == FANOUT_NONE)
		return "a rollout sends though nothing is forwarded";
	if (pair->feeds && (plan->input.rules.fanout == FANOUT_NONE || !may_feed(plan, pair)))
		return "it would make forwards wait in a circle";
	if (pair->bytes != account->bytes || pair->data_op_count != account->next_op)
		return "its bytes or ops aren't the sum of its copies";
	if (pair->op_count != account->next_op + (uint64_t)digests * pair->counter_count)
		return "its ops don't add up";
	if (pair->ring_count != account->ring_count || pair->credit_count != credits)
		return "its ring copies or credits don't add up";
	for (uint32_t i = 0; i < pair->counter_count; i++) {
		const struct plan_counter *counter = &pair->counters[i];
		if (counter->bytes != account->counter_bytes[i] || account->counter_ops[i] == 0 ||
		    counter->op_count != account->counter_ops[i] + digests)
			return "a threshold isn't what its copies send";
	}
	return NULL;
}

static void check_pairs(struct checking *checking)
{
	const struct plan *plan = checking->plan;
	char sender[96], receiver[96];

	for (uint32_t i = 0; i < plan->pairs.count; i++) {
		const struct plan_pair *pair = &plan_pair_state(plan, i)->pair;
		const char *fault = pair_fault(plan, pair, &checking->pairs[i]);
		if (fault == NULL)
			continue;
		plan_member_name(plan, pair->sender, sender, sizeof(sender));
		plan_member_name(plan, pair->receiver, receiver, sizeof(receiver));
		findings_add(checking->findings, "numbers", sender, "the pair %s to %s: %s", sender,
			     receiver, fault);
	}
}

/* Pieces must not share elements, or "each piece once" isn't "each byte once". */
static int check_forms(struct checking *checking, const struct rank_params *mine)
{
	for (uint32_t i = 0; i < mine->count; i++) {
		const struct param *param = &mine->params[i];
		uint64_t key = (uint64_t)param->rule << 32 | param->form->id;
		if (idmap_get(&checking->forms, key) != NONE)
			continue;
		int rc = account_form_overlaps(param->form);
		if (rc == 1)
			findings_add(checking->findings, "doubled", param->name,
				     "two pieces of '%s' in the rollout's "
				     "manifest share elements",
				     param->name);
		if (rc < 0 || idmap_put(&checking->forms, key, 0) != 0)
			return plan_no_memory(checking->err);
	}
	return 0;
}

static int check_coverage(struct checking *checking)
{
	const struct rank_params *mine;
	char box[160];
	struct claim at;
	int rc = peer_params(checking, checking->plan->self, NULL, 0, &mine);

	if (rc == 0)
		rc = check_forms(checking, mine);
	if (rc != 0)
		return rc;
	const char *fault = account_fault(&checking->written, mine, &at);
	if (fault == NULL)
		return 0;
	const struct param *param = &mine->params[at.param];
	const struct piece *piece = &param->form->pieces[at.piece];
	at.box.dim_count = piece->dim_count;
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		at.box.extent[d] = at.box.extent[d] == 0 ? piece->extent[d] : at.box.extent[d];
		at.box.offset[d] += piece->offset[d];
	}
	findings_add(checking->findings,
		     strcmp(fault, "is written twice") == 0 ? "doubled" : "missing", param->name,
		     "%s of '%s' in '%s' %s", box_text(&at.box, box, sizeof(box)),
		     manifest_tensor(checking->plan->input.rollout, piece->tensor)->name,
		     param->name, fault);
	return 0;
}

/* What is forwarded must have come by a pair that feeds. */
static int check_forwards(struct checking *checking)
{
	const struct rank_params *mine;
	const struct claim *missing = account_uncovered(&checking->forwarded, &checking->fed);
	char box[160];
	int rc = missing == NULL ? 0 : peer_params(checking, checking->plan->self, NULL, 0, &mine);

	if (rc != 0 || missing == NULL)
		return rc;
	findings_add(checking->findings, "forward", mine->params[missing->param].name,
		     "%s of '%s' is forwarded, but nothing that forwards wait for brings it",
		     box_text(&missing->box, box, sizeof(box)), mine->params[missing->param].name);
	return 0;
}

static int accounts_make(struct checking *checking, struct arena *arena)
{
	const struct plan *plan = checking->plan;

	checking->pairs = arena_array(arena, plan->pairs.count, sizeof(*checking->pairs));
	for (uint32_t i = 0; checking->pairs != NULL && i < plan->pairs.count; i++) {
		struct pair_account *account = &checking->pairs[i];
		uint32_t count = plan_pair_state(plan, i)->pair.counter_count;
		account->counter_ops = arena_array(arena, count, sizeof(uint64_t));
		account->counter_bytes = arena_array(arena, count, sizeof(uint64_t));
		if (account->counter_ops == NULL || account->counter_bytes == NULL)
			return -ENOMEM;
	}
	return checking->pairs == NULL ? -ENOMEM : 0;
}

static int check_member(struct checking *checking, const struct plan *plan)
{
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	struct arena arena = {0};
	bool receives = plan->self >= plan->trainer_count;
	int rc;

	checking->plan = plan;
	checking->written.claims.count = 0;
	checking->fed.claims.count = checking->forwarded.claims.count = 0;
	rc = accounts_make(checking, &arena) != 0 ? plan_no_memory(checking->err) : 0;
	while (rc == 0 && plan_next_receive(plan, &cursor, &copy))
		rc = check_copy(checking, &copy);
	cursor = (struct plan_cursor){0};
	while (rc == 0 && plan_next_send(plan, &cursor, &copy))
		rc = check_copy(checking, &copy);
	if (rc == 0)
		check_pairs(checking);
	if (rc == 0 && receives)
		rc = check_coverage(checking);
	if (rc == 0 && receives)
		rc = check_forwards(checking);
	arena_release(&arena);
	return rc;
}

static int check_all(struct checking *checking, const struct plan *all)
{
	int rc = 0;

	for (uint32_t member = 0; rc == 0 && member < all->member_count; member++) {
		struct plan *plan = NULL;
		rc = plan_make(&plan, &all->input, member, checking->findings, checking->err);
		if (rc == 0)
			rc = check_member(checking, plan);
		plan_free(plan);
	}
	return rc;
}

int plan_check(const struct plan *plan, struct findings *findings, struct ws_error *err)
{
	struct checking checking = {.findings = findings, .err = err};
	struct findings own = {.arena = &checking.arena};
	int rc = 0;

	if (findings == NULL)
		checking.findings = &own;
	uint32_t found = checking.findings->count;
	checking.peers[0] = arena_array(&checking.arena, plan->trainer_count, sizeof(struct peer));
	checking.peers[1] = arena_array(&checking.arena, plan->rollout_count, sizeof(struct peer));
	if (checking.peers[0] == NULL || checking.peers[1] == NULL)
		rc = plan_no_memory(err);
	else if (plan->self == PLAN_ALL)
		rc = check_all(&checking, plan);
	else
		rc = check_member(&checking, plan);
	if (rc == 0 && checking.findings->count > found)
		rc = findings_fail(checking.findings, -EINVAL, err);
	vec_release(&checking.written.claims);
	vec_release(&checking.fed.claims);
	vec_release(&checking.forwarded.claims);
	idmap_release(&checking.forms);
	arena_release(&checking.arena);
	return rc;
}
