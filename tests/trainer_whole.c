/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which maxima a trainer may leave to the making of codes: those that nothing reads but scales for
 * the same peer, behind the codes of their blocks in the same bucket.
 */
#include <string.h>

#include "tests/test.h"
#include "trainer_side/program.h"

#define ROWS	4u /* of blocks: entries of the table, one after the other */
#define BLOCK	8u
#define COLUMNS 16u /* in one block */

/* A send of some rows of blocks: codes in one pass, codes in two, scales, maxima, or a copy. */
struct step {
	char what; /* o, t, s, m, c; 0: the end */
	uint32_t bucket, receiver, first, count;
};

static const struct {
	struct step steps[5];
	const char *kept; /* of two locals, rows 0 and 1, and 2 and 3 */
} cases[] = {
	/* Found while the codes are made, and read behind them. */
	{{{'o', 0, 7, 0, 4}, {'s', 0, 7, 0, 4}}, ""},
	{{{'o', 0, 7, 0, 2}, {'o', 0, 7, 2, 2}, {'s', 0, 7, 1, 2}}, ""},
	{{{'o', 0, 7, 0, 4}, {'s', 0, 7, 0, 4}, {'o', 0, 8, 0, 4}, {'s', 0, 8, 0, 4}}, ""},
	{{{'o', 0, 7, 0, 4}, {'c', 0, 7, 0, 4}, {'s', 0, 7, 0, 4}}, ""},
	/* Nothing reads them. */
	{{{'o', 0, 7, 0, 4}}, ""},
	{{{'c', 0, 7, 0, 4}}, ""},
	/* Scales first, or of other rows, or for whom others send the codes. */
	{{{'s', 0, 7, 0, 4}, {'o', 0, 7, 0, 4}}, "01"},
	{{{'o', 0, 7, 0, 2}, {'s', 0, 7, 0, 4}}, "1"},
	{{{'o', 0, 7, 0, 3}, {'s', 0, 7, 0, 4}}, "1"},
	{{{'o', 0, 7, 0, 4}, {'s', 0, 8, 0, 4}}, "01"},
	{{{'o', 0, 7, 0, 4}, {'s', 0, 8, 1, 1}}, "0"},
	/* In another bucket, or behind another peer's, which no plan does: nothing is left to
	   chance. */
	{{{'o', 0, 7, 0, 4}, {'s', 1, 7, 0, 4}}, "01"},
	{{{'o', 0, 7, 0, 4}, {'o', 0, 8, 0, 4}, {'s', 0, 7, 0, 4}}, "01"},
	/* Codes of torn blocks, and other trainers, read the table before. */
	{{{'t', 0, 7, 0, 4}, {'s', 0, 7, 0, 4}}, "01"},
	{{{'o', 0, 7, 0, 4}, {'s', 0, 7, 0, 4}, {'t', 0, 8, 3, 1}}, "1"},
	{{{'m', 0, 2, 1, 1}, {'o', 0, 7, 0, 4}, {'s', 0, 7, 0, 4}}, "0"},
	{{{'o', 0, 7, 0, 4}, {'s', 0, 7, 0, 4}, {'m', 0, 2, 1, 1}}, "0"},
};

struct world {
	uint32_t table[ROWS];
	uint8_t values[ROWS * BLOCK * COLUMNS];
	struct blocks blocks[2];
	struct move moves[2];
	struct local locals[2];
	struct wire wire;
};

static void rows_of(struct world *world, uint32_t first, uint32_t count, struct blocks *blocks,
		    struct move *move)
{
	*blocks = (struct blocks){.table = world->table,
				  .each = {BLOCK, COLUMNS},
				  .first = {first * BLOCK},
				  .stride = {1, 0}};
	*move = (struct move){.kind = MOVE_MAXIMA,
			      .blocks = blocks,
			      .src = world->values + first * BLOCK * COLUMNS,
			      .dim_count = 2,
			      .extent = {count * BLOCK, COLUMNS},
			      .src_stride = {COLUMNS, 1}};
}

static void world_make(struct world *world)
{
	memset(world, 0, sizeof(*world));
	for (uint32_t i = 0; i < 2; i++) {
		rows_of(world, 2 * i, 2, &world->blocks[i], &world->moves[i]);
		world->locals[i] = (struct local){.moves = &world->moves[i], .move_count = 1};
	}
	world->wire.program = (struct engine_program){.locals = world->locals,
						      .local_count = 2,
						      .tables = world->table,
						      .tables_bytes = sizeof(world->table)};
}

static void step_take(struct world *world, struct whole *whole, const struct step *step)
{
	static const struct {
		char what;
		enum part_kind part;
		enum move_kind move;
	} kinds[] = {{'o', PART_CODES, MOVE_QUANTIZE_WHOLE},
		     {'t', PART_CODES, MOVE_QUANTIZE},
		     {'s', PART_SCALES, MOVE_SCALE},
		     {'m', PART_MAXIMA, MOVE_CAST},
		     {'c', PART_CAST, MOVE_CAST}};
	struct blocks blocks;
	struct gather_move gather = {0};
	uint32_t k = 0;

	while (kinds[k].what != step->what)
		k++;
	const struct plan_part part = {.kind = kinds[k].part};
	const struct plan_copy copy = {.bucket = step->bucket,
				       .receiver = step->receiver,
				       .gather = true,
				       .part_count = 1,
				       .parts = &part};
	const struct send send = {.moves = &gather, .move_count = 1};
	rows_of(world, step->first, step->count, &blocks, &gather.move);
	gather.move.kind = kinds[k].move;
	if (part.kind == PART_SCALES || part.kind == PART_MAXIMA) {
		gather.move.src = world->table + step->first;
		gather.move.dim_count = 1;
		gather.move.extent[0] = step->count;
		gather.move.src_stride[0] = sizeof(uint32_t);
	}
	whole_send(whole, &world->wire, &copy, &send);
}

START_TEST(a_local_stays_where_something_reads_what_it_finds)
{
	struct world world;
	struct whole whole;
	struct ws_error err;
	char kept[3] = "";

	world_make(&world);
	ck_ok(whole_begin(&whole, &world.wire, &err), err);
	for (const struct step *step = cases[_i].steps; step->what != 0; step++)
		step_take(&world, &whole, step);
	whole_end(&whole, &world.wire);
	for (uint32_t i = 0; i < world.wire.program.local_count; i++)
		kept[i] = world.locals[i].moves == &world.moves[0] ? '0' : '1';
	ck_assert_str_eq(kept, cases[_i].kept);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("trainer_whole");
	TCase *all = tcase_create("all");

	tcase_add_loop_test(all, a_local_stays_where_something_reads_what_it_finds, 0,
			    ARRAY_SIZE(cases));
	suite_add_tcase(s, all);
	return s;
}
