/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `--mesh` means in each framework: the order of its ranks and the axes that its presets
 * name.  Sources: layouts facts 2 and 3; README.md says which keys each layout takes.
 */
#include <assert.h>
#include <string.h>

#include "planner/describe.h"

static void add_axis(struct ranks_mesh *mesh, const char *name, uint32_t size)
{
	mesh->axis[mesh->axis_count].name = name;
	mesh->axis[mesh->axis_count++].size = size;
}

/* Parts end with NULL. */
static void add_binding(struct ranks *ranks, const char *name, const char *first,
			const char *second)
{
	struct ranks_binding *binding = &ranks->binding[ranks->binding_count++];
	*binding = (struct ranks_binding){.name = name, .part = {first, second}};
	binding->part_count = (first != NULL ? 1u : 0u) + (second != NULL ? 1u : 0u);
}

static void count_ranks(struct mesh_text *mesh, struct ranks *ranks)
{
	uint64_t product = 1;
	for (uint32_t i = 0; i < ranks->mesh[0].axis_count && product <= RANKS_MAX; i++)
		product *= ranks->mesh[0].axis[i].size;
	if (product > RANKS_MAX)
		mesh_fault(mesh, "it makes more than %d ranks", RANKS_MAX);
	else
		ranks->world = (uint32_t)product;
}

/* A key that is 1 or not there. */
static bool flag(struct mesh_text *mesh, const char *key)
{
	uint32_t value = mesh_size(mesh, key, 0);
	if (value > 1)
		mesh_fault(mesh, "'%s=' is 1 or not there", key);
	return value == 1;
}

/* Two meshes of the same ranks: dense params', and experts'. */
static void two_meshes(struct ranks *ranks)
{
	ranks->mesh_count = 2;
	ranks->mesh[0].name = "dense";
	ranks->mesh[1].name = "expert";
}

/* FSDP2 and ZeRO-3: axes as typed, slowest first. */
static void fsdp2_ranks(struct mesh_text *mesh, const struct model *model, struct ranks *ranks)
{
	(void)model;
	static const char *const keys[] = {"rep", "dp", "tp"};
	ranks->mesh_count = 1;
	ranks->mesh[0].name = "dense";
	for (uint32_t i = 0; i < mesh->count; i++) {
		for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
			bool zero3_tp = ranks->source == FROM_ZERO3 && k == 2;
			if (strcmp(mesh->entry[i].key, keys[k]) == 0 && !zero3_tp)
				add_axis(&ranks->mesh[0], keys[k], mesh_size(mesh, keys[k], 1));
		}
	}
	add_binding(ranks, "ep", NULL, NULL);
	ranks->stacked = flag(mesh, "stacked");
	if (mesh_value(mesh, "dp") == NULL)
		mesh_fault(mesh, "it needs dp=, the number of shards");
}

/* Experts per expert-parallel rank, for frameworks where they must divide. */
static void check_experts(struct mesh_text *mesh, const struct model *model, uint32_t ep)
{
	assert(ep > 0);
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		uint32_t experts = model_experts(&model->tensors[i]);
		if (experts % ep == 0)
			continue;
		return mesh_fault(mesh, "%u experts don't divide by ep=%u", experts, ep);
	}
}

/* An engine cuts q by whole heads, which the presets' plain row splits don't say. */
static void check_heads(struct mesh_text *mesh, const struct model *model, uint32_t attn_tp)
{
	int64_t heads = model_number(model, "num_attention_heads", 0);
	assert(attn_tp > 0);
	if (heads > 0 && heads % attn_tp != 0)
		mesh_fault(mesh, "%lld attention heads don't divide by %u", (long long)heads,
			   attn_tp);
}

/*
 * torchtitan and verl/VeOmni: FSDP2 with stacked experts.  A rank is (pp, rep, dp, tp) and, with
 * the same order of pp and rep, (efsdp, ep): global = efsdp * ep_size + ep (layouts facts 2.1).
 */
static void stacked_ranks(struct mesh_text *mesh, struct ranks *ranks)
{
	uint32_t pp = mesh_size(mesh, "pp", 1), rep = mesh_size(mesh, "rep", 1);
	uint32_t dp = mesh_size(mesh, "dp", 1), tp = mesh_size(mesh, "tp", 1);
	uint32_t ep = mesh_size(mesh, "ep", 1);
	uint64_t both = (uint64_t)dp * tp;
	if (both > RANKS_MAX || both % ep != 0)
		return mesh_fault(mesh, "ep=%u doesn't divide the %llu ranks of dp*tp", ep,
				  (unsigned long long)both);
	two_meshes(ranks);
	for (uint32_t m = 0; m < 2; m++) {
		add_axis(&ranks->mesh[m], "pp", pp);
		add_axis(&ranks->mesh[m], "rep", rep);
	}
	add_axis(&ranks->mesh[0], "dp", dp);
	add_axis(&ranks->mesh[0], "tp", tp);
	add_axis(&ranks->mesh[1], "efsdp", (uint32_t)both / ep);
	add_axis(&ranks->mesh[1], "ep", ep);
	if (mesh_value(mesh, "dp") == NULL)
		mesh_fault(mesh, "it needs dp=, the number of shards");
}

/* Inside EP torchtitan cuts the stack by experts while each rank can have one, else by rows. */
static void torchtitan_ranks(struct mesh_text *mesh, const struct model *model, struct ranks *ranks)
{
	uint32_t experts = 0;
	stacked_ranks(mesh, ranks);
	for (uint32_t i = 0; i < model->tensor_count; i++)
		experts = MAX(experts, model_experts(&model->tensors[i]));
	if (mesh->faults > 0)
		return;
	ranks->expert_shard_dim =
		experts < ranks->mesh[1].axis[2].size * ranks->mesh[1].axis[3].size ? 1 : 0;
	ranks->no_mtp = true; /* it has no MTP layers */
	check_experts(mesh, model, ranks->mesh[1].axis[3].size);
}

/* verl/VeOmni cut the stack inside EP by rows, unless told to do it by experts. */
static void veomni_ranks(struct mesh_text *mesh, const struct model *model, struct ranks *ranks)
{
	stacked_ranks(mesh, ranks);
	ranks->expert_shard_dim = flag(mesh, "by_expert") ? 0 : 1;
	ranks->stacked = flag(mesh, "fused"); /* gate and up in one stack */
	if (mesh->faults == 0)
		check_experts(mesh, model, ranks->mesh[1].axis[3].size);
}

static void megatron_ranks(struct mesh_text *mesh, const struct model *model, struct ranks *ranks)
{
	(void)model;
	uint32_t tp = mesh_size(mesh, "tp", 1), cp = mesh_size(mesh, "cp", 1);
	uint32_t pp = mesh_size(mesh, "pp", 1), ep = mesh_size(mesh, "ep", 1);
	uint32_t etp = mesh_size(mesh, "etp", tp), dp = mesh_size(mesh, "dp", 0);
	const char *order = mesh_value(mesh, "order");
	bool pp_inside = order != NULL && strcmp(order, "tp-cp-ep-pp-dp") == 0;
	uint64_t expert = (uint64_t)ep * etp;
	if (order != NULL && !pp_inside && strcmp(order, "tp-cp-ep-dp-pp") != 0)
		mesh_fault(mesh, "'order=%s': tp-cp-ep-dp-pp or tp-cp-ep-pp-dp belongs there",
			   order);
	/* Unless given: the fewest data-parallel ranks that hold the experts. */
	for (dp = MAX(dp, 1); mesh_value(mesh, "dp") == NULL && dp <= RANKS_MAX &&
			      (uint64_t)tp * cp * dp % expert != 0;)
		dp++;
	uint64_t dense = (uint64_t)tp * cp * dp;
	if (dense > RANKS_MAX || dense % expert != 0)
		return mesh_fault(mesh,
				  "ep=%u times etp=%u doesn't divide the %llu ranks of tp*cp*dp",
				  ep, etp, (unsigned long long)dense);
	uint32_t edp = (uint32_t)(dense / expert);
	if (pp_inside && pp > 1 && edp != dp)
		mesh_fault(mesh, "with order=%s etp*ep must be tp*cp, or stages would disagree",
			   order);
	two_meshes(ranks);
	add_axis(&ranks->mesh[0], pp_inside ? "dp" : "pp", pp_inside ? dp : pp);
	add_axis(&ranks->mesh[0], pp_inside ? "pp" : "dp", pp_inside ? pp : dp);
	add_axis(&ranks->mesh[0], "cp", cp);
	add_axis(&ranks->mesh[0], "tp", tp);
	add_axis(&ranks->mesh[1], pp_inside ? "edp" : "pp", pp_inside ? edp : pp);
	add_axis(&ranks->mesh[1], pp_inside ? "pp" : "edp", pp_inside ? pp : edp);
	add_axis(&ranks->mesh[1], "ep", ep);
	add_axis(&ranks->mesh[1], "etp", etp);
}

/* Ranks are (dp, pp, tp); the experts' ranks of a stage are dp and tp flattened, ep slowest. */
static void vllm_ranks(struct mesh_text *mesh, const struct model *model, struct ranks *ranks)
{
	uint32_t tp = mesh_size(mesh, "tp", 1), dp = mesh_size(mesh, "dp", 1);
	uint32_t pp = mesh_size(mesh, "pp", 1), ep = mesh_size(mesh, "ep", 1);
	uint64_t both = (uint64_t)tp * dp;
	static const char *const tp_names[] = {"attn_tp", "emb_tp", "head_tp", "dense_tp",
					       "shared_tp"};
	if (both > RANKS_MAX || both % ep != 0)
		return mesh_fault(mesh, "ep=%u doesn't divide the %llu ranks of dp*tp", ep,
				  (unsigned long long)both);
	uint32_t moe_tp = (uint32_t)both / ep;
	if (tp % moe_tp != 0 && moe_tp % tp != 0)
		return mesh_fault(mesh, "dp*tp/ep=%u and tp=%u: neither divides the other", moe_tp,
				  tp);
	/* moe_tp takes ranks of tp first, then of dp. */
	uint32_t inner = MIN(moe_tp, tp), outer = moe_tp / inner;
	two_meshes(ranks);
	add_axis(&ranks->mesh[0], "dp", dp);
	add_axis(&ranks->mesh[0], "pp", pp);
	add_axis(&ranks->mesh[0], "tp", tp);
	add_axis(&ranks->mesh[1], "ep_dp", dp / outer);
	add_axis(&ranks->mesh[1], "moe_dp", outer);
	add_axis(&ranks->mesh[1], "pp", pp);
	add_axis(&ranks->mesh[1], "ep_tp", tp / inner);
	add_axis(&ranks->mesh[1], "moe_in_tp", inner);
	for (size_t i = 0; i < ARRAY_SIZE(tp_names); i++)
		add_binding(ranks, tp_names[i], "tp", NULL);
	add_binding(ranks, "ep", "ep_dp", "ep_tp");
	add_binding(ranks, "moe_tp", "moe_dp", "moe_in_tp");
	ranks->round_robin = flag(mesh, "round_robin");
	if (ranks->round_robin && model_number(model, "n_group", 1) <= 1)
		mesh_fault(mesh, "round_robin= is for models with grouped top-k (n_group above 1)");
	check_heads(mesh, model, tp);
}

/* Ranks are (pp, tp), and tp holds dp attention groups of attn_tp each, or ep of moe_tp each. */
static void sglang_ranks(struct mesh_text *mesh, const struct model *model, struct ranks *ranks)
{
	uint32_t tp = mesh_size(mesh, "tp", 1), dp = mesh_size(mesh, "dp", 1);
	uint32_t pp = mesh_size(mesh, "pp", 1), ep = mesh_size(mesh, "ep", 1);
	uint32_t dense_tp = mesh_size(mesh, "moe_dense_tp", tp);
	uint32_t shared_tp = mesh_size(mesh, "shared_tp", tp);
	bool dp_head = flag(mesh, "dp_lm_head");
	if (tp % dp != 0 || tp % ep != 0)
		return mesh_fault(mesh, "dp=%u and ep=%u must each divide tp=%u", dp, ep, tp);
	if ((dense_tp != 1 && dense_tp != tp) || (shared_tp != 1 && shared_tp != tp))
		return mesh_fault(mesh, "moe_dense_tp= and shared_tp= are 1 or tp (%u)", tp);
	two_meshes(ranks);
	add_axis(&ranks->mesh[0], "pp", pp);
	add_axis(&ranks->mesh[0], "dp", dp);
	add_axis(&ranks->mesh[0], "attn_tp", tp / dp);
	add_axis(&ranks->mesh[1], "pp", pp);
	add_axis(&ranks->mesh[1], "ep", ep);
	add_axis(&ranks->mesh[1], "moe_tp", tp / ep);
	add_binding(ranks, "emb_tp", "attn_tp", NULL);
	if (dp_head)
		add_binding(ranks, "head_tp", "attn_tp", NULL);
	else
		add_binding(ranks, "head_tp", "dp", "attn_tp");
	if (dense_tp == 1 && tp > 1)
		add_binding(ranks, "dense_tp", NULL, NULL);
	else
		add_binding(ranks, "dense_tp", "dp", "attn_tp");
	if (shared_tp == 1 && tp > 1)
		add_binding(ranks, "shared_tp", NULL, NULL);
	else
		add_binding(ranks, "shared_tp", "dp", "attn_tp");
	ranks->fuse_shared = flag(mesh, "fuse_shared");
	if (ranks->fuse_shared && model_number(model, "n_shared_experts", 0) != 1)
		mesh_fault(mesh, "fuse_shared= is for models with one shared expert");
	check_experts(mesh, model, ep);
	check_heads(mesh, model, tp / dp);
}

/*
 * TensorRT-LLM: ranks are (pp, tp); the tp ranks hold the experts as (moe_tp, ep), ep fastest [I].
 * With attention_dp each rank has the whole attention, embedding and head [I].
 */
static void trtllm_ranks(struct mesh_text *mesh, const struct model *model, struct ranks *ranks)
{
	static const char *const attention[] = {"attn_tp", "emb_tp", "head_tp"};
	uint32_t tp = mesh_size(mesh, "tp", 1), pp = mesh_size(mesh, "pp", 1);
	uint32_t ep = mesh_size(mesh, "ep", 1);
	const char *attn_tp = flag(mesh, "attention_dp") ? NULL : "tp";
	if (tp % ep != 0)
		return mesh_fault(mesh, "ep=%u doesn't divide tp=%u", ep, tp);
	two_meshes(ranks);
	add_axis(&ranks->mesh[0], "pp", pp);
	add_axis(&ranks->mesh[0], "tp", tp);
	add_axis(&ranks->mesh[1], "pp", pp);
	add_axis(&ranks->mesh[1], "moe_tp", tp / ep);
	add_axis(&ranks->mesh[1], "ep", ep);
	for (size_t i = 0; i < ARRAY_SIZE(attention); i++)
		add_binding(ranks, attention[i], attn_tp, NULL);
	add_binding(ranks, "dense_tp", "tp", NULL);
	add_binding(ranks, "shared_tp", "tp", NULL);
	check_experts(mesh, model, ep);
	check_heads(mesh, model, attn_tp == NULL ? 1 : tp);
}

static const struct layout {
	const char *name;
	enum layout_source source;
	enum left_over left_over;
	bool staged;	  /* it takes pp= and stages= */
	const char *keys; /* for people */
	void (*ranks)(struct mesh_text *mesh, const struct model *model, struct ranks *ranks);
} layouts[] = {
	{"fsdp2", FROM_FSDP2, LEFT_NOWHERE, false, "rep, dp, tp, stacked, mtp", fsdp2_ranks},
	{"zero3", FROM_ZERO3, LEFT_NOWHERE, false, "rep, dp, stacked, mtp", fsdp2_ranks},
	{"veomni", FROM_VEOMNI, LEFT_NOWHERE, true,
	 "pp, rep, dp, tp, ep, by_expert, fused, vpp, first, last, count_embedding, count_loss, stages, mtp",
	 veomni_ranks},
	{"torchtitan", FROM_PRESET, LEFT_NOWHERE, true,
	 "pp, rep, dp, tp, ep, vpp, first, last, count_embedding, count_loss, stages",
	 torchtitan_ranks},
	{"megatron", FROM_PRESET, LEFT_NOWHERE, true,
	 "tp, cp, dp, pp, ep, etp, vpp, first, last, count_embedding, count_loss, stages, mtp, order",
	 megatron_ranks},
	{"vllm", FROM_PRESET, LEFT_MIDDLE, true, "tp, dp, pp, ep, stages, round_robin, mtp",
	 vllm_ranks},
	{"sglang", FROM_PRESET, LEFT_LAST, true,
	 "tp, dp, pp, ep, stages, moe_dense_tp, shared_tp, dp_lm_head, fuse_shared, mtp",
	 sglang_ranks},
	{"trtllm", FROM_PRESET, LEFT_FIRST, true, "tp, pp, ep, stages, attention_dp, mtp",
	 trtllm_ranks},
};

int layout_ranks(const struct model *model, const char *name, const char *mesh_text,
		 struct arena *arena, struct ranks *ranks_out, struct findings *findings,
		 struct ws_error *err)
{
	struct mesh_text mesh = {.findings = findings, .layout = name};
	const struct layout *layout = layouts, *end = layouts + ARRAY_SIZE(layouts);
	int rc = 0;
	while (layout < end && strcmp(layout->name, name) != 0)
		layout++;
	*ranks_out = (struct ranks){.stage_count = 1};
	if (layout == end) {
		findings_add(findings, "layout", name,
			     "no layout has this name; there are fsdp2, zero3, veomni, torchtitan, "
			     "megatron, vllm, sglang, trtllm");
		return 0;
	}
	ranks_out->source = layout->source;
	mesh_split(&mesh, mesh_text);
	layout->ranks(&mesh, model, ranks_out);
	if (layout->staged)
		rc = layout_stages(&mesh, model, layout->left_over, arena, ranks_out, err);
	else
		layout_mtp(&mesh, 1, ranks_out);
	mesh_check_used(&mesh, layout->keys);
	if (mesh.faults == 0)
		count_ranks(&mesh, ranks_out);
	return rc;
}
