/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `plan --html` as bytes; what a browser makes of it is tests/page.sh's. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "planner/simulate.h"
#include "tests/plan_pair.h"
#include "tests/test.h"

#define PAGE_BYTES_MAX 3000000

/* A page as a text, and the data that stands in it. */
struct world {
	struct pair_world pair;
	struct plan *all;
	struct simulation *simulation;
	struct writer out;
	struct arena arena;
	const struct json *data;
};

static void world_plan(struct world *world)
{
	world->out = (struct writer)WRITER_INIT(64u << 20);
	world->all = pair_plan(&world->pair, PLAN_ALL);
}

static void world_play(struct world *world)
{
	const struct sim_options options = {.constants = sim_constants_default()};

	ck_ok(simulate_plan(&world->simulation, world->all, &options, &world->pair.err),
	      world->pair.err);
}

static int world_write(struct world *world)
{
	struct page page = {.all = world->all,
			    .simulation = world->simulation,
			    .trainer = world->pair.manifests[SIDE_TRAINER],
			    .rollout = world->pair.manifests[SIDE_ROLLOUT],
			    .findings = &world->pair.findings};

	writer_reset(&world->out);
	return page_write(&page, &world->out);
}

/* Reads the data out of the page: nothing in it may look like a tag. */
static void world_read(struct world *world)
{
	static const char mark[] = "<script type=\"application/json\" id=\"data\">";
	static const struct json_limits limits = {
		.bytes_max = 64u << 20, .depth_max = 16, .node_count_max = 4u << 20};
	struct ws_error err = {0};

	write_u8(&world->out, 0);
	ck_assert(!world->out.failed);
	ck_assert_uint_lt(world->out.count, PAGE_BYTES_MAX);
	const char *begin = strstr((const char *)world->out.bytes, mark);
	ck_assert_ptr_nonnull(begin);
	begin += strlen(mark);
	const char *end = strchr(begin, '<');
	ck_assert(strncmp(end, "</script>", strlen("</script>")) == 0);
	ck_ok(json_parse(&world->arena, begin, (size_t)(end - begin), &limits, &world->data, &err),
	      err);
}

static void world_close(struct world *world)
{
	simulation_free(world->simulation);
	plan_free(world->all);
	writer_release(&world->out);
	arena_release(&world->arena);
	pair_close(&world->pair);
}

/* The numbers that C packed: base64, seven bits a number's byte. */
struct unpacked {
	const char *text;
	uint32_t bits, bit_count;
};

static uint32_t unpack_byte(struct unpacked *in)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	while (in->bit_count < 8) {
		const char *digit = strchr(digits, *in->text++);
		ck_assert(digit != NULL && *digit != '\0');
		in->bits = in->bits << 6 | (uint32_t)(digit - digits);
		in->bit_count += 6;
	}
	in->bit_count -= 8;
	return in->bits >> in->bit_count & 255;
}

static uint64_t unpack(struct unpacked *in)
{
	uint64_t value = 0;
	uint32_t byte, shift = 0;

	do {
		byte = unpack_byte(in);
		value |= (uint64_t)(byte & 127) << shift;
		shift += 7;
	} while (byte >= 128);
	return value;
}

/* The matrix's cells, row by row; their count is *count_out. */
static uint64_t *unpack_matrix(const struct json *matrix, struct arena *arena, size_t *count_out)
{
	struct unpacked in = {.text = json_text(matrix, "cells", "")};
	int64_t column_bin = json_integer(matrix, "column_bin", 0);
	int64_t row_bin = json_integer(matrix, "row_bin", 0);
	int64_t columns = (json_integer(matrix, "columns", 0) + column_bin - 1) / column_bin;
	int64_t rows = (json_integer(matrix, "rows", 0) + row_bin - 1) / row_bin;
	size_t count = (size_t)(columns * rows), value_count = unpack(&in);
	uint64_t *values = arena_array(arena, value_count, sizeof(*values));
	uint64_t *cells = arena_array(arena, count, sizeof(*cells));

	for (size_t i = 0; i < value_count; i++)
		values[i] = unpack(&in);
	for (size_t i = 0; i < count;) {
		uint64_t token = unpack(&in), run = token % 2 == 1 ? unpack(&in) + 1 : 1;
		ck_assert(token / 2 < value_count && run <= count - i);
		for (; run > 0; run--)
			cells[i++] = values[token / 2];
	}
	*count_out = count;
	return cells;
}

START_TEST(each_pair_has_its_cell)
{
	struct world world = {0};
	size_t count = 0;

	pair_open_model(&world.pair, "qwen3-30b-a3b", "fsdp2", "dp=4", "vllm", "tp=2", 3);
	world_plan(&world);
	ck_assert_int_eq(world_write(&world), 0);
	world_read(&world);
	const struct json *matrix = json_get(world.data, "matrix");
	uint64_t *cells = unpack_matrix(matrix, &world.arena, &count);
	ck_assert_uint_eq(count, 4 * 6);
	for (uint32_t i = 0; i < plan_send_pair_count(world.all); i++) {
		const struct plan_pair *pair = plan_send_pair(world.all, i);
		uint64_t *cell = &cells[(pair->receiver - 4) * 4 + pair->sender];
		ck_assert_uint_eq(*cell, pair->bytes);
		*cell = 0;
	}
	for (size_t i = 0; i < count; i++)
		ck_assert_uint_eq(cells[i], 0);
	world_close(&world);
}
END_TEST

/* First and last tick of a lane's runs. */
static void unpack_lane(struct unpacked *in, uint64_t *begin_out, uint64_t *end_out)
{
	uint64_t runs = unpack(in), at = 0;

	for (uint64_t i = 0; i < runs; i++) {
		at += unpack(in);
		if (i == 0)
			*begin_out = at;
		uint64_t token = unpack(in);
		ck_assert(token % 4 != 0 && token / 4 > 0);
		at += token / 4;
	}
	*end_out = at;
}

START_TEST(each_phase_has_its_time_in_its_lane)
{
	struct world world = {0};
	uint64_t begin = 0, end = 0;
	size_t at = 0;

	pair_open_model(&world.pair, "llama-3-70b", "fsdp2", "dp=4", "vllm", "tp=2", 2);
	world_plan(&world);
	world_play(&world);
	ck_assert_int_eq(world_write(&world), 0);
	world_read(&world);
	const struct simulation *played = world.simulation;
	const struct json *json = json_get(world.data, "simulation");
	struct unpacked in = {.text = json_text(json, "lanes", "")};
	double tick_s = played->predicted_s / (double)json_integer(json, "ticks", 0);
	for (uint32_t member = 0; member < played->member_count; member++)
		for (uint64_t phases = unpack(&in); phases > 0; phases--) {
			const struct sim_interval *first = &played->intervals[at];
			double last_s = first->end_s;
			ck_assert_uint_eq(unpack(&in), (uint64_t)first->phase);
			for (; at < played->interval_count &&
			       played->intervals[at].member == member &&
			       played->intervals[at].phase == first->phase;
			     at++)
				last_s = MAX(last_s, played->intervals[at].end_s);
			unpack_lane(&in, &begin, &end);
			ck_assert_double_eq_tol((double)begin * tick_s, first->begin_s, tick_s);
			ck_assert_double_eq_tol((double)end * tick_s, last_s, tick_s);
		}
	ck_assert_uint_eq(at, played->interval_count);
	world_close(&world);
}
END_TEST

/* Trainer i holds i + 1 rows, rollout j needs j + 1 columns: nearly as many sizes as pairs. */
static void open_uneven(struct pair_world *pair, uint32_t trainers, uint32_t ranks)
{
	uint64_t rows = (uint64_t)trainers * (trainers + 1) / 2;
	uint64_t columns = (uint64_t)ranks * (ranks + 1) / 2;
	struct writer tensors = WRITER_INIT(1u << 20), sides[2];

	write_format(&tensors,
		     "{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":[%" PRIu64 ",%" PRIu64 "]}",
		     rows, columns);
	write_u8(&tensors, 0);
	for (int side = 0; side < 2; side++) {
		bool held = side == SIDE_TRAINER;
		uint64_t at = 0;
		sides[side] = (struct writer)WRITER_INIT(1u << 20);
		write_format(&sides[side], "\"rows\":[");
		for (uint32_t i = 0; i < (held ? trainers : ranks); at += ++i)
			write_format(&sides[side],
				     "%s{\"t\":\"w\",\"rank\":%" PRIu32 ",\"goff\":[%" PRIu64
				     ",%" PRIu64 "],\"lshape\":[%" PRIu64 ",%" PRIu64 "]}",
				     i == 0 ? "" : ",", i, held ? at : 0, held ? 0 : at,
				     held ? i + 1 : rows, held ? columns : i + 1);
		write_format(&sides[side], "]");
		write_u8(&sides[side], 0);
		ck_assert(!sides[side].failed);
	}
	pair_open(pair, (const char *)tensors.bytes, trainers, (const char *)sides[0].bytes, ranks,
		  (const char *)sides[1].bytes);
	writer_release(&tensors);
	writer_release(&sides[0]);
	writer_release(&sides[1]);
}

START_TEST(a_page_stays_small_and_loses_no_byte)
{
	struct world world = {0};
	size_t count = 0;
	uint64_t cells_sum = 0, pairs_sum = 0;

	open_uneven(&world.pair, 1024, 512);
	world_plan(&world);
	ck_assert_int_eq(world_write(&world), 0);
	world_read(&world);
	const struct json *matrix = json_get(world.data, "matrix");
	ck_assert_int_gt(json_integer(matrix, "column_bin", 0) * json_integer(matrix, "row_bin", 0),
			 1);
	uint64_t *cells = unpack_matrix(matrix, &world.arena, &count);
	for (size_t i = 0; i < count; i++)
		cells_sum += cells[i];
	for (uint32_t i = 0; i < plan_send_pair_count(world.all); i++)
		pairs_sum += plan_send_pair(world.all, i)->bytes;
	ck_assert_uint_eq(plan_send_pair_count(world.all), 1024 * 512);
	ck_assert_uint_eq(cells_sum, pairs_sum);
	world_close(&world);
}
END_TEST

START_TEST(every_failed_allocation_is_said)
{
	struct world world = {0};
	int rc = -ENOMEM;

	pair_open_model(&world.pair, "llama-3-70b", "fsdp2", "dp=2", "vllm", "tp=2", 1);
	world_plan(&world);
	world_play(&world);
	for (int64_t n = 0; rc != 0; n++) {
		ck_assert_int_lt(n, 1000);
		writer_release(&world.out);
		world.out = (struct writer)WRITER_INIT(64u << 20);
		uint64_t live = mem_live_count();
		mem_fail_nth(n);
		rc = world_write(&world);
		mem_fail_nth(-1);
		ck_assert_msg(rc == 0 || rc == -ENOMEM, "allocation %d: %d", (int)n, rc);
		ck_assert_uint_eq(mem_live_count(), live + (world.out.bytes != NULL));
	}
	world_read(&world);
	world_close(&world);
}
END_TEST

START_TEST(a_refused_plan_has_a_page_that_lists_its_faults)
{
	struct world world = {0};
	uint32_t listed = 0;

	pair_open(&world.pair,
		  "{\"name\":\"<a>\",\"dtype\":\"bf16\",\"shape\":[8,8]},"
		  "{\"name\":\"b\",\"dtype\":\"bf16\",\"shape\":[8,8]}",
		  2, "\"params\":[{\"p\":\"b\",\"x\":[\"t\",\"b\"]}]", 1,
		  "\"params\":[{\"p\":\"<a>\",\"x\":[\"t\",\"<a>\"]},"
		  "{\"p\":\"b\",\"x\":[\"t\",\"b\"]}]");
	pair_refused(&world.pair, "missing");
	world.out = (struct writer)WRITER_INIT(64u << 20);
	ck_assert_int_eq(world_write(&world), 0);
	world_read(&world);
	const struct json *findings = json_get(world.data, "findings");
	ck_assert_int_eq(json_integer(findings, "count", 0), world.pair.findings.count);
	const struct json *row = json_get(findings, "list")->first;
	for (const struct finding *at = world.pair.findings.first; at != NULL; at = at->next) {
		ck_assert_str_eq(json_at(row, 0)->text, at->kind);
		ck_assert_str_eq(json_at(row, 1)->text, at->where);
		ck_assert_str_eq(json_at(row, 2)->text, at->text);
		row = row->next;
		listed++;
	}
	ck_assert(listed > 0 && row == NULL);
	ck_assert_ptr_null(json_get(world.data, "plan"));
	world_close(&world);
}
END_TEST

static bool warned(const struct findings *warnings, const char *kind)
{
	for (const struct finding *at = warnings->first; at != NULL; at = at->next)
		if (strcmp(at->kind, kind) == 0)
			return true;
	return false;
}

START_TEST(a_plan_that_is_right_but_slow_warns)
{
	struct pair_world pair;
	struct findings warnings = {.arena = &pair.arena};

	/* Rank 2 of 3 has nothing in chunks of 2, 2, 0; boxes of two bytes; rank 1 has the larger
	 * half. */
	pair_open(
		&pair, "{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":[4,64]}", 3,
		"\"params\":[{\"p\":\"w\",\"x\":[\"s\",[\"t\",\"w\"],0,\"n\",{\"mode\":\"chunk\"}]}]",
		2, "\"params\":[{\"p\":\"w\",\"x\":[\"s\",[\"t\",\"w\"],1,\"n\"]}]");
	struct plan *all = pair_plan(&pair, PLAN_ALL);
	plan_warnings(all, &warnings);
	ck_assert(warned(&warnings, "idle"));
	ck_assert(warned(&warnings, "imbalance"));
	plan_free(all);
	pair_close(&pair);
	pair_open_model(&pair, "llama-3-70b", "fsdp2", "dp=2", "vllm", "tp=2", 1);
	warnings = (struct findings){.arena = &pair.arena};
	all = pair_plan(&pair, PLAN_ALL);
	plan_warnings(all, &warnings);
	ck_assert(!warned(&warnings, "idle") && !warned(&warnings, "imbalance"));
	plan_free(all);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("page");
	TCase *tcase = tcase_create("page");

	tcase_set_timeout(tcase, 240);
	tcase_add_test(tcase, each_pair_has_its_cell);
	tcase_add_test(tcase, each_phase_has_its_time_in_its_lane);
	tcase_add_test(tcase, a_page_stays_small_and_loses_no_byte);
	tcase_add_test(tcase, every_failed_allocation_is_said);
	tcase_add_test(tcase, a_refused_plan_has_a_page_that_lists_its_faults);
	tcase_add_test(tcase, a_plan_that_is_right_but_slow_warns);
	suite_add_tcase(suite, tcase);
	return suite;
}
