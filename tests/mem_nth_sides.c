/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls above lib/base with their nth allocation failing, for each n until none
 * fails: -ENOMEM and a sentence, nothing leaked.  The calls that meet others (start, push, step)
 * do so with real members in a process of their own, where memory isn't short; these take each
 * n only where WS_EVERY_NTH is set (make ci), else every fourth.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/hub/hub.h"
#include "lib/link/link.h"
#include "planner/planner.h"
#include "planner/ws_manifest.h"
#include "planner/ws_plan.h"
#include "rollout_side/ws_rollout.h"
#include "tests/folder.h"
#include "tests/post_text.h"
#include "tests/test.h"
#include "trainer_side/ws_trainer.h"

#define NTH_MAX	      20000 /* no step below allocates more often */
#define PARAMS_MAX    256
#define START_MS      20000
#define PUSH_MS	      20000
#define STAGING_BYTES (1u << 20)
#define ENDPOINT_MAX  64

static struct writer trainer_text, rollout_text;
static struct run_key key;

/* One side's memory: all params of the only rank. */
struct params {
	void *memory[PARAMS_MAX];
	uint32_t count;
};

/* ---------------------------------------------------------------- what all steps are given */

static void text_make(const struct model *model, const struct manifest_options *options,
		      struct writer *text)
{
	struct ws_error err = {0};

	*text = (struct writer)WRITER_INIT(1u << 20);
	ck_ok(manifest_make(model, options, text, NULL, &err), err);
}

static void given_make(void)
{
	const struct manifest_options trainer = {
		.side = SIDE_TRAINER, .layout = "fsdp2", .mesh = "dp=1"};
	const struct manifest_options rollout = {
		.side = SIDE_ROLLOUT, .layout = "vllm", .mesh = "tp=1", .quant = "fp8-block"};
	struct model *whole, *model;
	struct ws_error err = {0};

	make_folder();
	ck_ok(run_key_make(&key, &err), err);
	ck_ok(run_key_write(&key, in_folder("key"), &err), err);
	ck_ok(model_builtin(&whole, "llama-3-70b", &err), err);
	ck_ok(model_scale(&model, whole, 1, 64000, &err), err);
	text_make(model, &trainer, &trainer_text);
	text_make(model, &rollout, &rollout_text);
	text_post(&rollout_text, NULL,
		  "[{\"post\":\"first\",\"each\":{\"L\":\"all\"},\"mesh\":\"dense\","
		  "\"from\":[\"model.layers.{L}.mlp.down_proj.weight\"],"
		  "\"makes\":[{\"p\":\"first.{L}\",\"dtype\":\"u8\",\"shape\":[1]}]}]");
	model_free(model);
	model_free(whole);
}

static void given_release(void)
{
	writer_release(&trainer_text);
	writer_release(&rollout_text);
	remove_folder();
}

static const char *const loopback[] = {"127.0.0.1"};

static struct ws_trainer_options trainer_options(const char *hub, bool hub_here)
{
	return (struct ws_trainer_options){
		.hub = hub,
		.hub_here = hub_here,
		.key_file = in_folder("key"),
		.world = 1,
		.manifest = (const char *)trainer_text.bytes,
		.manifest_bytes = trainer_text.count,
		.nics = loopback,
		.nic_count = 1,
		.staging_bytes = STAGING_BYTES,
		.op_bytes = 64u << 10,
		.recv_staging_bytes = STAGING_BYTES,
		.replica_ranks = 1,
		.min_replicas = 1,
	};
}

static struct ws_rollout_options rollout_options(const char *hub)
{
	return (struct ws_rollout_options){
		.hub = hub,
		.key_file = in_folder("key"),
		.world = 1,
		.manifest = (const char *)rollout_text.bytes,
		.manifest_bytes = rollout_text.count,
		.nics = loopback,
		.nic_count = 1,
	};
}

/* The caller's own memory doesn't come through our door.  Here and wherever the other process
 * comes, plain asserts: Check's are messages to its parent. */
static struct ws_memory param_memory(struct params *params, uint64_t bytes)
{
	void *memory = calloc(1, bytes);

	assert(memory != NULL && params->count < PARAMS_MAX);
	params->memory[params->count++] = memory;
	return (struct ws_memory){.base = memory, .bytes = bytes};
}

static void params_free(struct params *params)
{
	while (params->count > 0)
		free(params->memory[--params->count]);
}

static int trainer_add(struct ws_trainer *trainer, struct params *params, struct ws_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < ws_trainer_param_count(trainer); i++) {
		const char *name;
		enum ws_dtype dtype;
		uint64_t bytes;
		rc = ws_trainer_param(trainer, i, &name, &dtype, &bytes);
		assert(rc == 0);
		struct ws_memory memory = param_memory(params, bytes);
		rc = ws_trainer_add(trainer, name, &memory, err);
	}
	return rc;
}

static int first_byte(void *arg, const struct ws_post *post, struct ws_error *err)
{
	(void)arg, (void)err;
	memcpy(post->made[0].memory.base, post->params[0].memory.base, 1);
	return 0;
}

static int rollout_add(struct ws_rollout *rollout, struct params *params, struct ws_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < ws_rollout_param_count(rollout); i++) {
		const char *name;
		enum ws_dtype dtype;
		uint64_t bytes;
		rc = ws_rollout_param(rollout, i, &name, &dtype, &bytes);
		assert(rc == 0);
		struct ws_memory memory = param_memory(params, bytes);
		rc = ws_rollout_add(rollout, name, &memory, err);
	}
	if (rc == 0)
		rc = ws_rollout_on_post(rollout, "first", first_byte, NULL, err);
	return rc;
}

/* ---------------------------------------------------------------- calls that meet nobody */

static int step_manifest_check(struct ws_error *err)
{
	struct ws_manifest *manifest = NULL;
	int rc = ws_manifest_check(&manifest, (const char *)rollout_text.bytes, rollout_text.count,
				   err);

	ck_assert((rc == 0) == (manifest != NULL));
	if (rc == 0)
		ck_assert_uint_eq(ws_manifest_finding_count(manifest), 0);
	if (rc == 0)
		rc = ws_manifest_rank(manifest, 0, NULL, NULL, err);
	ws_manifest_free(manifest);
	return rc;
}

/* A finding that there is no memory to keep must not pass for a good manifest. */
static int step_manifest_check_bad(struct ws_error *err)
{
	static const char bad[] = "{\"format\":1,\"side\":\"sideways\",\"nonsense\":[1,2,3]}";
	struct ws_manifest *manifest = NULL;
	int rc = ws_manifest_check(&manifest, bad, sizeof(bad) - 1, err);

	if (rc == 0)
		ck_assert_uint_gt(ws_manifest_finding_count(manifest), 0);
	ws_manifest_free(manifest);
	return rc;
}

static int step_plan_check(struct ws_error *err)
{
	struct ws_plan *plan = NULL;
	int rc = ws_plan_check(&plan, (const char *)trainer_text.bytes, trainer_text.count,
			       (const char *)rollout_text.bytes, rollout_text.count, 2, err);

	ck_assert((rc == 0) == (plan != NULL));
	if (rc == 0) {
		struct ws_plan_totals totals;
		ws_plan_totals(plan, &totals);
		ck_assert_uint_eq(ws_plan_finding_count(plan), 0);
		ck_assert_uint_gt(totals.bytes, 0);
	}
	ws_plan_free(plan);
	return rc;
}

static int step_trainer(struct ws_error *err)
{
	const struct ws_trainer_options options = trainer_options("tcp://127.0.0.1:9", false);
	struct ws_trainer *trainer = NULL;
	struct params params = {0};
	int rc = ws_trainer_open(&trainer, &options, err);

	ck_assert((rc == 0) == (trainer != NULL));
	if (rc == 0)
		rc = trainer_add(trainer, &params, err);
	ws_trainer_close(trainer);
	params_free(&params);
	return rc;
}

static int step_rollout(struct ws_error *err)
{
	const struct ws_rollout_options options = rollout_options("tcp://127.0.0.1:9");
	struct ws_rollout *rollout = NULL;
	struct params params = {0};
	int rc = ws_rollout_open(&rollout, &options, NULL, NULL, err);

	ck_assert((rc == 0) == (rollout != NULL));
	if (rc == 0)
		rc = rollout_add(rollout, &params, err);
	ws_rollout_close(rollout);
	params_free(&params);
	return rc;
}

static const struct {
	int (*run)(struct ws_error *err);
	uint32_t least; /* allocations that it surely makes */
} steps[] = {
	{step_manifest_check, 100}, {step_manifest_check_bad, 10}, {step_plan_check, 200},
	{step_trainer, 100},	    {step_rollout, 100},
};

START_TEST(a_call_whose_nth_allocation_fails_says_so)
{
	struct ws_error err = {0};
	uint64_t live = mem_live_count();
	int64_t n = 0;

	json_use_mem(true);
	for (; n < NTH_MAX; n++) {
		err = (struct ws_error){0};
		mem_fail_nth(n);
		int rc = steps[_i].run(&err);
		mem_fail_nth(-1);
		ck_assert_msg(mem_live_count() == live, "n %lld: %lld more than before",
			      (long long)n, (long long)(mem_live_count() - live));
		if (rc == 0)
			break;
		ck_assert_msg(rc == -ENOMEM && err.code == rc, "n %lld: %d: %s", (long long)n, rc,
			      err.text);
		ck_assert_uint_gt(strlen(err.text), 10);
	}
	ck_assert_int_lt(n, NTH_MAX);
	ck_assert_int_ge(n, steps[_i].least);
}
END_TEST

/* ---------------------------------------------------------------- calls that meet others */

/* The others, in a process that ends when this one does.  The endpoint goes to them if the hub is
 * the step's own, else it comes from them. */
struct others {
	pid_t pid;
	int to, from;
};

static void say(int fd, const char *endpoint)
{
	char text[ENDPOINT_MAX] = "";

	snprintf(text, sizeof(text), "%s", endpoint);
	ssize_t written = write(fd, text, sizeof(text));
	assert(written == sizeof(text));
}

static void hear(int fd, char *endpoint)
{
	if (read(fd, endpoint, ENDPOINT_MAX) != ENDPOINT_MAX)
		_exit(0); /* the step gave up before it had a hub */
}

/* Until killed; one whose hub had no memory for it tries again. */
static void be_a_rollout(const char *endpoint)
{
	const struct ws_rollout_options options = rollout_options(endpoint);

	for (;;) {
		struct ws_rollout *rollout = NULL;
		struct params params = {0};
		struct ws_error err = {0};
		int rc = ws_rollout_open(&rollout, &options, NULL, NULL, &err);

		if (rc == 0)
			rc = rollout_add(rollout, &params, &err);
		if (rc == 0)
			rc = ws_rollout_start(rollout, START_MS, &err);
		while (rc == 0 || rc == -ECONNRESET) {
			struct pollfd fd = {.fd = ws_rollout_fd(rollout), .events = POLLIN};
			(void)poll(&fd, 1, 20);
			rc = ws_rollout_step(rollout, &err);
		}
		ws_rollout_close(rollout);
		params_free(&params);
	}
}

static void be_a_hub(int to)
{
	struct rules rules = RULES_DEFAULT;
	struct writer text = WRITER_INIT(4096);
	struct hub *hub;
	struct ws_error err = {0};

	rules.op_bytes = 64u << 10;
	rules.staging_bytes = rules.recv_staging_bytes = STAGING_BYTES;
	rules_encode(&rules, &text);
	const struct hub_options options = {.endpoint = "tcp://127.0.0.1:*",
					    .key = &key,
					    .trainer_count = 1,
					    .replica_ranks = 1,
					    .min_replicas = 1,
					    .rules = text.bytes,
					    .rules_bytes = (uint32_t)text.count};
	if (hub_open(&hub, &options, &err) != 0)
		_exit(1);
	say(to, hub_endpoint(hub));
	be_a_rollout(hub_endpoint(hub));
}

/* Until killed, or long enough.  A run that the step's lack of memory ended is ended for it too, by
 * close. */
static void be_a_trainer(int to)
{
	const struct ws_trainer_options options = trainer_options("tcp://127.0.0.1:*", true);
	struct ws_trainer *trainer = NULL;
	struct params params = {0};
	struct ws_error err = {0};
	uint64_t version = 0, end = deadline_in_ms(2 * PUSH_MS);

	int rc = ws_trainer_open(&trainer, &options, &err);
	if (rc == 0)
		rc = trainer_add(trainer, &params, &err);
	if (rc != 0)
		_exit(1);
	say(to, ws_trainer_hub(trainer));
	rc = ws_trainer_start(trainer, START_MS, &err);
	while (rc == 0) {
		(void)ws_trainer_push(trainer, ++version, PUSH_MS, NULL, &err);
		rc = clock_ns() > end ? -ETIMEDOUT : 0;
		sleep_ns(1000000);
	}
	ws_trainer_close(trainer);
	pause();
}

/* ROLLOUT_AGAIN: describes itself again; only then memory is short. */
enum subject { TRAINER, ROLLOUT, TRAINER_WITH_HUB, ROLLOUT_AGAIN, SUBJECT_COUNT };

static struct others others_start(enum subject subject)
{
	int to[2], from[2];
	char endpoint[ENDPOINT_MAX];

	ck_assert(pipe(to) == 0 && pipe(from) == 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(to[1]);
		close(from[0]);
		switch (subject) {
		case TRAINER:
			be_a_hub(from[1]);
			break;
		case ROLLOUT:
		case ROLLOUT_AGAIN:
			be_a_trainer(from[1]);
			break;
		case TRAINER_WITH_HUB:
			hear(to[0], endpoint);
			be_a_rollout(endpoint);
			break;
		case SUBJECT_COUNT:
			break;
		}
		_exit(1);
	}
	close(to[0]);
	close(from[1]);
	return (struct others){.pid = pid, .to = to[1], .from = from[0]};
}

static void others_stop(struct others *others)
{
	close(others->to);
	close(others->from);
	kill(others->pid, SIGKILL);
	ck_assert_int_eq(waitpid(others->pid, NULL, 0), others->pid);
}

static int run_trainer(struct others *others, bool hub_here, struct ws_error *err)
{
	char endpoint[ENDPOINT_MAX] = "tcp://127.0.0.1:*";
	struct ws_trainer *trainer = NULL;
	struct params params = {0};

	if (!hub_here)
		ck_assert_int_eq(read(others->from, endpoint, ENDPOINT_MAX), ENDPOINT_MAX);
	const struct ws_trainer_options options = trainer_options(endpoint, hub_here);
	int rc = ws_trainer_open(&trainer, &options, err);
	if (rc == 0)
		rc = trainer_add(trainer, &params, err);
	if (rc == 0 && hub_here)
		say(others->to, ws_trainer_hub(trainer));
	if (rc == 0)
		rc = ws_trainer_start(trainer, START_MS, err);
	if (rc == 0)
		rc = ws_trainer_push(trainer, 1, PUSH_MS, NULL, err);
	ws_trainer_close(trainer);
	params_free(&params);
	return rc;
}

static uint64_t allocations_before; /* memory became short */

static void memory_shorten(int64_t n)
{
	allocations_before = mem_alloc_count();
	mem_fail_nth(n);
}

/* Until some version is live. */
static int rollout_live(struct ws_rollout *rollout, struct ws_error *err)
{
	uint64_t end = deadline_in_ms(PUSH_MS);
	int rc = 0;

	while (rc == 0 && ws_rollout_version(rollout) == 0) {
		struct pollfd fd = {.fd = ws_rollout_fd(rollout), .events = POLLIN};
		(void)poll(&fd, 1, 20);
		rc = ws_rollout_step(rollout, err);
		if (rc == 0 && clock_ns() > end)
			rc = ws_fail(err, -ETIMEDOUT, "no version went live");
	}
	return rc;
}

/* Goes on stepping while an update is under way. */
static int rollout_describe(struct ws_rollout *rollout, int64_t n, struct ws_error *err)
{
	int rc = 0;

	memory_shorten(n);
	do {
		rc = ws_rollout_describe(rollout, (const char *)rollout_text.bytes,
					 rollout_text.count, PUSH_MS, err);
	} while (rc == -EBUSY && ws_rollout_step(rollout, err) == 0);
	if (rc == 0)
		rc = ws_rollout_describe_end(rollout, err);
	return rc == 0 ? rollout_live(rollout, err) : rc;
}

/* n: the allocation that fails, from the time on when it describes itself again; -1: it doesn't. */
static int run_rollout(struct others *others, int64_t n, struct ws_error *err)
{
	char endpoint[ENDPOINT_MAX];
	struct ws_rollout *rollout = NULL;
	struct params params = {0};

	ck_assert_int_eq(read(others->from, endpoint, ENDPOINT_MAX), ENDPOINT_MAX);
	const struct ws_rollout_options options = rollout_options(endpoint);
	int rc = ws_rollout_open(&rollout, &options, NULL, NULL, err);
	if (rc == 0)
		rc = rollout_add(rollout, &params, err);
	if (rc == 0)
		rc = ws_rollout_start(rollout, START_MS, err);
	if (rc == 0)
		rc = rollout_live(rollout, err);
	if (rc == 0 && n >= 0)
		rc = rollout_describe(rollout, n, err);
	ws_rollout_close(rollout);
	params_free(&params);
	return rc;
}

static int run_subject(enum subject subject, struct others *others, int64_t n, struct ws_error *err)
{
	switch (subject) {
	case TRAINER:
	case TRAINER_WITH_HUB:
		memory_shorten(n);
		return run_trainer(others, subject == TRAINER_WITH_HUB, err);
	case ROLLOUT:
		memory_shorten(n);
		return run_rollout(others, -1, err);
	case ROLLOUT_AGAIN:
		return run_rollout(others, n, err);
	case SUBJECT_COUNT:
		break;
	}
	return -EINVAL;
}

/* Frames that couldn't be made for want of memory are made again, so a start may succeed
 * although an allocation failed; what it may not do is end by anything else than -ENOMEM. */
START_TEST(a_start_and_a_version_whose_nth_allocation_fails_end_by_a_sentence)
{
	enum subject subject = (enum subject)_i;
	uint64_t live = mem_live_count();
	int64_t step = getenv("WS_EVERY_NTH") != NULL ? 1 : subject == ROLLOUT_AGAIN ? 16 : 4;
	bool fired = true;
	uint32_t failed = 0;
	int64_t n = 0;

	for (; fired && n < NTH_MAX; n += step) {
		struct ws_error err = {0};
		struct others others = others_start(subject);
		int rc = run_subject(subject, &others, n, &err);
		mem_fail_nth(-1);
		fired = mem_alloc_count() - allocations_before > (uint64_t)n;
		others_stop(&others);
		ck_assert_msg(rc == 0 || (rc == -ENOMEM && err.code == rc), "n %lld: %d: %s",
			      (long long)n, rc, err.text);
		ck_assert_msg(mem_live_count() == live, "n %lld: %lld more than before: %s",
			      (long long)n, (long long)(mem_live_count() - live), err.text);
		failed += rc != 0;
	}
	ck_assert_int_lt(n, NTH_MAX);
	ck_assert_int_gt(failed * step, 100);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("mem_nth_sides");
	TCase *alone = tcase_create("alone"), *together = tcase_create("together");

	tcase_set_timeout(alone, 120);
	tcase_add_checked_fixture(alone, given_make, given_release);
	tcase_add_loop_test(alone, a_call_whose_nth_allocation_fails_says_so, 0,
			    (int)ARRAY_SIZE(steps));
	suite_add_tcase(all, alone);
	tcase_set_timeout(together, 280);
	tcase_add_checked_fixture(together, given_make, given_release);
	tcase_add_loop_test(together,
			    a_start_and_a_version_whose_nth_allocation_fails_end_by_a_sentence, 0,
			    SUBJECT_COUNT);
	suite_add_tcase(all, together);
	return all;
}
