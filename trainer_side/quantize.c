/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that are quantized on the way: the tables of their blocks' maxima, which the engine's
 * locals raise by what I hold, and the moves that make codes and scales by them.
 */
#include <errno.h>

#include "trainer_side/program.h"

/* A scheme as lib/convert takes it: made once, for all parts that name it. */
struct recipe {
	struct recipe *next;
	const struct quant_scheme *scheme;
	struct quant quant;
	struct blocks of_scales; /* the quant alone */
};

static const struct recipe *recipe_find(struct wire *wire, const struct quant_scheme *scheme)
{
	struct recipe *recipe = wire->recipes;

	while (recipe != NULL && recipe->scheme != scheme)
		recipe = recipe->next;
	if (recipe != NULL)
		return recipe;
	recipe = arena_alloc(&wire->arena, sizeof(*recipe));
	if (recipe == NULL)
		return NULL;
	*recipe = (struct recipe){.next = wire->recipes,
				  .scheme = scheme,
				  .quant = {.code = scheme->code,
					    .scale = scheme->scale,
					    .eps = (float)scheme->eps,
					    .pow2 = scheme->pow2,
					    .reciprocal = scheme->reciprocal}};
	recipe->of_scales.quant = &recipe->quant;
	wire->recipes = recipe;
	return recipe;
}

/* NULL: no memory. */
static struct blocks *blocks_make(struct wire *wire, const struct plan_blocks *plan,
				  uint32_t dim_count)
{
	struct blocks *blocks = arena_alloc(&wire->arena, sizeof(*blocks));

	if (blocks == NULL)
		return NULL;
	*blocks = (struct blocks){.table = (uint8_t *)wire->program.tables + plan->table_offset};
	for (uint32_t d = 0; d < dim_count; d++) {
		blocks->each[d] = plan->each[d];
		blocks->first[d] = plan->first[d];
		blocks->stride[d] = plan->stride[d];
	}
	return blocks;
}

static const uint8_t *param_at(const struct ws_trainer *trainer, uint32_t param, uint64_t offset)
{
	return (const uint8_t *)trainer->memories[param].base + offset;
}

int quantize_part(struct ws_trainer *trainer, const struct plan_part *part, struct move *move,
		  struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	const struct recipe *recipe = NULL;
	struct blocks *blocks = NULL;

	if (part->scheme != NULL) {
		recipe = recipe_find(wire, part->scheme);
		if (recipe == NULL)
			return ws_fail(err, -ENOMEM, "no memory for a scheme");
	}
	switch (part->kind) {
	case PART_CAST:
		move->kind = MOVE_CAST;
		move->src = param_at(trainer, part->src_param, part->src_offset);
		return 0;
	case PART_CODES:
		blocks = blocks_make(wire, part->blocks, part->dim_count);
		if (blocks == NULL)
			return ws_fail(err, -ENOMEM, "no memory for the blocks of a part");
		blocks->quant = &recipe->quant;
		move->kind = MOVE_QUANTIZE;
		move->blocks = blocks;
		move->src = param_at(trainer, part->src_param, part->src_offset);
		return 0;
	case PART_SCALES:
		move->kind = MOVE_SCALE;
		move->blocks = &recipe->of_scales;
		break;
	case PART_MAXIMA:
		move->kind = MOVE_CAST;
		break;
	}
	move->src = (const uint8_t *)wire->program.tables + part->src_offset;
	return 0;
}

static int local_make(struct ws_trainer *trainer, const struct plan_local *plan, struct move *move,
		      struct ws_error *err)
{
	struct blocks *blocks = blocks_make(&trainer->wire, &plan->blocks, plan->dim_count);

	if (blocks == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the blocks of a param");
	*move = (struct move){.kind = MOVE_MAXIMA,
			      .blocks = blocks,
			      .src = param_at(trainer, plan->param, plan->src_offset),
			      .dim_count = plan->dim_count,
			      .from = plan->from,
			      .to = plan->from};
	for (uint32_t d = 0; d < plan->dim_count; d++) {
		move->extent[d] = plan->extent[d];
		move->src_stride[d] = plan->src_stride[d];
	}
	return 0;
}

static int locals_make(struct ws_trainer *trainer, struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	const struct plan *plan = trainer->source.plan;
	struct plan_cursor cursor = {0};
	struct plan_local local;
	uint32_t count = 0;
	int rc = 0;

	while (plan_next_local(plan, &cursor, &local))
		count++;
	struct local *locals = arena_array(&wire->arena, count, sizeof(*locals));
	struct move *moves = arena_array(&wire->arena, count, sizeof(*moves));
	if (locals == NULL || moves == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a program of %u locals", count);
	cursor = (struct plan_cursor){0};
	for (uint32_t i = 0; rc == 0 && i < count && plan_next_local(plan, &cursor, &local); i++) {
		rc = local_make(trainer, &local, &moves[i], err);
		locals[i] = (struct local){
			.moves = &moves[i],
			.move_count = 1,
			.gates = {gate_found(local.bucket), gate_raised(local.bucket)},
			.bucket = local.bucket};
	}
	wire->program.locals = locals;
	wire->program.local_count = count;
	return rc;
}

int quantize_make(struct ws_trainer *trainer, struct ws_error *err)
{
	struct wire *wire = &trainer->wire;
	uint64_t bytes = plan_tables_bytes(trainer->source.plan);

	wire->recipes = NULL;
	if (bytes == 0)
		return 0;
	if (trainer->tables.bytes < bytes) {
		ws_memory_free(&trainer->tables);
		trainer->tables = trainer->place;
		int rc = ws_memory_alloc(&trainer->tables, bytes, err);
		if (rc != 0)
			return ws_fail_in(err, rc, "no memory for %llu bytes of maxima",
					  (unsigned long long)bytes);
	}
	wire->program.tables = trainer->tables.base;
	wire->program.tables_bytes = bytes;
	wire->program.gate_count = 2 * plan_bucket_count(trainer->source.plan);
	return locals_make(trainer, err);
}
