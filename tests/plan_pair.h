/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two manifests written by hand or made from a real model, and plans of them.
 */
#ifndef PLAN_PAIR_H
#define PLAN_PAIR_H

#include "planner/planner.h"

struct pair_world {
	struct arena arena;
	struct findings findings;
	struct manifest *manifests[2];
	struct plan_input input; /* one replica, default rules */
	uint32_t replicas[8];
	struct ws_error err;
};

/* Both sides over one mesh axis "n"; tensors and params are the insides of JSON lists. */
void pair_open(struct pair_world *pair, const char *tensors, uint32_t trainers, const char *source,
	       uint32_t ranks, const char *target);
/* A built-in model; a layout's name and its mesh for each side. */
void pair_open_model(struct pair_world *pair, const char *model, const char *trainer,
		     const char *trainer_mesh, const char *rollout, const char *rollout_mesh,
		     uint32_t replicas);
/* The same with a scheme for the rollout's weights, or NULL; of the model scaled down to 1/scale.
 */
void pair_open_quant(struct pair_world *pair, const char *model, uint32_t scale,
		     const char *trainer, const char *trainer_mesh, const char *rollout,
		     const char *rollout_mesh, const char *quant, uint32_t replicas);
void pair_close(struct pair_world *pair);
struct plan *pair_plan(struct pair_world *pair, uint32_t self);
/* Expects that no plan is made and that the findings have this kind; its first text. */
const char *pair_refused(struct pair_world *pair, const char *kind);

#endif
