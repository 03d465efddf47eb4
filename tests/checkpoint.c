/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of one and of several files: folders, indexes that lie, reads that fail or find
 * another file, and the writer.
 */
#include "lib/base/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/folder.h"
#include "tests/test.h"

#define T(name, dtype, shape, offsets)                                                           \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets \
	"]}"
#define A4 T("a", "F32", "1", "0,4")

/* ---------------------------------------------------------------- pread that fails on demand */
static enum { READ_WELL, READ_SHORT, READ_INTERRUPTED, READ_ERROR } read_mood;
static uint32_t read_calls;

ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
	bool odd = read_calls++ % 2 == 0;
	if (read_mood == READ_ERROR || (read_mood == READ_INTERRUPTED && odd)) {
		errno = read_mood == READ_ERROR ? EIO : EINTR;
		return -1;
	}
	if (read_mood == READ_SHORT && count > 3)
		count = 3;
	return syscall(SYS_pread64, fd, bytes, count, offset);
}

static void put_tensors(const char *name, const char *header, size_t data_bytes)
{
	struct writer out = WRITER_INIT(1u << 30);
	write_u64(&out, strlen(header));
	write_bytes(&out, header, strlen(header));
	for (size_t i = 0; i < data_bytes; i++)
		write_u8(&out, (uint8_t)(i * 7 + 1));
	ck_assert(!out.failed);
	put_file(name, out.bytes, out.count);
	writer_release(&out);
}

START_TEST(what_is_accepted_has_the_right_places)
{
	struct checkpoint checkpoint;
	struct ws_error err = {0};
	const char *header =
		"{" T("b", "BF16", "2,3", "4,16") "," A4 "," T("c", "F4", "2", "16,17") "}";
	uint8_t bytes[12];
	put_tensors("x.safetensors", header, 17);
	ck_ok(checkpoint_open(&checkpoint, in_folder("x.safetensors"), &err), err);
	ck_assert_uint_eq(checkpoint.tensor_count, 3);
	ck_assert_uint_eq(checkpoint.data_bytes, 17);
	const struct st_tensor *b = checkpoint_find(&checkpoint, "b");
	ck_assert_ptr_eq(b, &checkpoint.tensors[1]);
	ck_assert(b->dtype == WS_BF16 && b->dim_count == 2 && b->dim[0] == 2 && b->dim[1] == 3);
	ck_assert_uint_eq(b->offset, 8 + strlen(header) + 4);
	ck_assert_uint_eq(b->bytes, 12);
	ck_assert_ptr_null(checkpoint_find(&checkpoint, "d"));
	/* A dtype that can't be moved is still told by its name. */
	const struct st_tensor *c = checkpoint_find(&checkpoint, "c");
	ck_assert(c->dtype == WS_NONE);
	ck_assert_str_eq(c->dtype_name, "F4");
	ck_ok(checkpoint_read(&checkpoint, b, 2, bytes, 10, &err), err);
	for (size_t i = 0; i < 10; i++)
		ck_assert_uint_eq(bytes[i], (uint8_t)((i + 6) * 7 + 1));
	checkpoint_close(&checkpoint);
	checkpoint_close(&checkpoint);
}
END_TEST

/* ---------------------------------------------------------------- folders and indexes */
static void put_text(const char *name, const char *text)
{
	put_file(name, text, strlen(text));
}

static void put_two_shards(void)
{
	put_tensors("m-1.safetensors", "{" A4 "}", 4);
	put_tensors("m-2.safetensors", "{" T("b", "U8", "3", "0,3") "}", 3);
}

#define INDEX	     "model.safetensors.index.json"
#define MAP(entries) "{\"metadata\":{\"total_size\":7},\"weight_map\":{" entries "}}"

static void open_folder_fails(int code, const char *rule)
{
	struct checkpoint checkpoint;
	struct ws_error err = {0};
	ck_fails(checkpoint_open(&checkpoint, folder, &err), code, err);
	ck_assert_msg(strstr(err.text, rule) != NULL, "no '%s' in '%s'", rule, err.text);
	ck_assert_uint_eq(mem_live_count(), 0);
}

START_TEST(a_folder_opens_with_and_without_an_index)
{
	struct ws_error err = {0};
	put_two_shards();
	if (_i > 0)
		put_text(INDEX, MAP("\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\""));
	struct checkpoint checkpoint;
	ck_ok(checkpoint_open(&checkpoint, _i == 2 ? in_folder(INDEX) : folder, &err), err);
	ck_assert_uint_eq(checkpoint.file_count, 2);
	ck_assert_uint_eq(checkpoint.tensor_count, 2);
	ck_assert_uint_eq(checkpoint.data_bytes, 7);
	const struct st_tensor *b = checkpoint_find(&checkpoint, "b");
	uint8_t bytes[3];
	ck_ok(checkpoint_read(&checkpoint, b, 0, bytes, 3, &err), err);
	ck_assert(bytes[0] == 1 && bytes[1] == 8 && bytes[2] == 15);
	checkpoint_close(&checkpoint);
}
END_TEST

START_TEST(an_index_leaves_out_files_it_does_not_name)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	put_two_shards();
	put_text(INDEX, MAP("\"b\":\"m-2.safetensors\""));
	ck_ok(checkpoint_open(&checkpoint, folder, &err), err);
	ck_assert_uint_eq(checkpoint.tensor_count, 1);
	checkpoint_close(&checkpoint);
}
END_TEST

static const struct {
	const char *index;
	int code;
	const char *rule;
} bad_indexes[] = {
	{MAP("\"a\":\"../x.safetensors\""), -EINVAL, "isn't one of its own folder"},
	{MAP("\"a\":\"/etc/passwd\""), -EINVAL, "isn't one of its own folder"},
	{MAP("\"a\":\"sub/m-1.safetensors\""), -EINVAL, "isn't one of its own folder"},
	{MAP("\"a\":\"\\u002e\\u002e\""), -EINVAL, "isn't one of its own folder"},
	{MAP("\"a\":\".\""), -EINVAL, "isn't one of its own folder"},
	{MAP("\"a\":\"\""), -EINVAL, "isn't one of its own folder"},
	{MAP("\"a\":\"link-out.safetensors\""), -EINVAL, "link that leaves its folder"},
	{MAP("\"a\":\"fifo.safetensors\""), -EINVAL, "isn't a regular file"},
	{MAP("\"a\":\"directory.safetensors\""), -EINVAL, "isn't a regular file"},
	{MAP("\"a\":\"link-fifo.safetensors\""), -EINVAL, "isn't a regular file"},
	{MAP("\"a\":\"missing.safetensors\""), -ENOENT, "missing.safetensors"},
	{MAP("\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\""), -EBADMSG, "doesn't hold it"},
	{MAP("\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-2.safetensors\""),
	 -EBADMSG, "doesn't hold it"},
	{MAP("\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"\\u0061\":\"m-1.safetensors\""),
	 -EBADMSG, "has tensor 'a' twice"},
	{MAP("\"a\":\"m-1.safetensors\",\"b\":\"m-1-again.safetensors\""), -EBADMSG,
	 "tensor 'a' is in"},
	{MAP("\"a\":7"), -EBADMSG, "something else than a file"},
	{MAP(""), -EBADMSG, "weight_map is empty"},
	{"{}", -EBADMSG, "needs one object weight_map"},
	{"[]", -EBADMSG, "needs one object weight_map"},
	{"7", -EBADMSG, "needs one object weight_map"},
	{"{\"weight_map\":[]}", -EBADMSG, "needs one object weight_map"},
	{"{\"weight_map\":{},\"weight_map\":{}}", -EBADMSG, "needs one object weight_map"},
	{"{\"weight_map\":{}}x", -EBADMSG, "something follows the value"},
	{"", -EBADMSG, "the text is empty"},
};

START_TEST(a_bad_index_is_refused)
{
	put_two_shards();
	put_tensors("m-1-again.safetensors", "{" A4 "}", 4);
	ck_assert_int_eq(mkfifo(in_folder("fifo.safetensors"), 0600), 0);
	ck_assert_int_eq(mkdir(in_folder("directory.safetensors"), 0700), 0);
	ck_assert_int_eq(symlink("/etc/passwd", in_folder("link-out.safetensors")), 0);
	ck_assert_int_eq(symlink("fifo.safetensors", in_folder("link-fifo.safetensors")), 0);
	put_text(INDEX, bad_indexes[_i].index);
	open_folder_fails(bad_indexes[_i].code, bad_indexes[_i].rule);
}
END_TEST

START_TEST(a_folder_without_index_is_as_strict)
{
	open_folder_fails(-ENOENT, "has no file *.safetensors");
	put_two_shards();
	put_tensors("x.safetensors", "{" A4 "}", 4);
	open_folder_fails(-EBADMSG, "tensor 'a' is in");
	unlink(in_folder("x.safetensors"));
	ck_assert_int_eq(mkfifo(in_folder("x.safetensors"), 0600), 0);
	open_folder_fails(-EINVAL, "isn't a regular file");
	unlink(in_folder("x.safetensors"));
	put_text("x.safetensors.index.json", MAP("\"a\":\"m-1.safetensors\""));
	put_text("y.safetensors.index.json", MAP("\"a\":\"m-1.safetensors\""));
	open_folder_fails(-EINVAL, "give the one that is meant");
}
END_TEST

START_TEST(links_stay_in_the_folder_or_in_the_cache)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	char snapshot[256];
	ck_assert_int_eq(mkdir(in_folder("blobs"), 0700), 0);
	ck_assert_int_eq(mkdir(in_folder("snapshots"), 0700), 0);
	ck_assert_int_eq(mkdir(in_folder("snapshots/abc"), 0700), 0);
	put_tensors("blobs/1234", "{" A4 "}", 4);
	put_tensors("secret", "{" T("s", "U8", "1", "0,1") "}", 1);
	ck_assert_int_eq(symlink("../../blobs/1234", in_folder("snapshots/abc/m.safetensors")), 0);
	snprintf(snapshot, sizeof(snapshot), "%s/snapshots/abc", folder);
	ck_ok(checkpoint_open(&checkpoint, snapshot, &err), err);
	ck_assert_uint_eq(checkpoint.tensor_count, 1);
	checkpoint_close(&checkpoint);
	ck_assert_int_eq(symlink("../../secret", in_folder("snapshots/abc/n.safetensors")), 0);
	ck_fails(checkpoint_open(&checkpoint, snapshot, &err), -EINVAL, err);
}
END_TEST

START_TEST(a_path_that_is_no_file_is_an_error)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	ck_fails(checkpoint_open(&checkpoint, in_folder("none"), &err), -ENOENT, err);
	ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
	ck_fails(checkpoint_open(&checkpoint, in_folder("fifo"), &err), -EINVAL, err);
	ck_fails(checkpoint_open(&checkpoint, "/dev/zero", &err), -EINVAL, err);
	checkpoint_close(NULL);
}
END_TEST

/* ---------------------------------------------------------------- reading */
static void open_x(struct checkpoint *checkpoint)
{
	struct ws_error err = {0};
	put_tensors("x.safetensors", "{" T("a", "U8", "1000", "0,1000") "}", 1000);
	ck_ok(checkpoint_open(checkpoint, in_folder("x.safetensors"), &err), err);
}

START_TEST(short_and_interrupted_reads_go_on)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	uint8_t bytes[1000];
	read_mood = _i == 0 ? READ_SHORT : READ_INTERRUPTED;
	open_x(&checkpoint);
	ck_ok(checkpoint_read(&checkpoint, &checkpoint.tensors[0], 0, bytes, 1000, &err), err);
	for (size_t i = 0; i < 1000; i++)
		ck_assert_uint_eq(bytes[i], (uint8_t)(i * 7 + 1));
	checkpoint_close(&checkpoint);
}
END_TEST

START_TEST(a_failed_read_names_file_and_offset)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	uint8_t bytes[10];
	char want[64];
	open_x(&checkpoint);
	read_mood = READ_ERROR;
	const struct st_tensor *a = &checkpoint.tensors[0];
	ck_fails(checkpoint_read(&checkpoint, a, 5, bytes, 10, &err), -EIO, err);
	snprintf(want, sizeof(want), "at byte %llu", (unsigned long long)a->offset + 5);
	ck_assert_ptr_nonnull(strstr(err.text, want));
	ck_assert_ptr_nonnull(strstr(err.text, "x.safetensors"));
	checkpoint_close(&checkpoint);
}
END_TEST

START_TEST(a_file_that_changed_is_stale)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	uint8_t bytes[1000];
	open_x(&checkpoint);
	const char *path = in_folder("x.safetensors");
	if (_i == 0) { /* cut */
		ck_assert_int_eq(truncate(path, 500), 0);
	} else if (_i == 1) { /* longer */
		ck_assert_int_eq(truncate(path, 5000), 0);
	} else { /* written again */
		const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 12345}};
		ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
	}
	ck_fails(checkpoint_read(&checkpoint, &checkpoint.tensors[0], 0, bytes, 1000, &err),
		 -ESTALE, err);
	checkpoint_close(&checkpoint);
}
END_TEST

/* A writer renames a new file over the old one; the open one stays whole. */
START_TEST(a_replaced_file_stays_readable)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	uint8_t byte = 0;
	open_x(&checkpoint);
	put_tensors("y", "{}", 0);
	ck_assert_int_eq(rename(in_folder("y"), in_folder("x.safetensors")), 0);
	ck_ok(checkpoint_read(&checkpoint, &checkpoint.tensors[0], 999, &byte, 1, &err), err);
	ck_assert_uint_eq(byte, (uint8_t)(999 * 7 + 1));
	checkpoint_close(&checkpoint);
}
END_TEST

/* ---------------------------------------------------------------- writing */
static const struct st_tensor written[] = {
	{.name = "w.\xc3\xa9\n\"", .dtype = WS_BF16, .dim_count = 2, .dim = {3, 5}},
	{.name = "empty", .dtype = WS_F32, .dim_count = 2, .dim = {0, 5}},
	{.name = "scalar", .dtype = WS_I64},
	{.name = "bytes", .dtype = WS_F8_E4M3, .dim_count = 1, .dim = {7}},
};

START_TEST(what_is_written_is_read_back)
{
	struct ws_error err = {0};
	struct st_writer writer = ST_WRITER_INIT;
	struct checkpoint checkpoint;
	uint8_t data[45], back[45];
	const char *path = in_folder("w.safetensors");
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 3 + 5);
	ck_ok(st_writer_begin(&writer, path, written, ARRAY_SIZE(written), &err), err);
	for (size_t i = 0; i < sizeof(data); i += 9)
		ck_ok(st_writer_add(&writer, data + i, 9, &err), err);
	ck_fails(st_writer_add(&writer, data, 1, &err), -EINVAL, err);
	ck_ok(st_writer_end(&writer, &err), err);
	st_writer_close(&writer);
	st_writer_close(&writer);
	ck_ok(checkpoint_open(&checkpoint, path, &err), err);
	ck_assert_uint_eq(checkpoint.tensor_count, ARRAY_SIZE(written));
	size_t at = 0;
	for (size_t i = 0; i < ARRAY_SIZE(written); i++) {
		const struct st_tensor *tensor = checkpoint_find(&checkpoint, written[i].name);
		ck_assert_ptr_nonnull(tensor);
		ck_assert(tensor->dtype == written[i].dtype);
		ck_assert_uint_eq(tensor->dim_count, written[i].dim_count);
		ck_assert_mem_eq(tensor->dim, written[i].dim, sizeof(tensor->dim));
		ck_ok(checkpoint_read(&checkpoint, tensor, 0, back, (size_t)tensor->bytes, &err),
		      err);
		ck_assert_int_eq(memcmp(back, data + at, (size_t)tensor->bytes), 0);
		at += (size_t)tensor->bytes;
	}
	ck_assert_uint_eq(at, sizeof(data));
	ck_assert_uint_eq(checkpoint.files[0].bytes % 8, 45 % 8);
	checkpoint_close(&checkpoint);
}
END_TEST

START_TEST(a_writer_without_end_leaves_nothing)
{
	struct ws_error err = {0};
	struct st_writer writer = ST_WRITER_INIT;
	put_text("w.safetensors", "old");
	put_text("w.safetensors.tmp", "left by a killed run");
	ck_ok(st_writer_begin(&writer, in_folder("w.safetensors"), written, 3, &err), err);
	ck_ok(st_writer_add(&writer, "x", 1, &err), err);
	ck_fails(st_writer_end(&writer, &err), -EINVAL, err);
	st_writer_close(&writer);
	ck_assert_int_ne(access(in_folder("w.safetensors.tmp"), F_OK), 0);
	void *bytes = NULL;
	size_t count = 0;
	ck_ok(file_read(in_folder("w.safetensors"), 100, &bytes, &count, &err), err);
	ck_assert_str_eq(bytes, "old");
	mem_free(bytes);
	struct st_writer zeroed = {0};
	st_writer_close(&zeroed);
	st_writer_close(NULL);
}
END_TEST

START_TEST(what_readers_would_refuse_is_not_written)
{
	static const struct st_tensor bad[] = {
		{.name = "__metadata__", .dtype = WS_U8},
		{.name = "\xff", .dtype = WS_U8},
		{.name = "none"},
		{.name = "rank", .dtype = WS_U8, .dim_count = 9},
		{.name = "large", .dtype = WS_U8, .dim_count = 1, .dim = {(uint64_t)1 << 53}},
		{.name = "scalar", .dtype = WS_U8},
	};
	struct ws_error err = {0};
	struct st_writer writer = ST_WRITER_INIT;
	struct st_tensor two[] = {bad[_i], {.name = "scalar", .dtype = WS_U8}};
	int rc = st_writer_begin(&writer, in_folder("w.safetensors"), two, 2, &err);
	ck_assert_msg(rc == -EINVAL, "%d: %s", rc, err.text);
	st_writer_close(&writer);
	ck_assert_int_ne(access(in_folder("w.safetensors.tmp"), F_OK), 0);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(a_full_disk_is_a_sentence)
{
	struct ws_error err = {0};
	/* A limit on the file's size stands in for a disk that is full. */
	struct rlimit limit = {.rlim_cur = 200, .rlim_max = 200};
	struct st_writer writer = ST_WRITER_INIT;
	struct st_tensor tensor = {.name = "a", .dtype = WS_U8, .dim_count = 1, .dim = {1000}};
	static const uint8_t data[1000];
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_ok(st_writer_begin(&writer, in_folder("w.safetensors"), &tensor, 1, &err), err);
	ck_fails(st_writer_add(&writer, data, sizeof(data), &err), -ENOSPC, err);
	st_writer_close(&writer);
}
END_TEST

/* Copies a file of the reference library's with our reader and writer. */
static void copy_theirs(const char *from, const char *to)
{
	struct ws_error err = {0};
	struct checkpoint checkpoint;
	struct st_writer writer = ST_WRITER_INIT;
	ck_ok(checkpoint_open(&checkpoint, from, &err), err);
	ck_assert_uint_eq(checkpoint.tensor_count, 12 * 7);
	ck_ok(st_writer_begin(&writer, to, checkpoint.tensors, checkpoint.tensor_count, &err), err);
	for (uint32_t i = 0; i < checkpoint.tensor_count; i++) {
		uint8_t bytes[8192];
		const struct st_tensor *tensor = &checkpoint.tensors[i];
		ck_assert_uint_le(tensor->bytes, sizeof(bytes));
		ck_ok(checkpoint_read(&checkpoint, tensor, 0, bytes, (size_t)tensor->bytes, &err),
		      err);
		ck_ok(st_writer_add(&writer, bytes, (size_t)tensor->bytes, &err), err);
	}
	ck_ok(st_writer_end(&writer, &err), err);
	st_writer_close(&writer);
	checkpoint_close(&checkpoint);
}

/* Only with WS_ST_THEIRS and WS_ST_OURS, which safetensors_reference.sh sets. */
START_TEST(files_of_the_reference_are_copied)
{
	const char *theirs = getenv("WS_ST_THEIRS"), *ours = getenv("WS_ST_OURS");
	char from[512], to[512];
	for (int i = 0; theirs != NULL && ours != NULL && i < 3; i++) {
		snprintf(from, sizeof(from), "%s/%d.safetensors", theirs, i);
		snprintf(to, sizeof(to), "%s/%d.safetensors", ours, i);
		copy_theirs(from, to);
	}
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("checkpoint");
	TCase *quick = tcase_create("quick");
	tcase_add_checked_fixture(quick, make_folder, remove_folder);
	tcase_set_timeout(quick, 60);
	tcase_add_test(quick, what_is_accepted_has_the_right_places);
	tcase_add_loop_test(quick, a_folder_opens_with_and_without_an_index, 0, 3);
	tcase_add_test(quick, an_index_leaves_out_files_it_does_not_name);
	tcase_add_loop_test(quick, a_bad_index_is_refused, 0, (int)ARRAY_SIZE(bad_indexes));
	tcase_add_test(quick, a_folder_without_index_is_as_strict);
	tcase_add_test(quick, links_stay_in_the_folder_or_in_the_cache);
	tcase_add_test(quick, a_path_that_is_no_file_is_an_error);
	tcase_add_loop_test(quick, short_and_interrupted_reads_go_on, 0, 2);
	tcase_add_test(quick, a_failed_read_names_file_and_offset);
	tcase_add_loop_test(quick, a_file_that_changed_is_stale, 0, 3);
	tcase_add_test(quick, a_replaced_file_stays_readable);
	tcase_add_test(quick, what_is_written_is_read_back);
	tcase_add_test(quick, a_writer_without_end_leaves_nothing);
	tcase_add_loop_test(quick, what_readers_would_refuse_is_not_written, 0, 6);
	tcase_add_test(quick, a_full_disk_is_a_sentence);
	tcase_add_test(quick, files_of_the_reference_are_copied);
	suite_add_tcase(all, quick);
	return all;
}
