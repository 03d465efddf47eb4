/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public check of one manifest.
 */
#include <errno.h>

#include "planner/planner.h"
#include "planner/ws_manifest.h"

struct ws_manifest {
	struct arena arena;
	struct findings findings;
	struct manifest *manifest; /* owned; NULL where there are findings */
};

void ws_manifest_free(struct ws_manifest *manifest)
{
	if (manifest == NULL)
		return;
	manifest_free(manifest->manifest);
	arena_release(&manifest->arena);
	mem_free(manifest);
}

int ws_manifest_check(struct ws_manifest **manifest_out, const char *json, size_t bytes,
		      struct ws_error *err)
{
	struct ws_manifest *check = mem_alloc(sizeof(*check));
	*manifest_out = NULL;
	if (check == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the manifest");
	check->findings.arena = &check->arena;
	int rc = manifest_parse(&check->manifest, json, bytes, &check->findings, err);
	if (rc != 0 && check->findings.count == 0) {
		ws_manifest_free(check);
		return rc;
	}
	*manifest_out = check;
	return 0;
}

uint32_t ws_manifest_finding_count(const struct ws_manifest *manifest)
{
	return manifest->findings.count;
}

bool ws_manifest_finding(const struct ws_manifest *manifest, uint32_t index, const char **kind_out,
			 const char **where_out, const char **text_out)
{
	const struct finding *finding = manifest->findings.first;
	for (uint32_t i = 0; i < index && finding != NULL; i++)
		finding = finding->next;
	if (finding == NULL)
		return false;
	*kind_out = finding->kind;
	*where_out = finding->where;
	*text_out = finding->text;
	return true;
}

uint64_t ws_manifest_digest(const struct ws_manifest *manifest)
{
	return manifest->manifest == NULL ? 0 : manifest_digest(manifest->manifest);
}

uint32_t ws_manifest_world(const struct ws_manifest *manifest)
{
	return manifest->manifest == NULL ? 0 : manifest_world(manifest->manifest);
}

int ws_manifest_rank(const struct ws_manifest *manifest, uint32_t rank, uint32_t *param_count_out,
		     uint64_t *bytes_out, struct ws_error *err)
{
	struct arena arena = {0};
	struct rank_params params;
	if (manifest->manifest == NULL || rank >= manifest_world(manifest->manifest))
		return ws_fail(err, -EINVAL, "the manifest has no rank %u", rank);
	int rc = manifest_params(manifest->manifest, rank, &arena, &params, err);
	if (param_count_out != NULL)
		*param_count_out = params.count;
	if (bytes_out != NULL)
		*bytes_out = params.bytes;
	arena_release(&arena);
	return rc;
}
