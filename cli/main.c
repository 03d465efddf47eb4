/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightsync: the map of the program.
 *
 *   keygen                   the run's key file                keygen.c
 *   synth, manifest, plan    a checkpoint, its layouts, who    synth.c manifest.c plan.c
 *                            sends what
 *   simulate                 how long that takes, where        simulate.c
 *   run                      a whole job under a launcher,     run.c trainer_role.c rollout_role.c
 *                            verified                          oracle*.c
 *   hub, push, serve         the same, as separate processes   hub.c push.c serve.c
 *   status, nics, bench      looking at a run, a host, speed   status.c nics.c bench.c
 *   doctor                   would an update work here?        doctor*.c meeting.c probe*.c
 *
 * Shared by them: options.c output.c launch.c load.c places.c params.c job.c.  Each command is one
 * arrow of the picture in README.md; what it does is in planner/, lib/ and the two sides.
 */
#include <signal.h>
#include <string.h>

#include "cli/cli.h"

static const struct command *const commands[] = {
	&command_keygen, &command_synth,  &command_manifest, &command_plan, &command_simulate,
	&command_hub,	 &command_push,	  &command_serve,    &command_run,  &command_bench,
	&command_nics,	 &command_doctor, &command_status,
};

static void print_help(FILE *out)
{
	fputs("usage: weightsync <command> [options]\n\n", out);
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
	fputs("\nweightsync <command> --help tells more.  Exit status: 0 ok, 1 failure, 2 usage,\n"
	      "3 verification found a difference.\n",
	      out);
}

int main(int argc, char **argv)
{
	/* A peer that dies must be an error code, never a signal. */
	signal(SIGPIPE, SIG_IGN);
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
	    strcmp(argv[1], "help") == 0) {
		print_help(stdout);
		return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("weightsync %s\n", WS_VERSION);
		return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
	}
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		if (strcmp(argv[1], commands[i]->name) == 0)
			return commands[i]->run(commands[i], argc - 1, argv + 1);
	}
	fprintf(stderr, "weightsync: there is no command '%s'; see weightsync --help\n", argv[1]);
	return EXIT_USAGE;
}
