/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync plan: plans an update on a laptop and reports it. */
#include <errno.h>
#include <string.h>

#include "cli/cli.h"
#include "planner/simulate.h"

struct plan_command {
	struct places_wanted places;
	const char *html_file, *fanout;
	uint32_t replicas;
	bool as_json;
	struct rules rules;
};

/* The page is written for a refused plan too (plan NULL): it lists the findings. */
static int put_page(const struct plan *plan, double seconds, const struct plan_input *input,
		    const struct findings *findings, const char *reason, const char *file,
		    struct ws_error *err)
{
	const struct sim_options options = {.constants = sim_constants_default()};
	struct simulation *simulation = NULL;
	struct writer out = WRITER_INIT(64u << 20);
	int rc = plan == NULL ? 0 : simulate_plan(&simulation, plan, &options, err);
	struct page page = {.all = plan,
			    .simulation = simulation,
			    .plan_seconds = seconds,
			    .trainer = input->trainer,
			    .rollout = input->rollout,
			    .findings = findings,
			    .reason = reason};

	if (rc == 0 && page_write(&page, &out) != 0)
		rc = ws_fail(err, -ENOMEM, "no memory for the page '%s'", file);
	if (rc == 0)
		rc = file_write(file, out.bytes, out.count, 0644, err);
	writer_release(&out);
	simulation_free(simulation);
	return rc;
}

static int put_report(const struct plan *plan, double seconds, bool as_json, struct ws_error *err)
{
	struct writer out = WRITER_INIT(256u << 20);
	int rc = 0;

	if (as_json) {
		struct json_writer json = {.out = &out};
		plan_report_json(plan, seconds, NULL, &json);
		write_format(&out, "\n");
	} else {
		plan_report_text(plan, seconds, &out);
	}
	if (put_stdout(&out) != EXIT_OK)
		rc = ws_fail(err, -EIO, "the report was not written");
	writer_release(&out);
	return rc;
}

static void say_progress(void *arg, uint32_t checked, uint32_t members)
{
	progress_line_say(arg, "proving the plan: %u of %u rollout ranks", checked, members);
}

/* What was found goes where the plan would have gone. */
static void put_refusal(const struct plan_input *input, const struct plan_command *wanted,
			const struct findings *findings, const char *reason)
{
	struct ws_error err = {0};

	if (findings->count == 0)
		return;
	if (wanted->as_json)
		put_findings(findings);
	else
		say_findings(findings);
	if (wanted->html_file != NULL &&
	    put_page(NULL, 0, input, findings, reason, wanted->html_file, &err) != 0)
		say_failure(&err);
}

/* With `refused` only to list what is wrong with the pair, too. */
static int make_and_report(struct plan_input *input, const struct plan_command *wanted,
			   bool refused, struct findings *findings, struct ws_error *err)
{
	struct plan *plan = NULL;
	uint32_t *replicas = arena_array(findings->arena, wanted->replicas, sizeof(*replicas));

	if (replicas == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u replicas", wanted->replicas);
	for (uint32_t i = 0; i < wanted->replicas; i++)
		replicas[i] = i;
	input->replicas = replicas;
	input->replica_count = wanted->replicas;
	int rc = make_places(&wanted->places, findings->arena, input, err);
	if (rc != 0)
		return rc;
	struct progress_line line;
	progress_line_start(&line);
	input->progress = say_progress;
	input->progress_arg = &line;
	uint64_t started = clock_ns();
	rc = plan_make(&plan, input, PLAN_ALL, findings, err);
	double seconds = (double)(clock_ns() - started) / 1e9;
	if (rc == 0 && refused) {
		plan_free(plan);
		return 0;
	}
	if (rc == 0)
		rc = plan_check(plan, findings, err);
	progress_line_end(&line);
	if (rc == 0 && wanted->html_file != NULL)
		rc = put_page(plan, seconds, input, findings, NULL, wanted->html_file, err);
	if (rc == 0)
		rc = put_report(plan, seconds, wanted->as_json, err);
	plan_free(plan);
	return rc;
}

/* Reads both and plans; one run finds the faults of each manifest and of the pair. */
static int read_and_report(const char *const *files, const struct plan_command *wanted,
			   struct arena *arena, struct ws_error *err)
{
	struct findings findings = {.arena = arena};
	struct manifest_pair pair;
	struct ws_error later = {0};

	int rc = pair_read(&pair, files, &findings, err);
	struct plan_input input = {.trainer = pair.sides[SIDE_TRAINER],
				   .rollout = pair.sides[SIDE_ROLLOUT],
				   .rules = wanted->rules};
	if (input.trainer != NULL && input.rollout != NULL) {
		int fault =
			make_and_report(&input, wanted, rc != 0, &findings, rc == 0 ? err : &later);
		rc = rc != 0 ? rc : fault;
	}
	if (rc != 0)
		put_refusal(&input, wanted, &findings, err->text);
	pair_release(&pair);
	return rc;
}

static int plan_run(const struct command *command, int argc, char **argv)
{
	struct plan_command wanted = {.fanout = "none",
				      .replicas = 1,
				      .places = {.ranks_per_node = 8, .nics = 1},
				      .rules = RULES_DEFAULT};
	struct rules *rules = &wanted.rules;
	struct option_spec options[] = {
		{"replicas", 0, OPTION_COUNT, &wanted.replicas, "N",
		 "how many replicas (default 1)"},
		{"ranks-per-node", 0, OPTION_COUNT, &wanted.places.ranks_per_node, "N",
		 "ranks of one host (default 8)"},
		{"nics", 0, OPTION_COUNT, &wanted.places.nics, "N", "NICs of one rank (default 1)"},
		{"places", 0, OPTION_TEXT, &wanted.places.file, "FILE",
		 "each member's host and NICs, as JSON"},
		{"op-bytes", 0, OPTION_BYTES, &rules->op_bytes, "SIZE",
		 "largest write (default 1M)"},
		{"recv-staging-bytes", 0, OPTION_BYTES, &rules->recv_staging_bytes, "SIZE",
		 "a rollout's staging ring (default 64M)"},
		{"bucket-bytes", 0, OPTION_BYTES, &rules->bucket_bytes, "SIZE",
		 "bytes of a bucket (default: about a layer)"},
		{"fanout", 0, OPTION_TEXT, &wanted.fanout, "KIND",
		 "none, node or replica: what rollouts pass on (default none)"},
		{"json", 0, OPTION_FLAG, &wanted.as_json, NULL, "the report as one object"},
		{"html", 0, OPTION_TEXT, &wanted.html_file, "FILE", "the report as a page"},
	};
	struct ws_error err = {0};
	struct arena arena = {0};
	const char *files[2];
	uint32_t file_count = 0;

	int status = options_parse(command, options, ARRAY_SIZE(options), argc, argv, files, 2,
				   &file_count);
	if (status >= 0)
		return status;
	if (file_count != 2)
		return say_usage(command,
				 "two manifests are needed, the trainer's and the rollout's");
	if (wanted.replicas == 0 || wanted.replicas > 4096)
		return say_usage(command, "--replicas is from 1 to 4096");
	if (wanted.places.ranks_per_node == 0 || wanted.places.nics == 0)
		return say_usage(command, "--ranks-per-node and --nics begin at 1");
	int rc = fanout_parse(wanted.fanout, &rules->fanout, &err);
	if (rc == 0)
		rc = rules_check(rules, &err);
	if (rc != 0)
		return say_usage(command, "%s", err.text);
	rc = read_and_report(files, &wanted, &arena, &err);
	arena_release(&arena);
	return rc == 0 ? EXIT_OK : say_failure(&err);
}

const struct command command_plan = {
	.name = "plan",
	.summary = "Plans an update from two manifests, proves its coverage and reports it",
	.usage = "TRAINER.json ROLLOUT.json [--replicas N] [--json] [--html FILE]",
	.more = "Exit status 1: the source doesn't cover the target; every fault is listed (--json: as one object).\n",
	.run = plan_run,
};
