/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a side says of its NICs in its reports.
 */
#ifndef WS_NIC_H
#define WS_NIC_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WS_NICS_MAX 16 /* of one rank */

struct ws_nic {
	char transport[16];  /* "ipc", "verbs", "fabric" */
	char name[96];	     /* "tcp 127.0.0.1", "mlx5_0 port 1" */
	char memory[48];     /* how it reaches this rank's memory: "memfd", "process_vm_writev",
			      * "dma-buf"; all of them; empty: it needn't say */
	uint32_t peer_count; /* members that this rank writes to over it, and those that write to
			      * this rank: who does both counts twice */
	uint64_t bytes_sent; /* in the update that the report is of */
	bool down;	     /* its port or link; the others carry its share */
	char trouble[160];   /* the last thing that went wrong with it; empty: nothing has */
};

#ifdef __cplusplus
}
#endif

#endif
