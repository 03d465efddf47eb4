/* SPDX-License-Identifier: Apache-2.0 */
/* What the probe's results mean, as findings, matrices and JSON.  Pure. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/probe_inside.h"

#define MATRIX_RANKS_MAX 16
#define BAD_TOLD_MAX	 8
#define SLOW_SHARE	 3 /* below a third of the median */
#define SLOW_COUNT_MIN	 4
#define SLOW_TOLD_MAX	 4

/* ----------------------------------------------------------------------- rails */

static bool may_join(const struct probe_nic *from, const struct probe_nic *to)
{
	return from->protocol == to->protocol && strcmp(from->transport, to->transport) == 0 &&
	       strcmp(from->subnet, to->subnet) == 0;
}

/* Which it is among its rank's NICs that could take its place. */
static uint32_t number_among(const struct probe_rank *rank, uint32_t nic)
{
	uint32_t number = 0;
	for (uint32_t i = 0; i < nic; i++)
		number += may_join(&rank->nics[i], &rank->nics[nic]);
	return number;
}

uint32_t probe_rails(const struct probe_rank *from, const struct probe_rank *to,
		     struct rail *rails_out)
{
	uint32_t count = 0, near = 0;
	for (uint32_t i = 0; i < from->nic_count; i++)
		for (uint32_t k = 0; k < to->nic_count; k++)
			if (may_join(&from->nics[i], &to->nics[k]) &&
			    number_among(from, i) == number_among(to, k))
				rails_out[count++] = (struct rail){.from = i, .to = k};
	for (uint32_t i = 0; i < count; i++)
		if (from->nics[rails_out[i].from].same_host)
			rails_out[near++] = rails_out[i];
	return near > 0 ? near : count;
}

/* --------------------------------------------------------------------- findings */

const char *probe_pair_name(const struct probe *probe, uint32_t from, uint32_t to, uint32_t rail,
			    char *out, size_t room)
{
	const struct probe_rank *a = &probe->ranks[from], *b = &probe->ranks[to];
	const struct pair_result *pair = pair_at(probe, from, to, rail);

	snprintf(out, room, "rank %u (%.40s) to rank %u (%.40s), %s to %s", from, a->host, to,
		 b->host, a->nics[pair->rail.from].name, b->nics[pair->rail.to].name);
	return out;
}

static const char *fix_of(const struct probe *probe, uint32_t from, uint32_t to, uint32_t rail,
			  uint32_t code)
{
	const struct probe_nic *nic =
		&probe->ranks[from].nics[pair_at(probe, from, to, rail)->rail.from];
	if (code == EBADMSG)
		return "this is never right: update the NIC's firmware and driver, libfabric or "
		       "rdma-core, or take another transport or provider";
	if (strcmp(nic->transport, "verbs") == 0)
		return "try `ping -I` and `ib_write_bw` between the two: both ports must be in one "
		       "VLAN or fabric, with RoCE v2 GIDs of it, one MTU (switches too), and no "
		       "firewall for UDP port 4791";
	if (strcmp(nic->transport, "ipc") == 0)
		return "containers of one host must share their PID namespace, and see the finding "
		       "about cma; or give --transport fabric";
	return "see that no firewall is between the two addresses (any TCP port is used), and that "
	       "`ping` answers; --nics names others";
}

void probe_say_bad(const struct probe *probe, struct doctor *doctor, uint32_t from, uint32_t to,
		   uint32_t rail, uint32_t code, const char *text)
{
	char name[300];
	uint32_t bad = 0;
	size_t total = (size_t)probe->world * probe->world * NICS_MAX;

	for (size_t i = 0; i < total; i++)
		bad += probe->pairs[i].state == PAIR_BAD;
	if (bad > BAD_TOLD_MAX)
		return;
	doctor_say(doctor, HEALTH_PROBLEM, "probe", "weights can't travel this way",
		   fix_of(probe, from, to, rail, code), "%s: %s%s",
		   probe_pair_name(probe, from, to, rail, name, sizeof(name)), text,
		   bad == BAD_TOLD_MAX ? " (others that failed are in the matrix only)" : "");
}

static void list_subnets(const struct probe_rank *rank, char *out, size_t room)
{
	struct writer text = writer_fixed(out, room - 1);
	for (uint32_t i = 0; i < rank->nic_count; i++)
		write_format(&text, "%s%s (%s, protocol %04x)", i > 0 ? ", " : "",
			     rank->nics[i].name, rank->nics[i].subnet,
			     (unsigned)(rank->nics[i].protocol & 0xffff));
	out[text.count] = '\0';
}

void probe_judge_rails(const struct probe *probe, struct doctor *doctor)
{
	for (uint32_t a = 0; a < probe->world; a++)
		for (uint32_t b = a + 1; b < probe->world; b++) {
			char here[300], there[300];
			/* A rank without a NIC has said so itself. */
			if (pair_at(probe, a, b, 0)->joined || probe->ranks[a].nic_count == 0 ||
			    probe->ranks[b].nic_count == 0)
				continue;
			list_subnets(&probe->ranks[a], here, sizeof(here));
			list_subnets(&probe->ranks[b], there, sizeof(there));
			doctor_say(
				doctor, HEALTH_PROBLEM, "probe",
				"NICs are joined where their transport and subnet are equal",
				"give both ends addresses of one subnet, or name NICs that share "
				"one with --nics",
				"no rail joins rank %u (%s) and rank %u (%s): %s; %s", a,
				probe->ranks[a].host, b, probe->ranks[b].host, here, there);
		}
}

int probe_by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* The good pairs of one transport, as indices into probe->pairs. */
static size_t pairs_of(const struct probe *probe, const char *transport, size_t *indices_out)
{
	size_t total = (size_t)probe->world * probe->world * NICS_MAX, count = 0;
	for (size_t i = 0; i < total; i++) {
		const struct pair_result *pair = &probe->pairs[i];
		size_t from = i / NICS_MAX / probe->world;
		if (pair->state == PAIR_GOOD &&
		    strcmp(probe->ranks[from].nics[pair->rail.from].transport, transport) == 0)
			indices_out[count++] = i;
	}
	return count;
}

static void judge_transport(const struct probe *probe, struct doctor *doctor, const size_t *indices,
			    size_t count, uint64_t *speeds)
{
	uint32_t slow = 0, told = 0;
	char name[300];

	for (size_t i = 0; i < count; i++)
		speeds[i] = probe->pairs[indices[i]].bytes_per_s;
	qsort(speeds, count, sizeof(*speeds), probe_by_value);
	uint64_t median = speeds[count / 2];
	for (size_t i = 0; i < count; i++)
		slow += probe->pairs[indices[i]].bytes_per_s * SLOW_SHARE < median;
	for (size_t i = 0; i < count && told < SLOW_TOLD_MAX; i++) {
		const struct pair_result *pair = &probe->pairs[indices[i]];
		size_t both = indices[i] / NICS_MAX;
		if (pair->bytes_per_s * SLOW_SHARE >= median)
			continue;
		told++;
		doctor_say(
			doctor, HEALTH_NOTE, "speed", "an update is as slow as its slowest pair",
			"see who else uses that NIC or those cores, then the NIC's PCIe width, its "
			"cable and its errors (`ethtool -S`)",
			"%s: %.2f GB/s, the median is %.2f%s",
			probe_pair_name(probe, (uint32_t)(both / probe->world),
					(uint32_t)(both % probe->world),
					(uint32_t)(indices[i] % NICS_MAX), name, sizeof(name)),
			(double)pair->bytes_per_s / 1e9, (double)median / 1e9,
			told == SLOW_TOLD_MAX && slow > told ? " (and others, see the matrix)"
							     : "");
	}
}

void probe_judge_speed(const struct probe *probe, struct doctor *doctor)
{
	size_t total = (size_t)probe->world * probe->world * NICS_MAX;
	size_t *indices = mem_alloc(total * sizeof(*indices));
	uint64_t *speeds = mem_alloc(total * sizeof(*speeds));

	doctor->out_of_memory |= indices == NULL || speeds == NULL;
	for (size_t i = 0; indices != NULL && speeds != NULL && transports[i] != NULL; i++) {
		size_t count = pairs_of(probe, transports[i]->name, indices);
		if (count >= SLOW_COUNT_MIN)
			judge_transport(probe, doctor, indices, count, speeds);
	}
	mem_free(indices);
	mem_free(speeds);
}

/* --------------------------------------------------------------------- matrices */

struct cell {
	char text[24];
};

static struct cell latency_cell(const struct pair_result *pair)
{
	struct cell cell;
	snprintf(cell.text, sizeof(cell.text), "%.1f/%.0f", (double)pair->p50_ns / 1e3,
		 (double)pair->p99_ns / 1e3);
	return cell;
}

static struct cell speed_cell(const struct pair_result *pair)
{
	struct cell cell;
	snprintf(cell.text, sizeof(cell.text), "%.3g", (double)pair->bytes_per_s / 1e9);
	return cell;
}

static struct cell cell_at(const struct probe *probe, uint32_t from, uint32_t to, uint32_t rail,
			   struct cell (*cell_of)(const struct pair_result *pair))
{
	const struct pair_result *pair = pair_at(probe, from, to, rail);
	if (pair->state == PAIR_GOOD)
		return cell_of(pair);
	if (pair->state == PAIR_BAD)
		return (struct cell){"failed"};
	return from == to ? (struct cell){"."} : (struct cell){"-"};
}

static void put_matrix(const struct probe *probe, uint32_t rail, const char *title,
		       struct cell (*cell_of)(const struct pair_result *pair), struct writer *out)
{
	size_t width = 2;
	for (uint32_t from = 0; from < probe->world; from++)
		for (uint32_t to = 0; to < probe->world; to++) {
			struct cell cell = cell_at(probe, from, to, rail, cell_of);
			width = MAX(width, strlen(cell.text));
		}
	write_format(out, "\n%s\n  from\\to", title);
	for (uint32_t to = 0; to < probe->world; to++)
		write_format(out, "  %*u", (int)width, to);
	write_format(out, "\n");
	for (uint32_t from = 0; from < probe->world; from++) {
		write_format(out, "  %7u", from);
		for (uint32_t to = 0; to < probe->world; to++) {
			struct cell cell = cell_at(probe, from, to, rail, cell_of);
			write_format(out, "  %*s", (int)width, cell.text);
		}
		write_format(out, "\n");
	}
}

/* For a world whose matrix no screen holds. */
static void put_range(const struct probe *probe, struct writer *out)
{
	size_t total = (size_t)probe->world * probe->world * NICS_MAX, good = 0, bad = 0;
	uint64_t slowest = UINT64_MAX, fastest = 0, latest = 0;

	for (size_t i = 0; i < total; i++) {
		const struct pair_result *pair = &probe->pairs[i];
		bad += pair->state == PAIR_BAD;
		if (pair->state != PAIR_GOOD)
			continue;
		good++;
		slowest = MIN(slowest, pair->bytes_per_s);
		fastest = MAX(fastest, pair->bytes_per_s);
		latest = MAX(latest, pair->p99_ns);
	}
	write_format(out,
		     "\n%zu pairs are good, %zu failed: %.3g to %.3g GB/s, p99 at most %.1f us; "
		     "--json has each\n",
		     good, bad, good > 0 ? (double)slowest / 1e9 : 0.0, (double)fastest / 1e9,
		     (double)latest / 1e3);
}

static double crowd_speed(const struct crowd_result *crowd)
{
	return crowd->ns > 0 ? (double)crowd->bytes / (double)crowd->ns : 0;
}

static void put_crowds(const struct probe *probe, struct writer *out)
{
	if (probe->world < 3)
		return;
	write_format(out, "\n  %-7s %-24s %14s %14s\n", "rank", "host", "all to all", "incast");
	for (uint32_t i = 0; i < probe->world; i++)
		write_format(out, "  %-7u %-24s %9.3g GB/s %9.3g GB/s\n", i, probe->ranks[i].host,
			     crowd_speed(&probe->all[i]), crowd_speed(&probe->incast[i]));
	write_format(out, "  all to all: what arrived there while every rank wrote to every other\n"
			  "  incast: what arrived there while all others wrote to it alone\n");
}

static uint32_t rails_max(const struct probe *probe)
{
	size_t total = (size_t)probe->world * probe->world * NICS_MAX;
	uint32_t rails = 0;
	for (size_t i = 0; i < total; i++)
		if (probe->pairs[i].joined)
			rails = MAX(rails, (uint32_t)(i % NICS_MAX) + 1);
	return rails;
}

static bool rail_uses(const struct probe *probe, uint32_t rail, const char *transport)
{
	bool used = false;
	for (uint32_t from = 0; from < probe->world; from++)
		for (uint32_t to = 0; to < probe->world; to++) {
			const struct pair_result *pair = pair_at(probe, from, to, rail);
			const struct probe_nic *nic = &probe->ranks[from].nics[pair->rail.from];
			used |= pair->joined && strcmp(nic->transport, transport) == 0;
		}
	return used;
}

/* "rail 0 (ipc, verbs): .."; what joins the pairs that have such a rail. */
static void rail_title(const struct probe *probe, uint32_t rail, const char *what, char *out,
		       size_t room)
{
	struct writer text = writer_fixed(out, room - 1);
	const char *between = " (";

	write_format(&text, "rail %u", rail);
	for (size_t i = 0; transports[i] != NULL; i++) {
		if (!rail_uses(probe, rail, transports[i]->name))
			continue;
		write_format(&text, "%s%s", between, transports[i]->name);
		between = ", ";
	}
	write_format(&text, "): %s", what);
	out[text.count] = '\0';
}

void probe_put_table(const struct probe *probe, struct writer *out)
{
	uint32_t rails = rails_max(probe);

	if (rails > 0 && probe->world > MATRIX_RANKS_MAX)
		put_range(probe, out);
	for (uint32_t rail = 0; probe->world <= MATRIX_RANKS_MAX && rail < rails; rail++) {
		char title[160];
		rail_title(probe, rail, "latency of 8 B, one way, us (p50/p99)", title,
			   sizeof(title));
		put_matrix(probe, rail, title, latency_cell, out);
		rail_title(probe, rail, "bandwidth of 1 MiB writes, GB/s", title, sizeof(title));
		put_matrix(probe, rail, title, speed_cell, out);
	}
	put_crowds(probe, out);
}

/* ------------------------------------------------------------------------- JSON */

static void put_pair(const struct probe *probe, uint32_t from, uint32_t to, uint32_t rail,
		     struct writer *out)
{
	const struct pair_result *pair = pair_at(probe, from, to, rail);
	const struct probe_nic *a = &probe->ranks[from].nics[pair->rail.from];
	const struct probe_nic *b = &probe->ranks[to].nics[pair->rail.to];
	struct json_writer json = {.out = out};

	json_begin_object(&json, NULL);
	json_put_text(&json, "kind", "pair");
	json_put_u64(&json, "from", from);
	json_put_u64(&json, "to", to);
	json_put_u64(&json, "rail", rail);
	json_put_text(&json, "transport", a->transport);
	json_put_text(&json, "from_nic", a->name);
	json_put_text(&json, "to_nic", b->name);
	json_put_text(&json, "path", b->path);
	json_put_bool(&json, "tried", pair->state != PAIR_UNTRIED);
	json_put_bool(&json, "good", pair->state == PAIR_GOOD);
	json_put_number(&json, "first_us", (double)pair->first_ns / 1e3, 1);
	json_put_number(&json, "p50_us", (double)pair->p50_ns / 1e3, 1);
	json_put_number(&json, "p99_us", (double)pair->p99_ns / 1e3, 1);
	json_put_number(&json, "gb_per_s", (double)pair->bytes_per_s / 1e9, 5);
	json_end_object(&json);
	write_format(out, "\n");
}

static void put_rank(const struct probe *probe, uint32_t rank, struct writer *out)
{
	struct json_writer json = {.out = out};

	json_begin_object(&json, NULL);
	json_put_text(&json, "kind", "rank");
	json_put_u64(&json, "rank", rank);
	json_put_text(&json, "host", probe->ranks[rank].host);
	json_put_u64(&json, "nics", probe->ranks[rank].nic_count);
	json_put_number(&json, "all_to_all_gb_per_s", crowd_speed(&probe->all[rank]), 5);
	json_put_number(&json, "incast_gb_per_s", crowd_speed(&probe->incast[rank]), 5);
	json_end_object(&json);
	write_format(out, "\n");
}

void probe_put_json(const struct probe *probe, struct writer *out)
{
	for (uint32_t i = 0; i < probe->world; i++)
		put_rank(probe, i, out);
	for (uint32_t from = 0; from < probe->world; from++)
		for (uint32_t to = 0; to < probe->world; to++)
			for (uint32_t rail = 0; rail < NICS_MAX; rail++)
				if (pair_at(probe, from, to, rail)->joined)
					put_pair(probe, from, to, rail, out);
}
