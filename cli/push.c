/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync push: one trainer rank beside the job: a checkpoint's weights, as one or more
 * versions. */
#include <errno.h>

#include "cli/roles.h"

static int load_trainer(struct job *job, const char *manifest, struct ws_error *err)
{
	int rc = load_manifest(manifest, SIDE_TRAINER, &job->trainer, &job->trainer_text,
			       &job->trainer_bytes, err);
	if (rc != 0)
		return rc;
	if (job->world != manifest_world(job->trainer))
		return ws_fail(err, -EINVAL, "the manifest has %u ranks, --world says %u",
			       manifest_world(job->trainer), job->world);
	return checkpoint_open(&job->checkpoint, job->checkpoint_path, err);
}

static int push_run(const struct command *command, int argc, char **argv)
{
	struct job job = JOB_DEFAULT;
	const char *manifest = NULL, *nics = NULL;
	uint32_t rank = UINT32_MAX, world = UINT32_MAX;
	struct option_spec options[] = {
		{"hub", 0, OPTION_TEXT, &job.hub, "ENDPOINT",
		 "the run's hub, as `weightsync hub` prints it"},
		{"key", 0, OPTION_TEXT, &job.key_file, "FILE", "the run's key file"},
		{"trainer", 0, OPTION_TEXT, &manifest, "FILE", "the trainer's manifest"},
		{"checkpoint", 0, OPTION_TEXT, &job.checkpoint_path, "DIR", "the weights to push"},
		{"version", 0, OPTION_U64, &job.first_version, "N",
		 "the first version's number (default 1)"},
		{"updates", 0, OPTION_COUNT, &job.updates, "N", "versions to push (default 1)"},
		{"change", 0, OPTION_FLAG, &job.change, NULL,
		 "flip mantissa bits by version, so that versions can be told apart"},
		{"interval", 0, OPTION_MS, &job.interval_ms, "TIME",
		 "rest between two versions (default 0s)"},
		{"rank", 0, OPTION_COUNT, &rank, "N", "this trainer (default: the launcher's)"},
		{"world", 0, OPTION_COUNT, &world, "N", "all trainers"},
		OPTIONS_OF_NICS(job, nics),
		{"memory", 0, OPTION_TEXT, &job.trainer_memory, "KIND", TRAINER_MEMORY_KINDS},
		{"staging-bytes", 0, OPTION_BYTES, &job.staging_bytes, "SIZE",
		 "staging, at most (default 64M, of a GPU up to 512M)"},
		{"offload-bytes", 0, OPTION_BYTES, &job.offload_bytes, "SIZE",
		 "a GPU's memory that offloaded params come through (default 512M)"},
		{"deadline", 0, OPTION_MS, &job.deadline_ms, "TIME", "for one push (default 2m)"},
		{"start-deadline", 0, OPTION_MS, &job.start_ms, "TIME",
		 "for everybody to meet (default 60s)"},
		{"keep-going", 0, OPTION_FLAG, &job.keep_going, NULL,
		 "say that a version failed and push it again"},
		{"json", 0, OPTION_FLAG, &job.as_json, NULL, "rank 0: one object per push"},
	};
	struct ws_error err = {0};
	struct arena arena = {0};

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (job.hub == NULL || job.key_file == NULL || manifest == NULL ||
	    job.checkpoint_path == NULL)
		return say_usage(command, "--hub, --key, --trainer and --checkpoint are needed");
	if (job.first_version == 0 || job.updates == 0)
		return say_usage(command, "--version and --updates begin at 1");
	if (job.offload_bytes < OFFLOAD_BYTES_MIN)
		return say_usage(command, "--offload-bytes begins at %u", OFFLOAD_BYTES_MIN);
	status = job_find_rank(&job, command, rank, world, nics, &arena);
	if (status < 0 && load_trainer(&job, manifest, &err) != 0)
		status = say_failure(&err);
	if (status < 0) {
		catch_signals();
		status = trainer_role(&job);
	}
	job_release(&job);
	arena_release(&arena);
	return status;
}

const struct command command_push = {
	.name = "push",
	.summary = "Pushes a checkpoint's weights as one trainer rank of a run",
	.usage = "--hub ENDPOINT --key FILE --trainer T.json --checkpoint DIR [--version N]",
	.more = "Every version is the checkpoint as it is, unless --change flips mantissa bits.\n"
		"With --keep-going a rank that was restarted is given the version that the others push; the exit\n"
		"status is 1 if any push failed.\n",
	.run = push_run,
};
