/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/engine where a receiver sends on what it gets: a chain of three engines on loop, one gate per
 * bucket.  Nothing is forwarded before its gate is open, every byte is the first one's, and a
 * peer that is given up holds up nobody.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine/engine_internal.h"
#include "tests/test.h"

#define LINKS	 3
#define BUCKETS	 5
#define BYTES	 20000u /* of a bucket */
#define OP_BYTES 4096u
#define OPS	 5u

/* One member: receives from the one before, sends to the one behind. */
struct link_member {
	struct engine *engine;
	struct engine_peer *from, *to;
	struct ws_memory memory;
	struct send sends[BUCKETS];
	struct send_digest digests[BUCKETS];
	struct receive receives[BUCKETS];
	struct span spans[BUCKETS];
	struct op_range ranges[BUCKETS];
	uint32_t sends_done, failed, received[BUCKETS];
};

struct chain {
	bool digests;
	struct link_member members[LINKS];
};

static void member_open(struct chain *chain, uint32_t index, int seed)
{
	struct link_member *member = &chain->members[index];
	char name[64];
	const struct device device = {.transport = "loop", .name = name};
	struct ws_error err;
	uint32_t region;

	snprintf(name, sizeof(name), "net/m%u?seed=%d", index, seed + 1);
	const struct engine_options options = {.devices = &device,
					       .device_count = 1,
					       .op_bytes = OP_BYTES,
					       .wire_digests = chain->digests};
	ck_ok(engine_open(&member->engine, &options, &err), err);
	ck_ok(ws_memory_alloc(&member->memory, BUCKETS * BYTES, &err), err);
	ck_ok(engine_region_add(member->engine, &member->memory, MR_TARGET, &region, &err), err);
}

static void halves_connect(struct engine *a, struct engine_peer **to, struct engine *b,
			   struct engine_peer **from)
{
	struct writer out[4] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20), WRITER_INIT(1 << 20),
				WRITER_INIT(1 << 20)};
	struct ws_error err;

	ck_ok(engine_peer_open(a, "next", to, &out[0], &err), err);
	ck_ok(engine_peer_open(b, "before", from, &out[1], &err), err);
	engine_regions_encode(a, &out[2]);
	engine_regions_encode(b, &out[3]);
	ck_ok(engine_peer_connect(a, *to, out[1].bytes, out[1].count, &err), err);
	ck_ok(engine_peer_regions(a, *to, out[3].bytes, out[3].count, &err), err);
	ck_ok(engine_peer_connect(b, *from, out[0].bytes, out[0].count, &err), err);
	ck_ok(engine_peer_regions(b, *from, out[2].bytes, out[2].count, &err), err);
	for (int i = 0; i < 4; i++)
		writer_release(&out[i]);
}

static void program_set(struct chain *chain, uint32_t index)
{
	struct link_member *member = &chain->members[index];
	uint32_t each = OPS + (chain->digests ? 1 : 0);
	struct engine_program program = {.sends = member->sends,
					 .send_count = member->to != NULL ? BUCKETS : 0,
					 .digests = member->digests,
					 .receives = member->receives,
					 .receive_count = member->from != NULL ? BUCKETS : 0,
					 .ranges = member->ranges,
					 .range_count = member->from != NULL ? BUCKETS : 0,
					 .op_id_count = member->from != NULL ? BUCKETS * each : 0,
					 .gate_count = BUCKETS};
	struct ws_error err;

	program.digest_count = chain->digests ? program.send_count : 0;
	for (uint32_t b = 0; b < BUCKETS; b++) {
		const uint8_t *at = (const uint8_t *)member->memory.base + b * BYTES;
		member->sends[b] = (struct send){.peer = member->to,
						 .bytes = BYTES,
						 .first_op_id = b * each,
						 .local = at,
						 .local_region = 1,
						 .remote_region = 1,
						 .remote_offset = b * BYTES,
						 .credit_op_id = NONE,
						 .counter = b,
						 .gate = b + 1};
		member->digests[b] = (struct send_digest){.peer = member->to,
							  .send_count = 1,
							  .op_id = b * each + OPS,
							  .remote_receive = b};
		member->spans[b] =
			(struct span){.memory = at, .bytes = BYTES, .first_op_id = b * each};
		member->receives[b] =
			(struct receive){.peer = member->from,
					 .op_count = each,
					 .spans = &member->spans[b],
					 .span_count = 1,
					 .digest_op_id = chain->digests ? b * each + OPS : NONE,
					 .credit_op_id = NONE,
					 .gate = b + 1};
		member->ranges[b] =
			(struct op_range){.first_op_id = b * each, .count = each, .receive = b};
	}
	ck_ok(engine_set_program(member->engine, &program, &err), err);
}

static struct chain *chain_open(int seed)
{
	struct chain *chain = calloc(1, sizeof(*chain));

	chain->digests = seed % 2 == 1;
	for (uint32_t i = 0; i < LINKS; i++)
		member_open(chain, i, seed);
	for (uint32_t i = 0; i + 1 < LINKS; i++)
		halves_connect(chain->members[i].engine, &chain->members[i].to,
			       chain->members[i + 1].engine, &chain->members[i + 1].from);
	for (uint32_t i = 0; i < LINKS; i++)
		program_set(chain, i);
	return chain;
}

static void chain_close(struct chain *chain)
{
	for (uint32_t i = 0; i < LINKS; i++) {
		engine_close(chain->members[i].engine);
		ws_memory_free(&chain->members[i].memory);
	}
	free(chain);
}

static void chain_arm(struct chain *chain, uint64_t attempt)
{
	struct ws_error err;

	for (uint32_t i = 0; i < LINKS; i++) {
		struct link_member *member = &chain->members[i];
		uint8_t *bytes = member->memory.base;
		for (uint64_t k = 0; k < BUCKETS * BYTES; k++)
			bytes[k] = i == 0 ? (uint8_t)mix64(k + attempt) : 0xee;
		memset(member->received, 0, sizeof(member->received));
		member->sends_done = member->failed = 0;
		ck_ok(engine_arm(member->engine, attempt, &err), err);
	}
	for (uint32_t i = 0; i + 1 < LINKS; i++)
		engine_peer_ready(chain->members[i].engine, chain->members[i].to);
}

static void chain_step(struct chain *chain)
{
	struct engine_event events[16];

	for (uint32_t i = LINKS; i-- > 0;) {
		struct link_member *member = &chain->members[i];
		int count = engine_step(member->engine, events, (int)ARRAY_SIZE(events));
		for (int e = 0; e < count; e++)
			switch (events[e].kind) {
			case ENGINE_RECEIVE_DONE: {
				uint32_t b = events[e].receive;
				member->received[b]++;
				/* What comes has come to the one before. */
				ck_assert(i == 1 || chain->members[i - 1].received[b] == 1);
				break;
			}
			case ENGINE_SENDS_DONE:
				member->sends_done++;
				break;
			case ENGINE_OP_FAILED:
				member->failed++;
				break;
			case ENGINE_STRAY:
			case ENGINE_DIGEST_WRONG:
			case ENGINE_GPU_FAILED:
			case ENGINE_NIC_LOST:
				ck_abort_msg("member %u: event %d", i, (int)events[e].kind);
			}
	}
}

static bool all_received(const struct link_member *member)
{
	for (uint32_t b = 0; b < BUCKETS; b++)
		if (member->received[b] == 0)
			return false;
	return true;
}

static void chain_run(struct chain *chain, uint32_t until)
{
	const struct link_member *last = &chain->members[until];

	ck_until(all_received(last) && (last - 1)->sends_done > 0, chain_step(chain));
}

START_TEST(what_was_received_is_sent_on_when_it_is_whole)
{
	struct chain *chain = chain_open(_i);

	for (uint64_t attempt = 255; attempt < 258; attempt++) {
		chain_arm(chain, attempt);
		chain_run(chain, 2);
		for (uint32_t i = 1; i < LINKS; i++)
			ck_assert_int_eq(memcmp(chain->members[i].memory.base,
						chain->members[0].memory.base, BUCKETS * BYTES),
					 0);
		for (uint32_t i = 0; i < LINKS; i++)
			engine_end(chain->members[i].engine);
	}
	chain_close(chain);
}
END_TEST

/* The first one sends nothing: no gate opens, nothing is forwarded, and nobody has failed. */
START_TEST(nothing_is_sent_on_before_it_has_come)
{
	struct chain *chain = chain_open(_i);
	struct engine_progress progress;

	chain_arm(chain, 1);
	chain->members[0].to->ready = false;
	for (int i = 0; i < 2000; i++)
		chain_step(chain);
	engine_progress(chain->members[1].engine, &progress);
	ck_assert_uint_eq(progress.bytes_sent, 0);
	ck_assert_uint_eq(chain->members[1].sends_done, 0);
	chain_close(chain);
}
END_TEST

/* The last one is never ready.  Given up, the middle one's sends are done without it. */
START_TEST(a_peer_that_is_given_up_holds_up_nobody)
{
	struct chain *chain = chain_open(_i);
	struct link_member *middle = &chain->members[1];
	struct engine_progress progress;

	chain_arm(chain, 1);
	middle->to->ready = _i >= 2;
	ck_until(all_received(middle), chain_step(chain));
	engine_peer_drop(middle->engine, middle->to);
	engine_peer_drop(middle->engine, middle->to);
	ck_until(middle->sends_done > 0, chain_step(chain));
	engine_progress(middle->engine, &progress);
	ck_assert_uint_eq(middle->sends_done, 1);
	ck_assert(progress.all_sent);
	ck_assert_uint_eq(progress.sends_done, BUCKETS);
	ck_assert_uint_eq(middle->failed, 0);
	for (uint32_t i = 0; i < LINKS; i++)
		engine_end(chain->members[i].engine);
	chain_close(chain);
}
END_TEST

START_TEST(a_gate_that_isnt_there_is_refused)
{
	struct chain *chain = chain_open(0);
	struct link_member *middle = &chain->members[1];
	struct engine_program program = {.receives = middle->receives,
					 .receive_count = BUCKETS,
					 .ranges = middle->ranges,
					 .range_count = BUCKETS,
					 .op_id_count = BUCKETS * OPS,
					 .gate_count = BUCKETS - 1};
	struct ws_error err;

	ck_fails(engine_set_program(middle->engine, &program, &err), -EINVAL, err);
	program = (struct engine_program){.sends = middle->sends, .send_count = 1};
	ck_fails(engine_set_program(middle->engine, &program, &err), -EINVAL, err);
	chain_close(chain);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("engine_forward");
	TCase *chain = tcase_create("chain");

	tcase_add_loop_test(chain, what_was_received_is_sent_on_when_it_is_whole, 0, 8);
	tcase_add_loop_test(chain, nothing_is_sent_on_before_it_has_come, 0, 2);
	tcase_add_loop_test(chain, a_peer_that_is_given_up_holds_up_nobody, 0, 4);
	tcase_add_test(chain, a_gate_that_isnt_there_is_refused);
	tcase_set_timeout(chain, 60);
	suite_add_tcase(tests, chain);
	return tests;
}
