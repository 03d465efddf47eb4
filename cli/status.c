/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync status: asks a run's hub who is in it and what they do. */
#include <string.h>

#include "cli/cli.h"
#include "lib/hub/hub.h"

#define NAME_COLUMN 16

/* Below a member's line: what is too long for a column. */
static void put_more(struct writer *out, const char *text)
{
	if (text[0] == '\0')
		return;
	write_format(out, "%-*s ", NAME_COLUMN, "");
	put_folded(out, text, NAME_COLUMN + 1, stdout_columns(UINT32_MAX));
}

static void put_member(struct writer *out, const struct json *member)
{
	char version[24] = "-", sent[32], received[32];
	int64_t number = json_integer(member, "version", 0);
	/* 0: a rollout holds none yet, a trainer pushes none now. */
	if (number != 0)
		snprintf(version, sizeof(version), "%lld", (long long)number);
	write_format(
		out, "%-*s %-10s %9s  %9s %9s  %s\n", NAME_COLUMN, json_text(member, "name", "?"),
		json_text(member, "state", "?"), version,
		format_bytes((uint64_t)json_integer(member, "bytes_sent", 0), sent, sizeof(sent)),
		format_bytes((uint64_t)json_integer(member, "bytes_received", 0), received,
			     sizeof(received)),
		json_text(member, "host", ""));
	put_more(out, json_text(member, "nics_chosen", ""));
	put_more(out, json_text(member, "nic_trouble", ""));
}

/* What goes on as a whole, and what keeps it from going on. */
static void put_run(struct writer *out, const struct json *status)
{
	const char *state = json_text(status, "state", "?");
	const char *last_error = json_text(status, "last_error", "");
	const char *waits_for = json_text(status, "waits_for", "");
	const struct json *replicas = json_get(status, "replicas");

	write_format(out, "state %s  generation %lld  attempt %lld  version %lld\n", state,
		     (long long)json_integer(status, "generation", 0),
		     (long long)json_integer(status, "attempt", 0),
		     (long long)json_integer(status, "version", 0));
	if (last_error[0] != '\0')
		write_format(out, "last error: %s\n", last_error);
	if (strcmp(state, "ended") == 0)
		return;
	if (waits_for[0] != '\0')
		write_format(out, "waits: %s\n", waits_for);
	for (const struct json *at = replicas ? replicas->first : NULL; at != NULL; at = at->next) {
		const char *why = json_text(at, "error", "");
		if (why[0] != '\0')
			write_format(out, "replica %lld: %s\n",
				     (long long)json_integer(at, "replica", 0), why);
	}
}

/* The hub answers in JSON; a person gets a table. */
static int put_table(struct writer *out, const struct writer *answer, struct ws_error *err)
{
	struct arena arena = {0};
	const struct json *status = NULL;
	const struct json_limits limits = JSON_LIMITS_MANIFEST;

	int rc = json_parse(&arena, answer->bytes, answer->count, &limits, &status, err);
	if (rc == 0) {
		put_run(out, status);
		write_format(out, "\n%-*s %-10s %9s  %9s %9s  %s\n", NAME_COLUMN, "member", "state",
			     "version", "sent", "received", "host; below: NICs");
		const struct json *members = json_get(status, "members");
		for (const struct json *at = members ? members->first : NULL; at != NULL;
		     at = at->next)
			put_member(out, at);
	}
	arena_release(&arena);
	return rc;
}

static int status_run(const struct command *command, int argc, char **argv)
{
	const char *hub = NULL, *key_file = NULL;
	uint32_t deadline_ms = 10000;
	bool as_json = false;
	struct option_spec options[] = {
		{"hub", 0, OPTION_TEXT, &hub, "ENDPOINT", "the run's hub, tcp://host:port"},
		{"key", 0, OPTION_TEXT, &key_file, "FILE", "the run's key file"},
		{"deadline", 0, OPTION_MS, &deadline_ms, "TIME",
		 "how long to wait for the answer (default 10s)"},
		{"json", 0, OPTION_FLAG, &as_json, NULL, "the hub's answer as one object"},
	};
	struct ws_error err = {0};
	struct run_key key;
	struct writer answer = WRITER_INIT(64u << 20), table = WRITER_INIT(64u << 20);

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (hub == NULL || key_file == NULL)
		return say_usage(command, "--hub and --key are needed");
	int rc = run_key_read(&key, key_file, &err);
	if (rc == 0)
		rc = hub_ask_status(hub, &key, deadline_ms, &answer, &err);
	run_key_wipe(&key);
	if (rc == 0 && as_json)
		write_bytes(&answer, "\n", 1);
	if (rc == 0 && !as_json)
		rc = put_table(&table, &answer, &err);
	status = rc != 0 ? say_failure(&err) : put_stdout(as_json ? &answer : &table);
	writer_release(&answer);
	writer_release(&table);
	return status;
}

const struct command command_status = {
	.name = "status",
	.summary = "Asks a run's hub for its members, their versions, states and bytes",
	.usage = "--hub ENDPOINT --key FILE [--json]",
	.run = status_run,
};
