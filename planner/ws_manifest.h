/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking one side's manifest, for programs that write their own: what weightsync would say of
 * it, and the digest by which members compare manifests.  Pure computation: no files, no network.
 * planner/README.md has the format.
 */
#ifndef WS_MANIFEST_H
#define WS_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/ws_error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_manifest;

/*
 * Reads a manifest's JSON text, which is borrowed for the call, and evaluates every param at
 * every rank.
 *
 * Returns 0 also for a manifest that can't be: *manifest_out then has findings.  Errors are
 * -EBADMSG for a text that isn't strict JSON (with line and column), -ENOSPC for one beyond the
 * limits (64 MiB), -ENOMEM.  Thread: any.
 */
WS_API int ws_manifest_check(struct ws_manifest **manifest_out, const char *json, size_t bytes,
			     struct ws_error *err);

/* How many things are wrong; 0: weightsync can use it. */
WS_API uint32_t ws_manifest_finding_count(const struct ws_manifest *manifest);

/*
 * One of them: kind is a stable word ("key", "tensor", "axis", "rule", "rows", ...), where names
 * the param, tensor or entry, text is a sentence.  false where index is beyond those kept (at
 * most 1000, and 3 of those that differ in numbers only).  The texts live as long as the manifest.
 */
WS_API bool ws_manifest_finding(const struct ws_manifest *manifest, uint32_t index,
				const char **kind_out, const char **where_out,
				const char **text_out);

/* The digest of its meaning: neither white space nor the order of keys counts.  0 where there
 * are findings. */
WS_API uint64_t ws_manifest_digest(const struct ws_manifest *manifest);

/* Ranks it is for; of one replica for a rollout's.  0 where there are findings. */
WS_API uint32_t ws_manifest_world(const struct ws_manifest *manifest);

/* Params that a rank holds, and their bytes; both outputs may be NULL.  -EINVAL for a rank it
 * hasn't, or where there are findings. */
WS_API int ws_manifest_rank(const struct ws_manifest *manifest, uint32_t rank,
			    uint32_t *param_count_out, uint64_t *bytes_out, struct ws_error *err);

/* Frees all; accepts NULL. */
WS_API void ws_manifest_free(struct ws_manifest *manifest);

#ifdef __cplusplus
}
#endif

#endif
