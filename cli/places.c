/* SPDX-License-Identifier: Apache-2.0 */
/* Where members are, for plans made on a laptop: from a file, or all alike. */
#include <errno.h>
#include <string.h>

#include "cli/cli.h"

#define PLACE_NICS_MAX 64

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

/* "rails":[{"subnet":"a","mbps":400000}, ...] of one member; they say how many and how fast. */
static bool rails_read(const struct json *member, struct arena *arena, struct place *place)
{
	const struct json *list = json_get(member, "rails");
	if (list == NULL)
		return true;
	if (list->type != JSON_ARRAY || list->count < 1 || list->count > PLACE_NICS_MAX)
		return false;
	struct nic_speed *rails = arena_array(arena, list->count, sizeof(*rails));
	uint32_t i = 0;
	place->mbps = 0;
	for (const struct json *at = list->first; rails != NULL && at != NULL; at = at->next, i++) {
		const char *subnet = json_text(at, "subnet", NULL);
		int64_t mbps = json_integer(at, "mbps", 0);
		if (subnet == NULL || mbps < 0)
			return false;
		rails[i].subnet = digest_bytes(subnet, strlen(subnet), 0);
		rails[i].mbps = (uint64_t)mbps;
		place->mbps += rails[i].mbps;
	}
	place->rails = rails;
	place->nic_count = place->rail_count = i;
	return rails != NULL;
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
		if (host == NULL || strlen(host) >= sizeof(places->host) || nics < 1 ||
		    nics > PLACE_NICS_MAX || mbps < 0)
			return ws_fail(
				err, -EINVAL,
				"places '%s': member %u needs a \"host\", and \"nics\" from 1 to %d",
				path, i, PLACE_NICS_MAX);
		snprintf(places[i].host, sizeof(places[i].host), "%s", host);
		places[i].nic_count = (uint32_t)nics;
		places[i].mbps = (uint64_t)mbps;
		if (!rails_read(at, arena, &places[i]))
			return ws_fail(err, -EINVAL,
				       "places '%s': member %u's \"rails\" must be 1 to %d of "
				       "{\"subnet\", \"mbps\"}",
				       path, i, PLACE_NICS_MAX);
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
