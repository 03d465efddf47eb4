/* SPDX-License-Identifier: Apache-2.0 */
/* Random moves of every kind with memory of their own, and floats that are hard to convert. */
#ifndef CONVERT_WORLD_H
#define CONVERT_WORLD_H

#include "lib/convert/convert.h"
#include "tests/test.h"

/* ck_assert writes to a pipe each time it is passed, which is slow in a loop of millions. */
#define must(condition, ...)                                       \
	do {                                                       \
		if (!(condition))                                  \
			ck_abort_msg(#condition ": " __VA_ARGS__); \
	} while (0)

float float_of(uint32_t bits);
uint32_t bits_of(float value);

/* Moves one element. */
uint32_t move_one(enum move_kind kind, const struct blocks *blocks, enum ws_dtype from,
		  enum ws_dtype to, uint32_t bits);

/* Of a temper that the seed chooses: like weights; with NaNs, infinities, zeros and subnormals
 * among them; half way between codes; any bits. */
void floats_fill(void *memory, size_t count, enum ws_dtype dtype, uint64_t seed);

struct quant quant_random(uint64_t seed);

/* What the seed chooses, kind included; the memory has exact sizes and odd starts. */
struct boxed {
	struct move move;
	struct blocks blocks;
	struct quant quant;
	uint8_t *src, *dst, *table; /* owned, as allocated */
	size_t src_bytes, dst_bytes, table_bytes;
};

void boxed_make(struct boxed *boxed, uint64_t seed);
void boxed_release(struct boxed *boxed);
/* The bytes that the move may write: dst's, or the table's. */
uint8_t *boxed_written(struct boxed *boxed, size_t *bytes_out);

/* Everything that a level does, held against the plain C; NULL if this CPU lacks the level. */
Suite *level_suite(enum convert_level level);

#endif
