/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's part of a plan as the engine's program: sends, digests and credits (program.c), what
 * weights are quantized by (quantize.c), which of them are read once (whole.c), and what comes from
 * other trainers (receive.c).
 */
#ifndef TRAINER_PROGRAM_H
#define TRAINER_PROGRAM_H

#include "trainer_side/trainer_internal.h"

/* Fills wire->program, in the wire's arena, from the plan and the pairs' answers.  -EPROTO when
 * a rollout left out where a param lies. */
int program_make(struct ws_trainer *trainer, struct ws_error *err);

/* Gates of a bucket.  My locals hold both shut.  Behind the first wait the maxima that I tell
 * others, behind the second codes and scales; what others tell me holds that one shut, too. */
static inline uint32_t gate_found(uint32_t bucket)
{
	return 2 * bucket + 1;
}

static inline uint32_t gate_raised(uint32_t bucket)
{
	return 2 * bucket + 2;
}

/* ---- quantize.c.  The program's tables, gates and locals; before anything points into tables. */
int quantize_make(struct ws_trainer *trainer, struct ws_error *err);
/* A part of any kind as a move of a gather, but for where it goes. */
int quantize_part(struct ws_trainer *trainer, const struct plan_part *part, struct move *move,
		  struct ws_error *err);

/* ---- whole.c */
/* Whether a part that has whole blocks can be quantized in one pass, in such ops. */
bool whole_can(const struct ws_trainer *trainer, const struct gather_move *gather,
	       uint64_t op_bytes);

/* Which maxima are found while codes are made. */
struct whole {
	uint32_t *found_in; /* owned; by entry of the tables: the turn in which it was last found */
	uint32_t bucket, receiver, turn; /* of the sends at hand */
};

/* Between these two, all sends in their order.  The end leaves those locals in the program that
 * find what nothing else does, or not early enough. */
int whole_begin(struct whole *whole, const struct wire *wire, struct ws_error *err);
void whole_send(struct whole *whole, const struct wire *wire, const struct plan_copy *copy,
		const struct send *send);
void whole_end(struct whole *whole, struct wire *wire);

#endif
