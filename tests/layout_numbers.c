/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published and independently computed numbers of real layouts: bytes that each rank holds,
 * stages, ranks without experts, padded vocabularies, shapes of shards.
 */
#include <inttypes.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

static struct manifest *make(const char *name, enum side side, const char *layout, const char *mesh,
			     const char *quant)
{
	struct manifest_options options = {
		.side = side, .layout = layout, .mesh = mesh, .quant = quant};
	struct writer out = WRITER_INIT(16 << 20);
	struct ws_error err = {0};
	struct manifest *manifest;
	struct model *model;
	ck_ok(model_builtin(&model, name, &err), err);
	ck_ok(manifest_make(model, &options, &out, NULL, &err), err);
	ck_ok(manifest_parse(&manifest, out.bytes, out.count, NULL, &err), err);
	model_free(model);
	writer_release(&out);
	return manifest;
}

/* ---- Kimi-K2's engines: bytes per GPU of tests/golden/kimi_k2_plans.json, which counts scales
 * apart and over all replicas. */

static const struct {
	const char *rollout, *layout, *mesh;
	uint32_t replicas;
} kimi_engines[] = {
	{"SGLang 8x[TP16: DP-attn8/attn_tp2, EP16, dense_tp1, shared TP16, dp_lm_head]", "sglang",
	 "tp=16,dp=8,ep=16,moe_dense_tp=1,dp_lm_head=1", 8},
	{"vLLM 8x[pure TP16]", "vllm", "tp=16", 8},
	{"vLLM 8x[TP16 attn + EP16 experts]", "vllm", "tp=16,ep=16", 8},
	{"SGLang 4x[TP32: DP-attn32/attn_tp1, EP32, shared/dense replicated]", "sglang",
	 "tp=32,dp=32,ep=32,moe_dense_tp=1,shared_tp=1,dp_lm_head=1", 4},
	{"1x[EP128: DP-attn128/attn_tp1, shared/dense/embed replicated]", "sglang",
	 "tp=128,dp=128,ep=128,moe_dense_tp=1,shared_tp=1,dp_lm_head=1", 1},
};

struct held_bytes {
	uint64_t weights, scales;
};

static struct held_bytes held(const struct manifest *manifest, uint32_t rank)
{
	struct held_bytes bytes = {0};
	struct arena arena = {0};
	struct rank_params params;
	struct ws_error err = {0};
	ck_ok(manifest_params(manifest, rank, &arena, &params, &err), err);
	for (uint32_t i = 0; i < params.count; i++) {
		bool scale = manifest_rule(manifest, params.params[i].rule)->is_scale;
		*(scale ? &bytes.scales : &bytes.weights) += params.params[i].bytes;
	}
	arena_release(&arena);
	return bytes;
}

START_TEST(each_gpu_of_kimi_k2_holds_the_golden_bytes)
{
	static const struct json_limits limits = JSON_LIMITS_MANIFEST;
	struct arena arena = {0};
	struct ws_error err = {0};
	const struct json *json;
	void *text;
	size_t count;
	uint32_t met = 0;
	ck_ok(file_read("tests/golden/kimi_k2_plans.json", 1u << 20, &text, &count, &err), err);
	ck_ok(json_parse(&arena, text, count, &limits, &json, &err), err);
	mem_free(text);
	for (const struct json *it = json->first; it != NULL; it = it->next) {
		const struct json *dst = json_get(it, "dst");
		if (strcmp(json_text(it, "rollout", ""), kimi_engines[_i].rollout) != 0)
			continue;
		bool fp8 = strcmp(json_text(it, "wire", ""), "fp8") == 0;
		struct manifest *manifest = make("kimi-k2", SIDE_ROLLOUT, kimi_engines[_i].layout,
						 kimi_engines[_i].mesh, fp8 ? "fp8-block" : NULL);
		uint64_t scales = 0;
		for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
			struct held_bytes bytes = held(manifest, rank);
			ck_assert(bytes.weights >= (uint64_t)json_get(dst, "min")->number);
			ck_assert(bytes.weights <= (uint64_t)json_get(dst, "max")->number);
			scales += bytes.scales;
		}
		ck_assert_uint_eq(scales * kimi_engines[_i].replicas,
				  (uint64_t)json_integer(it, "scale_bytes", 0));
		manifest_free(manifest);
		met++;
	}
	ck_assert_uint_ge(met, 1);
	arena_release(&arena);
}
END_TEST

START_TEST(a_gpu_of_the_first_kimi_k2_engine_holds_70206562304_bytes)
{
	struct manifest *manifest = make("kimi-k2", SIDE_ROLLOUT, kimi_engines[0].layout,
					 kimi_engines[0].mesh, "fp8-block");
	ck_assert_uint_eq(held(manifest, 5).weights, 70206562304);
	manifest_free(manifest);
}
END_TEST

/* ---- Ranks that hold no expert, and what the others hold: Kimi-K2 on 32 x 8 (layouts.md 2.1). */

static uint32_t rule_of(const struct manifest *manifest, const char *part)
{
	uint32_t i = 0;
	while (i < manifest_rule_count(manifest) &&
	       strstr(manifest_rule(manifest, i)->name, part) == NULL)
		i++;
	ck_assert_msg(i < manifest_rule_count(manifest), "no %s", part);
	return i;
}

static const struct form *form_of(const struct manifest *manifest, const char *part, uint32_t rank)
{
	const struct form *form;
	struct ws_error err = {0};
	ck_ok(manifest_form(manifest, rule_of(manifest, part), rank, &form, &err), err);
	ck_assert_ptr_nonnull(form);
	return form;
}

START_TEST(sixty_four_of_256_ranks_of_torchtitan_hold_no_expert)
{
	struct manifest *manifest =
		make("kimi-k2", SIDE_TRAINER, "torchtitan", "dp=256,ep=32", NULL);
	uint32_t without = 0;
	for (uint32_t rank = 0; rank < 256; rank++) {
		/* 12 experts over 8: 2, 2, 2, 2, 2, 2, 0, 0; global = efsdp * 32 + ep */
		const struct form *form = form_of(manifest, "moe.experts.w1", rank);
		ck_assert_uint_eq(form->dim[0], rank / 32 < 6 ? 2 : 0);
		without += form->element_count == 0;
	}
	ck_assert_uint_eq(without, 64);
	manifest_free(manifest);
}
END_TEST

START_TEST(more_ranks_than_experts_cut_the_stack_by_rows)
{
	struct manifest *manifest =
		make("qwen3-30b-a3b", SIDE_TRAINER, "torchtitan", "dp=256,ep=8", NULL);
	for (uint32_t rank = 0; rank < 256; rank += 51) {
		const struct form *form = form_of(manifest, "moe.experts.w1", rank);
		ck_assert_uint_eq(form->dim[0], 16);
		ck_assert_uint_eq(form->dim[1], 768 / 32);
	}
	manifest_free(manifest);
}
END_TEST

START_TEST(veomni_cuts_rows_inside_whole_experts)
{
	struct manifest *manifest = make("kimi-k2", SIDE_TRAINER, "veomni", "dp=256,ep=8", NULL);
	const struct form *gate = form_of(manifest, "mlp.experts.gate_proj", 77);
	const struct form *down = form_of(manifest, "mlp.experts.down_proj", 77);
	ck_assert_uint_eq(gate->dim[0], 48);
	ck_assert_uint_eq(gate->dim[1], 64); /* layouts.md 3.4: 64 rows, down 224 */
	ck_assert_uint_eq(down->dim[1], 224);
	manifest_free(manifest);
}
END_TEST

/* ---- Shards of FSDP2 over 256 ranks (layouts.md 2.1). */

static const struct {
	const char *model, *param;
	uint64_t rows, last_full; /* rows of a full shard; ranks that have any */
} shards[] = {
	{"kimi-k2", "kv_a_proj_with_mqa.weight", 3, 192},
	{"kimi-k2", "mlp.gate.weight", 2, 192},
	{"kimi-k2", "input_layernorm.weight", 28, 256},
	{"gpt-oss-120b", "o_proj.weight", 12, 240},
};

START_TEST(a_chunk_may_leave_the_last_ranks_nothing)
{
	struct manifest *manifest = make(shards[_i].model, SIDE_TRAINER, "fsdp2", "dp=256", NULL);
	for (uint64_t rank = 0; rank < 256; rank++)
		ck_assert_uint_eq(form_of(manifest, shards[_i].param, (uint32_t)rank)->dim[0],
				  rank < shards[_i].last_full ? shards[_i].rows : 0);
	manifest_free(manifest);
}
END_TEST

START_TEST(zero3_shards_are_flat_and_tear_rows)
{
	struct manifest *manifest = make("kimi-k2", SIDE_TRAINER, "zero3", "dp=7", NULL);
	const struct form *form = form_of(manifest, "kv_a_proj_with_mqa.weight", 3);
	uint64_t all = 576ull * 7168, part = (all + 6) / 7;
	ck_assert_uint_eq(form->dim_count, 1);
	ck_assert_uint_eq(form->element_count, part);
	ck_assert_uint_eq(form->piece_count, 3); /* partial head row, full rows, partial tail row */
	ck_assert_uint_eq(form_of(manifest, "kv_a_proj_with_mqa.weight", 6)->element_count,
			  all - 6 * part);
	manifest_free(manifest);
}
END_TEST

/* ---- Vocabularies (layouts.md 2.3, 3.1). */

static const struct {
	const char *model;
	uint64_t vocab, padded; /* Megatron's, TP8 */
} vocabularies[] = {
	{"llama-3-70b", 128256, 129024}, {"qwen3-32b", 151936, 152576},
	{"deepseek-v3", 129280, 130048}, {"gpt-oss-120b", 201088, 201728},
	{"kimi-k2", 163840, 163840},	 {"glm-4.5", 151552, 151552},
};

START_TEST(vocabularies_are_padded_as_each_framework_does)
{
	struct manifest *trainer =
		make(vocabularies[_i].model, SIDE_TRAINER, "megatron", "tp=8,etp=1", NULL);
	struct manifest *engine = make(vocabularies[_i].model, SIDE_ROLLOUT, "vllm", "tp=8", NULL);
	const struct form *last = form_of(trainer, "word_embeddings", 7);
	uint64_t covered = 0;
	ck_assert_uint_eq(last->dim[0] * 8, vocabularies[_i].padded);
	for (uint32_t rank = 0; rank < 8; rank++) {
		const struct form *form = form_of(trainer, "word_embeddings", rank);
		covered += form->covered_count / form->dim[1];
	}
	ck_assert_uint_eq(covered, vocabularies[_i].vocab);
	/* no model of these needs vLLM's padding */
	ck_assert_uint_eq(form_of(engine, "embed_tokens", 7)->dim[0] * 8, vocabularies[_i].vocab);
	manifest_free(trainer);
	manifest_free(engine);
}
END_TEST

/* ---- Rows of what row-parallel layers cut: bytes of a run, runs of a box (layouts.md 5.1). */

static const struct {
	const char *model, *mesh, *quant, *param;
	uint64_t run_bytes, rows;
} runs[] = {
	{"llama-3-70b", "tp=8", NULL, "self_attn.o_proj.weight", 2048, 8192},
	{"llama-3-70b", "tp=8", NULL, "mlp.down_proj.weight", 7168, 8192},
	{"qwen3-32b", "tp=8", NULL, "self_attn.o_proj.weight", 2048, 5120},
	{"qwen3-32b", "tp=8", NULL, "mlp.down_proj.weight", 6400, 5120},
	{"qwen3-30b-a3b", "tp=4", NULL, "w2_weight", 384, 2048},
	{"qwen3-235b-a22b", "tp=8", NULL, "w2_weight", 384, 4096},
	{"glm-4.5", "tp=8", NULL, "w2_weight", 384, 5120},
	{"glm-4.5", "tp=4", "fp8-block", "w2_weight", 384, 5120},
	{"deepseek-v3", "tp=16", "fp8-block", "self_attn.o_proj.weight", 1024, 7168},
	{"deepseek-v3", "tp=16", "fp8-block", "mlp.down_proj.weight", 1152, 7168},
	{"deepseek-v3", "tp=16", "fp8-block", "w2_weight", 128, 7168},
	{"kimi-k2", "tp=8", "fp8-block", "self_attn.o_proj.weight", 1024, 7168},
	{"kimi-k2", "tp=16", "fp8-block", "self_attn.o_proj.weight", 512, 7168},
	{"gpt-oss-120b-mxfp4", "tp=8", NULL, "w2_weight", 12 * 16, 2880},
	{"gpt-oss-120b-mxfp4", "tp=8", NULL, "w2_weight_scale", 12, 2880},
};

START_TEST(row_parallel_cuts_have_the_runs_of_the_table)
{
	struct manifest *manifest =
		make(runs[_i].model, SIDE_ROLLOUT, "vllm", runs[_i].mesh, runs[_i].quant);
	const struct form *form = form_of(manifest, runs[_i].param, 1);
	const struct piece *piece = &form->pieces[0];
	/* MXFP4 blocks are [expert, row, block, byte]; all others [.., row, column]. */
	uint32_t row = piece->dim_count == 2 ? 0 : 1;
	uint64_t bytes =
		ws_dtype_bytes(manifest_rule(manifest, rule_of(manifest, runs[_i].param))->dtype);
	for (uint32_t d = row + 1; d < piece->dim_count; d++)
		bytes *= piece->extent[d];
	ck_assert_uint_eq(bytes, runs[_i].run_bytes);
	ck_assert_uint_eq(piece->extent[row], runs[_i].rows);
	manifest_free(manifest);
}
END_TEST

/* ---- gpt-oss and TensorRT-LLM. */

START_TEST(gpt_oss_is_cut_in_units_of_32)
{
	struct manifest *manifest = make("gpt-oss-120b-mxfp4", SIDE_ROLLOUT, "vllm", "tp=8", NULL);
	/* 90 blocks over 8: 12 each, the last 6; gate and up rows alternate, so twice as many */
	for (uint32_t rank = 0; rank < 8; rank++) {
		uint64_t blocks = rank < 7 ? 12 : 6;
		ck_assert_uint_eq(form_of(manifest, "w13_weight", rank)->dim[1], 64 * blocks);
		ck_assert_uint_eq(form_of(manifest, "w2_weight", rank)->dim[2], blocks);
		ck_assert_uint_eq(form_of(manifest, "w2_bias", rank)->covered_count,
				  rank == 0 ? 128 * 2880 : 0);
	}
	manifest_free(manifest);
}
END_TEST

/* The canonical tensor of the first row of a stacked param's first expert. */
static const char *first_tensor(const struct manifest *manifest, const char *part)
{
	const struct form *form = form_of(manifest, part, 0);
	for (uint32_t i = 0; i < form->piece_count; i++) {
		if (form->pieces[i].place == 0)
			return manifest_tensor(manifest, form->pieces[i].tensor)->name;
	}
	return "none";
}

START_TEST(gate_and_up_have_each_frameworks_order)
{
	struct manifest *vllm = make("deepseek-v3", SIDE_ROLLOUT, "vllm", "tp=4", NULL);
	struct manifest *trtllm = make("deepseek-v3", SIDE_ROLLOUT, "trtllm", "tp=4", NULL);
	ck_assert_ptr_nonnull(strstr(first_tensor(vllm, "w13_weight"), "gate_proj"));
	ck_assert_ptr_nonnull(strstr(first_tensor(trtllm, "w3_w1_weight"), "up_proj"));
	manifest_free(vllm);
	manifest_free(trtllm);
}
END_TEST

/* All heads' k_nope rows, then all heads' v rows: local row h * 128 + r is row h * 256 + r. */
START_TEST(trtllm_has_all_heads_keys_before_their_values)
{
	struct manifest *manifest = make("deepseek-v3", SIDE_ROLLOUT, "trtllm", "tp=4", NULL);
	const struct form *form = form_of(manifest, "kv_b_proj", 3);
	ck_assert_uint_eq(form->dim[0], 32 * 256);
	ck_assert_uint_eq(form->piece_count, 64);
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *piece = &form->pieces[i];
		uint64_t row = piece->place / 512, half = row / (32 * 128), head = row / 128 % 32;
		ck_assert_uint_eq(piece->extent[0], 128);
		ck_assert_uint_eq(piece->offset[0], (96 + head) * 256 + half * 128);
	}
	manifest_free(manifest);
}
END_TEST

/* HF row c * hd/2 + j of a head is titan's row 2j + c. */
START_TEST(torchtitans_llama_interleaves_rope_rows)
{
	struct manifest *manifest = make("llama-3-70b", SIDE_TRAINER, "torchtitan", "dp=1", NULL);
	const struct form *form = form_of(manifest, "attention.wk.weight", 0);
	uint64_t rows = 0;
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *piece = &form->pieces[i];
		for (uint64_t r = 0; r < piece->extent[0]; r++, rows++) {
			uint64_t row = piece->offset[0] + r, c = row % 128 / 64, j = row % 64;
			uint64_t at = piece->place + r * (uint64_t)piece->stride[0];
			ck_assert_uint_eq(at / 8192, row / 128 * 128 + 2 * j + c);
		}
	}
	ck_assert_uint_eq(rows, 1024);
	manifest_free(manifest);
}
END_TEST

START_TEST(a_fused_shared_expert_is_the_last_slot)
{
	struct manifest *manifest =
		make("deepseek-v3", SIDE_ROLLOUT, "sglang", "tp=4,ep=2,fuse_shared=1", NULL);
	const struct form *form = form_of(manifest, "w13_weight", 2);
	uint64_t slot = form->dim[1] * form->dim[2], shared = 0;
	ck_assert_uint_eq(form->dim[0], 129);
	for (uint32_t i = 0; i < form->piece_count; i++) {
		const struct piece *piece = &form->pieces[i];
		bool is_shared = strstr(manifest_tensor(manifest, piece->tensor)->name,
					"shared_experts") != NULL;
		ck_assert_int_eq(is_shared, piece->place / slot == 128);
		ck_assert_int_eq(is_shared, piece->slot < 0);
		shared += is_shared;
	}
	ck_assert_uint_eq(shared, 2);
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++)
		ck_assert_ptr_null(strstr(manifest_rule(manifest, i)->name, "shared_experts"));
	manifest_free(manifest);
}
END_TEST

/* ---- Which experts a vLLM rank has: the first have one more, or every n-th. */

START_TEST(vllm_deals_experts_in_a_row_or_in_turn)
{
	struct manifest *row = make("qwen3-30b-a3b", SIDE_ROLLOUT, "vllm", "dp=3,ep=3", NULL);
	struct manifest *turn =
		make("deepseek-v3", SIDE_ROLLOUT, "vllm", "dp=4,ep=4,round_robin=1", NULL);
	static const int32_t firsts[] = {0, 43, 86}, counts[] = {43, 43, 42};
	const int32_t *experts;
	for (uint32_t rank = 0; rank < 3; rank++) {
		uint32_t count =
			manifest_experts(row, rule_of(row, "w13_weight"), rank, 5, &experts);
		ck_assert_int_eq((int32_t)count, counts[rank]);
		ck_assert_int_eq(experts[0], firsts[rank]);
	}
	for (uint32_t rank = 0; rank < 4; rank++) {
		uint32_t count =
			manifest_experts(turn, rule_of(turn, "w13_weight"), rank, 5, &experts);
		ck_assert_uint_eq(count, 64);
		for (uint32_t i = 0; i < count; i++)
			ck_assert_int_eq(experts[i], (int32_t)(rank + 4 * i));
	}
	manifest_free(row);
	manifest_free(turn);
}
END_TEST

/* The embedding stands again where an MTP layer runs, and with tied weights at the last stage. */
START_TEST(megatron_copies_the_embedding_to_the_mtp_stage)
{
	struct manifest *manifest = make("deepseek-v3", SIDE_TRAINER, "megatron",
					 "pp=4,stages=15:15:15:16,mtp=2", NULL);
	uint32_t copies[4] = {0};
	for (uint32_t rule = 0; rule < manifest_rule_count(manifest); rule++) {
		const int32_t *layers;
		const char *name = manifest_rule(manifest, rule)->name;
		for (uint32_t rank = 0; rank < 4; rank++) {
			uint32_t count = manifest_layers(manifest, rule, rank, &layers);
			copies[rank] += strstr(name, "word_embeddings") != NULL ? count : 0;
			if (strncmp(name, "mtp.", 4) == 0)
				ck_assert_uint_eq(count, rank == 2 ? 1 : 0);
		}
	}
	ck_assert(copies[0] == 1 && copies[1] == 0 && copies[2] == 1 && copies[3] == 0);
	manifest_free(manifest);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("layout_numbers");
	TCase *tc = tcase_create("numbers");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, each_gpu_of_kimi_k2_holds_the_golden_bytes, 0,
			    ARRAY_SIZE(kimi_engines));
	tcase_add_test(tc, a_gpu_of_the_first_kimi_k2_engine_holds_70206562304_bytes);
	tcase_add_test(tc, sixty_four_of_256_ranks_of_torchtitan_hold_no_expert);
	tcase_add_test(tc, more_ranks_than_experts_cut_the_stack_by_rows);
	tcase_add_test(tc, veomni_cuts_rows_inside_whole_experts);
	tcase_add_loop_test(tc, a_chunk_may_leave_the_last_ranks_nothing, 0, ARRAY_SIZE(shards));
	tcase_add_test(tc, zero3_shards_are_flat_and_tear_rows);
	tcase_add_loop_test(tc, vocabularies_are_padded_as_each_framework_does, 0,
			    ARRAY_SIZE(vocabularies));
	tcase_add_loop_test(tc, row_parallel_cuts_have_the_runs_of_the_table, 0, ARRAY_SIZE(runs));
	tcase_add_test(tc, gpt_oss_is_cut_in_units_of_32);
	tcase_add_test(tc, gate_and_up_have_each_frameworks_order);
	tcase_add_test(tc, trtllm_has_all_heads_keys_before_their_values);
	tcase_add_test(tc, torchtitans_llama_interleaves_rope_rows);
	tcase_add_test(tc, a_fused_shared_expert_is_the_last_slot);
	tcase_add_test(tc, vllm_deals_experts_in_a_row_or_in_turn);
	tcase_add_test(tc, megatron_copies_the_embedding_to_the_mtp_stage);
	suite_add_tcase(s, tc);
	return s;
}
