/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the planning half keeps for itself.  The way of a plan, each step a file:
 *
 *   match.c     canonical tensors of both sides become units; what each rank holds of a unit
 *   fanout.c    what ranks hold alike: the slice that each gets from trainers, and the forwards
 *   geometry.c  source boxes of a unit become cells with holder sets, cut by target boxes: atoms
 *   balance.c   how much of a holder set's bytes each holder sends
 *   bucket.c    the one global order of units, cut into buckets
 *   shape.c     the boxes of one (sender, receiver, bucket) become copies, counters and a digest
 *   plan.c      runs them for one member, bucket by bucket
 *
 * Units of one kind (all layers of q_proj, all experts of a block) share patterns and
 * geometries, so the cost of a unit is that of the boxes it yields for the member asked for.
 */
#ifndef PLAN_INTERNAL_H
#define PLAN_INTERNAL_H

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "planner/planner.h"

#define NONE	   UINT32_MAX
#define RING_SLOTS 2 /* per pair */
#define SLOT_ALIGN 4096
#define WIRE_ALIGN 16 /* of a part in a packed copy */
#define UNITS_MAX  (64u << 20)
#define OPS_MAX	   (1u << 24) /* op ids of a receiver: 24 bits of the imm */

/* ---- vec.c: growing arrays and a map from 64 bits to a number. */
struct vec {
	void *items; /* owned */
	size_t count, room;
};

/* One more zeroed item behind the others; NULL when out of memory. */
void *vec_add(struct vec *vec, size_t bytes_each);
void vec_release(struct vec *vec);

struct idmap {
	uint64_t *keys;	  /* owned */
	uint32_t *values; /* owned; value + 1, 0 where free */
	size_t room, count;
};

/* The value of the key, or NONE. */
uint32_t idmap_get(const struct idmap *map, uint64_t key);
/* The key must not be there yet.  -ENOMEM. */
int idmap_put(struct idmap *map, uint64_t key, uint32_t value);
void idmap_release(struct idmap *map);

/* ---- Boxes in canonical coordinates. */
struct box {
	uint32_t dim_count;
	uint64_t offset[BOX_DIM_MAX], extent[BOX_DIM_MAX];
};

uint64_t box_volume(const struct box *box);
int box_compare(const struct box *a, const struct box *b);
bool box_intersect(const struct box *a, const struct box *b, struct box *out);
/* What of `from` isn't in `hole` (they intersect): up to 2 * BOX_DIM_MAX boxes. */
uint32_t box_subtract(const struct box *from, const struct box *hole, struct box *out);
/* "[0:64, 128:256]" */
const char *box_text(const struct box *box, char *out, size_t bytes);

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
	uint32_t order; /* in the walk: ties of one unit keep it */
	uint32_t param; /* its number on this rank */
	enum ws_dtype dtype;
	const struct piece *piece; /* the manifest's */
	const struct form *begins; /* the param's, at its first piece; else NULL */
};

struct rank_holdings {
	bool known;
	struct vec list; /* of struct holding, by unit */
};

/* Who holds which boxes of a unit: the same for all units of a kind. */
struct entry {
	struct box box;
	uint32_t rank;
	uint32_t nth; /* among this rank's holdings of the unit */
	enum ws_dtype dtype;
	bool dense; /* it lies in one piece, row after row */
	/* fanout.c's */
	uint32_t again; /* how often this rank holds the same box before it */
	bool shared;	/* trainers write the slice only, which may be empty */
	struct box slice;
};

/* A box that one rank passes on to another of its node. */
struct holder {
	uint32_t rank, nth;
};

struct forward {
	struct box box;
	struct holder from, to;
};

struct pattern {
	uint32_t unit; /* the first that has it */
	uint32_t entry_count, entry_room;
	struct entry *entries; /* by rank, then walk order */
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
};

/* What a target rank needs of one cell. */
struct atom {
	struct box box;
	uint32_t cell;
	uint32_t target, nth; /* rank, and which of its holdings of the unit */
	uint32_t set;
	uint32_t order;
	enum ws_dtype dtype; /* at the target */
	uint64_t bytes;	     /* on the wire */
	uint64_t before;     /* bytes of this flow's earlier atoms */
};

/* The atoms of one holder set for one target rank. */
struct flow {
	uint32_t set, target;
	uint32_t atom_first, atom_count;
	uint64_t bytes;
};

struct geometry {
	uint32_t source_pattern, target_pattern;
	uint32_t unit, unit_count; /* first unit, and how many share it */
	uint32_t cell_count, atom_count, flow_count, own_count;
	uint64_t bytes;	    /* per unit and replica */
	struct cell *cells; /* by offset */
	struct atom *atoms; /* by flow */
	struct flow *flows; /* by target, then set */
	uint32_t *own;	    /* flows that the planned member takes part in */
};

/* Trainer ranks that hold the same boxes. */
struct holder_set {
	uint32_t count;
	const uint32_t *ranks; /* ascending */
	uint64_t total;	       /* bytes of all its flows, one replica */
	uint64_t *base;	       /* by target rank: bytes for lower ranks; NULL for a single holder */
	uint64_t *running;     /* by target rank: bytes of the units walked so far */
	uint64_t *end;	       /* by holder: upper border of its share of [0, total * replicas) */
};

struct unit_bucket {
	uint32_t unit_first, unit_count; /* in the order */
	const char *name;
	uint64_t bytes; /* over all members */
};

/* A copy as stored. */
struct stored_copy {
	struct plan_copy copy; /* parts is NULL here */
	size_t part_first;
};

struct segment {
	size_t copy_first;
	uint32_t copy_count;
};

struct pair_state {
	struct plan_pair pair;
	struct vec counters; /* of struct plan_counter */
	struct vec segments; /* of struct segment: the pair's copies, bucket by bucket */
	uint64_t chain;	     /* digest of the copies so far */
};

struct plan {
	struct plan_input input; /* replicas and places are copies in the arena */
	uint32_t self;
	uint64_t digest;
	uint64_t slot_bytes;
	uint32_t trainer_count, rollout_count, member_count; /* rollout_count: of one replica */
	struct arena arena;
	struct vec pairs;      /* of struct pair_state; by sender, then receiver */
	struct vec copies;     /* of struct stored_copy; a sender's in the order to send */
	struct vec parts;      /* of struct plan_part */
	struct vec receives;   /* of size_t: indexes of copies in the order of plan_next_receive */
	uint32_t *by_receiver; /* of a plan of all: indexes of pairs by receiver, then sender */
	struct unit_bucket *buckets;
	uint32_t bucket_count;
	struct plan_totals totals;
	/* by member: the tensors' bytes, without gaps on the wire; received: from anybody */
	uint64_t *sent, *received, *from_trainers;
	uint32_t send_first, send_count; /* of pairs: where self is the sender */
	uint32_t fed_replicas;		 /* that trainers write to: the first so many */
};

/* What exists only while a plan is made. */
struct planning {
	struct plan *plan;
	struct findings *findings; /* never NULL here */
	struct arena arena;
	struct vec families; /* of struct family */
	struct idmap family_map;
	uint32_t unit_count;
	struct side_index sides[2];
	struct vec geometries;	 /* of struct geometry */
	uint32_t *unit_geometry; /* by unit, or NONE */
	struct vec sets;	 /* of struct holder_set */
	struct idmap set_map;
	uint32_t *node;	     /* by rollout rank: the lowest rank of its node; with fan-out */
	struct vec forwards; /* of struct forward, by pattern */
	uint32_t *order;     /* units in the global order */
	uint32_t ordered_count;
	struct idmap pair_map;
	struct vec raws;   /* of struct raw: the bucket at hand */
	struct vec sorted; /* of uint32_t */
	struct vec shaped; /* of struct raw: one pair's boxes of the bucket at hand */
	struct vec ring;   /* of struct plan_part: those that go through the ring */
	struct vec words;  /* of uint64_t: what a digest is taken of */
};

/* Builds families and units and finds the pattern of each.  Findings "shape", "quant", "model". */
int match_make(struct planning *planning, struct ws_error *err);
/* The rank's holdings of a unit, in walk order; *count_out may be 0. */
int match_holdings(struct planning *planning, enum side side, uint32_t rank, uint32_t unit,
		   const struct holding **first_out, uint32_t *count_out, struct ws_error *err);
/* The unit's family, layer and expert. */
const struct family *match_unit(const struct planning *planning, uint32_t unit, int32_t *layer,
				int32_t *expert);
/* "model.layers.3.mlp.gate_proj.weight" */
const char *match_unit_name(const struct planning *planning, uint32_t unit, char *out,
			    size_t bytes);

/* One piece met on a walk through all that a rank holds. */
struct visit {
	uint32_t rank, unit, param;
	bool param_begins;
	enum ws_dtype dtype;
	const struct piece *piece;
	const struct form *form;
	uint64_t box_hash; /* of the piece's box, the dtype and whether it lies in one piece */
};
typedef int visit_fn(void *arg, const struct visit *visit);
int match_walk(struct planning *planning, enum side side, uint32_t rank, visit_fn *visit, void *arg,
	       struct ws_error *err);

/* ---- fanout.c */
/* Cuts the target patterns' entries down to what trainers write. */
int fanout_make(struct planning *planning, struct ws_error *err);
/* Adds the forwards of a unit that the planned member takes part in to planning->raws. */
int fanout_of_unit(struct planning *planning, uint32_t unit, struct ws_error *err);
/* Whether a rollout forwards of what this sender brings it. */
bool fanout_feeds(const struct plan *plan, uint32_t sender);

/* ---- geometry.c: findings "missing", "doubled", "dtype". */
int geometry_make(struct planning *planning, struct ws_error *err);
/* Marks the flows of plan->self. */
int geometry_own(struct planning *planning, struct ws_error *err);

/* ---- bucket.c */
int bucket_make(struct planning *planning, struct ws_error *err);

/* ---- balance.c */
int balance_make(struct planning *planning, struct ws_error *err);

/* Deals `total` over count holders whose loads are given, so that the highest load in units of
 * its weight gets as low as can be.  Shares add up to total. */
void balance_fill(const uint64_t *loads, const uint64_t *weights, uint32_t count, uint64_t total,
		  uint64_t *shares_out);

/* ---- places.c */
uint32_t member_of_rollout(const struct plan *plan, uint32_t replica_index, uint32_t rank);
/* Speeds of the trainers for dealing; all 1 where one isn't known. */
void places_weights(const struct plan *plan, uint64_t *weights_out);
void places_digest(const struct plan *plan, struct writer *out);

/* ---- shape.c */
struct raw {
	uint32_t sender, receiver;
	uint64_t bytes;
	struct plan_part part;
	bool source_dense, target_dense, cast;
};

/* Puts the part's dims into target order, drops and merges what can be; sets the flags. */
void shape_normalize(struct raw *raw);
/* The boxes of one (sender, receiver, bucket), sorted by place at the target. */
int shape_pair(struct planning *planning, uint32_t bucket, const struct raw *const *raws,
	       uint32_t count, struct ws_error *err);
/* ---- boxes.c: adds what the planned member sends or receives of a unit to planning->raws. */
int boxes_of_unit(struct planning *planning, uint32_t unit, struct ws_error *err);

/* A box on its way from one holding to another. */
struct ends {
	uint32_t sender, receiver;
	const struct holding *source, *target;
};
int boxes_put(struct planning *planning, const struct ends *ends, const struct box *box,
	      struct ws_error *err);
/* Adds the raw's bytes to what its ends send and receive. */
void boxes_count(struct plan *plan, const struct raw *raw);
/* Whether the box lies in one piece, row after row, in a param that holds it as this piece says. */
bool box_dense(const struct box *box, const struct piece *piece);

/* Ends a pair: thresholds, credits, digest. */
void shape_pair_end(struct plan *plan, struct pair_state *state);

/* ---- plan.c: for tests that break a plan on purpose. */
struct stored_copy *plan_stored_copy(struct plan *plan, size_t index);
struct plan_part *plan_stored_part(struct plan *plan, const struct stored_copy *copy,
				   uint32_t part);
size_t plan_stored_count(const struct plan *plan);
struct pair_state *plan_pair_state(const struct plan *plan, uint32_t index);

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
