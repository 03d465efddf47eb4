/* SPDX-License-Identifier: Apache-2.0 */
/* Strict JSON in, valid JSON out. */
#include "lib/base/base.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/test.h"

static const struct json_limits limits = JSON_LIMITS_MANIFEST;

#define TEXT(text) (text), sizeof(text) - 1

/* Each must be refused, at this place, for this reason. */
static const struct {
	const char *text;
	size_t count;
	const char *sentence;
} refused[] = {
	{TEXT(""), "line 1, column 1: the text is empty"},
	{TEXT(" \n "), "line 2, column 2: the text ends where a value must stand"},
	{TEXT("\xef\xbb\xbf{}"), "line 1, column 1: no JSON value begins like this"},
	{TEXT("{\"a\":1}\n\n garbage"), "line 3, column 2: something follows the value"},
	{TEXT("{}\0"), "line 1, column 3: something follows the value"},
	{TEXT("\v{}"), "line 1, column 1: no JSON value begins like this"},
	{TEXT("\f{}"), "line 1, column 1: no JSON value begins like this"},
	{TEXT("[1,\x01 2]"), "line 1, column 4: no JSON value begins like this"},
	{TEXT("[007]"), "line 1, column 2: a number begins with a needless 0"},
	{TEXT("[-01]"), "needless 0"},
	{TEXT("[1.]"), "a digit must stand here"},
	{TEXT("[.5]"), "no JSON value begins like this"},
	{TEXT("[+1]"), "no JSON value begins like this"},
	{TEXT("[-]"), "a digit must stand here"},
	{TEXT("[1e]"), "a digit must stand here"},
	{TEXT("[1e+]"), "a digit must stand here"},
	{TEXT("[0x10]"), "',' or ']' must stand here"},
	{TEXT("[1e400]"), "line 1, column 2: a number beyond every double"},
	{TEXT("[-1e400]"), "a number beyond every double"},
	{TEXT("[1111111111111111111111111111111111111111111111111111111111111]"), "60 characters"},
	{TEXT("[NaN]"), "no JSON value begins like this"},
	{TEXT("[Infinity]"), "no JSON value begins like this"},
	{TEXT("[tru]"), "no JSON value begins like this"},
	{TEXT("[truee]"), "',' or ']' must stand here"},
	{TEXT("[True]"), "no JSON value begins like this"},
	{TEXT("nul"), "no JSON value begins like this"},
	{TEXT("['a']"), "no JSON value begins like this"},
	{TEXT("[1,]"), "no JSON value begins like this"},
	{TEXT("[,1]"), "no JSON value begins like this"},
	{TEXT("[1 2]"), "',' or ']' must stand here"},
	{TEXT("[1}"), "',' or ']' must stand here"},
	{TEXT("{\"a\":1]"), "',' or '}' must stand here"},
	{TEXT("{\"a\":1,}"), "a string must stand here"},
	{TEXT("{a:1}"), "a string must stand here"},
	{TEXT("{1:1}"), "a string must stand here"},
	{TEXT("{\"a\" 1}"), "':' must stand here"},
	{TEXT("{\"a\""), "':' must stand here"},
	{TEXT("{\"a\":"), "the text ends where a value must stand"},
	{TEXT("[1"), "',' or ']' must stand here"},
	{TEXT("["), "the text ends where a value must stand"},
	{TEXT("{"), "a string must stand here"},
	{TEXT("]"), "no JSON value begins like this"},
	{TEXT("\"abc"), "the text ends inside a string"},
	{TEXT("\"abc\\"), "the text ends inside a string"},
	{TEXT("\"abc\\u12"), "four hexadecimal digits"},
	{TEXT("\"\\u00e\""), "four hexadecimal digits"},
	{TEXT("\"\\uZZZZ\""), "four hexadecimal digits"},
	{TEXT("\"\\x41\""), "no such escape"},
	{TEXT("\"\\\0\""), "no such escape"},
	{TEXT("\"\\'\""), "no such escape"},
	{TEXT("\"a\\u0000b\""), "holds a NUL"},
	{TEXT("\"a\0b\""), "control byte"},
	{TEXT("\"a\x1f\""), "control byte"},
	{TEXT("\"a\nb\""), "control byte"},
	{TEXT("\"\\ud800\""), "half of a surrogate pair"},
	{TEXT("\"\\ud800\\u0041\""), "half of a surrogate pair"},
	{TEXT("\"\\udc00\\ud800\""), "half of a surrogate pair"},
	{TEXT("\"\x80\""), "isn't valid UTF-8"},
	{TEXT("\"\xc0\x80\""), "isn't valid UTF-8"},
	{TEXT("\"\xc1\xbf\""), "isn't valid UTF-8"},
	{TEXT("\"\xe0\x9f\xbf\""), "isn't valid UTF-8"},
	{TEXT("\"\xed\xa0\x80\""), "isn't valid UTF-8"},
	{TEXT("\"\xf0\x8f\xbf\xbf\""), "isn't valid UTF-8"},
	{TEXT("\"\xf4\x90\x80\x80\""), "isn't valid UTF-8"},
	{TEXT("\"\xf5\x80\x80\x80\""), "isn't valid UTF-8"},
	{TEXT("\"\xc3\""), "isn't valid UTF-8"},
	{TEXT("\"\xe2\x82"), "isn't valid UTF-8"},
	{TEXT("{\"a\":1,\"a\":2}"), "has the key 'a' twice"},
	{TEXT("{\"a\":1,\"b\":2,\"\\u0061\":3}"), "has the key 'a' twice"},
	{TEXT("[[{\"x\":{\"\":1,\"\":1}}]]"), "has the key '' twice"},
};

START_TEST(what_JSON_forbids_is_refused_with_its_place)
{
	struct arena arena = {0};
	struct ws_error err = {0};
	const struct json *json = (const struct json *)&arena;
	/* An exact copy: a read beyond the end is then seen by the address sanitizer. */
	char *text = mem_alloc(refused[_i].count);
	memcpy(text, refused[_i].text, refused[_i].count);
	ck_fails(json_parse(&arena, text, refused[_i].count, &limits, &json, &err), -EBADMSG, err);
	ck_assert_msg(strstr(err.text, refused[_i].sentence) != NULL, "no '%s' in '%s'",
		      refused[_i].sentence, err.text);
	ck_assert_ptr_null(json);
	mem_free(text);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static const struct json *parse(struct arena *arena, const char *text)
{
	struct ws_error err = {0};
	const struct json *json = NULL;
	ck_ok(json_parse(arena, text, strlen(text), &limits, &json, &err), err);
	return json;
}

START_TEST(values_come_out_as_written)
{
	struct arena arena = {0};
	const struct json *json =
		parse(&arena, " {\"A\" : 1, \"a\":[true,false,null,\"\",{}],\r\n\t"
			      "\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d"
			      "\\ude00\xe2\x82\xac\x7f\", \"\":-2.5e-3} ");
	ck_assert(json->type == JSON_OBJECT && json->count == 4 && json->key == NULL);
	/* Case matters, and the order is kept. */
	ck_assert_int_eq(json_integer(json, "A", 0), 1);
	ck_assert_str_eq(json->first->key, "A");
	const struct json *array = json_get(json, "a");
	ck_assert(array->type == JSON_ARRAY && array->count == 5);
	ck_assert(json_at(array, 0)->type == JSON_TRUE && json_at(array, 1)->type == JSON_FALSE);
	ck_assert(json_at(array, 2)->type == JSON_NULL && json_at(array, 3)->type == JSON_STRING);
	ck_assert(json_at(array, 4)->type == JSON_OBJECT && json_at(array, 5) == NULL);
	ck_assert_str_eq(json_text(json, "text", NULL),
			 "\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80\xe2\x82\xac\x7f");
	ck_assert(json_get(json, "")->number == -0.0025 && !json_get(json, "")->is_integer);
	arena_release(&arena);
}
END_TEST

START_TEST(lookups_fall_back)
{
	struct arena arena = {0};
	const struct json *json = parse(&arena, "{\"n\":7,\"t\":true,\"f\":false,\"s\":\"x\"}");
	ck_assert(json_get(json, "none") == NULL && json_get(NULL, "n") == NULL);
	ck_assert(json_get(json_get(json, "n"), "n") == NULL && json_at(json, 0) == NULL);
	ck_assert_int_eq(json_integer(json, "s", -3), -3);
	ck_assert_int_eq(json_integer(NULL, "n", -3), -3);
	ck_assert_str_eq(json_text(json, "n", "fallback"), "fallback");
	ck_assert_ptr_null(json_text(json, "none", NULL));
	ck_assert(json_true(json, "t") && !json_true(json, "f") && !json_true(json, "n"));
	ck_assert(!json_true(json, "none"));
	arena_release(&arena);
}
END_TEST

static const struct {
	const char *text;
	bool is_integer;
	int64_t integer;
} numbers[] = {
	{"0", true, 0},
	{"-7", true, -7},
	{"2147483648", true, 2147483648},
	{"9007199254740991", true, 9007199254740991},
	{"-9007199254740991", true, -9007199254740991},
	{"9007199254740992", false, 0},
	{"9007199254740993", false, 0},
	{"-9007199254740992", false, 0},
	{"18446744073709551616", false, 0},
	{"99999999999999999999999999999999", false, 0},
	{"-0", false, 0},
	{"0.0", false, 0},
	{"1.0", false, 0},
	{"1e5", false, 0},
	{"1E0", false, 0},
	{"10e-1", false, 0},
};

/* Strings with digits in between must not put the two readings of a number out of step. */
START_TEST(an_integer_is_one_only_if_written_as_one)
{
	struct arena arena = {0};
	char text[256];
	snprintf(text, sizeof(text), "{\"-1\":\"2\\\"3\",\"[4\":[\"5\\\\\",%s,\"6\"],\"x\":8}",
		 numbers[_i].text);
	const struct json *json = parse(&arena, text);
	const struct json *number = json_at(json_get(json, "[4"), 1);
	ck_assert(number->type == JSON_NUMBER);
	ck_assert(number->is_integer == numbers[_i].is_integer);
	ck_assert_int_eq(number->integer, numbers[_i].integer);
	ck_assert(number->number == strtod(numbers[_i].text, NULL));
	ck_assert_int_eq(json_integer(json, "x", 0), 8);
	arena_release(&arena);
}
END_TEST

static int parse_within(const char *text, const struct json_limits *within)
{
	struct arena arena = {0};
	const struct json *json = NULL;
	int rc = json_parse(&arena, text, strlen(text), within, &json, NULL);
	arena_release(&arena);
	return rc;
}

START_TEST(limits_are_inclusive)
{
	struct json_limits within = {.bytes_max = 9, .depth_max = 2, .node_count_max = 4};
	ck_assert_int_eq(parse_within("[[1,2]]  ", &within), 0);
	ck_assert_int_eq(parse_within("[[1,2]]   ", &within), -ENOSPC);
	ck_assert_int_eq(parse_within("[[1,2,3]]", &within), -ENOSPC);
	ck_assert_int_eq(parse_within("[[[]]]", &within), -ENOSPC);
	ck_assert_int_eq(parse_within("[[{}]]", &within), -ENOSPC);
	ck_assert_int_eq(parse_within("[[],[]]", &within), 0);
	within.depth_max = 0;
	ck_assert_int_eq(parse_within("7", &within), 0);
	ck_assert_int_eq(parse_within("[]", &within), -ENOSPC);
}
END_TEST

START_TEST(the_deepest_nesting_allowed_is_read)
{
	struct json_limits deep = {.bytes_max = 10000, .depth_max = 512, .node_count_max = 10000};
	char text[1100];
	memset(text, '[', 512);
	memset(text + 512, ']', 512);
	text[1024] = '\0';
	ck_assert_int_eq(parse_within(text, &deep), 0);
	memset(text, '[', 513);
	memset(text + 513, ']', 513);
	text[1026] = '\0';
	ck_assert_int_eq(parse_within(text, &deep), -ENOSPC);
	/* Objects and arrays by turns, closed in the wrong order at every depth. */
	for (size_t depth = 1; depth < 200; depth++) {
		size_t at = 0;
		for (size_t i = 0; i < depth; i++)
			at += (size_t)sprintf(text + at, i % 2 == 0 ? "[" : "{\"\":");
		text[at++] = depth % 2 == 0 ? ']' : '}';
		text[at] = '\0';
		ck_assert_int_eq(parse_within(text, &deep), -EBADMSG);
	}
}
END_TEST

/* 20 MB of small numbers would take cJSON 800 MB: it never sees them. */
START_TEST(a_bomb_is_refused_before_anything_is_allocated)
{
	struct arena arena = {0};
	const struct json *json = NULL;
	struct ws_error err = {0};
	size_t count = 20000000;
	char *text = mem_alloc(count);
	for (size_t i = 0; i + 1 < count; i += 2)
		memcpy(text + i, i == 0 ? "[1" : ",1", 2);
	text[0] = '[';
	uint64_t before = mem_alloc_count();
	ck_fails(json_parse(&arena, text, count, &limits, &json, &err), -ENOSPC, err);
	ck_assert_uint_eq(mem_alloc_count(), before);
	memset(text, '[', count);
	ck_fails(json_parse(&arena, text, count, &limits, &json, &err), -ENOSPC, err);
	ck_assert_uint_eq(mem_alloc_count(), before);
	mem_free(text);
}
END_TEST

static double cpu_seconds(void)
{
	return (double)clock() / CLOCKS_PER_SEC;
}

/* Quadratic time would be minutes; it takes less than a second. */
START_TEST(many_keys_take_less_than_quadratic_time)
{
	enum { KEYS = 200000 };
	struct writer out = WRITER_INIT(64u << 20);
	struct arena arena = {0};
	const struct json *json = NULL;
	struct ws_error err = {0};
	for (uint32_t i = 0; i < KEYS; i++)
		write_format(&out, "%c\"model.layers.%u\":%u", i == 0 ? '{' : ',',
			     (i * 2654435761u) >> 4, i);
	write_format(&out, "}");
	double start = cpu_seconds();
	ck_ok(json_parse(&arena, out.bytes, out.count, &limits, &json, &err), err);
	ck_assert_uint_eq(json->count, KEYS);
	out.count--;
	write_format(&out, ",\"model.layers.%u\":7}", (4711 * 2654435761u) >> 4);
	ck_fails(json_parse(&arena, out.bytes, out.count, &limits, &json, &err), -EBADMSG, err);
	ck_assert(cpu_seconds() - start < 20);
	arena_release(&arena);
	writer_release(&out);
}
END_TEST

START_TEST(every_cut_text_is_refused)
{
	static const char text[] =
		"{\"a\":[1,-2.5e3,true,null,\"x\\u00e9\\\\\"],\"b\":{\"c\":\"\xc3\xa9\"}}";
	struct ws_error err = {0};
	for (size_t count = 0; count < sizeof(text) - 1; count++) {
		struct arena arena = {0};
		const struct json *json = NULL;
		char *copy = mem_alloc(count);
		memcpy(copy, text, count);
		ck_fails(json_parse(&arena, copy, count, &limits, &json, &err), -EBADMSG, err);
		mem_free(copy);
		arena_release(&arena);
	}
}
END_TEST

/* ---------------------------------------------------------------- output */
static const char *written(struct writer *out)
{
	write_u8(out, 0);
	ck_assert(!out->failed);
	return (const char *)out->bytes;
}

static void write_sample(struct json_writer *json)
{
	json_begin_object(json, NULL);
	json_put_text(json, "text", "a\"\\\n\x01\xc3\xa9\xff");
	json_put_integer(json, "least", INT64_MIN);
	json_put_u64(json, "most", UINT64_MAX);
	json_put_number(json, "tenth", 0.1, -1);
	json_put_number(json, "rounded", 2.0 / 3, 3);
	json_put_number(json, "nan", NAN, 2);
	json_put_bool(json, "yes", true);
	json_put_null(json, "no");
	json_begin_array(json, "empty");
	json_end_array(json);
	json_begin_array(json, "rows");
	for (int row = 0; row < 2; row++) {
		json_begin_array(json, NULL);
		json_put_integer(json, NULL, row);
		json_put_bool(json, NULL, false);
		json_end_array(json);
	}
	json_end_array(json);
	json_begin_object(json, "nested");
	json_end_object(json);
	json_end_object(json);
}

START_TEST(output_is_as_expected)
{
	struct writer out = WRITER_INIT(10000);
	struct json_writer json = {.out = &out};
	write_sample(&json);
	ck_assert_str_eq(
		written(&out),
		"{\"text\":\"a\\\"\\\\\\u000a\\u0001\xc3\xa9\xef\xbf\xbd\",\"least\":-9223372036854775808,"
		"\"most\":18446744073709551615,\"tenth\":0.1,\"rounded\":0.667,\"nan\":null,"
		"\"yes\":true,\"no\":null,\"empty\":[],\"rows\":[[0,false],[1,false]],\"nested\":{}}");
	writer_release(&out);
}
END_TEST

START_TEST(pretty_output_is_as_expected)
{
	struct writer out = WRITER_INIT(10000);
	struct json_writer json = {.out = &out, .pretty = true};
	write_sample(&json);
	ck_assert_str_eq(written(&out),
			 "{\n"
			 "  \"text\": \"a\\\"\\\\\\u000a\\u0001\xc3\xa9\xef\xbf\xbd\",\n"
			 "  \"least\": -9223372036854775808,\n"
			 "  \"most\": 18446744073709551615,\n"
			 "  \"tenth\": 0.1,\n"
			 "  \"rounded\": 0.667,\n"
			 "  \"nan\": null,\n"
			 "  \"yes\": true,\n"
			 "  \"no\": null,\n"
			 "  \"empty\": [],\n"
			 "  \"rows\": [\n"
			 "    [0, false],\n"
			 "    [1, false]\n"
			 "  ],\n"
			 "  \"nested\": {}\n"
			 "}");
	writer_release(&out);
}
END_TEST

/* A random value of at most that depth. */
static void write_random(struct json_writer *json, uint64_t *x, uint32_t depth, bool in_object)
{
	char key_text[40], text[40];
	*x = mix64(*x + 0x9e3779b97f4a7c15);
	snprintf(key_text, sizeof(key_text), "%llx\n\"\xe2\x82\xac", (unsigned long long)*x);
	snprintf(text, sizeof(text), "%llu\t\\", (unsigned long long)*x);
	const char *key = in_object ? key_text : NULL;
	uint64_t pick = *x >> 20, children = (*x >> 40) % 5;
	double number = 0;
	switch (pick % (depth == 0 ? 5 : 7)) {
	case 0:
		json_put_text(json, key, text);
		return;
	case 1:
		json_put_integer(json, key, (int64_t)(*x >> 11) * (pick % 2 == 0 ? 1 : -1));
		return;
	case 2:
		memcpy(&number, x, sizeof(number));
		json_put_number(json, key, number, -1);
		return;
	case 3:
		json_put_bool(json, key, pick % 2 == 0);
		return;
	case 4:
		json_put_null(json, key);
		return;
	case 5:
		json_begin_array(json, key);
		for (uint64_t i = 0; i < children; i++)
			write_random(json, x, depth - 1, false);
		json_end_array(json);
		return;
	}
	json_begin_object(json, key);
	for (uint64_t i = 0; i < children; i++)
		write_random(json, x, depth - 1, true);
	json_end_object(json);
}

START_TEST(what_is_written_is_read_and_written_the_same)
{
	for (uint32_t round = 0; round < 200; round++) {
		struct writer out[3] = {WRITER_INIT(1u << 20), WRITER_INIT(1u << 20),
					WRITER_INIT(1u << 20)};
		struct arena arena = {0};
		struct json_writer first = {.out = &out[0]};
		struct json_writer pretty = {.out = &out[1], .pretty = true};
		struct json_writer last = {.out = &out[2]};
		uint64_t x = mix64((uint64_t)_i * 1000 + round + 1);
		write_random(&first, &x, 6, false);
		json_put_value(&pretty, NULL, parse(&arena, written(&out[0])));
		json_put_value(&last, NULL, parse(&arena, written(&out[1])));
		ck_assert_str_eq((const char *)out[0].bytes, written(&out[2]));
		for (int i = 0; i < 3; i++)
			writer_release(&out[i]);
		arena_release(&arena);
	}
}
END_TEST

/* A decimal comma must change neither what is written nor what is read.  A locale that isn't
 * installed leaves the plain one, so that only a machine with German or French shows it. */
START_TEST(the_locale_changes_nothing)
{
	static const char *const locales[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "C"};
	struct writer out = WRITER_INIT(1000);
	struct json_writer json = {.out = &out};
	struct arena arena = {0};
	setlocale(LC_ALL, locales[_i]);
	json_begin_array(&json, NULL);
	json_put_number(&json, NULL, -1234.5, 2);
	json_put_number(&json, NULL, 1.5e300, -1);
	json_end_array(&json);
	const char *text = written(&out);
	ck_assert_str_eq(text, "[-1234.50,1.5e+300]");
	ck_assert(parse(&arena, text)->first->number == -1234.5);
	arena_release(&arena);
	writer_release(&out);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("json");
	TCase *tcase = tcase_create("json");
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, what_JSON_forbids_is_refused_with_its_place, 0,
			    (int)ARRAY_SIZE(refused));
	tcase_add_test(tcase, values_come_out_as_written);
	tcase_add_test(tcase, lookups_fall_back);
	tcase_add_loop_test(tcase, an_integer_is_one_only_if_written_as_one, 0,
			    (int)ARRAY_SIZE(numbers));
	tcase_add_test(tcase, limits_are_inclusive);
	tcase_add_test(tcase, the_deepest_nesting_allowed_is_read);
	tcase_add_test(tcase, a_bomb_is_refused_before_anything_is_allocated);
	tcase_add_test(tcase, many_keys_take_less_than_quadratic_time);
	tcase_add_test(tcase, every_cut_text_is_refused);
	tcase_add_test(tcase, output_is_as_expected);
	tcase_add_test(tcase, pretty_output_is_as_expected);
	tcase_add_loop_test(tcase, what_is_written_is_read_and_written_the_same, 0, 8);
	tcase_add_loop_test(tcase, the_locale_changes_nothing, 0, 4);
	suite_add_tcase(all, tcase);
	return all;
}
