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

static int place_keep(struct arena *arena, struct place *place)
{
	struct nic_speed *rails = arena_array(arena, place->rail_count, sizeof(*rails));

	if (rails == NULL)
		return -ENOMEM;
	memcpy(rails, place->rails, place->rail_count * sizeof(*rails));
	place->rails = rails;
	place->nic_count = place->rail_count;
	place->mbps = 0;
	for (uint32_t i = 0; i < place->rail_count; i++)
		place->mbps += rails[i].mbps;
	return 0;
}

int places_keep(struct plan *plan)
{
	struct place *places;

	if (plan->input.places == NULL)
		return 0;
	places = arena_array(&plan->arena, plan->member_count, sizeof(*places));
	if (places == NULL)
		return -ENOMEM;
	memcpy(places, plan->input.places, plan->member_count * sizeof(*places));
	plan->input.places = places;
	for (uint32_t m = 0; m < plan->member_count; m++)
		if (places[m].rails != NULL && place_keep(&plan->arena, &places[m]) != 0)
			return -ENOMEM;
	return 0;
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

/* A member's NICs in a subnet.  One of unknown speed is as fast as need be; where trainers' speeds
 * aren't known, NICs are counted. */
static uint64_t subnet_speed(const struct place *place, uint64_t subnet, bool known)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < place->rail_count; i++) {
		const struct nic_speed *rail = &place->rails[i];
		if (rail->subnet == subnet)
			sum += !known ? 1 : rail->mbps == 0 ? MBPS_MAX : rail->mbps;
	}
	return sum;
}

static bool is_first_of_subnet(const struct place *place, uint32_t rail)
{
	uint32_t first = 0;

	while (place->rails[first].subnet != place->rails[rail].subnet)
		first++;
	return first == rail;
}

/* What of a trainer's speed is of use: in each subnet as much as all rollouts that trainers write
 * to can take. */
static uint64_t common_speed(const struct plan *plan, uint32_t trainer, bool known)
{
	const struct place *places = plan->input.places, *own = &places[trainer];
	uint32_t end = member_of_rollout(plan, plan->fed_replicas, 0);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < own->rail_count; i++) {
		uint64_t subnet = own->rails[i].subnet, theirs = 0;
		if (subnet == 0 || !is_first_of_subnet(own, i))
			continue;
		uint64_t mine = subnet_speed(own, subnet, known);
		for (uint32_t m = plan->trainer_count; m < end && theirs < mine; m++)
			theirs += subnet_speed(&places[m], subnet, known);
		sum += MIN(mine, theirs);
	}
	return sum;
}

static bool speed_is_known(const struct place *place)
{
	for (uint32_t i = 0; i < place->rail_count; i++)
		if (place->rails[i].mbps == 0 && place->rails[i].subnet != 0)
			return false;
	return place->rail_count > 0 || place->mbps != 0;
}

void places_weights(const struct plan *plan, uint64_t *weights_out)
{
	const struct place *places = plan->input.places;
	bool known = places != NULL, rails = places != NULL;

	for (uint32_t m = 0; rails && m < plan->member_count; m++)
		rails = places[m].rail_count > 0;
	for (uint32_t i = 0; known && i < plan->trainer_count; i++)
		known = speed_is_known(&places[i]);
	for (uint32_t i = 0; i < plan->trainer_count; i++) {
		uint64_t speed = rails ? common_speed(plan, i, known) : known ? places[i].mbps : 1;
		weights_out[i] = MIN(speed, MBPS_MAX);
	}
}

void places_digest(const struct plan *plan, struct writer *out)
{
	const struct place *places = plan->input.places;

	write_u8(out, places != NULL);
	for (uint32_t i = 0; places != NULL && i < plan->member_count; i++) {
		write_text(out, places[i].host);
		write_u32(out, places[i].nic_count);
		write_u64(out, places[i].mbps);
		if (places[i].rail_count > 0)
			write_u32(out, places[i].rail_count);
		for (uint32_t r = 0; r < places[i].rail_count; r++) {
			write_u64(out, places[i].rails[r].subnet);
			write_u64(out, places[i].rails[r].mbps);
		}
	}
}
