/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline of arXiv 2510.27656, played on the same links: the model has to say what was
 * measured there before it may say what a plan will take.  Every trainer rank goes through the
 * params in one order: load | gather the whole tensor | fuse | quantize | write to the receivers
 * that the static pairing gives it; first the params that all receivers hold, then the experts,
 * with a barrier between; a watermark bounds what is gathered and not yet written.
 *
 * One expert-parallel group and the receivers of its experts are played; the others are alike.
 */
#include "planner/simulate_paper.h"

#define GRAIN_S 5e-6

/*
 * Published: ranks, meshes, two gathers for each of Kimi-K2's params, stages that overlap; shared
 * params are gathered inside a node, experts across nodes.  Not published: how many nodes the
 * shards of an expert lie on, and the watermark.  Kimi-K2's gather of 119 GB in 0.52 s fits only
 * rings over all NICs of two nodes; Qwen3-235B's world is a node per shard.  Channels are NCCL's
 * own choice: two per NIC in full nodes, four on Hopper where each node has one rank of a ring.
 */
static const struct pipeline pipelines[] = {
	{
		.name = "kimi-k2",
		.model = "kimi-k2-fp8",
		.trainers = 256,
		.rollouts = 128,
		.engines = 4,
		.stages = 2,
		.shards = 16,
		.expert_groups = 8,
		.nodes = 2,
		.channels = 2,
		.gathers = 2,
		.loads = true,
		.watermark_bytes = 16e9,
	},
	{
		.name = "qwen3-235b",
		.model = "qwen3-235b-a22b-fp8",
		.trainers = 128,
		.rollouts = 32,
		.engines = 4,
		.stages = 1,
		.shards = 16,
		.expert_groups = 8,
		.nodes = 16,
		.channels = 4,
		.gathers = 1,
		.drains = true,
		.watermark_bytes = 16e9,
	},
};

/* ---- The pipeline. */
static void add(struct paper *paper, enum sim_phase phase, uint32_t member, uint32_t param,
		double begin_s, double end_s, double bytes)
{
	const struct sim_interval interval = {.begin_s = begin_s,
					      .end_s = end_s,
					      .bytes = (uint64_t)bytes,
					      .member = member,
					      .bucket = param,
					      .phase = phase};
	bool by_nic = phase == SIM_WRITE || phase == SIM_RECEIVE;

	recorder_add(&paper->recorder, &interval,
		     by_nic ? bytes / paper->capacities[link_of(member, LINK_NIC_OUT)]
			    : end_s - begin_s);
}

/* What a gather takes besides its bytes: one step of the ring after the other. */
static double gather_latency(const struct paper *paper, const struct whole *whole)
{
	const struct pipeline *pipeline = paper->pipeline;
	const struct sim_constants *constants = paper->constants;
	uint32_t hops = (whole->expert ? pipeline->shards : NODE_RANKS) - 1;
	uint32_t far = whole->expert ? MIN(pipeline->nodes, hops) : 0;
	double near_s = constants->launch_ns * 1e-9, far_s = constants->write_latency_ns * 1e-9;

	return pipeline->gathers * (near_s + far * far_s + (hops - far) * near_s);
}

static void stage_start(struct paper *paper, struct stage *stage, double now)
{
	const struct pipeline *pipeline = paper->pipeline;
	uint32_t first = (uint32_t)(stage - paper->stages) * pipeline->shards;

	if (stage->at == stage->count || stage->gathering > 0)
		return;
	uint32_t param = stage->order[stage->at];
	const struct whole *whole = &paper->params[param];
	double begin_s = MAX(stage->lane_free_s, whole->expert ? stage->barrier_s : 0);
	if (!(begin_s < INFINITY))
		return;
	stage->waits = false;
	for (uint32_t t = first; t < first + pipeline->shards; t++)
		stage->waits |=
			paper->in_flight[t] > 0 &&
			paper->in_flight[t] + whole->gathered_bytes > pipeline->watermark_bytes;
	if (stage->waits)
		return;
	if (pipeline->loads) {
		double shards = whole->expert ? pipeline->shards : NODE_RANKS;
		double bytes = whole->gathered_bytes / shards, began_s = stage->loaded_s;
		stage->loaded_s += bytes / (paper->constants->pcie_gbytes_s * 1e9);
		begin_s = MAX(begin_s, stage->loaded_s);
		for (uint32_t t = first; t < first + pipeline->shards; t++)
			add(paper, SIM_LOAD, t, param, began_s, stage->loaded_s, bytes);
	}
	begin_s = MAX(begin_s, now);
	stage->lane_free_s = begin_s;
	stage->gathering = pipeline->shards;
	for (uint32_t t = first; t < first + pipeline->shards; t++) {
		paper->in_flight[t] += whole->gathered_bytes;
		*paper_gate(paper, t, true, param) = begin_s;
	}
}

/* A stage is at the barrier; when all are, the experts begin. */
static void stage_arrives(struct paper *paper, struct stage *stage)
{
	const struct pipeline *pipeline = paper->pipeline;
	double end_s = 0;

	if (stage->at < stage->shared_count || stage->arrived_s < INFINITY ||
	    (pipeline->drains && stage->writes_left > 0))
		return;
	stage->arrived_s = MAX(stage->lane_free_s, pipeline->drains ? stage->drained_s : 0);
	for (uint32_t s = 0; s < pipeline->stages; s++)
		end_s = MAX(end_s, paper->stages[s].arrived_s);
	if (!(end_s < INFINITY))
		return;
	end_s += paper->constants->control_ns * 1e-9;
	for (uint32_t t = 0; t < paper->trainers; t++)
		add(paper, SIM_WAIT, t, SIM_NO_BUCKET,
		    paper->stages[stage_of(paper, t)].lane_free_s, end_s, 0);
	for (uint32_t s = 0; s < pipeline->stages; s++) {
		paper->stages[s].barrier_s = end_s;
		stage_start(paper, &paper->stages[s], end_s);
	}
}

static void gather_done(struct paper *paper, struct stage *stage, uint32_t param)
{
	const struct sim_constants *constants = paper->constants;
	const struct whole *whole = &paper->params[param];
	uint32_t first = (uint32_t)(stage - paper->stages) * paper->pipeline->shards;
	double hbm = constants->hbm_gbytes_s * 1e9, launch_s = constants->launch_ns * 1e-9;
	double gathered_s = stage->gathered_s + gather_latency(paper, whole);
	double fused_s = gathered_s + launch_s + COPY_PASSES * whole->gathered_bytes / hbm;
	double ready_s = fused_s;

	if (whole->quantized)
		ready_s +=
			constants->eager_ns * 1e-9 + whole->gathered_bytes * QUANT_PASSES / 2 / hbm;
	for (uint32_t t = first; t < first + paper->pipeline->shards; t++) {
		double bytes = whole->gathered_bytes;
		add(paper, SIM_GATHER, t, param, stage->lane_free_s, gathered_s, bytes);
		add(paper, SIM_FUSE, t, param, gathered_s, fused_s, bytes);
		if (whole->quantized)
			add(paper, SIM_CONVERT, t, param, fused_s, ready_s, bytes);
		*paper_gate(paper, t, false, param) = ready_s;
		if (task_of(paper, t, param)->writes_left == 0)
			paper->in_flight[t] -= whole->gathered_bytes;
	}
	stage->lane_free_s = ready_s;
	stage->gathered_s = 0;
	stage->at++;
	stage_arrives(paper, stage);
	stage_start(paper, stage, 0);
}

static void done(void *arg, const struct sim_flow *flow, const struct sim_segment *segment,
		 double begin_s, double end_s)
{
	struct paper *paper = arg;
	uint32_t param = segment->item;
	struct stage *stage = &paper->stages[stage_of(paper, flow->sender)];

	if (flow->kind != WRITE) {
		stage->gathered_s = MAX(stage->gathered_s, end_s);
		if (--stage->gathering == 0)
			gather_done(paper, stage, param);
		return;
	}
	size_t at = (size_t)(flow->receiver - paper->trainers) * paper->param_count + param;
	paper->receive_begin_s[at] = begin_s;
	paper->receive_end_s[at] = end_s + paper->constants->write_latency_ns * 1e-9;
	struct task *task = task_of(paper, flow->sender, param);
	task->written_s = MAX(task->written_s, end_s);
	task->bytes += segment->bytes;
	if (--task->writes_left == 0) {
		add(paper, SIM_WRITE, flow->sender, param,
		    *paper_gate(paper, flow->sender, false, param), task->written_s,
		    (double)task->bytes);
		paper->in_flight[flow->sender] -= paper->params[param].gathered_bytes;
		if (stage->waits)
			stage_start(paper, stage, end_s);
	}
	if (!paper->params[param].expert) {
		stage->drained_s = MAX(stage->drained_s, end_s);
		stage->writes_left--;
		stage_arrives(paper, stage);
	}
}

static int paper_play(struct paper *paper, struct ws_error *err)
{
	uint32_t members = paper->trainers + paper->receivers;
	double *lines = arena_array(&paper->arena, members, sizeof(double));

	if (lines == NULL)
		return ws_fail(err, -ENOMEM, "out of memory while simulating");
	for (uint32_t m = 0; m < members; m++)
		lines[m] = paper->constants->nic_gbps * 1e9 / 8;
	recorder_floors(&paper->recorder, lines);
	paper->flows.step_s = GRAIN_S;
	paper->flows.done = done;
	paper->flows.arg = paper;
	for (uint32_t s = 0; s < paper->pipeline->stages; s++)
		stage_start(paper, &paper->stages[s], 0);
	int rc = sim_flows_run(&paper->flows, err);
	if (rc != 0)
		return rc;
	for (uint32_t r = 0; r < paper->receivers; r++)
		for (uint32_t p = 0; p < paper->param_count; p++) {
			size_t at = (size_t)r * paper->param_count + p;
			add(paper, SIM_RECEIVE, paper->trainers + r, p, paper->receive_begin_s[at],
			    paper->receive_end_s[at], (double)paper->params[p].sent_bytes);
		}
	paper->recorder.out->step_count = paper->flows.step_count;
	return 0;
}

int simulate_paper(struct simulation **out, const char *model,
		   const struct sim_constants *constants, struct ws_error *err)
{
	const struct pipeline *pipeline = NULL;

	*out = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(pipelines); i++)
		if (strcmp(pipelines[i].name, model) == 0)
			pipeline = &pipelines[i];
	if (pipeline == NULL)
		return ws_fail(err, -EINVAL,
			       "the published pipelines are kimi-k2 and qwen3-235b, not '%s'",
			       model);
	struct paper *paper = mem_alloc(sizeof(*paper));
	if (paper == NULL)
		return ws_fail(err, -ENOMEM, "out of memory while simulating");
	paper->pipeline = pipeline;
	paper->constants = constants;
	int rc = paper_make(paper, err);
	if (rc == 0)
		rc = paper_play(paper, err);
	if (rc == 0 && recorder_end(&paper->recorder, constants->control_ns * 1e-9, out) != 0)
		rc = ws_fail(err, -ENOMEM, "out of memory while simulating");
	recorder_release(&paper->recorder);
	arena_release(&paper->arena);
	mem_free(paper);
	return rc;
}
