/* SPDX-License-Identifier: Apache-2.0 */
/* Where members are, for plans made on a laptop: from a file, or all alike. */
#include <errno.h>
#include <string.h>

#include "cli/cli.h"

/* Every member's host: ranks_per_node of each side share one, sides and replicas apart. */
static int places_alike(const struct places_wanted *wanted, struct arena *arena,
			struct plan_input *input, struct ws_error *err)
{
	uint32_t trainers = manifest_world(input->trainer), ranks = manifest_world(input->rollout);
	uint32_t members = trainers + input->replica_count * ranks;
	struct place *places = arena_array(arena, members, sizeof(*places));
	if (places == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u places", members);
	for (uint32_t i = 0; i < members; i++) {
		uint32_t rank = i < trainers ? i : (i - trainers) % ranks;
		uint32_t replica = i < trainers ? 0 : (i - trainers) / ranks;
		places[i].nic_count = wanted->nics;
		places[i].mbps = wanted->mbps;
		snprintf(places[i].host, sizeof(places[i].host), "%c%u-%u",
			 i < trainers ? 't' : 'r', replica, rank / wanted->ranks_per_node);
	}
	input->places = places;
	return 0;
}

/* [{"host":"a","nics":1,"mbps":400000}, ...] in member order. */
static int places_read(const char *path, struct arena *arena, struct plan_input *input,
		       struct ws_error *err)
{
	const struct json_limits limits = JSON_LIMITS_MANIFEST;
	const struct json *list = NULL;
	void *text = NULL;
	size_t bytes = 0;
	uint32_t members = manifest_world(input->trainer) +
			   input->replica_count * manifest_world(input->rollout);

	int rc = file_read(path, limits.bytes_max, &text, &bytes, err);
	if (rc == 0)
		rc = json_parse(arena, text, bytes, &limits, &list, err);
	mem_free(text);
	if (rc != 0)
		return ws_fail_in(err, rc, "places '%s'", path);
	if (list->type != JSON_ARRAY || list->count != members)
		return ws_fail(err, -EINVAL,
			       "places '%s' must be a list of %u members, trainers first", path,
			       members);
	struct place *places = arena_array(arena, members, sizeof(*places));
	if (places == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u places", members);
	uint32_t i = 0;
	for (const struct json *at = list->first; at != NULL; at = at->next, i++) {
		const char *host = json_text(at, "host", NULL);
		int64_t nics = json_integer(at, "nics", 1), mbps = json_integer(at, "mbps", 0);
		if (host == NULL || strlen(host) >= sizeof(places->host) || nics < 1 || nics > 64 ||
		    mbps < 0)
			return ws_fail(
				err, -EINVAL,
				"places '%s': member %u needs a \"host\", and \"nics\" from 1 to 64",
				path, i);
		snprintf(places[i].host, sizeof(places[i].host), "%s", host);
		places[i].nic_count = (uint32_t)nics;
		places[i].mbps = (uint64_t)mbps;
	}
	input->places = places;
	return 0;
}

int make_places(const struct places_wanted *wanted, struct arena *arena, struct plan_input *input,
		struct ws_error *err)
{
	return wanted->file != NULL ? places_read(wanted->file, arena, input, err)
				    : places_alike(wanted, arena, input, err);
}
