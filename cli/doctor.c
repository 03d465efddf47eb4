/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightsync doctor: would an update work here?  Looks at the launcher's environment, the host,
 * its devices and NICs; with several ranks it also tries every pair of them (probe.c).
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/doctor.h"
#include "cli/probe.h"
#include "cli/roles.h"

struct doctor_command {
	const char *root, *transport, *provider, *gpu, *nics, *listen, *peer, *hub, *key_file,
		*job_name;
	uint32_t rank, world; /* UINT32_MAX: not given */
	uint32_t start_ms, deadline_ms;
	bool alone, as_json;
};

static void put_verdict(const struct doctor *doctor, bool as_json, struct writer *out)
{
	uint32_t problems = doctor_count(doctor, HEALTH_PROBLEM);
	uint32_t warnings = doctor_count(doctor, HEALTH_WARNING);
	struct json_writer json = {.out = out};

	if (!as_json) {
		write_format(out, "\nan update %s: %u problem%s, %u warning%s\n",
			     problems == 0 ? "would work" : "would not work", problems,
			     problems == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s");
		return;
	}
	json_begin_object(&json, NULL);
	json_put_text(&json, "kind", "verdict");
	json_put_bool(&json, "update_would_work", problems == 0);
	json_put_u64(&json, "problems", problems);
	json_put_u64(&json, "warnings", warnings);
	json_end_object(&json);
	write_format(out, "\n");
}

static int put_result(const struct doctor *doctor, const struct probe *probe, bool as_json)
{
	struct writer out = WRITER_INIT(64u << 20);
	uint32_t world = probe != NULL ? probe_world(probe) : 1;
	int status = EXIT_OK;

	if (as_json)
		doctor_put_json(doctor, &out);
	else
		doctor_put_table(doctor, world, stdout_columns(100), &out);
	if (probe != NULL && as_json)
		probe_put_json(probe, &out);
	else if (probe != NULL)
		probe_put_table(probe, &out);
	put_verdict(doctor, as_json, &out);
	out.failed |= doctor->out_of_memory;
	status = put_stdout(&out);
	writer_release(&out);
	return doctor_count(doctor, HEALTH_PROBLEM) > 0 ? EXIT_FAILED : status;
}

/* What --listen and --peer say in terms of the others; -1 to go on. */
static int settle(const struct command *command, struct doctor_command *given)
{
	if (given->listen != NULL && given->peer != NULL)
		return say_usage(command, "--listen is for one host, --peer for the other");
	const char *address = given->listen != NULL ? given->listen : given->peer;
	if (address != NULL && (given->hub != NULL || given->rank != UINT32_MAX))
		return say_usage(command, "--listen and --peer don't go with --hub and --rank");
	if (address != NULL) {
		given->hub = address;
		given->rank = given->listen != NULL ? 0 : 1;
		given->world = 2;
	}
	if ((given->rank == UINT32_MAX) != (given->world == UINT32_MAX))
		return say_usage(command, "--rank and --world go together");
	if (given->hub == NULL && given->key_file != NULL)
		return say_usage(command, "--key goes with --hub, --listen or --peer");
	if (given->hub != NULL && given->key_file == NULL)
		return say_usage(command,
				 "--key is needed: make one with keygen, the same file for "
				 "all");
	if (given->root[0] != '\0' && given->rank != UINT32_MAX)
		return say_usage(command, "--root looks at files only: no rank can be probed");
	char proc[PATH_MAX];
	snprintf(proc, sizeof(proc), "%s/proc", given->root);
	if (given->root[0] != '\0' && access(proc, R_OK) != 0)
		return say_usage(command, "--root '%s': there is no %s: %s", given->root, proc,
				 strerror(errno));
	return -1;
}

static void examine(struct doctor *doctor, const struct doctor_command *given,
		    const struct devices_wanted *nics, struct devices *devices)
{
	doctor_host(doctor);
	doctor_devices(doctor);
	if (given->root[0] != '\0')
		return;
	doctor_cma(doctor);
	doctor_nics(doctor, nics, devices);
}

static int doctor_look(const struct command *command, struct doctor_command *given,
		       struct doctor *doctor)
{
	struct devices devices = {0};
	struct launch launch;
	struct probe *probe = NULL;
	struct ws_error err = {0};
	struct devices_wanted nics = {.transport = given->transport, .provider = given->provider};
	const char **names = NULL;

	if (given->nics != NULL &&
	    split_list(&doctor->arena, given->nics, &names, &nics.nic_count) != 0)
		return say_failure(&(struct ws_error){.text = "no memory for the list of NICs"});
	nics.nics = names;
	int rc = launch_find(&launch, given->rank != UINT32_MAX, given->rank, given->world,
			     given->job_name, &err);
	if ((rc == 0 || rc == -ENOENT) && launch_gpu(&launch, &given->gpu, &err) != 0)
		return say_usage(command, "%s", err.text);
	nics.gpu = given->gpu;
	bool probes = rc == 0 && launch.world > 1 && !given->alone && given->root[0] == '\0';
	if (probes && launch.world > PROBE_RANKS_MAX)
		return say_usage(command,
				 "at most %d ranks are probed, not %u: a rank for each host "
				 "is enough",
				 PROBE_RANKS_MAX, launch.world);
	doctor->ranks = probes ? UINT64_C(1) << launch.rank : 1;
	doctor_launch(doctor, &launch, rc, &err);
	examine(doctor, given, &nics, &devices);
	if (probes) {
		catch_signals(); /* a folder may have to be removed */
		probe = probe_run(doctor, &(struct probe_options){.launch = &launch,
								  .devices = &devices,
								  .hub = given->hub,
								  .key_file = given->key_file,
								  .start_ms = given->start_ms,
								  .step_ms = given->deadline_ms});
	}
	int status;
	/* All ranks know the same; one tells it, unless they never met. */
	if (!probes || launch.rank == 0 || !probe_has_met(probe))
		status = put_result(doctor, probe, given->as_json);
	else
		status = doctor_count(doctor, HEALTH_PROBLEM) > 0 ? EXIT_FAILED : EXIT_OK;
	probe_free(probe);
	return status;
}

static int doctor_run(const struct command *command, int argc, char **argv)
{
	struct doctor_command given = {.root = "",
				       .rank = UINT32_MAX,
				       .world = UINT32_MAX,
				       .start_ms = 30000,
				       .deadline_ms = 10000};
	struct option_spec options[] = {
		OPTIONS_OF_NICS(given, given.nics),
		{"listen", 0, OPTION_TEXT, &given.listen, "HOST:PORT",
		 "two hosts: the one that waits; with --key"},
		{"peer", 0, OPTION_TEXT, &given.peer, "HOST:PORT",
		 "two hosts: where the other one listens; with --key"},
		{"hub", 0, OPTION_TEXT, &given.hub, "ENDPOINT",
		 "rank 0's address; several hosts need it"},
		{"key", 0, OPTION_TEXT, &given.key_file, "FILE", "the run's key file"},
		{"rank", 0, OPTION_COUNT, &given.rank, "N", "without a launcher: this process"},
		{"world", 0, OPTION_COUNT, &given.world, "N", "without a launcher: all processes"},
		{"job", 0, OPTION_TEXT, &given.job_name, "NAME", "names the job on this host"},
		{"alone", 0, OPTION_FLAG, &given.alone, NULL,
		 "under a launcher: look at this host only, probe nobody"},
		{"root", 0, OPTION_TEXT, &given.root, "DIR",
		 "read /proc, /sys and /dev below it: a host's root in a container"},
		{"start-deadline", 0, OPTION_MS, &given.start_ms, "TIME",
		 "for all ranks to meet (default 30s)"},
		{"deadline", 0, OPTION_MS, &given.deadline_ms, "TIME",
		 "for each step of the probe (default 10s)"},
		{"json", 0, OPTION_FLAG, &given.as_json, NULL, "one object a line"},
	};
	struct doctor doctor = {.ranks = 1};

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status < 0)
		status = settle(command, &given);
	if (status >= 0)
		return status;
	doctor.root = given.root;
	status = doctor_look(command, &given, &doctor);
	arena_release(&doctor.arena);
	return status;
}

const struct command command_doctor = {
	.name = "doctor",
	.summary = "Says whether an update would work here, and how to mend what is in its way",
	.usage = "[--transport NAME] [--nics A,B] [--listen|--peer HOST:PORT --key FILE] [--json]",
	.more = "Under mpirun, srun or torchrun, and with --listen and --peer, every rank writes to every\n"
		"other: content, immediates, latency, bandwidth.\n"
		"Exit status: 0 an update would work (perhaps with warnings), 1 it would not, 2 usage.\n"
		"Examples:\n"
		"  weightsync doctor\n"
		"  mpirun -n 4 weightsync doctor\n"
		"  weightsync doctor --listen 10.0.0.1:7000 --key run.key    (there)\n"
		"  weightsync doctor --peer 10.0.0.1:7000 --key run.key      (here)\n",
	.run = doctor_run,
};
