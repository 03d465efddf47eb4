/* SPDX-License-Identifier: Apache-2.0 */
/* Pair frames: what is encoded comes back, and nothing else is taken. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/hub/hub.h"
#include "tests/test.h"

static struct place_row rows[3] = {
	{.set = 0, .first_param = 0, .param_count = 7, .region = 1, .step = 4096},
	{.set = 1, .first_param = 7, .param_count = 1, .region = 2, .offset = 1u << 30},
	{.set = 0, .first_param = 8, .param_count = 2, .region = 3, .step = -256}};

static struct pair_frame example(void)
{
	return (struct pair_frame){.pair_digest = {1, UINT64_MAX},
				   .plan_digest = 3,
				   .address = "address",
				   .address_bytes = 7,
				   .regions = "regions!",
				   .regions_bytes = 8,
				   .op_id_base = 100,
				   .receive_base = 5,
				   .ring_region = 2,
				   .slot_offset = {0, 65536, 131072},
				   .slot_count = 3,
				   .rows = rows,
				   .row_count = 3};
}

START_TEST(a_pair_comes_back_as_it_went)
{
	struct writer out = WRITER_INIT(1 << 20);
	struct arena arena = {0};
	struct ws_error err = {0};
	struct pair_frame in = example(), back;
	ck_assert_int_eq(pair_encode(&in, &out), 0);
	ck_ok(pair_decode(&back, &arena, out.bytes, out.count, &err), err);
	ck_assert_uint_eq(back.pair_digest[0], 1);
	ck_assert_uint_eq(back.pair_digest[1], UINT64_MAX);
	ck_assert_uint_eq(back.plan_digest, 3);
	ck_assert_uint_eq(back.address_bytes, 7);
	ck_assert_mem_eq(back.address, "address", 7);
	ck_assert_mem_eq(back.regions, "regions!", 8);
	ck_assert_uint_eq(back.op_id_base, 100);
	ck_assert_uint_eq(back.receive_base, 5);
	ck_assert_uint_eq(back.ring_region, 2);
	ck_assert_uint_eq(back.slot_count, 3);
	ck_assert_uint_eq(back.slot_offset[2], 131072);
	ck_assert_uint_eq(back.row_count, 3);
	ck_assert_mem_eq(back.rows, rows, sizeof(rows));
	arena_release(&arena);
	writer_release(&out);
}
END_TEST

START_TEST(every_shortened_pair_is_refused)
{
	struct writer out = WRITER_INIT(1 << 20);
	struct pair_frame in = example(), back;
	ck_assert_int_eq(pair_encode(&in, &out), 0);
	for (size_t count = 0; count < out.count; count++) {
		struct arena arena = {0};
		struct ws_error err = {0};
		/* A block of its own, so that a read behind its end is seen by asan. */
		uint8_t *part = malloc(count + (count == 0));
		memcpy(part, out.bytes, count);
		ck_fails(pair_decode(&back, &arena, part, count, &err), -EPROTO, err);
		ck_assert(err.text[0] != '\0');
		free(part);
		arena_release(&arena);
	}
	writer_release(&out);
}
END_TEST

START_TEST(bad_counts_and_rows_are_refused)
{
	struct place_row bad[4] = {{.set = BUFFER_SETS_MAX, .param_count = 1},
				   {.param_count = 0},
				   {.first_param = UINT32_MAX, .param_count = 2},
				   {.param_count = 1}};
	for (size_t i = 0; i < 4; i++) {
		struct writer out = WRITER_INIT(1 << 20);
		struct arena arena = {0};
		struct ws_error err = {0};
		struct pair_frame in = example(), back;
		in.rows = &bad[i];
		in.row_count = 1;
		ck_assert_int_eq(pair_encode(&in, &out), 0);
		if (i == 3)
			write_u8(&out, 0); /* a good row, but a byte behind it */
		ck_fails(pair_decode(&back, &arena, out.bytes, out.count, &err), -EPROTO, err);
		arena_release(&arena);
		writer_release(&out);
	}
	struct pair_frame long_ring = example();
	struct writer out = WRITER_INIT(1 << 20);
	long_ring.slot_count = 9;
	ck_assert_int_eq(pair_encode(&long_ring, &out), -ENOSPC);
	writer_release(&out);
}
END_TEST

START_TEST(a_param_is_found_by_the_row_that_covers_it)
{
	const struct place_row places[] = {
		{.first_param = 2, .param_count = 3, .region = 1, .offset = 1000, .step = -100},
		{.first_param = 7, .param_count = 1, .region = 4, .offset = 5},
		{.set = 1, .first_param = 9, .param_count = 1, .region = 4, .offset = 5},
	};
	uint32_t region = 0, count = (uint32_t)ARRAY_SIZE(places);
	uint64_t offset = 0;

	ck_assert(place_find(places, count, 2, &region, &offset) && region == 1 && offset == 1000);
	ck_assert(place_find(places, count, 4, &region, &offset) && region == 1 && offset == 800);
	ck_assert(place_find(places, count, 7, &region, &offset) && region == 4 && offset == 5);
	/* Whatever a peer says: the engine looks whether it is inside. */
	const struct place_row far = {.param_count = 9, .offset = 7, .step = INT64_MAX};
	ck_assert(place_find(&far, 1, 8, &region, &offset) && offset == UINT64_MAX);
	const uint32_t none[] = {0, 1, 5, 6, 8, 9, UINT32_MAX};
	for (size_t i = 0; i < ARRAY_SIZE(none); i++)
		ck_assert(!place_find(places, count, none[i], &region, &offset));
	ck_assert(!place_find(places, 0, 2, &region, &offset));
}
END_TEST

Suite *suite(void)
{
	Suite *pair = suite_create("pair");
	TCase *frames = tcase_create("frames");
	tcase_add_test(frames, a_param_is_found_by_the_row_that_covers_it);
	tcase_add_test(frames, a_pair_comes_back_as_it_went);
	tcase_add_test(frames, every_shortened_pair_is_refused);
	tcase_add_test(frames, bad_counts_and_rows_are_refused);
	suite_add_tcase(pair, frames);
	return pair;
}
