/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public fallible function of lib/base with its nth allocation failing, for each n until
 * it succeeds: -ENOMEM and a sentence, nothing leaked, and nothing left on the disk.
 */
#include "lib/base/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/folder.h"
#include "tests/test.h"

#define NTH_MAX 2000 /* no step below allocates more often */

static const char sample[] =
	"{\"a\":[1,2.5,\"x\\u00e9\",{\"b\":null,\"c\":true}],\"long\":\"0123456789012345678901234567"
	"8901234567890123456789\",\"rows\":[[1,2],[3,4],[5,6],[7,8],[9,10],[11,12],[13,14]]}";

static const char header[] =
	"{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":"
	"[4,7]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";

static const struct st_tensor tensors[] = {
	{.name = "first", .dtype = WS_BF16, .dim_count = 1, .dim = {2}},
	{.name = "second", .dtype = WS_U8},
};

static int step_digest(struct ws_error *err)
{
	struct digest digest = {0};
	int rc = digest_open(&digest, 1, err);
	digest_close(&digest);
	return rc;
}

static int step_json_parse(struct ws_error *err)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	struct arena arena = {0};
	const struct json *json = NULL;
	int rc = json_parse(&arena, sample, sizeof(sample) - 1, &limits, &json, err);
	ck_assert((rc == 0) == (json != NULL));
	arena_release(&arena);
	return rc;
}

static int step_file_read(struct ws_error *err)
{
	void *bytes = NULL;
	size_t count = 0;
	/* One file that tells its size, and one that says 0 and must grow. */
	int rc = file_read(in_folder("f"), 1000, &bytes, &count, err);
	ck_assert(rc == 0 || (bytes == NULL && count == 0));
	mem_free(bytes);
	if (rc != 0)
		return rc;
	rc = file_read("/proc/self/maps", 10000000, &bytes, &count, err);
	mem_free(bytes);
	return rc;
}

static int step_st_parse_header(struct ws_error *err)
{
	struct arena arena = {0};
	struct st_tensor *out = NULL;
	uint32_t count = 0;
	int rc = st_parse_header(&arena, header, sizeof(header) - 1, 7, &out, &count, err);
	ck_assert((rc == 0) == (out != NULL));
	arena_release(&arena);
	return rc;
}

static int open_checkpoint(const char *path, uint32_t count, struct ws_error *err)
{
	struct checkpoint checkpoint;
	int rc = checkpoint_open(&checkpoint, path, err);
	ck_assert_uint_eq(checkpoint.tensor_count, rc == 0 ? count : 0);
	checkpoint_close(&checkpoint);
	return rc;
}

static int step_checkpoint_of_one_file(struct ws_error *err)
{
	return open_checkpoint(in_folder("1.safetensors"), 2, err);
}

static int step_checkpoint_of_a_folder(struct ws_error *err)
{
	return open_checkpoint(folder, 2, err);
}

static int step_checkpoint_of_an_index(struct ws_error *err)
{
	return open_checkpoint(in_folder("x.json"), 2, err);
}

static int step_st_writer(struct ws_error *err)
{
	struct st_writer writer = ST_WRITER_INIT;
	int rc = st_writer_begin(&writer, in_folder("w"), tensors, 2, err);
	if (rc == 0)
		rc = st_writer_add(&writer, "12345", 5, err);
	if (rc == 0)
		rc = st_writer_end(&writer, err);
	st_writer_close(&writer);
	ck_assert((rc == 0) == (access(in_folder("w"), F_OK) == 0));
	ck_assert_int_ne(access(in_folder("w.tmp"), F_OK), 0);
	return rc;
}

/* These say it by a NULL or a flag. */
static int step_without_sentence(struct ws_error *err)
{
	struct arena arena = {0};
	struct writer out = WRITER_INIT(1000);
	struct json_writer json = {.out = &out, .pretty = true};
	char *copy = mem_copy_text("text");
	char *text = arena_text(&arena, "%d", 7), *more = arena_copy(&arena, "abc", 3);
	void *array = arena_array(&arena, 100, 1000);
	json_begin_array(&json, NULL);
	json_put_text(&json, NULL, "value");
	json_end_array(&json);
	write_format(&out, "%0600d", 1);
	bool failed = copy == NULL || text == NULL || more == NULL || array == NULL || out.failed;
	mem_free(copy);
	arena_release(&arena);
	writer_release(&out);
	return failed ? ws_fail(err, -ENOMEM, "out of memory") : 0;
}

static const struct {
	int (*run)(struct ws_error *err);
	uint32_t least; /* allocations that it surely makes */
} steps[] = {
	{step_digest, 1},
	{step_json_parse, 30},
	{step_file_read, 2},
	{step_st_parse_header, 10},
	{step_checkpoint_of_one_file, 10},
	{step_checkpoint_of_a_folder, 10},
	{step_checkpoint_of_an_index, 10},
	{step_st_writer, 4},
	{step_without_sentence, 4},
};

static void put_files(void)
{
	static const char index[] =
		"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\"}}";
	uint8_t bytes[1000];
	make_folder();
	struct writer out = writer_fixed(bytes, sizeof(bytes));
	write_u64(&out, sizeof(header) - 1);
	write_bytes(&out, header, sizeof(header) - 1);
	write_bytes(&out, "1234567", 7);
	put_file("1.safetensors", out.bytes, out.count);
	put_file("x.json", index, sizeof(index) - 1);
	put_file("f", "0123456789", 10);
}

START_TEST(the_nth_allocation_failing_is_a_clean_error)
{
	struct ws_error err = {0};
	uint32_t n = 0;
	json_use_mem(true);
	for (; n < NTH_MAX; n++) {
		err = (struct ws_error){0};
		mem_fail_nth(n);
		int rc = steps[_i].run(&err);
		mem_fail_nth(-1);
		ck_assert_uint_eq(mem_live_count(), 0);
		if (rc == 0)
			break;
		ck_assert_msg(rc == -ENOMEM, "n %u: %d: %s", n, rc, err.text);
		ck_assert_int_eq(err.code, -ENOMEM);
		ck_assert_msg(strstr(err.text, "out of memory") != NULL, "n %u: %s", n, err.text);
	}
	ck_assert_uint_lt(n, NTH_MAX);
	ck_assert_uint_ge(n, steps[_i].least);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("mem_nth_base");
	TCase *tcase = tcase_create("nth");
	tcase_set_timeout(tcase, 120);
	tcase_add_checked_fixture(tcase, put_files, remove_folder);
	tcase_add_loop_test(tcase, the_nth_allocation_failing_is_a_clean_error, 0,
			    (int)ARRAY_SIZE(steps));
	suite_add_tcase(all, tcase);
	return all;
}
