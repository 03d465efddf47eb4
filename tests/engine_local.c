/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/engine's locals, gates and tables: two members find the maxima of what each holds of some
 * tensors, tell them to one another, and write codes and scales to a third one.  What lands is what
 * quantizing the whole tensors gives, also after attempts that were broken off.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine/engine_internal.h"
#include "tests/test.h"

#define MEMBERS	 3 /* two that send, and the one that receives */
#define BUCKETS	 6
#define ROWS	 50u
#define COLUMNS	 96u
#define SPLIT	 27u /* rows of the first sender: inside a block */
#define BLOCK	 20u
#define GRID_R	 ((ROWS + BLOCK - 1) / BLOCK)
#define GRID_C	 ((COLUMNS + BLOCK - 1) / BLOCK)
#define GRID	 (GRID_R * GRID_C)
#define CODES	 (ROWS * COLUMNS)
#define SCALES	 ((uint64_t)GRID * sizeof(float))
#define LANDS	 ((uint64_t)8192) /* a bucket at the receiver: codes, scales */
#define INBOX	 ((uint64_t)1024) /* a bucket of maxima at a sender */
#define OP_BYTES 4096u

_Static_assert(CODES + SCALES <= LANDS && GRID * sizeof(uint32_t) <= INBOX, "room for a bucket");

static const struct quant quant = {
	.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4f, .reciprocal = true};

struct one {
	struct engine *engine;
	struct engine_peer *to[MEMBERS], *from[MEMBERS]; /* by the other's number */
	struct ws_memory memory;			 /* region 1: what others write */
	float *rows;					 /* mine of all buckets */
	uint32_t *tables;
	struct blocks blocks[BUCKETS];
	struct move maxima[BUCKETS], raise[BUCKETS];
	struct gather_move tell[BUCKETS], codes[BUCKETS], scales[BUCKETS];
	struct local locals[BUCKETS];
	struct send sends[3 * BUCKETS];
	struct receive receives[3 * BUCKETS];
	struct op_range ranges[3 * BUCKETS];
	struct engine_program program;
	uint32_t received, sends_done;
	uint64_t ring_bytes;
};

struct world {
	float *whole; /* BUCKETS tensors */
	struct one one[MEMBERS];
};

static void one_open(struct one *one, int number, int seed)
{
	/* None, too small for any source, for four of the six buckets, for all of them. */
	static const uint64_t rings[] = {0, 16384, 49152, 1u << 20};
	char name[64];
	const struct device device = {.transport = "loop", .name = name};
	const struct engine_options options = {.devices = &device,
					       .device_count = 1,
					       .op_bytes = OP_BYTES,
					       .staging_bytes = (1 + (uint64_t)seed % 3) * OP_BYTES,
					       .ring_bytes = number < 2 ? rings[seed % 4] : 0};
	struct ws_error err;
	uint32_t region;

	one->ring_bytes = options.ring_bytes;
	snprintf(name, sizeof(name), "net/m%d?seed=%d", number, seed + 1);
	ck_ok(engine_open(&one->engine, &options, &err), err);
	ck_ok(ws_memory_alloc(&one->memory, BUCKETS * MAX(LANDS, INBOX), &err), err);
	ck_ok(engine_region_add(one->engine, &one->memory, MR_TARGET, &region, &err), err);
	one->rows = calloc(BUCKETS * CODES, sizeof(float));
	one->tables = calloc(BUCKETS * GRID, sizeof(uint32_t));
}

static void connect_to(struct world *world, int a, int b)
{
	struct one *from = &world->one[a], *to = &world->one[b];
	struct writer out[4] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20), WRITER_INIT(1 << 20),
				WRITER_INIT(1 << 20)};
	struct ws_error err;

	ck_ok(engine_peer_open(from->engine, "receiver", &from->to[b], &out[0], &err), err);
	ck_ok(engine_peer_open(to->engine, "sender", &to->from[a], &out[1], &err), err);
	engine_regions_encode(from->engine, &out[2]);
	engine_regions_encode(to->engine, &out[3]);
	ck_ok(engine_peer_connect(from->engine, from->to[b], out[1].bytes, out[1].count, &err),
	      err);
	ck_ok(engine_peer_regions(from->engine, from->to[b], out[3].bytes, out[3].count, &err),
	      err);
	ck_ok(engine_peer_connect(to->engine, to->from[a], out[0].bytes, out[0].count, &err), err);
	ck_ok(engine_peer_regions(to->engine, to->from[a], out[2].bytes, out[2].count, &err), err);
	for (int i = 0; i < 4; i++)
		writer_release(&out[i]);
}

static uint32_t first_row(int number)
{
	return number == 0 ? 0 : SPLIT;
}

static uint32_t row_count(int number)
{
	return number == 0 ? SPLIT : ROWS - SPLIT;
}

/* A bucket's box of mine, of some kind. */
static struct move box_move(struct one *one, int number, uint32_t b, enum move_kind kind,
			    enum ws_dtype to)
{
	one->blocks[b] = (struct blocks){.quant = &quant,
					 .table = one->tables + b * GRID,
					 .each = {BLOCK, BLOCK},
					 .first = {first_row(number)},
					 .stride = {GRID_C, 1}};
	return (struct move){.kind = kind,
			     .blocks = &one->blocks[b],
			     .src = one->rows + (size_t)b * CODES,
			     .dim_count = 2,
			     .extent = {row_count(number), COLUMNS},
			     .src_stride = {COLUMNS * sizeof(float), sizeof(float)},
			     .from = WS_F32,
			     .to = to};
}

/* All entries of a bucket's table, as they are or as scales. */
static struct move table_move(struct one *one, uint32_t b, enum move_kind kind, enum ws_dtype to)
{
	return (struct move){.kind = kind,
			     .blocks = kind == MOVE_SCALE ? &one->blocks[b] : NULL,
			     .src = one->tables + b * GRID,
			     .dim_count = 1,
			     .extent = {GRID},
			     .src_stride = {sizeof(uint32_t)},
			     .dst_stride = {sizeof(uint32_t)},
			     .from = WS_U32,
			     .to = to};
}

/* Gates of bucket b: 2b + 1 mine are found, 2b + 2 all are raised. */
static void sender_program(struct one *one, int number)
{
	int other = 1 - number;
	uint32_t own = row_count(number) * COLUMNS, sends = 0;
	uint32_t own_ops = (uint32_t)engine_op_count(own, OP_BYTES);

	for (uint32_t b = 0; b < BUCKETS; b++) {
		uint32_t found = 2 * b + 1, raised = 2 * b + 2;
		/* The receiver's op ids of a bucket: codes of one, of the other, the scales. */
		uint32_t codes_op = b * 8 + (uint32_t)number * 4;
		one->maxima[b] = box_move(one, number, b, MOVE_MAXIMA, WS_F32);
		one->locals[b] = (struct local){.moves = &one->maxima[b],
						.move_count = 1,
						.gates = {found, raised},
						.bucket = b};
		one->tell[b].move = table_move(one, b, MOVE_CAST, WS_U32);
		one->codes[b].move = box_move(one, number, b, MOVE_QUANTIZE, WS_F8_E4M3);
		one->scales[b].move = table_move(one, b, MOVE_SCALE, WS_F32);
		one->raise[b] = table_move(one, b, MOVE_RAISE, WS_U32);
		one->raise[b].src = (const uint8_t *)one->memory.base + b * INBOX;
		one->raise[b].dst = one->tables + b * GRID;
		one->sends[sends++] = (struct send){.peer = one->to[other],
						    .bytes = GRID * sizeof(uint32_t),
						    .first_op_id = b,
						    .moves = &one->tell[b],
						    .move_count = 1,
						    .remote_region = 1,
						    .remote_offset = b * INBOX,
						    .credit_op_id = NONE,
						    .gate = found,
						    .bucket = b};
		one->sends[sends++] =
			(struct send){.peer = one->to[2],
				      .bytes = own,
				      .first_op_id = codes_op,
				      .moves = &one->codes[b],
				      .move_count = 1,
				      .remote_region = 1,
				      .remote_offset = b * LANDS + first_row(number) * COLUMNS,
				      .credit_op_id = NONE,
				      .gate = raised,
				      .bucket = b};
		if (number == (int)(b % 2))
			one->sends[sends++] = (struct send){.peer = one->to[2],
							    .bytes = SCALES,
							    .first_op_id = b * 8 + 7,
							    .moves = &one->scales[b],
							    .move_count = 1,
							    .remote_region = 1,
							    .remote_offset = b * LANDS + CODES,
							    .credit_op_id = NONE,
							    .gate = raised,
							    .bucket = b};
		one->receives[b] = (struct receive){.peer = one->from[other],
						    .op_count = 1,
						    .bytes = GRID * sizeof(uint32_t),
						    .digest_op_id = NONE,
						    .moves = &one->raise[b],
						    .move_count = 1,
						    .credit_op_id = NONE,
						    .gate = raised};
		one->ranges[b] = (struct op_range){.first_op_id = b, .count = 1, .receive = b};
	}
	ck_assert_uint_le(own_ops, 4);
	one->program = (struct engine_program){.sends = one->sends,
					       .send_count = sends,
					       .receives = one->receives,
					       .receive_count = BUCKETS,
					       .ranges = one->ranges,
					       .range_count = BUCKETS,
					       .op_id_count = BUCKETS,
					       .gate_count = 2 * BUCKETS,
					       .locals = one->locals,
					       .local_count = BUCKETS,
					       .tables = one->tables,
					       .tables_bytes = BUCKETS * GRID * sizeof(uint32_t)};
}

static void receiver_program(struct one *one)
{
	uint32_t count = 0;

	for (uint32_t b = 0; b < BUCKETS; b++)
		for (int k = 0; k < 3; k++) {
			uint64_t bytes = k == 2 ? SCALES : (uint64_t)row_count(k) * COLUMNS;
			uint32_t ops = (uint32_t)engine_op_count(bytes, OP_BYTES);
			one->receives[count] =
				(struct receive){.peer = one->from[k == 2 ? (int)(b % 2) : k],
						 .op_count = ops,
						 .bytes = bytes,
						 .digest_op_id = NONE,
						 .credit_op_id = NONE};
			one->ranges[count] = (struct op_range){
				.first_op_id = b * 8 + (k == 2 ? 7 : (uint32_t)k * 4),
				.count = ops,
				.receive = count};
			count++;
		}
	one->program = (struct engine_program){.receives = one->receives,
					       .receive_count = count,
					       .ranges = one->ranges,
					       .range_count = count,
					       .op_id_count = BUCKETS * 8};
}

static struct world *world_open(int seed)
{
	struct world *world = calloc(1, sizeof(*world));
	struct ws_error err;

	world->whole = calloc(BUCKETS * CODES, sizeof(float));
	for (int i = 0; i < MEMBERS; i++)
		one_open(&world->one[i], i, seed);
	connect_to(world, 0, 1);
	connect_to(world, 1, 0);
	connect_to(world, 0, 2);
	connect_to(world, 1, 2);
	sender_program(&world->one[0], 0);
	sender_program(&world->one[1], 1);
	receiver_program(&world->one[2]);
	for (int i = 0; i < MEMBERS; i++)
		ck_ok(engine_set_program(world->one[i].engine, &world->one[i].program, &err), err);
	return world;
}

static void world_close(struct world *world)
{
	for (int i = 0; i < MEMBERS; i++) {
		engine_close(world->one[i].engine);
		ws_memory_free(&world->one[i].memory);
		free(world->one[i].rows);
		free(world->one[i].tables);
	}
	free(world->whole);
	free(world);
}

/* New values, smaller from attempt to attempt: a maximum that were left would show. */
static void world_fill(struct world *world, uint64_t attempt)
{
	for (uint64_t i = 0; i < BUCKETS * CODES; i++) {
		float value =
			(float)(mix64(i ^ attempt << 40) % 100000) / (1000.0f * (float)attempt);
		world->whole[i] = i % 3 == 0 ? -value : value;
	}
	for (int number = 0; number < 2; number++)
		for (uint32_t b = 0; b < BUCKETS; b++)
			memcpy(world->one[number].rows + (size_t)b * CODES,
			       world->whole + (size_t)b * CODES + first_row(number) * COLUMNS,
			       (size_t)row_count(number) * COLUMNS * sizeof(float));
}

static void world_arm(struct world *world, uint64_t attempt)
{
	struct ws_error err;

	world_fill(world, attempt);
	for (int i = 0; i < MEMBERS; i++) {
		world->one[i].received = world->one[i].sends_done = 0;
		memset(world->one[i].memory.base, 0xee, world->one[i].memory.bytes);
		ck_ok(engine_arm(world->one[i].engine, attempt, &err), err);
	}
}

static void one_ready(struct world *world, int a, int b)
{
	engine_peer_ready(world->one[a].engine, world->one[a].to[b]);
}

static void world_step(struct world *world)
{
	struct engine_event events[16];

	for (int i = 0; i < MEMBERS; i++) {
		struct one *one = &world->one[i];
		int count = engine_step(one->engine, events, (int)ARRAY_SIZE(events));
		for (int e = 0; e < count; e++) {
			one->received += events[e].kind == ENGINE_RECEIVE_DONE;
			one->sends_done += events[e].kind == ENGINE_SENDS_DONE;
			ck_assert(events[e].kind == ENGINE_RECEIVE_DONE ||
				  events[e].kind == ENGINE_SENDS_DONE);
		}
	}
}

static bool world_is_done(const struct world *world)
{
	return world->one[2].received == 3 * BUCKETS && world->one[0].sends_done == 1 &&
	       world->one[1].sends_done == 1;
}

static void world_end(struct world *world)
{
	struct engine_event events[16];

	for (int i = 0; i < MEMBERS; i++)
		engine_end(world->one[i].engine);
	for (int i = 0; i < MEMBERS; i++)
		ck_assert(!offload_is_loading(world->one[i].engine));
	/* What was under way lands, so that it can't look like the next attempt's. */
	for (int turn = 0; turn < 2000; turn++)
		for (int i = 0; i < MEMBERS; i++)
			engine_step(world->one[i].engine, events, (int)ARRAY_SIZE(events));
}

/* What quantizing the whole tensors at once gives. */
static void world_verify(const struct world *world)
{
	static uint8_t codes[CODES];
	float scales[GRID];

	for (uint32_t b = 0; b < BUCKETS; b++) {
		uint32_t table[GRID] = {0};
		const struct blocks blocks = {.quant = &quant,
					      .table = table,
					      .each = {BLOCK, BLOCK},
					      .stride = {GRID_C, 1}};
		struct move move = {.kind = MOVE_MAXIMA,
				    .blocks = &blocks,
				    .src = world->whole + (size_t)b * CODES,
				    .dst = codes,
				    .dim_count = 2,
				    .extent = {ROWS, COLUMNS},
				    .src_stride = {COLUMNS * sizeof(float), sizeof(float)},
				    .dst_stride = {COLUMNS, 1},
				    .from = WS_F32,
				    .to = WS_F8_E4M3};
		convert_move(&move);
		move.kind = MOVE_QUANTIZE;
		convert_move(&move);
		const struct move scale = {.kind = MOVE_SCALE,
					   .blocks = &blocks,
					   .src = table,
					   .dst = scales,
					   .dim_count = 1,
					   .extent = {GRID},
					   .src_stride = {sizeof(uint32_t)},
					   .dst_stride = {sizeof(float)},
					   .from = WS_U32,
					   .to = WS_F32};
		convert_move(&scale);
		const uint8_t *landed = (const uint8_t *)world->one[2].memory.base + b * LANDS;
		ck_assert_msg(memcmp(landed, codes, CODES) == 0, "codes of bucket %u", b);
		ck_assert_msg(memcmp(landed + CODES, scales, SCALES) == 0, "scales of bucket %u",
			      b);
	}
}

static void world_update(struct world *world, uint64_t attempt)
{
	world_arm(world, attempt);
	for (int a = 0; a < 2; a++) {
		one_ready(world, a, 1 - a);
		one_ready(world, a, 2);
	}
	ck_until(world_is_done(world), world_step(world));
	world_verify(world);
	for (int a = 0; a < 2; a++) {
		struct engine_progress progress;
		engine_progress(world->one[a].engine, &progress);
		ck_assert(progress.all_sent && progress.quantize_ns > 0);
		ck_assert_uint_le(progress.ring_high_bytes, world->one[a].ring_bytes);
		if (world->one[a].ring_bytes >= 1u << 20)
			ck_assert_uint_eq(progress.load_bytes,
					  BUCKETS * row_count(a) * COLUMNS * sizeof(float));
	}
	world_end(world);
}

START_TEST(codes_and_scales_are_those_of_the_whole_tensors)
{
	struct world *world = world_open(_i);

	for (uint64_t attempt = 1; attempt < 6; attempt++)
		world_update(world, attempt);
	world_close(world);
}
END_TEST

/* The other's maxima don't come: own ones are told, and nothing else leaves. */
START_TEST(nothing_is_quantized_before_all_maxima_are_there)
{
	struct world *world = world_open(_i);
	struct engine_progress progress;

	world_arm(world, 1);
	one_ready(world, 0, 1);
	one_ready(world, 0, 2);
	ck_until(world->one[1].received == BUCKETS, world_step(world));
	for (int turn = 0; turn < 2000; turn++)
		world_step(world);
	engine_progress(world->one[0].engine, &progress);
	ck_assert_uint_eq(progress.bytes_sent, BUCKETS * GRID * sizeof(uint32_t));
	ck_assert_uint_eq(world->one[2].received, 0);
	ck_assert_uint_eq(world->one[1].received, BUCKETS);
	/* They come after all. */
	one_ready(world, 1, 0);
	one_ready(world, 1, 2);
	ck_until(world_is_done(world), world_step(world));
	world_verify(world);
	engine_progress(world->one[0].engine, &progress);
	ck_assert_uint_gt(progress.gated_ns, 0);
	world_close(world);
}
END_TEST

/* Broken off at any moment, one while the ring is loaded; the values of the next are smaller. */
START_TEST(an_attempt_that_was_broken_off_leaves_nothing_in_the_tables)
{
	struct world *world = world_open(_i);
	uint64_t attempt = 1;

	for (int turn = 0; turn < 12; turn++) {
		world_arm(world, attempt++);
		for (int a = 0; a < 2 && turn % 3 != 0; a++) {
			one_ready(world, a, 1 - a);
			one_ready(world, a, 2);
		}
		for (int step = 0; step < turn + (turn - 1) * _i; step++)
			world_step(world);
		world_end(world);
		if (turn % 4 == 3)
			world_update(world, attempt++);
	}
	world_close(world);
}
END_TEST

#define CHAIN 300 /* locals, each reading what the one before wrote */

START_TEST(locals_go_in_order_and_sends_are_done_after_the_last)
{
	static uint8_t links[CHAIN + 1][64];
	static struct move moves[CHAIN];
	static struct local locals[CHAIN];
	struct world *world = world_open(_i);
	struct engine *engine = world->one[2].engine;
	struct engine_program program = {.locals = locals, .local_count = CHAIN};
	struct engine_event event = {0};
	struct engine_progress progress;
	struct ws_error err;

	for (uint32_t i = 0; i < CHAIN; i++) {
		moves[i] = (struct move){.src = links[i],
					 .dst = links[i + 1],
					 .dim_count = 1,
					 .extent = {64},
					 .src_stride = {1},
					 .dst_stride = {1},
					 .from = WS_U8,
					 .to = WS_U8};
		locals[i] = (struct local){.moves = &moves[i], .move_count = 1};
	}
	ck_ok(engine_set_program(engine, &program, &err), err);
	for (uint64_t attempt = 1; attempt < 4; attempt++) {
		memset(links, 0, sizeof(links));
		memset(links[0], (int)attempt, sizeof(links[0]));
		ck_ok(engine_arm(engine, attempt, &err), err);
		engine_progress(engine, &progress);
		ck_assert(!progress.all_sent);
		ck_until(engine_step(engine, &event, 1) == 1, sched_yield());
		ck_assert_int_eq(event.kind, ENGINE_SENDS_DONE);
		ck_assert_int_eq(memcmp(links[CHAIN], links[0], sizeof(links[0])), 0);
		engine_end(engine);
	}
	world_close(world);
}
END_TEST

static void is_refused(const struct world *world, const struct engine_program *program,
		       const char *says)
{
	struct ws_error err;
	ck_fails(engine_set_program(world->one[0].engine, program, &err), -EINVAL, err);
	ck_assert_msg(strstr(err.text, says) != NULL, "'%s' isn't in '%s'", says, err.text);
}

START_TEST(what_looks_outside_the_tables_is_refused)
{
	struct world *world = world_open(0);
	struct one *one = &world->one[0];
	struct engine_program program = one->program;

	program.tables_bytes -= 4;
	is_refused(world, &program, "outside");
	program = one->program;
	program.tables = one->tables + 1;
	is_refused(world, &program, "outside");
	program.tables = (uint8_t *)one->tables + 2;
	is_refused(world, &program, "tables");
	program = one->program;
	program.gate_count = 2 * BUCKETS - 1;
	is_refused(world, &program, "gate 12");
	program = one->program;
	one->blocks[2].stride[0] = INT64_MAX / 2;
	is_refused(world, &program, "local 2");
	one->blocks[2].stride[0] = -3 * (int64_t)GRID;
	is_refused(world, &program, "local 2");
	one->blocks[2].stride[0] = GRID_C;
	one->blocks[2].first[0] = UINT64_MAX - 3;
	is_refused(world, &program, "local 2");
	one->blocks[2].first[0] = 0;
	one->raise[1].dst = one->tables + BUCKETS * GRID - 1;
	is_refused(world, &program, "receive 1");
	one->raise[1].dst = one->tables + GRID;
	one->codes[0].move.kind = MOVE_MAXIMA;
	is_refused(world, &program, "nothing to gather");
	world_close(world);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine_local");
	TCase *all = tcase_create("all");

	tcase_add_loop_test(all, codes_and_scales_are_those_of_the_whole_tensors, 0, 6);
	tcase_add_loop_test(all, nothing_is_quantized_before_all_maxima_are_there, 0, 3);
	tcase_add_loop_test(all, an_attempt_that_was_broken_off_leaves_nothing_in_the_tables, 0, 6);
	tcase_add_loop_test(all, locals_go_in_order_and_sends_are_done_after_the_last, 0, 2);
	tcase_add_test(all, what_looks_outside_the_tables_is_refused);
	tcase_set_timeout(all, 120);
	suite_add_tcase(tests, all);
	return tests;
}
