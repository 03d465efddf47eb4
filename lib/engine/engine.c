/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of one rank: open, close, and the two calls of its loop, step and wait.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/engine/engine_internal.h"

#define SLEEP_MIN_NS   50000u	 /* polling of what can't be waited for: first, */
#define SLEEP_MAX_NS   200000u	 /* and after a while */
#define SLEEP_ARMED_NS 10000000u /* the longest wait on fds: a lost wakeup costs no more */
#define SLEEP_IDLE_NS  200000000u
#define STEP_POLLS_MAX 4 /* batches of one NIC in one step */

void engine_emit(struct engine *engine, const struct engine_event *event)
{
	engine->events[engine->event_tail++ % EVENT_ROOM] = *event;
}

/* ---------------------------------------------------------------------- open, close */

/* A little spinning finds bytes while they are still in the cache; more of it pays only where a
 * core would be idle anyway. */
static uint64_t spin_choose(void)
{
	cpu_set_t cpus;
	if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0)
		return 10000;
	int count = CPU_COUNT(&cpus);
	return count >= 16 ? 50000 : count >= 4 ? 20000 : 10000;
}

static int options_check(const struct engine_options *options, struct ws_error *err)
{
	if (options->device_count == 0 || options->device_count > NICS_MAX)
		return ws_fail(err, -EINVAL, "%u NICs were named; one rank can have 1 to %d",
			       options->device_count, NICS_MAX);
	if (options->op_bytes == 0 || options->op_bytes % 4096 != 0)
		return ws_fail(err, -EINVAL,
			       "ops of %llu bytes can't be; choose a multiple of 4096",
			       (unsigned long long)options->op_bytes);
	if (options->place == WS_CUDA && options->wire_digests)
		return ws_fail(err, -ENOTSUP,
			       "wire digests are made by the host, and memory is GPU %d's; leave "
			       "them away",
			       options->device);
	if (options->staging_bytes != 0 && options->staging_bytes < options->op_bytes)
		return ws_fail(
			err, -EINVAL,
			"%llu bytes of staging don't hold one op of %llu; choose more staging or "
			"smaller ops",
			(unsigned long long)options->staging_bytes,
			(unsigned long long)options->op_bytes);
	return 0;
}

static void nic_free(struct engine_nic *nic)
{
	nic_close(nic->nic);
	mem_free(nic->transport);
	mem_free(nic->device);
}

static int nics_open(struct engine *engine, const struct engine_options *options,
		     struct ws_error *err)
{
	for (uint32_t i = 0; i < options->device_count; i++) {
		const struct device *device = &options->devices[i];
		struct engine_nic *made = &engine->nics[i];
		struct nic *nic;
		int rc = nic_open(&nic, device->transport, device->name, err);
		if (rc != 0)
			return ws_fail_in(err, rc, "cannot open NIC '%s:%s'", device->transport,
					  device->name);
		engine->nic_count++;
		*made = (struct engine_nic){.nic = nic,
					    .transport = mem_copy_text(device->transport),
					    .device = mem_copy_text(device->name),
					    .life = ++engine->lives,
					    .out = nic->down,
					    .since_ns = clock_ns()};
		if (made->transport == NULL || made->device == NULL)
			return ws_fail(err, -ENOMEM, "no memory for the name of '%s'", nic->name);
		if (options->op_bytes > nic->op_bytes_max)
			return ws_fail(
				err, -ENOSPC,
				"ops of %llu bytes are above the limit %llu of '%s'; choose smaller "
				"ones",
				(unsigned long long)options->op_bytes,
				(unsigned long long)nic->op_bytes_max, nic->name);
	}
	return 0;
}

/* A GPU copies by the launch: it takes many ops to keep it busy. */
static uint32_t depth_of(const struct engine_options *options)
{
	if (options->depth != 0)
		return options->depth;
	return options->place == WS_CUDA ? DEPTH_GPU : DEPTH_DEFAULT;
}

int engine_open(struct engine **engine_out, const struct engine_options *options,
		struct ws_error *err)
{
	*engine_out = NULL;
	int rc = options_check(options, err);
	if (rc != 0)
		return rc;
	struct engine *engine = mem_alloc(sizeof(*engine));
	if (engine == NULL)
		return ws_fail(err, -ENOMEM, "no memory for an engine");
	engine->op_bytes = options->op_bytes;
	engine->wire_digests = options->wire_digests;
	engine->spin_ns = spin_choose();
	rc = random_bytes(&engine->lives, sizeof(engine->lives), err);
	engine->lives >>= 1; /* never gets round to 0 */
	if (rc == 0)
		rc = nics_open(engine, options, err);
	if (rc == 0)
		rc = post_open(engine, depth_of(options), err);
	if (rc == 0)
		rc = region_open_own(engine, options, err);
	if (rc == 0)
		rc = offload_open(engine, options, err);
	if (rc == 0)
		rc = stage_thread_open(engine, options->stream, err);
	if (rc != 0) {
		engine_close(engine);
		return rc;
	}
	*engine_out = engine;
	return 0;
}

void engine_close(struct engine *engine)
{
	if (engine == NULL)
		return;
	stage_thread_close(engine);
	offload_close(engine);
	for (uint32_t i = 0; i < engine->nic_count; i++)
		nic_free(&engine->nics[i]);
	program_release(engine);
	for (uint32_t i = 0; i < engine->peer_count; i++)
		peer_free(engine->peers[i]);
	mem_free(engine->peers);
	region_free_all(engine);
	post_close(engine);
	mem_free(engine);
}

uint32_t engine_nic_count(const struct engine *engine)
{
	return engine->nic_count;
}

const struct nic *engine_nic(const struct engine *engine, uint32_t index)
{
	const struct engine_nic *nic = &engine->nics[index];
	return nic->nic != NULL ? nic->nic : &nic->was;
}

uint64_t engine_nic_bytes_sent(const struct engine *engine, uint32_t index)
{
	return engine->nics[index].bytes_sent;
}

_Static_assert(WS_NICS_MAX == NICS_MAX, "reports have room for all NICs");

uint32_t engine_nics(const struct engine *engine, struct ws_nic nics_out[WS_NICS_MAX])
{
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		const struct nic *nic = engine_nic(engine, i);
		struct ws_nic *out = &nics_out[i];
		*out = (struct ws_nic){.bytes_sent = engine->nics[i].bytes_sent,
				       .down = engine->nics[i].was_out};
		snprintf(out->transport, sizeof(out->transport), "%s", nic->transport->name);
		snprintf(out->name, sizeof(out->name), "%s", nic->name);
		regions_paths(engine, i, out->memory, sizeof(out->memory));
		const char *trouble = rail_trouble(engine, i);
		char left_out[sizeof(out->trouble)];
		doubts_text(engine, i, left_out, sizeof(left_out));
		if (left_out[0] != '\0' && !engine->nics[i].out)
			trouble = left_out;
		if (trouble[0] == '\0' && !engine->nics[i].out && !nic_reaches_all(engine, i))
			trouble = "can't reach all memory that was given, so nobody is joined over "
				  "it";
		snprintf(out->trouble, sizeof(out->trouble), "%.159s", trouble);
		for (uint32_t p = 0; p < engine->peer_count; p++)
			out->peer_count += engine->peers[p]->rails[i].paired ? 1 : 0;
	}
	return engine->nic_count;
}

/* ----------------------------------------------------------------------------- step */

static void event_take(struct engine *engine, uint32_t nic, const struct event *event)
{
	switch (event->kind) {
	case EVENT_SENT:
	case EVENT_FAILED:
		program_reported(engine, nic, event);
		break;
	case EVENT_IMM:
		if (!engine->fencing)
			program_arrived(engine, nic, event);
		break;
	case EVENT_NIC:
		break; /* nic_poll has looked */
	}
}

static void nic_poll(struct engine *engine, uint32_t index)
{
	struct engine_nic *nic = &engine->nics[index];
	struct event events[POLL_BATCH];
	for (int i = 0; i < STEP_POLLS_MAX && !nic->lost; i++) {
		if (engine_event_room(engine) < POLL_BATCH + 1)
			return;
		int count = nic->nic->transport->poll(nic->nic, events, POLL_BATCH);
		if (count < 0)
			rail_out(engine, index, true, count);
		else if (nic->nic->down) /* before its ops are reported, which fail for that */
			rail_out(engine, index, false, -ENETDOWN);
		for (int k = 0; k < count; k++)
			event_take(engine, index, &events[k]);
		engine->moved |= count != 0;
		if (count < POLL_BATCH)
			return;
	}
}

static int events_give(struct engine *engine, struct engine_event *events_out, int count)
{
	int given = 0;
	while (given < count && engine->event_head != engine->event_tail)
		events_out[given++] = engine->events[engine->event_head++ % EVENT_ROOM];
	return given;
}

int engine_step(struct engine *engine, struct engine_event *events_out, int count)
{
	struct stage_result result;
	mem_forbid();
	engine->step++;
	engine->refused = engine->moved = false;
	engine->now_ns = clock_ns();
	stage_heard(engine->stage);
	/* Bounded: the ring holds STAGE_ROOM, and only this thread puts more in. */
	while (engine_event_room(engine) > 0 && stage_take(engine->stage, &result)) {
		program_staged(engine, &result);
		engine->moved = true;
	}
	for (uint32_t i = 0; i < engine->nic_count; i++)
		nic_poll(engine, i);
	if (engine->imm.armed)
		program_issue(engine);
	if (engine->has_spare && !engine->fencing)
		peer_close_spare(engine);
	if (engine->moved) {
		engine->moved_ns = engine->now_ns;
		engine->idle_count = 0;
	}
	mem_allow();
	return events_give(engine, events_out, count);
}

/* ----------------------------------------------------------------------------- wait */

/* An fd tells only of what comes after a step that found nothing. */
static bool is_at_work(const struct engine *engine)
{
	return engine->moved || engine->event_head != engine->event_tail;
}

/* How long to sleep at most, after an empty step. */
static uint64_t sleep_choose(struct engine *engine, bool must_poll)
{
	if (!must_poll)
		return engine->imm.armed || engine->fencing ? SLEEP_ARMED_NS : SLEEP_IDLE_NS;
	engine->idle_count += engine->idle_count < 100;
	return engine->idle_count < 20 ? SLEEP_MIN_NS : SLEEP_MAX_NS;
}

int engine_wait_fds(struct engine *engine, int *fds_out, int count_max, uint64_t *most_ns_out)
{
	int count = 0;
	bool must_poll = engine->refused || offload_is_loading(engine);
	if (count < count_max)
		fds_out[count++] = engine->stage->done_fd;
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		const struct engine_nic *nic = &engine->nics[i];
		if (nic->lost)
			continue;
		if (nic->nic->wait_fd < 0 || count == count_max)
			must_poll = true;
		else
			fds_out[count++] = nic->nic->wait_fd;
	}
	*most_ns_out = is_at_work(engine) ? 0 : sleep_choose(engine, must_poll);
	return count;
}

void engine_wait(struct engine *engine, int fd, int fd2, uint64_t until_ns)
{
	struct pollfd fds[NICS_MAX + 3];
	int numbers[NICS_MAX + 1];
	uint64_t most_ns;
	nfds_t count = 0;
	if (is_at_work(engine))
		return;
	uint64_t now = clock_ns();
	/* Spinning: the caller comes back at once. */
	if (now >= until_ns || now - engine->moved_ns < engine->spin_ns)
		return;
	int own = engine_wait_fds(engine, numbers, NICS_MAX + 1, &most_ns);
	for (int i = 0; i < own; i++)
		fds[count++] = (struct pollfd){.fd = numbers[i], .events = POLLIN};
	fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
	fds[count++] = (struct pollfd){.fd = fd2, .events = POLLIN};
	uint64_t ns = MIN(until_ns - now, most_ns);
	struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u),
				   .tv_nsec = (long)(ns % 1000000000u)};
	ppoll(fds, count, &timeout, NULL);
}
