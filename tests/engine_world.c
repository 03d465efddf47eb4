/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of engine_world.h: its data, programs, wiring and attempts.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine_world.h"
#include "tests/test.h"

#define STEPS_STILL 500 /* with nothing left to be staged everything is done in far fewer */

static struct pair *pair_of(struct world *world, uint32_t s, uint32_t r)
{
	return &world->pairs[s * SIDE_MAX + r];
}

/* ---------------------------------------------------------------------------- data */

static void move_2d(struct move *move, const void *src, enum ws_dtype from, int64_t src_row,
		    void *dst, enum ws_dtype to, int64_t dst_row, uint32_t rows, uint32_t columns)
{
	int64_t from_bytes = (int64_t)ws_dtype_bytes(from), to_bytes = (int64_t)ws_dtype_bytes(to);
	*move = (struct move){.src = src,
			      .dst = dst,
			      .dim_count = 2,
			      .extent = {rows, columns},
			      .src_stride = {src_row * from_bytes, from_bytes},
			      .dst_stride = {dst_row * to_bytes, to_bytes},
			      .from = from,
			      .to = to};
}

static void pair_make(struct world *world, uint32_t s, uint32_t r, uint64_t *source,
		      uint64_t *target)
{
	static const uint64_t sizes[] = {1, 4095, 4096, 4097, 8192, 8193, DIRECT_MAX};
	struct pair *pair = pair_of(world, s, r);
	pair->direct_bytes = sizes[(uint32_t)rand() % ARRAY_SIZE(sizes)];
	pair->rows = 1 + (uint32_t)rand() % 40;
	pair->columns = 1 + (uint32_t)rand() % 200;
	uint64_t cells = (uint64_t)pair->rows * pair->columns;
	uint64_t bytes_offset = align_up(2 * cells, 16);
	pair->gather_bytes = bytes_offset + 100;
	pair->ring_bytes = 2 * cells;
	pair->direct = (uint8_t *)world->senders[s].memory.base + *source;
	*source += align_up(pair->direct_bytes, 64);
	pair->offset = *target;
	*target += align_up(pair->direct_bytes, 64) + align_up(pair->gather_bytes, 64) +
		   SLOTS * align_up(pair->ring_bytes, 64);
	pair->bytes = mem_alloc(100);
	pair->matrix = mem_alloc((2 * cells + pair->rows) * sizeof(float));
	uint64_t round = (uint64_t)pair->rows * (pair->columns + 3);
	pair->rounds = mem_alloc(ROUNDS * round * 2);
	pair->landed = mem_alloc(ROUNDS * pair->rows * (pair->columns + 1u) * 2);
	move_2d(&pair->gather[0].move, pair->matrix, WS_F32, 2 * pair->columns + 1, NULL, WS_BF16,
		pair->columns, pair->rows, pair->columns);
	move_2d(&pair->gather[1].move, pair->bytes, WS_U8, 100, NULL, WS_U8, 100, 1, 100);
	pair->gather[1].wire_offset = bytes_offset;
	for (uint32_t k = 0; k < ROUNDS; k++)
		move_2d(&pair->ring[k].move, pair->rounds + k * round, WS_U16, pair->columns + 3,
			NULL, WS_U16, pair->columns, pair->rows, pair->columns);
}

static uint64_t packed_offset(const struct pair *pair)
{
	return pair->offset + align_up(pair->direct_bytes, 64);
}

static uint64_t slot_offset(const struct pair *pair, uint32_t round)
{
	return packed_offset(pair) + align_up(pair->gather_bytes, 64) +
	       round % SLOTS * align_up(pair->ring_bytes, 64);
}

/* New values, and nothing of the old ones left at the receivers. */
static void data_fill(struct world *world)
{
	for (uint32_t r = 0; r < world->receiver_count; r++)
		memset(world->receivers[r].memory.base, 0xee, world->receivers[r].memory.bytes);
	for (uint32_t i = 0; i < PAIRS_MAX; i++) {
		struct pair *pair = &world->pairs[i];
		uint32_t rows = pair->rows, columns = pair->columns;
		if (rows == 0)
			continue;
		for (uint64_t k = 0; k < pair->direct_bytes; k++)
			pair->direct[k] = (uint8_t)rand();
		for (uint32_t k = 0; k < 100; k++)
			pair->bytes[k] = (uint8_t)rand();
		for (uint32_t k = 0; k < rows * (2 * columns + 1); k++)
			pair->matrix[k] = (float)rand() / 1000.0f;
		for (uint32_t k = 0; k < ROUNDS * rows * (columns + 3); k++)
			pair->rounds[k] = (uint16_t)rand();
		memset(pair->landed, 0xee, ROUNDS * rows * (columns + 1u) * 2);
	}
}

static uint16_t bf16_of(float value)
{
	uint16_t out;
	convert_move(&(struct move){.src = &value, .dst = &out, .from = WS_F32, .to = WS_BF16});
	return out;
}

static void pair_verify(struct world *world, uint32_t s, uint32_t r)
{
	const struct pair *pair = pair_of(world, s, r);
	const uint8_t *memory = world->receivers[r].memory.base;
	const uint8_t *packed = memory + packed_offset(pair);
	uint32_t rows = pair->rows, columns = pair->columns;
	ck_assert_int_eq(memcmp(memory + pair->offset, pair->direct, pair->direct_bytes), 0);
	for (uint32_t i = 0; i < rows * columns; i++) {
		uint16_t got;
		memcpy(&got, packed + 2 * i, 2);
		ck_assert_uint_eq(
			got, bf16_of(pair->matrix[i / columns * (2 * columns + 1) + i % columns]));
	}
	for (uint64_t i = 2u * rows * columns; i < pair->gather[1].wire_offset; i++)
		ck_assert_uint_eq(packed[i], 0);
	ck_assert_int_eq(memcmp(packed + pair->gather[1].wire_offset, pair->bytes, 100), 0);
	for (uint32_t k = 0; k < ROUNDS * rows; k++) {
		const uint16_t *row = pair->landed + k * (columns + 1);
		ck_assert_int_eq(memcmp(row, pair->rounds + k * (columns + 3), 2 * columns), 0);
		ck_assert_uint_eq(row[columns], 0xeeee);
	}
}

void world_verify(struct world *world)
{
	for (uint32_t s = 0; s < world->sender_count; s++)
		for (uint32_t r = 0; r < world->receiver_count; r++)
			pair_verify(world, s, r);
}

/* ------------------------------------------------------------------------- programs */

/* Ids of one pair's ops at the receiver: direct, gathered, digest, then per round data, digest. */
static uint32_t pair_program(struct world *world, uint32_t s, uint32_t r, uint32_t id)
{
	struct pair *pair = pair_of(world, s, r);
	struct side *sender = &world->senders[s], *receiver = &world->receivers[r];
	uint32_t digest_ops = world->digests ? 1 : 0;
	for (uint32_t j = 0; j < RECEIVES; j++) {
		uint32_t first = id, index = s * RECEIVES + j;
		for (uint32_t part = j == 0 ? 0 : 1; part < 2; part++) {
			uint64_t bytes = j > 0	     ? pair->ring_bytes
					 : part == 0 ? pair->direct_bytes
						     : pair->gather_bytes;
			/* Some have ops of their own size. */
			uint64_t op_bytes =
				(s + r + j + part) % 3 == 0 ? world->op_bytes / 32 * 16 : 0;
			struct send *send = &sender->sends[sender->program.send_count++];
			*send = (struct send){.peer = sender->peers[r],
					      .bytes = bytes,
					      .op_bytes = op_bytes,
					      .first_op_id = id,
					      .local = part == 0 ? pair->direct : NULL,
					      .local_region = 1,
					      .moves = j > 0 ? &pair->ring[j - 1] : pair->gather,
					      .move_count = j > 0 ? 1 : 2,
					      .remote_region = 1,
					      .remote_offset = j > 0 ? slot_offset(pair, j - 1)
							       : part == 0 ? pair->offset
									   : packed_offset(pair),
					      .credit_op_id =
						      j > SLOTS ? r * ROUNDS + j - 1 - SLOTS : NONE,
					      .counter = sender->program.digest_count};
			pair->spans[j == 0 ? part : j + 1] = (struct span){
				.memory = (uint8_t *)receiver->memory.base + send->remote_offset,
				.bytes = bytes,
				.op_bytes = op_bytes,
				.first_op_id = id};
			id += (uint32_t)engine_op_count(bytes,
							op_bytes != 0 ? op_bytes : world->op_bytes);
		}
		if (world->digests)
			sender->digests[sender->program.digest_count++] =
				(struct send_digest){.peer = sender->peers[r],
						     .send_count = j == 0 ? 2 : 1,
						     .op_id = id,
						     .remote_receive = index};
		id += digest_ops;
		receiver->ranges[index] = (struct op_range){
			.first_op_id = first, .count = id - first, .receive = index};
		receiver->receives[index] = (struct receive){
			.peer = receiver->peers[s],
			.op_count = id - first,
			.spans = &pair->spans[j == 0 ? 0 : j + 1],
			.span_count = j == 0 ? 2 : 1,
			.digest_op_id = world->digests ? id - 1 : NONE,
			.moves = j == 0 ? NULL : &pair->scatter[j - 1],
			.move_count = j == 0 ? 0 : 1,
			.credit_op_id = j > 0 && j + SLOTS <= ROUNDS ? r * ROUNDS + j - 1 : NONE,
			.tag = j};
		if (j > 0)
			move_2d(&pair->scatter[j - 1],
				(uint8_t *)receiver->memory.base + slot_offset(pair, j - 1), WS_U16,
				pair->columns,
				pair->landed + (j - 1) * pair->rows * (pair->columns + 1), WS_U16,
				pair->columns + 1, pair->rows, pair->columns);
	}
	return id;
}

static void programs_set(struct world *world)
{
	struct ws_error err;
	for (uint32_t s = 0; s < world->sender_count; s++)
		world->senders[s].program.send_count = world->senders[s].program.digest_count = 0;
	for (uint32_t r = 0; r < world->receiver_count; r++) {
		struct side *side = &world->receivers[r];
		uint32_t id = 0;
		for (uint32_t s = 0; s < world->sender_count; s++)
			id = pair_program(world, s, r, id);
		side->program =
			(struct engine_program){.receives = side->receives,
						.receive_count = world->sender_count * RECEIVES,
						.ranges = side->ranges,
						.range_count = world->sender_count * RECEIVES,
						.op_id_count = id};
		ck_ok(engine_set_program(side->engine, &side->program, &err), err);
	}
	for (uint32_t s = 0; s < world->sender_count; s++) {
		struct side *side = &world->senders[s];
		/* All of a sender's op ids are credits. */
		side->ranges[0] = (struct op_range){.count = world->receiver_count * ROUNDS,
						    .receive = OP_IS_CREDIT};
		side->program.sends = side->sends;
		side->program.digests = side->digests;
		side->program.ranges = side->ranges;
		side->program.range_count = 1;
		side->program.op_id_count = world->receiver_count * ROUNDS;
		ck_ok(engine_set_program(side->engine, &side->program, &err), err);
	}
}

/* --------------------------------------------------------------------- open, connect */

int side_open(struct world *world, struct side *side, bool faulty, uint32_t number,
	      struct ws_error *err)
{
	char names[NICS_MAX][160];
	struct device devices[NICS_MAX];
	bool mixed = strcmp(world->transport, "mixed") == 0;
	for (uint32_t i = 0; i < world->nic_count; i++) {
		const char *transport = !mixed ? world->transport : i % 2 == 0 ? "fabric" : "loop";
		char inner[64];
		if (strcmp(transport, "loop") == 0)
			snprintf(inner, sizeof(inner), "net/m%u.%u?seed=%u", number, i,
				 world->seed + 1);
		else
			snprintf(inner, sizeof(inner), "tcp/127.0.0.%u", 1 + i);
		if (faulty)
			snprintf(names[i], sizeof(names[i]), "%s:%s:%s", world->rules, transport,
				 inner);
		else
			snprintf(names[i], sizeof(names[i]), "%s", inner);
		devices[i] = (struct device){.transport = faulty ? "fault" : transport,
					     .name = names[i]};
	}
	const struct engine_options options = {.devices = devices,
					       .device_count = world->nic_count,
					       .op_bytes = world->op_bytes,
					       .staging_bytes = world->staging_bytes,
					       .wire_digests = world->digests};
	int rc = engine_open(&side->engine, &options, err);
	if (rc == 0 && world->opened != NULL)
		world->opened(side->engine, number);
	return rc;
}

static int half_open(struct side *side, uint32_t index, const char *name, struct writer *address,
		     struct writer *regions, struct ws_error *err)
{
	int rc = engine_peer_open(side->engine, name, &side->peers[index], address, err);
	engine_regions_encode(side->engine, regions);
	return rc == 0 && regions->failed ? ws_fail(err, -ENOMEM, "no memory for regions") : rc;
}

static int half_connect(struct side *side, uint32_t index, const struct writer *address,
			const struct writer *regions, struct ws_error *err)
{
	int rc = engine_peer_connect(side->engine, side->peers[index], address->bytes,
				     address->count, err);
	if (rc == 0)
		rc = engine_peer_regions(side->engine, side->peers[index], regions->bytes,
					 regions->count, err);
	return rc;
}

int pair_connect(struct world *world, uint32_t s, uint32_t r, struct ws_error *err)
{
	struct side *sender = &world->senders[s], *receiver = &world->receivers[r];
	struct writer out[4] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20), WRITER_INIT(1 << 20),
				WRITER_INIT(1 << 20)};
	int rc = half_open(sender, r, "rollout", &out[0], &out[1], err);
	if (rc == 0)
		rc = half_open(receiver, s, "trainer", &out[2], &out[3], err);
	if (rc == 0)
		rc = half_connect(sender, r, &out[2], &out[3], err);
	if (rc == 0)
		rc = half_connect(receiver, s, &out[0], &out[1], err);
	for (int i = 0; i < 4; i++)
		writer_release(&out[i]);
	return rc;
}

void world_connect(struct world *world)
{
	struct ws_error err;
	for (uint32_t s = 0; s < world->sender_count; s++)
		for (uint32_t r = 0; r < world->receiver_count; r++)
			ck_ok(pair_connect(world, s, r, &err), err);
	programs_set(world);
}

static void memory_add(struct side *side, uint64_t bytes)
{
	struct ws_error err;
	uint32_t region;
	ck_ok(ws_memory_alloc(&side->memory, bytes, &err), err);
	ck_ok(engine_region_add(side->engine, &side->memory, MR_TARGET, &region, &err), err);
	ck_assert_uint_eq(region, 1);
}

struct world *world_open(const struct world *wanted)
{
	struct world *world = mem_alloc(sizeof(*world));
	struct ws_error err;
	uint64_t source[SIDE_MAX] = {0}, target[SIDE_MAX] = {0};
	*world = *wanted;
	srand(world->seed);
	for (uint32_t s = 0; s < world->sender_count; s++) {
		bool faulty = s == 0 && world->rules != NULL;
		ck_ok(side_open(world, &world->senders[s], faulty, s, &err), err);
		memory_add(&world->senders[s], SIDE_MAX * (DIRECT_MAX + 64));
	}
	for (uint32_t s = 0; s < world->sender_count; s++)
		for (uint32_t r = 0; r < world->receiver_count; r++)
			pair_make(world, s, r, &source[s], &target[r]);
	for (uint32_t r = 0; r < world->receiver_count; r++) {
		ck_ok(side_open(world, &world->receivers[r], false, 100 + r, &err), err);
		memory_add(&world->receivers[r], target[r]);
	}
	world_connect(world);
	return world;
}

void world_close(struct world *world)
{
	for (uint32_t i = 0; i < SIDE_MAX; i++) {
		engine_close(world->senders[i].engine);
		engine_close(world->receivers[i].engine);
	}
	for (uint32_t i = 0; i < SIDE_MAX; i++) {
		ws_memory_free(&world->senders[i].memory);
		ws_memory_free(&world->receivers[i].memory);
	}
	for (uint32_t i = 0; i < PAIRS_MAX; i++) {
		mem_free(world->pairs[i].bytes);
		mem_free(world->pairs[i].matrix);
		mem_free(world->pairs[i].rounds);
		mem_free(world->pairs[i].landed);
	}
	mem_free(world);
	ck_assert_uint_eq(mem_live_count(), 0);
}

/* ------------------------------------------------------------------------- attempts */

static void side_step(struct side *side)
{
	struct engine_event events[7];
	int count = engine_step(side->engine, events, ARRAY_SIZE(events));
	for (int i = 0; i < count; i++) {
		if (events[i].kind == ENGINE_RECEIVE_DONE) {
			side->done[events[i].receive]++;
			continue;
		}
		if (events[i].kind == ENGINE_SENDS_DONE) {
			side->sends_done++;
			continue;
		}
		side->strays += events[i].kind == ENGINE_STRAY;
		side->failed += events[i].kind == ENGINE_OP_FAILED;
		side->wrong += events[i].kind == ENGINE_DIGEST_WRONG;
		side->lost += events[i].kind == ENGINE_NIC_LOST;
		side->last = events[i];
	}
}

void world_step(struct world *world)
{
	for (uint32_t s = 0; s < world->sender_count; s++)
		side_step(&world->senders[s]);
	for (uint32_t r = 0; r < world->receiver_count; r++)
		side_step(&world->receivers[r]);
	engine_wait(world->receivers[0].engine, -1, -1, clock_ns() + 50000);
}

static bool is_staging(const struct side *side)
{
	return side->engine != NULL && side->engine->stage->outstanding > 0;
}

void world_settle(struct world *world)
{
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);
	for (int still = 0; still < STEPS_STILL; still++) {
		ck_assert_msg(clock_ns() < deadline, "it never comes to rest");
		world_step(world);
		for (uint32_t i = 0; i < SIDE_MAX; i++)
			if (is_staging(&world->senders[i]) || is_staging(&world->receivers[i]))
				still = 0;
	}
}

static void side_arm(struct side *side, uint64_t attempt)
{
	struct ws_error err;
	memset(side->done, 0, sizeof(side->done));
	side->sends_done = side->strays = side->failed = side->wrong = side->lost = 0;
	ck_ok(engine_arm(side->engine, attempt, &err), err);
}

void world_arm(struct world *world, uint64_t attempt)
{
	data_fill(world);
	for (uint32_t r = 0; r < world->receiver_count; r++)
		side_arm(&world->receivers[r], attempt);
	for (uint32_t s = 0; s < world->sender_count; s++) {
		side_arm(&world->senders[s], attempt);
		for (uint32_t r = 0; r < world->receiver_count; r++)
			engine_peer_ready(world->senders[s].engine, world->senders[s].peers[r]);
	}
}

bool world_is_done(const struct world *world)
{
	for (uint32_t s = 0; s < world->sender_count; s++)
		if (world->senders[s].sends_done == 0)
			return false;
	for (uint32_t r = 0; r < world->receiver_count; r++)
		for (uint32_t i = 0; i < world->sender_count * RECEIVES; i++)
			if (world->receivers[r].done[i] == 0)
				return false;
	return true;
}

void world_end(struct world *world)
{
	for (uint32_t s = 0; s < world->sender_count; s++)
		engine_end(world->senders[s].engine);
	for (uint32_t r = 0; r < world->receiver_count; r++)
		engine_end(world->receivers[r].engine);
}

void world_update(struct world *world, uint64_t attempt)
{
	world_arm(world, attempt);
	ck_until(world_is_done(world), world_step(world));
	for (uint32_t r = 0; r < world->receiver_count; r++) {
		struct side *side = &world->receivers[r];
		for (uint32_t i = 0; i < world->sender_count * RECEIVES; i++)
			ck_assert_uint_eq(side->done[i], 1);
		ck_assert_uint_eq(side->strays + side->failed + side->wrong, 0);
	}
	for (uint32_t s = 0; s < world->sender_count; s++) {
		struct side *side = &world->senders[s];
		struct engine_progress progress;
		engine_progress(side->engine, &progress);
		ck_assert_uint_eq(side->sends_done, 1);
		ck_assert_uint_eq(side->strays + side->failed + side->wrong, 0);
		ck_assert_uint_eq(progress.sends_done, world->receiver_count * SENDS);
		ck_assert_uint_le(progress.staging_high_bytes, world->staging_bytes);
		ck_assert_uint_gt(progress.staging_high_bytes, 0);
	}
	world_verify(world);
	world_end(world);
}

void world_fence(struct world *world)
{
	struct side *sides[2 * SIDE_MAX];
	bool open[2 * SIDE_MAX] = {false}, closed[2 * SIDE_MAX] = {false}, any = true, told = false;
	uint32_t count = 0;
	uint64_t deadline = deadline_in_ms(PATIENCE_MS);
	struct ws_error err;
	for (uint32_t s = 0; s < world->sender_count; s++)
		sides[count++] = &world->senders[s];
	for (uint32_t r = 0; r < world->receiver_count; r++)
		sides[count++] = &world->receivers[r];
	for (uint32_t i = 0; i < count; i++)
		open[i] = true;
	while (any && clock_ns() < deadline) {
		bool all_closed = true;
		any = false;
		for (uint32_t i = 0; i < count; i++) {
			int rc = open[i] ? engine_fence(sides[i]->engine, &closed[i], &err) : 0;
			if (rc != -EAGAIN)
				ck_ok(rc, err);
			open[i] = rc == -EAGAIN;
			any |= open[i];
			all_closed &= closed[i];
		}
		for (uint32_t i = 0; i < count && all_closed && !told; i++)
			for (uint32_t k = 0; k < (i < world->sender_count ? world->receiver_count
									  : world->sender_count);
			     k++)
				if (open[i])
					engine_peer_quiet(sides[i]->engine, sides[i]->peers[k]);
		told |= all_closed;
		world_step(world);
	}
	ck_assert(!any);
}
