/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes where.  A pure function: manifests, roster, places and rules in; buckets, copies,
 * ops and thresholds out.  No I/O, no clock, no thread, no NIC; the same inputs give the same
 * plan on every rank, bit for bit.
 *
 * Two halves meet here: describing (model.c preset.c manifest.c rows.c expr.c box.c) says which
 * canonical elements each rank holds where; planning (places.c match.c balance.c bucket.c plan.c
 * check.c report.c) pairs them up.
 *
 * Threads: a manifest and a plan are immutable once made, except for the memo inside a manifest:
 * one thread at a time.
 */
#ifndef PLANNER_H
#define PLANNER_H

#include "lib/base/base.h"

#define PLANNER_VERSION 3
#define BOX_DIM_MAX	4 /* dims of a canonical tensor */
#define LOCAL_DIM_MAX	6 /* dims of a param: a stack adds one */
#define RANKS_MAX	65536
#define ARENA_ALIGN	256 /* of each param in a spare arena */

enum side { SIDE_TRAINER = 0, SIDE_ROLLOUT };

/* ------------------------------------------------------------------------------------------
 * Canonical tensors, as rules: "model.layers.{L}.mlp.experts.{E}.up_proj.weight" for a range of
 * layers and experts is one rule (layouts.md, models/).
 */
struct tensor_rule {
	const char *name;    /* with {L} and {E} where it has them */
	enum ws_dtype dtype; /* as in the checkpoint */
	uint32_t dim_count;
	uint64_t dim[BOX_DIM_MAX];
	int32_t layer_lo, layer_hi;   /* [lo, hi); -1, -1 where the name has no {L} */
	int32_t expert_lo, expert_hi; /* likewise for {E} */
	bool is_scale;		      /* derived: the scales that a scheme makes of a weight */
	uint32_t weight_tensor; /* if is_scale: the rule of that weight, on this side; of several
				 * the lead.  Dims are the weight's divided by the scheme's block,
				 * rounded up */
};

/* Writes the name with layer and expert put in; returns its length (as snprintf). */
int tensor_name(const struct tensor_rule *rule, int32_t layer, int32_t expert, char *out,
		size_t bytes);

/*
 * A canonical tensor's box and its place in a local param: element (i0, i1, ..) of the box lies
 * at local element place + sum(i_d * stride[d]).  Strides may be any, also out of order.
 */
struct piece {
	uint32_t tensor; /* index of its tensor_rule */
	int32_t slot;	 /* under `k`: position in the rank's expert list; else -1 */
	uint32_t dim_count;
	uint64_t offset[BOX_DIM_MAX]; /* of the box in the canonical tensor */
	uint64_t extent[BOX_DIM_MAX]; /* never 0 */
	uint64_t place;
	int64_t stride[BOX_DIM_MAX]; /* in local elements */
};

/* A param rule evaluated at one rank's coordinates: the same for each layer (and each expert,
 * where the rule is one param per expert).  Pieces are disjoint in local elements; what none
 * covers is zero fill. */
struct form {
	uint32_t dim_count;
	uint64_t dim[LOCAL_DIM_MAX];
	uint64_t element_count;
	uint64_t covered_count; /* elements that pieces cover; the rest is zero */
	uint32_t piece_count;
	const struct piece *pieces;
	uint32_t id; /* equal ids of one manifest and rule: equal forms */
};

/* ------------------------------------------------------------------------------------------
 * A manifest: one side's params as rules (README.md gives the JSON).
 */
struct manifest;

/* Parses, checks and keeps everything.  All faults go to findings (may be NULL: first only, in
 * err).  -EBADMSG for JSON, -EINVAL for a rule that can't be. */
int manifest_parse(struct manifest **manifest_out, const void *text, size_t bytes,
		   struct findings *findings, struct ws_error *err);
/* For who lists faults: if they leave open only how a param is used (order, post, torn blocks), the
 * manifest comes along with -EINVAL, fit to be held against the other side's and for nothing else.
 */
int manifest_parse_faulty(struct manifest **manifest_out, const void *text, size_t bytes,
			  struct findings *findings, struct ws_error *err);
void manifest_free(struct manifest *manifest);

enum side manifest_side(const struct manifest *manifest);
uint32_t manifest_world(const struct manifest *manifest); /* ranks; of one replica for a rollout */
const char *manifest_model(const struct manifest *manifest);
const char *manifest_framework(const struct manifest *manifest);
const char *manifest_quant(const struct manifest *manifest); /* first scheme named, or NULL */
uint64_t manifest_digest(const struct manifest *manifest); /* of its meaning, not its white space */
/* The number of its map of experts, for reports; -1 without one.  Only the map's content counts in
 * the digest: the same map under another number is the same manifest. */
int64_t manifest_map_version(const struct manifest *manifest);
uint32_t manifest_tensor_count(const struct manifest *manifest);
const struct tensor_rule *manifest_tensor(const struct manifest *manifest, uint32_t index);
/* Whether this (target) manifest declares that `from` may be cast to `to`. */
bool manifest_casts(const struct manifest *manifest, enum ws_dtype from, enum ws_dtype to);

/* What a quantization scheme makes of a weight: codes of one dtype, and a scale per block. */
enum scheme_kind { SCHEME_BLOCK, SCHEME_CHANNEL, SCHEME_TENSOR };

struct quant_scheme {
	const char *name;
	enum scheme_kind kind;
	uint64_t block[2];	   /* rows and columns under one scale; channel: 1 and the row's
				    * length (0); tensor: 0, 0: all */
	enum ws_dtype code, scale; /* f8e4m3; f32 */
	double eps;
	bool pow2, reciprocal;
	const char *suffix; /* of a canonical scale's name: "_scale_inv" */
};

/* A param rule, for planning by rule instead of by param. */
struct param_rule {
	const char *name;     /* with {L}, {L-nl}, {E}, {e} */
	enum ws_dtype dtype;  /* of the local param */
	bool each_layer;      /* one param per layer of its set on this rank's stage */
	bool each_expert;     /* one param per local expert */
	bool stacks_experts;  /* has a `k`: pieces carry slots */
	bool inplace;	      /* lands in its own memory; else that is made by its post step */
	const char *post;     /* named post step, or NULL */
	const char *quant;    /* scheme, or NULL; of a scale too */
	bool is_scale;	      /* its pieces are boxes of tensor rules with is_scale */
	uint32_t weight_rule; /* if is_scale: the rule of the weight it goes with */
};

uint32_t manifest_rule_count(const struct manifest *manifest);
const struct param_rule *manifest_rule(const struct manifest *manifest, uint32_t rule);
/* The scheme of a weight's or a scale's rule; NULL where it has none. */
const struct quant_scheme *manifest_scheme(const struct manifest *manifest, uint32_t rule);
/* The scheme by which params of this manifest quantize a weight's tensor; NULL where none does. */
const struct quant_scheme *manifest_tensor_scheme(const struct manifest *manifest, uint32_t tensor);
/* Weights that a param fuses may be under one scale, that of the largest of them all: the next one
 * of those, in a ring; and the one that the scale is called after.  A weight alone is both. */
uint32_t manifest_tensor_fellow(const struct manifest *manifest, uint32_t tensor);
uint32_t manifest_tensor_lead(const struct manifest *manifest, uint32_t tensor);

/* The rule evaluated at a rank; memoised; *form_out belongs to the manifest.  NULL where the
 * rank has no such param (its stage holds none of its layers, or a rows manifest says so).
 * Errors are those of the expression at these coordinates ("16 rows of dim 0 don't divide by
 * 3 (axis 'tp')"). */
int manifest_form(const struct manifest *manifest, uint32_t rule, uint32_t rank,
		  const struct form **form_out, struct ws_error *err);
/* The layers for which this rank has the rule's param, ascending; one entry -1 for a rule
 * without {L}.  Returns the count; *layers_out belongs to the manifest. */
uint32_t manifest_layers(const struct manifest *manifest, uint32_t rule, uint32_t rank,
			 const int32_t **layers_out);
/* The experts of a rank at a layer for a rule with {E}: *experts_out[slot] is the logical expert
 * (an expert may appear twice with redundant slots).  Count 0 for rules without {E}. */
uint32_t manifest_experts(const struct manifest *manifest, uint32_t rule, uint32_t rank,
			  int32_t layer, const int32_t **experts_out);

/* ---- One rank's params, laid out: rule order, then layer, then expert.  The index in this list
 * is the param's number everywhere (address tables, plans, reports). */
struct param {
	const char *name;
	uint32_t rule;
	int32_t layer, expert; /* -1 where it has none; expert is the logical one */
	int32_t slot;	       /* of an each_expert param: position in the expert list, else -1 */
	enum ws_dtype dtype;
	const struct form *form;
	uint64_t bytes;	       /* element_count times the dtype's bytes; may be 0 (empty shard) */
	uint64_t arena_offset; /* in a spare arena: params in order, each at ARENA_ALIGN */
};

struct rank_params {
	uint32_t count;
	struct param *params; /* in the arena given */
	uint32_t *index;      /* for rank_params_find: a hash of names; in the arena */
	uint32_t index_mask;
	uint64_t bytes;	      /* sum of params' bytes */
	uint64_t arena_bytes; /* of a spare arena that holds them all */
};

int manifest_params(const struct manifest *manifest, uint32_t rank, struct arena *arena,
		    struct rank_params *params_out, struct ws_error *err);
/* Index by name, or -1. */
int64_t rank_params_find(const struct rank_params *params, const char *name);
/* What a param's piece of slot s means at this layer: the logical expert of its tensor, or -1. */
int32_t param_expert(const struct manifest *manifest, uint32_t rank, const struct param *param,
		     int32_t slot);

/* ---- derived.c: a rank's post steps.  Each call is given params that have landed, and makes
 * memory of the engine's that no bytes land in. */
struct step_made {
	const char *name;
	enum ws_dtype
		dtype; /* WS_NONE: a staged param's own memory, in a form that the engine knows */
	uint32_t dim_count;
	uint64_t dim[LOCAL_DIM_MAX];
	uint64_t bytes; /* 0 with WS_NONE: as many as the engine says */
	uint32_t param; /* the staged param whose own memory it is; UINT32_MAX: derived */
};

struct step_call {
	const char *step;
	int32_t layer, expert; /* -1: none */
	uint32_t from_count, made_count;
	const uint32_t *from; /* params; behind a quantized weight stands its scale */
	uint32_t made_first;
};

struct rank_steps {
	uint32_t call_count, made_count;
	uint32_t derived_count; /* of made: they come first */
	struct step_call *calls;
	struct step_made *made;
};

/* Of params, which are this rank's; all is in the arena.  -EINVAL where a rank has only some of the
 * params that something is made of. */
int manifest_steps(const struct manifest *manifest, uint32_t rank, const struct rank_params *params,
		   struct arena *arena, struct rank_steps *steps_out, struct ws_error *err);

/* explain.c: a param's pieces at a rank, or how something is derived, in words or as one JSON
 * object.  -ENOENT says which rank has it, or the nearest name. */
int manifest_explain(const struct manifest *manifest, const char *param, uint32_t rank,
		     bool as_json, struct writer *out, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * Making manifests.
 */
struct model; /* canonical tensors and config numbers of one model */

/* A built-in model by name ("qwen3-30b-a3b"), or from a config.json text plus the names, shapes
 * and dtypes of a checkpoint's tensors (compressed into rules).  -ENOENT lists the names. */
struct tensor_listing {
	const char *name;
	enum ws_dtype dtype;
	uint32_t dim_count;
	uint64_t dim[BOX_DIM_MAX];
};
int model_builtin(struct model **model_out, const char *name, struct ws_error *err);
int model_from_tensors(struct model **model_out, const char *name, const void *config_json,
		       size_t bytes, const struct tensor_listing *tensors, uint32_t count,
		       struct ws_error *err);
/* A smaller model of the same kind: about numerator/denominator of the bytes; fewer layers (each
 * kind kept), experts and vocabulary rows first, widths last. */
int model_scale(struct model **model_out, const struct model *model, uint64_t numerator,
		uint64_t denominator, struct ws_error *err);
void model_free(struct model *model);
const char *model_name(const struct model *model);
uint32_t model_tensor_count(const struct model *model);
const struct tensor_rule *model_tensor(const struct model *model, uint32_t index);
/* The model's config as JSON text, for a scaled checkpoint's config.json. */
int model_config(const struct model *model, struct writer *out, struct ws_error *err);
/* Names of the built-in models, ended by NULL. */
const char *const *model_names(void);

struct manifest_options {
	enum side side;
	const char *layout; /* layout.c has them: "fsdp2", "megatron", "vllm" */
	const char *mesh;   /* "dp=3", "dp=2,tp=2": axes slowest first */
	const char *dtype;  /* params' dtype if not the checkpoint's: "f32"; or NULL */
	const char *casts;  /* "f32:bf16,bf16:f16": casts this target allows; or NULL */
	const char *quant;  /* scheme name, or NULL */
	bool derived;	    /* with what the layout's engine derives, by post steps */
	const char *eplb;   /* JSON text of an engine's map of experts to slots; or NULL */
	size_t eplb_bytes;
};

/* Writes a manifest's JSON.  All that is wrong with layout against mesh and model goes to findings.
 */
int manifest_make(const struct model *model, const struct manifest_options *options,
		  struct writer *out, struct findings *findings, struct ws_error *err);

/* ---- import.c: a manifest from what a framework says of itself (README.md, "Importing"). */
struct import_options {
	enum side side;
	const char *from;  /* "dtensor", "megatron" */
	const char *casts; /* as manifest_options */
};

/* Reads a dump's JSON and writes the manifest.  All faults go to findings, as manifest_make's. */
int manifest_import(const struct model *model, const struct import_options *options,
		    const void *dump, size_t bytes, struct writer *out, struct findings *findings,
		    struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * Planning.
 */

/* What rollouts pass on among themselves, so that trainers needn't write it again. */
enum fanout {
	FANOUT_NONE = 0,
	FANOUT_NODE,   /* what several ranks of a host hold alike, inside the host */
	FANOUT_REPLICA /* everything, from each replica to the next one of the roster */
};

const char *fanout_name(enum fanout fanout);
/* -EINVAL names the three. */
int fanout_parse(const char *name, enum fanout *fanout_out, struct ws_error *err);

/* Rules: the hub's, the same for everybody; travel as opaque bytes. */
struct rules {
	uint32_t planner_version;
	uint64_t op_bytes;	     /* multiple of 4096; default 1 MiB */
	uint64_t staging_bytes;	     /* of a sender; default 64 MiB; multiple of op_bytes */
	uint64_t recv_staging_bytes; /* of a receiver's ring; default 64 MiB */
	uint64_t run_bytes_min;	 /* strided target runs from this size on are written run by run; 64
				    KiB */
	uint64_t pack_bytes_max; /* copies below it share one packed copy; 256 KiB */
	uint64_t bucket_bytes;	 /* aimed-at bytes per bucket over all; 0: about a layer each */
	bool wire_digests;
	bool barrier; /* no replica commits before all have landed */
	enum fanout fanout;
};

#define RULES_DEFAULT                                                        \
	{                                                                    \
		.planner_version = PLANNER_VERSION, .op_bytes = 1u << 20,    \
		.staging_bytes = 64u << 20, .recv_staging_bytes = 64u << 20, \
		.run_bytes_min = 64u << 10, .pack_bytes_max = 256u << 10     \
	}

int rules_check(const struct rules *rules, struct ws_error *err);
void rules_encode(const struct rules *rules, struct writer *out);
int rules_decode(struct rules *rules_out, const void *bytes, size_t count, struct ws_error *err);
bool rules_same(const struct rules *a, const struct rules *b);

/* Members in one order everywhere: trainer ranks 0..T-1, then each replica in the roster in
 * ascending order, its ranks 0..R-1.  The index in this order is the member's index in a plan. */
struct place {
	char host[64]; /* equal on one host */
	uint32_t nic_count;
	uint64_t mbps; /* of all its NICs; 0 unknown: all alike */
	/* Its NICs one by one, and then a plan counts and sums them itself; none: they are alike,
	 * and reach everybody. */
	const struct nic_speed *rails;
	uint32_t rail_count;
};

struct plan_input {
	const struct manifest *trainer, *rollout; /* borrowed for the plan's life */
	const uint32_t *replicas;		  /* ids of the replicas in the roster, ascending */
	uint32_t replica_count;
	const struct place *places; /* by member index; NULL: every member its own host, 1 NIC */
	struct rules rules;
	/* Told by a check of all members how many it has been through; or NULL. */
	void (*progress)(void *arg, uint32_t checked, uint32_t members);
	void *progress_arg;
};

static inline uint64_t ws_op_count(uint64_t bytes, uint64_t op_bytes)
{
	return (bytes + op_bytes - 1) / op_bytes;
}

/* What becomes of a part's elements on the way. */
enum part_kind {
	PART_CAST = 0, /* the same elements, perhaps of another dtype */
	PART_CODES,    /* a scheme's codes of the param's elements, by the maxima of their blocks */
	PART_SCALES,   /* a scheme's scales of src_param, made of maxima */
	PART_MAXIMA    /* maxima that a trainer tells another one */
};

/*
 * Which block each element of a box lies in: element i of dim d in block (first[d] + i) / each[d],
 * and that block's entry in the trainer's tables is sum(block * stride[d]) entries (of
 * WS_U32) behind table_offset bytes.
 */
struct plan_blocks {
	uint64_t each[BOX_DIM_MAX]; /* >= 1 */
	uint64_t first[BOX_DIM_MAX];
	int64_t stride[BOX_DIM_MAX];
	uint64_t table_offset;
};

/* One box of a copy.  Strides and offsets in bytes of the local params; at the source of
 * PART_SCALES and PART_MAXIMA in bytes of the sender's tables (entries are WS_U32), at the target
 * of PART_MAXIMA in bytes of the receiver's. */
struct plan_part {
	uint32_t src_param, dst_param; /* numbers in the sender's and the receiver's rank_params */
	uint32_t dim_count;
	uint64_t extent[BOX_DIM_MAX]; /* in target order: the last one is the innermost at the
					 target */
	uint64_t src_offset, dst_offset;
	int64_t src_stride[BOX_DIM_MAX], dst_stride[BOX_DIM_MAX];
	enum ws_dtype from, to; /* the wire carries `to` */
	enum part_kind kind;
	const struct quant_scheme *scheme; /* of PART_CODES and PART_SCALES; else NULL */
	const struct plan_blocks *blocks;  /* of PART_CODES, by the part's dims; else NULL */
	bool whole; /* of PART_CODES: it has all elements of its blocks: the sender alone can find
		     * their maxima while it makes the codes */
	uint64_t wire_offset; /* in the copy; multiple of 16; row-major by extent[] */
};

/* One contiguous write of a sender to a receiver, cut into ops by op_bytes. */
struct plan_copy {
	uint32_t bucket;
	uint32_t sender, receiver; /* member indexes */
	uint64_t bytes;		   /* on the wire; > 0 */
	uint64_t op_bytes;	   /* of an op: the rules', or less so that none tears a block */
	uint64_t first_op;	   /* in this pair: 0.. */
	uint32_t op_count;	   /* ws_op_count(bytes, op_bytes) */
	uint32_t counter;	   /* in this pair: which counter its ops feed */
	bool gather;		   /* bytes aren't one contiguous, uncast run at the source */
	uint64_t inbox_offset; /* of maxima: where it lands in what the receiver keeps for the pair
				*/
	int64_t ring;	       /* -1: lands straight in parts[0].dst_param at dst_offset (of
				* maxima: in the inbox, and raises tables part by part);
				* else the number of this ring copy in this pair: it lands in
				* slot ring % slot_count and is unpacked part by part; from
				* ring >= slot_count on, credit ring - slot_count comes first */
	uint32_t part_count;   /* 1 unless packed into the ring, or of maxima */
	const struct plan_part *parts; /* valid until the next call with any cursor of this plan */
};

/* A counter of a pair at its receiver: the direct copies of one bucket, or one ring copy. */
struct plan_counter {
	uint32_t bucket;
	uint32_t op_count; /* threshold, the digest's op included */
	int64_t ring;	   /* -1: direct copies */
	uint64_t bytes;
	uint64_t gather_bytes; /* of them packed or converted by the sender */
};

/*
 * What one sender sends to one receiver.  Both ends compute it.  With fan-out rollouts send too
 * (forwards): direct copies only, straight out of the memory where what they forward has landed.
 * The copies of bucket b of a rollout wait for all counters of bucket b of those pairs to it
 * that feed; such a pair's sender is a trainer or of an earlier replica, so nobody waits in a
 * circle.
 *
 * Where weights are quantized on the way, trainers send each other the maxima of blocks that
 * several of them hold parts of: one packed copy per pair and bucket, all of PART_MAXIMA, in a
 * stretch of its own at the receiver, its inbox.  What a trainer sends of bucket b's codes and
 * scales waits for its locals of b and for all counters of b of the pairs to it.
 */
struct plan_pair {
	uint32_t sender, receiver;
	bool feeds;	      /* the receiver forwards of what it brings */
	uint64_t inbox_bytes; /* between trainers: what the receiver keeps for the pair; else 0 */
	uint64_t bytes;
	uint64_t data_op_count; /* ops of copies: ids 0..; with wire_digests the op of counter c is
				 * data_op_count + c */
	uint64_t op_count;
	uint32_t counter_count; /* in a plan of all the ring copies of a bucket share one row */
	const struct plan_counter *counters;
	uint32_t ring_count; /* ring copies */
	uint32_t
		credit_count; /* max(0, ring_count - slot_count): imm-only ops back to the sender */
	uint64_t digest;      /* over everything above and each copy: both ends compare it */
};

struct plan_totals {
	uint64_t bytes, boxes, runs, copies, ops, classes; /* boxes and runs without scales' */
	uint64_t scale_bytes;				   /* of bytes */
	/* Apart from all others: what trainers send each other, so that scales are common. */
	uint64_t maxima_bytes, maxima_pairs;
	uint64_t tables_max;	 /* bytes of maxima that a trainer keeps, at most */
	uint64_t class_count[4]; /* boxes by contiguity: both, dst only, src only, none */
	uint64_t send_min, send_mean, send_max;		 /* of trainers */
	uint64_t receive_min, receive_mean, receive_max; /* of rollouts, from anybody */
	uint64_t forward_bytes;				 /* of bytes: what rollouts send */
	uint64_t trainer_min, trainer_mean, trainer_max; /* of rollouts, from trainers */
	uint32_t senders_idle;
	uint32_t bucket_count;
};

/* Boxes of all tensors of one name, as they are before they are dealt, cut and packed; scales not
 * among them.  By contiguity: both, dst only, src only, none.  A run is what one write could do
 * without packing: the box where both ends are contiguous, else a row. */
struct plan_family {
	const char *name; /* "model.layers.{L}.mlp.gate_proj.weight" */
	uint64_t boxes[4], runs[4], bytes[4];
	uint64_t run_min; /* bytes; 0 without boxes */
};

struct plan;

/*
 * Plans for one member (its pairs only), or for all with self = PLAN_ALL (for reports: totals
 * are complete only then).  Every fault of the input goes to findings: "missing", "doubled",
 * "shape", "dtype", "quant", "model".  -EINVAL then, nothing planned.
 */
#define PLAN_ALL UINT32_MAX
int plan_make(struct plan **plan_out, const struct plan_input *input, uint32_t self,
	      struct findings *findings, struct ws_error *err);
void plan_free(struct plan *plan);

uint32_t plan_member_count(const struct plan *plan);
/* "trainer 2", "rollout 1.0 (replica 1, rank 0)". */
const char *plan_member_name(const struct plan *plan, uint32_t member, char *out, size_t bytes);
uint64_t plan_digest(const struct plan *plan); /* over manifests, roster, places, rules */
const struct plan_totals *plan_totals(const struct plan *plan);
/* Complete in a plan of all only. */
uint32_t plan_family_count(const struct plan *plan);
const struct plan_family *plan_family(const struct plan *plan, uint32_t index);
uint32_t plan_bucket_count(const struct plan *plan);
/* A bucket's name for people: "model.layers.7" */
const char *plan_bucket_name(const struct plan *plan, uint32_t bucket);

/* Pairs of self in ascending order of the other member; sends: self is the sender. */
uint32_t plan_send_pair_count(const struct plan *plan);
const struct plan_pair *plan_send_pair(const struct plan *plan, uint32_t index);
uint32_t plan_receive_pair_count(const struct plan *plan);
const struct plan_pair *plan_receive_pair(const struct plan *plan, uint32_t index);

/* Slots of a pair's ring at the receiver: equal for all pairs of a run. */
uint32_t plan_slot_count(const struct plan *plan);
uint64_t plan_slot_bytes(const struct plan *plan);

/* Self's copies in the order to process them: by bucket, targets rotated.  They are made while
 * they are walked; one walker of a plan at a time looks at parts.  Restartable: all zero. */
struct plan_cursor {
	uint32_t bucket, pair, instance, copy, repetition; /* walk.c's */
};
bool plan_next_send(const struct plan *plan, struct plan_cursor *cursor,
		    struct plan_copy *copy_out);
/* What self receives, by sender, then in that pair's op order. */
bool plan_next_receive(const struct plan *plan, struct plan_cursor *cursor,
		       struct plan_copy *copy_out);

/* A box of a trainer's own param whose blocks' maxima it finds before it sends anything of the
 * bucket: it raises their entries in its tables.  It may leave out what it finds while it makes the
 * codes, if nobody is told of it and whom it sends the scales has got the codes before: in each
 * bucket a pair's scales come last. */
struct plan_local {
	uint32_t bucket, param;
	uint32_t dim_count;
	uint64_t extent[BOX_DIM_MAX];
	uint64_t src_offset; /* in bytes of the param, as the strides */
	int64_t src_stride[BOX_DIM_MAX];
	enum ws_dtype from;
	struct plan_blocks blocks;
};

/* Self's locals by bucket; the cursor is as above. */
bool plan_next_local(const struct plan *plan, struct plan_cursor *cursor,
		     struct plan_local *local_out);
/* Of all of self's tables together; 0 where it quantizes nothing. */
uint64_t plan_tables_bytes(const struct plan *plan);

/*
 * check.c: not the code that planned.  Walks a member's copies against an interval account of
 * its own params: a receiver's every covered element is written exactly once, each from a source
 * element that is the same canonical element; a sender reads only inside its params.
 */
int plan_check(const struct plan *plan, struct findings *findings, struct ws_error *err);

/* warn.c: what is right but slow ("idle", "imbalance", "strided", "small", "ops"), as findings;
 * `all` is a plan of PLAN_ALL. */
void plan_warnings(const struct plan *all, struct findings *warnings);

/* report.c: what `plan --json` (key: inside an object, or NULL) and the table print. */
void plan_report_json(const struct plan *all, double plan_seconds, const char *key,
		      struct json_writer *json);
void plan_report_text(const struct plan *all, double plan_seconds, struct writer *out);

/* page.c: what `plan --html` writes: one page that stands alone.  Borrowed for the call. */
struct simulation; /* simulate.h */
struct page {
	const struct plan *all; /* of PLAN_ALL, or NULL: refused, and the page lists the findings */
	const struct simulation *simulation; /* of that plan, for the timeline; may be NULL */
	double plan_seconds;
	const struct manifest *trainer, *rollout; /* each NULL where it couldn't be read */
	const struct findings *findings;
	const char *reason; /* why a manifest couldn't be read, or NULL */
};
int page_write(const struct page *page, struct writer *out); /* -ENOMEM */

#endif
