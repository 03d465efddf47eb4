/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors reader against its corpus, and against headers made to take memory.  With
 * WS_ST_CORPUS=DIR the corpus is also written there, with the verdicts, for
 * tests/safetensors_reference.sh and as seeds of the fuzzers.
 */
#include "tests/st_corpus.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/folder.h"

START_TEST(each_case_of_the_corpus_gets_its_verdict)
{
	const struct verdict_case *each = &cases[_i];
	struct writer out = WRITER_INIT(200u << 20);
	struct checkpoint checkpoint;
	struct ws_error err = {0};
	make_case(each, &out);
	put_file("case.safetensors", out.bytes, out.count);
	int rc = checkpoint_open(&checkpoint, in_folder("case.safetensors"), &err);
	ck_assert_msg(rc == each->code, "%s: %d, not %d: %s", each->name, rc, each->code, err.text);
	if (each->rule != NULL)
		ck_assert_msg(strstr(err.text, each->rule) != NULL, "%s: no '%s' in '%s'",
			      each->name, each->rule, err.text);
	checkpoint_close(&checkpoint);
	writer_release(&out);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(the_corpus_is_written_where_asked)
{
	const char *to = getenv("WS_ST_CORPUS");
	if (to == NULL)
		return;
	struct writer list = WRITER_INIT(1u << 20);
	struct ws_error err = {0};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char path[512];
		struct writer out = WRITER_INIT(200u << 20);
		make_case(&cases[i], &out);
		snprintf(path, sizeof(path), "%s/%03zu.safetensors", to, i);
		ck_ok(file_write(path, out.bytes, out.count, 0644, &err), err);
		writer_release(&out);
		write_format(&list, "%03zu %s %s %s\n", i,
			     cases[i].rule == NULL ? "accept" : "refuse",
			     cases[i].differs ? "differs" : "agrees", cases[i].name);
	}
	char path[512];
	snprintf(path, sizeof(path), "%s/verdicts.txt", to);
	ck_ok(file_write(path, list.bytes, list.count, 0644, &err), err);
	writer_release(&list);
}
END_TEST

/* ---------------------------------------------------------------- bounded memory */
/* Sanitizers and valgrind have memory of their own. */

static bool under_valgrind(void)
{
	const char *preload = getenv("LD_PRELOAD");
	return preload != NULL && strstr(preload, "vgpreload") != NULL;
}

static void bomb_most_tensors(struct writer *out)
{
	for (uint32_t i = 0; i < ST_TENSOR_COUNT_MAX; i++)
		write_format(out,
			     "%c\"%08x.model.layers.mlp.experts.down_proj.weight_scale_inv%047d\":"
			     "{\"dtype\":\"U8\",\"shape\":[1,0],\"data_offsets\":[0,0]}",
			     i == 0 ? '{' : ',', i * 2654435761u, i);
	write_format(out, "}");
}

static void bomb_one_tensor_more(struct writer *out)
{
	for (uint32_t i = 0; i <= ST_TENSOR_COUNT_MAX; i++)
		write_format(out,
			     "%c\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
			     i == 0 ? '{' : ',', i);
	write_format(out, "}");
}

static void bomb_nodes(struct writer *out)
{
	write_format(out, "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1");
	put_times(out, ",1", 49000000);
	write_format(out, "]}}");
}

static void bomb_name(struct writer *out)
{
	write_format(out, "{\"");
	put_times(out, "0123456789", 9999000);
	write_format(out, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
}

static void bomb_metadata(struct writer *out)
{
	write_format(out, "{\"__metadata__\":{\"\":\"\"");
	for (uint32_t i = 0; i < 1000000; i++)
		write_format(out, ",\"%x\":\"\"", i);
	write_format(out, "}}");
}

static void bomb_dtype(struct writer *out)
{
	write_format(out, "{\"a\":{\"dtype\":\"");
	put_times(out, "0123456789", 9999000);
	write_format(out, "\",\"shape\":[0],\"data_offsets\":[0,0]}}");
}

static const struct {
	void (*make)(struct writer *out);
	int code;
} bombs[] = {
	{bomb_most_tensors, 0}, {bomb_one_tensor_more, -ENOSPC}, {bomb_nodes, -ENOSPC},
	{bomb_name, 0},		{bomb_metadata, -ENOSPC},	 {bomb_dtype, -ENOSPC},
};

static void write_bomb(int number)
{
	struct writer header = WRITER_INIT(100000000);
	struct ws_error err = {0};
	uint8_t prefix[8];
	bombs[number].make(&header);
	ck_assert(!header.failed);
	struct writer out = writer_fixed(prefix, sizeof(prefix));
	write_u64(&out, header.count);
	int fd = open(in_folder("bomb.safetensors"), O_WRONLY | O_CREAT, 0644);
	ck_ok(file_write_all(fd, "bomb", prefix, sizeof(prefix), &err), err);
	ck_ok(file_write_all(fd, "bomb", header.bytes, header.count, &err), err);
	if (bombs[number].make == bomb_nodes)
		ck_ok(file_write_all(fd, "bomb", "x", 1, &err), err);
	close(fd);
	writer_release(&header);
}

static uint64_t resident_bytes(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)usage.ru_maxrss * 1024;
}

/* Of this process: other work may run beside it. */
static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

START_TEST(a_hostile_header_takes_less_than_256_MB)
{
	struct checkpoint checkpoint;
	struct ws_error err = {0};
	if (under_valgrind())
		return;
	/* Another process makes it, so that its memory isn't counted here. */
	pid_t pid = fork();
	if (pid == 0) {
		write_bomb(_i);
		_exit(0);
	}
	int status = -1;
	ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
	uint64_t start = cpu_ns();
	int rc = checkpoint_open(&checkpoint, in_folder("bomb.safetensors"), &err);
	uint64_t ns = cpu_ns() - start;
	ck_assert_msg(rc == bombs[_i].code, "%d, not %d: %s", rc, bombs[_i].code, err.text);
	checkpoint_close(&checkpoint);
	ck_assert_uint_eq(mem_live_count(), 0);
	if (SANITIZED)
		return;
	ck_assert_uint_lt(resident_bytes(), 256000000);
	/* 1 s on the machine it was written on. */
	ck_assert_uint_lt(ns, 10000000000u);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("safetensors");
	TCase *quick = tcase_create("corpus"), *slow = tcase_create("bombs");
	tcase_add_checked_fixture(quick, make_folder, remove_folder);
	tcase_set_timeout(quick, 60);
	tcase_add_loop_test(quick, each_case_of_the_corpus_gets_its_verdict, 0,
			    (int)ARRAY_SIZE(cases));
	tcase_add_test(quick, the_corpus_is_written_where_asked);
	suite_add_tcase(all, quick);
	tcase_add_checked_fixture(slow, make_folder, remove_folder);
	tcase_set_timeout(slow, 120);
	tcase_add_loop_test(slow, a_hostile_header_takes_less_than_256_MB, 0,
			    (int)ARRAY_SIZE(bombs));
	suite_add_tcase(all, slow);
	return all;
}
