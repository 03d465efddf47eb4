/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the planning half keeps for itself.  The way of a plan, each step a file:
 *
 *   layers.c    which layers are alike: one of them is planned, the others are repeated
 *   units.c     canonical tensors of both sides become units
 *   match.c     what each rank holds of a unit
 *   scales.c    who can send the scales of what is quantized on the way
 *   fanout.c    what ranks hold alike: the slice that each gets from trainers, and the forwards
 *   geometry.c  source boxes of a unit become cells with holder sets, cut by target boxes: atoms
 *   balance.c   how much of a holder set's bytes each holder sends
 *   bucket.c    the one global order of units, cut into buckets; buckets of layers alike share a
 *               kind
 *   boxes.c     the boxes of one kind that the planned member sends or receives
 *   tables.c    where each trainer finds the maxima of a quantized weight's blocks
 *   maxima.c    which maxima trainers send each other, and which boxes they find them in
 *   shape.c     the boxes of one (sender, receiver, kind) become a segment of copies
 *   pairs.c     lays each pair's segments out, bucket by bucket
 *   plan.c      runs all that
 *   walk.c      reads the plan: segments are repeated bucket by bucket while they are walked
 *
 * The cost of a plan is that of the boxes of layers that differ: 61 layers of Kimi-K2 in 8
 * stages are 9 kinds.
 */
#ifndef PLAN_INTERNAL_H
#define PLAN_INTERNAL_H

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "planner/nearest.h"
#include "planner/planner.h"
#include "planner/tables.h"

#define NONE	   UINT32_MAX
#define PLACES_MAX (64u << 20) /* rules times layers of one side */
#define RING_SLOTS 2	       /* per pair */
#define SLOT_ALIGN 4096
#define WIRE_ALIGN 16 /* of a part in a packed copy */
#define UNITS_MAX  (16u << 20)
#define OPS_MAX	   (1u << 24) /* op ids of a receiver: 24 bits of the imm */

/* ---- match.c: units. */

/* All canonical tensors of one name, {L} and {E} open; names with numbers in them (explicit rows)
 * are read as layers and experts, so that they meet those of rules. */
struct family {
	const char *key;
	int32_t layer_lo, layer_hi; /* of both sides' rules together; -1, 0 without {L} */
	int32_t expert_lo, expert_hi;
	uint32_t unit_first;
};

#define FROM_PARAM INT32_MIN

/* Where a manifest's tensor rule stands: its family, and the numbers its name fixes. */
struct tensor_place {
	uint32_t family;
	int32_t layer, expert; /* FROM_PARAM where the param says it; -1 where there is none */
};

/* One piece that a rank holds of a unit. */
struct holding {
	uint32_t unit;
	uint32_t order;	     /* in the walk: ties of one unit keep it */
	uint32_t param;	     /* its number on this rank */
	uint32_t rule, each; /* its rule, and how many params of it a layer has on this rank */
	enum ws_dtype dtype;
	const struct piece *piece; /* the manifest's */
	const struct form *begins; /* the param's, at its first piece; else NULL */
};

struct rank_holdings {
	bool known;
	struct vec list; /* of struct holding, by unit */
};

/* Who holds which boxes of a unit: the same for all units of a kind, but for the place. */
struct entry {
	struct box box;
	const struct piece *piece; /* of the first unit that has the pattern: for its strides */
	uint32_t rank;
	uint32_t nth; /* among this rank's holdings of the unit */
	uint32_t rule;
	enum ws_dtype dtype;
	bool dense; /* it lies in one piece, row after row */
	/* fanout.c's */
	uint32_t again; /* how often this rank holds the same box before it */
	bool shared;	/* trainers write the slice only, which may be empty */
	struct box slice;
};

/* Which of a rank's holdings of a unit. */
struct holder {
	uint32_t rank, nth;
};

/* A box that one rank passes on to another of its node. */
struct forward {
	struct box box;
	struct holder from, to;
};

struct pattern {
	uint32_t unit; /* the first that has it */
	uint32_t entry_count, entry_room;
	struct entry *entries; /* by rank, then walk order */
	bool derived;	       /* of scales: ranks and nth are the weight's */
	size_t forward_first;  /* of planning->forwards */
	uint32_t forward_count;
};

struct side_index {
	const struct manifest *manifest;
	const char *who; /* "trainer", "rollout" */
	uint32_t world;
	struct tensor_place *tensors; /* by tensor index */
	uint32_t *unit_tensor;	      /* by unit: the rule that names it, or NONE */
	uint32_t *unit_pattern;	      /* by unit, or NONE where nobody holds any of it */
	struct vec patterns;	      /* of struct pattern */
	struct rank_holdings *ranks;  /* found when asked for */
};

/* A source box and the ranks that hold all of it. */
struct cell {
	struct box box;
	enum ws_dtype dtype;
	uint32_t set;		      /* holder set */
	const struct holder *holders; /* as many as the set's ranks, in its order */
	const struct piece *piece;    /* the first holder's, for its strides */
};

/* A target box and the ranks of a replica that need it: takers[0..]. */
struct want {
	struct box box;
	enum ws_dtype dtype;
	const struct holder *takers; /* by rank */
	uint32_t taker_count;
	uint32_t atom_first, atom_count;
	const struct piece *piece; /* of all takers alike, but for its place */
};

/* What a want takes out of one cell. */
struct atom {
	struct box box;
	uint32_t cell, set;
	uint64_t bytes; /* on the wire, to one taker */
	bool near;	/* the planned trainer holds a part of a block that it touches */
};

struct geometry {
	uint32_t source_pattern, target_pattern;
	uint32_t unit, unit_count; /* first unit, and how many share it, in all layers */
	uint32_t cell_count, want_count, atom_count;
	uint64_t bytes;	    /* per unit and replica */
	struct cell *cells; /* by offset */
	struct want *wants;
	struct atom *atoms;  /* by want */
	bool scale, derived; /* of scales; and no trainer holds them as such */
	/* Of a weight that is quantized on the way; else NULL. */
	const struct quant_scheme *scheme;
	struct grid grid;
	struct touched *touched; /* by trainer rank; in the plan's arena */
	uint32_t touched_count;
};

/* Trainer ranks that hold the same boxes. */
struct holder_set {
	uint32_t count;
	const uint32_t *ranks; /* ascending */
	uint64_t total;	       /* bytes over all units and ranks of one replica */
	uint64_t *share;       /* by holder, of total * replicas; NULL for a single holder */
	/* Of the bucket kind at hand: its line of bytes. */
	uint64_t line;	   /* bytes for all ranks of one replica */
	uint64_t *base;	   /* by target rank: bytes for lower ranks */
	uint64_t *running; /* by target rank: bytes of the units walked so far */
	uint32_t *at;	   /* by place on the line: which holder has that interval */
	uint64_t *end;	   /* by place: its upper border in [0, line * replicas) */
	bool in_line;
	bool mine, near; /* it has the planned member; what it sends matters to that one's maxima */
};

/* What buckets of layers alike have in common. */
struct bucket_kind {
	uint32_t unit_first, unit_count; /* in the order; of its first bucket */
	uint32_t bucket_count;
	uint32_t phase;
	int32_t layer; /* the one planned; -1: none */
	uint32_t part; /* of its layer: 0, 1, .. */
	uint64_t bytes;
	bool replicas_alike; /* nothing was dealt: what one replica gets, each gets */
	size_t local_first;  /* of plan->locals */
	uint32_t local_count;
};

struct unit_bucket {
	const char *name;
	uint32_t kind, unit_count;
	int32_t layer;	/* -1: none */
	uint64_t bytes; /* over all members */
};

/* Where a part's params move to in another layer of its kind. */
struct part_rules {
	uint32_t src_rule, dst_rule, src_each, dst_each;
};

/*
 * A copy as stored, or several alike one after the other: each next one has the same size, the
 * next op ids, the next ring number, and its one part so many bytes further.  Numbers count from
 * the segment's begin.
 */
struct stored_copy {
	uint64_t bytes;		    /* of one */
	uint32_t repeat;	    /* how many; 1 with several parts */
	int64_t src_step, dst_step; /* 0 where repeat is 1 */
	size_t part_first;
	uint32_t part_count;
	uint64_t op_bytes;
	uint32_t first_op, op_count;
	uint32_t counter;
	int32_t ring; /* -1: direct */
	bool gather;
	const struct block_turn *turn; /* of codes that repeat; else NULL */
};

/* What one sender sends one receiver in one bucket of a kind; params are those of the layer
 * planned. */
struct segment {
	uint32_t kind;
	uint32_t copy_count;
	size_t copy_first;
	uint64_t copy_total;	/* repetitions counted */
	uint32_t counter_count; /* the direct copies' first, if there are any, then ring copies' */
	uint32_t ring_count;
	uint32_t direct_op_count;
	uint64_t direct_bytes, direct_gather_bytes;
	uint64_t bytes, op_count; /* of all, without digests' */
	bool of_tables;		  /* some part of it is made by maxima, or of them */
	uint64_t digest;
};

/* A segment in one bucket. */
struct instance {
	uint32_t bucket, segment;
	uint32_t counter_base, ring_base;
	uint64_t op_base, inbox_base;
};

struct pair_state {
	struct plan_pair pair;
	uint32_t counter_total;	    /* pair.counter_count, but that a plan of all has fewer rows */
	uint32_t *segments;	    /* by kind: the segment + 1, or 0 */
	struct instance *instances; /* by bucket */
	uint32_t instance_count;
};

struct plan {
	struct plan_input input; /* replicas and places are copies in the arena */
	uint32_t self;
	uint64_t digest;
	uint64_t slot_bytes;
	uint32_t trainer_count, rollout_count, member_count; /* rollout_count: of one replica */
	struct arena arena;
	struct vec pairs;      /* of struct pair_state; by sender, then receiver */
	struct vec segments;   /* of struct segment; of a kind and sender in the order to send */
	struct vec copies;     /* of struct stored_copy; a segment's one after the other */
	struct vec parts;      /* of struct plan_part */
	struct vec part_rules; /* of struct part_rules, by part */
	uint32_t *send_order;  /* of self: its pairs in the order of its targets in a bucket */
	uint32_t send_first, send_count; /* self's among pairs */
	uint32_t *by_receiver; /* indexes of pairs by receiver, then sender; self's only */
	uint32_t receive_count;
	struct plan_part *scratch; /* of the copy that was walked last */
	struct plan_blocks *scratch_blocks;
	struct trainer_tables *tables; /* by trainer; NULL where nothing is quantized */
	struct vec locals;	       /* of struct stored_local, by kind; self's */
	struct bucket_kind *kinds;
	uint32_t kind_count;
	struct unit_bucket *buckets;
	uint32_t bucket_count;
	int32_t layer_count;
	uint32_t *layer_place[2]; /* by rule and layer: the layer's place in the rule's list */
	struct plan_totals totals;
	struct plan_family *families;
	uint32_t family_count;
	/* by member: the tensors' bytes, without gaps on the wire; received: from anybody */
	uint64_t *sent, *received, *from_trainers;
	uint32_t fed_replicas; /* that trainers write to: the first so many */
};

/* What exists only while a plan is made. */
struct planning {
	struct plan *plan;
	struct findings *findings; /* never NULL here */
	struct arena arena;
	int32_t *layer_like;   /* by layer: the first that is like it */
	uint32_t *layer_alike; /* by layer: how many are like it; 0 where it isn't the first */
	struct vec families;   /* of struct family */
	struct idmap family_map;
	uint32_t unit_count;
	struct side_index sides[2];
	struct vec geometries;	 /* of struct geometry */
	uint32_t *unit_geometry; /* by unit, or NONE */
	struct vec sets;	 /* of struct holder_set */
	struct idmap set_map;
	uint32_t *node;	     /* by rollout rank: the lowest rank of its node; with fan-out */
	struct vec forwards; /* of struct forward, by pattern */
	uint32_t *order;     /* units in the global order, of layers planned */
	uint32_t ordered_count;
	struct idmap pair_map;
	uint32_t *hosts;   /* of places_hosts; NULL where no trainer shares one with a rollout */
	struct vec lines;  /* of uint32_t: sets of the kind at hand that are dealt */
	struct vec raws;   /* of struct raw: the kind at hand */
	struct vec sorted; /* of struct raw_key */
	struct vec shaped; /* of struct raw: one pair's boxes of the kind at hand */
	struct vec ring;   /* of struct raw: those that go through the ring */
	/* Where something is quantized on the way: */
	struct vec needs;	 /* of struct share: of the kind at hand; what a trainer needs */
	uint32_t *need_last;	 /* by trainer: its last need's index + 1, or 0 */
	struct vec blocks;	 /* of const struct plan_blocks *: those kept, each once */
	struct idmap blocks_map; /* by digest: index in blocks */
	uint32_t *unit_kind;	 /* by unit: of layers planned; NONE elsewhere */
};

/* ---- refuse.c: findings of both manifests together, once units and patterns are known. */
int refuse(struct planning *planning, struct ws_error *err);

/* ---- layers.c */
int layers_make(struct planning *planning, struct ws_error *err);
/* How many layers are as this one, which is the one planned; 1 for none (-1). */
uint32_t layers_alike(const struct planning *planning, int32_t layer);
/* Whether a layer is planned, not repeated; also true for none (-1). */
bool layers_planned(const struct planning *planning, int32_t layer);
/* Where a param of a rule at the layer planned is at another layer. */
static inline uint32_t layers_move(const struct plan *plan, enum side side, uint32_t rule,
				   uint32_t each, uint32_t param, int32_t from, int32_t to)
{
	const uint32_t *places =
		plan->layer_place[side] + (size_t)rule * (uint32_t)plan->layer_count;

	return param + (places[to] - places[from]) * each;
}

/* ---- units.c */
/* Numbers families and units, and where each tensor rule stands. */
int match_units(struct planning *planning, struct ws_error *err);
/* NONE where the layer or the expert is beyond what the family's rules span. */
uint32_t match_family_unit(const struct family *family, int32_t layer, int32_t expert);
/* The unit's family, layer and expert. */
const struct family *match_unit(const struct planning *planning, uint32_t unit, int32_t *layer,
				int32_t *expert);
/* The unit of a side's tensor rule at a layer and expert, where its name leaves them open. */
uint32_t match_unit_of(const struct planning *planning, const struct side_index *side,
		       uint32_t tensor, int32_t layer, int32_t expert);
/* "model.layers.3.mlp.gate_proj.weight" */
const char *match_unit_name(const struct planning *planning, uint32_t unit, char *out,
			    size_t bytes);

/* ---- match.c */
/* Finds the pattern of each unit.  Findings "shape", "doubled". */
int match_make(struct planning *planning, struct ws_error *err);
/* The rank's holdings of a unit, in walk order; *count_out may be 0. */
int match_holdings(struct planning *planning, enum side side, uint32_t rank, uint32_t unit,
		   const struct holding **first_out, uint32_t *count_out, struct ws_error *err);

/* One piece met on a walk through all that a rank holds in the layers planned. */
struct visit {
	uint32_t rank, unit, param, rule, each;
	bool param_begins;
	enum ws_dtype dtype;
	const struct piece *piece;
	const struct form *form;
	uint64_t box_hash; /* of the piece's box and strides and the dtype */
};
typedef int visit_fn(void *arg, const struct visit *visit);
int match_walk(struct planning *planning, enum side side, uint32_t rank, visit_fn *visit, void *arg,
	       struct ws_error *err);

/* ---- scales.c: finding "quant". */
/* Gives units of scales that no trainer holds the pattern that their weights make. */
int scales_make(struct planning *planning, struct ws_error *err);
/* The weight that a unit is the scale of, or NONE. */
uint32_t scales_weight(const struct planning *planning, uint32_t unit);
/* The weight whose name the scale has that this one is under, and the next weight under it, in a
 * ring; a weight alone is both. */
uint32_t scales_lead(const struct planning *planning, uint32_t unit);
uint32_t scales_fellow(const struct planning *planning, uint32_t unit);

/* ---- fanout.c */
/* Cuts the target patterns' entries down to what trainers write. */
int fanout_make(struct planning *planning, struct ws_error *err);
/* Adds the forwards of a unit that the planned member takes part in to planning->raws. */
int fanout_of_unit(struct planning *planning, const struct bucket_kind *kind, uint32_t unit,
		   struct ws_error *err);
/* Whether a rollout forwards of what this sender brings it. */
bool fanout_feeds(const struct plan *plan, uint32_t sender);

/* ---- geometry.c: findings "missing", "doubled", "dtype". */
int geometry_make(struct planning *planning, struct ws_error *err);

/* ---- bucket.c */
int bucket_make(struct planning *planning, struct ws_error *err);

/* ---- balance.c */
int balance_make(struct planning *planning, struct ws_error *err);
/* Lays the lines of a kind: base, end and running of the sets that have several holders. */
int balance_lines(struct planning *planning, const struct bucket_kind *kind, struct ws_error *err);

/* Deals `total` over count holders whose loads are given, so that the highest load in units of
 * its weight gets as low as can be.  Shares add up to total. */
void balance_fill(const uint64_t *loads, const uint64_t *weights, uint32_t count, uint64_t total,
		  uint64_t *shares_out);

/* ---- places.c */
uint32_t member_of_rollout(const struct plan *plan, uint32_t replica_index, uint32_t rank);
/* Makes the plan's input its own copy. */
int places_keep(struct plan *plan);
/* The hosts' numbers by member: the lowest member on it; without places each is on its own. */
int places_hosts(const struct plan *plan, struct arena *arena, uint32_t *hosts_out);
/* Speeds of the trainers for dealing, by the rails that they share with rollouts; all 1 where one
 * isn't known. */
void places_weights(const struct plan *plan, uint64_t *weights_out);
void places_digest(const struct plan *plan, struct writer *out);

/* ---- shape.c */
struct raw {
	uint32_t sender, receiver;
	uint64_t bytes;
	struct plan_part part;
	struct part_rules rules;
	uint32_t repeat; /* as in a stored copy, once it is cut; 0 before */
	int64_t src_step, dst_step;
	const struct block_turn *turn;
	bool source_dense, target_dense, cast;
};

/* Puts the part's dims into target order, drops and merges what can be; sets the flags.  blocks:
 * of codes, by the same dims; or NULL. */
void shape_normalize(struct raw *raw, struct plan_blocks *blocks);
/* The boxes of one (sender, receiver, kind), sorted by place at the target, as a segment. */
int shape_segment(struct planning *planning, uint32_t kind, const struct raw *const *raws,
		  uint32_t count, struct segment *segment_out, struct ws_error *err);

/* ---- boxes.c */
/* Makes room for what is counted by family; and adds that up. */
int boxes_begin(struct planning *planning);
void boxes_end(struct plan *plan);
/* Adds what the planned member sends or receives of a kind to planning->raws, with
 * replicas alike only once.  Counts it in the totals. */
int boxes_of_kind(struct planning *planning, struct bucket_kind *kind, struct ws_error *err);

/* A box on its way from one holding to another. */
struct ends {
	uint32_t sender, receiver;
	const struct holding *source, *target;
	bool scale; /* it comes out of quantizing the source */
	const struct geometry *geometry;
	const struct plan_table *table; /* of the sender's, where it quantizes; else NULL */
};
int boxes_put(struct planning *planning, const struct ends *ends, const struct box *box,
	      uint64_t layers, struct ws_error *err);
/* Adds the raw's bytes, so many times, to what its ends send and receive. */
void boxes_count(struct plan *plan, const struct raw *raw, uint64_t layers);
/* Whether the box lies in one piece, row after row, in a param that holds it as this piece says. */
bool box_dense(const struct box *box, const struct piece *piece);

/* Between trainers: of maxima, which are no weights. */
static inline bool pair_tells(const struct plan *plan, const struct plan_pair *pair)
{
	return pair->receiver < plan->trainer_count;
}

/* ---- report.c: "1.234 GB" */
#define BYTES_TEXT 16
const char *bytes_text(uint64_t bytes, char *out, size_t room);

/* ---- plan.c */
/* Over manifests, roster, places and rules.  -ENOMEM. */
int plan_input_digest(const struct plan *plan, uint64_t *digest_out);

/* ---- pairs.c */
struct pair_state *pairs_find(struct planning *planning, uint32_t sender, uint32_t receiver);
/* Sorts the pairs and lays each out.  Finding "ops". */
int pairs_end(struct planning *planning, struct ws_error *err);
/* What self sends and receives among the pairs, and where a walk puts a copy's parts. */
int pairs_index(struct plan *plan);

/* ---- walk.c */
/* Over all copies of a segment, and over all that both ends of a pair must agree on. */
uint64_t plan_segment_digest(const struct plan *plan, const struct segment *segment);
uint64_t plan_pair_digest(const struct plan *plan, const struct pair_state *state);
struct segment *plan_segment(const struct plan *plan, uint32_t index);
struct pair_state *plan_pair_state(const struct plan *plan, uint32_t index);
/* Moves blocks to the copy's repetition. */
void plan_blocks_turn(struct plan_blocks *blocks, const struct block_turn *turn,
		      uint32_t repetition);

static inline int plan_no_memory(struct ws_error *err)
{
	ws_fail(err, -ENOMEM, "out of memory while planning");
	return -ENOMEM;
}

static inline struct geometry *planning_geometry(const struct planning *planning, uint32_t index)
{
	return (struct geometry *)planning->geometries.items + index;
}

static inline struct holder_set *planning_set(const struct planning *planning, uint32_t index)
{
	return (struct holder_set *)planning->sets.items + index;
}

static inline struct pattern *side_pattern(const struct side_index *side, uint32_t index)
{
	return (struct pattern *)side->patterns.items + index;
}

#endif
