/* SPDX-License-Identifier: Apache-2.0 */
/* Smaller models of the same kind. */
#include <errno.h>

#include "planner/describe.h"

int model_scale(struct model **model_out, const struct model *model, uint64_t numerator,
		uint64_t denominator, struct ws_error *err)
{
	*model_out = NULL;
	return ws_fail(err, -ENOTSUP, "model '%s' can't be scaled by %llu/%llu yet", model->name,
		       (unsigned long long)numerator, (unsigned long long)denominator);
}
