/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What quantizing a canonical tensor as a whole gives, put where a rollout's form says: by
 * lib/convert, in one process, without a plan.
 */
#ifndef QUANT_WORLD_H
#define QUANT_WORLD_H

#include "lib/convert/convert.h"
#include "planner/planner.h"

struct whole {
	const struct tensor_rule *rule; /* of the weight */
	enum ws_dtype trained;
	uint64_t element_count;
	void *data; /* owned; row-major, for the caller to fill */
	bool is_quantized;
	uint32_t *table; /* owned; of its blocks' maxima */
	struct quant quant;
	struct blocks blocks;
};

struct quant quant_of(const struct quant_scheme *scheme);
/* scheme: NULL where it is only cast. */
void whole_open(struct whole *whole, const struct tensor_rule *rule, enum ws_dtype trained,
		const struct quant_scheme *scheme);
/* Once data is filled. */
void whole_find_maxima(struct whole *whole);
/* The weights under the scale of a rollout's piece, its own first: all of that expert that the
 * param has at this rank, if the scheme is per tensor.  Returns how many. */
#define FELLOWS_MAX 8
uint32_t whole_fellows(const struct manifest *manifest, uint32_t rank, const struct param *param,
		       const struct piece *piece, const struct tensor_rule *list[FELLOWS_MAX]);
/* Two weights are under one scale. */
void whole_share(struct whole *a, struct whole *b);
/* A piece of a param of this tensor, or of its scale; memory is the param's. */
void whole_put(const struct whole *whole, enum ws_dtype dtype, const struct piece *piece,
	       bool is_scale, uint8_t *memory);
void whole_close(struct whole *whole);

#endif
