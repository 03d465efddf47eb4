/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightsync manifest: one side's layout as rules, made from a layout's name or imported from a
 * framework's own metadata, and one param of it in words.
 */
#include <errno.h>
#include <string.h>

#include "cli/cli.h"

#define MANIFEST_BYTES_MAX (64u << 20)

struct manifest_command {
	const char *model, *side, *from, *file, *output, *explain, *eplb;
	uint32_t rank;
	bool as_json;
	struct manifest_options options;
};

static int import_file(const struct manifest_command *wanted, const struct model *model,
		       struct writer *text, struct findings *findings, struct ws_error *err)
{
	struct import_options options = {
		.side = wanted->options.side, .from = wanted->from, .casts = wanted->options.casts};
	void *dump = NULL;
	size_t bytes = 0;
	int rc = file_read(wanted->file, MANIFEST_BYTES_MAX, &dump, &bytes, err);
	if (rc != 0)
		return rc;
	rc = manifest_import(model, &options, dump, bytes, text, findings, err);
	mem_free(dump);
	return rc == 0 ? 0 : ws_fail_in(err, rc, "dump '%s'", wanted->file);
}

static int read_file(const struct manifest_command *wanted, struct writer *text,
		     struct ws_error *err)
{
	void *bytes = NULL;
	size_t count = 0;
	int rc = file_read(wanted->file, MANIFEST_BYTES_MAX, &bytes, &count, err);
	if (rc == 0)
		write_bytes(text, bytes, count);
	mem_free(bytes);
	return rc;
}

static int make_manifest(const struct manifest_command *wanted, const struct model *model,
			 struct writer *text, struct findings *findings, struct ws_error *err)
{
	struct manifest_options options = wanted->options;
	void *map = NULL;
	int rc = wanted->eplb == NULL ? 0
				      : file_read(wanted->eplb, MANIFEST_BYTES_MAX, &map,
						  &options.eplb_bytes, err);
	options.eplb = map;
	if (rc == 0)
		rc = manifest_make(model, &options, text, findings, err);
	mem_free(map);
	return rc;
}

/* The manifest's text, from wherever it comes. */
static int manifest_text(const struct manifest_command *wanted, struct writer *text,
			 struct ws_error *err)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct model *model = NULL;
	int rc = wanted->model == NULL ? read_file(wanted, text, err)
				       : load_model(wanted->model, &model, err);
	if (rc == 0 && wanted->from != NULL)
		rc = import_file(wanted, model, text, &findings, err);
	else if (rc == 0 && model != NULL)
		rc = make_manifest(wanted, model, text, &findings, err);
	if (rc != 0 && wanted->as_json && findings.count > 0)
		put_findings(&findings);
	else if (rc != 0)
		say_findings(&findings);
	else if (text->failed)
		rc = ws_fail(err, -ENOMEM, "out of memory while writing the manifest");
	model_free(model);
	arena_release(&arena);
	return rc;
}

static int explain(const struct manifest_command *wanted, const struct writer *text,
		   struct ws_error *err)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct writer words = WRITER_INIT(64u << 20);
	struct manifest *manifest = NULL;
	int rc = manifest_parse(&manifest, text->bytes, text->count, &findings, err);
	if (rc != 0 && wanted->as_json && findings.count > 0)
		put_findings(&findings);
	else if (rc != 0)
		say_findings(&findings);
	else
		rc = manifest_explain(manifest, wanted->explain, wanted->rank, wanted->as_json,
				      &words, err);
	if (rc == 0 && put_stdout(&words) != EXIT_OK)
		rc = ws_fail(err, -EIO, "the explanation was not written");
	manifest_free(manifest);
	writer_release(&words);
	arena_release(&arena);
	return rc;
}

static int manifest_do(const struct manifest_command *wanted)
{
	struct writer text = WRITER_INIT(MANIFEST_BYTES_MAX);
	struct ws_error err = {0};
	int rc = manifest_text(wanted, &text, &err);
	if (rc == 0 && wanted->explain != NULL)
		rc = explain(wanted, &text, &err);
	else if (rc == 0 && wanted->output != NULL)
		rc = file_write(wanted->output, text.bytes, text.count, 0644, &err);
	else if (rc == 0 && put_stdout(&text) != EXIT_OK)
		rc = ws_fail(&err, -EIO, "the manifest was not written");
	writer_release(&text);
	return rc == 0 ? EXIT_OK : say_failure(&err);
}

/* Which of the three forms it is; -1: a good one. */
static int check_form(const struct command *command, const struct manifest_command *wanted)
{
	const struct manifest_options *options = &wanted->options;
	bool made = options->layout != NULL || options->mesh != NULL;
	if (wanted->from != NULL && made)
		return say_usage(command,
				 "--from says it all: --layout and --mesh don't go with it");
	if (wanted->from != NULL && (wanted->model == NULL || wanted->file == NULL))
		return say_usage(command, "--from needs --model and the dump's file");
	if (wanted->from == NULL && wanted->file != NULL &&
	    (made || wanted->model != NULL || wanted->explain == NULL))
		return say_usage(
			command,
			"'%s': a file is a dump, with --from, or a manifest, with --explain "
			"and nothing else",
			wanted->file);
	if (wanted->file == NULL && (wanted->model == NULL || wanted->side == NULL ||
				     options->layout == NULL || options->mesh == NULL))
		return say_usage(command, "--model, --side, --layout and --mesh are needed");
	if (wanted->side != NULL && strcmp(wanted->side, "trainer") != 0 &&
	    strcmp(wanted->side, "rollout") != 0)
		return say_usage(command, "--side '%s' is neither trainer nor rollout",
				 wanted->side);
	return -1;
}

static int manifest_run(const struct command *command, int argc, char **argv)
{
	struct manifest_command wanted = {0};
	struct manifest_options *options = &wanted.options;
	struct option_spec specs[] = {
		{"model", 0, OPTION_TEXT, &wanted.model, "DIR|NAME",
		 "a folder with a checkpoint, or a built-in model"},
		{"side", 0, OPTION_TEXT, &wanted.side, "trainer|rollout",
		 "whose layout (with --from: trainer)"},
		{"layout", 0, OPTION_TEXT, &options->layout, "NAME",
		 "fsdp2, zero3, veomni, torchtitan, megatron, vllm, sglang or trtllm"},
		{"mesh", 0, OPTION_TEXT, &options->mesh, "AXES",
		 "dp=3 or dp=2,tp=2: sizes, slowest axis first"},
		{"from", 0, OPTION_TEXT, &wanted.from, "KIND",
		 "dtensor or megatron: what a framework dumped of itself"},
		{"dtype", 0, OPTION_TEXT, &options->dtype, "DTYPE",
		 "params' dtype if not the checkpoint's (f32: masters)"},
		{"cast", 0, OPTION_TEXT, &options->casts, "FROM:TO,..",
		 "casts that this target allows (f32:bf16)"},
		{"quant", 0, OPTION_TEXT, &options->quant, "SCHEME",
		 "quantize on the way: fp8-block, fp8-block:64 (or 64x128), fp8-block-ue8m0, fp8-channel or fp8-tensor"},
		{"derived", 0, OPTION_FLAG, &options->derived, NULL,
		 "with what the engine derives by post steps (vllm, sglang: of MLA's kv_b_proj)"},
		{"eplb", 0, OPTION_TEXT, &wanted.eplb, "FILE",
		 "an engine's map of experts to slots: {\"physical_to_logical_map\": ..}"},
		{"explain", 0, OPTION_TEXT, &wanted.explain, "PARAM",
		 "don't write it: say in words what lies in a param"},
		{"rank", 0, OPTION_COUNT, &wanted.rank, "R", "at which rank (default 0)"},
		{"json", 0, OPTION_FLAG, &wanted.as_json, NULL,
		 "the explanation, or the findings, as one object"},
		{"output", 'o', OPTION_TEXT, &wanted.output, "FILE",
		 "where to write it (default: stdout)"},
	};
	uint32_t count = 0;
	int status = options_parse(command, specs, ARRAY_SIZE(specs), argc, argv, &wanted.file, 1,
				   &count);
	if (status < 0)
		status = check_form(command, &wanted);
	if (status >= 0)
		return status;
	options->side = wanted.side == NULL || strcmp(wanted.side, "trainer") == 0 ? SIDE_TRAINER
										   : SIDE_ROLLOUT;
	return manifest_do(&wanted);
}

const struct command command_manifest = {
	.name = "manifest",
	.summary = "Writes the manifest of one side: what each of its ranks holds, as rules",
	.usage = "--model DIR|NAME --side trainer|rollout --layout NAME --mesh AXES [-o FILE]\n"
		 "--model DIR|NAME --from dtensor|megatron DUMP.json [-o FILE]\n"
		 "--explain PARAM --rank R [--json] MANIFEST.json",
	.more = "A rollout's manifest describes one replica.  --explain goes with all three forms.\n"
		"examples/dump_dtensor.py and dump_megatron.py write the dumps.  Examples:\n"
		"  weightsync manifest --model qwen3-30b-a3b --side trainer --layout fsdp2 --mesh dp=3 -o T.json\n"
		"  weightsync manifest --model qwen3-30b-a3b --from dtensor DUMP.json -o T.json\n"
		"  weightsync manifest --explain lm_head.weight --rank 1 T.json\n",
	.run = manifest_run,
};
