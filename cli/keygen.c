/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync keygen: makes the key file of a run, which its members show to each other. */
#include "cli/cli.h"

static int keygen_run(const struct command *command, int argc, char **argv)
{
	const char *path = NULL;
	struct option_spec options[] = {
		{"output", 'o', OPTION_TEXT, &path, "FILE",
		 "where to write it (mode 0600, never over a file)"},
	};
	struct ws_error err = {0};
	struct run_key key;

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (path == NULL)
		return say_usage(command, "-o FILE is needed");
	int rc = run_key_make(&key, &err);
	if (rc == 0)
		rc = run_key_write(&key, path, &err);
	run_key_wipe(&key);
	return rc == 0 ? EXIT_OK : say_failure(&err);
}

const struct command command_keygen = {
	.name = "keygen",
	.summary = "Makes the key file that admits a process to a run",
	.usage = "-o FILE",
	.more = "Copy it to every host of the run over a channel you trust; whoever holds it may write weights.\n",
	.run = keygen_run,
};
