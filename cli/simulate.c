/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync simulate: plays an update before it is run, also on a cluster that nobody has. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "planner/simulate.h"

struct simulate_command {
	struct places_wanted places;
	struct rules rules;
	struct sim_options options;
	const char *fanout, *fabric, *constants_file, *trace_file, *paper;
	const char *slow, *without_nic, *bandwidth; /* what if */
	bool join;
	uint32_t join_late_ms;
	uint32_t replicas, nic_gbps;
	bool as_json, print_constants;
};

/* One update as planned and played. */
struct played {
	struct plan *plan;
	struct simulation *simulation;
};

static void played_release(struct played *played)
{
	simulation_free(played->simulation);
	plan_free(played->plan);
	*played = (struct played){0};
}

/* "t3" or "r1.0" -> its index; the roster's replicas are 0, 1, ... */
static int member_find(const struct plan_input *input, const char *text, size_t length,
		       uint32_t *member_out, struct ws_error *err)
{
	uint32_t trainers = manifest_world(input->trainer), ranks = manifest_world(input->rollout);
	unsigned rank = 0, replica = 0;
	char name[32], more;

	if (length >= sizeof(name))
		length = sizeof(name) - 1;
	memcpy(name, text, length);
	name[length] = '\0';
	if (sscanf(name, "t%u%c", &rank, &more) == 1 && rank < trainers) {
		*member_out = rank;
		return 0;
	}
	if (sscanf(name, "r%u.%u%c", &replica, &rank, &more) == 2 &&
	    replica < input->replica_count && rank < ranks) {
		*member_out = trainers + replica * ranks + rank;
		return 0;
	}
	return ws_fail(err, -EINVAL,
		       "'%s' is no member: t0 to t%" PRIu32 ", r0.0 to r%" PRIu32 ".%" PRIu32, name,
		       trainers - 1, input->replica_count - 1, ranks - 1);
}

/* "0.5", "1/2" or "50%": above 0, at most 1. */
static int parse_share(const char *text, double *share_out, struct ws_error *err)
{
	char *end = NULL;
	double value = strtod(text, &end);

	if (end != text && *end == '/') {
		const char *below = end + 1;
		value /= strtod(below, &end);
		end = end == below ? (char *)text : end;
	} else if (end != text && *end == '%') {
		value /= 100;
		end++;
	}
	if (end == text || *end != '\0' || !(value > 0) || !(value <= 1))
		return ws_fail(err, -EINVAL, "'%s' is not a share; good ones are 0.5, 1/2, 50%%",
			       text);
	*share_out = value;
	return 0;
}

/* The member plans and plays with one NIC less, as it would after the wiring lost it. */
static int nic_remove(const struct plan_input *input, const char *who, struct ws_error *err)
{
	struct place *places = (struct place *)input->places; /* make_places made them for us */
	uint32_t member = 0;

	int rc = member_find(input, who, strlen(who), &member, err);
	if (rc != 0)
		return rc;
	struct place *place = &places[member];
	if (place->nic_count < 2)
		return ws_fail(err, -EINVAL,
			       "'%s' has one NIC and can't take part without it: give --nics or "
			       "--places",
			       who);
	if (place->rail_count > 0)
		place->mbps -= place->rails[--place->rail_count].mbps;
	else
		place->mbps = place->mbps * (place->nic_count - 1) / place->nic_count;
	place->nic_count--;
	return 0;
}

static int slow_parse(const struct plan_input *input, const char *text, struct sim_slow *slow,
		      struct ws_error *err)
{
	const char *equals = strchr(text, '=');

	if (equals == NULL)
		return ws_fail(err, -EINVAL, "'%s' needs a member and a share, like t3=1/2", text);
	int rc = member_find(input, text, (size_t)(equals - text), &slow->member, err);
	return rc != 0 ? rc : parse_share(equals + 1, &slow->factor, err);
}

static bool has_what_if(const struct simulate_command *wanted)
{
	return wanted->slow != NULL || wanted->without_nic != NULL || wanted->bandwidth != NULL ||
	       wanted->join;
}

static int bandwidth_scale(const struct plan_input *input, const char *text,
			   struct sim_constants *constants, struct ws_error *err)
{
	struct place *places = (struct place *)input->places; /* made for us, as above */
	uint32_t members = manifest_world(input->trainer) +
			   manifest_world(input->rollout) * input->replica_count;
	double share = 1;

	int rc = parse_share(text, &share, err);
	for (uint32_t m = 0; m < members; m++)
		places[m].mbps = (uint64_t)((double)places[m].mbps * share);
	constants->nic_gbps *= share; /* of places that don't say */
	return rc;
}

/* The roster, the places and the rules, as they are or as they would be. */
static int input_make(const struct simulate_command *wanted, bool what_if, struct arena *arena,
		      struct sim_options *options, struct plan_input *input, struct ws_error *err)
{
	struct places_wanted places = wanted->places;
	uint32_t *replicas;

	input->rules = wanted->rules;
	input->replica_count = wanted->replicas + (what_if && wanted->join);
	input->replicas = replicas = arena_array(arena, input->replica_count, sizeof(*replicas));
	if (replicas == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %" PRIu32 " replicas",
			       input->replica_count);
	for (uint32_t i = 0; i < input->replica_count; i++)
		replicas[i] = i;
	places.mbps = (uint64_t)(options->constants.nic_gbps * 1000);
	int rc = make_places(&places, arena, input, err);
	if (rc == 0 && what_if && wanted->bandwidth != NULL)
		rc = bandwidth_scale(input, wanted->bandwidth, &options->constants, err);
	if (rc == 0 && what_if && wanted->without_nic != NULL)
		rc = nic_remove(input, wanted->without_nic, err);
	if (what_if && wanted->join) {
		options->late_replica = wanted->replicas;
		options->late_s = wanted->join_late_ms / 1e3;
	}
	return rc;
}

/* With `refused` only to list what is wrong with the pair, too. */
static int play(const struct simulate_command *wanted, const struct manifest_pair *pair,
		bool refused, bool what_if, struct played *played, struct findings *findings,
		struct ws_error *err)
{
	struct sim_options options = wanted->options;
	struct plan_input input = {.trainer = pair->sides[SIDE_TRAINER],
				   .rollout = pair->sides[SIDE_ROLLOUT]};
	struct sim_slow slow;

	int rc = input_make(wanted, what_if, findings->arena, &options, &input, err);
	if (rc == 0 && what_if && wanted->slow != NULL) {
		rc = slow_parse(&input, wanted->slow, &slow, err);
		options.slow = &slow;
		options.slow_count = 1;
	}
	if (rc == 0)
		rc = plan_make(&played->plan, &input, PLAN_ALL, findings, err);
	if (rc == 0 && !refused)
		rc = simulate_plan(&played->simulation, played->plan, &options, err);
	return rc;
}

/* ---- What comes out. */
static int put_trace(const struct played *played, const char *path, struct ws_error *err)
{
	struct writer out = WRITER_INIT(256u << 20);
	int rc = simulation_trace(played->simulation, played->plan, &out);

	rc = rc != 0 ? ws_fail(err, rc, "no memory for the trace")
		     : file_write(path, out.bytes, out.count, 0644, err);
	writer_release(&out);
	return rc;
}

static int put_report(const struct played *played, const struct simulation *before,
		      const struct simulate_command *wanted, struct ws_error *err)
{
	struct writer out = WRITER_INIT(16u << 20);
	int rc = 0;

	if (wanted->trace_file != NULL)
		rc = put_trace(played, wanted->trace_file, err);
	if (wanted->as_json) {
		struct json_writer json = {.out = &out};
		json_begin_object(&json, NULL);
		simulation_report_json(played->simulation, played->plan, &json);
		if (before != NULL)
			json_put_number(&json, "without_the_change_s", before->predicted_s, 6);
		json_end_object(&json);
		write_format(&out, "\n");
	} else {
		if (before != NULL)
			write_format(
				&out, "without the change %.3f s, with it %+.1f %%\n",
				before->predicted_s,
				100 * (played->simulation->predicted_s / before->predicted_s - 1));
		simulation_report_text(played->simulation, played->plan, &out);
	}
	if (rc == 0 && put_stdout(&out) != EXIT_OK)
		rc = ws_fail(err, -EIO, "the report was not written");
	writer_release(&out);
	return rc;
}

static int simulate_files(const struct simulate_command *wanted, const char *const *files,
			  struct ws_error *err)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct played before = {0}, played = {0};
	struct manifest_pair pair;
	struct ws_error later = {0};

	int rc = pair_read(&pair, files, &findings, err);
	if (rc != 0 && pair.sides[0] != NULL && pair.sides[1] != NULL)
		play(wanted, &pair, true, false, &before, &findings, &later);
	if (rc == 0 && has_what_if(wanted))
		rc = play(wanted, &pair, false, false, &before, &findings, err);
	if (rc == 0)
		rc = play(wanted, &pair, false, has_what_if(wanted), &played, &findings, err);
	if (rc == 0)
		rc = put_report(&played, before.simulation, wanted, err);
	if (rc != 0 && wanted->as_json && findings.count > 0)
		put_findings(&findings);
	else if (rc != 0)
		say_findings(&findings);
	played_release(&before);
	played_release(&played);
	pair_release(&pair);
	arena_release(&arena);
	return rc;
}

static int simulate_paper_pipeline(const struct simulate_command *wanted, struct ws_error *err)
{
	struct played played = {0};

	int rc = simulate_paper(&played.simulation, wanted->paper, &wanted->options.constants, err);
	if (rc == 0)
		rc = put_report(&played, NULL, wanted, err);
	played_release(&played);
	return rc;
}

static int print_constants(const struct sim_constants *constants, struct ws_error *err)
{
	struct writer out = WRITER_INIT(1u << 20);
	struct json_writer json = {.out = &out, .pretty = true};

	sim_constants_json(constants, &json);
	write_format(&out, "\n");
	int rc = put_stdout(&out) == EXIT_OK ? 0
					     : ws_fail(err, -EIO, "the constants were not written");
	writer_release(&out);
	return rc;
}

static int constants_make(struct simulate_command *wanted, struct ws_error *err)
{
	struct sim_constants *constants = &wanted->options.constants;
	const struct sim_fabric *fabric;
	void *text = NULL;
	size_t bytes = 0;
	int rc = 0;

	*constants = sim_constants_default();
	if (wanted->fabric != NULL) {
		rc = sim_fabric_find(wanted->fabric, &fabric, err);
		if (rc == 0)
			sim_fabric_fit(fabric, constants);
	}
	if (rc == 0 && wanted->constants_file != NULL) {
		rc = file_read(wanted->constants_file, 1 << 20, &text, &bytes, err);
		if (rc == 0)
			rc = sim_constants_parse(constants, text, bytes, err);
		mem_free(text);
		rc = rc == 0 ? 0 : ws_fail_in(err, rc, "constants '%s'", wanted->constants_file);
	}
	if (wanted->nic_gbps != UINT32_MAX)
		constants->nic_gbps = wanted->nic_gbps;
	return rc;
}

static int simulate_run(const struct command *command, int argc, char **argv)
{
	struct simulate_command wanted = {.places = {.ranks_per_node = 8, .nics = 1},
					  .rules = RULES_DEFAULT,
					  .options = {.depth = 16},
					  .replicas = 1,
					  .nic_gbps = UINT32_MAX};
	struct rules *rules = &wanted.rules;
	struct option_spec options[] = {
		{"replicas", 0, OPTION_COUNT, &wanted.replicas, "N",
		 "how many replicas (default 1)"},
		{"nic-gbps", 0, OPTION_COUNT, &wanted.nic_gbps, "N",
		 "line rate of a rank's NICs together, each way (default 400)"},
		{"nics", 0, OPTION_COUNT, &wanted.places.nics, "N", "NICs of one rank (default 1)"},
		{"ranks-per-node", 0, OPTION_COUNT, &wanted.places.ranks_per_node, "N",
		 "ranks of one host (default 8)"},
		{"places", 0, OPTION_TEXT, &wanted.places.file, "FILE",
		 "each member's host and NICs, as JSON"},
		{"fanout", 0, OPTION_TEXT, &wanted.fanout, "KIND",
		 "what rollouts forward: none, node, replica"},
		{"offloaded", 0, OPTION_FLAG, &wanted.options.offloaded, NULL,
		 "the params wait in host memory"},
		{"op-bytes", 0, OPTION_BYTES, &rules->op_bytes, "SIZE",
		 "largest write (default 1M)"},
		{"staging-bytes", 0, OPTION_BYTES, &rules->staging_bytes, "SIZE",
		 "a trainer's staging (default 64M)"},
		{"recv-staging-bytes", 0, OPTION_BYTES, &rules->recv_staging_bytes, "SIZE",
		 "a rollout's staging ring (default 64M)"},
		{"bucket-bytes", 0, OPTION_BYTES, &rules->bucket_bytes, "SIZE",
		 "bytes of a bucket (default: about a layer)"},
		{"depth", 0, OPTION_COUNT, &wanted.options.depth, "N",
		 "writes in flight of a rank (default 16)"},
		{"fabric", 0, OPTION_TEXT, &wanted.fabric, "NAME",
		 "measured network: cx7 (default) or efa"},
		{"constants", 0, OPTION_TEXT, &wanted.constants_file, "FILE",
		 "constants of the model, as JSON; any may be left out"},
		{"print-constants", 0, OPTION_FLAG, &wanted.print_constants, NULL,
		 "the constants, with units and sources"},
		{"without-nic", 0, OPTION_TEXT, &wanted.without_nic, "MEMBER",
		 "what if t3 (trainer 3) or r1.0 (replica 1, rank 0) lost a NIC"},
		{"slow", 0, OPTION_TEXT, &wanted.slow, "MEMBER=SHARE",
		 "what if a rank were slower: t3=1/2"},
		{"bandwidth", 0, OPTION_TEXT, &wanted.bandwidth, "SHARE",
		 "what if every NIC had this share of its speed"},
		{"join", 0, OPTION_FLAG, &wanted.join, NULL, "what if one more replica joined"},
		{"join-late", 0, OPTION_MS, &wanted.join_late_ms, "TIME",
		 "and were ready so much later than the others"},
		{"paper", 0, OPTION_TEXT, &wanted.paper, "MODEL",
		 "the pipeline of arXiv 2510.27656 instead: kimi-k2, qwen3-235b"},
		{"json", 0, OPTION_FLAG, &wanted.as_json, NULL, "the report as one object"},
		{"trace", 0, OPTION_TEXT, &wanted.trace_file, "FILE",
		 "a timeline for ui.perfetto.dev (Chrome trace format)"},
	};
	struct ws_error err = {0};
	const char *files[2];
	uint32_t file_count = 0;

	int status = options_parse(command, options, ARRAY_SIZE(options), argc, argv, files, 2,
				   &file_count);
	if (status >= 0)
		return status;
	if (wanted.replicas == 0 || wanted.replicas > 4096)
		return say_usage(command, "--replicas is from 1 to 4096");
	if (wanted.places.nics == 0 || wanted.places.ranks_per_node == 0 || wanted.nic_gbps == 0 ||
	    wanted.options.depth == 0)
		return say_usage(command,
				 "--nics, --ranks-per-node, --nic-gbps and --depth begin at 1");
	if (wanted.join_late_ms != 0 && !wanted.join)
		return say_usage(command, "--join-late goes with --join");
	if (wanted.fanout != NULL && fanout_parse(wanted.fanout, &rules->fanout, &err) != 0)
		return say_usage(command, "option '--fanout': %s", err.text);
	if (rules_check(rules, &err) != 0)
		return say_usage(command, "%s", err.text);
	if (constants_make(&wanted, &err) != 0)
		return say_failure(&err);
	int rc;
	if (wanted.print_constants)
		rc = print_constants(&wanted.options.constants, &err);
	else if (wanted.paper != NULL)
		rc = simulate_paper_pipeline(&wanted, &err);
	else if (file_count == 2)
		rc = simulate_files(&wanted, files, &err);
	else
		return say_usage(command,
				 "two manifests are needed, the trainer's and the rollout's");
	return rc == 0 ? EXIT_OK : say_failure(&err);
}

const struct command command_simulate = {
	.name = "simulate",
	.summary =
		"Plays an update on a model of NICs, NVLink and GPUs, and says how long it takes",
	.usage = "TRAINER.json ROLLOUT.json [--replicas N] [--json] [--trace FILE]",
	.more = "With a what-if option the update is planned and played twice, without it and with it.\n"
		"Exit status 1: the source doesn't cover the target; every fault is listed (--json: as one object).\n",
	.run = simulate_run,
};
