/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people and programs read about a simulation: a table, one JSON object.
 */
#include <stdio.h>
#include <string.h>

#include "planner/simulate_internal.h"

#define SLOWEST_COUNT 5

const char *simulation_member_name(const struct simulation *simulation, const struct plan *all,
				   uint32_t member, char *out, size_t bytes)
{
	if (all != NULL)
		return plan_member_name(all, member, out, bytes);
	bool trainer = member < simulation->trainer_count;
	snprintf(out, bytes, "%s %" PRIu32, trainer ? "trainer" : "rollout",
		 trainer ? member : member - simulation->trainer_count);
	return out;
}

/* The members that end last, latest first; returns how many. */
static uint32_t slowest(const struct simulation *simulation, uint32_t *members_out)
{
	uint32_t count = 0;

	for (uint32_t m = 0; m < simulation->member_count; m++) {
		uint32_t at = count;
		while (at > 0 && simulation->members[m].end_s >
					 simulation->members[members_out[at - 1]].end_s)
			at--;
		if (at == SLOWEST_COUNT)
			continue;
		count = MIN(count + 1, SLOWEST_COUNT);
		for (uint32_t i = count - 1; i > at; i--)
			members_out[i] = members_out[i - 1];
		members_out[at] = m;
	}
	return count;
}

/* "rollout 1.0", without what explains it elsewhere: lines fit into 80 columns. */
static const char *short_name(const struct simulation *simulation, const struct plan *all,
			      uint32_t member, char *out, size_t bytes)
{
	simulation_member_name(simulation, all, member, out, bytes);
	out[strcspn(out, "(")] = '\0';
	size_t length = strlen(out);
	if (length > 0 && out[length - 1] == ' ')
		out[length - 1] = '\0';
	return out;
}

static void text_slowest(const struct simulation *simulation, const struct plan *all,
			 struct writer *out)
{
	char sent[BYTES_TEXT], received[BYTES_TEXT], name[96];
	uint32_t members[SLOWEST_COUNT];
	uint32_t count = slowest(simulation, members);

	write_format(out, "%-9s %8s %8s %21s %9s\n", "slowest", "end", "floor", "sent by NICs",
		     "received");
	for (uint32_t i = 0; i < count; i++) {
		const struct sim_member *member = &simulation->members[members[i]];
		write_format(out, "%-9s %8.3f %8.3f %21s %9s  %s\n", "", member->end_s,
			     member->floor_s, bytes_text(member->sent_bytes, sent, sizeof(sent)),
			     bytes_text(member->received_bytes, received, sizeof(received)),
			     short_name(simulation, all, members[i], name, sizeof(name)));
	}
}

void simulation_report_text(const struct simulation *simulation, const struct plan *all,
			    struct writer *out)
{
	char bytes[BYTES_TEXT], name[96];

	write_format(out, "predicted %.3f s  receive floor %.3f s  send floor %.3f s  ratio %.3f\n",
		     simulation->predicted_s, simulation->receive_floor_s, simulation->send_floor_s,
		     simulation->ratio);
	write_format(out, "%-9s %8s %8s %10s %10s %9s  %s\n", "phase", "from", "to", "busy mean",
		     "busy max", "bytes", "busiest");
	for (uint32_t p = 0; p < SIM_PHASES; p++) {
		const struct sim_phase_total *total = &simulation->phases[p];
		if (total->member_count == 0)
			continue;
		write_format(out, "%-9s %8.3f %8.3f %10.4f %10.4f %9s  %s\n",
			     sim_phase_name((enum sim_phase)p), total->begin_s, total->end_s,
			     total->busy_mean_s, total->busy_max_s,
			     bytes_text(total->bytes, bytes, sizeof(bytes)),
			     short_name(simulation, all, total->busiest, name, sizeof(name)));
	}
	text_slowest(simulation, all, out);
}

static void put_phases(const struct simulation *simulation, struct json_writer *json)
{
	json_begin_object(json, "phases");
	for (uint32_t p = 0; p < SIM_PHASES; p++) {
		const struct sim_phase_total *total = &simulation->phases[p];
		if (total->member_count == 0)
			continue;
		json_begin_object(json, sim_phase_name((enum sim_phase)p));
		json_put_number(json, "begin_s", total->begin_s, 6);
		json_put_number(json, "end_s", total->end_s, 6);
		json_put_number(json, "busy_mean_s", total->busy_mean_s, 6);
		json_put_number(json, "busy_max_s", total->busy_max_s, 6);
		json_put_u64(json, "bytes", total->bytes);
		json_put_u64(json, "busiest", total->busiest);
		json_end_object(json);
	}
	json_end_object(json);
}

void simulation_report_json(const struct simulation *simulation, const struct plan *all,
			    struct json_writer *json)
{
	uint32_t members[SLOWEST_COUNT];
	char name[96];

	json_put_number(json, "predicted_s", simulation->predicted_s, 6);
	json_put_number(json, "receive_floor_s", simulation->receive_floor_s, 6);
	json_put_number(json, "send_floor_s", simulation->send_floor_s, 6);
	json_put_number(json, "ratio", simulation->ratio, 4);
	json_put_u64(json, "members", simulation->member_count);
	json_put_u64(json, "buckets", simulation->bucket_count);
	put_phases(simulation, json);
	json_begin_array(json, "slowest");
	uint32_t count = slowest(simulation, members);
	for (uint32_t i = 0; i < count; i++) {
		const struct sim_member *member = &simulation->members[members[i]];
		json_begin_object(json, NULL);
		json_put_text(
			json, "member",
			simulation_member_name(simulation, all, members[i], name, sizeof(name)));
		json_put_number(json, "end_s", member->end_s, 6);
		json_put_number(json, "floor_s", member->floor_s, 6);
		json_put_u64(json, "sent_bytes", member->sent_bytes);
		json_put_u64(json, "received_bytes", member->received_bytes);
		json_end_object(json);
	}
	json_end_array(json);
}
