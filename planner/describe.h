/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the describing half (box.c expr*.c manifest*.c derived.c rows.c model.c scale.c
 * preset.c layout.c): how an expression, a manifest and a model look inside.
 */
#ifndef DESCRIBE_H
#define DESCRIBE_H

#include "planner/nearest.h"
#include "planner/planner.h"

#define PIECE_COUNT_MAX	  (1u << 22)   /* of one form */
#define ELEMENT_COUNT_MAX (1ULL << 56) /* of a tensor or a param, so that sums can't overflow */
#define EXPR_DEPTH_MAX	  32
#define EXPR_NODE_MAX	  4096 /* of one expression */
#define GROUP_PART_MAX	  16   /* children of a `g` */
#define AXIS_PART_MAX	  8    /* mesh axes of a product */
#define LAYER_MAX	  65536
#define EXPERT_MAX	  65536
#define NAME_BYTES_MAX	  1024
#define VISIT_RANKS	  16   /* ranks that are only looked at cost a visit in all */
#define NAMED_MAX	  1024 /* symbols, sets, meshes, axes, schemes: each is looked up by name */

/* ------------------------------------------------------------------------------------------
 * box.c: pieces while an expression is evaluated.
 */

/* A canonical box and where its elements lie in the output's coordinates: element (i0, i1, ..)
 * at out[j] = at[j] + the sum of i_d * step[d] over those d with to[d] == j. */
struct view {
	uint32_t tensor;
	int32_t slot;
	uint32_t dim_count;
	uint64_t offset[BOX_DIM_MAX], extent[BOX_DIM_MAX];
	uint64_t step[BOX_DIM_MAX];
	uint8_t to[BOX_DIM_MAX];
	uint64_t at[LOCAL_DIM_MAX];
};

struct views {
	struct view *list; /* owned */
	uint32_t count, room;
};

struct shape {
	uint32_t dim_count;
	uint64_t dim[LOCAL_DIM_MAX];
};

/* Positions lo <= x < hi of a dim go to (x - lo) * scale + shift. */
struct span {
	uint64_t lo, hi, scale, shift;
};

int views_add(struct views *views, const struct view *view, struct ws_error *err);
void views_release(struct views *views);
/* Adds to out what of view lies in span on dim. */
int views_cut(const struct view *view, uint32_t dim, const struct span *span, struct views *out,
	      struct ws_error *err);
/* The smallest and the largest position of a view on dim. */
void view_reach(const struct view *view, uint32_t dim, uint64_t *first_out, uint64_t *last_out);
/* Makes the form: row-major places, neighbours merged, sorted by tensor, slot and offset. */
int views_lower(const struct views *views, const struct shape *shape, struct arena *arena,
		struct form *form, struct ws_error *err);
/* Sorts and merges in place; returns how many are left. */
uint32_t pieces_merge(struct piece *pieces, uint32_t count);
uint64_t shape_elements(const struct shape *shape); /* may exceed ELEMENT_COUNT_MAX: UINT64_MAX */

/* ------------------------------------------------------------------------------------------
 * expr.c: the expression language at one rank.
 */
enum expr_op { OP_T, OP_S, OP_R, OP_C, OP_G, OP_IL, OP_P, OP_K, OP_X, OP_FL, OP_Z };
enum split_mode { SPLIT_EVEN, SPLIT_CHUNK, SPLIT_REP };

/* An axis as a param's mesh resolves it: its coordinate is a mixed-radix number of
 * (rank / divisor) % size over the parts, slowest first. */
struct axis {
	const char *name;
	uint32_t size; /* product of the parts */
	uint32_t part_count;
	uint32_t part_divisor[AXIS_PART_MAX], part_size[AXIS_PART_MAX];
};

struct expr {
	enum expr_op op;
	enum split_mode mode;
	uint32_t dim;
	uint64_t a, b, c; /* r: lo hi; g: n; il: outer a b; p: multiple; s: unit; k: 1 for a new
			   * dim only, 0 for experts */
	const struct axis *axis;
	uint32_t tensor; /* t */
	const struct tensor_rule *rule;
	uint32_t perm[LOCAL_DIM_MAX], perm_count;
	uint32_t child_count;
	struct expr **child; /* in the manifest's arena */
};

/* Where an expression is evaluated. */
struct spot {
	uint32_t rank;
	uint32_t expert_count; /* of the rank's list, for `k` */
	bool stacks;	       /* the expression has a `k` */
	/* What if: this axis had another size, and the rank were there on it.  NULL: as it is. */
	const struct axis *axis;
	uint32_t axis_size, axis_index;
};

/* How the pieces of a weight become those of its scale. */
struct scaling {
	const struct quant_scheme *scheme;
	const struct tensor_rule *tensors; /* the manifest's */
	const uint32_t *scale_of;	   /* by tensor */
	bool stacks;
};

uint32_t axis_index(const struct axis *axis, uint32_t rank);
/* The shape alone: finds every error of the expression at this spot and allocates nothing. */
int expr_shape(const struct expr *expr, const struct spot *spot, struct shape *shape_out,
	       struct ws_error *err);
/* scaling NULL: the weight's own form. */
int expr_form(const struct expr *expr, const struct spot *spot, const struct scaling *scaling,
	      struct arena *arena, struct form *form_out, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * manifest_parse.c and its helpers fill what manifest.c answers from.
 */
struct mesh {
	const char *name;
	uint32_t axis_count; /* slowest first */
	struct mesh_axis {
		const char *name;
		uint32_t size, divisor; /* coordinate: rank / divisor % size */
	} * axes;
};

/* An axis name of the expressions: 1 (no parts), one mesh axis or a product of them. */
struct binding {
	const char *name;
	uint32_t part_count;
	const char *part[AXIS_PART_MAX];
};

struct layer_range {
	int32_t lo, hi;
};

struct layer_set {
	const char *name;
	uint32_t count;
	struct layer_range *ranges; /* ascending */
};

/* The experts of every coordinate of an axis of n, for experts [lo, hi). */
struct expert_lists {
	int32_t lo, hi;
	uint32_t coordinate_count;
	int32_t *list; /* the coordinates' experts one after the other */
};

/* A map: lists per layer and coordinate. */
struct expert_map {
	struct layer_range layers;
	uint32_t coordinate_count;
	uint32_t *counts; /* by coordinate, the same at every layer */
	uint32_t *firsts; /* offset of a coordinate's list in a layer's */
	uint32_t total;	  /* of one layer */
	int32_t *list;	  /* layer by layer */
};

enum stage_kind { STAGE_ANY = -1, STAGE_LAST = -2 }; /* else the stage's number */

struct rule {
	struct param_rule view;
	const struct expr *expr;  /* NULL: its forms come from rows */
	const struct axis **axes; /* that its form depends on */
	uint32_t axis_count;
	const struct axis *expert_axis;	  /* of its expert list; NULL where it has none */
	const struct expert_lists *lists; /* NULL under a map */
	int32_t *layers;		  /* ascending within a stage; the single -1 where no {L} */
	uint32_t layer_count;
	uint32_t *stage_first; /* NULL without stages; layers of stage s: [s], [s + 1] */
	int32_t stage;	       /* of a param without layers: enum stage_kind or a number */
	const char *kind, *part_of, *scale; /* "param", "main", NULL: as written */
	const struct quant_scheme *scheme;  /* of a weight with `q`, and of its scale */
	const struct row_forms *rows;
};

/* rows.c: a rank's forms of one rule. */
struct row_forms {
	uint32_t count; /* ranks that have it, ascending */
	uint32_t *ranks;
	const struct form **forms;
	uint32_t *expert_first, *expert_count; /* into experts */
	int32_t *experts;
};

/* derived.c: one entry of "derived". */
struct derived_rule {
	const char *step;
	int32_t *layers; /* ascending; the single -1 where it has none */
	uint32_t layer_count, from_count, made_count;
	const char **from;	/* rules' names */
	struct step_made *made; /* names with {L} */
};

struct memo_entry {
	uint64_t key; /* of the coordinates */
	uint32_t rule, expert_count;
	const struct form *form; /* NULL: free */
};

struct manifest {
	struct arena arena;
	const char *framework, *model;
	uint64_t digest;
	const struct json *sym; /* while parsing: NULL or an object */
	struct tensor_rule *tensors;
	uint32_t *tensor_bucket, *tensor_next; /* hash of names; UINT32_MAX ends */
	struct mesh *meshes;
	struct binding *bindings;
	struct layer_set *sets;
	struct axis *stage_axis; /* NULL: everything is on every rank */
	uint32_t *stage_of;
	const char *expert_axis_name; /* NULL: every rank has every expert */
	struct expert_map *map;	      /* NULL: by place */
	struct expert_lists **lists;
	enum ws_dtype (*casts)[2];
	struct quant_scheme *schemes;
	uint32_t *scale_of; /* by listed tensor: that of its scale, or UINT32_MAX */
	const struct quant_scheme **tensor_scheme; /* likewise: by which it is quantized */
	uint32_t *fellow;   /* likewise: the next under its scale, in a ring */
	struct rule *rules; /* owned; grows while parsing */
	struct memo *memo;  /* owned; the one part that changes later */
	struct derived_rule *derived;
	uint32_t derived_count;
	uint32_t world, tensor_count, tensor_mask, mesh_count, binding_count, set_count;
	uint32_t stage_layer_count, lists_count, cast_count, scheme_count, rule_count, rule_room;
	enum side side;
	int32_t layer_base;  /* num_hidden_layers, for {L-nl}; -1: unknown */
	int64_t map_version; /* -1: none */
	bool round_robin;
};

struct memo {
	struct arena arena;
	struct memo_entry *table; /* owned */
	uint32_t count, mask;
	uint32_t *form_counts; /* by rule: the next id; owned */
};

/* ---- While parsing. */
struct parse {
	struct manifest *manifest;
	struct findings found;
	struct arena arena;  /* findings and scratch */
	const char **names;  /* scratch for expr_tensor_names */
	uint8_t *at_layer;   /* scratch of derived.c */
	uint32_t *at_expert; /* scratch of names.c */
	uint32_t readable;   /* findings after which the rest still says what it holds */
	uint64_t work;	     /* steps that parse_work was told of */
	bool out_of_memory;
};

/* One param's surroundings while its expression is read. */
struct param_parse {
	struct parse *parse;
	const char *name;
	const struct mesh *mesh;
	int32_t layer; /* that `t` resolves for; -1 where the param has none */
	bool each_expert;
	uint32_t node_count;
	bool stacks, in_stack, failed;
	const struct axis **axes; /* named so far; in the manifest's arena */
	uint32_t axis_count, axis_room;
	struct layer_range experts; /* of its {E} tensors; lo -1: none seen */
	enum ws_dtype dtype;	    /* of its tensors */
	bool mixed_dtypes;
};

#define AXES_NAMED_MAX 32 /* distinct axes of one expression */

/* manifest_parse.c: small readers that add findings. */
bool parse_keys(struct parse *parse, const struct json *object, const char *where,
		const char *const *allowed);
/* -EINVAL: the first finding, where it is, and how many others there are. */
int report_first(const struct findings *found, struct ws_error *err);
const char *parse_text(struct parse *parse, const struct json *object, const char *key,
		       const char *where);
bool parse_range(struct parse *parse, const struct json *json, const char *where, const char *what,
		 int32_t max, struct layer_range *range_out);
bool parse_ranges(struct parse *parse, const struct json *json, const char *where,
		  struct layer_set *set_out);
/* Whether an object of names is one, and not too long. */
bool parse_named(struct parse *parse, const struct json *json, const char *kind, const char *where);
/* Counts what grows faster than the text, like params times layers; false and a finding where it
 * is too much. */
bool parse_work(struct parse *parse, const char *where, uint64_t steps);
void *parse_alloc(struct parse *parse, size_t count, size_t bytes_each); /* manifest's arena */
const char *parse_copy(struct parse *parse, const char *text);		 /* likewise */

/* manifest_order.c: the list with its entries in the order that they are read in; NULL and
 * out_of_memory. */
const struct json *parse_order(struct parse *parse, const struct json *list);
/* How findings call an entry of a list: by its name, else "params[3]" in room. */
const char *parse_where(const struct json *entry, const char *list, uint32_t index, char *room,
			size_t bytes);

/* manifest_axes.c: "meshes", "axes", "stages", "experts". */
void parse_meshes(struct parse *parse, const struct json *json);
void parse_bindings(struct parse *parse, const struct json *json);
void parse_stages(struct parse *parse, const struct json *json);
void parse_experts(struct parse *parse, const struct json *json);
const struct mesh *mesh_find(const struct manifest *manifest, const char *name);
const struct expert_lists *expert_lists(struct parse *parse, int32_t lo, int32_t hi,
					uint32_t count);

/* manifest_rules.c: "params". */
/* The mesh of an entry, and its "each": false, or no mesh, and findings. */
void param_mesh(struct param_parse *param, const struct json *json);
bool parse_each(struct parse *parse, const struct json *each, struct param_parse *param,
		struct layer_set *layers);
void parse_params(struct parse *parse, const struct json *json);
/* Adds an empty rule at the end; NULL out of memory. */
struct rule *rule_add(struct parse *parse);
/* The key of a rank's coordinates for a rule: equal keys, equal forms. */
uint64_t rule_key(const struct rule *rule, uint32_t rank);
uint32_t rule_expert_count(const struct manifest *manifest, const struct rule *rule, uint32_t rank);

/* quant.c: "schemes", and scales. */
void parse_schemes(struct parse *parse, const struct json *json);
const struct quant_scheme *scheme_find(const struct manifest *manifest, const char *name);
/* The canonical scale of a weight: one that the manifest lists (a quantized checkpoint's), or a
 * derived one.  UINT32_MAX and a finding where a listed one can't be it. */
uint32_t scale_tensor(struct parse *parse, const struct quant_scheme *scheme, const char *where,
		      uint32_t weight);
/* The one that the manifest lists, or UINT32_MAX. */
uint32_t scale_listed(const struct manifest *manifest, const struct quant_scheme *scheme,
		      uint32_t weight);
/* fused.c: every tensor below an expression gets its scale; once, also for several params. */
bool scale_tensors(struct parse *parse, const struct quant_scheme *scheme, const char *where,
		   const struct expr *expr);
/* Adds the scale of a quantized weight, behind it: derived tensors and a rule.  Findings "quant"
 * and "block". */
void add_scale_rule(struct parse *parse, uint32_t weight, uint32_t *visits_left);
struct scaling scaling_of(const struct manifest *manifest, const struct rule *rule);
/* Turns a weight's views and shape into its scale's; -EINVAL where a block is torn. */
int views_scale(struct views *views, struct shape *shape, const struct scaling *scaling,
		struct ws_error *err);

/* derived.c: "derived". */
void parse_derived(struct parse *parse, const struct json *json);

/* declared.c: findings where a param isn't what it says of itself. */
void check_declared(struct parse *parse, const struct json *json, const struct rule *rule);

/* rows.c: "rows". */
void parse_rows(struct parse *parse, const struct json *json);

/* All rows of one local name and canonical layer and expert: what may become part of a rule. */
struct row_unit {
	const char *name;      /* as a rule's: with {L}, {E} where they can stand */
	int32_t layer, expert; /* expert -1: none, or stacked */
	bool has_layer, stacks;
	enum ws_dtype dtype;
	uint32_t order; /* of its first row */
	uint32_t count; /* ranks, ascending */
	uint32_t *ranks;
	const struct form **forms;
	uint32_t *expert_first, *expert_count; /* of a stack: into experts */
	int32_t *experts;
	uint64_t hash; /* of ranks, forms and stacked experts */
};

/* row_rules.c: merges units that are alike over experts and layers, and adds the rules. */
void add_row_rules(struct parse *parse, struct row_unit *units, uint32_t count);
/* Whether pieces share no local element; false and a finding otherwise. */
bool check_disjoint(struct parse *parse, const char *name, uint32_t rank,
		    const struct piece *pieces, uint32_t count);

/* names.c */
int param_name(const struct manifest *manifest, const struct rule *rule, int32_t layer,
	       int32_t expert, int32_t slot, char *out, size_t bytes);
/* Whether each '{' of a name begins one of the marks (ended by NULL). */
bool name_marks_fit(const char *name, const char *const *marks);
/* Findings for params of the same name on one rank. */
void check_names(struct parse *parse);

/* digest of what was parsed. */
int manifest_digest_make(struct manifest *manifest, struct ws_error *err);

/* expr_parse.c */
const struct axis *axis_resolve(struct param_parse *param, const char *name);
const struct expr *expr_parse(struct param_parse *param, const struct json *json);
/* An integer from min on, "$symbol", "$symbol*axis" or "$symbol/axis". */
uint64_t expr_number(struct param_parse *param, const struct json *json, const char *what,
		     int64_t min);
/* Calls each `t` name of an expression, depth first, at most EXPR_NODE_MAX. */
uint32_t expr_tensor_names(const struct json *json, const char **names, uint32_t room);
uint32_t tensor_find(const struct manifest *manifest, const char *name, int32_t layer);

/* ------------------------------------------------------------------------------------------
 * Making manifests: model.c scale.c layout.c preset.c.
 */

/* The JSON files below presets/ and models/, in the binary; ended by a NULL name. */
struct builtin_file {
	const char *name; /* "presets/vllm-gqa", "models/kimi-k2-bf16" */
	const char *text;
};
extern const struct builtin_file builtin_files[];

struct model {
	struct arena arena;
	const char *name;
	const struct json *config;   /* an object */
	struct tensor_rule *tensors; /* without rotary_emb.inv_freq */
	uint32_t tensor_count;
	int32_t layer_count; /* num_hidden_layers; MTP layers come behind it */
};

/* Makes an empty model with a name and a parsed config; *model_out needs model_free even then. */
/* Puts `mark` in place of the decimal number behind the first component `after` ("layers."), in
 * place; returns the number, or -1 where there is none. */
int32_t take_number(char *name, size_t room, const char *after, const char *mark);
int model_new(struct model **model_out, const char *name, const void *config, size_t bytes,
	      struct ws_error *err);
/* An integer of the config, or fallback. */
int64_t model_number(const struct model *model, const char *key, int64_t fallback);
/* Which of its layers a tensor name exists at, as a rule name with {L}; -1 asks without a layer. */
bool model_has(const struct model *model, const char *name, int32_t layer);
/* Whether a tensor is a second copy of another one (DeepSeek's MTP layer has the embedding). */
bool model_is_alias(const struct tensor_rule *rule);
/* How many experts a tensor is of, one by one or in a stack; 0: it is no expert's. */
uint32_t model_experts(const struct tensor_rule *rule);

/* mesh_text.c: what stands behind `--mesh`. */
#define MESH_KEY_MAX 16

struct mesh_text {
	char text[512];
	uint32_t count;
	struct {
		const char *key, *value;
		uint32_t number; /* 0: not a plain number */
		bool used;
	} entry[MESH_KEY_MAX];
	struct findings *findings;
	uint32_t faults;
	const char *layout;
};

void mesh_split(struct mesh_text *mesh, const char *text);
/* A key's text, or NULL. */
const char *mesh_value(struct mesh_text *mesh, const char *key);
/* A key's number, or fallback; what isn't one is a fault. */
uint32_t mesh_size(struct mesh_text *mesh, const char *key, uint32_t fallback);
/* Says which keys nobody asked for; `keys` are the layout's, for people. */
void mesh_check_used(struct mesh_text *mesh, const char *keys);
__attribute__((format(printf, 2, 3))) void mesh_fault(struct mesh_text *mesh, const char *format,
						      ...);

/* layout.c: what `--mesh` says, as a layout's meshes, axes and stages. */

/* Who writes a layout's params: a preset of the model's family, or a rule per tensor. */
enum layout_source { FROM_PRESET, FROM_FSDP2, FROM_ZERO3, FROM_VEOMNI };

/* Where layers go that don't divide by the stages. */
enum left_over { LEFT_NOWHERE, LEFT_FIRST, LEFT_MIDDLE, LEFT_LAST };

struct ranks {
	uint32_t world;
	uint32_t mesh_count;
	struct ranks_mesh {
		const char *name;
		uint32_t axis_count;
		struct {
			const char *name;
			uint32_t size;
		} axis[6];
	} mesh[2];
	uint32_t binding_count;
	struct ranks_binding {
		const char *name;
		uint32_t part_count; /* 0: bound to 1 */
		const char *part[4];
	} binding[8];
	enum layout_source source;
	uint32_t stage_count;  /* 1: no stages */
	uint32_t *layer_stage; /* of layer 0, 1, ..; in the arena */
	uint32_t layer_count;
	uint32_t mtp_stage;	   /* of MTP layers */
	uint32_t expert_shard_dim; /* of stacked experts: what FSDP cuts inside EP */
	bool round_robin;
	bool stacked;	  /* experts are stacked, as transformers 5 has them */
	bool fuse_shared; /* the shared expert is one more slot of the stack */
	bool no_mtp;	  /* MTP layers aren't held */
};

/* stages.c: fills layer_stage.  Faults go to mesh. */
/* `mtp=none`, or the stage of the MTP layers; the last one unless said. */
void layout_mtp(struct mesh_text *mesh, uint32_t stages, struct ranks *ranks);
int layout_stages(struct mesh_text *mesh, const struct model *model, enum left_over left_over,
		  struct arena *arena, struct ranks *ranks, struct ws_error *err);
int layout_ranks(const struct model *model, const char *layout, const char *mesh,
		 struct arena *arena, struct ranks *ranks_out, struct findings *findings,
		 struct ws_error *err);

/* make.c: one manifest while it is written. */
struct make {
	const struct model *model;
	const struct manifest_options *options;
	struct arena arena;
	struct findings found;
	struct ranks ranks;
	struct json_writer json;
	uint8_t **read; /* by tensor and layer + 1: some param reads it */
	int32_t layer_end;
	bool tied;			  /* the model has no lm_head of its own */
	const struct json *preset;	  /* the layout's; NULL: its params are generated */
	const char *quant, *scale_suffix; /* a scheme's name and its scales' suffix; or NULL */
	bool quantized_file;		  /* the model's own tensors are quantized by it */
};

/* Whether a layer is of a preset's set: all, dense, moe, mtp. */
bool make_in_set(const struct make *make, const char *set, int32_t layer);
/* Layers as a list of ranges; member[layer] says whether it is in. */
void make_put_ranges(struct json_writer *json, const char *key, const uint8_t *member, int32_t end);
/* Parts of a manifest that need the model only; import.c writes them too. */
void make_put_tensors(struct json_writer *json, const struct model *model);
void make_put_sym(struct json_writer *json, const struct model *model, uint64_t vocab_div);
void make_put_casts(struct json_writer *json, const char *casts, struct findings *found);

void make_put_dtype(struct make *make);
/* eplb.c: the keys of "experts" that a map of experts to slots needs. */
void make_put_eplb(struct make *make);
/* make_quant.c: "schemes"; and whether the scheme quantizes a tensor. */
void make_put_scheme(struct make *make);
bool make_is_quantized(const struct make *make, const char *tensor);
/* generate.c: a rule per tensor, for trainers whose layout follows from shapes alone. */
void make_generated(struct make *make);
/* preset.c: the params of all others, and what their engine derives. */
int make_preset(struct make *make, struct ws_error *err);
int make_preset_derived(struct make *make, struct ws_error *err);
/* A layout's preset of the model's own type, else of its family: MLA or grouped-query attention;
 * NULL: it has none. */
const struct builtin_file *preset_find(const struct model *model, const char *layout);

#endif
