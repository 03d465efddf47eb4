/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of params' present bytes, for reports and for callers that ask. */
#include <errno.h>
#include <string.h>

#include "rollout_side/rollout_internal.h"

uint64_t param_digest(const struct ws_rollout *rollout, uint32_t index)
{
	const struct ws_memory *memory = &rollout->own.memories[index];
	const char *name = rollout->own.params.params[index].name;

	return digest_bytes(memory->base, memory->bytes, digest_bytes(name, strlen(name), 0));
}

uint64_t params_digest(const struct ws_rollout *rollout)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < rollout->own.params.count; i++)
		if (rollout->own.memories[i].bytes > 0)
			sum ^= param_digest(rollout, i);
	return sum;
}

int ws_rollout_digest(const struct ws_rollout *rollout, uint32_t index, uint64_t *digest_out,
		      struct ws_error *err)
{
	if (index >= rollout->own.params.count)
		return ws_fail(err, -EINVAL, "%s has no param %u, it has %u", rollout->name, index,
			       rollout->own.params.count);
	if (rollout->own.memories[index].base == NULL &&
	    rollout->own.params.params[index].bytes > 0)
		return ws_fail(err, -EINVAL, "param '%s' was never added",
			       rollout->own.params.params[index].name);
	if (!rollout->whole)
		return ws_fail(err, -EAGAIN, "%s's memory is being written; ask when it is live",
			       rollout->name);
	*digest_out = param_digest(rollout, index);
	return 0;
}
