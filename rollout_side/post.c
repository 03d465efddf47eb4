/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Post steps.  The I/O thread counts for each call what of its params is still to land; a call that
 * misses nothing goes through a ring to the post thread, which runs one after the other.  The two
 * share that ring's ends and a few atomics.  A call that never comes back holds up on_abort and
 * the next version, and nothing else: at the end its thread is left behind with all that it has.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rollout_side/rollout_internal.h"

#define CLOSE_POLL_NS UINT64_C(1000000)
#define CLOSE_MIN_NS  UINT64_C(200000000)
#define GPU_POLL_NS   UINT64_C(20000)

_Static_assert(WS_DIMS_MAX == LOCAL_DIM_MAX, "a step is given all dims of a param");

struct call {
	struct ws_post post;
	int (*function)(void *arg, const struct ws_post *post, struct ws_error *err);
	void *arg;
};

enum life { LIFE_RUNS = 0, LIFE_ENDED, LIFE_ABANDONED };

struct posts {
	/* constant */
	struct arena arena;
	struct call *calls;
	uint32_t call_count;
	uint32_t *param_first, *param_calls; /* which calls want a param, as post_program's */
	uint32_t ms;
	int wake_fd; /* owned: the post thread is to look */
	int tell_fd; /* owned: the I/O thread's */
	bool on_gpu;
	struct cuda_queue queue; /* owned, on a GPU */
	pthread_t thread;

	/* shared: calls that were queued, that are back */
	uint32_t *ring; /* of call_count */
	uint64_t version;
	_Atomic uint64_t queued, back; /* never get round: the ring isn't a power of two */
	_Atomic uint32_t running;      /* call + 1; 0: none */
	_Atomic uint64_t since_ns, busy_ns;
	_Atomic bool cancel, failed, stop;
	struct ws_error error; /* of failed */
	_Atomic int life;      /* enum life */

	/* I/O thread */
	uint32_t *left; /* by call: receives that it waits for */
	uint64_t first; /* queued, when the attempt was armed */
	bool told;	/* of this attempt: that it failed or is late */

	/* what an abandoned thread frees */
	struct description own;
	struct ws_memory spare, made_spare;
};

bool ws_post_cancelled(const struct ws_post *post)
{
	const struct posts *posts = post->cancelled;

	return atomic_load(&posts->cancel);
}

/* ---------------------------------------------------------------- the post thread */

/* What a sentence calls it by. */
static const char *call_about(const struct call *call)
{
	return call->post.made_count > 0 ? call->post.made[0].name : call->post.params[0].name;
}

static void call_failed(struct posts *posts, const struct call *call, int rc,
			const struct ws_error *why)
{
	int code = rc < 0 ? rc : -EIO;

	if (why->text[0] != '\0')
		ws_fail(&posts->error, code, "post step '%s' of '%s' failed (version %llu): %s",
			call->post.step, call_about(call), (unsigned long long)posts->version,
			why->text);
	else
		ws_fail(&posts->error, code,
			"post step '%s' of '%s' failed (version %llu): it returned %d and said "
			"nothing",
			call->post.step, call_about(call), (unsigned long long)posts->version, rc);
	atomic_store(&posts->cancel, true);
	atomic_store_explicit(&posts->failed, true, memory_order_release);
}

static void call_run(struct posts *posts, uint32_t index)
{
	struct call *call = &posts->calls[index];
	struct ws_error why = {0};
	uint64_t start = clock_ns();

	atomic_store(&posts->since_ns, start);
	atomic_store(&posts->running, index + 1);
	call->post.version = posts->version;
	int rc = posts->on_gpu ? cuda_use(posts->queue.device, &why) : 0;
	if (rc == 0)
		rc = call->function(call->arg, &call->post, &why);
	if (rc != 0)
		call_failed(posts, call, rc, &why);
	atomic_fetch_add(&posts->busy_ns, clock_ns() - start);
}

/* What steps have queued must be done, also where one has failed: it writes until then. */
static void gpu_drain(struct posts *posts, const struct call *last)
{
	struct cuda_queue *queue = &posts->queue;
	uint64_t start = clock_ns(), mark = 0;
	int passed = 0;

	atomic_store(&posts->since_ns, start);
	int rc = cuda_queue_mark(queue, &mark);
	while (rc == 0 && (passed = cuda_queue_passed(queue, mark)) == 0) {
		if (cuda_is_given_up(queue->device)) /* by posts_stop */
			rc = cuda_stuck(queue->device, &queue->error);
		sleep_ns(GPU_POLL_NS);
	}
	if ((rc != 0 || passed < 0) && !atomic_load(&posts->failed))
		call_failed(posts, last, -EIO, &queue->error);
	atomic_fetch_add(&posts->busy_ns, clock_ns() - start);
}

/* Runs what is queued: on a GPU all of it, before that is waited for. */
static void calls_run(struct posts *posts, uint64_t from)
{
	uint64_t at = from;
	const struct call *last = NULL;

	while (at != atomic_load_explicit(&posts->queued, memory_order_acquire)) {
		uint32_t index = posts->ring[at++ % posts->call_count];
		if (atomic_load(&posts->cancel))
			continue;
		last = &posts->calls[index];
		call_run(posts, index);
		if (!posts->on_gpu)
			break;
	}
	if (posts->on_gpu && last != NULL)
		gpu_drain(posts, last);
	atomic_store(&posts->running, 0);
	atomic_store_explicit(&posts->back, at, memory_order_release);
	fd_wake(posts->tell_fd);
}

static void posts_free(struct posts *posts)
{
	if (posts->wake_fd >= 0)
		close(posts->wake_fd);
	if (posts->tell_fd >= 0)
		close(posts->tell_fd);
	cuda_queue_close(&posts->queue);
	description_release(&posts->own);
	ws_memory_free(&posts->spare);
	ws_memory_free(&posts->made_spare);
	arena_release(&posts->arena);
	mem_free(posts);
}

static void *posts_main(void *arg)
{
	struct posts *posts = arg;
	int runs = LIFE_RUNS;
	uint64_t dropped;

	/* Until posts_close says stop. */
	while (!atomic_load(&posts->stop)) {
		uint64_t at = atomic_load_explicit(&posts->back, memory_order_relaxed);
		if (at != atomic_load_explicit(&posts->queued, memory_order_acquire))
			calls_run(posts, at);
		else
			(void)!read(posts->wake_fd, &dropped, sizeof(dropped));
	}
	if (!atomic_compare_exchange_strong(&posts->life, &runs, LIFE_ENDED))
		posts_free(posts);
	return NULL;
}

/* ---------------------------------------------------------------- what calls are given */

/* How a quantized weight's elements lie under its scale's; zeros where they don't in blocks alike.
 */
static void blocks_fill(const struct quant_scheme *scheme, const struct form *scale,
			struct ws_post_param *weight)
{
	uint32_t dims = weight->dim_count;

	for (uint32_t d = 0; d < dims; d++) {
		bool whole = scheme->kind == SCHEME_TENSOR && scale->element_count == 1;
		uint64_t block = d + 2 < dims ? 1 : scheme->block[d + 2 - dims];
		if (whole || block == 0)
			block = MAX(weight->dim[d], UINT64_C(1));
		weight->block[d] = block;
		if (!whole && (scale->dim_count != dims ||
			       scale->dim[d] != (weight->dim[d] + block - 1) / block))
			return (void)memset(weight->block, 0, sizeof(weight->block));
	}
}

static void param_fill(const struct ws_rollout *rollout, uint32_t index,
		       const struct step_call *call, uint32_t at, struct ws_post_param *out)
{
	const struct param *param = &rollout->own.params.params[index];
	const struct manifest *manifest = rollout->source.manifest[SIDE_ROLLOUT];

	*out = (struct ws_post_param){.name = param->name,
				      .dtype = param->dtype,
				      .dim_count = param->form->dim_count,
				      .memory = rollout->own.targets[index]};
	memcpy(out->dim, param->form->dim, sizeof(param->form->dim));
	if (at + 1 == call->from_count || manifest_rule(manifest, param->rule)->is_scale)
		return;
	const struct param *scale = &rollout->own.params.params[call->from[at + 1]];
	if (manifest_rule(manifest, scale->rule)->is_scale)
		blocks_fill(manifest_scheme(manifest, param->rule), scale->form, out);
}

static void made_fill(const struct ws_rollout *rollout, uint32_t index, struct ws_post_param *out)
{
	const struct step_made *made = &rollout->own.steps.made[index];

	*out = (struct ws_post_param){.name = made->name,
				      .dtype = made->dtype,
				      .dim_count = made->dim_count,
				      .memory = rollout->own.made_now[index]};
	memcpy(out->dim, made->dim, sizeof(made->dim));
}

static const struct post_step *step_find(const struct ws_rollout *rollout, const char *name)
{
	for (uint32_t i = 0; i < rollout->step_count; i++)
		if (strcmp(rollout->steps[i].name, name) == 0)
			return &rollout->steps[i];
	return NULL;
}

static int call_make(const struct ws_rollout *rollout, const struct step_call *from,
		     struct posts *posts, struct call *call)
{
	struct arena *arena = &posts->arena;
	const struct post_step *step = step_find(rollout, from->step);
	struct ws_post_param *params = arena_array(arena, from->from_count, sizeof(*params));
	struct ws_post_param *made = arena_array(arena, from->made_count, sizeof(*made));

	assert(step != NULL); /* description_complete */
	*call = (struct call){.function = step->function,
			      .arg = step->arg,
			      .post = {.step = arena_copy(arena, step->name, strlen(step->name)),
				       .layer = from->layer,
				       .expert = from->expert,
				       .params = params,
				       .made = made,
				       .param_count = from->from_count,
				       .made_count = from->made_count,
				       .stream = posts->queue.stream,
				       .cancelled = posts}};
	if (params == NULL || made == NULL || call->post.step == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < from->from_count; i++)
		param_fill(rollout, from->from[i], from, i, &params[i]);
	for (uint32_t i = 0; i < from->made_count; i++)
		made_fill(rollout, from->made_first + i, &made[i]);
	return 0;
}

/* For each param the calls that want it. */
static int wanted_make(const struct description *own, struct posts *posts)
{
	const struct rank_steps *steps = &own->steps;
	uint32_t count = own->params.count, total = 0;

	posts->param_first = arena_array(&posts->arena, (size_t)count + 1, sizeof(uint32_t));
	for (uint32_t i = 0; i < steps->call_count; i++)
		total += steps->calls[i].from_count;
	posts->param_calls = arena_array(&posts->arena, total, sizeof(uint32_t));
	if (posts->param_first == NULL || posts->param_calls == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < steps->call_count; i++)
		for (uint32_t f = 0; f < steps->calls[i].from_count; f++)
			posts->param_first[steps->calls[i].from[f]]++;
	/* first[p] is where p's end; filling from behind makes it where they begin. */
	for (uint32_t p = 1; p <= count; p++)
		posts->param_first[p] += posts->param_first[p - 1];
	for (uint32_t i = steps->call_count; i-- > 0;)
		for (uint32_t f = 0; f < steps->calls[i].from_count; f++)
			posts->param_calls[--posts->param_first[steps->calls[i].from[f]]] = i;
	return 0;
}

static int posts_make(struct ws_rollout *rollout, struct posts *posts, struct ws_error *err)
{
	const struct rank_steps *steps = &rollout->own.steps;
	int rc = 0;

	posts->call_count = steps->call_count;
	posts->ms = rollout->post_ms;
	posts->on_gpu = rollout->place.place == WS_CUDA;
	posts->wake_fd = eventfd(0, EFD_CLOEXEC);
	posts->tell_fd = fcntl(rollout->wake_fd, F_DUPFD_CLOEXEC, 0);
	if (posts->wake_fd < 0 || posts->tell_fd < 0)
		return ws_fail(err, -ENOSPC, "no eventfd for post steps: %s", strerror(errno));
	if (posts->on_gpu)
		rc = cuda_queue_open_on(&posts->queue, rollout->place.device, rollout->stream, err);
	if (rc != 0)
		return rc;
	posts->calls = arena_array(&posts->arena, steps->call_count, sizeof(*posts->calls));
	posts->ring = arena_array(&posts->arena, steps->call_count, sizeof(*posts->ring));
	posts->left = arena_array(&posts->arena, steps->call_count, sizeof(*posts->left));
	if (posts->calls == NULL || posts->ring == NULL || posts->left == NULL)
		rc = -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < steps->call_count; i++)
		rc = call_make(rollout, &steps->calls[i], posts, &posts->calls[i]);
	if (rc == 0)
		rc = wanted_make(&rollout->own, posts);
	if (rc != 0)
		return ws_fail(err, rc, "no memory for %u calls of post steps", steps->call_count);
	rc = thread_start(&posts->thread, -1, posts_main, posts);
	if (rc != 0)
		return ws_fail(err, -ENOSPC, "no thread for the post steps of %s: %s",
			       rollout->name, strerror(rc));
	return 0;
}

int posts_open(struct ws_rollout *rollout, struct ws_error *err)
{
	if (rollout->own.steps.call_count == 0)
		return 0;
	struct posts *posts = mem_alloc(sizeof(*posts));
	if (posts == NULL)
		return ws_fail(err, -ENOMEM, "no memory for post steps");
	posts->wake_fd = posts->tell_fd = -1;
	int rc = posts_make(rollout, posts, err);
	if (rc != 0)
		posts_free(posts);
	else
		rollout->posts = posts;
	return rc;
}

/* When a call that runs is over its time, but not before it could hear that it is cancelled. */
static uint64_t close_until(const struct posts *posts)
{
	uint64_t now = clock_ns();
	uint64_t since = atomic_load(&posts->running) != 0 ? atomic_load(&posts->since_ns) : now;

	return MAX(since + posts->ms * UINT64_C(1000000), now + CLOSE_MIN_NS);
}

void posts_stop(struct ws_rollout *rollout)
{
	struct posts *posts = rollout->posts;

	if (posts == NULL)
		return;
	atomic_store(&posts->cancel, true);
	atomic_store(&posts->stop, true);
	fd_wake(posts->wake_fd);
	for (uint64_t until_ns = close_until(posts);
	     atomic_load(&posts->life) == LIFE_RUNS && clock_ns() < until_ns;)
		sleep_ns(CLOSE_POLL_NS);
	/* Freeing memory would wait for what a step has queued, on a stream of the engine's too. */
	if (!posts->on_gpu || atomic_load(&posts->life) != LIFE_RUNS)
		return;
	int before = cuda_current();
	(void)cuda_stream_settle(posts->queue.stream, posts->queue.device, NULL);
	cuda_leave(before);
}

bool posts_close(struct ws_rollout *rollout)
{
	struct posts *posts = rollout->posts;
	int runs = LIFE_RUNS;

	if (posts == NULL)
		return true;
	posts_stop(rollout);
	rollout->posts = NULL;
	posts->own = rollout->own;
	posts->spare = rollout->spare;
	posts->made_spare = rollout->made_spare;
	if (atomic_compare_exchange_strong(&posts->life, &runs, LIFE_ABANDONED)) {
		memset(&rollout->own, 0, sizeof(rollout->own));
		memset(&rollout->spare, 0, sizeof(rollout->spare));
		memset(&rollout->made_spare, 0, sizeof(rollout->made_spare));
		pthread_detach(posts->thread);
		return false;
	}
	/* It has ended: all that stays the rollout's. */
	memset(&posts->own, 0, sizeof(posts->own));
	memset(&posts->spare, 0, sizeof(posts->spare));
	memset(&posts->made_spare, 0, sizeof(posts->made_spare));
	pthread_join(posts->thread, NULL);
	posts_free(posts);
	return true;
}

/* ---------------------------------------------------------------- the I/O thread's part */

/* Once through all that a receive brings of params that calls want. */
static uint32_t program_walk(struct ws_rollout *rollout, uint32_t *list)
{
	const struct posts *posts = rollout->posts;
	struct wire *wire = &rollout->wire;
	struct post_program *program = &wire->posts;
	struct plan_cursor cursor = {0};
	struct plan_copy copy;
	uint32_t total = 0;

	while (plan_next_receive(rollout->source.plan, &cursor, &copy)) {
		const struct pair *pair = &wire->pairs[wire->pair_of_member[copy.sender]];
		uint32_t receive = pair->receive_base + copy.counter;
		for (uint32_t i = 0; i < copy.part_count; i++) {
			uint32_t param = copy.parts[i].dst_param;
			uint32_t end = posts->param_first[param + 1];
			for (uint32_t c = posts->param_first[param]; c < end; c++, total++) {
				if (list == NULL) {
					program->first[receive]++;
					program->needs[posts->param_calls[c]]++;
				} else {
					list[--program->first[receive]] = posts->param_calls[c];
				}
			}
		}
	}
	return total;
}

int posts_program(struct ws_rollout *rollout, struct ws_error *err)
{
	struct wire *wire = &rollout->wire;
	struct post_program *program = &wire->posts;
	uint32_t receives = wire->program.receive_count;

	if (rollout->posts == NULL)
		return 0;
	uint32_t calls = rollout->posts->call_count;
	program->first = arena_array(&wire->arena, (size_t)receives + 1, sizeof(uint32_t));
	program->needs = arena_array(&wire->arena, calls, sizeof(uint32_t));
	program->list = NULL;
	if (program->first != NULL && program->needs != NULL)
		program->list =
			arena_array(&wire->arena, program_walk(rollout, NULL), sizeof(uint32_t));
	if (program->list == NULL)
		return ws_fail(err, -ENOMEM, "no memory for when %u post steps are due", calls);
	for (uint32_t r = 1; r <= receives; r++)
		program->first[r] += program->first[r - 1];
	(void)program_walk(rollout, program->list);
	return 0;
}

static void call_queue(struct posts *posts, uint32_t call)
{
	uint64_t at = atomic_load_explicit(&posts->queued, memory_order_relaxed);

	posts->ring[at % posts->call_count] = call;
	atomic_store_explicit(&posts->queued, at + 1, memory_order_release);
	fd_wake(posts->wake_fd);
}

void posts_arm(struct ws_rollout *rollout)
{
	struct posts *posts = rollout->posts;

	if (posts == NULL)
		return;
	assert(posts_idle(rollout)); /* the on_abort before waited for it */
	posts->first = atomic_load(&posts->queued);
	posts->told = false;
	posts->version = rollout->version.version;
	atomic_store(&posts->cancel, false);
	atomic_store(&posts->failed, false);
	atomic_store(&posts->busy_ns, 0);
	memcpy(posts->left, rollout->wire.posts.needs, posts->call_count * sizeof(*posts->left));
	for (uint32_t i = 0; i < posts->call_count; i++)
		if (posts->left[i] == 0)
			call_queue(posts, i);
}

void posts_landed(struct ws_rollout *rollout, uint32_t receive)
{
	struct posts *posts = rollout->posts;
	const struct post_program *program = &rollout->wire.posts;

	if (posts == NULL || atomic_load(&posts->cancel))
		return;
	for (uint32_t i = program->first[receive]; i < program->first[receive + 1]; i++)
		if (--posts->left[program->list[i]] == 0)
			call_queue(posts, program->list[i]);
}

void posts_cancel(struct ws_rollout *rollout)
{
	if (rollout->posts != NULL)
		atomic_store(&rollout->posts->cancel, true);
}

bool posts_idle(const struct ws_rollout *rollout)
{
	const struct posts *posts = rollout->posts;

	return posts == NULL || atomic_load_explicit(&posts->back, memory_order_acquire) ==
					atomic_load(&posts->queued);
}

bool posts_done(const struct ws_rollout *rollout)
{
	const struct posts *posts = rollout->posts;

	return posts == NULL || (posts_idle(rollout) && !atomic_load(&posts->cancel) &&
				 atomic_load(&posts->queued) - posts->first == posts->call_count);
}

int posts_look(struct ws_rollout *rollout, struct ws_error *why)
{
	struct posts *posts = rollout->posts;

	if (posts == NULL || posts->told)
		return 0;
	if (atomic_load_explicit(&posts->failed, memory_order_acquire)) {
		posts->told = true;
		*why = posts->error;
		return why->code;
	}
	uint32_t running = atomic_load(&posts->running);
	uint64_t since = atomic_load(&posts->since_ns), now = clock_ns();
	if (running == 0 || now < since || now - since < posts->ms * UINT64_C(1000000))
		return 0;
	posts->told = true;
	atomic_store(&posts->cancel, true);
	const struct call *call = &posts->calls[running - 1];
	return ws_fail(why, -ETIMEDOUT,
		       "post step '%s' of '%s' isn't back after %u ms (version %llu): no version "
		       "is taken before it is",
		       call->post.step, call_about(call), posts->ms,
		       (unsigned long long)posts->version);
}

bool posts_waits(const struct ws_rollout *rollout, char *text_out, size_t bytes)
{
	const struct posts *posts = rollout->posts;
	uint32_t running = posts == NULL ? 0 : atomic_load(&posts->running);

	if (running == 0)
		return false;
	const struct call *call = &posts->calls[running - 1];
	snprintf(text_out, bytes, "runs post step '%s' of '%s'", call->post.step, call_about(call));
	return true;
}

void posts_report(const struct ws_rollout *rollout, struct ws_rollout_report *report)
{
	if (rollout->posts == NULL)
		return;
	report->post_count = rollout->posts->call_count;
	report->post_ns = atomic_load(&rollout->posts->busy_ns);
}
