/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightsync nics: what this host (or one whose topology was saved) offers to each transport,
 * which NICs serve which GPU, why one isn't used by default, and where an I/O thread would run.
 */
#include <errno.h>
#include <string.h>

#include "cli/nics.h"

struct wanted {
	const char *transport, *provider, *file, *gpu;
	bool as_json;
};

/* Asked in this order where none is named.  libfabric's shm is never chosen, and its verbs and
 * other sockets are second ways to what is here. */
static const struct {
	const char *transport, *provider;
} known[] = {
	{"ipc", ""},	    {"verbs", ""},     {"fabric", "efa"}, {"fabric", "cxi"},
	{"fabric", "psm3"}, {"fabric", "opx"}, {"fabric", "tcp"},
};

/* Appends what one transport offers, placed and chosen. */
static int offers_add(struct host_view *view, const char *transport, const char *provider,
		      struct ws_error *err)
{
	struct nic_info *offers;
	uint32_t count;

	int rc = view->topology.saved
			 ? topology_nics(&view->topology, &view->arena, transport, provider,
					 &offers, &count, err)
			 : nics_list(&view->arena, transport, provider, &offers, &count, err);
	if (rc != 0 || count == 0)
		return rc;
	nics_place(&view->topology, offers, count);
	rc = nics_choose(&view->topology, view->gpu, offers, count, err);
	if (rc != 0)
		return rc;
	struct nic_info *all = arena_array(&view->arena, view->count + count, sizeof(*all));
	if (all == NULL)
		return ws_fail(err, -ENOMEM, "no memory to list %u NICs", view->count + count);
	if (view->count > 0)
		memcpy(all, view->infos, view->count * sizeof(*all));
	memcpy(all + view->count, offers, count * sizeof(*all));
	view->infos = all;
	view->count += count;
	return 0;
}

/* Who was named must be there; of the others, one that can't be asked is said and left away. */
static int offers_fill(struct host_view *view, const struct wanted *wanted, struct ws_error *err)
{
	const char *transport = wanted->transport, *provider = wanted->provider;

	if (provider != NULL)
		return offers_add(view, "fabric", provider, err);
	if (transport != NULL && strcmp(transport, "fabric") != 0)
		return offers_add(view, transport, "", err);
	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		if (transport != NULL && strcmp(transport, known[i].transport) != 0)
			continue;
		int rc = offers_add(view, known[i].transport, known[i].provider, err);
		if (rc == -ENOMEM)
			return rc;
		if (rc != 0)
			say("weightsync: %s left away: %s", known[i].transport, err->text);
		if (rc == -ENOTSUP)
			break; /* no libfabric, so none of its providers, which are the last */
	}
	return 0;
}

static int gpu_view_make(struct host_view *view, uint32_t gpu, struct ws_error *err)
{
	struct gpu_view *made = &view->gpus[gpu];

	made->infos = arena_array(&view->arena, view->count, sizeof(*made->infos));
	if (made->infos == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the NICs of GPU %u", gpu);
	for (uint32_t i = 0; i < view->count; i++) {
		struct nic_info *info = &made->infos[made->count];
		if ((view->infos[i].gpus >> gpu & 1) == 0)
			continue;
		*info = view->infos[i];
		info->skipped[0] = '\0';
		snprintf(info->near, sizeof(info->near), "%s",
			 distance_name(nic_distance(&view->topology, info, gpu)));
		made->count++;
	}
	core_choose(&view->topology, made->infos, made->count, gpu, view->topology.gpu_count,
		    &made->core);
	return 0;
}

static int host_view_make(struct host_view *view, const struct wanted *wanted, struct ws_error *err)
{
	struct launch launch = {0};
	const char *gpu = wanted->gpu;

	launch_find_local(&launch.local_rank, &launch.local_ranks);
	int rc = launch_gpu(&launch, &gpu, err);
	if (rc == 0)
		rc = topology_load(&view->topology, wanted->file, err);
	if (rc == 0)
		rc = topology_gpu_find(&view->topology, gpu, &view->gpu, err);
	if (rc == 0)
		rc = offers_fill(view, wanted, err);
	if (rc != 0)
		return rc;
	view->gpus = arena_array(&view->arena, view->topology.gpu_count, sizeof(*view->gpus));
	if (view->gpus == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u GPUs", view->topology.gpu_count);
	for (uint32_t i = 0; rc == 0 && i < view->topology.gpu_count; i++)
		rc = gpu_view_make(view, i, err);
	/* Without a launcher: a rank for each GPU, or one that is alone. */
	if (launch.local_ranks == 0 && view->gpu >= 0) {
		launch.local_rank = (uint32_t)view->gpu;
		launch.local_ranks = view->topology.gpu_count;
	}
	core_choose(&view->topology, view->infos, view->count, launch.local_rank,
		    MAX(launch.local_ranks, 1u), &view->core);
	return rc;
}

static int nics_run(const struct command *command, int argc, char **argv)
{
	struct wanted wanted = {0};
	struct option_spec options[] = {
		{"transport", 0, OPTION_TEXT, &wanted.transport, "NAME",
		 "only ipc, verbs or fabric (default: all)"},
		{"provider", 0, OPTION_TEXT, &wanted.provider, "NAME",
		 "only this one of libfabric's (default: efa, cxi, psm3, opx, tcp)"},
		{"gpu", 0, OPTION_TEXT, &wanted.gpu, "N|PCI|local",
		 "for this GPU's memory, or for that of this rank's number (default: the host's)"},
		{"topology", 0, OPTION_TEXT, &wanted.file, "FILE",
		 "of the host where `lstopo FILE.xml` saved it"},
		{"json", 0, OPTION_FLAG, &wanted.as_json, NULL,
		 "one object a line: host, gpu, nic"},
	};
	struct ws_error err = {0};
	struct host_view view = {0};
	struct writer out = WRITER_INIT(16u << 20);

	int status =
		options_parse(command, options, ARRAY_SIZE(options), argc, argv, NULL, 0, NULL);
	if (status >= 0)
		return status;
	if (wanted.provider != NULL && wanted.transport != NULL &&
	    strcmp(wanted.transport, "fabric") != 0)
		return say_usage(command,
				 "--provider is libfabric's: it goes with fabric, not '%s'",
				 wanted.transport);
	int rc = host_view_make(&view, &wanted, &err);
	if (rc == 0 && wanted.as_json)
		host_view_put_json(&view, &out);
	else if (rc == 0)
		rc = host_view_put_table(&view, stdout_columns(UINT32_MAX), &out, &err);
	status = rc != 0 ? say_failure(&err) : put_stdout(&out);
	writer_release(&out);
	topology_release(&view.topology);
	arena_release(&view.arena);
	return status;
}

const struct command command_nics = {
	.name = "nics",
	.summary = "Lists this host's NICs, the GPUs they serve, and why one isn't used by default",
	.usage =
		"[--transport NAME] [--provider NAME] [--gpu N|PCI|local] [--topology FILE] [--json]",
	.run = nics_run,
};
