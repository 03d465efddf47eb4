/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a rank alone to ranks that are joined: this rank's NICs, everybody's first words, and the
 * connections of all rails.
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/probe_inside.h"
#include "lib/hub/host.h"

#define GRACE_MS 5000 /* for a round, beyond the step before it */
#define SKEW_NS	 1000000000

/* ------------------------------------------------------------------ this rank's own */

static int nic_add(struct probe *probe, const struct device *device, struct ws_error *err)
{
	struct nic **nic = &probe->nics[probe->nic_count];
	int rc = nic_open(nic, device->transport, device->name, err);
	if (rc == 0)
		rc = (*nic)->transport->reg(*nic, &probe->memory, MR_TARGET,
					    &probe->mrs[probe->nic_count], err);
	if (rc == 0)
		probe->nic_count++;
	else
		nic_close(*nic);
	return rc;
}

void probe_open_nics(struct probe *probe, struct doctor *doctor)
{
	const struct devices *devices = probe->options.devices;
	struct ws_error err = {0};

	if (ws_memory_alloc(&probe->memory, PROBE_MEMORY_BYTES, &err) != 0) {
		doctor_say(doctor, HEALTH_PROBLEM, "probe",
			   "a rank registers memory to be written to", "see why memory is short",
			   "%s", err.text);
		return;
	}
	/* Here and after each step: when the next one begins its target is clear for certain. */
	wire_clear(&(struct wire){.memory = probe->memory.base});
	for (uint32_t i = 0; i < devices->count; i++)
		if (nic_add(probe, &devices->device[i], &err) != 0)
			doctor_say(doctor, HEALTH_PROBLEM, "probe",
				   "a NIC that takes no memory can't take part in an update",
				   "see the findings about memlock and NICs", "%s", err.text);
}

/* ---------------------------------------------------------------------- rounds */

int probe_share(struct probe *probe, const struct writer *mine, struct reader *parts,
		struct ws_error *err)
{
	/* Members wait longer, so that rank 0 can name who is missing. */
	uint64_t ms = (probe->met ? probe->options.step_ms : probe->options.start_ms) +
		      (probe->rank == 0 ? GRACE_MS : 2 * GRACE_MS);
	int rc = meeting_share(probe->meeting, mine, parts, deadline_in_ms(ms), err);
	if (rc == 0)
		probe->met = true;
	else if (rc != -ECANCELED && probe->rank != 0)
		probe->met = false; /* who tells it then? */
	return rc;
}

static void hello_encode(const struct probe *probe, const struct doctor *doctor, struct writer *out)
{
	char host[64] = "", identity[HOST_TEXT_BYTES];

	gethostname(host, sizeof(host) - 1);
	host_identity("", identity);
	write_text(out, WS_VERSION);
	write_text(out, host);
	write_text(out, identity);
	write_u32(out, probe->nic_count);
	for (uint32_t i = 0; i < probe->nic_count; i++) {
		const struct nic *nic = probe->nics[i];
		write_text(out, nic->transport->name);
		write_text(out, nic->name);
		write_text(out, nic->subnet);
		write_text(out, probe->mrs[i].path != NULL ? probe->mrs[i].path : "");
		write_u64(out, nic->protocol);
		write_u64(out, nic->mbps);
		write_u8(out, nic->same_host);
		write_u64(out, probe->mrs[i].key);
		write_u64(out, probe->mrs[i].base);
	}
	doctor_encode(doctor, out);
}

static int hello_decode(struct probe_rank *rank, struct reader *in, struct ws_error *err)
{
	read_text(in, rank->version, sizeof(rank->version));
	read_text(in, rank->host, sizeof(rank->host));
	read_text(in, rank->identity, sizeof(rank->identity));
	rank->nic_count = read_count(in, 1, NICS_MAX);
	for (uint32_t i = 0; i < rank->nic_count; i++) {
		struct probe_nic *nic = &rank->nics[i];
		read_text(in, nic->transport, sizeof(nic->transport));
		read_text(in, nic->name, sizeof(nic->name));
		read_text(in, nic->subnet, sizeof(nic->subnet));
		read_text(in, nic->path, sizeof(nic->path));
		nic->protocol = read_u64(in);
		nic->mbps = read_u64(in);
		nic->same_host = read_u8(in) != 0;
		nic->key = read_u64(in);
		nic->base = read_u64(in);
	}
	return in->failed ? ws_fail(err, -EPROTO, "a rank's first words aren't a rank's") : 0;
}

int probe_hello(struct probe *probe, struct doctor *doctor, struct ws_error *err)
{
	struct writer mine = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct reader parts[PROBE_RANKS_MAX];

	hello_encode(probe, doctor, &mine);
	int rc = probe_share(probe, &mine, parts, err);
	writer_release(&mine);
	for (uint32_t i = 0; rc == 0 && i < probe->world; i++) {
		rc = hello_decode(&probe->ranks[i], &parts[i], err);
		if (rc == 0 && i != probe->rank)
			rc = doctor_merge(doctor, &parts[i], err);
	}
	if (rc != 0)
		return rc;
	doctor->ranks = probe->world == 64 ? UINT64_MAX : (UINT64_C(1) << probe->world) - 1;
	for (uint32_t i = 1; i < probe->world; i++)
		if (strcmp(probe->ranks[i].version, probe->ranks[0].version) != 0)
			doctor_say(doctor, HEALTH_PROBLEM, "version",
				   "both ends of a pair compute the same plan only with the same "
				   "version",
				   "install one version everywhere",
				   "rank %u (%s) has weightsync %s, rank 0 has %s", i,
				   probe->ranks[i].host, probe->ranks[i].version,
				   probe->ranks[0].version);
	return 0;
}

/* ------------------------------------------------------------------------- rails */

/* Both directions of a pair have the same rails by the same numbers. */
static void join_all(struct probe *probe)
{
	for (uint32_t a = 0; a < probe->world; a++)
		for (uint32_t b = a + 1; b < probe->world; b++) {
			struct rail rails[NICS_MAX];
			uint32_t count = probe_rails(&probe->ranks[a], &probe->ranks[b], rails);
			for (uint32_t i = 0; i < count; i++) {
				struct rail back = {.from = rails[i].to, .to = rails[i].from};
				*pair_at(probe, a, b, i) =
					(struct pair_result){.joined = true, .rail = rails[i]};
				*pair_at(probe, b, a, i) =
					(struct pair_result){.joined = true, .rail = back};
			}
		}
}

static int wire_open(struct probe *probe, uint32_t other, uint32_t rail, struct address *address,
		     struct ws_error *err)
{
	const struct pair_result *pair = pair_at(probe, probe->rank, other, rail);
	const struct probe_nic *remote = &probe->ranks[other].nics[pair->rail.to];
	struct wire *wire = wire_at(probe, other, rail);
	struct nic *nic = probe->nics[pair->rail.from];

	*wire = (struct wire){.nic = nic,
			      .mr = &probe->mrs[pair->rail.from],
			      .memory = probe->memory.base,
			      .remote_key = remote->key,
			      .remote_base = remote->base};
	return nic->transport->peer_open(nic, &wire->peer, address, err);
}

/* One round: the half connections of all to all; and what couldn't be opened. */
static int open_wires(struct probe *probe, struct reader *parts, struct writer *failures,
		      struct ws_error *err)
{
	struct writer mine = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	write_u64(&mine, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
	for (uint32_t other = 0; other < probe->world; other++)
		for (uint32_t rail = 0; rail < NICS_MAX; rail++) {
			struct address address = {0};
			struct ws_error why = {0};
			if (!pair_at(probe, probe->rank, other, rail)->joined)
				break;
			if (wire_open(probe, other, rail, &address, &why) != 0) {
				address.count = 0;
				write_u32(failures, other);
				write_u32(failures, rail);
				write_text(failures, why.text);
			}
			write_u16(&mine, address.count);
			write_bytes(&mine, address.bytes, address.count);
		}
	int rc = probe_share(probe, &mine, parts, err);
	writer_release(&mine);
	return rc;
}

/* Reads one rank's addresses; those that are meant for this rank are connected. */
static void connect_wires(struct probe *probe, uint32_t from, struct reader *in,
			  struct writer *failures)
{
	for (uint32_t to = 0; to < probe->world; to++)
		for (uint32_t rail = 0; rail < NICS_MAX; rail++) {
			struct address address = {0};
			struct ws_error why = {0};
			struct wire *wire = wire_at(probe, from, rail);
			if (!pair_at(probe, from, to, rail)->joined)
				break;
			address.count = read_u16(in);
			const void *bytes = read_bytes(in, address.count);
			if (to != probe->rank || bytes == NULL || address.count == 0 ||
			    address.count > ADDRESS_BYTES_MAX || wire->peer == NULL)
				continue;
			memcpy(address.bytes, bytes, address.count);
			if (wire->nic->transport->peer_connect(wire->nic, wire->peer, &address,
							       &why) == 0)
				continue;
			write_u32(failures, from);
			write_u32(failures, rail);
			write_text(failures, why.text);
		}
}

/* What one rank couldn't open or connect: neither direction of it is tried. */
static void take_failures(struct probe *probe, struct doctor *doctor, uint32_t rank,
			  struct reader *in)
{
	while (reader_left(in) > 0 && !in->failed) {
		char text[PROBE_TEXT_BYTES];
		uint32_t other = read_u32(in), rail = read_u32(in);
		read_text(in, text, sizeof(text));
		if (in->failed || other >= probe->world || rail >= NICS_MAX)
			return;
		bool known = pair_at(probe, rank, other, rail)->state == PAIR_BAD;
		pair_at(probe, rank, other, rail)->state = PAIR_BAD;
		pair_at(probe, other, rank, rail)->state = PAIR_BAD;
		if (!known)
			probe_say_bad(probe, doctor, rank, other, rail, 0, text);
	}
}

static void judge_clocks(const struct probe *probe, struct doctor *doctor, const uint64_t *now_ns)
{
	for (uint32_t i = 1; i < probe->world; i++) {
		int64_t ahead = (int64_t)(now_ns[i] - now_ns[0]);
		if ((ahead > SKEW_NS || ahead < -SKEW_NS) &&
		    strcmp(probe->ranks[i].identity, probe->ranks[0].identity) != 0)
			doctor_say(doctor, HEALTH_NOTE, "clock",
				   "logs of two hosts can't be laid side by side",
				   "run chrony or another NTP client on both",
				   "the clock of rank %u (%s) is %.1f s %s that of rank 0 (%s)", i,
				   probe->ranks[i].host, (double)ahead / (ahead < 0 ? -1e9 : 1e9),
				   ahead < 0 ? "behind" : "ahead of", probe->ranks[0].host);
	}
}

int probe_join(struct probe *probe, struct doctor *doctor, struct ws_error *err)
{
	struct writer failures = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct reader parts[PROBE_RANKS_MAX];
	uint64_t now_ns[PROBE_RANKS_MAX];

	join_all(probe);
	int rc = open_wires(probe, parts, &failures, err);
	for (uint32_t i = 0; rc == 0 && i < probe->world; i++) {
		now_ns[i] = read_u64(&parts[i]);
		connect_wires(probe, i, &parts[i], &failures);
	}
	if (rc == 0) {
		judge_clocks(probe, doctor, now_ns);
		rc = probe_share(probe, &failures, parts, err);
	}
	for (uint32_t i = 0; rc == 0 && i < probe->world; i++)
		take_failures(probe, doctor, i, &parts[i]);
	writer_release(&failures);
	probe_judge_rails(probe, doctor);
	return rc;
}
