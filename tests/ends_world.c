/* SPDX-License-Identifier: Apache-2.0 */
/* One sender and one receiver with two NICs each, stepped by one thread. */
#include <errno.h>
#include <string.h>

#include "tests/ends_world.h"
#include "tests/test.h"

void end_open(struct end *end, const struct device *devices, uint32_t count, uint32_t depth)
{
	struct ws_error err;
	uint32_t region;
	const struct engine_options options = {
		.devices = devices, .device_count = count, .op_bytes = OP_BYTES, .depth = depth};
	ck_ok(engine_open(&end->engine, &options, &err), err);
	end->memory = (struct ws_memory){.place = WS_HOST};
	ck_ok(ws_memory_alloc(&end->memory, BYTES, &err), err);
	ck_ok(engine_region_add(end->engine, &end->memory, MR_TARGET, &region, &err), err);
	ck_assert_uint_eq(region, 1);
}

static void half_open(struct end *end, struct writer *address, struct writer *regions)
{
	struct ws_error err;
	ck_ok(engine_peer_open(end->engine, "the other", &end->peer, address, &err), err);
	engine_regions_encode(end->engine, regions);
}

static void half_connect(struct end *end, const struct writer *address,
			 const struct writer *regions)
{
	struct ws_error err;
	ck_ok(engine_peer_connect(end->engine, end->peer, address->bytes, address->count, &err),
	      err);
	ck_ok(engine_peer_regions(end->engine, end->peer, regions->bytes, regions->count, &err),
	      err);
}

void ends_connect(struct ends *ends)
{
	struct writer out[4] = {WRITER_INIT(1 << 20), WRITER_INIT(1 << 20), WRITER_INIT(1 << 20),
				WRITER_INIT(1 << 20)};
	struct ws_error err;

	half_open(&ends->from, &out[0], &out[1]);
	half_open(&ends->to, &out[2], &out[3]);
	half_connect(&ends->from, &out[2], &out[3]);
	half_connect(&ends->to, &out[0], &out[1]);
	for (int i = 0; i < 4; i++)
		writer_release(&out[i]);
	ends->send = (struct send){.peer = ends->from.peer,
				   .bytes = BYTES,
				   .local = ends->from.memory.base,
				   .local_region = 1,
				   .remote_region = 1,
				   .credit_op_id = NONE};
	ends->receive = (struct receive){.peer = ends->to.peer,
					 .op_count = OPS,
					 .bytes = BYTES,
					 .digest_op_id = NONE,
					 .credit_op_id = NONE};
	ends->range = (struct op_range){.count = OPS};
	const struct engine_program sends = {.sends = &ends->send, .send_count = 1};
	const struct engine_program receives = {.receives = &ends->receive,
						.receive_count = 1,
						.ranges = &ends->range,
						.range_count = 1,
						.op_id_count = OPS};
	ck_ok(engine_set_program(ends->from.engine, &sends, &err), err);
	ck_ok(engine_set_program(ends->to.engine, &receives, &err), err);
}

void ends_open(struct ends *ends, const struct device *from, const struct device *to,
	       uint32_t depth)
{
	memset(ends, 0, sizeof(*ends));
	end_open(&ends->from, from, NICS_TWO, depth);
	end_open(&ends->to, to, NICS_TWO, depth);
	ends_connect(ends);
}

void end_step(struct end *end)
{
	struct engine_event events[16];
	int count = engine_step(end->engine, events, (int)ARRAY_SIZE(events));
	for (int i = 0; i < count; i++) {
		if (events[i].kind == ENGINE_NIC_LOST) {
			end->lost++;
			end->lost_event = events[i];
		}
		end->failed += events[i].kind == ENGINE_OP_FAILED;
		end->done += events[i].kind == ENGINE_RECEIVE_DONE;
		ck_assert_int_ne(events[i].kind, ENGINE_STRAY);
	}
}

void ends_arm(struct ends *ends)
{
	struct ws_error err;
	uint8_t *bytes = ends->from.memory.base;
	ends->attempt++;
	for (uint64_t i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)mix64(ends->attempt << 32 | i);
	ends->from.lost = ends->from.failed = ends->to.lost = ends->to.done = 0;
	ck_ok(engine_arm(ends->from.engine, ends->attempt, &err), err);
	ck_ok(engine_arm(ends->to.engine, ends->attempt, &err), err);
	engine_peer_ready(ends->from.engine, ends->from.peer);
}

/* True: all has landed.  False: a NIC was lost. */
bool ends_run(struct ends *ends)
{
	struct engine_progress progress = {0};
	for (int i = 0; i < STEPS_MAX; i++) {
		end_step(&ends->from);
		end_step(&ends->to);
		engine_progress(ends->from.engine, &progress);
		if (ends->from.lost + ends->to.lost > 0)
			return false;
		if (ends->to.done == 1 && progress.all_sent)
			return true;
	}
	ck_abort_msg("%u sent, %u landed", progress.sends_done, ends->to.done);
}

void ends_update(struct ends *ends)
{
	ends_arm(ends);
	ck_assert(ends_run(ends));
	ck_assert_mem_eq(ends->from.memory.base, ends->to.memory.base, BYTES);
	engine_end(ends->from.engine);
	engine_end(ends->to.engine);
}

void ends_fence(struct ends *ends)
{
	struct ws_error err;
	int rc = -EAGAIN, other = -EAGAIN;
	bool closed;
	for (int i = 0; i < STEPS_MAX && (rc == -EAGAIN || other == -EAGAIN); i++) {
		rc = rc == 0 ? 0 : engine_fence(ends->from.engine, &closed, &err);
		other = other == 0 ? 0 : engine_fence(ends->to.engine, &closed, &err);
		end_step(&ends->from);
		end_step(&ends->to);
	}
	ck_ok(rc, err);
	ck_ok(other, err);
}

void ends_close(struct ends *ends)
{
	ends_fence(ends);
	engine_close(ends->from.engine);
	engine_close(ends->to.engine);
	ws_memory_free(&ends->from.memory);
	ws_memory_free(&ends->to.memory);
	ck_assert_uint_eq(mem_live_count(), 0);
}

/* ------------------------------------------------------------------- what is in use */

void end_says(const struct engine *engine, const char *says)
{
	char text[256];
	engine_rails_text(engine, text, sizeof(text));
	ck_assert_msg(strstr(text, says) != NULL, "without '%s': %s", says, text);
}

uint32_t nics_in_use(const struct engine *engine)
{
	struct nic_speed rails[NICS_MAX];
	return engine_rails(engine, rails);
}

void ends_run_on_both(struct ends *ends)
{
	char text[256];
	ends_fence(ends);
	ends_connect(ends);
	ends_update(ends);
	for (uint32_t i = 0; i < NICS_TWO; i++)
		ck_assert_uint_gt(engine_nic_bytes_sent(ends->from.engine, i), 0);
	engine_rails_text(ends->from.engine, text, sizeof(text));
	ck_assert_str_eq(text, "");
	engine_rails_text(ends->to.engine, text, sizeof(text));
	ck_assert_str_eq(text, "");
}
