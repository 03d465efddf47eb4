/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as links that flows share.  Each pair is a flow, a FIFO of its buckets, since the engine
 * serves its peers in turns.  Packing and quantizing stream op by op with the writes, so they are
 * one more link that gathered bytes pass, and so is the bounded staging.
 */
#include "planner/simulate_internal.h"

#define DEPTH_DEFAULT 16
#define GRAIN	      2000.0 /* steps in the time that the busiest link needs */

/* ---- How fast. */
static double line_rate(const struct player *player, uint32_t member)
{
	const struct place *places = player->plan->input.places;
	double gbps = player->options->constants.nic_gbps;

	if (places != NULL && places[member].mbps != 0)
		gbps = (double)places[member].mbps / 1000;
	return gbps * 1e9 / 8 * player->factors[member];
}

/* Little's law: so many bytes on their way, each of which stays so long. */
static double window_rate(double window_bytes, double op_bytes, double line, double extra_s)
{
	return window_bytes / (op_bytes / line + extra_s);
}

static void set_capacities(struct player *player)
{
	const struct sim_constants *constants = &player->options->constants;
	const struct rules *rules = &player->plan->input.rules;
	double op = (double)rules->op_bytes;
	uint32_t depth = player->options->depth == 0 ? DEPTH_DEFAULT : player->options->depth;

	for (uint32_t m = 0; m < player->members; m++) {
		double *links = player->capacities + link_of(m, 0);
		double factor = player->factors[m];
		double line = line_rate(player, m) * constants->nic_efficiency;
		double device = constants->hbm_gbytes_s * 1e9 * factor;
		double converts_s = player->launch_s + op * QUANT_PASSES / device;
		links[LINK_NIC_OUT] =
			MIN(line, window_rate(depth * op, op, line, player->latency_s));
		links[LINK_NIC_IN] = line;
		links[LINK_NVLINK_OUT] = links[LINK_NVLINK_IN] =
			constants->nvlink_gbytes_s * 1e9 * factor;
		links[LINK_DEVICE] = device;
		links[LINK_STAGING] = window_rate((double)rules->staging_bytes, op, line,
						  player->latency_s + converts_s);
	}
}

/* ---- Flows. */
static void use(struct sim_flow *flow, uint32_t member, enum link link, double weight)
{
	if (weight > 0)
		flow->uses[flow->use_count++] =
			(struct sim_use){(uint32_t)link_of(member, link), weight};
}

/* A NIC takes op_ns per write at least: short writes cost more than their bytes. */
static double nic_weight(const struct player *player, uint32_t member, double bytes_per_op)
{
	double line = player->capacities[link_of(member, LINK_NIC_IN)];

	return MAX(1, player->options->constants.op_ns * 1e-9 * line / bytes_per_op);
}

/* A ring copy needs a slot, and a slot comes back only when it has been unpacked. */
static double ring_rate(const struct player *player, const struct plan_pair *pair, double share)
{
	const struct plan *plan = player->plan;
	double slot = (double)plan_slot_bytes(plan);
	double line = player->capacities[link_of(pair->sender, LINK_NIC_OUT)];
	double stay_s = 2 * player->latency_s + player->launch_s + COPY_PASSES * slot / player->hbm;
	double ring = window_rate(plan_slot_count(plan) * slot, slot, line, stay_s);

	return share > 0 ? 1 / (share / ring + (1 - share) / line) : INFINITY;
}

struct pair_sums {
	double bytes, gathered, ringed, ops;
};

static void flow_make(struct player *player, struct sim_flow *flow, const struct plan_pair *pair,
		      const struct pair_sums *sums)
{
	const struct plan *plan = player->plan;
	uint32_t sender = pair->sender, receiver = pair->receiver;
	double op = sums->bytes / sums->ops;
	double passes = player->quantized ? QUANT_PASSES : COPY_PASSES;
	double launches = player->launch_s * player->hbm / op; /* one per op, in bytes */
	double gathered = sums->gathered / sums->bytes, ringed = sums->ringed / sums->bytes;
	bool nvlink = player->hosts[sender] == player->hosts[receiver];

	flow->sender = sender;
	flow->receiver = receiver;
	flow->kind = (nvlink ? FLOW_NVLINK : FLOW_NIC) | (pair->feeds ? FLOW_FEEDS : 0);
	/* Peers take turns by writes, not by bytes. */
	flow->share = op / (double)plan->input.rules.op_bytes;
	flow->rate_max = ring_rate(player, pair, ringed);
	flow->gate_first = (size_t)sender * player->buckets;
	flow->ready_s = player->begin_s;
	uint32_t replica = (receiver - player->trainers) / plan->rollout_count;
	if (receiver >= player->trainers && replica == player->options->late_replica)
		flow->ready_s += player->options->late_s;
	use(flow, sender, nvlink ? LINK_NVLINK_OUT : LINK_NIC_OUT,
	    nvlink ? 1 : nic_weight(player, sender, op));
	use(flow, receiver, nvlink ? LINK_NVLINK_IN : LINK_NIC_IN,
	    nvlink ? 1 : nic_weight(player, receiver, op));
	use(flow, sender, LINK_DEVICE, gathered * (passes + launches));
	use(flow, sender, LINK_STAGING, gathered);
	use(flow, receiver, LINK_DEVICE, ringed * (COPY_PASSES + launches));
}

/* Adds up a pair's counters by bucket, into segments where there is room for them. */
static struct pair_sums pair_walk(struct player *player, const struct plan_pair *pair,
				  struct sim_segment *segments, uint32_t *count_out)
{
	struct pair_sums sums = {.ops = (double)pair->op_count};
	uint32_t count = 0, last = NONE;

	for (uint32_t c = 0; c < pair->counter_count; c++) {
		const struct plan_counter *counter = &pair->counters[c];
		bool next = counter->bucket != last;
		count += next;
		last = counter->bucket;
		if (segments == NULL)
			continue;
		struct work *send = send_of(player, pair->sender, last);
		struct work *receive = receive_of(player, pair->receiver, last);
		struct sim_segment *segment = &segments[count - 1];
		segment->item = counter->bucket;
		segment->bytes += counter->bytes;
		send->bytes += counter->bytes;
		send->special_bytes += counter->gather_bytes;
		send->left += next;
		receive->bytes += counter->bytes;
		if (player->hosts[pair->sender] == player->hosts[pair->receiver]) {
			send->nvlink_bytes += counter->bytes;
			receive->nvlink_bytes += counter->bytes;
		}
		receive->left += next && pair->feeds;
		receive->special_bytes += counter->ring >= 0 ? counter->bytes : 0;
		sums.bytes += (double)counter->bytes;
		sums.gathered += (double)counter->gather_bytes;
		sums.ringed += counter->ring >= 0 ? (double)counter->bytes : 0;
	}
	*count_out = count;
	return sums;
}

static int flows_make(struct player *player)
{
	const struct plan *plan = player->plan;
	uint32_t pairs = plan_send_pair_count(plan), count;
	size_t total = 0, at = 0;

	for (uint32_t i = 0; i < pairs; i++) {
		pair_walk(player, plan_send_pair(plan, i), NULL, &count);
		total += pair_tells(plan, plan_send_pair(plan, i)) ? 0 : count;
	}
	struct sim_segment *segments = arena_array(&player->arena, total, sizeof(*segments));
	struct sim_flow *flows = arena_array(&player->arena, pairs, sizeof(*flows));
	if (segments == NULL || flows == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < pairs; i++) {
		const struct plan_pair *pair = plan_send_pair(plan, i);
		if (pair_tells(plan, pair))
			continue;
		struct pair_sums sums = pair_walk(player, pair, segments + at, &count);
		if (count == 0)
			continue;
		struct sim_flow *flow = &flows[player->flows.flow_count++];
		flow->segment_first = at;
		flow->segment_count = count;
		flow_make(player, flow, pair, &sums);
		at += count;
		struct sim_member *sender = &player->recorder.members[pair->sender];
		struct sim_member *receiver = &player->recorder.members[pair->receiver];
		if (flow->kind & FLOW_NVLINK) {
			sender->nvlink_sent_bytes += pair->bytes;
			receiver->nvlink_received_bytes += pair->bytes;
		} else {
			sender->sent_bytes += pair->bytes;
			receiver->received_bytes += pair->bytes;
		}
	}
	player->flows.flows = flows;
	player->flows.segments = segments;
	return 0;
}

static int factors_make(struct player *player, struct ws_error *err)
{
	const struct sim_options *options = player->options;

	for (uint32_t m = 0; m < player->members; m++)
		player->factors[m] = 1;
	for (uint32_t i = 0; i < options->slow_count; i++) {
		const struct sim_slow *slow = &options->slow[i];
		if (slow->member >= player->members)
			return ws_fail(err, -EINVAL,
				       "member %" PRIu32 " can't be slow: the plan has %" PRIu32,
				       slow->member, player->members);
		if (!(slow->factor > 0))
			return ws_fail(err, -EINVAL, "a member can't be %g times as fast: above 0",
				       slow->factor);
		player->factors[slow->member] *= slow->factor;
	}
	return 0;
}

/* The busiest link's time is a floor of the whole. */
static int steps_set(struct player *player)
{
	struct sim_flows *flows = &player->flows;
	double *loads = arena_array(&player->arena, flows->link_count, sizeof(*loads));

	if (loads == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < flows->flow_count; i++) {
		const struct sim_flow *flow = &flows->flows[i];
		double bytes = 0;
		for (uint32_t s = 0; s < flow->segment_count; s++)
			bytes += (double)flows->segments[flow->segment_first + s].bytes;
		for (uint32_t u = 0; u < flow->use_count; u++)
			loads[flow->uses[u].link] += bytes * flow->uses[u].weight;
	}
	for (uint32_t l = 0; l < flows->link_count; l++)
		flows->step_s = MAX(flows->step_s, loads[l] / flows->capacities[l] / GRAIN);
	return 0;
}

int links_make(struct player *player, struct ws_error *err)
{
	struct arena *arena = &player->arena;
	size_t works = (size_t)player->members * player->buckets;
	double *lines = arena_array(arena, player->members, sizeof(double));

	player->factors = arena_array(arena, player->members, sizeof(double));
	player->hosts = arena_array(arena, player->members, sizeof(uint32_t));
	player->capacities = arena_array(arena, (size_t)player->members * LINKS, sizeof(double));
	player->sends = arena_array(arena, works, sizeof(struct work));
	player->receives = arena_array(arena, works, sizeof(struct work));
	if (lines == NULL || player->factors == NULL || player->hosts == NULL ||
	    player->capacities == NULL || player->sends == NULL || player->receives == NULL ||
	    places_hosts(player->plan, arena, player->hosts) != 0)
		return ws_fail(err, -ENOMEM, "out of memory while simulating");
	int rc = factors_make(player, err);
	if (rc != 0)
		return rc;
	set_capacities(player);
	if (flows_make(player) != 0)
		return ws_fail(err, -ENOMEM, "out of memory while simulating");
	for (uint32_t m = 0; m < player->members; m++)
		lines[m] = line_rate(player, m);
	recorder_floors(&player->recorder, lines);
	player->flows.capacities = player->capacities;
	player->flows.link_count = player->members * LINKS;
	return steps_set(player) == 0 ? 0 : ws_fail(err, -ENOMEM, "out of memory while simulating");
}
