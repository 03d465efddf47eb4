/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perftest's ib_write_bw and ib_write_lat (package perftest), as programs, one pair per NIC: what
 * the field measures RDMA NICs with.  They measure by their own clock, without their start.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/contest.h"
#include "bench/measure.h"

#define PORT_FIRST    18515u
#define START_MS_MAX  20000
#define OUTPUT_MAX    8192u
#define ARGUMENTS_MAX 24

extern char **environ;

struct tool {
	pid_t pid;  /* 0: none */
	int output; /* a pipe's end; -1: none */
};

struct tools {
	const struct end *end;
	struct tool tools[NICS_MAX]; /* one per NIC */
};

static const char *tool_name(const struct contest *contest)
{
	return contest->latency ? "ib_write_lat" : "ib_write_bw";
}

static void tool_end(struct tool *tool)
{
	if (tool->pid > 0)
		(void)child_reap(tool->pid, 0);
	if (tool->output >= 0)
		close(tool->output);
	*tool = (struct tool){.output = -1};
}

static void tools_close(void *state)
{
	struct tools *tools = state;
	if (tools == NULL)
		return;
	for (uint32_t i = 0; i < NICS_MAX; i++)
		tool_end(&tools->tools[i]);
	mem_free(tools);
}

static int tools_open(void **state_out, const struct end *end, struct ws_error *err)
{
	struct tools *tools = mem_alloc(sizeof(*tools));
	*state_out = tools;
	if (tools == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %s", tool_name(end->contest));
	tools->end = end;
	for (uint32_t i = 0; i < NICS_MAX; i++)
		tools->tools[i].output = -1;
	if (end->contest->senders != 1 || end->contest->receivers != 1)
		return ws_fail(err, -ENOTSUP, "%s joins one sender and one receiver",
			       tool_name(end->contest));
	return 0;
}

/* ------------------------------------------------------------------------------- start */

static int tool_spawn(struct tool *tool, char *const *arguments, struct ws_error *err)
{
	posix_spawn_file_actions_t actions;
	int fds[2];
	if (pipe2(fds, O_CLOEXEC) != 0)
		return ws_fail(err, -ENOSPC, "no pipe for '%s': %s", arguments[0], strerror(errno));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDERR_FILENO);
	int rc = posix_spawnp(&tool->pid, arguments[0], &actions, NULL, arguments, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	tool->output = fds[0];
	if (rc != 0) {
		tool->pid = 0;
		return ws_fail(err, -ENODEV, "cannot run '%s': %s; install the package perftest",
			       arguments[0], strerror(rc));
	}
	return 0;
}

static uint32_t tool_count(const struct contest *contest)
{
	return contest->latency ? 1 : contest->nics.count;
}

/* A receiver answers over the NIC that is called as the sender's is, else over that in its place.
 */
static const char *tool_nic(const struct end *end, uint32_t nic)
{
	const char *wanted = end->contest->nics.names[nic];
	for (uint32_t i = 0; i < end->nics->count; i++)
		if (strcmp(end->nics->names[i], wanted) == 0)
			return wanted;
	return end->nics->names[MIN(nic, end->nics->count - 1)];
}

static int tool_start(struct tools *tools, uint32_t nic, struct ws_error *err)
{
	const struct end *end = tools->end;
	const struct contest *contest = end->contest;
	char device[NIC_NAME_MAX], port[16], bytes[24], count[16], depth[16], tcp[16];
	snprintf(device, sizeof(device), "%s", tool_nic(end, nic));
	char *slash = strchr(device, '/');
	snprintf(port, sizeof(port), "%.8s", slash != NULL ? slash + 1 : "1");
	if (slash != NULL)
		*slash = 0;
	snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)contest->op_bytes);
	snprintf(count, sizeof(count), "%u", MAX(contest->op_count, 5));
	snprintf(depth, sizeof(depth), "%u", contest->depth);
	snprintf(tcp, sizeof(tcp), "%u", PORT_FIRST + nic);
	char *arguments[ARGUMENTS_MAX] = {(char *)(uintptr_t)tool_name(contest),
					  "-F",
					  "-d",
					  device,
					  "-i",
					  port,
					  "-s",
					  bytes,
					  "-n",
					  count,
					  "-p",
					  tcp};
	uint32_t n = 12;
	if (!contest->latency) {
		arguments[n++] = "-t";
		arguments[n++] = depth;
		arguments[n++] = "--report_gbits";
	}
	if (!end->receives)
		arguments[n++] = (char *)(uintptr_t)contest->host;
	arguments[n] = NULL;
	return tool_spawn(&tools->tools[nic], arguments, err);
}

/* Whether somebody listens at this TCP port here. */
static bool listens(uint32_t port)
{
	char line[256];
	unsigned at = 0, state = 0;
	bool found = false;
	static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
	for (size_t i = 0; i < ARRAY_SIZE(tables) && !found; i++) {
		FILE *file = fopen(tables[i], "re");
		while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
			found = sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &at,
				       &state) == 2 &&
				at == port && state == 0x0a;
		if (file != NULL)
			fclose(file);
	}
	return found;
}

/* The receiving programs listen before the sending ones start. */
static int tools_arm(void *state, struct ws_error *err)
{
	struct tools *tools = state;
	int rc = 0;
	for (uint32_t i = 0; tools->end->receives && rc == 0 && i < tool_count(tools->end->contest);
	     i++) {
		uint64_t deadline = deadline_in_ms(START_MS_MAX);
		rc = tool_start(tools, i, err);
		while (rc == 0 && !listens(PORT_FIRST + i)) {
			if (clock_ns() > deadline)
				rc = ws_fail(err, -ETIMEDOUT, "%s didn't listen at port %u in %d s",
					     tool_name(tools->end->contest), PORT_FIRST + i,
					     START_MS_MAX / 1000);
			sleep_ns(10000000);
		}
	}
	return rc;
}

/* --------------------------------------------------------------------------------- run */

/* What it says until it ends, in OUTPUT_MAX bytes. */
static int tool_hear(struct tool *tool, const char *name, char *text, struct ws_error *err)
{
	uint64_t deadline = deadline_in_ms(RUN_MS_MAX);
	size_t count = 0;
	while (count < OUTPUT_MAX - 1) {
		struct pollfd wait = {.fd = tool->output, .events = POLLIN};
		if (clock_ns() > deadline)
			return ws_fail(err, -ETIMEDOUT, "%s wasn't done after %d s", name,
				       RUN_MS_MAX / 1000);
		if (poll(&wait, 1, 100) <= 0)
			continue;
		ssize_t got = read(tool->output, text + count, OUTPUT_MAX - 1 - count);
		if (got <= 0)
			break;
		count += (size_t)got;
	}
	text[count] = 0;
	int status = child_reap(tool->pid, deadline);
	tool->pid = 0;
	tool_end(tool);
	return status == 0 ? 0 : ws_fail(err, -EIO, "%s failed: %.300s", name, text);
}

/* The last line of nothing but numbers has the result. */
static uint32_t numbers_find(char *text, double *values, uint32_t room)
{
	uint32_t best = 0;
	char *save = NULL;
	for (char *line = strtok_r(text, "\n", &save); line != NULL;
	     line = strtok_r(NULL, "\n", &save)) {
		double found[16];
		uint32_t count = 0;
		char *at = line, *end = line;
		for (; count < room && count < ARRAY_SIZE(found); at = end, count++) {
			found[count] = strtod(at, &end);
			if (end == at)
				break;
		}
		if (count < 4 || at[strspn(at, " \t\r")] != 0)
			continue;
		memcpy(values, found, count * sizeof(*values));
		best = count;
	}
	return best;
}

static int tools_run(void *state, struct outcome *outcome, struct ws_error *err)
{
	struct tools *tools = state;
	const struct contest *contest = tools->end->contest;
	uint32_t nics = tool_count(contest);
	char text[OUTPUT_MAX];
	double gbits = 0, values[16];
	int rc = 0;
	for (uint32_t i = 0; !tools->end->receives && rc == 0 && i < nics; i++)
		rc = tool_start(tools, i, err);
	for (uint32_t i = 0; rc == 0 && i < nics; i++) {
		rc = tool_hear(&tools->tools[i], tool_name(contest), text, err);
		if (rc != 0 || tools->end->receives)
			continue;
		uint32_t count = numbers_find(text, values, ARRAY_SIZE(values));
		if (count < (contest->latency ? 8u : 4u))
			return ws_fail(err, -EPROTO, "%s said no result", tool_name(contest));
		gbits += values[3];
	}
	if (rc != 0 || tools->end->receives)
		return rc;
	if (contest->latency) { /* microseconds of half a round: median, and 99 % */
		outcome->p50_us = values[4];
		outcome->p99_us = values[7];
		return 0;
	}
	if (gbits <= 0)
		return ws_fail(
			err, -EAGAIN,
			"%s couldn't calibrate its clock, as happens on a busy machine, and so "
			"measured nothing; run it again",
			tool_name(contest));
	outcome->ns = (uint64_t)((double)contest_bytes(contest) * 8 / gbits);
	return 0;
}

/* Nothing is said between the ends: the programs meet by host and port. */
const struct contender contender_perftest = {
	.open = tools_open,
	.close = tools_close,
	.arm = tools_arm,
	.run = tools_run,
};
