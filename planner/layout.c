/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `--mesh` means in each framework: the order of its ranks, the axes that its presets
 * name, and which pipeline stage has which layers.  Sources: layouts facts 2.1, 2.3, 3.1, 3.2;
 * README.md says which keys each layout takes.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

/* "tp=2,pp=2,stages=8:8": keys in the order written. */
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

static __attribute__((format(printf, 2, 3))) void fault(struct mesh_text *mesh, const char *format,
							...)
{
	char text[400];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	findings_add(mesh->findings, "mesh", mesh->layout, "%s", text);
	mesh->faults++;
}

static void split_text(struct mesh_text *mesh, const char *text)
{
	char *rest = mesh->text;
	if (strlen(text) >= sizeof(mesh->text))
		return fault(mesh, "the mesh text is longer than %zu bytes",
			     sizeof(mesh->text) - 1);
	snprintf(mesh->text, sizeof(mesh->text), "%s", text);
	for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ",")) {
		char *value = strchr(item, '='), *end;
		if (value == NULL || value == item || value[1] == '\0')
			return fault(mesh, "'%s' isn't a mesh; a good one is \"dp=2,tp=2\"", text);
		*value++ = '\0';
		if (mesh->count == MESH_KEY_MAX)
			return fault(mesh, "more than %d keys in '%s'", MESH_KEY_MAX, text);
		for (uint32_t i = 0; i < mesh->count; i++) {
			if (strcmp(mesh->entry[i].key, item) == 0)
				fault(mesh, "'%s' stands twice in '%s'", item, text);
		}
		unsigned long number =
			value[0] >= '0' && value[0] <= '9' ? strtoul(value, &end, 10) : 0;
		bool plain = number >= 1 && number <= RANKS_MAX && *end == '\0';
		mesh->entry[mesh->count].key = item;
		mesh->entry[mesh->count].value = value;
		mesh->entry[mesh->count++].number = plain ? (uint32_t)number : 0;
	}
}

static const char *value_of(struct mesh_text *mesh, const char *key)
{
	for (uint32_t i = 0; i < mesh->count; i++) {
		if (strcmp(mesh->entry[i].key, key) != 0)
			continue;
		mesh->entry[i].used = true;
		return mesh->entry[i].value;
	}
	return NULL;
}

static uint32_t size_of(struct mesh_text *mesh, const char *key, uint32_t fallback)
{
	for (uint32_t i = 0; i < mesh->count; i++) {
		if (strcmp(mesh->entry[i].key, key) != 0)
			continue;
		mesh->entry[i].used = true;
		if (mesh->entry[i].number == 0) {
			fault(mesh, "'%s=%s': a number from 1 to %d belongs there", key,
			      mesh->entry[i].value, RANKS_MAX);
			return fallback;
		}
		return mesh->entry[i].number;
	}
	return fallback;
}

static void check_used(struct mesh_text *mesh, const char *keys)
{
	for (uint32_t i = 0; i < mesh->count; i++) {
		if (!mesh->entry[i].used)
			fault(mesh, "it has no mesh key '%s'; it takes %s", mesh->entry[i].key,
			      keys);
	}
}

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
		fault(mesh, "it makes more than %d ranks", RANKS_MAX);
	else
		ranks->world = (uint32_t)product;
}

/* "8:8:5" as numbers; false where it isn't `count` numbers. */
static bool read_list(const char *text, uint32_t *list, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		char *end;
		if (*text < '0' || *text > '9')
			return false;
		unsigned long number = strtoul(text, &end, 10);
		if (number > LAYER_MAX || *end != (i + 1 < count ? ':' : '\0'))
			return false;
		list[i] = (uint32_t)number;
		text = end + 1;
	}
	return true;
}

/* Megatron: even, or with fixed numbers on the first and the last stage and the rest even. */
static void megatron_counts(struct mesh_text *mesh, uint32_t layers, uint32_t stages, uint32_t vpp,
			    uint32_t *counts)
{
	uint32_t first = size_of(mesh, "first", 0), last = size_of(mesh, "last", 0);
	uint32_t fixed = (first > 0 ? 1u : 0u) + (last > 0 ? 1u : 0u), entries = stages * vpp;
	if (fixed > 0 && (vpp > 1 || stages <= fixed || layers < first + last))
		return fault(
			mesh,
			"first= and last= need vpp=1, more than %u stages, and %u layers to share",
			fixed, layers);
	uint32_t rest = layers - first - last, even = entries - fixed;
	if (rest % even != 0)
		return fault(
			mesh,
			"%u layers don't divide by %u stages; use first=, last= or stages=8:8:5",
			rest, even);
	for (uint32_t i = 0; i < entries; i++)
		counts[i] = rest / even;
	if (first > 0)
		counts[0] = first;
	if (last > 0)
		counts[entries - 1] = last;
}

/* vLLM gives left-over layers to the middle stages from the last but one backwards, SGLang to
 * the last ones. */
static void engine_counts(const char *layout, uint32_t layers, uint32_t stages, uint32_t *counts)
{
	uint32_t left = layers % stages;
	for (uint32_t i = 0; i < stages; i++)
		counts[i] = layers / stages;
	for (uint32_t i = 0; i < left; i++)
		counts[stages - 1 - i - (strcmp(layout, "vllm") == 0 ? 1 : 0)]++;
}

/* Which stage has which layer; entry v * stages + s is chunk v of stage s.  MTP layers are on
 * the last one. */
static int make_stages(struct mesh_text *mesh, const struct model *model, struct arena *arena,
		       struct ranks *ranks, struct ws_error *err)
{
	uint32_t layers = (uint32_t)model->layer_count, total = layers, layer = 0, sum = 0;
	uint32_t stages = size_of(mesh, "pp", 1);
	uint32_t vpp = strcmp(mesh->layout, "megatron") == 0 ? size_of(mesh, "vpp", 1) : 1;
	const char *list = value_of(mesh, "stages");
	assert(stages > 0 && vpp > 0);
	ranks->stage_count = stages;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		total = MAX(total, (uint32_t)MAX(model->tensors[i].layer_hi, 0));
	if (stages > layers || vpp > layers / stages) {
		fault(mesh, "%u stages of %u chunks are more than %u layers", stages, vpp, layers);
		return 0;
	}
	uint32_t *counts = arena_array(arena, (size_t)stages * vpp, sizeof(*counts));
	ranks->layer_stage = arena_array(arena, total, sizeof(*ranks->layer_stage));
	if (counts == NULL || ranks->layer_stage == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u stages", stages);
	if (list != NULL && !read_list(list, counts, stages * vpp))
		fault(mesh, "'stages=%s': %u numbers like 8:8:5 belong there", list, stages * vpp);
	else if (list == NULL && strcmp(mesh->layout, "megatron") == 0)
		megatron_counts(mesh, layers, stages, vpp, counts);
	else if (list == NULL)
		engine_counts(mesh->layout, layers, stages, counts);
	for (uint32_t i = 0; i < stages * vpp; i++)
		sum += counts[i];
	if (sum != layers && mesh->faults == 0)
		fault(mesh, "'stages=%s' has %u layers, the model %u", list == NULL ? "" : list,
		      sum, layers);
	if (sum != layers)
		return 0;
	for (uint32_t i = 0; i < stages * vpp; i++) {
		for (uint32_t n = 0; n < counts[i]; n++)
			ranks->layer_stage[layer++] = i % stages;
	}
	while (layer < total)
		ranks->layer_stage[layer++] = stages - 1;
	ranks->layer_count = total;
	return 0;
}

/* Axes as typed, slowest first. */
static void fsdp2_ranks(struct mesh_text *mesh, struct ranks *ranks)
{
	static const char *const keys[] = {"rep", "dp", "tp"};
	ranks->mesh_count = 1;
	ranks->mesh[0].name = "dense";
	for (uint32_t i = 0; i < mesh->count; i++) {
		for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
			if (strcmp(mesh->entry[i].key, keys[k]) == 0)
				add_axis(&ranks->mesh[0], keys[k], size_of(mesh, keys[k], 1));
		}
	}
	add_binding(ranks, "ep", NULL, NULL);
	if (value_of(mesh, "dp") == NULL)
		fault(mesh, "it needs dp=, the number of shards");
}

static void megatron_ranks(struct mesh_text *mesh, struct ranks *ranks)
{
	uint32_t tp = size_of(mesh, "tp", 1), cp = size_of(mesh, "cp", 1);
	uint32_t pp = size_of(mesh, "pp", 1), ep = size_of(mesh, "ep", 1);
	uint32_t etp = size_of(mesh, "etp", tp), dp = size_of(mesh, "dp", 0);
	const char *order = value_of(mesh, "order");
	bool pp_inside = order != NULL && strcmp(order, "tp-cp-ep-pp-dp") == 0;
	uint64_t expert = (uint64_t)ep * etp;
	if (order != NULL && !pp_inside && strcmp(order, "tp-cp-ep-dp-pp") != 0)
		fault(mesh, "'order=%s': tp-cp-ep-dp-pp or tp-cp-ep-pp-dp belongs there", order);
	/* Unless given: the fewest data-parallel ranks that hold the experts. */
	for (dp = MAX(dp, 1); value_of(mesh, "dp") == NULL && dp <= RANKS_MAX &&
			      (uint64_t)tp * cp * dp % expert != 0;)
		dp++;
	uint64_t dense = (uint64_t)tp * cp * dp;
	if (dense > RANKS_MAX || dense % expert != 0)
		return fault(mesh, "ep=%u times etp=%u doesn't divide the %llu ranks of tp*cp*dp",
			     ep, etp, (unsigned long long)dense);
	uint32_t edp = (uint32_t)(dense / expert);
	if (pp_inside && pp > 1 && edp != dp)
		fault(mesh, "with order=%s etp*ep must be tp*cp, or stages would disagree", order);
	ranks->mesh_count = 2;
	ranks->mesh[0].name = "dense";
	ranks->mesh[1].name = "expert";
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
static void vllm_ranks(struct mesh_text *mesh, struct ranks *ranks)
{
	uint32_t tp = size_of(mesh, "tp", 1), dp = size_of(mesh, "dp", 1);
	uint32_t pp = size_of(mesh, "pp", 1), ep = size_of(mesh, "ep", 1);
	uint64_t both = (uint64_t)tp * dp;
	static const char *const tp_names[] = {"attn_tp", "emb_tp", "head_tp", "dense_tp",
					       "shared_tp"};
	if (both > RANKS_MAX || both % ep != 0)
		return fault(mesh, "ep=%u doesn't divide the %llu ranks of dp*tp", ep,
			     (unsigned long long)both);
	uint32_t moe_tp = (uint32_t)both / ep;
	if (tp % moe_tp != 0 && moe_tp % tp != 0)
		return fault(mesh, "dp*tp/ep=%u and tp=%u: neither divides the other", moe_tp, tp);
	/* moe_tp takes ranks of tp first, then of dp. */
	uint32_t inner = MIN(moe_tp, tp), outer = moe_tp / inner;
	ranks->mesh_count = 2;
	ranks->mesh[0].name = "dense";
	ranks->mesh[1].name = "expert";
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
}

/* Ranks are (pp, tp), and tp holds dp attention groups of attn_tp each, or ep of moe_tp each. */
static void sglang_ranks(struct mesh_text *mesh, struct ranks *ranks)
{
	uint32_t tp = size_of(mesh, "tp", 1), dp = size_of(mesh, "dp", 1);
	uint32_t pp = size_of(mesh, "pp", 1), ep = size_of(mesh, "ep", 1);
	uint32_t dense_tp = size_of(mesh, "moe_dense_tp", tp);
	uint32_t shared_tp = size_of(mesh, "shared_tp", tp);
	uint32_t dp_head = size_of(mesh, "dp_lm_head", 0);
	if (tp % dp != 0 || tp % ep != 0)
		return fault(mesh, "dp=%u and ep=%u must each divide tp=%u", dp, ep, tp);
	if ((dense_tp != 1 && dense_tp != tp) || (shared_tp != 1 && shared_tp != tp) || dp_head > 1)
		return fault(
			mesh,
			"moe_dense_tp= and shared_tp= are 1 or tp (%u), dp_lm_head= is 1 or not there",
			tp);
	ranks->mesh_count = 2;
	ranks->mesh[0].name = "dense";
	ranks->mesh[1].name = "expert";
	add_axis(&ranks->mesh[0], "pp", pp);
	add_axis(&ranks->mesh[0], "dp", dp);
	add_axis(&ranks->mesh[0], "attn_tp", tp / dp);
	add_axis(&ranks->mesh[1], "pp", pp);
	add_axis(&ranks->mesh[1], "ep", ep);
	add_axis(&ranks->mesh[1], "moe_tp", tp / ep);
	add_binding(ranks, "emb_tp", "attn_tp", NULL);
	if (dp_head == 1)
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
}

/* An engine cuts q by whole heads, which the presets' plain row splits don't say. */
static void check_heads(struct mesh_text *mesh, const struct model *model, uint32_t attn_tp)
{
	int64_t heads = model_number(model, "num_attention_heads", 0);
	if (heads > 0 && heads % attn_tp != 0)
		fault(mesh, "%lld attention heads don't divide by %u", (long long)heads, attn_tp);
}

static const struct layout {
	const char *name;
	const char *keys; /* for people */
	void (*ranks)(struct mesh_text *mesh, struct ranks *ranks);
} layouts[] = {
	{"fsdp2", "rep, dp, tp", fsdp2_ranks},
	{"megatron", "tp, cp, dp, pp, ep, etp, vpp, first, last, stages, order", megatron_ranks},
	{"vllm", "tp, dp, pp, ep, stages, round_robin", vllm_ranks},
	{"sglang", "tp, dp, pp, ep, stages, moe_dense_tp, shared_tp, dp_lm_head", sglang_ranks},
};

const char *const *layout_names(void)
{
	static const char *const names[] = {"fsdp2", "megatron", "vllm", "sglang", NULL};
	return names;
}

int layout_ranks(const struct model *model, const char *layout, const char *mesh_text,
		 struct arena *arena, struct ranks *ranks_out, struct findings *findings,
		 struct ws_error *err)
{
	struct mesh_text mesh = {.findings = findings, .layout = layout};
	*ranks_out = (struct ranks){.stage_count = 1};
	for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
		int rc = 0;
		if (strcmp(layouts[i].name, layout) != 0)
			continue;
		split_text(&mesh, mesh_text);
		layouts[i].ranks(&mesh, ranks_out);
		if (layouts[i].ranks != fsdp2_ranks)
			rc = make_stages(&mesh, model, arena, ranks_out, err);
		if (layouts[i].ranks == vllm_ranks) {
			ranks_out->round_robin = size_of(&mesh, "round_robin", 0) == 1;
			check_heads(&mesh, model, size_of(&mesh, "tp", 1));
		} else if (layouts[i].ranks == sglang_ranks) {
			check_heads(&mesh, model,
				    MAX(size_of(&mesh, "tp", 1) / size_of(&mesh, "dp", 1), 1));
		}
		check_used(&mesh, layouts[i].keys);
		if (mesh.faults == 0)
			count_ranks(&mesh, ranks_out);
		return rc;
	}
	findings_add(findings, "layout", layout,
		     "no layout has this name; there are fsdp2, megatron, vllm, sglang");
	return 0;
}
