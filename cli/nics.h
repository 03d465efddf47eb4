/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to `weightsync nics`: what nics.c gathers and nics_print.c shows.
 */
#ifndef CLI_NICS_H
#define CLI_NICS_H

#include "cli/cli.h"
#include "lib/transport/topology.h"

/* A GPU, who serves it over all transports, and where its rank's I/O thread would run. */
struct gpu_view {
	struct nic_info *infos; /* copies; near is as seen from this GPU */
	uint32_t count;
	struct core_choice core;
};

/* All arrays are in the arena. */
struct host_view {
	struct arena arena;
	struct topology topology;
	int gpu;		/* whose memory the NICs are for; -1: the host's */
	struct nic_info *infos; /* of all transports shown */
	uint32_t count;
	struct gpu_view *gpus;	 /* topology.gpu_count */
	struct core_choice core; /* for host memory, of this process */
};

/* columns: where a table's last cells are folded. */
int host_view_put_table(struct host_view *view, uint32_t columns, struct writer *out,
			struct ws_error *err);
void host_view_put_json(const struct host_view *view, struct writer *out);

#endif
