/* SPDX-License-Identifier: Apache-2.0 */
/* lib/link: the run's key file: its mode, what is refused, what a damaged one is. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/link/link.h"
#include "tests/test.h"

static struct run_key key;
static char folder[64], path[128];

static void folder_setup(void)
{
	struct ws_error err = {0};

	ck_ok(run_key_make(&key, &err), err);
	snprintf(folder, sizeof(folder), "/tmp/ws-link-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/key", folder);
}

static void folder_teardown(void)
{
	unlink(path);
	rmdir(folder);
}

START_TEST(a_key_file_reads_back_and_is_private)
{
	struct ws_error err = {0};
	struct run_key back;
	struct stat status;

	umask(0277); /* the mode doesn't depend on it */
	ck_ok(run_key_write(&key, path, &err), err);
	ck_assert_int_eq(stat(path, &status), 0);
	ck_assert_uint_eq(status.st_mode & 07777, 0600);
	ck_ok(run_key_read(&back, path, &err), err);
	ck_assert_str_eq(back.hub_public, key.hub_public);
	ck_assert_str_eq(back.hub_secret, key.hub_secret);
	ck_assert_str_eq(back.member_public, key.member_public);
	ck_assert_str_eq(back.member_secret, key.member_secret);
	ck_assert_str_eq(back.run_id, key.run_id);
	ck_fails(run_key_write(&key, path, &err), -EEXIST, err);
	run_key_wipe(&back);
	for (size_t i = 0; i < sizeof(back); i++)
		ck_assert_uint_eq(((uint8_t *)&back)[i], 0);
}
END_TEST

START_TEST(a_key_file_that_others_may_read_is_refused)
{
	static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0601};
	struct ws_error err = {0};
	struct run_key back;

	ck_ok(run_key_write(&key, path, &err), err);
	ck_assert_int_eq(chmod(path, modes[_i]), 0);
	ck_fails(run_key_read(&back, path, &err), -EACCES, err);
	ck_assert_ptr_nonnull(strstr(err.text, path));
	ck_assert_ptr_nonnull(strstr(err.text, "chmod 600"));
	ck_assert_int_eq(chmod(path, 0400), 0);
	ck_ok(run_key_read(&back, path, &err), err);
}
END_TEST

/* Any byte that isn't text, the last one missing, one too many. */
START_TEST(a_damaged_key_file_is_not_one)
{
	struct ws_error err = {0};
	struct run_key back;
	char text[600];

	ck_ok(run_key_write(&key, path, &err), err);
	FILE *file = fopen(path, "r+");
	size_t count = fread(text, 1, sizeof(text), file);
	ck_assert_uint_gt(count, 200);
	for (size_t i = 0; i < count + 2; i++) {
		char copy[600];
		size_t bytes = count;
		memcpy(copy, text, sizeof(copy));
		if (i < count)
			copy[i] = (char)(copy[i] ^ 0x80);
		else if (i == count)
			bytes--;
		else
			copy[bytes++] = '\n';
		rewind(file);
		ck_assert_int_eq(ftruncate(fileno(file), 0), 0);
		ck_assert_uint_eq(fwrite(copy, 1, bytes, file), bytes);
		fflush(file);
		ck_fails(run_key_read(&back, path, &err), -EBADMSG, err);
	}
	fclose(file);
}
END_TEST

START_TEST(keys_that_do_not_belong_together_are_a_damaged_file)
{
	struct ws_error err = {0};
	struct run_key back, other, mixed = key;

	ck_ok(run_key_make(&other, &err), err);
	memcpy(mixed.hub_public, other.hub_public, sizeof(mixed.hub_public));
	ck_ok(run_key_write(&mixed, path, &err), err);
	ck_fails(run_key_read(&back, path, &err), -EBADMSG, err);
	ck_fails(run_key_read(&back, folder, &err), -EBADMSG, err);
	ck_fails(run_key_read(&back, "/nonexistent/key", &err), -ENOENT, err);
	ck_fails(run_key_write(&key, "/nonexistent/key", &err), -ENOENT, err);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("link_keys");
	TCase *file = tcase_create("file");

	tcase_add_checked_fixture(file, folder_setup, folder_teardown);
	tcase_set_timeout(file, 60);
	tcase_add_test(file, a_key_file_reads_back_and_is_private);
	tcase_add_loop_test(file, a_key_file_that_others_may_read_is_refused, 0, 6);
	tcase_add_test(file, a_damaged_key_file_is_not_one);
	tcase_add_test(file, keys_that_do_not_belong_together_are_a_damaged_file);
	suite_add_tcase(suite, file);
	return suite;
}
