/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of params' present bytes, for reports and for callers that ask. */
#include <errno.h>
#include <string.h>

#include "rollout_side/rollout_internal.h"

int param_digest(const struct ws_rollout *rollout, uint32_t index, uint64_t *digest_out,
		 struct ws_error *err)
{
	const struct ws_memory *memory = description_memory(&rollout->own, index);
	const char *name = description_name(&rollout->own, index);
	uint64_t seed = digest_bytes(name, strlen(name), 0);
	void *copy = NULL;
	int rc = 0;

	if (memory->place == WS_CUDA) {
		copy = mem_alloc(MAX(memory->bytes, (size_t)1));
		rc = copy == NULL ? ws_fail(err, -ENOMEM, "no memory to hash param '%s' of GPU %d",
					    name, memory->device)
				  : memory_read(memory, 0, copy, memory->bytes, err);
	}
	if (rc == 0)
		*digest_out = digest_bytes(copy != NULL ? copy : memory->base, memory->bytes, seed);
	mem_free(copy);
	return rc;
}

int params_digest(const struct ws_rollout *rollout, uint64_t *digest_out, struct ws_error *err)
{
	uint64_t sum = 0, one = 0;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < description_count(&rollout->own); i++) {
		if (description_memory(&rollout->own, i)->bytes == 0)
			continue;
		rc = param_digest(rollout, i, &one, err);
		sum ^= one;
	}
	*digest_out = sum;
	return rc;
}

int ws_rollout_digest(const struct ws_rollout *rollout, uint32_t index, uint64_t *digest_out,
		      struct ws_error *err)
{
	const struct description *own = &rollout->own;

	if (index >= description_count(own))
		return ws_fail(err, -EINVAL, "%s has no param %u, it has %u", rollout->name, index,
			       description_count(own));
	if (description_memory(own, index)->base == NULL &&
	    (index >= own->params.count || own->params.params[index].bytes > 0))
		return ws_fail(err, -EINVAL, "param '%s' was never added",
			       description_name(own, index));
	if (!rollout->whole)
		return ws_fail(err, -EAGAIN, "%s's memory is being written; ask when it is live",
			       rollout->name);
	return param_digest(rollout, index, digest_out, err);
}
