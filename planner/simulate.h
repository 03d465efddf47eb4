/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Playing a plan before it is run: a flow-level model of one update.  Every member has lanes
 * that work one thing at a time (copy in, amax, quantize or pack, unpack) and links that flows
 * share fairly (NIC out and in, NVLink out and in).  A pure function of a plan of all and numbers:
 * no clock, no I/O, no randomness; the same result from every compiler.
 *
 * What the model leaves out: congestion inside the fabric, retransmission, jitter of hosts.
 */
#ifndef SIMULATE_H
#define SIMULATE_H

#include "planner/planner.h"

/* ---- simulate_constants.c: how fast things are; each with its unit and its source. */
struct sim_constants {
	double nic_gbps;	 /* line rate of one member, all its NICs, each way */
	double nic_efficiency;	 /* share of it that large writes get */
	double op_ns;		 /* least time between two writes of a NIC */
	double write_latency_ns; /* from posting a write to its immediate, without the bytes */
	double nvlink_gbytes_s;	 /* a member's, each way */
	double pcie_gbytes_s;	 /* host to device */
	double hbm_gbytes_s;	 /* bytes read and written by a conversion kernel */
	double launch_ns;	 /* of a kernel */
	double control_ns;	 /* from the hub's word to the last answer */
	double eager_ns;	 /* one tensor's quantization in a framework, kernel by kernel */
};

struct sim_constant {
	const char *name, *unit, *source;
	size_t offset; /* of its double in struct sim_constants */
	double min, max;
};

/* A single write in flight of each size, and many small ones: what the network's constants are
 * fitted on. */
struct sim_point {
	uint32_t kib;
	double gbps;
};
struct sim_fabric {
	const char *name; /* "cx7", "efa" */
	struct sim_point single[4], paged[4];
};

/* NULL: all have been returned. */
const struct sim_fabric *sim_fabric_at(uint32_t index);
/* Replaces nic_gbps, nic_efficiency, op_ns and write_latency_ns by what fits the table best. */
void sim_fabric_fit(const struct sim_fabric *fabric, struct sim_constants *constants);
/* -EINVAL names those there are. */
int sim_fabric_find(const char *name, const struct sim_fabric **fabric_out, struct ws_error *err);

/* The defaults, of ConnectX-7 and H200. */
struct sim_constants sim_constants_default(void);
const struct sim_constant *sim_constant_list(uint32_t *count_out);
/* Replaces those that the JSON object names: {"nic_gbps": 200}, or what sim_constants_json
 * writes.  -EINVAL names an unknown one, or a value out of its range. */
int sim_constants_parse(struct sim_constants *constants, const void *text, size_t bytes,
			struct ws_error *err);
void sim_constants_json(const struct sim_constants *constants, struct json_writer *json);

/* ---- What is played. */
struct sim_slow {
	uint32_t member;
	double factor; /* 0.5: half as fast, all of it */
};

struct sim_options {
	struct sim_constants constants;
	bool offloaded;		     /* params wait in host memory and are copied in first */
	uint32_t depth;		     /* writes in flight of a member; 0: 16 */
	const struct sim_slow *slow; /* borrowed */
	uint32_t slow_count;
	uint32_t
		late_replica; /* index in the roster of one that is ready late_s after the others */
	double late_s;
};

/* ---- What comes out.  Times are seconds from the begin of the update. */
enum sim_phase {
	SIM_BEGIN,    /* begin and ready through the hub */
	SIM_LOAD,     /* offloaded params to the device */
	SIM_GATHER,   /* all-gather of full tensors (described pipelines only) */
	SIM_FUSE,     /* projections put together (described pipelines only) */
	SIM_AMAX,     /* maxima of own rows */
	SIM_EXCHANGE, /* maxima from the other holders of a block */
	SIM_CONVERT,  /* quantize, cast or pack into staging */
	SIM_WRITE,    /* a bucket's first byte posted to its last byte sent */
	SIM_FORWARD,  /* the same from a rollout to a rollout */
	SIM_RECEIVE,  /* a bucket's first byte at a receiver to its last */
	SIM_UNPACK,   /* ring slots scattered */
	SIM_WAIT,     /* for others: a barrier */
	SIM_PHASES
};
const char *sim_phase_name(enum sim_phase phase);

#define SIM_NO_BUCKET UINT32_MAX
struct sim_interval {
	double begin_s, end_s;
	uint64_t bytes;
	uint32_t member;
	uint32_t bucket; /* of the plan, or SIM_NO_BUCKET */
	enum sim_phase phase;
};

struct sim_member {
	uint64_t sent_bytes, received_bytes; /* by its NICs */
	uint64_t nvlink_sent_bytes, nvlink_received_bytes;
	double floor_s; /* its bytes at the line rate, the busier way */
	double end_s;	/* its last interval's end */
	double busy_s[SIM_PHASES];
};

struct sim_phase_total {
	double begin_s, end_s; /* first and last interval */
	double busy_mean_s;    /* over the members that have it */
	double busy_max_s;
	uint32_t busiest;      /* member */
	uint32_t member_count; /* that have it */
	uint64_t bytes;
};

struct simulation {
	double predicted_s;	/* all bytes in place everywhere and every rank has said so */
	double receive_floor_s; /* the busiest receiver's NIC bytes at line rate */
	double send_floor_s;
	double ratio; /* predicted_s / the higher floor; 0: no NIC is needed */
	uint32_t trainer_count, member_count, bucket_count;
	const struct sim_member *members;     /* by member index */
	const struct sim_interval *intervals; /* by member, phase, begin */
	size_t interval_count;
	struct sim_phase_total phases[SIM_PHASES];
	uint64_t step_count; /* that the model took */
	struct arena arena;
};

/* Plays an update of a plan of all.  The simulation doesn't borrow from the plan.  -ENOMEM;
 * -EINVAL for a member or replica in options that the plan doesn't have. */
int simulate_plan(struct simulation **out, const struct plan *all,
		  const struct sim_options *options, struct ws_error *err);
void simulation_free(struct simulation *simulation);

/* ---- simulate_paper.c: the pipeline of arXiv 2510.27656 for "kimi-k2" or "qwen3-235b": whole
 * tensors are gathered, fused, quantized and written param by param, in groups with barriers
 * between them.  Buckets are params.  -EINVAL names the two. */
int simulate_paper(struct simulation **out, const char *model,
		   const struct sim_constants *constants, struct ws_error *err);

/* ---- simulate_report.c.  The plan gives names; NULL: members are called by number. */
const char *simulation_member_name(const struct simulation *simulation, const struct plan *all,
				   uint32_t member, char *out, size_t bytes);
void simulation_report_text(const struct simulation *simulation, const struct plan *all,
			    struct writer *out);
/* Members of the object that the caller has begun. */
void simulation_report_json(const struct simulation *simulation, const struct plan *all,
			    struct json_writer *json);
/* Chrome trace format (ui.perfetto.dev opens it): a process per member, a thread per phase. */
int simulation_trace(const struct simulation *simulation, const struct plan *all,
		     struct writer *out);

#endif
