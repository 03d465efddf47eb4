/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync hub: the run's meeting point as a process of its own. */
#include <signal.h>
#include <string.h>

#include "cli/cli.h"
#include "lib/hub/hub.h"

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

/* Until a signal, or until the hub gives the run up. */
static int serve_until_stopped(const struct hub_options *wanted, struct ws_error *err)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct hub *hub = NULL;

	int rc = hub_open(&hub, wanted, err);
	if (rc != 0)
		return rc;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	printf("%s\n", hub_endpoint(hub));
	fflush(stdout);
	while (!stop && rc == 0) {
		sleep_ns(100000000);
		rc = hub_failed(hub, err);
	}
	hub_close(hub);
	return rc;
}

/* Who writes to rollouts, as the hub needs to know it. */
static const enum hub_forward forwards[] = {
	[FANOUT_NONE] = HUB_FORWARD_NONE,
	[FANOUT_NODE] = HUB_FORWARD_INSIDE,
	[FANOUT_REPLICA] = HUB_FORWARD_CHAIN,
};

static int hub_run(const struct command *command, int argc, char **argv)
{
	const char *key_file = NULL, *fanout = "none";
	struct hub_options wanted = {.endpoint = "tcp://127.0.0.1:*", .min_replicas = 1};
	struct rules rules = RULES_DEFAULT;
	struct option_spec options[] = {
		{"bind", 0, OPTION_TEXT, &wanted.endpoint, "ENDPOINT",
		 "tcp://address:port (default 127.0.0.1:*)"},
		{"key", 0, OPTION_TEXT, &key_file, "FILE", "the run's key file"},
		{"trainers", 0, OPTION_COUNT, &wanted.trainer_count, "N",
		 "ranks of the trainers' world"},
		{"replica-ranks", 0, OPTION_COUNT, &wanted.replica_ranks, "N",
		 "ranks of one replica"},
		{"min-replicas", 0, OPTION_COUNT, &wanted.min_replicas, "N",
		 "replicas to start with, and to call a push done (default 1)"},
		{"op-bytes", 0, OPTION_BYTES, &rules.op_bytes, "SIZE",
		 "largest write (default 1M)"},
		{"recv-staging-bytes", 0, OPTION_BYTES, &rules.recv_staging_bytes, "SIZE",
		 "a rollout's staging ring (default 64M)"},
		{"wire-digests", 0, OPTION_FLAG, &rules.wire_digests, NULL,
		 "hash every write at both ends"},
		{"barrier", 0, OPTION_FLAG, &wanted.barrier, NULL,
		 "no replica commits before all have landed"},
		{"fanout", 0, OPTION_TEXT, &fanout, "KIND",
		 "none, node or replica: what rollouts pass on (default none)"},
		{"join-deadline", 0, OPTION_MS, &wanted.join_ms, "TIME",
		 "for everybody to join (default 60s)"},
		{"lost-after", 0, OPTION_MS, &wanted.lost_ms, "TIME",
		 "silence that loses a member (default 5s)"},
		{"phase-deadline", 0, OPTION_MS, &wanted.phase_ms, "TIME",
		 "for each phase of a rank (default 60s)"},
	};
	struct ws_error err = {0};
	struct run_key key;
	struct writer rules_text = WRITER_INIT(4096);

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (key_file == NULL || wanted.trainer_count == 0 || wanted.replica_ranks == 0)
		return say_usage(command, "--key, --trainers and --replica-ranks are needed");
	if (fanout_parse(fanout, &rules.fanout, &err) != 0)
		return say_usage(command, "%s", err.text);
	int rc = rules_check(&rules, &err);
	if (rc == 0)
		rc = run_key_read(&key, key_file, &err);
	if (rc == 0) {
		rules.barrier = wanted.barrier;
		wanted.forward = forwards[rules.fanout];
		rules_encode(&rules, &rules_text);
		wanted.rules = rules_text.bytes;
		wanted.rules_bytes = (uint32_t)rules_text.count;
		wanted.key = &key;
		rc = serve_until_stopped(&wanted, &err);
	}
	run_key_wipe(&key);
	writer_release(&rules_text);
	return rc == 0 ? EXIT_OK : say_failure(&err);
}

const struct command command_hub = {
	.name = "hub",
	.summary = "Runs the hub, where the members of a run meet, until a signal ends it",
	.usage = "--key FILE --trainers N --replica-ranks N [--bind ENDPOINT]",
	.more = "Prints the endpoint that members give to --hub.\n",
	.run = hub_run,
};
