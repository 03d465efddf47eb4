/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last of the check: the planned member's part is read once as its side will read it.  All
 * before looks at what is stored; a walk repeats that and moves its params, tables and numbers.
 * Whatever it yields must lie in what the member keeps, and be each pair's ops from first to last.
 */
#include "planner/check.h"

struct walk {
	struct checking *checking;
	bool sends;
	const struct plan_pair **pairs; /* by the other member */
	uint64_t *op_count;		/* walked so far, likewise */
	uint64_t *elements;		/* by param of the member's: written so far */
};

/* The entries that a box' blocks have in the planned trainer's tables. */
static bool blocks_inside(const struct plan *plan, uint32_t dim_count, const uint64_t *extent,
			  const struct plan_blocks *blocks)
{
	struct plan_part entries = {.dim_count = dim_count};

	for (uint32_t d = 0; d < dim_count; d++) {
		if (blocks->stride[d] != 0 && blocks->first[d] >= blocks->each[d])
			return false;
		entries.extent[d] = (blocks->first[d] + extent[d] - 1) / blocks->each[d] + 1;
		entries.src_stride[d] = blocks->stride[d] * (int64_t)ws_dtype_bytes(WS_U32);
	}
	return check_inside(&entries, blocks->table_offset, entries.src_stride, WS_U32,
			    plan_tables_bytes(plan));
}

static const char *source_fault(const struct plan *plan, const struct plan_part *part,
				const struct peer *from)
{
	bool of_tables = part->kind == PART_SCALES || part->kind == PART_MAXIMA;
	uint64_t bytes = part->src_param < from->count ? from->params[part->src_param].bytes : 0;

	if (of_tables)
		bytes = plan_tables_bytes(plan);
	if (!check_inside(part, part->src_offset, part->src_stride, part->from, bytes))
		return of_tables ? "it reads maxima outside the sender's tables"
				 : "it reads outside the sender's param";
	if (part->kind == PART_CODES &&
	    !blocks_inside(plan, part->dim_count, part->extent, part->blocks))
		return "it quantizes by maxima outside the sender's tables";
	return NULL;
}

static const char *target_fault(struct walk *walk, const struct plan_part *part,
				const struct peer *to)
{
	bool maxima = part->kind == PART_MAXIMA;
	uint64_t bytes = plan_tables_bytes(walk->checking->plan), count = 1;

	if (!maxima && part->dst_param >= to->count)
		return "it writes to no param";
	if (!maxima)
		bytes = to->params[part->dst_param].bytes;
	if (!check_inside(part, part->dst_offset, part->dst_stride, part->to, bytes))
		return "it writes outside what the receiver keeps";
	for (uint32_t d = 0; d < part->dim_count; d++)
		count *= part->extent[d];
	if (!maxima)
		walk->elements[part->dst_param] += count;
	return NULL;
}

/* The copy's numbers, as engines on both ends go by them. */
static const char *numbers_fault(struct walk *walk, const struct plan_copy *copy)
{
	uint32_t other = walk->sends ? copy->receiver : copy->sender;
	const struct plan_pair *pair = walk->pairs[other];

	if (pair == NULL || copy->first_op != walk->op_count[other])
		return "its ops don't follow those of the copy before";
	walk->op_count[other] += copy->op_count;
	if (copy->counter >= pair->counter_count)
		return "it feeds a counter that isn't there";
	const struct plan_counter *counter = &pair->counters[copy->counter];
	if (counter->bucket != copy->bucket || counter->ring != copy->ring)
		return "it feeds another copy's counter";
	if (pair->inbox_bytes > 0 && (copy->inbox_offset > pair->inbox_bytes ||
				      copy->bytes > pair->inbox_bytes - copy->inbox_offset))
		return "it lands outside the receiver's inbox";
	return NULL;
}

static const char *copy_fault(struct walk *walk, const struct plan_copy *copy,
			      const struct peer *mine)
{
	const struct plan *plan = walk->checking->plan;
	const char *fault = numbers_fault(walk, copy);

	for (uint32_t i = 0; fault == NULL && i < copy->part_count; i++)
		fault = walk->sends ? source_fault(plan, &copy->parts[i], mine)
				    : target_fault(walk, &copy->parts[i], mine);
	return fault;
}

static void tell(const struct walk *walk, const struct plan_copy *copy, const char *fault)
{
	const struct plan *plan = walk->checking->plan;
	char sender[96], receiver[96];

	plan_member_name(plan, copy->sender, sender, sizeof(sender));
	plan_member_name(plan, copy->receiver, receiver, sizeof(receiver));
	findings_add(walk->checking->findings, "walk", sender,
		     "the copy of %s to %s at op %" PRIu64 " of '%s' is read wrong: %s", sender,
		     receiver, copy->first_op, plan_bucket_name(plan, copy->bucket), fault);
}

static void pairs_list(struct walk *walk)
{
	const struct plan *plan = walk->checking->plan;
	uint32_t count = walk->sends ? plan->send_count : plan->receive_count;

	memset(walk->pairs, 0, plan->member_count * sizeof(*walk->pairs));
	memset(walk->op_count, 0, plan->member_count * sizeof(*walk->op_count));
	for (uint32_t i = 0; i < count; i++) {
		const struct plan_pair *pair =
			walk->sends ? plan_send_pair(plan, i) : plan_receive_pair(plan, i);
		walk->pairs[walk->sends ? pair->receiver : pair->sender] = pair;
	}
}

/* Whether everything came that is to come: the last ops of pairs, and each param's elements. */
static void walk_end(struct walk *walk, const struct peer *mine)
{
	const struct plan *plan = walk->checking->plan;

	for (uint32_t m = 0; m < plan->member_count; m++) {
		const struct plan_pair *pair = walk->pairs[m];
		struct plan_copy last = {.first_op = walk->op_count[m]};
		if (pair == NULL || last.first_op == pair->data_op_count)
			continue;
		last.sender = pair->sender;
		last.receiver = pair->receiver;
		tell(walk, &last, "it isn't there");
		return;
	}
	if (walk->sends || plan->self < plan->trainer_count)
		return;
	for (uint32_t p = 0; p < mine->count; p++) {
		if (walk->elements[p] == mine->params[p].form->covered_count)
			continue;
		const char *name = check_param_name(walk->checking, mine, p);
		findings_add(walk->checking->findings, "walk", name,
			     "%" PRIu64 " elements of '%s' are read to be written, and it has "
			     "%" PRIu64,
			     walk->elements[p], name, mine->params[p].form->covered_count);
		return;
	}
}

/* All that the member sends, or all that it receives. */
static void walk_copies(struct walk *walk, const struct peer *mine)
{
	const struct plan *plan = walk->checking->plan;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;

	pairs_list(walk);
	while (walk->sends ? plan_next_send(plan, &cursor, &copy)
			   : plan_next_receive(plan, &cursor, &copy)) {
		const char *fault = copy_fault(walk, &copy, mine);
		if (fault == NULL)
			continue;
		tell(walk, &copy, fault);
		return;
	}
	walk_end(walk, mine);
}

static void walk_locals(struct checking *checking, const struct peer *mine)
{
	const struct plan *plan = checking->plan;
	struct plan_cursor cursor = {0};
	struct plan_local local;

	while (plan_next_local(plan, &cursor, &local)) {
		struct plan_part box = {.dim_count = local.dim_count};
		memcpy(box.extent, local.extent, sizeof(box.extent));
		if (local.param < mine->count &&
		    check_inside(&box, local.src_offset, local.src_stride, local.from,
				 mine->params[local.param].bytes) &&
		    blocks_inside(plan, local.dim_count, local.extent, &local.blocks))
			continue;
		findings_add(checking->findings, "walk", plan_bucket_name(plan, local.bucket),
			     "a box in which maxima of '%s' are found is read wrong: it lies "
			     "outside its param, or raises what is behind the tables",
			     plan_bucket_name(plan, local.bucket));
		return;
	}
}

/* Whether a pair stands behind another one, by sender or by receiver. */
static bool follows(const struct plan_pair *pair, const struct plan_pair *last, bool by_receiver)
{
	uint64_t sender = pair->sender, receiver = pair->receiver;

	return by_receiver
		       ? (receiver << 32 | sender) > ((uint64_t)last->receiver << 32 | last->sender)
		       : (sender << 32 | receiver) >
				 ((uint64_t)last->sender << 32 | last->receiver);
}

/* NULL, or what is wrong with the lists that lead to pairs. */
static const char *lists_fault(const struct plan *plan)
{
	uint32_t sends = 0, receives = 0, first = plan->send_first;
	bool all = plan->self == PLAN_ALL;

	for (uint32_t i = 0; i < plan->pairs.count; i++) {
		const struct plan_pair *pair = &plan_pair_state(plan, i)->pair;
		if (i > 0 && !follows(pair, &plan_pair_state(plan, i - 1)->pair, false))
			return "its pairs aren't in order, each once";
		sends += all || pair->sender == plan->self;
		receives += all || pair->receiver == plan->self;
	}
	if (plan->send_count != sends || plan->receive_count != receives ||
	    first > plan->pairs.count - sends)
		return "its pairs aren't all listed";
	for (uint32_t i = 0; !all && i < sends; i++)
		if (plan_send_pair(plan, i)->sender != plan->self ||
		    plan->send_order[i] - first >= sends)
			return "a pair that it sends to isn't its own";
	for (uint32_t i = 0; i < receives; i++) {
		if (plan->by_receiver[i] >= plan->pairs.count)
			return "a pair that it receives from isn't there";
		const struct plan_pair *pair = plan_receive_pair(plan, i);
		if (!all && pair->receiver != plan->self)
			return "a pair that it receives from isn't its own";
		if (i > 0 && !follows(pair, plan_receive_pair(plan, i - 1), true))
			return "its receivers aren't in order, each pair once";
	}
	return NULL;
}

int check_lists(struct checking *checking)
{
	const char *fault = lists_fault(checking->plan);

	if (fault == NULL)
		return 0;
	findings_add(checking->findings, "walk", "plan", "the plan can't be walked: %s", fault);
	return findings_fail(checking->findings, -EINVAL, checking->err);
}

int check_walk(struct checking *checking)
{
	const struct plan *plan = checking->plan;
	struct walk walk = {.checking = checking};

	if (plan->self == PLAN_ALL)
		return 0; /* nobody walks it */
	struct peer *mine = check_member_peer(checking, plan->self);
	if (mine == NULL)
		return checking->err->code;
	walk.pairs = arena_array(&checking->arena, plan->member_count, sizeof(*walk.pairs));
	walk.op_count = arena_array(&checking->arena, plan->member_count, sizeof(*walk.op_count));
	walk.elements = arena_array(&checking->arena, mine->count, sizeof(*walk.elements));
	if (walk.pairs == NULL || walk.op_count == NULL || walk.elements == NULL)
		return plan_no_memory(checking->err);
	for (int sends = 0; sends < 2; sends++) {
		walk.sends = sends == 1;
		walk_copies(&walk, mine);
	}
	if (plan->self < plan->trainer_count)
		walk_locals(checking, mine);
	return 0;
}
