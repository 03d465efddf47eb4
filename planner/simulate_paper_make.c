/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The published pipeline's params, links and flows: what is gathered, and who writes what to whom.
 */
#include "planner/simulate_paper.h"

#define BLOCK (128 * 128)

/* ---- The model's params. */
static void param_add(struct paper *paper, const struct tensor_rule *rule, uint32_t layer,
		      uint32_t stage)
{
	const struct pipeline *pipeline = paper->pipeline;
	struct whole *whole = &paper->params[paper->param_count++];
	double elements = 1, bytes_each = (double)ws_dtype_bytes(rule->dtype);

	for (uint32_t d = 0; d < rule->dim_count; d++)
		elements *= (double)rule->dim[d];
	whole->quantized = rule->dtype == WS_F8_E4M3;
	whole->expert = rule->expert_hi > rule->expert_lo;
	whole->stage = stage;
	whole->layer = layer;
	double sent = elements * bytes_each + (whole->quantized ? 4 * elements / BLOCK : 0);
	double experts = whole->expert ? rule->expert_hi - rule->expert_lo : 1;
	whole->gathered_bytes = elements * (whole->quantized ? 2 : bytes_each) * experts /
				(whole->expert ? pipeline->expert_groups : 1);
	uint32_t replica_ranks = pipeline->rollouts / pipeline->engines;
	whole->sent_bytes = (uint64_t)(sent * experts / (whole->expert ? replica_ranks : 1));
}

static int params_make(struct paper *paper, struct ws_error *err)
{
	const struct pipeline *pipeline = paper->pipeline;
	struct model *model = NULL;
	int32_t layers = 0;

	int rc = model_builtin(&model, pipeline->model, err);
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < model_tensor_count(model); i++)
		layers = MAX(layers, model_tensor(model, i)->layer_hi);
	int32_t per_stage = (layers + (int32_t)pipeline->stages - 1) / (int32_t)pipeline->stages;
	for (uint32_t i = 0; i < model_tensor_count(model); i++) {
		const struct tensor_rule *rule = model_tensor(model, i);
		bool first = strstr(rule->name, "embed_tokens") != NULL;
		if (strstr(rule->name, "_scale") != NULL)
			continue; /* goes with its weight */
		if (paper->param_count + (uint32_t)layers > PARAMS_MAX) {
			rc = ws_fail(err, -ENOSPC, "'%s' has more than %d params of layers",
				     pipeline->model, PARAMS_MAX);
			break;
		}
		if (rule->layer_lo < 0)
			param_add(paper, rule, first ? 0 : (uint32_t)layers,
				  first ? 0 : pipeline->stages - 1);
		for (int32_t l = rule->layer_lo; l >= 0 && l < rule->layer_hi; l++)
			param_add(paper, rule, (uint32_t)l, (uint32_t)(l / per_stage));
	}
	model_free(model);
	return rc;
}

static int order_compare(const void *a, const void *b, void *arg)
{
	const struct whole *params = arg;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	if (params[i].expert != params[j].expert)
		return params[i].expert ? 1 : -1;
	if (params[i].layer != params[j].layer)
		return params[i].layer < params[j].layer ? -1 : 1;
	return i < j ? -1 : i > j;
}

static int stages_make(struct paper *paper)
{
	for (uint32_t s = 0; s < paper->pipeline->stages; s++) {
		struct stage *stage = &paper->stages[s];
		stage->order =
			arena_array(&paper->arena, paper->param_count, sizeof(*stage->order));
		if (stage->order == NULL)
			return -ENOMEM;
		for (uint32_t p = 0; p < paper->param_count; p++) {
			if (paper->params[p].stage != s)
				continue;
			stage->order[stage->count++] = p;
			stage->shared_count += !paper->params[p].expert;
		}
		qsort_r(stage->order, stage->count, sizeof(uint32_t), order_compare, paper->params);
		stage->writes_left = stage->shared_count * paper->receivers;
		stage->barrier_s = stage->arrived_s = INFINITY;
	}
	return 0;
}

/* ---- Links and flows. */
static void capacities_make(struct paper *paper)
{
	const struct sim_constants *constants = paper->constants;
	double line = constants->nic_gbps * 1e9 / 8 * constants->nic_efficiency;

	for (uint32_t m = 0; m < paper->trainers + paper->receivers; m++) {
		double *links = paper->capacities + link_of(m, 0);
		links[LINK_NIC_OUT] = links[LINK_NIC_IN] = line;
		links[LINK_NVLINK_OUT] = links[LINK_NVLINK_IN] = constants->nvlink_gbytes_s * 1e9;
	}
}

static void use(struct sim_flow *flow, uint32_t member, enum link link, double weight)
{
	if (weight > 0)
		flow->uses[flow->use_count++] =
			(struct sim_use){(uint32_t)link_of(member, link), weight};
}

static struct sim_flow *flow_add(struct paper *paper, enum kind kind, uint32_t sender,
				 uint32_t receiver, size_t segment_first, size_t segment_end)
{
	struct sim_flow *flow = &paper->flows.flows[paper->flows.flow_count++];

	flow->kind = kind;
	flow->sender = sender;
	flow->receiver = receiver;
	flow->share = 1;
	flow->rate_max = INFINITY;
	flow->gate_first =
		(size_t)(sender + (kind == WRITE ? 0 : paper->trainers)) * paper->param_count;
	flow->segment_first = segment_first;
	flow->segment_count = (uint32_t)(segment_end - segment_first);
	return flow;
}

/* A rank's part of the rings: shared params inside a node by NVLink, experts over the NICs of
 * the nodes that their shards lie on. */
static size_t gathers_make(struct paper *paper, uint32_t trainer, struct sim_segment *segments,
			   size_t at)
{
	const struct pipeline *pipeline = paper->pipeline;
	const struct stage *stage = &paper->stages[stage_of(paper, trainer)];
	uint32_t node_shards = pipeline->shards / pipeline->nodes;

	for (int experts = 0; experts < 2; experts++) {
		size_t first = at;
		double ranks = experts ? pipeline->shards : NODE_RANKS;
		uint32_t from = experts ? stage->shared_count : 0;
		uint32_t to = experts ? stage->count : stage->shared_count;
		for (uint32_t i = from; i < to; i++) {
			double bytes = paper->params[stage->order[i]].gathered_bytes;
			segments[at++] = (struct sim_segment){
				(uint64_t)MAX(1, bytes * (ranks - 1) / ranks), stage->order[i]};
		}
		struct sim_flow *flow = flow_add(paper, experts ? GATHER_EXPERT : GATHER_SHARED,
						 trainer, trainer, first, at);
		if (!experts || node_shards > 1) {
			use(flow, trainer, LINK_NVLINK_OUT, 1);
			use(flow, trainer, LINK_NVLINK_IN, 1);
		}
		if (experts) {
			/* As many bytes of a NIC's as a write gets, not of the ring's. */
			flow->share = node_shards * pipeline->channels;
			use(flow, trainer, LINK_NIC_OUT, 1.0 / node_shards);
			use(flow, trainer, LINK_NIC_IN, 1.0 / node_shards);
		}
	}
	return at;
}

/* The pairing: who holds a whole param sends it to the receivers in turns. */
static void writes_make(struct paper *paper, struct sim_segment *segments, size_t at, size_t *ends)
{
	uint32_t shards = paper->pipeline->shards;

	for (int filling = 0; filling < 2; filling++) {
		for (uint32_t s = 0; s < paper->pipeline->stages; s++) {
			struct stage *stage = &paper->stages[s];
			stage->turn = 0;
			for (uint32_t i = 0; i < stage->count * paper->receivers; i++) {
				uint32_t param = stage->order[i / paper->receivers];
				uint32_t sender = s * shards + stage->turn++ % shards;
				size_t pair =
					(size_t)sender * paper->receivers + i % paper->receivers;
				if (!filling) {
					ends[pair]++;
					task_of(paper, sender, param)->writes_left++;
					continue;
				}
				segments[ends[pair]++] = (struct sim_segment){
					paper->params[param].sent_bytes, param};
			}
		}
		for (size_t p = 0; !filling && p < paper->trainers * paper->receivers; p++) {
			size_t count = ends[p];
			ends[p] = at;
			at += count;
		}
	}
}

static int flows_make(struct paper *paper)
{
	size_t pairs = (size_t)paper->trainers * paper->receivers, at = 0, count = 0;
	size_t *ends = arena_array(&paper->arena, pairs, sizeof(*ends));

	for (uint32_t s = 0; s < paper->pipeline->stages; s++)
		count += (size_t)paper->stages[s].count *
			 (paper->receivers + paper->pipeline->shards);
	struct sim_segment *segments = arena_array(&paper->arena, count, sizeof(*segments));
	paper->flows.flows = arena_array(&paper->arena, pairs + 2 * (size_t)paper->trainers,
					 sizeof(struct sim_flow));
	if (ends == NULL || segments == NULL || paper->flows.flows == NULL)
		return -ENOMEM;
	for (uint32_t t = 0; t < paper->trainers; t++)
		at = gathers_make(paper, t, segments, at);
	writes_make(paper, segments, at, ends);
	for (size_t p = 0; p < pairs; p++) {
		uint32_t sender = (uint32_t)(p / paper->receivers);
		uint32_t receiver = paper->trainers + (uint32_t)(p % paper->receivers);
		if (ends[p] > at) {
			struct sim_flow *flow =
				flow_add(paper, WRITE, sender, receiver, at, ends[p]);
			use(flow, sender, LINK_NIC_OUT, 1);
			use(flow, receiver, LINK_NIC_IN, 1);
		}
		for (; at < ends[p]; at++) {
			paper->recorder.members[sender].sent_bytes += segments[at].bytes;
			paper->recorder.members[receiver].received_bytes += segments[at].bytes;
		}
	}
	paper->flows.segments = segments;
	return 0;
}

int paper_make(struct paper *paper, struct ws_error *err)
{
	const struct pipeline *pipeline = paper->pipeline;
	struct arena *arena = &paper->arena;

	paper->trainers = pipeline->stages * pipeline->shards;
	paper->receivers = pipeline->rollouts / pipeline->expert_groups;
	int rc = params_make(paper, err);
	if (rc != 0)
		return rc;
	size_t tasks = (size_t)paper->trainers * paper->param_count;
	size_t receives = (size_t)paper->receivers * paper->param_count;
	uint32_t members = paper->trainers + paper->receivers;
	paper->tasks = arena_array(arena, tasks, sizeof(*paper->tasks));
	paper->in_flight = arena_array(arena, paper->trainers, sizeof(double));
	paper->receive_begin_s = arena_array(arena, receives, sizeof(double));
	paper->receive_end_s = arena_array(arena, receives, sizeof(double));
	paper->capacities = arena_array(arena, (size_t)members * LINKS, sizeof(double));
	paper->flows.gates = arena_array(arena, 2 * tasks, sizeof(double));
	if (paper->tasks == NULL || paper->in_flight == NULL || paper->receive_begin_s == NULL ||
	    paper->receive_end_s == NULL || paper->capacities == NULL ||
	    paper->flows.gates == NULL || stages_make(paper) != 0 ||
	    recorder_begin(&paper->recorder, paper->trainers, members, paper->param_count) != 0 ||
	    flows_make(paper) != 0)
		return ws_fail(err, -ENOMEM, "out of memory while simulating");
	for (size_t i = 0; i < 2 * tasks; i++)
		paper->flows.gates[i] = INFINITY;
	capacities_make(paper);
	paper->flows.capacities = paper->capacities;
	paper->flows.link_count = members * LINKS;
	return 0;
}
