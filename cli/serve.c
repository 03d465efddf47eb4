/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync serve: one rollout rank beside the job: holds weights, runs a command when they
 * change. */
#include <errno.h>
#include <string.h>

#include "cli/roles.h"

static int load_rollout(struct job *job, const char *manifest, const char *trainer,
			struct ws_error *err)
{
	int rc = load_manifest(manifest, SIDE_ROLLOUT, &job->rollout, &job->rollout_text,
			       &job->rollout_bytes, err);
	if (rc != 0)
		return rc;
	if (job->world != manifest_world(job->rollout))
		return ws_fail(err, -EINVAL, "the manifest has %u ranks, --world says %u",
			       manifest_world(job->rollout), job->world);
	if (!job->verify)
		return 0;
	rc = load_manifest(trainer, SIDE_TRAINER, &job->trainer, &job->trainer_text,
			   &job->trainer_bytes, err);
	return rc == 0 ? checkpoint_open(&job->checkpoint, job->checkpoint_path, err) : rc;
}

static int serve_run(const struct command *command, int argc, char **argv)
{
	struct job job = JOB_DEFAULT;
	const char *manifest = NULL, *trainer = NULL, *nics = NULL;
	uint32_t rank = UINT32_MAX, world = UINT32_MAX;
	struct option_spec options[] = {
		{"hub", 0, OPTION_TEXT, &job.hub, "ENDPOINT", "the run's hub"},
		{"key", 0, OPTION_TEXT, &job.key_file, "FILE", "the run's key file"},
		{"rollout", 0, OPTION_TEXT, &manifest, "FILE", "the replica's manifest"},
		{"replica", 0, OPTION_COUNT, &job.replica, "N",
		 "which replica this rank belongs to (default 0)"},
		{"rank", 0, OPTION_COUNT, &rank, "N",
		 "rank in the replica (default: the launcher's)"},
		{"world", 0, OPTION_COUNT, &world, "N", "ranks of the replica"},
		{"inplace", 0, OPTION_FLAG, &job.inplace, NULL,
		 "write straight into the paused memory"},
		{"memory", 0, OPTION_TEXT, &job.rollout_memory, "KIND", MEMORY_KINDS},
		{"on-reload", 0, OPTION_TEXT, &job.on_reload, "exec:CMD",
		 "run CMD (argv, no shell) when a version has landed"},
		{"reload-deadline", 0, OPTION_MS, &job.reload_ms, "TIME",
		 "for that command (default 60s)"},
		{"dump", 0, OPTION_TEXT, &job.dump, "FILE",
		 "write each live version as safetensors"},
		{"verify", 0, OPTION_FLAG, &job.verify, NULL,
		 "compare every byte; needs the next two"},
		{"trainer", 0, OPTION_TEXT, &trainer, "FILE", "the trainer's manifest"},
		{"checkpoint", 0, OPTION_TEXT, &job.checkpoint_path, "DIR",
		 "what the trainers push"},
		{"change", 0, OPTION_FLAG, &job.change, NULL,
		 "... and change, if they push with --change"},
		OPTIONS_OF_NICS(job, nics),
		{"host", 0, OPTION_TEXT, &job.host, "NAME",
		 "this host's name for --fanout node, where its own says nothing"},
		{"start-deadline", 0, OPTION_MS, &job.start_ms, "TIME",
		 "for everybody to meet (default 60s)"},
		{"verbose", 'v', OPTION_FLAG, &job.verbose, NULL,
		 "say when an update begins, has landed, is live"},
	};
	struct ws_error err = {0};
	struct arena arena = {0};

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (job.hub == NULL || job.key_file == NULL || manifest == NULL)
		return say_usage(command, "--hub, --key and --rollout are needed");
	if (job.verify && (trainer == NULL || job.checkpoint_path == NULL))
		return say_usage(command, "--verify needs --trainer and --checkpoint");
	if (job.on_reload != NULL && strncmp(job.on_reload, "exec:", 5) != 0)
		return say_usage(command, "--on-reload '%s': only exec:CMD is built in",
				 job.on_reload);
	status = job_find_rank(&job, command, rank, world, nics, &arena);
	if (status < 0 && load_rollout(&job, manifest, trainer, &err) != 0)
		status = say_failure(&err);
	if (status < 0) {
		catch_signals();
		status = rollout_role(&job);
	}
	job_release(&job);
	arena_release(&arena);
	return status;
}

const struct command command_serve = {
	.name = "serve",
	.summary = "Holds one rollout rank's weights and runs a command when a version has landed",
	.usage = "--hub ENDPOINT --key FILE --rollout R.json [--replica N] [--on-reload exec:CMD]",
	.more = "CMD finds WEIGHTSYNC_VERSION, WEIGHTSYNC_DIGEST, WEIGHTSYNC_REPLICA and WEIGHTSYNC_RANK in its\n"
		"environment; a non-zero exit poisons the replica.  With several ranks --dump writes\n"
		"rankN.FILE each.\n",
	.run = serve_run,
};
