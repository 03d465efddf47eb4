/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking on a laptop, before a job is started: do these two manifests fit together, how many
 * bytes will move, and what stands in the way.  Pure computation: no files, no network, no GPU.
 */
#ifndef WS_PLAN_H
#define WS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/ws_error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_plan;

/* What an update of all replicas moves; bytes count every replica.  Zero where findings exist. */
struct ws_plan_totals {
	uint64_t digest;
	uint64_t bytes, copies, ops;
	uint64_t send_bytes_min, send_bytes_mean, send_bytes_max;	   /* per trainer rank */
	uint64_t receive_bytes_min, receive_bytes_mean, receive_bytes_max; /* per rollout rank */
	uint32_t trainer_count, replica_count, replica_rank_count;
	uint32_t bucket_count, senders_idle;
};

/*
 * Reads both manifests (JSON texts, borrowed for the call), plans for the given number of
 * replicas with the default rules, and checks each member's part of it.
 *
 * Returns 0 also when the manifests don't fit: *plan_out then has findings.  Errors are those of
 * the call itself: -EINVAL for replica_count 0, -ENOMEM.  Thread: any.
 */
WS_API int ws_plan_check(struct ws_plan **plan_out, const char *trainer_json, size_t trainer_bytes,
			 const char *rollout_json, size_t rollout_bytes, uint32_t replica_count,
			 struct ws_error *err);

/* How many things are wrong; 0: these manifests will do. */
WS_API uint32_t ws_plan_finding_count(const struct ws_plan *plan);

/*
 * One of them: kind is a stable word ("missing", "doubled", "shape", "dtype", "quant", ...), where
 * names the tensor or param, text is a sentence.  false where index is beyond those kept (at most
 * 1000, and 3 of those that differ in numbers only).  The texts live as long as the plan.
 */
WS_API bool ws_plan_finding(const struct ws_plan *plan, uint32_t index, const char **kind_out,
			    const char **where_out, const char **text_out);

WS_API void ws_plan_totals(const struct ws_plan *plan, struct ws_plan_totals *totals_out);

/* Frees all; accepts NULL. */
WS_API void ws_plan_free(struct ws_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
