/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole blocks through lib/engine: what holds all of a block finds its maximum while it makes the
 * codes, without a local, and the scales that follow in the same peer's order are made of it.  What
 * lands is what two passes give, whoever else is written to, dropped or broken off.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine/engine_internal.h"
#include "tests/test.h"

#define PEERS	 2
#define BUCKETS	 5
#define ROWS	 90u
#define COLUMNS	 96u
#define BLOCK	 20u /* the last of a dim is shorter */
#define GRID_R	 ((ROWS + BLOCK - 1) / BLOCK)
#define GRID_C	 ((COLUMNS + BLOCK - 1) / BLOCK)
#define GRID	 (GRID_R * GRID_C)
#define CODES	 ((uint64_t)ROWS * COLUMNS)
#define SCALES	 ((uint64_t)GRID * sizeof(float))
#define OP_BYTES 4096u
#define CUT	 ((uint64_t)2 * BLOCK * COLUMNS) /* two rows of blocks */
#define PACKED	 ((uint64_t)2 * BLOCK * COLUMNS + 4 * GRID_C * sizeof(float))
#define LANDS	 ((uint64_t)16384) /* a bucket at a receiver: codes, scales; or both packed */

_Static_assert(CUT % 16 == 0 && CUT < OP_BYTES && CODES > 2 * CUT, "ops of whole blocks");
_Static_assert(CODES + SCALES <= LANDS && PACKED <= OP_BYTES, "room for a bucket");

static const struct quant quant = {
	.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4f, .reciprocal = true};

struct receiver {
	struct engine *engine;
	struct engine_peer *from;
	struct ws_memory memory;
	struct receive receives[2 * BUCKETS];
	struct op_range ranges[2 * BUCKETS];
	struct engine_program program;
	uint32_t received;
};

struct world {
	struct engine *engine;
	struct engine_peer *to[PEERS];
	float *rows; /* BUCKETS tensors */
	uint32_t tables[BUCKETS * GRID];
	struct blocks blocks[BUCKETS];
	struct gather_move codes[BUCKETS], scales[BUCKETS], packed[2];
	struct send sends[2 * PEERS * BUCKETS];
	struct engine_program program;
	struct receiver receivers[PEERS];
	uint32_t sends_done;
};

static struct engine *open_one(const char *name, uint64_t staging_bytes)
{
	const struct device device = {.transport = "loop", .name = name};
	const struct engine_options options = {.devices = &device,
					       .device_count = 1,
					       .op_bytes = OP_BYTES,
					       .staging_bytes = staging_bytes};
	struct engine *engine;
	struct ws_error err;

	ck_ok(engine_open(&engine, &options, &err), err);
	return engine;
}

static void connect_to(struct world *world, int p)
{
	struct receiver *to = &world->receivers[p];
	struct writer out[3] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20), WRITER_INIT(1 << 20)};
	struct ws_error err;
	uint32_t region;

	ck_ok(ws_memory_alloc(&to->memory, BUCKETS * LANDS, &err), err);
	ck_ok(engine_region_add(to->engine, &to->memory, MR_TARGET, &region, &err), err);
	ck_ok(engine_peer_open(world->engine, "receiver", &world->to[p], &out[0], &err), err);
	ck_ok(engine_peer_open(to->engine, "sender", &to->from, &out[1], &err), err);
	engine_regions_encode(to->engine, &out[2]);
	ck_ok(engine_peer_connect(world->engine, world->to[p], out[1].bytes, out[1].count, &err),
	      err);
	ck_ok(engine_peer_regions(world->engine, world->to[p], out[2].bytes, out[2].count, &err),
	      err);
	ck_ok(engine_peer_connect(to->engine, to->from, out[0].bytes, out[0].count, &err), err);
	for (int i = 0; i < 3; i++)
		writer_release(&out[i]);
}

/* The last bucket has two rows of blocks alone, whose codes and scales share an op. */
static bool is_packed(uint32_t bucket)
{
	return bucket == BUCKETS - 1;
}

static void moves_make(struct world *world, uint32_t b)
{
	uint32_t rows = is_packed(b) ? 2 * BLOCK : ROWS, grid = is_packed(b) ? 2 * GRID_C : GRID;
	struct gather_move *codes = is_packed(b) ? &world->packed[0] : &world->codes[b];
	struct gather_move *scales = is_packed(b) ? &world->packed[1] : &world->scales[b];

	world->blocks[b] = (struct blocks){.quant = &quant,
					   .table = world->tables + b * GRID,
					   .each = {BLOCK, BLOCK},
					   .stride = {GRID_C, 1}};
	codes->move = (struct move){.kind = MOVE_QUANTIZE_WHOLE,
				    .blocks = &world->blocks[b],
				    .src = world->rows + b * CODES,
				    .dim_count = 2,
				    .extent = {rows, COLUMNS},
				    .src_stride = {COLUMNS * sizeof(float), sizeof(float)},
				    .dst_stride = {COLUMNS, 1},
				    .from = WS_F32,
				    .to = WS_F8_E4M3};
	scales->move = (struct move){.kind = MOVE_SCALE,
				     .blocks = &world->blocks[b],
				     .src = world->tables + b * GRID,
				     .dim_count = 1,
				     .extent = {grid},
				     .src_stride = {sizeof(uint32_t)},
				     .dst_stride = {sizeof(float)},
				     .from = WS_U32,
				     .to = WS_F32};
	if (is_packed(b))
		scales->wire_offset = CUT;
}

/* Codes, then scales: op ids b * 8 and from b * 8 + 7 on. */
static void sends_make(struct world *world, uint32_t b, int p, uint32_t *count)
{
	struct receiver *to = &world->receivers[p];
	bool packed = is_packed(b);

	for (uint32_t k = 0; k < (packed ? 1 : 2); k++) {
		struct send *send = &world->sends[*count];
		*send = (struct send){.peer = world->to[p],
				      .bytes = packed	? PACKED
					       : k == 0 ? CODES
							: SCALES,
				      .op_bytes = packed || k > 0 ? 0 : CUT,
				      .first_op_id = b * 8 + 7 * k,
				      .moves = packed	? world->packed
					       : k == 0 ? &world->codes[b]
							: &world->scales[b],
				      .move_count = packed ? 2 : 1,
				      .remote_region = 1,
				      .remote_offset = b * LANDS + k * CODES,
				      .credit_op_id = NONE};
		uint32_t ops = (uint32_t)engine_op_count(
			send->bytes, send->op_bytes != 0 ? send->op_bytes : OP_BYTES);
		uint32_t index = to->program.receive_count++;
		to->receives[index] = (struct receive){.peer = to->from,
						       .op_count = ops,
						       .bytes = send->bytes,
						       .digest_op_id = NONE,
						       .credit_op_id = NONE};
		to->ranges[index] = (struct op_range){
			.first_op_id = send->first_op_id, .count = ops, .receive = index};
		(*count)++;
	}
}

static struct world *world_open(int seed)
{
	struct world *world = calloc(1, sizeof(*world));
	struct ws_error err;
	uint32_t count = 0;
	char name[64];

	snprintf(name, sizeof(name), "net/sender?seed=%d", seed + 1);
	world->engine = open_one(name, (1 + (uint64_t)seed % 3) * OP_BYTES);
	world->rows = calloc(BUCKETS * CODES, sizeof(float));
	for (int p = 0; p < PEERS; p++) {
		snprintf(name, sizeof(name), "net/m%d?seed=%d", p, seed + 1);
		world->receivers[p].engine = open_one(name, 0);
		connect_to(world, p);
	}
	for (uint32_t b = 0; b < BUCKETS; b++) {
		moves_make(world, b);
		for (int p = 0; p < PEERS; p++)
			sends_make(world, b, p, &count);
	}
	for (int p = 0; p < PEERS; p++) {
		struct receiver *to = &world->receivers[p];
		to->program.receives = to->receives;
		to->program.ranges = to->ranges;
		to->program.range_count = to->program.receive_count;
		to->program.op_id_count = BUCKETS * 8;
		ck_ok(engine_set_program(to->engine, &to->program, &err), err);
	}
	world->program = (struct engine_program){.sends = world->sends,
						 .send_count = count,
						 .tables = world->tables,
						 .tables_bytes = sizeof(world->tables)};
	ck_ok(engine_set_program(world->engine, &world->program, &err), err);
	return world;
}

static void world_close(struct world *world)
{
	engine_close(world->engine);
	for (int p = 0; p < PEERS; p++) {
		engine_close(world->receivers[p].engine);
		ws_memory_free(&world->receivers[p].memory);
	}
	free(world->rows);
	free(world);
	ck_assert_uint_eq(mem_live_count(), 0);
}

/* Smaller from attempt to attempt: a maximum that were left would show. */
static void world_arm(struct world *world, uint64_t attempt)
{
	struct ws_error err;

	for (uint64_t i = 0; i < BUCKETS * CODES; i++) {
		float value =
			(float)(mix64(i ^ attempt << 40) % 100000) / (1000.0f * (float)attempt);
		world->rows[i] = i % 3 == 0 ? -value : value;
	}
	world->sends_done = 0;
	for (int p = 0; p < PEERS; p++) {
		struct receiver *to = &world->receivers[p];
		to->received = 0;
		memset(to->memory.base, 0xee, to->memory.bytes);
		ck_ok(engine_arm(to->engine, attempt, &err), err);
	}
	ck_ok(engine_arm(world->engine, attempt, &err), err);
}

static void world_step(struct world *world)
{
	struct engine_event events[16];
	int count = engine_step(world->engine, events, (int)ARRAY_SIZE(events));

	for (int e = 0; e < count; e++) {
		ck_assert_int_eq(events[e].kind, ENGINE_SENDS_DONE);
		world->sends_done++;
	}
	for (int p = 0; p < PEERS; p++) {
		struct receiver *to = &world->receivers[p];
		count = engine_step(to->engine, events, (int)ARRAY_SIZE(events));
		for (int e = 0; e < count; e++) {
			ck_assert(events[e].kind == ENGINE_RECEIVE_DONE ||
				  events[e].kind == ENGINE_SENDS_DONE);
			to->received += events[e].kind == ENGINE_RECEIVE_DONE;
		}
	}
}

static bool is_landed(const struct receiver *to)
{
	return to->received == to->program.receive_count;
}

static void world_end(struct world *world)
{
	struct engine_event events[16];

	engine_end(world->engine);
	for (int p = 0; p < PEERS; p++)
		engine_end(world->receivers[p].engine);
	/* What was under way lands, so that it can't look like the next attempt's. */
	for (int turn = 0; turn < 2000; turn++) {
		engine_step(world->engine, events, (int)ARRAY_SIZE(events));
		for (int p = 0; p < PEERS; p++)
			engine_step(world->receivers[p].engine, events, (int)ARRAY_SIZE(events));
	}
}

/* What two passes over each tensor give. */
static void receiver_verify(const struct world *world, const struct receiver *to)
{
	static uint8_t codes[CODES];
	float scales[GRID];

	for (uint32_t b = 0; b < BUCKETS; b++) {
		uint32_t table[GRID] = {0}, grid = is_packed(b) ? 2 * GRID_C : GRID;
		struct blocks blocks = world->blocks[b];
		struct move move = is_packed(b) ? world->packed[0].move : world->codes[b].move;
		struct move scale = is_packed(b) ? world->packed[1].move : world->scales[b].move;
		uint64_t bytes = move.extent[0] * COLUMNS;
		blocks.table = table;
		move.blocks = &blocks;
		move.dst = codes;
		move.kind = MOVE_MAXIMA;
		convert_move(&move);
		move.kind = MOVE_QUANTIZE;
		convert_move(&move);
		scale.src = table;
		scale.dst = scales;
		convert_move(&scale);
		const uint8_t *landed = (const uint8_t *)to->memory.base + b * LANDS;
		ck_assert_msg(memcmp(landed, codes, bytes) == 0, "codes of bucket %u", b);
		ck_assert_msg(memcmp(landed + bytes, scales, grid * sizeof(float)) == 0,
			      "scales of bucket %u", b);
	}
}

static void world_update(struct world *world, uint64_t attempt)
{
	world_arm(world, attempt);
	for (int p = 0; p < PEERS; p++)
		engine_peer_ready(world->engine, world->to[p]);
	ck_until(world->sends_done > 0, world_step(world));
	for (int p = 0; p < PEERS; p++) {
		ck_until(is_landed(&world->receivers[p]), world_step(world));
		receiver_verify(world, &world->receivers[p]);
	}
	world_end(world);
}

START_TEST(codes_and_scales_are_those_of_two_passes)
{
	struct world *world = world_open(_i);

	for (uint64_t attempt = 1; attempt < 6; attempt++)
		world_update(world, attempt);
	world_close(world);
}
END_TEST

/* Nobody's scales wait for, or are made of, what is sent to somebody else. */
START_TEST(a_peer_that_is_late_or_dropped_holds_up_no_other)
{
	struct world *world = world_open(_i);
	struct receiver *first = &world->receivers[0], *second = &world->receivers[1];
	uint64_t attempt = 1;

	world_arm(world, attempt);
	engine_peer_ready(world->engine, world->to[0]);
	ck_until(is_landed(first), world_step(world));
	ck_assert_uint_eq(second->received, 0);
	receiver_verify(world, first);
	engine_peer_ready(world->engine, world->to[1]);
	ck_until(is_landed(second), world_step(world));
	receiver_verify(world, second);
	world_end(world);

	world_arm(world, ++attempt);
	for (int p = 0; p < PEERS; p++)
		engine_peer_ready(world->engine, world->to[p]);
	for (int step = 0; step < 7 * _i; step++)
		world_step(world);
	engine_peer_drop(world->engine, world->to[0]);
	ck_until(is_landed(second), world_step(world));
	receiver_verify(world, second);
	world_end(world);
	world_close(world);
}
END_TEST

START_TEST(an_attempt_that_was_broken_off_leaves_nothing_in_the_tables)
{
	struct world *world = world_open(_i);
	uint64_t attempt = 1;

	for (int turn = 0; turn < 12; turn++) {
		world_arm(world, attempt++);
		for (int p = 0; p < PEERS && turn % 3 != 0; p++)
			engine_peer_ready(world->engine, world->to[p]);
		for (int step = 0; step < turn * (1 + _i); step++)
			world_step(world);
		world_end(world);
		if (turn % 4 == 3)
			world_update(world, attempt++);
	}
	world_close(world);
}
END_TEST

static void is_refused(struct world *world, const char *says)
{
	struct ws_error err;

	ck_fails(engine_set_program(world->engine, &world->program, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, says) != NULL, "'%s' isn't in '%s'", says, err.text);
}

START_TEST(ops_that_tear_a_block_are_refused)
{
	struct world *world = world_open(0);
	struct ws_error err;

	world->sends[0].op_bytes = 0;
	is_refused(world, "send 0: move 0 quantizes whole blocks, and ops of 4096 bytes tear one");
	world->sends[0].op_bytes = CUT - 16;
	is_refused(world, "tear one");
	world->sends[0].op_bytes = 2 * CUT;
	is_refused(world, "7680 bytes: no multiple of 16, or above 4096");
	world->sends[0].op_bytes = CUT + 1;
	is_refused(world, "no multiple of 16");
	/* One row of blocks is as good as two; and two passes may be cut anywhere. */
	world->sends[0].op_bytes = CUT / 2;
	ck_ok(engine_set_program(world->engine, &world->program, &err), err);
	world->sends[0].op_bytes = 0;
	world->codes[0].move.kind = MOVE_QUANTIZE;
	ck_assert_ptr_eq(world->sends[2].moves, &world->codes[0]);
	world->sends[2].op_bytes = 0;
	ck_ok(engine_set_program(world->engine, &world->program, &err), err);
	world->program.tables_bytes -= 4;
	world->blocks[BUCKETS - 1].table = world->tables + BUCKETS * GRID - 2 * GRID_C;
	is_refused(world, "outside");
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine_whole");
	TCase *all = tcase_create("all");

	tcase_add_loop_test(all, codes_and_scales_are_those_of_two_passes, 0, 6);
	tcase_add_loop_test(all, a_peer_that_is_late_or_dropped_holds_up_no_other, 0, 6);
	tcase_add_loop_test(all, an_attempt_that_was_broken_off_leaves_nothing_in_the_tables, 0, 6);
	tcase_add_test(all, ops_that_tear_a_block_are_refused);
	tcase_set_timeout(all, 120);
	suite_add_tcase(tests, all);
	return tests;
}
