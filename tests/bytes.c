/* SPDX-License-Identifier: Apache-2.0 */
/* The checked cursors, and whole small files. */
#include "lib/base/base.h"
#include "lib/base/safetensors.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/folder.h"
#include "tests/test.h"

START_TEST(what_is_written_is_read_back)
{
	struct writer out = WRITER_INIT(10000);
	char text[8];
	write_u8(&out, 0xfe);
	write_u16(&out, 0xfedc);
	write_u32(&out, 0xfedcba98);
	write_u64(&out, 0xfedcba9876543210);
	write_text(&out, "weights");
	write_bytes(&out, "abc", 3);
	write_u32(&out, 2);
	write_bytes(&out, "xxyy", 4);
	ck_assert(!out.failed);
	/* Little-endian, whatever the host. */
	ck_assert_mem_eq(out.bytes, "\xfe\xdc\xfe\x98\xba\xdc\xfe\x10\x32\x54\x76", 11);
	struct reader in = reader_make(out.bytes, out.count);
	ck_assert_uint_eq(reader_left(&in), out.count);
	ck_assert_uint_eq(read_u8(&in), 0xfe);
	ck_assert_uint_eq(read_u16(&in), 0xfedc);
	ck_assert_uint_eq(read_u32(&in), 0xfedcba98);
	ck_assert_uint_eq(read_u64(&in), 0xfedcba9876543210);
	read_text(&in, text, sizeof(text));
	ck_assert_str_eq(text, "weights");
	ck_assert_mem_eq(read_bytes(&in, 3), "abc", 3);
	ck_assert(!reader_done(&in));
	ck_assert_uint_eq(read_count(&in, 2, 2), 2);
	ck_assert_mem_eq(read_bytes(&in, 4), "xxyy", 4);
	ck_assert(reader_done(&in));
	writer_release(&out);
	writer_release(&out);
}
END_TEST

START_TEST(a_reader_past_its_end_stays_failed_and_yields_zeroes)
{
	const uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7};
	struct reader in = reader_make(bytes, sizeof(bytes));
	char text[4] = "xyz";
	ck_assert_uint_eq(read_u64(&in), 0);
	ck_assert(in.failed);
	ck_assert_uint_eq(reader_left(&in), 0);
	ck_assert_uint_eq(read_u8(&in), 0);
	ck_assert_uint_eq(read_u16(&in), 0);
	ck_assert_uint_eq(read_u32(&in), 0);
	ck_assert_uint_eq(read_count(&in, 1, 100), 0);
	ck_assert_ptr_null(read_bytes(&in, 0));
	read_text(&in, text, sizeof(text));
	ck_assert_str_eq(text, "");
	ck_assert(!reader_done(&in));
}
END_TEST

START_TEST(a_huge_count_cannot_wrap)
{
	const uint8_t bytes[] = {1, 2, 3};
	struct reader in = reader_make(bytes, sizeof(bytes));
	ck_assert_ptr_null(read_bytes(&in, SIZE_MAX));
	in = reader_make(bytes, sizeof(bytes));
	ck_assert_ptr_null(read_bytes(&in, 4));
	in = reader_make(NULL, 0);
	ck_assert_ptr_nonnull(read_bytes(&in, 0));
	ck_assert(reader_done(&in));
	ck_assert_uint_eq(read_u8(&in), 0);
	ck_assert(in.failed);
}
END_TEST

START_TEST(counts_are_believed_only_if_all_can_be_there)
{
	static const struct {
		uint32_t count, left;
		size_t each;
		uint32_t max;
		bool good;
	} cases[] = {
		{3, 12, 4, 10, true},
		{3, 11, 4, 10, false},
		{11, 100, 1, 10, false},
		{0, 0, 8, 10, true},
		{UINT32_MAX, 100, 8, UINT32_MAX, false},
		{UINT32_MAX, 100, 1u << 20, UINT32_MAX, false},
		{5, 0, 0, 10, true},
	};
	uint8_t bytes[256] = {0};
	struct writer out = writer_fixed(bytes, sizeof(bytes));
	write_u32(&out, cases[_i].count);
	struct reader in = reader_make(bytes, 4 + cases[_i].left);
	uint32_t count = read_count(&in, cases[_i].each, cases[_i].max);
	ck_assert(in.failed != cases[_i].good);
	ck_assert_uint_eq(count, cases[_i].good ? cases[_i].count : 0);
}
END_TEST

START_TEST(a_text_that_does_not_fit_fails)
{
	char text[4];
	struct reader in = reader_make("\3\0\0\0abc", 7);
	read_text(&in, text, sizeof(text));
	ck_assert_str_eq(text, "abc");
	ck_assert(reader_done(&in));
	in = reader_make("\4\0\0\0abcd", 8);
	read_text(&in, text, sizeof(text));
	ck_assert(in.failed && text[0] == '\0');
	in = reader_make("\3\0\0\0a\0c", 7);
	read_text(&in, text, sizeof(text));
	ck_assert(in.failed && text[0] == '\0');
	in = reader_make("\3\0\0\0ab", 6);
	read_text(&in, text, sizeof(text));
	ck_assert(in.failed && text[0] == '\0');
}
END_TEST

START_TEST(a_fixed_writer_never_passes_its_room)
{
	uint8_t bytes[10];
	memset(bytes, 0xee, sizeof(bytes));
	struct writer out = writer_fixed(bytes, 6);
	write_u32(&out, 1);
	write_u32(&out, 2);
	ck_assert(out.failed && out.count == 4);
	write_u8(&out, 3); /* would fit, but what follows a hole means nothing */
	ck_assert_uint_eq(out.count, 4);
	ck_assert(bytes[4] == 0xee && bytes[6] == 0xee);
	writer_reset(&out);
	write_format(&out, "%s", "123456");
	ck_assert(!out.failed && out.count == 6 && bytes[6] == 0xee);
	write_format(&out, "7");
	ck_assert(out.failed);
	writer_release(&out);
}
END_TEST

START_TEST(a_growing_writer_stops_at_its_limit)
{
	struct writer out = WRITER_INIT(1000);
	for (int i = 0; i < 200; i++)
		write_u64(&out, (uint64_t)i);
	ck_assert(out.failed && out.count == 1000 && out.room <= 1000);
	for (uint64_t i = 0; i < 125; i++)
		ck_assert_uint_eq(out.bytes[8 * i], i);
	uint8_t *kept = out.bytes;
	writer_reset(&out);
	write_format(&out, "%0999d", 7);
	ck_assert(!out.failed && out.count == 999 && out.bytes == kept);
	writer_release(&out);
	ck_assert_uint_eq(mem_live_count(), 0);
	mem_fail_nth(0);
	write_u8(&out, 1);
	ck_assert(out.failed && out.count == 0);
	writer_release(&out);
}
END_TEST

START_TEST(a_long_format_is_written_whole)
{
	struct writer out = WRITER_INIT(100000);
	write_format(&out, "%0300d|%s", 7, "end");
	ck_assert_uint_eq(out.count, 304);
	ck_assert_mem_eq(out.bytes + 298, "07|end", 6);
	writer_release(&out);
}
END_TEST

START_TEST(a_file_is_written_whole_and_read_back)
{
	struct ws_error err = {0};
	void *bytes = NULL;
	size_t count = 0;
	struct stat stat_out;
	put_file("x.tmp", "left over", 9);
	ck_ok(file_write(in_folder("x"), "a\0b", 3, 0600, &err), err);
	ck_assert_int_eq(stat(in_folder("x"), &stat_out), 0);
	ck_assert_uint_eq(stat_out.st_mode & 0777, 0600);
	ck_assert_int_ne(access(in_folder("x.tmp"), F_OK), 0);
	ck_ok(file_read(in_folder("x"), 3, &bytes, &count, &err), err);
	ck_assert_uint_eq(count, 3);
	ck_assert_mem_eq(bytes, "a\0b\0", 4);
	mem_free(bytes);
	ck_ok(file_write(in_folder("x"), "", 0, 0600, &err), err);
	ck_ok(file_read(in_folder("x"), 0, &bytes, &count, &err), err);
	ck_assert_uint_eq(count, 0);
	mem_free(bytes);
}
END_TEST

START_TEST(what_is_no_file_or_too_large_is_a_sentence)
{
	struct ws_error err = {0};
	void *bytes = NULL;
	size_t count = 0;
	put_file("x", "12345", 5);
	ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
	ck_fails(file_read(in_folder("x"), 4, &bytes, &count, &err), -ENOSPC, err);
	ck_fails(file_read(in_folder("fifo"), 4, &bytes, &count, &err), -EINVAL, err);
	ck_fails(file_read(folder, 4, &bytes, &count, &err), -EINVAL, err);
	ck_fails(file_read(in_folder("none"), 4, &bytes, &count, &err), -ENOENT, err);
	ck_assert_ptr_nonnull(strstr(err.text, "/none'"));
	ck_fails(file_read(in_folder("x/y"), 4, &bytes, &count, &err), -ENOENT, err);
	/* The kernel says 0 bytes for it, and there are more. */
	ck_fails(file_read("/proc/self/maps", 100, &bytes, &count, &err), -ENOSPC, err);
	ck_assert_ptr_null(bytes);
	ck_ok(file_read("/proc/self/maps", 10000000, &bytes, &count, &err), err);
	ck_assert_uint_gt(count, 1000);
	mem_free(bytes);
	ck_fails(file_write(in_folder("none/x"), "", 0, 0600, &err), -ENOENT, err);
	ck_fails(file_write("/proc/x", "", 0, 0600, &err), -ENOENT, err);
	ck_fails(file_write(folder, "", 0, 0600, &err), -EINVAL, err);
	ck_fails(file_write(folder, "", 0, 0644, &err), -EINVAL, err);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

/* As root, -o /dev/null must not put a file in the place of the device. */
START_TEST(a_device_a_pipe_or_a_link_stays_what_it_is)
{
	struct ws_error err = {0};
	struct st_writer writer;
	struct stat stat_out;
	char name[16];
	void *bytes = NULL;
	size_t count = 0;

	ck_assert_int_eq(symlink("/dev/full", in_folder("full")), 0);
	ck_fails(file_write(in_folder("full"), "abc", 3, 0644, &err), -ENOSPC, err);
	ck_fails(file_write(in_folder("full"), "abc", 3, 0600, &err), -EINVAL, err);
	ck_fails(st_writer_begin(&writer, in_folder("full"), NULL, 0, &err), -EINVAL, err);
	ck_assert_int_eq(lstat(in_folder("full"), &stat_out), 0);
	ck_assert_int_ne(S_ISLNK(stat_out.st_mode), 0);

	put_file("to", "longer", 6);
	ck_assert_int_eq(symlink("to", in_folder("link")), 0);
	ck_assert(file_link_name(in_folder("full"), name, sizeof(name)));
	ck_assert_str_eq(name, "full");
	ck_assert(file_link_name(in_folder("link"), name, sizeof(name)));
	ck_assert_str_eq(name, "to");
	ck_assert(!file_link_name(in_folder("to"), name, sizeof(name)));
	ck_ok(file_write(in_folder("link"), "abc", 3, 0644, &err), err);
	ck_ok(file_read(in_folder("to"), 9, &bytes, &count, &err), err);
	ck_assert_uint_eq(count, 3);
	mem_free(bytes);

	ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0);
	ck_assert_int_ne(file_write(in_folder("pipe"), "abc", 3, 0644, &err), 0);
	ck_assert_int_eq(lstat(in_folder("pipe"), &stat_out), 0);
	ck_assert_int_ne(S_ISFIFO(stat_out.st_mode), 0);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("bytes");
	TCase *tcase = tcase_create("bytes");
	tcase_set_timeout(tcase, 60);
	tcase_add_checked_fixture(tcase, make_folder, remove_folder);
	tcase_add_test(tcase, what_is_written_is_read_back);
	tcase_add_test(tcase, a_reader_past_its_end_stays_failed_and_yields_zeroes);
	tcase_add_test(tcase, a_huge_count_cannot_wrap);
	tcase_add_loop_test(tcase, counts_are_believed_only_if_all_can_be_there, 0, 7);
	tcase_add_test(tcase, a_text_that_does_not_fit_fails);
	tcase_add_test(tcase, a_fixed_writer_never_passes_its_room);
	tcase_add_test(tcase, a_growing_writer_stops_at_its_limit);
	tcase_add_test(tcase, a_long_format_is_written_whole);
	tcase_add_test(tcase, a_file_is_written_whole_and_read_back);
	tcase_add_test(tcase, what_is_no_file_or_too_large_is_a_sentence);
	tcase_add_test(tcase, a_device_a_pipe_or_a_link_stays_what_it_is);
	suite_add_tcase(all, tcase);
	return all;
}
