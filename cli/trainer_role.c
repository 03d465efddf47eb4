/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer rank of a job: fills its params from the checkpoint, then per version changes them,
 * pushes, and (rank 0) says what happened.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cli/roles.h"

#define TRIES_MAX    100 /* pushes of one version with --keep-going */
#define TRY_AGAIN_NS UINT64_C(200000000)

#define REPORT_INDENT 4

/* What the versions of a run have come to. */
struct total {
	uint64_t verified;
	struct sent sent;
};

/* What rank 0 prints of one version. */
struct outcome {
	const struct ws_report *report;
	uint64_t bytes;		      /* that the replicas have received */
	uint64_t verified, different; /* by all rollout ranks */
	uint32_t verified_ranks;
	const struct ws_error *error; /* of the push */
};

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

static void put_phases(struct json_writer *json, const struct ws_report *report)
{
	json_begin_object(json, "phases");
	json_put_number(json, "begin", seconds(report->begin_ns), 6);
	json_put_number(json, "stage", seconds(report->stage_ns), 6);
	json_put_number(json, "exchange", seconds(report->exchange_ns), 6);
	json_put_number(json, "h2d", seconds(report->h2d_ns), 6);
	json_put_number(json, "quantize", seconds(report->quantize_ns), 6);
	json_put_number(json, "write", seconds(report->write_ns), 6);
	json_put_number(json, "landed", seconds(report->landed_ns), 6);
	json_put_number(json, "pause", seconds(report->pause_ns), 6);
	json_put_number(json, "reload", seconds(report->reload_ns), 6);
	json_end_object(json);
}

static void put_replicas(struct json_writer *json, const struct ws_report *report)
{
	json_begin_array(json, "replicas");
	for (uint32_t i = 0; i < report->replica_count; i++) {
		const struct ws_replica_report *replica = &report->replicas[i];
		json_begin_object(json, NULL);
		json_put_u64(json, "replica", replica->replica);
		json_put_bool(json, "live", replica->live);
		json_put_u64(json, "version", replica->live_version);
		json_put_u64(json, "bytes", replica->bytes);
		json_put_u64(json, "bytes_from_rollouts", replica->bytes_from_rollouts);
		json_put_text(json, "error", replica->text);
		json_end_object(json);
	}
	json_end_array(json);
}

static int put_json(const struct ws_trainer *trainer, const struct outcome *outcome)
{
	const struct ws_report *report = outcome->report;
	struct writer out = WRITER_INIT(1u << 20);
	struct json_writer json = {.out = &out};

	json_begin_object(&json, NULL);
	json_put_u64(&json, "version", report->version);
	json_put_bool(&json, "ok", outcome->error->code == 0 && outcome->different == 0);
	json_put_number(&json, "seconds", seconds(report->total_ns), 6);
	json_put_u64(&json, "bytes", outcome->bytes);
	json_put_u64(&json, "verified_bytes", outcome->verified);
	json_put_u64(&json, "different_bytes", outcome->different);
	put_phases(&json, report);
	json_begin_array(&json, "nics");
	for (uint32_t i = 0; i < report->nic_count; i++) {
		json_begin_object(&json, NULL);
		json_put_text(&json, "transport", report->nics[i].transport);
		json_put_text(&json, "name", report->nics[i].name);
		json_put_text(&json, "memory", report->nics[i].memory);
		json_put_u64(&json, "peers", report->nics[i].peer_count);
		json_put_u64(&json, "bytes_sent", report->nics[i].bytes_sent);
		json_put_bool(&json, "down", report->nics[i].down);
		json_put_text(&json, "trouble", report->nics[i].trouble);
		json_end_object(&json);
	}
	json_end_array(&json);
	json_put_text(&json, "nics_chosen", ws_trainer_nics(trainer));
	json_put_text(&json, "nic_trouble", report->nic_trouble);
	put_replicas(&json, report);
	json_put_u64(&json, "attempt", report->attempt);
	json_put_u64(&json, "staging_high_bytes", report->staging_high_bytes);
	json_put_u64(&json, "offload_high_bytes", report->offload_high_bytes);
	json_put_u64(&json, "h2d_bytes", report->h2d_bytes);
	json_put_text(&json, "slowest_peer", report->slowest_peer);
	json_put_text(&json, "error", outcome->error->text);
	json_end_object(&json);
	write_format(&out, "\n");
	int status = put_stdout(&out);
	writer_release(&out);
	return status;
}

/* A line of the version, and below it where its seconds went; and what a NIC suffered. */
static int put_lines(const struct outcome *outcome)
{
	const struct ws_report *report = outcome->report;
	struct writer out = WRITER_INIT(65536);
	char size[32], checked[32];

	if (outcome->error->code != 0)
		return EXIT_OK; /* the sentence follows on stderr */
	write_format(&out, "version %" PRIu64 "  %.3f s  %s  %.2f GB/s", report->version,
		     seconds(report->total_ns), format_bytes(outcome->bytes, size, sizeof(size)),
		     (double)outcome->bytes / ((double)report->total_ns + 1));
	uint64_t forwarded = 0;
	for (uint32_t i = 0; i < report->replica_count; i++)
		forwarded += report->replicas[i].bytes_from_rollouts;
	if (forwarded > 0)
		write_format(&out, "  forwarded %s", format_bytes(forwarded, size, sizeof(size)));
	if (outcome->verified_ranks > 0)
		write_format(&out, "  verified %s on %u ranks",
			     format_bytes(outcome->verified, checked, sizeof(checked)),
			     outcome->verified_ranks);
	write_format(&out, "\n%*sbegin %.3f  write %.3f  landed %.3f  pause %.3f  reload %.3f\n",
		     REPORT_INDENT, "", seconds(report->begin_ns), seconds(report->write_ns),
		     seconds(report->landed_ns), seconds(report->pause_ns),
		     seconds(report->reload_ns));
	if (report->quantize_ns > 0)
		write_format(&out, "%*smeanwhile: stage %.3f  exchange %.3f  quantize %.3f\n",
			     REPORT_INDENT, "", seconds(report->stage_ns),
			     seconds(report->exchange_ns), seconds(report->quantize_ns));
	if (report->h2d_bytes > 0)
		write_format(&out, "%*soffloaded: h2d %.3f for %s\n", REPORT_INDENT, "",
			     seconds(report->h2d_ns),
			     format_bytes(report->h2d_bytes, size, sizeof(size)));
	if (report->nic_trouble[0] != '\0') {
		write_format(&out, "%*s", REPORT_INDENT, "");
		put_folded(&out, report->nic_trouble, REPORT_INDENT, stdout_columns(UINT32_MAX));
	}
	int status = put_stdout(&out);
	writer_release(&out);
	return status;
}

/* Waits until every rollout rank has said what it found in this version. */
static int wait_verified(struct ws_trainer *trainer, const struct job *job, struct outcome *outcome,
			 struct ws_error *err)
{
	uint64_t until = deadline_in_ms(job->deadline_ms);
	uint32_t want = job->replicas * manifest_world(job->rollout);
	for (;;) {
		struct ws_error why;
		int gone = ws_trainer_verified(trainer, outcome->report->version,
					       &outcome->verified_ranks, &outcome->verified,
					       &outcome->different, &why);
		if (outcome->verified_ranks >= want)
			return 0;
		if (gone != 0)
			return ws_fail(err, gone,
				       "only %u of %u rollout ranks have said what they found in "
				       "version %" PRIu64 ": %s",
				       outcome->verified_ranks, want, outcome->report->version,
				       why.text);
		if (stop_asked())
			return ws_fail(err, -ECANCELED, "trainer %u: stopped by a signal",
				       job->rank);
		if (clock_ns() > until)
			return ws_fail(
				err, -ETIMEDOUT,
				"only %u of %u rollout ranks have said within %u ms what they found in "
				"version %" PRIu64
				"; who was lost is in the other ranks' lines and in "
				"`weightsync status`",
				outcome->verified_ranks, want, job->deadline_ms,
				outcome->report->version);
		sleep_ns(2000000);
	}
}

/* Rank 0 tells what was found.  The others wait with it: one that began the next push would set
 * its phases running, and looking at every byte may take longer than they do. */
static bool waits_for_verdict(const struct job *job, uint64_t version)
{
	bool last = version + 1 == job->first_version + job->updates;

	return job->verify && (job->rank == 0 || !last);
}

/* Whether a version went live in every replica, though this rank's push of it failed. */
static bool is_live(const struct ws_report *report)
{
	bool live = report->replica_count > 0;
	for (uint32_t i = 0; i < report->replica_count; i++)
		live = live && report->replicas[i].live;
	return live;
}

/* *again_out: it failed in a way that another push of the same version may mend. */
static int push_version(struct ws_trainer *trainer, const struct job *job, uint64_t version,
			struct total *total, bool *again_out)
{
	struct ws_error err = {0};
	struct ws_report report = {0};
	struct outcome outcome = {.report = &report, .error = &err};

	*again_out = false;
	int rc = ws_trainer_push_begin(trainer, version, job->deadline_ms, &err);
	if (rc == 0) {
		rc = ws_trainer_push_end(trainer, &report, &err);
		*again_out = rc != 0 && rc != -ECANCELED && !is_live(&report);
	}
	report.version = version;
	for (uint32_t i = 0; i < report.replica_count; i++)
		outcome.bytes += report.replicas[i].bytes;
	if (rc == 0 && waits_for_verdict(job, version))
		rc = wait_verified(trainer, job, &outcome, &err);
	int status = EXIT_OK;
	if (job->rank == 0)
		status = job->as_json ? put_json(trainer, &outcome) : put_lines(&outcome);
	total->verified += outcome.verified;
	sent_add(&total->sent, report.nics, report.nic_count);
	if (rc != 0 && rc != -ECANCELED)
		ws_fail_in(&err, rc, "trainer %u", job->rank);
	if (rc != 0)
		return say_failure(&err);
	if (outcome.different != 0 && job->rank == 0)
		say("weightsync: version %" PRIu64 ": %" PRIu64 " of %" PRIu64
		    " bytes differ from the checkpoint's",
		    version, outcome.different, outcome.verified);
	return outcome.different != 0 ? EXIT_DIFFERENT : status;
}

/*
 * Every rank pushes a version until it is live, so that they agree on the next one without
 * talking: a version fails for all of them or for none.  Without --keep-going the first failure
 * is the last.
 */
static int push_until_live(struct ws_trainer *trainer, const struct job *job, uint64_t version,
			   struct total *total, bool *failed)
{
	int status = EXIT_OK;
	bool again = true;
	for (int i = 0; i < TRIES_MAX && again; i++) {
		if (i > 0)
			sleep_ns(TRY_AGAIN_NS);
		status = push_version(trainer, job, version, total, &again);
		*failed = *failed || status != EXIT_OK;
		again = again && job->keep_going && !stop_asked();
	}
	return status;
}

#define ALL_VERIFIED "%u version%s, every byte verified: %" PRIu64 " bytes"

/* Behind the versions' lines, so on their stream; beside objects it isn't one. */
static int put_all_verified(const struct job *job, uint64_t bytes)
{
	const char *plural = job->updates == 1 ? "" : "s";
	struct writer out = WRITER_INIT(256);

	if (job->as_json) {
		say("weightsync: " ALL_VERIFIED, job->updates, plural, bytes);
		return EXIT_OK;
	}
	write_format(&out, ALL_VERIFIED "\n", job->updates, plural, bytes);
	int status = put_stdout(&out);
	writer_release(&out);
	return status;
}

static int push_versions(struct ws_trainer *trainer, struct job *job,
			 const struct rank_memory *memory)
{
	struct total total = {0};
	uint64_t present = 0;
	struct ws_error err = {0};
	char who[32];
	int status = EXIT_OK;
	bool failed = false;

	for (uint32_t i = 0; i < job->updates && status == EXIT_OK; i++) {
		uint64_t version = job->first_version + i;
		if (i > 0 && job->interval_ms > 0)
			sleep_ns((uint64_t)job->interval_ms * 1000000u);
		if (job->change) {
			change_params(memory, job->trainer, job->rank, present, version);
			present = version;
			if (rank_memory_put(memory, &err) != 0)
				return say_failure(&err);
		}
		status = push_until_live(trainer, job, version, &total, &failed);
		if (stop_asked())
			return EXIT_FAILED;
	}
	snprintf(who, sizeof(who), "trainer %u", job->rank);
	say_sent(who, &total.sent);
	if (job->rank == 0 && job->verify && status == EXIT_OK)
		status = put_all_verified(job, total.verified);
	return status == EXIT_OK && failed ? EXIT_FAILED : status;
}

static int open_trainer(struct ws_trainer **trainer_out, const struct job *job,
			const struct rank_memory *memory, struct ws_error *err)
{
	struct ws_trainer_options options = {
		.hub = job->hub,
		.hub_here = job->hub_here,
		.key_file = job->key_file,
		.rank = job->rank,
		.world = job->world,
		.manifest = job->trainer_text,
		.manifest_bytes = job->trainer_bytes,
		.transport = job->transport,
		.provider = job->provider,
		.nics = job->nics,
		.nic_count = job->nic_count,
		.gpu = job->gpu,
		.local_rank = job->launch.local_rank,
		.local_ranks = job->launch.local_ranks,
		.staging_bytes = job->staging_bytes,
		.offload_bytes = memory->offloaded ? job->offload_bytes : 0,
		.offload_device = memory->offload_device,
		.op_bytes = job->rules.op_bytes,
		.recv_staging_bytes = job->rules.recv_staging_bytes,
		.run_bytes_min = job->rules.run_bytes_min,
		.bucket_bytes = job->rules.bucket_bytes,
		.replica_ranks = job->rollout != NULL ? manifest_world(job->rollout) : 0,
		.min_replicas = job->replicas,
		.wire_digests = job->rules.wire_digests,
		.barrier = job->rules.barrier,
		.fanout = fanout_name(job->rules.fanout),
		.lost_ms = job->lost_ms,
		.phase_ms = job->phase_ms,
	};
	return ws_trainer_open(trainer_out, &options, err);
}

static int add_params(struct ws_trainer *trainer, const struct rank_memory *memory,
		      struct ws_error *err)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < memory->params.count; i++) {
		struct ws_memory at = param_memory(memory, i);
		if (at.bytes > 0)
			rc = ws_trainer_add(trainer, memory->params.params[i].name, &at, err);
	}
	return rc;
}

int trainer_role(struct job *job)
{
	struct ws_error err = {0};
	struct ws_trainer *trainer = NULL;
	struct rank_memory memory = {0};
	char who[32];

	int rc = rank_memory_make(&memory, job->trainer, job->rank, job->trainer_memory,
				  &job->launch, &err);
	if (rc == 0)
		rc = open_trainer(&trainer, job, &memory, &err);
	cancel_on_signal(trainer);
	if (rc == 0) {
		snprintf(who, sizeof(who), "trainer %u", job->rank);
		say_nics(who, ws_trainer_nics(trainer));
		if (job->rank == 0 && job->ranks_per_node != 0)
			say("weightsync: hosts are named by --ranks-per-node, for the plan; which "
			    "ranks ipc joins doesn't follow them");
		if (job->verbose)
			say_core(who, ws_trainer_core(trainer));
	}
	/* The others look for the hub while this rank still reads its checkpoint. */
	if (rc == 0 && job->meet.mine)
		rc = rendezvous_say_hub(&job->meet, ws_trainer_hub(trainer), &err);
	if (rc == 0)
		rc = fill_params(&memory, job->trainer, job->rank, &job->checkpoint, &err);
	if (rc == 0)
		rc = rank_memory_put(&memory, &err);
	if (rc == 0)
		rc = add_params(trainer, &memory, &err);
	if (rc == 0)
		rc = ws_trainer_start(trainer, job->start_ms, &err);
	/* Everybody has met, or never will.  Closing may take longer than a launcher waits before
	 * it kills, and nothing shall be left behind. */
	rendezvous_end(&job->meet);
	if (rc != 0)
		ws_fail_in(&err, rc, "trainer %u", job->rank);
	int status = rc != 0 ? say_failure(&err) : push_versions(trainer, job, &memory);
	cancel_on_signal(NULL);
	ws_trainer_close(trainer);
	rank_memory_release(&memory);
	return status;
}
