/* SPDX-License-Identifier: Apache-2.0 */
/* A rollout's manifest with post steps in it: a param that is staged, and what is derived. */
#ifndef POST_TEXT_H
#define POST_TEXT_H

#include <stdio.h>
#include <string.h>

#include "lib/base/base.h"
#include "tests/test.h"

/* What "sums" derives of a dense model: once a layer, and once of the head. */
#define SUMS                                                                   \
	"[{\"post\":\"sums\",\"each\":{\"L\":\"all\"},\"mesh\":\"dense\","     \
	"\"from\":[\"model.layers.{L}.self_attn.qkv_proj.weight\","            \
	"\"model.layers.{L}.mlp.gate_up_proj.weight\",\"model.norm.weight\"]," \
	"\"makes\":[{\"p\":\"sums.{L}\",\"dtype\":\"u64\",\"shape\":[8]}]},"   \
	"{\"post\":\"sums\",\"mesh\":\"dense\",\"from\":[\"lm_head.weight\"]," \
	"\"makes\":[{\"p\":\"sum of the head\",\"dtype\":\"u64\",\"shape\":[8]}]}]"

/* staged: a rule's name, whose step is "swap"; derived: the list.  NULL: none. */
static inline void text_post(struct writer *text, const char *staged, const char *derived)
{
	struct writer out = WRITER_INIT(16u << 20);
	const char *at = (const char *)text->bytes, *end = at + text->count;

	while (end[-1] != '}')
		end--;
	end--;
	if (staged != NULL) {
		char key[256];
		snprintf(key, sizeof(key), "\"p\": \"%s\"", staged);
		const char *place = memmem(at, (size_t)(end - at), key, strlen(key));
		ck_assert_ptr_nonnull(place);
		write_bytes(&out, at, (size_t)(place - at));
		write_format(&out, "\"post\": \"swap\", ");
		at = place;
	}
	write_bytes(&out, at, (size_t)(end - at));
	if (derived != NULL)
		write_format(&out, ",\"derived\":%s", derived);
	write_format(&out, "}\n");
	ck_assert(!out.failed);
	writer_release(text);
	*text = out;
}

#endif
