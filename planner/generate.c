/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Params of trainers whose layout follows from the tensors alone, one rule per tensor: FSDP2
 * (shards of dim 0, tensor parallelism outside), DeepSpeed ZeRO-3 (flat shards), and verl/VeOmni
 * (FSDP2 with stacked experts).  Sources: layouts facts 2.1, 2.2.
 */
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

static bool has_part(const char *name, const char *const *parts)
{
	for (uint32_t i = 0; parts[i] != NULL; i++) {
		if (strstr(name, parts[i]) != NULL)
			return true;
	}
	return false;
}

/* The dim that tensor parallelism cuts, -1 for none: by Hugging Face's names. */
static int tp_dim(const struct tensor_rule *rule)
{
	static const char *const columns[] = {
		".q_proj.",  ".k_proj.",	  ".v_proj.",	 ".gate_proj.",
		".up_proj.", ".q_b_proj.",	  ".kv_b_proj.", "embed_tokens.",
		"lm_head.",  "shared_head.head.", NULL};
	static const char *const rows[] = {".o_proj.", ".down_proj.", NULL};
	if (has_part(rule->name, columns))
		return 0;
	/* The scale of a channel isn't cut with its columns. */
	return rule->dim_count == 2 && rule->dim[1] > 1 && has_part(rule->name, rows) ? 1 : -1;
}

static bool has_axis(const struct make *make, const char *name)
{
	for (uint32_t i = 0; i < make->ranks.mesh[0].axis_count; i++) {
		if (strcmp(make->ranks.mesh[0].axis[i].name, name) == 0)
			return true;
	}
	return false;
}

/* An expression while it is written: nodes outside in, then their values inside out. */
struct expr_writer {
	struct json_writer *json;
	const char *key; /* of the outermost node */
};

static void open_node(struct expr_writer *x, const char *letter)
{
	json_begin_array(x->json, x->key);
	json_put_text(x->json, NULL, letter);
	x->key = NULL;
}

static void put_tensor(struct expr_writer *x, const char *name)
{
	open_node(x, "t");
	json_put_text(x->json, NULL, name);
	json_end_array(x->json);
}

/* Closes an `s`. */
static void close_split(struct expr_writer *x, int64_t dim, const char *axis, const char *mode)
{
	json_put_integer(x->json, NULL, dim);
	json_put_text(x->json, NULL, axis);
	if (mode != NULL) {
		json_begin_object(x->json, NULL);
		json_put_text(x->json, "mode", mode);
		json_end_object(x->json);
	}
	json_end_array(x->json);
}

/* The param's name, layers and mesh; false where MTP is all that it is of, and isn't held. */
static bool begin_param(struct make *make, const char *name, const struct tensor_rule *rule,
			const char *mesh, bool each_expert)
{
	struct json_writer *json = &make->json;
	int32_t end = MIN(rule->layer_hi, make->layer_end);
	if (rule->layer_lo >= end && rule->layer_lo >= 0)
		return false;
	json_begin_object(json, NULL);
	json_put_text(json, "p", name);
	if (rule->layer_lo >= 0) {
		json_begin_object(json, "each");
		json_begin_array(json, "L");
		json_put_integer(json, NULL, rule->layer_lo);
		json_put_integer(json, NULL, end);
		json_end_array(json);
		if (each_expert)
			json_put_text(json, "E", "ep");
		json_end_object(json);
	}
	if (make->ranks.mesh_count > 1)
		json_put_text(json, "mesh", mesh);
	return true;
}

static const char *stage_of(const struct make *make, const struct tensor_rule *rule)
{
	if (make->ranks.stage_count == 1 || rule->layer_lo >= 0)
		return NULL;
	return strstr(rule->name, "embed_tokens.") != NULL ? "first" : "last";
}

/* A tensor of its own: tensor parallel first, FSDP inside, though dp stands left in the mesh. */
static void put_plain(struct make *make, const struct tensor_rule *rule)
{
	struct expr_writer x = {.json = &make->json, .key = "x"};
	bool flat = make->ranks.source == FROM_ZERO3;
	int dim = !flat && has_axis(make, "tp") ? tp_dim(rule) : -1;
	const char *stage = stage_of(make, rule);
	if (!begin_param(make, rule->name, rule, "dense", rule->expert_lo >= 0))
		return;
	open_node(&x, "s");
	if (dim >= 0)
		open_node(&x, "s");
	if (flat)
		open_node(&x, "fl");
	put_tensor(&x, rule->name);
	if (flat)
		json_end_array(x.json);
	if (dim >= 0)
		close_split(&x, dim, "tp", NULL);
	close_split(&x, 0, "dp", "chunk");
	if (stage != NULL)
		json_put_text(x.json, "stage", stage);
	make_put_dtype(make);
	json_end_object(x.json);
}

/* "a.experts.{E}.down_proj.weight" with `name` behind "experts."; false for other names. */
static bool stack_name(const struct tensor_rule *rule, const char *projection, const char *name,
		       char *out, size_t bytes)
{
	const char *at = strstr(rule->name, ".experts.{E}.");
	if (at == NULL || strcmp(at + strlen(".experts.{E}."), projection) != 0)
		return false;
	snprintf(out, bytes, "%.*s.experts.%s", (int)(at - rule->name), rule->name, name);
	return true;
}

/* Closes a stack of VeOmni: cut by experts over ep already, here by rows or experts inside. */
static void close_expert_split(const struct make *make, struct expr_writer *x)
{
	int64_t dim = make->ranks.expert_shard_dim;
	close_split(x, dim, "efsdp", dim == 0 ? "chunk" : NULL);
}

/* transformers 5: all experts' gate and up rows are one param, their down projections another. */
static bool put_fused_stack(struct make *make, const struct tensor_rule *rule)
{
	struct expr_writer x = {.json = &make->json, .key = "x"};
	char name[NAME_BYTES_MAX], up[NAME_BYTES_MAX];
	bool flat = make->ranks.source == FROM_ZERO3, veomni = make->ranks.source == FROM_VEOMNI;
	bool pair = stack_name(rule, "gate_proj.weight", "gate_up_proj", name, sizeof(name));
	if (stack_name(rule, "up_proj.weight", "", name, sizeof(name)))
		return true; /* with gate */
	if (!pair && !stack_name(rule, "down_proj.weight", "down_proj", name, sizeof(name)))
		return false;
	if (!begin_param(make, name, rule, veomni ? "expert" : "dense", false))
		return true;
	open_node(&x, "s");
	if (flat)
		open_node(&x, "fl");
	open_node(&x, "k");
	json_put_text(x.json, NULL, "E");
	if (pair) {
		open_node(&x, "c");
		json_put_integer(x.json, NULL, 0);
	}
	put_tensor(&x, rule->name);
	if (pair) {
		stack_name(rule, "gate_proj.weight", "{E}.up_proj.weight", up, sizeof(up));
		put_tensor(&x, up);
		json_end_array(x.json);
	}
	json_end_array(x.json);
	if (flat)
		json_end_array(x.json);
	if (veomni)
		close_expert_split(make, &x);
	else
		close_split(&x, 0, "dp", "chunk");
	make_put_dtype(make);
	json_end_object(x.json);
	return true;
}

/* VeOmni: one stack per projection, cut by experts over ep and by rows inside. */
static void put_stack(struct make *make, const struct tensor_rule *rule)
{
	struct expr_writer x = {.json = &make->json, .key = "x"};
	const char *tail = strstr(rule->name, ".{E}.");
	char name[NAME_BYTES_MAX];
	if (tail == NULL)
		return put_plain(make, rule);
	size_t bytes = strlen(tail) - strlen(".{E}.");
	if (bytes > strlen(".weight") &&
	    strcmp(rule->name + strlen(rule->name) - strlen(".weight"), ".weight") == 0)
		bytes -= strlen(".weight");
	snprintf(name, sizeof(name), "%.*s.%.*s", (int)(tail - rule->name), rule->name, (int)bytes,
		 tail + strlen(".{E}."));
	if (!begin_param(make, name, rule, "expert", false))
		return;
	open_node(&x, "s");
	open_node(&x, "k");
	json_put_text(x.json, NULL, "E");
	put_tensor(&x, rule->name);
	json_end_array(x.json);
	close_expert_split(make, &x);
	make_put_dtype(make);
	json_end_object(x.json);
}

void make_generated(struct make *make)
{
	for (uint32_t i = 0; i < make->model->tensor_count; i++) {
		const struct tensor_rule *rule = &make->model->tensors[i];
		if (make->ranks.stacked && put_fused_stack(make, rule))
			continue;
		if (make->ranks.source == FROM_VEOMNI && rule->expert_lo >= 0)
			put_stack(make, rule);
		else
			put_plain(make, rule);
	}
}
