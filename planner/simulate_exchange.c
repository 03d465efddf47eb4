/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maxima between trainers: a trainer's writes of a bucket wait for its own maxima and for those of
 * its tellers, as the plan pairs them.  What is told is small: it costs the wire's latency, and
 * its bytes and writes at the NIC of either end, but doesn't share links with the weights.
 */
#include "planner/simulate_internal.h"

int exchanges_make(struct player *player)
{
	const struct plan *plan = player->plan;
	uint32_t pairs = plan_send_pair_count(plan);
	size_t works = (size_t)player->trainers * player->buckets;

	player->exchanges = arena_array(&player->arena, works, sizeof(*player->exchanges));
	player->tells_first =
		arena_array(&player->arena, player->trainers + 1ull, sizeof(uint32_t));
	if (player->exchanges == NULL || player->tells_first == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < works; i++)
		player->exchanges[i].left = 1;
	for (uint32_t i = 0; i < pairs; i++) {
		const struct plan_pair *pair = plan_send_pair(plan, i);
		if (pair->sender < player->trainers)
			player->tells_first[pair->sender + 1] = i + 1;
		for (uint32_t c = 0; pair_tells(plan, pair) && c < pair->counter_count; c++) {
			const struct plan_counter *counter = &pair->counters[c];
			struct exchange *out = exchange_of(player, pair->sender, counter->bucket);
			struct exchange *in = exchange_of(player, pair->receiver, counter->bucket);
			in->left++;
			in->in_bytes += counter->bytes;
			in->in_ops += counter->op_count;
			out->out_bytes += counter->bytes;
			out->out_ops += counter->op_count;
		}
	}
	/* Pairs are sorted by sender; who sends nothing has none between its neighbours'. */
	for (uint32_t t = 0; t < player->trainers; t++)
		player->tells_first[t + 1] =
			MAX(player->tells_first[t], player->tells_first[t + 1]);
	return 0;
}

/* What bytes and writes take at a trainer's NIC. */
static double nic_s(const struct player *player, uint32_t trainer, enum link link, uint64_t bytes,
		    uint32_t ops)
{
	double line = player->capacities[link_of(trainer, link)];

	return MAX((double)bytes / line, (double)ops * player->options->constants.op_ns * 1e-9);
}

/* One more has come: with the last, the trainer's writes may begin. */
static void exchange_come(struct player *player, uint32_t trainer, uint32_t bucket, double come_s)
{
	struct exchange *exchange = exchange_of(player, trainer, bucket);
	const struct work *send = send_of(player, trainer, bucket);
	double fills_s = player->launch_s +
			 (double)player->plan->input.rules.op_bytes * QUANT_PASSES / player->hbm;

	exchange->end_s = MAX(exchange->end_s, come_s);
	if (--exchange->left > 0)
		return;
	double in_s = nic_s(player, trainer, LINK_NIC_IN, exchange->in_bytes, exchange->in_ops);
	double out_s = nic_s(player, trainer, LINK_NIC_OUT, exchange->out_bytes, exchange->out_ops);
	exchange->end_s += in_s;
	if (exchange->in_ops + exchange->out_ops > 0)
		player_add(player, SIM_EXCHANGE, trainer, bucket, exchange->found_s,
			   MAX(exchange->end_s, exchange->found_s + out_s), exchange->in_bytes,
			   MAX(in_s, out_s));
	if (send->bytes > 0)
		*gate_of(player, trainer, bucket) =
			exchange->end_s + (send->special_bytes > 0 ? fills_s : 0);
}

/* The pair's row of a bucket, or NULL. */
static const struct plan_counter *told_in(const struct plan_pair *pair, uint32_t bucket)
{
	uint32_t lo = 0, hi = pair->counter_count;

	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		if (pair->counters[middle].bucket < bucket)
			lo = middle + 1;
		else
			hi = middle;
	}
	return lo < pair->counter_count && pair->counters[lo].bucket == bucket ? &pair->counters[lo]
									       : NULL;
}

void exchange_found(struct player *player, uint32_t trainer, uint32_t bucket, double found_s)
{
	struct exchange *mine = exchange_of(player, trainer, bucket);
	double sent_s = found_s + player->latency_s +
			nic_s(player, trainer, LINK_NIC_OUT, mine->out_bytes, mine->out_ops);

	mine->found_s = found_s;
	for (uint32_t i = player->tells_first[trainer]; i < player->tells_first[trainer + 1]; i++) {
		const struct plan_pair *pair = plan_send_pair(player->plan, i);
		if (pair_tells(player->plan, pair) && told_in(pair, bucket) != NULL)
			exchange_come(player, pair->receiver, bucket, sent_s);
	}
	exchange_come(player, trainer, bucket, found_s);
}
