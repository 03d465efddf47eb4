/* SPDX-License-Identifier: Apache-2.0 */
/* The world of update.c and update_fault.c; see the header. */
#include "tests/update_world.h"
#include "trainer_side/trainer_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/link/link.h"
#include "tests/post_text.h"
#include "tests/even_clock.h"
#include "tests/test.h"

/* Engines look at every byte, which takes them long under a sanitizer. */
#define PHASES (SANITIZED ? 4u : 2u)

void world_fill(struct trainer *trainer, uint64_t version)
{
	bytes_fill(trainer->world->manifest[SIDE_TRAINER], trainer->rank, &trainer->params,
		   trainer->memory, version);
}

/* ---------------------------------------------------------------- an engine */

void loop_fault(struct engine_loop *loop, const char *format, ...)
{
	va_list args;

	if (loop->fault[0] != 0)
		return;
	int n = snprintf(loop->fault, sizeof(loop->fault), "rollout %u.%u: ", loop->replica,
			 loop->rank);
	va_start(args, format);
	vsnprintf(loop->fault + n, sizeof(loop->fault) - (size_t)n, format, args);
	va_end(args);
}

static void bytes_check(struct engine_loop *loop, uint64_t version)
{
	bytes_expect(loop, version);
	if (loop->twins != NULL)
		loop_gpu_read(loop);
	for (uint32_t i = 0; i < loop->params.count; i++) {
		const struct param *param = &loop->params.params[i];
		const uint8_t *got = loop->where[i].base;
		const uint8_t *want = loop->expected + param->arena_offset;
		loop->checked_bytes += param->bytes;
		if (loop_is_staged(loop, i) || memcmp(got, want, param->bytes) == 0)
			continue;
		uint64_t at = 0, bad = 0;
		for (uint64_t k = param->bytes; k-- > 0;)
			if (got[k] != want[k]) {
				at = k;
				bad++;
			}
		loop_fault(loop,
			   "version %llu: '%s' has %llu of %llu bytes wrong, the first at %llu",
			   (unsigned long long)version, param->name, (unsigned long long)bad,
			   (unsigned long long)param->bytes, (unsigned long long)at);
	}
	loop_posts_check(loop, version);
}

static int take(_Atomic uint32_t *times)
{
	if (atomic_load(times) == 0)
		return 0;
	atomic_fetch_sub(times, 1);
	return 1;
}

static int on_begin(void *arg, uint64_t version, struct ws_error *err)
{
	struct engine_loop *loop = arg;

	(void)version;
	if (take(&loop->fail_begin))
		return ws_fail(err, -EIO, "the engine is out of order");
	loop->begun++;
	return 0;
}

static int on_pause(void *arg, uint64_t version, struct ws_error *err)
{
	struct engine_loop *loop = arg;

	(void)version;
	(void)err;
	if (take(&loop->put_off))
		return -EAGAIN;
	loop->paused++;
	return 0;
}

static int on_reload(void *arg, uint64_t version, struct ws_error *err)
{
	struct engine_loop *loop = arg;

	if (take(&loop->fail_reload))
		return ws_fail(err, -EIO, "derived weights can't be made");
	if (ws_rollout_serving(loop->rollout))
		loop_fault(loop, "reloads version %llu while it serves",
			   (unsigned long long)version);
	bytes_check(loop, version);
	loop->reloaded++;
	return 0;
}

static int on_resume(void *arg, uint64_t version, struct ws_error *err)
{
	struct engine_loop *loop = arg;

	(void)err;
	bytes_check(loop, version);
	ws_rollout_say_verified(loop->rollout, version, loop->params.bytes, 0);
	atomic_store(&loop->resumed, version);
	return 0;
}

static void on_abort(void *arg, uint64_t version, bool serving_old, const struct ws_error *why)
{
	struct engine_loop *loop = arg;
	uint64_t live = ws_rollout_version(loop->rollout);

	(void)version;
	snprintf(loop->abort_text, sizeof(loop->abort_text), "%s", why->text);
	if (serving_old && live != 0)
		bytes_check(loop, live); /* old weights valid */
	atomic_fetch_add(&loop->aborted, 1);
}

static void *loop_main(void *arg)
{
	struct engine_loop *loop = arg;

	loop->rc = ws_rollout_start(loop->rollout, PATIENCE_MS, &loop->err);
	atomic_store(&loop->started, true);
	while (loop->rc == 0 && !atomic_load(&loop->quit)) {
		struct pollfd fd = {.fd = ws_rollout_fd(loop->rollout), .events = POLLIN};
		(void)poll(&fd, 1, 20);
		if (atomic_load(&loop->silent)) {
			sleep_ns(1000000); /* the fd stays readable */
			continue;
		}
		int rc = ws_rollout_step(loop->rollout, &loop->err);
		if (atomic_load(&loop->resumed) != atomic_load(&loop->last_version)) {
			ws_rollout_last(loop->rollout, &loop->last);
			atomic_store(&loop->last_version, loop->last.version);
		}
		if (rc == 0 && atomic_load(&loop->remaps) && loop->begun >= loop->remap_after &&
		    atomic_load(&loop->aborted) >= loop->remap_after_aborts)
			rc = loop_describe(loop);
		if (rc != 0 && rc != -ECONNRESET)
			loop->rc = rc;
	}
	return NULL;
}

const struct ws_rollout_report *loop_last(struct engine_loop *loop)
{
	for (uint64_t until_ns = deadline_in_ms(PATIENCE_MS);
	     atomic_load(&loop->last_version) != atomic_load(&loop->resumed);) {
		ck_assert_msg(clock_ns() < until_ns, "a step doesn't end");
		sleep_ns(1000000);
	}
	return &loop->last;
}

/* ---------------------------------------------------------------- making it */

static void manifest_write(const struct model *model, const struct manifest_options *options,
			   struct writer *text, struct manifest **manifest)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct ws_error err = {0};

	*text = (struct writer)WRITER_INIT(16u << 20);
	ck_ok(manifest_make(model, options, text, &findings, &err), err);
	ck_ok(manifest_parse(manifest, text->bytes, text->count, &findings, &err), err);
	arena_release(&arena);
}

uint8_t *world_memory_make(size_t bytes)
{
	void *memory = aligned_alloc(4096, align_up(bytes, 4096) + 4096);

	ck_assert_ptr_nonnull(memory);
	memset(memory, 0, bytes);
	return memory;
}

void loop_start(struct engine_loop *loop)
{
	struct world *world = loop->world;
	const struct world_options *given = &world->options;
	const char *loopback = "127.0.0.1";
	struct ws_error err = {0};
	struct ws_rollout_hooks hooks = {on_begin, on_pause, on_reload, on_resume, on_abort};
	char host[32];
	snprintf(host, sizeof(host), "host-%u-%u", loop->replica,
		 loop->rank / MAX(given->ranks_per_host, 1u));
	struct ws_rollout_options options = {
		.hub = ws_trainer_hub(world->trainer[0].trainer),
		.key_file = world->key_file,
		.replica = loop->replica,
		.rank = loop->rank,
		.world = given->replica_ranks,
		.manifest = (const char *)world->rollout_text.bytes,
		.manifest_bytes = world->rollout_text.count,
		.host = given->ranks_per_host != 0 ? host : NULL,
		.transport = given->transport != NULL ? given->transport : "fabric",
		.nics = given->nic_count != 0 ? given->rollout_nics : &loopback,
		.nic_count = MAX(given->nic_count, 1u),
		.buffers = given->inplace ? WS_INPLACE : WS_DOUBLE,
		.post_ms = PHASES * given->post_ms,
		.stream = given->stream,
	};

	if (given->rollout_fault_device != NULL && loop->replica == 0 && loop->rank == 0) {
		options.transport = "fault";
		options.nics = &given->rollout_fault_device;
		options.nic_count = 1;
	}
	if (given->rollout_own_nics[0] != NULL && loop->replica == 0 && loop->rank == 0)
		options.nics = given->rollout_own_nics;
	loop->manifest = world->manifest[SIDE_ROLLOUT];
	ck_ok(manifest_params(loop->manifest, loop->rank, &loop->arena, &loop->params, &err), err);
	loop->where = arena_array(&loop->arena, loop->params.count, sizeof(*loop->where));
	ck_assert_ptr_nonnull(loop->where);
	if (loop->memory == NULL) {
		loop->memory = world_memory_make(loop->params.arena_bytes);
		loop->expected = world_memory_make(4 * loop->params.arena_bytes);
	}
	for (uint32_t i = 0; i < loop->params.count; i++)
		loop->where[i] = (struct ws_memory){.base = loop->memory +
							    loop->params.params[i].arena_offset,
						    .bytes = loop->params.params[i].bytes};
	loop_posts_make(loop);
	if (given->on_gpu)
		loop_gpu_make(loop);
	/* Padding must become zero, whatever was there. */
	memset(loop->memory, 0xa5, loop->params.arena_bytes);
	atomic_store(&loop->quit, false);
	atomic_store(&loop->started, false);
	atomic_store(&loop->dies, false);
	atomic_store(&loop->remaps, false);
	atomic_store(&loop->resumed, 0);
	ck_ok(ws_rollout_open(&loop->rollout, &options, &hooks, loop, &err), err);
	for (uint32_t i = 0; i < loop->params.count; i++) {
		const struct param *param = &loop->params.params[i];
		if (param->bytes > 0)
			ck_ok(ws_rollout_add(loop->rollout, param->name, loop_param(loop, i), &err),
			      err);
	}
	loop_posts_add(loop);
	ck_assert_int_eq(pthread_create(&loop->thread, NULL, loop_main, loop), 0);
}

void loop_stop(struct engine_loop *loop)
{
	if (loop->rollout == NULL)
		return;
	atomic_store(&loop->quit, true);
	pthread_join(loop->thread, NULL);
	ws_rollout_close(loop->rollout);
	loop->rollout = NULL;
}

static uint64_t world_op_bytes(const struct world_options *options)
{
	return options->op_bytes != 0 ? options->op_bytes : 64u << 10;
}

static void trainer_open(struct trainer *trainer)
{
	struct world *world = trainer->world;
	const struct world_options *given = &world->options;
	const char *loopback = "127.0.0.1";
	struct ws_error err = {0};
	struct ws_trainer_options options = {
		.hub = trainer->rank == 0 ? "tcp://127.0.0.1:*"
					  : ws_trainer_hub(world->trainer[0].trainer),
		.hub_here = trainer->rank == 0,
		.key_file = world->key_file,
		.rank = trainer->rank,
		.world = given->trainers,
		.manifest = (const char *)world->trainer_text.bytes,
		.manifest_bytes = world->trainer_text.count,
		.transport = given->transport != NULL ? given->transport : "fabric",
		.nics = given->nic_count != 0 ? given->trainer_nics : &loopback,
		.nic_count = MAX(given->nic_count, 1u),
		.staging_bytes = given->staging_bytes,
		.op_bytes = world_op_bytes(given),
		.recv_staging_bytes = given->recv_staging_bytes,
		.run_bytes_min = given->run_bytes_min,
		.replica_ranks = given->replica_ranks,
		.min_replicas = MAX(given->min_replicas, 1u),
		.wire_digests = given->digests,
		.barrier = given->barrier,
		.fanout = given->fanout,
		.lost_ms = given->lost_ms != 0 ? given->lost_ms : 10000,
		.phase_ms = PHASES * given->phase_ms,
	};

	if (given->fault_device != NULL && trainer->rank == 1) {
		options.transport = "fault";
		options.nics = &given->fault_device;
		options.nic_count = 1;
	}
	if (given->trainer_own_nics[0] != NULL && trainer->rank == 1)
		options.nics = given->trainer_own_nics;
	ck_ok(ws_trainer_open(&trainer->trainer, &options, &err), err);
	trainer->trainer->ring_bytes = given->ring_bytes;
	if (given->offloaded)
		trainer->trainer->offload_device = 0;
	ck_ok(manifest_params(world->manifest[SIDE_TRAINER], trainer->rank, &trainer->arena,
			      &trainer->params, &err),
	      err);
	trainer->memory = world_memory_make(trainer->params.arena_bytes);
	for (uint32_t i = 0; i < trainer->params.count; i++) {
		const struct param *param = &trainer->params.params[i];
		struct ws_memory memory = {.base = trainer->memory + param->arena_offset,
					   .bytes = param->bytes};
		if (param->bytes > 0)
			ck_ok(ws_trainer_add(trainer->trainer, param->name, &memory, &err), err);
	}
}

static void *start_main(void *arg)
{
	struct trainer *trainer = arg;

	trainer->rc = ws_trainer_start(trainer->trainer, PATIENCE_MS, &trainer->err);
	return NULL;
}

static void key_make(struct world *world)
{
	struct run_key key;
	struct ws_error err = {0};

	snprintf(world->folder, sizeof(world->folder), "/tmp/ws-update-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(world->folder));
	snprintf(world->key_file, sizeof(world->key_file), "%s/key", world->folder);
	ck_ok(run_key_make(&key, &err), err);
	ck_ok(run_key_write(&key, world->key_file, &err), err);
}

static void manifests_make(struct world *world)
{
	const struct world_options *options = &world->options;
	struct model *whole, *model;
	struct ws_error err = {0};

	ck_ok(model_builtin(&whole, options->model != NULL ? options->model : "llama-3-70b", &err),
	      err);
	ck_ok(model_scale(&model, whole, 1, options->scale != 0 ? options->scale : 16000, &err),
	      err);
	const struct manifest_options trainer = {.side = SIDE_TRAINER,
						 .layout = options->trainer_layout,
						 .mesh = options->trainer_mesh,
						 .dtype = options->dtype};
	const struct manifest_options rollout = {.side = SIDE_ROLLOUT,
						 .layout = options->rollout_layout,
						 .mesh = options->rollout_mesh,
						 .casts =
							 options->dtype != NULL ? "f32:bf16" : NULL,
						 .quant = options->quant};
	manifest_write(model, &trainer, &world->trainer_text, &world->manifest[SIDE_TRAINER]);
	manifest_write(model, &rollout, &world->rollout_text, &world->manifest[SIDE_ROLLOUT]);
	if (options->staged != NULL || options->derived != NULL) {
		manifest_free(world->manifest[SIDE_ROLLOUT]);
		text_post(&world->rollout_text, options->staged, options->derived);
		ck_ok(manifest_parse(&world->manifest[SIDE_ROLLOUT], world->rollout_text.bytes,
				     world->rollout_text.count, NULL, &err),
		      err);
	}
	model_free(model);
	model_free(whole);
}

static void manifests_release(struct world *world)
{
	for (int side = 0; side < 2; side++)
		manifest_free(world->manifest[side]);
	writer_release(&world->trainer_text);
	writer_release(&world->rollout_text);
}

/* Of those to members below `below`. */
static uint64_t ops_below(const struct world_options *options, uint32_t member, uint32_t below)
{
	struct world *world = calloc(1, sizeof(*world));
	uint32_t replicas[ROLLOUTS_MAX];
	struct ws_error err = {0};
	struct plan *plan;
	uint64_t ops = 0;

	ck_assert_ptr_nonnull(world);
	world->options = *options;
	manifests_make(world);
	for (uint32_t i = 0; i < options->replicas; i++)
		replicas[i] = i;
	struct plan_input input = {
		.trainer = world->manifest[SIDE_TRAINER],
		.rollout = world->manifest[SIDE_ROLLOUT],
		.replicas = replicas,
		.replica_count = options->replicas,
		.rules = RULES_DEFAULT,
	};
	input.rules.op_bytes = world_op_bytes(options);
	input.rules.wire_digests = options->digests;
	if (options->fanout != NULL)
		ck_ok(fanout_parse(options->fanout, &input.rules.fanout, &err), err);
	ck_ok(plan_make(&plan, &input, member, NULL, &err), err);
	for (uint32_t i = 0; i < plan_send_pair_count(plan); i++)
		if (plan_send_pair(plan, i)->receiver < below)
			ops += plan_send_pair(plan, i)->op_count;
	plan_free(plan);
	manifests_release(world);
	free(world);
	return ops;
}

uint64_t world_member_ops(const struct world_options *options, uint32_t member)
{
	uint64_t ops = ops_below(options, member, UINT32_MAX);

	ck_assert_uint_gt(ops, 4);
	return ops;
}

uint64_t world_exchange_ops(const struct world_options *options, uint32_t trainer)
{
	return ops_below(options, trainer, options->trainers);
}

struct world *world_open(const struct world_options *options)
{
	struct world *world = calloc(1, sizeof(*world));

	ck_assert_ptr_nonnull(world);
	world->options = *options;
	even_clock_start(false);
	key_make(world);
	manifests_make(world);
	for (uint32_t i = 0; i < options->trainers; i++) {
		world->trainer[i] = (struct trainer){.world = world, .rank = i};
		trainer_open(&world->trainer[i]);
	}
	world->loop_count = options->replicas * options->replica_ranks;
	for (uint32_t i = 0; i < world->loop_count; i++) {
		world->loop[i].world = world;
		world->loop[i].replica = i / options->replica_ranks;
		world->loop[i].rank = i % options->replica_ranks;
		loop_start(&world->loop[i]);
	}
	for (uint32_t i = 0; i < options->trainers; i++)
		ck_assert_int_eq(pthread_create(&world->trainer[i].thread, NULL, start_main,
						&world->trainer[i]),
				 0);
	for (uint32_t i = 0; i < options->trainers; i++)
		pthread_join(world->trainer[i].thread, NULL);
	for (uint32_t i = 0; i < options->trainers; i++)
		ck_assert_msg(world->trainer[i].rc == 0, "%s", world->trainer[i].err.text);
	/* The first push finds every replica in, though one would do to start. */
	for (uint32_t i = 0; i < world->loop_count; i++)
		while (!atomic_load(&world->loop[i].started))
			sleep_ns(1000000u);
	return world;
}

void world_close(struct world *world)
{
	char faults[512] = "";

	for (uint32_t i = world->options.trainers; i-- > 0;) {
		ws_trainer_close(world->trainer[i].trainer);
		arena_release(&world->trainer[i].arena);
		free(world->trainer[i].memory);
	}
	for (uint32_t i = 0; i < world->loop_count; i++) {
		loop_stop(&world->loop[i]);
		if (world->loop[i].fault[0] != 0)
			snprintf(faults, sizeof(faults), "%s", world->loop[i].fault);
		loop_remap_release(&world->loop[i]);
		loop_gpu_release(&world->loop[i]);
		arena_release(&world->loop[i].arena);
		free(world->loop[i].memory);
		free(world->loop[i].expected);
	}
	manifests_release(world);
	unlink(world->key_file);
	rmdir(world->folder);
	free(world);
	ck_assert_msg(faults[0] == 0, "%s", faults);
}

/* ---------------------------------------------------------------- pushing */

static void *push_main(void *arg)
{
	struct trainer *trainer = arg;

	if (!trainer->split) {
		trainer->rc =
			ws_trainer_push(trainer->trainer, trainer->version, trainer->deadline_ms,
					&trainer->report, &trainer->err);
		return NULL;
	}
	trainer->rc = ws_trainer_push_begin(trainer->trainer, trainer->version,
					    trainer->deadline_ms, &trainer->err);
	if (trainer->rc == 0)
		trainer->rc = ws_trainer_push_released(trainer->trainer, &trainer->err);
	if (trainer->rc == 0)
		memset(trainer->memory, 0xee, trainer->params.arena_bytes);
	int rc = ws_trainer_push_end(trainer->trainer, &trainer->report, &trainer->err);
	trainer->rc = trainer->rc != 0 ? trainer->rc : rc;
	return NULL;
}

void world_push(struct world *world, uint64_t version, uint32_t deadline_ms, bool split)
{
	/* All first: who pushes late is named, on a loaded machine too. */
	for (uint32_t i = 0; i < world->options.trainers; i++)
		world_fill(&world->trainer[i], version);
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		struct trainer *trainer = &world->trainer[i];
		trainer->version = version;
		trainer->deadline_ms = deadline_ms;
		trainer->split = split;
		ck_assert_int_eq(pthread_create(&trainer->thread, NULL, push_main, trainer), 0);
	}
	for (uint32_t i = 0; i < world->options.trainers; i++)
		pthread_join(world->trainer[i].thread, NULL);
}

void world_is_live(const struct world *world, uint64_t version)
{
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		const struct trainer *trainer = &world->trainer[i];
		ck_assert_msg(trainer->rc == 0, "trainer %u: %d: %s", i, trainer->rc,
			      trainer->err.text);
		ck_assert_uint_eq(trainer->report.version, version);
		ck_assert_uint_eq(trainer->report.replica_count, world->options.replicas);
		for (uint32_t r = 0; r < trainer->report.replica_count; r++)
			ck_assert_msg(trainer->report.replicas[r].live, "replica %u: %s",
				      trainer->report.replicas[r].replica,
				      trainer->report.replicas[r].text);
	}
	for (uint32_t i = 0; i < world->loop_count; i++) {
		const struct engine_loop *loop = &world->loop[i];
		ck_assert_msg(loop->fault[0] == 0, "%s", loop->fault);
		ck_assert_uint_eq(atomic_load(&loop->resumed), version);
	}
}

void world_push_good(struct world *world, uint64_t version, bool split)
{
	world_push(world, version, PATIENCE_MS, split);
	world_is_live(world, version);
}

void world_errors_have(const struct world *world, const char *text)
{
	for (uint32_t i = 0; i < world->options.trainers; i++) {
		const struct trainer *trainer = &world->trainer[i];
		ck_assert_int_lt(trainer->rc, 0);
		ck_assert_msg(strstr(trainer->err.text, text) != NULL,
			      "trainer %u, without '%s': %s", i, text, trainer->err.text);
	}
}
