/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Post steps of a rollout that has no engine: what vLLM and SGLang make of MLA's kv_b_proj so that
 * attention can absorb it (BF16, from BF16 or FP8), by moves; and of a staged param with a step
 * that isn't known here what landed, as it is.
 */
#include <errno.h>
#include <string.h>

#include "cli/roles.h"
#include "lib/convert/convert.h"
#include "lib/convert/device.h"
#include "lib/cuda/cuda.h"

/* A layer's moves on a GPU: put together once, launched in each version. */
struct layer {
	const struct ws_post_param *made; /* which call it is */
	struct device_batch *batch;	  /* owned */
	struct layer *next;
};

struct post_tools {
	struct layer *layers; /* owned; the post thread's */
};

/* One half of each head's rows, as an engine wants it. */
struct half {
	const struct ws_post_param *kv, *scale; /* scale NULL: kv isn't quantized */
	const struct ws_post_param
		*made; /* [heads, rows, columns], or turned [heads, columns, rows] */
	bool turned;
	uint64_t head_rows, first; /* of kv's rows: in a head; in front of this half */
	struct quant quant;
	struct blocks blocks;
};

/* ---------------------------------------------------------------- moves */

static struct move half_move(struct half *half, uint64_t head)
{
	const struct ws_post_param *kv = half->kv, *made = half->made;
	uint64_t columns = kv->dim[1], rows = made->dim[half->turned ? 2 : 1];
	uint64_t row = head * half->head_rows + half->first;
	int64_t code = (int64_t)ws_dtype_bytes(kv->dtype), two = 2;
	struct move move = {
		.src = (const uint8_t *)kv->memory.base + row * columns * (uint64_t)code,
		.dst = (uint8_t *)made->memory.base + head * rows * columns * 2,
		.dim_count = 2,
		.extent = {rows, columns},
		.src_stride = {(int64_t)columns * code, code},
		.dst_stride = {half->turned ? two : (int64_t)columns * two,
			       half->turned ? (int64_t)rows * two : two},
		.from = kv->dtype,
		.to = WS_BF16,
	};

	if (half->scale == NULL)
		return move;
	half->quant = (struct quant){.code = kv->dtype, .scale = half->scale->dtype};
	half->blocks = (struct blocks){
		.quant = &half->quant,
		.table = half->scale->memory.base,
		.each = {kv->block[0], kv->block[1]},
		.first = {row, 0},
		.stride = {(int64_t)((columns + kv->block[1] - 1) / kv->block[1]), 1},
	};
	move.kind = MOVE_DEQUANTIZE;
	move.blocks = &half->blocks;
	return move;
}

/* Two things of three dims, of one matrix: with its scale, where it is quantized. */
static bool is_known(const struct ws_post *post)
{
	const struct ws_post_param *kv = &post->params[0];

	return post->made_count == 2 && post->made[0].dim_count == 3 &&
	       post->made[1].dim_count == 3 && kv->dim_count == 2 &&
	       post->param_count == (kv->block[0] != 0 ? 2 : 1);
}

static void halves_fill(const struct ws_post *post, bool vllm, struct half halves[2])
{
	const struct ws_post_param *kv = &post->params[0];
	const struct ws_post_param *keys = &post->made[0], *values = &post->made[1];
	uint64_t key_rows = keys->dim[vllm ? 1 : 2], value_rows = values->dim[vllm ? 2 : 1];

	halves[0] = (struct half){.made = keys, .turned = !vllm};
	halves[1] = (struct half){.made = values, .turned = vllm, .first = key_rows};
	for (uint32_t i = 0; i < 2; i++) {
		halves[i].kv = kv;
		halves[i].scale = kv->block[0] != 0 ? &post->params[1] : NULL;
		halves[i].head_rows = key_rows + value_rows;
	}
}

static int halves_check(struct half halves[2], struct ws_error *err)
{
	const struct ws_post_param *kv = halves[0].kv;

	for (uint32_t i = 0; i < 2; i++) {
		const struct ws_post_param *made = halves[i].made;
		if (made->dtype != WS_BF16 || made->dim[halves[i].turned ? 1 : 2] != kv->dim[1] ||
		    made->dim[0] * halves[i].head_rows != kv->dim[0])
			return ws_fail(err, -EINVAL, "'%s' doesn't fit: '%s' has %llu rows of %llu",
				       made->name, kv->name, (unsigned long long)kv->dim[0],
				       (unsigned long long)kv->dim[1]);
	}
	struct move move = half_move(&halves[0], 0);
	return convert_can(&move) ? 0
				  : ws_fail(err, -ENOTSUP, "'%s' is %s, of which BF16 isn't made",
					    kv->name, ws_dtype_name(kv->dtype));
}

/* ---------------------------------------------------------------- on a GPU */

static int layer_make(struct layer *layer, const struct ws_post *post, struct half halves[2],
		      struct ws_error *err)
{
	uint64_t heads = halves[0].made->dim[0];

	int rc = device_batch_open(&layer->batch, post->made[0].memory.device,
				   (uint32_t)(2 * heads), err);
	for (uint64_t i = 0; rc == 0 && i < 2 * heads; i++) {
		struct move move = half_move(&halves[i % 2], i / 2);
		rc = device_batch_add(layer->batch, &move, err);
	}
	return rc;
}

static int gpu_launch(struct post_tools *tools, const struct ws_post *post, struct half halves[2],
		      struct ws_error *err)
{
	struct layer *layer = tools->layers;
	int rc = 0;

	while (layer != NULL && layer->made != post->made)
		layer = layer->next;
	if (layer == NULL) {
		layer = mem_alloc(sizeof(*layer));
		if (layer == NULL)
			return ws_fail(err, -ENOMEM, "no memory for a layer's moves");
		layer->made = post->made;
		layer->next = tools->layers;
		tools->layers = layer;
		rc = layer_make(layer, post, halves, err);
	}
	return rc == 0 ? device_batch_launch(layer->batch, post->stream, err) : rc;
}

/* ---------------------------------------------------------------- the steps */

static int mla_absorb(struct post_tools *tools, const struct ws_post *post, bool vllm,
		      struct ws_error *err)
{
	struct half halves[2];

	if (!is_known(post))
		return ws_fail(err, -EINVAL,
			       "it makes two things of three dims of one matrix, kv_b_proj");
	halves_fill(post, vllm, halves);
	int rc = halves_check(halves, err);
	if (rc == 0 && post->stream != NULL)
		return gpu_launch(tools, post, halves, err);
	uint64_t heads = rc == 0 ? post->made[0].dim[0] : 0;
	for (uint64_t i = 0; i < 2 * heads; i++) {
		struct move move = half_move(&halves[i % 2], i / 2);
		convert_move(&move);
		if (ws_post_cancelled(post))
			return ws_fail(err, -ECANCELED, "the version was given up");
	}
	return rc;
}

static int vllm_mla_absorb(void *arg, const struct ws_post *post, struct ws_error *err)
{
	return mla_absorb(arg, post, true, err);
}

static int sglang_mla_absorb(void *arg, const struct ws_post *post, struct ws_error *err)
{
	return mla_absorb(arg, post, false, err);
}

/* What is staged has landed with the very bytes that its own memory has room for. */
static int hold(void *arg, const struct ws_post *post, struct ws_error *err)
{
	int rc = 0;

	(void)arg;
	for (uint32_t i = 0; rc == 0 && i < post->made_count; i++) {
		const struct ws_memory *from = &post->params[i].memory, *to = &post->made[i].memory;
		if (post->stream != NULL)
			rc = cuda_copy(to->base, from->base, to->bytes, post->stream, err);
		else
			memcpy(to->base, from->base, to->bytes);
	}
	return rc;
}

static const struct built_in {
	const char *name;
	int (*function)(void *arg, const struct ws_post *post, struct ws_error *err);
} built_in[] = {{"vllm_mla_absorb", vllm_mla_absorb}, {"sglang_mla_absorb", sglang_mla_absorb}};

static int step_add(struct post_tools *tools, struct ws_rollout *rollout,
		    const struct step_call *call, bool derives, struct ws_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(built_in); i++)
		if (strcmp(built_in[i].name, call->step) == 0)
			return ws_rollout_on_post(rollout, call->step, built_in[i].function, tools,
						  err);
	if (derives)
		return ws_fail(err, -ENOTSUP,
			       "no post step '%s' is built in here: there are %s and %s",
			       call->step, built_in[0].name, built_in[1].name);
	say("weightsync: no post step '%s' is built in here: its params are held as they land",
	    call->step);
	return ws_rollout_on_post(rollout, call->step, hold, tools, err);
}

int post_tools_open(struct post_tools **tools_out, struct ws_rollout *rollout,
		    const struct rank_memory *memory, struct ws_error *err)
{
	const struct rank_steps *steps = &memory->steps;
	int rc = 0;

	*tools_out = mem_alloc(sizeof(**tools_out));
	if (*tools_out == NULL)
		return ws_fail(err, -ENOMEM, "no memory for post steps");
	for (uint32_t i = 0; rc == 0 && i < steps->call_count; i++) {
		const struct step_call *call = &steps->calls[i];
		bool known = false;
		for (uint32_t b = 0; b < i && !known; b++)
			known = strcmp(steps->calls[b].step, call->step) == 0;
		if (!known)
			rc = step_add(*tools_out, rollout, call,
				      call->made_count > 0 &&
					      call->made_first < steps->derived_count,
				      err);
	}
	return rc;
}

void post_tools_close(struct post_tools *tools)
{
	while (tools != NULL && tools->layers != NULL) {
		struct layer *layer = tools->layers;
		tools->layers = layer->next;
		device_batch_close(layer->batch);
		mem_free(layer);
	}
	mem_free(tools);
}
