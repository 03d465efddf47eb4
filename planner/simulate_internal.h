/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulator keeps for itself: links that flows share, flows that go through gates.
 * simulate_flow.c knows nothing of plans; simulate.c lays a plan on it, simulate_paper.c the
 * pipeline of another system.
 */
#ifndef SIMULATE_INTERNAL_H
#define SIMULATE_INTERNAL_H

#include <math.h>

#include "planner/plan_internal.h"
#include "planner/simulate.h"

#define SIM_USES_MAX 6

/* A share of a link that one byte of a flow takes: 1, or more for what each write costs. */
struct sim_use {
	uint32_t link;
	double weight;
};

/* A part of a flow; it may begin when its gate is open. */
struct sim_segment {
	uint64_t bytes; /* > 0 */
	uint32_t item;	/* number of the caller's; gate = the flow's gate_first + item */
};

struct sim_flow {
	uint32_t sender, receiver; /* the caller's */
	uint32_t kind;		   /* the caller's */
	uint32_t use_count;
	struct sim_use uses[SIM_USES_MAX];
	double share;	 /* of a full link, against 1 of others */
	double rate_max; /* bytes/s that it can't exceed by itself, or INFINITY */
	double ready_s;	 /* not before */
	size_t gate_first;
	size_t segment_first;
	uint32_t segment_count;

	/* State of a run. */
	uint32_t at;	   /* segment */
	uint32_t open;	   /* segments before this one have open gates */
	double left;	   /* bytes of segment `at` */
	double open_bytes; /* bytes to the first closed gate, or to the end */
	double rate;
	double began_s; /* of segment `at`; negative: not yet */
};

/* Told when the last byte of a segment has been sent; may open gates, not before end_s. */
typedef void sim_done_fn(void *arg, const struct sim_flow *flow, const struct sim_segment *segment,
			 double begin_s, double end_s);

struct sim_flows {
	const double *capacities; /* bytes/s, by link */
	uint32_t link_count;
	struct sim_flow *flows;
	uint32_t flow_count;
	const struct sim_segment *segments;
	double *gates; /* when each opens, in seconds; INFINITY while nobody knows */
	double step_s; /* what happens within it is seen as one: the model's grain */
	sim_done_fn *done;
	void *arg;
	uint64_t step_count; /* out */
};

/*
 * Runs all flows to their ends.  At each moment every flow has its max-min fair rate: no flow's
 * could grow without taking from one that isn't faster for its share.  -ENOMEM; -EDEADLK when flows
 * wait for gates that nobody opens.
 */
int sim_flows_run(struct sim_flows *flows, struct ws_error *err);

/* ---- simulate_record.c: a simulation in the making. */
struct recorder {
	struct simulation *out; /* owned until recorder_end takes it */
	struct sim_member *members;
	struct vec intervals; /* of struct sim_interval */
	bool failed;	      /* no memory for an interval */
};

int recorder_begin(struct recorder *recorder, uint32_t trainers, uint32_t members,
		   uint32_t buckets);
void recorder_add(struct recorder *recorder, const struct sim_interval *interval, double busy_s);
/* Floors are of the members' NIC bytes at `lines` bytes/s each. */
void recorder_floors(struct recorder *recorder, const double *lines);
/* Sorts, sums up and hands over; predicted_s is the last receive's end and closing_s. */
int recorder_end(struct recorder *recorder, double closing_s, struct simulation **out);
void recorder_release(struct recorder *recorder);

/* ---- simulate_links.c: a plan as links and flows. */
/* Bytes that a kernel moves per byte on the wire: two of BF16 in, one of FP8 out; or one and one.
 */
#define QUANT_PASSES 3
#define COPY_PASSES  2

enum link {
	LINK_NIC_OUT,
	LINK_NIC_IN,
	LINK_NVLINK_OUT,
	LINK_NVLINK_IN,
	LINK_DEVICE,
	LINK_STAGING,
	LINKS
};
enum flow_kind { FLOW_NIC = 0, FLOW_NVLINK = 1, FLOW_FEEDS = 2 };

/* What one member does in one bucket, at one end. */
struct work {
	double begin_s, end_s;
	uint64_t bytes;
	uint64_t nvlink_bytes;	/* of them, inside the host */
	uint64_t special_bytes; /* of them, packed or converted; at a receiver: through the ring */
	uint32_t left; /* segments not yet sent; at a receiver: those that forwards wait for */
	double fed_s;  /* the last of these has come */
};

/* A trainer's lanes. */
struct lanes {
	uint32_t *buckets; /* those it sends in, ascending */
	uint32_t count, prepared, written;
	double load_free_s, amax_free_s, written_s;
	double source_share; /* bytes of params per byte sent */
};

/* A trainer's maxima of a bucket: its own, and those that others tell it. */
struct exchange {
	uint32_t left;	       /* itself and tellers, as far as they haven't come */
	double found_s, end_s; /* its own are found; all have come */
	uint64_t in_bytes, out_bytes;
	uint32_t in_ops, out_ops;
};

struct player {
	const struct plan *plan;
	const struct sim_options *options;
	struct sim_flows flows;
	uint32_t members, trainers, buckets;
	double *factors; /* by member: 1, or slower */
	uint32_t *hosts; /* by member: equal on one host */
	double *capacities;
	struct work *sends, *receives; /* by member * buckets + bucket */
	struct lanes *lanes;	       /* by trainer */
	struct exchange *exchanges;    /* by trainer * buckets + bucket; NULL: none */
	uint32_t *tells_first;	       /* by trainer, and the end: its pairs among the plan's */
	bool quantized;
	double begin_s, latency_s, launch_s, hbm;
	struct recorder recorder;
	struct arena arena;
};

static inline size_t link_of(uint32_t member, enum link link)
{
	return (size_t)member * LINKS + link;
}

static inline struct work *send_of(const struct player *player, uint32_t member, uint32_t bucket)
{
	return &player->sends[(size_t)member * player->buckets + bucket];
}

static inline struct work *receive_of(const struct player *player, uint32_t member, uint32_t bucket)
{
	return &player->receives[(size_t)member * player->buckets + bucket];
}

static inline double *gate_of(const struct player *player, uint32_t member, uint32_t bucket)
{
	return &player->flows.gates[(size_t)member * player->buckets + bucket];
}

static inline struct exchange *exchange_of(const struct player *player, uint32_t trainer,
					   uint32_t bucket)
{
	return &player->exchanges[(size_t)trainer * player->buckets + bucket];
}

/* ---- simulate.c */
void player_add(struct player *player, enum sim_phase phase, uint32_t member, uint32_t bucket,
		double begin_s, double end_s, uint64_t bytes, double busy_s);

/* ---- simulate_exchange.c: maxima between trainers, where weights are quantized on the way. */
int exchanges_make(struct player *player);
/* A trainer has found its maxima of a bucket: it tells them, and the gates of all who have theirs
 * open. */
void exchange_found(struct player *player, uint32_t trainer, uint32_t bucket, double found_s);

/* ---- simulate_links.c */
/* Fills hosts, factors, capacities, flows, and what each member does in each bucket. */
int links_make(struct player *player, struct ws_error *err);

#endif
