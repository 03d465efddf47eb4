/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is right but slow: a plan that covers every byte exactly once may still leave senders
 * idle, lean on one NIC, or cut its writes too small.
 */
#include "planner/plan_internal.h"

#define BUSY_SHARE_MAX 1.05	   /* of the mean, at either end */
#define OP_BYTES_SMALL (64u << 10) /* mean bytes of a write, below which each one's cost shows */
#define NAMED_MAX      8

static void warn_idle(const struct plan *all, struct findings *warnings)
{
	char list[NAMED_MAX * 24];
	struct writer out = writer_fixed(list, sizeof(list));
	uint32_t named = 0, idle = all->totals.senders_idle;

	if (idle == 0)
		return;
	for (uint32_t i = 0; i < all->trainer_count && named < NAMED_MAX; i++)
		if (all->sent[i] == 0)
			write_format(&out, "%s%" PRIu32, named++ == 0 ? "" : ", ", i);
	write_format(&out, "%s", idle > named ? ", ..." : "");
	write_u8(&out, 0);
	findings_add(warnings, "idle", "trainers",
		     "of rank%s %s send nothing: %" PRIu32 " of %" PRIu32, idle == 1 ? "" : "s",
		     list, idle, all->trainer_count);
}

/* Whether the speeds of all these members are known. */
static bool speeds_known(const struct plan *all, uint32_t first, uint32_t end)
{
	while (first < end && all->input.places != NULL && all->input.places[first].mbps > 0)
		first++;
	return first == end;
}

/* What a member can do, to weigh its bytes by: its speed, or its NICs where that isn't known. */
static double place_weight(const struct plan *all, uint32_t member, bool by_speed)
{
	const struct place *place = all->input.places == NULL ? NULL : &all->input.places[member];

	if (place == NULL)
		return 1;
	return by_speed ? (double)place->mbps : place->nic_count;
}

/* The busiest of members [first, end) against what would be even. */
static void warn_busy(const struct plan *all, const uint64_t *bytes, uint32_t first, uint32_t end,
		      const char *does, struct findings *warnings)
{
	double sum = 0, weights = 0, highest = 0;
	bool by_speed = speeds_known(all, first, end);
	uint32_t busiest = first;
	char name[96], most[BYTES_TEXT], fair[BYTES_TEXT];

	for (uint32_t i = first; i < end; i++) {
		double weight = place_weight(all, i, by_speed), load = (double)bytes[i] / weight;
		sum += (double)bytes[i];
		weights += weight;
		if (load > highest) {
			highest = load;
			busiest = i;
		}
	}
	double even = sum / weights;
	if (sum <= 0 || highest <= even * BUSY_SHARE_MAX)
		return;
	findings_add(warnings, "imbalance", plan_member_name(all, busiest, name, sizeof(name)),
		     "%s %s, %.2f times the even share of %s", does,
		     bytes_text(bytes[busiest], most, sizeof(most)), highest / even,
		     bytes_text((uint64_t)(even * place_weight(all, busiest, by_speed)), fair,
				sizeof(fair)));
}

static void warn_boxes(const struct plan *all, struct findings *warnings)
{
	const struct plan_totals *totals = &all->totals;
	uint64_t op_bytes = totals->ops == 0 ? 0 : totals->bytes / totals->ops;
	char mean[BYTES_TEXT], allowed[BYTES_TEXT];

	if (totals->class_count[3] > totals->boxes / 10)
		findings_add(warnings, "strided", "boxes",
			     "are strided at both ends, %" PRIu64 " of %" PRIu64
			     ": gathered by the sender, unpacked by the receiver",
			     totals->class_count[3], totals->boxes);
	if (totals->ops > all->member_count && op_bytes < OP_BYTES_SMALL &&
	    op_bytes < all->input.rules.op_bytes)
		findings_add(warnings, "small", "writes",
			     "are %s on average, where %s are allowed: %" PRIu64 " of them",
			     bytes_text(op_bytes, mean, sizeof(mean)),
			     bytes_text(all->input.rules.op_bytes, allowed, sizeof(allowed)),
			     totals->ops);
}

static void warn_ops(const struct plan *all, struct findings *warnings)
{
	uint64_t ops = 0, most = 0;
	uint32_t at = NONE, most_at = 0;
	char name[96];

	for (uint32_t i = 0; i < plan_receive_pair_count(all); i++) {
		const struct plan_pair *pair = plan_receive_pair(all, i);
		ops = pair->receiver == at ? ops + pair->op_count : pair->op_count;
		at = pair->receiver;
		if (ops > most) {
			most = ops;
			most_at = at;
		}
	}
	if (most > OPS_MAX / 2)
		findings_add(warnings, "ops", plan_member_name(all, most_at, name, sizeof(name)),
			     "takes %" PRIu64
			     " of the %u writes that one receiver can tell apart: a larger "
			     "--op-bytes leaves room",
			     most, OPS_MAX);
}

void plan_warnings(const struct plan *all, struct findings *warnings)
{
	warn_idle(all, warnings);
	warn_busy(all, all->sent, 0, all->trainer_count, "sends", warnings);
	warn_busy(all, all->received, all->trainer_count, all->member_count, "receives", warnings);
	warn_boxes(all, warnings);
	warn_ops(all, warnings);
}
