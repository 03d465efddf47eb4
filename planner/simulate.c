/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays a plan.  A trainer's bucket goes through its lanes, load and amax (and what others tell it:
 * simulate_exchange.c), before the gate of its writes opens; a rollout's forwards of a bucket wait
 * for what feeds them; the rest is flows over links (simulate_links.c, simulate_flow.c).
 */
#include "planner/simulate_internal.h"

#define AHEAD 2 /* offloaded buckets on the device: one written, one prepared */

/* ---- A trainer's lanes: a bucket is loaded, its maxima are found and exchanged, its gate opens.
 */
void player_add(struct player *player, enum sim_phase phase, uint32_t member, uint32_t bucket,
		double begin_s, double end_s, uint64_t bytes, double busy_s)
{
	const struct sim_interval interval = {.begin_s = begin_s,
					      .end_s = end_s,
					      .bytes = bytes,
					      .member = member,
					      .bucket = bucket,
					      .phase = phase};

	recorder_add(&player->recorder, &interval, busy_s);
}

static void prepare(struct player *player, uint32_t trainer)
{
	const struct sim_constants *constants = &player->options->constants;
	struct lanes *lanes = &player->lanes[trainer];
	uint32_t bucket = lanes->buckets[lanes->prepared];
	double bytes = (double)send_of(player, trainer, bucket)->bytes * lanes->source_share;
	double factor = player->factors[trainer], ready_s = player->begin_s;

	if (player->options->offloaded) {
		double begin_s = MAX(lanes->load_free_s, lanes->written_s);
		double busy_s = bytes / (constants->pcie_gbytes_s * 1e9 * factor);
		ready_s = lanes->load_free_s = begin_s + busy_s;
		player_add(player, SIM_LOAD, trainer, bucket, begin_s, ready_s, (uint64_t)bytes,
			   busy_s);
	}
	if (player->quantized) {
		double begin_s = MAX(lanes->amax_free_s, ready_s);
		double busy_s = player->launch_s + bytes / (player->hbm * factor);
		ready_s = lanes->amax_free_s = begin_s + busy_s;
		player_add(player, SIM_AMAX, trainer, bucket, begin_s, ready_s, (uint64_t)bytes,
			   busy_s);
	}
	lanes->prepared++;
	if (player->quantized) {
		exchange_found(player, trainer, bucket, ready_s);
		return;
	}
	*gate_of(player, trainer, bucket) =
		ready_s +
		(send_of(player, trainer, bucket)->special_bytes > 0 ? player->launch_s : 0);
}

/* Prepares as many buckets as the device may hold. */
static void prepare_ahead(struct player *player, uint32_t trainer)
{
	struct lanes *lanes = &player->lanes[trainer];

	while (lanes->prepared < lanes->count &&
	       (!player->options->offloaded || lanes->prepared < lanes->written + AHEAD))
		prepare(player, trainer);
}

static void bucket_written(struct player *player, uint32_t trainer)
{
	struct lanes *lanes = &player->lanes[trainer];

	while (lanes->written < lanes->prepared) {
		const struct work *send = send_of(player, trainer, lanes->buckets[lanes->written]);
		if (send->left > 0)
			break;
		lanes->written_s = MAX(lanes->written_s, send->end_s);
		lanes->written++;
		prepare_ahead(player, trainer);
	}
}

static void segment_done(void *arg, const struct sim_flow *flow, const struct sim_segment *segment,
			 double begin_s, double end_s)
{
	struct player *player = arg;
	struct work *send = send_of(player, flow->sender, segment->item);
	struct work *receive = receive_of(player, flow->receiver, segment->item);

	send->begin_s = MIN(send->begin_s, begin_s);
	send->end_s = MAX(send->end_s, end_s);
	receive->begin_s = MIN(receive->begin_s, begin_s);
	receive->end_s = MAX(receive->end_s, end_s);
	if (flow->kind & FLOW_FEEDS) {
		receive->fed_s = MAX(receive->fed_s, end_s + player->latency_s);
		if (--receive->left == 0)
			*gate_of(player, flow->receiver, segment->item) = receive->fed_s;
	}
	if (--send->left == 0 && flow->sender < player->trainers && player->options->offloaded)
		bucket_written(player, flow->sender);
}

/* Bytes of params that the rank holds, by its manifest's rules. */
static int shard_bytes(const struct manifest *manifest, uint32_t rank, double *bytes_out,
		       struct ws_error *err)
{
	double bytes = 0;

	for (uint32_t r = 0; r < manifest_rule_count(manifest); r++) {
		const struct param_rule *rule = manifest_rule(manifest, r);
		const struct form *form;
		const int32_t *layers, *experts;
		int rc = manifest_form(manifest, r, rank, &form, err);
		if (rc != 0)
			return rc;
		if (form == NULL)
			continue;
		uint32_t layer_count = manifest_layers(manifest, r, rank, &layers), count = 0;
		for (uint32_t l = 0; l < layer_count; l++)
			count += rule->each_expert
					 ? manifest_experts(manifest, r, rank, layers[l], &experts)
					 : 1;
		bytes += (double)form->element_count * (double)ws_dtype_bytes(rule->dtype) * count;
	}
	*bytes_out = bytes;
	return 0;
}

/* Which buckets a trainer sends in, and how many bytes of its params a byte on the wire stands
 * for: at most what it holds, however many receivers get the same. */
static int lanes_make(struct player *player, uint32_t trainer, struct ws_error *err)
{
	struct lanes *lanes = &player->lanes[trainer];
	double sent = 0, held = 0;

	lanes->buckets = arena_array(&player->arena, player->buckets, sizeof(uint32_t));
	if (lanes->buckets == NULL)
		return ws_fail(err, -ENOMEM, "out of memory while simulating");
	for (uint32_t b = 0; b < player->buckets; b++)
		if (send_of(player, trainer, b)->bytes > 0 ||
		    (player->quantized && exchange_of(player, trainer, b)->out_bytes > 0)) {
			lanes->buckets[lanes->count++] = b;
			sent += (double)send_of(player, trainer, b)->bytes;
		}
	lanes->load_free_s = lanes->amax_free_s = lanes->written_s = player->begin_s;
	if (!player->options->offloaded && !player->quantized)
		return 0;
	int rc = shard_bytes(player->plan->input.trainer, trainer, &held, err);
	double passes = player->quantized ? QUANT_PASSES - 1 : 1;
	lanes->source_share = sent > 0 ? MIN(passes, held / sent) : 0;
	return rc;
}

static int gates_make(struct player *player, struct ws_error *err)
{
	size_t count = (size_t)player->members * player->buckets;
	int rc = 0;

	for (size_t i = 0; i < count; i++) {
		player->sends[i].begin_s = player->receives[i].begin_s = INFINITY;
		player->flows.gates[i] = INFINITY;
	}
	for (uint32_t m = player->trainers; m < player->members; m++)
		for (uint32_t b = 0; b < player->buckets; b++)
			if (receive_of(player, m, b)->left == 0)
				*gate_of(player, m, b) = player->begin_s;
	for (uint32_t t = 0; rc == 0 && t < player->trainers; t++)
		rc = lanes_make(player, t, err);
	for (uint32_t t = 0; rc == 0 && t < player->trainers; t++)
		prepare_ahead(player, t);
	return rc;
}

/* ---- Results. */

/* How long the busier of its links is at it. */
static double busy_of(const struct player *player, uint32_t member, const struct work *work)
{
	const double *links = player->capacities + link_of(member, 0);
	double nic = (double)(work->bytes - work->nvlink_bytes) / links[LINK_NIC_IN];
	double nvlink = (double)work->nvlink_bytes / links[LINK_NVLINK_IN];

	return MAX(nic, nvlink);
}

static void results_of_sends(struct player *player, uint32_t member)
{
	for (uint32_t b = 0; b < player->buckets; b++) {
		const struct work *send = send_of(player, member, b);
		if (send->bytes == 0)
			continue;
		double device = player->hbm * player->factors[member];
		double passes = player->quantized ? QUANT_PASSES : COPY_PASSES;
		if (send->special_bytes > 0)
			player_add(player, SIM_CONVERT, member, b, send->begin_s, send->end_s,
				   send->special_bytes,
				   (double)send->special_bytes * passes / device);
		player_add(player, member < player->trainers ? SIM_WRITE : SIM_FORWARD, member, b,
			   send->begin_s, send->end_s, send->bytes, busy_of(player, member, send));
	}
}

static void results_of_receives(struct player *player, uint32_t member)
{
	for (uint32_t b = 0; b < player->buckets; b++) {
		const struct work *receive = receive_of(player, member, b);
		if (receive->bytes == 0)
			continue;
		double end_s = receive->end_s + player->latency_s;
		player_add(player, SIM_RECEIVE, member, b, receive->begin_s, end_s, receive->bytes,
			   busy_of(player, member, receive));
		if (receive->special_bytes == 0)
			continue;
		double busy_s = (double)receive->special_bytes * COPY_PASSES /
				(player->hbm * player->factors[member]);
		double tail_s = player->launch_s +
				(double)plan_slot_bytes(player->plan) * COPY_PASSES / player->hbm;
		player_add(player, SIM_UNPACK, member, b, receive->begin_s, end_s + tail_s,
			   receive->special_bytes, busy_s);
	}
}

static void player_release(struct player *player)
{
	recorder_release(&player->recorder);
	arena_release(&player->arena);
}

static int play(struct player *player, struct ws_error *err)
{
	int rc = links_make(player, err);

	if (rc != 0)
		return rc;
	player->flows.gates = arena_array(&player->arena, (size_t)player->members * player->buckets,
					  sizeof(double));
	player->lanes = arena_array(&player->arena, player->trainers, sizeof(*player->lanes));
	if (player->flows.gates == NULL || player->lanes == NULL ||
	    (player->quantized && exchanges_make(player) != 0))
		return ws_fail(err, -ENOMEM, "out of memory while simulating");
	rc = gates_make(player, err);
	if (rc == 0)
		rc = sim_flows_run(&player->flows, err);
	if (rc != 0)
		return rc;
	for (uint32_t m = 0; m < player->members; m++) {
		player_add(player, SIM_BEGIN, m, SIM_NO_BUCKET, 0, player->begin_s, 0,
			   player->begin_s);
		results_of_sends(player, m);
		results_of_receives(player, m);
	}
	player->recorder.out->step_count = player->flows.step_count;
	return 0;
}

int simulate_plan(struct simulation **out, const struct plan *all,
		  const struct sim_options *options, struct ws_error *err)
{
	const struct sim_constants *constants = &options->constants;
	struct player player = {
		.plan = all,
		.options = options,
		.members = plan_member_count(all),
		.trainers = all->trainer_count,
		.buckets = plan_bucket_count(all),
		.quantized = manifest_quant(all->input.rollout) != NULL,
		.begin_s = constants->control_ns * 1e-9,
		.latency_s = constants->write_latency_ns * 1e-9,
		.launch_s = constants->launch_ns * 1e-9,
		.hbm = constants->hbm_gbytes_s * 1e9,
		.flows.done = segment_done,
	};

	*out = NULL;
	player.flows.arg = &player;
	assert(all->self == PLAN_ALL);
	if (options->late_s > 0 && options->late_replica >= all->input.replica_count)
		return ws_fail(err, -EINVAL,
			       "replica %" PRIu32 " can't be late: the roster has %" PRIu32,
			       options->late_replica, all->input.replica_count);
	int rc = recorder_begin(&player.recorder, player.trainers, player.members, player.buckets);
	rc = rc != 0 ? ws_fail(err, rc, "out of memory while simulating") : play(&player, err);
	if (rc == 0 && recorder_end(&player.recorder, player.begin_s, out) != 0)
		rc = ws_fail(err, -ENOMEM, "out of memory while simulating");
	player_release(&player);
	return rc;
}
