/* SPDX-License-Identifier: Apache-2.0 */
/* A meeting of ranks, each a thread: what one says all hear, round by round; and who is missing. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/meeting.h"
#include "lib/link/link.h"
#include "tests/even_clock.h"
#include "tests/test.h"

#define THREADS_MAX 8
#define ROUNDS	    20
#define IMPATIENCE  2000

struct rank {
	struct launch launch;
	const char *hub, *key_file;
	uint32_t rounds, ms;
	size_t bytes_max;
	int rc;
	uint32_t done; /* rounds that ended well and said what they must */
	struct ws_error err;
};

static char key_file[64], other_key[64], hub[64];

static void keys_make(void)
{
	struct run_key key;
	struct ws_error err;
	char *files[] = {key_file, other_key};
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(files[i], sizeof(key_file), "/tmp/weightsync-meeting-%d-%zu",
			 (int)getpid(), i);
		unlink(files[i]);
		ck_ok(run_key_make(&key, &err), err);
		ck_ok(run_key_write(&key, files[i], &err), err);
	}
	/* An address of this process alone, so that the port is free. */
	int pid = (int)getpid();
	snprintf(hub, sizeof(hub), "127.%d.%d.%d:20000", 64 + (pid >> 16), pid >> 8 & 255,
		 pid & 255);
}

static void keys_remove(void)
{
	unlink(key_file);
	unlink(other_key);
}

/* What a rank says in a round; its length differs by rank and round. */
static void speak(struct writer *out, uint32_t rank, uint32_t round, size_t bytes_max)
{
	size_t count = mix64(rank * 1000 + round) % (bytes_max + 1);
	writer_reset(out);
	for (size_t i = 0; i < count; i++)
		write_u8(out, (uint8_t)mix64(rank + round + i));
}

static bool is_said(struct reader *part, uint32_t rank, uint32_t round, size_t bytes_max)
{
	struct writer want = WRITER_INIT(1u << 24);
	speak(&want, rank, round, bytes_max);
	bool same = reader_left(part) == want.count &&
		    (want.count == 0 || memcmp(part->at, want.bytes, want.count) == 0);
	writer_release(&want);
	return same;
}

static void *rank_main(void *arg)
{
	struct rank *rank = arg;
	struct meeting *meeting = NULL;
	struct writer mine = WRITER_INIT(1u << 24);
	struct reader parts[MEETING_RANKS_MAX];

	rank->rc = meeting_open(&meeting, &rank->launch, rank->hub, rank->key_file,
				deadline_in_ms(rank->ms), &rank->err);
	for (uint32_t round = 0; rank->rc == 0 && round < rank->rounds; round++) {
		bool same = true;
		speak(&mine, rank->launch.rank, round, rank->bytes_max);
		rank->rc =
			meeting_share(meeting, &mine, parts, deadline_in_ms(rank->ms), &rank->err);
		for (uint32_t i = 0; rank->rc == 0 && i < rank->launch.world; i++)
			same &= is_said(&parts[i], i, round, rank->bytes_max);
		rank->done += rank->rc == 0 && same;
	}
	meeting_close(meeting);
	writer_release(&mine);
	return NULL;
}

/* Ranks first..count-1 of a world; those that aren't started are missing. */
static void meet(struct rank *ranks, uint32_t first, uint32_t count)
{
	pthread_t threads[THREADS_MAX];
	for (uint32_t i = first; i < count; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
	for (uint32_t i = first; i < count; i++)
		pthread_join(threads[i], NULL);
}

/* Their time is that of even_clock.h: a rank isn't given up because the machine ran the others
 * alone. */
static void ranks_make(struct rank *ranks, uint32_t world)
{
	even_clock_start(true);
	keys_make();
	for (uint32_t i = 0; i < world; i++)
		ranks[i] = (struct rank){.launch = {.rank = i, .world = world, .source = "test"},
					 .hub = hub,
					 .key_file = key_file,
					 .rounds = ROUNDS,
					 .ms = PATIENCE_MS,
					 .bytes_max = 300};
}

START_TEST(all_hear_what_each_says)
{
	static const uint32_t worlds[] = {2, 3, THREADS_MAX};
	struct rank ranks[THREADS_MAX];
	uint32_t world = worlds[_i];

	ranks_make(ranks, world);
	/* One of them says much more than a socket holds. */
	for (uint32_t i = 0; i < world; i++)
		ranks[i].bytes_max = _i == 1 ? 1u << 20 : 300;
	meet(ranks, 0, world);
	for (uint32_t i = 0; i < world; i++) {
		ck_ok(ranks[i].rc, ranks[i].err);
		ck_assert_uint_eq(ranks[i].done, ROUNDS);
	}
	keys_remove();
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(who_does_not_come_is_named_to_all)
{
	struct rank ranks[4];

	ranks_make(ranks, 4);
	ranks[0].ms = IMPATIENCE;
	meet(ranks, 0, 3);
	ck_assert_int_eq(ranks[0].rc, -ETIMEDOUT);
	ck_assert_ptr_nonnull(strstr(ranks[0].err.text, "of 4 ranks these haven't come: 3;"));
	for (uint32_t i = 1; i < 3; i++) {
		ck_assert_int_eq(ranks[i].rc, -ECANCELED);
		ck_assert_ptr_nonnull(strstr(ranks[i].err.text, "haven't come: 3;"));
	}
	keys_remove();
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(who_leaves_early_is_named_to_all)
{
	struct rank ranks[3];

	ranks_make(ranks, 3);
	ranks[0].ms = IMPATIENCE;
	ranks[2].rounds = 3;
	meet(ranks, 0, 3);
	ck_assert_uint_eq(ranks[0].done, 3);
	ck_assert_uint_eq(ranks[1].done, 3);
	ck_assert_int_eq(ranks[0].rc, -ETIMEDOUT);
	ck_assert_int_eq(ranks[1].rc, -ECANCELED);
	ck_assert_ptr_nonnull(strstr(ranks[0].err.text, "said nothing any more: 2;"));
	ck_assert_ptr_nonnull(strstr(ranks[1].err.text, "said nothing any more: 2;"));
	keys_remove();
}
END_TEST

START_TEST(a_member_alone_gives_up)
{
	struct rank ranks[2];

	ranks_make(ranks, 2);
	ranks[1].ms = 300;
	meet(ranks, 1, 2);
	ck_assert_int_eq(ranks[1].rc, -ETIMEDOUT);
	ck_assert_ptr_nonnull(strstr(ranks[1].err.text, "doesn't answer"));
	keys_remove();
}
END_TEST

START_TEST(another_key_is_said)
{
	struct rank ranks[2];

	ranks_make(ranks, 2);
	ranks[0].ms = 2 * IMPATIENCE;
	ranks[1].key_file = other_key;
	meet(ranks, 0, 2);
	ck_assert_int_eq(ranks[0].rc, -ETIMEDOUT);
	ck_assert_int_eq(ranks[1].rc, -EACCES);
	ck_assert_ptr_nonnull(strstr(ranks[1].err.text, "key"));
	keys_remove();
}
END_TEST

START_TEST(worlds_that_differ_are_said)
{
	struct rank ranks[2];

	ranks_make(ranks, 2);
	ranks[1].launch.world = 5;
	ranks[1].launch.rank = _i == 0 ? 1 : 4;
	meet(ranks, 0, 2);
	ck_assert_int_eq(ranks[0].rc, -EPROTO);
	ck_assert_ptr_nonnull(
		strstr(ranks[0].err.text, _i == 0 ? "rank 1 says that the world is 5, not 2"
						  : "somebody called rank 4 of 2 is here"));
	ck_assert_int_eq(ranks[1].rc, -ECANCELED);
	keys_remove();
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("meeting");
	TCase *tcase = tcase_create("meeting");

	tcase_set_timeout(tcase, 180);
	tcase_add_loop_test(tcase, all_hear_what_each_says, 0, 3);
	tcase_add_test(tcase, who_does_not_come_is_named_to_all);
	tcase_add_test(tcase, who_leaves_early_is_named_to_all);
	tcase_add_test(tcase, a_member_alone_gives_up);
	tcase_add_test(tcase, another_key_is_said);
	tcase_add_loop_test(tcase, worlds_that_differ_are_said, 0, 2);
	suite_add_tcase(suite, tcase);
	return suite;
}
