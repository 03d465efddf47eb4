/* SPDX-License-Identifier: Apache-2.0 */
/* weightsync nics: what this host offers to a transport, and why one isn't used by default. */
#include "cli/cli.h"
#include "lib/transport/transport.h"

static void put_json(struct writer *out, const struct nic_info *infos, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct json_writer json = {.out = out};
		json_begin_object(&json, NULL);
		json_put_text(&json, "transport", infos[i].transport);
		json_put_text(&json, "device", infos[i].device);
		json_put_text(&json, "subnet", infos[i].subnet);
		json_put_text(&json, "state", infos[i].state);
		json_put_u64(&json, "mbps", infos[i].mbps);
		json_put_integer(&json, "numa", infos[i].numa);
		json_put_text(&json, "skipped", infos[i].skipped);
		json_end_object(&json);
		write_format(out, "\n");
	}
}

static void put_table(struct writer *out, const struct nic_info *infos, uint32_t count)
{
	write_format(out, "%-10s %-24s %-20s %-8s %9s  %s\n", "transport", "device", "subnet",
		     "state", "Mb/s", "used by default");
	for (uint32_t i = 0; i < count; i++) {
		char speed[24] = "unknown";
		if (infos[i].mbps != 0)
			snprintf(speed, sizeof(speed), "%llu", (unsigned long long)infos[i].mbps);
		write_format(out, "%-10s %-24s %-20s %-8s %9s  %s%s\n", infos[i].transport,
			     infos[i].device, infos[i].subnet, infos[i].state, speed,
			     infos[i].skipped[0] != '\0' ? "no: " : "yes", infos[i].skipped);
	}
}

static int nics_run(const struct command *command, int argc, char **argv)
{
	const char *transport = "fabric", *provider = "tcp";
	bool as_json = false;
	struct option_spec options[] = {
		{"transport", 0, OPTION_TEXT, &transport, "NAME", "fabric (default)"},
		{"provider", 0, OPTION_TEXT, &provider, "NAME",
		 "libfabric's provider (default tcp)"},
		{"json", 0, OPTION_FLAG, &as_json, NULL, "one object a line"},
	};
	struct ws_error err = {0};
	struct arena arena = {0};
	struct nic_info *infos = NULL;
	uint32_t count = 0;
	struct writer out = WRITER_INIT(16u << 20);

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (nics_list(&arena, transport, provider, &infos, &count, &err) != 0) {
		status = say_failure(&err);
	} else {
		if (as_json)
			put_json(&out, infos, count);
		else
			put_table(&out, infos, count);
		status = put_stdout(&out);
	}
	writer_release(&out);
	arena_release(&arena);
	return status;
}

const struct command command_nics = {
	.name = "nics",
	.summary = "Lists this host's NICs and says why one isn't used by default",
	.usage = "[--transport NAME] [--provider NAME] [--json]",
	.run = nics_run,
};
