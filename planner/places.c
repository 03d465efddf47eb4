/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members: their numbers, their names for people, where they are and how fast.
 */
#include <stdio.h>

#include "planner/plan_internal.h"

#define MBPS_MAX (1u << 24) /* keeps the arithmetic of balance.c within 128 bits */

uint32_t plan_member_count(const struct plan *plan)
{
	return plan->member_count;
}

uint32_t member_of_rollout(const struct plan *plan, uint32_t replica_index, uint32_t rank)
{
	return plan->trainer_count + replica_index * plan->rollout_count + rank;
}

const char *plan_member_name(const struct plan *plan, uint32_t member, char *out, size_t bytes)
{
	if (member < plan->trainer_count) {
		snprintf(out, bytes, "trainer %" PRIu32, member);
		return out;
	}
	uint32_t index = (member - plan->trainer_count) / plan->rollout_count;
	uint32_t rank = (member - plan->trainer_count) % plan->rollout_count;
	uint32_t replica = index < plan->input.replica_count ? plan->input.replicas[index] : index;

	snprintf(out, bytes,
		 "rollout %" PRIu32 ".%" PRIu32 " (replica %" PRIu32 ", rank %" PRIu32 ")", replica,
		 rank, replica, rank);
	return out;
}

struct named {
	const char *host;
	uint32_t member;
};

static int named_compare(const void *a, const void *b)
{
	const struct named *x = a, *y = b;
	int by_host = strcmp(x->host, y->host);

	return by_host != 0 ? by_host : x->member < y->member ? -1 : x->member > y->member;
}

int places_hosts(const struct plan *plan, struct arena *arena, uint32_t *hosts_out)
{
	const struct place *places = plan->input.places;
	struct named *named = arena_array(arena, plan->member_count, sizeof(*named));

	if (named == NULL)
		return -ENOMEM;
	for (uint32_t m = 0; m < plan->member_count; m++) {
		hosts_out[m] = m;
		named[m] = (struct named){places != NULL ? places[m].host : "", m};
	}
	if (places == NULL)
		return 0;
	qsort(named, plan->member_count, sizeof(*named), named_compare);
	for (uint32_t i = 1; i < plan->member_count; i++)
		if (strcmp(named[i].host, named[i - 1].host) == 0)
			hosts_out[named[i].member] = hosts_out[named[i - 1].member];
	return 0;
}

void places_weights(const struct plan *plan, uint64_t *weights_out)
{
	const struct place *places = plan->input.places;
	bool known = places != NULL;

	for (uint32_t i = 0; known && i < plan->trainer_count; i++)
		known = places[i].mbps != 0;
	for (uint32_t i = 0; i < plan->trainer_count; i++)
		weights_out[i] = known ? MIN(places[i].mbps, MBPS_MAX) : 1;
}

void places_digest(const struct plan *plan, struct writer *out)
{
	const struct place *places = plan->input.places;

	write_u8(out, places != NULL);
	for (uint32_t i = 0; places != NULL && i < plan->member_count; i++) {
		write_text(out, places[i].host);
		write_u32(out, places[i].nic_count);
		write_u64(out, places[i].mbps);
	}
}
