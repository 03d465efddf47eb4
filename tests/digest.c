/* SPDX-License-Identifier: Apache-2.0 */
/* Digests: known answers, pieces against the whole, and random bytes. */
#include "lib/base/base.h"

#include <string.h>

#include "tests/test.h"

/* From Python's xxhash. */
static const struct {
	const char *text;
	uint64_t seed, digest;
} known[] = {
	{"", 0, 0x2d06800538d394c2},
	{"a", 0, 0xe6c632b61e964e1f},
	{"weightsync", 0, 0xf149a24055f1e042},
	{"weightsync", 7, 0xf6270de2f531385b},
};

START_TEST(digests_are_XXH3)
{
	ck_assert_uint_eq(digest_bytes(known[_i].text, strlen(known[_i].text), known[_i].seed),
			  known[_i].digest);
}
END_TEST

START_TEST(pieces_give_the_digest_of_the_whole)
{
	static uint8_t bytes[5000];
	struct ws_error err = {0};
	struct digest digest;
	uint64_t x = (uint64_t)_i;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)mix64(i + 1000 * x);
	ck_ok(digest_open(&digest, x, &err), err);
	size_t at = 0;
	while (at < sizeof(bytes)) {
		ck_assert_uint_eq(digest_end(&digest), digest_bytes(bytes, at, x));
		size_t count = MIN(mix64(at + x + 1) % 700 + 1, sizeof(bytes) - at);
		digest_add(&digest, bytes + at, count);
		at += count;
	}
	ck_assert_uint_eq(digest_end(&digest), digest_bytes(bytes, sizeof(bytes), x));
	digest_add(&digest, NULL, 0);
	ck_assert_uint_eq(digest_end(&digest), digest_bytes(bytes, sizeof(bytes), x));
	digest_close(&digest);
	digest_close(&digest);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(each_byte_and_the_seed_count)
{
	uint8_t bytes[300] = {0};
	uint64_t plain = digest_bytes(bytes, sizeof(bytes), 1);
	ck_assert_uint_ne(plain, digest_bytes(bytes, sizeof(bytes), 2));
	ck_assert_uint_ne(plain, digest_bytes(bytes, sizeof(bytes) - 1, 1));
	for (size_t i = 0; i < sizeof(bytes); i++) {
		bytes[i] ^= 1;
		ck_assert_uint_ne(plain, digest_bytes(bytes, sizeof(bytes), 1));
		bytes[i] ^= 1;
	}
	ck_assert_uint_eq(digest_bytes(NULL, 0, 5), digest_bytes("x", 0, 5));
}
END_TEST

START_TEST(random_bytes_differ_each_time)
{
	uint8_t a[1000] = {0}, b[1000] = {0};
	struct ws_error err = {0};
	ck_ok(random_bytes(a, sizeof(a), &err), err);
	ck_ok(random_bytes(b, sizeof(b), &err), err);
	ck_ok(random_bytes(NULL, 0, &err), err);
	ck_assert_mem_ne(a, b, sizeof(a));
	uint32_t ones = 0;
	for (size_t i = 0; i < sizeof(a); i++)
		ones += (uint32_t)__builtin_popcount(a[i]);
	/* 8000 fair coins: 4000, and 10 standard deviations of 45. */
	ck_assert(ones > 3550 && ones < 4450);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("digest");
	TCase *tcase = tcase_create("digest");
	tcase_set_timeout(tcase, 60);
	tcase_add_loop_test(tcase, digests_are_XXH3, 0, (int)ARRAY_SIZE(known));
	tcase_add_loop_test(tcase, pieces_give_the_digest_of_the_whole, 0, 8);
	tcase_add_test(tcase, each_byte_and_the_seed_count);
	tcase_add_test(tcase, random_bytes_differ_each_time);
	suite_add_tcase(all, tcase);
	return all;
}
