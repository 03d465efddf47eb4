/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's books, played without an engine: locals, gates and peers that take what they are sent
 * in their own order and time.  Whatever the order, what is read is right, the ring's memory is all
 * that is used, and nobody waits for ever.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/engine/ring.h"
#include "tests/test.h"

#define BUCKETS	  5u
#define PARAMS	  7u /* of a bucket */
#define PARAM_MAX 900u
#define PEERS	  3u
#define READS_MAX 4u /* of an op */
#define OPS_MAX	  (BUCKETS * PARAMS * 2)
#define LOADS_MAX 3u
#define STEPS_MAX 100000

/* Something that reads: a local, or an op of a gather. */
struct op {
	uint32_t bucket, count;
	struct move reads[READS_MAX];
	bool local;
};

struct fifo {
	struct op ops[OPS_MAX];
	uint32_t count, next, done;
};

struct world {
	uint64_t random;
	uint8_t *memory, *place;
	uint64_t bytes; /* of memory */
	struct ring ring;
	struct fifo locals, peers[PEERS];
	struct move before; /* some read of the bucket made last */
	uint32_t locals_left[BUCKETS];
	uint32_t loads[LOADS_MAX], load_count; /* under way, the oldest first */
	const struct op *work[64];
	uint32_t work_count;
	uint64_t loaded;
	uint32_t stands; /* this peer takes nothing; PEERS: all do */
	bool wanted, moved;
};

static struct ws_error error;

static uint64_t draw(struct world *world, uint64_t below)
{
	world->random = mix64(world->random + 1);
	return world->random % below;
}

/* ---------------------------------------------------------------- what there is to do */

static struct move read_of(const uint8_t *from, uint64_t bytes)
{
	return (struct move){.src = from,
			     .dim_count = 1,
			     .extent = {bytes},
			     .src_stride = {1},
			     .from = WS_U8,
			     .to = WS_U8};
}

/* A bucket's params, each read by a local or not, and by each peer, some in two pieces; and now and
 * then one of the bucket before, which isn't kept for that. */
static void bucket_make(struct world *world, uint32_t bucket, uint64_t *at)
{
	struct move reads[2 * PARAMS + 1];
	uint32_t count = 0;

	if (world->before.src != NULL && draw(world, 2) == 0)
		reads[count++] = world->before;
	for (uint32_t i = 0; i < PARAMS; i++) {
		uint64_t bytes = 1 + draw(world, PARAM_MAX), part = draw(world, bytes + 1);
		const uint8_t *from = world->memory + *at;
		struct op *local = &world->locals.ops[world->locals.count];
		if (draw(world, 3) > 0) {
			*local = (struct op){.bucket = bucket,
					     .count = 1,
					     .reads = {read_of(from, bytes)},
					     .local = true};
			world->locals.count++;
			world->locals_left[bucket]++;
		}
		if (part > 0)
			reads[count++] = read_of(from, part);
		if (part < bytes)
			reads[count++] = read_of(from + part, bytes - part);
		world->before = read_of(from, bytes);
		*at += bytes + draw(world, 3) * draw(world, 5000);
	}
	for (uint32_t p = 0; p < PEERS; p++) {
		for (uint32_t i = count - 1; i > 0; i--) {
			uint32_t other = (uint32_t)draw(world, i + 1);
			struct move swap = reads[i];
			reads[i] = reads[other];
			reads[other] = swap;
		}
		struct fifo *peer = &world->peers[p];
		for (uint32_t i = 0; i < count;) {
			struct op *op = &peer->ops[peer->count++];
			*op = (struct op){.bucket = bucket};
			uint32_t most = 1 + (uint32_t)draw(world, READS_MAX);
			while (op->count < most && i < count)
				op->reads[op->count++] = reads[i++];
		}
	}
}

static void uses_of(const struct fifo *fifo, struct ring_use *uses, uint32_t *count)
{
	uint64_t turn = 0;

	for (uint32_t i = 0; i < fifo->count; i++)
		for (uint32_t k = 0; k < fifo->ops[i].count; k++) {
			struct ring_use *use = &uses[(*count)++];
			*use = ring_use_of(&fifo->ops[i].reads[k]);
			use->bucket = fifo->ops[i].bucket;
			use->local = fifo->ops[i].local;
			use->turn = turn;
			use->turn_end = turn += use->bytes;
		}
}

static uint32_t item_of(const struct world *world, const struct move *read)
{
	const struct ring_use use = ring_use_of(read);
	return ring_find(&world->ring, &use);
}

static bool is_counted(const struct world *world, const struct op *op, uint32_t read)
{
	return world->ring.items[item_of(world, &op->reads[read])].bucket == op->bucket;
}

static void uses_count(struct world *world, const struct fifo *fifo)
{
	for (uint32_t i = 0; i < fifo->count; i++)
		for (uint32_t k = 0; k < fifo->ops[i].count; k++) {
			uint32_t item = item_of(world, &fifo->ops[i].reads[k]);
			ck_assert_uint_ne(item, RING_NONE);
			if (!is_counted(world, &fifo->ops[i], k))
				continue;
			if (fifo->ops[i].local)
				world->ring.items[item].locals++;
			else
				world->ring.items[item].gathers++;
		}
}

static void world_open(struct world *world, int seed, uint64_t ring_bytes)
{
	static struct ring_use uses[(1 + PEERS) * OPS_MAX * READS_MAX];
	uint32_t count = 0;

	*world = (struct world){.random = (uint64_t)seed, .stands = PEERS};
	world->memory = malloc(BUCKETS * PARAMS * (PARAM_MAX + 10000));
	for (uint32_t b = 0; b < BUCKETS; b++)
		bucket_make(world, b, &world->bytes);
	for (uint64_t i = 0; i < world->bytes; i++)
		world->memory[i] = (uint8_t)mix64(i);
	world->place = aligned_alloc(4096, MAX(ring_bytes, (uint64_t)4096));
	world->ring = (struct ring){.memory = world->place, .bytes = ring_bytes};
	uses_of(&world->locals, uses, &count);
	for (uint32_t p = 0; p < PEERS; p++)
		uses_of(&world->peers[p], uses, &count);
	ck_ok(ring_make(&world->ring, uses, count, &error), error);
	uses_count(world, &world->locals);
	for (uint32_t p = 0; p < PEERS; p++)
		uses_count(world, &world->peers[p]);
	ring_arm(&world->ring);
}

static void world_close(struct world *world)
{
	ring_release(&world->ring);
	free(world->memory);
	free(world->place);
}

/* ---------------------------------------------------------------- one step */

static void work_end(struct world *world, uint32_t index)
{
	const struct op *op = world->work[index];

	for (uint32_t k = 0; k < op->count; k++) {
		const uint8_t *from = ring_source(&world->ring, &op->reads[k]);
		ck_assert_mem_eq(from, op->reads[k].src, op->reads[k].extent[0]);
		ring_put(&world->ring, item_of(world, &op->reads[k]), is_counted(world, op, k));
	}
	world->locals_left[op->bucket] -= op->local;
	world->work[index] = world->work[--world->work_count];
	world->moved = true;
}

static bool op_begins(struct world *world, const struct op *op)
{
	for (uint32_t k = 0; k < op->count; k++)
		if (!ring_is_ready(&world->ring, item_of(world, &op->reads[k])))
			return false;
	for (uint32_t k = 0; k < op->count; k++)
		ring_take(&world->ring, item_of(world, &op->reads[k]));
	world->work[world->work_count++] = op;
	world->moved = true;
	return true;
}

static void loads_end(struct world *world, uint32_t count)
{
	for (; count > 0 && world->load_count > 0; count--) {
		const struct ring_item *item = &world->ring.items[world->loads[0]];
		memcpy(world->place + item->place % world->ring.bytes, item->from, item->bytes);
		world->loaded += item->bytes;
		ring_loaded(&world->ring, world->loads[0]);
		memmove(world->loads, world->loads + 1, --world->load_count * sizeof(uint32_t));
		world->moved = true;
	}
}

static void loads_begin(struct world *world)
{
	bool gives_way = world->wanted && ring_is_idle(&world->ring);
	uint8_t *place;

	while (world->load_count < LOADS_MAX) {
		uint32_t index = ring_load(&world->ring, gives_way, &place);
		if (index == RING_NONE)
			return;
		const struct ring_item *item = &world->ring.items[index];
		uint64_t offset = (uint64_t)(place - world->place);
		ck_assert(offset + item->bytes <= world->ring.bytes);
		ck_assert_uint_eq(((uintptr_t)place - (uintptr_t)item->from) % 256, 0);
		ck_assert(world->ring.tail - world->ring.head <= world->ring.bytes);
		memset(place, 0xee, item->bytes); /* who still reads here would see it */
		world->loads[world->load_count++] = index;
		world->moved = true;
	}
}

static void peer_issue(struct world *world, uint32_t p, bool local_refused)
{
	struct fifo *peer = &world->peers[p];

	while (p != world->stands && peer->next < peer->count && world->work_count < 60) {
		const struct op *op = &peer->ops[peer->next];
		if (world->locals_left[op->bucket] > 0) {
			world->wanted |= local_refused;
			return;
		}
		if (!op_begins(world, op)) {
			world->wanted = true;
			return;
		}
		peer->next++;
	}
}

static void world_step(struct world *world)
{
	bool local_refused = false;

	world->moved = world->wanted = false;
	loads_end(world, (uint32_t)draw(world, LOADS_MAX + 1));
	for (uint32_t i = 0; i < world->work_count;)
		if (draw(world, 2) == 0)
			work_end(world, i);
		else
			i++;
	while (world->locals.next < world->locals.count && world->work_count < 60 &&
	       !local_refused) {
		local_refused = !op_begins(world, &world->locals.ops[world->locals.next]);
		world->locals.next += !local_refused;
	}
	for (uint32_t p = 0; p < PEERS; p++)
		peer_issue(world, p, local_refused);
	loads_begin(world);
}

static bool is_over(const struct world *world)
{
	for (uint32_t p = 0; p < PEERS; p++)
		if (p != world->stands && world->peers[p].next < world->peers[p].count)
			return false;
	return world->locals.next == world->locals.count && world->work_count == 0;
}

/* Until all is done; whatever is under way ends some time, so only steps in which nothing is count.
 */
static void world_play(struct world *world)
{
	for (int step = 0; !is_over(world); step++) {
		world_step(world);
		ck_assert_msg(world->moved || world->work_count > 0 || world->load_count > 0,
			      "all wait for one another");
		ck_assert_int_lt(step, STEPS_MAX);
	}
	loads_end(world, LOADS_MAX);
}

static uint64_t item_bytes(const struct world *world)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < world->ring.count; i++)
		bytes += world->ring.items[i].bytes;
	return bytes;
}

/* ---------------------------------------------------------------- the tests */

START_TEST(everything_is_read_right_in_any_room)
{
	/* From less than one item to several buckets. */
	static const uint64_t rooms[] = {1024, 4096, 8192, 16384, 65536};
	struct world world;

	for (size_t i = 0; i < ARRAY_SIZE(rooms); i++) {
		world_open(&world, _i * 8 + (int)i, rooms[i]);
		world_play(&world);
		ck_assert_uint_le(world.ring.high_bytes, rooms[i]);
		world_close(&world);
	}
}
END_TEST

START_TEST(with_room_for_two_buckets_each_byte_is_loaded_once_and_leaves)
{
	struct world world;

	world_open(&world, _i, 128 << 10);
	world_play(&world);
	ck_assert_uint_eq(world.loaded, item_bytes(&world));
	ck_assert_uint_eq(world.ring.first, world.ring.count);
	ck_assert_uint_eq(world.ring.in_work, 0);
	/* Once more, as the next attempt does. */
	for (uint32_t i = 0; i < world.locals.count; i++)
		world.locals_left[world.locals.ops[i].bucket]++;
	world.locals.next = world.peers[0].next = world.peers[1].next = world.peers[2].next = 0;
	ring_arm(&world.ring);
	world_play(&world);
	ck_assert_uint_eq(world.loaded, 2 * item_bytes(&world));
	world_close(&world);
}
END_TEST

/* Its items leave when others need the room, and it reads the sources themselves. */
START_TEST(a_peer_that_takes_nothing_holds_up_nobody)
{
	struct world world;

	world_open(&world, _i, 16384);
	world.stands = (uint32_t)_i % PEERS;
	world_play(&world);
	uint32_t stood = world.stands;
	ck_assert_uint_eq(world.peers[stood].next, 0);
	world.stands = PEERS;
	world_play(&world);
	ck_assert_uint_eq(world.peers[stood].next, world.peers[stood].count);
	world_close(&world);
}
END_TEST

START_TEST(what_a_lost_peer_would_have_read_leaves_the_ring)
{
	struct world world;

	world_open(&world, _i, 128 << 10);
	struct fifo *lost = &world.peers[_i % (int)PEERS];
	world.stands = (uint32_t)_i % PEERS;
	for (uint64_t steps = draw(&world, 40); steps > 0; steps--)
		world_step(&world);
	for (uint32_t i = 0; i < lost->count; i++)
		for (uint32_t k = 0; k < lost->ops[i].count; k++)
			if (is_counted(&world, &lost->ops[i], k))
				ring_skip(&world.ring, item_of(&world, &lost->ops[i].reads[k]));
	world_play(&world);
	ck_assert_uint_eq(world.ring.first, world.ring.count);
	world_close(&world);
}
END_TEST

/* What lies between two sources is nobody's: perhaps not page-locked. */
START_TEST(only_sources_that_touch_are_one_item)
{
	static const uint8_t memory[400];
	struct ring ring = {.bytes = 4096};
	struct ring_use uses[] = {
		{.from = memory + 201, .bytes = 100, .turn = 200, .turn_end = 300},
		{.from = memory, .bytes = 100, .turn = 0, .turn_end = 100},
		{.from = memory + 100, .bytes = 100, .turn = 100, .turn_end = 200}};
	struct ws_error err;

	ck_ok(ring_make(&ring, uses, ARRAY_SIZE(uses), &err), err);
	ck_assert_uint_eq(ring.count, 2);
	ck_assert_uint_eq(ring.items[ring.by_from[0]].bytes, 200);
	ck_assert_ptr_eq(ring.items[ring.by_from[1]].from, memory + 201);
	ring_release(&ring);
}
END_TEST

/* As the halves of stacked experts, which are sent before the rest of each expert's params: if they
 * came as one, the ring would fill with what nobody reads yet. */
START_TEST(what_is_read_first_is_loaded_first_and_alone)
{
	static const uint8_t memory[400];
	struct ring ring = {.bytes = 4096};
	struct ring_use uses[] = {
		{.from = memory, .bytes = 100, .turn = 0, .turn_end = 100},
		{.from = memory + 100, .bytes = 100, .turn = 1000, .turn_end = 1100},
		{.from = memory + 200, .bytes = 100, .turn = 100, .turn_end = 200},
		{.from = memory + 300, .bytes = 100, .turn = 2000, .turn_end = 2100}};
	static const uint32_t order[] = {0, 200, 100, 300};
	struct ws_error err;

	ck_ok(ring_make(&ring, uses, ARRAY_SIZE(uses), &err), err);
	ck_assert_uint_eq(ring.count, ARRAY_SIZE(order));
	for (uint32_t i = 0; i < ring.count; i++)
		ck_assert_ptr_eq(ring.items[i].from, memory + order[i]);
	ring_release(&ring);
}
END_TEST

/* A copy over the end of what was page-locked at once is refused by CUDA. */
START_TEST(sources_of_two_allocations_are_two_items)
{
	static const uint8_t memory[400];
	const void *first = memory, *second = memory + 200;
	struct ring ring = {.bytes = 4096};
	struct ring_use uses[] = {{.from = memory + 300, .bytes = 100, .allocation = second},
				  {.from = memory, .bytes = 100, .allocation = first},
				  {.from = memory + 200, .bytes = 100, .allocation = second},
				  {.from = memory + 100, .bytes = 100, .allocation = first}};
	struct ws_error err;

	for (uint32_t i = 0; i < ARRAY_SIZE(uses); i++) {
		uses[i].turn = (uint64_t)(uses[i].from - memory);
		uses[i].turn_end = uses[i].turn + uses[i].bytes;
	}

	ck_ok(ring_make(&ring, uses, ARRAY_SIZE(uses), &err), err);
	ck_assert_uint_eq(ring.count, 2);
	for (uint32_t i = 0; i < 2; i++) {
		const struct ring_item *item = &ring.items[ring.by_from[i]];
		ck_assert_ptr_eq(item->from, memory + (size_t)i * 200);
		ck_assert_uint_eq(item->bytes, 200);
	}
	ring_release(&ring);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("a ring of sources");
	TCase *tcase = tcase_create("books");
	tcase_set_timeout(tcase, 120);
	suite_add_tcase(s, tcase);
	tcase_add_test(tcase, only_sources_that_touch_are_one_item);
	tcase_add_test(tcase, what_is_read_first_is_loaded_first_and_alone);
	tcase_add_test(tcase, sources_of_two_allocations_are_two_items);
	tcase_add_loop_test(tcase, everything_is_read_right_in_any_room, 0, 40);
	tcase_add_loop_test(tcase, with_room_for_two_buckets_each_byte_is_loaded_once_and_leaves, 0,
			    20);
	tcase_add_loop_test(tcase, a_peer_that_takes_nothing_holds_up_nobody, 0, 40);
	tcase_add_loop_test(tcase, what_a_lost_peer_would_have_read_leaves_the_ring, 0, 20);
	return s;
}
