/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the probe share: ranks, rails, results; the data path of one rank. */
#ifndef PROBE_INSIDE_H
#define PROBE_INSIDE_H

#include "cli/probe.h"

/* Source and target of all writes: half of it each. */
#define PROBE_MEMORY_BYTES (4u << 20)
#define PROBE_SIZE_COUNT   4
#define PROBE_PINGS_MAX	   200
#define PROBE_TEXT_BYTES   600

/* A NIC as its rank tells it to the others. */
struct probe_nic {
	char transport[16], name[NIC_NAME_MAX], subnet[NIC_NAME_MAX], path[32];
	uint64_t protocol, mbps;
	bool same_host;
	uint64_t key, base; /* secrets: only for who writes */
};

struct probe_rank {
	char host[64], identity[64], version[32];
	uint32_t nic_count;
	struct probe_nic nics[NICS_MAX];
};

/* NIC `from` of one rank joined with NIC `to` of the other. */
struct rail {
	uint32_t from, to;
};

enum pair_state { PAIR_UNTRIED = 0, PAIR_GOOD, PAIR_BAD };

/* What one rank's writes to another over one rail gave. */
struct pair_result {
	bool joined; /* there is such a rail: */
	struct rail rail;
	enum pair_state state;
	uint64_t first_ns; /* four writes and their answer, on a connection never used before */
	uint64_t p50_ns, p99_ns; /* one way: half of a round trip of 8 bytes */
	uint64_t bytes_per_s;
};

struct crowd_result {
	uint64_t bytes, ns; /* what arrived, and how long the slowest rank took; 0: not measured */
};

/* One rail from this rank to another, and what hasn't ended on it. */
struct wire {
	struct nic *nic;
	struct peer *peer;
	const struct mr *mr;
	uint8_t *memory;
	uint64_t remote_key, remote_base; /* of the other's memory */
	uint64_t until_ns;
	uint32_t step; /* the id of this step's ops: the end of an earlier one's isn't counted */
	bool answers;  /* in this step the other end writes, and this one answers */
	uint32_t in_flight;
	uint32_t imms[64], imm_count; /* arrived and not yet looked at, oldest first */
};

struct probe {
	struct probe_options options;
	uint32_t rank, world;
	bool met; /* rank 0 knows what this rank knows */
	struct probe_rank *ranks;
	struct pair_result *pairs;   /* [from][to][rail] */
	struct crowd_result *incast; /* [to] */
	struct crowd_result *all;    /* [rank]: all to all, what arrived there */
	/* this rank's own */
	struct meeting *meeting;    /* owned */
	struct ws_memory memory;    /* owned */
	struct nic *nics[NICS_MAX]; /* owned */
	struct mr mrs[NICS_MAX];
	uint32_t nic_count;
	struct wire *wires; /* [other rank][rail] */
};

static inline struct pair_result *pair_at(const struct probe *probe, uint32_t from, uint32_t to,
					  uint32_t rail)
{
	return &probe->pairs[((size_t)from * probe->world + to) * NICS_MAX + rail];
}

static inline struct wire *wire_at(const struct probe *probe, uint32_t other, uint32_t rail)
{
	return &probe->wires[(size_t)other * NICS_MAX + rail];
}

/* ---- probe_join.c */
/* A NIC that doesn't open or takes no memory is a finding, and the others are probed. */
void probe_open_nics(struct probe *probe, struct doctor *doctor);
/* One round of the meeting, with a deadline of its own. */
int probe_share(struct probe *probe, const struct writer *mine, struct reader *parts,
		struct ws_error *err);
/* Everybody's NICs and findings; from here on findings are about all ranks. */
int probe_hello(struct probe *probe, struct doctor *doctor, struct ws_error *err);
/* Connects this rank's end of every rail; those that fail are bad pairs, and known to all. */
int probe_join(struct probe *probe, struct doctor *doctor, struct ws_error *err);

/* ---- probe_report.c: pure. */
/* Which NICs of two ranks are joined: those of one transport, protocol and subnet, in order; where
 * a rail joins processes of one host, no other.  rails_out has room for NICS_MAX. */
uint32_t probe_rails(const struct probe_rank *from, const struct probe_rank *to,
		     struct rail *rails_out);
/* A finding about a pair whose state is PAIR_BAD; the first few only.  code: of the error,
 * positive; 0: it couldn't be connected at all. */
void probe_say_bad(const struct probe *probe, struct doctor *doctor, uint32_t from, uint32_t to,
		   uint32_t rail, uint32_t code, const char *text);
/* Pairs that no rail joins, and pairs that are far slower than others of their transport. */
void probe_judge_rails(const struct probe *probe, struct doctor *doctor);
void probe_judge_speed(const struct probe *probe, struct doctor *doctor);
/* "rank 0 (a) to rank 1 (b), verbs rxe1/1 to rxe1/1" */
const char *probe_pair_name(const struct probe *probe, uint32_t from, uint32_t to, uint32_t rail,
			    char *out, size_t room);

/* Of uint64_t, for qsort. */
int probe_by_value(const void *a, const void *b);

/* ---- probe_write.c: one rank's part of a step; each ends by the wire's until_ns. */
/* Before each step: what an earlier one that failed has left under way is forgotten. */
void wire_begin(struct wire *wire, bool answers, uint64_t until_ns);
/* Writes to the other end and fills *result; the other calls wire_answer meanwhile, with the same
 * seed, after wire_clear. */
int wire_probe(struct wire *wire, uint64_t seed, struct pair_result *result, struct ws_error *err);
void wire_clear(struct wire *wire);
int wire_answer(struct wire *wire, uint64_t seed, struct ws_error *err);

/* Writes ops of 1 MiB over each wire and takes imm_count of them in, at any of the NICs;
 * *ns_out is how long all of it took. */
int wires_crowd(struct wire **wires, uint32_t wire_count, uint32_t ops_each, struct nic **nics,
		uint32_t nic_count, uint64_t imm_count, uint64_t until_ns, uint64_t *ns_out,
		struct ws_error *err);

#endif
