/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What post steps must make, element by element: which element of the param that it is made of
 * stands where.  Written from the engines' side of it (layouts facts 1.3, 3.1, 3.2); shares no code
 * with cli/post.c, which makes it by moves.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/oracle.h"

/* The layer that makes `name` of a pattern with {L}; false: it isn't one of it. */
static bool layer_of(const char *pattern, const char *name, long *layer_out)
{
	const char *mark = strstr(pattern, "{L}");
	char *end;

	*layer_out = -1;
	if (mark == NULL)
		return strcmp(pattern, name) == 0;
	size_t before = (size_t)(mark - pattern);
	if (strncmp(pattern, name, before) != 0 || name[before] < '0' || name[before] > '9')
		return false;
	*layer_out = strtol(name + before, &end, 10);
	return strcmp(mark + strlen("{L}"), end) == 0;
}

/* vLLM keeps the keys' part as rows and turns the values'; SGLang the other way round. */
static int fill(const struct json *manifest, const struct json *entry, uint32_t index,
		struct derived *derived, struct ws_error *err)
{
	const struct json *sym = json_get(manifest, "sym");
	const char *step = json_text(entry, "post", "");
	bool vllm = strcmp(step, "vllm_mla_absorb") == 0;

	if ((!vllm && strcmp(step, "sglang_mla_absorb") != 0) || index > 1)
		return ws_fail(err, -ENOTSUP, "oracle: nobody knows what post step '%s' makes",
			       step);
	derived->is_value = index == 1;
	derived->turned = vllm == derived->is_value;
	derived->keys = (uint64_t)json_integer(sym, "qk_nope_head_dim", 0);
	derived->values = (uint64_t)json_integer(sym, "v_head_dim", 0);
	return derived->keys > 0 && derived->values > 0
		       ? 0
		       : ws_fail(err, -EINVAL,
				 "oracle: \"sym\" has no qk_nope_head_dim or no v_head_dim");
}

int derived_find(const struct json *manifest, const char *name, struct derived *derived_out,
		 struct ws_error *err)
{
	const struct json *list = json_get(manifest, "derived");

	*derived_out = (struct derived){0};
	for (const struct json *at = list ? list->first : NULL; at != NULL; at = at->next) {
		const struct json *makes = json_get(at, "makes");
		for (uint32_t i = 0; i < makes->count; i++) {
			struct spot spot = {.manifest = manifest};
			long layer;
			if (!layer_of(json_text(json_at(makes, i), "p", ""), name, &layer))
				continue;
			spot.layer = (int32_t)layer;
			spot_name(&spot, json_at(json_get(at, "from"), 0)->text, -1, -1,
				  derived_out->from, sizeof(derived_out->from));
			return fill(manifest, at, i, derived_out, err);
		}
	}
	return 0;
}

uint32_t derived_shape(const struct derived *derived, const struct tree *from, uint64_t *shape_out)
{
	uint64_t own = derived->is_value ? derived->values : derived->keys;

	shape_out[0] = from->shape[0] / (derived->keys + derived->values);
	shape_out[derived->turned ? 2 : 1] = own;
	shape_out[derived->turned ? 1 : 2] = from->shape[1];
	return 3;
}

/* A head's rows: its keys' first, then its values'. */
void derived_place(const struct derived *derived, const uint64_t *index, uint64_t *below)
{
	uint64_t row = index[derived->turned ? 2 : 1];

	below[0] = index[0] * (derived->keys + derived->values) + row;
	if (derived->is_value)
		below[0] += derived->keys;
	below[1] = index[derived->turned ? 1 : 2];
}
