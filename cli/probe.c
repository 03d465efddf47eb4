/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe's course, the same at every rank: meet, join rails, then step by step.  Who writes to
 * whom in which step follows from what all have told each other, so nobody gives orders; the
 * round after a step brings its result to everybody and is the barrier before the next.
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/probe_inside.h"
#include "lib/hub/host.h"

#define GRACE_MS       5000 /* for a round, beyond the step before it */
#define FAULTS_TOLD    8
#define SKEW_NS	       1000000000
#define CROWD_OPS_MIN  2
#define CROWD_OPS_MAX  64
#define CROWD_SECONDS  0.1
#define TEXT_BYTES_MAX 600

/* ------------------------------------------------------------------ this rank's own */

static int nic_add(struct probe *probe, const struct device *device, struct ws_error *err)
{
	struct nic **nic = &probe->nics[probe->nic_count];
	int rc = nic_open(nic, device->transport, device->name, err);
	if (rc == 0)
		rc = (*nic)->transport->reg(*nic, &probe->memory, &probe->mrs[probe->nic_count],
					    err);
	if (rc == 0)
		probe->nic_count++;
	else
		nic_close(*nic);
	return rc;
}

/* A NIC that doesn't open or takes no memory is a finding, and the others are probed. */
static void open_nics(struct probe *probe, struct doctor *doctor)
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

void probe_free(struct probe *probe)
{
	if (probe == NULL)
		return;
	for (uint32_t i = 0; i < probe->nic_count; i++) {
		probe->nics[i]->transport->dereg(probe->nics[i], &probe->mrs[i]);
		nic_close(probe->nics[i]);
	}
	meeting_close(probe->meeting);
	ws_memory_free(&probe->memory);
	mem_free(probe->ranks);
	mem_free(probe->pairs);
	mem_free(probe->incast);
	mem_free(probe->all);
	mem_free(probe->wires);
	mem_free(probe);
}

static struct probe *probe_make(const struct probe_options *options)
{
	struct probe *probe = mem_alloc(sizeof(*probe));
	size_t world = options->launch->world;

	if (probe == NULL)
		return NULL;
	probe->options = *options;
	probe->rank = options->launch->rank;
	probe->world = options->launch->world;
	probe->ranks = mem_alloc(world * sizeof(*probe->ranks));
	probe->pairs = mem_alloc(world * world * NICS_MAX * sizeof(*probe->pairs));
	probe->incast = mem_alloc(world * sizeof(*probe->incast));
	probe->all = mem_alloc(world * sizeof(*probe->all));
	probe->wires = mem_alloc(world * NICS_MAX * sizeof(*probe->wires));
	if (probe->ranks == NULL || probe->pairs == NULL || probe->incast == NULL ||
	    probe->all == NULL || probe->wires == NULL) {
		probe_free(probe);
		return NULL;
	}
	return probe;
}

/* ---------------------------------------------------------------------- rounds */

static int share(struct probe *probe, const struct writer *mine, struct reader *parts,
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

/* Everybody's NICs and findings; from here on findings are about all ranks. */
static int say_hello(struct probe *probe, struct doctor *doctor, struct ws_error *err)
{
	struct writer mine = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct reader parts[PROBE_RANKS_MAX];

	hello_encode(probe, doctor, &mine);
	int rc = share(probe, &mine, parts, err);
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

/* ------------------------------------------------------------------------ faults */

/* code 0: it couldn't be connected at all. */
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

static void say_bad(struct probe *probe, struct doctor *doctor, uint32_t from, uint32_t to,
		    uint32_t rail, uint32_t code, const char *text)
{
	char name[300];
	uint32_t bad = 0;
	size_t total = (size_t)probe->world * probe->world * NICS_MAX;

	for (size_t i = 0; i < total; i++)
		bad += probe->pairs[i].state == PAIR_BAD;
	if (bad > FAULTS_TOLD)
		return;
	doctor_say(doctor, HEALTH_PROBLEM, "probe", "weights can't travel this way",
		   fix_of(probe, from, to, rail, code), "%s: %s%s",
		   probe_pair_name(probe, from, to, rail, name, sizeof(name)), text,
		   bad == FAULTS_TOLD ? " (others that failed are in the matrix only)" : "");
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
	int rc = share(probe, &mine, parts, err);
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
			const void *bytes = read_bytes(in, MIN(address.count, ADDRESS_BYTES_MAX));
			if (to != probe->rank || bytes == NULL || address.count == 0 ||
			    wire->peer == NULL)
				continue;
			memcpy(address.bytes, bytes, MIN(address.count, ADDRESS_BYTES_MAX));
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
		char text[TEXT_BYTES_MAX];
		uint32_t other = read_u32(in), rail = read_u32(in);
		read_text(in, text, sizeof(text));
		if (in->failed || other >= probe->world || rail >= NICS_MAX)
			return;
		bool known = pair_at(probe, rank, other, rail)->state == PAIR_BAD;
		pair_at(probe, rank, other, rail)->state = PAIR_BAD;
		pair_at(probe, other, rank, rail)->state = PAIR_BAD;
		if (!known)
			say_bad(probe, doctor, rank, other, rail, 0, text);
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

static int join_rails(struct probe *probe, struct doctor *doctor, struct ws_error *err)
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
		rc = share(probe, &failures, parts, err);
	}
	for (uint32_t i = 0; rc == 0 && i < probe->world; i++)
		take_failures(probe, doctor, i, &parts[i]);
	writer_release(&failures);
	probe_judge_rails(probe, doctor);
	return rc;
}

/* ------------------------------------------------------------------------- steps */

/* What a rank says after a step: nothing, or its measures, or its fault. */
static void step_encode(const struct pair_result *result, int rc, const struct ws_error *why,
			struct writer *out)
{
	write_u64(out, result->first_ns);
	write_u64(out, result->p50_ns);
	write_u64(out, result->p99_ns);
	write_u64(out, result->bytes_per_s);
	write_u32(out, (uint32_t)-rc);
	write_text(out, rc != 0 ? why->text : "");
}

/* The receiver's words say more, unless it only waited. */
static void step_take(struct probe *probe, struct doctor *doctor, uint32_t from, uint32_t to,
		      uint32_t rail, struct reader *parts)
{
	struct pair_result *pair = pair_at(probe, from, to, rail);
	char written[TEXT_BYTES_MAX], received[TEXT_BYTES_MAX], both[2 * TEXT_BYTES_MAX + 64];

	pair->first_ns = read_u64(&parts[from]);
	pair->p50_ns = read_u64(&parts[from]);
	pair->p99_ns = read_u64(&parts[from]);
	pair->bytes_per_s = read_u64(&parts[from]);
	uint32_t write_code = read_u32(&parts[from]);
	read_text(&parts[from], written, sizeof(written));
	read_bytes(&parts[to], 4 * 8);
	uint32_t read_code = read_u32(&parts[to]);
	read_text(&parts[to], received, sizeof(received));
	bool good = write_code == 0 && read_code == 0;
	pair->state = good ? PAIR_GOOD : PAIR_BAD;
	if (good)
		return;
	uint32_t code = write_code;
	snprintf(both, sizeof(both), "%s", written);
	if (write_code == 0 || (read_code != 0 && read_code != ETIMEDOUT)) {
		code = read_code;
		snprintf(both, sizeof(both), "%s", received);
	} else if (read_code == ETIMEDOUT && write_code == ETIMEDOUT) {
		snprintf(both, sizeof(both), "%s; there: %s", written, received);
	}
	say_bad(probe, doctor, from, to, rail, code, both);
}

static int step(struct probe *probe, struct doctor *doctor, uint32_t from, uint32_t to,
		uint32_t rail, struct ws_error *err)
{
	struct writer mine = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct reader parts[PROBE_RANKS_MAX];
	struct pair_result result = {0};
	struct ws_error why = {0};
	uint64_t seed = mix64(((uint64_t)from << 32 | to) * NICS_MAX + rail);
	int rc = 0;

	if (probe->rank == from || probe->rank == to) {
		struct wire *wire = wire_at(probe, probe->rank == from ? to : from, rail);
		wire->until_ns = deadline_in_ms(probe->options.step_ms);
		wire->imm_count = 0;
		rc = probe->rank == from ? wire_probe(wire, seed, &result, &why)
					 : wire_answer(wire, seed, &why);
		if (probe->rank == to)
			wire_clear(wire);
		step_encode(&result, rc, &why, &mine);
	}
	rc = share(probe, &mine, parts, err);
	writer_release(&mine);
	if (rc == 0)
		step_take(probe, doctor, from, to, rail, parts);
	return rc;
}

static int probe_pairs(struct probe *probe, struct doctor *doctor, struct ws_error *err)
{
	uint32_t tried = 0;
	int rc = 0;

	for (uint32_t from = 0; rc == 0 && from < probe->world; from++)
		for (uint32_t to = 0; rc == 0 && to < probe->world; to++)
			for (uint32_t rail = 0; rc == 0 && rail < NICS_MAX; rail++) {
				const struct pair_result *pair = pair_at(probe, from, to, rail);
				if (!pair->joined || pair->state == PAIR_BAD)
					continue;
				rc = step(probe, doctor, from, to, rail, err);
				tried += pair->state == PAIR_GOOD;
			}
	if (rc == 0 && tried > 0)
		doctor_say(doctor, HEALTH_OK, "probe", "", "",
			   "%u pairs: writes of 8 B to 1 MiB arrived whole, with 32 bits of "
			   "immediate",
			   tried);
	return rc;
}

/* ------------------------------------------------------------------------- crowds */

/* As many ops for each rail that all together take about a tenth of a second. */
static uint32_t crowd_ops(const struct probe *probe)
{
	size_t total = (size_t)probe->world * probe->world * NICS_MAX;
	uint64_t slowest = UINT64_MAX;
	for (size_t i = 0; i < total; i++)
		if (probe->pairs[i].state == PAIR_GOOD)
			slowest = MIN(slowest, probe->pairs[i].bytes_per_s);
	if (slowest == UINT64_MAX)
		return 0;
	double ops = (double)slowest * CROWD_SECONDS / (1 << 20) / (probe->world - 1);
	return ops < CROWD_OPS_MIN ? CROWD_OPS_MIN : (uint32_t)MIN(ops, CROWD_OPS_MAX);
}

/* All write to all, or all to one (target); what arrived here. */
static int crowd(struct probe *probe, struct doctor *doctor, uint32_t target, uint32_t ops,
		 struct crowd_result *results, struct ws_error *err)
{
	struct wire **wires = mem_alloc((size_t)probe->world * NICS_MAX * sizeof(*wires));
	struct writer mine = WRITER_INIT(LINK_BODY_BYTES_MAX);
	struct reader parts[PROBE_RANKS_MAX];
	struct ws_error why = {0};
	uint64_t until = deadline_in_ms(probe->options.step_ms), ns = 0, imms = 0;
	uint32_t count = 0, me = probe->rank;

	for (uint32_t other = 0; wires != NULL && other < probe->world; other++)
		for (uint32_t rail = 0; rail < NICS_MAX; rail++) {
			if ((target == UINT32_MAX || target == other) &&
			    pair_at(probe, me, other, rail)->state == PAIR_GOOD)
				wires[count++] = wire_at(probe, other, rail);
			if ((target == UINT32_MAX || target == me) &&
			    pair_at(probe, other, me, rail)->state == PAIR_GOOD)
				imms += ops;
		}
	int rc = wires == NULL ? ws_fail(&why, -ENOMEM, "no memory for %u wires", probe->world)
			       : wires_crowd(wires, count, ops, probe->nics, probe->nic_count, imms,
					     until, &ns, &why);
	mem_free(wires);
	write_u64(&mine, imms << 20);
	write_u64(&mine, ns);
	write_text(&mine, rc != 0 ? why.text : "");
	rc = share(probe, &mine, parts, err);
	writer_release(&mine);
	for (uint32_t i = 0; rc == 0 && i < probe->world; i++) {
		char text[TEXT_BYTES_MAX];
		struct crowd_result result = {.bytes = read_u64(&parts[i]),
					      .ns = read_u64(&parts[i])};
		read_text(&parts[i], text, sizeof(text));
		if (target == UINT32_MAX || target == i)
			results[i] = result;
		if (text[0] != '\0')
			doctor_say(
				doctor, HEALTH_PROBLEM, "probe",
				"an update writes from many to many at once",
				"see flow control (RoCE: PFC or ECN on every switch), the fd limit "
				"and memory",
				"rank %u (%s), %s: %s", i, probe->ranks[i].host,
				target == UINT32_MAX ? "all to all" : "incast", text);
	}
	return rc;
}

static int probe_crowds(struct probe *probe, struct doctor *doctor, struct ws_error *err)
{
	uint32_t ops = probe->world > 2 ? crowd_ops(probe) : 0;
	int rc = 0;

	if (ops == 0)
		return 0;
	rc = crowd(probe, doctor, UINT32_MAX, ops, probe->all, err);
	for (uint32_t i = 0; rc == 0 && i < probe->world; i++)
		rc = crowd(probe, doctor, i, ops, probe->incast, err);
	return rc;
}

/* ------------------------------------------------------------------------ the whole */

struct probe *probe_run(struct doctor *doctor, const struct probe_options *options)
{
	struct probe *probe = probe_make(options);
	struct ws_error err = {0};

	if (probe == NULL) {
		doctor->out_of_memory = true;
		return NULL;
	}
	open_nics(probe, doctor);
	int rc = meeting_open(&probe->meeting, options->launch, options->hub, options->key_file,
			      deadline_in_ms(options->start_ms), &err);
	if (rc == 0)
		rc = say_hello(probe, doctor, &err);
	if (rc == 0)
		rc = join_rails(probe, doctor, &err);
	if (rc == 0)
		rc = probe_pairs(probe, doctor, &err);
	if (rc == 0)
		rc = probe_crowds(probe, doctor, &err);
	if (rc == 0)
		probe_judge_speed(probe, doctor);
	else
		doctor_say(doctor, HEALTH_PROBLEM, "probe",
			   "ranks that don't find each other can't share an update",
			   "start all of them, with the same key and address; --alone leaves the "
			   "probe out",
			   "%s", err.text);
	return probe;
}

bool probe_has_met(const struct probe *probe)
{
	return probe != NULL && probe->met;
}

uint32_t probe_world(const struct probe *probe)
{
	return probe->met ? probe->world : 1;
}
