/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real planning jobs: a model, how it is trained and how it is served.  For `bench plan` and for
 * the tests that compare plans with tests/golden/kimi_k2_plans.json.
 */
#ifndef PLAN_JOBS_H
#define PLAN_JOBS_H

#include "planner/planner.h"

/* How trainers hold their experts where `--layout` has no name for it; ranks are fsdp x ep, with
 * ep the faster; all else is cut over all ranks by torch.chunk. */
enum job_experts {
	JOB_LAYOUT = 0,	    /* as the trainer's layout says */
	JOB_STACKED_EXPERT, /* a stack of whole experts per projection, Shard(0) */
	JOB_STACKED_ROWS    /* a stack of gate and up, one of down, Shard(1) */
};

struct plan_job {
	const char *name, *model;
	const char *trainer, *trainer_mesh; /* a layout and its mesh; unused with stacked experts */
	enum job_experts experts;
	uint32_t expert_ranks, fsdp_ranks; /* of stacked experts */
	const char *rollout, *rollout_mesh;
	uint32_t replicas;
	const char *quant; /* of the rollout; or NULL */
};

/* One side's manifest as JSON. */
int plan_job_manifest(const struct plan_job *job, enum side side, struct writer *out,
		      struct findings *findings, struct ws_error *err);

#endif
