/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What simulate_paper_make.c lays out and simulate_paper.c plays: the published pipeline of
 * arXiv 2510.27656 as ranks, params and flows.
 */
#ifndef SIMULATE_PAPER_H
#define SIMULATE_PAPER_H

#include "planner/simulate_internal.h"

#define NODE_RANKS 8
#define PARAMS_MAX 4096
#define STAGES_MAX 2

struct pipeline {
	const char *name, *model; /* model: with the dtypes of the rollouts */
	uint32_t trainers, rollouts, engines;
	uint32_t stages, shards, expert_groups; /* pp, fsdp, ep */
	uint32_t nodes;				/* that the shards of one group lie on */
	uint32_t channels; /* by which a gather drives a NIC, against 1 of a write */
	uint32_t gathers;  /* calls per param */
	bool loads;	   /* params wait in host memory, in a lane of their own */
	bool drains;	   /* a barrier waits for writes too */
	double watermark_bytes;
};

/* A param of one layer: a tensor, or one projection of all experts. */
struct whole {
	double gathered_bytes; /* BF16, of one expert group */
	uint64_t sent_bytes;   /* to each receiver, as it wants it */
	uint32_t stage, layer;
	bool quantized, expert;
};

/* What one rank has still to do for one param. */
struct task {
	uint32_t writes_left;
	uint64_t bytes;
	double written_s;
};

struct stage {
	uint32_t *order; /* its params: shared ones, then experts */
	uint32_t count, shared_count;
	uint32_t at;	      /* being gathered, or next */
	uint32_t gathering;   /* ranks that haven't all of it yet */
	double gathered_s;    /* the last rank had it */
	double lane_free_s;   /* of its slowest rank: all go in step */
	double loaded_s;      /* the load lane has come so far */
	double barrier_s;     /* when the experts may begin; INFINITY: not yet */
	double arrived_s;     /* at the barrier; INFINITY: not yet */
	uint32_t writes_left; /* of the shared params */
	double drained_s;
	uint32_t turn; /* of the pairing */
	bool waits;    /* for memory */
};

struct paper {
	const struct pipeline *pipeline;
	const struct sim_constants *constants;
	struct sim_flows flows;
	struct recorder recorder;
	struct whole params[PARAMS_MAX];
	uint32_t param_count;
	struct stage stages[STAGES_MAX];
	uint32_t trainers, receivers;		 /* of the part that is played */
	struct task *tasks;			 /* by rank * param_count + param */
	double *in_flight;			 /* by rank: bytes gathered and not yet written */
	double *receive_begin_s, *receive_end_s; /* by receiver * param_count + param */
	double *capacities;
	struct arena arena;
};

enum kind { GATHER_SHARED, GATHER_EXPERT, WRITE };

static inline uint32_t stage_of(const struct paper *paper, uint32_t trainer)
{
	return trainer / paper->pipeline->shards;
}

static inline struct task *task_of(const struct paper *paper, uint32_t trainer, uint32_t param)
{
	return &paper->tasks[(size_t)trainer * paper->param_count + param];
}

/* A trainer's writes of a param have one gate, its gather another. */
static inline double *paper_gate(const struct paper *paper, uint32_t trainer, bool gathers,
				 uint32_t param)
{
	size_t row = trainer + (gathers ? paper->trainers : 0);

	return &paper->flows.gates[row * paper->param_count + param];
}

/* Everything but the pipeline and the constants, which are given. */
int paper_make(struct paper *paper, struct ws_error *err);

#endif
