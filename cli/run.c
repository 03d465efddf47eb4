/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightsync run: the whole job under a launcher.  The rank decides the role: the trainer's world
 * first, then replica 0, 1, ...
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/roles.h"

struct run_command {
	const char *trainer_file, *rollout_file, *nics, *job_name, *fanout;
	uint32_t rank, world; /* UINT32_MAX: not given */
};

static int load_job(struct job *job, const struct run_command *given, struct ws_error *err)
{
	int rc = load_manifest(given->trainer_file, SIDE_TRAINER, &job->trainer, &job->trainer_text,
			       &job->trainer_bytes, err);
	if (rc == 0)
		rc = load_manifest(given->rollout_file, SIDE_ROLLOUT, &job->rollout,
				   &job->rollout_text, &job->rollout_bytes, err);
	if (rc != 0)
		return rc;
	return checkpoint_open(&job->checkpoint, job->checkpoint_path, err);
}

/* Which side, replica and rank this process is. */
static int find_role(struct job *job, bool *trains_out, struct ws_error *err)
{
	uint32_t trainers = manifest_world(job->trainer), ranks = manifest_world(job->rollout);
	uint32_t want = trainers + job->replicas * ranks, rank = job->launch.rank;
	if (job->launch.world != want)
		return ws_fail(
			err, -EINVAL,
			"%u trainer ranks and %u replicas of %u ranks need %u processes, not %u (from %s)",
			trainers, job->replicas, ranks, want, job->launch.world,
			job->launch.source);
	*trains_out = rank < trainers;
	job->world = *trains_out ? trainers : ranks;
	job->rank = *trains_out ? rank : (rank - trainers) % ranks;
	job->replica = *trains_out ? 0 : (rank - trainers) / ranks;
	return 0;
}

static int play_role(struct job *job, bool trains)
{
	struct ws_error err = {0};
	char who[32];
	int rc = 0, status;

	snprintf(who, sizeof(who), "rank %u", job->launch.rank);
	job->hub_here = job->launch.rank == 0;
	if (job->hub == NULL && job->launch.rank == 0) {
		rc = rendezvous_make(&job->meet, &job->launch, &err);
		job->hub = "tcp://127.0.0.1:*";
		job->key_file = job->meet.key_file;
	} else if (job->hub == NULL) {
		end_on_signal(who);
		rc = rendezvous_find(&job->meet, &job->launch, job->endpoint, sizeof(job->endpoint),
				     deadline_in_ms(job->start_ms), &err);
		end_on_signal(NULL);
		job->hub = job->endpoint;
		job->key_file = job->meet.key_file;
	}
	if (rc != 0)
		status = say_failure(&err);
	else if (trains)
		status = trainer_role(job);
	else
		status = rollout_role(job);
	rendezvous_end(&job->meet);
	return status;
}

static int run_run(const struct command *command, int argc, char **argv)
{
	struct job job = JOB_DEFAULT;
	struct run_command given = {.fanout = "none", .rank = UINT32_MAX, .world = UINT32_MAX};
	struct rules *rules = &job.rules;
	struct option_spec options[] = {
		{"trainer", 0, OPTION_TEXT, &given.trainer_file, "FILE", "the trainer's manifest"},
		{"rollout", 0, OPTION_TEXT, &given.rollout_file, "FILE", "a replica's manifest"},
		{"replicas", 0, OPTION_COUNT, &job.replicas, "N", "how many replicas (default 1)"},
		{"checkpoint", 0, OPTION_TEXT, &job.checkpoint_path, "DIR",
		 "what the trainers start from"},
		{"updates", 0, OPTION_COUNT, &job.updates, "N", "versions to push (default 1)"},
		{"verify", 0, OPTION_FLAG, &job.verify, NULL,
		 "rollouts compare every byte of every version"},
		{"inplace", 0, OPTION_FLAG, &job.inplace, NULL,
		 "write straight into the engine's paused memory"},
		OPTIONS_OF_NICS(job, given.nics),
		{"trainer-memory", 0, OPTION_TEXT, &job.trainer_memory, "KIND",
		 "where trainers have their params: " TRAINER_MEMORY_KINDS},
		{"rollout-memory", 0, OPTION_TEXT, &job.rollout_memory, "KIND", "likewise"},
		{"op-bytes", 0, OPTION_BYTES, &rules->op_bytes, "SIZE",
		 "largest write (default 1M)"},
		{"staging-bytes", 0, OPTION_BYTES, &job.staging_bytes, "SIZE",
		 "a trainer's staging, at most (default 64M, of a GPU up to 512M)"},
		{"offload-bytes", 0, OPTION_BYTES, &job.offload_bytes, "SIZE",
		 "a GPU's memory that offloaded params come through (default 512M)"},
		{"recv-staging-bytes", 0, OPTION_BYTES, &rules->recv_staging_bytes, "SIZE",
		 "a rollout's staging ring, at most (default 64M)"},
		{"run-bytes", 0, OPTION_BYTES, &rules->run_bytes_min, "SIZE",
		 "strided runs below it go through the ring (default 64K)"},
		{"bucket-bytes", 0, OPTION_BYTES, &rules->bucket_bytes, "SIZE",
		 "bytes of a bucket (default: about a layer)"},
		{"wire-digests", 0, OPTION_FLAG, &rules->wire_digests, NULL,
		 "hash every write at both ends"},
		{"barrier", 0, OPTION_FLAG, &rules->barrier, NULL,
		 "no replica commits before all have landed"},
		{"fanout", 0, OPTION_TEXT, &given.fanout, "KIND",
		 "none, node or replica: what rollouts pass on (default none)"},
		{"ranks-per-node", 0, OPTION_COUNT, &job.ranks_per_node, "N",
		 "to try --fanout: so many ranks of a replica call themselves one host; ipc joins them all"},
		{"rank", 0, OPTION_COUNT, &given.rank, "N", "without a launcher: this process"},
		{"world", 0, OPTION_COUNT, &given.world, "N", "without a launcher: all processes"},
		{"job", 0, OPTION_TEXT, &given.job_name, "NAME", "names the job on this host"},
		{"hub", 0, OPTION_TEXT, &job.hub, "ENDPOINT",
		 "rank 0's address; several hosts need it"},
		{"key", 0, OPTION_TEXT, &job.key_file, "FILE", "the run's key file; with --hub"},
		{"deadline", 0, OPTION_MS, &job.deadline_ms, "TIME", "for one push (default 2m)"},
		{"start-deadline", 0, OPTION_MS, &job.start_ms, "TIME",
		 "for everybody to meet (default 60s)"},
		{"lost-after", 0, OPTION_MS, &job.lost_ms, "TIME",
		 "silence that loses a member (default 5s)"},
		{"phase-deadline", 0, OPTION_MS, &job.phase_ms, "TIME",
		 "for each phase of a rank (default 60s)"},
		{"json", 0, OPTION_FLAG, &job.as_json, NULL, "rank 0: one object per version"},
		{"verbose", 'v', OPTION_FLAG, &job.verbose, NULL,
		 "rollouts say when an update begins, has landed, is live"},
	};
	struct ws_error err = {0};
	struct arena arena = {0};
	bool trains = false;

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (given.trainer_file == NULL || given.rollout_file == NULL || job.checkpoint_path == NULL)
		return say_usage(command, "--trainer, --rollout and --checkpoint are needed");
	if ((given.rank == UINT32_MAX) != (given.world == UINT32_MAX))
		return say_usage(command, "--rank and --world go together");
	if ((job.hub == NULL) != (job.key_file == NULL))
		return say_usage(command, "--hub and --key go together");
	if (job.replicas == 0 || job.updates == 0)
		return say_usage(command, "--replicas and --updates begin at 1");
	if (job.offload_bytes < OFFLOAD_BYTES_MIN)
		return say_usage(command, "--offload-bytes begins at %u", OFFLOAD_BYTES_MIN);
	if (fanout_parse(given.fanout, &rules->fanout, &err) != 0 || rules_check(rules, &err) != 0)
		return say_usage(command, "%s", err.text);
	if (launch_find(&job.launch, given.rank != UINT32_MAX, given.rank, given.world,
			given.job_name, &err) != 0 ||
	    launch_gpu(&job.launch, &job.gpu, &err) != 0)
		return say_usage(command, "%s", err.text);
	if (given.nics != NULL && split_list(&arena, given.nics, &job.nics, &job.nic_count) != 0)
		status = EXIT_FAILED;
	else if (load_job(&job, &given, &err) != 0)
		status = say_failure(&err);
	else if (find_role(&job, &trains, &err) != 0)
		status = say_usage(command, "%s", err.text);
	if (status < 0) {
		job.change = true;
		catch_signals();
		status = play_role(&job, trains);
	}
	job_release(&job);
	arena_release(&arena);
	return status;
}

const struct command command_run = {
	.name = "run",
	.summary =
		"Runs a whole job under mpirun, srun or torchrun: trainers push, rollouts verify",
	.usage =
		"--trainer T.json --rollout R.json --replicas N --checkpoint DIR [--updates N] [--verify]",
	.more = "The first ranks are the trainers, then come the replicas.  MPI launches; it moves no data.\n"
		"Exit status: 0 ok, 1 failure, 2 usage, 3 verification found a difference.  Example:\n"
		"  mpirun -n 7 weightsync run --trainer T.json --rollout R.json --replicas 2 \\\n"
		"      --checkpoint DIR --updates 3 --verify\n",
	.run = run_run,
};
