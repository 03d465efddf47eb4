/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync manifest: writes one side's layout as rules. */
#include <errno.h>
#include <string.h>

#include "cli/cli.h"

static int manifest_write(const struct model *model, const struct manifest_options *wanted,
			  const char *path, struct ws_error *err)
{
	struct writer text = WRITER_INIT(64u << 20);
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};

	int rc = manifest_make(model, wanted, &text, &findings, err);
	if (rc != 0)
		say_findings(&findings);
	else if (text.failed)
		rc = ws_fail(err, -ENOMEM, "out of memory while writing the manifest");
	else if (path != NULL)
		rc = file_write(path, text.bytes, text.count, 0644, err);
	else if (put_stdout(&text) != EXIT_OK)
		rc = ws_fail(err, -EIO, "the manifest was not written");
	arena_release(&arena);
	writer_release(&text);
	return rc;
}

static int manifest_run(const struct command *command, int argc, char **argv)
{
	const char *model_name_or_folder = NULL, *side = NULL, *path = NULL;
	struct manifest_options wanted = {0};
	struct option_spec options[] = {
		{"model", 0, OPTION_TEXT, &model_name_or_folder, "DIR|NAME",
		 "a folder with a checkpoint, or a built-in model"},
		{"side", 0, OPTION_TEXT, &side, "trainer|rollout", "whose layout"},
		{"layout", 0, OPTION_TEXT, &wanted.layout, "NAME",
		 "fsdp2, megatron, vllm or sglang"},
		{"mesh", 0, OPTION_TEXT, &wanted.mesh, "AXES",
		 "dp=3 or dp=2,tp=2: sizes, slowest axis first"},
		{"dtype", 0, OPTION_TEXT, &wanted.dtype, "DTYPE",
		 "params' dtype if not the checkpoint's (f32: masters)"},
		{"cast", 0, OPTION_TEXT, &wanted.casts, "FROM:TO,..",
		 "casts that this target allows (f32:bf16)"},
		{"quant", 0, OPTION_TEXT, &wanted.quant, "SCHEME",
		 "quantization scheme of the target"},
		{"output", 'o', OPTION_TEXT, &path, "FILE", "where to write it (default: stdout)"},
	};
	struct ws_error err = {0};
	struct model *model = NULL;

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (model_name_or_folder == NULL || side == NULL || wanted.layout == NULL ||
	    wanted.mesh == NULL)
		return say_usage(command, "--model, --side, --layout and --mesh are needed");
	if (strcmp(side, "trainer") != 0 && strcmp(side, "rollout") != 0)
		return say_usage(command, "--side '%s' is neither trainer nor rollout", side);
	wanted.side = strcmp(side, "trainer") == 0 ? SIDE_TRAINER : SIDE_ROLLOUT;
	int rc = load_model(model_name_or_folder, &model, &err);
	if (rc == 0)
		rc = manifest_write(model, &wanted, path, &err);
	model_free(model);
	return rc == 0 ? EXIT_OK : say_failure(&err);
}

const struct command command_manifest = {
	.name = "manifest",
	.summary = "Writes the manifest of one side: what each of its ranks holds, as rules",
	.usage = "--model DIR|NAME --side trainer|rollout --layout NAME --mesh AXES [-o FILE]",
	.more = "A rollout's manifest describes one replica.  Example:\n"
		"  weightsync manifest --model qwen3-30b-a3b --side trainer --layout fsdp2 --mesh dp=3 -o T.json\n",
	.run = manifest_run,
};
