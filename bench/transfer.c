/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench transfer`: one process writes, a forked one receives, by the engine and by bare
 * libfabric in turns.  A socket pair carries addresses and the turns: the writer's clock runs from
 * the moment both are ready until the receiver has said that everything is there.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bare_fabric.h"
#include "bench/measure.h"
#include "lib/engine/engine.h"

#define WINDOW_BYTES (64u << 20) /* memory at each end; a round goes around it */
#define FRAME_MAX    16384u
#define WAIT_MS	     60000
#define SAID_BAD     'x' /* a struct ws_error follows */

struct end {
	const struct bench_options *options;
	int fd; /* the other end */
	bool receives;
	struct ws_memory memory;
	struct engine *engine;
	struct engine_peer *peer;
	struct bare *bare;
	struct send sends[64]; /* one per window, by turns; more windows than that are refused */
	struct receive receive;
	struct op_range range;
	uint64_t attempt;
};

/* ------------------------------------------------------------------------ the socket */

static int put(const struct end *end, const void *bytes, size_t count, struct ws_error *err)
{
	if (send(end->fd, bytes, count, MSG_NOSIGNAL) != (ssize_t)count)
		return ws_fail(err, -ECONNRESET, "the bench's other process is gone");
	return 0;
}

static int get(const struct end *end, void *bytes, size_t room, size_t *count_out,
	       struct ws_error *err)
{
	ssize_t count = recv(end->fd, bytes, room, 0);
	if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return ws_fail(err, -ETIMEDOUT, "the bench's other process said nothing for %d s",
			       WAIT_MS / 1000);
	if (count <= 0)
		return ws_fail(err, -ECONNRESET, "the bench's other process is gone");
	*count_out = (size_t)count;
	return 0;
}

/* Waits for one byte; the other end's error becomes mine. */
static int hear(const struct end *end, char want, struct ws_error *err)
{
	uint8_t frame[1 + sizeof(struct ws_error)];
	size_t count = 0;
	struct ws_error other;
	int rc = get(end, frame, sizeof(frame), &count, err);
	if (rc != 0)
		return rc;
	if (frame[0] == SAID_BAD && count == sizeof(frame)) {
		memcpy(&other, frame + 1, sizeof(other));
		return ws_fail(err, other.code, "the receiving process: %.400s", other.text);
	}
	if (frame[0] != (uint8_t)want)
		return ws_fail(err, -EPROTO, "the bench's other process said '%c', not '%c'",
			       frame[0], want);
	return 0;
}

/* ------------------------------------------------------------------------------ open */

static uint64_t op_count(const struct bench_options *options)
{
	return engine_op_count(options->total_bytes, options->op_bytes);
}

static int exchange(struct end *end, const void *mine, size_t mine_bytes, void *theirs, size_t room,
		    size_t *theirs_bytes, struct ws_error *err)
{
	int rc = put(end, mine, mine_bytes, err);
	return rc == 0 ? get(end, theirs, room, theirs_bytes, err) : rc;
}

static int engine_side_connect(struct end *end, struct ws_error *err)
{
	uint8_t frame[FRAME_MAX];
	size_t count = 0;
	struct writer address = WRITER_INIT(FRAME_MAX), regions = WRITER_INIT(FRAME_MAX);
	int rc = engine_peer_open(end->engine, end->receives ? "writer" : "receiver", &end->peer,
				  &address, err);
	engine_regions_encode(end->engine, &regions);
	if (rc == 0)
		rc = exchange(end, address.bytes, address.count, frame, sizeof(frame), &count, err);
	if (rc == 0)
		rc = engine_peer_connect(end->engine, end->peer, frame, count, err);
	if (rc == 0)
		rc = exchange(end, regions.bytes, regions.count, frame, sizeof(frame), &count, err);
	if (rc == 0)
		rc = engine_peer_regions(end->engine, end->peer, frame, count, err);
	writer_release(&address);
	writer_release(&regions);
	return rc;
}

/* One receive at one end; at the other one send per window, until total_bytes are there. */
static int program_set(struct end *end, struct ws_error *err)
{
	const struct bench_options *options = end->options;
	uint32_t ops = (uint32_t)op_count(options), sends = 0;
	struct engine_program program = {0};
	if (end->receives) {
		end->receive = (struct receive){.peer = end->peer,
						.op_count = ops,
						.digest_op_id = UINT32_MAX,
						.credit_op_id = UINT32_MAX};
		end->range = (struct op_range){.count = ops};
		program.receives = &end->receive;
		program.ranges = &end->range;
		program.receive_count = program.range_count = 1;
		program.op_id_count = ops;
		return engine_set_program(end->engine, &program, err);
	}
	for (uint64_t at = 0; at < options->total_bytes; at += end->memory.bytes)
		end->sends[sends++] =
			(struct send){.peer = end->peer,
				      .bytes = MIN(end->memory.bytes, options->total_bytes - at),
				      .first_op_id = (uint32_t)(at / options->op_bytes),
				      .local = end->memory.base,
				      .local_region = 1,
				      .remote_region = 1,
				      .credit_op_id = UINT32_MAX};
	program.sends = end->sends;
	program.send_count = sends;
	return engine_set_program(end->engine, &program, err);
}

static int engine_side_open(struct end *end, struct ws_error *err)
{
	const struct bench_options *options = end->options;
	char name[NIC_NAME_MAX];
	const struct device device = {.transport = options->transport, .name = name};
	uint32_t region;
	snprintf(name, sizeof(name), "%s/%s", options->provider, options->source);
	const struct engine_options wanted = {.devices = &device,
					      .device_count = 1,
					      .op_bytes = options->op_bytes,
					      .depth = options->depth};
	int rc = engine_open(&end->engine, &wanted, err);
	if (rc == 0)
		rc = engine_region_add(end->engine, &end->memory, &region, err);
	if (rc == 0)
		rc = engine_side_connect(end, err);
	return rc == 0 ? program_set(end, err) : rc;
}

static int bare_side_open(struct end *end, struct ws_error *err)
{
	const struct bench_options *options = end->options;
	struct bare_address mine = {0}, theirs;
	size_t count = 0;
	int rc = bare_open(&end->bare, options->provider, options->source, options->depth,
			   end->memory.base, end->memory.bytes, &mine, err);
	if (rc == 0)
		rc = exchange(end, &mine, sizeof(mine), &theirs, sizeof(theirs), &count, err);
	if (rc == 0 && count != sizeof(theirs))
		rc = ws_fail(err, -EPROTO, "the baseline's address has %zu bytes", count);
	return rc == 0 ? bare_connect(end->bare, &theirs, err) : rc;
}

static int end_open(struct end *end, struct ws_error *err)
{
	const struct bench_options *options = end->options;
	/* Whole ops, so that both go around it alike. */
	uint64_t window = MAX(WINDOW_BYTES / options->op_bytes, 1) * options->op_bytes;
	while (window * ARRAY_SIZE(end->sends) < options->total_bytes)
		window *= 2;
	int rc = ws_memory_alloc(&end->memory, window, err);
	if (rc != 0)
		return rc;
	end->memory.bytes = window;
	memset(end->memory.base, 1, window);
	rc = engine_side_open(end, err);
	return rc == 0 ? bare_side_open(end, err) : rc;
}

static void end_close(struct end *end)
{
	engine_close(end->engine);
	bare_close(end->bare);
	ws_memory_free(&end->memory);
	close(end->fd);
}

/* ------------------------------------------------------------------------------ turns */

/* Steps until the event comes. */
static int engine_run(struct end *end, enum engine_event_kind wanted, struct ws_error *err)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct engine_event events[16];
	while (clock_ns() < deadline) {
		int count = engine_step(end->engine, events, ARRAY_SIZE(events));
		for (int i = 0; i < count; i++) {
			if (events[i].kind == wanted)
				return 0;
			if (events[i].kind != ENGINE_SENDS_DONE)
				return ws_fail(
					err, -EIO, "the engine met event %d, status %d, op %u",
					(int)events[i].kind, events[i].status, events[i].op_id);
		}
		engine_wait(end->engine, -1, -1, deadline);
	}
	return ws_fail(err, -ETIMEDOUT, "the engine wasn't done after %d s", WAIT_MS / 1000);
}

static int engine_turn(struct end *end, double *seconds_out, struct ws_error *err)
{
	int rc = engine_arm(end->engine, ++end->attempt, err);
	if (rc == 0 && end->receives)
		rc = put(end, "r", 1, err);
	else if (rc == 0)
		rc = hear(end, 'r', err);
	if (rc != 0)
		return rc;
	uint64_t begin = clock_ns();
	if (!end->receives)
		engine_peer_ready(end->engine, end->peer);
	rc = engine_run(end, end->receives ? ENGINE_RECEIVE_DONE : ENGINE_SENDS_DONE, err);
	if (rc == 0)
		rc = end->receives ? put(end, "d", 1, err) : hear(end, 'd', err);
	*seconds_out = (double)(clock_ns() - begin) / 1e9;
	engine_end(end->engine);
	return rc;
}

static int bare_turn(struct end *end, double *seconds_out, struct ws_error *err)
{
	const struct bench_options *options = end->options;
	int rc = end->receives ? put(end, "r", 1, err) : hear(end, 'r', err);
	if (rc != 0)
		return rc;
	uint64_t begin = clock_ns();
	if (end->receives)
		rc = bare_receive(end->bare, op_count(options), err);
	else
		rc = bare_write(end->bare, options->total_bytes, options->op_bytes, err);
	if (rc == 0)
		rc = end->receives ? put(end, "d", 1, err) : hear(end, 'd', err);
	*seconds_out = (double)(clock_ns() - begin) / 1e9;
	return rc;
}

static int receiver_run(struct end *end, struct ws_error *err)
{
	char command;
	size_t count = 0;
	double seconds;
	int rc = end_open(end, err);
	/* Ends when the writer says so or is gone. */
	while (rc == 0) {
		rc = get(end, &command, 1, &count, err);
		if (rc != 0 || command == 'q')
			return rc;
		rc = command == 'e' ? engine_turn(end, &seconds, err)
				    : bare_turn(end, &seconds, err);
	}
	return rc;
}

static void receiver_main(const struct bench_options *options, int fd)
{
	uint8_t frame[1 + sizeof(struct ws_error)] = {SAID_BAD};
	struct end end = {.options = options, .fd = fd, .receives = true};
	struct ws_error err;
	if (receiver_run(&end, &err) != 0) {
		memcpy(frame + 1, &err, sizeof(err));
		put(&end, frame, sizeof(frame), NULL);
	}
	end_close(&end);
	_exit(0);
}

/* ----------------------------------------------------------------------------- report */

struct rounds {
	double engine[BENCH_ROUNDS_MAX], bare[BENCH_ROUNDS_MAX], ratio[BENCH_ROUNDS_MAX]; /* GB/s */
};

/* Who goes first changes from round to round. */
static int writer_run(struct end *end, struct rounds *rounds, struct ws_error *err)
{
	const struct bench_options *options = end->options;
	double seconds, gbytes = (double)options->total_bytes / 1e9;
	int rc = end_open(end, err);
	/* One more than counted: the first warms both up. */
	for (uint32_t i = 0; i <= options->rounds && rc == 0; i++) {
		double *slot[2] = {&rounds->engine[i - (i > 0)], &rounds->bare[i - (i > 0)]};
		for (uint32_t k = 0; k < 2 && rc == 0; k++) {
			bool engine = (i + k) % 2 == 0;
			rc = put(end, engine ? "e" : "b", 1, err);
			if (rc == 0)
				rc = engine ? engine_turn(end, &seconds, err)
					    : bare_turn(end, &seconds, err);
			if (rc == 0)
				*slot[engine ? 0 : 1] = gbytes / seconds;
		}
	}
	for (uint32_t i = 0; i < options->rounds && rc == 0; i++)
		rounds->ratio[i] = rounds->engine[i] / rounds->bare[i];
	return rc == 0 ? put(end, "q", 1, err) : rc;
}

static int report(const struct bench_options *options, struct rounds *rounds, struct ws_error *err)
{
	struct spread engine = spread_of(rounds->engine, options->rounds);
	struct spread bare = spread_of(rounds->bare, options->rounds);
	struct spread ratio = spread_of(rounds->ratio, options->rounds);
	struct writer out = WRITER_INIT(4096);
	struct json_writer json = {.out = &out};
	if (options->json) {
		json_begin_object(&json, NULL);
		json_put_text(&json, "bench", "transfer");
		json_put_text(&json, "transport", options->transport);
		json_put_text(&json, "provider", options->provider);
		json_put_u64(&json, "op_bytes", options->op_bytes);
		json_put_u64(&json, "depth", options->depth);
		json_put_u64(&json, "total_bytes", options->total_bytes);
		json_put_u64(&json, "rounds", options->rounds);
		json_put_number(&json, "gbytes_per_s", engine.median, 3);
		json_put_number(&json, "gbytes_per_s_min", engine.min, 3);
		json_put_number(&json, "gbytes_per_s_max", engine.max, 3);
		json_put_number(&json, "baseline_gbytes_per_s", bare.median, 3);
		json_put_number(&json, "baseline_gbytes_per_s_min", bare.min, 3);
		json_put_number(&json, "baseline_gbytes_per_s_max", bare.max, 3);
		json_put_number(&json, "ratio", ratio.median, 3);
		json_put_number(&json, "ratio_min", ratio.min, 3);
		json_put_number(&json, "ratio_max", ratio.max, 3);
		json_end_object(&json);
		write_format(&out, "\n");
	} else {
		write_format(&out,
			     "%-8s %-6s %9llu B ops, depth %u: engine %6.2f GB/s, bare %6.2f GB/s, "
			     "ratio %.3f (%.3f to %.3f, %u rounds)\n",
			     options->transport, options->provider,
			     (unsigned long long)options->op_bytes, options->depth, engine.median,
			     bare.median, ratio.median, ratio.min, ratio.max, options->rounds);
	}
	bool good = !out.failed && fwrite(out.bytes, 1, out.count, options->out) == out.count;
	writer_release(&out);
	return good ? 0 : ws_fail(err, -EIO, "the result of the bench can't be written");
}

static int options_fill(struct bench_options *options, struct ws_error *err)
{
	if (options->transport == NULL)
		options->transport = "fabric";
	if (options->provider == NULL)
		options->provider = "tcp";
	if (options->source == NULL)
		options->source = "127.0.0.1";
	if (options->op_bytes == 0)
		options->op_bytes = 1u << 20;
	if (options->depth == 0)
		options->depth = 16;
	if (options->total_bytes == 0)
		options->total_bytes = 1u << 30;
	if (options->rounds == 0)
		options->rounds = BENCH_ROUNDS_MIN;
	if (strcmp(options->transport, "fabric") != 0)
		return ws_fail(err, -ENOTSUP,
			       "transport '%s' has no baseline to compare with; choose 'fabric'",
			       options->transport);
	if (options->rounds < BENCH_ROUNDS_MIN || options->rounds > BENCH_ROUNDS_MAX)
		return ws_fail(err, -EINVAL, "%u rounds can't be; choose %d to %d", options->rounds,
			       BENCH_ROUNDS_MIN, BENCH_ROUNDS_MAX);
	if (options->op_bytes % 4096 != 0 || op_count(options) > OP_ID_MAX)
		return ws_fail(
			err, -EINVAL,
			"ops of %llu bytes can't be; choose a multiple of 4096, and at most %u of "
			"them",
			(unsigned long long)options->op_bytes, OP_ID_MAX);
	return 0;
}

int bench_transfer(const struct bench_options *given, struct ws_error *err)
{
	struct bench_options options = *given;
	struct timeval wait = {.tv_sec = WAIT_MS / 1000};
	int fds[2];
	int rc = options_fill(&options, err);
	if (rc != 0)
		return rc;
	struct rounds *rounds = mem_alloc(sizeof(*rounds));
	if (rounds == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the bench's numbers");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
		mem_free(rounds);
		return ws_fail(err, -EIO, "cannot make a socket pair: %s", strerror(errno));
	}
	for (int i = 0; i < 2; i++)
		setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		close(fds[0]);
		receiver_main(&options, fds[1]);
	}
	close(fds[1]);
	struct end end = {.options = &options, .fd = fds[0]};
	rc = child < 0
		     ? ws_fail(err, -EIO, "cannot start the receiving process: %s", strerror(errno))
		     : writer_run(&end, rounds, err);
	end_close(&end);
	if (child > 0)
		waitpid(child, NULL, 0);
	if (rc == 0)
		rc = report(&options, rounds, err);
	mem_free(rounds);
	return rc;
}
