/* SPDX-License-Identifier: Apache-2.0 */
/* Private to import_megatron.c and import_megatron_param.c: a Megatron dump while it is read. */
#ifndef IMPORT_MEGATRON_H
#define IMPORT_MEGATRON_H

#include "planner/import.h"

enum megatron_axis {
	MEGATRON_TP,
	MEGATRON_CP,
	MEGATRON_DP,
	MEGATRON_PP,
	MEGATRON_ETP,
	MEGATRON_EP,
	MEGATRON_EDP,
	MEGATRON_AXIS_COUNT
};

struct megatron {
	struct import *import;
	struct grid_axis axes[MEGATRON_AXIS_COUNT]; /* size 0: no rank has said yet */
	const struct json *presets[4];		    /* lists of Megatron's params */
	uint32_t preset_count;
	/* Of the rank at hand. */
	uint32_t rank, stage;
	const struct json *layers; /* of the chunk at hand: global numbers */
	char where[32];
};

/* import_megatron_param.c */
bool megatron_presets(struct megatron *dump);
void megatron_param(struct megatron *dump, const struct json *json);

#endif
