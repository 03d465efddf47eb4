/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Smaller models of the same kind, for tests and demos: a share of the bytes, reached by fewer
 * layers (each kind stays), then fewer experts, vocabulary rows, and at last narrower layers;
 * then as many layers again as fit.  A tensor's shape is computed from the config's numbers by
 * its name, and first checked against the shapes it has.  The same inputs give the same model.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner/describe.h"

#define EXPERTS_MIN  8
#define VOCAB_MIN    1024
#define WIDTH_UNIT   256 /* what FP8 blocks of 128 and tensor parallelism by 2 need */
#define HALVINGS_MAX 12

/* The numbers of a config that shapes are made of, then the layers. */
struct sizes {
	uint64_t vocab, hidden, heads, kv_heads, head_dim, inner, expert_inner, shared, experts;
	uint64_t q_rank, kv_rank, nope, rope, value;
	uint32_t dense, moe, mtp;
};

/* A dim of a tensor. */
enum dim {
	D_NONE,
	D_V,
	D_H,
	D_2H,
	D_Q,  /* heads * head_dim */
	D_KV, /* kv_heads * head_dim */
	D_HD,
	D_NQ,
	D_I,
	D_IM,
	D_2IM,
	D_IS, /* of all shared experts */
	D_E,
	D_QA,
	D_QB,  /* heads * (nope + rope) */
	D_KVA, /* kv_rank + rope */
	D_KVR,
	D_KVB, /* heads * (nope + value) */
	D_OV,  /* heads * value */
	D_H32, /* hidden / 32 */
	D_IM32,
	D_16,
};

static const struct {
	const char *name; /* without "model.layers.{L}." or "model.", and what follows the module */
	enum dim dim[BOX_DIM_MAX];
} shapes[] = {
	{"embed_tokens", {D_V, D_H}},
	{"lm_head", {D_V, D_H}},
	{"shared_head.head", {D_V, D_H}},
	{"shared_head.norm", {D_H}},
	{"norm", {D_H}},
	{"input_layernorm", {D_H}},
	{"post_attention_layernorm", {D_H}},
	{"enorm", {D_H}},
	{"hnorm", {D_H}},
	{"eh_proj", {D_H, D_2H}},
	{"self_attn.q_proj", {D_Q, D_H}},
	{"self_attn.k_proj", {D_KV, D_H}},
	{"self_attn.v_proj", {D_KV, D_H}},
	{"self_attn.o_proj", {D_H, D_OV}},
	{"self_attn.q_norm", {D_HD}},
	{"self_attn.k_norm", {D_HD}},
	{"self_attn.sinks", {D_NQ}},
	{"self_attn.q_a_proj", {D_QA, D_H}},
	{"self_attn.q_a_layernorm", {D_QA}},
	{"self_attn.q_b_proj", {D_QB, D_QA}},
	{"self_attn.kv_a_proj_with_mqa", {D_KVA, D_H}},
	{"self_attn.kv_a_layernorm", {D_KVR}},
	{"self_attn.kv_b_proj", {D_KVB, D_KVR}},
	{"mlp.gate_proj", {D_I, D_H}},
	{"mlp.up_proj", {D_I, D_H}},
	{"mlp.down_proj", {D_H, D_I}},
	{"mlp.gate", {D_E, D_H}},
	{"mlp.gate.e_score_correction_bias", {D_E}},
	{"mlp.router", {D_E, D_H}},
	{"mlp.shared_experts.gate_proj", {D_IS, D_H}},
	{"mlp.shared_experts.up_proj", {D_IS, D_H}},
	{"mlp.shared_experts.down_proj", {D_H, D_IS}},
	{"mlp.experts.{E}.gate_proj", {D_IM, D_H}},
	{"mlp.experts.{E}.up_proj", {D_IM, D_H}},
	{"mlp.experts.{E}.down_proj", {D_H, D_IM}},
	{"mlp.experts.gate_up_proj", {D_E, D_H, D_2IM}},
	{"mlp.experts.down_proj", {D_E, D_IM, D_H}},
	{"mlp.experts.gate_up_proj_bias", {D_E, D_2IM}},
	{"mlp.experts.down_proj_bias", {D_E, D_H}},
	{"mlp.experts.gate_up_proj_blocks", {D_E, D_2IM, D_H32, D_16}},
	{"mlp.experts.gate_up_proj_scales", {D_E, D_2IM, D_H32}},
	{"mlp.experts.down_proj_blocks", {D_E, D_H, D_IM32, D_16}},
	{"mlp.experts.down_proj_scales", {D_E, D_H, D_IM32}},
};

static uint64_t dim_of(const struct sizes *s, enum dim dim)
{
	switch (dim) {
	case D_NONE:
		return 0;
	case D_V:
		return s->vocab;
	case D_H:
		return s->hidden;
	case D_2H:
		return 2 * s->hidden;
	case D_Q:
		return s->heads * s->head_dim;
	case D_KV:
		return s->kv_heads * s->head_dim;
	case D_HD:
		return s->head_dim;
	case D_NQ:
		return s->heads;
	case D_I:
		return s->inner;
	case D_IM:
		return s->expert_inner;
	case D_2IM:
		return 2 * s->expert_inner;
	case D_IS:
		return s->expert_inner * s->shared;
	case D_E:
		return s->experts;
	case D_QA:
		return s->q_rank;
	case D_QB:
		return s->heads * (s->nope + s->rope);
	case D_KVA:
		return s->kv_rank + s->rope;
	case D_KVR:
		return s->kv_rank;
	case D_KVB:
		return s->heads * (s->nope + s->value);
	case D_OV:
		return s->heads * (s->kv_rank > 0 ? s->value : s->head_dim);
	case D_H32:
		return s->hidden / 32;
	case D_IM32:
		return s->expert_inner / 32;
	case D_16:
		return 16;
	}
	return 0;
}

/* What stands behind a module's name, and what it does to the weight's [N, K]. */
enum suffix { S_WEIGHT, S_BIAS, S_BLOCK_SCALE, S_SCALE, S_PACKED, S_SHAPE, S_PLAIN };

static enum suffix suffix_of(const char *name, size_t *length)
{
	static const char *const texts[] = {".weight",	     ".bias",	       ".weight_scale_inv",
					    ".weight_scale", ".weight_packed", ".weight_shape"};
	size_t count = strlen(name);
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		size_t text = strlen(texts[i]);
		if (count < text || strcmp(name + count - text, texts[i]) != 0)
			continue;
		*length = count - text;
		return (enum suffix)i;
	}
	*length = count;
	return S_PLAIN;
}

static void apply_suffix(enum suffix suffix, const struct tensor_rule *rule, uint64_t *dim,
			 uint32_t *count)
{
	switch (suffix) {
	case S_WEIGHT:
	case S_PLAIN:
		return;
	case S_BIAS:
		*count = 1;
		return;
	case S_BLOCK_SCALE:
		dim[0] = (dim[0] + 127) / 128;
		dim[1] = (dim[1] + 127) / 128;
		return;
	case S_SCALE: /* one per row, or one per 32 of an INT4 row */
		dim[1] = rule->dim_count == 2 && rule->dim[1] > 1 ? dim[1] / 32 : 1;
		return;
	case S_PACKED:
		dim[1] /= 8;
		return;
	case S_SHAPE:
		dim[0] = 2;
		*count = 1;
		return;
	}
}

/* A tensor's shape by its name; false where the name says nothing. */
static bool shape_of(const struct tensor_rule *rule, const struct sizes *sizes, uint64_t *dim,
		     uint32_t *count)
{
	static const char layer[] = "model.layers.{L}.", top[] = "model.";
	const char *name = rule->name;
	size_t length;
	if (strncmp(name, layer, sizeof(layer) - 1) == 0)
		name += sizeof(layer) - 1;
	else if (strncmp(name, top, sizeof(top) - 1) == 0)
		name += sizeof(top) - 1;
	enum suffix suffix = suffix_of(name, &length);
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		if (strlen(shapes[i].name) != length || strncmp(shapes[i].name, name, length) != 0)
			continue;
		for (*count = 0; *count < BOX_DIM_MAX && shapes[i].dim[*count] != D_NONE;
		     (*count)++)
			dim[*count] = dim_of(sizes, shapes[i].dim[*count]);
		apply_suffix(suffix, rule, dim, count);
		return true;
	}
	return false;
}

static uint64_t number(const struct model *model, const char *key, uint64_t fallback)
{
	int64_t value = model_number(model, key, -1);
	return value < 0 ? fallback : (uint64_t)value;
}

/* The key under which this family counts its experts; NULL without experts. */
static const char *expert_key(const struct model *model)
{
	static const char *const keys[] = {"n_routed_experts", "num_experts", "num_local_experts"};
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		if (model_number(model, keys[i], 0) > 0)
			return keys[i];
	}
	return NULL;
}

static struct sizes sizes_of(const struct model *model)
{
	const char *experts = expert_key(model);
	struct sizes s = {.vocab = number(model, "vocab_size", 0),
			  .hidden = number(model, "hidden_size", 0),
			  .heads = MAX(number(model, "num_attention_heads", 1), 1),
			  .inner = number(model, "intermediate_size", 0),
			  .shared = number(model, "n_shared_experts", 0),
			  .experts = experts == NULL ? 0 : number(model, experts, 0),
			  .q_rank = number(model, "q_lora_rank", 0),
			  .kv_rank = number(model, "kv_lora_rank", 0),
			  .nope = number(model, "qk_nope_head_dim", 0),
			  .rope = number(model, "qk_rope_head_dim", 0),
			  .value = number(model, "v_head_dim", 0)};
	s.kv_heads = number(model, "num_key_value_heads", s.heads);
	s.head_dim = number(model, "head_dim", s.hidden / s.heads);
	s.expert_inner = number(model, "moe_intermediate_size", s.inner);
	return s;
}

static bool is_moe_layer(const struct model *model, int32_t layer)
{
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *rule = &model->tensors[i];
		if (rule->layer_lo <= layer && layer < rule->layer_hi &&
		    (rule->expert_lo >= 0 || strstr(rule->name, ".experts.") != NULL))
			return true;
	}
	return false;
}

/* Counts layers of each kind and checks that every shape follows from the config. */
static int measure(const struct model *model, struct sizes *sizes, struct ws_error *err)
{
	*sizes = sizes_of(model);
	int32_t end = model->layer_count;
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *rule = &model->tensors[i];
		uint64_t dim[BOX_DIM_MAX];
		uint32_t count;
		end = MAX(end, rule->layer_hi);
		if (!shape_of(rule, sizes, dim, &count) || count != rule->dim_count ||
		    memcmp(dim, rule->dim, count * sizeof(dim[0])) != 0)
			return ws_fail(
				err, -ENOTSUP,
				"model '%s' can't be scaled: the shape of '%s' doesn't follow from its config",
				model->name, rule->name);
	}
	for (int32_t layer = 0; layer < model->layer_count; layer++) {
		bool moe = is_moe_layer(model, layer);
		if (!moe && sizes->moe > 0)
			return ws_fail(
				err, -ENOTSUP,
				"model '%s' can't be scaled: dense layer %d is behind an expert layer",
				model->name, layer);
		sizes->moe += moe;
		sizes->dense += !moe;
	}
	sizes->mtp = (uint32_t)(end - model->layer_count);
	return 0;
}

/* The layers of a scaled model that come from [lo, hi) of the whole one: its first dense ones,
 * its first expert ones, its MTP ones. */
static struct layer_range kept_layers(const struct sizes *whole, const struct sizes *s, int32_t lo,
				      int32_t hi)
{
	int32_t starts[] = {0, (int32_t)whole->dense, (int32_t)(whole->dense + whole->moe)};
	int32_t counts[] = {(int32_t)s->dense, (int32_t)s->moe, (int32_t)s->mtp};
	struct layer_range range = {-1, -1};
	int32_t at = 0;
	for (uint32_t kind = 0; kind < 3; at += counts[kind], kind++) {
		int32_t first = MAX(lo - starts[kind], 0);
		int32_t last = MIN(hi - starts[kind], counts[kind]);
		if (first >= last)
			continue;
		if (range.lo < 0)
			range.lo = at + first;
		range.hi = at + last;
	}
	return range;
}

static uint64_t bytes_of(const struct model *model, const struct sizes *whole,
			 const struct sizes *s)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor_rule *rule = &model->tensors[i];
		uint64_t dim[BOX_DIM_MAX], bytes = ws_dtype_bytes(rule->dtype);
		uint32_t count;
		if (!shape_of(rule, s, dim, &count))
			continue;
		for (uint32_t d = 0; d < count; d++)
			bytes *= dim[d];
		if (rule->layer_lo >= 0) {
			struct layer_range range =
				kept_layers(whole, s, rule->layer_lo, rule->layer_hi);
			bytes *= (uint64_t)(range.hi - range.lo);
		}
		if (rule->expert_lo >= 0)
			bytes *= s->experts;
		total += bytes;
	}
	return total;
}

/* A width halved n times: a multiple of 256 from 256 on, unless it was smaller already. */
static uint64_t narrowed(uint64_t width, uint32_t halvings)
{
	if (halvings == 0 || width <= WIDTH_UNIT)
		return width;
	return MAX((width >> halvings) / WIDTH_UNIT * WIDTH_UNIT, WIDTH_UNIT);
}

/* Heads stay divisible by kv heads, at least 2 of either, and heads * head_dim is a multiple of
 * 256 where it was one. */
static void narrow(const struct sizes *whole, uint32_t halvings, struct sizes *s)
{
	s->hidden = narrowed(whole->hidden, halvings);
	s->inner = narrowed(whole->inner, halvings);
	s->expert_inner = narrowed(whole->expert_inner, halvings);
	s->q_rank = narrowed(whole->q_rank, halvings);
	s->kv_rank = narrowed(whole->kv_rank, halvings);
	s->heads = whole->heads;
	s->kv_heads = whole->kv_heads;
	for (uint32_t i = 0; i < halvings; i++) {
		uint64_t heads = s->heads / 2;
		bool wide = heads * s->head_dim % WIDTH_UNIT == 0 ||
			    s->heads * s->head_dim % WIDTH_UNIT != 0;
		if (s->heads % 2 != 0 || heads < 2 || !wide)
			break;
		s->heads = heads;
		if (s->kv_heads % 2 == 0 && s->kv_heads > 2)
			s->kv_heads /= 2;
		while (s->kv_heads > s->heads || s->heads % s->kv_heads != 0)
			s->kv_heads /= 2;
	}
}

static uint64_t vocab_halved(uint64_t vocab, uint32_t halvings)
{
	uint64_t rows = (vocab >> halvings) / WIDTH_UNIT * WIDTH_UNIT;
	return halvings == 0 || vocab <= VOCAB_MIN ? vocab : MAX(rows, VOCAB_MIN);
}

/* The next smaller number of experts: halves that stay multiples of 8, at last 8. */
static uint64_t fewer_experts(uint64_t experts)
{
	if (experts <= EXPERTS_MIN)
		return experts;
	uint64_t half = experts / 2;
	return experts % 2 == 0 && half % EXPERTS_MIN == 0 ? half : EXPERTS_MIN;
}

/* What is searched for. */
struct search {
	const struct model *model;
	const struct sizes *whole;
	uint64_t target;
};

static bool fits(const struct search *search, const struct sizes *s)
{
	return bytes_of(search->model, search->whole, s) <= search->target;
}

static void shrink(const struct search *search, struct sizes *s)
{
	const struct sizes *whole = search->whole;
	uint32_t layers = whole->dense + whole->moe;
	/* Of one kind alone two layers stay, so that a pipeline of two can hold them. */
	uint32_t least = whole->dense > 0 && whole->moe > 0 ? 1 : MIN(layers, 2);
	for (uint32_t left = layers; !fits(search, s) && left > 0; left--) {
		uint32_t dense = whole->dense * left / layers, moe = whole->moe * left / layers;
		s->dense = whole->dense == 0 ? 0 : MAX(dense, MIN(least, whole->dense));
		s->moe = whole->moe == 0 ? 0 : MAX(moe, MIN(least, whole->moe));
	}
	while (!fits(search, s) && s->experts > fewer_experts(s->experts))
		s->experts = fewer_experts(s->experts);
	for (uint32_t i = 1; !fits(search, s) && i < HALVINGS_MAX; i++)
		s->vocab = vocab_halved(whole->vocab, i);
	for (uint32_t i = 1; !fits(search, s) && i < HALVINGS_MAX; i++)
		narrow(whole, i, s);
}

/* As many layers again as fit, of the most frequent kind. */
static void grow(const struct search *search, struct sizes *s)
{
	const struct sizes *whole = search->whole;
	for (;;) {
		struct sizes more = *s;
		if (whole->moe > 0)
			more.moe++;
		else
			more.dense++;
		if (more.moe > whole->moe || more.dense > whole->dense || !fits(search, &more))
			return;
		*s = more;
	}
}

/* One changed number of a config. */
struct change {
	const char *key;
	uint64_t value;
};

#define CHANGE_MAX 24

static uint32_t list_changes(const struct model *model, const struct sizes *s,
			     struct change *changes)
{
	uint64_t layers = s->dense + s->moe;
	uint64_t groups = number(model, "n_group", 1);
	bool ungroup = s->experts > 0 && groups > 0 &&
		       (s->experts % groups != 0 || s->experts / groups < 2);
	const char *experts = expert_key(model);
	const struct change all[] = {
		{"num_hidden_layers", layers},
		{"max_window_layers", layers},
		{"first_k_dense_replace", s->dense},
		{"vocab_size", s->vocab},
		{"hidden_size", s->hidden},
		{"intermediate_size", s->inner},
		{"moe_intermediate_size", s->expert_inner},
		{"num_attention_heads", s->heads},
		{"num_key_value_heads", s->kv_heads},
		{"head_dim", s->head_dim},
		{"q_lora_rank", s->q_rank},
		{"kv_lora_rank", s->kv_rank},
		{experts, s->experts},
		{"num_experts_per_tok", MIN(number(model, "num_experts_per_tok", 0), s->experts)},
		{"experts_per_token", MIN(number(model, "experts_per_token", 0), s->experts)},
		{"n_group", ungroup ? 1 : groups},
		{"topk_group", ungroup ? 1 : number(model, "topk_group", 1)},
	};
	uint32_t count = 0;
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		bool there = all[i].key != NULL && json_get(model->config, all[i].key) != NULL;
		/* Without the key the engine would divide hidden_size by the heads. */
		bool needed = all[i].key != NULL && strcmp(all[i].key, "head_dim") == 0 &&
			      s->kv_rank == 0 && s->head_dim * s->heads != s->hidden;
		if (there || needed)
			changes[count++] = all[i];
	}
	return count;
}

static void put_config(const struct model *model, const struct sizes *s, struct writer *out)
{
	struct json_writer json = {.out = out};
	struct change changes[CHANGE_MAX];
	uint32_t count = list_changes(model, s, changes);
	json_begin_object(&json, NULL);
	for (const struct json *it = model->config->first; it != NULL; it = it->next) {
		uint32_t i = 0;
		while (i < count && strcmp(changes[i].key, it->key) != 0)
			i++;
		if (i < count && it->type == JSON_NUMBER) {
			json_put_u64(&json, it->key, changes[i].value);
			changes[i].key = "";
		} else if (strcmp(it->key, "layer_types") == 0 && it->type == JSON_ARRAY) {
			uint32_t left = s->dense + s->moe;
			json_begin_array(&json, it->key);
			for (const struct json *type = it->first; type != NULL && left > 0;
			     type = type->next, left--)
				json_put_value(&json, NULL, type);
			json_end_array(&json);
		} else {
			json_put_value(&json, it->key, it);
		}
	}
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(changes[i].key, "head_dim") == 0)
			json_put_u64(&json, changes[i].key, changes[i].value);
	}
	json_end_object(&json);
}

static int put_tensors(const struct model *model, const struct sizes *whole, const struct sizes *s,
		       struct model *out, struct ws_error *err)
{
	out->tensors = arena_array(&out->arena, model->tensor_count, sizeof(*out->tensors));
	if (out->tensors == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for model '%s'", out->name);
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		struct tensor_rule rule = model->tensors[i];
		rule.name = arena_copy(&out->arena, rule.name, strlen(rule.name));
		if (rule.name == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for model '%s'", out->name);
		shape_of(&model->tensors[i], s, rule.dim, &rule.dim_count);
		if (rule.layer_lo >= 0) {
			struct layer_range range =
				kept_layers(whole, s, rule.layer_lo, rule.layer_hi);
			if (range.lo == range.hi)
				continue;
			rule.layer_lo = range.lo;
			rule.layer_hi = range.hi;
		}
		if (rule.expert_lo >= 0)
			rule.expert_hi = rule.expert_lo + (int32_t)s->experts;
		out->tensors[out->tensor_count++] = rule;
	}
	out->layer_count = (int32_t)(s->dense + s->moe);
	return 0;
}

int model_scale(struct model **model_out, const struct model *model, uint64_t numerator,
		uint64_t denominator, struct ws_error *err)
{
	struct sizes whole;
	struct writer config = WRITER_INIT(8u << 20);
	char name[NAME_BYTES_MAX];
	*model_out = NULL;
	if (numerator == 0 || numerator > denominator)
		return ws_fail(err, -EINVAL, "a scale must be above 0 and at most 1, like 1/64");
	int rc = measure(model, &whole, err);
	if (rc != 0)
		return rc;
	struct sizes s = whole;
	struct search search = {.model = model, .whole = &whole};
	search.target = (uint64_t)((unsigned __int128)bytes_of(model, &whole, &whole) * numerator /
				   denominator);
	shrink(&search, &s);
	grow(&search, &s);
	put_config(model, &s, &config);
	snprintf(name, sizeof(name), "%.900s-%llu-%llu", model->name, (unsigned long long)numerator,
		 (unsigned long long)denominator);
	rc = config.failed ? ws_fail(err, -ENOMEM, "out of memory for model '%s'", name)
			   : model_new(model_out, name, config.bytes, config.count, err);
	if (rc == 0)
		rc = put_tensors(model, &whole, &s, *model_out, err);
	writer_release(&config);
	if (rc != 0) {
		model_free(*model_out);
		*model_out = NULL;
	}
	return rc;
}
