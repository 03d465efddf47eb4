/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A saved topology of tests/topologies, and what it offers to one transport.
 */
#ifndef TOPOLOGY_SAVED_H
#define TOPOLOGY_SAVED_H

#include <stdio.h>
#include <string.h>

#include "lib/transport/topology.h"
#include "tests/test.h"

#define NICS_SHOWN_MAX 40

static struct ws_error err;

/* What a saved host offers to one transport, chosen for one GPU. */
struct saved {
	struct topology topology;
	struct arena arena;
	struct nic_info *infos;
	uint32_t count;
};

static void saved_load(struct saved *saved, const char *name)
{
	char path[64];

	memset(saved, 0, sizeof(*saved));
	snprintf(path, sizeof(path), "tests/topologies/%s.xml", name);
	ck_ok(topology_load(&saved->topology, path, &err), err);
}

static void saved_list(struct saved *saved, const char *transport, const char *provider)
{
	ck_ok(topology_nics(&saved->topology, &saved->arena, transport, provider, &saved->infos,
			    &saved->count, &err),
	      err);
	nics_place(&saved->topology, saved->infos, saved->count);
}

static void saved_choose(struct saved *saved, int gpu)
{
	ck_ok(nics_choose(&saved->topology, gpu, saved->infos, saved->count, &err), err);
}

static void saved_open(struct saved *saved, const char *name, const char *transport,
		       const char *provider, int gpu)
{
	saved_load(saved, name);
	saved_list(saved, transport, provider);
	saved_choose(saved, gpu);
}

static void saved_release(struct saved *saved)
{
	topology_release(&saved->topology);
	arena_release(&saved->arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}

static inline struct nic_info *info_find(const struct saved *saved, const char *device)
{
	for (uint32_t i = 0; i < saved->count; i++)
		if (strcmp(saved->infos[i].device, device) == 0)
			return &saved->infos[i];
	ck_abort_msg("no NIC is named '%s'", device);
}

/* The names of those that serve a GPU, or (-1) are used, in the list's order, with blanks between.
 */
static const char *serving(const struct saved *saved, int gpu)
{
	static char text[NICS_SHOWN_MAX * NIC_NAME_MAX];
	struct writer out = writer_fixed(text, sizeof(text) - 1);

	for (uint32_t i = 0; i < saved->count; i++) {
		const struct nic_info *info = &saved->infos[i];
		if (gpu < 0 ? info->skipped[0] == '\0' : (info->gpus >> gpu & 1) != 0)
			write_format(&out, "%s%s", out.count > 0 ? " " : "", info->device);
	}
	ck_assert(!out.failed);
	text[out.count] = '\0';
	return text;
}

static void expect_map(const struct saved *saved, const char *const *map, uint32_t gpus)
{
	ck_assert_uint_eq(saved->topology.gpu_count, gpus);
	for (uint32_t i = 0; i < gpus; i++)
		ck_assert_str_eq(serving(saved, (int)i), map[i]);
}

static void expect_reason(const struct saved *saved, const char *device, const char *reason)
{
	ck_assert_str_eq(info_find(saved, device)->skipped, reason);
}

#endif
